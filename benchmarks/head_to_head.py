"""All samplers with minibatches at equal gradients.

  python -m benchmarks.head_to_head [--problems gaussian ...]
      [--samplers SGLD ...] [--factors 0.25 1 ...] [--seeds 5] [--data FOLDER]
      [--tiny] [--output benchmarks/results]

  gaussian    20 coordinates, scales from 1 to 5, the mean of 1,000 rows from
              batches of 10: the noise of a gradient is 100 times the
              posterior's information; exact moments
  regression  20 coefficients and the scale of Student-t errors with 4 degrees
              of freedom, 10,000 rows, batches of 100; moments by long HMC
  logistic    10 coefficients of inputs with correlations up to 0.95, 10,000
              rows, batches of 100; likewise
  poisson     10 coefficients of counts with inputs of heavy tails (Student t
              with 4 degrees of freedom), 10,000 rows, batches of 100; likewise
  digits      the network of `benchmarks.reference_posteriors`, batches of 32;
              HMC's predictions (`reference_posteriors make` comes first)
  concrete, energy, a9a   likewise (need --data)
  airfoil     ten networks 5-16-16-16-16-2 from ten of Adam's, batches of 128;
              in place of an error the NLL of test rows (needs --data)

Each sampler has so many gradients of rows, in all chains together, half of them
for burn-in. The error of moments is the root mean square over coordinates of
(mean - exact mean) / sd and sd / exact sd - 1; that of predictions is their
total variation from HMC's. Step sizes are a quarter of, one, four and 16 times
what a rule gives: with C the largest variance of a coordinate of the gradient's
noise, or for a network the mean,

  SGLD and its kind   h = 0.1 / C             heat of 5%
  with a momentum     h = 0.1 / sqrt(C)       likewise, at friction 0.1 / h
  microcanonical      h = 0.1 sqrt(d / C)
  zig-zag, bouncy     h = 0.1 / sqrt(C)

pSMILE is the microcanonical kernel with `GradientVariance`, "MCLMC, all rows"
that of exact gradients, which finds its step and length, and "whitened" is the
posterior by `Posterior.whiten`, not of networks. The first seed has all
step sizes, the others the rule's and the one that was best at the first. The
table has the error by the rule, and the least, as means over seeds with their
standard errors. Samplers that find their step have one figure. A line of
OUTPUT/head_to_head.jsonl each.
"""

import argparse
from collections.abc import Callable
from collections.abc import Sequence
import functools
import pathlib
import time
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks import reference_posteriors
from benchmarks import result_lines
from benchmarks import stacked
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions

FACTORS = (0.25, 1., 4., 16.)
NUM_DRAWS = 200


class Problem(NamedTuple):
  """A posterior, and what a run is judged by.

  Attributes:
    posterior: `Posterior`.
    start: List of tensors, with an axis of chains.
    batch_size: Python `int`.
    num_gradients: How many rows' gradients all chains have together.
    noise: C.
    error: Callable of the states of draws at equal weights.
  """
  posterior: sgmcmc.Posterior
  start: list[tf.Tensor]
  batch_size: int
  num_gradients: int
  noise: float
  error: Callable[[Any], float]


class Sampler(NamedTuple):
  """A sampler, its step size by rule, and its gradients of rows a step.

  Attributes:
    make: Callable of a problem, a step size and the number of steps of burn-in.
    step_size: Callable of C and d; None if it is found.
    cost: Callable of a problem: rows a step and chain, over the batch size.
    prepare: Callable of a problem; returns that which is sampled.
  """
  make: Callable[[Problem, float, int], Any]
  step_size: Callable[[float, int], float] | None
  cost: Callable[[Problem], float] = lambda problem: 1.
  prepare: Callable[[Problem], Problem] = lambda problem: problem


def _uniform(problem):
  return sgmcmc.gradients.Uniform(problem.batch_size)


