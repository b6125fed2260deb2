"""What draws on disk say of the model that they are of.

Shapes alone do not tell two models apart: with another activation, or other
frozen weights, the same draws predict something else.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import hashlib
import itertools
import json
import warnings

import keras

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import fingerprint
from tfp_sgmcmc.keras import likelihood
from tfp_sgmcmc.keras import losses as losses_lib

__all__ = ['check', 'difference', 'of_layers', 'of_model']

_LAYERS, _FROZEN, _LOSS = 'layers', 'weights that are not sampled', 'loss'


def of_model(
    model: keras.Model, extras: Sequence[keras.Variable]) -> dict[str, str]:
  """What a model is beside the weights that its draws hold.

  Its layers, its loss, and a line for each weight that draws do not hold: a
  hash, and the weight's path.

  Args:
    model: Built `keras.Model`.
    extras: Its variables that draws hold beside the trainable ones.

  Returns:
    record: Dictionary of texts.
  """
  held = {id(variable) for variable in extras}
  return {
      **of_layers(model),
      _LOSS: _loss(model),
      _FROZEN: '\n'.join(
          f'{_digest(variable.numpy().tobytes())} {variable.path}'
          for variable in model.non_trainable_weights
          if id(variable) not in held)}


def of_layers(model: keras.Model) -> dict[str, str]:
  """The part of a record that is of the layers.

  A line for each: its class, and a hash of what decides the outputs for given
  weights, and the added losses: neither names nor shapes, initialisers, seeds
  and what is trained; nor the code of functions, which has line numbers in it.

  Args:
    model: Built `keras.Model`.

  Returns:
    record: Dictionary of one text.
  """
  return {_LAYERS: '\n'.join(
      _described(layer) for layer in compat.all_layers(model)
      if not isinstance(layer, (keras.layers.InputLayer, keras.Model)))}


def difference(kept: Mapping[str, str], model: keras.Model) -> str | None:
  """How a model's layers are others than those of a record, None if not so."""
  before, after = (
      record[_LAYERS].split('\n') for record in (kept, of_layers(model)))
  if before == after:
    return None
  if len(before) != len(after):
    return f'it had {len(before)} layers, and there are {len(after)}'
  number, *lines = next(
      (k, *pair) for k, pair in enumerate(zip(before, after))
      if pair[0] != pair[1])
  names = [line.split(' ')[0] for line in lines]
  if names[0] != names[1]:
    return f'its layer {number} was a {names[0]}, and is a {names[1]}'
  return (f'its layer {number}, a {names[0]}, was made with other arguments, '
          'such as the activation or a regulariser')


def check(
    kept: Mapping[str, str],
    model: keras.Model,
    extras: Sequence[keras.Variable],
    what: str,
) -> None:
  """Compares a model with the record of the one that draws were made with.

  Args:
    kept: What `of_model` returned then; empty where there is none.
    model: Built `keras.Model`.
    extras: As for `of_model`.
    what: What holds the draws, for messages.

  Raises:
    ValueError: If weights that draws do not hold have other values. Of other
      layers, and of another loss, a `UserWarning` tells: a new version of Keras
      may describe the same one otherwise.
  """
  if not kept:
    return
  other = difference(kept, model)
  if other is not None:
    warnings.warn(
        f'{what} holds draws of another model: {other}. The predictions will '
        'be those of the model that is given, with these weights. Make the '
        'model as it was.', stacklevel=3)
  before, after = kept.get(_LOSS), _loss(model)
  if before and after and before != after:
    warnings.warn(
        f'{what} holds draws that were sampled with the loss {before}, and the '
        f'model is compiled with {after}: predictions and scores read the '
        'outputs by the latter. Compile the model as it was.', stacklevel=3)
  before, after = (
      record[_FROZEN].split('\n') for record in (kept, of_model(model, extras)))
  for ours, theirs in itertools.zip_longest(after, before, fillvalue=''):
    if ours.split(' ')[0] != theirs.split(' ')[0]:
      path = ours.split(' ', 1)[-1] or theirs.split(' ', 1)[-1]
      raise ValueError(
          f'{what} holds draws of a model with another value of {path!r}, '
          'which is not sampled, and predictions use that of the model: give '
          'it the weights that it had before loading the draws (by '
          'load_weights, or the seed that they were made with).')


def _loss(model):
  """The compiled losses, which decide what outputs mean; '' without any."""
  try:
    losses = likelihood.Likelihood(model).losses
  except ValueError:  # There is none, or one that is no likelihood.
    return ''
  return ', '.join(map(_shown, keras.tree.flatten(losses)))


def _shown(loss):
  arguments = {}
  # Functions are not described, and Keras warns where it has to.
  if loss is not None and not isinstance(
      loss, (losses_lib.DistributionLoss, losses_lib.NegativeLogLikelihood)):
    arguments = {
        name: value for name, value in sorted(loss.get_config().items())
        if isinstance(value, (bool, int, float))}
  shown = ', '.join(f'{name}={value}' for name, value in arguments.items())
  return f'{type(loss).__name__}({shown})'


def _described(layer):
  try:
    config = fingerprint.without_names(layer.get_config())
  except Exception:  # What a layer of the user's raises; it has none.
    config = {}
  text = json.dumps(
      _of_outputs(config), sort_keys=True, default=lambda value: repr(
          type(value)))
  return f'{type(layer).__name__} {_digest(text.encode())}'


def _of_outputs(config):
  if isinstance(config, dict):
    if config.get('class_name') == '__lambda__':
      return 'lambda'
    return {
        str(key): _of_outputs(value) for key, value in config.items()
        if key not in ('build_config', 'trainable', 'seed')
        and not str(key).endswith(('initializer', 'shape'))}
  if isinstance(config, (list, tuple)):
    return [_of_outputs(value) for value in config]
  return config


def _digest(content):
  return hashlib.sha256(content).hexdigest()[:16]
