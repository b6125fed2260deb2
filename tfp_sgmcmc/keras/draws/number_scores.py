"""Scores of predicted distributions of continuous numbers, over batches."""

from typing import Any

import numpy as np

from tfp_sgmcmc.diagnostics import forecasts
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.draws import predictive as predictive_lib
from tfp_sgmcmc.keras.model import inspection
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib

__all__ = ['LEVEL', 'NumberScores']

LEVEL = 0.9
# Of each target, for the CRPS: it takes a thousandth off the mixture's spread.
_NUM_SAMPLES = 1000
# To 1e-5 of the range of the draws' quantiles.
_NUM_HALVINGS = 17
_TINY = np.finfo(np.float64).tiny
# Numbers of all draws that wait to be scored together.
_BLOCK = 2**21


class NumberScores:
  """Coverage, interval score and CRPS of the targets of one output.

  Batches are scored some at a time: the mixture's quantiles are found by some
  tens of steps, each of which costs as much for one row as for a hundred.
  """

  def __init__(self, term: likelihood_lib.Term, shares: np.ndarray):
    """Makes the scores of no targets yet.

    Args:
      term: The loss of the output, which has a cdf.
      shares: The weight of each draw, `[draws]`, with a sum of 1.
    """
    self._term = term
    self._shares = shares
    # Each of a thousand samples of a target by one draw, as its weight says.
    ends = np.cumsum(shares) / np.sum(shares)
    self._index = np.minimum(np.searchsorted(
        ends, (np.arange(_NUM_SAMPLES) + 0.5) / _NUM_SAMPLES), len(shares) - 1)
    self._waiting, self._size = [], 0
    self._found = []

  def add(
      self,
      y: hints.TensorLike,
      outputs: np.ndarray,
      levels: np.ndarray,
      mask: hints.TensorLike | None,
      sample_weight: hints.TensorLike | None,
  ) -> None:
    """Adds a batch.

    Args:
      y: Targets.
      outputs: Those of all draws, `[draws, n, ...]`.
      levels: The mixture's cdf at the targets, `[n, ...]`.
      mask: None, or what the output's mask leaves out as 0.
      sample_weight: None, or weights of examples or of elements.
    """
    shape = levels.shape
    kept = inspection.counted(shape, mask, sample_weight)
    weights = np.ones(shape)
    if sample_weight is not None:
      own = np.asarray(sample_weight)
      while own.ndim > weights.ndim:
        own = own[..., 0]
      weights *= np.reshape(own, [*own.shape, *[1] * (len(shape) - own.ndim)])
    y = np.reshape(np.asarray(y, np.float64), shape)
    self._waiting.append((outputs, y, levels, kept, weights))
    self._size += y.size * max(len(self._shares), _NUM_SAMPLES)
    if self._size >= _BLOCK:
      self._score()

  def means(self) -> dict[str, float]:
    """The scores, NaN where no target counts.

    Without `crps` and `interval_score_90` where the draws' distributions
    cannot be stacked.
    """
    self._score()
    *scores, weights = (
        np.concatenate(parts) for parts in zip(*self._found))
    names = ['coverage_90', 'interval_score_90', 'crps'][:len(scores)]
    return {
        name: float(np.average(values, weights=weights))
        if np.any(weights) else np.nan for name, values in zip(names, scores)}

  def _score(self):
    """Scores the batches that wait."""
    if not self._waiting:
      return
    parts = list(zip(*self._waiting))
    outputs = np.concatenate(parts[0], axis=1)
    y, levels, kept, weights = map(np.concatenate, parts[1:])
    self._waiting, self._size = [], 0
    scores = [np.abs(2. * levels - 1.) <= LEVEL, *self._of_mixture(outputs, y)]
    self._found.append([values[kept] for values in [*scores, weights]])

  def _of_mixture(self, outputs, y) -> list[Any]:
    """The interval score and the CRPS of each target."""
    mixed = predictive_lib.mixture_or_none(
        self._term, outputs, np.log(np.maximum(self._shares, _TINY)),
        of_elements=True)
    if mixed is None:
      return []
    p = np.reshape([(1. - LEVEL) / 2., (1. + LEVEL) / 2.], [2] + [1] * y.ndim)
    interval = np.reshape(predictive_lib.quantiles(
        self._term, mixed, p, _NUM_HALVINGS), [2, *y.shape])
    samples = np.reshape(predictive_lib.sample(
        self._term, outputs, self._index,
        np.array([len(self._found), self._term.index], np.int32)),
        [-1, *y.shape])
    return [
        forecasts.interval_scores(interval, y, LEVEL),
        forecasts.crps_of_samples(samples.astype(np.float64), y)]
