"""SBPS on logistic regression: Pakman et al. (2017), Fig. 4 and 3.

N = 1,000, d = 20, one component of the features of variance 6, true weights
uniform in [-5, 5]; minibatches of n = 100, k = 3. SBPS against SGLD, mSGNHT and
the exact samplers with n = 1, lipSBPS and ZZ-SS, all at equal data cost: an
epoch is N gradients of single examples, a directional derivative being one, and
the reflections of SBPS another n each. Step sizes are in the paper's units, of
the mean gradient: SGLD's is N h, mSGNHT's is sqrt(N) h with diffusion sqrt(N).
Besides 0.1 and 0.01 the largest of a grid is taken that leaves the standard
deviations along the ten narrowest eigenvectors within 10% of long HMC's. pSBPS
against SBPS is on this posterior and on one with features of unequal scale.
"""

import time
from typing import NamedTuple

from matplotlib import figure
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from experiments import common
from tests import references
import tfp_sgmcmc as sgmcmc

PRIOR_SCALE = 10.
BATCH_SIZE, CONFIDENCE = 100, 3.
# mSGNHT has no step of 1: started far from the mode, it diverges.
GRID = {
    'SGLD': (0.01, 0.03, 0.1, 0.3, 1.), 'mSGNHT': (0.01, 0.03, 0.1, 0.3)}
# Chains have arrived where the median of their excess of -log density over the
# mode's is below this many times its mean under the posterior.
ARRIVED = 1.5
LAG = 10.  # Epochs, for autocorrelations.
COLORS = {
    'SBPS': 'C0', 'pSBPS': 'C9', 'SGLD, 0.1': 'C1', 'SGLD, 0.01': 'C5',
    'SGLD, tuned': 'C3', 'mSGNHT, 0.1': 'C2', 'mSGNHT, tuned': 'C8',
    'lipSBPS': 'C4', 'ZZ-SS': 'C7'}


class Problem(NamedTuple):
  """A logistic regression: its posterior, and Laplace's approximation."""
  posterior: sgmcmc.Posterior
  posterior64: sgmcmc.Posterior
  mode: np.ndarray
  covariance: np.ndarray

  @property
  def features(self):
    return self.posterior64.data[0].numpy()

  def negative_log_density(self, w):
    """-log p(w | data) less that of the mode, in float64; `w` is [num, ...]."""
    # A loop over draws: all logits at once do not fit into memory.
    density = tf.function(
        lambda w: tf.map_fn(self.posterior64, w), autograph=False)
    return (self.posterior64(self.mode) - density(
        tf.cast(w, tf.float64))).numpy()

  def draw(self, num, widening, seed):
    """Draws of N(mode, widening * covariance), as float32."""
    z = np.asarray(sgmcmc.random.normal([num, len(self.mode)], seed))
    scale = np.linalg.cholesky(widening * self.covariance)
    return tf.constant(self.mode + z @ scale.T, tf.float32)


def make_problem(seed, scales, largest_weight=5., num_examples=1000):
  """Features N(0, scales^2), weights uniform up to `largest_weight`."""
  random = np.random.default_rng(seed)
  weights = random.uniform(-largest_weight, largest_weight, len(scales))
  x = (random.normal(size=[num_examples, len(scales)]) * scales).astype('f4')
  y = random.uniform(size=num_examples) < 1. / (1. + np.exp(-x @ weights))

  def log_likelihood(w, batch):
    x, sign = batch
    return -tf.nn.softplus(sign * tf.einsum('...nd,...d->...n', x, w))

  def posterior(dtype):
    prior = tfp.distributions.MultivariateNormalDiag(
        tf.zeros(len(scales), dtype),
        PRIOR_SCALE * tf.ones(len(scales), dtype))
    return sgmcmc.Posterior(
        prior.log_prob, log_likelihood,
        (tf.cast(x, dtype), tf.cast(1. - 2. * y, dtype)))

  double = posterior(tf.float64)
  return Problem(
      posterior(tf.float32), double, *references.laplace(double, len(scales)))


