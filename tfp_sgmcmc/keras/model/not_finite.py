"""Why a loss is NaN or infinite: the inputs, the targets, or the outputs."""

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.model import inspection
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib
from tfp_sgmcmc.keras.model import losses as losses_lib
from tfp_sgmcmc.keras.model import network

__all__ = ['cause', 'may_be']

_SMALL = 0.1
_OUTPUTS = (-3., -0.3, 0., 0.3, 3.)
_MOST_SHOWN = 5


def may_be(
    likelihood: likelihood_lib.Likelihood, x: hints.Data, y: hints.Data,
) -> bool:
  """Whether a new model's loss may be NaN or infinite; asks no model.

  Args:
    likelihood: `Likelihood` of the model.
    x: Inputs of a batch.
    y: Its targets.

  Returns:
    may_be: Whether data are, or a loss is not known to be finite for all
      targets.
  """
  return any(inspection.rows_with_holes(data).any() for data in (x, y)) or any(
      not isinstance(loss, (
          losses_lib.LocationScale, *likelihood_lib.CROSSENTROPIES))
      for loss in keras.tree.flatten(likelihood.losses) if loss is not None)


def cause(
    model: keras.Model, likelihood: likelihood_lib.Likelihood, x: hints.Data,
    y: hints.Data,
) -> str | None:
  """What makes the loss of a batch NaN or infinite.

  Inputs or targets are at fault where the loss and its gradient are finite once
  their NaN are 0; other targets where the loss is NaN or infinite for all
  outputs that are tried; and finite outputs where the loss is NaN for them, and
  not for others. A loss that is infinite for some outputs is no fault.

  Args:
    model: Built `keras.Model`. Its variables stay as they are.
    likelihood: `Likelihood` of the model.
    x: Inputs of a batch.
    y: Its targets.

  Returns:
    cause: Sentences, None where nothing is found.
  """
  weights = [tf.convert_to_tensor(v) for v in model.trainable_variables]
  if not network.is_finite(model):
    weights = [
        _SMALL * tf.random.stateless_normal(w.shape, [0, j], dtype=w.dtype)
        for j, w in enumerate(weights)]
  said = _of_holes(model, likelihood, x, y, weights)
  if said is not None:
    return said
  outputs = network.forward(model, x, weights).outputs
  for term in likelihood.terms(outputs):
    output = likelihood.flat_outputs(outputs)[term.index]
    said = _of_finite_data(
        term, likelihood.target(y, outputs, term), output)
    if said is not None:
      return said
  return None


def _of_holes(model, likelihood, x, y, weights):
  """Whether NaN in inputs, in targets, or in both spoil the loss."""
  both = ('inputs', x), ('targets', y)
  suspects = [
      [(name, data)] for name, data in both
      if inspection.rows_with_holes(data).any()]
  if not suspects or _is_smooth(model, likelihood, x, y, weights):
    return None
  if len(suspects) == 2:
    suspects.append(list(both))
  for found in suspects:
    filled = dict(both) | {name: _filled(data) for name, data in found}
    if _is_smooth(
        model, likelihood, filled['inputs'], filled['targets'], weights):
      return f'{" ".join(_named(name, data) for name, data in found)} ' + (
          'Leave these rows out, or fill in what is missing.')
  return None


def _filled(data):
  """0 in place of NaN and infinite values."""
  return tf.nest.map_structure(
      lambda leaf: tf.where(tf.math.is_finite(leaf), leaf, 0)
      if isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating else leaf, data)


def _named(name, data):
  holes = inspection.rows_with_holes(data)
  return (
      f'The {name} hold NaN or infinite values, in {holes.sum()} of '
      f'{len(holes)} rows of a batch{_where(data)}.')


def _is_smooth(model, likelihood, x, y, weights):
  """Whether the log likelihood and its gradient are finite."""
  with tf.GradientTape() as tape:
    tape.watch(weights)
    values = likelihood.log_likelihood(
        y, network.forward(model, x, weights).outputs, None)
  return all(
      np.isfinite(_numbers(tf.convert_to_tensor(part))).all()
      for part in [values, *tape.gradient(values, weights)] if part is not None)


def _of_finite_data(term, target, output):
  """What is wrong with targets, or with outputs, that are finite."""
  values = term.log_likelihood(target, output, None).numpy()
  is_bad = ~np.isfinite(values)
  if not is_bad.any():
    return None
  others = np.stack([
      term.log_likelihood(target, _constant(output, value), None).numpy()
      for value in _OUTPUTS])
  is_impossible = is_bad & ~np.isfinite(others).any(axis=0)
  of_output = '' if term.name is None else f' of the output {term.name!r}'
  if is_impossible.any() and np.isfinite(others).any():
    return (
        f'The loss {term.loss.name!r}{of_output} is NaN or infinite for '
        f'{is_impossible.sum()} of {len(is_impossible)} rows of a batch, '
        'whatever outputs were tried: for the target '
        f'{_first(target, is_impossible)}. Are these targets values that it '
        'can have (counts of at least 0 for a Poisson law, positive numbers '
        'for a log-normal or a gamma law)?')
  is_finite = np.isfinite(_numbers(output)).reshape([len(values), -1])
  is_nan = np.isnan(values) & is_finite.all(axis=1) & np.isfinite(
      others).any(axis=0)
  if is_nan.any():
    return (
        f'The loss {term.loss.name!r}{of_output} is NaN for {is_nan.sum()} of '
        f'{len(is_nan)} rows of a batch: for the output '
        f'{_first(output, is_nan)}. Outputs that have to be positive, such as '
        "rates and scales, need a last layer with activation='softplus' or "
        "'exponential', or the same within the loss.")
  return None


def _constant(output, value):
  """Outputs that are all alike, under the same mask."""
  constant = tf.fill(tf.shape(output), tf.cast(value, output.dtype))
  return compat.with_mask(constant, compat.mask(output))


def _first(values, is_chosen):
  """The first chosen row of an array, in short."""
  row = np.ravel(_numbers(values)[np.argmax(is_chosen)])
  shown = ', '.join(f'{v:.4g}' for v in row[:_MOST_SHOWN].tolist())
  if len(row) == 1:
    return shown
  return f'[{shown}{", ..." if len(row) > _MOST_SHOWN else ""}]'


def _numbers(tensor):
  return np.asarray(tensor, np.float64)


def _where(data):
  """The columns of a table that hold them, where there are few."""
  if not tf.is_tensor(data) or data.shape.rank != 2 or data.shape[1] == 1:
    return ''
  columns = np.flatnonzero(
      ~np.isfinite(_numbers(data)).all(axis=0)).tolist()
  return '' if len(columns) > _MOST_SHOWN else (
      f' (column{"s" if len(columns) > 1 else ""} '
      f'{", ".join(map(str, columns))}, from 0)')
