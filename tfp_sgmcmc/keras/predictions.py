"""Predictions by many draws of a model's weights, in one pass over the data.

The data are read once, in blocks of batches that fit in memory, and all draws
are used on a block before the next is read. So what is predicted for an example
stays beside its target, also where a pipeline shuffles anew at each pass.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import itertools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras import network

__all__ = ['Predictor', 'batches', 'inputs', 'is_stream', 'length']

# Inputs and targets that are held in memory while all draws are used on them.
_BLOCK_BYTES = 2**28

Batch = tuple[Any, Any, Any]


class Predictor:
  """Runs a function of a model's outputs for many draws of its weights.

  Each function is compiled once, for all draws and batches.
  """

  def __init__(self, model: keras.Model):
    """Makes the predictor.

    Args:
      model: Built `keras.Model`. It is left as it is.
    """
    self._model = model
    self._compiled = {}
    self._traced = {}

  def over_batches(
      self,
      name: str,
      fn: Callable[[Any, Batch], list[Any]],
      data: Iterator[Batch],
      read_draws: Callable[[], Iterator[list[np.ndarray]]],
      reduce_draws: Sequence[np.ufunc] | None,
      extras: Sequence[keras.Variable] = (),
  ) -> Iterator[tuple[Batch, list[Any]]]:
    """Applies `fn` to the outputs of all draws on all batches.

    Args:
      name: Name of `fn`, under which its compiled function is kept.
      fn: Callable of the outputs of one draw, and of a batch `(x, y,
        sample_weight)`; returns a list of results, nested tensors with a
        leading axis of examples.
      data: Iterator over batches.
      read_draws: Callable that returns an iterator over all draws, some at a
        time, each a list of stacked weights, and after them of the extras. It
        is called once for each block.
      reduce_draws: How to reduce each result over the draws, such as
        `[np.add, np.logaddexp]`; None to keep the draws apart.
      extras: The variables, beside weights, that draws have values of.

    Yields:
      batch: A batch.
      results: `fn`'s, as arrays: with a leading axis of draws, or reduced in
        float64.
    """
    run = self._function(name, fn, list(extras))
    for block in _blocks(data):
      results = [[] for _ in block]
      for weights in read_draws():
        weights = [tf.convert_to_tensor(w) for w in weights]
        for found, batch in zip(results, block):
          self._trace(name, run, weights, batch)
          found.append(_reduce(run(weights, batch), reduce_draws))
      for batch, found in zip(block, results):
        yield batch, _join(found, reduce_draws)

  def _trace(self, name, run, weights, batch):
    """Traces a function for any number of draws and examples, once.

    Else TensorFlow would trace it for the numbers of the first call, and warn
    of tracing where later ones have others.
    """
    specs = tf.nest.map_structure(network.of_any_length, (weights, batch))
    known = self._traced.setdefault(name, [])
    if specs not in known:
      known.append(specs)
      run.get_concrete_function(*specs)

  def _function(self, name, fn, extras):
    """The compiled function `(stacked weights, batch) -> stacked results`."""
    # A model that is compiled anew has a new loss tracker, and other losses.
    tracker = network.loss_tracker(self._model)
    known, function = self._compiled.get(name, (None, None))
    if known == (tracker, len(extras)):
      return function

    @tf.function(reduce_retracing=True, autograph=False)
    def run(weights, batch):
      def one_draw(weights):
        number = len(weights) - len(extras)
        return fn(
            network.forward(
                self._model, batch[0], weights[:number],
                list(zip(extras, weights[number:]))).outputs, batch)

      first = tf.nest.map_structure(
          lambda t: tf.TensorSpec(None, t.dtype),
          one_draw([w[0] for w in weights]))
      return tf.map_fn(one_draw, weights, fn_output_signature=first)

    self._compiled[name] = ((tracker, len(extras)), run)
    self._traced.pop(name, None)
    return run


def _reduce(results, ways):
  """Some draws' results as arrays, reduced if there are ways to."""
  if ways is None:
    return keras.tree.map_structure(np.asarray, results)
  return [
      keras.tree.map_structure(
          lambda t, way=way: way.reduce(np.asarray(t, np.float64), axis=0),
          result)
      for way, result in zip(ways, results)]


