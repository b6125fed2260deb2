"""Predictions from draws, against sums written out in NumPy."""

import pathlib

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import store
from tfp_sgmcmc.keras.draws import model_draws as draws_lib
from tfp_sgmcmc.keras.draws import predictions
from tfp_sgmcmc.keras.fitting import side_by_side
from tfp_sgmcmc.keras.model import network

NUM_DRAWS = 5


def make_posterior(seed=0, **compile_arguments):
  model = models.classifier(**compile_arguments)
  rng = np.random.default_rng(seed)
  arrays = [
      rng.normal(size=[NUM_DRAWS, *v.shape]).astype(np.float32)
      for v in model.trainable_variables]
  return model, sgmcmc.keras.PosteriorSamples.from_arrays(model, arrays)


def probabilities(posterior, x):
  """Class probabilities of each draw, by hand."""
  hidden, logits = posterior.weights.values()
  hidden = np.tanh(np.einsum('nd,sdh->snh', x, hidden))
  return scipy.special.softmax(
      np.einsum('snh,shk->snk', hidden, logits), axis=-1)


def test_predict_means_probabilities_whatever_the_sizes():
  x, _ = models.classes()
  model, posterior = make_posterior()
  before = [w.copy() for w in model.get_weights()]
  p = probabilities(posterior, x)
  for sizes in (dict(), dict(batch_size=7, draw_batch_size=2)):
    np.testing.assert_allclose(
        posterior.predict(x, **sizes), p.mean(axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        posterior.predict(x, return_samples=True, **sizes), p, rtol=1e-4,
        atol=1e-6)
  data = tf.data.Dataset.from_tensor_slices(x).batch(20)
  np.testing.assert_allclose(
      posterior.predict(data), p.mean(axis=0), rtol=1e-4, atol=1e-6)
  for a, b in zip(model.get_weights(), before):
    np.testing.assert_array_equal(a, b)


def test_one_compiled_function_for_all_draws_and_batches():
  x, _ = models.classes()
  _, posterior = make_posterior()
  with models.made_by(network, 'forward') as made:
    posterior.predict(x, batch_size=20, draw_batch_size=2)
    traces = len(made)  # In a program the model runs as it is traced.
    posterior.predict(x, batch_size=11, draw_batch_size=3)
    posterior[1:].predict(x, batch_size=11, draw_batch_size=2)
  assert len(made) == traces
  assert 1 <= traces <= 3


def test_predictive_entropy():
  x, _ = models.classes()
  _, posterior = make_posterior()
  p = probabilities(posterior, x)
  entropy = posterior.predictive_entropy(x, batch_size=20, draw_batch_size=2)
  total = scipy.special.entr(p.mean(axis=0)).sum(axis=-1)
  aleatoric = scipy.special.entr(p).sum(axis=-1).mean(axis=0)
  np.testing.assert_allclose(entropy.total, total, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(entropy.aleatoric, aleatoric, rtol=1e-4,
                             atol=1e-6)
  np.testing.assert_allclose(entropy.epistemic, total - aleatoric, rtol=1e-3,
                             atol=1e-5)


@pytest.mark.parametrize('dataset', [False, True])
def test_evaluate(dataset):
  x, y = models.classes()
  _, posterior = make_posterior()
  p = probabilities(posterior, x).mean(axis=0)
  if dataset:
    scores = posterior.evaluate(
        tf.data.Dataset.from_tensor_slices((x, y)).batch(20))
  else:
    scores = posterior.evaluate(x, y, batch_size=20, draw_batch_size=2)
  correct = p.argmax(axis=-1) == y
  confidence = p.max(axis=-1)
  edges = np.linspace(0., 1., 16)
  ece = sum(
      abs(np.sum((correct - confidence)[(confidence >= a) & (confidence < b)]))
      for a, b in zip(edges[:-1], edges[1:])) / len(y)
  expected = {
      'accuracy': correct.mean(),
      'nll': -np.log(p[np.arange(len(y)), y]).mean(),
      'brier': np.sum((p - np.eye(3)[y])**2, axis=-1).mean(),
      'ece': ece}
  assert set(scores) == set(expected)
  for name, value in expected.items():
    assert np.isclose(scores[name], value, rtol=1e-4), name


def test_binary_evaluate_pools_probabilities():
  model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
  model.compile(
      'sgd', keras.losses.BinaryCrossentropy(from_logits=True),
      metrics=[keras.metrics.BinaryAccuracy(threshold=0.)])
  posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
      model, [np.array([[[9.], [0.]], [[-1.], [0.]]], np.float32),
              np.zeros([2, 1], np.float32)])
  x = np.array([[1., 0.], [-1., 0.]], np.float32)
  scores = posterior.evaluate(x, np.array([1, 0]))
  p = scipy.special.expit(np.array([[9., -9.], [-1., 1.]])).mean(axis=0)
  assert np.isclose(scores['nll'], -np.log([p[0], 1. - p[1]]).mean(), rtol=1e-4)
  assert np.isclose(
      scores['brier'], np.mean([2. * (1. - p[0])**2, 2. * p[1]**2]), rtol=1e-4)
  assert scores['binary_accuracy'] == 1.


def test_regression_predicts_the_mean_of_a_learned_scale():
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(2)])
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood())
  posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
      model, [np.array([[[1., 0.]], [[3., 1.]]], np.float32),
              np.zeros([2, 2], np.float32)])
  x = np.array([[2.], [4.]], np.float32)
  np.testing.assert_allclose(posterior.predict(x), [[4.], [8.]])
  scores = posterior.evaluate(x, np.array([[4.], [8.]], np.float32))
  scale = np.log1p(np.exp([[0., 0.], [2., 4.]]))
  log_p = -0.5 * (np.array([[2., 4.], [-2., -4.]]) / scale)**2 - np.log(
      scale) - 0.5 * np.log(2. * np.pi)
  expected = -np.mean(scipy.special.logsumexp(log_p, axis=0) - np.log(2.))
  assert np.isclose(scores['nll'], expected, rtol=1e-5)
  with pytest.raises(ValueError, match='crossentropy'):
    posterior.predictive_entropy(x)


