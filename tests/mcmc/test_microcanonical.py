"""MicrocanonicalLangevin against its formulas, its law, and what noise does.

A step is not linear, so that its law at a finite step is not known exactly. The
step itself is held to another form of its formulas, in NumPy; its law, at small
steps, to the exact moments of normal laws, with chains that start in the law
and leave it if the step does not keep it; at larger steps the bias has to fall
with the square of the step. A law fails by chance once in a million.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import oracle
from tests.keras import test_law
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.mcmc import microcanonical

NUM_CHAINS = 10_000
INTEGRATORS = ('minimal_norm', 'leapfrog')
all_integrators = pytest.mark.parametrize('integrator', INTEGRATORS)


def numpy_kick(u, force, time):
  """The flow of du/dt = (I - u u') f / (d - 1), by cosh and sinh."""
  d, norm = len(u), np.linalg.norm(force)
  e = force / norm
  delta = time * norm / (d - 1)
  growth = np.cosh(delta) + u @ e * np.sinh(delta)
  new = u + e * (np.sinh(delta) + u @ e * (np.cosh(delta) - 1.))
  return new / growth, (d - 1) * np.log(growth)


def numpy_step(integrator, log_prob, gradient, theta, u, h, s=1., t=1.):
  """theta, u and the energy error, without the random turn."""
  b = 0.1931833275037836
  flow = {
      'minimal_norm': [b, 0.5, 1. - 2. * b, 0.5, b],
      'leapfrog': [0.5, 1., 0.5]}[integrator]
  start, kinetic = theta, 0.
  for k, share in enumerate(flow):
    if k % 2:
      theta = theta + share * h * s * u
    else:
      u, gained = numpy_kick(u, s * gradient(theta) / t, share * h)
      kinetic += gained
  return theta, u, kinetic - (log_prob(theta) - log_prob(start)) / t


@all_integrators
@pytest.mark.parametrize('t, decay', [(1., None), (0.5, 1.)])
def test_a_step_is_that_of_the_formulas(integrator, t, decay):
  """Of a density that is not normal, and with another diagonal; no noise."""
  def target(first, second):
    x = oracle.join([first, second])
    return -tf.reduce_sum(x**4 / 4. + x * tf.roll(x, 1, axis=-1), axis=-1)

  log_prob = lambda x: -np.sum(x**4 / 4. + x * np.roll(x, 1))
  gradient = lambda x: -(x**3 + np.roll(x, 1) + np.roll(x, -1))
  h, theta = 0.4, np.array([0.5, -1., 1.5, 0.2])
  preconditioner, s = None, 1.
  if decay is not None:  # Which then stays as the first gradient makes it.
    preconditioner = sgmcmc.preconditioners.RMSProp(decay=decay)
    s = (1e-5 + np.abs(gradient(theta)))**-0.5
  kernel = sgmcmc.MicrocanonicalLangevin(
      target, h, decoherence_length=1e30, integrator=integrator,
      preconditioner=preconditioner, temperature=t)
  parts = [tf.constant(theta[:3]), tf.constant(theta[3])]
  results = kernel.bootstrap_results(parts, seed=[1, 2])
  u = oracle.join(results.velocity).numpy()
  np.testing.assert_allclose(np.linalg.norm(u), 1.)
  for _ in range(3):
    parts, results = kernel.one_step(parts, results, seed=[1, 2])
    theta, u, error = numpy_step(
        integrator, log_prob, gradient, theta, u, h, s, t)
    np.testing.assert_allclose(oracle.join(parts), theta, rtol=1e-9)
    np.testing.assert_allclose(oracle.join(results.velocity), u, rtol=1e-9)
    np.testing.assert_allclose(results.energy_error, error, rtol=1e-7)
    assert abs(error) > 1e-5


def scales(d):
  return np.geomspace(0.7, 1.4, d)


# The numbers of the right kernel; the last three are errors.
NUMBERS = dict(
    step_size=1., length=5., temperature=1., noise=0., spread=0., too_many=0.,
    turn_of_last=1., kinetic=1.)
SPREAD = np.geomspace(0.3, 3., 20)


@functools.cache
def chains(integrator, d, is_noisy=False):
  """Chains from the law at T = 1, compiled once for all numbers."""
  scale = scales(d)
  kick, turned = microcanonical.kick, microcanonical.turned

  def target(first, second):
    return oracle.normal_log_prob(oracle.join([first, second]), 0., scale)

  with pytest.MonkeyPatch.context() as patch:
    def make_kernel(
        step_size, length, temperature, noise, spread, too_many, turn_of_last,
        kinetic):
      def wrong_kick(velocity, force, time, size, total):
        """With d for d - 1, or another strength."""
        size += tf.cast(too_many, size.dtype)
        return kick(
            velocity, force, tf.cast(kinetic, time.dtype) * time, size, total)

      def wrong_turn(velocity, share, size, noise, total):
        """With another noise in the last part."""
        noise = [noise[0], tf.cast(turn_of_last, noise[1].dtype) * noise[1]]
        return turned(velocity, share, size, noise, total)

      patch.setattr(microcanonical, 'kick', wrong_kick)
      patch.setattr(microcanonical, 'turned', wrong_turn)
      estimator = None
      if is_noisy:
        estimator = NoisyByCoordinate(tf.sqrt(noise * SPREAD**spread))
      return sgmcmc.MicrocanonicalLangevin(
          target, step_size, length, temperature=temperature,
          integrator=integrator, gradient_estimator=estimator)

    run_chains = oracle.compile_chains(make_kernel)
    start = (scale * np.random.default_rng(3).normal(
        size=[NUM_CHAINS, d])).astype(np.float32)
    state = [tf.constant(start[:, :-1]), tf.constant(start[:, -1])]
    run_chains(state, 0, **NUMBERS)
  return functools.partial(run_chains, state)


class NoisyByCoordinate(sgmcmc.gradients.GradientEstimator):
  """The exact gradient, and noise of another scale in each coordinate."""

  follows_seed = True

  def __init__(self, scale):
    self._scale = scale

  def check_target(self, target):
    pass

  def one_step(
      self, target, state_parts, previous_results, seed, gaussian_step=None):
    estimate, results = sgmcmc.gradients.Exact().one_step(
        target, state_parts, previous_results, seed)
    noise = sgmcmc.random.normal_like(state_parts, seed)
    scales = [self._scale]
    if len(state_parts) == 2:
      scales = self._scale[:-1], self._scale[-1]
    return estimate._replace(grads_target_log_prob=[
        g + tf.cast(scale, g.dtype) * xi
        for g, scale, xi in zip(
            estimate.grads_target_log_prob, scales, noise)]), results


def draws(integrator, d, num_steps=100, **changes):
  """Standardised, `[chains, d]`."""
  state, _ = chains(integrator, d, 'noise' in changes)(
      num_steps, **{**NUMBERS, **changes})
  return oracle.join_parts(state, NUM_CHAINS) / scales(d)


def p_value(found, variance=1.):
  d = found.shape[1]
  return oracle.law_p_value(found, np.zeros(d), variance * np.eye(d))


@pytest.mark.parametrize('integrator, d, h, temperature', [
    ('minimal_norm', 20, 1., 1.),
    pytest.param('leapfrog', 20, 0.7, 1., marks=pytest.mark.slow),
    *(pytest.param(*row, marks=[pytest.mark.slow, pytest.mark.weekly])
      for row in [
          ('minimal_norm', 20, 1., 0.5), ('minimal_norm', 100, 2., 1.),
          ('leapfrog', 100, 1.5, 1.)]),
])
def test_law_at_small_steps(integrator, d, h, temperature):
  """The means and all covariances, of T times the normal law's."""
  found = draws(
      integrator, d, step_size=h, length=np.sqrt(d), temperature=temperature)
  assert p_value(found, temperature) > oracle.FALSE_ALARM_RATE
  # Eight percent of variance is seen.
  assert p_value(found, 1.08 * temperature) < 1e-9


@pytest.mark.parametrize('error', [
    dict(too_many=1.), dict(turn_of_last=4.), dict(kinetic=1.05)], ids=str)
def test_planted_errors_are_seen(error):
  assert p_value(draws('minimal_norm', 20, **error)) < oracle.FALSE_ALARM_RATE


def mean_bias(integrator, share):
  """Of the variances, by six runs: known to 0.0013."""
  runs = [
      np.mean(np.square(draws(
          integrator, 20, 80, step_size=share * np.sqrt(20.),
          length=np.sqrt(20.), seed=(seed, 0)))) for seed in range(6)]
  return np.mean(runs) - 1.


@pytest.mark.weekly
@pytest.mark.slow
def test_bias_is_of_second_order():
  """Of twice the step it is four times as large; of first order, twice.

  By the splitting of minimal norm it is a fifth of that.
  """
  small, large = (mean_bias('leapfrog', share) for share in (0.5, 1.))
  assert 2.8 < large / small < 5.7
  assert abs(mean_bias('minimal_norm', 1.)) < large / 4.


@all_integrators
@pytest.mark.parametrize('estimator', [
    sgmcmc.gradients.Exact(), sgmcmc.gradients.Uniform(4)], ids=str)
def test_energy_error_is_that_of_one_minibatch(integrator, estimator):
  """It falls with the third power of h; between two minibatches with the first.

  Its mean square falls by 64 as h halves, and else by 4.
  """
  model = oracle.GaussianModel(dtype=np.float64)
  kernel = functools.partial(
      sgmcmc.MicrocanonicalLangevin, model.posterior(), integrator=integrator,
      gradient_estimator=estimator)
  state = model.mean + np.random.default_rng(0).multivariate_normal(
      np.zeros(3), np.linalg.inv(model.precision), size=2000)
  errors, count = [], []
  for h in (0.2, 0.1):
    _, results = kernel(h).one_step(
        tf.constant(state), kernel(h).bootstrap_results(state), seed=[1, 2])
    errors.append(np.mean(np.square(results.energy_error)))
    count.append(int(results.gradient_estimator_results.num_gradients[0]))
  assert 40. < errors[0] / errors[1] < 100.
  # That of the start, and of the step; the exact one is kept.
  gradients = 3 if integrator == 'minimal_norm' else 2
  assert count == [
      12 * gradients if estimator.is_exact else 4 + 4 * gradients] * 2


def test_the_velocity_forgets_its_direction_after_a_length():
  """E[u . u_0] = exp(-path / L) where the density is nearly flat."""
  kernel = sgmcmc.MicrocanonicalLangevin(
      lambda x: -1e-12 * tf.reduce_sum(x**2, axis=-1), 0.5, 10.)
  state = tf.zeros([200, 1000])
  results = kernel.bootstrap_results(state)
  first = results.velocity[0]
  # The directions at the start are of all chains, and of no axis.
  assert np.abs(np.mean(first, axis=0)).max() < 6. / np.sqrt(200_000.)
  for k in range(20):
    state, results = kernel.one_step(state, results, seed=[k, 1])
  cosine = np.sum(first * results.velocity[0], axis=1)
  # Of mean exp(-1), and of standard deviation 1 / sqrt(1000) at most.
  assert abs(np.mean(cosine) - np.exp(-1.)) < 5. / np.sqrt(200_000.)


def noisy_variances(**changes):
  found = draws('minimal_norm', 20, 120, **changes)
  return np.mean(np.square(found), axis=0)


@pytest.mark.slow
@pytest.mark.parametrize('h, length', [
    pytest.param(1., 4.5, marks=pytest.mark.weekly), (0.5, 10.)])
def test_noise_that_is_the_same_in_all_directions(h, length):
  """The share h^2 C / (6 d) of the docstring, whatever L is."""
  share = 6. / 120.
  variances = noisy_variances(step_size=h, length=length, noise=6. / h**2)
  assert abs(np.mean(variances) - 1. - share) < 0.3 * share
  assert np.ptp(variances) < 12. * np.sqrt(2. / NUM_CHAINS)


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('h, length', [(1., 4.5), (0.5, 5.)])
def test_noise_that_differs_between_directions(h, length):
  """The formula of the docstring: a bias of the first order of h."""
  rho = h * length * 4. * SPREAD * 20. / (2. * 19.**2)
  wanted = (1. + rho) / np.mean(1. + rho)
  variances = noisy_variances(step_size=h, length=length, noise=4., spread=1.)
  assert np.ptp(wanted) > 0.4
  np.testing.assert_allclose(
      variances, wanted, rtol=0.07 + 5. * np.sqrt(2. / NUM_CHAINS))


def variances_with(preconditioner, num_steps):
  """Of noise that differs between directions; chains start in the law."""
  state = np.random.default_rng(0).normal(size=[NUM_CHAINS, 20])
  state, _ = oracle.run_chains(
      sgmcmc.MicrocanonicalLangevin(
          lambda x: -tf.reduce_sum(x**2, axis=-1) / 2., 1., 4.5,
          gradient_estimator=NoisyByCoordinate(np.sqrt(4. * SPREAD)),
          preconditioner=preconditioner),
      tf.constant(state, tf.float32), num_steps)
  return np.mean(np.square(state), axis=0)


@pytest.mark.weekly
@pytest.mark.slow
def test_a_preconditioner_makes_noise_the_same():
  """Of the same noise the bias is of second order, 1 / 120.

  The variance of gradients is that of the noise, 4 times SPREAD, and that of
  the law, 1: after it s^-2 times the noise is still .55 to .92 of its largest,
  and by the formula of the docstring variances are .92 to 1.10 of the exact.
  """
  error = 5. * np.sqrt(2. / NUM_CHAINS)
  exact = variances_with(
      sgmcmc.preconditioners.Diagonal(1. / (4. * SPREAD)), 200)
  assert np.all(np.abs(exact - 1.) < 2. / 120. + error)
  learned = variances_with(sgmcmc.preconditioners.GradientVariance(), 400)
  assert np.all(np.abs(learned - 1.) < 0.1 + error)
  assert np.ptp(variances_with(None, 200)) > 0.5


def make(**arguments):
  return sgmcmc.MicrocanonicalLangevin(**{
      **dict(target_log_prob_fn=lambda x: -tf.reduce_sum(x**2, axis=-1),
             step_size=0.1), **arguments})


@pytest.mark.parametrize('arguments, message', [
    (dict(step_size=[0.1, 0.2]), 'real number'),
    (dict(step_size=np.ones(3)), r'step_size has shape \(3,\): one number'),
    (dict(step_size=lambda step: tf.ones([2])), 'step_size has shape'),
    (dict(decoherence_length=0.), 'decoherence_length is 0'),
    (dict(decoherence_length=np.ones(3)), 'decoherence_length has shape'),
    (dict(temperature=0.), 'temperature is 0'),
    (dict(integrator='baoab'), "'minimal_norm', 'leapfrog'"),
    (dict(preconditioner=0.5), 'preconditioners.RMSProp'),
])
def test_refused_at_construction(arguments, message):
  with pytest.raises((ValueError, TypeError), match=message):
    make(**arguments)


def test_estimators_that_do_not_repeat_a_minibatch_are_refused():
  posterior = oracle.GaussianModel().posterior()
  stream = sgmcmc.gradients.Stream(
      tf.data.Dataset.from_tensor_slices(posterior.data).batch(4))
  with pytest.raises(ValueError, match='does not declare follows_seed'):
    make(target_log_prob_fn=posterior, gradient_estimator=stream)
  with pytest.raises(ValueError, match='no such step'):
    make(target_log_prob_fn=posterior,
         gradient_estimator=sgmcmc.gradients.ExponentiallyWeighted(4))


def test_one_dimension_is_refused():
  with pytest.raises(ValueError, match='one coordinate'):
    make().bootstrap_results(tf.zeros([7, 1]))
  with pytest.raises(ValueError, match='one coordinate'):
    make(target_log_prob_fn=lambda x: -x**2).bootstrap_results(tf.zeros([7]))
  make().bootstrap_results(tf.zeros([7, 2]))


@all_integrators
def test_a_start_at_the_mode_and_one_far_away(integrator):
  """Where the gradient is zero, and where it turns the velocity at once."""
  kernel = make(integrator=integrator)
  for start in (0., 1e15):
    state = tf.fill([3, 4], start)
    state, results = kernel.one_step(
        state, kernel.bootstrap_results(state), seed=[1, 2])
    assert np.all(np.isfinite(state))
    np.testing.assert_allclose(
        np.linalg.norm(results.velocity[0], axis=1), 1., rtol=1e-5)


def test_a_velocity_against_a_strong_force():
  """In float32 nothing would be left of it, but for the limit of the cosine."""
  total = lambda parts: tf.reduce_sum(parts[0], axis=-1)
  velocity, energy = microcanonical.kick(
      [tf.constant([[1., 0.]])], [tf.constant([[-1e3, 0.]])], tf.constant(1.),
      tf.constant(2.), total)
  np.testing.assert_allclose(np.abs(velocity[0]), [[1., 0.]])
  assert np.all(np.isfinite(energy))


def test_a_learning_rate_is_refused_in_fit():
  with pytest.raises(ValueError, match='give it as step_size'):
    sgmcmc.keras.PosteriorSampling(
        sgmcmc.MicrocanonicalLangevin, num_examples=12, learning_rate=0.1)


@pytest.mark.slow
def test_law_in_fit():
  """Of a linear layer with 400 columns, one chain of 1,200 coordinates.

  60 draws of each of 400 columns: of some 10,000 effective ones the standard
  error of a variance is 1.4%.
  """
  x, y, mean, covariance = test_law.regression()
  sd = np.sqrt(np.diag(covariance))
  model = keras.Sequential([keras.Input([2]), keras.layers.Dense(400)])
  model.compile(
      'sgd', sgmcmc.keras.GaussianLikelihood(scale=test_law.NOISE),
      steps_per_execution=20)
  sampling = sgmcmc.keras.PosteriorSampling(
      functools.partial(
          sgmcmc.MicrocanonicalLangevin, step_size=1., decoherence_length=3.),
      num_examples=100, num_burnin_steps=300, num_steps_between_results=9,
      prior=test_law.tfd.Normal(0., test_law.PRIOR_SCALE), seed=0)
  data = tf.data.Dataset.from_tensor_slices((x, np.repeat(y, 400, axis=1)))
  model.fit(data.batch(100).repeat(), steps_per_epoch=900, verbose=0,
            callbacks=[sampling])
  found = test_law.coefficients(sampling.posterior).reshape([-1, 3])
  assert np.all(np.abs((found.mean(axis=0) - mean) / sd) < 0.05)
  assert np.all(np.abs(found.std(axis=0) / sd - 1.) < 0.035)


@pytest.mark.weekly
@pytest.mark.slow
def test_the_share_of_noise_in_the_summary():
  """rho of the docstring, by the variance that the estimator says."""
  posterior = oracle.GaussianModel().posterior()
  estimator = sgmcmc.gradients.Uniform(4)
  kernel = sgmcmc.MicrocanonicalLangevin(
      posterior, 0.05, 0.2, gradient_estimator=estimator, temperature=0.5)
  draws = sgmcmc.sample(
      kernel, 60, tf.zeros([4, 3]), num_burnin_steps=50, seed=1,
      progress_bar=False)
  found, = (row.value for row in sgmcmc.diagnostics.summary(draws, kernel).rows
            if row.quantity.startswith('noise of the gradient'))
  variance, = estimator.variance(posterior, [tf.zeros([3])])
  rho = 0.05 * 0.2 * np.mean(variance) * 3. / (2. * 2.**2 * 0.5**2)
  assert abs(found / rho - 1.) < 0.35
