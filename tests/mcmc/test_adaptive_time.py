"""AdaptiveTime: the law with its weights, its definition, draws with weights.

A test of a law fails by chance once in a million.
"""

import functools

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import tensorflow as tf

from tests import oracle
from tests.mcmc import test_sglrw
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.internal import resampling

Z = scipy.stats.norm.isf(oracle.FALSE_ALARM_RATE / 2.)
DATA = test_sglrw.DATA['light']
PRECISION = 1. + len(DATA)  # Of the mean of normal data, with prior N(0, 1).
# N^2 / n (1 - n / N) times the variance of the data, for n = 2.
NOISE = 36. / 2. * (1. - 2. / 6.) * np.var(DATA, ddof=1)


class KnowsTheMinibatch(sgmcmc.AdaptiveTime):
  """An error: the step's own minibatch has a say in its size.

  The weight of the state before a step is in the results after it.
  """

  def _one_step(self, parts, previous, seeds):
    estimate = self.inner_kernel.estimate_at(
        parts, previous.inner_results, seeds.inner)
    square = self._mean_square(
        estimate.grads_target_log_prob, previous.inner_results)
    rho = self.parameters['decay']
    now = self._results(
        previous.inner_results,
        rho * previous.monitor + (1. - rho) * square / previous.mean_square,
        previous.mean_square)
    parts, moved = super()._one_step(parts, now, seeds)
    return parts, moved._replace(
        log_weight=now.log_weight, monitor=now.monitor)


@functools.cache
def martingale(kind, decay):
  """By chain, what has mean zero after any number of steps of SGLD.

  With x the distance to the mean, L the precision, C the noise's variance and
  psi_k the weight of x_k, E[x_{k+1}^2 - x_k^2 | past] over 2 h is

    -psi_k (L x_k^2 - 1) + h psi_k^2 (L^2 x_k^2 + C) / 2.

  Returns three such sums: with each state's own weight, with the weight of
  the state one step later, and with equal weights in the first term.
  """
  posterior = sgmcmc.Posterior(
      lambda mu: -tf.square(mu) / 2.,
      lambda mu, x: -tf.square(x - mu[..., tf.newaxis]) / 2., DATA)
  h, num_steps = 0.02, 150
  kernel = kind(
      sgmcmc.SGLD(
          posterior, h, gradient_estimator=sgmcmc.gradients.Uniform(2)),
      decay=decay, power=0.5)
  mean = DATA.sum() / PRECISION
  start = mean + np.random.default_rng(0).normal(
      size=8_000) / np.sqrt(PRECISION)

  @tf.function(autograph=False)
  def run():
    state = tf.constant(start)
    results = kernel.bootstrap_results(state)

    def body(k, state, results, sums):
      moved, new = kernel.one_step(
          state, results, seed=sgmcmc.random.fold_in(tf.constant([1, 2]), k))
      square = tf.square(state - mean)
      change = (tf.square(moved - mean) - square) / (2. * h)
      before, after = (tf.exp(r.log_weight) for r in (results, new))
      added = [
          change + w * (PRECISION * square - 1.)
          - h * v**2 * (PRECISION**2 * square + NOISE) / 2.
          for w, v in ((before, before), (after, after),
                       (tf.ones_like(before), before))]
      return k + 1, moved, new, [a + b for a, b in zip(sums, added)]

    return tf.while_loop(
        lambda k, *_: k < num_steps, body,
        (0, state, results, [tf.zeros_like(state)] * 3))[-1]

  return np.stack(run())


def z_score(values):
  return np.mean(values) / np.std(values) * np.sqrt(len(values))


@pytest.mark.slow
@pytest.mark.parametrize('decay', [
    pytest.param(0., marks=pytest.mark.weekly), 0.9])
def test_law_with_minibatches(decay):
  """E[x^2] with the weights, exactly, at a finite step; and three errors."""
  own, later, equal = martingale(sgmcmc.AdaptiveTime, decay)
  assert abs(z_score(own)) < Z
  assert abs(z_score(later)) > Z
  assert abs(z_score(equal)) > Z
  _, own, _ = martingale(KnowsTheMinibatch, decay)
  assert abs(z_score(own)) > Z


def quartic(x):
  return -x**4 / 4.


