"""The weights of a network as one vector, where its kernel takes them so.

A kernel has some hundred operations for each part of its state. TensorFlow
takes one or two microseconds to begin an operation, and a hundred times as long
to trace it. In small networks, and in deep ones, this is most of the time. So
the kernel that finds its step size is given all weights as one vector (`SGNHT`,
`part_sizes`). That is the same chain in fewer operations.

The copies to and from the vector take some nanoseconds for each number. So the
state is one vector where weights have at most 32,768 numbers on average, and a
million in all; where there are at least two, of one dtype; and not in float16,
in which sums over so many would overflow.
"""

from collections.abc import Sequence
import math
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.internal import states

__all__ = ['Layout', 'of']

_MOST_NUMBERS, _MOST_IN_ALL = 2**15, 2**20


class Layout:
  """How the weights of a network are the state of its kernel.

  Attributes:
    sizes: How many numbers of the vector each weight has; None where the
      weights are the parts of the state.
  """

  def __init__(self, variables: Sequence[Any], sizes: Sequence[int] | None):
    """Makes the layout.

    Args:
      variables: The weights, Keras variables or tensors.
      sizes: How many numbers each has; None to leave them as they are.
    """
    self._variables, self.sizes = variables, sizes

  def join(self, weights: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The parts of the state."""
    if self.sizes is None:
      return list(weights)
    return [states.flatten(weights, 0)]

  def split(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The weights: the inverse of `join`."""
    if self.sizes is None:
      return list(parts)
    return states.unflatten(parts[0], self._variables, 0)


def of(variables: Sequence[Any], takes_vector: bool) -> Layout:
  """The layout of some weights.

  Args:
    variables: Keras variables.
    takes_vector: Python `bool`, whether the kernel takes one vector.

  Returns:
    layout: `Layout`.
  """
  sizes = [math.prod(v.shape) for v in variables]
  is_vector = (
      takes_vector and len(sizes) > 1 and min(sizes) > 0
      and len({v.dtype for v in variables}) == 1
      and variables[0].dtype != 'float16'
      and sum(sizes) <= min(_MOST_NUMBERS * len(sizes), _MOST_IN_ALL))
  return Layout(variables, sizes if is_vector else None)
