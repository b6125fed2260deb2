"""Draws of several chains of a model's weights, read as those of one."""

from collections.abc import Sequence
import itertools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.draws import model_draws as draws_lib
from tfp_sgmcmc.keras.model import model_record

__all__ = ['JoinedChunks', 'check_models', 'join']

Part = tuple[draws_lib.ModelDraws, Sequence[int]]


def join(
    model: keras.Model, parts: Sequence[Part], has_weights: bool = True,
) -> draws_lib.ModelDraws:
  """The draws of several chains, one chain after the other.

  They stay where they are: what is on disk is read as it is used.

  Args:
    model: The model of the first chain.
    parts: For each chain the `ModelDraws`, and the indices of those to take.
      The weights of all have the shapes of the first's, in its order.
    has_weights: Python `bool`: False to let all draws count the same, also
      where they have weights.

  Returns:
    draws: `ModelDraws`, which take no further draws.

  Raises:
    ValueError: If the draws hold other weights, or other moving statistics.
  """
  first = parts[0][0]
  for draws, _ in parts[1:]:
    _check_alike(first, draws)
  return draws_lib.ModelDraws(
      model, JoinedChunks(parts, has_weights), start=lambda: _start(parts))


class JoinedChunks:
  """Draws at several places, read like `Chunks`.

  The arrays have the names of the first chain's. `chain` is the number of the
  chain in the list, and `log_weight` is 0 for a chain without weights.
  """

  def __init__(self, parts: Sequence[Part], has_weights: bool):
    """See `join`."""
    self._parts = [draws for draws, _ in parts]
    self._places = [
        (k, index) for k, (_, indices) in enumerate(parts) for index in indices]
    # The names of each chain's arrays, by those of the first.
    names = [[*draws.names, *draws.extra_names, 'step']
             for draws in self._parts]
    self._own_names = [dict(zip(names[0], own)) for own in names]
    specs = [draws.chunks.specs for draws in self._parts]
    self._specs = {name: specs[0][name] for name in names[0]}
    self._specs['chain'] = tf.TensorSpec([], tf.int64)
    weighted = [s['log_weight'] for s in specs if 'log_weight' in s]
    if has_weights and weighted:
      self._specs['log_weight'] = weighted[0]
      for own, of_part in zip(self._own_names, specs):
        if 'log_weight' in of_part:
          own['log_weight'] = 'log_weight'

  @property
  def specs(self) -> dict[str, tf.TensorSpec]:
    """The `TensorSpec` of each array of a draw."""
    return dict(self._specs)

  def __len__(self) -> int:
    """The number of draws."""
    return len(self._places)

  def read(
      self, indices: Sequence[int], names: Sequence[str] | None = None,
  ) -> dict[str, np.ndarray]:
    """Some draws: see `Chunks.read`."""
    names = list(self._specs) if names is None else list(names)
    places = [self._places[i] for i in indices]
    pieces = [
        self._read(k, [index for _, index in group], names)
        for k, group in itertools.groupby(places, key=lambda place: place[0])]
    pieces = pieces or [self._read(0, [], names)]
    return {name: np.concatenate([piece[name] for piece in pieces])
            for name in names}

  def _read(self, k, indices, names):
    """Some draws of a chain, by the names of the first chain's arrays."""
    own = self._own_names[k]
    found = self._parts[k].chunks.read(
        indices, [own[name] for name in names if name in own])
    arrays = {name: found[own[name]] for name in names if name in own}
    # What the chain itself does not hold.
    others = {'chain': k, 'log_weight': 0.}
    return {
        name: arrays[name] if name in own else np.full(
            [len(indices)], others[name],
            self._specs[name].dtype.as_numpy_dtype)
        for name in names}


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


def _start(parts):
  """The weights before sampling of each chain; empty if one's are unknown."""
  starts = [draws.start for draws, _ in parts]
  if not all(starts):
    return {}
  # Those of a part with several chains hold all of them.
  chains = [
      _rows_of_chain(start, draws.chain_numbers[indices[0]])
      for start, (draws, indices) in zip(starts, parts)]
  names = [name for name in chains[0] if name not in ('step', 'chain')]
  columns = [
      [chain[name] for name in chain if name not in ('step', 'chain')]
      for chain in chains]
  arrays = dict(zip(names, map(np.concatenate, zip(*columns))))
  return draws_lib.to_arrays(
      arrays, {}, [0] * len(chains), range(len(chains)))


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
