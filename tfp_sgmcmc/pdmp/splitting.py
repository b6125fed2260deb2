"""Splitting schemes of bouncy particles and zig-zags: steps of fixed length.

In continuous time a particle moves on straight lines and turns at random times,
which thinning finds under a bound. A splitting scheme needs no bound. It takes
the parts of the process one after the other, each exactly, for a time h:

  D  drift          theta <- theta + v t
  B  turns          at the rates at theta, which does not move meanwhile
  R  refreshments   v <- N(0, I) at a constant rate

Bertazzi, Dobson and Monmarche (2025). With U = -log p / T, and g its gradient,
the zig-zag sampler is D B D and the bouncy particle sampler R D B D R, D for
h / 2 each, in which B is

  zig-zag   v_i <- -v_i  with probability 1 - exp(-h [v_i g_i]_+), for each i
  bouncy    v <- v - 2 (v . g) g / |g|^2  with probability 1 - exp(-h [v . g]_+)

After a turn the rate is zero, so there is at most one turn. R for h / 2 at the
end of a step and R for h / 2 at the start of the next are together R for h,
here made at the start. The positions have the same law, since R leaves the law
of the first velocity unchanged.

With sticky coordinates (Bierkens et al. 2023) a coordinate that reaches 0 stays
there for an exponential time of rate kappa_i |v_i|, and then goes on with its
old velocity. D is still exact: the velocity does not change in it, so that a
coordinate reaches 0 once at most and leaves it once at most. With E ~ Exp(1),

  s = 0 where theta_i = 0, -theta_i / v_i where that is positive, else infinite
  theta_i <- theta_i + v_i t                          where s > t, else
             v_i [t - s - E / (kappa_i |v_i|)]_+

Coordinates at 0 do not turn in B: they have no part in g, and their v_i stay.
"""

import abc
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import collectives
from tfp_sgmcmc import errors
from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc import kernel
from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = ['SplitBouncyParticle', 'SplitResults', 'SplitZigZag']


def _failure(
    results: hints.Results,
    state: hints.State,
) -> errors.Failure | None:
  """Why a chain cannot go on; see `errors`."""
  return errors.non_finite(
      state, results.target_log_prob.shape.rank,
      'The gradient of the log density is NaN there: the step size may be too '
      f'large for the log density, try a tenth of it. {errors.OTHER_CAUSES}.')


@kernel.refuses_corrections
class SplitResults(NamedTuple):
  """Results of `SplitZigZag` and `SplitBouncyParticle`.

  Attributes:
    step: `int64` scalar, the number of steps made.
    target_log_prob: The estimate of the log density with which the step was
      made, in the middle of it; shape `chains`.
    grads_target_log_prob: List with its gradient by each part.
    gradient_estimator_results: The state of the gradient estimator.
    velocity: List with v for each part, after the step.

  And the method `failure(state)`; see `errors`.
  """
  step: tf.Tensor
  target_log_prob: tf.Tensor
  grads_target_log_prob: list[tf.Tensor]
  gradient_estimator_results: Any
  velocity: list[tf.Tensor]

  failure = _failure  # type: ignore[misc]


class _Seeds(NamedTuple):
  """The seeds of one step, one for each use."""
  velocity: tf.Tensor
  gradient: tf.Tensor
  turn: tf.Tensor
  first_drift: tf.Tensor
  second_drift: tf.Tensor


