"""How fast it is, beside what a user would pick instead.

  python -m benchmarks [--rows one_chain fit ...] [--rounds 7]
      [--peers [jax ...]] [--accelerator] [--data FOLDER] [--output FOLDER]
      [--tiny]

Each row of the table is some work, and the sides that do it: this library, and
its peers, each in a process and with the packages of its own. Their draws are
first held to a law; then they take turns, in the opposite order in every other
round, so that a ratio of two turns of one round holds on a machine whose speed
drifts. The table has the median of these ratios, the least and the largest.
What comes before the second turn (imports, tracing, compiling) is told apart.
Rows that are not chosen stay in the table as they were. Without --output the
tables go to benchmarks/results/, and the short one to README.

The peers' environments are made at the first run, and kept (2.2 GB in
~/.cache/tfp_sgmcmc_benchmarks). The exit code is 1 if a row failed.
"""

import argparse
from collections.abc import Collection
from concurrent import futures
import json
import pathlib
import sys
import time

import numpy as np

from benchmarks import environments
from benchmarks import report
from benchmarks import rows
from benchmarks import worker

RESULTS = pathlib.Path(__file__).parent / 'results'


def measure(
    row: rows.Row, rounds: int,
    peers: Collection[str] = tuple(environments.REQUIREMENTS),
    accelerator: bool = False) -> dict:
  """Starts the sides of a row, holds them to the law, and times them.

  Args:
    row: The row.
    rounds: How many turns each side takes.
    peers: The environments beside ours whose sides take part.
    accelerator: Whether a device that is no CPU does the work. Then sides that
      are about the threads of a CPU are left out, and sides that take turns
      start eight at a time.

  Returns:
    found: `sides` and `ratios`, as the results keep them.
  """
  sides = {
      name: side for name, side in row.sides.items()
      if side.environment in (environments.OURS, *peers)
      and not (accelerator and side.of_cpu)}
  turns = {name: [] for name in sides}
  started = {}
  if row.fresh:
    for number in range(rounds):
      for name in _order(sides, number):
        one = _start(sides[name])
        one.close()
        started[name] = one.started
        turns[name].append(dict(
            wall=one.started['first_wall'], cpu=one.started['first_cpu'],
            peak=one.started['peak']))
  elif row.one_by_one:
    for name, side in sides.items():
      one = _start(side)
      started[name] = one.started
      turns[name] = [one.turn(1000 + number) for number in range(rounds)]
      one.close()
  else:
    # A busy neighbour needs no program of its own.
    keys = {name: json.dumps(side._replace(title='', busy=False))
            for name, side in sides.items()}
    with futures.ThreadPoolExecutor(8 if accelerator else 1) as pool:
      of_program = {
          key: pool.submit(_start, side)
          for key, side in {keys[name]: sides[name] for name in sides}.items()}
    try:
      workers = {name: of_program[keys[name]].result() for name in sides}
      started = {name: one.started for name, one in workers.items()}
      _hold_to_law(row, sides, workers)
      for number in range(rounds):
        for name in _order(sides, number):
          turns[name].append(
              workers[name].turn(1000 + number, sides[name].busy))
    finally:
      for one in of_program.values():
        if one.exception() is None:
          one.result().close()
  return dict(
      title=row.title, unit=row.unit,
      sides={
          name: dict(
              title=side.title, work=side.work, threads=side.threads,
              busy=side.busy, whole_loops=side.whole_loops,
              environment=side.environment,
              started=started[name], turns=turns[name])
          for name, side in sides.items()},
      ratios=[
          _compare(ratio, sides, turns) for ratio in row.ratios
          if ratio.over in sides and ratio.under in sides])


def _order(sides, number):
  return list(sides) if number % 2 == 0 else list(sides)[::-1]


def _start(side):
  return worker.Worker(
      environments.python(side.environment), f'benchmarks.sides.{side.module}',
      side.case, side.threads, side.whole_loops)


def _hold_to_law(row, sides, workers):
  """Compares the draws of all sides, the same case and program once."""
  seen = []
  for name, side in sides.items():
    key = side.module, side.environment, side.case, side.whole_loops
    if row.law is None or not side.draws or key in seen:
      continue
    seen.append(key)
    complaint = row.law(side.case).complaint(
        workers[name].law(row.law_turns, row.skipped_turns))
    if complaint is not None:
      raise ValueError(f'{name} has another law: {complaint}.')


def _compare(ratio, sides, turns):
  """The ratios of the turns of each round, by its quantity and by CPU time."""
  def values(name, quantity):
    cost = np.array([turn[quantity] for turn in turns[name]])
    if quantity == 'peak':
      return cost
    with np.errstate(divide='ignore'):  # Of who gets nothing done.
      return cost / [turn.get('work', sides[name].work) for turn in turns[name]]

  def of(quantity):
    over, under = (
        values(name, quantity) for name in (ratio.over, ratio.under))
    found = under / over if ratio.quantity == 'speed' else over / under
    return dict(
        median=float(np.median(found)), least=float(found.min()),
        largest=float(found.max()))

  by = dict(speed='wall').get(ratio.quantity, ratio.quantity)
  found = dict(over=ratio.over, under=ratio.under, quantity=ratio.quantity,
               target=ratio.target, **of(by))
  if ratio.quantity != 'peak':
    found['by_wall'], found['by_cpu'] = of('wall'), of('cpu')
  found['reached'] = ratio.reached(found['median'])
  return found


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; the exit code."""
  parser = argparse.ArgumentParser(
      prog='python -m benchmarks', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument(
      '--rows', nargs='+', choices=rows.ROWS, default=list(rows.ROWS),
      metavar='ROW', help='which, of: ' + ', '.join(rows.ROWS))
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument(
      '--peers', nargs='*', choices=environments.REQUIREMENTS, metavar='PEER',
      default=list(environments.REQUIREMENTS),
      help='whose sides run beside ours, of: '
      + ', '.join(environments.REQUIREMENTS) + '; without a name none')
  parser.add_argument(
      '--accelerator', action='store_true',
      help='a GPU or TPU does the work: no sides about the threads of a CPU')
  parser.add_argument(
      '--data', type=pathlib.Path,
      help='folder with covertype/, for the row of effective draws')
  parser.add_argument(
      '--output', type=pathlib.Path, default=RESULTS,
      help='where speed.json and speed.md go; default: %(default)s')
  parser.add_argument(
      '--tiny', action='store_true', help='to see that it runs; no figures')
  arguments = parser.parse_args(arguments)
  results = report.read(arguments.output)
  failed = False
  for name in arguments.rows:
    print(name, flush=True)
    began, circumstances = time.time(), report.circumstances()
    try:
      row = rows.ROWS[name](arguments.tiny, arguments.data)
      rounds = min(arguments.rounds, row.rounds or arguments.rounds)
      found = measure(
          row, rounds, arguments.peers, arguments.accelerator)
    except (RuntimeError, ValueError) as error:
      failed = True
      found = dict(title=name, failed=str(error))
      print(f'  failed: {error}', flush=True)
    else:
      for ratio in found['ratios']:
        print('  ' + report.line(ratio), flush=True)
      found['versions'] = {
          environment: environments.versions(environment)
          for environment in sorted({
              side['environment'] for side in found['sides'].values()})}
    results[name] = dict(circumstances, **found, seconds=time.time() - began)
    results = {
        name: results[name] for name in rows.ROWS if name in results}
    report.write(results, arguments.output)
  if arguments.output == RESULTS:
    report.update_readme(results, RESULTS.parent.parent / 'README.md')
  return int(failed)


if __name__ == '__main__':
  sys.exit(main())
