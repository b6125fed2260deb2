"""Times `sgmcmc.sample`, which compiles its steps at each call."""

from collections.abc import Callable
import time
from typing import Any

__all__ = ['timed']


def timed(call: Callable[[int], Any], num_draws: int):
  """The time of some draws: that of a long call less that of a short one.

  The long call is made so long that most of it are draws, not compiling.

  Args:
    call: Callable of a number of draws; runs the chain and returns it.
    num_draws: How many draws to time.

  Returns:
    result: What the long call returned.
    wall, cpu: Seconds of `num_draws` draws, without compiling.
  """
  def run(number):
    begin = time.perf_counter(), time.process_time()
    result = call(number)
    return result, time.perf_counter() - begin[0], (
        time.process_time() - begin[1])

  _, *short = run(num_draws)
  times = 8
  while True:
    result, *long = run((1 + times) * num_draws)
    if long[0] > 2. * short[0] and long[1] > 2. * short[1]:
      return result, *((b - a) / times for a, b in zip(short, long))
    times *= 4
