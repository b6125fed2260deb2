"""Random indices of examples, of all or of each stratum.

`random` has the functions that others call.
"""

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import permutation
from tfp_sgmcmc.internal import threefry
from tfp_sgmcmc.internal import word32


@threefry.compiled
def with_replacement(
    shape: tf.Tensor,
    seed: tf.Tensor,
    *,
    num_examples: int,
    columns: int | None,
) -> tf.Tensor:
  """Independent indices below `num_examples`, `int32`."""
  # The bias is below N / 2^64.
  high, low = threefry.words(shape, seed, 0, columns)
  index = _below(high, low, tf.constant(num_examples, tf.uint64))
  return _computed_once(index, num_examples)


@threefry.compiled
def without_replacement(
    shape: tf.Tensor,
    seed: tf.Tensor,
    *,
    num_examples: int,
    columns: int | None,
) -> tf.Tensor:
  """Indices that are distinct along the last axis, `int32`."""
  batch_size = shape[-1]
  keys = [
      word[..., tf.newaxis]
      for word in threefry.words(shape[:-1], seed, 0, columns)]
  positions = tf.bitcast(tf.range(batch_size), tf.uint32)
  index = permutation.permute(positions, keys, num_examples)
  return _computed_once(tf.bitcast(index, tf.int32), num_examples)


@threefry.compiled
def of_strata_with_replacement(
    shape: tf.Tensor,
    seed: tf.Tensor,
    sizes: tf.Tensor,
    *,
    columns: int | None,
) -> tf.Tensor:
  """Independent indices, each below the size of its own stratum."""
  high, low = threefry.words(shape, seed, 0, columns)
  return _computed_once(_below(high, low, tf.cast(sizes, tf.uint64)), sizes)


@threefry.compiled
def of_strata_without_replacement(
    shape: tf.Tensor,
    seed: tf.Tensor,
    strata: tf.Tensor,
    positions: tf.Tensor,
    sizes: tf.Tensor,
    a: tf.Tensor,
    b: tf.Tensor,
    *,
    num_strata: int,
    num_rounds: int,
    columns: int | None,
) -> tf.Tensor:
  """Indices that are distinct within each stratum.

  Args:
    shape: The result's: chains, then all strata side by side.
    seed: Stateless seed, `int32[2]`.
    strata: Of each index along the last axis its stratum.
    positions: Likewise, its place in the stratum's permutation.
    sizes: Likewise, the stratum's size.
    a: Likewise, a side of the permutation's rectangle.
    b: Likewise, the other side.
    num_strata: Python `int`.
    num_rounds: Python `int`, rounds of the permutation.
    columns: See `threefry.columns_of`.

  Returns:
    indices: `int32` tensor.
  """
  keys = [
      tf.gather(word, strata, axis=-1) for word in threefry.words(
          tf.concat([shape[:-1], [num_strata]], axis=0), seed, 0, columns)]
  n, a, b = (tf.bitcast(t, tf.uint32) for t in (sizes, a, b))
  index = permutation.with_odd_orders(
      permutation.on_rectangles(
          tf.bitcast(positions, tf.uint32), keys, n, a, b, num_rounds),
      keys, n, a * b)
  return _computed_once(tf.bitcast(index, tf.int32), sizes)


def _below(high, low, n):
  """floor(n w / 2^64) for the 64-bit words w = (high, low)."""
  high, low = (tf.cast(word, tf.uint64) for word in (high, low))
  return tf.cast(
      word32.right(high * n + word32.right(low * n, 32), 32), tf.int32)


def _computed_once(index, num_examples):
  """Indices below `num_examples`, as they are.

  XLA on CPU fuses all that it takes for cheap with the gather that comes next,
  and would draw an index anew for each number of its row. It does not take a
  remainder for cheap: with one here, a step of 1,000 chains on rows of 20
  numbers takes half the time.
  """
  return tf.truncatemod(index, num_examples)


def check_distinct(shape: tf.Tensor, num_examples: int) -> None:
  """Raises where so many examples have no set of distinct indices."""
  sizes = tf.get_static_value(shape, partial=True)
  if sizes is None:
    return
  if not len(sizes):
    raise ValueError(
        'shape is []: it needs an axis along which the indices are distinct. '
        'A single index has shape [1].')
  if sizes[-1] is not None and sizes[-1] > num_examples:
    raise ValueError(
        f'{sizes[-1]} distinct indices are asked for, and there are '
        f'{num_examples} examples. Ask for at most so many, or pass '
        'replacement=True for indices that may repeat.')


def check_strata(
    sizes: np.ndarray, numbers: np.ndarray, replacement: bool) -> None:
  """Raises where one of several strata cannot be drawn from."""
  for name, array in (('sizes', sizes), ('numbers', numbers)):
    if not np.issubdtype(array.dtype, np.integer):
      raise TypeError(f'{name} is {array}: it has to be of Python integers.')
  if not sizes.size or sizes.ndim != 1 or sizes.shape != numbers.shape:
    raise ValueError(
        f'sizes has shape {sizes.shape} and numbers {numbers.shape}: both need '
        'an entry for each stratum, of which there is one at least.')
  most = 2**30 if replacement else sizes
  is_bad = (sizes < 1) | (sizes > 2**30) | (numbers < 0) | (numbers > most)
  if np.any(is_bad):
    k = np.argmax(is_bad)
    raise ValueError(
        f'{numbers[k]} indices are asked for in stratum {k}, which has '
        f'{sizes[k]} examples: it has to have 1 to 2^30, and as many as are '
        'asked for, or pass replacement=True for indices that may repeat.')
