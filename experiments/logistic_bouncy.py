"""SBPS on logistic regression: Pakman et al. (2017), Fig. 4 and 3.

N = 1,000, d = 20, true weights uniform in [-5, 5], a flat prior; minibatches of
n = 100, k = 3. An epoch is N gradients of single examples; chains start from
N(mode, 10 x Laplace's covariance).

The paper's settings are those of its text and of the authors' public notebook,
one component of the features of variance 6: SBPS with 0.05 refreshments a unit
of time, its first velocity along the gradient, charged n gradients an event;
SGLD with steps of 0.1 and 0.01 and mSGNHT with 0.1, of the mean gradient
(SGLD's is N h, mSGNHT's is sqrt(N) h with diffusion sqrt(N)); lipSBPS and ZZ-SS
with n = 1 and one bound each, N sqrt(d) and N times the largest |x_ij|. Fig. 3
is of another regression: one component of variance 1/500, a start with 100
times Laplace's covariance, 1,000 epochs of SBPS and pSBPS.

Ours: SBPS with 1 refreshment a unit of time, a random first velocity, and the n
gradients of a bounce charged besides; for SGLD and mSGNHT the largest step of a
grid that leaves the standard deviations along the ten narrowest eigenvectors
within 10% of long HMC's; lipSBPS and ZZ-SS with the bounds N max |x_i| and, a
coordinate, N max_i |x_ij|.
"""

import functools
import time
from typing import NamedTuple

from matplotlib import figure
import numpy as np
import tensorflow as tf

from experiments import common
from experiments import logistic
from experiments import parts
import tfp_sgmcmc as sgmcmc

PAPER = functools.partial(common.Quotation, 'Pakman et al. (2017)')
# mSGNHT has no step of 1: started far from the mode, it diverges.
GRID = {
    'SGLD': (0.01, 0.03, 0.1, 0.2, 0.3, 1.),
    'mSGNHT': (0.01, 0.03, 0.1, 0.2, 0.3)}
# Chains have arrived where the median of their excess of -log density over the
# mode's is below this many times its mean under the posterior.
ARRIVED = 1.5
LIMIT = 0.1  # Of the error of a standard deviation, for a tuned step.
PAPER_STEP = 0.1  # The best of the paper, of SGLD and of mSGNHT.
LAG = 10.  # Epochs, for autocorrelations.
PUBLISHED = (
    'SBPS', 'SGLD, 0.1', 'SGLD, 0.01', 'mSGNHT, 0.1', 'lipSBPS', 'ZZ-SS')
OURS = (
    'SBPS, ours', 'SGLD, tuned', 'mSGNHT, tuned', 'lipSBPS, our bound',
    'ZZ-SS, our bound')
EXACT = 'lipSBPS', 'ZZ-SS', 'lipSBPS, our bound', 'ZZ-SS, our bound'
COLORS = dict(zip(
    (*PUBLISHED, 'pSBPS'), ('C0', 'C1', 'C5', 'C2', 'C4', 'C7', 'C3')))
COLORS |= dict(zip(OURS, ('C0', 'C1', 'C2', 'C4', 'C7')))


class Record(NamedTuple):
  """Draws at equal weights, and the epochs that each chain had used by then."""
  draws: np.ndarray  # [num, chains, d].
  cost: np.ndarray  # [num, chains].
  notes: dict


