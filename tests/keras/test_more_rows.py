"""Rows that a step of `fit` has beside those of its batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.keras import models
from tests.keras import test_going_on
from tests.keras import test_law
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import store
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.keras.fitting import more_rows

NUM_COLUMNS = 200
BATCH_SIZE = 20


def table(num_rows):
  rng = np.random.default_rng(0)
  x = rng.normal(size=[num_rows, 5]).astype(np.float32)
  return x, x[:, :1] + np.float32(0.1)


def network(*layers):
  return keras.Sequential([
      keras.Input([5]), *layers, keras.layers.Dense(2)])


def numbers(model, arrays, batch_size, wanted='auto', num_chains=1):
  data = tf.data.Dataset.from_tensor_slices(tuple(arrays)).batch(batch_size)
  return more_rows.number_of(wanted, more_rows.FitData(
      model, data, len(arrays[0]), batch_size), num_chains).rows


def test_how_many():
  small = network(keras.layers.Dense(10))
  wide = network(keras.layers.Dense(2000))
  assert numbers(small, table(10_000), 32) == 2016
  assert numbers(small, table(200), 32) == 100
  assert numbers(small, table(200), 50) == 100
  assert numbers(small, table(200), 51) == 0  # Noise is no concern then.
  assert numbers(wide, table(10_000), 32) == 2**22 // 16_002 - 32
  assert numbers(wide, table(10_000), 65) == 2**22 // 16_002 - 65
  assert numbers(wide, table(10_000), 66) == 0
  assert numbers(wide, table(10_000), 100) == 0
  assert numbers(wide, table(200), 100, wanted=150) == 150
  image = keras.Sequential([
      keras.Input([4, 4, 1]), keras.layers.Conv2D(3, 3),
      keras.layers.Flatten(), keras.layers.Dense(2)])
  assert numbers(image, [np.zeros([200, 4, 4, 1], np.float32)], 32) == 100
  # The products of loops are not known, but for a bound.
  recurrent, longer = (
      keras.Sequential([
          keras.Input([length, 5]), keras.layers.GRU(3), keras.layers.Dense(2)])
      for length in (4, 400))
  assert numbers(recurrent, [np.zeros([200, 4, 5], np.float32)], 32) == 100
  assert numbers(longer, [np.zeros([200, 400, 5], np.float32)], 32) == 0
  of_32 = keras.Sequential([
      keras.Input(batch_shape=[32, 4, 5]), keras.layers.GRU(3, stateful=True),
      keras.layers.Dense(2)])
  sequences = [np.zeros([200, 4, 5], np.float32)]
  assert numbers(of_32, sequences, 32) == 0
  with pytest.raises(ValueError, match='batches of 32 rows alone'):
    numbers(of_32, sequences, 32, wanted=7)
  # Each of four has as many as one has, with its part of the batch.
  assert numbers(small, table(10_000), 32, num_chains=4) == 2016 + 24
  assert numbers(small, table(200), 51, num_chains=4) == 38
  assert numbers(wide, table(10_000), 100, num_chains=4) == 0
  # Rows that are augmented, of which there are fewer different ones.
  data = tf.data.Dataset.from_tensor_slices((tf.zeros([200, 5]),)).batch(32)
  assert more_rows.number_of('auto', more_rows.FitData(
      small, data, 100, 32)).rows == 0


class InnerModel(keras.Model):
  """A model that is no graph of layers, around one that is."""

  def __init__(self):
    super().__init__()
    self.inner = keras.Sequential([keras.layers.Dense(2)])

  def call(self, x):
    return self.inner(x)


@pytest.mark.parametrize('make', [
    InnerModel, lambda: keras.Sequential([keras.layers.Dense(2)])])
def test_a_model_that_was_built_by_batches_of_one_size(make):
  """It is traced with their number of rows, and takes others."""
  model = make()
  model(tf.zeros([40, 5]))
  assert numbers(model, table(200), 40) == 100


@pytest.mark.parametrize('num_chains', [1, 3])
def test_rows_of_a_step_alone(num_chains):
  """Where no others come beside them, they are drawn in the batch's place."""
  x = np.arange(40)
  more = more_rows.MoreRows([tf.constant(x)], more_rows.Number(0, 7))
  more.draw_in_place(9)
  drawn = np.concatenate([
      more.added(lambda _: (tf.zeros([9], tf.int64),), num_chains,
                 tf.constant([0, k]))(tf.range(num_chains)[:, tf.newaxis])[0]
      for k in range(100)])
  assert drawn.shape == (100 * num_chains, 9)
  assert all(len(np.unique(rows)) == 9 for rows in drawn)
  # 22.5 each a chain on average, with an sd of 4.2 or less: 6 of these.
  counts = np.bincount(drawn.ravel(), minlength=40)
  assert np.all(np.abs(counts - 22.5 * num_chains) < 25. * num_chains**0.5)


