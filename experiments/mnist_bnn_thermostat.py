"""SGHMC against SGNHT on a network for MNIST (SGNHT paper, Figure 3, row 1).

A network with 100 tanh units and a softmax, weights and biases N(0, 1), 50,000
training images of MNIST, 20 a minibatch: a small one, so that the gradient is
noisy. (The paper takes its network from Chen et al. (2014), whose prior
precisions are sampled as well; here they are 1.) The paper makes 50,000
iterations, the first 10,000 of them burn-in, and has 28 x 28 pixels. The
default size has 14 x 14, means over 2 x 2, so that it can make enough of them.

Compared are SGHMC and SGNHT at equal a, eta and number of minibatches: by the
error on the 10,000 test images of the mean prediction of the draws since the
burn-in (before its end, of the last draw).
"""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from experiments import common
from experiments import thermostats
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions

NUM_TRAIN = 50_000
NUM_STEPS = 50_000  # Of the paper.
DIVERGED = 0.06  # The upper end of the paper's figure.


def load(arguments, width):
  """Images `[n, width^2]` in [0, 1] and labels, of training and test."""
  def prepare(images):
    blocks = images.reshape([-1, width, 28 // width, width, 28 // width])
    return (blocks.mean((2, 4)) / 255.).reshape([-1, width**2])

  return [
      (prepare(part.images.astype(np.float32)), part.labels)
      for part in sgmcmc.datasets.load_mnist(data_dir=arguments.data)]


def logits(w1, b1, w2, b2, x):
  """The network's output for each chain, `[chains, n, 10]`."""
  hidden = tf.tanh(tf.matmul(x, w1) + b1[:, tf.newaxis])
  return tf.matmul(hidden, w2) + b2[:, tf.newaxis]


def run(arguments):
  """Runs the comparison."""
  settings = common.sizes(
      arguments,
      dict(chains=2, width=7, num_hidden=5, num_steps=20, num_burnin_steps=10,
           num_steps_per_block=5),
      dict(chains=2, width=14, num_hidden=100, num_steps=36_000,
           num_burnin_steps=8_000, num_steps_per_block=1_000),
      dict(chains=5, width=28, num_hidden=100, num_steps=NUM_STEPS,
           num_burnin_steps=10_000, num_steps_per_block=100))
  settings.update(
      batch_size=20, diffusions=[0.001, 0.01],
      etas=[2e-7, 4e-7, 6e-7, 8e-7], prior='N(0, 1)')
  (x, y), (x_test, y_test) = load(arguments, settings['width'])
  prior = tfd.Normal(0., 1.)
  posterior = sgmcmc.Posterior(
      lambda *parts: sum(
          tf.reduce_sum(prior.log_prob(part), range(1, part.shape.rank))
          for part in parts),
      lambda w1, b1, w2, b2, batch: tfd.Categorical(
          logits(w1, b1, w2, b2, batch['x'])).log_prob(batch['y']),
      {'x': x[:NUM_TRAIN], 'y': y[:NUM_TRAIN]})
  x_test = tf.constant(x_test)

  def predict(*parts):
    return tf.nn.softmax(logits(*parts, x_test))

  def test_error(probabilities):
    wrong = np.mean(np.argmax(probabilities, -1) != y_test, -1)
    return np.where(
        np.isfinite(probabilities).all((-2, -1)), wrong, np.nan)

  chains, hidden = settings['chains'], settings['num_hidden']
  shapes = [[chains, settings['width']**2, hidden], [chains, hidden],
            [chains, hidden, 10], [chains, 10]]
  start = [
      0.1 * z for z in sgmcmc.random.normal_like(
          [tf.zeros(shape) for shape in shapes], common.seed_of(arguments, 0))]
  runs = thermostats.compare(
      arguments, posterior, start, predict, test_error,
      **{key: settings[key] for key in (
          'batch_size', 'diffusions', 'etas', 'num_steps', 'num_burnin_steps',
          'num_steps_per_block')})
  settings['gradients_per_chain'] = runs[0].num_gradients
  columns, rows = thermostats.table(
      runs, 'test error', settings['num_burnin_steps'],
      {('SGHMC', 0.001, 8e-7): 'diverges'})
  claims = thermostats.claims(
      runs, 'test error', settings['num_burnin_steps'], DIVERGED,
      'the axis of the figure', '.4f', NUM_STEPS)
  best = min(row[3] for row in rows if row[0] == 'SGNHT')
  claims.append(common.Claim(
      "SGNHT's best test error is about 2%, 1.5% to 2.5%, as in the paper's "
      'figure',
      bool(0.015 <= best <= 0.025),
      f'{best:.2%} after {settings["num_steps"]:,} of {NUM_STEPS:,} '
      'iterations'))
  picture = thermostats.plot(runs, 'test error (log scale)', (0.015, 1.))
  picture.axes[0].set_yscale('log')
  picture.axes[0].set_yticks([0.02, 0.05, 0.1, 0.2, 0.5], minor=False)
  picture.axes[0].set_yticklabels(['2%', '5%', '10%', '20%', '50%'])
  return common.Result(
      columns, rows, claims, picture, settings)


def main(argv=None):
  return common.main('mnist_bnn_thermostat', run, __doc__, argv)


if __name__ == '__main__':
  main()
