"""Draws with weights, made into draws at equal weights."""

from collections.abc import Sequence

import numpy as np

__all__ = ['systematic']


def systematic(
    log_weights: np.ndarray, seed: int | Sequence[int]) -> np.ndarray:
  """Numbers of draws, each as often as its weight says, in their order.

  Of n draws with weights w that sum to n, draw k comes floor(w_k) or ceil(w_k)
  times, and w_k times in the mean: those where w_1 + ... + w_k passes u, u + 1,
  u + 2, ..., with one u uniform in [0, 1).

  Args:
    log_weights: Array `[n]`, the logarithms up to a constant.
    seed: Python `int`, or several.

  Returns:
    indices: Integer array `[n]`, not decreasing.

  #### Examples

  >>> systematic(np.log([3., 1., 0.5, 1.5]), seed=0)
  array([0, 0, 1, 3])
  """
  log_weights = np.asarray(log_weights, np.float64)
  weights = np.exp(log_weights - np.max(log_weights))
  ends = np.cumsum(weights) * (len(weights) / np.sum(weights))
  ends[-1] = len(weights)  # Which rounding may miss.
  places = np.arange(len(weights)) + np.random.default_rng(seed).uniform()
  return np.searchsorted(ends, places, side='right')
