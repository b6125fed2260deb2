"""What the exact continuous-time kernels share: thinning under a rate bound.

A particle has m clocks: one (bouncy particle) or one for each coordinate
(zig-zag). Clock j rings at the rate [G_j(t)]_+ / T along theta + v t, and at
most at [a_j + b_j t]_+ / T for t up to a horizon. So

  t_j solves int_0^t [a_j + b_j s]_+ ds / T = E_j,   E_j ~ Exp(1)
  t = min(t_1, ..., t_m, refreshment time, horizon)
  theta <- theta + v t

  and where t is some t_j, with one new estimate of the gradient at theta and
  probability [G_j]_+ / [a_j + b_j t]_+, the clock rings: v changes.

Lewis and Shedler's thinning, Pakman et al. (2017), section 3.2. With an
unbiased estimate of the gradient, independent from event to event, the law
exp(-U / T) is kept exactly (Theorem 1 there; Bierkens et al. 2019, theorem 4.1)
as long as the bound holds for every estimate. The same estimate accepts and
reflects.

Without a bound from the user it is found along the path, piecewise constant in
place of a + b t: see `grid_bounds`.
"""

import abc
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc import kernel
from tfp_sgmcmc import random
from tfp_sgmcmc.gradients import base as gradients_base
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.pdmp import base
from tfp_sgmcmc.pdmp import grid_bounds
from tfp_sgmcmc.pdmp import rate_bounds

__all__ = ['ThinnedKernel', 'ThinnedResults']


@kernel.refuses_corrections
class ThinnedResults(NamedTuple):
  """Results of the exact continuous-time kernels.

  Attributes:
    step: `int64` scalar, the number of events.
    target_log_prob: Estimate of the log density at the event, shape `chains`.
    grads_target_log_prob: List with its gradient by each part.
    gradient_estimator_results: The state of the gradient estimator.
    velocity: List with v for each part, after the event.
    duration: Time from the event before to this one, shape `chains`.
    event: What happened, a `pdmp.Event` as `int32`, shape `chains`.
    rate_ratio: The estimated rate over its bound at the event, shape `chains`:
      the probability with which the proposal was accepted. Above 1 the bound
      is violated, by more than rounding: the largest over the clocks then, and
      it stays, the chain being NaN from there on (not with a bound that the
      kernel finds).
    grid: `grid_bounds.GridState` of a kernel that finds its bounds, `()` of one
      that was given a `rate_bound`.

  And the methods `failure(state)`, see `errors`, and `finding()`.
  """
  step: tf.Tensor
  target_log_prob: tf.Tensor
  grads_target_log_prob: list[tf.Tensor]
  gradient_estimator_results: Any
  velocity: list[tf.Tensor]
  duration: tf.Tensor
  event: tf.Tensor
  rate_ratio: tf.Tensor
  grid: Any = ()

  failure = base.failure  # type: ignore[misc]

  def finding(self, estimator: object = None) -> gradients_lib.Finding | None:
    """The share of violated bounds of a kernel that finds them, or None."""
    del estimator
    return grid_bounds.finding(self.grid) if self.grid else None


class _Proposals(NamedTuple):
  """When clocks ring at the rate of their bounds.

  Attributes:
    times: The first time of each clock, `chains + [clocks]`.
    horizon: How long the bounds hold, shape `chains`.
    upper: Callable of a time of shape `chains`: the bounds there.
    slope: The steepest that they rise or fall, `chains + [clocks]`.
    grid: `grid_bounds.Grid`, None with a given bound.
  """
  times: tf.Tensor
  horizon: tf.Tensor
  upper: Callable[[tf.Tensor], tf.Tensor]
  slope: tf.Tensor
  grid: grid_bounds.Grid | None = None


