"""Seeds as the drivers take them."""

import operator
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal import hints

_WANTED = (
    'a seed is two integers, such as [0, 1] (where a driver takes it, one '
    'integer too)')


def check(seed: tf.Tensor) -> tf.Tensor:
  """A stateless seed as an `int32[2]` tensor.

  Args:
    seed: Two integers.

  Returns:
    seed: `int32[2]` tensor.

  Raises:
    TypeError: If it is not of integers.
    ValueError: If there are not two of them.
  """
  if any(tf.is_tensor(word) for word in tf.nest.flatten(seed)):
    seed = tf.convert_to_tensor(seed)
  if not tf.is_tensor(seed):
    array = np.asarray(seed)
    if not np.issubdtype(array.dtype, np.integer):
      raise TypeError(f'seed is {seed!r}: {_WANTED}.')
    seed = tf.convert_to_tensor(array, tf.int32)
  if not seed.dtype.is_integer:
    raise TypeError(f'seed is a tensor of dtype {seed.dtype.name}: {_WANTED}.')
  if not seed.shape.is_compatible_with([2]):
    raise ValueError(f'seed has shape {tuple(seed.shape)}: {_WANTED}.')
  return seed if seed.dtype == tf.int32 else tf.cast(seed, tf.int32)


def sanitize(seed: hints.Seed) -> tf.Tensor:
  """A stateless seed of what `tfp.mcmc` takes for one.

  Args:
    seed: A stateless seed; or an integer or None, to take one from TensorFlow's
      global generator.

  Returns:
    seed: `int32[2]` tensor.

  Raises:
    TypeError: If it is none of these.
    ValueError: If it has a wrong shape.
  """
  if seed is None or _is_index(seed):
    return tfp.random.sanitize_seed(seed)
  return check(seed)


def to_stateless(seed: Any) -> tf.Tensor:
  """A stateless seed, `int32[2]`; the same for the same integer.

  Args:
    seed: Integer below 2^63, which stands for its high and low 32 bits, so a
      small one for `[0, seed]`; a stateless seed; or None, to take one from
      TensorFlow's global generator.

  Returns:
    seed: `int32[2]` tensor.

  Raises:
    TypeError: If it is none of these.
    ValueError: If an integer is out of its range, or a stateless seed does not
      have two integers.

  #### Examples

  >>> to_stateless(5).numpy().tolist()
  [0, 5]
  """
  if seed is None or not _is_index(seed):
    return sanitize(seed)
  value = operator.index(seed)
  if not 0 <= value < 2**63:
    raise ValueError(f'seed is {value}: it has to be at least 0, below 2^63.')
  return tf.reverse(tf.bitcast(tf.constant(value, tf.int64), tf.int32), [0])


def _is_index(seed):
  """Whether it is one integer, no array of them."""
  if tf.is_tensor(seed) or np.ndim(seed):
    return False
  try:
    operator.index(seed)
  except TypeError:
    return False
  return True
