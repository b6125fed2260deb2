"""Metrics see each row of a batch once, whatever a kernel evaluates."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.keras import models
import tfp_sgmcmc as sgmcmc


class Estimator(sgmcmc.gradients.GradientEstimator):
  """The gradient by passes of one's own choice, on a batch of fit."""

  lives_on_batches = True

  def __init__(self, estimate):
    self.estimate = estimate

  def one_step(
      self, target, state_parts, previous_results, seed, gaussian_step=None):
    return (
        sgmcmc.gradients.GradientEstimate(*self.estimate(target, state_parts)),
        sgmcmc.gradients.count(previous_results, target.num_rows))


def on_rows(target, parts, rows=slice(None)):
  batch = tf.nest.map_structure(lambda leaf: leaf[rows], target.data)
  return tfp.math.value_and_gradient(
      lambda *parts: target.log_prob_estimate(*parts, batch=batch), parts)


def whole(target, parts):
  return tfp.math.value_and_gradient(target, parts)


def twice(target, parts):
  whole(target, parts)
  return whole(target, parts)


def halves(target, parts):
  on_rows(target, parts, slice(None, None, 2))
  return on_rows(target, parts, slice(1, None, 2))


def within_cond(target, parts):
  return tf.cond(
      tf.reduce_sum(parts[0]) < 1e9, lambda: whole(target, parts),
      lambda: on_rows(target, parts, slice(0, 3)))


def some_rows(target, parts):
  return on_rows(target, parts, slice(0, 3))


class Counted(keras.layers.Layer):
  """Counts the rows that it sees."""

  def build(self, shape):
    self.rows = keras.metrics.Sum(name='rows')

  def call(self, x):
    self.rows.update_state(tf.shape(x)[0])
    return x


def two_outputs(**compile_arguments):
  keras.utils.set_random_seed(0)
  inputs = keras.Input([4])
  hidden = Counted()(inputs)
  outputs = {
      'kind': keras.layers.Dense(
          3, name='kind', kernel_regularizer='l2')(hidden),
      'value': keras.layers.Dense(1, name='value')(hidden)}
  model = keras.Model(inputs, outputs)
  model.compile(
      'sgd', {
          'kind': models.classifier().loss,
          'value': sgmcmc.keras.GaussianLikelihood(scale=2.)},
      metrics={'kind': ['accuracy'], 'value': ['mae']}, **compile_arguments)
  return model


@pytest.mark.weekly_after(4)
@pytest.mark.parametrize('estimate, compile_arguments', [
    (twice, dict(run_eagerly=True)), (halves, {}), (within_cond, {}),
    pytest.param(twice, {}, marks=pytest.mark.slow),
    pytest.param(some_rows, {}, marks=pytest.mark.slow),
], ids=lambda value: getattr(value, '__name__', str(value)))
@pytest.mark.filterwarnings('ignore:The model has regularisers')
def test_metrics_are_those_of_evaluate(estimate, compile_arguments):
  x, kind = models.classes()
  y = {'kind': kind, 'value': np.sum(x, axis=1, keepdims=True)}
  model = two_outputs(**compile_arguments)
  sampling = models.make_sampling(functools.partial(
      sgmcmc.SGLD, step_size=1e-20, gradient_estimator=Estimator(estimate)))
  history = models.fit(model, sampling, epochs=1, x=x, y=y).history
  scores = model.evaluate(x, y, batch_size=20, verbose=0, return_dict=True)
  assert {'kind_accuracy', 'value_mae', 'kind_loss', 'rows'} <= set(scores)
  assert history['rows'] == [models.NUM_EXAMPLES]
  for name, value in scores.items():
    assert np.isclose(history[name][0], value, rtol=1e-5), name
