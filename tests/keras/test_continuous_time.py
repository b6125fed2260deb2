"""The stochastic bouncy particle sampler in `fit`: its law, draws, refusals."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import pdmp

tfd = tfp.distributions
SBPS = functools.partial(
    sgmcmc.StochasticBouncyParticleSampler, refresh_rate=0.3)
NUM_EXAMPLES, NUM_COLUMNS = 200, 40


def draws_of_regression(num_epochs=40, by_event=False, **arguments):
  """Draws through fit of linear regressions with one data set, and their law.

  The columns of a linear layer with equal targets are independent under the
  posterior, with one law. One particle moves through all of them.
  """
  rng = np.random.default_rng(0)
  x = rng.normal(size=[NUM_EXAMPLES, 2]).astype(np.float32)
  y = (x @ [1., -0.5] + rng.normal(size=NUM_EXAMPLES)).astype(np.float32)
  covariance = np.linalg.inv(25. * np.eye(2) + x.T @ x)
  model = keras.Sequential([
      keras.Input([2]), keras.layers.Dense(NUM_COLUMNS, use_bias=False)])
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
  model.layers[0].kernel.assign(
      np.tile((covariance @ x.T @ y)[:, np.newaxis], NUM_COLUMNS))
  sampling = sgmcmc.keras.PosteriorSampling(
      SBPS, num_examples=NUM_EXAMPLES, prior=tfd.Normal(0., 0.2), seed=3,
      **{**dict(num_burnin_steps=500, draw_interval=0.05), **arguments})
  data = tf.data.Dataset.from_tensor_slices(
      (x, np.repeat(y[:, np.newaxis], NUM_COLUMNS, axis=1))).cache().shuffle(
          NUM_EXAMPLES, seed=0).batch(50).repeat()
  model.fit(data, steps_per_epoch=100, epochs=num_epochs, verbose=0,
            callbacks=[sampling])
  return model, sampling, covariance @ x.T @ y, covariance


def test_law_in_fit():
  _, sampling, mean, covariance = draws_of_regression(num_epochs=80)
  draws, = sampling.posterior.weights.values()
  sd = np.sqrt(np.diag(covariance))[:, np.newaxis]
  white = (draws - mean[:, np.newaxis]) / sd
  by_column = np.mean(white, axis=0)
  error = np.std(by_column.mean(axis=0)) / np.sqrt(NUM_COLUMNS)
  assert error < 0.06
  assert np.abs(white.mean(axis=(0, 2))).max() < 0.3
  assert np.abs(white.std(axis=(0, 2)) - 1.).max() < 0.1


def test_draws_are_at_equal_times_along_the_path():
  """Against the path that the events make, kept by a callback."""
  events = []

  class Events(keras.callbacks.Callback):

    def on_train_batch_end(self, batch, logs=None):
      events.append((
          np.concatenate(
              [np.ravel(v) for v in self.model.trainable_variables]),
          float(sampling.kernel_results.duration)))

  model = models.classifier()
  sampling = models.make_sampling(
      SBPS, num_burnin_steps=10, draw_interval=0.03)
  models.fit(model, sampling, epochs=30, callbacks=[Events()])
  states, durations = (np.array(leaf) for leaf in zip(*events))
  assert len(events) == sampling.num_steps == 90
  draws = np.concatenate([
      np.reshape(w, [len(sampling.posterior), -1])
      for w in sampling.posterior.weights.values()], axis=1)
  # Time 0 is the event at which burn-in ends.
  times = np.cumsum(np.append(0., durations[10:]))
  due = 0.03 * np.arange(1, len(draws) + 1)
  assert len(draws) == int(times[-1] / 0.03) and len(draws) > 20
  wanted = np.stack([
      np.interp(due, times, column) for column in states[9:].T], axis=1)
  np.testing.assert_allclose(draws, wanted, atol=2e-5)
  # After fit the weights are those of the last event.
  assert np.all(np.diff(sampling.posterior.steps) >= 0)


def test_several_steps_an_execution_are_the_same():
  draws = []
  for steps in (1, 4):
    model = models.classifier(steps_per_execution=steps)
    sampling = models.make_sampling(SBPS, draw_interval=0.05)
    models.fit(model, sampling, epochs=20)
    draws.append(np.concatenate([
        np.reshape(w, [len(sampling.posterior), -1])
        for w in sampling.posterior.weights.values()], axis=1))
  np.testing.assert_allclose(*draws, atol=1e-3)


def test_metrics_and_counts():
  model, sampling = models.classifier(), models.make_sampling(
      SBPS, draw_interval=0.1)
  history = models.fit(model, sampling, epochs=10)
  assert set(history.history) >= {'accuracy', 'loss', 'draws'}
  assert np.all(np.isfinite(history.history['loss']))
  results = sampling.kernel_results
  assert int(results.step) == 30
  assert int(results.event) in set(pdmp.Event)


@pytest.mark.parametrize('message, arguments', [
    ('pass draw_interval', dict()),
    ('draw_interval is 0', dict(draw_interval=0.)),
    ('num_steps_between_results is 3',
     dict(draw_interval=1., num_steps_between_results=3)),
    ('continuous time', dict(draw_interval=1., learning_rate=0.1)),
    ('does not move', dict(draw_interval=1., kernel=models.SGHMC)),
    ('comes? from Keras|come from Keras', dict(
        draw_interval=1., kernel=functools.partial(
            SBPS, gradient_estimator=sgmcmc.gradients.Uniform(10)))),
])
def test_bad_input(message, arguments):
  with pytest.raises(ValueError, match=message):
    models.make_sampling(**{'kernel': SBPS, **arguments})
