"""Cyclical sampling: Zhang et al. (2020), Fig. 2 (25 modes), and MNIST, small.

A mixture of 25 Gaussians with variance 0.03 and centres 2 apart, noise N(0, I)
on the gradient, 50,000 steps of 4 parallel chains: SGLD with a decaying step
and with a cosine that restarts 30 times, the step sizes those of the authors'
code (0.043 and 0.07); SGHMC likewise, its step sizes chosen on a pilot run. A
mode counts as found if 0.2% of the draws are within 0.5 of its centre (a fair
share is 4%). Then a network on MNIST (4 digits, 7 by 7 pixels), sampled by
SGHMC with a constant and with a cyclical step through the Keras callback, the
step sizes chosen on validation data, as many steps and draws for both: a
comparison of ours, of ten splits, with intervals of 95% and no verdict.
"""

import functools
import itertools

import keras
from matplotlib import figure
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from experiments import common
from experiments import datasets
from experiments import parts
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions

PAPER = functools.partial(common.Quotation, 'Zhang et al. (2020)', 'Fig. 2')
CENTRES = np.array(
    list(itertools.product(range(-4, 5, 2), repeat=2)), np.float32)
VARIANCE, NUM_PARALLEL, NUM_CYCLES = 0.03, 4, 30
PILOT = tuple(itertools.product((0.01, 0.02, 0.04, 0.06), (0.3, 1., 3.)))


def log_prob(theta):
  squares = tf.reduce_sum(
      tf.square(theta[..., tf.newaxis, :] - CENTRES), axis=-1)
  return tf.reduce_logsumexp(-0.5 * squares / VARIANCE, axis=-1)


