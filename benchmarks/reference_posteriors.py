"""Posteriors of small networks by long HMC, and how near to them runs come.

  python -m benchmarks.reference_posteriors make --data FOLDER
      [--sets digits energy ...] [--output FOLDER] [--tiny]
  python -m benchmarks.reference_posteriors compare --data FOLDER
      [--sets digits ...] [--methods fit ...] [--passes 100 1000] [--seeds 3]

`make` draws from the posterior of each network, T = 1 and N(0, 1) for each
weight, by HMC on all rows, and keeps the predictions of test rows in
OUTPUT/reference/SET.npz; some minutes to an hour each. Chains start from
networks by Adam; the first third adapts the step size and is dropped. The mass
of a weight is its information at the start, 1 + N times the variance of the
gradient of a row. a9a is its first 2,000 rows.

`compare` runs other methods for so many passes over the rows and measures the
distance of their predictions from HMC's: for classes the mean over test rows of
the total variation, sum |p - q| / 2, and the share of rows with the same most
probable class (Izmailov et al., ICML 2021; Wilson et al., 2022); for
regressions the total variation between the densities, on a grid. Two halves of
HMC's chains tell what the distance of a perfect run would be. A line of
OUTPUT/reference_posteriors.jsonl each; OUTPUT/reference_posteriors.md has means
over seeds.

  Adam      one network, stopped early
  ensemble  four of them, with a quarter of the passes each
  fit       `PosteriorSampling(num_more_rows=0)`, so that a pass has each row
            once; a fifth of the passes Adam's
  sample    four chains of `SelfTuning(SGNHT)`, a quarter of the passes each
  SGHMC     four chains by hand: learning rate 0.1 of a mean loss, momentum 0.97
  MCLMC     four chains on all rows, the step size by its energy error, and the
            decoherence length sqrt(d)
"""

import argparse
from collections.abc import Callable
from collections.abc import Sequence
import functools
import json
import math
import pathlib
import time
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks import result_lines
from benchmarks import stacked
from benchmarks import tables
from experiments import datasets
import tfp_sgmcmc as sgmcmc

NUM_CHAINS, NUM_DRAWS, BATCH_SIZE = 4, 100, 32
_GRID = np.linspace(-5., 5., 801)


class Reference(NamedTuple):
  """A network, and how HMC is to sample it.

  Attributes:
    table: Callable of the folder; returns a `tables.Table`.
    hidden: The hidden layers.
    num_transitions: Of HMC, those of the adaptation too.
    num_leapfrog_steps: Of each.
  """
  table: Callable[[pathlib.Path], tables.Table]
  hidden: Sequence[int]
  num_transitions: int
  num_leapfrog_steps: int


def digits(folder: pathlib.Path) -> tables.Table:
  """The quickstart's images."""
  del folder
  return tables.Table(*(
      part for images in sgmcmc.datasets.load_digits() for part in (
          np.reshape(images.images, [-1, 64]) / 16., images.labels)))


def a9a(folder: pathlib.Path) -> tables.Table:
  train, test = datasets.load_a9a(folder / 'a9a')
  train = type(train)(*(values[:2000] for values in train))
  return tables.Table(*(
      part for rows in (train, test)
      for part in (rows.features, np.int32(rows.labels > 0))))


SETS = {
    'digits': Reference(digits, [100], 450, 120),
    'concrete': Reference(lambda folder: tables.uci('concrete')(folder, 0),
                          [50], 1500, 240),
    'energy': Reference(lambda folder: tables.uci('energy')(folder, 0), [50],
                        1500, 1000),
    'airfoil': Reference(lambda folder: tables.airfoil(folder, 0),
                         [16, 16, 16, 16], 3000, 120),
    'a9a': Reference(a9a, [50], 450, 120),
    # Of `benchmarks.tables`, where Adam was better.
    'digits_50': Reference(lambda folder: tables.digits(folder, 0), [50], 450,
                           120),
    'digits_50_50': Reference(lambda folder: tables.digits(folder, 0),
                              [50, 50], 450, 120),
    'yacht_9': Reference(lambda folder: tables.uci('yacht')(folder, 9), [50],
                         1500, 240),
}


