"""A convolutional network on MNIST, learning curves: EWSG paper, Fig. 3b.

A network of 5x5x32, pool, 5x5x64, pool, 200, 200, 10, prior N(0, 1),
minibatches of 100, in `model.fit` with the callback: SGLD, pSGLD, SGHMC,
CP-SGHMC, EWSG, with the paper's friction of 1 and its step sizes, h = {4, 2,
2}e-3 for EWSG, SGHMC and CP-SGHMC and {0.02, 8}e-6 for SGLD and pSGLD, read in
the units of `mnist_bnn_ewsg`. EWSG deals each batch of 200 into two minibatches
of 100, so that it makes half the steps at equal passes. CP-SGHMC has strata,
ten clusters by k-means, and `fit` has none: here its batches are stratified in
the tf.data pipeline, with sample weights N_k / n_k n / N.

A pass takes about half a minute on two cores: the default, of three passes,
takes about eight minutes and shows nothing but that it runs; --full, the
paper's 200, takes hours, says how many, and goes on after a kill. It is not
among those of `python -m experiments all`.
"""

import functools
import math
from typing import NamedTuple

import keras
from matplotlib import figure
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from experiments import common
from experiments import parts
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions
BATCH_SIZE, NUM_STRATA, FRICTION = 100, 10, 1.
STEP_SIZES = {
    'SGLD': 2e-8, 'pSGLD': 8e-6, 'SGHMC': 2e-3, 'CP-SGHMC': 2e-3,
    'EWSG': 4e-3}


class Found(NamedTuple):
  """What a sampler came to.

  Attributes:
    accuracy: `[passes]`, of the training data, %.
    test_accuracy: Of the mean prediction of the draws, %.
    test_log_prob: Its mean log likelihood.
    acceptance: Of the index chain; None without one.
  """
  accuracy: list[float]
  test_accuracy: float
  test_log_prob: float
  acceptance: float | None


def make_kernel(name, size):
  """The kernel; the paper's h and friction are of the mean potential."""
  step_size = STEP_SIZES[name]
  if name == 'SGLD':
    return functools.partial(sgmcmc.SGLD, step_size=step_size)
  if name == 'pSGLD':
    return functools.partial(
        sgmcmc.SGLD, step_size=step_size / size,
        preconditioner=sgmcmc.preconditioners.RMSProp(0.99, regularizer=1e-5))
  return functools.partial(
      sgmcmc.SGHMC, step_size=step_size / math.sqrt(size),
      friction=FRICTION * math.sqrt(size),
      gradient_estimator=sgmcmc.gradients.ExponentiallyWeighted(
          base=sgmcmc.gradients.Reshuffled()) if name == 'EWSG' else None)


def make_model(seed, steps_per_execution):
  keras.utils.set_random_seed(seed)
  layers = keras.layers
  model = keras.Sequential([
      keras.Input([28, 28, 1]),
      layers.Conv2D(32, 5, activation='relu'), layers.MaxPooling2D(),
      layers.Conv2D(64, 5, activation='relu'), layers.MaxPooling2D(),
      layers.Flatten(), layers.Dense(200, activation='relu'),
      layers.Dense(200, activation='relu'), layers.Dense(10)])
  model.compile(
      'sgd', keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      metrics=['accuracy'], jit_compile=False,  # Quicker on two cores.
      steps_per_execution=steps_per_execution)
  return model


