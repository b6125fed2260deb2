"""The splitting schemes against their exact laws; sticky ones by enumeration.

In one dimension a zig-zag chain is a Markov chain on a lattice, with all
minibatches enumerated in the probability to turn: its law after n steps is
exact. Sticky laws are those of the models of a linear regression, one for each
set of coefficients that are not zero. A test fails by chance once in a million.
"""

import functools
import itertools

import keras
import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf

from tests import marks
from tests import oracle
from tests.keras import test_law
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.pdmp import splitting

pdmp = sgmcmc.pdmp
NUM_CHAINS = 40_000
NUM_STEPS = 30
START = 0.3
# y_i ~ N(mu + mu^3, 1), mu ~ N(0, 1).
DATA = np.array([0.2, -0.5, 1.1, 0.4, -0.9, 6.])


def potential(mu):
  """U of all data, `[k]`."""
  mu = np.asarray(mu)
  return mu**2 / 2. + np.square(
      DATA - (mu + mu**3)[..., np.newaxis]).sum(axis=-1) / 2.


def gradients_of_minibatches(mu, batch_size):
  """Of U, for each minibatch: `[batches, k]`."""
  scale = len(DATA) / batch_size
  return np.array([
      mu - scale * sum(y - mu - mu**3 for y in batch) * (1. + 3. * mu**2)
      for batch in itertools.combinations(DATA, batch_size)])


def probability_to_turn(mu, v, h, temperature, batch_size):
  """Bertazzi et al. (2025), zig-zag, at the middle of a step."""
  rates = np.maximum(v * gradients_of_minibatches(mu, batch_size), 0.)
  return np.mean(1. - np.exp(-h * rates / temperature), axis=0)


def lattice_law(h, temperature, batch_size):
  """The places START + h k after the steps, and their probabilities."""
  k = np.arange(-NUM_STEPS, NUM_STEPS + 1)
  turn = {v: probability_to_turn(
      START + h * (k + v / 2.), v, h, temperature, batch_size)
          for v in (-1, 1)}
  law = {v: 0.5 * (k == 0) for v in (-1, 1)}
  for _ in range(NUM_STEPS):
    law = {v: np.roll(law[v] * (1. - turn[v]), v) + law[-v] * turn[-v]
           for v in (-1, 1)}
  return k, law[-1] + law[1]


def posterior():
  return sgmcmc.Posterior(
      lambda mu: -tf.square(mu) / 2.,
      lambda mu, y: -tf.square(y - (mu + mu**3)[..., tf.newaxis]) / 2., DATA)


@functools.cache
def chains(batch_size):
  """Chains from one state; the last two numbers are errors."""
  flipped = splitting.flipped
  with pytest.MonkeyPatch.context() as patch:
    def make_kernel(h, temperature, gain, at_start):
      def with_errors(velocity, force, time, uniform):
        return flipped(
            velocity, tf.cast(gain, force.dtype) * force, time, uniform)

      patch.setattr(splitting, 'flipped', with_errors)
      kernel = pdmp.SplitZigZag(
          posterior(), h, temperature=temperature,
          gradient_estimator=sgmcmc.gradients.Uniform(batch_size))
      estimate = kernel._estimate

      def elsewhere(parts, previous, seeds):
        back = 0.5 * h * tf.cast(at_start, tf.float64)
        return estimate(
            [x - back * v for x, v in zip(parts, previous.velocity)], previous,
            seeds)

      kernel._estimate = elsewhere
      return kernel

    run = oracle.compile_chains(make_kernel, jit_compile=False)
    # The first velocities come of a seed: chains need different ones.
    state = tf.fill([NUM_CHAINS], tf.constant(START, tf.float64))
    run(state, 0, h=0.1, temperature=1., gain=1., at_start=0.)
  return functools.partial(run, state)


def lattice_p_value(batch_size, h, temperature, gain=1., at_start=0.):
  """Of a chi-square test; places with few chains are put together."""
  k, law = lattice_law(h, temperature, batch_size)
  state, _ = chains(batch_size)(
      NUM_STEPS, h=h, temperature=temperature, gain=gain, at_start=at_start)
  places = np.clip(
      np.rint((state.numpy() - START) / h), -NUM_STEPS, NUM_STEPS).astype(int)
  np.testing.assert_allclose(START + h * places, state, atol=1e-6)
  return chi_square(
      np.bincount(places + NUM_STEPS, minlength=len(k)), law)


