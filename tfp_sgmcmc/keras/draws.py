"""Where draws are kept: in memory, or on disk one file a draw."""

from collections.abc import Sequence
import json
import os
import pathlib
from typing import Any

import keras
import numpy as np

__all__ = ['DiskDraws', 'MemoryDraws']

_MANIFEST = 'manifest.json'
_FORMAT = 'tfp_sgmcmc.keras draws, version 1'


class MemoryDraws:
  """Draws in memory: one stacked array a weight."""

  def __init__(self, arrays: Sequence[np.ndarray] | None = None, steps=()):
    """Makes the store.

    Args:
      arrays: None, or one array `[draws, ...]` a weight.
      steps: The number of the step of each draw.
    """
    self._arrays = None if arrays is None else list(arrays)
    self.steps = [int(step) for step in steps]

  def __len__(self):
    return len(self.steps)

  def append(self, model: keras.Model, step: int) -> None:
    """Keeps the model's trainable weights."""
    weights = [v.numpy() for v in model.trainable_variables]
    size = len(self.steps)
    if self._arrays is None:
      self._arrays = [np.empty((1, *w.shape), w.dtype) for w in weights]
    if size == len(self._arrays[0]):  # Twice the room: few copies in all.
      self._arrays = [np.concatenate([a, np.empty_like(a)])
                      for a in self._arrays]
    for array, weight in zip(self._arrays, weights):
      array[size] = weight
    self.steps.append(int(step))

  def read(self, indices: Sequence[int]) -> list[np.ndarray]:
    """The draws at `indices`: one array `[len(indices), ...]` a weight."""
    return [array[list(indices)] for array in self._arrays]


class DiskDraws:
  """Draws on disk: a manifest, and a Keras weights file each.

  A file holds all of the model's variables, those that are not sampled too, so
  `model.load_weights(file)` puts the draw into a model. The manifest is
  replaced after each file is complete: what it lists can be read.
  """

  def __init__(self, directory: Any, model: keras.Model, existing: bool):
    """Opens a directory.

    Args:
      directory: Path.
      model: The model whose weights are kept.
      existing: Whether to read draws that are there, or to begin anew.

    Raises:
      FileExistsError: If the directory is to be new and holds draws.
      FileNotFoundError: If draws are to be read and there are none.
      ValueError: If the draws are of another model.
    """
    self.directory = pathlib.Path(directory)
    self._model = model
    self._draws = []
    manifest = self.directory / _MANIFEST
    if existing:
      if not manifest.exists():
        raise FileNotFoundError(
            f'There are no draws in {str(self.directory)!r}: the file '
            f'{_MANIFEST} is missing. Give the directory that '
            'PosteriorSampling or PosteriorSamples.save wrote.')
      self._read_manifest(manifest)
    elif manifest.exists():
      raise FileExistsError(
          f'The directory {str(self.directory)!r} holds draws already: take '
          'another one, or remove it. To read them, '
          'PosteriorSamples.load(directory, model).')

  @property
  def steps(self) -> list[int]:
    """The number of the step of each draw."""
    return [draw['step'] for draw in self._draws]

  def __len__(self):
    return len(self._draws)

  def append(self, model: keras.Model, step: int) -> None:
    """Writes the model's weights, then the manifest."""
    self.directory.mkdir(parents=True, exist_ok=True)
    name = f'draw_{len(self._draws):06d}.weights.h5'
    temporary = self.directory / f'writing_{name}'
    model.save_weights(temporary, overwrite=True)
    os.replace(temporary, self.directory / name)
    self._draws.append({'file': name, 'step': int(step)})
    temporary = self.directory / f'writing_{_MANIFEST}'
    temporary.write_text(json.dumps({
        'format': _FORMAT, 'weights': _describe(model), 'draws': self._draws,
    }, indent=1))
    os.replace(temporary, self.directory / _MANIFEST)

  def read(self, indices: Sequence[int]) -> list[np.ndarray]:
    """The draws at `indices`: one array `[len(indices), ...]` a weight."""
    model = self._model
    kept = [v.numpy() for v in model.variables]
    draws = []
    try:
      for index in indices:
        model.load_weights(self.directory / self._draws[index]['file'])
        draws.append([v.numpy() for v in model.trainable_variables])
    finally:
      for variable, value in zip(model.variables, kept):
        variable.assign(value)
    return [np.stack(arrays) for arrays in zip(*draws)]

  def _read_manifest(self, manifest):
    content = json.loads(manifest.read_text())
    if content.get('format') != _FORMAT:
      raise ValueError(
          f'{str(manifest)!r} is not a manifest of draws that this version '
          f'reads: its format is {content.get("format")!r}, and {_FORMAT!r} is '
          'known.')
    shapes = [weight['shape'] for weight in content['weights']]
    wanted = [weight['shape'] for weight in _describe(self._model)]
    if shapes != wanted:
      raise ValueError(
          f'The draws in {str(self.directory)!r} are of weights of shapes '
          f'{shapes}, and the model has trainable weights of shapes {wanted}: '
          'build the model as it was, with the same layers frozen.')
    self._draws = content['draws']


def _describe(model):
  return [
      {'path': v.path, 'shape': list(v.shape), 'dtype': v.dtype}
      for v in model.trainable_variables]
