"""Times `sgmcmc.sample`, which compiles its steps at each call."""

from collections.abc import Callable
from typing import Any

from benchmarks import worker

__all__ = ['Timer']


class Timer:
  """Times some draws: a long call less a short one.

  The long call is made so long that most of it are draws, not compiling. Where
  that would take too many draws, the time of compiling is part of what is told.
  """

  def __init__(self, num_draws: int, most_times: int):
    """Makes the timer.

    Args:
      num_draws: How many draws are timed.
      most_times: How many times as many the long call has at most, 8 or more.
    """
    self._num_draws, self._times, self._most_times = num_draws, 8, most_times

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
      if self._times >= self._most_times:
        return result, *(b / (1 + self._times) for b in long)
      self._times *= 4


def _run(call, num_draws):
  clock = worker.Clock()
  return call(num_draws), clock.wall, clock.cpu
