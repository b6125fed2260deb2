"""AMAGOLD keeps its target, whatever the step, the friction and the minibatch.

Chains start in independent draws of the posterior, with momenta of N(0, T I),
and make some steps: they are then draws of it still, or something is wrong. A
test fails by chance once in a million.
"""

import functools

import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf

from tests import families
from tests import oracle
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.mcmc import amagold

NUM_CHAINS = 40_000
UNIFORM = sgmcmc.gradients.Uniform(4)
# Of the right kernel; the last four are errors.
NUMBERS = dict(
    h=0.5, friction=1., temperature=1., noise=1., work=1., flip=1., weight=1.)


@functools.cache
def chains(estimator, num_parts, num_leapfrog_steps=3):
  model = oracle.GaussianModel()
  posterior = model.posterior()
  rng = np.random.default_rng(1)
  start = rng.multivariate_normal(
      np.zeros(3), np.linalg.inv(model.precision), size=NUM_CHAINS)
  kick, work_of_kick = amagold.symmetric_kick, amagold.work_of_kick
  select = amagold.states.select
  with pytest.MonkeyPatch.context() as patch:
    def make_kernel(h, friction, temperature, noise, work, flip, weight):
      def cast(x, like):
        return tf.cast(x, like.dtype)

      def wrong_kick(r, g, h, drag, scale, xi):
        return kick(
            r, cast(weight, g) * g, h, drag, cast(noise, scale) * scale, xi)

      def wrong_work(r, kicked, g, half, like):
        return cast(work, like) * work_of_kick(r, kicked, g, half, like)

      def wrong_select(mask, new, old):
        parts, log_prob, momentum = old
        return select(mask, new, (
            parts, log_prob, [cast(flip, r) * r for r in momentum]))

      patch.setattr(amagold, 'symmetric_kick', wrong_kick)
      patch.setattr(amagold, 'work_of_kick', wrong_work)
      patch.setattr(amagold.states, 'select', wrong_select)
      return sgmcmc.AMAGOLD(
          posterior, h, friction, num_leapfrog_steps=num_leapfrog_steps,
          gradient_estimator=estimator, temperature=temperature)

    run = oracle.compile_chains(make_kernel)
    whole = lambda t: (model.mean + np.sqrt(t) * start).astype(np.float32)
    state = lambda t: (
        whole(t) if num_parts == 1 else [whole(t)[:, :2], whole(t)[:, 2]])
    run(state(1.), 0, **NUMBERS)
  return lambda num_steps, temperature=1., **changes: run(
      state(temperature), num_steps,
      **{**NUMBERS, 'temperature': temperature, **changes})


def p_value(num_steps=20, estimator=UNIFORM, num_parts=1, temperature=1.,
            factor=1., **changes):
  """Of theta and the momentum, and how many proposals are accepted."""
  model = oracle.GaussianModel()
  state, results = chains(estimator, num_parts)(
      num_steps, temperature=temperature, **changes)
  samples = np.concatenate([
      oracle.join_parts(state, NUM_CHAINS),
      oracle.join_parts(results.momentum, NUM_CHAINS)], axis=1)
  covariance = np.eye(6)
  covariance[:3, :3] = np.linalg.inv(model.precision)
  return oracle.law_p_value(
      samples, np.concatenate([model.mean, np.zeros(3)]),
      factor * temperature * covariance), np.mean(results.is_accepted)


@pytest.mark.parametrize('arguments', [
    pytest.param(dict(h=0.2), marks=[pytest.mark.slow, pytest.mark.weekly]),
    dict(h=0.7, friction=3.),  # Steps of which one in two is refused.
    pytest.param(
        dict(h=0.5, temperature=0.5), marks=[
            pytest.mark.slow, pytest.mark.weekly]),
    pytest.param(
        dict(h=0.5, temperature=0.5, num_parts=2), marks=[
            pytest.mark.slow, pytest.mark.weekly]),
    pytest.param(
        dict(h=0.7, estimator=sgmcmc.gradients.Exact()), marks=[
            pytest.mark.slow, pytest.mark.weekly]),
    pytest.param(
        dict(h=0.5, estimator=sgmcmc.gradients.GaussianNoise(1.)),
        marks=pytest.mark.slow),
], ids=str)
def test_the_law_is_exact(arguments):
  p, accepted = p_value(**arguments)
  assert p > oracle.FALSE_ALARM_RATE
  assert 0.1 < accepted < 0.97
  # Five percent of variance is seen.
  assert p_value(**arguments, factor=1.05)[0] < 1e-9


@pytest.mark.weekly_after(2)
@pytest.mark.parametrize('error', [
    # No work in the ratio, as with a Metropolis test of the ends alone; the
    # momentum kept where it has to be turned; noise not balanced.
    dict(work=0.), dict(work=0.9), dict(flip=-1.), dict(noise=1.2),
    # A gradient of twice the minibatch, the work of the right one.
    dict(weight=2.)], ids=str)
def test_planted_errors_are_seen(error):
  assert p_value(**error)[0] < oracle.FALSE_ALARM_RATE


