"""Metadata stored with draws to identify their model.

Shapes alone do not tell two models apart: with another activation, or other
frozen weights, the same draws predict something else.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import functools
import hashlib
import inspect
import itertools
import json
import platform
from typing import Any
import warnings

import keras

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import fingerprint
from tfp_sgmcmc.keras.model import likelihood
from tfp_sgmcmc.keras.model import losses as losses_lib

__all__ = ['check', 'check_code', 'difference', 'of_layers', 'of_model']

_LAYERS, _CODE, _LOSS = 'layers', 'code', 'loss'
_FROZEN = 'weights that are not sampled'


def of_model(
    model: keras.Model, extras: Sequence[keras.Variable]) -> dict[str, str]:
  """What a model is beside the weights that its draws hold.

  Its layers, the code of those that are the user's, its loss, and a line for
  each weight that draws do not hold: a hash, and the weight's path.

  Args:
    model: Built `keras.Model`.
    extras: Its variables that draws hold beside the trainable ones.

  Returns:
    record: Dictionary of texts.
  """
  return {
      **of_layers(model), _CODE: _code(model), _LOSS: _loss(model),
      _FROZEN: _frozen(model, extras)}


def of_layers(model: keras.Model) -> dict[str, str]:
  """The part of a record that is of the layers.

  A line for each: its class, and a hash of what decides the outputs for given
  weights, and the added losses: neither names nor shapes, initialisers, seeds
  and what is trained; nor code, of which `check_code` tells.

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
  before, after = (  # A model may have weights of its own, and no layers.
      [line for line in _text(record, _LAYERS).split('\n') if line]
      for record in (kept, of_layers(model)))
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
    ValueError: If weights that draws do not hold have other values, or the
      record is damaged. Of other layers, of another loss and of other code, a
      `UserWarning` tells: a new version of Keras may describe the same one
      otherwise.
  """
  if not kept:
    return
  other = difference(kept, model)
  if other is not None:
    warnings.warn(
        f'{what} holds draws of another model: {other}. The predictions will '
        'be those of the model that is given, with these weights. Make the '
        'model as it was.', stacklevel=3)
  check_code(kept, model, what)
  before, after = _text(kept, _LOSS, ''), _loss(model)
  if before and after and before != after:
    warnings.warn(
        f'{what} holds draws that were sampled with the loss {before}, and the '
        f'model is compiled with {after}: predictions and scores read the '
        'outputs by the latter. Compile the model as it was.', stacklevel=3)
  before, after = (
      lines.split('\n')
      for lines in (_text(kept, _FROZEN), _frozen(model, extras)))
  for ours, theirs in itertools.zip_longest(after, before, fillvalue=''):
    if ours.split(' ')[0] != theirs.split(' ')[0]:
      path = ours.split(' ', 1)[-1] or theirs.split(' ', 1)[-1]
      raise ValueError(
          f'{what} holds draws of a model with another value of {path!r}, '
          'which is not sampled, and predictions use that of the model: give '
          'it the weights that it had before loading the draws (by '
          'load_weights, or the seed that they were made with).')


def check_code(
    kept: Mapping[str, str], model: keras.Model, what: str) -> None:
  """Warns where a model's functions and classes of the user's are others.

  Not where Python is of another version, which compiles them otherwise.

  Args:
    kept: What `of_model` returned for the model of the draws.
    model: Built `keras.Model`.
    what: What holds the draws, for the message.
  """
  (version, *before), (our_version, *after) = (
      code.split('\n') for code in (_text(kept, _CODE, ''), _code(model)))
  if version != our_version or before == after:
    return
  changed = dict.fromkeys(
      line.split(' ')[0] for line in [*before, *after]
      if before.count(line) != after.count(line))
  warnings.warn(
      f'{what} holds draws of a model with other code, or other values in it: '
      f'that of {", ".join(changed)} has changed since. If it computes '
      'something else, the draws are not of this model.', stacklevel=3)


def _text(record, name, default=None):
  """An entry of a record, or an error where there is none, or no text."""
  text = record.get(name, default)
  if not isinstance(text, str):
    raise ValueError(
        f'The record of the model that draws are of has {text!r} for {name!r}, '
        'where a text is needed: the manifest of their directory is damaged. '
        'Put back a copy of it.')
  return text


def _code(model):
  """Python's version, and a line for each layer with code of the user's."""
  lines = ['.'.join(platform.python_version_tuple()[:2])]
  for layer in [model, *compat.all_layers(model)]:
    parts = _users_parts(layer)
    if parts:
      described = fingerprint.fingerprint(**parts).arguments
      text = json.dumps({  # The weights of what code names may be sampled.
          name: value for name, value in described.items()
          if '.weights.' not in name}, sort_keys=True)
      lines.append(f'{type(layer).__name__} {_digest(text.encode())}')
  return '\n'.join(lines)


def _users_parts(layer) -> dict[str, Any]:
  """What in a layer is the user's: its class, functions, and plain values."""
  attributes = {
      name: value for name, value in vars(layer).items()
      if not name.startswith('_') and name not in _of_all_layers()}
  found: dict[str, Any] = {}
  if fingerprint.is_users(type(layer)):
    found['class'] = type(layer)
    found.update({
        name: value for name, value in attributes.items()
        if isinstance(value, (bool, int, float, str))})
  for name, value in attributes.items():
    if inspect.isfunction(value) and fingerprint.is_users(value):
      found[name] = value
    elif fingerprint.is_users(type(value)) and not isinstance(
        value, keras.layers.Layer):
      found[name] = type(value)
  return found


@functools.cache
def _of_all_layers():
  """The names of attributes that any layer, or any model, has.

  Names are given explicitly, since Keras numbers unnamed layers globally.
  """
  return frozenset(vars(keras.layers.Layer(name='layer'))) | frozenset(
      vars(keras.Sequential(name='model')))


def _frozen(model, extras):
  """A line for each weight that draws do not hold."""
  held = {id(variable) for variable in extras}
  return '\n'.join(
      f'{_digest(variable.numpy().tobytes())} {variable.path}'
      for variable in model.non_trainable_weights if id(variable) not in held)


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
        if isinstance(value, (bool, int, float, list))}
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
