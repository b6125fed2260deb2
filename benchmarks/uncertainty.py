"""Uncertainty on real data: the posterior beside what else there is.

  python -m benchmarks.uncertainty --data FOLDER [--seeds 5] [--sets digits ...]
      [--tiny] [--output benchmarks/results]

`uncertainty_data.py` says what the data are, and how they are shifted. The
methods, all with E epochs and batches of 100 rows:

  Adam                  all training rows, E epochs
  Adam, stopped early   without a tenth of the rows, by whose NLL the best of E
                        epochs is chosen
  ensemble of 4         four Adams, 4 E epochs
  MC dropout            Adam with the network's own dropout, 0.2 after hidden
                        layers where it has none; 30 passes
  SGD, EMA              SGD with learning rate .1 and momentum .9; Keras'
                        moving average of the weights (use_ema=True)
  SGHMC, T = 0          PosteriorSampling(learning_rate=0.1, temperature=0.):
                        predictions averaged over 30 draws of descent with
                        momentum 0.9
  SGHMC, T = 1          PosteriorSampling(learning_rate=0.1)
  T = 0                 PosteriorSampling(temperature=0.)
  T = 1                 PosteriorSampling()
  T chosen              PosteriorSampling(temperature='validation'), a tenth of
                        the rows for validation and not for training
  4 chains, T chosen    four of these, 4 E epochs

Each seed's scores of a method are a line of OUTPUT/uncertainty.jsonl; what is
there is not run again. OUTPUT/uncertainty.md, made of them, has means, standard
errors and targets. Probabilities below 1e-7 count as 1e-7, as in Keras.

What `PosteriorSampling` chooses by was found on rows left out of the training
rows: of the digits, of MNIST, and of other splits of Covertype and KOS. These
are random, so that such rows are test rows of other seeds here. The prior of
wide kernels was looked for after results on KOS' test rows had been seen.
"""

import argparse
from collections.abc import Callable
from collections.abc import Sequence
import json
import pathlib
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks import result_lines
from benchmarks import uncertainty_data as data
import tfp_sgmcmc as sgmcmc

BATCH_SIZE, NUM_MEMBERS, NUM_PASSES = 100, 4, 30
Predict = Callable[[np.ndarray], np.ndarray]
Found = dict[str, tuple[Predict, dict[str, Any]]]


def fit(
    task: data.Task, seed: int, *, optimizer: Any = 'adam', rate: float = 0.,
    validates: bool = False, callback: Any = None) -> keras.Model:
  """A network, fitted."""
  keras.utils.set_random_seed(seed)
  model = keras.Sequential(
      [keras.Input(task.train[0].shape[1:]), *task.make_layers(rate)])
  model.compile(
      optimizer, 'sparse_categorical_crossentropy', metrics=['accuracy'])
  x, y = task.train
  held_out = len(x) // 10 if validates else 0
  tensors = tf.constant(x[held_out:]), tf.constant(y[held_out:])
  rows = tf.data.Dataset.range(len(x) - held_out).shuffle(
      len(x), seed=seed).batch(BATCH_SIZE)
  model.fit(
      rows.map(lambda k: tuple(tf.gather(t, k) for t in tensors)),
      epochs=task.epochs, verbose=0, callbacks=[callback] if callback else None,
      validation_data=(
          (x[:held_out], y[:held_out]) if validates else None),
      validation_batch_size=1000)
  return model


def adam(task: data.Task, seed: int) -> Found:
  models = [fit(task, 100 * seed + k) for k in range(NUM_MEMBERS)]
  predicts = [plain(model) for model in models]
  found = {'Adam': (predicts[0], {}), 'ensemble of 4': (pooled(predicts), {})}
  if task.has_dropout:
    found['MC dropout'] = dropped(models[0]), {}
  return found


def mc_dropout(task: data.Task, seed: int) -> Found:
  model = fit(task, 100 * seed, rate=0.2)
  return {'MC dropout': (dropped(model), {})}


def stopped_early(task: data.Task, seed: int) -> Found:
  best = keras.callbacks.EarlyStopping(
      patience=task.epochs, restore_best_weights=True)
  model = fit(task, 100 * seed, validates=True, callback=best)
  return {'Adam, stopped early': (
      plain(model), dict(best_epoch=int(best.best_epoch) + 1))}


def moving_average(task: data.Task, seed: int) -> Found:
  sgd = keras.optimizers.SGD(0.1, 0.9, use_ema=True)
  return {'SGD, EMA': (plain(fit(task, 100 * seed, optimizer=sgd)), {})}


