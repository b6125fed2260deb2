"""Predictions of draws of a network: ours, or one `model.predict` each."""

import keras
import numpy as np
import scipy.special

from benchmarks import networks
from benchmarks import worker
import tfp_sgmcmc as sgmcmc


def prepare(case):
  model = networks.named(case['network'])
  model.compile(
      'sgd', keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  rng = np.random.default_rng(0)
  x = rng.uniform(size=[case['num_examples'], 784]).astype(np.float32)
  draws = [
      rng.normal(0., 0.1, [case['num_draws'], *weight.shape]).astype(np.float32)
      for weight in model.trainable_variables]
  posterior = sgmcmc.keras.PosteriorSamples.from_arrays(model, draws)

  def ours():
    return posterior.predict(x, batch_size=case['batch_size'])

  def keras_alone():
    total = 0.
    for weights in zip(*draws):
      model.set_weights(list(weights))
      total = total + scipy.special.softmax(model.predict(
          x, batch_size=case['batch_size'], verbose=0), axis=-1)
    return total / case['num_draws']

  def turn(seed):
    del seed
    return (ours if case['sampling'] else keras_alone)()

  return turn


if __name__ == '__main__':
  worker.serve(prepare)
