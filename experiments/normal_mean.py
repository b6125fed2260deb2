"""The mean of a normal by minibatches: Ding et al. (2014), Fig. 2, plots 1-3.

N = 100 points of N(0, 1), known variance, flat prior, minibatches of 10. The
posterior is N(mean, 1 / N) and the noise of the gradient is constant. The paper
compares SGHMC and SGNHT at h in {0.01, 0.001} and A in {1, 10}, and looks at
the density of mu and at the mean of SGNHT's friction xi. Here the density is
judged by its variance over the true one, and the error of a figure is that
over chains. The published results are plots: what the text says of them stands
in the table.

The comparison of ours has each sampler with its best h and A of a grid. What is
judged is how far the variance of one chain of so many steps is from the true
one: its mean square about the true mean over the true variance, less 1, root
mean square over chains. So bias counts, and slow mixing.
"""

import functools

from matplotlib import figure
import numpy as np
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from experiments import common
from experiments import parts
from experiments import thermostats
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions

NUM_EXAMPLES, BATCH_SIZE = 100, 10
SETTINGS = ((0.01, 1.), (0.01, 10.), (0.001, 1.), (0.001, 10.))
# The grid of ours. A step of SGHMC is unstable where h A is 2 or more.
STEP_SIZES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
DIFFUSIONS = (0.3, 1., 3., 10., 30., 100., 300.)
PAPER = functools.partial(
    common.Quotation, 'Ding et al. (2014)', 'section 5.1, Fig. 2 (1-3)')
PUBLISHED = (
    'SGNHT accurate, SGHMC not; xi much larger than A',
    'SGNHT accurate, SGHMC not; xi much larger than A',
    'SGNHT accurate, SGHMC not; xi close to A',
    'both accurate; xi close to A')


def label(setting):
  return f'h = {setting[0]:g}, A = {setting[1]:g}'


