"""Mean squared error against T and h: EWSG paper, Fig. 1 j-l, Theorem 4.

  E (phi_K - phi)^2 <= C (1 / T + h / T mean Tr cov + h^2),  T = K h

phi_K is the mean of phi along a chain of K steps, phi its mean under the
target, with cov that of the gradient estimate. The target is that of
`ewsg_gaussian` with n = 20, gamma = 10, M = 1; phi(theta) = |theta - mean|^2,
the variance (summed over the coordinates). The paper draws three figures:
the error against T (slope -1), against a small h at a given T (slope 1), and
against h as T goes to infinity (slope 2). Here chains start in the target, so
that nothing is due to where they start, and the third is the square of the
bias, the error of the mean over all chains, less its own variance. SGHMC, to
which the theorem applies as well, runs beside EWSG.

Slopes are least-squares lines through logarithms, their errors from resampling
chains. Errors are in units of phi^2.
"""

from matplotlib import figure
import numpy as np
import tensorflow as tf

from experiments import common
from experiments import ewsg_gaussian
import tfp_sgmcmc as sgmcmc

N = 20
STEP_SIZES = 0.0025 * 2.**np.arange(0., 5., 0.625)
TIME = 8.  # T of the second figure.
FIRST_STEP = 4  # Of STEP_SIZES: where h is not small any more.


def programs(name):
  """Two compiled functions: the first results; steps, and the sum of phi."""
  make_kernel = ewsg_gaussian.kernel_maker(name, N)

  @tf.function(jit_compile=True, autograph=False)
  def start(c, step_size, theta, seed):
    return make_kernel(
        ewsg_gaussian.posterior(c), step_size).bootstrap_results(theta, seed)

  @tf.function(jit_compile=True, autograph=False)
  def advance(c, step_size, theta, results, first, last, seed):
    kernel = make_kernel(ewsg_gaussian.posterior(c), step_size)
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


def sample(name, arguments):
  """Step numbers, and phi's sums up to them: `[records, h, chains]`."""
  num_chains = common.sizes(arguments, 20, 5000, 20_000)
  stride = common.sizes(arguments, 10, 20, 20)
  records = np.arange(
      stride, common.sizes(arguments, 3200, 4800, 20_000) + 1, stride)
  c = sgmcmc.random.normal([N, 2], common.seed_of(arguments, 1))
  step_size = tf.constant(STEP_SIZES[:, np.newaxis, np.newaxis], tf.float32)
  theta = tf.reduce_mean(c, axis=0) + sgmcmc.random.normal(
      [len(STEP_SIZES), num_chains, 2], common.seed_of(arguments, 0)
  ) / np.float32(np.sqrt(N))
  start, advance = programs(name)
  results = start(c, step_size, theta, common.seed_of(arguments, 2))
  sums, total = [], 0.
  for step in common.progress(records, arguments, name):
    theta, results, part = advance(
        c, step_size, theta, results, tf.constant(step - stride),
        tf.constant(step), common.seed_of(arguments, 3))
    total = total + part.numpy().astype(np.float64)
    sums.append(total / (2. / N))
  return records, np.array(sums)


def slope(x, y):
  return np.polyfit(np.log(x), np.log(y), 1)[0]


class Errors:
  """The three figures of a sampler, from phi's sums over chains."""

  def __init__(self, records, sums):
    self._records = records
    self._sums = sums
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

  def slopes(self, chains=slice(None)):
    large = slice(FIRST_STEP, None)
    squared = self.squared_bias(chains)
    return np.array([
        slope(self.times, self.by_time(chains)),
        slope(STEP_SIZES[:FIRST_STEP], self.by_small_step(chains)),
        slope(STEP_SIZES[large], squared[large]),
        slope(STEP_SIZES, squared)])

  def resampled(self, fn, seed):
    return common.bootstrap_error(
        fn, self.num_chains, np.random.default_rng(seed))


FIGURES = (
    ('j', 'MSE against T', -1.),
    ('k', f'MSE against h < {STEP_SIZES[FIRST_STEP]:.3g}, T = {TIME:g}', 1.),
    ('l', f'squared bias against h >= {STEP_SIZES[FIRST_STEP]:.3g}', 2.),
    ('l', 'squared bias against all h', 2.))


