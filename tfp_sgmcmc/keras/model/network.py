"""What the sampler asks of a Keras model and of its optimizer."""

from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import functools
import inspect
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints

__all__ = [
    'ForwardPass',
    'assign',
    'build_moving_average',
    'call_arguments',
    'calls_through',
    'changed_by_call',
    'check_finite',
    'check_kind',
    'check_model',
    'check_weights',
    'compute_dtypes',
    'forward',
    'has_moving_average',
    'is_built',
    'is_finite',
    'layers',
    'learning_rate',
    'loss_tracker',
    'map_leaves',
    'mean_loss',
    'num_rows',
    'num_trained_steps',
    'num_weights',
    'of_any_length',
    'paths',
    'put_back',
    'values',
    'without_optionals',
]

Updates = Sequence[tuple[keras.Variable, tf.Tensor]]


class ForwardPass(NamedTuple):
  """What one pass through a model leaves.

  Attributes:
    weights: The values of the trainable weights, one tensor each.
    outputs: The outputs, in the model's structure.
    penalties: List of scalars, all added losses: the weights' regularisers and
      what layers add.
    layer_losses: List of scalars, those penalties that layers added in the
      pass, without the weights' regularisers.
    updates: Pairs of a variable and its new value: what layers count (metrics)
      or use up (the state of a random generator).
  """
  weights: Sequence[tf.Tensor]
  outputs: Any
  penalties: list[tf.Tensor]
  layer_losses: list[tf.Tensor]
  updates: Updates


def forward(
    model: keras.Model,
    x: hints.Data,
    weights: Sequence[tf.Tensor],
    updates: Updates = (),
) -> ForwardPass:
  """Runs a model as for prediction, with given weights; changes no variable.

  Args:
    model: Built `keras.Model`.
    x: A batch of inputs.
    weights: One tensor for each of `model.trainable_variables`.
    updates: Values in place of those of other variables, as an earlier pass
      left them.

  Returns:
    forward_pass: `ForwardPass`.
  """
  with keras.StatelessScope(
      state_mapping=[*zip(model.trainable_variables, weights), *updates],
      collect_losses=True) as scope:
    outputs = model(x, **call_arguments(model, training=False))
    penalties = [tf.reduce_sum(loss) for loss in model.losses]
  return ForwardPass(
      weights, outputs, penalties, list(scope.losses),
      _updates(scope, [
          *model.non_trainable_variables, *model.metrics_variables]))


def mean_loss(
    model: keras.Model,
    data: tuple[Any, Any, Any],
    forward_pass: ForwardPass,
) -> tuple[tf.Tensor, dict[int, tf.Tensor]]:
  """The compiled loss and all penalties: the loss that Keras reports.

  Args:
    model: Compiled `keras.Model`.
    data: `(x, y, sample_weight)`, the examples of `forward_pass`.
    forward_pass: `ForwardPass`.

  Returns:
    loss: Scalar.
    counted: What is to be added to metrics that the loss itself keeps (those
      of several outputs, one each), by their place among the model's.
  """
  x, y, sample_weight = data
  with keras.StatelessScope(
      state_mapping=list(zip(
          model.trainable_variables, forward_pass.weights))) as scope:
    # The scope knows of no loss that a layer added, so they are added below.
    loss = model.compute_loss(x, y, forward_pass.outputs, sample_weight)
  # Keras divides the losses by the number of replicas, to add them up.
  loss *= tf.cast(model.distribute_strategy.num_replicas_in_sync, loss.dtype)
  for added in forward_pass.layer_losses:
    loss += tf.reduce_sum(tf.cast(added, loss.dtype))
  values = [scope.get_current_value(v) for v in model.metrics_variables]
  return loss, {
      place: value - variable for place, (variable, value) in enumerate(
          zip(model.metrics_variables, values)) if value is not None}


def num_rows(data: hints.Data) -> Any:
  """The number of examples of a batch: an `int` where it is known."""
  first = next(leaf for leaf in keras.tree.flatten(data) if leaf is not None)
  return compat.shape(first)[0]


def map_leaves(fn: Callable[[Any], Any], structure: hints.Nested) -> Any:
  """`fn` of each leaf of a structure; None where a leaf is None."""
  return keras.tree.map_structure(
      lambda leaf: None if leaf is None else fn(leaf), structure)


