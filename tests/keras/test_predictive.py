"""The predictive distribution against mixtures that are known exactly."""

import keras
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.draws import model_draws as draws_lib

tfd = tfp.distributions

SLOPES = np.array([-1., 0.5, 2.])
WEIGHTS = np.array([0.2, 0.7, 0.1])
X = np.array([[0.], [1.], [-2.], [3.]], np.float32)


def linear(loss, slopes=SLOPES, weights=None, units=1):
  """A posterior of y = slope x with draws, and weights of these, as given."""
  model = keras.Sequential([
      keras.Input([1]),
      keras.layers.Dense(units, use_bias=False, name='slope')])
  model.compile('sgd', loss)
  slopes = np.reshape(slopes, [len(slopes), 1, units]).astype(np.float32)
  posterior = sgmcmc.keras.PosteriorSamples.from_arrays(model, [slopes])
  if weights is None:
    return posterior
  # A factor of the weights does not matter.
  arrays = {**posterior.arrays(), 'log_weight': np.log(5. * weights)}
  return sgmcmc.keras.PosteriorSamples(
      model, draws_lib.in_memory(model, arrays))


def locations():
  """Of each row and draw, `[n, 1, draws]`."""
  return X[:, np.newaxis] * SLOPES


GAUSSIAN = sgmcmc.keras.GaussianLikelihood(scale=0.5)
both_weights = pytest.mark.parametrize(
    'weights', [None, WEIGHTS], ids=['equal', 'weights'])
# For variants that other tests hold.
WEEKLY = [pytest.mark.slow, pytest.mark.weekly]
# For what has nothing of its own where they are equal.
weights_and_slowly_none = pytest.mark.parametrize('weights', [
    pytest.param(None, id='equal', marks=WEEKLY),
    pytest.param(WEIGHTS, id='weights')])


def shares(weights):
  return np.full(3, 1 / 3) if weights is None else weights


@both_weights
def test_mixture_of_gaussians(weights):
  predictive = linear(GAUSSIAN, weights=weights).predictive(
      X, batch_size=3, draw_batch_size=2)
  w, mean = shares(weights), locations()
  assert isinstance(predictive, tfd.MixtureSameFamily)
  assert predictive.batch_shape == [4, 1] and predictive.event_shape == []
  y = np.array([[0.3], [-1.], [2.], [4.]], np.float32)
  each = scipy.stats.norm(mean, 0.5)
  for found, wanted in (
      (predictive.mean(), mean @ w),
      (predictive.variance(), 0.25 + mean**2 @ w - (mean @ w)**2),
      (predictive.cdf(y), each.cdf(y[..., np.newaxis]) @ w),
      (predictive.prob(y), each.pdf(y[..., np.newaxis]) @ w)):
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.weekly_after(1)
@weights_and_slowly_none
@pytest.mark.parametrize('loss, component', [
    (GAUSSIAN, lambda mean: scipy.stats.norm(mean, 0.5)),
    pytest.param(
        sgmcmc.keras.LaplaceLikelihood(scale=0.5),
        lambda mean: scipy.stats.laplace(mean, 0.5), marks=WEEKLY),
    # Without a mean or a variance.
    (sgmcmc.keras.StudentTLikelihood(df=0.8, scale=0.5),
     lambda mean: scipy.stats.t(0.8, mean, 0.5)),
    pytest.param(
        sgmcmc.keras.DistributionLoss(
            lambda outputs: tfd.LogNormal(outputs, 0.5)),
        lambda mean: scipy.stats.lognorm(0.5, scale=np.exp(mean)),
        marks=WEEKLY),
    # TFP has no quantiles of it, and no cdf below 0.
    (sgmcmc.keras.DistributionLoss(lambda outputs: tfd.InverseGamma(
        3., tf.exp(outputs))),
     lambda mean: scipy.stats.invgamma(3., scale=np.exp(mean))),
], ids=['Gaussian', 'Laplace', 'Student', 'log-normal', 'inverse Gamma'])
def test_quantiles_of_mixtures(loss, component, weights):
  """The root that SciPy finds, of the mixture's cdf by SciPy."""
  posterior, q = linear(loss, weights=weights), [0.05, 0.5, 0.99]
  found = posterior.quantiles(X, q, batch_size=3, draw_batch_size=2)
  assert found.shape == (3, 4, 1) and found.dtype == np.float32
  w = shares(weights)
  for row, mean in enumerate(locations()[:, 0]):
    for k, p in enumerate(q):
      ends = component(mean).ppf(p)
      wanted = ends[0] if np.ptp(ends) < 1e-9 else scipy.optimize.brentq(
          lambda y, mean=mean, p=p: component(mean).cdf(y) @ w - p,
          ends.min(), ends.max(), xtol=1e-12)
      np.testing.assert_allclose(found[k, row, 0], wanted, rtol=2e-6, atol=1e-6)
  np.testing.assert_allclose(posterior.quantiles(X, 0.5), found[1], rtol=1e-6)


