"""Tests of the scores of predicted probabilities, by plain NumPy loops."""

import matplotlib.figure
import numpy as np
import pytest
import tensorflow as tf

from tfp_sgmcmc import diagnostics
from tfp_sgmcmc.diagnostics import plots


def forecast(num_examples=500, num_classes=4, seed=0):
  rng = np.random.default_rng(seed)
  probabilities = rng.dirichlet(np.ones(num_classes), num_examples)
  below = np.cumsum(probabilities, axis=1) < rng.uniform(size=[num_examples, 1])
  return probabilities, np.minimum(below.sum(axis=1), num_classes - 1)


def test_accuracy_and_negative_log_likelihood():
  probabilities, labels = forecast()
  right = [p.argmax() == y for p, y in zip(probabilities, labels)]
  assert float(diagnostics.accuracy(probabilities, labels)) == np.mean(right)
  nll = -np.mean([np.log(p[y]) for p, y in zip(probabilities, labels)])
  np.testing.assert_allclose(
      diagnostics.negative_log_likelihood(probabilities, labels), nll)


def test_brier_score():
  probabilities, labels = forecast()
  wanted = np.mean([
      sum((p[c] - (c == y))**2 for c in range(4))
      for p, y in zip(probabilities, labels)])
  np.testing.assert_allclose(
      diagnostics.brier_score(probabilities, labels), wanted)
  sure_and_wrong = diagnostics.brier_score(np.eye(3), np.array([1, 2, 0]))
  assert float(sure_and_wrong) == 2.


@pytest.mark.parametrize('num_bins', [1, 7, 15])
def test_calibration_error_and_curve(num_bins):
  probabilities, labels = forecast()
  confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
  error = 0.
  curve = diagnostics.reliability_curve(probabilities, labels, num_bins)
  for k in range(num_bins):
    inside = (confidence > k / num_bins) & (confidence <= (k + 1) / num_bins)
    assert int(curve.count[k]) == inside.sum()
    if not inside.any():
      assert np.isnan(curve.confidence[k]) and np.isnan(curve.accuracy[k])
      continue
    np.testing.assert_allclose(curve.confidence[k], confidence[inside].mean())
    np.testing.assert_allclose(curve.accuracy[k], right[inside].mean())
    error += inside.mean() * abs(
        right[inside].mean() - confidence[inside].mean())
  np.testing.assert_allclose(
      diagnostics.expected_calibration_error(probabilities, labels, num_bins),
      error)


def test_risk_and_coverage():
  """With ties; of a calibrated forecast the risk is 1 - mean confidence."""
  probabilities, labels = forecast()
  probabilities = np.round(probabilities, 1)
  probabilities[:, 0] += 1. - probabilities.sum(axis=1)
  probabilities = np.clip(probabilities, 0., 1.)
  probabilities /= probabilities.sum(axis=1, keepdims=True)
  confidence, wrong = probabilities.max(1), probabilities.argmax(1) != labels
  curve = diagnostics.risk_coverage_curve(probabilities, labels)
  levels = np.unique(confidence)[::-1]
  np.testing.assert_allclose(
      curve.coverage, [np.mean(confidence >= c) for c in levels])
  np.testing.assert_allclose(
      curve.risk, [np.mean(wrong[confidence >= c]) for c in levels])
  probabilities, labels = forecast(100_000)
  curve = diagnostics.risk_coverage_curve(probabilities, labels)
  surest = np.sort(probabilities.max(1))[::-1]
  for k in (1_000, 10_000, 50_000, 100_000):  # Five standard errors.
    assert abs(curve.risk[k - 1] - (1. - surest[:k].mean())) < 2.5 / k**0.5


@pytest.mark.parametrize('predictions', [
    np.zeros([4, 5, 3]), np.zeros([40])], ids=['few draws', 'no chains'])
def test_a_picture_of_chains_needs_draws(predictions):
  with pytest.raises(ValueError, match='with 12 draws at least'):
    plots.r_hat(matplotlib.figure.Figure().subplots(), predictions)


