"""Stochastic gradient lattice random walk: steps of one length, up or down.

  theta_i <- theta_i + sqrt(2 h T)   with probability (1 + c_i) / 2, else
             theta_i - sqrt(2 h T),
  c_i = clip(sqrt(h / (2 T)) g_i, -1, 1),

for each coordinate i on its own. g is the estimate of the gradient of the log
posterior density. Mensch et al. (2026), in whose symbols h is the time step and
sqrt(2 h T) the lattice spacing delta_x, with the spacing at which no
coordinate ever stays where it is; the walk is Duffield et al.'s (2025).
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc import kernel
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.mcmc import base

__all__ = ['SGLRW', 'SGLRWResults']


@kernel.refuses_corrections
class SGLRWResults(NamedTuple):
  """Results of `SGLRW`.

  Attributes:
    step: `int64` scalar, the number of steps made.
    target_log_prob: The estimate of the log density with which the step was
      made, at the state before it; shape `chains`.
    grads_target_log_prob: List with its gradient by each part.
    gradient_estimator_results: The state of the gradient estimator.

  And the method `failure(state)`; see `errors`.
  """
  step: tf.Tensor
  target_log_prob: tf.Tensor
  grads_target_log_prob: list[tf.Tensor]
  gradient_estimator_results: Any

  failure = base.failure  # type: ignore[misc]


class SGLRW(base.LangevinKernel):
  """Stochastic gradient lattice random walk.

    theta_i <- theta_i +- sqrt(2 h T),  up with probability (1 + c_i) / 2
    c_i = clip(sqrt(h / (2 T)) g_i, -1, 1)

  The mean of a step is h g, as with `SGLD`. Its second moment by coordinate is
  2 h T for any noise of g: no gradient, however wrong, moves a coordinate by
  more than sqrt(2 h T). While nothing is clipped,

    -E[(theta - m) . g] = d T   for any fixed m,

  exactly, at any h and with any noise: on normal laws of independent
  coordinates the variances are exact. Covariances between coordinates have the
  bias of SGLD: the part of order h^2 that comes from E[g_i g_j].

  Where |g_i| exceeds sqrt(2 T / h) the drift is clipped, and the chain becomes
  hot and biased towards places where gradients are small. On a normal law with
  normal noise of variance C, with s^2 = h (C + T / v) / (2 T) for a coordinate
  of variance v, the variance is about 1 / erf(1 / (s sqrt(2))) times too large:
  0.3% at s = 1/3, 5% at s = 1/2, 46% at s = 1. With SGLD the factor is 1 + s^2:
  11% too large, 25%, and twice as large. So take h at most T / (2 C), where s
  is about 1/2.

  The states of a chain with a fixed h lie on a lattice of spacing 2 sqrt(2 h T)
  at even steps, and on the lattice midway between them at odd steps.

  #### Examples

  >>> x = tf.random.stateless_normal([1000], [0, 1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x), x)
  >>> kernel = sgmcmc.SGLRW(
  ...     posterior, step_size=3e-5,
  ...     gradient_estimator=sgmcmc.gradients.Uniform(batch_size=100))
  >>> draws = sgmcmc.sample(
  ...     kernel, 200, tf.zeros([50]), num_burnin_steps=500, seed=1,
  ...     num_steps_between_results=9, progress_bar=False)
  >>> 0.9 < 1000. * float(tf.math.reduce_variance(draws.states)) < 1.15
  True

  #### References

  [1]: Zier Mensch, Lars Holdijk, Samuel Duffield, Maxwell Aifer, Patrick J.
       Coles, Max Welling, Miranda Cheng. Robust Stochastic Gradient Posterior
       Sampling with Lattice Based Discretisation. arXiv:2602.15925, 2026.
  [2]: Samuel Duffield et al. Lattice Random Walk. arXiv:2508.20883, 2025.
  """

  def __init__(
      self,
      target_log_prob_fn: hints.LogDensity,
      step_size: hints.Schedule,
      *,
      gradient_estimator: gradients_lib.GradientEstimator | None = None,
      temperature: hints.Schedule = 1.,
      experimental_shard_axis_names: hints.ShardAxes = None,
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      target_log_prob_fn: `Posterior`, or a callable of the state's parts that
        returns the log density, one value a chain.
      step_size: h, that of `SGLD`: a positive number, a tensor that broadcasts
        with each part of the state, or a callable of the step counter (an
        `int64` scalar), such as a Keras schedule.
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
    super().__init__(dict(
        target_log_prob_fn=target_log_prob_fn,
        step_size=step_size,
        gradient_estimator=gradient_estimator,
        temperature=temperature,
        experimental_shard_axis_names=experimental_shard_axis_names,
        name=name))

  @property
  def why_no_shards(self):
    return None

  @property
  def why_no_excess(self):
    return (
        'SGLRW has the temperature T whatever the step size and the noise are, '
        'while no gradient is clipped, so that the step size cannot be told by '
        'it. Choose it as its docstring says, or take SGLD.')

  def _start(self, parts, estimate, estimator_results, seeds):
    return SGLRWResults(
        tf.zeros([], tf.int64), *estimate, estimator_results)

  def _one_step(self, parts, previous, seeds):
    step_size, temperature = (
        self._at_step(name, previous.step, parts)
        for name in ('step_size', 'temperature'))
    estimate, estimator_results = self._estimate(parts, previous, seeds)
    parts = lattice_step(
        parts, estimate.grads_target_log_prob, step_size, temperature,
        self._uniform(parts, seeds.noise))
    return parts, SGLRWResults(
        previous.step + 1, *estimate, estimator_results)


def lattice_step(
    parts: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor],
    step_size: Sequence[tf.Tensor],
    temperature: Sequence[tf.Tensor],
    uniform: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
  """The update of the module's docstring; all lists over the parts.

  `uniform` has numbers in [0, 1): a coordinate goes up where its own is below
  the probability, so that one beyond 0 or 1 need not be clipped.
  """
  length = base.each(lambda h, t: tf.sqrt(2. * h * t), step_size, temperature)
  gain = base.each(lambda h, t: tf.sqrt(h / (2. * t)), step_size, temperature)
  return [
      theta + signed(s, (1. + a * g) / 2., u)
      for theta, g, s, a, u in zip(parts, gradients, length, gain, uniform)]


def signed(
    length: tf.Tensor, probability: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
  """A length, positive with a probability; NaN where that is NaN.

  A comparison with NaN would be False, and a chain whose gradient is no number
  would walk on as if it were one.
  """
  return tf.where(
      tf.math.is_nan(probability), probability,
      tf.where(uniform < probability, length, -length))
