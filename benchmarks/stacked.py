"""Several networks of one shape, stacked: their posterior, and a start by Adam.

The kernels have the shape `[networks, inputs, outputs]`, the biases
`[networks, outputs]`: each network is a chain.
"""

from collections.abc import Sequence
import math
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks import members
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions


class Perceptron(NamedTuple):
  """A perceptron with rectified hidden layers.

  Attributes:
    sizes: The numbers of units, of inputs and outputs too.
    is_classifier: Whether outputs are logits; else two, a mean and what
      softplus makes a scale.
  """
  sizes: Sequence[int]
  is_classifier: bool = False

  def initial_weights(self, num: int, seed: int) -> list[tf.Tensor]:
    """Glorot's kernels, and biases of zero."""
    weights = []
    for k, (rows, columns) in enumerate(zip(self.sizes, self.sizes[1:])):
      limit = math.sqrt(6. / (rows + columns))
      weights += [
          limit * (2. * sgmcmc.random.uniform(
              [num, rows, columns], [seed, k]) - 1.),
          tf.zeros([num, columns])]
    return weights

  def outputs(self, weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Outputs `[networks, n, outputs]`."""
    # With rows last: XLA for CPUs then takes two thirds of the time, since rows
    # are many and the units of a layer few.
    x = tf.linalg.matrix_transpose(x)
    layers = list(zip(weights[::2], weights[1::2]))
    for k, (kernel, bias) in enumerate(layers):
      x = tf.matmul(kernel, x, transpose_a=True) + bias[..., tf.newaxis]
      if k < len(layers) - 1:
        x = tf.nn.relu(x)
    return tf.linalg.matrix_transpose(x)

  def distribution(
      self, weights: Sequence[tf.Tensor], x: tf.Tensor) -> tfd.Distribution:
    """Of the targets `[networks, n]`."""
    outputs = self.outputs(weights, x)
    if self.is_classifier:
      return tfd.Categorical(logits=outputs)
    return tfd.Normal(outputs[..., 0], tf.nn.softplus(outputs[..., 1]))

  def posterior(self, x: np.ndarray, y: np.ndarray) -> sgmcmc.Posterior:
    """With a standard normal prior of each weight."""
    def log_prior(*weights):
      return -0.5 * sum(
          tf.reduce_sum(w**2, axis=[-2, -1] if k % 2 == 0 else [-1])
          for k, w in enumerate(weights))

    def log_likelihood(*weights_and_batch):
      *weights, (x, y) = weights_and_batch
      return self.distribution(weights, x).log_prob(y)

    return sgmcmc.Posterior(log_prior, log_likelihood, (x, y))

  def by_adam(
      self, x: np.ndarray, y: np.ndarray, num: int, seed: int,
  ) -> list[tf.Tensor]:
    """Networks stopped early, each where its last 15% are predicted best."""
    weights = [tf.Variable(w) for w in self.initial_weights(num, seed)]
    optimizer = keras.optimizers.Adam(members.LEARNING_RATE)
    optimizer.build(weights)
    (held_x, held_y), (x, y) = (
        tuple(map(tf.constant, rows)) for rows in members.split(x, y))

    @tf.function(jit_compile=True)
    def epoch(order):
      for k in tf.range(len(order)):
        rows = order[k]
        with tf.GradientTape() as tape:
          loss = -tf.reduce_sum(tf.reduce_mean(self.distribution(
              weights, tf.gather(x, rows)).log_prob(tf.gather(y, rows)), -1))
        optimizer.apply(tape.gradient(loss, weights))
      return -tf.reduce_mean(
          self.distribution(weights, held_x).log_prob(held_y), axis=-1)

    return [tf.constant(w) for w in members.stopped_early(
        lambda order: epoch(tf.constant(order)).numpy(),
        lambda: [w.numpy() for w in weights], len(x), seed)]


def tuned(
    posterior: sgmcmc.Posterior, batch_size: int, num_steps: int,
) -> sgmcmc.SelfTuning:
  """The default of `PosteriorSampling`, for `sample`."""
  return sgmcmc.SelfTuning(
      sgmcmc.SGNHT(
          posterior, step_size=0.003, diffusion=0., thermostat='part',
          gradient_estimator=sgmcmc.gradients.Uniform(batch_size)),
      num_adaptation_steps=num_steps)


def on_all_rows(
    posterior: sgmcmc.Posterior, num_steps: int, **arguments: Any,
) -> sgmcmc.EnergyErrorStepSizeAdaptation:
  """`MicrocanonicalLangevin`, with its step found in so many steps."""
  return sgmcmc.EnergyErrorStepSizeAdaptation(
      sgmcmc.MicrocanonicalLangevin(
          posterior, **{'step_size': 0.001, **arguments}),
      num_adaptation_steps=num_steps)
