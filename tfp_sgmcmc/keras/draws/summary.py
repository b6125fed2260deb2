"""How good the draws of a `fit` are: `diagnostics.summary` of them.

With p_s the predictions of draw s on given inputs, m_1 and m_2 their means over
the first and the last h of 2 h draws, and W the mean of the variances within
these halves, all summed over inputs and outputs,

  R-hat^2          = (h - 1) / h + |m_1 - m_2|^2 / (2 W)
  effective draws  = 4 W / |m_1 - m_2|^2, at most their number.

These are Gelman and Rubin's R-hat and the number of independent draws whose
halves would differ as much. One number for all predictions: the worst of many
R-hats from a few tens of draws would say nothing.

Draws with weights are judged at equal weights, `resampled()`.

Several chains are compared by ArviZ' rank R-hat and effective draws
(`diagnostics.chains`): of those 20 of the predicted numbers that vary most
within chains, which says nothing of how they differ between them; of the log
likelihood; and of 20 weights, evenly spread. In a model with hidden layers two
chains need not agree on the weights, for units can change places: there these
rows are not judged. Of 850 tables of four right chains of 30 independent draws
4 had a row that was not fine; of 20 with one chain 3 standard deviations
elsewhere, and of 20 with chains that had hardly moved, each had one that was
wrong.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import keras
import numpy as np

from tfp_sgmcmc import diagnostics
from tfp_sgmcmc.diagnostics import chains as chains_lib
from tfp_sgmcmc.diagnostics import runs as runs_lib
from tfp_sgmcmc.diagnostics import verdicts
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.draws import baselines
from tfp_sgmcmc.keras.draws import samples as samples_lib

__all__ = [
    'FEWEST_DRAWS', 'Agreement', 'agreement', 'few_rows', 'in_words',
    'rows_of_chains', 'rows_of_predictions']

FEWEST_DRAWS = 12
_MOST_DRAWS = 100
_MOST_NUMBERS = 2**24
_MOST_COORDINATES = 20
_ENOUGH = 10.


class Agreement(NamedTuple):
  """How far the halves of a run agree in their predictions.

  Attributes:
    r_hat: Python `float`.
    effective_draws: Python `float`.
    num_draws: Python `int`.
  """
  r_hat: float
  effective_draws: float
  num_draws: int


def agreement(values: np.ndarray) -> Agreement:
  """R-hat and effective draws of the numbers `[draws, d]` of one chain.

  Args:
    values: Array.

  Returns:
    agreement: `Agreement`; R-hat is infinite where draws change between the
      halves alone, and 1 where nothing changes.

  #### Examples

  >>> agreement(np.array([[0.], [2.], [0.], [2.]]))._replace(num_draws=4)
  Agreement(r_hat=0.7071067811865476, effective_draws=4.0, num_draws=4)
  """
  values = np.asarray(values, np.float64)
  half = len(values) // 2
  halves = values[:half], values[-half:]
  between = np.sum((halves[0].mean(axis=0) - halves[1].mean(axis=0))**2)
  within = np.mean([np.sum(h.var(axis=0, ddof=1)) for h in halves])
  if not within > 0.:
    r_hat = 1. if between == 0. else np.inf
  else:
    r_hat = np.sqrt((half - 1.) / half + between / (2. * within))
  number = 4. * within / between if between > 0. else np.inf
  return Agreement(
      float(r_hat), float(min(number, len(values))), len(values))


def rows_of_predictions(
    posterior: samples_lib.PosteriorSamples, x: hints.Data,
) -> tuple[verdicts.Row, ...]:
  """The rows of the predictions on given inputs.

  Args:
    posterior: `PosteriorSamples`, a chain's draws in its order.
    x: Inputs, as `predict` takes them.

  Returns:
    rows: R-hat and effective draws; of several chains as `rows_of_chains`.

  Raises:
    ValueError: If a chain has fewer than 12 draws.
  """
  if posterior.num_chains > 1:
    return runs_lib.summary_of_runs(posterior, [posterior], x).rows
  even = posterior.resampled()
  found = agreement(_predictions(_some(even, len(even)), x))
  is_mixed, is_enough = found.r_hat <= 1.05, found.effective_draws >= _ENOUGH
  return (
      verdicts.Row(
          'R-hat of predictions', found.r_hat, None,
          'fine' if is_mixed else 'doubtful' if found.r_hat <= 1.2 else 'wrong',
          'It has to be below 1.05.' + ('' if is_mixed else (
              ' The halves of the run disagree: make burn-in and the run '
              'longer (more epochs, num_steps_per_batch).'))),
      verdicts.Row(
          'effective draws of predictions', found.effective_draws, None,
          'fine' if is_enough else 'doubtful',
          f'At least {_ENOUGH:.0f} are needed.' + ('' if is_enough else (
              ' Run longer, with draws further apart.'))))


def few_rows(posterior: samples_lib.PosteriorSamples, x: hints.Data) -> Any:
  """As many rows of arrays as have predictions that fit in memory.

  Args:
    posterior: `PosteriorSamples`.
    x: Inputs, arrays or tensors.

  Returns:
    x: The first rows.
  """
  one = keras.tree.map_structure(lambda a: None if a is None else a[:1], x)
  size = sum(
      np.size(a) for a in keras.tree.flatten(posterior[:1].predict(one)))
  number = max(1, _MOST_NUMBERS // (size * min(len(posterior), _MOST_DRAWS)))
  return keras.tree.map_structure(
      lambda a: None if a is None else a[:number], x)


def in_words(
    summary: Callable[[Any], verdicts.Summary],
    posterior: samples_lib.PosteriorSamples,
    x: hints.Data,
) -> str | None:
  """How good the draws of a `fit` are, in three lines.

  Args:
    summary: Callable of inputs.
    posterior: `PosteriorSamples`, not empty.
    x: Inputs, of which `few_rows` are taken.

  Returns:
    said: Python `str`; None where predictions are not finite, which has been
      warned of before.
  """
  number = min(len(chain) for chain in posterior.chains)
  if number < FEWEST_DRAWS:
    each = ' a chain' if posterior.num_chains > 1 else ''
    return (f'{number} draw(s){each} are too few to tell how good they are, '
            f'{FEWEST_DRAWS} are needed: raise epochs.')
  try:
    found = summary(few_rows(posterior, x))
  except ValueError:
    return None
  numbers = ', '.join(f'{r.quantity} {r.value:.3g}' for r in found.rows)
  worst = next(r for r in found.rows if r.verdict == found.verdict)
  return f'{len(posterior)} draws: {numbers}.\nIn all: ' + (
      'fine.' if found.verdict == 'fine'
      else f'{found.verdict}. {worst.quantity}: {worst.advice}') + (
          f'\n{verdicts.about()} For that, .summary(x, y) on held-out data.')


def rows_of_chains(
    predictions: np.ndarray,
    log_likelihood: np.ndarray | None,
    weights: np.ndarray,
    has_hidden_layers: bool,
) -> list[verdicts.Row]:
  """The rows of several chains, whose numbers are `[chain, draw, d]`.

  Args:
    predictions: Array.
    log_likelihood: Array; None where it is not known.
    weights: Array.
    has_hidden_layers: Python `bool`, whether weights can change places.

  Returns:
    rows: R-hat and effective draws of each.
  """
  within = np.mean(np.var(predictions, axis=1), axis=0)
  most = np.argsort(-within, kind='stable')[:_MOST_COORDINATES]
  rows = _rows_of('predictions', predictions[..., most])
  if log_likelihood is not None:
    rows += _rows_of('the log likelihood', log_likelihood)
  of_weights = _rows_of('the weights', weights)
  if has_hidden_layers:
    of_weights = [row._replace(verdict='fine', advice=(
        'Not judged: the units of hidden layers can change places.'))
                  for row in of_weights]
  return rows + of_weights


def _rows_of(name, values):
  return [chains_lib.r_hat(name, values),
          chains_lib.effective_draws(name, values, enough=_ENOUGH)]


def _some(posterior, number):
  """Of the last draws, so many or fewer, evenly spaced."""
  if number < FEWEST_DRAWS:
    raise ValueError(
        f'There are {number} draws, and {FEWEST_DRAWS} at least are needed to '
        'tell anything of a run: raise epochs, or lower '
        'num_steps_between_results.')
  every = max(1, number // _MOST_DRAWS)
  return posterior[len(posterior) - number + number % every::every]


def _predictions(posterior, x):
  """The predictions of each draw in a row, `[draws, d]`."""
  return np.concatenate([
      np.reshape(a, [len(posterior), -1]) for a in keras.tree.flatten(
          posterior.predict(x, return_samples=True))], axis=-1)


def _weights(posterior):
  """Some coordinates of the weights, `[draws, d]`."""
  total = sum(w.size for w in posterior[0])
  index = np.unique(np.linspace(
      0, total - 1, min(total, _MOST_COORDINATES)).astype(int))
  return np.stack([
      np.concatenate([np.ravel(w) for w in draw])[index]
      for draw in posterior])


@diagnostics.summary.register
def _(result: samples_lib.PosteriorSamples, x, y=None):
  if result.num_chains > 1:
    return runs_lib.summary_of_runs(result, [result], x, y)
  result = result.resampled()
  rows = rows_of_predictions(result, x)
  if y is not None:
    values = _some(result, len(result)).log_likelihood(x, y)
    rows += (
        *_rows_of('the log likelihood', np.mean(
            values, axis=1, keepdims=True)[np.newaxis]),
        baselines.row([result], values, x, y))
  return verdicts.Summary(rows)


@runs_lib.summary_of_runs.register
def _(first: samples_lib.PosteriorSamples, runs, x, y=None):
  shapes = {str([w.shape for w in run[0]]) for run in runs if len(run)}
  if len(shapes) > 1:
    raise ValueError(
        f'The draws are of weights of shapes {" and ".join(sorted(shapes))}: '
        'draws of one model are needed.')
  runs = [chain for run in runs for chain in run.resampled().chains]
  number = min(len(run) for run in runs)
  runs = [_some(run, number) for run in runs]
  values = None if y is None else np.stack([
      run.log_likelihood(x, y) for run in runs])
  rows = rows_of_chains(
      np.stack([_predictions(run, x) for run in runs]),
      None if values is None else np.mean(values, axis=2, keepdims=True),
      np.stack([_weights(run) for run in runs]),
      sum(len(v.shape) > 1 for v in first.model.trainable_variables) > 1)
  if values is not None:
    rows.append(baselines.row(runs, np.concatenate(values), x, y))
  return verdicts.Summary(tuple(rows))
