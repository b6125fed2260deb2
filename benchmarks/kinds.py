"""Other models than perceptrons on small tables, by defaults, beside Adam.

  python -m benchmarks.kinds [--kinds words ...] [--seeds 3] [--tiny]
      [--output benchmarks/results]

Each kind is a model and data, made up or scikit-learn's digits, with a number
of epochs at which Adam does well. Adam has all epochs, and a new network with
the same seed as many with `PosteriorSampling()`. A quarter of the rows, drawn
by the seed, is for the test (a tenth of the long table). The score is the mean
negative log likelihood of the test rows, in nats.

Each fit is a line of OUTPUT/kinds.jsonl, and is not run again;
OUTPUT/kinds.md has the means over seeds.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import time
from typing import Any
from typing import NamedTuple

import keras
from keras import layers
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks import result_lines
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import quickstart

tfd = tfp.distributions


class Kind(NamedTuple):
  """A model, its loss, and its data.

  Attributes:
    make_model: Callable; returns a new model.
    make_loss: Callable; returns its loss.
    x: The inputs, an array or several.
    y: The targets.
    epochs: How often `fit` goes through the training rows.
    batch_size: The number of rows of a batch.
    test: The share of the rows that is for the test.
  """
  make_model: Callable[[], keras.Model]
  make_loss: Callable[[], Any]
  x: Any
  y: np.ndarray
  epochs: int
  batch_size: int = 32
  test: float = 0.25


def of_layers(shape: Sequence[int | None], *makers: Callable[[], Any]):
  """A callable of the sequential model of new layers."""
  return lambda: keras.Sequential(
      [keras.Input(shape), *(make() for make in makers)])


def dense(*sizes: int):
  """Callables of dense layers, all but the last with rectifiers."""
  *hidden, last = sizes
  return [functools.partial(layers.Dense, units, activation='relu')
          for units in hidden] + [functools.partial(layers.Dense, last)]


def classes() -> keras.losses.Loss:
  return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _sentences(rng):
  """Words from 1 to 49, 5 to 20 of them, then zeros; and whether it is so.

  It is likely where there are more of the first words than of the last.
  """
  x = rng.integers(1, 50, [1500, 20])
  x[np.arange(20) >= rng.integers(5, 21, [1500, 1])] = 0
  score = np.sum((x > 0) & (x < 10), axis=1) - np.sum(x >= 40, axis=1)
  return x.astype(np.int32), (score + rng.normal(size=1500) > 0).astype(int)


def words() -> Kind:
  x, y = _sentences(np.random.default_rng(0))
  return Kind(of_layers(
      [20], lambda: layers.Embedding(50, 16, mask_zero=True),
      layers.GlobalAveragePooling1D, *dense(16, 2)), classes, x, y, 20)


def attention() -> Kind:
  x, y = _sentences(np.random.default_rng(0))

  def make_model():
    inputs = keras.Input([20])
    hidden = layers.Embedding(50, 16)(inputs)
    hidden += layers.MultiHeadAttention(2, 8)(hidden, hidden)
    hidden = layers.GlobalAveragePooling1D()(
        layers.LayerNormalization()(hidden))
    return keras.Model(inputs, layers.Dense(2)(hidden))

  return Kind(make_model, classes, x, y, 30)


def lstm() -> Kind:
  """The next value of a series after 24."""
  times = np.arange(1500)
  series = np.sin(times / 7.) + 0.5 * np.sin(times / 3.) + (
      0.1 * np.random.default_rng(0).normal(size=1500))
  windows = np.lib.stride_tricks.sliding_window_view(series, 25)
  return Kind(
      of_layers([24, 1], lambda: layers.LSTM(24), *dense(2)),
      sgmcmc.keras.GaussianLikelihood, windows[:, :-1, np.newaxis],
      windows[:, -1:], 40)


def gru() -> Kind:
  """A running sum, at each of 15 times."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=[600, 15, 2])
  y = np.cumsum(x @ [[0.3], [0.1]], axis=1) + 0.1 * rng.normal(
      size=[600, 15, 1])
  return Kind(of_layers(
      [15, 2], lambda: layers.GRU(20, return_sequences=True), *dense(2)),
              sgmcmc.keras.GaussianLikelihood, x, y, 40)


def waves() -> Kind:
  """The frequency of a noisy wave."""
  rng = np.random.default_rng(0)
  frequency, phase = rng.uniform(
      [[2.], [0.]], [[12.], [2. * np.pi]], [2, 900])[..., np.newaxis]
  x = np.sin(2. * np.pi * frequency * np.linspace(0., 1., 64) + phase)
  return Kind(of_layers(
      [64, 1], lambda: layers.Conv1D(16, 5, activation='relu'),
      layers.MaxPooling1D, lambda: layers.Conv1D(16, 5, activation='relu'),
      layers.GlobalAveragePooling1D, *dense(2)),
              sgmcmc.keras.GaussianLikelihood,
              (x + 0.5 * rng.normal(size=x.shape))[..., np.newaxis],
              frequency / 5., 40)


