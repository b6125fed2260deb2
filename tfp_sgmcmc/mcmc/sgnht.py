"""Stochastic gradient Nose-Hoover thermostat.

Ding et al. (2014), algorithm 1. With g the estimate of the gradient of the log
posterior density, p the momentum and d the number of coordinates,

  p     <- p + h g - h xi p + sqrt(2 A T h) N(0, I)
  theta <- theta + h p                                     with the new momentum
  xi    <- xi + h (p' p / d - T)                           scalar thermostat
  xi_i  <- xi_i + h (p_i^2 - T)                            diagonal
  Xi    <- Xi + h (p p' - T I) / mu                        matrix, equation 11

The thermostat xi takes up the unknown noise of the gradient: its mean is A plus
that noise. The scalar is equation 11 with mu = d; the diagonal is Li et al.
(2015). In the symbols of algorithm 2 of the paper, eta = h^2, a = A h,
u = p h and alpha = xi h: `step_size=sqrt(eta)`, `diffusion=a / sqrt(eta)`.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import collectives
from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc import kernel
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.mcmc import base
from tfp_sgmcmc.mcmc import sghmc

__all__ = ['SGNHT', 'SGNHTResults']


@kernel.refuses_corrections
class SGNHTResults(NamedTuple):
  """Results of `SGNHT`.

  Attributes:
    step: `int64` scalar, the number of steps made.
    target_log_prob: The estimate of the log density with which the step was
      made, at the state before it; shape `chains`.
    grads_target_log_prob: List with its gradient by each part.
    gradient_estimator_results: The state of the gradient estimator.
    momentum: List with p for each part, N(0, T I) at the start.
    thermostat: xi: shape `chains` ("scalar"), a list in the shapes of the parts
      ("diagonal"), or `chains + [d, d]` ("matrix"); A at the start.

  And the method `failure(state)`; see `errors`.
  """
  step: tf.Tensor
  target_log_prob: tf.Tensor
  grads_target_log_prob: list[tf.Tensor]
  gradient_estimator_results: Any
  momentum: list[tf.Tensor]
  thermostat: Any

  failure = base.failure


class SGNHT(base.LangevinKernel):
  """Stochastic gradient Nose-Hoover thermostat.

    p     <- p + h g - h xi p + sqrt(2 A T h) N(0, I)
    theta <- theta + h p
    xi    <- xi + h (p' p / d - T)

  The friction xi adapts until the kinetic energy is that of temperature T, and
  so makes up for gradient noise of unknown size, provided that it is about the
  same in all directions ("scalar"), or about the same along the way
  ("diagonal", "matrix"). d counts all coordinates of all parts of one chain.

  Mass and burn-in: the thermostat comes to rest within about mu xi / T units of
  time, mu being `thermostat_mass` and xi the friction at which it ends, A plus
  the noise of the gradient: mu xi / (T h) steps. With mu = 1, xi = 10 and
  h = 0.001 these are 10,000 steps, and burn-in has to be several times as long:
  less only if A, where xi starts, is near where it ends. A smaller mu is
  faster, down to where xi follows the momentum's own fluctuation, within about
  1 / xi units of time, and swings: mu from 2 T / xi^2 up. Trace
  `results.thermostat`, and let burn-in last until it stands. How to choose h is
  in the docstring of `SGLD`.

  #### Examples

  >>> x = tf.random.stateless_normal([1000], [0, 1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x), x)
  >>> kernel = sgmcmc.SGNHT(
  ...     posterior, step_size=0.001, diffusion=10.,
  ...     gradient_estimator=sgmcmc.gradients.Uniform(batch_size=100))
  >>> _, thermostat = tfp.mcmc.sample_chain(
  ...     10, tf.zeros([50]), kernel=kernel, seed=[0, 0],
  ...     trace_fn=lambda _, results: results.thermostat)
  >>> thermostat.shape
  TensorShape([10, 50])

  #### References

  [1]: Nan Ding, Youhan Fang, Ryan Babbush, Changyou Chen, Robert D. Skeel,
       Hartmut Neven. Bayesian Sampling Using Stochastic Gradient Thermostats.
       _NeurIPS_, 2014.
  [2]: Chunyuan Li, Changyou Chen, Kai Fan, Lawrence Carin. High-Order
       Stochastic Gradient Thermostats for Bayesian Learning of Deep Models.
       _AAAI_, 2016; arXiv:1512.07662, 2015.
  """

  friction_argument = 'diffusion'

  def __init__(
      self,
      target_log_prob_fn: Any,
      step_size: Any,
      diffusion: Any,
      gradient_estimator: gradients_lib.GradientEstimator | None = None,
      thermostat: str = 'scalar',
      thermostat_mass: Any = 1.,
      temperature: Any = 1.,
      experimental_shard_axis_names: Any = None,
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      target_log_prob_fn: `Posterior`, or a callable of the state's parts that
        returns the log density, one value a chain.
      step_size: h, in units of time: a positive number, a tensor that
        broadcasts with each part of the state, or a callable of the step
        counter (an `int64` scalar), such as a Keras schedule.
      diffusion: A, per unit of time: a number of at least zero; the noise that
        is added, and the friction at the start.
      gradient_estimator: One of `tfp_sgmcmc.gradients`; None is the exact
        gradient.
      thermostat: "scalar" (one friction a chain), "diagonal" (one a
        coordinate: mSGNHT) or "matrix" (d by d, for small d).
      thermostat_mass: mu, a positive number: the inertia of the thermostat,
        by which its change is divided. The default is that of the update
        above: in equation 11 of the paper, mu = d for the scalar thermostat,
        mu = 1 for the others.
      temperature: T, in the forms of `step_size`.
      experimental_shard_axis_names: List with an entry for each part of the
        state: a name, such as "rows", for a part that is another piece on each
        replica of a `tf.distribute` strategy; None for one that all share.
        Default: those of a `ShardedPosterior`, else none.
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If a number is out of its range, the thermostat is unknown, or
        the estimator does not fit the posterior.
      TypeError: If the estimator needs a `Posterior` and gets a function.
    """
    checks.numeric('diffusion', diffusion, 0., strict=False)
    checks.numeric('thermostat_mass', thermostat_mass, 0.)
    checks.one_of('thermostat', thermostat, tuple(_THERMOSTATS))
    super().__init__(dict(
        target_log_prob_fn=target_log_prob_fn,
        step_size=step_size,
        diffusion=diffusion,
        gradient_estimator=gradient_estimator,
        thermostat=thermostat,
        thermostat_mass=thermostat_mass,
        temperature=temperature,
        experimental_shard_axis_names=experimental_shard_axis_names,
        name=name))
    self._thermostat = _THERMOSTATS[thermostat]

  def _start(self, parts, estimate, estimator_results, seeds):
    step = tf.zeros([], tf.int64)
    temperature = self._at_step('temperature', step, parts)
    diffusion = self._at_step('diffusion', step, parts)
    momentum = sghmc.initial_momentum(
        temperature, self._noise(parts, seeds.noise))
    thermostat = self._thermostat.start(
        diffusion, parts, estimate.target_log_prob, self._which_are_own(parts))
    return SGNHTResults(
        step, *estimate, estimator_results, momentum, thermostat)

  @property
  def balances_noise(self):
    return True

  @property
  def why_no_shards(self):
    if self._parameters['thermostat'] != 'matrix':
      return None
    return (
        'thermostat is "matrix", over all pairs of coordinates, and parts of '
        'the state are other pieces on each replica '
        '(experimental_shard_axis_names), of which none sees all coordinates: '
        'take "scalar" or "diagonal".')

  @property
  def why_no_excess(self):
    return (
        'The thermostat of SGNHT holds the temperature at T whatever the step '
        'size is, so that the step size cannot be told by it. Choose it as the '
        'docstring of SGLD says, or take SGHMC.')

  def _check_gaussian_step(self):
    self._check_noise(
        diffusion=self._parameters['diffusion'],
        temperature=self._parameters['temperature'])

  def _one_step(self, parts, previous, seeds):
    step_size, diffusion, mass, temperature = (
        self._at_step(name, previous.step, parts) for name in (
            'step_size', 'diffusion', 'thermostat_mass', 'temperature'))
    noise = self._noise(parts, seeds.noise)
    chain_rank = previous.target_log_prob.shape.rank
    friction_force = self._thermostat.force(
        previous.thermostat, previous.momentum, chain_rank)
    noise_scale = base.each(
        lambda a, t, h: tf.sqrt(2. * a * t * h),
        diffusion, temperature, step_size)
    estimate, estimator_results = self._estimate(
        parts, previous, seeds, lambda: gradients_lib.GaussianStep(
            previous.momentum,
            [-h * f for h, f in zip(step_size, friction_force)],
            step_size, noise_scale))
    parts, momentum, thermostat = thermostat_step(
        self._thermostat, parts, previous.momentum, previous.thermostat,
        estimate.grads_target_log_prob, friction_force, step_size, mass,
        temperature, noise_scale, noise, chain_rank,
        self._which_are_own(parts))
    return parts, SGNHTResults(
        previous.step + 1, *estimate, estimator_results, momentum, thermostat)


def thermostat_step(
    rule: Any,
    parts: Sequence[tf.Tensor],
    momentum: Sequence[tf.Tensor],
    thermostat: Any,
    gradients: Sequence[tf.Tensor],
    force: Sequence[tf.Tensor],
    step_size: Sequence[tf.Tensor],
    mass: Sequence[tf.Tensor],
    temperature: Sequence[tf.Tensor],
    noise_scale: Sequence[tf.Tensor],
    noise: Sequence[tf.Tensor],
    chain_rank: int,
    is_own: Sequence[bool],
) -> tuple[list[tf.Tensor], list[tf.Tensor], Any]:
  """Algorithm 1 of Ding et al. (2014), of all parts.

    p     <- p + h g - h f + s z,    f = xi p,  s = sqrt(2 A T h)
    theta <- theta + h p
    xi    <- xi + h / mu (p' p / d - T)

  `rule` is one of `_THERMOSTATS`, which says what xi p is (`force`) and how xi
  moves, and `thermostat` is xi as it keeps it; `noise_scale` is s and `noise`
  z. But for `chain_rank` the others are lists over the parts; `is_own` says
  which of them are other pieces on each replica.
  """
  momentum = [
      p - h * f + s * z + h * g
      for p, h, g, f, s, z in zip(
          momentum, step_size, gradients, force, noise_scale, noise)]
  parts = [theta + h * p for theta, h, p in zip(parts, step_size, momentum)]
  rate = base.each(lambda h, mu: h / mu, step_size, mass)
  return parts, momentum, rule.update(
      thermostat, momentum, rate, temperature, chain_rank, is_own)


class _Scalar:
  """xi: one number a chain; xi <- xi + h (p' p / d - T)."""

  @staticmethod
  def start(diffusion, parts, target_log_prob, is_own):
    return _mean(
        [tf.zeros_like(part) + a for part, a in zip(parts, diffusion)],
        target_log_prob.dtype, target_log_prob.shape.rank, is_own)

  @staticmethod
  def force(xi, momentum, chain_rank):
    del chain_rank
    return [tf.cast(states.expand(xi, p), p.dtype) * p for p in momentum]

  @staticmethod
  def update(xi, momentum, rate, temperature, chain_rank, is_own):
    """Averages h (p_i^2 - T) over all coordinates of all parts of a chain."""
    if any(x.shape.rank != 0 for x in (*rate, *temperature)):
      return xi + _mean(
          [h * (tf.square(p) - t)
           for p, h, t in zip(momentum, rate, temperature)],
          xi.dtype, chain_rank, is_own)
    # Of one sum of squares, which XLA computes once if others ask for it too.
    if not any(is_own):
      momentum = states.joined(momentum, chain_rank)
      is_own = [False] * len(momentum)
    mean = _mean(
        [tf.square(p) for p in momentum], xi.dtype, chain_rank, is_own)
    h, t = (tf.cast(x[0], xi.dtype) for x in (rate, temperature))
    return xi + h * (mean - t)


def _mean(parts, dtype, chain_rank, is_own):
  """The mean over all coordinates of a chain, those of all replicas."""
  total, number = collectives.totals(
      dtype, is_own,
      [tf.cast(states.sum_event(x, chain_rank), dtype) for x in parts],
      [states.num_coordinates([x], chain_rank) for x in parts])
  return total / number


class _Diagonal:
  """xi_i: one number a coordinate; xi_i <- xi_i + h (p_i^2 - T)."""

  @staticmethod
  def start(diffusion, parts, target_log_prob, is_own):
    del target_log_prob, is_own
    return [tf.zeros_like(part) + a for part, a in zip(parts, diffusion)]

  @staticmethod
  def force(xi, momentum, chain_rank):
    del chain_rank
    return [x * p for x, p in zip(xi, momentum)]

  @staticmethod
  def update(xi, momentum, rate, temperature, chain_rank, is_own):
    del chain_rank, is_own
    return [
        x + h * (tf.square(p) - t)
        for x, p, h, t in zip(xi, momentum, rate, temperature)]


class _Matrix:
  """Xi: a matrix over all coordinates; Xi <- Xi + h (p p' - T I)."""

  @staticmethod
  def start(diffusion, parts, target_log_prob, is_own):
    del is_own
    flat = states.flatten(
        [tf.zeros_like(part) + a for part, a in zip(parts, diffusion)],
        target_log_prob.shape.rank)
    return _diagonal(flat)

  @staticmethod
  def force(xi, momentum, chain_rank):
    flat = states.flatten(momentum, chain_rank)
    return states.unflatten(tf.linalg.matvec(xi, flat), momentum, chain_rank)

  @staticmethod
  def update(xi, momentum, rate, temperature, chain_rank, is_own):
    del is_own
    p, h, t = (
        states.flatten(
            [tf.zeros_like(p) + v for p, v in zip(momentum, values)],
            chain_rank)
        for values in (momentum, rate, temperature))
    outer = p[..., :, tf.newaxis] * p[..., tf.newaxis, :]
    return xi + h[..., tf.newaxis] * (outer - _diagonal(t))


def _diagonal(values):
  """As `tf.linalg.diag`, but never a literal of a program."""
  size = compat.shape(values)[-1]
  i = tf.reshape(compat.positions(size), [size])
  return tf.where(
      i == i[:, tf.newaxis], values[..., tf.newaxis],
      tf.zeros([], values.dtype))


_THERMOSTATS = {'scalar': _Scalar, 'diagonal': _Diagonal, 'matrix': _Matrix}
