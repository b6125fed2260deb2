"""Draws of a model's weights: arrays by the weights' paths, and their steps.

They are the sampled arrays as they are. Keras' own weights files are not: a
layer with LoRA, for one, merges its low-rank part into its kernel when it
writes one.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import store as store_lib
from tfp_sgmcmc.internal import chunks as chunks_lib
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.draws import extra_variables as extras_lib
from tfp_sgmcmc.keras.model import model_record
from tfp_sgmcmc.keras.model import network

__all__ = [
    'ModelDraws', 'checkpoint_of', 'from_arrays', 'in_memory', 'load',
    'new_store', 'to_arrays']

_START = 'start/'


class ModelDraws:
  """Draws of a model's trainable weights, in memory or in a directory.

  The array of a weight is called `state/<path>`; that of a moving statistic,
  which predictions with these weights need, `extra/<path>`; `step` holds
  the number of the step at which each draw was made; `chain`, where there are
  several chains, that of the chain; and `log_weight`, where draws have weights,
  the logarithm of the draw's.
  """

  def __init__(
      self,
      model: keras.Model,
      chunks: chunks_lib.Readable | None = None,
      store: store_lib.Store | None = None,
      start: Callable[[], dict[str, np.ndarray]] = dict,
  ):
    """Makes draws of what there is, or of none yet.

    Args:
      model: The model.
      chunks: The draws, of one chain or several (`joined_draws.join`); by
        default none yet.
      store: An open `Store` with the draws, in place of `chunks`. By default
        new draws stay in memory.
      start: Callable that returns what `start` is to be.

    Raises:
      ValueError: If the draws are of another model.
    """
    self._model = model
    self._store = store
    self._chunks = chunks_lib.Chunks() if chunks is None else chunks
    self._names = None
    self._extras = []
    self._read_start = start
    if len(self.chunks) and network.is_built(model):
      self._names = _match(self.chunks.specs, model)

  @property
  def chunks(self) -> chunks_lib.Readable:
    """The draws, with all arrays that they have."""
    return self._chunks if self._store is None else self._store.draws

  @property
  def store(self) -> store_lib.Store | None:
    """The `Store` that draws go to, None where they stay in memory."""
    return self._store

  @property
  def steps(self) -> list[int]:
    """The number of the step of each draw."""
    every = range(len(self))
    if not every:
      return []
    return self.chunks.read(every, ['step'])['step'].tolist()

  @property
  def chain_numbers(self) -> list[int]:
    """The number of each draw's chain, from 0."""
    every = range(len(self))
    if 'chain' not in self.chunks.specs:
      return [0 for _ in every]
    return self.chunks.read(every, ['chain'])['chain'].tolist()

  @property
  def log_weights(self) -> np.ndarray | None:
    """The logarithm of each draw's weight, None where all count the same."""
    if 'log_weight' not in self.chunks.specs:
      return None
    return self.chunks.read(range(len(self)), ['log_weight'])['log_weight']

  def __len__(self) -> int:
    return len(self.chunks)

  def arrays(self, indices: Sequence[int]) -> dict[str, np.ndarray]:
    """All that some draws hold, by name."""
    return self.chunks.read(indices)

  def read(self, indices: Sequence[int]) -> list[np.ndarray]:
    """Some draws: one array `[len(indices), ...]` for each trainable weight."""
    arrays = self.chunks.read(indices, self.names)
    return [arrays[name] for name in self.names]

  @property
  def start(self) -> dict[str, np.ndarray]:
    """The weights before sampling, as `arrays` of a draw of each chain.

    Empty where they are not known.
    """
    return self._read_start()

  def keep_start(self, chains: Any) -> None:
    """Takes the model's weights as they are now for those before sampling.

    Args:
      chains: As for `append`.
    """
    arrays = self._now(0, chains)
    self._read_start = lambda: arrays

  def state(self) -> dict[str, np.ndarray]:
    """What `load_state` takes, to be kept in a directory beside the draws."""
    return checkpoint_of(self.start)

  def load_state(self, state: Mapping[str, np.ndarray]) -> None:
    """Takes over the weights before sampling.

    Args:
      state: Arrays by name, those of the `state` of other draws among them.
    """
    arrays = _start_of(state)
    self._read_start = lambda: arrays

  def begin(self, extras: Sequence[keras.Variable]) -> None:
    """Takes note of the model, and of what to keep beside its weights.

    Args:
      extras: Variables of the model that are not trainable.
    """
    self._extras = list(extras)
    if self._store is not None:
      self._store.describe(model_record.of_model(self._model, extras))

  @property
  def extras(self) -> list[keras.Variable]:
    """The model's variables that the draws have values of, beside weights."""
    return [variable for _, variable in self._named_extras()]

  def read_extras(self, indices: Sequence[int]) -> list[np.ndarray]:
    """Some draws: one array `[len(indices), ...]` for each of `extras`."""
    names = self.extra_names
    arrays = self.chunks.read(indices, names)
    return [arrays[name] for name in names]

  @property
  def extra_names(self) -> list[str]:
    """The names of the extras' arrays."""
    return [name for name, _ in self._named_extras()]

  def _named_extras(self):
    return extras_lib.match(self.chunks.specs, self._model) if len(
        self) else []

  def _kept_extras(self):
    """The extras with their names: those of the draws before, if any."""
    return self._named_extras() if len(self) else extras_lib.named(self._extras)

  def append(
      self, step: int, chains: Any, log_weights: np.ndarray | None = None,
  ) -> None:
    """Adds the model's trainable weights as they are now, and the extras.

    Args:
      step: Python `int`, the number of the step.
      chains: `SideBySide`: a draw of each chain.
      log_weights: The logarithm of the weight of each of these draws; None
        where all draws count the same.
    """
    keeper: Any = self._chunks if self._store is None else self._store
    keeper.append(self._now(step, chains, log_weights))

  def _now(self, step, chains, log_weights=None):
    """The arrays of a draw of each chain, of the model as it is now."""
    stacked, number = chains.stacked, chains.num_chains
    extras = self._kept_extras()
    return to_arrays(
        dict(zip(self.names, stacked(self._model.trainable_variables))),
        dict(zip((name for name, _ in extras),
                 stacked([variable for _, variable in extras]))),
        [step] * number, range(number) if number > 1 else None, log_weights)

  def open(self) -> None:
    """Makes a directory ready to be written to, after `close`."""
    if self._store is not None:
      self._store.open(take_over=True)

  def close(self) -> None:
    """Lets go of a directory; the draws can still be read."""
    if self._store is not None:
      self._store.close()

  @property
  def names(self) -> list[str]:
    """The names of the weights' arrays: those of the draws before, if any."""
    if self._names is None:
      paths = network.paths(self._model.trainable_variables)
      self._names = _match(self.chunks.specs, self._model) if len(
          self.chunks) else [f'state/{path}' for path in paths]
    return self._names