def chi_square(counts, law):
  expected, observed = [0.], [0.]
  for e, o in zip(np.sum(counts) * law, counts):
    expected[-1] += e
    observed[-1] += o
    if expected[-1] > 20.:
      expected.append(0.)
      observed.append(0.)
  expected = [*expected[:-2], expected[-2] + expected[-1]]
  observed = [*observed[:-2], observed[-2] + observed[-1]]
  return scipy.stats.chisquare(observed, expected).pvalue


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('batch_size, h, temperature', [
    (6, 0.1, 1.), (2, 0.05, 1.), (1, 0.02, 0.5)])
def test_law_on_the_lattice(batch_size, h, temperature):
  """With one of six examples a single outlier makes half of the force."""
  assert lattice_p_value(batch_size, h, temperature) > oracle.FALSE_ALARM_RATE


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('error', [
    dict(gain=1.1), dict(gain=0.5),
    dict(at_start=1.),  # The gradient at the start of the step: D D B.
], ids=str)
def test_planted_errors_on_the_lattice_are_seen(error):
  assert lattice_p_value(2, 0.05, 1., **error) < oracle.FALSE_ALARM_RATE


def variance_of_the_lattice(h, gradients):
  """Of the stationary law of steps h; `gradients` of U by a point."""
  k = np.arange(-int(6. / h), int(6. / h) + 1)
  middle = h * (k[:-1] + 0.5)
  force = gradients(middle)
  up, down = (  # log E[exp(-h [v g]_+)], less a constant.
      scipy.special.logsumexp(-h * np.maximum(v * force, 0.), axis=0)
      for v in (1., -1.))
  # As many go from k to k + 1 as come back, and half of each go either way.
  law = np.concatenate([[0.], np.cumsum(up - down)])
  law = scipy.special.softmax(law)
  x = h * k
  return law @ x**2 - (law @ x)**2


def test_the_bias_is_of_second_order_without_noise():
  """Of the law above, on an anharmonic density."""
  x = np.linspace(-5., 5., 20_001)
  weight = np.exp(-potential(x) + potential(x).min())
  weight /= weight.sum()
  exact = weight @ x**2 - (weight @ x)**2
  bias = [variance_of_the_lattice(
      h, functools.partial(gradients_of_minibatches, batch_size=6)) - exact
          for h in (0.04, 0.02, 0.01)]
  np.testing.assert_allclose(np.divide(bias[:2], bias[1:]), 4., rtol=0.1)


@pytest.mark.parametrize('scale', [10., 30.])
def test_the_bias_of_noise_is_the_docstrings(scale):
  """On N(0, 1); none without noise."""
  nodes = scipy.stats.norm.ppf((np.arange(2000) + 0.5) / 2000.)
  for share in (0.1, 0.4):
    h = share / scale
    variance = variance_of_the_lattice(
        h, lambda x: x + scale * nodes[:, np.newaxis])
    np.testing.assert_allclose(
        variance - 1., share / np.sqrt(2. * np.pi), rtol=0.1)
  assert abs(variance_of_the_lattice(
      0.5, lambda x: x[np.newaxis]) - 1.) < 1e-7


def banana(z):
  """U on the plane."""
  x, y = z[..., 0], z[..., 1]
  return x**4 / 4. + tf.square(y - tf.square(x) / 2.) / 2.


KERNELS = {'zig-zag': pdmp.SplitZigZag, 'bouncy': pdmp.SplitBouncyParticle}


