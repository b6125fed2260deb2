"""Rows of a pipeline that are the same in each pass, and those that are not."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
from tests.keras import test_more_rows
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.fitting import all_rows

NUM_ROWS = 50


def slices():
  return tf.data.Dataset.from_tensor_slices(models.classes())


def twice(x, y):
  return 2. * x, y


def noisy(x, y):
  return x + tf.random.normal(tf.shape(x), dtype=x.dtype), y


SAME = {
    'map': lambda: slices().map(twice).shuffle(50).batch(7).prefetch(2),
    'of batches': lambda: slices().batch(7).map(twice),
    'after shuffling': lambda: slices().shuffle(50).map(twice).batch(7),
    'cached': lambda: slices().map(twice).cache().shuffle(50).batch(7),
    'a cache of noise': lambda: slices().map(noisy).cache().batch(7),
    'repeated': lambda: slices().map(twice).shuffle(9).repeat().batch(7),
    'without the rest': lambda: slices().map(twice).shuffle(50).batch(
        7, drop_remainder=True),
    'joined': lambda: tf.data.Dataset.zip(
        slices().map(lambda x, y: 2. * x), slices().map(lambda x, y: y)
        ).batch(7),
    'in parallel': lambda: slices().map(
        twice, num_parallel_calls=2, deterministic=False).batch(7),
}
OTHER = {
    'noise': lambda: slices().map(noisy).batch(7),
    'left out at random': lambda: slices().shuffle(50).take(40).batch(7),
    'filtered': lambda: slices().filter(lambda x, y: y > 0).batch(7),
    'of a generator': lambda: tf.data.Dataset.from_generator(
        lambda: iter([(np.zeros(2), 1)]), output_signature=(
            tf.TensorSpec([2]), tf.TensorSpec([], tf.int64))).batch(7),
    'in batches of batches': lambda: slices().map(twice).batch(5).batch(2),
    'without end': lambda: slices().map(twice).repeat().map(twice).batch(7),
    'more than it says': lambda: slices().concatenate(slices()).batch(7),
    'empty': lambda: slices().take(0).batch(7),
}


@pytest.mark.parametrize('name', SAME)
def test_rows_that_are_the_same_in_each_pass(name):
  x, y = all_rows.read(SAME[name](), NUM_ROWS + 6)
  wanted_x, wanted_y = models.classes()
  assert (x.dtype, y.dtype) == (wanted_x.dtype, wanted_y.dtype)
  if name == 'a cache of noise':
    assert x.shape == wanted_x.shape
  else:
    order, wanted = (np.lexsort(np.transpose(rows)) for rows in (x, wanted_x))
    np.testing.assert_allclose(
        x.numpy()[order], 2. * wanted_x[wanted], rtol=1e-6)
    np.testing.assert_array_equal(y.numpy()[order], wanted_y[wanted])


@pytest.mark.parametrize('name', OTHER)
def test_rows_that_are_not(name):
  tf.random.set_seed(0)  # With it two iterators give the same noise.
  assert all_rows.read(OTHER[name](), NUM_ROWS + 6) is None


def test_their_order_is_always_one():
  """In each process, in whatever order they come."""
  found = [all_rows.read(SAME[name](), NUM_ROWS)
           for name in ('map', 'after shuffling', 'in parallel')]
  for of_leaf in zip(*found):
    np.testing.assert_array_equal(of_leaf[1], of_leaf[0])
    np.testing.assert_array_equal(of_leaf[2], of_leaf[0])


def test_a_cache_in_a_file_that_is_being_written(tmp_path):
  data = slices().map(twice).cache(str(tmp_path / 'cache')).batch(7)
  iterator = iter(data)
  next(iterator)
  assert all_rows.read(data, NUM_ROWS) is None
  assert len(list(iterator)) == 7  # The rest comes all the same.


def test_a_generator_is_not_used_up():
  rows = iter([(np.zeros(2, np.float32), 1)] * 9)
  data = tf.data.Dataset.from_generator(lambda: rows, output_signature=(
      tf.TensorSpec([2]), tf.TensorSpec([], tf.int64))).apply(
          tf.data.experimental.assert_cardinality(9))
  assert all_rows.read(data.map(twice).batch(3), 9) is None
  assert len(list(data.batch(3))) == 3


def test_texts_are_told_apart():
  words = tf.constant([['ab', 'c'], ['a', 'bc'], ['ab', 'c']])
  data = tf.data.Dataset.from_tensor_slices({'words': words}).map(
      lambda row: {'words': tf.strings.lower(row['words'])})
  found, = all_rows.read(data.batch(2), 3)
  assert sorted(found.numpy().tolist()) == sorted(words.numpy().tolist())
  digests = all_rows._digests([words.numpy()])
  assert digests[0] == digests[2] != digests[1]


def network(num_features, num_classes):
  keras.utils.set_random_seed(0)
  model = keras.Sequential([
      keras.Input([num_features]), keras.layers.Dense(5, 'relu'),
      keras.layers.Dense(num_classes)])
  model.compile('adam', keras.losses.SparseCategoricalCrossentropy(
      from_logits=True))
  return model


def fit(data, epochs=6, make_model=lambda: network(4, 3), **arguments):
  sampling = sgmcmc.keras.PosteriorSampling(seed=0, **arguments)
  make_model().fit(data, epochs=epochs, verbose=0, callbacks=[sampling])
  return sampling


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:The step size and the scales')
def test_the_chain_is_that_of_arrays_with_these_rows():
  """Bit for bit, by defaults; with other rows in each pass it is another."""
  rows = tf.data.Dataset.from_tensor_slices(tuple(  # In their order.
      all_rows.read(slices().map(twice).batch(5), NUM_ROWS)))
  arrays, ours, noise = (fit(data.batch(5)) for data in (
      rows, rows.map(lambda x, y: (x, y)), rows.map(noisy)))
  for wanted, found in zip(arrays.posterior.weights.values(),
                           ours.posterior.weights.values()):
    np.testing.assert_array_equal(found, wanted)
  assert ours.settings == arrays.settings
  assert ours.settings['num_chains'] == 4
  assert ours.settings['num_steps_per_batch'] > 1
  assert noise.settings['num_chains'] == 1
  assert noise.settings['num_steps_per_batch'] == 1
  assert test_more_rows.num_gradients(noise) == 5


def passes_and_reads(monkeypatch, **arguments):
  """How often `fit` goes through the rows, and how often they are read for it.

  A read is two passes.
  """
  passes, reads, real = [], [], all_rows.read

  def note(x, y):
    y = tf.ensure_shape(tf.numpy_function(
        lambda y: [passes.append(1), y][1], [y], y.dtype), [])
    return x, y

  with monkeypatch.context() as patch:
    patch.setattr(
        all_rows, 'read', lambda *args: reads.append(1) or real(*args))
    fit(slices().map(note).batch(5), **arguments)
  return len(passes) / NUM_ROWS - 2 * len(reads), len(reads)


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:The step size and the scales')
def test_they_are_read_where_they_would_be_used(monkeypatch):
  passes, reads = passes_and_reads(monkeypatch, num_more_rows=0)
  assert passes >= 6 and reads == 0  # Six epochs.
  assert passes_and_reads(
      monkeypatch, num_more_rows=7, num_chains=1) == (passes, 1)
  # Steps of several batches are made with the first: the others stay unread.
  fewer, reads = passes_and_reads(monkeypatch)
  assert 1 <= fewer < passes and reads == 1
