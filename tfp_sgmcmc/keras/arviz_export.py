"""Draws of a model's weights for ArviZ."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

__all__ = ['to_arviz']


def to_arviz(chains: Sequence[Any], x: Any, y: Any, batch_size: int) -> Any:
  """See `PosteriorSamples.to_arviz`.

  Args:
    chains: A `PosteriorSamples` of each chain.
    x: Inputs or None.
    y: Targets or None.
    batch_size: Python `int`.

  Returns:
    inference_data: `arviz.InferenceData`.
  """
  try:
    import arviz  # pylint: disable=g-import-not-at-top
  except ImportError as error:
    raise ImportError(
        'to_arviz needs ArviZ: pip install "tfp_sgmcmc[arviz]".') from error
  if x is None and y is not None:
    raise ValueError('There are targets y without inputs x: pass both.')
  number = min((len(chain) for chain in chains), default=0)
  if not number:
    raise ValueError('There are no draws to export.')
  chains = [chain[len(chain) - number:] for chain in chains]

  def stacked(fn):
    return keras.tree.map_structure(
        lambda *arrays: np.stack(arrays), *map(fn, chains))

  posterior = {
      name.replace('/', '.'): array
      for name, array in stacked(lambda chain: chain.weights).items()}
  if x is not None:
    outputs = keras.tree.flatten(stacked(
        lambda chain: chain.predict(x, batch_size, return_samples=True)))
    posterior.update(
        {'predictions': outputs[0]} if len(outputs) == 1 else {
            f'predictions_{k}': array for k, array in enumerate(outputs)})
  return arviz.from_dict(
      posterior=posterior,
      sample_stats={'step': stacked(lambda chain: np.array(chain.steps))},
      log_likelihood=None if y is None else {'y': stacked(
          lambda chain: chain.log_likelihood(x, y, batch_size))})
