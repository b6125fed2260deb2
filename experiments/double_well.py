"""Density and kinetic energy in a double well: Ding et al. (2014), Fig. 1.

  U(theta) = (theta + 4) (theta + 1) (theta - 1) (theta - 3) / 14 + 0.5

with the step h = 0.01 and noise N(0, 2 B h), B = 1, on h grad U; no noise is
added (A = 0). With a friction fixed at xi the temperature is B / xi: only
xi = B = 1 is right. The thermostat of SGNHT has to find that out. The paper
runs one chain of a million steps; here many chains run at once, and the error
of a figure is that of resampling chains.

The comparison of ours has SGHMC, which is not told of the noise, beside SGNHT,
each with its best step size and friction (A: of SGNHT the diffusion) of a grid.
The gradient's noise is a given, the same at each step size: that of the figure.
What is judged is how far one chain of so many steps is from the density, root
mean square over chains of its total variation. So bias counts, and slow mixing.
"""

import functools

from matplotlib import figure
import numpy as np
import tensorflow as tf

from experiments import common
from experiments import parts
from experiments import thermostats
import tfp_sgmcmc as sgmcmc

STEP_SIZE, NOISE = 0.01, 1.
FRICTIONS = (1., 10., 0.1)
# The grid of ours. A step of SGHMC is unstable where h A is 2 or more.
STEP_SIZES = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16)
DIFFUSIONS = (0.1, 0.3, 1., 3., 10., 30., 100.)
EDGES = np.linspace(-6., 6., 121)
PAPER = functools.partial(
    common.Quotation, 'Ding et al. (2014)', 'section 3, Fig. 1')
PUBLISHED = ('0.5', 'drops to a low value', 'too high', '0.5')


def log_prob(theta):
  return -(
      (theta + 4.) * (theta + 1.) * (theta - 1.) * (theta - 3.) / 14. + 0.5)


def true_density():
  """Probability of each bin, by the trapezium rule on a fine grid."""
  grid = np.linspace(-8., 8., 160_001)
  density = np.exp(log_prob(grid))
  mass = np.concatenate([[0.], np.cumsum((density[1:] + density[:-1]) / 2.)])
  return np.diff(np.interp(EDGES, grid, mass)) / mass[-1]


def histogram(draws):
  """Share of the draws in each bin; what lies outside is in none."""
  return np.histogram(draws, EDGES)[0] / draws.size


def total_variation(share, truth):
  outside = max(0., 1. - share.sum())
  return (np.abs(share - truth).sum() + outside + 1. - truth.sum()) / 2.


def sample(kernel, shape, arguments, use):
  """Positions, kinetic energies and frictions: `[num_draws, *shape]` each."""
  num_draws = common.sizes(arguments, 40, 400, 2000)
  thinning = common.sizes(arguments, 10, 50, 500)
  seed = common.seed_of(arguments, use)
  draws = sgmcmc.sample(
      kernel, num_draws, sgmcmc.random.normal(shape, seed), seed=seed,
      num_steps_between_results=thinning - 1,
      progress_bar=not arguments.quiet,
      trace_fn=lambda _, results: (
          tf.square(results.momentum[0]) / 2.,
          getattr(results, 'thermostat', tf.zeros([]))))
  return draws.states.numpy(), *(x.numpy() for x in draws.trace)


