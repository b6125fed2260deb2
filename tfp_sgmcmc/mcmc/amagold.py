"""AMAGOLD: steps with minibatches, and one Metropolis test of many.

L times, each with a minibatch of its own,

  theta <- theta + h/2 r
  r'    <- ((1 - a) r + h g + sqrt(2 gamma T h) xi) / (1 + a),  a = h gamma / 2
  w     <- w + h/2 g . (r + r'),  r <- r'                       w = 0 at first
  theta <- theta + h/2 r

Then theta and r are accepted with the probability

  min(1, exp((log p(theta) - log p(theta_0) - w) / T)),

log p being the log density on all the data. After a rejection theta is what it
was before these steps, and r is minus its value then.

Zhang, Cooper and De Sa (2020), algorithm 2, in whose symbols epsilon = h,
beta = gamma / 2, sigma^2 = T, rho = -w and U = -log p, with T = 1; the momentum
is kept from one test to the next.
"""

from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc import kernel
from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.mcmc import base
from tfp_sgmcmc.mcmc import sghmc

__all__ = ['AMAGOLD', 'AMAGOLDResults']


@kernel.refuses_corrections
class AMAGOLDResults(NamedTuple):
  """Results of `AMAGOLD`.

  Attributes:
    step: `int64` scalar, the number of tests made.
    target_log_prob: The log density of the state on all the data, shape
      `chains`.
    is_accepted: Whether the last proposal was accepted, shape `chains`.
    log_accept_ratio: The logarithm of the acceptance ratio, shape `chains`;
      above 0 it counts as 0.
    gradient_estimator_results: The state of the gradient estimator; a log
      density on all the data counts as N in its `num_gradients`.
    momentum: List with r for each part, N(0, T I) at the start.

  And the method `failure(state)`; see `errors`.
  """
  step: tf.Tensor
  target_log_prob: tf.Tensor
  is_accepted: tf.Tensor
  log_accept_ratio: tf.Tensor
  gradient_estimator_results: Any
  momentum: list[tf.Tensor]

  failure = base.failure  # type: ignore[misc]


class _Seeds(NamedTuple):
  """The seeds of one step, one for each use."""
  noise: tf.Tensor
  gradient: tf.Tensor
  accept: tf.Tensor


