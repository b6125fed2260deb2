"""Tells a chain that is too hot, or that leaves the posterior.

At equilibrium the kinetic temperature r' r / d has the mean T. Two things raise
it. The noise of the gradient's estimate, of covariance C, heats a chain with
friction gamma and step size h by about h C / (2 gamma); with a given momentum
m = 1 - gamma h that is in proportion to the learning rate, N h^2. (A step too
large for the posterior's curvature heats without bound.) And a chain on its way
to the posterior gains what it loses in potential energy: where the mean loss
falls by f a step, the kinetic temperature is above T by

  N f / ((1 - m) d),

which passes, and says nothing of the step size. The momentum of SGHMC "euler"
is stored just after its kick, where it is at 2 T / (1 + m), which is nothing of
the weights' law; means and warnings leave it out.

A chain that comes from the mode loses, by equipartition, about d T / 2 of log
posterior, d T / (2 N) of the mean loss.

The mean over S steps of a chain at T is chi-squared with nu = d S / tau degrees
of freedom, over nu, with tau = (1 + m^2) / (1 - m^2), since momenta of
neighbouring steps have correlation m. A warning needs a mean above 1.5 T and
above the quantile 1 - 10^-4 of that law. Where d is 1, and the law not quite
that, four of ten thousand chains at T were warned of; at d = 50, none.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ['HeatWatch', 'HeatWatches', 'watch']

_WARM = 1.5
# The normal quantile of a false alarm in ten thousand.
_QUANTILE = 3.72
_FEWEST_STEPS = 10
# The momentum where it is not known.
_SLOW = 0.99
# Sampling stops where the last 100 steps, and a whole epoch, were above 100 T
# and did not cool.
_HOT = 100.
_HOT_STEPS = 100
# The excess of the temperature that the advice aims at.
_AIM = 0.1
# The loss: how many times d T / (2 N), and its value at the start, it may grow.
_GROWN = (10., 2.)
_GONE = (100., 100.)
_READ_EVERY = 1000


class HeatWatch:
  """Keeps the kinetic temperatures of a chain, and says what they mean.

  #### Examples

  >>> from tfp_sgmcmc.keras import temperature
  >>> watch = temperature.HeatWatch(
  ...     num_weights=100, num_examples=50, argument=('learning_rate', 0.1),
  ...     momentum=0.9)
  >>> watch.add_loss(0.7)
  >>> for step in range(1, 51):
  ...   watch.add(step, kinetic=3., target=1.)
  ...   if step % 25 == 0:
  ...     watch.add_loss(0.5)
  >>> print(watch.warning('of burn-in'))
  The mean kinetic temperature over steps 1 to 50, of burn-in, was 3 times the \