def test_calibration_error_of_known_forecasts():
  calibrated = diagnostics.expected_calibration_error(*forecast(100_000))
  assert float(calibrated) < 0.01
  # Always sure, and right half the time.
  probabilities = np.tile([[1., 0.]], (10, 1))
  labels = np.arange(10) % 2
  error = diagnostics.expected_calibration_error(probabilities, labels)
  assert float(error) == 0.5


def test_labels_may_be_probabilities():
  """Of one-hot labels all is as of the classes; of others by the sums."""
  probabilities, labels = forecast()
  names = ('accuracy', 'negative_log_likelihood', 'brier_score',
           'expected_calibration_error', 'reliability_curve',
           'risk_coverage_curve')
  for name in names:
    score = getattr(diagnostics, name)
    for a, b in zip(*(
        tf.nest.flatten(score(probabilities, y))
        for y in (labels, np.eye(4)[labels]))):
      np.testing.assert_allclose(a, b)
  soft = np.random.default_rng(1).dirichlet(np.ones(4), len(labels))
  accuracy, nll, brier, _, _, _ = (
      getattr(diagnostics, name)(probabilities, soft) for name in names)
  each = range(len(labels))
  np.testing.assert_allclose(
      accuracy, np.mean([soft[i, probabilities[i].argmax()] for i in each]))
  np.testing.assert_allclose(nll, -np.mean([
      np.sum(soft[i] * np.log(probabilities[i])) for i in each]))
  np.testing.assert_allclose(brier, np.mean([
      np.sum((soft[i] - probabilities[i])**2) for i in each]))
  # A forecast of these labels themselves is right as often as it says.
  assert float(diagnostics.expected_calibration_error(soft, soft)) < 1e-12


def test_tensors_graphs_and_certain_forecasts():
  probabilities, labels = tf.eye(3), tf.constant([0, 1, 2], tf.int64)
  for name in ('accuracy', 'negative_log_likelihood', 'brier_score',
               'expected_calibration_error'):
    score = getattr(diagnostics, name)
    compiled = tf.function(score, jit_compile=True)(probabilities, labels)
    assert compiled.dtype == tf.float32
    assert float(compiled) == float(score(probabilities, labels))
  assert np.isinf(diagnostics.negative_log_likelihood(
      tf.eye(2), tf.constant([1, 0])))


@pytest.mark.parametrize('probabilities, labels, error, message', [
    ([[0.5, 0.5]], [0, 1], ValueError, r'shape \(1, 2\) and labels \(2,\)'),
    ([0.5, 0.5], [0, 1], ValueError, 'are needed'),
    (np.ones([3, 2, 2]) / 2, [0, 1], ValueError, 'average the probabilities'),
    ([[2., 3.]], [0], ValueError, 'softmax'),
    ([[-0.5, 1.5]], [0], ValueError, 'at least 0'),
    ([[np.nan, 0.5]], [0], ValueError, 'at least 0'),
    ([[0.5, 0.5]], [2], ValueError, '0 to 1'),
    ([[0.5, 0.5]], [-1], ValueError, '0 to 1'),
    ([[0.5, 0.5]], [0.], TypeError, 'integers'),
    ([[0.5, 0.5]], [[0, 1]], TypeError, 'floats'),
    ([[0.5, 0.5]], [[0.5, 0.7]], ValueError, 'labels have to be at least 0'),
    ([[0.5, 0.5]], [[0.5, 0.2, 0.3]], ValueError, r'labels \(1, 3\)'),
    ([[1, 0]], [0], TypeError, 'floats'),
    (np.zeros([0, 2]), np.zeros([0], np.int32), ValueError, 'no examples'),
])
def test_bad_arguments(probabilities, labels, error, message):
  with pytest.raises(error, match=message):
    diagnostics.accuracy(probabilities, labels)


def test_bad_number_of_bins():
  with pytest.raises(ValueError, match='num_bins'):
    diagnostics.reliability_curve(*forecast(), num_bins=0)
