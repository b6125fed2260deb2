"""AdaptiveTime in `fit`: its draws have weights, which predictions use."""

import functools
import pickle

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
import tensorflow_probability as tfp

from tests.keras import models
from tests.keras import test_going_on
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions
commit_each_step = test_going_on.commit_each_step


def adaptive(posterior, **arguments):
  return sgmcmc.AdaptiveTime(
      sgmcmc.SGHMC(posterior, 0.005, 20.), **arguments)


@functools.cache
def fitted(num_chains=1):
  model = models.classifier()
  sampling = models.make_sampling(adaptive, **(
      {} if num_chains == 1 else dict(num_chains=num_chains)))
  models.fit(model, sampling, epochs=8, batch_size=10)
  return sampling.posterior


def weights_of(posterior):
  """With the sum 1."""
  return scipy.special.softmax(np.float64(posterior.log_weights))


def test_weights_are_those_of_the_kernel():
  model, steps, found = models.classifier(), [], []

  class Watch(keras.callbacks.Callback):

    def on_train_batch_end(self, batch, logs=None):
      steps.append(sampling.num_steps)
      found.append(float(sampling.kernel_results.log_weight))

  sampling = models.make_sampling(adaptive)
  models.fit(model, sampling, epochs=2, callbacks=[Watch()])
  posterior = sampling.posterior
  np.testing.assert_array_equal(
      posterior.log_weights,
      [np.float32(found[steps.index(k)]) for k in posterior.steps])
  assert len(set(found)) > 3


@pytest.mark.weekly_after(1)
@pytest.mark.slow
@pytest.mark.parametrize('num_chains', [1, 2])
def test_predictions_are_weighted_means(num_chains):
  posterior = fitted(num_chains)
  (x, y), w = models.classes(), weights_of(fitted(num_chains))
  each = np.float64(posterior.predict(x, return_samples=True))
  mean = np.einsum('k,k...->...', w, each)
  np.testing.assert_allclose(
      posterior.predict(x, draw_batch_size=3), mean, rtol=1e-5)
  assert not np.allclose(mean, each.mean(axis=0), rtol=1e-4)
  values = posterior.log_likelihood(x, y)
  nll = -np.mean(scipy.special.logsumexp(values, axis=0, b=w[:, np.newaxis]))
  scores = posterior.evaluate(x, y)
  np.testing.assert_allclose(scores['nll'], nll, rtol=1e-5)
  entropy = posterior.predictive_entropy(x)
  own = -np.sum(each * np.log(each), axis=-1)
  np.testing.assert_allclose(entropy.aleatoric, w @ own, rtol=1e-4)


@pytest.mark.slow
def test_weights_go_with_the_draws(tmp_path):
  posterior = fitted(2)
  wanted = posterior.log_weights
  posterior.save(tmp_path)
  for other in (
      sgmcmc.keras.PosteriorSamples.load(tmp_path, models.classifier()),
      pickle.loads(pickle.dumps(posterior))):
    np.testing.assert_array_equal(other.log_weights, wanted)
  pooled = sgmcmc.keras.PosteriorSamples.concatenate(posterior.chains)
  np.testing.assert_array_equal(
      pooled.log_weights,
      np.concatenate([chain.log_weights for chain in posterior.chains]))
  np.testing.assert_array_equal(posterior[2:5].log_weights, wanted[2:5])


@pytest.mark.slow
def test_resampled_export_and_summary():
  posterior, (x, y) = fitted(2), models.classes()
  even = posterior.resampled()
  assert even.log_weights is None and even.num_chains == 2
  assert len(even) == len(posterior) and even.resampled() is even
  exported = posterior.to_arviz(x).posterior
  path = list(even.weights)[-1]
  np.testing.assert_array_equal(exported[path.replace('/', '.')], np.stack([
      chain.weights[path] for chain in even.chains]))
  for chain, kept in zip(posterior.chains, even.chains):
    w = weights_of(chain) * len(chain)
    for step, weight in zip(chain.steps, w):
      assert abs(kept.steps.count(step) - weight) < 1.
  rows, wanted = (
      sgmcmc.diagnostics.summary(p, x, y).rows for p in (posterior, even))
  assert rows == wanted


@pytest.mark.slow
def test_files_of_keras_are_at_equal_weights(tmp_path):
  posterior = fitted()
  paths = posterior.export_weights(tmp_path)
  even = list(posterior.resampled().weights.values())[-1]
  model = models.classifier()
  for k in (0, len(paths) // 2, len(paths) - 1):
    model.load_weights(paths[k])
    np.testing.assert_array_equal(model.layers[-1].kernel, even[k])


@pytest.mark.slow
def test_killed_and_gone_on_with(tmp_path):
  whole = test_going_on.run(3, kernel=adaptive)
  killed = test_going_on.run(
      3, kills=[2, 5], kernel=adaptive, directory=tmp_path)
  test_going_on.assert_same(killed, whole)
  np.testing.assert_array_equal(
      killed[1].posterior.log_weights, whole[1].posterior.log_weights)


def test_the_search_for_a_temperature_is_refused():
  with pytest.raises(ValueError, match='equal weights'):
    models.make_sampling(
        lambda posterior, temperature=1.: sgmcmc.AdaptiveTime(
            sgmcmc.SGLD(posterior, 1e-4, temperature=temperature)),
        temperature='validation')


@keras.saving.register_keras_serializable('test_adaptive_time')
def quartic(y, outputs):
  del y
  return outputs**4 / 4.


@pytest.mark.weekly
@pytest.mark.slow
def test_law():
  """One weight w; the densities of all examples together are exp(-w^4 / 4).

  Against the mean of w^2 by quadrature, 0.676. Of 8 x 500 draws some 2,000 are
  effective: 12% are more than 4 standard errors. At equal weights it is half
  too large.
  """
  model = keras.Sequential([
      keras.Input([1]),
      keras.layers.Dense(1, use_bias=False, kernel_initializer='normal')])
  model.compile('sgd', sgmcmc.keras.NegativeLogLikelihood(
      quartic), steps_per_execution=100)
  data = tf.data.Dataset.from_tensors(
      (np.full([8, 1], 0.125**0.25, np.float32), np.zeros([8, 1]))).repeat()
  sampling = sgmcmc.keras.PosteriorSampling(
      lambda posterior: sgmcmc.AdaptiveTime(
          sgmcmc.SGLD(posterior, 0.03), power=0.5, decay=0.5),
      num_examples=8, prior=tfd.Normal(0., 100.), num_burnin_steps=500,
      num_steps_between_results=9, num_chains=8, seed=1)
  model.fit(data, steps_per_epoch=5500, epochs=1, verbose=0,
            callbacks=[sampling])
  posterior = sampling.posterior
  assert len(posterior) == 8 * 500
  squares = list(posterior.weights.values())[0].ravel()**2
  assert abs(weights_of(posterior) @ squares / 0.676 - 1.) < 0.12
  assert np.mean(squares) / 0.676 - 1. > 0.2