def sampled(task: data.Task, seed: int, **arguments) -> tuple[Predict, dict]:
  sampling = sgmcmc.keras.PosteriorSampling(**arguments)
  fit(task, seed, callback=sampling,
      validates=arguments.get('temperature') == 'validation')
  posterior = sampling.posterior
  # A kernel that is given has a learning rate in place of a step size.
  settings = {
      name: sampling.settings[name]
      for name in ('temperature', 'step_size', 'learning_rate')
      if name in sampling.settings}
  return lambda x: posterior.predict(x, batch_size=500), dict(
      settings, draws=len(posterior), validation=sampling.validation_scores)


def at(name: str, **arguments: Any) -> Callable[[data.Task, int], Found]:
  return lambda task, seed: {name: sampled(task, 100 * seed, **arguments)}


def chosen(task: data.Task, seed: int) -> Found:
  chains = [sampled(task, 100 * seed + k, temperature='validation')
            for k in range(NUM_MEMBERS)]
  predicts, settings = zip(*chains)
  return {'T chosen': chains[0], '4 chains, T chosen': (pooled(predicts), dict(
      temperatures=[each['temperature'] for each in settings]))}


def plain(model: keras.Model) -> Predict:
  return lambda x: model.predict(x, batch_size=500, verbose=0)


def pooled(predicts: Sequence[Predict]) -> Predict:
  return lambda x: np.mean([predict(x) for predict in predicts], axis=0)


def dropped(model: keras.Model) -> Predict:
  """The mean over passes with dropout."""
  passes = tf.function(lambda x: tf.reduce_mean(tf.stack(
      [model(x, training=True) for _ in range(NUM_PASSES)]), axis=0))
  return lambda x: np.concatenate(
      [passes(x[k:k + 500]) for k in range(0, len(x), 500)])


def auroc(usual: np.ndarray, other: np.ndarray) -> float:
  """The share of pairs in which the other's value is the larger; ties half."""
  ordered = np.sort(usual)
  ranks = [np.searchsorted(ordered, other, side) for side in ('left', 'right')]
  return float(np.mean(ranks) / len(usual))


def score(predict: Predict, task: data.Task) -> dict[str, Any]:
  """All scores of a method."""
  def probabilities(x):
    p = np.clip(np.asarray(predict(x), np.float64), 1e-7, 1.)
    return p / p.sum(axis=1, keepdims=True)

  def entropy(p):
    return -np.sum(p * np.log(p), axis=1)

  found = {kind: probabilities(x) for kind, (x, _) in task.tests.items()}
  return dict(
      scores={kind: {name: float(function(p, task.tests[kind][1]))
                     for name, function in SCORES.items()}
              for kind, p in found.items()},
      auroc=auroc(*map(
          entropy, (found[data.USUAL], probabilities(task.others)))))


SCORES = {
    'accuracy': sgmcmc.diagnostics.accuracy,
    'NLL': sgmcmc.diagnostics.negative_log_likelihood,
    'Brier': sgmcmc.diagnostics.brier_score,
    'ECE': sgmcmc.diagnostics.expected_calibration_error}
# What is fitted together, and the methods that come of it.
FITS = (
    (adam, ('Adam', 'ensemble of 4')),
    (stopped_early, ('Adam, stopped early',)),
    (mc_dropout, ('MC dropout',)),
    (moving_average, ('SGD, EMA',)),
    *((at(name, **arguments), (name,)) for name, arguments in {
        'SGHMC, T = 0': dict(learning_rate=0.1, temperature=0.),
        'SGHMC, T = 1': dict(learning_rate=0.1),
        'T = 0': dict(temperature=0.), 'T = 1': {}}.items()),
    (chosen, ('T chosen', '4 chains, T chosen')),
)
METHODS = tuple(name for _, names in FITS for name in names)


def run(arguments: argparse.Namespace, path: pathlib.Path) -> None:
  """Fits and scores what is not in the file yet."""
  for name in arguments.sets:
    for seed in range(1, arguments.seeds + 1):
      there = {r['method'] for r in result_lines.read(path)
               if (r['set'], r['seed']) == (name, seed)}
      if there >= set(METHODS):
        continue
      task = data.SETS[name](arguments.data, seed)
      task = data.shrink(task) if arguments.tiny else task
      for function, methods in FITS:
        if there >= set(methods):
          continue
        keras.backend.clear_session()
        begin = time.monotonic()
        for method, (predict, about) in function(task, seed).items():
          if method in there:
            continue
          seconds = time.monotonic() - begin
          line = dict(
              set=name, method=method, seed=seed, epochs=task.epochs,
              num_train=len(task.train[0]), **score(predict, task), **about,
              seconds=round(seconds, 1))
          with path.open('a') as file:
            file.write(json.dumps(line) + '\n')
          there.add(method)
          nll = line['scores'][data.USUAL]['NLL']
          print(f'{name} {seed} {method}: NLL {nll:.4f}, {seconds:.0f} s',
                flush=True)


