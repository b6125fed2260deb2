"""Seeds as the drivers take them."""

import operator
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp


def to_stateless(seed: Any) -> tf.Tensor:
  """A stateless seed, `int32[2]`; the same for the same integer.

  Args:
    seed: Integer below 2^63, which stands for its high and low 32 bits, so a
      small one for `[0, seed]`; a stateless seed; or None, to take one from
      TensorFlow's global generator.

  Returns:
    seed: `int32[2]` tensor.

  Raises:
    ValueError: If an integer is out of its range.

  #### Examples

  >>> to_stateless(5).numpy().tolist()
  [0, 5]
  """
  if seed is None or isinstance(seed, (list, tuple)) or tf.is_tensor(seed):
    return tfp.random.sanitize_seed(seed)
  try:
    value = operator.index(seed)
  except TypeError:
    return tfp.random.sanitize_seed(seed)
  if not 0 <= value < 2**63:
    raise ValueError(f'seed is {value}: it has to be at least 0, below 2^63.')
  return tf.reverse(tf.bitcast(tf.constant(value, tf.int64), tf.int32), [0])
