"""A `fit` that finds its step size by itself, in burn-in.

A network that learns the noise of a regression has a steep likelihood. With the
learning rate 0.1 and the momentum 0.9 of plain classifiers it is lost within
some ten steps.
"""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
from tests.keras import test_adapted_rate
from tests.keras import test_going_on
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import store
from tfp_sgmcmc.keras import advice
from tfp_sgmcmc.keras import choices

NUM_TRAIN, NUM_VALIDATION = 700, 100


@functools.cache
def regression():
  rng = np.random.default_rng(0)
  x = rng.normal(size=[1600, 4])
  y = np.sin(2. * x[:, 0]) + x[:, 1] * x[:, 2] + 0.2 * rng.normal(size=1600)
  return x.astype(np.float32), (y / y.std()).astype(np.float32)[:, np.newaxis]


def network():
  keras.utils.set_random_seed(0)
  model = keras.Sequential([
      keras.Input([4]), keras.layers.Dense(30, activation='tanh'),
      keras.layers.Dense(2)])
  model.compile(
      keras.optimizers.Adam(0.01), sgmcmc.keras.GaussianLikelihood())
  return model


def fit_regression(epochs=30, batch_size=40, callbacks=(), **arguments):
  """With warnings as errors: there is nothing to tell."""
  x, y = regression()
  model = network()
  sampling = sgmcmc.keras.PosteriorSampling(seed=0, **arguments)
  end = NUM_TRAIN + NUM_VALIDATION
  with warnings.catch_warnings():
    warnings.simplefilter('error', UserWarning)
    warnings.simplefilter('error', RuntimeWarning)
    history = model.fit(
        x[:NUM_TRAIN], y[:NUM_TRAIN], epochs=epochs, batch_size=batch_size,
        verbose=0, callbacks=[sampling, *callbacks],
        validation_data=(x[NUM_TRAIN:end], y[NUM_TRAIN:end]))
  return model, sampling, history.history


def nll_of(posterior):
  log_prob = posterior.log_likelihood(*(a[800:] for a in regression()))
  return -np.mean(np.logaddexp.reduce(log_prob, axis=0) - np.log(len(log_prob)))


@pytest.mark.parametrize('temperature', [
    1., pytest.param(0., marks=pytest.mark.slow),
    pytest.param('validation', marks=pytest.mark.slow)])
def test_a_steep_likelihood(temperature):
  """Better by half a nat than the optimizer's weights, on held-out data.

  (0.8 to 1.2 with three seeds.) Before, all were lost.
  """
  model, sampling, _ = fit_regression(temperature=temperature)
  start = network()
  x, y = regression()
  start.fit(x[:NUM_TRAIN], y[:NUM_TRAIN], epochs=6, batch_size=40, verbose=0)
  before = start.evaluate(x[800:], y[800:], verbose=0)
  assert len(sampling.posterior) >= 30
  assert nll_of(sampling.posterior) < before - 0.5
  assert 0.003 < sampling.settings['step_size'] < 1.
  assert not np.any(sampling.kernel_results.num_late_returns)


@pytest.mark.slow
@pytest.mark.parametrize('temperature', [1., 0.])
def test_batches_of_ten(temperature):
  """From 1.07 of four epochs of the optimizer."""
  _, sampling, _ = fit_regression(20, batch_size=10, temperature=temperature)
  assert nll_of(sampling.posterior) < 0.6


@pytest.mark.slow
def test_a_loss_that_sums_over_pixels():
  """As `test_adapted_rate` has it; half a nat a pixel is the noise."""
  sampling, history = test_adapted_rate.fit_autoencoder(None)
  assert history['loss'][-1] < 420.
  assert len(sampling.posterior) >= 30


@pytest.mark.slow
def test_chains_find_a_step_each():
  _, sampling, history = fit_regression(60, num_chains=2)
  results = sampling.kernel_results
  assert results.step_size.shape == [2]
  assert results.step_size[0] != results.step_size[1]
  assert not np.any(results.num_late_returns)
  np.testing.assert_allclose(
      sampling.settings['step_size'], np.mean(results.step_size), rtol=0.01)
  np.testing.assert_allclose(
      history['step_size'][-1], np.mean(results.step_size), rtol=1e-4)
  assert nll_of(sampling.posterior) < 1.


@pytest.mark.parametrize('epochs, num_burnin_steps', [
    (1, None), (2, None), (2, 0), (2, 1), (2, 2), (2, 3)])
def test_a_burnin_of_few_steps(epochs, num_burnin_steps):
  sampling = sgmcmc.keras.PosteriorSampling(
      seed=0, num_examples=models.NUM_EXAMPLES, start_epoch=0,
      num_burnin_steps=num_burnin_steps)
  model = models.classifier(run_eagerly=True)
  models.fit(model, sampling, epochs=epochs)
  assert all(np.all(np.isfinite(w)) for w in model.get_weights())
  assert len(sampling.posterior) == 3 * epochs - (
      epochs if num_burnin_steps is None else num_burnin_steps)
  found = sampling.settings['step_size']
  if num_burnin_steps == 0:
    assert found == 'found in burn-in'  # It is that of the start.
  else:
    np.testing.assert_allclose(
        found, float(sampling.kernel_results.step_size), rtol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize('num_chains', [1, 2])
def test_killed_while_it_adapts_and_after(tmp_path, monkeypatch, num_chains):
  """It goes on bit for bit, and knows what was found."""
  monkeypatch.setattr(store, '_SECONDS', 0.)
  monkeypatch.setattr(store, '_DURATIONS', 0.)
  arguments = dict(
      kernel=None, num_burnin_steps=8, num_steps_between_results=1,
      start_epoch=1, num_chains=num_chains)
  whole = test_going_on.run(6, **arguments)
  pieces = test_going_on.run(
      6, kills=[3, 7, 11], directory=tmp_path, **arguments)
  test_going_on.assert_same(pieces, whole)
  assert pieces[1].settings == whole[1].settings
  assert pieces[1].settings['step_size'] > 0.


def test_what_guards_the_chain_is_a_row_of_the_summary():
  sampling = sgmcmc.keras.PosteriorSampling(seed=0)
  models.fit(models.classifier(), sampling, epochs=12)
  x, _ = models.classes()
  row = sampling.summary(x).rows[-1]
  assert row.quantity == 'times a chain was taken back after the adaptation'
  assert row.value == 0. and row.verdict == 'fine'


def test_advice_where_the_step_is_found():
  """No number, and no argument that was not given."""
  for arguments in ({}, dict(temperature='validation'), dict(num_chains=2)):
    sampling = sgmcmc.keras.PosteriorSampling(**arguments)
    said = advice.smaller_steps(sampling._settings)
    assert 'start_epoch' in said and 'larger batches' in said
    assert 'or give a learning_rate.' in said
    assert 'step_size=' not in said and 'temperature' not in said


def test_a_found_step_is_taken_over():
  step, other = choices.FoundStep(), choices.FoundStep()
  assert step.value == 'found in burn-in'
  step.plan(20)
  logs = dict(step_size=tf.constant(0.0123456))
  assert step.watch(18, 19, logs=logs) is None
  assert 'step_size=0.0123 was found in 20' in step.watch(19, 20, logs=logs)
  other.restore(step.checkpoint())
  assert other.value == step.value == 0.0123
  assert step.watch(20, 21, logs=logs) is None
  # A search that ends early, at a step that has been made.
  other = choices.FoundStep()
  other.plan(100)
  assert other.watch(29, 30, logs=logs) is None
  other.plan(30)
  assert other.watch(30, 31, logs=logs) is not None and other.value == 0.0123
