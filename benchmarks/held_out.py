"""Intervals of posteriors, before and after calibration; and fewer draws.

  python -m benchmarks.held_out --data FOLDER [--splits 3] [--output FOLDER]

`BayesianRegressor()` on three UCI tables, with three fifths of the rows to
train, a fifth held out for the calibration, and a fifth to test. What has been
measured is kept, and a second call goes on. The lines kept are of an earlier
default, one chain with minibatches alone.
"""

import pathlib

import numpy as np

from benchmarks import result_lines
from experiments.datasets import uci_regression
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.sklearn import BayesianRegressor

TABLES = ('concrete', 'energy', 'yacht')
NUM_DRAWS = 5
COLUMNS = (
    'coverage of 90% intervals', 'the same, calibrated', 'their length',
    'the same, calibrated', 'CRPS', 'error of 5 draws, chosen', 'spaced')


def scores(x: np.ndarray, y: np.ndarray, seed: int) -> list[float]:
  """The columns of the table, of one split of its rows."""
  order = np.random.default_rng(seed).permutation(len(x))
  train, held_out, test = np.split(
      order, [int(0.6 * len(x)), int(0.8 * len(x))])
  regressor = BayesianRegressor(random_state=seed).fit(x[train], y[train])
  posterior = regressor.posterior_
  inputs = (x - regressor.x_mean_) / regressor.x_scale_
  targets = (y[:, np.newaxis] - regressor.y_mean_) / regressor.y_scale_
  lower, upper = posterior.interval(inputs[test], 0.9)
  calibrated = posterior.calibrated(
      inputs[held_out], targets[held_out]).evaluate(
          inputs[test], targets[test], 0.9)
  mean = posterior.predict(inputs[test])
  errors = [
      np.sqrt(np.mean(np.square(some.predict(inputs[test]) - mean)))
      for some in (posterior.thin(NUM_DRAWS, inputs[held_out]),
                   posterior.thin(NUM_DRAWS))]
  return [float(score) for score in (
      sgmcmc.diagnostics.coverage([lower, upper], targets[test]),
      calibrated['coverage'], np.mean(upper - lower), calibrated['width'],
      sgmcmc.diagnostics.crps(
          posterior.predictive(inputs[test]), targets[test]),
      *errors)]


def main() -> None:
  parser = result_lines.parser('held_out', __doc__, has_tiny=False)
  parser.add_argument('--data', type=pathlib.Path, required=True)
  parser.add_argument('--splits', type=int, default=3)
  options = parser.parse_args()
  path = result_lines.path(options, 'held_out')
  rows = [['table', *COLUMNS], ['---'] * (1 + len(COLUMNS))]
  for name in TABLES:
    parts = uci_regression.load_uci_regression(name, options.data)
    x = np.concatenate([part.features for part in parts])
    y = np.concatenate([part.labels for part in parts])
    for seed in range(options.splits):
      result_lines.run_once(path, dict(table=name, split=seed), (
          lambda x=x, y=y, seed=seed: dict(scores=scores(x, y, seed))))
    found = [line['scores'] for line in result_lines.read(path)
             if line['table'] == name]
    rows.append([name, *map(result_lines.cell, zip(*found))])
  text = f'{result_lines.table(rows)}\n'
  (options.output / 'held_out.md').write_text(
      'In units of the targets\' standard deviation, mean ± standard error '
      f'over {options.splits} splits (`python -m benchmarks.held_out`; '
      f'"error": of the mean, beside that of all 30 draws):\n\n{text}')


if __name__ == '__main__':
  main()
