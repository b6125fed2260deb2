"""What the continuous-time kernels share: velocities, events, failures.

A particle moves along straight lines, theta + v t, and its velocity changes at
random times. With U = -log p / T, the potential, and G(t) = v . grad U along
the line, the events of the bouncy particle sampler come at the rate [G(t)]_+;
thinning finds them: they are proposed at a larger rate, and accepted with
probability [G]_+ over that rate.

One `one_step` of a kernel goes from one event to the next, of any kind
(`Event`), and estimates one gradient. Its states are the corners of a path, and
not equally weighted draws: `UniformTime` and `Trajectory` read the path.
"""

from collections.abc import Sequence
import enum
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import errors
from tfp_sgmcmc import kernel
from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = [
    'Event',
    'PDMPKernel',
    'Seeds',
    'all_finite',
    'dot',
    'draw_velocity',
    'exponential',
    'failure',
    'move',
    'next_event',
    'reflect',
    'refresh_velocity',
]


class Event(enum.IntEnum):
  """What happened at the end of a segment of a path.

  `REJECTION`: a proposed bounce was rejected, nothing changed. `BOUNCE`: the
  velocity was reflected (zig-zag: a component changed its sign). `REFRESHMENT`:
  the velocity was drawn anew. `HORIZON`: the bound on the rate ends here,
  nothing changed.
  """
  REJECTION = 0
  BOUNCE = 1
  REFRESHMENT = 2
  HORIZON = 3


class Seeds(NamedTuple):
  """The seeds of one event, one for each use."""
  velocity: tf.Tensor
  gradient: tf.Tensor
  time: tf.Tensor
  accept: tf.Tensor


class PDMPKernel(kernel.GradientKernel):
  """Base of the kernels that move in continuous time, an event a step.

  A subclass passes its arguments as `parameters` and defines `_start` and
  `_one_step` on lists of state parts. Its results have at least the fields

    step: `int64` scalar, the number of events.
    target_log_prob: Estimate of the log density at the event, shape `chains`.
    gradient_estimator_results: The state of the gradient estimator.
    velocity: List with v for each part, after the event.
    duration: Time from the event before to this one, shape `chains`.
    event: What happened, an `Event` as `int32`, shape `chains`.
    rate_ratio: The estimated rate over its bound at the event, shape `chains`,
      0 where G is negative; above 1 the bound is violated. 0 if the state has
      become NaN for a reason other than a violated bound.

  and the method `failure(state)` (see `errors`): the function `failure` of this
  file.

  `Trajectory` and `UniformTime` use only `duration`, `event` and `rate_ratio`:
  between two states the path is a straight line at constant speed.

  On a failure (a gradient that is not finite or, in an exact kernel, a violated
  bound) the state becomes NaN and stays NaN, so no driver can overlook it. In
  eager mode a failure raises an error at once, unless the driver checks the
  results itself (`kernel.failures_left_to_caller`).
  """

  _Seeds = Seeds
  _step_name = 'event'
  _raises_eagerly = True

  def __init__(self, parameters: dict[str, Any]):
    """Checks and keeps the arguments that all these kernels have.

    Args:
      parameters: The arguments of the subclass's constructor, by name; among
        them `refresh_rate`, `refresh_fraction` and `temperature`.
    """
    checks.numeric('refresh_rate', parameters['refresh_rate'], 0., strict=False)
    checks.scalar('refresh_rate', parameters['refresh_rate'])
    checks.positive_share('refresh_fraction', parameters['refresh_fraction'])
    checks.positive_number('temperature', parameters['temperature'])
    super().__init__(parameters)

  @property
  def _temperature(self):
    return self._parameters['temperature']

  def _refreshment_time(self, chains, dtype, seed):
    """The time to the next refreshment, for each chain."""
    rate = states.cast(self._parameters['refresh_rate'], dtype)
    time = exponential(chains, seed, dtype, stream=_REFRESHMENT_STREAM)
    return tf.where(
        rate > 0., time / tf.where(rate > 0., rate, 1.),
        tf.constant(float('inf'), dtype))

  def _refresh(self, velocity, is_refreshed, seed):
    """The velocity, drawn anew in the chains where `is_refreshed`."""
    refreshed = refresh_velocity(
        self._velocity_law, velocity, self._parameters['refresh_fraction'],
        is_refreshed.shape.rank, seed)
    return states.select(is_refreshed, refreshed, velocity)

  @property
  def _velocity_law(self):
    """The invariant law of the velocity: "sphere", "gaussian" or "signs"."""
    return self._parameters['velocity']


# Of the seed for times: stream 0 is the proposals'.
_REFRESHMENT_STREAM = 1


def exponential(
    shape: hints.Shape, seed: tf.Tensor, dtype: tf.DType, stream: int = 0,
) -> tf.Tensor:
  """Unit exponential numbers, by inversion; at most 16.6 (36.7 in float64)."""
  return -tf.math.log1p(-random.uniform(shape, seed, dtype, stream))


