"""Targets in their own units, such as prices: what to do is said early.

The default prior, and the steps of an optimizer, are for outputs of about 1.
With targets of 200,000 +- 80,000 a network would have to come from 0 to there
by weights of that size, and no chain arrives. `GaussianLikelihood` and its kind
read outputs in units of the targets (`center`, `unit`), which makes it the
posterior of a network on standardised targets.

So `fit` looks at targets above 30 (root mean square), where the prior is the
default one, and warns:

  - Before a new model is trained: where the locations that it predicts are
    below a tenth of them.
  - Where sampling begins, if it has not warned before: where that is so, or
    where a constant predicts better, by a nat.

Targets of about 1 of which a few are far out are none of these.
"""

from collections.abc import Iterator
import math
from typing import NamedTuple
import warnings

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.model import inspection
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib
from tfp_sgmcmc.keras.model import losses as losses_lib

__all__ = ['may_be', 'warn']

_LARGE, _FAR_BELOW = 30., 0.1
# Up to this targets are near enough to a standard scale.
_NEAR = 10.
_MOST_SHOWN = 5


def may_be(likelihood: likelihood_lib.Likelihood, y: hints.Data) -> bool:
  """Whether a target is above 30, where it matters; asks no model."""
  return any(
      isinstance(loss, losses_lib.LocationScale) and not loss.has_units
      for loss in keras.tree.flatten(likelihood.losses)) and any(
          np.abs(np.asarray(leaf, np.float64)).max(initial=0.) > _LARGE
          for leaf in tf.nest.flatten(y)
          if isinstance(leaf, tf.Tensor) and (
              leaf.dtype.is_floating or leaf.dtype.is_integer))


def warn(
    likelihood: likelihood_lib.Likelihood,
    y: hints.Data,
    outputs: hints.Nested,
    sample_weight: hints.Nested,
    is_new: bool = False,
) -> bool:
  """Warns of large targets that are far from the outputs.

  Args:
    likelihood: `Likelihood` of the model.
    y: Targets.
    outputs: The model's outputs.
    sample_weight: Sample weights or None. Targets of weight 0 do not count.
    is_new: Whether the model is to be trained first; else sampling begins.

  Returns:
    is_warned: Whether it has warned.
  """
  found = [
      each for each in _large(likelihood, y, outputs, sample_weight)
      if each.is_far_below or not is_new and each.is_worse]
  why = (
      'the outputs of a new model, and the default prior N(0, 1) of its '
      'weights, are for targets of about 1.' if is_new else
      'where sampling begins the model is far from them. The default prior '
      'N(0, 1) of the weights is for targets of about 1.')
  for each in found:
    warnings.warn(
        f'The targets are about {each.center} +- {each.unit}, and {why} '
        f'{each.way_out}', stacklevel=2)
  return bool(found)


class _Large(NamedTuple):
  """An output with large targets.

  Attributes:
    loss: Its loss.
    values: The targets that count, `[rows, columns]`.
    location: The locations that are predicted, likewise.
    of_model: Their loss, in nats.
  """
  loss: losses_lib.LocationScale
  values: np.ndarray
  location: np.ndarray
  of_model: float

  @property
  def is_far_below(self) -> bool:
    """Whether the locations are below a tenth of the targets."""
    return _root_mean_square(self.location) < (
        _FAR_BELOW * _root_mean_square(self.values))

  @property
  def is_worse(self) -> bool:
    """Whether a constant location and scale predict better, a nat a row."""
    values, *constant = (
        tf.constant(a, tf.float32) for a in (self.values, *self._moments))
    of_constant = np.sum(self.loss.of_constant(values, *constant))
    return not self.of_model <= of_constant + len(values)  # Nor is NaN.

  @property
  def _moments(self):
    """Mean and standard deviation of each column."""
    center, unit = np.mean(self.values, axis=0), np.std(self.values, axis=0)
    return center, np.where(unit > 1e-6 * np.abs(center), unit, 1.)

  @property
  def center(self) -> str:
    """The mean of each column, to a hundredth of a standard deviation."""
    return _shown(
        f'{round(value, 2 - math.floor(math.log10(unit))):.12g}'
        for value, unit in zip(*(a.tolist() for a in self._moments)))

  @property
  def unit(self) -> str:
    """The standard deviation of each column."""
    return _shown(
        f'{float(f"{unit:.3g}"):.12g}' for unit in self._moments[1].tolist())

  @property
  def way_out(self) -> str:
    """What to compile with."""
    given = {name: getattr(self.loss, name, None) for name in ('df', 'scale')}
    arguments = ''.join(
        f'{name}={_shown(f"{v:g}" for v in np.ravel(value).tolist())}, '
        for name, value in given.items() if value is not None)
    return (
        'Have the loss read outputs in units of the targets: '
        f'{type(self.loss).__name__}({arguments}center={self.center}, '
        f'unit={self.unit}), with mean and standard deviation of all training '
        'rows. The predictions of the posterior are in the units of the '
        'targets then. Or standardise the targets, or pass a prior for weights '
        'of this size.')


def _large(likelihood, y, outputs, sample_weight) -> Iterator[_Large]:
  """Those of likelihoods with locations and without units."""
  flat = likelihood.flat_outputs(outputs)
  for term in likelihood.terms(outputs):
    loss, output = term.loss, flat[term.index]
    if not isinstance(loss, losses_lib.LocationScale) or loss.has_units:
      continue
    target = likelihood.target(y, outputs, term)
    law = loss.distribution(tf.cast(output, loss.dtype))
    location = np.asarray(getattr(law, 'loc', law.mean()), np.float64)
    if not isinstance(target, tf.Tensor) or np.size(target) != location.size:
      continue  # Targets of another shape: the first step says so.
    is_counted = inspection.counted(
        tuple(target.shape), None,
        likelihood.weight(sample_weight, outputs, term))
    kept = np.reshape(is_counted, (len(is_counted), -1)).all(axis=1)
    columns = location.shape[-1:]
    values, location = (
        np.reshape(np.asarray(a, np.float64)[kept], (-1, *columns))
        for a in (target, location))
    if _are_large(values):
      of_examples = term._replace(weight=1.).log_likelihood(
          target, output, None)
      yield _Large(
          loss, values, location, -float(np.sum(of_examples.numpy()[kept])))


def _are_large(values):
  """Whether targets are, and not a few of them that are far out."""
  if not values.size or not np.isfinite(values).all() or (
      _root_mean_square(values) <= _LARGE):
    return False
  low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
  is_near = (low < high) & (np.abs(middle) <= _NEAR) & (high - low <= _NEAR)
  return not is_near.all()


def _root_mean_square(values):
  return float(np.linalg.norm(values) / values.size**0.5)


def _shown(numbers):
  """A number, or a list of them, of which some are left out."""
  numbers = list(numbers)
  if len(numbers) == 1:
    return numbers[0]
  return f'[{", ".join(numbers[:_MOST_SHOWN])}' + (
      ', ...]' if len(numbers) > _MOST_SHOWN else ']')
