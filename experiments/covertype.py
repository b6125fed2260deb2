"""Bayesian logistic regression on Covertype: EWSG paper, Table 1 and Fig. 2.

Class 2 against the rest, prior N(0, 10 I), 80% for training, minibatches of 50;
gamma = 50 for SGHMC and EWSG; quantities standardized. The paper takes one pass
over the whole; a sample of 16% is passed over 6.25 times, as many updates. EWSG
uses two minibatches an update: it stands twice in the table, at as many updates
and at as much data (half the updates). All start at zero, except FlyMC, whose
bound touches at the mode: it is found first, and FlyMC starts there. Those
passes count; with --full it makes as many updates, by default a fifth of them.

Each step size is the best of a grid by mean log likelihood on a validation
part, half of the 20%; reported is the other half. The draws are the ends of 50
independent chains on each split of the data (200 draws on 4 splits with
--full), and a standard deviation is that within a split.
"""

from matplotlib import figure
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from experiments import common
import tfp_sgmcmc as sgmcmc

BATCH_SIZE, FRICTION, NUM_RECORDS = 50, 50., 20
UNIFORM = sgmcmc.gradients.Uniform(BATCH_SIZE)
MOMENTUM_GRID = (3e-5, 6e-5, 1e-4, 1.5e-4, 2e-4, 3e-4, 6e-4)
GRIDS = {
    'SGLD': (5e-7, 1e-6, 2e-6, 3e-6, 5e-6, 1e-5, 2e-5),
    'pSGLD': (2e-9, 5e-9, 1e-8, 2e-8, 5e-8, 1e-7, 2e-7),
    'SGHMC': MOMENTUM_GRID,
    'EWSG': MOMENTUM_GRID,
    'FlyMC': (2e-7, 5e-7, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5)}
# The table's header is lost in the text at hand: read as the figures suggest.
PUBLISHED = {
    'SGLD': (None, -0.525), 'pSGLD': (75.079, -0.527),
    'SGHMC': (75.272, -0.525),
    'EWSG': (75.293, -0.523), 'FlyMC': (75.165, -0.523)}


PUBLISHED_SPREAD = (75.293 - 75.079, 0.527 - 0.523)


def log_likelihood(theta, batch):
  x, y = batch
  logits = tf.einsum('...nd,...d->...n', x, theta)
  return y * logits - tf.math.softplus(logits)


def posterior(x, y):
  return sgmcmc.Posterior(
      lambda theta: -tf.reduce_sum(tf.square(theta), axis=-1) / 20.,
      log_likelihood, (x, y))


def make_kernel(name, target, step_size, mode):
  if name == 'SGLD':
    return sgmcmc.SGLD(target, step_size, UNIFORM)
  if name == 'pSGLD':
    return sgmcmc.SGLD(
        target, step_size, UNIFORM,
        preconditioner=sgmcmc.preconditioners.RMSProp(0.99, 1e-5))
  if name == 'SGHMC':
    return sgmcmc.SGHMC(target, step_size, FRICTION, UNIFORM)
  if name == 'EWSG':
    return sgmcmc.SGHMC(
        target, step_size, FRICTION,
        sgmcmc.gradients.ExponentiallyWeighted(BATCH_SIZE))
  return sgmcmc.FireflyMonteCarlo(
      target, sgmcmc.likelihood_bounds.Logistic(anchor=mode), step_size,
      capacity=80, resample_fraction=25. / target.num_rows)


def sampler(name, data=None, mode=None):
  """Compiled: states `[NUM_RECORDS, chains, d]` and gradients used."""

  @tf.function(jit_compile=True, autograph=False)
  def sample(x, y, step_size, start, stride, seed):
    target = posterior(*(data or (x, y)))
    kernel = make_kernel(name, target, step_size, mode)
    return common.sample_chain(kernel, start, NUM_RECORDS, stride, seed)

  return sample


@tf.function(autograph=False)
def find_mode(x, y):
  """The mode, by L-BFGS, and the number of passes that it took."""
  target = posterior(x, y)
  found = tfp.optimizer.lbfgs_minimize(
      lambda theta: tfp.math.value_and_gradient(
          lambda t: -target(t) / y.shape[0], theta),
      tf.zeros(x.shape[1:]), tolerance=1e-6, max_iterations=50)
  return found.position, found.num_objective_evaluations


