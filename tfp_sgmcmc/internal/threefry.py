"""Threefry-2x32 [1], and words of it in shapes, as XLA is fast with them.

`random` has the functions that others call.

#### References

[1]: John K. Salmon, Mark A. Moraes, Ron O. Dror, David E. Shaw. Parallel
     Random Numbers: As Easy as 1, 2, 3. _SC_, 2011.
"""

from collections.abc import Callable
import functools
import math

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import seeds
from tfp_sgmcmc.internal import word32

MAX_COLUMNS = 4096
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_KEY_PARITY = 0x1BD11BDA


def threefry_2x32(
    key: tuple[tf.Tensor, tf.Tensor],
    counter: tuple[tf.Tensor, tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor]:
  """Encrypts counters with Threefry-2x32, 20 rounds.

  Args:
    key: Pair of `uint32` tensors that broadcast with the counters.
    counter: Pair of `uint32` tensors.

  Returns:
    words: Pair of `uint32` tensors.

  #### Examples

  >>> zero = tf.constant(0, tf.uint32)
  >>> [hex(word) for word in threefry_2x32((zero, zero), (zero, zero))]
  ['0x6b200159', '0x99ba4efe']
  """
  keys = (key[0], key[1], key[0] ^ key[1] ^ word32.constant(_KEY_PARITY))
  x, y = counter[0] + keys[0], counter[1] + keys[1]
  for block in range(5):
    for rotation in _ROTATIONS[block % 2]:
      x = x + y
      y = x ^ (word32.left(y, rotation) | word32.right(y, 32 - rotation))
    x = x + keys[(block + 1) % 3]
    y = y + keys[(block + 2) % 3] + word32.constant(block + 1)
  return x, y


def encrypt(
    counter: tf.Tensor,
    seed: tf.Tensor,
    stream: int,
) -> tuple[tf.Tensor, tf.Tensor]:
  """Both words of the counters `(counter, stream)`."""
  return threefry_2x32(
      tf.unstack(tf.bitcast(seed, tf.uint32), 2),
      (counter, word32.constant(stream)))


def words(
    shape: tf.Tensor,
    seed: tf.Tensor,
    stream: int,
    columns: int | None,
) -> tuple[tf.Tensor, tf.Tensor]:
  """Both words of counters `(0, stream), (1, stream), ...`, in `shape`."""
  size = tf.reduce_prod(shape)
  i = tf.range(size) if columns is None else compat.positions(size)
  return encrypt(tf.bitcast(tf.reshape(i, shape), tf.uint32), seed, stream)


def columns_of(shape: hints.Shape) -> int | None:
  """Number of columns to store as a constant: None = all, 1 = none.

  All where there are few, or where the program is of these numbers alone; the
  last axis where its length is even.
  """
  if not compat.in_xla_context():
    return None
  sizes = tf.get_static_value(to_shape(shape))
  if sizes is None or math.prod(sizes) <= MAX_COLUMNS:
    return None
  last = int(sizes[-1])
  return 1 if last % 2 or last > MAX_COLUMNS else last


def counters(
    shape: tf.Tensor, columns: int | None) -> tuple[tf.Tensor, tf.Tensor]:
  """`i // 2`, and whether i is even, for i = 0, 1, ... as rows of `columns`.

  What is the same in each row is a literal: XLA's loop on CPU takes 2/3 of the
  time of one that computes it. With a single column, for shapes which do not
  divide so, it is computed; None is for one row of all.
  """
  size = tf.reduce_prod(shape)
  if columns == 1:
    i = tf.bitcast(compat.positions(size), tf.uint32)
    return word32.right(i, 1), i & word32.constant(1) == 0
  i = tf.bitcast(tf.range(size if columns is None else columns), tf.uint32)
  counter, is_first = word32.right(i, 1), i & word32.constant(1) == 0
  if columns is None:
    return counter, is_first
  rows = tf.reshape(compat.positions(size // columns), [size // columns, 1])
  return tf.bitcast(rows * (columns // 2), tf.uint32) + counter, is_first


def word_of(
    counter: tf.Tensor,
    is_first: tf.Tensor,
    seed: tf.Tensor,
    stream: int,
) -> tf.Tensor:
  """The first or the second word of a counter, each computed alone.

  Each counter is encrypted twice, once for each of its two words. XLA's loop on
  CPU is still faster than with one counter a word: it takes 3/4 of the time.
  """
  return tf.where(is_first, *encrypt(counter, seed, stream))


def first_53_bits(high: tf.Tensor, low: tf.Tensor) -> tf.Tensor:
  """The first 53 bits of two words, as many as a float64 holds, `int64`."""
  word = word32.left(tf.cast(high, tf.uint64), 32) | tf.cast(low, tf.uint64)
  return tf.cast(word32.right(word, 11), tf.int64)


def compiled(fn: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
  """Makes `fn(shape, seed, *tensors, **static)` run under XLA where it can.

  Eager calls are fast by that, and round as compiled ones do.
  """
  @functools.cache
  def program(jit_compile, **static):
    return tf.function(
        functools.partial(fn, **static), jit_compile=jit_compile,
        autograph=False)

  @tf.autograph.experimental.do_not_convert
  @functools.wraps(fn)
  def wrapper(shape, seed, *tensors, **static):
    shape = to_shape(shape)
    seed = seeds.check(seed)
    # In a program that XLA compiles anyway, an ordinary function that is traced
    # once; elsewhere one that XLA compiles on its own, where it can.
    call = program(
        None if compat.in_xla_context() else compat.jit_compile(), **static)
    return tf.reshape(call(shape, seed, *tensors), shape)

  return wrapper


def to_shape(shape: hints.Shape) -> tf.Tensor:
  """A shape as an `int32` tensor; raises where no numbers can have it."""
  try:
    shape = tf.convert_to_tensor(shape, tf.int32)
  except (TypeError, ValueError) as error:
    raise TypeError(
        f'shape is {checks.shorten(shape)}: it has to be a list of integers, '
        'each below 2^31.') from error
  sizes = tf.get_static_value(shape, partial=True)
  if sizes is None:
    return shape
  if np.ndim(sizes) != 1:
    raise ValueError(
        f'shape is {int(sizes)}: it has to be a list of integers; one axis of '
        f'that length is [{int(sizes)}].' if np.ndim(sizes) == 0 else
        f'shape has shape {np.shape(sizes)}: it has to be a list of integers.')
  known = [int(size) for size in sizes if size is not None]
  if any(size < 0 for size in known):
    raise ValueError(
        f'shape is {known}: no axis can have a negative length.')
  if len(known) == len(sizes) and math.prod(known) >= 2**31:
    raise ValueError(
        f'shape is {known}, {math.prod(known):,} numbers, and fewer than 2^31 '
        'are drawn at once: draw them in pieces, each with a seed of its own '
        '(fold_in).')
  return shape
