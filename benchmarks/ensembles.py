"""Ten networks of a table, beside those who sell that: predictions and time.

  python -m benchmarks.ensembles --data FOLDER [--sets airfoil ...]
      [--methods sample bde ...] [--seeds 5] [--passes 2000] [--tiny]
      [--output benchmarks/results]

The benchmark that sklearn-contrib-bde publishes: perceptrons with four hidden
layers of 16 units, which learn a mean and a scale, ten of them, N(0, 1) for
each weight, T = 1; split, standardisation and scores are as there.

  Adam     ten networks, each stopped early by its own last 15% of the rows
  sample   from these, ten chains of `SelfTuning(SGNHT)` by `sgmcmc.sample`,
           with minibatches of 128
  all rows   from these, ten chains of `MicrocanonicalLangevin` on all rows by
           `sgmcmc.sample`, whose step and length are found as bde's are
  fit      `PosteriorSampling(num_chains=10)` in one `fit` of arrays, with all
           else by default
  fit, all rows   the kernel of "all rows" in one `fit`, compiled by XLA; a
           twentieth is Adam's
  BayesianRegressor   that of `tfp_sgmcmc.sklearn` by its defaults
  bde      ten networks by Adam, then full-batch MCLMC with 50,000 steps of
           warm-up and 1,000 of draws, as published (two gradients a step)
  bde, short   the same with 10,000 steps of warm-up
  blackjax   ten networks by Adam, then full-batch MCLMC, as one writes it with
           blackjax: its tuner, told a first step of .005, takes a third of the
           chain's steps; draws as "all rows"
  posteriors   ten networks by Adam, then SGHMC of posteriors with minibatches
           of 256; learning rate and friction from a grid, chosen by rows held
           out

`--passes` is how often each chain goes through the rows; by "fit" it is the
number of epochs. bde, Adam and the estimator have numbers of their own. NLL is
that of test rows, in nats of standardised targets: of the mixture of the draws,
and of the normal with the mixture's mean and variance. Each run is a process of
its own, with its wall time and processor seconds (of all its threads, imports
and compiling included; what it takes to choose settings is told apart), and a
line of OUTPUT/ensembles.jsonl, which is not run again; OUTPUT/ensembles.md has
the means over seeds. The split stays the same.
"""

import argparse
from collections.abc import Sequence
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks import environments
from benchmarks import result_lines
from benchmarks import tables

# Of each method: where it runs, the module that does, and what it is told.
METHODS = {
    **{name: (environments.OURS, 'tfp_sgmcmc_ensemble', dict(method=name))
       for name in (
           'Adam', 'sample', 'all rows', 'fit', 'fit, all rows',
           'BayesianRegressor')},
    'blackjax': ('jax', 'blackjax_ensemble', {}),
    'posteriors': ('torch', 'posteriors_ensemble', {}),
    'bde, short': ('bde', 'bde_regressor', dict(num_warmup_steps=10_000)),
    'bde': ('bde', 'bde_regressor', dict(num_warmup_steps=50_000)),
}
OF_PASSES = (
    'sample', 'all rows', 'fit', 'fit, all rows', 'blackjax', 'posteriors')
SETS = ('airfoil', 'hour', 'concrete')


def run(
    method: str, table: tables.Table, seed: int, arguments: argparse.Namespace,
) -> dict[str, Any]:
  """Predictions of a method, scored, with the time that it took."""
  environment, module, told = METHODS[method]
  interpreter = environments.python(environment)
  with tempfile.TemporaryDirectory() as folder:
    case, predictions = (
        os.path.join(folder, name) for name in ('case.npz', 'predictions.npz'))
    np.savez(
        case, x=np.float32(table.x), y=np.float32(table.y[:, 0]),
        x_test=np.float32(table.x_test), seed=seed, passes=arguments.passes,
        tiny=arguments.tiny, **told)
    before, begin = os.times(), time.monotonic()
    subprocess.run(
        [interpreter, '-m', f'benchmarks.sides.{module}', case, predictions],
        check=True, stdout=sys.stderr,
        cwd=pathlib.Path(__file__).parent.parent)
    wall, after = time.monotonic() - begin, os.times()
    with np.load(predictions) as found:
      scored = scores(found['means'], found['scales'], table.y_test[:, 0])
      settings = {
          name: float(found[name]) for name in found
          if name not in ('means', 'scales')}
  cpu = (after.children_user + after.children_system
         - before.children_user - before.children_system)
  return dict(
      **scored, **settings,
      wall=round(wall - settings.get('choice_wall', 0.), 1),
      cpu=round(cpu - settings.get('choice_cpu', 0.), 1))


