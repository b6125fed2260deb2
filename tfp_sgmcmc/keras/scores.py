"""Scores of a predictive distribution, from the predictions of its draws."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.diagnostics import calibration
from tfp_sgmcmc.keras import likelihood as likelihood_lib
from tfp_sgmcmc.keras import predictions

__all__ = ['entropy', 'pooled', 'probabilities', 'scores']

_NUM_BINS = 15


def scores(
    model: keras.Model,
    likelihood: likelihood_lib.Likelihood,
    results: Iterable[tuple[Any, Any]],
) -> dict[str, float]:
  """All scores of `PosteriorSamples.evaluate`.

  Args:
    model: Compiled `keras.Model`, whose metrics are used, and reset.
    likelihood: Its `Likelihood`.
    results: For each batch the batch, and a pair: the means over draws of
      `pooled`, and the logarithm of that of the likelihoods, `[n]`.

  Returns:
    scores: Dict of floats.

  Raises:
    ValueError: If predictions are not finite.
  """
  model.reset_metrics()
  weights, nll, metrics, classes = [], [], {}, {}
  for batch, (outputs, log_likelihood) in results:
    x, y, sample_weight = batch
    _check_finite(outputs)
    metrics = model.compute_metrics(
        x, y, likelihood.map_outputs(_unlink, outputs), sample_weight)
    weights.append(predictions.example_weights(batch))
    nll.append(-log_likelihood)
    for term in likelihood.terms(outputs):
      if term.is_classification:
        classes.setdefault(term, []).append(_classes(
            term, likelihood.target(y, outputs, term),
            likelihood.flat_outputs(outputs)[term.index]))
  model.reset_metrics()
  found = {
      name: float(value) for name, value in metrics.items()
      if name != 'loss' and not name.endswith('_loss')}
  found['nll'] = float(np.average(
      np.concatenate(nll), weights=np.concatenate(weights)))
  for term, pairs in classes.items():
    prefix = '' if term.name is None else f'{term.name}_'
    labels, p = map(np.concatenate, zip(*pairs))
    found[f'{prefix}brier'] = float(calibration.brier_score(p, labels))
    found[f'{prefix}ece'] = float(
        calibration.expected_calibration_error(p, labels, _NUM_BINS))
  return found


def pooled(term: Any, output: Any) -> Any:
  """What is averaged over draws: the mean of the target, of one draw."""
  if term is None:
    return output
  if term.is_classification:
    return probabilities(term, output)
  return term.predictive_mean(output)


def probabilities(term: Any, output: Any) -> Any:
  """Class probabilities along the last axis, whatever the model gives."""
  p = term.predictive_mean(output)
  if term.is_binary or term.from_logits:
    return p
  # Keras' crossentropy normalises what it is given.
  return p / tf.reduce_sum(p, axis=-1, keepdims=True)


def entropy(p: Any) -> tf.Tensor:
  """Entropy over the last axis; of one probability, of it and its rest."""
  p = tf.convert_to_tensor(p)
  if p.shape[-1] == 1:
    p = tf.concat([p, 1. - p], axis=-1)
  return -tf.reduce_sum(tf.math.xlogy(p, p), axis=-1)


def _check_finite(outputs):
  """Raises where predictions are NaN, which no score can tell."""
  if all(np.all(np.isfinite(p)) for p in keras.tree.flatten(outputs)):
    return
  raise ValueError(
      'The predictions of some draws are not finite. Either the inputs hold '
      'NaN, or the chain diverged while these draws were made: sample again '
      'with smaller steps (a tenth of the learning_rate or step_size), or take '
      'the draws before, posterior[:k].')


def _unlink(term, output):
  """Pooled probabilities in the form of the model's own outputs."""
  output = tf.cast(output, keras.config.floatx())
  if term is None or not term.from_logits:
    return output
  p = tf.clip_by_value(output, 1e-30, 1.)
  if term.is_binary:
    return tf.math.log(p) - tf.math.log(
        tf.clip_by_value(1. - output, 1e-30, 1.))
  return tf.math.log(p)


def _classes(term, y, p):
  """The classes as integers `[n]`, and their probabilities `[n, classes]`."""
  if term.is_binary:
    p = np.reshape(p, [-1])
    return np.reshape(y, [-1]).astype(np.int64), np.stack([1. - p, p], axis=-1)
  p = np.reshape(p, [-1, p.shape[-1]])
  if isinstance(term.loss, keras.losses.CategoricalCrossentropy):
    y = np.argmax(np.reshape(y, p.shape), axis=-1)
  return np.reshape(y, [-1]).astype(np.int64), p
