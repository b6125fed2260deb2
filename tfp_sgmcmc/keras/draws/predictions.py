"""Predictions by many draws of a model's weights, in one pass over the data.

The data are read once, in blocks of batches that fit in memory, and all draws
are used on a block before the next is read. So what is predicted for an example
stays beside its target, also where a pipeline shuffles anew at each pass.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import itertools
import re
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.model import network

__all__ = [
    'Predictor', 'are_of_elements', 'batches', 'example_weights', 'inputs',
    'is_stream', 'length']

# Inputs, targets and what is stacked of all draws, that are held in memory
# while all draws are used on a block.
_BLOCK_BYTES = 2**28
_BYTES_OF_ROW = 8

Batch = tuple[Any, Any, Any]


class _Traced(NamedTuple):
  """A function traced for inputs of some shapes.

  Attributes:
    specs: Those of the weights and of the batch.
    function: The `ConcreteFunction`.
    outputs: The specs of the model's outputs.
  """
  specs: Any
  function: Any
  outputs: Any


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
    self._outputs = None

  def over_batches(
      self,
      name: str,
      fn: Callable[[Any, Batch], list[Any]],
      data: Iterator[Batch],
      read_draws: Callable[[], Iterator[list[np.ndarray]]],
      reduce_draws: Sequence[np.ufunc | None] | None,
      extras: Sequence[keras.Variable] = (),
      check: Callable[[Any, Batch], None] = lambda outputs, batch: None,
      draw_weights: np.ndarray | None = None,
      num_draws: int = 0,
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
        `[np.add, np.logaddexp]`; None to keep the draws apart, in all results
        or in one.
      extras: The variables, beside weights, that draws have values of.
      check: Callable of the specs of the model's outputs and of a batch; called
        before `fn` runs on the batch, to raise where it should not.
      draw_weights: The weight of each draw, by which sums (`np.add`,
        `np.logaddexp`) multiply its results; None for 1.
      num_draws: Python `int`, how many draws are kept apart: a block has the
        fewer batches, the more there are.

    Yields:
      batch: A batch.
      results: `fn`'s, as arrays: with a leading axis of draws, or reduced in
        float64.

    Raises:
      ValueError: If the model does not take the inputs, or there are no
        examples.
    """
    run = self._function(name, fn, list(extras))
    number = 0
    for block in _blocks(data, num_draws):
      results = [[] for _ in block]
      first = 0
      for part, weights in enumerate(read_draws()):
        weights = [tf.convert_to_tensor(w) for w in weights]
        some = None if draw_weights is None else draw_weights[
            first:first + len(weights[0])]
        first += len(weights[0])
        for found, batch in zip(results, block):
          traced = self._trace(name, run, weights, batch)
          if not part:
            check(traced.outputs, batch)
          found.append(_reduce(
              traced.function(weights, batch), reduce_draws, some))
      for batch, found in zip(block, results):
        number += length(batch)
        yield batch, _join(found, reduce_draws)
    if not number:
      raise ValueError(
          'The data hold no examples: pass inputs with one row at least (a '
          'generator or iterator that was gone through before is empty).')

  def _trace(self, name, run, weights, batch):
    """A function traced for any number of draws and examples, once.

    Else TensorFlow would trace it for the numbers of the first call, and warn
    of tracing where later ones have others.
    """
    specs = tf.nest.map_structure(network.of_any_length, (weights, batch))
    known = self._traced.setdefault(name, [])
    for traced in known:
      if traced.specs == specs:
        return traced
    function = run.get_concrete_function(*specs)
    known.append(_Traced(specs, function, self._outputs))
    return known[-1]

  def _function(self, name, fn, extras):
    """The compiled function `(stacked weights, batch) -> stacked results`."""
    # A model that is compiled anew has a new loss tracker, and other losses.
    tracker = network.loss_tracker(self._model)
    known, function = self._compiled.get(name, (None, None))
    if known == (tracker, len(extras)):
      return function

    @tf.function(autograph=False)
    def run(weights, batch):
      def one_draw(weights):
        outputs = self._forward(batch[0], weights, extras)
        self._outputs = network.map_leaves(
            lambda t: tf.TensorSpec(t.shape, t.dtype), outputs)
        return fn(outputs, batch)

      first = tf.nest.map_structure(
          lambda t: tf.TensorSpec(None, t.dtype),
          one_draw([w[0] for w in weights]))
      return tf.map_fn(one_draw, weights, fn_output_signature=first)

    self._compiled[name] = ((tracker, len(extras)), run)
    self._traced.pop(name, None)
    return run

  def _forward(self, x, weights, extras):
    """The outputs for one draw, while a function is traced."""
    number = len(weights) - len(extras)
    try:
      return network.forward(
          self._model, x, weights[:number],
          list(zip(extras, weights[number:]))).outputs
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
      shapes = network.map_leaves(lambda t: tuple(t.shape), x)
      raise ValueError(
          f'The model {self._model.name!r} does not take inputs of shapes '
          f'{shapes} (None stands for the number of rows): pass them as to '
          f'model.predict. It says: {_first_sentence(error)}') from error


