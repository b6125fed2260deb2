"""Weights that read data as they are, in coordinates of standardised inputs.

The default prior, and the start of a chain, are for inputs of about 1. Of
columns in their own units, such as years, areas, or pixels from 0 to 255, a
unit's sum is hundreds of times as large, or hardly changes from row to row
beside what it is in all of them.

So a dense or convolutional layer whose inputs depend on no trained weights is
sampled in other coordinates, where a column (or channel) j of its inputs has a
standard deviation or a mean above 10. With kernel w and bias b they are

  w'_jk = s_j w_jk,   b'_k = b_k + sum_j m_j w_jk,

with s_j the standard deviation of that column, and m_j its mean; s_j = 1 and
m_j = 0 for all others. Then

  sum_j w_jk x_j + b_k = sum_j w'_jk (x_j - m_j) / s_j + b'_k:

w' and b' are the weights of a network whose inputs were standardised before.
They have the prior, and the sampler's steps, of such a network. Nothing changes
for data that are near a standard scale. A layer without bias has m_j = 0. A
convolution sums over its window too; where that is padded with zeros, b'_k is
not a unit's value at the mean.

Mean and standard deviation are those of the first batches, up to 256 rows,
rounded so that they are the same for most batches: s_j to a power of two, m_j
to s_j / 2. Where a value is farther than 4 s_j from m_j, s_j is a fourth of
that: a pixel at the margin is 0 in most rows, and 255 in a few. A column that
is constant in these rows has the median of all others. The columns of an image
or a sequence that is flattened before a dense layer have that of their channel.

Other layers keep the usual prior: convolutions with groups or with channels
first, depthwise, separable, transposed and recurrent ones, and layers that are
called in a graph, as by `tf.map_fn`.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import functools
import hashlib
import math
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import leaves as leaves_lib
from tfp_sgmcmc.keras.model import network

__all__ = ['Columns', 'MOST_ROWS', 'RawInputs', 'find', 'may_be_large']

_LARGE = 10.
# How many spreads from the mean a value may be.
_FARTHEST = 4.
MOST_ROWS = 256
# Single precision has no more than some thousand times the spread beside it.
_MOST_MEAN = 1000.
_LAYERS = (
    keras.layers.Dense, keras.layers.Conv1D, keras.layers.Conv2D,
    keras.layers.Conv3D)


class Columns(NamedTuple):
  """What the inputs of a kernel are like.

  Attributes:
    mean: m, `[c]`.
    spread: s, `[c]`.
    bias: Python `int`, the position of the bias among the weights; -1 where
      there is none.
  """
  mean: np.ndarray
  spread: np.ndarray
  bias: int


class RawInputs:
  """The kernels that read large inputs, and the coordinates of the weights.

  Attributes:
    by_position: Dict of `Columns`, see `find`; None until they are known.

  #### Examples

  >>> import numpy as np
  >>> from tfp_sgmcmc.keras.model import raw_inputs
  >>> raw = raw_inputs.RawInputs()
  >>> raw.by_position = {0: raw_inputs.Columns(
  ...     np.float32([2000.]), np.float32([32.]), bias=1)}
  >>> kernel, bias = raw.coordinates([tf.constant([[0.5]]), tf.constant([1.])])
  >>> float(kernel[0, 0]), float(bias[0])
  (16.0, 1001.0)
  >>> [float(tf.squeeze(w)) for w in raw.weights([kernel, bias])]
  [0.5, 1.0]
  """
  by_position: dict[int, Columns] | None

  def __init__(self):
    """Makes the object, before any data are known."""
    self.by_position = None

  @property
  def _known(self):
    return self.by_position or {}

  def __bool__(self) -> bool:
    """Whether there are such kernels."""
    return bool(self.by_position)

  def coordinates(self, weights: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The coordinates w', b' of weights.

    Args:
      weights: One tensor for each of `model.trainable_variables`.

    Returns:
      coordinates: As many.
    """
    found = list(weights)
    for position, columns in self._known.items():
      kernel = weights[position]
      found[position] = kernel * _of_rows(columns.spread, kernel)
      if columns.bias >= 0:
        found[columns.bias] = weights[columns.bias] + _at_mean(columns, kernel)
    return found

  def weights(self, coordinates: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The weights of coordinates: the inverse of `coordinates`."""
    found = list(coordinates)
    for position, columns in self._known.items():
      kernel = coordinates[position]
      kernel = found[position] = kernel / _of_rows(columns.spread, kernel)
      if columns.bias >= 0:
        found[columns.bias] = (
            coordinates[columns.bias] - _at_mean(columns, kernel))
    return found

  def state(self) -> dict[str, np.ndarray]:
    """What `load_state` takes."""
    columns = list(self._known.values())
    return {
        'raw_inputs': np.asarray([
            [position, of_kernel.bias] for position, of_kernel
            in self._known.items()], np.int64).reshape([-1, 2]),
        **leaves_lib.named(**{
            'raw-mean': [of_kernel.mean for of_kernel in columns],
            'raw-spread': [of_kernel.spread for of_kernel in columns]})}

  def load_state(self, state: Mapping[str, np.ndarray]) -> None:
    """Takes the coordinates of an earlier process.

    Args:
      state: Arrays by name, those of its `state` among them.

    Raises:
      ValueError: If an earlier version has sampled in others.
    """
    if np.size(state.get('input_sizes', ())):
      raise ValueError(
          'An earlier version of tfp_sgmcmc began the chain in this directory, '
          'on inputs that are not standardised, in other coordinates: it '
          'cannot go on. Give another directory. PosteriorSamples.load('
          'directory, model) reads its draws.')
    # The chains of other versions have none.
    positions = np.asarray(state.get('raw_inputs', ()), np.int64)
    self.by_position = {
        int(position): Columns(mean, spread, int(bias))
        for (position, bias), mean, spread in zip(
            positions.reshape([-1, 2]),
            leaves_lib.of_group(state, 'raw-mean'),
            leaves_lib.of_group(state, 'raw-spread'))}

  def key(self) -> tuple[tuple[int, bytes, bytes], ...]:
    """What is equal for equal coordinates."""
    return tuple(
        (position, columns.mean.tobytes(), columns.spread.tobytes())
        for position, columns in self._known.items())


def find(model: keras.Model, x: hints.Data) -> dict[int, Columns]:
  """The columns of kernels that read large inputs as they are.

  Args:
    model: Built `keras.Model`.
    x: A batch of inputs.

  Returns:
    columns: Dict by the position of the kernel among
      `model.trainable_variables`. Kernels without large inputs are left out.
  """
  every = compat.all_layers(model)
  # Integers that are looked up are no numbers, and such models may be large.
  are_looked_up = any(
      isinstance(layer, keras.layers.Embedding) for layer in every)
  if all(isinstance(leaf, tf.Tensor) for leaf in tf.nest.flatten(x)):
    x = tf.nest.map_structure(lambda leaf: leaf[:MOST_ROWS], x)
  leaves = tf.nest.flatten(x, expand_composites=True)
  if not any(_is_large(leaf, are_looked_up) for leaf in leaves):
    return {}
  by_layer = _of_layers(model, x, every, _channels(leaves))
  positions = {id(v): k for k, v in enumerate(model.trainable_variables)}
  found = {}
  for layer in every:
    mean, spread = by_layer.get(id(layer), (0., 1.))
    if np.any(mean != 0.) or np.any(spread != 1.):
      # A subclass may have other weights.
      kernel, bias = (getattr(layer, name, None) for name in ('kernel', 'bias'))
      position = positions.get(id(kernel))
      if kernel is not None and position is not None and (
          len(spread) == kernel.shape[-2]):
        found[position] = Columns(mean, spread, positions.get(id(bias), -1))
  return found


def may_be_large(x: hints.Data) -> bool:
  """Whether `find` may find something in such inputs."""
  return any(
      _is_large(leaf, False)
      for leaf in tf.nest.flatten(x, expand_composites=True))


def _channels(leaves):
  """The number of channels of images and sequences, by their size."""
  shapes = [tuple(leaf.shape) for leaf in leaves if tf.is_tensor(leaf)]
  of_tables = {shape[1] for shape in shapes if len(shape) == 2}
  # Square ones of no more axes are taken for images without an axis for it.
  found = {
      math.prod(shape[1:]):
          1 if len(shape) == 3 and shape[1] == shape[2] else shape[-1]
      for shape in shapes if len(shape) > 2}
  return {size: number for size, number in found.items()
          if size not in of_tables}


def _of_layers(model, x, every, channels):
  """Mean and spread of the inputs of layers that read data, by their `id`.

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
  digests, found, errors = {}, {}, []

  def keep(layer, values):
    digests.setdefault(id(layer), _digest(values))

  def compare(layer, values):
    if digests.get(id(layer)) == _digest(values):
      number = channels.get(values.shape[-1]) if values.ndim == 2 else None
      found.setdefault(id(layer), _moments(values, number))

  try:
    for k, look in enumerate((keep, compare)):
      with network.calls_through(
          functools.partial(_call, look, errors), layers):
        network.forward(
            model, x, [_other(v, k) for v in model.trainable_variables],
            [(v, _other(v, k)) for v in statistics])
  except Exception:  # pylint: disable=broad-exception-caught
    return {}  # Such as a model for graphs. Its own error comes from the step.
  if errors:
    raise errors[0]
  return found


def _other(variable, k):
  """Its value for k = 0, and another one, zero or not, for k = 1."""
  value = tf.convert_to_tensor(variable)
  return (1 + k) * value + tf.cast(0.1 * k, value.dtype)


def _call(look, errors, layer, own, *args, **kwargs):
  """A layer's call, after a look at its inputs; those of a graph are none.

  What goes wrong in looking is no fault of the model.
  """
  x = args[0] if args else kwargs.get('inputs')
  if isinstance(x, tf.Tensor) and hasattr(x, 'numpy'):
    try:
      look(layer, np.asarray(x))
    except Exception as error:  # pylint: disable=broad-exception-caught
      errors.append(error)
  return own(*args, **kwargs)


def _digest(values):
  return hashlib.blake2b(np.ascontiguousarray(values).tobytes()).digest()


def _is_large(leaf, are_looked_up):
  if not tf.is_tensor(leaf) or not (leaf.dtype.is_floating or (
      leaf.dtype.is_integer and not are_looked_up)):
    return False
  return bool(np.any(np.abs(np.float64(leaf)) > _LARGE))


def _moments(values, num_channels):
  """Mean and standard deviation of each column; 0 and 1 where not large.

  Args:
    values: Inputs of a layer.
    num_channels: How many channels its inputs have, where they are those of a
      flattened image or sequence; None where they are none.
  """
  rows = np.reshape(np.float64(values), [-1, values.shape[-1]])
  with np.errstate(invalid='ignore'):  # Infinite inputs are an error later.
    mean, spread = np.mean(rows, axis=0), np.std(rows, axis=0)
    spread = np.maximum(
        spread, np.max(np.abs(rows - mean), axis=0) / _FARTHEST)
    if num_channels is not None:
      of_channels = np.reshape(spread, [-1, num_channels])
      number = np.maximum(1, np.count_nonzero(of_channels, axis=0))
      spread = np.ravel(np.broadcast_to(np.sqrt(
          np.sum(of_channels**2, axis=0) / number), of_channels.shape))
    is_constant = spread == 0.
    if not np.all(is_constant):
      spread[is_constant] = np.median(spread[~is_constant])
    is_large = np.isfinite(spread) & (spread > 0.) & (
        (spread > _LARGE) | (np.abs(mean) > _LARGE))
  spread = np.where(is_large, np.maximum(spread, np.abs(mean) / _MOST_MEAN), 1.)
  spread = 2.**np.round(np.log2(spread))
  mean = np.where(is_large, np.round(2. * mean / spread) * spread / 2., 0.)
  return np.float32(mean), np.float32(spread)


def _of_rows(columns, kernel):
  """A number for each input of a kernel, to be multiplied with it."""
  return tf.constant(columns[:, np.newaxis], kernel.dtype)


def _at_mean(columns, kernel):
  """What a kernel adds to its bias at the mean of the inputs."""
  product = kernel * _of_rows(columns.mean, kernel)
  return tf.reduce_sum(product, axis=list(range(product.shape.rank - 1)))
