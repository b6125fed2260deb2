"""The stochastic bouncy particle sampler in `fit`: events, draws, refusals."""

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
      draw_interval=0.05)
  states = []
  model.fit(
      x, y[:, np.newaxis], batch_size=size, epochs=8, verbose=0, shuffle=False,
      callbacks=[sampling, keras.callbacks.LambdaCallback(
          on_train_batch_end=lambda batch, logs: states.append(
              model.layers[0].kernel.numpy()))])

  def kernel(step):
    rows = slice(size * (step % 5), size * (step % 5 + 1))
    return SBPS(sgmcmc.Posterior(
        lambda w: tf.reduce_sum(tfd.Normal(0., 0.2).log_prob(w)),
        lambda w, batch: tfd.Normal(
            tf.linalg.matvec(batch[0], w[:, 0]), 1.).log_prob(batch[1]),
        (x[rows], y[rows]), num_examples))

  state, path = start, []
  results = kernel(0).bootstrap_results(start, seed=sampling.step_seed(0))
  for step in range(40):
    state, results = kernel(step).one_step(
        state, results, seed=sampling.step_seed(step + 1))
    path.append(state[0])
  np.testing.assert_allclose(states, path, rtol=1e-3, atol=1e-4)
  assert np.std(path) > 0.01


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
    ('minibatches', dict(
        draw_interval=1., kernel=functools.partial(
            SBPS, gradient_estimator=sgmcmc.gradients.Uniform(10)))),
])
def test_bad_input(message, arguments):
  with pytest.raises(ValueError, match=message):
    models.make_sampling(**{'kernel': SBPS, **arguments})
