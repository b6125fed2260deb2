"""Several chains of one network in one `fit`."""

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
from tests.keras import test_going_on as going_on
from tests.keras import test_law
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import store
from tfp_sgmcmc.keras.fitting import side_by_side
from tfp_sgmcmc.keras.fitting import starts as starts_lib

NUM_CHAINS = 3


def starts(num_chains=NUM_CHAINS, make_model=models.classifier):
  rng = np.random.default_rng(0)
  return [[rng.normal(size=w.shape).astype(np.float32)
           for w in make_model().get_weights()] for _ in range(num_chains)]


def rows_of(chain, step, num_rows, seed, num_chains=NUM_CHAINS):
  """The rows of a chain, written again from the docstring."""
  shift = int(sgmcmc.random.bits([], sgmcmc.random.fold_in(
      sgmcmc.random.fold_in(seed, num_chains), step))) % num_chains
  length = -(-num_rows // num_chains)
  return (np.arange(length) * num_chains + (chain + shift) % num_chains
          ) % num_rows


def own_batches(chain, seed, num_steps, batch_size=20):
  """What a chain sees of the data in their order, as a dataset."""
  x, y = models.classes()
  batches = [(x[k:k + batch_size], y[k:k + batch_size])
             for k in range(0, len(x), batch_size)]

  def generate():
    # The first batch is there for `bootstrap_results` too.
    for step in range(1, num_steps + 1):
      a, b = batches[(step - 1) % len(batches)]
      rows = rows_of(chain, step, len(a), seed)
      yield a[rows], b[rows]

  return tf.data.Dataset.from_generator(generate, output_signature=(
      tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int64)))


def rising(step):
  """The kernel trains the chains before they sample: T from 0 to 1."""
  return tf.clip_by_value((tf.cast(step, tf.float32) - 2.) / 2., 0., 1.)


@pytest.mark.parametrize('kernel', [
    functools.partial(
        sgmcmc.SGLD, step_size=1e-4,
        preconditioner=sgmcmc.preconditioners.RMSProp()),
    pytest.param(functools.partial(
        sgmcmc.SGHMC, step_size=0.01, friction=5.,
        gradient_estimator=models.DEALT), marks=pytest.mark.slow),
    pytest.param(functools.partial(
        sgmcmc.SGNHT, step_size=0.01, diffusion=3.),
                 marks=[pytest.mark.slow, pytest.mark.weekly]),
    pytest.param(functools.partial(
        sgmcmc.SGHMC, step_size=0.01, friction=5., temperature=rising),
                 marks=[pytest.mark.slow, pytest.mark.weekly]),
], ids=['psgld', 'ewsg', 'sgnht', 'from temperature 0'])
def test_each_chain_is_a_fit_of_its_own(kernel):
  """Number for number: its seed, its start, its rows."""
  seed, given = tf.constant([3, 4]), starts()
  sampling = models.make_sampling(
      kernel, **models.starting_from(given), seed=seed)
  models.fit(models.classifier(run_eagerly=True), sampling, epochs=2)
  results = sampling.kernel_results
  for j, chain in enumerate(sampling.posterior.chains):
    model = models.classifier(run_eagerly=True)
    model.set_weights(given[j])
    alone = models.make_sampling(kernel, seed=sgmcmc.random.fold_in(seed, j))
    model.fit(own_batches(j, seed, 6), steps_per_epoch=3, epochs=2, verbose=0,
              callbacks=[alone])
    assert len(chain) == 6
    for ours, theirs in zip(
        chain.weights.values(), alone.posterior.weights.values()):
      np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(
        tf.nest.flatten(results), tf.nest.flatten(alone.kernel_results)):
      np.testing.assert_allclose(ours[j], theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_each_chain_has_the_exact_posterior_and_is_independent_of_others():
  """At 5.2 standard errors, a false alarm once in 10^5 tests.

  Minibatches make up to 3% of the variance, which is the same for all columns.
  """
  draws = regression_by_chain()
  _, _, mean, covariance = test_law.regression()
  for chain in draws:
    assert max(test_law.discrepancies(chain, mean, covariance)) < 1.
  found = correlation(draws)
  assert abs(found) < test_law.Z * (2. / (draws[0].size / 2.))**0.5 + 0.03


@pytest.mark.weekly
@pytest.mark.slow
def test_chains_with_one_noise_are_found(monkeypatch):
  def seed_of_all(self):
    self.turns.add([self._turns_seed])
    return self._turns_seed

  monkeypatch.setattr(side_by_side.SideBySide, 'begin_sampling', seed_of_all)
  assert correlation(regression_by_chain()) > 0.9


def regression_by_chain():
  posterior = test_law.fit_regression(60, num_chains=NUM_CHAINS)
  assert posterior.num_chains == NUM_CHAINS
  return [test_law.coefficients(chain) for chain in posterior.chains]


def correlation(draws):
  """The mean over pairs of chains and coordinates of their correlation."""
  draws = np.asarray(draws)
  z = draws - np.mean(draws, axis=(0, 1, 2))
  z /= np.std(z, axis=(0, 1, 2))
  return np.mean([np.mean(z[j] * z[k]) for j, k in itertools.combinations(
      range(len(draws)), 2)])


@pytest.mark.slow
@pytest.mark.parametrize('kind', [
    'own', *(pytest.param(kind, marks=pytest.mark.weekly)
             for kind in ('planted', 'epochs'))])
def test_minibatches_are_the_chains_own(kind, monkeypatch):
  """At T = 0 the spread of the draws is that of the minibatches' noise.

  Draws ten steps apart are nearly independent: 3 times 300 numbers. Two chains
  on the same rows have the correlation 1; on rows of their own none, where all
  rows are drawn independently: a false alarm once in a million. Where two
  chains share out the rows of an epoch, and move little in one, it is near -1.
  """
  if kind == 'planted':
    monkeypatch.setattr(
        side_by_side.SideBySide, 'deal', lambda self, data, step: lambda chain:
        keras.tree.map_structure(lambda leaf: leaf[:5], data))
  x, y, _, _ = test_law.regression()
  model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.),
                steps_per_execution=10)
  sampling = models.make_sampling(
      functools.partial(
          sgmcmc.SGLD, step_size=4e-4 if kind == 'epochs' else 2e-3,
          temperature=0.),
      num_examples=100, num_burnin_steps=199, num_steps_between_results=9,
      num_chains=2)
  data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100, seed=0)
  if kind != 'epochs':
    data = tf.data.Dataset.random(seed=1).map(
        lambda i: (tf.gather(x, i % 100), tf.gather(y, i % 100)))
  data = data.batch(10, drop_remainder=True).repeat()
  model.fit(data, steps_per_epoch=3190, verbose=0, callbacks=[sampling])
  draws = [np.concatenate([w.reshape([-1, 1, w[0].size])
                           for w in chain.weights.values()], axis=2)
           for chain in sampling.posterior.chains]
  assert len(draws[0]) == 300
  least, most = {
      'own': test_law.Z * (1.2 / 900.)**0.5 * np.array([-1., 1.]),
      'planted': (0.9, 1.), 'epochs': (-1., -0.8)}[kind]
  assert least < correlation(draws) < most, correlation(draws)


