"""Rows of a table are those of `tf.gather`, in whatever blocks they come."""

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import rows


def test_rows_are_those_of_gather():
  # A vector, short rows, rows in blocks of 5, 8 and 6, a prime number of
  # columns, rows of two axes, long ones, and such as TensorFlow knows less of.
  shapes = [(), (3,), (55,), (64,), (6, 9), (31,), (79,), (80,), (1, 28)]
  tables = [
      tf.reshape(tf.range(7 * int(np.prod(shape)), dtype=dtype), (7, *shape))
      for shape, dtype in zip(
          shapes, [tf.int32, tf.float64, *[tf.float32] * 7])]
  indices = tf.constant([[3, 0, 6], [6, 6, 1]])
  of_any_length = [
      tf.TensorSpec([None, *table.shape[1:]], table.dtype) for table in tables]

  @tf.function(jit_compile=True, autograph=False, input_signature=[
      of_any_length, tf.TensorSpec([None, None], tf.int32)])
  def of_unknown_sizes(tables, indices):
    return [rows.take(table, indices) for table in tables]

  @tf.function(jit_compile=True, autograph=False)
  def take(tables, indices):
    return [rows.take(table, indices) for table in tables]

  for found in (take(tables, indices), of_unknown_sizes(tables, indices)):
    for result, table in zip(found, tables):
      assert result.shape == indices.shape + table.shape[1:]
      np.testing.assert_array_equal(result, table.numpy()[indices])