def _reduce(results, ways, draw_weights):
  """Some draws' results as arrays, reduced if there are ways to."""
  def weighted(array, way):
    if draw_weights is None or way not in (np.add, np.logaddexp):
      return array
    weights = draw_weights.reshape([-1, *[1] * (array.ndim - 1)])
    return array * weights if way is np.add else array + np.log(weights)

  if ways is None:
    return keras.tree.map_structure(np.asarray, results)
  return [
      keras.tree.map_structure(
          lambda t, way=way: np.asarray(t) if way is None else way.reduce(
              weighted(np.asarray(t, np.float64), way), axis=0), result)
      for way, result in zip(ways, results)]


def _join(found, ways):
  """Joins the results of groups of draws."""
  if ways is None:
    return keras.tree.map_structure(
        lambda *arrays: np.concatenate(arrays), *found)
  return [
      keras.tree.map_structure(
          lambda *arrays, way=way: (
              np.concatenate(arrays) if way is None else way.reduce(
                  arrays, axis=0)), *parts)
      for way, parts in zip(ways, zip(*found))]


def is_stream(data: hints.Data) -> bool:
  """Whether the data come in batches of their own."""
  return (isinstance(data, (tf.data.Dataset, keras.utils.PyDataset))
          or hasattr(data, '__next__'))


def batches(
    data: hints.Data,
    batch_size: int,
    steps: int | None = None,
) -> Iterator[Batch]:
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
    TypeError: If an input is not an array.
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
    x: hints.Data, batch_size: int, steps: int | None) -> Iterator[Batch]:
  """Batches of the inputs alone, of data that may have targets."""
  if not is_stream(x):
    x = (x, None, None)
  return ((batch[0], None, None) for batch in batches(x, batch_size, steps))


def length(batch: Batch) -> int:
  """The number of examples of a batch."""
  return int(np.shape(keras.tree.flatten(batch[0])[0])[0])


def are_of_elements(weights: tf.Tensor) -> bool:
  """Whether sample weights are more than one number an example.

  Args:
    weights: None, a tensor, or one for each output of a model.

  Returns:
    are_of_elements: Whether they are `[n, t, ...]`, or of several outputs.
  """
  return keras.tree.is_nested(weights) or (
      weights is not None and any(k != 1 for k in weights.shape[1:]))


def example_weights(batch: Batch) -> np.ndarray:
  """The weights of a batch's examples; ones, where elements have their own."""
  weights, number = batch[2], length(batch)
  if weights is None or are_of_elements(weights):
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
          # The rows of pandas' objects by their places, not by their labels.
          lambda a, k=k: tf.convert_to_tensor(
              getattr(a, 'iloc', a)[k:k + batch_size]), data)
      for k in range(0, max(lengths, default=0), batch_size))


def _first_sentence(error):
  """What Keras says is wrong, without its colours and lists of arguments."""
  text = re.sub(r'\x1b\[\d*m', '', str(error))
  lines = [
      line.strip() for line in text.splitlines()
      if line.strip() and not line.startswith('Exception encountered')]
  return lines[0] if lines else type(error).__name__


def _to_tensors(structure):
  return network.map_leaves(tf.convert_to_tensor, structure)


def _bytes(structure):
  return sum(
      leaf.dtype.size * int(tf.size(leaf))
      for leaf in keras.tree.flatten(structure) if leaf is not None)


def _blocks(data, num_draws):
  """Lists of batches, as many as fit in memory."""
  block, size = [], 0
  for batch in data:
    block.append(batch)
    x, y, _ = (_bytes(part) for part in batch)
    # Two numbers a target, the most common, or a row where there is none.
    size += x + y + num_draws * max(2 * y, _BYTES_OF_ROW * length(batch))
    if size >= _BLOCK_BYTES:
      yield block
      block, size = [], 0
  if block:
    yield block
