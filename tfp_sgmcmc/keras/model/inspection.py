"""Looks at data and at a model's outputs, to say early what is wrong."""

from collections.abc import Sequence
from typing import Any
import warnings

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib

__all__ = [
    'check_class_numbers', 'check_faults', 'check_log_likelihood',
    'check_sample_weight', 'check_shares', 'counted', 'faults', 'is_far',
    'look', 'may_need_logits', 'mean_weight', 'rows_with_holes',
    'warn_of_mean_weight', 'warn_of_several_classes']

_NOT_FINITE, _NO_PROBABILITY = 1, 2
# Rounding of probabilities, of half precision too.
_ROUNDING = 0.01


def faults(
    likelihood: likelihood_lib.Likelihood, outputs: hints.Nested) -> tf.Tensor:
  """What is wrong with the outputs for each example.

  Elements that the output's mask leaves out are not looked at.

  Args:
    likelihood: `Likelihood` of the model.
    outputs: The model's outputs.

  Returns:
    faults: `int8[n]`: 0 for nothing, 1 where they are NaN or infinite (of a
      classifier: where its probabilities are), 2 where a crossentropy without
      `from_logits` gets values that are no probabilities.
  """
  terms = {term.index: term for term in likelihood.terms(outputs)}
  found = []
  for index, output in enumerate(likelihood.flat_outputs(outputs)):
    output, term = tf.convert_to_tensor(output), terms.get(index)
    if not output.dtype.is_floating or output.shape.rank == 0:
      continue
    values = output
    if term is not None and term.is_classification:
      values = term.probabilities(output)
      if not term.from_logits:
        found.append(_NO_PROBABILITY * _any(output, _is_outside(term, output)))
    found.append(_NOT_FINITE * _any(output, ~tf.math.is_finite(values)))
  if not found:
    first = likelihood.flat_outputs(outputs)[0]
    return tf.zeros(tf.shape(first)[:1], tf.int8)
  return tf.reduce_max(tf.stack(found), axis=0)


def check_faults(
    found: np.ndarray,
    likelihood: likelihood_lib.Likelihood,
    x: hints.Data,
) -> None:
  """Raises where the predictions of draws have `faults`.

  Args:
    found: Array of the faults of a batch.
    likelihood: `Likelihood` of the model.
    x: The batch's inputs.

  Raises:
    ValueError: If there is one.
  """
  fault = int(np.max(found, initial=0))
  if fault == _NO_PROBABILITY:
    raise ValueError(_no_probabilities(likelihood))
  if fault == _NOT_FINITE:
    holes = rows_with_holes(x)
    raise ValueError('The predictions of some draws are not finite. ' + (
        f'The inputs hold NaN or infinite values, in {holes.sum()} of '
        f'{len(holes)} rows of a batch: leave these rows out, or fill in what '
        'is missing as in the data of training.' if holes.any() else
        'The chain diverged while these draws were made: sample again with '
        'smaller steps (a tenth of the learning_rate or step_size), or take '
        'the draws before, posterior[:k].'))


def check_log_likelihood(values: np.ndarray, y: hints.Data) -> None:
  """Raises where the log likelihood is NaN, with outputs that are finite.

  Args:
    values: Array `[..., n]`, the log likelihood of a batch.
    y: The batch's targets.

  Raises:
    ValueError: If it is NaN.
  """
  is_nan = np.isnan(values)
  if np.any(is_nan):
    number = np.sum(np.any(np.reshape(is_nan, [-1, values.shape[-1]]), axis=0))
    holes = rows_with_holes(y)
    raise ValueError(
        f'The log likelihood of {number} of the {values.shape[-1]} examples of '
        'a batch is NaN. ' + (
            f'The targets hold NaN or infinite values, in {holes.sum()} rows: '
            'leave these rows out.' if holes.any() else
            'The loss gives NaN for these targets: are they values that it '
            'can have (counts of at least 0 for "poisson")?'))


def check_sample_weight(weights: hints.Nested) -> None:
  """Raises where weights cannot be those of an average.

  Args:
    weights: None, or nested tensors.

  Raises:
    ValueError: If one is negative, NaN or infinite.
  """
  for leaf in keras.tree.flatten(weights):
    if leaf is None:
      continue
    values = np.asarray(leaf, np.float64)
    bad = values[~(np.isfinite(values) & (values >= 0.))]
    if bad.size:
      raise ValueError(
          f'sample_weight holds {bad[0]:g} ({bad.size} of {values.size} in a '
          'batch): weights have to be finite and at least 0. To leave an '
          'example out, give it the weight 0.')


