"""Files of named arrays: written whole or not at all, checked when read.

The format is NumPy's npz, which `np.load` reads. It is written by hand, since
`np.savez` takes neither every name nor bfloat16.

A file ends with two checksums, in the comment of the zip archive: that of the
file before it, and its own,

  checksum = hash(checksum before; name, length and CRC of each array).

So the checksum of the last file of a sequence stands for all of them and their
order. Neither is there a need to read the arrays for it: when they are read,
they are compared with their CRCs anyway.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import hashlib
import os
import pathlib
import re
from typing import BinaryIO
import zipfile

import numpy as np
import tensorflow as tf

__all__ = [
    'CHECKSUM', 'NO_CHECKSUM', 'checksums', 'damaged', 'read', 'replacing',
    'write']

CHECKSUM = re.compile('[0-9a-f]{16}')
NO_CHECKSUM = 16 * '0'  # The checksum before the first file.
_NOT_OURS = 'it is not the file that was written there'


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


def write(
    path: pathlib.Path,
    arrays: Mapping[str, np.ndarray],
    before: str = NO_CHECKSUM,
) -> str:
  """Writes arrays by name.

  Args:
    path: The file.
    arrays: Dictionary of arrays.
    before: The checksum of the file before it.

  Returns:
    checksum: That of this file.
  """
  with replacing(path) as file, zipfile.ZipFile(file, 'w') as archive:
    for name, array in arrays.items():
      with archive.open(f'{name}.npy', 'w', force_zip64=True) as member:
        np.lib.format.write_array(
            member, array.view(_bits(array.dtype)), allow_pickle=False)
    checksum = _checksum(archive, before)
    archive.comment = (before + checksum).encode()
  return checksum


def checksums(path: pathlib.Path) -> tuple[str, str]:
  """The checksum before a file and its own, as its end tells.

  Raises:
    ValueError: If the file is missing, or does not end with them.
  """
  try:
    with open(path, 'rb') as file:
      file.seek(max(0, os.fstat(file.fileno()).st_size - 2 * len(NO_CHECKSUM)))
      return _parsed(file.read())
  except FileNotFoundError as error:
    raise _missing(path) from error
  except ValueError as error:
    raise damaged(path, error) from error


def read(
    path: pathlib.Path,
    specs: Mapping[str, tf.TensorSpec],
    checksum: str | None = None,
) -> dict[str, np.ndarray]:
  """Reads arrays.

  Args:
    path: The file.
    specs: Dictionary of the `TensorSpec`s that the arrays have to have.
    checksum: That of the file; None for any.

  Returns:
    arrays: Dictionary of arrays.

  Raises:
    ValueError: If the file is missing or damaged, or another one, or has other
      arrays.
  """
  try:
    with zipfile.ZipFile(path) as archive:
      before, own = _parsed(archive.comment)
      if own != _checksum(archive, before) or checksum not in (None, own):
        raise ValueError(_NOT_OURS)
      return {name: _array(archive, name, spec) for name, spec in specs.items()}
  except FileNotFoundError as error:
    raise _missing(path) from error
  except Exception as error:
    if isinstance(error, OSError) and error.filename is not None:
      raise
    raise damaged(path, error) from error


def _array(archive, name, spec):
  """An array of a file, looked at before there is memory for it."""
  dtype, shape = np.dtype(spec.dtype.as_numpy_dtype), tuple(spec.shape)
  member = archive.getinfo(f'{name}.npy')
  if member.compress_type != zipfile.ZIP_STORED:
    raise ValueError(f'{name} is compressed')
  with archive.open(member) as file:
    if np.lib.format.read_magic(file) != (1, 0):
      raise ValueError(f'{name} is of another version of the format')
    found_shape, _, found = np.lib.format.read_array_header_1_0(file)
    length = member.file_size - file.tell()
  if found != _bits(dtype) or found_shape != shape:
    raise ValueError(
        f'{name} has dtype {found} and shape {found_shape}, and {_bits(dtype)} '
        f'and {shape} are expected')
  wanted = spec.shape.num_elements() * found.itemsize
  if length != wanted:
    raise ValueError(f'{name} has {length:,} bytes in place of {wanted:,}')
  with archive.open(member) as file:
    array = np.lib.format.read_array(file, allow_pickle=False)
    file.read(1)  # At the end the CRC is compared.
  return array.view(dtype)


def _checksum(archive, before):
  members = [(m.filename, m.file_size, m.CRC) for m in archive.infolist()]
  content = repr((before, members)).encode()
  return hashlib.sha256(content).hexdigest()[:len(NO_CHECKSUM)]


def _parsed(comment):
  """The two checksums at the end of a file."""
  both = comment.decode('ascii', 'replace')
  before, own = both[:len(NO_CHECKSUM)], both[len(NO_CHECKSUM):]
  if not (CHECKSUM.fullmatch(before) and CHECKSUM.fullmatch(own)):
    raise ValueError(_NOT_OURS)
  return before, own


def damaged(path: pathlib.Path, reason: object) -> ValueError:
  """The error for a file that is not as it was written."""
  return ValueError(
      f'{path} is damaged ({reason!s:.200}): put back a copy of it, or give '
      'another directory.')


def _missing(path):
  return ValueError(
      f'{path} is missing: put it back, or give another directory.')


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