def report(lines: Sequence[dict[str, Any]]) -> str:
  """All rows, and what was reached, in Markdown."""
  grid = {name: {} for name in data.SETS
          if any(line['set'] == name for line in lines)}
  for line in lines:
    grid[line['set']].setdefault(line['method'], {})[line['seed']] = line
  parts = ['# Uncertainty on real data\n\n`python -m benchmarks.uncertainty` '
           'says what was run, and by what rows defaults were chosen. Means '
           'over seeds, and their standard errors; comparisons are by pairs of '
           'the same seed.']
  for name, methods in grid.items():
    first = next(iter(next(iter(methods.values())).values()))
    shifts = [kind for kind in first['scores'] if kind != data.USUAL]
    head = ['', *SCORES, *(f'NLL, {kind}' for kind in shifts), 'AUROC', 'seeds']
    rows = [head, ['---'] * len(head)]
    for method in METHODS:
      runs = list(methods.get(method, {}).values())
      if runs:
        rows.append([method, *(
            result_lines.cell(
                [run['scores'][data.USUAL][score] for run in runs])
            for score in SCORES), *(
                result_lines.cell([run['scores'][kind]['NLL'] for run in runs])
                for kind in shifts),
            result_lines.cell([run['auroc'] for run in runs]), str(len(runs))])
    parts += [f'## {name}', f'{first["epochs"]} epochs, {first["num_train"]} '
              'rows (a tenth less where some are for validation)',
              result_lines.table(rows)]
  parts += ['## What was to be reached', targets(grid)]
  return '\n\n'.join(parts) + '\n'


def nll(line: dict[str, Any]) -> float:
  return line['scores'][data.USUAL]['NLL']


def shifted_nll(line: dict[str, Any]) -> float:
  return np.mean([
      scores['NLL'] for kind, scores in line['scores'].items()
      if kind != data.USUAL])


def accuracy(line: dict[str, Any]) -> float:
  return line['scores'][data.USUAL]['accuracy']


# (What, of each seed: by what, against which method, at most or at least.)
TARGETS = (
    ("NLL over Adam's", nll, 'Adam', np.divide, '≤', 0.95),
    ("accuracy less Adam's", accuracy, 'Adam', np.subtract, '≥', 0.),
    ("NLL of shifted data over Adam's", shifted_nll, 'Adam', np.divide,
     '≤', 0.7),
    ("NLL over the ensemble's", nll, 'ensemble of 4', np.divide, '≤', 1.05),
    ("4 chains' NLL over the ensemble's", nll, 'ensemble of 4', np.divide,
     '≤', 1.),
    ('NLL over that of Adam, stopped early', nll, 'Adam, stopped early',
     np.divide, '≤', 1.),
)


def targets(grid: dict[str, Any]) -> str:
  """What was reached, by the means over seeds of paired comparisons."""
  rows = [['', '', *grid], ['---'] * (2 + len(grid))]
  for what, of, against, compare, sign, limit in TARGETS:
    for method in (
        'T chosen', 'T = 0', 'T = 1', 'SGHMC, T = 0', 'SGHMC, T = 1',
        '4 chains, T chosen'):
      if ('4 chains' in what) != ('4 chains' in method):
        continue
      row = [f'{what} {sign} {limit:g}', method]
      for methods in grid.values():
        ours, theirs = methods.get(method, {}), methods.get(against, {})
        values = [compare(of(ours[seed]), of(theirs[seed]))
                  for seed in sorted(set(ours) & set(theirs))]
        if not values:
          row.append('not run')
          continue
        mean = np.mean(values)
        reached = mean <= limit if sign == '≤' else mean >= limit
        row.append(result_lines.cell(values) + (
            ', reached' if reached else ', not reached'))
      rows.append(row)
  return result_lines.table(rows)


def main(argv: Sequence[str] | None = None) -> int:
  parser = result_lines.parser(
      'uncertainty', f'{__doc__}\n{data.__doc__}')
  parser.add_argument('--data', type=pathlib.Path, required=True)
  parser.add_argument('--seeds', type=int, default=5)
  parser.add_argument(
      '--sets', nargs='+', default=list(data.SETS), choices=data.SETS)
  arguments = parser.parse_args(argv)
  path = result_lines.path(arguments, 'uncertainty')
  run(arguments, path)
  result_lines.write(path, report)
  return 0


if __name__ == '__main__':
  raise SystemExit(main())
