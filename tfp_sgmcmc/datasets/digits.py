"""Handwritten digits, 8 x 8 pixels, that ship with the package.

The 1,797 images of the test part of "Optical Recognition of Handwritten Digits"
(UCI Machine Learning Repository), as scikit-learn carries them. Each pixel
counts the dark points, 0 to 16, in a 4 x 4 block of a 32 x 32 bitmap.

#### Attribution

E. Alpaydin and C. Kaynak. Optical Recognition of Handwritten Digits. UCI
Machine Learning Repository, 1998. https://doi.org/10.24432/C50P49. Licensed
under Creative Commons Attribution 4.0 International (CC BY 4.0),
https://creativecommons.org/licenses/by/4.0/. The values are unchanged; they are
stored here as `uint8` in `digits.npz`.
"""

import pathlib
from typing import NamedTuple

import numpy as np

__all__ = ['Digits', 'load_digits']

_FILE = pathlib.Path(__file__).with_name('digits.npz')


class Digits(NamedTuple):
  """Images of digits and what they show.

  Attributes:
    images: `uint8[n, 8, 8]`, 0 (paper) to 16 (ink).
    labels: `int32[n]`, 0 to 9.
  """
  images: np.ndarray
  labels: np.ndarray


def load_digits() -> tuple[Digits, Digits]:
  """Loads the handwritten digits, split into training and test images.

  The split is fixed and keeps the shares of the classes: of each digit, in the
  order of the file, every third image (the third, the sixth, ...) is for test.
  Nothing is downloaded.

  Returns:
    train: `Digits` with 1,201 images.
    test: `Digits` with 596 images.

  #### Examples

  >>> train, test = sgmcmc.datasets.load_digits()
  >>> train.images.shape, test.images.shape
  ((1201, 8, 8), (596, 8, 8))
  """
  with np.load(_FILE) as file:
    images, labels = file['images'], file['labels'].astype(np.int32)
  rank_in_class = np.empty(len(labels), np.int64)
  for label in np.unique(labels):
    rank_in_class[labels == label] = np.arange(np.sum(labels == label))
  is_test = rank_in_class % 3 == 2
  return (
      Digits(images[~is_test], labels[~is_test]),
      Digits(images[is_test], labels[is_test]))
