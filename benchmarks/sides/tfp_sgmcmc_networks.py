"""Several small networks at once: steps of all of them.

A case has `method`: "gradient", the bare gradient of all, along which they move
(no minibatch is chosen, no noise drawn); "sample", with `kernel` "SGHMC" or
"default", that of `PosteriorSampling()`; "fit", of `num_networks` chains, one
step for each batch; or "arrays", a `fit` of arrays in batches of 32, with ten
steps for each batch.
"""

import keras
import numpy as np
import tensorflow as tf

from benchmarks import driver
from benchmarks import networks
from benchmarks import stacked
from benchmarks import worker
import tfp_sgmcmc as sgmcmc

NUM_FEATURES, HIDDEN = 5, [16, 16, 16, 16]
SIZES = [NUM_FEATURES, *HIDDEN, 2]


def prepare(case):
  rng = np.random.default_rng(0)
  x = rng.normal(size=[case['num_examples'], NUM_FEATURES])
  y = x[:, 0] + 0.1 * rng.normal(size=len(x))
  return _METHODS[case['method']](case, np.float32(x), np.float32(y))


def _gradient(case, x, y):
  network = stacked.Perceptron(SIZES)
  posterior = network.posterior(x, y)
  num, size = case['num_networks'], case['batch_size']
  rows = tuple(
      tf.constant(np.stack([part[:size]] * num)) for part in (x, y))

  @tf.function(jit_compile=True, autograph=False)
  def run(weights):
    def body(step, weights):
      with tf.GradientTape() as tape:
        tape.watch(weights)
        value = tf.reduce_sum(
            posterior.log_prob_estimate(*weights, batch=rows))
      return step + 1, [
          w + 1e-8 * g for w, g in zip(weights, tape.gradient(value, weights))]

    return tf.while_loop(
        lambda step, _: step < case['num_steps'], body, (0, weights))[1]

  weights = network.initial_weights(num, 0)

  def turn(seed):
    del seed
    for part in run(weights):
      part.numpy()

  return turn


def _sample(case, x, y):
  network = stacked.Perceptron(SIZES)
  posterior = network.posterior(x, y)
  num_steps = case['num_steps']
  if case['kernel'] == 'default':
    kernel = stacked.tuned(posterior, case['batch_size'], num_steps)
  else:
    kernel = sgmcmc.SGHMC(
        posterior, step_size=1e-4, friction=10.,
        gradient_estimator=sgmcmc.gradients.Uniform(case['batch_size']))
  weights = network.initial_weights(case['num_networks'], 0)
  timer = driver.Timer(1, case['most_times'])

  def turn(seed):
    def call(num_draws):
      return [part.numpy() for part in sgmcmc.sample(
          kernel, num_draws, weights, num_burnin_steps=num_steps - 1,
          num_steps_between_results=num_steps - 1, chunk_size=1, seed=seed,
          trace_fn=None, progress_bar=False).states]

    _, wall, cpu = timer(call)
    return dict(wall=wall, cpu=cpu)

  return turn


def _fit(case, x, y):
  num, num_steps = case['num_networks'], case['num_steps']
  keras.utils.set_random_seed(0)
  model = networks.regression(NUM_FEATURES, HIDDEN)
  model.compile(
      'sgd', sgmcmc.keras.GaussianLikelihood(), jit_compile=case['jit_compile'],
      steps_per_execution=case['steps_per_execution'])
  rows = tf.data.Dataset.from_tensor_slices((x, y[:, np.newaxis])).repeat()
  rows = rows.batch(num * case['batch_size']).take(20).cache().repeat()
  sampling = sgmcmc.keras.PosteriorSampling(
      num_examples=len(x), num_chains=num, start_epoch=0, seed=0,
      num_burnin_steps=num_steps - 1, num_steps_between_results=num_steps - 1)

  def turn(seed):
    del seed
    model.fit(
        rows, steps_per_epoch=num_steps, verbose=0, callbacks=[sampling])

  return turn


def _arrays(case, x, y):
  keras.utils.set_random_seed(0)
  model = networks.regression(NUM_FEATURES, HIDDEN)
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood())
  sampling = sgmcmc.keras.PosteriorSampling(
      num_chains=case['num_networks'], start_epoch=0, seed=0,
      num_steps_per_batch=10)

  def turn(seed):
    del seed
    model.fit(
        x, y[:, np.newaxis], epochs=case['num_epochs'], verbose=0,
        callbacks=[sampling])

  return turn


_METHODS = {
    'gradient': _gradient, 'sample': _sample, 'fit': _fit, 'arrays': _arrays}


if __name__ == '__main__':
  worker.serve(prepare)