def tune(noisy, arguments):
  """`thermostats.Tuning`, and its settings for the record."""
  truth = true_density()

  def error(theta):
    """Total variation of each chain; of one that is lost it is 1."""
    return np.apply_along_axis(
        lambda draws: total_variation(histogram(draws), truth), 0,
        theta[len(theta) // 2:])

  return thermostats.tune(
      log_prob, noisy, STEP_SIZES, DIFFUSIONS, common.sizes(
          arguments, (4, 40, 5), (200, 2000, 10), (40, 20_000, 50)),
      sgmcmc.random.normal, error, arguments, use=2, share=0.93)


def run(arguments):
  num_chains = common.sizes(arguments, 50, 1000, 100)
  noisy = sgmcmc.gradients.GaussianNoise(
      noise_scale=np.sqrt(2. * NOISE / STEP_SIZE))
  friction = tf.constant(FRICTIONS)[:, tf.newaxis]
  # With a noise estimate as large as the friction SGHMC adds no noise itself.
  fixed = sgmcmc.SGHMC(
      log_prob, STEP_SIZE, friction, gradient_estimator=noisy,
      noise_estimate=friction)
  thermostat = sgmcmc.SGNHT(
      log_prob, STEP_SIZE, diffusion=0., gradient_estimator=noisy,
      integrator='euler')
  kernels = (fixed, len(FRICTIONS)), (thermostat, 1)
  (theta, kinetic, _), sgnht = parts.each(
      lambda k: sample(
          kernels[k][0], [kernels[k][1], num_chains], arguments, k),
      range(2), arguments, 'samplers', share=0.07)
  theta, kinetic = (
      np.concatenate(pair, axis=1)
      for pair in zip((theta, kinetic), sgnht[:2]))
  half = len(theta) // 2  # Burn-in.
  xi = sgnht[2][half:].mean(axis=(0, 1))
  xi, xi_error = xi.mean(), xi.std() / np.sqrt(num_chains)
  return report(
      theta, kinetic, half, (xi, xi_error), *tune(noisy, arguments), arguments)


def report(theta, kinetic, half, xi, tuning, tuning_settings, arguments):
  truth = true_density()
  names = [f'xi = {value:g}' for value in FRICTIONS] + ['SGNHT']
  num_chains = theta.shape[2]
  random = np.random.default_rng(arguments.seed)
  rows, measured = [], []
  for k, name in enumerate(names):
    shares = np.stack([
        histogram(theta[half:, k, c]) for c in range(num_chains)])
    energies = kinetic[half:, k].mean(axis=0)
    spread = common.bootstrap_error(
        lambda chosen, shares=shares: total_variation(
            shares[chosen].mean(axis=0), truth), num_chains, random, 100)
    distance = total_variation(shares.mean(axis=0), truth)
    energy, error = energies.mean(), energies.std() / np.sqrt(num_chains)
    measured.append((distance, energy, error))
    rows.append([
        "the paper's", name, float(distance), float(spread), None, None,
        float(energy), float(error), PUBLISHED[k]])
  rows += [
      ['ours', f'{name}, {tuning.labels[name]}', None, None, found.error,
       found.spread, None, None, None] for name, found in tuning.best.items()]

  def claim(words, text, k, holds):
    distance, energy, error = measured[k]
    return common.Claim(
        text, bool(holds(distance, energy)),
        f'total variation {distance:.3f}, kinetic energy {energy:.3f} with '
        f'standard error {error:.3f}', PAPER(words))

  def right(distance, energy):
    return distance < 0.05 and abs(energy - 0.5) < 0.02

  claims = [
      claim('when ξ = B = 1 [...] the sampling is accurate and the kinetic '
            'energy is controlled around 0.5',
            'total variation below 0.05, kinetic energy within 0.02 of 0.5', 0,
            right),
      claim('When ξ > B, the kinetic energy drops to a low value, and the '
            'sampling gets stuck in one local minimum',
            'with xi = 10 kinetic energy below 0.1, total variation above 0.3',
            1, lambda d, e: d > 0.3 and e < 0.1),
      claim('When ξ < B, the kinetic energy gets too high, and the sampling '
            'looks like a random walk',
            'with xi = 0.1 kinetic energy above 2, total variation above 0.3',
            2, lambda d, e: d > 0.3 and e > 2.),
      claim('For SGNHT, the sampling looks as accurate as the one with ξ = B '
            'and the kinetic energy is also controlled around 0.5',
            'total variation below 0.05, kinetic energy within 0.02 of 0.5', 3,
            right),
      common.Claim(
          'mean of xi over the second half within 0.05 of 1',
          bool(abs(xi[0] - 1.) < 0.05),
          f'mean {xi[0]:.3f} with standard error {xi[1]:.3f}',
          PAPER('the value of ξ of SGNHT quickly converges to B = 1')),
      tuning.claim('total variation of one chain')]
  settings = dict(
      step_size=STEP_SIZE, noise=NOISE, num_chains=num_chains, start='N(0, 1)',
      num_steps=len(theta) * common.sizes(arguments, 10, 50, 500),
      burn_in='the first half', bins='120 of width 0.1', ours=tuning_settings)
  return common.Result(
      ['settings', 'sampler', 'total variation', 'its error',
       'that of one chain', 'its error', 'kinetic energy', 'its error',
       'published kinetic energy'],
      rows, claims, draw(names, theta, kinetic, half, truth, tuning), settings,
      'Ours is a grid of step sizes and frictions, with the noise of the '
      'gradient as it is in the figure, and equal numbers of steps; the total '
      'variation of a chain that did not stay finite is 1. The friction of '
      'SGNHT is A and 100 h, what the noise amounts to: beside it the lowest '
      'A of the grid is next to none.')


def draw(names, theta, kinetic, half, truth, tuning):
  picture = figure.Figure(figsize=(14, 5), layout='constrained')
  middles, width = (EDGES[1:] + EDGES[:-1]) / 2., EDGES[1] - EDGES[0]
  left, right = picture.subfigures(1, 2, width_ratios=(4., 1.3))
  axes = left.subplots(2, len(names))
  times = np.arange(1, len(kinetic) + 1)[:, np.newaxis]
  running = np.cumsum(kinetic.mean(axis=2), axis=0) / times
  for k, name in enumerate(names):
    upper, lower = axes[:, k]
    upper.plot(middles, truth / width, 'k--', label='true')
    upper.plot(
        middles, histogram(theta[half:, k]) / width, color=f'C{k}',
        label='samples')
    upper.set(title=name, xlabel=r'$\theta$')
    lower.plot(times / len(times), running[:, k], color=f'C{k}')
    lower.axhline(0.5, color='k', linestyle='--')
    lower.set(xlabel='share of the run', ylim=(0., None))
  axes[0, 0].set_ylabel('density')
  axes[1, 0].set_ylabel('mean kinetic energy so far')
  axes[0, 0].legend(loc='upper right', fontsize='small')
  tuning.plot(right.subplots(), 'total variation of one chain')
  return picture


def main(argv=None):
  return common.main('double_well', run, __doc__, argv)


if __name__ == '__main__':
  main()
