"""Targets, kernels and runs that the tests of continuous time share."""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tests import oracle
import tfp_sgmcmc as sgmcmc

pdmp = sgmcmc.pdmp


def gaussian(dtype=np.float64, num_examples=12):
  """The conjugate model of the oracle, and its log density as a function."""
  model = oracle.GaussianModel(num_examples, dtype)
  precision = tf.constant(model.precision, dtype)
  mean = tf.constant(model.mean, dtype)

  def log_prob(theta):
    centred = theta - mean
    return -0.5 * tf.reduce_sum(
        centred * tf.linalg.matvec(precision, centred), axis=-1)

  return model, log_prob


def in_two_parts(log_prob):
  return lambda a, b: log_prob(tf.concat([a, b[..., tf.newaxis]], axis=-1))


def minibatch_bound(model):
  """Of every minibatch's G: each is affine in t, and one is the largest."""
  prior_precision = np.diag(model.prior_scale**-2.)
  constant = lambda x: tf.constant(x, model.dtype)
  from_data = model.data @ model.likelihood_precision

  def bound(start):
    theta, v = start.state_parts[0], start.velocity[0]
    product = lambda matrix, x: tf.linalg.matvec(constant(matrix), x)
    n = model.num_examples
    largest = n * tf.reduce_max(
        -tf.einsum('nd,...d->...n', constant(from_data), v), axis=-1)
    prior = product(prior_precision, theta - constant(model.prior_mean))
    likelihood = n * product(model.likelihood_precision, theta)
    return pdmp.AffineRate(
        tf.reduce_sum(v * (prior + likelihood), axis=-1) + largest,
        tf.reduce_sum(v * product(model.precision, v), axis=-1))

  return bound


def exact_draws(model, num, temperature=1., seed=5):
  """Independent draws of the target, from NumPy's generator."""
  rng = np.random.default_rng(seed)
  factor = np.linalg.cholesky(np.linalg.inv(model.precision) * temperature)
  return (model.mean + rng.normal(size=[num, 3]) @ factor.T).astype(model.dtype)


def run_path(
    kernel, state, num_events, seed=(1, 2), trace=None, burnin=0):
  """States and traced results of a chain of events, in a graph.

  To compile with XLA takes longer, and pays for thousands of events.
  """
  trace = pdmp.trace_path if trace is None else trace
  run = tf.function(lambda: tfp.mcmc.sample_chain(
      num_events, state, kernel=kernel, num_burnin_steps=burnin,
      trace_fn=trace, seed=tf.constant(seed)), autograph=False)
  return run()
