"""Some of the draws of a model's weights, and what predictions need of them."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfp_sgmcmc.internal import resampling
from tfp_sgmcmc.keras.draws import joined_draws
from tfp_sgmcmc.keras.draws import model_draws as draws_lib
from tfp_sgmcmc.keras.draws import predictions
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib

__all__ = ['ChosenDraws', 'pooled']


class ChosenDraws:
  """Some draws of a model's trainable weights, or all.

  Attributes:
    model: The model.
    draws: `ModelDraws`, of which these are some.
    variables: The model's trainable weights as they were when the draws were
      first taken up.
    predictor: What has been compiled for draws of the model.
  """

  def __init__(
      self,
      model: keras.Model,
      draws: draws_lib.ModelDraws,
      indices: Sequence[int] | None = None,
      predictor: predictions.Predictor | None = None,
  ):
    """See `PosteriorSamples`."""
    self.model = model
    self.draws = draws
    self.variables = list(model.trainable_variables)
    self.predictor = predictor or predictions.Predictor(model)
    self._indices = indices

  @property
  def indices(self) -> list[int]:
    """The numbers of these draws among all."""
    if self._indices is None:
      return list(range(len(self.draws)))
    return list(self._indices)

  def __len__(self) -> int:
    return len(self.indices)

  def some(self, indices: Sequence[int]) -> 'ChosenDraws':
    """Those with these numbers among all."""
    return self._of(self.draws, indices)

  def _of(self, draws, indices=None):
    """Other draws of the model, which share the compiled predictions."""
    other = ChosenDraws(self.model, draws, indices, self.predictor)
    other.variables = self.variables
    return other

  @property
  def steps(self) -> list[int]:
    """The step of the chain at which each draw was made."""
    steps = self.draws.steps
    return [steps[k] for k in self.indices]

  @property
  def chain_numbers(self) -> list[int]:
    """The number of each draw's chain."""
    numbers = self.draws.chain_numbers
    return [numbers[k] for k in self.indices]

  @property
  def chains(self) -> list['ChosenDraws']:
    """The draws of each chain."""
    numbers = self.chain_numbers
    found = dict.fromkeys(numbers)
    if len(found) == 1:
      return [self]
    return [
        self.some([i for i, k in zip(self.indices, numbers) if k == chain])
        for chain in found]

  @property
  def log_weights(self) -> np.ndarray | None:
    """The logarithm of each draw's weight, None where all count the same."""
    log_weights = self.draws.log_weights
    return None if log_weights is None else log_weights[self.indices]

  @property
  def shares(self) -> np.ndarray:
    """The weight of each draw, with a sum of 1."""
    if self.log_weights is None:
      return np.full(len(self), 1. / max(len(self), 1))
    w = np.asarray(self.log_weights, np.float64)
    w = np.exp(w - np.max(w))
    return w / np.sum(w)

  def resampled(self, seed: int = 0) -> 'ChosenDraws':
    """Draws at equal weights: see `PosteriorSamples.resampled`."""
    log_weights = self.draws.log_weights
    if log_weights is None or not len(self):
      return self
    parts = []
    for k, chain in enumerate(self.chains):
      every = chain.indices
      index = resampling.systematic(log_weights[every], [seed, k])
      parts.append((self.draws, [every[i] for i in index]))
    return self._of(joined_draws.join(self.model, parts, has_weights=False))

  @property
  def start(self) -> 'ChosenDraws | None':
    """The weights before sampling: see `PosteriorSamples.start`."""
    numbers = list(dict.fromkeys(self.chain_numbers))
    arrays = self.draws.start
    if not arrays or not numbers:
      return None
    return self._of(draws_lib.in_memory(self.model, arrays), numbers)

  def arrays(self) -> dict[str, np.ndarray]:
    """All that they hold, in memory, by name."""
    return self.draws.arrays(self.indices)

  def read(self) -> list[np.ndarray]:
    """All in memory: one array `[draws, ...]` for each trainable weight."""
    return self.draws.read(self.indices)

  def read_extras(self) -> list[tuple[keras.Variable, np.ndarray]]:
    """What they hold beside weights: variables, each with an array likewise."""
    return list(zip(self.draws.extras, self.draws.read_extras(self.indices)))

  def check_weights(self) -> None:
    """Raises where they are no longer of the model's trainable weights."""
    now = self.model.trainable_variables
    if [id(v) for v in now] != [id(v) for v in self.variables]:
      raise ValueError(
          f'The draws are of {len(self.variables)} weights, '
          f'{_show(self.variables)}, and the model now has {len(now)} '
          f'trainable ones, {_show(now)}: layers have been frozen or unfrozen '
          'since. Set `trainable` as it was and compile again.')

  def likelihood(self) -> likelihood_lib.Likelihood:
    """The likelihood of the model, for predictions.

    Raises:
      ValueError: If there are no draws, or the model is not compiled.
    """
    if not len(self):
      raise ValueError('There are no draws to predict with.')
    try:
      return likelihood_lib.Likelihood(self.model)
    except ValueError as error:
      raise ValueError(
          'The compiled loss says what the outputs mean (logits, locations), '
          f'which predictions of a posterior need. {error}') from error


def pooled(parts: Sequence[ChosenDraws]) -> ChosenDraws:
  """The draws of several chains: see `PosteriorSamples.concatenate`.

  Args:
    parts: `ChosenDraws`, of one chain or several each.

  Returns:
    pooled: `ChosenDraws` of the model of the first.
  """
  for k, part in enumerate(parts):
    if not len(part):
      raise ValueError(
          f'Number {k} of the list has no draws: leave it out, or make its '
          'chain again.')
  chains = [chain for part in parts for chain in part.chains]
  if not chains:
    raise ValueError('There are no draws in the list: nothing to pool.')
  model = chains[0].model
  for chain in chains:
    chain.check_weights()
  draws = joined_draws.join(
      model, [(chain.draws, chain.indices) for chain in chains])
  for chain in chains:
    joined_draws.check_models(model, chain.model, draws.extras)
  return ChosenDraws(model, draws)


def _show(variables: Any) -> str:
  paths = [variable.path for variable in variables]
  return ', '.join(paths[:4]) + (', ...' if len(paths) > 4 else '')
