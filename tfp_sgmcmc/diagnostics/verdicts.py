"""Verdicts on measured numbers: fine, doubtful or wrong.

A number is compared with a reference, with two tolerances. Only the deviation
that its standard error does not explain counts. With z the normal quantile of
the false alarm rate (shared among the coordinates that the worst is taken of)
and excess = |value - reference| - z standard_error,

  wrong     excess is above the larger tolerance
  doubtful  it is above the smaller one; or z standard_error alone is above the
            larger one, so that the number says nothing; or it is NaN; or it
            is four of the larger ones off, whatever its error
  fine      else.
"""

from collections.abc import Callable
import math
import statistics
from typing import NamedTuple

import numpy as np

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints

__all__ = [
    'FALSE_ALARM_RATE', 'NLL', 'Row', 'Summary', 'about', 'findings',
    'interval', 'judge', 'quantile']

FALSE_ALARM_RATE = 1e-3
VERDICTS = ('fine', 'doubtful', 'wrong')
# The row that compares predictions with simpler ones.
NLL = 'NLL of predictions'
_ABOUT = (
    'It is about whether draws and chains agree and are at the temperature,')
_NOT_ABOUT = 'not about how good the predictions are.'
_RUN_LONGER = 'Too few draws to tell: run longer, or more chains.'
_NOT_FINITE = (
    'There is no such number: the log density is NaN or infinite at some '
    'draws, or for some rows of the data, or the chains have not moved.')
# So many tolerances off, a number is not right, whatever its error.
_ABSURD = 4.


class Row(NamedTuple):
  """A row of a `Summary`.

  Attributes:
    quantity: What was measured, in words.
    value: Python `float`.
    standard_error: Python `float`; None if the value is not an estimate.
    verdict: 'fine', 'doubtful' or 'wrong'.
    advice: What the value has to be and, if it is not fine, what to try.
  """
  quantity: str
  value: float
  standard_error: float | None
  verdict: str
  advice: str


class Summary(NamedTuple):
  """A table of verdicts; `print` shows it.

  Attributes:
    rows: Tuple of `Row`s.

  #### Examples

  >>> from tfp_sgmcmc.diagnostics import verdicts
  >>> print(sgmcmc.diagnostics.Summary((verdicts.Row(
  ...     'kinetic temperature / T', 1.02, 0.01, 'fine', 'It has to be 1.'),)))
  quantity                 value  +-    verdict
  kinetic temperature / T  1.02   0.01  fine     It has to be 1.
  In all: fine.
  It is about whether draws and chains agree and are at the temperature,
  not about how good the predictions are.
  """
  rows: tuple[Row, ...]

  @property
  def verdict(self) -> str:
    """The worst of the rows'."""
    return max((row.verdict for row in self.rows), key=VERDICTS.index)

  def __str__(self):
    table = [('quantity', 'value', '+-', 'verdict', '')]
    for row in self.rows:
      error = row.standard_error
      table.append((
          row.quantity, f'{row.value:.4g}',
          '' if error is None else f'{error:.2g}', row.verdict, row.advice))
    widths = [max(map(len, column)) for column in zip(*table)]
    lines = [
        '  '.join(cell.ljust(width) for cell, width in zip(line, widths))
        for line in table]
    return '\n'.join([
        *(line.rstrip() for line in lines), f'In all: {self.verdict}.',
        _ABOUT, 'and about how the predictions compare with simpler ones.'
        if any(row.quantity == NLL for row in self.rows) else _NOT_ABOUT])


def about() -> str:
  """What a verdict without the row `NLL` is about, in a sentence."""
  return f'{_ABOUT} {_NOT_ABOUT}'


def interval(values: np.ndarray) -> tuple[float, float]:
  """The interval of a mean of independent values, at a false-alarm rate.

    mean - z s / sqrt(n),  mean + z s / sqrt(n)

  Args:
    values: Array `[n]`.

  Returns:
    low: Python `float`; -inf of a single value.
    high: Python `float`; inf of a single value.
  """
  if len(values) < 2:
    return -np.inf, np.inf
  mean = np.mean(values)
  error = quantile() * np.std(values, ddof=1) / len(
      values)**0.5
  return float(mean - error), float(mean + error)


def judge(
    quantity: str,
    value: np.ndarray | float,
    standard_error: np.ndarray | float,
    reference: float,
    tolerances: tuple[float, float],
    meaning: str,
    advice: str | Callable[[int], str],
    needs_precision: bool = True,
    number: int | None = None,
) -> Row:
  """The row of a number, or of the worst of several.

  Args:
    quantity: What was measured.
    value: One number, or an array.
    standard_error: Likewise.
    reference: What the value has to be.
    tolerances: The smaller and the larger, of the distance from the reference.
    meaning: A sentence that says what the value has to be.
    advice: Sentences that say what to try where it is not; or a function that
      returns them for the index of the worst.
    needs_precision: Whether a large standard error is doubtful; else it is
      where the value is far off.
    number: Of how many the values are those farthest from the reference; by
      default they are all.

  Returns:
    row: `Row`.
  """
  values, errors = (
      np.atleast_1d(np.asarray(x, np.float64)) for x in (value, standard_error))
  z = quantile(FALSE_ALARM_RATE / (number or len(values)))
  distances = np.abs(values - reference) - z * errors
  worst = int(np.argmax(np.where(np.isnan(distances), np.inf, distances)))
  verdict = 'fine'
  if distances[worst] > tolerances[1]:
    verdict = 'wrong'
  elif distances[worst] > tolerances[0]:
    verdict = 'doubtful'
  elif not np.all(np.isfinite(values)):
    verdict, advice = 'doubtful', _NOT_FINITE
  elif not np.all(np.isfinite(distances)) or (
      needs_precision and z * errors.max() > tolerances[1]):
    verdict, advice = 'doubtful', _RUN_LONGER
  elif np.abs(values - reference).max() > _ABSURD * tolerances[1]:
    worst = int(np.argmax(np.abs(values - reference)))
    verdict, advice = 'doubtful', _RUN_LONGER
  if callable(advice):
    advice = advice(worst)
  return Row(
      quantity, float(values[worst]), float(errors[worst]), verdict,
      meaning if verdict == 'fine' else f'{meaning} {advice}')


def findings(
    kernel_results: hints.Results, estimator: object = None) -> list[Row]:
  """The rows of what kernel results, and those of an estimator, say of a run.

  Args:
    kernel_results: The last of a run.
    estimator: The gradient estimator; None where it is not known.

  Returns:
    rows: A row for each `gradients.Finding`; None makes none.
  """
  found = [
      find(estimator) for find in (
          compat.find_result(results, 'finding') for results in (
              kernel_results, compat.find_result(
                  kernel_results, 'gradient_estimator_results')))
      if find is not None]
  return [
      Row(
          f.quantity, f.value, None, 'fine' if f.is_fine else 'doubtful',
          f.advice) for f in found if f is not None]


def quantile(rate: float = FALSE_ALARM_RATE) -> float:
  """z with P(|N(0, 1)| > z) = rate."""
  return math.fabs(statistics.NormalDist().inv_cdf(rate / 2.))
