"""Tables by defaults alone: `PosteriorSampling()` beside Adam.

  python -m benchmarks.tables --data FOLDER [--sets energy ...] [--splits 2]
      [--epochs 40] [--batch-size 32] [--hidden 50] [--temperature 1]
      [--likelihood gaussian|one_scale|student_t|mixture]
      [--chains auto|1] [--steps-per-batch auto|1] [--tiny]
      [--output benchmarks/results]

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

Each fit is a line of OUTPUT/tables.jsonl, and is not run again;
OUTPUT/tables.md has the means over splits.

FOLDER has the data sets as `datasets.load_uci_regression` reads them, and
bde/airfoil.csv.gz and bde/hour.csv.gz as sklearn-contrib-bde's benchmark has
them; a9a, Covertype, KOS and MNIST are those of `benchmarks.uncertainty`, with
the pixels of MNIST as columns. The digits come with scikit-learn.
"""

import argparse
from collections.abc import Callable
from collections.abc import Sequence
import functools
import pathlib
import time
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks import uncertainty
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
    table: Table, arguments: argparse.Namespace, seed: int,
    callback: sgmcmc.keras.PosteriorSampling | None = None) -> keras.Model:
  """A network, fitted."""
  keras.utils.set_random_seed(seed)
  num_classes = table.num_classes
  make_loss, num_outputs = LIKELIHOODS[arguments.likelihood]
  model = keras.Sequential([
      keras.Input(table.x.shape[1:]),
      *(keras.layers.Dense(units, activation='relu')
        for units in arguments.hidden),
      keras.layers.Dense(num_classes, activation='softmax') if num_classes
      else keras.layers.Dense(num_outputs)])
  model.compile('adam', (
      'sparse_categorical_crossentropy' if num_classes else make_loss()))
  model.fit(
      table.x, table.y, batch_size=arguments.batch_size,
      epochs=arguments.epochs, verbose=0,
      callbacks=[] if callback is None else [callback])
  return model


def scores(
    table: Table, arguments: argparse.Namespace, seed: int,
    known: dict[str, Any] | None = None,
) -> dict[str, Any]:
  """Of Adam and of the posterior: NLL, and processor seconds.

  Those of Adam from a line of the same fit with other chains or steps, if there
  is one.
  """
  begin = time.process_time()
  if known is None:
    model = fit(table, arguments, seed)
    known = dict(
        adam=float(model.evaluate(table.x_test, table.y_test, verbose=0)),
        adam_seconds=round(time.process_time() - begin, 1))
  middle = time.process_time()
  sampling = sgmcmc.keras.PosteriorSampling(
      temperature=arguments.temperature, seed=seed,
      num_chains=arguments.chains,
      num_steps_per_batch=arguments.steps_per_batch)
  fit(table, arguments, seed, sampling)
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
        '-'.join(map(str, hidden)), f'{temperature:g}', str(len(group)), *(
            uncertainty.cell([line[what] for line in group])
            for what in ('constant', 'adam', 'posterior')),
        str(lost), str(worse)])
  return (
      '# Tables by defaults\n\nNegative log likelihood of test rows, mean ± '
      'standard error over splits. Lost: worse than a constant. Over Adam: '
      'splits where Adam was better. See `python -m benchmarks.tables --help`.'
      f'\n\n{uncertainty.table(rows)}\n')


def main(argv: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
      prog='python -m benchmarks.tables', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data', type=pathlib.Path, required=True)
  parser.add_argument('--sets', nargs='+', default=list(SETS), choices=SETS)
  parser.add_argument('--splits', type=int, default=2)
  parser.add_argument('--epochs', type=int, default=40)
  parser.add_argument('--batch-size', type=int, default=32)
  parser.add_argument('--hidden', type=int, nargs='+', default=[50])
  parser.add_argument('--temperature', type=float, default=1.)
  parser.add_argument(
      '--likelihood', default='gaussian', choices=LIKELIHOODS)
  for name in ('chains', 'steps-per-batch'):
    parser.add_argument(
        f'--{name}', default='auto', choices=['auto', 1],
        type=lambda value: 1 if value == '1' else value,
        help=f'1: PosteriorSampling(num_{name.replace("-", "_")}=1) everywhere')
  parser.add_argument('--tiny', action='store_true')
  parser.add_argument(
      '--output', type=pathlib.Path,
      default=pathlib.Path(__file__).parent / 'results')
  arguments = parser.parse_args(argv)
  arguments.output.mkdir(parents=True, exist_ok=True)
  path = arguments.output / 'tables.jsonl'
  about = dict(
      epochs=arguments.epochs, batch_size=arguments.batch_size,
      hidden=arguments.hidden, temperature=arguments.temperature,
      likelihood=arguments.likelihood, tiny=arguments.tiny,
      num_chains=arguments.chains, steps_per_batch=arguments.steps_per_batch)

  def run(name, split):
    table = SETS[name](arguments.data, split)
    if arguments.tiny:
      table = Table(*(values[:64] for values in table))
    keras.backend.clear_session()
    same = {**about, 'set': name, 'split': split}
    del same['num_chains'], same['steps_per_batch']
    known = next((
        line for line in uncertainty.read(path)
        if same.items() <= line.items()), None)
    return scores(table, arguments, split, known)

  for name in arguments.sets:
    for split in range(arguments.splits):
      line = uncertainty.run_once(
          path, dict(set=name, split=split, **about),
          functools.partial(run, name, split))
      if line is not None:
        print(f'{name} {split}: Adam {line["adam"]:.3f}, posterior '
              f'{line["posterior"]:.3f}', flush=True)
  (path.parent / 'tables.md').write_text(report(uncertainty.read(path)))
  return 0


if __name__ == '__main__':
  raise SystemExit(main())