@pytest.mark.parametrize('num_chains', [1, 3])
def test_rows_are_of_the_data_and_distinct(num_chains):
  x = np.arange(40)
  more = more_rows.MoreRows(
      [tf.constant(x, tf.float32), tf.constant(x, tf.int32)],
      more_rows.Number(15))

  def rows(chain):
    if chain.shape.rank:
      return tuple(
          tf.zeros([num_chains, 4], dtype) for dtype in (tf.float32, tf.int32))
    return tf.zeros([4]), tf.zeros([4], tf.int32)

  drawn = []
  for k in range(100):
    joined = more.added(rows, num_chains, tf.constant([0, k]))
    stacked = joined(tf.range(num_chains)[:, tf.newaxis])
    for chain in range(num_chains):
      x, y = joined(tf.constant(chain))
      assert x.dtype == tf.float32 and y.dtype == tf.int32
      np.testing.assert_array_equal(x, stacked[0][chain])
      np.testing.assert_array_equal(y, x)
      assert len(np.unique(x[4:])) == 15
      drawn.append(x[4:].numpy())
  counts = np.bincount(np.concatenate(drawn).astype(int), minlength=40)
  # Each is drawn 37.5 times a chain on average, with an sd of 4.8 or less: 6
  # of these are a false alarm in 10^7 counts.
  assert np.all(np.abs(counts - 37.5 * num_chains) < 29. * num_chains**0.5)


