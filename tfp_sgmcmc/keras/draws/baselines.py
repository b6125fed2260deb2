"""The posterior's predictions beside simpler ones, on given data.

Draws may agree with each other and predict nothing. So the mean over examples
of the negative log likelihood (NLL, in nats),

  - log 1/S sum_s p(y_i | x_i, theta_s),

is held against two others: that of the weights before sampling, and that of a
constant prediction, the outputs c, the same for all x, that fit the targets
best,

  min_c mean_i -log p(y_i | c).

For crossentropies c is the share of each class among all elements (of a binary
one: the mean of each column), for "poisson" the mean of the targets, for
`GaussianLikelihood` their mean and, where the model learns the scale, their
standard deviation, for `LaplaceLikelihood` the median and the mean deviation
from it. Of other losses there is none, for no formula gives it, nor of
densities with a mask.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.diagnostics import verdicts
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.draws import predictions
from tfp_sgmcmc.keras.draws import samples as samples_lib
from tfp_sgmcmc.keras.model import inspection
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib
from tfp_sgmcmc.keras.model import losses as losses_lib
from tfp_sgmcmc.keras.model import network

__all__ = ['constant_log_likelihood', 'judge', 'row']

# Nats an example by which the weights before sampling may be better.
_TOLERANCE = 0.01
_BATCH_SIZE = 128
_LEAST = 1e-7


def row(
    runs: Sequence[samples_lib.PosteriorSamples],
    log_likelihood: np.ndarray,
    x: hints.Data,
    y: hints.Data,
) -> verdicts.Row:
  """The row of the posterior's NLL.

  Wrong where a constant prediction is better than the posterior; doubtful where
  the posterior is not better than a constant prediction, or where the weights
  before sampling are better by more than 0.01: each as far as the standard
  error of the mean difference shows it, at a false alarm rate of 1e-3.

  Args:
    runs: `PosteriorSamples` of each chain.
    log_likelihood: Array `[draws, n]`, that of all their draws on the data.
    x: Inputs, arrays in the model's structure.
    y: Targets.

  Returns:
    row: `Row`.
  """
  ours = _pooled(log_likelihood)
  constant = constant_log_likelihood(runs[0], x, y)
  starts = [run.start for run in runs if run.start is not None]
  start = None if len(starts) < len(runs) else _pooled(np.concatenate(
      [some.log_likelihood(x, y) for some in starts]))
  others = {'by a constant prediction': constant,
            'by the weights before sampling': start}
  meaning = ' and '.join(
      f'{-np.mean(values):.4g} {name}'
      for name, values in others.items() if values is not None)
  verdict, advice = judge(ours, constant, start)
  return verdicts.Row(
      verdicts.NLL, -float(np.mean(ours)),
      float(np.std(ours) / len(ours)**0.5), verdict,
      ' '.join(filter(None, [
          f'It is {meaning}.' if meaning else
          'There is nothing known to compare it with.', advice])))


def judge(
    ours: np.ndarray,
    constant: np.ndarray | None,
    start: np.ndarray | None,
) -> tuple[str, str]:
  """The verdict on the posterior's predictions, and what to try.

  Args:
    ours: The posterior's log likelihood of each example, `[n]`.
    constant: That of the constant prediction; None where there is none.
    start: That of the weights before sampling; None where it is not known.

  Returns:
    verdict: As in `Row`.
    advice: A sentence; empty where all is fine.
  """
  if constant is not None:
    low, high = verdicts.interval(constant - ours)
    if low > 0.:
      return 'wrong', (
          'A constant prediction is better: look at the loss, at the learning '
          'rate, and at whether inputs and targets belong together.')
    if not high < 0.:
      return 'doubtful', (
          f'These {len(ours)} examples do not show that the posterior is '
          'better than a constant prediction: train or sample longer, or pass '
          'more examples.')
  if start is not None and verdicts.interval(start - ours)[0] > _TOLERANCE:
    return 'doubtful', (
        'The weights before sampling predict better: try a lower temperature '
        "(temperature='validation'), another prior, or a longer burn-in. On "
        'the data of training that may be overfitting: pass others.')
  return 'fine', ''


def _pooled(log_likelihood):
  """The logarithm of the mean likelihood, `[n]` of `[draws, n]`."""
  return np.logaddexp.reduce(log_likelihood, axis=0) - np.log(
      len(log_likelihood))


def constant_log_likelihood(
    posterior: samples_lib.PosteriorSamples, x: hints.Data, y: hints.Data,
) -> np.ndarray | None:
  """The log likelihood of the constant prediction that fits best.

  Args:
    posterior: `PosteriorSamples`, not empty; its model says how targets and
      outputs go together.
    x: Inputs, arrays in the model's structure.
    y: Targets.

  Returns:
    log_likelihood: Array `[n]`, in nats; None where a loss has no such
      prediction.
  """
  model = posterior.model
  likelihood = likelihood_lib.Likelihood(model)
  weights = [tf.convert_to_tensor(array) for array in posterior[0]]
  batches = []
  for inputs, targets, _ in predictions.batches((x, y, None), _BATCH_SIZE):
    outputs = network.forward(model, inputs, weights).outputs
    batches.append([
        (term, likelihood.target(targets, outputs, term),
         likelihood.flat_outputs(outputs)[term.index])
        for term in likelihood.terms(outputs)])
  total: Any = 0.
  for of_term in zip(*batches):
    term = of_term[0][0]
    targets = np.concatenate([np.asarray(target) for _, target, _ in of_term])
    shape = [len(targets), *of_term[0][2].shape[1:]]
    masks = [compat.mask(output) for _, _, output in of_term]
    mask = None if masks[0] is None else np.concatenate(
        [np.asarray(m) for m in masks])
    output = _constant(term, targets, shape, mask)
    if output is None:
      return None
    total += term.log_likelihood(
        tf.convert_to_tensor(targets),
        compat.with_mask(
            tf.convert_to_tensor(
                np.broadcast_to(output, shape), keras.config.floatx()),
            None if mask is None else tf.convert_to_tensor(mask)),
        None).numpy()
  return total


def _constant(term, y, shape, mask):
  """The constant outputs, which broadcast to a shape; None if there are none.

  Args:
    term: `Term`.
    y: Its targets, an array.
    shape: The shape of the outputs, `[n, ...]`.
    mask: Their mask, or None.

  Returns:
    outputs: Array, or None.
  """
  if term.is_classification:
    kept = inspection.counted(term.elements(shape), mask, None)
    shares = _shares(term, y, shape, kept)
    if not term.from_logits:
      return shares
    shares = np.clip(shares, _LEAST, 1.)
    if not term.is_binary:
      return np.log(shares)
    shares = np.minimum(shares, 1. - _LEAST)
    return np.log(shares) - np.log1p(-shares)
  y = np.asarray(y, np.float64)
  if mask is not None:
    return None
  kind = type(term.loss)
  if kind is keras.losses.Poisson:
    return np.mean(np.reshape(y, shape), axis=0)
  if kind not in (losses_lib.GaussianLikelihood, losses_lib.LaplaceLikelihood):
    return None
  is_learned = term.loss.scale is None
  y = term.loss.standardised(np.reshape(
      y, [*shape[:-1], shape[-1] // 2 if is_learned else shape[-1]]))
  is_normal = kind is losses_lib.GaussianLikelihood
  middle = (np.mean if is_normal else np.median)(y, axis=0)
  if not is_learned:
    return middle
  scale = np.mean(np.abs(y - middle)**(2. if is_normal else 1.), axis=0)
  scale = np.sqrt(scale) if is_normal else scale
  if not np.all(scale > 0.):
    return None
  return np.concatenate(  # softplus(s + log(1 - exp(-s))) = s
      [middle, scale + np.log(-np.expm1(-scale))], axis=-1)


def _shares(term, y, shape, kept):
  """The share of each class among the elements that count, `[classes]`."""
  if term.is_sparse:
    y = np.reshape(y, shape[:-1])
    kept &= y != term.ignored_class
    counts = np.bincount(y[kept].astype(np.int64), minlength=shape[-1])
    return counts / max(1, np.sum(kept))
  y = np.reshape(y, shape).astype(np.float64)
  if term.is_binary:
    axes = tuple(range(y.ndim - 1))
    return np.sum(y * kept, axis=axes) / np.maximum(1, np.sum(kept, axis=axes))
  total = np.sum(y[kept], axis=0)
  return total / max(np.sum(total), _LEAST)
