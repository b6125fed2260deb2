"""Keras models that benchmarks train."""

from collections.abc import Callable
from collections.abc import Sequence

import keras

layers = keras.layers


def perceptron(*hidden: int) -> keras.Sequential:
  """784-...-10, with hidden layers of these widths, of 100 where none."""
  return keras.Sequential([
      keras.Input([784]),
      *(layers.Dense(width, activation='relu') for width in hidden or (100,)),
      layers.Dense(10)])


def convolutional() -> keras.Sequential:
  """That of the EWSG paper: 5x5x32 and 5x5x64, pools of 2x2, 200, 200, 10."""
  return keras.Sequential([
      keras.Input([784]),
      layers.Reshape([28, 28, 1]),
      layers.Conv2D(32, 5, activation='relu'),
      layers.MaxPooling2D(2),
      layers.Conv2D(64, 5, activation='relu'),
      layers.MaxPooling2D(2),
      layers.Flatten(),
      layers.Dense(200, activation='relu'),
      layers.Dense(200, activation='relu'),
      layers.Dense(10)])


def mobile_net(size: int = 64) -> keras.Model:
  """MobileNetV2 of width 0.35 for ten classes, from random weights."""
  body = keras.applications.MobileNetV2(
      input_shape=(size, size, 3), alpha=0.35, include_top=False, weights=None,
      pooling='avg')
  return keras.Sequential([body, layers.Dense(10)])


def regression(num_features: int, hidden: Sequence[int]) -> keras.Sequential:
  """A perceptron of a table, which learns a mean and a scale."""
  return keras.Sequential([
      keras.Input([num_features]),
      *(layers.Dense(units, activation='relu') for units in hidden),
      layers.Dense(2)])


def resnet20(
    make_norm: Callable[[], keras.Layer] = lambda: layers.GroupNormalization(8),
) -> keras.Model:
  """He et al.'s network for images of 32 by 32, with group normalisation."""
  def convolve(x, filters, size=3, strides=1):
    return layers.Conv2D(
        filters, size, strides, padding='same', use_bias=False)(x)

  inputs = keras.Input([32, 32, 3])
  x = layers.ReLU()(make_norm()(convolve(inputs, 16)))
  for filters, strides in (
      (16, 1), (16, 1), (16, 1), (32, 2), (32, 1), (32, 1), (64, 2), (64, 1),
      (64, 1)):
    y = layers.ReLU()(make_norm()(convolve(x, filters, 3, strides)))
    y = make_norm()(convolve(y, filters))
    if strides > 1:
      x = convolve(x, filters, 1, strides)
    x = layers.ReLU()(layers.Add()([x, y]))
  return keras.Model(
      inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def named(name: str) -> keras.Model:
  """`'convolutional'`, `'mobile_net'`, `'resnet20'`, or widths: `'256-256'`."""
  if name in ('convolutional', 'mobile_net', 'resnet20'):
    return globals()[name]()
  return perceptron(*map(int, name.split('-')))
