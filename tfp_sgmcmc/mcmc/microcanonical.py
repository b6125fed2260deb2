"""Microcanonical Langevin dynamics: a particle of constant speed.

  d theta = u dt
  d u     = (I - u u') g / ((d - 1) T) dt,  and u turns at random;  |u| = 1

Robnik et al. (2023), Robnik and Seljak (2024); with minibatches Sommer et al.
(2026), who call it SMILE. g is the estimate of the gradient of the log
posterior density, d the number of coordinates of all parts of one chain. A step
of length h is made of

  A(t):  theta <- theta + t s u
  B(t):  f = s g / T,  e = f / |f|,  c = u . e
         delta = t |f| / (d - 1),  zeta = exp(-delta)
         u <- normalise((1 - zeta) (1 + zeta + c (1 - zeta)) e + 2 zeta u)
         K <- K + (d - 1) (delta + log((1 + c + (1 - c) zeta^2) / 2))
  O:     u <- normalise(u + nu z),  z ~ N(0, I)
         nu^2 = (exp(2 h / L) - 1) / d

in the order

  minimal_norm:  B(b h) A(h / 2) B((1 - 2 b) h) A(h / 2) B(b h) O
  leapfrog:      B(h / 2) A(h) B(h / 2) O

with b = 0.1931833275037836. A and B are the exact flows of the two lines above,
each with the other variable held; K is the kinetic energy of the isokinetic
Hamiltonian, which B changes by as much as A changes log density / T, but for
the error of the step. B is Ver Steeg and Galstyan's (2021) in the form of
Robnik et al., O is of Robnik et al. The order of "minimal_norm" is equation 20
of Takaishi and de Forcrand (2006).

s^2 is the diagonal of the preconditioner, s = 1 without one: theta / s then
moves as theta does above. All gradients of a step are of one minibatch.
"""

from collections.abc import Callable
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

__all__ = ['MicrocanonicalLangevin', 'MicrocanonicalLangevinResults']

_B = 0.1931833275037836
# Of the step, the shares of B before, between and after the moves A.
_KICKS = {'minimal_norm': (_B, 1. - 2. * _B, _B), 'leapfrog': (0.5, 0.5)}
# The decoherence length by default, in steps.
STEPS_TO_FORGET = 10.


@kernel.refuses_corrections
class MicrocanonicalLangevinResults(NamedTuple):
  """Results of `MicrocanonicalLangevin`.

  Attributes:
    step: `int64` scalar, the number of steps made.
    target_log_prob: The estimate of the log density at the state after the
      step, on the step's minibatch; shape `chains`.
    grads_target_log_prob: List with its gradient by each part.
    gradient_estimator_results: The state of the gradient estimator.
    preconditioner_results: The state of the preconditioner, `()` for none.
    velocity: List with u for each part; over all parts of a chain |u| = 1.
    energy_error: K - log density / T after the step, minus its value before the
      step, shape `chains`: the error of the integrator, 0 at the start. Both
      log densities and all gradients are of the step's minibatch.

  And the method `failure(state)`; see `errors`.
  """
  step: tf.Tensor
  target_log_prob: tf.Tensor
  grads_target_log_prob: list[tf.Tensor]
  gradient_estimator_results: Any
  preconditioner_results: Any
  velocity: list[tf.Tensor]
  energy_error: tf.Tensor

  failure = base.failure  # type: ignore[misc]