def paper_problem(seed):
  """N = 1,000, d = 20, one component of the features of variance 6."""
  return make_problem(seed, np.sqrt([6.] + [1.] * 19))


def sbps(problem, **options):
  """The paper's SBPS: n = 100, k = 3."""
  return sgmcmc.StochasticBouncyParticleSampler(
      problem.posterior, confidence=CONFIDENCE,
      gradient_estimator=sgmcmc.gradients.Uniform(BATCH_SIZE), **options)


class Law(NamedTuple):
  """The posterior by HMC, with moments along Laplace's eigenvectors.

  These are in the order of their eigenvalues, the smallest first.
  """
  draws: np.ndarray
  axes: np.ndarray
  mean: np.ndarray
  sd: np.ndarray
  excess: float

  def project(self, w):
    """Standardised coordinates along the eigenvectors."""
    return (np.asarray(w, np.float64) @ self.axes - self.mean) / self.sd


def hmc(problem, num_results, num_chains, seed):
  """The law by HMC, in the coordinates of Laplace's approximation."""
  draws, _ = references.hmc(
      problem.posterior64, problem.mode, np.linalg.cholesky(problem.covariance),
      num_results, num_chains, seed, step_size=0.2, num_leapfrog_steps=8)
  axes = np.linalg.eigh(problem.covariance)[1]
  along = draws.reshape([-1, len(axes)]) @ axes
  return Law(draws, axes, along.mean(axis=0), along.std(axis=0),
             float(problem.negative_log_density(draws).mean()))


class Record(NamedTuple):
  """Draws at equal weights, and the epochs that each chain had used by then."""
  draws: np.ndarray  # [num, chains, d].
  cost: np.ndarray  # [num, chains].
  notes: dict


def record_steps(name, start, epochs, problem, num_draws, seed):
  """Runs SGLD or mSGNHT with all steps of the grid at once: {step: Record}."""
  total = int(epochs * problem.posterior.num_examples / BATCH_SIZE)
  thinning = max(1, total // num_draws)
  draws = sgmcmc.sample(
      step_kernel(name, problem), total // thinning,
      tf.tile(start[tf.newaxis], [len(GRID[name]), 1, 1]), seed=seed,
      progress_bar=False, num_steps_between_results=thinning - 1).states.numpy()
  cost = epochs * np.arange(1, len(draws) + 1) / len(draws)
  cost = np.tile(cost[:, np.newaxis], [1, len(start)])
  return {
      step: Record(draws[:, k], cost, {}) for k, step in enumerate(GRID[name])}


def record_path(kernel, start, epochs, problem, num_draws, seed):
  """Runs SBPS; the draws are its path at equal times."""
  size = problem.posterior.num_examples
  draws = sgmcmc.sample(
      kernel, int(epochs * size / BATCH_SIZE), start, seed=seed,
      progress_bar=False, trace_fn=lambda state, results: (
          sgmcmc.pdmp.trace_path(state, results),
          results.gradient_estimator_results.num_gradients))
  trace, gradients = draws.trace
  path = sgmcmc.pdmp.Trajectory.from_chain(draws.states, trace)
  ends = np.cumsum(trace.duration.numpy()[1:].astype(np.float64), axis=0)
  shares = (np.arange(num_draws) + 0.5) / num_draws
  cost = np.stack([
      np.interp(shares * end[-1], end, spent[1:] / size)
      for end, spent in zip(ends.T, gradients.numpy().T)], axis=1)
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
  """The kernel and about how many events it has in a unit of time."""
  x = problem.features
  make, rate = {
      'lipSBPS': (sgmcmc.BouncyParticleSampler,
                  len(x) * np.linalg.norm(x, axis=1).max()),
      'ZZ-SS': (sgmcmc.ZigZagSampler, len(x) * np.abs(x).max(axis=0).sum()),
  }[name]
  return make(
      problem.posterior,
      sgmcmc.pdmp.LogisticRegressionBound(x, PRIOR_SCALE),
      sgmcmc.gradients.Uniform(1)), rate


def step_kernel(name, problem):
  """SGLD or mSGNHT with the grid's steps, in the paper's units."""
  size = problem.posterior.num_examples
  steps = tf.constant(GRID[name])[:, tf.newaxis, tf.newaxis]
  estimator = sgmcmc.gradients.Uniform(BATCH_SIZE)
  if name == 'SGLD':
    return sgmcmc.SGLD(problem.posterior, steps / size, estimator)
  return sgmcmc.SGNHT(
      problem.posterior, steps / np.sqrt(size), diffusion=np.sqrt(size),
      gradient_estimator=estimator, thermostat='diagonal')


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
  """Seconds of one chain, the samplers in turn, the best of some runs."""
  size = problem.posterior.num_examples
  cases = {'SBPS': (sbps(problem), int(epochs * size / BATCH_SIZE))}
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
          (0, start, results))[2].gradient_estimator_results.num_gradients
    results = kernel.bootstrap_results(start, seed=[0, 0])
    return lambda seed: int(np.ravel(chain(results, seed))[0])

  runners = {name: runner(*case) for name, case in cases.items()}
  best = dict.fromkeys(runners, float('inf'))
  for repeat in range(repeats + 1):
    for name, chain in runners.items():
      begin = time.perf_counter()
      gradients = chain(tf.constant([0, repeat]))
      seconds = (time.perf_counter() - begin) * epochs * size / gradients
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
  far = Record(*(x[far.cost.min(axis=1) < epochs] for x in far[:2]), {})
  excess = excess_by_epoch(problem, far, epochs)
  return dict(
      excess=excess, notes=record.notes,
      arrival=arrival(excess, ARRIVED * law.excess),
      largest=mixing(law, near, -1), smallest=mixing(law, near, 0))


