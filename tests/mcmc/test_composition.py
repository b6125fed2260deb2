"""The kernels in TFP's company: modes, states, drivers, wrappers, refusals."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests import catalogue
from tests import oracle
import tfp_sgmcmc as sgmcmc

tfb = tfp.bijectors

UNIFORM = catalogue.UNIFORM
normal, logarithm = catalogue.normal, catalogue.logarithm
pytestmark = pytest.mark.filterwarnings('ignore:.*not calibrated')


def make(name):
  row = catalogue.KERNELS[name]
  return row.make(row.posterior())


def start(chains):
  return tf.zeros([*chains, 3])


def chain(kernel, state, num_results=12, seed=(3, 4), **arguments):
  return tfp.mcmc.sample_chain(
      num_results, state, kernel=kernel, seed=tf.convert_to_tensor(seed),
      **dict(dict(trace_fn=None), **arguments))


@pytest.mark.slow
def test_a_thousand_chains_compile_to_one_step():
  kernel = make('sghmc').copy(  # Which takes half as long to compile.
      gradient_estimator=sgmcmc.gradients.Uniform(4, replacement=True))
  run = tf.function(
      lambda: chain(kernel, start((1000,)), 5), jit_compile=True)
  assert run().shape == [5, 1000, 3]


@pytest.mark.parametrize('name', ['sgld', 'sgnht'])
def test_thinning_and_reducers_of_tfp(name):
  experimental = tfp.experimental.mcmc
  kernel, state = make(name), start((6,))
  thinned = experimental.ThinningKernel(kernel, num_steps_to_skip=2)
  assert chain(thinned, state, 3).shape == [3, 6, 3]
  reducer = experimental.VarianceReducer()
  variance, _, _ = experimental.sample_fold(
      20, state, kernel=kernel, reducer=reducer, seed=tf.constant([0, 1]))
  assert variance.shape == [6, 3] and np.all(variance > 0.)


def positive_normal():
  """Mean and scale of 8 numbers; the scale is positive."""
  x = np.array([2.1, 0.4, 3.9, 1.3, -0.8, 2.6, 1.9, 0.9], np.float32)
  return sgmcmc.Posterior(
      # N(0, 5^2) and Gamma(2, 1).
      lambda mu, scale: (
          -0.5 * tf.square(mu / 5.) + tf.math.log(scale) - scale),
      lambda mu, scale, x: -0.5 * tf.square(
          (x - mu[..., tf.newaxis]) / scale[..., tf.newaxis]) - tf.math.log(
              scale[..., tf.newaxis]), x)


@functools.cache
def quadrature():
  """Points (mu, log scale) on a grid, and the posterior's weights of them."""
  mu, log_scale = np.meshgrid(
      np.linspace(-12., 15., 1601), np.linspace(-2., 4., 401), indexing='ij')
  log_prob = positive_normal().transform([tfb.Identity(), tfb.Exp()])(
      tf.constant(mu, tf.float32), tf.constant(log_scale, tf.float32))
  weights = np.exp(np.float64(log_prob) - np.max(log_prob))
  weights /= weights.sum()
  assert max(weights[[0, -1]].max(), weights[:, [0, -1]].max()) < 1e-12
  return np.stack([mu.ravel(), log_scale.ravel()], axis=-1), weights.ravel()


@functools.cache
def constrained_chains():
  """Chains of the posterior of mu and log scale, compiled once."""
  def make_kernel(num_jacobians):
    posterior = positive_normal()

    def log_prior(mu, scale):
      return posterior.log_prior(mu, scale) + tf.cast(
          num_jacobians - 1., scale.dtype) * tf.math.log(scale)

    log_likelihood = lambda mu, scale, x: posterior.log_likelihood(
        mu, scale, batch=x)
    return sgmcmc.SGHMC(
        sgmcmc.Posterior(log_prior, log_likelihood, posterior.data).transform(
            [tfb.Identity(), tfb.Exp()]),
        step_size=0.005, friction=4.,
        # As much noise as 4 without replacement, which compile for longer.
        gradient_estimator=sgmcmc.gradients.Uniform(7, replacement=True))

  return oracle.compile_chains(make_kernel)


