"""SBPS on a network's posterior: Pakman et al. (2017), Fig. 6.

MNIST's digits 0 to 3 at 7 x 7 pixels, N = 8,340; one hidden layer of 4 units
(tanh: the paper names none) and a softmax, d = 192; n = 500, k = 3. Marginals
along the directions of largest, median and smallest variance of a long run, for
SBPS and for SGLD with several steps, in units of the mean gradient: N h.

The paper's settings: the prior exp(-0.001 |w|^2), of precision 0.002, and so of
standard deviation 22. Its reference is a random walk of 400,000 epochs; here
5,000 epochs of that came to no end (1% accepted, R-hat over 100), with
proposals of the shape of Laplace's covariance. So the reference is Hamiltonian
Monte Carlo (HMC) in Laplace's coordinates, whose R-hat is reported: where it
has not converged either there is no verdict. Ours: the prior N(0, 1), of
precision 1. The paper starts at 0, where the hidden units are alike, and a
chain picks one of 4! 2^4 equal modes; here all, HMC too, start at one, the best
of ten optima: what is compared is the law around it. Stated besides is what
share of the widest direction a run has covered: the range of 95% of its second
half, over HMC's.
"""

import functools
from typing import NamedTuple

from matplotlib import figure
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from experiments import common
from experiments import datasets
from experiments import parts
from tests import references
import tfp_sgmcmc as sgmcmc

PAPER = functools.partial(
    common.Quotation, 'Pakman et al. (2017)', 'Fig. 6')
PRECISIONS = {"the paper's": 2e-3, 'ours': 1.}
HIDDEN, CLASSES = 4, 4
BATCH_SIZE = 500
STEPS = (1., 0.3, 0.1, 0.03, 0.01)
LEAPFROGS, NUM_STARTS = 12, 10
DIRECTIONS = ('largest', 'median', 'smallest')


def make_posterior(data, precision):
  num_inputs = data.features.shape[1]
  sizes = (num_inputs * HIDDEN, HIDDEN, HIDDEN * CLASSES, CLASSES)

  def log_likelihood(w, batch):
    x, labels = batch
    w1, b1, w2, b2 = tf.split(w, sizes, axis=-1)
    chains = w.shape[:-1]
    w1 = tf.reshape(w1, [*chains, num_inputs, HIDDEN])
    w2 = tf.reshape(w2, [*chains, HIDDEN, CLASSES])
    hidden = tf.tanh(tf.matmul(x, w1) + b1[..., tf.newaxis, :])
    logits = tf.matmul(hidden, w2) + b2[..., tf.newaxis, :]
    chosen = tf.reduce_sum(logits * tf.one_hot(labels, CLASSES), axis=-1)
    return chosen - tf.reduce_logsumexp(logits, axis=-1)

  return sgmcmc.Posterior(
      lambda w: -precision / 2. * tf.reduce_sum(tf.square(w), -1),
      log_likelihood, (data.features, data.labels)), sum(sizes)


def laplace(posterior, size, precision, num_iterations, seed):
  """The best mode found, and a root of the inverse of the Hessian there."""
  @tf.function(jit_compile=True, autograph=False)
  def descend(start):
    return tfp.optimizer.lbfgs_minimize(
        lambda w: tfp.math.value_and_gradient(lambda w: -posterior(w), w),
        start, max_iterations=num_iterations, max_line_search_iterations=20,
        stopping_condition=tfp.optimizer.converged_all)

  found = descend(0.5 * sgmcmc.random.normal([NUM_STARTS, size], seed))
  mode = found.position[int(np.nanargmin(found.objective_value))]
  hessian = references.hessian(posterior, mode)
  values, vectors = np.linalg.eigh((hessian + hessian.T) / 2.)
  return mode, vectors / np.sqrt(np.maximum(values, precision))


def sbps(posterior, start, epochs, num_draws, seed, progress_bar):
  """Draws `[num, chains, d]`, the share of violations, and the counts."""
  draws = sgmcmc.sample(
      sgmcmc.StochasticBouncyParticleSampler(
          posterior, gradient_estimator=sgmcmc.gradients.Uniform(BATCH_SIZE)),
      int(epochs * posterior.num_examples / BATCH_SIZE), start, seed=seed,
      progress_bar=progress_bar, trace_fn=lambda state, results: (
          sgmcmc.pdmp.trace_path(state, results),
          results.gradient_estimator_results.num_gradients))
  trace, gradients = draws.trace
  # Equal data cost: the path ends where the slowest chain's budget is spent.
  spent = gradients.numpy().max(axis=1)
  end = int(np.searchsorted(spent, epochs * posterior.num_examples))
  path = sgmcmc.pdmp.Trajectory.from_chain(
      draws.states[:end], tf.nest.map_structure(lambda x: x[:end], trace))
  return (path.sample(num_draws).numpy(), path.violation_share,
          path.counts._asdict())


