"""Small steps compiled as one kernel, where XLA is for a CPU.

XLA for CPUs makes a kernel of about every operation, starts each by itself and
splits the larger ones over threads. A step of a few microseconds spends most of
its time between kernels. A computation that is called, with an attribute that
says that it is small, becomes a single kernel, run by a single thread: a loop
of steps, too.

TensorFlow writes the functions that it calls into their callers, all but those
that a StableHLO module calls: so here the steps are a function that a module
calls which does nothing else. XLA without that attribute makes a plain call of
it, and the same numbers.
"""

from collections.abc import Callable
import math
import re
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.internal import compat

__all__ = ['make']

# With arrays of more elements threads are worth more than a single kernel; and
# with matrix products of more terms a library's, which a kernel cannot call.
_MOST_ELEMENTS = 2**14
_MOST_PRODUCTS = 2**14
# Of a larger kernel it is not known how long LLVM takes.
_MOST_INSTRUCTIONS = 2**14
# What a kernel can hold: the rest are functions of XLA or of other libraries.
_HELD = frozenset("""
    abs add and atan2 bitcast bitcast-convert broadcast call cbrt ceil clamp
    compare concatenate conditional constant convert copy cosine
    count-leading-zeros divide dot dynamic-slice dynamic-update-slice erf
    exponential exponential-minus-one floor gather get-tuple-element iota
    is-finite log log-plus-one logistic maximum minimum multiply negate not
    or pad parameter popcnt power reduce reduce-precision reduce-window
    remainder reshape reverse rng-bit-generator round-nearest-afz
    round-nearest-even rsqrt select shift-left shift-right-arithmetic
    shift-right-logical sign sine slice sqrt subtract tan tanh transpose
    tuple while xor""".split())
_MADE_ELSEWHERE = frozenset((
    'call', 'conditional', 'get-tuple-element', 'parameter', 'reshape', 'tuple',
    'while'))
_INSTRUCTION = re.compile(
    r'^ *(?:ROOT )?%?([\w.-]+) = (.+?) ([a-z][a-z0-9-]*)\((.*)$', re.M)
_NAME = re.compile(r'%([\w.-]+)')
_ARRAY = re.compile(r'^[a-z]+[0-9]*[a-z0-9]*\[([0-9,]*)\]')
_TYPES = {
    tf.bool: 'i1', tf.bfloat16: 'bf16', tf.float16: 'f16', tf.float32: 'f32',
    tf.float64: 'f64', tf.int8: 'i8', tf.int16: 'i16', tf.int32: 'i32',
    tf.int64: 'i64', tf.uint8: 'ui8', tf.uint16: 'ui16', tf.uint32: 'ui32',
    tf.uint64: 'ui64'}


def make(
    fn: Callable[..., list[tf.Tensor]], *args: Any,
) -> Callable[..., list[tf.Tensor]] | None:
  """A function as one kernel, None where it is none or would be slower so.

  Args:
    fn: Callable of nested tensors; returns a list of tensors.
    *args: Nested tensors, such as it will be called with.

  Returns:
    one_kernel: None, or a callable as `fn`, for programs that XLA compiles.
  """
  if compat.sees_accelerators() or tf.config.functions_run_eagerly():
    return None
  specs = [tf.TensorSpec.from_tensor(leaf) for leaf in tf.nest.flatten(args)]
  inner = tf.function(
      lambda *leaves: fn(*tf.nest.pack_sequence_as(args, leaves)),
      autograph=False, jit_compile=True).get_concrete_function(*specs)
  # Not so: a variable, an array without elements, a size not known yet.
  if not all(leaf.dtype in _TYPES and leaf.shape.num_elements()
             for leaf in [*inner.inputs, *inner.outputs]):
    return None
  outer = tf.function(
      lambda *leaves: [
          *inner(*leaves), _touched([*leaves, *inner.captured_inputs])],
      autograph=False, jit_compile=True)
  traced = outer.get_concrete_function(*specs)
  try:
    hlo = outer.experimental_get_compiler_ir(*specs)(stage='hlo')
  except (TypeError, ValueError, tf.errors.OpError):
    return None  # What XLA cannot compile, it says when it compiles.
  if not _is_small(hlo):
    return None
  module = _module(traced.inputs, traced.outputs)
  return lambda *args: compat.call_as_one_kernel(
      traced, module,
      tf.nest.flatten(args) + list(traced.captured_inputs))[:-1]


def _touched(leaves):
  """The first number of each tensor: a kernel uses all that it is given.

  XLA ends the process where a computation that is one kernel has a parameter
  that it does not use.
  """
  return tf.stack([
      tf.cast(tf.reshape(leaf, [-1])[0], tf.float32) for leaf in leaves])


def _is_small(hlo):
  """Of a program as text."""
  sizes = {}
  instructions = _INSTRUCTION.findall(hlo)
  if len(instructions) > _MOST_INSTRUCTIONS:
    return False
  for name, shape, opcode, operands in instructions:
    if opcode not in _HELD:
      return False
    array = _ARRAY.match(shape)
    if array is None:
      continue
    size = math.prod(int(length) for length in array[1].split(',') if length)
    sizes[name] = size
    if opcode == 'dot':
      # Of a matrix product of [m, k] and [k, n], m k n.
      a, b = (sizes[operand] for operand in _NAME.findall(operands)[:2])
      if math.sqrt(a * b * size) > _MOST_PRODUCTS:
        return False
    if opcode not in _MADE_ELSEWHERE and size > _MOST_ELEMENTS:
      return False
  return True


def _module(inputs, outputs):
  """A StableHLO module that calls a function of TensorFlow."""
  takes, gives = ([_type(t) for t in tensors] for tensors in (inputs, outputs))
  names = [f'%arg{k}' for k in range(len(takes))]
  parameters = ', '.join(f'{n}: {t}' for n, t in zip(names, takes))
  results = ', '.join(f'%0#{k}' for k in range(len(gives)))
  takes, gives = ', '.join(takes), ', '.join(gives)
  return f'''
module @one_kernel {{
  func.func public @main({parameters}) -> ({gives}) {{
    %0:{len(outputs)} = stablehlo.custom_call @tf.call_tf_function(
        {', '.join(names)}) {{
      api_version = 2 : i32, has_side_effect = true, tf.backend_config = {{
        called_index = 0 : i64, has_token_input_output = false}}
    }} : ({takes}) -> ({gives})
    return {results} : {gives}
  }}
}}'''


def _type(tensor):
  sizes = ''.join(f'{size}x' for size in tensor.shape)
  return f'tensor<{sizes}{_TYPES[tensor.dtype]}>'
