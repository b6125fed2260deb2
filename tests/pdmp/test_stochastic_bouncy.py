"""SBPS and pSBPS: their law, their counts, their refusals.

The law is held to weighted independent draws on the paper's logistic
regression, and to exact moments on linear regression, where errors are planted
too. Tolerances are those that the sampler has to meet, about its bias by a
finite `confidence`; each test also holds the Monte Carlo error to under a third
of them.
"""

import copy
import functools
from typing import NamedTuple

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from tests import oracle
from tests.pdmp import logistic
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import pdmp

tfd = tfp.distributions
FALSE_ALARM_RATE = 1e-6
SBPS = sgmcmc.StochasticBouncyParticleSampler
UNIFORM = sgmcmc.gradients.Uniform(25)
# Takes half as long to trace, and less to run.
REPLACED = sgmcmc.gradients.Uniform(25, replacement=True)


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.parametrize('seed, batch_size, confidence, num_events, dtype', [
    (0, 100, 3., 1500, np.float32),
    (1, 100, 5., 2000, np.float64),
])
def test_law_of_the_papers_logistic_regression(
    seed, batch_size, confidence, num_events, dtype):
  law = logistic.law(seed)
  kernel = SBPS(
      logistic.posterior(seed, dtype), confidence=confidence,
      gradient_estimator=sgmcmc.gradients.Uniform(
          batch_size, share_minibatch=True))
  run = logistic.path_runner(lambda: kernel)
  runs = [
      run(logistic.start(law, 100, group, dtype), law.mean, num_events,
          (seed, group))
      for group in range(12)]
  c = logistic.compare(runs, law, law.mean)
  assert c.mean_standard_error.max() < 0.05
  assert c.sd_standard_error.max() < 0.08 / 3.
  assert np.abs(c.mean_error).max() < 0.15
  assert np.abs(c.sd_ratio - 1.).max() < 0.08
  assert c.violation_share < 0.01


def linear_regression(dtype=np.float32, num_examples=125):
  """A posterior and its exact law; the noise of minibatches is not normal."""
  rng = np.random.default_rng(4)
  x = rng.normal(size=[num_examples, 3]) * [1., 2., 0.5]
  y = x @ [1., -1., 0.5] + rng.normal(size=num_examples)
  x, y = x.astype(dtype), y.astype(dtype)

  def log_likelihood(*parts_and_batch):
    *parts, (x, y) = parts_and_batch
    location = tf.einsum('...nd,...d->...n', x, oracle.join(parts))
    return -0.5 * tf.square(y - location)

  posterior = sgmcmc.Posterior(
      lambda *parts: oracle.normal_log_prob(oracle.join(parts), 0., 0.2),
      log_likelihood, (x, y))
  x, y = x.astype(np.float64), y.astype(np.float64)
  covariance = np.linalg.inv(25. * np.eye(3) + x.T @ x)
  return posterior, logistic.Law(
      covariance @ x.T @ y, np.sqrt(np.diag(covariance)), covariance)


def errors(run, law, num_events=3000, dtype=np.float32, numbers=()):
  """Largest error of the means in sds, and of the sds relatively."""
  moments = run(
      logistic.start(law, 800, 0, dtype), law.mean, num_events, (7, 0), numbers)
  c = logistic.compare(logistic.groups(moments, 8), law, law.mean)
  return max(np.abs(c.mean_error).max(), np.abs(c.sd_ratio - 1.).max()), c


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('estimator, num_examples, factor', [
    (UNIFORM, 125, 1. - 25. / 125.),
    (REPLACED, 125, 1.),
    (None, 125, 0.),
    (None, 500, 1. - 125. / 500.),
], ids=str)
def test_variance_of_the_derivative(estimator, num_examples, factor):
  """Equation 10: c^2 against the derivatives of all examples, by hand."""
  small, law = linear_regression(np.float64)
  posterior = sgmcmc.Posterior(
      small.log_prior,
      lambda theta, batch: small.log_likelihood(theta, batch=batch),
      small.data, num_examples=num_examples)
  chains = 20_000
  state = tf.constant(np.tile(law.mean + law.sd, [chains, 1]))
  results = SBPS(
      posterior, gradient_estimator=estimator, temperature=2.,
      velocity='gaussian').bootstrap_results(state, seed=[1, 2])
  x, y = (leaf.numpy() for leaf in posterior.data)
  velocity = results.velocity[0].numpy()
  each = (velocity @ x.T) * (x @ (law.mean + law.sd) - y) / 2.
  size = 125 if estimator is None else 25
  exact = num_examples**2 / size * factor * each.var(axis=1, ddof=1)
  found = results.regression.noise_variance
  ratio = np.sum(found) / np.sum(exact) if factor else 1. + np.max(found)
  assert abs(ratio - 1.) < (0.05 if estimator is not None else 1e-9)
  # The derivative itself, where it has no noise.
  if estimator is None:
    prior = 25. * velocity @ (law.mean + law.sd) / 2.
    np.testing.assert_allclose(
        results.regression.statistics.value,
        prior + num_examples / 125 * each.sum(axis=1), rtol=1e-6)


