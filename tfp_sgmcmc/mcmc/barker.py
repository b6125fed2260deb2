"""Stochastic gradient Barker dynamics: the gradient chooses a direction.

  z_i ~ N(sigma, (0.1 sigma)^2),  sigma = sqrt(2 h T)
  theta_i <- theta_i + z_i  with probability p_i, else  theta_i - z_i
  p_i = 1 / (1 + exp(-a_i z_i g_i / T))

for each coordinate i on its own. g is the estimate of the gradient of the log
posterior density. With a = 1 this is the stochastic gradient Barker dynamics
(SGBD) of Mauri and Zanella (2024), at T = 1. With tau^2 the variance of the
noise of g,

  a_i = 1.702 / sqrt(1.702^2 - (z_i tau_i / T)^2),  infinite beyond the root,

is their corrected one (c-SGBD): for normal noise the mean of p_i is then about
what it is without noise. If tau is not given, it is estimated from the changes
of the gradient,

  tau^2 <- 0.99 tau^2 + 0.01 (g - g of the last step)^2 / 2.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc import kernel
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.mcmc import base
from tfp_sgmcmc.mcmc import sglrw

__all__ = ['StochasticBarker', 'StochasticBarkerResults']

_SPREAD = 0.1
_SCALE = 1.702  # Of the normal distribution function that a logistic one is.
_DECAY = 0.99
_SMALLEST = 1e-12


@kernel.refuses_corrections
class StochasticBarkerResults(NamedTuple):
  """Results of `StochasticBarker`.

  Attributes:
    step: `int64` scalar, the number of steps made.
    target_log_prob: The estimate of the log density with which the step was
      made, at the state before it; shape `chains`.
    grads_target_log_prob: List with its gradient by each part.
    gradient_estimator_results: The state of the gradient estimator.
    noise_variance: List with the estimate of tau^2 for each part, 0 at the
      start; `()` where `noise_scale` is given.

  And the method `failure(state)`; see `errors`.
  """
  step: tf.Tensor
  target_log_prob: tf.Tensor
  grads_target_log_prob: list[tf.Tensor]
  gradient_estimator_results: Any
  noise_variance: Any

  failure = base.failure  # type: ignore[misc]


class _Seeds(NamedTuple):
  """The seeds of one step, one for each use."""
  noise: tf.Tensor
  gradient: tf.Tensor
  direction: tf.Tensor


class StochasticBarker(base.LangevinKernel):
  """Stochastic gradient Barker dynamics (SGBD, c-SGBD).

    theta_i <- theta_i +- z_i,  z_i ~ N(sigma, (0.1 sigma)^2),
    up with probability 1 / (1 + exp(-a_i z_i g_i / T)),  sigma = sqrt(2 h T)

  The length of a step does not depend on the gradient, so no gradient throws
  the chain far. Even if h is too large for stiff coordinates, the chain is not
  lost. For small h this is Langevin dynamics with the h of `SGLD`: on N(0, 1),
  with the exact gradient, the variance is 1.05 at h = 0.1 and 1.10 at h = 0.2,
  as with SGLD.

  Gradient noise makes the direction more random, which heats the chain. The
  factor a corrects for normal noise of standard deviation tau. Variances that
  remain on N(0, 1) at h = 0.02 (exact gradient: 1.01), by simulation, with
  normal noise and, second, with noise of a t law of 2.5 degrees of freedom and
  the same variance:

    sigma tau           0.4          0.8          1.2          1.5
    SGLD                1.05         1.17         1.37         1.57
    noise_scale = 0     1.05, 1.03   1.16, 1.09   1.31, 1.15   1.44, 1.21
    noise_scale = tau   1.02, 1.01   1.05, 0.97   1.07, 0.87   1.08, 0.70

  So choose h with sigma tau at most 0.8, h = 0.3 / tau^2 at T = 1; beyond sigma
  tau = 1.7 only the sign of the gradient counts. If the noise is large and
  heavy-tailed, `noise_scale=0.` is the safer choice.

  #### Examples

  >>> x = tf.random.stateless_normal([1000], [0, 1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x), x)
  >>> kernel = sgmcmc.StochasticBarker(
  ...     posterior, step_size=3e-5,
  ...     gradient_estimator=sgmcmc.gradients.Uniform(batch_size=100))
  >>> draws = sgmcmc.sample(
  ...     kernel, 200, tf.zeros([50]), num_burnin_steps=500, seed=1,
  ...     num_steps_between_results=9, progress_bar=False)
  >>> 0.9 < 1000. * float(tf.math.reduce_variance(draws.states)) < 1.2
  True
  >>> noise, = draws.kernel_results.noise_variance
  >>> 8_000. < float(tf.reduce_mean(noise)) < 10_500.  # N^2 / n (1 - n / N).
  True

  #### References

  [1]: Lorenzo Mauri and Giacomo Zanella. Robust Approximate Sampling via
       Stochastic Gradient Barker Dynamics. _AISTATS_, 2024; arXiv:2405.08999.
  [2]: Samuel Livingstone and Giacomo Zanella. The Barker Proposal: Combining
       Robustness and Efficiency in Gradient-based MCMC. _JRSS B_, 2022.
  """

  _Seeds = _Seeds

  def __init__(
      self,
      target_log_prob_fn: hints.LogDensity,
      step_size: hints.Schedule,
      *,
      noise_scale: hints.Schedule | None = None,
      gradient_estimator: gradients_lib.GradientEstimator | None = None,
      temperature: hints.Schedule = 1.,
      experimental_shard_axis_names: hints.ShardAxes = None,
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      target_log_prob_fn: `Posterior`, or a callable of the state's parts that
        returns the log density, one value a chain.
      step_size: h, that of `SGLD`; sigma = sqrt(2 h T). A positive number, a
        tensor that broadcasts with each part of the state, or a callable of
        the step counter (an `int64` scalar), such as a Keras schedule.
      noise_scale: tau, the standard deviation of the gradient's noise: a
        number of at least zero, or a tensor that broadcasts with each part of
        the state, such as the root of `gradient_estimator.variance(posterior,
        [state])`. Zero for no correction. Default: estimated as the chain
        runs, which takes some hundred steps.
      gradient_estimator: One of `tfp_sgmcmc.gradients`; None is the exact
        gradient.
      temperature: T, in the forms of `step_size`; above zero.
      experimental_shard_axis_names: List with an entry for each part of the
        state: a name, such as "rows", for a part that is another piece on each
        replica of a `tf.distribute` strategy; None for one that all share.
        Default: those of a `ShardedPosterior`, else none.
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If a number is out of its range or the estimator does not fit
        the posterior.
      TypeError: If the estimator needs a `Posterior` and gets a function.
    """
    checks.schedule('temperature', temperature, 0.)
    if noise_scale is not None:
      checks.numeric('noise_scale', noise_scale, 0., strict=False)
    super().__init__(dict(
        target_log_prob_fn=target_log_prob_fn,
        step_size=step_size,
        noise_scale=noise_scale,
        gradient_estimator=gradient_estimator,
        temperature=temperature,
        experimental_shard_axis_names=experimental_shard_axis_names,
        name=name))

  @property
  def why_no_shards(self):
    return None

  def _start(self, parts, estimate, estimator_results, seeds):
    noise_variance = ()
    if self._parameters['noise_scale'] is None:
      noise_variance = [tf.zeros_like(part) for part in parts]
    return StochasticBarkerResults(
        tf.zeros([], tf.int64), *estimate, estimator_results, noise_variance)

  def _one_step(self, parts, previous, seeds):
    step_size, temperature = (
        self._at_step(name, previous.step, parts)
        for name in ('step_size', 'temperature'))
    estimate, estimator_results = self._estimate(parts, previous, seeds)
    gradients = estimate.grads_target_log_prob
    noise_variance = previous.noise_variance
    if self._parameters['noise_scale'] is None:
      # That of the steps before: with this step's own gradient in it, one that
      # is far off would be weighed as if all were.
      variance = noise_variance
      noise_variance = [
          _DECAY * v + (1. - _DECAY) / 2. * tf.square(g - old)
          for v, g, old in zip(
              variance, gradients, previous.grads_target_log_prob)]
    else:
      variance = [
          tf.square(states.cast(self._parameters['noise_scale'], part.dtype))
          for part in parts]
    parts = barker_step(
        parts, gradients, variance, step_size, temperature,
        self._noise(parts, seeds.noise), self._uniform(parts, seeds.direction))
    return parts, StochasticBarkerResults(
        previous.step + 1, *estimate, estimator_results, noise_variance)


def barker_step(
    parts: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor],
    noise_variance: Sequence[tf.Tensor],
    step_size: Sequence[tf.Tensor],
    temperature: Sequence[tf.Tensor],
    noise: Sequence[tf.Tensor],
    uniform: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
  """The update of the module's docstring; all lists over the parts.

  `noise_variance` is tau^2; `noise` has standard normal numbers, `uniform` such
  in [0, 1).
  """
  sigma = base.each(lambda h, t: tf.sqrt(2. * h * t), step_size, temperature)
  moved = []
  for theta, g, v, s, t, xi, u in zip(
      parts, gradients, noise_variance, sigma, temperature, noise, uniform):
    z = s * (1. + _SPREAD * xi)
    rest = 1. - v * tf.square(z / (_SCALE * t))
    # Where nothing is left of it, the factor is so large that the sign decides.
    a = tf.math.rsqrt(tf.maximum(rest, _SMALLEST))
    moved.append(
        theta + sglrw.signed(z, tf.math.sigmoid(a * z * g / t), u))
  return moved