def check_class_numbers(
    likelihood: likelihood_lib.Likelihood,
    y: hints.Data,
    outputs: hints.Nested,
) -> None:
  """Raises where targets of a sparse crossentropy are no class numbers.

  Args:
    likelihood: `Likelihood` of the model.
    y: The targets of a batch.
    outputs: The model's outputs, or their specs.

  Raises:
    ValueError: If one has a fraction, or is out of range.
  """
  for term in likelihood.terms(outputs):
    if not term.is_sparse:
      continue
    labels = np.asarray(likelihood.target(y, outputs, term))
    labels = labels[labels != term.ignored_class]
    number = likelihood.flat_outputs(outputs)[term.index].shape[
        term.loss.get_config().get('axis', -1)]
    where = '' if term.name is None else f' of the output {term.name!r}'
    if np.any(labels != np.round(labels)):
      raise ValueError(
          f'The targets{where} hold {labels[labels != np.round(labels)][0]}, '
          f'and the loss {term.loss.name!r} needs whole class numbers, which '
          'Keras makes by cutting the fraction off. For probabilities of '
          'classes, [n, num_classes], compile with '
          '"categorical_crossentropy".')
    if labels.size and number and not (
        0 <= labels.min() and labels.max() < number):
      raise ValueError(
          f'The targets{where} run from {labels.min():g} to '
          f'{labels.max():g}, and the outputs have {number} classes: class '
          f'numbers from 0 to {number - 1} are possible. Number the classes '
          'from 0, or give the last layer a unit for each.')


def check_shares(term: likelihood_lib.Term, y: np.ndarray) -> None:
  """Raises where targets of another crossentropy are no shares of classes.

  Args:
    term: `Term` with a binary or categorical crossentropy.
    y: Its targets, those that count.

  Raises:
    ValueError: If one is negative or, of a binary one, above 1.
  """
  is_right = (y >= 0.) & (y <= (1. if term.is_binary else np.inf))
  if not np.all(is_right):
    where = '' if term.name is None else f' of the output {term.name!r}'
    wanted = ('from 0 to 1' if term.is_binary
              else 'of at least 0, one for each class,')
    raise ValueError(
        f'The targets{where} hold {y[~is_right][0]:g}, and the loss '
        f'{term.loss.name!r} is a negative log likelihood for targets {wanted} '
        'alone: change the targets, (y + 1) / 2 for labels -1 and 1, or the '
        'loss.')


def warn_of_several_classes(
    likelihood: likelihood_lib.Likelihood,
    y: hints.Data,
    outputs: hints.Nested,
) -> None:
  """Warns where targets of a categorical crossentropy sum to more than 1.

  Args:
    likelihood: `Likelihood` of the model.
    y: The targets of a batch.
    outputs: The model's outputs, or their specs.
  """
  for term in likelihood.terms(outputs):
    if not term.is_classification or term.is_sparse or term.is_binary:
      continue
    total = np.sum(
        np.asarray(likelihood.target(y, outputs, term), np.float64),
        axis=term.loss.get_config().get('axis', -1))
    if np.max(total, initial=0.) > 1. + _ROUNDING:
      warnings.warn(
          f'Targets of the loss {term.loss.name!r} sum to up to '
          f'{np.max(total):.3g} in a row: they count as so many examples. For '
          'several labels at once take "binary_crossentropy" and a last layer '
          'with a sigmoid; for one class a row, a row of one 1.', stacklevel=2)


def look(
    likelihood: likelihood_lib.Likelihood,
    y: hints.Data,
    outputs: hints.Nested,
    sample_weight: hints.Nested,
) -> None:
  """Looks at the first batch of `fit`, and at a model's outputs on it.

  Args:
    likelihood: `Likelihood` of the model.
    y: Targets.
    outputs: The model's outputs.
    sample_weight: None, or the weights.

  Raises:
    ValueError: If a crossentropy without `from_logits` gets values that are no
      probabilities, or targets are no classes. Where class probabilities do
      not sum to 1, a `UserWarning` tells.
  """
  if np.max(faults(likelihood, outputs), initial=0) == _NO_PROBABILITY:
    raise ValueError(_no_probabilities(likelihood))
  if y is None:  # Of which the likelihood tells.
    return
  check_class_numbers(likelihood, y, outputs)
  flat = likelihood.flat_outputs(outputs)
  for term in likelihood.terms(outputs):
    output = flat[term.index]
    if not term.is_classification or term.is_sparse:
      continue
    kept = counted(
        term.elements(output.shape), compat.mask(output),
        likelihood.weight(sample_weight, outputs, term))
    targets = np.asarray(likelihood.target(y, outputs, term), np.float64)
    if targets.size == np.size(output):
      check_shares(term, np.reshape(targets, output.shape)[kept])
  for term in likelihood.terms(outputs):
    if term.is_classification and not (term.is_binary or term.from_logits):
      total = np.asarray(
          tf.reduce_sum(tf.cast(flat[term.index], tf.float32), axis=-1))
      off = np.max(np.abs(total - 1.), initial=0.)
      if off > _ROUNDING:
        warnings.warn(
            f'The loss {term.loss.name!r} reads the outputs of the model as '
            'class probabilities, and for the first batch they sum to '
            f'{np.min(total):.3g} to {np.max(total):.3g}. Keras divides them '
            f'by their sum. {_way_out(term)}', stacklevel=2)