@pytest.mark.slow
@weights_and_slowly_none
@pytest.mark.parametrize('loss, component', [
    (sgmcmc.keras.DistributionLoss(
        lambda outputs: tfd.NegativeBinomial(3., logits=outputs)),
     lambda mean: scipy.stats.nbinom(3., 1. / (1. + np.exp(mean)))),
    pytest.param(
        sgmcmc.keras.DistributionLoss(
            lambda outputs: tfd.Poisson(log_rate=outputs)),
        lambda mean: scipy.stats.poisson(np.exp(mean)),
        marks=WEEKLY),
], ids=['negative binomial', 'Poisson'])
def test_counts(loss, component, weights):
  """Quantiles and interval are the whole numbers of the definition."""
  posterior, q = linear(loss, weights=weights), [0.01, 0.3, 0.5, 0.95]
  found = posterior.quantiles(X, q)
  w, numbers = shares(weights), np.arange(20_000)
  lower, upper = posterior.interval(X, 0.8, kind='shortest')
  for row, mean in enumerate(locations()[:, 0]):
    cdf = component(mean).cdf(numbers[:, np.newaxis]) @ w
    np.testing.assert_array_equal(
        found[:, row, 0], [np.argmax(cdf >= p - 1e-12) for p in q])
    inside = (numbers >= lower[row]) & (numbers <= upper[row])
    assert np.diff(cdf, prepend=0.)[inside].sum() >= 0.8 - 1e-9


def test_loss_of_keras_for_counts():
  posterior = linear('poisson', slopes=[0.5, 2.])
  predictive = posterior.predictive(X[1:2])
  np.testing.assert_allclose(
      predictive.prob([[1.]]),
      [[np.mean(scipy.stats.poisson([0.5, 2.]).pmf(1))]], rtol=1e-5)
  assert posterior.quantiles(X[1:2], 0.5)[0, 0] == 1.


def test_intervals():
  posterior = linear(GAUSSIAN, weights=WEIGHTS)
  np.testing.assert_array_equal(
      posterior.interval(X, 0.8), posterior.quantiles(X, [0.1, 0.9]))
  lower, upper = np.float64(posterior.interval(X, 0.8, kind='shortest'))
  for row, mean in enumerate(locations()[:, 0]):
    cdf = lambda y, mean=mean: scipy.stats.norm(  # noqa: E731
        mean, 0.5).cdf(np.reshape(y, [-1, 1])) @ WEIGHTS
    np.testing.assert_allclose(
        cdf(upper[row]) - cdf(lower[row]), 0.8, atol=1e-6)
    grid = np.linspace(-15., 15., 200_001)
    p = cdf(grid)
    ends = np.interp(np.minimum(p + 0.8, 1.), p, grid)
    wanted = np.min((ends - grid)[p < 0.2 - 1e-9])
    np.testing.assert_allclose(upper[row] - lower[row], wanted, rtol=1e-3)


def test_shortest_interval_ends_at_the_edge_of_the_support():
  """An exponential's begins at 0, with nothing below it."""
  posterior = linear(sgmcmc.keras.DistributionLoss(
      lambda outputs: tfd.Exponential(tf.exp(outputs))), slopes=[0.])
  lower, upper = posterior.interval(X[:1], 0.9, kind='shortest')
  np.testing.assert_allclose(lower, 0., atol=1e-5)
  np.testing.assert_allclose(upper, -np.log(0.1), rtol=1e-5)


