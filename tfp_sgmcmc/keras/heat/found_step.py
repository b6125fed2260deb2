"""The step size, or the learning rate, that is found in burn-in.

Two kernels find one, each around another kernel:

  `SelfTuning`                     the step size of `SGNHT`, in all of burn-in
  `TemperatureStepSizeAdaptation`  the learning rate of another kernel, in the
                                   first three quarters of burn-in

From a small start the second lets the step size h grow by a factor f, and the
learning rate l of SGD grows by

  f^2   where there is a momentum m: h = sqrt(l / N), friction = (1 - m) / h
  f     where there is none: h = l / N.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any
from typing import NamedTuple
import warnings

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import mcmc
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints

__all__ = [
    'START', 'FoundStep', 'RateByTemperature', 'by_energy_error',
    'by_temperature']

START = 1e-6  # The learning rate from which it grows.
# From the start to the rate that a network with mean losses takes, 0.1, are
# some hundred steps of growth; see `TemperatureStepSizeAdaptation`.
FEWEST_STEPS_FOR_RATE = 100
# `SelfTuning` learns the scales of the weights from ten gradients, in the first
# half of its steps.
FEWEST_STEPS = 20


@dataclasses.dataclass(frozen=True)
class RateByTemperature:
  """Finds the learning rate of `PosteriorSampling` by the temperature.

  It starts at 10^-6, and grows in the first three quarters of burn-in until the
  chain is hotter than T by the share `target_excess`, by
  `TemperatureStepSizeAdaptation`. `learning_rate='temperature'` is short for
  the object with its defaults.

  Attributes:
    target_excess: The target for the chain's excess temperature, as a share of
      T: a number above 0 and at most 1.

  Raises:
    ValueError: If the target is out of its range.

  #### Examples

  >>> sampling = sgmcmc.keras.PosteriorSampling(
  ...     sgmcmc.SGHMC, momentum=0.9, num_burnin_steps=400,
  ...     learning_rate=sgmcmc.keras.RateByTemperature(target_excess=0.05))
  """
  target_excess: float = 0.1

  def __post_init__(self):
    checks.positive_share('target_excess', self.target_excess)


class Way(NamedTuple):
  """A way to find a step size, and how `fit` speaks of it.

  Attributes:
    argument: The setting that is found.
    unknown: Its value until it is.
    quarters: How many quarters of burn-in the adaptation takes.
    around: Callable of a kernel, of the number of steps to adapt in and of the
      dtypes that the density is computed in; returns the kernel that adapts it.
    value: Callable of such a kernel and of its results; the setting.
    check: Callable of the length of burn-in; raises, or returns what to warn
      of, where that is too short.
    said: What is said where it is found, with `{value}` and `{num_steps}`.
  """
  argument: str
  unknown: str
  quarters: int
  around: Callable[[Any, Any, Any], Any]
  value: Callable[[Any, Any], tf.Tensor]
  check: Callable[[int], str | None]
  said: str


class FoundStep:
  """The setting that a kernel around that of `fit` finds in burn-in."""

  def __init__(self, way: Way):
    """Makes it before the chain begins."""
    self._way = way
    self._num_steps, self._variable = 0, None
    self._found, self._has_warned = None, False

  @property
  def argument(self) -> str:
    """The setting: "step_size" or "learning_rate"."""
    return self._way.argument

  @property
  def value(self) -> Any:
    """Its value, after the last step; in words until it has been found."""
    if self._found is None:
      return self._way.unknown
    return float(f'{float(self._found):.6g}')

  def plan(self, num_burnin_steps: int) -> None:
    """Takes note of the length of burn-in; warns or raises if it is short."""
    said = self._way.check(num_burnin_steps)
    if said is not None and not self._has_warned:
      self._has_warned = True
      warnings.warn(said, stacklevel=2)
    self._set(self._way.quarters * num_burnin_steps // 4)

  def around(
      self, kernel: mcmc.LangevinKernel, compute_dtypes: Collection[str] = (),
  ) -> Any:
    """The kernel that adapts another, which has the step size of the start.

    Args:
      kernel: The other.
      compute_dtypes: Names of the dtypes that the network computes in.

    Raises:
      ValueError: If the kernel cannot be adapted.
      TypeError: If it is no kernel in steps of time.
    """
    return self._way.around(kernel, self._number(), compute_dtypes)

  def logs(
      self,
      kernel: tfp.mcmc.TransitionKernel,
      results: hints.Results,
  ) -> dict[str, tf.Tensor]:
    """The setting of the next step, by a kernel of `around` and its results."""
    return {self._way.argument: self._way.value(kernel, results)}

  def watch(self, step: int, logs: dict[str, Any]) -> str | None:
    """Takes note of the setting once it has been found.

    Args:
      step: Python `int`, the number of steps made.
      logs: The logs of the last one. Tensors are read when they are asked for.

    Returns:
      what: What there is to say, None where there is nothing.
    """
    # A search for T may end after the last step of the adaptation.
    if not 0 < self._num_steps <= step:
      return None
    is_new, found = self._found is None, logs[self._way.argument]
    self._found = found
    return self._way.said.format(
        value=float(found), num_steps=self._num_steps) if is_new else None

  def state(self) -> dict[str, np.ndarray]:
    """What `load_state` takes."""
    found = np.nan if self._found is None else float(self._found)
    return {'found_step': np.array([self._num_steps, found])}

  def load_state(self, state: Mapping[str, np.ndarray]) -> None:
    """Takes over what an earlier process knew.

    Args:
      state: Arrays by name, those of its `state` among them.
    """
    number, found = state['found_step'].tolist()
    self._set(int(number))
    self._found = None if np.isnan(found) else found

  @property
  def state_variables(self) -> list[tf.Variable]:
    """What programs read."""
    return [] if self._variable is None else [self._variable]

  def share(self, other: 'FoundStep') -> None:
    """Writes from here on to the variable that programs of another one read.

    Args:
      other: `FoundStep` of the same way.
    """
    self._variable = other._variable  # pylint: disable=protected-access
    self._set(self._num_steps)

  def _set(self, num_steps):
    self._num_steps = num_steps
    if self._variable is not None:
      self._variable.assign(num_steps)

  def _number(self):
    """The number of steps, which a search for T may change."""
    # With a variable it cannot be pickled. The chain's first results ask for
    # it; made in the trace of a step it would have TensorFlow trace that again.
    if self._variable is None:
      with tf.init_scope():
        self._variable = tf.Variable(
            self._num_steps, trainable=False, dtype=tf.int64,
            name='num_adaptation_steps')
    return self._variable.read_value()


def by_energy_error() -> FoundStep:
  """The step size of `SGNHT`, which `SelfTuning` finds."""
  return FoundStep(Way(
      'step_size', 'found in burn-in', 4, _self_tuning, _step_size,
      _check_step_size,
      'step_size={value:.3g} was found in {num_steps} step(s).'))


def by_temperature(target_excess: float) -> FoundStep:
  """The learning rate that makes a chain so much too hot.

  Args:
    target_excess: As `RateByTemperature` has it.

  Returns:
    found_step: `FoundStep`; it starts from `START`.
  """
  return FoundStep(Way(
      'learning_rate', 'temperature', 3,
      functools.partial(_around, target_excess), _learning_rate,
      _check_learning_rate,
      'learning_rate={value:.3g} from here on, where the chain is hotter than '
      f'T by {target_excess:.2g} T.'))


def _step_size(kernel, results):
  del kernel
  return results.step_size


def _self_tuning(kernel, num_steps, compute_dtypes):
  return mcmc.SelfTuning(kernel, num_steps, compute_dtypes=compute_dtypes)


def _around(target_excess, kernel, num_steps, compute_dtypes):
  del compute_dtypes  # It looks at no differences of energies.
  return mcmc.TemperatureStepSizeAdaptation(
      kernel, num_steps, target_excess=target_excess,
      keep_momentum=_has_momentum(kernel))


def _has_momentum(kernel):
  return getattr(kernel, 'friction_argument', None) is not None


def _learning_rate(kernel, results):
  power = 2. if _has_momentum(kernel.inner_kernel) else 1.
  return START * tf.exp(power * results.log_factor)


def _check_step_size(num_burnin_steps):
  if num_burnin_steps >= FEWEST_STEPS:
    return None
  return (
      'The step size and the scales of the weights are found in burn-in, which '
      f'has {num_burnin_steps} step(s): {FEWEST_STEPS} are needed, and some '
      'hundred are better. The chain may be slow, or far from the posterior. '
      'Raise num_burnin_steps, or epochs where the burn-in is chosen; or give '
      'a learning_rate.')


def _check_learning_rate(num_burnin_steps):
  if num_burnin_steps < FEWEST_STEPS_FOR_RATE:
    raise ValueError(
        "learning_rate='temperature' finds the rate in burn-in, which has "
        f'{num_burnin_steps} step(s): {FEWEST_STEPS_FOR_RATE} are needed, and '
        'some hundred better. Raise num_burnin_steps, or epochs where the '
        'burn-in is chosen; or give a number.')