@pytest.mark.slow
def test_each_chain_is_trained_by_itself():
  """By the compiled optimizer on its rows, number for number."""
  make_model = functools.partial(
      models.classifier, optimizer='adam', run_eagerly=True)
  seed, given = tf.constant([3, 4]), starts()
  sampling = models.make_sampling(
      functools.partial(sgmcmc.SGLD, step_size=1e-20), start_epoch=2,
      **models.starting_from(given), seed=seed)
  history = models.fit(make_model(), sampling, epochs=3).history
  losses = []
  for j, chain in enumerate(sampling.posterior.chains):
    model = make_model()
    model.set_weights(given[j])
    found = model.fit(
        own_batches(j, seed, 6), steps_per_epoch=3, epochs=2, verbose=0)
    losses.append(found.history['loss'])
    for ours, theirs in zip(chain.weights.values(), model.get_weights()):
      np.testing.assert_allclose(ours[-1], theirs, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(
      history['loss'][:2], np.mean(losses, axis=0), rtol=1e-4)


@pytest.mark.slow
def test_goes_on_after_kills_bit_for_bit(tmp_path, monkeypatch):
  monkeypatch.setattr(store, 'COMMIT_SECONDS', 0.)
  monkeypatch.setattr(store, '_DURATIONS', 0.)
  arguments = dict(num_chains=2, num_burnin_steps=1, start_epoch=1)
  whole = going_on.run(4, **arguments)
  pieces = going_on.run(
      4, kills=[1, 5], directory=tmp_path, **arguments)
  going_on.assert_same(pieces, whole)
  _, sampling, _ = whole
  loaded = sgmcmc.keras.PosteriorSamples.load(tmp_path, models.classifier())
  assert [len(chain) for chain in loaded.chains] == [8, 8]
  for ours, theirs in zip(
      loaded.chains[1].weights.values(),
      sampling.posterior.chains[1].weights.values()):
    np.testing.assert_array_equal(ours, theirs)
  with pytest.raises(ValueError, match='num_chains'):
    going_on.run(4, directory=tmp_path, **{**arguments, 'num_chains': 3})


def test_a_chain_that_fails_is_named():
  """That which has row 45 in step 3; the draws before are kept."""
  x, y = models.classes()
  x[45] = np.inf
  sampling = models.make_sampling(num_chains=2)
  bad, = [j for j in range(2) if 5 in rows_of(j, 3, 10, [0, 0], 2)]
  with pytest.warns(RuntimeWarning, match=(
      fr'at step 3 of the chain .* chain {bad}\b.* The 4 draw\(s\) made')):
    models.fit(
        models.classifier(run_eagerly=True), sampling, epochs=3, x=x, y=y)
  assert [len(chain) for chain in sampling.posterior.chains] == [2, 2]
  assert np.all(np.isfinite(sampling.posterior.weights.popitem()[1]))


def normalised():
  model = keras.Sequential([
      keras.Input([4]), keras.layers.Dense(5), keras.layers.Dropout(0.5),
      keras.layers.BatchNormalization(), keras.layers.Dense(3)])
  model.compile('sgd', models.classifier().loss)
  return model


@pytest.mark.slow
def test_moving_statistics_are_those_of_each_chain():
  x, _ = models.classes()
  model, given = normalised(), starts(2, normalised)
  sampling = models.make_sampling(**models.starting_from(given))
  models.fit(model, sampling, batch_size=50)
  draws = sampling.posterior.arrays()
  name, = (name for name in draws if name.endswith('moving_mean'))
  for chain, (kernel, bias, *_) in enumerate(given):
    mean = draws[name][draws['chain'] == chain]
    np.testing.assert_allclose(
        mean, [np.mean(x @ kernel + bias, axis=0)] * len(mean), rtol=1e-4,
        atol=1e-5)


@pytest.mark.weekly
@pytest.mark.slow
def test_chosen_settings_and_the_summary(capsys, tmp_path):
  """A rate that is lowered, a temperature by validation, and what is said."""
  x, y = models.classes()
  sampling = sgmcmc.keras.PosteriorSampling(
      num_chains=2, temperature='validation', seed=0)
  models.fit(
      models.classifier(), sampling, epochs=20, verbose=2, batch_size=16,
      validation_data=(x, y))
  said = capsys.readouterr().out
  assert 'each of the 2 chains has 16 rows, drawn from all 50' in said
  assert len(sampling.validation_scores) >= 3
  rows = sampling.summary(x).rows
  assert [row.quantity for row in rows] == [
      'rank R-hat of predictions', 'effective draws of predictions',
      'rank R-hat of the weights', 'effective draws of the weights',
      'kinetic temperature / T',
      'times a chain was taken back after the adaptation'], str(rows)
  assert 'rank R-hat of predictions' in said
  sampling.posterior.save(tmp_path / 'draws')
  loaded = sgmcmc.keras.PosteriorSamples.load(
      tmp_path / 'draws', models.classifier())
  assert loaded.num_chains == 2
  assert sgmcmc.diagnostics.summary(loaded, x).rows == rows[:-2]


class Subclassed(keras.Model):

  def __init__(self, width):
    super().__init__()
    self.layer = keras.layers.Dense(width)

  def call(self, x):
    return self.layer(x)


def test_starts():
  """Fresh ones differ, and come of the seed; given ones have to fit."""
  spec = tf.TensorSpec([None, 4])
  seed = tf.constant([0, 1])
  model = models.classifier()
  first, again = (starts_lib.fresh(model, spec, seed, 3) for _ in range(2))
  np.testing.assert_array_equal(first[1][0], again[1][0])
  assert np.min(np.abs(first[0][0] - first[1][0])) > 1e-6
  subclassed = Subclassed(3)
  subclassed(np.zeros([1, 4]))
  with pytest.raises(ValueError, match='(?s)cannot make.*initial_weights'):
    starts_lib.fresh(subclassed, spec, seed, 3)
  with pytest.raises(ValueError, match=r'initial_weights\[1\] has arrays of'):
    starts_lib.matching(model, [first[0], first[0][:1]], model.weights)
  with pytest.raises(ValueError, match='other values for .* not trained'):
    starts_lib.matching(model, first, [])
  with pytest.warns(UserWarning, match='Chains 0 and 1 start from the same'):
    starts_lib.warn_of_twins([first[0], first[0]])


@pytest.mark.parametrize('number, weights, error, message', [
    (0, None, ValueError, 'num_chains'),
    (2, [[[1.]]], ValueError, 'has 1 entries'),
    (2, 3, TypeError, 'a list with one list'),
    (1, [[[1.]]], ValueError, 'raise num_chains'),
    (2, [[['a']], [['b']]], TypeError,
     r'initial_weights\[0\]\[0\] holds texts'),
    (2, 2 * [[[[1., 2.], [3.]]]], (TypeError, ValueError),
     r'initial_weights\[0\]\[0\] is'),
])
def test_starts_that_are_refused(number, weights, error, message):
  with pytest.raises(error, match=message):
    sgmcmc.keras.Chains(number, initial_weights=weights)


@pytest.mark.parametrize('arguments, error, message', [
    (dict(num_chains=0), ValueError, 'num_chains'),
    (dict(num_chains=2, **models.at_times(1.),
          kernel=sgmcmc.StochasticBouncyParticleSampler), ValueError,
     'continuous time'),
])
def test_refused(arguments, error, message):
  with pytest.raises(error, match=message):
    models.make_sampling(**arguments)


def test_refused_in_fit():
  with pytest.raises(ValueError, match='several replicas'):
    side_by_side.check_replicas(2)
  chains = side_by_side.SideBySide(
      models.classifier(), sgmcmc.keras.Chains(2), tf.constant([0, 1]))
  with pytest.raises(TypeError, match='sparse tensors'):
    chains.begin((tf.SparseTensorSpec([None, 4]), tf.TensorSpec([None])))
  with pytest.raises(ValueError, match='one set of moving statistics'):
    chains.check_search()
