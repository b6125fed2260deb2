"""Temperature of a network's posterior: after Wenzel et al. (2020), Fig. 1.

They find that a ResNet on CIFAR-10 predicts better from the posterior to the
power 1/T with T < 1 than with T = 1. Here a small network on MNIST (4 digits, 7
by 7 pixels), with prior N(0, 1), is sampled by SGHMC through the Keras callback
for several T, started from the prior to the power 1/T. A comparison of ours:
ten splits of the data, intervals of 95%, and no verdict. The T that is compared
with T = 1 is chosen on each split's validation data. A batch is all of the
2,000 rows: the noise of smaller ones would heat cold chains (half of them: r' r
over the number of weights 1.2 times T at T = 0.1). Whether chains are long
enough is seen by one of each T three times as long, on the first split.
"""

import keras
from matplotlib import figure
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from experiments import common
from experiments import datasets
from experiments import parts
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions

NUM_TRAIN, NUM_VALIDATION, HIDDEN = 2000, 1300, 20
LEARNING_RATE, MOMENTUM = 1., 0.9
SPACING, EPOCH = 20, 100  # Steps between two draws, and in an epoch of `fit`.


class KineticTemperature(keras.callbacks.Callback):
  """Keeps the kinetic temperature in later epochs."""

  def __init__(self, first_epoch):
    super().__init__()
    self.values, self._first_epoch, self._epoch = [], first_epoch, 0

  def on_epoch_begin(self, epoch, logs=None):
    self._epoch = epoch

  def on_train_batch_end(self, batch, logs=None):
    if self._epoch >= self._first_epoch:
      self.values.append(float(logs['kinetic_temperature']))


def fit(rows, temperature, seed, num_epochs):
  """A chain on some rows: its posterior, and its mean kinetic temperature."""
  start = [keras.initializers.RandomNormal(stddev=np.sqrt(temperature), seed=k)
           for k in range(4 * seed, 4 * seed + 4)]
  model = keras.Sequential([
      keras.Input([rows[0].shape[1]]),
      keras.layers.Dense(HIDDEN, 'relu', True, *start[:2]),
      keras.layers.Dense(4, None, True, *start[2:])])
  model.compile(
      'sgd', keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      metrics=['accuracy'], jit_compile=False, steps_per_execution=SPACING)
  burn_in = -(-num_epochs // 3)
  sampling = sgmcmc.keras.PosteriorSampling(
      sgmcmc.SGHMC, num_examples=NUM_TRAIN, prior=tfd.Normal(0., 1.),
      learning_rate=LEARNING_RATE, momentum=MOMENTUM, temperature=temperature,
      num_burnin_steps=burn_in * EPOCH - 1,
      num_steps_between_results=SPACING - 1, seed=seed)
  kinetic = KineticTemperature(burn_in)
  data = tf.data.Dataset.from_tensors(rows).repeat()
  model.fit(
      data, epochs=num_epochs, steps_per_epoch=EPOCH, verbose=0, shuffle=False,
      callbacks=[sampling, kinetic])
  return sampling.posterior, np.mean(kinetic.values)


def split(train, seed):
  """Rows for training and for validation, at random."""
  order = np.random.default_rng(seed).permutation(len(train.labels))
  return [
      (train.features[rows], train.labels[rows]) for rows in (
          order[:NUM_TRAIN], order[NUM_TRAIN:NUM_TRAIN + NUM_VALIDATION])]


def run(arguments):
  train, test = datasets.load_small_mnist(arguments.data)
  temperatures = common.sizes(
      arguments, (0.1, 1.), (0.1, 0.3, 1.),
      (0.001, 0.01, 0.03, 0.1, 0.3, 1., 3.))
  num_epochs = common.sizes(arguments, 2, 15, 400)
  num_splits = common.sizes(arguments, 2, 10, 10)

  def run_one(item):
    """NLL of validation and test, test error, kinetic temperature."""
    temperature, seed, factor = item
    rows, validation = split(train, (arguments.seed, seed))
    posterior, kinetic = fit(
        rows, temperature, 100 * arguments.seed + seed, factor * num_epochs)
    score = posterior.evaluate(test.features, test.labels)
    return (posterior.evaluate(*validation)['nll'], score['nll'],
            1. - score['accuracy'], kinetic)

  items = [(temperature, seed, 1) for temperature in temperatures
           for seed in range(num_splits)]
  # What a chain three times as long says.
  items += [(temperature, 0, 3) for temperature in temperatures]
  found = np.array(parts.each(run_one, items, arguments, 'chains'))
  count = len(temperatures)
  scores = found[:-count].reshape([count, num_splits, 4])
  return report(
      np.array(temperatures), scores, found[-count:, 1] - scores[:, 0, 1], dict(
          num_steps=num_epochs * EPOCH, num_splits=num_splits,
          num_train=NUM_TRAIN, num_validation=NUM_VALIDATION, hidden=HIDDEN,
          learning_rate=LEARNING_RATE, momentum=MOMENTUM, burn_in='a third'))


def report(temperatures, scores, farther, settings):
  num_splits = scores.shape[1]
  # Half of an interval of 95%, over the standard deviation.
  width = float(tfd.StudentT(num_splits - 1., 0., 1.).quantile(0.975)) / (
      np.sqrt(num_splits))
  means = scores.mean(axis=1)
  errors = width * scores.std(axis=1, ddof=1)
  rows = [
      [f'{temperature:g}', *(x for pair in zip(mean, error) for x in pair),
       longer]
      for temperature, mean, error, longer in zip(
          temperatures, means, errors, farther)]
  one = int(np.flatnonzero(temperatures == 1.)[0])
  # Each split chooses by its own validation rows; all T of one start alike.
  chosen = np.argmin(scores[..., 0], axis=0)
  gaps = scores[chosen, np.arange(num_splits)] - scores[one]
  rows.append([
      'chosen by validation, less T = 1', *(
          x for k in range(4) for x in (
              gaps[:, k].mean(), width * gaps[:, k].std(ddof=1))), None])
  settings['chosen'] = temperatures[chosen]
  return common.Result(
      ['T', 'validation NLL', '±, 95%', 'test NLL', '±, 95%', 'test error',
       '±, 95%', 'kinetic temperature', '±, 95%',
       'test NLL of a chain three times as long, less that of the same split'],
      rows, [], draw(temperatures, means, errors), settings,
      notes=f'Over {num_splits} splits, intervals by Student\'s t. Published, '
      'for a ResNet-20 on CIFAR-10: accuracy and NLL improve as T falls below '
      '1. This network is a small one on easy data, so that neither outcome '
      'here speaks for or against that.')


def draw(temperatures, means, errors):
  picture = figure.Figure(figsize=(11, 3.6), layout='constrained')
  axes = picture.subplots(1, 3)
  for axis, column, name in zip(
      axes, (1, 2, 3), ('test NLL (nats)', 'test error (share)',
                        'kinetic temperature')):
    axis.errorbar(
        temperatures, means[:, column], yerr=errors[:, column], fmt='o-')
    axis.set(xscale='log', xlabel='nominal temperature T', ylabel=name)
  axes[2].plot(temperatures, temperatures, 'k--', label='T')
  axes[2].set_yscale('log')
  axes[2].legend()
  return picture


def main(argv=None):
  return common.main('cold_posterior', run, __doc__, argv)


if __name__ == '__main__':
  main()
