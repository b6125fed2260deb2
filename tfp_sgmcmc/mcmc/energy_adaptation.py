"""The step size of microcanonical dynamics, by the error in its energy.

With d coordinates, dE the error in the energy that a step makes (`energy_error`
of the results), and w_k a target that falls from the first to the last of two
numbers over the n steps of the adaptation,

  x = dE^2 / (d w_k),  W = exp(-(log x)^2 / 162),
  A <- 0.98 A + W x / h^6,  B <- 0.98 B + W,  h = (A / B)^(-1/6),

since dE is of order h^3: so the mean of dE^2 / d comes to w_k. W keeps errors
that are far off, in either direction, from counting for much. Where h would
grow by more than a factor of 3 it grows by 3, and A and B begin anew: the error
of such short steps is rounding, and says nothing of longer ones.
"""

from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import errors
from tfp_sgmcmc import kernel as kernel_lib
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.mcmc import adaptation
from tfp_sgmcmc.mcmc import guard
from tfp_sgmcmc.mcmc import microcanonical

__all__ = [
    'EnergyErrorStepSizeAdaptation', 'EnergyErrorStepSizeAdaptationResults']

_MOST_GROWTH, _LARGEST_ERROR = 3., 1e3


@kernel_lib.refuses_corrections
class EnergyErrorStepSizeAdaptationResults(NamedTuple):
  """Results of `EnergyErrorStepSizeAdaptation`.

  Attributes:
    inner_results: The inner kernel's results.
    step_size: Scalar, h of the next step.
    weight_sum: Scalar, B; A is B / h^6.

  And the method `failure(state)`; see `errors`.
  """
  inner_results: Any
  step_size: tf.Tensor
  weight_sum: tf.Tensor

  step = adaptation.step

  def failure(self, state: Any) -> errors.Failure | None:
    """Why a chain cannot go on, or None."""
    return adaptation.failure(self, state, lambda advice: advice)


class _Seeds(NamedTuple):
  """The seeds of a step, one for each use."""
  inner: tf.Tensor


