"""The traced programs of a chain, kept with the model for the next chain.

To trace the step of a chain, and to compile it, takes seconds. The programs of
the last chain are kept with the model, as Keras keeps its own train function,
and dropped with it or when it is compiled anew. A new chain with the same
settings takes them over: it gives their variables its own first values. As with
Keras' function, a layer that is changed in place needs `compile` to be called.

The former chain may go on, or be asked for its results. So the values that a
chain has in the variables are put aside when another chain enters, and put back
when it enters again.
"""

from collections.abc import Callable
from typing import Any
import weakref

import keras
import tensorflow as tf

from tfp_sgmcmc import collectives
from tfp_sgmcmc.internal import fingerprint
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import kept
from tfp_sgmcmc.keras.fitting import settings as settings_lib
from tfp_sgmcmc.keras.fitting import side_by_side
from tfp_sgmcmc.keras.fitting import step_of_chains
from tfp_sgmcmc.keras.model import compiled_step

__all__ = ['Program', 'of']

# Of what was given to `PosteriorSampling`, what a program depends on. It reads
# from variables what else it needs: seed, length of burn-in, state of a search.
_CONSTANTS = (
    'kernel', 'prior', 'prior_order', 'temperature', 'learning_rate',
    'momentum', 'target_excess', 'num_more_rows')


class Program:
  """The programs of a chain, and the objects whose variables they use.

  Attributes:
    chains: `SideBySide`.
    step: `StepOfChains`; None before the first batch that samples.
    compiled: `CompiledStep` around it; None before.
  """

  def __init__(
      self,
      model: keras.Model,
      settings: settings_lib.Settings,
      seed: tf.Tensor,
      key: Any,
  ):
    """Makes the object, with nothing traced.

    Args:
      model: Compiled `keras.Model`.
      settings: `Settings` of the first chain.
      seed: Its stateless seed.
      key: What has to be equal for another chain to take it over.
    """
    assert settings.chains is not None  # Their number is chosen before.
    self.chains = side_by_side.SideBySide(model, settings.chains, seed)
    self.step: step_of_chains.StepOfChains | None = None
    self.compiled: compiled_step.CompiledStep | None = None
    self._shared = self._parts_of(settings)
    self._key = key
    # As long as they live, no others have their `id`.
    self._of_model = list(model.variables)
    self._current: Callable[[], Any] = lambda: None
    # By chain. What is in the variables of a chain that is gone is not kept.
    self._aside: weakref.WeakKeyDictionary[Any, Any] = (
        weakref.WeakKeyDictionary())

  def fits(self, key: Any) -> bool:
    """Whether a chain with this key may take it over."""
    return (key is not None and self.compiled is not None
            and not self.compiled.is_stale() and self._key == key)

  def enter(self, chain: Any) -> None:
    """Puts the values of a chain into the variables; due before it uses them.

    Args:
      chain: `Chain`.
    """
    current = self._current()
    if current is chain:
      return
    if current is not None:
      self._aside[current] = self.chains.aside(), [
          (v, v.read_value()) for v in self._variables()]
    if chain in self._aside:
      chains, values = self._aside.pop(chain)
      self.chains.put_back(chains)
      for variable, value in values:
        variable.assign(value)
    self._current = weakref.ref(chain)

  def restart(self, settings: settings_lib.Settings, seed: tf.Tensor) -> None:
    """Begins anew with another chain, which has entered.

    Args:
      settings: `Settings` of the chain.
      seed: Its stateless seed.
    """
    assert settings.chains is not None
    self.chains.restart(settings.chains, seed)
    for new, old in zip(self._parts_of(settings), self._shared):
      new.share(old)

  @staticmethod
  def _parts_of(settings) -> list[Any]:
    """What of the settings has variables."""
    parts = settings.found_step, settings.search
    return [part for part in parts if part is not None]

  def _variables(self):
    """Those of a chain beside the model, as far as they are made."""
    parts = [self.chains, self.step, *self._shared]
    return [
        v for part in parts if part is not None for v in part.state_variables]


def of(
    model: keras.Model,
    settings: settings_lib.Settings,
    element_spec: hints.Nested,
    seed: tf.Tensor,
    chain: Any,
    raw_key: Any,
) -> Program:
  """The program for a new chain: the last chain's where it fits, or a new one.

  The chain has entered it.

  Args:
    model: Compiled and built `keras.Model`.
    settings: `Settings` of the chain.
    element_spec: That of the dataset's iterator.
    seed: Stateless seed of the chain.
    chain: `Chain`.
    raw_key: That of the coordinates of weights that read large inputs.

  Returns:
    program: `Program`.
  """
  key = _key(model, settings, element_spec, raw_key)
  programs = kept.of(model)
  program = programs.get(Program)
  if program is not None and program.fits(key):
    program.enter(chain)
    program.restart(settings, seed)
    return program
  program = Program(model, settings, seed, key)
  program.enter(chain)
  if key is not None:
    programs[Program] = program
  return program


def _key(model, settings, element_spec, raw_key):
  """What a chain's programs depend on; None where it cannot be compared."""
  if collectives.is_several(model.distribute_strategy):
    return None
  constants = fingerprint.of_constants(
      **{name: settings.given.get(name) for name in _CONSTANTS})
  if constants is None:
    return None
  found_step = settings.found_step
  return (
      constants, None if found_step is None else found_step.argument,
      settings.has_default_prior, raw_key, settings.chains.num_chains,
      settings.examples.number, bool(model.losses), element_spec,
      *([id(v) for v in variables] for variables in (
          model.trainable_variables, model.non_trainable_variables)))