def coefficients(
    monkeypatch=None, batch_size=BATCH_SIZE, epochs=300, **arguments):
  """Draws of linear regressions by the default kernel, `[draws, columns, 3]`.

  With `monkeypatch` the rows that are added are all of the first half.
  """
  if monkeypatch is not None:
    right = more_rows.MoreRows.__init__
    monkeypatch.setattr(
        more_rows.MoreRows, '__init__', lambda self, arrays, number: right(
            self, [tf.concat(2 * [a[:len(a) // 2]], 0) for a in arrays],
            number))
  x, y, *_ = test_law.regression()
  keras.utils.set_random_seed(0)
  model = keras.Sequential(
      [keras.Input([2]), keras.layers.Dense(NUM_COLUMNS)])
  model.compile(
      'sgd', sgmcmc.keras.GaussianLikelihood(scale=test_law.NOISE),
      steps_per_execution=5)
  sampling = sgmcmc.keras.PosteriorSampling(
      prior=tfp.distributions.Normal(0., test_law.PRIOR_SCALE), seed=0,
      num_chains=1, start_epoch=0, num_burnin_steps=500,
      num_steps_between_results=19, **arguments)
  model.fit(
      x, np.repeat(y, NUM_COLUMNS, axis=1), epochs=epochs,
      batch_size=batch_size, verbose=0, callbacks=[sampling])
  assert num_gradients(sampling) == batch_size + 50
  return test_law.coefficients(sampling.posterior)


def errors(draws):
  """Of means in sds, and of sds as shares: the largest of each.

  All columns have the same minibatches, whose noise they share: with ten seeds
  the two were up to 0.34 and 0.11.
  """
  *_, mean, covariance = test_law.regression()
  sd = np.sqrt(np.diag(covariance))
  return (
      np.abs((draws.mean(axis=(0, 1)) - mean) / sd).max(),
      np.abs(draws.std(axis=(0, 1)) / sd - 1.).max())


@pytest.mark.weekly
@pytest.mark.slow
def test_regressions_have_the_exact_posterior():
  of_means, of_sds = errors(coefficients())
  assert of_means < 0.45 and of_sds < 0.15


@pytest.mark.weekly
@pytest.mark.slow
def test_planted_rows_that_are_not_all_are_seen(monkeypatch):
  of_means, _ = errors(coefficients(monkeypatch))
  assert of_means > 0.6  # With three seeds 0.96 to 1.02.


@pytest.mark.slow
def test_a_kernel_or_a_rate_of_the_user_has_the_batch_alone():
  for arguments in (dict(kernel=sgmcmc.SGNHT, learning_rate=0.1),
                    dict(learning_rate=0.1)):
    assert num_gradients(fit(models.classes(), 'auto', **arguments)) == 5
  assert num_gradients(fit(models.classes(), 7, **arguments)) == 12


def fit(data, num_more_rows, **arguments):
  model = models.classifier(optimizer='adam')
  sampling = sgmcmc.keras.PosteriorSampling(
      num_more_rows=num_more_rows, seed=0, **arguments)
  model.fit(*data, epochs=6, verbose=0, callbacks=[sampling], batch_size=(
      None if isinstance(data[0], tf.data.Dataset) else 5))
  return sampling


def num_gradients(sampling):
  """Rows a step; what the guard undid is not counted."""
  results = sampling.kernel_results
  undone = np.max(getattr(results, 'num_returns', 0))
  results = getattr(results, 'inner_results', results)
  used = np.max(results.gradient_estimator_results.num_gradients)
  return used / (np.max(results.step) + 1 - undone)


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('num_more_rows, number', [
    (0, 5), (7, 12), ('auto', 30)])
@pytest.mark.filterwarnings('ignore:The step size and the scales')
def test_each_step_has_them(num_more_rows, number):
  assert num_gradients(fit(models.classes(), num_more_rows)) == number


def slices():
  return tf.data.Dataset.from_tensor_slices(models.classes())


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:The step size and the scales')
def test_data_of_slices_of_arrays():
  """Rows are those of their arrays; not if they are others when they come."""
  x, y = models.classes()
  data = slices().cache().shuffle(50).batch(5).prefetch(2)
  assert num_gradients(fit((data,), 7)) == 12
  for kept, array in zip(compat.arrays_of(data), (x, y)):
    np.testing.assert_array_equal(kept, array)
  endless = slices().shuffle(50).repeat().batch(5)
  assert [len(kept) for kept in compat.arrays_of(endless)] == [len(x)] * 2
  # The rows of a partial batch, left out of each epoch, are rows all the same.
  data = slices().batch(8, drop_remainder=True)
  assert num_gradients(fit((data,), 7)) == 15
  for other in (
      slices().map(lambda x, y: (-x, y)).batch(5),
      slices().filter(lambda x, y: y > 0).batch(5),
      slices().take(40).batch(5), slices().batch(5).batch(2), slices()):
    assert compat.arrays_of(other) is None


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:The step size and the scales')
def test_other_data_than_arrays():
  # Rows that come twice an epoch count twice, and are not those of the arrays.
  # So do those that are others in each pass.
  for data in (
      slices().repeat(2).batch(5),
      slices().map(lambda x, y: (
          x + tf.random.normal([4], dtype=x.dtype), y)).batch(5)):
    assert num_gradients(fit((data,), 'auto')) == 5
  with pytest.raises(ValueError, match='num_more_rows is 7, and .* no arrays'):
    fit((data,), 7)


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:The step size and the scales')
def test_chains_have_rows_of_their_own():
  sampling = fit(models.classes(), 11, num_chains=2)
  assert num_gradients(sampling) == 3 + 11


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:The step size and the scales')
def test_the_next_fit_has_the_rows_of_its_own_data():
  """Also where the programs of the fit before are taken over, or cannot be."""
  x, y = models.classes()
  other = np.flip(x, axis=1), y
  alone = fit(other, 7).posterior.weights.values()
  model = models.classifier(optimizer='adam')
  found = []
  for data, number in (((x, y), 7), ((x, y), 9), (other, 7)):
    keras.utils.set_random_seed(0)
    model.set_weights(models.classifier().get_weights())
    model.optimizer.iterations.assign(0)
    model.compile('adam', model.loss, metrics=['accuracy'])
    sampling = sgmcmc.keras.PosteriorSampling(num_more_rows=number, seed=0)
    model.fit(
        *data, epochs=6, batch_size=5, verbose=0, callbacks=[sampling])
    found.append(list(sampling.posterior.weights.values()))
  for first, last, expected in zip(found[0], found[-1], alone):
    np.testing.assert_allclose(last, expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(last, first, atol=1e-3)


@pytest.mark.parametrize('value, error', [
    (-1, ValueError), ('most', ValueError), (2.5, TypeError),
    (None, TypeError)])
def test_numbers_that_are_refused(value, error):
  with pytest.raises(error, match='num_more_rows'):
    sgmcmc.keras.PosteriorSampling(num_more_rows=value)


def test_more_than_there_are():
  with pytest.raises(ValueError, match='num_more_rows is 51.*50 examples'):
    fit(models.classes(), 51)


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:The step size and the scales')
def test_goes_on_after_kills_with_the_same_rows(tmp_path, monkeypatch):
  monkeypatch.setattr(store, 'COMMIT_SECONDS', 0.)
  monkeypatch.setattr(store, '_DURATIONS', 0.)
  arguments = dict(
      num_more_rows=9, num_burnin_steps=4, num_steps_between_results=1)
  whole = test_going_on.run(4, **arguments)
  pieces = test_going_on.run(
      4, kills=[3, 7], directory=tmp_path, **arguments)
  test_going_on.assert_same(pieces, whole)


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:The step size and the scales')
def test_words_are_rows_as_numbers_are():
  """A chain on words, and one on what the network looks up for them."""
  rng = np.random.default_rng(0)
  words = np.array(['one', 'two', 'three'])[rng.integers(3, size=[60, 1])]
  y = rng.integers(2, size=60)
  lookup = keras.layers.StringLookup(
      vocabulary=['one', 'two', 'three'], num_oov_indices=0,
      output_mode='one_hot')

  def draws(x, *layers):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([*layers, keras.layers.Dense(2)])
    model.compile('adam', keras.losses.SparseCategoricalCrossentropy(
        from_logits=True))
    sampling = sgmcmc.keras.PosteriorSampling(
        num_more_rows=7, num_chains=1, seed=0)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
    model.fit(data, epochs=6, verbose=0, callbacks=[sampling])
    assert num_gradients(sampling) == 12
    return sampling.posterior.weights.values()

  of_words = draws(words, keras.Input([1], dtype='string'), lookup)
  of_numbers = draws(lookup(words), keras.Input([3]))
  for one, other in zip(of_words, of_numbers):
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)
