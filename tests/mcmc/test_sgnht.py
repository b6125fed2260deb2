"""SGNHT against its stationary law, and against the values of Ding et al.

With enough small steps the law is exp(-U/T) for theta, N(0, T I) for the
momentum, and for the thermostat N(A + B, T / mu), mu = d for the scalar one
(equation 11 of the paper and below it; B is the gradient's noise), d_l for that
of a part. Variances over 20,000 chains have a standard error of 1%; the bounds
are at 6%, five of these and 1% for the step: a false alarm once in about 10^5
entries. What is of finite steps alone is in `test_badodab.py`.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests import oracle
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.mcmc import thermostats

tfd = tfp.distributions

NUM_CHAINS = 20_000
SCALES = np.array([0.5, 1., 2., 1., 0.7], np.float32)


def target_log_prob(first, second):
  """Independent normals, d = 5 coordinates in parts of 2 and 3."""
  return -0.5 * (
      tf.reduce_sum(tf.square(first / SCALES[:2]), axis=-1)
      + tf.reduce_sum(tf.square(second / SCALES[2:]), axis=-1))


# The numbers of the right kernel; the last two are shares of the wrong updates
# of the scalar thermostat that are below.
NUMBERS = dict(
    temperature=1., noise_scale=0., mass=1., over_all_chains=0.,
    over_parts_one_by_one=0.)
H = 0.04


def _over_all_chains(xi, momentum, rate, temperature, *_):
  total = sum(tf.reduce_mean(h * (tf.square(p) - t))
              for p, h, t in zip(momentum, rate, temperature))
  return xi + total / len(momentum)


def _over_parts_one_by_one(xi, momentum, rate, temperature, *_):
  return xi + sum(
      tf.reduce_mean(h * (tf.square(p) - t), axis=-1)
      for p, h, t in zip(momentum, rate, temperature))


@functools.cache
def chains(thermostat, integrator):
  """Chains, compiled once for all numbers."""
  right = thermostats.THERMOSTATS['scalar']
  with pytest.MonkeyPatch.context() as patch:
    def make_kernel(
        temperature, noise_scale, mass, over_all_chains, over_parts_one_by_one):

      def with_errors(*arguments):
        xi = right.update(*arguments)
        return xi + sum(
            tf.cast(share, xi.dtype) * (wrong(*arguments) - xi)
            for share, wrong in (
                (over_all_chains, _over_all_chains),
                (over_parts_one_by_one, _over_parts_one_by_one)))

      patch.setitem(
          thermostats.THERMOSTATS, 'scalar', right._replace(update=with_errors))
      return sgmcmc.SGNHT(
          target_log_prob, H, 1., thermostat=thermostat,
          integrator=integrator, temperature=temperature, thermostat_mass=mass,
          gradient_estimator=sgmcmc.gradients.GaussianNoise(noise_scale))

    run_chains = oracle.compile_chains(make_kernel)
    start = SCALES * np.random.default_rng(3).normal(
        size=[NUM_CHAINS, 5]).astype(np.float32)
    state = [tf.constant(start[:, :2]), tf.constant(start[:, 2:])]
    run_chains(state, 0, **NUMBERS)
  return functools.partial(run_chains, state)


def run(thermostat, num_steps=500, integrator='badodab', **changes):
  """Draws, momenta and thermostats, each relative to its stationary law.

  Positions start in the law of temperature 1. The slowest coordinate forgets
  its start at a rate of 1/4 to 1/8, that of its variance twice as fast: less
  than 1% of a difference is left.
  """
  state, results = chains(thermostat, integrator)(
      num_steps, **{**NUMBERS, **changes})
  theta = oracle.join_parts(state, NUM_CHAINS) / SCALES
  momentum = oracle.join_parts(results.momentum, NUM_CHAINS)
  xi = oracle.join_parts(results.thermostat, NUM_CHAINS)
  return theta, momentum, xi


@pytest.mark.parametrize('thermostat, variance, numbers', [
    # A mass of d / 5 = 4 slows the thermostat: it divides its change.
    ('scalar', 1. / 20., dict(mass=4.)),
    ('scalar', 1. / 5., dict(temperature=0.5, noise_scale=5.)),
    pytest.param(
        'scalar', 1. / 5.,
        dict(integrator='euler', temperature=0.5, noise_scale=5.),
        marks=pytest.mark.slow),
    pytest.param(
        'part', np.array([1. / 2., 1. / 3.]),
        dict(temperature=0.5, noise_scale=5.),
        marks=[pytest.mark.slow, pytest.mark.weekly]),
    pytest.param(
        'diagonal', 1., dict(temperature=0.5, noise_scale=5.),
        marks=pytest.mark.slow),
    # Xi stays symmetric: two entries move as one, with twice the inertia.
    pytest.param(
        'matrix', np.where(np.eye(5), 1., 0.5).ravel(),
        dict(temperature=0.5, noise_scale=5.),
        marks=[pytest.mark.slow, pytest.mark.weekly]),
    pytest.param(
        'matrix', np.where(np.eye(5), 1., 0.5).ravel(),
        dict(integrator='euler', temperature=0.5, noise_scale=5.),
        marks=pytest.mark.slow)])
def test_stationary_law(thermostat, variance, numbers):
  theta, momentum, xi = run(thermostat, **numbers)
  temperature, noise_scale = (
      {**NUMBERS, **numbers}[name] for name in ('temperature', 'noise_scale'))
  mean = 1. + H * noise_scale**2 / 2. / temperature
  is_euler = 'integrator' in numbers
  configurational = temperature
  if is_euler:
    # A step damps by (1 - h xi)^2 = 1 - 2 h (xi - h xi^2 / 2).
    mean = mean + H * mean**2 / 2.
    configurational *= 1. - H * mean / 2.
  np.testing.assert_allclose(theta.var(axis=0), configurational, rtol=0.06)
  np.testing.assert_allclose(momentum.var(axis=0), temperature, rtol=0.06)
  if thermostat == 'matrix':
    mean = mean * np.eye(5).ravel()
  variance = temperature * variance
  np.testing.assert_allclose(xi.var(axis=0), variance, rtol=0.06)
  error = 5. * np.sqrt(variance / NUM_CHAINS)
  # What the step does: of order h for "euler", else of order h^2.
  left = 1.5 * H if is_euler else 10. * H**2
  assert np.all(np.abs(xi.mean(axis=0) - mean) < error + left)


@pytest.mark.slow
@pytest.mark.parametrize(
    'wrong', ['over_all_chains', 'over_parts_one_by_one'])
def test_planted_wrong_averages_are_seen(wrong):
  xi = run('scalar', **{wrong: 1.})[2]
  assert not np.allclose(xi.var(axis=0), 1. / 5., rtol=0.06)


@pytest.mark.parametrize('thermostat', ['scalar', 'part', 'diagonal'])
def test_each_chain_starts_at_its_own_diffusion(thermostat):
  kernel = sgmcmc.SGNHT(
      target_log_prob, 0.04, tf.constant([[1.], [10.]]), thermostat=thermostat)
  results = kernel.bootstrap_results([tf.zeros([2, 2]), tf.zeros([2, 3])])
  for xi in tf.nest.flatten(results.thermostat):
    np.testing.assert_allclose(
        tf.reshape(xi, [2, -1]) - [[1.], [10.]], 0., atol=1e-6)


def double_well(t):
  return -((t + 4.) * (t + 1.) * (t - 1.) * (t - 3.) / 14. + 0.5)


def total_variation(draws):
  """Of a histogram with 60 bins against the density's probabilities."""
  edges = np.linspace(-6., 6., 61)
  fine = np.linspace(-6., 6., 6001)
  density = np.exp(double_well(fine))
  middle = 0.5 * (density[1:] + density[:-1]).reshape([60, -1]).sum(axis=1)
  counts = np.histogram(draws, edges)[0] / np.size(draws)
  return 0.5 * np.abs(counts - middle / middle.sum()).sum()


