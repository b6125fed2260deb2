"""Stochastic gradient Langevin dynamics, with and without preconditioner.

  theta <- theta + h g + sqrt(2 h T) xi,  xi ~ N(0, I)

g is the estimate of the gradient of the log posterior density. Welling and Teh
(2011), equation 4, with their epsilon = 2 h and T = 1. With a diagonal
preconditioner G, Li et al. (2016), algorithm 1 (their epsilon too is 2 h):

  theta <- theta + h G g + sqrt(2 h T G) xi

Their drift term Gamma = dG/dtheta is left out, as in their experiments.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc import kernel
from tfp_sgmcmc import preconditioners
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.mcmc import base

__all__ = ['SGLD', 'SGLDResults']


@kernel.refuses_corrections
class SGLDResults(NamedTuple):
  """Results of `SGLD`.

  Attributes:
    step: `int64` scalar, the number of steps made.
    target_log_prob: The estimate of the log density with which the step was
      made, at the state before it; shape `chains`.
    grads_target_log_prob: List with its gradient by each part.
    gradient_estimator_results: The state of the gradient estimator.
    preconditioner_results: The state of the preconditioner, `()` for none.

  And the method `failure(state)`; see `errors`.
  """
  step: tf.Tensor
  target_log_prob: tf.Tensor
  grads_target_log_prob: list[tf.Tensor]
  gradient_estimator_results: Any
  preconditioner_results: Any

  failure = base.failure  # type: ignore[misc]


class SGLD(base.LangevinKernel):
  """Stochastic gradient Langevin dynamics.

    theta <- theta + h G g + sqrt(2 h T G) xi,  xi ~ N(0, I)

  with g the estimated gradient of the log density and G the identity, or the
  diagonal that the preconditioner gives (pSGLD). The stationary law is that of
  density^(1/T), with an error of order h: for an exact gradient on N(0, 1) the
  variance is T / (1 - h / 2). Minibatch noise acts as heat: if g has the
  variance C, it adds about h C / 2 to T.

  #### How to choose the step size

  Two things bound h, for this and the other discrete-time kernels. Here L is
  the largest curvature (second derivative) of the negative log density and C
  the variance of the gradient's noise, both by coordinate at a typical state;
  xi is the final friction of SGNHT, about its diffusion plus h C / (2 T):

    kernel    stable where     the step's own bias of a     heat of the noise,
                               variance, relative           relative to T
    SGLD      h < 2 / L        h L / 2                      h C / (2 T)
    SGHMC     h < 2 / sqrt(L)  h^2 L / 4, about             h C / (2 T friction)
    SGNHT     h < 2 / sqrt(L)  0 on a Gaussian, else h^2    taken up by xi
     "euler"  h < 2 / sqrt(L)  -h xi / 2, too cold          taken up by xi

  C is known before a chain is run:
  `gradient_estimator.variance(posterior, [state])` computes it exactly. Take a
  state of an earlier chain, or one near a mode (at its anchor itself a control
  variate has no noise). For a bias of a share s of the variance, take h = 2 s T
  / C with SGLD, and the friction h C / (2 s T) with SGHMC; a larger batch, of n
  examples, makes C smaller as 1 / n. Then halve h and compare: a bias of order
  h halves.

  >>> x = tf.random.stateless_normal([1000], [0, 1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x), x)
  >>> estimator = sgmcmc.gradients.Uniform(batch_size=100)
  >>> noise, = estimator.variance(posterior, [tf.zeros([])])
  >>> h = 2. * 0.05 / noise  # A twentieth of the variance.
  >>> 0.9e-5 < float(h) < 1.3e-5
  True

  #### Examples

  >>> x = tf.random.stateless_normal([1000], [0, 1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x), x)
  >>> kernel = sgmcmc.SGLD(
  ...     posterior, step_size=1e-4,
  ...     gradient_estimator=sgmcmc.gradients.Uniform(batch_size=100))
  >>> @tf.function(jit_compile=True)
  ... def run():
  ...   return tfp.mcmc.sample_chain(
  ...       1000, tf.zeros([50]), kernel=kernel, num_burnin_steps=100,
  ...       trace_fn=None, seed=[0, 0])
  >>> run().shape
  TensorShape([1000, 50])

  Keras schedules are step sizes, here the restarts of cyclical sampling:

  >>> cyclical = sgmcmc.SGLD(
  ...     posterior, gradient_estimator=sgmcmc.gradients.Uniform(100),
  ...     step_size=keras.optimizers.schedules.CosineDecayRestarts(
  ...         1e-3, first_decay_steps=500, t_mul=1.))

  #### References

  [1]: Max Welling and Yee Whye Teh. Bayesian Learning via Stochastic Gradient
       Langevin Dynamics. _ICML_, 2011.
  [2]: Chunyuan Li, Changyou Chen, David Carlson, Lawrence Carin. Preconditioned
       Stochastic Gradient Langevin Dynamics for Deep Neural Networks. _AAAI_,
       2016.
  """

  def __init__(
      self,
      target_log_prob_fn: hints.LogDensity,
      step_size: hints.Schedule,
      *,
      gradient_estimator: gradients_lib.GradientEstimator | None = None,
      preconditioner: preconditioners.Preconditioner | None = None,
      temperature: hints.Schedule = 1.,
      experimental_shard_axis_names: hints.ShardAxes = None,
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      target_log_prob_fn: `Posterior`, or a callable of the state's parts that
        returns the log density, one value a chain.
      step_size: h, half of Welling and Teh's epsilon: a positive number, a
        tensor that broadcasts with each part of the state, or a callable of
        the step counter (an `int64` scalar), such as a Keras schedule. How to
        choose it is above.
      gradient_estimator: One of `tfp_sgmcmc.gradients`; None is the exact
        gradient.
      preconditioner: None, or `preconditioners.RMSProp()` for pSGLD. It sees
        the gradient over N.
      temperature: T, in the forms of `step_size`; zero gives gradient descent.
      experimental_shard_axis_names: List with an entry for each part of the
        state: a name, such as "rows", for a part that is another piece on each
        replica of a `tf.distribute` strategy; None for one that all share.
        Default: those of a `ShardedPosterior`, else none.
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If a number is out of its range or the estimator does not fit
        the posterior.
      TypeError: If the estimator needs a `Posterior` and gets a function, or
        an argument is of the wrong type.
    """
    self._preconditioner = (
        preconditioners.Identity() if preconditioner is None
        else preconditioner)
    preconditioners.check_preconditioner(self._preconditioner)
    super().__init__(dict(
        target_log_prob_fn=target_log_prob_fn,
        step_size=step_size,
        gradient_estimator=gradient_estimator,
        preconditioner=preconditioner,
        temperature=temperature,
        experimental_shard_axis_names=experimental_shard_axis_names,
        name=name))

  def _start(self, parts, estimate, estimator_results, seeds):
    preconditioner_results = self._preconditioner.bootstrap_results(
        self._mean_gradients(estimate.grads_target_log_prob))
    return SGLDResults(
        tf.zeros([], tf.int64), *estimate, estimator_results,
        preconditioner_results)

  def _check_gaussian_step(self):
    self._check_noise(temperature=self._parameters['temperature'])

  @property
  def why_no_excess(self):
    return None

  @property
  def why_no_adaptive_time(self):
    return None

  @property
  def why_no_shards(self):
    return base.why_no_shards(self._preconditioner)

  def excess(self, previous, results):
    """h G g^2 / (2 T), both ways: the gradient's power beside the noise's.

    From E|theta|^2 being the same after a step as before it. g^2 is the
    variance of the noise and the square of the gradient itself: the share of
    gradient noise, and the step's own bias.
    """
    gradients = results.grads_target_log_prob
    step_size, temperature = (
        self._at_step(name, previous.step, gradients)
        for name in ('step_size', 'temperature'))
    scale = self._preconditioner.times(
        step_size, results.preconditioner_results,
        previous.target_log_prob.shape.rank)
    share = [
        hg * tf.square(g) / (2. * t)
        for hg, g, t in zip(scale, gradients, temperature)]
    return base.Excess(share, share, [tf.zeros_like(x) for x in share])

  def _one_step(self, parts, previous, seeds):
    step_size, temperature = (
        self._at_step(name, previous.step, parts)
        for name in ('step_size', 'temperature'))
    chain_rank = previous.target_log_prob.shape.rank
    # This step's G depends on its gradient, which is not known yet: take the
    # last step's.
    estimate, estimator_results = self._estimate(
        parts, previous, seeds, lambda: gaussian_step(
            self._preconditioner.times(
                step_size, previous.preconditioner_results, chain_rank),
            temperature))
    gradients = estimate.grads_target_log_prob
    preconditioner_results = self._preconditioner.one_step(
        self._mean_gradients(gradients), previous.preconditioner_results)
    next_parts = langevin_step(
        parts, gradients,
        self._preconditioner.times(
            step_size, preconditioner_results, chain_rank),
        temperature, self._noise(parts, seeds.noise))
    return next_parts, SGLDResults(
        previous.step + 1, *estimate, estimator_results,
        preconditioner_results)


def gaussian_step(
    scale: Sequence[tf.Tensor], temperature: Sequence[tf.Tensor],
) -> gradients_lib.GaussianStep:
  """h G and sqrt(2 h T G) of `langevin_step`; there is no momentum."""
  zeros = [tf.zeros_like(hg) for hg in scale]
  return gradients_lib.GaussianStep(
      zeros, zeros, scale, base.each(noise_scale, scale, temperature))


def noise_scale(hg, t):
  """sqrt(2 h G T) of one part."""
  return tf.sqrt(2. * hg * t)


def langevin_step(
    parts: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor],
    scale: Sequence[tf.Tensor],
    temperature: Sequence[tf.Tensor],
    noise: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
  """theta + h G g + sqrt(2 h G T) xi; `scale` is h G, all lists over parts."""
  return [
      theta + s * xi + hg * g
      for theta, g, hg, s, xi in zip(
          parts, gradients, scale, base.each(noise_scale, scale, temperature),
          noise)]
