"""Which draws are kept: what the user says of it."""

from collections.abc import Callable
import dataclasses
import math

import keras

from tfp_sgmcmc.internal import checks

__all__ = ['DrawSchedule', 'late_in_cycle', 'to_schedule']


@dataclasses.dataclass(frozen=True)
class DrawSchedule:
  """Which draws `PosteriorSampling` keeps after burn-in.

  With B steps of burn-in and k steps between two draws, it keeps the draws of
  the steps

    t = B + 1 + j (k + 1),  j = 0, 1, ...,  where keep_draw(t);

  and of a kernel in continuous time the draws at the times j `interval`, j = 1,
  2, ..., after event B.

  Attributes:
    num_steps_between_results: Python `int`, k; None for 0; without a kernel,
      None chooses it.
    keep_draw: None, or a callable of a step's number (a Python `int`): draws
      are kept only where it is true. See `late_in_cycle`.
    max_results: None, or the number of draws of each chain after which no more
      are kept. A run that resumes from a directory may change it.
    interval: Positive number, the time between two draws. Needed for a kernel
      in continuous time; None for others.

  Raises:
    ValueError: If an argument is out of its range.
    TypeError: If an argument is of the wrong type.

  #### Examples

  >>> sampling = sgmcmc.keras.PosteriorSampling(
  ...     num_burnin_steps=100,
  ...     num_steps_between_results=sgmcmc.keras.DrawSchedule(
  ...         4, max_results=500))
  """
  num_steps_between_results: int | None = None
  _: dataclasses.KW_ONLY
  keep_draw: Callable[[int], bool] | None = None
  max_results: int | None = None
  interval: float | None = None

  def __post_init__(self):
    if self.num_steps_between_results is not None:
      checks.non_negative_integer(
          'num_steps_between_results', self.num_steps_between_results)
    if self.max_results is not None:
      checks.positive_integer('max_results', self.max_results)
    if self.keep_draw is not None and not callable(self.keep_draw):
      raise TypeError(
          f'keep_draw is {self.keep_draw!r}: it has to be a function of the '
          'step.')
    if self.interval is not None:
      checks.positive_number('interval', self.interval)


def to_schedule(value: 'DrawSchedule | int | None') -> DrawSchedule:
  """What was given as `num_steps_between_results`, as a `DrawSchedule`."""
  return value if isinstance(value, DrawSchedule) else DrawSchedule(value)


def late_in_cycle(
    schedule: keras.optimizers.schedules.CosineDecayRestarts,
    fraction: float = 0.5,
) -> Callable[[int], bool]:
  """Keeps only draws from the end of each cycle: cyclical sampling.

  Zhang et al. (2020): large steps at the start of each cycle look for new
  modes, and small steps at its end sample them.

  Args:
    schedule: `keras.optimizers.schedules.CosineDecayRestarts`. Pass it as the
      kernel's `step_size`, or as the `learning_rate`, too.
    fraction: Number in [0, 1): the part of each cycle without draws.

  Returns:
    keep_draw: Callable of the step's number, for `DrawSchedule`.

  Raises:
    TypeError: If the schedule has no cycles.
    ValueError: If `fraction` is not in [0, 1).

  #### Examples

  >>> schedule = keras.optimizers.schedules.CosineDecayRestarts(
  ...     0.1, first_decay_steps=4, t_mul=1.)
  >>> keep_draw = sgmcmc.keras.late_in_cycle(schedule)
  >>> [step for step in range(1, 9) if keep_draw(step)]
  [3, 4, 7, 8]
  """
  if not isinstance(
      schedule, keras.optimizers.schedules.CosineDecayRestarts):
    raise TypeError(
        f'schedule is {schedule!r}: late_in_cycle reads the cycles off a '
        'keras.optimizers.schedules.CosineDecayRestarts. For another schedule '
        'pass keep_draw=lambda step: ..., true where a draw may be kept.')
  checks.fraction('fraction', fraction)
  if fraction == 1.:
    raise ValueError('fraction is 1: no step of a cycle would be left to draw.')
  config = schedule.get_config()
  length, factor = config['first_decay_steps'], config['t_mul']

  def keep_draw(step):
    count = step - 1  # The schedule's argument at the step's beginning.
    if factor == 1.:
      return (count % length) / length >= fraction
    cycle = math.floor(
        math.log(1. - count / length * (1. - factor), factor) + 1e-9)
    start = length * (1. - factor**cycle) / (1. - factor)
    return (count - start) / (length * factor**cycle) >= fraction

  return keep_draw