def test_several_outputs():
  rng = np.random.default_rng(0)
  inputs = keras.Input([2])
  model = keras.Model(inputs, {
      'value': keras.layers.Dense(1, name='value')(inputs),
      'kind': keras.layers.Dense(3, name='kind')(inputs)})
  model.compile('sgd', {
      'value': sgmcmc.keras.GaussianLikelihood(scale=1.),
      'kind': keras.losses.SparseCategoricalCrossentropy(from_logits=True)})
  posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
      model, [rng.normal(size=[4, *v.shape]).astype(np.float32)
              for v in model.trainable_variables])
  x = rng.normal(size=[9, 2]).astype(np.float32)
  y = {'value': rng.normal(size=[9, 1]).astype(np.float32),
       'kind': rng.integers(0, 3, 9)}
  predictions = posterior.predict(x, return_samples=True)
  assert predictions['value'].shape == (4, 9, 1)
  log_p = -0.5 * (predictions['value'][..., 0] - y['value'][:, 0])**2 - (
      0.5 * np.log(2. * np.pi))
  log_p += np.log(np.take_along_axis(
      predictions['kind'], np.tile(y['kind'], [4, 1])[..., np.newaxis],
      axis=-1)[..., 0])
  scores = posterior.evaluate(x, y, batch_size=4)
  expected = -np.mean(scipy.special.logsumexp(log_p, axis=0) - np.log(4.))
  assert np.isclose(scores['nll'], expected, rtol=1e-4)
  assert {'kind_brier', 'kind_ece'} <= set(scores)


def test_indexing():
  _, posterior = make_posterior()
  arrays = list(posterior.weights.values())
  assert len(posterior) == NUM_DRAWS and len(list(posterior)) == NUM_DRAWS
  np.testing.assert_array_equal(posterior[-1][0], arrays[0][-1])
  np.testing.assert_array_equal(posterior[1:3][0][1], arrays[1][1])
  assert posterior[1:4:2].steps == [2, 4]
  with pytest.raises(IndexError):
    posterior[NUM_DRAWS]


def test_uncompiled_model_says_what_it_needs():
  x, _ = models.classes()
  _, posterior = make_posterior()
  model = keras.Sequential(models.classifier().layers)
  bare = sgmcmc.keras.PosteriorSamples.from_arrays(
      model, list(posterior.weights.values()))
  with pytest.raises(ValueError, match='model.compile'):
    bare.predict(x)


