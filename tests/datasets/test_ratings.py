"""Tests of the loaders of ratings and of their shards."""

import hashlib
import itertools
import zipfile

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from experiments import datasets
from experiments.datasets import ratings as ratings_lib
from experiments.datasets import shards as shards_lib
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions


def _movielens(n=200):
  """Distinct (user, film, rating), with gaps in the numbers, and the text."""
  rng = np.random.default_rng(0)
  pairs = rng.permutation(list(itertools.product(
      [1, 2, 5, 9, 6040], [1, 3, 4, 10, 700, 3952] + list(range(50, 90)))))[:n]
  table = np.concatenate([pairs, rng.integers(1, 6, [n, 1])], axis=1)
  table = table[np.lexsort(table.T[::-1])]
  return table, ''.join(f'{u}::{i}::{r}::97830{i}\n' for u, i, r in table)


def _rows(ratings, user_ids=None, item_ids=None):
  users, items, values = map(np.asarray, ratings)
  if user_ids is not None:
    users, items = user_ids[users], item_ids[items]
  rows = np.stack([users, items, values], axis=1)
  return rows[np.lexsort(rows.T[::-1])]


def _concatenate(chunks):
  return datasets.Ratings(*map(np.concatenate, zip(*chunks)))


class TestMovielens:

  def test_format(self, tmp_path):
    table, text = _movielens()
    (tmp_path / 'movielens').mkdir()
    (tmp_path / 'movielens' / 'ratings.dat').write_text(text)
    data = datasets.load_movielens(tmp_path, num_rows=200)
    np.testing.assert_array_equal(data.user_ids, np.unique(table[:, 0]))
    np.testing.assert_array_equal(data.item_ids, np.unique(table[:, 1]))
    assert len(data.train.users) == 160 and len(data.test.users) == 40
    assert data.train.users.dtype == data.train.items.dtype == np.int32
    assert data.train.ratings.dtype == np.float32
    both = _concatenate([data.train, data.test])
    np.testing.assert_array_equal(
        _rows(both, data.user_ids, data.item_ids), table)

  @pytest.mark.parametrize('chunk_bytes', [25, 64, 1000, 2**24])
  def test_chunks(self, tmp_path, chunk_bytes):
    table, text = _movielens()
    (tmp_path / 'ratings.dat').write_text(text)
    chunks = list(datasets.read_movielens(tmp_path, 200, chunk_bytes))
    assert max(len(c.users) for c in chunks) <= chunk_bytes / 12 + 2
    np.testing.assert_array_equal(_rows(_concatenate(chunks)), table)

  def test_half_stars(self, tmp_path):
    (tmp_path / 'ratings.dat').write_text('1::122::4.5::838985046\n')
    chunk, = datasets.read_movielens(tmp_path, 1)
    assert chunk.ratings[0] == 4.5

  @pytest.mark.parametrize('change, message', [
      (lambda t: t[:-7], 'last line is cut off'),
      (lambda t: ''.join(t.splitlines(True)[:-1]),
       'has 199 ratings, and 200 are expected: it is truncated'),
      (lambda t: t + '1::2::6::9\n', 'not 0.5 to 5'),
      (lambda t: t + '1::2::5\n', 'columns'),
      (lambda t: t.replace('::', '\t'), 'ratings.dat cannot be read'),
      (lambda t: '', 'has 0 ratings')])
  def test_broken(self, tmp_path, change, message):
    (tmp_path / 'ratings.dat').write_text(change(_movielens()[1]))
    with pytest.raises(ValueError, match=message):
      datasets.load_movielens(tmp_path, num_rows=200)

  def test_published_number(self, tmp_path):
    (tmp_path / 'ratings.dat').write_text(_movielens()[1])
    with pytest.raises(ValueError, match='1,000,209 are expected.*num_rows'):
      datasets.load_movielens(tmp_path)

  def test_download(self, publisher, monkeypatch):
    site, url = publisher
    table, text = _movielens()
    with zipfile.ZipFile(site / 'ml-1m.zip', 'w') as archive:
      archive.writestr('ml-1m/ratings.dat', text)
    content = (site / 'ml-1m.zip').read_bytes()
    monkeypatch.setattr(ratings_lib, '_MOVIELENS_URL', url + 'ml-1m.zip')
    with pytest.raises(ValueError, match='not the file that was published'):
      datasets.load_movielens(num_rows=200)
    monkeypatch.setattr(
        ratings_lib, '_MOVIELENS_SHA256', hashlib.sha256(content).hexdigest())
    chunks = datasets.read_movielens(num_rows=200)
    np.testing.assert_array_equal(_rows(_concatenate(chunks)), table)

  def test_truncated_archive(self, tmp_path):
    path = tmp_path / 'ml-1m.zip'
    with zipfile.ZipFile(path, 'w') as archive:
      archive.writestr('ml-1m/ratings.dat', _movielens()[1])
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match='truncated, corrupted'):
      datasets.load_movielens(tmp_path, num_rows=200)

  def test_no_network(self, publisher, no_network, monkeypatch):
    monkeypatch.setattr(
        ratings_lib, '_MOVIELENS_URL', no_network + 'ml-1m.zip')
    with pytest.raises(ConnectionError, match='DATA/movielens/ml-1m.zip'):
      datasets.load_movielens()


