"""Draws of several chains of a model's weights, read as those of one."""

from collections.abc import Sequence
import itertools
from typing import Any

import keras
import numpy as np

from tfp_sgmcmc.keras.draws import model_draws as draws_lib
from tfp_sgmcmc.keras.model import model_record

__all__ = ['JoinedDraws', 'check_models']


class JoinedDraws:
  """The draws of several chains, one chain after the other.

  They have the interface of `ModelDraws`, and stay where they are: what is on
  disk is read as it is used.
  """

  def __init__(
      self,
      parts: Sequence[tuple[Any, Sequence[int]]],
      has_weights: bool = True,
  ):
    """Joins draws.

    Args:
      parts: For each chain the draws, `ModelDraws` or `JoinedDraws`, and the
        indices of those to take. The weights of all have the shapes of the
        first's, in its order.
      has_weights: Python `bool`: False to let all draws count the same, also
        where they have weights.

    Raises:
      ValueError: If the draws hold other weights, or other moving statistics.
    """
    self._parts = [draws for draws, _ in parts]
    self._indices = [list(indices) for _, indices in parts]
    self._has_weights = has_weights
    self._places = [
        (k, index) for k, (_, indices) in enumerate(parts) for index in indices]
    for draws in self._parts[1:]:
      _check_alike(self._parts[0], draws)

  @property
  def names(self) -> list[str]:
    """The names of the weights' arrays: those of the first chain."""
    return self._parts[0].names

  @property
  def extra_names(self) -> list[str]:
    """The names of the moving statistics' arrays: those of the first chain."""
    return self._parts[0].extra_names

  @property
  def extras(self) -> list[keras.Variable]:
    """The first model's variables that the draws have values of."""
    return self._parts[0].extras

  @property
  def steps(self) -> list[int]:
    """The number of each draw's step in its chain."""
    steps = [draws.steps for draws in self._parts]
    return [steps[k][index] for k, index in self._places]

  @property
  def chain_numbers(self) -> list[int]:
    """The number of each draw's chain, from 0."""
    return [k for k, _ in self._places]

  @property
  def log_weights(self) -> np.ndarray | None:
    """The logarithm of each draw's weight; of chains without weights, 0.

    None where all draws count the same.
    """
    found = [draws.log_weights for draws in self._parts]
    if not self._has_weights or all(values is None for values in found):
      return None
    return np.concatenate([
        np.zeros(len(indices), np.float32) if values is None
        else values[indices] for values, indices in zip(found, self._indices)])

  @property
  def start(self) -> dict[str, np.ndarray]:
    """The weights before sampling of each chain; empty if one's are unknown."""
    starts = [draws.start for draws in self._parts]
    if not all(starts):
      return {}
    # Those of a part with several chains hold all of them.
    chains = [
        _rows_of_chain(start, draws.chain_numbers[indices[0]])
        for start, draws, indices in zip(starts, self._parts, self._indices)]
    names = [name for name in chains[0] if name not in ('step', 'chain')]
    columns = [
        [chain[name] for name in chain if name not in ('step', 'chain')]
        for chain in chains]
    arrays = dict(zip(names, map(np.concatenate, zip(*columns))))
    return draws_lib.to_arrays(
        arrays, {}, [0] * len(chains), range(len(chains)))

  def __len__(self) -> int:
    return len(self._places)

  def read(self, indices: Sequence[int]) -> list[np.ndarray]:
    """Some draws: one array `[len(indices), ...]` for each trainable weight."""
    return self._read('read', indices)

  def read_extras(self, indices: Sequence[int]) -> list[np.ndarray]:
    """Some draws: one array `[len(indices), ...]` for each of `extras`."""
    return self._read('read_extras', indices)

  def arrays(self, indices: Sequence[int]) -> dict[str, np.ndarray]:
    """All that some draws hold, by name."""
    steps, chains = self.steps, self.chain_numbers
    log_weights = self.log_weights
    return draws_lib.to_arrays(
        dict(zip(self.names, self.read(indices))),
        dict(zip(self.extra_names, self.read_extras(indices))),
        [steps[i] for i in indices], [chains[i] for i in indices],
        None if log_weights is None else log_weights[list(indices)])

  def _read(self, method, indices):
    pieces = [
        getattr(self._parts[k], method)([index for _, index in group])
        for k, group in itertools.groupby(
            (self._places[i] for i in indices), key=lambda place: place[0])]
    pieces = pieces or [getattr(self._parts[0], method)([])]
    return [np.concatenate(arrays) for arrays in zip(*pieces)]


def check_models(model: keras.Model, other: keras.Model, extras: Any) -> None:
  """Raises where two models differ in what draws do not hold.

  Args:
    model: Built `keras.Model`.
    other: Another, of the same architecture.
    extras: The variables of `model` that draws have values of, beside the
      trainable ones.

  Raises:
    ValueError: If they do.
  """
  if other is model:
    return
  difference = model_record.difference(model_record.of_layers(model), other)
  if difference is not None:
    raise ValueError(
        'The chains are of models with other layers, and predictions use the '
        "model of the first for all draws. Of the first, beside another's: "
        f'{difference}. Make the models alike, or predict with each alone.')
  held = {id(variable) for variable in extras}
  pairs = zip(model.non_trainable_weights, other.non_trainable_weights)
  for ours, theirs in pairs:
    if id(ours) not in held and not np.array_equal(ours, theirs):
      raise ValueError(
          f'The chains are of models that differ in {ours.path!r}, which is '
          'not sampled: predictions use that of one model for all draws. Give '
          'the models the same frozen weights (by a seed, or load_weights).')


def _rows_of_chain(start, chain):
  numbers = start.get('chain', np.zeros([1]))
  return {name: array[numbers == chain] for name, array in start.items()}


def _check_alike(first, other):
  for what, pair in (
      ('weights', (first.read([]), other.read([]))),
      ('moving statistics', (first.read_extras([]), other.read_extras([])))):
    ours, theirs = (
        ', '.join(f'{a.dtype.name}{list(a.shape[1:])}' for a in arrays)
        or 'none' for arrays in pair)
    if ours != theirs:
      raise ValueError(
          f'The chains have {what} of shapes {ours} and {theirs}: draws of one '
          'model are needed, with the same layers frozen.')
