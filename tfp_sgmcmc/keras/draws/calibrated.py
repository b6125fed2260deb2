"""Predictions calibrated on held-out data.

The probabilities of a posterior are right if its model is right. Held-out data
show how far to trust it, and correct it:

* of classes, temperature scaling [1]: p_k^(1/T) / sum_j p_j^(1/T), with the T
  that minimises the negative log likelihood of the held-out data;
* split conformal prediction [2]. With scores s_i of the n held-out rows, of
  which a large one says that the target is unlike its prediction, the bound

    q = the ceil((n + 1) level)-th smallest s_i

  is not exceeded by a new row's score with a probability of at least `level`,
  whatever the model, if the rows are exchangeable. That is so on average over
  held-out and new rows, not for rows of each kind.

The score of a class is 1 - p_class, and that of a number its distance from the
posterior's interval, in units of its length, negative inside [3]:

  s = max(l - y, y - u) / (u - l).

#### References

[1]: Chuan Guo, Geoff Pleiss, Yu Sun, Kilian Q. Weinberger. On Calibration of
     Modern Neural Networks. _ICML_, 2017.
[2]: Vladimir Vovk, Alex Gammerman, Glenn Shafer. _Algorithmic Learning in a
     Random World_. Springer, 2005.
[3]: Yaniv Romano, Evan Patterson, Emmanuel Candes. Conformalized Quantile
     Regression. _NeurIPS_, 2019.
"""

import math
from typing import Any

import numpy as np

from tfp_sgmcmc.diagnostics import calibration
from tfp_sgmcmc.diagnostics import forecasts
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.draws import predictive as predictive_lib

__all__ = ['CalibratedPosterior', 'conformal_bound', 'temperature']

_TINY = 1e-300
_MOST_LOG_TEMPERATURE, _NUM_HALVINGS = 10., 60


class CalibratedPosterior:
  """Predictions of a posterior, calibrated on data that it has not seen.

  It is made by `posterior.calibrated(x, y)`, of a model with one output.

  #### Examples

  A model that gives each row the probability 0.88, and is right in three of
  four:

  >>> model = keras.Sequential([
  ...     keras.Input([2]), keras.layers.Dense(2, use_bias=False)])
  >>> model.compile('sgd', keras.losses.SparseCategoricalCrossentropy(
  ...     from_logits=True))
  >>> posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
  ...     model, [2. * tf.eye(2)[tf.newaxis]])
  >>> x = tf.repeat(tf.eye(2), 4, axis=0)
  >>> posterior.predict(x[:1]).round(2)
  array([[0.88, 0.12]], dtype=float32)
  >>> calibrated = posterior.calibrated(x, [0, 0, 0, 1, 1, 1, 1, 0])
  >>> round(calibrated.temperature, 2), calibrated.predict(x[:1]).round(2)
  (1.82, array([[0.75, 0.25]], dtype=float32))
  """

  def __init__(
      self,
      posterior: Any,
      x: hints.Data,
      y: hints.Data,
      *,
      batch_size: int = 128,
  ):
    """See `PosteriorSamples.calibrated`.

    Args:
      posterior: `PosteriorSamples`.
      x: Inputs that were not trained on.
      y: Their targets.
      batch_size: Python `int`, examples at a time.
    """
    self._posterior, self._batch_size = posterior, batch_size
    self._x, self._bounds = x, {}
    p = posterior.predict(x, batch_size)
    self._term = predictive_lib.only_term(posterior.model, p)
    if not self._term.is_classification:
      self._temperature = None
      self._y = _targets(y, p.shape)
      return
    p = self._classes(p)
    labels = self._labels_of(y, p)
    self._temperature = temperature(p, labels)
    # Of each row, how unlikely its class was.
    p = _scaled(p, self._temperature)
    self._scores = 1. - p[np.arange(len(p)), labels]

  @property
  def temperature(self) -> float | None:
    """T of the temperature scaling; None if targets are not classes.

    Above 1 the posterior was overconfident.
    """
    return self._temperature

  def predict(self, x: hints.Data) -> np.ndarray:
    """Class probabilities after temperature scaling; else the posterior's mean.

    Args:
      x: Inputs, as for `PosteriorSamples.predict`.

    Returns:
      predictions: Array in the shape of `posterior.predict(x)`.
    """
    p = self._posterior.predict(x, self._batch_size)
    if self._temperature is None:
      return p
    scaled = _scaled(self._classes(p), self._temperature)
    if p.shape[-1] == 1:
      scaled = scaled[:, 1:]
    return scaled.astype(p.dtype)

  def interval(self, x: hints.Data, level: float = 0.9) -> np.ndarray:
    """Intervals that contain a target with a probability of at least `level`.

    They are the posterior's own intervals of that level, rescaled by the factor
    1 + 2 q with the conformal bound q.

    Args:
      x: Inputs, as for `PosteriorSamples.predict`.
      level: Python `float`, above 0 and below 1.

    Returns:
      interval: Array `[2, n, ...]`, the lower and the upper ends; infinite if
        there are fewer than level / (1 - level) held-out targets.

    Raises:
      ValueError: If the targets are classes, or as for
        `PosteriorSamples.interval`.
    """
    if self._temperature is not None:
      raise ValueError('The targets are classes: use sets(x, level).')
    checks.level(level)
    if level not in self._bounds:
      lower, upper = self._own(self._x, level)
      self._bounds[level] = conformal_bound(
          np.maximum(lower - self._y, self._y - upper) / (upper - lower), level)
    lower, upper = self._own(x, level)
    more = self._bounds[level] * (upper - lower)
    return np.stack([lower - more, upper + more])

  def sets(self, x: hints.Data, level: float = 0.9) -> np.ndarray:
    """Sets of classes that hold the right one with probability `level` or more.

    Args:
      x: Inputs, as for `PosteriorSamples.predict`.
      level: Python `float`, above 0 and below 1.

    Returns:
      sets: Array of `bool`s `[n, num_classes]`, whether each class is in the
        row's set; of a single probability `[n, 2]`. A set may be empty.

    Raises:
      ValueError: If the targets are no classes, or `level` is out of range.
    """
    if self._temperature is None:
      raise ValueError('The targets are no classes: use interval(x, level).')
    checks.level(level)
    p = self._classes(self._posterior.predict(x, self._batch_size))
    return 1. - _scaled(p, self._temperature) <= conformal_bound(
        self._scores, level)

  def evaluate(
      self,
      x: hints.Data,
      y: hints.Data,
      level: float = 0.9,
  ) -> dict[str, float]:
    """Scores on further data, used neither in training nor in calibration.

    Args:
      x: Inputs, as for `PosteriorSamples.predict`.
      y: Targets.
      level: Python `float`, of the intervals and sets.

    Returns:
      scores: `coverage`, the share of targets in their intervals or sets, and
        for classes `nll`, `brier`, `ece` after temperature scaling and `size`,
        the mean number of classes in a set; for numbers `interval_score` and
        `width`, the mean length.
    """
    if self._temperature is None:
      interval = self.interval(x, level)
      y = _targets(y, interval.shape[1:])
      return {
          'coverage': forecasts.coverage(interval, y),
          'interval_score': forecasts.interval_score(interval, y, level),
          'width': float(np.mean(interval[1] - interval[0]))}
    sets = self.sets(x, level)
    p = self._classes(self.predict(x))
    labels = self._labels_of(y, p)
    return {
        'coverage': float(np.mean(sets[np.arange(len(sets)), labels])),
        'size': float(np.mean(np.sum(sets, axis=-1))),
        'nll': float(calibration.negative_log_likelihood(p, labels)),
        'brier': float(calibration.brier_score(p, labels)),
        'ece': float(calibration.expected_calibration_error(p, labels))}

  def _own(self, x, level):
    """The posterior's intervals, in float64."""
    return np.asarray(self._posterior.interval(
        x, level, batch_size=self._batch_size), np.float64)

  def _classes(self, p):
    """Probabilities `[n, num_classes]`, in float64."""
    if p.ndim != 2 or (self._term.is_binary and p.shape[-1] != 1):
      raise ValueError(
          f'The predictions have shape {p.shape}: rows of one class each are '
          'needed, probabilities [n, num_classes], or [n, 1] of a binary '
          'crossentropy.')
    p = np.asarray(p, np.float64)
    return np.concatenate([1. - p, p], axis=-1) if p.shape[-1] == 1 else p

  def _labels_of(self, y, p):
    """Class numbers `[n]`, of targets in the form of the loss."""
    y = np.asarray(y)
    if not self._term.is_sparse and not self._term.is_binary:
      y = np.argmax(np.reshape(y, p.shape), axis=-1)
    y = _targets(y, [len(p)])
    if np.any((y < 0) | (y >= p.shape[-1]) | (y != np.floor(y))):
      raise ValueError(
          f'y holds numbers from {np.min(y):g} to {np.max(y):g}, and there are '
          f'{p.shape[-1]} classes: whole numbers from 0 on are needed.')
    return y.astype(np.int64)