@functools.cache
def moments(name):
  """A function of h: E[x^2], its error, and the mean at equal weights."""
  def make_kernel(h):
    if name == 'sgld':
      return sgmcmc.AdaptiveTime(sgmcmc.SGLD(quartic, h))
    return sgmcmc.AdaptiveTime(
        sgmcmc.SGHMC(quartic, h, 1., integrator=name))

  @tf.function(jit_compile=True, autograph=False)
  def run(h):
    kernel = make_kernel(h)
    state = tf.zeros([8000])
    results = kernel.bootstrap_results(state)

    def body(k, state, results, sums):
      state, results = kernel.one_step(
          state, results, seed=sgmcmc.random.fold_in(tf.constant([1, 2]), k))
      w = tf.exp(results.log_weight)
      added = tf.stack([w, w * state**2, state**2])
      return k + 1, state, results, sums + tf.where(k < 300, 0., added)

    return tf.while_loop(
        lambda k, *_: k < 1300, body,
        (0, state, results, tf.zeros([3, 8000])))[-1]

  def at(h):
    total, weighted, plain = run(tf.constant(h)).numpy().astype(np.float64)
    mean = weighted.sum() / total.sum()
    error = np.std(weighted - mean * total) / total.mean() / np.sqrt(8000)
    return mean, error, plain.mean() / 1000.

  return at


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('name, h', [
    ('sgld', 0.04), ('euler', 0.1), ('baoab', 0.1)])
def test_weighted_mean_against_quadrature(name, h):
  """On exp(-x^4 / 4), from two step sizes, whose bias is of first order."""
  mass, second = (
      scipy.integrate.quad(fn, -9., 9.)[0] for fn in (
          lambda x: np.exp(quartic(x)), lambda x: x**2 * np.exp(quartic(x))))
  (full, error, plain), (half, smaller, plain_half) = (
      moments(name)(h / k) for k in (1, 2))
  allowed = Z * np.hypot(error, 2. * smaller) + 0.002
  assert abs(2. * half - full - second / mass) < allowed
  assert abs(2. * plain_half - plain - second / mass) > allowed


def test_definition_by_parts_and_chains():
  """zeta and psi in NumPy; a step is the inner kernel's, with h psi."""
  rng = np.random.default_rng(0)
  state = [tf.constant(rng.normal(size=size)) for size in ([3, 2], [3])]
  target = lambda x, y: -tf.reduce_sum(x**4, axis=-1) - y**2
  make = functools.partial(sgmcmc.SGHMC, target, friction=0.5)
  for integrator in ('euler', 'baoab'):
    kernel = sgmcmc.AdaptiveTime(
        make(0.01, integrator=integrator), decay=0.8, min_factor=0.2,
        max_factor=3., power=0.3, gradient_scale=2.)
    results = kernel.bootstrap_results(state)
    at, zeta = state, np.array(results.monitor)
    for k in range(3):
      gradients = [-4. * at[0]**3, -2. * at[1]]
      square = (np.sum(gradients[0]**2, axis=-1) + gradients[1]**2) / 3.
      if k == 0:
        np.testing.assert_allclose(zeta, square / 4.)
      psi = np.array(tf.exp(results.log_weight))
      np.testing.assert_allclose(
          psi, 0.2 * (zeta**0.3 + 3.) / (zeta**0.3 + 0.2))
      moved, new = kernel.one_step(at, results, seed=[1, k])
      for j in range(3):  # Each chain by itself.
        own, inner = (
            tf.nest.map_structure(
                lambda t, j=j: t[j:j + 1] if t.shape.rank else t, one)
            for one in (at, results.inner_results))
        alone = make(0.01 * psi[j], integrator=integrator)
        noise = kernel.inner_kernel.standard_normal(
            at, sgmcmc.random.fold_in(
                sgmcmc.random.fold_in(tf.constant([1, k]), 0), 0))
        alone._noise = lambda parts, seed, noise=noise, j=j: [
            part[j:j + 1] for part in noise]
        expected, _ = alone.one_step(own, inner, seed=[0, 0])
        for a, b in zip(moved, expected):
          np.testing.assert_allclose(a[j:j + 1], b, rtol=1e-12)
      zeta = 0.8 * zeta + 0.2 * square / 4.
      np.testing.assert_allclose(new.monitor, zeta)
      at, results = moved, new


def test_a_scale_that_is_measured():
  """The mean over the steps so far; psi is 1 at the first state."""
  kernel = sgmcmc.AdaptiveTime(sgmcmc.SGLD(quartic, 0.01))
  state = tf.constant([0.5, 2.])
  results = kernel.bootstrap_results(state)
  np.testing.assert_allclose(results.log_weight, 0., atol=1e-6)
  squares = [state**6]
  for k in range(4):
    squares.append(state**6)
    state, results = kernel.one_step(state, results, seed=[0, k])
  np.testing.assert_allclose(
      results.mean_square, np.mean(squares, axis=0), rtol=1e-5)


def test_a_start_at_the_mode():
  kernel = sgmcmc.AdaptiveTime(sgmcmc.SGLD(quartic, 0.01))
  results = kernel.bootstrap_results(tf.zeros([3]))
  np.testing.assert_allclose(results.log_weight, 0., atol=1e-6)
  assert np.all(np.isfinite(kernel.one_step(
      tf.zeros([3]), results, seed=[0, 1])[1].log_weight))


