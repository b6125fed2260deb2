"""Ratings that do not fit in memory: shards on disk, read by `tf.data`.

Published files of ratings are sorted by user or by film, and a minibatch for a
sampler has to look like a draw from all of them. So `shard_ratings` deals the
ratings out to shards at random, each to any shard with equal probability, and
each pass of `RatingShards.stream` takes the shards in a new order and shuffles
each as a whole: a pass is a random permutation of all ratings, a minibatch a
simple random sample. Later passes keep which ratings share a shard.
"""

from collections.abc import Iterable
from collections.abc import Sequence
import os
import pathlib
import re
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from experiments.datasets import files
from experiments.datasets.ratings import Ratings
from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks

__all__ = ['RatingShards', 'open_shards', 'shard_ratings']

_RECORD = np.dtype([('user', '<i4'), ('item', '<i4'), ('rating', '<f4')])
_INDEX = 'ratings.npz'
_SHARD = re.compile(r'ratings-[0-9]{5,}-of-[0-9]{5,}\.bin')
# Ratings dealt out at once: one shape, so one compiled draw.
_BLOCK = 2**16


class RatingShards(NamedTuple):
  """Ratings on disk, dealt out at random to shards.

  Attributes:
    paths: Tuple of `str`, the shards.
    counts: Tuple of `int`, the number of ratings in each.
    user_ids: As in `RatingData`.
    item_ids: As in `RatingData`.
  """
  paths: tuple[str, ...]
  counts: tuple[int, ...]
  user_ids: np.ndarray
  item_ids: np.ndarray

  @property
  def num_ratings(self) -> int:
    """N, the number of ratings in these shards."""
    return sum(self.counts)

  def split(
      self, test_fraction: float = 0.2,
  ) -> tuple['RatingShards', 'RatingShards']:
    """Some shards for training and, as a random share, others for test."""
    checks.fraction('test_fraction', test_fraction)
    num_train = len(self.paths) - round(test_fraction * len(self.paths))
    if not 0 < num_train < len(self.paths):
      raise ValueError(
          f'test_fraction is {test_fraction}, and of {len(self.paths)} shards '
          'that leaves none for one of the parts: make more shards.')
    return tuple(
        self._replace(paths=self.paths[part], counts=self.counts[part])
        for part in (slice(num_train), slice(num_train, None)))

  def stream(
      self, batch_size: int, seed: int = 0, infinite: bool = False,
  ) -> tf.data.Dataset:
    """Shuffled minibatches, with no more than a few shards in memory.

    Args:
      batch_size: Python `int`, n. The fewer than n ratings that are left at the
        end of a pass are left out of it.
      seed: Python `int`: a new stream with the same seed has the same batches.
      infinite: Python `bool`: pass after pass without end, no rating left out.

    Returns:
      dataset: `tf.data.Dataset` of `Ratings` with `[n]` tensors. Each pass has
        an order of its own.
    """
    checks.positive_integer('batch_size', batch_size)
    if self.num_ratings < batch_size:
      raise ValueError(
          f'batch_size is {batch_size}, and there are only '
          f'{self.num_ratings} ratings.')
    shards = tf.data.Dataset.from_tensor_slices(list(self.paths)).shuffle(
        len(self.paths), seed=seed, reshuffle_each_iteration=True)
    if infinite:
      shards = shards.repeat()
    seeds = tf.data.Dataset.random(seed, rerandomize_each_iteration=True).batch(
        2, drop_remainder=True)

    def read(path, shard_seed):
      words = tf.reshape(
          tf.io.decode_raw(tf.io.read_file(path), tf.int32), [-1, 3])
      words = tf.random.experimental.stateless_shuffle(words, shard_seed)
      return Ratings(
          words[:, 0], words[:, 1], tf.bitcast(words[:, 2], tf.float32))

    return tf.data.Dataset.zip(shards, seeds).map(
        read, num_parallel_calls=1).rebatch(
            batch_size, drop_remainder=True).prefetch(1)


