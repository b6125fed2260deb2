"""The bare gradient by TensorFlow under XLA: what SGLD cannot be faster than.

Each step takes the next rows of the table as they lie, and moves along the
gradient of a perceptron's log density: no minibatch is chosen, no noise drawn.
"""

import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks import targets
from benchmarks import worker


def prepare(case):
  posterior = targets.posterior(case)
  num_examples, size = case['num_examples'], case['batch_size']

  def log_prob(*parts, batch):
    return targets.perceptron_log_prior(*parts) + (
        num_examples / size * tf.reduce_sum(
            targets.perceptron_log_likelihood(*parts, batch)))

  @tf.function(jit_compile=True, autograph=False)
  def run(parts):
    def body(step, parts):
      first = step * size % (num_examples - size + 1)
      batch = tf.nest.map_structure(
          lambda table: tf.slice(
              table, [first] + [0] * (table.shape.rank - 1),
              [size, *table.shape[1:]]), posterior.data)
      _, gradients = tfp.math.value_and_gradient(
          lambda *parts: log_prob(*parts, batch=batch), parts)
      return step + 1, [
          part + case['step_size'] * gradient
          for part, gradient in zip(parts, gradients)]

    num_steps = case['num_draws'] * case['thin']
    return tf.while_loop(
        lambda step, _: step < num_steps, body, (0, parts))[1]

  start = targets.start(case)

  def turn(seed):
    del seed
    for part in run(start):
      part.numpy()

  return turn


if __name__ == '__main__':
  worker.serve(prepare)
