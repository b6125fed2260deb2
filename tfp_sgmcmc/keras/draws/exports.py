"""Draws of a model's weights on disk, as files of Keras, and for ArviZ."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.draws import chosen_draws
from tfp_sgmcmc.keras.draws import model_draws as draws_lib
from tfp_sgmcmc.keras.model import model_record
from tfp_sgmcmc.keras.model import network

__all__ = ['save', 'to_arviz', 'weights_files']


def save(
    chosen: chosen_draws.ChosenDraws, directory: hints.Path) -> None:
  """See `PosteriorSamples.save`.

  Args:
    chosen: `ChosenDraws`.
    directory: Path of a directory without draws.
  """
  draws, indices = chosen.draws, chosen.indices
  step = draws.steps[indices[-1]] if indices else 0
  checkpoint = draws_lib.checkpoint_of(draws.start)
  with draws_lib.new_store(directory) as store:
    store.describe(model_record.of_model(chosen.model, draws.extras))
    for index in indices:
      store.append(draws.arrays([index]))
      if store.commit_is_due:
        store.commit(step, checkpoint)
    store.commit(step, checkpoint)


def weights_files(
    chosen: chosen_draws.ChosenDraws, directory: hints.Path) -> list[str]:
  """See `PosteriorSamples.export_weights`.

  Args:
    chosen: `ChosenDraws`.
    directory: Path.

  Returns:
    paths: The paths of the files, one for each draw.
  """
  chosen.check_weights()
  equal = chosen.resampled()
  draws, indices = equal.draws, equal.indices
  folder = checks.directory(directory)
  folder.mkdir(parents=True, exist_ok=True)
  files = [folder / f'draw_{k:06}.weights.h5' for k in range(len(indices))]
  for file in files:
    if file.exists():
      raise FileExistsError(
          f'{file} is there already: give another directory.')
  variables = chosen.model.trainable_variables + draws.extras
  with network.put_back(variables):
    for file, index in zip(files, indices):
      arrays = draws.read([index]) + draws.read_extras([index])
      network.assign(variables, [array[0] for array in arrays])
      chosen.model.save_weights(file)
  return [str(file) for file in files]


def to_arviz(
    chains: Sequence[Any],
    x: hints.Data,
    y: hints.Data,
    batch_size: int,
) -> Any:
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
