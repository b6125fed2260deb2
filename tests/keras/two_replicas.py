"""Fits on one device and on two replicas: the same chain, number for number.

  python -m tests.keras.two_replicas [variants]

A program of its own, since TensorFlow takes its devices when it starts. It
prints a line for each comparison, and fails with the first that does not hold.
"""

import contextlib
import functools
import os
import sys
import tempfile
from unittest import mock
import warnings

import keras
import numpy as np
import tensorflow as tf

from tests import pipelines
from tests.keras import models
from tests.keras import test_law
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import collectives
from tfp_sgmcmc.internal import compat

DEVICES = ['/cpu:0', '/cpu:1']
SBPS = sgmcmc.StochasticBouncyParticleSampler
KERNELS = {
    'SGHMC': dict(kernel=models.SGHMC),
    'EWSG': dict(kernel=models.EWSG),
}
VARIANTS = {
    # Two replicas draw no other rows than those of a batch.
    'all left out but the rows': dict(
        kernel=None, prior=None, num_examples=None, num_rows=50,
        num_more_rows=0),
    'SBPS': dict(
        kernel=functools.partial(SBPS, refresh_rate=1.),
        **models.at_times(0.05)),
    'pSGLD': dict(kernel=functools.partial(
        sgmcmc.SGLD, step_size=1e-4,
        preconditioner=sgmcmc.preconditioners.RMSProp())),
    'SGNHT': dict(kernel=functools.partial(
        sgmcmc.SGNHT, step_size=0.005, diffusion=20.)),
    'EWSG, no row on the other': dict(kernel=models.EWSG, num_rows=37),
    'hot': dict(epochs=6, kernel=functools.partial(
        sgmcmc.SGHMC, step_size=0.2, friction=1.)),
    'another number of examples': dict(
        kernel=models.SGHMC, num_examples=4000),
    'start_epoch': dict(kernel=models.SGHMC, start_epoch=1, num_rows=50),
    'validation': dict(
        kernel=None, prior=None, num_examples=None, temperature='validation',
        num_rows=50, epochs=10, num_more_rows=0),
}
WARNED = (
    'hot', 'another number of examples', 'batch normalisation',
    'all left out but the rows', 'validation')


def normalising(**arguments):
  keras.utils.set_random_seed(0)
  model = keras.Sequential([
      keras.Input([4]), keras.layers.Dense(5, activation='relu'),
      keras.layers.BatchNormalization(),
      keras.layers.Dense(3, kernel_regularizer='l2')])
  model.compile(**{**dict(
      optimizer='sgd', metrics=['accuracy'],
      loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
      **arguments})
  return model


def run(strategy, make_model=models.classifier, epochs=3, batch_size=18,
        num_rows=49, compile_arguments=(), **arguments):
  """The last batch of an epoch is of 13 rows, 7 and 6, the others of 18.

  It is of 14 where Keras' optimizers train first, which take the mean of the
  replicas' means, and where the loss is a sum, whose log Keras weighs by rows.
  """
  with strategy.scope():
    model = make_model(**dict(compile_arguments))
  x, y = (leaf[:num_rows] for leaf in models.classes())
  sampling = models.make_sampling(**{'num_examples': num_rows, **arguments})
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    history = models.fit(
        model, sampling, x=x, y=y, epochs=epochs, batch_size=batch_size,
        class_weight={0: 1., 1: 2., 2: 0.5}, validation_data=(x[:20], y[:20]))
  told = [str(w.message) for w in caught if w.category is UserWarning]
  return model, sampling, history.history, told


def compare(name, one, two):
  """The largest difference of weights, draws, logs, predictions, counts.

  Of warnings the first words have to be the same, before the figures.
  """
  (model, sampling, history, told), (
      other, others, other_history, others_told) = one, two
  assert sampling.posterior.steps == others.posterior.steps
  assert [t[:30] for t in told] == [t[:30] for t in others_told]
  assert bool(told) == (name in WARNED), told
  assert history.keys() == other_history.keys()
  ours = [*model.get_weights(), *sampling.posterior.weights.values()]
  theirs = [*other.get_weights(), *others.posterior.weights.values()]
  for key, values in history.items():  # Of a resumed fit, the last epochs.
    ours.append(values[-len(other_history[key]):])
    theirs.append(other_history[key])
  x, _ = models.classes()
  ours.append(sampling.posterior.predict(x))
  theirs.append(others.posterior.predict(x))
  for arrays, chain in ((ours, sampling), (theirs, others)):
    arrays.append(
        compat.find_result(
            chain.kernel_results, 'gradient_estimator_results').num_gradients)
  difference = max(
      np.max(np.abs(np.subtract(a, b))) for a, b in zip(ours, theirs))
  print(f'{name}: {difference:.1e}', flush=True)
  return difference


def law_of_ewsg(strategy):
  """How far draws are from the posterior of a regression, by the tolerance."""
  *_, mean, covariance = test_law.regression()
  draws = test_law.draw_regression(
      100, gradient_estimator=models.DEALT, strategy=strategy)
  found = max(test_law.discrepancies(draws, mean, covariance))
  print(f'EWSG, law: {found:.2f} of the tolerance', flush=True)
  return found


def num_all_reduces(strategy, **arguments):
  """How many a step takes on a replica."""
  reduced = []

  def all_reduce(tensors):
    reduced.append(len(tensors))
    return plain(tensors)

  plain = collectives.all_reduce
  with mock.patch.object(collectives, 'all_reduce', all_reduce):
    numbers = []
    for num_steps in (2, 3):
      reduced.clear()
      run(strategy, epochs=1, num_rows=18 * num_steps,
          compile_arguments=dict(run_eagerly=True), **arguments)
      numbers.append(len(reduced) / strategy.num_replicas_in_sync)
  return numbers[1] - numbers[0]


def num_likelihoods(strategy, num_burnin_steps, **arguments):
  """How often each replica computes its likelihood in the last epoch."""
  called = []

  def counted(y, logits):
    call = tf.py_function(lambda: called.append(1) or 0, [], tf.int32)
    with tf.control_dependencies([call]):
      logits = tf.identity(logits)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        tf.cast(y[:, 0], tf.int32), logits)

  class Forget(keras.callbacks.Callback):

    def on_epoch_begin(self, epoch, logs=None):
      called.clear()

  with strategy.scope():
    model = models.classifier(
        loss=sgmcmc.keras.NegativeLogLikelihood(counted), metrics=[])
  x, y = models.classes()
  sampling = models.make_sampling(
      num_burnin_steps=num_burnin_steps, start_epoch=0, **arguments)
  models.fit(
      model, sampling, x=x[:36], y=y[:36, np.newaxis],
      epochs=15, batch_size=18, callbacks=[Forget()])
  return len(called) / 2 / strategy.num_replicas_in_sync  # In two steps.


