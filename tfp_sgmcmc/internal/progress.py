"""Progress of a long run: the bar that `fit` shows."""

import keras

__all__ = ['Progress']


class Progress:
  """A bar of Keras, which is there wherever this library is."""

  def __init__(self, total: int, initial: int, shown: bool):
    """Makes a bar.

    Args:
      total: Python `int`, number of steps.
      initial: Python `int`, number of them that an earlier call made: the bar
        is of the others, so that the time it tells is that of this call.
      shown: Python `bool`: False for a bar that is not shown.
    """
    self._num_steps = 0
    self._bar = None
    if shown and total > initial:
      self._bar = keras.utils.Progbar(
          total - initial, unit_name='step', interval=0.5)

  def update(self, steps: int) -> None:
    """Moves on by a number of steps, a Python `int`."""
    self._num_steps += steps
    if self._bar is not None:
      self._bar.update(self._num_steps)
