"""A sampling step of all chains of a `fit`, whatever their number.

It is made of the step of one chain (`step.SamplingStep`). The chains step
together, in one vectorised program (`together`), or take turns in the model
(`turns`).
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.fitting import checkpoint as checkpoint_lib
from tfp_sgmcmc.keras.fitting import side_by_side
from tfp_sgmcmc.keras.fitting import step as step_lib
from tfp_sgmcmc.keras.fitting import together
from tfp_sgmcmc.keras.model import network

__all__ = ['BY_CHAIN', 'StepOfChains']

# The entry of the step's logs with what each chain is judged by, `[k]` each.
BY_CHAIN = 'by_chain'
# What the logs have the mean over chains of, and no value by chain.
_MEANS = ('learning_rate', 'step_size')


class StepOfChains:
  """The sampling step of all chains: a `SamplingStep` of each."""

  def __init__(
      self, step: step_lib.SamplingStep, chains: side_by_side.SideBySide):
    """Makes the step, from here on in place of the optimizer's.

    Args:
      step: `SamplingStep` of one chain, its seed from `begin_sampling`.
      chains: `SideBySide`.
    """
    self._step, self._chains = step, chains
    self._turns = chains.turns
    self._together = together.Together(
        step, chains.turns, chains.num_chains, chains.may_step_together)

  @property
  def state_variables(self) -> list[tf.Variable]:
    """What the chain in the model has beside the model."""
    return self._step.state_variables

  def restart(self) -> None:
    """Forgets what the steps of other chains came to; `bootstrap` is next."""
    self._step.restart()

  def set_likelihood(self, likelihood: Any) -> None:
    """Takes the likelihood of a model that was compiled anew."""
    self._step.set_likelihood(likelihood)

  @property
  def variables(self) -> list[keras.Variable]:
    """The sampled weights, which are those of chain 0 between steps."""
    return self._step.variables

  def results_named(self, name: str) -> list[tf.Variable]:
    """The variable with the kernel's result of that name, if it has one."""
    return self._step.results_named(name)

  def segment(self) -> tuple[list[np.ndarray], float]:
    """Where the last segment of a path began, and its duration."""
    return self._step.segment()

  @property
  def num_steps(self) -> int:
    """The number of steps made."""
    return int(self._number)

  @property
  def _number(self):
    """The number of steps, as a tensor."""
    return self._turns.first(self._step.status_variables[0])

  def results(self) -> Any:
    """The kernel's results after the last step; of several `[k, ...]` each."""
    if self._chains.num_chains == 1:
      return self._step.results()
    return self._step.packed([
        tf.constant(value)
        for value in self._turns.stacked(self._step.result_variables)])

  def weights(self) -> list[np.ndarray]:
    """The sampled weights; of several chains `[k, ...]` each."""
    if self._chains.num_chains == 1:
      return network.values(self.variables)
    return self._turns.stacked(self.variables)

  def where_bad(self) -> str:
    """In which chains there was NaN or Inf; nothing where there is one."""
    if self._chains.num_chains == 1:
      return ''
    bad, = self._turns.stacked(self._step.status_variables[1:])
    return f' of chain {", ".join(map(str, np.flatnonzero(bad)))}'

  def bootstrap(self, data: hints.Data) -> None:
    """Makes the kernel's first results, on the first batch.

    Args:
      data: A batch as `train_step` gets it.
    """
    rows = self._chains.deal_more(data, tf.ones([], tf.int64))
    added = []
    for chain in self._chains.one_by_one():
      self._step.bootstrap(rows(chain))
      if not added:
        added = [*self._step.result_variables, *self._step.status_variables[1:]]
        self._turns.add(added, is_own=True)

  def state(self) -> dict[str, np.ndarray]:
    """The state of the chains beside the model: what `load_state` takes."""
    self._turns.load_first()
    return {
        **self._step.state(),
        **checkpoint_lib.leaves(chains=self._turns.slots)}

  def load_state(self, state: Mapping[str, np.ndarray]) -> None:
    """Takes the place of another object, after `bootstrap`.

    Args:
      state: Arrays by name, those of its `state` among them.

    Raises:
      ValueError: If the kernel's results were others.
    """
    self._step.load_state(state)
    checkpoint_lib.assign(state, chains=self._turns.slots)

  def train_step(self, data: hints.Data) -> dict[str, Any]:
    """A step of each chain on its rows of a batch.

    Args:
      data: As `SamplingStep.train_step` takes it.

    Returns:
      logs: As that of one chain gives them, means over chains; of several also
        the kinetic temperatures under `BY_CHAIN`, `[k]`, if there are any.
    """
    rows = self._chains.deal_more(data, self._number + 1)
    found = self._together.each(rows)
    if found is None:
      found = self._turns.each(self._step.train_step, rows)
    first = found[0]  # The last that was made: its metrics hold all.
    if len(found) == 1:
      return first
    logs = dict(first)
    stacked = {
        name: tf.stack([each[name] for each in found])
        for name in ('kinetic_temperature', *_MEANS) if name in first}
    logs.update({name: tf.reduce_mean(v) for name, v in stacked.items()})
    for name in _MEANS:
      stacked.pop(name, None)
    step, _ = first[step_lib.STATUS]
    bad = _first(tf.stack([each[step_lib.STATUS][1] for each in found]))
    return {**logs, BY_CHAIN: stacked, step_lib.STATUS: (step, bad)}


def _first(bad):
  """The lowest of the numbers that are not zero; zero where there is none."""
  return tf.reduce_min(tf.where(bad == 0, bad.dtype.max, bad)) * tf.cast(
      tf.reduce_any(bad > 0), bad.dtype)
