"""The local learning coefficient of models whose value is known.

A test fails by chance about once in a million: the standard errors are
estimates themselves, from 64 chains.
"""

import functools
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import tensorflow as tf

from tests import oracle
import tfp_sgmcmc as sgmcmc

diagnostics = sgmcmc.diagnostics
Z = scipy.stats.t.isf(oracle.FALSE_ALARM_RATE / 2., 63)


def coefficient(posterior, center, gamma, step_size, friction, num_draws=150,
                thinning=10, temperature=None, kernel=sgmcmc.SGHMC):
  """By BAOAB, whose positions have no bias on a Gaussian."""
  n = posterior.num_examples
  kernel = kernel(
      diagnostics.localized(posterior, center, gamma), step_size, friction,
      integrator='baoab',
      temperature=math.log(n) if temperature is None else temperature)
  draws = sgmcmc.sample(
      kernel, num_draws, tf.tile(
          tf.constant(center)[tf.newaxis], [64, 1]), num_burnin_steps=400,
      num_steps_between_results=thinning - 1, seed=1, progress_bar=False)
  return diagnostics.local_learning_coefficient(draws, posterior, center)


def z_score(found, wanted, allowed=0.):
  error = max(abs(found.value - wanted) - allowed, 0.)
  # By chains, since their errors are independent for sure.
  return error / (np.std(found.by_chain, ddof=1) / 8.)


@functools.cache
def regular():
  """A Gaussian likelihood of three coordinates, and its maximum."""
  model = oracle.GaussianModel(num_examples=40, dtype=np.float64)
  return model.posterior(), model.data.mean(axis=0), 40. * (
      model.likelihood_precision)


def of_regular(**arguments):
  posterior, center, _ = regular()
  return coefficient(
      posterior, center, 0.5, step_size=0.2, friction=1., **arguments)


def wanted_of_regular():
  """1/2 tr A (A + gamma)^-1 with A the precision times beta."""
  a = regular()[-1] / math.log(40.)
  return np.trace(np.linalg.solve(a + 0.5 * np.eye(3), a)) / 2.


@pytest.mark.slow
def test_a_regular_model():
  found = of_regular()
  assert z_score(found, wanted_of_regular()) < Z
  assert 0.5 < wanted_of_regular() < 1.5
  by_chain = np.std(found.by_chain, ddof=1) / 8.
  assert 0.6 < found.standard_error / by_chain < 1.7
  np.testing.assert_allclose(found.value, np.mean(found.by_chain))


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('error', [
    dict(temperature=1.), dict(temperature=1.2 * math.log(40.))])
def test_planted_another_temperature_is_seen(error):
  assert z_score(of_regular(**error), wanted_of_regular()) > Z


def test_planted_a_center_that_is_no_minimum_is_seen():
  posterior, center, _ = regular()
  found = coefficient(
      posterior, center + 0.5, 0.5, step_size=0.2, friction=1.)
  assert z_score(found, wanted_of_regular()) > Z


def product(n):
  """y ~ N(a b x, 1) with n a b = 0 at the maximum."""
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=[2, n])
  y -= x * (x @ y) / (x @ x)
  x *= np.sqrt(n / (x @ x))

  def log_likelihood(w, batch):
    x, y = batch
    a, b = tf.unstack(w[..., tf.newaxis], axis=-2)
    return -tf.square(y - a * b * x) / 2.

  return sgmcmc.Posterior(
      lambda w: -tf.reduce_sum(tf.square(w), axis=-1), log_likelihood, (x, y))


def product_by_quadrature(n, gamma):
  """lambda at n; b is integrated in closed form."""
  scale = n / math.log(n)  # n beta.

  def of_a(a, power):
    # Over b of exp(-(scale a^2 + gamma) b^2 / 2), times the energy.
    precision = scale * a**2 + gamma
    energy = scale * a**2 / precision / 2. if power else 1.
    return np.exp(-gamma * a**2 / 2.) / np.sqrt(precision) * energy

  # In log a, since the density is sharp at 0.
  top, mass = (
      scipy.integrate.quad(
          lambda u, p=p: np.exp(u) * of_a(np.exp(u), p), -40., 6., limit=500)[0]
      for p in (1, 0))
  return top / mass


