"""The local regression and its rate: against NumPy, and exact arrival times."""

import functools

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.pdmp import regression

FALSE_ALARM_RATE = 1e-6


def observations(num=40, start=0., spacing=0.1, seed=0):
  rng = np.random.default_rng(seed)
  time = start + np.cumsum(rng.exponential(spacing, num))
  variance = rng.uniform(0.5, 4., num)
  value = 3. * (time - start) - 2. + rng.normal(size=num) * np.sqrt(variance)
  return time, value, variance


def streamed(time, value, variance, dtype, decay=1.):
  """The statistics, one observation after the other."""
  time, value, variance = (
      tf.constant(x, dtype) for x in (time, value, variance))
  statistics = regression.restart(value[0], variance[0])._replace(time=time[0])
  for t, g, c2 in zip(time[1:], value[1:], variance[1:]):
    statistics = regression.observe(statistics, t, g, c2, decay)
  return statistics


def normal_equations(time, value, variance, mean, prior_variance, decay=1.,
                     dtype=np.float64):
  """Mean and covariance of (beta_0, beta_1), as equation 9 has them."""
  age = np.arange(len(time))[::-1]
  weight = (decay**age / variance).astype(dtype)
  x = np.stack([np.ones_like(time), time], axis=1).astype(dtype)
  precision = (x * weight[:, np.newaxis]).T @ x
  precision[1, 1] += 1. / prior_variance
  right = (x * weight[:, np.newaxis]).T @ value.astype(dtype)
  right[1] += mean / prior_variance
  covariance = np.linalg.inv(precision)
  return covariance @ right, covariance


def error_of_prediction(line, time, mean, covariance):
  """Of the value and of rho predicted at `time`, relative to rho."""
  x = np.array([1., time])
  rho = np.sqrt(x @ covariance @ x)
  late = time - np.float64(line.time)
  value = float(line.value) + float(line.slope) * late
  ours = np.sqrt(
      float(line.value_variance) + late**2 * float(line.slope_variance))
  return max(abs(value - x @ mean), abs(ours - rho)) / rho


@pytest.mark.parametrize('decay', [1., 0.8])
@pytest.mark.parametrize('num', [1, 2, 40])
def test_is_the_normal_equations(num, decay):
  data = observations(num)
  prior = regression.SlopePrior(
      tf.constant(1., tf.float64), tf.constant(0.5, tf.float64))
  line = regression.fit(streamed(*data, tf.float64, decay), prior)
  mean, covariance = normal_equations(*data, 1., 0.5, decay)
  for time in (data[0][-1], data[0][-1] + 10.):
    assert error_of_prediction(line, time, mean, covariance) < 1e-10
    band = regression.band(
        line, tf.constant(time, tf.float64), tf.constant(2., tf.float64), 3.)
    x = np.array([1., time])
    np.testing.assert_allclose(
        band, x @ mean + 3. * np.sqrt(x @ covariance @ x + 2.), rtol=1e-10)


def test_float32_does_not_cancel():
  """Far from time 0, where the normal equations of float32 are no use."""
  data = observations(start=1000., spacing=0.01)
  prior = regression.SlopePrior(tf.constant(1.), tf.constant(9.))
  line = regression.fit(streamed(*data, tf.float32), prior)
  # In the times as float32 has them.
  exact = [x.astype(np.float32).astype(np.float64) for x in data]
  mean, covariance = normal_equations(*exact, 1., 9.)
  assert error_of_prediction(line, exact[0][-1], mean, covariance) < 0.01
  uncentred, of_float32 = normal_equations(*data, 1., 9., dtype=np.float32)
  x = np.array([1., exact[0][-1]])
  assert not abs(x @ uncentred - x @ mean) < 0.01 * np.sqrt(
      x @ covariance @ x) or not np.all(np.diag(of_float32) > 0.)


def lines(num=200, seed=0):
  """Lines, starts, horizons and variances of noise of all sorts, float64."""
  rng = np.random.default_rng(seed)
  draw = lambda low, high: tf.constant(
      np.exp(rng.uniform(np.log(low), np.log(high), num)))
  normal = lambda scale: tf.constant(scale * rng.normal(size=num))
  line = regression.Line(
      normal(1.), normal(5.), draw(1e-3, 10.), normal(5.), draw(1e-3, 10.))
  return line, line.time + draw(1e-3, 3.), draw(0.1, 30.), draw(1e-6, 10.)


@pytest.mark.parametrize('confidence', [1., 3., 8.])
def test_rate_is_above_the_band_and_near_it(confidence):
  line, start, longest, noise = lines()
  rate = regression.band_rate(line, start, longest, noise, confidence)
  times, values = rate.times.numpy(), rate.values.numpy()
  assert np.all(np.diff(times, axis=-1) >= 0.)
  np.testing.assert_allclose(times[:, -1], longest)
  dense = np.linspace(0., times[:, -1], 2000, axis=-1)
  band = regression.band(
      line, start[:, np.newaxis] + dense, noise, confidence).numpy()
  gamma = np.stack([np.interp(*args) for args in zip(dense, times, values)])
  scale = np.abs(band).max(axis=1, keepdims=True)
  assert np.all(gamma >= band - 1e-9 * scale)
  # Up to the time that one proposal in 20 passes, interpolation costs few more.
  mass = dense[:, 1:2] * np.cumsum(np.maximum(gamma, 0.), axis=1)
  excess = dense[:, 1] * np.sum(np.where(
      mass < 3., np.maximum(gamma, 0.) - np.maximum(band, 0.), 0.), axis=1)
  assert np.median(excess) < 0.05


