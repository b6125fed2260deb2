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
from tfp_sgmcmc.gradients import base
from tfp_sgmcmc.gradients import minibatch
from tfp_sgmcmc.internal import states

__all__ = ['Uniform']


class Uniform(minibatch.MinibatchEstimator):
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
    super().__init__(batch_size, replacement, share_minibatch)

  def estimate(self, target, state_parts, results, indices):
    del results
    batch = target.gather(indices)
    return base.GradientEstimate(*states.value_and_gradients(
        lambda *parts: target.log_prob_estimate(*parts, batch=batch),
        state_parts))

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
