"""What is damaged in a store, or foreign, is not taken for draws."""

import io
import json
import tracemalloc
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from tests.stores import ARGUMENTS
from tests.stores import DRAWS
from tests.stores import change_manifest
from tests.stores import checkpoint
from tests.stores import draws
from tests.stores import names
from tests.stores import open_store
from tests.stores import write
from tfp_sgmcmc import store as store_lib
from tfp_sgmcmc.internal import array_files


def replace_member(path, name, array):
  with np.load(path) as file:
    arrays = {**file}
  np.savez(path, **{**arrays, name: array})


def flip(path):
  """Changes one byte of the data."""
  content = bytearray(path.read_bytes())
  with zipfile.ZipFile(path) as archive:
    info = archive.infolist()[0]
  content[info.header_offset + 190] ^= 255
  path.write_bytes(content)


def another(path):
  """Copies over it what the same run has written under another name."""
  other = {DRAWS: 'draws_00000002-00000003.npz',
           'checkpoint_00000003.npz': 'checkpoint_00000002.npz'}[path.name]
  path.write_bytes((path.parent / other).read_bytes())


def of_nan(path):
  """Writes a file of its form."""
  with np.load(path) as file:
    np.savez(path, **{
        name: np.full_like(array, np.nan if array.dtype.kind == 'f' else 0)
        for name, array in file.items()})


def of_nan_with_checksums(path):
  """Likewise, with the comment of the file before."""
  with zipfile.ZipFile(path) as archive:
    comment = archive.comment
  of_nan(path)
  with zipfile.ZipFile(path, 'a') as archive:
    archive.comment = comment


DAMAGES = {
    'missing': lambda path: path.unlink(),
    'nonsense': lambda path: path.write_bytes(b'nonsense'),
    'empty': lambda path: path.write_bytes(b''),
    'cut': lambda path: path.write_bytes(path.read_bytes()[:-30]),
    'flipped': flip,
    'another': another,
    'of NaN': of_nan,
    'of NaN with checksums': of_nan_with_checksums,
    'of another dtype': lambda path: replace_member(
        path, 'state/0' if 'check' in path.name else 'step',
        np.zeros([2], np.int32)),
    'of other arrays': lambda path: np.savez(path, other=np.zeros([2])),
    'of objects': lambda path: replace_member(
        path, 'state/0' if 'check' in path.name else 'step',
        np.array([{}, {}])),
}


@pytest.mark.parametrize('damage', DAMAGES)
@pytest.mark.parametrize('name', [DRAWS, 'checkpoint_00000003.npz'])
def test_a_damaged_file_is_one_sentence(tmp_path, name, damage):
  with open_store(tmp_path) as store:
    for k in range(3):
      store.append(draws(2 * k, 2))
      store.commit(k, checkpoint(k), mark=k)
  path = tmp_path / name
  DAMAGES[damage](path)
  with pytest.raises(ValueError, match='another directory') as error:
    store = store_lib.Store(tmp_path, 'sample', ARGUMENTS)
    store.checkpoint()
    store.draws.read([0])
  message = str(error.value)
  assert str(tmp_path) in message and message.endswith('another directory.')
  assert (f'{path} is damaged' in message) == (damage != 'missing')
  assert damage != 'missing' or 'is missing' in message or (
      'no file with the draws 0 to 1' in message)


def test_draws_of_another_run_are_not_taken(tmp_path):
  """All files, or the last alone."""
  for name in ('mine', 'other'):
    with open_store(tmp_path / name) as store:
      for k in range(3):
        values = np.full([1], k + 10 * (name == 'other'))
        store.append({'step': values})
        store.commit(k, {})
  for files in ('*2.npz', '*.npz'):
    for path in (tmp_path / 'other').glob(f'draws_{files}'):
      (tmp_path / 'mine' / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match='00000002.npz is damaged'):
      store_lib.read_draws(tmp_path / 'mine', 'sample')


def test_checksums_go_on_after_rewinding_and_failing(tmp_path, monkeypatch):
  with open_store(tmp_path) as store:
    for k in range(3):
      store.append(draws(k, 1))
      store.commit(k, checkpoint(k), mark=k)
    store.rewind(1)
    store.append(draws(2, 2))
    with monkeypatch.context() as patch:
      patch.setattr(
          store_lib, '_checkpoint_name', lambda _: 'none/checkpoint.npz')
      with pytest.raises(FileNotFoundError):
        store.commit(3, checkpoint(3))
    store.append(draws(4, 1))
    store.commit(4, checkpoint(4))
  steps = store_lib.read_draws(tmp_path, 'sample').read(range(5))['step']
  np.testing.assert_array_equal(steps, 10 * np.arange(5))


