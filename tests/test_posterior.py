"""Posterior: values, scaling, transformation, and what it refuses."""

import pickle

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

tfb, tfd = tfp.bijectors, tfp.distributions

X = np.random.default_rng(0).normal(size=[11, 3]).astype(np.float32)
Y = (X.sum(axis=1) > 0.).astype(np.float32)


def logistic_likelihood(theta, batch):
  logits = tf.einsum('...nd,...d->...n', batch['x'], theta)
  return tfd.Bernoulli(logits=logits).log_prob(batch['y'])


def standard_normal(theta):
  return -0.5 * tf.reduce_sum(theta**2, axis=-1)


def logistic(**arguments):
  return sgmcmc.Posterior(**dict(dict(
      log_prior_fn=tfd.MultivariateNormalDiag(tf.zeros(3)).log_prob,
      log_likelihood_fn=logistic_likelihood,
      data={'x': X, 'y': Y}), **arguments))


def expected_logistic(theta):
  logits = X.astype(np.float64) @ theta
  return (-0.5 * theta @ theta - 1.5 * np.log(2. * np.pi)
          + np.sum(Y * logits - np.log1p(np.exp(logits))))


def test_exact_value_of_one_and_many_chains():
  theta = np.random.default_rng(1).normal(size=[4, 3])
  posterior = logistic()
  expected = [expected_logistic(row) for row in theta]
  theta = theta.astype(np.float32)
  np.testing.assert_allclose(posterior(theta), expected, rtol=1e-5)
  np.testing.assert_allclose(posterior(theta[0]), expected[0], rtol=1e-5)
  assert posterior.num_examples == 11


def test_estimate_scales_the_likelihood_of_a_batch():
  posterior, theta = logistic(), tf.constant([0.1, 0.2, -0.3])
  shared = {'x': X[:4], 'y': Y[:4]}
  likelihood = tf.reduce_sum(logistic_likelihood(theta, shared))
  expected = posterior.log_prior(theta) + 11. / 4. * likelihood
  np.testing.assert_allclose(
      posterior.log_prob_estimate(theta, batch=shared), expected, rtol=1e-6)
  indices = tf.constant([[0, 1, 2, 3], [3, 2, 1, 0]])
  np.testing.assert_allclose(
      posterior.log_prob_estimate(
          tf.stack([theta, theta]), batch=posterior.gather(indices)),
      [expected, expected], rtol=1e-5)


def test_data_as_a_sample_of_more():
  posterior = logistic(num_examples=110)
  theta = tf.zeros(3)
  np.testing.assert_allclose(
      posterior(theta) - posterior.log_prior(theta), 110 * np.log(0.5),
      rtol=1e-5)


def test_it_is_a_target_for_kernels_of_tfp():
  kernel = tfp.mcmc.NoUTurnSampler(
      logistic(), step_size=0.1, max_tree_depth=2)
  states = tfp.mcmc.sample_chain(
      2, tf.zeros([2, 3]), kernel=kernel, trace_fn=None, seed=[0, 1])
  assert np.all(np.isfinite(states))


def test_transform_counts_the_jacobian_once():
  """Against the density of the transformed prior, written out."""
  x = np.array([0.5, -1., 2.], np.float32)
  posterior = sgmcmc.Posterior(
      lambda mu, scale: (
          tfd.Normal(0., 3.).log_prob(mu) + tfd.Gamma(2., 1.).log_prob(scale)),
      lambda mu, scale, x: tfd.Normal(
          mu[..., tf.newaxis], scale[..., tf.newaxis]).log_prob(x), x)
  mu, log_scale = tf.constant([0.3, -1.]), tf.constant([-0.2, 0.7])
  transformed = posterior.transform([tfb.Identity(), tfb.Exp()])
  np.testing.assert_allclose(
      transformed(mu, log_scale),
      posterior(mu, tf.exp(log_scale)) + log_scale, rtol=1e-5)
  batch = x[:2]
  np.testing.assert_allclose(
      transformed.log_prob_estimate(mu, log_scale, batch=batch),
      posterior.log_prob_estimate(
          mu, tf.exp(log_scale), batch=batch) + log_scale, rtol=1e-5)


@pytest.mark.slow
def test_kernels_and_posteriors_are_pickled():
  # (TFP's distributions that are made of others are not.)
  kernel = sgmcmc.SGHMC(
      logistic(log_prior_fn=standard_normal).transform(tfb.Exp()), 0.01, 1.,
      gradient_estimator=sgmcmc.gradients.Uniform(5))
  theta = tf.zeros([3])
  first, second = (
      k.one_step(theta, k.bootstrap_results(theta), seed=[0, 1])[0]
      for k in (kernel, pickle.loads(pickle.dumps(kernel))))
  np.testing.assert_array_equal(first, second)


