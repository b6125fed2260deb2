"""SBPS on a network's posterior: Pakman et al. (2017), Fig. 6.

MNIST's digits 0 to 3 at 7 x 7 pixels, N = 8,340; one hidden layer of 4 units
(tanh: the paper names none) and a softmax, d = 192; n = 500, k = 3. Marginals
along the directions of largest, median and smallest variance of a long
Metropolis run, for SBPS and for SGLD with several steps, in units of the mean
gradient: N h.

The paper's prior is exp(-0.001 |w|^2), of standard deviation 22, and its
reference a random walk of 400,000 epochs; here 5,000 epochs of that came to no
end (1% accepted, R-hat over 100), with proposals of the shape of Laplace's
covariance. So by default the prior is N(0, 1), and the reference Hamiltonian
Monte Carlo (HMC) in Laplace's coordinates, whose R-hat is reported; --full has
the paper's prior. The paper starts at 0, where the hidden units are alike, and
a chain picks one of 4! 2^4 equal modes; here all, HMC too, start at one, the
best of ten optima: what is compared is the law around it.
"""

from matplotlib import figure
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from experiments import common
from tests import references
import tfp_sgmcmc as sgmcmc

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


def sbps(posterior, start, epochs, num_draws, seed):
  draws = sgmcmc.sample(
      sgmcmc.StochasticBouncyParticleSampler(
          posterior, gradient_estimator=sgmcmc.gradients.Uniform(BATCH_SIZE)),
      int(epochs * posterior.num_examples / BATCH_SIZE), start, seed=seed,
      progress_bar=False, trace_fn=lambda state, results: (
          sgmcmc.pdmp.trace_path(state, results),
          results.gradient_estimator_results.num_gradients))
  trace, gradients = draws.trace
  # Equal data cost: the path ends where the slowest chain's budget is spent.
  spent = gradients.numpy().max(axis=1)
  end = int(np.searchsorted(spent, epochs * posterior.num_examples))
  path = sgmcmc.pdmp.Trajectory.from_chain(
      draws.states[:end], tf.nest.map_structure(lambda x: x[:end], trace))
  return path.sample(num_draws).numpy(), path


