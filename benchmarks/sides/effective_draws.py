"""Effective draws of a regression's posterior, in Laplace's coordinates.

TFP's HMC and NUTS adapt their step by dual averaging. Ours, with control
variates at the mode, take the largest step of a grid that keeps the means
within 0.1 sd and the sds within 5% of the reference, in a trial run of
thousands of effective draws; where no step of it does, they have none. Rows are
drawn uniformly or, where said, preferentially: more often those whose gradients
vary most over draws of Laplace's approximation. To find these, a step size or
the control variates is not in the time of a turn. The effective sample size is
the smaller of those of z and of z^2, over all coordinates, of all chains
together. Of fewer than 1,000 draws the smallest of so many estimates says
little: they all count, in favour of whose they are.
"""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks import whitened
from benchmarks import worker
import tfp_sgmcmc as sgmcmc

MEAN_ERROR, SD_ERROR = 0.1, 0.05
_FEW = 1000
# After how many steps of size h, times h, a draw is all but forgotten. From one
# draw to the next there are a quarter of them.
_FORGOTTEN = {'SGLD': 2., 'SGHMC': 3.}


def prepare(case):
  problem = whitened.problem(case)
  make = _of_ours if case['method'] in _FORGOTTEN else _of_tfp
  sample = make(case, problem)

  def turn(seed):
    if sample is None:
      return dict(work=0., wall=1., cpu=1.)
    clock = worker.Clock()
    draws = sample(seed).numpy()
    seconds = dict(wall=clock.wall, cpu=clock.cpu)
    return dict(
        seconds, work=effective_size(draws), **errors(draws, case['reference']))

  return turn


def effective_size(draws: np.ndarray) -> float:
  """Of draws `[K, chains, d]`: the smallest of z and z^2; see above."""
  num_draws = draws.shape[0] * draws.shape[1]
  if num_draws < _FEW:
    return float(num_draws)
  return min(
      float(tf.reduce_min(tfp.mcmc.effective_sample_size(
          values, filter_beyond_positive_pairs=True, cross_chain_dims=1)))
      for values in (draws, draws**2))


def errors(draws, reference):
  mean, sd = (np.array(reference[name]) for name in ('mean', 'sd'))
  flat = draws.reshape([-1, draws.shape[-1]]).astype(np.float64)
  return dict(
      mean_error=np.abs((flat.mean(axis=0) - mean) / sd).max(),
      sd_error=np.abs(flat.std(axis=0) / sd - 1.).max())


def _of_ours(case, problem):
  posterior, d = problem.posterior, len(problem.mode)
  order = case.get('order', 1)
  probabilities = None
  if case['preferential']:
    probabilities = sgmcmc.gradients.preferential_probabilities(
        posterior, tf.zeros(d), sgmcmc.random.normal(
            [case['num_nearby'], d], [0, 1]), order=order)
  estimator = sgmcmc.gradients.ControlVariate(
      case['batch_size'], tf.zeros(d), probabilities=probabilities,
      order=order)

  def kernel(h):
    if case['method'] == 'SGLD':
      return sgmcmc.SGLD(posterior, h, gradient_estimator=estimator)
    return sgmcmc.SGHMC(
        posterior, h, case['friction'], gradient_estimator=estimator,
        integrator='baoab')

  @tf.function(jit_compile=True, autograph=False)
  def run(state, results, h, thinning, seed):
    states, _, results = tfp.mcmc.sample_chain(
        case['num_draws'], state, previous_kernel_results=results, seed=seed,
        kernel=kernel(h), num_steps_between_results=thinning - 1,
        return_final_kernel_results=True, trace_fn=lambda *_: tf.zeros([]))
    return states, results

  start = tf.zeros([case['num_chains'], d])
  results = kernel(case['step_sizes'][0]).bootstrap_results(start)
  for k, h in enumerate(case['step_sizes']):
    # The first draws still know of the start, or of the last step size.
    arguments = tf.constant(h), tf.constant(
        max(1, round(_FORGOTTEN[case['method']] / 4. / h)))
    draws, results = run(start, results, *arguments, tf.constant([1, k]))
    start = draws[-1]
    off = errors(draws.numpy()[len(draws) // 4:], case['reference'])
    if off['mean_error'] < MEAN_ERROR and off['sd_error'] < SD_ERROR:
      break
  else:
    return None

  def sample(seed):
    nonlocal start, results
    draws, results = run(start, results, *arguments, tf.constant([2, seed]))
    start = draws[-1]
    return draws

  return sample


def _of_tfp(case, problem):
  def kernel():
    if case['method'] == 'NUTS':
      # In these coordinates a path of 2^5 steps has long turned back.
      inner = tfp.mcmc.NoUTurnSampler(
          problem.log_prob, step_size=case['step_size'], max_tree_depth=5)
    else:
      inner = tfp.mcmc.HamiltonianMonteCarlo(
          problem.log_prob, step_size=case['step_size'],
          num_leapfrog_steps=case['num_leapfrog_steps'])
    return tfp.mcmc.DualAveragingStepSizeAdaptation(
        inner, case['num_adaptation_steps'])

  def advance(num, state, results, seed):
    states, _, results = tfp.mcmc.sample_chain(
        num, state, kernel=kernel(), previous_kernel_results=results,
        seed=seed, return_final_kernel_results=True,
        trace_fn=lambda *_: tf.zeros([]))
    return states, results

  start = tf.zeros([case['num_chains'], len(problem.mode)])
  results = kernel().bootstrap_results(start)

  @tf.function(jit_compile=True, autograph=False)
  def adapt(state, results, seed):
    return advance(case['num_adaptation_steps'], state, results, seed)

  @tf.function(jit_compile=True, autograph=False)
  def run(state, results, seed):
    return advance(case['num_draws'], state, results, seed)

  states, results = adapt(start, results, tf.constant([1, 0]))
  start = states[-1]

  def sample(seed):
    nonlocal start, results
    draws, results = run(start, results, tf.constant([2, seed]))
    start = draws[-1]
    return draws

  return sample


if __name__ == '__main__':
  worker.serve(prepare)
