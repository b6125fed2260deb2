"""How many products a pass of a model takes for a row: what a row costs.

For a network on a table, the number of its weights. A convolution uses its
weights at each place, attention makes products of activations: there the graph
of a pass on one row is traced, and its products are counted. A number that is
looked up in a table of weights counts as eight products.
"""

from collections.abc import Sequence
import math

import keras
import tensorflow as tf

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.keras.model import network
from tfp_sgmcmc.keras.model import vectorisation

__all__ = ['a_row', 'at_least', 'at_most', 'output_shapes']

# Parts of the names of operations that hold others, and of other products.
_NOT_COUNTED = ('While', 'If', 'Case', 'Call', 'BatchMatMulV3', 'Conv3D')
_OF_A_LOOKUP = 8


def a_row(model: keras.Model, arrays: Sequence[tf.Tensor]) -> int | None:
  """The number of products for a row.

  Args:
    model: Built `keras.Model`.
    arrays: The data, one tensor of N rows for each leaf of a batch.

  Returns:
    number: Python `int`, at least 1; None where it is not known (loops, as of
      recurrent layers; several inputs of sequences).
  """
  shapes = output_shapes(model)
  is_of_sequences = any(array.shape.rank > 2 for array in arrays) or any(
      size != 1 for shape in shapes for size in shape[1:-1])
  if vectorisation.may_be(model) and not is_of_sequences:
    return network.num_weights(model.weights)
  return _in_graph(model, arrays[0].shape)


def at_least(model: keras.Model) -> int:
  """A number of products that a row takes at least, without a trace."""
  return network.num_weights(
      v for v in model.weights if v.name.endswith('kernel'))


def at_most(model: keras.Model, arrays: Sequence[tf.Tensor]) -> int:
  """A number of products that a row hardly exceeds, loops or not.

  That of the weights, used at each place of the longest input or output.

  Args:
    model: Built `keras.Model`.
    arrays: As in `a_row`.

  Returns:
    number: Python `int`.
  """
  shapes = output_shapes(model)
  longest = max(
      [1, *(array.shape[1] for array in arrays if array.shape.rank > 1)])
  places = [
      math.prod(longest if size is None else size for size in shape[1:-1])
      for shape in [*shapes, *(array.shape for array in arrays)]]
  return network.num_weights(model.weights) * max(places)


def output_shapes(model: keras.Model) -> list[tuple[int | None, ...]]:
  """The shapes of all outputs of layers, where these are in a graph."""
  return [shape for layer in [model, *compat.all_layers(model)]
          for shape in _shapes_of(layer)]


def _shapes_of(layer):
  try:
    return [tensor.shape for tensor in keras.tree.flatten(layer.output)]
  except (AttributeError, ValueError):
    return []


def _in_graph(model, shape):
  """The number of products in the graph of a pass on one row.

  None where it holds loops or calls, or products that are not counted; or where
  a model does not say what a row is. Lengths that it leaves open are those of
  the data, of the shape given.
  """
  inputs = getattr(model, 'inputs', None) or []
  if len(inputs) != 1:
    return None
  sizes = inputs[0].shape
  if len(sizes) == len(shape):
    sizes = [a if b is None else b for a, b in zip(shape, sizes)]
  if None in sizes[1:] or len(sizes) < len(shape):
    return None
  row = tf.TensorSpec([1, *sizes[1:]], inputs[0].dtype)
  operations = tf.function(
      lambda row: model(row, training=False),
      autograph=False).get_concrete_function(row).graph.get_operations()
  if any(part in op.type for op in operations for part in _NOT_COUNTED):
    return None
  numbers = [_of_operation(op) for op in operations]
  return None if None in numbers else max(1, sum(numbers))


def _of_operation(op):
  """How many products an operation takes; None if that is not known."""
  times = 1
  if op.type in ('MatMul', 'BatchMatMulV2'):
    first = op.inputs[0].shape
    is_transposed = op.get_attr(
        'transpose_a' if op.type == 'MatMul' else 'adj_x')
    each, shape = op.outputs[0].shape, [first[-2 if is_transposed else -1]]
  elif op.type == 'Einsum':
    labels = op.get_attr('equation').decode().split('->')[0].split(',')
    if any('.' in each for each in labels):
      return None
    each, shape = dict(
        pair for label, x in zip(labels, op.inputs)
        for pair in zip(label, x.shape)).values(), []
  elif op.type in ('Conv2D', 'DepthwiseConv2dNative'):
    num_axes = 3 if op.type == 'Conv2D' else 2
    each, shape = op.outputs[0].shape, op.inputs[1].shape[:num_axes]
  elif op.type == 'Conv2DBackpropInput':  # A transposed convolution.
    each, shape = op.inputs[2].shape, op.inputs[1].shape[:3]
  elif op.type in ('ResourceGather', 'GatherV2'):
    each, shape, times = op.outputs[0].shape, [], _OF_A_LOOKUP
  else:
    return 0
  sizes = [times, *each, *shape]
  return None if None in sizes else math.prod(sizes)
