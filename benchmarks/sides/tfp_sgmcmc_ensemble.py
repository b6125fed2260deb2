"""Ten networks of a table, by this library: see `benchmarks.ensembles`.

  python -m benchmarks.sides.tfp_sgmcmc_ensemble CASE.npz PREDICTIONS.npz

CASE has the rows, `method`, `seed` and `passes`. Written are the means and
scales `[draw, row]` of the test rows, for each network drawn.
"""

from collections.abc import Sequence
import functools
import math
import sys

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions

NUM_NETWORKS, HIDDEN, BATCH_SIZE, NUM_DRAWS = 10, [16, 16, 16, 16], 128, 100
# Adam's, of the networks that `sample` starts from.
LEARNING_RATE, PATIENCE, MOST_EPOCHS, ADAMS_BATCH_SIZE = 1e-3, 20, 1200, 32
MOST_BATCHES = 100  # Of an epoch.


def network(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tfd.Normal:
  """Predictions `[networks, n]` of stacked networks."""
  for kernel, bias in zip(weights[::2], weights[1::2]):
    x = tf.matmul(x, kernel) + bias[..., tf.newaxis, :]
    if kernel.shape[-1] != 2:
      x = tf.nn.relu(x)
  return tfd.Normal(x[..., 0], tf.nn.softplus(x[..., 1]))


def initial_weights(num_inputs: int, seed: int) -> list[tf.Tensor]:
  """Glorot's, as Keras has them."""
  sizes = [num_inputs, *HIDDEN, 2]
  weights = []
  for k, (rows, columns) in enumerate(zip(sizes, sizes[1:])):
    glorot = keras.initializers.GlorotUniform(seed=100 * seed + k)
    # The fans are those of one network.
    each = glorot([rows, columns * NUM_NETWORKS])
    each *= math.sqrt((rows + columns * NUM_NETWORKS) / (rows + columns))
    weights += [
        tf.transpose(tf.reshape(each, [rows, NUM_NETWORKS, columns]), [1, 0, 2]),
        tf.zeros([NUM_NETWORKS, columns])]
  return weights


def by_adam(x: np.ndarray, y: np.ndarray, seed: int) -> list[tf.Tensor]:
  """Networks stopped early, each where its last rows are predicted best."""
  weights = [tf.Variable(w) for w in initial_weights(x.shape[-1], seed)]
  optimizer = keras.optimizers.Adam(LEARNING_RATE)
  optimizer.build(weights)
  num = max(1, int(0.15 * len(x)))
  held_x, held_y, x, y = map(tf.constant, (x[:num], y[:num], x[num:], y[num:]))
  size = min(max(ADAMS_BATCH_SIZE, len(x) // MOST_BATCHES), len(x))

  @tf.function(jit_compile=True)
  def epoch(order):
    for k in tf.range(len(order)):
      rows = order[k]
      with tf.GradientTape() as tape:
        loss = -tf.reduce_sum(tf.reduce_mean(network(
            weights, tf.gather(x, rows)).log_prob(tf.gather(y, rows)), axis=-1))
      optimizer.apply(tape.gradient(loss, weights))
    return -tf.reduce_mean(network(weights, held_x).log_prob(held_y), axis=-1)

  rng = np.random.default_rng(seed)
  best, since = np.full(NUM_NETWORKS, np.inf), np.zeros(NUM_NETWORKS)
  kept = [w.numpy() for w in weights]
  for _ in range(MOST_EPOCHS):
    order = rng.permutation(len(x))[:len(x) // size * size]
    found = epoch(tf.constant(order.reshape([-1, size]))).numpy()
    for w, value in zip(kept, weights):
      w[found < best] = value.numpy()[found < best]
    since = np.where(found < best, 0, since + 1)
    best = np.minimum(found, best)
    if np.all(since > PATIENCE):
      break
  return [tf.constant(w) for w in kept]


def log_prior(*weights: tf.Tensor) -> tf.Tensor:
  return -0.5 * sum(
      tf.reduce_sum(w**2, axis=[-2, -1] if k % 2 == 0 else [-1])
      for k, w in enumerate(weights))


def log_likelihood(*weights_and_batch) -> tf.Tensor:
  *weights, (x, y) = weights_and_batch
  return network(weights, x).log_prob(y)


def by_sample(
    x: np.ndarray, y: np.ndarray, seed: int, passes: int) -> list[tf.Tensor]:
  """Draws of the weights, `[draw, network, ...]`."""
  size = min(BATCH_SIZE, len(x))
  posterior = sgmcmc.Posterior(log_prior, log_likelihood, (x, y))
  num_steps = max(passes * len(x) // size, 4)
  num_burnin_steps = num_steps // 2
  kernel = sgmcmc.SelfTuning(
      sgmcmc.SGNHT(
          posterior, step_size=0.003, diffusion=0., thermostat='part',
          gradient_estimator=sgmcmc.gradients.Uniform(size)),
      num_adaptation_steps=num_burnin_steps)
  num_draws = min(NUM_DRAWS, num_steps - num_burnin_steps)
  draws = sgmcmc.sample(
      kernel, num_draws, by_adam(x, y, seed), num_burnin_steps=num_burnin_steps,
      num_steps_between_results=(
          (num_steps - num_burnin_steps) // num_draws - 1),
      trace_fn=None, seed=seed, progress_bar=False)
  return draws.states


def by_fit(
    x: np.ndarray, y: np.ndarray, x_test: np.ndarray, seed: int, passes: int,
) -> list[tfd.Normal]:
  """Predictions of each draw of one fit with ten chains."""
  keras.utils.set_random_seed(seed)
  model = keras.Sequential([
      keras.Input(x.shape[1:]),
      *(keras.layers.Dense(units, activation='relu') for units in HIDDEN),
      keras.layers.Dense(2)])
  model.compile('adam', sgmcmc.keras.GaussianLikelihood())
  # Each chain has a tenth of each batch.
  size = NUM_NETWORKS * min(BATCH_SIZE, len(x))
  rows = tf.data.Dataset.from_tensor_slices((x, y[:, np.newaxis])).cache()
  rows = rows.shuffle(len(x), seed=seed).repeat().batch(size).prefetch(2)
  num_epochs = min(20, passes)
  sampling = sgmcmc.keras.PosteriorSampling(
      num_examples=len(x), num_chains=NUM_NETWORKS, seed=seed)
  model.fit(
      rows, epochs=num_epochs, verbose=0, callbacks=[sampling],
      steps_per_epoch=max(1, NUM_NETWORKS * passes * len(x) // (
          size * num_epochs)))
  normal = model.loss.distribution
  return [
      normal(model.stateless_call(weights, [], x_test)[0])
      for weights in sampling.posterior]


def main(case: str, predictions: str) -> None:
  with np.load(case) as given:
    values = dict(given)
  x, y, x_test = (values[name] for name in ('x', 'y', 'x_test'))
  seed, passes = int(values['seed']), int(values['passes'])
  method = str(values['method'])
  if method == 'fit':
    normals = by_fit(x, y, x_test, seed, passes)
  else:
    weights = (
        [w[tf.newaxis] for w in by_adam(x, y, seed)] if method == 'Adam'
        else by_sample(x, y, seed, passes))
    predict = tf.function(functools.partial(network, x=tf.constant(x_test)))
    normals = [predict(draw) for draw in zip(*weights)]
  np.savez(
      predictions, **{
          name: np.concatenate([
              np.reshape(getattr(n, of), [-1, len(x_test)]) for n in normals])
          for name, of in (('means', 'loc'), ('scales', 'scale'))})


if __name__ == '__main__':
  main(*sys.argv[1:])
