"""Minibatches with a table of the gradients that examples last had.

  g = grad log p(theta) + sum_{i=1}^N alpha_i
      + N / n sum_{i in S} (grad l_i(theta) - alpha_i),

  alpha_i <- grad l_i(theta)  for i in S, after the estimate,

with l_i the log likelihood of an example, S a set of n of the N examples, each
set equally likely, and alpha_i the table, at first the gradients at the first
state. Dubey et al. (2016), algorithm 1 (SAGA-LD), with their g_alpha the sum;
there S is drawn with replacement.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc.gradients import base
from tfp_sgmcmc.gradients import full_pass
from tfp_sgmcmc.gradients import minibatch
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import rows
from tfp_sgmcmc.internal import states

__all__ = ['SAGA', 'SAGAResults']


class SAGAResults(NamedTuple):
  """The state of a `SAGA`.

  A trace of it holds the whole table at each step, N times the size of a state:
  let `trace_fn` choose.

  Attributes:
    num_gradients: `int64`, shape `chains`, the number of gradients of single
      examples that each chain has used so far, the pass that fills the table
      included.
    table: List with alpha for each part, `[N] + part.shape`.
    total: List with the sum of the table over examples.
  """
  num_gradients: tf.Tensor
  table: list[tf.Tensor]
  total: list[tf.Tensor]


class SAGA(minibatch.MinibatchEstimator):
  """Minibatches with a table of the gradients that examples last had.

    g = grad log p(theta) + sum_{i=1}^N alpha_i
        + N / n sum_{i in S} (grad l_i(theta) - alpha_i)

  The minibatch is drawn without replacement, and its gradients then replace
  those in the table alpha. The estimate is unbiased given the table. It starts
  with one pass over the data; a step takes n gradients of examples, half as
  many as `SVRG`, but needs N times the size of the state in memory.

  Each example of a minibatch is treated as a chain with a minibatch of its own:
  `log_likelihood_fn` has to take leading chain axes.

  #### Examples

  >>> x = tf.random.stateless_normal([1000, 2], [0, 1])
  >>> y = tf.cast(x[:, 0] > 0., tf.float32)
  >>> def log_likelihood(theta, batch):
  ...   x, y = batch
  ...   logits = tf.einsum('...nd,...d->...n', x, theta)
  ...   return tfd.Bernoulli(logits=logits).log_prob(y)
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.MultivariateNormalDiag(tf.zeros(2)).log_prob, log_likelihood,
  ...     (x, y))
  >>> kernel = sgmcmc.SGLD(
  ...     posterior, step_size=1e-3,
  ...     gradient_estimator=sgmcmc.gradients.SAGA(batch_size=10))
  >>> _, num_gradients = tfp.mcmc.sample_chain(
  ...     4, tf.zeros([5, 2]), kernel=kernel, seed=[0, 0],
  ...     trace_fn=lambda _, r: r.gradient_estimator_results.num_gradients)
  >>> num_gradients[:, 0].numpy().tolist()  # The first is at the chain's start.
  [1020, 1030, 1040, 1050]

  #### References

  [1]: Avinava Dubey, Sashank J. Reddi, Barnabas Poczos, Alexander J. Smola,
       Eric P. Xing, Sinead A. Williamson. Variance Reduction in Stochastic
       Gradient Langevin Dynamics. _NeurIPS_, 2016.
  """

  def __init__(
      self,
      batch_size: int,
      *,
      memory_limit: int = 2**30,
      share_minibatch: bool = False,
      rows_per_chunk: int = 1000,
  ):
    """Makes the estimator.

    Args:
      batch_size: Python `int`, n.
      memory_limit: Python `int`, in bytes: a larger table is refused at the
        start of a chain. A step may need memory for a second table, the start
        for a third.
      share_minibatch: Python `bool`: all chains see one minibatch. Each has its
        own table in any case.
      rows_per_chunk: Python `int`: how many examples the pass over all the data
        takes at a time. It bounds memory, and changes nothing else.

    Raises:
      ValueError: If an argument is not positive; at the start of a chain, if
        the table is larger than `memory_limit`.
      TypeError: If an argument is not an integer.
    """
    super().__init__(batch_size, share_minibatch=share_minibatch)
    self._memory_limit = checks.positive_integer('memory_limit', memory_limit)
    self._chunk_size = checks.positive_integer('rows_per_chunk', rows_per_chunk)

  @property
  def chooses_among_sets(self):
    return False  # It learns from the set of its step.

  def bootstrap_results(self, target, state_parts):
    self._check_memory(target, state_parts)
    start = base.no_gradients(target, state_parts)
    table = gradient_table(target, state_parts, self._chunk_size)
    total = [tf.reduce_sum(alpha, axis=0) for alpha in table]
    return base.count(
        SAGAResults(start, table, total), target.num_rows)

  def one_step(
      self, target, state_parts, previous_results, seed, gaussian_step=None):
    del gaussian_step
    estimate, results = saga_step(
        target, state_parts, previous_results,
        self.draw(target, base.chains_of(previous_results), seed))
    return estimate, base.count(results, self.num_gradients_per_estimate)

  def estimate(self, target, state_parts, results, indices):
    return saga_step(target, state_parts, results, indices)[0]

  def _terms(self, target, state_parts, results):
    return [
        here - alpha for here, alpha in zip(
            minibatch.per_example_gradients(target, state_parts),
            results.table)]

  def _check_memory(self, target, state_parts):
    num_bytes = target.num_rows * sum(
        part.shape.num_elements() * part.dtype.size for part in state_parts)
    if num_bytes > self._memory_limit:
      shapes = ', '.join(str(part.shape) for part in state_parts)
      raise ValueError(
          f'SAGA keeps a gradient of each of the {target.num_rows:,} examples, '
          f'for a state of shapes {shapes}: {num_bytes:,} bytes, and '
          f'memory_limit is {self._memory_limit:,}. Take SVRG, which keeps one '
          'gradient in all, or fewer chains, or raise memory_limit.')


def saga_step(
    target: posterior_lib.Posterior,
    state_parts: Sequence[tf.Tensor],
    results: SAGAResults,
    indices: tf.Tensor,
) -> tuple[base.GradientEstimate, SAGAResults]:
  """The estimate from the examples at `indices`, then the new table."""
  value, gradients, new = estimate_with_examples(
      target, state_parts, target.gather(indices))
  chain_rank = value.shape.rank
  scale = target.num_examples / indices.shape[-1]
  rows_stand_for = target.num_examples / target.num_rows
  places = _places_in_table(indices, compat.shape(value))
  estimate, table, total = [], [], []
  for part, gradient, alpha, all_alpha, here in zip(
      state_parts, gradients, results.table, results.total, new):
    flat = tf.reshape(
        alpha, tf.concat([[-1], tf.shape(part)[chain_rank:]], axis=0))
    before = rows.take(flat, places)
    estimate.append(
        gradient - scale * tf.reduce_sum(before, axis=chain_rank)
        + rows_stand_for * all_alpha)
    # The change is added: all reads then come before the write, and XLA can
    # write in place.
    change = here - before
    flat = tf.tensor_scatter_nd_add(flat, places[..., tf.newaxis], change)
    table.append(tf.reshape(flat, tf.shape(alpha)))
    total.append(all_alpha + tf.reduce_sum(change, axis=chain_rank))
  return base.GradientEstimate(value, estimate), results._replace(
      table=table, total=total)


def _places_in_table(indices, chains):
  """Where `[N] + chains` in one axis has each chain's examples."""
  num_chains = tf.cast(tf.reduce_prod(chains), tf.int64)
  chain = tf.reshape(
      tf.range(num_chains), tf.concat([chains, [1]], axis=0))
  return tf.cast(indices, tf.int64) * num_chains + chain