def test_targets_of_several_elements():
  """Independent elements have quantiles each; the mixture is a joint one."""
  slopes = [[-1., 0.], [0.5, 1.], [2., -3.]]
  joint = sgmcmc.keras.DistributionLoss(
      lambda outputs: tfd.Independent(tfd.Normal(outputs, 0.5)))
  found, own = (
      linear(loss, slopes, WEIGHTS, units=2) for loss in (joint, GAUSSIAN))
  predictive = found.predictive(X)
  assert predictive.batch_shape == [4] and predictive.event_shape == [2]
  y = np.ones([4, 2], np.float32)
  density = np.prod(scipy.stats.norm.pdf(
      1., X[:, np.newaxis] * np.array(slopes), 0.5), axis=-1)
  np.testing.assert_allclose(predictive.prob(y), density @ WEIGHTS, rtol=1e-4)
  np.testing.assert_array_equal(
      found.quantiles(X, [0.1, 0.9]), own.quantiles(X, [0.1, 0.9]))


def test_components_that_hold_distributions():
  """A density network: a mixture of mixtures."""
  def density(outputs):
    return tfd.MixtureSameFamily(
        tfd.Categorical(probs=[0.25, 0.75]), tfd.Normal(outputs, [0.5, 1.]))

  slopes = np.array([[-1., 0.], [0.5, 1.], [2., -3.]])
  posterior = linear(
      sgmcmc.keras.DistributionLoss(density), slopes, WEIGHTS, units=2)
  y = np.array([0., 1., -1., 2.], np.float32)
  cdf = scipy.stats.norm.cdf(
      y[:, np.newaxis, np.newaxis], X[:, np.newaxis] * slopes, [0.5, 1.])
  np.testing.assert_allclose(
      posterior.predictive(X).cdf(y), cdf @ [0.25, 0.75] @ WEIGHTS, rtol=1e-5)


def test_quantiles_of_numbers_from_a_list():
  """They are of the list, and `evaluate` has no scores of continuous ones."""
  numbers = [-1., 0.5, 2.]  # float32; probabilities are of another dtype.
  loss = sgmcmc.keras.DistributionLoss(
      lambda outputs: tfd.FiniteDiscrete(numbers, logits=outputs))
  slopes = np.array([[-1., 0., 1.], [0.5, 1., 2.], [2., -3., 0.]])
  posterior = linear(loss, slopes, WEIGHTS, units=3)
  p = scipy.special.softmax(X[:, np.newaxis] * slopes, axis=-1)
  cdf = np.cumsum(np.einsum('ndk,d->nk', p, shares(WEIGHTS)), axis=-1)
  for level in (0.05, 0.4, 0.8):
    wanted = np.asarray(numbers)[np.argmax(cdf >= level, axis=-1)]
    found, = posterior.quantiles(X, [level])
    np.testing.assert_array_equal(np.ravel(found), wanted)
  y = np.full([len(X)], 0.5, np.float32)
  assert list(posterior.evaluate(X, y)) == ['nll']


@both_weights
def test_standard_deviation_and_uncertainty(weights):
  loss = sgmcmc.keras.GaussianLikelihood()  # Learns the scale.
  slopes = np.array([[-1., 0.3], [0.5, -0.2], [2., 1.]])
  posterior = linear(loss, slopes, weights, units=2)
  w, each = shares(weights), X[:, np.newaxis] * slopes
  mean, noise = each[..., 0], np.log1p(np.exp(each[..., 1]))**2
  epistemic = mean**2 @ w - (mean @ w)**2
  found = posterior.uncertainty(X, batch_size=3, draw_batch_size=2)
  assert isinstance(found, sgmcmc.keras.PredictiveVariance)
  for value, wanted in zip(
      found, (noise @ w + epistemic, noise @ w, epistemic)):
    np.testing.assert_allclose(
        value, wanted[:, np.newaxis], rtol=1e-5, atol=1e-6)
  average, std = posterior.predict(X, return_std=True)
  np.testing.assert_array_equal(average, posterior.predict(X))
  np.testing.assert_allclose(std, np.sqrt(found.total), rtol=1e-6)
  np.testing.assert_allclose(
      posterior.predictive(X).stddev(), std, rtol=1e-4)


