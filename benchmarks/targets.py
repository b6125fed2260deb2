"""The posteriors of `data.py` in TensorFlow."""

import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks import data
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions


def posterior(case: dict) -> sgmcmc.Posterior:
  """The posterior of a case, with a standard normal prior."""
  x, y = data.examples(case)
  if case['model'] == 'perceptron':
    return sgmcmc.Posterior(
        perceptron_log_prior, perceptron_log_likelihood, (x, y.astype('int32')))
  return sgmcmc.Posterior(
      tfd.MultivariateNormalDiag(tf.zeros(x.shape[-1])).log_prob,
      logistic_log_likelihood, (x, y))


def start(case: dict, num_chains: int | None = None) -> list[tf.Tensor]:
  """The parts of the state, with an axis of chains where there are several."""
  parts = data.start(case)
  parts = parts if isinstance(parts, list) else [parts]
  parts = [tf.constant(part) for part in parts]
  if num_chains is None:
    return parts
  return [tf.tile(part[tf.newaxis], [num_chains] + [1] * part.shape.rank)
          for part in parts]


def logistic_log_likelihood(theta, batch):
  x, y = batch
  logits = tf.einsum('...nd,...d->...n', x, theta)
  return tfd.Bernoulli(logits=logits).log_prob(y)


def perceptron_log_prior(*parts):
  return -0.5 * sum(tf.reduce_sum(tf.square(part)) for part in parts)


def perceptron_log_likelihood(w1, b1, w2, b2, batch):
  x, y = batch
  logits = tf.nn.relu(x @ w1 + b1) @ w2 + b2
  return -tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
