"""Continuous against discrete estimates: Pakman et al. (2017), Fig. 5.

On the posterior of their Fig. 4 (`logistic_bouncy`), f(w) = sin((w_1 - m_1) /
r), m the mode, has expectation 0: r is far below the posterior's width. It is
estimated from SBPS, by the integral over the whole path (their equation 19) and
by the mean over as many states at equal times as there were minibatches.
Their figure is the error as a function of r / b, b the mean length of a
straight piece between two minibatches, about 0.02; over 5 runs of 1,000 epochs.
"""

from matplotlib import figure
import numpy as np
import tensorflow as tf

from experiments import common
from experiments import logistic
from experiments import parts
import tfp_sgmcmc as sgmcmc

# Of the quadrature: at r / b = 0.01 a piece of the path has up to 100 radians.
NUM_NODES = 64


def estimates(path, mode, r):
  """Estimates by the path, and by as many draws as it has pieces: [chains]."""
  def fn(w):
    return tf.sin((w[..., 0] - mode) / r)

  num_events = path.counts.events // path.duration.size
  draws = tf.cast(path.sample(num_events), tf.float64)
  return (
      path.mean(fn, num_nodes=NUM_NODES, by_chain=True),
      tf.reduce_mean(fn(draws), axis=0).numpy())


def falls(factors):
  """Whether pairs (ratio, its error), by r / b, fall as r / b does."""
  values, errors = np.transpose(factors)
  return np.all(np.diff(values) > -2. * np.hypot(errors[1:], errors[:-1])) and (
      values[-1] - values[0] > 3. * np.hypot(errors[0], errors[-1]))


