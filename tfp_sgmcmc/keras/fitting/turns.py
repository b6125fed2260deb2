"""Variables in which the states of several chains take turns."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.model import network

__all__ = ['Turns']


def _order(num_chains: int) -> list[int]:
  """The numbers of the chains, 0 as the last, which is left in the model."""
  return [*range(1, num_chains), 0]


class Turns:
  """Variables in which the states of k chains take turns.

  A single chain has its state in the variables, and nothing is copied. Of
  several, that of chain 0 is in the variables between steps, where others read
  and set it, as a model's weights; not so in variables that are the chains' own
  (`is_own`), whose values count only within a turn.

  #### Examples

  >>> from tfp_sgmcmc.keras.fitting import turns as turns_lib
  >>> turns, weight = turns_lib.Turns(3), tf.Variable(5.)
  >>> turns.add([weight], [tf.constant([5., 6., 7.])])
  >>> _ = turns.each(weight.assign_add, lambda j: 10. * tf.cast(j, tf.float32))
  >>> float(weight), turns.stacked([weight])[0]
  (5.0, array([ 5., 16., 27.], dtype=float32))
  """

  def __init__(self, num_chains: int):
    """Makes turns in no variables.

    Args:
      num_chains: Python `int`, k.
    """
    self._num_chains = num_chains
    self._slots = {}
    self._own = set()
    # Also of variables that it has let go of: a program may use them again.
    self._made = {}

  def add(
      self,
      variables: Sequence[Any],
      values: Sequence[Any] | None = None,
      is_own: bool = False,
  ) -> None:
    """Takes variables.

    Args:
      variables: Variables of a model, or of TensorFlow.
      values: For each one the values of the chains, `[k, ...]`; by default each
        chain has the variable's own.
      is_own: Python `bool`, whether nobody reads or sets the variables but a
        chain in its turn.
    """
    if self._num_chains == 1:
      return
    if values is None:
      values = [np.stack([v] * self._num_chains)
                for v in network.values(variables)]
    for variable, value in zip(variables, values):
      made = self._made.get(id(variable))
      if made is None:
        made = variable, tf.Variable(
            value, trainable=False, dtype=variable.dtype, name='chains')
        self._made[id(variable)] = made
      else:
        made[1].assign(value)
      self._slots[id(variable)] = made
      if is_own:
        self._own.add(id(variable))

  def drop(self, variables: Sequence[Any]) -> None:
    """Lets go of variables: they are the same for all chains from here on."""
    for variable in variables:
      self._slots.pop(id(variable), None)

  def aside(self) -> dict[int, Any]:
    """What `put_back` takes, to have these variables again after others."""
    return dict(self._slots)

  def put_back(self, aside: dict[int, Any]) -> None:
    """Has the variables that were put aside, none if it is empty."""
    self._slots = dict(aside)

  @property
  def made(self) -> list[tf.Variable]:
    """All that have held values of chains."""
    return [slot for _, slot in self._made.values()]

  @property
  def slots(self) -> list[tf.Variable]:
    """The values of all chains, but of 0 where the variables have them."""
    return [slot for _, slot in self._slots.values()]

  def stacked(self, variables: Sequence[Any]) -> list[np.ndarray]:
    """The values of all chains, `[k, ...]` for each of the variables."""
    if self._num_chains == 1:
      return [value[np.newaxis] for value in network.values(variables)]
    found = []
    for variable in variables:
      _, slot = self._slots[id(variable)]
      found.append(np.array(slot.numpy()))
      if id(variable) not in self._own:
        found[-1][0] = variable.numpy()
    return found

  def assign(
      self, variables: Sequence[Any], values: Sequence[np.ndarray]) -> None:
    """Gives variables the values of all chains, as `stacked` gave them."""
    for variable, value in zip(variables, values):
      if self._num_chains > 1:
        self._slots[id(variable)][1].assign(value)
      if id(variable) not in self._own:
        network.assign([variable], [value[0]])

  def tensors(self, variables: Sequence[Any]) -> list[tf.Tensor]:
    """The same as tensors, for what is traced."""
    found = []
    for variable in variables:
      _, slot = self._slots[id(variable)]
      if id(variable) in self._own:
        found.append(tf.convert_to_tensor(slot))
        continue
      first = tf.convert_to_tensor(variable)[tf.newaxis]
      found.append(tf.concat([first, slot[1:]], axis=0))
    return found

  def first(self, variable: Any) -> tf.Tensor:
    """The value of chain 0."""
    if self._num_chains == 1 or id(variable) not in self._own:
      return tf.convert_to_tensor(variable)
    return self._slots[id(variable)][1][0]

  def load(self, chain: int) -> None:
    """Gives the variables the values of a chain."""
    self._load(self._slots.values(), chain)

  def load_first(self) -> None:
    """Gives the chains' own variables the values of chain 0."""
    self._load([
        pair for key, pair in self._slots.items() if key in self._own], 0)

  def save(self, chain: Any) -> None:
    """Keeps the values of the variables for a chain."""
    self._save(self._slots.values(), chain)

  def _save_first(self):
    """Keeps what others may have set, for chain 0."""
    self._save([
        pair for key, pair in self._slots.items() if key not in self._own], 0)

  def _load(self, pairs, chain):
    for variable, slot in pairs:
      variable.assign(slot.sparse_read(chain))

  def _save(self, pairs, chain):
    for variable, slot in pairs:
      slot.scatter_update(tf.IndexedSlices(
          tf.convert_to_tensor(variable)[tf.newaxis],
          tf.reshape(chain, [1])))

  def each(
      self,
      fn: Callable[[Any], Any],
      argument: Callable[[tf.Tensor], Any],
  ) -> list[Any]:
    """Does something for each chain, with its values in the variables.

    Args:
      fn: Callable of a chain's argument. In a graph it is traced once.
      argument: Callable of a chain's number, an `int32` scalar; returns the
        argument, such as the chain's rows of a batch.

    Returns:
      results: What it has returned, by chain.
    """
    if self._num_chains == 1:
      return [fn(argument(tf.zeros([], tf.int32)))]
    self._save_first()

    def turn(chain):
      self.load(chain)
      result = fn(argument(chain))
      self.save(chain)
      return result

    if not tf.executing_eagerly():
      turn = tf.function(turn, autograph=False)
    *others, first = (
        turn(tf.constant(chain)) for chain in _order(self._num_chains))
    return [first, *others]

  def one_by_one(self) -> Iterator[int]:
    """The chains' numbers, each with its values in the variables; 0 is last."""
    self._save_first()
    for chain in _order(self._num_chains):
      self.load(chain)
      yield chain
      self.save(chain)