@pytest.mark.slow
def test_a_singular_model():
  """w1 w2: lambda is 1/2, of multiplicity 2, where d / 2 is 1.

  At finite n the estimate is below it, as the quadrature says.
  """
  found = coefficient(
      product(500), np.zeros(2), 1., step_size=0.02, friction=2.,
      num_draws=300, thinning=30)
  wanted = product_by_quadrature(500, 1.)
  assert z_score(found, wanted, allowed=0.01) < Z
  assert 0.25 < wanted < 0.45 and z_score(found, 0.5) > Z
  # It goes up to 1/2 as (m - 1) / log(n beta) does, with m = 2.
  shortfall = [
      (0.5 - product_by_quadrature(n, 1.)) * math.log(n / math.log(n))
      for n in (1e6, 1e9, 1e12)]
  np.testing.assert_allclose(shortfall, 1., atol=0.15)


@pytest.mark.slow
def test_a_deep_linear_network():
  """2 -> 1 -> 2 with a map of rank 1: lambda is (2 + 2 - 1) / 2, not 4 / 2."""
  n, rng = 1000, np.random.default_rng(0)
  x = np.linalg.qr(rng.normal(size=[n, 2]))[0] * np.sqrt(n)
  y = x @ np.outer([1., 0.5], [0.8, -0.6]) + rng.normal(size=[n, 2])
  u, s, v = np.linalg.svd(x.T @ y / n)  # The best fit of rank 1.
  center = np.concatenate([u[:, 0], v[0]]) * np.sqrt(s[0])

  def log_likelihood(w, batch):
    x, y = batch
    hidden = tf.einsum('nd,...d->...n', x, w[..., :2])
    error = y - hidden[..., tf.newaxis] * w[..., tf.newaxis, 2:]
    return -tf.reduce_sum(tf.square(error), axis=-1) / 2.

  posterior = sgmcmc.Posterior(
      lambda w: -tf.reduce_sum(tf.square(w), axis=-1), log_likelihood, (x, y))
  found = coefficient(
      posterior, center, 1., step_size=0.01, friction=20., num_draws=100)
  assert z_score(found, 1.5, allowed=0.03) < Z
  assert z_score(found, 2., allowed=0.03) > Z


@pytest.mark.slow
def test_draws_of_parts_on_many_rows_and_with_weights():
  """The same number by hand; more rows than a chunk has."""
  n = 2500
  data = np.random.default_rng(0).normal(size=n)
  posterior = sgmcmc.Posterior(
      lambda a, b: -tf.reduce_sum(tf.square(a), -1) - tf.square(b),
      lambda a, b, x: -tf.square(
          x - tf.reduce_sum(a, axis=-1)[..., tf.newaxis]
          - b[..., tf.newaxis]) / 2., data)
  center = [np.array([0.1, -0.1]), np.array(0.)]
  kernel = sgmcmc.AdaptiveTime(sgmcmc.SGLD(
      diagnostics.localized(posterior, center, 1.), 1e-4,
      temperature=math.log(n)))
  draws = sgmcmc.sample(
      kernel, 20, [tf.zeros([4, 2], tf.float64), tf.zeros([4], tf.float64)],
      seed=1, progress_bar=False)
  found = diagnostics.local_learning_coefficient(draws, posterior, center)
  a, b = (part.numpy() for part in draws.resampled().states)
  mean = np.sum(a, axis=-1) + b
  values = -np.sum((data - mean[..., np.newaxis])**2, axis=-1) / 2.
  by_hand = (-np.sum(data**2) / 2. - values) / math.log(n)
  np.testing.assert_allclose(found.by_chain, by_hand.mean(axis=0), rtol=1e-6)


def test_refusals():
  posterior, center, _ = regular()
  with pytest.raises(TypeError, match='result is of type int'):
    diagnostics.local_learning_coefficient(3, posterior, center)
  with pytest.raises(TypeError, match='Posterior is needed'):
    diagnostics.localized(lambda w: w, center, 1.)
  with pytest.raises(ValueError, match='strength is 0'):
    diagnostics.localized(posterior, center, 0.)
  draws = sgmcmc.sample(
      sgmcmc.SGLD(posterior, 0.01), 12, tf.zeros([2, 3], tf.float64), seed=1,
      progress_bar=False)
  with pytest.raises(ValueError, match='state of one chain'):
    diagnostics.local_learning_coefficient(draws, posterior, np.zeros([2, 3]))
