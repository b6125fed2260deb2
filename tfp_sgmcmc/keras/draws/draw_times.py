"""When draws are due: at which steps, or at which times along a path."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.draws import draw_schedule

__all__ = ['DrawTimes', 'Plan', 'num_to_first', 'plan']

_NUM_DRAWS = 30  # Where their spacing is chosen.
_BURNIN, _BURNIN_AFTER_SEARCH = 1. / 3., 0.1


class DrawTimes:
  """Which steps of a chain make draws.

  Of a kernel in discrete time, after B steps of burn-in and with k steps
  between two draws, the steps

    t = B + 1 + j (k + 1),  j = 0, 1, ...,  where keep_draw(t).

  Of a kernel in continuous time, whose steps are the events of a path, the
  times j `interval`, j = 1, 2, ..., after event B. The object counts the
  time that has passed: it is told of each segment of the path once, in order.

  #### Examples

  >>> from tfp_sgmcmc.keras.draws import draw_times
  >>> times = draw_times.DrawTimes(
  ...     num_burnin_steps=2, schedule=sgmcmc.keras.DrawSchedule(1))
  >>> [step for step in range(1, 9) if times.is_due(step, num_draws=0)]
  [3, 5, 7]
  """

  def __init__(
      self,
      num_burnin_steps: int | None,
      schedule: draw_schedule.DrawSchedule,
      *,
      is_continuous: bool = False,
      is_after_search: bool = False,
  ):
    """Makes the times.

    Args:
      num_burnin_steps: Python `int`, B; None for `plan` to choose.
      schedule: `DrawSchedule`; where it has no number of steps between two
        draws, `plan` chooses that.
      is_continuous: Python `bool`, whether the kernel is one in continuous
        time.
      is_after_search: Python `bool`, whether burn-in begins later, where `plan`
        says.

    Raises:
      ValueError: If burn-in is out of its range, or draws are spaced in other
        units than those of the kernel.
      TypeError: If an argument is of the wrong type.
    """
    if num_burnin_steps is not None:
      checks.non_negative_integer('num_burnin_steps', num_burnin_steps)
    _check_units(is_continuous, schedule)
    self._given = num_burnin_steps, schedule.num_steps_between_results
    self._num_burnin_steps: int | None = None
    self._spacing = 1
    if not is_after_search and None not in self._given:
      self._set(*self._given)
    self._max_results = schedule.max_results
    self._keep_draw = schedule.keep_draw
    self._interval = schedule.interval
    self._until_draw = schedule.interval or 0.

  def _set(self, num_burnin_steps, num_steps_between_results=0):
    """Sets B and k; None for a B that is not known yet."""
    self._num_burnin_steps = num_burnin_steps
    self._spacing = num_steps_between_results + 1

  def plan(self, first: int, num_steps: int) -> None:
    """Chooses of B and k what was not given; no draw is due before.

    Args:
      first: Python `int`, the number of steps of a search made before.
      num_steps: Python `int`, the number of steps to come.
    """
    self._set(*plan(num_steps, first, *self._given))

  def burnin_of(self, num_steps: int) -> int:
    """B, as it is or as `plan` would choose it.

    Args:
      num_steps: Python `int`, the number of steps to come.

    Returns:
      num_burnin_steps: Python `int`.
    """
    if self._num_burnin_steps is not None:
      return self._num_burnin_steps
    return plan(num_steps, 0, *self._given).num_burnin_steps

  @property
  def is_planned(self) -> bool:
    """Whether it is known when draws are due."""
    return self._num_burnin_steps is not None

  @property
  def num_burnin_steps(self) -> int | None:
    """B, the number of first steps without draws; None while not known."""
    return self._num_burnin_steps

  @property
  def num_steps_between_results(self) -> int:
    """k, the number of steps between two draws."""
    return self._spacing - 1

  @property
  def is_continuous(self) -> bool:
    """Whether draws are due at times along a path."""
    return self._interval is not None

  def state(self) -> dict[str, np.ndarray]:
    """What `load_state` takes."""
    plan = [self.num_burnin_steps, self.num_steps_between_results]
    return {
        'plan': np.array(plan if self.is_planned else [], np.int64),
        'until_draw': np.array(self._until_draw)}

  def load_state(self, state: Mapping[str, np.ndarray]) -> None:
    """Goes on where another object stood.

    Args:
      state: Arrays by name, those of its `state` among them.
    """
    if self.is_continuous:
      self._until_draw = float(state['until_draw'])
    self._set(*(state['plan'].tolist() or [None]))

  def is_due(self, step: int, num_draws: int) -> bool:
    """Whether a step makes a draw; in continuous time, whether it may.

    Args:
      step: Python `int`, the number of the step, 1, 2, ...
      num_draws: Python `int`, the number of draws made before.

    Returns:
      is_due: Python `bool`.
    """
    if self._num_burnin_steps is None:
      return False
    excess = step - self._num_burnin_steps - 1
    if excess < 0 or excess % self._spacing:
      return False
    if self._max_results is not None and num_draws >= self._max_results:
      return False
    return self._keep_draw is None or bool(self._keep_draw(step))

  def at_once(self, step: int, most: int, num_draws: int) -> int:
    """How many of the next steps can be made in one: up to the next draw.

    In continuous time each one after burn-in by itself, since the time of each
    segment counts.

    Args:
      step: Python `int`, the number of steps made before.
      most: Python `int`, no more than so many.
      num_draws: Python `int`, the number of draws made before.

    Returns:
      number: Python `int`, at least 1.
    """
    if self._num_burnin_steps is None:
      return most
    if self.is_continuous:
      return max(1, min(most, self._num_burnin_steps + 1 - step))
    return num_to_first(
        lambda step: self.is_due(step, num_draws), step, most)

  def along_segment(
      self, step: int, duration: float, num_draws: int) -> list[float]:
    """Where draws fall on a segment of a path; its time passes.

    Args:
      step: Python `int`, the number of the event at the segment's end.
      duration: Python `float`, how long the segment takes.
      num_draws: Python `int`, the number of draws made before.

    Returns:
      shares: List of numbers in [0, 1), in the order of the draws: the share of
        the segment that lies after the draw, 0 for one at its end.
    """
    burnin, interval = self._num_burnin_steps, self._interval
    if burnin is None or interval is None or step <= burnin:
      return []
    self._until_draw -= duration
    shares = []
    while self._until_draw <= 0.:
      if self.is_due(step, num_draws + len(shares)):
        shares.append(-self._until_draw / duration)
      self._until_draw += interval
    return shares

  def first_due(self) -> str:
    """When the first draw is due, in words."""
    if self._num_burnin_steps is None:
      return 'after the temperature has been chosen'
    if not self.is_continuous:
      return f'at step {self._num_burnin_steps + 1}'
    return (f'{self._until_draw:.4g} units of time after the last step made, '
            f'or after step {self._num_burnin_steps}')

  def check_reachable(
      self, num_steps: int, epoch: int, epochs: int, steps: int) -> None:
    """Raises where `fit` would end without a draw, none being made before.

    Args:
      num_steps: Python `int`, the number of steps of the chain made before.
      epoch: Python `int`, the first epoch (from 0) that samples.
      epochs: Python `int`, the epoch (from 0) before which `fit` ends.
      steps: Python `int`, the number of steps in an epoch.

    Raises:
      ValueError: If none of its steps makes a draw.
    """
    number = max(0, epochs - epoch) * steps
    first = (self._num_burnin_steps or 0) + 1  # No step before is due.
    if any(self.is_due(step, 0) for step in range(
        max(first, num_steps + 1), num_steps + number + 1)):
      return
    raise ValueError(
        f'fit would end without a draw. It makes {number} step(s) of the '
        f'chain: {epochs} epoch(s), sampling from epoch {epoch} (counted from '
        f'0), {steps} step(s) an epoch. The first draw is due at step {first} '
        f'of the chain'
        f'{"" if self._keep_draw is None else ", where keep_draw allows it"}, '
        f'and {num_steps} were made before. Raise epochs, or lower '
        'num_burnin_steps or start_epoch.')


def _check_units(is_continuous, schedule):
  """Raises where draws are to be spaced in other units than the kernel's."""
  interval, spacing = (
      schedule.interval, schedule.num_steps_between_results)
  if not is_continuous:
    if interval is not None:
      raise ValueError(
          f'interval is {interval!r}, and the kernel does not move in '
          'continuous time: space its draws by num_steps_between_results.')
    return
  if interval is None:
    raise ValueError(
        'The kernel moves in continuous time, and its events are no draws at '
        'equal weights: pass the time between two draws, '
        'num_steps_between_results=sgmcmc.keras.DrawSchedule('
        'interval=...).')
  if spacing:
    raise ValueError(
        f'num_steps_between_results is {spacing}, and the kernel moves in '
        'continuous time: its draws are spaced by the interval alone.')