def sgld(posterior, start, epochs, num_draws, seed):
  """All steps at once: [num, steps, chains, d]."""
  steps = tf.constant(STEPS)[:, tf.newaxis, tf.newaxis]
  total = int(epochs * posterior.num_examples / BATCH_SIZE)
  thinning = max(1, total // num_draws)
  return sgmcmc.sample(
      sgmcmc.SGLD(
          posterior, steps / posterior.num_examples,
          sgmcmc.gradients.Uniform(BATCH_SIZE)),
      total // thinning, tf.tile(start[tf.newaxis], [len(STEPS), 1, 1]),
      seed=seed, num_steps_between_results=thinning - 1, progress_bar=False,
      # XLA on CPU is slow at many small matrix products.
      jit_compile=False).states.numpy()


def score(z):
  """The largest |log of an sd over the true one|; `z` is [num, chains, 3]."""
  return np.abs(np.log(z.std(axis=(0, 1)))).max()


def run(arguments):
  num_chains, epochs, hmc_chains, num_steps = common.sizes(
      arguments, (2, 2, 4, 20), (6, 1200, 8, 1600), (16, 10_000, 24, 40_000))
  precision = common.sizes(arguments, 1., 1., 2e-3)
  data, _ = sgmcmc.datasets.load_small_mnist(arguments.data)
  posterior, size = make_posterior(data, precision)
  mode, root = laplace(
      posterior, size, precision,
      common.sizes(arguments, 20, 1000, 1000), common.seed_of(arguments, 0))
  burn_in = num_steps // 4
  reference, accepted = references.hmc(
      posterior, mode, root, num_steps, hmc_chains,
      common.seed_of(arguments, 1), step_size=0.1, num_leapfrog_steps=LEAPFROGS,
      num_burnin_steps=burn_in, num_adaptation_steps=num_steps // 5,
      start_scale=0.5, progress_bar=not arguments.quiet)
  flat = reference.reshape([-1, size]).astype(np.float64)
  mean = flat.mean(axis=0)
  values, vectors = np.linalg.eigh(np.cov(flat, rowvar=False))
  chosen = [-1, size // 2, 0]
  sds = np.sqrt(np.maximum(values[chosen], 1e-12))

  def project(draws):
    return (draws.astype(np.float64) - mean) @ vectors[:, chosen] / sds

  num_draws = common.sizes(arguments, 20, 400, 1000)
  start = tf.tile(mode[tf.newaxis], [num_chains, 1])
  bouncy, path = sbps(
      posterior, start, epochs, num_draws, common.seed_of(arguments, 2))
  langevin = sgld(
      posterior, start, epochs, num_draws, common.seed_of(arguments, 3))
  draws = {'SBPS': project(bouncy)} | {
      f'SGLD, {step:g}': project(langevin[:, k])
      for k, step in enumerate(STEPS)}
  settings = dict(
      num_parameters=size, num_examples=posterior.num_examples,
      batch_size=BATCH_SIZE, confidence=3, refresh_rate=1., steps=STEPS,
      epochs=epochs, num_chains=num_chains, hmc_chains=hmc_chains,
      hmc_epochs=LEAPFROGS * (num_steps + burn_in), hmc_accepted=accepted,
      prior_precision=precision,
      published_metropolis_accepted=0.43, violation_share=path.violation_share,
      counts=path.counts._asdict(), sds=sds)
  return report(project(reference), draws, settings, path)


def report(reference, draws, settings, path):
  random = np.random.default_rng(0)
  rows, scores = [], {}
  r_hat = tfp.mcmc.potential_scale_reduction(
      tf.constant(reference), split_chains=True).numpy()
  rows.append(['HMC', *np.ones(3), *np.zeros(3), None, None,
               'the reference'])
  for name, z in draws.items():
    z = z[len(z) // 2:]
    scores[name] = score(z), common.bootstrap_error(
        lambda chosen, z=z: score(z[:, chosen]), z.shape[1], random)
    rows.append([
        name, *z.std(axis=(0, 1)), *z.mean(axis=(0, 1)), *scores[name],
        'comparable mixing' if name == 'SBPS' else 'by the step'])
  ours, error = scores.pop('SBPS')
  best, worst = min(scores, key=lambda n: scores[n][0]), max(
      scores, key=lambda n: scores[n][0])
  # No verdict against a reference that has not converged.
  converged = bool(r_hat.max() < 1.1)
  doubt = '' if converged else (
      '; NO VERDICT: HMC, '
      f'{settings["hmc_epochs"]:,} epochs with '
      f'{settings["hmc_accepted"]:.1%} accepted, has not converged')
  claims = [
      common.Claim(
          'SBPS, without a step to choose, is no farther from HMC than '
          'the best step of SGLD: largest |log ratio| of a standard deviation '
          'along the three directions, within 2 standard errors',
          converged and bool(ours <= scores[best][0] + 2. * np.hypot(
              error, scores[best][1])),
          f'{ours:.2f} (s.e. {error:.2f}) against {scores[best][0]:.2f} '
          f'({scores[best][1]:.2f}) of {best}{doubt}'),
      common.Claim(
          'A poor step of SGLD mixes slowly or is biased: its error is larger '
          'than that of SBPS by more than 2 standard errors',
          converged and bool(scores[worst][0] > ours + 2. * np.hypot(
              error, scores[worst][1])),
          f'{scores[worst][0]:.2f} (s.e. {scores[worst][1]:.2f}) of '
          f'{worst}{doubt}')]
  notes = (
      'Means and sds in units of those of HMC, second half of each run. '
      f'R-hat of HMC along the three: {r_hat[0]:.2f}, {r_hat[1]:.2f}, '
      f'{r_hat[2]:.2f}; where it is above 1.1 the reference itself has not '
      'converged. The SBPS band was violated at '
      f'{path.violation_share:.2%} of proposals.')
  columns = ['sampler', *(f'sd, {d}' for d in DIRECTIONS),
             *(f'mean, {d}' for d in DIRECTIONS), 'largest |log sd ratio|',
             'its s.e.', 'published']
  return common.Result(
      columns, rows, claims, draw(reference, draws, settings['epochs']),
      settings, notes)


def draw(reference, draws, epochs):
  picture = figure.Figure(figsize=(11, 6), layout='constrained')
  axes = picture.subplots(2, 3)
  bins = np.linspace(-4., 4., 41)
  for k, direction in enumerate(DIRECTIONS):
    above, below = axes[:, k]
    below.hist(reference[..., k].ravel(), bins, density=True, color='0.8',
               label='HMC')
    for c, (name, z) in enumerate(draws.items()):
      color = f'C{c}'
      above.plot(np.linspace(0., epochs, len(z)), z[:, 0, k], color=color,
                 label=name, linewidth=0.8)
      below.hist(z[len(z) // 2:, :, k].ravel(), bins, density=True,
                 histtype='step', color=color)
    above.set(title=f'direction of {direction} variance', xlabel='epochs',
              ylim=(-6., 6.))
    below.set(xlabel='projection (HMC sds)', yticks=[])
  axes[0, 0].set_ylabel('projection, one chain')
  axes[1, 0].set_ylabel('density')
  handles = [ax.get_legend_handles_labels() for ax in (axes[1, 0], axes[0, 0])]
  picture.legend(
      handles[0][0] + handles[1][0], handles[0][1] + handles[1][1],
      loc='outside lower center', ncols=5)
  return picture


def main(argv=None):
  return common.main('bouncy_network', run, __doc__, argv)


if __name__ == '__main__':
  main()