RMSPROP = sgmcmc.preconditioners.RMSProp(normalize=True)


def check(error, comparison):
  c = comparison
  # The root mean square over coordinates: each is of eight groups only.
  for errors_found in (c.mean_standard_error, c.sd_standard_error):
    assert np.sqrt(np.mean(errors_found**2)) < 0.04 / 3.
  assert error < 0.04
  assert c.violation_share < 0.01


@pytest.mark.weekly
@pytest.mark.slow
def test_law_of_linear_regression_preconditioned():
  """And with Gaussian velocities of which shares are drawn anew."""
  # Indices of 120 = 10 x 12 examples take half as long to compile as of 125.
  posterior, law = linear_regression(num_examples=120)
  kernel = SBPS(
      posterior, gradient_estimator=UNIFORM, confidence=5., refresh_rate=5.,
      velocity='gaussian', refresh_fraction=0.5, preconditioner=RMSPROP)
  check(*errors(logistic.path_runner(lambda: kernel), law))


class Numbers(NamedTuple):
  """Arguments of SBPS, and errors planted in it: by default none."""
  temperature: float = 1.
  max_duration: float = 0.5
  refresh_rate: float = 5.
  confidence: float = 4.
  decay: float = 1.
  prior_power: float = 1.
  rate_factor: float = 1.
  another_reflects: float = 0.


class Planted(SBPS):
  """SBPS with errors as large as `numbers` say."""

  def __init__(self, posterior, estimator, *numbers):
    self.numbers = n = Numbers(*numbers)
    super().__init__(
        sgmcmc.Posterior(
            lambda theta: n.prior_power * posterior.log_prior(theta),
            lambda theta, batch: posterior.log_likelihood(theta, batch=batch),
            posterior.data),
        gradient_estimator=estimator, confidence=n.confidence, decay=n.decay,
        temperature=n.temperature, max_duration=n.max_duration,
        refresh_rate=n.refresh_rate)

  def _propose(self, previous, seeds):
    """Bounces too often, or too seldom."""
    proposal = super()._propose(previous, seeds)
    return proposal._replace(rate=self.numbers.rate_factor * proposal.rate)

  def _gradients(self, minibatch, parts, is_bounce):
    """Another minibatch than the one that was accepted reflects."""
    other = copy.copy(minibatch)
    other._batch = tf.nest.map_structure(
        lambda leaf: tf.roll(
            leaf, tf.cast(self.numbers.another_reflects, tf.int32), axis=0),
        minibatch._batch)
    return super()._gradients(other, parts, is_bounce)


def program(posterior, law, estimator, dtype):
  """`errors` as a function of `num_events` and `numbers`, compiled once."""
  run = logistic.path_runner(functools.partial(Planted, posterior, estimator))

  def with_numbers(num_events, numbers):
    scaled = logistic.Law(
        law.mean, law.sd * np.sqrt(numbers.temperature),
        law.covariance * numbers.temperature)
    return errors(run, scaled, num_events, dtype, numbers)

  return with_numbers


@functools.cache
def minibatches():
  """A program on minibatches of the linear regression, in float32."""
  return program(
      *linear_regression(), sgmcmc.gradients.Uniform(12, replacement=True),
      np.float32)


@functools.cache
def all_examples():
  """A program on all examples of what is not normal, in float64.

  log p = -x^4 / 4 - (y - x)^2 / 2, with five examples that share the first
  term. There is no noise, and the regression is to be a local one.
  """
  def log_prior(state):
    return -0.5 * tf.square(state[..., 1] - state[..., 0])

  def log_likelihood(state, weights):
    return -0.25 * weights * state[..., :1]**4

  grid = np.linspace(-6., 6., 20_001)
  density = np.exp(-0.25 * grid**4)
  variance = np.sum(grid**2 * density) / np.sum(density)
  posterior = sgmcmc.Posterior(
      log_prior, log_likelihood,
      np.array([0.1, 0.4, 0.2, 0.05, 0.25]))
  law = logistic.Law(
      np.zeros(2), np.sqrt([variance, variance + 1.]),
      np.array([[variance, variance], [variance, variance + 1.]]))
  return program(posterior, law, None, np.float64)


