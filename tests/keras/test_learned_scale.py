"""Priors whose scale is learned: their law through `fit`, against quadrature.

Given the scale s a linear model with Gaussian noise is Gaussian, and what its
weights say of s is known: one quadrature over log s gives all moments, at each
temperature. A model of linear models side by side, each with a kernel and a
prior of its own, is as many chains; a statistic is the mean over a chain, and
Student's t over the chains says how far it is from the exact one. With 8
statistics at 1e-4 a test of one temperature is a false alarm in 1,250.
"""

import functools

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.model import priors
from tfp_sgmcmc.keras.model import scale_mixture

tfd = tfp.distributions

NUM_EXAMPLES, DIM, NOISE = 12, 6, 1.5
CONCENTRATION = 1.5
FALSE_ALARM = 1e-4
PRIOR = sgmcmc.keras.learned_scale(CONCENTRATION)


def data():
  rng = np.random.default_rng(0)
  x = rng.normal(size=[NUM_EXAMPLES, DIM]).astype(np.float32)
  y = x @ [1., -0.7, 0.5, 0., 0., 0.2] + NOISE * rng.normal(size=NUM_EXAMPLES)
  return x, y[:, np.newaxis].astype(np.float32)


def exact(temperature):
  """The means of w, |w|^2 and log s^2, by quadrature over log s.

  The density of log s^2 is that of InverseGamma times s^2, times

    integral p(y | w)^(1/T) N(w; 0, T s^2 I) dw
      ~ det(I + s^2 X'X / noise^2)^(-1/2) exp(m' X'y / (2 T noise^2)),

  with m the mean of w given s, its covariance T (X'X / noise^2 + I / s^2)^-1.
  """
  x, y = (a.astype(np.float64) for a in data())
  gram, moment = x.T @ x / NOISE**2, x.T @ y[:, 0] / NOISE**2
  rate = CONCENTRATION / DIM
  log_v = np.linspace(-12., 12., 4001)
  found = []
  for v in np.exp(log_v):
    covariance = np.linalg.inv(gram + np.eye(DIM) / v)
    mean = covariance @ moment
    log_density = (
        -CONCENTRATION * np.log(v) - rate / v
        - np.linalg.slogdet(np.eye(DIM) + v * gram)[1] / 2.
        + mean @ moment / (2. * temperature))
    found.append([log_density, *mean, mean @ mean + temperature * np.trace(
        covariance), np.log(v)])
  log_density, *statistics = np.transpose(found)
  weights = np.exp(log_density - log_density.max())
  return np.array(statistics) @ weights / weights.sum()


class WithoutDimension(scale_mixture.ScaleMixture):
  """A planted error: d/2 is forgotten."""

  def log_prob(self, weight, temperature=1.):
    self._number = 0
    return super().log_prob(weight, temperature)


class Tempered(scale_mixture.ScaleMixture):
  """A planted error at T < 1: p(w)^(1/T), the law of the scale tempered too."""

  def log_prob(self, weight, temperature=1.):
    return super().log_prob(weight)


def planted(kind):
  """A prior of one kernel, with an error."""
  return lambda variable: kind(
      CONCENTRATION, CONCENTRATION / DIM, variable.shape, variable.dtype)


# By temperature, the priors and the number of their chains. The fixed scale is
# that of the prior's mean, b / (a - 1).
CHAINS = {
    1.: {'right': (PRIOR, 12),
         'fixed': (tfd.Normal(0., (2. * CONCENTRATION / DIM)**0.5), 7),
         'dimension': (planted(WithoutDimension), 7)},
    0.2: {'right': (PRIOR, 12), 'tempered': (planted(Tempered), 7)}}


class SideBySide(keras.layers.Layer):
  """Linear models of one input, each with a kernel of its own.

  In one product: a layer for each would be ten times as many operations.
  """

  def __init__(self, names):
    super().__init__(name='all')
    self.kernels = [
        self.add_weight(shape=[DIM, 1], name=name) for name in names]

  def call(self, x):
    return x @ keras.ops.concatenate(self.kernels, axis=1)


