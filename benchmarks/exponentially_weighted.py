"""Cost of an exponentially weighted gradient over that of M + 1 plain ones.

  python -m benchmarks.exponentially_weighted

A loop of gradient estimates under XLA, each at a state that depends on the last
gradient: `ExponentiallyWeighted(n, M)` against `Uniform(n)`, on logistic
regression (54 coefficients, as in Covertype) with one chain and with 1,000, and
on a perceptron 784-100-10. Time of an estimate of the first over M + 1 times
that of the second, medians over runs that alternate, so that the ratio holds on
a machine whose speed drifts.
"""

import argparse
import os
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from benchmarks import targets  # noqa: E402
import tfp_sgmcmc as sgmcmc  # noqa: E402


def runner(estimator, posterior, state, num_estimates):
  """Returns a function that gives the seconds an estimate takes."""
  state = list(state) if isinstance(state, (list, tuple)) else [state]
  one = [tf.ones([]) for _ in state]
  step = sgmcmc.gradients.GaussianStep(
      [0.1 * part for part in state], [-0.01 * part for part in state],
      [1e-6 * h for h in one], [1e-2 * s for s in one])

  @tf.function(jit_compile=True)
  def run(seed):
    results = estimator.bootstrap_results(posterior, state)

    def body(k, parts, results):
      estimate, results = estimator.one_step(
          posterior, parts, results, sgmcmc.random.fold_in(seed, k), step)
      parts = [p + 1e-9 * g
               for p, g in zip(parts, estimate.grads_target_log_prob)]
      return k + 1, parts, results

    return tf.while_loop(
        lambda k, *_: k < num_estimates, body, (0, state, results))[1]

  def call(seed):
    start = time.perf_counter()
    tf.nest.map_structure(lambda t: t.numpy(), run(tf.constant([0, seed])))
    return (time.perf_counter() - start) / num_estimates

  call(0)
  return call


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--repeats', type=int, default=7)
  repeats = parser.parse_args().repeats
  logistic = targets.posterior(
      dict(model='logistic', num_examples=100_000, num_features=54))
  network = dict(model='perceptron', num_examples=10_000)
  perceptron = targets.posterior(network), targets.start(network)
  cases = {
      'logistic regression, n=100': (logistic, tf.zeros(54), 100, 4_000),
      'logistic regression, n=1,000': (logistic, tf.zeros(54), 1_000, 600),
      'logistic regression, n=50, 1,000 chains': (
          logistic, tf.zeros([1000, 54]), 50, 10),
      'perceptron 784-100-10, n=100': (*perceptron, 100, 300),
      'perceptron 784-100-10, n=500': (*perceptron, 500, 60),
  }
  print(f'{"":<44}{"plain":>12}' + ''.join(
      f'{f"M={m}":>10}' for m in (1, 2, 9)))
  for name, (posterior, state, batch_size, number) in cases.items():
    plain = runner(
        sgmcmc.gradients.Uniform(batch_size), posterior, state, number)
    weighted = {
        m: runner(
            sgmcmc.gradients.ExponentiallyWeighted(
                batch_size, num_index_steps=m), posterior,
            state, max(1, number // (m + 1)))
        for m in (1, 2, 9)}
    times = {m: [] for m in (0, *weighted)}
    for repeat in range(repeats):
      times[0].append(plain(repeat + 1))
      for m, call in weighted.items():
        times[m].append(call(repeat + 1))
    median = {m: np.median(values) for m, values in times.items()}
    print(f'{name:<44}{1e6 * median[0]:>9,.0f} us' + ''.join(
        f'{median[m] / (m + 1) / median[0]:>10.2f}' for m in weighted),
          flush=True)


if __name__ == '__main__':
  main()
