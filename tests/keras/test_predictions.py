"""Predictions of draws: one pass over the data, whatever brings them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.draws import model_draws as draws_lib
from tfp_sgmcmc.keras.draws import predictions

NUM_DRAWS = 5


@pytest.fixture(scope='module')
def posterior():
  model = models.classifier()
  rng = np.random.default_rng(0)
  return sgmcmc.keras.PosteriorSamples.from_arrays(
      model, [rng.normal(size=[NUM_DRAWS, *v.shape]).astype(np.float32)
              for v in model.trainable_variables])


class Sequence(keras.utils.PyDataset):
  """Batches of 20, 20 and 10 rows."""

  def __len__(self):
    return 3

  def __getitem__(self, k):
    return tuple(a[20 * k:20 * (k + 1)] for a in models.classes())


def generator():
  yield from (Sequence()[k] for k in range(3))


def shuffled(seed=None):
  return tf.data.Dataset.from_tensor_slices(models.classes()).shuffle(
      50, seed=seed, reshuffle_each_iteration=True).batch(16)


@pytest.mark.parametrize('make_data', [
    shuffled, Sequence, generator,
    lambda: shuffled().repeat().prefetch(1)],
    ids=['shuffled', 'PyDataset', 'generator', 'endless'])
def test_scores_do_not_depend_on_how_the_data_come(
    make_data, posterior, request):
  """A pipeline that shuffles has another order at each pass."""
  arguments = {}
  if 'endless' in request.node.name:
    # Four batches are one pass, the last of 2 rows.
    arguments = dict(steps=4)
  wanted = posterior.evaluate(*models.classes())
  scores = posterior.evaluate(make_data(), draw_batch_size=2, **arguments)
  assert scores.keys() == wanted.keys()
  for name, value in wanted.items():
    assert np.isclose(scores[name], value, rtol=1e-5), name


def test_predictions_of_a_pipeline_are_in_the_order_of_one_pass(posterior):
  x, _ = models.classes()
  wanted = posterior.predict(x)
  order = []
  dataset = tf.data.Dataset.range(50).shuffle(50).batch(16).map(
      lambda i: (tf.gather(x, i), tf.numpy_function(
          lambda i: (order.append(i), i)[1], [i], tf.int64)))
  found = posterior.predict(dataset, draw_batch_size=2)
  order = np.concatenate(order)
  assert len(order) == 50 and not np.array_equal(order, np.arange(50))
  np.testing.assert_allclose(found, wanted[order], rtol=1e-5, atol=1e-6)
  entropy = posterior.predictive_entropy(x)
  streamed = posterior.predictive_entropy(Sequence())
  for ours, theirs in zip(streamed, entropy):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_all_draws_are_used_on_a_block_before_the_next_is_read(
    posterior, monkeypatch):
  """Blocks of one batch: the same scores, and no more than that in memory."""
  wanted = posterior.evaluate(*models.classes(), batch_size=8)
  monkeypatch.setattr(predictions, '_BLOCK_BYTES', 1)
  reads = []
  read = draws_lib.ModelDraws.read
  monkeypatch.setattr(
      draws_lib.ModelDraws, 'read',
      lambda self, i: (reads.append(len(i)), read(self, i))[1])
  assert posterior.evaluate(
      *models.classes(), batch_size=8, draw_batch_size=2) == pytest.approx(
          wanted, rel=1e-5)
  assert reads == [2, 2, 1] * 7


def test_metrics_see_the_predictive_mean_of_a_learned_scale():
  """Of two columns, location and scale, the first alone is a prediction."""
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(2)])
  model.compile(
      'sgd', sgmcmc.keras.GaussianLikelihood(), metrics=['mae'])
  posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
      model, [np.full([3, 1, 2], 2., np.float32),
              np.tile(np.float32([1., -3.]), [3, 1])])
  x = np.arange(4, dtype=np.float32)[:, np.newaxis]
  y = 2. * x + 1.5
  scores = posterior.evaluate(x, y)
  assert np.isclose(scores['mae'], 0.5)
  np.testing.assert_allclose(posterior.predict(x), 2. * x + 1.)


@pytest.mark.parametrize('call, error, message', [
    (lambda p: p.predict([[0.1, 0.2, 0.3, 0.4]]), TypeError, 'np.asarray'),
    (lambda p: p.evaluate(np.zeros([5, 4], np.float32), np.zeros(4, int)),
     ValueError, r'different numbers of examples, \[4, 5\]'),
    (lambda p: p.evaluate(shuffled(), np.zeros(50, int)), ValueError,
     'batches of its own'),
    (lambda p: p.evaluate(shuffled().repeat()), ValueError, 'pass steps='),
    (lambda p: p.predict(models.classes()[0], steps=3), ValueError,
     'leave it out'),
])
def test_refusals(call, error, message, posterior):
  with pytest.raises(error, match=message):
    call(posterior)


class Counting(keras.layers.Layer):
  """Counts how often Python calls it."""
  calls = 0

  def call(self, x):
    self.calls += 1
    return x


def test_other_numbers_of_draws_and_examples_are_not_traced_anew():
  model = keras.Sequential([
      keras.Input([4]), Counting(), keras.layers.Dense(3)])
  model.compile('sgd', models.classifier().loss)
  posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
      model, [np.zeros([9, *v.shape]) for v in model.trainable_variables])
  x, y = models.classes()
  posterior.evaluate(x, y)
  calls = model.layers[0].calls
  for number in (1, 7, 50):
    posterior.evaluate(x[:number], y[:number], batch_size=20)
    posterior[:3].evaluate(x[:number], y[:number])
  assert model.layers[0].calls == calls


def test_draws_of_a_diverged_chain_are_named():
  model = models.classifier()
  posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
      model, [np.full([2, *v.shape], 3e38) for v in model.trainable_variables])
  with pytest.raises(ValueError, match=r'not finite.*posterior\[:k\]'):
    posterior.evaluate(*models.classes())
