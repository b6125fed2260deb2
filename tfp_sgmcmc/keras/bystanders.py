"""What acts while the optimizer trains, and not, or wrongly, in sampling."""

from typing import Any
import warnings

import keras
import numpy as np

from tfp_sgmcmc.keras import network

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
      'pipeline)' for layer in network.layers(model) if _augments(layer))
  if stops:
    warnings.warn(
        'While the kernel samples there is no part in the posterior for '
        f'{" and ".join(stops)}.', stacklevel=2)


def warn_of_randomness(model: keras.Model, x: Any) -> None:
  """Warns where the model's outputs are random as for prediction.

  Args:
    model: Built `keras.Model`.
    x: A batch of inputs, on which it runs twice.
  """
  weights = [v.value for v in model.trainable_variables]
  first = network.forward(model, x, weights)
  changed = {id(v) for v, _ in first.updates}
  names = [
      repr(layer.name) for layer in network.layers(model)
      if changed & {id(v) for v in _seed_states(layer)}]
  if not names:
    second = network.forward(model, x, weights, first.updates)
    if all(map(_are_close, keras.tree.flatten(first.outputs),
               keras.tree.flatten(second.outputs))):
      return
  where = f' (layer {", ".join(names)})' if names else ''
  warnings.warn(
      f'The model is random also in prediction{where}: on the same batch it '
      'gives other outputs each time. This noise is no part of the posterior: '
      'each step sees a likelihood of its own, and predictions have the noise '
      'beside the spread of the draws. Where it is Dropout(...)(x, '
      'training=True) leave training=True out: the draws are what it stands '
      'in for.', stacklevel=2)


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
  scale = np.max(np.abs(a), initial=0.)
  return np.allclose(a, b, rtol=0., atol=1e-3 * scale, equal_nan=True)