def test_save_and_load(tmp_path):
  x, _ = models.classes()
  _, posterior = make_posterior()
  posterior.save(tmp_path / 'draws')
  posterior[3:0:-2].save(tmp_path / 'some')
  model = models.classifier()
  loaded = sgmcmc.keras.PosteriorSamples.load(tmp_path / 'draws', model)
  np.testing.assert_array_equal(loaded.predict(x), posterior.predict(x))
  assert loaded.steps == posterior.steps
  some = sgmcmc.keras.PosteriorSamples.load(tmp_path / 'some', model)
  assert some.steps == [4, 2]
  np.testing.assert_array_equal(some[1][0], posterior[1][0])
  with pytest.raises(FileExistsError, match='holds draws already'):
    posterior.save(tmp_path / 'draws')
  with pytest.raises(FileExistsError, match='no chain that could go on'):
    models.fit(
        model, models.make_sampling(directory=tmp_path / 'draws'))


def test_weights_are_found_by_their_paths_or_their_order(tmp_path):
  def network(*names):
    model = keras.Sequential([
        keras.Input([2]), *(keras.layers.Dense(2, name=n) for n in names)],
        name='network')
    model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
    return model

  arrays = [np.full([1, *v.shape], k, np.float32)
            for k, v in enumerate(network('a', 'b').trainable_variables)]
  sgmcmc.keras.PosteriorSamples.from_arrays(
      network('a', 'b'), arrays).save(tmp_path)

  def load(*names):
    posterior = sgmcmc.keras.PosteriorSamples.load(tmp_path, network(*names))
    return [int(array.ravel()[0]) for array in posterior[0]]

  assert load('a', 'b') == [0, 1, 2, 3]
  assert load('b', 'a') == [2, 3, 0, 1]
  assert load('dense_7', 'dense_8') == [0, 1, 2, 3]


def test_weights_of_one_path_are_kept_apart(tmp_path):
  class Scales(keras.layers.Layer):

    def build(self, shape):
      self.a, self.b = (
          self.add_weight(name='w', shape=shape[1:]) for _ in range(2))

    def call(self, x):
      return x * self.a + self.b

  model = keras.Sequential([keras.Input([2]), Scales()])
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
  posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
      model, [np.ones([3, 2]), np.zeros([3, 2])])
  posterior.save(tmp_path)
  weights = sgmcmc.keras.PosteriorSamples.load(tmp_path, model).weights
  assert [float(w.mean()) for w in weights.values()] == [1., 0.]


@pytest.mark.slow
def test_lora_draws_are_what_was_sampled(tmp_path):
  """Keras would merge the low-rank part into the kernel, and set it to zero."""
  x, _ = models.classes()

  def classifier():
    model = models.classifier()
    model.get_layer('hidden').enable_lora(2)
    model.get_layer('logits').trainable = False
    model.compile('sgd', keras.losses.SparseCategoricalCrossentropy(
        from_logits=True), run_eagerly=True)
    return model

  model = classifier()
  sampling = models.make_sampling(directory=tmp_path / 'fit')
  models.fit(model, sampling, epochs=1)
  assert len(sampling.posterior[0]) == 2
  sampling.posterior.save(tmp_path / 'saved')
  fresh = classifier()
  for name in ('fit', 'saved'):
    loaded = sgmcmc.keras.PosteriorSamples.load(tmp_path / name, fresh)
    np.testing.assert_array_equal(
        loaded.predict(x), sampling.posterior.predict(x))


@pytest.mark.slow
def test_draws_on_disk_as_they_come(tmp_path, monkeypatch):
  model = models.classifier(run_eagerly=True)
  in_memory, on_disk = (
      models.make_sampling(directory=directory)
      for directory in (None, tmp_path / 'draws'))
  models.fit(model, in_memory)
  monkeypatch.setattr(store, 'COMMIT_SECONDS', 0.)
  monkeypatch.setattr(store, '_DURATIONS', 0.)
  written = []
  watch = keras.callbacks.LambdaCallback(
      on_train_batch_end=lambda batch, logs: written.append(
          len(store.read_draws(tmp_path / 'draws', 'fit'))))
  models.fit(
      models.classifier(run_eagerly=True), on_disk, callbacks=[watch])
  assert written == [1, 2, 3, 4, 5, 6]
  assert on_disk.posterior.steps == in_memory.posterior.steps
  for a, b in zip(on_disk.posterior.weights.values(),
                  in_memory.posterior.weights.values()):
    np.testing.assert_array_equal(a, b)
  other = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
  with pytest.raises(ValueError, match='shapes'):
    sgmcmc.keras.PosteriorSamples.load(tmp_path / 'draws', other)
  with pytest.raises(FileNotFoundError):
    sgmcmc.keras.PosteriorSamples.load(tmp_path, model)
  file = tmp_path / 'draws' / 'draws_00000000-00000000.npz'
  file.write_bytes(file.read_bytes()[:50])
  with pytest.raises(ValueError, match='00000000.npz is damaged'):
    _ = on_disk.posterior[0]