class Plan(NamedTuple):
  """When draws are made.

  Attributes:
    num_burnin_steps: The number of first steps of the chain without draws.
    num_steps_between_results: The number of steps between two draws.
  """
  num_burnin_steps: int
  num_steps_between_results: int


def plan(
    num_steps: int,
    first: int = 0,
    num_burnin_steps: int | None = None,
    num_steps_between_results: int | None = None,
) -> Plan:
  """When to draw, if so many steps are to be made.

  Args:
    num_steps: Python `int`, the number of steps to come.
    first: Python `int`, the number of steps that a search for the temperature
      has made before.
    num_burnin_steps: Python `int`, how many of the steps to come are burn-in;
      None to choose.
    num_steps_between_results: Python `int`; None to choose.

  Returns:
    plan: `Plan`, which counts the steps of the search as burn-in.

  #### Examples

  >>> plan(900)
  Plan(num_burnin_steps=300, num_steps_between_results=19)
  >>> plan(1000, first=500)
  Plan(num_burnin_steps=600, num_steps_between_results=29)
  >>> plan(2)
  Plan(num_burnin_steps=0, num_steps_between_results=0)
  """
  if num_burnin_steps is None:
    num_burnin_steps = int(
        (_BURNIN_AFTER_SEARCH if first else _BURNIN) * num_steps)
  if num_steps_between_results is None:
    rest = num_steps - num_burnin_steps
    num_steps_between_results = max(1, rest // _NUM_DRAWS) - 1
  return Plan(first + num_burnin_steps, num_steps_between_results)


def num_to_first(is_due: Callable[[int], bool], step: int, most: int) -> int:
  """How many of the next steps it takes to the first that is due.

  Args:
    is_due: Callable of a step's number.
    step: Python `int`, the number of steps made before.
    most: Python `int`, no more than so many.

  Returns:
    number: Python `int`; `most` where none before is due.

  #### Examples

  >>> num_to_first(lambda step: step % 5 == 0, 7, most=16)
  3
  """
  return next((n for n in range(1, most) if is_due(step + n)), most)
