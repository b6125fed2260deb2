"""Small models and data for the tests."""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions

NUM_EXAMPLES = 50
SGHMC = functools.partial(sgmcmc.SGHMC, step_size=0.005, friction=20.)
# Of batches dealt into two minibatches.
DEALT = sgmcmc.gradients.ExponentiallyWeighted(
    base=sgmcmc.gradients.Reshuffled())
EWSG = functools.partial(SGHMC, gradient_estimator=DEALT)


def classes(num_features=4, num_classes=3, seed=0):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=[NUM_EXAMPLES, num_features]).astype(np.float32)
  y = np.argmax(x[:, :num_classes], axis=-1)
  return x, y


def classifier(**compile_arguments):
  keras.utils.set_random_seed(0)
  model = keras.Sequential([
      keras.Input([4]),
      keras.layers.Dense(5, activation='tanh', name='hidden', use_bias=False),
      keras.layers.Dense(3, name='logits', use_bias=False)])
  arguments = dict(
      optimizer=keras.optimizers.SGD(0.1),
      loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      metrics=['accuracy'])
  model.compile(**{**arguments, **compile_arguments})
  return model


@contextlib.contextmanager
def made_by(module, name):
  """A list of what a class or function of a module makes from here on."""
  make, made = getattr(module, name), []

  def recorded(*args, **kwargs):
    made.append(make(*args, **kwargs))
    return made[-1]

  with pytest.MonkeyPatch.context() as monkeypatch:
    monkeypatch.setattr(module, name, recorded)
    yield made


def at_times(interval):
  """The arguments for draws along a path, so much time apart."""
  return dict(num_steps_between_results=sgmcmc.keras.DrawSchedule(
      interval=interval))


def starting_from(weights):
  """The arguments for chains that start from given weights, one list each."""
  return dict(num_chains=sgmcmc.keras.Chains(
      len(weights), initial_weights=weights))


def make_sampling(kernel=SGHMC, **arguments):
  return sgmcmc.keras.PosteriorSampling(kernel, **{
      **dict(num_examples=NUM_EXAMPLES, prior=tfd.Normal(0., 1.), seed=0),
      **arguments})


def fit(model, sampling, epochs=2, x=None, y=None, callbacks=(), **arguments):
  if x is None:
    x, y = classes()
  return model.fit(
      x, y, epochs=epochs, callbacks=[sampling, *callbacks],
      **{**dict(batch_size=20, verbose=0, shuffle=False), **arguments})
