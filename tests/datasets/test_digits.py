"""Tests of the handwritten digits."""

import pathlib

import numpy as np
import pytest

from tfp_sgmcmc import datasets
from tfp_sgmcmc.datasets import digits


def test_shapes_and_values():
  train, test = datasets.load_digits()
  assert train.images.shape == (1201, 8, 8) and train.labels.shape == (1201,)
  assert test.images.shape == (596, 8, 8) and test.labels.shape == (596,)
  for part in (train, test):
    assert part.images.dtype == np.uint8 and part.images.max() == 16
    assert sorted(set(part.labels.tolist())) == list(range(10))


def test_split_is_stratified():
  train, test = datasets.load_digits()
  share = np.bincount(test.labels) / (
      np.bincount(test.labels) + np.bincount(train.labels))
  assert np.all(np.abs(share - 1. / 3.) < 0.005)


def test_split_is_the_documented_one():
  train, test = datasets.load_digits()
  with np.load(digits._FILE) as file:
    images, labels = file['images'], file['labels']
  for digit in range(10):
    of_digit = images[labels == digit]
    np.testing.assert_array_equal(
        test.images[test.labels == digit], of_digit[2::3])
    np.testing.assert_array_equal(
        train.images[train.labels == digit],
        np.delete(of_digit, np.s_[2::3], axis=0))


def test_is_what_scikit_learn_carries():
  sklearn_datasets = pytest.importorskip('sklearn.datasets')
  wanted = sklearn_datasets.load_digits()
  with np.load(digits._FILE) as file:
    np.testing.assert_array_equal(file['images'], wanted.images)
    np.testing.assert_array_equal(file['labels'], wanted.target)


def test_file_is_small():
  assert pathlib.Path(digits._FILE).stat().st_size < 150_000
