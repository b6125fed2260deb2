"""SGLD, pSGLD and SGHMC against their exact law at finite steps.

Each test compares 40,000 independent chains, from zero, with the mean and the
covariance after as many steps (`oracle.LinearStep`); it fails by chance once in
a million (oracle.FALSE_ALARM_RATE). An error of 5% in the variance is 7
standard errors. A tenth of the start's mean is left after these steps, and so a
hundredth of its covariance: that much less than in the stationary law is seen
of an error. They are too few for compilation by XLA to pay.
"""

import functools

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf

from tests import oracle
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.gradients import minibatch
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.mcmc import sghmc

NUM_CHAINS = 40_000
EXACT = sgmcmc.gradients.Exact()
UNIFORM = sgmcmc.gradients.Uniform(4)
REPLACED = sgmcmc.gradients.Uniform(3, replacement=True)


def initial_state(num_parts, dtype=np.float32):
  if num_parts == 1:
    return tf.zeros([NUM_CHAINS, 3], dtype)
  return [tf.zeros([NUM_CHAINS, 2], dtype), tf.zeros([NUM_CHAINS], dtype)]


def num_steps(law):
  return law.steps_until(0.1)


def p_value(samples, law, start_covariance, error=1.):
  """Of chains that began at theta = 0; `start_covariance` is of all of z."""
  mean, covariance = law.from_zero(
      num_steps(law), oracle.GaussianModel().mean, start_covariance)
  size = samples.shape[1]
  return oracle.law_p_value(
      samples, mean[:size], error * covariance[:size, :size])


@functools.cache
def sgld_chains(estimator, dtype):
  posterior = oracle.GaussianModel(dtype=dtype).posterior()
  return oracle.compile_chains(
      lambda h, temperature: sgmcmc.SGLD(
          posterior, h, gradient_estimator=estimator, temperature=temperature),
      jit_compile=False)


def sgld_law(estimator=UNIFORM, **numbers):
  model = oracle.GaussianModel()
  return oracle.sgld(
      model.precision, model.gradient_covariance(estimator), **numbers)


def sgld_p_value(state, law, error=1.):
  return p_value(
      oracle.join_parts(state, NUM_CHAINS), law, np.zeros([3, 3]), error)


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('estimator, dtype, h, temperature', [
    (EXACT, np.float32, 0.1, 1.),
    (REPLACED, np.float32, 0.1, 0.5),
    (UNIFORM, np.float64, 0.2, 0.25),
], ids=str)
def test_sgld(estimator, dtype, h, temperature):
  """For a state of two parts, without replacement, see below."""
  numbers = dict(h=h, temperature=temperature)
  law = sgld_law(estimator, **numbers)
  state, _ = sgld_chains(estimator, dtype)(
      initial_state(1, dtype), num_steps(law), **numbers)
  assert sgld_p_value(state, law) > oracle.FALSE_ALARM_RATE
  # Five percent of variance is seen.
  assert sgld_p_value(state, law, error=1.05) < 1e-9


def largest_curvature(diagonal, model):
  """The largest eigenvalue of G P; that of its symmetric form is real."""
  root = np.sqrt(diagonal)
  return np.linalg.eigvalsh(
      root[:, np.newaxis] * model.precision * root).max()


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('num_parts', [1, 2])
def test_psgld_with_frozen_preconditioner(num_parts):
  model = oracle.GaussianModel()
  # The exact gradient at one state gives all chains the same preconditioner.
  make = functools.partial(
      sgmcmc.SGLD, model.posterior(),
      preconditioner=sgmcmc.preconditioners.RMSProp(decay=1.))
  gradient = model.precision @ model.mean
  diagonal = 1. / (1e-5 + np.abs(gradient) / model.num_examples)
  h = 0.6 / largest_curvature(diagonal, model)
  law = sgld_law(h=h, diagonal=diagonal)
  state, _ = oracle.compile_chains(
      lambda: make(h, gradient_estimator=UNIFORM), lambda: make(h),
      jit_compile=False)(initial_state(num_parts), num_steps(law))
  assert sgld_p_value(state, law) > oracle.FALSE_ALARM_RATE


