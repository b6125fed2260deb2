"""Students against what they have to learn, which is known exactly.

Inputs are the rows of an identity matrix, so that a layer without a bias has
free outputs for each, and the best student is the mixture itself.
"""

import keras
import numpy as np
import pytest
import scipy.special

import tfp_sgmcmc as sgmcmc

ROWS = 3
TOLERANCE = 1e-3


def posterior_of(loss, units, seed=0, num_draws=4):
  """Draws that disagree: normal outputs of standard deviation 1.5."""
  model = table(units)
  model.compile('sgd', loss)
  weights = 1.5 * np.random.default_rng(seed).normal(
      size=[num_draws, ROWS, units])
  return sgmcmc.keras.PosteriorSamples.from_arrays(model, [weights]), weights


def table(units, has_head=False):
  inputs = keras.Input([ROWS])
  dense = lambda units: keras.layers.Dense(
      units, use_bias=False)(inputs)
  outputs = dense(units)
  return keras.Model(
      inputs, [outputs, dense(1)] if has_head else outputs)


def teach(posterior, student, **arguments):
  """Steps of all rows, so that what is left is the optimiser's error."""
  x = np.tile(np.eye(ROWS, dtype=np.float32), [2000, 1])
  rate = keras.optimizers.schedules.CosineDecay(0.1, 1000)
  posterior.distill(
      student, x, optimizer=keras.optimizers.Adam(rate), batch_size=6 * ROWS,
      verbose=0, **{**dict(epochs=3), **arguments})
  return student(np.eye(ROWS, dtype=np.float32))


def mixture_of_classes(weights):
  return scipy.special.softmax(weights, axis=-1).mean(axis=0)


@pytest.mark.parametrize('is_sparse', [
    True, pytest.param(False, marks=pytest.mark.slow)])
def test_classes_are_the_mean_of_the_probabilities(is_sparse):
  loss = (keras.losses.SparseCategoricalCrossentropy if is_sparse
          else keras.losses.CategoricalCrossentropy)(from_logits=True)
  posterior, weights = posterior_of(loss, 3)
  student = table(3)
  found = scipy.special.softmax(teach(posterior, student), axis=-1)
  wanted = mixture_of_classes(weights)
  np.testing.assert_allclose(found, wanted, atol=TOLERANCE)
  # And not the probabilities of the mean logits.
  wrong = scipy.special.softmax(weights.mean(axis=0), axis=-1)
  assert np.max(np.abs(wrong - wanted)) > 50. * TOLERANCE
  # Compiled with the loss of the model.
  y = np.zeros(ROWS) if is_sparse else np.eye(3)[[0] * ROWS]
  np.testing.assert_allclose(
      student.evaluate(np.eye(ROWS), y, verbose=0),
      -np.log(found[:, 0]).mean(), rtol=1e-4)


@pytest.mark.slow
def test_one_probability():
  posterior, weights = posterior_of(
      keras.losses.BinaryCrossentropy(from_logits=True), 1)
  found = scipy.special.expit(teach(posterior, table(1)))
  np.testing.assert_allclose(
      found, scipy.special.expit(weights).mean(axis=0), atol=TOLERANCE)


def moments(weights):
  """Of the mixture, and its epistemic variance."""
  mean, scale = weights[..., :1], np.logaddexp(weights[..., 1:], 0.)
  epistemic = mean.var(axis=0)
  return mean.mean(axis=0), np.mean(scale**2, axis=0) + epistemic, epistemic


def check_numbers(outputs, weights):
  law = sgmcmc.keras.GaussianLikelihood().distribution(outputs)
  mean, variance, _ = moments(weights)
  # A step of Adam is 1e-3 of a standard deviation or so; targets are two.
  np.testing.assert_allclose(law.mean(), mean, atol=0.15)
  np.testing.assert_allclose(law.stddev(), np.sqrt(variance), rtol=0.06)