@pytest.mark.weekly_after(1)
@pytest.mark.slow
@pytest.mark.parametrize('error', ['', 'middle'])
@pytest.mark.parametrize('name', ['zig-zag', 'bouncy'])
def test_halving_the_step_quarters_the_bias(name, error, monkeypatch):
  """Of E[x^2], by quadrature; with the gradient at the start it is halved."""
  grid = np.linspace(-6., 6., 1201)
  points = np.stack(np.meshgrid(grid, grid, indexing='ij'), axis=-1)
  weights = np.exp(-banana(tf.constant(points))).ravel()
  weights /= weights.sum()
  num = 400_000
  start = points.reshape([-1, 2])[
      np.random.default_rng(0).choice(len(weights), num, p=weights)]
  exact = weights @ points[..., 0].ravel()**2
  if error:
    estimate = KERNELS[name]._estimate
    monkeypatch.setattr(KERNELS[name], '_estimate', (
        lambda self, parts, previous, seeds: estimate(
            self, [parts[0] - 0.5 * self.parameters['step_size'] * (
                previous.velocity[0])], previous, seeds)))
  numbers = dict(refresh_rate=0.) if name == 'bouncy' else {}
  bias = []
  for h in (0.6, 0.3):
    state, _ = oracle.run_chains(
        KERNELS[name](lambda z: -banana(z), h, **numbers),
        tf.constant(start, tf.float32), int(6. / h))
    squares = np.square(state[:, 0].numpy().astype(np.float64))
    bias.append(squares.mean() - exact)
  standard_error = np.hypot(1., 4.) * squares.std() / np.sqrt(num)
  is_fourth = abs(bias[0] - 4. * bias[1]) < (
      0.3 * abs(bias[0]) + 5. * standard_error)
  assert bias[0] > 20. * standard_error / 4. and is_fourth != bool(error)


def reference(num, num_steps, h, refresh_rate, temperature, batch_size, seed):
  """R D B D R of the paper, in NumPy; the model is `LinearRegression`."""
  model, rng = oracle.LinearRegression(), np.random.default_rng(seed)
  x, v = np.zeros([num, 2]), rng.normal(size=[num, 2])

  def refreshed(v):
    new = rng.uniform(size=[num, 1]) < 1. - np.exp(-refresh_rate * h / 2.)
    return np.where(new, rng.normal(size=[num, 2]), v)

  batches = np.array(model.batches(batch_size))
  for _ in range(num_steps):
    v = refreshed(v)
    x = x + h / 2. * v
    rows = batches[rng.integers(len(batches), size=num)]
    residuals = model.y[rows] - np.einsum('kbd,kd->kb', model.x[rows], x)
    g = (x * model.prior_precision - model.num_examples / batch_size
         * np.einsum('kb,kbd->kd', residuals, model.x[rows])) / temperature
    along = np.sum(v * g, axis=1, keepdims=True)
    turns = rng.uniform(size=[num, 1]) < 1. - np.exp(-h * np.maximum(along, 0.))
    v = np.where(
        turns, v - 2. * along * g / np.sum(g * g, axis=1, keepdims=True), v)
    x = x + h / 2. * v
    v = refreshed(v)
  return x


def bouncy_p_value(temperature=1., refresh_rate=2., **errors):
  """Of two samples, by Hotelling's statistic of moments up to the fourth."""
  numbers = dict(h=0.15, refresh_rate=2., temperature=1., **errors)
  kernel = pdmp.SplitBouncyParticle(
      oracle.LinearRegression().posterior(), 0.15, refresh_rate=refresh_rate,
      temperature=temperature, gradient_estimator=sgmcmc.gradients.Uniform(2))
  state, _ = oracle.run_chains(
      kernel, tf.zeros([NUM_CHAINS, 2]), 20, jit_compile=False)
  wanted = reference(NUM_CHAINS, 20, batch_size=2, seed=0, **numbers)
  one, other = (np.stack(
      [x**k * y**j for k in range(5) for j in range(5 - k) if k + j], axis=1)
                for x, y in (state.numpy().astype(np.float64).T, wanted.T))
  difference = one.mean(axis=0) - other.mean(axis=0)
  spread = np.cov(one, rowvar=False) + np.cov(other, rowvar=False)
  return scipy.stats.chi2.sf(
      NUM_CHAINS * difference @ np.linalg.solve(spread, difference),
      len(difference))


@pytest.mark.weekly
@pytest.mark.slow
def test_law_of_the_bouncy_particle_with_minibatches():
  assert bouncy_p_value() > oracle.FALSE_ALARM_RATE
  for error in (dict(temperature=1.2), dict(refresh_rate=4.)):
    assert bouncy_p_value(**error) < oracle.FALSE_ALARM_RATE


