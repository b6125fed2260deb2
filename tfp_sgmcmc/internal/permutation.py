"""A keyed pseudo-random permutation of 0, ..., N - 1, elementwise.

A Feistel network on the pairs (x // b, x % b) of an a-by-b rectangle with
a b >= N; where it leaves 0, ..., N - 1 it is applied again (cycle walking). Its
cost does not depend on N.

Not `tf.random.experimental.index_shuffle`: XLA can't compile it, unless the
seed is a constant, and its pairs of positions are not equally likely.
"""

from collections.abc import Sequence
import functools
import math

import tensorflow as tf

from tfp_sgmcmc.internal import word32

_GOLDEN_RATIO = 0x9E3779B9


def permute(
    x: tf.Tensor, key: Sequence[tf.Tensor], size: int) -> tf.Tensor:
  """The images of numbers below `size`.

  Args:
    x: `uint32` tensor.
    key: Pair of `uint32` tensors that broadcast with `x`.
    size: Python `int`, N, at most 2^30.

  Returns:
    x: `uint32` tensor.
  """
  if size < 4:  # Rotations: every subset of one size is equally likely.
    n = word32.constant(size)
    return (x + _scale(key[0], n)) % n
  a, b = _rectangle(size)
  return on_rectangles(
      x, key, *map(word32.constant, (size, a, b)), _num_rounds(a),
      a * b == size)


def rectangles(sizes: Sequence[int]) -> tuple[list[int], list[int], int]:
  """a and b for each of several sizes, and the rounds that all of them need.

  Fewer than four numbers are rotated: the sides are 1 and as many.
  """
  sides = [_rectangle(size) if size >= 4 else (1, size) for size in sizes]
  a, b = map(list, zip(*sides))
  return a, b, max([6, *(_num_rounds(side) for side in a if side > 1)])


def _num_rounds(a):
  """A pair of positions is uniform up to about a^(-num_rounds / 2)."""
  return max(6, 2 * math.ceil(15 / math.log2(a)))


def on_rectangles(
    x: tf.Tensor,
    key: Sequence[tf.Tensor],
    size: tf.Tensor,
    a: tf.Tensor,
    b: tf.Tensor,
    num_rounds: int,
    is_full: bool = False,
) -> tf.Tensor:
  """The images of numbers, each in a rectangle of its own.

  Args:
    x: `uint32` tensor of numbers below `size`.
    key: Pair of `uint32` tensors.
    size: `uint32` tensor, as a and b; all broadcast.
    a: With a = 1 and b = `size` it is a rotation.
    b: `a b >= size`.
    num_rounds: Even Python `int`.
    is_full: Python `bool`: whether a b is `size` everywhere.

  Returns:
    x: `uint32` tensor.
  """
  multiplier = key[1] | word32.constant(1)

  def add(half, other, modulus, round_):
    word = _mix(
        other * multiplier
        + (key[0] ^ word32.constant(round_ * _GOLDEN_RATIO)))
    half = half + _scale(word, modulus)
    return tf.minimum(half, half - modulus)  # Wraps where it is too small.

  def network(x):
    left, right = x // b, x % b
    for round_ in range(0, num_rounds, 2):
      left = add(left, right, a, round_)
      right = add(right, left, b, round_ + 1)
    return left * b + right

  x = network(x)
  if is_full:
    return x

  def outside(x):
    return x >= size

  return tf.while_loop(
      lambda x: tf.reduce_any(outside(x)),
      lambda x: [tf.where(outside(x), network(x), x)], [x])[0]


@functools.cache
def _rectangle(size):
  """Sides `a <= b` of a near-square rectangle that holds `size` tightly."""
  root = math.isqrt(size)
  sides = ((a, -(-size // a)) for a in range(max(2, -(-root // 2)), root + 1))
  return min(sides, key=lambda side: (side[0] * side[1], -side[0]))


def _mix(x):
  """A bijection of 32-bit words in which each bit depends on each."""
  x = (x ^ word32.right(x, 16)) * word32.constant(0x21F0AAAD)
  x = (x ^ word32.right(x, 15)) * word32.constant(0xD35A2D97)
  return x ^ word32.right(x, 15)


def _scale(word, size):
  """Maps 32-bit words onto `0, ..., size - 1`, `size <= 2^16`, evenly."""
  return word32.right(word32.right(word, 16) * size, 16)
