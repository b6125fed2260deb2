"""The results of `python -m benchmarks`, as JSON and as Markdown."""

import datetime
import json
import os
import pathlib
import platform

import numpy as np


def circumstances() -> dict:
  """The machine and the time."""
  return dict(
      date=datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%d %H:%M'),
      processor=_processor(), cores=len(os.sched_getaffinity(0)),
      load=os.getloadavg()[0], python=platform.python_version())


def _processor():
  for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
    if line.startswith('model name'):
      return line.split(':')[1].strip()
  return platform.machine()


def line(ratio: dict) -> str:
  """A ratio in words."""
  target = '' if ratio['target'] is None else (
      f'; target {_target(ratio)}, '
      f'{"" if ratio["reached"] else "not "}reached')
  return (f'{_pair(ratio)}, {_QUANTITY[ratio["quantity"]]}: '
          f'{_spread(ratio)}{target}')


_QUANTITY = dict(speed='speed', wall='time', cpu='CPU time', peak='peak memory')


def _spread(found):
  return (f'{_show(found["median"])} ({_show(found["least"])} to '
          f'{_show(found["largest"])})')


def _show(number):
  return f'{number:.2f}' if number < 10. else f'{number:,.0f}'


def _target(ratio):
  sign = '≥' if ratio['quantity'] == 'speed' else '≤'
  return f'{sign} {ratio["target"]:g}'


def ratios(results: dict) -> str:
  """The table of ratios."""
  lines = [
      '| work | ours / the other | of | ratio | by CPU time | target | |',
      '|---|---|---|---|---|---|---|']
  for row in results['rows'].values():
    title = row['title']
    for ratio in row['ratios']:
      by_cpu = ratio.get('by_cpu')
      lines.append(
          f'| {title} | {_pair(ratio)} | {_QUANTITY[ratio["quantity"]]} | '
          f'{_spread(ratio)} | {_spread(by_cpu) if by_cpu else ""} | '
          f'{_target(ratio) if ratio["target"] else ""} | '
          f'{_VERDICT[ratio["reached"]]} |')
      title = ''
  return '\n'.join(lines)


_VERDICT = {None: '', True: 'reached', False: '**not reached**'}


def _pair(ratio):
  return f'{ratio["over"]} / {ratio["under"]}'


def _load(results):
  load, cores = results['load'], results['cores']
  said = f'a load of {load:.1f} when it began'
  return said if load < cores / 4. else (
      f'{said}: **others were at work on it, and speeds are lower and their '
      'ratios less sure than on a machine of one\'s own**')


def sides(results: dict) -> str:
  """The table of what each side did."""
  lines = [
      '| side | speed | import, s | first turn, s | a turn, s | peak, MB |',
      '|---|---|---|---|---|---|']
  for row in results['rows'].values():
    lines.append(f'| *{row["title"]}* | | | | | |')
    for name, side in row['sides'].items():
      wall = np.array([turn['wall'] for turn in side['turns']])
      work = np.array([
          turn.get('work', side['work']) for turn in side['turns']])
      started = side['started']
      speed = '' if row['unit'] is None else (
          f'{np.median(work / wall):,.0f} {row["unit"]}/s')
      first = started['prepare_cpu'] + started['first_cpu']
      lines.append(
          f'| {name} | {speed} | {started["import_cpu"]:.1f} | {first:.1f} | '
          f'{np.median(wall):.2f} | '
          f'{max(turn["peak"] for turn in side["turns"]):,.0f} |')
  return '\n'.join(lines)


def markdown(results: dict) -> str:
  """Both tables, and under what circumstances they were made."""
  versions = '; '.join(
      f'{name.replace("_", " ")}: ' + ', '.join(
          f'{package} {version}' for package, version in found.items())
      for name, found in results['versions'].items())
  failed = ''.join(
      f'\n\nNot measured: `{name}`, {reason.splitlines()[0]}'
      for name, reason in results['failed'].items())
  return f"""\
{results['date']} UTC, {results['processor']}, {results['cores']} cores,
{_load(results)}; Python {results['python']}. {versions}.

{ratios(results)}{failed}

What each side did. Imports and first turns are CPU seconds, the first turn with
the making of the data, tracing and compiling; the others are of the wall.

{sides(results)}
"""


def plot(row: dict, path: pathlib.Path) -> None:
  """Steps a second by the sizes of the problem, of the row `growth`."""
  from matplotlib import figure  # Of this plot alone.
  curves = {}
  for name, side in row['sides'].items():
    axis, value = name.split(' = ')
    speed = side['work'] / np.median([turn['wall'] for turn in side['turns']])
    curves.setdefault(axis, []).append((int(value.replace(',', '')), speed))
  canvas = figure.Figure(figsize=(7., 4.5), layout='constrained')
  axes = canvas.add_subplot()
  for axis, points in curves.items():
    axes.loglog(*zip(*points), marker='o', label=axis)
  axes.set_xlabel('size')
  axes.set_ylabel('steps of a chain, a second')
  axes.legend()
  axes.grid(alpha=0.3)
  canvas.savefig(path, dpi=120)


def write(results: dict, folder: pathlib.Path) -> None:
  """Writes `speed.json`, `speed.md`, and the plot where there is that row."""
  folder.mkdir(parents=True, exist_ok=True)
  if 'growth' in results['rows']:
    plot(results['rows']['growth'], folder / 'speed_growth.png')
  (folder / 'speed.json').write_text(json.dumps(results, indent=1) + '\n')
  (folder / 'speed.md').write_text(markdown(results))
