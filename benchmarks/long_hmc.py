"""What the posterior itself predicts where `PosteriorSampling()` is measured.

  python -m benchmarks.long_hmc cases FOLDER --data DATA [--sets mnist ...]
  python benchmarks/sides/jax_hmc.py FOLDER/SET.npz FOLDER/SET.result.npz
  python -m benchmarks.long_hmc score FOLDER [--output benchmarks/results]

SET is digits, covertype, kos or mnist, a network of `benchmarks.uncertainty`;
or a fit of `benchmarks.tables` at T = 1, as TABLE_SPLIT_HIDDEN_LIKELIHOOD, say
yacht_4_50_gaussian. Without --sets all networks are written, and the fits in
which Adam was better.

`cases` writes files that need neither TensorFlow nor the data: rows, layers,
prior and likelihood. The side needs JAX and NumPy alone, and takes a GPU where
there is one; `benchmarks.environments.python('jax')` makes such an environment
and returns its interpreter. Run it once for each case. It runs long HMC on all
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

import keras
import numpy as np

from benchmarks import result_lines
from benchmarks import tables
from benchmarks import uncertainty_data
from tfp_sgmcmc.keras.model import priors

OTHERS = 'others'  # Rows of no class that was trained on.
SEED = 1  # Of the rows of `benchmarks.uncertainty`.
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


def about(
    layers: Sequence[keras.Layer], shape: Sequence[int], likelihood: str,
) -> dict[str, Any]:
  """What the side has to know of a network.

  Args:
    layers: Its layers, not built yet; hidden ones are rectified.
    shape: Of a row.
    likelihood: 'classes', or as `benchmarks.tables` names it.

  Returns:
    about: `layers` that compute, by kind and sizes; `shape` of what they take;
      the `deviations` of the default prior of each weight; and `likelihood`.
  """
  model = keras.Sequential([keras.Input(shape), *layers])
  prior = priors.bounded_normal(model.trainable_variables)
  found = []
  for layer in model.layers:
    if isinstance(layer, keras.layers.Reshape):
      shape = layer.target_shape
    elif isinstance(layer, keras.layers.Dense):
      found.append(['dense', layer.units])
    elif isinstance(layer, keras.layers.Conv2D):
      found.append(['conv', layer.filters, layer.kernel_size[0]])
    elif isinstance(layer, keras.layers.MaxPooling2D):
      found.append(['pool', layer.pool_size[0]])
    elif isinstance(layer, keras.layers.Flatten):
      found.append(['flatten'])
  return dict(
      layers=found, shape=list(shape), likelihood=likelihood, deviations=[
          float(prior(w).stddev()) for w in model.trainable_variables])


def of_network(name: str, folder: pathlib.Path) -> dict[str, Any]:
  """A case of `benchmarks.uncertainty`.

  Args:
    name: One of its sets.
    folder: That of the data.

  Returns:
    case: `about`, `rows` and `tests`, as `write` takes it.
  """
  task = uncertainty_data.SETS[name](folder, SEED)
  tests = {**task.tests, OTHERS: (
      task.others, np.zeros([len(task.others)], np.int32))}
  found = about(task.make_layers(0.), task.train[0].shape[1:], 'classes')

  def rows(x, y):
    return x.reshape([-1, *found['shape']]), y

  return dict(
      about=found, rows=rows(*task.train),
      tests={kind: rows(*test) for kind, test in tests.items()})


def of_table(line: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
  """A case of `benchmarks.tables`.

  Args:
    line: Of its results.
    folder: That of the data.

  Returns:
    case: `about`, `rows` and `tests`, as `write` takes it.
  """
  table = tables.SETS[line['set']](folder, line['split'])
  likelihood, num_outputs = line['likelihood'], table.num_classes
  y, y_test = table.y, table.y_test
  if num_outputs:
    likelihood = 'classes'
  else:
    num_outputs = tables.LIKELIHOODS[likelihood][1]
    y, y_test = y[:, 0], y_test[:, 0]
  return dict(
      about=about(
          [keras.layers.Dense(units) for units in (
              *line['hidden'], num_outputs)], table.x.shape[1:], likelihood),
      rows=(table.x, y),
      tests={uncertainty_data.USUAL: (table.x_test, y_test)})


def fits(output: pathlib.Path) -> dict[str, dict[str, Any]]:
  """The fits of tables by default: lines by name.

  Args:
    output: The folder of the results.

  Returns:
    lines: Of those with several sizes of batches that nearest to 32, and of
      these that of the most epochs.
  """
  found = {}
  for line in sorted(
      result_lines.read(output / 'tables.jsonl'), key=lambda line: (
          line['steps_per_batch'] == 'auto', -abs(line['batch_size'] - 32),
          line['epochs'])):
    if line['temperature'] == 1. and line['num_chains'] == 'auto':
      hidden = '-'.join(map(str, line['hidden']))
      found['_'.join([line['set'], str(line['split']), hidden,
                      line['likelihood']])] = line
  return found


def write(case: dict[str, Any], path: pathlib.Path) -> None:
  """Writes a case for the side.

  Args:
    case: `about`, as the function of this name makes it; `rows`: x and y;
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
  networks, of_tables = uncertainty_data.SETS, fits(arguments.output)
  worse = [name for name, line in of_tables.items()
           if line['posterior'] > line['adam']]
  for name in arguments.sets or [*networks, *worse]:
    if name not in networks and name not in of_tables:
      raise SystemExit(
          f'--sets has {name}. There are {", ".join(networks)}, and the fits '
          f'{", ".join(of_tables)}.')
    path = arguments.folder / f'{name}.npz'
    if not path.exists():
      write(of_network(name, arguments.data) if name in networks else of_table(
          of_tables[name], arguments.data), path)


def score(arguments: argparse.Namespace) -> None:
  """Keeps what the side found, and writes the page."""
  path = arguments.output / 'long_hmc.jsonl'
  lines = {line['case']: line for line in result_lines.read(path)}
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


def others(output: pathlib.Path) -> dict[str, dict[str, dict[str, float]]]:
  """The NLL of Adam and of the default.

  Args:
    output: The folder of the results of both benchmarks.

  Returns:
    nll: By case, by method, by kind of test rows.
  """
  found = {
      name: {'Adam': {uncertainty_data.USUAL: line['adam']},
             'T = 1': {uncertainty_data.USUAL: line['posterior']}}
      for name, line in fits(output).items()}
  for line in result_lines.read(output / 'uncertainty.jsonl'):
    if line['seed'] == SEED:
      found.setdefault(line['set'], {})[line['method']] = {
          kind: scores['NLL'] for kind, scores in line['scores'].items()}
  return found


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
  usual, by_case = uncertainty_data.USUAL, others(output)
  for name, line in lines.items():
    there = by_case[name]
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
  return _PAGE.format(result_lines.table(rows), result_lines.table(shifts))


def main(argv: Sequence[str] | None = None) -> int:
  parser = result_lines.parser('long_hmc', __doc__, has_tiny=False)
  parser.add_argument('task', choices=('cases', 'score'))
  parser.add_argument('folder', type=pathlib.Path)
  parser.add_argument('--data', type=pathlib.Path, help='needed for cases')
  parser.add_argument('--sets', nargs='*', default=[])
  arguments = parser.parse_args(argv)
  if arguments.task == 'cases' and arguments.data is None:
    parser.error('cases needs --data: the folder of the data sets.')
  (cases if arguments.task == 'cases' else score)(arguments)
  return 0


if __name__ == '__main__':
  raise SystemExit(main())
