"""Covertype: what kind of forest grows on 30 x 30 metre cells of Colorado.

581,012 cells with 10 quantities (elevation, slope, distances, ...) and 44
indicators (wilderness area, soil type). As in the papers, the task is binary:
cover type 2, lodgepole pine, against the six others.

#### Attribution

J. Blackard. Covertype. UCI Machine Learning Repository, 1998.
https://doi.org/10.24432/C50K5N. Copyright Jock A. Blackard and Colorado State
University; Creative Commons Attribution 4.0 International (CC BY 4.0).
"""

from collections.abc import Sequence
import os

import numpy as np

from experiments.datasets import files
from experiments.datasets import preparation

__all__ = ['load_covertype']

_URL = ('https://archive.ics.uci.edu/ml/machine-learning-databases/covtype/'
        'covtype.data.gz')
# As scikit-learn's fetch_covtype has it.
_SHA256 = '614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771'
_SAMPLE = 'covertype_sample.npz'
_NUM_ROWS = {'covtype.data.gz': 581_012, 'covtype.data': 581_012,
             _SAMPLE: 92_962}
_NUM_FEATURES = 54


def load_covertype(
    data_dir: str | os.PathLike | None = None,
    test_fraction: float = 0.2,
    seed: Sequence[int] = (0, 0),
    num_rows: int | None = None,
) -> tuple[preparation.Examples, preparation.Examples]:
  """Loads Covertype as a binary problem, split at random.

  The features are as published: the first 10 are quantities in their own units,
  which a sampler wants standardized, the last 44 are 0 or 1.

  Args:
    data_dir: Folder with `covertype/covtype.data.gz`, the published file (also
      unpacked), or else with `covertype/covertype_sample.npz`, a 16% sample of
      its rows (arrays `X` and `y`). Which one it was is seen in the number of
      rows. `None` downloads the published file.
    test_fraction: The share of the rows that is for test.
    seed: Stateless seed of the split, two integers.
    num_rows: How many rows the file has to have, if it is none of those.

  Returns:
    train: `Examples` with `float32[n, 54]` features and `int32[n]` labels: 1
      for cover type 2, 0 for another.
    test: `Examples`.

  Raises:
    FileNotFoundError: If `data_dir` has no such file.
    ConnectionError: If it cannot be downloaded.
    ValueError: If the file is truncated or corrupted.

  #### Examples

  ```python
  train, test = datasets.load_covertype()
  scaling = datasets.Standardization.fit(
      train.features, columns=slice(10))
  x_train, x_test = scaling(train.features), scaling(test.features)
  ```
  """
  if data_dir is None:
    path = files.download(_URL, 'covertype', 'Covertype', _SHA256)
  else:
    path = files.find(data_dir, 'covertype', list(_NUM_ROWS), 'Covertype')
  if path.suffix == '.npz':
    with files.reading(path, 'arrays X and y'), np.load(path) as arrays:
      features, cover_types = arrays['X'], arrays['y']
    files.check_count(path, len(cover_types), len(features), 'labels')
  else:
    table = files.read_table(path, 'Covertype', np.int32)
    features, cover_types = table[:, :-1], table[:, -1]
  files.check_count(path, features.shape[1], _NUM_FEATURES, 'features')
  files.check_count(path, len(features), num_rows or _NUM_ROWS[path.name])
  if not np.all((cover_types >= 1) & (cover_types <= 7)):
    raise ValueError(
        f'{path} has cover types from {cover_types.min()} to '
        f'{cover_types.max()}, and 1 to 7 are expected: it is corrupted.')
  features = features.astype(np.float32)
  labels = (cover_types == 2).astype(np.int32)
  return tuple(
      preparation.Examples(features[rows], labels[rows])
      for rows in preparation.random_split(len(labels), test_fraction, seed))
