"""a9a: the Adult census data as 123 indicators, from LIBSVM's collection.

#### Attribution

B. Becker and R. Kohavi. Adult. UCI Machine Learning Repository, 1996.
https://doi.org/10.24432/C5XW20. CC BY 4.0. Made into indicators by J. Platt,
1998; distributed by C.-C. Chang and C.-J. Lin,
https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html#a9a.
"""

import os
import pathlib

import numpy as np

from experiments.datasets import files
from experiments.datasets import preparation

__all__ = ['load_a9a']

_URL = 'https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/'
_SHA256 = {
    'a9a': 'f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906',
    'a9a.t': '1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9',
}
_NUM_FEATURES = 123


def load_a9a(
    data_dir: str | os.PathLike | None = None,
    num_rows: tuple[int, int] = (32_561, 16_281),
) -> tuple[preparation.Examples, preparation.Examples]:
  """Loads a9a in the published split.

  Args:
    data_dir: Folder with `a9a/a9a` and `a9a/a9a.t`, LIBSVM text. `None`
      downloads them.
    num_rows: How many rows the two files have to have.

  Returns:
    train: `Examples` with `float32[n, 123]` features, 0 or 1, and `int32[n]`
      labels: 1 where the file has +1 (an income above 50,000 dollars), 0 where
      it has -1.
    test: `Examples`.

  Raises:
    FileNotFoundError: If `data_dir` lacks a file.
    ConnectionError: If they cannot be downloaded.
    ValueError: If a file is truncated or corrupted.

  #### Examples

  ```python
  train, test = datasets.load_a9a('data')
  ```
  """
  parts = []
  for (name, sha256), expected in zip(_SHA256.items(), num_rows, strict=True):
    if data_dir is None:
      path = files.download(_URL + name, 'a9a', 'a9a', sha256)
    else:
      path = files.find(data_dir, 'a9a', [name], 'a9a')
    part = _read_libsvm(path)
    files.check_count(path, len(part.labels), expected)
    parts.append(part)
  return tuple(parts)


def _read_libsvm(path: pathlib.Path) -> preparation.Examples:
  """Lines of `label index:value index:value ...`, indices from 1."""
  labels, rows, columns, values = [], [], [], []
  with files.reading(path, 'LIBSVM text'), files.open_text(path) as file:
    for row, line in enumerate(file):
      if not line.endswith('\n'):
        raise ValueError(f'line {row + 1} is cut off')
      label, *pairs = line.split()
      labels.append(int(label))
      for pair in pairs:
        index, value = pair.split(':')
        rows.append(row)
        columns.append(int(index))
        values.append(float(value))
    columns = np.array(columns, np.int64)
    if not set(labels) <= {-1, 1}:
      raise ValueError(f'labels are {sorted(set(labels))}, not -1 and +1')
    if np.any((columns < 1) | (columns > _NUM_FEATURES)):
      raise ValueError(
          f'features are numbered {columns.min()} to {columns.max()}, not 1 '
          f'to {_NUM_FEATURES}')
  features = np.zeros([len(labels), _NUM_FEATURES], np.float32)
  features[rows, columns - 1] = values
  return preparation.Examples(
      features, (np.array(labels, np.int32) + 1) // 2)