def running(path, mode, r, num_points):
  """The two running means of chain 0 over `num_points` parts of the path."""
  num_events = path.counts.events // path.duration.size
  def fn(w):
    return np.sin((w - mode) / r)
  fine = 50 * num_events  # So many points stand for the whole path.
  whole = fn(path.sample(fine).numpy()[:, 0, 0].astype(np.float64))
  drawn = fn(path.sample(num_events).numpy()[:, 0, 0].astype(np.float64))
  return [
      (np.cumsum(x) / np.arange(1, len(x) + 1))[len(x) // num_points - 1::
                                                len(x) // num_points]
      for x in (whole, drawn)]


def run(arguments):
  epochs = common.sizes(arguments, 20, 1000, 1000)
  num_chains = common.sizes(arguments, 4, 120, 200)
  ratios = 10.**np.linspace(-2., 0., common.sizes(arguments, 3, 7, 13))
  problem = logistic.paper_problem(arguments.seed)
  n = logistic.BATCH_SIZE
  draws = sgmcmc.sample(
      logistic.sbps(problem),
      epochs * problem.posterior.num_examples // n,
      problem.draw(num_chains, 1., common.seed_of(arguments, 0)),
      num_burnin_steps=200, trace_fn=sgmcmc.pdmp.trace_path,
      directory=parts.directory(arguments, 'path', run),
      progress_bar=not arguments.quiet, seed=common.seed_of(arguments, 1))
  path = sgmcmc.pdmp.Trajectory.from_chain(draws.states[..., :1], draws.trace)
  length = path.duration.sum() / path.counts.events
  mode = problem.mode[0]

  rows, errors, factors = [], [], []
  for ratio, pair in zip(ratios, parts.each(
      lambda ratio: [np.abs(x) for x in estimates(path, mode, ratio * length)],
      ratios, arguments, 'r over b', share=0.6)):
    errors.append([(x.mean(), x.std() / np.sqrt(num_chains)) for x in pair])
    factors.append(common.ratio_of_means(*pair))
    rows.append([
        float(ratio), *errors[-1][0], *errors[-1][1], *factors[-1],
        {1.: 'little difference', 0.01: 'below 1'}.get(round(ratio, 9))])
  errors = np.array(errors)  # [ratios, continuous or discrete, (mean, se)].
  below = ratios < 0.999
  detail = 'ratio of the errors ' + ', '.join(
      f'{f:.3f} (s.e. {e:.3f}) at {ratio:.2g}'
      for ratio, (f, e) in zip(ratios, factors))

  def claim(place, words, text, holds):
    return common.Claim(
        text, bool(holds), detail,
        common.Quotation('Pakman et al. (2017)', place, words))

  (first, first_error), (last, last_error) = factors[0], factors[-1]
  claims = [
      claim('Fig. 5', 'For r/b = 1 there is little difference between '
            'continuous or discrete samples',
            'the ratio of their errors is from 0.8 to 1.25', 0.8 < last < 1.25),
      claim('Fig. 5', 'For r/b = 10^-2 the continuous mean converges faster '
            'than the discrete', 'its error is smaller, by 3 standard errors',
            first < 1. - 3. * first_error),
      claim('Fig. 5', 'The advantage of the continuous expectation when this '
            'ratio is r/b ≪ 1 is evident',
            'the ratio of the errors at 0.01 is below that at 1, by 3 standard '
            'errors', first < last - 3. * np.hypot(first_error, last_error)),
      claim('section 7.2', 'the error in the expectation is lower in the '
            'continuous case for r/b < 1',
            'at each r / b below 1 the error is smaller, by 3 standard errors; '
            'within a piece w_1 moves by b / sqrt(d), a quarter of b', all(
                f < 1. - 3. * e
                for (f, e), is_below in zip(factors, below) if is_below)),
      common.Claim(
          'From r / b = 0.1 on the ratio of the errors falls, within 2 '
          'standard errors, from each r / b to the next smaller one, and by 3 '
          'from the first to the last',
          bool(falls(factors[:np.sum(ratios < 0.101)])), detail)]
  settings = dict(
      num_examples=1000, num_features=20, batch_size=n, confidence=3,
      refresh_rate=logistic.REFRESH_RATE, prior='flat', epochs=epochs,
      epoch='10 minibatches, as the paper counts', num_runs=num_chains,
      mean_length=float(length), paper_mean_length=0.02,
      mean_length_between_bounces=float(
          path.duration.sum() / path.counts.bounces),
      num_nodes=NUM_NODES, violation_share=path.violation_share)
  curves = [(ratio, running(path, mode, ratio * length, 20))
            for ratio in (1., 0.01)]
  return common.Result(
      ['r / b', 'continuous error', 'its s.e.', 'discrete error', 'its s.e.',
       'ratio', 'its s.e.', 'published ratio'], rows, claims,
      draw(ratios, errors, curves, epochs), settings,
      f'Error: |estimate|, averaged over {num_chains} runs of {epochs} epochs. '
      'There is no comparison at tuned steps: two estimates are made of the '
      'same paths of SBPS, which has no step.')


def draw(ratios, errors, curves, epochs):
  picture = figure.Figure(figsize=(11, 3.8), layout='constrained')
  axes = picture.subplots(1, 3)
  names = ('continuous', 'discrete')
  for ax, (ratio, pair) in zip(axes, curves):
    for name, values, color in zip(names, pair, ('C0', 'C1')):
      ax.plot(np.linspace(0., epochs, len(values) + 1)[1:], values,
              color=color, label=name)
    ax.axhline(0., color='k', linewidth=0.7)
    ax.set(title=f'one run, r / b = {ratio:g}', xlabel='epochs')
  axes[0].set_ylabel('estimate so far (true: 0)')
  axes[0].legend()
  for k, name in enumerate(names):
    axes[2].errorbar(
        ratios, errors[:, k, 0], 2. * errors[:, k, 1], color=f'C{k}',
        marker='.', capsize=2, label=f'{name}, 2 s.e.')
  axes[2].set(xscale='log', yscale='log', xlabel='r / b',
              ylabel='mean |error|', title=f'after {epochs} epochs')
  axes[2].legend()
  return picture


def main(argv=None):
  return common.main('continuous_expectation', run, __doc__, argv)


if __name__ == '__main__':
  main()
