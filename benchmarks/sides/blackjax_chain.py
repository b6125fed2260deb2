"""SGLD of blackjax, in a scan over minibatches drawn with replacement."""

import blackjax
import jax
import jax.numpy as jnp

from benchmarks import data
from benchmarks import worker
from benchmarks.sides import jax_scan


def prepare(case):
  x, y = (jnp.asarray(part) for part in data.examples(case))
  estimator = blackjax.sgmcmc.gradients.grad_estimator(
      jax_scan.log_prior,
      lambda theta, example: jax_scan.logistic(theta, *example),
      case['num_examples'])
  sgld = blackjax.sgld(estimator)

  def step(state, key):
    key_rows, key_step = jax.random.split(key)
    rows = jax.random.randint(
        key_rows, [case['batch_size']], 0, case['num_examples'])
    return sgld.step(key_step, state, (x[rows], y[rows]), case['step_size'])

  return jax_scan.scanned(case, step, [jnp.asarray(data.start(case))])


if __name__ == '__main__':
  worker.serve(prepare)