def load(arguments, split):
  """Training, validation and test parts, `(x, y)` each."""
  train, rest = sgmcmc.datasets.load_covertype(
      arguments.data, seed=(arguments.seed, split))
  scaling = sgmcmc.datasets.Standardization.fit(
      train.features, columns=slice(10))
  limit = common.sizes(arguments, 2000, None, None)
  x, x_rest = scaling(train.features)[:limit], scaling(rest.features)
  half = len(x_rest) // 2
  return ((tf.constant(x), tf.constant(train.labels[:limit], tf.float32)),
          (x_rest[:half], rest.labels[:half]),
          (x_rest[half:], rest.labels[half:]))


def scores(states, part):
  """Accuracy (%) and mean log likelihood of each draw, `[records, chains]`."""
  x, y = part
  accuracy, log_prob = [], []
  for theta in states:
    logits = theta @ x.T
    accuracy.append(100. * np.mean((logits > 0.) == (y > 0), axis=-1))
    log_prob.append(np.mean(
        y * logits - np.logaddexp(np.float32(0.), logits), axis=-1))
  log_prob = np.array(log_prob)
  return np.array(accuracy), np.where(np.isfinite(log_prob), log_prob, -np.inf)


class Sampling:
  """Runs a sampler on the splits of the data."""

  def __init__(self, name, parts, modes, arguments):
    self._name, self._arguments = name, arguments
    self._trains, self._modes = [train for train, _, _ in parts], modes
    self._is_exact = name == 'FlyMC'
    self._num_chains = common.sizes(arguments, 10, 50, 50)
    # 9,300 updates; from the mode, FlyMC needs fewer.
    self.stride = common.sizes(
        arguments, 5, 93 if self._is_exact else 465, 465)
    # FlyMC sums its bounds over the data before the step is compiled.
    self._programs = [sampler(name)]
    if self._is_exact:
      self._programs = [
          sampler(name, train, mode)
          for train, (mode, _) in zip(self._trains, modes)]

  def __call__(self, split, step_sizes, use):
    """States, and passes used; the step sizes take turns among the chains."""
    (x, y), (mode, num_passes) = self._trains[split], self._modes[split]
    start = mode if self._is_exact else tf.zeros_like(mode)
    seed = sgmcmc.random.fold_in(
        common.seed_of(self._arguments, use),
        list(GRIDS).index(self._name) * len(self._trains) + split)
    states, count = self._programs[split if self._is_exact else 0](
        x, y, tf.constant(
            np.resize(step_sizes, [self._num_chains, 1]), tf.float32),
        tf.tile(start[tf.newaxis], [self._num_chains, 1]),
        tf.constant(self.stride), seed)
    passes = count.numpy() / len(y)
    if self._is_exact:
      passes = passes + float(num_passes)
    return states.numpy(), passes


def run(arguments):
  num_splits = common.sizes(arguments, 1, 2, 4)
  parts = [load(arguments, split) for split in range(num_splits)]
  modes = [find_mode(*train) for train, _, _ in parts]
  found, chosen, passes, strides = {}, {}, {}, {}
  for name in common.progress(GRIDS, arguments, 'samplers'):
    sample, grid = Sampling(name, parts, modes, arguments), GRIDS[name]
    _, log_prob = scores(sample(0, grid, 0)[0], parts[0][1])
    ends = {name: NUM_RECORDS}
    if name == 'EWSG':
      ends['EWSG, equal data'] = NUM_RECORDS // 2
    for key, end in ends.items():
      strides[key] = sample.stride
      chosen[key] = grid[int(np.argmax([
          np.mean(log_prob[end - 1, k::len(grid)])
          for k in range(len(grid))]))]
      curves = []
      for split in range(num_splits):
        states, used = sample(split, chosen[key], 1)
        curves.append(scores(states[:end], parts[split][2]))
      # Accuracy and log likelihood, [2, splits, records, chains].
      found[key], passes[key] = np.stack(curves, axis=1), used[:end]
  settings = dict(
      num_train=len(parts[0][0][1]), num_test=len(parts[0][2][1]),
      batch_size=BATCH_SIZE, friction=FRICTION, num_splits=num_splits,
      num_draws=found['SGLD'][0, :, -1].size, grids=GRIDS, step_sizes=chosen,
      firefly='capacity 80, 25 examples looked at a step',
      passes_to_the_mode=[int(number) for _, number in modes])
  return report(found, chosen, passes, strides, settings)


