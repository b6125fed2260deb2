"""Lists and runs the experiments.

  python -m experiments                    lists them
  python -m experiments NAME [--full]      runs one
  python -m experiments all                runs all, and writes the summary
  python -m experiments summary            writes the summary of what was run
"""

import importlib
import pathlib
import sys
import time
import traceback

import experiments
from experiments import common

# In the order of the papers: SGNHT, EWSG, SBPS, and beyond them.
NAMES = (
    'double_well',
    'normal_mean',
    'normal_gamma',
    'mnist_bnn_thermostat',
    'matrix_factorization',
    'topic_model',
    'ewsg_gaussian',
    'ewsg_error',
    'covertype',
    'mnist_bnn_ewsg',
    'noisy_bps',
    'logistic_bouncy',
    'continuous_expectation',
    'bouncy_network',
    'cyclical_posterior',
    'uci_regression',
    'cold_posterior',
)


def title(name: str) -> str:
  """The first line of a script's docstring, read without running it."""
  path = pathlib.Path(experiments.__file__).parent / f'{name}.py'
  with path.open() as file:
    return file.readline().strip().strip('"')


def run_all(argv: list[str]) -> int:
  """Runs one after another; a failure is reported, and the rest goes on."""
  arguments = common.parse('all', __doc__, argv)
  failed = []
  for k, name in enumerate(NAMES):
    print(f'\n=== {k + 1} of {len(NAMES)}: {name} ===\n', flush=True)
    try:
      importlib.import_module(f'experiments.{name}').main(argv)
    except Exception:  # pylint: disable=broad-except
      traceback.print_exc()
      failed.append(name)
  write_summary(arguments.output)
  if failed:
    print(f'These ended with an error: {", ".join(failed)}', file=sys.stderr)
  return 1 if failed else 0


def write_summary(directory: pathlib.Path) -> None:
  """Writes README.md beside the results: verdicts, tables and pictures."""
  records = [
      record for record in (common.read(directory, name) for name in NAMES)
      if record]
  claims = [claim for record in records for claim in record['claims']]
  held = sum(claim['holds'] for claim in claims)
  lines = [
      '# Published results, run again', '',
      f'{len(records)} of {len(NAMES)} experiments, {held} of {len(claims)} '
      'claims held. Written by `python -m experiments summary`, '
      f'{time.strftime("%Y-%m-%d")}.', '',
      common.markdown_table(
          ['experiment', 'size', 'seconds', 'claims held'],
          [[f'[{r["name"]}](#{r["name"]})', r['size'], r['seconds'],
            f'{sum(c["holds"] for c in r["claims"])} of {len(r["claims"])}']
           for r in records])]
  for record in records:
    lines += [
        '', f'## {record["name"]}', '', record['title'], '',
        *(f'- **{common.verdict(claim)}**: {claim["text"]} ({claim["detail"]})'
          for claim in record['claims']), '',
        common.markdown_table(record['columns'], record['rows']), '']
    if record['notes']:
      lines += [record['notes'], '']
    lines += [f'![{record["name"]}]({record["name"]}.png)']
  path = directory / 'README.md'
  path.write_text('\n'.join(lines) + '\n')
  print(f'{path} written')


def main(argv: list[str]) -> int:
  """Does what the command line says."""
  if not argv:
    print(__doc__)
    for name in NAMES:
      print(f'{name:<24}{title(name)}')
    return 0
  name, *rest = argv
  if name == 'all':
    return run_all(rest)
  if name == 'summary':
    write_summary(common.parse(name, __doc__, rest).output)
    return 0
  if name not in NAMES:
    print(
        f'There is no experiment {name!r}. There are: {", ".join(NAMES)}.',
        file=sys.stderr)
    return 2
  importlib.import_module(f'experiments.{name}').main(rest)
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
