"""Words of 32 bits, and shifts of words of any length."""

import tensorflow as tf


def constant(value: int) -> tf.Tensor:
  """The last 32 bits of a Python `int`, `uint32`."""
  return tf.constant(value & 0xFFFFFFFF, tf.uint32)


def left(x: tf.Tensor, distance: int) -> tf.Tensor:
  """An integer tensor's bits moved to the left."""
  return tf.bitwise.left_shift(x, tf.constant(distance, x.dtype))


def right(x: tf.Tensor, distance: int) -> tf.Tensor:
  """An integer tensor's bits moved to the right."""
  return tf.bitwise.right_shift(x, tf.constant(distance, x.dtype))
