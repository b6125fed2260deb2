"""Networks on UCI regression: samplers against deep ensembles and MC dropout.

Beyond the papers. A network of one hidden layer of rectifiers with one noise
scale, all N(0, 1) a priori in units that keep the prior's outputs near 1, on
the splits of five data sets: the test log likelihood in the targets' own units.

Compared at the same number of gradients a network: SGHMC and SGNHT (several
chains, draws of the second half), an ensemble of as many networks trained by
Adam, and dropout in one network (mean over as many), 100 passes. All leave out
a tenth of the training rows, by whose log likelihood each chooses among four
settings, for each data set: the samplers their step size, the ensemble learning
rate and weight decay, dropout its rate. All networks of a split see the same
minibatches. Published are Lakshminarayanan et al. (2017) and, for dropout, Gal
and Ghahramani (2016), on other splits: mean and standard error.
"""

import math
from typing import NamedTuple

from matplotlib import figure
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from experiments import common
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions

A = 0.05  # One minus the momentum; friction or diffusion is A / h.
SETTINGS = {
    # The learning rate l of Keras' SGD on the mean loss: h = sqrt(l / N).
    'SGHMC': [3e-4, 1e-3, 3e-3, 1e-2],
    'SGNHT': [3e-4, 1e-3, 3e-3, 1e-2],
    # Learning rate, strength of the prior, dropout rate.
    'deep ensemble': [(r, d, 0.) for r in (0.01, 0.03) for d in (0., 1.)],
    'MC dropout': [(0.01, 1., rate) for rate in (0.02, 0.05, 0.1, 0.2)],
}
PUBLISHED = {
    'deep ensemble': {
        'concrete': (-3.06, 0.18), 'energy': (-1.38, 0.22),
        'yacht': (-1.18, 0.21), 'wine': (-0.94, 0.12),
        'protein': (-2.83, 0.02)},
    'MC dropout': {
        'concrete': (-3.04, 0.09), 'energy': (-1.99, 0.09),
        'yacht': (-1.55, 0.12), 'wine': (-0.93, 0.06),
        'protein': (-2.89, 0.01)},
}


class Data(NamedTuple):
  """Standardized rows of all splits: `x[n, splits, d]`, `y[n, splits]`."""
  train: dict[str, tf.Tensor]
  held_out: dict[str, tf.Tensor]  # Rows for validation, then those for test.
  num_validation: int
  scale: np.ndarray  # Of the targets, by split.


def load(arguments, name, num_splits):
  """The splits side by side (they differ by a row, which is left out)."""
  parts, scales = [], []
  for split in range(num_splits):
    train, test = sgmcmc.datasets.load_uci_regression(
        name, data_dir=arguments.data, split=split)
    fit, validation = sgmcmc.datasets.random_split(
        len(train.labels), 0.1, seed=(arguments.seed, split))
    x, y = (
        sgmcmc.datasets.Standardization.fit(values[fit]) for values in train)
    scales.append(y.scale)
    parts.append([
        (x(features), y(labels)) for features, labels in (
            (train.features[fit], train.labels[fit]),
            (train.features[validation], train.labels[validation]), test)])
  tensors = []
  for rows in zip(*parts):
    size = min(len(y) for _, y in rows)
    tensors.append({
        'x': tf.constant(np.stack([x[:size] for x, _ in rows], 1), tf.float32),
        'y': tf.constant(np.stack([y[:size] for _, y in rows], 1), tf.float32)})
  train, *held_out = tensors
  joined = {
      key: tf.concat([part[key] for part in held_out], 0) for key in train}
  return Data(train, joined, held_out[0]['y'].shape[0], np.array(scales))


def log_density(w1, b1, w2, b2, rho, batch, mask=1.):
  """Of each row for each network, `[splits, networks, n]`."""
  size, hidden = w1.shape[-2:]
  units = tf.einsum('nsd,smdh->smnh', batch['x'], w1) * math.sqrt(2. / size)
  units = tf.nn.relu(units + b1[..., tf.newaxis, :]) * mask
  mean = tf.einsum('smnh,smh->smn', units, w2) / math.sqrt(hidden)
  y = tf.transpose(batch['y'])[:, tf.newaxis]
  return tfd.Normal(
      mean + b2[..., tf.newaxis], tf.exp(rho - 1.)[..., tf.newaxis]).log_prob(y)


def log_prior(*parts):
  prior = tfd.Normal(0., 1.)
  return sum(
      tf.reduce_sum(prior.log_prob(part), range(2, part.shape.rank))
      for part in parts)


