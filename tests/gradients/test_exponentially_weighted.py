"""EWSG: the law of the chosen index set, of the step, and what it gains.

All index sets of a small model are enumerated in NumPy, with the weights and
the Metropolis chain of the paper written out again; what the library chooses is
held to that law. A test fails by chance once in a million.
"""

import itertools

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from tests import oracle
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.gradients import exponentially_weighted

tfd = tfp.distributions
gradients = sgmcmc.gradients
EWSG = gradients.ExponentiallyWeighted
DEAL = gradients.Deal()

NUM_CHAINS = 40_000
MODEL = oracle.GaussianModel(num_examples=5, dtype=np.float64)
THETA = np.array([0.3, -0.5, 0.8])
R = np.array([1.2, -0.7, 0.5])
DRIFT = np.array([-0.3, 0.2, -0.1])
STEP_SIZE, NOISE_SCALE = 0.3, np.array([0.5, 0.8, 0.6])
SINGLE = gradients.Uniform(1, replacement=True)


def index_sets(batch_size, num_rows=5):
  return list(itertools.combinations(range(num_rows), batch_size))


def gradients_at(sets, theta=THETA, model=MODEL):
  """g_I of each index set: the prior, and N / n times its likelihood."""
  prior = (model.prior_mean - theta) / model.prior_scale**2
  return np.stack([
      prior + model.num_examples / len(s) * model.likelihood_precision @ np.sum(
          model.data[list(s)] - theta, axis=0) for s in sets])


def index_law(g, x, num_steps, h=STEP_SIZE, s=NOISE_SCALE):
  """Law of the index after M steps from a uniform one, and the acceptance."""
  energy = np.sum((x - h * g / s)**2, axis=-1) / 2.
  num_sets = len(g)
  accept = np.minimum(1., np.exp(energy[np.newaxis] - energy[:, np.newaxis]))
  transition = accept / num_sets
  transition += np.diag(1. - transition.sum(axis=1))
  law, share = np.full(num_sets, 1. / num_sets), 0.
  for _ in range(num_steps):
    share += law @ accept.mean(axis=1) / num_steps
    law = law @ transition
  return law, share


def split(vector, chains=()):
  """A state of parts [2] and []."""
  vector = np.broadcast_to(vector, [*chains, 3])
  return [tf.constant(vector[..., :2]), tf.constant(vector[..., 2])]


def gaussian_step(chains=()):
  return gradients.GaussianStep(
      split(R, chains), split(DRIFT, chains),
      [tf.constant(STEP_SIZE, tf.float64)] * 2, split(NOISE_SCALE))


def estimates(estimator, posterior=None, chains=(NUM_CHAINS,), seed=(1, 2)):
  """The chosen gradients `chains + [3]`, and the results, of one step."""
  posterior = MODEL.posterior() if posterior is None else posterior
  parts = split(THETA, chains)
  results = estimator.bootstrap_results(posterior, parts)
  estimate, results = estimator.one_step(
      posterior, parts, results, tf.constant(seed), gaussian_step(chains))
  slope, intercept = estimate.grads_target_log_prob
  return np.concatenate(
      [slope, intercept[..., tf.newaxis]], axis=-1), results


def chosen(estimate, candidates):
  """Which candidate each gradient is."""
  distance = np.abs(estimate[:, np.newaxis] - candidates).sum(axis=-1)
  assert distance.min(axis=1).max() < 1e-8
  return np.argmin(distance, axis=1)


def law_p_value(estimator, sets, x, num_steps, candidates=None, **arguments):
  candidates = gradients_at(sets) if candidates is None else candidates
  law, share = index_law(candidates, x, num_steps)
  estimate, results = estimates(estimator, **arguments)
  counts = np.bincount(chosen(estimate, candidates), minlength=len(candidates))
  acceptance = np.asarray(results.acceptance)
  z = (acceptance.mean() - share) / np.sqrt(
      acceptance.var() / len(acceptance) + 1e-12)
  return min(scipy.stats.chisquare(counts, law * NUM_CHAINS).pvalue,
             2. * scipy.stats.norm.sf(abs(z)))