_NETFLIX = [
    (1, 1488844, 3), (1, 822109, 5), (2, 885013, 4), (2, 1488844, 1),
    (8, 822109, 2), (17770, 2649429, 5)]


class TestNetflix:
  table = np.array(_NETFLIX)[:, [1, 0, 2]]
  table = table[np.lexsort(table.T[::-1])]

  def blocks(self):
    return {
        film: f'{film}:\n' + ''.join(
            f'{user},{rating},2005-09-06\n' for _, user, rating in rows)
        for film, rows in itertools.groupby(_NETFLIX, lambda row: row[0])}

  def write_combined(self, folder, change=lambda text: text):
    blocks = self.blocks()
    folder.mkdir()
    (folder / 'combined_data_1.txt').write_text(blocks[1] + blocks[2])
    (folder / 'combined_data_2.txt').write_text(
        change(blocks[8] + blocks[17770]))

  @pytest.mark.parametrize('chunk_bytes', [1, 24, 50, 2**24])
  def test_combined(self, tmp_path, chunk_bytes):
    self.write_combined(tmp_path / 'netflix')
    chunks = datasets.read_netflix(tmp_path, 6, chunk_bytes)
    np.testing.assert_array_equal(_rows(_concatenate(chunks)), self.table)

  def test_a_file_a_film(self, tmp_path):
    folder = tmp_path / 'netflix' / 'training_set'
    folder.mkdir(parents=True)
    for film, text in self.blocks().items():
      (folder / f'mv_{film:07d}.txt').write_text(text)
    data = datasets.load_netflix(tmp_path, test_fraction=0.5, num_rows=6)
    np.testing.assert_array_equal(data.item_ids, [1, 2, 8, 17770])
    both = _concatenate([data.train, data.test])
    np.testing.assert_array_equal(
        _rows(both, data.user_ids, data.item_ids), self.table)
    (folder / 'mv_0000008.txt').unlink()
    with pytest.raises(ValueError, match='has 5 ratings, and 6 are expected'):
      datasets.load_netflix(tmp_path, num_rows=6)

  @pytest.mark.parametrize('change, message', [
      (lambda t: t[:-4], 'last line is cut off'),
      (lambda t: t[:-4] + '\n', 'date is cut off'),
      (lambda t: t.replace('8:\n', ''), 'does not begin with a line film'),
      (lambda t: t.replace(',2,', ',0,'), 'not 0.5 to 5'),
      (lambda t: t.replace(',2,', ','), 'combined_data_2.txt cannot be read'),
      (lambda t: t.partition('17770')[0], 'has 5 ratings')])
  def test_broken(self, tmp_path, change, message):
    self.write_combined(tmp_path / 'netflix', change)
    with pytest.raises(ValueError, match=message):
      datasets.load_netflix(tmp_path, num_rows=6)

  def test_absent(self, tmp_path):
    with pytest.raises(FileNotFoundError, match='training_set'):
      datasets.load_netflix(tmp_path)
    with pytest.raises(FileNotFoundError, match='no longer publishes'):
      datasets.load_netflix()


def _synthetic(num_chunks=5, n=50_000):
  """Chunks of ratings sorted by user, of ever larger rating."""
  for k in range(num_chunks):
    number = k * n + np.arange(n)
    yield datasets.Ratings(
        1000 * k + number % 7, 3 * number, np.full(n, k, np.float32))


