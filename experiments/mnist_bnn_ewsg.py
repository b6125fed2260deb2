"""Bayesian networks on MNIST, learning curves: EWSG paper, Fig. 3.

An MLP 784-100-10 and a CNN (5x5x32, pool, 5x5x64, pool, 200, 200, 10), prior
N(0, 1), minibatches of 100, in `model.fit` with the callback: SGLD, pSGLD,
SGHMC, CP-SGHMC, EWSG. The paper has gamma = 0.1 (MLP) and 1 (CNN) and
h = {4, 2, 2}e-3 for EWSG, SGHMC, CP-SGHMC. In the units of its equations, with
the potential a sum over 60,000 examples, that h and gamma = 0.1 or 10 came to
nothing here (training accuracy 12% to 45% after 6 passes): so gamma is 100 and
each sampler's h is the best of a grid, by the training accuracy at the end of a
shorter run; --full has the paper's gamma, and a wider grid.
EWSG deals each batch of 200 into two minibatches of 100, so that it makes half
the steps at equal passes. CP-SGHMC has strata, ten clusters by k-means, and
`fit` has none: here its batches are stratified in the tf.data pipeline, with
sample weights N_k / n_k n / N. The CNN, of which a pass takes about half a
minute on two cores, is for --full.
"""

import functools
import math

import keras
from matplotlib import figure
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from experiments import common
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions
BATCH_SIZE, NUM_STRATA = 100, 10
NAMES = ('SGLD', 'pSGLD', 'SGHMC', 'CP-SGHMC', 'EWSG')
FRICTION, SHORT_FRICTION = {'MLP': 0.1, 'CNN': 1.}, 100.
GRIDS = {
    'SGLD': (5e-6, 1e-5, 2e-5),
    'pSGLD': (5e-8, 1e-7, 2e-7),
    **dict.fromkeys(('SGHMC', 'CP-SGHMC', 'EWSG'), (8e-4, 1.6e-3, 3.2e-3))}
FULL_GRIDS = {
    'SGLD': (1e-8, 1e-7, 1e-6, 5e-6, 2e-5, 4e-5),
    'pSGLD': (1e-9, 3e-9, 1e-8, 3e-8, 1e-7, 3e-7),
    **dict.fromkeys(
        ('SGHMC', 'CP-SGHMC', 'EWSG'),
        (3e-5, 1e-4, 2e-4, 4e-4, 8e-4, 2e-3, 4e-3))}


def make_kernel(name, step_size, friction):
  if name == 'SGLD':
    return functools.partial(sgmcmc.SGLD, step_size=step_size)
  if name == 'pSGLD':
    return functools.partial(
        sgmcmc.SGLD, step_size=step_size,
        preconditioner=sgmcmc.preconditioners.RMSProp(0.99, 1e-5))
  estimator = None
  if name == 'EWSG':
    estimator = sgmcmc.gradients.ExponentiallyWeighted(
        base=sgmcmc.gradients.Deal())
  return functools.partial(
      sgmcmc.SGHMC, step_size=step_size, friction=friction,
      gradient_estimator=estimator)


def make_model(architecture, seed, steps_per_execution):
  keras.utils.set_random_seed(seed)
  layers = keras.layers
  if architecture == 'MLP':
    hidden = [layers.Flatten(), layers.Dense(100, activation='relu')]
  else:
    hidden = [
        layers.Conv2D(32, 5, activation='relu'), layers.MaxPooling2D(),
        layers.Conv2D(64, 5, activation='relu'), layers.MaxPooling2D(),
        layers.Flatten(), layers.Dense(200, activation='relu'),
        layers.Dense(200, activation='relu')]
  model = keras.Sequential(
      [keras.Input([28, 28, 1]), *hidden, layers.Dense(10)])
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


