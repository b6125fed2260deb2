"""A second fit of a model takes over the programs of the first."""

import functools
import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.internal import kept
from tfp_sgmcmc.keras.fitting import program

tfd = tfp.distributions

FIRST = dict(seed=1)
# Settings of the second fit, and whether it takes over the programs of a first
# one with `FIRST`.
SECOND = {
    'seed': (dict(seed=2), True),
    'schedule of draws': (
        dict(seed=2, num_burnin_steps=3, num_steps_between_results=1), True),
    'equal objects': (dict(
        kernel=functools.partial(sgmcmc.SGHMC, **models.SGHMC.keywords),
        prior=tfd.Normal(0., 1.)), True),
    'prior': (dict(prior=tfd.Normal(0., 0.5)), False),
    'temperature': (dict(temperature=0.5), False),
    'kernel': (dict(kernel=functools.partial(
        sgmcmc.SGHMC, step_size=0.02, friction=3.)), False),
    'noise': (dict(kernel=functools.partial(
        models.SGHMC, noise_estimate=0.5)), False),
    'num_examples': (dict(num_examples=200), False),
    'num_chains': (dict(num_chains=2), False),
    'closure': (dict(temperature=lambda step: 0.5), False),
}
QUICK = 'seed', 'prior', 'temperature'


def first_and_last(model, weights, *settings, **arguments):
  """The last of several fits from the same weights; whether it took over."""
  made = []
  for each in settings:
    model.set_weights(weights)
    for variable in model.optimizer.variables[:1]:
      variable.assign(tf.zeros_like(variable))  # The number of its steps.
    sampling = models.make_sampling(**each)
    models.fit(model, sampling, **arguments)
    made.append(sampling._chain._program)
  return sampling, len(set(map(id, made))) < len(made)


def assert_equal(found, wanted):
  for a, b in zip(tf.nest.flatten(found.kernel_results),
                  tf.nest.flatten(wanted.kernel_results)):
    np.testing.assert_array_equal(a, b)
  assert len(found.posterior) == len(wanted.posterior) > 0
  for a, b in zip(found.posterior, wanted.posterior):
    for x, y in zip(a, b):
      np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize('name', [
    name if name in QUICK else pytest.param(
        name, marks=[pytest.mark.slow, pytest.mark.weekly])
    for name in SECOND])
def test_second_fit_is_that_of_a_new_model(name):
  second, is_kept = SECOND[name]
  model = models.classifier()
  weights = model.get_weights()
  found, was_kept = first_and_last(model, weights, FIRST, second)
  wanted, _ = first_and_last(models.classifier(), weights, second)
  assert was_kept == is_kept
  assert_equal(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize('arguments', [
    dict(kernel=None, start_epoch=0),
    *(pytest.param(row, marks=pytest.mark.weekly) for row in [
        dict(num_chains=2, start_epoch=1),
        dict(kernel=None, start_epoch=0, num_chains=2),
        dict(kernel=sgmcmc.SGHMC, momentum=0.9, temperature='validation',
             learning_rate=0.01)]),
], ids=str)
def test_second_chain_of_a_kind(arguments):
  first, second = ({**arguments, 'seed': seed} for seed in (1, 2))
  fit = dict(epochs=9, validation_data=models.classes(seed=1))
  model = models.classifier()
  weights = model.get_weights()
  found, was_kept = first_and_last(model, weights, first, second, **fit)
  wanted, _ = first_and_last(models.classifier(), weights, second, **fit)
  assert was_kept
  assert_equal(found, wanted)


@pytest.mark.parametrize(
    'num_chains',
    [1, pytest.param(2, marks=[pytest.mark.slow, pytest.mark.weekly])])
def test_former_chain_is_as_it_was_and_goes_on(num_chains):
  """Another chain has used its programs, and was broken off."""
  def stop(batch, logs):
    if batch == 1:
      raise KeyboardInterrupt

  def run(breaks_in):
    model = models.classifier()
    sampling = models.make_sampling(num_chains=num_chains)
    models.fit(model, sampling)
    weights, results = model.get_weights(), sampling.kernel_results
    if breaks_in:
      other = models.make_sampling(
          num_chains=num_chains, seed=1, start_epoch=num_chains - 1)
      with pytest.raises(KeyboardInterrupt):
        models.fit(model, other, callbacks=[
            keras.callbacks.LambdaCallback(on_train_batch_end=stop)])
      assert other._chain._program is sampling._chain._program
      model.set_weights(weights)
      for a, b in zip(tf.nest.flatten(sampling.kernel_results),
                      tf.nest.flatten(results)):
        np.testing.assert_array_equal(a, b)
    models.fit(model, sampling)
    return sampling

  assert_equal(run(True), run(False))


@pytest.mark.slow
def test_compiled_anew():
  model = models.classifier()
  weights = model.get_weights()
  models.fit(model, models.make_sampling())
  loss = keras.losses.SparseCategoricalCrossentropy()
  for each in (model, other := models.classifier()):
    each.add(keras.layers.Softmax())
    each.compile(keras.optimizers.SGD(0.1), loss)
  found, _ = first_and_last(model, weights, FIRST)
  wanted, _ = first_and_last(other, weights, FIRST)
  assert_equal(found, wanted)


def test_variable_is_no_setting():
  rate = tf.Variable(0.01, trainable=False)
  settings = dict(
      kernel=functools.partial(sgmcmc.SGLD, step_size=rate), seed=1)
  model = models.classifier()
  _, was_kept = first_and_last(
      model, model.get_weights(), settings, settings)
  assert not was_kept


def test_programs_go_with_their_model():
  model = models.classifier()
  models.fit(model, models.make_sampling())
  found = weakref.ref(kept.of(model)[program.Program])
  del model
  keras.backend.clear_session()
  gc.collect()
  assert found() is None
