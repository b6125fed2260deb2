"""What the estimators that draw minibatches from the data share."""

import abc
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc import random
from tfp_sgmcmc.gradients import base
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat

__all__ = ['MinibatchEstimator']


class MinibatchEstimator(base.GradientEstimator):
  """Base of the estimators that draw n of the posterior's examples a step.

  A step is `prepare` (whatever is due before the draw), `draw` (the indices)
  and `estimate` (the gradient on given indices): an estimator that chooses
  between index sets uses the same three.
  """

  def __init__(
      self,
      batch_size: int,
      replacement: bool = False,
      share_minibatch: bool = False,
  ):
    """Checks and keeps what these estimators have in common.

    Args:
      batch_size: Python `int`, n.
      replacement: Python `bool`: draw examples independently.
      share_minibatch: Python `bool`: all chains see one minibatch.

    Raises:
      ValueError: If `batch_size` is not positive.
      TypeError: If `batch_size` is not an integer.
    """
    self._batch_size = checks.positive_integer('batch_size', batch_size)
    self._replacement = bool(replacement)
    self._share_minibatch = bool(share_minibatch)

  @property
  def batch_size(self) -> int:
    """n, the number of examples in a minibatch."""
    return self._batch_size

  @property
  def replacement(self) -> bool:
    """Whether examples are drawn independently."""
    return self._replacement

  @property
  def num_gradients_per_estimate(self) -> int:
    """The number of gradients of single examples that `estimate` takes."""
    return self._batch_size

  def check_target(self, target):
    super().check_target(target)
    if target.data is None:
      raise ValueError(
          f'{self!r} draws minibatches from the posterior\'s data, and this '
          'posterior holds none (data=None). Pass the data, or use '
          'gradients.Stream(dataset).')
    if not self._replacement and self._batch_size > target.num_rows:
      raise ValueError(
          f'batch_size is {self._batch_size}, and there are only '
          f'{target.num_rows} examples: without replacement a batch cannot '
          'be larger. Take a smaller batch_size, or replacement=True.')

  def one_step(self, target, state_parts, previous_results, seed):
    results = self.prepare(target, state_parts, previous_results)
    chains = compat.shape(target.log_prior(*state_parts))
    indices = self.draw(target, chains, seed)
    estimate = self.estimate(target, state_parts, results, indices)
    return estimate, base.count(results, self.num_gradients_per_estimate)

  def prepare(
      self,
      target: posterior_lib.Posterior,
      state_parts: Sequence[tf.Tensor],
      results: Any,
  ) -> Any:
    """The results with which this step estimates; unchanged by default.

    Args:
      target: `Posterior`.
      state_parts: List of float tensors.
      results: The estimator's results of the last step.

    Returns:
      results: With what it cost counted in `num_gradients`.
    """
    del target, state_parts
    return results

  def draw(
      self, target: posterior_lib.Posterior, chains: Any, seed: tf.Tensor,
  ) -> tf.Tensor:
    """Indices of a minibatch for each chain, `chains + [n]`.

    Args:
      target: `Posterior`.
      chains: The chains' shape.
      seed: Stateless seed, `int32[2]`.

    Returns:
      indices: Integer tensor; `[n]` where the chains share one.
    """
    shape = [self._batch_size]
    if not self._share_minibatch:
      shape = tf.concat([chains, shape], axis=0)
    return random.indices(target.num_rows, shape, seed, self._replacement)

  @abc.abstractmethod
  def estimate(
      self,
      target: posterior_lib.Posterior,
      state_parts: Sequence[tf.Tensor],
      results: Any,
      indices: tf.Tensor,
  ) -> base.GradientEstimate:
    """The estimate from the examples at `indices`.

    Args:
      target: `Posterior`.
      state_parts: List of float tensors.
      results: What `prepare` returned.
      indices: Integer tensor, `chains + [n]` or `[n]`.

    Returns:
      estimate: `GradientEstimate`.
    """

  def variance(
      self,
      target: posterior_lib.Posterior,
      state_parts: Sequence[tf.Tensor],
      results: Any = None,
  ) -> list[tf.Tensor]:
    """The estimate's exact variance at a state, by coordinate.

    It takes the gradient of every example, N times the size of the state in
    memory: meant for choosing an estimator and its `batch_size` on data of
    moderate size.

    Args:
      target: `Posterior`.
      state_parts: List of float tensors, of a single chain (the log density a
        scalar).
      results: The estimator's results, of a single chain, with which the
        estimate is made. Default: those of `bootstrap_results`.

    Returns:
      variance: List of tensors in the shapes of `state_parts`.

    Raises:
      ValueError: If the state is that of several chains.
    """
    self.check_target(target)
    if results is None:
      results = self.bootstrap_results(target, state_parts)
    return [
        self._variance_of_sum(target, terms)
        for terms in self._terms(target, state_parts, results)]

  def _terms(self, target, state_parts, results):
    """What the estimate draws from: `[M]` terms for each part."""
    del results
    return per_example_gradients(target, state_parts)

  def _variance_of_sum(self, target, terms):
    """Variance of N / n times the sum of n of the M `terms`."""
    scale = target.num_examples**2 / self._batch_size * population_factor(
        target.num_rows, self._batch_size, self._replacement)
    return scale * tf.math.reduce_variance(terms, axis=0)


def population_factor(size: int, batch_size: int, replacement: bool) -> float:
  """n times the variance of a mean of n, over the variance (divisor `size`)."""
  return 1. if replacement else (size - batch_size) / max(1, size - 1)


def per_example_gradients(
    target: posterior_lib.Posterior, state_parts: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
  """The gradient of each example's log likelihood, `[M, ...]`, of one chain."""
  with tf.GradientTape() as tape:
    parts = [tf.identity(part) for part in state_parts]
    tape.watch(parts)
    log_likelihood = target.log_likelihood(*parts, batch=target.data)
  if log_likelihood.shape.rank != 1:
    raise ValueError(
        'variance() is for a single chain, and the log likelihood has shape '
        f'{log_likelihood.shape}: pass the state of one chain.')
  return tape.jacobian(
      log_likelihood, parts,
      unconnected_gradients=tf.UnconnectedGradients.ZERO)
