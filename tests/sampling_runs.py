"""Short runs of `sgmcmc.sample`, and what is the same in two of them."""

import os
import pathlib
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc


def standard_normal(x):
  """Up to a constant. TFP's densities take longer to trace."""
  return -0.5 * x**2


def make_posterior():
  def log_prior(mu, w):
    return standard_normal(mu / 10.) + tf.reduce_sum(
        standard_normal(w), axis=-1)

  def log_likelihood(mu, w, batch):
    mean = mu[..., tf.newaxis] + tf.reduce_sum(w, axis=-1, keepdims=True)
    return standard_normal(batch - mean)

  return sgmcmc.Posterior(
      log_prior, log_likelihood, tf.random.stateless_normal([200], [0, 1]))


def make_kernel(**override):
  return sgmcmc.SGHMC(**{
      'target_log_prob_fn': make_posterior(), 'step_size': 0.01,
      'friction': 5., 'gradient_estimator': sgmcmc.gradients.Uniform(20),
      **override})


def simple_kernel():
  return sgmcmc.SGHMC(standard_normal, 0.1, friction=1.)


def start(chains=3):
  return [tf.zeros([chains]), tf.ones([chains, 2])]


def trace_target(state, results):
  del state
  return results.target_log_prob


def run(kernel=None, num_results=20, state=None, seed=7, jit_compile=False,
        **arguments):
  """Without XLA unless asked for: it takes seconds to compile a kernel."""
  return sgmcmc.sample(
      kernel or make_kernel(), num_results, start() if state is None else state,
      seed=seed, progress_bar=False, jit_compile=jit_compile, **arguments)


def assert_same(first, second):
  tf.nest.map_structure(
      lambda a, b: np.testing.assert_array_equal(a, b), first, second)


def assert_same_draws(first, second):
  for name in ('states', 'trace', 'final_state', 'kernel_results'):
    assert_same(getattr(first, name), getattr(second, name))


def plain_loop(kernel, state, num_steps, seed):
  """Every state of a chain, by the seeds that the module promises."""
  seed = tf.constant([0, seed])
  results = kernel.bootstrap_results(
      state, seed=sgmcmc.random.fold_in(seed, 0))
  step = tf.function(kernel.one_step, jit_compile=True, autograph=False)
  states = []
  for t in range(1, num_steps + 1):
    state, results = step(
        state, results, seed=sgmcmc.random.fold_in(seed, t))
    states.append(state)
  return states, results


def resident_memory():
  """In MiB."""
  if not pathlib.Path('/proc/self/statm').exists():
    pytest.skip('The size of this process cannot be read here.')
  pages = pathlib.Path('/proc/self/statm').read_text().split()[1]
  return int(pages) * os.sysconf('SC_PAGE_SIZE') / 2**20


class Logs(NamedTuple):
  """Kernel results with nothing but the shape of the chains."""
  target_log_prob: tf.Tensor


class BreaksAt(tfp.mcmc.TransitionKernel):
  """Counts steps, and makes one value NaN after a given one."""

  is_calibrated = True

  def __init__(self, step):
    self._step = step

  def one_step(self, current_state, previous_kernel_results, seed=None):
    x, y = current_state
    here = tf.constant([[False] * 3, [False, False, True]])
    y = tf.where(here & (x[0] + 1. == self._step), np.inf, y)
    return [x + 1., y], previous_kernel_results

  def bootstrap_results(self, init_state):
    return Logs(tf.zeros([2]))