def test_a_file_that_promises_more_takes_no_memory(tmp_path):
  """100 kB that unpack to 100 MB, with and without our checksums."""
  number = 25_000_000
  specs = {'x': tf.TensorSpec([2], tf.float32)}
  packed, short = tmp_path / 'packed.npz', tmp_path / 'short.npz'
  np.savez_compressed(packed, x=np.zeros([number], np.float32))
  header = io.BytesIO()
  np.lib.format.write_array_header_1_0(
      header, dict(descr='<f4', fortran_order=False, shape=(number,)))
  with zipfile.ZipFile(short, 'w') as archive:
    archive.writestr('x.npy', header.getvalue() + bytes(8))
  for path in (packed, short):
    with zipfile.ZipFile(path, 'a') as archive:
      archive.comment = (array_files.NO_CHECKSUM + array_files._checksum(
          archive, array_files.NO_CHECKSUM)).encode()
  store = tmp_path / 'run'
  with open_store(store) as opened:
    opened.append({'x': np.zeros([2], np.float32)})
    opened.commit(2, {'x': np.zeros([2], np.float32)})
  for name in (DRAWS, 'checkpoint_00000001.npz'):
    (store / name).write_bytes(packed.read_bytes())
  tracemalloc.start()
  for use, message in (
      (lambda: array_files.read(packed, specs), 'x is compressed'),
      (lambda: array_files.read(short, specs), 'shape .25000000,., and'),
      (lambda: store_lib.read_draws(store, 'sample').read([0]), 'is damaged')):
    with pytest.raises(ValueError, match=message):
      use()
  assert tracemalloc.get_traced_memory()[1] < 10e6
  tracemalloc.stop()


@pytest.mark.parametrize('array, message', [
    (np.zeros([2], np.int32), 'has dtype int32 and shape .2,., and float32'),
    (np.zeros([2, 5], np.float32), 'has dtype float32 and shape .2, 5.'),
    (None, 'no item named')])
def test_arrays_of_another_form_are_not_taken(tmp_path, array, message):
  path = tmp_path / 'file.npz'
  array_files.write(path, {} if array is None else {'x': array})
  with pytest.raises(ValueError, match=message):
    array_files.read(path, {'x': tf.TensorSpec([2], tf.float32)})


def test_no_truncation_goes_unnoticed(tmp_path):
  write(tmp_path, sizes=(2,))
  path = tmp_path / DRAWS
  content = path.read_bytes()
  for length in range(0, len(content), 7):
    path.write_bytes(content[:length])
    with pytest.raises(ValueError, match='is damaged'):
      store_lib.read_draws(tmp_path, 'sample').read([0])


@pytest.mark.parametrize('content, message', [
    (b'', 'is damaged'), (b'{"format": "tfp', 'is damaged'),
    (b'\xff\xfe', 'is damaged'), (b'[' * 100_000, 'is damaged'),
    (dict(commits=3), 'is damaged'), (dict(commits=[{}]), 'is damaged'),
    (dict(draw={'step': ['float33', []]}), 'is damaged'),
    (dict(draw={'step': ['int64', [-1]]}), 'is damaged'),
    (dict(draw=None), 'is damaged'), (dict(arguments=7), 'is damaged'),
    (dict(format='version 0'), "its format is 'version 0'"),
    (dict(checkpoint={'other': ['float32', []]}), 'is damaged'),
])
def test_a_damaged_manifest_is_one_sentence(tmp_path, content, message):
  write(tmp_path)
  manifest = tmp_path / 'manifest.json'
  if isinstance(content, dict):
    change_manifest(tmp_path, **content)
  else:
    manifest.write_bytes(content)
  with pytest.raises(ValueError, match=message) as error:
    store_lib.Store(tmp_path, 'sample', ARGUMENTS).checkpoint()
  assert str(tmp_path) in str(error.value)


def test_a_changed_number_in_the_manifest_removes_nothing(tmp_path):
  write(tmp_path, sizes=[1] * 12)
  manifest = tmp_path / 'manifest.json'
  before = names(tmp_path)
  manifest.write_text(
      manifest.read_text().replace('"num_draws": 12', '"num_draws": 2'))
  with pytest.raises(ValueError, match='manifest.json is damaged .its digest'):
    open_store(tmp_path)
  assert names(tmp_path) == before


@pytest.mark.parametrize('content', [
    '{"name": "my web app", "icons": []}', '[1, 2]', '"text"'])
def test_a_foreign_manifest_is_neither_read_nor_overwritten(tmp_path, content):
  manifest = tmp_path / 'manifest.json'
  manifest.write_text(content)
  with pytest.raises(ValueError, match='is not one of draws') as error:
    open_store(tmp_path)
  assert str(manifest) in str(error.value)
  assert manifest.read_text() == content


def test_a_manifest_cannot_name_a_path(tmp_path):
  """Every string and number in it, replaced by ways out of the directory."""
  secret = tmp_path / 'secret.npz'
  write(tmp_path / 'run')
  manifest = tmp_path / 'run' / 'manifest.json'
  commits = json.loads(manifest.read_text())['commits']
  for place in ('number', 'step', 'num_draws', 'mark'):
    for value in ('../secret', str(secret), -1, 1.5, True):
      secret.write_text('secret')
      change_manifest(
          tmp_path / 'run', commits=[{**commits[-1], place: value}])
      with pytest.raises(ValueError, match='manifest.json is damaged'):
        open_store(tmp_path / 'run')
      assert secret.read_text() == 'secret'


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path):
  target = tmp_path / 'mine.txt'
  target.write_text('mine')
  write(tmp_path / 'run', sizes=(2,))
  for name in ('manifest.json.partial', 'draws_00000002-00000003.npz',
               'draws_00000002-00000003.npz.partial'):
    (tmp_path / 'run' / name).symlink_to(target)
  write(tmp_path / 'run', sizes=(2,))
  assert target.read_text() == 'mine'
