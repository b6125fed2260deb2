"""What the comparisons of SGHMC and SGNHT share.

`compare` is of the SGNHT paper's Figure 3: both run at the same a and eta of
its algorithm 2: eta = h^2, a = A h, and A is the friction of SGHMC and the
diffusion of SGNHT. `tune` is of ours where states are small: each with the best
h and A of a grid.
"""

import argparse
from collections.abc import Callable
from collections.abc import Sequence
import functools
import itertools
from typing import Any
from typing import NamedTuple

from matplotlib import figure
from matplotlib import ticker
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from experiments import common
from experiments import parts
import tfp_sgmcmc as sgmcmc

__all__ = [
    'PAPER', 'Best', 'Run', 'Tuning', 'best', 'claims', 'compare', 'kernels',
    'plot', 'table', 'tune']

PAPER = functools.partial(
    common.Quotation, 'Ding et al. (2014)', 'section 5.2.1, Fig. 3')
LEAST_SHARE = 0.1  # Of the paper's iterations, for a verdict.


class Run(NamedTuple):
  """One sampler with one setting, in the comparisons of the SGNHT paper.

  Attributes:
    method: "SGHMC" or "SGNHT".
    a: The diffusion of its algorithm 2, a = A h.
    eta: Its step, eta = h^2.
    steps: `[blocks]`, the number of iterations made at the end of each block.
    scores: `[blocks, chains]`, the score of the last draw, and after the
      burn-in of the mean prediction of the draws since, one a block.
    kinetic_energy: `[blocks, chains]`, mean of p' p / (2 d) over the block.
    num_gradients: Gradients of single examples that each chain used.
  """
  method: str
  a: float
  eta: float
  steps: np.ndarray
  scores: np.ndarray
  kinetic_energy: np.ndarray
  num_gradients: int


def compare(
    arguments: argparse.Namespace,
    posterior: sgmcmc.Posterior,
    init_state: Any,
    predict: Callable[..., tf.Tensor],
    score: Callable[[np.ndarray], np.ndarray],
    batch_size: int,
    diffusions: Sequence[float],
    etas: Sequence[float],
    num_steps: int,
    num_burnin_steps: int,
    num_steps_per_block: int,
    methods: Sequence[str] = ('SGHMC', 'SGNHT'),
) -> list[Run]:
  """Runs SGHMC and SGNHT at each a and eta on a posterior.

  Args:
    arguments: The command line's.
    posterior: `Posterior`.
    init_state: List of tensors with one leading axis, of chains.
    predict: Callable of the state's parts; returns predictions, one a chain.
    score: Callable of (a mean of) predictions; returns one number a chain.
    batch_size: Examples in a minibatch.
    diffusions: The values of a.
    etas: The values of eta.
    num_steps: Iterations in all.
    num_burnin_steps: Iterations before predictions are averaged.
    num_steps_per_block: Iterations between two draws; below 10, or a multiple
      of 10.
    methods: Which of the two to run.

  Returns:
    runs: One for each method, a and eta.
  """
  estimator = sgmcmc.gradients.Uniform(batch_size)
  jit_compile = arguments.size != 'tiny'  # Compiling takes longer there.

  def kinetic_energy(_, results):
    squares = [tf.reshape(p**2, [p.shape[0], -1]) for p in results.momentum]
    return tf.reduce_mean(tf.concat(squares, -1), -1) / 2.

  def compiled(method):
    def kernel(a, eta):
      h = tf.sqrt(eta)
      return getattr(sgmcmc, method)(
          posterior, h, a / h, gradient_estimator=estimator,
          integrator='euler')

    @tf.function(jit_compile=jit_compile, autograph=False)
    def start(a, eta, state, seed):
      return kernel(a, eta).bootstrap_results(state, seed)

    @tf.function(jit_compile=jit_compile, autograph=False)
    def advance(a, eta, state, results, seed):
      num_looks = min(num_steps_per_block, 10)
      draws, kinetic, results = tfp.mcmc.sample_chain(
          num_looks, state, results, kernel(a, eta),
          num_steps_between_results=num_steps_per_block // num_looks - 1,
          trace_fn=kinetic_energy, return_final_kernel_results=True, seed=seed)
      state = [part[-1] for part in draws]
      return state, results, tf.reduce_mean(kinetic, 0), predict(*state)

    return start, advance

  functions = {method: compiled(method) for method in methods}
  settings = [
      (method, a, eta) for method in functions for a in diffusions
      for eta in etas]
  num_blocks = num_steps // num_steps_per_block

  def run(setting):
    method, a, eta = setting
    start, advance = functions[method]
    state = init_state
    seed = common.seed_of(arguments, 1 + settings.index(setting))
    constants = tf.constant(a), tf.constant(eta)
    results = start(*constants, state, sgmcmc.random.fold_in(seed, 0))
    steps, scores, kinetic_energies = [], [], []
    total, num_draws = 0., 0
    for block in range(1, num_blocks + 1):
      state, results, kinetic, predictions = advance(
          *constants, state, results, sgmcmc.random.fold_in(seed, block))
      predictions = predictions.numpy()
      if block * num_steps_per_block > num_burnin_steps:
        total, num_draws = total + predictions, num_draws + 1
        predictions = total / num_draws
      steps.append(block * num_steps_per_block)
      scores.append(score(predictions))
      kinetic_energies.append(kinetic.numpy())
      parts.tell(block / num_blocks, arguments)
    return Run(
        method, a, eta, np.array(steps), np.array(scores),
        np.array(kinetic_energies), common.num_gradients(results))

  return parts.each(run, settings, arguments, 'settings')


