"""The posterior beside the weights before sampling and a constant prediction.

The constant prediction is the one that fits the targets best: no other outputs
have a larger likelihood.
"""

import pickle

import keras
import numpy as np
import pytest
import scipy.stats

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.draws import baselines

PosteriorSamples = sgmcmc.keras.PosteriorSamples
NLL = 'NLL of predictions'


def row_of(summary):
  row, = (row for row in summary.rows if row.quantity == NLL)
  return row


def network(units, loss, activation=None, inputs=2, **layer):
  model = keras.Sequential([
      keras.Input([inputs]),
      keras.layers.Dense(units, activation=activation, **layer)])
  model.compile('sgd', loss)
  return model


def draws_of(model, scale=1., num_draws=20, seed=0):
  rng = np.random.default_rng(seed)
  return PosteriorSamples.from_arrays(model, [
      scale * rng.normal(size=[num_draws, *v.shape])
      for v in model.trainable_variables])


def constant(model, x, y):
  found = baselines.constant_log_likelihood(draws_of(model), x, y)
  return None if found is None else found.mean()


N = 400
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 2]).astype(np.float32)
LABELS = RNG.choice(3, N, p=[0.5, 0.3, 0.2])
SOFT = RNG.dirichlet([2., 1., 1.], N)
BITS = RNG.uniform(size=[N, 2]) < [0.2, 0.7]
REAL = 3. + 2. * RNG.normal(size=[N, 1])
COUNTS = RNG.poisson(3., [N, 1])


def entropy(shares):
  return scipy.stats.entropy(shares)


@pytest.mark.parametrize('model, y, wanted', [
    (lambda: network(3, 'sparse_categorical_crossentropy', 'softmax'), LABELS,
     -entropy(np.bincount(LABELS) / N)),
    (lambda: network(3, keras.losses.SparseCategoricalCrossentropy(
        from_logits=True)), LABELS, -entropy(np.bincount(LABELS) / N)),
    (lambda: network(3, 'categorical_crossentropy', 'softmax'), SOFT,
     -entropy(SOFT.mean(axis=0))),
    (lambda: network(2, keras.losses.BinaryCrossentropy(from_logits=True)),
     BITS.astype(np.float32),
     -sum(entropy([p, 1. - p]) for p in BITS.mean(axis=0))),
    (lambda: network(1, 'poisson', 'softplus'), COUNTS,
     scipy.stats.poisson(COUNTS.mean()).logpmf(COUNTS).mean()),
    (lambda: network(1, sgmcmc.keras.GaussianLikelihood(scale=1.5)), REAL,
     scipy.stats.norm(REAL.mean(), 1.5).logpdf(REAL).mean()),
    (lambda: network(2, sgmcmc.keras.GaussianLikelihood()), REAL[:, 0],
     scipy.stats.norm(REAL.mean(), REAL.std()).logpdf(REAL).mean()),
    (lambda: network(2, sgmcmc.keras.LaplaceLikelihood()), REAL,
     scipy.stats.laplace(
         np.median(REAL), np.abs(REAL - np.median(REAL)).mean()).logpdf(
             REAL).mean()),
    (lambda: network(1, sgmcmc.keras.StudentTLikelihood(4., scale=1.)), REAL,
     None)], ids=[
         'sparse', 'logits', 'soft', 'binary', 'poisson', 'normal',
         'normal with a scale', 'laplace', 'student'])
def test_constant_predictions(model, y, wanted):
  found = constant(model(), X, y)
  assert (found is None) == (wanted is None)
  if wanted is not None:
    assert np.isclose(found, wanted, rtol=1e-4)


def test_of_what_a_mask_and_an_ignored_class_leave():
  model = keras.Sequential([
      keras.Input([5]), keras.layers.Embedding(9, 4, mask_zero=True),
      keras.layers.Dense(3)])
  model.compile('sgd', keras.losses.SparseCategoricalCrossentropy(
      from_logits=True, ignore_class=-1))
  words, tags = RNG.integers(1, 9, [30, 5]), RNG.choice(3, [30, 5], p=[
      0.6, 0.3, 0.1])
  words[:, 3:], tags[:, 0] = 0, -1
  shares = np.bincount(tags[:, 1:3].ravel(), minlength=3) / 60.
  assert np.isclose(
      constant(model, words, tags), -2. * entropy(shares), rtol=1e-4)


def fitted(x, y, model, **arguments):
  sampling = models.make_sampling(
      sgmcmc.SGHMC, num_examples=len(x), learning_rate=0.05, momentum=0.9,
      num_burnin_steps=40, num_steps_between_results=3, **arguments)
  model.fit(x, y, batch_size=200, epochs=60, verbose=0, callbacks=[sampling])
  return sampling


def logistic():
  return network(2, keras.losses.SparseCategoricalCrossentropy(
      from_logits=True), kernel_initializer='zeros')


