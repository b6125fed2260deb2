"""Chains in processes of their own: each is what a `fit` by hand would be."""

import concurrent.futures
from concurrent.futures import process
import pathlib
import random
import shutil
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
import tfp_sgmcmc as sgmcmc

PROGRAM = pathlib.Path(__file__).with_name('killed_chains.py')
SAMPLING = dict(
    kernel=models.SGHMC, num_examples=models.NUM_EXAMPLES,
    prior=models.tfd.Normal(0., 1.))


STARTS = []  # The initial weights of each model that was made.


def make_model(run_eagerly=True):
  model = keras.Sequential([
      keras.Input([4]), keras.layers.Dense(5, 'tanh'), keras.layers.Dense(3)])
  # Keras too counts the names of losses that have none.
  model.compile('sgd', keras.losses.SparseCategoricalCrossentropy(
      from_logits=True, name=f'loss_{len(STARTS)}'), run_eagerly=run_eagerly)
  STARTS.append(model.get_weights())
  return model


def fit_arguments():
  x, y = models.classes()
  return dict(x=x, y=y, batch_size=20, epochs=1, shuffle=False)


class Here(concurrent.futures.Executor):
  """Runs at once, in this process, but for the numbers that are `killed`."""

  def __init__(self, killed=()):
    self._killed, self.number = killed, 0

  def submit(self, fn, *args):
    future = concurrent.futures.Future()
    self.number += 1
    try:
      if self.number - 1 in self._killed:
        raise process.BrokenProcessPool('killed')
      future.set_result(fn(*args))
    except Exception as error:
      future.set_exception(error)
    return future


def fit_chains(**arguments):
  return sgmcmc.keras.fit_chains(**{
      **dict(make_model=make_model, fit=fit_arguments, sampling=SAMPLING,
             num_chains=2, executor=Here(), seed=5), **arguments})


def test_each_chain_is_a_fit_and_a_failed_one_is_made_again(tmp_path):
  """Alone: the others are only read. With other starts, seeds and batches."""
  arguments = dict(num_chains=2, directory=tmp_path)
  with pytest.raises(RuntimeError, match='Of 2 chains 1 failed, 1; chain 1'):
    fit_chains(executor=Here([1]), **arguments)
  found = [
      (tmp_path / f'chain_{k}' / 'manifest.json').exists() for k in range(2)]
  assert found == [True, False]
  written = (tmp_path / 'chain_0' / 'manifest.json').stat().st_mtime_ns
  posterior = fit_chains(**arguments)
  assert (
      tmp_path / 'chain_0' / 'manifest.json').stat().st_mtime_ns == written
  assert [len(chain) for chain in posterior.chains] == [3, 3]
  starts = STARTS[-2:]
  for k, chain in enumerate(posterior.chains):
    sampling = sgmcmc.keras.PosteriorSampling(
        **SAMPLING, seed=sgmcmc.random.fold_in([0, 5], k))
    model = make_model()
    model.set_weights(starts[k])
    model.fit(**fit_arguments(), verbose=0, callbacks=[sampling])
    for ours, theirs in zip(
        chain.weights.values(), sampling.posterior.weights.values()):
      np.testing.assert_array_equal(ours, theirs)
  assert np.max(np.abs(starts[0][0] - starts[1][0])) > 0.1


def make_model_while_another_thread_draws():
  """As in a process of Dask, whose own threads use Python's generator."""
  with concurrent.futures.ThreadPoolExecutor(1) as another:
    another.submit(random.random).result()
  return make_model()


@pytest.mark.slow
def test_what_else_is_in_a_process_changes_no_chain(tmp_path):
  """Neither random numbers of other threads, nor that it made it before."""
  alone = fit_chains()
  others = fit_chains(make_model=make_model_while_another_thread_draws)
  fit_chains(directory=tmp_path)
  again = fit_chains(directory=tmp_path)
  for posterior in (others, again):
    for ours, theirs in zip(
        posterior.weights.values(), alone.weights.values(), strict=True):
      np.testing.assert_array_equal(ours, theirs)


def other_activation():
  model = make_model()
  model.layers[0].activation = keras.activations.relu
  return model


def other_targets():
  return {**fit_arguments(), 'y': fit_arguments()['y'][::-1]}