class SpikeAndSlab:
  """y_i ~ N(x_i . b, 1); b_j is 0, or N(0, s^2) with probability w_j.

  Its law by enumeration of the models, the sets of coefficients that are not 0.
  """

  def __init__(self, weight=(0.9, 0.9, 0.9), scale=0.4):
    rng = np.random.default_rng(3)
    self.weight, self.scale = np.array(weight), scale
    x = rng.normal(size=[12, 3])
    x[:, 1] += 0.7 * x[:, 0]
    self.x, self.y = x, x @ [0.5, 0., -0.3] + rng.normal(size=12)
    self.models = np.array(list(itertools.product([0, 1], repeat=3)))
    weights, means, seconds = [], [], []
    for model in self.models:
      design = x[:, model == 1]
      weights.append(
          np.prod(np.where(model, self.weight, 1. - self.weight))
          * scipy.stats.multivariate_normal.pdf(
              self.y, np.zeros(12), np.eye(12) + scale**2 * design @ design.T))
      covariance, mean = np.zeros([3, 3]), np.zeros(3)
      inside = np.linalg.inv(
          design.T @ design + np.eye(model.sum()) / scale**2)
      covariance[np.ix_(model == 1, model == 1)] = inside
      mean[model == 1] = inside @ design.T @ self.y
      means.append(mean)
      seconds.append(covariance + np.outer(mean, mean))
    self.weights = np.array(weights) / np.sum(weights)
    self.means, self.seconds = np.array(means), np.array(seconds)
    self.mode = self.means[-1]

  @property
  def rate(self):
    """kappa, by its definition."""
    with np.errstate(divide='ignore'):
      return self.weight / (1. - self.weight) / (
          self.scale * np.sqrt(2. * np.pi))

  def posterior(self):
    return sgmcmc.Posterior(
        lambda *b: oracle.normal_log_prob(oracle.join(b), 0., self.scale),
        lambda *b_and_batch: -0.5 * tf.square(b_and_batch[-1][1] - tf.einsum(
            '...nd,...d->...n', b_and_batch[-1][0],
            oracle.join(b_and_batch[:-1]))),
        (self.x, self.y))

  def p_value(self, draws):
    """Of independent draws: of which model they are, b, and its products."""
    rows, columns = np.triu_indices(3)
    possible = self.weights > 0.
    is_model = np.all((draws != 0.)[:, np.newaxis] == self.models, axis=-1)
    if np.any(is_model[:, ~possible]):
      return 0.
    features = np.concatenate([
        is_model[:, possible][:, 1:], draws,
        draws[:, rows] * draws[:, columns]], axis=1) - np.concatenate([
            self.weights[possible][1:], self.weights @ self.means,
            np.einsum('m,mij->ij', self.weights, self.seconds)[rows, columns]])
    average = features.mean(axis=0)
    return scipy.stats.chi2.sf(
        len(draws) * average @ np.linalg.solve(
            np.cov(features, rowvar=False), average), len(average))


def sticky_p_value(
    kernel_class, model, h, sticky=None, num_parts=1, num_chains=20_000,
    time=25., **arguments):
  """Of chains that start where all coefficients are 0."""
  kernel = kernel_class(
      model.posterior(), h, sticky=model.rate if sticky is None else sticky,
      **arguments)
  state = tf.zeros([num_chains, 3], tf.float64)
  if num_parts > 1:
    state = [state[:, :2], state[:, 2]]
  state, _ = oracle.run_chains(kernel, state, int(time / h))
  return model.p_value(oracle.join_parts(state, num_chains))


@pytest.mark.weekly_after(1)
@pytest.mark.slow
@pytest.mark.parametrize('name', ['zig-zag', 'bouncy'])
def test_sticky_law_by_enumeration(name):
  assert sticky_p_value(
      KERNELS[name], SpikeAndSlab(), 0.08) > oracle.FALSE_ALARM_RATE


@pytest.mark.slow
@pytest.mark.parametrize('infinite', [
    True, pytest.param(False, marks=pytest.mark.weekly)])
def test_sticky_law_where_a_coefficient_does_not_stick(infinite):
  """By an infinite rate, or as a part without one."""
  model = SpikeAndSlab(weight=(0.9, 0.6, 1.))
  sticky = model.rate if infinite else [tf.constant(model.rate[:2]), None]
  assert sticky_p_value(
      pdmp.SplitZigZag, model, 0.08, sticky, num_parts=1 if infinite else 2,
  ) > oracle.FALSE_ALARM_RATE


@pytest.mark.slow
@pytest.mark.parametrize('name', [
    'zig-zag', pytest.param('bouncy', marks=pytest.mark.weekly)])
