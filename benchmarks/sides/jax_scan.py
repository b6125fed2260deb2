"""SGLD as one writes it in JAX by hand: a scan, with `vmap` over chains.

Minibatches are drawn with replacement, or, as one does in JAX where rows are
to be distinct and N is small, by `jax.random.choice`.
"""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import data
from benchmarks import worker


def log_prior(state):
  return -0.5 * sum(jnp.sum(part**2) for part in jax.tree.leaves(state))


def logistic(theta, x, y):
  """The log likelihood of one example, or of several."""
  logits = x @ theta
  return y * logits - jax.nn.softplus(logits)


def perceptron(parts, x, y):
  w1, b1, w2, b2 = parts
  logits = jax.nn.relu(x @ w1 + b1) @ w2 + b2
  return jnp.take_along_axis(
      jax.nn.log_softmax(logits), y[..., jnp.newaxis].astype(int),
      axis=-1)[..., 0]


def prepare(case):
  x, y = (jnp.asarray(part) for part in data.examples(case))
  log_likelihood = perceptron if case['model'] == 'perceptron' else logistic
  num_examples, size, h = (
      case[name] for name in ('num_examples', 'batch_size', 'step_size'))

  def log_prob(state, rows):
    return log_prior(state) + num_examples / size * jnp.sum(
        log_likelihood(state, x[rows], y[rows]))

  def step(state, key):
    key_rows, key_noise = jax.random.split(key)
    rows = jax.random.randint(key_rows, [size], 0, num_examples)
    gradient = jax.grad(log_prob)(state, rows)
    leaves, structure = jax.tree.flatten(state)
    noise = jax.tree.unflatten(structure, [
        jax.random.normal(key, leaf.shape) for key, leaf in zip(
            jax.random.split(key_noise, len(leaves)), leaves)])
    return jax.tree.map(
        lambda p, g, xi: p + h * g + jnp.sqrt(2. * h) * xi, state, gradient,
        noise)

  return scanned(case, step, [part for part in _start(case)])


def _start(case):
  parts = data.start(case)
  return parts if isinstance(parts, list) else [parts]


def scanned(case, step, state):
  """Turns of draws, `thin` steps apart; `step` is of a state and a key."""
  if len(state) == 1:
    state = state[0]

  def chain(state, key):
    def draw(state, key):
      state = jax.lax.scan(
          lambda state, key: (step(state, key), None), state,
          jax.random.split(key, case['thin']))[0]
      return state, state
    return jax.lax.scan(
        draw, state, jax.random.split(key, case['num_draws']))

  num_chains = case.get('num_chains')
  if num_chains:
    run = jax.jit(lambda state, key: jax.vmap(chain, out_axes=(0, 1))(
        state, jax.random.split(key, num_chains)))
    state = jax.tree.map(
        lambda part: jnp.tile(part, [num_chains] + [1] * part.ndim), state)
  else:
    run = jax.jit(chain)

  def turn(seed):
    nonlocal state
    state, draws = run(state, jax.random.key(seed))
    return jax.tree.map(np.asarray, draws)

  return turn


if __name__ == '__main__':
  worker.serve(prepare)
