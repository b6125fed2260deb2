"""The log likelihood of each example, from a model's compiled losses.

Keras reduces a loss over examples (and over their elements) in one of several
ways. A log posterior needs each example's own value, the sum over its elements,

  log p(y_i | x_i, theta) = - sum over outputs of weight * loss_i,

so that `Posterior` can scale by N / n. Hence the losses are evaluated before
their reduction, which then makes no difference.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import keras
import tensorflow as tf

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.model import losses as losses_lib

__all__ = ['CROSSENTROPIES', 'Likelihood', 'NoMeanError', 'Term']

_FUNCTIONS = {
    keras.losses.sparse_categorical_crossentropy:
        keras.losses.SparseCategoricalCrossentropy,
    keras.losses.categorical_crossentropy:
        keras.losses.CategoricalCrossentropy,
    keras.losses.binary_crossentropy: keras.losses.BinaryCrossentropy,
    keras.losses.poisson: keras.losses.Poisson,
}
CROSSENTROPIES = (
    keras.losses.SparseCategoricalCrossentropy,
    keras.losses.CategoricalCrossentropy, keras.losses.BinaryCrossentropy)
# Keras takes the mean over the last axis of these, where a likelihood sums.
_MEANS = (keras.losses.BinaryCrossentropy, keras.losses.Poisson)

_WAY_OUT = (
    'Negative log likelihoods are: "sparse_categorical_crossentropy", '
    '"categorical_crossentropy", "binary_crossentropy" and "poisson" (or their '
    'classes), and sgmcmc.keras.GaussianLikelihood, LaplaceLikelihood, '
    'StudentTLikelihood and DistributionLoss(lambda outputs: '
    'tfd.<Distribution>(...)). If a function of yours is -log p(y | outputs) '
    'of each example, say so: sgmcmc.keras.NegativeLogLikelihood(function). ')
_HINTS = {
    'mean_squared_error': (
        'For squared errors, compile with GaussianLikelihood(scale=...), scale '
        'the standard deviation of the noise, or with scale=None and two '
        'outputs a target, to learn it.'),
    'mean_absolute_error': (
        'For absolute errors, compile with LaplaceLikelihood(scale=...).'),
    'huber': (
        'For errors with outliers, compile with StudentTLikelihood(df=4., '
        'scale=...).'),
}
_ALIASES = {
    'mse': 'mean_squared_error', 'mae': 'mean_absolute_error',
    'meansquarederror': 'mean_squared_error',
    'meanabsoluteerror': 'mean_absolute_error'}


class NoMeanError(ValueError):
  """TFP does not know the mean of a distribution of targets."""


class Term(NamedTuple):
  """The loss of one output.

  Attributes:
    name: The output's name, None for the only one.
    index: Its position among the outputs.
    loss: The loss object.
    weight: Number by which Keras weighs it, 1 by default.
  """
  name: str | None
  index: int  # type: ignore[assignment]
  loss: keras.losses.Loss
  weight: float

  def log_likelihood(
      self,
      y_true: tf.Tensor,
      y_pred: tf.Tensor,
      sample_weight: tf.Tensor,
  ) -> tf.Tensor:
    """The log likelihood of each example, shape `[n]`, in nats."""
    mask = compat.mask(y_pred)
    dtype = self.loss.dtype
    y_pred = tf.cast(y_pred, dtype)
    y_true = tf.cast(y_true, dtype)
    if y_pred.shape.rank is not None and y_pred.shape.rank < 2:
      raise ValueError(
          f'The model has an output of shape {y_pred.shape}: an axis of '
          'examples and one of values is needed, [n, 1] for a single value.')
    self._check_targets(y_true.shape, y_pred.shape)
    values = self.loss.call(y_true, y_pred)
    if isinstance(self.loss, _MEANS):
      values *= tf.cast(tf.shape(y_pred)[-1], dtype)
    if isinstance(self.loss, keras.losses.Poisson):
      y_true = tf.reshape(y_true, tf.shape(y_pred))
      values += tf.reduce_sum(tf.math.lgamma(y_true + 1.), axis=-1)
    for name, factor in (
        ("mask of the model's output has", mask),
        ('sample weights have', sample_weight)):
      if factor is not None:
        values *= _expand(name, tf.cast(factor, dtype), values)
    values = -tf.reduce_sum(values, axis=range(1, values.shape.rank))
    # XLA has one sum for this and for the mean loss, but for a product with 1.
    return values if self.weight == 1. else self.weight * values

  def _check_targets(self, shape, outputs):
    """Raises where a loss of Keras would broadcast, or say less."""
    if type(self.loss) not in _FUNCTIONS.values() or None in (
        shape.rank, outputs.rank) or self.loss.get_config().get(
            'axis', -1) != -1:
      return
    wanted = outputs[:-1] if self.is_sparse else outputs
    if (shape.is_compatible_with(wanted)
        or self.is_sparse and shape.is_compatible_with(wanted + [1])
        or wanted[-1] == 1 and shape.is_compatible_with(wanted[:-1])):
      return
    where = '' if self.name is None else f' of the output {self.name!r}'
    kind = 'class numbers' if self.is_sparse else 'one value for each output'
    raise ValueError(
        f'The targets{where} have shape {shape}, the outputs {outputs}, and '
        f'the loss {self.loss.name!r} needs targets of shape {wanted}, {kind}: '
        'reshape the targets, or the last layer, or take another loss.')

  @property
  def is_classification(self) -> bool:
    """Whether the outputs stand for class probabilities."""
    return isinstance(self.loss, CROSSENTROPIES)

  @property
  def is_binary(self) -> bool:
    """Whether each value of the output is a probability of its own."""
    return isinstance(self.loss, keras.losses.BinaryCrossentropy)

  @property
  def from_logits(self) -> bool:
    """Whether the outputs are logits."""
    return self.is_classification and bool(
        self.loss.get_config().get('from_logits', False))

  @property
  def is_sparse(self) -> bool:
    """Whether the targets are class numbers."""
    return isinstance(self.loss, keras.losses.SparseCategoricalCrossentropy)

  @property
  def ignored_class(self) -> int | None:
    """The class number of targets that do not count, None for none."""
    return self.loss.get_config().get('ignore_class')

  def elements(self, shape: hints.Shape) -> Any:
    """The shape of what is classified, of outputs of a shape."""
    return shape if self.is_binary else shape[:-1]

  def probabilities(self, y_pred: tf.Tensor) -> tf.Tensor:
    """Class probabilities along the last axis, whatever the model gives."""
    p = self.predictive_mean(y_pred)
    if self.is_binary or self.from_logits:
      return p
    # Keras' crossentropy normalises what it is given.
    return p / tf.reduce_sum(p, axis=-1, keepdims=True)

  def predictive_mean(self, y_pred: tf.Tensor) -> tf.Tensor:
    """The mean of the targets: probabilities for classes.

    Args:
      y_pred: Outputs `[n, ...]`.

    Returns:
      mean: Shape of the targets.

    Raises:
      NoMeanError: If TFP has none of the distribution.
    """
    if self.from_logits:
      link = tf.sigmoid if self.is_binary else tf.nn.softmax
      return link(tf.cast(y_pred, self.loss.dtype))
    if isinstance(self.loss, losses_lib.LikelihoodLoss):
      return _mean(
          self.loss.name,
          self.loss.distribution(tf.cast(y_pred, self.loss.dtype)))
    return tf.cast(y_pred, self.loss.dtype)


def _mean(name, distribution):
  try:
    return distribution.mean()
  except NotImplementedError as error:
    raise NoMeanError(
        f'{name}: {type(distribution).__name__} has no mean in TFP. Use '
        'sample(x, n), or predict(x, return_samples=True), the outputs of each '
        'draw.') from error


class Likelihood:
  """The log likelihood of each example under a model's compiled losses."""

  def __init__(self, model: keras.Model):
    """Reads the losses off a compiled model.

    Args:
      model: Compiled `keras.Model`.

    Raises:
      ValueError: If a loss is not a negative log likelihood, or there is none.
    """
    if not getattr(model, 'compiled', False) or model.loss is None:
      raise ValueError(
          f'The model {model.name!r} is compiled without a loss, so there is '
          'no likelihood. Call model.compile(optimizer, loss=...) with a '
          f'negative log likelihood. {_WAY_OUT}')
    self._losses = _map(_resolve, model.loss)
    self._weights = compat.loss_weights(model)
    self._output_names = getattr(model, 'output_names', None)

  @property
  def losses(self) -> Any:
    """The loss objects, in the structure that the model was compiled with."""
    return self._losses

  @property
  def parameters(self) -> dict[str, Any]:
    """The losses and their weights, to tell whether another is the same."""
    # Keras describes a function by its name alone.
    return {
        'losses': _map(lambda loss: [
            loss, *(getattr(loss, name, None)
                    for name in ('make_distribution', 'fn'))], self._losses),
        'weights': self._weights}

  @property
  def losses_of_probabilities(self) -> list[keras.losses.Loss]:
    """Those that take outputs for probabilities."""
    return [
        loss for loss in keras.tree.flatten(self._losses)
        if type(loss) in _FUNCTIONS.values()
        and loss.get_config().get('from_logits') is False]

  def terms(self, y_pred: hints.Nested) -> list[Term]:
    """The losses in the order of the flat outputs.

    Args:
      y_pred: The model's outputs, or anything in their structure.

    Returns:
      terms: List of `Term`.

    Raises:
      ValueError: If losses and outputs do not fit.
    """
    names = self.output_names(y_pred)
    terms = []
    for index, name in enumerate(names):
      single = not isinstance(self._losses, (dict, list, tuple))
      loss = self._losses if single else self._pick(
          self._losses, index, name, len(names), 'losses')
      weight = 1.
      if self._weights is not None:
        weight = self._pick(
            self._weights, index, name, len(names), 'loss_weights')
      if loss is not None:
        terms.append(Term(
            name if len(names) > 1 else None, index, loss,
            1. if weight is None else float(weight)))
    if not terms:
      raise ValueError('No output of the model has a loss.')
    return terms

  def log_likelihood(
      self,
      y: hints.Data,
      y_pred: hints.Nested,
      sample_weight: tf.Tensor,
  ) -> tf.Tensor:
    """The log likelihood of each example, summed over outputs.

    Args:
      y: Targets, in a structure that Keras accepts.
      y_pred: The model's outputs.
      sample_weight: None, `[n]`, or a structure with one for each output; it
        multiplies the log likelihood.

    Returns:
      log_likelihood: Shape `[n]`, in nats.
    """
    if y is None:
      raise ValueError(
          'There are no targets: pass y to fit, or a dataset of (x, y).')
    flat = self.flat_outputs(y_pred)
    total = 0.
    for term in self.terms(y_pred):
      total += term.log_likelihood(
          self.target(y, y_pred, term), flat[term.index],
          self.weight(sample_weight, y_pred, term))
    return total

  def target(
      self,
      y: hints.Data,
      y_pred: hints.Nested,
      term: Term,
  ) -> tf.Tensor:
    """The targets of one term."""
    names = self.output_names(y_pred)
    return self._pick(y, term.index, names[term.index], len(names), 'targets')

  def weight(
      self,
      sample_weight: hints.Nested,
      y_pred: hints.Nested,
      term: Term,
  ) -> Any:
    """The sample weights of one term, None without."""
    if not isinstance(sample_weight, (dict, list, tuple)):
      return sample_weight
    names = self.output_names(y_pred)
    return self._pick(
        sample_weight, term.index, names[term.index], len(names),
        'sample weights')

  def flat_outputs(self, y_pred: hints.Nested) -> list[Any]:
    """The outputs as a list."""
    if isinstance(y_pred, dict):
      return [y_pred[name] for name in self.output_names(y_pred)]
    return list(y_pred) if isinstance(y_pred, (list, tuple)) else [y_pred]

  def map_outputs(
      self, fn: Callable[[Term | None, Any], Any], y_pred: hints.Nested) -> Any:
    """Applies `fn(term, output)`, the term None without loss."""
    terms = {term.index: term for term in self.terms(y_pred)}
    flat = [
        fn(terms.get(k), output)
        for k, output in enumerate(self.flat_outputs(y_pred))]
    if isinstance(y_pred, dict):
      return dict(zip(self.output_names(y_pred), flat))
    if isinstance(y_pred, (list, tuple)):
      return type(y_pred)(flat)
    return flat[0]

  def output_names(self, y_pred: hints.Nested) -> list[str | None]:
    """The name of each of the flat outputs, None where none is known."""
    names: list[str | None] | None
    if isinstance(y_pred, dict):
      names = list(y_pred)
    elif isinstance(y_pred, (list, tuple)):
      names = self._output_names
      if names is None or len(names) != len(y_pred):
        names = [f'output_{k}' for k in range(len(y_pred))]
    else:
      return [self._output_names[0] if self._output_names else None]
    flat = y_pred.values() if isinstance(y_pred, dict) else y_pred
    if any(isinstance(output, (dict, list, tuple)) for output in flat):
      raise ValueError(
          'The outputs of the model are nested more than once: return a list '
          'or a dict of tensors.')
    return list(names)

  @staticmethod
  def _pick(structure, index, name, number, what):
    if isinstance(structure, dict):
      if number == 1 and len(structure) == 1:
        return next(iter(structure.values()))
      if what == 'targets' and name not in structure:
        raise ValueError(
            f'There are no targets for the output {name!r}: the keys are '
            f'{sorted(structure)}.')
      return structure.get(name)
    if isinstance(structure, (list, tuple)):
      if len(structure) != number:
        raise ValueError(
            f'The model has {number} output(s), and there are '
            f'{len(structure)} {what}: one is needed for each output.')
      return structure[index]
    if number > 1:
      raise ValueError(
          f'The model has {number} outputs, and the {what} are a single one: '
          'pass a list or a dict with one for each output.')
    return structure


