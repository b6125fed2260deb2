"""Finding, downloading and checking the files that the loaders read.

All loaders treat files alike. With a `data_dir` only that folder is looked at,
and what is missing there is an error. Without one, the publisher's file is
downloaded once, to `~/.keras/datasets/tfp_sgmcmc`, or that is an error; nothing
else ever takes its place. Whatever is read has its rows counted.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import gzip
import itertools
import os
import pathlib
from typing import IO
import zipfile
import zlib

import keras
import numpy as np

__all__ = ['check_count', 'download', 'find', 'open_text', 'read_table',
           'reading']


def find(
    data_dir: str | os.PathLike,
    folder: str,
    names: Sequence[str],
    dataset: str,
) -> pathlib.Path:
  """The first of `names` that is in `data_dir/folder` or in `data_dir`.

  Args:
    data_dir: The folder that the user named.
    folder: Name of the data set's own folder in it.
    names: File names (or those of folders), the preferred first.
    dataset: What the user calls the data.

  Returns:
    path: A path that exists.

  Raises:
    FileNotFoundError: If `data_dir` is no folder, or has none of them.
  """
  root = pathlib.Path(data_dir).expanduser()
  if not root.is_dir():
    raise FileNotFoundError(f'data_dir is {str(data_dir)!r}: no such folder.')
  for place in (root / folder, root):
    for name in names:
      if (place / name).exists():
        return place / name
  raise FileNotFoundError(
      f'{dataset} is not in data_dir {str(data_dir)!r}: looked for '
      f'{" or ".join(names)} in {str(root / folder)!r} and in {str(root)!r}.')


def download(
    url: str, folder: str, dataset: str, sha256: str | None = None,
) -> pathlib.Path:
  """The file at `url`, downloaded unless it has been before.

  Args:
    url: Where the publisher has it.
    folder: Name of the data set's own folder, as for `find`.
    dataset: What the user calls the data.
    sha256: The file's hash, if it is known.

  Returns:
    path: The local copy.

  Raises:
    ConnectionError: If it cannot be reached.
    ValueError: If what was downloaded does not have the hash.
  """
  name = url.rsplit('/', maxsplit=1)[-1]
  try:
    return pathlib.Path(keras.utils.get_file(
        name, origin=url, file_hash=sha256, hash_algorithm='sha256',
        cache_subdir=f'datasets/tfp_sgmcmc/{folder}'))
  except ValueError as error:
    raise ValueError(
        f'{dataset}: what {url} sent is not the file that was published, or '
        f'not all of it ({error}). Try again.') from error
  except Exception as error:  # get_file raises bare exceptions.
    raise ConnectionError(
        f'{dataset} could not be downloaded ({error}). Where there is no '
        f'network, fetch {url} elsewhere, save it as DATA/{folder}/{name}, and '
        'pass data_dir=DATA.') from error


@contextlib.contextmanager
def reading(path: pathlib.Path, what: str) -> Iterator[None]:
  """Turns what readers raise on a broken file into one clear `ValueError`.

  Args:
    path: The file that is read.
    what: What it should be.
  """
  try:
    yield
  except (EOFError, KeyError, ValueError, gzip.BadGzipFile, zlib.error,
          zipfile.BadZipFile) as error:
    raise ValueError(
        f'{path} cannot be read as {what}: it is truncated, corrupted or '
        f'another file ({error}). Delete it and fetch it again.') from error


def open_text(path: pathlib.Path) -> IO[str]:
  """Opens a text file, compressed with gzip if its name ends in .gz."""
  if path.suffix == '.gz':
    return gzip.open(path, 'rt', encoding='utf-8')
  return open(path, encoding='utf-8')


def read_table(
    path: pathlib.Path,
    what: str,
    dtype: np.dtype | type,
    delimiter: str | None = ',',
    num_header_lines: int = 0,
) -> np.ndarray:
  """A text file of numbers as a matrix, `[rows, columns]`."""
  with reading(path, what), open_text(path) as file:
    lines = itertools.islice(_whole_lines(file), num_header_lines, None)
    first = next(lines, None)
    if first is None:
      raise ValueError('it has no rows')
    return np.loadtxt(
        itertools.chain([first], lines), dtype, delimiter=delimiter,
        comments=None, ndmin=2)


def _whole_lines(file):
  for line in file:
    if not line.endswith('\n'):
      raise ValueError(f'its last line is cut off: {line[:40]!r}')
    yield line


def check_count(
    path: pathlib.Path, found: int, expected: int, what: str = 'rows',
    hint: str = '') -> None:
  """Raises where a file does not have as many rows as it should."""
  if found != expected:
    kind = 'truncated' if found < expected else 'not the file that was meant'
    raise ValueError(
        f'{path} has {found:,} {what}, and {expected:,} are expected: it is '
        f'{kind}. Delete it and fetch it again.{" " + hint if hint else ""}')
