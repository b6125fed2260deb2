"""How many products a row takes."""

import keras
import pytest
import tensorflow as tf

from tfp_sgmcmc.keras.model import products as products_lib


class Encoder(keras.layers.Layer):
  """A layer of layers, which Keras has no graph of."""

  def __init__(self):
    super().__init__()
    self._convolution = keras.layers.Conv2D(3, 3)
    self._pool = keras.layers.GlobalMaxPooling2D()

  def build(self, shape):
    self._convolution.build(shape)

  def call(self, x):
    return self._pool(self._convolution(x))


def several_outputs():
  inputs = keras.Input([14, 14, 1])
  hidden = keras.layers.Flatten()(
      keras.layers.Conv2D(2, 3, strides=2, padding='same')(inputs))
  image = keras.layers.Conv2DTranspose(3, 3, padding='same')(inputs)
  return keras.Model(inputs, [keras.layers.Dense(4)(hidden), image])


@pytest.mark.parametrize('layers, products', [
    ([keras.layers.Conv2D(3, 3), keras.layers.BatchNormalization(),
      keras.layers.GlobalMaxPooling2D()], 12 * 12 * 9 * 3),
    ([Encoder()], 12 * 12 * 9 * 3),
    ([keras.layers.SeparableConv2D(4, 3), keras.layers.Flatten()],
     12 * 12 * (9 + 4)),
    ([keras.layers.Reshape([14, 14]), keras.layers.Conv1D(5, 3),
      keras.layers.Flatten()], 12 * 14 * 3 * 5),
    ([keras.layers.Reshape([7, 2, 14, 1]), keras.layers.TimeDistributed(
        keras.Sequential([
            keras.Input([2, 14, 1]), keras.layers.Conv2D(3, 2)])),
      keras.layers.Flatten()], 7 * 13 * 4 * 3),
    (several_outputs, 49 * 9 * 2 + 98 * 4 + 196 * 9 * 3),
    # The weights of a dense layer, used once or at each place.
    ([keras.layers.Flatten(), keras.layers.Dense(5)], 14 * 14 * 5),
    ([keras.layers.Dense(5), keras.layers.Flatten()], 14 * 14 * 5),
    # It is not known, or there are loops.
    ([keras.layers.Reshape([14, 14]), keras.layers.Conv1D(5, 3),
      keras.layers.GRU(3)], None),
    ([keras.layers.Reshape([14, 7, 2, 1]), keras.layers.Conv3D(5, 2),
      keras.layers.Flatten()], None),
])
def test_of_convolutions(layers, products):
  model = layers() if callable(layers) else keras.Sequential(
      [keras.Input([14, 14, 1]), *layers])
  arrays = [tf.zeros([3, 14, 14, 1]), tf.zeros([3, 1])]
  assert products_lib.a_row(model, arrays) == products


def of_words(length, *layers):
  return keras.Sequential([
      keras.Input([length]), keras.layers.Embedding(50, 8), *layers,
      keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2)])


@pytest.mark.parametrize('length', [20, None])
def test_of_words(length):
  """A number that is looked up counts as eight products."""
  arrays = [tf.zeros([3, 20], tf.int32), tf.zeros([3], tf.int32)]
  lookup, last = 8 * 20 * 8, 8 * 2
  assert products_lib.a_row(of_words(length), arrays) == lookup + last
  recurrent = of_words(
      length, keras.layers.GRU(3, return_sequences=True),
      keras.layers.Conv1D(4, 2))
  assert products_lib.a_row(recurrent, arrays) is None
  assert products_lib.at_most(
      recurrent, arrays) == 20 * recurrent.count_params()


def test_of_a_model_without_products():
  model = keras.Sequential([
      keras.Input([4, 2]), keras.layers.LayerNormalization()])
  assert products_lib.a_row(model, [tf.zeros([3, 4, 2])]) == 1


def test_of_attention():
  inputs = keras.Input([6, 8])
  outputs = keras.layers.MultiHeadAttention(2, 3)(inputs, inputs)
  model = keras.Model(inputs, keras.layers.Flatten()(outputs))
  projections, products = 4 * 6 * 8 * 2 * 3, 2 * 2 * 6 * 6 * 3
  assert products_lib.a_row(
      model, [tf.zeros([3, 6, 8])]) == projections + products


def test_of_a_table():
  """Several inputs, and a layer that is not in a graph of layers."""
  inputs = [keras.Input([3]), keras.Input([2])]
  model = keras.Model(inputs, keras.layers.Dense(4)(
      keras.layers.Concatenate()(inputs)))
  arrays = [tf.zeros([9, 3]), tf.zeros([9, 2]), tf.zeros([9, 4])]
  assert products_lib.a_row(model, arrays) == model.count_params()
  assert products_lib.at_least(model) == 20
  assert products_lib.at_most(model, arrays) == model.count_params()
