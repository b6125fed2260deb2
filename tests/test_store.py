"""The store of draws: what is written is whole, and one process writes."""

import errno
import os
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.stores import ARGUMENTS
from tests.stores import DRAWS
from tests.stores import checkpoint
from tests.stores import draws
from tests.stores import names
from tests.stores import open_store
from tests.stores import write
from tfp_sgmcmc import store as store_lib
from tfp_sgmcmc.internal import array_files
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import chunks as chunks_lib
from tfp_sgmcmc.internal import lock


def test_reads_what_was_written(tmp_path):
  write(tmp_path)
  store = store_lib.Store(tmp_path, 'sample', ARGUMENTS)
  assert (store.step, store.num_draws, len(store.draws)) == (5, 5, 5)
  np.testing.assert_array_equal(store.checkpoint()['state/0'], [5., 5.])
  assert [len(chunk['step']) for chunk in store.draws] == [2, 3]
  arrays = store.draws.read([4, 0, 1, 2, 2])
  np.testing.assert_array_equal(arrays['step'], [40, 0, 10, 20, 20])
  np.testing.assert_array_equal(
      arrays['state/dense/kernel'][:, 1], [4., 0., 1., 2., 2.])
  assert arrays['state/dense/kernel'].dtype == np.float32
  only = store_lib.read_draws(tmp_path, 'sample').read([], ['step'])
  assert list(only) == ['step'] and only['step'].shape == (0,)
  with pytest.raises(IndexError, match='no draw 5: there are 5'):
    store.draws.read([5])
  assert names(tmp_path) == [
      'checkpoint_00000002.npz', DRAWS, 'draws_00000002-00000004.npz', 'lock',
      'manifest.json']
  np.testing.assert_array_equal(np.load(tmp_path / DRAWS)['step'], [0, 10])


def test_memory_reads_as_files_do(tmp_path):
  """What waits for a commit, too."""
  memory = chunks_lib.Chunks()
  with open_store(tmp_path) as store:
    for k in range(6):
      memory.append(draws(k, 1))
      store.append(draws(k, 1))
      if k in (1, 3):
        store.commit(k, {})
    assert len(memory) == len(store.draws) == 6 and store.num_draws == 4
    for name, array in memory.read([5, 1, 3]).items():
      np.testing.assert_array_equal(array, store.draws.read([5, 1, 3])[name])
  assert len(store_lib.read_draws(tmp_path, 'sample')) == 4


@pytest.mark.parametrize('dtype', [
    tf.bfloat16, tf.float64, tf.bool, tf.int8, tf.complex64])
def test_dtypes(tmp_path, dtype):
  values = tf.cast(tf.constant([[0., 1.5], [-2., 3.]]), dtype)
  with open_store(tmp_path) as store:
    store.append({'state/0': values})
    store.commit(1, {'state/0': values[0]})
  store = store_lib.Store(tmp_path, 'sample', ARGUMENTS)
  for array, wanted in (
      (store.draws.read([0, 1])['state/0'], values),
      (store.checkpoint()['state/0'], values[0])):
    assert array.dtype == dtype.as_numpy_dtype
    np.testing.assert_array_equal(array, wanted)


def test_refuses_what_is_not_numbers_or_not_as_before(tmp_path):
  chunks = chunks_lib.Chunks()
  with pytest.raises(TypeError, match='trace/0 is an array of dtype object'):
    chunks.append({'trace/0': tf.constant(['a'])})
  chunks = chunks_lib.Chunks()
  chunks.append(draws(0, 2))
  with pytest.raises(ValueError, match=r'step was int64\[\] and is float32\['):
    chunks.append({**draws(2, 1), 'step': np.zeros([1, 2], np.float32)})


