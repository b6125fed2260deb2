"""SGNHT at finite steps: the splitting BADODAB, beside the Euler scheme.

With xi at rest a step is linear on a Gaussian, and then its law is known. By
"badodab" the variance of theta is that of the density, whatever h is, and that
of the momentum, in the middle of its kick, T (1 - h^2 L / 4), L the curvature.
By "euler" the variance of theta is (1 - h xi / 2) of the density's.

All bounds are at five standard errors and more: a false alarm once in 10^6.
"""

import functools

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import tensorflow as tf

from tests import oracle
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.mcmc import sgnht
from tfp_sgmcmc.mcmc import thermostats

gradients, preconditioners = sgmcmc.gradients, sgmcmc.preconditioners

SCALES = np.array([0.5, 1., 2., 1., 0.7])
THERMOSTATS = ('scalar', 'part', 'diagonal', 'matrix')


def log_prob_of(scales):
  """Independent normals, d = 5 coordinates in parts of 2 and 3."""
  def log_prob(first, second):
    return -0.5 * sum(
        tf.reduce_sum(tf.square(x / tf.constant(s, x.dtype)), axis=-1)
        for x, s in ((first, scales[:2]), (second, scales[2:])))

  return log_prob


def split(x, dtype=np.float32):
  """Five coordinates as the two parts."""
  x = np.asarray(x, dtype)
  return [tf.constant(x[..., :2]), tf.constant(x[..., 2:])]


def start(num_chains, scales=SCALES):
  return split(scales * np.random.default_rng(3).normal(size=[num_chains, 5]))


# The step itself, against the same in NumPy.


def xi_by_hand(thermostat, chains):
  """A thermostat, of the kernel's form; and as a matrix of 5 coordinates."""
  rng = np.random.default_rng(5)
  if thermostat == 'matrix':
    xi = rng.normal(size=[*chains, 5, 5])
    xi = xi + np.swapaxes(xi, -1, -2)
    return tf.constant(xi), xi
  size = {'scalar': 1, 'part': 2, 'diagonal': 5}[thermostat]
  xi = rng.normal(size=[*chains, size])  # Negative values too.
  whole = np.repeat(xi, {1: 5, 2: [2, 3], 5: 1}[size], axis=-1)
  form = {
      'scalar': lambda: tf.constant(xi[..., 0]),
      'part': lambda: [tf.constant(xi[..., 0]), tf.constant(xi[..., 1])],
      'diagonal': lambda: split(xi, np.float64)}[thermostat]()
  return form, whole[..., np.newaxis] * np.eye(5)


def drive(thermostat, p, temperature):
  """What moves the thermostat, as a matrix."""
  if thermostat == 'matrix':
    return p[..., np.newaxis] * p[..., np.newaxis, :] - temperature * np.eye(5)
  squares = p**2 - temperature
  mean = {
      'scalar': lambda: np.repeat(
          squares.mean(axis=-1, keepdims=True), 5, axis=-1),
      'part': lambda: np.concatenate([np.repeat(
          x.mean(axis=-1, keepdims=True), x.shape[-1], axis=-1)
          for x in (squares[..., :2], squares[..., 2:])], axis=-1),
      'diagonal': lambda: squares}[thermostat]()
  return mean[..., np.newaxis] * np.eye(5)


def badodab_by_hand(
    thermostat, theta, p, xi, z, h, a, mu, temperature, s, v):
  """Leimkuhler and Shang (2016), BADODAB, in coordinates theta / s."""
  gradient = lambda theta: -s * theta / SCALES**2
  p = p + h / 2. * gradient(theta)
  theta = theta + h / 2. * s * p
  xi = xi + h / (2. * mu) * drive(thermostat, p, temperature)
  if thermostat == 'matrix':
    half = scipy.linalg.expm(-h / 2. * xi)
    apply = lambda x: np.einsum('...ij,...j->...i', half, x)
    p = apply(apply(p) + np.sqrt(2. * a * temperature * h - h**2 * v) * z)
  else:
    friction = np.einsum('...ii->...i', xi)
    e = np.exp(-friction * h)
    p = e * p + z * np.sqrt(
        a * temperature * (1. - e**2) / friction
        - h**2 * v * ((1. + e) / 2.)**2)
  xi = xi + h / (2. * mu) * drive(thermostat, p, temperature)
  theta = theta + h / 2. * s * p
  return theta, p + h / 2. * gradient(theta), xi


