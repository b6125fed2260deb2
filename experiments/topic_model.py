"""SGHMC against SGNHT on a topic model (SGNHT paper, Figure 3, row 4).

Semi-collapsed latent Dirichlet allocation: topic k has the word probabilities
pi_kw = |theta_kw| / sum_w |theta_kw| (the expanded mean of Patterson and Teh),
theta_kw ~ N(0.1, 1), and each document's topic shares, Dirichlet(0.1), are
integrated out: the gradient is that of E[log p(w, z | theta)] over the topics z
of the words. The expectation is the mean-field one, a fixed number of
iterations, where the paper draws z by Gibbs sampling. 30 topics, 100 documents
a minibatch, a and eta as in the paper. The bag of words KOS (3,430 documents)
with its most frequent words stands for the paper's 765 abstracts of ICML.

Compared are SGHMC and SGNHT at equal a, eta and number of minibatches: by the
perplexity of the second half of the words of each test document, predicted
from the first half with the draws since the burn-in. The reference is the
unigram model, the frequencies of words in training.
"""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from experiments import common
from experiments import thermostats
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions

ALPHA = 0.1


def load(arguments, num_words):
  """Training counts, and each test document in two halves."""
  train, test = sgmcmc.datasets.load_bag_of_words(
      'kos', data_dir=arguments.data)
  train, test = train.to_dense(), test.to_dense()
  frequent = np.argsort(-train.sum(0), kind='stable')[:num_words]
  train, test = train[:, frequent], test[:, frequent]
  first = np.random.default_rng(arguments.seed).binomial(test.astype(int), 0.5)
  return train, first.astype(np.float32), test - first.astype(np.float32)


def word_probabilities(theta):
  """pi, `[..., topics, words]`."""
  size = tf.abs(theta)
  return size / tf.reduce_sum(size, -1, keepdims=True)


def expected_log(concentration):
  """exp(E[log share]) under a Dirichlet distribution."""
  total = tf.reduce_sum(concentration, -1, keepdims=True)
  return tf.exp(tf.math.digamma(concentration) - tf.math.digamma(total))


def infer_shares(counts, pi, num_iterations):
  """Concentrations of the mean-field Dirichlet of each document's shares."""
  num_topics = pi.shape[-2]
  lengths = tf.reduce_sum(counts, -1, keepdims=True)

  def update(_, concentration):
    weights = expected_log(concentration)
    ratio = counts / (tf.matmul(weights, pi) + 1e-30)
    return 0, ALPHA + weights * tf.matmul(ratio, pi, transpose_b=True)

  shape = tf.matmul(counts, pi, transpose_b=True).shape
  uniform = tf.broadcast_to(ALPHA + lengths / num_topics, shape)
  return tf.while_loop(
      lambda *_: True, update, (0, uniform), maximum_iterations=num_iterations
  )[1]


def log_likelihood(theta, counts, num_iterations):
  """The evidence bound of each document, its gradient at the fixed point."""
  pi = word_probabilities(theta)
  concentration = tf.stop_gradient(
      infer_shares(counts, tf.stop_gradient(pi), num_iterations))
  words = tf.reduce_sum(
      counts * tf.math.log(tf.matmul(expected_log(concentration), pi) + 1e-30),
      -1)
  prior = tfd.Dirichlet(tf.fill([pi.shape[-2]], ALPHA))
  return words - tf.stop_gradient(
      tfd.Dirichlet(concentration).kl_divergence(prior))


def run(arguments):
  """Runs the comparison."""
  settings = common.sizes(
      arguments,
      dict(num_words=100, num_topics=5, chains=2, num_iterations=3,
           num_steps=20, num_burnin_steps=10, num_steps_per_block=5),
      dict(num_words=1000, num_topics=30, chains=2, num_iterations=8,
           num_steps=3000, num_burnin_steps=1500, num_steps_per_block=100),
      dict(num_words=2000, num_topics=30, chains=5, num_iterations=20,
           num_steps=50_000, num_burnin_steps=10_000, num_steps_per_block=100))
  settings.update(
      batch_size=100, diffusions=[0.01, 0.1], etas=[2e-5, 4e-5, 6e-5, 8e-5],
      alpha=ALPHA, prior='N(0.1, 1)')
  train, first, second = load(arguments, settings['num_words'])
  first = tf.constant(first)  # One tensor for all compiled functions.
  prior = tfd.Normal(0.1, 1.)
  posterior = sgmcmc.Posterior(
      lambda theta: tf.reduce_sum(prior.log_prob(theta), [-2, -1]),
      lambda theta, counts: log_likelihood(
          theta, counts, settings['num_iterations']),
      train)

  def predict(theta):
    pi = word_probabilities(theta)
    concentration = infer_shares(first, pi, 10)
    shares = concentration / tf.reduce_sum(concentration, -1, keepdims=True)
    return tf.matmul(shares, pi)

  def perplexity(probabilities):
    return np.exp(
        -np.sum(second * np.log(probabilities + 1e-30), (-2, -1))
        / np.sum(second))

  shape = [settings[key] for key in ('chains', 'num_topics', 'num_words')]
  start = 0.1 + sgmcmc.random.normal(shape, common.seed_of(arguments, 0))
  runs = thermostats.compare(
      arguments, posterior, [start], predict, perplexity,
      **{key: settings[key] for key in (
          'batch_size', 'diffusions', 'etas', 'num_steps', 'num_burnin_steps',
          'num_steps_per_block')})
  unigram = float(perplexity((train.sum(0) + 1.) / np.sum(train.sum(0) + 1.)))
  settings['gradients_per_chain'] = runs[0].num_gradients
  columns, rows = thermostats.table(
      runs, 'perplexity', settings['num_burnin_steps'],
      {('SGHMC', 0.01, 8e-5): 'diverges'})
  rows.append(['unigram', None, None, unigram, None, None, None])
  claims = thermostats.claims(
      runs, 'perplexity', settings['num_burnin_steps'], unigram, '.1f')
  worst = max(row[3] for row in rows if row[0] == 'SGNHT')
  claims.append(common.Claim(
      "SGNHT is far under the unigram model, below 0.8 of its perplexity, at "
      'every a and eta', bool(worst < 0.8 * unigram),
      f'worst {worst:.0f}, unigram {unigram:.0f}'))
  picture = thermostats.plot(
      runs, 'test perplexity', (0.6 * unigram, 1.05 * unigram))
  for axis in picture.axes:
    axis.axhline(unigram, color='0.4', linewidth=1., linestyle=':')
  picture.axes[0].annotate(
      'unigram', (0.02, unigram), xycoords=('axes fraction', 'data'),
      va='bottom', color='0.4')
  notes = (
      'Perplexities are those of KOS and its most frequent words, not to be '
      "held against the paper's 1,000 to 1,100 on abstracts of ICML. SGHMC "
      'counts as diverged from the unigram model on. The default size is 3,000 '
      "of the paper's 50,000 iterations: small eta has not converged, nor has "
      'the thermostat at a = 0.1. Tried besides, for what does not hold: '
      '2,000 words, 2,500 iterations, a = 0.01, eta = 8e-5: perplexity of '
      'SGHMC 786 at a kinetic energy of 0.88, of SGNHT (1,500 iterations) 725 '
      'at 0.49, unigram 1,139: SGHMC is worse, and far from diverging.')
  return common.Result(columns, rows, claims, picture, settings, notes)


def main(argv=None):
  return common.main('topic_model', run, __doc__, argv)


if __name__ == '__main__':
  main()