class AMAGOLD(base.LangevinKernel):
  """Amortised Metropolis-adjusted SGHMC: exact, with minibatches.

    L times:  theta += h/2 r;  a kick by a minibatch;  theta += h/2 r
    then one Metropolis test on all the data; see the module's docstring

  One step of this kernel is L steps and a test. Its law is that of
  density^(1/T), without bias, at any h, L and friction and with any
  minibatches. The same steps with the same minibatches, reversed, lead back to
  the start, and the test compares the probabilities of both ways. With the
  exact gradient it is generalised HMC.

  Large steps and noisy gradients lower the acceptance. For small h the
  logarithm of the ratio is mostly gradient noise. If this noise has the
  variance C in each of d coordinates, the logarithm has the variance v, and the
  share accepted is

    erfc(sqrt(v / 8)),  v = h^2 L d C / T

  62% at v = 1, 32% at v = 4. A step reads L n rows for the gradients and N for
  the test. So it is worth its cost if L can be about N / n with v still near 1:
  in few dimensions, or with control variates at the mode. Choose h so that
  `results.is_accepted` is about a half.

  #### Examples

  >>> x = tf.random.stateless_normal([1000], [0, 1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x), x)
  >>> kernel = sgmcmc.AMAGOLD(
  ...     posterior, step_size=0.005, friction=10., num_leapfrog_steps=10,
  ...     gradient_estimator=sgmcmc.gradients.Uniform(batch_size=100))
  >>> draws = sgmcmc.sample(
  ...     kernel, 500, tf.zeros([50]), num_burnin_steps=100, seed=1,
  ...     trace_fn=lambda _, results: results.is_accepted, progress_bar=False)
  >>> 0.3 < float(tf.reduce_mean(tf.cast(draws.trace, tf.float32))) < 0.7
  True
  >>> 0.85 < 1000. * float(tf.math.reduce_variance(draws.states)) < 1.15
  True

  #### References

  [1]: Ruqi Zhang, A. Feder Cooper, Christopher De Sa. AMAGOLD: Amortized
       Metropolis Adjustment for Efficient Stochastic Gradient MCMC. _AISTATS_,
       2020.
  """

  friction_argument = 'friction'
  _Seeds = _Seeds

  def __init__(
      self,
      target_log_prob_fn: hints.LogDensity,
      step_size: hints.Schedule,
      friction: hints.Schedule,
      *,
      num_leapfrog_steps: int,
      gradient_estimator: gradients_lib.GradientEstimator | None = None,
      temperature: hints.Schedule = 1.,
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      target_log_prob_fn: `Posterior` that holds its data, or a callable of the
        state's parts that returns the log density, one value a chain.
      step_size: h, in units of time: a positive number, a tensor that
        broadcasts with each part of the state, or a callable of the number of
        tests made (an `int64` scalar).
      friction: gamma, per unit of time: a positive number, or a tensor that
        broadcasts with each part of the state.
      num_leapfrog_steps: Python `int`, L, the steps between two tests.
      gradient_estimator: One of `tfp_sgmcmc.gradients` that draws each
        minibatch independently of all else (`has_independent_noise`), such as
        `Uniform` or `ControlVariate`; None is the exact gradient.
      temperature: T, above zero: one number for all chains and coordinates, or
        a callable of the number of tests made.
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If a number is out of its range or the estimator does not fit.
      TypeError: If the estimator needs a `Posterior` and gets a function, or
        `num_leapfrog_steps` is not an integer.
    """
    checks.numeric('friction', friction, 0.)
    checks.schedule('temperature', temperature, 0.)
    checks.scalar('temperature', temperature(tf.zeros([], tf.int64))
                  if callable(temperature) else temperature)
    checks.positive_integer('num_leapfrog_steps', num_leapfrog_steps)
    super().__init__(dict(
        target_log_prob_fn=target_log_prob_fn,
        step_size=step_size,
        friction=friction,
        num_leapfrog_steps=num_leapfrog_steps,
        gradient_estimator=gradient_estimator,
        temperature=temperature,
        name=name))
    if not self._estimator.has_independent_noise:
      raise ValueError(
          f'gradient_estimator is {self._estimator!r}, whose noise may depend '
          'on the past of the chain or of the data, and AMAGOLD is exact only '
          'where each step has a new minibatch (has_independent_noise). Take '
          'gradients.Uniform, Stratified, or ControlVariate, whose anchor '
          "stays. An estimator of one's own has to declare "
          'has_independent_noise = True where that is so.')
    if self._target.is_sharded:
      raise ValueError(
          'The data of the posterior are shared out, and the steps of AMAGOLD '
          'between two tests are a loop, inside which devices cannot add up. '
          'Take SGHMC, or a Posterior that holds all data.')

  @property
  def is_calibrated(self):
    return True

  @property
  def lives_on_batches(self):
    return False

  @property
  def why_no_excess(self):
    return (
        'AMAGOLD has the temperature T whatever its step size is. What tells '
        'of the step size is the share of accepted proposals: is_accepted in '
        'its results.')

  def _start(self, parts, estimate, estimator_results, seeds):
    log_prob = self._target(*parts)
    step = tf.zeros([], tf.int64)
    return AMAGOLDResults(
        step, log_prob, tf.ones_like(log_prob, tf.bool),
        tf.zeros_like(log_prob), self._counted(estimator_results),
        sghmc.initial_momentum(
            self._at_step('temperature', step, parts),
            self._noise(parts, seeds.noise)))

  def _counted(self, estimator_results):
    return gradients_lib.count(estimator_results, self._target.total_rows)

  def _one_step(self, parts, previous, seeds):
    h, gamma, temperature = (
        self._at_step(name, previous.step, parts)
        for name in ('step_size', 'friction', 'temperature'))
    before = previous.target_log_prob
    half = base.each(lambda h: h / 2., h)
    drag = base.each(lambda h, gamma: h * gamma / 2., h, gamma)
    scale = base.each(
        lambda h, gamma, t: tf.sqrt(2. * gamma * t * h), h, gamma, temperature)

    def body(k, theta, r, work, estimator_results):
      theta = [x + a * v for x, a, v in zip(theta, half, r)]
      estimate, estimator_results = self._estimator.one_step(
          self._target, theta, estimator_results,
          random.fold_in(seeds.gradient, k))
      noise = self._noise(theta, random.fold_in(seeds.noise, k))
      kicked = list(map(
          symmetric_kick, r, estimate.grads_target_log_prob, h, drag, scale,
          noise))
      work += sum(
          work_of_kick(*arguments, like=work) for arguments in zip(
              r, kicked, estimate.grads_target_log_prob, half))
      theta = [x + a * v for x, a, v in zip(theta, half, kicked)]
      return k + 1, theta, kicked, work, estimator_results

    num_steps = self._parameters['num_leapfrog_steps']
    _, proposal, momentum, work, estimator_results = tf.while_loop(
        lambda k, *_: k < num_steps, body,
        (0, list(parts), list(previous.momentum), tf.zeros_like(before),
         previous.gradient_estimator_results),
        maximum_iterations=num_steps)
    log_prob = self._target(*proposal)
    log_ratio = (log_prob - before - work) / tf.cast(
        temperature[0], before.dtype)
    u = random.uniform(compat.shape(before), seeds.accept, before.dtype)
    # A ratio that is no number is not accepted.
    is_accepted = tf.math.log(u) < log_ratio
    parts, log_prob, momentum = states.select(
        is_accepted, (proposal, log_prob, momentum),
        (list(parts), before, [-r for r in previous.momentum]))
    return parts, AMAGOLDResults(
        previous.step + 1, log_prob, is_accepted, log_ratio,
        self._counted(estimator_results), momentum)


def symmetric_kick(r, g, h, drag, scale, xi):
  """The second line of the module's docstring, of one part.

  `drag` is h gamma / 2 and `scale` sqrt(2 gamma T h).
  """
  return ((1. - drag) * r + scale * xi + h * g) / (1. + drag)


def work_of_kick(r, kicked, g, half, like):
  """h/2 g . (r + r') of one part, for each chain, in the dtype of `like`."""
  power = half * g * (r + kicked)
  return tf.cast(states.sum_event(power, like.shape.rank), like.dtype)