def euler_by_hand(thermostat, theta, p, xi, z, h, a, mu, temperature, s, v):
  """Ding et al. (2014), algorithm 1, likewise."""
  p = (p - h * s * theta / SCALES**2 - h * np.einsum('...ij,...j->...i', xi, p)
       + np.sqrt(2. * a * temperature * h - h**2 * v) * z)
  return (theta + h * s * p, p,
          xi + h / mu * drive(thermostat, p, temperature))


@pytest.mark.parametrize('integrator', ['badodab', 'euler'])
@pytest.mark.parametrize('thermostat', THERMOSTATS)
@pytest.mark.parametrize('chains', [(), (4, 3)])
def test_a_step_is_the_one_of_the_paper(thermostat, integrator, chains):
  """With a metric and an estimate of the noise, of each chain its own."""
  rng = np.random.default_rng(1)
  theta, p = rng.normal(size=[2, *chains, 5])
  metric, variance = rng.uniform(0.5, 2., size=[2, *chains, 5])
  form, xi = xi_by_hand(thermostat, chains)
  numbers = dict(h=0.2, a=1.3, mu=1.7, temperature=0.8)
  kernel = sgmcmc.SGNHT(
      log_prob_of(SCALES), 0.2, 1.3, thermostat=thermostat,
      integrator=integrator, thermostat_mass=1.7, temperature=0.8,
      preconditioner=preconditioners.Diagonal(split(metric, np.float64)),
      noise_estimate=split(variance, np.float64))
  state, seed = split(theta, np.float64), tf.constant([3, 4])
  previous = kernel.bootstrap_results(state)._replace(
      momentum=split(p, np.float64), thermostat=form)
  z = np.concatenate(
      kernel._noise(state, kernel._seeds(seed).noise), axis=-1)
  state, results = kernel.one_step(state, previous, seed=seed)
  by_hand = {'badodab': badodab_by_hand, 'euler': euler_by_hand}[integrator]
  theta, p, xi = by_hand(
      thermostat, theta, p, xi, z, s=np.sqrt(metric), v=variance, **numbers)
  # The matrix exponential is a series.
  bound = 1e-6 if thermostat == 'matrix' else 1e-9
  tolerance = dict(rtol=bound, atol=bound)
  np.testing.assert_allclose(np.concatenate(state, -1), theta, **tolerance)
  np.testing.assert_allclose(
      np.concatenate(results.momentum, -1), p, **tolerance)
  ours = results.thermostat
  if thermostat != 'matrix':
    xi = np.einsum('...ii->...i', xi)
    ours = {
        'scalar': lambda: tf.repeat(ours[..., tf.newaxis], 5, axis=-1),
        'part': lambda: tf.repeat(tf.stack(ours, axis=-1), [2, 3], axis=-1),
        'diagonal': lambda: tf.concat(ours, axis=-1)}[thermostat]()
  np.testing.assert_allclose(ours, xi, **tolerance)


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_the_relaxation_where_the_friction_is_tiny_negative_or_large(dtype):
  xi = np.array([0., 1e-38, 1e-20, -1e-9, 1e-6, -1e-6, 1e-3, -0.5, 3., 50.])
  h, a, t, v = 0.1, 1.5, 0.7, 2.
  e, c = thermostats.relaxation(
      *(tf.constant(x, dtype) for x in (xi, h, a, t, v, 0.)))
  # A friction beside the thermostat adds to xi and to A.
  beside = thermostats.relaxation(
      *(tf.constant(x, dtype) for x in (xi - 0.25, h, a - 0.25, t, v, 0.25)))
  np.testing.assert_allclose((e, c), beside, rtol=1e-5)
  wide = xi.astype(np.longdouble)
  with np.errstate(invalid='ignore', divide='ignore'):
    full = a * t * np.where(
        np.abs(wide) < 1e-12, 2. * h, -np.expm1(-2. * wide * h) / wide)
  known = h**2 * v * ((1. + np.exp(-wide * h)) / 2.)**2
  rtol = 1e-6 if dtype == np.float32 else 1e-12
  np.testing.assert_allclose(e, np.exp(-wide * h), rtol=rtol)
  np.testing.assert_allclose(
      np.square(c), np.maximum(full - known, full / 20.), rtol=3. * rtol)


