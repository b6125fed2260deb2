"""The stochastic bouncy particle sampler in `fit`: events, draws, refusals."""

import functools
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.fitting import chain

tfd = tfp.distributions
SBPS = functools.partial(
    sgmcmc.StochasticBouncyParticleSampler, refresh_rate=0.3)


@pytest.mark.slow
def test_fit_is_the_kernel_on_the_same_batches():
  """Its events are those of a loop over a posterior written out."""
  rng = np.random.default_rng(0)
  num_examples, size = 200, 40
  x = rng.normal(size=[num_examples, 2]).astype(np.float32)
  y = (x @ [1., -0.5] + rng.normal(size=num_examples)).astype(np.float32)
  model = keras.Sequential([
      keras.Input([2]), keras.layers.Dense(1, use_bias=False)])
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
  start = [model.layers[0].kernel.numpy()]
  sampling = sgmcmc.keras.PosteriorSampling(
      SBPS, num_examples=num_examples, prior=tfd.Normal(0., 0.2), seed=3,
      **models.at_times(0.05))
  states = []
  model.fit(
      x, y[:, np.newaxis], batch_size=size, epochs=8, verbose=0, shuffle=False,
      callbacks=[sampling, keras.callbacks.LambdaCallback(
          on_train_batch_end=lambda batch, logs: states.append(
              model.layers[0].kernel.numpy()))])

  def kernel(batch):
    return SBPS(sgmcmc.Posterior(
        lambda w: tf.reduce_sum(tfd.Normal(0., 0.2).log_prob(w)),
        lambda w, batch: tfd.Normal(
            tf.linalg.matvec(batch[0], w[:, 0]), 1.).log_prob(batch[1]),
        batch, num_examples=num_examples))

  @tf.function(autograph=False)
  def one_step(state, results, batch, seed):
    return kernel(batch).one_step(state, results, seed=seed)

  batches = [
      (tf.constant(x[k:k + size]), tf.constant(y[k:k + size]))
      for k in range(0, num_examples, size)]
  state, path = start, []
  results = kernel(batches[0]).bootstrap_results(
      start, seed=sampling.step_seed(0))
  for step in range(40):
    state, results = one_step(
        state, results, batches[step % 5], sampling.step_seed(step + 1))
    path.append(state[0])
  np.testing.assert_allclose(states, path, rtol=1e-3, atol=1e-4)
  assert np.std(path) > 0.01


class Events(keras.callbacks.Callback):
  """Keeps the events of the path, and how long each segment took."""

  def __init__(self, sampling):
    super().__init__()
    self.sampling = sampling
    self.states, self.durations = [], []

  def on_train_batch_end(self, batch, logs=None):
    self.states.append(np.concatenate(
        [np.ravel(v) for v in self.model.trainable_variables]))
    self.durations.append(float(self.sampling.kernel_results.duration))


class Path(NamedTuple):
  """What a fit has made, which may go on.

  Attributes:
    sampling: Its callback.
    events: `Events`.
    history: The logs.
    draws: The draws, a row each.
    steps: The numbers of their steps.
    results: The kernel's results.
    weights: The model's weights.
  """
  sampling: sgmcmc.keras.PosteriorSampling
  events: Events
  history: dict[str, list[float]]
  draws: np.ndarray
  steps: list[int]
  results: Any
  weights: list[np.ndarray]


def run(**compile_arguments):
  model = models.classifier(**compile_arguments)
  sampling = models.make_sampling(
      SBPS, num_burnin_steps=10, **models.at_times(0.03))
  events = Events(sampling)
  # The iterator of an epoch of arrays would take as long as ten steps.
  data = tf.data.Dataset.from_tensor_slices(models.classes()).batch(20).cache()
  history = models.fit(
      model, sampling, epochs=30, x=data, batch_size=None,
      callbacks=[events]).history
  draws = np.concatenate([
      np.reshape(w, [len(sampling.posterior), -1])
      for w in sampling.posterior.weights.values()], axis=1)
  return Path(
      sampling, events, history, draws, sampling.posterior.steps,
      sampling.kernel_results, model.get_weights())


@pytest.fixture(scope='module')
def single_steps():
  return run()


