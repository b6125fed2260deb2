"""A posterior whose data are shared out among devices.

A `tf.distribute.Strategy` has replicas r = 1, ..., R, each with a part of the
data: M_r rows of M = sum_r M_r, which stand for N examples. All make the same
step of one chain, with the gradient

  g = grad log p(theta)
      + N / M sum_r M_r / n_r sum_{i in S_r} grad log p(data_i | theta),

S_r a minibatch of n_r of the rows of replica r, or all of them. One all-reduce
adds up the sums. The kernel's noise comes of a seed that all replicas have, so
that nothing else is exchanged; what a replica draws of its own rows comes of
that seed with its number folded in.

A part of the state may be a replica's own: another piece on each, that lives
with the rows there (effects of groups, or of rows). By TFP's convention these
parts have a name in `experimental_shard_axis_names`. The gradient by them is
the sum over the replica's own rows, which is not added up, and their noise
comes of the seed with the replica's number folded in.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import collectives
from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import wrapped

__all__ = [
    'ShardedPosterior',
    'find',
    'shard',
]


def _all_reduce_shared(tensors, is_own):
  """The sums over replicas of those that are not own."""
  sums = iter(collectives.all_reduce(
      [t for t, own in zip(tensors, is_own) if not own]))
  return [t if own else next(sums) for t, own in zip(tensors, is_own)]


class ShardedPosterior(posterior_lib.Posterior):
  """A posterior whose data are divided: each replica holds a part.

  Make it on each replica, from the rows of that replica. Its density, gradient
  and counts are those of all replicas together. For `sample`, `shard` makes it
  from a posterior that holds all data.

  #### Examples

  Each replica makes the posterior of its rows, and the chain, which is the same
  on all. (Loops of TFP that communicate have to be run eagerly under
  `MirroredStrategy` and `MultiWorkerMirroredStrategy`: these cannot put an
  all-reduce into a compiled loop. `sample` goes around that.)

  >>> x = tf.random.stateless_normal([1000], [0, 1])
  >>> strategy = tf.distribute.MirroredStrategy(['/cpu:0'])
  >>> parts = strategy.experimental_distribute_values_from_function(
  ...     lambda context: x[context.replica_id_in_sync_group::
  ...                       context.num_replicas_in_sync])
  >>> def chain(part):
  ...   posterior = sgmcmc.ShardedPosterior(
  ...       tfd.Normal(0., 10.).log_prob,
  ...       lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x), part,
  ...       num_examples=1000)
  ...   kernel = sgmcmc.SGLD(
  ...       posterior, step_size=1e-4,
  ...       gradient_estimator=sgmcmc.gradients.Uniform(100))
  ...   return tfp.mcmc.sample_chain(
  ...       5, tf.zeros([20]), kernel=kernel, trace_fn=None, seed=[0, 1])
  >>> strategy.run(chain, args=(parts,)).shape
  TensorShape([5, 20])

  Parts of the state that live with their rows, here an effect of each row with
  an unknown mean, have a name in `experimental_shard_axis_names`; each replica
  holds its piece of them. The prior is one of TFP's joint distributions, which
  adds up over the replicas what is `Sharded`:

  >>> def chain_of_effects(part):
  ...   distribute = tfp.experimental.distribute
  ...   prior = distribute.JointDistributionSequential([
  ...       tfd.Normal(0., 10.),
  ...       lambda mu: distribute.Sharded(
  ...           tfd.Sample(tfd.Normal(mu, 1.), len(part)), 'rows')])
  ...   posterior = sgmcmc.ShardedPosterior(
  ...       lambda effects, mu: prior.log_prob([mu, effects]),
  ...       lambda effects, mu, batch: tfd.Normal(
  ...           tf.gather(effects, batch[1], axis=-1), 1.).log_prob(batch[0]),
  ...       (part, tf.range(len(part))), num_examples=1000,
  ...       experimental_shard_axis_names=['rows', None])
  ...   kernel = sgmcmc.SGLD(
  ...       posterior, step_size=1e-3,
  ...       gradient_estimator=sgmcmc.gradients.Uniform(100))
  ...   return tfp.mcmc.sample_chain(
  ...       5, [part, tf.zeros([])], kernel=kernel, trace_fn=None, seed=[0, 1])
  >>> effects, mu = strategy.run(chain_of_effects, args=(parts,))
  >>> effects.shape, mu.shape
  (TensorShape([5, 1000]), TensorShape([5]))
  """

  def __init__(
      self,
      log_prior_fn: Callable[..., tf.Tensor],
      log_likelihood_fn: Callable[..., tf.Tensor],
      data: hints.Data = None,
      *,
      num_examples: int | None = None,
      example_state: hints.State | None = None,
      experimental_shard_axis_names: hints.ShardAxes = None,
  ):
    """Makes the posterior of a replica's rows.

    Args:
      log_prior_fn: As for `Posterior`. It has the value that it has with the
        pieces of all replicas together, and the gradient by a part that all
        share is that of this value: so have the densities of
        `tfp.experimental.distribute`. Plain densities will do for parts that
        all share.
      log_likelihood_fn: As for `Posterior`, of the rows of this replica, given
        its pieces of the state. Its values are not summed over replicas.
      data: Nested tensors, the rows of this replica.
      num_examples: Python `int`, N, of all replicas together. By default the
        number of rows, if there is only one replica.
      example_state: As for `Posterior`, with the pieces of this replica.
      experimental_shard_axis_names: List with an entry for each part of the
        state: a name, such as "rows", for a part that is another piece on each
        replica; None for one that all share. None for none. A kernel takes it
        over.

    Raises:
      ValueError: As `Posterior` does, if the names are none, or if there are
        several replicas and no `num_examples`.
      TypeError: If an argument is of the wrong type.
    """
    if num_examples is None and collectives.context() is not None:
      raise ValueError(
          'num_examples is None, and a replica sees its own rows alone: pass '
          'N, the number of examples of all replicas together.')
    self._shard_axis_names = collectives.axis_names(
        experimental_shard_axis_names)
    super().__init__(
        log_prior_fn, log_likelihood_fn, data, num_examples=num_examples,
        example_state=example_state)

  @property
  def experimental_shard_axis_names(self):
    return self._shard_axis_names

  @property
  def is_sharded(self):
    return True

  @property
  def total_rows(self):
    rows, = collectives.all_reduce([tf.cast(self.num_rows, tf.int32)])
    return rows

  def own_share(self, number):
    found = collectives.context()
    if found is None:
      return number
    if number % found.num_replicas_in_sync:
      raise ValueError(
          f'batch_size is {number}, and there are '
          f'{found.num_replicas_in_sync} replicas, which share a minibatch '
          'evenly: take a multiple of their number.')
    return number // found.num_replicas_in_sync

  def own_seed(self, seed):
    return collectives.own_seed(seed)

  def add_up(self, value, gradients):
    value, *gradients = _all_reduce_shared(
        [value, *gradients], [False, *self._which_are_own(gradients)])
    return value, gradients

  def sum_over_rows(self, *values):
    # n / M sum_r M_r / n_r sum_{i in S_r}: the plain sum of all that there are.
    own = tf.cast(tf.shape(values[0])[-1], values[0].dtype)
    scale = tf.math.divide_no_nan(self._stand_for(own), own)
    rows, number, *totals = self._with_total_rows(
        own, [own, *(scale * tf.reduce_sum(each, axis=-1) for each in values)])
    return [number / tf.cast(rows, own.dtype) * total for total in totals]

  def log_likelihood_estimate(self, *state_parts, batch, weights=None):
    """As `Posterior` has it: value and gradient by one all-reduce."""
    @tf.custom_gradient
    def estimate(*parts):
      def of_own_rows():
        inside = [tf.identity(part) for part in parts]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
          tape.watch(inside)
          each = self.log_likelihood(*inside, batch=batch)
          if weights is not None:
            each *= tf.cast(weights, each.dtype)
          total = tf.reduce_sum(each, axis=-1)
          own = tf.cast(tf.shape(each)[-1], each.dtype)
          if weights is None:  # A replica may have no rows of a last batch.
            total *= tf.math.divide_no_nan(self._stand_for(own), own)
        return [own, total, *map(tf.convert_to_tensor, tape.gradient(
            total, inside,
            unconnected_gradients=tf.UnconnectedGradients.ZERO))]

      def like():
        zeros = self.zeros(parts)
        return [tf.zeros([], zeros.dtype), zeros, *parts]

      own, total, *gradients = collectives.zeros_unless_due(of_own_rows, like)
      rows, total, *gradients = self._with_total_rows(
          own, [total, *gradients],
          [False, *self._which_are_own(parts)])
      scale = 1. if weights is not None else self.num_examples / tf.cast(
          rows, total.dtype)

      def gradient(upstream):
        def times(g):
          rank = len(g.shape) - len(upstream.shape)
          return g * tf.reshape(
              scale * upstream,
              tf.concat([tf.shape(upstream), tf.ones([rank], tf.int32)], 0))

        return [times(g) for g in gradients]

      return scale * total, gradient

    return estimate(*state_parts)

  def _which_are_own(self, parts):
    return collectives.which_are_own(self._shard_axis_names, parts)

  def _stand_for(self, number):
    """M_r, for how many rows so many of this replica's stand, as a float."""
    return tf.cast(self.num_rows, number.dtype)

  def _with_total_rows(self, number, tensors, is_own=None):
    """M, and the sums of tensors: where M has to be asked for, with them."""
    return _all_reduce_shared(
        [self._stand_for(number), *tensors],
        [False, *(is_own or [False] * len(tensors))])

  def log_prob_estimate(self, *state_parts, batch, weights=None):
    state_parts = [tf.convert_to_tensor(part) for part in state_parts]
    return self.log_prior(*state_parts) + self.log_likelihood_estimate(
        *state_parts, batch=batch, weights=weights)

  def transform(self, bijector):
    raise ValueError(
        'The data of this posterior are shared out already: transform the '
        'posterior before.')


