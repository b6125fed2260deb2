"""A train function in the place of a model's own, one execution at a time.

`fit` looks up `model.train_function` anew for each execution (of one step, or
of `steps_per_execution`). So the model's own can be replaced right before an
execution, and the first thing that the replacement does is to put it back:
whatever happens then, an exception or an interrupt, leaves the model as it was.
"""

from collections.abc import Callable
from typing import Any

import keras

__all__ = ['TrainFunction']


class TrainFunction:
  """Runs what it is told to, where it is swapped in, for one execution.

  The model's own train function is read once, when the object is made, and put
  back as it was.
  """

  def __init__(
      self,
      model: keras.Model,
      execute: Callable[[Any], dict[str, Any]],
  ):
    """Makes the function, for a model that `fit` is about to run.

    Args:
      model: Compiled `keras.Model` whose train function `fit` has made.
      execute: Callable of the dataset's iterator, what one execution does;
        returns its logs. The model's own train function is in its place then.
    """
    self._model = model
    self._execute = execute
    self._own = model.train_function
    self._history = None
    self._stand_in = self._run

  def is_stale(self) -> bool:
    """Whether the model has another own function now: it was compiled anew."""
    self.put_back()
    return self._model.train_function is not self._own

  def begin_fit(self) -> None:
    """Takes note of which `fit` it is; due at the beginning of each."""
    self._history = self._model.history

  def swap_in(self) -> None:
    """Takes the place of the model's train function for one execution."""
    self._set(self._stand_in)

  def put_back(self) -> None:
    """Puts the model's own back, where an execution did not come about."""
    if self._model.train_function is self._stand_in:
      self._set(self._own)

  def _run(self, iterator):
    self._set(self._own)
    if self._model.history is not self._history:
      # Left behind by a fit that ended between a batch's beginning and its run.
      return self._own(iterator)
    return self._execute(iterator)

  def _set(self, function):
    """Sets the train function; `setattr` would look for layers to track."""
    vars(self._model)['train_function'] = function
