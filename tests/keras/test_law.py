"""The law of a chain through `fit`, against what is known exactly."""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions

NUM_EXAMPLES = 100
NOISE = 1.
PRIOR_SCALE = 0.15
NUM_CHAINS = 400
# Two-sided false alarms at 5.2 standard errors: 2e-7 a number, 9 numbers.
Z = 5.2


def regression(seed=0):
  """Linear regression with a bias: data, exact posterior mean, covariance."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=[NUM_EXAMPLES, 2]).astype(np.float32)
  y = x @ [1., -0.5] + 0.3 + rng.normal(0., NOISE, NUM_EXAMPLES)
  design = np.concatenate([x, np.ones([NUM_EXAMPLES, 1])], axis=1)
  covariance = np.linalg.inv(
      np.eye(3) / PRIOR_SCALE**2 + design.T @ design / NOISE**2)
  mean = covariance @ design.T @ y / NOISE**2
  return x, y[:, np.newaxis].astype(np.float32), mean, covariance


def fit_regression(batch_size, num_examples=NUM_EXAMPLES,
                   prior_scales=(PRIOR_SCALE,),
                   reduction='sum_over_batch_size', policy='float32',
                   gradient_estimator=None, strategy=None, kernel=None,
                   **arguments):
  """The posterior of the coefficients, through fit.

  One output column is one chain: the columns of a linear layer with the same
  targets are independent under the posterior, with the same law. There are
  NUM_CHAINS columns for each scale of the prior, one after the other.
  """
  x, y, _, _ = regression()
  scales = np.repeat(np.float32(prior_scales), NUM_CHAINS)
  with strategy.scope() if strategy else contextlib.nullcontext():
    model = keras.Sequential([
        keras.Input([2]), keras.layers.Dense(len(scales), dtype=policy)])
    model.compile('sgd', sgmcmc.keras.GaussianLikelihood(
        scale=NOISE, reduction=reduction),
        steps_per_execution=1 if strategy else 40)
  sampling = sgmcmc.keras.PosteriorSampling(
      kernel or functools.partial(
          sgmcmc.SGHMC, step_size=0.002, friction=20.,
          gradient_estimator=gradient_estimator),
      num_examples=num_examples,
      prior=tfd.Normal(0., scales), num_burnin_steps=599,
      num_steps_between_results=79, seed=batch_size, **arguments)
  keras.utils.set_random_seed(1)
  data = tf.data.Dataset.from_tensor_slices(
      (x, np.repeat(y, len(scales), axis=1))).cache()
  if batch_size < NUM_EXAMPLES:
    data = data.shuffle(NUM_EXAMPLES, seed=0)
  data = data.batch(batch_size).repeat()
  model.fit(data, steps_per_epoch=1800, epochs=1, verbose=0, shuffle=False,
            callbacks=[sampling])
  return sampling.posterior


def coefficients(posterior):
  """Draws [draws, columns, 3]."""
  weights = list(posterior.weights.values())
  return np.concatenate(
      [weights[0], weights[1][:, np.newaxis]], axis=1).transpose(0, 2, 1)


def draw_regression(*arguments, **keywords):
  return coefficients(fit_regression(*arguments, **keywords))


def discrepancies(draws, mean, covariance):
  """Largest errors of mean and covariance, over their tolerances.

  The minibatch adds at most the share `noise` of the variance (h C / 2 gamma
  of the density's precision, with C = N / n times that precision), the same
  for all chains. Draws 80 steps apart are correlated by less than 0.35, which
  takes a factor of 2 of their number.
  """
  num_draws, num_chains, _ = draws.shape
  number, noise = num_draws * num_chains / 2., 0.03
  sd = np.sqrt(np.diag(covariance))
  flat = draws.reshape([-1, 3])
  mean_error = np.abs(flat.mean(axis=0) - mean) / sd
  covariance_error = np.abs(np.cov(flat.T) - covariance) / np.outer(sd, sd)
  return (
      mean_error.max() / (Z * np.sqrt(1. / number + 2. * noise / num_draws)),
      covariance_error.max() / (Z * np.sqrt(2. / number) + noise))


@pytest.mark.parametrize('batch_size, reduction, policy', [
    (100, 'sum_over_batch_size', 'float32'),
    pytest.param(25, None, 'mixed_bfloat16', marks=pytest.mark.slow)])
def test_regression_has_the_exact_posterior(batch_size, reduction, policy):
  """In mixed bfloat16 too: an sd is a tenth of its coefficient, or more."""
  _, _, mean, covariance = regression()
  draws = draw_regression(batch_size, reduction=reduction, policy=policy)
  assert max(discrepancies(draws, mean, covariance)) < 1.


@pytest.mark.slow
def test_the_exact_posterior_and_that_of_a_prior_that_counts_twice():
  """Half of the columns have the one, half the other."""
  _, _, mean, covariance = regression()
  draws = draw_regression(
      40, reduction='sum', prior_scales=(PRIOR_SCALE, PRIOR_SCALE / 2.**0.5))
  right, planted = np.split(draws, 2, axis=1)
  assert max(discrepancies(right, mean, covariance)) < 1.
  assert max(discrepancies(planted, mean, covariance)) > 1.


@pytest.mark.slow
def test_a_wrong_number_of_examples_is_found():
  _, _, mean, covariance = regression()
  draws = draw_regression(40, num_examples=130)
  assert max(discrepancies(draws, mean, covariance)) > 1.


@pytest.mark.slow
@pytest.mark.parametrize('kernel, is_right', [
    (sgmcmc.SGNHT, True),
    pytest.param(
        functools.partial(sgmcmc.SGNHT, integrator='euler'), False,
        marks=pytest.mark.weekly),
], ids=['badodab', 'euler'])
def test_sgnht_in_the_units_of_sgd(kernel, is_right):
  """The scheme that fit takes, and the published one, which is cold.

  With a momentum of 0.9 h xi is 0.1056, and by "euler" the variance is 0.947
  of the posterior's, whatever the learning rate is.
  """
  _, _, mean, covariance = regression()
  draws = draw_regression(
      100, prior_scales=(PRIOR_SCALE,) * 4, kernel=kernel,
      learning_rate=0.04, momentum=0.9)
  white = np.linalg.solve(np.linalg.cholesky(covariance), np.reshape(
      draws - mean, [-1, 3]).T)
  # 15 draws of 1,600 columns, 1.6 units of time apart, three to six times what
  # these remember: a standard error of 0.53%.
  ratio = np.mean(white**2)
  assert (abs(ratio - 1.) < 5. * np.sqrt(2. / white.size)) == is_right
  if not is_right:
    assert abs(ratio - 0.947) < 5. * np.sqrt(2. / white.size)


class Replay(tfp.mcmc.TransitionKernel):
  """A kernel whose step t sees batch t and the seed of the callback's step."""

  def __init__(self, make_kernel, x, y, batch_size, seed):
    self.make_kernel = make_kernel
    self.x, self.y, self.batch_size = tf.constant(x), tf.constant(y), batch_size
    self.seed = seed

  is_calibrated = False
  parameters = {}

  def kernel(self, step):
    num_examples = len(self.x)
    start = tf.cast(step * self.batch_size % num_examples, tf.int32)
    batch = (self.x[start:start + self.batch_size],
             self.y[start:start + self.batch_size])

    def log_prior(kernel, bias):
      prior = tfd.Normal(0., 0.7)
      return (tf.reduce_sum(prior.log_prob(kernel))
              + tf.reduce_sum(prior.log_prob(bias)))

    def log_likelihood(kernel, bias, batch):
      x, y = batch
      return tf.reduce_sum(
          tfd.Normal(x @ kernel + bias, 0.5).log_prob(y), axis=-1)

    return self.make_kernel(sgmcmc.Posterior(
        log_prior, log_likelihood, batch, num_examples=num_examples))

  def bootstrap_results(self, state):
    return self.kernel(tf.zeros([], tf.int64)).bootstrap_results(
        state, seed=sgmcmc.random.fold_in(self.seed, 0))

  def one_step(self, state, results, seed=None):
    step = int(results.step)
    return self.kernel(results.step).one_step(
        state, results, seed=sgmcmc.random.fold_in(self.seed, step + 1))


@pytest.mark.slow
@pytest.mark.weekly_after(2)
@pytest.mark.parametrize('make_kernel', [
    functools.partial(sgmcmc.SGLD, step_size=1e-4),
    functools.partial(sgmcmc.SGLD, step_size=1e-3,
                      preconditioner=sgmcmc.preconditioners.RMSProp()),
    functools.partial(sgmcmc.SGHMC, step_size=0.01, friction=5.),
    functools.partial(sgmcmc.SGHMC, friction=5., integrator='baoab',
                      step_size=keras.optimizers.schedules.CosineDecayRestarts(
                          0.02, 4)),
    functools.partial(sgmcmc.SGNHT, step_size=0.01, diffusion=3.),
    functools.partial(sgmcmc.SGNHT, step_size=0.01, diffusion=3.,
                      thermostat='diagonal', integrator='euler'),
], ids=['sgld', 'psgld', 'sghmc', 'baoab', 'sgnht', 'msgnht'])
def test_fit_is_sample_chain(make_kernel):
  rng = np.random.default_rng(0)
  x = rng.normal(size=[120, 4]).astype(np.float32)
  y = rng.normal(size=[120, 2]).astype(np.float32)
  model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=0.5))
  start = [tf.constant(v.numpy()) for v in model.trainable_variables]
  sampling = sgmcmc.keras.PosteriorSampling(
      make_kernel, num_examples=120, prior=tfd.Normal(0., 0.7), seed=[3, 4])
  model.fit(x, y, batch_size=40, epochs=2, shuffle=False, verbose=0,
            callbacks=[sampling])
  # Eager, step by step: sample_chain's own loop, seeds by the replay.
  expected, results = tfp.mcmc.sample_chain(
      6, start, seed=[0, 0],
      kernel=Replay(make_kernel, x, y, 40, tf.constant([3, 4])),
      trace_fn=lambda _, results: results)
  for ours, theirs in zip(sampling.posterior.weights.values(), expected):
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)
  last = tf.nest.map_structure(lambda t: t[-1], results)
  for ours, theirs in zip(tf.nest.flatten(sampling.kernel_results),
                          tf.nest.flatten(last)):
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-3)