class _DealtPosterior(ShardedPosterior):
  """A posterior that knows the parts of all replicas of this process."""

  def __init__(self, posterior, strategy, parts, ids, total_rows, num_examples):
    self.strategy = strategy
    self._parts = parts
    self._ids = ids
    self._total_rows = total_rows
    super().__init__(
        posterior._log_prior_fn, posterior._log_likelihood_fn, parts[0],
        num_examples=num_examples)
    self._parameters = posterior._parameters

  @property
  def is_of_first_process(self) -> bool:
    """Whether this process has the first replica of all."""
    return 0 in self._ids

  def wait(self) -> None:
    """Returns when all processes have come here."""
    tf.function(lambda: collectives.run(
        self.strategy, lambda: collectives.all_reduce([tf.ones([])])[0]),
        autograph=False)()

  @property
  def parameters(self) -> Mapping[str, Any]:
    """What it was made of, for who compares it with that of another run."""
    return dict(
        log_prior_fn=self._log_prior_fn,
        log_likelihood_fn=self._log_likelihood_fn, parts=self._parts,
        ids=self._ids, total_rows=self._total_rows,
        num_examples=self.num_examples)

  @property
  def data(self):
    found = collectives.context()
    if found is None:
      return self._parts[0]
    number = tf.get_static_value(found.replica_id_in_sync_group)
    if number is None:
      raise ValueError(
          'Which replica it is on is not known when a step is traced, as under '
          'TPUStrategy: make a ShardedPosterior of its rows on each replica.')
    return self._parts[self._ids.index(int(number))]

  @property
  def total_rows(self):
    return self._total_rows

  def _with_total_rows(self, number, tensors, is_own=None):
    self._check_inside()
    return [self._total_rows, *collectives.all_reduce(tensors)]

  def _check_inside(self):
    if collectives.context() is None:
      raise ValueError(
          'The data of this posterior are shared out among the replicas of '
          f'{type(self.strategy).__name__}, and its density was asked for '
          'outside of strategy.run: sgmcmc.sample sees to that. Elsewhere '
          'take the posterior that was given to shard.')


