"""What is done to data before a model sees them: splits and scales."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks

__all__ = ['Examples', 'Standardization', 'random_split']


class Examples(NamedTuple):
  """Features of examples and what is to be predicted.

  Attributes:
    features: `[n, d]`.
    labels: `[n]`: integers for classes, floats for regression.
  """
  features: np.ndarray
  labels: np.ndarray


class Standardization(NamedTuple):
  """The map of features to mean 0 and standard deviation 1.

  Fit it on the training part alone and apply it to both parts. A column that
  does not vary there keeps its scale.

  Attributes:
    mean: `float64[d]`, or a scalar for a vector of targets.
    scale: As `mean`.

  #### Examples

  >>> from experiments import datasets
  >>> train, test = [[1.], [3.]], [[5.]]
  >>> scaling = datasets.Standardization.fit(train)
  >>> scaling(test)
  array([[3.]])
  >>> scaling.undo([[3.]])
  array([[5.]])
  """
  mean: np.ndarray
  scale: np.ndarray

  @classmethod
  def fit(
      cls, train: np.ndarray, columns: slice | Sequence[int] = slice(None),
  ) -> 'Standardization':
    """The mean and standard deviation of training data.

    Args:
      train: `[n, d]` or `[n]`.
      columns: Which of the d columns to standardize; others stay as they are.

    Returns:
      scaling: `Standardization`.
    """
    train = np.asarray(train)
    mean = np.mean(train, axis=0, dtype=np.float64)
    scale = np.std(train, axis=0, dtype=np.float64)
    scale = np.where(np.ptp(train, axis=0) == 0, 1., scale)
    if train.ndim > 1:
      chosen = np.zeros(train.shape[1:], bool)
      chosen[columns] = True
      mean, scale = np.where(chosen, mean, 0.), np.where(chosen, scale, 1.)
    return cls(mean, scale)

  def __call__(self, values: np.ndarray) -> np.ndarray:
    """The values standardized, in their own float dtype."""
    return _cast_like((np.asarray(values) - self.mean) / self.scale, values)

  def undo(self, values: np.ndarray) -> np.ndarray:
    """Standardized values in the original units."""
    return _cast_like(np.asarray(values) * self.scale + self.mean, values)


def random_split(
    num_examples: int,
    test_fraction: float = 0.2,
    seed: Sequence[int] = (0, 0),
) -> tuple[np.ndarray, np.ndarray]:
  """Which examples are for training and which for test, at random.

  Args:
    num_examples: Python `int`, N.
    test_fraction: The share for test; `round(test_fraction N)` of them.
    seed: Stateless seed, two integers: the same seed, the same split.

  Returns:
    train: Indices, in increasing order.
    test: Indices, in increasing order.

  #### Examples

  >>> from experiments import datasets
  >>> train, test = datasets.random_split(10, test_fraction=0.3)
  >>> len(train), len(test), sorted([*train, *test]) == list(range(10))
  (7, 3, True)
  """
  checks.positive_integer('num_examples', num_examples)
  checks.fraction('test_fraction', test_fraction)
  num_test = round(test_fraction * num_examples)
  is_test = np.zeros(num_examples, bool)
  if num_test:
    is_test[random.indices(num_examples, [num_test], list(seed)).numpy()] = True
  return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def _cast_like(result, values):
  dtype = np.asarray(values).dtype
  return result.astype(dtype) if np.issubdtype(dtype, np.floating) else result
