"""How large the inputs of kernels are, where these read data as they are.

The default prior is for inputs of about 1. Pixels from 0 to 255, or columns in
their own units, make a unit's sum hundreds of times as large, and draws far too
sure of themselves. So the kernel of a dense or convolutional layer whose inputs
depend on no trained weights, and spread by s_j > 10 in column (or channel) j,
has

  w_jk ~ N(0, v / s_j^2)

in place of N(0, v): the prior of a network whose inputs were divided by s_j
before. Columns that spread by no more than 10 have s_j = 1: nothing changes for
data that are near a standard scale.

The spread is the standard deviation in the first batch (256 rows at most),
rounded to a power of two, so that it is the same for most batches. A column
that is constant there, such as a pixel at the margin, has that of all columns.

Other layers keep the usual prior: convolutions with groups or with channels
first, depthwise, separable, transposed and recurrent ones, and layers that are
called in a graph, as by `tf.map_fn`.
"""

from collections.abc import Mapping
import functools
import hashlib

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import leaves as leaves_lib
from tfp_sgmcmc.keras.model import network

__all__ = ['InputSizes', 'find']

_LARGE = 10.
_MOST_ROWS = 256
_LAYERS = (
    keras.layers.Dense, keras.layers.Conv1D, keras.layers.Conv2D,
    keras.layers.Conv3D)


class InputSizes:
  """The sizes that a chain's prior was made with.

  Attributes:
    by_position: Dict of arrays, see `find`; None until they are known.
  """
  by_position: dict[int, np.ndarray] | None

  def __init__(self):
    """Makes the object, before any data are known."""
    self.by_position = None

  def state(self) -> dict[str, np.ndarray]:
    """What `load_state` takes."""
    sizes = self.by_position or {}
    return {
        'input_sizes': np.asarray(list(sizes), np.int64),
        **leaves_lib.named(**{'input-sizes': list(sizes.values())})}

  def load_state(self, state: Mapping[str, np.ndarray]) -> None:
    """Takes the sizes of an earlier process.

    Args:
      state: Arrays by name, those of its `state` among them.
    """
    # An earlier version's chains have none.
    positions = np.asarray(state.get('input_sizes', ()), np.int64).tolist()
    self.by_position = dict(zip(
        positions, leaves_lib.of_group(state, 'input-sizes'))
                            ) if positions else {}

  def key(self) -> tuple[tuple[int, bytes], ...]:
    """What is equal for equal sizes."""
    return tuple((position, size.tobytes())
                 for position, size in (self.by_position or {}).items())


def find(model: keras.Model, x: hints.Data) -> dict[int, np.ndarray]:
  """The spread of the inputs of kernels that read data as they are.

  Args:
    model: Built `keras.Model`.
    x: A batch of inputs.

  Returns:
    sizes: Powers of two, at least 1, by the position of the kernel among
      `model.trainable_variables`: one for each column or channel. Kernels
      without large inputs are left out.
  """
  every = compat.all_layers(model)
  # Integers that are looked up are no numbers, and such models may be large.
  are_looked_up = any(
      isinstance(layer, keras.layers.Embedding) for layer in every)
  if all(isinstance(leaf, tf.Tensor) for leaf in tf.nest.flatten(x)):
    x = tf.nest.map_structure(lambda leaf: leaf[:_MOST_ROWS], x)
  leaves = tf.nest.flatten(x, expand_composites=True)
  if not any(_is_large(leaf, are_looked_up) for leaf in leaves):
    return {}
  by_layer = _of_layers(model, x, every)
  positions = {id(v): k for k, v in enumerate(model.trainable_variables)}
  found = {}
  for layer in every:
    size = by_layer.get(id(layer))
    if size is not None and np.any(size > 1.) and (
        id(layer.kernel) in positions and len(size) == layer.kernel.shape[-2]):
      found[positions[id(layer.kernel)]] = size
  return found


def _of_layers(model, x, every):
  """The spread of the inputs of layers that read data, by the layer's `id`.

  Data are what is the same with other weights, in two passes.
  """
  layers = [
      layer for layer in every if isinstance(layer, _LAYERS)
      and getattr(layer, 'data_format', None) != 'channels_first']
  # Those of normalisation are estimated anew before the first step.
  statistics = [
      variable for layer in every
      if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
      for variable in (layer.moving_mean, layer.moving_variance)]
  digests, found = {}, {}

  def keep(layer, values):
    digests.setdefault(id(layer), _digest(values))

  def compare(layer, values):
    if digests.get(id(layer)) == _digest(values):
      found.setdefault(id(layer), _spread(values))

  try:
    for k, look in enumerate((keep, compare)):
      with network.calls_through(functools.partial(_call, look), layers):
        network.forward(
            model, x, [(1 + k) * tf.convert_to_tensor(v)
                       for v in model.trainable_variables],
            [(v, tf.convert_to_tensor(v) + float(k)) for v in statistics])
  except Exception:  # pylint: disable=broad-exception-caught
    return {}  # Such as a model for graphs. Its own error comes from the step.
  return found


def _call(look, layer, own, *args, **kwargs):
  """A layer's call, after a look at its inputs; those of a graph are none."""
  x = args[0] if args else kwargs.get('inputs')
  if isinstance(x, tf.Tensor) and hasattr(x, 'numpy'):
    look(layer, np.asarray(x))
  return own(*args, **kwargs)


def _digest(values):
  return hashlib.blake2b(np.ascontiguousarray(values).data).digest()


def _is_large(leaf, are_looked_up):
  if not tf.is_tensor(leaf) or not (leaf.dtype.is_floating or (
      leaf.dtype.is_integer and not are_looked_up)):
    return False
  return bool(np.any(np.abs(np.float64(leaf)) > _LARGE))


def _spread(values):
  """Of each column, as a power of two; 1 where it is not large."""
  rows = np.reshape(np.float64(values), [-1, values.shape[-1]])
  with np.errstate(invalid='ignore'):  # Infinite inputs are an error later.
    spread = np.std(rows, axis=0)
  is_constant = spread == 0.
  if not np.all(is_constant):
    spread[is_constant] = np.sqrt(np.mean(np.square(spread[~is_constant])))
  return np.float32(np.where(
      (spread > _LARGE) & np.isfinite(spread),
      2.**np.round(np.log2(np.maximum(spread, 1.))), 1.))
