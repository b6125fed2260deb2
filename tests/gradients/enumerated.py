"""EWSG on a small model, all its index sets enumerated in NumPy.

The weights and the Metropolis chain of the paper are written out again.
"""

import itertools

import numpy as np
import scipy.stats
import tensorflow as tf

from tests import oracle
import tfp_sgmcmc as sgmcmc

gradients = sgmcmc.gradients
EWSG = gradients.ExponentiallyWeighted

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
