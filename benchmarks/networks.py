"""Keras models that benchmarks train."""

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


def named(name: str) -> keras.Model:
  """`'convolutional'`, `'mobile_net'`, or widths such as `'256-256'`."""
  if name in ('convolutional', 'mobile_net'):
    return globals()[name]()
  return perceptron(*map(int, name.split('-')))
