"""Predictions for each row of a batch once, from a kernel's own passes."""

from collections.abc import Callable

import keras
import tensorflow as tf

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.model import network

__all__ = ['ForwardPasses']


class ForwardPasses:
  """The passes through a model that a kernel makes in one step on a batch.

  A kernel evaluates the likelihood as often as it needs to: once on the whole
  batch, several times, on parts of the batch, or inside `tf.cond`. Metrics need
  the outputs for each row of the batch once, and should cost no pass of their
  own where the kernel has made one. `of_each_row` gives them:

  * the first pass over the whole batch, where there is one;
  * else the passes over parts, put together in the order of the rows, with the
    first outputs of a row that was in several;
  * else, or where these leave a row out, one more pass over the whole batch.

  Passes inside control flow are left out, for they may not be run. (So are all
  of `tf.while_loop` and `tf.map_fn`.)

  What layers count or use up (`ForwardPass.updates`) goes on from part to part;
  each pass over the whole batch starts from the state before the step, so that
  the model is one function throughout a step.

  The likelihood of a row has to know which row it is: `rows`, the numbers of
  the rows, go with the batch wherever it goes, and come back in `add`.
  """

  def __init__(
      self,
      num_rows: hints.TensorLike,
      make_pass: Callable[[], network.ForwardPass],
  ):
    """Makes the object, before the kernel's step, in the step's own graph.

    Args:
      num_rows: Integer, n, the number of rows of the batch.
      make_pass: Callable without arguments that makes a pass over the whole
        batch, at the weights before the step.
    """
    self._num_rows = num_rows
    self._make_pass = make_pass
    self._rows = tf.range(num_rows)
    self._graph = _graph()
    self._whole: network.ForwardPass | None = None
    self._parts = []

  @property
  def rows(self) -> tf.Tensor:
    """The numbers of the batch's rows, `int32[n]`."""
    return self._rows

  def updates(self, rows: tf.Tensor) -> network.Updates:
    """The state of the model, beside its weights, that a pass starts from.

    Args:
      rows: The numbers of the pass's rows.

    Returns:
      updates: Pairs of a variable and its value; none for that in the model.
    """
    if rows is self._rows or not self._parts:
      return []
    return self._parts[-1][1].updates

  def add(self, rows: tf.Tensor, forward_pass: network.ForwardPass) -> None:
    """Takes note of a pass.

    Args:
      rows: The numbers of the pass's rows: `rows` itself where it was over the
        whole batch, else those taken from it as from the batch.
      forward_pass: `ForwardPass`.
    """
    if _graph() is not self._graph:
      return
    if rows is not self._rows:
      self._parts.append((rows, forward_pass))
    elif self._whole is None:
      self._whole = forward_pass

  def of_each_row(self) -> network.ForwardPass:
    """One pass over the whole batch, after the kernel's step.

    Returns:
      forward_pass: `ForwardPass`; its `outputs` are those for `rows`.
    """
    if self._whole is not None:
      return self._whole
    if not self._parts:
      return self._make_pass()
    return self._join()

  def _join(self):
    """The passes over parts as one pass."""
    rows = tf.concat([rows for rows, _ in self._parts], axis=0)
    # Where each row is first; the largest integer where it is not.
    first = tf.math.unsorted_segment_min(
        tf.range(tf.size(rows)), rows, self._num_rows)
    passes = [forward_pass for _, forward_pass in self._parts]
    counts = [tf.size(rows) for rows, _ in self._parts]

    def joined():
      outputs = [
          tf.gather(tf.concat(leaves, axis=0), first)
          for leaves in zip(*(_leaves(p) for p in passes))]
      losses = [
          _mean(terms, counts)
          for terms in zip(*(p.layer_losses for p in passes))]
      return outputs, losses, [value for _, value in passes[-1].updates]

    def anew():
      made = self._make_pass()
      return _leaves(made), made.layer_losses, [
          value for _, value in made.updates]

    outputs, losses, updated = tf.cond(
        tf.reduce_all(first < tf.size(rows)), joined, anew)
    return passes[-1]._replace(
        outputs=_pack(passes[0], outputs), layer_losses=losses,
        updates=[(variable, value) for (variable, _), value in zip(
            passes[-1].updates, updated)])


def _graph():
  """The graph that is being traced, None where TensorFlow runs eagerly."""
  if tf.executing_eagerly():
    return None
  return tf.compat.v1.get_default_graph()


def _leaves(forward_pass):
  """The outputs as a list, after them their masks."""
  leaves = keras.tree.flatten(forward_pass.outputs)
  masks = [compat.mask(leaf) for leaf in leaves]
  return [*leaves, *(mask for mask in masks if mask is not None)]


def _pack(forward_pass, leaves):
  """The inverse of `_leaves`: outputs in the structure of a pass's own."""
  like = keras.tree.flatten(forward_pass.outputs)
  masks = iter(leaves[len(like):])
  return keras.tree.pack_sequence_as(forward_pass.outputs, [
      output if compat.mask(own) is None
      else compat.with_mask(output, next(masks))
      for own, output in zip(like, leaves)])


def _mean(terms, counts):
  """The mean of the parts' values, each weighing as its rows do."""
  weights = [tf.cast(n, term.dtype) for n, term in zip(counts, terms)]
  return tf.add_n([n * term for n, term in zip(weights, terms)]) / tf.add_n(
      weights)