LOCAL = Numbers(
    max_duration=0.3, refresh_rate=1., confidence=6., decay=0.5)


@pytest.mark.weekly_after(1)
@pytest.mark.slow
@pytest.mark.parametrize('make, numbers, num_events', [
    (all_examples, LOCAL, 2000),
    (minibatches, Numbers(decay=0.9), 3000),
    (minibatches,
     Numbers(temperature=0.5, max_duration=0.02, refresh_rate=0.), 5000),
], ids=['all examples', 'decay', 'short segments'])
def test_law_with_no_error_planted(make, numbers, num_events):
  error, c = make()(num_events, numbers)
  check(error, c)
  assert c.violation_share < (0.005 if make is all_examples else 0.01)


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('make, numbers', [
    (minibatches, Numbers(prior_power=2.)),
    (minibatches, Numbers(another_reflects=1.)),
    (minibatches, Numbers(rate_factor=0.3)),
    (all_examples, LOCAL._replace(rate_factor=3.)),
], ids=['prior', 'another reflects', 'many bounces', 'few bounces'])
def test_the_law_sees(make, numbers):
  assert make()(500, numbers)[0] > 0.06


@pytest.mark.slow
def test_particles_do_not_run_away():
  """From draws of the law on, also where the first gradient is a short one.

  The first guess of the slope comes from it, and is a hundred times too low in
  some of these chains; nothing may keep it so. Of 4,800 chains 5 were beyond 8
  standard deviations after event 30, so that of 1,200 more than 12 are so once
  in a million; with the guess as it was, and kept, 120 were.
  """
  posterior, law = linear_regression()
  kernel = SBPS(posterior)
  states = tf.function(lambda: tfp.mcmc.sample_chain(
      200, logistic.start(law, 1200, 0, np.float32), kernel=kernel,
      trace_fn=None, seed=[1, 2]), autograph=False)()
  farthest = np.abs((states - law.mean) / law.sd).max(axis=2)
  assert np.sum(farthest[30:].max(axis=0) > 8.) <= 12


def gaussian_path(dtype):
  """A path on a normal target without noise, and its precision."""
  precision = np.array([1., 25., 4.])
  kernel = SBPS(
      tfd.MultivariateNormalDiag(
          tf.zeros(3, dtype), precision.astype(dtype)**-0.5).log_prob,
      refresh_rate=0.5)

  @tf.function(autograph=False)
  def run():
    # The burn-in is cut off below: a loop of its own is traced once more.
    return tfp.mcmc.sample_chain(
        800, tf.ones([170, 3], dtype), kernel=kernel,
        trace_fn=pdmp.trace_path, seed=[1, 2])

  return *tf.nest.map_structure(lambda leaf: leaf[300:], run()), precision


def hazards(states, results, precision):
  """Integrals of [G]_+ from bounce to bounce: unit exponentials."""
  states = np.asarray(states, np.float64)
  times = np.asarray(results.duration, np.float64)[1:]
  velocity = np.diff(states, axis=0) / times[..., np.newaxis]
  slope = np.sum(precision * velocity**2, axis=-1)
  begin = np.sum(precision * velocity * states[:-1], axis=-1)
  end = begin + slope * times
  integral = (np.maximum(end, 0.)**2 - np.maximum(begin, 0.)**2) / (2. * slope)
  found = []
  for chain in range(times.shape[1]):
    bounces = np.flatnonzero(results.event[1:, chain] == pdmp.Event.BOUNCE)
    total = np.cumsum(integral[:, chain])[bounces]
    found.append(np.diff(total))
  return np.concatenate(found)


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_event_times_without_noise(dtype):
  states, results, precision = gaussian_path(dtype)
  found = hazards(states, results, precision)
  assert len(found) > 15_000
  p_value = lambda values: scipy.stats.kstest(values, 'expon').pvalue
  assert p_value(found) > FALSE_ALARM_RATE
  assert p_value(1.1 * found) < FALSE_ALARM_RATE
  trajectory = pdmp.Trajectory.from_chain(states, results)
  assert trajectory.violation_share < 0.005
  assert trajectory.counts.refreshments > 100


def trace(kernel, state, trace_fn=pdmp.trace_path, num_events=300):
  def run():
    return tfp.mcmc.sample_chain(
        num_events, state, kernel=kernel, trace_fn=trace_fn, seed=[1, 2])

  return tf.function(run, autograph=False)()