@pytest.mark.slow
def test_draws_wait_for_a_commit_no_longer_than_an_epoch(tmp_path):
  """And `fit` with the same callback adds to them."""
  sampling = models.make_sampling(directory=tmp_path)
  model = models.classifier()
  committed = []
  watch = keras.callbacks.LambdaCallback(
      on_epoch_end=lambda epoch, logs: committed.append(
          len(store.read_draws(tmp_path, 'fit'))))
  for _ in range(2):
    models.fit(model, sampling, epochs=2, callbacks=[watch])
    loaded = sgmcmc.keras.PosteriorSamples.load(tmp_path, model)
    assert loaded.steps == sampling.posterior.steps
  assert committed == [3, 6, 9, 12]


def test_draws_come_after_a_fit_without_any(tmp_path):
  model = models.classifier()
  alone = side_by_side.SideBySide(
      model, sgmcmc.keras.Chains(), tf.constant([0, 0]))
  kept = draws_lib.ModelDraws(model, store=draws_lib.new_store(tmp_path))
  kept.close()
  kept.open()
  kept.append(7, alone)
  assert len(kept) == 1 and kept.steps == [7]
  kept.store.commit(7, {})
  kept.close()
  kept.open()
  kept.append(9, alone)
  assert kept.steps == [7, 9]


def test_a_directory_in_use_and_one_left_by_an_interrupted_fit(tmp_path):
  class Interrupt(keras.callbacks.Callback):

    def on_train_batch_end(self, batch, logs=None):
      raise KeyboardInterrupt

  left = models.make_sampling(directory=tmp_path, num_burnin_steps=2)
  with pytest.raises(KeyboardInterrupt):
    models.fit(
        models.classifier(run_eagerly=True), left, callbacks=[Interrupt()])
  sampling = models.make_sampling(directory=tmp_path, num_burnin_steps=2)
  models.fit(models.classifier(run_eagerly=True), sampling)
  assert len(sgmcmc.keras.PosteriorSamples.load(
      tmp_path, models.classifier())) == 4


def test_export_weights(tmp_path):
  model, posterior = make_posterior()
  before = [w.copy() for w in model.get_weights()]
  files = posterior[1:3].export_weights(tmp_path)
  assert [pathlib.Path(file).name for file in files] == [
      'draw_000000.weights.h5', 'draw_000001.weights.h5']
  for a, b in zip(model.get_weights(), before):
    np.testing.assert_array_equal(a, b)
  other = models.classifier()
  other.load_weights(files[1])
  np.testing.assert_array_equal(other.get_weights()[0], posterior[2][0])
  with pytest.raises(FileExistsError, match='000000.weights.h5 is there'):
    posterior.export_weights(tmp_path)


def test_memory_is_bounded(monkeypatch):
  """No more draws and examples at a time than asked for."""
  x, _ = models.classes()
  _, posterior = make_posterior()
  seen = []
  batches = predictions.batches

  def spy(*arguments):
    for batch in batches(*arguments):
      seen.append(batch[0].shape[0])
      yield batch

  read = draws_lib.ModelDraws.read
  draws = []
  monkeypatch.setattr(predictions, 'batches', spy)
  monkeypatch.setattr(
      draws_lib.ModelDraws, 'read',
      lambda self, i: (draws.append(len(i)), read(self, i))[1])
  posterior.predict(x, batch_size=8, draw_batch_size=2)
  assert max(seen) == 8 and max(draws) == 2 and sum(draws) == NUM_DRAWS


def test_load_into_a_model_that_has_no_weights_yet(tmp_path):
  _, posterior = make_posterior()
  posterior.save(tmp_path / 'draws')

  class Subclass(keras.Model):

    def __init__(self):
      super().__init__()
      self.dense = keras.layers.Dense(3)

    def call(self, x):
      return self.dense(x)

  model = Subclass()
  model.compile(
      'sgd', keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  with pytest.raises(ValueError, match='call it on a batch of inputs first'):
    sgmcmc.keras.PosteriorSamples.load(tmp_path / 'draws', model).predict(
        models.classes()[0])