def test_the_manifest_does_not_grow(tmp_path):
  with open_store(tmp_path) as store:
    sizes = []
    for k in range(30):
      store.append(draws(k, 1))
      store.commit(k + 10, checkpoint(k))
      sizes.append((tmp_path / 'manifest.json').stat().st_size)
  assert max(sizes) - min(sizes) < 10
  assert len(store_lib.read_draws(tmp_path, 'sample')) == 30


def test_a_kill_leaves_what_was_committed(tmp_path, monkeypatch):
  """At each rename of a run in turn; what it left over is swept."""
  replace = os.replace
  left = None

  def stop(source, target):
    nonlocal left
    left -= 1
    if left < 0:
      raise KeyboardInterrupt
    replace(source, target)

  monkeypatch.setattr(array_files.os, 'replace', stop)
  for left_at_first in range(8):
    directory = tmp_path / str(left_at_first)
    left = left_at_first
    with pytest.raises(KeyboardInterrupt):
      write(directory, sizes=(2, 3, 4))
    whole_commits = max(0, left_at_first - 1) // 3
    left = 1000
    with open_store(directory) as store:
      assert len(store.draws) == (0, 2, 5)[whole_commits]
      assert store.step == len(store.draws)
      if whole_commits:
        np.testing.assert_array_equal(
            store.checkpoint()['state/0'], [store.step] * 2)
      expected = {'lock', 'manifest.json', *(
          f'checkpoint_{k:08}.npz' for k in [whole_commits] if k), *[
              DRAWS, 'draws_00000002-00000004.npz'][:whole_commits]}
      assert set(names(directory)) == expected
      # It goes on with chunks of another size.
      while len(store.draws) < 9:
        store.append(draws(len(store.draws), 1))
        store.commit(len(store.draws), checkpoint(len(store.draws)))
    steps = store_lib.read_draws(directory, 'sample').read(range(9))['step']
    np.testing.assert_array_equal(steps, 10 * np.arange(9))


def test_the_commit_before_lasts_until_the_next_is_whole(tmp_path, monkeypatch):
  """No checkpoint is removed or replaced while the manifest counts it."""
  write(tmp_path, sizes=(2,))
  before = (tmp_path / 'checkpoint_00000001.npz').read_bytes()

  def stop(source, target):
    if pathlib.Path(target).name == 'manifest.json':
      raise KeyboardInterrupt
    os.rename(source, target)

  monkeypatch.setattr(array_files.os, 'replace', stop)
  with open_store(tmp_path) as store, pytest.raises(KeyboardInterrupt):
    store.commit(store.step, {'state/0': np.zeros([2], np.float32)})
  assert (tmp_path / 'checkpoint_00000001.npz').read_bytes() == before


def test_foreign_files_are_left_alone(tmp_path):
  foreign = [
      'notes.txt', 'draws_0-1.npz', 'draws_00000010-00000012.npz.old',
      'checkpoint_best.npz', 'results.partial', 'chunk_00000.npz']
  for name in foreign:
    (tmp_path / name).write_text(name)
  write(tmp_path)
  with open_store(tmp_path):
    pass
  for name in foreign:
    assert (tmp_path / name).read_text() == name


@pytest.mark.parametrize('name', [DRAWS, 'checkpoint_00000001.npz'])
def test_files_with_our_names_and_no_manifest_are_not_overwritten(
    tmp_path, name):
  (tmp_path / name).write_text('mine')
  with pytest.raises(ValueError, match=f'{name} is there, and no manifest'):
    open_store(tmp_path)
  assert (tmp_path / name).read_text() == 'mine'
  assert not (tmp_path / 'manifest.json').exists()


