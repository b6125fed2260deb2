"""MNIST, from TensorFlow Datasets.

#### Attribution

Y. LeCun, C. Cortes and C. J. C. Burges. The MNIST database of handwritten
digits, http://yann.lecun.com/exdb/mnist.
"""

from collections.abc import Iterator
import contextlib
import os
import pathlib
from typing import NamedTuple

import numpy as np

__all__ = ['Mnist', 'load_mnist']


class Mnist(NamedTuple):
  """Images of handwritten digits and what they show.

  Attributes:
    images: `uint8[n, 28, 28]`, 0 (paper) to 255 (ink).
    labels: `int32[n]`, 0 to 9.
  """
  images: np.ndarray
  labels: np.ndarray


def load_mnist(
    data_dir: str | os.PathLike | None = None,
    num_rows: tuple[int, int] = (60_000, 10_000),
) -> tuple[Mnist, Mnist]:
  """Loads MNIST with TensorFlow Datasets, in its order.

  Needs `pip install 'tfp_sgmcmc[datasets]'`.

  Args:
    data_dir: Folder with `mnist/VERSION` as TensorFlow Datasets prepares it, or
      with a folder `tfds` that has it: then nothing is downloaded. `None` is
      `tfds.load('mnist')`: its own folder, downloaded if it is not there. It
      tries for three minutes before it says that there is no network.
    num_rows: How many training and test images there have to be.

  Returns:
    train: `Mnist` with 60,000 images.
    test: `Mnist` with 10,000 images.

  Raises:
    ImportError: If TensorFlow Datasets is not installed.
    FileNotFoundError: If `data_dir` has no prepared MNIST.
    ConnectionError: If it cannot be downloaded.
    ValueError: If a file is truncated or corrupted.

  #### Examples

  ```python
  train, test = sgmcmc.datasets.load_mnist()
  x_train = train.images.reshape([-1, 784]) / 255.
  ```
  """
  tfds = _import_tfds()
  if data_dir is None:
    builder = tfds.builder('mnist')
    try:
      builder.download_and_prepare()
    except Exception as error:  # Whatever its downloader raises.
      raise ConnectionError(
          'TensorFlow Datasets could not download or prepare MNIST '
          f'({type(error).__name__}: {error}). Where there is no network, '
          'prepare it elsewhere with tfds.load(\'mnist\', data_dir=DATA), copy '
          'the folder, and pass data_dir=DATA.') from error
    folder = builder.data_path
  else:
    folder = _prepared(data_dir)
    with _reading(folder):
      builder = tfds.builder_from_directory(folder)
  parts = []
  for split, expected in zip(('train', 'test'), num_rows, strict=True):
    with _reading(folder):
      examples = list(tfds.as_numpy(builder.as_dataset(
          split=split, batch_size=1000)))
      images = np.concatenate([e['image'][..., 0] for e in examples])
      labels = np.concatenate([e['label'] for e in examples])
    if len(images) != expected:
      raise ValueError(
          f'{folder} has {len(images):,} {split} images, and {expected:,} are '
          'expected. Delete it and fetch it again.')
    parts.append(Mnist(images, labels.astype(np.int32)))
  train, test = parts
  return train, test


def _prepared(data_dir):
  """The newest version of MNIST in a folder of TensorFlow Datasets."""
  root = pathlib.Path(data_dir).expanduser()
  for folder in (root / 'tfds' / 'mnist', root / 'mnist'):
    versions = sorted(folder.glob('*/dataset_info.json'))
    if versions:
      return versions[-1].parent
  raise FileNotFoundError(
      f'data_dir is {str(data_dir)!r}, where TensorFlow Datasets has prepared '
      'no MNIST: looked for mnist/VERSION/dataset_info.json in it and in its '
      'folder tfds.')


@contextlib.contextmanager
def _reading(folder: pathlib.Path) -> Iterator[None]:
  """Turns what TensorFlow Datasets raises on broken files into one error."""
  try:
    yield
  except Exception as error:  # Whatever its parsers raise.
    message = str(error).partition('\n')[0]
    raise ValueError(
        f'{folder} cannot be read as MNIST prepared by TensorFlow Datasets: it '
        'is truncated, corrupted or another data set '
        f'({type(error).__name__}: {message}). Delete it and fetch it again.'
    ) from error


def _import_tfds():
  try:
    import importlib_resources  # noqa: F401  TFDS needs it, undeclared.
    import tensorflow_datasets as tfds
  except ImportError as error:
    raise ImportError(
        f'MNIST is read with TensorFlow Datasets, and {error.name} is not '
        'installed: pip install \'tfp_sgmcmc[datasets]\', or pip install '
        'tensorflow-datasets importlib_resources.') from error
  return tfds