def test_sticky_law_with_minibatches(name):
  model = SpikeAndSlab()
  assert sticky_p_value(
      KERNELS[name], model, 0.01, num_chains=4000, time=15.,
      gradient_estimator=sgmcmc.gradients.ControlVariate(6, model.mode),
  ) > oracle.FALSE_ALARM_RATE


def release_at_the_end(part, velocity, time, rate, uniform):
  """Without release within the drift in which a coordinate arrives."""
  arrives = (part * velocity < 0.) & (-part / velocity < time)
  is_released = (part == 0.) & (
      -tf.math.log1p(-uniform) < rate * tf.abs(velocity) * time)
  stays = arrives | ((part == 0.) & ~is_released)
  return tf.where(stays, tf.zeros_like(part), part + velocity * time)


PLANTED = {
    'the rate': dict(factor=1.5),
    'release': dict(sticky_drift=release_at_the_end),
    'turns of those at 0': dict(moving_force=lambda parts, g, t, rates: [
        -x / y for x, y in zip(g, t)]),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    'error', marks.and_weekly(PLANTED, PLANTED.keys() - {'release'}))
def test_planted_errors_of_sticky_coordinates_are_seen(error, monkeypatch):
  model, (what, value), = SpikeAndSlab(), *PLANTED[error].items()
  factor = value if what == 'factor' else 1.
  if what != 'factor':
    monkeypatch.setattr(splitting, what, value)
  assert sticky_p_value(
      pdmp.SplitZigZag, model, 0.08, factor * model.rate,
  ) < oracle.FALSE_ALARM_RATE


def test_a_sticky_drift_in_closed_form():
  """One coordinate of each kind, with a wait of 0.5."""
  part = tf.constant([1., -1., 1., 1., 1., 0., 0., 2.])
  velocity = tf.constant([1., 2., -2., -4., -1., 1., -1., -2.])
  rate = tf.constant([1., 0.5, .5, 0.25, 1., 1., 4., 1.])
  uniform = tf.fill([8], tf.constant(1. - np.exp(-0.5), tf.float32))
  moved = splitting.sticky_drift(part, velocity, 0.75, rate, uniform)
  np.testing.assert_allclose(
      moved, [1.75, 0., 0., 0., 0.25, 0.25, -0.625, 0.5], atol=1e-6)
  moved = splitting.sticky_drift(part, velocity, 2., rate, uniform)
  np.testing.assert_allclose(
      moved, [3., 2., -2., -5., -0.5, 1.5, -1.875, -1.5], atol=1e-6)


@pytest.mark.parametrize('name', KERNELS)
def test_a_gradient_that_is_no_number_makes_the_state_none(name):
  """In the chains whose middle of the step is below 0."""
  kernel = KERNELS[name](lambda x: tf.sqrt(x), 10.)
  state = tf.fill([20], 0.1)
  moved, results = kernel.one_step(
      state, kernel.bootstrap_results(state, seed=[1, 2]), seed=[1, 2])
  failed = np.isnan(moved)
  assert np.any(failed) and not np.all(failed)
  np.testing.assert_array_equal(
      failed, np.isnan(results.grads_target_log_prob[0]))
  assert results.failure(moved).error is sgmcmc.NonFiniteError


@pytest.mark.parametrize('arguments, message', [
    (dict(step_size=0.), 'step_size is 0'),
    (dict(temperature=0.), 'temperature is 0'),
    (dict(sticky=0.), 'sticky is 0'),
    (dict(sticky=[np.array([1., -1.])]), 'sticky is .*greater than 0'),
    (dict(sticky=np.nan), 'sticky is nan'),
])
def test_refused_at_construction(arguments, message):
  for kernel_class in KERNELS.values():
    with pytest.raises(ValueError, match=message):
      kernel_class(
          lambda x: -tf.reduce_sum(x**2, axis=-1),
          **{'step_size': 0.1, **arguments})


@pytest.mark.parametrize('sticky, message', [
    ([1., 2., 3.], '3 entries, and the state 1'),
    (tf.ones([2]), 'has to broadcast'),
    (tf.ones([5, 3]), 'has to broadcast'),
])
def test_refused_at_the_start(sticky, message):
  kernel = pdmp.SplitZigZag(
      lambda x: -tf.reduce_sum(x**2, axis=-1), 0.1, sticky=sticky)
  with pytest.raises(ValueError, match=message):
    kernel.bootstrap_results(tf.zeros([3]))


