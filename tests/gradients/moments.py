"""The mean and the variance of estimates against what they have to be."""

import numpy as np
import scipy.stats
import tensorflow as tf

import tfp_sgmcmc as sgmcmc

NUM_ESTIMATES = 200_000
# A test of up to four coordinates, two-sided, fails by chance this often.
FALSE_ALARM_RATE = 1e-6
Z = scipy.stats.norm.isf(FALSE_ALARM_RATE / 16.)
ROUNDING = 1e-5


def as_array(gradients, num):
  return np.concatenate(
      [np.reshape(g, [num, -1]) for g in gradients], axis=1).astype(float)


def are_as_said(estimator, posterior, parts, results=None, many_results=None):
  """Whether estimates have the exact mean and the variance that they say.

  Args:
    estimator: Estimator.
    posterior: `Posterior`.
    parts: State of one chain.
    results: The estimator's results, of one chain, before each estimate.
    many_results: The same for many chains, where they differ in shape.

  Returns:
    passed: Python `bool`.
  """
  num = NUM_ESTIMATES
  exact = sgmcmc.gradients.Exact()
  value, wanted = exact.one_step(
      posterior, parts, exact.bootstrap_results(posterior, parts), None)[0]
  wanted = as_array(wanted, 1)[0]
  variance = as_array(estimator.variance(posterior, parts, results), 1)[0]
  many = [tf.broadcast_to(part, [num, *part.shape]) for part in parts]
  if many_results is None:
    many_results = None if results is None else results._replace(
        num_gradients=tf.fill([num], results.num_gradients))
  if many_results is None:
    many_results = estimator.bootstrap_results(posterior, many)
  estimate, _ = estimator.one_step(
      posterior, many, many_results, tf.constant([5, 6]))
  gradients = as_array(estimate.grads_target_log_prob, num)
  fourth = np.mean((gradients - wanted)**4, axis=0)
  error = np.sqrt((fourth - variance**2).clip(0.) / num)
  values = np.asarray(estimate.target_log_prob, float)
  return bool(
      np.all(np.abs(gradients.mean(axis=0) - wanted) < (
          Z * np.sqrt(variance / num) + ROUNDING))
      and np.all(
          np.abs(gradients.var(axis=0) - variance) < Z * error + ROUNDING)
      and abs(values.mean() - value) < (
          Z * values.std() / np.sqrt(num) + 20. * ROUNDING))
