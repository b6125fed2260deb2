"""Ten networks by MCLMC of blackjax on all rows: see `benchmarks.ensembles`.

  python -m benchmarks.sides.blackjax_ensemble CASE.npz PREDICTIONS.npz

Each network is trained by Adam and stopped early; then blackjax tunes step,
length and metric of each chain by its defaults, except for the first step: its
default of sqrt(d) / 4 throws the networks away. Then the chain runs. As its
documentation has it, `num_steps` is what runs after tuning, and tuning takes a
third of it more. CASE has the rows, `seed` and `passes`; a step takes two
gradients. Written are the means and scales `[draw, row]` of the test rows, for
each network drawn in the last quarter of all steps, and what the tuner found.
"""

import math
import sys

import blackjax
from blackjax.adaptation.mclmc_adaptation import MCLMCAdaptationState
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import members

FIRST_STEP_SIZE = 0.005


def distribution(weights, x):
  """Means and scales of the targets, by one network."""
  layers = list(zip(weights[::2], weights[1::2]))
  for kernel, bias in layers[:-1]:
    x = jax.nn.relu(x @ kernel + bias)
  kernel, bias = layers[-1]
  outputs = x @ kernel + bias
  return outputs[..., 0], jax.nn.softplus(outputs[..., 1])


def log_likelihood(weights, x, y):
  return jax.scipy.stats.norm.logpdf(y, *distribution(weights, x))


def by_adam(x, y, seed):
  """The networks where they start."""
  held, (x, y) = members.split(x, y)
  optimizer = optax.adam(members.LEARNING_RATE)

  def loss(weights, x, y):
    return -jnp.mean(log_likelihood(weights, x, y))

  def train(weights, state, order):
    def step(carry, rows):
      weights, state = carry
      updates, state = optimizer.update(
          jax.grad(loss)(weights, x[rows], y[rows]), state)
      return (optax.apply_updates(weights, updates), state), None
    (weights, state), _ = jax.lax.scan(step, (weights, state), order)
    return weights, state, loss(weights, *held)

  train = jax.jit(jax.vmap(train, (0, 0, None)))
  weights = members.initial_weights(x.shape[1], seed)
  state = jax.vmap(optimizer.init)(weights)

  def epoch(order):
    nonlocal weights, state
    weights, state, found = train(weights, state, order)
    return np.asarray(found)

  return members.stopped_early(
      epoch, lambda: [np.array(w) for w in weights], len(x), seed)


def by_mclmc(x, y, starts, seed, passes):
  """Draws of the weights, `[network, draw, ...]`, lengths and step sizes."""
  num_steps = max(round(passes / 2 * 3 / 4), 20)
  # As many as tuning takes belong to all steps, the last quarter of which is
  # kept.
  num_kept = num_steps // 3
  num_draws = min(members.NUM_DRAWS, num_kept)
  thin = num_kept // num_draws

  def log_density(weights):
    return jnp.sum(log_likelihood(weights, x, y)) - 0.5 * sum(
        jnp.sum(w**2) for w in weights)

  num_weights = sum(w[0].size for w in starts)
  first = MCLMCAdaptationState(
      L=math.sqrt(num_weights), step_size=FIRST_STEP_SIZE,
      inverse_mass_matrix=jnp.ones(num_weights))

  def chain(weights, key):
    init_key, tune_key, key = jax.random.split(key, 3)
    state, settings, _ = blackjax.mclmc_find_L_and_step_size(
        mclmc_kernel=blackjax.mcmc.mclmc.build_kernel(),
        logdensity_fn=log_density, num_steps=num_steps, rng_key=tune_key,
        state=blackjax.mcmc.mclmc.init(weights, log_density, init_key),
        params=first)
    sampler = blackjax.mclmc(
        log_density, L=settings.L, step_size=settings.step_size,
        inverse_mass_matrix=settings.inverse_mass_matrix)

    def run(state, key, num_steps):
      return jax.lax.scan(
          lambda state, key: (sampler.step(key, state)[0], None), state,
          jax.random.split(key, num_steps))[0]

    def draw(state, key):
      state = run(state, key, thin)
      return state, state.position

    key, burnin_key = jax.random.split(key)
    state = run(state, burnin_key, num_steps - num_kept)
    _, draws = jax.lax.scan(draw, state, jax.random.split(key, num_draws))
    return draws, settings.L, settings.step_size

  return jax.jit(jax.vmap(chain))(
      starts, jax.random.split(jax.random.key(seed), members.NUM_NETWORKS))


def main(case: str, predictions: str) -> None:
  with np.load(case) as given:
    values = dict(given)
  x, y, x_test = (jnp.asarray(values[name]) for name in ('x', 'y', 'x_test'))
  seed = int(values['seed'])
  draws, lengths, step_sizes = by_mclmc(
      x, y, by_adam(x, y, seed), seed, int(values['passes']))
  predict = jax.jit(jax.vmap(jax.vmap(distribution, (0, None)), (0, None)))
  means, scales = (
      np.reshape(part, [-1, len(x_test)]) for part in predict(draws, x_test))
  np.savez(
      predictions, means=means, scales=scales, length=np.median(lengths),
      step_size=np.median(step_sizes))


if __name__ == '__main__':
  main(*sys.argv[1:])
