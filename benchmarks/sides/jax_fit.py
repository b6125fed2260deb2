"""Steps of training as one writes them in JAX by hand: SGD, or SGHMC.

One compiled program a step, which is given its batch by the host, as Keras
gives one to `fit`. The networks are those of `networks.py`: a perceptron by
its widths, or the convolutional one.
"""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import worker

LEARNING_RATE, MOMENTUM = 1e-3, 0.9


def weights(network, rng):
  """Weights and biases of each layer, at Glorot's start."""
  shapes = ([(5, 5, 1, 32), (5, 5, 32, 64), (1024, 200), (200, 200), (200, 10)]
            if network == 'convolutional' else
            [(a, b) for a, b in zip(
                (784, *map(int, network.split('-'))),
                (*map(int, network.split('-')), 10))])
  made = []
  for shape in shapes:
    field = np.prod(shape[:-2], initial=1)
    bound = np.sqrt(6. / (field * sum(shape[-2:])))
    made.append((
        jnp.asarray(rng.uniform(-bound, bound, shape), jnp.float32),
        jnp.zeros([shape[-1]])))
  return made


def logits(parts, x):
  """What the network makes of a batch of images, which are flat."""
  if parts[0][0].ndim == 4:
    x = x.reshape([-1, 28, 28, 1])
  for kernel, bias in parts[:-1]:
    if kernel.ndim == 4:
      x = jax.nn.relu(bias + jax.lax.conv_general_dilated(
          x, kernel, (1, 1), 'VALID', dimension_numbers=('NHWC', 'HWIO', 'NHWC')
      ))
      x = jax.lax.reduce_window(
          x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID')
    else:
      x = jax.nn.relu(x.reshape([len(x), -1]) @ kernel + bias)
  kernel, bias = parts[-1]
  return x @ kernel + bias


def prepare(case):
  num_steps, size = case['num_steps'], case['batch_size']
  num_examples = num_steps * size
  rng = np.random.default_rng(0)
  x = rng.uniform(size=[num_examples, 784]).astype(np.float32)
  y = rng.integers(0, 10, num_examples)
  state = weights(case['network'], rng)
  velocity = jax.tree.map(jnp.zeros_like, state)

  def loss(state, x, y):
    return -jnp.mean(jnp.take_along_axis(
        jax.nn.log_softmax(logits(state, x)), y[:, jnp.newaxis], axis=1))

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
