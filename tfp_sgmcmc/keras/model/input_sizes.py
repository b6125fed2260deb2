"""How large the inputs of kernels are, where these read data as they are.

The default prior is for inputs of about 1. Pixels from 0 to 255, or columns in
their own units, make a unit's sum hundreds of times as large, and draws far too
sure of themselves. So the kernel of a dense or convolutional layer whose inputs
depend on no weights, which spread by s > 10 in a column (or channel) j, has

  w_jk ~ N(0, v / s_j^2)

in place of N(0, v): that is the prior of a network whose inputs were divided by
s_j before. With s_j = 1 where the spread is no more than 10, nothing changes
for data that are near a standard scale.

The spread is the standard deviation in the first batch, rounded to a power of
two, so that it is the same for most batches. A column that is constant there,
such as a pixel at the margin, has that of all columns.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import functools

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import leaves as leaves_lib
from tfp_sgmcmc.keras.model import network

__all__ = ['InputSizes', 'find']

_LARGE = 10.
_PATHS = 'input_sizes/paths'
_LAYERS = (
    keras.layers.Dense, keras.layers.Conv1D, keras.layers.Conv2D,
    keras.layers.Conv3D)


class InputSizes:
  """The sizes that a chain's prior was made with.

  Attributes:
    by_path: Dict of arrays, see `find`; None until they are known.
  """

  by_path: dict[str, np.ndarray] | None

  def __init__(self):
    """Makes the object, before any data are known."""
    self.by_path = None

  def state(self) -> dict[str, np.ndarray]:
    """What `load_state` takes."""
    by_path = self.by_path or {}
    return {
        _PATHS: np.frombuffer('\n'.join(by_path).encode(), np.uint8),
        **leaves_lib.named(**{'input-sizes': list(by_path.values())})}

  def load_state(self, state: Mapping[str, np.ndarray]) -> None:
    """Takes the sizes of an earlier process.

    Args:
      state: Arrays by name, those of its `state` among them.
    """
    # An earlier version's chains have none.
    paths = bytes(state.get(_PATHS, ())).decode().split()
    self.by_path = dict(zip(
        paths, leaves_lib.of_group(state, 'input-sizes'))) if paths else {}

  def key(self) -> tuple[tuple[str, bytes], ...]:
    """What is equal for equal sizes."""
    return tuple(
        (path, size.tobytes()) for path, size in (self.by_path or {}).items())


def find(model: keras.Model, x: hints.Data) -> dict[str, np.ndarray]:
  """The spread of the inputs of kernels that read data as they are.

  Args:
    model: Built `keras.Model`.
    x: A batch of inputs.

  Returns:
    by_path: Powers of two, at least 1, by the path of the kernel: one for each
      column or channel. Kernels without large inputs are left out.
  """
  every = compat.all_layers(model)
  # Integers that are looked up are no numbers, and such models may be large.
  are_looked_up = any(
      isinstance(layer, keras.layers.Embedding) for layer in every)
  if not any(_is_large(leaf, are_looked_up)
             for leaf in tf.nest.flatten(x, expand_composites=True)):
    return {}
  layers = [layer for layer in every if isinstance(layer, _LAYERS)]
  weights = network.values(model.trainable_variables)
  passes = []
  for factor in (1, 2):  # What depends on weights differs.
    with _recorded(layers) as inputs:
      network.forward(
          model, x, [tf.convert_to_tensor(factor * w) for w in weights])
    passes.append(inputs)
  own, others = passes
  trained = {v.path for v in model.trainable_variables}
  found = {}
  for layer in layers:
    kernel = layer.kernel
    if (id(layer) not in own or getattr(kernel, 'path', None) not in trained
        or not np.array_equal(own[id(layer)], others[id(layer)])):
      continue
    size = _spread(own[id(layer)])
    if np.any(size > 1.) and len(size) == kernel.shape[-2]:
      found[kernel.path] = size
  return found


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


@contextlib.contextmanager
def _recorded(layers: Sequence[keras.Layer]) -> Iterator[dict[int, np.ndarray]]:
  """Keeps the inputs of each layer's first call, by the layer's `id`."""
  inputs: dict[int, np.ndarray] = {}

  def call(layer, own, x, *args, **kwargs):
    if id(layer) not in inputs and isinstance(x, tf.Tensor):
      inputs[id(layer)] = np.asarray(x)
    return own(x, *args, **kwargs)

  try:
    for layer in layers:
      # setattr would look for layers to track.
      vars(layer)['call'] = functools.partial(call, layer, layer.call)
    yield inputs
  finally:
    for layer in layers:
      vars(layer).pop('call', None)