STATIONARY = -DRIFT / NOISE_SCALE


@pytest.mark.parametrize('num_steps', [1, 2, 5])
def test_law_of_the_index(num_steps):
  """Algorithm 1: M steps of the Metropolis chain from a uniform index."""
  p_value = law_p_value(
      EWSG(None, num_steps, SINGLE), index_sets(1), STATIONARY, num_steps)
  assert p_value > oracle.FALSE_ALARM_RATE


def test_index_chain_converges_to_the_ideal_weights():
  """Equation 4; and few steps are still far from it."""
  g = gradients_at(index_sets(1))
  weights = np.exp(
      np.sum((STATIONARY - STEP_SIZE * g / NOISE_SCALE)**2, axis=-1) / 2.)
  ideal = weights / weights.sum()
  law, _ = index_law(g, STATIONARY, 60)
  np.testing.assert_allclose(law, ideal, atol=1e-6)
  p_values = []
  for num_steps in (60, 1):
    counts = np.bincount(
        chosen(estimates(EWSG(None, num_steps, SINGLE))[0], g), minlength=5)
    p_values.append(scipy.stats.chisquare(counts, ideal * NUM_CHAINS).pvalue)
  assert p_values[0] > oracle.FALSE_ALARM_RATE > p_values[1]


@pytest.mark.parametrize('num_steps', [1, 4])
def test_law_of_index_sets(num_steps):
  p_value = law_p_value(
      EWSG(2, num_steps), index_sets(2), STATIONARY, num_steps)
  assert p_value > oracle.FALSE_ALARM_RATE


@pytest.mark.parametrize('shift, x', [
    ('zero', np.zeros(3)),
    (0.7, np.full(3, 0.7)),
    (-1, np.full(3, -1.)),
    ('zero_next_momentum', -(R + DRIFT) / NOISE_SCALE),
    (lambda step: [0.5 * r for r in step.momentum], 0.5 * R),
])
def test_shifts(shift, x):
  p_value = law_p_value(
      EWSG(None, 2, SINGLE, shift=shift), index_sets(1), x, 2)
  assert p_value > oracle.FALSE_ALARM_RATE


def _patched(change):
  ratio = exponentially_weighted.log_weight_ratio
  return lambda new, old, x, step, rank: change(ratio, new, old, x, step, rank)


MUTANTS = {
    'x with the wrong sign': lambda f, new, old, x, step, rank: f(
        new, old, [-v for v in x], step, rank),
    'weights inverted': lambda f, new, old, x, step, rank: -f(
        new, old, x, step, rank),
    'without the half': lambda f, new, old, x, step, rank: 2. * f(
        new, old, x, step, rank),
    'the first part alone': lambda f, new, old, x, step, rank: f(
        new[:1], old[:1], x[:1], step, rank),
    'a not over the noise': lambda f, new, old, x, step, rank: f(
        new, old, x, step._replace(
            noise_scale=[tf.ones_like(s) for s in step.noise_scale]), rank),
    'always accepted': lambda f, new, old, x, step, rank: tf.zeros_like(
        f(new, old, x, step, rank)),
}


@pytest.mark.parametrize('name', MUTANTS)
def test_planted_errors_in_the_weights_are_seen(name, monkeypatch):
  monkeypatch.setattr(
      exponentially_weighted, 'log_weight_ratio', _patched(MUTANTS[name]))
  p_value = law_p_value(
      EWSG(None, 1, SINGLE), index_sets(1), STATIONARY, 1)
  assert p_value < oracle.FALSE_ALARM_RATE


def test_rows_dealt_into_minibatches():
  """M = 1: a set of half of the rows, or the other half of them."""
  sets = index_sets(2, 4)
  model = oracle.GaussianModel(num_examples=4, dtype=np.float64)
  g = gradients_at(sets, model=model)
  energy = np.sum((STATIONARY - STEP_SIZE * g / NOISE_SCALE)**2, axis=-1) / 2.
  law = np.zeros(6)
  for k in range(6):
    other = 5 - k  # The complement, in lexical order.
    accept = min(1., np.exp(energy[other] - energy[k]))
    law[other] += accept / 6.
    law[k] += (1. - accept) / 6.
  for estimator, same in ((EWSG(None, 1, DEAL), True), (EWSG(2, 1), False)):
    estimate, results = estimates(estimator, model.posterior())
    assert np.all(results.num_gradients == 4)
    counts = np.bincount(chosen(estimate, g), minlength=6)
    p_value = scipy.stats.chisquare(counts, law * NUM_CHAINS).pvalue
    assert (p_value > oracle.FALSE_ALARM_RATE) == same


