"""What the experiments share: arguments, claims, tables, and what is written.

Each script is a module of this package with a docstring (its first line says
what it regenerates, and from where), `run(arguments) -> Result`, `main(argv)`.
`main` here makes it a command: it prints the rows, measured beside published,
writes NAME.json and NAME.png (NAME.full.json, ... with --full), and ends with a
verdict for each claim: first those that quote a paper, at the paper's settings,
then ours.
"""

import argparse
from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import json
import math
import os
import pathlib
import platform
import subprocess
from typing import Any

from matplotlib import figure
import numpy as np
import tensorflow as tf

from experiments import parts
import tfp_sgmcmc as sgmcmc

__all__ = [
    'Claim', 'Quotation', 'Result', 'main', 'read', 'sizes', 'verdict']

RESULTS = pathlib.Path(__file__).parent / 'results'
DPI = 150


@dataclasses.dataclass(frozen=True)
class Quotation:
  """What a paper says.

  Attributes:
    paper: Its authors and year.
    place: The figure, the table or the section.
    words: What it says there, word by word.
  """
  paper: str
  place: str
  words: str

  def __str__(self) -> str:
    return f'{self.paper}, {self.place}: "{self.words}"'


@dataclasses.dataclass(frozen=True)
class Claim:
  """A claim, and whether it held.

  Attributes:
    text: A sentence that can be true or false; of a quoted claim, what it was
      judged by.
    holds: Whether it held here; None where that cannot be told.
    detail: The figures it was judged by; and, where it does not hold, what was
      tried.
    quotation: The words of the paper that it stands for. Claims without are
      ours, not the paper's.
  """
  text: str
  holds: bool | None
  detail: str
  quotation: Quotation | None = None


@dataclasses.dataclass
class Result:
  """What an experiment found.

  Attributes:
    columns: Names of the table's columns; those that begin with "published"
      stand beside what was measured.
    rows: The table: lists of text, numbers, or None.
    claims: Those of the paper and ours, in any order.
    picture: `matplotlib.figure.Figure`.
    settings: What was run, by name, for the JSON file.
    notes: Sentences for the summary, or an empty string.
  """
  columns: Sequence[str]
  rows: Sequence[Sequence[Any]]
  claims: Sequence[Claim]
  picture: figure.Figure
  settings: dict[str, Any]
  notes: str = ''


def sizes(arguments: argparse.Namespace, tiny: Any, default: Any, full: Any):
  """The setting for the size that was asked for."""
  return {'tiny': tiny, 'default': default, 'full': full}[arguments.size]


def main(
    name: str,
    run: Callable[[argparse.Namespace], Result],
    description: str,
    argv: Sequence[str] | None = None,
) -> dict[str, Any]:
  """Runs an experiment as a command.

  Args:
    name: The script's name.
    run: Function of the arguments that does the work.
    description: The script's docstring.
    argv: The command line's arguments; by default those of this process.

  Returns:
    record: What was written to NAME.json.
  """
  arguments = parse(name, description, argv)
  print(f'{description.strip()}\n')
  versions = {
      'tensorflow': tf.__version__, 'tfp_sgmcmc': '0.1.0', 'commit': commit()}
  begin = parts.clock()
  result = run(arguments)
  seconds, cpu_seconds = (
      b - a + before for a, b, before in zip(
          begin, parts.clock(), arguments.used_before))
  record = {
      'name': name,
      'title': description.strip().splitlines()[0],
      'size': arguments.size,
      'seed': arguments.seed,
      'seconds': round(seconds, 1),
      'cpu_seconds': round(cpu_seconds, 1),
      'settings': result.settings,
      'columns': list(result.columns),
      'rows': [list(row) for row in result.rows],
      'claims': sorted(
          (dataclasses.asdict(claim) for claim in result.claims),
          key=lambda claim: claim['quotation'] is None),
      'notes': result.notes,
      'machine': f'{os.cpu_count()} cores, {platform.machine()}',
      'versions': versions,
  }
  record = _plain(record)
  arguments.output.mkdir(parents=True, exist_ok=True)
  path = arguments.output / f'{file_name(name, arguments.size)}.json'
  path.write_text(json.dumps(record, indent=1) + '\n')
  result.picture.savefig(path.with_suffix('.png'), dpi=DPI)
  parts.forget(arguments)
  print(text_table(record['columns'], record['rows']))
  print(f'\n{path} and {path.stem}.png written, {seconds:.0f} s\n')
  for claim in record['claims']:
    quotation = claim['quotation']
    source = f'{Quotation(**quotation)}; here: ' if quotation else 'ours: '
    print(f'{verdict(claim)}: {source}{claim["text"]} ({claim["detail"]})')
  return record


