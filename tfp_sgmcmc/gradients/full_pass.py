"""Passes over all the data in memory that does not grow with them."""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

import tensorflow as tf

from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc.internal import hessians
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import kept
from tfp_sgmcmc.internal import states

__all__ = ['chunks', 'fold', 'hessian', 'log_likelihood_and_gradients']


def fold(
    fn: Callable[[Any, Any, tf.Tensor, tf.Tensor], Any],
    initial: hints.Nested,
    data: hints.Data,
    rows_per_chunk: int,
) -> Any:
  """Applies `fn` to the data chunk by chunk, in a loop.

  All chunks have one length, as static shapes need, so that the last may begin
  with rows that the one before it ended with.

  Args:
    fn: Callable `(carried, batch, k, is_new)`; returns the next `carried`. `k`
      is the number of the chunk; `is_new`, `[length]`, is false for rows that
      have been seen.
    initial: Nested tensors, the first `carried`.
    data: Nested tensors with a common leading axis.
    rows_per_chunk: Python `int`, the largest number of rows in a chunk.

  Returns:
    carried: What the last call returned.
  """
  num_rows = tf.nest.flatten(data)[0].shape[0]
  num_chunks, length = chunks(num_rows, rows_per_chunk)

  def body(k, carried):
    start = tf.minimum(k * length, num_rows - length)
    batch = tf.nest.map_structure(
        lambda leaf: tf.slice(
            leaf, [start] + [0] * (leaf.shape.rank - 1),
            [length, *leaf.shape[1:]]), data)
    is_new = start + tf.range(length) >= k * length
    return k + 1, fn(carried, batch, k, is_new)

  return tf.while_loop(
      lambda k, _: k < num_chunks, body, (0, initial),
      parallel_iterations=1)[1]


def chunks(num_rows: int, rows_per_chunk: int) -> tuple[int, int]:
  """The number of chunks and their length, at most `rows_per_chunk`."""
  num_chunks = -(-num_rows // rows_per_chunk)
  return num_chunks, -(-num_rows // num_chunks)


def log_likelihood_and_gradients(
    target: posterior_lib.Posterior,
    state_parts: Sequence[tf.Tensor],
    rows_per_chunk: int,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
  """The log likelihood of all the data and its gradient.

  Args:
    target: `Posterior`.
    state_parts: List of float tensors.
    rows_per_chunk: Python `int`, the largest number of rows in a chunk.

  Returns:
    log_likelihood: One value a chain.
    gradients: List of tensors in the shapes of `state_parts`.
  """
  def whole(state_parts):
    return _of_log_likelihood(
        functools.partial(states.value_and_gradients, num_required=0), target,
        state_parts, rows_per_chunk)

  # To trace takes longer than one chunk; and replicas have data of their own.
  if target.is_sharded or target.num_rows <= rows_per_chunk:
    return whole(state_parts)
  return kept.function(
      target, ('log likelihood and gradients', rows_per_chunk), whole)(
          list(state_parts))


def hessian(
    target: posterior_lib.Posterior,
    state_parts: Sequence[tf.Tensor],
    rows_per_chunk: int,
) -> tf.Tensor:
  """The Hessian of the log likelihood of all the data.

  It takes a pass for each coordinate.

  Args:
    target: `Posterior`.
    state_parts: List of float tensors.
    rows_per_chunk: Python `int`, the largest number of rows in a chunk.

  Returns:
    hessian: `chains + [d, d]`, of the coordinates of all parts side by side.
  """
  def whole(state_parts):
    return hessians.of_columns(
        lambda direction: _of_log_likelihood(
            functools.partial(
                hessians.slope_and_gradients, direction=direction),
            target, state_parts, rows_per_chunk)[1],
        state_parts, target.zeros(state_parts).shape.rank)

  # A graph: eagerly each operation of each pass would be started by Python.
  return kept.function(target, ('hessian', rows_per_chunk), whole)(
      list(state_parts))


def _of_log_likelihood(
    value_and_gradients, target, state_parts, rows_per_chunk):
  """`value_and_gradients(fn, parts)` of the log likelihood of all the data."""
  def sum_of_new(*parts, batch, is_new):
    each = target.log_likelihood(*parts, batch=batch)
    return tf.reduce_sum(tf.where(is_new, each, tf.zeros_like(each)), axis=-1)

  def add(carried, batch, k, is_new):
    del k
    return tf.nest.map_structure(tf.add, carried, value_and_gradients(
        functools.partial(sum_of_new, batch=batch, is_new=is_new), state_parts))

  zeros = (target.zeros(state_parts),
           [tf.zeros_like(part) for part in state_parts])
  sums = target.add_up(*fold(add, zeros, target.data, rows_per_chunk))
  return tf.nest.map_structure(
      lambda x: target.num_examples / tf.cast(target.total_rows, x.dtype) * x,
      sums)