def temperature(p: np.ndarray, labels: np.ndarray) -> float:
  """The T > 0 for which p^(1/T), normalised, has the least NLL.

  With b = 1 / T the NLL is convex, and its derivative is

    mean_i E[log p_i] - log p_i(label),  the E by the scaled probabilities.

  Args:
    p: Probabilities `[n, num_classes]`.
    labels: Class numbers `[n]`.

  Returns:
    temperature: Python `float`; e^10 or e^-10 where no finite one is best.
  """
  log_p = np.log(np.maximum(p, _TINY))
  of_labels = np.mean(log_p[np.arange(len(p)), labels])
  low, high = -_MOST_LOG_TEMPERATURE, _MOST_LOG_TEMPERATURE
  for _ in range(_NUM_HALVINGS):
    middle = 0.5 * (low + high)
    scaled = _scaled(p, math.exp(middle))
    expected = np.mean(np.sum(scaled * log_p, axis=-1))
    # Where the scaled law is surer than the labels bear out, T has to be more.
    low, high = (middle, high) if expected > of_labels else (low, middle)
  return math.exp(0.5 * (low + high))


def conformal_bound(scores: np.ndarray, level: float) -> float:
  """The ceil((n + 1) level)-th smallest score; infinite if there is none.

  Args:
    scores: Array with one score for each held-out target.
    level: Python `float`.

  Returns:
    bound: Python `float`.
  """
  scores = np.sort(np.reshape(scores, -1))
  # Less rounding: 10 * 0.9 is to be 9.
  rank = math.ceil((len(scores) + 1) * level - 1e-9)
  return float(scores[rank - 1]) if rank <= len(scores) else math.inf


def _scaled(p, by):
  log_p = np.log(np.maximum(p, _TINY)) / by
  scaled = np.exp(log_p - np.max(log_p, axis=-1, keepdims=True))
  return scaled / np.sum(scaled, axis=-1, keepdims=True)


def _targets(y, shape):
  """Targets in the shape of their predictions, or an error."""
  y = checks.real_array('y', y)
  if y.size != math.prod(shape) or not y.size:
    raise ValueError(
        f'y has shape {y.shape}, and the predictions {tuple(shape)}: one '
        'target for each is needed, and one at least.')
  if not np.all(np.isfinite(y)):
    raise ValueError('y holds values that are NaN or infinite.')
  return np.reshape(y, shape)
