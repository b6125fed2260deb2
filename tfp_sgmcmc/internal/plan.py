"""How a run is cut: into chunks of draws, and these into calls of a program.

The cuts do not change the draws.
"""

import math
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints

__all__ = ['SECONDS_PER_CALL', 'Pace', 'Plan', 'chunk_size', 'room']

_CHUNK_BYTES = 64 * 2**20
_NUM_CHUNKS = 20  # Where chunk_size is left out: so many, or more if large.
_NUM_BURNIN_CHUNKS = 100
# Of a call of the compiled program: how long it should take, by how much it may
# be longer than the one before, and what room for draws it has at most, since
# all of the room is written at each call.
SECONDS_PER_CALL = 0.5
_GROWTH = 8
_ROOM_BYTES = 16 * 2**20


class Plan(NamedTuple):
  """Which steps to make, and which to keep.

  Attributes:
    num_results: The number of draws.
    num_burnin_steps: The number of steps before.
    thinning: The number of steps from draw to draw.
    chunk_size: The largest number of draws in a chunk.
  """
  num_results: int
  num_burnin_steps: int
  thinning: int
  chunk_size: int

  @property
  def num_steps(self) -> int:
    """How many steps there are in all."""
    return self._step_of(self.num_results - 1)

  def _step_of(self, draw):
    """The number of the step that makes a draw, counted from 0."""
    return self.num_burnin_steps + 1 + draw * self.thinning

  def end_of_chunk(self, step: int, num_draws: int) -> int:
    """The last step of the chunk that begins after a step."""
    if step < self.num_burnin_steps:
      longest = max(
          self.chunk_size * self.thinning,
          -(-self.num_burnin_steps // _NUM_BURNIN_CHUNKS))
      return min(step + longest, self.num_burnin_steps)
    return self._step_of(
        min(num_draws + self.chunk_size, self.num_results) - 1)

  def next_call(
      self, step: int, num_draws: int, num_steps: float, room: int,
  ) -> tuple[Any, int, bool]:
    """What to do in the next call of the program.

    Args:
      step: The number of steps made.
      num_draws: The number of draws made.
      num_steps: How many steps to make.
      room: For how many draws there is room.

    Returns:
      first: How many steps to make to the first draw.
      number: How many draws to make.
      are_kept: Whether these are draws: False where so many steps end before
        the next one.
    """
    first = self._step_of(num_draws) - step
    if first > num_steps:
      return num_steps, 1, False
    return first, min(room, 1 + (num_steps - first) // self.thinning), True


class Pace:
  """How many steps to make in a call, by how long the last one took.

  Attributes:
    num_steps: The number; infinite where calls are not timed.
  """

  def __init__(self, is_timed: bool):
    self.num_steps = 1 if is_timed else math.inf

  def update(self, num_steps: int, seconds: float) -> None:
    """Takes in how long so many steps took."""
    within = num_steps * SECONDS_PER_CALL / max(seconds, 1e-6)
    self.num_steps = max(1, int(min(within, _GROWTH * self.num_steps))) if (
        math.isfinite(self.num_steps)) else self.num_steps


def chunk_size(
    asked: int | None, num_results: int, structure: hints.Nested) -> int:
  """How many draws a chunk has at most.

  Args:
    asked: The argument `chunk_size`; None where it is left out.
    num_results: How many draws there are in all.
    structure: Nested specs of what is kept of a draw.

  Returns:
    chunk_size: Python `int`.
  """
  if asked is not None:
    return min(checks.positive_integer('chunk_size', asked), num_results)
  return min(
      -(-num_results // _NUM_CHUNKS), _within(_CHUNK_BYTES, structure))


def room(chunk_size: int, structure: hints.Nested) -> int:
  """For how many draws a program has room: one of few numbers, for reuse."""
  return min(
      2**math.ceil(math.log2(chunk_size)), _within(_ROOM_BYTES, structure))


def _within(num_bytes, structure):
  """How many draws take at most so many bytes; one at least."""
  bytes_per_draw = sum(
      spec.shape.num_elements() * spec.dtype.size
      for spec in tf.nest.flatten(structure) if spec is not None)
  return max(1, num_bytes // max(1, bytes_per_draw))
