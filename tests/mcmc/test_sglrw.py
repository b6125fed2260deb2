"""SGLRW against its exact law: on its lattice, and by moments.

In one dimension a chain from one state is a Markov chain on a lattice, with all
minibatches enumerated in the probability to go up: the law of its place after n
steps is exact, clipped gradients included. In several dimensions means and
covariances are, as long as nothing is clipped. A test fails by chance once in a
million.
"""

import functools
import itertools

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests import oracle
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.mcmc import sglrw

NUM_CHAINS = 40_000
NUM_STEPS = 40
START = 0.3
# The mean of normal data of unit variance; one is far from the others.
DATA = {'light': np.array([0.2, -0.5, 1.1, 0.4, -0.9, 0.7]),
        'heavy': np.array([0.2, -0.5, 1.1, 0.4, -0.9, 30.])}


def gradients_of_minibatches(data, batch_size):
  """A function of theta, `[k]` to `[batches, k]`; the prior is N(0, 1)."""
  sums = np.array([
      sum(batch) for batch in itertools.combinations(data, batch_size)])
  scale = len(data) / batch_size
  return lambda theta: -theta + scale * (
      sums[:, np.newaxis] - batch_size * theta)


def lattice_law(gradients, h, temperature):
  """The places on the lattice after the steps, and their probabilities."""
  spacing = np.sqrt(2. * h * temperature)
  k = np.arange(-NUM_STEPS, NUM_STEPS + 1)
  c = np.clip(
      np.sqrt(h / (2. * temperature)) * gradients(START + spacing * k), -1., 1.)
  up = np.mean((1. + c) / 2., axis=0)
  law = (k == 0).astype(float)
  for _ in range(NUM_STEPS):
    law = np.roll(law * up, 1) + np.roll(law * (1. - up), -1)
  return k, law, spacing


@functools.cache
def chains(name, batch_size):
  """Chains from one state; the last two numbers are errors."""
  posterior = sgmcmc.Posterior(
      lambda mu: -tf.square(mu) / 2.,
      lambda mu, x: -tf.square(x - mu[..., tf.newaxis]) / 2., DATA[name])
  step = sglrw.lattice_step
  with pytest.MonkeyPatch.context() as patch:
    def make_kernel(h, temperature, gain, length):
      def with_errors(parts, gradients, step_size, temperature, uniform):
        gradients = [tf.cast(gain, g.dtype) * g for g in gradients]
        moved = step(parts, gradients, step_size, temperature, uniform)
        return [theta + tf.cast(length, theta.dtype) * (new - theta)
                for theta, new in zip(parts, moved)]

      patch.setattr(sglrw, 'lattice_step', with_errors)
      return sgmcmc.SGLRW(
          posterior, h, temperature=temperature,
          gradient_estimator=sgmcmc.gradients.Uniform(batch_size))

    run = oracle.compile_chains(make_kernel, jit_compile=False)
    state = tf.fill([NUM_CHAINS], tf.constant(START, tf.float64))
    run(state, 0, h=0.1, temperature=1., gain=1., length=1.)
  return functools.partial(run, state)


def lattice_p_value(name, batch_size, h, temperature, gain=1., length=1.):
  """Of a chi-square test; places with few chains are put together."""
  k, law, spacing = lattice_law(
      gradients_of_minibatches(DATA[name], batch_size), h, temperature)
  state, _ = chains(name, batch_size)(
      NUM_STEPS, h=h, temperature=temperature, gain=gain, length=length)
  places = np.clip(
      np.rint((state.numpy() - START) / spacing), -NUM_STEPS, NUM_STEPS)
  counts = np.bincount(places.astype(int) + NUM_STEPS, minlength=len(k))
  expected, observed = [0.], [0.]
  for e, o in zip(NUM_CHAINS * law, counts):
    expected[-1] += e
    observed[-1] += o
    if expected[-1] > 20.:
      expected.append(0.)
      observed.append(0.)
  expected = [*expected[:-2], expected[-2] + expected[-1]]
  observed = [*observed[:-2], observed[-2] + observed[-1]]
  return scipy.stats.chisquare(observed, expected).pvalue


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('arguments', [
    dict(name='light', batch_size=2, h=0.02, temperature=1.),
    dict(name='light', batch_size=2, h=0.1, temperature=0.5),
    dict(name='heavy', batch_size=1, h=0.02, temperature=1.),
    dict(name='heavy', batch_size=1, h=0.005, temperature=2.),
], ids=str)
def test_law_on_the_lattice(arguments):
  """The outlier's gradient is clipped, the others' in part."""
  assert lattice_p_value(**arguments) > oracle.FALSE_ALARM_RATE


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('error', [
    # h / T for h / (2 T), T forgotten in one of the two, too long a step.
    dict(gain=np.sqrt(2.)), dict(gain=np.sqrt(0.5)), dict(length=0.5),
], ids=str)
def test_planted_errors_on_the_lattice_are_seen(error):
  assert lattice_p_value(
      'light', 2, 0.1, 0.5, **error) < oracle.FALSE_ALARM_RATE


