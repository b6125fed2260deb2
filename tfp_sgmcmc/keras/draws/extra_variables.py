"""What a draw holds beside weights: moving statistics, by their paths."""

from collections.abc import Mapping
from collections.abc import Sequence

import keras
import tensorflow as tf

from tfp_sgmcmc.keras.model import network

__all__ = ['match', 'named']

_GROUP = 'extra/'


def named(
    variables: Sequence[keras.Variable]) -> list[tuple[str, keras.Variable]]:
  """The names under which draws keep variables, each with its variable."""
  return [(_GROUP + path, variable)
          for path, variable in zip(network.paths(variables), variables)]


def match(
    specs: Mapping[str, tf.TensorSpec],
    model: keras.Model,
) -> list[tuple[str, keras.Variable]]:
  """The arrays of draws that are no weights, each with the model's variable.

  Where the paths are others, as after Keras has numbered layers anew, the order
  counts among variables of the same names within their layers.

  Args:
    specs: Dictionary with the `TensorSpec` of each array of a draw.
    model: Built `keras.Model`.

  Returns:
    pairs: List of pairs of an array's name and a variable; none for draws
      without.

  Raises:
    ValueError: If the model has no such variables.
  """
  kept = [name for name in specs if name.startswith(_GROUP)]
  if not kept:
    return []
  variables = model.non_trainable_weights
  by_name = dict(named(variables))
  if not set(kept) <= set(by_name):
    last = {_last(name) for name in kept}
    alike = [v for v in variables if _last(v.path) in last]
    by_name = dict(zip(kept, alike)) if len(alike) == len(kept) else {}
  pairs = [(name, by_name.get(name)) for name in kept]
  for name, variable in pairs:
    if variable is None or tuple(variable.shape) != tuple(specs[name].shape):
      raise ValueError(
          f'The draws hold the moving statistic {name[len(_GROUP):]!r}, and '
          'the model has none of this path and shape: build the model as it '
          'was, with the same layers frozen (after keras.utils.clear_session() '
          'Keras gives layers the same names).')
  return pairs


def _last(path):
  return path.rsplit('/', 1)[-1].split('#')[0]