def plot(
    runs: Sequence[Run], label: str, limits: tuple[float, float],
) -> figure.Figure:
  """A panel for each eta: score by iterations, mean and range of the chains."""
  etas = sorted({run.eta for run in runs})
  diffusions = sorted({run.a for run in runs})
  picture = figure.Figure(figsize=(11., 3.8), layout='constrained')
  axes = picture.subplots(1, len(etas), sharey=True, squeeze=False)[0]
  for axis, eta in zip(axes, etas):
    for run in runs:
      if run.eta != eta:
        continue
      color = {'SGHMC': 'C1', 'SGNHT': 'C0'}[run.method]
      axis.plot(
          run.steps, run.scores.mean(-1), color=color,
          linestyle=['-', '--'][diffusions.index(run.a)],
          label=f'{run.method}, a = {run.a:g}')
      axis.fill_between(
          run.steps, run.scores.min(-1), run.scores.max(-1), color=color,
          alpha=0.2, linewidth=0)
    lost = [
        f'{run.method}, a = {run.a:g}: not a number' for run in runs
        if run.eta == eta and not np.all(np.isfinite(run.scores[-1]))]
    axis.text(0.97, 0.97, '\n'.join(lost), ha='right', va='top',
              fontsize='small', transform=axis.transAxes)
    axis.set(title=f'$\\eta$ = {eta:g}', xlabel='iterations', ylim=limits)
  axes[0].set_ylabel(label)
  picture.legend(
      *axes[0].get_legend_handles_labels(), loc='outside lower center', ncols=4)
  return picture


def table(
    runs: Sequence[Run], score: str, num_burnin_steps: int,
    published: dict[tuple[str, float, float], str],
) -> tuple[list[str], list[list[Any]]]:
  """Columns and rows: the final score and the kinetic energy of each run."""
  columns = ['method', 'a', 'eta', score, 'sd of chains', 'kinetic energy',
             "thermostat's time constant, steps", f'published {score}']
  return columns, [
      [run.method, run.a, run.eta, run.scores[-1].mean(),
       run.scores[-1].std(ddof=1), _energy(run, num_burnin_steps),
       round(run.a / run.eta) if run.method == 'SGNHT' else None,
       published.get((run.method, run.a, run.eta))] for run in runs]


def _energy(run, num_burnin_steps):
  return run.kinetic_energy[run.steps > num_burnin_steps].mean()


