"""What the posterior itself predicts where `PosteriorSampling()` is measured.

  python -m benchmarks.long_hmc cases FOLDER --data DATA [--sets mnist ...]
  python benchmarks/sides/jax_hmc.py FOLDER/SET.npz FOLDER/SET.result.npz
  python -m benchmarks.long_hmc score FOLDER [--output benchmarks/results]

SET is digits, covertype, kos or mnist, a network of `benchmarks.uncertainty`;
or a fit of `benchmarks.tables` at T = 1 in which Adam was better, as
TABLE_SPLIT_HIDDEN_LIKELIHOOD, say yacht_4_50_gaussian. Without --sets all are
written.

`cases` writes files that need neither TensorFlow nor the data: rows, layers and
likelihood. The side needs JAX and NumPy alone, and takes a GPU where there is
one; `benchmarks.environments.python('jax')` makes such an environment and
returns its interpreter. Run it once for each case. It runs long HMC on all
rows, with the prior that `PosteriorSampling()` takes by default. `score` writes
what was found to OUTPUT/long_hmc.jsonl; and OUTPUT/long_hmc.md, beside what
Adam and the default at T = 1 have on the same rows.

Where HMC has arrived and its NLL is above Adam's, no better sampler can beat
Adam at T = 1.
"""

import argparse
from collections.abc import Sequence
import json
import pathlib
from typing import Any

import numpy as np

from benchmarks import tables
from benchmarks import uncertainty
from benchmarks import uncertainty_data

OTHERS = 'others'  # Rows of no class that was trained on.
SEED = 1  # Of the rows of `benchmarks.uncertainty`.
_LAYERS = {
    'digits': [['dense', 100], ['dense', 9]],
    'covertype': [['dense', 128], ['dense', 128], ['dense', 2]],
    'kos': [['dense', 512], ['dense', 5]],
    'mnist': [['conv', 32, 3], ['pool', 2], ['conv', 64, 3], ['pool', 2],
              ['flatten'], ['dense', 9]]}

_PAGE = """# The posterior itself, by long HMC

Negative log likelihood of test rows at T = 1, with the prior of
`PosteriorSampling()`; see `python -m benchmarks.long_hmc --help`. A network is
a set of `benchmarks.uncertainty` (seed 1), or table, split, hidden units and
likelihood of `benchmarks.tables`. "HMC" pools the draws of all chains. "Its
chains" are single ones, each over its own draws. "Its halves" pool all chains,
over the first and the second half of their draws. Where chains or halves differ
much, or draws are few, HMC has not reached the posterior.

{}

## Rows that are not like the training rows

{}
"""


def of_network(name: str, folder: pathlib.Path) -> dict[str, Any]:
  """A case of `benchmarks.uncertainty`.

  Args:
    name: One of its sets.
    folder: That of the data.

  Returns:
    case: `about`, `rows` and `tests`, as `write` takes it.
  """
  task = uncertainty_data.SETS[name](folder, SEED)
  x, y = task.train
  shape = [28, 28, 1] if name == 'mnist' else [x.shape[1]]
  tests = {**task.tests, OTHERS: (
      task.others, np.zeros([len(task.others)], np.int32))}
  return dict(
      about=dict(layers=_LAYERS[name], likelihood='classes', shape=shape),
      rows=(x.reshape([-1, *shape]), y),
      tests={kind: (x.reshape([-1, *shape]), y)
             for kind, (x, y) in tests.items()})


def of_table(key: Sequence[Any], folder: pathlib.Path) -> dict[str, Any]:
  """A case of `benchmarks.tables`.

  Args:
    key: Name of the table, split, hidden layers, likelihood.
    folder: That of the data.

  Returns:
    case: `about`, `rows` and `tests`, as `write` takes it.
  """
  name, split, hidden, likelihood = key
  table = tables.SETS[name](folder, split)
  if table.num_classes:
    num_outputs, likelihood = table.num_classes, 'classes'
  else:
    num_outputs = tables.LIKELIHOODS[likelihood][1]
  y, y_test = (
      y if table.num_classes else y[:, 0] for y in (table.y, table.y_test))
  return dict(
      about=dict(
          layers=[['dense', units] for units in (*hidden, num_outputs)],
          likelihood=likelihood, shape=[table.x.shape[1]]),
      rows=(table.x, y),
      tests={uncertainty_data.USUAL: (table.x_test, y_test)})


def fits(output: pathlib.Path) -> dict[str, tuple[Any, ...]]:
  """The fits of tables at T = 1 in which Adam was better, by name."""
  found = {}
  for line in uncertainty.read(output / 'tables.jsonl'):
    if line['temperature'] == 1. and line['posterior'] > line['adam']:
      key = (line['set'], line['split'], tuple(line['hidden']),
             line['likelihood'])
      hidden = '-'.join(map(str, line['hidden']))
      found[f'{line["set"]}_{line["split"]}_{hidden}_{key[-1]}'] = key
  return found


def write(case: dict[str, Any], path: pathlib.Path) -> None:
  """Writes a case for the side.

  Args:
    case: `about`: layers, likelihood, and the shape of a row; `rows`: x and y;
      `tests`: x and y by kind.
    path: Of the file.
  """
  values = {}
  for number, (x, y) in {
      '': case['rows'],
      **{f'_{k}': rows for k, rows in enumerate(case['tests'].values())},
  }.items():
    values[f'x{number}'] = np.float32(x)
    values[f'y{number}'] = (
        np.int32 if case['about']['likelihood'] == 'classes' else np.float32)(y)
  np.savez_compressed(
      path, about=json.dumps({**case['about'], 'tests': list(case['tests'])}),
      **values)


