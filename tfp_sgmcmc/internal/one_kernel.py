"""Small steps compiled as one kernel, where XLA is for a CPU.

XLA for CPUs turns about every operation of a program into a function of its
own, a kernel. It starts kernels one after the other and splits the larger ones
over threads. A step of a few microseconds spends most of its time between
kernels.

XLA can also make a single kernel, for one thread, of a computation that the
program calls, loops within it included. It does so where the call has the
attribute `xla_cpu_small_call`. (Without that attribute, or where XLA does not
know it, it is a call as any other, of the same numbers.)

TensorFlow leaves no calls for XLA to see: it writes a function that is called
into its caller. The exception is a module of StableHLO. So the module made here
has a single line, which calls the function of TensorFlow.

`TFP_SGMCMC_ONE_KERNEL=0` in the environment switches it off for the process.
"""

from collections.abc import Callable
import contextvars
import math
import os
import re
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = [
    'IS_ON', 'MOST_ELEMENTS', 'call', 'is_worthwhile', 'make', 'trace']

IS_ON = os.environ.get('TFP_SGMCMC_ONE_KERNEL', '1') != '0'

# With arrays of more elements threads are worth more than a single kernel; and
# with matrix products of more terms a library's, which a kernel cannot call.
MOST_ELEMENTS = 2**14
_MOST_PRODUCTS = 2**14
# Along one axis or none: XLA's loops over many chains take twice as long in one
# kernel, over several axes up to four times.
_MOST_CHAINS = 32
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
# These make no arrays: they pass on what others have made.
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
# Whether what is being traced becomes part of a kernel already.
_IS_PART = contextvars.ContextVar('is part of a kernel', default=False)


def call(fn: Callable[..., Any], *arguments: hints.Nested) -> Any:
  """Calls a function as one kernel, where XLA compiles for a CPU and it can be.

  Elsewhere it calls the function itself.

  Args:
    fn: Callable of nested tensors; returns nested tensors.
    *arguments: Nested tensors.

  Returns:
    result: What `fn` returns.
  """
  leaves = tf.nest.flatten(arguments)
  if (_IS_PART.get() or not compat.in_xla_context()
      or compat.sees_accelerators() or not all(
          _can_be_held(leaf) and leaf.shape.num_elements() <= MOST_ELEMENTS
          for leaf in leaves)):
    return fn(*arguments)
  returned = []

  def on_leaves(*leaves):
    returned[:] = [fn(*tf.nest.pack_sequence_as(arguments, leaves))]
    return tf.nest.flatten(returned)

  one_kernel = make(trace(on_leaves, *leaves))
  if one_kernel is None:
    return fn(*arguments)
  return tf.nest.pack_sequence_as(returned, one_kernel(*leaves))[0]


def trace(fn: Callable[..., list[tf.Tensor]], *leaves: tf.Tensor) -> Any:
  """A function of tensors, traced as part of a program that XLA compiles.

  Args:
    fn: Callable of tensors; returns a list of tensors.
    *leaves: Tensors such as it will be called with.

  Returns:
    traced: `tf.types.experimental.ConcreteFunction`.
  """
  token = _IS_PART.set(True)
  try:
    return tf.function(
        fn, autograph=False, jit_compile=True,
    ).get_concrete_function(*map(tf.TensorSpec.from_tensor, leaves))
  finally:
    _IS_PART.reset(token)


def make(
    traced: Any, makes: hints.Nested = (),
) -> Callable[..., list[tf.Tensor]] | None:
  """One kernel of a function, for programs that XLA compiles.

  Args:
    traced: What `trace` returned.
    makes: Nested tensors, of the shapes of some that the function makes: where
      one is too large there is no need to look into the function.

  Returns:
    one_kernel: Callable as the function; None where XLA cannot make one
      kernel of the function, or where that would be slower.
  """
  # A variable, an array without elements or one of a size that is not known
  # yet cannot be in one kernel.
  if compat.sees_accelerators() or not all(
      _can_be_held(leaf) for leaf in [*traced.inputs, *traced.outputs]):
    return None
  if any(leaf.shape.num_elements() > MOST_ELEMENTS
         for leaf in tf.nest.flatten(makes)):
    return None
  number = len(traced.inputs) - len(traced.captured_inputs)
  specs = [tf.TensorSpec(leaf.shape, leaf.dtype)
           for leaf in traced.inputs[:number]]
  function = tf.function(
      lambda *leaves: [
          *traced(*leaves), _touched([*leaves, *traced.captured_inputs])],
      autograph=False, jit_compile=True)
  whole = function.get_concrete_function(*specs)
  try:
    hlo = compat.hlo(function, specs)
  except (TypeError, ValueError, tf.errors.OpError):
    return None  # What XLA cannot compile, it says when it compiles.
  if not _is_small(hlo):
    return None
  module = _module(whole.inputs, whole.outputs)
  return lambda *leaves: compat.call_as_one_kernel(
      whole, module, [*leaves, *whole.captured_inputs])[:-1]


def is_worthwhile(kernel_results: hints.Results) -> bool:
  """Whether it is switched on, and not slower for this number of chains."""
  chains = states.chain_shape(kernel_results)
  return IS_ON and chains.rank is not None and chains.rank <= 1 and (
      chains.num_elements() or 1) <= _MOST_CHAINS


def _can_be_held(leaf):
  return tf.is_tensor(leaf) and leaf.dtype in _TYPES and bool(
      leaf.shape.num_elements())


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
    if '<=' in shape:  # Of a size that is known when the program runs.
      return False
    array = _ARRAY.match(shape)
    if array is None:  # A tuple.
      continue
    size = math.prod(int(length) for length in array[1].split(',') if length)
    sizes[name] = size
    if opcode == 'dot':
      a, b = (sizes.get(operand, math.inf)
              for operand in _NAME.findall(operands)[:2])
      # Of a matrix product of [m, k] and [k, n], m k n; of several, more.
      if math.sqrt(a * b * size) > _MOST_PRODUCTS:
        return False
    if opcode not in _MADE_ELSEWHERE and size > MOST_ELEMENTS:
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
