"""Judges the chain of `fit` while it runs, by its temperature and its loss."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
import warnings

import keras

from tfp_sgmcmc.keras import draw_schedule
from tfp_sgmcmc.keras import temperature
from tfp_sgmcmc.keras import temperature_search

__all__ = ['Judge', 'NO_DRAW']

NO_DRAW = (
    'No draw was made before: the model has the weights from before sampling '
    'again')

_Watch = temperature.HeatWatch | temperature.HeatWatches


class Judge:
  """Warns of a chain that is too hot, and stops one that leaves the posterior.

  `HeatWatch` says what a temperature means; the judge asks it at the right
  times, and does what follows. `begin` comes before the first `watch`; until
  then the ends of epochs and of `fit` say nothing.
  """

  def __init__(
      self,
      model: keras.Model,
      schedule: draw_schedule.DrawSchedule,
      search: temperature_search.TemperatureSearch | None,
      rate: Any,
      say: Callable[[str], None],
      advice: Callable[[], str],
  ):
    """Makes the judge of a chain.

    Args:
      model: `keras.Model`, whose training may be stopped.
      schedule: `DrawSchedule`, which knows the length of burn-in.
      search: `TemperatureSearch`; None where there is none.
      rate: `FoundStep` or `AdaptedRate`, told of each step's temperature;
        None where there is none.
      say: Callable of a sentence, to show it.
      advice: Callable, returns a sentence that says how to make smaller steps.
    """
    self._model = model
    self._schedule = schedule
    self._search = search
    self._rate = rate
    self._say = say
    self._advice = advice
    self._make_watch = None
    self._heat: _Watch | None = None
    self._why_stopped = None
    self._num_watched, self._epoch_start = 0, 1

  def go_on(self, num_steps: int) -> None:
    """Takes note that the chain has made steps in an earlier process."""
    self._num_watched, self._epoch_start = num_steps, num_steps + 1

  def begin_fit(self) -> None:
    """Takes note that a `fit` begins, which the one before did not stop."""
    self._why_stopped = None

  def begin(self, make_watch: Callable[[], _Watch]) -> None:
    """Begins, with a callable that makes a watch of the temperature."""
    self._make_watch = make_watch
    self.forget()

  def forget(self) -> None:
    """Leaves out of all verdicts the temperatures up to now."""
    self._heat = self._make_watch()

  @property
  def heat(self) -> float | None:
    """The mean kinetic temperature over T after burn-in, None if unknown."""
    if self._heat is None or not self._schedule.is_planned:
      return None
    return self._heat.mean_ratio(self._schedule.num_burnin_steps + 1)

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
    if not self._heat.has_begun:
      self._heat.add_loss(float(logs['loss']))
    if 'kinetic_temperature' in logs:
      self._heat.add(
          num_steps, logs['kinetic_temperature'], logs['temperature'])
    is_searching = self._search is not None and not self._search.is_over
    said = None if self._rate is None or is_searching else self._rate.watch(
        before, num_steps, logs=logs)
    burnin = self._schedule.num_burnin_steps
    if burnin and before < burnin <= num_steps and not self._search:
      _warn(self._heat.warning(
          'of the second half of burn-in', burnin // 2 + 1,
          float(logs['loss'])))
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
    reason = None if loss is None else self._heat.add_loss(loss)
    if self._search is None and self._heat.is_hot(self._epoch_start):
      reason = self._heat.stop_reason(self._epoch_start)
    self._epoch_start = num_steps + 1
    if reason is not None:
      kept = NO_DRAW if not num_draws else (
          f'The {num_draws} draw(s) made before are kept, and are not of the '
          'posterior')
      self.stop(
          f'Training stops at step {num_steps} of the chain: {reason} {kept}. '
          f'{self._advice()}')
    elif loss is not None:
      said = self._heat.loss_warning(loss)
      _warn(None if said is None else f'{said} {self._advice()}')

  def end_fit(self) -> None:
    """Warns where the draws come from a chain that was too hot."""
    # What T was chosen by holds the heat of the minibatches too.
    if self._heat is not None and not (self._why_stopped or self._search):
      _warn(self._heat.warning(
          'after burn-in', since=self._schedule.num_burnin_steps + 1))


def _warn(message, category=UserWarning):
  if message is not None:
    warnings.warn(message, category, stacklevel=3)
