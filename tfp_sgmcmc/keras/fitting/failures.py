"""What is said of a chain in `fit` that has become NaN or infinite."""

from typing import Any

from tfp_sgmcmc import errors
from tfp_sgmcmc.keras.fitting import advice
from tfp_sgmcmc.keras.fitting import settings as settings_lib
from tfp_sgmcmc.keras.heat import judge

__all__ = ['refusal', 'why_it_stops']


def why_it_stops(
    step: Any, bad: int, num_draws: int, settings: settings_lib.Settings,
    more_advice: str | None, of_data: str | None,
) -> str:
  """Why training stops, what is kept, and what to do.

  Args:
    step: `StepOfChains` that failed, with the weights of that time, or of the
      end of the program that made the step.
    bad: Python `int`, the number of the step.
    num_draws: Python `int`, the number of draws made before.
    settings: `Settings` of the chain.
    more_advice: A further sentence on what to do, or None.
    of_data: What of the data makes the loss NaN, or None.

  Returns:
    said: Sentences.
  """
  # The momentum may be the first to become so, a step before the weights.
  failure = errors.find_failure(
      step.results(), step.weights()) or errors.Failure(
          errors.NonFiniteError,
          f'the momentum{step.where_bad()} is not finite',
          '')
  what_to_do = failure.advice
  if not settings.schedule.is_continuous:
    what_to_do = (
        'Most often the steps are too large for the noise and the curvature '
        f'there. {advice.smaller_steps(settings)} {errors.OTHER_CAUSES}.')
  kept = judge.NO_DRAW
  if num_draws:
    kept = (
        f'The {num_draws} draw(s) made before are kept, and the '
        'weights are those of the last (the draws of the steps just before '
        'may be far from the posterior)')
  stops = (
      f'Training stops: at step {bad} of the chain {failure.reason}. {kept}.')
  if of_data is not None:
    return f'{stops} {of_data}'
  return ' '.join([
      stops, what_to_do, *([] if more_advice is None else [more_advice]),
      'It may also help to start from a trained model (start_epoch).'])


def refusal(store: Any, bad: int) -> str:
  """Why a chain that failed in an earlier process cannot go on.

  Args:
    store: `Store` of the chain.
    bad: Python `int`, the number of the step at which it failed.

  Returns:
    said: A sentence.
  """
  before = (
      'and cannot go on. PosteriorSamples.load(directory, model) reads the '
      'draws before; to try' if store.num_draws else
      'before its first draw, and cannot go on. To try')
  return (
      f'The chain in {store.path} became NaN or infinite at step {bad}, '
      f'{before} again with smaller steps give another directory.')