def run(arguments):
  found = {
      name: Errors(*sample(name, arguments)) for name in ('EWSG', 'SGHMC')}
  rows, slopes = [], {}
  for name, errors in found.items():
    value, error = errors.slopes(), errors.resampled(
        errors.slopes, arguments.seed)
    slopes[name] = value, error
    rows += [
        [panel, name, what, float(s), float(e), published]
        for (panel, what, published), s, e in zip(FIGURES, value, error)]
  settings = dict(
      n=N, friction=ewsg_gaussian.FRICTION, num_index_steps=1, batch_size=1,
      num_chains=errors.num_chains, num_steps=errors.num_steps,
      step_sizes=STEP_SIZES, start='the target', slope_against_T_at_h=
      STEP_SIZES[1], T_from=1., T_to=TIME)
  return common.Result(
      ['panel', 'sampler', 'slope of', 'slope', 'its error', 'published slope'],
      rows, claims(found, slopes), draw(found, arguments), settings)


def shares(errors):
  bias, error = errors.bias()
  return ', '.join(
      f'{h:.2g}: {b:+.1%} ({e:.1%})'
      for h, b, e in zip(STEP_SIZES, bias, error))


def claims(found, slopes):
  bias, error = found['EWSG'].bias()
  changes = np.any(bias > 3. * error) and np.any(bias < -3. * error)
  remark = (
      "; EWSG's bias is negative at small h and positive at large h, so that "
      'it is zero between and no power of h' if changes else '')
  heat = found['SGHMC'].bias()[0]
  claims = []
  for k, (text, tolerance) in enumerate((
      ('MSE falls as 1 / T (slope -1, within 0.15)', 0.15),
      ('At a given T the MSE grows as h where h is small (slope 1, within 0.3)',
       0.3),
      ('As T goes to infinity the MSE grows as h^2 for large h (slope 2, '
       'within 0.5)', 0.5))):
    (ewsg, ewsg_error), (sghmc, sghmc_error) = (
        (value[k], e[k]) for value, e in (slopes['EWSG'], slopes['SGHMC']))
    claims.append(common.Claim(
        f'EWSG: {text}', bool(abs(ewsg - FIGURES[k][2]) < tolerance),
        f'slope {ewsg:.2f} with error {ewsg_error:.2f}; SGHMC {sghmc:.2f} with '
        f'error {sghmc_error:.2f}{remark if k else ""}'))
  claims.append(common.Claim(
      "EWSG's variance has a smaller error than SGHMC's: |bias| below at each "
      'h', bool(np.all(np.abs(bias) < heat)),
      f'EWSG {shares(found["EWSG"])}; SGHMC {shares(found["SGHMC"])}'))
  return claims


def draw(found, arguments):
  picture = figure.Figure(figsize=(11, 4), layout='constrained')
  axes = picture.subplots(1, 3)
  for k, (name, errors) in enumerate(found.items()):
    for ax, x, fn in (
        (axes[0], errors.times, errors.by_time),
        (axes[1], STEP_SIZES[:FIRST_STEP], errors.by_small_step),
        (axes[2], STEP_SIZES, errors.squared_bias)):
      y, e = fn(), errors.resampled(fn, arguments.seed)
      ax.errorbar(x, y, e, fmt='o-', color=f'C{k}', label=name)
      if name == 'SGHMC':
        power = {0: -1., 1: 1., 2: 2.}[list(axes).index(ax)]
        anchor = y[-1] * 1.6
        ax.plot(x, anchor * (x / x[-1])**power, 'k--',
                label=f'slope {power:g}')
  for ax, title, label in zip(
      axes, (f'(j) h = {STEP_SIZES[1]:.2g}', f'(k) T = {TIME:g}',
             '(l) T to infinity'), ('T (time)', 'h (time)', 'h (time)')):
    ax.set(title=title, xlabel=label, xscale='log', yscale='log',
           ylabel='MSE of the variance, relative')
    x = ax.lines[0].get_xdata()[::2]
    ax.set_xticks(x, [f'{value:.2g}' for value in x])
    ax.minorticks_off()
    ax.legend(fontsize='small')
  axes[2].set_ylim(bottom=max(1e-6, axes[2].get_ylim()[0]))
  return picture


def main(argv=None):
  return common.main('ewsg_error', run, __doc__, argv)


if __name__ == '__main__':
  main()
