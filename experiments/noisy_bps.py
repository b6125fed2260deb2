"""The bouncy particle sampler with gradient noise: Pakman et al. (2017), Fig 1.

A density in two dimensions (a normal one here: the paper names none), with its
exact gradient, and with noise N(0, 5^2) added to each component. Noise of
mean 0 changes nothing in the law of the path (their Theorem 1): bounces come
earlier, and the path mixes more slowly. Both samplers are thinned under a bound
that holds: with noise, seven standard deviations above the rate without.
"""

import functools

from matplotlib import figure
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from experiments import common
from experiments import parts
import tfp_sgmcmc as sgmcmc

PAPER = functools.partial(
    common.Quotation, 'Pakman et al. (2017)', 'Fig. 1')
NOISE, NUM_DEVIATIONS = 5., 7.
REFRESH_RATE = 0.1
MEAN = np.array([0.5, 0.5])
COVARIANCE = np.array([[1., 0.6], [0.6, 1.]])
PRECISION = np.linalg.inv(COVARIANCE)
NAMES = ('exact gradient', 'noisy gradient')
LAGS_PER_UNIT = 5  # Draws in a unit of time.


def noisy_bound(start):
  """The rate without noise, and the noise at seven standard deviations."""
  (theta,), (v,) = start.state_parts, start.velocity
  precision = tf.constant(PRECISION, theta.dtype)
  mean = tf.constant(MEAN, theta.dtype)
  pv = tf.linalg.matvec(precision, v)
  # |v| = 1: the noise of v . g has the standard deviation of a component.
  return sgmcmc.pdmp.AffineRate(
      tf.reduce_sum((theta - mean) * pv, -1) + NUM_DEVIATIONS * NOISE,
      tf.reduce_sum(v * pv, -1))


def kernels():
  target = tfp.distributions.MultivariateNormalTriL(
      tf.constant(MEAN, tf.float32),
      tf.constant(np.linalg.cholesky(COVARIANCE), tf.float32)).log_prob
  return (
      sgmcmc.BouncyParticleSampler(
          target, sgmcmc.pdmp.GaussianBound(PRECISION),
          refresh_rate=REFRESH_RATE),
      sgmcmc.BouncyParticleSampler(
          target, noisy_bound,
          gradient_estimator=sgmcmc.gradients.GaussianNoise(NOISE),
          refresh_rate=REFRESH_RATE))


def times_to_bounce(trace, num_chains):
  """The times from bounce to bounce, of each chain."""
  bounce = np.asarray(trace.event) == sgmcmc.pdmp.Event.BOUNCE
  ends = np.cumsum(np.asarray(trace.duration, np.float64), axis=0)
  return [np.diff(ends[bounce[:, c], c]) for c in range(num_chains)]


def autocorrelation(x, num_lags):
  """Of each chain, by the exact mean and variance: `[num_lags, chains]`."""
  z = x - MEAN[0]
  return np.stack([
      (z[:len(z) - k] * z[k:]).mean(axis=0) / COVARIANCE[0, 0]
      for k in range(num_lags)])


def run(arguments):
  num_chains = common.sizes(arguments, 10, 500, 500)
  # A noisy path proposes some 36 bounces in a unit of time, an exact one 0.5.
  num_events = common.sizes(
      arguments, (200, 4000), (600, 18_000), (2000, 60_000))

  def sample(k):
    """States, and the trace of the path."""
    seed = common.seed_of(arguments, k)
    start = MEAN + np.asarray(sgmcmc.random.normal(
        [num_chains, 2], seed)) @ np.linalg.cholesky(COVARIANCE).T
    draws = sgmcmc.sample(
        kernels()[k], num_events[k], tf.constant(start, tf.float32), seed=seed,
        trace_fn=sgmcmc.pdmp.trace_path, progress_bar=not arguments.quiet)
    return draws.states, draws.trace

  paths, bounces, corners = [], [], []
  for states, trace in parts.each(sample, range(2), arguments, 'samplers'):
    paths.append(sgmcmc.pdmp.Trajectory.from_chain(states, trace))
    bounces.append(times_to_bounce(trace, num_chains))
    event = np.asarray(trace.event[:, 0])
    is_bounce = event == sgmcmc.pdmp.Event.BOUNCE
    is_corner = is_bounce | (event == sgmcmc.pdmp.Event.REFRESHMENT)
    is_shown = is_corner & (np.cumsum(is_bounce) <= 51)
    corners.append(states[:, 0].numpy()[is_shown])
  draws = [
      path.sample(int(LAGS_PER_UNIT * path.duration.mean()))[..., 0].numpy()
      for path in paths]
  return report(draws, bounces, corners, paths, arguments)


