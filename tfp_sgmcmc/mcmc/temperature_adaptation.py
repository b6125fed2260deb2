"""Adapts the step size to a target excess temperature.

With u the logarithm of the step size over the one at the start, x the excess of
the temperature in a step (its mean over chains and coordinates, see
`LangevinKernel.excess`), w its target and n the number of steps to adapt in,

  x_smooth <- x_smooth + (x - x_smooth) / min(50, k)    10 for 50 at first
  u        <- u + a_k clip(1 - x_smooth / w, -2, 2)

as stochastic approximation (Robbins and Monro, 1951). In the first half of the
steps x is the predicted excess, then the measured one. The gain a_k is 0.05, in
the second quarter 0.01, in the second half 0.02, or less where the measure is
noisy, see `_gain`. In the second half u falls by no more than 1.5 below what it
was in the middle: the limit guards against measurements that are too large
before the chain is stationary. At step n the step size becomes that of the mean
of u over the last quarter.
"""

from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import collectives
from tfp_sgmcmc import errors
from tfp_sgmcmc import kernel as kernel_lib
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.mcmc import adaptation
from tfp_sgmcmc.mcmc import base

__all__ = [
    'TemperatureStepSizeAdaptation', 'TemperatureStepSizeAdaptationResults']

_WINDOW, _FIRST_WINDOW = 50., 10.
_FARTHEST_BELOW = 1.5
_LARGEST_SHARE = 100.  # Of the target, by which one step is counted at most.


@kernel_lib.refuses_corrections
class TemperatureStepSizeAdaptationResults(NamedTuple):
  """Results of `TemperatureStepSizeAdaptation`.

  Attributes:
    inner_results: The inner kernel's results.
    step_size: The step size of the next step, in the shape of that which the
      inner kernel was made with.
    log_factor: Scalar, the logarithm of the step size over the one at the
      start.
    predicted_log_factor: Scalar, `log_factor` in the middle of the adaptation,
      up to which the predicted excess is used.
    mean_log_factor: Scalar, the mean of `log_factor` over the last quarter of
      the adaptation, up to its end.
    excess: Scalar, by how much the chain is too hot, as a share of T: over
      about the last 50 steps during the adaptation, afterwards the mean since
      its end.

  And the method `failure(state)`; see `errors`.
  """
  inner_results: Any
  step_size: tf.Tensor
  log_factor: tf.Tensor
  predicted_log_factor: tf.Tensor
  mean_log_factor: tf.Tensor
  excess: tf.Tensor

  step = adaptation.step  # type: ignore[misc]

  def failure(self, state: hints.State) -> errors.Failure | None:
    """Why a chain cannot go on, or None."""
    return adaptation.failure(self, state, lambda advice: (
        f'{advice} TemperatureStepSizeAdaptation has to start from a step size '
        'that is too small, not from one that is too large: it was '
        f'{float(tf.reduce_max(self.step_size)):.3g} here. A hundredth of it '
        'costs some hundred steps.'))


