"""One counter-based random generator: the same numbers on every device.

Threefry-2x32 with 20 rounds [1], written in integer TensorFlow operations. The
key is a stateless seed (`int32[2]`); random word `i` of stream `s` is the first
word of the encryption of the counter `(i, s)`, and normal numbers `2 i` and
`2 i + 1` are quantiles at its two words. There is no state, so each number can
be computed alone, and the bits are the same in eager mode, in a graph and under
XLA, on CPU, GPU and TPU: by construction, from integer operations; tried on
CPUs.

It is here because TensorFlow's own stateless generators of floats, and so TFP's
distributions, draw other numbers under XLA than outside.

XLA fuses these functions with whatever consumes the numbers into one loop,
which is what makes a sampler's step cheap. Outside XLA each call runs as a
small compiled function of its own; as a plain one where TensorFlow has no XLA
compiler for the host, as in the package `tensorflow-tpu`.

Shapes are lists or tensors of integers, of fewer than 2^31 elements. Seeds are
`int32[2]` tensors, as made by `tfp.random.sanitize_seed`.

#### References

[1]: John K. Salmon, Mark A. Moraes, Ron O. Dror, David E. Shaw. Parallel
     Random Numbers: As Easy as 1, 2, 3. _SC_, 2011.
"""

from collections.abc import Sequence
import functools
import math

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import permutation
from tfp_sgmcmc.internal import seeds
from tfp_sgmcmc.internal import word32

__all__ = [
    'bits',
    'fold_in',
    'indices',
    'indices_of_strata',
    'normal',
    'normal_like',
    'threefry_2x32',
    'uniform',
]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_KEY_PARITY = 0x1BD11BDA
_FOLD_STREAM = 0xFFFFFFFF
_MAX_COLUMNS = 4096
# Of `normal_like`: numbers in a row, and of what each part's place is a
# multiple, so that it is a view of the whole and no copy (64 bytes).
_ROW = 1024
_ALIGNMENT = 16

# Coefficients of 1, w, w^2, ... in `_quantile`, minimax for 0 <= w <= 23 log 2.
_NUMERATOR = (
    1.2533141374588013, 0.43339622020721436, 0.08424118161201477,
    0.010978078469634056, 0.0009103366755880415, 3.4441760362824425e-05)
_DENOMINATOR = (
    1., 0.08400111645460129, 0.032189659774303436, 0.001874831272289157,
    0.0001796918222680688, 1.2939651696797227e-06)


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


def _to_shape(shape):
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


def _columns(shape):
  """Number of columns to store as a constant: None = all, 1 = none.

  All where there are few, or where the program is of these numbers alone; the
  last axis where its length is even.
  """
  if not compat.in_xla_context():
    return None
  sizes = tf.get_static_value(_to_shape(shape))
  if sizes is None or math.prod(sizes) <= _MAX_COLUMNS:
    return None
  last = int(sizes[-1])
  return 1 if last % 2 or last > _MAX_COLUMNS else last


def _words(shape, seed, stream, columns):
  """Both words of counters `(0, stream), (1, stream), ...`, in `shape`."""
  size = tf.reduce_prod(shape)
  i = tf.range(size) if columns is None else compat.positions(size)
  return _encrypt(tf.bitcast(tf.reshape(i, shape), tf.uint32), seed, stream)


def _encrypt(counter, seed, stream):
  """Both words of the counters `(counter, stream)`."""
  return threefry_2x32(
      tf.unstack(tf.bitcast(seed, tf.uint32), 2),
      (counter, word32.constant(stream)))


def _compiled(fn):
  """Makes `fn(shape, seed, *tensors, **static)` run under XLA where it can.

  Eager calls are fast by that, and round as compiled ones do.
  """
  @functools.cache
  def compiled(jit_compile, **static):
    return tf.function(
        functools.partial(fn, **static), jit_compile=jit_compile,
        autograph=False)

  @tf.autograph.experimental.do_not_convert
  @functools.wraps(fn)
  def wrapper(shape, seed, *tensors, **static):
    shape = _to_shape(shape)
    seed = seeds.check(seed)
    # In a program that XLA compiles anyway, an ordinary function that is traced
    # once; elsewhere one that XLA compiles on its own, where it can.
    call = compiled(
        None if compat.in_xla_context() else compat.jit_compile(), **static)
    return tf.reshape(call(shape, seed, *tensors), shape)

  return wrapper


