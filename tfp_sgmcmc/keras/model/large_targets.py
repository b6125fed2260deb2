"""Targets in their own units, such as prices: what to do is said early.

The default prior, and the steps of an optimizer, are for outputs of about 1.
With targets of 200,000 +- 80,000 a network would have to come from 0 to there
by weights of that size, and no chain arrives. `GaussianLikelihood` and its kind
read outputs in units of the targets (`center`, `unit`), which makes it the
posterior of a network on standardised targets.

So `fit` looks at targets above 30 (root mean square), where the prior is the
default one:

  - Before a new model is trained: whether the locations that it predicts are
    below a tenth of them. Where half of the targets are above 1,000, and a
    constant predicts better, that is an error: nothing would come of the fit.
    Else it warns; so it does where no location is negative, for an exponential
    may get there.
  - Where the chain of a trained model begins: whether that still is so, or a
    constant predicts better, by a nat. It warns.
"""

from collections.abc import Iterator
from typing import NamedTuple
import warnings

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.model import inspection
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib
from tfp_sgmcmc.keras.model import losses as losses_lib

__all__ = ['check_new', 'may_be', 'warn']

_LARGE, _HOPELESS = 30., 1000.
_FAR_BELOW = 0.1


def may_be(likelihood: likelihood_lib.Likelihood, y: hints.Data) -> bool:
  """Whether any of some targets may be large; asks no model."""
  return any(
      isinstance(loss, losses_lib.LocationScale) and not loss.has_units
      for loss in keras.tree.flatten(likelihood.losses)) and any(
          np.abs(np.asarray(leaf, np.float64)).max(initial=0.) > _LARGE
          for leaf in tf.nest.flatten(y)
          if isinstance(leaf, tf.Tensor) and (
              leaf.dtype.is_floating or leaf.dtype.is_integer))


def check_new(
    likelihood: likelihood_lib.Likelihood,
    y: hints.Data,
    outputs: hints.Nested,
    sample_weight: hints.Nested,
) -> bool:
  """Looks at targets before a model is trained.

  Args:
    likelihood: `Likelihood` of the model.
    y: Targets.
    outputs: The model's outputs.
    sample_weight: Sample weights or None. Targets of weight 0 do not count.

  Returns:
    is_warned: Whether it has warned.

  Raises:
    ValueError: If no chain will come from the outputs to the targets.
  """
  found = [each for each in _large(likelihood, y, outputs, sample_weight)
           if each.is_far_below]
  for each in found:
    said = (
        f'The targets are about {_shown(each.center)} +- {_shown(each.unit)}, '
        'and the outputs of a new model, and the default prior N(0, 1) of its '
        'weights, are for targets of about 1.')
    if each.is_hopeless:
      raise ValueError(
          f'{said} Nothing would come of this fit. {each.way_out}')
    warnings.warn(f'{said} {each.way_out}', stacklevel=2)
  return bool(found)


def warn(
    likelihood: likelihood_lib.Likelihood,
    y: hints.Data,
    outputs: hints.Nested,
    sample_weight: hints.Nested,
) -> None:
  """Warns where sampling begins far from large targets.

  Args:
    likelihood: `Likelihood` of the model.
    y: Targets.
    outputs: The model's outputs.
    sample_weight: Sample weights or None. Targets of weight 0 do not count.
  """
  for each in _large(likelihood, y, outputs, sample_weight):
    if each.is_far_below or each.is_worse:
      warnings.warn(
          f'The targets are about {_shown(each.center)} +- '
          f'{_shown(each.unit)}, and where sampling begins the model is far '
          'from them. The default prior N(0, 1) of the weights is for targets '
          f'of about 1. {each.way_out}', stacklevel=2)


class _Large(NamedTuple):
  """An output with large targets.

  Attributes:
    loss: Its loss.
    values: The targets that count, `[rows, columns]`.
    location: The locations that are predicted, likewise.
    of_model: The loss of all examples, in nats.
    center: The mean of each column.
    unit: The standard deviation.
  """
  loss: losses_lib.LocationScale
  values: np.ndarray
  location: np.ndarray
  of_model: float
  center: np.ndarray
  unit: np.ndarray

  @property
  def targets(self) -> float:
    """The root mean square of the targets."""
    return _root_mean_square(self.values)

  @property
  def is_far_below(self) -> bool:
    """Whether the locations are below a tenth of the targets."""
    return _root_mean_square(self.location) < _FAR_BELOW * self.targets

  @property
  def is_worse(self) -> bool:
    """Whether a constant location and scale predict better, a nat a row."""
    values, *constant = (
        tf.constant(a, tf.float32)
        for a in (self.values, self.center, self.unit))
    of_constant = np.sum(self.loss.of_constant(values, *constant))
    return not self.of_model <= of_constant + len(values)  # Nor is NaN.

  @property
  def is_hopeless(self) -> bool:
    """Whether nothing would come of a fit of a new model."""
    # A few targets that are far out do no harm.
    size = np.median(np.abs(self.values), axis=0).max()
    return size > _HOPELESS and self.is_worse and self.location.min() < 0.

  @property
  def way_out(self) -> str:
    """What to compile with."""
    given = {name: getattr(self.loss, name, None) for name in ('df', 'scale')}
    arguments = ', '.join([
        *(f'{name}={value:g}' for name, value in given.items()
          if value is not None),
        f'center={_shown(self.center)}', f'unit={_shown(self.unit)}'])
    return (
        'Have the loss read outputs in units of the targets: '
        f'{type(self.loss).__name__}({arguments}), with mean and standard '
        'deviation of all training rows. The predictions of the posterior are '
        'in the units of the targets then. Or standardise the targets, or pass '
        'a prior for weights of this size.')


def _large(likelihood, y, outputs, sample_weight) -> Iterator[_Large]:
  """Those of likelihoods with locations and without units."""
  flat = likelihood.flat_outputs(outputs)
  for term in likelihood.terms(outputs):
    loss, output = term.loss, flat[term.index]
    if not isinstance(loss, losses_lib.LocationScale) or loss.has_units:
      continue
    target, weight = (
        likelihood.target(y, outputs, term),
        likelihood.weight(sample_weight, outputs, term))
    location = np.asarray(
        loss.distribution(tf.cast(output, loss.dtype)).mean(), np.float64)
    if not isinstance(target, tf.Tensor) or np.size(target) != location.size:
      continue  # Targets of another shape: the first step says so.
    is_counted = inspection.counted(tuple(target.shape), None, weight)
    columns = location.shape[-1:]
    kept = np.reshape(is_counted, (-1, *columns)).all(axis=1)
    values, location = (
        np.reshape(np.asarray(a, np.float64), (-1, *columns))[kept]
        for a in (target, location))
    if values.size and _root_mean_square(values) > _LARGE:
      center, unit = np.mean(values, axis=0), np.std(values, axis=0)
      unit = np.where(unit > 1e-6 * np.abs(center), unit, 1.)
      yield _Large(
          loss, values, location,
          -float(np.sum(term.log_likelihood(target, output, weight))), center,
          unit)


def _root_mean_square(values):
  return float(np.linalg.norm(values) / values.size**0.5)


def _shown(column):
  """Three digits of a number for each target; one where there is one."""
  numbers = [f'{float(f"{value:.3g}"):.10g}' for value in column]
  return numbers[0] if len(numbers) == 1 else f'[{", ".join(numbers)}]'
