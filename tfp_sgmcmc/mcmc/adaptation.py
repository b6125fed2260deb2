"""What is shared by kernels that adapt another kernel in burn-in."""

import abc
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import errors
from tfp_sgmcmc import kernel as kernel_lib
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.mcmc import base

__all__ = [
    'AdaptingKernel', 'WrappingKernel', 'failure', 'step',
    'step_size_of_errors', 'weighed']

_DECAY, _WIDTH = 0.98, 9.
# One step, or one number, may not move the step size by more than this.
_LARGEST_ERROR = 1e12
_ROUNDING = 4.


class _Seeds(NamedTuple):
  """The seeds of a step, one for each use."""
  inner: tf.Tensor


class WrappingKernel(kernel_lib.Kernel):
  """Base of kernels that have an `inner_kernel` among their `parameters`."""

  _Seeds = _Seeds

  @property
  def inner_kernel(self) -> base.LangevinKernel:
    """The wrapped kernel, as it was given."""
    return self._parameters['inner_kernel']

  @property
  def is_calibrated(self) -> bool:
    """That of the inner kernel."""
    return self.inner_kernel.is_calibrated

  @property
  def lives_on_batches(self) -> bool:
    """That of the inner kernel."""
    return self.inner_kernel.lives_on_batches

  @property
  def balances_noise(self) -> bool:
    """That of the inner kernel."""
    return self.inner_kernel.balances_noise

  @property
  def experimental_shard_axis_names(self) -> list[str | None] | None:
    """Those of the inner kernel."""
    return self.inner_kernel.experimental_shard_axis_names

  def experimental_with_shard_axes(self, shard_axis_names):
    """A copy around such a copy of the inner kernel."""
    return self.copy(
        inner_kernel=self.inner_kernel.experimental_with_shard_axes(
            shard_axis_names))


class AdaptingKernel(WrappingKernel):
  """Base of the kernels that find settings of an inner kernel.

  A subclass has `inner_kernel` and `num_adaptation_steps` among its
  `parameters` and defines `adapted_kernel`. Its results hold those of the inner
  kernel, `inner_results`, and the settings found. Their number of steps is
  `adaptation.step`.
  """

  def __init__(self, parameters: dict[str, Any]):
    """Checks and keeps the arguments of the subclass's constructor."""
    super().__init__(parameters)
    if callable(self.inner_kernel.parameters['step_size']):
      raise ValueError(
          'The step size of inner_kernel is a schedule, and '
          f'{type(self).__name__} finds one number: give the number to start '
          'from.')
    number = parameters['num_adaptation_steps']
    if not (tf.is_tensor(number) or isinstance(number, tf.Variable)):
      checks.non_negative_integer('num_adaptation_steps', number)

  @abc.abstractmethod
  def adapted_kernel(self, results: Any) -> base.LangevinKernel:
    """The inner kernel with the settings found, by results of this kernel."""

  def _number(self, dtype):
    """`num_adaptation_steps` in a dtype."""
    return states.cast(self._parameters['num_adaptation_steps'], dtype)

  def _dtype(self, inner_results):
    """That of the step size: at least single precision."""
    given = inner_results.target_log_prob.dtype
    return tf.float64 if given == tf.float64 else tf.float32


# Of the results: `int64` scalar, the number of steps made.
step = property(lambda results: results.inner_results.step)


def failure(
    results: hints.AdaptedResults,
    state: hints.State,
    advice: Callable[[str], str],
) -> errors.Failure | None:
  """The inner results' failure, with other advice.

  Args:
    results: The kernel's results, with concrete values.
    state: Tensor or list of tensors, likewise.
    advice: Callable of the inner kernel's advice for a state that is not
      finite; returns the one to give.

  Returns:
    failure: `errors.Failure`, or None.
  """
  found = results.inner_results.failure(state)
  if found is None or found.error is not errors.NonFiniteError:
    return found
  return found._replace(advice=advice(found.advice))


def weighed(
    error: tf.Tensor, scale: tf.Tensor, log_prob: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
  """How much the energy's error in a step says of the step size.

    x = (dE / scale)^2,  W = exp(-(log x)^2 / 162)

  Args:
    error: Shape `chains`, dE.
    scale: Positive, what it is to be, in a shape that broadcasts with it.
    log_prob: Shape `chains`, the log density at the end of the step: a
      difference of two such numbers has no more digits than these.

  Returns:
    error: W x; 0 where the error is not finite, or above 10^6.
    weight: W, likewise.
  """
  rounding = _ROUNDING * np.finfo(log_prob.dtype.as_numpy_dtype).eps * tf.cast(
      tf.abs(log_prob), error.dtype)
  x = tf.square(tf.nn.relu(tf.abs(error) - rounding) / scale) + 1e-8
  is_usable = tf.math.is_finite(x) & (x < _LARGEST_ERROR)
  x = tf.where(is_usable, x, 1.)
  weight = tf.where(
      is_usable, tf.exp(-tf.square(tf.math.log(x) / _WIDTH) / 2.), 0.)
  return weight * x, weight


def step_size_of_errors(
    step_size: tf.Tensor,
    weight_sum: tf.Tensor,
    error: tf.Tensor,
    weight: tf.Tensor,
    is_measured: hints.TensorLike,
) -> tuple[tf.Tensor, tf.Tensor]:
  """h = (A / B)^(-1/6), where the energy's error is of order h^3.

    A <- 0.98 A + W x / h^6,  B <- 0.98 B + W

  Args:
    step_size: Scalar, h; A is B / h^6.
    weight_sum: Scalar, B.
    error: Scalar, W x of `weighed`, the mean over chains.
    weight: Scalar, W likewise.
    is_measured: 1, or 0 where there is nothing new.

  Returns:
    step_size: The next h.
    weight_sum: The next B.
  """
  ones = tf.ones_like(weight)
  is_new = tf.cast(is_measured, weight.dtype) > 0.
  before = weight_sum * tf.where(is_new, _DECAY * ones, ones)
  weight_sum = before + weight
  # Of errors at h^6 = 1 in units of the last step size's, so that no power of h
  # leaves the range of the numbers.
  mean = (before + error) / tf.where(weight_sum > 0., weight_sum, ones)
  is_known = is_new & (mean > 0.)
  return tf.where(
      is_known, step_size * tf.where(is_known, mean, ones) ** (-1. / 6.),
      step_size), weight_sum