def report(draws, bounces, corners, paths, arguments):
  levels = np.linspace(0.05, 0.95, 19)
  true = MEAN[0] + tfp.distributions.Normal(
      np.float64(0.), 1.).quantile(levels).numpy()
  num_chains = draws[0].shape[1]
  quantiles, errors, lags, rows = [], [], [], []
  for k, x in enumerate(draws):
    # The share below a true quantile is a mean over chains, and so has a simple
    # standard error.
    below = (x[..., np.newaxis] < true).mean(axis=0)
    error = below.std(axis=0, ddof=1) / np.sqrt(num_chains)
    errors.append(((below.mean(axis=0) - levels) / error, error))
    quantiles.append(np.quantile(x, levels))
    lags.append(autocorrelation(x, 8 * LAGS_PER_UNIT + 1))
    variance = paths[k].covariance(by_chain=False)[0, 0]
    by_chain = np.array([times.mean() for times in bounces[k] if len(times)])
    rows.append([
        NAMES[k], paths[k].counts.bounces, by_chain.mean(),
        by_chain.std() / np.sqrt(len(by_chain)), float(variance),
        float(np.abs(below.mean(axis=0) - levels).max()), float(error.max()),
        lags[k][LAGS_PER_UNIT].mean(),
        lags[k][LAGS_PER_UNIT].std() / np.sqrt(num_chains),
        ('longer', 'shorter')[k]])
  times = [(row[2], row[3]) for row in rows]
  mixing = [(row[7], row[8]) for row in rows]
  largest = [np.abs(z).max() for z, _ in errors]
  claims = [
      common.Claim(
          'at 19 quantiles of the first coordinate the share of time below is '
          'that of the density within 4 standard errors',
          bool(largest[1] < 4.),
          f'largest deviation {largest[1]:.1f} standard errors with noise, '
          f'{largest[0]:.1f} without; a standard error is at most '
          f'{errors[1][1].max():.4f}',
          PAPER('the invariant distribution is not changed by the noise')),
      common.Claim(
          'shorter by more than 5 standard errors',
          bool(times[1][0] < times[0][0] - 5. * np.hypot(
              times[0][1], times[1][1])),
          f'mean {times[1][0]:.3f} with, {times[0][0]:.3f} without',
          PAPER('travel times until bouncing, with shorter times for noisy '
                'gradients')),
      common.Claim(
          'the autocorrelation at a lag of 1 unit of time is higher, by more '
          'than 5 standard errors',
          bool(mixing[1][0] > mixing[0][0] + 5. * np.hypot(
              mixing[0][1], mixing[1][1])),
          f'{mixing[1][0]:.3f} with, {mixing[0][0]:.3f} without',
          PAPER('ACFs of one of the coordinates, with slower mixing per '
                'iteration in the noisy case'))]
  settings = dict(
      mean=MEAN, covariance=COVARIANCE, noise=NOISE, refresh_rate=REFRESH_RATE,
      num_chains=num_chains, events=[path.counts.events for path in paths],
      durations=[float(path.duration.mean()) for path in paths])
  return common.Result(
      ['gradient', 'bounces', 'time to a bounce', 'its s.e.',
       'variance (true: 1)', 'largest error of a quantile level',
       'its largest s.e.', 'ACF at lag 1', 'its s.e.',
       'published time to a bounce'],
      rows, claims, draw(true, quantiles, bounces, lags, corners), settings,
      'There is no comparison at tuned steps: the sampler has none.')


def draw(true, quantiles, bounces, lags, corners):
  picture = figure.Figure(figsize=(11, 6.5), layout='constrained')
  grid = picture.add_gridspec(2, 6)
  x, y = np.meshgrid(np.linspace(-3., 4., 101), np.linspace(-3., 4., 101))
  z = np.stack([x, y], axis=-1) - MEAN
  density = np.exp(-0.5 * np.einsum('...i,ij,...j->...', z, PRECISION, z))
  for k, name in enumerate(NAMES):
    ax = picture.add_subplot(grid[0, 3 * k:3 * k + 3])
    ax.contour(x, y, density, levels=(0.05, 0.3, 0.7), colors='0.7')
    ax.plot(*corners[k].T, color=f'C{k}', linewidth=1.)
    ax.set(title=f'{name}, 50 bounces', xlabel='x', ylabel='y')
  ax = picture.add_subplot(grid[1, :2])
  for k, name in enumerate(NAMES):
    ax.hist(np.concatenate(bounces[k]), np.linspace(0., 8., 81), density=True,
            histtype='step', color=f'C{k}', label=name)
  ax.set(xlabel='time until a bounce', ylabel='density', yscale='log')
  ax.legend()
  ax = picture.add_subplot(grid[1, 2:4])
  ax.plot(true, true, color='k', linewidth=0.7)
  for k, marker in enumerate('ox'):
    ax.plot(true, quantiles[k], marker, color=f'C{k}', fillstyle='none')
  ax.set(xlabel='true quantile of x', ylabel='quantile of the path')
  ax = picture.add_subplot(grid[1, 4:])
  for k in range(2):
    ax.plot(np.arange(len(lags[k])) / LAGS_PER_UNIT, lags[k].mean(axis=1),
            color=f'C{k}')
  ax.axhline(0., color='k', linewidth=0.7)
  ax.set(xlabel='lag in units of time', ylabel='autocorrelation of x')
  return picture


def main(argv=None):
  return common.main('noisy_bps', run, __doc__, argv)


if __name__ == '__main__':
  main()
