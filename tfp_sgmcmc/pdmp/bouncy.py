"""The bouncy particle sampler.

  theta moves on at the velocity v;
  at the rate [G]_+ / T, G = v . grad U, it bounces:  v <- v - 2 (v.g) g / |g|^2
  at the rate `refresh_rate`, v is drawn anew,

U = -log p and g = grad U, or an unbiased estimate of it from a minibatch: then
the same one for the rate and for the reflection, a new one at each time
(Algorithm 1, equations 3 and 4, and Theorem 1 of Pakman et al. 2017; with
minibatches of one it is the Local BPS of Bouchard-Cote et al. 2018, section 3,
and the lipSBPS of Pakman et al.). `thinning` says how the times are found.
"""

from typing import Any

import tensorflow as tf

from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.pdmp import base
from tfp_sgmcmc.pdmp import rate_bounds
from tfp_sgmcmc.pdmp import thinning

__all__ = ['BouncyParticleSampler']


class BouncyParticleSampler(thinning.ThinnedKernel):
  """The bouncy particle sampler, exact under a bound on its rate.

    theta(t) = theta + v t
    v <- v - 2 (v . g) g / |g|^2   at the rate [v . grad U(theta(t))]_+ / T

  and v is drawn anew at the rate `refresh_rate`. A step is an event: a bounce,
  a rejected bounce, or a refreshment. So its states are the corners of a path,
  at unequal times: THEIR AVERAGE IS NOT THE POSTERIOR'S. Sample
  `pdmp.UniformTime(kernel, interval)`, whose draws have equal weights, or pass
  states and results to `pdmp.Trajectory.from_chain`.

  With minibatches, and a bound that holds for all of them, the law stays exact,
  but there are more bounces; with `gradients.Uniform(1)` it is Local BPS
  (lipSBPS).

  Without a `rate_bound` the kernel finds one from 13 gradients along the path
  at each event (`pdmp.grid_bounds` says how), on any log density that has a
  gradient. If the rate bends both ways within a few cells of the grid, the
  bound may be violated, and the law has a bias. `diagnostics.summary` and
  `Trajectory.violation_share` give the share of such proposals: on the curved
  densities of the tests it is below 0.0002.

  #### Examples

  An equally weighted draw every 0.5 units of time:

  >>> x = tf.random.stateless_normal([1000, 2], [0, 1])
  >>> y = tf.cast(x[:, 0] > 0., tf.float32)
  >>> def log_likelihood(theta, batch):
  ...   logits = tf.einsum('...nd,...d->...n', batch[0], theta)
  ...   return tfd.Bernoulli(logits=logits).log_prob(batch[1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.MultivariateNormalDiag(tf.zeros(2)).log_prob, log_likelihood,
  ...     (x, y))
  >>> kernel = sgmcmc.BouncyParticleSampler(
  ...     posterior,
  ...     rate_bound=sgmcmc.pdmp.LogisticRegressionBound(x, prior_scale=1.))
  >>> @tf.function(autograph=False)  # For long runs jit_compile=True.
  ... def run():
  ...   return tfp.mcmc.sample_chain(
  ...       20, tf.zeros([4, 2]), trace_fn=None, seed=[0, 0],
  ...       kernel=sgmcmc.pdmp.UniformTime(kernel, interval=0.5))
  >>> run().shape
  TensorShape([20, 4, 2])

  For integrals along the whole path see `sgmcmc.pdmp.Trajectory`.

  #### References

  [1]: Alexandre Bouchard-Cote, Sebastian J. Vollmer, Arnaud Doucet. The Bouncy
       Particle Sampler: A Non-Reversible Rejection-Free Markov Chain Monte
       Carlo Method. _JASA_, 2018.
  [2]: Ari Pakman, Dar Gilboa, David Carlson, Liam Paninski. Stochastic Bouncy
       Particle Sampler. _ICML_, 2017.
  [3]: Charly Andral and Kengo Kamatani. Automated Techniques for Efficient
       Sampling of Piecewise-Deterministic Markov Processes. arXiv:2408.03682,
       2024.
  [4]: Alice Corbella, Simon E. F. Spencer, Gareth O. Roberts. Automatic Zig-Zag
       sampling in practice. _Statistics and Computing_, 2022.
  """

  def __init__(
      self,
      target_log_prob_fn: hints.LogDensity,
      rate_bound: Any = None,
      *,
      gradient_estimator: gradients_lib.GradientEstimator | None = None,
      refresh_rate: hints.TensorLike = 1.,
      refresh_fraction: hints.TensorLike = 1.,
      velocity: str = 'sphere',
      temperature: hints.Schedule = 1.,
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      target_log_prob_fn: `Posterior`, or a callable of the state's parts that
        returns the log density, one value a chain.
      rate_bound: Bound on the rate at temperature 1; None finds it along the
        path, only for the exact gradient. Otherwise `pdmp.GaussianBound`,
        `pdmp.HessianBound` (for instance from a Lipschitz constant of the
        gradient), `pdmp.LogisticRegressionBound`, or a function of a
        `pdmp.SegmentStart` that returns a `pdmp.AffineRate` with `intercept`,
        `slope` and `horizon` of shape `chains`.
      gradient_estimator: One of `tfp_sgmcmc.gradients`, unbiased, with noise
        independent from event to event (so not `Stream`, which reads the data
        in epochs); None is the exact gradient.
      refresh_rate: Refreshments in a unit of time, a number, at least 0. With 0
        the path does not reach all of the space on some targets (a standard
        normal one). At many times the rate of bounces the path becomes a random
        walk.
      refresh_fraction: Number in (0, 1], the fraction of the velocity's
        variance that is drawn anew (see `pdmp.base.refresh_velocity`); 1 is a
        new draw.
      velocity: "sphere" (|v| = 1) or "gaussian" (N(0, I)), the law of v.
      temperature: T, a positive number: the law is that of density^(1/T).
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If minibatches have no bound, a bound does not hold for the
        estimator, or a number is out of its range.
      TypeError: If an argument is of the wrong type.
    """
    checks.one_of('velocity', velocity, ('sphere', 'gaussian'))
    super().__init__(dict(
        target_log_prob_fn=target_log_prob_fn,
        rate_bound=rate_bound,
        gradient_estimator=gradient_estimator,
        refresh_rate=refresh_rate,
        refresh_fraction=refresh_fraction,
        velocity=velocity,
        temperature=temperature,
        name=name))

  def _bound(self, start):
    rate = self._call_bound(start, 'directional')
    chains = compat.shape(start.state_parts[0])[:start.chain_rank]
    dtype = start.state_parts[0].dtype
    intercept, slope, horizon = (
        tf.broadcast_to(states.cast(x, dtype), chains) for x in rate)
    return rate_bounds.AffineRate(
        intercept[..., tf.newaxis], slope[..., tf.newaxis], horizon)

  def _rates(self, velocity, gradients, chain_rank):
    return -base.dot(velocity, gradients, chain_rank)[..., tf.newaxis]

  def _ring(self, velocity, gradients, clock, chain_rank):
    return base.reflect(velocity, gradients, chain_rank)