# The law.


@functools.cache
def gaussian(thermostat, integrator):
  """Chains of a Gaussian, compiled once for all numbers."""
  def make_kernel(h, a, noise, estimate, gamma=None):
    share = tf.constant([0.2, 0.6, 1., 1.4, 1.8], tf.float64)**0.5
    scale = noise * share
    return sgmcmc.SGNHT(
        log_prob_of(SCALES), h, a, thermostat=thermostat,
        integrator=integrator, gradient_estimator=NoisyByPart(
            [scale[:2], scale[2:]]),
        noise_estimate=[estimate * scale[:2]**2, estimate * scale[2:]**2],
        **({} if gamma is None else dict(
            friction=[gamma * share[:2]**2, gamma * share[2:]**2])))

  return functools.partial(
      oracle.compile_chains(make_kernel), start(20_000))


class NoisyByPart(gradients.GradientEstimator):
  """The exact gradient and noise of another size in each coordinate."""

  def __init__(self, scales):
    self._scales = scales

  def check_target(self, target):
    """Any has the exact gradient."""

  def one_step(self, target, state_parts, previous_results, seed,
               gaussian_step=None):
    estimate, results = gradients.Exact().one_step(
        target, state_parts, previous_results, seed)
    noise = sgmcmc.random.normal_like(state_parts, seed)
    return estimate._replace(grads_target_log_prob=[
        g + tf.cast(s, g.dtype) * z for g, s, z in zip(
            estimate.grads_target_log_prob, self._scales, noise)]), results


def run(thermostat, integrator, h, a=2., noise=0., estimate=0., time=30.,
        **friction):
  """theta, relative to the density's sds, the momentum and xi."""
  state, results = gaussian(thermostat, integrator)(
      int(time / h), h=h, a=a, noise=noise, estimate=estimate, **friction)
  return (np.concatenate(state, axis=-1) / SCALES,
          np.concatenate(results.momentum, axis=-1), results.thermostat)


@pytest.mark.weekly_after(3)
@pytest.mark.parametrize('thermostat', [
    'scalar', 'diagonal', *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ('part', 'matrix'))])
def test_the_law_of_a_gaussian_at_a_large_step(thermostat):
  """h^2 L up to 0.64. "euler" is cold by a tenth at a quarter of that h."""
  h = 0.4
  theta, momentum, _ = run(thermostat, 'badodab', h)
  # Five standard errors of 1%, and 2% for a thermostat that does not rest.
  np.testing.assert_allclose(theta.var(axis=0), 1., rtol=0.07)
  np.testing.assert_allclose(theta.var(), 1., rtol=0.03)
  np.testing.assert_allclose(
      momentum.var(axis=0), 1. - h**2 / SCALES**2 / 4., rtol=0.07)


@pytest.mark.slow
@pytest.mark.parametrize('thermostat', [
    'scalar', pytest.param('diagonal', marks=pytest.mark.weekly)])
