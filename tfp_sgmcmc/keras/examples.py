"""N, the number of training examples: counted, and held against the data."""

from typing import Any
import warnings

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat

__all__ = ['ExampleCount']

_PASS_IT = (
    'Pass num_examples=..., the number of different examples: how much the '
    'data weigh against the prior depends on it.')


class ExampleCount:
  """N as the user gave it, or as the data show it.

  Data of known length are counted by one pass over them, or by the first epoch
  of the compiled optimizer, where there is one. Of other data an epoch has to
  have shown the end.
  """

  def __init__(self, given: int | None):
    """Makes the count.

    Args:
      given: Python `int`, N; None to count.

    Raises:
      ValueError: If `given` is not positive.
      TypeError: If it is no `int`.
    """
    if given is not None:
      given = checks.positive_integer('num_examples', given)
    self._given = given
    self._number = given
    self._begin()

  def _begin(self):
    self._steps = None
    self._has_looked = False
    self._epoch_is_all = False
    self._is_compared = False

  @property
  def number(self) -> int | None:
    """N; None while it is not known yet."""
    return self._number

  @property
  def has_looked(self) -> bool:
    """Whether this `fit`'s data have been looked at."""
    return self._has_looked

  def begin_fit(self, steps: int | None) -> None:
    """Takes note that other data may come.

    Args:
      steps: Python `int`, the number of batches in an epoch, as far as `fit`
        knows it before the first.
    """
    self._begin()
    self._steps = steps

  def look(self, iterator: Any, is_sampling: bool) -> None:
    """Looks at the data that `fit` goes through, before its first batch.

    Args:
      iterator: The iterator that `fit` passes to its train function.
      is_sampling: Python `bool`: whether N is needed now; else an epoch of
        training comes first.

    Raises:
      ValueError: If N is to be counted and cannot be.
    """
    self._has_looked = True
    dataset = compat.dataset_of(iterator)
    length = (tf.data.UNKNOWN_CARDINALITY if dataset is None
              else int(dataset.cardinality()))
    if length < 0:
      self._epoch_is_all = (
          length == tf.data.UNKNOWN_CARDINALITY and self._steps is None)
    else:
      self._epoch_is_all = self._steps is None or self._steps == length
    if self._number is not None:
      return
    if length == tf.data.INFINITE_CARDINALITY:
      raise ValueError(
          'The data are repeated without end, and so cannot be counted. '
          f'{_PASS_IT}')
    if length < 0 and not self._epoch_is_all:
      raise ValueError(
          'The data come from Python (a PyDataset, or a generator) or do not '
          f'say how many they are, and an epoch takes {self._steps} batches of '
          f'them, which may be all or a part. {_PASS_IT}')
    if length < 0 and is_sampling:
      raise ValueError(
          'The data do not say how many they are, and sampling begins with the '
          f'first batch. {_PASS_IT} Or pass start_epoch=1: they are counted in '
          'the epoch of training.')
    if length >= 0 and (is_sampling or not self._epoch_is_all):
      self._number = _count(dataset, length)

  def end_epoch(self, num_rows: int, num_batches: int) -> None:
    """Counts, or compares, after a whole epoch.

    Args:
      num_rows: Python `int`, the rows that the epoch had.
      num_batches: Python `int`, the number of its batches.
    """
    if not self._epoch_is_all or not num_rows or self._is_compared:
      return
    self._is_compared = True
    if self._number is None:
      self._number = num_rows
    if self._given is None:
      return
    batch_size = -(-num_rows // num_batches)
    if abs(self._given - num_rows) < batch_size:  # A dropped or filled batch.
      return
    ratio = self._given / num_rows
    warnings.warn(
        f'num_examples is {self._given}, and an epoch of this fit had '
        f'{num_rows} rows: each row counts as {ratio:.3g} examples, and the '
        f'posterior is {"narrower" if ratio > 1. else "wider"} for it, by a '
        f'factor of about {max(ratio, 1. / ratio)**0.5:.2g} where the data '
        'rule. Leave num_examples out to have the rows counted (a '
        'validation_split takes its part first). Keep it where rows are '
        'repeated or augmented: then it is the number of different examples.',
        stacklevel=2)

  def check_batch(self, num_rows: int) -> None:
    """Raises where a batch has more rows than there are examples.

    Args:
      num_rows: Python `int`, the number of rows of the batch.

    Raises:
      ValueError: If N is smaller.
    """
    if num_rows > self._number:
      raise ValueError(
          f'num_examples is {self._number}, and a batch has {num_rows} rows: '
          'it is the number of all training examples. Leave it out to have '
          'them counted.')


def _count(dataset, length):
  """The number of rows of a finite dataset, by a pass where it needs one."""
  sizes = {
      spec.shape[0] for spec in keras.tree.flatten(dataset.element_spec)
      if isinstance(spec, tf.TensorSpec) and spec.shape.rank}
  if len(sizes) == 1 and None not in sizes:
    return length * sizes.pop()
  return int(dataset.reduce(
      np.int64(0),
      lambda total, batch: total + tf.cast(_num_rows(batch), tf.int64)))


def _num_rows(batch):
  first = keras.tree.flatten(batch)[0]
  if isinstance(first, tf.SparseTensor):
    return first.dense_shape[0]
  return compat.shape(first)[0]
