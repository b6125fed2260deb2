"""Files of named arrays: written whole or not at all, checked when read.

The format is NumPy's npz, which `np.load` reads. It is written by hand, since
`np.savez` takes neither every name nor bfloat16.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import os
import pathlib
from typing import Any
from typing import BinaryIO
import zipfile

import numpy as np
import tensorflow as tf

__all__ = ['damaged', 'read', 'replacing', 'write']


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[BinaryIO]:
  """A new file that takes its name once it is whole and on the disk.

  Args:
    path: The name; a file that has it is replaced.

  Yields:
    file: The file to write to.

  Raises:
    OSError: If it cannot be written; it names the path.
  """
  partial = path.with_name(path.name + '.partial')
  try:
    partial.unlink(missing_ok=True)
    with open(partial, 'xb') as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(partial, path)
    _sync(path.parent)
  except OSError as error:
    with contextlib.suppress(OSError):
      partial.unlink(missing_ok=True)
    raise OSError(
        error.errno, f'{error.strerror or error} while this file was written '
        '(what was complete before is kept)', str(path)) from error


def write(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes arrays by name."""
  with replacing(path) as file, zipfile.ZipFile(file, 'w') as archive:
    for name, array in arrays.items():
      with archive.open(f'{name}.npy', 'w', force_zip64=True) as member:
        np.lib.format.write_array(
            member, array.view(_bits(array.dtype)), allow_pickle=False)


def read(
    path: pathlib.Path, specs: Mapping[str, tf.TensorSpec],
) -> dict[str, np.ndarray]:
  """Reads arrays.

  Args:
    path: The file.
    specs: Dictionary of the `TensorSpec`s that the arrays have to have.

  Returns:
    arrays: Dictionary of arrays.

  Raises:
    ValueError: If the file is missing or damaged, or has other arrays.
  """
  arrays = {}
  try:
    with zipfile.ZipFile(path) as archive:
      for name in specs:
        with archive.open(f'{name}.npy') as member:
          arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
          if member.read(1):
            raise ValueError(f'{name} has more bytes than it tells of')
  except FileNotFoundError as error:
    raise ValueError(
        f'{path} is missing: put it back, or give another directory.'
    ) from error
  except Exception as error:
    if isinstance(error, OSError) and error.filename is not None:
      raise
    raise damaged(path, error) from error
  for name, spec in specs.items():
    dtype, shape = np.dtype(spec.dtype.as_numpy_dtype), tuple(spec.shape)
    array = arrays[name]
    if array.dtype != _bits(dtype) or array.shape != shape:
      raise damaged(path, (
          f'{name} has dtype {array.dtype} and shape {array.shape}, and '
          f'{_bits(dtype)} and {shape} are expected'))
    arrays[name] = array.view(dtype)
  return arrays


def damaged(path: pathlib.Path, reason: Any) -> ValueError:
  """The error for a file that is not as it was written."""
  return ValueError(
      f'{path} is damaged ({reason!s:.200}): put back a copy of it, or give '
      'another directory.')


def _bits(dtype):
  """NumPy forgets the name of bfloat16: its bits are kept as integers."""
  return dtype if dtype.kind in 'biufc' else np.dtype(f'u{dtype.itemsize}')


def _sync(directory):
  """Brings the names of files to the disk, where the system can."""
  if os.name != 'posix':
    return
  handle = os.open(directory, os.O_RDONLY)
  with contextlib.suppress(OSError):
    os.fsync(handle)
  os.close(handle)
