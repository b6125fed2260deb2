"""Derivatives of a log density along a direction, against the gradients."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.gradients import minibatch

tfb = tfp.bijectors
tfd = tfp.distributions

N, SHOWN = 12, 5
THETA = tf.constant([0.3, -0.4, 0.8], tf.float64)
DIRECTION = tf.constant([1., -0.5, 2.], tf.float64)


def regression(theta, batch):
  x, y, _ = batch
  return tfd.Bernoulli(logits=tf.linalg.matvec(x, theta)).log_prob(y)


def random_effects(theta, batch):
  x, _, group = batch
  return tfd.Normal(tf.gather(theta, group), 1.).log_prob(x[:, 0])


def by_map(theta, batch):
  return tf.map_fn(lambda x: -tf.reduce_sum(tf.tanh(x * theta)), batch[0])


def by_scan(theta, batch):
  return tf.scan(
      lambda s, x: tf.tanh(s * theta[0] + x * theta[1]),
      tf.transpose(batch[0]), tf.zeros_like(batch[1]))[-1]


def by_bijector(theta, batch):
  shape, rate, _ = tf.unstack(tfb.Softplus()(tfb.Scale(theta)).forward(
      tf.constant([2., 3., 1.], theta.dtype)))
  return tfd.Gamma(shape, rate).log_prob(tf.abs(batch[0][:, 1]) + 0.1)


def of_data_alone(theta, batch):
  del theta
  return batch[0][:, 0]


@pytest.mark.slow
@pytest.mark.weekly_after(4)
@pytest.mark.parametrize('log_likelihood', [
    regression, random_effects, by_map, by_scan, by_bijector, of_data_alone])
@pytest.mark.parametrize('jit_compile', [False, True])
def test_derivative(log_likelihood, jit_compile):
  """D = u . g on the same rows, and its noise as in the module's docstring."""
  random = np.random.default_rng(0)
  posterior = sgmcmc.Posterior(
      lambda theta: -tf.reduce_sum(theta**4), log_likelihood,
      (random.normal(size=[N, 3]), random.integers(2, size=N).astype(float),
       random.integers(3, size=N)))
  estimator = sgmcmc.gradients.Uniform(SHOWN)

  @tf.function(jit_compile=jit_compile, autograph=False)
  def derivative():
    drawn, _ = estimator.directional(
        posterior, [THETA], estimator.bootstrap_results(posterior, [THETA]),
        tf.constant([1, 2]))
    return drawn.derivative([THETA], [DIRECTION])

  rows = estimator.draw(
      posterior, tf.zeros([0], tf.int32), tf.constant([1, 2]))
  each, = tf.function(
      lambda: minibatch.per_example_gradients(posterior, [THETA]))()
  slopes = tf.linalg.matvec(tf.gather(each, rows), DIRECTION).numpy()
  of_prior = -4. * np.sum(THETA**3 * DIRECTION)
  value, variance, log_prob = derivative()
  np.testing.assert_allclose(
      value, of_prior + N / SHOWN * slopes.sum(), atol=1e-12)
  np.testing.assert_allclose(
      variance, N**2 / SHOWN * (1. - SHOWN / N) * slopes.var(ddof=1),
      atol=1e-12)
  np.testing.assert_allclose(log_prob, posterior.log_prob_estimate(
      THETA, batch=posterior.gather(rows)))
