"""Averages along a path against brute force, and what is refused."""

import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.pdmp import models
import tfp_sgmcmc as sgmcmc

pdmp = sgmcmc.pdmp
Event = pdmp.Event


def trace(num_events, chains, seed=0, events=None):
  rng = np.random.default_rng(seed)
  shape = (num_events, *chains)
  return pdmp.PathTrace(
      np.arange(5, 5 + num_events), rng.exponential(size=shape),
      rng.integers(0, 4, size=shape) if events is None else events,
      rng.uniform(0., 1.2, size=shape))


def states(num_events, chains, seed=1, dtype=np.float64):
  rng = np.random.default_rng(seed)
  return [
      rng.normal(size=(num_events, *chains, 2)).astype(dtype),
      rng.normal(size=(num_events, *chains)).astype(dtype)]


def brute_force(parts, durations, num=20_000):
  """Values `[chains, num, d]` at the middles of many short equal times."""
  flat = np.concatenate(
      [np.reshape(p, [*durations.shape, -1]) for p in parts], axis=-1)
  flat = flat.reshape([len(flat), -1, flat.shape[-1]])
  times = np.cumsum(durations.reshape([len(flat), -1])[1:], axis=0)
  times = np.concatenate([np.zeros_like(times[:1]), times])
  grid = (np.arange(num) + 0.5) / num
  return np.stack([
      np.stack([np.interp(grid * times[-1, c], times[:, c], flat[:, c, j])
                for j in range(flat.shape[-1])], axis=-1)
      for c in range(flat.shape[1])]), times[-1]


@pytest.mark.parametrize('chains', [(), (3,), (2, 2)])
def test_averages_against_brute_force(chains):
  parts, path = states(30, chains), trace(30, chains)
  trajectory = pdmp.Trajectory.from_chain(parts, path)
  values, total = brute_force(parts, path.duration)
  np.testing.assert_allclose(
      np.reshape(trajectory.duration, [-1]), total, rtol=1e-12)
  weights = total / total.sum()
  means = values.mean(axis=1)
  close = lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4)
  mean = weights @ means
  close(trajectory.mean()[0], mean[:2])
  close(trajectory.mean()[1], mean[2])
  close(trajectory.mean(by_chain=True)[0], means[:, :2].reshape([*chains, 2]))
  second = np.einsum('c,cti,ctj->ij', weights, values, values) / values.shape[1]
  close(trajectory.covariance(), second - np.outer(mean, mean))
  close(trajectory.covariance(by_chain=True), np.reshape(
      [np.cov(v, rowvar=False, bias=True) for v in values], [*chains, 3, 3]))
  fn = lambda a, b: {'x': tf.sin(3. * a) * b[..., tf.newaxis], 'y': tf.exp(b)}
  average = trajectory.mean(fn)
  expected = np.sin(3. * values[..., :2]) * values[..., 2:]
  close(average['x'], np.einsum('c,cti->i', weights, expected) / 20_000)
  close(average['y'], weights @ np.exp(values[..., 2]).mean(axis=1))


def test_quadrature_is_exact_for_polynomials():
  parts, path = states(10, (2,)), trace(10, (2,))
  trajectory = pdmp.Trajectory.from_chain(parts, path)
  np.testing.assert_allclose(
      trajectory.mean(lambda a, b: a, num_nodes=1), trajectory.mean()[0])
  few, many = (
      trajectory.mean(lambda a, b: b**9, num_nodes=n) for n in (5, 30))
  np.testing.assert_allclose(few, many, rtol=1e-12)


@pytest.mark.parametrize('chains', [(), (3,)])
def test_sample_is_at_equal_times(chains):
  parts, path = states(30, chains), trace(30, chains)
  drawn = pdmp.Trajectory.from_chain(parts, path).sample(50)
  values, _ = brute_force(parts, path.duration, 50)
  flat = np.concatenate([
      np.reshape(drawn[0], [50, -1, 2]), np.reshape(drawn[1], [50, -1, 1])], -1)
  np.testing.assert_allclose(np.swapaxes(flat, 0, 1), values, atol=1e-12)
  single = pdmp.Trajectory.from_chain(
      parts[0].astype(np.float32), path).sample(7)
  assert single.dtype == tf.float32 and single.shape == [7, *chains, 2]


def test_small_variance_far_from_zero_in_float32():
  """Sums in float64, about the mean: 1e-6 of the mean's square remains."""
  parts, path = states(200, (4,)), trace(200, (4,))
  at = pdmp.Trajectory.from_chain(parts[0], path).covariance()
  moved = (parts[0] + 1000.).astype(np.float32)
  np.testing.assert_allclose(
      pdmp.Trajectory.from_chain(moved, path).covariance(), at, atol=2e-4)


def test_counts():
  events = np.array([[0, 0], [1, 1], [0, 2], [1, 3], [0, 1]])
  path = trace(5, (2,), events=events)._replace(rate_ratio=np.array(
      [[2., 2.], [1.5, 1.], [0.2, 3.], [1., 0.], [1.1, 1.2]]))
  trajectory = pdmp.Trajectory.from_chain(states(5, (2,)), path)
  assert trajectory.counts == pdmp.EventCounts(
      events=8, bounces=4, rejections=2, refreshments=1, horizons=1,
      violations=3)
  assert trajectory.violation_share == 3 / 6
  assert '8 events, 4 bounces' in repr(trajectory)


