"""Events of SBPS of this library, by `sample` or `tfp.mcmc.sample_chain`."""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks import data
from benchmarks import driver
from benchmarks import targets
from benchmarks import worker
import tfp_sgmcmc as sgmcmc


def prepare(case):
  kernel = sgmcmc.StochasticBouncyParticleSampler(
      targets.posterior(case),
      gradient_estimator=sgmcmc.gradients.Uniform(case['batch_size']))
  start, = targets.start(
      case, case['num_chains'] if case['num_chains'] > 1 else None)

  turn = _sample if case.get('driver') == 'sample' else _sample_chain
  return turn(case, kernel, start)


def _sample(case, kernel, start):
  timer = driver.Timer(case['num_events'], case['most_times'])

  def turn(seed):
    nonlocal start

    def call(num_events):
      result = sgmcmc.sample(
          kernel, num_events, start, chunk_size=case['num_events'], seed=seed,
          trace_fn=lambda _, results: results.duration, progress_bar=False)
      return [part[-case['num_events']:].numpy()
              for part in (result.states, result.trace)]

    (states, durations), wall, cpu = timer(call)
    start = tf.constant(states[-1])
    return dict(draws=_along(case, states, durations), wall=wall, cpu=cpu)

  return turn


def _sample_chain(case, kernel, start):
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
    return _along(case, states, durations)

  return turn


def _along(case, states, durations):
  if case['num_chains'] == 1:
    return data.along(states, durations)
  return np.stack([
      data.along(states[:, chain], durations[:, chain])
      for chain in range(case['num_chains'])], axis=1)


if __name__ == '__main__':
  worker.serve(prepare)