def arrays(table: tables.Table) -> tuple[np.ndarray, ...]:
  """x, y and those of the test, as the networks take them."""
  targets = [
      np.int32(y) if table.num_classes else np.float32(y[:, 0])
      for y in (table.y, table.y_test)]
  return np.float32(table.x), targets[0], np.float32(table.x_test), targets[1]


def perceptron(reference: Reference, table: tables.Table) -> stacked.Perceptron:
  classes = table.num_classes
  return stacked.Perceptron(
      [table.x.shape[1], *reference.hidden, classes or 2], bool(classes))


def predictive(
    network: stacked.Perceptron, weights: Sequence[tf.Tensor], x: np.ndarray,
) -> np.ndarray:
  """By chain, `[chain, n, class]`, or a density `[chain, n, point]`.

  Args:
    network: The network.
    weights: Draws `[draw, chain, ...]`.
    x: Rows.

  Returns:
    probabilities: The mean over draws.
  """
  @tf.function
  def one(weights):
    found = network.distribution(weights, tf.constant(x))
    if network.is_classifier:
      return found.probs_parameter()
    return found[..., tf.newaxis].prob(tf.constant(_GRID, tf.float32))

  draws = list(zip(*weights))
  return sum(one(list(draw)).numpy() for draw in draws) / len(draws)


def by_hmc(
    network: stacked.Perceptron, reference: Reference, x: np.ndarray,
    y: np.ndarray) -> tuple[list[tf.Tensor], dict[str, float]]:
  """Draws `[draw, chain, ...]`, and what tells of their quality."""
  posterior = network.posterior(x, y)
  start = network.by_adam(x, y, NUM_CHAINS, 0)
  scales = scales_of(posterior, start)
  num_burnin_steps = reference.num_transitions // 3
  kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
      tfp.mcmc.HamiltonianMonteCarlo(
          lambda *parts: posterior(*(s * x for s, x in zip(scales, parts))),
          step_size=0.01, num_leapfrog_steps=reference.num_leapfrog_steps),
      num_adaptation_steps=int(0.8 * num_burnin_steps),
      target_accept_prob=0.8)

  @tf.function(jit_compile=True)
  def run(start):
    return tfp.mcmc.sample_chain(
        reference.num_transitions - num_burnin_steps, start, kernel=kernel,
        num_burnin_steps=num_burnin_steps, seed=[0, 1],
        trace_fn=lambda _, results: (
            results.inner_results.is_accepted, results.new_step_size))

  states, (is_accepted, step_size) = run(
      [x / s for x, s in zip(start, scales)])
  return [s * x for s, x in zip(scales, states)], dict(
      accepted=float(tf.reduce_mean(tf.cast(is_accepted, tf.float32))),
      step_size=float(tf.reshape(step_size, [-1])[-1]))