def may_need_logits(
    likelihood: likelihood_lib.Likelihood, outputs: hints.Nested) -> bool:
  """Whether outputs have to be looked at, to tell that they are probabilities.

  Args:
    likelihood: `Likelihood` of the model.
    outputs: The model's outputs, while a function is traced.

  Returns:
    may_need_logits: Whether a crossentropy without `from_logits` gets what is
      neither of a softmax nor of a sigmoid.
  """
  flat = likelihood.flat_outputs(outputs)
  return any(
      term.is_classification and not term.from_logits
      and flat[term.index].op.type not in ('Softmax', 'Sigmoid')
      for term in likelihood.terms(outputs))


def counted(
    shape: Sequence[int],
    mask: hints.Nested,
    sample_weight: hints.Nested,
) -> np.ndarray:
  """Which elements count: those under a mask, with weights that are not 0.

  Args:
    shape: The shape of the elements, `[n, ...]`.
    mask: None, or an array with the leading axes of these.
    sample_weight: None, or weights likewise.

  Returns:
    counted: Array of `bool`s of that shape.
  """
  found = np.ones(shape, bool)
  for factor in (mask, sample_weight):
    if factor is not None:
      factor = np.asarray(factor) != 0
      while factor.ndim > len(shape) and factor.shape[-1] == 1:
        factor = factor[..., 0]
      found &= np.reshape(
          factor, [*factor.shape, *[1] * (len(shape) - factor.ndim)])
  return found


def mean_weight(weights: Sequence[Any]) -> tuple[float, float]:
  """The mean of sample weights that are not 0.

  Args:
    weights: The weights of some batches, nested tensors.

  Returns:
    mean: Their mean, 1 where there are none.
    standard_error: That of rows drawn at random.
  """
  values = np.concatenate([np.zeros([0])] + [
      np.ravel(np.asarray(leaf, np.float64))
      for leaf in keras.tree.flatten(list(weights)) if leaf is not None])
  values = values[values != 0.]
  if not values.size:
    return 1., 0.
  return float(values.mean()), float(values.std() / values.size**0.5)


def is_far(mean: float, standard_error: float = 0.) -> bool:
  """Whether a mean weight makes N another number: half of it, or double."""
  return not 0.5 <= mean <= 2. and abs(mean - 1.) > 3. * standard_error


def warn_of_mean_weight(mean: float, num_examples: int) -> None:
  """Warns that weights make the data count as another number of examples.

  Args:
    mean: Their mean.
    num_examples: Python `int`, N.
  """
  warnings.warn(
      f'The sample weights (those by class_weight, too) have mean {mean:.3g}. '
      "They multiply each example's log likelihood, so the "
      f'{num_examples} examples count as {num_examples * mean:.3g} against the '
      f'prior: the posterior is {"narrower" if mean > 1. else "wider"}, and '
      f'the gradients are {mean:.3g} times what a learning rate for mean '
      'losses is made for. If the weights only say how much examples count '
      'beside each other, divide them by their mean: sample_weight / '
      'np.mean(sample_weight), or class_weight={c: N / (num_classes * '
      'count[c])}. If a row of weight w stands for w examples, leave them as '
      'they are, and lower the learning rate where the chain diverges.',
      stacklevel=2)


def rows_with_holes(structure: hints.Data) -> np.ndarray:
  """Which rows of a batch hold NaN or infinite values.

  Args:
    structure: Nested tensors or arrays.

  Returns:
    holes: Array of `bool`s `[n]`; `[1]` where there are no floating numbers.
  """
  holes = np.zeros([1], bool)
  for leaf in keras.tree.flatten(structure):
    if (isinstance(leaf, (tf.Tensor, np.ndarray)) and len(leaf.shape)
        and tf.as_dtype(leaf.dtype).is_floating):
      is_bad = ~np.isfinite(np.asarray(leaf, np.float64))
      if len(is_bad) == len(holes) or len(holes) == 1:
        holes = holes | np.any(np.reshape(is_bad, [len(is_bad), -1]), axis=1)
  return holes


def _is_outside(term, output):
  """Where values of a crossentropy without logits are no probabilities."""
  is_below = output < -_ROUNDING
  return is_below | (output > 1. + _ROUNDING) if term.is_binary else is_below


def _any(output, is_bad):
  """Whether an element of an example is bad, `int8[n]`."""
  mask = compat.mask(output)
  if mask is not None:
    mask = tf.cast(mask, tf.bool)
    while mask.shape.rank < is_bad.shape.rank:
      mask = mask[..., tf.newaxis]
    is_bad &= mask
  return tf.cast(
      tf.reduce_any(is_bad, axis=range(1, is_bad.shape.rank)), tf.int8)


def _no_probabilities(likelihood):
  terms = likelihood.losses_of_probabilities
  names = ' or '.join(sorted({repr(loss.name) for loss in terms}))
  kind = type(terms[0]).__name__
  return (
      f'The loss {names} is compiled without from_logits and reads the outputs '
      'of the model as probabilities, and they are none: some are below 0 or '
      'above 1. If they are logits (a last layer without activation), compile '
      f'with keras.losses.{kind}(from_logits=True). Else end the model with a '
      'softmax or, for a binary crossentropy, a sigmoid.')


def _way_out(term):
  return (
      'If they are logits, compile with keras.losses.'
      f'{type(term.loss).__name__}(from_logits=True). Else end the model with '
      'a softmax.')
