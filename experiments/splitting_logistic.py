"""Zig-zag in steps of fixed length, sticky too: Fearnhead et al. (2024).

Their logistic regression, of the authors' public code: N = 18,000 rows for
training, p = 20 with an intercept, features normal with covariances
u^|i - j|, u uniform in [-0.4, 0.4]; half of the true coefficients are 0, the
others N(0, 1); a prior N(0, 10). One row a step, with control variates at the
mode. The text of the paper was not at hand: its words are those of its
abstract.

The samplers are the splitting schemes `pdmp.SplitZigZag` and
`pdmp.SplitBouncyParticle`, in place of the paper's SG-ZZ and SG-BPS, and SGLD
with the steps h' = h^2 / 2: both move a coordinate by h at a step, in root mean
square. Errors are of the standard deviations, over those of long HMC; the work
for an effective draw is the autocorrelation time in steps, which are rows.

The sticky zig-zag has the authors' rate kappa = 5. Its probabilities of
inclusion are compared with a sum over all models of those coefficients that may
be left out, under Laplace's approximation of the likelihood.
"""

import itertools

from matplotlib import figure
import numpy as np
import scipy.special
import tensorflow as tf
import tensorflow_probability as tfp

from experiments import common
from experiments import logistic
from experiments import parts
from tests import references
import tfp_sgmcmc as sgmcmc

WORDS = common.Quotation(
    'Fearnhead et al. (2024)', 'abstract',
    'this class of algorithms has similar efficiency to, but is more robust '
    'than, stochastic gradient Langevin dynamics')
NUM_ROWS, NUM_FEATURES, PRIOR_PRECISION, KAPPA = 18_000, 20, 0.1, 5.
STEP_SIZES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1)
NAMES = ('SGLD', 'zig-zag', 'bouncy')
STICKY_STEP = 3e-4
TOLERANCE = 0.1  # Of the error of a standard deviation.
# Beyond it a coefficient is in every model that counts.
CERTAIN = 6.


