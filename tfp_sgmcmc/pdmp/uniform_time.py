"""The states of a continuous-time sampler at equal intervals of time.

With states and durations of the events of a kernel, the path between two events
is theta(s) = a + (b - a) s / tau. Step k is at time k times the interval:

  as long as less than an interval is left of the segment to the last event, the
  kernel goes on to its next;
  then the state is read off the segment that the new time lies in.

What is left of that segment is kept: the path is that of the kernel.
"""

from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import errors
from tfp_sgmcmc import kernel as kernel_lib
from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.pdmp import base

__all__ = ['UniformTime', 'UniformTimeResults']


@kernel_lib.refuses_corrections
class UniformTimeResults(NamedTuple):
  """Results of `UniformTime`.

  Attributes:
    step: `int64` scalar, the number of intervals.
    target_log_prob: The inner kernel's, at its last event, shape `chains`.
    segment_start: List with the position at the last event but one.
    segment_end: List with the position at the last event, which lies ahead.
    remaining: The time from the state to that event, shape `chains`.
    num_events: `int64`, events in this interval, shape `chains`.
    inner_results: The inner kernel's results at that event; how many gradients
      it has used is in `inner_results.gradient_estimator_results`.

  And the method `failure(state)`; see `errors`.
  """
  step: tf.Tensor
  target_log_prob: tf.Tensor
  segment_start: list[tf.Tensor]
  segment_end: list[tf.Tensor]
  remaining: tf.Tensor
  num_events: tf.Tensor
  inner_results: Any

  def failure(self, state: hints.State) -> errors.Failure | None:
    """Why a chain cannot go on, or None."""
    failure = self.inner_results.failure(state)
    if failure is None or failure.error is not errors.NonFiniteError:
      return failure
    if tf.reduce_any(self.remaining < 0.):
      return failure._replace(advice=(
          'An interval of UniformTime had more than max_num_events events: '
          'shorten interval, or raise max_num_events.'))
    return failure


class _Seeds(NamedTuple):
  """The seeds of an interval, one for each use."""
  events: tf.Tensor


class UniformTime(kernel_lib.Kernel):
  """A continuous-time kernel, read every `interval` units of time.

  Each step advances the inner kernel by one interval of time, over any number
  of events. So the states that `tfp.mcmc.sample_chain` or `sample` return are
  equally weighted draws, which can be averaged, traced and exported like those
  of any kernel. No part of the path is discarded between draws, and stopping
  and resuming changes nothing.

  Chains have different numbers of events in an interval. All chains compute
  events until the last chain has finished its interval. The extra events of the
  other chains are discarded, but counted in `num_gradients`, which is in
  `results.inner_results.gradient_estimator_results`. Intervals of many events
  waste less.

  #### Examples

  >>> target = tfd.MultivariateNormalDiag(tf.ones(2), tf.ones(2))
  >>> kernel = sgmcmc.BouncyParticleSampler(
  ...     target.log_prob, rate_bound=sgmcmc.pdmp.GaussianBound(1.))
  >>> @tf.function(autograph=False)  # For long runs jit_compile=True.
  ... def run():
  ...   return tfp.mcmc.sample_chain(
  ...       20, tf.ones([100, 2]), trace_fn=None, seed=[0, 0],
  ...       kernel=sgmcmc.pdmp.UniformTime(kernel, interval=2.))
  >>> bool(abs(tf.reduce_mean(run()) - 1.) < 0.1)
  True
  """

  def __init__(
      self,
      inner_kernel: base.PDMPKernel,
      interval: hints.TensorLike,
      *,
      max_num_events: int = 1_000_000,
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      inner_kernel: A continuous-time kernel of this library.
      interval: The time between draws, a positive number: for nearly
        independent draws, about the time that the inner kernel takes to cross
        the posterior. With velocities on the sphere the particle travels one
        unit of length in a unit of time; with Gaussian ones, and in zig-zag,
        about one in each coordinate.
      max_num_events: Python `int`: if an interval has more events, the state
        becomes NaN.
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If a number is not positive.
      TypeError: If the inner kernel is not a continuous-time kernel.
    """
    if not isinstance(inner_kernel, base.PDMPKernel):
      raise TypeError(
          f'inner_kernel is {inner_kernel!r}: it has to be a continuous-time '
          'kernel, such as BouncyParticleSampler or ZigZagSampler. The steps '
          'of other kernels are draws at equal weights already.')
    checks.positive_number('interval', interval)
    checks.positive_integer('max_num_events', max_num_events)
    super().__init__(dict(
        inner_kernel=inner_kernel,
        interval=interval,
        max_num_events=max_num_events,
        name=name))

  _Seeds = _Seeds
  _raises_eagerly = True

  @property
  def inner_kernel(self) -> base.PDMPKernel:
    """The continuous-time kernel."""
    return self._parameters['inner_kernel']

  @property
  def is_calibrated(self) -> bool:
    """Whether the inner kernel is."""
    return self.inner_kernel.is_calibrated

  def _bootstrap(self, parts, seeds):
    inner = self.inner_kernel.bootstrap_results(parts, seed=seeds.events)
    return UniformTimeResults(
        tf.zeros([], tf.int64), inner.target_log_prob, parts, parts,
        tf.zeros_like(inner.duration),
        tf.zeros_like(inner.duration, tf.int64), inner)

  def _one_step(self, parts, previous, seeds):
    """Moves each chain one interval of time on."""
    del parts  # A point of the segment that the results hold.
    interval = states.cast(
        self._parameters['interval'], previous.remaining.dtype)
    # How far the last event is beyond the end of this interval; before it
    # where < 0.
    ahead = previous.remaining - interval

    def one_event(count, start, end, ahead, num_events, inner):
      due = ahead < 0.
      # The results of this kernel say what has failed.
      with kernel_lib.failures_left_to_caller():
        moved, new = self.inner_kernel.one_step(
            end, inner, seed=random.fold_in(seeds.events, count))
      return (
          count + 1, states.select(due, end, start),
          states.select(due, moved, end),
          tf.where(due, ahead + new.duration, ahead),
          num_events + tf.cast(due, tf.int64), _choose(due, new, inner))

    _, start, end, ahead, num_events, inner = tf.while_loop(
        lambda count, start, end, ahead, *_: tf.reduce_any(ahead < 0.),
        one_event,
        (tf.zeros([], tf.int64), previous.segment_start, previous.segment_end,
         ahead, tf.zeros_like(previous.num_events), previous.inner_results),
        maximum_iterations=self._parameters['max_num_events'],
        parallel_iterations=1)
    parts = [
        b - states.expand(
            tf.math.divide_no_nan(ahead, inner.duration), b) * (b - a)
        for a, b in zip(start, end)]
    # The chain stays NaN: its next events start from there.
    parts, start, end = (
        states.nan_where(ahead < 0., x) for x in (parts, start, end))
    return parts, UniformTimeResults(
        previous.step + 1, inner.target_log_prob, start, end, ahead,
        num_events, inner)


def _choose(due, new, old):
  """Results, `new` in the chains that are due and `old` in the others.

  What does not have a value for each chain, such as a shared anchor, is `new`.
  The counts of events and gradients are `new` too: the events of chains that
  were not due have been computed.
  """
  def choose(a, b):
    chains = due.shape
    if a.shape.rank < chains.rank or a.shape[:chains.rank] != chains:
      return a
    return states.select(due, a, b)

  chosen = tf.nest.map_structure(choose, new, old)
  return chosen._replace(
      step=new.step, gradient_estimator_results=new.gradient_estimator_results)
