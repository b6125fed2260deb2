"""What `fit` records of a chain's heat, and what it means.

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
the weights' law and is left out.

A chain that comes from the mode loses, by equipartition, about d T / 2 of log
posterior, d T / (2 N) of the mean loss.

Whether a chain is too hot `diagnostics.temperatures` says, from this record.
"""

from typing import Any

import numpy as np

from tfp_sgmcmc.diagnostics import temperatures
from tfp_sgmcmc.diagnostics import verdicts
from tfp_sgmcmc.internal import hints

__all__ = ['HeatRecord']

# The excess of the temperature that the advice aims at.
_AIM = 0.1
_READ_EVERY = 1000
# Below this T the noise of minibatches is most of the heat, which the default
# kernel holds at about this (`SelfTuning`).
_LEAST = 0.05
_BURNIN = (
    'burn-in has to be longer: raise num_burnin_steps, or start from a trained '
    'model (start_epoch).')
_CHOSEN = (
    'The noise of minibatches is a part of the temperature, as it was when T '
    'was chosen: the draws are not of the posterior at T, but their '
    'predictions were judged as they are.')


class HeatRecord:
  """The kinetic temperatures of chains, step by step, and their mean losses.

  #### Examples

  >>> from tfp_sgmcmc.keras.heat import heat_record
  >>> record = heat_record.HeatRecord(
  ...     num_chains=1, num_weights=100, num_examples=50,
  ...     argument=('learning_rate', 0.1), momentum=0.9)
  >>> record.add_loss(0.7)
  >>> for step in range(1, 51):
  ...   record.add(step, kinetic=3., target=1.)
  ...   if step % 25 == 0:
  ...     record.add_loss(0.5)
  >>> row, = record.rows()
  >>> row.value, row.verdict
  (3.0, 'wrong')
  >>> print(row.advice)
  It has to be 1. The chain is hotter than the posterior, and its draws spread \
too far. The excess falls with learning_rate: take learning_rate=0.005 (it is \
0.1) for an excess of a tenth, or larger batches.
  """

  def __init__(
      self,
      num_chains: int,
      num_weights: int,
      num_examples: int,
      argument: tuple[str, Any] | None,
      temperature: float = 1.,
      momentum: float | None = None,
      is_stored_after_kick: bool = False,
  ):
    """Makes the record of chains that have made no step.

    Args:
      num_chains: Python `int`, k.
      num_weights: Python `int`, d, the number of sampled coordinates.
      num_examples: Python `int`, N.
      argument: The name of the argument that sets the step size, and its
        value; None where the step size is found without one.
      temperature: T where the kernel has no momentum.
      momentum: m, the share of the momentum that a step keeps; None where it
        is not known.
      is_stored_after_kick: Python `bool`, whether the momentum is that just
        after its kick, whose kinetic temperature at equilibrium is T / (1 - a)
        with a = (1 - m) / 2.
    """
    self._scale = 1.
    if is_stored_after_kick and momentum is not None:
      self._scale = (1. + momentum) / 2.
    self._num_chains = num_chains
    self._num_weights, self._num_examples = num_weights, num_examples
    self._argument = argument
    self._spread = num_weights * temperature / (2. * num_examples)
    self._temperature = temperature
    self._momentum = momentum
    self._steps, self._waiting = [], []
    self._kinetic = np.zeros([0, num_chains])
    self._targets = np.zeros([0])
    self._first_loss: float | None = None
    self._losses = []

  @property
  def num_chains(self) -> int:
    """k."""
    return self._num_chains

  @property
  def has_begun(self) -> bool:
    """Whether it knows the loss of the first step."""
    return self._first_loss is not None

  def add(
      self,
      step: int,
      kinetic: hints.TensorLike,
      target: hints.LogDensity,
  ) -> None:
    """Takes note of a step.

    Args:
      step: Python `int`, its number.
      kinetic: r' r / d, scalar or `[k]`. Tensors are read later, many at a
        time.
      target: Scalar, T.
    """
    self._steps.append(step)
    self._waiting.append((kinetic, target))
    if len(self._waiting) >= _READ_EVERY:
      self._read()

  def add_loss(self, loss: float) -> None:
    """Takes note of a mean loss: first that of the first step, then epochs'."""
    if self._first_loss is None:
      self._first_loss = loss
    else:
      self._losses.append(self._placed(loss))

  def steps(self, since: int) -> list[int]:
    """The numbers of the steps, from one on."""
    return [step for step in self._steps if step >= since]

  def rows(
      self, since: int = 0, loss: float | None = None, is_judged: bool = True,
  ) -> list[verdicts.Row]:
    """The row of each chain's mean kinetic temperature over T.

    Args:
      since: Python `int`, the first step that counts.
      loss: None, or the mean loss of the epoch so far, where it has not ended.
      is_judged: Python `bool`; False where T was chosen by validation data:
        then what was judged holds the heat, and it is doubtful at most.

    Returns:
      rows: `Row`s, with the cause as advice; none where there are too few
        steps, no momentum or T = 0.
    """
    def row(ratios):
      return temperatures.kinetic_of_steps(
          ratios, self._num_weights, self._momentum,
          lambda _: self._cause(ratios, since, loss) if is_judged else _CHOSEN,
          is_judged)

    rows = map(row, self._since(since))
    return [row for row in rows if row is not None]

  def rows_without_bound(self, since: int) -> dict[int, verdicts.Row]:
    """The rows of the chains that are far too hot in 100 steps, and an epoch.

    Below T = 0.05 it counts how hot they are beside 0.05, in place of T.

    Args:
      since: Python `int`, the number of the epoch's first step.

    Returns:
      rows: `Row`s by the number of the chain.
    """
    if self._steps:
      since = min(since, self._steps[-1] - temperatures.HOT_STEPS + 1)
    found = {}
    for k, (ratios, over_least) in enumerate(
        zip(self._since(since), self._since(since, _LEAST))):
      row = temperatures.heat_without_bound(over_least)
      if row is not None:
        found[k] = row._replace(value=float(ratios[-1]))
    return found

  def row_of_loss(self, loss: float) -> verdicts.Row:
    """The row of an epoch's mean loss."""
    first = loss if self._first_loss is None else self._first_loss
    return temperatures.growth_of_loss(loss, first, self._spread)

  def _cause(self, ratios, since, loss):
    """Why a chain is not at T, and what to do."""
    mean, third = np.mean(ratios), len(ratios) // 3
    first, last = np.mean(ratios[:third]), np.mean(ratios[-third:])
    if mean < 1.:
      return f'The chain is still cold: {_BURNIN}'
    if last - 1. < 0.5 * (first - 1.):
      lower = 'take larger batches' if self._argument is None else (
          f'lower {self._argument[0]}')
      return (
          f'It fell from {first:.3g} to {last:.3g}: the chain was on its way '
          f'to the posterior, and {_BURNIN} If it stays high after that, '
          f'{lower}.')
    drift = self._drift(since, loss)
    if drift is not None and drift > 0.5 * (mean - 1.):
      return (
          'Most of it is from a loss that still fell: the chain was on its way '
          f'to the posterior, and {_BURNIN}')
    said = (
        'The chain is hotter than the posterior, and its draws spread too far. '
        f'{self._advice((mean - 1.) / _AIM)}')
    if drift is None:
      said += (
          ' But if the loss was still falling, raise num_burnin_steps first.')
    return said

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

  def _since(self, step, least=0.):
    """The kinetic temperatures over T from a step on, `[k, n]`; 0 at T = 0.

    Over `least`, where T is lower.
    """
    self._read()
    is_since = np.asarray(self._steps) >= step
    targets = self._targets[is_since]
    ratios = self._kinetic[is_since].T / np.maximum(
        targets, np.where(targets > 0., least, np.inf))
    return self._scale * ratios

  def _read(self):
    """Reads the values of tensors that wait."""
    if self._waiting:
      kinetic, targets = (
          np.asarray([np.asarray(value) for value in values], np.float64)
          for values in zip(*self._waiting))
      self._kinetic = np.concatenate(
          [self._kinetic, kinetic.reshape([-1, self._num_chains])])
      self._targets = np.concatenate([self._targets, targets.ravel()])
    self._waiting = []
