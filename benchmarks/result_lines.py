"""What benchmarks write: a line of JSON a run, and tables made of them.

A benchmark `python -m benchmarks.NAME` appends what a run found to
OUTPUT/NAME.jsonl, where OUTPUT is benchmarks/results unless another folder is
given. A run that has its line there is not run again. OUTPUT/NAME.md is made of
all lines.
"""

import argparse
from collections.abc import Callable
from collections.abc import Sequence
import json
import pathlib
from typing import Any

import numpy as np

RESULTS = pathlib.Path(__file__).parent / 'results'


def parser(
    name: str, about: str | None, has_tiny: bool = True,
) -> argparse.ArgumentParser:
  """The arguments of a benchmark: those that all have.

  Args:
    name: Python `str`, NAME.
    about: Python `str`, the help's text.
    has_tiny: Python `bool`, whether there is a tiny size.

  Returns:
    parser: `ArgumentParser`, with --output, and with --tiny where there is one.
  """
  made = argparse.ArgumentParser(
      prog=f'python -m benchmarks.{name}', description=about,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  if has_tiny:
    made.add_argument(
        '--tiny', action='store_true', help='to see that it runs')
  made.add_argument('--output', type=pathlib.Path, default=RESULTS)
  return made


def path(arguments: argparse.Namespace, name: str) -> pathlib.Path:
  """OUTPUT/NAME.jsonl; makes the folder."""
  arguments.output.mkdir(parents=True, exist_ok=True)
  return arguments.output / f'{name}.jsonl'


def write(
    path: pathlib.Path,
    report: Callable[[Sequence[dict[str, Any]]], str]) -> None:
  """Makes NAME.md of the lines of NAME.jsonl."""
  path.with_suffix('.md').write_text(report(read(path)))


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """The lines of a file; none where there is none."""
  if not path.exists():
    return []
  return [json.loads(line) for line in path.read_text().splitlines()]


def run_once(
    path: pathlib.Path, key: dict[str, Any], run: Callable[[], dict[str, Any]],
) -> dict[str, Any] | None:
  """Appends a line of a key and what a run finds; None where there is one."""
  if any(key.items() <= line.items() for line in read(path)):
    return None
  line = {**key, **run()}
  with path.open('a') as file:
    file.write(json.dumps(line) + '\n')
  return line


def table(rows: Sequence[Sequence[str]]) -> str:
  return '\n'.join('| ' + ' | '.join(row) + ' |' for row in rows)


def cell(values: Sequence[float]) -> str:
  """A mean and its standard error, which one seed has not."""
  mean = f'{np.mean(values):.3f}'
  if len(values) == 1:
    return mean
  return f'{mean} ± {np.std(values, ddof=1) / len(values)**0.5:.3f}'