def parse(
    name: str, description: str, argv: Sequence[str] | None,
) -> argparse.Namespace:
  """Reads the command line that all experiments have."""
  parser = argparse.ArgumentParser(
      prog=f'python -m experiments {name}', description=description,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  size = parser.add_mutually_exclusive_group()
  size.add_argument(
      '--full', dest='size', action='store_const', const='full',
      default='default', help="the paper's settings: hours, for some")
  size.add_argument(
      '--tiny', dest='size', action='store_const', const='tiny',
      help='seconds: shows that the script runs, and nothing else')
  parser.add_argument(
      '--data', type=pathlib.Path,
      help='folder of the data sets; without it they are fetched')
  parser.add_argument(
      '--output', type=pathlib.Path, default=RESULTS,
      help='folder of the JSON file and the picture (default: %(default)s)')
  parser.add_argument('--seed', type=int, default=1, help='default: 1')
  parser.add_argument('--quiet', action='store_true', help='no progress bars')
  arguments = parser.parse_args(argv)
  arguments.name, arguments.used_before = name, [0., 0.]
  arguments.part = None  # What `parts.tell` goes by.
  return arguments


def commit() -> str | None:
  """The code's commit, with + for changes since; None outside a repository.

  Of code: the records, which a run of several experiments writes, are none.
  """
  def git(*words):
    return subprocess.run(
        ['git', *words], cwd=pathlib.Path(__file__).parent,
        capture_output=True, text=True, check=False).stdout.strip()

  found = git('rev-parse', '--short=7', 'HEAD')
  changes = git(
      'status', '--porcelain', '--untracked-files=no', '--', ':/*.py')
  return found + '+' * bool(changes) or None


def file_name(name: str, size: str) -> str:
  """What the files of a record are called, without their ending."""
  return f'{name}.full' if size == 'full' else name


def read(directory: pathlib.Path, name: str) -> dict[str, Any] | None:
  """The record of an experiment: that of --full if there is one; or None."""
  for size in ('full', 'default'):
    path = directory / f'{file_name(name, size)}.json'
    if path.exists():
      return json.loads(path.read_text())
  return None


def verdict(claim: dict[str, Any]) -> str:
  """Whether a claim holds, in words."""
  return {True: 'HOLDS', False: 'DOES NOT HOLD', None: 'NO VERDICT'}[
      claim['holds']]


def text_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
  """A table for the terminal."""
  cells = [list(columns), *([_text(cell) for cell in row] for row in rows)]
  widths = [max(len(row[k]) for row in cells) for k in range(len(columns))]
  return '\n'.join(
      '  '.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
      for row in cells)


def markdown_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
  """A table for a Markdown page."""
  head, *body = (  # A bar would end the cell.
      [_text(cell).replace('|', '\\|') for cell in row]
      for row in (columns, *rows))
  lines = [head, ['---'] * len(columns), *body]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def _text(cell):
  if cell is None:
    return ''
  return f'{cell:.4g}' if isinstance(cell, float) else str(cell)


def _plain(value):
  """NumPy's numbers and arrays as JSON has them; NaN and infinity as text."""
  if isinstance(value, dict):
    return {str(key): _plain(item) for key, item in value.items()}
  if isinstance(value, (list, tuple)):
    return [_plain(item) for item in value]
  if isinstance(value, (np.ndarray, np.generic, tf.Tensor)):
    return _plain(np.asarray(value).tolist())
  if isinstance(value, float) and not math.isfinite(value):
    return str(value)
  return value


def sample_chain(
    kernel: Any, state: tf.Tensor, num_results: int, num_steps: Any,
    seed: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, Any]:
  """Each `num_steps`-th state of a chain, and the gradients used till then.

  As `tfp.mcmc.sample_chain`, for use inside `tf.function`: there is one copy of
  the step to compile, and the number of steps may be a tensor.

  Args:
    kernel: `tfp.mcmc.TransitionKernel` of this library.
    state: Tensor, `chains + event`.
    num_results: Python `int`.
    num_steps: The number of steps from one state to the next.
    seed: Stateless seed.

  Returns:
    states: `[num_results] + chains + event`.
    num_gradients: `float64[num_results]`, the mean over the chains.
    acceptance: Of EWSG's index chain, the mean over the last axis of chains;
      None for other estimators.
  """
  results = kernel.bootstrap_results(state, seed=sgmcmc.random.fold_in(seed, 0))
  count = results.gradient_estimator_results.num_gradients
  arrays = [
      tf.TensorArray(x.dtype, num_results, element_shape=x.shape)
      for x in (state, count)]

  def one_step(step, state, results, arrays):
    state, results = kernel.one_step(
        state, results, seed=sgmcmc.random.fold_in(seed, step + 1))
    kept = state, results.gradient_estimator_results.num_gradients
    # A place is written `num_steps` times, and keeps what was written last.
    return step + 1, state, results, [
        array.write(step // num_steps, x) for array, x in zip(arrays, kept)]

  *_, results, arrays = tf.while_loop(
      lambda step, *_: step < num_results * num_steps, one_step,
      [tf.zeros([], tf.int32), state, results, arrays])
  states, counts = (array.stack() for array in arrays)
  acceptance = getattr(
      results.gradient_estimator_results, 'acceptance', None)
  return states, tf.reduce_mean(
      tf.reshape(tf.cast(counts, tf.float64), [num_results, -1]), axis=1
  ), None if acceptance is None else tf.reduce_mean(acceptance, axis=-1)


def with_acceptance(label: Any, acceptance: float | None) -> str:
  """A curve's label with what EWSG's index chain accepted, if there is one."""
  return str(label) + (
      '' if acceptance is None else f' (acc. {acceptance:.2f})')


def num_gradients(kernel_results: Any) -> int:
  """The most gradients of single examples that any chain used."""
  return int(np.max(kernel_results.gradient_estimator_results.num_gradients))


def bootstrap_error(
    statistic: Callable[[np.ndarray], Any],
    num_chains: int,
    random: np.random.Generator,
    number: int = 200,
) -> Any:
  """The standard error of a statistic of many chains, by resampling the chains.

  Args:
    statistic: Callable of the indices of chains, `[num_chains]`, of which some
      occur more than once; returns a number or an array.
    num_chains: How many chains there are.
    random: Where the indices come from.
    number: How often the chains are resampled.

  Returns:
    error: A number, or an array of the statistic's shape.
  """
  return np.std([
      statistic(random.integers(num_chains, size=num_chains))
      for _ in range(number)], axis=0)


def ratio_of_means(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
  """The ratio of two means over chains, and its standard error.

  The error is the jackknife's: the chains are left out one at a time.
  """
  without = (a.sum() - a) / (b.sum() - b)
  return a.mean() / b.mean(), without.std() * np.sqrt(len(a) - 1)


def seed_of(arguments: argparse.Namespace, use: int) -> tf.Tensor:
  """A stateless seed for one use, 0, 1, ..., of an experiment.

  All random numbers of TensorFlow that an experiment draws come from these.
  """
  return sgmcmc.random.fold_in(
      tf.constant([0, arguments.seed], tf.int32), use)
