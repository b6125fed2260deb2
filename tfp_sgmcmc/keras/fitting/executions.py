"""Which steps of a chain an execution of `fit` makes, and on what."""

from collections.abc import Callable
from collections.abc import Iterator
import itertools
from typing import Any

import keras

from tfp_sgmcmc import collectives
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.draws import draw_times
from tfp_sgmcmc.keras.fitting import progress as progress_lib
from tfp_sgmcmc.keras.fitting import rows_and_steps
from tfp_sgmcmc.keras.fitting import settings as settings_lib
from tfp_sgmcmc.keras.fitting import side_by_side
from tfp_sgmcmc.keras.model import compiled_step

__all__ = ['Executions']


class Executions:
  """The steps of executions, one for each batch, or several.

  Steps that draw all their rows take nothing of a batch. So those of the next
  batches are made with the first one, up to `compiled_step.MOST_AT_ONCE` in one
  program, and these batches do nothing.
  """

  def __init__(
      self,
      model: keras.Model,
      settings: settings_lib.Settings,
      progress: progress_lib.Progress,
      rows: rows_and_steps.RowsAndSteps,
  ):
    """Makes the object, before any batch.

    Args:
      model: Compiled `keras.Model`.
      settings: `Settings` of the chain.
      progress: Its `Progress`.
      rows: Its `RowsAndSteps`.
    """
    self._model, self._settings = model, settings
    self._progress, self._rows = progress, rows

  def repeat(self, chains: side_by_side.SideBySide) -> bool:
    """Whether a program makes several steps on what it gets of a batch."""
    return self._rows.steps_per_batch(chains) > 1 or chains.draws_all_rows

  def at_once(self, most: int, num_draws: int) -> int:
    """How many of the next steps can be made in one, without missing a draw.

    Args:
      most: Python `int`, how many there are at most.
      num_draws: Python `int`, the number of draws of each chain.
    """
    num_steps = self._progress.num_steps
    most = self._settings.schedule.at_once(num_steps, most, num_draws)
    search = self._settings.open_search
    return most if search is None else draw_times.num_to_first(
        search.is_due, num_steps, most)

  def steps(
      self,
      first: hints.Data,
      batches: Iterator[Any],
      chains: side_by_side.SideBySide,
      step: compiled_step.CompiledStep,
      num_draws: Callable[[], int],
  ) -> Iterator[dict[str, Any]]:
    """Makes the steps of an execution.

    Args:
      first: The first batch.
      batches: Iterator over those after it.
      chains: `SideBySide` of the chains.
      step: `CompiledStep`.
      num_draws: Callable that returns the number of draws of each chain.

    Yields:
      logs: Those of a step, or of several that were made in one. What is due
        after it has to be done before the next.
    """
    most = self._model.steps_per_execution
    number = self._rows.steps_per_batch(chains)
    if not chains.draws_all_rows:
      for data in itertools.chain([first], itertools.islice(batches, most - 1)):
        yield from self._steps_with(data, number, chains, step, num_draws)
      return
    times = 1
    # With the optimizer's rate a callback may set another for the next batch.
    if not self._settings.make_kernel.follows_optimizer:
      times = max(1, compiled_step.MOST_AT_ONCE // (number * most))
    yield from self._steps_with(
        self._rows.taken(chains, first),
        number * min(times * most, self._progress.batches_left), chains, step,
        num_draws)

  def _steps_with(self, data, number, chains, step, num_draws):
    """Makes so many steps with a batch, several at once up to the next draw."""
    model = self._model
    if (not self.repeat(chains) or model.run_eagerly
        or collectives.is_several(model.distribute_strategy)):
      for _ in range(number):
        yield step.on_batch(data)
      return
    while number:
      at_once = self.at_once(
          min(number, compiled_step.MOST_AT_ONCE), num_draws())
      number -= at_once
      yield from step.on_batch_times(data, at_once)
