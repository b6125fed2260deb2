"""Bounds on the rate of events found along the path, where none is known.

From a state at velocity v the rates of the clocks, [G_j(t)]_+, are evaluated at
equal times t_k, from one before the start to one beyond a horizon of K cells.
In the cell from t_k to t_k+1 the bound on G_j is the largest of G_j(t_k),
G_j(t_k+1) and, where it is higher, the point at which two lines meet: that
through t_k-1 and t_k, and that through t_k+1 and t_k+2. It holds wherever G_j
is convex in the cell, or concave there and in its neighbours. The first time of
a clock inverts the integral of a piecewise constant rate.

After Andral and Kamatani (2024), who take the tangents at t_k and t_k+1, and so
second derivatives of the log density, where secants need first ones alone; and
Corbella et al. (2022), who search one maximum by optimisation.

Where G_j bends both ways the bound may be violated. An event tells whether it
is, at its time: such events are accepted as they are, and counted.

The law does not depend on the horizon. It follows the events, by steps of its
logarithm: up where the horizon is reached, down where a clock rings before,
more where it rings in the first cell, so that about one in six reaches it.
"""

from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc.pdmp import base

__all__ = [
    'FIRST_TIMES', 'Grid', 'GridState', 'NUM_CELLS', 'POINTS', 'bound_cells',
    'finding', 'first_state', 'first_times', 'make_grid', 'next_state',
    'upper_at']

NUM_CELLS = 10  # K.
# The times t_k, in cells; and those by which the first horizon is chosen.
POINTS = tuple(range(-1, NUM_CELLS + 2))
FIRST_TIMES = tuple(2.**k for k in range(-24, 11))
_MOST_EVENTS = 2.  # In the first horizon, about.
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
    slope: The largest slope of a secant, `chains + [clocks]`.
  """
  bound: tf.Tensor
  width: tf.Tensor
  horizon: tf.Tensor
  slope: tf.Tensor


def make_grid(
    log_prob: tf.Tensor, rates: tf.Tensor, horizon: tf.Tensor) -> Grid:
  """The bound from G_j at the times t_k.

  Args:
    log_prob: The log density there, `[K + 3] + chains`. Beyond the support of a
      density its gradient may be finite, as that of log(x) is.
    rates: G_j(t_k), `[K + 3] + chains + [clocks]`.
    horizon: Of K cells, shape `chains`.

  Returns:
    grid: `Grid`.
  """
  width = horizon / NUM_CELLS
  is_finite = tf.math.is_finite(log_prob) & tf.reduce_all(
      tf.math.is_finite(rates), axis=-1)
  reached = tf.math.cumprod(
      tf.cast(is_finite[1:-1], tf.int32), axis=0)[1:] > 0
  bound, slopes = bound_cells(rates, is_finite, width)
  bound = tf.where(reached[..., tf.newaxis], bound, tf.zeros_like(bound))
  return Grid(
      bound, width,
      width * tf.reduce_sum(tf.cast(reached, width.dtype), axis=0),
      tf.reduce_max(tf.abs(slopes), axis=0))


def bound_cells(
    rates: tf.Tensor, is_finite: tf.Tensor, width: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
  """A bound on [G_j]_+ in each cell.

  Args:
    rates: G_j(t_k), `[K + 3] + chains + [clocks]`.
    is_finite: `bool`, which of the times count, `[K + 3] + chains`.
    width: Of a cell, shape `chains`.

  Returns:
    bound: `[K] + chains + [clocks]`.
    slopes: Of the secants, `[K + 2] + chains + [clocks]`, 0 where a time does
      not count.
  """
  width = width[..., tf.newaxis]
  is_known = (is_finite[:-1] & is_finite[1:])[..., tf.newaxis]
  slopes = tf.where(
      is_known, (rates[1:] - rates[:-1]) / width, tf.zeros_like(rates[1:]))
  left, right = rates[1:-2], rates[2:-1]
  rise, fall = slopes[:-2], slopes[2:]
  has_rise, has_fall = is_known[:-2], is_known[2:]
  bend = tf.where(rise > fall, rise - fall, tf.ones_like(rise))
  meeting = tf.clip_by_value((right - left - fall * width) / bend, 0., width)
  # By the line that is less steep, which loses fewer digits.
  summit = tf.where(
      tf.abs(rise) < tf.abs(fall), left + rise * meeting,
      right - fall * (width - meeting))
  ends = tf.maximum(tf.maximum(left, right), 0.)
  summit = tf.where(rise > fall, summit, ends)
  # With one line alone the summit is at the end of the cell that it lacks.
  summit = tf.where(has_rise, summit, right - fall * width)
  summit = tf.where(has_fall, summit, left + rise * width)
  return tf.where(
      has_rise | has_fall, tf.maximum(ends, summit), ends), slopes


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


def first_state(log_prob: tf.Tensor, rates: tf.Tensor) -> GridState:
  """With the longest horizon in which few events are due.

  Args:
    log_prob: The log density at `FIRST_TIMES`, `[times] + chains`.
    rates: G_j there, `[times] + chains + [clocks]`.

  Returns:
    state: `GridState`.
  """
  times = tf.reshape(
      tf.constant(FIRST_TIMES, rates.dtype),
      [-1] + [1] * (log_prob.shape.rank - 1))
  events = times * tf.reduce_sum(tf.maximum(rates, 0.), axis=-1)
  is_short = tf.math.is_finite(log_prob) & (events < _MOST_EVENTS)
  count = tf.reduce_sum(
      tf.math.cumprod(tf.cast(is_short, tf.int32), axis=0), axis=0)
  zero = tf.zeros_like(count, tf.int64)
  return GridState(
      tf.gather(
          tf.constant(FIRST_TIMES, rates.dtype), tf.maximum(count - 1, 0)),
      zero, zero)


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
