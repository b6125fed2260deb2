"""Convergence of chains: R-hat, effective draws, drift.

The numbers of a chain are arrays `[chain, draw]`, or `[chain, draw, d]`. R-hat,
effective sample sizes and standard errors are ArviZ' (the extra `arviz`).

#### References

[1]: Aki Vehtari, Andrew Gelman, Daniel Simpson, Bob Carpenter, Paul-Christian
     Buerkner. Rank-normalization, Folding, and Localization: An Improved R-hat
     for Assessing Convergence of MCMC. _Bayesian Analysis_, 2021.
"""

from collections.abc import Callable
from typing import Any
import warnings

import numpy as np

from tfp_sgmcmc.diagnostics import verdicts

__all__ = [
    'drift', 'effective_draws', 'r_hat', 'rank_r_hats', 'standard_error']

# Below it R-hat and effective sample sizes are themselves too noisy, [1].
_ENOUGH_DRAWS = 400.
_ENOUGH_BY_CHAIN = 8


def _arviz() -> Any:
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # Of its next version.
      import arviz  # pylint: disable=g-import-not-at-top
  except ImportError as error:
    raise ImportError(
        'R-hat, effective draws and standard errors of chains need ArviZ: '
        'pip install "tfp_sgmcmc[arviz]".') from error
  return arviz


def _by_coordinate(function, values, **arguments):
  """An ArviZ statistic of `[chain, draw, d]`, `[d]`."""
  arviz = _arviz()
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    data = arviz.convert_to_dataset({'x': values})
    found = getattr(arviz, function)(data, **arguments)['x'].values
  return np.asarray(found, np.float64)


def standard_error(values: np.ndarray) -> np.ndarray:
  """The Monte Carlo standard error of the mean, `[d]` of `[chain, draw, d]`."""
  if values.shape[1] >= _ENOUGH_BY_CHAIN:
    return _by_coordinate('mcse', values, method='mean')
  by_chain = values.mean(axis=1)
  if len(by_chain) == 1:
    return np.full(by_chain.shape[1:], np.nan)
  return by_chain.std(axis=0, ddof=1) / np.sqrt(len(by_chain))


def r_hat(
    name: str, values: np.ndarray, place: Callable[[int], str] | None = None,
) -> verdicts.Row:
  """The row of the largest rank R-hat of `[chain, draw, d]`.

  Of the halves of chains, as [1] has it. Fine below 1.05, wrong above 1.2, or
  above what is due to chance where the draws are few: with m halves of n
  independent draws R-hat^2 is about (n - 1) / n + F / n, F of m - 1 and
  m (n - 1) degrees of freedom. `place` says of the index of a coordinate what
  it is called.
  """
  found, by_chance = rank_r_hats(values)
  largest = np.max(found)
  limit = max(1.05, by_chance)
  return verdicts.Row(
      f'rank R-hat of {name}', float(largest), None,
      _grade(largest, limit, max(1.2, by_chance)), _say(
          largest <= limit,
          f'It has to be below {limit:.3g}.{_worst(place, np.argmax(found))}',
          'The chains disagree with each other, or their halves do: make '
          'burn-in and run longer, or start in a better place.'))


def rank_r_hats(values: np.ndarray) -> tuple[np.ndarray, float]:
  """Rank R-hats of `[chain, draw, d]`, and what the largest may be by chance.

  Args:
    values: Array; a single chain counts as its two halves.

  Returns:
    r_hats: Array `[d]`.
    by_chance: Python `float`, see `r_hat`.
  """
  if len(values) == 1:  # ArviZ wants two chains: it halves these once more.
    half = values.shape[1] // 2
    values = np.concatenate([values[:, :half], values[:, -half:]])
  return (
      _by_coordinate('rhat', values, method='rank'),
      float(_r_hat_by_chance(*values.shape)))


def _r_hat_by_chance(num_chains, num_draws, num_coordinates):
  """What R-hat of right chains exceeds in one of a thousand tables."""
  import scipy.stats  # pylint: disable=g-import-not-at-top  # ArviZ needs it.
  m, n = 2 * num_chains, num_draws // 2
  # Each coordinate has two, of ranks and of folded ranks.
  f = scipy.stats.f.isf(
      verdicts.FALSE_ALARM_RATE / (2. * num_coordinates), m - 1, m * (n - 1))
  return np.sqrt((n - 1. + f) / n)


def effective_draws(
    name: str, values: np.ndarray, factor: float = 1.,
    enough: float = _ENOUGH_DRAWS,
    place: Callable[[int], str] | None = None,
    advice: str = '') -> verdicts.Row:
  """The row of the smallest effective sample size, times `factor`."""
  found = _by_coordinate('ess', values, method='bulk')
  smallest = factor * np.min(found)
  is_enough = smallest >= enough
  return verdicts.Row(
      f'effective draws of {name}', float(smallest), None,
      'fine' if is_enough else 'doubtful', _say(
          is_enough,
          f'At least {enough:.0f} are needed.'
          f'{_worst(place, np.argmin(found))}',
          'Run longer, or more chains; a larger step size moves faster.'
          f'{advice}'))


def drift(name: str, values: np.ndarray) -> verdicts.Row:
  """The row of the largest change from the first third to the last.

  In standard deviations of the last third.
  """
  third = values.shape[1] // 3
  first, last = values[:, :third], values[:, -third:]
  scale = last.std(axis=(0, 1))
  scale = np.where(scale > 0., scale, 1.)
  change = (last.mean(axis=(0, 1)) - first.mean(axis=(0, 1))) / scale
  # Both are measured by the spread of the last third: in the first the chain
  # may still be on its way.
  error = np.sqrt(2.) * standard_error(last) / scale
  return verdicts.judge(
      f'drift of {name}, in sd', change, error, 0., (0.1, 0.5),
      'It has to be 0.', 'The chain is still on its way: make burn-in longer.',
      needs_precision=False)  # That is for effective_draws to tell.


def _grade(value, doubtful, wrong):
  """By two upper limits; NaN is doubtful."""
  if value > wrong:
    return 'wrong'
  return 'fine' if value <= doubtful else 'doubtful'


def _worst(place, index):
  """A sentence that names the coordinate a row is of."""
  return '' if place is None else f' The worst is {place(int(index))}.'


def _say(is_fine, meaning, advice):
  return meaning if is_fine else f'{meaning} {advice}'
