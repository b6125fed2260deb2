"""SGLD of SGMCMCJax, by its sampler, which keeps every step."""

import jax
import jax.numpy as jnp
import numpy as np
from sgmcmcjax import samplers

from benchmarks import data
from benchmarks import worker


def log_likelihood(theta, x, y):
  logit = jnp.dot(x, theta)
  return y * logit - jax.nn.softplus(logit)


def prepare(case):
  sampler = samplers.build_sgld_sampler(
      case['step_size'], log_likelihood,
      lambda theta: -0.5 * jnp.dot(theta, theta), data.examples(case),
      case['batch_size'], pbar=False)
  state = jnp.asarray(data.start(case))

  def turn(seed):
    nonlocal state
    draws = np.asarray(sampler(
        jax.random.PRNGKey(seed), case['num_draws'] * case['thin'], state))
    state = draws[-1]
    return draws[case['thin'] - 1::case['thin']]

  return turn


if __name__ == '__main__':
  worker.serve(prepare)
