"""Rows drawn with probabilities of their own, and the best of these.

The laws of chains on such rows are in `test_variance_reduction`.
"""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests import oracle
from tests.gradients import moments
from tests.gradients import test_estimators
from tests.gradients import test_variance_reduction
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.gradients import minibatch
from tfp_sgmcmc.gradients import preferential

ControlVariate = sgmcmc.gradients.ControlVariate

poisson_regression = test_estimators.poisson_regression
other_state = test_variance_reduction.other_state
start = test_variance_reduction.start


def preferential_of(nearby, **arguments):
  return sgmcmc.gradients.preferential_probabilities(
      poisson_regression(), other_state(), nearby, **arguments)


def linear_change(parts):
  """H_i (theta - a) of Poisson regression, `[9, 3]`."""
  design = np.concatenate([test_estimators.DATA, np.ones([9, 1])], axis=1)
  flat = lambda parts: np.concatenate([parts[0], [parts[1]]])
  a = flat(other_state())
  slopes = np.exp(design @ a) * (design @ (flat(parts) - a))
  return -slopes[:, np.newaxis] * design


@pytest.mark.parametrize('order', [1, 2])
def test_preferential_probabilities_are_of_least_variance(order):
  """In the metric of the nearby states, up to the floor: any others have more.

  The variance of a sum of n draws is (sum_i |t_i|^2 / p_i - |sum_i t_i|^2) / n,
  its least for p_i ~ |t_i| (Cauchy and Schwarz).
  """
  random = np.random.default_rng(0)
  spread = [0.1 * random.normal(size=[20, 2]), 0.2 * random.normal(size=20)]
  nearby = [np.float32(part + a) for part, a in zip(spread, other_state())]
  joined = np.concatenate([nearby[0], nearby[1][:, np.newaxis]], axis=1)
  covariance = np.cov(joined, rowvar=False)
  posterior = poisson_regression()

  @tf.function(autograph=False)
  def gradients(*parts):
    return minibatch.per_example_gradients(posterior, parts)

  here = moments.as_array(gradients(*other_state()), 9)
  differences = [
      moments.as_array(gradients(*parts), 9) - here
      - (order == 2) * linear_change(parts) for parts in zip(*nearby)]

  def variance(p):
    return sum(
        np.einsum('id,de,ie->i', d, covariance, d) @ (1. / p)
        for d in differences)

  found = preferential_of(nearby, floor=1e-6, order=order)
  np.testing.assert_allclose(found.sum(), 1.)
  assert 1.1 * variance(found) < variance(np.full(9, 1. / 9.))
  for _ in range(20):
    other = found * np.exp(0.1 * random.normal(size=9))
    assert variance(found) < variance(other / other.sum())
  floored = preferential_of(nearby, floor=0.3, order=order)
  assert floored.min() >= 0.3 / 9.
  np.testing.assert_allclose(floored, 0.7 * found + 0.3 / 9., atol=1e-6)


def test_variance_of_what_all_rows_have_alike():
  """Is none: no difference of large sums."""
  posterior = sgmcmc.Posterior(
      lambda theta: -theta**2,
      lambda theta, x: -0.5 * (x - theta[..., tf.newaxis])**2,
      tf.ones([5000]))
  estimator = ControlVariate(10, tf.constant(0.1), probabilities=np.ones(5000))
  for theta in (0.3, 0.7, 0.123):
    variance, = estimator.variance(posterior, [tf.constant(theta)])
    assert 0. <= variance < 1e-4


def test_rows_are_drawn_with_their_probabilities():
  """By Pearson's test; false alarm: once in a million."""
  p = np.random.default_rng(0).gamma(0.5, size=300) + 0.01
  table = preferential.Table(p)
  drawn = table.draw([1_000_000], tf.constant([1, 2])).numpy()
  counts = np.bincount(drawn, minlength=300)
  assert scipy.stats.chisquare(
      counts, p / p.sum() * 1e6).pvalue > oracle.FALSE_ALARM_RATE
  wrong = p * np.where(np.arange(300) % 2, 1.04, 1.)
  assert scipy.stats.chisquare(
      counts, wrong / wrong.sum() * 1e6).pvalue < oracle.FALSE_ALARM_RATE


@pytest.mark.parametrize('make, error, message', [
    (lambda: ControlVariate(3, other_state(), probabilities=[1., 0.]),
     ValueError, r'probabilities\[1\] is 0: each row .* needs a positive'),
    (lambda: ControlVariate(3, other_state(), probabilities=[[1.]]),
     ValueError, 'one for each row'),
    (lambda: ControlVariate(3, other_state(), probabilities=['a']), TypeError,
     'numbers are needed'),
    (lambda: start(ControlVariate(
        3, other_state(), probabilities=np.ones(8))), ValueError,
     'probabilities for 8 rows, and the data have 9'),
    (lambda: sgmcmc.gradients.ExponentiallyWeighted(
        base=ControlVariate(
            4, other_state(), probabilities=np.ones(9))),
     TypeError, 'chooses_among_sets'),
    (lambda: ControlVariate(3, other_state(), probabilities=[1., 1e-5]),
     ValueError, r'probabilities\[1\] is 1e-05 of their sum'),
    (lambda: preferential_of(other_state()), ValueError,
     'K states in its structure'),
    (lambda: preferential_of([np.ones([2, 2]), np.ones(2)]), ValueError,
     'nearby states are all the same'),
    (lambda: sgmcmc.gradients.preferential_probabilities(
        poisson_regression(), [np.zeros(2), 0.], [np.eye(2), np.zeros(2)]),
     ValueError, r'at the anchor \(float64\[2\].*dtype that the chain has'),
    (lambda: preferential_of([np.full([2, 2], np.nan), np.zeros(2)]),
     ValueError, 'gradient of row 0 is NaN'),
    (lambda: preferential_of([np.zeros([2, 2]), np.zeros(2)], floor=0.),
     ValueError, 'floor is 0'),
])
def test_refusals(make, error, message):
  with pytest.raises(error, match=message):
    make()