def cases(arguments: argparse.Namespace) -> None:
  """Writes the cases that are not there yet."""
  arguments.folder.mkdir(parents=True, exist_ok=True)
  for name in arguments.sets or [*_LAYERS, *fits(arguments.output)]:
    if name not in _LAYERS and name not in fits(arguments.output):
      raise SystemExit(
          f'--sets has {name}. There are {", ".join(_LAYERS)}, and the fits '
          f'{", ".join(fits(arguments.output))}.')
    path = arguments.folder / f'{name}.npz'
    if not path.exists():
      write(of_network(name, arguments.data) if name in _LAYERS else of_table(
          fits(arguments.output)[name], arguments.data), path)


def score(arguments: argparse.Namespace) -> None:
  """Keeps what the side found, and writes the page."""
  path = arguments.output / 'long_hmc.jsonl'
  lines = {line['case']: line for line in uncertainty.read(path)}
  for result in sorted(arguments.folder.glob('*.result.npz')):
    with np.load(result) as file:
      about = json.loads(str(file['about']))
    # The trace of all chains is long, and is for whoever runs it.
    del about['log_density']
    name = result.name.removesuffix('.result.npz')
    lines[name] = dict(case=name, **about)
  lines = dict(sorted(lines.items()))
  path.write_text(''.join(json.dumps(line) + '\n' for line in lines.values()))
  (arguments.output / 'long_hmc.md').write_text(
      report(lines, arguments.output))


def others(name: str, output: pathlib.Path) -> dict[str, dict[str, float]]:
  """The NLL of Adam and of the default on a case.

  Args:
    name: Of the case.
    output: The folder of the results of both benchmarks.

  Returns:
    nll: By method, by kind of test rows.
  """
  if name in _LAYERS:
    return {
        line['method']: {
            kind: scores['NLL'] for kind, scores in line['scores'].items()}
        for line in uncertainty.read(output / 'uncertainty.jsonl')
        if (line['set'], line['seed']) == (name, SEED)}
  table, split, hidden, likelihood = fits(output)[name]
  # Batches of 32 where there are fits of other sizes too.
  line = min(
      (line for line in uncertainty.read(output / 'tables.jsonl')
       if (line['set'], line['split'], tuple(line['hidden']),
           line['likelihood'], line['temperature'])
       == (table, split, hidden, likelihood, 1.)
       and line['posterior'] > line['adam']),
      key=lambda line: abs(line['batch_size'] - 32))
  return {'Adam': {uncertainty_data.USUAL: line['adam']},
          'T = 1': {uncertainty_data.USUAL: line['posterior']}}


def report(lines: dict[str, dict[str, Any]], output: pathlib.Path) -> str:
  """What was found, beside Adam and the default.

  Args:
    lines: By case, what `score` keeps.
    output: The folder of the results of both benchmarks.

  Returns:
    page: In Markdown.
  """
  rows = [['network', 'Adam', 'default, T = 1', 'HMC', 'its chains',
           'its halves', 'draws', 'steps of a trajectory', 'least acceptance',
           'gradients of a chain', 'where', 's']]
  rows.append(['---'] * len(rows[0]))
  shifts = [['network', 'test rows', 'Adam', 'default, T = 1', 'HMC']]
  shifts.append(['---'] * len(shifts[0]))
  for name, line in lines.items():
    usual, there = uncertainty_data.USUAL, others(name, output)
    chains, halves = (
        line[f'nll_of_{part}'][usual] for part in ('chains', 'halves'))
    rows.append([
        name.replace('_', ' '), f'{there["Adam"][usual]:.3f}',
        f'{there["T = 1"][usual]:.3f}', f'{line["nll"][usual]:.3f}',
        f'{min(chains):.3f} to {max(chains):.3f}',
        ', '.join(f'{half:.3f}' for half in halves),
        f'{len(chains)} x {sum(line["draws"])}', str(line['leapfrog_steps']),
        f'{min(line["acceptance"]):.2f}', f'{line["gradients"]:,}',
        line['device'].removeprefix('NVIDIA ').upper().split(' ')[0],
        f'{line["seconds"]:.0f}'])
    shifts += [
        [name, kind, *(f'{value:.3f}' for value in (
            there['Adam'][kind], there['T = 1'][kind], nll))]
        for kind, nll in line['nll'].items() if kind not in (usual, OTHERS)]
  return _PAGE.format(uncertainty.table(rows), uncertainty.table(shifts))


def main(argv: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
      prog='python -m benchmarks.long_hmc', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('task', choices=('cases', 'score'))
  parser.add_argument('folder', type=pathlib.Path)
  parser.add_argument('--data', type=pathlib.Path, help='needed for cases')
  parser.add_argument('--sets', nargs='*', default=[])
  parser.add_argument(
      '--output', type=pathlib.Path,
      default=pathlib.Path(__file__).parent / 'results')
  arguments = parser.parse_args(argv)
  if arguments.task == 'cases' and arguments.data is None:
    parser.error('cases needs --data: the folder of the data sets.')
  (cases if arguments.task == 'cases' else score)(arguments)
  return 0


if __name__ == '__main__':
  raise SystemExit(main())
