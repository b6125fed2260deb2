"""Draws in memory and on disk, the same for `sample` and for `fit`.

A draw is a dictionary of arrays, with names such as `state/0`: a group, and the
array's name in it. In a directory there are

  manifest.json                     what run it is, and how far it has come
  draws_00000000-00000099.npz, ...  draws 0 to 99, ...: any number in a file
  checkpoint_00000007.npz           the chain as it was at commit 7
  lock                              held by the process that writes

A file is written under another name, brought to the disk and then renamed, the
manifest last. So what the manifest counts is there whenever the process is
killed; files of ours that it does not count are left over from a kill, and the
next writer removes them. The names of files are made from numbers: no path is
ever read from a file. The manifest has the checksums of the checkpoint and of
the last file of draws, which ends with that of the file before it, and so on to
the first: a file that another was copied over is found, and not taken.

It is here because no library for arrays appends draws and a checkpoint of the
chain as one commit, which a kill leaves whole or undone.
"""

from collections.abc import Mapping
import os
import pathlib
import re
import time
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import array_files
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import chunks as chunks_lib
from tfp_sgmcmc.internal import fingerprint
from tfp_sgmcmc.internal import manifest as manifest_lib
from tfp_sgmcmc.internal.lock import Lock

__all__ = [
    'COMMIT_SECONDS', 'Store', 'read_about', 'read_checkpoint', 'read_draws']

_DRAWS = re.compile(r'draws_([0-9]{8,})-([0-9]{8,})\.npz')
_CHECKPOINT = re.compile(r'checkpoint_([0-9]{8,})\.npz')
_NUM_MARKED = 2
# A commit is due after so long, 20 times its own duration, or so many bytes.
COMMIT_SECONDS = 1.
_DURATIONS = 20.
_BYTES = 64 * 2**20


