"""Zig-zag and bouncy particles that find their bounds: their law.

Chains start at independent draws, by quadrature or weights, and move on; their
moments are held to those of the density, which fails by chance once in a
million. Bounds of half the size break the law and are counted.
"""

import functools

import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf

from tests import families
from tests import oracle
from tests.pdmp import test_logistic
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.pdmp import grid_bounds

pdmp = sgmcmc.pdmp
NUM_CHAINS = 20_000
KERNELS = {'zig-zag': sgmcmc.ZigZagSampler,
           'bouncy': sgmcmc.BouncyParticleSampler}


def banana(z):
  """A log density on the plane, of two pieces of a curve."""
  x, y = z[..., 0], z[..., 1]
  return -x**4 / 4. - tf.square(y - tf.square(x) / 2.) / 2.


@functools.cache
def banana_law():
  """Moments of the plane by quadrature, and draws from its cells."""
  grid = np.linspace(-6., 6., 1201)
  points = np.stack(
      np.meshgrid(grid, grid, indexing='ij'), axis=-1).reshape([-1, 2])
  weights = np.exp(banana(tf.constant(points)))
  weights /= weights.sum()
  rng = np.random.default_rng(0)
  draws = points[rng.choice(len(weights), NUM_CHAINS, p=weights)]
  return weights @ moments(points), draws + rng.uniform(
      -0.005, 0.005, draws.shape)


def moments(z):
  x, y = np.asarray(z, np.float64).T
  return np.stack(
      [x**k * y**j for k in range(5) for j in range(5 - k) if k + j], axis=1)


def hotelling(features, truth):
  difference = features.mean(axis=0) - truth
  return scipy.stats.chi2.sf(
      len(features) * difference @ np.linalg.solve(
          np.cov(features, rowvar=False), difference), len(difference))


def violation_share(results):
  grid = results.inner_results.grid
  return int(tf.reduce_sum(grid.num_violations)) / int(
      tf.reduce_sum(grid.num_proposals))


def run(kernel, start, time):
  state, results = oracle.run_chains(
      pdmp.UniformTime(kernel, time), start, 1, jit_compile=False)
  return state, results


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('name', KERNELS)
def test_law_on_the_plane(name):
  truth, draws = banana_law()
  state, results = run(
      KERNELS[name](banana), tf.constant(draws, tf.float32), 2.)
  assert np.mean(np.abs(state - draws).max(axis=1) > 0.1) > 0.9
  assert hotelling(moments(state), truth) > oracle.FALSE_ALARM_RATE
  assert violation_share(results) < 2e-3


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('name', ['zig-zag', 'bouncy'])
def test_bounds_of_half_the_size_are_seen_and_counted(name, monkeypatch):
  bound_cells = grid_bounds.bound_cells
  monkeypatch.setattr(
      grid_bounds, 'bound_cells', lambda *arguments: (
          0.5 * bound_cells(*arguments)[0], bound_cells(*arguments)[1]))
  truth, draws = banana_law()
  state, results = run(
      KERNELS[name](banana), tf.constant(draws, tf.float32), 2.)
  assert hotelling(moments(state), truth) < oracle.FALSE_ALARM_RATE
  assert violation_share(results) > 0.5
  finding = results.inner_results.finding()
  assert not finding.is_fine and 'give a rate_bound' in finding.advice


def test_law_next_to_a_wall():
  """A gamma law: the log density is no number below 0, where grids end."""
  rng = np.random.default_rng(0)
  start = rng.gamma(3., size=NUM_CHAINS)
  target = lambda x: 2. * tf.math.log(x) - x
  state, results = run(
      sgmcmc.ZigZagSampler(target), tf.constant(start, tf.float32), 4.)
  x = state.numpy().astype(np.float64)
  assert np.all(x > 0.)
  features = np.stack([np.log(x), x, x**2], axis=1)
  truth = [scipy.special.digamma(3.), 3., 12.]
  assert hotelling(features, truth) > oracle.FALSE_ALARM_RATE
  assert violation_share(results) < 2e-3


@pytest.mark.slow
@pytest.mark.parametrize('name', [
    'zig-zag', pytest.param('bouncy', marks=pytest.mark.weekly)])
def test_law_of_a_logistic_regression(name):
  """Of two parts, by paths of chains that start at draws of it."""
  truth, start = test_logistic.law()
  target = sgmcmc.Posterior(
      lambda *parts: oracle.normal_log_prob(
          oracle.join(parts), 1., test_logistic.PRIOR_SCALE),
      lambda a, b, batch: families.logistic_log_likelihood(
          oracle.join([a, b]), batch), test_logistic.data())
  draws = sgmcmc.sample(
      KERNELS[name](target), 600, [start[:200, :2], start[:200, 2]], seed=1,
      progress_bar=False, trace_fn=pdmp.trace_path)
  path = pdmp.Trajectory.from_chain(draws.states, draws.trace)
  averages = path.mean(
      lambda a, b: test_logistic.second_order(oracle.join([a, b])),
      num_nodes=2, by_chain=True)
  d, n = len(truth), len(averages)
  difference = averages.mean(axis=0) - truth
  statistic = n * difference @ np.linalg.solve(
      np.cov(averages, rowvar=False), difference)
  assert scipy.stats.f.sf(
      statistic * (n - d) / (d * (n - 1)), d, n - d) > oracle.FALSE_ALARM_RATE
  assert path.violation_share < 2e-3
  sd = np.std(start, axis=0)
  assert np.all(averages.std(axis=0)[:3] / np.sqrt(n) < 0.1 * sd)