def compare(problem, law, names, arguments, sizes, use):
  """Runs the samplers: {name: what `judge` found}, and how steps were tuned."""
  num_chains, num_slow, num_tune, epochs, long_epochs, num_draws = sizes
  far = problem.draw(num_chains, 10., common.seed_of(arguments, use))
  near = tf.constant(law.draws[0], tf.float32)
  results, tuning = {}, {}
  for k, name in enumerate(common.progress(names, arguments, 'samplers')):
    run_to = (long_epochs, problem, num_draws,
              common.seed_of(arguments, use + 1 + k))
    if name in ('lipSBPS', 'ZZ-SS'):
      start = tf.concat([far[:num_slow], near[:num_slow]], axis=0)
      records, num_far = {name: record_exact(name, start, *run_to)}, num_slow
    elif name in ('SBPS', 'pSBPS'):
      kernel = sbps(problem) if name == 'SBPS' else preconditioned(problem)
      start = tf.concat([far, near[:num_chains]], axis=0)
      records, num_far = {name: record_path(kernel, start, *run_to)}, num_chains
    else:
      # The last chains tune the step, and are in no figure that is reported.
      tuners = near[num_chains:num_chains + num_tune]
      start = tf.concat([far, near[:num_chains], tuners], axis=0)
      grid = record_steps(name, start, *run_to)
      tuning[name] = {
          step: sd_error(law, Record(r.draws[:, -num_tune:], None, {}))
          for step, r in grid.items()}
      best = max(
          [s for s in grid if tuning[name][s] < 0.1] or [min(grid)])
      tuning[f'{name}, tuned'] = best
      wanted = {f'{name}, 0.1': 0.1, f'{name}, tuned': best}
      if name == 'SGLD':
        wanted[f'{name}, 0.01'] = 0.01
      records = {
          label: Record(*(x[:, :-num_tune] for x in grid[step][:2]), {})
          for label, step in wanted.items()}
      num_far = num_chains
    for label, record in records.items():
      results[label] = judge(problem, law, record, num_far, epochs)
  return results, tuning


