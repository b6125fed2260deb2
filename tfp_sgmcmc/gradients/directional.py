"""The derivative of a log density along a line, and how far it is off.

With u a direction and S a minibatch of n of the N examples,

  D = u . grad log p(theta) + N / n sum_{i in S} d_i,
  d_i = u . grad log p(data_i | theta)

estimates the derivative of the log density along u. Without replacement its
noise has the variance

  N^2 / n (1 - n / N) Var_i(d_i),

Var_i the sample variance (divisor n - 1) over the minibatch: Pakman et al.
(2017), equation 10. With replacement the bracket is 1. All d_i together cost
about as much as the log likelihoods themselves.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = ['Derivative', 'Minibatch']


class Derivative(NamedTuple):
  """An estimate of a derivative of the log density along a direction.

  Attributes:
    value: The estimate D, shape `chains`.
    variance: The variance of its noise, estimated from the same minibatch.
    target_log_prob: The log density, estimated on the minibatch as well.
  """
  value: tf.Tensor
  variance: tf.Tensor
  target_log_prob: tf.Tensor


class Minibatch:
  """Examples on which derivatives and gradients of one log density are taken.

  An estimator's `directional` makes one for each step of a kernel.

  #### Examples

  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 1.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x),
  ...     data=tf.constant([1., 2., 3., 6.]))
  >>> state = [tf.constant(1.)]
  >>> estimator = sgmcmc.gradients.Exact()
  >>> minibatch, _ = estimator.directional(
  ...     posterior, state, estimator.bootstrap_results(posterior, state),
  ...     seed=[0, 0])
  >>> derivative = minibatch.derivative(state, [tf.constant(2.)])
  >>> float(derivative.value)  # 2 times the gradient, -1 + (0 + 1 + 2 + 5).
  14.0
  >>> float(derivative.variance)  # All of the data: there is no noise.
  0.0
  """

  def __init__(
      self,
      target: posterior_lib.Posterior,
      batch: hints.Nested,
      size: hints.TensorLike,
      population: int | None,
  ):
    """Makes it.

    Args:
      target: `Posterior`.
      batch: The examples, in the structure of the posterior's data; None where
        it has no examples.
      size: n, how many there are.
      population: Of how many examples they were drawn without replacement;
        None if they were drawn with replacement.
    """
    self._target = target
    self._batch = batch
    self._population = population
    self._size = tf.cast(size, tf.int64)

  @property
  def size(self) -> tf.Tensor:
    """n, the number of examples: an `int64` scalar."""
    return self._size

  @property
  def share(self) -> Any:
    """n / N, the share of the examples that the minibatch holds."""
    return self._size / self._target.num_examples

  @property
  def has_variance(self) -> Any:
    """Whether the minibatch shows a variance: one example of many does not."""
    return self._target.num_examples == 1 or self._size > 1

  def derivative(
      self,
      state_parts: Sequence[tf.Tensor],
      direction: Sequence[tf.Tensor],
  ) -> Derivative:
    """The derivative of the log density along a direction.

    Args:
      state_parts: List of float tensors, theta.
      direction: List of tensors in their shapes, u.

    Returns:
      derivative: `Derivative`.
    """
    def log_probs(*parts):
      log_prior = self._target.log_prior(*parts)
      if not self._target.has_examples:
        return [log_prior]
      return [
          log_prior, self._target.log_likelihood(*parts, batch=self._batch)]

    (value, *each), (slope, *slopes) = states.values_and_derivatives(
        log_probs, state_parts, direction)
    variance = tf.zeros_like(value)
    if each:
      (each,), (slopes,) = each, slopes
      size = tf.cast(self._size, value.dtype)
      scale = self._target.num_examples / size
      sum_of_values, sum_of_slopes = self._target.sum_over_rows(each, slopes)
      value += scale * sum_of_values
      slope += scale * sum_of_slopes
      mean = sum_of_slopes[..., tf.newaxis] / size
      sum_of_squares, = self._target.sum_over_rows(tf.square(slopes - mean))
      variance = self._noise_factor(size) * sum_of_squares / size
    return Derivative(slope, variance, value)

  def gradients(self, state_parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The gradient of the log density, estimated on the minibatch.

    Args:
      state_parts: List of float tensors, theta.

    Returns:
      gradients: List of tensors in their shapes.
    """
    def log_prob(*parts):
      if not self._target.has_examples:
        return self._target.log_prior(*parts)
      return self._target.log_prob_estimate(*parts, batch=self._batch)

    return states.value_and_gradients(log_prob, state_parts)[1]

  def _noise_factor(self, size):
    """What the variance (divisor n) over the minibatch is multiplied by."""
    left = 1. if self._population is None else 1. - size / self._population
    return self._target.num_examples**2 * left / tf.maximum(size - 1., 1.)