class Batches:
  """The batches of some epochs as a `tf.data` pipeline."""

  def __init__(self, x, y, strata, seed):
    self._data = tf.constant(x), tf.constant(y)
    self._members = [np.flatnonzero(strata == k) for k in np.unique(strata)]
    self._random = np.random.default_rng(seed)

  def __call__(self, size, num_steps, is_stratified):
    groups = self._members if is_stratified else [
        np.arange(len(self._data[0]))]
    lengths = np.array([len(group) for group in groups])
    # As gradients.Stratified has it: in proportion, at least one each.
    number = sgmcmc.gradients.Stratified(
        size, np.repeat(np.arange(len(groups)), lengths)).allocation
    indices = np.concatenate([
        self._draw(group, num_steps, n) for group, n in zip(groups, number)],
        axis=1)
    weights = np.concatenate([
        np.full(n, length / n * size / lengths.sum())
        for length, n in zip(lengths, number)]).astype(np.float32)

    def gather(indices):
      x, y = (tf.gather(leaf, indices) for leaf in self._data)
      return (x, y, tf.constant(weights)) if is_stratified else (x, y)

    return tf.data.Dataset.from_tensor_slices(indices).map(gather).prefetch(8)

  def _draw(self, group, num_steps, number):
    """Rows `[num_steps, number]`, each once before any comes a second time."""
    turns = -(-num_steps * number // len(group))
    order = np.concatenate([
        self._random.permutation(group) for _ in range(turns)])
    return order[:num_steps * number].reshape(
        [num_steps, number]).astype(np.int32)


def sample(name, data, strata, passes, arguments):
  """A chain: `Found`."""
  (x, y), test = data
  seed = arguments.seed
  size = 2 * BATCH_SIZE if name == 'EWSG' else BATCH_SIZE
  num_steps = len(x) // size
  burn_in = passes * num_steps // 2
  sampling = sgmcmc.keras.PosteriorSampling(
      make_kernel(name, len(x)), num_examples=len(x),
      prior=tfd.Normal(0., 1.),
      num_burnin_steps=burn_in, num_steps_between_results=max(
          1, (passes * num_steps - burn_in) // 100) - 1, seed=seed)
  history = make_model(seed, math.gcd(50, num_steps)).fit(
      Batches(x, y, strata, seed)(
          size, passes * num_steps, name == 'CP-SGHMC'),
      epochs=passes, steps_per_epoch=num_steps, verbose=0,
      callbacks=[sampling, keras.callbacks.LambdaCallback(
          on_epoch_end=lambda epoch, _: parts.tell(
              (epoch + 1) / passes, arguments))])
  curve = [100. * value for value in history.history['accuracy']]
  scores = sampling.posterior.evaluate(*test, batch_size=len(test[1]) // 5)
  acceptance = getattr(
      sampling.kernel_results.gradient_estimator_results, 'acceptance', None)
  return Found(curve + [np.nan] * (passes - len(curve)),
               100. * scores['accuracy'], -scores['nll'],
               None if acceptance is None else float(np.mean(acceptance)))


def load(arguments):
  train, test = sgmcmc.datasets.load_mnist(arguments.data)
  limit = common.sizes(arguments, 400, None, None)
  return [
      (part.images[:limit, ..., np.newaxis].astype(np.float32) / 255.,
       part.labels[:limit]) for part in (train, test)]


def run(arguments):
  passes = common.sizes(arguments, 2, 3, 200)
  data = load(arguments)
  strata = sgmcmc.gradients.kmeans_strata(
      data[0][0][:, ::2, ::2], NUM_STRATA, arguments.seed)
  names = common.sizes(
      arguments, ['CP-SGHMC', 'EWSG'], list(STEP_SIZES), list(STEP_SIZES))
  found = dict(zip(names, parts.each(
      lambda name: sample(name, data, strata, passes, arguments),
      names, arguments, 'samplers')))
  rows = [
      [name, STEP_SIZES[name], values.accuracy[-1], values.test_accuracy,
       values.test_log_prob, values.acceptance]
      for name, values in found.items()]

  def later(name):
    accuracy = found[name].accuracy
    return float(np.mean(accuracy[len(accuracy) // 2:]))

  claims = [
      common.Claim(
          'its training accuracy, averaged over the second half of the passes, '
          f'is above that of {name}',
          bool(later('EWSG') > later(name)) if passes >= 100 else None,
          f'{later("EWSG"):.2f}% and {later(name):.2f}%, {passes} passes, one '
          'seed; acceptance of the index chain '
          f'{found["EWSG"].acceptance:.2f}',
          common.Quotation(
              'Li et al. (2021)', 'section 5.3, Fig. 3b', words))
      for name, words in (
          ('SGHMC', 'EWSG consistently improve over its uniform counterpart '
           '(i.e. SGHMC) and CP-SGHMC'),
          ('CP-SGHMC', 'EWSG consistently improve over its uniform counterpart '
           '(i.e. SGHMC) and CP-SGHMC'),
          ('SGLD', 'EWSG also outperforms two standard benchmarks SGLD and '
           'pSGLD'),
          ('pSGLD', 'EWSG also outperforms two standard benchmarks SGLD and '
           'pSGLD')) if name in found]
  return common.Result(
      ['sampler', 'step size', 'training accuracy %',
       'test accuracy % of the draws', 'test log likelihood',
       'acceptance of the index chain'],
      rows, claims, draw(found), dict(
          passes=passes, batch_size=BATCH_SIZE, friction=FRICTION,
          step_sizes=STEP_SIZES, num_strata=NUM_STRATA,
          num_train=len(data[0][0]), start="Keras' Glorot uniform"),
      'There is no comparison at tuned steps: a run takes hours.')


def draw(found):
  picture = figure.Figure(figsize=(6, 4), layout='constrained')
  ax = picture.subplots()
  for k, (name, values) in enumerate(found.items()):
    ax.plot(np.arange(1, len(values.accuracy) + 1), values.accuracy, f'C{k}',
            marker='.', label=common.with_acceptance(name, values.acceptance))
  ax.set(xlabel='passes over the training data',
         ylabel='training accuracy (%)')
  ax.legend(fontsize='small', loc='lower right')
  return picture


def main(argv=None):
  return common.main('mnist_cnn_ewsg', run, __doc__, argv)


if __name__ == '__main__':
  main()
