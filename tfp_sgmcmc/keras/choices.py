"""What `PosteriorSampling` chooses where it is not told.

Settings that are left out together with the kernel are chosen so that `fit`,
started from new or from trained weights, ends with a posterior that is worth
having:

  kernel         SGNHT ("badodab", a thermostat for each weight tensor), whose
                 scales, step size and friction `SelfTuning` finds in burn-in
  prior          N(0, 1) for each weight, N(0, 128 / inputs) for kernels of
                 more than 128 inputs, where the model has no regularisers
  first epochs   a fifth of them is for the compiled optimizer, the first of two
  burn-in        a third of the steps that are left, or the search (below) and
                 a tenth of those left after it
  draws          30, evenly spaced over the rest

Where T is chosen by validation data, the step size follows T until burn-in
ends.
"""

from collections.abc import Callable
import functools
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import mcmc

__all__ = [
    'FoundStep', 'MOMENTUM', 'NUM_DRAWS', 'Plan', 'epochs_of_the_optimizer',
    'kernel', 'plan']

MOMENTUM = 0.9  # With a learning rate that is given.
NUM_DRAWS = 30

_BURNIN, _BURNIN_AFTER_SEARCH = 1. / 3., 0.1
_FIRST_STEP_SIZE = 0.003


def kernel() -> Callable[..., mcmc.SGNHT]:
  """The kernel whose step size is found: a callable of the target."""
  return functools.partial(
      mcmc.SGNHT, step_size=_FIRST_STEP_SIZE, diffusion=0., thermostat='part')


class FoundStep:
  """The step size that `SelfTuning` finds, for `KernelMaker`."""

  def __init__(self):
    """Makes it before the chain begins."""
    self._num_steps, self._variable = 0, None
    self._found = None

  @property
  def value(self) -> Any:
    """The step size that was found; "found in burn-in" until then."""
    return 'found in burn-in' if self._found is None else self._found

  def plan(self, num_steps: int) -> None:
    """Takes note in how many first steps of the chain it is to be found."""
    self._num_steps = num_steps
    if self._variable is not None:
      self._variable.assign(num_steps)

  def around(self, kernel: mcmc.SGNHT) -> mcmc.SelfTuning:
    """The kernel that tunes another."""
    return mcmc.SelfTuning(kernel, self._number())

  def _number(self):
    """The number of steps, which a search for T may change."""
    if tf.executing_eagerly():
      return self._num_steps
    if self._variable is None:  # With a variable it cannot be pickled.
      with tf.init_scope():
        self._variable = tf.Variable(
            self._num_steps, trainable=False, dtype=tf.int64,
            name='num_adaptation_steps')
    return self._variable.read_value()

  def logs(self, results: mcmc.SelfTuningResults) -> dict[str, tf.Tensor]:
    """The step size of the next step, a scalar."""
    return {'step_size': results.step_size}

  def watch(
      self, before: int, step: int, logs: dict[str, Any], **unused: Any,
  ) -> str | None:
    """Takes note of the step size where it has been found.

    Args:
      before: Python `int`, the number of steps at the last call.
      step: Python `int`, the number of steps now.
      logs: The logs of the last step.
      **unused: What other rates are told by.

    Returns:
      what: What there is to say, None where there is nothing.
    """
    del before  # A search may end the adaptation at a step that has been made.
    if self._found is not None or not 0 < self._num_steps <= step:
      return None
    self._found = float(f'{float(logs["step_size"]):.3g}')
    return f'step_size={self._found:g} was found in {self._num_steps} step(s).'

  def checkpoint(self) -> np.ndarray:
    """What `restore` takes."""
    found = np.nan if self._found is None else self._found
    return np.array([self._num_steps, found])

  def restore(self, value: np.ndarray) -> None:
    """Takes over what an earlier process knew."""
    number, found = value.tolist()
    self.plan(int(number))
    self._found = None if np.isnan(found) else found


class Plan(NamedTuple):
  """When draws are made.

  Attributes:
    num_burnin_steps: The number of first steps of the chain without draws.
    num_steps_between_results: The number of steps between two draws.
  """
  num_burnin_steps: int
  num_steps_between_results: int


def epochs_of_the_optimizer(epochs: int) -> int:
  """How many of the epochs are the compiled optimizer's.

  Args:
    epochs: Python `int`, all epochs of `fit`.

  Returns:
    epochs: A fifth, at least one; none where there is but one.

  #### Examples

  >>> [epochs_of_the_optimizer(epochs) for epochs in (1, 2, 9, 25)]
  [0, 1, 1, 5]
  """
  return max(1, epochs // 5) if epochs > 1 else 0


def plan(
    num_steps: int,
    first: int = 0,
    num_burnin_steps: int | None = None,
    num_steps_between_results: int | None = None,
) -> Plan:
  """When to draw, if so many steps are to be made.

  Args:
    num_steps: Python `int`, the number of steps to come.
    first: Python `int`, the number of steps that a search for the temperature
      has made before.
    num_burnin_steps: Python `int`, how many of the steps to come are burn-in;
      None to choose.
    num_steps_between_results: Python `int`; None to choose.

  Returns:
    plan: `Plan`, which counts the steps of the search as burn-in.

  #### Examples

  >>> plan(900)
  Plan(num_burnin_steps=300, num_steps_between_results=19)
  >>> plan(1000, first=500)
  Plan(num_burnin_steps=600, num_steps_between_results=29)
  >>> plan(2)
  Plan(num_burnin_steps=0, num_steps_between_results=0)
  """
  if num_burnin_steps is None:
    num_burnin_steps = int(
        (_BURNIN_AFTER_SEARCH if first else _BURNIN) * num_steps)
  if num_steps_between_results is None:
    rest = num_steps - num_burnin_steps
    num_steps_between_results = max(1, rest // NUM_DRAWS) - 1
  return Plan(first + num_burnin_steps, num_steps_between_results)