def compare_all(cases, one, two):
  """Returns what was made on one device and on two, by name."""
  made = {
      name: [run(strategy, **arguments) for strategy in (one, two)]
      for name, arguments in cases.items()}
  for name, pair in made.items():
    assert compare(name, *pair) < (
            # A step is found by its error in the energy, a small difference of
            # large numbers, of which rounding leaves fewer digits; and a hot
            # chain drives rounding errors apart.
            1e-3 if name in ('hot', 'validation') else 1e-5)
  return made


def variants(one, two):
  """Other kernels, models, ways to compile and to deal rows; all-reduces."""
  compare_all(VARIANTS, one, two)
  for number, arguments in (
      # One for each of two candidates.
      (2., KERNELS['EWSG']),
      # The slope, its variance, and the gradient.
      (3., VARIANTS['SBPS'])):
    found = num_all_reduces(two, **arguments)
    print(f'all-reduces a step: {found}', flush=True)
    assert found == number
  # Where each replica deals its own rows: another chain, of the same law.
  with mock.patch.object(compat, 'sees_tpus', return_value=True):
    assert law_of_ewsg(two) < 1.
  with mock.patch.object(collectives, 'all_reduce', list):
    assert law_of_ewsg(two) > 1.  # Planted: each by its own rows.
  for name, make_model, compile_arguments in (
      ('batch normalisation', normalising, {}),
      ('run_eagerly', models.classifier, dict(run_eagerly=True)),
      ('sum', models.classifier, dict(
          loss=keras.losses.SparseCategoricalCrossentropy(
              from_logits=True, reduction='sum')))):
    assert compare(name, *(
        run(strategy, make_model, num_rows=50 if name == 'sum' else 49,
            compile_arguments=compile_arguments)
        for strategy in (one, two))) < 1e-5
  # The step is found by two gradients at a position, and then there is one.
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    one_gradient = num_likelihoods(two, 20)
    after, within = (
        num_likelihoods(two, n, kernel=None) for n in (20, 100))
  print(f'likelihoods a step: {one_gradient}, {after}, {within}', flush=True)
  assert one_gradient == after == within - 1.
  with tempfile.TemporaryDirectory() as folder:
    # Two epochs, and in another process (as it were) the third.
    run(two, epochs=2, directory=folder)
    resumed = run(two, directory=folder)
    assert compare('resumed', run(one), resumed) < 1e-5
  assert planted('EWSG', run(one, **KERNELS['EWSG']), two) > 1e-3


def planted(name, right, two):
  """How far each replica by its own rows is off: what comparisons see."""
  with mock.patch.object(collectives, 'all_reduce', list):
    return compare(f'planted: {name} without all-reduce', right,
                   run(two, **KERNELS[name]))


def usual(one, two):
  """The usual kernels, all-reduces, and a planted error."""
  made = compare_all(KERNELS, one, two)
  _, (model, *_) = made['EWSG']
  for variable in model.trainable_variables:
    first, second = two.experimental_local_results(variable.value)
    assert np.all(np.isfinite(first)) and np.array_equal(first, second)
  assert num_all_reduces(two, **KERNELS['SGHMC']) == 1.
  assert planted('SGHMC', made['SGHMC'][0], two) > 1e-3


def main():
  cpu, = tf.config.list_physical_devices('CPU')
  tf.config.set_logical_device_configuration(
      cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  warnings.simplefilter('ignore')
  part = variants if 'variants' in sys.argv else usual
  part(tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(DEVICES))
  print('Done.', flush=True)


if __name__ == '__main__':
  with contextlib.redirect_stderr(sys.stdout), pipelines.end_at_once():
    main()
  sys.stdout.flush()
  os._exit(0)  # The threads of a strategy may take minutes to end.
