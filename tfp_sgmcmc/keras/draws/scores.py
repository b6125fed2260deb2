"""Scores of a predictive distribution, from the predictions of its draws."""

from collections.abc import Iterable
import itertools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.diagnostics import calibration
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.draws import chosen_draws
from tfp_sgmcmc.keras.draws import number_scores
from tfp_sgmcmc.keras.draws import one_pass as pass_lib
from tfp_sgmcmc.keras.draws import predictions
from tfp_sgmcmc.keras.draws import predictive as predictive_lib
from tfp_sgmcmc.keras.model import inspection
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib

__all__ = ['evaluate', 'log_likelihood']

_NUM_BINS = 15


def evaluate(
    chosen: chosen_draws.ChosenDraws,
    x: hints.Data,
    y: hints.Data,
    batch_size: int,
    sample_weight: hints.Nested,
    draw_batch_size: int,
    steps: int | None,
) -> dict[str, float]:
  """See `PosteriorSamples.evaluate`.

  Args:
    chosen: `ChosenDraws`.
    x: As there.
    y: As there.
    batch_size: As there.
    sample_weight: As there.
    draw_batch_size: As there.
    steps: As there.

  Returns:
    scores: Dict of floats.
  """
  def data():
    if not predictions.is_stream(x):
      return predictions.batches((x, y, sample_weight), batch_size, steps)
    if y is not None or sample_weight is not None:
      raise ValueError(
          'x gives batches of its own, and y or sample_weight were passed '
          'beside it: let each batch be (x, y) or (x, y, sample_weight).')
    return predictions.batches(x, batch_size, steps)

  one_pass = pass_lib.OnePass(chosen, data, draw_batch_size)
  likelihood = one_pass.likelihood

  def of_draw(outputs, batch):
    _, y, weights = batch
    of_each = likelihood.log_likelihood(
        y, outputs, weights if predictions.are_of_elements(weights) else None)
    flat = likelihood.flat_outputs(outputs)
    levels = {
        term.index: predictive_lib.levels_of_targets(
            term, likelihood.target(y, outputs, term), flat[term.index])
        for term in likelihood.terms(outputs)}
    levels = {k: level for k, level in levels.items() if level is not None}
    return [
        likelihood.map_outputs(predictive_lib.pooled_or_output, outputs),
        _masks(likelihood, outputs), of_each, levels,
        {k: flat[k] for k in levels}]

  def check(outputs, batch):
    inspection.check_sample_weight(batch[2])
    inspection.check_class_numbers(likelihood, batch[1], outputs)

  return _scores(chosen.model, likelihood, one_pass.results(
      'scores', of_draw, [np.add, np.minimum, np.logaddexp, np.add, None],
      check), chosen.shares)


def log_likelihood(
    chosen: chosen_draws.ChosenDraws,
    x: hints.Data,
    y: hints.Data,
    batch_size: int,
    draw_batch_size: int,
) -> np.ndarray:
  """See `PosteriorSamples.log_likelihood`.

  Args:
    chosen: `ChosenDraws`.
    x: As there.
    y: As there.
    batch_size: As there.
    draw_batch_size: As there.

  Returns:
    log_likelihood: Array `[draws, n]`, in nats.
  """
  one_pass = pass_lib.OnePass(
      chosen, lambda: predictions.batches((x, y, None), batch_size),
      draw_batch_size)
  likelihood, found = one_pass.likelihood, []
  for batch, (values,) in one_pass.results(
      'log_likelihood', lambda outputs, batch: [
          likelihood.log_likelihood(batch[1], outputs, None)],
      check=lambda outputs, batch: inspection.check_class_numbers(
          likelihood, batch[1], outputs)):
    inspection.check_log_likelihood(values, batch[1])
    found.append(values)
  return np.concatenate(found, axis=1)


