"""A step of several chains as one vectorised program, where there can be one.

What the chains of `side_by_side` have of their own (weights, the kernel's
results, seeds, the rows of a batch) is stacked, `[k, ...]`, and the step of one
chain is mapped over it by `tf.vectorized_map`: k products of matrices become
one, and XLA compiles one step in place of k. The numbers are those of turns up
to rounding.

Dense, Embedding, LayerNormalization and MultiHeadAttention are vectorised, and
layers without weights, such as activations and pools. It is left to TensorFlow
to say whether a step can be: it is tried as the step is traced, and once it has
failed the chains take turns. So they do

* in models with convolutions or recurrent layers that are trained: TensorFlow
  has no rule for stacked weights there, or a loop (these are not even tried);
* where a step branches by the values of one chain, as EWSG does, or loops;
* in models with moving statistics (`BatchNormalization`), with layers that
  count or use up something in prediction, or with masks on their outputs;
* where all runs eagerly;
* where it is no gain: with many weights and without XLA (`is_worthwhile`).
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.keras.fitting import step as step_lib
from tfp_sgmcmc.keras.fitting import turns as turns_lib
from tfp_sgmcmc.keras.model import network

__all__ = ['MOST_WEIGHTS', 'Together', 'is_worthwhile']

# Of a network whose chains step together without XLA: see "How far does it go".
MOST_WEIGHTS = 2**15
# Of one whose random numbers are not worth compiling, which takes 3 s.
_FEW_WEIGHTS = 3000

# Operations of vectorised branches, and of loops.
_UNLIKE = ('DynamicPartition', 'StatelessWhile', 'While')


def is_worthwhile(num_weights: int) -> bool:
  """Whether a vectorised step is likely to be the faster one.

  Always in a program that XLA compiles. Elsewhere where there are not so many
  weights that the work on their arrays is most of a step.

  Args:
    num_weights: Python `int`, the number of a chain's weights.

  Returns:
    is_worthwhile: Python `bool`.
  """
  return compat.in_xla_context() or num_weights <= MOST_WEIGHTS


class Together:
  """Makes a step of all chains at once."""

  def __init__(
      self,
      step: step_lib.SamplingStep,
      turns: turns_lib.Turns,
      num_chains: int,
      is_possible: bool,
  ):
    """Makes the object, before the step is traced.

    Args:
      step: `SamplingStep` of one chain.
      turns: `Turns` with all that is a chain's own.
      num_chains: Python `int`, k.
      is_possible: Python `bool`, whether to try at all.
    """
    self._step, self._turns = step, turns
    self._num_chains = num_chains
    self._is_possible = is_possible

  @property
  def is_possible(self) -> bool:
    """Whether no attempt has failed."""
    return self._is_possible

  def each(
      self, rows: Callable[[tf.Tensor], Any]) -> list[dict[str, Any]] | None:
    """A step of each chain, in a graph.

    Args:
      rows: Callable of a column of chains' numbers; returns their batches,
        stacked.

    Returns:
      logs: What `SamplingStep.train_step` would return, by chain; None where
        nothing was done, and the chains have to take turns.
    """
    num_weights = network.num_weights(self._step.variables)
    if (not self._is_possible or tf.executing_eagerly()
        or not is_worthwhile(num_weights)):
      return None
    batches = rows(tf.range(self._num_chains)[:, tf.newaxis])
    moves = self._moves(batches, num_weights > _FEW_WEIGHTS)
    if moves is None:
      self._is_possible = False
      return None
    counter, _ = self._step.status_variables
    number = self._turns.first(counter) + 1
    bad = self._write(moves, number)
    metrics = self._update_metrics(batches, moves)
    return [{
        **metrics,
        **{name: log[chain] for name, log in moves.logs.items()},
        step_lib.STATUS: (number, bad[chain])}
            for chain in range(self._num_chains)]

  def _moves(self, batches, keeps_compiled):
    """`Move` of all chains, stacked; None where it cannot be vectorised."""
    counter, _ = self._step.status_variables
    values = self._turns.tensors([
        *self._step.variables, self._step.seed,
        *(v for v in self._step.result_variables if v is not counter)])
    leaves = [leaf for leaf in keras.tree.flatten(batches) if leaf is not None]

    def all_chains(*stacked):
      return compat.vectorized_map(
          lambda of_chain: self._advance(*of_chain, batches), stacked,
          keeps_compiled)

    # Traced on its own, so that nothing is left of what fails.
    try:
      program = tf.function(
          all_chains, autograph=False).get_concrete_function(values, leaves)
    except Exception:  # What else is wrong with a step its turns will say.
      return None
    if not _is_for_all_alike(program):
      return None
    return program(*values, *leaves)

  def _advance(self, values, leaves, batches):
    """`Move` of one chain, from what is its own."""
    step = self._step
    counter, _ = step.status_variables
    number, left = self._turns.first(counter), iter(values)
    start = [next(left) for _ in step.variables]
    seed = next(left)
    # The number of the step is one for all, and so is what it decides.
    results = step.packed([
        number if v is counter else next(left) for v in step.result_variables])
    left = iter(leaves)
    data = network.map_leaves(lambda _: next(left), batches)
    move = step.advance(start, results, seed, data)
    forward_pass = move.forward_pass
    if forward_pass.updates or any(
        compat.mask(leaf) is not None
        for leaf in keras.tree.flatten(forward_pass.outputs)):
      raise ValueError('The pass has more to it than tensors.')
    return move._replace(
        forward_pass=forward_pass._replace(penalties=[], updates=[]))

  def _write(self, moves, number):
    """Keeps what the chains have come to; returns the first bad steps."""
    step = self._step
    _, bad = step.status_variables
    new_bad = step_lib.first_bad(
        self._turns.tensors([bad])[0], moves.is_finite, number)
    self._turns.assign(
        [*step.variables, *step.result_variables, bad],
        [*moves.parts, *step_lib.kept_leaves(moves.results), new_bad])
    return new_bad

  def _update_metrics(self, batches, moves):
    """Updates the model's metrics by the rows of all chains as one batch."""
    step, forward_pass = self._step, moves.forward_pass
    return step.update_metrics(
        network.map_leaves(_as_rows, batches),
        moves._replace(
            forward_pass=forward_pass._replace(
                outputs=network.map_leaves(_as_rows, forward_pass.outputs)),
            loss=tf.reduce_mean(moves.loss),
            counted={place: tf.reduce_sum(numbers, axis=0)
                     for place, numbers in moves.counted.items()}))


def _as_rows(leaf):
  """`[k, n, ...]` as `[k n, ...]`."""
  return tf.reshape(
      leaf, compat.joined_shapes([[-1], compat.shape(leaf)[2:]], axis=0))


def _is_for_all_alike(program):
  """Whether a program has no loops, and no parts for some chains alone.

  Vectorised branches partition chains into groups of dynamic size, which XLA
  cannot compile; nor can it compile all loops of stacked lists.
  """
  graph = program.graph.as_graph_def()
  nodes = [graph.node, *(f.node_def for f in graph.library.function)]
  return not any(node.op in _UNLIKE for part in nodes for node in part)