def run(arguments):
  # Chains, those of the samplers with n = 1, those that tune the steps; epochs
  # to reach the posterior, and of the whole run; draws.
  sizes = common.sizes(
      arguments, (4, 2, 8, 2, 4, 20), (96, 16, 96, 100, 400, 800),
      (32, 16, 256, 100, 2000, 4000))
  problem = paper_problem(arguments.seed)
  scaled = make_problem(
      arguments.seed, np.geomspace(0.1, 3., 20), largest_weight=1.)
  laws = [
      hmc(p, common.sizes(arguments, 20, 250, 1000), sizes[0] + sizes[2],
          common.seed_of(arguments, k))
      for k, p in enumerate((problem, scaled))]
  results, tuning = compare(
      problem, laws[0], ['SBPS', 'pSBPS', 'SGLD', 'mSGNHT', 'lipSBPS', 'ZZ-SS'],
      arguments, sizes, 100)
  pair, _ = compare(
      scaled, laws[1], ['SBPS', 'pSBPS'], arguments, sizes, 200)
  seconds = cpu_seconds(problem, common.sizes(arguments, 2, 100, 100), 3)
  return report(results, pair, seconds, tuning, laws, sizes)


def preconditioned(problem):
  """pSBPS, with the paper's beta and epsilon."""
  return sbps(problem, preconditioner=sgmcmc.preconditioners.RMSProp(
      decay=0.99, regularizer=1e-4, normalize=True))


def report(results, pair, seconds, tuning, laws, sizes):
  published = {
      'SBPS': '1st', 'SGLD, 0.1': 'after SBPS', 'SGLD, 0.01': 'after SBPS',
      'mSGNHT, 0.1': 'after SBPS', 'lipSBPS': 'orders slower',
      'ZZ-SS': 'orders slower'}
  rows = [
      [name, *r['arrival'], float(np.median(r['excess'][-1])),
       *r['largest'].at_lag, *r['smallest'].at_lag,
       r['largest'].sd[0], r['smallest'].sd[0],
       seconds.get(name), published.get(name)]
      for name, r in (*results.items(), *(
          (f'{name}, scaled features', r) for name, r in pair.items()))]

  def sooner(ours, others, table, text):
    """Whether one arrives before the others, by 2 standard errors."""
    (epoch, error), them = table[ours]['arrival'], {
        name: table[name]['arrival'] for name in others}
    return common.Claim(
        text, all(epoch < e - 2. * np.hypot(error, s)
                  for e, s in them.values()),
        f'epoch {epoch:g} (s.e. {error:.1f}); ' + ', '.join(
            f'{name}: {e:g} ({s:.1f})' for name, (e, s) in them.items()))

  def faster(ours, others, table, where, text):
    (value, error), them = table[ours][where].at_lag, {
        name: table[name][where].at_lag for name in others}
    return common.Claim(
        text, all(value < v - 2. * np.hypot(error, s)
                  for v, s in them.values()),
        f'{value:.3f} (s.e. {error:.3f}); ' + ', '.join(
            f'{name}: {v:.3f} ({s:.3f})' for name, (v, s) in them.items()))

  inexact = [name for name in results if 'SG' in name]
  exact = ['lipSBPS', 'ZZ-SS']
  there = ('the median over chains of -log density, over the mode\'s, is below '
           f'{ARRIVED} times the posterior\'s')
  narrow = results['SBPS']['smallest'].sd
  wide = results['SBPS']['largest'].sd
  share = seconds and min(seconds[name] for name in exact) / seconds['SBPS']
  claims = [
      sooner('SBPS', inexact, results, 'SBPS reaches the posterior in fewer '
             f'epochs than SGLD and mSGNHT, tuned and not: {there}'),
      sooner('SBPS', exact, results,
             'SBPS reaches it in fewer epochs than lipSBPS and ZZ-SS'),
      *(faster('SBPS', inexact + exact, results, where,
               f'Along the direction of {where} variance SBPS has the lowest '
               f'autocorrelation at a lag of {LAG:g} epochs')
        for where in ('largest', 'smallest')),
      common.Claim(
          'SBPS, n = 100, takes less than a tenth of the time of lipSBPS and '
          'ZZ-SS, n = 1, for the same number of gradients (published: 1/35)',
          bool(share > 10.), ', '.join(
              f'{name}: {value:.3g} s' for name, value in seconds.items())),
      common.Claim(
          "The bias of SBPS is small: standard deviations within 10% of HMC's "
          'along both directions',
          bool(max(abs(narrow[0] - 1.), abs(wide[0] - 1.)) < 0.1),
          f'{wide[0]:.3f} (s.e. {wide[1]:.3f}) and {narrow[0]:.3f} '
          f'({narrow[1]:.3f}) times; bound violated at '
          f'{results["SBPS"]["notes"]["violation_share"]:.2%} of proposals'),
      sooner('pSBPS', ['SBPS'], pair, 'pSBPS reaches the posterior in fewer '
             'epochs than SBPS where features have unequal scales'),
      faster('pSBPS', ['SBPS'], pair, 'largest', 'pSBPS mixes faster along the '
             f'direction of greatest variance there (lag of {LAG:g} epochs)')]
  settings = dict(
      num_examples=1000, num_features=20, batch_size=BATCH_SIZE,
      confidence=CONFIDENCE, refresh_rate=1., prior='N(0, 100)',
      start='N(mode, 10 x Laplace\'s covariance)',
      num_chains=sizes[0], num_chains_of_exact=sizes[1],
      num_chains_tuning=sizes[2],
      epochs=sizes[3], long_epochs=sizes[4], tuning=tuning,
      stationary_excess=[law.excess for law in laws],
      notes={name: r['notes'] for name, r in results.items() if r['notes']})
  return common.Result(
      ['sampler', 'epochs to the posterior', 'its s.e.',
       'excess -log density at the end', 'ACF largest', 'its s.e.',
       'ACF smallest', 'its s.e.', 'sd over HMC, largest', 'smallest',
       'seconds, one chain', 'published order'], rows, claims,
      draw_figure(results, pair, seconds, laws), settings,
      f'Tuned steps: {tuning["SGLD, tuned"]:g} for SGLD, '
      f'{tuning["mSGNHT, tuned"]:g} for mSGNHT. The posterior\'s mean excess '
      f'is {laws[0].excess:.1f}.')


