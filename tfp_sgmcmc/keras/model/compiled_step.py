"""Keras' compiled training step, around another step than the model's own."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import hints

__all__ = ['MOST_AT_ONCE', 'CompiledStep']

# After how many steps the program of a step is made anew as one that takes its
# batch itself. That saves about 0.1 ms a step, and TensorFlow optimizes the new
# program in about 0.04 s for each weight tensor of a deep network, 6 s for 158:
# after this many steps the saving outweighs the cost of tracing again.
STEPS_A_WEIGHT = 400

# Steps in one program, which an interrupt from the keyboard waits for.
MOST_AT_ONCE = 32


class CompiledStep:
  """A training step, compiled as the model's own would be.

  The model's own train function and `train_step` are left as they were.
  """

  def __init__(self, model: keras.Model, train_step: Callable[[Any], Any]):
    """Compiles a step.

    Args:
      model: Compiled `keras.Model` with its own train function in place.
      train_step: Callable of a batch; returns the step's logs.
    """
    self._model = model
    self._own = model.train_function
    self._traced: tuple[hints.Nested, bool] | None = None
    self._num_alone = 0
    self._on_batches = self._make(train_step)
    self._on_next = _on_next(self._on_batches)
    self._repeated: Callable[..., Any] | None = None
    self._repeated_by_xla: Callable[..., Any] | None = None

  def is_stale(self) -> bool:
    """Whether the model has another own function now: it was compiled anew."""
    return self._model.train_function is not self._own

  def trace(
      self, element_spec: hints.Nested, loops_by_xla: bool = False) -> None:
    """Traces the step for the batches of a dataset, whatever their size.

    A batch on its own would be traced for its size, and the first one of
    another size again. Due before `on_batch` and `on_batch_times`; calls with
    the same arguments as the last do nothing.

    Args:
      element_spec: That of the dataset's iterator.
      loops_by_xla: Python `bool`, whether XLA compiles the program of several
        steps as a whole, for each size of batches anew. A step that it cannot
        compile runs without.
    """
    traced = element_spec, loops_by_xla
    if self._model.run_eagerly or traced == self._traced:
      return
    self._traced = traced
    self._repeated = _repeated(self._on_batches, element_spec)
    self._repeated_by_xla = (
        _repeated(self._on_batches, element_spec, by_xla=True)
        if loops_by_xla else None)
    tf.function(
        lambda data: self._on_batches([data]), autograph=False,
        input_signature=[element_spec]).get_concrete_function()

  def on_iterator(self, iterator: tf.data.Iterator) -> dict[str, Any]:
    """Runs an execution; one of several steps is compiled as a whole.

    A single step gets its batch from here at first, and later takes it itself:
    see `STEPS_A_WEIGHT`. One that XLA compiles always gets it from here, for
    XLA would compile the new program again.

    Args:
      iterator: The dataset's iterator that `fit` passes.

    Returns:
      logs: Those of the last step.
    """
    model = self._model
    if model.steps_per_execution > 1:
      return self._on_batches(iterator)
    if model.run_eagerly or model.jit_compile or (
        self._num_alone < STEPS_A_WEIGHT * len(model.trainable_variables)):
      self._num_alone += 1
      return self._on_batches([next(iterator)])
    return self._on_next(iterator)

  def on_batch(self, data: hints.Data) -> dict[str, Any]:
    """Runs a step, also where an execution is several.

    Args:
      data: A batch.

    Returns:
      logs: Those of the step.
    """
    return self._on_batches([data])

  def on_batch_times(
      self, data: hints.Data, number: int) -> list[dict[str, Any]]:
    """Runs several steps on one batch, in one program whatever their number.

    They may be those of other batches too, where they take nothing of it. To
    call a program for each step takes as long as a small network's step. Not
    for models that run eagerly, or on several replicas.

    Args:
      data: A batch.
      number: Python `int`, how many steps, 1 to `MOST_AT_ONCE`.

    Returns:
      logs: Those of each step.
    """
    logs = tf.nest.map_structure(
        np.asarray, self._run_repeated(data, tf.constant(number)))
    return [
        tf.nest.map_structure(lambda values, k=k: values[k], logs)
        for k in range(number)]

  def _run_repeated(self, *arguments):
    if self._repeated_by_xla is not None:
      try:
        return self._repeated_by_xla(*arguments)
      except (tf.errors.OpError, TypeError, ValueError):
        # XLA writes variables when its program ends: no step has been made. An
        # error of the model's own comes again from the other program.
        self._repeated_by_xla = None
    assert self._repeated is not None  # By `trace`.
    return self._repeated(*arguments)

  def _make(self, train_step):
    """Keras' own train function, around another step."""
    model = self._model
    own = vars(model).get('train_step')
    model.train_step = train_step
    try:
      model.make_train_function(force=True)
      return model.train_function
    finally:
      del model.train_step
      if own is not None:
        model.train_step = own
      model.train_function = self._own


def _repeated(function, element_spec, by_xla=False):
  """Keras' train function of a single batch, so many times on one.

  Its logs have a leading axis, of `MOST_AT_ONCE`: steps beyond the number have
  zeros there.
  """
  step = tf.function(lambda data: function([data]), autograph=False)

  def repeated(data, number):
    # The loop's first values are of the shapes of what a step returns.
    specs = step.get_concrete_function(data).structured_outputs
    logs = [
        tf.TensorArray(spec.dtype, size=MOST_AT_ONCE, element_shape=spec.shape)
        for spec in tf.nest.flatten(specs)]

    def body(k, logs):
      values = tf.nest.flatten(step(data))
      return k + 1, [
          array.write(k, value) for array, value in zip(logs, values)]

    _, logs = tf.while_loop(
        lambda k, _: k < number, body, (tf.zeros_like(number), logs),
        parallel_iterations=1)
    return tf.nest.pack_sequence_as(specs, [array.stack() for array in logs])

  return tf.function(
      repeated, autograph=False, jit_compile=by_xla or None,
      input_signature=[element_spec, tf.TensorSpec([], tf.int32)])


def _on_next(function):
  """Keras' train function of a single batch, on a dataset's next one.

  Keras' own returns an Optional, for the end of the data within an execution of
  several steps. Unwrapping it takes a fifth of the time of a small network's
  step, and is not needed where there is one.
  """
  return tf.function(
      lambda iterator: function([iterator.get_next()]), autograph=False,
      reduce_retracing=True)
