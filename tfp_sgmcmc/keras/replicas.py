"""A chain on several replicas: data shared out, the chain the same on each.

A `tf.distribute.Strategy` deals each batch to its replicas. With S_r the rows
of replica r, n_r of them, and n = sum_r n_r, all replicas make the same step of
one chain, with the gradient on the whole batch,

  g = grad log p(theta) + N / n sum_r sum_{i in S_r} grad log p(data_i | theta),

for which one all-reduce adds up the sums over S_r and the counts n_r. The noise
comes of a seed that all have, so that nothing else is exchanged. What a chain
keeps has a copy on each replica (`variable`), written without communication.
"""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc.keras import network

__all__ = [
    'ShardedPosterior',
    'all_reduce',
    'assign',
    'check',
    'is_several',
    'posterior',
    'run',
    'variable',
    'whole',
]


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
        'MirroredStrategy or TPUStrategy.')
  if model.jit_compile and isinstance(
      strategy, tf.distribute.MirroredStrategy) and is_several(strategy):
    raise ValueError(
        'The model is compiled with jit_compile=True under MirroredStrategy '
        f'with {strategy.num_replicas_in_sync} replicas, which TensorFlow '
        'cannot compile by XLA: pass jit_compile=False to compile().')
  if model.steps_per_execution > 1 and is_several(strategy):
    raise ValueError(
        f'The model is compiled with steps_per_execution='
        f'{model.steps_per_execution} on {strategy.num_replicas_in_sync} '
        'replicas, which fails in Keras itself, with any optimizer: leave it '
        'out.')


def is_several(strategy: tf.distribute.Strategy) -> bool:
  """Whether a strategy has several replicas."""
  return strategy.num_replicas_in_sync > 1


def posterior(
    strategy: tf.distribute.Strategy, *arguments: Any,
) -> posterior_lib.Posterior:
  """The posterior of a batch, or of a replica's part of it.

  Args:
    strategy: The model's strategy.
    *arguments: Those of `Posterior`.

  Returns:
    posterior: `Posterior`, where there are several replicas sharded.
  """
  kind = ShardedPosterior if is_several(strategy) else posterior_lib.Posterior
  return kind(*arguments)


def whole(strategy: tf.distribute.Strategy, data: Any) -> Any:
  """A batch in one piece, from the parts that the replicas have."""
  if not is_several(strategy):
    return data
  return keras.tree.map_structure(
      lambda leaf: None if leaf is None
      else tf.concat(strategy.experimental_local_results(leaf), axis=0), data)


def run(
    strategy: tf.distribute.Strategy, fn: Callable[[Any], Any], data: Any,
) -> Any:
  """What `fn` returns of each replica's part of a batch: the first's."""
  if not is_several(strategy):
    return fn(data)
  return tf.nest.map_structure(
      lambda leaf: strategy.experimental_local_results(leaf)[0],
      strategy.run(fn, args=(data,)))


def all_reduce(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """The sums over replicas; the tensors themselves where there is but one."""
  context = _context()
  if context is None:
    return list(tensors)
  return context.all_reduce(tf.distribute.ReduceOp.SUM, list(tensors))


def _context():
  """The context of one replica of several; else None."""
  context = tf.distribute.get_replica_context()
  return context if context and context.num_replicas_in_sync > 1 else None


def variable(
    strategy: tf.distribute.Strategy, value: tf.Tensor, name: str,
) -> tf.Variable:
  """A variable with a copy on each replica, which writes its own.

  Args:
    strategy: The model's strategy.
    value: The first value.
    name: Python `str`.

  Returns:
    variable: Not trainable. Read outside a step, it is that of the first.
  """
  several = {}
  if is_several(strategy):
    several = dict(
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
  with strategy.scope() if several else contextlib.nullcontext():
    return tf.Variable(value, trainable=False, name=name, **several)


def assign(
    weights: Sequence[keras.Variable], values: Sequence[tf.Tensor]) -> None:
  """Gives a model's weights the values that all replicas have found.

  Args:
    weights: Variables of the model.
    values: A tensor for each.
  """
  context = _context()
  if context is None:
    network.assign(weights, values)
    return

  def update(strategy, *values):
    for weight, value in zip(weights, values):
      strategy.extended.update(
          weight.value, lambda v, x: v.assign(x), args=(value,), group=False)

  context.merge_call(update, args=tuple(values))


class ShardedPosterior(posterior_lib.Posterior):
  """A posterior whose data are shared out: each replica holds a part.

  In the context of a replica it has the density, the gradient and the counts of
  all parts together.
  """

  @property
  def is_sharded(self):
    return True

  @property
  def total_rows(self):
    rows, = all_reduce([tf.cast(self.num_rows, tf.int32)])
    return rows

  def sum_over_rows(self, values):
    total, = all_reduce([super().sum_over_rows(values)])
    return total

  def log_likelihood_estimate(self, *state_parts, batch, weights=None):
    """As `Posterior` has it: value and gradient by one all-reduce."""
    @tf.custom_gradient
    def estimate(*parts):
      with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(parts)
        each = self.log_likelihood(*parts, batch=batch)
        if weights is not None:
          each *= tf.cast(weights, each.dtype)
        total = tf.reduce_sum(each, axis=-1)
      gradients = tape.gradient(
          total, parts, unconnected_gradients=tf.UnconnectedGradients.ZERO)
      size = tf.cast(tf.shape(each)[-1], total.dtype)
      total, size, *gradients = all_reduce(
          [total, size, *map(tf.convert_to_tensor, gradients)])
      scale = 1. if weights is not None else self.num_examples / size

      def gradient(upstream):
        def times(g):
          rank = len(g.shape) - len(upstream.shape)
          return g * tf.reshape(
              scale * upstream,
              tf.concat([tf.shape(upstream), tf.ones([rank], tf.int32)], 0))

        return [times(g) for g in gradients]

      return scale * total, gradient

    return estimate(*state_parts)

  def log_prob_estimate(self, *state_parts, batch, weights=None):
    state_parts = [tf.convert_to_tensor(part) for part in state_parts]
    return self.log_prior(*state_parts) + self.log_likelihood_estimate(
        *state_parts, batch=batch, weights=weights)