class MicrocanonicalLangevin(base.LangevinKernel):
  """Microcanonical Langevin dynamics (MCLMC; with minibatches, SMILE).

    d theta = u dt,  d u = (I - u u') g / ((d - 1) T) dt,  and u turns at random

  The particle has speed 1: the gradient steers it but does not accelerate it.
  The module's docstring has the steps. It needs d >= 2 coordinates.

  The law. With the exact gradient the law of density^(1/T) for theta, and the
  uniform one for the direction u, are stationary in continuous time, for any
  decoherence length L. Steps of length h leave a bias of order h^2: measured on
  normal laws of unit variance, d = 20 and 100, variances are

    h / sqrt(d)    0.4           0.8           1.2          1.6
    leapfrog       1.3% larger   5.6% larger   14% larger   27% larger
    minimal_norm   0.3% smaller  0.9% smaller  2% smaller   5% smaller

  What minibatches do. Their noise in g, of variance C_i by coordinate (of s g
  with a preconditioner), turns u as well. Noise that is the same in all
  directions acts as more random turns, which do not change the law. A bias of
  order h^2 remains: variances are measured as too large by the share h^2 C / (6
  d T^2). Noise that differs between directions heats the directions with more
  noise and cools the others, in first order of h: measured on normal laws, the
  variance of coordinate i is multiplied by about

    (1 + rho_i) / mean(1 + rho),  rho_i = h L C_i d / (2 (d - 1)^2 T^2)

  (d = 20, rho_i from 0.15 to 1.5: measured 0.77 to 1.56, by the formula 0.73 to
  1.58). So keep h L max C far below 2 d T^2, by a smaller step, a shorter L,
  larger batches or control variates. Or make C the same in all directions with
  a preconditioner whose diagonal is one over the variance of the gradient's
  noise; `preconditioners.GradientVariance()` learns it (pSMILE). With the
  default L, which is in proportion to h, this bias too is of order h^2.
  `gradient_estimator.variance(posterior, [state])` is C.

  How to choose h. It is a length in the units of theta (of theta / s with a
  preconditioner): for unit variances take 0.2 to 1 times sqrt(d).
  `results.energy_error` measures the error of the integrator, which is of order
  h^3: where the mean of its square is 0.0005 d, variances have a bias of about
  3% by "leapfrog" and 2% by "minimal_norm" (on the normal laws above). It does
  not contain minibatch noise. If the noise allows it, L is best near the size
  of the posterior, sqrt(d) for unit variances.

  Cost. With the exact gradient of all data a step takes two gradients
  ("minimal_norm") or one ("leapfrog"). With minibatches it takes one more: the
  first gradient of a step needs its own minibatch, not the last step's.

  #### Examples

  >>> scales = tf.constant([1.] * 10 + [2.] * 10)
  >>> kernel = sgmcmc.MicrocanonicalLangevin(
  ...     lambda x: -tf.reduce_sum((x / scales)**2, axis=-1) / 2.,
  ...     step_size=1., decoherence_length=5.)
  >>> draws = sgmcmc.sample(
  ...     kernel, 500, tf.zeros([20, 20]), num_burnin_steps=100, seed=1,
  ...     num_steps_between_results=4, progress_bar=False)
  >>> variances = tf.math.reduce_variance(draws.states, axis=[0, 1]) / scales**2
  >>> bool(tf.reduce_all(abs(variances - 1.) < 0.15))
  True

  With minibatches:

  >>> x = tf.random.stateless_normal([1000, 2], [0, 1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.MultivariateNormalDiag(tf.zeros(2)).log_prob,
  ...     lambda mu, x: -tf.reduce_sum(
  ...         (x - mu[..., tf.newaxis, :])**2, axis=-1) / 2., x)
  >>> kernel = sgmcmc.MicrocanonicalLangevin(
  ...     posterior, step_size=0.005,
  ...     gradient_estimator=sgmcmc.gradients.Uniform(batch_size=100))
  >>> _, errors = tfp.mcmc.sample_chain(
  ...     10, tf.zeros([50, 2]), kernel=kernel, seed=[0, 0],
  ...     trace_fn=lambda _, results: results.energy_error)
  >>> errors.shape
  TensorShape([10, 50])

  #### References

  [1]: Jakob Robnik, G. Bruno De Luca, Eva Silverstein, Uros Seljak.
       Microcanonical Hamiltonian Monte Carlo. _JMLR_, 2023; arXiv:2212.08549.
  [2]: Jakob Robnik and Uros Seljak. Fluctuation without dissipation:
       Microcanonical Langevin Monte Carlo. _AABI_, 2024; arXiv:2303.18221.
  [3]: Emanuel Sommer, Kangning Diao, Jakob Robnik, Uros Seljak, David
       Ruegamer. Can Microcanonical Langevin Dynamics Leverage Mini-Batch
       Gradient Noise? arXiv:2602.06500, 2026.
  [4]: Greg Ver Steeg and Aram Galstyan. Hamiltonian Dynamics with Non-Newtonian
       Momentum for Rapid Sampling. _NeurIPS_, 2021.
  [5]: Tetsuya Takaishi and Philippe de Forcrand. Testing and tuning symplectic
       integrators for Hybrid Monte Carlo algorithm in lattice QCD. _Physical
       Review E_, 2006.
  """

  def __init__(
      self,
      target_log_prob_fn: hints.LogDensity,
      step_size: hints.Schedule,
      decoherence_length: hints.Schedule | None = None,
      *,
      gradient_estimator: gradients_lib.GradientEstimator | None = None,
      integrator: str = 'minimal_norm',
      preconditioner: preconditioners.Preconditioner | None = None,
      temperature: hints.Schedule = 1.,
      experimental_shard_axis_names: hints.ShardAxes = None,
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      target_log_prob_fn: `Posterior`, or a callable of the state's parts that
        returns the log density, one value a chain.
      step_size: h, the length of a step: a positive number, the same for all
        chains and coordinates, or a callable of the step counter (an `int64`
        scalar), such as a Keras schedule.
      decoherence_length: L, the length of path over which the velocity forgets
        its direction by random turns, in the forms of `step_size`. Default: ten
        steps, 10 h.
      gradient_estimator: One of `tfp_sgmcmc.gradients`; None is the exact
        gradient.
      integrator: "minimal_norm" or "leapfrog".
      preconditioner: None, or one of `tfp_sgmcmc.preconditioners`, whose
        diagonal is s^2. It sees the gradient over N at the end of each step. A
        step uses the diagonal of the steps before it.
      temperature: T, in the forms of `step_size`; above zero.
      experimental_shard_axis_names: List with an entry for each part of the
        state: a name, such as "rows", for a part that is another piece on each
        replica of a `tf.distribute` strategy; None for one that all share.
        Default: those of a `ShardedPosterior`, else none.
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If a number is out of its range or no scalar, the integrator
        is unknown, or the estimator does not fit; at the start of a chain, if
        the state has only one coordinate.
      TypeError: If the estimator needs a `Posterior` and gets a function, or
        an argument is of the wrong type.
    """
    checks.one_of('integrator', integrator, tuple(_KICKS))
    checks.schedule('temperature', temperature, 0.)
    numbers = dict(step_size=step_size, temperature=temperature)
    if decoherence_length is not None:
      checks.schedule('decoherence_length', decoherence_length, 0.)
      numbers['decoherence_length'] = decoherence_length
    self._preconditioner = (
        preconditioners.Identity() if preconditioner is None
        else preconditioner)
    preconditioners.check_preconditioner(self._preconditioner)
    super().__init__(dict(
        target_log_prob_fn=target_log_prob_fn,
        step_size=step_size,
        decoherence_length=decoherence_length,
        gradient_estimator=gradient_estimator,
        integrator=integrator,
        preconditioner=preconditioner,
        temperature=temperature,
        experimental_shard_axis_names=experimental_shard_axis_names,
        name=name))
    for argument, value in numbers.items():
      checks.scalar(
          argument, value(tf.zeros([], tf.int64)) if callable(value) else value)
    if not self._estimator.follows_seed:
      raise ValueError(
          f'gradient_estimator is {self._estimator!r}, which does not declare '
          'follows_seed: a step takes several gradients of one minibatch, and '
          'so needs an estimator that gives the same minibatch to the same '
          'seed. Take Uniform, ControlVariate, SVRG or Exact.')

  @property
  def why_no_shards(self):
    return base.why_no_shards(self._preconditioner)

  @property
  def why_no_excess(self):
    return (
        'The speed of MicrocanonicalLangevin is 1 whatever the step size is, '
        'so that it has no temperature to measure. What tells of the step is '
        'energy_error in its results: see its docstring.')

  def friction_of_noise(self, num_coordinates):
    """(d - 1)^2 T / (L d): the random turns, in the units of a friction.

    So that the share of noise is rho of the class's docstring.
    """
    length, step_size, temperature = (
        self._parameters[name]
        for name in ('decoherence_length', 'step_size', 'temperature'))
    length = STEPS_TO_FORGET * step_size if length is None else length
    if callable(length) or callable(temperature):
      return None
    return (num_coordinates - 1)**2 * temperature / (length * num_coordinates)

  @property
  def why_no_learning_rate(self):
    return (
        'The step_size of MicrocanonicalLangevin is the length of a step, '
        'which no learning rate of SGD sets: give it as step_size.')

  def _start(self, parts, estimate, estimator_results, seeds):
    value, gradients = estimate
    total, size = self._over_coordinates(parts, value)
    if checks.static_value(size) == 1:
      raise ValueError(
          'The state has one coordinate, and a velocity of constant length can '
          'turn in two dimensions or more. For one coordinate take SGHMC or '
          'SGLD.')
    noise = self._noise(parts, seeds.noise)
    return MicrocanonicalLangevinResults(
        tf.zeros([], tf.int64), value, gradients, estimator_results,
        self._preconditioner.bootstrap_results(self._mean_gradients(gradients)),
        normalised(noise, total), tf.zeros_like(value))

  def _one_step(self, parts, previous, seeds):
    dtype = previous.target_log_prob.dtype
    step_size, temperature = (
        self._scalar(name, previous.step, dtype)
        for name in ('step_size', 'temperature'))
    length = STEPS_TO_FORGET * step_size
    if self._parameters['decoherence_length'] is not None:
      length = self._scalar('decoherence_length', previous.step, dtype)
    total, size = self._over_coordinates(parts, previous.target_log_prob)
    scale = self._scale(parts, previous)
    first, *kicks = _KICKS[self._parameters['integrator']]
    velocity = previous.velocity
    before, used = previous.target_log_prob, []

    def kicked(velocity, gradients, share):
      return kick(
          velocity, [s * g / tf.cast(temperature, g.dtype)
                     for s, g in zip(scale, gradients)],
          share * step_size, size, total)

    gradients = previous.grads_target_log_prob
    if not self.sees_all_data:
      (before, gradients), results = self._estimate(parts, previous, seeds)
      used.append(results.num_gradients)
    velocity, energy = kicked(velocity, gradients, first)
    for share in kicks:
      parts = [
          theta + tf.cast(step_size / len(kicks), theta.dtype) * s * u
          for theta, s, u in zip(parts, scale, velocity)]
      (value, gradients), results = self._estimate(parts, previous, seeds)
      used.append(results.num_gradients)
      velocity, gained = kicked(velocity, gradients, share)
      energy += gained
    velocity = turned(
        velocity, step_size / length, size, self._noise(parts, seeds.noise),
        total)
    # Each estimate is made from the last step's results, so that an estimator
    # that learns has no part in the choice of this step's minibatch.
    count = previous.gradient_estimator_results.num_gradients
    return parts, MicrocanonicalLangevinResults(
        previous.step + 1, value, gradients,
        results._replace(num_gradients=count + sum(n - count for n in used)),
        self._preconditioner.one_step(
            self._mean_gradients(gradients), previous.preconditioner_results),
        velocity, energy - (value - before) / temperature)

  @property
  def sees_all_data(self) -> bool:
    """Whether each gradient is of all data: the last one then serves this step.

    Not where the data are a sample, such as a batch of `fit`: the next step may
    have another.
    """
    return self._estimator.is_exact and checks.static_value(
        self._target.total_rows) == self._target.num_examples

  def _scalar(self, name, step, dtype):
    value = self._parameters[name]
    return states.cast(value(step) if callable(value) else value, dtype)

  def num_coordinates(self, state_parts, results):
    """d, as a scalar tensor: the coordinates of a chain on all replicas."""
    return self._over_coordinates(state_parts, results.target_log_prob)[1]

  def squared_length(
      self,
      squares: Sequence[tf.Tensor],
      results: MicrocanonicalLangevinResults,
  ) -> tf.Tensor:
    """|theta / s|^2, in the units of the step size.

    Args:
      squares: List with theta^2 for each part of the state.
      results: The kernel's results.

    Returns:
      squared_length: Shape `chains`.
    """
    total, _ = self._over_coordinates(squares, results.target_log_prob)
    scale = self._scale(squares, results)
    return total([x / tf.square(s) for x, s in zip(squares, scale)])

  def _scale(self, parts, results):
    """s by part."""
    return [
        tf.sqrt(s) for s in self._preconditioner.times(
            [tf.ones([], part.dtype) for part in parts],
            results.preconditioner_results, results.target_log_prob.shape.rank)]

  def _over_coordinates(self, parts, target_log_prob):
    """The sum of a list over parts, for each chain, as a function; and d."""
    is_own = self._which_are_own(parts)
    dtype, rank = target_log_prob.dtype, target_log_prob.shape.rank

    def total(values):
      return collectives.totals(dtype, is_own, [
          tf.cast(states.sum_event(x, rank), dtype) for x in values])[0]

    size, = collectives.totals(
        dtype, is_own, [states.num_coordinates([x], rank) for x in parts])
    return total, size


def kick(
    velocity: Sequence[tf.Tensor],
    force: Sequence[tf.Tensor],
    time: tf.Tensor,
    size: tf.Tensor,
    total: Callable[[list[tf.Tensor]], tf.Tensor],
) -> tuple[list[tf.Tensor], tf.Tensor]:
  """B of the module's docstring, for a constant force f.

  Args:
    velocity: List with u for each part.
    force: List with f for each part.
    time: Scalar, t.
    size: Scalar, d.
    total: Sums a list over parts, over all coordinates of each chain.

  Returns:
    velocity: List with the new u.
    energy: By how much K grows, shape `chains`.
  """
  norm = tf.sqrt(total([tf.square(f) for f in force]))
  cosine = tf.math.divide_no_nan(
      total([u * f for u, f in zip(velocity, force)]), norm)
  # Where u is opposed to the force up to rounding it may turn either way: with
  # a cosine of just -1 nothing would be left of it after a long kick.
  cosine = tf.clip_by_value(
      cosine, -1. + np.finfo(norm.dtype.as_numpy_dtype).eps, 1.)
  delta = time * norm / (size - 1.)
  zeta, rest = tf.exp(-delta), -tf.math.expm1(-delta)
  along = tf.math.divide_no_nan(
      rest * (1. + zeta + cosine * rest), norm)
  energy = (size - 1.) * (
      delta + tf.math.log1p((1. - cosine) * tf.math.expm1(-2. * delta) / 2.))
  return normalised([
      times(along, f) + times(2. * zeta, u)
      for f, u in zip(force, velocity)], total), energy


def turned(
    velocity: Sequence[tf.Tensor],
    share: tf.Tensor,
    size: tf.Tensor,
    noise: Sequence[tf.Tensor],
    total: Callable[[list[tf.Tensor]], tf.Tensor],
) -> list[tf.Tensor]:
  """O of the module's docstring; `share` is h / L, the others as in `kick`."""
  nu = tf.sqrt(tf.math.expm1(2. * share) / size)
  return normalised(
      [u + times(nu, z) for u, z in zip(velocity, noise)], total)


def normalised(
    velocity: Sequence[tf.Tensor],
    total: Callable[[list[tf.Tensor]], tf.Tensor],
) -> list[tf.Tensor]:
  """A vector over all parts, over its length in each chain."""
  inverse = tf.math.rsqrt(total([tf.square(u) for u in velocity]))
  return [times(inverse, u) for u in velocity]


def times(per_chain: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
  """A number a chain times a part, in the dtype of the part."""
  return tf.cast(states.expand(per_chain, part), part.dtype) * part
