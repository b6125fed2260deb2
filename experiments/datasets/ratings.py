"""Ratings of films by users, in MovieLens' and Netflix' formats.

#### Attribution

F. M. Harper and J. A. Konstan. The MovieLens Datasets: History and Context. ACM
TiiS 5(4), 2015. Its licence does not let others pass it on; the loader fetches
it from GroupLens. The Netflix Prize data (2006) are no longer published by
Netflix: the user has to bring them.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import os
import re
from typing import NamedTuple
import zipfile

import numpy as np
import tensorflow as tf

from experiments.datasets import files
from experiments.datasets import preparation

__all__ = [
    'RatingData', 'Ratings', 'load_movielens', 'load_netflix',
    'read_movielens', 'read_netflix']

_MOVIELENS_URL = 'https://files.grouplens.org/datasets/movielens/ml-1m.zip'
# As TensorFlow Datasets has it.
_MOVIELENS_SHA256 = (
    'a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20')
_MOVIELENS_ROWS = 1_000_209
_NETFLIX_ROWS = 100_480_507
_HINT = 'If another number is right, pass it as num_rows.'
_FILM = re.compile(rb'^(\d+):[ \r]*\n', re.MULTILINE)


class Ratings(NamedTuple):
  """Ratings, one an entry: a `Posterior`'s data or a batch of them.

  Attributes:
    users: `int32[n]`.
    items: `int32[n]`.
    ratings: `float32[n]`.
  """
  users: np.ndarray | tf.Tensor
  items: np.ndarray | tf.Tensor
  ratings: np.ndarray | tf.Tensor


class RatingData(NamedTuple):
  """Ratings in memory, users and items numbered from 0 without gaps.

  Attributes:
    train: `Ratings`.
    test: `Ratings`.
    user_ids: `int32[num_users]`, the numbers that the file has, increasing.
    item_ids: `int32[num_items]`, likewise.
  """
  train: Ratings
  test: Ratings
  user_ids: np.ndarray
  item_ids: np.ndarray


def read_movielens(
    data_dir: str | os.PathLike | None = None,
    num_rows: int | None = None,
    chunk_bytes: int = 2**24,
) -> Iterator[Ratings]:
  """Reads `user::item::rating::time` lines, a chunk at a time.

  Args:
    data_dir: Folder with `movielens/ratings.dat` or `movielens/ml-1m.zip`.
      `None` downloads MovieLens 1M.
    num_rows: How many ratings there have to be; 1,000,209 by default.
    chunk_bytes: About how much text is read at once.

  Yields:
    chunk: `Ratings` with the numbers of users and items that the file has.

  Raises:
    FileNotFoundError: If `data_dir` has no such file.
    ConnectionError: If it cannot be downloaded.
    ValueError: If the file is truncated or corrupted; a missing end is seen
      when all has been read.
  """
  if data_dir is None:
    path = files.download(
        _MOVIELENS_URL, 'movielens', 'MovieLens 1M', _MOVIELENS_SHA256)
  else:
    path = files.find(
        data_dir, 'movielens', ['ratings.dat', 'ml-1m/ratings.dat',
                                'ml-1m.zip'], 'MovieLens')
  found = 0
  with files.reading(path, 'lines of user::item::rating::time'):
    for text in _chunks(path, chunk_bytes):
      table = np.loadtxt(
          text.decode('ascii').replace('::', ',').splitlines(), np.float64,
          delimiter=',', ndmin=2)
      if table.shape[1] != 4:
        raise ValueError(f'{table.shape[1]} columns')
      found += len(table)
      yield _checked(*table.T[:3])
  files.check_count(
      path, found, num_rows or _MOVIELENS_ROWS, 'ratings', _HINT)


def read_netflix(
    data_dir: str | os.PathLike | None = None,
    num_rows: int | None = None,
    chunk_bytes: int = 2**24,
) -> Iterator[Ratings]:
  """Reads the Netflix Prize ratings, a chunk at a time.

  A line `film:` comes before the lines `user,rating,date` of that film.

  Args:
    data_dir: Folder with `netflix/training_set/mv_*.txt`, a file a film as it
      was published, or `netflix/combined_data_*.txt`, many in a file. `None`
      is an error that says why they cannot be downloaded.
    num_rows: How many ratings there have to be; 100,480,507 by default.
    chunk_bytes: About how much text is read at once.

  Yields:
    chunk: `Ratings` with the numbers of users and films that the files have.

  Raises:
    FileNotFoundError: If `data_dir` is `None` or has no such files.
    ValueError: If a file is truncated or corrupted; a missing end is seen when
      all has been read.
  """
  if data_dir is None:
    raise FileNotFoundError(
        'Netflix no longer publishes its ratings, so they cannot be '
        'downloaded: pass data_dir, a folder with '
        'netflix/training_set/mv_*.txt or netflix/combined_data_*.txt.')
  found, folder = 0, files.find(
      data_dir, 'netflix', ['training_set', 'combined_data_1.txt'], 'Netflix')
  paths = sorted(
      folder.glob('mv_*.txt') if folder.is_dir()
      else folder.parent.glob('combined_data_*.txt'))
  for path in paths:
    film = None
    with files.reading(path, 'lines of film: and user,rating,date'):
      for text in _chunks(path, chunk_bytes):
        # What is before the first film, then film, lines, film, lines, ...
        before, *rest = _FILM.split(text)
        if before and film is None:
          raise ValueError('it does not begin with a line film:')
        films = [film, *map(int, rest[::2])]
        blocks = [before, *rest[1::2]]
        film = films[-1]
        lines = b''.join(blocks).decode('ascii').splitlines()
        if not lines:
          continue
        table = np.loadtxt(
            lines, [('user', np.int64), ('rating', np.int64), ('date', 'U10')],
            delimiter=',', ndmin=1)
        if np.any(np.char.str_len(table['date']) != 10):
          raise ValueError('a date is cut off')
        found += len(table)
        items = np.repeat(
            np.array([f or 0 for f in films]), [b.count(b'\n') for b in blocks])
        yield _checked(table['user'], items, table['rating'])
  files.check_count(
      folder, found, num_rows or _NETFLIX_ROWS, 'ratings', _HINT)


def load_movielens(
    data_dir: str | os.PathLike | None = None,
    test_fraction: float = 0.2,
    seed: Sequence[int] = (0, 0),
    num_rows: int | None = None,
) -> RatingData:
  """Loads MovieLens 1M, or another file in its format, split at random.

  Args:
    data_dir: As in `read_movielens`.
    test_fraction: The share of the ratings that is for test.
    seed: Stateless seed of the split, two integers.
    num_rows: As in `read_movielens`.

  Returns:
    data: `RatingData`.

  #### Examples

  ```python
  data = datasets.load_movielens('data')
  num_users, num_items = len(data.user_ids), len(data.item_ids)
  posterior = sgmcmc.Posterior(log_prior, log_likelihood, data.train)
  ```
  """
  return _collect(read_movielens(data_dir, num_rows), test_fraction, seed)


def load_netflix(
    data_dir: str | os.PathLike | None = None,
    test_fraction: float = 0.2,
    seed: Sequence[int] = (0, 0),
    num_rows: int | None = None,
) -> RatingData:
  """Loads the Netflix Prize ratings, split at random.

  All of them take some 5 GB of memory while they load; `shard_ratings` does
  with little.

  Args:
    data_dir: As in `read_netflix`.
    test_fraction: The share of the ratings that is for test.
    seed: Stateless seed of the split, two integers.
    num_rows: As in `read_netflix`.

  Returns:
    data: `RatingData`.
  """
  return _collect(read_netflix(data_dir, num_rows), test_fraction, seed)


def _chunks(path, chunk_bytes):
  """Whole lines, about `chunk_bytes` of them at a time."""
  if path.suffix == '.zip':
    with zipfile.ZipFile(path) as archive, archive.open(
        'ml-1m/ratings.dat') as file:
      yield from _whole_lines(file, chunk_bytes)
  else:
    with open(path, 'rb') as file:
      yield from _whole_lines(file, chunk_bytes)


def _whole_lines(file, chunk_bytes):
  rest = b''
  while block := file.read(chunk_bytes):
    lines, newline, rest = (rest + block).rpartition(b'\n')
    if newline:
      yield lines + newline
  if rest:
    raise ValueError(f'its last line is cut off: {rest[:40]!r}')


def _checked(users, items, ratings):
  if np.any(ratings < 0.5) or np.any(ratings > 5.):
    raise ValueError(
        f'ratings from {ratings.min():g} to {ratings.max():g}, not 0.5 to 5')
  return Ratings(
      users.astype(np.int32), items.astype(np.int32),
      ratings.astype(np.float32))


def _collect(chunks, test_fraction, seed):
  raw = Ratings(*map(np.concatenate, zip(*chunks, strict=True)))
  user_ids, users = np.unique(raw.users, return_inverse=True)
  item_ids, items = np.unique(raw.items, return_inverse=True)
  data = Ratings(
      users.astype(np.int32), items.astype(np.int32), raw.ratings)
  train, test = (
      Ratings(*(values[rows] for values in data))
      for rows in preparation.random_split(
          len(data.users), test_fraction, seed))
  return RatingData(train, test, user_ids, item_ids)
