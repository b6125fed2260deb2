"""Mean squared error against T and h: EWSG paper, Fig. 1 j-l, Theorem 4.

  E (phi_K - phi)^2 <= C (1 / T + h / T mean Tr cov + h^2),  T = K h

phi_K is the mean of phi along a chain of K steps, phi its mean under the
target, with cov that of the gradient estimate. The target is that of
`ewsg_gaussian` with n = 20, gamma = 10, M = 1; phi(theta) = |theta - mean|^2,
the variance (summed over the coordinates). The paper draws three figures: the
error against T (slope -1), against a small h at a given T, and against h as T
goes to infinity (slope 2). The theorem is an upper bound, and at a given T its
first term does not depend on h: so the second figure is held to a line a + b h,
of which b has to be above 0 by two standard errors if it scales with h at all.
Here chains start in the target, so that nothing is due to where they start, and
the third is the square of the bias, the error of the mean over all chains, less
its own variance. SGHMC, to which the theorem applies as well, runs beside EWSG.

The paper's settings are its integrator, explicit Euler; ours the one that moves
theta by the new momentum. Slopes are least-squares lines through logarithms,
their errors from resampling chains. Errors are in units of phi^2.
"""

import functools

from matplotlib import figure
import numpy as np
import tensorflow as tf

from experiments import common
from experiments import ewsg_gaussian
from experiments import parts
import tfp_sgmcmc as sgmcmc

PAPER = functools.partial(common.Quotation, 'Li et al. (2021)')
N = 20
STEP_SIZES = 0.0025 * 2.**np.arange(0., 5., 0.625)
TIME = 8.  # T of the second figure.
FIRST_STEP = 4  # Of STEP_SIZES: where h is not small any more.


def programs(job):
  """Two compiled functions: the first results; steps, and the sum of phi."""
  @tf.function(jit_compile=True, autograph=False)
  def start(c, step_size, theta, seed):
    return job.kernel(
        ewsg_gaussian.posterior(c), step_size).bootstrap_results(theta, seed)

  @tf.function(jit_compile=True, autograph=False)
  def advance(c, step_size, theta, results, first, last, seed):
    kernel = job.kernel(ewsg_gaussian.posterior(c), step_size)
    mean = tf.reduce_mean(c, axis=0)

    def one_step(step, theta, results, total):
      theta, results = kernel.one_step(
          theta, results, seed=sgmcmc.random.fold_in(seed, step))
      phi = tf.reduce_sum(tf.square(theta - mean), axis=-1)
      return step + 1, theta, results, total + phi

    _, theta, results, total = tf.while_loop(
        lambda step, *_: step < last, one_step,
        (first, theta, results, tf.zeros(theta.shape[:-1])))
    return theta, results, total

  return start, advance


def sample(job, arguments):
  """Step numbers, phi's sums up to them, `[records, h, chains]`, acceptance.

  The last is that of the index chain by h, or None without one.
  """
  num_chains = common.sizes(arguments, 20, 5000, 20_000)
  stride = common.sizes(arguments, 10, 20, 20)
  records = np.arange(
      stride, common.sizes(arguments, 3200, 4800, 20_000) + 1, stride)
  c = sgmcmc.random.normal([N, 2], common.seed_of(arguments, 1))
  step_size = tf.constant(STEP_SIZES[:, np.newaxis, np.newaxis], tf.float32)
  theta = tf.reduce_mean(c, axis=0) + sgmcmc.random.normal(
      [len(STEP_SIZES), num_chains, 2], common.seed_of(arguments, 0)
  ) / np.float32(np.sqrt(N))
  start, advance = programs(job)
  results = start(c, step_size, theta, common.seed_of(arguments, 2))
  sums, total = [], 0.
  for step in records:
    theta, results, part = advance(
        c, step_size, theta, results, tf.constant(step - stride),
        tf.constant(step), common.seed_of(arguments, 3))
    total = total + part.numpy().astype(np.float64)
    sums.append(total / (2. / N))
  acceptance = getattr(
      results.gradient_estimator_results, 'acceptance', None)
  return records, np.array(sums), None if acceptance is None else (
      np.mean(acceptance, axis=-1))


def slope(x, y):
  return np.polyfit(np.log(x), np.log(y), 1)[0]


