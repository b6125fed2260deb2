"""Judges the chain of `fit` while it runs, by its temperature and its loss."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
import warnings

import keras

from tfp_sgmcmc.diagnostics import verdicts
from tfp_sgmcmc.keras.draws import draw_times
from tfp_sgmcmc.keras.heat import found_step as found_step_lib
from tfp_sgmcmc.keras.heat import heat_record
from tfp_sgmcmc.keras.heat import temperature_search

__all__ = ['Judge', 'NO_DRAW']

NO_DRAW = (
    'No draw was made before: the model has the weights from before sampling '
    'again')


class Judge:
  """Warns of a chain that is too hot, and stops one that leaves the posterior.

  It reads the rows of a `HeatRecord` at the right times, and does what follows.
  Before `begin` it says nothing.
  """

  def __init__(
      self,
      model: keras.Model,
      schedule: draw_times.DrawTimes,
      search: temperature_search.TemperatureSearch | None,
      found_step: found_step_lib.FoundStep | None,
      say: Callable[[str], None],
      advice: Callable[[], str],
  ):
    """Makes the judge of a chain.

    Args:
      model: `keras.Model`, whose training may be stopped.
      schedule: `DrawTimes`, which knows the length of burn-in.
      search: `TemperatureSearch`; None where there is none.
      found_step: `FoundStep`, told of each step; None where there is none.
      say: Callable of a sentence, to show it.
      advice: Callable, returns a sentence that says how to make smaller steps.
    """
    self._model = model
    self._schedule = schedule
    self._search = search
    self._found_step = found_step
    self._say = say
    self._advice = advice
    self._make_record: Callable[[], heat_record.HeatRecord] | None = None
    self._heat: heat_record.HeatRecord | None = None
    self._has_warned_of_loss = False
    self._why_stopped: str | None = None
    self._num_watched, self._epoch_start = 0, 1

  def begin_fit(self) -> None:
    """Takes note that a `fit` begins, which the one before did not stop."""
    self._why_stopped = None

  def begin_epoch(self, num_steps: int) -> None:
    """Takes note of an epoch that begins, after so many steps of the chain."""
    self._num_watched, self._epoch_start = num_steps, num_steps + 1

  def begin(self, make_record: Callable[[], heat_record.HeatRecord]) -> None:
    """Begins, with a callable that makes an empty record."""
    self._make_record = make_record
    self.forget()

  def forget(self) -> None:
    """Leaves out of all verdicts the temperatures up to now."""
    if self._make_record is not None:
      self._heat = self._make_record()
    self._has_warned_of_loss = False

  @property
  def heat(self) -> verdicts.Row | None:
    """The row of the hottest chain after burn-in; None if it is not known."""
    burnin = self._schedule.num_burnin_steps
    if self._heat is None or burnin is None:
      return None
    rows = self._heat.rows(burnin + 1, is_judged=self._search is None)
    return max(rows, key=lambda row: row.value, default=None)

  @property
  def why_stopped(self) -> str | None:
    """Why it has stopped the training of this `fit`; None where it has not."""
    return self._why_stopped

  def stop(self, why: str) -> None:
    """Stops training, and warns.

    Args:
      why: The warning.
    """
    self._model.stop_training = True
    self._why_stopped = why
    _warn(why, RuntimeWarning)

  def watch(self, num_steps: int, logs: Mapping[str, Any]) -> None:
    """Takes note of a step's temperature; warns at the end of burn-in.

    Args:
      num_steps: Python `int`, the number of steps made.
      logs: The step's.
    """
    before, self._num_watched = self._num_watched, num_steps
    if self._heat is None:
      return
    if not self._heat.has_begun:
      self._heat.add_loss(float(logs['loss']))
    if 'kinetic_temperature' in logs:
      self._heat.add(
          num_steps, logs['kinetic_temperature'], logs['temperature'])
    is_searching = self._search is not None and not self._search.is_over
    said = None
    if self._found_step is not None and not is_searching:
      said = self._found_step.watch(num_steps, dict(logs))
    burnin = self._schedule.num_burnin_steps
    if burnin and before < burnin <= num_steps:
      self._warn_of_heat('of the second half of burn-in', burnin // 2 + 1,
                         float(logs['loss']))
    if said is not None:
      self.forget()
      self._say(said)

  def end_epoch(
      self, num_steps: int, num_draws: int, loss: float | None) -> None:
    """Says what the epoch's temperature and loss mean, and may stop training.

    Args:
      num_steps: Python `int`, the number of steps made.
      num_draws: Python `int`, the number of draws made.
      loss: The mean loss of the epoch, None where it is not known.
    """
    if self._heat is None or self._model.stop_training:
      return
    reason, row = None, None
    if loss is not None:
      self._heat.add_loss(loss)
      row = self._heat.row_of_loss(loss)
      if row.verdict == 'wrong':
        reason = row.advice
    hot = self._heat.rows_without_bound(self._epoch_start)
    if hot and self._search is None:
      chain = min(hot)
      reason = (
          f'the kinetic temperature{self._of_chain(chain)} is '
          f'{hot[chain].value:.3g} times the temperature, and does not fall.')
    if reason is not None:
      kept = NO_DRAW if not num_draws else (
          f'The {num_draws} draw(s) made before are kept, and are not of the '
          'posterior')
      self.stop(
          f'Training stops at step {num_steps} of the chain: {reason} {kept}. '
          f'{self._advice()}')
    elif row is not None and row.verdict != 'fine' and (
        not self._has_warned_of_loss):
      self._has_warned_of_loss = True
      _warn(f'While the kernel samples {row.advice} {self._advice()}')

  def end_fit(self) -> None:
    """Warns where the draws come from a chain that was too hot."""
    burnin = self._schedule.num_burnin_steps
    if self._heat is not None and burnin is not None and not self._why_stopped:
      self._warn_of_heat('after burn-in', burnin + 1)

  def _warn_of_heat(self, which, since, loss=None):
    """Warns of the first chain that is too hot, and names the others."""
    # The temperature search already includes minibatch heat: no warning.
    rows = self._heat.rows(since, loss, is_judged=self._search is None)
    hot = {k: row for k, row in enumerate(rows)
           if row.verdict == 'wrong' and row.value > 1.}
    if not hot:
      return
    (chain, row), *others = hot.items()
    steps = self._heat.steps(since)
    also = ', '.join(str(k) for k, _ in others)
    _warn(
        f'The mean kinetic temperature over steps {steps[0]} to {steps[-1]}, '
        f'{which}, was {row.value:.3g} times the temperature'
        f'{self._of_chain(chain)}. {row.advice}'
        + (f' So it is with chain(s) {also}.' if also else ''))

  def _of_chain(self, chain):
    return f' of chain {chain}' if self._heat.num_chains > 1 else ''


def _warn(message, category=UserWarning):
  warnings.warn(message, category, stacklevel=3)
