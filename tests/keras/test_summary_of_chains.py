"""Separate fits compared: fine where they agree, and not where one does not.

R-hat of a table is above its limit once in a thousand tables (of normal errors)
for each of predictions, log likelihood and weights. Of 200 tables of right
chains 0.6 are expected; more than 6 have a probability of 3e-6.
"""

import keras
import numpy as np
import pytest
import scipy.stats

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.diagnostics import verdicts
from tfp_sgmcmc.keras.draws import summary as summary_lib

NUM_TABLES, MOST = 200, 0.03


def tables(rng, num_chains, num_draws, shift=0., spread=1., rho=0.):
  """The verdict on chains of 8 weights; the first by `shift` sd elsewhere."""
  w = rng.normal(size=[num_chains, num_draws, 8])
  for k in range(1, num_draws):
    w[:, k] = rho * w[:, k - 1] + (1. - rho**2)**0.5 * w[:, k]
  w[0] = spread * w[0] + shift
  predictions = np.tanh(w @ rng.normal(size=[8, 50]) / 8.**0.5)
  log_likelihood = -np.mean(predictions**2, axis=-1, keepdims=True)
  return verdicts.Summary(tuple(summary_lib.rows_of_chains(
      predictions, log_likelihood, w, has_hidden_layers=False)))


def share(wanted, number, *arguments, **keywords):
  rng = np.random.default_rng()
  return np.mean([
      tables(rng, *arguments, **keywords).verdict in wanted
      for _ in range(number)])


@pytest.mark.weekly
@pytest.mark.slow
def test_right_chains_are_fine():
  assert share(['doubtful', 'wrong'], NUM_TABLES, 4, 30) <= MOST


@pytest.mark.slow
def test_others_are_not():
  """One elsewhere, one too hot, and chains that have hardly moved."""
  for arguments in (dict(shift=3.), dict(spread=6.), dict(rho=0.97)):
    assert share(['wrong', 'doubtful'], 10, 4, 30, **arguments) >= 0.9


def samples_of(model, rng, shift=0., num_draws=30):
  """Independent draws of its weights, as one fit's."""
  return sgmcmc.keras.PosteriorSamples.from_arrays(model, [
      shift + rng.normal(size=[num_draws, *v.shape])
      for v in model.trainable_variables])


def test_draws_of_separate_fits():
  """With one of four elsewhere; with hidden layers, weights are not judged."""
  rng = np.random.default_rng(0)
  x, y = models.classes()
  linear = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
  linear.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
  runs = [samples_of(linear, rng) for _ in range(4)]
  found = sgmcmc.diagnostics.summary(runs, x, y[:, np.newaxis])
  assert [row.quantity for row in found.rows] == [
      f'{what} of {name}'
      for name in ('predictions', 'the log likelihood', 'the weights')
      for what in ('rank R-hat', 'effective draws')] + ['NLL of predictions']
  runs[2] = samples_of(linear, rng, shift=5., num_draws=40)
  found = sgmcmc.diagnostics.summary(runs, x)
  assert found.verdict == 'wrong' and len(found.rows) == 4, str(found)
  deep = models.classifier()
  # The same functions, the hidden units in another order.
  arrays = list(samples_of(deep, rng).weights.values())
  order = [1, 0, 2, 3, 4]
  other = [2. + arrays[0], arrays[1]], [
      2. + arrays[0][..., order], arrays[1][:, order]]
  found = sgmcmc.diagnostics.summary([
      sgmcmc.keras.PosteriorSamples.from_arrays(deep, a) for a in other], x)
  assert 'Not judged' in found.rows[-1].advice
  assert found.rows[-2].verdict == 'fine'


def test_log_likelihood_of_each_draw():
  model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=2.))
  rng = np.random.default_rng(0)
  posterior = samples_of(model, rng, num_draws=11)
  x, y = rng.normal(size=[7, 4]), rng.normal(size=[7, 1])
  kernel, bias = posterior.weights.values()
  mean = np.einsum('nd,sdk->snk', x, kernel) + bias[:, np.newaxis]
  wanted = scipy.stats.norm(mean, 2.).logpdf(y)[..., 0]
  np.testing.assert_allclose(
      posterior.log_likelihood(x, y, batch_size=3), wanted, rtol=1e-4)


def test_refused():
  rng = np.random.default_rng(0)
  small = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
  large = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
  runs = [samples_of(small, rng), samples_of(large, rng)]
  with pytest.raises(ValueError, match='draws of one model'):
    sgmcmc.diagnostics.summary(runs, np.zeros([3, 2]))
  with pytest.raises(ValueError, match='There are 5 draws'):
    sgmcmc.diagnostics.summary([runs[0], runs[0][:5]], np.zeros([3, 2]))
  with pytest.raises(ValueError, match='no runs in the list'):
    sgmcmc.diagnostics.summary([])
  with pytest.raises(TypeError, match='of the types PosteriorSamples, int'):
    sgmcmc.diagnostics.summary([runs[0], 3])
  with pytest.raises(TypeError, match='The runs are of type int'):
    sgmcmc.diagnostics.summary([3])
