"""Data as tensors, a leading axis of examples each."""

import inspect
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints


def to_tensors(data: hints.Data, looks_for_nan: bool = True) -> Any:
  """`data` as tensors with a common leading axis, or an error.

  Args:
    data: Nested tensors, arrays or numbers.
    looks_for_nan: Python `bool`, whether NaN is an error where code runs
      eagerly.

  Returns:
    tensors: In the structure of `data`.

  Raises:
    ValueError: If they are empty, differ in their leading axis or hold NaN.
    TypeError: If a leaf is no tensor.
  """
  if isinstance(data, tf.data.Dataset):
    raise TypeError(
        'The data are a tf.data.Dataset, and tensors are needed. For a '
        'pipeline give num_examples=... in place of data, and '
        'gradient_estimator=gradients.Stream(dataset) to the kernel.')
  if inspect.isgenerator(data):
    raise TypeError(
        'The data are a generator, and tensors are needed: pass '
        'tf.stack(list(data)), or read a tf.data.Dataset with '
        'gradients.Stream.')
  leaves = tf.nest.flatten(data)
  if not leaves:
    raise ValueError('The data are an empty structure: there are no tensors.')
  names = _names(data)
  # Outside any function being traced: an array would become a constant of it.
  with tf.init_scope():
    tensors = [checks.to_tensor(*pair) for pair in zip(names, leaves)]
  shapes = [tensor.shape for tensor in tensors]
  if any(shape.rank == 0 for shape in shapes):
    name = names[[shape.rank for shape in shapes].index(0)]
    raise ValueError(
        f'{name} is a single number, and each leaf of the data needs a leading '
        'axis of examples. Lists and tuples are structures of leaves: of '
        'numbers in lists make an array, np.array(...).')
  lengths = [shape[0] for shape in shapes]
  if len(set(lengths)) > 1:
    raise ValueError(
        f'The leaves of the data have different leading axes, {lengths}: they '
        'have to hold the same number of examples, N, along the first axis. '
        f'The shapes are {[str(s) for s in shapes]}.')
  if lengths[0] == 0:
    raise ValueError(
        f'The data are empty: leaves of shapes {[str(s) for s in shapes]}. At '
        'least one example is needed.')
  # In a traced function it would cost each step.
  if looks_for_nan and tf.executing_eagerly():
    for name, tensor in zip(names, tensors):
      _check_nan(name, tensor)
  return tf.nest.pack_sequence_as(data, tensors)


def _check_nan(name, leaf):
  """Raises where a leaf of the data holds NaN; infinities are the user's."""
  if not leaf.dtype.is_floating:
    return
  is_nan = tf.math.is_nan(leaf)
  if not tf.reduce_any(is_nan):
    return
  is_nan = is_nan.numpy()
  row = np.argmax(is_nan.reshape([len(is_nan), -1]).any(axis=1))
  raise ValueError(
      f'{name} holds NaN: {np.count_nonzero(is_nan):,} of {is_nan.size:,} '
      f'values, the first in row {row}. Each would make the log density NaN. '
      'Leave these examples out; or, for missing values, put numbers in their '
      'place and a mask beside them.')


def _names(data):
  """What each leaf of the data is called in messages, as in Python."""
  def names(prefix, nest):
    if isinstance(nest, dict):
      return [n for key in sorted(nest)
              for n in names(f'{prefix}[{key!r}]', nest[key])]
    if isinstance(nest, (list, tuple)):
      fields = getattr(nest, '_fields', None)
      return [n for k, value in enumerate(nest) for n in names(
          f'{prefix}.{fields[k]}' if fields else f'{prefix}[{k}]', value)]
    return [prefix]

  found, number = names('data', data), len(tf.nest.flatten(data))
  if len(found) == number:
    return found
  return [f'leaf {k} of the data' for k in range(number)]
