"""What a call was given, in words that can be compared in another process."""

from collections.abc import Mapping
import functools
import hashlib
import inspect
from typing import Any

import numpy as np
import tensorflow as tf

_MAX_DEPTH = 12


def fingerprint(**arguments: Any) -> dict[str, str]:
  """Describes arguments by flat names, such as `kernel.step_size`.

  Numbers and strings stand for themselves, tensors for their dtype, shape and a
  hash of their values, objects for their class and what they were made with,
  functions for their name and what they close over. The code of a function is
  not looked at.

  Args:
    **arguments: Anything.

  Returns:
    description: Dictionary of strings.

  #### Examples

  >>> fingerprint(seed=3, state=[0.5, None])
  {'seed': '3', 'state.0': '0.5', 'state.1': 'None'}
  """
  flat = {}

  def flatten(name, description):
    if isinstance(description, dict):
      for key, value in description.items():
        flatten(f'{name}.{key}' if name else str(key), value)
    else:
      flat[name] = description

  flatten('', {name: _describe(value) for name, value in arguments.items()})
  return flat


def difference(before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
  """Says in a sentence what is different, None where nothing is."""
  changes = [
      f'{name} was {before.get(name, "absent")} and is '
      f'{now.get(name, "absent")}'
      for name in {**before, **now} if before.get(name) != now.get(name)]
  if not changes:
    return None
  more = f', and {len(changes) - 3} more' if len(changes) > 3 else ''
  return '; '.join(changes[:3]) + more


def _describe(value, ancestors=()):
  if value is None or isinstance(value, (bool, int, float, complex, str)):
    return repr(value)
  if _is_array(value):
    return _describe_array(value)
  if id(value) in ancestors or len(ancestors) > _MAX_DEPTH:
    return _name(type(value))
  describe = functools.partial(_describe, ancestors=(*ancestors, id(value)))
  if isinstance(value, Mapping):
    return {str(key): describe(item) for key, item in value.items()}
  if isinstance(value, (list, tuple)):
    return {str(k): describe(item) for k, item in enumerate(value)} or '()'
  if isinstance(value, functools.partial):
    return {'function': describe(value.func), 'args': describe(value.args),
            'keywords': describe(value.keywords)}
  if inspect.ismethod(value):
    return {'method': _name(value), 'of': describe(value.__self__)}
  if inspect.isfunction(value):
    return {'function': _name(value), **_closure(value, describe)}
  if inspect.isclass(value) or inspect.isbuiltin(value):
    return _name(value)
  return {'class': _name(type(value)), **_made_with(value, describe)}


def _closure(function, describe):
  described = {}
  for name, cell in zip(
      function.__code__.co_freevars, function.__closure__ or ()):
    try:
      described[name] = describe(cell.cell_contents)
    except ValueError:  # Nothing has been assigned to it yet.
      described[name] = 'unassigned'
  return described


def _made_with(value, describe):
  """What an object was made with, as far as its class tells."""
  if callable(getattr(value, 'get_config', None)):
    return describe(value.get_config())
  if isinstance(getattr(value, 'parameters', None), Mapping):
    return describe(value.parameters)
  if type(value).__module__.startswith('tfp_sgmcmc.'):
    return describe(vars(value))
  return {}


def _is_array(value):
  return (tf.is_tensor(value) or hasattr(value, 'numpy')
          or isinstance(value, (np.ndarray, np.generic)))


def _describe_array(value):
  array = np.asarray(value.numpy() if hasattr(value, 'numpy') else value)
  if array.ndim == 0:
    return f'{array.dtype.name}({array})'
  digest = hashlib.sha256(np.ascontiguousarray(array)).hexdigest()[:16]
  shape = ','.join(map(str, array.shape))
  return f'{array.dtype.name}[{shape}] with hash {digest}'


def _name(value):
  return getattr(value, '__qualname__', type(value).__qualname__)