def test_first_arrival_inverts_the_integral():
  line, start, longest, noise = lines()
  rate = regression.band_rate(line, start, longest, noise, 3.)
  level = tf.constant(np.random.default_rng(1).exponential(size=200))
  time, value, arrived = (
      x.numpy() for x in regression.first_arrival(rate, level))
  for k in range(200):
    dense = np.linspace(0., time[k], 20_001)
    gamma = np.maximum(
        np.interp(dense, rate.times[k], rate.values[k]), 0.)
    integral = np.trapezoid(gamma, dense)
    if arrived[k]:
      assert abs(integral - level[k]) < 1e-3
    else:
      assert integral < level[k] + 1e-3 and time[k] == longest[k]
    assert abs(gamma[-1] - value[k]) < 1e-6 * (1. + gamma.max())
  assert 20 < np.sum(arrived) < 180


@functools.cache
def thinned_times(dtype=tf.float32, num=10_000):
  """First arrivals of [G]_+ for G(t) = 4 t - 2, by thinning under the band.

  Each starts from one observation of G, and takes in what it meets. Of two
  errors that are planted where a number is 1, compiled once for both.
  """
  slope, intercept, horizon = 4., -2., 0.7
  noise = tf.fill([num], tf.constant(0.2, dtype))
  prior = regression.SlopePrior(
      tf.fill([num], tf.constant(3., dtype)),
      tf.fill([num], tf.constant(4., dtype)))
  longest = tf.fill([num], tf.constant(horizon, dtype))

  @functools.partial(tf.function, jit_compile=True)
  def run(is_inversion_linear, is_horizon_an_arrival):
    def body(k, time, done, statistics):
      seed = sgmcmc.random.fold_in([1, 2], k)
      line = regression.fit(statistics, prior)
      rate = regression.band_rate(line, time, longest, noise, 3.)
      u = sgmcmc.random.uniform([2, num], seed, dtype)
      level = -tf.math.log1p(-u[0])
      passed, bound, arrived = regression.first_arrival(rate, level)
      passed = tf.where(
          is_inversion_linear > 0., tf.minimum(
              level / tf.maximum(rate.values[:, 0], 1e-3), longest), passed)
      value = slope * (time + passed) + intercept
      is_arrival = (u[1] * bound < value) & (
          arrived | (is_horizon_an_arrival > 0.))
      observed = regression.observe(statistics, time + passed, value, noise)
      return (k + 1, tf.where(done, time, time + passed), done | is_arrival,
              tf.nest.map_structure(
                  lambda a, b: tf.where(done, a, b), statistics, observed))

    start = tf.zeros([num], dtype)
    return tf.while_loop(
        lambda k, time, done, _: ~tf.reduce_all(done) & (k < 500), body,
        (tf.constant(0), start, start > 0.,
         regression.restart(start + intercept, noise)))[1]

  return run


def p_value(dtype=tf.float32, errors=(0., 0.)):
  """Of the integral of [4 t - 2]_+ up to the arrivals, under Exp(1)."""
  times = thinned_times(dtype)(*map(tf.constant, errors)).numpy()
  return scipy.stats.kstest(
      2. * np.maximum(times.astype(np.float64) - 0.5, 0.)**2, 'expon').pvalue


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
def test_thinning_gives_the_exact_first_arrival(dtype):
  assert p_value(dtype) > FALSE_ALARM_RATE


@pytest.mark.parametrize('errors', [
    pytest.param((1., 0.), marks=pytest.mark.slow, id='linear inversion'),
    pytest.param((0., 1.), id='horizon is an arrival')])
def test_the_arrivals_see(errors):
  assert p_value(errors=errors) < FALSE_ALARM_RATE


def test_the_slopes_prior_is_learned():
  """From fits of 6 noisy points on lines of slope N(5, 4)."""
  rng = np.random.default_rng(3)
  chains, num_fits = 200, 800
  times = np.sort(rng.uniform(0., 2., [num_fits, 6, chains]), axis=1)
  times -= times[:, :1]
  values = rng.normal(5., 2., [num_fits, 1, chains]) * times + rng.normal(
      size=times.shape)

  @tf.function(jit_compile=True)
  def run(times, values):
    def one(prior, data):
      times, values = data
      statistics = regression.restart(values[0], tf.ones_like(values[0]))
      for k in range(1, 6):
        statistics = regression.observe(
            statistics, times[k], values[k], tf.ones_like(values[k]))
      return regression.learn_slope(
          prior, regression.fit(statistics, prior), 0.02)

    fill = lambda value: tf.fill([chains], tf.constant(value, tf.float64))
    return tf.scan(
        one, (times, values), regression.SlopePrior(fill(50.), fill(2500.)))

  learned = run(times, values)
  late = [np.mean(leaf[num_fits // 2:]) for leaf in learned]
  assert abs(late[0] - 5.) < 0.1
  assert abs(late[1] - 4.) < 0.4