@pytest.fixture(scope='module')
def begun(tmp_path_factory):
  """The directory of two chains."""
  directory = tmp_path_factory.mktemp('begun')
  fit_chains(directory=directory)
  return directory


@pytest.mark.parametrize('changes, message', [
    (dict(make_model=other_activation), 'layer 0, a Dense, was made with'),
    (dict(fit=other_targets), 'fit.y'),
    (dict(sampling={**SAMPLING, 'prior': models.tfd.Normal(0., 2.)}), 'prior'),
])
def test_a_directory_is_of_one_model_and_of_one_data(
    begun, tmp_path, changes, message):
  shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
  with pytest.raises(RuntimeError, match=message):
    fit_chains(directory=tmp_path, **changes)


def always_seeded():
  keras.utils.set_random_seed(1)
  return make_model(run_eagerly=False)


def warns(message):
  class Warns(keras.callbacks.Callback):

    def on_train_begin(self, logs=None):
      warnings.warn(message, stacklevel=2)

  return Warns()


@pytest.mark.slow
def test_chains_in_threads_say_each_its_own():
  before = warnings.showwarning
  with concurrent.futures.ThreadPoolExecutor(2) as threads, (
      pytest.warns(UserWarning, match='Look out')) as told:
    several = fit_chains(
        executor=threads, make_model=always_seeded,
        fit={**fit_arguments(), 'callbacks': [warns('Look out')]})
  assert warnings.showwarning is before
  found = [str(w.message) for w in told]
  assert [text for text in found if 'Look out' in text] == [
      'Chain 0: Look out', 'Chain 1: Look out']
  assert any('Chains 0 and 1 start from the same' in text for text in found)
  one = fit_chains(make_model=always_seeded)
  for ours, theirs in zip(several.weights.values(), one.weights.values()):
    np.testing.assert_array_equal(ours, theirs)


def test_chains_have_the_callers_types():
  policy = keras.config.dtype_policy()
  keras.config.set_dtype_policy('mixed_bfloat16')
  try:
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
      fit_chains(executor=threads, make_model=make_half, num_chains=1)
  finally:
    keras.config.set_dtype_policy(policy)
  assert POLICIES[-2:] == ['mixed_bfloat16', 'mixed_bfloat16']


POLICIES = []


def make_half():
  model = make_model()
  POLICIES.append(model.dtype_policy.name)
  return model


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.parametrize('executor', ['', 'dask'])
def test_a_killed_process(tmp_path, executor):
  """Its chain goes on alone, and both end the same bit for bit."""
  cell = {'__name__': 'a_cell_of_a_notebook'}
  exec(PROGRAM.read_text(), cell)
  cell['main'](tmp_path, executor)


def with_frozen_weights():
  model = make_model()
  model.layers[0].trainable = False
  model.compile(loss=model.loss)
  return model


@pytest.mark.parametrize('arguments, error, message', [
    (dict(seed=None, directory='chains'), ValueError, 'a seed is needed'),
    (dict(num_chains=0), ValueError, 'num_chains'),
    (dict(sampling=dict(seed=3)), ValueError, "sampling holds 'seed'"),
    (dict(fit=[1]), TypeError, 'a dict of arguments is needed'),
    (dict(make_model=3), TypeError, 'a function that returns a new model'),
    (dict(make_model=models.classifier()), TypeError,
     'make_model is <Sequential .* a function that returns a new model'),
    (dict(make_model=lambda: keras.Model), TypeError, 'is the class Model'),
    (dict(fit=dict(x=[[1., 2.]], y=np.ones([1]))), TypeError,
     r"fit\['x'\] is a list of Python values"),
    (dict(directory=''), ValueError, "directory is ''"),
    (dict(make_model=lambda: keras.Sequential([keras.layers.Dense(1)])),
     ValueError, 'a model without weights'),
    (dict(fit={**fit_arguments(), 'callbacks': [
        keras.callbacks.BackupAndRestore('/tmp/backup')]}), RuntimeError,
     'BackupAndRestore, with one place for all chains'),
    (dict(fit=dict(x=tf.data.Dataset.range(3))), TypeError, 'cannot be sent'),
    (dict(make_model=with_frozen_weights), RuntimeError, 'not trained'),
])
def test_refused(arguments, error, message):
  with pytest.raises(error, match=message):
    fit_chains(**arguments)
