"""Times `sgmcmc.sample`, which compiles its steps at each call."""

from collections.abc import Callable
from typing import Any

from benchmarks import worker

__all__ = ['Timer']

_MOST_TIMES = 128  # Tiny runs would take many more, and are not for timing.


class Timer:
  """Times some draws: a long call less a short one.

  The long call is made so long that most of it are draws, not compiling. Where
  that would take too many draws, the time of compiling is part of what is told.
  """

  def __init__(self, num_draws: int):
    """Makes the timer of a number of draws."""
    self._num_draws, self._times = num_draws, 8

  def __call__(self, call: Callable[[int], Any]) -> tuple[Any, float, float]:
    """The time of the draws of a chain.

    Args:
      call: Callable of a number of draws; runs the chain and returns it.

    Returns:
      result: What the long call returned.
      wall, cpu: Seconds of `num_draws` draws.
    """
    _, *short = _run(call, self._num_draws)
    while True:
      result, *long = _run(call, (1 + self._times) * self._num_draws)
      if all(b > 2. * a for a, b in zip(short, long)):
        return result, *((b - a) / self._times for a, b in zip(short, long))
      if self._times >= _MOST_TIMES:
        return result, *(b / (1 + self._times) for b in long)
      self._times *= 4


def _run(call, num_draws):
  clock = worker.Clock()
  return call(num_draws), clock.wall, clock.cpu