def test_other_kinds_and_arguments(tmp_path):
  write(tmp_path)
  with pytest.raises(ValueError, match='holds draws of sample, not of fit'):
    store_lib.read_draws(tmp_path, 'fit')
  with pytest.raises(ValueError, match="seed was 1 and is 2"):
    store_lib.Store(tmp_path, 'sample', {'seed': '2'})
  store = store_lib.Store(tmp_path, 'sample', ARGUMENTS)
  with pytest.raises(ValueError, match=r'state/0 was float32\[2\] and is int'):
    store.checkpoint({'state/0': tf.TensorSpec([2], tf.int32)})
  with pytest.raises(FileNotFoundError, match='no draws in'):
    store_lib.read_draws(tmp_path / 'other', 'sample')
  (tmp_path / 'file').write_text('')
  with pytest.raises(NotADirectoryError, match='is a file'):
    open_store(tmp_path / 'file')


@pytest.mark.parametrize('directory, error, message', [
    ('', ValueError, "directory is '': pass the path"),
    (b'draws', TypeError, "directory is b'draws', of type bytes"),
    (3, TypeError, 'directory is 3, of type int'),
    ('a\0b', ValueError, 'null character'),
    ('n' * 300, ValueError, '300 characters.*File name too long'),
    ('n/' * 2500, ValueError, '5,000 characters.*File name too long'),
    ('~nobody_of_that_name/run', ValueError, 'no home directory is known'),
    ('file', NotADirectoryError, 'is a file'),
    ('file/run', NotADirectoryError, 'is in, is a file'),
])
def test_what_no_directory_can_be_called(
    tmp_path, monkeypatch, directory, error, message):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'file').write_text('')
  for use in (
      lambda: store_lib.Store(directory, 'sample', ARGUMENTS),
      lambda: store_lib.read_draws(directory, 'sample'),
      lambda: checks.directory(directory)):
    with pytest.raises(error, match=message) as found:
      use()
    assert len(str(found.value)) < 400
  assert names(tmp_path) == ['file']


@pytest.mark.parametrize('name, error, message', [
    ('lock', FileExistsError, 'lock is no file, .* remove it'),
    ('manifest.json', ValueError, 'manifest.json is damaged')])
def test_a_directory_in_place_of_our_file(tmp_path, name, error, message):
  (tmp_path / name).mkdir()
  with pytest.raises(error, match=message):
    open_store(tmp_path)


def test_a_pipe_in_place_of_the_lock_is_not_waited_for(tmp_path):
  os.mkfifo(tmp_path / 'lock')
  with pytest.raises(FileExistsError, match='lock is no file'):
    open_store(tmp_path)


def test_a_run_that_committed_nothing_may_become_another(tmp_path):
  open_store(tmp_path).close()
  with open_store(tmp_path, {'seed': '2'}, 'fit') as store:
    store.append(draws(0, 1))
    store.commit(1, {})
  assert len(store_lib.read_draws(tmp_path, 'fit')) == 1