def constrained_errors(num_jacobians):
  """Means in posterior sds, and sds relative to those of the posterior.

  Of 20,000 chains that start in independent draws of it and go on for four
  units of time: what is wrong moves them, at a rate of 1.4 and more.
  """
  points, weights = quadrature()
  start = points[np.random.default_rng(7).choice(
      len(points), 20_000, p=weights)].astype(np.float32)
  state, _ = constrained_chains()(
      [tf.constant(start[:, 0]), tf.constant(start[:, 1])], 800,
      num_jacobians=num_jacobians)
  draws = np.stack(state, axis=-1)
  mean = weights @ points
  sd = np.sqrt(weights @ (points - mean)**2)
  return np.concatenate(
      [(draws.mean(axis=0) - mean) / sd, draws.std(axis=0) / sd - 1.])


# Of 20,000 independent draws means have a standard error of 0.007 sd and sds of
# 0.5%; the rest is the bias of the step and of the minibatches.
TOLERANCE = 0.03


@pytest.mark.slow
def test_constrained_parameter_against_quadrature():
  assert np.abs(constrained_errors(1.)).max() < TOLERANCE


@pytest.mark.weekly
@pytest.mark.slow
def test_planted_error_in_the_jacobian_is_seen():
  assert np.abs(constrained_errors(2.)).max() > 2. * TOLERANCE


