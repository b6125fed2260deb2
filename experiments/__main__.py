"""Lists and runs the experiments.

  python -m experiments                    lists them
  python -m experiments NAME [--full]      runs one
  python -m experiments all                runs all but those of hours, and
                                           writes the summary
  python -m experiments summary            writes the summary of what was run
"""

import importlib
import pathlib
import sys
import traceback

import experiments
from experiments import common
from experiments import page

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
    'mnist_cnn_ewsg',
    'noisy_bps',
    'logistic_bouncy',
    'continuous_expectation',
    'splitting_logistic',
    'bouncy_network',
    'cyclical_posterior',
    'uci_regression',
    'cold_posterior',
)

# Each a command of its own.
OF_HOURS = ('mnist_cnn_ewsg',)


def title(name: str) -> str:
  """The first line of a script's docstring, read without running it."""
  path = pathlib.Path(experiments.__file__).parent / f'{name}.py'
  with path.open() as file:
    return file.readline().strip().strip('"')


def run_all(argv: list[str]) -> int:
  """Runs one after another; a failure is reported, and the rest goes on."""
  arguments = common.parse('all', __doc__, argv)
  failed, names = [], [name for name in NAMES if name not in OF_HOURS]
  for k, name in enumerate(names):
    print(f'\n=== {k + 1} of {len(names)}: {name} ===\n', flush=True)
    try:
      importlib.import_module(f'experiments.{name}').main(argv)
    except Exception:  # pylint: disable=broad-except
      traceback.print_exc()
      failed.append(name)
  print(f'{page.write(arguments.output, NAMES)} written')
  if failed:
    print(f'These ended with an error: {", ".join(failed)}', file=sys.stderr)
  return 1 if failed else 0


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
    directory = common.parse(name, __doc__, rest).output
    print(f'{page.write(directory, NAMES)} written')
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
