"""Steps of training as one writes them in JAX by hand: SGD, or SGHMC.

One compiled program a step, which is given its batch by the host, as Keras
gives one to `fit`. The networks are those of `networks.py`: a perceptron by
its widths, or the convolutional one.
"""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import worker
from benchmarks.sides import jax_hmc

LEARNING_RATE, MOMENTUM = 1e-3, 0.9


def layers_of(network):
  """As `jax_hmc` takes them, and the shape of an image."""
  if network == 'convolutional':
    return [
        ['conv', 32, 5], ['pool', 2], ['conv', 64, 5], ['pool', 2], ['flatten'],
        ['dense', 200], ['dense', 200], ['dense', 10]], (28, 28, 1)
  return [['dense', int(width)] for width in (*network.split('-'), 10)], (784,)


def prepare(case):
  num_steps, size = case['num_steps'], case['batch_size']
  num_examples = num_steps * size
  rng = np.random.default_rng(0)
  layers, shape = layers_of(case['network'])
  x = rng.uniform(size=[num_examples, *shape]).astype(np.float32)
  y = rng.integers(0, 10, num_examples)
  state = jax_hmc.initial_weights(jax.random.key(0), shape, layers)
  velocity = jax.tree.map(jnp.zeros_like, state)

  def loss(state, x, y):
    return -jnp.mean(jax_hmc.log_prob(
        jax_hmc.outputs(state, x, layers), y, 'classes'))

  def potential(state, x, y):  # Over N, as the loss is.
    norm = sum(jnp.sum(part**2) for part in jax.tree.leaves(state))
    return loss(state, x, y) + 0.5 * norm / num_examples

  def step(state, velocity, key, x, y):
    gradient = jax.grad(potential if case['sampling'] else loss)(state, x, y)
    velocity = jax.tree.map(
        lambda v, g: MOMENTUM * v - LEARNING_RATE * g, velocity, gradient)
    if case['sampling']:
      scale = np.sqrt(2. * (1. - MOMENTUM) * LEARNING_RATE / num_examples)
      leaves, structure = jax.tree.flatten(velocity)
      velocity = jax.tree.unflatten(structure, [
          v + scale * jax.random.normal(key, v.shape)
          for key, v in zip(jax.random.split(key, len(leaves)), leaves)])
    return jax.tree.map(jnp.add, state, velocity), velocity

  program = jax.jit(step, donate_argnums=(0, 1))

  def turn(seed):
    nonlocal state, velocity
    keys = jax.random.split(jax.random.key(seed), num_steps)
    for i in range(num_steps):
      rows = slice(i * size, (i + 1) * size)
      state, velocity = program(state, velocity, keys[i], x[rows], y[rows])
    jax.block_until_ready(state)

  return turn


if __name__ == '__main__':
  worker.serve(prepare)