def test_gradients_are_counted():
  posterior, law = linear_regression()
  _, (event, num_gradients, velocity) = trace(
      SBPS(posterior, gradient_estimator=REPLACED),
      logistic.start(law, 5, 0, np.float32), lambda _, results: (
          results.event, results.gradient_estimator_results.num_gradients,
          results.velocity[0]))
  bounces = np.sum(event == pdmp.Event.BOUNCE, axis=0)
  # The first gradient and the first derivative, before the events.
  np.testing.assert_array_equal(
      num_gradients[-1], 25 * (2 + 300 + bounces))
  assert np.all(bounces > 10)
  np.testing.assert_allclose(np.linalg.norm(velocity, axis=-1), 1., rtol=1e-4)


def cliff(theta, batch):
  """A likelihood that is NaN beyond 0.3."""
  values = -0.5 * tf.square(batch - theta[..., tf.newaxis])
  return tf.where(theta[..., tf.newaxis] < 0.3, values, float('nan'))


def cliff_posterior():
  data = 0.2 + np.random.default_rng(0).normal(size=100).astype(np.float32)
  return sgmcmc.Posterior(
      lambda theta: -0.5 * tf.square(theta), cliff, data)


def test_a_gradient_that_is_not_finite_names_the_event():
  kernel = SBPS(
      cliff_posterior(),
      gradient_estimator=sgmcmc.gradients.Uniform(50, replacement=True))
  states, results = trace(kernel, tf.zeros([3]))
  bad = np.flatnonzero(np.any(~np.isfinite(states), axis=1))
  with pytest.raises(sgmcmc.NonFiniteError, match='At event') as raised:
    pdmp.Trajectory.from_chain(states, results)
  assert raised.value.step == bad[0] + 1
  kept = raised.value.result
  assert kept.counts.events == 3 * (bad[0] - 1)
  assert np.all(np.isfinite(kept.mean()))
  before = tf.constant(states[bad[0] - 1])
  results = kernel.bootstrap_results(before)
  with pytest.raises(sgmcmc.NonFiniteError, match='At event'):
    for k in range(200):
      before, results = kernel.one_step(before, results, seed=[1, k])


@pytest.mark.parametrize('error, message, arguments', [
    (ValueError, 'batch_size of 2 at least',
     dict(gradient_estimator=sgmcmc.gradients.Uniform(1))),
    (ValueError, 'derivative of each example',
     dict(gradient_estimator=sgmcmc.gradients.GaussianNoise(1.))),
    (ValueError, 'confidence is 0', dict(confidence=0.)),
    (ValueError, 'max_duration is -1', dict(max_duration=-1.)),
    (ValueError, 'decay is 0', dict(decay=0.)),
    (ValueError, 'decay is 2', dict(decay=2.)),
    (ValueError, 'refresh_rate is -1', dict(refresh_rate=-1.)),
    (ValueError, 'velocity is', dict(velocity='signs')),
    (TypeError, 'preconditioner is', dict(preconditioner=0.5)),
    (ValueError, 'only 100 examples',
     dict(gradient_estimator=sgmcmc.gradients.Uniform(101))),
], ids=str)
def test_bad_input(error, message, arguments):
  with pytest.raises(error, match=message):
    SBPS(cliff_posterior(), **arguments)


def test_data_are_needed():
  log_prior, density = tfd.Normal(0., 1.).log_prob, tfd.Normal(0., 1.).log_prob
  with pytest.raises(TypeError, match='needs a Posterior'):
    SBPS(density, gradient_estimator=sgmcmc.gradients.Uniform(10))
  empty = sgmcmc.Posterior(log_prior, cliff, num_examples=100)
  with pytest.raises(ValueError, match='holds none'):
    SBPS(empty, gradient_estimator=sgmcmc.gradients.Uniform(10))
  with pytest.raises(ValueError, match='holds no data'):
    SBPS(empty).bootstrap_results(tf.zeros([]))
  one = sgmcmc.Posterior(log_prior, cliff, np.float32([0.1]), num_examples=100)
  with pytest.raises(ValueError, match='1 example'):
    SBPS(one).bootstrap_results(tf.zeros([]))


def test_normalized_preconditioner():
  rmsprop = sgmcmc.preconditioners.RMSProp(
      decay=0.9, regularizer=0.1, normalize=True)
  gradients = [tf.constant([[1., 2.], [3., 4.]]), tf.constant([5., 0.])]
  results = rmsprop.bootstrap_results(gradients)
  results = rmsprop.one_step([0. * g for g in gradients], results)
  diagonal = rmsprop.diagonal(results, chain_rank=1)
  flat = np.array([[1., 2., 5.], [3., 4., 0.]])
  wanted = 1. / (0.1 + np.sqrt(0.9) * flat)
  wanted /= wanted.mean(axis=1, keepdims=True)
  np.testing.assert_allclose(
      np.concatenate([diagonal[0], diagonal[1][:, np.newaxis]], axis=1),
      wanted, rtol=1e-5)