def _join(found, ways):
  """Joins the results of groups of draws."""
  if ways is None:
    return keras.tree.map_structure(
        lambda *arrays: np.concatenate(arrays), *found)
  return [
      keras.tree.map_structure(
          lambda *arrays, way=way: way.reduce(arrays, axis=0), *parts)
      for way, parts in zip(ways, zip(*found))]


def is_stream(data: Any) -> bool:
  """Whether the data come in batches of their own."""
  return (isinstance(data, (tf.data.Dataset, keras.utils.PyDataset))
          or hasattr(data, '__next__'))


def batches(
    data: Any, batch_size: int, steps: int | None = None) -> Iterator[Batch]:
  """Goes through the data once.

  Args:
    data: A `tf.data.Dataset`, `keras.utils.PyDataset` or generator of batches
      `x`, `(x, y)` or `(x, y, sample_weight)`; or a tuple of these three,
      nested arrays with a common leading axis, or None.
    batch_size: Python `int`, the length of the batches of arrays.
    steps: Python `int`, the number of batches of a stream; None for all.

  Returns:
    batches: Iterator of `(x, y, sample_weight)`.

  Raises:
    ValueError: If the data are endless and `steps` is None, or arrays differ
      in length.
    TypeError: If what should be arrays is none.
  """
  if steps is not None:
    checks.positive_integer('steps', steps)
  if is_stream(data):
    return _of_stream(data, steps)
  if steps is not None:
    raise ValueError(
        f'steps is {steps}, and the data are arrays, which have an end: leave '
        'it out, or pass a part of the arrays.')
  return _of_arrays(data, checks.positive_integer('batch_size', batch_size))


def inputs(
    x: Any, batch_size: int, steps: int | None) -> Iterator[Batch]:
  """Batches of the inputs alone, of data that may have targets."""
  if not is_stream(x):
    x = (x, None, None)
  return ((batch[0], None, None) for batch in batches(x, batch_size, steps))


def length(batch: Batch) -> int:
  """The number of examples of a batch."""
  return int(np.shape(keras.tree.flatten(batch[0])[0])[0])


def example_weights(batch: Batch) -> np.ndarray:
  """The weights of a batch's examples; ones, where each output has its own."""
  weights, number = batch[2], length(batch)
  if weights is None or keras.tree.is_nested(weights):
    return np.ones(number)
  return np.reshape(weights, [number])


def _of_stream(data, steps):
  endless = 'pass steps=..., the number of its batches to use.'
  if isinstance(data, tf.data.Dataset):
    if steps is None and data.cardinality() == tf.data.INFINITE_CARDINALITY:
      raise ValueError(f'The dataset is repeated without end: {endless}')
  elif isinstance(data, keras.utils.PyDataset):
    number = data.num_batches
    if number is None and steps is None:
      raise ValueError(f'The PyDataset has no end (num_batches): {endless}')
    data = map(data.__getitem__, range(steps if number is None else number))
  return (
      tuple(map(_to_tensors, keras.utils.unpack_x_y_sample_weight(batch)))
      for batch in itertools.islice(data, steps))


def _of_arrays(data, batch_size):
  leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
  shapes = [np.shape(leaf) for leaf in leaves]
  if () in shapes:
    raise TypeError(
        f'The data hold {leaves[shapes.index(())]!r}, a single number: nested '
        'lists of numbers are taken for lists of inputs. Pass arrays, '
        'np.asarray(x).')
  lengths = sorted({shape[0] for shape in shapes})
  if len(lengths) > 1:
    raise ValueError(
        f'The arrays have different numbers of examples, {lengths}: inputs, '
        'targets and sample weights need one row for each example.')
  return (
      network.map_leaves(
          lambda a, k=k: tf.convert_to_tensor(a[k:k + batch_size]), data)
      for k in range(0, lengths[0], batch_size))


def _to_tensors(structure):
  return network.map_leaves(tf.convert_to_tensor, structure)


def _blocks(data):
  """Lists of batches, as many as fit in memory."""
  block, size = [], 0
  for batch in data:
    block.append(batch)
    size += sum(
        leaf.dtype.size * int(tf.size(leaf))
        for leaf in keras.tree.flatten(batch) if leaf is not None)
    if size >= _BLOCK_BYTES:
      yield block
      block, size = [], 0
  if block:
    yield block
