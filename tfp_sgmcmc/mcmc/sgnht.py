"""Stochastic gradient Nose-Hoover thermostat.

  d theta = s p dt
  d p     = s g dt - xi p dt + sqrt(2 A T) dW
  d xi    = (p' p / d - T) / mu dt

with g the estimate of the gradient of the log posterior density, p the
momentum, d the number of coordinates, and s = 1, or the root of a diagonal
preconditioner: these are then the dynamics of theta / s. The thermostat xi
takes up the unknown noise of the gradient: its mean is A plus that noise. By
the kind of thermostat

  p' p / d - T      scalar
  p' p / d_l - T    part: in each part l of the state, over its d_l coordinates
  p_i^2 - T         diagonal: in each coordinate (Li et al., 2015)
  p p' - T I        matrix (Ding et al., 2014, equation 11)

drives it. The scalar is equation 11 with mu = d.

"badodab" is the symmetric splitting of Leimkuhler and Shang (2016), of second
order in h, with one gradient a step:

  B  p     <- p + h/2 s g(theta)                    g of the last step
  A  theta <- theta + h/2 s p
  D  xi    <- xi + h/2 (p' p / d - T) / mu
  O  p     <- e p + c z,  e = exp(-xi h),  z ~ N(0, I)
     c^2    = A T (1 - e^2) / xi - h^2 V (1 + e)^2 / 4
  D  xi    <- xi + h/2 (p' p / d - T) / mu
  A  theta <- theta + h/2 s p
  B  p     <- p + h/2 s g(theta)                    the step's new g

V is `noise_estimate`, the variance of s g. Its second term: the noise n of a
gradient kicks twice by h/2, with nothing between, so that h n is added before
an O. Such a kick moves theta by (1 + e) / 2 times what the same kick within O
does, in all steps to come: h/2 (1 + e) / (1 - e) to h / (1 - e), where the
force is weak. So it acts as noise of variance h^2 V (1 + e)^2 / 4 in O, which
is left out there. c^2 is at least a twentieth of its first term. For the
matrix thermostat O is itself a symmetric splitting, see `thermostats`.

"euler" is algorithm 1 of Ding et al. (2014):

  p     <- p + h s g - h xi p + sqrt(2 A T h - h^2 V) z
  theta <- theta + h s p                            with the new momentum
  xi    <- xi + h (p' p / d - T) / mu

In the symbols of algorithm 2 there, eta = h^2, a = A h, u = p h and
alpha = xi h: `step_size=sqrt(eta)`, `diffusion=a / sqrt(eta)`. It is cold at
first order. The thermostat holds the momentum just after its kick at T, which
is hotter than theta: since E|theta|^2 and E[theta' p] stay as they are,

  E[-theta' g] / d = (1 - h xi / 2) T

for any density centred at 0: the temperature of theta, on a Gaussian its
variance over the true one. There xi h = 1 - sqrt(1 - 2 A h) with exact
gradients, and more with noise.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import collectives
from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc import kernel
from tfp_sgmcmc import preconditioners
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.mcmc import base
from tfp_sgmcmc.mcmc import sghmc
from tfp_sgmcmc.mcmc import thermostats

__all__ = ['SGNHT', 'SGNHTResults']


@kernel.refuses_corrections
class SGNHTResults(NamedTuple):
  """Results of `SGNHT`.

  Attributes:
    step: `int64` scalar, the number of steps made.
    target_log_prob: The last estimate of the log density, shape `chains`: for
      "badodab" at the state after the step, for "euler" at the one before it.
    grads_target_log_prob: List with its gradient by each part.
    gradient_estimator_results: The state of the gradient estimator.
    momentum: List with p for each part, N(0, T I) at the start.
    thermostat: xi: shape `chains` ("scalar"), a list over the parts of this
      shape ("part") or in the shapes of the parts ("diagonal"), or
      `chains + [d, d]` ("matrix"); A at the start. Of "part" with `part_sizes`
      a list of one tensor, `chains + [l]` for l sizes.

  And the method `failure(state)`; see `errors`.
  """
  step: tf.Tensor
  target_log_prob: tf.Tensor
  grads_target_log_prob: list[tf.Tensor]
  gradient_estimator_results: Any
  momentum: list[tf.Tensor]
  thermostat: Any

  failure = base.failure  # type: ignore[misc]


class SGNHT(base.LangevinKernel):
  """Stochastic gradient Nose-Hoover thermostat.

    d theta = p dt,  dp = g dt - xi p dt + sqrt(2 A T) dW
    d xi    = (p' p / d - T) / mu dt

  in steps of h, by one of two integrators (the module's docstring has their
  steps):

  - "badodab", the default: a symmetric splitting. The bias is of order h^2, and
    on a Gaussian with exact gradients the variance is right for any stable h.
  - "euler", as published: the chain is too cold by the share h xi / 2. With h
    xi = 0.1, which is a momentum of 0.9 in SGD's terms, the variance of a
    Gaussian is 0.95 of the true one, whatever h is. Use it to reproduce
    published results, and for `ExponentiallyWeighted` minibatches.

  The friction xi adapts until the kinetic energy is that of temperature T. So
  it compensates for gradient noise of unknown size. The noise has to be about
  the same in all directions ("scalar"), within each part of the state ("part"),
  or along the way ("diagonal", "matrix"). d counts all coordinates of all parts
  of one chain.

  Mass and burn-in: the thermostat settles within about mu xi / T units of time,
  which are mu xi / (T h) steps. Here mu is `thermostat_mass`, and xi the final
  friction, A plus the noise of the gradient. With mu = 1, xi = 10 and h = 0.001
  these are 10,000 steps. Burn-in has to be several times as long, unless A,
  where xi starts, is near the final xi. A smaller mu is faster. If it is too
  small, xi follows the momentum's own fluctuation, within about 1 / xi units of
  time, and oscillates: take mu from 2 T / xi^2 up. Trace `results.thermostat`,
  and let burn-in last until it has settled. The docstring of `SGLD` says how to
  choose h.

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
  [3]: Benedict Leimkuhler and Xiaocheng Shang. Adaptive Thermostats for Noisy
       Gradient Systems. _SIAM Journal on Scientific Computing_ 38, 2016.
       BADODAB.
  """

  friction_argument = 'diffusion'

  def __init__(
      self,
      target_log_prob_fn: hints.LogDensity,
      step_size: hints.Schedule,
      diffusion: hints.Schedule,
      *,
      gradient_estimator: gradients_lib.GradientEstimator | None = None,
      thermostat: str = 'scalar',
      thermostat_mass: hints.TensorLike = 1.,
      temperature: hints.Schedule = 1.,
      experimental_shard_axis_names: hints.ShardAxes = None,
      name: str | None = None,
      integrator: str | None = None,
      preconditioner: preconditioners.Preconditioner | None = None,
      noise_estimate: hints.Nested = 0.,
      friction: hints.Schedule = 0.,
      part_sizes: Sequence[int] | None = None,
  ):
    """Makes the kernel.

    Args:
      target_log_prob_fn: `Posterior`, or a callable of the state's parts that
        returns the log density, one value a chain.
      step_size: h, in units of time: a positive number, a tensor that
        broadcasts with each part of the state, or a callable of the step
        counter (an `int64` scalar), such as a Keras schedule.
      diffusion: A, per unit of time: a number of at least zero. It sets the
        noise that is added, and the friction at the start. In `SGHMC` one
        number, `friction`, sets both throughout; here the thermostat changes
        the friction.
      gradient_estimator: One of `tfp_sgmcmc.gradients`; None is the exact
        gradient.
      thermostat: "scalar" (one friction a chain), "part" (one for each part of
        the state, such as a layer's weights), "diagonal" (one a coordinate:
        mSGNHT) or "matrix" (d by d, for small d).
      thermostat_mass: mu, a positive number: the inertia of the thermostat,
        which divides its change. The default is that of the update above: in
        equation 11 of the paper, mu = d for the scalar thermostat, mu = 1 for
        the others.
      temperature: T, in the forms of `step_size`.
      experimental_shard_axis_names: List with an entry for each part of the
        state: a name, such as "rows", for a part that is another piece on each
        replica of a `tf.distribute` strategy; None for one that all share.
        Default: those of a `ShardedPosterior`, else none.
      name: Python `str`, the name of the operations.
      integrator: "badodab", of second order in h, or "euler", the published
        scheme, of first order. None is "badodab"; with an estimator that needs
        a step that is Gaussian given one gradient (`ExponentiallyWeighted`)
        it is "euler".
      preconditioner: `preconditioners.Diagonal(G)`: a fixed metric, s = sqrt(G)
        below. None is G = 1.
      noise_estimate: V, an estimate of the variance of s g, the gradient that
        the momentum sees, by coordinate, at least 0: a number, a tensor that
        broadcasts with each part of the state, or a list with one of these for
        each part. The added noise is reduced by it (see the module's
        docstring), down to a twentieth of its variance. The thermostat
        compensates for errors of V.
      friction: gamma, a Langevin friction beside the thermostat, per unit of
        time, with the noise that balances it: in the forms of `noise_estimate`.
        It replaces xi by xi + gamma in O, and A by A + gamma. With A = 0 the
        thermostat then compensates only for unknown noise.
      part_sizes: List of Python `int`s, for a state of one vector in which
        parts lie side by side along the last axis: how many coordinates each
        of them has. `thermostat="part"` has a friction for each of them, and
        `SelfTuning` goes by them too. One vector in place of many small parts
        takes fewer operations. None: the parts are those of the state. Not
        with `experimental_shard_axis_names`.

    Raises:
      ValueError: If a number is out of its range, the thermostat or the
        integrator is unknown, the preconditioner has no fixed G, the
        estimator does not fit the posterior or the integrator, or the state
        is not one vector of the given parts.
      TypeError: If the estimator needs a `Posterior` and gets a function, or
        an argument is of the wrong type.
    """
    checks.numeric('diffusion', diffusion, 0., strict=False)
    checks.numeric('thermostat_mass', thermostat_mass, 0.)
    checks.one_of(
        'thermostat', thermostat, tuple(thermostats.THERMOSTATS))
    checks.one_of('integrator', integrator, (None, 'badodab', 'euler'))
    for value in _listed(noise_estimate):
      checks.numeric('noise_estimate', value, 0., strict=False)
    for value in _listed(friction):
      checks.numeric('friction', value, 0., strict=False)
    base.check_fixed(preconditioner, 'SGNHT')
    if part_sizes is not None:
      if not isinstance(part_sizes, (list, tuple)) or not part_sizes:
        raise ValueError(
            f'part_sizes is {part_sizes!r}: it has to be a list of how many '
            'coordinates each part of the vector has.')
      part_sizes = tuple(
          checks.positive_integer('each of part_sizes', size)
          for size in part_sizes)
    self._integrator = integrator or (
        'euler' if getattr(gradient_estimator, 'needs_gaussian_step', False)
        else 'badodab')
    super().__init__(dict(
        target_log_prob_fn=target_log_prob_fn,
        step_size=step_size,
        diffusion=diffusion,
        gradient_estimator=gradient_estimator,
        thermostat=thermostat,
        thermostat_mass=thermostat_mass,
        temperature=temperature,
        experimental_shard_axis_names=experimental_shard_axis_names,
        name=name,
        integrator=integrator,
        preconditioner=preconditioner,
        noise_estimate=noise_estimate,
        friction=friction,
        part_sizes=part_sizes))
    self._check_friction()
    if (part_sizes is not None
        and self.experimental_shard_axis_names is not None):
      raise ValueError(
          'part_sizes is given, for a state of one vector, and parts of the '
          'state are other pieces on each replica '
          '(experimental_shard_axis_names): leave one of them out.')

  @property
  def integrator(self) -> str:
    """"badodab" or "euler"."""
    return self._integrator

  @property
  def _thermostat(self):
    sizes = self._parameters['part_sizes']
    if sizes is not None and self._parameters['thermostat'] == 'part':
      return thermostats.by_pieces(sizes)
    return thermostats.THERMOSTATS[self._parameters['thermostat']]

  def _start(self, parts, estimate, estimator_results, seeds):
    step = tf.zeros([], tf.int64)
    self._check_shapes(parts)
    self._check_sizes(parts, estimate.target_log_prob.shape.rank)
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

  def friction_of_noise(self, num_coordinates):
    """A + gamma where each is one number above 0 in all, else None."""
    del num_coordinates
    values = [
        checks.static_value(self._parameters[name])
        for name in ('diffusion', 'friction')
        if not isinstance(self._parameters[name], (list, tuple))]
    if len(values) < 2 or any(v is None or v.ndim for v in values):
      return None
    return float(sum(values)) or None

  @property
  def why_no_shards(self):
    if self._parameters['thermostat'] != 'matrix':
      return None
    return (
        'thermostat is "matrix", over all pairs of coordinates, and parts of '
        'the state are other pieces on each replica '
        '(experimental_shard_axis_names), of which none sees all coordinates: '
        'take "scalar", "part" or "diagonal".')

  @property
  def why_no_excess(self):
    return (
        'The thermostat of SGNHT holds the temperature at T whatever the step '
        'size is, so that the step size cannot be told by it. Choose it as the '
        'docstring of SGLD says, or take SGHMC.')

  def energy_error(
      self,
      previous: SGNHTResults,
      results: SGNHTResults,
      estimate_before: gradients_lib.GradientEstimate,
  ) -> tf.Tensor:
    """The energy that a step of "badodab" makes, heat not counted.

    With L the estimate of the log density and g that of its gradient, times s,
    both with the minibatch of the new gradient, at the old position (0) and at
    the new one (1), p0 and p1 the momentum before and after the step, and g0*
    the stored gradient that kicked first,

      -(L1 - L0) + h/2 g1 . (p1 - h/4 g1) + h/2 g0 . (p0 + h/2 g0* - h/4 g0),

    the change of -L + p' p / 2 in the kicks and the drifts. The energy
    exchanged by the friction, the noise and the thermostat is left out, so the
    error is zero for an exact flow. On a smooth density it is of order h^3
    without friction and noise, and with them it varies by order h^(5/2).

    Args:
      previous: The kernel's results before the step.
      results: Those after it.
      estimate_before: `GradientEstimate` at the state before the step, of the
        minibatch of `results.grads_target_log_prob`.

    Returns:
      energy_error: Shape `chains`.

    Raises:
      ValueError: If the integrator is "euler".

    #### Examples

    >>> kernel = sgmcmc.SGNHT(
    ...     lambda x: -tf.reduce_sum(x**2, -1) / 2., step_size=0.1,
    ...     diffusion=1.)
    >>> state = tf.ones([3])
    >>> previous = kernel.bootstrap_results(state)
    >>> _, results = kernel.one_step(state, previous, seed=[0, 0])
    >>> before = sgmcmc.gradients.GradientEstimate(
    ...     previous.target_log_prob, previous.grads_target_log_prob)
    >>> abs(float(kernel.energy_error(previous, results, before))) < 0.05
    True
    """
    if self._integrator != 'badodab':
      raise ValueError(
          'The energy error is that of a step of integrator="badodab", and the '
          'integrator is "euler".')
    gradients = results.grads_target_log_prob
    scale = self._scale(gradients)
    half = base.each(
        lambda h: h / 2., self._at_step('step_size', previous.step, gradients))
    old, new, before = (
        base.times(scale, g) for g in (
            previous.grads_target_log_prob, gradients,
            estimate_before.grads_target_log_prob))
    work = [
        h * (g1 * (p1 - h / 2. * g1) + g0 * (p0 + h * (kick - g0 / 2.)))
        for h, g0, g1, p0, p1, kick in zip(
            half, before, new, previous.momentum, results.momentum, old)]
    log_prob = results.target_log_prob
    total, = collectives.totals(
        log_prob.dtype, self._which_are_own(work), [
            tf.cast(states.sum_event(x, log_prob.shape.rank), log_prob.dtype)
            for x in work])
    return estimate_before.target_log_prob - log_prob + total

  def _check_gaussian_step(self):
    if self._integrator == 'badodab':
      raise ValueError(
          f'gradient_estimator is {self._estimator!r}, which weighs '
          'minibatches by what a step that is Gaussian given one gradient '
          'would do with them, and a step of integrator="badodab" is of two '
          "gradients, the last step's and its own. Take integrator=\"euler\", "
          'or another estimator.')
    self._check_noise(
        diffusion=self._parameters['diffusion'],
        temperature=self._parameters['temperature'])

  def _check_friction(self):
    """Raises where a friction beside the thermostat is not available."""
    values = [
        checks.static_value(v) for v in _listed(self._parameters['friction'])]
    if all(v is not None and np.all(v == 0.) for v in values):
      return
    for name, value in (
        ('integrator', self._integrator),
        ('thermostat', self._parameters['thermostat'])):
      if value in ('euler', 'matrix'):
        raise ValueError(
            f'friction is given and {name} is "{value}", which has no friction '
            'beside the thermostat: leave friction out, or take '
            'integrator="badodab" with another thermostat.')

  def _check_shapes(self, parts):
    """Raises where G, V or gamma is of other shapes than the state."""
    for name, values in (
        ('preconditioner', self._scale(parts)),
        ('noise_estimate', self._by_part('noise_estimate', parts)),
        ('friction', self._by_part('friction', parts))):
      self._check_broadcast(name, values, parts)

  def _check_sizes(self, parts, chain_rank):
    """Raises where the state is not one vector of parts of `part_sizes`."""
    sizes = self._parameters['part_sizes']
    if sizes is None:
      return
    shapes = [part.shape[chain_rank:] for part in parts]
    if len(shapes) != 1 or not shapes[0].is_compatible_with([sum(sizes)]):
      raise ValueError(
          f'part_sizes is {list(sizes)}, for a state of one vector of '
          f'{sum(sizes)} coordinates, and the state of a chain has the shapes '
          f'{[shape.as_list() for shape in shapes]}: join its parts, or leave '
          'part_sizes out.')

  def _by_part(self, name, parts):
    """V (`noise_estimate`) or gamma (`friction`) for each part."""
    value = self._parameters[name]
    if not isinstance(value, (list, tuple)):
      return self._at_step(name, None, parts)
    if len(value) != len(parts):
      raise ValueError(
          f'{name} is a list of {len(value)}, and the state has '
          f'{len(parts)} part(s): it needs an entry for each.')
    return [states.cast(v, part.dtype) for v, part in zip(value, parts)]

  def _one_step(self, parts, previous, seeds):
    one_step = (
        self._badodab if self._integrator == 'badodab' else self._euler)
    parts, estimate, estimator_results, momentum, thermostat = one_step(
        parts, previous, seeds, self._numbers(parts, previous))
    return parts, SGNHTResults(
        previous.step + 1, *estimate, estimator_results, momentum, thermostat)

  def _numbers(self, parts, previous):
    """The numbers of the step after some results."""
    step_size, mass, diffusion, temperature = (
        self._at_step(name, previous.step, parts) for name in (
            'step_size', 'thermostat_mass', 'diffusion', 'temperature'))
    return thermostats.AtStep(
        step_size, self._scale(parts), mass, diffusion, temperature,
        self._by_part('noise_estimate', parts),
        self._by_part('friction', parts), self._which_are_own(parts),
        previous.target_log_prob.shape.rank)

  def _euler(self, parts, previous, seeds, at):
    """A step of "euler": the gradient first, at the old position."""
    force = self._thermostat.force(
        previous.thermostat, previous.momentum, at.chain_rank)
    noise_scale = base.each(
        thermostats.kick_noise, at.step_size, at.diffusion, at.temperature,
        at.variance)
    estimate, estimator_results = self._estimate(
        parts, previous, seeds, lambda: gradients_lib.GaussianStep(
            previous.momentum, [-h * f for h, f in zip(at.step_size, force)],
            base.times(at.scale, at.step_size), noise_scale))
    parts, momentum, thermostat = euler_step(
        self._thermostat, parts, previous.momentum, previous.thermostat,
        estimate.grads_target_log_prob, self._noise(parts, seeds.noise), at,
        force, noise_scale)
    return parts, estimate, estimator_results, momentum, thermostat

  def _badodab(self, parts, previous, seeds, at):
    """A step of "badodab": the gradient last, at the new position."""
    def to_gradient():
      return badoda_step(
          self._thermostat, parts, previous.momentum, previous.thermostat,
          previous.grads_target_log_prob, self._noise(parts, seeds.noise), at)

    # Some thirty operations on each coordinate, each a pass through memory.
    new_parts, momentum, thermostat = (
        to_gradient() if any(at.is_own)
        else states.compiled(to_gradient, parts))
    estimate, estimator_results = self._estimate(new_parts, previous, seeds)
    momentum = half_kick(momentum, estimate.grads_target_log_prob, at)
    return new_parts, estimate, estimator_results, momentum, thermostat


def euler_step(
    rule: thermostats.Thermostat,
    parts: Sequence[tf.Tensor],
    momentum: Sequence[tf.Tensor],
    xi: Any,
    gradients: Sequence[tf.Tensor],
    noise: Sequence[tf.Tensor],
    at: thermostats.AtStep,
    force: Sequence[tf.Tensor],
    noise_scale: Sequence[tf.Tensor],
) -> tuple[list[tf.Tensor], list[tf.Tensor], Any]:
  """Algorithm 1 of Ding et al. (2014), of all parts.

    p     <- p + h s g - h f + c z,    f = xi p,  c = `kick_noise`
    theta <- theta + h s p
    xi    <- xi + h / mu (p' p / d - T)

  `rule` says what xi p is and how xi moves; the others but `at` are lists over
  the parts: `gradients` is g, `noise` z, `force` f and `noise_scale` c.
  """
  momentum = [
      p - h * f + c * z + h * g
      for p, h, g, f, c, z in zip(
          momentum, at.step_size, base.times(at.scale, gradients), force,
          noise_scale, noise)]
  way = base.times(at.scale, at.step_size)
  parts = [theta + w * p for theta, w, p in zip(parts, way, momentum)]
  rate = base.each(lambda h, mu: h / mu, at.step_size, at.mass)
  return parts, momentum, rule.update(
      xi, momentum, rate, at.temperature, at.chain_rank, at.is_own)


def badoda_step(
    rule: thermostats.Thermostat,
    parts: Sequence[tf.Tensor],
    momentum: Sequence[tf.Tensor],
    xi: Any,
    gradients: Sequence[tf.Tensor],
    noise: Sequence[tf.Tensor],
    at: thermostats.AtStep,
) -> tuple[list[tf.Tensor], Sequence[tf.Tensor], Any]:
  """All of BADODAB but its last half kick, of all parts.

  The arguments are those of `euler_step`; `gradients` is g at the position from
  which the step starts.
  """
  rate = base.each(lambda h, mu: h / (2. * mu), at.step_size, at.mass)

  def half_update(xi, momentum):
    return rule.update(
        xi, momentum, rate, at.temperature, at.chain_rank, at.is_own)

  way = base.times(at.scale, at.step_size)
  momentum = half_kick(momentum, gradients, at)
  parts = _half_drift(parts, momentum, way)
  xi = half_update(xi, momentum)
  momentum = rule.relax(xi, momentum, noise, at)
  xi = half_update(xi, momentum)
  return _half_drift(parts, momentum, way), momentum, xi


def half_kick(
    momentum: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor],
    at: thermostats.AtStep) -> list[tf.Tensor]:
  """p + h/2 s g, of all parts; `gradients` is g."""
  half = base.each(lambda h: h / 2., at.step_size)
  return [
      p + h * g for p, h, g in zip(
          momentum, half, base.times(at.scale, gradients))]


def _half_drift(parts, momentum, way):
  """theta + h/2 s p, of all parts; `way` is h s."""
  half = base.each(lambda w: w / 2., way)
  return [theta + w * p for theta, w, p in zip(parts, half, momentum)]


def _listed(value):
  return value if isinstance(value, (list, tuple)) else [value]