def find(kernel: tfp.mcmc.TransitionKernel) -> _DealtPosterior | None:
  """The posterior of `shard` that a kernel samples, None for another target.

  Args:
    kernel: `tfp.mcmc.TransitionKernel`.

  Returns:
    posterior: The posterior.

  Raises:
    ValueError: If the kernel cannot sample it.
  """
  name = type(kernel).__name__
  *_, kernel = wrapped.kernels(kernel)
  target = getattr(kernel, 'target_log_prob_fn', None)
  if not isinstance(target, _DealtPosterior):
    return None
  estimator = getattr(kernel, 'gradient_estimator', None)
  if not getattr(estimator, 'works_on_shards', False):
    raise ValueError(
        f'The data of the posterior are shared out, and {name} with '
        f'gradient_estimator={estimator!r} has to see all of them: take SGLD, '
        'SGHMC or SGNHT with gradients.Uniform, ControlVariate (without '
        'probabilities) or Exact.')
  return target


def shard(
    posterior: posterior_lib.Posterior,
    strategy: tf.distribute.Strategy,
    is_part: bool = False,
) -> posterior_lib.Posterior:
  """Divides the data of a posterior among the replicas of a strategy.

  Row i of the data goes to replica i modulo R. The posterior that it returns is
  for kernels that `sgmcmc.sample` runs, which makes each step on all replicas:
  the chain has the law of a chain on one device whose minibatches take as many
  rows from each of the R parts. With the exact gradient it is the same chain,
  up to the order of additions.

  Under `MultiWorkerMirroredStrategy` each process runs the same script, and has
  all draws in the end. Only the first process writes to a `directory`; all
  processes have to see it, to read the position of the chain. The steps are
  compiled, but not by XLA: these strategies cannot put an all-reduce into an
  XLA loop.

  Args:
    posterior: `Posterior` with data.
    strategy: `tf.distribute.MirroredStrategy` or
      `MultiWorkerMirroredStrategy`.
    is_part: Python `bool`: the posterior of each process holds only a part of
      the data, which is divided among the replicas of that process. Its
      `num_examples`, if given, is N, that of all processes together.

  Returns:
    posterior: The sharded posterior; with one replica the given posterior.

  Raises:
    ValueError: If the posterior has no data, fewer rows than there are
      replicas, or the strategy's do not step together.
    TypeError: If an argument is of the wrong type.

  #### Examples

  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x),
  ...     tf.random.stateless_normal([1000], [0, 1]))
  >>> strategy = tf.distribute.MirroredStrategy(['/cpu:0'])  # Or all GPUs.
  >>> kernel = sgmcmc.SGLD(
  ...     sgmcmc.shard(posterior, strategy), step_size=1e-4,
  ...     gradient_estimator=sgmcmc.gradients.Uniform(batch_size=100))
  >>> draws = sgmcmc.sample(
  ...     kernel, 50, tf.zeros([20]), seed=1, progress_bar=False)
  """
  if not isinstance(posterior, posterior_lib.Posterior):
    raise TypeError(
        f'posterior is {posterior!r}: a Posterior with data is needed, for '
        'these are shared out.')
  if not isinstance(strategy, tf.distribute.Strategy):
    raise TypeError(
        f'strategy is {strategy!r}: a tf.distribute.Strategy is needed, such '
        'as tf.distribute.MirroredStrategy().')
  if isinstance(strategy, tf.distribute.ParameterServerStrategy):
    raise ValueError(
        'The replicas of ParameterServerStrategy do not step together: there '
        'would be no one chain. Take MirroredStrategy.')
  if posterior.data is None or posterior.is_sharded:
    raise ValueError(
        'The posterior has no data of its own that could be shared out.')
  if not collectives.is_several(strategy):
    return posterior
  ids: list[int] = []
  strategy.experimental_distribute_values_from_function(
      lambda context: ids.append(  # type: ignore[func-returns-value]
          int(context.replica_id_in_sync_group)) or 0)
  first, step = (
      (ids[0], len(ids)) if is_part else (0, strategy.num_replicas_in_sync))
  if posterior.num_rows < step:
    raise ValueError(
        f'The posterior holds {posterior.num_rows} rows, and there are {step} '
        'replicas to share them: one for each is needed.')
  leaves = tf.nest.flatten(posterior.data)
  dealt = [
      strategy.experimental_local_results(
          strategy.experimental_distribute_values_from_function(
              lambda context, leaf=leaf: leaf[
                  int(context.replica_id_in_sync_group) - first::step]))
      for leaf in leaves]
  parts = [
      tf.nest.pack_sequence_as(posterior.data, list(part))
      for part in zip(*dealt)]
  total_rows, num_examples = posterior.num_rows, posterior.num_examples
  if is_part:
    rows = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(tf.nest.flatten(parts[ids.index(
            int(context.replica_id_in_sync_group))])[0].shape[0]))
    total_rows = int(tf.function(
        lambda: collectives.run(
            strategy, lambda n: collectives.all_reduce([n])[0], rows),
        autograph=False)())
    if num_examples == posterior.num_rows:
      num_examples = total_rows
  return _DealtPosterior(
      posterior, strategy, parts, ids, total_rows, num_examples)