def summary(curves):
  """Mean and standard deviation within splits of the last draws."""
  last = curves[:, :, -1]
  return last.mean(axis=(1, 2)), np.sqrt(np.mean(last.var(axis=2), axis=1))


def spread(values, k):
  means = [mean[k] for mean, _ in values.values()]
  return max(means) - min(means)


def report(found, chosen, passes, strides, settings):
  rows, values = [], {}
  for key, curves in found.items():
    mean, sd = summary(curves)
    values[key] = mean, sd / np.sqrt(curves.shape[1] * curves.shape[3])
    published = PUBLISHED.get(key, (None, None))
    rows.append([
        key, chosen[key], strides[key] * curves.shape[2],
        float(passes[key][-1]), float(mean[0]), float(sd[0]), published[0],
        float(mean[1]), float(sd[1]), published[1]])
  claims = []
  others = 'SGLD', 'pSGLD', 'SGHMC'
  best_of = 'the best of SGLD, pSGLD and SGHMC'
  updates = {name: strides[name] * found[name].shape[2] for name in found}
  for key, amount, names, who in (
      ('EWSG', 'At equal updates', others, best_of),
      ('EWSG', f'After {updates["EWSG"]:,} updates', ('FlyMC',),
       f'FlyMC, which starts at the mode and makes {updates["FlyMC"]:,},'),
      ('EWSG, equal data', 'At equal data', others, best_of)):
    for k, what in enumerate(('accuracy', 'log likelihood')):
      best = max(names, key=lambda name: values[name][0][k])
      difference = values[key][0][k] - values[best][0][k]
      error = np.hypot(values[key][1][k], values[best][1][k])
      claims.append(common.Claim(
          f'{amount} EWSG is at least level with {who} in {what} (not below '
          'by more than two standard errors)',
          bool(difference > -2. * error),
          f'EWSG less {best}: {difference:.2g} with standard error '
          f'{error:.1g}; all are within {spread(values, k):.2g} of each other, '
          f'the published within {PUBLISHED_SPREAD[k]:.2g}'))
  names = ', '.join(
      name for name, h in chosen.items()
      if h in (GRIDS[name.split(',')[0]][0], GRIDS[name.split(',')[0]][-1]))
  return common.Result(
      ['sampler', 'step size', 'updates', 'passes', 'accuracy %', 'its sd',
       'published accuracy', 'log likelihood', 'its sd',
       'published log likelihood'],
      rows, claims, draw(found, passes), settings,
      notes=f'At an end of its grid: {names}.' if names else '')


def draw(found, passes):
  picture = figure.Figure(figsize=(10, 4), layout='constrained')
  axes = picture.subplots(1, 2)
  for index, (key, curves) in enumerate(found.items()):
    for ax, values in zip(axes, curves):
      ax.plot(passes[key], values.mean(axis=(0, 2)), f'C{index}', label=key,
              marker='o' if key == 'FlyMC' else None, markersize=4)
  lowest = [
      np.min([curves[k].mean(axis=(0, 2))[-1] for curves in found.values()])
      for k in range(2)]
  highest = [
      np.max([curves[k].mean(axis=(0, 2))[-1] for curves in found.values()])
      for k in range(2)]
  for ax, label, low, high, width in zip(
      axes, ('accuracy (%)', 'mean log likelihood'), lowest, highest,
      (2., 0.03)):
    ax.set(xlabel='passes over the training data', ylabel=f'test {label}',
           xscale='log', ylim=(low - width, high + width / 5.))
  axes[1].legend(fontsize='small', loc='lower right')
  return picture


def main(argv=None):
  return common.main('covertype', run, __doc__, argv)


if __name__ == '__main__':
  main()
