"""Makes `fit` begin at the epoch that an earlier process has come to."""

from typing import Any

import keras

from tfp_sgmcmc.internal import compat

__all__ = ['Resumption']


class Resumption:
  """Where the calls of `fit` with one callback stand."""

  def __init__(self):
    """Makes that of a callback that no `fit` has been given."""
    self._num_fits = 0
    self._goes_on = False

  @property
  def num_fits(self) -> int:
    """The number of calls of `fit` that have ended."""
    return self._num_fits

  @property
  def goes_on(self) -> bool:
    """Whether `fit` is to begin where an earlier process stood."""
    return self._goes_on

  def begin_fit(self, model: keras.Model, chain: Any, epochs: int) -> None:
    """Makes a `fit` that has begun go on where the chain stands.

    Args:
      model: The model.
      chain: `Chain`, which may be that of an earlier process.
      epochs: Python `int`, the number of epochs of this `fit`, which is left
        out where the chain is in a later one.
    """
    position = chain.position
    self._goes_on = chain.is_resumed and position.fit >= self._num_fits
    if self._goes_on:
      compat.begin_at_epoch(
          model, position.epoch if position.fit == self._num_fits else epochs)

  def forget(self, model: keras.Model) -> None:
    """Lets the next `fit` begin where it is told to."""
    if self._goes_on:
      self._goes_on = False
      compat.begin_at_epoch(model, None)

  def end_fit(self, model: keras.Model) -> None:
    """Takes note that a `fit` has ended."""
    self.forget(model)
    self._num_fits += 1