def _scores(
    model: keras.Model,
    likelihood: likelihood_lib.Likelihood,
    results: Iterable[tuple[Any, Any]],
    shares: np.ndarray,
) -> dict[str, float]:
  """All scores, from what has been computed of all draws.

  Args:
    model: Compiled `keras.Model`, whose metrics are used, and reset.
    likelihood: Its `Likelihood`.
    results: For each batch the batch, and five results: the means over draws
      of `predictive.pooled_or_output`, the masks, the logarithm of the mean of
      the likelihoods, `[n]`, the means of `predictive.levels_of_targets` by the
      numbers of the outputs that have some, and these outputs of all draws.
    shares: The weight of each draw, `[draws]`, with a sum of 1.

  Returns:
    scores: Dict of floats.

  Raises:
    ValueError: If a log likelihood is NaN, targets are impossible, or all
      weights are 0.
  """
  model.reset_metrics()
  weights, nll, metrics, classes, numbers = [], [], {}, {}, {}
  for batch, (outputs, of_masks, log_p, levels, each) in results:
    x, y, sample_weight = batch
    inspection.check_log_likelihood(log_p, y)
    each_mask = map(of_masks.get, itertools.count())
    metrics = model.compute_metrics(
        x, y, likelihood.map_outputs(
            lambda term, output, each_mask=each_mask: (  # type: ignore[misc]
                _unlink(term, output, next(each_mask))), outputs),
        sample_weight)
    weights.append(predictions.example_weights(batch))
    nll.append(-log_p)
    for term in likelihood.terms(outputs):
      if term.is_classification:
        classes.setdefault(term, []).append(_classes(
            term, likelihood.target(y, outputs, term),
            likelihood.flat_outputs(outputs)[term.index],
            of_masks.get(term.index),
            likelihood.weight(sample_weight, outputs, term)))
      elif term.index in levels:
        numbers.setdefault(
            term, number_scores.NumberScores(term, shares)).add(
                likelihood.target(y, outputs, term), each[term.index],
                levels[term.index], of_masks.get(term.index),
                likelihood.weight(sample_weight, outputs, term))
  model.reset_metrics()
  found = {
      name: float(value) for name, value in metrics.items()
      if name != 'loss' and not name.endswith('_loss')}
  weights, nll = np.concatenate(weights), np.concatenate(nll)
  if not np.any(weights):
    raise ValueError(
        'All of sample_weight are 0: there is no example to score.')
  found['nll'] = float(np.average(nll, weights=weights))
  for term, pairs in classes.items():
    prefix = '' if term.name is None else f'{term.name}_'
    labels, p = map(np.concatenate, zip(*pairs))
    found[f'{prefix}brier'], found[f'{prefix}ece'] = (
        (float(calibration.brier_score(p, labels)), float(
            calibration.expected_calibration_error(p, labels, _NUM_BINS)))
        if len(p) else (np.nan, np.nan))
  for term, of_term in numbers.items():
    prefix = '' if term.name is None else f'{term.name}_'
    found.update(
        {f'{prefix}{name}': value for name, value in of_term.means().items()})
  return found


def _masks(
    likelihood: likelihood_lib.Likelihood, outputs: hints.Nested,
) -> dict[int, tf.Tensor]:
  """The masks of those outputs that have one, by the outputs' numbers.

  Args:
    likelihood: `Likelihood` of the model.
    outputs: The model's outputs.

  Returns:
    masks: Dictionary of float tensors of ones and zeros.
  """
  found = map(compat.mask, likelihood.flat_outputs(outputs))
  return {
      index: tf.cast(mask, tf.float32)
      for index, mask in enumerate(found) if mask is not None}


def _unlink(term, output, mask):
  """Pooled probabilities in the form of the model's own outputs."""
  output = tf.cast(output, keras.config.floatx())
  if term is not None and term.from_logits:
    p = tf.clip_by_value(output, 1e-30, 1.)
    output = tf.math.log(p)
    if term.is_binary:
      output -= tf.math.log(tf.clip_by_value(1. - p, 1e-30, 1.))
  return compat.with_mask(output, None if mask is None else mask > 0.)


def _classes(term, y, p, mask, sample_weight):
  """The labels and the probabilities of all elements that count.

  Returns:
    labels: Integers `[m]`, or where the targets are shares of classes these,
      `[m, classes]`.
    p: Array `[m, classes]`.
  """
  shape = term.elements(p.shape)
  kept = inspection.counted(shape, mask, sample_weight)
  y = np.asarray(y)
  if term.is_sparse:
    y = np.reshape(y, shape)
    kept &= y != term.ignored_class
    return y[kept].astype(np.int64), p[kept]
  y = np.reshape(y, p.shape).astype(p.dtype)
  inspection.check_shares(term, y[kept])
  if term.is_binary:
    p, y = (np.stack([1. - a, a], axis=-1) for a in (p, y))
    return y[kept], p[kept]
  # All counts of an example, such as those of words, are one observation.
  total = np.sum(y, axis=-1)
  kept &= total > 0.
  return y[kept] / total[kept][..., np.newaxis], p[kept]
