"""What the kernels share that find settings of another kernel in burn-in."""

import abc
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_sgmcmc import errors
from tfp_sgmcmc import kernel as kernel_lib
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.mcmc import base

__all__ = ['AdaptingKernel', 'failure', 'step']


class AdaptingKernel(kernel_lib.Kernel):
  """Base of the kernels that find settings of an inner kernel.

  A subclass has `inner_kernel` and `num_adaptation_steps` among its
  `parameters` and defines `adapted_kernel`. Its results hold those of the inner
  kernel, `inner_results`, and what was found; their number of steps is
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

  @property
  def inner_kernel(self) -> base.LangevinKernel:
    """The kernel whose settings are found, as it was given."""
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

  @abc.abstractmethod
  def adapted_kernel(self, results: Any) -> base.LangevinKernel:
    """The inner kernel with what was found, by results of this kernel."""

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
    results: Any, state: Any, advice: Callable[[str], str],
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