def _digits():
  import sklearn.datasets
  x, y = sklearn.datasets.load_digits(return_X_y=True)
  return x.astype(np.float32) / 16., y


def angles() -> Kind:
  """By how much a digit is turned."""
  x, _ = _digits()
  degrees = np.random.default_rng(0).uniform(-90., 90., len(x))
  turned = np.concatenate([
      quickstart.turn(row[np.newaxis], angle)
      for row, angle in zip(x, degrees)])
  return Kind(of_layers(
      [8, 8, 1], lambda: layers.Conv2D(16, 3, activation='relu'),
      lambda: layers.Conv2D(16, 3, activation='relu'), layers.Flatten,
      *dense(64, 2)), sgmcmc.keras.GaussianLikelihood,
              turned.reshape([-1, 8, 8, 1]), degrees[:, np.newaxis] / 50., 30)


def images() -> Kind:
  x, y = _digits()
  return Kind(of_layers(
      [8, 8, 1], lambda: layers.Conv2D(16, 3, activation='relu'),
      layers.MaxPooling2D, layers.Flatten, *dense(32, 10)), classes,
              x.reshape([-1, 8, 8, 1]), y, 30)


def patches() -> Kind:
  """The digits by two blocks of attention over their 16 patches."""
  x, y = _digits()

  def make_model():
    inputs = keras.Input([8, 8, 1])
    hidden = layers.Reshape([16, 16])(
        layers.Conv2D(16, 2, strides=2)(inputs))
    hidden += layers.Embedding(16, 16)(np.arange(16))
    for _ in range(2):
      normal = layers.LayerNormalization()(hidden)
      hidden += layers.MultiHeadAttention(2, 8)(normal, normal)
      normal = layers.LayerNormalization()(hidden)
      hidden += layers.Dense(16)(layers.Dense(32, activation='gelu')(normal))
    hidden = layers.GlobalAveragePooling1D()(
        layers.LayerNormalization()(hidden))
    return keras.Model(inputs, layers.Dense(10)(hidden))

  return Kind(make_model, classes, x.reshape([-1, 8, 8, 1]), y, 40)


def normalised() -> Kind:
  """The digits by Conv2D with batch normalisation, and dropout."""
  x, y = _digits()

  def convolution(units, strides):
    return [
        lambda: layers.Conv2D(units, 3, strides=strides, padding='same'),
        layers.BatchNormalization, layers.ReLU]

  return Kind(of_layers(
      [8, 8, 1], *convolution(16, 1), *convolution(32, 2), layers.Flatten,
      lambda: layers.Dropout(0.3), *dense(10)), classes,
              x.reshape([-1, 8, 8, 1]), y, 30)


def long_table() -> Kind:
  rng = np.random.default_rng(0)
  x = rng.normal(size=[200_000, 5])
  y = np.sin(x[:, 0]) * x[:, 1] + 0.3 * np.abs(x[:, 2]) * rng.normal(
      size=len(x))
  return Kind(
      of_layers([5], *dense(64, 64, 2)), sgmcmc.keras.GaussianLikelihood, x,
      y[:, np.newaxis], 5, 1024, 0.1)


def counts() -> Kind:
  """Poisson, of inputs in their own units."""
  rng = np.random.default_rng(0)
  size, hour, degrees = (
      rng.uniform(0., 1000., 1500), rng.integers(0, 24, 1500),
      rng.uniform(-10., 40., 1500))
  x = np.stack([size, hour, degrees], axis=1)
  y = rng.poisson(np.exp(
      1.5 + np.sin(2. * np.pi * hour / 24.) + size / 1000.))

  def make_normalization():
    layer = layers.Normalization()
    layer.adapt(x.astype(np.float32))
    return layer

  return Kind(
      of_layers([3], make_normalization, *dense(40, 1)),
      lambda: sgmcmc.keras.DistributionLoss(
          lambda outputs: tfd.Poisson(log_rate=outputs)),
      x, y[:, np.newaxis].astype(np.float32), 50)


def three_targets() -> Kind:
  rng = np.random.default_rng(0)
  x, weights = rng.normal(size=[1000, 6]), rng.normal(size=[6, 3])
  y = np.tanh(x @ weights) + 0.05 * rng.normal(size=[1000, 3])
  return Kind(
      of_layers([6], *dense(64, 6)), sgmcmc.keras.GaussianLikelihood, x, y, 60)