class _SplitKernel(kernel.GradientKernel):
  """What both schemes share: D B D, sticky coordinates.

  A subclass defines `_first_velocity` and `_turned`, and may define
  `_refreshed`.
  """

  _Seeds = _Seeds

  def __init__(self, parameters: dict[str, Any]):
    checks.schedule('step_size', parameters['step_size'], 0.)
    checks.schedule('temperature', parameters['temperature'], 0.)
    _check_sticky(parameters['sticky'])
    super().__init__(parameters)

  @property
  def is_calibrated(self) -> bool:
    """False: steps of finite size, without a Metropolis test, have a bias."""
    return False

  @property
  def lives_on_batches(self) -> bool:
    """True: what a step needs of the data is an estimate of the gradient."""
    return True

  @property
  def why_no_shards(self) -> str | None:
    """None: parts may be other pieces on each replica."""
    return None

  @property
  def why_no_learning_rate(self) -> str:
    """Why a learning rate of SGD cannot set `step_size`."""
    return (
        f'The step_size of {type(self).__name__} is the time of a step of '
        'speed 1, a length, which no learning rate of SGD sets: give it as '
        'step_size.')

  def _start(self, parts, estimate, estimator_results, seeds):
    for part, rate in zip(parts, self._release_rates(parts)):
      _check_broadcasts(rate, part)
    return SplitResults(
        tf.zeros([], tf.int64), *estimate, estimator_results,
        self._first_velocity(parts, seeds.velocity))

  def _one_step(self, parts, previous, seeds):
    time, temperature = (
        kernel.at_step(self._parameters[name], previous.step, parts)
        for name in ('step_size', 'temperature'))
    velocity = self._refreshed(previous.velocity, previous, seeds.velocity)
    half = [0.5 * h for h in time]
    parts = self._drift(parts, velocity, half, seeds.first_drift)
    estimate, estimator_results = self._estimate(parts, previous, seeds)
    force = moving_force(
        parts, estimate.grads_target_log_prob, temperature,
        self._release_rates(parts))
    velocity = self._turned(
        velocity, force, time, seeds.turn, previous.target_log_prob)
    parts = self._drift(parts, velocity, half, seeds.second_drift)
    return parts, SplitResults(
        previous.step + 1, *estimate, estimator_results, velocity)

  def _drift(self, parts, velocity, time, seed):
    """D, for each part."""
    rates = self._release_rates(parts)
    if all(rate is None for rate in rates):
      return [x + t * v for x, t, v in zip(parts, time, velocity)]
    uniform = self._uniform(parts, seed)
    return [
        x + t * v if rate is None else sticky_drift(x, v, t, rate, u)
        for x, v, t, rate, u in zip(parts, velocity, time, rates, uniform)]

  def _release_rates(self, parts):
    """kappa for each part in its dtype, None of one that is not sticky."""
    sticky = self._parameters['sticky']
    if not isinstance(sticky, (list, tuple)):
      sticky = [sticky] * len(parts)
    if len(sticky) != len(parts):
      raise ValueError(
          f'sticky has {len(sticky)} entries, and the state {len(parts)} '
          'part(s): a list has an entry for each part, None for one that is '
          'not sticky. Rates for the coordinates of one part are a tensor.')
    return [
        None if rate is None else states.cast(rate, part.dtype)
        for rate, part in zip(sticky, parts)]

  def _uniform(self, parts, seed):
    return collectives.uniform_like(parts, self._which_are_own(parts), seed)

  @abc.abstractmethod
  def _first_velocity(self, parts, seed):
    """The velocities with which chains start."""

  def _refreshed(self, velocity, previous, seed):
    """R, for each part."""
    del previous, seed
    return velocity

  @abc.abstractmethod
  def _turned(self, velocity, force, time, seed, target_log_prob):
    """B, for each part; `force` is the gradient of U."""