def test_sgld_with_a_diagonal_that_is_given():
  """A list, of a tensor for each part; and G is no root of it."""
  model = oracle.GaussianModel()
  diagonal = np.array([0.3, 2., 0.8])
  h = 0.6 / largest_curvature(diagonal, model)
  law = sgld_law(h=h, diagonal=diagonal)
  state, _ = oracle.compile_chains(
      lambda: sgmcmc.SGLD(
          model.posterior(), h, gradient_estimator=UNIFORM,
          preconditioner=sgmcmc.preconditioners.Diagonal(
              [tf.constant(diagonal[:2]), diagonal[2]])),
      jit_compile=False)(initial_state(2), num_steps(law))
  assert sgld_p_value(state, law) > oracle.FALSE_ALARM_RATE
  planted = sgld_law(h=h, diagonal=np.sqrt(diagonal))
  assert sgld_p_value(state, planted) < 1e-9


# Errors in SGLD, each planted as a number that a right step has as well, so
# that they are arguments of one program.
RIGHT = dict(
    noise_factor=1.,  # Of the noise.
    weight=3.,  # N / n, the weight of an example.
    num_priors=1.,
    noise_on_second_part=1.,
    is_minibatch_fixed=0)


def _plant(patch, noise_factor, weight, num_priors, noise_on_second_part,
           is_minibatch_fixed):
  """Puts the numbers in the step and the estimate, while they are traced."""
  normal_like, indices = sgmcmc.random.normal_like, minibatch.random.indices

  def noise(parts, seed):
    factors = [1., noise_on_second_part]
    return [tf.cast(noise_factor * factor, xi.dtype) * xi
            for factor, xi in zip(factors, normal_like(parts, seed))]

  def log_prob_estimate(self, *parts, batch):
    log_likelihood = self.log_likelihood(*parts, batch=batch)
    return tf.cast(num_priors, tf.float32) * self.log_prior(*parts) + tf.cast(
        weight, tf.float32) * tf.reduce_sum(log_likelihood, axis=-1)

  patch.setattr(sgmcmc.random, 'normal_like', noise)
  patch.setattr(sgmcmc.Posterior, 'log_prob_estimate', log_prob_estimate)
  patch.setattr(
      minibatch.random, 'indices', lambda n, shape, seed, replacement: indices(
          n, shape, tf.where(is_minibatch_fixed > 0, [3, 4], seed),
          replacement))


@functools.cache
def sgld_chains_with_errors():
  """Chains of a state of two parts; the errors are numbers."""
  posterior = oracle.GaussianModel().posterior()
  with pytest.MonkeyPatch.context() as patch:
    def make_kernel(h, temperature, **errors):
      _plant(patch, **errors)
      return sgmcmc.SGLD(
          posterior, h, gradient_estimator=UNIFORM, temperature=temperature)

    run = oracle.compile_chains(make_kernel, jit_compile=False)
    run(initial_state(2), 0, h=0.2, temperature=2., **RIGHT)
  return run


def p_value_with_errors(h=0.2, temperature=2., error=1., **errors):
  numbers = dict(h=h, temperature=temperature)
  law = sgld_law(**numbers)
  state, _ = sgld_chains_with_errors()(
      initial_state(2), num_steps(law), **numbers, **{**RIGHT, **errors})
  return sgld_p_value(state, law, error)


@pytest.mark.parametrize('h, temperature', [(0.2, 2.), (0.1, 1.)])
def test_sgld_in_two_parts(h, temperature):
  assert p_value_with_errors(h, temperature) > oracle.FALSE_ALARM_RATE
  # Five percent of variance is seen.
  assert p_value_with_errors(h, temperature, error=1.05) < 1e-9


@pytest.mark.parametrize('error', [
    dict(noise_factor=np.sqrt(2.)), dict(weight=1.), dict(num_priors=2.),
    dict(is_minibatch_fixed=1), dict(noise_on_second_part=0.)], ids=str)
def test_planted_errors_in_sgld_are_seen(error):
  assert p_value_with_errors(**error) < oracle.FALSE_ALARM_RATE


STEPS = {
    'euler': 'euler_step', 'baoab': 'baoa_step',
    'explicit_euler': 'explicit_euler_step'}


