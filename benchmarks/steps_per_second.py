"""Steps a second of SGLD by `tfp.mcmc.sample_chain` under XLA.

  python benchmarks/steps_per_second.py

Logistic regression (20 coefficients, minibatches of 100) on data of several
sizes, and a perceptron 784-100-10; and, for the part of a step that chooses a
minibatch, draws of 100 distinct indices alone. Each line is the best of five
runs of one compiled function, the cases in turn, so that their ratios hold on a
machine whose speed drifts.

What is left of a dependence on N is memory: rows of a table larger than the
processor's cache take longer to fetch.
"""

import argparse
import os
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tensorflow_probability as tfp  # noqa: E402

import tfp_sgmcmc as sgmcmc  # noqa: E402

tfd = tfp.distributions


def logistic_regression(num_examples, num_features=20):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(num_examples, num_features)).astype(np.float32)
  y = (rng.uniform(size=num_examples) < 0.5).astype(np.float32)

  def log_likelihood(theta, batch):
    x, y = batch
    logits = tf.einsum('...nd,...d->...n', x, theta)
    return tfd.Bernoulli(logits=logits).log_prob(y)

  return sgmcmc.Posterior(
      tfd.MultivariateNormalDiag(tf.zeros(num_features)).log_prob,
      log_likelihood, (x, y))


def perceptron(num_examples=10_000, sizes=(784, 100, 10)):
  rng = np.random.default_rng(0)
  x = rng.uniform(size=(num_examples, sizes[0])).astype(np.float32)
  y = rng.integers(0, sizes[-1], num_examples).astype(np.int32)

  def log_prior(*parts):
    return -0.5 * sum(tf.reduce_sum(tf.square(part)) for part in parts)

  def log_likelihood(w1, b1, w2, b2, batch):
    x, y = batch
    logits = tf.nn.relu(x @ w1 + b1) @ w2 + b2
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)

  state = [
      tf.constant(rng.normal(0., 0.05, size), tf.float32)
      for size in (sizes[:2], sizes[1:2], sizes[1:], sizes[2:])]
  return sgmcmc.Posterior(log_prior, log_likelihood, (x, y)), state


def runner(posterior, state, num_steps, batch_size=100):
  """Returns a function that makes `num_steps` steps."""
  kernel = sgmcmc.SGLD(
      posterior, step_size=0.01 / posterior.num_examples,
      gradient_estimator=sgmcmc.gradients.Uniform(batch_size))

  @tf.function(jit_compile=True)
  def run(state, seed):
    return tfp.mcmc.sample_chain(
        1, state, kernel=kernel, num_burnin_steps=num_steps - 1, trace_fn=None,
        seed=seed)

  def call(seed):
    start = time.perf_counter()
    tf.nest.map_structure(
        lambda t: t.numpy(), run(state, tf.constant([0, seed])))
    return num_steps / (time.perf_counter() - start)

  call(0)
  return call


def index_runner(num_examples, num_steps=100_000, batch_size=100):
  """Returns a function that draws `num_steps` minibatches of indices."""
  @tf.function(jit_compile=True)
  def run(seed):
    def body(step, seed, total):
      indices = sgmcmc.random.indices(num_examples, [batch_size], seed)
      return step + 1, seed + 1, total + tf.reduce_sum(indices)
    return tf.while_loop(
        lambda step, *_: step < num_steps, body, (0, seed, 0))[2]

  def call(seed):
    start = time.perf_counter()
    run(tf.constant([0, seed])).numpy()
    return num_steps / (time.perf_counter() - start)

  call(0)
  return call


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--repeats', type=int, default=5)
  repeats = parser.parse_args().repeats
  cases = {
      f'logistic regression, N={n:,}': runner(
          logistic_regression(n), tf.zeros(20), 100_000)
      for n in (1_000, 100_000, 1_000_000)}
  cases['logistic regression, N=100,000, 1,000 chains'] = runner(
      logistic_regression(100_000), tf.zeros([1000, 20]), 200)
  cases['perceptron 784-100-10'] = runner(*perceptron(), 3_000)
  cases.update({
      f'100 of {n:,} indices': index_runner(n) for n in (1_000, 1_000_000)})
  rates = {name: [] for name in cases}
  for repeat in range(repeats):
    for name, call in cases.items():
      rates[name].append(call(repeat + 1))
  for name, values in rates.items():
    print(f'{name:<48} {max(values):>10,.0f} steps/s '
          f'(median {np.median(values):,.0f})')


if __name__ == '__main__':
  main()