class SplitZigZag(_SplitKernel):
  """The zig-zag sampler in steps of fixed length, without a bound.

    theta <- theta + h v / 2,                      v_i = -1 or 1
    v_i <- -v_i  with probability 1 - exp(-h [-v_i g_i / T]_+), for each i
    theta <- theta + h v / 2

  g is the estimate of the gradient of the log density in the middle of the
  step, one a step. States have equal weights, as with `SGLD`, and no gradient
  moves a coordinate by more than h.

  How to choose h. Without noise the bias is of second order; on a normal law of
  one coordinate there is no bias. Noise in g, of variance C_i by coordinate,
  makes a bias of first order. Where it is large compared with g, the variance
  of coordinate i is too large by the share

    h E|noise_i| / (2 T),  h sqrt(C_i / (2 pi)) / T for normal noise

  (on N(0, 1) with normal noise: 3.9% at h sqrt(C) = 0.1 and 16% at 0.4). With
  `SGLD` of step size h' it is h' C_i / (2 T). At the same bias and cost this
  kernel moves further, up to pi / 2 times in squared distance. Its bias grows
  with the mean size of the noise, not with its square, so outliers have less
  effect. `gradient_estimator.variance(posterior, [state])` is C. With a tensor
  as `step_size` each coordinate has its own h: take it in proportion to the
  posterior's standard deviations, or to 1 / sqrt(C_i).

  With a fixed h the states of a coordinate lie on a lattice of spacing h,
  unless it is sticky.

  SG-ZZ of Fearnhead et al. (2024) also holds the rates fixed, but turns within
  the step, and takes a new gradient at each turn. Without noise its bias is of
  first order in h: on N(0, 1) the variance is 17% too large at h = 0.4 and 4%
  at h = 0.1. This library does not include it.

  #### Sticky coordinates

  `sticky` samples a spike and slab prior, in which coordinate i is 0 with
  probability 1 - w_i, and has the density pi_i with probability w_i. Give the
  log density only the slabs pi_i as its prior. A coordinate that reaches 0
  stays at exactly 0, and leaves at the rate kappa_i,

    kappa_i = w_i / (1 - w_i) pi_i(0).

  The share of draws in which a coordinate is not 0 is then its posterior
  probability of inclusion. Coordinates may start at 0 or elsewhere. At
  temperatures other than 1 the law is density^(1/T) with respect to the product
  of d theta_i + delta_0 / kappa_i.

  #### Examples

  >>> x = tf.random.stateless_normal([1000], [0, 1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x), x)
  >>> kernel = sgmcmc.pdmp.SplitZigZag(
  ...     posterior, step_size=1e-3,
  ...     gradient_estimator=sgmcmc.gradients.Uniform(batch_size=100))
  >>> draws = sgmcmc.sample(
  ...     kernel, 200, tf.zeros([50]), num_burnin_steps=1000, seed=1,
  ...     num_steps_between_results=19, progress_bar=False)
  >>> 0.9 < 1000. * float(tf.math.reduce_variance(draws.states)) < 1.3
  True

  Which of three coefficients are not zero? A priori each is nonzero with
  probability 1/2, and then N(0, 1):

  >>> x = tf.random.stateless_normal([100, 3], [0, 2])
  >>> y = x[:, 0] + tf.random.stateless_normal([100], [0, 3])
  >>> slab = tfd.Normal(0., 1.)
  >>> posterior = sgmcmc.Posterior(
  ...     lambda beta: tf.reduce_sum(slab.log_prob(beta), axis=-1),
  ...     lambda beta, batch: tfd.Normal(
  ...         tf.einsum('nd,...d->...n', batch[0], beta), 1.
  ...     ).log_prob(batch[1]),
  ...     (x, y))
  >>> kernel = sgmcmc.pdmp.SplitZigZag(
  ...     posterior, step_size=0.05, sticky=0.5 / (1. - 0.5) * slab.prob(0.))
  >>> draws = sgmcmc.sample(
  ...     kernel, 500, tf.zeros([20, 3]), num_burnin_steps=500, seed=1,
  ...     num_steps_between_results=9, progress_bar=False)
  >>> included = tf.reduce_mean(
  ...     tf.cast(draws.states != 0., tf.float32), axis=[0, 1])
  >>> bool(included[0] > 0.99) and bool(tf.reduce_all(included[1:] < 0.4))
  True

  #### References

  [1]: Andrea Bertazzi, Paul Dobson, Pierre Monmarche. Piecewise deterministic
       sampling with splitting schemes. _JMLR_ 26, 2025; arXiv:2301.02537.
  [2]: Paul Fearnhead, Sebastiano Grazzi, Chris Nemeth, Gareth Roberts.
       Stochastic Gradient Piecewise Deterministic Monte Carlo Samplers.
       arXiv:2406.19051, 2024.
  [3]: Joris Bierkens, Sebastiano Grazzi, Frank van der Meulen, Moritz Schauer.
       Sticky PDMP samplers for sparse and local inference problems.
       _Statistics and Computing_ 33, 2023; arXiv:2103.08478.
  """

  def __init__(
      self,
      target_log_prob_fn: hints.LogDensity,
      step_size: hints.Schedule,
      *,
      gradient_estimator: gradients_lib.GradientEstimator | None = None,
      sticky: hints.Nested = None,
      temperature: hints.Schedule = 1.,
      experimental_shard_axis_names: hints.ShardAxes = None,
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      target_log_prob_fn: `Posterior`, or a callable of the state's parts that
        returns the log density, one value a chain.
      step_size: h, a length in the units of theta: a positive number, a tensor
        that broadcasts with each part of the state, or a callable of the step
        counter (an `int64` scalar), such as a Keras schedule.
      gradient_estimator: One of `tfp_sgmcmc.gradients`; None is the exact
        gradient.
      sticky: kappa, the rates at which coordinates leave 0: None for none that
        stays; a positive number or a tensor that broadcasts with each part of
        the state, infinite for a coordinate that does not stay; or a list of
        these with an entry for each part.
      temperature: T, in the forms of `step_size`; above zero.
      experimental_shard_axis_names: List with an entry for each part of the
        state: a name, such as "rows", for a part that is another piece on each
        replica of a `tf.distribute` strategy; None for one that all share.
        Default: those of a `ShardedPosterior`, else none.
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If a number is out of its range or the estimator does not fit
        the posterior; at the start of a chain, if `sticky` does not fit the
        state.
      TypeError: If the estimator needs a `Posterior` and gets a function, or a
        number is none.
    """
    super().__init__(dict(
        target_log_prob_fn=target_log_prob_fn,
        step_size=step_size,
        gradient_estimator=gradient_estimator,
        sticky=sticky,
        temperature=temperature,
        experimental_shard_axis_names=experimental_shard_axis_names,
        name=name))

  def _first_velocity(self, parts, seed):
    return [
        tf.where(u < 0.5, -tf.ones_like(u), 1.)
        for u in self._uniform(parts, seed)]

  def _turned(self, velocity, force, time, seed, target_log_prob):
    return [
        flipped(v, f, h, u) for v, f, h, u in zip(
            velocity, force, time, self._uniform(velocity, seed))]


class SplitBouncyParticle(_SplitKernel):
  """The bouncy particle sampler in steps of fixed length, without a bound.

    v <- N(0, I)  with probability 1 - exp(-h r),  r the rate of refreshments
    theta <- theta + h v / 2
    v <- v - 2 (v . g) g / |g|^2  with probability 1 - exp(-h [-v . g / T]_+)
    theta <- theta + h v / 2

  g is the estimate of the gradient of the log density in the middle of the
  step, one a step. States have equal weights, as those of `SGLD`.

  How to choose h. Without noise the bias is of second order in h. Noise in g
  makes a bias of first order. It is as large as that of `SplitZigZag`, with the
  noise along v in place of the noise of one coordinate. With noise of variance
  C in each of d coordinates, variances are too large by about the share

    sqrt(2 d C / pi) h / T

  So h has to be smaller by sqrt(d) than with `SplitZigZag`, while a step is as
  long. If noise dominates, take `SplitZigZag`. Without noise, and with
  coordinates that depend on each other, `SplitBouncyParticle` turns less often.

  Choose the rate of refreshments r near one over the size of the posterior. At
  0 the chain may not reach all of the space.

  `sticky` is as in `SplitZigZag`: coordinates leave 0 at the rate
  kappa_i |v_i|, and those at 0 have no part in bounces.

  #### Examples

  >>> x = tf.random.stateless_normal([1000, 2], [0, 1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.MultivariateNormalDiag(tf.zeros(2)).log_prob,
  ...     lambda mu, x: -tf.reduce_sum(
  ...         (x - mu[..., tf.newaxis, :])**2, axis=-1) / 2., x)
  >>> kernel = sgmcmc.pdmp.SplitBouncyParticle(
  ...     posterior, step_size=1e-3, refresh_rate=20.,
  ...     gradient_estimator=sgmcmc.gradients.Uniform(batch_size=200))
  >>> draws = sgmcmc.sample(
  ...     kernel, 200, tf.zeros([50, 2]), num_burnin_steps=1000, seed=1,
  ...     num_steps_between_results=19, progress_bar=False)
  >>> 0.9 < 1000. * float(tf.math.reduce_variance(draws.states[..., 0])) < 1.3
  True

  #### References

  [1]: Andrea Bertazzi, Paul Dobson, Pierre Monmarche. Piecewise deterministic
       sampling with splitting schemes. _JMLR_ 26, 2025; arXiv:2301.02537.
  [2]: Paul Fearnhead, Sebastiano Grazzi, Chris Nemeth, Gareth Roberts.
       Stochastic Gradient Piecewise Deterministic Monte Carlo Samplers.
       arXiv:2406.19051, 2024.
  [3]: Joris Bierkens, Sebastiano Grazzi, Frank van der Meulen, Moritz Schauer.
       Sticky PDMP samplers for sparse and local inference problems.
       _Statistics and Computing_ 33, 2023; arXiv:2103.08478.
  """

  def __init__(
      self,
      target_log_prob_fn: hints.LogDensity,
      step_size: hints.Schedule,
      *,
      gradient_estimator: gradients_lib.GradientEstimator | None = None,
      refresh_rate: hints.TensorLike = 1.,
      sticky: hints.Nested = None,
      temperature: hints.Schedule = 1.,
      experimental_shard_axis_names: hints.ShardAxes = None,
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      target_log_prob_fn: `Posterior`, or a callable of the state's parts that
        returns the log density, one value a chain.
      step_size: h, the time of a step, in which a coordinate moves by h times a
        standard normal number: a positive number, or a callable of the step
        counter (an `int64` scalar), such as a Keras schedule.
      gradient_estimator: One of `tfp_sgmcmc.gradients`; None is the exact
        gradient.
      refresh_rate: r, refreshments in a unit of time: a number, at least 0.
      sticky: kappa, the rates over |v_i| at which coordinates leave 0: None for
        none that stays; a positive number or a tensor that broadcasts with each
        part of the state, infinite for a coordinate that does not stay; or a
        list of these with an entry for each part.
      temperature: T, in the forms of `step_size`; above zero.
      experimental_shard_axis_names: List with an entry for each part of the
        state: a name, such as "rows", for a part that is another piece on each
        replica of a `tf.distribute` strategy; None for one that all share.
        Default: those of a `ShardedPosterior`, else none.
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If a number is out of its range or no scalar, or the estimator
        does not fit the posterior; at the start of a chain, if `sticky` does
        not fit the state.
      TypeError: If the estimator needs a `Posterior` and gets a function, or a
        number is none.
    """
    checks.numeric('refresh_rate', refresh_rate, 0., strict=False)
    checks.scalar('refresh_rate', refresh_rate)
    super().__init__(dict(
        target_log_prob_fn=target_log_prob_fn,
        step_size=step_size,
        gradient_estimator=gradient_estimator,
        refresh_rate=refresh_rate,
        sticky=sticky,
        temperature=temperature,
        experimental_shard_axis_names=experimental_shard_axis_names,
        name=name))
    for argument in ('step_size', 'temperature'):
      value = self._parameters[argument]
      checks.scalar(
          argument, value(tf.zeros([], tf.int64)) if callable(value) else value)

  def _first_velocity(self, parts, seed):
    return collectives.normal_like(parts, self._which_are_own(parts), seed)

  def _refreshed(self, velocity, previous, seed):
    chains = compat.shape(previous.target_log_prob)
    dtype = previous.target_log_prob.dtype
    step_size, = kernel.at_step(
        self._parameters['step_size'], previous.step,
        [previous.target_log_prob])
    rate = states.cast(self._parameters['refresh_rate'], dtype)
    # The same number on all replicas, whose velocities are drawn together.
    is_refreshed = random.uniform(
        chains, random.fold_in(seed, 0), dtype) < -tf.math.expm1(
            -rate * step_size)
    return states.select(
        is_refreshed, self._first_velocity(velocity, random.fold_in(seed, 1)),
        velocity)

  def _turned(self, velocity, force, time, seed, target_log_prob):
    dtype, rank = target_log_prob.dtype, target_log_prob.shape.rank

    def dot(one, other):
      return [
          tf.cast(states.sum_event(a * b, rank), dtype)
          for a, b in zip(one, other)]

    along, squared = collectives.totals(
        dtype, self._which_are_own(velocity), dot(velocity, force),
        dot(force, force))
    stays = random.uniform(
        compat.shape(target_log_prob), seed, dtype) >= turn_probability(
            along, tf.cast(time[0], dtype))
    # Where that is no number the comparison is False, and v becomes NaN.
    share = tf.math.divide_no_nan(2. * along, squared)
    return [
        tf.where(
            states.expand(stays, v), v,
            v - tf.cast(states.expand(share, v), v.dtype) * f)
        for v, f in zip(velocity, force)]


def moving_force(
    parts: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor],
    temperature: Sequence[tf.Tensor],
    rates: Sequence[tf.Tensor | None],
) -> list[tf.Tensor]:
  """The gradient of U, 0 for coordinates that stay at 0; lists over parts."""
  return [
      -g / t if rate is None
      else tf.where(theta == 0., tf.zeros_like(g), -g / t)
      for theta, g, t, rate in zip(parts, gradients, temperature, rates)]


def turn_probability(rate: tf.Tensor, time: tf.Tensor) -> tf.Tensor:
  """1 - exp(-t [rate]_+), NaN where the rate is."""
  probability = -tf.math.expm1(-time * tf.maximum(rate, 0.))
  return tf.where(tf.math.is_nan(rate), rate, probability)


def flipped(
    velocity: tf.Tensor, force: tf.Tensor, time: tf.Tensor, uniform: tf.Tensor,
) -> tf.Tensor:
  """B of the zig-zag sampler.

  Args:
    velocity: v.
    force: The gradient of U in its shape; 0 for a coordinate that stays at 0.
    time: h.
    uniform: Numbers in [0, 1) in its shape.

  Returns:
    velocity: v, NaN where the force is, which would go unseen otherwise.
  """
  probability = turn_probability(velocity * force, time)
  return tf.where(
      tf.math.is_nan(probability), probability,
      tf.where(uniform < probability, -velocity, velocity))


def sticky_drift(
    part: tf.Tensor, velocity: tf.Tensor, time: tf.Tensor, rate: tf.Tensor,
    uniform: tf.Tensor,
) -> tf.Tensor:
  """D of a part with sticky coordinates, in the module's docstring.

  Args:
    part: theta.
    velocity: v, in its shape.
    time: t.
    rate: kappa, which may be infinite.
    uniform: Numbers in [0, 1) in its shape, which make E.

  Returns:
    part: theta after the drift, 0 where a coordinate stays.
  """
  wait = -tf.math.log1p(-uniform) / (rate * tf.abs(velocity))
  arrival = tf.where(part == 0., tf.zeros_like(part), -part / velocity)
  rest = tf.maximum(time - arrival - wait, 0.)
  arrives = (arrival >= 0.) & (arrival <= time)
  return tf.where(arrives, velocity * rest, part + velocity * time)


def _check_sticky(sticky: hints.Nested) -> None:
  """Raises where a rate is none."""
  rates: Sequence[Any] = (
      sticky if isinstance(sticky, (list, tuple)) else [sticky])
  for rate in rates:
    if rate is None:
      continue
    value = checks.static_value(rate)
    if value is not None and np.issubdtype(value.dtype, np.floating):
      value = np.where(value == np.inf, 1., value)  # It never stays at 0.
    checks.numeric('sticky', rate if value is None else value, 0.)


def _check_broadcasts(rate, part):
  """Raises where a part has not the shape of its rates."""
  if rate is None:
    return
  try:
    shape = tf.broadcast_static_shape(rate.shape, part.shape)
    fits = shape.is_compatible_with(part.shape)
  except ValueError:
    fits = False
  if not fits:
    raise ValueError(
        f'sticky has shape {rate.shape}, and a part of the state {part.shape}: '
        'it has to broadcast with the part.')