def test_transform_of_vectors_that_change_size():
  """Probabilities on a simplex: a state of k - 1 numbers, event rank 1."""
  counts = np.array([0, 1, 1, 2, 2, 2], np.int32)
  posterior = sgmcmc.Posterior(
      tfd.Dirichlet([1., 2., 3.]).log_prob,
      lambda p, x: tf.gather(tf.math.log(p), x, axis=-1), counts)
  bijector = tfb.IteratedSigmoidCentered()
  phi = tf.constant([[0.1, -0.3], [1., 2.]])
  np.testing.assert_allclose(
      posterior.transform(bijector)(phi),
      posterior(bijector.forward(phi))
      + bijector.forward_log_det_jacobian(phi, 1), rtol=1e-5)


def test_data_is_no_constant_of_a_graph():
  x = np.random.default_rng(0).normal(size=[1000, 3]).astype(np.float32)
  posterior = logistic(data={'x': x, 'y': x[:, 0]})
  graph = tf.function(posterior).get_concrete_function(tf.zeros(3)).graph
  sizes = [
      op.get_attr('value').ByteSize()
      for op in graph.get_operations() if op.type == 'Const']
  assert max(sizes) < 1000


@pytest.mark.parametrize('arguments, message', [
    (dict(data={'x': X, 'y': Y[:5]}), r'different leading axes, \[11, 5\]'),
    (dict(data={'x': X[:0], 'y': Y[:0]}), 'The data are empty'),
    (dict(data={}), 'empty structure'),
    (dict(data={'x': X, 'y': np.float32(1.)}), 'leading axis of examples'),
    (dict(data=None), 'neither data nor num_examples'),
    (dict(num_examples=0), 'at least 1'),
    # One dry call on a draw of the prior:
    (dict(log_likelihood_fn=lambda theta, batch: tf.reduce_sum(
        logistic_likelihood(theta, batch), axis=-1)),
     r'returned shape \(\), and \(8,\) is needed'),
    (dict(log_likelihood_fn=lambda theta, batch: logistic_likelihood(
        theta, batch)[..., tf.newaxis] * tf.ones(2)),
     r'returned shape \(8, 2\), and \(8,\) is needed'),
    (dict(log_prior_fn=tfd.Normal(tf.zeros(3), 1.).log_prob),
     r'returned shape \(8,\), and \(3, 8\) is needed'),
    # The same on a given state:
    (dict(log_prior_fn=lambda theta: -theta**2, example_state=np.zeros(
        3, np.float32)), 'returned shape'),
    (dict(example_state=np.zeros(4, np.float32)), r'is \[float32\[4\]\]'),
    (dict(log_prior_fn=lambda theta: -tf.reduce_sum(theta**2, axis=-1),
          example_state=np.zeros(4, np.float32)), 'log_likelihood_fn raised'),
])
def test_mistakes_are_errors_at_construction(arguments, message):
  with pytest.raises(ValueError, match=message):
    logistic(**arguments)


def test_fewer_examples_than_rows_are_warned_of():
  with pytest.warns(UserWarning, match='the data have 11 rows: each .* 0.909'):
    assert logistic(num_examples=10).num_examples == 10


@pytest.mark.parametrize('arguments, message', [
    (dict(log_prior_fn=tfd.Normal(0., 1.)), 'has to be callable'),
    (dict(log_likelihood_fn=None), 'has to be callable'),
    (dict(num_examples=11.5), 'Python integer'),
    (dict(example_state=np.zeros(3, int)), 'dtype int64'),
])
def test_wrong_types(arguments, message):
  with pytest.raises(TypeError, match=message):
    logistic(**arguments)


def test_a_prior_of_single_chains_does_not_reject_functions_of_many():
  """The likelihood takes states with a chain axis only; that is fine."""
  posterior = sgmcmc.Posterior(
      tfd.Normal(0., 1.).log_prob,
      lambda mu, x: tfd.Normal(mu[:, tf.newaxis], 1.).log_prob(x), X[:, 0])
  assert posterior(tf.zeros([4])).shape == [4]


def test_more_mistakes():
  with pytest.raises(TypeError, match='not a tfp.bijectors.Bijector'):
    logistic().transform(tf.exp)
  with pytest.raises(ValueError, match='2 bijectors for a state of 1 part'):
    logistic().transform([tfb.Exp(), tfb.Exp()])(tf.zeros(3))
  with pytest.raises(ValueError, match='holds no data'):
    logistic(data=None, num_examples=11)(tf.zeros(3))