@pytest.mark.slow
def test_numbers_are_of_the_mixture_s_mean_and_variance():
  posterior, weights = posterior_of(sgmcmc.keras.GaussianLikelihood(), 2)
  check_numbers(teach(posterior, table(2)), weights)


@pytest.mark.weekly_after(1)
@pytest.mark.slow
@pytest.mark.parametrize('kind', ['classes', 'numbers'])
def test_a_planted_error_is_seen(kind, monkeypatch):
  """Mean logits; and the noise without what the draws disagree about."""
  posterior, weights = posterior_of(
      keras.losses.SparseCategoricalCrossentropy(from_logits=True)
      if kind == 'classes' else sgmcmc.keras.GaussianLikelihood(), 2)
  predict = type(posterior).predict

  def wrong(self, x, *args, **kwargs):
    mean, std = predict(self, x, *args, **kwargs)
    if kind == 'classes':
      return x @ scipy.special.softmax(weights.mean(axis=0), axis=-1), std
    return mean, np.sqrt(std**2 - x @ moments(weights)[2])

  monkeypatch.setattr(type(posterior), 'predict', wrong)
  found = teach(posterior, table(2))
  with pytest.raises(AssertionError):
    if kind == 'classes':
      np.testing.assert_allclose(
          scipy.special.softmax(found, axis=-1), mixture_of_classes(weights),
          atol=TOLERANCE)
    else:
      check_numbers(found, weights)


@pytest.mark.parametrize('kind', [
    'classes', pytest.param('numbers', marks=pytest.mark.slow)])
def test_second_output(kind):
  """Mutual information, or the standard deviation of the draws' means."""
  posterior, weights = posterior_of(
      keras.losses.SparseCategoricalCrossentropy(from_logits=True)
      if kind == 'classes' else sgmcmc.keras.GaussianLikelihood(
          center=4e5, unit=2e5), 2)
  _, found = teach(posterior, table(2, has_head=True))
  if kind == 'classes':
    p = scipy.special.softmax(weights, axis=-1)
    entropy = lambda p: -np.sum(p * np.log(p), axis=-1)
    wanted = (entropy(p.mean(axis=0)) - entropy(p).mean(axis=0))[:, np.newaxis]
  else:
    wanted = np.sqrt(moments(weights)[2])
  np.testing.assert_allclose(found, wanted, atol=TOLERANCE)


@pytest.mark.slow
def test_other_laws_by_samples():
  """The best Laplace law has the mixture's median, and mean distance of it."""
  loss = sgmcmc.keras.LaplaceLikelihood()
  posterior, _ = posterior_of(loss, 2)
  law = loss.distribution(teach(
      posterior, table(2), num_samples=3, epochs=1))
  samples = posterior.sample(np.eye(ROWS, dtype=np.float32), 20_000)
  median = np.median(samples, axis=0)
  # Samples of 6,000 targets: of a median a deviation of 1.25 sd / sqrt(6000).
  np.testing.assert_allclose(law.mean(), median, atol=0.25)
  np.testing.assert_allclose(
      law.scale, np.mean(np.abs(samples - median), axis=0), rtol=0.12)


def test_wrong_arguments():
  x = np.eye(ROWS, dtype=np.float32)
  posterior, _ = posterior_of(sgmcmc.keras.GaussianLikelihood(), 2)
  classes = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  three = keras.Model(
      inputs := keras.Input([ROWS]), [inputs, inputs, inputs])
  for call, error, message in (
      (lambda: posterior.distill(posterior.model, x), ValueError,
       'pass another one'),
      (lambda: posterior.distill('a', x), TypeError, 'a keras.Model'),
      (lambda: posterior.distill(table(2), iter([x])), TypeError, 'arrays of'),
      (lambda: posterior.distill(three, x), ValueError, 'one is needed'),
      (lambda: posterior.distill(table(2), x, loss=classes), ValueError,
       'both have to be'),
      (lambda: posterior.distill(table(2), x, num_samples=0), ValueError,
       'num_samples is 0')):
    with pytest.raises(error, match=message):
      call()
