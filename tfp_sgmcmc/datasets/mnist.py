"""MNIST, from TensorFlow Datasets; whole, or small as the SBPS paper has it.

#### Attribution

Y. LeCun, C. Cortes and C. J. C. Burges. The MNIST database of handwritten
digits, http://yann.lecun.com/exdb/mnist.

#### References

[1] A. Pakman, D. Gilboa, D. Carlson and L. Paninski. Stochastic Bouncy Particle
    Sampler. ICML 2017, section 7.3. https://arxiv.org/abs/1609.00770
"""

from collections.abc import Sequence
import os
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.datasets import files
from tfp_sgmcmc.internal import checks

__all__ = ['Mnist', 'SmallMnist', 'load_mnist', 'load_small_mnist',
           'shrink_mnist']


class Mnist(NamedTuple):
  """Images of handwritten digits and what they show.

  Attributes:
    images: `uint8[n, 28, 28]`, 0 (paper) to 255 (ink).
    labels: `int32[n]`, 0 to 9.
  """
  images: np.ndarray
  labels: np.ndarray


class SmallMnist(NamedTuple):
  """Some of MNIST's digits at 7 x 7 pixels, those never inked left out.

  Attributes:
    features: `float32[n, p]`, the pixels that are left, 0 (paper) to 1 (ink).
    labels: `int32[n]`, positions in the `digits` that were chosen.
    pixels: `int32[p]`, which of the 49 pixels they are, row by row.
  """
  features: np.ndarray
  labels: np.ndarray
  pixels: np.ndarray


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
    folder = files.find(data_dir, 'tfds', ['mnist'], 'MNIST')
    versions = sorted(folder.glob('*/dataset_info.json'))
    if not versions:
      raise FileNotFoundError(
          f'{folder} has no MNIST prepared by TensorFlow Datasets: looked for '
          'VERSION/dataset_info.json in it.')
    folder = versions[-1].parent
    with files.reading(folder, 'MNIST prepared by TensorFlow Datasets'):
      try:
        builder = tfds.builder_from_directory(folder)
      except Exception as error:  # Whatever its parsers raise.
        raise ValueError(f'{type(error).__name__}: {error}') from error
  parts = []
  for split, expected in zip(('train', 'test'), num_rows, strict=True):
    with files.reading(folder, f'the {split} part of MNIST'):
      try:
        examples = list(tfds.as_numpy(builder.as_dataset(
            split=split, batch_size=1000)))
        images = np.concatenate([e['image'][..., 0] for e in examples])
        labels = np.concatenate([e['label'] for e in examples])
      except (tf.errors.OpError, AssertionError) as error:
        raise ValueError(str(error).splitlines()[0]) from error
    files.check_count(folder, len(images), expected, f'{split} images')
    parts.append(Mnist(images, labels.astype(np.int32)))
  return tuple(parts)


def load_small_mnist(
    data_dir: str | os.PathLike | None = None,
    digits: Sequence[int] = (0, 1, 2, 3),
    num_train: int = 8_340,
) -> tuple[SmallMnist, SmallMnist]:
  """Loads MNIST at 7 x 7 pixels and with four digits, after [1].

  Args:
    data_dir: As in `load_mnist`.
    digits: As in `shrink_mnist`.
    num_train: As in `shrink_mnist`.

  Returns:
    train: `SmallMnist`.
    test: `SmallMnist`.

  #### Examples

  ```python
  train, test = sgmcmc.datasets.load_small_mnist()
  ```
  """
  return shrink_mnist(*load_mnist(data_dir), digits, num_train)


def shrink_mnist(
    train: Mnist,
    test: Mnist,
    digits: Sequence[int] = (0, 1, 2, 3),
    num_train: int = 8_340,
) -> tuple[SmallMnist, SmallMnist]:
  """Makes MNIST small: 7 x 7 pixels, few digits, no pixel that is always 0.

  The paper [1] says: 7 x 7 pixels; pixels that are 0 in all training examples
  removed; 4 digits; a subset of the training set with N = 8,340; a network with
  one hidden layer and d = 192 parameters. It does not say which digits, which
  subset, or how the images were made smaller. Here pixel `(i, j)` of 7 x 7 is
  pixel `(4 i + 2, 4 j + 2)` of 28 x 28, the subset is the first images with
  these digits, in an order that TensorFlow Datasets shuffled, and 42 pixels
  are left: a hidden layer of 4 units, with biases, has
  `(42 + 1) 4 + (4 + 1) 4 = 192` parameters. Means over 4 x 4 blocks leave all
  49.

  Args:
    train: `Mnist`.
    test: `Mnist`.
    digits: Which digits to keep.
    num_train: How many training images to keep.

  Returns:
    train: `SmallMnist` with `num_train` images.
    test: `SmallMnist` with all test images of these digits, the same pixels.

  Raises:
    ValueError: If there are fewer than `num_train` training images.
  """
  checks.positive_integer('num_train', num_train)
  digits = np.array(digits)
  parts = []
  for part, limit in ((train, num_train), (test, None)):
    chosen = np.flatnonzero(np.isin(part.labels, digits))
    if limit and len(chosen) < limit:
      raise ValueError(
          f'num_train is {limit}, and there are {len(chosen)} training images '
          f'of the digits {digits.tolist()}.')
    chosen = chosen[:limit]
    small = part.images[chosen, 2::4, 2::4].reshape([-1, 49])
    labels = np.argmax(part.labels[chosen, np.newaxis] == digits, axis=-1)
    parts.append((small.astype(np.float32) / 255., labels.astype(np.int32)))
  pixels = np.flatnonzero(np.any(parts[0][0] > 0., axis=0)).astype(np.int32)
  return tuple(
      SmallMnist(features[:, pixels], labels, pixels)
      for features, labels in parts)


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
