"""Losses as likelihoods, and priors."""

import keras
import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib
from tfp_sgmcmc.keras.model import priors

tfd = tfp.distributions


def log_likelihood(loss, y, outputs, sample_weight=None):
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  model.compile('sgd', loss)
  return likelihood_lib.Likelihood(model).log_likelihood(
      tf.constant(y), tf.constant(outputs, tf.float32), sample_weight).numpy()


def test_binary_crossentropy_sums_over_elements():
  rng = np.random.default_rng(0)
  logits = rng.normal(size=[6, 4])
  y = rng.integers(0, 2, [6, 4])
  expected = np.sum(
      scipy.stats.bernoulli.logpmf(y, scipy.special.expit(logits)), axis=-1)
  loss = keras.losses.BinaryCrossentropy(from_logits=True)
  np.testing.assert_allclose(
      log_likelihood(loss, y, logits), expected, rtol=1e-5)


def test_poisson_sums_over_elements():
  rng = np.random.default_rng(0)
  rate = rng.uniform(1., 3., [6, 4])
  y = rng.poisson(2., [6, 4])
  np.testing.assert_allclose(
      log_likelihood('poisson', y, rate),
      np.sum(scipy.stats.poisson.logpmf(y, rate), axis=-1), rtol=1e-5)


@pytest.mark.parametrize('sparse', [True, False])
def test_categorical_crossentropy_of_sequences(sparse):
  rng = np.random.default_rng(0)
  logits = rng.normal(size=[6, 5, 3])
  y = rng.integers(0, 3, [6, 5])
  log_p = scipy.special.log_softmax(logits, axis=-1)
  expected = np.sum(
      np.take_along_axis(log_p, y[..., np.newaxis], -1)[..., 0], axis=-1)
  if sparse:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  else:
    loss, y = keras.losses.CategoricalCrossentropy(from_logits=True), np.eye(
        3)[y]
  np.testing.assert_allclose(
      log_likelihood(loss, y, logits), expected, rtol=1e-5)


@pytest.mark.parametrize('loss, law', [
    (sgmcmc.keras.GaussianLikelihood(scale=2.), scipy.stats.norm(0., 2.)),
    (sgmcmc.keras.LaplaceLikelihood(scale=2.), scipy.stats.laplace(0., 2.)),
    (sgmcmc.keras.StudentTLikelihood(df=3., scale=2.), scipy.stats.t(
        3., 0., 2.)),
    (sgmcmc.keras.DistributionLoss(lambda z: tfd.Logistic(z, 2.)),
     scipy.stats.logistic(0., 2.)),
], ids=['gaussian', 'laplace', 'student', 'distribution'])
def test_package_likelihoods(loss, law):
  rng = np.random.default_rng(0)
  y, location = rng.normal(size=[2, 6, 3]).astype(np.float32)
  expected = np.sum(law.logpdf(y - location), axis=-1)
  np.testing.assert_allclose(
      log_likelihood(loss, y, location), expected, rtol=1e-5)
  # As a Keras loss it is the mean over examples of the same.
  np.testing.assert_allclose(loss(y, location), -expected.mean(), rtol=1e-5)


def test_learned_scale():
  rng = np.random.default_rng(0)
  y = rng.normal(size=[6, 2]).astype(np.float32)
  outputs = rng.normal(size=[6, 4]).astype(np.float32)
  scale = np.log1p(np.exp(outputs[:, 2:]))
  np.testing.assert_allclose(
      log_likelihood(sgmcmc.keras.GaussianLikelihood(), y, outputs),
      np.sum(scipy.stats.norm(outputs[:, :2], scale).logpdf(y), axis=-1),
      rtol=1e-5)


def test_a_scale_is_never_zero():
  """The softplus of -200 is 0 in float32: the loss was infinite, then NaN."""
  outputs = tf.constant([[3., -200.]])
  with tf.GradientTape() as tape:
    tape.watch(outputs)
    loss = sgmcmc.keras.GaussianLikelihood()(tf.constant([[1.]]), outputs)
  assert np.isfinite(loss)
  assert np.all(np.isfinite(tape.gradient(loss, outputs)))


def test_shapes_that_would_broadcast_are_refused():
  with pytest.raises(ValueError, match='other examples'):
    log_likelihood(
        sgmcmc.keras.GaussianLikelihood(1.), np.zeros([6, 3]), np.zeros([6, 1]))


def test_losses_survive_saving():
  loss = sgmcmc.keras.StudentTLikelihood(df=3., scale=2., reduction='sum')
  config = keras.losses.serialize(loss)
  again = keras.losses.deserialize(config)
  y = tf.constant([[1.], [2.]])
  assert float(again(y, 0. * y)) == float(loss(y, 0. * y))


