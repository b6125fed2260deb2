"""Tests of splits and scales."""

import numpy as np
import pytest

from experiments import datasets


def test_standardization_takes_its_statistics_from_training_data():
  rng = np.random.default_rng(0)
  train = rng.normal([3., -2., 7.], [2., 0.1, 0.], [500, 3])
  test = rng.normal(100., 50., [50, 3])
  scaling = datasets.Standardization.fit(train)
  scaled = scaling(train)
  np.testing.assert_allclose(scaled.mean(axis=0), 0., atol=1e-12)
  np.testing.assert_allclose(scaled.std(axis=0), [1., 1., 0.], atol=1e-12)
  expected = (test - train.mean(axis=0)) / [*train.std(axis=0)[:2], 1.]
  np.testing.assert_allclose(scaling(test), expected, rtol=1e-12)
  np.testing.assert_allclose(scaling.undo(scaling(test)), test, rtol=1e-12)


def test_standardization_of_some_columns_leaves_the_others():
  train = np.random.default_rng(1).normal(5., 3., [100, 4]).astype(np.float32)
  scaled = datasets.Standardization.fit(train, columns=slice(2))(train)
  assert scaled.dtype == np.float32
  np.testing.assert_allclose(scaled[:, :2].std(axis=0), 1., rtol=1e-6)
  np.testing.assert_array_equal(scaled[:, 2:], train[:, 2:])


def test_standardization_of_targets():
  scaling = datasets.Standardization.fit(np.array([1., 3.]))
  assert scaling.mean == 2. and scaling.scale == 1.
  np.testing.assert_allclose(scaling(np.array([4.])), [2.])


def test_random_split_is_a_partition_that_the_seed_fixes():
  train, test = datasets.random_split(1001, 0.2, seed=(3, 4))
  assert len(test) == 200
  assert sorted([*train, *test]) == list(range(1001))
  again = datasets.random_split(1001, 0.2, seed=(3, 4))
  other = datasets.random_split(1001, 0.2, seed=(3, 5))
  np.testing.assert_array_equal(test, again[1])
  assert not np.array_equal(test, other[1])


def test_random_split_takes_each_example_equally_often():
  num_splits, num, num_test = 300, 10, 3
  counts = np.zeros(num)
  for number in range(num_splits):
    counts[datasets.random_split(num, num_test / num, (7, number))[1]] += 1
  share = num_test / num
  # Each count is Binomial(300, 0.3); 5.5 sds: 1e-7, times 10 counts.
  assert np.all(np.abs(counts - num_splits * share) <
                5.5 * np.sqrt(num_splits * share * (1. - share)))


@pytest.mark.parametrize('fraction', [-0.1, 1.1])
def test_random_split_refuses_a_wrong_share(fraction):
  with pytest.raises(ValueError, match='test_fraction'):
    datasets.random_split(10, fraction)


def test_random_split_may_leave_the_test_part_empty():
  train, test = datasets.random_split(10, 0.)
  assert len(train) == 10 and not len(test)