class TestShards:

  def test_hold_all_ratings_once(self, tmp_path):
    table, text = _movielens()
    (tmp_path / 'ratings.dat').write_text(text)
    shards = datasets.shard_ratings(
        datasets.read_movielens(tmp_path, 200), tmp_path / 'shards', 4)
    data = datasets.load_movielens(tmp_path, num_rows=200)
    np.testing.assert_array_equal(shards.user_ids, data.user_ids)
    np.testing.assert_array_equal(shards.item_ids, data.item_ids)
    assert shards.num_ratings == 200 and len(shards.paths) == 4
    batches = list(shards.stream(50).as_numpy_iterator())
    assert [len(b.users) for b in batches] == [50] * 4
    np.testing.assert_array_equal(
        _rows(_concatenate(batches), shards.user_ids, shards.item_ids), table)

  def test_do_not_depend_on_the_chunks(self, tmp_path):
    whole = _concatenate(_synthetic())
    one = datasets.shard_ratings(_synthetic(), tmp_path / 'a', 3)
    two = datasets.shard_ratings([whole], tmp_path / 'b', 3)
    other = datasets.shard_ratings([whole], tmp_path / 'c', 3, seed=(0, 1))
    content = [[open(p, 'rb').read() for p in s.paths]
               for s in (one, two, other)]
    assert content[0] == content[1] != content[2]

  def test_each_rating_goes_to_any_shard(self, tmp_path):
    shards = datasets.shard_ratings(_synthetic(), tmp_path, 4)
    shard = np.empty([shards.num_ratings], np.int64)
    for k, path in enumerate(shards.paths):
      shard[np.fromfile(path, np.int32).reshape([-1, 3])[:, 1]] = k

    def is_quarter(hits):
      # Binomial(n, 1 / 4); 5.5 sds: 4e-8.
      sd = np.sqrt(3. / 16. / len(hits))
      return abs(np.mean(hits) - 0.25) < 5.5 * sd

    assert all(is_quarter(shard == k) for k in range(4))
    # Neighbours, and the same place in the next block, agree by chance alone.
    for lag in (1, shards_lib._BLOCK):
      assert is_quarter(shard[lag:] == shard[:-lag])

  def test_batches_are_random_samples_of_all(self, tmp_path):
    """The mean rating of a batch has the law of a simple random sample."""
    shards = datasets.shard_ratings(_synthetic(), tmp_path, 10)
    n, num = 500, shards.num_ratings
    means = np.array([
        b.ratings.mean() for b in shards.stream(n).as_numpy_iterator()])
    assert len(means) == num // n
    # All ratings of a pass once: the batch means average to the mean, 2.
    np.testing.assert_allclose(means.mean(), 2., atol=1e-6)
    variance = 2. / n * (1. - n / num)
    # chi2 with 499 degrees of freedom; 0.7 and 1.36 are beyond 1e-7.
    assert 0.7 < means.var(ddof=1) / variance < 1.36
    # The order of the file fails the same check.
    in_order = _concatenate(_synthetic()).ratings.reshape([-1, n]).mean(axis=1)
    assert in_order.var(ddof=1) / variance > 100.

  def test_passes_differ_and_the_seed_fixes_them(self, tmp_path):
    shards = datasets.shard_ratings(_synthetic(), tmp_path, 10)

    def firsts(seed):
      """The first batches of two passes."""
      batches = shards.stream(1000, seed).repeat(2).as_numpy_iterator()
      return [b.items for b in itertools.islice(batches, 0, None, 250)]

    first, second = firsts(0)
    # Of 1,000 of 250,000, twice, 4 are expected in common: Poisson, 1e-9.
    assert len(np.intersect1d(first, second)) < 22
    for one, two in zip(firsts(0), (first, second), strict=True):
      np.testing.assert_array_equal(one, two)
    assert not np.array_equal(first, firsts(1)[0])

  def test_infinite_leaves_nothing_out(self, tmp_path):
    shards = datasets.shard_ratings(_synthetic(1, 1000), tmp_path, 3)
    batches = itertools.islice(
        shards.stream(300, infinite=True).as_numpy_iterator(), 10)
    counts = np.bincount(_concatenate(batches).items)
    np.testing.assert_array_equal(counts, [3] * 1000)

  def test_split(self, tmp_path):
    shards = datasets.shard_ratings(_synthetic(), tmp_path, 10)
    train, test = shards.split(0.2)
    assert len(train.paths) == 8 and len(test.paths) == 2
    assert train.num_ratings + test.num_ratings == shards.num_ratings
    assert not set(train.paths) & set(test.paths)
    with pytest.raises(ValueError, match='make more shards'):
      shards.split(0.01)

  def test_open_again(self, tmp_path):
    written = datasets.shard_ratings(_synthetic(), tmp_path, 3)
    opened = datasets.open_shards(tmp_path)
    assert opened.paths == written.paths and opened.counts == written.counts
    np.testing.assert_array_equal(opened.item_ids, written.item_ids)

  def test_stopped_or_truncated(self, tmp_path):
    def stops():
      yield from _synthetic(1)
      raise KeyboardInterrupt

    datasets.shard_ratings(_synthetic(), tmp_path, 5)
    with pytest.raises(KeyboardInterrupt):
      datasets.shard_ratings(stops(), tmp_path, 3)
    with pytest.raises(FileNotFoundError, match='no complete shards'):
      datasets.open_shards(tmp_path)
    shards = datasets.shard_ratings(_synthetic(), tmp_path, 3)
    assert len(list(tmp_path.glob('*.bin'))) == 3
    with open(shards.paths[1], 'r+b') as file:
      file.truncate(120)
    with pytest.raises(ValueError, match='has 120 bytes.*truncated'):
      datasets.open_shards(tmp_path)

  def test_only_its_own_files_are_read_and_removed(self, tmp_path):
    datasets.shard_ratings(_synthetic(1), tmp_path, 3)
    mine = tmp_path / 'ratings-mine.bin'
    mine.write_text('mine')
    with np.load(tmp_path / 'ratings.npz') as index:
      arrays = {**index}
    np.savez(tmp_path / 'ratings.npz', names=['ratings-mine.bin'] * 3, **arrays)
    assert str(mine) not in datasets.open_shards(tmp_path).paths
    datasets.shard_ratings(_synthetic(1), tmp_path, 2)
    assert mine.read_text() == 'mine'
    assert len(list(tmp_path.glob('*-of-*'))) == 2

  def test_bad_input(self, tmp_path):
    with pytest.raises(ValueError, match='no ratings'):
      datasets.shard_ratings([], tmp_path)
    negative = datasets.Ratings(
        np.array([-1]), np.array([0]), np.array([1.], np.float32))
    with pytest.raises(ValueError, match='number -1'):
      datasets.shard_ratings([negative], tmp_path)
    shards = datasets.shard_ratings(_synthetic(1, 100), tmp_path, 2)
    with pytest.raises(ValueError, match='only 100 ratings'):
      shards.stream(101)

  def test_feed_a_sampler(self, tmp_path):
    shards = datasets.shard_ratings(_synthetic(), tmp_path, 10)
    posterior = sgmcmc.Posterior(
        tfd.Normal(0., 10.).log_prob,
        lambda mu, batch: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(
            batch.ratings),
        num_examples=shards.num_ratings)
    kernel = sgmcmc.SGLD(
        posterior, step_size=1e-6,
        gradient_estimator=sgmcmc.gradients.Stream(
            shards.stream(1000, infinite=True)))

    @tf.function
    def run():
      return tfp.mcmc.sample_chain(
          20, 0., kernel=kernel, num_burnin_steps=30, trace_fn=None,
          seed=[0, 1])

    # A step contracts by 1 - h N = 0.75 and adds the variance
    # 2 h + h^2 N^2 2 / n = 1.3e-4: the mean of 20 draws has an sd of 0.01. In
    # the order of the file it would be 0.
    assert abs(run().numpy().mean() - 2.) < 0.06

  def test_reads_only_a_few_shards_ahead(self, tmp_path):
    shards = datasets.shard_ratings(_synthetic(), tmp_path, 50)
    batches = shards.stream(100).as_numpy_iterator()
    num_read = len(next(batches).users)
    for path in tmp_path.glob('*.bin'):
      path.unlink()
    with pytest.raises(tf.errors.NotFoundError):
      for batch in batches:
        num_read += len(batch.users)
    assert num_read <= 3 * max(shards.counts)
