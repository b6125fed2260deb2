"""The one place that touches what is private in TensorFlow, TFP and Keras."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import functools
import itertools
from typing import Any
import warnings

import keras
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.ops import control_flow_util
import tensorflow_probability as tfp
from tensorflow_probability.python.internal import batch_shape_lib
from tensorflow_probability.python.internal import prefer_static
from tensorflow_probability.python.internal import unnest

from tfp_sgmcmc.internal import hints

__all__ = [
    'all_layers',
    'arrays_of',
    'before_batches',
    'begin_at_epoch',
    'call_as_one_kernel',
    'dataset_of',
    'find_result',
    'hlo',
    'in_all_elements',
    'in_graph',
    'in_xla_context',
    'is_vectorising',
    'jit_compile',
    'joined_shapes',
    'joint_names',
    'mask',
    'maximum',
    'may_not_be_read_again',
    'move_draws_last',
    'num_elements',
    'num_rows_of_arrays',
    'positions',
    'product_dtypes',
    'sees_accelerators',
    'sees_tpus',
    'shape',
    'size',
    'validation_batches',
    'vectorized_map',
    'with_mask',
]

# A tensor's shape: as NumPy where it is known while tracing, else as a tensor.
shape = prefer_static.shape
joined_shapes = prefer_static.concat
num_elements = prefer_static.reduce_prod

# The same of numbers.
maximum = prefer_static.maximum

# Of each `vectorized_map` that is being traced: functions that XLA compiles,
# mapped, by what they were made of; None where they are not kept compiled.
_maps: list[dict[Any, Any] | None] = []
# Datasets that have the rows of another, in any order and batches.
_BATCHES = ('_BatchDataset', '_ParallelBatchDataset')
_KEEP_ROWS = (
    *_BATCHES, '_ShuffleDataset', '_PrefetchDataset', '_OptionsDataset',
    '_RepeatDataset')


def all_layers(model: keras.Model) -> list[Any]:
  """All layers of a Keras model, those within layers too."""
  return list(model._flatten_layers(include_self=False))


def loss_weights(model: keras.Model) -> Any:
  """Those that a model was compiled with.

  `get_compile_config` has them too, but it writes out the loss, and Keras shows
  the source of a lambda for that: there is none of what was typed at a prompt.
  """
  return model._compile_config.config.get('loss_weights')


def begin_at_epoch(model: keras.Model, epoch: int | None) -> None:
  """Lets a `fit` that has begun start at an epoch; None for where it is told.

  Keras reads it from the model, where its `BackupAndRestore` writes it too.
  """
  model._initial_epoch = epoch


def mask(output: hints.TensorLike) -> Any:
  """The mask that Keras attached to an output, None where there is none."""
  return getattr(output, '_keras_mask', None)


def with_mask(output: tf.Tensor, mask: hints.Nested) -> tf.Tensor:
  """The output, with a mask attached where there is one."""
  if mask is not None:
    output._keras_mask = mask
  return output


def dataset_of(iterator: tf.data.Iterator) -> tf.data.Dataset | None:
  """The dataset that an iterator goes through, None where it does not tell.

  Of an iterator over replicas, the dataset of its first worker.
  """
  workers = getattr(iterator, '_iterators', None) or [iterator]
  dataset = getattr(workers[0], '_dataset', None)
  return dataset if isinstance(dataset, tf.data.Dataset) else None


def num_rows_of_arrays(dataset: tf.data.Dataset) -> int | None:
  """The number of rows where Keras made a dataset of arrays, else None.

  It takes the batches' rows from one permutation of all row numbers.
  """
  for d in _ancestors(dataset):
    if type(d).__name__ == '_FlatMapDataset':
      spec = d._inputs()[0].element_spec
      if (isinstance(spec, tf.TensorSpec) and spec.dtype == tf.int64
          and spec.shape.rank == 1 and int(d._inputs()[0].cardinality()) == 1):
        return spec.shape[0]
  return None


def arrays_of(dataset: tf.data.Dataset) -> list[tf.Tensor] | None:
  """The arrays of which a dataset is made, one tensor for each leaf.

  Keras made it, or it is `from_tensor_slices`, shuffled, repeated and batched.
  None where it was made of something else, or changes their rows.
  """
  number = num_rows_of_arrays(dataset)
  leaves = keras.tree.flatten(dataset.element_spec)
  if number is None:
    return _slices_of(dataset, leaves)
  for d in _ancestors(dataset):
    specs = keras.tree.flatten(d.element_spec)
    if (type(d).__name__ == '_TensorDataset' and _are_rows(specs, leaves)
        and all(spec.shape[0] == number for spec in specs)):
      return keras.tree.flatten(next(iter(d)))
  return None


def _slices_of(dataset, leaves):
  """The tensors of `from_tensor_slices`, where rows are as they were there."""
  dataset, _ = _before(dataset, (*_KEEP_ROWS, 'CacheDataset'))
  tensors = (
      dataset._tensors if type(dataset).__name__ == '_TensorSliceDataset'
      else [])
  return list(tensors) if _are_rows(tensors, leaves) else None


def before_batches(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, int]:
  """The dataset whose rows are shuffled, repeated and batched at last.

  Args:
    dataset: One of batches.

  Returns:
    dataset: That from which it is made, up to a cache: what comes before is
      gone through once.
    number: Python `int`, how often it is batched from there.
  """
  return _before(dataset, _KEEP_ROWS)


def _before(dataset, names):
  """The dataset before the last ones of these types; how many of them batch."""
  number = 0
  while type(dataset).__name__ in names:
    number += type(dataset).__name__ in _BATCHES
    dataset, = dataset._inputs()
  return dataset, number


def may_not_be_read_again(dataset: tf.data.Dataset) -> bool:
  """Whether another pass could disturb the one that goes on.

  A cache in a file is written by one pass alone. A Python generator may give
  its rows once.
  """
  return any(
      tf.get_static_value(getattr(d, '_filename', '')) not in ('', b'')
      or _calls_generator(d) for d in _ancestors(dataset))


def _calls_generator(dataset):
  function = getattr(getattr(dataset, '_map_func', None), 'function', None)
  return function is not None and any(
      op.type == 'GeneratorDataset' for op in function.graph.get_operations())


def _are_rows(arrays, leaves):
  """Whether the leaves of batches can be rows of arrays, or of their specs."""
  return len(arrays) == len(leaves) > 0 and all(
      hasattr(array, 'shape') and isinstance(leaf, tf.TensorSpec)
      and array.shape[1:] == leaf.shape[1:] and array.dtype == leaf.dtype
      and (array.dtype.is_numeric or array.dtype == tf.string)
      for array, leaf in zip(arrays, leaves))


def validation_batches(model: keras.Model) -> Iterator[Any] | None:
  """The batches that Keras' `fit` evaluates on, once it has done so.

  Args:
    model: A model within `fit`, after an epoch's validation.

  Returns:
    batches: Iterator over all of them; None where there are none.
  """
  iterator = getattr(model, '_eval_epoch_iterator', None)
  if iterator is None:
    return None
  return itertools.islice(
      iter(iterator._distributed_dataset), iterator.steps_per_epoch)


def _ancestors(dataset):
  """The dataset, and all that it is made from."""
  yield dataset
  for d in dataset._inputs():
    yield from _ancestors(d)


def move_draws_last(
    distribution: tfp.distributions.Distribution,
    number: int,
    rows: int,
    dtype: tf.DType,
) -> Any:
  """A distribution with the axis of draws as the last of its batch.

  Args:
    distribution: Of batch shape `[number * rows, ...]`.
    number: The number of draws.
    rows: The number of examples.
    dtype: To which to cast floating parameters; None to leave them.

  Returns:
    moved: Of batch shape `[rows, ..., number]`; None where a parameter is
      neither a tensor nor a distribution.
  """
  rank = distribution.batch_shape.rank

  def move(of, more_ndims):
    def move_parameter(parameter, event_ndims):
      event_ndims += more_ndims
      if isinstance(parameter, tfp.distributions.Distribution):
        return move(parameter, event_ndims)
      tensor = tf.convert_to_tensor(parameter)
      if dtype is not None and tensor.dtype.is_floating:
        tensor = tf.cast(tensor, dtype)
      batch_ndims = tensor.shape.rank - event_ndims
      if batch_ndims <= 0:
        return tensor
      if batch_ndims < rank or tensor.shape[0] == 1:
        return tf.expand_dims(tensor, batch_ndims)
      axes = list(range(tensor.shape.rank + 1))
      return tf.transpose(
          tf.reshape(tensor, [number, rows, *tensor.shape[1:]]),
          [*axes[1:rank + 1], 0, *axes[rank + 1:]])

    moved = batch_shape_lib.map_fn_over_parameters_with_event_ndims(
        of, move_parameter)
    if isinstance(of, tfp.distributions.Independent):
      # By default all axes but the first, of which there is one more now.
      moved['reinterpreted_batch_ndims'] = (
          of.event_shape.rank - of.distribution.event_shape.rank)
    return of.copy(**moved)

  try:
    return move(distribution, 0)
  except (TypeError, ValueError, NotImplementedError):
    return None


def joint_names(joint: tfp.distributions.JointDistribution) -> list[str]:
  """The names of the parts of a `tfd.JointDistribution`, in their order."""
  return list(joint._flat_resolve_names())


def find_result(kernel_results: object, name: str) -> Any:
  """A field of kernel results, or of those inside them; None without."""
  return unnest.get_outermost(kernel_results, name, None)


def in_graph(fn: Callable[..., Any]) -> Callable[..., Any]:
  """`fn`, traced at each call where that is eager, without a warning of it."""
  if not tf.executing_eagerly():
    return fn
  traced = tf.function(fn, autograph=False)
  traced._omit_frequent_tracing_warning = True
  return traced


def in_xla_context() -> bool:
  """Whether the code being traced is part of a `jit_compile=True` function."""
  return not tf.executing_eagerly() and (
      control_flow_util.GraphOrParentsInXlaContext(
          tf.compat.v1.get_default_graph()))


def hlo(function: Any, specs: Sequence[tf.TensorSpec]) -> str:
  """The program of a `tf.function` on the CPU, before XLA optimises it.

  Without `device_name` TensorFlow consumes a random number of the user's
  generator. With it TensorFlow warns, so the warning is silenced.
  """
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    return function.experimental_get_compiler_ir(*specs)(
        stage='hlo', device_name='/job:localhost/replica:0/task:0/device:CPU:0')


@functools.cache
def jit_compile() -> bool | None:
  """What to pass as `jit_compile` for what runs on the host.

  TensorFlow built for TPUs has no XLA compiler for the host, and refuses a
  function with `jit_compile=True` there.

  Returns:
    jit_compile: True; None where there is no such compiler.
  """
  try:
    with tf.init_scope(), tf.device('CPU:0'):
      tf.function(lambda: tf.zeros([]), jit_compile=True, autograph=False)()
  except (tf.errors.NotFoundError, tf.errors.UnimplementedError):
    return None
  return True


@functools.cache
def sees_accelerators() -> bool:
  """Whether programs may be for a GPU or a TPU, which TensorFlow sees."""
  return any(
      device.device_type not in ('CPU', 'XLA_CPU')
      for device in tf.config.get_visible_devices())


@functools.cache
def sees_tpus() -> bool:
  """Whether programs may be for a TPU, of which the machine has one."""
  return bool(tf.config.list_physical_devices('TPU'))


def product_dtypes() -> set[str]:
  """A dtype with the digits that products of float32 have on this machine.

  TPUs round what is multiplied to bfloat16, and GPUs to TensorFloat-32, which
  has the digits of float16, unless TensorFlow is told not to.
  """
  if not tf.config.experimental.tensor_float_32_execution_enabled():
    return set()
  if sees_tpus():
    return {'bfloat16'}
  return {'float16'} if sees_accelerators() else set()


def size(tensor: tf.Tensor) -> Any:
  """The number of elements: an `int` where it is known while tracing."""
  if tensor.shape.is_fully_defined():
    return tensor.shape.num_elements()
  return tf.size(tensor)


def call_as_one_kernel(
    function: Any, module: str, operands: list[tf.Tensor]) -> list[tf.Tensor]:
  """Calls a function by a StableHLO module, with attributes that XLA reads.

  Args:
    function: `tf.types.experimental.ConcreteFunction`.
    module: The module, which calls the function.
    operands: The function's inputs, captured ones too.

  Returns:
    tensors: What the module returns.
  """
  attributes = xla_data_pb2.FrontendAttributes(
      map=dict(inlineable='false', xla_cpu_small_call='true'))
  graph = tf.compat.v1.get_default_graph()
  function.add_to_graph(graph)
  with graph._attr_scope({
      '_XlaFrontendAttributes': attr_value_pb2.AttrValue(
          s=attributes.SerializeToString())}):
    return list(xla.call_module(
        operands, version=9, module=module, platforms=['CPU'],
        Tout=[t.dtype for t in function.outputs],
        Sout=[t.shape for t in function.outputs], function_list=[function]))


def positions(size: hints.TensorLike) -> tf.Tensor:
  """0, 1, ..., `size - 1`, computed where the program runs.

  TensorFlow would fold `tf.range` of a known size, and all that is computed
  from it alone, into a literal of the program, of 4 bytes a position.

  Args:
    size: Python `int` or `int32` scalar.

  Returns:
    positions: `int32` tensor with one axis, under XLA of a length that
      TensorFlow does not know while tracing: reshape it.
  """
  if in_xla_context():
    # An identity that is not folded, since it runs under XLA alone.
    size, _ = gen_xla_ops.xla_broadcast_helper(
        size, size, tf.zeros([0], tf.int32))
  return tf.range(size)


def vectorized_map(
    fn: Callable[[Any], Any],
    elements: hints.Nested,
    keeps_compiled: bool = False,
) -> Any:
  """`tf.vectorized_map` without loops, of bit casts and `l2_loss` too.

  Args:
    fn: Callable of an element.
    elements: Nested tensors, `[k, ...]`.
    keeps_compiled: Python `bool`, whether XLA compiles, for all elements at
      once, what it compiles on its own within `fn` (`jit_compile=True`).
      TensorFlow runs the operations of these functions one by one.

  Returns:
    results: What `fn` has returned, stacked.

  Raises:
    ValueError: If TensorFlow has no rule for an operation.
  """
  _add_rules()
  _maps.append({} if keeps_compiled else None)
  try:
    return tf.vectorized_map(fn, elements, fallback_to_while_loop=False)
  finally:
    _maps.pop()


def is_vectorising() -> bool:
  """Whether the code being traced is what `vectorized_map` maps."""
  return bool(_maps)


def in_all_elements(holds: tf.Tensor) -> tf.Tensor:
  """Whether it holds for all elements that `vectorized_map` maps.

  One answer for all of them, so that a condition on it stays one: vectorised,
  one on an answer of each runs both branches, each on a number of elements that
  XLA does not know.

  Args:
    holds: `bool` scalar.

  Returns:
    hold: `bool` scalar.
  """
  return _tfp_sgmcmc_in_all_elements(holds)


# Known by its name to the rule that maps calls.
@tf.function(autograph=False)
def _tfp_sgmcmc_in_all_elements(holds):
  return tf.identity(holds)


@functools.cache
def _add_rules():
  """Tells TensorFlow how to vectorise operations where it has no rule."""
  try:
    from tensorflow.python.ops.parallel_for import pfor
  except ImportError:  # Elsewhere in that version: then it cannot be told.
    return

  def bitcast(op):
    return pfor.wrap(
        tf.bitcast(op.stacked_input(0), op.get_attr('type')), True)

  def l2_loss(op):
    x = op.stacked_input(0)
    axes = tf.range(1, tf.rank(x))
    return pfor.wrap(tf.reduce_sum(x * x, axes) / 2., True)

  known = getattr(pfor, '_pfor_converter_registry', {})
  for name, rule in (('Bitcast', bitcast), ('L2Loss', l2_loss)):
    if name not in known:
      pfor.RegisterPFor(name)(rule)
  for name in ('PartitionedCall', 'StatefulPartitionedCall'):
    if name in known:
      known[name] = _call(known[name], pfor.wrap)


def _call(as_before, wrap):
  """The rule for a call: what XLA compiles is mapped, and compiled again.

  A call of `in_all_elements` becomes one answer for all.
  """

  def rule(op):
    name = op.get_attr('f').name
    if '_tfp_sgmcmc_in_all_elements_' in name:
      return [wrap(tf.reduce_all(op.stacked_input(0)), False)]
    known = _maps[-1] if _maps else None
    if known is None:
      return as_before(op)
    function = op.op.graph._get_function(name)
    attributes = function.cached_definition.attr
    # To ask for one that is not there would add it to the function.
    is_compiled = (
        '_XlaMustCompile' in attributes and attributes['_XlaMustCompile'].b)
    is_stacked = tuple(each.is_stacked for each in op.inputs)
    if not is_compiled or not any(is_stacked):
      return as_before(op)
    key = function.name, is_stacked
    if key not in known:
      known[key] = _mapped(function, is_stacked)
    return [wrap(output, True) for output in known[key](
        *(each.t for each in op.inputs))]

  return rule


def _mapped(function, is_stacked):
  """A function of stacked and of common values, mapped and compiled."""

  def all_elements(*values):
    def of_one(own):
      own = iter(own)
      return function.call_flat(*(
          next(own) if is_own else value
          for is_own, value in zip(is_stacked, values)))

    return tf.nest.flatten(vectorized_map(
        of_one, [v for v, is_own in zip(values, is_stacked) if is_own]))

  return tf.function(all_elements, jit_compile=True, autograph=False)
