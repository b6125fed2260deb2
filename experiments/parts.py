"""A run in parts: an estimate of the time it takes, and what is kept of it.

A part that takes long tells from its first steps how long it will take, by
`tell`, or by the bar of `sgmcmc.sample`. With --full each part is on disk when
it is done, and the same command goes on there after a kill. The parts of a
script that has since been changed, or of another seed, are not used.
"""

import argparse
from collections.abc import Callable
from collections.abc import Sequence
import hashlib
import inspect
import os
import pathlib
import pickle
import shutil
import sys
import time
from typing import Any

import tqdm

__all__ = ['clock', 'directory', 'each', 'forget', 'tell']

LEAST_SHARE = 0.01  # Of a part, by which to tell how long it takes.


def each(
    function: Callable[[Any], Any],
    items: Sequence[Any],
    arguments: argparse.Namespace,
    name: str,
    work: Sequence[float] | None = None,
    share: float = 1.,
) -> list[Any]:
  """A function of each item in turn, such as the run of a sampler.

  Args:
    function: Callable of an item. With --full what it returns is pickled.
    items: The items; their `repr` has to tell one from another.
    arguments: The command line's. The seconds, by the clock and of a
      processor, that parts on disk took are added to its `used_before`.
    name: What the items are, for the progress bar and the folder.
    work: How long each item takes, in units of any kind. By default as long as
      any other.
    share: What all of them take of the time of the whole run, about: below 1
      where a script has items of several kinds.

  Returns:
    results: List of what the function returned.
  """
  items = list(items)
  if arguments.size != 'full':
    return [function(item) for item in tqdm.tqdm(
        items, desc=name, disable=arguments.quiet, dynamic_ncols=True)]
  work = [1.] * len(items) if work is None else list(work)
  results, spent, done = [], 0., 0.
  for k, item in enumerate(items):
    path = directory(arguments, name, function) / (
        hashlib.sha256(repr(item).encode()).hexdigest()[:16] + '.pickle')
    if path.exists():
      result, *used = pickle.loads(path.read_bytes())
      results.append(result)
      arguments.used_before = [
          a + b for a, b in zip(arguments.used_before, used)]
      print(f'{name}: part {k + 1} of {len(items)} is on disk', flush=True)
      continue
    begin = clock()
    arguments.part = (
        f'{name}: part {k + 1} of {len(items)}', sum(work[k:]) / work[k],
        sum(work) / work[k] / share, None)
    results.append(function(item))
    arguments.part = None
    seconds, used = (b - a for a, b in zip(begin, clock()))
    spent, done = spent + seconds, done + work[k]
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix('.unfinished')
    unfinished.write_bytes(pickle.dumps(
        [results[-1], seconds, used]))
    unfinished.replace(path)
    minute = spent / done / 60.
    print(f'{name}: part {k + 1} of {len(items)} done, '
          f'{seconds:.0f} s; the others take about '
          f'{sum(work[k + 1:]) * minute:.0f} minutes, the whole run '
          f'{sum(work) * minute / share:.0f}', flush=True)
  return results


def tell(share: float, arguments: argparse.Namespace) -> None:
  """Says how long a part will take, once, when a share of it is done.

  It goes by what was done since the first call, before which programs are
  compiled.

  Args:
    share: The share, above 0.
    arguments: The command line's; without --full nothing is said.
  """
  if arguments.part is None:
    return
  words, num_left, num_in_all, first = arguments.part
  now = time.monotonic()
  if first is None:
    arguments.part = words, num_left, num_in_all, (share, now)
    return
  before, begin = first
  if share - before < LEAST_SHARE:
    return
  arguments.part = None
  minutes = (now - begin) / (share - before) / 60.
  print(f'{words} takes about {minutes:.0f} minutes, with those after it '
        f'{num_left * minutes:.0f}, the whole run {num_in_all * minutes:.0f}, '
        f'by its first {share:.1%}', flush=True)


def directory(
    arguments: argparse.Namespace, name: str, function: Callable[..., Any],
) -> pathlib.Path | None:
  """The folder of what is kept under a name; None unless --full.

  It goes by the sources of the experiment, of the function's module and of this
  one, and by the seed.
  """
  if arguments.size != 'full':
    return None
  source = ''.join(
      inspect.getsource(sys.modules[name]) for name in (
          f'{__package__}.{arguments.name}', function.__module__, __name__)
      if name in sys.modules)
  key = hashlib.sha256(f'{source} {arguments.seed}'.encode()).hexdigest()[:16]
  words = ''.join(c if c.isalnum() else '_' for c in name)
  return _folder(arguments) / f'{words}-{key}'


def clock() -> tuple[float, float]:
  """Seconds on the wall, and of a processor, children's too."""
  return time.monotonic(), sum(os.times()[:4])


def forget(arguments: argparse.Namespace) -> None:
  """Deletes what was kept, at the end of a run."""
  shutil.rmtree(_folder(arguments), ignore_errors=True)


def _folder(arguments):
  return arguments.output / 'parts' / arguments.name
