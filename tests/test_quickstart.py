"""Tests of the main job, run small."""

import re
import sys

import numpy as np
import pytest

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import quickstart


@pytest.mark.slow
def test_prints_scores_that_a_working_sampler_reaches(tmp_path, capsys):
  pytest.importorskip('matplotlib')
  assert quickstart.main(
      ['--epochs=25', '--num_units=40', f'--output={tmp_path / "new"}']) == 0
  picture = (tmp_path / 'new' / 'quickstart.png').read_bytes()
  assert picture.startswith(b'\x89PNG') and len(picture) > 20_000
  output = capsys.readouterr().out
  assert re.search(r'T = 1: 1[2-9]\d networks', output)  # Of four chains.
  assert 'chosen: ' in output
  rows = {
      line[:18].strip(): [float(word) for word in line[18:].split()]
      for line in output.splitlines()
      if line.startswith(('Adam  ', 'T = 0  ', 'T chosen  ', 'T = 1  '))}
  assert len(rows) == 4
  for accuracy, nll, _, *shifted in rows.values():
    assert accuracy > 0.9 and nll < 0.5
    # No network is sure and right on images that are mostly noise.
    assert len(shifted) == 4 and shifted[-1] > nll


def test_turning_by_a_right_angle_is_exact():
  _, test = sgmcmc.datasets.load_digits()
  x = quickstart.to_features(test.images[:5])
  turned = quickstart.turn(x, 90.).reshape([-1, 8, 8])
  expected = np.rot90(x.reshape([-1, 8, 8]), axes=(1, 2))
  back = np.rot90(x.reshape([-1, 8, 8]), k=-1, axes=(1, 2))
  assert min(np.abs(turned - e).max() for e in (expected, back)) < 1e-4
  np.testing.assert_allclose(quickstart.turn(x, 0.), x, atol=1e-6)


def test_without_matplotlib_it_says_what_to_install(monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  assert quickstart.main([]) == 1
  assert 'pip install "tfp_sgmcmc[quickstart]"' in capsys.readouterr().err
