"""The thermostats of SGNHT: what the friction xi is, does and is driven by.

Each is four functions of tensors: `start` makes xi, and the integrators, in
`sgnht`, consist of

  force    xi p
  relax    p  <- e p + c z                the O of BADODAB
  update   xi <- xi + r (p' p / d - T)    r is h / mu in a step, or half of that

But for xi the arguments are lists over the parts of the state.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import collectives
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.mcmc import base

__all__ = [
    'THERMOSTATS', 'AtStep', 'Thermostat', 'by_pieces', 'kick_noise',
    'relaxation']

# Where an estimate of the noise is too large, this share is added all the same.
_LEAST_SHARE_OF_NOISE = 0.05
# Of a matrix exponential: it is the product of so many, each a series.
_NUM_PIECES, _NUM_TERMS = 4, 6


class AtStep(NamedTuple):
  """The numbers of one step: but for the last, lists over the parts.

  Attributes:
    step_size: h.
    scale: s; None for 1.
    mass: mu.
    diffusion: A.
    temperature: T.
    variance: V, that of the noise of s g.
    friction: gamma, the friction beside the thermostat.
    is_own: Whether each part is another piece on each replica.
    chain_rank: Python `int`, how many leading axes of the parts are chains.
  """
  step_size: Sequence[tf.Tensor]
  scale: Sequence[tf.Tensor] | None
  mass: Sequence[tf.Tensor]
  diffusion: Sequence[tf.Tensor]
  temperature: Sequence[tf.Tensor]
  variance: Sequence[tf.Tensor]
  friction: Sequence[tf.Tensor]
  is_own: Sequence[bool]
  chain_rank: int


class Thermostat(NamedTuple):
  """A thermostat, as functions of tensors.

  Attributes:
    start: `(diffusion, parts, target_log_prob, is_own)`, returns xi: A.
    force: `(xi, momentum, chain_rank)`, returns xi p.
    relax: `(xi, momentum, noise, at)`, at an `AtStep`; returns the momentum.
    update: `(xi, momentum, rate, temperature, chain_rank, is_own)`, returns xi.
  """
  start: Callable[..., Any]
  force: Callable[..., list[tf.Tensor]]
  relax: Callable[..., list[tf.Tensor]]
  update: Callable[..., Any]


def kick_noise(
    h: tf.Tensor, a: tf.Tensor, t: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
  """The standard deviation of the noise of "euler", of one part."""
  return tf.sqrt(_less(2. * a * t * h, tf.square(h) * v))


def relaxation(
    xi: tf.Tensor, h: tf.Tensor, a: tf.Tensor, t: tf.Tensor, v: tf.Tensor,
    gamma: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
  """The O of BADODAB, p <- e p + c z, of one part.

    e = exp(-x h),  c^2 = (A + gamma) T (1 - e^2) / x - h^2 V (1 + e)^2 / 4,
    x = xi + gamma

  Args:
    xi: The thermostat; of any sign, and x may be zero.
    h: The step size.
    a: The diffusion.
    t: The temperature.
    v: The variance of the noise of s g.
    gamma: The friction beside the thermostat.

  Returns:
    e: Tensor.
    c: Tensor.
  """
  xi, a = xi + gamma, a + gamma
  e = tf.exp(-xi * h)
  # (1 - exp(-x)) / x, x = 2 xi h.
  x = 2. * xi * h
  is_small = tf.abs(x) < 1e-6
  ratio = tf.where(
      is_small, 1. - x / 2.,
      -tf.math.expm1(-x) / tf.where(is_small, tf.ones_like(x), x))
  return e, tf.sqrt(_less(
      2. * a * t * h * ratio, tf.square(h * (1. + e) / 2.) * v))


def _less(variance, known):
  """What is left of the noise to add, at least a twentieth of it."""
  return tf.maximum(variance - known, _LEAST_SHARE_OF_NOISE * variance)


def _by_coordinate(start, spread, update):
  """A thermostat whose xi is, by `spread`, a friction xi_i of each coordinate.

  Several may share one: `spread` makes of xi a list over the parts.
  """
  def force(xi, momentum, chain_rank):
    del chain_rank
    return [x * p for x, p in zip(spread(xi, momentum), momentum)]

  def relax(xi, momentum, noise, at):
    found = base.each(
        relaxation, spread(xi, momentum), at.step_size, at.diffusion,
        at.temperature, at.variance, at.friction)
    return [e * p + c * z for (e, c), p, z in zip(found, momentum, noise)]

  return Thermostat(start, force, relax, update)


# xi: one number a chain; xi <- xi + r (p' p / d - T).


def _start_scalar(diffusion, parts, target_log_prob, is_own):
  return _mean(
      [tf.zeros_like(part) + a for part, a in zip(parts, diffusion)],
      target_log_prob.dtype, target_log_prob.shape.rank, is_own)


def _spread_scalar(xi, momentum):
  """xi of each part, of one tensor where they are alike."""
  made = {}
  for p in momentum:
    key = p.dtype, p.shape.rank
    if key not in made:
      made[key] = tf.cast(states.expand(xi, p), p.dtype)
  return [made[p.dtype, p.shape.rank] for p in momentum]


def _update_scalar(xi, momentum, rate, temperature, chain_rank, is_own):
  """Averages r (p_i^2 - T) over all coordinates of all parts of a chain."""
  if any(x.shape.rank != 0 for x in (*rate, *temperature)):
    return xi + _mean(
        [r * (tf.square(p) - t)
         for p, r, t in zip(momentum, rate, temperature)],
        xi.dtype, chain_rank, is_own)
  # Of one sum of squares, which XLA computes once if others ask for it too.
  if not any(is_own):
    momentum = states.joined(momentum, chain_rank)
    is_own = [False] * len(momentum)
  mean = _mean(
      [tf.square(p) for p in momentum], xi.dtype, chain_rank, is_own)
  r, t = (tf.cast(x[0], xi.dtype) for x in (rate, temperature))
  return xi + r * (mean - t)


def _mean(parts, dtype, chain_rank, is_own):
  """The mean over all coordinates of a chain, those of all replicas."""
  total, number = collectives.totals(
      dtype, is_own,
      [tf.cast(states.sum_event(x, chain_rank), dtype) for x in parts],
      [states.num_coordinates([x], chain_rank) for x in parts])
  return total / number


# xi_l: one number for each part and chain; as the scalar, of that part.


def _start_part(diffusion, parts, target_log_prob, is_own):
  return [
      _start_scalar([a], [part], target_log_prob, [own])
      for a, part, own in zip(diffusion, parts, is_own)]


def _spread_part(xi, momentum):
  return [
      tf.cast(states.expand(x, p), p.dtype) for x, p in zip(xi, momentum)]


def _update_part(xi, momentum, rate, temperature, chain_rank, is_own):
  return [
      _update_scalar(x, [p], [r], [t], chain_rank, [own])
      for x, p, r, t, own in zip(xi, momentum, rate, temperature, is_own)]


def by_pieces(sizes: Sequence[int]) -> Thermostat:
  """The thermostat "part" where the parts are pieces of one vector.

  Args:
    sizes: Python `int`s, how many coordinates each of the l pieces has.

  Returns:
    thermostat: `Thermostat`, whose xi is a list of one tensor, `chains + [l]`.
  """
  def start(diffusion, parts, target_log_prob, is_own):
    del is_own
    (a,), (part,) = diffusion, parts
    return [tf.cast(
        states.means_of_pieces(tf.zeros_like(part) + a, sizes),
        target_log_prob.dtype)]

  def spread(xi, momentum):
    (xi,), (p,) = xi, momentum
    return [tf.cast(states.over_pieces(xi, sizes), p.dtype)]

  def update(xi, momentum, rate, temperature, chain_rank, is_own):
    del chain_rank, is_own
    (xi,), (p,), (r,), (t,) = xi, momentum, rate, temperature
    return [xi + tf.cast(
        states.means_of_pieces(r * (tf.square(p) - t), sizes), xi.dtype)]

  return _by_coordinate(start, spread, update)


# xi_i: one number a coordinate; xi_i <- xi_i + r (p_i^2 - T).


def _start_diagonal(diffusion, parts, target_log_prob, is_own):
  del target_log_prob, is_own
  return [tf.zeros_like(part) + a for part, a in zip(parts, diffusion)]


def _spread_diagonal(xi, momentum):
  del momentum
  return xi


def _update_diagonal(xi, momentum, rate, temperature, chain_rank, is_own):
  del chain_rank, is_own
  return [
      x + r * (tf.square(p) - t)
      for x, p, r, t in zip(xi, momentum, rate, temperature)]


# Xi: a matrix over all coordinates; Xi <- Xi + r (p p' - T I).


def _start_matrix(diffusion, parts, target_log_prob, is_own):
  return _diagonal(states.flatten(
      _start_diagonal(diffusion, parts, target_log_prob, is_own),
      target_log_prob.shape.rank))


def _force_matrix(xi, momentum, chain_rank):
  flat = states.flatten(momentum, chain_rank)
  return states.unflatten(tf.linalg.matvec(xi, flat), momentum, chain_rank)


def _relax_matrix(xi, momentum, noise, at):
  """The O of BADODAB in three: half the friction, the noise, the other half.

    p <- E p,  p <- p + `kick_noise` z,  p <- E p,  E = exp(-h/2 Xi)

  Symmetric, so of second order as well. The exact O takes the eigenvalues of
  Xi, for which XLA has no code that all accelerators run, and for which
  TensorFlow raises an error where a chain is lost; E p takes products.
  `SGNHT` refuses a friction beside it.
  """
  p, z, h, c = _flat(
      momentum, at.chain_rank, momentum, noise, at.step_size, base.each(
          kick_noise, at.step_size, at.diffusion, at.temperature, at.variance))

  def half_of_friction(p):
    # By Taylor's series in four pieces: to 1e-6 for h Xi up to 4, and stable
    # up to 28, for the rare chains whose Xi swings far.
    for _ in range(_NUM_PIECES):
      term = p
      for k in range(1, _NUM_TERMS + 1):
        term = -h / (2. * _NUM_PIECES * k) * tf.linalg.matvec(xi, term)
        p = p + term
    return p

  return states.unflatten(
      half_of_friction(half_of_friction(p) + c * z), momentum, at.chain_rank)


def _update_matrix(xi, momentum, rate, temperature, chain_rank, is_own):
  del is_own
  p, r, t = _flat(momentum, chain_rank, momentum, rate, temperature)
  outer = p[..., :, tf.newaxis] * p[..., tf.newaxis, :]
  return xi + r[..., tf.newaxis] * (outer - _diagonal(t))


def _flat(parts, chain_rank, *values_of_parts):
  """Values that broadcast with the parts as vectors over all coordinates."""
  return [
      states.flatten(
          [tf.zeros_like(part) + v for part, v in zip(parts, values)],
          chain_rank)
      for values in values_of_parts]


def _diagonal(values):
  """As `tf.linalg.diag`, but never a literal of a program."""
  size = compat.shape(values)[-1]
  i = tf.reshape(compat.positions(size), [size])
  return tf.where(
      i == i[:, tf.newaxis], values[..., tf.newaxis],
      tf.zeros([], values.dtype))


THERMOSTATS = {
    'scalar': _by_coordinate(_start_scalar, _spread_scalar, _update_scalar),
    'part': _by_coordinate(_start_part, _spread_part, _update_part),
    'diagonal': _by_coordinate(
        _start_diagonal, _spread_diagonal, _update_diagonal),
    'matrix': Thermostat(
        _start_matrix, _force_matrix, _relax_matrix, _update_matrix)}
