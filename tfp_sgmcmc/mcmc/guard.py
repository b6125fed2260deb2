"""A guard that takes a chain back where it has blown up.

With T the temperature, d coordinates, and K the mean of p^2 over them, a chain
goes back to its anchor where its log density or momentum is not finite, or K is
above

  25 max(T_0, K_0)                         while the settings are being found,
  max((3 + 30 sqrt(2 / d)) T_0, 25 K_1)    then.

It starts at rest there, p = 0. The anchor is where the chain was at the last
but one multiple of S steps, S those of five passes over the data, 100 at least
and 1,000 at most. A later state will not do. A row that has become steep since
may have been in no minibatch, and from there the chain would fall again each
time that it comes.

T_0 is the largest T of the last some hundred steps, for a chain that cools
takes time; K_0 is the mean of K over the last 50 steps of the adaptation; and
K_1 is K_0 where that is above 2 T_0, so that the noise of minibatches is most
of the heat, else 0. After a hundred returns a chain is let go, and reported as
one that failed.

Under the law of the chain K is T times a chi-square over its d degrees of
freedom: it is beyond the second limit less than once in 10^10 steps for any d,
so that the guard does not change the law.

A chain that finds itself elsewhere than its last step left it (its weights were
set from outside, or a search goes on from an earlier draw) begins anew there:
that place is its anchor, its momentum is the old one scaled to K = T, and
thermostat, T_0 and K_0 are those of a start. What tells is a few coordinates of
each part. (No momentum is drawn: a condition on the values of one chain could
not be vectorised over several.)
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = [
    'Guarded', 'MOST_RETURNS', 'Seen', 'Step', 'is_anchor',
    'kinetic_temperature', 'look', 'mean_where', 'select_by_chain', 'start',
    'stay', 'take_back']

MOST_RETURNS = 100
_SPACING_OF_ANCHORS, _PASSES = (100., 1000.), 5.
_HOT, _STEPS_OF_HEAT = 25., 50.
_COOLING = 0.995
# Compared are so many coordinates of each part, and a change counts from this
# share of the largest of them on, which is far above rounding.
_NUM_COMPARED, _CHANGE = 8, 1e-3


class Guarded(NamedTuple):
  """What the guard keeps.

  Attributes:
    anchor: List over the parts, the state to go back to.
    next_anchor: Likewise, the one that it will be next.
    heat: Scalar, K_0.
    temperature: Scalar, T_0.
    num_returns: `int32`, shape `chains`, how often a chain was taken back.
    num_late_returns: Likewise, after the adaptation.
    footprint: Shape `chains + [k]`, a few coordinates of each part, by which a
      state is known again.
  """
  anchor: list[tf.Tensor]
  next_anchor: list[tf.Tensor]
  heat: tf.Tensor
  temperature: tf.Tensor
  num_returns: tf.Tensor
  num_late_returns: tf.Tensor
  footprint: tf.Tensor


class Step(NamedTuple):
  """A step: states and results at both ends, T, and what it is for.

  Whether it is one of the adaptation, whether its end is kept, and the sizes of
  the parts where the state is one vector of several.
  """
  start: list[tf.Tensor]
  end: list[tf.Tensor]
  old: Any
  new: Any
  temperature: tf.Tensor
  is_adapting: tf.Tensor
  is_anchor: tf.Tensor
  part_sizes: Sequence[int] | None = None


class Seen(NamedTuple):
  """What the guard sees of a step.

  Attributes:
    heat: Shape `chains`, K.
    has_failed: `bool`, shape `chains`, whether it blew up in this step.
    is_elsewhere: Likewise, whether it began the step elsewhere than it ended
      the one before.
    any_failed: `bool` scalar.
    is_usable: `bool` scalar, whether no chain is one of these, so that the step
      tells something of the next.
  """
  heat: tf.Tensor
  has_failed: tf.Tensor
  is_elsewhere: tf.Tensor
  any_failed: tf.Tensor
  is_usable: tf.Tensor


def start(
    parts: Sequence[tf.Tensor],
    inner: Any,
    temperature: tf.Tensor,
    part_sizes: Sequence[int] | None = None,
) -> Guarded:
  """What the guard keeps at the start of a chain."""
  none = tf.zeros(tf.shape(inner.target_log_prob), tf.int32)
  return Guarded(
      [tf.identity(part) for part in parts],
      [tf.identity(part) for part in parts], temperature, temperature, none,
      none, _footprint(
          parts, inner.target_log_prob.shape.rank, temperature.dtype,
          part_sizes))


def look(guarded: Guarded, step: Step, is_at_rest: tf.Tensor) -> Seen:
  """Looks at a step, before anything is learned from it.

  Args:
    guarded: `Guarded`, as it was before the step.
    step: `Step`.
    is_at_rest: `bool` scalar, whether no K is too large yet: a cold chain
      starts at rest, and any K is far above that.
  """
  dtype = step.temperature.dtype
  log_prob = step.new.target_log_prob
  rank = log_prob.shape.rank
  heat = kinetic_temperature(step.new.momentum, rank, dtype)
  size = tf.cast(states.num_coordinates(step.end, rank), dtype)
  largest = _largest(guarded, step)
  tight = tf.maximum(
      (3. + 30. * tf.sqrt(2. / size)) * largest,
      tf.where(guarded.heat > 2. * largest, _HOT * guarded.heat, 0.))
  limit = tf.where(
      step.is_adapting, _HOT * tf.maximum(largest, guarded.heat), tight)
  limit = tf.where(is_at_rest, dtype.max, limit)
  has_failed = ~(
      (heat <= limit) & tf.math.is_finite(tf.cast(log_prob, dtype)))
  # A chain that does so again and again is reported as any other is.
  has_failed &= guarded.num_returns < MOST_RETURNS
  now = _footprint(step.start, rank, dtype, step.part_sizes)
  change = tf.abs(now - guarded.footprint)
  most = _CHANGE * tf.reduce_max(tf.abs(now), axis=-1, keepdims=True)
  is_elsewhere = tf.reduce_all(tf.math.is_finite(now), axis=-1) & ~(
      tf.reduce_all(change <= most, axis=-1))
  has_failed &= ~is_elsewhere
  any_failed = tf.reduce_any(has_failed)
  return Seen(
      heat, has_failed, is_elsewhere, any_failed,
      ~(any_failed | tf.reduce_any(is_elsewhere)))


def take_back(
    guarded: Guarded,
    seen: Seen,
    step: Step,
    first_heat: tf.Tensor,
) -> tuple[list[tf.Tensor], Any, Guarded]:
  """Puts chains where they are to go on, and keeps what the next step needs.

  Args:
    guarded: `Guarded`, as it was before the step.
    seen: `Seen`, of the step.
    step: `Step`.
    first_heat: Scalar, K_0 of a chain that begins anew.

  Returns:
    The state, the kernel's results, and `Guarded`.
  """
  old, new = step.old, step.new
  is_back = seen.has_failed | seen.is_elsewhere
  anchor = states.select(seen.is_elsewhere, step.start, guarded.anchor)
  parts = states.select(is_back, anchor, step.end)
  new = new._replace(
      momentum=states.select(
          is_back, _first_momentum(seen, step), new.momentum),
      grads_target_log_prob=states.select(
          is_back, [tf.zeros_like(g) for g in parts],
          new.grads_target_log_prob),
      target_log_prob=tf.where(
          is_back, old.target_log_prob, new.target_log_prob),
      gradient_estimator_results=select_by_chain(
          is_back, old.gradient_estimator_results,
          new.gradient_estimator_results),
      thermostat=select_by_chain(
          is_back, tf.nest.map_structure(tf.zeros_like, new.thermostat),
          new.thermostat))
  is_kept = ~is_back & step.is_anchor
  next_anchor = states.select(is_back, anchor, guarded.next_anchor)
  return parts, new, _kept(
      guarded, seen, step, first_heat, parts,
      states.select(is_kept, next_anchor, anchor),
      states.select(is_kept, parts, next_anchor))


def stay(
    guarded: Guarded, seen: Seen, step: Step, first_heat: tf.Tensor) -> Guarded:
  """What `take_back` keeps where the guard does nothing, and sets no anchor."""
  return _kept(
      guarded, seen, step, first_heat, step.end, guarded.anchor,
      guarded.next_anchor)


def is_anchor(step: tf.Tensor, batch_share: tf.Tensor) -> tf.Tensor:
  """Whether a state is one of those that a chain may go back to.

  Args:
    step: Scalar integer, the number of the step that led there.
    batch_share: Scalar, b / N; 0 where a gradient is that of all rows.

  Returns:
    is_anchor: `bool` scalar.
  """
  spacing = tf.round(tf.clip_by_value(
      tf.math.divide_no_nan(_PASSES, batch_share), *_SPACING_OF_ANCHORS))
  return tf.equal(step % tf.cast(spacing, step.dtype), 0)


def _kept(guarded, seen, step, first_heat, parts, anchor, next_anchor):
  """`Guarded` after a step that ends in `parts`."""
  begins = tf.reduce_all(seen.is_elsewhere)
  # Over the chains that are not lost.
  is_finite = tf.math.is_finite(seen.heat)
  window = tf.clip_by_value(
      tf.cast(step.new.step, seen.heat.dtype) / 2., 1., _STEPS_OF_HEAT)
  heat = tf.where(
      seen.is_usable & tf.reduce_any(is_finite),
      guarded.heat
      + (mean_where(is_finite, seen.heat) - guarded.heat) / window,
      tf.where(begins, first_heat, guarded.heat))
  return Guarded(
      anchor=anchor,
      next_anchor=next_anchor,
      heat=tf.where(step.is_adapting, heat, guarded.heat),
      temperature=tf.where(
          begins, step.temperature, _largest(guarded, step)),
      num_returns=guarded.num_returns + tf.cast(seen.has_failed, tf.int32),
      num_late_returns=guarded.num_late_returns + tf.cast(
          seen.has_failed & ~step.is_adapting, tf.int32),
      footprint=_footprint(
          parts, step.new.target_log_prob.shape.rank, seen.heat.dtype,
          step.part_sizes))


def kinetic_temperature(
    momentum: Sequence[tf.Tensor], chain_rank: int, dtype: tf.DType,
) -> tf.Tensor:
  """K, the mean of p^2 over all coordinates, shape `chains`."""
  total = sum(
      tf.cast(states.sum_event(tf.square(p), chain_rank), dtype)
      for p in states.joined(momentum, chain_rank))
  return total / tf.cast(states.num_coordinates(momentum, chain_rank), dtype)


def mean_where(mask: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
  """The mean over the chains for which the mask holds; 0 if there are none."""
  number = tf.maximum(tf.reduce_sum(tf.cast(mask, values.dtype)), 1.)
  return tf.reduce_sum(
      states.select(mask, values, tf.zeros_like(values)),
      axis=list(range(mask.shape.rank))) / number


def select_by_chain(
    mask: tf.Tensor,
    new: hints.Nested,
    old: hints.Nested,
) -> Any:
  """`states.select` of the tensors that have the axes of chains.

  Args:
    mask: `bool`, shape `chains`.
    new: Nested structure of tensors.
    old: The same structure, from which all other tensors are.

  Returns:
    selected: The same structure.
  """
  def select(a, b):
    if not b.shape[:mask.shape.rank].is_compatible_with(mask.shape):
      return b
    return states.select(mask, a, b)

  return tf.nest.map_structure(select, new, old)


def _first_momentum(seen, step):
  """Of a chain that is elsewhere, the old one with K = T; else 0."""
  rank, dtype = seen.heat.shape.rank, step.temperature.dtype
  scale = tf.sqrt(tf.math.divide_no_nan(
      step.temperature, kinetic_temperature(step.old.momentum, rank, dtype)))
  is_kept = seen.is_elsewhere & tf.math.is_finite(scale)
  scale = tf.where(is_kept, scale, tf.zeros_like(scale))
  return [
      tf.math.multiply_no_nan(p, states.expand(tf.cast(scale, p.dtype), p))
      for p in step.old.momentum]


def _largest(guarded, step):
  """T_0."""
  return tf.maximum(step.temperature, _COOLING * guarded.temperature)


def _footprint(parts, chain_rank, dtype, part_sizes):
  """The first coordinates of each part, one after the other."""
  if part_sizes is not None:
    starts = np.cumsum([0, *part_sizes[:-1]])
    places = np.concatenate([
        start + np.arange(min(size, _NUM_COMPARED))
        for start, size in zip(starts, part_sizes)])
    return tf.cast(
        tf.gather(parts[0], places.astype(np.int32), axis=-1), dtype)
  return tf.concat([
      tf.cast(states.flatten([part], chain_rank)[..., :_NUM_COMPARED], dtype)
      for part in parts], axis=-1)
