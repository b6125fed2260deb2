"""Regression data of the UCI repository with ten fixed splits.

The collection of T. Evans, https://github.com/treforevans/uci_datasets: for
each a folder with `data.csv.gz`, n rows of d features and the target last, and
`test_mask.csv.gz`, whose column k is 1 for the test rows of split k. Values are
as that collection has them: centred, with five significant digits.

#### Attribution

UCI Machine Learning Repository, https://archive.ics.uci.edu, CC BY 4.0; each
data set has its own authors there.
"""

import os

import numpy as np

from experiments.datasets import files
from experiments.datasets import preparation
from tfp_sgmcmc.internal import checks

__all__ = ['load_uci_regression']

_URL = ('https://raw.githubusercontent.com/treforevans/uci_datasets/master/'
        'uci_datasets/')
_FILES = ('data.csv.gz', 'test_mask.csv.gz')
_NUM_SPLITS = 10
# Rows and features of those that the literature compares on.
_SHAPES = {
    'bike': (17_379, 17),
    'concrete': (1_030, 8),
    'elevators': (16_599, 18),
    'energy': (768, 8),
    'protein': (45_730, 9),
    'wine': (1_599, 11),
    'yacht': (308, 6),
}


def load_uci_regression(
    name: str,
    data_dir: str | os.PathLike | None = None,
    split: int = 0,
    shape: tuple[int, int] | None = None,
) -> tuple[preparation.Examples, preparation.Examples]:
  """Loads one split of one of the UCI regression data sets.

  Nothing is standardized: fit a `Standardization` on the training part, one for
  the features and one for the targets, whose `scale` takes a test log
  likelihood back to the original units.

  Args:
    name: `'bike'`, `'concrete'`, `'elevators'`, `'energy'`, `'protein'`,
      `'wine'` or `'yacht'`; or another of the collection, with its `shape`.
    data_dir: Folder with `uci/NAME/data.csv.gz` and
      `uci/NAME/test_mask.csv.gz`. `None` downloads them.
    split: Which of the ten splits, 0 to 9.
    shape: How many rows and features it has to have; known for those named
      above.

  Returns:
    train: `Examples` with `float64[n, d]` features and `float64[n]` targets.
    test: `Examples`.

  Raises:
    FileNotFoundError: If `data_dir` lacks a file.
    ConnectionError: If they cannot be downloaded.
    ValueError: If a file is truncated or corrupted, `name` is unknown or there
      is no such split.

  #### Examples

  ```python
  train, test = datasets.load_uci_regression('yacht', split=3)
  x_scaling = datasets.Standardization.fit(train.features)
  y_scaling = datasets.Standardization.fit(train.labels)
  ```
  """
  if checks.non_negative_integer('split', split) >= _NUM_SPLITS:
    raise ValueError(f'split is {split}: there are {_NUM_SPLITS}, from 0 on.')
  if shape is None and name not in _SHAPES:
    raise ValueError(
        f'name is {name!r}: pass one of {", ".join(map(repr, _SHAPES))}, or '
        'also shape=(rows, features), against which the file is checked.')
  folder = f'uci/{name}'
  dataset = f'The UCI data set {name!r}'
  if data_dir is None:
    paths = [files.download(f'{_URL}{name}/{file}', folder, dataset)
             for file in _FILES]
  else:
    paths = [files.find(data_dir, folder, [file], dataset) for file in _FILES]
  data_path, mask_path = paths
  table = files.read_table(data_path, 'rows of numbers', np.float64)
  mask = files.read_table(mask_path, 'rows of 0 and 1', np.int32)
  num_rows, num_features = shape or _SHAPES[name]
  files.check_count(data_path, len(table), num_rows)
  files.check_count(data_path, table.shape[1], num_features + 1, 'columns')
  files.check_count(mask_path, len(mask), num_rows)
  files.check_count(mask_path, mask.shape[1], _NUM_SPLITS, 'columns')
  if not np.all((mask == 0) | (mask == 1)):
    raise ValueError(f'{mask_path} has other values than 0 and 1.')
  is_test = mask[:, split] == 1
  return tuple(
      preparation.Examples(table[rows, :-1], table[rows, -1])
      for rows in (~is_test, is_test))
