"""The states of a continuous-time sampler at equal distances of time.

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
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.pdmp import base

__all__ = ['UniformTime', 'UniformTimeResults']


class UniformTimeResults(NamedTuple):
  """Results of `UniformTime`.

  Attributes:
    step: `int64` scalar, the number of intervals.
    target_log_prob: The inner kernel's, at its last event, shape `chains`.
    segment_start: List with the position at the last event but one.
    segment_end: List with the position at the last event, which lies ahead.
    remaining: The time from the state to that event, shape `chains`.
    num_events: `int64`, events in this interval, shape `chains`.
    inner_results: The inner kernel's results at that event.
  """
  step: tf.Tensor
  target_log_prob: tf.Tensor
  segment_start: list[tf.Tensor]
  segment_end: list[tf.Tensor]
  remaining: tf.Tensor
  num_events: tf.Tensor
  inner_results: Any


class UniformTime(tfp.mcmc.TransitionKernel):
  """A continuous-time kernel, read every `interval` units of time.

  Each step moves the inner kernel one interval of time on, over as many events
  as come, so that the states that `tfp.mcmc.sample_chain` or `sample` return
  are draws at equal weights: they can be averaged, traced and exported like
  those of any kernel. Nothing of the path is thrown away between draws, and
  stopping and going on changes nothing.

  Chains have different numbers of events in an interval. All of them are
  computed until the last is there, and the events of chains that are ahead are
  thrown away (and counted in `num_gradients`): intervals of many events waste
  less.

  #### Examples

  >>> target = tfd.MultivariateNormalDiag(tf.ones(2), tf.ones(2))
  >>> kernel = sgmcmc.BouncyParticleSampler(
  ...     target.log_prob, rate_bound=sgmcmc.pdmp.GaussianBound(1.))
  >>> @tf.function(jit_compile=True)
  ... def run():
  ...   return tfp.mcmc.sample_chain(
  ...       200, tf.ones([100, 2]), trace_fn=None, seed=[0, 0],
  ...       kernel=sgmcmc.pdmp.UniformTime(kernel, interval=2.))
  >>> bool(abs(tf.reduce_mean(run()) - 1.) < 0.1)
  True
  """

  def __init__(
      self,
      inner_kernel: base.PDMPKernel,
      interval: Any,
      max_num_events: int = 1_000_000,
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      inner_kernel: A continuous-time kernel of this library.
      interval: The time between draws, a positive number: for nearly
        independent draws, about what the inner kernel takes to cross the
        posterior. With velocities on the sphere the particle travels one unit
        of length in a unit of time; with Gaussian ones, and in zig-zag, about
        one in each coordinate.
      max_num_events: Python `int`: where an interval has more events, the
        state becomes NaN.
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If a number is not positive.
      TypeError: If the kernel is none in continuous time.
    """
    if not isinstance(inner_kernel, base.PDMPKernel):
      raise TypeError(
          f'inner_kernel is {inner_kernel!r}: it has to be a continuous-time '
          'kernel, such as BouncyParticleSampler or ZigZagSampler. The steps '
          'of other kernels are draws at equal weights already.')
    checks.numeric('interval', interval, 0.)
    checks.scalar('interval', interval)
    checks.positive_integer('max_num_events', max_num_events)
    super().__init__()
    self._parameters = dict(
        inner_kernel=inner_kernel,
        interval=interval,
        max_num_events=max_num_events,
        name=name)

  @property
  def parameters(self) -> dict[str, Any]:
    """The constructor's arguments by name."""
    return self._parameters

  @property
  def inner_kernel(self) -> base.PDMPKernel:
    """The continuous-time kernel."""
    return self._parameters['inner_kernel']

  @property
  def is_calibrated(self) -> bool:
    """Whether the inner kernel is."""
    return self.inner_kernel.is_calibrated

  @tf.autograph.experimental.do_not_convert
  def bootstrap_results(
      self, init_state: Any, seed: Any = None) -> UniformTimeResults:
    """The results with which a chain starts.

    Args:
      init_state: Tensor or list of tensors, the first state.
      seed: Stateless seed of the inner kernel's first results.

    Returns:
      kernel_results: `UniformTimeResults`.
    """
    parts = states.to_parts(init_state)
    inner = self.inner_kernel.bootstrap_results(init_state, seed=seed)
    return UniformTimeResults(
        tf.zeros([], tf.int64), inner.target_log_prob, parts, parts,
        tf.zeros_like(inner.duration),
        tf.zeros_like(inner.duration, tf.int64), inner)

  @tf.autograph.experimental.do_not_convert
  def one_step(
      self,
      current_state: Any,
      previous_kernel_results: UniformTimeResults,
      seed: Any = None,
  ) -> tuple[Any, UniformTimeResults]:
    """Moves each chain one interval of time on.

    Args:
      current_state: Tensor or list of tensors; the leading axes are chains.
      previous_kernel_results: What `bootstrap_results` or `one_step` returned.
      seed: Stateless seed (`int32[2]`); None draws one from TensorFlow's global
        generator.

    Returns:
      next_state: In the form of `current_state`.
      kernel_results: `UniformTimeResults`.

    Raises:
      RateBoundError: If the bound is violated, in an exact kernel, eagerly.
      NonFiniteError: If the state is not finite, eagerly. In a graph the state
        is NaN from there on, in both cases.
    """
    with tf.name_scope(self._parameters['name'] or 'UniformTime'):
      seed = tfp.random.sanitize_seed(seed)
      previous = previous_kernel_results
      interval = states.cast(
          self._parameters['interval'], previous.remaining.dtype)
      # How far the last event is ahead of the time to come; behind where < 0.
      ahead = previous.remaining - interval

      def one_event(count, start, end, ahead, num_events, inner):
        due = ahead < 0.
        moved, new = self.inner_kernel.one_step(
            states.like(current_state, end), inner,
            seed=random.fold_in(seed, count))
        moved = states.to_parts(moved)
        return (
            count + 1, base.select(due, end, start),
            base.select(due, moved, end),
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
      # For good: the next events start from NaN.
      parts, start, end = (
          base.fail(x, ahead < 0.) for x in (parts, start, end))
      return states.like(current_state, parts), UniformTimeResults(
          previous.step + 1, inner.target_log_prob, start, end, ahead,
          num_events, inner)


def _choose(due, new, old):
  """`new` in the chains that are due; what is not the chains', anew."""
  def choose(a, b):
    chains = due.shape
    if a.shape.rank < chains.rank or a.shape[:chains.rank] != chains:
      return a
    return tf.where(states.expand(due, a), a, b)

  chosen = tf.nest.map_structure(choose, new, old)
  return chosen._replace(
      step=new.step, gradient_estimator_results=new.gradient_estimator_results)
