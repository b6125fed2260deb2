"""The times of events: the integral of the rate up to each is exponential.

For a point process of rate lambda, the integrals of lambda between its points
are independent unit exponentials. On a Gaussian target the rate along a segment
is [a + b t]_+, whose integral is written out again here; its first points in
each chain are held to the law by the test of Kolmogorov and Smirnov.
"""

import functools

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


def with_horizon(start):
  """A constant on a short horizon."""
  model, _ = models.gaussian()
  rate = pdmp.GaussianBound(model.precision).directional(start)
  horizon = tf.fill(tf.shape(rate.intercept), tf.constant(0.3, tf.float64))
  return pdmp.AffineRate(
      tf.maximum(rate.intercept, 0.) + horizon * rate.slope, 0., horizon)


BOUNDS = {
    'gaussian': pdmp.GaussianBound(oracle.GaussianModel().precision),
    'lipschitz': pdmp.HessianBound(9.),
    'horizon': with_horizon}
REFRESH_RATE = {
    sgmcmc.BouncyParticleSampler: 1., sgmcmc.ZigZagSampler: 0.}

# Errors, each planted as a number that a right kernel has as well, so that they
# are arguments of one program: how late a proposal comes, whether its time is
# that of another rate, and the power of the probability of acceptance. A
# violated bound would stop the chain before the times are looked at, unless it
# goes unseen.
RIGHT = dict(
    late=1., is_rate_constant=0., is_start_cut_off=0., power=1.,
    is_all_accepted=0.)


def plant(patch, numbers):
  """Puts the numbers, by name in a dict, where the kernels compute."""
  affine_time, rate_ratios = rate_bounds.affine_time, thinning.rate_ratios

  def with_times(intercept, slope, exponential):
    start = tf.where(
        numbers['is_start_cut_off'] > 0., tf.maximum(intercept, 0.), intercept)
    return numbers['late'] * tf.where(
        numbers['is_rate_constant'] > 0.,
        exponential / tf.maximum(intercept, 0.2),
        affine_time(start, slope, exponential))

  def with_ratios(rates, upper, slack):
    return tf.where(
        numbers['is_all_accepted'] > 0., tf.ones_like(rates),
        rate_ratios(rates, upper, slack)**numbers['power'])

  patch.setattr(thinning.rate_bounds, 'affine_time', with_times)
  patch.setattr(thinning, 'rate_ratios', with_ratios)


@functools.cache
def program(kernel_class, bound):
  """A first state with its results, and a step that is traced once."""
  model, log_prob = models.gaussian()
  kernel = kernel_class(
      log_prob, BOUNDS[bound], refresh_rate=REFRESH_RATE[kernel_class])
  state = tf.constant(models.exact_draws(model, NUM_CHAINS))

  def one_step(state, results, seed, numbers):
    with pytest.MonkeyPatch.context() as patch:
      plant(patch, numbers)
      return kernel.one_step(state, results, seed=seed)

  return (state, kernel.bootstrap_results(state, seed=[3, 4]),
          tf.function(one_step, autograph=False))


def path(kernel_class, bound, num_events, errors):
  """Starts, velocities, durations and events of segments."""
  model, _ = models.gaussian()
  state, results, one_step = program(kernel_class, bound)
  numbers = {
      name: tf.constant(number, tf.float64)
      for name, number in {**RIGHT, **errors}.items()}
  segments = []
  for k in range(num_events):
    new, after = one_step(state, results, tf.constant([k, 5]), numbers)
    velocity = results.velocity[0].numpy()
    segments.append((state.numpy(), velocity, after.duration.numpy(),
                     after.event.numpy(), after.velocity[0].numpy()))
    np.testing.assert_allclose(
        new, state + after.duration[:, np.newaxis] * velocity, rtol=1e-9,
        atol=1e-12)
    state, results = new, after
  return model, [np.stack(column) for column in zip(*segments)]


def bouncy_p_values(bound='gaussian', num_events=40, **errors):
  """Of bounces, and of refreshments."""
  kernel_class = sgmcmc.BouncyParticleSampler
  model, (theta, v, tau, event, _) = path(
      kernel_class, bound, num_events, errors)
  a = np.einsum('ski,ij,skj->sk', v, model.precision, theta - model.mean)
  b = np.einsum('ski,ij,skj->sk', v, model.precision, v)
  return (
      p_value(between_points(integral(a, b, tau), event == pdmp.Event.BOUNCE)),
      p_value(between_points(
          REFRESH_RATE[kernel_class] * tau, event == pdmp.Event.REFRESHMENT)))


def zig_zag_p_value(bound, num_events):
  model, (theta, v, tau, _, after) = path(
      sgmcmc.ZigZagSampler, bound, num_events, {})
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


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('bound, num_events', [
    ('gaussian', 40), ('lipschitz', 60), ('horizon', 80)])
def test_bouncy_particle(bound, num_events):
  bounces, refreshments = bouncy_p_values(bound, num_events)
  assert bounces > oracle.FALSE_ALARM_RATE
  assert refreshments > oracle.FALSE_ALARM_RATE


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('bound, num_events', [
    ('gaussian', 60), ('lipschitz', 120)])
def test_zig_zag(bound, num_events):
  assert zig_zag_p_value(bound, num_events) > oracle.FALSE_ALARM_RATE


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


@pytest.mark.parametrize('error', [
    dict(is_rate_constant=1.), dict(is_start_cut_off=1.), dict(late=1.1)],
    ids=str)
def test_planted_errors_in_times_are_seen(error):
  assert bouncy_p_values(
      is_all_accepted=1., **error)[0] < oracle.FALSE_ALARM_RATE


@pytest.mark.parametrize('error', [
    dict(is_all_accepted=1.), dict(power=2.)], ids=str)
def test_planted_errors_in_acceptance_are_seen(error):
  assert bouncy_p_values(
      'lipschitz', 60, **error)[0] < oracle.FALSE_ALARM_RATE