def test_transformed_transition_kernel():
  """It works with the exact gradient, and gives the transformed posterior's."""
  bijectors = [tfb.Identity(), tfb.Exp()]
  posterior = positive_normal()
  inner = sgmcmc.SGHMC(posterior, step_size=0.05, friction=1.)
  wrapped = tfp.mcmc.TransformedTransitionKernel(inner, bijectors)
  mu, scale = chain(wrapped, [tf.zeros([4]), tf.ones([4])])
  direct = chain(
      inner.copy(target_log_prob_fn=posterior.transform(bijectors)),
      [tf.zeros([4]), tf.zeros([4])])
  np.testing.assert_allclose(mu, direct[0], rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(scale, tf.exp(direct[1]), rtol=1e-4)

  with pytest.raises(TypeError, match='posterior.transform'):
    tfp.mcmc.TransformedTransitionKernel(
        sgmcmc.SGLD(posterior, 0.1, gradient_estimator=UNIFORM), bijectors)


def test_schedules_of_keras():
  """Step sizes and temperatures follow the step counter, compiled too."""
  schedule = keras.optimizers.schedules.CosineDecayRestarts(
      0.1, first_decay_steps=4, t_mul=1.)
  kernel = sgmcmc.SGLD(
      lambda x: tf.zeros_like(x) * x, schedule,
      temperature=keras.optimizers.schedules.PiecewiseConstantDecay(
          [5], [1., 0.]))
  run = tf.function(
      lambda: chain(kernel, tf.zeros([100_000]), 10), jit_compile=True)
  steps = np.diff(run(), axis=0, prepend=0.)
  expected = [
      2. * float(schedule(k)) * (1. if k <= 5 else 0.) for k in range(10)]
  np.testing.assert_allclose(steps.var(axis=1), expected, rtol=0.03)


def test_step_size_a_chain_and_a_coordinate():
  step_size = tf.constant([[0.1], [0.4]])
  kernel = sgmcmc.SGLD(lambda x: tf.reduce_sum(0. * x, -1), step_size)
  moved, _ = kernel.one_step(
      tf.zeros([2, 50_000]), kernel.bootstrap_results(tf.zeros([2, 50_000])),
      seed=tf.constant([0, 1]))
  np.testing.assert_allclose(
      np.var(moved, axis=1), 2. * step_size[:, 0], rtol=0.05)


def test_temperature_zero_descends():
  kernel = sgmcmc.SGLD(lambda x: -x**2 / 2., 0.1, temperature=0.)
  np.testing.assert_allclose(
      chain(kernel, tf.ones([]), 3), 0.9**np.arange(1, 4), rtol=1e-6)


def test_rmsprop_from_its_definition():
  kernel = sgmcmc.SGLD(
      lambda x: -x**2 / 2., 0.1, temperature=0.,
      preconditioner=sgmcmc.preconditioners.RMSProp(0.9, regularizer=0.01))
  draws, trace = chain(
      kernel, tf.constant(2.), 3,
      trace_fn=lambda _, r: r.preconditioner_results.second_moment[0])
  x, v = 2., 4.
  for draw, second_moment in zip(draws, trace):
    v = 0.9 * v + 0.1 * x**2
    x = x - 0.1 * x / (0.01 + np.sqrt(v))
    np.testing.assert_allclose([draw, second_moment], [x, v], rtol=1e-5)


def test_sharded():
  """Under tfp's Sharded, replicas hold chains of their own."""
  devices = tf.config.list_logical_devices('CPU')
  strategy = tf.distribute.MirroredStrategy([devices[0].name])
  kernel = tfp.experimental.mcmc.Sharded(make('sghmc'), 'chains')

  def run(seed):
    return chain(kernel, start((3,)), 4, seed=seed)
  draws = strategy.run(run, args=(tf.constant([1, 2]),))
  assert draws.shape == [4, 3, 3] and np.all(np.isfinite(draws))


@pytest.mark.parametrize('build, error, message', [
    (lambda: sgmcmc.SGLD(normal, 0.), ValueError, 'step_size is 0'),
    (lambda: sgmcmc.SGLD(normal, -0.1), ValueError, 'greater than 0'),
    (lambda: sgmcmc.SGLD(normal, np.nan), ValueError, 'finite'),
    (lambda: sgmcmc.SGLD(normal, 'small'), TypeError, 'pass a real number'),
    (lambda: sgmcmc.SGLD(normal, lambda: 0.1), ValueError, 'step counter'),
    (lambda: sgmcmc.SGLD(normal, tf.constant([0.1, 0.])), ValueError,
     'greater than 0'),
    (lambda: sgmcmc.SGLD(normal, 0.1, temperature=-1.), ValueError,
     'temperature'),
    (lambda: sgmcmc.SGLD(3., 0.1), TypeError, 'has to be a Posterior'),
    (lambda: sgmcmc.SGLD(normal, tf.Variable(-0.1)), ValueError,
     'greater than 0'),
    (lambda: sgmcmc.SGLD(normal, [0.1, 0.2]), TypeError, 'broadcasts with'),
    (lambda: sgmcmc.SGLD(normal, 0.1, preconditioner='rms'), TypeError,
     'preconditioner is'),
    (lambda: sgmcmc.SGHMC(normal, 0.1, 0.), ValueError, 'friction is 0'),
    (lambda: sgmcmc.SGHMC(normal, 0.1, 1., noise_estimate=2.), ValueError,
     'Raise the friction'),
    (lambda: sgmcmc.SGHMC(normal, 0.1, 1., integrator='leapfrog'), ValueError,
     "'euler', 'baoab', 'explicit_euler'"),
    (lambda: sgmcmc.SGNHT(normal, 0.1, -1.), ValueError, 'diffusion is -1'),
    (lambda: sgmcmc.SGNHT(normal, 0.1, 1., thermostat='vector'), ValueError,
     "'scalar', 'part', 'diagonal', 'matrix'"),
    (lambda: sgmcmc.SGNHT(normal, 0.1, 1., integrator='baoab'), ValueError,
     "'badodab', 'euler'"),
    (lambda: sgmcmc.SGNHT(
        normal, 0.1, 1., preconditioner=sgmcmc.preconditioners.RMSProp()),
     ValueError, r'take preconditioners\.Diagonal'),
    (lambda: sgmcmc.SGNHT(normal, 0.1, 1., preconditioner=2.), TypeError,
     'preconditioner is 2'),
    (lambda: sgmcmc.SGNHT(normal, 0.1, 1., noise_estimate=[1., -1.]),
     ValueError, 'noise_estimate is -1'),
    (lambda: sgmcmc.preconditioners.Diagonal([1., 0.]), ValueError,
     'diagonal is 0'),
    (lambda: sgmcmc.preconditioners.Diagonal('one'), TypeError, 'diagonal is'),
    (lambda: sgmcmc.SGNHT(normal, 0.1, 1., thermostat_mass=0.), ValueError,
     'thermostat_mass'),
    (lambda: sgmcmc.preconditioners.RMSProp(1.5), ValueError, 'at most 1'),
    (lambda: sgmcmc.preconditioners.RMSProp(0.9, regularizer=0.), ValueError,
     'regularizer'),
])
def test_refused_at_construction(build, error, message):
  with pytest.raises(error, match=message):
    build()


def test_wrong_likelihood_shape_is_refused_at_the_start():
  posterior = sgmcmc.Posterior(
      lambda x: -tf.reduce_sum(x**2),
      lambda x, batch: tf.reduce_mean(batch @ x[:, tf.newaxis]),
      np.ones([10, 3], np.float32))
  kernel = sgmcmc.SGLD(posterior, 0.1, gradient_estimator=UNIFORM)
  with pytest.raises(ValueError, match='one value for each example'):
    kernel.bootstrap_results(tf.zeros(3))


def test_nan_likelihood_at_the_start_in_a_graph():
  kernel = sgmcmc.SGLD(logarithm, 0.1)
  with pytest.raises(tf.errors.InvalidArgumentError, match='not finite'):
    tf.function(lambda: chain(kernel, tf.zeros([3])))()
