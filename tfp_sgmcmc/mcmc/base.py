"""What the discrete-time kernels share beyond all kernels: steps of time.

A kernel's own file holds its mathematics: one pure function of tensors.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import kernel

__all__ = ['LangevinKernel', 'Seeds']


class Seeds(NamedTuple):
  """The seeds of one step, one for each use."""
  noise: tf.Tensor
  gradient: tf.Tensor


class LangevinKernel(kernel.GradientKernel):
  """Base of the kernels that follow an estimated gradient in steps of time.

  A subclass passes its arguments as `parameters` and defines `_bootstrap` and
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

  @property
  def _num_examples(self):
    target = self.target_log_prob_fn
    if isinstance(target, posterior_lib.Posterior):
      return target.num_examples
    return 1

  def _at_step(self, name, step, parts):
    """A number, tensor or schedule, at a step, in the dtype of each part."""
    return at_step(self._parameters[name], step, parts)


def at_step(
    value: Any, step: tf.Tensor, parts: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
  """A number, a tensor or a callable of the step, in the dtype of each part."""
  if callable(value):
    value = value(step)
  return [tf.cast(value, part.dtype) for part in parts]