@pytest.mark.parametrize('loss, way_out', [
    ('mse', 'GaussianLikelihood'),
    ('mean_squared_error', 'GaussianLikelihood'),
    (keras.losses.MeanSquaredError(), 'GaussianLikelihood'),
    (keras.losses.MeanAbsoluteError(), 'LaplaceLikelihood'),
    ('mae', 'LaplaceLikelihood'),
    ('hinge', 'DistributionLoss'),
    ('crossentropy', 'sparse_categorical_crossentropy'),
    (lambda y, z: keras.ops.mean(y - z), 'DistributionLoss'),
    (keras.losses.BinaryFocalCrossentropy(), 'DistributionLoss'),
])
def test_other_losses_are_refused_with_the_way_out(loss, way_out):
  model = models.classifier(loss=loss)
  with pytest.raises(ValueError, match=way_out):
    models.fit(model, models.make_sampling())


class Variable:
  """What a prior sees of a Keras variable."""

  def __init__(self, path, shape):
    self.path, self.shape, self.dtype = path, shape, 'float32'


KERNEL = Variable('model/dense/kernel', (8, 3))
BIAS = Variable('model/dense/bias', (3,))
SECOND = Variable('model/dense_1/kernel', (3, 2))


def log_prior(prior, *variables):
  rng = np.random.default_rng(0)
  parts = [rng.normal(size=v.shape).astype(np.float32) for v in variables]
  value = priors.WeightPrior(prior, variables).log_prob(
      *map(tf.constant, parts))
  return float(value), parts


def log_normal(part, scale):
  return np.sum(scipy.stats.norm(0., scale).logpdf(part))


def test_one_prior_for_all():
  value, parts = log_prior(tfd.Normal(0., 2.), KERNEL, BIAS)
  assert np.isclose(value, sum(log_normal(p, 2.) for p in parts), rtol=1e-5)


@pytest.mark.parametrize('prior', [
    tfd.Normal(0., 2.), tfd.Normal(0.3, 0.7), tfd.Normal(0., [1., 2., 3.]),
    tfd.Laplace(0.1, 2.)], ids=['centred', 'shifted', 'by column', 'Laplace'])
def test_gradient_of_a_prior(prior):
  _, parts = log_prior(prior, KERNEL, BIAS)
  weights = priors.WeightPrior(prior, [KERNEL, BIAS])
  value, gradient = tfp.math.value_and_gradient(weights.log_prob, parts)
  wanted = tfp.math.value_and_gradient(
      lambda *parts: sum(tf.reduce_sum(prior.log_prob(p)) for p in parts),
      parts)
  np.testing.assert_allclose(value, wanted[0], rtol=1e-5)
  for ours, theirs in zip(gradient, wanted[1]):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_prior_by_name_and_expression():
  value, parts = log_prior(
      {'.*/kernel': tfd.Normal(0., 3.), 'dense': tfd.Normal(0., 2.)},
      KERNEL, BIAS, SECOND)
  scales = [2., 2., 3.]  # The layer's name is before any expression.
  assert np.isclose(
      value, sum(map(log_normal, parts, scales)), rtol=1e-5)


def test_he_normal():
  value, parts = log_prior(sgmcmc.keras.he_normal(bias_scale=3.), KERNEL, BIAS)
  expected = log_normal(parts[0], 0.5) + log_normal(parts[1], 3.)
  assert np.isclose(value, expected, rtol=1e-5)


def test_prior_with_event_axes_counts_once():
  prior = {'kernel': tfd.Sample(tfd.Normal(0., 2.), [8, 3])}
  value, parts = log_prior(prior, KERNEL)
  assert np.isclose(value, log_normal(parts[0], 2.), rtol=1e-5)


def test_no_prior_is_constant():
  assert log_prior(None, KERNEL)[0] == 0.


@pytest.mark.parametrize('prior, message', [
    ({'kernel': tfd.Normal(0., 1.)}, "no entry for the weight 'model/dense/b"),
    ({'.*': tfd.Normal(0., 1.), 'densse': tfd.Normal(0., 1.)}, 'densse'),
    (tfd.Normal(tf.zeros([4]), 1.), 'broadcast'),
    (3., 'Distribution'),
])
def test_wrong_priors(prior, message):
  with pytest.raises((TypeError, ValueError), match=message):
    log_prior(prior, KERNEL, BIAS)


def test_a_function_without_source():
  """As one typed at a prompt: Keras writes it out only to save the model."""
  inputs = keras.Input([2])
  outputs = {name: keras.layers.Dense(1, name=name)(inputs)
             for name in ('first', 'second')}
  model = keras.Model(inputs, outputs)
  loss = sgmcmc.keras.DistributionLoss(
      eval('lambda z: tfd.Normal(z, 2.)', {'tfd': tfd}))
  with pytest.raises(OSError, match='source'):
    loss.get_config()
  model.compile(
      'sgd', {'first': loss, 'second': loss},
      loss_weights={'first': 1., 'second': 0.5})
  likelihood = likelihood_lib.Likelihood(model)
  rng = np.random.default_rng(0)
  y, z = ({name: rng.normal(size=[4, 1]).astype(np.float32)
           for name in outputs} for _ in range(2))
  each = [scipy.stats.norm(z[name], 2.).logpdf(y[name])[:, 0]
          for name in ('first', 'second')]
  np.testing.assert_allclose(
      likelihood.log_likelihood(y, z, None), each[0] + 0.5 * each[1],
      rtol=1e-5)