@pytest.mark.weekly
@pytest.mark.slow
def test_law_of_a_logistic_regression():
  """Not normal, with minibatches of one of four examples; against a grid.

  By Kolmogorov and Smirnov's test, at a step that refuses most proposals.
  """
  model = families.Logistic(num=4, dim=1, scale=4.)
  grid = np.linspace(-6., 6., 12_001)
  log_prob = (model.exact()(grid[:, np.newaxis]).sum(axis=1) - grid**2 / 2.)
  density = np.exp(log_prob - log_prob.max())
  cumulative = np.cumsum(density) / density.sum()
  u = np.random.default_rng(0).uniform(size=NUM_CHAINS)
  start = np.interp(u, cumulative, grid)
  kernel = sgmcmc.AMAGOLD(
      model.posterior(), 0.4, 1., num_leapfrog_steps=3,
      gradient_estimator=sgmcmc.gradients.Uniform(1))
  state, results = oracle.run_chains(
      kernel, tf.constant(start[:, np.newaxis], tf.float32), 25)
  found = np.ravel(state)
  assert np.mean(found != start.astype(np.float32)) > 0.9
  assert 0.1 < np.mean(results.is_accepted) < 0.7
  assert scipy.stats.kstest(
      found, lambda x: np.interp(x, grid, cumulative),
  ).pvalue > oracle.FALSE_ALARM_RATE
  # A location wrong by a twentieth of a standard deviation is seen.
  sd = np.sqrt(np.sum(density * grid**2) / density.sum())
  assert scipy.stats.kstest(
      found + sd / 20., lambda x: np.interp(x, grid, cumulative),
  ).pvalue < oracle.FALSE_ALARM_RATE


@pytest.mark.weekly
@pytest.mark.slow
def test_chains_come_from_afar():
  model = oracle.GaussianModel()
  state, _ = oracle.run_chains(
      sgmcmc.AMAGOLD(
          model.posterior(), 0.2, 1., num_leapfrog_steps=3,
          gradient_estimator=UNIFORM),
      tf.zeros([NUM_CHAINS, 3]), 200)
  assert oracle.law_p_value(
      state, model.mean, np.linalg.inv(model.precision)
  ) > oracle.FALSE_ALARM_RATE


@pytest.mark.weekly_after(1)
@pytest.mark.slow
@pytest.mark.parametrize('v', [1., 4.])
def test_acceptance_that_noise_leaves(v):
  """erfc(sqrt(v / 8)) of the docstring, d = 20, L = 5, small h."""
  h, steps, d = 0.05, 5, 20
  kernel = sgmcmc.AMAGOLD(
      lambda x: -tf.reduce_sum(x**2, axis=-1) / 2., h, 1.,
      num_leapfrog_steps=steps,
      gradient_estimator=sgmcmc.gradients.GaussianNoise(
          np.sqrt(v / (h**2 * steps * d))))
  start = np.random.default_rng(0).normal(size=[10_000, d])
  _, results = oracle.run_chains(kernel, tf.constant(start, tf.float32), 10)
  found = np.mean(np.minimum(1., np.exp(results.log_accept_ratio)))
  assert abs(found - scipy.special.erfc(np.sqrt(v / 8.))) < 0.03


def test_cost_is_counted():
  kernel = sgmcmc.AMAGOLD(
      oracle.GaussianModel().posterior(), 0.1, 1., num_leapfrog_steps=3,
      gradient_estimator=UNIFORM)
  state = tf.zeros([2, 3])
  results = kernel.bootstrap_results(state)
  assert results.gradient_estimator_results.num_gradients[0] == 4 + 12
  _, results = kernel.one_step(state, results, seed=[1, 2])
  assert results.gradient_estimator_results.num_gradients[0] == (
      4 + 12 + 3 * 4 + 12)
  assert results.target_log_prob.shape == [2]


def test_a_proposal_of_no_density_is_refused():
  """A step far too large: the state stays, and the share tells."""
  kernel = sgmcmc.AMAGOLD(
      lambda x: -tf.reduce_sum(x**4, axis=-1), 100., 1., num_leapfrog_steps=4)
  state = tf.ones([50, 2])
  moved, results = kernel.one_step(
      state, kernel.bootstrap_results(state), seed=[1, 2])
  np.testing.assert_array_equal(moved, state)
  assert not np.any(results.is_accepted)


@pytest.mark.parametrize('arguments, message', [
    (dict(friction=0.), 'friction is 0'),
    (dict(temperature=0.), 'temperature is 0'),
    (dict(temperature=np.ones(3)), 'temperature has shape'),
    (dict(num_leapfrog_steps=0), 'num_leapfrog_steps is 0'),
    (dict(gradient_estimator=sgmcmc.gradients.SVRG(4, 10)),
     'has_independent_noise'),
    (dict(gradient_estimator=sgmcmc.gradients.ExponentiallyWeighted(4)),
     'no such step'),
])
def test_refused_at_construction(arguments, message):
  with pytest.raises(ValueError, match=message):
    sgmcmc.AMAGOLD(**{
        **dict(target_log_prob_fn=oracle.GaussianModel().posterior(),
               step_size=0.1, friction=1., num_leapfrog_steps=3), **arguments})