@_compiled
def _bits(shape, seed, *, stream, columns):
  return _words(shape, seed, stream, columns)[0]


@_compiled
def _uniform(shape, seed, *, dtype, stream, columns):
  first, second = _words(shape, seed, stream, columns)
  if dtype == tf.float64:
    return tf.cast(_53_bits(first, second), dtype) * 2.**-53
  return tf.cast(tf.cast(word32.right(first, 8), tf.int32), dtype) * 2.**-24


@_compiled
def _normal(shape, seed, offset, *, dtype, stream, columns):
  counter, is_first = _counters(shape, columns)
  counter += tf.bitcast(offset // 2, tf.uint32)
  word = _word(counter, is_first, seed, stream)
  if dtype != tf.float64:
    return _quantile(word)
  # The first 32 bits are the word that float32 uses, so that both dtypes draw
  # the same number up to rounding. k 2^-53 is the midpoint of one of 2^53 equal
  # cells of (-1, 1): never an end point, so that erfinv is finite.
  k = 2 * _53_bits(word, _word(
      counter | word32.constant(1 << 30), is_first, seed, stream)) + (1 - 2**53)
  return tf.math.erfinv(tf.cast(k, dtype) * 2.**-53) * math.sqrt(2.)


def _counters(shape, columns):
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


def _word(counter, is_first, seed, stream):
  """The first or the second word of a counter, each computed alone.

  Each counter is encrypted twice, once for each of its two words. XLA's loop on
  CPU is still faster than with one counter a word: it takes 3/4 of the time.
  """
  return tf.where(is_first, *_encrypt(counter, seed, stream))


def _quantile(word):
  """The standard normal quantile at the midpoint of one of 2^24 equal cells.

  With the midpoint of (0, 1) at (1 + x) / 2 and w = -log(1 - x^2), it is x R(w)
  for a rational R, to a relative 3e-7 over all cells.
  """
  k = 2 * tf.cast(word32.right(word, 8), tf.int32) + (1 - 2**24)
  x = tf.cast(k, tf.float32) * 2.**-24
  tail = 1. - tf.abs(x)
  w = -tf.math.log(tail * (2. - tail))
  numerator, denominator = (
      functools.reduce(lambda total, c: total * w + c, coefficients[::-1])
      for coefficients in (_NUMERATOR, _DENOMINATOR))
  return x * (numerator / denominator)


def _53_bits(high, low):
  """The first 53 bits of two words, as many as a float64 holds, `int64`."""
  word = word32.left(tf.cast(high, tf.uint64), 32) | tf.cast(low, tf.uint64)
  return tf.cast(word32.right(word, 11), tf.int64)


@_compiled
def _indices_with_replacement(shape, seed, *, num_examples, columns):
  # The bias is below N / 2^64.
  high, low = _words(shape, seed, 0, columns)
  index = _below(high, low, tf.constant(num_examples, tf.uint64))
  return _computed_once(index, num_examples)


def _below(high, low, n):
  """floor(n w / 2^64) for the 64-bit words w = (high, low)."""
  high, low = (tf.cast(word, tf.uint64) for word in (high, low))
  return tf.cast(
      word32.right(high * n + word32.right(low * n, 32), 32), tf.int32)


@_compiled
def _indices_without_replacement(shape, seed, *, num_examples, columns):
  batch_size = shape[-1]
  keys = [
      word[..., tf.newaxis] for word in _words(shape[:-1], seed, 0, columns)]
  positions = tf.bitcast(tf.range(batch_size), tf.uint32)
  index = permutation.permute(positions, keys, num_examples)
  return _computed_once(tf.bitcast(index, tf.int32), num_examples)


@_compiled
def _of_strata_with_replacement(shape, seed, sizes, *, columns):
  high, low = _words(shape, seed, 0, columns)
  return _computed_once(_below(high, low, tf.cast(sizes, tf.uint64)), sizes)


@_compiled
def _of_strata_without_replacement(
    shape, seed, strata, positions, sizes, a, b, *, num_strata, num_rounds,
    columns):
  keys = [
      tf.gather(word, strata, axis=-1) for word in _words(
          tf.concat([shape[:-1], [num_strata]], axis=0), seed, 0, columns)]
  n, a, b = (tf.bitcast(t, tf.uint32) for t in (sizes, a, b))
  index = permutation.with_odd_orders(
      permutation.on_rectangles(
          tf.bitcast(positions, tf.uint32), keys, n, a, b, num_rounds),
      keys, n, a * b)
  return _computed_once(tf.bitcast(index, tf.int32), sizes)


def _computed_once(index, num_examples):
  """Indices below `num_examples`, as they are.

  XLA on CPU fuses all that it takes for cheap with the gather that comes next,
  and would draw an index anew for each number of its row. It does not take a
  remainder for cheap: with one here, a step of 1,000 chains on rows of 20
  numbers takes half the time.
  """
  return tf.truncatemod(index, num_examples)


@_compiled
def _fold_in(shape, seed, data):
  low = tf.cast(data & 0xFFFFFFFF, tf.uint32)
  high = tf.cast(word32.right(data, 32), tf.uint32)
  key = tf.unstack(tf.bitcast(seed, tf.uint32), 2)
  words = threefry_2x32(key, (low, word32.constant(_FOLD_STREAM) - high))
  return tf.reshape(tf.bitcast(tf.stack(words), tf.int32), shape)


def bits(shape: hints.Shape, seed: tf.Tensor, stream: int = 0) -> tf.Tensor:
  """Random `uint32` words.

  Args:
    shape: Shape of the result.
    seed: Stateless seed, `int32[2]`.
    stream: Python `int` below 2^31: which of the seed's independent
      streams of numbers.

  Returns:
    words: `uint32` tensor, each word uniform.

  #### Examples

  >>> hex(bits([1], [0, 0])[0])
  '0x6b200159'
  """
  return _bits(shape, seed, stream=stream, columns=_columns(shape))


def uniform(
    shape: hints.Shape,
    seed: tf.Tensor,
    dtype: tf.DType = tf.float32,
    stream: int = 0,
) -> tf.Tensor:
  """Uniform numbers in [0, 1): multiples of 2^-24, of 2^-53 in float64.

  In half precision these are rounded, which may give 1.

  Args:
    shape: Shape of the result.
    seed: Stateless seed, `int32[2]`.
    dtype: Float dtype of the result.
    stream: Python `int`: which of the seed's independent streams.

  Returns:
    uniform: Tensor of `dtype`.

  Raises:
    TypeError: If `dtype` is no float dtype.

  #### Examples

  >>> bool(tf.reduce_all(uniform([1000], [1, 2]) < 1.))
  True
  """
  u = _uniform(
      shape, seed, dtype=_wide(dtype), stream=stream, columns=_columns(shape))
  return tf.cast(u, dtype)


def normal(
    shape: hints.Shape,
    seed: tf.Tensor,
    dtype: tf.DType = tf.float32,
    stream: int = 0,
) -> tf.Tensor:
  """Standard normal numbers, by inversion: one word a number, two in float64.

  The inverse distribution function is taken at midpoints of 2^24 equal cells
  (2^53 in float64), so the largest number is 5.42 (8.29).

  Args:
    shape: Shape of the result.
    seed: Stateless seed, `int32[2]`.
    dtype: Float dtype of the result.
    stream: Python `int`: which of the seed's independent streams.

  Returns:
    normal: Tensor of `dtype`.

  Raises:
    TypeError: If `dtype` is no float dtype.

  #### Examples

  >>> z = normal([100_000], [1, 2])
  >>> bool(abs(tf.math.reduce_std(z) - 1.) < 0.02)
  True
  """
  return _normals_from(0, shape, seed, dtype, stream)


def _normals_from(offset, shape, seed, dtype, stream=0):
  """The stream's normal numbers `offset`, `offset + 1`, ..., in `shape`.

  `offset` is even.
  """
  z = _normal(
      shape, seed, tf.convert_to_tensor(offset, tf.int32), dtype=_wide(dtype),
      stream=stream, columns=_columns(shape))
  return tf.cast(z, dtype)


def _wide(dtype):
  """The dtype to compute in: half precision is rounded at the end."""
  dtype = tf.as_dtype(dtype)
  if not dtype.is_floating:
    raise TypeError(
        f'dtype is {dtype.name}: it has to be a float dtype. Random integers '
        'are drawn by `indices` (in a range) and by `bits` (32-bit words).')
  return tf.float64 if dtype == tf.float64 else tf.float32


def normal_like(
    parts: Sequence[tf.Tensor], seed: tf.Tensor) -> list[tf.Tensor]:
  """Standard normal numbers in the shapes and dtypes of `parts`.

  They are those of `normal` of one long vector, the parts side by side in it.

  Args:
    parts: List of float tensors, of fewer than 2^31 elements in all.
    seed: Stateless seed, `int32[2]`.

  Returns:
    normals: List of tensors, independent of each other.

  Raises:
    TypeError: If a part's dtype is no float dtype.
    ValueError: If there are more elements (where that is known before the graph
      runs).

  #### Examples

  >>> [z.shape for z in normal_like([tf.zeros([3]), tf.zeros([2, 2])], [1, 2])]
  [TensorShape([3]), TensorShape([2, 2])]
  """
  offsets, total = [], 0
  for part in parts:
    offsets.append(total)
    size = compat.size(part)
    total += -(-size // _ALIGNMENT) * _ALIGNMENT
  is_known = isinstance(total, int)
  if is_known and total >= 2**31:
    raise ValueError(
        f'The parts have shapes {[str(part.shape) for part in parts]}, '
        f'{total:,} numbers in all, and normal numbers are drawn for fewer '
        'than 2^31 at once: run fewer chains at a time.')
  if compat.in_xla_context() or not is_known:
    return [
        _normals_from(offset, compat.shape(part), seed, part.dtype)
        for part, offset in zip(parts, offsets)]
  # One compiled call: each costs more than the numbers of a small part.
  flat = {
      dtype: _flat_normals(total, seed, dtype)
      for dtype in {_wide(part.dtype) for part in parts}}
  return [
      tf.cast(
          tf.reshape(
              tf.slice(
                  flat[_wide(part.dtype)], [offset], [part.shape.num_elements()]
              ), part.shape), part.dtype)
      for part, offset in zip(parts, offsets)]


def _flat_normals(size, seed, dtype):
  """`normal` of a vector of that size or more, as XLA on CPU is fast with it.

  Of rows whose pattern is a literal (see `_counters`), which takes half the
  time of a single axis: XLA uses wider vectors where it reads the booleans.
  """
  columns = size if size <= _MAX_COLUMNS else _ROW
  return tf.reshape(_normal(
      [-(-size // columns), columns], seed, tf.zeros([], tf.int32), dtype=dtype,
      stream=0, columns=columns), [-1])


def indices(
    num_examples: int,
    shape: hints.Shape,
    seed: tf.Tensor,
    replacement: bool = False,
) -> tf.Tensor:
  """Random indices of examples, `0 <= index < num_examples`.

  Without replacement the indices along the last axis are distinct: position
  `i` of a keyed pseudo-random permutation of all examples, computed alone.
  All orders of a few examples are equally likely. (Of more than 20 examples
  there are more orders than seeds, 2^64, so that not all of them occur.)
  The cost is O(n) for n indices, whatever `num_examples`.

  Args:
    num_examples: Python `int`, N, at most 2^30.
    shape: Shape of the result, with at least one axis; one set of distinct
      indices along the last axis, an independent one for each leading index.
    seed: Stateless seed, `int32[2]`.
    replacement: Python `bool`: independent indices, which may repeat.

  Returns:
    indices: `int32` tensor of `shape`.

  Raises:
    ValueError: If `num_examples` is below 1 or above 2^30; or if, without
      replacement, `shape` has no axis, or its last one is longer than there are
      examples (checked where it is known before the graph runs).
    TypeError: If `num_examples` is no integer or `replacement` no `bool`.

  #### Examples

  >>> sorted(indices(5, [5], [1, 2]).numpy().tolist())
  [0, 1, 2, 3, 4]
  """
  num_examples = checks.positive_integer('num_examples', num_examples)
  if num_examples > 2**30:
    raise ValueError(
        f'There are {num_examples} examples, and indices are drawn among at '
        'most 2^30. Read larger data with gradients.Stream.')
  if checks.boolean('replacement', replacement):
    return _indices_with_replacement(
        shape, seed, num_examples=num_examples, columns=_columns(shape))
  shape = _to_shape(shape)
  _check_distinct(shape, num_examples)
  return _indices_without_replacement(
      shape, seed, num_examples=num_examples, columns=_columns(shape[:-1]))


def indices_of_strata(
    sizes: Sequence[int] | np.ndarray,
    numbers: Sequence[int] | np.ndarray,
    chains: hints.Shape,
    seed: tf.Tensor,
    replacement: bool = False,
) -> tf.Tensor:
  """Random indices within each of several strata.

  As `indices` for each stratum, in one program whose length does not depend on
  how many strata there are. Without replacement it is as long, and takes as
  long, as the smallest stratum of four examples or more needs: 6 rounds of the
  permutation from about 1,000 examples on, 30 with fewer than nine.

  Args:
    sizes: Python `int`s, N_k, each at most 2^30.
    numbers: Python `int`s, n_k, at most N_k each without replacement.
    chains: Shape of the leading axes: independent indices for each.
    seed: Stateless seed, `int32[2]`.
    replacement: Python `bool`: independent indices, which may repeat.

  Returns:
    indices: `int32` tensor `chains + [sum_k n_k]`: the first n_1 are below N_1,
      those of the first stratum; and so on.

  Raises:
    ValueError: If an N_k is below 1 or above 2^30; if, without replacement, an
      n_k is larger than N_k; or if there are not as many n_k as N_k.
    TypeError: If one is no integer, or `replacement` no `bool`.

  #### Examples

  >>> indices_of_strata([2, 1000], [2, 3], [4], [1, 2]).shape
  TensorShape([4, 5])
  """
  sizes, numbers = np.asarray(sizes), np.asarray(numbers)
  replacement = checks.boolean('replacement', replacement)
  _check_strata(sizes, numbers, replacement)
  chains = _to_shape(chains)
  shape = tf.concat([chains, [int(numbers.sum())]], axis=0)

  def of_each(values):
    return tf.constant(np.repeat(values, numbers), tf.int32)

  if replacement:
    return _of_strata_with_replacement(
        shape, seed, of_each(sizes), columns=_columns(shape))
  a, b, num_rounds = permutation.rectangles(sizes.tolist())
  positions = np.concatenate([np.arange(number) for number in numbers])
  return _of_strata_without_replacement(
      shape, seed, of_each(np.arange(len(sizes))),
      tf.constant(positions, tf.int32), of_each(sizes), of_each(a), of_each(b),
      num_strata=len(sizes), num_rounds=num_rounds,
      columns=_columns(tf.concat([chains, [len(sizes)]], axis=0)))


def _check_strata(sizes, numbers, replacement):
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


def _check_distinct(shape, num_examples):
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


def fold_in(seed: tf.Tensor, data: int | tf.Tensor) -> tf.Tensor:
  """A new seed from a seed and a number; numbers give independent seeds.

  Args:
    seed: Stateless seed, `int32[2]`.
    data: Python `int` or scalar integer tensor, `0 <= data < 2^63`; the two
      give the same seed.

  Returns:
    seed: Stateless seed, `int32[2]`.

  #### Examples

  >>> fold_in([1, 2], 0).shape
  TensorShape([2])
  """
  data = tf.convert_to_tensor(data, dtype_hint=tf.int64)
  return _fold_in([2], seed, tf.cast(data, tf.int64))