def overdamped(kernel: Callable[..., Any], **arguments: Any) -> Sampler:
  return Sampler(
      lambda problem, h, _: kernel(
          problem.posterior, h, gradient_estimator=_uniform(problem),
          **arguments),
      lambda noise, size: 0.1 / noise)


def with_momentum(kernel: Callable[..., Any], **arguments: Any) -> Sampler:
  """Where a friction or diffusion is needed it is 0.1 / h."""
  def make(problem, h, _):
    kinds = dict(gradient_estimator=_uniform(problem), **arguments)
    name = {
        sgmcmc.SGHMC: 'friction', sgmcmc.AMAGOLD: 'friction',
        sgmcmc.SGNHT: 'diffusion'}.get(kernel)
    if name is not None:
      kinds[name] = 0.1 / h
    return kernel(problem.posterior, h, **kinds)

  return Sampler(make, lambda noise, size: 0.1 / np.sqrt(noise))


def microcanonical(**arguments: Any) -> Sampler:
  return Sampler(
      lambda problem, h, _: sgmcmc.MicrocanonicalLangevin(
          problem.posterior, h, gradient_estimator=_uniform(problem),
          integrator='leapfrog', **arguments),
      lambda noise, size: 0.1 * np.sqrt(size / noise), lambda problem: 2.)


def whitened(problem: Problem) -> Problem:
  """The same in coordinates by the Hessian at the mode, of a state of one part.

  The passes for both are not counted: some 2% of the gradients.
  """
  start = problem.start[0]
  white = problem.posterior.whiten(problem.posterior.mode(start[0]))
  return problem._replace(
      posterior=white, start=[tf.random.stateless_normal(start.shape, [0, 0])],
      error=lambda states: problem.error(white.constrain(states)))


def _on_all_rows(problem, h, num_burnin_steps):
  del h
  return stacked.on_all_rows(problem.posterior, num_burnin_steps)


SELF_TUNING = Sampler(
    lambda problem, h, number: stacked.tuned(
        problem.posterior, problem.batch_size, number),
    None, lambda problem: 1.05)
SAMPLERS = {
    'SGLD': overdamped(sgmcmc.SGLD),
    'SGLRW': overdamped(sgmcmc.SGLRW),
    'Barker': overdamped(sgmcmc.StochasticBarker),
    'SGHMC': with_momentum(sgmcmc.SGHMC),
    'SGNHT': with_momentum(sgmcmc.SGNHT),
    'AMAGOLD': with_momentum(
        sgmcmc.AMAGOLD, num_leapfrog_steps=100)._replace(
            cost=lambda problem: 1. + problem.posterior.num_examples / (
                100 * problem.batch_size)),
    'MCLMC': microcanonical(),
    'pSMILE': microcanonical(
        preconditioner=sgmcmc.preconditioners.GradientVariance()),
    'MCLMC, all rows': Sampler(
        _on_all_rows, None, lambda problem: (
            2. * problem.posterior.num_examples / problem.batch_size)),
    'AdaptiveTime(SGHMC)': Sampler(
        lambda problem, h, _: sgmcmc.AdaptiveTime(
            sgmcmc.SGHMC(problem.posterior, h, 0.1 / h, integrator='baoab',
                         gradient_estimator=_uniform(problem)),
            max_factor=4.),
        lambda noise, size: 0.1 / np.sqrt(noise)),
    'zig-zag, split': with_momentum(sgmcmc.pdmp.SplitZigZag),
    'bouncy, split': with_momentum(
        sgmcmc.pdmp.SplitBouncyParticle),
    'ReplicaExchangeSGLD': Sampler(
        lambda problem, h, _: sgmcmc.ReplicaExchangeSGLD(
            problem.posterior, h, temperature_ratios=(1., 1.5),
            gradient_estimator=_uniform(problem)),
        lambda noise, size: 0.1 / noise, lambda problem: 2.2),
    'SelfTuning(SGNHT)': SELF_TUNING,
    'SelfTuning(SGNHT), whitened': SELF_TUNING._replace(prepare=whitened),
}