def test_how_cold_euler_is(thermostat):
  """1 - h xi / 2, with xi h = 1 - sqrt(1 - 2 h A), also with h A fixed."""
  for h, a in ((0.1, 2.), (0.05, 4.)):
    theta, _, xi = run(thermostat, 'euler', h, a)
    xi = np.mean(np.concatenate([np.ravel(x) for x in tf.nest.flatten(xi)]))
    law = 1. - h * xi / 2.
    # The mean of 100,000 squares.
    error = 5. * np.sqrt(2. / 100_000) * law
    assert abs(theta.var() - law) < error + 0.005
    assert abs(xi * h - (1. - np.sqrt(1. - 2. * h * a))) < 0.01
    assert abs(theta.var() - 1.) > error + 0.005  # It is not of second order.


def test_the_noise_that_is_known_is_not_added_again():
  """Noise of variance 8 on average, 1.6 to 14.4 by coordinate.

  It heats like a friction of h V / 2 = 0.8 on average, where A = 2. One
  thermostat for all makes up for the mean alone, so that without V all
  coordinates are wrong but the middle one.
  """
  numbers = dict(thermostat='scalar', integrator='badodab', h=0.2, noise=8**0.5)
  known, _, xi = run(estimate=1., **numbers)
  np.testing.assert_allclose(known.var(axis=0), 1., rtol=0.06)
  # Of second order, (h xi)^2 / 4 = 0.04 of its friction, and fluctuation.
  assert abs(np.mean(xi) - 2.) < 0.1
  unknown, _, xi = run(estimate=0., **numbers)
  assert abs(np.mean(xi) - 2.8) < 0.2
  assert np.all(np.abs(unknown.var(axis=0)[[0, 1, 3, 4]] - 1.) > 0.06)


@pytest.mark.slow
def test_a_friction_beside_the_thermostat():
  """gamma from 0.4 to 3.6 by coordinate, and A = 0.

  Then xi makes up for the noise that is not known: it is 0 with none, or with
  known noise. With unknown noise (gamma + h V / 2) / (gamma + xi), the mean of
  p^2 in a coordinate, is 1 on average over coordinates, to first order in h.
  """
  numbers = dict(
      thermostat='scalar', integrator='badodab', h=0.2, a=0., gamma=2.)
  for noise, estimate in ((0., 0.), (2., 1.)):
    theta, _, xi = run(noise=noise, estimate=estimate, **numbers)
    np.testing.assert_allclose(theta.var(axis=0), 1., rtol=0.06)
    assert abs(np.mean(xi)) < 0.1
  h, share = 0.1, np.array([0.2, 0.6, 1., 1.4, 1.8])
  gamma, variance = 2. * share, 4. * share
  wanted = scipy.optimize.brentq(lambda xi: np.mean(
      (gamma + h * variance / 2.) / (gamma + xi)) - 1., 0., 1.)
  _, _, xi = run(noise=2., **{**numbers, 'h': h})
  # Its standard error is 0.003; what is left out is of the order of h^2.
  assert abs(np.mean(xi) - wanted) < 0.03


@pytest.mark.parametrize('arguments, message', [
    (dict(integrator='euler'), 'integrator is "euler"'),
    (dict(thermostat='matrix'), 'thermostat is "matrix"'),
    (dict(friction=-1.), 'friction'),
    (dict(friction=[1., -1.]), 'friction'),
])
def test_a_friction_that_is_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    sgmcmc.SGNHT(log_prob_of(SCALES), 0.1, 1., **{'friction': 1., **arguments})


@pytest.mark.slow
def test_an_estimate_that_is_too_large_leaves_a_twentieth_of_the_noise():
  """The thermostat then lowers the friction to a twentieth, and holds T."""
  theta, _, xi = run('scalar', 'badodab', 0.1, 4., 1e-3, 1e12, time=100.)
  np.testing.assert_allclose(theta.var(axis=0), 1., rtol=0.06)
  assert abs(np.mean(xi) - 0.2) < 0.02


WIDE = np.array([0.01, 1., 100., 3., 0.2])


