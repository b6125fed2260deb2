"""The weights from before sampling, for a chain that makes no draw."""

from collections.abc import Mapping

import keras
import numpy as np

from tfp_sgmcmc.internal import leaves as leaves_lib
from tfp_sgmcmc.keras.model import network

__all__ = ['WeightsBefore']


class WeightsBefore:
  """A model's weights from before sampling, as long as there is no draw."""

  def __init__(self, model: keras.Model):
    """Makes the object, without weights.

    Args:
      model: `keras.Model`.
    """
    self._model = model
    self._values = []

  def keep(self) -> None:
    """Takes the weights of the model as they are."""
    self._values = network.values(self._model.weights)

  def forget(self) -> None:
    """Drops them: there is a draw."""
    self._values = []

  def put_back(self) -> None:
    """Gives them to the model, where there is no draw."""
    if self._values:
      network.assign(self._model.weights, self._values)

  def state(self) -> dict[str, np.ndarray]:
    """What `load_state` takes."""
    return leaves_lib.named(before=self._values)

  def load_state(self, state: Mapping[str, np.ndarray]) -> None:
    """Takes over the weights of another process.

    Args:
      state: Arrays by name, those of its `state` among them.
    """
    self._values = leaves_lib.of_group(state, 'before')