def test_variance_beside_a_large_mean():
  """A spread of 1 about a million is not lost to rounding."""
  posterior = linear(GAUSSIAN, slopes=[1e6 - 1., 1e6 + 1.])
  found = posterior.uncertainty(X[1:2])
  np.testing.assert_allclose(found.epistemic, [[1.]], rtol=1e-3)


@both_weights
@pytest.mark.parametrize('is_binary', [True, False])
def test_classes(is_binary, weights):
  if is_binary:
    loss, slopes = keras.losses.BinaryCrossentropy(from_logits=True), SLOPES
    p = scipy.special.expit(X[..., np.newaxis] * SLOPES)  # [n, 1, draws]
    both = np.stack([p[:, 0], 1. - p[:, 0]])
  else:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    slopes = np.array([[-1., 0., 2.], [0.5, 1., 1.], [2., -3., 0.]])
    p = np.moveaxis(scipy.special.softmax(
        X[:, np.newaxis] * slopes, axis=-1), 1, 2)
    both = np.moveaxis(p, 1, 0)
  posterior, w = linear(loss, slopes, weights, 1 if is_binary else 3), shares(
      weights)
  predictive = posterior.predictive(X, batch_size=3)
  assert isinstance(
      predictive, tfd.Bernoulli if is_binary else tfd.Categorical)
  np.testing.assert_allclose(predictive.probs_parameter(), p @ w, rtol=1e-5)
  found = posterior.uncertainty(X)
  assert isinstance(found, sgmcmc.keras.PredictiveEntropy)
  for value, wanted, old in zip(found, (
      scipy.stats.entropy(both @ w), scipy.stats.entropy(both) @ w),
                                posterior.predictive_entropy(X)):
    np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(value, old)
  _, std = posterior.predict(X, return_std=True)
  np.testing.assert_allclose(std, np.sqrt(p @ w * (1. - p @ w)), rtol=1e-4)
  y = posterior.sample(X, 4000, seed=1)
  assert y.dtype.kind == 'i' and y.shape == (4000, *(p @ w).shape)[:y.ndim]
  share, wanted = np.mean(y == 1, axis=0), (p @ w)[:, 0 if is_binary else 1]
  z = (share.reshape(wanted.shape) - wanted) / np.sqrt(
      wanted * (1. - wanted) / 4000)
  assert np.abs(z).max() < 5.4  # A false alarm in a million, of 16 numbers.
  with pytest.raises(ValueError, match='classes, which have no quantiles'):
    posterior.quantiles(X, 0.5)


@both_weights
def test_samples(weights):
  """Each row has the mixture's law, and all rows of a sample one draw."""
  y = linear(GAUSSIAN, weights=weights).sample(X, 3000, seed=1, batch_size=3)
  assert y.shape == (3000, 4, 1)
  w = shares(weights)
  for row, mean in enumerate(locations()[:, 0]):
    assert scipy.stats.kstest(y[:, row, 0], lambda v, mean=mean: (
        scipy.stats.norm(mean, 0.5).cdf(v[:, np.newaxis]) @ w)).pvalue > 1e-7
  # Rows 2 and 3 are of two batches. The products' deviation is below 40.
  covariance = np.mean(y[:, 2] * y[:, 3])
  wanted = -6. * SLOPES**2 @ w
  assert abs(covariance - wanted) < 5. * 40. / np.sqrt(3000)
  assert abs(np.mean(y[:, 2]) * np.mean(y[:, 3]) - wanted) > 5. * 0.75
  again = linear(GAUSSIAN, weights=weights).sample(
      X, 3000, seed=1, batch_size=3)
  np.testing.assert_array_equal(y, again)
  assert not np.array_equal(y, linear(GAUSSIAN, weights=weights).sample(
      X, 3000, seed=2, batch_size=3))


def two_outputs(losses, as_dict):
  inputs = keras.Input([1])
  outputs = [
      keras.layers.Dense(units, use_bias=False, name=name)(inputs)
      for name, units in (('size', 1), ('kind', 3))]
  model = keras.Model(
      inputs, dict(zip(['size', 'kind'], outputs)) if as_dict else outputs)
  model.compile('sgd', losses)
  rng = np.random.default_rng(0)
  # Keras has its own order of layers where outputs are a dict.
  arrays = [
      SLOPES.reshape([3, 1, 1]) if variable.path.startswith('size')
      else rng.normal(size=[3, 1, 3])
      for variable in model.trainable_variables]
  return sgmcmc.keras.PosteriorSamples.from_arrays(model, arrays)