class ThinnedKernel(base.PDMPKernel):
  """Base of the exact kernels.

  A subclass defines `_bound`, `_rates` and `_ring` on the clocks.
  """

  def __init__(self, parameters: dict[str, Any]):
    """Checks and keeps the arguments that these kernels have.

    Args:
      parameters: The arguments of the subclass's constructor, by name.
    """
    super().__init__(parameters)
    _check_independent(type(self).__name__, self.gradient_estimator)
    rate_bound = parameters['rate_bound']
    if rate_bound is None:
      self._check_found_bound()
    elif not callable(rate_bound) and not isinstance(
        rate_bound, rate_bounds.RateBound):
      raise TypeError(
          f'rate_bound is {rate_bound!r}: it has to be one of the bounds of '
          'tfp_sgmcmc.pdmp, or a function of a pdmp.SegmentStart that returns '
          'a pdmp.AffineRate.')
    if isinstance(rate_bound, rate_bounds.RateBound):
      rate_bound.check_estimator(self.gradient_estimator)

  def _check_found_bound(self):
    """Raises where no bound is given, and none can be found."""
    if not self.gradient_estimator.is_exact:
      raise ValueError(
          f'{type(self).__name__} finds bounds on the rate of its events by '
          'itself for the exact gradient alone, and gradient_estimator is '
          f'{self.gradient_estimator!r}, which needs a rate_bound that holds '
          'for every minibatch: pdmp.LogisticRegressionBound(features, '
          'prior_scale), or a function of a pdmp.SegmentStart that returns a '
          'pdmp.AffineRate. Where none is known, '
          'StochasticBouncyParticleSampler learns one, with a small bias.')
    if self._target.is_sharded:
      raise ValueError(
          f'{type(self).__name__} finds bounds by itself where it sees all the '
          'data, and those of the posterior are shared out: give a rate_bound.')

  @property
  def is_calibrated(self) -> bool:
    """Whether the law of the target is kept exactly, averaged over time.

    False without a `rate_bound`: the bounds that are found may be violated.
    """
    return self._parameters['rate_bound'] is not None

  def _start(self, parts, estimate, estimator_results, seeds):
    log_prob = estimate.target_log_prob
    velocity = base.draw_velocity(
        self._velocity_law, parts, log_prob.shape.rank, seeds.velocity)
    zero, grid = tf.zeros_like(log_prob), ()
    if self._parameters['rate_bound'] is None:
      grid = grid_bounds.first_state(*self._rates_along(
          parts, velocity, zero + self._column(grid_bounds.FIRST_TIMES, zero)))
    return ThinnedResults(
        tf.zeros([], tf.int64), *estimate, estimator_results, velocity,
        duration=zero, event=tf.zeros_like(zero, tf.int32), rate_ratio=zero,
        grid=grid)

  def _one_step(self, parts, previous, seeds):
    velocity, dtype = previous.velocity, previous.target_log_prob.dtype
    chains = compat.shape(previous.target_log_prob)
    rank = previous.target_log_prob.shape.rank
    temperature = states.cast(self._temperature, dtype)

    proposals = self._propose(parts, previous, temperature, seeds.time)
    times = proposals.times
    duration, event = base.next_event(
        tf.reduce_min(times, axis=-1),
        self._refreshment_time(chains, dtype, seeds.time), proposals.horizon)
    moved = base.move(parts, velocity, duration)
    estimate, estimator_results = self._estimate(moved, previous, seeds)
    gradients = estimate.grads_target_log_prob

    ratios = rate_ratios(
        self._rates(velocity, gradients, rank) / temperature,
        proposals.upper(duration),
        rounding(moved, velocity, [g / temperature for g in gradients],
                 proposals.slope))
    clock = tf.argmin(times, axis=-1, output_type=tf.int32)
    ratio = tf.gather(ratios, clock, axis=-1, batch_dims=rank)
    rings = (event == int(base.Event.REJECTION)) & (
        random.uniform(chains, seeds.accept, dtype) < ratio)
    velocity = states.select(
        rings, self._ring(velocity, gradients, clock, rank), velocity)
    event = tf.where(rings, int(base.Event.BOUNCE), event)
    velocity = self._refresh(
        velocity, event == int(base.Event.REFRESHMENT), seeds.velocity)

    largest = tf.reduce_max(ratios, axis=-1)
    ratio, failed = self._find_failed(
        parts, previous.rate_ratio, moved, estimate, ratio, largest)
    grid = ()
    if proposals.grid is not None:
      grid = grid_bounds.next_state(
          previous.grid, proposals.grid, duration, event, largest > 1.)
      estimator_results = gradients_base.count(
          estimator_results, len(grid_bounds.POINTS) * self._target.total_rows)
    return states.nan_where(failed, moved), ThinnedResults(
        previous.step + 1, *estimate, estimator_results, velocity, duration,
        event, ratio, grid)

  def _propose(self, parts, previous, temperature, seed):
    """`_Proposals` of a segment."""
    dtype = previous.target_log_prob.dtype
    if self._parameters['rate_bound'] is None:
      return self._propose_on_grid(parts, previous, temperature, seed)
    rate = self._bound(self._segment_start(parts, previous))
    intercept, slope = rate.intercept / temperature, rate.slope / temperature
    times = rate_bounds.affine_time(
        intercept, slope,
        base.exponential(compat.shape(intercept), seed, dtype))
    return _Proposals(
        times, rate.horizon, lambda duration: tf.maximum(
            intercept + slope * duration[..., tf.newaxis], 0.), slope)

  def _propose_on_grid(self, parts, previous, temperature, seed):
    horizon = previous.grid.horizon
    log_prob, rates = self._rates_along(
        parts, previous.velocity,
        self._column(grid_bounds.POINTS, horizon)
        * horizon / grid_bounds.NUM_CELLS)
    grid = grid_bounds.make_grid(log_prob, rates / temperature, horizon)
    return _Proposals(
        grid_bounds.first_times(grid, base.exponential(
            compat.shape(grid.slope), seed, horizon.dtype)),
        grid.horizon, lambda duration: grid_bounds.upper_at(grid, duration),
        grid.slope, grid)

  def _column(self, values, like):
    """Numbers along a new first axis, to broadcast with a tensor."""
    return tf.reshape(
        tf.constant(values, like.dtype), [-1] + [1] * like.shape.rank)

  def _rates_along(self, parts, velocity, times):
    """The log density and G of each clock, at times `[num] + chains`."""
    rank = times.shape.rank
    velocity = [
        tf.broadcast_to(v, tf.concat(
            [compat.shape(times)[:1], compat.shape(v)], axis=0))
        for v in velocity]
    along = base.move([x[tf.newaxis] for x in parts], velocity, times)
    log_prob, gradients = states.value_and_gradients(self._target, along)
    return log_prob, tf.cast(
        self._rates(velocity, gradients, rank), times.dtype)

  def _segment_start(self, parts, previous):
    estimator = self.gradient_estimator
    return rate_bounds.SegmentStart(
        parts, previous.velocity,
        previous.grads_target_log_prob if estimator.is_exact else None,
        previous.gradient_estimator_results,
        previous.target_log_prob.shape.rank,
        estimator.anchor(previous.gradient_estimator_results))

  def _call_bound(self, start, method):
    """The bound, of a ready one by its `method`."""
    rate_bound = self._parameters['rate_bound']
    if isinstance(rate_bound, rate_bounds.RateBound):
      return getattr(rate_bound, method)(start)
    rate = rate_bound(start)
    if not isinstance(rate, rate_bounds.AffineRate):
      raise TypeError(
          f'rate_bound returned {rate!r}: a pdmp.AffineRate(intercept, slope, '
          'horizon) is needed.')
    return rate

  def _find_failed(self, parts, old_ratio, moved, estimate, ratio, largest):
    """The ratio to report, and where the chain fails, now or before."""
    rank = old_ratio.shape.rank
    finite = base.all_finite(
        [*moved, estimate.target_log_prob, *estimate.grads_target_log_prob],
        rank)
    reported = tf.where(largest > 1., largest, ratio)
    reported = tf.where(finite, reported, tf.zeros_like(ratio))
    reported = tf.where(base.all_finite(parts, rank), reported, old_ratio)
    failed = ~finite
    if self._parameters['rate_bound'] is not None:
      failed |= reported > 1.
    return reported, failed

  @abc.abstractmethod
  def _bound(self, start):
    """`AffineRate` with the clocks on the last axis, horizon of the chains."""

  @abc.abstractmethod
  def _rates(self, velocity, gradients, chain_rank):
    """G of each clock at temperature 1, from the gradients of log p."""

  @abc.abstractmethod
  def _ring(self, velocity, gradients, clock, chain_rank):
    """The velocity after a clock, by its index, has rung."""