def test_more_sets_than_rows_share_them():
  """As in a last batch of fit that is shorter than M + 1."""
  model = oracle.GaussianModel(num_examples=2, dtype=np.float64)
  posterior = model.posterior()
  parts = split(THETA)
  results = EWSG(None, 1, DEAL).bootstrap_results(posterior, parts)
  estimate, _ = EWSG(None, 3, DEAL).one_step(
      posterior, parts, results, tf.constant([1, 2]), gaussian_step())
  flat = np.concatenate(
      [np.ravel(g) for g in estimate.grads_target_log_prob])
  chosen(flat[np.newaxis], gradients_at([(0,), (1,)], model=model))


def poisson_regression():
  rng = np.random.default_rng(2)
  x, y = rng.normal(size=[5, 2]), np.arange(5.) % 3

  def log_likelihood(slope, intercept, batch):
    x, y = batch
    return tfd.Poisson(log_rate=tf.einsum(
        '...nd,...d->...n', x, slope) + intercept[..., tf.newaxis]).log_prob(y)

  return sgmcmc.Posterior(
      lambda slope, intercept: (
          -0.5 * tf.reduce_sum(slope**2, axis=-1) - 0.5 * intercept**2),
      log_likelihood, (x, y))


def test_terms_of_svrg():
  """The candidates are SVRG's estimates; the anchor is prepared once."""
  posterior, num_steps = poisson_regression(), 2
  base = gradients.SVRG(1, refresh_every=100, replacement=True)
  chains = (NUM_CHAINS,)
  anchor = split(THETA + [0.9, -0.6, -0.4], chains)
  estimator = EWSG(None, num_steps, base)
  parts = split(THETA, chains)
  _, results = estimator.one_step(
      posterior, anchor, estimator.bootstrap_results(posterior, anchor),
      tf.constant([7, 8]))
  assert np.all(results.num_gradients == 5 + 2)
  candidates = []
  for i in range(5):
    at = base.estimate(
        posterior, parts, results.base_results,
        tf.fill([NUM_CHAINS, 1], i)).grads_target_log_prob
    candidates.append([*at[0][0].numpy(), at[1][0].numpy()])
  candidates = np.array(candidates)
  assert np.ptp(candidates, axis=0).max() > 0.5
  estimate, results = estimator.one_step(
      posterior, parts, results, tf.constant([1, 2]), gaussian_step(chains))
  assert np.all(results.num_gradients == 5 + 2 + 2 * (num_steps + 1))
  assert results.base_results.num_estimates == 2
  slope, intercept = estimate.grads_target_log_prob
  flat = np.concatenate([slope, intercept[..., tf.newaxis]], axis=-1)
  counts = np.bincount(chosen(flat, candidates), minlength=5)
  law, _ = index_law(candidates, STATIONARY, num_steps)
  p_values = [
      scipy.stats.chisquare(counts, p * NUM_CHAINS).pvalue
      for p in (law, index_law(candidates, STATIONARY, 1)[0])]
  assert p_values[0] > oracle.FALSE_ALARM_RATE > p_values[1]


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
        posterior, H / 4., estimator, temperature=TEMPERATURE)
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
        posterior, H, GAMMA, estimator, temperature=TEMPERATURE,
        noise_estimate=0.4)
    _, results = one_step(kernel, dict(momentum=momentum))
    noise, force = GAMMA - 0.4, GAMMA * R
  else:
    kernel = sgmcmc.SGNHT(
        posterior, H, GAMMA, estimator, thermostat=name,
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
  samples, drift, h, s, r = dynamics(name, EWSG(None, num_steps, SINGLE))
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
      oracle.GaussianModel(num_examples=5).posterior(), h, gamma, SINGLE)
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
  estimator = EWSG(None, num_steps, SINGLE)
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
  kernel = sgmcmc.SGHMC(posterior, 0.05, 10., estimator)
  draws, results = oracle.run_chains(
      kernel, tf.zeros([num_chains, 2]), 600 // cost)
  used = int(results.gradient_estimator_results.num_gradients[0])
  assert abs(used - 600) <= 1  # The first results take one.
  draws = draws.numpy().astype(np.float64)
  precision = 20. * np.cov(draws, rowvar=False)
  shift = draws.mean(axis=0) - c.mean(axis=0)
  return 0.5 * (np.trace(precision) - 2. - np.log(np.linalg.det(precision))
                + 20. * shift @ shift)


@pytest.mark.slow
def test_gaussian_of_the_paper_at_equal_data():
  plain = kl_of_paper_gaussian(SINGLE, 1)
  one = kl_of_paper_gaussian(EWSG(None, 1, SINGLE), 2)
  two = kl_of_paper_gaussian(EWSG(None, 2, SINGLE), 3)
  # The standard errors are about 2% of the first, 0.002 and 0.001.
  assert plain > 3. * one and one > two


@pytest.mark.parametrize('name', [
    pytest.param('sgld', marks=pytest.mark.slow), 'sghmc'])
def test_minibatches_without_noise_leave_the_exact_law(name):
  """Terms with an anchor are the exact gradient of a Gaussian likelihood."""
  model = oracle.GaussianModel()
  estimator = EWSG(None, 1, gradients.ControlVariate(
      2, anchor=tf.zeros([3]), replacement=True))
  num_chains, h = 40_000, 0.1
  # Of the start 1e-4 is left.
  num_steps = {'sgld': 45, 'sghmc': 95}[name]
  if name == 'sgld':
    kernel = sgmcmc.SGLD(model.posterior(), h, estimator, temperature=0.5)
    covariance = oracle.sgld_covariance(
        model.precision, np.zeros([3, 3]), h, 0.5)
  else:
    kernel = sgmcmc.SGHMC(model.posterior(), 2. * h, 1., estimator)
    covariance = oracle.euler_covariance(
        model.precision, np.zeros([3, 3]), 2. * h, 1.)[:3, :3]
  draws, results = oracle.run_chains(
      kernel, tf.zeros([num_chains, 3]), num_steps)
  assert oracle.law_p_value(
      draws, model.mean, covariance) > oracle.FALSE_ALARM_RATE
  assert oracle.law_p_value(draws, model.mean, 1.05 * covariance) < 1e-9
  # Rounding refuses about one in a million.
  acceptance = results.gradient_estimator_results.acceptance
  assert np.mean(acceptance) > 1. - 1e-5


def test_acceptance_is_the_mean_over_the_steps():
  posterior = MODEL.posterior()
  estimator, chains = EWSG(None, 1, SINGLE), (7,)
  parts = split(THETA, chains)
  results = estimator.bootstrap_results(posterior, parts)
  shares = []
  for k in range(6):
    alone = estimator.bootstrap_results(posterior, parts)
    arguments = (tf.constant([1, k]), gaussian_step(chains))
    shares.append(estimator.one_step(
        posterior, parts, alone, *arguments)[1].acceptance)
    _, results = estimator.one_step(posterior, parts, results, *arguments)
  np.testing.assert_allclose(results.acceptance, np.mean(shares, axis=0))
  assert 0. < np.mean(shares) < 1.
  assert results.step == 6 and np.all(results.num_gradients == 12)


@pytest.mark.parametrize('num_steps', [1, 4])
def test_least_acceptance_is_that_of_very_uneven_weights(num_steps):
  """Gradients of 2,000 rows differ by thousands of noises.

  6 standard errors over 4,000 chains; one pair in 2,000 is of the same row.
  """
  posterior = oracle.GaussianModel(
      num_examples=2000, dtype=np.float64).posterior()
  estimator = EWSG(None, num_steps, SINGLE)
  _, results = estimates(estimator, posterior, chains=(4000,))
  share = np.asarray(results.acceptance)
  error = share.std() / np.sqrt(len(share))
  assert abs(share.mean() - estimator.least_acceptance) < 6. * error + 1e-3


def test_without_noise_at_the_end_of_a_schedule_the_index_is_uniform():
  schedule = lambda step: tf.where(step > 1, 0., 1.)
  posterior = oracle.GaussianModel().posterior()
  kernel = sgmcmc.SGHMC(
      posterior, 0.1, 1., EWSG(None, 1, SINGLE), temperature=schedule)
  state = tf.zeros([5, 3])
  results = kernel.bootstrap_results(state)
  for k in range(4):
    state, results = kernel.one_step(state, results, seed=tf.constant([1, k]))
  assert np.all(np.isfinite(state))
  accepted = 4. * results.gradient_estimator_results.acceptance
  np.testing.assert_allclose(accepted, np.round(accepted), atol=1e-5)
  assert np.max(accepted) < 2.5  # In the first two steps at most.


def _kernel(estimator=None, kernel=sgmcmc.SGHMC, **arguments):
  own = {'SGHMC': dict(friction=1.), 'SGNHT': dict(diffusion=1.), 'SGLD': {}}
  return kernel(
      oracle.GaussianModel().posterior(), **{
          **dict(step_size=0.1, gradient_estimator=estimator or EWSG(2)),
          **own[kernel.__name__], **arguments})


def _bad_shift():
  kernel = _kernel(EWSG(2, shift=lambda step: step.momentum[0]))
  state = tf.zeros([3])
  return kernel.one_step(
      state, kernel.bootstrap_results(state), seed=tf.constant([0, 0]))


@pytest.mark.parametrize('make, error, message', [
    (lambda: EWSG(0), ValueError, 'batch_size is 0'),
    (lambda: EWSG(2, 0), ValueError, 'num_index_steps is 0'),
    (lambda: EWSG(2, 1.5), TypeError, 'Python integer'),
    (lambda: EWSG(2, shift='stationery'), ValueError, "'stationary', 'zero'"),
    (lambda: EWSG(2, shift=np.nan), ValueError, 'finite'),
    (lambda: EWSG(2, shift=[1., 2.]), TypeError, 'shift'),
    (lambda: EWSG(2, base=gradients.Exact()), TypeError, 'tries several'),
    (lambda: EWSG(2, base=gradients.Noisy(1.)), TypeError, 'tries several'),
    (lambda: EWSG(2, base=gradients.SAGA(2)), TypeError, 'SVRG'),
    (lambda: EWSG(2, base=gradients.Uniform(3)), ValueError,
     'batch_size is 2, and that of base'),
    (lambda: _kernel(EWSG(13)), ValueError, 'only 12 examples'),
    (lambda: _kernel(EWSG(None, 12, DEAL)), ValueError,
     'dealt into 13 minibatches'),
    (lambda: _kernel(integrator='baoab'), ValueError, 'two gradients'),
    (lambda: _kernel(gradients.Noisy(1., EWSG(2)), integrator='baoab'),
     ValueError, 'two gradients'),
    (lambda: _kernel(temperature=0.), ValueError, 'temperature = 0'),
    (lambda: _kernel(noise_estimate=1.), ValueError,
     'friction - noise_estimate = 0'),
    (lambda: _kernel(kernel=sgmcmc.SGLD, temperature=0.), ValueError,
     'temperature = 0'),
    (lambda: _kernel(kernel=sgmcmc.SGNHT, diffusion=0.), ValueError,
     'diffusion = 0'),
    (lambda: sgmcmc.SGLD(
        tfd.Normal(0., 1.).log_prob, 0.1, EWSG(2)), TypeError, 'Posterior'),
    (lambda: sgmcmc.SGLD(
        tfd.Normal(0., 1.).log_prob, 0.1, EWSG(None, 1, DEAL)), TypeError,
     'Posterior'),
    (_bad_shift, ValueError, 'list of 1 tensor'),
])
def test_refusals(make, error, message):
  with pytest.raises(error, match=message):
    make()
