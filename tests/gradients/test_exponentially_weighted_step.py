"""EWSG: the law of a kernel's step, and what the weights gain.

A test fails by chance once in a million.
"""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests import oracle
from tests.gradients.enumerated import EWSG
from tests.gradients.enumerated import MODEL
from tests.gradients.enumerated import NUM_CHAINS
from tests.gradients.enumerated import SINGLE
from tests.gradients.enumerated import THETA
from tests.gradients.enumerated import R
from tests.gradients.enumerated import gradients_at
from tests.gradients.enumerated import index_law
from tests.gradients.enumerated import index_sets
from tests.gradients.enumerated import split
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.gradients import exponentially_weighted

gradients = sgmcmc.gradients

H, GAMMA, TEMPERATURE = 0.4, 1.3, 0.8
THERMOSTATS = {
    'scalar': (np.asarray(0.9), 0.9 * R),
    'diagonal': (np.array([0.9, 0.2, 1.5]), np.array([0.9, 0.2, 1.5]) * R),
    'matrix': (
        np.array([[0.9, 0.3, 0.], [0.3, 0.5, 0.1], [0., 0.1, 0.7]]),
        np.array([[0.9, 0.3, 0.], [0.3, 0.5, 0.1], [0., 0.1, 0.7]]) @ R),
}
DIAGONAL = np.array([1., 0.5, 2.])


def one_step(kernel, replace=None, theta=THETA):
  """The next state and results of chains that all start at one state."""
  chains = (NUM_CHAINS,)
  state = split(theta, chains)
  results = kernel.bootstrap_results(state)
  results = results._replace(**(replace or {}))
  return kernel.one_step(state, results, seed=tf.constant([3, 4]))


def dynamics(name, estimator):
  """The momenta (the moves, where there are none), and x, drift, h and s."""
  posterior = MODEL.posterior()
  chains = (NUM_CHAINS,)
  if name in ('sgld', 'psgld'):
    kernel = sgmcmc.SGLD(
        posterior, H / 4., gradient_estimator=estimator,
        temperature=TEMPERATURE)
    replace, diagonal = None, 1.
    if name == 'psgld':
      kernel = kernel.copy(preconditioner=sgmcmc.preconditioners.RMSProp(
          decay=1., regularizer=1e-9))
      diagonal = DIAGONAL
      replace = dict(preconditioner_results=(
          sgmcmc.preconditioners.RMSPropResults(split(DIAGONAL**-2, chains))))
    state, _ = one_step(kernel, replace)
    moved = oracle.join_parts(state, NUM_CHAINS) - THETA
    h = H / 4. * np.full(3, diagonal)
    return moved, np.zeros(3), h, np.sqrt(2. * h * TEMPERATURE), np.zeros(3)
  momentum = split(R, chains)
  if name == 'sghmc':
    kernel = sgmcmc.SGHMC(
        posterior, H, GAMMA, gradient_estimator=estimator,
        temperature=TEMPERATURE,
        noise_estimate=0.4)
    _, results = one_step(kernel, dict(momentum=momentum))
    noise, force = GAMMA - 0.4, GAMMA * R
  else:
    kernel = sgmcmc.SGNHT(
        posterior, H, GAMMA, gradient_estimator=estimator, thermostat=name,
        temperature=TEMPERATURE)
    xi, force = THERMOSTATS[name]
    thermostat = (
        split(xi, chains) if name == 'diagonal'
        else tf.constant(np.broadcast_to(xi, [*chains, *xi.shape])))
    _, results = one_step(
        kernel, dict(momentum=momentum, thermostat=thermostat))
    noise = GAMMA
  return (oracle.join_parts(results.momentum, NUM_CHAINS), -H * force, H,
          np.full(3, np.sqrt(2. * noise * TEMPERATURE * H)), R)


def step_p_values(name, num_steps=2):
  """Under the law of EWSG's step, and under that of a uniform index.

  The law of a coordinate is a mixture of Gaussians, one for each index.
  """
  samples, drift, h, s, r = dynamics(
      name, EWSG(num_index_steps=num_steps, base=SINGLE))
  g = gradients_at(index_sets(1))
  law, _ = index_law(g, -drift / s, num_steps, h, s)
  p_values = []
  for weights in (law, np.full(5, 0.2)):
    mean = r + drift + h * g
    p_values.append(3. * min(
        scipy.stats.kstest(samples[:, k], lambda v, k=k: np.sum(
            weights[:, np.newaxis] * scipy.stats.norm.cdf(  # noqa: B023
                v, mean[:, k:k + 1], s[k]), axis=0)).pvalue  # noqa: B023
        for k in range(3)))
  return p_values


@pytest.mark.weekly_after(2)
@pytest.mark.parametrize('name', [
    'sghmc', 'sgld', 'psgld', 'scalar', 'diagonal', 'matrix'])
def test_law_of_the_step(name):
  ours, uniform = step_p_values(name)
  assert ours > oracle.FALSE_ALARM_RATE > uniform


