"""The one place that touches private modules of TensorFlow and TFP."""

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util
from tensorflow_probability.python.internal import prefer_static
from tensorflow_probability.python.internal import unnest

__all__ = [
    'find_result',
    'in_xla_context',
    'maximum',
    'shape',
]

# A tensor's shape: as NumPy where it is known while tracing, else as a tensor.
shape = prefer_static.shape

# The same of numbers.
maximum = prefer_static.maximum


def find_result(kernel_results: Any, name: str) -> Any:
  """A field of kernel results, or of those inside them; None without."""
  return unnest.get_outermost(kernel_results, name, None)


def in_xla_context() -> bool:
  """Whether the code being traced is part of a `jit_compile=True` function."""
  return not tf.executing_eagerly() and (
      control_flow_util.GraphOrParentsInXlaContext(
          tf.compat.v1.get_default_graph()))
