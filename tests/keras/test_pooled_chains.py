"""Draws of several chains pooled: all together, and each chain again."""

import pickle

import keras
import numpy as np
import pytest

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.draws import model_draws as draws_lib

PosteriorSamples = sgmcmc.keras.PosteriorSamples


def normal_draws(model, rng, num_draws):
  return PosteriorSamples.from_arrays(model, [
      rng.normal(size=[num_draws, *v.shape])
      for v in model.trainable_variables])


def test_pooled_draws_are_those_of_the_chains(tmp_path):
  """From memory, from disk, nested, sliced, saved, pickled; by other models."""
  rng = np.random.default_rng(0)
  x, y = models.classes()
  first = models.classifier()
  chains = [normal_draws(models.classifier(), rng, n) for n in (5, 7, 6)]
  chains[1].save(tmp_path / 'one')
  chains[1] = PosteriorSamples.load(tmp_path / 'one', first)
  pooled = PosteriorSamples.concatenate([
      PosteriorSamples.concatenate([chains[0][1:], chains[1]]), chains[2]])
  pooled.save(tmp_path / 'pooled')
  for found in (
      pooled, PosteriorSamples.load(tmp_path / 'pooled', first),
      pickle.loads(pickle.dumps(pooled))):
    assert len(found) == 17 and found.num_chains == 3
    assert [len(chain) for chain in found.chains] == [4, 7, 6]
    assert found.steps == [2, 3, 4, 5, *range(1, 8), *range(1, 7)]
    for ours, theirs in zip(
        found.weights.values(), zip(*(c.weights.values() for c in chains))):
      np.testing.assert_array_equal(ours, np.concatenate(theirs)[1:])
    np.testing.assert_array_equal(found[5][0], chains[1][1][0])
  np.testing.assert_allclose(
      pooled.log_likelihood(x, y, draw_batch_size=5),
      np.concatenate([c.log_likelihood(x, y) for c in chains])[1:], rtol=1e-4)
  part = pooled[3:12]
  assert [len(chain) for chain in part.chains] == [1, 7, 1]
  assert pooled[5:7].num_chains == 1
  data = pooled.to_arviz(x, y)
  name, *_ = [path.replace('/', '.') for path in pooled.weights]
  assert data.posterior[name].shape == (3, 4, 4, 5)
  np.testing.assert_allclose(
      data.posterior['predictions'][1],
      chains[1].predict(x, return_samples=True)[-4:], rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(
      data.log_likelihood['y'][0], chains[0].log_likelihood(x, y)[1:],
      rtol=1e-4)
  assert data.sample_stats['step'].values[2].tolist() == [3, 4, 5, 6]


def test_a_chain_without_weights_counts_each_draw_as_one(tmp_path):
  """Beside one with weights; whichever comes first, and which are read."""
  rng = np.random.default_rng(0)
  model = models.classifier()
  plain = normal_draws(model, rng, 3)
  log_weights = rng.normal(size=[4]).astype(np.float32)
  weighted = PosteriorSamples(model, draws_lib.in_memory(model, {
      **normal_draws(model, rng, 4).arrays(), 'log_weight': log_weights}))
  for order in (slice(None), slice(None, None, -1)):
    chains, wanted = [plain, weighted][order], [np.zeros([3]), log_weights]
    pooled = PosteriorSamples.concatenate(chains)
    np.testing.assert_array_equal(
        pooled.log_weights, np.concatenate(wanted[order]))
    for chain, values in zip(pooled.chains, wanted[order]):
      np.testing.assert_array_equal(chain.arrays()['log_weight'], values)
    pooled.save(tmp_path / str(order.step))
    loaded = PosteriorSamples.load(tmp_path / str(order.step), model)
    np.testing.assert_array_equal(loaded.log_weights, pooled.log_weights)
    assert pooled.resampled().log_weights is None


def test_summary_of_pooled_chains_is_that_of_the_chains():
  rng = np.random.default_rng(0)
  x, y = models.classes()
  model = models.classifier()
  chains = [normal_draws(model, rng, 30) for _ in range(3)]
  pooled = PosteriorSamples.concatenate(chains)
  wanted = sgmcmc.diagnostics.summary(chains, x, y)
  assert sgmcmc.diagnostics.summary(pooled, x, y) == wanted
  # Draws at random agree with each other, and predict nothing.
  assert [row.verdict == 'fine' for row in wanted.rows] == 6 * [True] + [False]
  single = sgmcmc.diagnostics.summary(chains[0], x, y)
  assert [row.quantity for row in single.rows] == [
      'R-hat of predictions', 'effective draws of predictions',
      'rank R-hat of the log likelihood',
      'effective draws of the log likelihood', 'NLL of predictions']


def with_moving_statistics(mean):
  model = keras.Sequential([
      keras.Input([4]), keras.layers.BatchNormalization(),
      keras.layers.Dense(3, trainable=False), keras.layers.Dense(3)])
  model.compile('sgd', keras.losses.SparseCategoricalCrossentropy(
      from_logits=True), run_eagerly=True)
  model.layers[0].moving_mean.assign([mean] * 4)
  model.layers[1].kernel.assign(np.ones([4, 3]))
  return model


def test_each_chain_predicts_with_its_own_moving_statistics():
  """And two models with other frozen weights cannot be one."""
  x, y = models.classes()
  posteriors = []
  for mean in (0., 3.):
    model = with_moving_statistics(mean)
    sampling = models.make_sampling()
    models.fit(model, sampling, epochs=1)
    posteriors.append(sampling.posterior)
  pooled = PosteriorSamples.concatenate(posteriors)
  each = [posterior.predict(x) for posterior in posteriors]
  np.testing.assert_allclose(
      pooled.predict(x), np.mean(each, axis=0), rtol=1e-4, atol=1e-6)
  assert np.max(np.abs(each[0] - each[1])) > 0.1
  model.layers[1].kernel.assign(np.zeros([4, 3]))
  with pytest.raises(ValueError, match='differ in .*kernel.*not sampled'):
    PosteriorSamples.concatenate(posteriors)


def test_refused():
  rng = np.random.default_rng(0)
  small, large = (
      keras.Sequential([keras.Input([n]), keras.layers.Dense(1)])
      for n in (2, 3))
  chains = [normal_draws(model, rng, 3) for model in (small, large)]
  with pytest.raises(ValueError, match=r'float32\[2, 1\].*float32\[3, 1\]'):
    PosteriorSamples.concatenate(chains)
  with pytest.raises(ValueError, match='no draws in the list'):
    PosteriorSamples.concatenate([])
  with pytest.raises(ValueError, match='Number 1 of the list has no draws'):
    PosteriorSamples.concatenate([chains[0], chains[0][:0]])
  with pytest.raises(TypeError, match='the .posterior of each callback'):
    PosteriorSamples.concatenate([chains[0], 3])
  with pytest.raises(ValueError, match='without inputs'):
    chains[0].to_arviz(y=[1.])
