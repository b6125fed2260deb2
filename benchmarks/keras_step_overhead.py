"""Time of a training step of `fit`: sampling over SGD with momentum.

  python benchmarks/keras_step_overhead.py [--repeats 9] [--steps 100]
      [--jit_compile] [--steps_per_execution 1]

An MLP 784-100-10 and the convolutional network of the EWSG paper (5x5x32 and
5x5x64 convolutions with 2x2 pools, dense 200, 200, softmax 10), batches of 100.
The same model is fitted by SGD with momentum, and with PosteriorSampling
(SGHMC, a Gaussian prior), in turns; both are compiled before the first timing.
Each figure is the median over turns; the ratio is the median of the turns'
ratios, so that it holds on a machine whose speed drifts.
"""

import argparse
import os
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tensorflow_probability as tfp  # noqa: E402

import tfp_sgmcmc as sgmcmc  # noqa: E402

BATCH_SIZE = 100


def perceptron():
  return keras.Sequential([
      keras.Input([784]),
      keras.layers.Dense(100, activation='relu'),
      keras.layers.Dense(10)])


def convolutional():
  return keras.Sequential([
      keras.Input([784]),
      keras.layers.Reshape([28, 28, 1]),
      keras.layers.Conv2D(32, 5, activation='relu'),
      keras.layers.MaxPooling2D(2),
      keras.layers.Conv2D(64, 5, activation='relu'),
      keras.layers.MaxPooling2D(2),
      keras.layers.Flatten(),
      keras.layers.Dense(200, activation='relu'),
      keras.layers.Dense(200, activation='relu'),
      keras.layers.Dense(10)])


def runners(make_model, num_steps, jit_compile, steps_per_execution):
  """Functions that make `num_steps` steps and return seconds a step."""
  rng = np.random.default_rng(0)
  num_examples = num_steps * BATCH_SIZE
  x = tf.constant(rng.uniform(size=[num_examples, 784]), tf.float32)
  y = tf.constant(rng.integers(0, 10, num_examples), tf.int32)
  data = tf.data.Dataset.from_tensor_slices((x, y)).batch(
      BATCH_SIZE, drop_remainder=True)

  def runner(callbacks):
    model = make_model()
    model.compile(
        keras.optimizers.SGD(1e-3, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=['accuracy'], jit_compile=jit_compile,
        steps_per_execution=steps_per_execution)

    def run():
      start = time.perf_counter()
      model.fit(data, epochs=1, verbose=0, callbacks=callbacks)
      return (time.perf_counter() - start) / num_steps

    run()
    return run

  sampling = sgmcmc.keras.PosteriorSampling(
      sgmcmc.SGHMC, num_examples=num_examples,
      prior=tfp.distributions.Normal(0., 1.), learning_rate=1e-3, momentum=0.9,
      num_burnin_steps=num_steps - 1, num_steps_between_results=num_steps - 1,
      seed=0)
  return runner(None), runner([sampling])


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--repeats', type=int, default=9)
  parser.add_argument('--steps', type=int, default=100)
  parser.add_argument('--jit_compile', action='store_true')
  parser.add_argument('--steps_per_execution', type=int, default=1)
  arguments = parser.parse_args()
  models = {'MLP 784-100-10': (perceptron, 5 * arguments.steps),
            'CNN of the EWSG paper': (convolutional, arguments.steps // 2)}
  for name, (make_model, num_steps) in models.items():
    sgd, sampling = runners(
        make_model, num_steps, arguments.jit_compile,
        arguments.steps_per_execution)
    pairs = np.array([(sgd(), sampling()) for _ in range(arguments.repeats)])
    ratios = pairs[:, 1] / pairs[:, 0]
    print(
        f'{name:<22} SGD {np.median(pairs[:, 0]) * 1e3:7.3f} ms   '
        f'sampling {np.median(pairs[:, 1]) * 1e3:7.3f} ms   '
        f'ratio {np.median(ratios):.3f} '
        f'({ratios.min():.3f} to {ratios.max():.3f})', flush=True)


if __name__ == '__main__':
  main()
