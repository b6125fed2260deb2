"""ReplicaExchangeSGLD: a swap leaves the law alone; the law of two modes.

A test of a law fails by chance once in a million.
"""

import functools

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import tensorflow as tf

from tests import oracle
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.mcmc import replica_exchange

gradients = sgmcmc.gradients
Z = scipy.stats.norm.isf(oracle.FALSE_ALARM_RATE / 2.)
NUM_CHAINS = 40_000


def normal_mean(num_examples):
  """The mean of normal data of unit variance, with the prior N(0, 1)."""
  data = np.random.default_rng(0).normal(size=num_examples)
  posterior = sgmcmc.Posterior(
      lambda mu: -tf.square(mu) / 2.,
      lambda mu, x: -tf.square(x - mu[..., tf.newaxis]) / 2., data)
  return posterior, data.sum() / (1. + num_examples), 1. + num_examples


def pairs_after_a_swap(batch_size, ratio, temperature=0.5, **arguments):
  """Pairs from their law, `[chains, 2]`, after one attempt to swap.

  Their mean and covariance before it, and the share of swaps.
  """
  posterior, mean, precision = normal_mean(600)
  kernel = sgmcmc.ReplicaExchangeSGLD(
      posterior, 1e-4, (1., ratio), swap_every=2, temperature=temperature,
      swap_batch_size=batch_size,
      gradient_estimator=gradients.Uniform(1), **arguments)
  scale = np.sqrt(temperature * np.array([1., ratio]) / precision)
  cold, hot = (mean + scale[:, np.newaxis] * np.random.default_rng(1).normal(
      size=[2, NUM_CHAINS]))
  cold, hot = tf.constant(cold), tf.constant(hot)
  results = kernel.bootstrap_results(cold)._replace(
      step=tf.constant(1, tf.int64), replicas=[[hot]])
  state, results = kernel.one_step(cold, results, seed=[1, 2])
  pairs = np.stack([state, results.replicas[0][0]], axis=1)
  moved = np.array(results.num_swaps[:, 0], bool)
  np.testing.assert_array_equal(  # A swap, and no step.
      pairs, np.where(moved[:, np.newaxis], np.stack([hot, cold], axis=1),
                      np.stack([cold, hot], axis=1)))
  assert results.num_attempts.numpy().tolist() == [1]
  return pairs, np.full(2, mean), np.diag(scale**2), moved.mean()


def p_value(*arguments, **keywords):
  pairs, mean, covariance, _ = pairs_after_a_swap(*arguments, **keywords)
  return oracle.moments_p_value(pairs, mean, covariance)


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('batch_size, ratio', [
    (600, 3.),  # All rows: as parallel tempering.
    (300, 3.), (100, 1.5), (30, 1.2)])
def test_a_swap_leaves_the_law_alone(batch_size, ratio):
  """Exactly so with normal noise, which these minibatches about have."""
  pairs, *law, share = pairs_after_a_swap(batch_size, ratio)
  assert 0.05 < share < 0.95
  assert oracle.moments_p_value(pairs, *law) > oracle.FALSE_ALARM_RATE


def test_without_the_correction_the_draws_are_too_hot():
  assert p_value(300, 3., correction_factor=np.inf) < oracle.FALSE_ALARM_RATE
  assert p_value(100, 1.5, correction_factor=np.inf) < oracle.FALSE_ALARM_RATE


@pytest.mark.slow
@pytest.mark.parametrize('error', [
    lambda b, d, v, n, f: (2. * b, d, v, n, f),
    lambda b, d, v, n, f: (-b, d, v, n, f),
    lambda b, d, v, n, f: (b, d, 0.25 * v, n, f),
    lambda b, d, v, n, f: (b, 0. * d, v, n, f),
], ids=['beta', 'sign', 'variance', 'always'])
def test_planted_errors_of_a_swap_are_seen(error, monkeypatch):
  right = replica_exchange.log_probability
  monkeypatch.setattr(
      replica_exchange, 'log_probability',
      lambda *arguments: right(*error(*arguments)))
  assert p_value(300, 3.) < oracle.FALSE_ALARM_RATE


