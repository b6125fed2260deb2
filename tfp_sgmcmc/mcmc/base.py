"""What the discrete-time kernels share beyond all kernels: steps of time.

A kernel's own file holds its mathematics: one pure function of tensors.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import errors
from tfp_sgmcmc import kernel
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import states

__all__ = ['LangevinKernel', 'Seeds', 'at_step', 'failure']


class Seeds(NamedTuple):
  """The seeds of one step, one for each use."""
  noise: tf.Tensor
  gradient: tf.Tensor


class LangevinKernel(kernel.GradientKernel):
  """Base of the kernels that follow an estimated gradient in steps of time.

  A subclass passes its arguments as `parameters` and defines `_start` and
  `_one_step` on lists of state parts.
  """

  _Seeds = Seeds

  def __init__(self, parameters: dict[str, Any]):
    """Checks and keeps the arguments that all these kernels have.

    Args:
      parameters: The arguments of the subclass's constructor, by name.
    """
    checks.schedule('step_size', parameters['step_size'], 0.)
    checks.schedule(
        'temperature', parameters['temperature'], 0., strict=False)
    super().__init__(parameters)

  @property
  def is_calibrated(self) -> bool:
    """False: steps of finite size, without a Metropolis test, have a bias."""
    return False

  def _check_noise(self, **amounts):
    """Raises where an amount of noise, by its argument's name, is zero."""
    for name, amount in amounts.items():
      value = None if callable(amount) else checks.static_value(amount)
      if value is not None and np.any(value == 0.):
        raise ValueError(
            f'gradient_estimator is {self._estimator!r}, which weighs '
            'minibatches by the noise that a step would need with them, and '
            f'with {name} = 0 the step has no noise. Take a larger one, or '
            'another estimator.')

  def _at_step(self, name, step, parts):
    """A number, tensor or schedule, at a step, in the dtype of each part."""
    return at_step(self._parameters[name], step, parts)


def failure(results: Any, state: Any) -> errors.Failure | None:
  """Why a chain cannot go on: the `failure` of these kernels' results.

  Args:
    results: The kernel's results, with concrete values.
    state: Tensor or list of tensors, likewise.

  Returns:
    failure: `errors.Failure`, or None.
  """
  return errors.non_finite(
      state, results.target_log_prob.shape.rank,
      'Most often the step size is too large for the noise and the curvature '
      'there: try a tenth of it. '
      f'{errors.OTHER_CAUSES}.')


def at_step(
    value: Any, step: tf.Tensor, parts: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
  """A number, a tensor or a callable of the step, in the dtype of each part."""
  if callable(value):
    value = value(step)
  return [states.cast(value, part.dtype) for part in parts]
