"""Sets of examples, and how many of them are looked at, in static shapes."""

import math

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import compat

__all__ = ['add_at', 'binomial_distribution_function', 'compact']


def compact(
    indices: tf.Tensor, is_kept: tf.Tensor, capacity: int,
) -> tuple[tf.Tensor, tf.Tensor]:
  """The indices that are kept, in order, zeros after; and their number.

  Args:
    indices: `int32`, `chains + [n]`.
    is_kept: Likewise, `bool`.
    capacity: Python `int`, how many places there are.

  Returns:
    kept: `int32`, `chains + [capacity]`; those beyond are lost.
    number: `int32`, shape `chains`, which may be larger than `capacity`.
  """
  place = tf.cumsum(tf.cast(is_kept, tf.int32), axis=-1) - 1
  number = place[..., -1] + 1
  place = tf.where(is_kept, tf.minimum(place, capacity), capacity)
  where, rows = _with_rows(place)
  kept = tf.scatter_nd(
      where, tf.reshape(indices, tf.shape(where)[:-1]), [rows, capacity + 1])
  shape = tf.concat([compat.shape(number), [capacity]], axis=0)
  return tf.reshape(kept[:, :capacity], shape), number


def add_at(
    z: tf.Tensor, indices: tf.Tensor, change: tf.Tensor) -> tf.Tensor:
  """z with `change` added at `indices`, chain by chain."""
  where, rows = _with_rows(indices)
  added = tf.tensor_scatter_nd_add(
      tf.reshape(z, [rows, z.shape[-1]]), where,
      tf.reshape(change, tf.shape(where)[:-1]))
  return tf.reshape(added, compat.shape(z))


def _with_rows(columns):
  """Pairs (chain, column) for the scatters, the chains as one axis."""
  num_columns = columns.shape[-1]
  columns = tf.reshape(columns, [-1, num_columns])
  rows = compat.shape(columns)[0]
  row = tf.reshape(compat.positions(rows), [rows, 1])
  return tf.stack([row + tf.zeros_like(columns), columns], axis=-1), rows


def binomial_distribution_function(n: int, q: float) -> np.ndarray:
  """P(number <= k) of Binomial(n, q), k = 0, 1, ..., while below 1 - 2^-53.

  With u uniform on multiples of 2^-53, the number of these values that are at
  most u has that law, to 2^-53.
  """
  if q == 1.:
    return np.zeros(n)
  top = min(n, int(n * q + 10. * math.sqrt(n * q) + 60.))
  k = np.arange(1, top + 1)
  log_p = np.concatenate(
      [[0.], np.cumsum(np.log((n - k + 1.) / k) + math.log(q / (1. - q)))])
  p = np.exp(log_p - log_p.max())
  above = np.cumsum(p[::-1])[::-1] / p.sum()  # P(number >= k)
  return 1. - above[1:][above[1:] > 2.**-53]
