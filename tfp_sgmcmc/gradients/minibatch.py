"""What the estimators that draw minibatches from the data share."""

from collections.abc import Sequence
import functools

import tensorflow as tf

from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc import random
from tfp_sgmcmc.gradients import base
from tfp_sgmcmc.gradients import index_sets
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = ['MinibatchEstimator']


class MinibatchEstimator(index_sets.IndexSetEstimator):
  """Base of the estimators that draw n of the posterior's examples a step."""

  def __init__(
      self,
      batch_size: int,
      *,
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
    self._replacement = checks.boolean('replacement', replacement)
    self._share_minibatch = checks.boolean('share_minibatch', share_minibatch)

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

  @property
  def follows_seed(self):
    return True

  @property
  def has_bounded_noise(self):
    return True

  @property
  def why_not_on_batches(self):
    return (
        'The batches come one at a time and without the numbers of their '
        'examples, so that there is no pass over all the data at an anchor, no '
        'table of gradients by example and no stratum of an example. Leave it '
        'out; or sample a Posterior that holds the data, by sgmcmc.sample.')

  def check_target(self, target):
    super().check_target(target)
    if target.data is None:
      raise ValueError(
          f'{self!r} draws minibatches from the posterior\'s data, and this '
          'posterior holds none (data=None). Pass the data, or use '
          'gradients.Stream(dataset).')
    num_rows = checks.static_value(target.total_rows)
    if (not self._replacement and num_rows is not None
        and self._batch_size > num_rows):
      raise ValueError(
          f'batch_size is {self._batch_size}, and there are only '
          f'{num_rows} examples: without replacement a batch cannot '
          'be larger. Take a smaller batch_size, or replacement=True.')

  def one_step(
      self, target, state_parts, previous_results, seed, gaussian_step=None):
    del gaussian_step
    results = self.prepare(target, state_parts, previous_results)
    indices = self.draw(target, base.chains_of(previous_results), seed)
    estimate = self.estimate(target, state_parts, results, indices)
    return estimate, base.count(results, self.num_gradients_per_estimate)

  def draw(
      self,
      target: posterior_lib.Posterior,
      chains: hints.Shape,
      seed: tf.Tensor,
  ) -> tf.Tensor:
    """Indices of a minibatch for each chain, `chains + [n]`.

    Args:
      target: `Posterior`.
      chains: The chains' shape.
      seed: Stateless seed, `int32[2]`.

    Returns:
      indices: Integer tensor; `[n]` where the chains share one.
    """
    shape = [target.own_share(self._batch_size)]
    if not self._share_minibatch:
      shape = tf.concat([chains, shape], axis=0)
    return self._rows(target, shape, target.own_seed(seed))

  def _rows(self, target, shape, seed):
    return random.indices(target.num_rows, shape, seed, self._replacement)

  def index_sets(self, target, chains, num_sets, seed):
    return index_sets.IndexSets(
        lambda m: self.draw(target, chains, random.fold_in(seed, m)),
        num_sets * self.num_gradients_per_estimate, have_one_size=True)

  def variance(
      self,
      target: posterior_lib.Posterior,
      state_parts: Sequence[tf.Tensor],
      results: hints.EstimatorResults | None = None,
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


# A block of n examples takes n times the memory of its own gradients.
_EXAMPLES_AT_A_TIME = 500


def per_example_gradients(
    target: posterior_lib.Posterior,
    state_parts: Sequence[tf.Tensor],
    direction: Sequence[tf.Tensor] | None = None,
) -> list[tf.Tensor]:
  """The gradient of each example's log likelihood, `[M, ...]`, of one chain.

  Args:
    target: `Posterior`.
    state_parts: List of float tensors, of one chain.
    direction: List of tensors in their shapes, u, for the derivatives of these
      gradients along u, which are the products of the Hessians with u.

  Returns:
    gradients: List of tensors.
  """
  def log_likelihood(*parts, batch):
    fn = functools.partial(target.log_likelihood, batch=batch)
    if direction is None:
      return fn(*parts)
    return states.values_and_derivatives(
        lambda *parts: [fn(*parts)], parts, direction)[1][0]

  size = target.num_rows
  if size <= _EXAMPLES_AT_A_TIME:
    return _gradients_of_block(log_likelihood, state_parts, target.data)

  def of_block(start):
    # The last block may be too long: it repeats the last example.
    rows = tf.minimum(start + tf.range(_EXAMPLES_AT_A_TIME), size - 1)
    return _gradients_of_block(
        log_likelihood, state_parts, target.gather(rows))

  @tf.function(autograph=False)
  def of_blocks():
    return tf.map_fn(
        of_block, tf.range(0, size, _EXAMPLES_AT_A_TIME),
        fn_output_signature=[part.dtype for part in state_parts])

  return [
      tf.reshape(g, tf.concat([[-1], tf.shape(g)[2:]], axis=0))[:size]
      for g in of_blocks()]


def _gradients_of_block(log_likelihood, state_parts, batch):
  with tf.GradientTape() as tape:
    parts = [tf.identity(part) for part in state_parts]
    tape.watch(parts)
    each = log_likelihood(*parts, batch=batch)
  if each.shape.rank != 1:
    raise ValueError(
        'variance() is for a single chain, and the log likelihood has shape '
        f'{each.shape}: pass the state of one chain.')
  return tape.jacobian(
      each, parts,
      unconnected_gradients=tf.UnconnectedGradients.ZERO)
