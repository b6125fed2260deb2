"""StochasticBarker against its exact law at a finite step.

In one dimension the density of a step is known, with all minibatches
enumerated: the law after n steps is found on a fine grid, and the chains are
held to it by a chi-square test, which fails by chance once in a million.
"""

import functools

import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf

from tests import oracle
from tests.mcmc import test_sglrw
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.mcmc import barker

NUM_CHAINS = 40_000
NUM_STEPS = 25
START = test_sglrw.START
PRECISION = 7.  # Of the posterior of six examples.


def law_on_grid(gradients, h, temperature, tau):
  """The grid, and the probability of each of its cells."""
  sigma = np.sqrt(2. * h * temperature)
  spacing = sigma / 40.
  radius = 9. * np.sqrt(temperature / PRECISION) + sigma
  k = np.arange(-int(radius / spacing), int(radius / spacing) + 1)
  grid = START + spacing * k
  g = gradients(grid)
  jumps = np.arange(-int(1.7 * sigma / spacing), int(1.7 * sigma / spacing) + 1)
  law = (k == 0).astype(float)
  transition = np.zeros([len(k), len(jumps)])
  for column, jump in enumerate(jumps):
    z = spacing * jump
    length = scipy.stats.norm.pdf(abs(z), sigma, 0.1 * sigma) * spacing
    rest = 1.702**2 - (z * tau / temperature)**2
    a = 1.702 / np.sqrt(rest) if rest > 0. else 1e9
    p = scipy.special.expit(a * z * g / temperature)
    transition[:, column] = length * np.mean(p, axis=0)
  for _ in range(NUM_STEPS):
    new = np.zeros_like(law)
    for column, jump in enumerate(jumps):
      new += np.roll(law * transition[:, column], jump)
    law = new
  assert abs(law.sum() - 1.) < 1e-3
  return grid, law / law.sum()


@functools.cache
def chains(name, batch_size):
  """Chains from one state; the last three numbers are errors."""
  posterior = sgmcmc.Posterior(
      lambda mu: -tf.square(mu) / 2.,
      lambda mu, x: -tf.square(x - mu[..., tf.newaxis]) / 2.,
      test_sglrw.DATA[name])
  step = barker.barker_step
  with pytest.MonkeyPatch.context() as patch:
    def make_kernel(h, temperature, tau, gain, length, of_noise):
      def with_errors(parts, gradients, noise_variance, *arguments):
        gradients = [tf.cast(gain, g.dtype) * g for g in gradients]
        noise_variance = [
            tf.cast(of_noise, v.dtype) * v for v in noise_variance]
        moved = step(parts, gradients, noise_variance, *arguments)
        return [theta + tf.cast(length, theta.dtype) * (new - theta)
                for theta, new in zip(parts, moved)]

      patch.setattr(barker, 'barker_step', with_errors)
      return sgmcmc.StochasticBarker(
          posterior, h, temperature=temperature, noise_scale=tau,
          gradient_estimator=sgmcmc.gradients.Uniform(batch_size))

    run = oracle.compile_chains(make_kernel, jit_compile=False)
    state = tf.fill([NUM_CHAINS], tf.constant(START, tf.float64))
    run(state, 0, h=0.1, temperature=1., tau=1., gain=1., length=1.,
        of_noise=1.)
  return functools.partial(run, state)


def p_value(name, batch_size, h, temperature, tau, gain=1., length=1.,
            of_noise=1.):
  grid, law = law_on_grid(
      test_sglrw.gradients_of_minibatches(
          test_sglrw.DATA[name], batch_size), h, temperature, tau)
  state, _ = chains(name, batch_size)(
      NUM_STEPS, h=h, temperature=temperature, tau=tau, gain=gain,
      length=length, of_noise=of_noise)
  # Bins of about the same probability, with edges between points of the grid.
  cumulative = np.cumsum(law)
  edges = np.unique(np.searchsorted(cumulative, np.arange(1, 50) / 50.))
  expected = np.diff(np.concatenate([[0.], cumulative[edges], [1.]]))
  middle = grid[edges] + (grid[1] - grid[0]) / 2.
  observed = np.bincount(
      np.searchsorted(middle, state.numpy()), minlength=len(expected))
  return scipy.stats.chisquare(observed, NUM_CHAINS * expected).pvalue


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('arguments', [
    dict(name='light', batch_size=2, h=0.02, temperature=1., tau=0.),
    dict(name='light', batch_size=2, h=0.04, temperature=0.5, tau=3.),
    dict(name='heavy', batch_size=1, h=0.01, temperature=1., tau=0.),
    # Beyond 1.702: the sign decides.
    dict(name='heavy', batch_size=1, h=0.01, temperature=2., tau=30.),
], ids=str)
def test_law_on_a_grid(arguments):
  assert p_value(**arguments) > oracle.FALSE_ALARM_RATE


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('error', [
    dict(gain=1.2), dict(gain=0.5), dict(length=1.05), dict(of_noise=0.25),
], ids=str)
def test_planted_errors_are_seen(error):
  """Too steep a choice, T forgotten for g, too long a step, or for tau."""
  assert p_value(
      'light', 2, 0.04, 0.5, 3., **error) < oracle.FALSE_ALARM_RATE