class EnergyErrorStepSizeAdaptation(adaptation.AdaptingKernel):
  """Finds the step size of `MicrocanonicalLangevin`.

  In the first n = `num_adaptation_steps` steps h follows the error dE in the
  energy of a step, so that E[dE^2] / d comes to a target that falls from
  `target[0]` to `target[1]`. From then on the chain is that of the inner kernel
  with the step size `results.step_size`.

    h = (A / B)^(-1/6),  A <- 0.98 A + W x / h^6,  B <- 0.98 B + W,
    x = dE^2 / (d target),  W = exp(-(log x)^2 / 162)

  It grows by no more than a factor of 3 in a step. Where a step of the
  adaptation ends at a state that is not finite, or with an error 1,000 times
  that wanted, the chain goes back to where the step began, h is halved, and A
  and B begin anew.

  Let the adaptation lie within the burn-in (`num_burnin_steps` at least
  `num_adaptation_steps`). All chains share h. It costs no gradient: dE is among
  the inner kernel's results, with both log densities of one minibatch. So it is
  the error of the integrator alone, and the noise of minibatches has no part in
  it: that noise makes some directions hot and others cold, the more the larger
  h is, and this adaptation does not see it (`MicrocanonicalLangevin` says how
  much). It is for the exact gradient, and for gradients with little noise.

  It leaves the decoherence length L as it is. With the exact gradient give
  `decoherence_length` about sqrt(d): by the default, ten steps, the path
  forgets its direction too soon. [1] measures L, too, by autocorrelations.

  The default, from 0.5 to 0.1, is that of [1] for networks, where steps may be
  long. The bias of moments is then not small; for 3% in variances see the
  docstring of `MicrocanonicalLangevin`, whose 0.0005 is `target=(5e-4, 5e-4)`.

  #### Examples

  >>> scales = tf.constant([1.] * 10 + [2.] * 10)
  >>> kernel = sgmcmc.EnergyErrorStepSizeAdaptation(
  ...     sgmcmc.MicrocanonicalLangevin(
  ...         lambda x: -tf.reduce_sum((x / scales)**2, axis=-1) / 2.,
  ...         step_size=0.01, decoherence_length=5.),
  ...     num_adaptation_steps=500, target=(5e-4, 5e-4))
  >>> draws = sgmcmc.sample(
  ...     kernel, 500, tf.zeros([20, 20]), num_burnin_steps=500, seed=1,
  ...     num_steps_between_results=4, progress_bar=False)
  >>> variances = tf.math.reduce_variance(draws.states, axis=[0, 1]) / scales**2
  >>> bool(tf.reduce_all(abs(variances - 1.) < 0.15))
  True

  #### References

  [1]: Emanuel Sommer, Jakob Robnik, Giorgi Nozadze, Uros Seljak, David
       Ruegamer. Microcanonical Langevin Ensembles: Advancing the Sampling of
       Bayesian Neural Networks. _ICLR_, 2025; arXiv:2502.06335.
  [2]: Jakob Robnik, G. Bruno De Luca, Eva Silverstein, Uros Seljak.
       Microcanonical Hamiltonian Monte Carlo. _JMLR_, 2023; arXiv:2212.08549.
  """

  def __init__(
      self,
      inner_kernel: microcanonical.MicrocanonicalLangevin,
      num_adaptation_steps: Any,
      *,
      target: tuple[float, float] = (0.5, 0.1),
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      inner_kernel: `MicrocanonicalLangevin` with the step size to start from: a
        positive number.
      num_adaptation_steps: n: Python `int`, or a scalar tensor or variable of
        integers. Zero leaves the step size alone.
      target: Two positive numbers, the first and the last target of the mean of
        dE^2 / d.
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If the step size is a schedule, or a number is out of its
        range.
      TypeError: If the inner kernel is another.
    """
    if not isinstance(inner_kernel, microcanonical.MicrocanonicalLangevin):
      raise TypeError(
          f'inner_kernel is {inner_kernel!r}: it has to be a '
          'MicrocanonicalLangevin. For SGNHT take SelfTuning, for SGLD and '
          'SGHMC TemperatureStepSizeAdaptation.')
    if not isinstance(target, (tuple, list)) or len(target) != 2:
      raise ValueError(
          f'target is {target!r}: two numbers are needed, the mean of dE^2 / d '
          'at the start and at the end of the adaptation, (0.5, 0.1) say.')
    for value in target:
      checks.positive_number('target', value)
    super().__init__(dict(
        inner_kernel=inner_kernel,
        num_adaptation_steps=num_adaptation_steps,
        target=tuple(target),
        name=name))

  _Seeds = _Seeds

  def adapted_kernel(
      self, results: EnergyErrorStepSizeAdaptationResults,
  ) -> microcanonical.MicrocanonicalLangevin:
    """The inner kernel with the step size that was found.

    Args:
      results: Results of this kernel.

    Returns:
      kernel: Another `inner_kernel`.
    """
    return self.inner_kernel.copy(step_size=results.step_size)

  def _bootstrap(self, parts, seeds):
    inner = self.inner_kernel.bootstrap_results(parts, seed=seeds.inner)
    dtype = self._dtype(inner)
    return EnergyErrorStepSizeAdaptationResults(
        inner, states.cast(self.inner_kernel.parameters['step_size'], dtype),
        tf.zeros([], dtype))

  def _one_step(self, parts, previous, seeds):
    old = previous.inner_results
    new_parts, new = self.adapted_kernel(previous).one_step(
        parts, old, seed=seeds.inner)
    dtype = previous.step_size.dtype
    number = self._number(dtype)
    count = tf.cast(new.step, dtype)
    is_adapting = count <= number
    first, last = self._parameters['target']
    target = first + (last - first) * tf.minimum(
        count / tf.maximum(number, 1.), 1.)
    size = tf.cast(self.inner_kernel.num_coordinates(new_parts, new), dtype)
    energy_error = tf.cast(new.energy_error, dtype)
    scale = tf.sqrt(size * target)
    error, weight = adaptation.weighed(
        energy_error, scale, new.target_log_prob)
    found, weight_sum = adaptation.step_size_of_errors(
        previous.step_size, previous.weight_sum, tf.reduce_mean(error),
        tf.reduce_mean(weight), 1.)
    is_far = found > _MOST_GROWTH * previous.step_size
    found = tf.minimum(found, _MOST_GROWTH * previous.step_size)
    weight_sum = tf.where(is_far, tf.zeros_like(weight_sum), weight_sum)
    has_failed = is_adapting & ~(
        tf.math.is_finite(new.target_log_prob)
        & (tf.abs(energy_error) < _LARGEST_ERROR * scale))
    any_failed = tf.reduce_any(has_failed)
    back = old._replace(
        step=new.step, energy_error=tf.zeros_like(old.energy_error))
    return states.select(has_failed, parts, new_parts), previous._replace(
        inner_results=guard.select_by_chain(has_failed, back, new),
        step_size=tf.where(
            any_failed, previous.step_size / 2.,
            tf.where(is_adapting, found, previous.step_size)),
        weight_sum=tf.where(
            any_failed, tf.zeros_like(weight_sum), tf.where(
                is_adapting, weight_sum, previous.weight_sum)))
