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

A step of a sampler needs a few seeds of its own. `fold_in` makes each from
another one by the finaliser of SplitMix64 [2, 3], in a fifth of the operations
that Threefry takes. All random numbers are Threefry's.

Shapes are lists or tensors of integers, of fewer than 2^31 elements. Seeds are
`int32[2]` tensors, as made by `tfp.random.sanitize_seed`.

#### References

[1]: John K. Salmon, Mark A. Moraes, Ron O. Dror, David E. Shaw. Parallel
     Random Numbers: As Easy as 1, 2, 3. _SC_, 2011.
[2]: Guy L. Steele Jr., Doug Lea, Christine H. Flood. Fast Splittable
     Pseudorandom Number Generators. _OOPSLA_, 2014.
[3]: Sebastiano Vigna. splitmix64.c, 2015. https://prng.di.unimi.it
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
from tfp_sgmcmc.internal import random_indices
from tfp_sgmcmc.internal import seeds
from tfp_sgmcmc.internal import threefry
from tfp_sgmcmc.internal import word32
from tfp_sgmcmc.internal.threefry import threefry_2x32

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

# Of SplitMix64, as in [3]: shifts and factors of its finaliser, and the golden
# ratio by which consecutive numbers are spread out.
_SHIFTS, _FACTORS = (30, 27, 31), (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_GOLDEN = 0x9E3779B97F4A7C15
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


@threefry.compiled
def _bits(shape, seed, *, stream, columns):
  return threefry.words(shape, seed, stream, columns)[0]


@threefry.compiled
def _uniform(shape, seed, *, dtype, stream, columns):
  first, second = threefry.words(shape, seed, stream, columns)
  if dtype == tf.float64:
    return tf.cast(threefry.first_53_bits(first, second), dtype) * 2.**-53
  return tf.cast(tf.cast(word32.right(first, 8), tf.int32), dtype) * 2.**-24


@threefry.compiled
def _normal(shape, seed, offset, *, dtype, stream, columns):
  counter, is_first = threefry.counters(shape, columns)
  counter += tf.bitcast(offset // 2, tf.uint32)
  word = threefry.word_of(counter, is_first, seed, stream)
  if dtype != tf.float64:
    return _quantile(word)
  # The first 32 bits are the word that float32 uses, so that both dtypes draw
  # the same number up to rounding. k 2^-53 is the midpoint of one of 2^53 equal
  # cells of (-1, 1): never an end point, so that erfinv is finite.
  k = 2 * threefry.first_53_bits(word, threefry.word_of(
      counter | word32.constant(1 << 30), is_first, seed, stream)) + (1 - 2**53)
  return tf.math.erfinv(tf.cast(k, dtype) * 2.**-53) * math.sqrt(2.)


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


def _mix(z):
  """The finaliser of SplitMix64: a bijection of `uint64`."""
  for shift, factor in zip(_SHIFTS, _FACTORS):
    z = (z ^ word32.right(z, shift)) * tf.constant(factor, tf.uint64)
  return z ^ word32.right(z, _SHIFTS[-1])


def _folded(seed, data):
  spread = (tf.cast(data, tf.uint64) + 1) * tf.constant(_GOLDEN, tf.uint64)
  return tf.bitcast(
      _mix(_mix(spread) ^ tf.bitcast(seed, tf.uint64)), tf.int32)


@threefry.compiled
def _compiled_fold(shape, seed, data):
  del shape
  return _folded(seed, data)


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
  return _bits(shape, seed, stream=stream, columns=threefry.columns_of(shape))


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
      shape, seed, dtype=_wide(dtype), stream=stream,
      columns=threefry.columns_of(shape))
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
      stream=stream, columns=threefry.columns_of(shape))
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

  Of rows whose pattern is a literal (see `threefry.counters`), which takes half
  the time of a single axis: XLA uses wider vectors where it reads the booleans.
  """
  columns = size if size <= threefry.MAX_COLUMNS else _ROW
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
    return random_indices.with_replacement(
        shape, seed, num_examples=num_examples,
        columns=threefry.columns_of(shape))
  shape = threefry.to_shape(shape)
  random_indices.check_distinct(shape, num_examples)
  return random_indices.without_replacement(
      shape, seed, num_examples=num_examples,
      columns=threefry.columns_of(shape[:-1]))


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
  random_indices.check_strata(sizes, numbers, replacement)
  chains = threefry.to_shape(chains)
  shape = tf.concat([chains, [int(numbers.sum())]], axis=0)

  def of_each(values):
    return tf.constant(np.repeat(values, numbers), tf.int32)

  if replacement:
    return random_indices.of_strata_with_replacement(
        shape, seed, of_each(sizes), columns=threefry.columns_of(shape))
  a, b, num_rounds = permutation.rectangles(sizes.tolist())
  positions = np.concatenate([np.arange(number) for number in numbers])
  return random_indices.of_strata_without_replacement(
      shape, seed, of_each(np.arange(len(sizes))),
      tf.constant(positions, tf.int32), of_each(sizes), of_each(a), of_each(b),
      num_strata=len(sizes), num_rounds=num_rounds,
      columns=threefry.columns_of(tf.concat([chains, [len(sizes)]], axis=0)))


def fold_in(seed: tf.Tensor, data: int | tf.Tensor) -> tf.Tensor:
  """A new seed from a seed and a number; numbers give independent seeds.

    mix(mix((data + 1) g) xor seed)    of words of 64 bits,

  with `mix` the finaliser of SplitMix64 and g = 0x9E3779B97F4A7C15.

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
  data = tf.cast(tf.convert_to_tensor(data, dtype_hint=tf.int64), tf.int64)
  # Eagerly each operation costs as much as a call. The few operations of a
  # graph take less on a CPU than to start a program of XLA.
  if tf.executing_eagerly() or compat.sees_accelerators():
    return _compiled_fold([2], seed, data)
  return _folded(seeds.check(seed), data)
