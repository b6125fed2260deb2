"""A chain on several replicas: data shared out, the chain the same on each.

A `tf.distribute.Strategy` deals each batch to its replicas, which make the same
step of one chain with the gradient on the whole batch (`sharding`). What a
chain keeps has a copy on each replica (`variable`), written without
communication.
"""

from collections.abc import Sequence
import contextlib
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc import collectives
from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc import sharding
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.model import network

__all__ = ['assign', 'check', 'metrics', 'posterior', 'variable', 'whole']


def check(model: keras.Model) -> None:
  """Raises where a chain cannot run under a model's strategy.

  Args:
    model: `keras.Model`.

  Raises:
    ValueError: If the strategy has no replicas that step together.
  """
  strategy = model.distribute_strategy
  if isinstance(strategy, tf.distribute.ParameterServerStrategy):
    raise ValueError(
        'The model was built under ParameterServerStrategy, whose workers do '
        'not step together: there would be no one chain. Take '
        'MirroredStrategy (or TPUStrategy, which is not yet tried).')
  is_several = collectives.is_several(strategy)
  if is_several and isinstance(
      strategy, tf.distribute.MultiWorkerMirroredStrategy):
    raise ValueError(
        'The model was built under MultiWorkerMirroredStrategy, under which '
        "Keras' own fit fails. For several machines take "
        'sgmcmc.keras.fit_chains, a chain on each, or sgmcmc.shard and '
        'sgmcmc.sample, which share out the data.')
  if model.jit_compile and is_several and isinstance(
      strategy, tf.distribute.MirroredStrategy):
    raise ValueError(
        'The model is compiled with jit_compile=True under MirroredStrategy '
        f'with {strategy.num_replicas_in_sync} replicas, which TensorFlow '
        'cannot compile by XLA: pass jit_compile=False to compile().')
  if model.steps_per_execution > 1 and is_several:
    raise ValueError(
        f'The model is compiled with steps_per_execution='
        f'{model.steps_per_execution} on {strategy.num_replicas_in_sync} '
        'replicas, which fails in Keras itself, with any optimizer: leave it '
        'out.')


def posterior(
    strategy: tf.distribute.Strategy, *arguments: Any, num_examples: int,
) -> posterior_lib.Posterior:
  """The posterior of a batch, or of a replica's part of it.

  Args:
    strategy: The model's strategy.
    *arguments: Those of `Posterior` by position.
    num_examples: Python `int`, N.

  Returns:
    posterior: `Posterior`, where there are several replicas sharded.
  """
  kind = _ShardedBatch if collectives.is_several(strategy) else _Batch
  return kind(*arguments, num_examples=num_examples)


class _Batch(posterior_lib.Posterior):
  """The posterior of the batch of one step."""

  _looks_at_values = False

  @property
  def population(self):
    return self._num_examples


class _ShardedBatch(sharding.ShardedPosterior):
  """The same of a replica's part of the batch.

  The rows of all replicas are dealt out as on one device, and of each minibatch
  a replica takes the rows that are its own. How many these are is not known
  when a program is made, which one for TPUs cannot have: there each replica
  deals out its own rows.
  """

  _looks_at_values = False

  @property
  def total_rows(self):
    return tf.reduce_sum(self._rows_of_each())

  def to_deal(self, seed):
    if not self._deals_together:
      return super().to_deal(seed)
    rows_of_each = self._rows_of_each()
    first = tf.reduce_sum(
        rows_of_each[:collectives.context().replica_id_in_sync_group])

    def own_of(rows):
      own = rows - first
      return tf.boolean_mask(own, (own >= 0) & (own < self.num_rows))

    return tf.reduce_sum(rows_of_each), seed, own_of

  @property
  def _deals_together(self):
    return collectives.context() is not None and not compat.sees_tpus()

  def _stand_for(self, number):
    return number if self._deals_together else super()._stand_for(number)

  def _rows_of_each(self):
    """Without communication: the replicas of `fit` are of one process."""
    context, own = collectives.context(), tf.convert_to_tensor(self.num_rows)
    if context is None:
      return own[tf.newaxis]

    def together(strategy, num_rows):
      parts = strategy.experimental_local_results(num_rows)
      # One for all, where they are one program, of one size.
      return tf.stack(parts * (strategy.num_replicas_in_sync // len(parts)))

    return context.merge_call(together, args=(own,))


def whole(strategy: tf.distribute.Strategy, data: hints.Data) -> Any:
  """A batch in one piece, from the parts that the replicas have."""
  if not collectives.is_several(strategy):
    return data
  return keras.tree.map_structure(
      lambda leaf: None if leaf is None
      else tf.concat(strategy.experimental_local_results(leaf), axis=0), data)


def metrics(model: keras.Model) -> dict[str, Any]:
  """The metrics of the rows of all replicas; empty where there is one.

  What a step returns Keras averages over the replicas, as if each had as many
  rows as the others; it mends that only where the logs are metrics alone.
  """
  if not collectives.is_several(model.distribute_strategy):
    return {}
  return model.get_metrics_result()


def variable(
    strategy: tf.distribute.Strategy, value: tf.Tensor, name: str,
) -> tf.Variable:
  """A variable with a copy on each replica, which writes its own.

  Args:
    strategy: The model's strategy.
    value: The first value.
    name: Python `str`.

  Returns:
    variable: Not trainable, of `kept(value)`. Read outside a step, it is that
      of the first.
  """
  several = {}
  if collectives.is_several(strategy):
    several = dict(
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
  with strategy.scope() if several else contextlib.nullcontext():
    return tf.Variable(kept(value), trainable=False, name=name, **several)


def kept(value: Any) -> Any:
  """What a variable keeps of a value: `int32` as `int64`.

  TensorFlow has variables of `int32` in the CPU's memory alone, where a step
  that XLA has compiled for a GPU does not reach them.

  Args:
    value: Tensor or array.

  Returns:
    value: Tensor, or what was given.
  """
  return tf.cast(value, tf.int64) if value.dtype == tf.int32 else value


def assign(
    weights: Sequence[keras.Variable], values: Sequence[tf.Tensor]) -> None:
  """Gives a model's weights the values that all replicas have found.

  Args:
    weights: Variables of the model.
    values: A tensor for each.
  """
  context = collectives.context()
  if context is None:
    network.assign(weights, values)
    return

  def update(strategy, *values):
    for weight, value in zip(weights, values):
      strategy.extended.update(
          weight.value, lambda v, x: v.assign(x), args=(value,), group=False)

  context.merge_call(update, args=tuple(values))
