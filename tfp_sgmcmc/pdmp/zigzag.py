"""The zig-zag process.

  theta moves on at the velocity v, each component -1 or 1;
  at the rate [v_j d_j U]_+ / T component j changes its sign:  v_j <- -v_j

U = -log p; its derivative may be estimated from a minibatch, a new one at each
time: ZZ-SS, zig-zag with subsampling, and with control variates (Bierkens,
Fearnhead and Roberts 2019, sections 2.2, 4.2 and 4.3; their theta is v, their
xi theta). `thinning` says how the times are found.
"""

from typing import Any

import tensorflow as tf

from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.pdmp import rate_bounds
from tfp_sgmcmc.pdmp import thinning

__all__ = ['ZigZagSampler']


class ZigZagSampler(thinning.ThinnedKernel):
  """The zig-zag process, exact under a bound on its rates.

    theta(t) = theta + v t,  v_j = -1 or 1
    v_j <- -v_j   at the rate [v_j d_j U(theta(t))]_+ / T

  A step is an event: a change of one sign, or a rejected change. So its states
  are the corners of a path, at unequal times: THEIR AVERAGE IS NOT THE
  POSTERIOR'S. Sample `pdmp.UniformTime(kernel, interval)`, whose draws have
  equal weights, or pass states and results to `pdmp.Trajectory.from_chain`.

  With minibatches, and a bound that holds for all of them, the law stays exact.
  With `gradients.Uniform(1)` this is ZZ-SS; with
  `gradients.ControlVariate(1, anchor)` its cost hardly grows with N (on 3
  coefficients, the path per event was 3 times as long at N = 100, and 25 times
  at N = 10,000).

  Without a `rate_bound` the kernel finds one from 13 gradients along the path
  at each event (`pdmp.grid_bounds` says how), on any log density that has a
  gradient. If the rate bends both ways within a few cells of the grid, the
  bound may be violated, and the law has a bias. `diagnostics.summary` and
  `Trajectory.violation_share` give the share of such proposals: on the curved
  densities of the tests it is below 0.0002.

  #### Examples

  >>> x = tf.random.stateless_normal([1000, 2], [0, 1])
  >>> y = tf.cast(x[:, 0] > 0., tf.float32)
  >>> def log_likelihood(theta, batch):
  ...   logits = tf.einsum('...nd,...d->...n', batch[0], theta)
  ...   return tfd.Bernoulli(logits=logits).log_prob(batch[1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.MultivariateNormalDiag(tf.zeros(2)).log_prob, log_likelihood,
  ...     (x, y))
  >>> kernel = sgmcmc.ZigZagSampler(
  ...     posterior, gradient_estimator=sgmcmc.gradients.Uniform(1),
  ...     rate_bound=sgmcmc.pdmp.LogisticRegressionBound(x, prior_scale=1.))
  >>> @tf.function(autograph=False)  # For long runs jit_compile=True.
  ... def run():
  ...   return tfp.mcmc.sample_chain(
  ...       5, tf.zeros([4, 2]), trace_fn=None, seed=[0, 0],
  ...       kernel=sgmcmc.pdmp.UniformTime(kernel, interval=0.02))
  >>> run().shape
  TensorShape([5, 4, 2])

  Without a bound, on all data at each event:

  >>> kernel = sgmcmc.pdmp.UniformTime(
  ...     sgmcmc.ZigZagSampler(posterior), interval=0.2)
  >>> draws = sgmcmc.sample(
  ...     kernel, 100, tf.zeros([4, 2]), seed=1, progress_bar=False)
  >>> draws.kernel_results.inner_results.finding().value < 0.01
  True

  #### References

  [1]: Joris Bierkens, Paul Fearnhead, Gareth Roberts. The Zig-Zag Process and
       Super-Efficient Sampling for Bayesian Analysis of Big Data. _Annals of
       Statistics_, 2019.
  [2]: Charly Andral and Kengo Kamatani. Automated Techniques for Efficient
       Sampling of Piecewise-Deterministic Markov Processes. arXiv:2408.03682,
       2024.
  [3]: Alice Corbella, Simon E. F. Spencer, Gareth O. Roberts. Automatic Zig-Zag
       sampling in practice. _Statistics and Computing_, 2022.
  """

  def __init__(
      self,
      target_log_prob_fn: hints.LogDensity,
      rate_bound: Any = None,
      *,
      gradient_estimator: gradients_lib.GradientEstimator | None = None,
      refresh_rate: hints.TensorLike = 0.,
      refresh_fraction: hints.TensorLike = 1.,
      temperature: hints.Schedule = 1.,
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      target_log_prob_fn: `Posterior`, or a callable of the state's parts that
        returns the log density, one value a chain.
      rate_bound: Bound on the rates at temperature 1; None finds it along the
        path, only for the exact gradient. Otherwise `pdmp.GaussianBound`,
        `pdmp.HessianBound`, `pdmp.LogisticRegressionBound`, or a function of a
        `pdmp.SegmentStart` that returns a `pdmp.AffineRate`, with lists of
        tensors like the parts of the state as `intercept` and `slope`, and a
        `horizon` of shape `chains`.
      gradient_estimator: One of `tfp_sgmcmc.gradients`, unbiased, with noise
        independent from event to event (so not `Stream`, which reads the data
        in epochs); None is the exact gradient.
      refresh_rate: Refreshments in a unit of time, a number, at least 0.
      refresh_fraction: Number in (0, 1]: the probability with which each sign
        is drawn anew at a refreshment.
      temperature: T, a positive number: the law is that of density^(1/T).
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If minibatches have no bound, a bound does not hold for the
        estimator, or a number is out of its range.
      TypeError: If an argument is of the wrong type.
    """
    super().__init__(dict(
        target_log_prob_fn=target_log_prob_fn,
        rate_bound=rate_bound,
        gradient_estimator=gradient_estimator,
        refresh_rate=refresh_rate,
        refresh_fraction=refresh_fraction,
        temperature=temperature,
        name=name))

  @property
  def _velocity_law(self):
    return 'signs'

  def _bound(self, start):
    rate = self._call_bound(start, 'coordinates')
    parts, rank = start.state_parts, start.chain_rank

    def flat(rates):
      if not isinstance(rates, (list, tuple)):
        rates = [rates] * len(parts)
      return states.flatten([
          tf.broadcast_to(states.cast(x, part.dtype), compat.shape(part))
          for x, part in zip(rates, parts)], rank)

    return rate_bounds.AffineRate(
        flat(rate.intercept), flat(rate.slope),
        tf.broadcast_to(
            states.cast(rate.horizon, parts[0].dtype),
            compat.shape(parts[0])[:rank]))

  def _rates(self, velocity, gradients, chain_rank):
    return -states.flatten(
        [v * g for v, g in zip(velocity, gradients)], chain_rank)

  def _ring(self, velocity, gradients, clock, chain_rank):
    flat = states.flatten(velocity, chain_rank)
    size = compat.shape(flat)[-1]
    coordinates = tf.reshape(compat.positions(size), [size])
    rings = coordinates == clock[..., tf.newaxis]
    return states.unflatten(
        tf.where(rings, -flat, flat), velocity, chain_rank)
