"""`Posterior.mode` against modes in closed form and by Newton's method.

And `Posterior.whiten`, against a Gaussian that it makes a standard normal, and
against TFP's joint distributions.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests import oracle
from tests import references
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions
NUM_GROUPS = 8


@pytest.mark.parametrize('dtype, tolerance', [
    (np.float32, 0.02),
    pytest.param(np.float64, 0.02, marks=pytest.mark.slow)])
def test_gaussian_in_two_parts(dtype, tolerance):
  model = oracle.GaussianModel(dtype=dtype)
  parts = model.posterior().mode([np.zeros(2, dtype), dtype(0.)])
  assert [part.shape.as_list() for part in parts] == [[2], []]
  assert parts[0].dtype == dtype
  sd = np.sqrt(np.diag(np.linalg.inv(model.precision)))
  error = np.append(*parts) - model.mean
  assert np.abs(error / sd).max() < tolerance


def groups(num_rows=20_000):
  """A mean, means of groups of very unequal sizes, all of known noise."""
  rng = np.random.default_rng(0)
  share = 0.5**np.arange(NUM_GROUPS)
  group = rng.choice(NUM_GROUPS, num_rows, p=share / share.sum())
  y = (rng.normal(size=NUM_GROUPS)[group] + rng.normal(size=num_rows)).astype(
      np.float32)

  def model(group):
    return tfd.JointDistributionNamed(dict(
        mu=tfd.Normal(0., 2.),
        means=lambda mu: tfd.Sample(tfd.Normal(mu, 0.5), NUM_GROUPS),
        y=lambda means: tfd.Independent(
            tfd.Normal(tf.gather(means, group), 1.), 1)))

  posterior = sgmcmc.Posterior.from_joint_distribution(
      model, {'y': y}, covariates=group.astype(np.int32))
  count = np.bincount(group, minlength=NUM_GROUPS)
  precision = np.zeros([NUM_GROUPS + 1, NUM_GROUPS + 1])
  precision[:-1, :-1] = np.diag(count + 4.)
  precision[-1, :-1] = precision[:-1, -1] = -4.
  precision[-1, -1] = 0.25 + 4. * NUM_GROUPS
  exact = np.linalg.solve(
      precision, np.append(np.bincount(group, y.astype(float)), 0.))
  return posterior, exact, precision


@pytest.mark.weekly
@pytest.mark.slow
def test_hierarchical_from_a_draw_of_the_prior():
  """Standard deviations between 0.01 and 0.2; the parts are means, mu."""
  posterior, exact, precision = groups()
  mode = posterior.mode(seed=1)
  sd = np.sqrt(np.diag(np.linalg.inv(precision)))
  assert np.abs((np.append(*mode) - exact) / sd).max() < 0.1
  variances = posterior.variances(mode)
  assert [v.shape.as_list() for v in variances] == [[NUM_GROUPS], []]
  np.testing.assert_allclose(
      np.append(*variances), 1. / np.diag(precision), rtol=1e-4)


@pytest.mark.weekly
@pytest.mark.slow
def test_logistic_regression_with_unequal_scales():
  rng = np.random.default_rng(1)
  x = (rng.normal(size=[20_000, 3]) * [10., 1., 0.03]).astype(np.float32)
  y = (rng.uniform(size=20_000) < 1. / (1. + np.exp(
      -x @ [0.1, -1., 5.]))).astype(np.float32)

  def posterior_of(x, y):
    return sgmcmc.Posterior(
        lambda theta: oracle.normal_log_prob(theta, 0., 10.),
        lambda theta, batch: tfd.Bernoulli(logits=tf.einsum(
            '...nd,...d->...n', batch['x'], theta)).log_prob(batch['y']),
        {'x': x, 'y': y})

  mode, covariance = references.laplace(
      posterior_of(x.astype(np.float64), y.astype(np.float64)), 3)
  posterior, sd = posterior_of(x, y), np.sqrt(np.diag(covariance))
  error = (posterior.mode(tf.zeros(3)) - mode) / sd
  assert np.abs(error).max() < 0.05
  # Of a tenth of the rows it is as far off as their posterior is wide.
  error = (posterior.mode(tf.zeros(3), num_rows=2000, seed=1) - mode) / sd
  assert 0.1 < np.abs(error).max() < 5. * np.sqrt(10.)


@pytest.mark.slow
def test_what_has_no_mode_is_said():
  posterior = oracle.GaussianModel().posterior()
  with pytest.raises(ValueError, match='without axes of chains'):
    posterior.mode(tf.zeros([4, 3]))
  nowhere = sgmcmc.Posterior(
      lambda x: tf.math.log(x), lambda x, y: x[..., tf.newaxis] + 0. * y,
      tf.zeros(3))
  with pytest.raises(ValueError, match='not finite: start in a place'):
    nowhere.mode(-1.)
  with pytest.raises(ValueError, match='a function, which cannot be sampled'):
    nowhere.mode()
  with pytest.warns(UserWarning, match='mode has not been found'):
    nowhere.mode(1.)  # Its density grows without end.
  bowl = sgmcmc.Posterior(
      lambda x: x**2, lambda x, y: 0. * x[..., tf.newaxis] * y, tf.zeros(3))
  with pytest.raises(ValueError, match='does not fall .* of part 0'):
    bowl.variances(0.)


@pytest.mark.parametrize('dtype', [
    np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_white_coordinates_of_a_gaussian(dtype):
  """The precision has correlations: without them the density is another."""
  model = oracle.GaussianModel(dtype=dtype)
  posterior = model.posterior()
  white = posterior.whiten([
      tf.constant(model.mean[:2], dtype), tf.constant(model.mean[2], dtype)])
  phi = np.random.default_rng(0).normal(size=[5, 4, 3]).astype(dtype)
  density = white(phi) - white(np.zeros(3, dtype))
  np.testing.assert_allclose(
      density, -0.5 * np.sum(phi**2, axis=-1), atol=1e-3)
  parts = white.constrain(phi)
  assert [part.shape.as_list() for part in parts] == [[5, 4, 2], [5, 4]]
  factor = np.linalg.cholesky(model.precision)
  theta = np.concatenate([parts[0], parts[1][..., np.newaxis]], axis=-1)
  np.testing.assert_allclose(
      np.sum(((theta - model.mean) @ factor)**2, axis=-1),
      np.sum(phi**2, axis=-1), rtol=1e-2)
  # The Jacobian counts once, for a minibatch too.
  whole = white.log_prior(phi) - posterior.log_prior(*parts)
  np.testing.assert_allclose(
      whole, -0.5 * np.linalg.slogdet(model.precision)[1], atol=1e-3)


@pytest.mark.slow
def test_white_coordinates_of_a_joint_distribution():
  posterior, *_ = groups(2000)
  white = posterior.whiten(posterior.mode(seed=1))
  assert white.part_names is None
  phi = white.sample_prior([3], seed=0)
  assert phi.shape == [3, NUM_GROUPS + 1]
  theta = posterior.sample_prior([3], seed=0)
  for name, part in posterior.constrain(theta).items():
    np.testing.assert_allclose(white.constrain(phi)[name], part, atol=1e-4)
  few = tf.zeros([3], tf.int32)
  for name, part in white.sample_predictive(phi, few, seed=2).items():
    np.testing.assert_allclose(
        part, posterior.sample_predictive(theta, few, seed=2)[name], atol=1e-3)
  # Of half of the rows it is near, where groups have many.
  some = posterior.whiten(posterior.mode(seed=1), num_rows=1000, seed=1)
  distance = some(tf.eye(9)[:3]) - some(tf.zeros([9]))
  assert np.all(np.abs(distance + 0.5) < 0.1)


def test_white_coordinates_of_scales_that_differ():
  """By 10,000, and one column that is correlated with another."""
  scales = tf.constant([1., 1e-4, 30.])
  factor = tf.constant([[1., 0., 0.], [0., 1., 0.], [0.8, 0., 0.6]])
  posterior = sgmcmc.Posterior(
      lambda theta: -0.5 * tf.reduce_sum(tf.square(tf.linalg.matvec(
          tf.linalg.inv(factor), theta / scales)), axis=-1),
      lambda theta, y: 0. * theta[..., :1] * y, tf.zeros(3))
  white = posterior.whiten(tf.zeros(3))
  phi = np.random.default_rng(0).normal(size=[6, 3]).astype(np.float32)
  np.testing.assert_allclose(
      white(phi) - white(tf.zeros(3)), -0.5 * np.sum(phi**2, axis=-1),
      rtol=1e-3)
  np.testing.assert_array_equal(white.constrain([phi]), white.constrain(phi))


@pytest.mark.slow
def test_what_cannot_be_whitened_is_said():
  flat = sgmcmc.Posterior(
      lambda x: 0. * x[..., 0], lambda x, y: -tf.square(
          x[..., :1] + x[..., 1:2] - y), tf.zeros(3))
  with pytest.raises(ValueError, match='does not fall in each direction'):
    flat.whiten(tf.zeros(2))
  white = oracle.GaussianModel().posterior().whiten([tf.zeros(2), 0.])
  with pytest.raises(ValueError, match=r'one vector a chain, \[..., 3\]'):
    white(tf.zeros([4, 2]))
  with pytest.raises(ValueError, match='dtypes float32, float64'):
    sgmcmc.Posterior(
        lambda a, b: -a**2 - tf.cast(b, tf.float32)**2,
        lambda a, b, y: 0. * a[..., tf.newaxis] * y, tf.zeros(3)).whiten(
            [0., np.float64(0.)])
  wide = sgmcmc.Posterior(
      lambda x: -tf.reduce_sum(x**2, axis=-1),
      lambda x, y: 0. * x[..., :1] * y, tf.zeros(3))
  with pytest.raises(ValueError, match='6,000 coordinates'):
    wide.whiten(tf.zeros(6000))