@pytest.fixture(scope='module')
def full_gradient_steps():
  """Momenta of full-gradient steps; of uniform ones, with g_I, x and more."""
  rounds, num_chains = 40, 20_000
  h, gamma = 0.4, 2.
  kernel = sgmcmc.SGHMC(
      oracle.GaussianModel(num_examples=5).posterior(), h, gamma,
      gradient_estimator=SINGLE)
  theta, r = THETA.astype(np.float32), tf.constant(R.astype(np.float32))

  def steps(kernel, num):
    state = tf.broadcast_to(theta, [num, 3])
    results = kernel.bootstrap_results(state)._replace(
        momentum=[tf.broadcast_to(r, [num, 3])])
    return kernel.one_step(state, results, seed=tf.constant([5, num]))[1]

  exact = steps(kernel.copy(gradient_estimator=None), num_chains)
  uniform = steps(kernel, rounds * num_chains)
  s = np.float32(np.sqrt(2. * gamma * h))
  step = gradients.GaussianStep([r], [-h * gamma * r], [h], [s])
  x = (uniform.momentum[0] - r + h * gamma * r) / s
  full = tf.broadcast_to(exact.grads_target_log_prob[0][0], x.shape)
  log_weights = [
      np.reshape(exponentially_weighted.log_weight_ratio(
          uniform.grads_target_log_prob, [full], [shift], step, 1),
          [rounds, num_chains])
      for shift in (x, -x)]
  return (exact.momentum[0].numpy(),
          np.reshape(uniform.momentum[0], [rounds, num_chains, 3]),
          log_weights)


def test_ideal_weights_reproduce_the_full_gradient_step(full_gradient_steps):
  """Theorem 2, by a two-sample test.

  Uniform SGHMC steps, with the weights of equation 4 at the true r_next (all in
  it that depends on I and r_next, the full gradient's term included), as the
  proposals of an independence Metropolis chain: its law is that of the weighted
  steps. It is held to steps with the full gradient.
  """
  exact, proposals, (log_weight, wrong) = full_gradient_steps
  uniforms = np.random.default_rng(0).uniform(size=log_weight.shape)

  def p_value(log_weight):
    draws, current = proposals[0].copy(), log_weight[0].copy()
    for k in range(1, len(proposals)):
      accepted = np.log(uniforms[k]) < log_weight[k] - current
      draws[accepted], current[accepted] = (
          proposals[k][accepted], log_weight[k][accepted])
    projections = np.concatenate([np.eye(3), [[1., 1., 1.]]])
    return len(projections) * min(
        scipy.stats.ks_2samp(draws @ v, exact @ v).pvalue for v in projections)

  assert p_value(log_weight) > oracle.FALSE_ALARM_RATE
  assert p_value(0. * log_weight) < oracle.FALSE_ALARM_RATE
  assert p_value(wrong) < oracle.FALSE_ALARM_RATE


def local_variance(data, h, num_steps, num_chains):
  """Trace of the variance of g given theta and r: exact, measured, uniform."""
  num, friction = len(data), 10.
  r, s = np.array([0.5, -1.]), np.sqrt(2. * friction * h)
  g = -num * (0.1 - data)
  posterior = sgmcmc.Posterior(
      lambda theta: tf.zeros_like(theta[..., 0]),
      lambda theta, c: -0.5 * tf.reduce_sum(
          (theta[..., tf.newaxis, :] - c)**2, axis=-1), data)
  law, _ = index_law(g, h * friction * r / s, num_steps, h, s)
  trace = lambda p: p @ np.sum((g - p @ g)**2, axis=1)
  state = [tf.fill([num_chains, 2], tf.constant(0.1, tf.float64))]
  estimator = EWSG(num_index_steps=num_steps, base=SINGLE)
  estimate, _ = estimator.one_step(
      posterior, state, estimator.bootstrap_results(posterior, state),
      tf.constant([1, 2]), gradients.GaussianStep(
          [tf.broadcast_to(r, [num_chains, 2])],
          [tf.constant(-h * friction * r)], [tf.constant(h, tf.float64)],
          [tf.constant(s)]))
  squares = np.sum(
      (estimate.grads_target_log_prob[0].numpy() - law @ g)**2, axis=1)
  error = squares.std() / np.sqrt(num_chains)
  z = (squares.mean() - trace(law)) / error
  return trace(law) / trace(np.full(num, 1. / num)), z


def test_local_variance():
  """That of the enumerated weights; below that of plain minibatches or not.

  Theorem 3 has it smaller with high probability. So it is here where the
  weights gather on a few examples; where they are nearly even it is larger, by
  the correlation of |g_i|^2 with |g_i - g|^2. What EWSG gains on the law of the
  chain is the friction of the test below.
  """
  bound = scipy.stats.norm.isf(oracle.FALSE_ALARM_RATE / 4.)
  data = np.random.default_rng(0).exponential(size=[20, 2])
  ratio, z = local_variance(data, 0.05, 50, 20_000)
  assert ratio < 0.9 and abs(z) < bound
  ratio, z = local_variance(data, 1e-3, 3, 20_000)
  assert ratio > 1.1 and abs(z) < bound


