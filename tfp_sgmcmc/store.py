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
ever read from a file.
"""

import bisect
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import hashlib
import itertools
import json
import os
import pathlib
import re
import time
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import array_files
from tfp_sgmcmc.internal import fingerprint
from tfp_sgmcmc.internal.lock import Lock

__all__ = ['Chunks', 'Store', 'read_draws', 'spec_difference']

_FORMAT = 'tfp_sgmcmc draws, version 1'
_MANIFEST = 'manifest.json'
_DRAWS = re.compile(r'draws_([0-9]{8,})-([0-9]{8,})\.npz')
_CHECKPOINT = re.compile(r'checkpoint_([0-9]{8,})\.npz')
_NUM_MARKED = 2
# A commit is due after so long, 20 times its own duration, or so many bytes.
_SECONDS = 1.
_DURATIONS = 20.
_BYTES = 64 * 2**20


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
    self._specs = dict(specs) if specs else None
    self._layout = None
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
    self._add_checked(_InMemory(arrays))

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

  def _add_checked(self, chunk):
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

  def _replace_last(self, number, chunk):
    """Puts one chunk in place of the last `number` chunks."""
    first = len(self._chunks) - number
    del self._chunks[first:], self._ends[first:]
    self._add(chunk)


class _InMemory:
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
    return {name: _spec(name, dtype, shape)
            for name, (dtype, shape) in self.layout.items()}

  def read(self, specs):
    return {name: self._arrays[name] for name in specs}


class _File(NamedTuple):
  """Draws in a file."""
  path: pathlib.Path
  num_draws: int

  def read(self, specs):
    return array_files.read(self.path, {
        name: tf.TensorSpec([self.num_draws, *spec.shape], spec.dtype)
        for name, spec in specs.items()})


class _Commit(NamedTuple):
  """Where a run stood when it was committed."""
  number: int
  step: int
  num_draws: int
  mark: int | None


class _Manifest(NamedTuple):
  """What `manifest.json` holds."""
  made_by: str
  commits: list[_Commit]
  draw: dict[str, tf.TensorSpec]
  checkpoint: dict[str, tf.TensorSpec]
  arguments: dict[str, str]


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
      ValueError: If the directory holds another run, or is damaged.
    """
    self._path = pathlib.Path(directory).expanduser()
    self._made_by = made_by
    self._arguments = None if arguments is None else dict(arguments)
    self._lock = Lock(self._path / 'lock')
    self._has_committed = False
    self._committed_at, self._duration = time.monotonic(), 0.
    self._read()

  def _read(self):
    manifest = _read_manifest(self._path / _MANIFEST)
    self._commits, self._draws, self._checkpoint_specs = [], Chunks(), {}
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
    self._draws = Chunks(
        _counted_files(self._path, self._commits[-1].num_draws), manifest.draw)

  @property
  def path(self) -> pathlib.Path:
    """The directory."""
    return self._path

  @property
  def draws(self) -> Chunks:
    """All draws, those too that wait for a commit."""
    return self._draws

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
        _SECONDS, _DURATIONS * self._duration)

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
      difference = spec_difference(self._checkpoint_specs, specs)
      if difference is not None:
        raise ValueError(
            f'The checkpoint in {self._path} is not one that this call can go '
            f'on from: {difference}. Was it written by another version of this '
            'library? Give another directory.')
    return array_files.read(
        self._path / _checkpoint_name(self._commits[-1].number),
        self._checkpoint_specs)

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
    if self._path.exists() and not self._path.is_dir():
      raise NotADirectoryError(
          f'{self._path} is a file: give the path of a directory.')
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
      manifest = _read_manifest(self._path / _MANIFEST)
      if manifest is None or manifest.commits != self._commits:
        raise RuntimeError(
            f'{self._path} has been written to by another run since this one '
            'did: give another directory.')
      return
    self._read()
    if not (self._path / _MANIFEST).exists():
      for path in sorted(self._path.iterdir()):
        if _DRAWS.fullmatch(path.name) or _CHECKPOINT.fullmatch(path.name):
          raise ValueError(
              f'{path} is there, and no {_MANIFEST} that says what run it is '
              'of. Put that back, or give another directory.')
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
    chunk = _InMemory(arrays)
    self._draws._add_checked(chunk)
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
        name: _spec(name, array.dtype, array.shape)
        for name, array in checkpoint.items()}
    array_files.write(self._path / _checkpoint_name(number), checkpoint)
    self._checkpoint_specs = specs
    marked = [c for c in self._commits if c.mark is not None][-_NUM_MARKED:]
    commit = _Commit(number, int(step), len(self._draws), mark)
    self._write_manifest([*marked, commit])
    self._committed_at = time.monotonic()
    self._duration = self._committed_at - start

  def _write_waiting(self):
    end = len(self._draws)
    first = end - sum(chunk.num_draws for chunk in self._waiting)
    path = self._path / _draws_name(first, end - 1)
    specs = self._draws.specs
    columns = [chunk.read(specs) for chunk in self._waiting]
    array_files.write(path, {
        name: np.concatenate([column[name] for column in columns])
        for name in specs})
    self._draws._replace_last(len(self._waiting), _File(path, end - first))
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
    self._draws = Chunks(
        _counted_files(self._path, self.num_draws), self._draws.specs)
    self._waiting, self._num_bytes_waiting = [], 0
    self._sweep()

  def _write_manifest(self, commits):
    """Makes `commits` those that count, and removes other checkpoints."""
    content = {
        'format': _FORMAT, 'made_by': self._made_by,
        'commits': [commit._asdict() for commit in commits],
        'draw': _to_json(self._draws.specs),
        'checkpoint': _to_json(self._checkpoint_specs),
        'arguments': self._arguments or {}}
    with array_files.replacing(self._path / _MANIFEST) as file:
      file.write(json.dumps(
          {**content, 'digest': _digest(content)}, indent=1).encode())
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
        is_left = is_partial and name == _MANIFEST
      if is_left and (path.is_file() or path.is_symlink()):
        path.unlink()

  def _check_open(self):
    if not self._lock.is_held:
      raise RuntimeError(
          f'{self._path} is not open for writing here (any more): it was '
          'closed, or another run of this process has taken it.')