def metric_chains(exponent):
  """Chains with G of the variances, drifting with G^exponent."""
  with pytest.MonkeyPatch.context() as patch:
    right = sgnht._half_drift
    wrong = [
        tf.constant(x, tf.float32) for x in split(WIDE**(2. * exponent - 1.))]
    patch.setattr(sgnht, '_half_drift', lambda parts, momentum, way: right(
        parts, momentum, [w * x for w, x in zip(way, wrong)]))
    state, _ = oracle.compile_chains(lambda: sgmcmc.SGNHT(
        log_prob_of(WIDE), 0.4, 2., thermostat='part',
        preconditioner=preconditioners.Diagonal(split(WIDE**2))))(
            start(20_000, WIDE), 100)
  return np.concatenate(state, axis=-1) / WIDE


def test_a_metric_samples_scales_from_a_hundredth_to_a_hundred():
  """At a step of 0.4, of which the narrowest alone would bear 0.02."""
  draws = metric_chains(0.5)
  np.testing.assert_allclose(draws.var(axis=0), 1., rtol=0.06)
  np.testing.assert_allclose(np.cov(draws.T), np.eye(5), atol=0.06)


def test_a_drift_with_another_metric_than_the_kick_is_seen():
  draws = metric_chains(0.4)
  assert not np.allclose(draws.var(axis=0), 1., rtol=0.06)


@functools.cache
def quartic(thermostat, integrator):
  """The relative bias of E[theta^2] and its error, of exp(-theta^4 / 4)."""
  grid = np.linspace(-6., 6., 20_001)
  weights = np.exp(-grid**4 / 4.)
  exact = weights @ grid**2 / weights.sum()

  def log_prob(first, second):
    return -sum(tf.reduce_sum(x**4, axis=-1) for x in (first, second)) / 4.

  @functools.partial(tf.function, jit_compile=True, autograph=False)
  def compiled(h, num_burnin, num_steps):
    kernel = sgmcmc.SGNHT(
        log_prob, h, 0.5, thermostat=thermostat, integrator=integrator)
    state = start(8000, np.full(5, 0.8))

    def body(step, state, results, seed, total):
      seed = sgmcmc.random.fold_in(seed, 0)
      state, results = kernel.one_step(state, results, seed=seed)
      square = tf.reduce_mean(tf.square(tf.concat(state, axis=-1)), axis=-1)
      return step + 1, state, results, seed, total + tf.where(
          step < num_burnin, 0., square)

    *_, total = tf.while_loop(
        lambda step, *_: step < num_burnin + num_steps, body,
        (0, state, kernel.bootstrap_results(state), tf.constant([3, 4]),
         tf.zeros([8000])))
    return total / tf.cast(num_steps, tf.float32)

  def bias(h):
    mean = compiled(*map(tf.constant, (h, int(30. / h), int(120. / h)))).numpy()
    return (mean.mean(dtype=np.float64) / exact - 1.,
            mean.std() / exact / len(mean)**0.5)

  return bias


def falls_by_four(thermostat, integrator, h):
  """Whether half of the step has a quarter of the bias, or less.

  Up to five standard errors.
  """
  (bias, error), (half, half_error) = map(
      quartic(thermostat, integrator), (h, h / 2.))
  assert abs(bias) > 10. * error  # There is one.
  return abs(half) < abs(bias) / 4. + 5. * np.hypot(error / 4., half_error)


@pytest.mark.parametrize('thermostat', [
    'scalar', 'diagonal', pytest.param('part', marks=pytest.mark.slow)])
def test_the_bias_is_of_second_order(thermostat):
  assert falls_by_four(thermostat, 'badodab', 0.4)


@pytest.mark.slow
def test_that_of_euler_is_not():
  assert not falls_by_four('scalar', 'euler', 0.2)


# The energy error.


