"""Stratified: exact moments, the law of a chain, allocation, refusals."""

import functools
import itertools
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests import oracle
from tests import planted
from tests.gradients import moments
from tests.gradients import test_estimators
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import random
from tfp_sgmcmc.gradients import stratified

Stratified = sgmcmc.gradients.Stratified

# Sizes 2, 3 and 4, in no order.
STRATA = np.array([2, 0, 1, 2, 2, 1, 0, 1, 2])
poisson_regression = test_estimators.poisson_regression
state = test_estimators.state


@pytest.mark.weekly_after(3)
@pytest.mark.parametrize('batch_size, replacement', [
    (5, False), (12, True), *(
        pytest.param(*arguments, marks=pytest.mark.slow)
        for arguments in ((3, False), (9, False), (4, True)))])
def test_unbiased_with_the_variance_it_says(batch_size, replacement):
  assert moments.are_as_said(
      Stratified(batch_size, STRATA, replacement=replacement),
      poisson_regression(),
      state())


def test_data_that_stand_for_more_examples():
  small = poisson_regression()
  posterior = sgmcmc.Posterior(
      small.log_prior,
      lambda *args: small.log_likelihood(*args[:-1], batch=args[-1]),
      small.data, num_examples=90)
  assert moments.are_as_said(Stratified(5, STRATA), posterior, state())


@pytest.mark.slow
@pytest.mark.parametrize('allocation', [(1, 1, 3), (2, 2, 1), (1, 3, 1)])
def test_unbiased_for_any_allocation(allocation, monkeypatch):
  monkeypatch.setattr(
      stratified, 'allocate', lambda *_: np.array(allocation))
  assert moments.are_as_said(
      Stratified(5, STRATA), poisson_regression(), state())


def _weights_upside_down(monkeypatch):
  weights = Stratified._weights
  monkeypatch.setattr(
      Stratified, '_weights', lambda self, target: 1. / weights(self, target))


def _no_weights(monkeypatch):
  monkeypatch.setattr(
      Stratified, '_weights', lambda self, target: np.full(5, 9. / 5.))


def _one_seed_for_all_strata(monkeypatch):
  def wrong(sizes, numbers, chains, seed, replacement):
    return tf.concat([
        random.indices(n, tf.concat([chains, [k]], axis=0), seed, replacement)
        for n, k in zip(sizes.tolist(), numbers.tolist())], axis=-1)

  monkeypatch.setattr(stratified.random, 'indices_of_strata', wrong)


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('plant', [
    _weights_upside_down, _no_weights, planted.no_population_factor,
    _one_seed_for_all_strata])
def test_planted_errors_are_seen(plant, monkeypatch):
  plant(monkeypatch)
  assert not moments.are_as_said(
      Stratified(5, STRATA), poisson_regression(), state())


# The law of a chain, as in test_variance_reduction.

NUM_CHAINS = 40_000
NUM_STEPS = 20
MODEL = oracle.LinearRegression()
MODEL_STRATA = np.array([0, 1, 1, 0, 1, 1])
ALLOCATION = (1, 3)


def batches():
  members = [np.flatnonzero(MODEL_STRATA == k) for k in range(2)]
  return list(itertools.product(*(
      itertools.combinations(m, n) for m, n in zip(members, ALLOCATION))))


def exact_moments(weights):
  """Of (theta, r), with the examples of each stratum so weighted."""
  def step(z, batch, xi):
    def gradient(theta):
      terms = MODEL.gradients(theta)
      return MODEL.prior_gradient(theta) + sum(
          w * terms[list(part)].sum(axis=0) for w, part in zip(weights, batch))
    return oracle.euler_step(gradient, z, 0.12, 3., xi[:2])

  return oracle.moments_after(
      NUM_STEPS, [step], batches(), np.append(MODEL.mean, [0., 0.]),
      np.diag([0., 0., 1., 1.]))


@functools.cache
def last_states():
  estimator = Stratified(4, MODEL_STRATA)
  assert tuple(estimator.allocation) == ALLOCATION
  kernel = sgmcmc.SGHMC(
      MODEL.posterior(), 0.12, friction=3., gradient_estimator=estimator)
  start = np.tile(MODEL.mean.astype(np.float32), [NUM_CHAINS, 1])
  state, results = oracle.run_chains(
      kernel, tf.constant(start), NUM_STEPS, jit_compile=False)
  return np.concatenate([state, results.momentum[0]], axis=1)


def law_p_value(weights=(2. / 1., 4. / 3.), error=1.):
  mean, covariance = exact_moments(weights)
  return oracle.moments_p_value(last_states(), mean, error * covariance)


@pytest.mark.slow
def test_law():
  assert law_p_value() > oracle.FALSE_ALARM_RATE


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('change', [
    dict(error=1.05), dict(weights=(1.5, 1.5)), dict(weights=(1.8, 1.4))])
def test_other_laws_are_told_apart(change):
  assert law_p_value(**change) < oracle.FALSE_ALARM_RATE


def test_allocation():
  allocate = lambda n, sizes: stratified.allocate(n, np.array(sizes)).tolist()
  assert allocate(10, [500, 300, 200]) == [5, 3, 2]
  assert allocate(10, [990, 5, 5]) == [8, 1, 1]
  assert allocate(3, [1, 1, 1000]) == [1, 1, 1]
  assert allocate(7, [2, 3, 4]) in ([1, 3, 3], [2, 2, 3])
  rng = np.random.default_rng(0)
  for _ in range(200):
    sizes = rng.integers(1, 50, rng.integers(1, 12))
    n = rng.integers(len(sizes), sizes.sum() + 1)
    numbers = stratified.allocate(n, sizes)
    assert numbers.sum() == n
    assert np.all((numbers >= 1) & (numbers <= sizes))
    assert np.all(numbers < np.maximum(1, n * sizes / sizes.sum()) + 1)