def claims(
    runs: Sequence[Run], score: str, num_burnin_steps: int, limit: float,
    limit_name: str, form: str, published_steps: int,
    long_run: Run | None = None,
) -> list[common.Claim]:
  """Judges what the paper says of all its data sets, and what we say.

  Differences count from three standard errors on, from the standard deviation
  between chains, pooled over SGNHT's settings; of two runs of SGHMC, over those
  of SGHMC at the smaller a. On a run shorter than LEAST_SHARE of the paper's
  there is no verdict.

  Args:
    runs: What `compare` returned.
    score: The name of the score, of which less is better.
    num_burnin_steps: Iterations whose kinetic energy does not count.
    limit: The score from which on a run has diverged, as one that is not a
      number has.
    limit_name: What the limit is, in words.
    form: How a score is written, such as ".3f".
    published_steps: The number of iterations of the paper.
    long_run: A longer one of SGHMC at the smaller a and the largest eta, by
      which it is judged whether it diverges there.

  Returns:
    claims: List of `common.Claim`.
  """
  final = {(r.method, r.a, r.eta): r.scores[-1] for r in runs}
  mean = {
      key: float(np.nan_to_num(value.mean(), nan=np.inf))
      for key, value in final.items()}
  settings = sorted({key[1:] for key in final})
  (small, _), largest = settings[0], settings[-1][1]
  spread = np.sqrt(np.nanmean([
      final['SGNHT', *key].var(ddof=1) for key in settings]))
  error = spread * np.sqrt(2. / len(final['SGNHT', *settings[0]]))
  own_error = np.sqrt(np.nanmean([
      value.var(ddof=1) for key, value in final.items()
      if key[:2] == ('SGHMC', small)]) * 2. / len(final['SGHMC', *settings[0]]))
  gaps = {key: mean['SGHMC', *key] - mean['SGNHT', *key] for key in settings}
  energy = {
      (r.method, r.a, r.eta): _energy(r, num_burnin_steps) for r in runs}
  # A chain that came to no number is farther than any.
  distance = {
      key: float(np.nan_to_num(abs(value - 0.5), nan=np.inf))
      for key, value in energy.items()}
  nearer = [
      distance['SGNHT', *key] < distance['SGHMC', *key] for key in settings]
  constants = sorted(a / eta for a, eta in settings)

  def at_small(method):
    return [mean[method, a, eta] for a, eta in settings if a == small]

  def show(values):
    return ', '.join(f'{value:{form}}' for value in values)

  chosen = {
      method: min(settings, key=lambda key, method=method: mean[method, *key])
      for method in ('SGNHT', 'SGHMC')}
  tuned = {method: mean[method, *key] for method, key in chosen.items()}
  broken = mean['SGHMC', small, largest]
  worst = max(mean['SGNHT', *key] for key in settings)
  num_steps = int(runs[0].steps[-1])
  length = f'after {num_steps:,} of {published_steps:,} iterations'
  last = broken if long_run is None else float(np.nan_to_num(
      long_run.scores[-1].mean(), nan=np.inf))

  def quoted(text, holds, detail, words, run=runs[0]):
    steps = int(run.steps[-1])
    is_long = steps >= LEAST_SHARE * published_steps
    return common.Claim(
        text, bool(holds) if is_long else None,
        f'{detail}; after {steps:,} of {published_steps:,} iterations',
        PAPER(words))

  return [
      quoted(
          f'at a = {small:g} {score} falls from no eta to the next, and rises '
          'from the first to the last (3 standard errors)',
          not np.isfinite(broken) or (
              np.all(np.diff(at_small('SGHMC')) > -3. * own_error)
              and broken - at_small('SGHMC')[0] > 3. * own_error),
          f'{score} {show(at_small("SGHMC"))}, standard error of a difference '
          f'{own_error:{form}}',
          'especially with the smaller a, SGHMC gets worse and worse results '
          'as η increases'),
      quoted(
          f'at a = {small:g} and eta = {largest:g} {score} is above '
          f'{limit:{form}}, {limit_name}', last > limit,
          f'{score} {last:{form}}',
          'With the largest η, SGHMC diverges (as the green curve is way '
          'beyond the range) due to its failure to handle the large unknown '
          'noise with small a', long_run or runs[0]),
      quoted(
          f'{score} of SGNHT is below {limit:{form}} at every a and eta, and '
          f'at a = {small:g}, eta = {largest:g} below that of SGHMC by 3 '
          'standard errors',
          worst < limit and gaps[small, largest] > 3. * error,
          f'worst {score} {worst:{form}}; at a = {small:g} '
          f'{show(at_small("SGNHT"))}; below SGHMC by '
          f'{gaps[small, largest]:{form}}, standard error {error:{form}}',
          'SGNHT is apparently more stable than SGHMC when the discretization '
          'step η is larger'),
      quoted(
          "SGNHT's kinetic energy is nearer 0.5 than SGHMC's in every setting",
          all(nearer),
          f'nearer in {sum(nearer)} of {len(settings)}; SGNHT '
          f'{_show(energy["SGNHT", *key] for key in settings)}, SGHMC '
          f'{_show(energy["SGHMC", *key] for key in settings)} (by a, then '
          "eta); the thermostat's time constant is a / eta, "
          f'{constants[0]:,.0f} to {constants[-1]:,.0f} steps',
          'the kinetic energy of SGNHT is always maintained around 0.5 while '
          'that of SGHMC is usually higher'),
      common.Claim(
          'SGNHT is no worse than SGHMC at every a and eta (3 standard errors)',
          all(gap > -3. * error for gap in gaps.values()),
          f'SGHMC minus SGNHT {show(gaps.values())}, standard error '
          f'{error:{form}}; {length}'),
      common.Claim(
          'With a and eta tuned for each SGNHT is no worse than SGHMC (3 '
          'standard errors)',
          tuned['SGHMC'] - tuned['SGNHT'] > -3. * error,
          ', '.join(
              f'{method} {tuned[method]:{form}} at a = {a:g}, eta = {eta:g}'
              for method, (a, eta) in chosen.items())
          + f', the best of {len(settings)} settings by the same {score}; '
          f'standard error {error:{form}}; {length}')]


