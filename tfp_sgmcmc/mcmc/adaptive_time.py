"""Step sizes that follow the size of the gradient, and weights that undo it.

With g_k the estimate of the gradient at the state theta_k, s its typical size
in a coordinate, d the number of coordinates and h the step size that was given,

  zeta_{k+1} = rho zeta_k + (1 - rho) |g_k|^2 / (d s^2)
  psi(zeta)  = m (zeta^r + M) / (zeta^r + m)                  m < psi < M

the step from theta_k to theta_{k+1} has the size h psi(zeta_k), and theta_k
counts with the weight psi(zeta_k) in a mean. Leimkuhler, Lohmann and Whalley
(2025), SamAdams: equations of d zeta and psi, with rho = e^(-alpha dtau) and
1 / (d s^2) for their 1 / (alpha Omega); Rajpal, Leimkuhler and Jiang (2025),
SA-SGLD. Two things differ from both:

  The size of a step is known before its minibatch is drawn: zeta_k holds the
  gradients at theta_{k-1} and before. If it held g_k too, step sizes would fall
  where noise makes a gradient large, and E[psi g] would not be E[psi] E[g].

  The weight is that of the step that leaves the state, as in Euler's sum over
  time. Then, for any function f with the generator L of the dynamics,

    sum_k psi_k L f(theta_k) = sum_k (f(theta_{k+1}) - f(theta_k)) / h + O(h)

  up to a martingale, so that the weighted law has an error of order h for any
  rho, not only where 1 - rho falls with h.
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

__all__ = ['AdaptiveTime', 'AdaptiveTimeResults']

_WINDOW = 1000.  # Steps, over which a scale that is not given is measured.


@kernel_lib.refuses_corrections
class AdaptiveTimeResults(NamedTuple):
  """Results of `AdaptiveTime`.

  Attributes:
    inner_results: The inner kernel's results.
    log_weight: log psi, the logarithm of the weight of the state after the
      step, and of the factor of the next step size; shape `chains`.
    monitor: zeta, shape `chains`.
    mean_square: s^2, shape `chains`: as given, or the mean of |g|^2 / d over
      about the last 1,000 steps.

  And the method `failure(state)`; see `errors`.
  """
  inner_results: Any
  log_weight: tf.Tensor
  monitor: tf.Tensor
  mean_square: tf.Tensor

  @property
  def step(self) -> tf.Tensor:
    """`int64` scalar, the number of steps made."""
    return self.inner_results.step

  def failure(self, state: hints.State) -> errors.Failure | None:
    """Why a chain cannot go on, or None."""
    return self.inner_results.failure(state)


class AdaptiveTime(adaptation.WrappingKernel):
  """Small steps where gradients are large, and weighted draws.

    zeta <- rho zeta + (1 - rho) |g|^2 / (d s^2),   one zeta for each chain
    psi  =  m (zeta^r + M) / (zeta^r + m),          in (m, M)

  The step size of the inner kernel is multiplied by psi. Where gradients have
  their typical size s, psi is 1 with M = 1 / m: steps are h there, up to M h
  where gradients are small, and down to m h where they are large. Fewer states
  lie where steps are long, so each state has the weight psi:

    E[f] = sum_k psi_k f(theta_k) / sum_k psi_k,

  with an error of order h from the steps and from minibatch noise, as with the
  inner kernel. Without the weights the mean is wrong at any h.

  `sample` and `fit` keep `log_weight = log psi` with each draw, and
  `Draws.mean` and the predictions of `PosteriorSamples` use it. In
  `tfp.mcmc.sample_chain` trace it: `trace_fn=lambda _, results:
  results.log_weight`.

  It helps if curvature differs much between places, as in a funnel or beside a
  sharp wall. If not, the weights only make means less precise. The size of a
  step depends on earlier gradients, so a long step may lead up a wall, and only
  the next step is short. So M h has to be stable near places where gradients
  are small.

  #### Examples

  A density with steep walls, exp(-x^4 / 4):

  >>> kernel = sgmcmc.AdaptiveTime(
  ...     sgmcmc.SGLD(lambda x: -x**4 / 4., step_size=0.02))
  >>> draws = sgmcmc.sample(
  ...     kernel, 1000, tf.zeros([500]), num_burnin_steps=500, seed=1,
  ...     num_steps_between_results=4, progress_bar=False)
  >>> round(float(draws.mean(lambda x: x**2)), 2)  # 0.676 exactly.
  0.68
  >>> round(float(tf.reduce_mean(draws.states**2)), 1)
  0.8

  #### References

  [1]: Benedict Leimkuhler, Rene Lohmann, Peter A. Whalley. A Langevin sampling
       algorithm inspired by the Adam optimizer. arXiv:2504.18911, 2025.
  [2]: Rajit Rajpal, Benedict Leimkuhler, Yuanhao Jiang. Adaptive Stepsizing for
       Stochastic Gradient Langevin Dynamics in Bayesian Neural Networks.
       arXiv:2511.11666, 2025.
  """

  def __init__(
      self,
      inner_kernel: base.LangevinKernel,
      *,
      decay: float = 0.9,
      min_factor: float = 0.1,
      max_factor: float = 10.,
      power: float = 0.25,
      gradient_scale: hints.TensorLike | None = None,
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      inner_kernel: `SGLD` or `SGHMC`, with the step size h, which may be a
        schedule.
      decay: rho, in [0, 1): the share of zeta that a step keeps. Near 1 the
        step size follows an average over 1 / (1 - rho) steps.
      min_factor: m, the smallest factor of the step size; a number in (0, 1).
      max_factor: M, the largest; a number above 1.
      power: r, a positive number: between m and M the step size is proportional
        to |g|^(-2 r). [1] takes 1/4; 1/2 is Adam's.
      gradient_scale: s, the root mean square of a coordinate of the gradient
        where the step size is to be about h: a positive number. By default each
        chain measures it over about its last 1,000 steps.
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If a number is out of its range, or the inner kernel is
        neither SGLD nor SGHMC.
      TypeError: If the inner kernel is not a discrete-time kernel of this
        library.
    """
    if not isinstance(inner_kernel, base.LangevinKernel):
      raise TypeError(
          f'inner_kernel is {inner_kernel!r}: it has to be SGLD or SGHMC.')
    if inner_kernel.why_no_adaptive_time is not None:
      raise ValueError(inner_kernel.why_no_adaptive_time)
    checks.fraction('decay', decay)
    checks.scalar('decay', decay)
    if checks.static_value(decay) == 1.:
      raise ValueError(
          'decay is 1: the step size would never change. Take a number below '
          '1, such as 0.9.')
    checks.positive_share('min_factor', min_factor)
    checks.positive_number('max_factor', max_factor)
    least, most = map(checks.static_value, (min_factor, max_factor))
    if least is not None and least >= 1. or most is not None and most <= 1.:
      raise ValueError(
          f'min_factor is {min_factor} and max_factor {max_factor}: the first '
          'has to be below 1, the second above it, since 1 is the factor where '
          'gradients have their typical size.')
    checks.positive_number('power', power)
    if gradient_scale is not None:
      checks.positive_number('gradient_scale', gradient_scale)
    super().__init__(dict(
        inner_kernel=inner_kernel,
        decay=decay,
        min_factor=min_factor,
        max_factor=max_factor,
        power=power,
        gradient_scale=gradient_scale,
        name=name))

  @property
  def why_no_shards(self) -> str | None:
    """That of the inner kernel."""
    return self.inner_kernel.why_no_shards

  def _bootstrap(self, parts, seeds):
    inner = self.inner_kernel.bootstrap_results(parts, seed=seeds.inner)
    square = self._mean_square(inner.grads_target_log_prob, inner)
    scale = self._given_scale(square)
    scale = square if scale is None else scale
    # At a mode an exact gradient is 0, and so is its own scale.
    monitor = tf.where(scale > 0., square / scale, tf.ones_like(scale))
    return self._results(inner, monitor, scale)

  def _one_step(self, parts, previous, seeds):
    kernel = self.inner_kernel.rescaled(tf.exp(previous.log_weight))
    old = previous.inner_results
    parts, inner = kernel.one_step(parts, old, seed=seeds.inner)
    square = self._mean_square(kernel.gradients_before(old, inner), inner)
    scale = self._given_scale(square)
    if scale is None:
      count = tf.minimum(tf.cast(inner.step, square.dtype) + 1., _WINDOW)
      scale = previous.mean_square + (square - previous.mean_square) / count
    rho = states.cast(self._parameters['decay'], square.dtype)
    monitor = rho * previous.monitor + (1. - rho) * tf.where(
        scale > 0., square / scale, tf.ones_like(scale))
    return parts, self._results(inner, monitor, scale)

  def _results(self, inner, monitor, scale):
    m, most, power = (
        states.cast(self._parameters[name], monitor.dtype)
        for name in ('min_factor', 'max_factor', 'power'))
    return AdaptiveTimeResults(
        inner, tf.math.log(factor(monitor, m, most, power)), monitor, scale)

  def _given_scale(self, like):
    """s^2 in the shape and dtype of a tensor; None where it is measured."""
    scale = self._parameters['gradient_scale']
    if scale is None:
      return None
    return tf.square(states.cast(scale, like.dtype)) * tf.ones_like(like)

  def _mean_square(self, gradients, inner):
    """|g|^2 / d of each chain, in single precision at least."""
    log_prob = inner.target_log_prob
    dtype = tf.float64 if log_prob.dtype == tf.float64 else tf.float32
    rank = log_prob.shape.rank
    total, number = collectives.totals(
        dtype, collectives.which_are_own(
            self.experimental_shard_axis_names, gradients),
        [states.sum_event(tf.square(tf.cast(g, dtype)), rank)
         for g in gradients],
        [states.num_coordinates([g], rank) for g in gradients])
    return total / number


def factor(
    monitor: tf.Tensor,
    least: hints.TensorLike,
    most: hints.TensorLike,
    power: hints.TensorLike,
) -> tf.Tensor:
  """psi = m (zeta^r + M) / (zeta^r + m): M at zeta = 0, 1 at 1, m far out."""
  x = tf.pow(monitor, power)
  return least * (x + most) / (x + least)