def categories() -> Kind:
  """A column of twelve categories beside four of numbers: two inputs."""
  rng = np.random.default_rng(0)
  category = rng.integers(0, 12, [2000, 1])
  x = rng.normal(size=[2000, 4])
  y = 2. * rng.normal(size=12)[category] + x[:, :1] + np.sin(
      2. * x[:, 1:2]) + 0.2 * rng.normal(size=[2000, 1])

  def make_model():
    inputs = keras.Input([1], dtype='int32'), keras.Input([4])
    hidden = layers.Concatenate()([
        layers.Flatten()(layers.Embedding(12, 4)(inputs[0])), inputs[1]])
    hidden = layers.Dense(50, activation='relu')(hidden)
    return keras.Model(inputs, layers.Dense(2)(hidden))

  return Kind(make_model, sgmcmc.keras.GaussianLikelihood,
              (category.astype(np.int32), x), y, 50)


def rare() -> Kind:
  """Three of a hundred rows are of the class."""
  import sklearn.datasets
  x, y = sklearn.datasets.make_classification(
      4000, 20, n_informative=6, weights=[0.97], random_state=0)
  return Kind(of_layers([20], *dense(64, 32, 1)),
              lambda: keras.losses.BinaryCrossentropy(from_logits=True),
              x, y[:, np.newaxis], 30, 64)


KINDS = {make.__name__: make for make in (
    words, attention, lstm, gru, waves, angles, images, patches, normalised,
    long_table, counts, three_targets, categories, rare)}


def scores(kind: Kind, seed: int) -> dict[str, Any]:
  """Of Adam and of the posterior: NLL, and processor seconds."""
  order = np.random.RandomState(seed).permutation(len(kind.y))
  test, train = np.split(order, [round(kind.test * len(order))])

  def rows(index):
    x = tf.nest.map_structure(lambda array: array[index], kind.x)
    return (list(x) if isinstance(x, tuple) else x), kind.y[index]

  def fit(callbacks):
    keras.utils.set_random_seed(seed)
    model = kind.make_model()
    model.compile('adam', kind.make_loss())
    begin = time.process_time()
    model.fit(*rows(train), batch_size=kind.batch_size, epochs=kind.epochs,
              verbose=0, callbacks=callbacks)
    return model, round(time.process_time() - begin, 1)

  model, adam_seconds = fit([])
  adam = float(model.evaluate(*rows(test), verbose=0))
  sampling = sgmcmc.keras.PosteriorSampling(seed=seed)
  _, posterior_seconds = fit([sampling])
  return dict(
      adam=adam, posterior=sampling.posterior.evaluate(*rows(test))['nll'],
      num_chains=sampling.settings['num_chains'],
      steps_per_batch=sampling.settings['num_steps_per_batch'],
      num_steps=sampling.num_steps, adam_seconds=adam_seconds,
      posterior_seconds=posterior_seconds)


def report(lines: Sequence[dict[str, Any]]) -> str:
  """The means over seeds, in Markdown."""
  rows = [['kind', 'Adam', 'posterior', 'seeds', 'over Adam', 'chains',
           'steps a batch', 'steps', 'Adam, s', 'posterior, s']]
  rows.append(['---'] * len(rows[0]))
  for kind in KINDS:
    group = [line for line in lines if line['kind'] == kind]
    if not group:
      continue
    first = group[0]
    rows.append([
        kind, *(result_lines.cell([line[what] for line in group])
                for what in ('adam', 'posterior')), str(len(group)),
        str(sum(not line['posterior'] < line['adam'] for line in group)),
        *(str(first[what]) for what in (
            'num_chains', 'steps_per_batch', 'num_steps')),
        *(f'{np.median([line[what] for line in group]):.0f}'
          for what in ('adam_seconds', 'posterior_seconds'))])
  return (
      '# Other kinds of model by defaults\n\nNegative log likelihood of test '
      'rows, mean ± standard error over seeds. Over Adam: seeds where Adam was '
      'better. Seconds are of the processor, compilation included, the median '
      'over seeds. See `python -m benchmarks.kinds --help`.\n\n'
      f'{result_lines.table(rows)}\n')


def main(argv: Sequence[str] | None = None) -> int:
  parser = result_lines.parser('kinds', __doc__)
  parser.add_argument('--kinds', nargs='+', default=list(KINDS), choices=KINDS)
  parser.add_argument('--seeds', type=int, default=3)
  arguments = parser.parse_args(argv)
  path = result_lines.path(arguments, 'kinds')

  def run(name, seed):
    kind = KINDS[name]()
    if arguments.tiny:
      kind = kind._replace(
          x=tf.nest.map_structure(lambda array: array[:64], kind.x),
          y=kind.y[:64], epochs=6)
    keras.backend.clear_session()
    return scores(kind, seed)

  for seed in range(arguments.seeds):
    for name in arguments.kinds:
      line = result_lines.run_once(
          path, dict(kind=name, seed=seed, tiny=arguments.tiny),
          functools.partial(run, name, seed))
      if line is not None:
        print(f'{name} {seed}: Adam {line["adam"]:.3f}, posterior '
              f'{line["posterior"]:.3f}', flush=True)
  result_lines.write(path, report)
  return 0


if __name__ == '__main__':
  raise SystemExit(main())