def moments(
    means: np.ndarray, scales: np.ndarray) -> Callable[[tf.Tensor], float]:
  """The error of the first two moments, of a state of one part."""
  def error(states):
    rows = np.reshape(states, [-1, len(means)]).astype(np.float64)
    return float(np.sqrt(np.mean(np.square(np.concatenate([
        (np.mean(rows, axis=0) - means) / scales,
        np.std(rows, axis=0) / scales - 1.])))))

  return error


def gaussian(arguments: argparse.Namespace) -> Problem:
  num_chains, num, scales = 20, 1000, np.linspace(1., 5., 20)
  x = np.random.default_rng(0).normal(size=[num, 20]) * scales
  variances = 1. / (num / scales**2 + 1. / 100.)
  means = variances * np.sum(x, axis=0) / scales**2
  posterior = sgmcmc.Posterior(
      lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1) / 100.,
      lambda theta, x: -0.5 * tf.reduce_sum(
          tf.square((x - theta[..., tf.newaxis, :]) / np.float32(scales)), -1),
      np.float32(x))
  start = np.random.default_rng(1).normal(
      means, np.sqrt(variances), [num_chains, 20])
  return _problem(
      arguments, posterior, [tf.constant(start, tf.float32)], 10, 10_000_000,
      moments(means, np.sqrt(variances)), np.max)


def regression(arguments: argparse.Namespace) -> Problem:
  """State: coefficients and the logarithm of the scale."""
  num = 10_000
  rng = np.random.default_rng(0)
  x = rng.normal(size=[num, 20]) * np.geomspace(0.3, 1., 20)
  theta = rng.normal(size=20)
  y = x @ theta + 0.7 * rng.standard_t(4., num)

  def distribution(theta, x):
    location = tf.einsum('...nd,...d->...n', x, theta[..., :20])
    return tfd.StudentT(4., location, tf.exp(theta[..., 20:]))

  return _regression(
      arguments, x, y, distribution, np.append(theta, np.log(0.7)))


def logistic(arguments: argparse.Namespace) -> Problem:
  """Neighbouring inputs have a correlation of 0.95."""
  num, correlation = 10_000, 0.95
  rng = np.random.default_rng(0)
  x = rng.normal(size=[num, 10])
  for k in range(1, 10):
    x[:, k] = correlation * x[:, k - 1] + np.sqrt(1. - correlation**2) * x[:, k]
  theta = rng.normal(size=10)
  y = rng.uniform(size=num) < 1. / (1. + np.exp(-x @ theta))
  return _regression(
      arguments, x, y, lambda theta, x: tfd.Bernoulli(
          tf.einsum('...nd,...d->...n', x, theta)), theta)


def poisson(arguments: argparse.Namespace) -> Problem:
  """Some inputs, and so some gradients, are far from the others."""
  num = 10_000
  rng = np.random.default_rng(0)
  x = 0.3 * rng.standard_t(4., size=[num, 10])
  theta = 0.5 * rng.normal(size=10)
  y = rng.poisson(np.exp(x @ theta))
  return _regression(
      arguments, x, y, lambda theta, x: tfd.Poisson(
          log_rate=tf.einsum('...nd,...d->...n', x, theta)), theta)


