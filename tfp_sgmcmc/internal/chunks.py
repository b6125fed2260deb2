"""Draws in chunks, each in memory or in a file, read alike.

A draw is a dictionary of arrays, with names such as `state/0`: a group, and the
array's name in it.
"""

import bisect
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
import pathlib
from typing import Any
from typing import NamedTuple
from typing import Protocol

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import array_files
from tfp_sgmcmc.internal import fingerprint

__all__ = [
    'Chunks', 'InFile', 'InMemory', 'Readable', 'spec_difference', 'spec_of']


class Readable(Protocol):
  """Draws that can be read, wherever they are."""

  @property
  def specs(self) -> dict[str, tf.TensorSpec]:
    """The `TensorSpec` of each array of a draw."""

  def __len__(self) -> int:
    """The number of draws."""

  def read(
      self, indices: Sequence[int], names: Sequence[str] | None = None,
  ) -> dict[str, np.ndarray]:
    """Some draws: see `Chunks.read`."""


class Chunks:
  """Draws in chunks, each in memory or in a file, read alike.

  What is in a file is read when it is asked for.

  #### Examples

  >>> chunks = Chunks()
  >>> chunks.append({'x': np.zeros([3, 2])})
  >>> chunks.append({'x': np.ones([1, 2])})
  >>> len(chunks), [chunk['x'].shape for chunk in chunks]
  (4, [(3, 2), (1, 2)])
  >>> chunks.read([2, 3])['x'][:, 0].tolist()
  [0.0, 1.0]
  """

  def __init__(
      self,
      chunks: Sequence[Any] = (),
      specs: Mapping[str, tf.TensorSpec] | None = None,
  ):
    """Makes a sequence of chunks.

    Args:
      chunks: The first chunks.
      specs: Dictionary with the `TensorSpec` of each array of a draw; by
        default those of the first draws that are appended.
    """
    self._chunks = list(chunks)
    self._ends = list(itertools.accumulate(c.num_draws for c in self._chunks))
    self._specs: Any = dict(specs) if specs else None
    self._layout: dict[str, Any] | None = None
    self._cached = (None, {})

  @property
  def specs(self) -> dict[str, tf.TensorSpec]:
    """The `TensorSpec` of each array of a draw."""
    return dict(self._specs or {})

  def __len__(self) -> int:
    """The number of draws."""
    return self._ends[-1] if self._ends else 0

  def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
    """Goes through the chunks, dictionaries of arrays `[draws, ...]`."""
    for chunk in self._chunks:
      yield chunk.read(self.specs)

  def copy(self) -> 'Chunks':
    """The same chunks, to which others can be appended."""
    return Chunks(self._chunks, self._specs)

  def append(self, arrays: Mapping[str, Any]) -> None:
    """Adds draws in memory.

    Args:
      arrays: Dictionary of tensors or arrays `[draws, ...]`.

    Raises:
      TypeError: If an array has no numbers, but strings or objects.
      ValueError: If names, dtypes or shapes are not those of earlier draws.
    """
    self.add(InMemory(arrays))

  def read(
      self, indices: Sequence[int], names: Sequence[str] | None = None,
  ) -> dict[str, np.ndarray]:
    """Some draws.

    Args:
      indices: The draws' numbers, from 0.
      names: The names of the arrays to read; by default all.

    Returns:
      arrays: Dictionary of arrays `[len(indices), ...]`.

    Raises:
      IndexError: If there is no such draw.
      ValueError: If a file is missing or damaged.
    """
    names = list(self.specs) if names is None else list(names)
    for index in indices:
      if not 0 <= index < len(self):
        raise IndexError(
            f'There is no draw {index}: there are {len(self)}, from 0.')
    pieces = {name: [] for name in names}
    places = ((bisect.bisect(self._ends, i), i) for i in indices)
    for k, group in itertools.groupby(places, key=lambda place: place[0]):
      first = self._ends[k] - self._chunks[k].num_draws
      rows = [index - first for _, index in group]
      arrays = self._read_cached(k, names)
      for name in names:
        pieces[name].append(arrays[name][rows])
    return {
        name: np.concatenate(parts) if parts else np.zeros(
            [0, *self._specs[name].shape],
            self._specs[name].dtype.as_numpy_dtype)
        for name, parts in pieces.items()}

  def _read_cached(self, k, names):
    """Reads a chunk, and keeps it until another one is read."""
    chunk = self._chunks[k]
    cached, arrays = self._cached
    if cached is not chunk:
      arrays = {}
    missing = {n: self._specs[n] for n in names if n not in arrays}
    arrays = {**arrays, **chunk.read(missing)}
    self._cached = (chunk, arrays)
    return arrays

  def add(self, chunk: 'InMemory') -> None:
    """Adds a chunk whose draws are like those before, as `append` has them."""
    if self._specs is None:
      self._specs = chunk.specs()
    if self._layout is None:
      self._layout = {
          name: (np.dtype(spec.dtype.as_numpy_dtype), tuple(spec.shape))
          for name, spec in self._specs.items()}
    if chunk.layout != self._layout:
      difference = spec_difference(self._specs, chunk.specs())
      raise ValueError(f'These draws are not as those before: {difference}.')
    self._add(chunk)

  def _add(self, chunk):
    self._chunks.append(chunk)
    self._ends.append(len(self) + chunk.num_draws)

  def replace_last(self, number: int, chunk: 'InMemory | InFile') -> None:
    """Puts one chunk in place of the last `number` chunks."""
    first = len(self._chunks) - number
    del self._chunks[first:], self._ends[first:]
    self._add(chunk)


class InMemory:
  """Draws in memory."""

  def __init__(self, arrays):
    self._arrays = {name: np.asarray(array) for name, array in arrays.items()}
    (self.num_draws,) = {len(array) for array in self._arrays.values()}

  @property
  def layout(self):
    """The dtype and shape of each array of a draw."""
    return {name: (array.dtype, array.shape[1:])
            for name, array in self._arrays.items()}

  @property
  def num_bytes(self):
    return sum(array.nbytes for array in self._arrays.values())

  def specs(self):
    return {name: spec_of(name, dtype, shape)
            for name, (dtype, shape) in self.layout.items()}

  def read(self, specs):
    return {name: self._arrays[name] for name in specs}


class InFile(NamedTuple):
  """Draws in a file."""
  path: pathlib.Path
  num_draws: int
  checksum: str

  def read(self, specs):
    specs = {
        name: tf.TensorSpec([self.num_draws, *spec.shape], spec.dtype)
        for name, spec in specs.items()}
    return array_files.read(self.path, specs, self.checksum)


def spec_difference(
    before: Mapping[str, tf.TensorSpec], now: Mapping[str, tf.TensorSpec],
) -> str | None:
  """Says in a sentence which specs differ, None where none do."""
  return fingerprint.difference(
      {name: _show(spec) for name, spec in before.items()},
      {name: _show(spec) for name, spec in now.items()})


def _show(spec):
  return f'{spec.dtype.name}[{",".join(map(str, spec.shape))}]'


def spec_of(name: str, dtype: np.dtype, shape: Sequence[int]) -> tf.TensorSpec:
  """The spec of an array of a draw; raises where it holds no numbers."""
  if dtype.kind in 'OSUMm':
    raise TypeError(
        f'{name} is an array of dtype {dtype}, and only numbers can be kept: '
        'leave it out, or make numbers of it.')
  return tf.TensorSpec(shape, tf.as_dtype(dtype))
