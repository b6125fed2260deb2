"""Tables by defaults alone: `PosteriorSampling()` beside Adam.

  python -m benchmarks.tables --data FOLDER [--sets energy ...] [--splits 2]
      [--epochs 40] [--batch-size 32 ...] [--hidden 50 ...] [--temperature 1]
      [--likelihood gaussian|one_scale|student_t|mixture ...]
      [--chains auto|1] [--steps-per-batch auto|1] [--tiny]
      [--output benchmarks/results]
  python -m benchmarks.tables --data FOLDER --splits 1 --batch-size 10 32 100
      --hidden 50 50-50 --likelihood gaussian one_scale student_t mixture

For each table and split, a perceptron with hidden layers as given and Keras'
defaults: Adam for all epochs, and a new network with the same seed for as many
epochs with `PosteriorSampling()`. Regressions have `GaussianLikelihood()`, so
that the network learns its own noise; or the likelihood that is named: normal
with a standard deviation of a half, Student's t with 4 degrees of freedom, or a
mixture of two normals. Inputs and targets are standardised by
the training rows. The score is the mean negative log likelihood of the test
rows, in nats, of standardised targets. A network is lost where it is worse
than a constant prediction (the training rows' mean and variance, or shares of
the classes). "Steps" is `num_steps_per_batch`; where a fit has 10,000 batches
or more, or its steps have the batch alone, "auto" is 1.

Hidden layers are units joined by hyphens: 50-50 is two layers. Every
combination of batch sizes, hidden layers and likelihoods is run, as by the
second command.

Each fit is a line of OUTPUT/tables.jsonl, and is not run again;
OUTPUT/tables.md has the means over splits.

FOLDER has the data sets as `datasets.load_uci_regression` reads them, and
bde/airfoil.csv.gz and bde/hour.csv.gz as sklearn-contrib-bde's benchmark has
them; a9a, Covertype, KOS and MNIST are those of `benchmarks.uncertainty`, with
the pixels of MNIST as columns. The digits come with scikit-learn.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import itertools
import pathlib
import time
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks import result_lines
from benchmarks import uncertainty_data
from experiments import datasets
import tfp_sgmcmc as sgmcmc

UCI = ('concrete', 'energy', 'yacht', 'wine', 'protein', 'bike', 'elevators')
_CLASSES = ('digits', 'a9a', 'covertype', 'kos', 'mnist')
_LEFT_OUT = ('cnt', 'instant', 'dteday', 'casual', 'registered')


class Table(NamedTuple):
  """Training and test rows; classes where targets are integers."""
  x: np.ndarray
  y: np.ndarray
  x_test: np.ndarray
  y_test: np.ndarray

  @property
  def num_classes(self) -> int:
    """How many classes there are, 0 for a regression."""
    if self.y.dtype.kind == 'f':
      return 0
    return int(self.y.max()) + 1


def uci(name: str) -> Callable[[pathlib.Path, int], Table]:
  def load(folder, split):
    train, test = datasets.load_uci_regression(name, folder, split)
    return regression(
        train.features, train.labels, test.features, test.labels)
  return load


def airfoil(folder: pathlib.Path, split: int) -> Table:
  rows = np.loadtxt(
      folder / 'bde' / 'airfoil.csv.gz', delimiter=',', skiprows=1)
  return split_as_bde(rows[:, :-1], rows[:, -1], split)


def hour(folder: pathlib.Path, split: int) -> Table:
  rows = np.genfromtxt(
      folder / 'bde' / 'hour.csv.gz', delimiter=',', names=True, dtype=None,
      encoding='utf-8')
  kept = [name for name in rows.dtype.names if name not in _LEFT_OUT]
  return split_as_bde(
      np.stack([rows[name].astype(float) for name in kept], axis=1),
      rows['cnt'].astype(float), split)


def split_as_bde(x: np.ndarray, y: np.ndarray, split: int) -> Table:
  """A fifth of the rows for the test, drawn by the split's number."""
  order = np.random.RandomState(split).permutation(len(y))
  test, train = np.split(order, [-(-len(y) // 5)])
  return regression(x[train], y[train], x[test], y[test])


def digits(folder: pathlib.Path, split: int) -> Table:
  import sklearn.datasets
  x, y = sklearn.datasets.load_digits(return_X_y=True)
  order = np.random.RandomState(split).permutation(len(y))
  test, train = np.split(order, [len(y) // 5])
  return Table(x[train] / 16., y[train], x[test] / 16., y[test])


def a9a(folder: pathlib.Path, split: int) -> Table:
  del split  # It comes with its own.
  train, test = datasets.load_a9a(folder)
  return Table(train.features, train.labels, test.features, test.labels)


def classes(name: str) -> Callable[[pathlib.Path, int], Table]:
  def load(folder, split):
    task = uncertainty_data.SETS[name](folder, split)
    (x, y), (x_test, y_test) = task.train, task.tests[uncertainty_data.USUAL]
    return Table(x, y, x_test, y_test)
  return load


def regression(
    x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray,
) -> Table:
  """Standardised by the training rows."""
  x_scaling, y_scaling = (
      datasets.Standardization.fit(values) for values in (x, y))
  return Table(
      x_scaling(x), y_scaling(y)[:, np.newaxis],
      x_scaling(x_test), y_scaling(y_test)[:, np.newaxis])


SETS = {
    **{name: uci(name) for name in UCI},
    'airfoil': airfoil, 'hour': hour, 'digits': digits, 'a9a': a9a,
    **{name: classes(name) for name in ('covertype', 'kos', 'mnist')}}


def mixture(outputs: tf.Tensor) -> tfp.distributions.Distribution:
  """Two normals for each target, from six outputs."""
  logits, means, scales = tf.split(outputs[..., tf.newaxis, :], 3, axis=-1)
  return tfp.distributions.MixtureSameFamily(
      tfp.distributions.Categorical(logits),
      tfp.distributions.Normal(means, 1e-3 + tf.nn.softplus(scales)))


# Each with its number of outputs.
LIKELIHOODS = {
    'gaussian': (sgmcmc.keras.GaussianLikelihood, 2),
    'one_scale': (lambda: sgmcmc.keras.GaussianLikelihood(scale=0.5), 1),
    'student_t': (lambda: sgmcmc.keras.StudentTLikelihood(df=4.), 2),
    'mixture': (lambda: sgmcmc.keras.DistributionLoss(mixture), 6)}


def constant_nll(table: Table) -> float:
  """That of the best constant prediction for the training rows."""
  if table.num_classes:
    shares = np.bincount(table.y, minlength=table.num_classes) / len(table.y)
    return float(-np.mean(np.log(shares[table.y_test])))
  return float(np.mean(
      0.5 * np.log(2. * np.pi) + 0.5 * np.square(table.y_test)))


def fit(
    table: Table, key: dict[str, Any],
    callback: sgmcmc.keras.PosteriorSampling | None = None) -> keras.Model:
  """A network, fitted."""
  keras.utils.set_random_seed(key['split'])
  num_classes = table.num_classes
  make_loss, num_outputs = LIKELIHOODS[key['likelihood']]
  model = keras.Sequential([
      keras.Input(table.x.shape[1:]),
      *(keras.layers.Dense(units, activation='relu')
        for units in key['hidden']),
      keras.layers.Dense(num_classes, activation='softmax') if num_classes
      else keras.layers.Dense(num_outputs)])
  model.compile('adam', (
      'sparse_categorical_crossentropy' if num_classes else make_loss()))
  model.fit(
      table.x, table.y, batch_size=key['batch_size'], epochs=key['epochs'],
      verbose=0,
      callbacks=[] if callback is None else [callback])
  return model


def scores(
    table: Table, key: dict[str, Any], known: dict[str, Any] | None = None,
) -> dict[str, Any]:
  """Of Adam and of the posterior: NLL, and processor seconds.

  Those of Adam from a line of the same fit with other chains or steps, if there
  is one.
  """
  begin = time.process_time()
  if known is None:
    model = fit(table, key)
    known = dict(
        adam=float(model.evaluate(table.x_test, table.y_test, verbose=0)),
        adam_seconds=round(time.process_time() - begin, 1))
  middle = time.process_time()
  sampling = sgmcmc.keras.PosteriorSampling(
      temperature=key['temperature'], seed=key['split'],
      num_chains=key['num_chains'], num_steps_per_batch=key['steps_per_batch'])
  fit(table, key, sampling)
  end = time.process_time()
  return dict(
      adam=known['adam'],
      posterior=sampling.posterior.evaluate(
          table.x_test, table.y_test)['nll'],
      constant=constant_nll(table),
      returns=int(np.max(sampling.kernel_results.num_returns)),
      step_size=sampling.settings['step_size'],
      adam_seconds=known['adam_seconds'],
      posterior_seconds=round(end - middle, 1))


def _likelihood(line):
  return '' if line['set'] in _CLASSES else line['likelihood']


def _place(item):
  name, epochs, batch, hidden, temperature, likelihood, chains, steps = item[0]
  return (list(SETS).index(name), likelihood, hidden, batch, epochs,
          -temperature, str(chains), str(steps))


def report(lines: Sequence[dict[str, Any]]) -> str:
  """The means over splits, in Markdown."""
  groups = {}
  for line in lines:
    key = (line['set'], line['epochs'], line['batch_size'],
           tuple(line['hidden']), line['temperature'], _likelihood(line),
           line['num_chains'], line['steps_per_batch'])
    groups.setdefault(key, []).append(line)
  rows = [['table', 'likelihood', 'epochs', 'batch', 'chains', 'steps',
           'hidden', 'T', 'splits', 'constant', 'Adam', 'posterior', 'lost',
           'over Adam']]
  rows.append(['---'] * len(rows[0]))
  for key, group in sorted(groups.items(), key=_place):
    name, epochs, batch, hidden, temperature, likelihood, chains, steps = key
    lost, worse = (
        sum(not line['posterior'] < line[other] for line in group)
        for other in ('constant', 'adam'))
    rows.append([
        name, likelihood, str(epochs), str(batch), str(chains), str(steps),
        units(hidden), f'{temperature:g}', str(len(group)), *(
            result_lines.cell([line[what] for line in group])
            for what in ('constant', 'adam', 'posterior')),
        str(lost), str(worse)])
  return (
      '# Tables by defaults\n\nNegative log likelihood of test rows, mean ± '
      'standard error over splits. Lost: worse than a constant. Over Adam: '
      'splits where Adam was better. See `python -m benchmarks.tables --help`.'
      f'\n\n{result_lines.table(rows)}\n')


def layers(text: str) -> list[int]:
  """The units of hidden layers: 50-50 is [50, 50]."""
  return [int(number) for number in text.split('-')]


def units(hidden: Sequence[int]) -> str:
  """As `layers` takes them."""
  return '-'.join(map(str, hidden))


def run(
    path: pathlib.Path, folder: pathlib.Path, key: dict[str, Any],
) -> dict[str, Any]:
  """The scores of a table's split, of which the key says what to fit."""
  table = SETS[key['set']](folder, key['split'])
  if key['tiny']:
    table = Table(*(values[:64] for values in table))
  keras.backend.clear_session()
  same = {name: value for name, value in key.items()
          if name not in ('num_chains', 'steps_per_batch')}
  known = next((line for line in result_lines.read(path)
                if same.items() <= line.items()), None)
  return scores(table, key, known)


def main(argv: Sequence[str] | None = None) -> int:
  parser = result_lines.parser('tables', __doc__)
  parser.add_argument('--data', type=pathlib.Path, required=True)
  parser.add_argument('--sets', nargs='+', default=list(SETS), choices=SETS)
  parser.add_argument('--splits', type=int, default=2)
  parser.add_argument('--epochs', type=int, default=40)
  parser.add_argument('--batch-size', type=int, nargs='+', default=[32])
  parser.add_argument(
      '--hidden', type=layers, nargs='+', default=[[50]],
      help='50-50: two layers of 50 units')
  parser.add_argument('--temperature', type=float, default=1.)
  parser.add_argument(
      '--likelihood', nargs='+', default=['gaussian'], choices=LIKELIHOODS)
  for name in ('chains', 'steps-per-batch'):
    parser.add_argument(
        f'--{name}', default='auto', choices=['auto', 1],
        type=lambda value: 1 if value == '1' else value,
        help=f'1: PosteriorSampling(num_{name.replace("-", "_")}=1) everywhere')
  arguments = parser.parse_args(argv)
  path = result_lines.path(arguments, 'tables')
  for name, split, batch_size, hidden, likelihood in itertools.product(
      arguments.sets, range(arguments.splits), arguments.batch_size,
      arguments.hidden, arguments.likelihood):
    if name in _CLASSES:
      likelihood = 'gaussian'  # Classes have one: run once, under this name.
    key = dict(
        set=name, split=split, epochs=arguments.epochs, batch_size=batch_size,
        hidden=hidden, temperature=arguments.temperature, likelihood=likelihood,
        tiny=arguments.tiny, num_chains=arguments.chains,
        steps_per_batch=arguments.steps_per_batch)
    line = result_lines.run_once(
        path, key, functools.partial(run, path, arguments.data, key))
    if line is not None:
      print(f'{name} {split}, {likelihood}, {batch_size}, {units(hidden)}: '
            f'Adam {line["adam"]:.3f}, posterior {line["posterior"]:.3f}',
            flush=True)
  result_lines.write(path, report)
  return 0


if __name__ == '__main__':
  raise SystemExit(main())
