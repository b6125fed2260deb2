"""How good predicted distributions and intervals of numbers are.

Targets `y` and their predictions are tensors or NumPy arrays. With several
targets an example, each counts separately. Predictions of a posterior are
`posterior.interval(x, level)` and `posterior.predictive(x)`.

#### References

[1]: Tilmann Gneiting, Adrian E. Raftery. Strictly Proper Scoring Rules,
     Prediction, and Estimation. _JASA_, 2007.
[2]: Eric P. Grimit, Tilmann Gneiting, Veronica J. Berrocal, Nicholas A.
     Johnson. The continuous ranked probability score for circular variables
     and its application to mesoscale forecast ensemble verification. _QJRMS_,
     2006.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints

__all__ = ['coverage', 'crps', 'interval_score', 'pit']

tfd = tfp.distributions

# Numbers held at once where draws are compared in pairs.
_BLOCK = 2**22


def coverage(interval: hints.TensorLike, y: hints.Data) -> float:
  """The share of targets that lie in their intervals, ends included.

  For intervals of level 0.9 it is 0.9 up to chance, with the standard deviation
  sqrt(0.9 * 0.1 / n) for n independent targets.

  Args:
    interval: `[2, n, ...]`, the lower and the upper ends.
    y: Targets `[n, ...]`.

  Returns:
    coverage: Number in [0, 1].

  Raises:
    ValueError: If the shapes do not fit, ends are in the wrong order, or there
      are NaN.

  #### Examples

  >>> coverage([[0., 0., 0., 0.], [1., 1., 1., 1.]], [0.5, 2., 0., -1.])
  0.5
  """
  lower, upper, y = _check_interval(interval, y)
  return float(np.mean((y >= lower) & (y <= upper)))


def interval_score(
    interval: hints.TensorLike,
    y: hints.Data,
    level: float,
) -> float:
  """The mean length of intervals, and a penalty for targets outside.

    1/n sum_i (u_i - l_i) + 2 / (1 - level) (l_i - y_i)^+
                          + 2 / (1 - level) (y_i - u_i)^+

  Its expectation is smallest for the interval between the quantiles (1 -
  level) / 2 and (1 + level) / 2 of the targets' law [1]. So it weighs the
  length of intervals against their coverage.

  Args:
    interval: `[2, n, ...]`, the lower and the upper ends.
    y: Targets `[n, ...]`.
    level: Python `float`, the nominal probability of the intervals.

  Returns:
    score: Number of at least 0, in units of the targets; less is better.

  Raises:
    ValueError: As for `coverage`, and if `level` is out of range.

  #### Examples

  >>> interval_score([[0., 0.], [1., 1.]], [0.5, 1.25], level=0.5)
  1.5
  """
  lower, upper, targets = _check_interval(interval, y)
  checks.level(level)
  return float(np.mean(interval_scores((lower, upper), targets, level)))


def interval_scores(
    interval: Sequence[np.ndarray] | np.ndarray,
    y: np.ndarray,
    level: float,
) -> np.ndarray:
  """The `interval_score` of each target.

  Args:
    interval: `[2, n, ...]`, the lower and the upper ends.
    y: Targets `[n, ...]`.
    level: Python `float`.

  Returns:
    scores: Array `[n, ...]`.
  """
  lower, upper = interval
  outside = np.maximum(lower - y, 0.) + np.maximum(y - upper, 0.)
  return upper - lower + 2. / (1. - level) * outside


def pit(predictive: Any, y: hints.Data) -> np.ndarray:
  """The probability integral transform: each target's predicted quantile.

    u_i = F_i(y_i)

  with F_i the predicted cumulative distribution function. If a prediction of
  continuous targets is calibrated, these are uniform on [0, 1]: `plots.pit`
  draws their histogram. Many values near 0 and 1 mean that predictions are
  overconfident, many near 0.5 that they are underconfident.

  Args:
    predictive: `tfd.Distribution` of univariate continuous targets, with a cdf;
      or samples of it, `[m, n, ...]`: u is then the share of samples below y
      plus half the share equal to y.
    y: Targets `[n, ...]`.

  Returns:
    u: Array `[n, ...]` of float64.

  Raises:
    ValueError: If the shapes do not fit, there are NaN, or the distribution is
      not one of continuous numbers.

  #### Examples

  >>> pit(tfd.Normal([0., 0.], 1.), [0., 1.6448536]).round(4)
  array([0.5 , 0.95])
  """
  if isinstance(predictive, tfd.Distribution):
    y = _check_distribution(predictive, y)
    try:
      u = predictive.cdf(tf.cast(y, predictive.dtype))
    except NotImplementedError as error:
      raise ValueError(
          f'{predictive.name} has no cdf in TFP: pass samples of it.'
      ) from error
    return np.asarray(u, np.float64)
  samples, y = _check_samples(predictive, y)
  return np.mean(samples < y, axis=0) + 0.5 * np.mean(samples == y, axis=0)


def crps(predictive: Any, y: hints.Data) -> float:
  """The continuous ranked probability score, a mean over targets.

    CRPS = 1/n sum_i E|X_i - y_i| - E|X_i - X_i'| / 2

  with X and X' independent and of the predicted distribution [1]. For a single
  number in place of a distribution it is the absolute error.

  Args:
    predictive: `tfd.Normal`, or a `tfd.MixtureSameFamily` of them, as
      `posterior.predictive(x)` is for `GaussianLikelihood`: the score is exact
      [2], in time that grows with the square of the number of components.
      Otherwise at least two samples `[m, n, ...]`, independent for each target:
      the expectation of the score is then that of their law.
    y: Targets `[n, ...]`.

  Returns:
    crps: Number of at least 0 (by samples up to chance), in units of the
      targets; less is better.

  Raises:
    ValueError: If the shapes do not fit, there are NaN, or the distribution is
      of another kind.

  #### Examples

  >>> round(crps(tfd.Normal([0., 0.], 1.), [0., 1.]), 4)
  0.4181
  >>> round(crps([[0.], [1.]], [3.]), 4)
  2.0
  """
  if isinstance(predictive, tfd.Distribution):
    y = _check_distribution(predictive, y)
    parts = _normal_components(predictive)
    if parts is None:
      raise ValueError(
          f'{predictive} is no Normal and no mixture of them: pass samples of '
          'it, such as predictive.sample(100).')
    loc, scale, shares = parts
    return float(np.mean(_score_of_normal_mixture(loc, scale, shares, y)))
  samples, targets = _check_samples(predictive, y)
  if len(samples) < 2:
    raise ValueError('There is one sample for each target: two are needed.')
  return float(np.mean(crps_of_samples(samples, targets)))


def crps_of_samples(samples: np.ndarray, y: np.ndarray) -> np.ndarray:
  """The `crps` of each target, by samples.

  Args:
    samples: Array `[m, n, ...]`, m at least 2.
    y: Targets `[n, ...]`.

  Returns:
    scores: Array `[n, ...]`.
  """
  number = len(samples)
  # Of sorted samples sum_jk |x_j - x_k| / 2 = sum_k (2 k - m + 1) x_k.
  factors = 2. * np.arange(number) - number + 1.
  between = np.tensordot(factors, np.sort(samples, axis=0), 1)
  return np.mean(np.abs(samples - y), axis=0) - between / (
      number * (number - 1.))


def _score_of_normal_mixture(loc, scale, shares, y):
  """The CRPS of mixtures of normal distributions, `[n, ...]`.

    sum_s w_s A(y - m_s, v_s) - 1/2 sum_st w_s w_t A(m_s - m_t, v_s + v_t)

  with A(m, v) = E|X| for X of mean m and variance v [2].
  """
  shape = np.shape(y)
  loc, scale = (
      np.reshape(
          np.broadcast_to(a, [len(shares), *shape]), [len(shares), -1]).astype(
              np.float64) for a in (loc, scale))
  y = np.reshape(y, -1)
  found = np.empty(len(y))
  size = max(_BLOCK // len(shares), 1)
  for k in range(0, len(y), size):
    m, v = loc[:, k:k + size], np.square(scale[:, k:k + size])
    value = np.tensordot(shares, _mean_absolute(y[k:k + size] - m, v), 1)
    for one_m, one_v, share in zip(m, v, shares):
      value -= 0.5 * share * np.tensordot(
          shares, _mean_absolute(one_m - m, one_v + v), 1)
    found[k:k + size] = value
  return np.reshape(found, shape)


def _mean_absolute(mean, variance):
  """E|X| of a normal X."""
  scale = np.sqrt(variance)
  z = mean / scale
  return mean * tf.math.erf(z * np.sqrt(0.5)).numpy() + scale * np.sqrt(
      2. / np.pi) * np.exp(-0.5 * np.square(z))


def _normal_components(distribution):
  """Means and standard deviations `[k, n, ...]`, and weights; None if none."""
  while isinstance(distribution, tfd.Independent):
    distribution = distribution.distribution
  if type(distribution) is tfd.Normal:
    return tuple(
        value.numpy()[np.newaxis] for value in (
            distribution.mean(), distribution.stddev())) + (np.ones(1),)
  if isinstance(distribution, tfd.MixtureSameFamily):
    normal = distribution.components_distribution
    weights = distribution.mixture_distribution.probs_parameter().numpy()
    if type(normal) is tfd.Normal and weights.ndim == 1:
      weights = weights.astype(np.float64)
      return (*(np.moveaxis(value.numpy(), -1, 0) for value in (
          normal.mean(), normal.stddev())), weights / np.sum(weights))
  return None


def _check_interval(interval, y):
  interval = checks.real_array('interval', interval)
  y = checks.real_array('y', y)
  if interval.shape != (2, *y.shape):
    raise ValueError(
        f'interval has shape {interval.shape} and y {y.shape}: the lower and '
        'the upper end of each target are needed, [2, n, ...].')
  _check_values(interval=interval, y=y)
  lower, upper = interval
  if np.any(lower > upper):
    raise ValueError('interval has lower ends above the upper ones.')
  return lower, upper, y


def _check_samples(samples, y):
  samples = checks.real_array('predictive', samples)
  y = checks.real_array('y', y)
  if samples.shape[1:] != y.shape or not samples.ndim:
    raise ValueError(
        f'predictive has shape {samples.shape} and y {y.shape}: some samples '
        'of each target are needed, [m, n, ...].')
  _check_values(predictive=samples, y=y)
  return samples, y


def _check_distribution(distribution, y):
  y = checks.real_array('y', y)
  shape = distribution.batch_shape + distribution.event_shape
  if not distribution.dtype.is_floating or tuple(shape) != y.shape:
    raise ValueError(
        f'predictive is of shape {tuple(shape)} and dtype '
        f'{distribution.dtype.name}, and y of shape {y.shape}: a distribution '
        'of continuous numbers is needed, one for each target.')
  _check_values(y=y)
  return y


def _check_values(**arrays):
  for name, values in arrays.items():
    if not values.size:
      raise ValueError(f'{name} is empty: one target at least is needed.')
    if np.any(np.isnan(values)):
      raise ValueError(f'{name} holds {np.sum(np.isnan(values))} NaN.')