def shard_ratings(
    chunks: Iterable[Ratings],
    directory: str | os.PathLike,
    num_shards: int = 64,
    seed: Sequence[int] = (0, 0),
) -> RatingShards:
  """Writes ratings to disk, dealt out at random to shards of about one size.

  Needs memory for one chunk and one shard, and 12 bytes of disk a rating.

  Args:
    chunks: `Ratings`, one after another, with non-negative numbers of users and
      items: `read_movielens`, `read_netflix` or your own generator.
    directory: A folder to write to, made if it is not there. What an earlier
      call left in it is replaced.
    num_shards: Python `int`.
    seed: Stateless seed, two integers: the same seed and chunks, the same
      shards.

  Returns:
    shards: `RatingShards`. Users and items are numbered from 0 without gaps.
      `open_shards(directory)` has them again.

  Raises:
    ValueError: If there are no ratings.

  #### Examples

  >>> import tempfile
  >>> from experiments import datasets
  >>> chunk = datasets.Ratings([7, 9, 7], [1, 1, 2], [5., 3., 4.])
  >>> with tempfile.TemporaryDirectory() as directory:
  ...   shards = datasets.shard_ratings([chunk], directory, num_shards=2)
  ...   batch = next(iter(shards.stream(3)))
  >>> sorted(batch.users.numpy().tolist()), shards.user_ids.tolist()
  ([0, 0, 1], [7, 9])

  All of Netflix' ratings, never all in memory:

  ```python
  shards = datasets.shard_ratings(
      datasets.read_netflix('data'), 'shards')
  train, test = shards.split(test_fraction=0.2)
  estimator = sgmcmc.gradients.Stream(train.stream(40_000, infinite=True))
  ```
  """
  checks.positive_integer('num_shards', num_shards)
  directory = pathlib.Path(directory).expanduser()
  directory.mkdir(parents=True, exist_ok=True)
  (directory / _INDEX).unlink(missing_ok=True)
  for path in directory.iterdir():
    if _SHARD.fullmatch(path.name):
      path.unlink()
  paths = _shard_paths(directory, num_shards)
  counts = np.zeros([num_shards], np.int64)
  seen_users, seen_items = _Seen(), _Seen()
  handles = [open(path, 'wb') for path in paths]
  try:
    for number, records in enumerate(_blocks(chunks)):
      seen_users.add(records['user'])
      seen_items.add(records['item'])
      shard = random.indices(
          num_shards, [_BLOCK], random.fold_in(list(seed), number),
          replacement=True).numpy()[:len(records)]
      sizes = np.bincount(shard, minlength=num_shards)
      parts = np.split(
          records[np.argsort(shard, kind='stable')], np.cumsum(sizes)[:-1])
      for handle, part in zip(handles, parts, strict=True):
        part.tofile(handle)
      counts += sizes
  finally:
    for handle in handles:
      handle.close()
  if not counts.sum():
    raise ValueError('chunks has no ratings.')
  user_ids, item_ids = seen_users.ids(), seen_items.ids()
  for path in paths:
    records = np.fromfile(path, _RECORD)
    records['user'] = np.searchsorted(user_ids, records['user'])
    records['item'] = np.searchsorted(item_ids, records['item'])
    records.tofile(path)
  # The index is written last: without it the shards are not complete.
  np.savez(directory / _INDEX, counts=counts, user_ids=user_ids,
           item_ids=item_ids)
  return open_shards(directory)


def open_shards(directory: str | os.PathLike) -> RatingShards:
  """The shards that `shard_ratings` wrote to `directory`.

  Raises:
    FileNotFoundError: If it did not, or was stopped before its end.
    ValueError: If a shard is truncated.
  """
  directory = pathlib.Path(directory).expanduser()
  if not (directory / _INDEX).exists():
    raise FileNotFoundError(
        f'{directory} has no complete shards of ratings: make them with '
        'shard_ratings.')
  with files.reading(directory / _INDEX, 'the index of shards'), np.load(
      directory / _INDEX) as index:
    counts = tuple(map(int, index['counts']))
    paths = tuple(map(str, _shard_paths(directory, len(counts))))
    shards = RatingShards(paths, counts, index['user_ids'], index['item_ids'])
  for path, count in zip(shards.paths, shards.counts, strict=True):
    size = os.path.getsize(path) if os.path.exists(path) else 0
    files.check_count(
        pathlib.Path(path), size, count * _RECORD.itemsize, 'bytes')
  return shards


def _shard_paths(directory, num_shards):
  """The shards' paths; no file tells them, so none can name another file."""
  return [
      directory / f'ratings-{k:05d}-of-{num_shards:05d}.bin'
      for k in range(num_shards)]


class _Seen:
  """Which non-negative numbers have occurred, in a byte each."""

  def __init__(self):
    self._seen = np.zeros([1024], bool)

  def add(self, numbers):
    if not len(numbers):
      return
    if numbers.min() < 0:
      raise ValueError(
          f'A user or item has the number {numbers.min()}: it has to be at '
          'least 0.')
    size = len(self._seen)
    if numbers.max() >= size:
      larger = np.zeros([max(2 * size, int(numbers.max()) + 1)], bool)
      larger[:size] = self._seen
      self._seen = larger
    self._seen[numbers] = True

  def ids(self):
    return np.flatnonzero(self._seen).astype(np.int32)


def _blocks(chunks):
  """The chunks as records, `_BLOCK` of them at a time."""
  waiting = np.empty([0], _RECORD)
  for chunk in chunks:
    records = np.empty([len(chunk.users)], _RECORD)
    for name, values in zip(_RECORD.names, chunk, strict=True):
      records[name] = values
    waiting = np.concatenate([waiting, records])
    whole = len(waiting) // _BLOCK * _BLOCK
    for start in range(0, whole, _BLOCK):
      yield waiting[start:start + _BLOCK]
    waiting = waiting[whole:]
  yield waiting