def without_optionals(data: hints.Data) -> Any:
  """The data with None where Keras has an empty `Optional`."""
  return keras.tree.map_structure(
      lambda leaf: None if isinstance(leaf, tf.experimental.Optional)
      else leaf, data)


def of_any_length(tensor: tf.Tensor) -> Any:
  """The spec of a tensor whose leading axis may have any length."""
  if tensor is None or not tensor.shape.rank:
    return tensor
  return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def loss_tracker(model: keras.Model) -> keras.metrics.Metric:
  """The metric of the mean loss; a new object each time that one compiles."""
  return next(metric for metric in model.metrics if metric.name == 'loss')


def layers(model: keras.Model) -> Iterator[keras.Layer]:
  """All layers, those of models within the model too."""
  for layer in model.layers:
    yield layer
    if hasattr(layer, 'layers'):
      yield from layers(layer)


def compute_dtypes(model: keras.Model) -> set[str]:
  """The dtypes that the layers compute in which have weights."""
  return {
      layer.compute_dtype for layer in layers(model)
      if layer.trainable_variables}


def paths(variables: Sequence[Any]) -> list[str]:
  """The variables' paths, with a number where several have the same."""
  seen = Counter()
  found = []
  for variable in variables:
    number = seen[variable.path]
    seen[variable.path] += 1
    found.append(f'{variable.path}#{number}' if number else variable.path)
  return found


def values(variables: Sequence[Any]) -> list[np.ndarray]:
  """The values of variables, as arrays."""
  return [variable.numpy() for variable in variables]


def assign(variables: Sequence[Any], new_values: Sequence[Any]) -> None:
  """Assigns a value to each variable."""
  for variable, value in zip(variables, new_values):
    variable.assign(value)


@contextlib.contextmanager
def put_back(variables: Sequence[Any]) -> Iterator[list[np.ndarray]]:
  """Puts back the values of variables that are assigned in between."""
  kept = values(variables)
  try:
    yield kept
  finally:
    assign(variables, kept)


@contextlib.contextmanager
def calls_through(
    call: Callable[..., Any], layers: Iterable[keras.Layer]) -> Iterator[None]:
  """Has the calls of layers go through a function.

  Args:
    call: Callable of the layer, its own `call`, and the call's arguments.
    layers: Layers.
  """
  layers = list(layers)
  try:
    for layer in layers:
      # setattr would look for layers to track.
      vars(layer)['call'] = functools.partial(call, layer, layer.call)
    yield
  finally:
    for layer in layers:
      vars(layer).pop('call', None)


def num_weights(weights: Iterable[Any]) -> int:
  """How many numbers some weights hold."""
  return sum(weight.shape.num_elements() for weight in weights)


def num_trained_steps(optimizer: keras.optimizers.Optimizer) -> int:
  """How many steps an optimizer has made; 0 where it does not count them."""
  return int(tf.convert_to_tensor(getattr(optimizer, 'iterations', 0)))


def learning_rate(
    optimizer: keras.optimizers.Optimizer,
) -> keras.Variable | None:
  """The learning rate that callbacks can set, None where there is none."""
  rate = getattr(optimizer, 'learning_rate', None)
  return rate if isinstance(rate, keras.Variable) else None


def has_moving_average(optimizer: keras.optimizers.Optimizer) -> bool:
  """Whether `fit` ends by putting an average of the weights in their place."""
  optimizer = getattr(optimizer, 'inner_optimizer', optimizer)
  return bool(getattr(optimizer, 'use_ema', False))


def check_kind(model: keras.Model) -> None:
  """Raises `TypeError` where the model is none of Keras 3."""
  if isinstance(model, type):
    raise TypeError(
        f'model is the class {model.__name__}: pass a model, an object of it, '
        f'{model.__name__}(...).')
  if not isinstance(model, keras.Model):
    raise TypeError(
        f'model is of type {type(model).__module__}.{type(model).__name__}: a '
        'keras.Model of Keras 3 (import keras) is needed, and no model of '
        'tf_keras, which is Keras 2. Build it with keras.layers.')


