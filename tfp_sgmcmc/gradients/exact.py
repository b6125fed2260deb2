"""The exact gradient: all the data, at each step."""

from tfp_sgmcmc.gradients import base
from tfp_sgmcmc.internal import states

__all__ = ['Exact']


class Exact(base.GradientEstimator):
  """The gradient itself.

    g = grad log p(theta) + sum_{i=1}^N grad log p(data_i | theta)

  For a `Posterior` a step costs a pass over its data; for a plain function of
  the state, whatever the function costs.

  #### Examples

  >>> target = tfd.Normal(0., 1.).log_prob
  >>> estimate, _ = sgmcmc.gradients.Exact().one_step(
  ...     target, [tf.constant(2.)], (), seed=[0, 0])
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
    return estimate, previous_results
