"""A keyed pseudo-random permutation of 0, ..., N - 1, elementwise.

A Feistel network on the pairs (x // b, x % b) of an a-by-b rectangle with
a b >= N; where it leaves 0, ..., N - 1 it is applied again (cycle walking). Its
cost does not depend on N.

A round adds to one half what depends on the other. Where a, b are odd and
a b = N that is an even permutation, so half of the keys swap 0 and 1 besides.
(Not of more than 20 numbers, of which there are more orders than keys.)

Not `tf.random.experimental.index_shuffle`: XLA can't compile it, unless the
seed is a constant, and its pairs of positions are not equally likely.
"""

from collections.abc import Sequence
import functools
import math

import tensorflow as tf

from tfp_sgmcmc.internal import word32

_GOLDEN_RATIO = 0x9E3779B9
_MOST_WITH_ALL_ORDERS = 20  # 20! < 2^64 < 21!


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
  a, b = _sides(size)
  n = word32.constant(size)
  if a == 1:  # Rotations, to which `with_odd_orders` adds what is missing.
    x = (x + _scale(key[0], n)) % n
  else:
    x = on_rectangles(
        x, key, n, word32.constant(a), word32.constant(b), _num_rounds(a),
        a * b == size)
  if a * b > size or size % 2 == 0 or size > _MOST_WITH_ALL_ORDERS:
    return x
  return with_odd_orders(x, key, n, word32.constant(a * b))


def with_odd_orders(
    x: tf.Tensor,
    key: Sequence[tf.Tensor],
    size: tf.Tensor,
    area: tf.Tensor,
) -> tf.Tensor:
  """Swaps 0 and 1 under half of the keys, where there are even orders alone.

  Args:
    x: `uint32` tensor, images of numbers.
    key: Pair of `uint32` tensors, as for their permutation.
    size: `uint32` tensor, N.
    area: `uint32` tensor, a b.

  Returns:
    x: `uint32` tensor.
  """
  one = word32.constant(1)
  is_even = (area == size) & (size & one == one) & (size > one) & (
      size <= word32.constant(_MOST_WITH_ALL_ORDERS))
  swaps = is_even & (word32.right(key[1], 31) == one) & (x <= one)
  return tf.where(swaps, x ^ one, x)


def rectangles(sizes: Sequence[int]) -> tuple[list[int], list[int], int]:
  """a and b for each of several sizes, and the rounds that all of them need.

  Fewer than four numbers are rotated: the sides are 1 and as many.
  """
  a, b = map(list, zip(*map(_sides, sizes)))
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
def _sides(size):
  """Sides `a <= b` of a near-square rectangle that holds `size` tightly."""
  if size < 4:
    return 1, size
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