def rate_ratios(
    rates: tf.Tensor, upper: tf.Tensor, slack: tf.Tensor) -> tf.Tensor:
  """[G]_+ over its bound; above 1 only where that is more than rounding.

  Args:
    rates: G, `chains + [clocks]`.
    upper: The bound, likewise.
    slack: By how much rounding may raise G over it, shape `chains`.

  Returns:
    ratios: `chains + [clocks]`.
  """
  positive = tf.maximum(rates, 0.)
  within = tf.minimum(tf.math.divide_no_nan(positive, upper), 1.)
  slack = slack[..., tf.newaxis] + _root_epsilon(upper.dtype) * upper
  return tf.where(rates > upper + slack, positive / upper, within)


def rounding(
    parts: Sequence[tf.Tensor], velocity: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor], slope: tf.Tensor,
) -> tf.Tensor:
  """What rounding may add to G, generously: shape `chains`.

  With eps the machine epsilon, sqrt(eps) |v| |g| for the sums in the gradient
  (over the root of the number of clocks that share them), and, for the
  position's, what G grows by in the time 8 eps |theta| / |v|.
  """
  rank = slope.shape.rank - 1
  theta, v, g = (
      tf.sqrt(base.dot(x, x, rank)) for x in (parts, velocity, gradients))
  root = _root_epsilon(slope.dtype)
  steepest = tf.reduce_max(tf.abs(slope), axis=-1)
  clocks = tf.cast(tf.shape(slope)[-1], slope.dtype)
  return root * v * g / tf.sqrt(clocks) + 8. * root**2 * steepest * theta / v


def _check_independent(name, estimator):
  """Raises where the noise of one event says something of another's."""
  if not estimator.has_independent_noise:
    raise ValueError(
        f'gradient_estimator is {estimator!r}, whose noise may depend on the '
        f'past of the chain or of the data, and {name} is exact only where '
        'that of each event is new (has_independent_noise). Take '
        'gradients.Uniform, Stratified, or ControlVariate, whose anchor stays. '
        "An estimator of one's own has to declare has_independent_noise = True "
        'where that is so.')


def _root_epsilon(dtype):
  return float(np.finfo(dtype.as_numpy_dtype).eps)**0.5