temperature: the chain is hotter than the posterior, and its draws spread too \
far. The excess falls with learning_rate: take learning_rate=0.005 (it is 0.1) \
for an excess of a tenth, or larger batches.
  """

  def __init__(
      self,
      num_weights: int,
      num_examples: int,
      argument: tuple[str, Any] | None,
      temperature: float = 1.,
      momentum: float | None = None,
      is_stored_after_kick: bool = False,
  ):
    """Makes the watch of a chain that has made no step.

    Args:
      num_weights: Python `int`, d, the number of sampled coordinates.
      num_examples: Python `int`, N.
      argument: The name of the argument that sets the step size, and its
        value; None where the step size is found without one.
      temperature: T where the kernel has no momentum.
      momentum: m, the share of the momentum that a step keeps; None where it
        is not known.
      is_stored_after_kick: Python `bool`, whether the momentum is that just
        after its kick, whose kinetic temperature at equilibrium is T / (1 - a)
        with a = (1 - m) / 2. Warnings and means are less that.
    """
    self._scale = 1.
    if is_stored_after_kick and momentum is not None:
      self._scale = (1. + momentum) / 2.
    self._num_weights, self._num_examples = num_weights, num_examples
    self._argument = argument
    self._spread = num_weights * temperature / (2. * num_examples)
    self._temperature = temperature
    self._momentum = momentum
    self._steps, self._ratios = [], []
    self._waiting = []
    self._first_loss = None
    self._losses = []
    self._has_grown = False

  @property
  def has_begun(self) -> bool:
    """Whether it knows the loss of the first step."""
    return self._first_loss is not None

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
    else:
      self._losses.append(self._placed(loss))
    return f'{self._growth(loss)}.' if self._is_above(loss, _GONE) else None

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
    return f'While the kernel samples {self._growth(loss)}.'

  def is_hot(self, since: int) -> bool:
    """Whether the chain is far too hot since a step, and does not cool.

    Args:
      since: Python `int`, the number of the epoch's first step.

    Returns:
      is_hot: Python `bool`; False where there were fewer than 100 steps.
    """
    since = min(since, self._steps[-1] - _HOT_STEPS + 1) if self._steps else 0
    ratios = self._since(since)
    if len(ratios) < _HOT_STEPS or not np.all(ratios > _HOT):
      return False
    quarter = len(ratios) // 4
    return np.median(ratios[-quarter:]) >= np.median(ratios[:quarter])

  def mean_ratio(self, since: int) -> float | None:
    """The mean over steps, from one on, of kinetic temperature over T.

    None without steps, and where T is zero.
    """
    ratios = self._scale * self._since(since)
    return float(np.mean(ratios)) if np.any(ratios) else None

  def stop_reason(self, since: int) -> str:
    """Why a chain that is hot since a step stops."""
    del since
    self._read()
    return (
        f'the kinetic temperature is {self._ratios[-1]:.3g} times the '
        'temperature, and does not fall.')

  def warning(
      self, which: str, since: int = 0, loss: float | None = None,
  ) -> str | None:
    """What to say of the mean kinetic temperature; None for nothing.

    Args:
      which: The steps in words, such as "of burn-in".
      since: Python `int`, the first step that counts.
      loss: None, or the mean loss of the epoch so far, where it has not ended.

    Returns:
      warning: Sentences, where the mean is above 1.5 T, and more so than by
        chance.
    """
    ratios = self._scale * self._since(since)
    if len(ratios) < _FEWEST_STEPS or not self._is_warm(ratios):
      return None
    mean = np.mean(ratios)
    said = (
        'The mean kinetic temperature over steps '
        f'{self._steps[-len(ratios)]} to {self._steps[-1]}, '
        f'{which}, was {mean:.3g} times the temperature')
    third = len(ratios) // 3
    first, last = np.mean(ratios[:third]), np.mean(ratios[-third:])
    advice = (
        'burn-in has to be longer: raise num_burnin_steps, or start from a '
        'trained model (start_epoch).')
    if last - 1. < 0.5 * (first - 1.):
      return (
          f'{said}, and fell from {first:.3g} to {last:.3g}: the chain was on '
          f'its way to the posterior, and {advice} If it stays high after '
          f'that, {self._lower}.')
    drift = self._drift(since, loss)
    if drift is not None and drift > 0.5 * (mean - 1.):
      return (f'{said}, most of it from a loss that still fell: the chain was '
              f'on its way to the posterior, and {advice}')
    said += (
        ': the chain is hotter than the posterior, and its draws spread too '
        f'far. {self._advice((mean - 1.) / _AIM)}')
    if drift is None:
      said += (
          ' But if the loss was still falling, raise num_burnin_steps first.')
    return said

  @property
  def _steps_of_correlation(self):
    """tau, of the squares of momenta."""
    m = min(_SLOW if self._momentum is None else self._momentum, 0.9999)
    return (1. + m**2) / (1. - m**2)

  def _is_warm(self, ratios):
    """Whether a mean is above 1.5 T, and above what T explains."""
    tau = self._steps_of_correlation
    nu = max(self._num_weights * len(ratios) / tau, self._num_weights)
    # Wilson and Hilferty: the cube root of chi-squared is nearly normal.
    variance = 2. / (9. * nu)
    explained = (1. - variance + _QUANTILE * variance**0.5)**3
    return np.mean(ratios) > max(_WARM, explained)

  def _placed(self, loss):
    """An epoch's loss, the epoch's last step and its middle."""
    before = self._losses[-1][1] if self._losses else 0
    last = self._steps[-1] if self._steps else before
    return loss, last, (before + last) / 2.

  def _drift(self, since, loss):
    """By how much a falling loss raises the kinetic temperature, over T.

    None where it is not known, for want of two epochs or of the momentum.
    """
    losses = self._losses + ([] if loss is None else [self._placed(loss)])
    inside = [k for k, (_, last, _) in enumerate(losses) if last >= since]
    if not inside or self._momentum is None:
      return None
    first, _, start = losses[max(inside[0] - 1, 0)]
    last, _, end = losses[-1]
    if end <= start:
      return None
    power = self._num_examples * (first - last) / (end - start)
    return power / (
        (1. - self._momentum) * self._num_weights * self._temperature)

  @property
  def _lower(self):
    if self._argument is None:
      return 'take larger batches'
    return f'lower {self._argument[0]}'

  def _advice(self, factor):
    """Advice to divide the step size; above 1000 the factor means nothing."""
    if self._argument is None:
      return (
          'Take larger batches, whose noise heats it less; or start from a '
          'trained model (start_epoch); or give a learning_rate.')
    name, value = self._argument
    if factor > 1000.:
      return (
          f'The steps are far too large: take a {name} smaller by a factor of '
          '10 or more, or start from a trained model (start_epoch).')
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

  def _since(self, step):
    """The ratios from a step on."""
    self._read()
    return np.asarray(self._ratios)[np.asarray(self._steps) >= step]

  def _read(self):
    """Reads the values of tensors that wait."""
    self._ratios.extend(
        float(kinetic) / float(target) if target > 0. else 0.
        for kinetic, target in self._waiting)
    self._waiting = []


class HeatWatches:
  """The watches of several chains, with the interface of one.

  Each chain is judged by itself: a mean over chains would hide a hot one. The
  losses are means over the chains.
  """

  def __init__(self, watches: Sequence[HeatWatch]):
    """Makes the watch of chains.

    Args:
      watches: One for each chain.
    """
    self._watches = watches

  @property
  def has_begun(self) -> bool:
    """Whether it knows the loss of the first step."""
    return self._watches[0].has_begun

  def add(self, step: int, kinetic: Any, target: Any) -> None:
    """Takes note of a step, with the kinetic temperatures of all chains."""
    for watch, value in zip(self._watches, np.asarray(kinetic)):
      watch.add(step, value, target)

  def add_loss(self, loss: float) -> str | None:
    """Takes note of a mean loss; says why sampling should stop, if so."""
    said = [watch.add_loss(loss) for watch in self._watches]
    return said[0]

  def loss_warning(self, loss: float) -> str | None:
    """What to say of an epoch's mean loss, once; None for nothing."""
    return self._watches[0].loss_warning(loss)

  def is_hot(self, since: int) -> bool:
    """Whether one of the chains is far too hot, and does not cool."""
    return any(watch.is_hot(since) for watch in self._watches)

  def stop_reason(self, since: int) -> str:
    """Why a hot chain stops."""
    chain, watch = next(
        (k, watch) for k, watch in enumerate(self._watches)
        if watch.is_hot(since))
    return f'of chain {chain} {watch.stop_reason(since)}'

  def mean_ratio(self, since: int) -> float | None:
    """The kinetic temperature over T of the hottest chain."""
    found = [watch.mean_ratio(since) for watch in self._watches]
    return None if None in found else max(found)

  def warning(
      self, which: str, since: int = 0, loss: float | None = None,
  ) -> str | None:
    """What to say of the chains that are too hot; None for nothing."""
    said = {k: watch.warning(which, since, loss)
            for k, watch in enumerate(self._watches)}
    hot = {k: text for k, text in said.items() if text is not None}
    if not hot:
      return None
    chain, text = next(iter(hot.items()))
    others = [str(k) for k in hot if k != chain]
    return f'Chain {chain}: {text}' + (
        f' So it is with chain(s) {", ".join(others)}.' if others else '')


def watch(num_chains: int, *arguments: Any) -> HeatWatch | HeatWatches:
  """The watch of so many chains.

  Args:
    num_chains: Python `int`.
    *arguments: Those of `HeatWatch`.

  Returns:
    watch: `HeatWatch` of one chain, `HeatWatches` of several.
  """
  watches = [HeatWatch(*arguments) for _ in range(num_chains)]
  return watches[0] if num_chains == 1 else HeatWatches(watches)