def energy_errors(h, a, num_steps=1, parts=2):
  """Of the last of some steps on a Gaussian, and the states about it."""
  kernel = sgmcmc.SGNHT(
      log_prob_of(SCALES), h, a, thermostat='part',
      preconditioner=preconditioners.Diagonal([0.5, 2.]))
  state = split(np.random.default_rng(2).normal(size=[200, 5]), np.float64)
  results = kernel.bootstrap_results(state)
  if not a:
    results = results._replace(
        thermostat=[tf.zeros([200], tf.float64)] * parts)
  for step in range(num_steps):
    before, previous = state, results
    state, results = kernel.one_step(
        state, previous, seed=tf.constant([0, step]))
  estimate = gradients.GradientEstimate(
      previous.target_log_prob, previous.grads_target_log_prob)
  return (kernel.energy_error(previous, results, estimate).numpy(),
          before, previous, state, results)


def test_the_energy_error_is_that_of_the_kicks_and_drifts():
  """Each by itself, in NumPy; the heat is what O and nothing else adds."""
  h, s = 0.3, np.repeat(np.sqrt([0.5, 2.]), [2, 3])
  ours, theta, previous, after, results = energy_errors(h, 1.5, 4)
  theta, after, p, last = (
      np.concatenate(x, axis=-1) for x in (
          theta, after, previous.momentum, results.momentum))
  energy = lambda theta, p: 0.5 * np.sum((theta / SCALES)**2 + p**2, axis=-1)
  gradient = lambda theta: -s * theta / SCALES**2
  kicked = p + h / 2. * gradient(theta)
  middle = theta + h / 2. * s * kicked
  relaxed = last - h / 2. * gradient(after)  # Before the last kick.
  np.testing.assert_allclose(middle + h / 2. * s * relaxed, after, rtol=1e-9)
  ups = (energy(middle, kicked) - energy(theta, p)
         + energy(after, last) - energy(middle, relaxed))
  np.testing.assert_allclose(ours, ups, rtol=1e-9, atol=1e-12)
  heat = energy(middle, relaxed) - energy(middle, kicked)
  assert np.abs(heat).max() > 10. * np.abs(ours).max()


@pytest.mark.parametrize('a, order', [(0., 3.), (1., 2.5)])
def test_the_order_of_the_energy_error(a, order):
  """h^3 without friction; with it, whose noise is of order sqrt(h), less."""
  sizes = [
      np.sqrt(np.mean(energy_errors(h, a)[0]**2)) for h in (2e-3, 1e-3)]
  # Of 200 chains; without noise these are the same with both steps.
  assert abs(np.log2(sizes[0] / sizes[1]) - order) < 0.1


def test_the_energy_error_knows_minibatches():
  """With the minibatch of the new gradient, at the old position as well."""
  model = oracle.GaussianModel()
  kernel = sgmcmc.SGNHT(
      model.posterior(), 0.05, 1.,
      gradient_estimator=gradients.Uniform(4, share_minibatch=True))
  state = tf.random.stateless_normal([50, 3], [0, 1])
  previous = kernel.bootstrap_results(state)
  seed = tf.constant([3, 4])
  _, results = kernel.one_step(state, previous, seed=seed)

  def error(seed):
    estimate, _ = kernel.gradient_estimator.one_step(
        model.posterior(), [state], previous.gradient_estimator_results, seed)
    found = kernel.energy_error(previous, results, estimate)
    assert found.shape == [50]
    return np.sqrt(np.mean(np.square(found)))

  same = error(kernel._seeds(seed).gradient)
  another = error(kernel._seeds(tf.constant([5, 6])).gradient)
  assert 5. * same < another


def test_the_energy_error_of_euler_is_refused():
  kernel = sgmcmc.SGNHT(log_prob_of(SCALES), 0.1, 1., integrator='euler')
  results = kernel.bootstrap_results(start(4))
  with pytest.raises(ValueError, match='of integrator="badodab"'):
    kernel.energy_error(results, results, gradients.GradientEstimate(
        results.target_log_prob, results.grads_target_log_prob))


# Its arguments.