def gradient_table(
    target: posterior_lib.Posterior,
    state_parts: Sequence[tf.Tensor],
    rows_per_chunk: int,
) -> list[tf.Tensor]:
  """The gradient of each example, `[N] + part.shape` for each part."""
  num_chunks, length = full_pass.chunks(target.num_rows, rows_per_chunk)

  def write(arrays, batch, k, is_new):
    del is_new
    value, _, gradients = estimate_with_examples(target, state_parts, batch)
    rank = value.shape.rank
    return [
        array.write(k, tf.transpose(
            g, [rank, *range(rank), *range(rank + 1, g.shape.rank)]))
        for array, g in zip(arrays, gradients)]

  arrays = full_pass.fold(
      write, [
          tf.TensorArray(
              part.dtype, num_chunks, element_shape=[length, *part.shape])
          for part in state_parts], target.data, rows_per_chunk)
  # The last chunk begins with rows of the one before.
  first_of_last = (num_chunks - 1) * length
  seen = num_chunks * length - target.num_rows
  tables = [array.concat() for array in arrays]
  return [
      tf.concat([t[:first_of_last], t[first_of_last + seen:]], axis=0)
      for t in tables]


def estimate_with_examples(
    target: posterior_lib.Posterior,
    state_parts: Sequence[tf.Tensor],
    batch: hints.Nested,
) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
  """The plain estimate from a batch, and the gradient of each example's term.

  Each example is a chain of its own, with a minibatch of one: adding zeros
  gives each a copy of the parameters to differentiate by.

  Args:
    target: `Posterior`.
    state_parts: List of float tensors.
    batch: Examples, leading axis n or `chains + [n]`.

  Returns:
    value: Estimate of the log density, one value a chain.
    gradients: List with its gradient by each part.
    per_example: List with the gradients of each example's log likelihood,
      `chains + [n] + event`.
  """
  num_parts = len(state_parts)
  chains = target.zeros(state_parts).shape
  leaf, row = tf.nest.flatten(batch)[0], tf.nest.flatten(target.data)[0]
  batch_axis = leaf.shape.rank - row.shape.rank
  batch_size = leaf.shape[batch_axis]
  singles = tf.nest.map_structure(
      lambda leaf: tf.broadcast_to(
          tf.expand_dims(leaf, batch_axis + 1),
          [*chains, batch_size, 1, *leaf.shape[batch_axis + 1:]]), batch)
  scale = target.num_examples / batch_size

  def estimate(*parts):
    parts, zeros = parts[:num_parts], parts[num_parts:]
    copies = [
        tf.expand_dims(part, chains.rank) + zero
        for part, zero in zip(parts, zeros)]
    wanted = [*chains, batch_size, 1]
    try:
      log_likelihood = target.log_likelihood(*copies, batch=singles)
      log_likelihood.shape.assert_is_compatible_with(wanted)
    except Exception as error:
      raise ValueError(
          'SAGA takes each example as a chain with a minibatch of its own, and '
          'log_likelihood_fn did not return the shape '
          f'{wanted} for states with the leading axes {wanted[:-1]} ({error}). '
          'Write it for chains in leading axes: '
          "tf.einsum('...nd,...d->...n', x, theta).") from error
    return target.log_prior(*parts) + scale * tf.reduce_sum(
        log_likelihood, axis=[-2, -1])

  zeros = [
      tf.zeros([*chains, batch_size, *part.shape[chains.rank:]], part.dtype)
      for part in state_parts]
  value, gradients = states.value_and_gradients(
      estimate, [*state_parts, *zeros], num_required=num_parts)
  return value, gradients[:num_parts], [
      gradient / scale for gradient in gradients[num_parts:]]
