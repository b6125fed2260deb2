"""The part of a step that chooses a minibatch, alone: distinct indices."""

import tensorflow as tf

from benchmarks import worker
import tfp_sgmcmc as sgmcmc


def prepare(case):
  num_steps = case['num_draws'] * case['thin']

  @tf.function(jit_compile=True, autograph=False)
  def run(seed):
    def body(step, seed, total):
      indices = sgmcmc.random.indices(
          case['num_examples'], [case['batch_size']], seed)
      return step + 1, seed + 1, total + tf.reduce_sum(indices)
    return tf.while_loop(
        lambda step, *_: step < num_steps, body, (0, seed, 0))[2]

  def turn(seed):
    run(tf.constant([0, seed])).numpy()

  return turn


if __name__ == '__main__':
  worker.serve(prepare)