class Errors:
  """The three figures of a sampler, from phi's sums over chains."""

  def __init__(self, records, sums, acceptance):
    self._records = records
    self._sums = sums
    self.acceptance = acceptance
    self.num_chains, self.num_steps = sums.shape[-1], int(records[-1])
    self.times = np.geomspace(1., TIME, 8)

  def at(self, time, k, chains=slice(None)):
    """MSE of the mean of phi up to a time, at step size k."""
    step = np.argmin(np.abs(self._records * STEP_SIZES[k] - time))
    mean = self._sums[step, k, chains] / self._records[step]
    return np.mean((mean - 1.)**2)

  def by_time(self, chains=slice(None)):
    return np.array([self.at(time, 1, chains) for time in self.times])

  def by_small_step(self, chains=slice(None)):
    return np.array([self.at(TIME, k, chains) for k in range(FIRST_STEP)])

  def bias(self, chains=slice(None)):
    """Bias at each h, over the last three quarters of the run."""
    quarter = len(self._records) // 4 - 1
    mean = (self._sums[-1] - self._sums[quarter])[:, chains] / (
        self._records[-1] - self._records[quarter])
    return np.mean(mean, axis=-1) - 1., np.std(mean, axis=-1) / np.sqrt(
        mean.shape[-1])

  def squared_bias(self, chains=slice(None)):
    bias, error = self.bias(chains)
    return np.maximum(bias**2 - error**2, 1e-12)

  def line(self):
    """The line a + b h: a, b, b's error, and the most it is off, in errors."""
    h = STEP_SIZES[:FIRST_STEP]
    error = self.resampled(self.by_small_step, 0)

    def fit(mse):
      return np.polyfit(h, mse, 1, w=1. / error)

    b, a = fit(self.by_small_step())
    b_error = self.resampled(
        lambda chains: fit(self.by_small_step(chains))[0], 1)
    off = np.abs((a + b * h - self.by_small_step()) / error).max()
    return a, b, b_error, off

  def slopes(self, chains=slice(None)):
    large = slice(FIRST_STEP, None)
    squared = self.squared_bias(chains)
    return np.array([
        slope(self.times, self.by_time(chains)),
        slope(STEP_SIZES[large], squared[large]),
        slope(STEP_SIZES, squared)])

  def chain(self):
    """The least and the largest acceptance by step size, in words."""
    return None if self.acceptance is None else (
        f'{self.acceptance.min():.2f} to {self.acceptance.max():.2f}')

  def resampled(self, fn, seed):
    return common.bootstrap_error(
        fn, self.num_chains, np.random.default_rng(seed))


FIGURES = (
    ('j', 'MSE against T', -1.),
    ('l', f'squared bias against h >= {STEP_SIZES[FIRST_STEP]:.3g}', 2.),
    ('l', 'squared bias against all h', 2.))


def run(arguments):
  jobs = [
      ewsg_gaussian.Job(name, integrator=integrator)
      for integrator in ewsg_gaussian.SETTINGS for name in ('EWSG', 'SGHMC')]
  found = {
      job: Errors(*sums) for job, sums in zip(jobs, parts.each(
          lambda job: sample(job, arguments), jobs, arguments, 'samplers'))}
  rows, slopes = [], {}
  for job, errors in found.items():
    value, error = errors.slopes(), errors.resampled(
        errors.slopes, arguments.seed)
    slopes[job] = value, error
    group = ewsg_gaussian.SETTINGS[job.integrator]
    rows += [
        [panel, group, job.name, f'slope of {what}', float(s), float(e),
         published, errors.chain()] for (panel, what, published), s, e in zip(
             FIGURES, value, error)]
    a, b, b_error, _ = errors.line()
    rows += [
        ['k', group, job.name, f'{name} of MSE = a + b h at T = {TIME:g}', x,
         e, None, errors.chain()]
        for name, x, e in (('a', a, None), ('b', b, b_error))]
  settings = dict(
      n=N, friction=ewsg_gaussian.FRICTION, num_index_steps=1, batch_size=1,
      num_chains=errors.num_chains, num_steps=errors.num_steps,
      step_sizes=STEP_SIZES, start='the target', slope_against_T_at_h=
      STEP_SIZES[1], T_from=1., T_to=TIME)
  return common.Result(
      ['panel', 'settings', 'sampler', 'what', 'value', 'its error',
       'published', 'acceptance of the index chain, by h'],
      rows, claims(found, slopes), draw(found, arguments), settings,
      'There is no comparison at tuned steps: the error by the step is what '
      'the figure is about.')


def shares(errors):
  bias, error = errors.bias()
  return ', '.join(
      f'{h:.2g}: {b:+.1%} ({e:.1%})'
      for h, b, e in zip(STEP_SIZES, bias, error))


