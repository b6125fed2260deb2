"""One pass of draws over data, from which all that is predicted is computed."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.draws import chosen_draws
from tfp_sgmcmc.keras.draws import predictions
from tfp_sgmcmc.keras.draws import predictive as predictive_lib
from tfp_sgmcmc.keras.model import inspection

__all__ = ['OnePass', 'over_inputs']


class OnePass:
  """Draws of a model's weights, and data that they go over once.

  Attributes:
    chosen: `ChosenDraws`.
    likelihood: That of the model.
  """

  def __init__(
      self,
      chosen: chosen_draws.ChosenDraws,
      data: Callable[[], Iterator[predictions.Batch]],
      draw_batch_size: int,
  ):
    """Makes ready for the pass.

    Args:
      chosen: `ChosenDraws`.
      data: Callable that returns an iterator over batches.
      draw_batch_size: Python `int`, draws at a time.

    Raises:
      ValueError: If there are no draws, or the model is not compiled.
    """
    self.chosen = chosen
    self.likelihood = chosen.likelihood()
    self._data = data()
    self._draw_batch_size = draw_batch_size

  def results(
      self,
      name: str,
      fn: Callable[[Any, predictions.Batch], list[Any]],
      reduce_draws: Sequence[np.ufunc | None] | None = None,
      check: Callable[[Any, predictions.Batch], None] = (
          lambda outputs, batch: None),
  ) -> Iterator[tuple[predictions.Batch, list[Any]]]:
    """Applies `fn` to the outputs of all draws on all batches.

    Args:
      name: As for `Predictor.over_batches`.
      fn: As there.
      reduce_draws: As there. A reduction by `logaddexp` is the logarithm of a
        mean, one by `add` a mean.
      check: As there.

    Yields:
      batch: A batch.
      results: `fn`'s, reduced over the draws or stacked.

    Raises:
      ValueError: If the draws are no longer of the model's weights, or
        predictions mean nothing.
    """
    chosen, likelihood = self.chosen, self.likelihood
    chosen.check_weights()
    size = checks.positive_integer('draw_batch_size', self._draw_batch_size)
    indices, log_weights = chosen.indices, chosen.log_weights

    def read_draws():
      for k in range(0, len(indices), size):
        some = indices[k:k + size]
        yield chosen.draws.read(some) + chosen.draws.read_extras(some)

    def with_faults(outputs, batch):
      return [inspection.faults(likelihood, outputs), *fn(outputs, batch)]

    draw_weights = None
    if log_weights is not None:  # With a mean of 1.
      draw_weights = len(indices) * chosen.shares
    ways = None if reduce_draws is None else [np.maximum, *reduce_draws]
    for batch, (faults, *results) in chosen.predictor.over_batches(
        name, with_faults, self._data, read_draws, ways, chosen.draws.extras,
        check, draw_weights,
        len(indices) if ways is None or None in ways else 0):
      inspection.check_faults(faults, likelihood, batch[0])
      if reduce_draws is not None:
        results = [
            keras.tree.map_structure(
                lambda a, how=how: _over_number(a, how, len(indices)), result)
            for how, result in zip(reduce_draws, results)]
      yield batch, results

  def outputs(self) -> Iterator[Any]:
    """All draws' outputs `[draws, n, ...]`, for each batch.

    Raises:
      ValueError: If a loss is no distribution, and as for `results`.
    """
    likelihood = self.likelihood

    def outputs_of(outputs, batch):
      del batch
      # Raises early where a loss is no distribution.
      likelihood.map_outputs(lambda term, output: (
          None if term is None else
          predictive_lib.distribution_of_draw(term, output)), outputs)
      return [outputs]

    return (outputs for _, (outputs,) in self.results('outputs', outputs_of))


def over_inputs(
    chosen: chosen_draws.ChosenDraws,
    x: hints.Data,
    batch_size: int,
    draw_batch_size: int,
    steps: int | None,
) -> OnePass:
  """A pass over inputs alone: see `PosteriorSamples.predict`."""
  return OnePass(
      chosen, lambda: predictions.inputs(x, batch_size, steps), draw_batch_size)


def _over_number(total, how, number):
  """The mean over draws of a sum, or its logarithm; others as they are."""
  if how is np.logaddexp:
    return total - np.log(number)
  return total / number if how is np.add else total
