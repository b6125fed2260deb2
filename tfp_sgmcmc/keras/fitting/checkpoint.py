"""What a chain in `fit` leaves on disk, for another process to go on with.

Beside the draws a commit holds the chain as it is: the model's weights, the
kernel's results with their step counter, the seed, and where in the calls of
`fit` it stands. The next process finds there which epoch, and which batch of
it, comes next.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import os
from typing import Any
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import store as store_lib
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import chunks as chunks_lib
from tfp_sgmcmc.internal import fingerprint as fingerprint_lib
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import leaves as leaves_lib
from tfp_sgmcmc.keras.model import model_record
from tfp_sgmcmc.keras.model import network

__all__ = [
    'Directory', 'Part', 'assign', 'assign_model', 'leaves', 'of_model',
    'open_store', 'to_directory']


_OF_ANOTHER_VERSION = (
    ' If another version of tfp_sgmcmc began it, it cannot go on: '
    'PosteriorSamples.load(directory, model) reads its draws.')


@dataclasses.dataclass(frozen=True)
class Directory:
  """A directory to which draws are written as they are made.

  If it already holds the same chain, `fit` continues the chain. Only one run at
  a time can write to a directory.

  Attributes:
    path: Path of the directory, which need not exist yet.
    fingerprint: None, or a Python `str` that identifies inputs which a
      directory cannot compare, such as the version of the data. With another
      string the chain is not continued.

  Raises:
    ValueError: If no directory can have that path.
    TypeError: If an argument is of the wrong type.

  #### Examples

  >>> sampling = sgmcmc.keras.PosteriorSampling(
  ...     directory=sgmcmc.keras.Directory('run', fingerprint='data of May'))
  """
  path: str | os.PathLike
  _: dataclasses.KW_ONLY
  fingerprint: str | None = None

  def __post_init__(self):
    checks.directory(self.path)
    fingerprint_lib.check(self.fingerprint)

  def folder(self, name: str) -> 'Directory':
    """A directory in this one, with the same fingerprint."""
    path = checks.directory(self.path).absolute() / name
    return Directory(str(path), fingerprint=self.fingerprint)


def to_directory(value: 'Directory | hints.Path | None') -> Directory | None:
  """What was given as `directory`, as a `Directory`; None for none."""
  if value is None or isinstance(value, Directory):
    return value
  return Directory(value)


class Part(Protocol):
  """A part of a chain that another process can go on with."""

  def state(self) -> dict[str, np.ndarray]:
    """What `load_state` takes, by names that no other part has."""

  def load_state(self, state: Mapping[str, np.ndarray]) -> None:
    """Takes over a state; it may be among the arrays of other parts."""


def open_store(
    directory: Directory, arguments: Mapping[str, Any]) -> store_lib.Store:
  """Opens the directory of a chain, a new one or one to go on with.

  Args:
    directory: `Directory`.
    arguments: What the chain was given, its likelihood too, by name.

  Returns:
    store: `Store`, open.

  Raises:
    FileExistsError: If the directory holds draws without a chain.
    ValueError: If it holds another chain, or is damaged.
    RuntimeError: If another run is writing to it.
  """
  described = fingerprint_lib.of_run(
      'Another chain in', directory.path, directory.fingerprint, arguments)
  found = store_lib.Store(directory.path, 'fit')
  if not found.is_new and 'seed' not in found.checkpoint():
    raise FileExistsError(
        f'{found.path} holds draws of PosteriorSamples.save, and no chain that '
        'could go on: give another directory. To read them, '
        'PosteriorSamples.load(directory, model).')
  return store_lib.Store(
      directory.path, 'fit', described).open(take_over=True)


def of_model(model: keras.Model) -> dict[str, np.ndarray]:
  """All weights of a model, trainable or not."""
  return leaves(weights=model.trainable_variables,
                others=model.non_trainable_variables)


def assign_model(
    model: keras.Model,
    checkpoint: Mapping[str, np.ndarray],
    store: store_lib.Store,
) -> None:
  """Puts back what `of_model` took.

  Args:
    model: Built model.
    checkpoint: Arrays, those of `of_model` among them.
    store: Where they come from, with a record of the model.

  Raises:
    ValueError: If the model has other weights, or other layers.
  """
  difference = model_record.difference(store.about, model)
  if difference is not None:
    raise ValueError(
        f'{store.path} holds the chain of another model: {difference}. Make '
        'the model as it was to go on with it, or give another directory.')
  assign(checkpoint, weights=model.trainable_variables,
         others=model.non_trainable_variables)


def leaves(**groups: Sequence[Any]) -> dict[str, np.ndarray]:
  """The values of lists of variables, as `<group>/<number>`."""
  return leaves_lib.named(**{
      group: network.values(variables) for group, variables in groups.items()})


def assign(
    checkpoint: Mapping[str, np.ndarray], **groups: Sequence[Any]) -> None:
  """Puts back what `leaves` took.

  Args:
    checkpoint: Arrays, those of `leaves` among them.
    **groups: Lists of variables.

  Raises:
    ValueError: If there are other variables than at the time.
  """
  for group, variables in groups.items():
    kept = {name: array for name, array in checkpoint.items()
            if name.startswith(f'{group}/')}
    before = {
        name: tf.TensorSpec(array.shape, tf.as_dtype(array.dtype))
        for name, array in kept.items()}
    now = {
        f'{group}/{k}': tf.TensorSpec(v.shape, tf.as_dtype(v.dtype))
        for k, v in enumerate(variables)}
    difference = chunks_lib.spec_difference(before, now)
    if difference is not None:
      raise ValueError(
          f'The directory holds the chain of another model: {difference}. Make '
          'the model as it was, the same layers frozen, to go on with it, or '
          'give another directory.' + _OF_ANOTHER_VERSION * (
              group in ('results', 'chains')))
    network.assign(variables, [kept[name] for name in now])