def build_moving_average(model: keras.Model) -> None:
  """Makes the average that `fit` puts in place of the weights at its end.

  The optimizer makes it with its first step, which may never come.
  """
  if has_moving_average(model.optimizer) and not model.optimizer.built:
    model.optimizer.build(model.trainable_variables)


def is_built(model: keras.Model) -> bool:
  """Whether the model has all its weights."""
  return bool(model.built and model.trainable_variables and all(
      layer.built for layer in layers(model)))


def check_model(model: keras.Model) -> None:
  """Raises where the model makes its own steps or losses.

  Args:
    model: `keras.Model`.

  Raises:
    TypeError: If it is no Keras 3 model.
    ValueError: If it does, or carries a state from batch to batch.
  """
  check_kind(model)
  for name in ('train_step', 'compute_loss'):
    own = getattr(type(model), name, None)
    if own is not getattr(keras.Model, name):
      raise ValueError(
          f'{type(model).__name__} defines its own {name}, and '
          'PosteriorSampling makes the step itself, from the compiled losses: '
          'what it does would be lost. Write the likelihood as a loss '
          '(sgmcmc.keras.DistributionLoss) and other terms with add_loss.')
  for layer in compat.all_layers(model):
    if getattr(layer, 'stateful', False) is True:
      raise ValueError(
          f'The layer {layer.name!r} is stateful: it goes on from the state '
          'that the batch before has left, so that no example has a '
          'likelihood of its own, and there is no posterior. Make it with '
          'stateful=False, and give each example its whole sequence.')


def check_weights(model: keras.Model) -> None:
  """Raises where weights cannot be sampled as they are used.

  Args:
    model: Built `keras.Model`.

  Raises:
    ValueError: If there are no trainable weights, or one has a constraint.
  """
  variables = model.trainable_variables
  if not variables:
    raise ValueError(
        f'The model {model.name!r} has no trainable weights: there is nothing '
        'to sample. Unfreeze a layer and compile again.')
  for variable in variables:
    if getattr(variable, 'constraint', None) is not None:
      raise ValueError(
          f'The weight {variable.path!r} has the constraint '
          f'{variable.constraint!r}, which the optimizer would enforce and a '
          'kernel does not: remove it, and put what it says into the prior.')


def check_finite(model: keras.Model) -> None:
  """Raises where training has left weights that a chain cannot start from.

  Args:
    model: Built `keras.Model`.

  Raises:
    ValueError: If a trainable weight is NaN or infinite.
  """
  for variable in model.trainable_variables:
    bad = _num_not_finite(variable)
    if bad:
      raise ValueError(
          f'The weight {variable.path!r} has {bad} values that are NaN or '
          'infinite: training went astray before sampling began. Do the data '
          "hold NaN? Else lower the optimizer's learning rate, or standardise "
          'inputs and targets.')


def is_finite(model: keras.Model) -> bool:
  """Whether no trainable weight is NaN or infinite."""
  return not any(map(_num_not_finite, model.trainable_variables))


def _num_not_finite(variable):
  return int(np.sum(~np.isfinite(np.asarray(variable.numpy(), np.float64))))


def call_arguments(model: keras.Model, training: bool) -> dict[str, bool]:
  """The arguments of a call as for prediction, or as for training."""
  arguments = inspect.signature(model.call).parameters
  if 'training' in arguments or any(
      p.kind is p.VAR_KEYWORD for p in arguments.values()):
    return {'training': training}
  return {}


def changed_by_call(
    model: keras.Model,
    x: hints.Data,
    variables: Sequence[keras.Variable],
    arguments: dict[str, bool],
) -> set[int]:
  """The ids of those variables to which a call would give values.

  Args:
    model: Built `keras.Model`. Its variables stay as they are.
    x: A batch of inputs.
    variables: Variables of the model.
    arguments: The arguments of the call beside `x`.

  Returns:
    changed: Set of ids.
  """
  with keras.StatelessScope() as scope:
    model(x, **arguments)
  return {id(variable) for variable, _ in _updates(scope, variables)}


def _updates(scope, variables):
  """The variables to which a scope gave a value, each with that value."""
  pairs = ((v, scope.get_current_value(v)) for v in variables)
  return [(v, value) for v, value in pairs if value is not None]
