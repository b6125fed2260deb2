"""A Bayesian network on MNIST, learning curves: EWSG paper, Fig. 3a.

A perceptron 784-100-10, prior N(0, 1), minibatches of 100: SGLD, pSGLD, SGHMC,
CP-SGHMC (ten strata by k-means) and EWSG, of which a step takes two
minibatches, at equal data passes: 200 in the paper and with --full, by default
30. (Fig. 3b, the convolutional network, is `mnist_cnn_ewsg`.)

The paper's settings are its step sizes and friction: h = {4, 2, 2}e-3 for EWSG,
SGHMC and CP-SGHMC with gamma = 0.1, and {0.001, 1}e-4 for SGLD and pSGLD. Its
units are not said. Those of the first three are read as of the mean potential
at temperature 1 / N, which is h / sqrt(N) and gamma sqrt(N) of the summed one
(of the summed potential they diverge), and so is pSGLD's, h / N; SGLD's, with
which nothing would move there, as of the sum. Ours: each at the others' steps
as well. Those of SGHMC, CP-SGHMC and EWSG, 2e-3 and 4e-3, are h / N for SGLD
and pSGLD (run with one seed); at pSGLD's 1e-4 the three would get as far in 200
passes as in 10, at SGLD's 1e-7 nowhere.
"""

import functools
from typing import NamedTuple

from matplotlib import figure
import numpy as np
import tensorflow as tf

from experiments import common
from experiments import parts
import tfp_sgmcmc as sgmcmc

PAPER = functools.partial(
    common.Quotation, 'Li et al. (2021)', 'section 5.3, Fig. 3a')
BATCH_SIZE, NUM_STRATA, FRICTION, HIDDEN = 100, 10, 0.1, 100
SHAPES = ([784, HIDDEN], [HIDDEN], [HIDDEN, 10], [10])
# Published, then at the others' steps.
RUNS = (
    ('SGLD', 1e-7), ('pSGLD', 1e-4), ('SGHMC', 2e-3), ('CP-SGHMC', 2e-3),
    ('EWSG', 4e-3), ('SGHMC', 4e-3), ('CP-SGHMC', 4e-3), ('EWSG', 2e-3))
NUM_PUBLISHED = 5
# With one seed.
OTHERS = (('SGLD', 2e-3), ('SGLD', 4e-3), ('pSGLD', 2e-3), ('pSGLD', 4e-3))
PUBLISHED = dict(RUNS[:NUM_PUBLISHED])


class Curve(NamedTuple):
  """What a chain came to.

  Attributes:
    passes: `[records]`, data passes.
    accuracy: `[records]`, of training images, %, of the network at the time.
    test_accuracy: Of the mean prediction of the draws of the second half, %.
    test_log_prob: Its mean log likelihood.
    acceptance: Of the index chain; None without one.
  """
  passes: np.ndarray
  accuracy: np.ndarray
  test_accuracy: float
  test_log_prob: float
  acceptance: float | None


def logits(w1, b1, w2, b2, x):
  """The network's output, `[n, 10]`."""
  return tf.matmul(tf.nn.relu(tf.matmul(x, w1) + b1), w2) + b2


def log_likelihood(*parts_and_batch):
  *network, (x, y) = parts_and_batch
  return -tf.nn.sparse_softmax_cross_entropy_with_logits(
      y, logits(*network, x))


def log_prior(*network):
  return -sum(tf.reduce_sum(tf.square(part)) for part in network) / 2.


def in_our_units(name, step_size, size):
  """A step size of the mean potential, or SGLD's own, in our units."""
  if name == 'SGLD' and step_size == PUBLISHED[name]:
    return step_size
  return step_size / (size if 'SGLD' in name else np.sqrt(size))


def make_kernel(name, posterior, step_size, strata):
  """The kernel, with a step size in our units and the paper's friction."""
  if name == 'SGLD':
    return sgmcmc.SGLD(
        posterior, step_size,
        gradient_estimator=sgmcmc.gradients.Uniform(BATCH_SIZE))
  if name == 'pSGLD':
    return sgmcmc.SGLD(
        posterior, step_size,
        gradient_estimator=sgmcmc.gradients.Uniform(BATCH_SIZE),
        preconditioner=sgmcmc.preconditioners.RMSProp(0.99, regularizer=1e-5))
  estimator = {
      'SGHMC': lambda: sgmcmc.gradients.Uniform(BATCH_SIZE),
      'CP-SGHMC': lambda: sgmcmc.gradients.Stratified(BATCH_SIZE, strata),
      'EWSG': lambda: sgmcmc.gradients.ExponentiallyWeighted(BATCH_SIZE),
  }[name]()
  return sgmcmc.SGHMC(
      posterior, step_size, FRICTION * np.sqrt(posterior.num_examples),
      gradient_estimator=estimator)


def load(arguments):
  """Images `[n, 784]` in [0, 1] and labels, of training and test."""
  limit = common.sizes(arguments, 400, None, None)
  return [
      (part.images[:limit].reshape([-1, 784]).astype(np.float32) / 255.,
       part.labels[:limit].astype(np.int32))
      for part in sgmcmc.datasets.load_mnist(arguments.data)]


