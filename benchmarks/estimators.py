"""What the gradient estimators cost: time of a step, gradients, memory.

  python -m benchmarks.estimators [--repeats 5] [--steps 4000]

SGLD under XLA on logistic regression (N = 20,000, 20 coefficients, minibatches
of n = 100), a single chain and 100 chains. For each estimator: microseconds a
step, the best of some runs of one compiled function, the cases in turn, and
their ratio to `Uniform`'s, the median over turns, so that it holds on a machine
whose speed drifts; gradients of single examples a step, over n, which is what
the step would cost if gradients were all of it; the size of the estimator's
state, that of one chain. `SVRG` renews its anchor every N / n steps, and the
run has many of these: its time is the amortised one.

Then the memory of a pass over all data (N = 1,000,000, 20 chains): how much
the peak of a process of its own is above that without the pass.
"""

import argparse
import os
import resource
import subprocess
import sys
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from benchmarks import targets  # noqa: E402
import tfp_sgmcmc as sgmcmc  # noqa: E402

NUM_EXAMPLES, NUM_FEATURES, BATCH_SIZE = 20_000, 20, 100


def logistic_regression(num_examples):
  return targets.posterior(dict(
      model='logistic', num_examples=num_examples, num_features=NUM_FEATURES))


def estimators():
  gradients = sgmcmc.gradients
  strata = np.random.default_rng(1).integers(0, 10, NUM_EXAMPLES)
  return {
      'Uniform': gradients.Uniform(BATCH_SIZE),
      'Stratified, 10 strata': gradients.Stratified(BATCH_SIZE, strata),
      'ControlVariate': gradients.ControlVariate(
          BATCH_SIZE, tf.zeros(NUM_FEATURES)),
      'SVRG': gradients.SVRG(BATCH_SIZE, NUM_EXAMPLES // BATCH_SIZE),
      'SAGA': gradients.SAGA(BATCH_SIZE, memory_limit=2**31),
  }


class Runner:
  """Steps of SGLD with an estimator, compiled."""

  def __init__(self, posterior, estimator, chains, num_steps):
    kernel = sgmcmc.SGLD(
        posterior, step_size=0.01 / posterior.num_examples,
        gradient_estimator=estimator)
    self._state = tf.zeros([*chains, NUM_FEATURES])
    self._results = kernel.bootstrap_results(self._state)
    self._num_steps = num_steps
    self._before = self._count(self._results)

    @tf.function(jit_compile=True)
    def run(state, results, seed):
      def body(step, state, results):
        return (step + 1, *kernel.one_step(
            state, results, seed=sgmcmc.random.fold_in(seed, step)))
      return tf.while_loop(
          lambda step, *_: step < num_steps, body, (0, state, results))[1:]

    self._run = run
    self()

  def __call__(self):
    """Seconds a step."""
    start = time.perf_counter()
    state, self._last = self._run(
        self._state, self._results, tf.constant([0, 1]))
    state.numpy()
    return (time.perf_counter() - start) / self._num_steps

  @staticmethod
  def _count(results):
    return int(np.max(results.gradient_estimator_results.num_gradients))

  @property
  def gradients_a_step(self):
    return (self._count(self._last) - self._before) / self._num_steps

  @property
  def num_bytes(self):
    """Of the estimator's state."""
    return sum(
        tensor.shape.num_elements() * tensor.dtype.size
        for tensor in tf.nest.flatten(
            self._results.gradient_estimator_results))


def compare(chains, num_steps, repeats):
  posterior = logistic_regression(NUM_EXAMPLES)
  runners = {
      name: Runner(posterior, estimator, chains, num_steps)
      for name, estimator in estimators().items()}
  times = {name: [] for name in runners}
  for _ in range(repeats):
    for name, runner in runners.items():
      times[name].append(runner())
  num_chains = int(np.prod(chains))
  print(f'{num_chains} chain(s), {num_steps:,} steps, {repeats} turns')
  for name, runner in runners.items():
    ratio = np.median(np.divide(times[name], times['Uniform']))
    print(f'  {name:<24}{1e6 * min(times[name]):>10,.1f} us/step'
          f'{ratio:>8.2f} x Uniform'
          f'{runner.gradients_a_step / BATCH_SIZE:>8.2f} n gradients/step'
          f'{runner.num_bytes / num_chains:>14,.0f} bytes/chain')


def peak_of_a_pass(chunk_size):
  """Prints the peak memory of this process after a pass, in MiB; 0 for none."""
  posterior = logistic_regression(1_000_000)
  state = tf.zeros([20, NUM_FEATURES])
  if chunk_size:
    estimator = sgmcmc.gradients.ControlVariate(
        BATCH_SIZE, state, rows_per_chunk=chunk_size)

    @tf.function(jit_compile=True)
    def run():
      return estimator.bootstrap_results(posterior, [state])

    run()[0].numpy()
  print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)


def compare_passes():
  def measure(chunk_size):
    return float(subprocess.run(
        [sys.executable, '-m', 'benchmarks.estimators', '--pass',
         str(chunk_size)], check=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True).stdout)
  without = measure(0)
  print('A pass over 1,000,000 examples, 20 chains, above a process with the '
        f'data alone ({without:,.0f} MiB)')
  for chunk_size in (1_000, 10_000, 1_000_000):
    print(f'  chunk_size={chunk_size:<12,}'
          f'{measure(chunk_size) - without:>10,.0f} MiB')


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--steps', type=int, default=4_000)
  parser.add_argument('--pass', type=int, dest='chunk_size')
  arguments = parser.parse_args()
  if arguments.chunk_size is not None:
    peak_of_a_pass(arguments.chunk_size)
    return
  compare((), arguments.steps, arguments.repeats)
  compare((100,), arguments.steps // 10, arguments.repeats)
  compare_passes()


if __name__ == '__main__':
  main()
