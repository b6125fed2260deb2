"""N, the number of training examples: as given, or read from the data."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
import warnings

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.model import inspection

__all__ = ['ExampleCount']


class ExampleCount:
  """N as the user gave it, or as arrays and datasets of known size show it."""

  def __init__(self, given: int | None):
    """Makes the count.

    Args:
      given: Python `int`, N; None to read it from the data.

    Raises:
      ValueError: If `given` is not positive.
      TypeError: If it is no `int`.
    """
    if given is not None:
      given = checks.positive_integer('num_examples', given)
    self._given = given
    self._number = given
    self._mean_weight = None  # Without a pass over the data.
    self._is_new = True

  @property
  def number(self) -> int | None:
    """N; None while it is not known yet."""
    return self._number

  def state(self) -> dict[str, np.ndarray]:
    """What `load_state` takes."""
    return {'num_examples': np.array(self._number, np.int64)}

  def load_state(self, state: Mapping[str, np.ndarray]) -> None:
    """Takes the N of a chain that goes on, where none was given.

    Args:
      state: Arrays by name, those of `state` among them.
    """
    if self._number is None:
      self._number = int(state['num_examples'])

  @property
  def wants_to_look(self) -> bool:
    """Whether `look` is due, at the first batch of a `fit`."""
    return self._is_new

  def begin_fit(self) -> None:
    """Takes note that other data may come."""
    self._is_new = True

  def look(self, iterator: tf.data.Iterator) -> None:
    """Reads N from the data of a `fit`, or compares it with them.

    Args:
      iterator: The iterator that `fit` passes to its train function.

    Raises:
      ValueError: If N was not given and the data do not show it.
    """
    self._is_new = False
    dataset = compat.dataset_of(iterator)
    num_rows = None if dataset is None else compat.num_rows_of_arrays(dataset)
    if self._number is None:
      if num_rows is None:
        num_rows, self._mean_weight = _count(dataset)
      self._number = num_rows
    elif num_rows not in (None, self._number):
      self._warn(num_rows)

  def _warn(self, num_rows):
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
    if self._number is not None and num_rows > self._number:
      raise ValueError(
          f'num_examples is {self._number}, and a batch has {num_rows} rows: '
          'it is the number of all training examples. Leave it out to have '
          'them counted.')

  def check_weights(
      self, weights: hints.Nested, of_more_batches: Callable[[], list[Any]],
  ) -> None:
    """Warns of sample weights by which N is another number.

    Args:
      weights: Those of the first batch, None without any.
      of_more_batches: Callable that returns the weights of further batches.
    """
    mean, number = self._mean_weight, self._number
    if mean is None and weights is not None:
      # One batch tells little of weights that a few rare examples have.
      mean, error = inspection.mean_weight([weights])
      if any(inspection.is_far(mean + k * error) for k in (-3, 0, 3)):
        mean, error = inspection.mean_weight([weights, *of_more_batches()])
      if not inspection.is_far(mean, error):
        return
    if mean is not None and number is not None and inspection.is_far(mean):
      inspection.warn_of_mean_weight(mean, number)


def _count(dataset):
  """The number of rows of a dataset of known cardinality.

  Returns:
    number: Python `int`.
    mean_weight: The mean of the sample weights that are not 0; None where there
      are none, or no pass was needed.

  Raises:
    ValueError: If there is no such dataset.
  """
  length = -1 if dataset is None else int(dataset.cardinality())
  if length < 0:
    raise ValueError(
        'The data do not say how many rows they have: they are of a generator, '
        'a PyDataset, or a tf.data.Dataset that repeats without end or has an '
        'unknown cardinality, as after filter or on several replicas. Pass '
        'num_examples=..., the number of different examples: how much the data '
        'weigh against the prior depends on it.')
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
