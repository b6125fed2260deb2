"""Times `sgmcmc.sample`, which compiles its steps at each call."""

from collections.abc import Callable
import time
from typing import Any

__all__ = ['Timer']


_MOST_TIMES = 128  # Tiny runs would take many more, and are not for timing.


class Timer:
  """Times some draws: a long call less a short one.

  The long call is made so long that most of it are draws, not compiling.
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
      wall, cpu: Seconds of `num_draws` draws, without compiling.
    """
    _, *short = _run(call, self._num_draws)
    while True:
      result, *long = _run(call, (1 + self._times) * self._num_draws)
      is_long = all(b > 2. * a for a, b in zip(short, long))
      if is_long or self._times >= _MOST_TIMES:
        return result, *((b - a) / self._times for a, b in zip(short, long))
      self._times *= 4


def _run(call, num_draws):
  begin = time.perf_counter(), time.process_time()
  result = call(num_draws)
  return result, time.perf_counter() - begin[0], time.process_time() - begin[1]
