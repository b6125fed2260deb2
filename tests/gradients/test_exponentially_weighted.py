"""EWSG: the law of the chosen index set.

What the library chooses is held to the enumerated law. A test fails by chance
once in a million.
"""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from tests import oracle
from tests.gradients.enumerated import DRIFT
from tests.gradients.enumerated import EWSG
from tests.gradients.enumerated import MODEL
from tests.gradients.enumerated import NOISE_SCALE
from tests.gradients.enumerated import NUM_CHAINS
from tests.gradients.enumerated import SINGLE
from tests.gradients.enumerated import STATIONARY
from tests.gradients.enumerated import STEP_SIZE
from tests.gradients.enumerated import THETA
from tests.gradients.enumerated import R
from tests.gradients.enumerated import chosen
from tests.gradients.enumerated import estimates
from tests.gradients.enumerated import gaussian_step
from tests.gradients.enumerated import gradients_at
from tests.gradients.enumerated import index_law
from tests.gradients.enumerated import index_sets
from tests.gradients.enumerated import law_p_value
from tests.gradients.enumerated import split
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.gradients import exponentially_weighted

tfd = tfp.distributions
gradients = sgmcmc.gradients
DEAL = gradients.Reshuffled()


@pytest.mark.parametrize('num_steps', [1, 2, 5])
def test_law_of_the_index(num_steps):
  """Algorithm 1: M steps of the Metropolis chain from a uniform index."""
  p_value = law_p_value(
      EWSG(num_index_steps=num_steps, base=SINGLE), index_sets(1), STATIONARY,
      num_steps)
  assert p_value > oracle.FALSE_ALARM_RATE


@pytest.mark.slow
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
        chosen(estimates(EWSG(num_index_steps=num_steps, base=SINGLE))[0], g),
        minlength=5)
    p_values.append(scipy.stats.chisquare(counts, ideal * NUM_CHAINS).pvalue)
  assert p_values[0] > oracle.FALSE_ALARM_RATE > p_values[1]


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('num_steps', [1, 4])
def test_law_of_index_sets(num_steps):
  p_value = law_p_value(
      EWSG(2, num_index_steps=num_steps), index_sets(2), STATIONARY, num_steps)
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
      EWSG(num_index_steps=2, base=SINGLE, shift=shift), index_sets(1), x, 2)
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
      EWSG(num_index_steps=1, base=SINGLE), index_sets(1), STATIONARY, 1)
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
  for estimator, same in (
      (EWSG(num_index_steps=1, base=DEAL), True),
      (EWSG(2, num_index_steps=1), False)):
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
  results = EWSG(num_index_steps=1, base=DEAL).bootstrap_results(
      posterior,
      parts)
  estimate, _ = EWSG(num_index_steps=3, base=DEAL).one_step(
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
  base = gradients.SVRG(1, steps_per_anchor=100, replacement=True)
  chains = (NUM_CHAINS,)
  anchor = split(THETA + [0.9, -0.6, -0.4], chains)
  estimator = EWSG(num_index_steps=num_steps, base=base)
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


def test_acceptance_is_the_mean_over_the_steps():
  posterior = MODEL.posterior()
  estimator, chains = EWSG(num_index_steps=1, base=SINGLE), (7,)
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
  estimator = EWSG(num_index_steps=num_steps, base=SINGLE)
  _, results = estimates(estimator, posterior, chains=(4000,))
  share = np.asarray(results.acceptance)
  error = share.std() / np.sqrt(len(share))
  assert abs(share.mean() - estimator.least_acceptance) < 6. * error + 1e-3


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
    (lambda: EWSG(2, num_index_steps=0), ValueError, 'num_index_steps is 0'),
    (lambda: EWSG(2, num_index_steps=1.5), TypeError, 'Python integer'),
    (lambda: EWSG(2, shift='stationery'), ValueError, "'stationary', 'zero'"),
    (lambda: EWSG(2, shift=np.nan), ValueError, 'finite'),
    (lambda: EWSG(2, shift=[1., 2.]), TypeError, 'shift'),
    (lambda: EWSG(2, base=gradients.Exact()), TypeError, 'tries several'),
    (lambda: EWSG(2, base=gradients.GaussianNoise(1.)), TypeError,
     'tries several'),
    (lambda: EWSG(2, base=gradients.SAGA(2)), TypeError, 'SVRG'),
    (lambda: EWSG(2, base=gradients.Uniform(3)), ValueError,
     'batch_size is 2, and that of base'),
    (lambda: _kernel(EWSG(13)), ValueError, 'only 12 examples'),
    (lambda: _kernel(EWSG(num_index_steps=12, base=DEAL)), ValueError,
     'dealt into 13 minibatches'),
    (lambda: _kernel(integrator='baoab'), ValueError, 'two gradients'),
    (lambda: _kernel(gradients.GaussianNoise(1., EWSG(2)), integrator='baoab'),
     ValueError, 'two gradients'),
    (lambda: _kernel(temperature=0.), ValueError, 'temperature = 0'),
    (lambda: _kernel(noise_estimate=1.), ValueError,
     'friction - noise_estimate = 0'),
    (lambda: _kernel(kernel=sgmcmc.SGLD, temperature=0.), ValueError,
     'temperature = 0'),
    (lambda: _kernel(kernel=sgmcmc.SGNHT, diffusion=0.), ValueError,
     'diffusion = 0'),
    (lambda: sgmcmc.SGLD(
        tfd.Normal(0., 1.).log_prob, 0.1, gradient_estimator=EWSG(2)),
        TypeError, 'Posterior'),
    (lambda: sgmcmc.SGLD(
        tfd.Normal(0., 1.).log_prob, 0.1,
        gradient_estimator=EWSG(num_index_steps=1, base=DEAL)), TypeError,
     'Posterior'),
    (_bad_shift, ValueError, 'list of 1 tensor'),
])
def test_refusals(make, error, message):
  with pytest.raises(error, match=message):
    make()