@pytest.mark.weekly_after(1)
@pytest.mark.slow
@pytest.mark.parametrize('as_dict', [
    True, pytest.param(False, marks=pytest.mark.weekly)])
@pytest.mark.parametrize('loss_of_kind', [
    keras.losses.SparseCategoricalCrossentropy(from_logits=True), None],
    ids=['classes', 'no loss'])
def test_two_outputs(as_dict, loss_of_kind):
  posterior = two_outputs(
      {'size': GAUSSIAN, 'kind': loss_of_kind}, as_dict)
  alone = linear(GAUSSIAN)
  has_loss = loss_of_kind is not None

  def pair(structure):
    assert isinstance(structure, dict if as_dict else list)
    return (
        (structure['size'], structure['kind']) if as_dict else structure)

  size, kind = pair(posterior.predictive(X))
  assert size.batch_shape == [4, 1]
  assert isinstance(kind, tfd.Categorical if has_loss else type(None))
  for name, arguments in (
      ('quantiles', [[0.1, 0.9]]), ('interval', [0.8, 'shortest'])):
    size, kind = pair(getattr(posterior, name)(X, *arguments, batch_size=3))
    np.testing.assert_array_equal(size, getattr(alone, name)(X, *arguments))
    assert kind is None
  size, kind = pair(posterior.sample(X, 5, batch_size=3))
  assert size.shape == (5, 4, 1)
  assert kind.shape == (5, 4) if has_loss else kind is None
  size, kind = pair(posterior.uncertainty(X, batch_size=3))
  np.testing.assert_array_equal(size.total, alone.uncertainty(X).total)
  assert isinstance(
      kind, sgmcmc.keras.PredictiveEntropy if has_loss else type(None))
  mean, std = posterior.predict(X, return_std=True)
  np.testing.assert_allclose(
      pair(std)[0], alone.predict(X, return_std=True)[1], rtol=1e-6)
  assert pair(std)[1].shape == (4, 3) if has_loss else pair(std)[1] is None
  assert pair(mean)[1].shape == (4, 3)


def test_moving_statistics_belong_to_draws():
  """The model's own do not matter, and each draw brings its own."""
  x, _ = models.classes()
  model = keras.Sequential([
      keras.Input([4]), keras.layers.BatchNormalization(),
      keras.layers.Dense(1)])
  model.compile(keras.optimizers.SGD(0.01), GAUSSIAN)
  parts = []
  for k in range(2):
    sampling = models.make_sampling(seed=k)
    models.fit(model, sampling, x=(k + 1.) * x + 3. * k, y=x[:, :1])
    parts.append(sampling.posterior)
  posterior = sgmcmc.keras.PosteriorSamples.concatenate(parts)
  each = np.float64(posterior.predict(x, return_samples=True))
  own = [part.predict(x) for part in parts]
  assert np.abs(own[0] - own[1]).max() > 0.1
  for variable in model.non_trainable_variables:
    variable.assign(100. * tf.ones_like(variable))
  predictive = posterior.predictive(x)
  np.testing.assert_allclose(
      predictive.mean(), each.mean(axis=0), rtol=1e-3, atol=1e-4)
  np.testing.assert_allclose(
      posterior.uncertainty(x).epistemic, each.var(axis=0), rtol=1e-3,
      atol=1e-5)


