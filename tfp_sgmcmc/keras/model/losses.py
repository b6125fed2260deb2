"""Losses that are negative log likelihoods.

Each is -log p(y | outputs), one value an example, in nats, the normalising
constant included. `keras.losses.MeanSquaredError` is none of these: it leaves
out the scale of the noise, which sets how much the data weigh against the
prior.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal import checks

__all__ = [
    'DistributionLoss',
    'GaussianLikelihood',
    'LaplaceLikelihood',
    'LikelihoodLoss',
    'LocationScale',
    'NegativeLogLikelihood',
    'StudentTLikelihood',
]

tfd = tfp.distributions
_SMALLEST_SCALE = 1e-6


class LikelihoodLoss(keras.losses.Loss):
  """A loss -log p(y | outputs); a subclass defines `distribution`."""

  def distribution(self, y_pred: tf.Tensor) -> tfp.distributions.Distribution:
    """The distribution of the targets, given the model's outputs."""
    raise NotImplementedError

  def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """-log p(y_true | y_pred), summed over all axes but the first.

    Args:
      y_true: Targets, shape `[n, ...]`.
      y_pred: Outputs of the model, shape `[n, ...]`.

    Returns:
      nll: Shape `[n]`, in nats.

    Raises:
      ValueError: If the shapes of the targets and of the distribution differ.
    """
    distribution = self.distribution(y_pred)
    shape = distribution.batch_shape + distribution.event_shape
    y_true = tf.convert_to_tensor(y_true)
    if y_true.dtype != distribution.dtype:
      y_true = tf.cast(y_true, distribution.dtype)
    if y_true.shape.rank == shape.rank - 1 and shape[-1] == 1:
      y_true = y_true[..., tf.newaxis]
    if not y_true.shape.is_compatible_with(shape):
      raise ValueError(
          f'{self.name}: the targets have shape {y_true.shape} and the model '
          f"makes a distribution of shape {shape}. They have to be the same, "
          'for otherwise each target would be compared with the outputs for '
          'other examples: reshape the targets, or the last layer.')
    # A copy: of the targets a bijector may have cached another graph's inverse.
    log_prob = distribution.log_prob(tf.identity(y_true))
    return -tf.reduce_sum(log_prob, axis=range(1, log_prob.shape.rank))


