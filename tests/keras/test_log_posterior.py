"""The log posterior that `fit` samples, beside NumPy's."""

import functools

import keras
import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from tests.keras import models
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions


def log_prob_by_hand(model, x, y, sample_weight=None, prior_scale=1.):
  """log prior - N mean loss, in NumPy, at the model's weights."""
  total = sum(
      np.sum(-0.5 * (w / prior_scale)**2 - np.log(prior_scale)
             - 0.5 * np.log(2. * np.pi))
      for w in (v.numpy() for v in model.trainable_variables))
  logits = np.asarray(model(x), np.float64)
  logits -= np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
  values = logits[np.arange(len(y)), y]
  weights = np.ones(len(y)) if sample_weight is None else sample_weight
  return total + models.NUM_EXAMPLES / len(y) * np.sum(weights * values)


def estimate(model, run_eagerly=True, **arguments):
  """The kernel's estimate of the log density on one batch of all data.

  One step of SGLD too small to move: the estimate is at the model's weights.
  """
  model.run_eagerly = run_eagerly
  kernel = functools.partial(sgmcmc.SGLD, step_size=1e-20)
  sampling = models.make_sampling(
      kernel, **arguments.pop('sampling', {}))
  models.fit(model, sampling, epochs=1, batch_size=100, **arguments)
  return float(sampling.kernel_results.target_log_prob)


class InPython(tfd.Normal):
  """A normal density of a shape that TensorFlow does not know."""

  def _log_prob(self, x):
    return tf.py_function(super()._log_prob, [x], x.dtype)


def test_a_prior_in_python():
  x, y = models.classes()
  model = models.classifier()
  expected = log_prob_by_hand(model, x, y)
  np.testing.assert_allclose(
      estimate(model, run_eagerly=False, x=x, y=y,
               sampling=dict(prior=InPython(0., 1.))), expected, rtol=1e-5)


class Subclassed(keras.Model):
  """A model whose layers are built at the first call."""

  def __init__(self):
    super().__init__()
    self.hidden = keras.layers.Dense(5, activation='tanh')
    self.logits = keras.layers.Dense(3)

  def call(self, x):
    return self.logits(self.hidden(x))


def functional():
  inputs = keras.Input([4])
  hidden = keras.layers.Dense(5, activation='tanh')(inputs)
  return keras.Model(inputs, keras.layers.Dense(3)(hidden))


def sequential():
  return keras.Sequential([
      keras.layers.Dense(5, activation='tanh'), keras.layers.Dense(3)])


@pytest.mark.weekly_after(3)
@pytest.mark.parametrize('make_model, jit_compile', [
    pytest.param(functional, False, marks=pytest.mark.slow),
    pytest.param(Subclassed, True, marks=pytest.mark.slow),
    (Subclassed, False), (sequential, False)])
def test_kinds_of_models(make_model, jit_compile):
  x, y = models.classes()
  model = make_model()
  model.compile(
      'sgd', keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      jit_compile=jit_compile)
  value = estimate(model, run_eagerly=False)
  assert np.isclose(value, log_prob_by_hand(model, x, y), rtol=1e-5)


@pytest.mark.parametrize('how', ['sample', 'class', 'dataset'])
def test_weights_scale_the_likelihood(how):
  x, y = models.classes()
  class_weight = {0: 1., 1: 0.5, 2: 3.}
  weights = np.array([class_weight[k] for k in y], np.float32)
  model = models.classifier(
      weighted_metrics=['accuracy'], run_eagerly=True)
  if how == 'sample':
    value = estimate(model, x=x, y=y, sample_weight=weights)
  elif how == 'class':
    value = estimate(model, x=x, y=y, class_weight=class_weight)
  else:
    data = tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(50)
    kernel = functools.partial(sgmcmc.SGLD, step_size=1e-20)
    sampling = models.make_sampling(kernel)
    model.fit(data, verbose=0, shuffle=False, callbacks=[sampling])
    value = float(sampling.kernel_results.target_log_prob)
  assert np.isclose(value, log_prob_by_hand(model, x, y, weights), rtol=1e-5)


@pytest.mark.parametrize('reduction', [
    'sum', 'sum_over_batch_size', 'mean_with_sample_weight', None])
def test_any_reduction(reduction):
  x, y = models.classes()
  model = models.classifier(loss=keras.losses.SparseCategoricalCrossentropy(
      from_logits=True, reduction=reduction))
  value = estimate(model)
  assert np.isclose(value, log_prob_by_hand(model, x, y), rtol=1e-5)