def sample(
    architecture, name, step_size, friction, batches, passes, seed, num_rows):
  """The callback, and the training accuracy (%) of each pass."""
  size = 2 * BATCH_SIZE if name == 'EWSG' else BATCH_SIZE
  num_steps = num_rows // size
  burn_in = passes * num_steps // 2
  model = make_model(architecture, seed, math.gcd(50, num_steps))
  sampling = sgmcmc.keras.PosteriorSampling(
      make_kernel(name, step_size, friction), num_rows,
      prior=tfd.Normal(0., 1.), num_burnin_steps=burn_in,
      num_steps_between_results=max(1, (passes * num_steps - burn_in) // 100)
      - 1, seed=seed)
  history = model.fit(
      batches(size, passes * num_steps, name == 'CP-SGHMC'), epochs=passes,
      steps_per_epoch=num_steps, verbose=0, callbacks=[sampling])
  curve = [100. * value for value in history.history['accuracy']]
  return sampling, curve + [np.nan] * (passes - len(curve))


def load(arguments):
  train, test = sgmcmc.datasets.load_mnist(arguments.data)
  limit = common.sizes(arguments, 400, None, None)
  return [
      (part.images[:limit, ..., np.newaxis].astype(np.float32) / 255.,
       part.labels[:limit]) for part in (train, test)]


def choose_step(architecture, name, friction, x, y, strata, arguments):
  """The step size, by the training accuracy at the end of a shorter run."""
  grids = common.sizes(arguments, None, GRIDS, FULL_GRIDS)
  if grids is None:
    return GRIDS[name][0]
  ends = []
  for step_size in grids[name]:
    batches = Batches(x, y, strata, arguments.seed + 1000)
    _, curve = sample(
        architecture, name, step_size, friction, batches,
        common.sizes(arguments, 1, 2, 20), arguments.seed + 1000, len(x))
    ends.append(np.nan_to_num(curve[-1]))
  return grids[name][int(np.argmax(ends))]


def score(sampling, x, y):
  """Accuracy (%) and mean log likelihood of the predictive distribution."""
  scores = sampling.posterior.evaluate(x, y, batch_size=len(x) // 5)
  return 100. * scores['accuracy'], -scores['nll']


def run(arguments):
  passes = common.sizes(arguments, 2, 5, 200)
  num_seeds = common.sizes(arguments, 1, 2, 5)
  architectures = common.sizes(
      arguments, ('MLP',), ('MLP',), ('MLP', 'CNN'))
  short = dict.fromkeys(FRICTION, SHORT_FRICTION)
  friction = common.sizes(arguments, short, short, FRICTION)
  (x, y), test = load(arguments)
  strata = sgmcmc.gradients.kmeans_strata(
      x[:, ::2, ::2], NUM_STRATA, arguments.seed)
  curves, scores, chosen = {}, {}, {}
  for architecture in architectures:
    for name in common.progress(NAMES, arguments, architecture):
      key = architecture, name
      chosen[key] = choose_step(
          *key, friction[architecture], x, y, strata, arguments)
      curves[key], scores[key] = [], []
      for seed in range(num_seeds):
        seed += arguments.seed
        sampling, curve = sample(
            *key, chosen[key], friction[architecture],
            Batches(x, y, strata, seed), passes, seed, len(x))
        curves[key].append(curve)
        scores[key].append(score(sampling, *test))
  settings = dict(
      passes=passes, num_seeds=num_seeds, batch_size=BATCH_SIZE,
      friction=friction, step_sizes={' '.join(k): h for k, h in chosen.items()},
      grids=common.sizes(arguments, None, GRIDS, FULL_GRIDS),
      num_strata=NUM_STRATA, num_train=len(x),
      clusters='k-means on every second pixel', draws='100, the second half',
      start="Keras' Glorot uniform")
  return report(architectures, curves, scores, chosen, settings)


def report(architectures, curves, scores, chosen, settings):
  rows, claims, final, whole = [], [], {}, {}
  for key, values in curves.items():
    values = np.array(values)
    final[key] = values[:, -1]
    whole[key] = values.mean(axis=1)
    test = np.array(scores[key])
    rows.append([
        *key, chosen[key], float(final[key].mean()), float(np.ptp(final[key])),
        *map(float, test.mean(axis=0)),
        'first' if key[1] == 'EWSG' else 'below EWSG'])
  for architecture in architectures:
    ours = architecture, 'EWSG'
    for what, values in (('at the end', final), ('averaged over the passes',
                                                 whole)):
      others = {
          name: values[architecture, name] for name in NAMES if name != 'EWSG'}
      claims.append(common.Claim(
          f'{architecture}: the training accuracy of EWSG is above those of '
          f'SGLD, pSGLD, SGHMC and CP-SGHMC {what}, for each seed',
          bool(all(np.all(values[ours] > v) for v in others.values())),
          f'EWSG {show(values[ours])}; ' + '; '.join(
              f'{name} {show(v)}' for name, v in others.items())))
  return common.Result(
      ['network', 'sampler', 'step size', 'training accuracy %', 'its range',
       'test accuracy % of 100 draws', 'test log likelihood', 'published'],
      rows, claims, draw(architectures, curves), settings)


def show(values):
  return ', '.join(f'{value:.2f}' for value in values)


def draw(architectures, curves):
  picture = figure.Figure(
      figsize=(5 * len(architectures) + 1, 4), layout='constrained')
  axes = picture.subplots(1, len(architectures), squeeze=False)[0]
  for ax, architecture in zip(axes, architectures):
    for k, name in enumerate(NAMES):
      for j, curve in enumerate(curves[architecture, name]):
        ax.plot(np.arange(1, len(curve) + 1), curve, f'C{k}', marker='.',
                label=None if j else name)
    ax.set(title=architecture, xlabel='passes over the training data',
           ylabel='training accuracy (%)')
    ax.legend(fontsize='small', loc='lower right')
  return picture


def main(argv=None):
  return common.main('mnist_bnn_ewsg', run, __doc__, argv)


if __name__ == '__main__':
  main()
