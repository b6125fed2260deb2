"""Tests of the main job, run small."""

import sys

import numpy as np
import pytest

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import quickstart

_SMALL = [
    '--adam_epochs=60', '--epochs=60', '--burnin_epochs=30',
    '--num_units=40', '--epochs_between_results=3']


@pytest.mark.slow
def test_prints_scores_that_a_working_sampler_reaches(tmp_path, capsys):
  pytest.importorskip('matplotlib')
  assert quickstart.main([*_SMALL, f'--output={tmp_path / "new"}']) == 0
  picture = (tmp_path / 'new' / 'quickstart.png').read_bytes()
  assert picture.startswith(b'\x89PNG') and len(picture) > 20_000
  output = capsys.readouterr().out
  assert '10 draws' in output and 'kinetic temperature' in output
  rows = {
      line[:22].strip(): [float(word) for word in line[22:].split()]
      for line in output.splitlines() if line.startswith(
          ('as they are', 'turned', 'noise'))}
  assert len(rows) == 5
  adam, posterior, adam_nll, posterior_nll = rows['as they are'][:4]
  assert min(adam, posterior) > 0.9 and max(adam_nll, posterior_nll) < 0.5
  # No network is sure and right on images that are mostly noise.
  assert rows['noise of 0.5'][2] > adam_nll
  assert rows['noise of 0.5'][3] > posterior_nll


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
