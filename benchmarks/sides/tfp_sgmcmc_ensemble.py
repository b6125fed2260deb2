"""Ten networks of a table, by this library: see `benchmarks.ensembles`.

  python -m benchmarks.sides.tfp_sgmcmc_ensemble CASE.npz PREDICTIONS.npz

CASE has the rows, `method`, `seed` and `passes`. Written are the means and
scales `[draw, row]` of the test rows, for each network drawn.
"""

import functools
import math
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks import members
from benchmarks import networks
from benchmarks import stacked
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import sklearn

tfd = tfp.distributions

BATCH_SIZE = 128
NUM_NETWORKS, HIDDEN, NUM_DRAWS = (
    members.NUM_NETWORKS, members.HIDDEN, members.NUM_DRAWS)


def by_sample(
    network: stacked.Perceptron, x: np.ndarray, y: np.ndarray, seed: int,
    passes: int, on_all_rows: bool,
) -> list[tf.Tensor]:
  """Draws of the weights, `[draw, network, ...]`."""
  posterior = network.posterior(x, y)
  size = len(x) if on_all_rows else min(BATCH_SIZE, len(x))
  # On all rows a step takes two gradients.
  num_steps = max(passes // 2 if on_all_rows else passes * len(x) // size, 4)
  num_burnin_steps = num_steps * (3 if on_all_rows else 2) // 4
  num_draws = min(NUM_DRAWS, num_steps - num_burnin_steps)
  kernel = (
      stacked.on_all_rows(posterior, num_burnin_steps) if on_all_rows
      else stacked.tuned(posterior, size, num_burnin_steps))
  return sgmcmc.sample(
      kernel, num_draws, network.by_adam(x, y, NUM_NETWORKS, seed),
      num_burnin_steps=num_burnin_steps, num_steps_between_results=(
          (num_steps - num_burnin_steps) // num_draws - 1),
      trace_fn=None, seed=seed, progress_bar=False).states


def by_fit(
    x: np.ndarray, y: np.ndarray, x_test: np.ndarray, seed: int, epochs: int,
) -> list[tfd.Normal]:
  """Predictions of each draw of one fit with ten chains, by defaults."""
  model = regression(x, seed)
  sampling = sgmcmc.keras.PosteriorSampling(num_chains=NUM_NETWORKS, seed=seed)
  model.fit(x, y, epochs=epochs, verbose=0, callbacks=[sampling])
  return normals_of(sampling.posterior, x_test)


def by_fit_on_all_rows(
    x: np.ndarray, y: np.ndarray, x_test: np.ndarray, seed: int, passes: int,
) -> list[tfd.Normal]:
  """Predictions of each draw of one fit whose kernel is that of "all rows"."""
  model = regression(x, seed, jit_compile=True, steps_per_execution=10)
  num_epochs = min(20, passes)
  num_steps = max(passes // 2, 2 * num_epochs)
  num_samples = num_steps - num_steps // num_epochs
  num_burnin_steps = num_samples * 3 // 4
  sampling = sgmcmc.keras.PosteriorSampling(
      num_examples=len(x), num_chains=NUM_NETWORKS, seed=seed,
      kernel=functools.partial(
          stacked.on_all_rows, num_steps=num_burnin_steps,
          decoherence_length=math.sqrt(model.count_params())),
      prior={'.*': tfd.Normal(0., 1.)}, start_epoch=1,
      num_burnin_steps=num_burnin_steps,
      num_steps_between_results=max(
          1, (num_samples - num_burnin_steps) // 30) - 1)
  # Each chain has a tenth of each batch.
  rows = tf.data.Dataset.from_tensors(tuple(
      np.repeat(part, NUM_NETWORKS, axis=0) for part in (x, y))).repeat()
  model.fit(
      rows, epochs=num_epochs, verbose=0, callbacks=[sampling],
      steps_per_epoch=max(1, num_steps // num_epochs))
  return normals_of(sampling.posterior, x_test)


def regression(x: np.ndarray, seed: int, **arguments: Any) -> keras.Model:
  """The network of the benchmark in Keras, compiled."""
  keras.utils.set_random_seed(seed)
  model = networks.regression(x.shape[1], HIDDEN)
  model.compile('adam', sgmcmc.keras.GaussianLikelihood(), **arguments)
  return model


def by_estimator(
    x: np.ndarray, y: np.ndarray, x_test: np.ndarray, seed: int,
) -> list[tfd.Normal]:
  """Predictions of each draw of scikit-learn's estimator by its defaults."""
  # x and y are standardised already: it finds mean 0 and scale 1.
  regressor = sklearn.BayesianRegressor(HIDDEN, random_state=seed).fit(x, y)
  return normals_of(regressor.posterior_, x_test)


def normals_of(
    posterior: sgmcmc.keras.PosteriorSamples, x: np.ndarray,
) -> list[tfd.Normal]:
  """What each draw predicts."""
  model = posterior.model
  return [
      model.loss.distribution(model.stateless_call(weights, [], x)[0])
      for weights in posterior]


def main(case: str, predictions: str) -> None:
  with np.load(case) as given:
    values = dict(given)
  x, y, x_test = (values[name] for name in ('x', 'y', 'x_test'))
  seed, passes = int(values['seed']), int(values['passes'])
  method = str(values['method'])
  network = stacked.Perceptron([x.shape[1], *HIDDEN, 2])
  if method == 'fit':
    normals = by_fit(x, y[:, np.newaxis], x_test, seed, passes)
  elif method == 'fit, all rows':
    normals = by_fit_on_all_rows(x, y[:, np.newaxis], x_test, seed, passes)
  elif method == 'BayesianRegressor':
    normals = by_estimator(x, y, x_test, seed)
  else:
    weights = (
        [w[tf.newaxis] for w in network.by_adam(x, y, NUM_NETWORKS, seed)]
        if method == 'Adam' else by_sample(
            network, x, y, seed, passes, method == 'all rows'))
    predict = tf.function(
        functools.partial(network.distribution, x=tf.constant(x_test)))
    normals = [predict(draw) for draw in zip(*weights)]
  np.savez(
      predictions, **{
          name: np.concatenate([
              np.reshape(getattr(n, of), [-1, len(x_test)]) for n in normals])
          for name, of in (('means', 'loc'), ('scales', 'scale'))})


if __name__ == '__main__':
  main(*sys.argv[1:])
