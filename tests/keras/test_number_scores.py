"""Coverage, interval score and CRPS in `evaluate`, against their formulas."""

import keras
import numpy as np
import pytest
import tensorflow_probability as tfp

from tests.keras import test_predictive
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.diagnostics import forecasts
from tfp_sgmcmc.keras.draws import model_draws as draws_lib
from tfp_sgmcmc.keras.draws import number_scores
from tfp_sgmcmc.keras.draws import predictions

tfd = tfp.distributions
linear = test_predictive.linear


def data(n=2000):
  rng = np.random.default_rng(0)
  x = rng.normal(size=[n, 1]).astype(np.float32)
  return x, x + rng.normal(size=[n, 1])


@pytest.mark.weekly_after(1)
@test_predictive.weights_and_slowly_none
@pytest.mark.parametrize('block', [2**21, 2**10])
def test_scores_are_those_of_the_mixture(weights, block, monkeypatch):
  """CRPS is exact for normal distributions: a sum over pairs of draws."""
  monkeypatch.setattr(number_scores, '_BLOCK', block)
  x, y = data(300)
  posterior = linear(test_predictive.GAUSSIAN, weights=weights)
  found = posterior.evaluate(x, y, draw_batch_size=2)
  interval = posterior.interval(x, 0.9)
  np.testing.assert_allclose(
      found['interval_score_90'],
      sgmcmc.diagnostics.interval_score(interval, y, 0.9), rtol=1e-5)
  predictive = posterior.predictive(x)
  wanted = sgmcmc.diagnostics.crps(predictive, y)
  # One standard deviation of the CRPS by 1,000 samples of a law is less than
  # that of the mean of |X - y|.
  error = np.mean(predictive.variance())**0.5 / np.sqrt(1000 * len(y))
  tolerance = 5. * error + 1e-3 * wanted
  assert abs(found['crps'] - wanted) < tolerance
  # Which is less than what wrong weights make.
  wrong = linear(test_predictive.GAUSSIAN, weights=np.array([0.6, 0.2, 0.2]))
  assert abs(sgmcmc.diagnostics.crps(
      wrong.predictive(x), y) - wanted) > 2. * tolerance


@pytest.mark.slow
def test_weights_and_several_outputs():
  x, y = data(400)
  inputs = keras.Input([1])
  model = keras.Model(inputs, {
      name: keras.layers.Dense(1, name=name)(inputs) for name in 'ab'})
  model.compile('sgd', {
      'a': sgmcmc.keras.GaussianLikelihood(scale=1.),
      'b': sgmcmc.keras.LaplaceLikelihood(scale=1.)})
  rng = np.random.default_rng(1)
  posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
      model, [rng.normal(size=[4, *v.shape])
              for v in model.trainable_variables])
  weights = np.arange(400) % 3.
  found = posterior.evaluate(
      x, {'a': y, 'b': 2. * y}, sample_weight={'a': weights, 'b': weights > 0})
  interval, predictive = posterior.interval(x), posterior.predictive(x)
  for name, target, weight in (('a', y, weights), ('b', 2. * y, weights > 0)):
    scores = forecasts.interval_scores(interval[name], target, 0.9)
    np.testing.assert_allclose(
        found[f'{name}_interval_score_90'],
        np.average(scores[:, 0], weights=weight), rtol=1e-4)
    # Independent for each example: those of `sample` share their draw.
    samples = predictive[name].sample(4000, seed=[0, 1])
    samples = np.reshape(samples, [4000, *target.shape]).astype(np.float64)
    wanted = np.average(
        forecasts.crps_of_samples(samples, target)[:, 0], weights=weight)
    np.testing.assert_allclose(found[f'{name}_crps'], wanted, rtol=0.02)


def test_what_has_no_such_scores():
  """A law that cannot be stacked has coverage alone, and counts none."""
  x, y = data(10)
  shared = linear(sgmcmc.keras.DistributionLoss(
      lambda outputs: tfd.TransformedDistribution(
          tfd.Normal(outputs, 1.), tfp.bijectors.Shift(outputs))))
  assert set(shared.evaluate(x, y)) == {'nll', 'coverage_90'}
  counts = linear('poisson', slopes=np.array([1., 2.]))
  assert set(counts.evaluate(np.abs(x), np.ones([10, 1]))) == {'nll'}


def test_blocks_are_smaller_where_draws_are_kept_apart(monkeypatch):
  """And what is scored is the same."""
  x, y = data(40)
  posterior = linear(test_predictive.GAUSSIAN)
  whole = posterior.evaluate(x, y, batch_size=10)
  reads = []
  read = draws_lib.ModelDraws.read
  monkeypatch.setattr(
      draws_lib.ModelDraws, 'read',
      lambda self, *args: reads.append(1) or read(self, *args))
  for size, wanted in ((2**28, 1), (10 * (4 + 8 + 3 * 16) + 1, 2), (1, 4)):
    reads.clear()
    monkeypatch.setattr(predictions, '_BLOCK_BYTES', size)
    assert posterior.evaluate(x, y, batch_size=10) == whole
    assert len(reads) == wanted
