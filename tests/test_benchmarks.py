"""What benchmarks compute, and a small run of the one on uncertainty."""

import os

import numpy as np
import pytest

from benchmarks import uncertainty
from benchmarks import uncertainty_data

USUAL = uncertainty_data.USUAL


def test_auroc_is_the_share_of_pairs_in_order():
  rng = np.random.default_rng(0)
  usual, other = rng.integers(0, 9, 40), rng.integers(3, 12, 30)
  pairs = other[:, np.newaxis] - usual
  np.testing.assert_allclose(
      uncertainty.auroc(usual, other),
      np.mean(pairs > 0) + 0.5 * np.mean(pairs == 0))


def test_targets_are_judged_by_pairs_of_the_same_seed():
  def line(nll, shifted, accuracy):
    return dict(scores={
        USUAL: dict(NLL=nll, accuracy=accuracy),
        'noise': dict(NLL=shifted, accuracy=0.), 'turned': dict(NLL=1.)})

  grid = {'a set': {
      'Adam': {1: line(1., 1., 0.9), 2: line(2., 3., 0.9), 3: line(9., 9., 1.)},
      'ensemble of 4': {1: line(0.9, 1., 0.9), 2: line(1., 3., 0.9)},
      'T chosen': {1: line(0.9, 0.2, 0.9), 2: line(1.8, 2., 0.8)}}}
  said = uncertainty.targets(grid)
  for part in (
      "NLL over Adam's ≤ 0.95 | T chosen | 0.900 ± 0.000, reached",
      "accuracy less Adam's ≥ 0 | T chosen | -0.050 ± 0.050, not reached",
      "shifted data over Adam's ≤ 0.7 | T chosen | 0.675 ± 0.075, reached",
      "NLL over the ensemble's ≤ 1.05 | T chosen | 1.400 ± 0.400, not reached",
      "NLL over Adam's ≤ 0.95 | T = 1 | not run"):
    assert part in said, (part, said)


@pytest.mark.slow
def test_uncertainty_runs_and_resumes(tmp_path, monkeypatch):
  folder = os.environ.get('TFP_SGMCMC_DATA')
  if not folder:
    pytest.skip('TFP_SGMCMC_DATA names no folder of data sets')
  monkeypatch.setattr(uncertainty, 'NUM_MEMBERS', 2)
  arguments = [
      '--tiny', '--seeds=1', f'--data={folder}', f'--output={tmp_path}']
  assert uncertainty.main(arguments) == 0
  path = tmp_path / 'uncertainty.jsonl'
  lines = uncertainty.read(path)
  assert sorted((line['set'], line['method']) for line in lines) == sorted(
      (name, method) for name in uncertainty_data.SETS
      for method in uncertainty.METHODS)
  for line in lines:
    scores = line['scores'][USUAL]
    assert np.isfinite(scores['NLL']) and 0. <= line['auroc'] <= 1.
    # More is learned than nothing.
    if line['method'] == 'Adam':
      assert scores['NLL'] < np.log({'covertype': 2, 'kos': 5}.get(
          line['set'], 9))
  report = (tmp_path / 'uncertainty.md').read_text()
  assert all(f'## {name}' in report for name in uncertainty_data.SETS)
  # Of what is there nothing is run again.
  path.write_text(''.join(path.read_text().splitlines(True)[:-1]))
  fitted = []
  monkeypatch.setattr(uncertainty, 'FITS', tuple(
      ((lambda task, seed, methods=methods: fitted.append(methods) or {}),
       methods) for _, methods in uncertainty.FITS))
  uncertainty.main(arguments)
  assert fitted == [uncertainty.FITS[-1][1]]