class LocationScale(LikelihoodLoss):
  """Outputs are locations, or locations and scales along the last axis.

  With outputs (a, b) for each target,

    location = center + unit a,    scale = unit softplus(b).
  """
  # On the class: draws on disk know a loss by what an object of it has.
  center: float | list[float] = 0.
  unit: float | list[float] = 1.

  def __init__(
      self,
      scale: float | None = None,
      *,
      center: float | Sequence[float] = 0.,
      unit: float | Sequence[float] = 1.,
      reduction: str = 'sum_over_batch_size',
      name: str | None = None,
  ):
    """Makes the loss.

    Args:
      scale: The scale, in the units of the targets: a positive number, or None
        where the model learns it. Then the last axis of the outputs is twice
        as long as that of the targets: locations first, then numbers whose
        softplus is the scale, which is 1e-6 at least, in units of `unit`.
      center: The location where an output is 0, in the units of the targets: a
        number, or one for each target. For targets that are not standardised
        their mean over the training rows.
      unit: By how much the location changes where an output changes by 1: a
        positive number, or one for each target. For targets that are not
        standardised their standard deviation. What `model.predict` gives, and
        metrics get, are the outputs; the posterior's predictions are in the
        units of the targets.
      reduction: As for every Keras loss. What the sampler does does not depend
        on it.
      name: Python `str`.

    Raises:
      ValueError: If `scale` or `unit` is not positive, or `center` not finite.
      TypeError: If one of these is no number.
    """
    if scale is not None:
      checks.numeric('scale', scale, 0.)
    super().__init__(name=name, reduction=reduction)
    self.scale = scale
    given = (
        _per_target('center', center, -np.inf), _per_target('unit', unit, 0.))
    if given != (0., 1.):
      self.center, self.unit = given

  @property
  def has_units(self) -> bool:
    """Whether outputs stand for others than the targets themselves."""
    return (self.center, self.unit) != (0., 1.)

  def standardised(self, y: np.ndarray) -> np.ndarray:
    """(y - center) / unit, the targets as the outputs stand for them."""
    return (y - np.asarray(self.center)) / np.asarray(self.unit)

  def of_constant(
      self, y: tf.Tensor, location: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """-log p(y) of one location for all, and of one scale if it is learned.

    Args:
      y: Targets, `[n, k]`.
      location: `[k]`.
      scale: `[k]`.

    Returns:
      nll: `[n]`, in nats.
    """
    if self.scale is not None:
      scale = tf.cast(self.scale, y.dtype)
    return -tf.reduce_sum(self._make(location, scale).log_prob(y), axis=-1)

  def distribution(self, y_pred):
    if self.scale is not None:
      return self._make(
          self._location(y_pred), tf.cast(self.scale, y_pred.dtype))
    if y_pred.shape[-1] is None or y_pred.shape[-1] % 2:
      raise ValueError(
          f'{self.name} with scale=None reads locations and scales off the '
          f'outputs, whose last axis has length {y_pred.shape[-1]}: it has to '
          'be twice that of the targets. Give the last layer twice as many '
          'units, or pass scale=...')
    output, raw_scale = tf.split(y_pred, 2, axis=-1)
    # The softplus of -100 is 0 in float32, and the loss NaN.
    scale = tf.maximum(tf.nn.softplus(raw_scale), _SMALLEST_SCALE)
    return self._make(
        self._location(output),
        tf.cast(self.unit, scale.dtype) * scale if self.has_units else scale)

  def _location(self, output):
    """That of outputs, one of which is of each target."""
    if not self.has_units:
      return output
    for name in ('center', 'unit'):
      value = getattr(self, name)
      if isinstance(value, list) and len(value) != output.shape[-1]:
        raise ValueError(
            f'{self.name}: {name} has {len(value)} numbers, and the model has '
            f'outputs for {output.shape[-1]} target(s): one number is needed '
            'for each, or one for all.')
    center, unit = (
        tf.cast(value, output.dtype) for value in (self.center, self.unit))
    return center + unit * output

  def _make(self, location, scale):
    raise NotImplementedError

  def get_config(self):
    units = dict(center=self.center, unit=self.unit) if self.has_units else {}
    return {**super().get_config(), 'scale': self.scale, **units}


def _per_target(name, value, minimum):
  """A `float`, or a list of one for each target, of what was given."""
  array = checks.real_array(name, value)
  if array.ndim > 1:
    raise ValueError(
        f'{name} has shape {list(array.shape)}: a number is needed, or one for '
        'each target.')
  checks.numeric(name, array, minimum)
  return array.tolist()


@keras.saving.register_keras_serializable('tfp_sgmcmc')
class GaussianLikelihood(LocationScale):
  """-log N(y; location, scale^2), summed over the axes of an example.

  #### Examples

  >>> loss = sgmcmc.keras.GaussianLikelihood(scale=2.)
  >>> round(float(loss(tf.constant([[1.]]), tf.constant([[3.]]))), 4)
  2.1121

  With `scale=None` the model has two outputs for each target:

  >>> loss = sgmcmc.keras.GaussianLikelihood()
  >>> loss.distribution(tf.zeros([5, 2])).batch_shape
  TensorShape([5, 1])

  Targets in their own units, such as prices. The network has outputs of about
  1, as for standardised targets, and predictions are in the units of `y`:

  >>> y = np.array([[180e3], [240e3], [330e3]])
  >>> loss = sgmcmc.keras.GaussianLikelihood(center=y.mean(), unit=y.std())
  >>> float(loss.distribution(tf.zeros([1, 2])).mean()[0, 0])
  250000.0
  """

  def _make(self, location, scale):
    return tfd.Normal(location, scale)


@keras.saving.register_keras_serializable('tfp_sgmcmc')
class LaplaceLikelihood(LocationScale):
  """-log Laplace(y; location, scale), summed over the axes of an example.

  #### Examples

  >>> loss = sgmcmc.keras.LaplaceLikelihood(scale=0.5)
  >>> float(loss(tf.constant([[1.]]), tf.constant([[2.]])))
  2.0
  """

  def _make(self, location, scale):
    return tfd.Laplace(location, scale)


@keras.saving.register_keras_serializable('tfp_sgmcmc')
class StudentTLikelihood(LocationScale):
  """-log Student-t(y; df, location, scale), summed over an example's axes.

  #### Examples

  >>> loss = sgmcmc.keras.StudentTLikelihood(df=4., scale=1.)
  >>> round(float(loss(tf.constant([[0.]]), tf.constant([[0.]]))), 4)
  0.9808
  """

  def __init__(
      self,
      df: float,
      scale: float | None = None,
      *,
      center: float | Sequence[float] = 0.,
      unit: float | Sequence[float] = 1.,
      reduction: str = 'sum_over_batch_size',
      name: str | None = None,
  ):
    """Makes the loss.

    Args:
      df: Degrees of freedom, a positive number.
      scale: As for `GaussianLikelihood`.
      center: As there.
      unit: As there.
      reduction: As for every Keras loss.
      name: Python `str`.

    Raises:
      ValueError: If `df`, `scale` or `unit` is not positive, or `center` not
        finite.
      TypeError: If one of these is no number.
    """
    checks.numeric('df', df, 0.)
    super().__init__(
        scale=scale, center=center, unit=unit, reduction=reduction, name=name)
    self.df = df

  def _make(self, location, scale):
    return tfd.StudentT(tf.cast(self.df, location.dtype), location, scale)

  def get_config(self):
    return {**super().get_config(), 'df': self.df}


@keras.saving.register_keras_serializable('tfp_sgmcmc')
class DistributionLoss(LikelihoodLoss):
  """-log p(y | outputs) for any distribution that the outputs make.

  #### Examples

  Counts with more spread than Poisson's:

  >>> loss = sgmcmc.keras.DistributionLoss(
  ...     lambda outputs: tfd.NegativeBinomial(
  ...         total_count=3., logits=outputs))
  >>> loss(tf.constant([[2.], [0.]]), tf.zeros([2, 1])).shape
  TensorShape([])
  """

  def __init__(
      self,
      make_distribution: Callable[[tf.Tensor], Any],
      *,
      reduction: str = 'sum_over_batch_size',
      name: str | None = None,
  ):
    """Makes the loss.

    Args:
      make_distribution: Callable of the outputs `[n, ...]`; returns a
        `tfp.distributions.Distribution` whose batch and event shape together
        are the shape of the targets.
      reduction: As for every Keras loss.
      name: Python `str`.

    Raises:
      TypeError: If `make_distribution` is not callable, or does not return a
        distribution.
    """
    if not callable(make_distribution):
      raise TypeError(
          f'make_distribution is {make_distribution!r}: it has to be a '
          'function of the outputs that returns a distribution.')
    super().__init__(name=name, reduction=reduction)
    self.make_distribution = make_distribution

  def distribution(self, y_pred):
    distribution = self.make_distribution(y_pred)
    if not isinstance(distribution, tfd.Distribution):
      raise TypeError(
          f'{self.name}: make_distribution returned {distribution!r}. It has '
          'to return a tfp.distributions.Distribution.')
    return distribution

  def get_config(self):
    return {
        **super().get_config(),
        'make_distribution': keras.saving.serialize_keras_object(
            self.make_distribution)}

  @classmethod
  def from_config(cls, config):
    config = dict(config)
    if isinstance(config['make_distribution'], dict):
      config['make_distribution'] = keras.saving.deserialize_keras_object(
          config['make_distribution'])
    return cls(**config)


@keras.saving.register_keras_serializable('tfp_sgmcmc')
class NegativeLogLikelihood(keras.losses.Loss):
  """Declares that your own loss function is -log p(y | outputs).

  A sampler cannot check this, and it matters: a loss that is only proportional
  to -log p, or a mean where a sum is needed, gives another posterior, too wide
  or too narrow according to the factor. The function has to return

    -log p(y_i | outputs_i),  in nats, for each example i,

  summed over the axes of an example and not averaged, with all terms that
  depend on the weights. Other terms (a normalising constant of known
  parameters) may be left out. The posterior is then the same, and `nll` in
  `PosteriorSamples.evaluate` is off by these terms.

  Predictions are means of the model's outputs over the draws, since the
  targets' mean is not known; with `DistributionLoss` it is.

  #### Examples

  Waiting times, some of them only known to be longer than observed:

  >>> def survival(y, outputs):
  ...   time, is_observed = y[:, 0], y[:, 1]
  ...   log_rate = outputs[:, 0]
  ...   return tf.exp(log_rate) * time - is_observed * log_rate
  >>> loss = sgmcmc.keras.NegativeLogLikelihood(survival)
  >>> float(loss(tf.constant([[2., 1.], [4., 0.]]), tf.zeros([2, 1])))
  3.0

  As a decorator:

  >>> @sgmcmc.keras.NegativeLogLikelihood
  ... def exponential(y, outputs):
  ...   return tf.exp(outputs) * y - outputs
  >>> float(exponential(tf.constant([[2.]]), tf.zeros([1, 1])))
  2.0
  """

  def __init__(
      self,
      fn: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
      *,
      reduction: str = 'sum_over_batch_size',
      name: str | None = None,
  ):
    """Makes the loss.

    Args:
      fn: Callable of the targets and the outputs, `[n, ...]`; returns one value
        an example, `[n]`, or one for each of its elements, `[n, ...]`, which
        are summed.
      reduction: As for every Keras loss. What the sampler does does not depend
        on it.
      name: Python `str`.

    Raises:
      TypeError: If `fn` is not callable.
    """
    if not callable(fn):
      raise TypeError(
          f'fn is {fn!r}: it has to be a function of the targets and the '
          'outputs that returns -log p(target | outputs) of each example.')
    super().__init__(name=name, reduction=reduction)
    self.fn = fn

  def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """-log p(y_true | y_pred), summed over all axes but the first.

    Args:
      y_true: Targets, shape `[n, ...]`.
      y_pred: Outputs of the model, shape `[n, ...]`.

    Returns:
      nll: Shape `[n]`, in nats.

    Raises:
      ValueError: If `fn` does not return values for each example.
    """
    values = tf.convert_to_tensor(self.fn(y_true, y_pred))
    length = y_pred.shape[:1]
    is_one = length[0] is None and values.shape[:1] == [1]
    if values.shape.rank == 0 or is_one or (
        not values.shape[:1].is_compatible_with(length)):
      raise ValueError(
          f'{self.name}: fn returned shape {values.shape} for outputs of shape '
          f'{y_pred.shape}. It has to return one value for each example, '
          '[n, ...]: do not sum or average over examples.')
    return tf.reduce_sum(values, axis=range(1, values.shape.rank))

  def get_config(self):
    return {
        **super().get_config(),
        'fn': keras.saving.serialize_keras_object(self.fn)}

  @classmethod
  def from_config(cls, config):
    config = dict(config)
    if isinstance(config['fn'], dict):
      config['fn'] = keras.saving.deserialize_keras_object(config['fn'])
    return cls(**config)
