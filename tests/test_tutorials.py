"""The notebooks run, cell by cell, and end where they say."""

import json
import pathlib

import numpy as np
import pytest

TUTORIALS = pathlib.Path(__file__).parent.parent / 'tutorials'


def run(name):
  """Runs a notebook's code; returns what it defined."""
  matplotlib = pytest.importorskip('matplotlib')
  matplotlib.use('Agg')
  notebook = json.loads((TUTORIALS / name).read_text())
  names = {}
  for cell in notebook['cells']:
    if cell['cell_type'] == 'code':
      exec(''.join(cell['source']), names)
  matplotlib.pyplot.close('all')
  return names


def test_every_notebook_is_tested():
  assert {path.name for path in TUTORIALS.glob('*.ipynb')} == {
      'softmax_regression.ipynb'}


@pytest.mark.slow
def test_softmax_regression():
  names = run('softmax_regression.ipynb')
  assert names['r_hat'] < 1.1
  assert names['effective'] > 50.
  assert abs(np.mean(names['temperature']) - 1.) < 0.15
  labels = names['test'].labels
  for p in names['probabilities'].values():
    assert names['diagnostics'].accuracy(p, labels) > 0.93
