"""What `PosteriorSampling` chooses where it is not told.

Settings that are left out together with the kernel are chosen so that `fit`,
started from new or from trained weights, ends with a posterior that is worth
having:

  kernel         SGHMC, learning rate 0.1, momentum 0.9
  prior          N(0, 1) for each weight, N(0, 128 / inputs) for kernels of
                 more than 128 inputs, where the model has no regularisers
  first epochs   a fifth of them is for the compiled optimizer, the first of two
  burn-in        a third of the steps that are left, or the search (below) and
                 a tenth of those left after it
  draws          30, evenly spaced over the rest

The learning rate is a rule, tried on a perceptron for digits, one for Covertype
and a convolutional network for MNIST, all with batches of about a hundred:
three times as much once lost the network. For a loss that is a sum over many
pixels, or batches of few examples, it is too large. Where T is not chosen by
validation data, the rate is lowered in the middle of burn-in, once: the noise
of minibatches heats the chain by an excess in proportion to it, so that with
the excess e of the kinetic temperature in the second quarter of burn-in,

  learning rate <- learning rate min(1, 0.1 / e).

It is not raised: a small excess has room for larger steps, and the curvature of
the posterior need not.
"""

from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

__all__ = [
    'LEARNING_RATE', 'LearningRate', 'MOMENTUM', 'NUM_DRAWS', 'Plan',
    'epochs_of_the_optimizer', 'plan']

LEARNING_RATE = 0.1
MOMENTUM = 0.9
NUM_DRAWS = 30

_BURNIN, _BURNIN_AFTER_SEARCH = 1. / 3., 0.1


_EXCESS = 0.1


class LearningRate:
  """A learning rate that the chain may lower, for a kernel to call."""

  def __init__(self):
    """Makes a learning rate."""
    self._value, self._variable = LEARNING_RATE, None
    self._num_burnin_steps = 0

  def __call__(self, step: tf.Tensor) -> tf.Tensor:
    """Its value at a step, a scalar."""
    del step
    if self._variable is None:  # With a variable it cannot be pickled.
      with tf.init_scope():
        self._variable = tf.Variable(
            self._value, trainable=False, dtype=tf.float32,
            name='learning_rate')
    return self._variable.read_value()

  @property
  def value(self) -> float:
    """Its value."""
    return self._value

  def plan(self, num_burnin_steps: int) -> None:
    """Takes note of how long burn-in is."""
    self._num_burnin_steps = num_burnin_steps

  def watch(
      self, before: int, step: int, heat: Any, **unused: Any) -> str | None:
    """Lowers it in the middle of burn-in, where the chain is too hot.

    Args:
      before: Python `int`, the number of steps at the last call.
      step: Python `int`, the number of steps now.
      heat: `HeatWatch`.
      **unused: What other rates are told by.

    Returns:
      what: What there is to say, None where there is nothing.
    """
    half = self._num_burnin_steps // 2
    if not (self._num_burnin_steps and before < half <= step):
      return None
    excess = heat.excess(self._num_burnin_steps // 4 + 1)
    if excess is None or not self.suit(excess):
      return None
    return (
        f'the kinetic temperature is {1. + excess:.3g} times the temperature '
        f'in burn-in: from here on learning_rate={self._value:.2g}.')

  def checkpoint(self) -> np.ndarray:
    """What `restore` takes."""
    return np.array(self._value)

  def restore(self, value: np.ndarray) -> None:
    """Takes the value that an earlier process had."""
    self.set(value)

  def set(self, value: float) -> None:
    """Sets it."""
    self._value = float(value)
    if self._variable is not None:
      self._variable.assign(self._value)

  def suit(self, excess: float) -> bool:
    """Lowers it where the chain is too hot.

    Args:
      excess: By how much the kinetic temperature is above T, over T.

    Returns:
      is_lower: Whether it was.
    """
    is_lower = bool(np.isfinite(excess) and excess > _EXCESS)
    if is_lower:
      self.set(float(f'{self._value * _EXCESS / excess:.2g}'))
    return is_lower


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