def test_added_losses_count_once_in_units_of_the_loss():
  x, y = models.classes()
  inputs = keras.Input([4])
  outputs = keras.layers.Dense(
      3, kernel_regularizer=keras.regularizers.L2(0.03),
      activity_regularizer=keras.regularizers.L1(0.01))(inputs)
  model = keras.Model(inputs, outputs)
  model.compile(
      'sgd', keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  with pytest.warns(UserWarning, match='both count'):
    value = estimate(model)
  expected = log_prob_by_hand(model, x, y)
  kernel = model.trainable_variables[0].numpy()
  outputs = model(x)
  expected -= models.NUM_EXAMPLES * 0.03 * np.sum(kernel**2)
  # Keras takes an activity regulariser's mean over the batch.
  expected -= models.NUM_EXAMPLES * 0.01 * np.sum(np.abs(outputs)) / len(x)
  assert np.isclose(value, expected, rtol=1e-5)


def test_several_inputs_and_outputs():
  rng = np.random.default_rng(0)
  n = models.NUM_EXAMPLES
  a, b = (rng.normal(size=[n, k]).astype(np.float32) for k in (2, 3))
  y = {'mean': rng.normal(size=[n, 2]).astype(np.float32),
       'count': rng.poisson(2., [n, 1]).astype(np.float32)}
  inputs = {'a': keras.Input([2], name='a'), 'b': keras.Input([3], name='b')}
  joined = keras.layers.Concatenate()([inputs['a'], inputs['b']])
  outputs = {
      'mean': keras.layers.Dense(2, name='mean')(joined),
      'count': keras.layers.Dense(1, activation='exponential', name='count')(
          joined)}
  model = keras.Model(inputs, outputs)
  model.compile(
      'sgd', loss={'mean': sgmcmc.keras.GaussianLikelihood(scale=0.5),
                   'count': 'poisson'},
      loss_weights={'mean': 1., 'count': 2.}, metrics={'mean': ['mae']})
  value = estimate(model, x={'a': a, 'b': b}, y=y)
  predicted = model({'a': a, 'b': b})
  expected = sum(
      np.sum(tfd.Normal(0., 1.).log_prob(v.numpy()))
      for v in model.trainable_variables)
  expected += np.sum(tfd.Normal(predicted['mean'], 0.5).log_prob(y['mean']))
  expected += 2. * np.sum(tfd.Poisson(predicted['count']).log_prob(y['count']))
  assert np.isclose(value, expected, rtol=1e-5)


def test_last_partial_batch_is_scaled_by_its_own_size():
  x, y = models.classes()
  model = models.classifier()
  sampling = models.make_sampling(
      functools.partial(sgmcmc.SGLD, step_size=1e-20))
  models.fit(model, sampling, epochs=1, batch_size=20)  # 20, 20, 10
  value = float(sampling.kernel_results.target_log_prob)
  assert np.isclose(
      value, log_prob_by_hand(model, x[40:], y[40:]), rtol=1e-5)


@pytest.mark.parametrize('policy', ['float32', 'mixed_float16'])
def test_masked_outputs_have_no_likelihood(policy):
  rng = np.random.default_rng(0)
  x = rng.integers(0, 3, [models.NUM_EXAMPLES, 6])
  y = rng.integers(0, 3, x.shape)
  keras.utils.set_random_seed(0)
  keras.config.set_dtype_policy(policy)
  try:
    model = keras.Sequential([
        keras.Input([6]), keras.layers.Embedding(3, 2, mask_zero=True),
        keras.layers.Dense(3)])
  finally:
    keras.config.set_dtype_policy('float32')
  model.compile('sgd', models.classifier().loss)
  value = estimate(model, x=x, y=y)
  embedding, kernel, bias = (w.astype(np.float64) for w in model.get_weights())
  log_p = scipy.special.log_softmax(embedding[x] @ kernel + bias, axis=-1)
  log_p = np.take_along_axis(log_p, y[..., np.newaxis], axis=-1)[..., 0]
  expected = np.sum(log_p[x > 0]) + sum(
      np.sum(scipy.stats.norm.logpdf(w)) for w in model.get_weights())
  tolerance = 1e-5 if policy == 'float32' else 1e-3
  assert np.isclose(value, expected, rtol=tolerance)


def test_dropout_is_off_and_batch_normalization_fixed():
  model = keras.Sequential([
      keras.Input([4]), keras.layers.BatchNormalization(),
      keras.layers.Dropout(0.9), keras.layers.Dense(3)])
  model.compile('sgd', models.classifier().loss)
  value = estimate(model)
  x, y = models.classes()
  assert np.isclose(value, log_prob_by_hand(model, x, y), rtol=1e-5)