@functools.cache
def sghmc_chains(integrator, estimator, num_parts):
  """Chains; two of the numbers are errors: 1 and 0 where the step is right."""
  posterior = oracle.GaussianModel().posterior()
  name = STEPS[integrator]
  right = dict(h=0.1, friction=1., temperature=1., b=0., noise_factor=1.,
               drift_with_old_momentum=0.)
  step = getattr(sghmc, name)
  with pytest.MonkeyPatch.context() as patch:
    def make_kernel(
        h, friction, temperature, b, noise_factor, drift_with_old_momentum):

      def with_errors(theta, r, g, h, way, friction, scale, xi):
        moved, new = step(
            theta, r, g, h, way, friction,
            tf.cast(noise_factor, h.dtype) * scale, xi)
        share = tf.cast(drift_with_old_momentum, h.dtype)
        return moved + share * h * (r - new), new

      patch.setattr(sghmc, name, with_errors)
      return sgmcmc.SGHMC(
          posterior, h, friction, gradient_estimator=estimator,
          integrator=integrator, temperature=temperature, noise_estimate=b)

    run = oracle.compile_chains(make_kernel, jit_compile=False)
    run(initial_state(num_parts), 0, **right)
  return lambda num_steps, **changes: run(
      initial_state(num_parts), num_steps, **{**right, **changes})


def sghmc_p_value(
    integrator, estimator=REPLACED, h=0.2, friction=1., temperature=1., b=0.,
    num_parts=1, **errors):
  model = oracle.GaussianModel()
  noise = model.gradient_covariance(estimator)
  law = getattr(oracle, integrator)(
      model.precision, noise, h, friction, temperature, b)
  state, results = sghmc_chains(integrator, estimator, num_parts)(
      num_steps(law), h=h, friction=friction, temperature=temperature, b=b,
      **errors)
  samples = np.concatenate(
      [oracle.join_parts(state, NUM_CHAINS),
       oracle.join_parts(results.momentum, NUM_CHAINS)], axis=1)
  # The momentum is drawn at first, and the first gradient on a minibatch.
  start = [np.zeros([3, 3]), temperature * np.eye(3)]
  if integrator == 'baoab':
    start.append(noise)
  return p_value(samples, law, scipy.linalg.block_diag(*start))


@pytest.mark.slow
@pytest.mark.weekly_after(3)
@pytest.mark.parametrize('integrator', ['euler', 'baoab'])
@pytest.mark.parametrize('arguments', [
    dict(estimator=EXACT),
    dict(estimator=UNIFORM, friction=0.5, num_parts=2),
    dict(estimator=REPLACED, h=0.3, friction=2., temperature=0.5),
    dict(estimator=REPLACED, h=0.1, temperature=2., b=0.3),
], ids=str)
def test_sghmc(integrator, arguments):
  assert sghmc_p_value(integrator, **arguments) > oracle.FALSE_ALARM_RATE


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('integrator', ['euler', 'baoab', 'explicit_euler'])
def test_sghmc_with_a_diagonal_that_is_given(integrator):
  """The law of theta / s; and G is no root of it, nor left out of the drift."""
  model = oracle.GaussianModel()
  diagonal = np.array([0.3, 2., 0.8])
  h, friction, number = 0.1, 4., 30
  state, results = oracle.compile_chains(
      lambda: sgmcmc.SGHMC(
          model.posterior(), h, friction, gradient_estimator=REPLACED,
          integrator=integrator,
          preconditioner=sgmcmc.preconditioners.Diagonal(
              [tf.constant(diagonal[:2]), diagonal[2]])),
      jit_compile=False)(initial_state(2), number)
  theta, momentum = (
      oracle.join_parts(parts, NUM_CHAINS)
      for parts in (state, results.momentum))

  def p_of(s):
    noise = s[:, np.newaxis] * model.gradient_covariance(REPLACED) * s
    law = getattr(oracle, integrator)(
        s[:, np.newaxis] * model.precision * s, noise, h, friction)
    start = [np.zeros([3, 3]), np.eye(3)]
    if integrator == 'baoab':
      start.append(noise)
    mean, covariance = law.from_zero(
        number, model.mean / s, scipy.linalg.block_diag(*start))
    return oracle.law_p_value(
        np.concatenate([theta / s, momentum], axis=1), mean[:6],
        covariance[:6, :6])

  assert p_of(np.sqrt(diagonal)) > oracle.FALSE_ALARM_RATE
  assert p_of(diagonal) < 1e-9
  assert p_of(np.ones(3)) < 1e-9


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('arguments', [
    dict(estimator=EXACT, friction=4.),
    dict(estimator=UNIFORM, friction=4., h=0.1, temperature=0.5, b=0.3,
         num_parts=2),
], ids=str)
def test_sghmc_by_explicit_euler(arguments):
  # A friction at which it is stable, with a bias of up to 74% in the variance.
  assert sghmc_p_value(
      'explicit_euler', **arguments) > oracle.FALSE_ALARM_RATE