@pytest.mark.weekly
@pytest.mark.slow
def test_coverage():
  """Intervals of a conjugate regression hold the targets as often as said.

  Each of 400 regressions has coefficients from the prior, 3 rows of data and
  a row to predict. They share one model, each with weights of its own. The
  number of targets outside is binomial.
  """
  num, dims, rows, num_draws, level = 400, 2, 3, 40, 0.9
  rng = np.random.default_rng(0)
  x = rng.normal(size=[num, rows + 1, dims])
  theta = rng.normal(size=[num, dims])
  y = np.einsum('nrd,nd->nr', x, theta) + 0.5 * rng.normal(size=[num, rows + 1])
  design = x[:, :rows]
  covariance = np.linalg.inv(
      np.eye(dims) + np.einsum('nrd,nre->nde', design, design) / 0.25)
  mean = np.einsum('nde,nre,nr->nd', covariance, design, y[:, :rows]) / 0.25
  draws = mean + np.einsum(
      'nde,sne->snd', np.linalg.cholesky(covariance),
      rng.normal(size=[num_draws, num, dims]))
  number = keras.Input([], dtype='int32')
  features = keras.Input([dims])
  own = keras.layers.Embedding(num, dims)(number)
  model = keras.Model(
      [number, features], keras.layers.Dot(1)([own, features]))
  model.compile('sgd', GAUSSIAN)
  posterior = sgmcmc.keras.PosteriorSamples.from_arrays(model, [draws])
  data = [np.arange(num), x[:, -1].astype(np.float32)]
  bound = 4.9 * np.sqrt(level * (1. - level) / num)  # False alarm: 1e-6.

  def share_inside(lower, upper):
    target = y[:, -1:]
    return np.mean((target >= lower) & (target <= upper))

  for kind in ('equal_tails', 'shortest'):
    found = posterior.interval(data, level, kind)
    assert abs(share_inside(*found) - level) < bound, kind
  # Planted: the noise of the targets alone.
  location = posterior.predict(data)
  half = 0.5 * scipy.stats.norm.ppf((1. + level) / 2.)
  assert abs(share_inside(location - half, location + half) - level) > bound


@sgmcmc.keras.NegativeLogLikelihood
def exponential(y, outputs):
  return tf.exp(outputs) * y - outputs


@pytest.mark.parametrize('call', [
    lambda p: p.predictive(X), lambda p: p.sample(X, 3),
    lambda p: p.quantiles(X, 0.5), lambda p: p.interval(X),
    lambda p: p.uncertainty(X), lambda p: p.predict(X, return_std=True)])
def test_losses_without_a_distribution_are_refused(call):
  with pytest.raises(
      ValueError, match='does not say what the distribution .* Compile with '
      'GaussianLikelihood'):
    call(linear(exponential))


@pytest.mark.parametrize('call, message', [
    (lambda p: p.quantiles(X, 1.), 'q is 1.0'),
    (lambda p: p.quantiles(X, [0.1, 0.]), 'above 0 and below 1'),
    (lambda p: p.quantiles(X, []), r'q is \[\]'),
    (lambda p: p.interval(X, 1.), 'level is 1.0'),
    (lambda p: p.interval(X, 0.9, 'narrow'), "'equal_tails' or 'shortest'"),
    (lambda p: p.sample(X, 0), 'num_samples is 0'),
    (lambda p: p.predict(X, return_std=True, return_samples=True),
     'pass one of the two'),
    (lambda p: p[:0].sample(X), 'no draws'),
    (lambda p: p.predictive(X[:0]), 'no examples')])
def test_arguments_that_mean_nothing(call, message):
  with pytest.raises(ValueError, match=message):
    call(linear(GAUSSIAN))


def test_distributions_without_quantiles():
  vectors = linear(sgmcmc.keras.DistributionLoss(
      lambda outputs: tfd.MultivariateNormalDiag(
          outputs, tf.ones_like(outputs))), [[1., 2.], [0., 1.]], units=2)
  assert vectors.predictive(X).event_shape == [2]
  with pytest.raises(ValueError, match='distribution of vectors'):
    vectors.quantiles(X, 0.5)
  no_cdf = linear(sgmcmc.keras.DistributionLoss(
      lambda outputs: tfd.Skellam(tf.exp(outputs), tf.exp(outputs))))
  with pytest.raises(ValueError, match='Skellam has no cdf'):
    no_cdf.quantiles(X, 0.5)
  shared = linear(sgmcmc.keras.DistributionLoss(
      lambda outputs: tfd.TransformedDistribution(
          tfd.Normal(outputs, 1.), tfp.bijectors.Shift(outputs))))
  with pytest.raises(ValueError, match='cannot be stacked'):
    shared.predictive(X)
  assert shared.sample(X, 2).shape == (2, 4, 1)
