"""Bounds on the rate of events found along the path, where none is known.

From a state at velocity v the rates of the clocks, [G_j(t)]_+, and their
derivatives G_j' are evaluated at K + 1 equal times t_k up to a horizon. In the
cell from t_k to t_k+1 the bound on G_j is the largest of

  G_j(t_k),  G_j(t_k+1),  and where the tangents of the two ends meet,

which holds wherever G_j is convex or concave in the cell. The first time of a
clock inverts the integral of a piecewise constant rate. Andral and Kamatani
(2024), after Corbella et al. (2022), who search the maximum over the whole
horizon by optimisation.

Where G_j bends both ways within a cell the bound may be violated. An event
tells whether it is, at its time: such events are accepted as they are, and
counted.

The law does not depend on the horizon. It follows the events, by steps of its
logarithm: up where the horizon is reached, down where a clock rings before,
more where it rings in the first cell, so that about one in six reaches it.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.pdmp import base

__all__ = [
    'Grid', 'GridState', 'NUM_CELLS', 'bound_cells', 'finding', 'first_state',
    'first_times', 'gradients_and_derivatives', 'make_grid', 'next_state',
    'upper_at']

NUM_CELLS = 10  # K.
# Of log2 of the horizon.
_REACHED, _RANG, _RANG_IN_FIRST_CELL, _NOT_FINITE = 0.5, -0.05, -0.25, -1.
# Above it the share of violations makes a run doubtful.
_LARGEST_SHARE = 0.01


class GridState(NamedTuple):
  """What a kernel keeps of its grids from event to event; shape `chains`.

  Attributes:
    horizon: How far the next grid reaches.
    num_proposals: `int64`, the proposals so far.
    num_violations: `int64`, at how many of them a bound was violated.
  """
  horizon: tf.Tensor
  num_proposals: tf.Tensor
  num_violations: tf.Tensor


class Grid(NamedTuple):
  """A bound that is constant in each cell.

  Attributes:
    bound: `[K] + chains + [clocks]`, 0 beyond `horizon`.
    width: Of a cell, shape `chains`.
    horizon: How far it holds, shape `chains`: less than K widths where the
      rates further on are not finite.
    slope: The largest |G_j'|, `chains + [clocks]`.
  """
  bound: tf.Tensor
  width: tf.Tensor
  horizon: tf.Tensor
  slope: tf.Tensor


def make_grid(
    log_prob: tf.Tensor, rates: tf.Tensor, slopes: tf.Tensor,
    horizon: tf.Tensor) -> Grid:
  """The bound from G_j and its derivatives.

  Args:
    log_prob: The log density at the times t_k, `[K + 1] + chains`. Beyond the
      support of a density its gradient may be finite, as that of log(x) is.
    rates: G_j(t_k), `[K + 1] + chains + [clocks]`.
    slopes: Their derivatives, likewise.
    horizon: t_K, shape `chains`.

  Returns:
    grid: `Grid`.
  """
  width = horizon / NUM_CELLS
  is_finite = tf.cast(tf.math.is_finite(log_prob) & tf.reduce_all(
      tf.math.is_finite(rates) & tf.math.is_finite(slopes), axis=-1), tf.int32)
  reached = tf.math.cumprod(is_finite, axis=0)[1:] > 0
  bound = bound_cells(rates, slopes, width)
  bound = tf.where(reached[..., tf.newaxis], bound, tf.zeros_like(bound))
  steep = tf.where(
      is_finite[..., tf.newaxis] > 0, tf.abs(slopes), tf.zeros_like(slopes))
  return Grid(
      bound, width,
      width * tf.reduce_sum(tf.cast(reached, width.dtype), axis=0),
      tf.reduce_max(steep, axis=0))


def bound_cells(
    rates: tf.Tensor, slopes: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
  """[G_j]_+ is at most this in each cell: `[K] + chains + [clocks]`."""
  width = width[..., tf.newaxis]
  left, right = rates[:-1], rates[1:]
  bend = slopes[1:] - slopes[:-1]
  is_concave = bend < 0.
  meeting = tf.clip_by_value(
      (left - right + slopes[1:] * width) / tf.where(
          is_concave, bend, -tf.ones_like(bend)), 0., width)
  # By the tangent that is less steep, which loses fewer digits.
  summit = tf.where(
      tf.abs(slopes[:-1]) < tf.abs(slopes[1:]),
      left + slopes[:-1] * meeting, right - slopes[1:] * (width - meeting))
  ends = tf.maximum(tf.maximum(left, right), 0.)
  return tf.where(is_concave, tf.maximum(ends, summit), ends)


def first_times(grid: Grid, exponential: tf.Tensor) -> tf.Tensor:
  """The first time of each clock at the rate of its bound.

  Args:
    grid: `Grid`.
    exponential: E, `chains + [clocks]`.

  Returns:
    times: t with int_0^t bound = E, infinite beyond the horizon; likewise.
  """
  width = grid.width[..., tf.newaxis]
  total = tf.cumsum(grid.bound * width, axis=0)
  before = total - grid.bound * width
  # In the first cell whose integral reaches E.
  inside = (before <= exponential) & (exponential < total)
  time = tf.reduce_sum(tf.where(
      inside, _starts(grid) * width + tf.math.divide_no_nan(
          exponential - before, grid.bound), tf.zeros_like(total)), axis=0)
  return tf.where(
      tf.reduce_any(inside, axis=0), time,
      tf.constant(float('inf'), time.dtype))


def upper_at(grid: Grid, time: tf.Tensor) -> tf.Tensor:
  """The bound of each clock at a time of shape `chains`.

  At the edge of two cells it is the larger one: rounding may have put a time
  there. Infinite of a grid without a cell, at whose start nothing can ring.
  """
  cell = (time / grid.width)[..., tf.newaxis]
  starts, slack = _starts(grid), 1e-3
  inside = (starts - slack <= cell) & (cell <= starts + 1. + slack)
  upper = tf.reduce_max(
      tf.where(inside, grid.bound, tf.zeros_like(grid.bound)), axis=0)
  return tf.where(
      grid.horizon[..., tf.newaxis] > 0., upper,
      tf.constant(float('inf'), upper.dtype))


def _starts(grid):
  """0, 1, ..., K - 1 in the rank of the bound."""
  return tf.reshape(
      tf.range(NUM_CELLS, dtype=grid.bound.dtype),
      [NUM_CELLS] + [1] * (grid.bound.shape.rank - 1))


def first_state(rates: tf.Tensor, slopes: tf.Tensor) -> GridState:
  """With the horizon at which about one event is due.

  Args:
    rates: G_j at the first state, `chains + [clocks]`.
    slopes: Their derivatives, likewise.

  Returns:
    state: `GridState`.
  """
  scale = tf.reduce_sum(tf.abs(rates), axis=-1) + tf.sqrt(
      tf.reduce_sum(tf.abs(slopes), axis=-1))
  zero = tf.zeros_like(scale, tf.int64)
  known = tf.math.is_finite(scale) & (scale > 0.)
  return GridState(
      1. / tf.where(known, scale, tf.ones_like(scale)), zero, zero)


def next_state(
    state: GridState, grid: Grid, duration: tf.Tensor, event: tf.Tensor,
    is_violated: tf.Tensor,
) -> GridState:
  """The state after an event.

  Args:
    state: That before.
    grid: The `Grid` of the event.
    duration: The time to it.
    event: The `Event`; refreshments leave the horizon as it is.
    is_violated: `bool`, whether a bound was violated there.

  Returns:
    state: `GridState`.
  """
  rang = (event == int(base.Event.REJECTION)) | (
      event == int(base.Event.BOUNCE))
  is_cut = grid.horizon < (NUM_CELLS - 0.5) * grid.width
  change = tf.where(
      rang, _RANG + tf.where(duration < grid.width, _RANG_IN_FIRST_CELL, 0.),
      tf.where(event == int(base.Event.HORIZON), _REACHED, 0.))
  change = tf.where(is_cut, _NOT_FINITE, change)
  return GridState(
      state.horizon * tf.cast(2.**change, state.horizon.dtype),
      state.num_proposals + tf.cast(rang, tf.int64),
      state.num_violations + tf.cast(is_violated, tf.int64))


def finding(state: GridState) -> gradients_lib.Finding:
  """The share of proposals at which a bound was violated, for `summary`."""
  violations, proposals = (
      float(tf.reduce_sum(x))
      for x in (state.num_violations, state.num_proposals))
  share = violations / max(1., proposals)
  is_fine = share <= _LARGEST_SHARE
  return gradients_lib.Finding(
      'violated bounds, share of proposals', share, is_fine,
      'It has to be below 0.01.' + ('' if is_fine else (
          ' Events come too rarely where it is violated: give a rate_bound.')))


def gradients_and_derivatives(
    fn: Callable[..., tf.Tensor],
    parts: Sequence[tf.Tensor],
    velocity: Sequence[tf.Tensor],
) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
  """A log density, its gradients, and their derivatives along the velocity.

  Args:
    fn: The log density, a callable of the parts.
    parts: List of tensors.
    velocity: List of tensors in their shapes.

  Returns:
    log_prob: One value a chain.
    gradients: List of tensors.
    derivatives: List of tensors, the Hessian times the velocity.
  """
  def value_and_gradients(*parts):
    value, gradients = states.value_and_gradients(fn, parts)
    return [value, *gradients]

  (log_prob, *gradients), (_, *derivatives) = states.values_and_derivatives(
      value_and_gradients, parts, velocity)
  return log_prob, gradients, derivatives
