"""The path of a continuous-time sampler, and averages along it.

Between two events the path is theta(s) = a + (b - a) s / tau, 0 <= s <= tau,
with a, b the states and tau the duration. Averages over time are sums over such
segments, Pakman et al. (2017), equation 19: exactly

  mean:           sum tau m / sum tau,                        m = (a + b) / 2
  second moment:  sum tau (m m' + (b - a) (b - a)' / 12) / sum tau

and by Gauss and Legendre's quadrature for any other function. All sums are in
float64.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states as states_lib
from tfp_sgmcmc.pdmp import base

__all__ = ['EventCounts', 'PathTrace', 'Trajectory', 'trace_path']


class PathTrace(NamedTuple):
  """The results of each event that a path needs; see `PDMPKernel`."""
  step: tf.Tensor
  duration: tf.Tensor
  event: tf.Tensor
  rate_ratio: tf.Tensor

  failure = base.failure  # type: ignore[misc]


def trace_path(state: hints.State, kernel_results: hints.Results) -> PathTrace:
  """A `trace_fn` that keeps only what `Trajectory.from_chain` needs.

  Args:
    state: Not used.
    kernel_results: The results of a continuous-time kernel.

  Returns:
    trace: `PathTrace`.
  """
  del state
  return PathTrace(*(
      getattr(kernel_results, name) for name in PathTrace._fields))


class EventCounts(NamedTuple):
  """How many events of each kind, over all chains, as Python `int`s.

  Attributes:
    events: All, one for each segment.
    bounces: Reflections, or changes of sign.
    rejections: Proposed bounces that were rejected.
    refreshments: Velocities drawn anew.
    horizons: Ends of the validity of a bound.
    violations: Proposals at which the estimated rate was above its bound.
  """
  events: int
  bounces: int
  rejections: int
  refreshments: int
  horizons: int
  violations: int


class Trajectory:
  """A path in continuous time.

  Made by `from_chain`. The path starts at the first of the states given, since
  the state before it is not known.

  #### Examples

  >>> kernel = sgmcmc.BouncyParticleSampler(
  ...     tfd.MultivariateNormalDiag(tf.zeros(2), tf.ones(2)).log_prob,
  ...     rate_bound=sgmcmc.pdmp.GaussianBound(1.))
  >>> @tf.function(autograph=False)  # For long runs jit_compile=True.
  ... def run():
  ...   return tfp.mcmc.sample_chain(
  ...       200, tf.zeros([100, 2]), kernel=kernel, num_burnin_steps=20,
  ...       trace_fn=sgmcmc.pdmp.trace_path, seed=[0, 0])
  >>> trajectory = sgmcmc.pdmp.Trajectory.from_chain(*run())
  >>> bool((abs(trajectory.mean()) < 0.1).all())
  True
  >>> second = trajectory.mean(lambda theta: theta[..., 0]**2)
  >>> bool(abs(second - 1.) < 0.15)
  True
  >>> trajectory.sample(500).shape  # A state at each of 500 equal times.
  TensorShape([500, 100, 2])
  >>> trajectory.counts.violations
  0
  """

  def __init__(self, states: hints.State, trace: PathTrace):
    """Holds the path; `from_chain` checks and makes it.

    Args:
      states: As `from_chain` takes them.
      trace: `PathTrace`.
    """
    self._form = states
    self._parts = [
        tf.convert_to_tensor(part) for part in states_lib.to_parts(states)]
    self._trace = PathTrace(*map(np.asarray, trace))
    self._durations = self._trace.duration[1:].astype(np.float64)
    self._event = self._trace.event[1:]
    self._num_chain_axes = self._durations.ndim - 1

  @property
  def num_chain_axes(self) -> int:
    """How many leading axes of a state are chains."""
    return self._num_chain_axes

  @classmethod
  def from_chain(
      cls,
      states: hints.State,
      kernel_results: hints.Results,
  ) -> 'Trajectory':
    """The path through the states of a chain of events.

    Args:
      states: What `tfp.mcmc.sample_chain` or `sample` returned for a
        continuous-time kernel: a tensor, or list of parts, with a leading axis
        of events. All events are needed: `num_steps_between_results=0`.
      kernel_results: Traced results of the same events: all of them, or what
        `trace_path` keeps.

    Returns:
      trajectory: `Trajectory` from the first state to the last.

    Raises:
      ValueError: If there are fewer than two events, or events were left out
        between the states.
      TypeError: If the results are not those of events.
      RateBoundError: If an exact kernel's rate was above its bound. Its
        `result` is the path before.
      NonFiniteError: If a state is not finite; likewise.
    """
    missing = [
        name for name in PathTrace._fields if not hasattr(kernel_results, name)]
    if missing:
      raise TypeError(
          f'kernel_results has no {" and no ".join(missing)}: traced results '
          'of a continuous-time kernel are needed, as trace_fn=lambda _, '
          'results: results or trace_fn=pdmp.trace_path give them. (The draws '
          'of UniformTime are at equal weights: they need no Trajectory.)')
    trace = trace_path(None, kernel_results)
    trace = PathTrace(*map(np.asarray, trace))
    parts = states_lib.to_parts(states)
    num_states = len(trace.duration)
    if any(len(part) != num_states for part in parts):
      raise ValueError(
          f'There are {[len(part) for part in parts]} states and the results '
          f'of {num_states} events: pass those of the same events.')
    if np.any(np.diff(trace.step) != 1):
      raise ValueError(
          'Events were left out between the states (their numbers start with '
          f'{trace.step[:3].tolist()}), and the path cannot be told from the '
          'others: set num_steps_between_results=0. For draws at equal '
          'distances of time sample pdmp.UniformTime(kernel, interval).')
    bad = ~base.all_finite(parts, trace.duration.ndim).numpy()
    if np.any(bad):
      raise cls._failed(states, trace, int(np.argwhere(bad)[0, 0]))
    if num_states < 2:
      raise ValueError(
          f'There is {num_states} event, and a path needs two at least, the '
          'ends of a segment: raise num_results.')
    return cls(states, trace)

  @classmethod
  def _failed(cls, states, trace, first):
    """The error of a chain that failed at the event of an index."""
    result, kept = None, f'There are {first} states before.'
    if first >= 2:
      result = cls(*tf.nest.map_structure(
          lambda leaf: leaf[:first], (states, trace)))
      kept = 'The path up to there is in the .result of this error.'
    step = int(trace.step[first])
    at_trace, at_states = tf.nest.map_structure(
        lambda leaf: leaf[first], (trace, states))
    return at_trace.failure(at_states).raised(
        f'At event {step:,}', step, kept, result)

  @property
  def duration(self) -> np.ndarray:
    """The length in time, for each chain, in float64."""
    return self._durations.sum(axis=0)

  @property
  def counts(self) -> EventCounts:
    """How many events of each kind there are, over all chains."""
    of = {kind: int(np.sum(self._event == kind)) for kind in base.Event}
    return EventCounts(
        self._event.size, of[base.Event.BOUNCE], of[base.Event.REJECTION],
        of[base.Event.REFRESHMENT], of[base.Event.HORIZON],
        int(np.sum(self._is_proposal & (self._trace.rate_ratio[1:] > 1.))))

  @property
  def violation_share(self) -> float:
    """The share of proposals at which the rate was above its bound."""
    return self.counts.violations / max(1, int(np.sum(self._is_proposal)))

  @property
  def _is_proposal(self):
    return np.isin(self._event, [base.Event.BOUNCE, base.Event.REJECTION])

  def mean(
      self,
      fn: Callable[..., Any] | None = None,
      num_nodes: int = 8,
      by_chain: bool = False,
  ) -> Any:
    """The average over time of a function of the state.

    Args:
      fn: Callable of the state's parts, in float64, with leading axes of
        segments and chains, which its result (a tensor, or nested ones) keeps.
        None is the state itself, integrated exactly.
      num_nodes: Python `int`: how many points of Gauss and Legendre's rule a
        segment has. It is exact for polynomials of degree 2 num_nodes - 1 along
        the path; take more if `fn` oscillates many times within a segment.
      by_chain: Python `bool`: an average for each chain, in place of one
        average over the time of all chains.

    Returns:
      mean: NumPy arrays in float64, in the form of the state or of `fn`'s
        result.
    """
    a, difference = self._segments()
    if fn is None:
      middle = [x + 0.5 * d for x, d in zip(a, difference)]
      return states_lib.like(
          self._form, [self._average(x, by_chain) for x in middle])
    num_nodes = checks.positive_integer('num_nodes', num_nodes)
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    total = None
    for node, weight in zip((nodes + 1.) / 2., weights / 2.):
      values = fn(*(
          tf.convert_to_tensor(x + node * d) for x, d in zip(a, difference)))
      averages = tf.nest.map_structure(
          lambda value, weight=weight: weight * self._average(
              np.asarray(value, np.float64), by_chain), values)
      total = averages if total is None else tf.nest.map_structure(
          np.add, total, averages)
    return total

  def covariance(self, by_chain: bool = False) -> np.ndarray:
    """The covariance over time, exactly.

    Args:
      by_chain: Python `bool`: a covariance for each chain, about its own mean.

    Returns:
      covariance: NumPy array in float64, `[d, d]` (after the chains' axes
        where `by_chain`), over the coordinates of all parts in their order.
    """
    a, difference = (self._flatten(parts) for parts in self._segments())
    middle = a + 0.5 * difference
    middle -= self._average(middle, by_chain)
    weights = self._weights(by_chain)[..., np.newaxis]
    second = sum(
        np.einsum('s...i,s...j->...ij', scale * weights * x, x)
        for scale, x in ((1., middle), (1. / 12., difference)))
    if by_chain:
      return second
    return np.sum(second, axis=tuple(range(self._num_chain_axes)))

  def sample(self, num: int) -> Any:
    """The states at `num` equally spaced times, the same number in each chain.

    They have equal weights, as draws of `UniformTime` have: the times are
    (k + 1/2) / num of the chain's duration.

    Args:
      num: Python `int`.

    Returns:
      states: In the form of the state, with a leading axis of `num` draws.
    """
    num = checks.positive_integer('num', num)
    chains = self._durations.shape[1:]
    ends = np.cumsum(self._durations, axis=0).reshape(
        [len(self._durations), -1])
    times = (np.arange(num) + 0.5)[:, np.newaxis] / num * ends[-1]
    segment = np.stack([
        np.searchsorted(ends[:, c], times[:, c]) for c in range(ends.shape[1])],
        axis=1)
    segment = np.minimum(segment, len(ends) - 1)
    columns = np.arange(ends.shape[1])
    durations = self._durations.reshape(ends.shape)[segment, columns]
    left = (ends[segment, columns] - times) / np.where(
        durations > 0., durations, 1.)
    drawn = []
    for part in self._parts:
      event = part.shape[1 + self._num_chain_axes:]
      flat = np.reshape(part, [len(part), ends.shape[1], -1]).astype(np.float64)
      a, b = flat[segment, columns], flat[segment + 1, columns]
      states = b - left[..., np.newaxis] * (b - a)
      drawn.append(tf.constant(
          states.reshape([num, *chains, *event]), part.dtype))
    return states_lib.like(self._form, drawn)

  def __repr__(self):
    counts = self.counts
    return (
        f'<Trajectory: {counts.events:,} events, {counts.bounces:,} bounces, '
        f'duration {self.duration.sum():.6g}>')

  def _segments(self):
    """Starts and differences of all segments, in float64."""
    parts = [np.asarray(part).astype(np.float64) for part in self._parts]
    return [p[:-1] for p in parts], [np.diff(p, axis=0) for p in parts]

  def _flatten(self, parts):
    shape = self._durations.shape
    return np.concatenate([p.reshape([*shape, -1]) for p in parts], axis=-1)

  def _weights(self, by_chain):
    """The share of each segment in the time of its chain, or of all."""
    total = self.duration if by_chain else self.duration.sum()
    return self._durations / total

  def _average(self, values, by_chain):
    """The average of a value for each segment, weighted by durations."""
    weights = self._weights(by_chain)
    if values.shape[:weights.ndim] != weights.shape:
      raise ValueError(
          f'fn returned shape {values.shape}, and its first axes have to be '
          f'those of the segments and chains, {weights.shape}: let it leave '
          'leading axes alone.')
    weights = weights.reshape(
        [*weights.shape, *[1] * (values.ndim - weights.ndim)])
    axes = 0 if by_chain else tuple(range(1 + self._num_chain_axes))
    return np.sum(weights * values, axis=axes)
