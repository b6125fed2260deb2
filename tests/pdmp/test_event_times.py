"""The times of events: the integral of the rate up to each is exponential.

For a point process of rate lambda, the integrals of lambda between its points
are independent unit exponentials. On a Gaussian target the rate along a segment
is [a + b t]_+, whose integral is written out again here; its first points in
each chain are held to the law by the test of Kolmogorov and Smirnov.
"""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests import oracle
from tests.pdmp import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.pdmp import rate_bounds
from tfp_sgmcmc.pdmp import thinning

pdmp = sgmcmc.pdmp
NUM_CHAINS = 3000
NUM_POINTS = 3  # Of each clock in each chain.


def integral(a, b, tau):
  """int_0^tau [a + b s]_+ ds, for b >= 0."""
  start = np.clip(np.where(b > 0., -a / np.where(b > 0., b, 1.), 0.), 0., tau)
  start = np.where((b == 0.) & (a <= 0.), tau, start)
  return a * (tau - start) + b * (tau**2 - start**2) / 2.


def between_points(hazard, is_point):
  """Integrals between the first points of each clock: [clocks, points]."""
  total = np.cumsum(hazard, axis=0)
  integrals = []
  for clock in range(total.shape[1]):
    at = total[is_point[:, clock], clock]
    assert len(at) >= NUM_POINTS, 'The chain is too short.'
    integrals.append(np.diff(at[:NUM_POINTS], prepend=0.))
  return np.array(integrals)


def p_value(integrals):
  """Of all, and of the first points alone."""
  return min(
      2. * scipy.stats.kstest(sample, 'expon').pvalue
      for sample in (integrals.ravel(), integrals[:, 0]))


def path(kernel, num_events):
  """Starts, velocities, durations and events of segments, eagerly."""
  model, _ = models.gaussian()
  state = tf.constant(models.exact_draws(model, NUM_CHAINS))
  results = kernel.bootstrap_results(state, seed=[3, 4])
  segments = []
  for k in range(num_events):
    new, after = kernel.one_step(state, results, seed=[k, 5])
    velocity = results.velocity[0].numpy()
    segments.append((state.numpy(), velocity, after.duration.numpy(),
                     after.event.numpy(), after.velocity[0].numpy()))
    np.testing.assert_allclose(
        new, state + after.duration[:, np.newaxis] * velocity, rtol=1e-9,
        atol=1e-12)
    state, results = new, after
  return model, [np.stack(column) for column in zip(*segments)]


def bouncy_p_values(rate_bound=None, num_events=40, refresh_rate=1.):
  """Of bounces, and of refreshments."""
  model, log_prob = models.gaussian()
  kernel = sgmcmc.BouncyParticleSampler(
      log_prob, pdmp.GaussianBound(model.precision)
      if rate_bound is None else rate_bound, refresh_rate=refresh_rate)
  model, (theta, v, tau, event, _) = path(kernel, num_events)
  a = np.einsum('ski,ij,skj->sk', v, model.precision, theta - model.mean)
  b = np.einsum('ski,ij,skj->sk', v, model.precision, v)
  return (
      p_value(between_points(integral(a, b, tau), event == pdmp.Event.BOUNCE)),
      p_value(between_points(
          refresh_rate * tau, event == pdmp.Event.REFRESHMENT)))


def zig_zag_p_value(rate_bound=None, num_events=60):
  model, log_prob = models.gaussian()
  kernel = sgmcmc.ZigZagSampler(
      log_prob, pdmp.GaussianBound(model.precision)
      if rate_bound is None else rate_bound)
  model, (theta, v, tau, _, after) = path(kernel, num_events)
  a = v * ((theta - model.mean) @ model.precision)
  b = v * (v @ model.precision)
  # For b < 0 by symmetry in time: the rate at the end, falling backwards.
  tau = tau[..., np.newaxis]
  hazard = np.where(
      b >= 0., integral(a, np.maximum(b, 0.), tau),
      integral(a + b * tau, np.maximum(-b, 0.), tau))
  flips = v != after
  assert np.all(flips.sum(axis=-1) <= 1)
  return p_value(between_points(
      hazard.reshape([num_events, -1]), flips.reshape([num_events, -1])))


def with_horizon(start):
  """A constant on a short horizon."""
  model, _ = models.gaussian()
  rate = pdmp.GaussianBound(model.precision).directional(start)
  horizon = tf.fill(tf.shape(rate.intercept), tf.constant(0.3, tf.float64))
  return pdmp.AffineRate(
      tf.maximum(rate.intercept, 0.) + horizon * rate.slope, 0., horizon)


@pytest.mark.parametrize('rate_bound, num_events', [
    (None, 40), (pdmp.HessianBound(9.), 60), (with_horizon, 80)],
    ids=['gaussian', 'lipschitz', 'horizon'])
def test_bouncy_particle(rate_bound, num_events):
  bounces, refreshments = bouncy_p_values(rate_bound, num_events)
  assert bounces > oracle.FALSE_ALARM_RATE
  assert refreshments > oracle.FALSE_ALARM_RATE


@pytest.mark.parametrize('rate_bound, num_events', [
    (None, 60), (pdmp.HessianBound(9.), 120)], ids=['gaussian', 'lipschitz'])
def test_zig_zag(rate_bound, num_events):
  assert zig_zag_p_value(rate_bound, num_events) > oracle.FALSE_ALARM_RATE


def test_affine_time_inverts_the_integral():
  rng = np.random.default_rng(0)
  a, b = rng.normal(size=[2, 10_000])
  e = rng.exponential(size=10_000)
  e[:100], b[:100] = 0., np.abs(b[:100])
  t = rate_bounds.affine_time(*map(tf.constant, (a, b, e))).numpy()
  ends = (b < 0.) & ((a <= 0.) | (a**2 < -2. * b * e))
  np.testing.assert_array_equal(np.isinf(t), ends)
  a, b, e, t = (x[~ends] for x in (a, b, e, t))
  expected = np.where(
      b >= 0., integral(a, np.maximum(b, 0.), t),
      integral(a + b * t, np.maximum(-b, 0.), t))
  np.testing.assert_allclose(expected, e, rtol=1e-8, atol=1e-12)


def _constant_rate(intercept, slope, exponential):
  return exponential / tf.maximum(intercept, 0.2)


def _without_start(intercept, slope, exponential):
  return bounds_affine_time(tf.maximum(intercept, 0.), slope, exponential)


def _ten_percent_late(intercept, slope, exponential):
  return 1.1 * bounds_affine_time(intercept, slope, exponential)


bounds_affine_time = rate_bounds.affine_time


@pytest.mark.parametrize('wrong', [
    _constant_rate, _without_start, _ten_percent_late])
def test_planted_errors_in_times_are_seen(wrong, monkeypatch):
  monkeypatch.setattr(thinning.rate_bounds, 'affine_time', wrong)
  # A violated bound would stop the chain before the times are looked at.
  monkeypatch.setattr(thinning, 'rate_ratios', lambda rates, upper, slack: (
      tf.ones_like(rates)))
  assert bouncy_p_values()[0] < oracle.FALSE_ALARM_RATE


@pytest.mark.parametrize('wrong', [
    tf.ones_like, tf.square], ids=['all', 'squared'])
def test_planted_errors_in_acceptance_are_seen(wrong, monkeypatch):
  right = thinning.rate_ratios
  monkeypatch.setattr(
      thinning, 'rate_ratios', lambda *arguments: wrong(right(*arguments)))
  assert bouncy_p_values(
      pdmp.HessianBound(9.), 60)[0] < oracle.FALSE_ALARM_RATE