def test_step_seeds_are_fold_in():
  sampling = sgmcmc.keras.PosteriorSampling(
      functools.partial(sgmcmc.SGLD, step_size=1.), num_examples=10,
      seed=[3, 4])
  np.testing.assert_array_equal(
      sampling.step_seed(7), sgmcmc.random.fold_in(tf.constant([3, 4]), 7))


@pytest.fixture
def float32_products():
  """GPUs round what is multiplied to 11 bits, unless they are told not to."""
  usual = tf.config.experimental.tensor_float_32_execution_enabled()
  tf.config.experimental.enable_tensor_float_32_execution(False)
  yield
  tf.config.experimental.enable_tensor_float_32_execution(usual)


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.usefixtures('float32_products')
@pytest.mark.parametrize('kernel, momentum', [
    (sgmcmc.SGHMC, 0.9), (sgmcmc.SGLD, None)], ids=['sghmc', 'sgld'])
def test_temperature_zero_is_sgd(kernel, momentum):
  rng = np.random.default_rng(0)
  x = rng.normal(size=[110, 6]).astype(np.float32)
  y = rng.integers(0, 3, 110)

  def make_model(run_eagerly=False):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input([6]),
        keras.layers.Dense(8, activation='tanh',
                           kernel_regularizer=keras.regularizers.L2(0.01)),
        keras.layers.Dense(3)])
    model.compile(
        keras.optimizers.SGD(0.1, momentum=momentum or 0.),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        run_eagerly=run_eagerly)
    return model

  arguments = dict(
      x=x, y=y, batch_size=50, epochs=3, shuffle=False, verbose=0)
  sgd, sampled = make_model(run_eagerly=True), make_model()
  losses = sgd.fit(**arguments).history['loss']
  sampling = sgmcmc.keras.PosteriorSampling(
      kernel, num_examples=110, learning_rate=0.1, momentum=momentum,
      temperature=0., seed=0)
  history = sampled.fit(callbacks=[sampling], **arguments).history
  for ours, theirs in zip(sampled.get_weights(), sgd.get_weights()):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(history['loss'], losses, rtol=1e-5)