def read_draws(directory: str | os.PathLike, made_by: str) -> Chunks:
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
  store = Store(directory, made_by)
  if store.is_new:
    raise FileNotFoundError(
        f'There are no draws in {store.path}, or none were committed.')
  return store.draws


def spec_difference(
    before: Mapping[str, tf.TensorSpec], now: Mapping[str, tf.TensorSpec],
) -> str | None:
  """Says in a sentence which specs differ, None where none do."""
  return fingerprint.difference(
      {name: _show(spec) for name, spec in before.items()},
      {name: _show(spec) for name, spec in now.items()})


def _show(spec):
  return f'{spec.dtype.name}[{",".join(map(str, spec.shape))}]'


def _spec(name, dtype, shape):
  if dtype.kind in 'OSUMm':
    raise TypeError(
        f'{name} is an array of dtype {dtype}, and only numbers can be kept: '
        'leave it out, or make numbers of it.')
  return tf.TensorSpec(shape, tf.as_dtype(dtype))


def _to_json(specs):
  return {
      name: [spec.dtype.name, spec.shape.as_list()]
      for name, spec in specs.items()}


def _from_json(specs):
  return {
      name: tf.TensorSpec([_count(size) for size in shape], tf.as_dtype(dtype))
      for name, (dtype, shape) in specs.items()}


def _count(value):
  if type(value) is not int or value < 0:
    raise ValueError(f'{value!r} is no count')
  return value


def _read_manifest(path):
  """The manifest, None where there is none; raises where it is none of ours."""
  try:
    content = json.loads(path.read_bytes())
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (ValueError, RecursionError) as error:
    raise array_files.damaged(path, error) from error
  if not isinstance(content, dict) or content.get('format') != _FORMAT:
    found = content.get('format') if isinstance(content, dict) else None
    raise ValueError(
        f'{path} is not one of draws that this version of the library reads: '
        f'its format is {found!r}, and has to be {_FORMAT!r}. Give another '
        'directory.')
  if content.pop('digest', None) != _digest(content):
    raise array_files.damaged(path, 'its digest is of another content')
  try:
    commits = [
        _Commit(*(_count(commit[n]) for n in ('number', 'step', 'num_draws')),
                None if commit['mark'] is None else _count(commit['mark']))
        for commit in content['commits']]
    return _Manifest(
        str(content['made_by']), commits, _from_json(content['draw']),
        _from_json(content['checkpoint']), dict(content['arguments']))
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    raise array_files.damaged(path, error) from error


def _digest(content):
  return hashlib.sha256(
      json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _draws_name(first, last):
  return f'draws_{first:08}-{last:08}.npz'


def _checkpoint_name(number):
  return f'checkpoint_{number:08}.npz'


def _counted_files(path, num_draws):
  """The files with the first `num_draws` draws, found by their names."""
  last_of = {}
  for file in path.iterdir():
    match = _DRAWS.fullmatch(file.name)
    if match is None:
      continue
    first, last = map(int, match.groups())
    if file.name == _draws_name(first, last) and first <= last < num_draws:
      last_of[first] = max(last, last_of.get(first, 0))
  files, end = [], 0
  while end < num_draws:
    if end not in last_of:
      following = min((f for f in last_of if f > end), default=num_draws)
      raise ValueError(
          f'{path} has no file with the draws {end} to {following - 1} '
          f'(counted from 0), and {_MANIFEST} counts {num_draws}: put it back, '
          'or give another directory.')
    last = last_of[end]
    files.append(_File(path / _draws_name(end, last), last + 1 - end))
    end = last + 1
  return files