def test_friction_balances_the_heat_of_the_noise():
  """To first order, E[g | r] = full gradient - h / (2 T) C r, with M = 1 too.

  C is the covariance of g: its heat is that of the friction h C / 2. Of the
  enumerated law, which the tests above hold the estimator to.
  """
  g = gradients_at(index_sets(1))
  covariance = np.cov(g, rowvar=False, bias=True)
  for num_steps in (1, 50):
    error = []
    for h in (2e-3, 1e-3):
      s = np.sqrt(2. * h)  # Friction 1.
      mean = lambda r, h=h, s=s: index_law(
          g, h * r / s, num_steps, h, s)[0] @ g  # noqa: B023
      slowed = (mean(R) - mean(-R)) / 2.
      error.append(np.abs(slowed / (-h / 2. * covariance @ R) - 1.).max())
    assert error[1] < 0.01 and error[1] < 0.6 * error[0]


def kl_of_paper_gaussian(estimator, cost, num_chains=10_000):
  """KL to the target after 30 passes over 20 examples, by moments."""
  c = np.random.default_rng(0).normal(size=[20, 2]).astype(np.float32)
  posterior = sgmcmc.Posterior(
      lambda theta: tf.zeros_like(theta[..., 0]),
      lambda theta, c: -0.5 * tf.reduce_sum(
          (theta[..., tf.newaxis, :] - c)**2, axis=-1), c)
  kernel = sgmcmc.SGHMC(posterior, 0.05, 10., gradient_estimator=estimator)
  draws, results = oracle.run_chains(
      kernel, tf.zeros([num_chains, 2]), 600 // cost)
  used = int(results.gradient_estimator_results.num_gradients[0])
  assert abs(used - 600) <= 1  # The first results take one.
  draws = draws.numpy().astype(np.float64)
  precision = 20. * np.cov(draws, rowvar=False)
  shift = draws.mean(axis=0) - c.mean(axis=0)
  return 0.5 * (np.trace(precision) - 2. - np.log(np.linalg.det(precision))
                + 20. * shift @ shift)


@pytest.mark.weekly
@pytest.mark.slow
def test_gaussian_of_the_paper_at_equal_data():
  plain = kl_of_paper_gaussian(SINGLE, 1)
  one = kl_of_paper_gaussian(EWSG(num_index_steps=1, base=SINGLE), 2)
  two = kl_of_paper_gaussian(EWSG(num_index_steps=2, base=SINGLE), 3)
  # The standard errors are about 2% of the first, 0.002 and 0.001.
  assert plain > 3. * one and one > two


@pytest.mark.parametrize('name', [
    pytest.param('sgld', marks=pytest.mark.slow), 'sghmc'])
def test_minibatches_without_noise_leave_the_exact_law(name):
  """Terms with an anchor are the exact gradient of a Gaussian likelihood."""
  model = oracle.GaussianModel()
  estimator = EWSG(num_index_steps=1, base=gradients.ControlVariate(
      2, anchor=tf.zeros([3]), replacement=True))
  num_chains, h, none = 40_000, 0.1, np.zeros([3, 3])
  if name == 'sgld':
    kernel = sgmcmc.SGLD(
        model.posterior(), h, gradient_estimator=estimator, temperature=0.5)
    law = oracle.sgld(model.precision, none, h, 0.5)
    start = none
  else:
    kernel = sgmcmc.SGHMC(
        model.posterior(), 2. * h, 1., gradient_estimator=estimator)
    law = oracle.euler(model.precision, none, 2. * h, 1.)
    start = np.diag([0., 0., 0., 1., 1., 1.])  # The momentum is drawn.
  num_steps = law.steps_until(0.1)
  mean, covariance = law.from_zero(num_steps, model.mean, start)
  mean, covariance = mean[:3], covariance[:3, :3]
  draws, results = oracle.run_chains(
      kernel, tf.zeros([num_chains, 3]), num_steps, jit_compile=False)
  assert oracle.law_p_value(draws, mean, covariance) > oracle.FALSE_ALARM_RATE
  assert oracle.law_p_value(draws, mean, 1.05 * covariance) < 1e-9
  # Rounding refuses about one in a million.
  acceptance = results.gradient_estimator_results.acceptance
  assert np.mean(acceptance) > 1. - 1e-5


def test_without_noise_at_the_end_of_a_schedule_the_index_is_uniform():
  schedule = lambda step: tf.where(step > 1, 0., 1.)
  posterior = oracle.GaussianModel().posterior()
  kernel = sgmcmc.SGHMC(
      posterior, 0.1, 1.,
      gradient_estimator=EWSG(num_index_steps=1, base=SINGLE),
      temperature=schedule)
  state = tf.zeros([5, 3])
  results = kernel.bootstrap_results(state)
  for k in range(4):
    state, results = kernel.one_step(state, results, seed=tf.constant([1, k]))
  assert np.all(np.isfinite(state))
  accepted = 4. * results.gradient_estimator_results.acceptance
  np.testing.assert_allclose(accepted, np.round(accepted), atol=1e-5)
  assert np.max(accepted) < 2.5  # In the first two steps at most.
