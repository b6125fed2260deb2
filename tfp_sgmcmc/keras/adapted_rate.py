"""A learning rate that is found in burn-in, by the temperature.

From a small start `mcmc.TemperatureStepSizeAdaptation` adapts the step size h
of the kernel in the first three quarters of burn-in, and leaves it from there
on. With f the factor by which h is larger than at the start, the learning rate
l is that of the start times

  f^2   where there is a momentum m: h = sqrt(l / N), friction = (1 - m) / h
  f     where there is none: h = l / N.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import mcmc
from tfp_sgmcmc.internal import checks

__all__ = ['AdaptedRate']

START = 1e-6
TARGET_EXCESS = 0.1
# From the start to the rate that a network with mean losses takes, 0.1, are
# some hundred steps of growth; see `TemperatureStepSizeAdaptation`.
FEWEST_STEPS = 100


class AdaptedRate:
  """The learning rate of a chain whose step size is adapted.

  For `KernelMaker` it is a schedule that stays at the start.
  """

  def __init__(self, target_excess: float | None = None):
    """Makes the rate of a chain that has not begun.

    Args:
      target_excess: By what share of T the chain is to be too hot; None for a
        tenth.
    """
    self._target_excess = (
        TARGET_EXCESS if target_excess is None else target_excess)
    self._num_steps = 0
    self._power = 1.
    self._found = None

  def __call__(self, step: tf.Tensor) -> float:
    """The learning rate of the inner kernel: that at the start."""
    del step
    return START

  @property
  def value(self) -> Any:
    """The rate that was found; "temperature" as long as there is none."""
    return 'temperature' if self._found is None else self._found

  def plan(self, num_burnin_steps: int) -> None:
    """Takes note of how long burn-in is.

    Args:
      num_burnin_steps: Python `int`.

    Raises:
      ValueError: If it is too short to adapt in.
    """
    if num_burnin_steps < FEWEST_STEPS:
      raise ValueError(
          "learning_rate='temperature' finds the rate in burn-in, which has "
          f'{num_burnin_steps} step(s): {FEWEST_STEPS} are needed, and some '
          'hundred better. Raise num_burnin_steps, or epochs where the burn-in '
          'is chosen; or give a number.')
    self._num_steps = 3 * num_burnin_steps // 4

  def around(
      self, kernel: mcmc.base.LangevinKernel,
  ) -> mcmc.TemperatureStepSizeAdaptation:
    """The kernel that adapts the step size of another.

    Args:
      kernel: Kernel with the step size of the start.

    Returns:
      kernel: `TemperatureStepSizeAdaptation`.

    Raises:
      ValueError: If the kernel does not tell its excess, or T is zero.
      TypeError: If it is no kernel in steps of time.
    """
    has_momentum = getattr(kernel, 'friction_argument', None) is not None
    self._power = 2. if has_momentum else 1.
    return mcmc.TemperatureStepSizeAdaptation(
        kernel, self._num_steps, self._target_excess,
        keep_momentum=has_momentum)

  def logs(self, results: Any) -> dict[str, tf.Tensor]:
    """The learning rate of the next step, a scalar.

    Args:
      results: Results of the kernel that `around` has made.

    Returns:
      logs: For the logs of a step.
    """
    return {'learning_rate': START * tf.exp(self._power * results.log_factor)}

  def watch(
      self, before: int, step: int, logs: dict[str, Any], **unused: Any,
  ) -> str | None:
    """Takes note of the rate where the adaptation has ended.

    Args:
      before: Python `int`, the number of steps at the last call.
      step: Python `int`, the number of steps now.
      logs: The logs of the last step.
      **unused: What other rates are told by.

    Returns:
      what: What there is to say, None where there is nothing.
    """
    if not before < self._num_steps <= step:
      return None
    self._found = float(f'{float(logs["learning_rate"]):.6g}')
    return (f'learning_rate={self._found:.3g} from here on, where the chain is '
            f'hotter than T by {self._target_excess:.2g} T.')

  def checkpoint(self) -> np.ndarray:
    """What `restore` takes."""
    return np.array(np.nan if self._found is None else self._found)

  def restore(self, value: np.ndarray) -> None:
    """Takes the rate that an earlier process found, if it did."""
    self._found = None if np.isnan(value) else float(value)


def make(
    learning_rate: Any, target_excess: float | None) -> AdaptedRate | None:
  """The rate that is to be found, None where one is given or chosen.

  Raises:
    ValueError: If there is a target and no rate to find, or it is out of range.
  """
  wants = isinstance(learning_rate, str) and learning_rate == 'temperature'
  if target_excess is None:
    return AdaptedRate() if wants else None
  if not wants:
    raise ValueError(
        f'target_excess is {target_excess!r}: it says how hot the learning '
        "rate may make the chain that learning_rate='temperature' finds. Pass "
        'that, or leave it out.')
  checks.numeric('target_excess', target_excess, 0.)
  return AdaptedRate(target_excess)
