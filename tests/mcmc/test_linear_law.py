"""SGLD, pSGLD and SGHMC against their exact law at finite steps.

Each test compares 40,000 independent chains with the stationary covariance
that a discrete Lyapunov equation gives; it fails by chance once in a million
(oracle.FALSE_ALARM_RATE). An error of 5% in the variance is 7 standard errors.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests import oracle
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.gradients import minibatch
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.mcmc import sghmc
from tfp_sgmcmc.mcmc import sgld

NUM_CHAINS = 40_000
EXACT = sgmcmc.gradients.Exact()
UNIFORM = sgmcmc.gradients.Uniform(4)
REPLACED = sgmcmc.gradients.Uniform(3, replacement=True)


def initial_state(num_parts, dtype=np.float32):
  if num_parts == 1:
    return tf.zeros([NUM_CHAINS, 3], dtype)
  return [tf.zeros([NUM_CHAINS, 2], dtype), tf.zeros([NUM_CHAINS], dtype)]


def sgld_p_value(
    estimator=UNIFORM, h=0.1, temperature=1., num_parts=1, dtype=np.float32,
    error=1.):
  model = oracle.GaussianModel(dtype=dtype)
  kernel = sgmcmc.SGLD(
      model.posterior(), h, gradient_estimator=estimator,
      temperature=temperature)
  state, _ = oracle.run_chains(kernel, initial_state(num_parts, dtype), 150)
  covariance = oracle.sgld_covariance(
      model.precision, model.gradient_covariance(estimator), h, temperature)
  return oracle.law_p_value(
      oracle.join_parts(state, NUM_CHAINS), model.mean, error * covariance)


@pytest.mark.parametrize('arguments', [
    dict(estimator=EXACT),
    dict(estimator=UNIFORM),
    dict(estimator=REPLACED, temperature=0.5),
    dict(estimator=UNIFORM, h=0.2, temperature=2., num_parts=2),
    dict(estimator=UNIFORM, h=0.05, temperature=0.25, dtype=np.float64),
], ids=str)
def test_sgld(arguments):
  assert sgld_p_value(**arguments) > oracle.FALSE_ALARM_RATE


@pytest.mark.parametrize('num_parts', [1, 2])
def test_psgld_with_frozen_preconditioner(num_parts):
  model = oracle.GaussianModel()
  frozen = sgmcmc.preconditioners.RMSProp(decay=1.)
  # The exact gradient at one state gives all chains the same preconditioner.
  start = sgmcmc.SGLD(
      model.posterior(), step_size=1., preconditioner=frozen)
  state = initial_state(num_parts)
  results = start.bootstrap_results(state)
  gradient = model.precision @ model.mean
  diagonal = 1. / (1e-5 + np.abs(gradient) / model.num_examples)
  h = 0.3 / np.linalg.eigvals(diagonal[:, np.newaxis] * model.precision).max()
  kernel = start.copy(step_size=h, gradient_estimator=UNIFORM)
  state, _ = oracle.run_chains(kernel, state, 600, results)
  covariance = oracle.sgld_covariance(
      model.precision, model.gradient_covariance(UNIFORM), h, diagonal=diagonal)
  assert oracle.law_p_value(
      oracle.join_parts(state, NUM_CHAINS), model.mean,
      covariance) > oracle.FALSE_ALARM_RATE


def sghmc_p_value(
    integrator, estimator=UNIFORM, h=0.2, friction=1., temperature=1., b=0.,
    num_parts=1, num_steps=150):
  model = oracle.GaussianModel()
  kernel = sgmcmc.SGHMC(
      model.posterior(), h, friction, gradient_estimator=estimator,
      integrator=integrator, temperature=temperature, noise_estimate=b)
  state, results = oracle.run_chains(
      kernel, initial_state(num_parts), num_steps)
  samples = np.concatenate(
      [oracle.join_parts(state, NUM_CHAINS),
       oracle.join_parts(results.momentum, NUM_CHAINS)], axis=1)
  covariance = {
      'euler': oracle.euler_covariance, 'baoab': oracle.baoab_covariance,
  }[integrator](
      model.precision, model.gradient_covariance(estimator), h, friction,
      temperature, b)
  return oracle.law_p_value(
      samples, np.concatenate([model.mean, np.zeros(3)]), covariance)


@pytest.mark.parametrize('integrator', ['euler', 'baoab'])
@pytest.mark.parametrize('arguments', [
    dict(estimator=EXACT),
    dict(estimator=UNIFORM, friction=0.5, num_parts=2, num_steps=300),
    dict(estimator=REPLACED, h=0.3, friction=2., temperature=0.5),
    dict(estimator=UNIFORM, h=0.1, temperature=2., b=0.3, num_steps=300),
], ids=str)
def test_sghmc(integrator, arguments):
  assert sghmc_p_value(integrator, **arguments) > oracle.FALSE_ALARM_RATE


def test_oracle_has_the_published_values():
  """Values of N(0, 1), exact gradient, to the four places given."""
  one, none = np.eye(1), np.zeros([1, 1])
  for h, friction, theta, r in (
      (0.1, 1., 1.0026, 1.0554), (0.1, 0.2, 1.0025, 1.0127),
      (0.05, 1., 1.0006, 1.0263)):
    covariance = oracle.euler_covariance(one, none, h, friction)
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
  assert bias(oracle.baoab_covariance(model.precision, none, 0.3, 1.)) < 1e-12


def test_five_percent_of_variance_is_seen():
  assert sgld_p_value(error=1.05) < 1e-9


def _noise_off(monkeypatch):
  step = sgld.langevin_step
  monkeypatch.setattr(sgld, 'langevin_step', lambda *arguments: step(
      *arguments[:-1], [np.sqrt(2.) * xi for xi in arguments[-1]]))


def _batch_not_scaled(monkeypatch):
  monkeypatch.setattr(
      sgmcmc.Posterior, 'log_prob_estimate', lambda self, *parts, batch: (
          self.log_prior(*parts) + tf.reduce_sum(
              self.log_likelihood(*parts, batch=batch), axis=-1)))


def _prior_twice(monkeypatch):
  estimate = sgmcmc.Posterior.log_prob_estimate
  monkeypatch.setattr(
      sgmcmc.Posterior, 'log_prob_estimate', lambda self, *parts, batch: (
          self.log_prior(*parts) + estimate(self, *parts, batch=batch)))


def _one_minibatch_for_ever(monkeypatch):
  indices = minibatch.random.indices
  monkeypatch.setattr(
      minibatch.random, 'indices', lambda n, shape, seed, replacement: (
          indices(n, shape, tf.constant([3, 4]), replacement)))


def _noise_on_one_part_only(monkeypatch):
  normal_like = sgld.random.normal_like
  monkeypatch.setattr(
      sgld.random, 'normal_like', lambda parts, seed: (
          normal_like(parts, seed)[:1] + [tf.zeros_like(p) for p in parts[1:]]))


@pytest.mark.parametrize('plant', [
    _noise_off, _batch_not_scaled, _prior_twice, _one_minibatch_for_ever,
    _noise_on_one_part_only])
def test_planted_errors_in_sgld_are_seen(plant, monkeypatch):
  plant(monkeypatch)
  assert sgld_p_value(num_parts=2) < oracle.FALSE_ALARM_RATE


def _with_old_momentum(theta, r, g, h, gamma, b, t, xi):
  new = r + h * g - h * gamma * r + tf.sqrt(2. * (gamma - b) * t * h) * xi
  return theta + h * r, new


def _friction_in_noise_not_rooted(theta, r, g, h, gamma, b, t, xi):
  r = r + h * g - h * gamma * r + (gamma - b) * tf.sqrt(2. * t * h) * xi
  return theta + h * r, r


def _noise_without_temperature(theta, r, g, h, gamma, b, t, xi):
  r = r + h * g - h * gamma * r + tf.sqrt(2. * (gamma - b) * h) * xi
  return theta + h * r, r


@pytest.mark.parametrize('wrong', [
    _with_old_momentum, _friction_in_noise_not_rooted,
    _noise_without_temperature])
def test_planted_errors_in_sghmc_are_seen(wrong, monkeypatch):
  monkeypatch.setattr(sghmc, 'euler_step', wrong)
  assert sghmc_p_value(
      'euler', friction=0.5, temperature=0.9) < oracle.FALSE_ALARM_RATE


def _full_friction_in_noise(theta, r, g, h, gamma, b, t, xi):
  """BAOAB with the noise of Euler's method in place of the exact one."""
  r = r + h / 2. * g
  theta = theta + h / 2. * r
  r = tf.exp(-gamma * h) * r + tf.sqrt(2. * (gamma - b) * t * h) * xi
  return theta + h / 2. * r, r


def test_planted_error_in_baoab_is_seen(monkeypatch):
  monkeypatch.setattr(sghmc, 'baoa_step', _full_friction_in_noise)
  assert sghmc_p_value('baoab', friction=2.) < oracle.FALSE_ALARM_RATE


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