def _regression(arguments, x, y, distribution, theta):
  """A problem with a standard normal prior, and moments by HMC."""
  num_chains, size = 20, len(theta)
  posterior = sgmcmc.Posterior(
      lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1),
      lambda theta, batch: distribution(theta, batch[0]).log_prob(batch[1]),
      (np.float32(x), np.float32(y)))
  start = theta + 0.01 * np.random.default_rng(1).normal(
      size=[num_chains, size])

  @tf.function(jit_compile=True)
  def hmc():
    kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
        tfp.mcmc.HamiltonianMonteCarlo(
            posterior, step_size=0.005, num_leapfrog_steps=20), 200)
    return tfp.mcmc.sample_chain(
        50 if arguments.tiny else 500, tf.constant(start, tf.float32),
        kernel=kernel, num_burnin_steps=300, seed=[0, 0], trace_fn=None)

  exact = np.reshape(hmc(), [-1, size]).astype(np.float64)
  return _problem(
      arguments, posterior, [tf.constant(exact[-num_chains:], tf.float32)],
      100, 10_000_000, moments(np.mean(exact, axis=0), np.std(exact, axis=0)),
      np.max)


def network(name: str, arguments: argparse.Namespace) -> Problem:
  """Of `reference_posteriors`, judged by HMC's predictions."""
  reference = reference_posteriors.SETS[name]
  table = reference.table(arguments.data)
  x, y, x_test, _ = reference_posteriors.arrays(table)
  perceptron = reference_posteriors.perceptron(reference, table)
  with np.load(arguments.output / 'reference' / f'{name}.npz') as kept:
    wanted = np.float64(kept['predictive'])

  def error(states):
    found = reference_posteriors.predictive(perceptron, states, x_test)
    return reference_posteriors.distance(
        np.mean(found, axis=0), wanted, perceptron)

  return _problem(
      arguments, perceptron.posterior(x, y), perceptron.by_adam(x, y, 4, 0), 32,
      400 * len(x), error, np.mean)


def airfoil(arguments: argparse.Namespace) -> Problem:
  reference = reference_posteriors.SETS['airfoil']
  table = reference.table(arguments.data)
  x, y, x_test, y_test = reference_posteriors.arrays(table)
  network = reference_posteriors.perceptron(reference, table)

  def error(states):
    found = reference_posteriors.predictive(network, states, x_test)
    return reference_posteriors.nll(network, np.mean(found, axis=0), y_test)

  return _problem(
      arguments, network.posterior(x, y), network.by_adam(x, y, 10, 0), 128,
      10 * 500 * len(x), error, np.mean)


def _problem(
    arguments, posterior, start, batch_size, num_gradients, error, mean):
  variance = sgmcmc.gradients.Uniform(batch_size).variance(posterior, [
      part[0] for part in start])
  return Problem(
      posterior, start, batch_size,
      num_gradients // 1000 if arguments.tiny else num_gradients,
      float(mean(np.concatenate([np.ravel(v) for v in variance]))), error)


PROBLEMS = dict(
    gaussian=gaussian, regression=regression, logistic=logistic,
    poisson=poisson, **{
        name: functools.partial(network, name)
        for name in ('digits', 'concrete', 'energy', 'a9a')},
    airfoil=airfoil)