def to_arrays(
    weights: dict[str, np.ndarray],
    extras: dict[str, np.ndarray],
    steps: Sequence[int],
    chains: Sequence[int] | None = None,
    log_weights: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
  """What a store keeps of some draws.

  Args:
    weights: The weights by name, `[draws, ...]`.
    extras: The extras likewise.
    steps: The number of each draw's step.
    chains: The number of each draw's chain, None of a single one.
    log_weights: The logarithm of each draw's weight, None where all count the
      same.

  Returns:
    arrays: All of them by name.
  """
  return {
      **weights, **extras, 'step': np.array(steps, np.int64),
      **({} if chains is None else {'chain': np.array(chains, np.int64)}),
      **({} if log_weights is None else {
          'log_weight': np.array(log_weights)})}


def in_memory(
    model: keras.Model,
    arrays: dict[str, np.ndarray],
    start: Mapping[str, np.ndarray] | None = None,
) -> ModelDraws:
  """Draws of a model from what `to_arrays` gives of some, and their `start`."""
  chunks = chunks_lib.Chunks()
  if len(arrays.get('step', ())):
    chunks.append(arrays)
  return ModelDraws(model, chunks, start=lambda: dict(start or {}))


def from_arrays(model: keras.Model, arrays: Sequence[Any]) -> ModelDraws:
  """Draws of a model from stacked weights: see `PosteriorSamples.from_arrays`.

  Args:
    model: Built `keras.Model`.
    arrays: One array `[draws, ...]` for each trainable weight.

  Returns:
    draws: `ModelDraws`, in memory.
  """
  arrays = [np.asarray(array) for array in arrays]
  for array in arrays:
    if array.dtype.kind not in 'biuf' and not tf.as_dtype(
        array.dtype).is_floating:
      raise TypeError(
          f'The arrays hold one of dtype {array.dtype.name}: weights are '
          'real numbers.')
  shapes = [array.shape[1:] for array in arrays]
  variables = model.trainable_variables
  wanted = [tuple(v.shape) for v in variables]
  lengths = {len(array) for array in arrays}
  if shapes != wanted or len(lengths) != 1:
    raise ValueError(
        f'The arrays have shapes {[array.shape for array in arrays]}: one is '
        'needed for each trainable weight of the model, [draws, ...] with '
        f'the same number of draws and shapes {wanted} after it.')
  weights = {
      f'state/{path}': array.astype(
          tf.as_dtype(variable.dtype).as_numpy_dtype)
      for path, variable, array in zip(
          network.paths(variables), variables, arrays)}
  for name, array in weights.items():
    is_bad = ~np.isfinite(np.asarray(array, np.float64))
    if np.any(is_bad):
      raise ValueError(
          f'The arrays of the weight {name.removeprefix("state/")!r} hold '
          f'{np.sum(is_bad)} values that are NaN or infinite '
          f'(in {array.dtype.name}): leave out the draws that hold them.')
  return in_memory(
      model, to_arrays(weights, {}, range(1, len(arrays[0]) + 1)))


def load(directory: hints.Path, model: keras.Model) -> ModelDraws:
  """The draws in a directory, read as they are used.

  Args:
    directory: Path.
    model: A built model.

  Returns:
    draws: `ModelDraws`.

  Raises:
    FileNotFoundError: If there are none.
    ValueError: If they are of another model, or damaged.
  """
  return ModelDraws(
      model, store_lib.read_draws(directory, 'fit'),
      start=lambda: _start_of(store_lib.read_checkpoint(directory, 'fit')))


def checkpoint_of(start: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The weights before sampling by the names that a checkpoint has for them."""
  return {_START + name: array for name, array in start.items()}


def _start_of(checkpoint):
  return {
      name.removeprefix(_START): array for name, array in checkpoint.items()
      if name.startswith(_START)}


def new_store(directory: hints.Path) -> store_lib.Store:
  """An open store of draws of a model, none yet, without a chain.

  Args:
    directory: Path of a directory without draws.

  Returns:
    store: `Store`.

  Raises:
    FileExistsError: If the directory holds draws.
    RuntimeError: If another run is writing to it.
  """
  store = store_lib.Store(directory, 'fit')
  if not store.is_new:
    raise FileExistsError(
        f'The directory {str(store.path)!r} holds draws already: take another '
        'one, or remove it. To read them, PosteriorSamples.load(directory, '
        'model).')
  return store_lib.Store(directory, 'fit', {}).open(take_over=True)


def _match(specs, model):
  """The names of the arrays of a model's trainable weights, in their order.

  Where the paths are others, as after Keras has numbered layers anew, the order
  counts.
  """
  kept = [name for name in specs if name.startswith('state/')]
  variables = model.trainable_variables
  names = [f'state/{path}' for path in network.paths(variables)]
  if set(names) != set(kept):
    names = kept
  ours = [(tuple(v.shape), tf.as_dtype(v.dtype)) for v in variables]
  theirs = [(tuple(specs[n].shape), specs[n].dtype) for n in names]
  if not ours:
    raise ValueError(
        'The model has no trainable weights, or none yet: call it on a batch '
        'of inputs first, which makes them.')
  if ours != theirs:
    raise ValueError(
        f'The draws are of weights of shapes {_show(theirs)}, and the model '
        f'has trainable weights of shapes {_show(ours)}: build the model as it '
        'was, with the same layers frozen.')
  return names


def _show(weights):
  return ', '.join(f'{dtype.name}{list(shape)}' for shape, dtype in weights)