@pytest.mark.slow
def test_draws_are_at_equal_times_along_the_path(single_steps):
  """Against the path that the events make, kept by a callback."""
  draws = single_steps.draws
  states = np.array(single_steps.events.states)
  durations = single_steps.events.durations
  assert len(states) == single_steps.results.step == 90
  # Time 0 is the event at which burn-in ends.
  times = np.cumsum(np.append(0., durations[10:]))
  due = 0.03 * np.arange(1, len(draws) + 1)
  assert len(draws) == int(times[-1] / 0.03) and len(draws) > 20
  wanted = np.stack([
      np.interp(due, times, column) for column in states[9:].T], axis=1)
  np.testing.assert_allclose(draws, wanted, atol=2e-5)
  # After fit the weights are those of the last event.
  assert np.all(np.diff(single_steps.steps) >= 0)
  np.testing.assert_array_equal(states[-1], np.concatenate(
      [np.ravel(w) for w in single_steps.weights]))


@pytest.mark.weekly
@pytest.mark.slow
def test_several_steps_an_execution_are_the_same(single_steps):
  draws = run(steps_per_execution=4).draws
  np.testing.assert_allclose(draws, single_steps.draws, atol=1e-3)


def test_metrics_and_counts(single_steps):
  history, results = single_steps.history, single_steps.results
  assert set(history) >= {'accuracy', 'loss', 'draws'}
  assert np.all(np.isfinite(history['loss']))
  assert int(results.step) == 90
  counted = int(results.gradient_estimator_results.num_gradients)
  assert counted % 10 == 0 and counted >= 20 + 30 * 50  # And the bounces'.


def test_nan_stops_with_the_reason_of_the_kernel(single_steps, monkeypatch):
  """Where no fault of the data is found."""
  monkeypatch.setattr(chain.Chain, '_why_not_finite', lambda self: None)
  x, y = models.classes()
  x[45] = np.inf  # In the third batch of an epoch, here step 93.
  sampling = single_steps.sampling
  with pytest.warns(RuntimeWarning, match='at step 93 .*raise refresh_rate'):
    models.fit(sampling.model, sampling, epochs=4, x=x, y=y)
  assert sampling.num_steps == 93


def test_nan_stops_a_fit_that_runs_eagerly_too():
  x, y = models.classes()
  x[45] = np.inf
  sampling = models.make_sampling(SBPS, **models.at_times(0.01))
  with pytest.warns(RuntimeWarning, match='at step 3 .*inputs hold NaN'):
    models.fit(models.classifier(run_eagerly=True), sampling, x=x, y=y)
  assert sampling.num_steps == 3
  assert len(sampling.posterior)
  for array in sampling.posterior.weights.values():
    assert np.all(np.isfinite(array))


@pytest.mark.parametrize('message, arguments', [
    ('pass the time between two draws', dict()),
    ('num_steps_between_results is 3',
     dict(num_steps_between_results=sgmcmc.keras.DrawSchedule(
         3, interval=1.))),
    ('continuous time', dict(**models.at_times(1.), learning_rate=0.1)),
    ('does not move', dict(**models.at_times(1.), kernel=models.SGHMC)),
    ('come from Keras', dict(
        **models.at_times(1.), kernel=functools.partial(
            SBPS, gradient_estimator=sgmcmc.gradients.Uniform(10)))),
])
def test_bad_input(message, arguments):
  with pytest.raises(ValueError, match=message):
    models.make_sampling(**{'kernel': SBPS, **arguments})


@pytest.mark.weekly
@pytest.mark.slow
def test_recurrent_network():
  """Derivatives along the path go through the loop of a layer."""
  random = np.random.default_rng(0)
  x = random.normal(size=[40, 5, 2]).astype(np.float32)
  model = keras.Sequential([
      keras.Input([5, 2]), keras.layers.LSTM(3), keras.layers.Dense(1)])
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=0.5))
  sampling = sgmcmc.keras.PosteriorSampling(
      SBPS, prior=tfd.Normal(0., 1.), seed=0, **models.at_times(0.02))
  model.fit(
      x, x.sum(axis=(1, 2))[:, np.newaxis], batch_size=20, epochs=10,
      verbose=0, callbacks=[sampling])
  draws = next(iter(sampling.posterior.weights.values()))
  assert len(draws) > 3 and np.all(np.isfinite(draws))