@pytest.mark.parametrize('num_parts', [1, 2])
def test_coordinates_choose_on_their_own(num_parts):
  """Of a density that is nearly flat, the covariance of a step is known."""
  kernel = sgmcmc.StochasticBarker(
      lambda *parts: -1e-9 * tf.reduce_sum(
          tf.square(oracle.join(parts)), axis=-1), 0.02, temperature=2.)
  state = tf.zeros([NUM_CHAINS, 3])
  parts = [state] if num_parts == 1 else [state[:, :2], state[:, 2]]
  moved, _ = kernel.one_step(
      parts, kernel.bootstrap_results(parts), seed=[1, 2])
  moved = oracle.join_parts(moved, NUM_CHAINS)
  assert oracle.moments_p_value(
      moved, np.zeros(3), 0.08 * 1.01 * np.eye(3)) > oracle.FALSE_ALARM_RATE
  np.testing.assert_allclose(
      np.abs(moved).std(), 0.1 * np.sqrt(0.08), rtol=0.03)


@functools.cache
def noisy_chains(is_estimated, is_heavy):
  """On N(0, 1) from its law, with noise of standard deviation tau."""
  def make_kernel(h, tau, scale):
    estimator = HeavyTails(tau) if is_heavy else (
        sgmcmc.gradients.GaussianNoise(tau))
    return sgmcmc.StochasticBarker(
        lambda x: -tf.square(x) / 2., h, gradient_estimator=estimator,
        noise_scale=None if is_estimated else scale)

  start = np.random.default_rng(0).normal(size=NUM_CHAINS).astype(np.float32)
  return functools.partial(
      oracle.compile_chains(make_kernel), tf.constant(start))


class HeavyTails(sgmcmc.gradients.GradientEstimator):
  """The exact gradient, and noise of a t law of 2.5 degrees of freedom."""

  def __init__(self, scale):
    self._scale = scale

  def check_target(self, target):
    pass

  def one_step(
      self, target, state_parts, previous_results, seed, gaussian_step=None):
    estimate, results = sgmcmc.gradients.Exact().one_step(
        target, state_parts, previous_results, seed)
    # By its quantiles in the middle of so many equal cells.
    levels = (np.arange(4096) + 0.5) / 4096.
    table = scipy.stats.t.ppf(levels, 2.5)
    table = tf.constant(table / table.std(), tf.float32)
    part, = state_parts
    noise = tf.gather(table, sgmcmc.random.indices(
        4096, part.shape, seed, replacement=True))
    return estimate._replace(grads_target_log_prob=[
        g + tf.cast(self._scale, g.dtype) * noise
        for g in estimate.grads_target_log_prob]), results


def variance(sigma_tau, share=1., is_estimated=False, is_heavy=False):
  h = 0.02
  tau = sigma_tau / np.sqrt(2. * h)
  state, results = noisy_chains(is_estimated, is_heavy)(
      400, h=h, tau=tau, scale=share * tau)
  return np.var(state), results, tau


ERROR = 5. * np.sqrt(2. / NUM_CHAINS) + 0.01  # And the rounding of the table.


@pytest.mark.slow
@pytest.mark.parametrize('sigma_tau, share, wanted', [
    (0., 0., 1.01), (0.8, 0., 1.16), (1.5, 0., 1.44), (0.8, 1., 1.05),
    (1.5, 1., 1.08)])
def test_the_table_of_the_docstring(sigma_tau, share, wanted):
  assert abs(variance(sigma_tau, share)[0] - wanted) < ERROR


@pytest.mark.slow
@pytest.mark.parametrize('sigma_tau', [0.4, 0.8])
def test_noise_that_is_estimated(sigma_tau):
  """tau^2 is found, and the law is about that where it is told."""
  found, results, tau = variance(sigma_tau, is_estimated=True)
  # With the gradient's own change in a step, h.
  assert abs(np.mean(results.noise_variance[0]) / tau**2 - 1.) < 0.05
  told = variance(sigma_tau)[0]
  assert abs(found - told) < 5. * np.sqrt(4. / NUM_CHAINS) + 0.01


@pytest.mark.slow
def test_heavy_tails_of_the_docstring():
  assert abs(variance(0.8, 0., is_heavy=True)[0] - 1.09) < 2. * ERROR
  assert variance(0.8, 1., is_heavy=True)[0] < 1.02
  assert variance(1.5, 1., is_heavy=True)[0] < 0.85


def test_a_gradient_that_is_no_number_is_an_error():
  kernel = sgmcmc.StochasticBarker(lambda x: tf.sqrt(x), 0.02)
  with pytest.raises(sgmcmc.NonFiniteError):
    sgmcmc.sample(kernel, 500, tf.fill([20], 0.1), progress_bar=False, seed=1)


@pytest.mark.parametrize('arguments, message', [
    (dict(temperature=0.), 'temperature is 0'),
    (dict(noise_scale=-1.), 'noise_scale is -1'),
])
def test_refused_at_construction(arguments, message):
  with pytest.raises(ValueError, match=message):
    sgmcmc.StochasticBarker(lambda x: -x**2, 0.1, **arguments)
