"""A posterior distilled to one network, beside it and beside Adam.

  python -m benchmarks.distillation --data FOLDER [--sets airfoil ...]
      [--seeds 3] [--tiny] [--output benchmarks/results]

One network, fitted in four ways:

  Adam                 to the targets
  posterior            `PosteriorSampling(num_more_rows=0)`, by as many steps:
                       its draws
  student              taught what these say of the training inputs
  student, perturbed   and of two copies of each, with normal noise whose
                       standard deviation is uniform in [0, 1] for each row (of
                       images in [0, 0.5]); by three times as many steps

Students have a second output, for what the draws disagree about. All but
airfoil are those of `benchmarks.uncertainty`, whose networks, epochs and shifts
they have; students have no dropout. Airfoil has a perceptron of two hidden
layers of 50 units with a mean and a scale, 300 epochs, batches of 100, and a
fifth of its rows for the test; its students have two targets an input, and take
twice the steps. Of the shifts, noise is of the perturbation's
kind, and the others are not. AUROC is the share of pairs of a row like the
training data, and of one of no class, or place, that was trained on, that are
told by the mutual information, of students by their second output.

Each seed is a line of OUTPUT/distillation.jsonl, and is not run again;
OUTPUT/distillation.md has the means over seeds.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import pathlib
from typing import Any
from typing import NamedTuple

import keras
import numpy as np

from benchmarks import result_lines
from benchmarks import tables
from benchmarks import uncertainty
from benchmarks import uncertainty_data
import tfp_sgmcmc as sgmcmc

BATCH_SIZE, NUM_COPIES, AIRFOIL_EPOCHS = 100, 2, 300
PREDICT_SIZE = 500
USUAL = uncertainty_data.USUAL
Arrays = uncertainty_data.Arrays


class Case(NamedTuple):
  """Data, and what a network of them is.

  Attributes:
    epochs: Those of Adam and of the posterior.
    make_layers: Callable that returns the layers.
    loss: The likelihood.
    train: Inputs and targets.
    tests: Such pairs by name; the first is like the training data.
    others: Inputs of no class, or place, that was trained on; None for none.
    most_noise: The largest standard deviation of the perturbation.
  """
  epochs: int
  make_layers: Callable[[], list[keras.Layer]]
  loss: keras.losses.Loss
  train: Arrays
  tests: dict[str, Arrays]
  others: np.ndarray | None
  most_noise: float


def airfoil(folder: pathlib.Path, seed: int) -> Case:
  table = tables.airfoil(folder, seed)
  rng = np.random.default_rng(seed)
  x = table.x_test
  noisy = x + 0.5 * rng.normal(size=x.shape)
  missing = x * (rng.permuted(np.tile(np.arange(x.shape[1]), [len(x), 1]),
                              axis=1) > 0)
  return Case(
      AIRFOIL_EPOCHS,
      lambda: [keras.layers.Dense(50, 'relu'), keras.layers.Dense(50, 'relu'),
               keras.layers.Dense(2)],
      sgmcmc.keras.GaussianLikelihood(), (table.x, table.y),
      {USUAL: (x, table.y_test), 'noise of 0.5': (noisy, table.y_test),
       'one of five missing': (missing, table.y_test)}, None, 1.)


def classes(name: str, most_noise: float) -> Callable[..., Case]:
  def load(folder, seed):
    task = uncertainty_data.SETS[name](folder, seed)
    return Case(
        task.epochs, lambda: task.make_layers(0.),
        keras.losses.SparseCategoricalCrossentropy(), task.train, task.tests,
        task.others, most_noise)
  return load


SETS = {
    'airfoil': airfoil, 'covertype': classes('covertype', 1.),
    'digits': classes('digits', 0.5), 'mnist': classes('mnist', 0.5)}


def network(case: Case, seed: int, is_student: bool = False) -> keras.Model:
  """A network with random weights; of a student, with a second output."""
  keras.utils.set_random_seed(seed)
  inputs = keras.Input(case.train[0].shape[1:])
  layers = case.make_layers()
  if is_student:
    layers = [
        a for a in layers if not isinstance(a, keras.layers.Dropout)]
  body = inputs
  for layer in layers[:-1]:
    body = layer(body)
  outputs = layers[-1](body)
  if not is_student:
    return keras.Model(inputs, outputs)
  return keras.Model(
      inputs, [outputs, keras.layers.Dense(1, 'softplus')(body)])


def perturbed(x: np.ndarray, most: float, seed: int) -> np.ndarray:
  """Rows, and copies with noise."""
  rng = np.random.default_rng(seed)
  parts = [x]
  for _ in range(NUM_COPIES):
    scale = rng.uniform(0., most, [len(x), *[1] * (x.ndim - 1)])
    parts.append(x + scale * rng.normal(size=x.shape))
  return np.concatenate(parts).astype(np.float32)


def one_draw(model: keras.Model, loss: keras.losses.Loss) -> Any:
  """The first output of a network, as a posterior of one draw."""
  single = keras.Model(model.inputs, model.outputs[0])
  single.compile(loss=loss)
  return sgmcmc.keras.PosteriorSamples.from_arrays(
      single, [v.numpy()[np.newaxis] for v in single.trainable_variables])


def run(case: Case, seed: int) -> dict[str, dict[str, float]]:
  """The scores of each method by the names of the tests."""
  x, y = case.train
  found, told = {}, {}
  fitted = []
  for callbacks in ([], [sgmcmc.keras.PosteriorSampling(
      num_more_rows=0, seed=seed)]):
    model = network(case, seed)
    model.compile('adam', case.loss)
    model.fit(x, y, batch_size=BATCH_SIZE, epochs=case.epochs, verbose=0,
              callbacks=callbacks)
    fitted.append(callbacks[0].posterior if callbacks else one_draw(
        model, case.loss))
  found['Adam'], found['posterior'] = fitted
  posterior = found['posterior']
  told['posterior'] = lambda rows: posterior.uncertainty(
      rows, batch_size=PREDICT_SIZE).epistemic
  for name, inputs in (
      ('student', x),
      ('student, perturbed', perturbed(x, case.most_noise, seed))):
    student = network(case, seed, is_student=True)
    posterior.distill(
        student, inputs, epochs=case.epochs, batch_size=BATCH_SIZE, verbose=0)
    found[name] = one_draw(student, case.loss)
    told[name] = lambda rows, student=student: student.predict(
        rows, verbose=0)[1][:, 0]
  scores = {
      name: {test: of.evaluate(*pair, batch_size=PREDICT_SIZE)['nll']
             for test, pair in case.tests.items()}
      for name, of in found.items()}
  if case.others is not None:
    for name, tell in told.items():
      scores[name]['AUROC'] = uncertainty.auroc(
          tell(case.tests[USUAL][0]), tell(case.others))
  return scores


def report(lines: Sequence[dict[str, Any]]) -> str:
  """The means over seeds, in Markdown."""
  parts = []
  for name in dict.fromkeys(line['set'] for line in lines):
    group = [line['scores'] for line in lines if line['set'] == name]
    columns = list(group[0]['posterior'])
    rows = [[name, *(
        'NLL' if c == USUAL else c if c == 'AUROC' else f'NLL, {c}'
        for c in columns)]]
    rows.append(['---'] * len(rows[0]))
    for method in group[0]:
      rows.append([method, *(
          result_lines.cell([scores[method][c] for scores in group])
          if c in group[0][method] else '' for c in columns)])
    parts.append(f'{result_lines.table(rows)}\n\nSeeds: {len(group)}.\n')
  return (
      'Test rows, mean ± standard error over seeds (`python -m '
      'benchmarks.distillation`):\n\n' + '\n'.join(parts))


def main(argv: Sequence[str] | None = None) -> int:
  parser = result_lines.parser('distillation', __doc__)
  parser.add_argument('--data', type=pathlib.Path, required=True)
  parser.add_argument('--sets', nargs='+', default=list(SETS), choices=SETS)
  parser.add_argument('--seeds', type=int, default=3)
  arguments = parser.parse_args(argv)
  path = result_lines.path(arguments, 'distillation')

  def found(name, seed):
    case = SETS[name](arguments.data, seed)
    if arguments.tiny:
      case = case._replace(
          epochs=10, train=tuple(a[:300] for a in case.train))
    return dict(scores=run(case, seed))

  for name in arguments.sets:
    for seed in range(1, arguments.seeds + 1):
      line = result_lines.run_once(
          path, dict(set=name, seed=seed), functools.partial(found, name, seed))
      if line is not None:
        print(name, seed, line['scores'], flush=True)
  result_lines.write(path, report)
  return 0


if __name__ == '__main__':
  raise SystemExit(main())
