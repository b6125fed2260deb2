"""Bags of words: how often each word occurs in each document.

#### Attribution

D. Newman. Bag of Words. UCI Machine Learning Repository, 2008.
https://doi.org/10.24432/C5ZG6P. CC BY 4.0.
"""

from collections.abc import Sequence
import os
from typing import NamedTuple

import numpy as np

from experiments.datasets import files
from experiments.datasets import preparation

__all__ = ['BagOfWords', 'load_bag_of_words']

_URL = ('https://archive.ics.uci.edu/ml/machine-learning-databases/'
        'bag-of-words/')
_NUM_HEADER_LINES = 3


class BagOfWords(NamedTuple):
  """Counts of words in documents, the zeros left out.

  Attributes:
    documents: `int32[nonzeros]`, 0 to `num_documents - 1`, in increasing order.
    words: `int32[nonzeros]`, positions in `vocabulary`.
    counts: `int32[nonzeros]`, at least 1.
    num_documents: Python `int`; some may have no word at all.
    vocabulary: Tuple of `str`.
  """
  documents: np.ndarray
  words: np.ndarray
  counts: np.ndarray
  num_documents: int
  vocabulary: tuple[str, ...]

  def to_dense(self, dtype: np.dtype | type = np.float32) -> np.ndarray:
    """The counts as a matrix, `[num_documents, len(vocabulary)]`."""
    dense = np.zeros([self.num_documents, len(self.vocabulary)], dtype)
    dense[self.documents, self.words] = self.counts
    return dense

  def take(self, documents: np.ndarray) -> 'BagOfWords':
    """Some of the documents, numbered anew in the order given.

    Args:
      documents: Integers, each document at most once.
    """
    new = np.full([self.num_documents], -1, np.int32)
    new[documents] = np.arange(len(documents), dtype=np.int32)
    kept = np.flatnonzero(new[self.documents] >= 0)
    kept = kept[np.argsort(new[self.documents[kept]], kind='stable')]
    return self._replace(
        documents=new[self.documents[kept]], words=self.words[kept],
        counts=self.counts[kept], num_documents=len(documents))


def load_bag_of_words(
    name: str = 'kos',
    data_dir: str | os.PathLike | None = None,
    test_fraction: float = 0.2,
    seed: Sequence[int] = (0, 0),
) -> tuple[BagOfWords, BagOfWords]:
  """Loads a bag of words in UCI's format, documents split at random.

  The format is two text files: `docword.NAME.txt` (also with `.gz`) has the
  numbers of documents, words and non-zero counts in three lines, then a line
  `document word count` for each non-zero count, both numbered from 1;
  `vocab.NAME.txt` has a word a line. What the header says is checked. (A last
  line without its newline is read where the header asks for one more word, else
  left out: `vocab.kos.txt` ends with such a one, 'temp', that is no word.)

  Args:
    name: `'kos'` (3,430 entries of a political blog), `'nips'`, `'enron'`,
      `'nytimes'`, `'pubmed'`; or your own, with `data_dir`.
    data_dir: Folder with the two files, or with a folder NAME that has them.
      `None` downloads them.
    test_fraction: The share of the documents that is for test.
    seed: Stateless seed of the split, two integers.

  Returns:
    train: `BagOfWords`.
    test: `BagOfWords`, with the same vocabulary.

  Raises:
    FileNotFoundError: If `data_dir` lacks a file.
    ConnectionError: If they cannot be downloaded.
    ValueError: If a file is truncated or corrupted.

  #### Examples

  ```python
  train, test = datasets.load_bag_of_words('kos')
  counts = train.to_dense()
  ```
  """
  dataset = f'The bag of words {name!r}'
  counts_name, vocabulary_name = f'docword.{name}.txt', f'vocab.{name}.txt'
  if data_dir is None:
    path = files.download(_URL + counts_name + '.gz', name, dataset)
    vocabulary_path = files.download(_URL + vocabulary_name, name, dataset)
  else:
    path = files.find(
        data_dir, name, [counts_name, counts_name + '.gz'], dataset)
    vocabulary_path = files.find(data_dir, name, [vocabulary_name], dataset)
  bag = _read(path, vocabulary_path)
  return tuple(
      bag.take(documents) for documents in preparation.random_split(
          bag.num_documents, test_fraction, seed))


def _read(path, vocabulary_path):
  what = 'a bag of words'
  with files.reading(path, what), files.open_text(path) as file:
    header = [file.readline() for _ in range(_NUM_HEADER_LINES)]
    num_documents, num_words, num_nonzeros = map(int, header)
  table = files.read_table(
      path, what, np.int32, delimiter=None, num_header_lines=_NUM_HEADER_LINES)
  files.check_count(path, table.shape[1], 3, 'columns')
  files.check_count(path, len(table), num_nonzeros, 'rows after its header')
  with files.reading(vocabulary_path, 'words'), files.open_text(
      vocabulary_path) as file:
    *vocabulary, unfinished = file.read().split('\n')
  if unfinished and len(vocabulary) < num_words:
    vocabulary.append(unfinished)
  files.check_count(vocabulary_path, len(vocabulary), num_words, 'words')
  limits = [num_documents, num_words, np.iinfo(np.int32).max]
  if np.any(table < 1) or np.any(table > limits):
    raise ValueError(
        f'{path} has numbers outside 1 to {num_documents} (documents) or 1 to '
        f'{num_words} (words), or counts below 1: it is corrupted.')
  table = table[np.argsort(table[:, 0], kind='stable')]
  documents, words, counts = np.ascontiguousarray(table.T)
  return BagOfWords(
      documents - 1, words - 1, counts, num_documents, tuple(vocabulary))