class Store:
  """The directory of one run, to write to and to go on from.

  Making it reads the directory, if there is one. To write, `open` it, or use it
  in a `with` statement: that takes the lock. Draws wait in memory from `append`
  to `commit`.

  #### Examples

  >>> import tempfile
  >>> directory = tempfile.mkdtemp()
  >>> with Store(directory, 'sample', {'seed': '1'}) as store:
  ...   store.append({'state/0': np.zeros([5, 3])})
  ...   store.commit(step=5, checkpoint={'state/0': np.zeros([3])})
  >>> again = Store(directory, 'sample', {'seed': '1'})
  >>> again.step, len(again.draws), again.checkpoint()['state/0'].shape
  (5, 5, (3,))
  """

  def __init__(
      self,
      directory: str | os.PathLike,
      made_by: str,
      arguments: Mapping[str, str] | None = None,
  ):
    """Reads what there is in a directory.

    Args:
      directory: Path, which may begin with `~`.
      made_by: What kind of run it is, `sample` or `fit`.
      arguments: The call's `fingerprint`; None to read the draws of any.

    Raises:
      TypeError: If the directory is no text and no path.
      ValueError: If no directory can have that path, or the directory holds
        another run, or is damaged.
      NotADirectoryError: If it is a file.
    """
    self._path = checks.directory(directory)
    self._made_by = made_by
    self._arguments = None if arguments is None else dict(arguments)
    self._lock = Lock(self._path / 'lock')
    self._has_committed = False
    self._committed_at, self._duration = time.monotonic(), 0.
    self._read()

  def _read(self):
    manifest = manifest_lib.read(self._path / manifest_lib.NAME)
    self._commits, self._checkpoint_specs, self._about = [], {}, {}
    self._draws = chunks_lib.Chunks()
    self._checksum = array_files.NO_CHECKSUM  # Of the last file of draws.
    self._waiting, self._num_bytes_waiting = [], 0
    if manifest is None or not manifest.commits:
      return
    if manifest.made_by != self._made_by:
      raise ValueError(
          f'{self._path} holds draws of {manifest.made_by}, not of '
          f'{self._made_by}: give another directory.')
    if self._arguments is not None:
      changes = fingerprint.difference(manifest.arguments, self._arguments)
      if changes is not None:
        raise ValueError(
            f'{self._path} holds draws of a call with other arguments: '
            f'{changes}. Make the same call to go on with it, or give another '
            'directory.')
    self._commits = manifest.commits
    self._checkpoint_specs = manifest.checkpoint
    self._about = manifest.about
    self._find_draws(manifest.draw)

  def _find_draws(self, specs):
    """Takes the draws of the last commit."""
    commit = self._commits[-1]
    self._draws = chunks_lib.Chunks(_counted_files(self._path, commit), specs)
    self._checksum = commit.draws
    self._waiting, self._num_bytes_waiting = [], 0

  @property
  def path(self) -> pathlib.Path:
    """The directory."""
    return self._path

  @property
  def draws(self) -> chunks_lib.Chunks:
    """All draws, those too that wait for a commit."""
    return self._draws

  @property
  def about(self) -> dict[str, str]:
    """What `describe` was given."""
    return dict(self._about)

  def describe(self, about: Mapping[str, str]) -> None:
    """Takes what readers of the draws should know, for the next `commit`.

    Args:
      about: Dictionary of texts. Another one is no other run.
    """
    self._about = dict(about)

  @property
  def is_new(self) -> bool:
    """Whether nothing has been committed yet."""
    return not self._commits

  @property
  def step(self) -> int:
    """The number of steps made at the last commit."""
    return self._commits[-1].step if self._commits else 0

  @property
  def num_draws(self) -> int:
    """The number of draws at the last commit."""
    return self._commits[-1].num_draws if self._commits else 0

  @property
  def marks(self) -> tuple[int, ...]:
    """The marks of commits that `rewind` can go back to, oldest first."""
    return tuple(c.mark for c in self._commits if c.mark is not None)

  @property
  def commit_is_due(self) -> bool:
    """Whether so much has come since the last commit that one is worth it.

    A second, or 20 times as long as the last commit took; or 64 MiB of draws.
    """
    elapsed = time.monotonic() - self._committed_at
    return self._num_bytes_waiting >= _BYTES or elapsed >= max(
        COMMIT_SECONDS, _DURATIONS * self._duration)

  def checkpoint(
      self, specs: Mapping[str, tf.TensorSpec] | None = None,
  ) -> dict[str, np.ndarray]:
    """The arrays that the last `commit` was given as `checkpoint`.

    Args:
      specs: Dictionary with the `TensorSpec` that each is expected to have; by
        default they are taken as they are.

    Returns:
      checkpoint: Dictionary of arrays.

    Raises:
      ValueError: If it is missing, damaged or has other specs.
    """
    if specs is not None:
      difference = chunks_lib.spec_difference(self._checkpoint_specs, specs)
      if difference is not None:
        raise ValueError(
            f'The checkpoint in {self._path} is not one that this call can go '
            f'on from: {difference}. Was it written by another version of this '
            'library? Give another directory.')
    commit = self._commits[-1]
    return array_files.read(
        self._path / _checkpoint_name(commit.number), self._checkpoint_specs,
        commit.checkpoint)

  def open(self, take_over: bool = False) -> 'Store':
    """Makes the directory ready to be written to, by this object alone.

    Args:
      take_over: Python `bool`: whether to take the directory from another
        `Store` of this process, such as one that an interrupted `fit` left.

    Returns:
      self: This object.

    Raises:
      RuntimeError: If another run writes to it, or has since `close`.
      ValueError: If it holds another run, or is damaged.
    """
    if self._lock.is_held:
      return self
    self._path.mkdir(parents=True, exist_ok=True)
    if not self._lock.acquire(take_over):
      raise RuntimeError(
          f'Another run is writing to {self._path}: wait for its end, or give '
          'another directory.')
    try:
      self._begin()
    except BaseException:
      self.close()
      raise
    return self

  def _begin(self):
    if self._has_committed:
      manifest = manifest_lib.read(self._path / manifest_lib.NAME)
      if manifest is None or manifest.commits != self._commits:
        raise RuntimeError(
            f'{self._path} has been written to by another run since this one '
            'did: give another directory.')
      return
    self._read()
    if not (self._path / manifest_lib.NAME).exists():
      for path in sorted(self._path.iterdir()):
        if _DRAWS.fullmatch(path.name) or _CHECKPOINT.fullmatch(path.name):
          raise ValueError(
              f'{path} is there, and no {manifest_lib.NAME} that says what run '
              'it is of. Put that back, or give another directory.')
    if self.is_new:  # From now on files with our names are ours.
      self._write_manifest([])
    self._sweep()

  def close(self) -> None:
    """Releases the directory. What has not been committed is not on disk."""
    self._lock.release()

  def __enter__(self):
    return self.open()

  def __exit__(self, *exception):
    self.close()

  def append(self, arrays: Mapping[str, Any]) -> None:
    """Adds draws, which are in memory until the next `commit`.

    Args:
      arrays: Dictionary of tensors or arrays `[draws, ...]`.
    """
    self._check_open()
    chunk = chunks_lib.InMemory(arrays)
    self._draws.add(chunk)
    self._waiting.append(chunk)
    self._num_bytes_waiting += chunk.num_bytes

  def commit(
      self, step: int, checkpoint: Mapping[str, Any], mark: int | None = None,
  ) -> None:
    """Writes what waits, and makes the run begin here when it is opened again.

    Args:
      step: Python `int`, the number of steps made.
      checkpoint: Dictionary of tensors or arrays to go on from.
      mark: None, or a Python `int`, such as an epoch's number, to `rewind` to.
        The last two marked commits are kept beside the last one.

    Raises:
      OSError: If the disk is full, say. What was committed before is kept.
    """
    self._check_open()
    start = time.monotonic()
    if self._waiting:
      self._write_waiting()
    number = self._commits[-1].number + 1 if self._commits else 1
    checkpoint = {name: np.asarray(a) for name, a in checkpoint.items()}
    specs = {
        name: chunks_lib.spec_of(name, array.dtype, array.shape)
        for name, array in checkpoint.items()}
    checksum = array_files.write(
        self._path / _checkpoint_name(number), checkpoint)
    self._checkpoint_specs = specs
    marked = [c for c in self._commits if c.mark is not None][-_NUM_MARKED:]
    commit = manifest_lib.Commit(
        number, int(step), len(self._draws), mark, self._checksum, checksum)
    self._write_manifest([*marked, commit])
    self._committed_at = time.monotonic()
    self._duration = self._committed_at - start

  def _write_waiting(self):
    end = len(self._draws)
    first = end - sum(chunk.num_draws for chunk in self._waiting)
    path = self._path / _draws_name(first, end - 1)
    specs = self._draws.specs
    columns = [chunk.read(specs) for chunk in self._waiting]
    arrays = {
        name: np.concatenate([column[name] for column in columns])
        for name in specs}
    self._checksum = array_files.write(path, arrays, self._checksum)
    self._draws.replace_last(
        len(self._waiting),
        chunks_lib.InFile(path, end - first, self._checksum))
    self._waiting, self._num_bytes_waiting = [], 0

  def rewind(self, mark: int) -> None:
    """Goes back to the commit with a mark; the draws after it are removed.

    Args:
      mark: One of `marks`.

    Raises:
      ValueError: If there is no such mark.
    """
    self._check_open()
    if mark not in self.marks:
      raise ValueError(
          f'{self._path} has no commit marked {mark}, only {self.marks}.')
    last = max(k for k, c in enumerate(self._commits) if c.mark == mark)
    self._write_manifest(self._commits[:last + 1])
    self._find_draws(self._draws.specs)
    self._sweep()

  def _write_manifest(self, commits):
    """Makes `commits` those that count, and removes other checkpoints."""
    manifest_lib.write(self._path / manifest_lib.NAME, manifest_lib.Manifest(
        self._made_by, commits, self._draws.specs, self._checkpoint_specs,
        self._arguments or {}, self._about))
    before = {commit.number for commit in self._commits}
    self._commits = commits
    self._has_committed = self._has_committed or bool(commits)
    for number in before - {commit.number for commit in commits}:
      (self._path / _checkpoint_name(number)).unlink(missing_ok=True)

  def _sweep(self):
    """Removes what a kill has left: files of ours that do not count."""
    counted = {_checkpoint_name(commit.number) for commit in self._commits}
    for path in self._path.iterdir():
      name = path.name.removesuffix('.partial')
      is_partial = name != path.name
      draws, checkpoint = _DRAWS.fullmatch(name), _CHECKPOINT.fullmatch(name)
      if draws is not None:
        first, last = map(int, draws.groups())
        is_left = name == _draws_name(first, last) and (
            is_partial or first >= self.num_draws)
      elif checkpoint is not None:
        is_left = is_partial or name not in counted
      else:
        is_left = is_partial and name == manifest_lib.NAME
      if is_left and (path.is_file() or path.is_symlink()):
        path.unlink()

  def _check_open(self):
    if not self._lock.is_held:
      raise RuntimeError(
          f'{self._path} is not open for writing here (any more): it was '
          'closed, or another run of this process has taken it.')


