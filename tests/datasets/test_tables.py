"""Tests of the loaders of tables: Covertype, a9a, UCI regression."""

import gzip
import hashlib

import numpy as np
import pytest

from experiments import datasets
from experiments.datasets import a9a
from experiments.datasets import covertype
from experiments.datasets import uci_regression


def _csv(table):
  return '\n'.join(','.join(f'{x:g}' for x in row) for row in table) + '\n'


def _write_gz(path, text):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(gzip.compress(text.encode()))


def _cut(path, share=0.6):
  content = path.read_bytes()
  path.write_bytes(content[:int(share * len(content))])


def _forest(n=50):
  rng = np.random.default_rng(0)
  return np.concatenate([
      rng.integers(-100, 7000, [n, 10]), rng.integers(0, 2, [n, 44]),
      1 + np.arange(n)[:, np.newaxis] % 7], axis=1)


def _together(train, test):
  """Rows of both parts with the labels last, sorted."""
  rows = np.concatenate([
      np.concatenate([p.features, p.labels[:, np.newaxis]], axis=1)
      for p in (train, test)])
  return rows[np.lexsort(rows.T)]


class TestCovertype:

  def expected(self, table):
    rows = table.astype(np.float64)
    rows[:, -1] = rows[:, -1] == 2
    return rows[np.lexsort(rows.T)]

  @pytest.mark.parametrize('place', ['covertype', '.'])
  def test_published_format(self, tmp_path, place):
    table = _forest()
    _write_gz(tmp_path / place / 'covtype.data.gz', _csv(table))
    train, test = datasets.load_covertype(tmp_path, num_rows=50)
    assert train.features.shape == (40, 54) and test.features.shape == (10, 54)
    assert train.features.dtype == np.float32
    assert train.labels.dtype == np.int32
    np.testing.assert_array_equal(
        _together(train, test), self.expected(table))

  def test_sample_format(self, tmp_path):
    table = _forest()
    np.savez_compressed(
        tmp_path / 'covertype_sample.npz', X=table[:, :-1].astype(np.int16),
        y=table[:, -1].astype(np.int8))
    train, test = datasets.load_covertype(tmp_path, num_rows=50)
    np.testing.assert_array_equal(
        _together(train, test), self.expected(table))

  def test_truncated(self, tmp_path):
    path = tmp_path / 'covtype.data.gz'
    _write_gz(path, _csv(_forest()))
    _cut(path)
    with pytest.raises(ValueError, match='truncated, corrupted') as error:
      datasets.load_covertype(tmp_path, num_rows=50)
    assert str(path) in str(error.value)

  def test_truncated_sample(self, tmp_path):
    table = _forest()
    path = tmp_path / 'covertype_sample.npz'
    np.savez_compressed(path, X=table[:, :-1], y=table[:, -1])
    _cut(path)
    with pytest.raises(ValueError, match='truncated, corrupted'):
      datasets.load_covertype(tmp_path, num_rows=50)

  def test_cut_within_the_last_row(self, tmp_path):
    (tmp_path / 'covtype.data').write_text(_csv(_forest())[:-40])
    with pytest.raises(ValueError, match='last line is cut off'):
      datasets.load_covertype(tmp_path, num_rows=50)

  def test_missing_rows_against_the_published_number(self, tmp_path):
    _write_gz(tmp_path / 'covtype.data.gz', _csv(_forest()))
    with pytest.raises(
        ValueError, match='has 50 rows, and 581,012 are expected'):
      datasets.load_covertype(tmp_path)

  def test_cover_type_out_of_range(self, tmp_path):
    table = _forest()
    table[3, -1] = 8
    _write_gz(tmp_path / 'covtype.data.gz', _csv(table))
    with pytest.raises(ValueError, match='1 to 7 are expected'):
      datasets.load_covertype(tmp_path, num_rows=50)

  def test_absent(self, tmp_path):
    with pytest.raises(FileNotFoundError, match='covtype.data.gz'):
      datasets.load_covertype(tmp_path)
    with pytest.raises(FileNotFoundError, match='no such folder'):
      datasets.load_covertype(tmp_path / 'nowhere')

  def test_download(self, publisher, monkeypatch):
    site, url = publisher
    _write_gz(site / 'covtype.data.gz', _csv(_forest()))
    content = (site / 'covtype.data.gz').read_bytes()
    monkeypatch.setattr(covertype, '_URL', url + 'covtype.data.gz')
    monkeypatch.setattr(
        covertype, '_SHA256', hashlib.sha256(content).hexdigest())
    train, test = datasets.load_covertype(num_rows=50)
    assert len(train.labels) == 40 and len(test.labels) == 10
    # The second time it is there.
    (site / 'covtype.data.gz').unlink()
    datasets.load_covertype(num_rows=50)

  def test_download_of_another_file(self, publisher, monkeypatch):
    site, url = publisher
    _write_gz(site / 'covtype.data.gz', _csv(_forest()))
    monkeypatch.setattr(covertype, '_URL', url + 'covtype.data.gz')
    with pytest.raises(ValueError, match='not the file that was published'):
      datasets.load_covertype(num_rows=50)

  def test_no_network(self, publisher, no_network, monkeypatch):
    monkeypatch.setattr(covertype, '_URL', no_network + 'covtype.data.gz')
    with pytest.raises(ConnectionError, match='could not be downloaded') as e:
      datasets.load_covertype()
    assert 'DATA/covertype/covtype.data.gz' in str(e.value)
    assert 'data_dir=DATA' in str(e.value)

  def test_real(self, real_data):
    train, test = datasets.load_covertype(real_data)
    labels = np.concatenate([train.labels, test.labels])
    assert len(labels) in (581_012, 92_962)
    assert len(test.labels) == round(0.2 * len(labels))
    if len(labels) == 92_962:
      assert labels.sum() == 45_328
    assert np.all(train.features[:, 10:14].sum(axis=1) == 1.)
    assert np.all(train.features[:, 14:].sum(axis=1) == 1.)


