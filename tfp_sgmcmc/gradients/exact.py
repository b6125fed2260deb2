"""The exact gradient: all the data, at each step."""

from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc.gradients import base
from tfp_sgmcmc.gradients import directional
from tfp_sgmcmc.internal import checks
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

  @property
  def follows_seed(self):
    return True

  @property
  def is_exact(self):
    return True

  @property
  def has_independent_noise(self):
    return True

  @property
  def has_bounded_noise(self):
    return True

  @property
  def lives_on_batches(self):
    return True

  @property
  def works_on_shards(self):
    return True

  @property
  def gives_derivatives(self):
    return True

  def check_target(self, target):
    posterior_lib.as_posterior(target)

  def one_step(
      self, target, state_parts, previous_results, seed, gaussian_step=None):
    del seed, gaussian_step
    target = posterior_lib.as_posterior(target)
    estimate = base.GradientEstimate(
        *states.value_and_gradients(target, state_parts))
    return estimate, base.count(previous_results, target.total_rows)

  def directional(self, target, state_parts, previous_results, seed):
    del state_parts, seed
    target = posterior_lib.as_posterior(target)
    size = target.total_rows
    if checks.static_value(size) == 1 < target.num_examples:
      raise ValueError(
          f'The posterior holds 1 example, as a sample of '
          f'{target.num_examples}, and the noise of the derivative is '
          'estimated from how it differs between examples: 2 are needed at '
          'least, and 100 are better.')
    return (
        directional.Minibatch(
            target, target.data, size, target.num_examples),
        base.count(previous_results, size))