def make_problem(seed, num_rows):
  """The regression in both precisions, with its mode and covariance."""
  rng = np.random.default_rng(seed)
  covariance = np.eye(NUM_FEATURES - 1)
  for i, j in itertools.combinations(range(NUM_FEATURES - 1), 2):
    covariance[i, j] = covariance[j, i] = rng.uniform(-0.4, 0.4)**(j - i)
  x = np.concatenate([np.ones([num_rows, 1]), rng.multivariate_normal(
      np.zeros(NUM_FEATURES - 1), covariance, num_rows)], axis=1)
  weights = rng.normal(size=NUM_FEATURES)
  weights[rng.permutation(NUM_FEATURES)[:NUM_FEATURES // 2]] = 0.
  y = rng.uniform(size=num_rows) < scipy.special.expit(x @ weights)

  def posterior(dtype):
    return sgmcmc.Posterior(
        lambda w: -0.5 * PRIOR_PRECISION * tf.reduce_sum(w**2, axis=-1),
        lambda w, batch: -tf.nn.softplus(
            batch[1] * tf.einsum('...nd,...d->...n', batch[0], w)),
        (tf.cast(x, dtype), tf.cast(1. - 2. * y, dtype)))

  double = posterior(tf.float64)
  return weights, logistic.Problem(
      posterior(tf.float32), double,
      *references.laplace(double, NUM_FEATURES))


def kernel_of(name, problem, step_size, **arguments):
  arguments['gradient_estimator'] = sgmcmc.gradients.ControlVariate(
      1, tf.constant(problem.mode, tf.float32))
  if name == 'SGLD':
    return sgmcmc.SGLD(problem.posterior, step_size**2 / 2., **arguments)
  if name == 'bouncy':  # A refreshment in the time to cross the posterior.
    sd = float(np.sqrt(np.diag(problem.covariance)).mean())
    return sgmcmc.pdmp.SplitBouncyParticle(
        problem.posterior, step_size, refresh_rate=1. / sd, **arguments)
  return sgmcmc.pdmp.SplitZigZag(problem.posterior, step_size, **arguments)


def run_chains(kernel, problem, num_draws, thinning, num_chains, seed):
  """Draws `[draws, chains, p]` of chains from Laplace's approximation."""
  return sgmcmc.sample(
      kernel, num_draws, problem.draw(num_chains, 1., seed),
      num_steps_between_results=thinning - 1, seed=seed, progress_bar=False,
      trace_fn=None).states.numpy()


def judge(draws, sd, mode, thinning):
  """The error of the sds, and the autocorrelation time in steps; inf if lost.

  Squared distances from the mode are as slow as any, and tell of widths.
  """
  with np.errstate(all='ignore'):
    late = draws[len(draws) // 4:].astype(np.float64) - mode
    error = np.abs(late.std(axis=(0, 1)) / sd - 1.).mean()
  if not np.isfinite(error) or error > 1e3:
    return float('inf'), float('inf')
  effective = tfp.mcmc.effective_sample_size(
      tf.constant(late / sd, tf.float32), cross_chain_dims=1,
      filter_beyond_positive_pairs=True).numpy()
  total = thinning * late.shape[0] * late.shape[1]
  return float(error), float(total / effective.mean())


def time_at_tolerance(points):
  """The autocorrelation time at an error of the tolerance, in logarithms.

  `points` are pairs of an error and a time, by rising steps; None where the
  errors do not cross the tolerance.
  """
  error, time = np.array(points).T
  below = np.flatnonzero(error <= TOLERANCE)
  if not len(below) or below[-1] == len(error) - 1 or not np.isfinite(
      error[below[-1] + 1]):
    return None
  pair = slice(below[-1], below[-1] + 2)
  return float(np.exp(np.interp(
      np.log(TOLERANCE), np.log(error[pair]), np.log(time[pair]))))


def inclusion_by_laplace(problem, rate):
  """Of each coefficient, of the law density dw_i + delta_0 / kappa."""
  precision = np.linalg.inv(problem.covariance)
  z = np.abs(problem.mode) / np.sqrt(np.diag(problem.covariance))
  uncertain = np.flatnonzero(z < CERTAIN)
  log_weights, models = [], []
  for model in itertools.product([False, True], repeat=len(uncertain)):
    left_out = uncertain[~np.array(model, bool)]
    inside = np.delete(np.arange(NUM_FEATURES), left_out)
    block = precision[np.ix_(inside, inside)]
    # The least of (w - mode)' precision (w - mode) where some w are 0.
    cross = precision[np.ix_(inside, left_out)] @ problem.mode[left_out]
    rest = problem.mode[left_out] @ precision[
        np.ix_(left_out, left_out)] @ problem.mode[left_out]
    log_weights.append(
        -0.5 * (rest - cross @ np.linalg.solve(block, cross))
        + 0.5 * len(inside) * np.log(2. * np.pi)
        - 0.5 * np.linalg.slogdet(block)[1] - len(left_out) * np.log(rate))
    models.append(np.isin(np.arange(NUM_FEATURES), inside))
  return scipy.special.softmax(log_weights) @ np.array(models, float)


def run(arguments):
  # With fewer rows more coefficients are uncertain, and models are 2^k.
  num_rows = common.sizes(arguments, 2000, NUM_ROWS, NUM_ROWS)
  num_chains = common.sizes(arguments, 4, 16, 16)
  thinning = common.sizes(arguments, 2, 20, 100)
  num_draws = common.sizes(arguments, 20, 2000, 5000)
  step_sizes = common.sizes(arguments, STEP_SIZES[1::3], STEP_SIZES, STEP_SIZES)
  weights, problem = make_problem(arguments.seed, num_rows)
  law = logistic.hmc(
      problem, *common.sizes(arguments, (10, 4), (500, 50), (2000, 50)),
      seed=common.seed_of(arguments, 0))
  sd = law.draws.reshape([-1, NUM_FEATURES]).std(axis=0)

  def sample(case):
    name, step_size = case
    return judge(run_chains(
        kernel_of(name, problem, step_size), problem, num_draws, thinning,
        num_chains, common.seed_of(arguments, 1 + NAMES.index(name))),
                 sd, problem.mode, thinning)

  cases = list(itertools.product(NAMES, step_sizes))
  points = dict(zip(cases, parts.each(
      sample, cases, arguments, 'samplers', share=0.8)))

  def sample_sticky(step_size):
    draws = run_chains(
        kernel_of('zig-zag', problem, step_size, sticky=KAPPA), problem,
        2 * num_draws, thinning, num_chains, common.seed_of(arguments, 5))
    late = draws[len(draws) // 4:] != 0.
    return late.mean(axis=0)  # By chain.

  by_chain, = parts.each(
      sample_sticky, [STICKY_STEP], arguments, 'sticky', share=0.2)
  settings = dict(
      num_examples=num_rows, p=NUM_FEATURES, num_chains=num_chains,
      steps=num_draws * thinning, step_sizes=step_sizes, batch_size=1,
      kappa=KAPPA, sticky_step=STICKY_STEP)
  return report(points, weights, by_chain,
                inclusion_by_laplace(problem, KAPPA), step_sizes, settings)


def report(points, weights, by_chain, wanted, step_sizes, settings):
  rows = [
      [f'h = {h:g}', *(x if np.isfinite(x) else None for name in NAMES
                       for x in points[name, h])]
      for h in step_sizes]

  times = {
      name: time_at_tolerance([points[name, h] for h in step_sizes])
      for name in NAMES}
  lost = {
      name: [h for h in step_sizes if not np.isfinite(points[name, h][0])]
      for name in NAMES}
  worst = {name: max(points[name, h][0] for h in step_sizes
                     if np.isfinite(points[name, h][0])) for name in NAMES}
  included = by_chain.mean(axis=0)
  error = by_chain.std(axis=0, ddof=1) / np.sqrt(len(by_chain))
  off = np.abs(included - wanted)
  claims = [
      common.Claim(
          'at the step with which standard deviations are off by '
          f'{TOLERANCE:.0%}, between two of the grid, the zig-zag needs 0.5 to '
          '2 times as many rows for an effective draw as SGLD',
          None if None in (times['zig-zag'], times['SGLD']) else bool(
              0.5 <= times['zig-zag'] / times['SGLD'] <= 2.),
          ', '.join(
              f'{name} ' + ('not reached' if time is None else f'{time:.0f}')
              for name, time in times.items()), WORDS),
      common.Claim(
          'SGLD is lost at some step size of the grid, and the zig-zag at none',
          bool(lost['SGLD'] and not lost['zig-zag']),
          '; '.join(
              f'{name}: lost at {", ".join(map("{:g}".format, lost[name]))}'
              if lost[name] else f'{name}: largest error {worst[name]:.3g}'
              for name in NAMES),
          WORDS),
      common.Claim(
          'all probabilities of inclusion within 0.05 of those by Laplace and '
          'enumeration, beside 4 standard errors',
          bool(np.all(off < 0.05 + 4. * error)),
          f'largest difference {off.max():.3f} (s.e. {error[off.argmax()]:.3f})'
          f'; the true zeros have {included[weights == 0.].mean():.2f} in the '
          f'mean, the others {included[weights != 0.].mean():.2f}')]
  columns = ['step size']
  for name in NAMES:
    columns += [f'{name}: error of an sd', f'{name}: rows for a draw']
  return common.Result(
      columns, rows, claims, draw(points, included, wanted, step_sizes),
      settings, 'No figure: the chain was lost. With one row a step the noise '
      'dominates, and the bias is of first order in h. At the small steps the '
      'errors are those of short runs; of about 0.04 and below they say '
      'nothing, so that the samplers are compared at 0.1. A first run, which '
      'compared the best steps of this coarse grid with errors up to 0.05, '
      'found the zig-zag to need a quarter of the rows of SGLD.')


def draw(points, included, wanted, step_sizes):
  picture = figure.Figure(figsize=(12, 3.8), layout='constrained')
  first, second, third = picture.subplots(1, 3)
  for name in NAMES:
    error, time = np.array([points[name, h] for h in step_sizes]).T
    first.loglog(step_sizes, error, 'o-', label=name)
    second.loglog(time, error, 'o-', label=name)
  first.set(xlabel='step size h', ylabel='error of an sd')
  second.set(xlabel='rows for an effective draw', ylabel='error of an sd')
  first.legend()
  third.plot([0., 1.], [0., 1.], color='k', linewidth=0.7)
  third.plot(wanted, included, 'o')
  third.set(xlabel='probability of inclusion, by enumeration',
            ylabel='sticky zig-zag')
  return picture


def main(argv=None):
  return common.main('splitting_logistic', run, __doc__, argv)


if __name__ == '__main__':
  main()