_A9A = '-1 3:1 11:1 123:1 \n+1 1:1 2:0.5\n-1 \n'


class TestA9a:

  def write(self, folder, train=_A9A, test='+1 7:1 \n'):
    (folder / 'a9a').mkdir()
    (folder / 'a9a' / 'a9a').write_text(train)
    (folder / 'a9a' / 'a9a.t').write_text(test)

  def test_format(self, tmp_path):
    self.write(tmp_path)
    train, test = datasets.load_a9a(tmp_path, num_rows=(3, 1))
    expected = np.zeros([3, 123])
    expected[0, [2, 10, 122]] = 1.
    expected[1, :2] = [1., 0.5]
    np.testing.assert_array_equal(train.features, expected)
    np.testing.assert_array_equal(train.labels, [0, 1, 0])
    assert test.features[0, 6] == 1. and test.features.sum() == 1.
    np.testing.assert_array_equal(test.labels, [1])
    assert train.features.dtype == np.float32
    assert train.labels.dtype == np.int32

  @pytest.mark.parametrize('text, message', [
      (_A9A[:-8], 'line 2 is cut off'),
      (_A9A + '+1 124:1\n', 'not 1 to 123'),
      (_A9A + '+1 0:1\n', 'not 1 to 123'),
      (_A9A + '2 3:1\n', 'not -1 and'),
      (_A9A + '+1 3\n', 'not enough values'),
      ('<html>Not found</html>\n', 'invalid literal'),
      ('', 'has 0 rows, and 3 are expected'),
      (_A9A[:-4], 'has 2 rows, and 3 are expected'),
      (_A9A + '+1\n', 'has 4 rows, and 3 are expected: .* not the file')])
  def test_broken(self, tmp_path, text, message):
    self.write(tmp_path, train=text)
    with pytest.raises(ValueError, match=message) as error:
      datasets.load_a9a(tmp_path, num_rows=(3, 1))
    assert str(tmp_path / 'a9a' / 'a9a') in str(error.value)

  def test_missing_part(self, tmp_path):
    (tmp_path / 'a9a').write_text(_A9A)
    with pytest.raises(FileNotFoundError, match=r'a9a\.t'):
      datasets.load_a9a(tmp_path, num_rows=(3, 1))

  def test_no_network(self, publisher, no_network, monkeypatch):
    monkeypatch.setattr(a9a, '_URL', no_network)
    with pytest.raises(ConnectionError, match='DATA/a9a/a9a'):
      datasets.load_a9a()

  def test_real(self, real_data):
    train, test = datasets.load_a9a(real_data)
    assert train.features.shape == (32_561, 123)
    assert test.features.shape == (16_281, 123)
    # Incomes above 50,000 dollars in Adult: 7,841 and 3,846.
    assert train.labels.sum() == 7_841 and test.labels.sum() == 3_846
    assert set(np.unique(train.features)) == {0., 1.}
    # The published hashes are those of these files.
    for name, sha256 in a9a._SHA256.items():
      content = (real_data / 'a9a' / name).read_bytes()
      assert hashlib.sha256(content).hexdigest() == sha256


