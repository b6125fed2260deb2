"""The guard of `SelfTuning`: chains that fall, and those set elsewhere."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests import catalogue
from tests import oracle
from tests.mcmc import test_self_tuning as laws
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.mcmc import guard
from tfp_sgmcmc.mcmc import self_tuning

gradients = sgmcmc.gradients


def test_no_chain_at_its_law_is_beyond_the_limit_of_the_guard():
  """By the chi-square of K at each d; less than once in 10^10 steps."""
  for d in (1, 2, 3, 5, 10, 100, 1000, 10**5):
    limit = 3. + 30. * np.sqrt(2. / d)
    assert scipy.stats.chi2.sf(d * limit, d) < 1e-10


def cliff(x):
  """A normal that ends at 3 in its first coordinate."""
  log_prob = laws.normal(x)
  return tf.where(x[..., 0] > 3., tf.constant(np.nan, x.dtype), log_prob)


def steep(x):
  return laws.normal(x) - 1e8 * tf.reduce_sum(tf.nn.relu(x - 3.)**2, axis=-1)


def infinite(x):
  log_prob = laws.normal(x)
  return tf.where(x[..., 0] > 3., tf.constant(-np.inf, x.dtype), log_prob)


@pytest.mark.weekly_after(2)
@pytest.mark.parametrize('log_prob', [cliff, steep, infinite])
@pytest.mark.parametrize('num_steps', [0, 50])
def test_a_chain_that_falls_goes_back_and_others_do_not_know(
    log_prob, num_steps):
  kernel = laws.tuned(log_prob, 0.1, num_steps=num_steps)
  state = tf.random.stateless_normal([4, 3], [0, 1])
  results = kernel.bootstrap_results(state, seed=[0, 5])
  anchor = state
  for k in range(3):
    state, results = laws.step(kernel, state, results, k)
  quiet, after = laws.step(kernel, state, results, 3)
  p = results.inner_results.momentum[0].numpy()
  p[2] = [1e3, 0., 0.]
  pushed = results._replace(inner_results=results.inner_results._replace(
      momentum=[tf.constant(p)]))
  fallen, found = laws.step(kernel, state, pushed, 3)
  np.testing.assert_array_equal(fallen[2], anchor[2])
  np.testing.assert_array_equal(found.num_returns, [0, 0, 1, 0])
  np.testing.assert_array_equal(found.inner_results.momentum[0][2], 0.)
  assert float(found.step_size) == float(results.step_size) / 2.
  assert found.num_late_returns[2] == (num_steps == 0)
  assert found.finding().is_fine == (num_steps > 0)
  others = [0, 1, 3]
  for ours, theirs in (
      (fallen, quiet),
      (found.inner_results.momentum[0], after.inner_results.momentum[0])):
    np.testing.assert_array_equal(
        tf.gather(ours, others), tf.gather(theirs, others))
  # It has forgotten why it fell, and goes on.
  for k in range(4, 8):
    fallen, found = laws.step(kernel, fallen, found, k)
  assert np.all(np.isfinite(fallen))
  np.testing.assert_array_equal(found.num_returns, [0, 0, 1, 0])


def results_of_seeds(log_likelihood, rows, num_seeds, start, **arguments):
  """Of chains of 20 coordinates, by minibatches of 20 rows."""
  posterior = sgmcmc.Posterior(
      lambda theta: -0.5 * tf.reduce_sum(tf.square(theta), axis=-1),
      log_likelihood, tuple(part.astype(np.float32) for part in rows))
  kernel = laws.tuned(
      posterior, estimator=gradients.Uniform(20), num_steps=1000)
  return [
      sgmcmc.sample(
          kernel, current_state=tf.fill([20], start), num_burnin_steps=1000,
          seed=seed, progress_bar=False, **arguments).kernel_results
      for seed in range(num_seeds)]


def late_returns_with_a_steep_row():
  """Of six chains; one row of 2,000 is 300 times as steep along one axis."""
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=[2000, 20]), rng.normal(size=2000)
  x[0] = 300. * np.eye(20)[0]

  def log_likelihood(theta, rows):
    x, y = rows
    return -0.5 * tf.square(y - tf.linalg.matvec(x, theta))

  return sum(int(results.num_late_returns) for results in results_of_seeds(
      log_likelihood, (x, y), 6, 0., num_results=10,
      num_steps_between_results=499))


@pytest.mark.weekly
@pytest.mark.slow
def test_a_steep_row_that_was_not_seen_before_is_learned_of(monkeypatch):
  """With four sets of six seeds 0 to 2 such returns; without it 15 to 25."""
  assert late_returns_with_a_steep_row() < 6
  monkeypatch.setattr(self_tuning, '_at_failure', lambda old, new, seen: [
      np.inf * tf.ones_like(g) for g in new.grads_target_log_prob])
  assert late_returns_with_a_steep_row() > 9


def returns_with_a_wall():
  """Of ten chains; one row of 2,000 rises as exp(30 z) in the first axis."""
  x = np.random.default_rng(0).normal(size=[2000, 20])
  x -= x.mean(axis=0)
  is_wall = np.zeros(2000)
  is_wall[7] = 1.

  def log_likelihood(theta, rows):
    x, is_wall = rows
    theta = theta[..., tf.newaxis, :]
    wall = tf.exp(tf.minimum(30. * np.sqrt(2000.) * theta[..., 0], 60.))
    return -0.5 * tf.reduce_sum(tf.square(x - theta), axis=-1) - is_wall * wall

  return [int(results.num_returns) for results in results_of_seeds(
      log_likelihood, (x, is_wall), 10, -0.02, num_results=2,
      num_steps_between_results=1999)]


@pytest.mark.slow
def test_a_chain_beyond_a_wall_that_it_had_not_seen_comes_back(monkeypatch):
  """Of 40 chains none went back more than 6 times; with the planted error 32.

  One that cannot come back falls again each time that it sees the row, or all
  but stands still.
  """
  assert max(returns_with_a_wall()) < 10
  monkeypatch.setattr(guard, '_SPACING_OF_ANCHORS', (1., 1.))
  assert max(returns_with_a_wall()) > 10


def test_a_state_that_was_set_is_a_new_start():
  """With its place as the anchor and a momentum at T; others do not know."""
  kernel = laws.tuned(laws.normal, 0.1, num_steps=0)
  state = tf.random.stateless_normal([2, 1000], [0, 1])
  results = kernel.bootstrap_results(state, seed=[0, 5])
  for k in range(3):
    state, results = laws.step(kernel, state, results, k)
  quiet, after = laws.step(kernel, state, results, 3)
  placed = state + [[0.], [10.]]
  new, found = laws.step(kernel, placed, results, 3)
  np.testing.assert_array_equal(new[1], placed[1])
  np.testing.assert_array_equal(found.anchor[0][1], placed[1])
  np.testing.assert_array_equal(new[0], quiet[0])
  np.testing.assert_array_equal(found.anchor[0][0], after.anchor[0][0])
  assert found.step_size == results.step_size
  assert not np.any(found.num_returns)
  # It moves from there, and goes back to it.
  new, found = laws.step(kernel, new, found, 4)
  assert np.any(new[1] != placed[1])
  p = found.inner_results.momentum[0].numpy()
  p[1] = 1e3
  new, found = laws.step(kernel, new, found._replace(
      inner_results=found.inner_results._replace(
          momentum=[tf.constant(p)])), 5)
  np.testing.assert_array_equal(new[1], placed[1])
  np.testing.assert_array_equal(found.num_returns, [0, 1])


@pytest.mark.parametrize('num_steps', [0, 1000])
def test_a_colder_place_is_not_heated(num_steps):
  """As where a search for T goes back: K is that of the new T at once.

  T times a chi-square over 1,000: within 30% but once in 10^9.
  """
  temperature = tf.Variable(1.)
  kernel = laws.tuned(
      laws.normal, 0.1, temperature=lambda _: temperature.read_value(),
      num_steps=num_steps)
  state = tf.zeros([1000])
  results = kernel.bootstrap_results(state, seed=[0, 5])
  for k in range(5):
    state, results = laws.step(kernel, state, results, k)
  temperature.assign(0.1)
  placed = 0.3 * tf.random.stateless_normal([1000], [0, 2])
  state, results = laws.step(kernel, placed, results, 5)
  heat = float(tf.reduce_mean(results.inner_results.momentum[0]**2))
  assert 0.07 < heat < 0.13
  np.testing.assert_allclose(results.temperature, 0.1)
  assert float(results.heat) == (np.float32(0.1) if num_steps else 1.)


@pytest.mark.weekly
@pytest.mark.slow
def test_no_step_is_taken_for_a_new_start(monkeypatch):
  """Compiled by XLA, which may round a number in two places in two ways."""
  theta, results = laws.run_means()
  monkeypatch.setattr(guard, '_CHANGE', 1e30)
  laws.chains_of_means.cache_clear()
  other, others = laws.run_means.__wrapped__()
  laws.chains_of_means.cache_clear()
  np.testing.assert_array_equal(theta, other)
  tf.nest.map_structure(np.testing.assert_array_equal, results, others)


@pytest.mark.parametrize('batch_size, spacing', [
    (None, 100), pytest.param(10, 150, marks=pytest.mark.slow)])
def test_the_anchor_is_that_before_the_last(batch_size, spacing):
  """A hundred steps where all rows are in a gradient; five passes of 300."""
  if batch_size is None:
    posterior, estimator, state = laws.normal, None, [tf.zeros([2, 3])]
  else:
    posterior, estimator = laws.means(300), gradients.Uniform(batch_size)
    state = [tf.zeros([2, 2]), tf.zeros([2, 3])]
  kernel = laws.tuned(posterior, 0.1, estimator=estimator, num_steps=0)
  one_step = tf.function(kernel.one_step, autograph=False)
  results = kernel.bootstrap_results(state, seed=[0, 5])
  kept = [state]
  for k in range(1, 3 * spacing + 2):
    state, results = one_step(state, results, seed=tf.constant([3, k]))
    if k % spacing == 0:
      kept.append(state)
    expected = kept[max(len(kept) - 2, 0)]
    for a, b in zip(results.anchor, expected):
      np.testing.assert_array_equal(a, b)


def chain_with_a_fall(condition, monkeypatch):
  """State and results of a chain that falls in step 130 and is set in 135."""
  posterior = laws.means(200)
  kernel = laws.tuned(
      posterior, estimator=gradients.Uniform(20), num_steps=120)
  state = [tf.zeros([2, 2]), tf.zeros([2, 3])]
  with monkeypatch.context() as patch:
    patch.setattr(states, 'cond_for_all', condition)
    one_step = tf.function(kernel.one_step, autograph=False)
    results = kernel.bootstrap_results(state, seed=[0, 5])
    for k in range(1, 211):
      if k == 130:
        inner = results.inner_results
        results = results._replace(inner_results=inner._replace(
            momentum=[1e6 * p for p in inner.momentum]))
      if k == 135:
        state = [part + 1. for part in state]
      state, results = one_step(state, results, seed=tf.constant([3, k]))
  return state, results


@pytest.mark.weekly
@pytest.mark.slow
def test_the_steps_that_teach_nothing(monkeypatch):
  condition = states.cond_for_all
  ours = chain_with_a_fall(condition, monkeypatch)
  always = chain_with_a_fall(lambda p, if_true, if_false: if_false(),
                             monkeypatch)
  assert int(tf.reduce_min(ours[1].num_returns)) > 0

  def both(other):
    return zip(tf.nest.flatten(other), tf.nest.flatten(always), strict=True)

  for a, b in both(ours):
    np.testing.assert_allclose(a, b, rtol=1e-5)
  planted = chain_with_a_fall(
      lambda p, if_true, if_false: condition(
          tf.constant(True), if_true, if_false), monkeypatch)
  assert any(not np.allclose(a, b, rtol=1e-5) for a, b in both(planted))


@pytest.mark.parametrize('num_steps', [0, 1000])
def test_after_a_hundred_returns_a_chain_is_let_go(num_steps):
  """And is reported; what the others learn is theirs alone."""
  kernel = laws.tuned(cliff, 0.1, num_steps=num_steps)
  state = tf.random.stateless_normal([3, 2], [0, 1])
  results = kernel.bootstrap_results(state)
  lost = tf.tensor_scatter_nd_update(state, [[1, 0]], [np.nan])
  results = results._replace(
      num_returns=tf.constant([0, guard.MOST_RETURNS, 0]))
  for k in range(5):
    lost, results = laws.step(kernel, lost, results, k)
  np.testing.assert_array_equal(results.num_returns, [0, 100, 0])
  for numbers in (
      results.step_size, results.heat, results.preconditioner,
      results.noise_variance, tf.gather(lost, [0, 2])):
    assert np.all(np.isfinite(tf.nest.flatten(numbers)))
  if num_steps:
    assert float(results.heat) > 0. and float(results.step_size) != 0.1
  failure = sgmcmc.errors.find_failure(results, lost)
  assert 'chain 1' in failure.reason
  assert 'took the chain back 100 time(s)' in failure.advice


def test_the_gradient_of_a_chain_that_went_back_is_no_noise():
  """0 is stored there, and its difference to a gradient is not of minibatches.
  """
  posterior = oracle.GaussianModel().posterior()
  kernel = laws.tuned(posterior, 0.01, catalogue.UNIFORM, num_steps=100)
  state = tf.fill([2, 3], 100.)  # With a gradient far above its noise.
  results = kernel.bootstrap_results(state, seed=[0, 5])
  momentum = results.inner_results.momentum[0].numpy()
  momentum[1] = np.inf
  back, results = laws.step(kernel, state, results._replace(
      inner_results=results.inner_results._replace(
          momentum=[tf.constant(momentum)])), 0)
  np.testing.assert_array_equal(back[1], state[1])
  _, results = laws.step(kernel, back, results, 1)
  assert np.all(results.noise_variance[0] < 200.)