def _show(energies):
  return ', '.join(f'{energy:.3f}' for energy in energies)


def kernels(
    target: Any,
    settings: Sequence[tuple[float, float]],
    estimator: sgmcmc.gradients.GradientEstimator,
) -> dict[str, Any]:
  """SGHMC and SGNHT at each h and A: an axis of the state before the chains'.

  Args:
    target: The log density, or `Posterior`.
    settings: Pairs of h and A.
    estimator: Of the gradient.

  Returns:
    kernels: By name; their states are `[settings, chains]`.
  """
  h, a = tf.unstack(tf.constant(settings)[..., tf.newaxis], axis=1)
  return {
      'SGHMC': sgmcmc.SGHMC(target, h, a, gradient_estimator=estimator),
      'SGNHT': sgmcmc.SGNHT(
          target, h, a, gradient_estimator=estimator, integrator='euler')}


class Best(NamedTuple):
  """The best of some settings, chosen by half of the chains.

  Attributes:
    index: Which it is.
    error: Root mean square over the other half of the chains.
    spread: Its standard error.
  """
  index: int
  error: float
  spread: float


def best(errors: np.ndarray) -> Best:
  """The best of settings, by the errors `[settings, chains]`."""
  half = errors.shape[1] // 2
  index = int(np.argmin(np.mean(np.square(errors[:, :half]), axis=1)))
  squares = np.square(errors[index, half:])
  error = np.sqrt(np.mean(squares))
  return Best(
      index, float(error),
      float(np.std(squares) / np.sqrt(len(squares)) / (2. * error)))


