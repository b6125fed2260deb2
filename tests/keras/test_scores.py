"""Scores of masked, soft and ignored targets, by sums written out in NumPy."""

import functools

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
import tensorflow_probability as tfp

from tests.keras import models
import tfp_sgmcmc as sgmcmc

PosteriorSamples = sgmcmc.keras.PosteriorSamples


def posterior_of(model, num_draws=3, seed=0):
  rng = np.random.default_rng(seed)
  return PosteriorSamples.from_arrays(
      model, [rng.normal(size=[num_draws, *v.shape])
              for v in model.trainable_variables])


def tagger(**arguments):
  model = keras.Sequential([
      keras.Input([5]), keras.layers.Embedding(10, 4, mask_zero=True),
      keras.layers.LSTM(3, return_sequences=True),
      keras.layers.Dense(3, activation='softmax')])
  model.compile(**{**dict(
      optimizer='sgd', loss='sparse_categorical_crossentropy',
      metrics=['accuracy']), **arguments})
  return model


def sequences():
  """Words and tags; those after the end of a sentence are 0."""
  rng = np.random.default_rng(0)
  words, tags = rng.integers(1, 10, [20, 5]), rng.integers(0, 3, [20, 5])
  is_there = np.arange(5) < rng.integers(1, 6, [20, 1])
  return np.where(is_there, words, 0), np.where(is_there, tags, 0), is_there


def brier_and_ece(p, t, num_bins=15):
  """Of probabilities and of the classes' shares, `[m, classes]` each."""
  confidence = p.max(axis=-1)
  right = t[np.arange(len(p)), p.argmax(axis=-1)]
  bins = np.ceil(confidence * num_bins)
  return np.mean(np.sum((p - t)**2, axis=-1)), sum(
      abs(np.sum((right - confidence)[bins == k]))
      for k in range(num_bins + 1)) / len(p)


def check(scores, p, t, prefix=''):
  brier, ece = brier_and_ece(p, t)
  assert np.isclose(scores[f'{prefix}brier'], brier, rtol=1e-4)
  assert np.isclose(scores[f'{prefix}ece'], ece, rtol=1e-4)


def test_what_a_mask_leaves_out_is_not_scored():
  words, tags, is_there = sequences()
  model = tagger()
  posterior = posterior_of(model)
  p = posterior.predict(words)
  scores = posterior.evaluate(words, tags, batch_size=7)
  hits = (p.argmax(axis=-1) == tags)[is_there]
  assert np.isclose(scores['accuracy'], hits.mean(), rtol=1e-5)
  check(scores, p[is_there], np.eye(3)[tags][is_there])
  # Of a single draw, Keras' own metric of the model with these weights.
  model.set_weights(posterior[0])
  own = model.evaluate(words, tags, verbose=0, return_dict=True)
  assert np.isclose(
      posterior[:1].evaluate(words, tags)['accuracy'], own['accuracy'])


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('how', ['ignore_class', 'sample_weight'])
def test_elements_that_do_not_count_are_left_out(how):
  """By the loss, or by weights of elements; the likelihood of all others."""
  words, tags, is_there = sequences()
  words = np.maximum(words, 1)  # Without a mask.
  kinds = dict(ignore_class=-1) if how == 'ignore_class' else {}
  model = tagger(
      loss=keras.losses.SparseCategoricalCrossentropy(**kinds), metrics=[])
  posterior = posterior_of(model)
  arguments = {}
  if how == 'ignore_class':
    tags = np.where(is_there, tags, -1)
  else:
    arguments['sample_weight'] = is_there.astype(np.float32)
  scores = posterior.evaluate(words, tags, batch_size=7, **arguments)
  p = posterior.predict(words, return_samples=True)
  tags = np.maximum(tags, 0)
  check(scores, p.mean(axis=0)[is_there], np.eye(3)[tags][is_there])
  log_p = np.log(np.take_along_axis(p, tags[np.newaxis, ..., np.newaxis], -1))
  log_p = np.sum(log_p[..., 0] * is_there, axis=-1)
  nll = -np.mean(np.log(np.mean(np.exp(log_p), axis=0)))
  assert np.isclose(scores['nll'], nll, rtol=1e-4)