def test_the_bound_holds_where_the_rate_bends_one_way():
  """And it is not idly large; with all times, and without those outside."""
  times = 0.2 * np.array(grid_bounds.POINTS)[:, np.newaxis]
  fine = np.linspace(0., 2., grid_bounds.NUM_CELLS * 100, endpoint=False)
  inside = (times[:, 0] >= 0.) & (times[:, 0] < 2.1)
  for rate in (lambda t: t**2 - t, lambda t: 1. + t - t**2, lambda t: -t,
               lambda t: 3. * t, np.exp, lambda t: np.log(t + 0.5)):
    largest = np.maximum(rate(fine), 0.).reshape([-1, 100]).max(axis=1)
    for is_finite in (inside, np.ones_like(inside)):
      bound, _ = grid_bounds.bound_cells(
          tf.constant(rate(times)), tf.constant(is_finite),
          tf.constant(0.2, tf.float64))
      assert np.all(bound[:, 0] > largest - 1e-9)
      slack = 0.08 * np.ptp(rate(fine))
      assert np.all(bound[1:-1, 0] < largest[1:-1] + slack)
      assert np.all(bound[:, 0] < largest + 4. * slack)


def test_times_invert_the_integral():
  """Of an integral of 0.5, 0, 1.5, 2, ...: cells of width 0.5."""
  bound = np.zeros([grid_bounds.NUM_CELLS, 5, 1], np.float32)
  bound[0], bound[2], bound[3] = 1., 3., 4.
  grid = grid_bounds.Grid(
      tf.constant(bound), tf.fill([5], 0.5), tf.fill([5], 5.), tf.zeros([5, 1]))
  times = grid_bounds.first_times(
      grid, tf.constant([0.25, 0.5, 1.25, 3.999, 4.001])[:, tf.newaxis])
  np.testing.assert_allclose(
      times[:, 0], [0.25, 1., 1.25, 1.99975, np.inf], rtol=1e-5)
  upper = grid_bounds.upper_at(grid, tf.constant([0.2, 0.7, 1.2, 1.5, 4.]))
  np.testing.assert_allclose(upper[:, 0], [1., 0., 3., 4., 0.])


def test_a_grid_ends_where_numbers_are_not_finite():
  """The rate of one chain, the log density of the other."""
  num = len(grid_bounds.POINTS)
  rates = np.ones([num, 2, 1], np.float32)
  rates[5, 1] = np.nan
  log_prob = np.zeros([num, 2], np.float32)
  log_prob[8:, 0] = -np.inf
  grid = grid_bounds.make_grid(
      tf.constant(log_prob), tf.constant(rates), tf.fill([2], 5.))
  np.testing.assert_allclose(grid.horizon, [3., 1.5])
  np.testing.assert_allclose(
      grid.bound[:, :, 0], np.arange(10)[:, np.newaxis] < [6, 3])


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('name', KERNELS)
def test_the_horizon_follows_the_scale(name):
  """On a density of width 0.01, from 10 times as far out."""
  kernel = KERNELS[name](
      lambda x: -tf.reduce_sum(tf.square(x / 0.01), axis=-1) / 2.)
  _, results = oracle.run_chains(
      kernel, tf.fill([20, 3], 0.1), 300, jit_compile=False)
  horizon = results.grid.horizon.numpy()
  assert np.all((0.001 < horizon) & (horizon < 0.1))


@pytest.mark.weekly
@pytest.mark.slow
def test_the_summary_tells_of_violations():
  kernel = pdmp.UniformTime(sgmcmc.ZigZagSampler(banana), 1.)
  draws = sgmcmc.sample(
      kernel, 50, tf.zeros([4, 2]), seed=1, progress_bar=False)
  row, = (row for row in sgmcmc.diagnostics.summary(draws, kernel).rows
          if row.quantity.startswith('violated bounds'))
  assert row.verdict == 'fine' and row.value < 0.01


def test_gradients_are_counted():
  """Of 12 examples: at 13 points, and at the event."""
  kernel = sgmcmc.ZigZagSampler(oracle.GaussianModel().posterior())
  state = tf.zeros([2, 3])
  results = kernel.bootstrap_results(state)
  before = results.gradient_estimator_results.num_gradients
  _, results = kernel.one_step(state, results, seed=[0, 1])
  np.testing.assert_array_equal(
      results.gradient_estimator_results.num_gradients - before, 12 * 14)


def test_minibatches_need_a_bound():
  for kernel in KERNELS.values():
    with pytest.raises(ValueError, match='exact gradient alone'):
      kernel(oracle.GaussianModel().posterior(),
             gradient_estimator=sgmcmc.gradients.Uniform(2))
