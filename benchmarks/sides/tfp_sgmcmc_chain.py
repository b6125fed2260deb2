"""SGLD of this library, by `tfp.mcmc.sample_chain` under XLA or by `sample`."""

import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks import driver
from benchmarks import targets
from benchmarks import worker
import tfp_sgmcmc as sgmcmc


def prepare(case):
  kernel = sgmcmc.SGLD(
      targets.posterior(case), step_size=case['step_size'],
      gradient_estimator=sgmcmc.gradients.Uniform(
          case['batch_size'], replacement=case['replacement']))
  state = targets.start(case, case.get('num_chains'))
  turn = _sample if case.get('driver') == 'sample' else _sample_chain
  return turn(case, kernel, state)


def _sample_chain(case, kernel, state):
  @tf.function(jit_compile=True, autograph=False)
  def run(state, seed):
    return tfp.mcmc.sample_chain(
        case['num_draws'], state, kernel=kernel, trace_fn=None, seed=seed,
        num_burnin_steps=case['thin'] - 1,
        num_steps_between_results=case['thin'] - 1)

  def turn(seed):
    nonlocal state
    draws = run(state, tf.constant([0, seed]))
    state = [part[-1] for part in draws]
    return _out([part.numpy() for part in draws])

  return turn


def _sample(case, kernel, state):
  timer = driver.Timer(case['num_draws'], case['most_times'])

  def turn(seed):
    nonlocal state

    def call(num_draws):
      return [part.numpy() for part in sgmcmc.sample(
          kernel, num_draws, state, num_burnin_steps=case['thin'] - 1,
          num_steps_between_results=case['thin'] - 1,
          chunk_size=case['num_draws'], seed=seed, progress_bar=False).states]

    draws, wall, cpu = timer(call)
    state = [part[-1] for part in draws]
    return dict(draws=_out(draws), wall=wall, cpu=cpu)

  return turn


def _out(draws):
  return draws[0] if len(draws) == 1 else draws


if __name__ == '__main__':
  worker.serve(prepare)