def read_draws(
    directory: str | os.PathLike, made_by: str,
) -> chunks_lib.Chunks:
  """The draws in a directory, of whatever call; takes no lock.

  Args:
    directory: Path, which may begin with `~`.
    made_by: What kind of run it has to be, `sample` or `fit`.

  Returns:
    draws: `Chunks`.

  Raises:
    FileNotFoundError: If there are none.
    ValueError: If they are of another kind of run, or damaged.
  """
  return _read(directory, made_by).draws


def read_about(directory: str | os.PathLike, made_by: str) -> dict[str, str]:
  """What the run in a directory was `describe`d by.

  Args:
    directory: As for `read_draws`.
    made_by: Likewise.

  Returns:
    about: Dictionary of texts.

  Raises:
    FileNotFoundError: If there are no draws.
    ValueError: If they are of another kind of run, or damaged.
  """
  return _read(directory, made_by).about


def read_checkpoint(
    directory: str | os.PathLike, made_by: str) -> dict[str, np.ndarray]:
  """The arrays of the last checkpoint of the run in a directory.

  Args:
    directory: As for `read_draws`.
    made_by: Likewise.

  Returns:
    checkpoint: Dictionary of arrays.

  Raises:
    FileNotFoundError: If there are no draws.
    ValueError: If they are of another kind of run, or damaged.
  """
  return _read(directory, made_by).checkpoint()