def test_path_of_a_chain_is_the_kernels():
  """Where it was before: states are corners, at the traced durations."""
  model, log_prob = models.gaussian(np.float32)
  kernel = sgmcmc.BouncyParticleSampler(
      log_prob, pdmp.GaussianBound(model.precision))
  draws, results = models.run_path(
      kernel, tf.constant(models.exact_draws(model, 5)), 50,
      trace=lambda _, results: results, burnin=3)
  np.testing.assert_allclose(
      draws[1:], draws[:-1] + (
          results.duration[1:, :, tf.newaxis] * results.velocity[0][:-1]),
      atol=1e-5)
  trajectory = pdmp.Trajectory.from_chain(draws, results)
  np.testing.assert_allclose(
      trajectory.duration, tf.reduce_sum(results.duration[1:], axis=0),
      rtol=1e-5)
  kept = sgmcmc.sample(
      kernel, 50, tf.zeros([5, 3]), trace_fn=pdmp.trace_path, seed=1,
      progress_bar=False, jit_compile=False)
  assert pdmp.Trajectory.from_chain(
      kept.states, kept.trace).counts.events == 49 * 5


def test_the_whole_path_beats_its_points():
  """Pakman et al. (2017), section 7.2: for f shorter than the segments.

  f = sin(x_1 / r), whose mean is 0, with r a twentieth of a standard deviation.
  The squared error of the mean over the path against that over as many states
  at equal times as there are events, by 400 independent chains: the ratio of
  two such means has a standard error of 10% where there is no difference, so
  that 0.6 is 5 of them away.
  """
  kernel = sgmcmc.BouncyParticleSampler(
      lambda x: -tf.reduce_sum(x**2, axis=-1) / 2., pdmp.GaussianBound(1.))
  start = tf.random.stateless_normal([400, 2], [1, 2])
  trajectory = pdmp.Trajectory.from_chain(*models.run_path(kernel, start, 200))
  fn = lambda x: tf.sin(x[..., 0] / 0.05)
  whole = trajectory.mean(fn, num_nodes=64, by_chain=True)
  points = tf.reduce_mean(fn(trajectory.sample(199)), axis=0)
  assert np.mean(whole**2) / np.mean(points**2) < 0.6
  # A slow function gains nothing, as the paper says: the check can fail.
  slow = lambda x: tf.sin(x[..., 0] / 3.)
  whole = trajectory.mean(slow, by_chain=True)
  points = tf.reduce_mean(slow(trajectory.sample(199)), axis=0)
  assert np.mean(whole**2) / np.mean(points**2) > 0.9


def refused(error, match, parts, path):
  with pytest.raises(error, match=match) as raised:
    pdmp.Trajectory.from_chain(parts, path)
  return raised.value


def test_refusals():
  parts, path = states(10, (2,)), trace(10, (2,))
  first = lambda n: pdmp.PathTrace(*(leaf[:n] for leaf in path))
  refused(ValueError, 'There is 1 event, and a path needs two',
          [p[:1] for p in parts], first(1))
  refused(ValueError, r'\[9, 9\] states and the results of 10',
          [p[:9] for p in parts], path)
  refused(ValueError, 'num_steps_between_results=0', parts,
          path._replace(step=2 * path.step))
  refused(TypeError, 'no duration and no event', parts,
          types.SimpleNamespace(step=path.step, rate_ratio=path.rate_ratio))
  with pytest.raises(ValueError, match='leave leading axes alone'):
    pdmp.Trajectory.from_chain(parts, path).mean(
        lambda a, b: tf.reduce_sum(a))


def test_failures_name_the_event_and_keep_the_path():
  parts, path = states(10, (2,)), trace(10, (2,))
  parts[0][6:, 1, 0] = np.nan
  path.rate_ratio[6:, 1] = 1.25
  error = refused(
      sgmcmc.RateBoundError,
      'At event 11 the rate of events in chain 1 is 1.25 times', parts, path)
  assert error.step == 11 and error.result.counts.events == 2 * 5
  path.rate_ratio[6:, 1] = 0.
  error = refused(
      sgmcmc.NonFiniteError,
      'At event 11 the state is not finite: chain 1, part 0', parts, path)
  assert not isinstance(error, sgmcmc.RateBoundError)
  np.testing.assert_allclose(
      error.result.mean()[1], pdmp.Trajectory.from_chain(
          [p[:6] for p in parts],
          pdmp.PathTrace(*(leaf[:6] for leaf in path))).mean()[1])
  parts[0][1] = np.nan
  assert refused(
      sgmcmc.NonFiniteError, 'There are 1 states before', parts,
      path).result is None


def test_states_at_equal_times_need_no_trajectory():
  kernel = pdmp.UniformTime(
      sgmcmc.BouncyParticleSampler(
          lambda x: -x**2 / 2., pdmp.GaussianBound(1.)), 1.)
  draws, results = tfp.mcmc.sample_chain(
      3, tf.zeros([2]), kernel=kernel, seed=[0, 1],
      trace_fn=lambda _, results: results)
  refused(TypeError, 'UniformTime are at equal weights', draws, results)