@functools.cache
def p_values(temperature):
  """By prior, the p-values of the statistics, all chains through one fit."""
  x, y = data()
  names = [f'{name}_{k}' for name, (_, number) in CHAINS[temperature].items()
           for k in range(number)]
  model = keras.Sequential([keras.Input([DIM]), SideBySide(names)])
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=NOISE),
                steps_per_execution=20)
  sampling = sgmcmc.keras.PosteriorSampling(
      functools.partial(
          sgmcmc.SGHMC, step_size=0.15, friction=2., integrator='baoab'),
      num_examples=NUM_EXAMPLES, temperature=temperature,
      prior={
          f'.*/{name}_.*': prior
          for name, (prior, _) in CHAINS[temperature].items()},
      num_burnin_steps=299, num_steps_between_results=19)
  batches = tf.data.Dataset.from_tensors(
      (x, np.repeat(y, len(names), axis=1))).cache().repeat()
  model.fit(batches, steps_per_epoch=2300, epochs=1, verbose=0,
            callbacks=[sampling])
  scales = sgmcmc.keras.draw_scales(
      sampling.posterior, PRIOR, temperature)
  found = {name: [] for name in CHAINS[temperature]}
  for path, w in sampling.posterior.weights.items():
    w = w[..., 0]
    found[path.split('/')[-1].split('_')[0]].append([
        *w.mean(axis=0), np.mean(np.sum(w**2, axis=-1)),
        np.mean(2. * np.log(scales[path].draws))])
  return {
      name: scipy.stats.ttest_1samp(chains, exact(temperature)).pvalue
      for name, chains in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize('temperature', [
    1., pytest.param(0.2, marks=pytest.mark.weekly)])
def test_law_and_planted_errors(temperature):
  found = p_values(temperature)
  assert found.pop('right').min() > FALSE_ALARM
  assert max(p.min() for p in found.values()) < FALSE_ALARM


def radius(temperature, log_prob, num_weights):
  """The median of |w| / sqrt(T d) of density^(1/T), without data."""
  log_r = np.linspace(-8., 6., 8001)
  w = np.zeros([len(log_r), num_weights], np.float32)
  w[:, 0] = np.exp(log_r)
  log_density = num_weights * log_r + (
      log_prob(w, temperature).numpy().astype(np.float64) / temperature)
  share = np.cumsum(np.exp(log_density - log_density.max()))
  return np.exp(log_r[np.searchsorted(share, share[-1] / 2.)]) / (
      temperature * num_weights)**0.5


def test_a_cold_posterior_keeps_its_scale_and_the_power_of_the_prior_does_not():
  """Without data s is as at T = 1: its median is 1.2 b^(1/2) at a = 1."""
  arguments = (1., 0.01, [1000], tf.float32)
  ours = scale_mixture.ScaleMixture(*arguments).log_prob
  naive = Tempered(*arguments).log_prob
  for temperature in (1., 0.1, 0.01):
    assert abs(radius(temperature, ours, 1000) / 0.12 - 1.) < 0.01
  assert abs(radius(1., naive, 1000) / 0.12 - 1.) < 0.01
  assert radius(0.1, naive, 1000) < 0.02
  assert radius(0.01, naive, 1000) < 0.01


def test_density_of_student_and_of_a_draw():
  weight = keras.Variable(np.zeros([2, 3], np.float32))
  prior = sgmcmc.keras.learned_scale(2., scale=3.)(weight)
  w = tf.random.stateless_normal([5, 2, 3], [0, 1])
  wanted = tfd.MultivariateStudentTLinearOperator(
      4., tf.zeros([6]), tf.linalg.LinearOperatorScaledIdentity(
          6, 3. / 2.**0.5)).log_prob(tf.reshape(w, [5, 6]))
  np.testing.assert_allclose(prior.log_prob(w), wanted, rtol=1e-5)
  # p(w) = p(w | s) p(s^2) / p(s^2 | w), at any s, at T = 0.1 too.
  for temperature in (1., 0.1):
    for variance in (0.5, 3.):
      given = prior.variance_given(prior.half_square(w), temperature)
      expected = (
          tf.reduce_sum(tfd.Normal(
              0., (temperature * variance)**0.5).log_prob(w), axis=[1, 2])
          + tfd.InverseGamma(2., prior.scale).log_prob(variance)
          - given.log_prob(variance))
      np.testing.assert_allclose(
          prior.log_prob(w, temperature), temperature * expected, rtol=1e-4)


@pytest.mark.parametrize('w', [np.zeros(3), np.full(3, 1e3), np.full(3, 1e-12)])
def test_at_temperature_zero_there_is_no_prior(w):
  weight = keras.Variable(w.astype(np.float32))
  prior = sgmcmc.keras.learned_scale()(weight)
  value, gradient = tfp.math.value_and_gradient(
      lambda w: prior.log_prob(w, tf.constant(0.)),
      tf.convert_to_tensor(weight))
  assert abs(value) < 1e-20 and np.max(np.abs(gradient)) < 1e-15


@pytest.mark.weekly_after(1)
@pytest.mark.slow
@pytest.mark.parametrize('kernel, arguments', [
    (functools.partial(sgmcmc.SGHMC, step_size=0.01, friction=10.,
                       gradient_estimator=sgmcmc.gradients.ExponentiallyWeighted(
                           base=sgmcmc.gradients.Reshuffled())), {}),
    (sgmcmc.StochasticBouncyParticleSampler, models.at_times(0.01)),
    (functools.partial(sgmcmc.SGLD, step_size=1e-3,
                       temperature=lambda step: tf.cast(step % 2, tf.float32)),
     {})], ids=['EWSG', 'SBPS', 'schedule'])
def test_with_other_kernels(kernel, arguments):
  x, y = data()
  model = keras.Sequential([keras.Input([DIM]), keras.layers.Dense(1)])
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=NOISE))
  sampling = sgmcmc.keras.PosteriorSampling(
      kernel, num_examples=NUM_EXAMPLES, prior=PRIOR, **arguments)
  model.fit(x, y, batch_size=4, epochs=20, verbose=0, callbacks=[sampling])
  assert all(np.all(np.isfinite(w)) for w in sampling.posterior[-1])


