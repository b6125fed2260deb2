"""The results of `python -m benchmarks`, as JSON and as Markdown."""

import datetime
import json
import os
import pathlib
import platform

import numpy as np


def circumstances() -> dict:
  """The machine, the time, and what else it has to do."""
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
      '| work | ours / the other | ratio | by CPU time | target |',
      '|---|---|---|---|---|']
  for row in _measured(results):
    title = row['title']
    for ratio in row['ratios']:
      by_cpu = ratio.get('by_cpu')
      target = f'{_target(ratio)} ' if ratio['target'] else ''
      lines.append(
          f'| {title} | {_pair(ratio)} ({_QUANTITY[ratio["quantity"]]}) | '
          f'{_spread(ratio)} | {_spread(by_cpu) if by_cpu else ""} | '
          f'{target}{_VERDICT[ratio["reached"]]} |')
      title = ''
  return '\n'.join(lines)


_VERDICT = {None: '', True: 'reached', False: '**not reached**'}


def _pair(ratio):
  return f'{ratio["over"]} / {ratio["under"]}'


# What README shows: some sides of some rows.
_SHOWN = {
    'effective': ('SGLD, n = 100',),
    'one_chain': ('ours',),
    'many_chains': ('ours',),
    'fit': (
        'the default, 784-100-10', 'the default, 784-100-10, compiled by XLA',
        'the default, convolutional network'),
}


def short(results: dict) -> str:
  """The rows that README shows, with those ratios that have a target."""
  lines = ['| work | over the other |', '|---|---|']
  for name, sides_shown in _SHOWN.items():
    row = results.get(name, {})
    said = [
        f'{_pair(ratio)}: {_show(ratio["median"])} '
        f'({_QUANTITY[ratio["quantity"]]})'
        for ratio in row.get('ratios', ())
        if ratio['target'] is not None and ratio['over'] in sides_shown]
    if said:
      lines.append(f'| {row["title"]} | {"; ".join(said)} |')
  return '\n'.join(lines)


def update_readme(results: dict, path: pathlib.Path) -> None:
  """Puts the short table between its marks."""
  before, rest = path.read_text().split(README_MARKS[0])
  _, after = rest.split(README_MARKS[1])
  path.write_text(
      f'{before}{README_MARKS[0]}\n{short(results)}\n{README_MARKS[1]}{after}')


README_MARKS = '<!-- speed -->', '<!-- /speed -->'


def sides(results: dict) -> str:
  """The table of what each side did."""
  lines = [
      '| side | speed | import, s | first turn, s | a turn, s | peak, MB |',
      '|---|---|---|---|---|---|']
  for row in _measured(results):
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
  versions, lines = {}, []
  for row in results.values():
    failed = row.get('failed')
    lines.append(
        f'| {row["title"]} | {row["date"]} | {row["load"]:.1f} | '
        f'{row["seconds"] / 60.:.0f} | '
        f'{"not measured: " + failed.splitlines()[0] if failed else ""} |')
    for environment, found in row.get('versions', {}).items():
      versions.setdefault(environment, set()).update(
          f'{package} {version}' for package, version in found.items())
  machines = sorted({
      f'{row["processor"]}, {row["cores"]} cores, Python {row["python"]}'
      for row in results.values()})
  said = '\n'.join(
      f'- {name.replace("_", " ")}: {", ".join(sorted(found))}'
      for name, found in sorted(versions.items()))
  return f"""\
On {"; ".join(machines)}. {_load(results)}

{ratios(results)}

What each side did. Imports and first turns are CPU seconds, the first turn with
the making of the data, tracing and compiling; the others are of the wall. A
turn of `sample` is made of calls that compile, and of many more draws.

{sides(results)}
{_GROWTH if 'sides' in results.get('growth', {}) else ''}
When each row was measured (UTC), beside what load (processes that wanted to
run), and in how many minutes:

| work | when | load | minutes | |
|---|---|---|---|---|
{chr(10).join(lines)}

Environments:

{said}
"""


# The path is that from docs/, whose page includes the text.
_GROWTH = """
![Steps a second by the sizes of the problem](uncertainty/speed_growth.png)
"""


def _load(results):
  # What a row leaves behind it is at most a load of the cores.
  if all(row['load'] < row['cores'] + 0.5 for row in results.values()):
    return 'Nothing else was at work on it.'
  return (
      '**Others were at work on it: speeds are lower and ratios less sure '
      'than on a machine of one\'s own.** The ratios by CPU time suffer less.')


def _measured(results):
  return [row for row in results.values() if 'failed' not in row]


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


def read(folder: pathlib.Path) -> dict:
  """The rows that are there."""
  path = folder / 'speed.json'
  return json.loads(path.read_text()) if path.exists() else {}


def write(results: dict, folder: pathlib.Path) -> None:
  """Writes `speed.json`, `speed.md`, and the plot where there is that row."""
  folder.mkdir(parents=True, exist_ok=True)
  if 'sides' in results.get('growth', {}):
    plot(results['growth'], folder / 'speed_growth.png')
  (folder / 'speed.json').write_text(json.dumps(results, indent=1) + '\n')
  (folder / 'speed.md').write_text(markdown(results))