def test_home_is_expanded(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  write('~/run')
  assert len(store_lib.read_draws(tmp_path / 'run', 'sample')) == 5


@pytest.mark.parametrize('name', ['draws', 'checkpoint', 'manifest'])
def test_a_full_disk_names_the_path_and_loses_nothing(
    tmp_path, monkeypatch, name):
  write(tmp_path, sizes=(2,))
  fsync = os.fsync

  def full(handle):
    if name in os.readlink(f'/proc/self/fd/{handle}'):
      raise OSError(errno.ENOSPC, 'No space left on device')
    fsync(handle)

  if not os.path.exists('/proc/self/fd'):
    pytest.skip('Which file a handle is of cannot be read here.')
  with open_store(tmp_path) as store:
    before = names(tmp_path)
    monkeypatch.setattr(array_files.os, 'fsync', full)
    store.append(draws(2, 3))
    with pytest.raises(OSError, match='No space left') as error:
      store.commit(5, checkpoint(5))
    assert error.value.errno == errno.ENOSPC
    assert name in error.value.filename and str(tmp_path) in str(error.value)
    assert not [n for n in names(tmp_path) if n.endswith('.partial')]
    assert len(store_lib.read_draws(tmp_path, 'sample')) == 2
    monkeypatch.undo()
    store.commit(5, checkpoint(5))
  assert set(before) - {'checkpoint_00000001.npz'} < set(names(tmp_path))
  assert len(store_lib.read_draws(tmp_path, 'sample')) == 5


def test_one_writer_at_a_time(tmp_path):
  first = open_store(tmp_path)
  first.append(draws(0, 2))
  first.commit(2, checkpoint(2))
  second = store_lib.Store(tmp_path, 'sample', ARGUMENTS)
  assert len(second.draws) == 2  # Reading takes no lock.
  with pytest.raises(RuntimeError, match='Another run is writing to') as error:
    second.open()
  assert str(tmp_path) in str(error.value)
  first.append(draws(2, 1))
  first.commit(3, checkpoint(3))
  first.close()
  with second.open():
    assert len(second.draws) == 3
    second.append(draws(3, 1))
    second.commit(4, checkpoint(4))
  with pytest.raises(RuntimeError, match='has been written to by another run'):
    first.open()
  with pytest.raises(RuntimeError, match='is not open for writing'):
    first.append(draws(4, 1))


def test_a_run_left_behind_can_be_taken_over(tmp_path):
  first = open_store(tmp_path)
  second = store_lib.Store(tmp_path, 'sample', ARGUMENTS).open(take_over=True)
  with pytest.raises(RuntimeError, match='another run of this process'):
    first.commit(1, {})
  first.close()
  with pytest.raises(RuntimeError, match='Another run'):
    open_store(tmp_path)
  second.close()
  open_store(tmp_path).close()
  left = open_store(tmp_path)
  del left
  open_store(tmp_path).close()


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
  def refuse(file, flags):
    raise OSError(errno.ENOLCK, 'No locks available')

  if lock.fcntl is None:
    pytest.skip('This system has other locks.')
  monkeypatch.setattr(lock.fcntl, 'lockf', refuse)
  with pytest.warns(UserWarning, match='file system without locks'):
    write(tmp_path)


def test_rewinding_to_a_mark(tmp_path):
  with open_store(tmp_path) as store:
    for epoch in range(4):
      for mark in (None, epoch):
        store.append(draws(len(store.draws), 2))
        store.commit(len(store.draws), checkpoint(epoch), mark)
    store.append(draws(len(store.draws), 1))
    store.commit(len(store.draws), checkpoint(9))
    assert store.marks == (2, 3)
    with pytest.raises(ValueError, match='no commit marked 1'):
      store.rewind(1)
    store.rewind(2)
  store = store_lib.Store(tmp_path, 'sample', ARGUMENTS)
  assert (store.step, len(store.draws), store.marks) == (12, 12, (2,))
  np.testing.assert_array_equal(store.checkpoint()['state/0'], [2., 2.])
  assert len([n for n in names(tmp_path) if re.match('draws|check', n)]) == 7
  with store:
    store.append(draws(12, 1))
    store.commit(13, checkpoint(3))
  np.testing.assert_array_equal(
      store_lib.read_draws(tmp_path, 'sample').read(range(13))['step'],
      10 * np.arange(13))


def test_when_a_commit_is_due(tmp_path, monkeypatch):
  now = 0.
  monkeypatch.setattr(store_lib.time, 'monotonic', lambda: now)
  with open_store(tmp_path) as store:
    store.append({'state/0': np.zeros([1, 2**20])})
    assert not store.commit_is_due
    now = 1.
    assert store.commit_is_due
    fsync = os.fsync

    def slow(handle):
      nonlocal now
      now += 0.1
      fsync(handle)

    monkeypatch.setattr(array_files.os, 'fsync', slow)
    store.commit(1, {})
    monkeypatch.undo()
    monkeypatch.setattr(store_lib.time, 'monotonic', lambda: now)
    now += 2.
    assert not store.commit_is_due  # Writing would take a tenth of the time.
    store.append({'state/0': np.zeros([8, 2**20])})
    assert store.commit_is_due
