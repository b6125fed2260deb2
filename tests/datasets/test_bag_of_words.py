"""Tests of the loader of bags of words."""

import gzip

import numpy as np
import pytest

from experiments import datasets
from experiments.datasets import bag_of_words

# Document 3 is empty.
_TEXT = '4\n3\n5\n1 1 2\n1 3 1\n2 2 7\n4 1 1\n4 2 12\n'
_DENSE = np.array([[2, 0, 1], [0, 7, 0], [0, 0, 0], [1, 12, 0]])


def _write(folder, text=_TEXT, vocabulary='ant\nbee\ncow\n'):
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'docword.zoo.txt').write_text(text)
  (folder / 'vocab.zoo.txt').write_text(vocabulary)


def test_format(tmp_path):
  _write(tmp_path / 'zoo')
  train, test = datasets.load_bag_of_words('zoo', tmp_path, test_fraction=0.5)
  assert train.vocabulary == test.vocabulary == ('ant', 'bee', 'cow')
  assert train.num_documents == test.num_documents == 2
  rows, rows_test = datasets.random_split(4, 0.5)
  np.testing.assert_array_equal(train.to_dense(np.int64), _DENSE[rows])
  np.testing.assert_array_equal(test.to_dense(np.int64), _DENSE[rows_test])
  assert np.all(np.diff(train.documents) >= 0) and train.counts.min() >= 1
  assert {train.documents.dtype, train.words.dtype, train.counts.dtype} == {
      np.dtype(np.int32)}


def test_gzip_and_last_word_without_newline(tmp_path):
  _write(tmp_path, vocabulary='ant\nbee\ncow')
  path = tmp_path / 'docword.zoo.txt'
  (tmp_path / 'docword.zoo.txt.gz').write_bytes(
      gzip.compress(path.read_bytes()))
  path.unlink()
  bag, empty = datasets.load_bag_of_words('zoo', tmp_path, test_fraction=0.)
  np.testing.assert_array_equal(bag.to_dense(), _DENSE)
  assert empty.num_documents == 0 and empty.to_dense().shape == (0, 3)


def test_unfinished_line_after_the_vocabulary(tmp_path):
  _write(tmp_path, vocabulary='ant\nbee\ncow\ntemp')
  bag, _ = datasets.load_bag_of_words('zoo', tmp_path)
  assert bag.vocabulary == ('ant', 'bee', 'cow')


def test_take_numbers_documents_anew(tmp_path):
  _write(tmp_path)
  bag, _ = datasets.load_bag_of_words('zoo', tmp_path, test_fraction=0.)
  np.testing.assert_array_equal(
      bag.take(np.array([3, 2, 0])).to_dense(), _DENSE[[3, 2, 0]])


@pytest.mark.parametrize('text, message', [
    (_TEXT[:-2], 'last line is cut off'),
    (_TEXT[:-7], 'has 4 rows after its header, and 5 are expected'),
    (_TEXT + '4 3 1\n', 'has 6 rows after its header, and 5 are expected'),
    ('4\n3\n', 'invalid literal'),
    (_TEXT[:6], 'no rows'),
    (_TEXT.replace('4 2 12', '5 2 12'), 'outside 1 to 4'),
    (_TEXT.replace('4 2 12', '4 4 12'), '1 to 3'),
    (_TEXT.replace('4 2 12', '4 2 0'), 'counts below 1'),
    (_TEXT.replace('4 2 12', '4 2'), 'columns'),
    ('<html>\nNot found\n</html>\n', 'invalid literal')])
def test_broken(tmp_path, text, message):
  _write(tmp_path, text)
  with pytest.raises(ValueError, match=message) as error:
    datasets.load_bag_of_words('zoo', tmp_path)
  assert str(tmp_path / 'docword.zoo.txt') in str(error.value)


def test_vocabulary_of_another_length(tmp_path):
  _write(tmp_path, vocabulary='ant\nbee\n')
  with pytest.raises(ValueError, match='has 2 words, and 3 are expected'):
    datasets.load_bag_of_words('zoo', tmp_path)


def test_absent(tmp_path):
  with pytest.raises(FileNotFoundError, match='docword.kos.txt'):
    datasets.load_bag_of_words('kos', tmp_path)


def test_download(publisher, monkeypatch):
  site, url = publisher
  _write(site)
  (site / 'docword.zoo.txt.gz').write_bytes(gzip.compress(_TEXT.encode()))
  monkeypatch.setattr(bag_of_words, '_URL', url)
  train, test = datasets.load_bag_of_words('zoo', test_fraction=0.25)
  assert train.num_documents == 3 and test.num_documents == 1


def test_no_network(publisher, no_network, monkeypatch):
  monkeypatch.setattr(bag_of_words, '_URL', no_network)
  with pytest.raises(ConnectionError, match='DATA/kos/docword.kos.txt.gz'):
    datasets.load_bag_of_words('kos')


def test_real(real_data):
  train, test = datasets.load_bag_of_words('kos', real_data)
  assert train.num_documents + test.num_documents == 3_430
  assert test.num_documents == 686 and len(train.vocabulary) == 6_906
  assert len(train.counts) + len(test.counts) == 353_160
  assert train.counts.sum() + test.counts.sum() == 467_714
  assert (train.vocabulary[0], train.vocabulary[-1]) == ('aarp', 'zones')
