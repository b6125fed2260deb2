"""Where in the calls of `fit` a chain stands."""

from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

__all__ = ['Position', 'Progress']

# Before the names of logs in a state.
_LOGS = 'logs/'


class Position(NamedTuple):
  """Where in the calls of `fit` a chain stands.

  Attributes:
    fit: The number of calls of `fit`, with the same callback, that have ended.
    epoch: The epoch, from 0, as `fit` counts them.
    batch: The number of the epoch's batches that have been used.
  """
  fit: int = 0
  epoch: int = 0
  batch: int = 0


class Progress:
  """The steps that a chain has made, its seed, and its place in `fit`.

  Attributes:
    seed: Stateless seed.
    num_steps: Python `int`, the number of steps made.
    position: `Position`.
    steps_per_batch: Python `int`, how many steps each batch is for.
    draws_rows: Python `bool`, whether steps take no rows of their batch where
      there are others beside it.
    loops_by_xla: Python `bool`, whether XLA compiles programs of several steps.
    logs: Those of the last step.
    num_ahead: Python `int`, how many of the next batches of `fit` are used:
      their steps were made with those of a batch before.
  """

  def __init__(self, seed: tf.Tensor, steps_per_batch: int):
    """Makes the progress of a chain without steps.

    Args:
      seed: Stateless seed, `int32[2]`.
      steps_per_batch: Python `int`.
    """
    self.seed = seed
    self.num_steps = 0
    self.position = Position()
    self.steps_per_batch = steps_per_batch
    self.draws_rows = False
    self.loops_by_xla = False
    self.logs: dict[str, Any] = {}
    self.num_ahead = 0
    self._num_to_skip = 0
    self._epochs = 1
    self._batches: int | None = None

  @property
  def skips(self) -> bool:
    """Whether the next batches are to be left out."""
    return self._num_to_skip > 0

  @property
  def horizon(self) -> tuple[int, int | None]:
    """The number of epochs to come, and of steps in each, None if unknown."""
    return self._epochs, self._batches and self._batches * self.steps_per_batch

  def begin_epoch(
      self, position: Position, horizon: tuple[int, int | None],
      num_to_skip: int) -> None:
    """Takes note of an epoch that begins.

    Args:
      position: `Position` of its beginning.
      horizon: The number of epochs to come, and of batches in each, None if
        unknown.
      num_to_skip: Python `int`, how many of its batches an earlier process has
        used.
    """
    self.position = position
    self.num_ahead = 0
    self._num_to_skip = num_to_skip
    self._epochs, self._batches = horizon

  def set_batches_in_epoch(self, number: int) -> None:
    """Takes the number of batches an epoch, where it was not known before."""
    self._batches = self._batches or number

  @property
  def batches_to_come(self) -> int | None:
    """The number of batches of the epochs to come, None if unknown."""
    return self._batches and self._batches * self._epochs

  @property
  def batches_left(self) -> int:
    """The number of batches left of the epoch, 1 if unknown."""
    return max(1, (self._batches or 0) - self.position.batch)

  def skip(self, number: int) -> None:
    """Takes note of batches that were left out."""
    self._num_to_skip -= number
    self.count(number)

  def count(self, number: int) -> None:
    """Takes note of batches that were used."""
    self.position = self.position._replace(batch=self.position.batch + number)

  def end_epoch(self) -> None:
    """Takes note that an epoch has come to its end."""
    self.position = Position(self.position.fit, self.position.epoch + 1)

  def state(self) -> dict[str, np.ndarray]:
    """What `load_state` takes."""
    return {
        'seed': self.seed.numpy(),
        'position': np.array(self.position, np.int64),
        'steps_per_batch': np.array(self.steps_per_batch),
        'draws_rows': np.array(self.draws_rows),
        'loops_by_xla': np.array(self.loops_by_xla),
        **{f'{_LOGS}{name}': np.asarray(value)
           for name, value in self.logs.items()}}

  def load_state(self, state: Mapping[str, Any]) -> None:
    """Stands where another chain stood.

    Args:
      state: Arrays by name, those of its `state` among them.
    """
    self.seed = tf.constant(state['seed'])
    self.position = Position(*state['position'].tolist())
    # Directories of before have none.
    self.steps_per_batch = int(state.get('steps_per_batch', 1))
    self.draws_rows = bool(state.get('draws_rows', False))
    self.loops_by_xla = bool(state.get('loops_by_xla', False))
    self.logs = {name.removeprefix(_LOGS): value
                 for name, value in state.items() if name.startswith(_LOGS)}