def tune(posterior, mean, arguments):
  """`thermostats.Tuning`, and its settings for the record."""
  def error(mu):
    """Of the variance of each chain; infinite if it is lost."""
    with np.errstate(over='ignore'):  # Of chains that are lost.
      squares = np.square(mu[len(mu) // 4:] - mean)
    found = NUM_EXAMPLES * np.mean(squares, axis=0, dtype=np.float64) - 1.
    return np.where(np.isfinite(found), found, np.inf)

  return thermostats.tune(
      posterior, sgmcmc.gradients.Uniform(BATCH_SIZE), STEP_SIZES, DIFFUSIONS,
      common.sizes(arguments, (4, 40, 5), (24, 1000, 10), (24, 10_000, 10)),
      lambda shape, seed: tf.zeros(shape), error, arguments, use=3, share=0.82)


def run(arguments):
  num_chains = common.sizes(arguments, 20, 200, 20)
  num_draws = common.sizes(arguments, 40, 400, 10_000)
  thinning = common.sizes(arguments, 5, 100, 100)
  x = sgmcmc.random.normal([NUM_EXAMPLES], common.seed_of(arguments, 0))
  posterior = sgmcmc.Posterior(
      tf.zeros_like,
      lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x), x)
  kernels = thermostats.kernels(
      posterior, SETTINGS, sgmcmc.gradients.Uniform(BATCH_SIZE))

  def sample(name):
    chains = sgmcmc.sample(
        kernels[name], num_draws, tf.zeros([len(SETTINGS), num_chains]),
        num_steps_between_results=thinning - 1,
        trace_fn=lambda _, results: getattr(
            results, 'thermostat', tf.zeros([])),
        seed=common.seed_of(arguments, 1 + list(kernels).index(name)),
        progress_bar=not arguments.quiet)
    return (chains.states.numpy(), chains.trace.numpy(),
            common.num_gradients(chains.kernel_results))

  runs = parts.each(sample, kernels, arguments, 'samplers', share=0.18)
  draws = {name: states for name, (states, *_) in zip(kernels, runs)}
  _, friction, num_gradients = runs[-1]
  settings = dict(
      num_chains=num_chains, num_draws=num_draws, thinning=thinning,
      burn_in='the first quarter', start=0., batch_size=BATCH_SIZE,
      gradients_per_chain=num_gradients)
  x = x.numpy()
  tuning, settings['ours'] = tune(posterior, x.mean(), arguments)
  return report(x, draws, friction, tuning, settings)


def ratio(draws):
  """Variance over the true one, and its error over chains."""
  squares = np.square(draws - draws.mean()).mean(axis=0) * NUM_EXAMPLES
  return squares.mean(), squares.std() / np.sqrt(len(squares))


def report(x, draws, friction, tuning, settings):
  burn_in = len(friction) // 4
  draws = {name: states[burn_in:] for name, states in draws.items()}
  ratios = {
      name: [ratio(states[:, k]) for k in range(len(SETTINGS))]
      for name, states in draws.items()}
  means = friction[burn_in:].mean(axis=0)  # [settings, chains]
  xi = means.mean(axis=1)
  xi_error = means.std(axis=1) / np.sqrt(means.shape[1])
  rows = []
  for k, setting in enumerate(SETTINGS):
    rows.append([
        "the paper's", label(setting), *ratios['SGHMC'][k],
        *ratios['SGNHT'][k], xi[k], xi_error[k], None, None, PUBLISHED[k]])
  rows += [
      ['ours', f'{name}, {tuning.labels[name]}', *[None] * 6, found.error,
       found.spread, None] for name, found in tuning.best.items()]

  def listed(values):
    return ', '.join(
        f'{value:.2f} (standard error {error:.2f}) at {label(setting)}'
        for (value, error), setting in zip(values, SETTINGS))

  sghmc, sgnht = (
      np.array([value for value, _ in ratios[name]])
      for name in ('SGHMC', 'SGNHT'))
  claims = [
      common.Claim(
          'the variance of mu is within 15% of the true one at all settings',
          bool(np.all(abs(sgnht - 1.) < 0.15)), listed(ratios['SGNHT']),
          PAPER('SGNHT samples accurately without knowing the variance of the '
                'noise of the stochastic force under all parameter settings')),
      common.Claim(
          'the variance is within 15% at h = 0.001, A = 10 alone',
          bool(abs(sghmc[3] - 1.) < 0.15 and np.all(sghmc[:3] > 1.15)),
          listed(ratios['SGHMC']),
          PAPER('SGHMC samples accurately only when h is small and A is '
                'large')),
      common.Claim(
          'mean xi within 1 of A', bool(np.all(abs(xi[2:] - [1., 10.]) < 1.)),
          f'{xi[2]:.2f} for A = 1, {xi[3]:.2f} for A = 10',
          PAPER('When h = 0.001, ξ and A are close')),
      common.Claim(
          'mean xi above A by 4 at least',
          bool(np.all(xi[:2] - [1., 10.] > 4.)),
          f'{xi[0]:.2f} for A = 1, {xi[1]:.2f} for A = 10',
          PAPER('when h = 0.01, ξ becomes much larger than A')),
      tuning.claim('error of the variance of one chain')]
  return common.Result(
      ['settings', 'setting', 'SGHMC variance / true', 'its error',
       'SGNHT variance / true', 'its error', 'SGNHT xi', 'its error',
       'error of one chain', 'its error', 'published'],
      rows, claims, draw(x, draws, friction, tuning), settings,
      'Ours is a grid of h and A, at equal numbers of steps. The friction of '
      'SGNHT is A and about 500 h, what the noise of minibatches amounts to: '
      'beside it, but at the smallest h, the lowest A of the grid is little.')


def draw(x, draws, friction, tuning):
  picture = figure.Figure(figsize=(14, 4), layout='constrained')
  axes = picture.subplots(1, 4)
  grid = np.linspace(x.mean() - 0.6, x.mean() + 0.6, 121)
  middles = (grid[1:] + grid[:-1]) / 2.
  for axis, (name, states) in zip(axes, reversed(draws.items())):
    for k, setting in enumerate(SETTINGS):
      density = np.histogram(states[:, k], grid)[0] / (
          states[:, k].size * (grid[1] - grid[0]))
      axis.plot(middles, density, color=f'C{k}', label=label(setting))
    axis.plot(
        middles, scipy.stats.norm.pdf(middles, x.mean(), 0.1), 'k--',
        label='true')
    axis.set(title=name, xlabel=r'$\mu$', ylabel='density', ylim=(0., 5.))
  for k, setting in enumerate(SETTINGS):
    axes[2].plot(
        np.linspace(0., 1., len(friction)), friction[:, k].mean(axis=1),
        color=f'C{k}')
    axes[2].axhline(setting[1], color='k', linestyle=':', linewidth=1.)
  axes[2].set(
      title="SGNHT's friction (dotted: A)", xlabel='share of the run',
      ylabel=r'mean $\xi$ over chains', ylim=(0., None))
  tuning.plot(axes[3], 'error of the variance of one chain')
  picture.legend(
      *axes[0].get_legend_handles_labels(), loc='outside lower center',
      ncols=len(SETTINGS) + 1)
  return picture


def main(argv=None):
  return common.main('normal_mean', run, __doc__, argv)


if __name__ == '__main__':
  main()