def _read(directory, made_by):
  store = Store(directory, made_by)
  if store.is_new:
    raise FileNotFoundError(
        f'There are no draws in {store.path}, or none were committed.')
  return store


def _draws_name(first, last):
  return f'draws_{first:08}-{last:08}.npz'


def _checkpoint_name(number):
  return f'checkpoint_{number:08}.npz'


def _counted_files(path, commit):
  """The files with the draws of a commit, found by their names.

  Each has to end with the checksum of the one before it.
  """
  num_draws = commit.num_draws
  last_of = {}
  for file in path.iterdir():
    match = _DRAWS.fullmatch(file.name)
    if match is None:
      continue
    first, last = map(int, match.groups())
    if file.name == _draws_name(first, last) and first <= last < num_draws:
      last_of[first] = max(last, last_of.get(first, 0))
  files, end, checksum = [], 0, array_files.NO_CHECKSUM
  while end < num_draws:
    if end not in last_of:
      following = min((f for f in last_of if f > end), default=num_draws)
      raise ValueError(
          f'{path} has no file with the draws {end} to {following - 1} '
          f'(counted from 0), and {manifest_lib.NAME} counts {num_draws}: '
          'put it back, or give another directory.')
    last = last_of[end]
    file = path / _draws_name(end, last)
    before, own = array_files.checksums(file)
    if before != checksum:
      raise array_files.damaged(file, 'it is not of this place in this run')
    files.append(chunks_lib.InFile(file, last + 1 - end, own))
    end, checksum = last + 1, own
  if checksum != commit.draws:
    raise array_files.damaged(
        files[-1].path if files else path / manifest_lib.NAME,
        f'its checksum is not that in {manifest_lib.NAME}')
  return files
