"""Small stores of draws, and what is in them."""

import json
import pathlib

import numpy as np

from tfp_sgmcmc import store as store_lib
from tfp_sgmcmc.internal import manifest as manifest_lib

ARGUMENTS = {'seed': '1'}
DRAWS = 'draws_00000000-00000001.npz'


def draws(first, number):
  """Draws that tell their own numbers."""
  numbers = np.arange(first, first + number)
  return {
      'state/dense/kernel': np.tile(
          numbers.astype(np.float32)[:, np.newaxis], [1, 3]),
      'step': 10 * numbers}


def checkpoint(number):
  return {'state/0': np.full([2], number, np.float32)}


def open_store(directory, arguments=ARGUMENTS, made_by='sample'):
  return store_lib.Store(directory, made_by, arguments).open()


def write(directory, sizes=(2, 3)):
  """Commits so many draws at a time; returns the closed store."""
  with open_store(directory) as store:
    for size in sizes:
      store.append(draws(len(store.draws), size))
      store.commit(len(store.draws), checkpoint(len(store.draws)))
  return store


def change_manifest(directory, **changes):
  """As an error in the library, or someone with intent, would."""
  manifest = pathlib.Path(directory) / 'manifest.json'
  content = {**json.loads(manifest.read_text()), **changes}
  del content['digest']
  manifest.write_text(
      json.dumps({**content, 'digest': manifest_lib.digest(content)}))


def names(directory):
  return sorted(path.name for path in pathlib.Path(directory).iterdir())