@pytest.mark.parametrize('loss', [
    'binary_crossentropy', 'categorical_crossentropy'])
def test_targets_may_be_probabilities(loss):
  """An autoencoder's pixels, or labels that several people gave."""
  is_binary = loss == 'binary_crossentropy'
  model = keras.Sequential([keras.Input([4]), keras.layers.Dense(
      4, activation='sigmoid' if is_binary else 'softmax')])
  model.compile('sgd', loss)
  posterior = posterior_of(model)
  rng = np.random.default_rng(1)
  x = rng.uniform(size=[30, 4]).astype(np.float32)
  p = posterior.predict(x)
  # As right as can be, up to a hundredth.
  t = np.clip(p + rng.uniform(-0.01, 0.01, p.shape), 0., 1.)
  if not is_binary:
    t /= t.sum(axis=-1, keepdims=True)
  scores = posterior.evaluate(x, t.astype(np.float32))
  if is_binary:
    p, t = (np.stack([1. - a, a], axis=-1).reshape([-1, 2]) for a in (p, t))
  check(scores, p, t)
  assert scores['brier'] < 0.001 and scores['ece'] < 0.01


def test_counts_of_words_are_shares_and_rows_without_any_are_left_out():
  model = keras.Sequential([
      keras.Input([2]), keras.layers.Dense(3, activation='softmax')])
  model.compile('sgd', 'categorical_crossentropy')
  posterior = posterior_of(model)
  x = np.random.default_rng(0).normal(size=[3, 2]).astype(np.float32)
  counts = np.array([[2., 0., 2.], [0., 0., 0.], [0., 5., 0.]])
  check(posterior.evaluate(x, counts), posterior.predict(x)[[0, 2]],
        np.array([[0.5, 0., 0.5], [0., 1., 0.]]))


def test_weights_of_several_outputs_multiply_their_likelihoods():
  inputs = keras.Input([2])
  model = keras.Model(inputs, {
      name: keras.layers.Dense(1, name=name)(inputs) for name in 'ab'})
  model.compile('sgd', {
      name: sgmcmc.keras.GaussianLikelihood(scale=1.) for name in 'ab'})
  posterior = posterior_of(model, num_draws=1)
  rng = np.random.default_rng(0)
  x, y, w = (rng.uniform(size=[9, k]) for k in (2, 1, 1))
  scores = posterior.evaluate(
      x, {'a': y, 'b': y}, sample_weight={'a': w[:, 0], 'b': 0. * w[:, 0]})
  log_p = -0.5 * (posterior.predict(x)['a'] - y)**2 - 0.5 * np.log(2. * np.pi)
  assert np.isclose(scores['nll'], -np.mean(w * log_p), rtol=1e-4)


@pytest.mark.parametrize('call, message', [
    (lambda p, x, y: p.evaluate(x, y + 1), 'run from 1 to 3, and .* 3 classes'),
    (lambda p, x, y: p.log_likelihood(x, y - 1), 'run from -1 to 1'),
    (lambda p, x, y: p.evaluate(x, y + 0.5), 'whole class numbers'),
    (lambda p, x, y: p.evaluate(x, y, sample_weight=-np.ones(50)),
     r'sample_weight holds -1 \(50 of 50'),
    (lambda p, x, y: p.evaluate(x, y, sample_weight=np.full(50, np.nan)),
     'sample_weight holds nan'),
    (lambda p, x, y: p.evaluate(x, y, sample_weight=np.zeros(50)),
     'All of sample_weight are 0'),
    (lambda p, x, y: p.evaluate(x, y, sample_weight=np.ones([50, 2])),
     'sample weights have shape'),
], ids=['above', 'below', 'fraction', 'negative', 'nan', 'zeros', 'shape'])
def test_impossible_targets_and_weights(call, message):
  with pytest.raises(ValueError, match=message):
    call(posterior_of(models.classifier()), *models.classes())