@pytest.mark.weekly
@pytest.mark.slow
def test_each_minibatch_has_its_share_of_each_stratum():
  posterior, estimator = poisson_regression(), Stratified(5, STRATA)
  indices = estimator.draw(posterior, [100, 2], tf.constant([1, 2])).numpy()
  counts = np.sum(
      STRATA[indices][..., np.newaxis] == np.arange(3), axis=-2)
  assert np.all(counts == estimator.allocation)
  assert all(len(set(row)) == 5 for row in indices.reshape([-1, 5]))
  # Members of a stratum are drawn equally often: 200 times n_k / N_k.
  often = np.bincount(indices.ravel(), minlength=9) / 200.
  share = (estimator.allocation / np.bincount(STRATA))[STRATA]
  assert np.all(np.abs(often - share) < (
      moments.Z * np.sqrt(share * (1. - share) / 200.) + 1e-9))
  shared = Stratified(5, STRATA, share_minibatch=True)
  assert shared.draw(posterior, [100, 2], tf.constant([1, 2])).shape == [5]


@pytest.mark.slow
@pytest.mark.parametrize('make', [
    functools.partial(sgmcmc.SGLD, step_size=0.02),
    functools.partial(
        sgmcmc.SGHMC, step_size=0.05, friction=1., integrator='baoab'),
    functools.partial(sgmcmc.SGNHT, step_size=0.05, diffusion=1.),
], ids=lambda make: make.func.__name__)
def test_with_each_kernel(make):
  """All examples are the exact gradient; what is used is counted."""
  seed = tf.constant([1, 2])
  after = []
  for estimator in (None, Stratified(9, STRATA)):
    kernel = make(poisson_regression(), gradient_estimator=estimator)
    parts, results = kernel.one_step(
        state([3]), kernel.bootstrap_results(state([3])), seed=seed)
    after.append(parts)
    assert np.all(results.gradient_estimator_results.num_gradients == 18)
  tf.nest.map_structure(
      functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
      *after)


def test_kmeans_strata():
  """Clusters far from each other are found, and lower the variance."""
  rng = np.random.default_rng(0)
  centre = np.array([-5., 0., 7.])[rng.integers(0, 3, 60)]
  x = (centre + 0.1 * rng.normal(size=60)).astype(np.float32)
  strata = sgmcmc.gradients.kmeans_strata(x, 3, seed=0)
  assert len(set(zip(centre, strata))) == 3
  np.testing.assert_array_equal(
      strata, sgmcmc.gradients.kmeans_strata(tf.constant(x), 3, seed=0))
  posterior = sgmcmc.Posterior(
      lambda mu: -0.5 * mu**2,
      lambda mu, x: -0.5 * (x - mu[..., tf.newaxis])**2, x)
  variances = [
      float(estimator.variance(posterior, [tf.zeros([])])[0]) for estimator in (
          Stratified(6, strata), sgmcmc.gradients.Uniform(6))]
  assert variances[0] < 0.01 * variances[1]


def test_kmeans_strata_of_images_with_copies():
  """Axes are flattened; no stratum is empty."""
  images = np.zeros([6, 2, 2], np.float32)
  images[3:] = 1.
  with pytest.warns(UserWarning, match='distinct clusters'):
    strata = sgmcmc.gradients.kmeans_strata(images, 3, seed=0)
  assert set(strata) == {0, 1}
  assert Stratified(2, strata).allocation.tolist() == [1, 1]


def test_kmeans_strata_without_its_library(monkeypatch):
  monkeypatch.setitem(sys.modules, 'sklearn.cluster', None)
  with pytest.raises(ImportError, match='pip install scikit-learn'):
    sgmcmc.gradients.kmeans_strata(np.zeros([4, 2]), 2, seed=0)


def kernel(strata, batch_size=5):
  return sgmcmc.SGLD(
      poisson_regression(), 0.1,
      gradient_estimator=Stratified(batch_size, strata))


@pytest.mark.parametrize('make, error, message', [
    (lambda: Stratified(0, STRATA), ValueError, 'batch_size is 0'),
    (lambda: Stratified(2, STRATA), ValueError,
     'batch_size is 2, and there are 3 strata'),
    (lambda: Stratified(5, [0, 1, -1, 2]), ValueError, r'strata\[2\] is -1'),
    (lambda: Stratified(5, [0, 3, 1, 1]), ValueError, 'Stratum 2 is empty'),
    (lambda: Stratified(5, [0, 10**12]), ValueError, 'Stratum 1 is empty'),
    (lambda: Stratified(5, [0., 1.]), TypeError, 'float64'),
    (lambda: Stratified(5, [[0, 1]]), ValueError, r'shape \(1, 2\)'),
    (lambda: Stratified(5, []), ValueError, r'shape \(0,\)'),
    (lambda: kernel(STRATA[:8]), ValueError,
     'strata for 8 examples, and the posterior has 9'),
    (lambda: kernel(np.append(STRATA, 1)), ValueError,
     'strata for 10 examples, and the posterior has 9'),
    (lambda: kernel(STRATA, 10), ValueError, 'only 9 examples'),
    (lambda: sgmcmc.gradients.kmeans_strata(np.zeros([4, 2]), 5, seed=0),
     ValueError, 'at least as many examples'),
    (lambda: sgmcmc.gradients.kmeans_strata(np.zeros([4, 2]), 0, seed=0),
     ValueError, 'num_strata is 0'),
])
def test_refusals(make, error, message):
  with pytest.raises(error, match=message):
    make()