class TestUciRegression:

  def write(self, folder, n=20, d=3):
    rng = np.random.default_rng(1)
    self.table = np.round(rng.normal(size=[n, d + 1]), 3)
    self.mask = (np.arange(n)[:, np.newaxis] % 10 == np.arange(10)).astype(int)
    _write_gz(folder / 'data.csv.gz', _csv(self.table))
    _write_gz(folder / 'test_mask.csv.gz', _csv(self.mask))

  @pytest.mark.parametrize('split', [0, 9])
  def test_format(self, tmp_path, split):
    self.write(tmp_path / 'uci' / 'toy')
    train, test = datasets.load_uci_regression(
        'toy', tmp_path, split, shape=(20, 3))
    is_test = self.mask[:, split] == 1
    assert is_test.sum() == 2
    for part, rows in ((train, ~is_test), (test, is_test)):
      np.testing.assert_array_equal(part.features, self.table[rows, :-1])
      np.testing.assert_array_equal(part.labels, self.table[rows, -1])

  def test_truncated(self, tmp_path):
    for name in ('data.csv.gz', 'test_mask.csv.gz'):
      self.write(tmp_path)
      _cut(tmp_path / name)
      with pytest.raises(ValueError, match=name + '.*truncated, corrupted'):
        datasets.load_uci_regression('toy', tmp_path, shape=(20, 3))

  def test_counts(self, tmp_path):
    self.write(tmp_path)
    with pytest.raises(ValueError, match='has 20 rows, and 308 are expected'):
      datasets.load_uci_regression('yacht', tmp_path)
    with pytest.raises(ValueError, match='has 4 columns, and 5 are expected'):
      datasets.load_uci_regression('toy', tmp_path, shape=(20, 4))
    _write_gz(tmp_path / 'test_mask.csv.gz', _csv(self.mask[:-1]))
    with pytest.raises(ValueError, match='test_mask.*has 19 rows'):
      datasets.load_uci_regression('toy', tmp_path, shape=(20, 3))
    _write_gz(tmp_path / 'test_mask.csv.gz', _csv(2 * self.mask))
    with pytest.raises(ValueError, match='other values than 0 and 1'):
      datasets.load_uci_regression('toy', tmp_path, shape=(20, 3))

  def test_arguments(self, tmp_path):
    with pytest.raises(ValueError, match='split is 10'):
      datasets.load_uci_regression('yacht', tmp_path, split=10)
    with pytest.raises(ValueError, match="name is 'boat'.*'yacht'"):
      datasets.load_uci_regression('boat', tmp_path)

  def test_download(self, publisher, monkeypatch):
    site, url = publisher
    self.write(site / 'toy')
    monkeypatch.setattr(uci_regression, '_URL', url)
    train, _ = datasets.load_uci_regression('toy', shape=(20, 3))
    assert train.features.shape == (18, 3)

  def test_no_network(self, publisher, no_network, monkeypatch):
    monkeypatch.setattr(uci_regression, '_URL', no_network)
    with pytest.raises(ConnectionError, match='DATA/uci/yacht/data.csv.gz'):
      datasets.load_uci_regression('yacht')

  @pytest.mark.parametrize('name', list(uci_regression._SHAPES))
  def test_real(self, real_data, name):
    num_rows, num_features = uci_regression._SHAPES[name]
    train, test = datasets.load_uci_regression(name, real_data, split=4)
    assert len(train.labels) + len(test.labels) == num_rows
    assert train.features.shape[1] == test.features.shape[1] == num_features
    assert abs(len(test.labels) - num_rows / 10) <= 1
    assert np.all(np.isfinite(train.features))
