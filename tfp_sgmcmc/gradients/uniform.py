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
from typing import Any

import tensorflow as tf

from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc.gradients import base
from tfp_sgmcmc.gradients import directional
from tfp_sgmcmc.gradients import minibatch
from tfp_sgmcmc.internal import hints

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

  Its variance, to choose `batch_size` by:

  >>> variance, = estimator.variance(posterior, [tf.zeros([])])
  >>> 80_000. < float(variance) < 120_000.  # N^2 / n (1 - n / N), about.
  True

  #### References

  [1]: Max Welling and Yee Whye Teh. Bayesian Learning via Stochastic Gradient
       Langevin Dynamics. _ICML_, 2011.
  """

  def __init__(
      self,
      batch_size: int,
      *,
      replacement: bool = False,
      share_minibatch: bool = False,
  ):
    """Makes the estimator.

    Args:
      batch_size: Python `int`, n.
      replacement: Python `bool`: draw examples independently, so that one may
        be drawn twice.
      share_minibatch: Python `bool`: all chains see one minibatch, of shape
        `[n, ...]`. It is cheaper to gather, and makes chains dependent, so the
        spread between chains is a poorer guide to the error. By default each
        chain has its own, and batches have shape `chains + [n, ...]`.

    Raises:
      ValueError: If `batch_size` is not positive.
      TypeError: If `batch_size` is not an integer.
    """
    super().__init__(
        batch_size, replacement=replacement, share_minibatch=share_minibatch)

  @property
  def has_independent_noise(self):
    return True

  @property
  def works_on_shards(self):
    return True

  @property
  def gives_derivatives(self):
    return self._batch_size > 1  # One example does not show its own noise.

  @property
  def why_not_on_batches(self):
    return 'Leave it out, and set batch_size in fit.'

  def directional(
      self,
      target: posterior_lib.Posterior,
      state_parts: Sequence[tf.Tensor],
      previous_results: hints.EstimatorResults,
      seed: tf.Tensor,
  ) -> tuple[directional.Minibatch, Any]:
    """A minibatch on which to take derivatives of the log density.

    Args:
      target: `Posterior`.
      state_parts: List of float tensors.
      previous_results: What `bootstrap_results`, `one_step` or `directional`
        returned.
      seed: Stateless seed, `int32[2]`; the same draws the same minibatch as in
        `one_step`.

    Returns:
      minibatch: `gradients.directional.Minibatch`.
      results: The estimator's next state, in which one derivative of each
        example is counted. A caller that also takes gradients has to count
        them.
    """
    del state_parts
    batch = target.gather(self.draw(
        target, base.chains_of(previous_results), seed))
    population = None if self._replacement else target.total_rows
    return (
        directional.Minibatch(target, batch, self._batch_size, population),
        base.count(previous_results, self._batch_size))
