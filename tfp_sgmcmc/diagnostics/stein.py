"""Kernel Stein discrepancy: how far draws are from a law, by its scores.

With s = grad log density, the Stein kernel of a base kernel k is

  k_p(x, y) = div_x div_y k + s(x) . grad_y k + s(y) . grad_x k + s(x) . s(y) k

whose mean over independent x, y of the law is zero. Of the inverse
multiquadric k(x, y) = (c^2 + |x - y|^2)^(-1/2), with q = c^2 + |x - y|^2,

  k_p = d q^(-3/2) - 3 |x - y|^2 q^(-5/2)
        + (s(x) - s(y)) . (x - y) q^(-3/2) + s(x) . s(y) q^(-1/2)

and KSD^2 = 1/n^2 sum_ij k_p(x_i, x_j).
"""

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints

__all__ = ['SteinDiscrepancy', 'kernel_stein_discrepancy']


class SteinDiscrepancy(NamedTuple):
  """What `kernel_stein_discrepancy` returns.

  Attributes:
    value: Python `float`, the discrepancy KSD.
    expected: Python `float`, its value for n independent draws of the law
      itself: the root of the mean of KSD^2, sqrt(E k_p(x, x) / n).
  """
  value: float
  expected: float


def kernel_stein_discrepancy(
    draws: hints.Nested,
    scores: hints.TensorLike,
    scale: float = 1.,
    chunk_size: int = 2000,
) -> SteinDiscrepancy:
  """The kernel Stein discrepancy of draws, with the inverse multiquadric.

    KSD^2 = 1/n^2 sum_ij k_p(x_i, x_j),  k(x, y) = (c^2 + |x - y|^2)^(-1/2)

  with k_p as in the module's docstring. It goes to zero if, and only if, the
  draws converge to the law (for log densities that are strongly concave far
  out). So it detects bias, which R-hat and effective sample sizes do not.
  Compare it with `expected`, and with its values for other samplers or step
  sizes. It is larger for dependent draws: thin them.

  Minibatch gradients serve as scores too, if each draw has a fresh minibatch
  that the chain has not used: `expected` includes their noise.

  Args:
    draws: Float `[n, d]`, at equal weights.
    scores: Float `[n, d]`, the gradient of the log density at each; over T for
      a chain at temperature T.
    scale: c, a positive number in the units of the draws: about the distance
      over which the law changes. Scale coordinates of different units first.
    chunk_size: Python `int`: pairs are computed in blocks of `chunk_size` by
      `chunk_size` draws, which have to fit into memory.

  Returns:
    discrepancy: `SteinDiscrepancy`.

  Raises:
    ValueError: If the shapes differ or are not `[n, d]`, a value is not finite,
      a number is out of its range, or the discrepancy is out of that of
      float64.

  #### Examples

  >>> x = tf.random.stateless_normal([2000, 2], [0, 1])
  >>> right = sgmcmc.diagnostics.kernel_stein_discrepancy(x, -x)
  >>> bool(right.value < 2. * right.expected)
  True
  >>> wrong = sgmcmc.diagnostics.kernel_stein_discrepancy(1.2 * x, -1.2 * x)
  >>> bool(wrong.value > 3. * wrong.expected)
  True

  #### References

  [1]: Jackson Gorham and Lester Mackey. Measuring Sample Quality with Kernels.
       _ICML_, 2017.
  [2]: Jackson Gorham, Anant Raj, Lester Mackey. Stochastic Stein
       Discrepancies. _NeurIPS_, 2020.
  """
  x, s = checks.real_array('draws', draws), checks.real_array('scores', scores)
  if x.ndim != 2 or x.shape != s.shape or not x.size:
    raise ValueError(
        f'draws have shape {x.shape} and scores {s.shape}: both have to be '
        '[n, d]. Of several chains, join the chains into one axis.')
  if not (np.all(np.isfinite(x)) and np.all(np.isfinite(s))):
    raise ValueError('draws or scores hold NaN or infinite values.')
  checks.positive_number('scale', scale)
  chunk_size = checks.positive_integer('chunk_size', chunk_size)
  num, d = x.shape
  with np.errstate(all='ignore'):
    x = x - x.mean(axis=0)  # Differences count: large means cost digits.
  chunks = [slice(k, k + chunk_size) for k in range(0, num, chunk_size)]
  scale = np.float64(scale)
  with np.errstate(all='ignore'):
    diagonal = d / scale**3 + np.mean(np.sum(s**2, axis=1)) / scale
    squares = np.array([scale**2, scale**3, d / scale**3, diagonal])
  c = tf.constant(scale, tf.float64)
  total = 0.
  for i, rows in enumerate(chunks):
    for j, columns in enumerate(chunks[i:]):
      total += (1. if j == 0 else 2.) * float(_compiled_sum()(
          *map(tf.constant, (x[rows], s[rows], x[columns], s[columns])), c))
  if not (np.isfinite(total) and np.all(np.isfinite(squares) & (squares > 0.))):
    raise ValueError(
        f'With draws up to {np.max(np.abs(x)):.2g} from their mean, scores up '
        f'to {np.max(np.abs(s)):.2g} and scale {scale:.2g} the discrepancy is '
        'out of the range of float64: divide the draws by their standard '
        'deviations, multiply the scores by them, and let scale be about 1.')
  # Rounding can bring the sum below zero.
  return SteinDiscrepancy(
      float(np.sqrt(max(total, 0.)) / num), float(np.sqrt(diagonal / num)))


@functools.cache
def _compiled_sum():
  return tf.function(
      _sum_of_stein_kernel, jit_compile=compat.jit_compile(), autograph=False,
      reduce_retracing=True)


def _sum_of_stein_kernel(x, s, y, t, c):
  """The sum of k_p over all pairs of rows of (x, s) and of (y, t)."""
  d = tf.cast(tf.shape(x)[1], x.dtype)

  def product(a, b):
    return tf.matmul(a, b, transpose_b=True)

  def by_row(a, b):
    return tf.reduce_sum(a * b, axis=1)[:, tf.newaxis]

  square = tf.nn.relu(
      by_row(x, x) + tf.transpose(by_row(y, y)) - 2. * product(x, y))
  q = tf.square(c) + square
  slope = (by_row(s, x) + tf.transpose(by_row(t, y))
           - product(s, y) - product(x, t))
  root = tf.math.rsqrt(q)
  return tf.reduce_sum(
      root * (product(s, t) + (d + slope - 3. * square / q) / q))