@pytest.mark.slow
@pytest.mark.parametrize('integrator, arguments', [
    ('euler', dict(friction=0.5, drift_with_old_momentum=1.)),
    # The friction not under the root; no temperature in the noise.
    ('euler', dict(friction=0.5, noise_factor=np.sqrt(0.5))),
    ('euler', dict(temperature=0.9, noise_factor=np.sqrt(1. / 0.9))),
    # The noise of Euler's method in place of the exact one.
    ('baoab', dict(friction=2., noise_factor=np.sqrt(
        2. * 2. * 0.2 / (1. - np.exp(-2. * 2. * 0.2))))),
    # The drift with the new momentum.
    ('explicit_euler', dict(
        estimator=EXACT, friction=4., drift_with_old_momentum=-1.)),
], ids=str)
def test_planted_errors_in_sghmc_are_seen(integrator, arguments):
  assert sghmc_p_value(integrator, **arguments) < oracle.FALSE_ALARM_RATE


def test_oracle_has_the_published_values():
  """Values of N(0, 1), exact gradient, to the four places given."""
  one, none = np.eye(1), np.zeros([1, 1])
  for h, friction, theta, r in (
      (0.1, 1., 1.0026, 1.0554), (0.1, 0.2, 1.0025, 1.0127),
      (0.05, 1., 1.0006, 1.0263)):
    covariance = oracle.euler_covariance(one, none, h, friction)
    np.testing.assert_allclose(np.diag(covariance), [theta, r], atol=6e-5)
  for h, friction, theta, r in (
      (0.1, 1., 1.114, 1.1665), (0.1, 0.2, 2.005, 2.0151),
      (0.05, 1., 1.0533, 1.0789)):
    covariance = oracle.explicit_euler(one, none, h, friction).stationary()
    np.testing.assert_allclose(np.diag(covariance), [theta, r], atol=6e-5)
  np.testing.assert_allclose(
      oracle.sgld_covariance(one, none, 0.1), 1. / (1. - 0.05))


def test_order_of_the_bias():
  """Halving h divides the bias by 2 (SGLD), 4 (euler); baoab has none.

  Of the exact laws, which the tests above hold the kernels to.
  """
  model = oracle.GaussianModel()
  none = np.zeros([3, 3])
  target = np.linalg.inv(model.precision)
  bias = lambda covariance: np.abs(covariance[:3, :3] - target).max()
  ratio = lambda law, *arguments: (
      bias(law(model.precision, none, 0.02, *arguments))
      / bias(law(model.precision, none, 0.01, *arguments)))
  assert abs(ratio(oracle.sgld_covariance) - 2.) < 0.1
  assert abs(ratio(oracle.euler_covariance, 1.) - 4.) < 0.1
  assert bias(
      oracle.baoab(model.precision, none, 0.3, 1.).stationary()) < 1e-12


def test_exact_gradient_of_many_chains_is_that_of_one():
  """TensorFlow 2.18 and 2.19 get it wrong from some number of chains on."""
  x = tf.constant(np.random.default_rng(0).normal(size=[9, 2]), tf.float32)
  state = tf.broadcast_to(tf.constant([0.3, -0.5]), [1000, 2])
  _, (gradient,) = states.value_and_gradients(
      lambda theta: tf.reduce_sum(
          tf.einsum('...nd,...d->...n', x, theta) * tf.range(9.), axis=-1),
      [state])
  np.testing.assert_allclose(
      gradient, np.tile(np.arange(9.) @ x.numpy(), [1000, 1]), rtol=1e-4)


def test_gradient_of_transformed_state_is_not_taken_from_the_cache():
  """Bijectors hand back what they computed outside the tape, if let."""
  import tensorflow_probability as tfp
  bijector = tfp.bijectors.Exp()
  part = tf.constant(0.3)
  bijector.forward(part)
  _, (gradient,) = states.value_and_gradients(bijector.forward, [part])
  np.testing.assert_allclose(gradient, np.exp(0.3), rtol=1e-6)