def moments_after(num_steps, precision, noise, h, mean):
  """Of theta - mean, of chains that start at a distance `mean` from the mode.

  E[step] = -h A z, E[step_i^2] = 2 h, E[step_i step_j] = h^2 E[g_i g_j].
  """
  d = len(mean)
  second = np.outer(mean, mean)
  for _ in range(num_steps):
    squares = precision @ second @ precision.T + noise
    cross = h * (precision @ second + second @ precision.T)
    added = np.where(np.eye(d) > 0., 2. * h, h**2 * squares)
    mean, second = mean - h * precision @ mean, second - cross + added
  return mean, second - np.outer(mean, mean)


@functools.cache
def gaussian_chains(num_parts, share_uniform):
  posterior = oracle.GaussianModel().posterior()
  uniform = sgmcmc.SGLRW._uniform
  with pytest.MonkeyPatch.context() as patch:
    if share_uniform:
      patch.setattr(sgmcmc.SGLRW, '_uniform', lambda self, parts, seed: [
          tf.broadcast_to(u[..., :1] if u.shape.rank > 1 else u, u.shape)
          for u in uniform(self, parts, seed)])
    run = oracle.compile_chains(lambda h: sgmcmc.SGLRW(
        posterior, h, gradient_estimator=sgmcmc.gradients.Uniform(4)),
                                jit_compile=False)
    start = tf.fill([NUM_CHAINS, 3], 0.)
    state = start if num_parts == 1 else [start[:, :2], start[:, 2]]
    run(state, 0, h=0.1)
  return functools.partial(run, state)


def gaussian_p_value(num_parts=1, share_uniform=False, h=0.02, factor=1.):
  model = oracle.GaussianModel()
  estimator = sgmcmc.gradients.Uniform(4)
  mean, covariance = moments_after(
      60, model.precision, model.gradient_covariance(estimator), h, -model.mean)
  state, _ = gaussian_chains(num_parts, share_uniform)(60, h=h)
  return oracle.moments_p_value(
      oracle.join_parts(state, NUM_CHAINS), model.mean + mean,
      factor * covariance)


@pytest.mark.parametrize('num_parts', [
    1, pytest.param(2, marks=pytest.mark.slow)])
def test_moments_of_several_coordinates(num_parts):
  assert gaussian_p_value(num_parts) > oracle.FALSE_ALARM_RATE
  # Five percent of variance is seen.
  assert gaussian_p_value(num_parts, factor=1.05) < 1e-9


def test_planted_common_direction_is_seen():
  """With one random number for all coordinates they go up together."""
  assert gaussian_p_value(share_uniform=True) < oracle.FALSE_ALARM_RATE


def test_variances_are_exact_at_any_step_and_noise():
  """Of independent coordinates in the law above, where SGLD has a bias."""
  precision, noise = np.diag([1., 3.]), np.diag([9., 4.])
  for h in (0.01, 0.1):
    _, covariance = moments_after(5000, precision, noise, h, np.zeros(2))
    np.testing.assert_allclose(covariance, np.diag([1., 1. / 3.]), atol=1e-9)
    biased = oracle.sgld_covariance(precision, noise, h)
    assert biased[0, 0] > 1. + 0.9 * h * 9. / 2.


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('s, factor', [(0.5, 1.048), (1., 1.465)])
def test_heat_of_clipped_noise(s, factor):
  """1 / erf(1 / (s sqrt 2)) of the docstring, on N(0, 1) with normal noise."""
  h = 0.02
  kernel = sgmcmc.SGLRW(
      lambda x: -tf.square(x) / 2., h,
      gradient_estimator=sgmcmc.gradients.GaussianNoise(
          np.sqrt(2. * s**2 / h - 1.)))
  start = np.random.default_rng(0).normal(0., np.sqrt(factor), NUM_CHAINS)
  state, _ = oracle.run_chains(kernel, tf.constant(start, tf.float32), 300)
  # Beside the error of the approximation 5 standard errors.
  assert abs(np.var(state) / factor - 1.) < 0.01 + 5. * np.sqrt(2. / NUM_CHAINS)


def test_a_step_has_one_length_whatever_the_gradient_is():
  kernel = sgmcmc.SGLRW(
      lambda x: -1e30 * tf.reduce_sum(tf.abs(x), axis=-1), 0.02)
  state = tf.ones([5, 3])
  moved, _ = kernel.one_step(
      state, kernel.bootstrap_results(state), seed=[1, 2])
  np.testing.assert_allclose(state - moved, 0.2, rtol=1e-5)


def test_a_gradient_that_is_no_number_is_an_error():
  kernel = sgmcmc.SGLRW(lambda x: tf.sqrt(x), 0.02)
  with pytest.raises(sgmcmc.NonFiniteError):
    sgmcmc.sample(kernel, 500, tf.fill([20], 0.1), progress_bar=False, seed=1)


def test_temperature_zero_is_refused():
  with pytest.raises(ValueError, match='temperature is 0'):
    sgmcmc.SGLRW(lambda x: -x**2, 0.1, temperature=0.)