def test_difference_and_its_variance():
  """D is unbiased, and s^2 has the mean of its squared error."""
  posterior, _, _ = normal_mean(50)
  kernel = sgmcmc.ReplicaExchangeSGLD(
      posterior, 1e-4, (1., 2.), swap_batch_size=10,
      gradient_estimator=gradients.Uniform(1))
  number = 20_000
  one, other = (tf.fill([number], tf.constant(x, tf.float64))
                for x in (0.1, 0.4))
  values = kernel._densities(
      [[one], [other]], tf.constant([number]), tf.constant([1, 2]))
  difference, variance, n = kernel._difference(*values)
  exact = posterior(other) - posterior(one)
  error = np.array(difference - exact)
  assert n == 10.
  assert abs(error.mean()) < Z * error.std() / np.sqrt(number)
  variance = variance.numpy()
  spread = error**2 - variance
  assert abs(spread.mean()) < Z * spread.std() / np.sqrt(number)
  assert abs(np.mean(error**2 - 1.25 * variance)) > Z * spread.std() / np.sqrt(
      number)  # Without 1 - n / N.


# Two modes at +-1, the right one heavier; a barrier of some 5.
DATA = np.random.default_rng(3).normal(1., 2., size=40)
DATA = np.float32(DATA + 1. - DATA.mean())


def log_prior(theta):
  return -tf.square(theta - 0.1) * 2.


def two_modes():
  return sgmcmc.Posterior(
      log_prior,
      lambda theta, x: -tf.square(x - tf.square(theta)[..., tf.newaxis]) / 8.,
      DATA)


def moments_by_quadrature():
  """Of theta > 0, theta and theta^2."""
  density = lambda t: np.exp(
      -2. * (t - 0.1)**2 - np.sum((DATA - t**2)**2 - (DATA - 1.)**2) / 8.)
  mass = scipy.integrate.quad(density, -3., 3., points=[-1., 0., 1.])[0]
  return [
      scipy.integrate.quad(
          lambda t, f=f: f(t) * density(t), -3., 3., points=[-1., 0., 1.])[0]
      / mass for f in (lambda t: t > 0., lambda t: t, lambda t: t**2)]


@functools.cache
def moments_of_chains(num_steps=2000, **arguments):
  """All start in the left mode."""
  kernel = sgmcmc.ReplicaExchangeSGLD(two_modes(), **{**dict(
      step_size=0.002, temperature_ratios=(1., 2., 4.), swap_every=5,
      swap_batch_size=20), **arguments})
  state, _ = oracle.run_chains(
      kernel, tf.fill([4000], tf.constant(-1., tf.float32)), num_steps)
  return np.mean([state > 0., state, np.square(state)], axis=1), np.std(
      [state > 0., state, np.square(state)], axis=1)


def z_scores(**arguments):
  """0.01 is for the step and the noise of the gradient."""
  mean, sd = moments_of_chains(**arguments)
  error = np.abs(mean - moments_by_quadrature())
  return np.maximum(error - 0.01, 0.) / (sd / np.sqrt(4000))


@pytest.mark.slow
def test_law_of_two_modes():
  """By the exact gradient; swaps by half of the rows."""
  assert np.all(z_scores() < Z)


@pytest.mark.weekly
@pytest.mark.slow
def test_law_of_two_modes_by_minibatches():
  # At half the step size 2,000 steps do not forget the left mode: 0.61 of 0.66.
  assert np.all(z_scores(
      num_steps=6000, step_size=0.001,
      gradient_estimator=gradients.Uniform(20)) < Z)


