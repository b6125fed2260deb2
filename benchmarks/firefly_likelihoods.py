"""What Firefly Monte Carlo costs, beside MALA on all the data.

  python benchmarks/firefly_likelihoods.py

Logistic regression, N examples and 10 coefficients, one chain from the mode:
likelihoods (with gradients) that a step takes, its share of accepted moves,
likelihoods and time for one independent draw (by the smallest effective sample
size of the coefficients).
The samplers' runs alternate in one process, so that their ratios hold on a
machine whose speed drifts; of the times the smallest counts.
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


def logistic_regression(num_examples, num_features=10):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(num_examples, num_features)).astype(np.float32)
  logits = x @ rng.normal(size=num_features)
  y = (rng.uniform(size=num_examples) < 1. / (1. + np.exp(-logits))).astype(
      np.float32)

  def log_likelihood(theta, batch):
    x, y = batch
    logits = tf.einsum('...nd,...d->...n', x, theta)
    return tfd.Bernoulli(logits=logits).log_prob(y)

  posterior = sgmcmc.Posterior(
      tfd.MultivariateNormalDiag(tf.zeros(num_features)).log_prob,
      log_likelihood, (x, y))
  mode = tfp.optimizer.lbfgs_minimize(
      lambda theta: tfp.math.value_and_gradient(
          lambda t: -posterior(t), theta), tf.zeros(num_features)).position
  return posterior, mode


def samplers(posterior, mode):
  """Pairs of a kernel and what to trace of it: accepted, likelihoods."""
  num = posterior.num_examples
  tuned = sgmcmc.likelihood_bounds.Logistic(anchor=mode)
  untuned = sgmcmc.likelihood_bounds.Logistic()

  def firefly(bound, step_size, fraction, capacity):
    return sgmcmc.FireflyMonteCarlo(
        posterior, bound, step_size=step_size / num, capacity=capacity,
        resample_fraction=fraction), lambda _, results: (
            results.is_accepted,
            results.gradient_estimator_results.num_gradients,
            results.num_bright)

  mala = tfp.mcmc.MetropolisAdjustedLangevinAlgorithm(
      posterior, step_size=6. / num)
  return {
      'MALA on all the data': (mala, lambda _, results: (
          results.is_accepted, tf.constant(num), tf.constant(num))),
      'Firefly, tuned, q = 0.01': firefly(tuned, 2.5, 0.01, 50),
      'Firefly, tuned, q = 0.1': firefly(tuned, 2.5, 0.1, 50),
      'Firefly, untuned, q = 0.1': firefly(untuned, 2., 0.1, num // 4),
  }


def runner(kernel, trace_fn, mode, num_steps):
  @tf.function(jit_compile=True)
  def run(seed):
    return tfp.mcmc.sample_chain(
        num_steps, mode, kernel=kernel, num_burnin_steps=num_steps // 10,
        trace_fn=trace_fn, seed=seed)

  def call(seed):
    start = time.perf_counter()
    draws, trace = run(tf.constant([0, seed]))
    draws = draws.numpy()
    return time.perf_counter() - start, draws, trace

  call(0)
  return call


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--num_examples', type=int, default=10_000)
  parser.add_argument('--num_steps', type=int, default=20_000)
  parser.add_argument('--repeats', type=int, default=3)
  args = parser.parse_args()
  posterior, mode = logistic_regression(args.num_examples)
  calls = {
      name: runner(*sampler, mode, args.num_steps)
      for name, sampler in samplers(posterior, mode).items()}
  results = {name: [] for name in calls}
  for repeat in range(args.repeats):
    for name, call in calls.items():
      results[name].append(call(repeat + 1))
  print(f'N = {args.num_examples:,}: a step, and an independent draw')
  print(f'{"":<28}{"accepted":>9}{"bright":>8}{"likelihoods":>12}{"us":>8}'
        f'{"steps":>8}{"likelihoods":>14}{"ms":>8}')
  for name, runs in results.items():
    seconds = min(run[0] for run in runs) / (1.1 * args.num_steps)
    accepted = np.mean([run[2][0] for run in runs])
    bright = np.mean([run[2][2] for run in runs])
    counts = runs[0][2][1].numpy()
    likelihoods = counts[0]
    if counts[-1] > counts[0]:
      likelihoods = (counts[-1] - counts[0]) / (len(counts) - 1)
    steps = np.mean([
        args.num_steps / np.min(tfp.mcmc.effective_sample_size(run[1]))
        for run in runs])
    print(f'{name:<28}{accepted:>9.2f}{bright:>8.0f}{likelihoods:>12,.0f}'
          f'{1e6 * seconds:>8.0f}{steps:>8.1f}{steps * likelihoods:>14,.0f}'
          f'{1e3 * steps * seconds:>8.2f}')


if __name__ == '__main__':
  main()
