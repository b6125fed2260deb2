"""Draws on disk: one file a chunk, a checkpoint, and a manifest.

  manifest.json            what the call was given and how far it has come
  chunk_00000.npz, ...     the draws: state_0, ..., trace_0, ...
  checkpoint_<step>.npz    the last state and kernel results, to go on from:
                           state_0, ..., results_0, ...

A file is written under another name and then renamed, the manifest last: what
the manifest tells of is there, whenever the process is killed.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import json
import os
import pathlib

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import fingerprint

__all__ = ['Chunks', 'Store']

_FORMAT = 1


class Store:
  """The directory of one run.

  Attributes:
    step: Python `int`, the number of steps made.
    num_draws: Python `int`, the number of draws on disk.
  """

  def __init__(self, directory: str | os.PathLike, arguments: dict[str, str]):
    """Opens a directory, or makes it.

    Args:
      directory: Where the run is, or will be.
      arguments: The call's `fingerprint`.

    Raises:
      ValueError: If the directory holds the run of another call.
    """
    self._path = pathlib.Path(directory)
    self._path.mkdir(parents=True, exist_ok=True)
    self._arguments = arguments
    self.step, self.num_draws = 0, 0
    self._checkpoint = None
    if (self._path / 'manifest.json').exists():
      self._read_manifest()

  def _read_manifest(self):
    manifest = json.loads((self._path / 'manifest.json').read_text())
    if manifest.get('format') != _FORMAT:
      raise ValueError(
          f'{self._path} was written in format {manifest.get("format")} and '
          f'this version of the library reads format {_FORMAT}. Give another '
          'directory.')
    changes = fingerprint.difference(manifest['arguments'], self._arguments)
    if changes is not None:
      raise ValueError(
          f'{self._path} holds draws of a call with other arguments: {changes}.'
          ' Make the same call to go on with it, or give another directory.')
    self.step, self.num_draws = manifest['step'], manifest['num_draws']
    self._checkpoint = manifest['checkpoint']

  @property
  def is_new(self) -> bool:
    """Whether nothing has been sampled yet."""
    return self._checkpoint is None

  def checkpoint(self, specs: Mapping[str, tf.TensorSpec]) -> list[tf.Tensor]:
    """The tensors that the last `commit` was given as `checkpoint`."""
    return _read(self._path / self._checkpoint, specs)

  def chunks(
      self, chunk_size: int, specs: Mapping[str, tf.TensorSpec]) -> 'Chunks':
    """The chunks on disk, read when they are asked for.

    Args:
      chunk_size: Python `int`, the number of draws in all chunks but the last.
      specs: Dictionary with the `TensorSpec` of each tensor of a draw.

    Returns:
      chunks: `Chunks`.
    """
    return Chunks(self._path, -(-self.num_draws // chunk_size), specs)

  def write_chunk(self, index: int, tensors: Mapping[str, tf.Tensor]) -> None:
    """Writes a chunk; it counts once `commit` has said so."""
    _write(self._path / _chunk_name(index), tensors)

  def commit(
      self, step: int, num_draws: int, checkpoint: Mapping[str, tf.Tensor],
  ) -> None:
    """Makes the run begin here when it is opened again.

    Args:
      step: Python `int`, the number of steps made.
      num_draws: Python `int`, the number of draws in the chunks on disk.
      checkpoint: Dictionary of tensors to go on from.
    """
    previous, self._checkpoint = self._checkpoint, f'checkpoint_{step}.npz'
    self.step, self.num_draws = step, num_draws
    _write(self._path / self._checkpoint, checkpoint)
    manifest = {
        'format': _FORMAT, 'step': step, 'num_draws': num_draws,
        'checkpoint': self._checkpoint, 'arguments': self._arguments}
    with _Replacing(self._path / 'manifest.json') as file:
      file.write(json.dumps(manifest, indent=1).encode())
    if previous not in (None, self._checkpoint):
      (self._path / previous).unlink(missing_ok=True)


class Chunks(Sequence):
  """Chunks on disk: each is read when it is asked for, and not kept."""

  def __init__(self, path, num_chunks, specs):
    self._path = path
    self._num_chunks = num_chunks
    self._specs = specs

  def __len__(self):
    return self._num_chunks

  def __getitem__(self, index):
    if not 0 <= index < self._num_chunks:
      raise IndexError(index)
    return _read(self._path / _chunk_name(index), self._specs)


def _chunk_name(index):
  return f'chunk_{index:05}.npz'


class _Replacing:
  """A file that takes its name once it is whole and on the disk."""

  def __init__(self, path):
    self._path = path
    self._partial = path.with_name(path.name + '.partial')

  def __enter__(self):
    self._file = open(self._partial, 'wb')
    return self._file

  def __exit__(self, exception_type, *exception):
    if exception_type is None:
      self._file.flush()
      os.fsync(self._file.fileno())
    self._file.close()
    if exception_type is None:
      os.replace(self._partial, self._path)


def _write(path, tensors):
  arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
  with _Replacing(path) as file:
    np.savez(file, **{name: _native(a) for name, a in arrays.items()})


def _native(array):
  """NumPy forgets the name of bfloat16: its bits are saved as integers."""
  if array.dtype.kind in 'biufc':
    return array
  return array.view(f'u{array.dtype.itemsize}')


def _read(path, specs):
  try:
    with np.load(path) as file:
      arrays = [file[name] for name in specs]
  except (FileNotFoundError, KeyError) as error:
    raise ValueError(
        f'{path} is missing or not whole, though the manifest beside it tells '
        f'of it ({error}). Put it back, or give another directory.') from error
  with tf.device('CPU:0'):
    return [
        tf.convert_to_tensor(array.view(spec.dtype.as_numpy_dtype))
        for array, spec in zip(arrays, specs.values())]
