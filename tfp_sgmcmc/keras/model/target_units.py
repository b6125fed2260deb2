"""Targets in their own units, such as prices, and the likelihoods of them.

The default prior, and the steps of an optimizer, are for outputs of about 1.
With targets of 200,000 +- 80,000 a network would have to come from 0 to there
by weights of that size, and no chain arrives.

So the likelihood may read outputs (a, b) in units of the targets,

  location = center + unit a,    scale = unit softplus(b),

with center their mean and unit their standard deviation: that is the posterior
of a network on standardised targets, and its predictions are in the units of
the targets. `GaussianLikelihood` and its kind have both as arguments.

Where neither is given they are found, before the first step of a `fit` whose
prior is the default one, for outputs whose targets are above 30 (root mean
square), and

  - whose locations are below a tenth of them, if the model has not been
    trained: its last layer may have the units itself, by a bias or a factor;
  - which predict worse than one constant location and scale do, by a nat, and
    better when they are read in units, if it has been trained: an earlier
    process may have done so.

Of others that are so far off `fit` warns.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import NamedTuple
import warnings

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import leaves as leaves_lib
from tfp_sgmcmc.keras.model import inspection
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib
from tfp_sgmcmc.keras.model import losses as losses_lib

__all__ = [
    'MOST_ROWS', 'TargetUnits', 'Units', 'may_be_large', 'of', 'take', 'warn']

# By these the units are estimated.
MOST_ROWS = 4096
_LARGE, _FAR_BELOW = 30., 0.1
# Columns up to this are near enough to a standard scale.
_NEAR = 10.
# Its softplus is 1.
_UNIT_SCALE = float(np.log(np.expm1(1.)))


class Units(NamedTuple):
  """What `LocationScale` takes.

  Attributes:
    center: Number, or a list with one for each target.
    unit: The same.
  """
  center: float | list[float]
  unit: float | list[float]


class TargetUnits:
  """The units that the losses of a model have in a chain.

  Attributes:
    by_position: Dict of `Units` by the position among the flat losses; None
      until it is known.
  """
  by_position: dict[int, Units] | None

  def __init__(
      self, model: keras.Model, likelihood: likelihood_lib.Likelihood):
    """Makes the object, before any data are known.

    Args:
      model: Compiled `keras.Model`.
      likelihood: Its `Likelihood`.
    """
    self._model, self._likelihood = model, likelihood
    self.by_position = None

  def begin_fit(self, likelihood: likelihood_lib.Likelihood) -> None:
    """Takes the likelihood of a model that may have been compiled anew."""
    self._likelihood = likelihood
    self._take('The chain')

  def _take(self, what):
    take(self._model, self._likelihood, self.by_position or {}, what)

  def find(
      self,
      y: hints.Data,
      outputs: hints.Nested,
      sample_weight: hints.Nested,
      *,
      more: Callable[[], tuple[hints.Data, hints.Nested]],
      is_trained: bool,
      may_take: bool,
  ) -> None:
    """Looks for large targets, and has the losses read them; says so.

    Args:
      y: Targets of a batch.
      outputs: The model's outputs for it.
      sample_weight: Its sample weights, or None.
      more: Callable that returns targets and sample weights of more rows.
      is_trained: Whether the model has been trained.
      may_take: Whether the losses may take units.

    Raises:
      ValueError: If they may not, and there are such targets.
    """
    self.by_position = {
        each.position: each.units for each in _large(
            self._likelihood, y, outputs, sample_weight)
        if each.may_take and (
            each.is_worse and each.fits_in_units if is_trained
            else each.is_far_below)}
    if not self.by_position:
      return
    y, sample_weight = more()
    for each in _large(self._likelihood, y, outputs, sample_weight):
      if each.position in self.by_position:
        self.by_position[each.position] = each.units
    losses = keras.tree.flatten(self._likelihood.losses)
    for position, units in self.by_position.items():
      name = type(losses[position]).__name__
      about = (
          f'The targets are about {_shown(units.center)} +- '
          f'{_shown(units.unit)}, and the default prior is for outputs of '
          'about 1')
      if not may_take:
        raise ValueError(
            f'{about}. Chains of separate processes have to read outputs in '
            f'the same units: compile with {name}({_arguments(units)}).')
      warnings.warn(
          f'{about}: {name} reads outputs in these units from here on, as '
          f'{name}({_arguments(units)}) does. Predictions of the posterior are '
          'in the units of the targets; what model.predict gives is not. '
          'Compile with this loss to choose the units yourself.', stacklevel=2)
    self._take('The chain')

  def state(self) -> dict[str, np.ndarray]:
    """What `load_state` takes."""
    known = (self.by_position or {}).items()
    return {
        'target_units': np.asarray([place for place, _ in known], np.int64),
        **leaves_lib.named(**{
            'target-center': [np.asarray(units.center) for _, units in known],
            'target-unit': [np.asarray(units.unit) for _, units in known]})}

  def load_state(self, state: Mapping[str, np.ndarray]) -> None:
    """Takes the units of an earlier process.

    Args:
      state: Arrays by name, those of its `state` among them.

    Raises:
      ValueError: If the losses have other units.
    """
    # The chains of other versions have none.
    self.by_position = {
        int(position): Units(center.tolist(), unit.tolist())
        for position, center, unit in zip(
            state.get('target_units', ()),
            leaves_lib.of_group(state, 'target-center'),
            leaves_lib.of_group(state, 'target-unit'))}
    self._take('The chain in the directory')


def of(likelihood: likelihood_lib.Likelihood) -> dict[int, Units]:
  """The units of losses that have some, by the position among the flat ones."""
  return {
      position: Units(loss.center, loss.unit)
      for position, loss in enumerate(keras.tree.flatten(likelihood.losses))
      if isinstance(loss, losses_lib.LocationScale) and loss.has_units}


def take(
    model: keras.Model,
    likelihood: likelihood_lib.Likelihood,
    by_position: Mapping[int, Units],
    what: str,
) -> None:
  """Gives losses units, where they have none, and are of locations.

  Args:
    model: Compiled `keras.Model`.
    likelihood: Its `Likelihood`.
    by_position: `Units` by the position among the flat losses.
    what: What has these units, for the message.

  Raises:
    ValueError: If a loss has others.
  """
  have = of(likelihood)
  for position, loss in enumerate(keras.tree.flatten(likelihood.losses)):
    if position in by_position and isinstance(loss, losses_lib.LocationScale):
      units = by_position[position]
      if have.get(position, units) != units:
        raise ValueError(
            f'{what} has outputs in the units {_arguments(units)}, and the '
            f'model is compiled with {_arguments(have[position])}: compile it '
            'with these units, or without any.')
      if position not in have:
        loss.take_units(*units)
        # They may be traced with the loss as it was; and programs of a model
        # are not kept for another train function.
        model.test_function = None
        if model.train_function is not None:
          model.make_train_function(force=True)


def may_be_large(
    likelihood: likelihood_lib.Likelihood, y: hints.Data) -> bool:
  """Whether such targets may need units; costs little."""
  return any(
      isinstance(loss, losses_lib.LocationScale)
      for loss in keras.tree.flatten(likelihood.losses)) and any(
          _is_number(leaf) and np.abs(np.float64(leaf)).max(initial=0.) > _LARGE
          for leaf in tf.nest.flatten(y, expand_composites=True))


def warn(
    likelihood: likelihood_lib.Likelihood,
    y: hints.Data,
    outputs: hints.Nested,
    sample_weight: hints.Nested,
) -> None:
  """Warns of outputs that are far from large targets.

  Args:
    likelihood: `Likelihood` of the model.
    y: Targets.
    outputs: The model's outputs.
    sample_weight: Sample weights or None. Targets of weight 0 do not count.
  """
  for each in _large(likelihood, y, outputs, sample_weight):
    if each.is_worse or each.is_far_below:
      warnings.warn(
          f'The targets are about {_shown(each.units.center)} +- '
          f'{_shown(each.units.unit)}, and the model is far from them where '
          'sampling begins. The default prior N(0, 1) of the weights is for '
          'inputs and targets of about 1. Standardise them: subtract the mean '
          'of the training rows and divide by their standard deviation; or '
          "give both to a new model's loss, "
          'GaussianLikelihood(center=y.mean(), unit=y.std()). Or pass a wider '
          'prior.', stacklevel=2)


class _Large(NamedTuple):
  """An output with large targets.

  Attributes:
    position: That of its loss among the flat losses.
    may_take: Whether this may take units: it is not of several outputs, nor
      reads them in a way of its own.
  """
  position: int
  may_take: bool
  term: likelihood_lib.Term
  output: tf.Tensor
  target: tf.Tensor
  weight: tf.Tensor | None
  units: Units

  @property
  def is_far_below(self) -> bool:
    """Whether the locations are below a tenth of the targets."""
    loss = self.term.loss
    location = loss.distribution(tf.cast(self.output, loss.dtype)).mean()
    return _root_mean_square(location, self.weight) < (
        _FAR_BELOW * _root_mean_square(self.target, self.weight))

  @property
  def is_worse(self) -> bool:
    """Whether a constant predicts better, by a nat."""
    return not self._loss(self.term, self.output) <= (
        self._of_constant + 1.)  # Nor is NaN.

  @property
  def fits_in_units(self) -> bool:
    """Whether the output, read in units, predicts better than a constant."""
    return self._loss(
        _in_units(self.term, self.units), self.output) <= self._of_constant

  @property
  def _of_constant(self):
    return self._loss(_in_units(self.term, self.units), _constant(
        self.term, self.output))

  def _loss(self, term, output):
    """The mean over examples, in nats."""
    return -float(np.mean(np.float64(
        term.log_likelihood(self.target, output, self.weight))))


def _large(likelihood, y, outputs, sample_weight):
  """List of `_Large`, of likelihoods with locations that have no units."""
  losses = keras.tree.flatten(likelihood.losses)
  terms = likelihood.terms(outputs)
  found = []
  for term in terms:
    loss = term.loss
    if isinstance(loss, losses_lib.LocationScale) and not loss.has_units:
      units = _units(likelihood, y, outputs, sample_weight, term)
      if units is not None:
        number = sum(other.loss is loss for other in terms)
        own = type(loss).distribution
        found.append(_Large(
            next(k for k, other in enumerate(losses) if other is loss),
            number == 1 and own is losses_lib.LocationScale.distribution, term,
            likelihood.flat_outputs(outputs)[term.index],
            likelihood.target(y, outputs, term),
            likelihood.weight(sample_weight, outputs, term), units))
  return found


def _root_mean_square(values, sample_weight):
  values = np.float64(values)
  kept = values[inspection.counted(values.shape, None, sample_weight)]
  return np.linalg.norm(kept) / max(1, kept.size)**0.5


def _units(likelihood, y, outputs, sample_weight, term):
  """`Units` of the targets of an output; None where they are not large."""
  y = likelihood.target(y, outputs, term)
  if not _is_number(y):
    return None
  values = np.float64(y)
  is_counted = inspection.counted(
      values.shape, None, likelihood.weight(sample_weight, outputs, term))
  number = likelihood.flat_outputs(outputs)[term.index].shape[-1]
  columns = number if term.loss.scale is not None else number // 2
  if not columns or values.size % columns:
    return None  # Targets of another shape: the first step says so.
  values = np.where(is_counted, values, np.nan).reshape([-1, columns])
  values = values[~np.isnan(values).any(axis=1)]
  if not values.size or not np.isfinite(values).all() or (
      np.sqrt(np.mean(values**2, axis=0)).max() <= _LARGE):
    return None
  center, unit = np.mean(values, axis=0), np.std(values, axis=0)
  is_near = (np.abs(center) <= _NEAR) & (unit <= _NEAR)
  unit = np.where(is_near | (unit == 0.), 1., unit)
  # Two digits, and a tenth of it: nearly the same for other rows.
  unit = np.array([float(f'{value:.2g}') for value in unit])
  center = np.where(is_near, 0., np.round(center / unit, 1) * unit)
  center, unit = (  # 0 and not -0.
      [0. + float(f'{value:.7g}') for value in values]
      for values in (center, unit))
  return Units(center[0], unit[0]) if columns == 1 else Units(center, unit)


def _is_number(y):
  return tf.is_tensor(y) and (y.dtype.is_floating or y.dtype.is_integer)


def _in_units(term, units):
  """The term whose loss has units."""
  return term._replace(loss=term.loss.in_units(*units))


def _constant(term, output):
  """Outputs that stand for 0, and a scale of 1."""
  output = tf.zeros_like(output)
  if term.loss.scale is not None:
    return output
  location, _ = tf.split(output, 2, axis=-1)
  return tf.concat([location, location + _UNIT_SCALE], axis=-1)


def _arguments(units):
  return f'center={_shown(units.center)}, unit={_shown(units.unit)}'


def _shown(value):
  return f'{value:.7g}' if isinstance(value, float) else (
      '[' + ', '.join(map(_shown, value)) + ']')
