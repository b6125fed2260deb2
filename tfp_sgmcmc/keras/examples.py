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

  Arrays say how many rows they have. Other data that can be gone through again
  are counted by a pass, or by the first epoch of the compiled optimizer, where
  there is one; what Python makes, only by such an epoch.

  An epoch shows all the data if its iterator was new and the next epoch has
  another one: Keras goes on with the same where an epoch is a part.
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
    self._mean_weight = None
    self.begin_fit(None)

  @property
  def number(self) -> int | None:
    """N; None while it is not known yet."""
    return self._number

  @property
  def mean_weight(self) -> float | None:
    """The mean of the sample weights, None without a pass over the data."""
    return self._mean_weight

  def go_on(self, number: int) -> None:
    """Takes the N of a chain that goes on, where none was given."""
    if self._number is None:
      self._number = number

  @property
  def wants_to_look(self) -> bool:
    """Whether `look` is due, at the first batch of an epoch."""
    return self._is_new_epoch and not self._is_compared

  def begin_fit(self, steps: int | None, is_in_parts: bool = False) -> None:
    """Takes note that other data may come.

    Args:
      steps: Python `int`, the number of batches in an epoch, as far as `fit`
        knows it before the first.
      is_in_parts: Python `bool`, whether `fit` was given this number
        (`steps_per_epoch`) and it may be a part of the data: an epoch then goes
        on where the one before ended.
    """
    self._steps = steps
    self._is_in_parts = is_in_parts
    self._iterators = [None, None]
    self._is_new_epoch = False
    self._is_compared = False
    self._length = tf.data.UNKNOWN_CARDINALITY
    self._epoch = (0, 1)

  def begin_epoch(self) -> None:
    """Takes note that an epoch begins."""
    self._is_new_epoch = True

  def look(self, iterator: Any, is_sampling: bool) -> None:
    """Looks at the data that `fit` goes through, before an epoch's first batch.

    Args:
      iterator: The iterator that `fit` passes to its train function.
      is_sampling: Python `bool`: whether N is needed now; else an epoch of
        training comes first.

    Raises:
      ValueError: If N is to be counted and cannot be.
    """
    self._is_new_epoch = False
    before, last = self._iterators
    self._iterators = [last, iterator]
    if last is not None:
      if last is not before and last is not iterator:
        self._compare(*self._epoch)
    else:
      self._look_first(iterator)
    if self._number is None and is_sampling:
      self._number = self._count(compat.dataset_of(iterator))

  def _look_first(self, iterator):
    dataset = compat.dataset_of(iterator)
    if dataset is None:
      return
    self._length = int(dataset.cardinality())
    if self._length == tf.data.INFINITE_CARDINALITY and self._number is None:
      raise ValueError(
          'The data are repeated without end, and so cannot be counted. '
          f'{_PASS_IT}')
    num_rows = compat.num_rows_of_arrays(dataset)
    if num_rows is not None:
      self._compare(num_rows, self._steps or 1)
    if self._number is None and self._is_in_parts and self._length < 0:
      raise ValueError(
          f'fit goes through the data {self._steps} batch(es) at a time '
          '(steps_per_epoch), and these data (a generator, say) do not tell '
          'how many there are, so that no epoch counts them. '
          f'{_PASS_IT} Or leave steps_per_epoch out, where an epoch may go '
          'through all of the data.')

  def _count(self, dataset):
    """The number of rows, by a pass over the data."""
    if dataset is not None:
      if self._length >= 0 or (
          self._steps is None and not compat.is_made_in_python(dataset)):
        number, self._mean_weight = _count(dataset, self._length)
        return number
    raise ValueError(
        'The data do not say how many they are (those of a PyDataset or a '
        f'generator never do), and sampling begins with this batch. {_PASS_IT} '
        'Where an epoch goes through all of them, start_epoch=1 counts them in '
        'an epoch of training.')

  def end_epoch(self, num_rows: int | None, num_batches: int) -> None:
    """Takes note of what an epoch had.

    Args:
      num_rows: Python `int`, its rows; None where there were none.
      num_batches: Python `int`, the number of its batches.
    """
    self._epoch = (num_rows or 0, num_batches or 1)
    if self._length == num_batches and self._steps in (None, self._length):
      self._compare(*self._epoch)

  def _compare(self, num_rows, num_batches):
    """Counts, or compares N, with all the rows there are."""
    if not num_rows or self._is_compared:
      return
    self._is_compared = True
    if self._number is None:
      self._number = num_rows
    batch_size = -(-num_rows // num_batches)
    if abs(self._number - num_rows) < batch_size:  # A dropped or filled batch.
      return
    if self._given is None:
      warnings.warn(
          f'The chain began with data of {self._number} rows, and those of '
          f'this fit have {num_rows}: it goes on with N = {self._number}, and '
          'samples the posterior of neither. For other data make a new '
          'PosteriorSampling, with another directory.', stacklevel=2)
      return
    ratio = self._given / num_rows
    warnings.warn(
        f'num_examples is {self._given}, and the data of this fit have '
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
  """The number of rows of a finite dataset, by a pass where it needs one.

  Returns:
    number: Python `int`.
    mean_weight: The mean of the sample weights that are not 0; None where there
      are none, or no pass was needed.
  """
  sizes = {
      spec.shape[0] for spec in keras.tree.flatten(dataset.element_spec)
      if isinstance(spec, tf.TensorSpec) and spec.shape.rank}
  if len(sizes) == 1 and None not in sizes:
    return length * sizes.pop(), None

  def add(totals, batch):
    weights = [
        tf.cast(leaf, tf.float64) for leaf in keras.tree.flatten(
            keras.utils.unpack_x_y_sample_weight(batch)[2])
        if leaf is not None]
    number, weight, is_weighted = totals
    return (
        number + tf.cast(_num_rows(batch), tf.int64),
        tf.add_n([weight, *map(tf.reduce_sum, weights)]),
        tf.add_n([is_weighted, *(
            tf.math.count_nonzero(w, dtype=tf.float64) for w in weights)]))

  number, weight, is_weighted = dataset.reduce(
      (np.int64(0), np.float64(0.), np.float64(0.)), add)
  return int(number), float(weight / is_weighted) if is_weighted else None


def _num_rows(batch):
  first = keras.tree.flatten(batch)[0]
  if isinstance(first, tf.SparseTensor):
    return first.dense_shape[0]
  return compat.shape(first)[0]