def test_labels_of_a_binary_loss_are_from_0_to_1():
  """But for those of weight 0, which stand for missing ones."""
  model = keras.Sequential([
      keras.Input([4]), keras.layers.Dense(1, activation='sigmoid')])
  model.compile('sgd', 'binary_crossentropy')
  posterior = posterior_of(model)
  x, _ = models.classes()
  y = np.where(np.arange(50) % 2, 1., -1.)[:, np.newaxis]
  with pytest.raises(ValueError, match=r'targets hold -1.*\(y \+ 1\) / 2'):
    posterior.evaluate(x, y)
  scores = posterior.evaluate(x, y, sample_weight=(y[:, 0] > 0.) * 1.)
  p = posterior.predict(x)[1::2, 0]
  assert np.isclose(scores['brier'], np.mean(2. * (1. - p)**2), rtol=1e-4)


def test_a_mask_on_an_output_without_classes():
  """The mean of a masked sequence's errors."""
  model = keras.Sequential([
      keras.Input([5, 2]), keras.layers.Masking(),
      keras.layers.Dense(1, activation='softplus')])
  model.compile('sgd', 'poisson', metrics=['mae'])
  posterior = posterior_of(model)
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=[8, 5, 2]), rng.integers(0, 5, size=[8, 5, 1])
  x[:, 3:] = 0.
  error = np.abs(posterior.predict(x.astype(np.float32)) - y)[:, :3]
  scores = posterior.evaluate(x.astype(np.float32), y)
  assert np.isclose(scores['mae'], error.mean(), rtol=1e-4)
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
  with pytest.raises(ValueError, match="mask of the model's output has shape"):
    posterior.evaluate(x.astype(np.float32), y)


def test_predictions_sum_to_one_where_the_outputs_do_not():
  model = keras.Sequential([
      keras.Input([4]), keras.layers.Dense(3, activation='softplus')])
  model.compile('sgd', 'sparse_categorical_crossentropy')
  x, _ = models.classes()
  np.testing.assert_allclose(
      tf.reduce_sum(posterior_of(model).predict(x), axis=-1), 1., rtol=1e-5)


def test_targets_of_which_tfp_knows_no_mean():
  """They are scored and drawn; what needs a mean says so."""
  cuts = [-1., 0., 1.]
  model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
  model.compile(
      'sgd', metrics=['mae'], loss=sgmcmc.keras.DistributionLoss(
          lambda outputs: tfp.distributions.OrderedLogistic(
              cutpoints=tf.constant(cuts), loc=outputs)))
  posterior = posterior_of(model)
  rng = np.random.default_rng(0)
  x = rng.normal(size=[50, 2]).astype(np.float32)
  y = rng.integers(0, 4, [50, 1])
  each = posterior.predict(iter([x]), return_samples=True)
  # P(y <= k) is the logistic function of cut k minus the output.
  below = scipy.special.expit(np.array(cuts) - np.float64(each))
  below = np.concatenate(
      [np.zeros_like(each), below, np.ones_like(each)], axis=-1)
  p = np.diff(below).mean(axis=0)
  scores = posterior.evaluate(x, y)
  assert scores['nll'] == pytest.approx(
      -np.log(np.take_along_axis(p, y, axis=1)).mean(), rel=1e-5)
  assert scores['mae'] == pytest.approx(
      np.abs(each.mean(axis=0) - y).mean(), rel=1e-5)
  draws = posterior.sample(x, 20_000, seed=0)
  # All rows of a sample are of one posterior draw: a share has a standard error
  # of .0014 or less.
  np.testing.assert_allclose(
      [np.mean(draws == k) for k in range(4)], p.mean(axis=0), atol=0.008)
  for call in (posterior.predict, posterior.uncertainty, functools.partial(
      posterior.predict, return_std=True)):
    with pytest.raises(ValueError, match='OrderedLogistic has no mean in TFP'):
      call(x)
  with pytest.raises(ValueError, match='is a distribution of integers'):
    posterior.interval(x, 0.9)