def record_steps(name, start, epochs, problem, num_draws, seed):
  """Runs SGLD or mSGNHT with all steps of the grid at once: {step: Record}."""
  total = int(epochs * problem.posterior.num_examples / logistic.BATCH_SIZE)
  thinning = max(1, total // num_draws)
  draws = sgmcmc.sample(
      step_kernel(name, problem), total // thinning,
      tf.tile(start[tf.newaxis], [len(GRID[name]), 1, 1]), seed=seed,
      progress_bar=False, num_steps_between_results=thinning - 1).states.numpy()
  cost = epochs * np.arange(1, len(draws) + 1) / len(draws)
  cost = np.tile(cost[:, np.newaxis], [1, len(start)])
  return {
      step: Record(draws[:, k], cost, {}) for k, step in enumerate(GRID[name])}


def downhill(kernel, problem, start, seed):
  """First results of which each velocity is down a minibatch's gradient.

  The authors start up it, and bounce at once.
  """
  results = kernel.bootstrap_results(start, seed=seed)
  rows = sgmcmc.random.indices(
      problem.posterior.num_examples, [len(start), logistic.BATCH_SIZE],
      sgmcmc.random.fold_in(seed, 1))
  batch = [tf.gather(leaf, rows) for leaf in problem.posterior.data]
  with tf.GradientTape() as tape:
    tape.watch(start)
    density = problem.posterior.log_likelihood(start, batch=batch)
  gradient = tape.gradient(density, start)
  return results._replace(velocity=[
      gradient / tf.norm(gradient, axis=-1, keepdims=True)])


def record_path(name, start, epochs, problem, num_draws, seed):
  """Runs SBPS; the draws are its path at equal times."""
  size = problem.posterior.num_examples
  kernel = {
      'SBPS': functools.partial(logistic.sbps, problem),
      'SBPS, ours': functools.partial(logistic.sbps, problem, refresh_rate=1.),
      'pSBPS': functools.partial(
          logistic.sbps, problem, preconditioner=sgmcmc.preconditioners.RMSProp(
              decay=0.99, regularizer=1e-4, normalize=True)),
  }[name]()
  first = None if name == 'SBPS, ours' else downhill(
      kernel, problem, start, sgmcmc.random.fold_in(seed, 0))
  draws = sgmcmc.sample(
      kernel, int(epochs * size / logistic.BATCH_SIZE), start, seed=seed,
      progress_bar=False, previous_kernel_results=first,
      trace_fn=lambda state, results: (
          sgmcmc.pdmp.trace_path(state, results),
          results.gradient_estimator_results.num_gradients))
  trace, spent = draws.trace
  path = sgmcmc.pdmp.Trajectory.from_chain(draws.states, trace)
  spent = spent.numpy()
  if name != 'SBPS, ours':  # As the authors count.
    num_events = np.arange(1, len(spent) + 1)[:, np.newaxis]
    spent = np.broadcast_to(logistic.BATCH_SIZE * num_events, spent.shape)
  ends = np.cumsum(trace.duration.numpy()[1:].astype(np.float64), axis=0)
  shares = (np.arange(num_draws) + 0.5) / num_draws
  cost = np.stack([
      np.interp(shares * end[-1], end, used[1:] / size)
      for end, used in zip(ends.T, spent.T)], axis=1)
  return Record(path.sample(num_draws).numpy(), cost, dict(
      violation_share=path.violation_share, counts=path.counts._asdict()))


def record_exact(name, start, epochs, problem, num_draws, seed):
  """Runs lipSBPS or ZZ-SS with n = 1; the draws are at equal times."""
  kernel, rate = exact_kernel(name, problem)
  events = epochs * problem.posterior.num_examples / num_draws
  draws = sgmcmc.sample(
      sgmcmc.pdmp.UniformTime(kernel, events / rate), num_draws, start,
      seed=seed, progress_bar=False, trace_fn=lambda _, r: r.num_events)
  cost = np.cumsum(draws.trace.numpy(), axis=0)
  return Record(
      draws.states.numpy(), cost / problem.posterior.num_examples, {})


def exact_kernel(name, problem):
  """The kernel, and how many events it has in a unit of time."""
  x = np.abs(problem.features)
  make, bound = {
      'lipSBPS': (sgmcmc.BouncyParticleSampler,
                  np.sqrt(x.shape[1]) * x.max()),
      'ZZ-SS': (sgmcmc.ZigZagSampler, np.full(x.shape[1], x.max())),
      'lipSBPS, our bound': (sgmcmc.BouncyParticleSampler,
                             np.linalg.norm(x, axis=1).max()),
      'ZZ-SS, our bound': (sgmcmc.ZigZagSampler, x.max(axis=0)),
  }[name]
  bound = len(x) * bound

  def rate_bound(start):
    (theta,) = start.state_parts
    if make is sgmcmc.ZigZagSampler:
      return sgmcmc.pdmp.AffineRate(
          [tf.zeros_like(theta) + tf.constant(bound, theta.dtype)])
    return sgmcmc.pdmp.AffineRate(
        tf.zeros_like(theta[..., 0]) + tf.constant(bound, theta.dtype))

  return make(
      problem.posterior, rate_bound,
      gradient_estimator=sgmcmc.gradients.Uniform(1)), float(np.sum(bound))


def step_kernel(name, problem):
  """SGLD or mSGNHT with the grid's steps, in the paper's units."""
  size = problem.posterior.num_examples
  steps = tf.constant(GRID[name])[:, tf.newaxis, tf.newaxis]
  estimator = sgmcmc.gradients.Uniform(logistic.BATCH_SIZE)
  if name == 'SGLD':
    return sgmcmc.SGLD(
        problem.posterior, steps / size, gradient_estimator=estimator)
  return sgmcmc.SGNHT(
      problem.posterior, steps / np.sqrt(size), diffusion=np.sqrt(size),
      gradient_estimator=estimator, thermostat='diagonal', integrator='euler')


def sd_error(law, record):
  """The largest error of an sd, along the narrow half of the directions.

  Along the wide ones a run of this length says nothing.
  """
  z = law.project(record.draws[len(record.draws) // 2:])
  sd = np.sqrt(np.square(z).mean(axis=(0, 1)))
  return float(np.abs(sd - 1.)[:len(sd) // 2].max())


def excess_by_epoch(problem, record, epochs):
  """The mean excess of -log density in each epoch, [epochs, chains].

  A chain without a draw in an epoch has that of the epoch before, or, in the
  first ones, that of its first draw.
  """
  excess = problem.negative_log_density(record.draws)
  epoch = record.cost.astype(int)
  found = [excess[0]]
  for k in range(int(epochs)):
    inside = epoch == k
    count = inside.sum(axis=0)
    mean = np.where(inside, excess, 0.).sum(axis=0) / np.maximum(count, 1)
    found.append(np.where(count > 0, mean, found[-1]))
  return np.stack(found[1:])


def arrival(excess, limit):
  """The first epoch with a median over chains below the limit; its error."""
  def first(values):
    below = np.median(values, axis=1) < limit
    return float(np.argmax(below) + 1) if below.any() else float('inf')
  return first(excess), float(common.bootstrap_error(
      lambda chosen: min(first(excess[:, chosen]), len(excess) + 1),
      excess.shape[1], np.random.default_rng(0)))


def autocovariance(z, record, num_lags):
  """Lags in epochs, and the autocovariance of each chain."""
  epochs = (record.cost[-1] - record.cost[0]).mean() / (len(z) - 1)
  return epochs * np.arange(num_lags), np.stack([
      (z[:len(z) - k] * z[k:]).mean(axis=0) for k in range(num_lags)])


class Mixing(NamedTuple):
  """Along an eigenvector: autocorrelations, and the sd over that of HMC."""
  lags: np.ndarray
  values: np.ndarray
  at_lag: tuple
  sd: tuple


def mixing(law, record, coordinate):
  z = law.project(record.draws)[..., coordinate]
  lags, values = autocovariance(z, record, len(z) // 4)
  root = np.sqrt(z.shape[1])
  # The autocovariance at one lag, over the variance of the same chains.
  at_lag = common.ratio_of_means(
      np.array([np.interp(LAG, lags, v) for v in values.T]), values[0])
  squares = np.square(z).mean(axis=0)
  sd = np.sqrt(squares.mean())
  return Mixing(lags, values.sum(axis=1) / values[0].sum(), at_lag,
                (sd, squares.std() / root / 2. / sd))


def cpu_seconds(problem, epochs, repeats):
  """Of a processor, by one chain; the samplers in turn, the best of some."""
  size = problem.posterior.num_examples
  cases = {'SBPS': (
      logistic.sbps(problem), int(epochs * size / logistic.BATCH_SIZE))}
  for name in ('lipSBPS', 'ZZ-SS'):
    cases[name] = (exact_kernel(name, problem)[0], int(epochs * size))
  start = tf.constant(problem.mode[np.newaxis], tf.float32)

  def runner(kernel, num_events):
    @tf.function(jit_compile=True)
    def chain(results, seed):
      return tf.while_loop(
          lambda step, *_: step < num_events,
          lambda step, state, results: (step + 1, *kernel.one_step(
              state, results, seed=sgmcmc.random.fold_in(seed, step))),
          (0, start, results))[1]
    results = kernel.bootstrap_results(start, seed=[0, 0])
    return lambda seed: chain(results, seed).numpy()

  runners = {name: runner(*case) for name, case in cases.items()}
  best = dict.fromkeys(runners, float('inf'))
  for repeat in range(repeats + 1):
    for name, chain in runners.items():
      begin = time.process_time()
      chain(tf.constant([0, repeat]))
      seconds = time.process_time() - begin
      if repeat:  # The first call compiles.
        best[name] = min(best[name], seconds)
  return best


def judge(problem, law, record, num_far, epochs):
  """What is reported: the first chains started far away, the others did not.

  The first ones show when a sampler reaches the posterior, the others, which
  start in it, how it mixes.
  """
  far = Record(record.draws[:, :num_far], record.cost[:, :num_far], {})
  near = Record(record.draws[:, num_far:], record.cost[:, num_far:], {})
  excess = excess_by_epoch(problem, far, epochs)
  is_shown = far.cost[:, 0] < epochs
  return dict(
      excess=excess, notes=record.notes,
      path=(far.cost[is_shown, 0], law.project(
          far.draws[is_shown, 0])[:, [-1, 0]]),
      arrival=arrival(excess, ARRIVED * law.excess),
      largest=mixing(law, near, -1), smallest=mixing(law, near, 0))


def run_sampler(name, problem, law, widening, sizes, seeds):
  """Runs a sampler, or one with all steps of its grid.

  Args:
    name: A key of `GRID`, or the name of a row of the table.
    problem: `Problem`.
    law: `Law`.
    widening: How many times Laplace's covariance is that of the start.
    sizes: As in `run`.
    seeds: Stateless seeds of the start and of the chains.

  Returns:
    results: What `judge` found, by row of the table.
    tuning: Of each step of the grid, `sd_error`.
  """
  num_chains, num_slow, num_tune, epochs, num_draws = sizes
  num_far = num_slow if name in EXACT else num_chains
  far = problem.draw(num_chains, widening, seeds[0])[:num_far]
  near = tf.constant(law.draws[0], tf.float32)
  start = tf.concat([far, near[:num_far]], axis=0)
  run_to = epochs, problem, num_draws, seeds[1]
  if name not in GRID:
    record = (record_exact if name in EXACT else record_path)(
        name, start, *run_to)
    return {name: judge(problem, law, record, num_far, epochs)}, {}
  # The last chains tune the step, and are in no figure that is reported.
  tuners = near[num_chains:num_chains + num_tune]
  grid = record_steps(name, tf.concat([start, tuners], axis=0), *run_to)
  tuning = {
      step: sd_error(law, Record(r.draws[:, -num_tune:], None, {}))
      for step, r in grid.items()}
  best = max([s for s in grid if tuning[s] < LIMIT] or [min(grid)])
  wanted = {f'{name}, 0.1': PAPER_STEP, f'{name}, tuned': best}
  if name == 'SGLD':
    wanted[f'{name}, 0.01'] = 0.01
  return {
      label: judge(
          problem, law, Record(*(x[:, :-num_tune] for x in grid[step][:2]), {}),
          num_far, epochs)
      for label, step in wanted.items()}, {**tuning, 'chosen': best}


def compare(problem, law, names, widening, arguments, sizes, use, share):
  """Runs the samplers: what `judge` found of each, and how steps were tuned."""
  def run_one(name):
    seeds = [common.seed_of(arguments, use + k)
             for k in (0, 1 + names.index(name))]
    return run_sampler(name, problem, law, widening, sizes, seeds)

  found = parts.each(
      run_one, names, arguments, f'samplers {use}', share=share)
  results, tuning = {}, {}
  for name, (rows, tuned) in zip(names, found):
    results |= rows
    if tuned:
      tuning[name] = tuned
  return results, tuning


def run(arguments):
  # Chains, those of the samplers with n = 1, those that tune the steps; epochs;
  # draws. Then of Fig. 3.
  sizes = common.sizes(
      arguments, (4, 2, 8, 4, 20), (96, 16, 96, 400, 800),
      (96, 16, 256, 2000, 4000))
  wide_sizes = common.sizes(
      arguments, (4, 2, 0, 4, 20), (32, 0, 0, 1000, 1000),
      (96, 0, 0, 1000, 2000))
  problems = [
      logistic.make_problem(arguments.seed, variance)
      for variance in (6., 1. / 500.)]
  laws = parts.each(
      lambda k: logistic.hmc(
          problems[k], common.sizes(arguments, 20, 250, 1000),
          sizes[0] + sizes[2], common.seed_of(arguments, k)),
      range(2), arguments, 'HMC', share=0.3)
  results, tuning = compare(
      problems[0], laws[0],
      ['SBPS', 'SBPS, ours', 'SGLD', 'mSGNHT', *EXACT], 10., arguments, sizes,
      100, 0.58)
  pair, _ = compare(
      problems[1], laws[1], ['SBPS', 'pSBPS'], 100., arguments, wide_sizes, 200,
      0.12)
  seconds = cpu_seconds(problems[0], common.sizes(arguments, 2, 100, 100), 3)
  return report(results, pair, seconds, tuning, laws, sizes, wide_sizes)


def report(results, pair, seconds, tuning, laws, sizes, wide_sizes):
  rows = []
  for group, names, table in (
      ("the paper's", PUBLISHED, results), ('ours', OURS, results),
      ("the paper's, Fig. 3", ('SBPS', 'pSBPS'), pair)):
    for name in names:
      r = table[name]
      rows.append([
          group, name, *r['arrival'], float(np.median(r['excess'][-1])),
          *r['largest'].at_lag, *r['smallest'].at_lag, r['largest'].sd[0],
          r['smallest'].sd[0],
          seconds.get(name) if group == "the paper's" else None])
  settings = dict(
      num_examples=1000, num_features=20, batch_size=logistic.BATCH_SIZE,
      confidence=logistic.CONFIDENCE, prior='flat',
      start="N(mode, 10 x Laplace's covariance); Fig. 3: 100 x",
      num_chains=sizes[0], num_chains_of_exact=sizes[1],
      num_chains_tuning=sizes[2], epochs=sizes[3], tuning=tuning,
      num_chains_of_fig_3=wide_sizes[0], epochs_of_fig_3=wide_sizes[3],
      stationary_excess=[law.excess for law in laws],
      notes={name: r['notes'] for name, r in results.items() if r['notes']})
  return common.Result(
      ['settings', 'sampler', 'epochs to the posterior', 'its s.e.',
       'excess -log density at the end', 'ACF largest', 'its s.e.',
       'ACF smallest', 'its s.e.', 'sd over HMC, largest', 'smallest',
       'seconds, one chain'], rows,
      claims_of(results, pair, seconds),
      draw_figure(results, pair, seconds, laws), settings,
      f'Tuned steps: {"; ".join(map(tuned_step, GRID, tuning.values()))}. '
      'A sampler has reached the posterior where the median over chains of the '
      f"excess of -log density over the mode's is below {ARRIVED} times "
      f'its mean there, {laws[0].excess:.1f} ({laws[1].excess:.1f} in Fig. 3). '
      f'Autocorrelations are at a lag of {LAG:g} epochs.')


def tuned_step(name, tuning):
  """Which step was chosen, and what kept from the next larger one, in words."""
  best = tuning['chosen']
  larger = [step for step in GRID[name] if step > best]
  own = ", the paper's own" if best == PAPER_STEP else ''
  return f'{best:g} for {name}{own}' + (
      f' (at {larger[0]:g} a standard deviation is off by '
      f'{tuning[larger[0]]:.3f}, of which {LIMIT:g} is allowed)'
      if larger else '')


def claims_of(results, pair, seconds):
  def sooner(ours, others, table, text, words=None, factor=1.):
    """Whether one arrives before the others, by 2 standard errors."""
    (epoch, error), them = table[ours]['arrival'], {
        name: table[name]['arrival'] for name in others}
    return common.Claim(
        text, all(factor * epoch < e - 2. * np.hypot(factor * error, s)
                  for e, s in them.values()),
        f'epoch {epoch:g} (s.e. {error:.1f}); ' + ', '.join(
            f'{name}: {e:g} ({s:.1f})' for name, (e, s) in them.items()),
        words)

  def faster(ours, others, table, where, text, words):
    (value, error), them = table[ours][where].at_lag, {
        name: table[name][where].at_lag for name in others}
    return common.Claim(
        text, all(value < v - 2. * np.hypot(error, s)
                  for v, s in them.values()),
        f'{value:.3f} (s.e. {error:.3f}); ' + ', '.join(
            f'{name}: {v:.3f} ({s:.3f})' for name, (v, s) in them.items()),
        words)

  wide, narrow = (
      results['SBPS'][where].sd for where in ('largest', 'smallest'))
  ratios = {
      name: seconds[name] / seconds['SBPS'] for name in ('lipSBPS', 'ZZ-SS')}
  times = ', '.join(
      f'{seconds[name]:.3g} s of {name}, {ratio:.0f} times'
      for name, ratio in ratios.items())
  times = f'{seconds["SBPS"]:.3g} s of SBPS, {times}'
  pair_words = PAPER(
      'section 5, Fig. 3', 'pSBPS converges to the posterior mode faster than '
      'SBPS, and mixes faster in the direction of greatest covariance')
  tuned_words = PAPER(
      'section 7.1, Fig. 4', 'SBPS outperforms the optimally tuned SGLD and '
      'mSGNHT')
  # Of the estimates' variance: it goes with the autocorrelation.
  steadier = [
      faster('SBPS', ('lipSBPS', 'ZZ-SS'), results, where, '', None)
      for where in ('largest', 'smallest')]
  return [
      sooner('SBPS', PUBLISHED[1:], results,
             'it reaches the posterior in fewer epochs than the others, by two '
             'standard errors',
             PAPER('Fig. 4', 'Note that SBPS is the fastest to converge')),
      *(faster('SBPS', ('SGLD, 0.1', 'mSGNHT, 0.1'), results, where,
               f'its autocorrelation along the direction of {where} variance '
               'is the lowest, by two standard errors', tuned_words)
        for where in ('largest', 'smallest')),
      sooner('SBPS', ('lipSBPS', 'ZZ-SS'), results,
             'they take ten times as many epochs to the posterior, both',
             PAPER('section 7.1, Fig. 4', 'converges orders of magnitude '
                   'faster than lipSBPS and ZZ-SS'), factor=10.),
      common.Claim(
          'both take 35 times as long for 100 epochs, or longer',
          bool(min(ratios.values()) >= 35.),
          f'{times}; on another machine, and in other programs',
          PAPER('Fig. 4', 'CPU runtime for 100 epochs, showing a 35× advantage '
                'of n = 100 SBPS over n = 1 SS-ZZ and lipSBPS')),
      common.Claim(
          "standard deviations within 10% of HMC's along both directions, and "
          'autocorrelations, which an estimate has its variance from, below '
          'those of lipSBPS and ZZ-SS, by two standard errors',
          bool(max(abs(narrow[0] - 1.), abs(wide[0] - 1.)) < 0.1
               and all(claim.holds for claim in steadier)),
          f'{wide[0]:.3f} (s.e. {wide[1]:.3f}) times along the largest and '
          f'{narrow[0]:.3f} ({narrow[1]:.3f}) along the smallest; bound '
          'violated at '
          f'{results["SBPS"]["notes"]["violation_share"]:.2%} of proposals; '
          f'autocorrelations along the largest {steadier[0].detail}; along the '
          f'smallest {steadier[1].detail}',
          PAPER('section 7.1', 'the small bias introduced by SBPS is worth the '
                'massive reduction in variance')),
      sooner('pSBPS', ('SBPS',), pair, 'it reaches the posterior in fewer '
             'epochs, by two standard errors', pair_words),
      faster('pSBPS', ('SBPS',), pair, 'largest', 'its autocorrelation along '
             'the direction of largest variance is lower, by two standard '
             'errors', pair_words),
      sooner('SBPS, ours', ('SGLD, tuned', 'mSGNHT, tuned'), results,
             'SBPS, all its gradients charged, reaches the posterior in fewer '
             'epochs than SGLD and mSGNHT with tuned steps'),
      sooner('SBPS, ours', ('lipSBPS, our bound', 'ZZ-SS, our bound'), results,
             'SBPS, all its gradients charged, reaches it in fewer epochs than '
             'lipSBPS and ZZ-SS with our bounds')]


def draw_figure(results, pair, seconds, laws):
  picture = figure.Figure(figsize=(14, 10), layout='constrained')
  axes = picture.subplots(3, 4)

  def curves(ax, table, names, law, title, end):
    for name in names:
      median = np.median(table[name]['excess'], axis=1)[:end]
      ax.plot(np.arange(len(median)) + 0.5, median, color=COLORS[name],
              linestyle='--' if name in OURS else '-', label=name)
    ax.axhline(law.excess, color='k', linestyle=':', label='HMC')
    ax.set(xlabel='epochs', ylabel='-log density, over the mode; median',
           yscale='log', title=title)

  def correlations(ax, table, names, where, title, end=5. * LAG, slow=False):
    for name in names:
      lags, values, *_ = table[name][where]
      keep = (lags <= end) & (lags > 0.) if slow else lags <= end
      ax.plot(lags[keep], 1. - values[keep] if slow else values[keep],
              color=COLORS[name], linestyle='--' if name in OURS else '-')
    ax.set(xlabel='lag in epochs', ylabel='autocorrelation', title=title)
    if slow:  # Near 1 all would lie on each other.
      ax.set(ylabel='1 - autocorrelation', yscale='log')
    else:
      ax.axhline(0., color='k', linewidth=0.7)

  def traces(ax, table, names, k, title, end):
    for name in names:
      epochs, values = table[name]['path']
      ax.plot(epochs[epochs < end], values[epochs < end, k],
              color=COLORS[name], linewidth=1.)
    ax.axhspan(-1., 1., color='0.9')
    ax.set(xlabel='epochs', ylabel="one chain, in HMC's sds", title=title)

  both = tuple(enumerate(('largest', 'smallest')))
  curves(axes[0, 0], results, PUBLISHED, laws[0], "the paper's settings", 100)
  curves(axes[1, 0], results, OURS, laws[0], 'ours', 100)
  curves(axes[2, 0], pair, ('SBPS', 'pSBPS'), laws[1], 'Fig. 3', 1000)
  for k, where in both:
    traces(axes[0, 1 + k], results, PUBLISHED, k, f'{where} variance', 100)
    correlations(axes[1, 1 + k], results, (*PUBLISHED, *OURS), where,
                 f'{where} variance', slow=where == 'largest')
  correlations(axes[2, 2], pair, ('SBPS', 'pSBPS'), 'largest',
               'Fig. 3, largest variance', 200.)
  traces(axes[2, 1], pair, ('SBPS', 'pSBPS'), 0, 'Fig. 3, largest variance',
         1000)
  ax = axes[0, 3]
  for name, value in seconds.items():
    ax.plot(name, value, 'o', color=COLORS[name])
    ax.annotate(f'{value:.2g} s', (name, value), (0, 8), ha='center',
                textcoords='offset points')
  ax.set(yscale='log', ylabel='seconds, one chain', title='100 epochs')
  ax.margins(x=0.2, y=0.2)
  for ax in axes[1:, 3]:
    ax.axis('off')
  handles = {
      label: handle for ax in axes[:, 0]
      for handle, label in zip(*ax.get_legend_handles_labels())}
  axes[1, 3].legend(handles.values(), handles.keys(), loc='upper left')
  return picture


def main(argv=None):
  return common.main('logistic_bouncy', run, __doc__, argv)


if __name__ == '__main__':
  main()