def schedule(is_cyclical, eta, num_steps):
  """The authors' two schedules of the step size of SGLD, from `eta` down."""
  if is_cyclical:
    cosine = keras.optimizers.schedules.CosineDecayRestarts(
        1., num_steps // NUM_CYCLES, t_mul=1.)
    return lambda step: eta * cosine(step)
  return lambda step: eta * tf.pow(
      tf.maximum(tf.cast(step, tf.float32) - 499., 1.), -0.55)


def kernel_of(name, is_cyclical, eta, friction, num_steps):
  rate = schedule(is_cyclical, eta, num_steps)
  noisy = sgmcmc.gradients.GaussianNoise(1.)
  if name == 'SGLD':
    return sgmcmc.SGLD(log_prob, rate, gradient_estimator=noisy)
  return sgmcmc.SGHMC(
      log_prob, lambda step: tf.sqrt(rate(step)), friction,
      gradient_estimator=noisy)


def modes(name, is_cyclical, settings, num_repeats, seed, arguments):
  """Modes found, `[settings, repeats]`, and the draws of the first setting."""
  num_steps = common.sizes(arguments, 3000, 50_000, 50_000)
  eta, friction = np.array(settings, np.float32).T[..., None, None, None]
  shape = [len(settings), num_repeats, NUM_PARALLEL, 2]
  start = 20. * sgmcmc.random.uniform(shape, seed) - 10.
  draws = sgmcmc.sample(
      kernel_of(name, is_cyclical, tf.constant(eta), tf.constant(friction),
                num_steps),
      num_steps // 10, start, num_steps_between_results=9, seed=seed,
      progress_bar=not arguments.quiet).states.numpy()
  if is_cyclical:  # The authors' code leaves out 50 steps of each cycle.
    length = num_steps // NUM_CYCLES
    draws = draws[(10 * np.arange(len(draws)) % length) >= 50]
  found = np.zeros(shape[:2])
  for centre in CENTRES:
    inside = np.sum((draws - centre)**2, axis=-1) < 0.25
    found += inside.mean(axis=(0, 3)) > 0.002
  return found, draws[:, 0, 0].reshape([-1, 2])


def mixture(arguments):
  """By sampler and schedule: modes found, draws, and the setting."""
  cases = list(itertools.product(('SGLD', 'SGHMC'), (False, True)))

  def run_one(case):
    name, is_cyclical = case
    k = cases.index(case)
    if name == 'SGLD':
      chosen = (0.07 if is_cyclical else 0.043, 1.)
    else:
      pilot, _ = modes(
          name, is_cyclical, PILOT, common.sizes(arguments, 1, 2, 10),
          common.seed_of(arguments, 10 + k), arguments)
      chosen = PILOT[int(np.argmax(pilot.mean(axis=1)))]
    found, draws = modes(
        name, is_cyclical, [chosen], common.sizes(arguments, 2, 10, 10),
        common.seed_of(arguments, k), arguments)
    return found[0], draws, chosen

  return dict(zip(cases, parts.each(
      run_one, cases, arguments, '25 modes', share=0.05)))


def network(arguments):
  """By schedule: test NLL and error of each split, and the learning rate."""
  train, test = datasets.load_small_mnist(arguments.data)
  epochs = common.sizes(arguments, 1, 16, 400)
  rates = common.sizes(
      arguments, [0.1], [0.1, 0.3, 1., 3.], [0.03, 0.1, 0.3, 1., 3.])
  num_cycles, num_train = common.sizes(arguments, 2, 4, 8), 7000
  num_splits = common.sizes(arguments, 2, 10, 10)
  num_steps = epochs * num_train // 100
  length = num_steps // num_cycles

  def split(seed):
    """Rows for training and for validation, at random."""
    order = np.random.default_rng(seed).permutation(len(train.labels))
    return [(train.features[rows], train.labels[rows])
            for rows in (order[:num_train], order[num_train:])]

  def fit(is_cyclical, learning_rate, x, y, seed):
    """Draws of the second half; of the last quarter of a cycle, if cyclical."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([
        keras.Input([x.shape[1]]), keras.layers.Dense(20, activation='relu'),
        keras.layers.Dense(4)])
    model.compile(
        'sgd', keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=['accuracy'], jit_compile=True, steps_per_execution=10)
    if is_cyclical:
      rate = keras.optimizers.schedules.CosineDecayRestarts(
          learning_rate, length, t_mul=1.)
      extra = dict(
          num_burnin_steps=num_steps // 2,
          num_steps_between_results=sgmcmc.keras.DrawSchedule(
              9, keep_draw=sgmcmc.keras.late_in_cycle(rate, 0.75)))
    else:
      rate = learning_rate
      extra = dict(
          num_burnin_steps=num_steps // 2, num_steps_between_results=39)
    sampling = sgmcmc.keras.PosteriorSampling(
        sgmcmc.SGHMC, num_examples=num_train, prior=tfd.Normal(0., 1.),
        learning_rate=rate, momentum=0.9, seed=seed, **extra)
    data = tf.data.Dataset.from_tensor_slices(
        (x, y)).shuffle(num_train, seed).batch(100)
    model.fit(data, epochs=epochs, verbose=0, shuffle=False,
              callbacks=[sampling])
    return sampling.posterior

  def run_one(item):
    """NLL of validation and test, test error, number of draws."""
    is_cyclical, rate, seed = item
    rows, validation = split((arguments.seed, seed))
    posterior = fit(is_cyclical, rate, *rows, arguments.seed * 100 + seed)
    score = posterior.evaluate(test.features, test.labels)
    return (posterior.evaluate(*validation)['nll'], score['nll'],
            1. - score['accuracy'], len(posterior))

  schedules = False, True
  pilot = [(k, rate, num_splits) for k in schedules for rate in rates]
  values = np.array(parts.each(
      run_one, pilot, arguments, 'learning rates', share=0.32))
  best = np.nanargmin(values[:, 0].reshape([2, -1]), axis=1)
  items = [(k, rates[best[int(k)]], seed)
           for k in schedules for seed in range(num_splits)]
  scores = np.array(parts.each(
      run_one, items, arguments, 'networks', share=0.63))
  return {
      k: (scores[k * num_splits:][:num_splits, 1:], rates[best[int(k)]])
      for k in schedules}, dict(
          epochs=epochs, num_cycles=num_cycles, num_train=num_train, hidden=20,
          batch_size=100, momentum=0.9, learning_rates=rates,
          num_splits=num_splits)


def run(arguments):
  found, (scores, settings) = mixture(arguments), network(arguments)
  rows, published = [], {'SGLD': ('4 of 25', '25 of 25')}
  words = {False: 'decaying', True: 'cyclical'}
  for (name, is_cyclical), (counts, _, chosen) in found.items():
    rows.append([
        '25 modes', f'{name}, {words[is_cyclical]}',
        f'eta = {chosen[0]:g}' + (
            f', friction {chosen[1]:g}' if name == 'SGHMC' else ''),
        'modes found', counts.mean(), counts.std() / np.sqrt(len(counts)),
        published.get(name, ('', ''))[is_cyclical]])
  plain, cyclical = (scores[k][0] for k in (False, True))
  # Half of an interval of 95%, over the standard deviation.
  width = float(tfd.StudentT(len(plain) - 1., 0., 1.).quantile(0.975)) / (
      np.sqrt(len(plain)))
  for name, values, rate in (
      ('SGHMC, constant', plain, scores[False][1]),
      ('SGHMC, cyclical', cyclical, scores[True][1]),
      ('cyclical less constant', cyclical - plain, None)):
    rows += [[
        'MNIST, small', name, rate and f'learning rate {rate:g}', what,
        values[:, k].mean(), width * values[:, k].std(ddof=1), None]
             for k, what in enumerate(('test NLL', 'test error'))]

  def average(name, is_cyclical):
    counts = found[name, is_cyclical][0]
    return (f'{counts.mean():.1f} of 25 modes, {counts.min():.0f} to '
            f'{counts.max():.0f} in {len(counts)} runs of 4 chains')

  claims = [
      common.Claim(
          'it finds at most 6 of 25 modes',
          bool(found['SGLD', False][0].mean() <= 6.), average('SGLD', False),
          PAPER('traditional SGLD in (b) has only discovered 4 of the 25 '
                'modes')),
      common.Claim(
          'it finds at least 24 of 25 modes',
          bool(found['SGLD', True][0].mean() >= 24.), average('SGLD', True),
          PAPER('our cSGLD in (c) has fully explored the distribution')),
      common.Claim(
          'Cyclical SGHMC finds more modes than SGHMC with a decaying step',
          bool(found['SGHMC', True][0].mean()
               > found['SGHMC', False][0].mean() + 1.),
          f'{average("SGHMC", True)}, against {average("SGHMC", False)}')]
  return common.Result(
      ['problem', 'sampler', 'chosen', 'measure', 'value',
       'its error (MNIST: ±, 95%)', 'published'], rows, claims, draw(found),
      dict(
          settings, pilot=PILOT, num_parallel=NUM_PARALLEL,
          mixture_cycles=NUM_CYCLES, gradient_noise=1.),
      notes="The authors' code subtracts the gradient's noise from what SGLD "
      'adds, half the step size of it; here it is left as heat. SGLD has the '
      "authors' step sizes; those of SGHMC are chosen by a pilot run. MNIST is "
      f'a comparison of ours, without a verdict: {len(plain)} splits, '
      f"intervals by Student's t; {plain[0, 2]:.0f} draws with the constant "
      f'step and {cyclical[0, 2]:.0f} with the cyclical one.')


def draw(found):
  picture = figure.Figure(figsize=(11, 3.2), layout='constrained')
  axes = picture.subplots(1, len(found), sharex=True, sharey=True)
  for k, ((name, is_cyclical), (counts, draws, _)) in enumerate(found.items()):
    axes[k].plot(*draws[::5].T, ',', color=f'C{k}')
    axes[k].plot(*CENTRES.T, 'k+', markersize=5)
    axes[k].set(
        title=f'{name}, {"cyclical" if is_cyclical else "decaying"}: '
        f'{counts[0]:.0f} modes', xlim=(-6., 6.), ylim=(-6., 6.),
        aspect='equal', xlabel=r'$\theta_1$')
    axes[k].title.set_fontsize('medium')
  axes[0].set_ylabel(r'$\theta_2$')
  return picture


def main(argv=None):
  return common.main('cyclical_posterior', run, __doc__, argv)


if __name__ == '__main__':
  main()