@pytest.mark.parametrize('arguments, error, message', [
    (dict(concentration=0.), ValueError, 'concentration is 0: it has to be gr'),
    (dict(scale=-1.), ValueError, 'scale is -1'),
    (dict(bias_scale='he'), TypeError, "bias_scale is 'he'"),
    (dict(scale=[1., 2.]), TypeError, 'scale')])
def test_refused_at_construction(arguments, error, message):
  with pytest.raises(error, match=message):
    sgmcmc.keras.learned_scale(**arguments)


def test_other_mistakes_are_told():
  whole = keras.Variable(np.zeros([3], np.int32), dtype='int32')
  with pytest.raises(TypeError, match='real weights, and .* dtype int32'):
    priors.WeightPrior(PRIOR, [whole])
  weight = keras.Variable(np.zeros([3], np.float32))
  with pytest.raises(ValueError, match='temperature has shape'):
    PRIOR(weight).log_prob(weight, tf.ones([3]))
  model = keras.Sequential([keras.Input([DIM]), keras.layers.Dense(1)])
  posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
      model, [np.zeros([2, DIM, 1]), np.zeros([2, 1])])
  with pytest.raises(ValueError, match='gives no weight a learned scale'):
    sgmcmc.keras.draw_scales(posterior, tfd.Normal(0., 1.))
  with pytest.raises(ValueError, match='temperature is 0'):
    sgmcmc.keras.draw_scales(posterior, PRIOR, temperature=0.)