class TemperatureStepSizeAdaptation(adaptation.AdaptingKernel):
  """Adapts the step size to a target excess temperature.

  These samplers have no acceptance rate to tune. Too large a step shows as
  excess temperature, which gradient noise and the error of integration cause;
  both grow with h. In the first n = `num_adaptation_steps` steps this kernel
  grows the step size of the inner kernel, from a small start, until

    T_conf / T - 1 = target_excess,  T_conf = -E[(theta - m) . g] / d,

  (the mean over chains and coordinates; m is any fixed point). Then the step
  size stays fixed: the chain is that of the inner kernel with the step size
  `results.step_size`. For a Gaussian posterior T_conf / T is the variance over
  that of the posterior, the mean over directions weighted by curvature. The
  quantity measured, with the estimated g, is exact at any step size, except for
  the change of pSGLD's G:

    SGLD, pSGLD   h G g^2 / (2 T), the gradient's power beside the noise that
                  is injected; where h is small, the share of gradient noise
    SGHMC         (1 - h friction / 2) r^2 / T - 1, the kinetic temperature of
                  the momentum as it is stored, less the offset that it has from
                  friction alone; computed from the gradient's work on it

  The momentum is kept as the step size changes.

  Let the adaptation lie within the burn-in (`num_burnin_steps` at least
  `num_adaptation_steps`). Start small: the step size grows by 5% a step, by a
  factor of 100 in a hundred; a start that is too large throws the chain away.
  Chains that have not converged are hot, so the step size found is too small
  (for SGLD from the start). Let them converge within half of the steps, or
  start near the mode.

  How many steps are needed: with D coordinates in all chains together, SGLD
  takes some hundred, and 2,000 for D = 3. For SGHMC the excess found is off by
  about a share delta of itself where the last quarter has

    n / 4 = 2 / (h friction target_excess D delta^2)

  steps: at h friction = 0.1, target_excess = 0.05 and delta = 0.2 these are
  10,000 / D, so n = 20,000 for one chain of two coordinates, and for a network
  the 500 that growing takes. With fewer steps, the step size of the first half
  stays. It estimates the gradient noise from the gradient's changes. It is
  about right, and too small where the noise of a step compensates for that of
  others (as with EWSG).

  #### Examples

  >>> x = tf.random.stateless_normal([1000], [0, 1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x), x)
  >>> kernel = sgmcmc.TemperatureStepSizeAdaptation(
  ...     sgmcmc.SGLD(
  ...         posterior, step_size=1e-7,
  ...         gradient_estimator=sgmcmc.gradients.Uniform(batch_size=100)),
  ...     num_adaptation_steps=800, target_excess=0.05)
  >>> draws = sgmcmc.sample(
  ...     kernel, 100, tf.zeros([50]), num_burnin_steps=800, seed=1,
  ...     progress_bar=False)
  >>> h = draws.kernel_results.step_size
  >>> 0.8e-5 < float(h) < 1.2e-5  # h C / 2 = 0.05 with C = 9,000.
  True

  #### References

  [1]: Herbert Robbins and Sutton Monro. A Stochastic Approximation Method. _The
       Annals of Mathematical Statistics_, 1951.
  [2]: Benedict Leimkuhler and Charles Matthews. _Molecular Dynamics_, 2015.
       Section 6.1.5, on configurational temperature.
  """

  def __init__(
      self,
      inner_kernel: base.LangevinKernel,
      num_adaptation_steps: hints.TensorLike,
      *,
      target_excess: float = 0.05,
      keep_momentum: bool = False,
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      inner_kernel: `SGLD` or `SGHMC` (integrator "euler"), with the step size
        to start from: a positive number, or a tensor that broadcasts with each
        part of the state, which one factor multiplies.
      num_adaptation_steps: n: Python `int`, or a scalar tensor or variable of
        integers. Zero leaves the step size alone.
      target_excess: The excess temperature to aim at, as a fraction of T: a
        number between 0 and 1. It trades bias for speed; the step size is about
        proportional to it.
      keep_momentum: Python `bool`: whether to lower the friction as the step
        size h grows, so that a step keeps the same fraction of the momentum,
        1 - h friction. SGD with momentum does so when its learning rate, h^2 up
        to a factor, changes.
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If the step size is a schedule, the temperature is zero, the
        kernel does not define its excess, it has no momentum to keep, or a
        number is out of its range.
      TypeError: If the inner kernel is not a discrete-time kernel of this
        library.
    """
    if not isinstance(inner_kernel, base.LangevinKernel):
      raise TypeError(
          f'inner_kernel is {inner_kernel!r}: it has to be SGLD or SGHMC. For '
          'kernels with a Metropolis test there is '
          'tfp.mcmc.DualAveragingStepSizeAdaptation, and those in continuous '
          'time have no step size.')
    super().__init__(dict(
        inner_kernel=inner_kernel,
        num_adaptation_steps=num_adaptation_steps,
        target_excess=target_excess,
        keep_momentum=keep_momentum,
        name=name))
    if inner_kernel.why_no_excess is not None:
      raise ValueError(inner_kernel.why_no_excess)
    temperature = inner_kernel.parameters['temperature']
    if not callable(temperature):
      checks.numeric('temperature', temperature, 0.)
    checks.positive_share('target_excess', target_excess)
    if checks.boolean('keep_momentum', keep_momentum) and (
        inner_kernel.friction_argument is None):
      raise ValueError(
          f'keep_momentum is True, and {type(inner_kernel).__name__} has none: '
          'leave it out, or take SGHMC.')

  def adapted_kernel(
      self, results: TemperatureStepSizeAdaptationResults,
  ) -> base.LangevinKernel:
    """The inner kernel with the step size that was found.

    Args:
      results: Results of this kernel.

    Returns:
      kernel: Another `inner_kernel`.
    """
    found = {'step_size': results.step_size}
    if self._parameters['keep_momentum']:
      name = str(self.inner_kernel.friction_argument)
      friction = self.inner_kernel.parameters[name]
      found[name] = states.cast(
          friction, results.log_factor.dtype) * tf.exp(-results.log_factor)
    return self.inner_kernel.copy(**found)

  def _bootstrap(self, parts, seeds):
    inner = self.inner_kernel.bootstrap_results(parts, seed=seeds.inner)
    dtype = self._dtype(inner)
    zero = tf.zeros([], dtype)
    return TemperatureStepSizeAdaptationResults(
        inner, self._step_size(zero), zero, zero, zero, zero)

  def _one_step(self, parts, previous, seeds):
    kernel = self.adapted_kernel(previous)
    old = previous.inner_results
    parts, inner = kernel.one_step(parts, old, seed=seeds.inner)
    dtype = previous.log_factor.dtype
    num_steps = self._number(dtype)
    count, target = (
        states.cast(x, dtype)
        for x in (inner.step, self._parameters['target_excess']))
    is_adapting = count <= num_steps
    found = kernel.excess(old, inner)
    is_own = collectives.which_are_own(
        self.experimental_shard_axis_names, parts)
    measured, predicted, memory = (_mean(x, dtype, is_own) for x in found)
    # A short window at first, while the step size changes fast.
    window = tf.cast(
        tf.where(count <= num_steps / 4., _FIRST_WINDOW, _WINDOW), dtype)
    # A step that is no number counts as far too hot.
    x = tf.where(_is_first(count / num_steps), predicted, measured)
    limit = _LARGEST_SHARE * target
    x = tf.where(
        tf.math.is_nan(x), limit, tf.clip_by_value(x, -limit, limit))
    excess = previous.excess + (x - previous.excess) / tf.where(
        is_adapting, tf.minimum(count, window),
        tf.maximum(count - num_steps, 1.))
    num_coordinates, = collectives.totals(dtype, is_own, _sizes(parts))
    gain = _gain(count / num_steps, target, memory, num_coordinates)
    log_factor = previous.log_factor + gain * tf.clip_by_value(
        1. - excess / target, -2., 2.)
    first = tf.where(
        _is_first(count / num_steps), log_factor, previous.predicted_log_factor)
    log_factor = tf.maximum(log_factor, first - _FARTHEST_BELOW)
    num_averaged = tf.maximum(count - tf.floor(0.75 * num_steps), 1.)
    mean = previous.mean_log_factor + (
        log_factor - previous.mean_log_factor) / num_averaged
    log_factor = tf.where(tf.equal(count, num_steps), mean, log_factor)
    log_factor = tf.where(is_adapting, log_factor, previous.log_factor)
    mean = tf.where(is_adapting, mean, previous.mean_log_factor)
    return parts, TemperatureStepSizeAdaptationResults(
        inner, self._step_size(log_factor), log_factor, first, mean, excess)

  def _step_size(self, log_factor):
    start = self.inner_kernel.parameters['step_size']
    return states.cast(start, log_factor.dtype) * tf.exp(log_factor)


def _is_first(share):
  """Whether the predicted excess counts, after a share of the adaptation."""
  return share <= 0.5


def _gain(share, target, memory, num_coordinates):
  """a_k, after a share of the adaptation.

  The work r . g of a momentum that is kept for m = 1 / (h gamma) steps has in
  each step the variance 2 target m from the noise of g, and its sum swings by
  about the square root of the number D of coordinates. The gain is such that
  neither moves log h by more than about 0.2.
  """
  is_first = _is_first(share)
  gain = tf.where(is_first, tf.where(share <= 0.25, 0.05, 0.01), 0.02)
  gain = tf.cast(gain, share.dtype)
  most = target * tf.minimum(
      0.04 * num_coordinates, 0.1 * tf.sqrt(num_coordinates))
  # Infinite where there is no momentum.
  return tf.where(is_first, gain, tf.minimum(gain, most / memory))


def _mean(parts, dtype, is_own):
  """The mean over all coordinates of all parts and chains."""
  total, number = collectives.totals(
      dtype, is_own, [tf.reduce_sum(tf.cast(part, dtype)) for part in parts],
      _sizes(parts))
  return total / number


def _sizes(parts):
  return [tf.size(part) for part in parts]