def scores(densities, data, over):
  """Mean log of the mean density over axes, validation and test by split."""
  count = math.prod(densities.shape[axis] for axis in over)
  mixture = tf.reduce_logsumexp(densities, over) - math.log(count)
  mixture -= np.log(data.scale).astype(np.float32).reshape(
      [-1] + [1] * (mixture.shape.rank - 1))  # In the targets' own units.
  parts = (mixture[..., :data.num_validation],
           mixture[..., data.num_validation:])
  return [
      tf.reduce_mean(part, range(1, part.shape.rank)) for part in parts]


def sampler(method, data, settings):
  """A compiled function of the step size: scores of validation and test."""
  posterior = sgmcmc.Posterior(log_prior, log_density, data.train)

  @tf.function(jit_compile=True, autograph=False)
  def function(learning_rate, state, seed):
    h = tf.sqrt(learning_rate / posterior.num_examples)
    kernel = getattr(sgmcmc, method)(
        posterior, h, A / h, gradient_estimator=sgmcmc.gradients.Uniform(
            settings['batch_size'], share_minibatch=True))
    num_draws = settings['num_draws']
    half = settings['num_steps'] // 2
    draws, results = tfp.mcmc.sample_chain(
        num_draws, state, kernel=kernel, num_burnin_steps=half,
        num_steps_between_results=half // num_draws - 1, seed=seed,
        trace_fn=lambda _, r: r.gradient_estimator_results.num_gradients)
    densities = tf.map_fn(
        lambda parts: log_density(*parts, data.held_out), draws,
        fn_output_signature=tf.float32)
    return *scores(densities, data, (0, 2)), results[-1]

  return function


def optimizer(method, data, settings):
  """As `sampler`, for networks that Adam trains, with or without dropout."""
  num_steps, batch_size = settings['num_steps'], settings['batch_size']
  num_rows = data.train['y'].shape[0]

  def mask(rate, state, num_rows, seed):
    splits, networks, hidden = state[1].shape
    kept = sgmcmc.random.uniform([splits, networks, num_rows, hidden], seed)
    return tf.cast(kept >= rate, tf.float32) / (1. - rate)

  @tf.function(jit_compile=True, autograph=False)
  def function(setting, state, seed):
    peak, decay, rate = tf.unstack(setting)

    def step(t, parts, first, second):
      seeds = [sgmcmc.random.fold_in(seed, 2 * t + k) for k in range(2)]
      rows = sgmcmc.random.indices(num_rows, [batch_size], seeds[0])
      batch = tf.nest.map_structure(lambda x: tf.gather(x, rows), data.train)
      with tf.GradientTape() as tape:
        tape.watch(parts)
        loss = -tf.reduce_sum(
            tf.reduce_mean(log_density(
                *parts, batch, mask(rate, state, batch_size, seeds[1])), -1)
            + decay / num_rows * log_prior(*parts))
      grads = tape.gradient(loss, parts)
      first = [0.9 * m + 0.1 * g for m, g in zip(first, grads)]
      second = [0.999 * v + 0.001 * g**2 for v, g in zip(second, grads)]
      time = tf.cast(t, tf.float32) + 1.
      size = peak * (1. - (time - 1.) / num_steps) * tf.sqrt(
          1. - 0.999**time) / (1. - 0.9**time)
      parts = [
          p - size * m / (tf.sqrt(v) + 1e-8)
          for p, m, v in zip(parts, first, second)]
      return t + 1, parts, first, second

    zeros = [tf.zeros_like(part) for part in state]
    _, parts, _, _ = tf.while_loop(
        lambda t, *_: t < num_steps, step, (0, state, zeros, zeros))

    def passes(k):
      num_held_out = data.held_out['y'].shape[0]
      return log_density(*parts, data.held_out, mask(
          rate, state, num_held_out,
          sgmcmc.random.fold_in(seed, 2 * num_steps + k)))

    if method == 'deep ensemble':
      found = scores(log_density(*parts, data.held_out), data, (1,))
    else:
      found = scores(tf.map_fn(
          passes, tf.range(100), fn_output_signature=tf.float32), data, (0,))
    return *found, num_steps * batch_size

  return function