def sample_double_well(make_kernel):
  """A function of a number: kernel's distance, mean kinetic energy and xi.

  Of 2,000 chains, by sample_chain.
  """
  @functools.partial(tf.function, jit_compile=True, autograph=False)
  def compiled(number):
    return tfp.mcmc.sample_chain(
        100, tf.zeros([2000]), kernel=make_kernel(number),
        num_burnin_steps=5000, num_steps_between_results=99, seed=[1, 2],
        trace_fn=lambda _, results: (
            tf.reduce_mean(tf.square(results.momentum[0])) / 2.,
            tf.reduce_mean(getattr(results, 'thermostat', tf.zeros([])))))

  def run(number):
    draws, (kinetic, xi) = compiled(tf.constant(number))
    return total_variation(draws), np.mean(kinetic), np.mean(xi)

  return run


# B = 1, h = 0.01.
NOISE = sgmcmc.gradients.GaussianNoise(np.sqrt(2. * 1. / 0.01))


@pytest.mark.slow
def test_double_well_of_figure_1_with_the_thermostat():
  distance, kinetic, xi = sample_double_well(lambda diffusion: sgmcmc.SGNHT(
      double_well, 0.01, diffusion, gradient_estimator=NOISE,
      integrator='euler'))(0.)
  assert distance < 0.06
  assert abs(kinetic - 0.5) < 0.01
  assert abs(xi - 1.) < 0.02


