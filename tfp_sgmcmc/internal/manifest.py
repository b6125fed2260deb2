"""The file that says what run a directory of draws holds, and how far it is."""

from collections.abc import Mapping
import hashlib
import json
import pathlib
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc.internal import array_files

__all__ = ['NAME', 'Commit', 'Manifest', 'digest', 'read', 'write']

NAME = 'manifest.json'
_FORMAT = 'tfp_sgmcmc draws, version 2'


class Commit(NamedTuple):
  """Where a run stood when it was committed.

  Attributes:
    number: Of the commit.
    step: The number of steps made.
    num_draws: The number of draws.
    mark: What `rewind` is given to come back here, if anything.
    draws: The checksum of the last file of draws, which stands for all.
    checkpoint: That of the checkpoint.
  """
  number: int
  step: int
  num_draws: int
  mark: int | None
  draws: str
  checkpoint: str


class Manifest(NamedTuple):
  """What `manifest.json` holds."""
  made_by: str
  commits: list[Commit]
  draw: dict[str, tf.TensorSpec]
  checkpoint: dict[str, tf.TensorSpec]
  arguments: dict[str, str]
  about: dict[str, str]


def read(path: pathlib.Path) -> Manifest | None:
  """The manifest in a file, None where there is no file.

  Raises:
    ValueError: If it is not one of ours, or damaged.
  """
  try:
    content = json.loads(path.read_bytes())
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (IsADirectoryError, ValueError, RecursionError) as error:
    raise array_files.damaged(path, error) from error
  if not isinstance(content, dict) or content.get('format') != _FORMAT:
    found = content.get('format') if isinstance(content, dict) else None
    raise ValueError(
        f'{path} is not one of draws that this version of the library reads: '
        f'its format is {found!r}, and has to be {_FORMAT!r}. Give another '
        'directory.')
  if content.pop('digest', None) != digest(content):
    raise array_files.damaged(path, 'its digest is of another content')
  try:
    commits = [
        Commit(
            _count(commit['number']), _count(commit['step']),
            _count(commit['num_draws']),
            None if commit['mark'] is None else _count(commit['mark']),
            _checksum(commit['draws']), _checksum(commit['checkpoint']))
        for commit in content['commits']]
    return Manifest(
        str(content['made_by']), commits, _from_json(content['draw']),
        _from_json(content['checkpoint']), dict(content['arguments']),
        dict(content['about']))
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    raise array_files.damaged(path, error) from error


def write(path: pathlib.Path, manifest: Manifest) -> None:
  """Writes a manifest in place of the one before, whole or not at all."""
  content = {
      'format': _FORMAT, 'made_by': manifest.made_by,
      'commits': [commit._asdict() for commit in manifest.commits],
      'draw': _to_json(manifest.draw),
      'checkpoint': _to_json(manifest.checkpoint),
      'arguments': manifest.arguments, 'about': manifest.about}
  with array_files.replacing(path) as file:
    file.write(json.dumps(
        {**content, 'digest': digest(content)}, indent=1).encode())


def _to_json(specs):
  return {
      name: [spec.dtype.name, spec.shape.as_list()]
      for name, spec in specs.items()}


def _from_json(specs):
  return {
      name: tf.TensorSpec([_count(size) for size in shape], tf.as_dtype(dtype))
      for name, (dtype, shape) in specs.items()}


def _count(value):
  if type(value) is not int or value < 0:
    raise ValueError(f'{value!r} is no count')
  return value


def _checksum(value):
  if not array_files.CHECKSUM.fullmatch(value):
    raise ValueError(f'{value!r} is no checksum')
  return value


def digest(content: Mapping[str, Any]) -> str:
  """The digest of a manifest's other entries, by which damage is found."""
  return hashlib.sha256(
      json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
