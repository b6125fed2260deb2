"""What is asked of models and optimizers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
from tfp_sgmcmc.keras.model import network


class Noisy(keras.layers.Layer):
  """Adds a loss and counts the examples; noise in training alone."""

  def build(self, shape):
    self.scale = self.add_weight(name='scale', shape=[])
    self.counted = keras.metrics.Sum(name='counted')

  def call(self, x, training=False):
    self.counted.update_state(tf.shape(x)[0])
    self.add_loss(0.1 * keras.ops.mean(x**2))
    return self.scale * x + (1000. if training else 0.)


def noisy_model():
  keras.utils.set_random_seed(0)
  model = keras.Sequential([
      keras.Input([4]), Noisy(),
      keras.layers.Dense(3, kernel_regularizer='l2')])
  model.compile('sgd', models.classifier().loss)
  return model


def test_forward_runs_as_for_prediction_and_changes_nothing():
  x, _ = models.classes()
  model = noisy_model()
  before = [w.copy() for w in model.get_weights()]
  weights = [tf.constant(w) + 0.5 for w in network.values(
      model.trainable_variables)]
  made = network.forward(model, x, weights)
  scale, kernel, bias = (w.numpy() for w in weights)
  np.testing.assert_allclose(
      made.outputs, scale * x @ kernel + bias, rtol=1e-4, atol=1e-5)
  added = 0.1 * np.mean(x**2)
  np.testing.assert_allclose(made.layer_losses, [added], rtol=1e-5)
  np.testing.assert_allclose(
      sum(made.penalties), added + 0.01 * np.sum(kernel**2), rtol=1e-5)
  again = network.forward(model, x, weights, made.updates)
  for counted, pass_made in ((50., made), (100., again)):
    ((_, value),) = pass_made.updates
    assert value == counted
  for a, b in zip(model.get_weights(), before):
    np.testing.assert_array_equal(a, b)


def test_mean_loss_is_that_of_evaluate():
  x, y = models.classes()
  weights = np.linspace(0.5, 2., len(y)).astype(np.float32)
  model = noisy_model()
  made = network.forward(
      model, x, [tf.convert_to_tensor(v) for v in model.trainable_variables])
  loss, updates = network.mean_loss(model, (x, y, weights), made)
  wanted = model.evaluate(
      x, y, sample_weight=weights, batch_size=50, verbose=0, return_dict=True)
  assert np.isclose(loss, wanted['loss'], rtol=1e-5) and not updates


def test_loss_tracker_is_new_after_compile():
  model = models.classifier()
  tracker = network.loss_tracker(model)
  assert tracker.name == 'loss' and network.loss_tracker(model) is tracker
  model.compile('sgd', model.loss)
  assert network.loss_tracker(model) is not tracker


def test_layers_of_models_within_the_model():
  inner = keras.Sequential([keras.Input([4]), keras.layers.Dense(4, name='a')])
  model = keras.Sequential([
      keras.Input([4]), inner, keras.layers.Dense(3, name='b')])
  assert {'a', 'b', inner.name} <= {x.name for x in network.layers(model)}


def test_weights_are_put_back_after_an_exception():
  variables = [tf.Variable([1., 2.]), tf.Variable(3.)]
  with pytest.raises(RuntimeError):
    with network.put_back(variables) as kept:
      network.assign(variables, [[0., 0.], 0.])
      assert float(variables[1]) == 0.
      raise RuntimeError
  for variable, value in zip(variables, kept):
    np.testing.assert_array_equal(variable, value)
  assert float(variables[1]) == 3.


def test_optimizers():
  plain = keras.optimizers.SGD(0.1)
  assert float(network.learning_rate(plain)) == np.float32(0.1)
  assert not network.has_moving_average(plain)
  averaged = keras.optimizers.LossScaleOptimizer(
      keras.optimizers.SGD(0.1, use_ema=True))
  assert network.has_moving_average(averaged)
  scheduled = keras.optimizers.SGD(
      keras.optimizers.schedules.CosineDecay(0.1, 10))
  assert network.learning_rate(scheduled) is None
  assert network.learning_rate(None) is None