def draw_figure(results, pair, seconds, laws):
  picture = figure.Figure(figsize=(12, 7), layout='constrained')
  axes = picture.subplots(2, 3)

  def curves(ax, table, law):
    for name, r in table.items():
      median = np.median(r['excess'], axis=1)
      ax.plot(np.arange(len(median)) + 0.5, median, color=COLORS[name],
              label=name)
    ax.axhline(law.excess, color='k', linestyle='--', label='HMC')
    ax.set(xlabel='epochs', ylabel='-log density, over the mode; median',
           yscale='log')

  def correlations(ax, table, where):
    for name, r in table.items():
      keep = r[where].lags <= 5. * LAG
      ax.plot(r[where].lags[keep], r[where].values[keep], color=COLORS[name])
    ax.axhline(0., color='k', linewidth=0.7)
    ax.set(xlabel='lag in epochs', ylabel='autocorrelation')

  curves(axes[0, 0], results, laws[0])
  for k, where in enumerate(('largest', 'smallest')):
    correlations(axes[0, 1 + k], results, where)
    axes[0, 1 + k].set_title(f'direction of {where} variance')
  axes[0, 0].set_title('from afar, the paper\'s posterior')
  ax = axes[1, 0]
  ax.bar(list(seconds), list(seconds.values()),
         color=[COLORS[name] for name in seconds])
  ax.set(yscale='log', ylabel='seconds, one chain', title='equal data cost')
  curves(axes[1, 1], pair, laws[1])
  axes[1, 1].set_title('features of unequal scales')
  correlations(axes[1, 2], pair, 'largest')
  axes[1, 2].set_title('the same, largest variance')
  handles, labels = axes[0, 0].get_legend_handles_labels()
  picture.legend(handles, labels, loc='outside right upper')
  return picture


def main(argv=None):
  return common.main('logistic_bouncy', run, __doc__, argv)


if __name__ == '__main__':
  main()
