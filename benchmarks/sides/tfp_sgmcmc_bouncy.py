"""Events of SBPS of this library, by `tfp.mcmc.sample_chain` under XLA."""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks import data
from benchmarks import targets
from benchmarks import worker
import tfp_sgmcmc as sgmcmc


def prepare(case):
  kernel = sgmcmc.StochasticBouncyParticleSampler(
      targets.posterior(case),
      gradient_estimator=sgmcmc.gradients.Uniform(case['batch_size']))
  start, = targets.start(
      case, case['num_chains'] if case['num_chains'] > 1 else None)

  @tf.function(jit_compile=True, autograph=False)
  def run(start, seed):
    return tfp.mcmc.sample_chain(
        case['num_events'], start, kernel=kernel, seed=seed,
        trace_fn=lambda _, results: results.duration)

  def turn(seed):
    nonlocal start
    states, durations = (
        part.numpy() for part in run(start, tf.constant([0, seed])))
    start = tf.constant(states[-1])
    if case['num_chains'] == 1:
      return data.along(states, durations)
    return np.stack([
        data.along(states[:, chain], durations[:, chain])
        for chain in range(case['num_chains'])], axis=1)

  return turn


if __name__ == '__main__':
  worker.serve(prepare)