@pytest.mark.weekly_after(1)
@pytest.mark.slow
@pytest.mark.parametrize('error', [
    dict(swap_every=100_000),
    dict(correction_factor=1e-6),  # No swaps either.
], ids=str)
def test_planted_errors_of_two_modes_are_seen(error):
  assert np.any(z_scores(**error) > Z)


@pytest.mark.slow
def test_each_replica_has_its_temperature():
  """Without swaps, on N(0, 1): variances T q / (1 - h / 2)."""
  kernel = sgmcmc.ReplicaExchangeSGLD(
      lambda x, y: -tf.square(x) / 2. - tf.square(y) / 2., 0.2, (1., 3., 10.),
      swap_every=10_000, temperature=2.)
  (x, y), results = oracle.run_chains(
      kernel, [tf.zeros([NUM_CHAINS], tf.float64)] * 2, 60)
  for q, parts in zip((1., 3., 10.), [[x, y], *results.replicas]):
    values = oracle.join_parts(parts, NUM_CHAINS)
    assert oracle.moments_p_value(
        values, np.zeros(2), 2. * q / 0.9 * np.eye(2)
    ) > oracle.FALSE_ALARM_RATE


def test_pairs_take_turns():
  kernel = sgmcmc.ReplicaExchangeSGLD(
      lambda x: -tf.square(x) / 2., 0.1, (1., 2., 4., 8.), swap_every=2)
  state = tf.zeros([5])
  results, attempts = kernel.bootstrap_results(state), []
  for k in range(9):
    state, results = kernel.one_step(state, results, seed=[0, k])
    attempts.append(results.num_attempts.numpy().tolist())
  assert attempts[-1] == [2, 2, 2]
  assert attempts[1] == [0, 1, 0] and attempts[3] == [1, 1, 1]


@pytest.mark.slow
def test_a_hot_chain_that_is_lost_is_an_error():
  kernel = sgmcmc.ReplicaExchangeSGLD(
      lambda x: tf.sqrt(40. - x**2), 0.01, (1., 1000.))
  with pytest.raises(sgmcmc.NonFiniteError):
    sgmcmc.sample(kernel, 500, tf.zeros([20]), progress_bar=False, seed=1)


@pytest.mark.parametrize('arguments, error, message', [
    (dict(temperature_ratios=(1.,)), ValueError, 'two numbers or more'),
    (dict(temperature_ratios=(2., 4.)), ValueError, 'rise from 1'),
    (dict(temperature_ratios=(1., 3., 2.)), ValueError, 'rise from 1'),
    (dict(temperature_ratios=(1., np.nan)), ValueError, 'rise from 1'),
    (dict(swap_every=1), ValueError, 'swap_every is 1'),
    (dict(swap_every=2.5), TypeError, 'swap_every is 2.5'),
    (dict(swap_batch_size=1), ValueError, 'swap_batch_size is 1'),
    (dict(swap_batch_size=99), ValueError, 'holds 40 rows'),
    (dict(gradient_estimator=gradients.Uniform(1)), ValueError,
     'Pass swap_batch_size'),
    (dict(correction_factor=0.), ValueError, 'correction_factor is 0'),
    (dict(temperature=0.), ValueError, 'temperature is 0'),
])
def test_refused_at_construction(arguments, error, message):
  with pytest.raises(error, match=message):
    sgmcmc.ReplicaExchangeSGLD(two_modes(), 0.01, **arguments)


def test_a_posterior_without_data_is_refused():
  posterior = sgmcmc.Posterior(
      log_prior, lambda theta, x: x * theta[..., tf.newaxis], num_examples=10)
  kernel = sgmcmc.ReplicaExchangeSGLD(
      posterior, 0.01, gradient_estimator=gradients.Stream(
          tf.data.Dataset.from_tensor_slices(DATA.astype(np.float32)).batch(4)))
  with pytest.raises(ValueError, match='pass data'):
    kernel.bootstrap_results(tf.zeros([2]))