def claims(found, slopes):
  """The paper's, of EWSG by its integrator; and ours, by both."""
  job = ewsg_gaussian.Job('EWSG')
  value, error = slopes[job]
  base, base_error = slopes[job._replace(name='SGHMC')]

  def figures(k):
    return (f'slope {value[k]:.2f} with error {error[k]:.2f}; SGHMC '
            f'{base[k]:.2f} with error {base_error[k]:.2f}; {chain}')

  def chain_of(errors):
    return f'acceptance of the index chain {errors.chain()}, by h'

  chain = chain_of(found[job])
  a, b, b_error, off = found[job].line()
  # Any flat curve lies on a line.
  is_seen = b > 2. * b_error
  ours = [
      slopes[ewsg_gaussian.Job(name, integrator=ewsg_gaussian.OURS)][0][1]
      for name in ('EWSG', 'SGHMC')]
  result = [
      common.Claim(
          'the slope of the MSE in T is -1, within 0.15',
          bool(abs(value[0] + 1.) < 0.15), figures(0),
          PAPER('section 5.1, Fig. 1j', 'plots the mean squared error (MSE) '
                'against time T = Kh to confirm the 1st (and the 2nd) term')),
      common.Claim(
          'at a given T the MSE at small h lies on a line a + b h, at each h '
          'within 3 standard errors, and b is above 0 by 2 of them',
          False if off >= 3. else True if is_seen else None,
          f'bounded by a + b h, a = {a:.3g}, b = {b:.2g} with error '
          f'{b_error:.1g}, from h = '
          f'{STEP_SIZES[0]:.2g} to {STEP_SIZES[FIRST_STEP - 1]:.2g} at most '
          f'{off:.1f} standard errors off' + (
              '' if is_seen else '; that it grows with h at all is not seen, '
              'and a line that does not rise is within the upper bound of '
              'Theorem 4') + f'; {chain}',
          PAPER('section 5.1, Fig. 1k', 'plots the MSE against h in the small '
                'h regime (so that the 2nd term dominates the 3rd) to confirm '
                'that the 2nd term scales like O(h) with a fixed T')),
      common.Claim(
          'the slope of the squared bias at large h is 2, within 0.5',
          bool(abs(value[1] - 2.) < 0.5),
          f'{figures(1)}; with the new momentum {ours[0]:.2f} and '
          f'{ours[1]:.2f}' + (
              '' if min(abs(value[1] - 2.), abs(ours[0] - 2.)) < 0.5 else
              '; not seen with either integrator'),
          PAPER('section 5.1, Fig. 1l', 'confirms the final MSE to scale like '
                'O(h^2) even for large h'))]
  for integrator, group in (
      (ewsg_gaussian.PUBLISHED, "the paper's integrator"),
      (ewsg_gaussian.OURS, 'the new momentum')):
    ewsg, sghmc = (
        found[ewsg_gaussian.Job(name, integrator=integrator)]
        for name in ('EWSG', 'SGHMC'))
    result.append(common.Claim(
        f"With {group} EWSG's variance has a smaller error than SGHMC's: "
        '|bias| below at each h',
        bool(np.all(np.abs(ewsg.bias()[0]) < np.abs(sghmc.bias()[0]))),
        f'EWSG {shares(ewsg)}; SGHMC {shares(sghmc)}; {chain_of(ewsg)}'))
  return result


def draw(found, arguments):
  picture = figure.Figure(figsize=(14, 7.5), layout='constrained')
  axes = picture.subplots(2, 4)
  for job, errors in found.items():
    row = list(ewsg_gaussian.SETTINGS).index(job.integrator)
    color, column = {'EWSG': ('C3', 1), 'SGHMC': ('C2', 2)}[job.name]
    label = job.name if errors.acceptance is None else (
        f'{job.name} (acc. {errors.chain()})')
    for ax, x, fn in (
        (axes[row, 0], errors.times, errors.by_time),
        (axes[row, column], STEP_SIZES[:FIRST_STEP], errors.by_small_step),
        (axes[row, 3], STEP_SIZES, errors.squared_bias)):
      y, e = fn(), errors.resampled(fn, arguments.seed)
      ax.errorbar(x, y, e, fmt='o-', color=color, label=label)
    if job.name == 'SGHMC':
      for k, power in ((0, -1.), (3, 2.)):
        x, y = axes[row, k].lines[-1].get_data()
        axes[row, k].plot(x, 1.6 * y[-1] * (x / x[-1])**power, 'k--',
                          label=f'slope {power:g}')
    else:
      a, b, *_ = errors.line()
      x = STEP_SIZES[:FIRST_STEP]
      axes[row, 1].plot(x, a + b * x, 'k--', label='a + b h')
  for row, group in zip(axes, ewsg_gaussian.SETTINGS.values()):
    for ax, title, label in zip(
        row, (f'(j) h = {STEP_SIZES[1]:.2g}', f'(k) EWSG, T = {TIME:g}',
              f'(k) SGHMC, T = {TIME:g}', '(l) T to infinity'),
        ('T (time)', *['h (time)'] * 3)):
      # Panels (k) have straight axes, in which a + b h is a line.
      is_line = title.startswith('(k)')
      ax.set(title=f'{title}, {group}', xlabel=label,
             xscale='linear' if is_line else 'log',
             yscale='linear' if is_line else 'log')
      x = ax.lines[0].get_xdata()[::2]
      ax.set_xticks(x, [f'{value:.2g}' for value in x])
      ax.minorticks_off()
      if is_line:  # Room for the legend.
        low, high = ax.get_ylim()
        ax.set_ylim(low, high + 0.25 * (high - low))
      ax.legend(fontsize='small')
    row[0].set_ylabel('MSE of the variance, relative')
    row[3].set_ylim(bottom=max(1e-6, row[3].get_ylim()[0]))
  return picture


def main(argv=None):
  return common.main('ewsg_error', run, __doc__, argv)


if __name__ == '__main__':
  main()
