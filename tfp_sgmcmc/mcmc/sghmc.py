"""Stochastic gradient Hamiltonian Monte Carlo: underdamped Langevin dynamics.

  d theta = r dt
  d r     = g dt - gamma r dt + sqrt(2 gamma T) dW

Chen et al. (2014), equation 13; equation 1 of the EWSG paper. With g the
estimate of the gradient of the log posterior density, at each step

  euler:  r     <- r + h g(theta) - h gamma r + sqrt(2 (gamma - B) T h) xi
          theta <- theta + h r                            with the new momentum

  explicit_euler:  the same, but for  theta <- theta + h r  with the old one

  baoab:  r     <- r + h/2 g(theta)                       g of the last step
          theta <- theta + h/2 r
          r     <- c r + sqrt((1 - c^2) (1 - B/gamma) T) xi,  c = e^(-gamma h)
          theta <- theta + h/2 r
          r     <- r + h/2 g(theta)                       the step's new g

In the symbols of Chen et al., eta = h^2, alpha = gamma h, v = r h and
beta = B h; "euler" is their equation 15, "explicit_euler" equation 3 of the
EWSG paper (Euler and Maruyama's). The momentum is never drawn anew.

With a diagonal preconditioner G and s = sqrt(G) these are the dynamics of
theta / s: s g stands for g, and h s r for h r in the step of theta.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import collectives
from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc import kernel
from tfp_sgmcmc import preconditioners
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.mcmc import base

__all__ = ['SGHMC', 'SGHMCResults']


@kernel.refuses_corrections
class SGHMCResults(NamedTuple):
  """Results of `SGHMC`.

  Attributes:
    step: `int64` scalar, the number of steps made.
    target_log_prob: The last estimate of the log density, shape `chains`: for
      "baoab" at the state after the step, else at the one before it.
    grads_target_log_prob: List with its gradient by each part.
    gradient_estimator_results: The state of the gradient estimator.
    momentum: List with r for each part, N(0, T I) at the start.

  And the method `failure(state)`; see `errors`.
  """
  step: tf.Tensor
  target_log_prob: tf.Tensor
  grads_target_log_prob: list[tf.Tensor]
  gradient_estimator_results: Any
  momentum: list[tf.Tensor]

  failure = base.failure  # type: ignore[misc]


class SGHMC(base.LangevinKernel):
  """Stochastic gradient Hamiltonian Monte Carlo (underdamped Langevin).

    r     <- r + h g - h gamma r + sqrt(2 (gamma - B) T h) xi,  xi ~ N(0, I)
    theta <- theta + h r

  ("euler"; for the others see the module's docstring). The stationary law of
  theta is that of density^(1/T) with an error of order h from minibatch noise;
  from the step itself, with the exact gradient, of order h^2 in the variance.
  On N(0, 1) with h = 0.1 and gamma = 1 the variance is 1.0026 ("euler"),
  exactly 1 ("baoab"). With "explicit_euler" it is 1.114, an error of order h /
  gamma, and at a curvature of L the chain blows up if h L >= gamma. Use it only
  to reproduce published results: "euler" costs no more. Minibatch noise of
  variance C acts as heat, of h C / (2 friction). The docstring of `SGLD` says
  how to choose h and the friction.

  #### Examples

  >>> x = tf.random.stateless_normal([1000], [0, 1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x), x)
  >>> kernel = sgmcmc.SGHMC(
  ...     posterior, step_size=0.01, friction=30.,
  ...     gradient_estimator=sgmcmc.gradients.Uniform(batch_size=100))
  >>> tfp.mcmc.sample_chain(
  ...     10, tf.zeros([50]), kernel=kernel, trace_fn=None, seed=[0, 0]).shape
  TensorShape([10, 50])

  #### References

  [1]: Tianqi Chen, Emily B. Fox, Carlos Guestrin. Stochastic Gradient
       Hamiltonian Monte Carlo. _ICML_, 2014.
  [2]: Benedict Leimkuhler and Charles Matthews. Rational Construction of
       Stochastic Numerical Methods for Molecular Sampling. _AMRX_, 2013.
  [3]: Ruilin Li, Xin Wang, Hongyuan Zha, Molei Tao. Improving Sampling Accuracy
       of Stochastic Gradient MCMC Methods via Non-uniform Subsampling of
       Gradients. _Discrete and Continuous Dynamical Systems S_, 2021. Equation
       3: "explicit_euler".
  """

  friction_argument = 'friction'

  def __init__(
      self,
      target_log_prob_fn: hints.LogDensity,
      step_size: hints.Schedule,
      friction: hints.Schedule,
      *,
      gradient_estimator: gradients_lib.GradientEstimator | None = None,
      integrator: str = 'euler',
      noise_estimate: hints.Nested = 0.,
      temperature: hints.Schedule = 1.,
      experimental_shard_axis_names: hints.ShardAxes = None,
      name: str | None = None,
      preconditioner: preconditioners.Preconditioner | None = None,
  ):
    """Makes the kernel.

    Args:
      target_log_prob_fn: `Posterior`, or a callable of the state's parts that
        returns the log density, one value a chain.
      step_size: h, in units of time: a positive number, a tensor that
        broadcasts with each part of the state, or a callable of the step
        counter (an `int64` scalar), such as a Keras schedule.
      friction: gamma, per unit of time: a positive number, or a tensor that
        broadcasts with each part of the state. The noise balances it, so it
        is what `SGNHT` calls `diffusion`.
      gradient_estimator: One of `tfp_sgmcmc.gradients`; None is the exact
        gradient.
      integrator: "euler", "baoab" or "explicit_euler".
      noise_estimate: B, an estimate of the noise that the gradient already
        brings, in units of friction (h times the variance of g, over 2 T); at
        most `friction`. The noise that is added is reduced by B.
      temperature: T, in the forms of `step_size`; zero gives descent with
        momentum.
      experimental_shard_axis_names: List with an entry for each part of the
        state: a name, such as "rows", for a part that is another piece on each
        replica of a `tf.distribute` strategy; None for one that all share.
        Default: those of a `ShardedPosterior`, else none.
      name: Python `str`, the name of the operations.
      preconditioner: `preconditioners.Diagonal(G)`, for parameters of unequal
        scales: near the variances of the posterior. With it h and friction are
        those of coordinates with variance 1. None is G = 1.

    Raises:
      ValueError: If a number is out of its range, the integrator is unknown,
        the estimate of the noise is larger than the friction, the
        preconditioner has no fixed G, or the estimator does not fit the
        posterior.
      TypeError: If the estimator needs a `Posterior` and gets a function.
    """
    checks.numeric('friction', friction, 0.)
    checks.numeric('noise_estimate', noise_estimate, 0., strict=False)
    checks.one_of(
        'integrator', integrator, ('euler', 'baoab', 'explicit_euler'))
    gamma = checks.static_value(friction)
    noise = checks.static_value(noise_estimate)
    if gamma is not None and noise is not None and (noise > gamma).any():
      raise ValueError(
          f'noise_estimate is {noise} and friction {gamma}: the noise of the '
          'gradient alone would be more than the friction can balance. Raise '
          'the friction, or lower the noise with a smaller step_size or larger '
          'minibatches.')
    base.check_fixed(preconditioner, 'SGHMC')
    super().__init__(dict(
        target_log_prob_fn=target_log_prob_fn,
        step_size=step_size,
        friction=friction,
        gradient_estimator=gradient_estimator,
        integrator=integrator,
        noise_estimate=noise_estimate,
        temperature=temperature,
        experimental_shard_axis_names=experimental_shard_axis_names,
        name=name,
        preconditioner=preconditioner))

  def _check_gaussian_step(self):
    parameters = self._parameters
    if parameters['integrator'] == 'baoab':
      raise ValueError(
          f'gradient_estimator is {self._estimator!r}, which weighs '
          'minibatches by what a step that is Gaussian given one gradient '
          'would do with them, and a step of integrator="baoab" is of two '
          "gradients, the last step's and its own. Take integrator=\"euler\", "
          'or another estimator.')
    amounts = [
        checks.static_value(parameters[name])
        for name in ('friction', 'noise_estimate')]
    if not any(amount is None for amount in amounts):
      difference = amounts[0] - amounts[1]
      self._check_noise(**{'friction - noise_estimate': difference})
    self._check_noise(temperature=parameters['temperature'])

  def _start(self, parts, estimate, estimator_results, seeds):
    step = tf.zeros([], tf.int64)
    self._check_broadcast('preconditioner', self._scale(parts), parts)
    temperature = self._at_step('temperature', step, parts)
    momentum = initial_momentum(temperature, self._noise(parts, seeds.noise))
    return SGHMCResults(step, *estimate, estimator_results, momentum)

  @property
  def stores_kicked_momentum(self):
    return self._parameters['integrator'] != 'baoab'

  @property
  def why_no_shards(self):
    return None

  @property
  def why_no_adaptive_time(self):
    return None

  def gradients_before(self, previous, results):
    if self._parameters['integrator'] == 'baoab':
      return previous.grads_target_log_prob
    return results.grads_target_log_prob

  @property
  def why_no_excess(self):
    integrator = self._parameters['integrator']
    if integrator == 'euler':
      return None
    reason = {
        'baoab': 'has no temperature that rises with the step size where the '
                 'gradient has no noise, so that its step size would grow '
                 'until the chain is lost',
        'explicit_euler': 'does not tell how hot a step makes the chain',
    }[integrator]
    return (
        f'SGHMC with integrator="{integrator}" {reason}. Take '
        'integrator="euler".')

  def excess(self, previous, results):
    """From the work that the gradient does on the momentum.

      measured:   (h g^2 + 2 (1 - h gamma) r . g) / (2 gamma T) - B / gamma
      predicted:  h dg^2 / (4 gamma T) - h r . dg / (4 T) - B / gamma

    by coordinate, with r the momentum that came to theta, g the gradient there
    and dg its change from the last step; where r is more than three times too
    hot, on its way to the mode, the predicted one is over a third of that. The
    first averages, since E|r|^2 and E|theta|^2 stay as they are, to

      (1 - h gamma / 2) E|r|^2 / (d T) - 1 = T_conf / T - 1.

    So the kinetic temperature of the momentum as it is stored, just after its
    kick, is more than T by the offset h gamma / 2, which does nothing to the
    law of theta and is not counted. On a Gaussian with curvature L this is
    h C / (2 gamma T) + h^2 L / 4, of noise of variance C and of the step.
    Beyond h = 1 / gamma, where friction alone turns the momentum round,
    h gamma - 1 is added to both.
    """
    scale = self._scale(results.grads_target_log_prob)
    gradients, old_gradients = (
        base.times(scale, r.grads_target_log_prob) for r in (results, previous))
    coefficients = [
        self._at_step(name, previous.step, gradients)
        for name in ('step_size', 'friction', 'noise_estimate', 'temperature')]
    heat = [
        _mean(tf.square(r) / t, own) for r, t, own in zip(
            previous.momentum, coefficients[-1],
            self._which_are_own(gradients))]
    found = [
        euler_excess(*arguments) for arguments in zip(
            previous.momentum, gradients, old_gradients, heat, *coefficients)]
    return base.Excess(*map(list, zip(*found)))

  def _one_step(self, parts, previous, seeds):
    step = previous.step
    coefficients = h, gamma, _, _ = [
        self._at_step(name, step, parts)
        for name in ('step_size', 'friction', 'noise_estimate', 'temperature')]
    noise = self._noise(parts, seeds.noise)
    metric = self._scale(parts)
    way = base.times(metric, h)
    integrator = self._parameters['integrator']
    if integrator != 'baoab':
      euler = euler_step if integrator == 'euler' else explicit_euler_step
      drag = base.each(tf.multiply, h, gamma)
      scale = base.each(euler_noise, *coefficients)
      estimate, estimator_results = self._estimate(
          parts, previous, seeds, lambda: gradients_lib.GaussianStep(
              previous.momentum,
              [-d * r for d, r in zip(drag, previous.momentum)], way, scale))
      moved = map(
          euler, parts, previous.momentum,
          base.times(metric, estimate.grads_target_log_prob), h, way, drag,
          scale, noise)
      parts, momentum = map(list, zip(*moved))
    else:
      half = base.each(lambda h: h / 2., h)
      decay = base.each(lambda h, gamma: tf.exp(-gamma * h), h, gamma)
      scale = base.each(baoab_noise, *coefficients)
      moved = map(
          baoa_step, parts, previous.momentum,
          base.times(metric, previous.grads_target_log_prob), half,
          base.times(metric, half), decay, scale, noise)
      parts, momentum = map(list, zip(*moved))
      estimate, estimator_results = self._estimate(parts, previous, seeds)
      momentum = [
          r + h * g for r, h, g in zip(
              momentum, half,
              base.times(metric, estimate.grads_target_log_prob))]
    return parts, SGHMCResults(
        step + 1, *estimate, estimator_results, momentum)


def initial_momentum(
    temperature: Sequence[tf.Tensor], noise: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
  """A momentum of N(0, T I) for each part, from standard normal numbers."""
  return [
      s * xi for s, xi in zip(base.each(tf.sqrt, temperature), noise)]


def euler_noise(h, gamma, b, t):
  """The standard deviation of the noise of a kick, of one part."""
  return tf.sqrt(2. * (gamma - b) * t * h)


def kick(r, g, h, drag, scale, xi):
  """Gradient, friction and noise on the momentum of one part.

  `drag` is h gamma, `scale` that of `euler_noise`.
  """
  # The gradient comes last: outside XLA the other terms are computed meanwhile.
  return r - drag * r + scale * xi + h * g


def euler_step(theta, r, g, h, way, drag, scale, xi):
  """Kick, then drift with the new momentum, of one part; `way` is h s."""
  r = kick(r, g, h, drag, scale, xi)
  return theta + way * r, r


def explicit_euler_step(theta, r, g, h, way, drag, scale, xi):
  """Kick and drift, both from the old momentum, of one part."""
  return theta + way * r, kick(r, g, h, drag, scale, xi)


def euler_excess(r, g, old_g, heat, h, gamma, b, t):
  """The `excess` of one part; `heat` is the mean of r^2 / T."""
  change = g - old_g
  rest = tf.nn.relu(h * gamma - 1.) - b / gamma
  measured = (h * tf.square(g) + 2. * (1. - h * gamma) * r * g) / (
      2. * gamma * t)
  predicted = h / (4. * t) * (tf.square(change) / gamma - r * change)
  predicted /= tf.maximum(heat / 3., 1.)
  return measured + rest, predicted + rest, 1. / (h * gamma)


def _mean(part, is_own):
  """Over a part; with the pieces that all replicas have, where it is own."""
  if not is_own:
    return tf.reduce_mean(part)
  total, number = collectives.all_reduce(
      [tf.reduce_sum(part), tf.cast(tf.size(part), part.dtype)])
  return total / number


def baoab_noise(h, gamma, b, t):
  """The standard deviation of the noise in the middle of BAOAB."""
  return tf.sqrt(-tf.math.expm1(-2. * gamma * h) * (1. - b / gamma) * t)


def baoa_step(theta, r, g, half, way, decay, scale, xi):
  """The first four fifths of BAOAB, of one part; a half kick remains.

  `half` is h / 2, `way` h s / 2, `decay` e^(-gamma h), `scale` that of
  `baoab_noise`.
  """
  r = r + half * g
  theta = theta + way * r
  r = decay * r + scale * xi
  return theta + way * r, r
