"""A gradient with added Gaussian noise of known size, for studies."""


from tfp_sgmcmc import random
from tfp_sgmcmc.gradients.base import GradientEstimator
from tfp_sgmcmc.gradients.base import check_estimator
from tfp_sgmcmc.gradients.exact import Exact
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = ['GaussianNoise']


class GaussianNoise(GradientEstimator):
  """Another estimate plus noise of known standard deviation.

    g = g_base + noise_scale xi,  xi ~ N(0, I), new at each step

  It replaces minibatch noise in studies in which the law of the noise has to be
  known: the noise B of Ding et al. (2014), N(0, 2 B h) on h g, is
  `noise_scale=sqrt(2 B / h)`.

  #### Examples

  >>> estimator = sgmcmc.gradients.GaussianNoise(noise_scale=5.)
  >>> state = [tf.zeros([100_000])]
  >>> estimate, _ = estimator.one_step(
  ...     tfd.Normal(0., 1.).log_prob, state,
  ...     estimator.bootstrap_results(tfd.Normal(0., 1.).log_prob, state),
  ...     seed=[0, 0])
  >>> noise = tf.math.reduce_std(estimate.grads_target_log_prob[0])
  >>> bool(abs(noise - 5.) < 0.1)
  True

  #### References

  [1]: Nan Ding et al. Bayesian Sampling Using Stochastic Gradient Thermostats.
       _NeurIPS_, 2014. Section 3, illustration.
  """

  def __init__(
      self,
      noise_scale: hints.TensorLike,
      base: GradientEstimator | None = None,
  ):
    """Makes the estimator.

    Args:
      noise_scale: Standard deviation of the noise: a number, or a tensor that
        broadcasts with each part of the state.
      base: The estimator to add noise to. Default: `Exact()`.

    Raises:
      ValueError: If `noise_scale` is negative.
      TypeError: If `base` is not an estimator.
    """
    checks.numeric('noise_scale', noise_scale, 0., strict=False)
    self._noise_scale = noise_scale
    self._base = Exact() if base is None else base
    check_estimator('base', self._base)

  @property
  def base(self) -> GradientEstimator:
    """The estimator that noise is added to."""
    return self._base

  @property
  def compiles(self):
    return self._base.compiles

  @property
  def needs_gaussian_step(self):
    return self._base.needs_gaussian_step

  @property
  def follows_seed(self):
    return self._base.follows_seed

  @property
  def has_independent_noise(self):
    return self._base.has_independent_noise

  @property
  def lives_on_batches(self):
    return self._base.lives_on_batches

  @property
  def why_not_on_batches(self):
    return self._base.why_not_on_batches

  def check_target(self, target):
    self._base.check_target(target)

  def bootstrap_results(self, target, state_parts):
    return self._base.bootstrap_results(target, state_parts)

  def one_step(
      self, target, state_parts, previous_results, seed, gaussian_step=None):
    estimate, results = self._base.one_step(
        target, state_parts, previous_results, random.fold_in(seed, 0),
        gaussian_step)
    noise = random.normal_like(state_parts, random.fold_in(seed, 1))
    gradients = [
        g + states.cast(self._noise_scale, g.dtype) * xi
        for g, xi in zip(estimate.grads_target_log_prob, noise)]
    return estimate._replace(grads_target_log_prob=gradients), results