@pytest.mark.weekly
@pytest.mark.slow
def test_a_network_at_chance_is_not_fine():
  """Labels that have nothing to do with the inputs; others that have.

  A constant prediction is as good as any: the posterior is not shown to be
  better, but by one of a thousand false alarms.
  """
  rng = np.random.default_rng()
  x = rng.normal(size=[N, 2]).astype(np.float32)
  chance = fitted(x, rng.integers(0, 2, N), logistic())
  x, y = rng.normal(size=[N, 2]).astype(np.float32), rng.integers(0, 2, N)
  found = sgmcmc.diagnostics.summary(chance.posterior, x, y)
  row = row_of(found)
  assert row.verdict in ('doubtful', 'wrong') and found.verdict != 'fine'
  assert 'by a constant prediction' in row.advice
  assert 'by the weights before sampling' in row.advice
  assert np.isclose(row.value, chance.posterior.evaluate(x, y)['nll'], rtol=.05)
  x[:, 0] += 3. * y
  learnt = fitted(x, y, logistic())
  row = row_of(learnt.summary(x, y))
  assert row.verdict == 'fine'
  # The weights before sampling were zero.
  assert f'{np.log(2.):.4g} by the weights before sampling' in row.advice
  assert np.isclose(
      row.value, learnt.posterior.evaluate(x, y)['nll'], rtol=0.05)
  row = row_of(learnt.summary(x, 1 - y))
  assert row.verdict == 'wrong' and 'A constant prediction is better' in (
      row.advice)


@pytest.mark.slow
def test_better_weights_before_sampling_are_told_of():
  """A posterior at a temperature that forgets what was learnt."""
  x, y = models.classes()
  model = models.classifier(optimizer=keras.optimizers.Adam(0.05))
  sampling = models.make_sampling(
      start_epoch=20, num_burnin_steps=0, temperature=1000.)
  models.fit(model, sampling, epochs=30)
  row = row_of(sampling.summary(x, y))
  assert row.verdict != 'fine'
  start = sampling.posterior.start
  assert len(start) == 1 and start.steps == [0]
  assert start.evaluate(x, y)['nll'] < sampling.posterior.evaluate(x, y)['nll']


@pytest.mark.parametrize('of_constant, of_start, verdict, said', [
    (-0.7, -0.6, 'fine', ''), (-0.7, -0.495, 'fine', ''),
    (-0.7, -0.3, 'doubtful', 'weights before sampling predict better'),
    (-0.5, -0.7, 'doubtful', '100 examples do not show'),
    (-0.3, None, 'wrong', 'A constant prediction is better'),
    (None, None, 'fine', '')])
def test_judgement(of_constant, of_start, verdict, said):
  """Means that differ by far more than their standard error, or by nothing."""
  noise = np.tile([-0.01, 0.01], 50)
  ours, *others = (
      None if mean is None else mean + sign * noise for mean, sign in (
          (-0.5, 1.), (of_constant, -1.), (of_start, -1.)))
  found, advice = baselines.judge(ours, *others)
  assert found == verdict and said in advice

@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('num_chains', [1, 2])
def test_weights_before_sampling_stay_with_the_draws(num_chains, tmp_path):
  """In memory, on disk, saved, pooled, pickled, and where a chain goes on."""
  x, y = models.classes()
  seen = []
  watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: (
      seen.append(model.get_weights())))
  kinds = dict(start_epoch=1, num_chains=num_chains)
  model = models.classifier()
  sampling = models.make_sampling(directory=tmp_path / 'fit', **kinds)
  models.fit(model, sampling, epochs=6, callbacks=[watch])
  posterior = sampling.posterior
  assert len(posterior.start) == num_chains
  for a, b in zip(posterior.start[0], seen[0]):
    np.testing.assert_array_equal(a, b)
  wanted = list(posterior.start.weights.values())
  loaded = PosteriorSamples.load(tmp_path / 'fit', models.classifier())
  loaded[2:].save(tmp_path / 'saved')
  again = models.make_sampling(directory=tmp_path / 'fit', **kinds)
  models.fit(models.classifier(), again, epochs=8)
  for other in (
      loaded, pickle.loads(pickle.dumps(loaded)), again.posterior,
      PosteriorSamples.load(tmp_path / 'saved', models.classifier()),
      PosteriorSamples.concatenate(loaded.chains)):
    for a, b in zip(other.start.weights.values(), wanted):
      np.testing.assert_array_equal(a, b)
  last = posterior.chains[-1].start
  assert len(last) == 1
  np.testing.assert_array_equal(last[0][0], wanted[0][-1])
  if num_chains == 1:
    assert sgmcmc.diagnostics.summary(loaded, x, y) == (
        sgmcmc.diagnostics.summary(posterior, x, y))


def test_draws_without_such_weights():
  """As of `from_arrays`, or pooled with some."""
  x, y = models.classes()
  model = models.classifier()
  bare = draws_of(model)
  assert bare.start is None
  sampling = models.make_sampling()
  models.fit(model, sampling, epochs=5)
  pooled = PosteriorSamples.concatenate([sampling.posterior, bare])
  assert pooled.start is None and len(sampling.posterior.start) == 1
  advice = row_of(sgmcmc.diagnostics.summary(bare, x, y)).advice
  assert 'constant' in advice and 'before sampling' not in advice
  model = network(1, sgmcmc.keras.StudentTLikelihood(4., scale=1.))
  row = row_of(sgmcmc.diagnostics.summary(draws_of(model), X, REAL))
  assert row.verdict == 'fine' and 'nothing known to compare' in row.advice


def test_what_the_verdict_is_about():
  x, y = models.classes()
  posterior = draws_of(models.classifier())
  without, with_targets = (
      str(sgmcmc.diagnostics.summary(posterior, x, *targets)).splitlines()[-1]
      for targets in ((), (y,)))
  assert without == 'not about how good the predictions are.'
  assert with_targets.endswith('compare with simpler ones.')
