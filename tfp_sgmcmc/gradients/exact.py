"""The exact gradient: all the data, at each step."""

import tensorflow as tf

from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc.gradients import base
from tfp_sgmcmc.gradients import directional
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import states

__all__ = ['Exact']


class Exact(base.GradientEstimator):
  """The gradient itself.

    g = grad log p(theta) + sum_{i=1}^N grad log p(data_i | theta)

  For a `Posterior` a step costs a pass over its data; for a plain function of
  the state, whatever the function costs.

  #### Examples

  >>> target = tfd.Normal(0., 1.).log_prob
  >>> estimator = sgmcmc.gradients.Exact()
  >>> state = [tf.constant(2.)]
  >>> estimate, _ = estimator.one_step(
  ...     target, state, estimator.bootstrap_results(target, state),
  ...     seed=[0, 0])
  >>> float(estimate.grads_target_log_prob[0])
  -2.0
  """

  def check_target(self, target):
    if not callable(target):
      raise TypeError(
          f'target_log_prob_fn is {target!r}: it has to be a Posterior or a '
          'callable that returns the log density of a state.')

  def one_step(self, target, state_parts, previous_results, seed):
    del seed
    estimate = base.GradientEstimate(
        *states.value_and_gradients(target, state_parts))
    num_rows = 1
    if isinstance(target, posterior_lib.Posterior):
      num_rows = compat.shape(tf.nest.flatten(target.data)[0])[0]
    return estimate, base.count(previous_results, num_rows)

  @property
  def gives_derivatives(self) -> bool:
    return True

  def directional(self, target, state_parts, previous_results, seed):
    del state_parts, seed
    if not isinstance(target, posterior_lib.Posterior):
      return (
          directional.Minibatch(target, None, 1, 1),
          base.count(previous_results, 1))
    if target.num_rows == 1 < target.num_examples:
      raise ValueError(
          f'The posterior holds 1 example, as a sample of '
          f'{target.num_examples}, and the noise of the derivative is '
          'estimated from how it differs between examples: 2 are needed at '
          'least, and 100 are better.')
    num_rows = compat.shape(tf.nest.flatten(target.data)[0])[0]
    return (
        directional.Minibatch(
            target, target.data, num_rows, target.num_examples),
        base.count(previous_results, num_rows))
