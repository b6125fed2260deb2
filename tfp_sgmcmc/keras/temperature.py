"""Tells a chain that is too hot, or that leaves the posterior.

At equilibrium the kinetic temperature r' r / d has the mean T. The noise of the
gradient's estimate, of covariance C, heats a chain with friction gamma and step
size h by about h C / (2 gamma). With a given momentum that is in proportion to
the learning rate, N h^2; a step too large for the posterior's curvature heats
without bound.

A chain that comes from the mode loses, by equipartition, about d T / 2 of log
posterior, d T / (2 N) of the mean loss.
"""

from typing import Any

import numpy as np

__all__ = ['HeatWatch']

# A mean kinetic temperature above 1.5 T is worth a warning, beyond its error.
_WARM = 1.5
_FEWEST_STEPS = 10
# Sampling stops where 100 steps and a whole epoch were above 100 T and did not
# cool.
_HOT = 100.
_HOT_STEPS = 100
# The excess of the temperature that the advice aims at.
_AIM = 0.1
# The loss: how many times d T / (2 N), and its value at the start, it may grow.
_GROWN = (10., 2.)
_GONE = (1000., 100.)
_READ_EVERY = 1000


class HeatWatch:
  """Keeps the kinetic temperatures of a chain, and says what they mean.

  #### Examples

  >>> from tfp_sgmcmc.keras import temperature
  >>> watch = temperature.HeatWatch(
  ...     num_weights=100, num_examples=50, argument=('learning_rate', 0.1))
  >>> for step in range(50):
  ...   watch.add(step, kinetic=3., target=1.)
  >>> print(watch.warning('of burn-in'))
  The mean kinetic temperature over the 50 steps of burn-in was 3 times the \
temperature: the chain is hotter than the posterior, and its draws spread too \
far. The excess falls with learning_rate: take learning_rate=0.005 (it is 0.1) \
for an excess of a tenth, or larger batches.
  """

  def __init__(
      self,
      num_weights: int,
      num_examples: int,
      argument: tuple[str, Any],
      temperature: float = 1.,
  ):
    """Makes the watch of a chain that has made no step.

    Args:
      num_weights: Python `int`, d, the number of sampled coordinates.
      num_examples: Python `int`, N.
      argument: The name of the argument that sets the step size, and its value.
      temperature: T where the kernel has no momentum.
    """
    self._name, self._value = argument
    self._spread = num_weights * temperature / (2. * num_examples)
    self._steps, self._ratios = [], []
    self._waiting = []
    self._first_loss = None
    self._has_grown = False

  def add(self, step: int, kinetic: Any, target: Any) -> None:
    """Takes note of a step.

    Args:
      step: Python `int`, its number.
      kinetic: Scalar, r' r / d. Tensors are read later, many at a time.
      target: Scalar, T.
    """
    self._steps.append(step)
    self._waiting.append((kinetic, target))
    if len(self._waiting) >= _READ_EVERY:
      self._read()

  def add_loss(self, loss: float) -> str | None:
    """Takes note of a mean loss: first that of the first step, then epochs'.

    Args:
      loss: Python `float`.

    Returns:
      reason: Why sampling should stop; None if it need not.
    """
    if self._first_loss is None:
      self._first_loss = loss
    if self._is_above(loss, _GONE):
      return self._growth(loss)
    return None

  def loss_warning(self, loss: float) -> str | None:
    """What to say of an epoch's mean loss, once; None for nothing.

    Args:
      loss: Python `float`.

    Returns:
      warning: A sentence.
    """
    if self._has_grown or not self._is_above(loss, _GROWN):
      return None
    self._has_grown = True
    return (f'While the kernel samples {self._growth(loss)}. '
            f'{self._advice(10.)}')

  def is_hot(self, since: int) -> bool:
    """Whether the chain is far too hot since a step, and does not cool.

    Args:
      since: Python `int`, a step's number.

    Returns:
      is_hot: Python `bool`; False where there were fewer than 100 steps.
    """
    ratios = self._between(since, np.inf)
    if len(ratios) < _HOT_STEPS or not np.all(ratios > _HOT):
      return False
    quarter = len(ratios) // 4
    return np.median(ratios[-quarter:]) >= np.median(ratios[:quarter])

  def stop_reason(self) -> str:
    """Why a hot chain stops, and what to do."""
    self._read()
    return (
        f'the kinetic temperature is {self._ratios[-1]:.3g} times the '
        f'temperature, and does not fall. {self._advice(10.)}')

  def warning(
      self, which: str, since: int = 0, until: float = np.inf) -> str | None:
    """What to say of the mean kinetic temperature; None for nothing.

    Args:
      which: The steps in words, such as "of burn-in".
      since: Python `int`, the first step that counts.
      until: The last one.

    Returns:
      warning: Sentences, where the mean is above 1.5 T and more than twice its
        sampling error.
    """
    ratios = self._between(since, until)
    if len(ratios) < _FEWEST_STEPS or _lower_bound(ratios) <= _WARM:
      return None
    mean = np.mean(ratios)
    return (
        f'The mean kinetic temperature over the {len(ratios)} steps {which} '
        f'was {mean:.3g} times the temperature: the chain is hotter than the '
        'posterior, and its draws spread too far. '
        f'{self._advice((mean - 1.) / _AIM)}')

  def _advice(self, factor):
    """To divide the argument by a factor; from 1000 on it means no more."""
    if factor > 1000.:
      return (
          f'Its steps are far too large: take a {self._name} smaller by a '
          'factor of 10 or more, or start from a trained model (start_epoch).')
    name, value = self._name, self._value
    what = f'{name} smaller by a factor of {factor:.2g}'
    if isinstance(value, (int, float)):
      what = f'{name}={value / factor:.2g} (it is {value:.3g})'
    return (f'The excess falls with {name}: take {what} for an excess of a '
            'tenth, or larger batches.')

  def _growth(self, loss):
    return (f'the mean loss has grown from {self._first_loss:.4g} to '
            f'{loss:.4g}, and {self._spread:.3g} above its minimum, d T / '
            '(2 N), is what the posterior explains')

  def _is_above(self, loss, factors):
    spreads, starts = factors
    return loss > self._first_loss + spreads * self._spread + starts * max(
        1., abs(self._first_loss))

  def _between(self, since, until):
    self._read()
    steps = np.asarray(self._steps)
    return np.asarray(self._ratios)[(steps >= since) & (steps <= until)]

  def _read(self):
    """Reads the values of tensors that wait."""
    self._ratios.extend(
        float(kinetic) / max(float(target), 1e-30)
        for kinetic, target in self._waiting)
    self._waiting = []


def _lower_bound(ratios):
  """The mean less twice its error, from the means of 10 parts of the series.

  Or that of the logarithms, if it is larger: it does not fail where the series
  grows by orders of magnitude.
  """
  def bound(values):
    means = [np.mean(part) for part in np.array_split(values, 10)]
    return np.mean(values) - 2. * np.std(means, ddof=1) / 10**0.5

  with np.errstate(all='ignore'):
    return np.nanmax([
        bound(ratios), np.exp(bound(np.log(np.maximum(ratios, 1e-30))))])
