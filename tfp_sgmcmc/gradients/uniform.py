"""Minibatches of examples drawn uniformly.

  g = grad log p(theta) + N / n sum_{i in S} grad log p(data_i | theta)

with S a set of n of the N examples, each set equally likely (or n independent
draws, with replacement), new at every step. Welling and Teh (2011), equation 2.
It is unbiased, and each coordinate has the variance

  N^2 / n (1 - n / N) s^2   without replacement,
  N^2 / n (1 - 1 / N) s^2   with replacement,

s^2 being the sample variance (divisor N - 1) of the examples' gradients. (Where
the data are M examples that stand for N, M takes the place of N in the
brackets and in the divisor.)
"""

from collections.abc import Sequence

import tensorflow as tf

from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc import random
from tfp_sgmcmc.gradients import base
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import states

__all__ = ['Uniform']


class Uniform(base.GradientEstimator):
  """The gradient on a minibatch drawn uniformly, new at every step.

    g = grad log p(theta) + N / n sum_{i in S} grad log p(data_i | theta)

  A step costs O(n), whatever N.

  #### Examples

  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x),
  ...     data=tf.random.stateless_normal([1000], [0, 1]))
  >>> estimator = sgmcmc.gradients.Uniform(batch_size=10)
  >>> state = [tf.zeros([4])]  # Four chains, each with its own minibatch.
  >>> estimate, _ = estimator.one_step(
  ...     posterior, state, estimator.bootstrap_results(posterior, state),
  ...     seed=[0, 0])
  >>> estimate.grads_target_log_prob[0].shape
  TensorShape([4])

  #### References

  [1]: Max Welling and Yee Whye Teh. Bayesian Learning via Stochastic Gradient
       Langevin Dynamics. _ICML_, 2011.
  """

  def __init__(
      self,
      batch_size: int,
      replacement: bool = False,
      share_minibatch: bool = False,
  ):
    """Makes the estimator.

    Args:
      batch_size: Python `int`, n.
      replacement: Python `bool`: draw examples independently, so that one may
        be drawn twice.
      share_minibatch: Python `bool`: all chains see one minibatch, of shape
        `[n, ...]`. It is cheaper to gather, and makes chains dependent: spread
        between chains then says less than it seems to. By default each chain
        has its own, and batches have shape `chains + [n, ...]`.

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
    def estimate(*parts):
      chains = compat.shape(target.log_prior(*parts))
      indices = random.indices(
          target.num_rows, self._shape(chains), seed, self._replacement)
      return target.log_prob_estimate(*parts, batch=target.gather(indices))

    value, gradients = states.value_and_gradients(estimate, state_parts)
    return base.GradientEstimate(value, gradients), previous_results

  def _shape(self, chains):
    if self._share_minibatch:
      return [self._batch_size]
    return tf.concat([chains, [self._batch_size]], axis=0)

  def variance(
      self,
      target: posterior_lib.Posterior,
      state_parts: Sequence[tf.Tensor],
  ) -> list[tf.Tensor]:
    """The estimate's exact variance at a state, by coordinate.

    It takes the gradient of every example, N times the size of the state in
    memory: meant for choosing `batch_size` on data of moderate size.

    Args:
      target: `Posterior`.
      state_parts: List of float tensors, of a single chain (the log density a
        scalar).

    Returns:
      variance: List of tensors in the shapes of `state_parts`.

    #### Examples

    >>> posterior = sgmcmc.Posterior(
    ...     tfd.Normal(0., 10.).log_prob,
    ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x),
    ...     data=tf.constant([-1., 0., 1.]))
    >>> estimator = sgmcmc.gradients.Uniform(batch_size=1)
    >>> [round(float(v), 3) for v in estimator.variance(
    ...     posterior, [tf.constant(0.)])]
    [6.0]
    """
    self.check_target(target)
    with tf.GradientTape() as tape:
      parts = [tf.identity(part) for part in state_parts]
      tape.watch(parts)
      log_likelihood = target.log_likelihood(*parts, batch=target.data)
    if log_likelihood.shape.rank != 1:
      raise ValueError(
          'variance() is for a single chain, and the log likelihood has shape '
          f'{log_likelihood.shape}: pass the state of one chain.')
    num_rows, batch_size = target.num_rows, self._batch_size
    # Over the variance with divisor M: (1 - 1/M) M / (M - 1) = 1.
    correction = (
        1. if self._replacement
        else (num_rows - batch_size) / max(1, num_rows - 1))
    scale = target.num_examples**2 / batch_size * correction
    return [
        scale * tf.math.reduce_variance(gradients, axis=0)
        for gradients in tape.jacobian(log_likelihood, parts)]