def start(seed):
  """Glorot's uniform weights, biases of zero."""
  return [
      (2. * sgmcmc.random.uniform(shape, sgmcmc.random.fold_in(seed, k)) - 1.)
      * np.sqrt(6. / sum(shape)) if len(shape) == 2 else tf.zeros(shape)
      for k, shape in enumerate(SHAPES)]


def sampler(name, data, strata, jit_compile):
  """A function of a step size, passes and a seed: the `Curve` of a chain.

  Its program takes the step size, so that it is compiled once a sampler.
  """
  (x, y), (x_test, y_test) = data
  posterior = sgmcmc.Posterior(log_prior, log_likelihood, (x, y))
  num_minibatches = 2 if name == 'EWSG' else 1
  # A record every second pass.
  num_steps = 2 * len(y) // (BATCH_SIZE * num_minibatches)
  shown = tf.constant(x[:len(y_test)])

  @tf.function(jit_compile=jit_compile, autograph=False)
  def advance(step_size, state, results, seed):
    kernel = make_kernel(name, posterior, step_size, strata)
    _, state, results = tf.while_loop(
        lambda step, *_: step < num_steps,
        lambda step, state, results: (step + 1, *kernel.one_step(
            state, results, seed=sgmcmc.random.fold_in(seed, step))),
        (0, state, results))
    return state, results, tf.argmax(logits(*state, shown), -1), (
        tf.nn.softmax(logits(*state, x_test)))

  def sample(step_size, passes, seed):
    step_size = tf.constant(
        in_our_units(name, step_size, len(y)), tf.float32)
    kernel = make_kernel(name, posterior, step_size, strata)
    state = start(sgmcmc.random.fold_in(seed, 0))
    results = kernel.bootstrap_results(state, sgmcmc.random.fold_in(seed, 1))
    accuracy, mean, num_records = [], 0., passes // 2
    for record in range(num_records):
      state, results, chosen, probabilities = advance(
          step_size, state, results, sgmcmc.random.fold_in(seed, 2 + record))
      accuracy.append(100. * np.mean(chosen.numpy() == y[:len(y_test)]))
      if record >= num_records // 2:
        mean = mean + probabilities.numpy() / (num_records - num_records // 2)
    used = results.gradient_estimator_results
    with np.errstate(divide='ignore'):
      log_prob = np.mean(np.log(mean[np.arange(len(y_test)), y_test]))
    acceptance = getattr(used, 'acceptance', None)
    return Curve(
        2. * np.arange(1, num_records + 1), np.array(accuracy),
        100. * np.mean(np.argmax(mean, axis=-1) == y_test), log_prob,
        None if acceptance is None else float(np.mean(acceptance)))

  return sample


def run(arguments):
  passes = common.sizes(arguments, 4, 30, 200)
  num_seeds = common.sizes(arguments, 1, 1, 5)
  data = load(arguments)
  strata = sgmcmc.gradients.kmeans_strata(
      data[0][0].reshape([-1, 28, 28])[:, ::2, ::2], NUM_STRATA,
      arguments.seed)

  @functools.cache
  def of(name):
    return sampler(name, data, strata, arguments.size != 'tiny')

  def run_one(item):
    (name, step_size), use = item
    return of(name)(step_size, passes, common.seed_of(arguments, use))

  items = [(key, use) for key in RUNS for use in range(num_seeds)]
  items += [(key, 0) for key in common.sizes(arguments, (), OTHERS, OTHERS)]
  curves = {}
  for (key, _), curve in zip(
      items, parts.each(run_one, items, arguments, 'samplers')):
    curves.setdefault(key, []).append(curve)
  return report(curves, dict(
      passes=passes, num_seeds=num_seeds, batch_size=BATCH_SIZE,
      friction=FRICTION, step_sizes=PUBLISHED, num_strata=NUM_STRATA,
      num_train=len(data[0][1]), clusters='k-means on every second pixel',
      draws='one every second pass of the second half',
      training_accuracy='of as many images as there are test images',
      start="Glorot's uniform weights"))


def second_half(curves):
  """Training accuracy by seed, the mean over the second half of the passes."""
  return np.array([np.mean(c.accuracy[len(c.accuracy) // 2:]) for c in curves])


def spread(values):
  """The standard deviation over seeds; None of one seed."""
  return float(np.std(values, ddof=1)) if len(values) > 1 else None


def report(curves, settings):
  rows = []
  for k, (key, found) in enumerate(curves.items()):
    rows.append([
        "the paper's" if k < NUM_PUBLISHED else 'ours', *key,
        float(np.mean([c.accuracy[-1] for c in found])),
        float(second_half(found).mean()), spread(second_half(found)),
        float(np.mean([c.test_accuracy for c in found])),
        spread([c.test_accuracy for c in found]),
        float(np.mean([c.test_log_prob for c in found])),
        spread([c.test_log_prob for c in found]), found[0].acceptance])

  def above(own, base, text, words=None):
    values = second_half(curves[own]), second_half(curves[base])
    gaps = values[0] - values[1]  # The same seeds, in pairs.
    error = spread(gaps) and spread(gaps) / np.sqrt(len(gaps))
    ahead = np.mean([c.accuracy for c in curves[own]], axis=0) > np.mean(
        [c.accuracy for c in curves[base]], axis=0)
    passes, behind = curves[own][0].passes, np.flatnonzero(~ahead)
    if not ahead[-1]:
      since = 'not at the last'
    else:
      last = passes[behind[-1]] if len(behind) else 0.
      since = f'at all after {last:.0f} passes'
    told = 'one seed: no error' if error is None else (
        f's.e. {error:.2f} of {len(gaps)} seeds in pairs; sd over seeds '
        f'{spread(values[0]):.2f} and {spread(values[1]):.2f}')
    return common.Claim(
        f'{text}, by two standard errors',
        None if error is None else bool(gaps.mean() > 2. * error),
        f'training accuracy over the second half {values[0].mean():.2f}% and '
        f'{values[1].mean():.2f}%, {gaps.mean():+.2f} ({told}), ahead at '
        f'{ahead.mean():.0%} of the records, {since}; acceptance of the index '
        f'chain {curves[own][0].acceptance:.2f}', words)

  words = {
      'SGHMC': 'EWSG consistently improve over its uniform counterpart (i.e. '
               'SGHMC) and CP-SGHMC',
      'SGLD': 'EWSG also outperforms two standard benchmarks SGLD and pSGLD'}
  words |= {'CP-SGHMC': words['SGHMC'], 'pSGLD': words['SGLD']}
  claims = [
      above(('EWSG', PUBLISHED['EWSG']), (name, PUBLISHED[name]),
            f'its training accuracy, averaged over the second half of the '
            f'passes, is above that of {name}', PAPER(text))
      for name, text in words.items()]
  claims += [
      above(('EWSG', h), (name, h),
            f'With the same step, h = {h:g}, the training accuracy of EWSG, '
            f'averaged over the second half of the passes, is above that of '
            f'{name}') for name in ('SGHMC', 'CP-SGHMC') for h in (2e-3, 4e-3)]
  return common.Result(
      ['settings', 'sampler', 'step size', 'training accuracy % at the end',
       'over the second half', 'its sd over seeds', 'test accuracy %', 'its sd',
       'test log likelihood', 'its sd', 'acceptance of the index chain'],
      rows, claims, draw(curves), settings,
      'The paper does not say in which units its step sizes are. They are '
      'read as of the mean potential at temperature 1 / N (of the summed '
      "potential those of SGHMC, CP-SGHMC and EWSG diverge), but SGLD's as of "
      'the summed one: with it as of the mean one nothing would move. With an '
      'acceptance of 0.5 the index chain is saturated: of two minibatches the '
      'heavier is taken. There is no comparison at tuned steps: to tune five '
      'samplers at this length takes hours. SGLD and pSGLD at the steps of the '
      'others, 2e-3 and 4e-3 of the mean potential, are in the table, of one '
      'seed; the three others at 1e-4 and 1e-7 would hardly move.')


def draw(curves):
  """Accuracy by passes, and what it is above SGHMC's at the paper's step."""
  picture = figure.Figure(figsize=(16, 4.8), layout='constrained')
  axes = picture.subplots(1, 3)
  colors = dict(zip(PUBLISHED, ('C0', 'C1', 'C2', 'C4', 'C3')))
  accuracies = {
      key: np.array([c.accuracy for c in found])
      for key, found in curves.items()}
  base = accuracies['SGHMC', PUBLISHED['SGHMC']].mean(axis=0)

  def band(ax, key, values):
    name, h = key
    color = colors[name]
    line, = ax.plot(
        passes, values.mean(axis=0), color, linewidth=1.2,
        linestyle='--' if PUBLISHED[name] != h else '-',
        label=common.with_acceptance(
            f'{name}, h = {h:g}', curves[key][0].acceptance))
    ax.fill_between(passes, values.min(axis=0), values.max(axis=0),
                    color=color, alpha=0.15, linewidth=0)
    return line.get_ydata()[len(passes) // 10:]

  passes = curves['SGHMC', PUBLISHED['SGHMC']][0].passes
  shown = [
      [band(ax, key, accuracies[key] - level) for key in keys]
      for ax, keys, level in (
          (axes[0], RUNS[:NUM_PUBLISHED], 0.),
          (axes[1], RUNS[:NUM_PUBLISHED], base),
          (axes[2], [key for key in RUNS if 'SGLD' not in key[0]], base))]
  for ax, values, title in zip(axes, shown, (
      "the paper's steps", "the paper's steps", 'at the same steps')):
    low, high = np.min(values), np.max(values)
    ax.set(title=title, xlabel='passes over the training data',
           ylabel="training accuracy (%) less SGHMC's, h = 0.002",
           ylim=(low - 0.3 * (high - low), high + 0.1 * (high - low)))
    ax.legend(fontsize='small', loc='lower right', ncols=2)
  axes[0].set_ylabel('training accuracy (%), mean and range of seeds')
  return picture


def main(argv=None):
  return common.main('mnist_bnn_ewsg', run, __doc__, argv)


if __name__ == '__main__':
  main()