def scores(
    means: np.ndarray, scales: np.ndarray, y: np.ndarray) -> dict[str, float]:
  """Of normals `[draw, row]`: NLL of their mixture, and of its two moments."""
  log_probs = -0.5 * np.square((y - means) / scales) - np.log(
      np.sqrt(2. * np.pi) * scales)
  mean = np.mean(means, axis=0)
  variance = np.mean(np.square(scales) + np.square(means), axis=0) - mean**2
  return dict(
      mixture=float(-np.mean(
          np.logaddexp.reduce(log_probs, axis=0) - np.log(len(means)))),
      normal=float(np.mean(
          0.5 * np.log(2. * np.pi * variance)
          + 0.5 * np.square(y - mean) / variance)),
      rmse=float(np.sqrt(np.mean(np.square(y - mean)))))


def report(lines: Sequence[dict[str, Any]]) -> str:
  """The means over seeds, in Markdown."""
  groups = {}
  for line in lines:
    groups.setdefault(
        (line['set'], line['method'], line.get('passes')), []).append(line)
  rows = [['table', 'method', 'seeds', 'NLL, mixture', 'NLL, normal', 'RMSE',
           'processor s', 'wall s']]
  rows.append(['---'] * len(rows[0]))
  for (name, method, passes), group in sorted(
      groups.items(), key=lambda item: (item[0][0], str(item[0]))):
    rows.append([
        name, method if passes is None else f'{method}, {passes:,} passes',
        str(len(group)), *(
            result_lines.cell([line[what] for line in group])
            for what in ('mixture', 'normal', 'rmse')), *(
                _time(group, what) for what in ('cpu', 'wall'))])
  return (
      '# Ten networks of a table\n\nTest rows, mean ± standard error over '
      'seeds; median times, + that of a choice of settings. See '
      '`python -m benchmarks.ensembles --help`.\n\n'
      f'{result_lines.table(rows)}\n')


def _time(lines, what):
  found, choice = (
      np.median([line.get(name, 0.) for line in lines])
      for name in (what, f'choice_{what}'))
  return f'{found:.0f}' + (f' + {choice:.0f}' if choice else '')


def main(argv: Sequence[str] | None = None) -> int:
  parser = result_lines.parser('ensembles', __doc__)
  parser.add_argument('--data', type=pathlib.Path, required=True)
  parser.add_argument('--sets', nargs='+', default=SETS, choices=SETS)
  parser.add_argument(
      '--methods', nargs='+', default=list(METHODS), choices=METHODS)
  parser.add_argument('--seeds', type=int, default=5)
  parser.add_argument('--passes', type=int, default=2000)
  arguments = parser.parse_args(argv)
  path = result_lines.path(arguments, 'ensembles')
  for name in arguments.sets:
    table = tables.SETS[name](arguments.data, 0)
    if arguments.tiny:
      table = tables.Table(*(values[:64] for values in table))
    for seed in range(arguments.seeds):
      for method in arguments.methods:
        key = dict(set=name, method=method, seed=seed)
        if method in OF_PASSES:
          key['passes'] = arguments.passes
        line = result_lines.run_once(path, key, functools.partial(
            run, method, table, seed, arguments))
        if line is not None:
          print(f'{name}, {method}, seed {seed}: NLL {line["mixture"]:.3f} in '
                f'{line["cpu"]:.0f} s', flush=True)
  result_lines.write(path, report)
  return 0


if __name__ == '__main__':
  raise SystemExit(main())