def sgld(posterior, start, epochs, num_draws, seed, progress_bar):
  """All steps at once: [num, steps, chains, d]."""
  steps = tf.constant(STEPS)[:, tf.newaxis, tf.newaxis]
  total = int(epochs * posterior.num_examples / BATCH_SIZE)
  thinning = max(1, total // num_draws)
  return sgmcmc.sample(
      sgmcmc.SGLD(
          posterior, steps / posterior.num_examples,
          gradient_estimator=sgmcmc.gradients.Uniform(BATCH_SIZE)),
      total // thinning, tf.tile(start[tf.newaxis], [len(STEPS), 1, 1]),
      seed=seed, num_steps_between_results=thinning - 1,
      progress_bar=progress_bar,
      # XLA on CPU is slow at many small matrix products.
      jit_compile=False).states.numpy()


def score(z):
  """The largest |log of an sd over the true one|; `z` is [num, chains, 3]."""
  return np.abs(np.log(z.std(axis=(0, 1)))).max()


class Compared(NamedTuple):
  """What is kept of one prior.

  Attributes:
    reference: `[num, chains, 3]`, HMC's projections in its own sds.
    draws: The same of each sampler.
    r_hat: Of HMC, along the three.
    settings: What was run.
  """
  reference: np.ndarray
  draws: dict[str, np.ndarray]
  r_hat: np.ndarray
  settings: dict


class Reference(NamedTuple):
  """HMC's law along the three directions.

  Attributes:
    mean: `[d]`.
    axes: `[d, 3]`.
    sds: `[3]`.
    projected: `[num, chains, 3]`, its draws in its own sds.
    accepted: The share of its proposals.
  """
  mean: np.ndarray
  axes: np.ndarray
  sds: np.ndarray
  projected: np.ndarray
  accepted: float

  def project(self, draws):
    return (draws.astype(np.float64) - self.mean) @ self.axes / self.sds


def hmc(posterior, mode, root, num_chains, num_steps, arguments):
  """Runs Hamiltonian Monte Carlo: `Reference`."""
  def chains(num_steps):
    return references.hmc(
        posterior, mode, root, num_steps, num_chains,
        common.seed_of(arguments, 1), step_size=0.1,
        num_leapfrog_steps=LEAPFROGS, num_burnin_steps=num_steps // 4,
        num_adaptation_steps=num_steps // 5, start_scale=0.5,
        progress_bar=not arguments.quiet)

  if arguments.part is not None:  # A hundredth of it, to tell the whole by.
    parts.tell(0., arguments)
    chains(num_steps // 100)
    parts.tell(0.01, arguments)
  draws, accepted = chains(num_steps)
  size = draws.shape[-1]
  flat = draws.reshape([-1, size]).astype(np.float64)
  values, vectors = np.linalg.eigh(np.cov(flat, rowvar=False))
  chosen = [-1, size // 2, 0]
  law = Reference(
      flat.mean(axis=0), vectors[:, chosen],
      np.sqrt(np.maximum(values[chosen], 1e-12)), draws, accepted)
  return law._replace(projected=law.project(draws))


def run(arguments):
  data, _ = datasets.load_small_mnist(arguments.data)
  groups = common.sizes(arguments, ['ours'], list(PRECISIONS), list(PRECISIONS))
  num_chains, epochs, hmc_chains, num_steps = common.sizes(
      arguments, (2, 2, 4, 20), (6, 600, 8, 800), (16, 10_000, 24, 40_000))
  num_draws = common.sizes(arguments, 20, 400, 1000)
  hmc_epochs = LEAPFROGS * (num_steps + num_steps // 4)

  @functools.cache
  def start_of(group):
    """The posterior, its mode, and the root of Laplace's covariance."""
    posterior, size = make_posterior(data, PRECISIONS[group])
    return posterior, *laplace(
        posterior, size, PRECISIONS[group],
        common.sizes(arguments, 20, 1000, 1000), common.seed_of(arguments, 0))

  def run_one(item):
    group, name = item
    posterior, mode, root = start_of(group)
    if name == 'HMC':
      return hmc(posterior, mode, root, hmc_chains, num_steps, arguments)
    return {'SBPS': sbps, 'SGLD': sgld}[name](
        posterior, tf.tile(mode[tf.newaxis], [num_chains, 1]), epochs,
        num_draws, common.seed_of(arguments, {'SBPS': 2, 'SGLD': 3}[name]),
        not arguments.quiet)

  # Data passes of all chains.
  work = {'HMC': hmc_chains * hmc_epochs, 'SBPS': num_chains * epochs,
          'SGLD': num_chains * epochs * len(STEPS)}
  items = [(group, name) for group in groups for name in work]
  results = dict(zip(items, parts.each(
      run_one, items, arguments, 'samplers',
      [work[name] for _, name in items])))
  settings = dict(
      num_examples=len(data.labels), batch_size=BATCH_SIZE, confidence=3,
      refresh_rate=1., steps=STEPS, epochs=epochs, num_chains=num_chains,
      hmc_chains=hmc_chains, hmc_epochs=hmc_epochs,
      published_metropolis_accepted=0.43)
  return report({
      group: compare(
          PRECISIONS[group], *(results[group, name] for name in work), settings)
      for group in groups})


def compare(precision, law, bouncy, langevin, settings):
  """What HMC, SBPS and SGLD came to with a prior: `Compared`."""
  draws, violation_share, counts = bouncy
  draws = {'SBPS': law.project(draws)} | {
      f'SGLD, {step:g}': law.project(langevin[:, k])
      for k, step in enumerate(STEPS)}
  return Compared(
      law.projected, draws, tfp.mcmc.potential_scale_reduction(
          tf.constant(law.projected), split_chains=True).numpy(),
      dict(settings, num_parameters=len(law.mean), hmc_accepted=law.accepted,
           prior_precision=precision, violation_share=violation_share,
           counts=counts, sds=law.sds))


def report(found):
  rows, claims = [], []
  for group, compared in found.items():
    own_rows, own_claims = judge(group, compared)
    rows += own_rows
    claims += own_claims
  notes = ' '.join(
      f'With a prior precision of {PRECISIONS[group]:g}: R-hat of HMC along '
      'the three ' + ', '.join(f'{r:.2f}' for r in compared.r_hat)
      + f', {compared.settings["hmc_accepted"]:.0%} accepted; the SBPS band '
      'was violated at '
      f'{compared.settings["violation_share"]:.2%} of proposals.'
      for group, compared in found.items())
  columns = ['settings', 'sampler', *(f'sd, {d}' for d in DIRECTIONS),
             *(f'mean, {d}' for d in DIRECTIONS), 'share of largest covered',
             'largest |log sd ratio|', 'its s.e.']
  return common.Result(
      columns, rows, claims, draw(found),
      {group: compared.settings for group, compared in found.items()},
      'Means and sds in units of those of HMC, second half of each run. '
      + notes)


def covered(z):
  """The range of 95% of draws along the widest direction, over HMC's."""
  low, high = np.quantile(z[..., 0], [0.025, 0.975])
  return high - low


def judge(group, compared):
  """The rows and the claims of one prior."""
  random = np.random.default_rng(0)
  whole = covered(compared.reference)
  rows = [[group, 'HMC', *np.ones(3), *np.zeros(3), 1., None, None]]
  scores, shares = {}, {}
  for name, z in compared.draws.items():
    z = z[len(z) // 2:]
    shares[name] = covered(z) / whole
    scores[name] = score(z), common.bootstrap_error(
        lambda chosen, z=z: score(z[:, chosen]), z.shape[1], random)
    rows.append([
        group, name, *z.std(axis=(0, 1)), *z.mean(axis=(0, 1)), shares[name],
        *scores[name]])
  ours, error = scores.pop('SBPS')
  best, worst = min(scores, key=lambda n: scores[n][0]), max(
      scores, key=lambda n: scores[n][0])
  # No verdict against a reference that has not converged.
  converged = bool(compared.r_hat.max() < 1.1)
  settings = compared.settings
  doubt = '' if converged else (
      f'; HMC, {settings["hmc_epochs"]:,} epochs with '
      f'{settings["hmc_accepted"]:.1%} accepted, has not converged')
  doubt += (f'; SBPS covered {shares["SBPS"]:.1%} of the widest direction, '
            f'{best} {shares[best]:.1%}')

  def claim(text, holds, detail, words):
    is_quoted = group == "the paper's"
    return common.Claim(
        text if is_quoted else f'With the prior N(0, 1): {text}',
        bool(holds) if converged else None, detail + doubt,
        PAPER(words) if is_quoted else None)

  return rows, [
      claim('the largest |log ratio| of a standard deviation to HMC\'s, along '
            'the three directions, of SBPS is no larger than that of the best '
            'step of SGLD, within 2 standard errors',
            ours <= scores[best][0] + 2. * np.hypot(error, scores[best][1]),
            f'{ours:.2f} (s.e. {error:.2f}) against {scores[best][0]:.2f} '
            f'({scores[best][1]:.2f}) of {best}',
            'SBPS shows comparable mixing to an appropriately chosen SGLD '
            'without the need for a scan over step sizes'),
      claim('that of the worst step of SGLD is larger than that of SBPS by '
            'more than 2 standard errors',
            scores[worst][0] > ours + 2. * np.hypot(error, scores[worst][1]),
            f'{scores[worst][0]:.2f} (s.e. {scores[worst][1]:.2f}) of {worst}',
            'a poor choice of SGLD step size can lead to slow mixing or bias '
            'in the narrow directions of the target')]


def decades(threshold, low, high):
  """Ticks of a logarithmic axis of both signs: 0, and powers of ten."""
  powers = np.arange(
      np.ceil(np.log10(threshold)), np.log10(max(-low, high, threshold)) + 1e-9)
  powers = 10.**powers[::-1][::len(powers) // 3 + 1]  # At most three a side.
  ticks = np.concatenate([-powers, [0.], powers])
  return ticks[(ticks >= low) & (ticks <= high)]


def draw(found):
  """Traces of one chain, and the marginals by their quantiles.

  Where widths are very different the axis is logarithmic beyond the narrowest
  standard deviation, so that each is seen.
  """
  picture = figure.Figure(figsize=(13, 12), layout='constrained')
  axes = picture.subplots(2 * len(found), 3, squeeze=False)
  for row, (group, compared) in enumerate(found.items()):
    epochs = compared.settings['epochs']
    late = {'HMC': compared.reference} | {
        name: z[len(z) // 2:] for name, z in compared.draws.items()}
    for k, direction in enumerate(DIRECTIONS):
      above, below = axes[2 * row:2 * row + 2, k]
      widths = {name: z[..., k].std() for name, z in late.items()}
      scale = dict(value='linear') if (
          max(widths.values()) < 10. * min(widths.values())) else dict(
              value='symlog', linthresh=min(widths.values()))
      for y, z in enumerate(late.values()):
        color = f'C{y - 1}' if y else '0.5'
        low, first, middle, third, high = np.quantile(
            z[..., k], [0.025, 0.25, 0.5, 0.75, 0.975])
        below.plot([low, high], [y, y], color=color, linewidth=1.)
        below.plot([first, third], [y, y], color=color, linewidth=4.)
        below.plot(middle, y, 'o', color='k', markersize=3)
      for name in sorted(compared.draws, key=widths.get, reverse=True):
        z = compared.draws[name]
        above.plot(
            np.linspace(0., epochs, len(z)), z[:, 0, k], label=name,
            color=f'C{list(compared.draws).index(name)}', linewidth=0.8)
      above.set_yscale(**scale)
      below.set_xscale(**scale)
      if scale['value'] == 'linear':  # A single jump hides what others do.
        shown = [z[:, 0, k] for z in compared.draws.values()]
        above.set_ylim(*np.quantile(np.concatenate(shown), [0.005, 0.995]))
      else:
        for axis in (above.yaxis, below.xaxis):
          axis.set_ticks(
              decades(scale['linthresh'], *axis.get_view_interval()))
      above.set(title=f'{group}: {direction} variance', xlabel='epochs')
      below.set(xlabel="projection (HMC's sds): 95%, 50%, median",
                yticks=range(len(late)), yticklabels=late if k == 0 else [])
      below.invert_yaxis()
    axes[2 * row, 0].set_ylabel('projection, one chain')
  lines = dict(zip(*reversed(axes[0, 0].get_legend_handles_labels())))
  picture.legend(
      [lines[name] for name in compared.draws], list(compared.draws),
      loc='outside lower center', ncols=len(lines))
  return picture


def main(argv=None):
  return common.main('bouncy_network', run, __doc__, argv)


if __name__ == '__main__':
  main()
