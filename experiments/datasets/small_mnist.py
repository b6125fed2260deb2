"""MNIST made small, as the SBPS paper has it.

#### References

[1] A. Pakman, D. Gilboa, D. Carlson and L. Paninski. Stochastic Bouncy Particle
    Sampler. ICML 2017, section 7.3. https://arxiv.org/abs/1609.00770
"""

from collections.abc import Sequence
import os
from typing import NamedTuple

import numpy as np

from tfp_sgmcmc.datasets import Mnist
from tfp_sgmcmc.datasets import load_mnist
from tfp_sgmcmc.internal import checks

__all__ = ['SmallMnist', 'load_small_mnist', 'shrink_mnist']


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
  train, test = datasets.load_small_mnist()
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