@functools.cache
def draws(directory=None, num_results=600):
  kernel = sgmcmc.AdaptiveTime(sgmcmc.SGLD(
      lambda x, y: -tf.reduce_sum(x**4, axis=-1) - y**2, 0.02))
  return sgmcmc.sample(
      kernel, num_results, [tf.zeros([8, 2]), tf.zeros([8])], seed=1,
      num_burnin_steps=100, num_steps_between_results=2, progress_bar=False,
      trace_fn=lambda _, results: (results.log_weight, results.step),
      directory=directory)


@pytest.mark.slow
def test_draws_keep_their_weights():
  found = draws()
  np.testing.assert_array_equal(found.log_weights, found.trace[0])
  assert found.log_weights.shape == [600, 8]
  w = np.exp(np.float64(found.log_weights))
  x, y = found.states
  mean = found.mean(lambda states: {'x': states[0]**2, 'n': states[1] > 0.})
  np.testing.assert_allclose(
      mean['x'], np.einsum('kc,kcd->d', w, np.float64(x)**2) / w.sum(),
      rtol=1e-6)
  assert mean['n'].dtype == tf.float64
  np.testing.assert_allclose(
      mean['n'], np.sum(w * (y.numpy() > 0.)) / w.sum())
  assert found.mean()[1].shape == []
  with pytest.raises(ValueError, match='leading axes'):
    found.mean(lambda states: tf.reduce_mean(states[0], axis=1))


def test_resampled_draws():
  """In their order, with the weighted mean of each chain, up to 1 / n."""
  found, even = draws(), draws().resampled(seed=3)
  assert even.log_weights is None and len(even) == 600
  assert even.resampled() is even
  w = np.exp(np.float64(found.log_weights))
  w /= w.mean(axis=0)
  for c in range(8):
    times = np.unique(found.states[1][:, c], return_counts=True)
    again = np.unique(even.states[1][:, c], return_counts=True)
    count = dict(zip(again[0].tolist(), again[1].tolist()))
    order = np.argsort(found.states[1][:, c])
    for value, weight in zip(times[0].tolist(), w[order, c]):
      assert abs(count.get(value, 0) - weight) < 1.
  # Parts and trace belong together.
  pairs = {tuple(row) for row in np.concatenate(
      [found.states[0][:, 2], found.trace[0][:, 2, np.newaxis]], axis=1)}
  assert pairs >= {tuple(row) for row in np.concatenate(
      [even.states[0][:, 2], even.trace[0][:, 2, np.newaxis]], axis=1)}


def test_systematic_resampling_is_unbiased():
  log_weights = np.log([0.2, 3., 0.7, 0.1])
  counts = np.mean([
      np.bincount(resampling.systematic(log_weights, seed), minlength=4)
      for seed in range(4000)], axis=0)
  np.testing.assert_allclose(counts, [0.2, 3., 0.7, 0.1], atol=0.05)


def test_export_and_summary_are_at_equal_weights():
  found, even = draws(), draws().resampled()
  exported = found.to_arviz()
  np.testing.assert_array_equal(
      exported.posterior['state_1'], np.transpose(even.states[1]))
  rows, wanted = (
      sgmcmc.diagnostics.summary(d).rows for d in (found, even))
  assert rows == wanted


@pytest.mark.slow
def test_weights_are_on_disk(tmp_path):
  draws(str(tmp_path), 300)
  found = draws(str(tmp_path))
  np.testing.assert_array_equal(found.log_weights, draws().log_weights)
  np.testing.assert_allclose(found.mean()[0], draws().mean()[0], rtol=1e-6)


def test_draws_without_weights():
  found = sgmcmc.sample(
      sgmcmc.SGLD(quartic, 0.02), 20, tf.zeros([3]), seed=1,
      progress_bar=False)
  assert found.log_weights is None and found.resampled() is found
  np.testing.assert_allclose(
      found.mean(), np.mean(found.states), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize('arguments, error, message', [
    (dict(decay=1.), ValueError, 'decay is 1'),
    (dict(decay=-0.1), ValueError, 'decay is -0.1'),
    (dict(min_factor=1.), ValueError, 'min_factor is 1'),
    (dict(max_factor=0.5), ValueError, 'max_factor 0.5'),
    (dict(power=0.), ValueError, 'power is 0'),
    (dict(gradient_scale=0.), ValueError, 'gradient_scale is 0'),
    (dict(inner_kernel=sgmcmc.SGLRW(quartic, 0.1)), ValueError,
     'Take SGLD or SGHMC'),
    (dict(inner_kernel=3), TypeError, 'inner_kernel is 3'),
])
def test_refused_at_construction(arguments, error, message):
  arguments = {'inner_kernel': sgmcmc.SGLD(quartic, 0.1), **arguments}
  with pytest.raises(error, match=message):
    sgmcmc.AdaptiveTime(**arguments)