def next_event(
    proposal: tf.Tensor, refreshment: tf.Tensor, horizon: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
  """The first of three times, and its `Event` (a proposal as a rejection).

  Args:
    proposal: Time to the next proposed bounce, shape `chains`.
    refreshment: Time to the next refreshment, likewise.
    horizon: How long the bound holds, likewise.

  Returns:
    duration: Time to the event.
    event: `REJECTION`, `REFRESHMENT` or `HORIZON`, `int32`.
  """
  first = tf.minimum(proposal, refreshment)
  event = tf.where(
      refreshment < proposal, int(Event.REFRESHMENT), int(Event.REJECTION))
  return tf.minimum(first, horizon), tf.where(
      horizon < first, int(Event.HORIZON), event)


def dot(
    a: Sequence[tf.Tensor], b: Sequence[tf.Tensor], chain_rank: int,
) -> tf.Tensor:
  """The inner product over all coordinates of all parts, shape `chains`."""
  return sum(states.sum_event(x * y, chain_rank) for x, y in zip(a, b))


def move(
    parts: Sequence[tf.Tensor], velocity: Sequence[tf.Tensor],
    duration: tf.Tensor,
) -> list[tf.Tensor]:
  """theta + v t, with a time for each chain."""
  return [
      part + states.expand(duration, part) * v
      for part, v in zip(parts, velocity)]


def reflect(
    velocity: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor],
    chain_rank: int,
) -> list[tf.Tensor]:
  """v - 2 (v . g) / |g|^2 g, Pakman et al. (2017), equation 4."""
  squared = dot(gradients, gradients, chain_rank)
  along = 2. * tf.math.divide_no_nan(
      dot(velocity, gradients, chain_rank), squared)
  return [
      v - states.expand(along, v) * g for v, g in zip(velocity, gradients)]


def draw_velocity(
    law: str, parts: Sequence[tf.Tensor], chain_rank: int, seed: tf.Tensor,
) -> list[tf.Tensor]:
  """A velocity of "sphere" (|v| = 1), "gaussian" or "signs" (-1 and 1)."""
  noise = random.normal_like(parts, seed)
  if law == 'gaussian':
    return noise
  if law == 'signs':
    return [tf.where(xi < 0., -tf.ones_like(xi), 1.) for xi in noise]
  return _normalize(noise, chain_rank)


def refresh_velocity(
    law: str, velocity: Sequence[tf.Tensor], refresh_fraction: hints.TensorLike,
    chain_rank: int, seed: tf.Tensor,
) -> list[tf.Tensor]:
  """A new velocity: a share of the old one's variance is replaced.

    gaussian:  v' = sqrt(1 - s) v + sqrt(s) xi,  s = refresh_fraction
    sphere:    the same with sqrt(d) v, and then v' / |v'|
    signs:     each is drawn anew with probability s

  Each leaves the law of the velocity unchanged; the second since it has no
  preferred direction. A share of 1 is an independent draw.
  """
  if law == 'signs':
    fresh = draw_velocity(law, velocity, chain_rank, random.fold_in(seed, 0))
    seed = random.fold_in(seed, 1)
    return [
        tf.where(
            random.uniform(compat.shape(v), seed, v.dtype, stream)
            < states.cast(refresh_fraction, v.dtype), new, v)
        for stream, (v, new) in enumerate(zip(velocity, fresh))]
  scale = 1.
  if law == 'sphere':
    scale = tf.sqrt(tf.cast(
        states.num_coordinates(velocity, chain_rank), tf.float64))
  mixed = []
  for v, xi in zip(velocity, random.normal_like(velocity, seed)):
    r = states.cast(refresh_fraction, v.dtype)
    mixed.append(
        tf.sqrt(1. - r) * tf.cast(scale, v.dtype) * v + tf.sqrt(r) * xi)
  return _normalize(mixed, chain_rank) if law == 'sphere' else mixed


def _normalize(velocity, chain_rank):
  inverse_norm = tf.math.rsqrt(dot(velocity, velocity, chain_rank))
  return [v * states.expand(inverse_norm, v) for v in velocity]


def all_finite(tensors: Sequence[tf.Tensor], chain_rank: int) -> tf.Tensor:
  """Whether all coordinates are finite, for each chain."""
  return tf.reduce_all(tf.stack([
      tf.reduce_all(
          tf.math.is_finite(t), axis=states.event_axes(t, chain_rank))
      for t in tensors]), axis=0)


def failure(results: Any, state: hints.State) -> errors.Failure | None:
  """Why a chain cannot go on: the `failure` of these kernels' results.

  Args:
    results: What has `rate_ratio` of an event, with concrete values.
    state: Tensor or list of tensors, the position at the event, likewise.

  Returns:
    failure: `errors.Failure`, or None.
  """
  rate_ratio = tf.convert_to_tensor(results.rate_ratio)
  parts = [tf.convert_to_tensor(part) for part in tf.nest.flatten(state)]
  failed = ~all_finite(parts, rate_ratio.shape.rank).numpy()
  largest = np.where(failed, rate_ratio.numpy(), 0.)
  if np.any(largest > 1.):
    chain = np.unravel_index(np.argmax(largest), largest.shape)
    return errors.Failure(
        errors.RateBoundError,
        f'the rate of events in {errors.name_chain(list(map(int, chain)))} is '
        f'{np.max(largest):.4g} times its rate_bound, and the chain would not '
        'be exact',
        'Raise the bound by at least that factor, or look for an error in it, '
        'such as the prior or the factor N left out.')
  return errors.non_finite(
      state, rate_ratio.shape.rank,
      'The gradient of the log density is NaN or infinite there, or there is '
      'no further event, the rate being 0 for ever (raise refresh_rate). '
      f'{errors.OTHER_CAUSES}.')
