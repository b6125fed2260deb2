"""What the estimators with an anchor share.

With a an anchor in the space of states, S a minibatch of n of the N examples,
and l_i the log likelihood of an example,

  g = grad log p(theta) + sum_{i=1}^N grad l_i(a)
      + N / n sum_{i in S} (grad l_i(theta) - grad l_i(a)),

the middle sum computed once for an anchor. The log density is estimated in the
same way. It is unbiased whatever the anchor; the variance is that of a plain
minibatch with the differences in place of the gradients.

Of second order, with H_i the Hessian of l_i at a, H = sum_i H_i and
u = theta - a, the differences are smaller near the anchor:

  g = grad log p(theta) + sum_{i=1}^N grad l_i(a) + H u
      + N / n sum_{i in S} (grad l_i(theta) - grad l_i(a) - H_i u).
"""

from collections.abc import Sequence
import functools
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc.gradients import base
from tfp_sgmcmc.gradients import full_pass
from tfp_sgmcmc.gradients import minibatch
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = [
    'Anchor',
    'AnchoredEstimator',
    'control_variate_estimate',
    'second_order_estimate',
]


class Anchor(NamedTuple):
  """A state and what is known there: twice the size of the state.

  Attributes:
    state_parts: List of tensors, a.
    log_likelihood: Of all the data, at a.
    gradients: List of tensors, its gradient.
  """
  state_parts: list[tf.Tensor]
  log_likelihood: tf.Tensor
  gradients: list[tf.Tensor]


class AnchoredEstimator(minibatch.MinibatchEstimator):
  """Base of the estimators whose results have an `Anchor`, `anchor`."""

  def __init__(
      self,
      batch_size: int,
      *,
      replacement: bool,
      share_minibatch: bool,
      rows_per_chunk: int,
  ):
    """Checks and keeps what these estimators have in common.

    Args:
      batch_size: Python `int`, n.
      replacement: Python `bool`: draw examples independently.
      share_minibatch: Python `bool`: all chains see one minibatch.
      rows_per_chunk: Python `int`: how many examples a pass over all the
        data takes at a time.
    """
    super().__init__(
        batch_size, replacement=replacement, share_minibatch=share_minibatch)
    self._chunk_size = checks.positive_integer('rows_per_chunk', rows_per_chunk)

  @property
  def num_gradients_per_estimate(self):
    return 2 * self._batch_size

  def anchor(self, results):
    return results.anchor

  def estimate(self, target, state_parts, results, indices):
    return control_variate_estimate(
        target, state_parts, results.anchor, target.gather(indices))

  def _anchor(self, target, state_parts):
    """The anchor at a state: a pass over the data."""
    return Anchor(state_parts, *full_pass.log_likelihood_and_gradients(
        target, state_parts, self._chunk_size))

  def _terms(self, target, state_parts, results):
    at_state, at_anchor = (
        minibatch.per_example_gradients(target, parts)
        for parts in (state_parts, results.anchor.state_parts))
    return [here - there for here, there in zip(at_state, at_anchor)]


def control_variate_estimate(
    target: posterior_lib.Posterior,
    state_parts: Sequence[tf.Tensor],
    anchor: Anchor,
    batch: hints.Nested,
    weights: tf.Tensor | None = None,
) -> base.GradientEstimate:
  """The estimate from a batch; both of its gradients come of one evaluation.

  Args:
    target: `Posterior`.
    state_parts: List of float tensors.
    anchor: `Anchor`.
    batch: Examples, leading axis n or `chains + [n]`.
    weights: For how many of the N examples each one stands. Default: N / n.

  Returns:
    estimate: `GradientEstimate`.
  """
  num_parts = len(state_parts)
  anchor_parts = _broadcast(anchor.state_parts, state_parts)

  def difference(*parts):
    return (
        target.log_prob_estimate(
            *parts[:num_parts], batch=batch, weights=weights)
        - target.log_likelihood_estimate(
            *parts[num_parts:], batch=batch, weights=weights))

  value, gradients = states.value_and_gradients(
      difference, [*state_parts, *anchor_parts], num_required=num_parts)
  return base.GradientEstimate(
      value + anchor.log_likelihood,
      [here + minus_there + all_there for here, minus_there, all_there in zip(
          gradients[:num_parts], gradients[num_parts:], anchor.gradients)])


def second_order_estimate(
    target: posterior_lib.Posterior,
    state_parts: Sequence[tf.Tensor],
    anchor: Anchor,
    hessian: tf.Tensor,
    batch: hints.Nested,
    weights: tf.Tensor | None = None,
) -> base.GradientEstimate:
  """The estimate whose control variates are Taylor's polynomials of 2nd order.

  Args:
    target: `Posterior`.
    state_parts: List of float tensors.
    anchor: `Anchor`.
    hessian: H at the anchor, `[d, d]` or `chains + [d, d]`.
    batch: Examples, leading axis n or `chains + [n]`.
    weights: For how many of the N examples each one stands. Default: N / n.

  Returns:
    estimate: `GradientEstimate`.
  """
  value, gradients = states.value_and_gradients(
      functools.partial(
          target.log_prob_estimate, batch=batch, weights=weights), state_parts)
  distance = [
      part - a for part, a in zip(state_parts, anchor.state_parts)]
  of_batch, batch_gradients = states.quadratic(
      functools.partial(
          target.log_likelihood_estimate, batch=batch, weights=weights),
      _broadcast(anchor.state_parts, state_parts), distance)
  chain_rank = value.shape.rank
  products = states.unflatten(
      tf.linalg.matvec(hessian, states.flatten(distance, chain_rank)),
      state_parts, chain_rank)
  of_all = anchor.log_likelihood + sum(
      states.sum_event((g + 0.5 * product) * u, chain_rank)
      for g, product, u in zip(anchor.gradients, products, distance))
  return base.GradientEstimate(
      value - of_batch + of_all,
      [here - there + g + product for here, there, g, product in zip(
          gradients, batch_gradients, anchor.gradients, products)])


def _broadcast(anchor_parts, state_parts):
  """The anchor in the shapes of a state of several chains."""
  return [
      tf.broadcast_to(a, tf.shape(part))
      for a, part in zip(anchor_parts, state_parts)]