def run(arguments):
  """Runs all methods on all data sets."""
  settings = common.sizes(
      arguments,
      dict(names=['yacht'], num_splits=2, num_networks=2, num_hidden=5,
           num_steps=20, num_draws=5),
      dict(names=['concrete', 'energy', 'yacht', 'wine', 'protein'],
           num_splits=5, num_networks=4, num_hidden=50, num_steps=1_600,
           num_draws=40),
      dict(names=['concrete', 'energy', 'yacht', 'wine', 'protein'],
           num_splits=10, num_networks=5, num_hidden=50, num_steps=100_000,
           num_draws=200))
  settings.update(batch_size=100, a=A, settings=SETTINGS)
  sets = {
      name: load(arguments, name, settings['num_splits'])
      for name in settings['names']}
  table, chosen, cost = {}, {}, set()
  work = [(name, method) for name in settings['names'] for method in SETTINGS]
  for name, method in common.progress(work, arguments, 'data sets, methods'):
    data = sets[name]
    make = optimizer if method in PUBLISHED else sampler
    function = make(method, data, settings)
    leading = [settings['num_splits'], settings['num_networks']]
    hidden = settings['num_hidden']
    shapes = [[data.train['x'].shape[-1], hidden], [hidden], [hidden], [], []]
    random = sgmcmc.random.normal_like(
        [tf.zeros(leading + shape) for shape in shapes],
        common.seed_of(arguments, 0))
    state = [random[0], tf.zeros_like(random[1]), random[2],
             tf.zeros_like(random[3]), tf.zeros_like(random[4])]
    found = []
    for k, setting in enumerate(SETTINGS[method]):
      *pair, num_gradients = function(
          tf.constant(setting), state, common.seed_of(arguments, 1 + k))
      found.append(np.nan_to_num(np.array(pair), nan=-np.inf))
      cost.add(int(num_gradients))
    best = int(np.argmax([np.mean(validation) for validation, _ in found]))
    table[name, method] = found[best][1]
    chosen[f'{name}, {method}'] = SETTINGS[method][best]
  settings.update(chosen=chosen, gradients_per_network=sorted(cost))
  return report(table, settings)


def report(table, settings):
  """The table, the claims and the picture."""
  names = settings['names']
  root = math.sqrt(settings['num_splits'])
  rows = []
  for (name, method), values in table.items():
    published = PUBLISHED.get(method, {}).get(name, (None, None))
    rows.append([
        name, method, values.mean(), values.std(ddof=1) / root,
        str(settings['chosen'][f'{name}, {method}']), *published])
  claims = []
  for method in ('SGHMC', 'SGNHT'):
    for other in PUBLISHED:
      gaps = {name: table[name, method] - table[name, other] for name in names}
      level = [
          gap.mean() >= -2. * gap.std(ddof=1) / root for gap in gaps.values()]
      claims.append(common.Claim(
          f'{method} is level with {other} or better on every data set, within '
          'two standard errors of the difference over splits', all(level),
          ', '.join(
              f'{name} {gap.mean():+.3f} (se {gap.std(ddof=1) / root:.3f})'
              for name, gap in gaps.items())))
  for method, values in PUBLISHED.items():
    behind = {
        name: table[name, method].mean() - values[name][0] for name in names}
    claims.append(common.Claim(
        f'{method} reaches its published log likelihood here, within two of '
        'the published standard errors and two of its own', all(
            behind[name] >= -2. * math.hypot(
                values[name][1], table[name, method].std(ddof=1) / root)
            for name in names),
        ', '.join(f'{name} {gap:+.2f}' for name, gap in behind.items())))
  picture = figure.Figure(figsize=(11., 3.6), layout='constrained')
  axes = picture.subplots(1, len(names), squeeze=False)[0]
  for axis, name in zip(axes, names):
    for k, method in enumerate(SETTINGS):
      values = table[name, method]
      axis.errorbar(
          k, values.mean(), values.std(ddof=1) / root, fmt='o', capsize=3,
          color=f'C{k}', label=method)
      if name in PUBLISHED.get(method, {}):
        axis.errorbar(
            k + 0.3, *PUBLISHED[method][name], fmt='s', mfc='white', capsize=3,
            color='0.5', label='published' if method == 'MC dropout' else None)
    axis.set(title=name, xticks=[], xlim=(-0.6, len(SETTINGS) - 0.3))
  axes[0].set_ylabel('test log likelihood (mean, se over splits)')
  picture.legend(
      *axes[0].get_legend_handles_labels(), loc='outside lower center', ncols=5)
  columns = ['data', 'method', 'test log likelihood', 'se', 'setting chosen',
             'published', 'published se']
  return common.Result(columns, rows, claims, picture, settings)


def main(argv=None):
  return common.main('uci_regression', run, __doc__, argv)


if __name__ == '__main__':
  main()
