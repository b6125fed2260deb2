"""Warns of what acts in training but not, or wrongly, while sampling."""

import warnings

import keras
import numpy as np

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.model import network

__all__ = ['warn_of_randomness', 'warn_of_what_stops']

# Beside layers whose names begin with "Random".
_AUGMENTATIONS = ('AugMix', 'CutMix', 'MixUp', 'RandAugment')


def warn_of_what_stops(model: keras.Model) -> None:
  """Warns of what trained the model and takes no part in sampling.

  Args:
    model: Compiled `keras.Model`.
  """
  stops = []
  optimizer = getattr(model.optimizer, 'inner_optimizer', model.optimizer)
  decay = getattr(optimizer, 'weight_decay', None)
  if decay:
    stops.append(
        f'weight_decay={decay:g} of the optimizer (say what it is to say by '
        'the prior)')
  stops.extend(
      f'the augmentation layer {layer.name!r} (augment in the tf.data '
      'pipeline)' for layer in compat.all_layers(model) if _augments(layer))
  if stops:
    warnings.warn(
        'While the kernel samples these do not affect the posterior: '
        f'{" and ".join(stops)}.', stacklevel=2)


def warn_of_randomness(model: keras.Model, x: hints.Data) -> None:
  """Warns where the model's outputs are random without training.

  Keras takes `Dropout(...)(x, training=True)` at its word where the model is
  called without `training`; in `fit` and `predict` it does so within a layer or
  a model of one's own, and in a functional model it does not.

  Args:
    model: Built `keras.Model`.
    x: A batch of inputs, on which it runs twice.
  """
  called = _seeds_used(model, x, {})
  predicting = network.call_arguments(model, training=False)
  used = _seeds_used(model, x, predicting)
  if used or not called and _outputs_differ(model, x):
    _warn_of(
        used, 'The model is random also in prediction', 'on the same batch it '
        'gives other outputs each time. This noise is no part of the '
        'posterior: each step sees a likelihood of its own, and predictions '
        'have the noise beside the spread of the draws')
  elif called:
    _warn_of(
        called, 'The model is random when it is called without training=False',
        'Keras turns this off in fit and predict. The noise is no part of the '
        'posterior: there is none in its draws or predictions')


def _warn_of(names, what, meaning):
  where = f' (layer {", ".join(map(repr, names))})' if names else ''
  warnings.warn(
      f'{what}{where}: {meaning}. Where it is Dropout(...)(x, training=True) '
      'leave training=True out: the draws are what it stands in for.',
      stacklevel=2)


def _seeds_used(model, x, arguments):
  """The names of layers whose random generators a call uses."""
  states = {
      id(state): layer.name for layer in compat.all_layers(model)
      if not _augments(layer) for state in _seed_states(layer)}
  if not states:
    return []
  used = network.changed_by_call(
      model, x, model.non_trainable_variables, arguments)
  return [name for state, name in states.items() if state in used]


def _outputs_differ(model, x):
  """Whether two predictions for the same batch differ."""
  arguments = network.call_arguments(model, training=False)
  with network.put_back([
      *model.non_trainable_variables, *model.metrics_variables]):
    first, second = (
        keras.tree.flatten(model(x, **arguments)) for _ in range(2))
  return not all(map(_are_close, first, second))


def _augments(layer):
  name = type(layer).__name__
  return (name.startswith('Random') or name in _AUGMENTATIONS) and (
      getattr(keras.layers, name, None) is type(layer))


def _seed_states(layer):
  """The states of a layer's own random generators."""
  generators = [
      value for value in vars(layer).values()
      if isinstance(value, keras.random.SeedGenerator)]
  return [generator.state for generator in generators]


def _are_close(a, b):
  a, b = (np.asarray(t).astype(np.float64) for t in (a, b))
  scale = np.max(np.nan_to_num(np.abs(a)), initial=0.)
  return np.allclose(a, b, rtol=0., atol=1e-3 * scale, equal_nan=True)