def _map(fn, structure):
  if isinstance(structure, dict):
    return {name: _map(fn, value) for name, value in structure.items()}
  if isinstance(structure, (list, tuple)):
    return [_map(fn, value) for value in structure]
  return None if structure is None else fn(structure)


def _resolve(loss):
  """A loss object that is a negative log likelihood, or an error."""
  if isinstance(loss, str) and loss.lower() in ('crossentropy', 'ce'):
    raise ValueError(
        f'The loss {loss!r} stands for one of three, by the shapes: name it, '
        '"sparse_categorical_crossentropy", "categorical_crossentropy" or '
        '"binary_crossentropy".')
  if isinstance(loss, type):
    raise ValueError(
        f'The model is compiled with the class {loss.__name__} as its loss: '
        f'pass an object of it, loss={loss.__name__}(...).')
  resolved = keras.losses.get(loss)
  if resolved in _FUNCTIONS:
    return _FUNCTIONS[resolved]()
  if type(resolved) in _FUNCTIONS.values() or isinstance(
      resolved,
      (losses_lib.LikelihoodLoss, losses_lib.NegativeLogLikelihood)):
    return resolved
  name = loss if isinstance(loss, str) else getattr(
      resolved, '__name__', type(resolved).__name__)
  key = getattr(getattr(resolved, 'fn', resolved), '__name__', name)
  hint = _HINTS.get(_ALIASES.get(key.lower(), key), '')
  raise ValueError(
      f'The loss {name!r} is not known to be a negative log likelihood, so '
      f'there is no posterior to sample. {_WAY_OUT}{hint}')


def _expand(name, weight, values):
  """Weights in a shape that broadcasts with the values from the left."""
  if weight.shape.rank > values.shape.rank and weight.shape[-1] == 1:
    weight = tf.squeeze(weight, axis=-1)
  if weight.shape.rank > values.shape.rank:
    raise ValueError(
        f'The {name} shape {weight.shape} and the losses {values.shape}: one '
        'value for each example is needed, [n]. (Losses of this package are '
        'sums over the elements of an example.)')
  while weight.shape.rank < values.shape.rank:
    weight = weight[..., tf.newaxis]
  return weight