def scales_of(
    posterior: sgmcmc.Posterior, start: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
  """(1 + information)^(-1/2) by weight, the mean over the chains' starts."""
  estimator = sgmcmc.gradients.Uniform(1, replacement=True)
  each = [
      estimator.variance(posterior, [part[k] for part in start])
      for k in range(len(start[0]))]
  return [
      tf.math.rsqrt(1. + sum(v) / len(v) / posterior.num_examples)
      for v in zip(*each)]


def make(arguments: argparse.Namespace) -> None:
  """HMC for each set, and its predictions on disk."""
  (arguments.output / 'reference').mkdir(parents=True, exist_ok=True)
  for name in arguments.sets:
    path = arguments.output / 'reference' / f'{name}.npz'
    if path.exists():
      continue
    reference, table = load(name, arguments)
    x, y, x_test, y_test = arrays(table)
    network = perceptron(reference, table)
    begin = time.process_time()
    weights, about = by_hmc(network, reference, x, y)
    each = predictive(network, weights, x_test)
    about.update(
        seconds=round(time.process_time() - begin),
        nll=nll(network, np.mean(each, axis=0), y_test),
        halves=distance(
            np.mean(each[::2], axis=0), np.mean(each[1::2], axis=0), network))
    np.savez_compressed(
        path, predictive=np.float16(np.mean(each, axis=0)),
        about=json.dumps(about))
    print(name, about, flush=True)


def load(
    name: str, arguments: argparse.Namespace,
) -> tuple[Reference, tables.Table]:
  reference = SETS[name]
  table = reference.table(arguments.data)
  if arguments.tiny:
    table = tables.Table(*(values[:64] for values in table))
    reference = reference._replace(num_transitions=12, num_leapfrog_steps=4)
  return reference, table


def distance(
    p: np.ndarray, q: np.ndarray, network: stacked.Perceptron) -> float:
  """The mean over rows of the total variation."""
  width = 1. if network.is_classifier else _GRID[1] - _GRID[0]
  return float(np.mean(np.sum(np.abs(p - q), axis=-1)) * width / 2.)


def nll(
    network: stacked.Perceptron, probabilities: np.ndarray, y: np.ndarray,
) -> float:
  """Of the mean over draws; a density is interpolated on the grid."""
  if network.is_classifier:
    chosen = probabilities[np.arange(len(y)), y]
  else:
    chosen = np.array([
        np.interp(at, _GRID, row) for at, row in zip(y, probabilities)])
  return float(-np.mean(np.log(np.maximum(chosen, 1e-30))))


def by_fit(
    network: stacked.Perceptron, x: np.ndarray, y: np.ndarray,
    x_test: np.ndarray, passes: int, seed: int) -> np.ndarray:
  """`PosteriorSampling(num_more_rows=0)` in a fit."""
  keras.utils.set_random_seed(seed)
  *hidden, last = network.sizes[1:]
  model = keras.Sequential([
      keras.Input(x.shape[1:]),
      *(keras.layers.Dense(units, activation='relu') for units in hidden),
      keras.layers.Dense(last)])
  model.compile('adam', keras.losses.SparseCategoricalCrossentropy(
      from_logits=True) if network.is_classifier
                else sgmcmc.keras.GaussianLikelihood())
  sampling = sgmcmc.keras.PosteriorSampling(
      prior=tfp.distributions.Normal(0., 1.), num_more_rows=0, seed=seed)
  model.fit(
      x, y if network.is_classifier else y[:, np.newaxis], epochs=passes,
      batch_size=BATCH_SIZE, verbose=0, callbacks=[sampling])
  weights = [
      np.stack(w)[:, np.newaxis] for w in zip(*sampling.posterior)]
  return predictive(network, weights, x_test)[0]


def run(
    method: str, network: stacked.Perceptron, x: np.ndarray, y: np.ndarray,
    x_test: np.ndarray, passes: int, seed: int) -> np.ndarray:
  """Predictions of a method, `[n, class]` or `[n, point]`."""
  if method == 'fit':
    return by_fit(network, x, y, x_test, passes, seed)
  num = 1 if method == 'Adam' else NUM_CHAINS
  start = network.by_adam(x, y, num, seed)
  if method in ('Adam', 'ensemble'):
    return np.mean(
        predictive(network, [w[tf.newaxis] for w in start], x_test), axis=0)
  posterior, size = network.posterior(x, y), len(x)
  if method == 'MCLMC':
    num_steps = passes // (2 * NUM_CHAINS)  # Of two gradients each.
    kernel = stacked.on_all_rows(
        posterior, num_steps // 2, step_size=0.01,
        decoherence_length=math.sqrt(
            sum(math.prod(w.shape[1:]) for w in start)))
  else:
    num_steps = passes * size // (NUM_CHAINS * BATCH_SIZE)
    if method == 'sample':
      kernel = stacked.tuned(posterior, BATCH_SIZE, num_steps // 2)
    else:
      step_size = math.sqrt(0.1 / size)
      kernel = sgmcmc.SGHMC(
          posterior, step_size, 0.03 / step_size,
          gradient_estimator=sgmcmc.gradients.Uniform(BATCH_SIZE))
  num_draws = min(NUM_DRAWS, num_steps - num_steps // 2)
  draws = sgmcmc.sample(
      kernel, num_draws, start, num_burnin_steps=num_steps // 2,
      num_steps_between_results=(num_steps - num_steps // 2) // num_draws - 1,
      trace_fn=None, seed=seed, progress_bar=False)
  return np.mean(predictive(network, draws.states, x_test), axis=0)


METHODS = ('Adam', 'ensemble', 'fit', 'sample', 'SGHMC', 'MCLMC')


def compare(arguments: argparse.Namespace) -> None:
  """Distances of all methods, on disk."""
  path = arguments.output / 'reference_posteriors.jsonl'

  def scored(method, passes, seed):
    begin = time.process_time()
    try:
      found = run(method, network, x, y, x_test, passes, seed)
    except (sgmcmc.NonFiniteError, ValueError) as error:
      print(f'{name}, {method}, {passes}, {seed}: {error}', flush=True)
      scores = dict(failed=True)
    else:
      scores = dict(
          distance=distance(found, wanted, network),
          agreement=float(np.mean(
              np.argmax(found, axis=-1) == np.argmax(wanted, axis=-1))),
          nll=nll(network, found, y_test))
    return {**scores, 'hmc': about,
            'seconds': round(time.process_time() - begin, 1)}

  for name in arguments.sets:
    reference, table = load(name, arguments)
    network = perceptron(reference, table)
    x, y, x_test, y_test = arrays(table)
    with np.load(arguments.output / 'reference' / f'{name}.npz') as kept:
      wanted = np.float64(kept['predictive'])
      about = json.loads(str(kept['about']))
    for method in arguments.methods:
      of_adam = method in ('Adam', 'ensemble')
      for passes in [0] if of_adam else arguments.passes:
        for seed in range(arguments.seeds):
          key = dict(set=name, method=method, passes=passes, seed=seed)
          line = result_lines.run_once(
              path, key, functools.partial(scored, method, passes, seed))
          if line is not None:
            print({k: v for k, v in line.items() if k != 'hmc'}, flush=True)
  result_lines.write(path, report)


def report(lines: Sequence[dict[str, Any]]) -> str:
  """The means over seeds, in Markdown."""
  groups = {}
  for line in lines:
    groups.setdefault(
        (line['set'], line['passes'], line['method']), []).append(line)
  rows = [['network', 'method', 'passes', 'seeds', 'distance', 'same class',
           'NLL', "HMC's NLL", "HMC's halves", 'processor s']]
  rows.append(['---'] * len(rows[0]))
  for (name, passes, method), group in groups.items():
    done = [line for line in group if not line.get('failed')]
    hmc = group[0]['hmc']
    rows.append([
        name, method, f'{passes:,}' if passes else 'stopped early',
        f'{len(done)} of {len(group)}' if len(done) < len(group)
        else str(len(group)),
        *(result_lines.cell([line[what] for line in done]) if done else 'lost'
          for what in ('distance', 'agreement', 'nll')),
        f'{hmc["nll"]:.3f}', f'{hmc["halves"]:.3f}',
        f'{np.median([line["seconds"] for line in group]):.0f}'])
  return (
      '# Distance from the posterior\n\nMean ± standard error over seeds; see '
      '`python -m benchmarks.reference_posteriors --help`.\n\n'
      f'{result_lines.table(rows)}\n')


def main(argv: Sequence[str] | None = None) -> int:
  parser = result_lines.parser('reference_posteriors', __doc__)
  parser.add_argument('task', choices=('make', 'compare'))
  parser.add_argument('--data', type=pathlib.Path, required=True)
  parser.add_argument('--sets', nargs='+', default=list(SETS), choices=SETS)
  parser.add_argument(
      '--methods', nargs='+', default=METHODS, choices=METHODS)
  parser.add_argument('--passes', type=int, nargs='+', default=[100, 1000])
  parser.add_argument('--seeds', type=int, default=3)
  arguments = parser.parse_args(argv)
  (make if arguments.task == 'make' else compare)(arguments)
  return 0


if __name__ == '__main__':
  raise SystemExit(main())