class Tuning:
  """SGHMC and SGNHT over a grid of step sizes and frictions.

  Attributes:
    best: The `Best` of each sampler, by its name.
    labels: Its setting in words, likewise.
  """

  def __init__(
      self,
      step_sizes: Sequence[float],
      diffusions: Sequence[float],
      errors: dict[str, np.ndarray],
  ):
    """Chooses the settings.

    Args:
      step_sizes: Of the grid.
      diffusions: Of the grid.
      errors: For each sampler those of its chains, `[settings, chains]`, where
        the settings are the grid's with the diffusion running fastest.
    """
    self._grid = step_sizes, diffusions
    self._errors = errors
    self.best = {name: best(values) for name, values in errors.items()}
    settings = list(itertools.product(step_sizes, diffusions))
    self._chosen = {
        name: settings[found.index] for name, found in self.best.items()}
    self.labels = {
        name: f'h = {h:g}, A = {a:g}' for name, (h, a) in self._chosen.items()}

  def _edges(self, name):
    """Where on the edge of the grid a sampler's setting is, in words."""
    return ''.join(
        f', the {end} {letter} of the grid'
        for letter, value, values in zip('hA', self._chosen[name], self._grid)
        for end, limit in (('lowest', values[0]), ('highest', values[-1]))
        if value == limit)

  def claim(self, error: str) -> common.Claim:
    """That SGNHT's error is no larger, where `error` says of what."""
    sghmc, sgnht = self.best['SGHMC'], self.best['SGNHT']
    num_chains = self._errors['SGHMC'].shape[1]
    figures = '; '.join(
        f'{name} {found.error:.3g} (standard error {found.spread:.2g}) at '
        f'{self.labels[name]}{self._edges(name)}'
        for name, found in self.best.items())
    return common.Claim(
        f"each at its best step size and friction, SGNHT's {error} is no "
        "larger than SGHMC's, within two standard errors",
        bool(sgnht.error - sghmc.error
             <= 2. * np.hypot(sghmc.spread, sgnht.spread)),
        f'root mean square over chains: {figures}; ratio '
        f'{sgnht.error / sghmc.error:.2f}; settings chosen by half of the '
        f'{num_chains} chains, judged by the others')

  def plot(self, axes: Any, error: str) -> None:
    """Each sampler's error by step size, with the best A at each."""
    step_sizes, diffusions = self._grid
    for k, (name, errors) in enumerate(self._errors.items()):
      _, height, spread = zip(*map(best, errors.reshape(
          len(step_sizes), len(diffusions), -1)))
      axes.errorbar(
          step_sizes, height, yerr=spread, fmt='os'[k] + '-', color=f'C{4 + k}',
          label=name)
    axes.set(
        title='ours: best A at each h', xlabel='step size h', ylabel=error,
        xscale='log', yscale='log')
    for axis in (axes.xaxis, axes.yaxis):
      axis.set_major_locator(ticker.LogLocator(subs=(1., 2., 3., 5.)))
      axis.set_major_formatter('{x:g}')
      axis.set_minor_formatter(ticker.NullFormatter())
    axes.tick_params('x', rotation=90)
    axes.legend(fontsize='small')


def tune(
    target: Any,
    estimator: sgmcmc.gradients.GradientEstimator,
    step_sizes: Sequence[float],
    diffusions: Sequence[float],
    sizes: tuple[int, int, int],
    start: Callable[[Sequence[int], tf.Tensor], tf.Tensor],
    error: Callable[[np.ndarray], np.ndarray],
    arguments: argparse.Namespace,
    use: int,
    share: float,
) -> tuple[Tuning, dict[str, Any]]:
  """Runs SGHMC and SGNHT over a grid.

  Args:
    target: The log density, or `Posterior`, of one number.
    estimator: Of its gradient.
    step_sizes: Of the grid.
    diffusions: Of the grid.
    sizes: The numbers of chains, of draws, and of steps a draw.
    start: Callable of a shape and a seed; returns states.
    error: Callable of draws `[draws, settings, chains]`; returns how far each
      chain is from the law, `[settings, chains]`.
    arguments: The command line's.
    use: What the seeds are for.
    share: As for `parts.each`.

  Returns:
    tuning: `Tuning`.
    settings: For the record.
  """
  num_chains, num_draws, thinning = sizes
  grid = list(itertools.product(step_sizes, diffusions))
  made = kernels(target, grid, estimator)
  # Not `sgmcmc.sample`, which ends where a chain is lost.
  chains = tf.function(
      common.sample_chain, jit_compile=True, autograph=False)

  def errors(name):
    seed = common.seed_of(arguments, use + list(made).index(name))
    draws, *_ = chains(
        made[name], start([len(grid), num_chains], seed), num_draws, thinning,
        seed)
    return error(draws.numpy())

  found = dict(zip(made, parts.each(
      errors, made, arguments, 'tuning', share=share)))
  return Tuning(step_sizes, diffusions, found), dict(
      step_sizes=step_sizes, diffusions=diffusions, num_chains=num_chains,
      num_steps=num_draws * thinning)