def test_step_sizes_of_the_bouncy_particle_are_scalars():
  with pytest.raises(ValueError, match='one number is needed'):
    pdmp.SplitBouncyParticle(lambda x: -x**2, tf.ones([3]))


@pytest.mark.parametrize('name', KERNELS)
def test_a_learning_rate_is_refused_in_fit(name):
  with pytest.raises(ValueError, match='give it as step_size'):
    sgmcmc.keras.PosteriorSampling(
        KERNELS[name], num_examples=12, learning_rate=0.1)


@pytest.mark.slow
@pytest.mark.parametrize('sticky', [
    None, pytest.param(10., marks=pytest.mark.weekly)])
def test_law_in_fit(sticky):
  """Of a linear layer with 400 columns, each a zig-zag of three coordinates.

  60 draws of each column: of some 10,000 effective ones the standard error of a
  variance is 1.4%, and of a probability at most 0.5%.
  """
  x, y, _, _ = test_law.regression()
  design = np.concatenate([x, np.ones([100, 1])], axis=1)
  models = np.array(list(itertools.product([0, 1], repeat=3)))
  if sticky is None:
    models = models[-1:]
  weights, means = [], []
  seconds = np.zeros([len(models), 3, 3])
  for k, model in enumerate(models):
    chosen = np.flatnonzero(model)
    precision = (design[:, chosen].T @ design[:, chosen]
                 + np.eye(len(chosen)) / test_law.PRIOR_SCALE**2)
    force = design[:, chosen].T @ y[:, 0]
    mean = np.zeros(3)
    mean[chosen] = np.linalg.solve(precision, force)
    means.append(mean)
    seconds[k][np.ix_(chosen, chosen)] = np.linalg.inv(precision)
    seconds[k] += np.outer(mean, mean)
    # Of density d theta_i + delta_0 / kappa for each coefficient.
    weights.append(
        len(chosen) * np.log(2. * np.pi) / 2.
        - np.linalg.slogdet(precision)[1] / 2. + force @ mean[chosen] / 2.
        + (len(chosen) - 3) * np.log(sticky or 1.))
  weights = scipy.special.softmax(weights)
  mean = weights @ np.array(means)
  sd = np.sqrt(np.diag(np.einsum('k,kij->ij', weights, seconds)) - mean**2)
  model = keras.Sequential([keras.Input([2]), keras.layers.Dense(400)])
  model.compile(
      'sgd', sgmcmc.keras.GaussianLikelihood(scale=test_law.NOISE),
      steps_per_execution=20)
  sampling = sgmcmc.keras.PosteriorSampling(
      functools.partial(pdmp.SplitZigZag, step_size=0.02, sticky=sticky),
      num_examples=100, num_burnin_steps=300, num_steps_between_results=19,
      prior=test_law.tfd.Normal(0., test_law.PRIOR_SCALE), seed=0)
  data = tf.data.Dataset.from_tensor_slices((x, np.repeat(y, 400, axis=1)))
  model.fit(data.batch(100).repeat(), steps_per_epoch=1500, verbose=0,
            callbacks=[sampling])
  found = test_law.coefficients(sampling.posterior).reshape([-1, 3])
  included = weights @ models
  assert np.all(np.abs((found.mean(axis=0) - mean) / sd) < 0.05)
  assert np.all(np.abs(found.std(axis=0) / sd - 1.) < 0.05)
  assert np.all(np.abs((found != 0.).mean(axis=0) - included) < 0.025)
  assert sticky is None or np.any(included < 0.9)


@pytest.mark.slow
def test_the_summary_has_no_temperature_of_sticky_coordinates():
  for sticky in (None, 1.):
    kernel = pdmp.SplitZigZag(
        lambda x: -tf.reduce_sum(x**2, axis=-1) / 2., 0.5, sticky=sticky)
    draws = sgmcmc.sample(
        kernel, 100, tf.zeros([4, 2]), progress_bar=False, seed=1)
    rows = sgmcmc.diagnostics.summary(draws, kernel).rows
    has_temperature = any('temperature' in row.quantity for row in rows)
    assert has_temperature == (sticky is None)