def run(
    problem: Problem, sampler: Sampler, factor: float | None, seed: int,
) -> float:
  """The error of a run; infinite where the chain is lost."""
  num_chains = len(problem.start[0])
  size = sum(int(np.prod(part.shape[1:])) for part in problem.start)
  num_steps = max(8, int(problem.num_gradients / (
      num_chains * problem.batch_size * sampler.cost(problem))))
  num_burnin_steps = num_steps // 2
  h = factor and factor * float(sampler.step_size(problem.noise, size))
  kernel = sampler.make(problem, h, num_burnin_steps)
  per_step = 100 if isinstance(kernel, sgmcmc.AMAGOLD) else 1
  num_burnin_steps //= per_step
  num_left = max(num_steps // per_step - num_burnin_steps, 2)
  num_draws = min(NUM_DRAWS, num_left)
  start = problem.start if len(problem.start) > 1 else problem.start[0]
  try:
    draws = sgmcmc.sample(
        kernel, num_draws, start, num_burnin_steps=num_burnin_steps,
        num_steps_between_results=num_left // num_draws - 1, trace_fn=None,
        seed=1 + seed, progress_bar=False)
  except sgmcmc.NonFiniteError:
    return float('inf')
  return problem.error(draws.resampled().states)


def errors(
    lines: Sequence[dict[str, Any]], problem: str, sampler: str,
) -> dict[float | None, list[float]]:
  """By factor of the step size, over seeds."""
  found = {}
  for line in lines:
    if (line['problem'], line['sampler']) == (problem, sampler):
      found.setdefault(line['factor'], []).append(line['error'])
  return found


def best(found: dict[float | None, list[float]]) -> float | None:
  """The factor with the least error at the first seed."""
  return min(found, key=lambda factor: found[factor][0])


def report(lines: Sequence[dict[str, Any]]) -> str:
  """A row for each sampler, in Markdown."""
  problems = list(dict.fromkeys(line['problem'] for line in lines))
  rows = [['sampler', *(
      f'{name}: {what}' for name in problems for what in ('rule', 'best'))]]
  rows.append(['---'] * len(rows[0]))
  for sampler in dict.fromkeys(line['sampler'] for line in lines):
    row = [sampler]
    for name in problems:
      found = errors(lines, name, sampler)
      row.append(_cell(found.get(1., found.get(None))))
      row.append(
          '' if None in found or not found
          else f'{_cell(found[best(found)])} ({best(found):g})')
    rows.append(row)
  seeds = 1 + max(line['seed'] for line in lines)
  return (
      '# Samplers at equal gradients\n\nError by the rule for the step size, '
      'and the least (in brackets the factor of the step size); mean ± '
      f'standard error over at most {seeds} seeds, one where no error is '
      'shown; the factor is chosen at the first. See '
      f'`python -m benchmarks.head_to_head --help`.\n\n'
      f'{result_lines.table(rows)}\n')


def _cell(values):
  if not values:
    return ''
  finite = [value for value in values if np.isfinite(value)]
  if not finite:
    return 'lost'
  cell = result_lines.cell(finite)
  lost = len(values) - len(finite)
  return f'{cell}, {lost} of {len(values)} lost' if lost else cell


def timed(*arguments: Any) -> dict[str, float]:
  """The error of `run`, and its processor seconds."""
  begin = time.process_time()
  error = run(*arguments)
  return dict(error=error, seconds=round(time.process_time() - begin, 1))


def main(argv: Sequence[str] | None = None) -> int:
  parser = result_lines.parser('head_to_head', __doc__)
  parser.add_argument(
      '--problems', nargs='+', default=list(PROBLEMS), choices=PROBLEMS)
  parser.add_argument(
      '--samplers', nargs='+', default=list(SAMPLERS), choices=SAMPLERS)
  parser.add_argument(
      '--factors', nargs='+', type=float, default=list(FACTORS))
  parser.add_argument('--seeds', type=int, default=5)
  parser.add_argument('--data', type=pathlib.Path)
  arguments = parser.parse_args(argv)
  path = result_lines.path(arguments, 'head_to_head')
  for name in arguments.problems:
    problem = PROBLEMS[name](arguments)
    for sampler in arguments.samplers:
      chosen = SAMPLERS[sampler]
      if chosen.prepare is whitened and len(problem.start) > 1:
        continue  # A network, which has too many coordinates.
      prepared = chosen.prepare(problem)
      for seed in range(arguments.seeds):
        factors = arguments.factors if chosen.step_size else [None]
        if seed:
          known = errors(result_lines.read(path), name, sampler)
          factors = [
              factor for factor in factors if factor in (1., best(known))]
        for factor in factors:
          key = dict(problem=name, sampler=sampler, factor=factor, seed=seed)
          line = result_lines.run_once(path, key, functools.partial(
              timed, prepared, chosen, factor, seed))
          if line is not None:
            print(line, flush=True)
  result_lines.write(path, report)
  return 0


if __name__ == '__main__':
  raise SystemExit(main())