@pytest.mark.slow
def test_double_well_of_figure_1_with_fixed_friction():
  """All noise comes from the gradient; only friction 1 balances it."""
  sample = sample_double_well(lambda friction: sgmcmc.SGHMC(
      double_well, 0.01, friction, noise_estimate=friction,
      gradient_estimator=NOISE))
  for friction, kinetic_wanted in ((1., 0.503), (10., 0.053), (0.1, 4.95)):
    distance, kinetic, _ = sample(friction)
    assert abs(kinetic / kinetic_wanted - 1.) < 0.05
    if friction == 1.:
      assert distance < 0.06
    else:
      assert distance > 0.4


# By A, for h = 0.01: variance by SGHMC, by SGNHT over the true one; mean of the
# thermostat.
NORMAL_MEAN = {1.: (6.9, 0.97, 7.1), 10.: (1.6, 0.91, 17.4)}
# For h = 0.001, ten times as long, see experiments/normal_mean.py.


def normal_mean_posterior():
  """Mean of 100 points, flat prior; their variance is the one tabulated for."""
  x = np.random.default_rng(0).normal(size=100)
  x = (x - x.mean()) / x.std(ddof=1) * np.sqrt(1.3)
  return sgmcmc.Posterior(
      tf.zeros_like,
      lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x),
      x.astype(np.float32))


@pytest.mark.weekly
@pytest.mark.slow
def test_normal_mean_of_figure_2():
  """Gradient noise that SGHMC suffers from and SGNHT takes up."""
  posterior = normal_mean_posterior()
  estimator = sgmcmc.gradients.Uniform(10)

  def sample(kernel_class, h):
    """A function of A: 100 draws of 500 chains, half a unit of time apart."""
    @functools.partial(tf.function, jit_compile=True, autograph=False)
    def compiled(a):
      return tfp.mcmc.sample_chain(
          100, tf.zeros([500]), seed=[1, 2],
          kernel=kernel_class(
              posterior, h, a, gradient_estimator=estimator,
              integrator='euler'),
          num_burnin_steps=int(50. / h),
          num_steps_between_results=int(0.5 / h) - 1,
          trace_fn=lambda _, results: getattr(
              results, 'thermostat', tf.zeros([])))
    return lambda a: compiled(tf.constant(a))

  # 50,000 draws, of which at least every second counts as independent.
  error = 5. * np.sqrt(2. / 25_000)
  h = 0.01
  sghmc, thermostat = sample(sgmcmc.SGHMC, h), sample(sgmcmc.SGNHT, h)
  for a, (by_sghmc, by_sgnht, mean_xi) in NORMAL_MEAN.items():
    exact = oracle.euler_covariance(
        np.array([[100.]]), np.array([[1.3 * 100**2 / 10 * 0.9]]), h, a)[0, 0]
    assert abs(exact * 100. / by_sghmc - 1.) < 0.03
    draws, _ = sghmc(a)
    assert abs(np.var(draws) / exact - 1.) < error
    draws, xi = thermostat(a)
    assert abs(np.var(draws) * 100. - by_sgnht) < error
    assert abs(np.mean(xi) / mean_xi - 1.) < 0.03