def test_the_integrator_where_none_is_named():
  """BADODAB; Euler's where a step has to be Gaussian given its gradient."""
  posterior = oracle.GaussianModel().posterior()
  plain = sgmcmc.SGNHT(posterior, 0.1, 1.)
  weighted = plain.copy(gradient_estimator=gradients.ExponentiallyWeighted(3))
  assert (plain.integrator, weighted.integrator) == ('badodab', 'euler')
  with pytest.raises(ValueError, match='Take integrator="euler"'):
    weighted.copy(integrator='badodab')


@pytest.mark.parametrize('arguments, message', [
    (dict(noise_estimate=[1.]), 'list of 1, and the state has 2'),
    (dict(friction=[1.]), 'friction is a list of 1, and the state has 2'),
    (dict(friction=tf.ones([4, 3])), r'friction has shape \(4, 3\)'),
    (dict(noise_estimate=tf.ones([4, 3])), r'shape \(4, 3\) for part 0'),
    (dict(preconditioner=preconditioners.Diagonal([1., 2., 3.])),
     'list of 3, and the state has 2'),
    (dict(preconditioner=preconditioners.Diagonal(tf.ones([7, 4, 1]))),
     r'shape \(7, 4, 1\) for part 0'),
])
def test_what_does_not_fit_the_state_is_refused_at_its_start(
    arguments, message):
  kernel = sgmcmc.SGNHT(log_prob_of(SCALES), 0.1, 1., **arguments)
  with pytest.raises(ValueError, match=message):
    kernel.bootstrap_results(start(4))


@pytest.mark.slow
def test_numbers_may_be_tensors_that_change_from_step_to_step():
  """As a kernel that tunes another has them, in a compiled loop."""
  kernel = sgmcmc.SGNHT(
      log_prob_of(SCALES), 0.1, 1., thermostat='part', noise_estimate=0.,
      preconditioner=preconditioners.Diagonal(1.))

  @functools.partial(tf.function, jit_compile=True, autograph=False)
  def compiled(state):
    def body(step, state, results, metric, variance):
      number = 1. / (1. + tf.cast(step, tf.float32))
      tuned = kernel.copy(
          step_size=0.1 * number, diffusion=1. + number,
          noise_estimate=variance,
          preconditioner=preconditioners.Diagonal(metric))
      state, results = tuned.one_step(
          state, results, seed=tf.stack([step, 0]))
      metric = [m + 0.1 * tf.reduce_mean(tf.square(x), axis=0)
                for m, x in zip(metric, state)]
      return step + 1, state, results, metric, [
          v + 0.1 for v in variance]

    numbers = [tf.ones([2]), tf.ones([3])]
    return tf.while_loop(
        lambda step, *_: step < 5, body,
        (0, state, kernel.bootstrap_results(state), numbers,
         [tf.zeros([4, 1]), tf.zeros([3])]))[1]

  for part in compiled(start(4)):
    assert np.all(np.isfinite(part))


def test_a_large_state_steps_in_a_program_of_its_own(monkeypatch):
  compiled, calls = states.compiled, []
  monkeypatch.setattr(
      states, 'compiled',
      lambda fn, parts: calls.append(parts) or compiled(fn, parts))
  kernel = sgmcmc.SGNHT(
      lambda a, b: -0.5 * (tf.reduce_sum(a**2) + 3. * tf.reduce_sum(b**2)),
      0.1, 0.3, friction=0.2, noise_estimate=0.5,
      preconditioner=preconditioners.Diagonal([0.5, 2.]))
  state = [tf.random.stateless_normal(shape, [0, 1])
           for shape in ([100, 200], [7])]
  results = kernel.bootstrap_results(state, seed=[0, 2])
  one_step = tf.function(kernel.one_step, autograph=False)
  ours = one_step(state, results, seed=tf.constant([0, 3]))
  assert len(calls) == 1
  eager = kernel.one_step(state, results, seed=tf.constant([0, 3]))
  for a, b in zip(
      tf.nest.flatten(ours), tf.nest.flatten(eager), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
