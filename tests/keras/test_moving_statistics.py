"""Moving statistics: estimated at the switch, and part of the draws."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.model import moving_statistics

STAY = functools.partial(sgmcmc.SGLD, step_size=1e-20)


def series(n=120, length=24):
  """Two classes of noisy waves, far from zero."""
  rng = np.random.default_rng(0)
  y = rng.integers(0, 2, n)
  phase = rng.uniform(0., 2. * np.pi, [n, 1])
  wave = np.sin((0.5 + 0.7 * y[:, np.newaxis]) * np.arange(length) + phase)
  x = 5. + 4. * (wave + 0.1 * rng.normal(size=[n, length]))
  return x[..., np.newaxis].astype(np.float32), y


def network(**arguments):
  keras.utils.set_random_seed(0)
  hidden = inputs = keras.Input([24, 1])
  for _ in range(2):
    hidden = keras.layers.Conv1D(8, 3, padding='same')(hidden)
    hidden = keras.layers.BatchNormalization(**arguments)(hidden)
    hidden = keras.layers.ReLU()(hidden)
  hidden = keras.layers.GlobalAveragePooling1D()(hidden)
  hidden = keras.layers.Dropout(0.5)(hidden)
  model = keras.Model(
      inputs, keras.layers.Dense(2, activation='softmax')(hidden))
  model.compile(
      keras.optimizers.Adam(0.02), 'sparse_categorical_crossentropy',
      metrics=['accuracy'])
  return model


def statistics_of(model):
  return [v.numpy() for v in model.non_trainable_weights]


def test_estimates_are_the_moments_of_the_data():
  x, _ = series()
  model = network()
  variables = moving_statistics.moving_variables(model, tf.constant(x[:40]))
  assert len(variables) == 4
  moving_statistics.estimate(
      model, [tf.constant(x[k:k + 40]) for k in range(0, 120, 40)], variables)
  layers = [layer for layer in model.layers
            if isinstance(layer, keras.layers.BatchNormalization)]
  for layer, tolerance in zip(layers, [1e-4, 0.03]):
    inputs = keras.Model(model.input, layer.input).predict(x, verbose=0)
    np.testing.assert_allclose(
        layer.moving_mean, inputs.mean((0, 1)), atol=tolerance * inputs.std())
    np.testing.assert_allclose(
        layer.moving_variance, inputs.var((0, 1)), rtol=2. * tolerance)
  assert not any('call' in vars(layer) for layer in layers)


def test_a_layer_that_is_called_twice():
  inputs = keras.Input([2])
  layer = keras.layers.BatchNormalization(momentum=0.5)
  model = keras.Model(inputs, layer(inputs) + layer(inputs))
  x = tf.constant([[1., 2.], [3., 6.]])
  moving_statistics.estimate(
      model, [x], moving_statistics.moving_variables(model, x))
  np.testing.assert_allclose(layer.moving_mean, [2., 4.], rtol=1e-6)
  np.testing.assert_allclose(layer.moving_variance, [1., 4.], rtol=1e-6)


class Inner(keras.layers.Layer):
  """Has a normalising layer of its own."""

  def __init__(self, **arguments):
    super().__init__()
    self.normalise = keras.layers.BatchNormalization()
    self.arguments = arguments

  def call(self, x):
    return self.normalise(x, **self.arguments)


def test_layers_that_do_not_normalise_by_the_batch_stay():
  frozen = keras.layers.BatchNormalization()
  frozen.trainable = False
  model = keras.Sequential([keras.Input([2]), Inner(training=False), frozen])
  assert not moving_statistics.moving_variables(model, tf.ones([3, 2]))


def test_a_layer_within_a_layer():
  model = keras.Sequential([keras.Input([2]), Inner()])
  x = tf.constant([[1., 2.], [3., 6.]])
  moving_statistics.estimate(
      model, [x], moving_statistics.moving_variables(model, x))
  np.testing.assert_allclose(
      model.layers[0].normalise.moving_mean, [2., 4.], rtol=1e-6)


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('arguments', [
    pytest.param({}, marks=pytest.mark.slow),
    pytest.param(dict(steps_per_execution=2), marks=pytest.mark.slow)],
    ids=['plain', 'several steps'])
def test_accuracy_does_not_fall_at_the_switch(arguments):
  x, y = series()
  model = network()
  model.compile(model.optimizer, model.loss, metrics=['accuracy'], **arguments)
  sampling = models.make_sampling(STAY, num_examples=None, start_epoch=4)
  history = model.fit(
      x, y, batch_size=30, epochs=5, verbose=0, callbacks=[sampling]).history
  assert history['accuracy'][-1] > 0.95
  assert sampling.posterior.evaluate(x, y)['accuracy'] > 0.95
  assert sampling.num_steps == 4


@pytest.mark.slow
def test_draws_keep_their_statistics(tmp_path):
  x, y = series()
  model = network()
  model.run_eagerly = True
  sampling = models.make_sampling(
      STAY, num_examples=None, directory=tmp_path / 'draws')
  model.fit(x, y, batch_size=30, verbose=0, callbacks=[sampling])
  posterior = sampling.posterior
  before = posterior.predict(x)
  np.testing.assert_allclose(before, model.predict(x, verbose=0), atol=1e-5)
  model.fit(x, y, verbose=0)
  changed = statistics_of(model)
  np.testing.assert_allclose(posterior.predict(x), before, atol=1e-6)
  posterior.save(tmp_path / 'copy')
  for directory in 'draws', 'copy':
    again = sgmcmc.keras.PosteriorSamples.load(
        tmp_path / directory, network())
    np.testing.assert_allclose(again.predict(x), before, atol=1e-6)
  (path, *_) = posterior.export_weights(tmp_path / 'weights')
  for a, b in zip(statistics_of(model), changed):
    np.testing.assert_array_equal(a, b)
  model.load_weights(path)
  np.testing.assert_allclose(model.predict(x, verbose=0), before, atol=1e-5)


def test_draws_without_statistics_are_read_as_before():
  x, _ = series()
  model = network()
  weights = [v.numpy()[np.newaxis] for v in model.trainable_variables]
  posterior = sgmcmc.keras.PosteriorSamples.from_arrays(model, weights)
  np.testing.assert_allclose(
      posterior.predict(x), model.predict(x, verbose=0), atol=1e-5)


def test_each_batch_of_a_generator_makes_a_step():
  x, y = series()
  model = network()
  model.run_eagerly = True
  sampling = models.make_sampling(STAY, num_examples=120)

  def batches():
    for k in range(0, 120, 20):
      yield x[k:k + 20], y[k:k + 20]

  model.fit(batches(), verbose=0, callbacks=[sampling])
  assert sampling.num_steps == 6
