"""Estimators: unbiased, with the variance that they say, and their refusals."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.gradients import moments
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions

NUM_CHAINS = 200_000
DATA = np.random.default_rng(2).normal(size=[9, 2])
Z = moments.Z
as_array = moments.as_array


def poisson_regression():
  """Two parts, gradients that differ from example to example.

  Densities up to constants: TFP's distributions take long to trace.
  """
  x, y = DATA.astype(np.float32), np.arange(9, dtype=np.float32) % 3

  def log_likelihood(slope, intercept, batch):
    x, y = batch
    rate = tf.einsum(
        '...nd,...d->...n', x, slope) + intercept[..., tf.newaxis]
    return y * rate - tf.exp(rate)

  return sgmcmc.Posterior(
      lambda slope, intercept: -0.5 * (
          tf.reduce_sum(slope**2, axis=-1) + (intercept / 5.)**2),
      log_likelihood, (x, y))


def state(chains=()):
  return [tf.broadcast_to(tf.constant([0.3, -0.5]), [*chains, 2]),
          tf.broadcast_to(tf.constant(0.2), chains)]


def estimates(estimator, posterior, chains=(NUM_CHAINS,), seed=(5, 6)):
  parts = state(chains)
  estimate, _ = estimator.one_step(
      posterior, parts, estimator.bootstrap_results(posterior, parts),
      seed=tf.constant(seed))
  return estimate


@pytest.mark.weekly_after(2)
@pytest.mark.parametrize('estimator', [
    sgmcmc.gradients.Uniform(1),
    sgmcmc.gradients.Uniform(4),
    sgmcmc.gradients.Uniform(9),
    sgmcmc.gradients.Uniform(1, replacement=True),
    sgmcmc.gradients.Uniform(12, replacement=True),
], ids=repr)
def test_uniform_is_unbiased_with_the_variance_it_says(estimator):
  assert moments.are_as_said(estimator, poisson_regression(), state())


def test_data_that_stand_for_more_examples():
  """M = 9 rows for N = 90: batches are of the rows, the scale is N / n."""
  small = poisson_regression()
  posterior = sgmcmc.Posterior(
      small.log_prior,
      lambda *args: small.log_likelihood(*args[:-1], batch=args[-1]),
      small.data, num_examples=90)
  estimator = sgmcmc.gradients.Uniform(4)
  wanted = as_array(estimates(
      sgmcmc.gradients.Exact(), posterior, (1,)).grads_target_log_prob, 1)[0]
  variance = as_array(estimator.variance(posterior, state()), 1)[0]
  np.testing.assert_allclose(
      variance, 100. * as_array(estimator.variance(small, state()), 1)[0],
      rtol=1e-5)
  gradients = as_array(
      estimates(estimator, posterior).grads_target_log_prob, NUM_CHAINS)
  assert np.all(np.abs(gradients.mean(axis=0) - wanted) < (
      Z * np.sqrt(variance / NUM_CHAINS)))
  np.testing.assert_allclose(gradients.var(axis=0), variance, rtol=0.03)
  with pytest.raises(ValueError, match='only 9 examples'):
    sgmcmc.gradients.Uniform(10).check_target(posterior)


def test_variance_needs_the_population_factor():
  """The power of the test above: 1 - n/N left out is far outside."""
  posterior = poisson_regression()
  without = sgmcmc.gradients.Uniform(4).variance(posterior, state())[0]
  wrong = sgmcmc.gradients.Uniform(4, replacement=True).variance(
      posterior, state())[0]
  assert np.all(wrong / without > 1.5)


def test_chains_have_minibatches_of_their_own_unless_shared():
  posterior = poisson_regression()
  own = estimates(sgmcmc.gradients.Uniform(3), posterior, chains=(40,))
  shared = estimates(
      sgmcmc.gradients.Uniform(3, share_minibatch=True), posterior,
      chains=(40,))
  assert len(np.unique(own.target_log_prob)) > 30
  assert np.ptp(shared.target_log_prob) < 1e-5


def test_a_new_minibatch_for_each_seed_and_the_same_for_the_same():
  posterior = poisson_regression()
  one, again, other = (
      estimates(sgmcmc.gradients.Uniform(3), posterior, (100,), seed)
      for seed in ((0, 1), (0, 1), (0, 2)))
  np.testing.assert_array_equal(one.target_log_prob, again.target_log_prob)
  assert np.mean(
      one.target_log_prob.numpy() != other.target_log_prob.numpy()) > 0.9


def test_noisy():
  scale, posterior = 3., poisson_regression()
  exact = estimates(sgmcmc.gradients.Exact(), posterior, chains=(1,))
  for base in (None, sgmcmc.gradients.Uniform(4)):
    estimator = sgmcmc.gradients.GaussianNoise(scale, base)
    gradients = as_array(
        estimates(estimator, posterior).grads_target_log_prob, NUM_CHAINS)
    variance = scale**2
    if base is not None:
      variance += as_array(base.variance(posterior, state()), 1)[0]
    error = gradients.mean(axis=0) - as_array(
        exact.grads_target_log_prob, 1)[0]
    assert np.all(np.abs(error) < Z * np.sqrt(variance / NUM_CHAINS))
    # Sub-Gaussian up to the minibatch's kurtosis: twice the normal error.
    np.testing.assert_allclose(
        gradients.var(axis=0), variance,
        rtol=2. * Z * np.sqrt(2. / NUM_CHAINS))


@pytest.mark.parametrize('in_graph', [False, True])
def test_stream(in_graph):
  """An epoch of batches averages to the exact gradient, each seen once."""
  posterior = poisson_regression()
  exact = estimates(sgmcmc.gradients.Exact(), posterior, chains=())
  dataset = tf.data.Dataset.from_tensor_slices(posterior.data).shuffle(
      9, seed=1).batch(3)
  estimator = sgmcmc.gradients.Stream(dataset)
  streamed = sgmcmc.Posterior(
      posterior.log_prior,
      lambda *args: posterior.log_likelihood(*args[:-1], batch=args[-1]),
      num_examples=9)

  def step():
    return estimator.one_step(
        streamed, state(), estimator.bootstrap_results(streamed, state()),
        seed=[0, 0])[0].grads_target_log_prob
  step = tf.function(step) if in_graph else step
  gradients = [as_array(step(), 1) for _ in range(6)]
  for epoch in (gradients[:3], gradients[3:]):
    np.testing.assert_allclose(
        np.mean(epoch, axis=0), as_array(exact.grads_target_log_prob, 1),
        rtol=1e-4)
  assert not np.allclose(gradients[0], gradients[3])


def test_stream_says_that_xla_cannot_compile_it():
  dataset = tf.data.Dataset.from_tensor_slices(DATA.astype('float32')).batch(3)
  posterior = sgmcmc.Posterior(
      lambda mu: -tf.reduce_sum(mu**2),
      lambda mu, x: -tf.reduce_sum((x - mu)**2, axis=-1), num_examples=9)
  kernel = sgmcmc.SGLD(
      posterior, 0.01, gradient_estimator=sgmcmc.gradients.Stream(dataset))

  @tf.function(jit_compile=True)
  def run():
    return tfp.mcmc.sample_chain(
        3, tf.zeros(2), kernel=kernel, trace_fn=None, seed=[0, 0])
  with pytest.raises(ValueError, match='XLA cannot compile'):
    run()


@pytest.mark.parametrize('make, error, message', [
    (lambda: sgmcmc.gradients.Uniform(0), ValueError, 'at least 1'),
    (lambda: sgmcmc.gradients.Uniform(-3), ValueError, 'at least 1'),
    (lambda: sgmcmc.gradients.Uniform(2.5), TypeError, 'Python integer'),
    (lambda: sgmcmc.gradients.GaussianNoise(-1.), ValueError, 'at least 0'),
    (lambda: sgmcmc.gradients.GaussianNoise(np.nan), ValueError, 'finite'),
    (lambda: sgmcmc.gradients.GaussianNoise(1., base='x'), TypeError,
     'base is'),
    (lambda: sgmcmc.gradients.Stream(DATA), TypeError, 'tf.data.Dataset'),
    (lambda: sgmcmc.gradients.Stream(
        tf.data.Dataset.from_tensor_slices(DATA[:, 0])), ValueError,
     'dataset.batch'),
    (lambda: sgmcmc.gradients.Stream(
        tf.data.Dataset.from_tensor_slices(DATA).batch(2).take(0)),
     ValueError, 'empty'),
    (lambda: sgmcmc.SGLD(
        poisson_regression(), 0.1,
        gradient_estimator=sgmcmc.gradients.Uniform(10)), ValueError,
     'batch_size is 10, and there are only 9 examples'),
    (lambda: sgmcmc.SGLD(
        tfd.Normal(0., 1.).log_prob, 0.1,
        gradient_estimator=sgmcmc.gradients.Uniform(10)), TypeError,
     'posterior.transform'),
    (lambda: sgmcmc.SGLD(
        poisson_regression(), 0.1, gradient_estimator=100), TypeError,
     'gradients.Uniform'),
    (lambda: sgmcmc.SGLD(
        sgmcmc.Posterior(abs, abs, num_examples=3), 0.1,
        gradient_estimator=sgmcmc.gradients.Uniform(1)), ValueError,
     'gradients.Stream'),
    (lambda: sgmcmc.gradients.Uniform(2).variance(
        poisson_regression(), state([3])), ValueError, 'single chain'),
])
def test_refusals(make, error, message):
  with pytest.raises(error, match=message):
    make()


def test_gradients_of_single_examples_are_counted():
  posterior = poisson_regression()
  stream = sgmcmc.gradients.Stream(
      tf.data.Dataset.from_tensor_slices(posterior.data).batch(5))
  for estimator, counts in (
      (sgmcmc.gradients.Exact(), [9, 18]),
      (sgmcmc.gradients.Uniform(4), [4, 8]),
      (sgmcmc.gradients.GaussianNoise(1., sgmcmc.gradients.Uniform(3)), [3, 6]),
      (stream, [5, 9])):
    parts = state([7])
    results = estimator.bootstrap_results(posterior, parts)
    for count in counts:
      _, results = estimator.one_step(posterior, parts, results, seed=[1, 2])
      np.testing.assert_array_equal(results.num_gradients, [count] * 7)


def test_variance_of_a_table_that_is_taken_in_blocks():
  """1,203 rows: in two blocks, and a part of one."""
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=[2, 1203])
  posterior = sgmcmc.Posterior(
      lambda slope, offset: -slope**2 - offset**2,
      lambda slope, offset, batch: -0.5 * (
          batch[1] - slope[..., tf.newaxis] * batch[0]
          - offset[..., tf.newaxis])**2, (x, y))
  found = sgmcmc.gradients.Uniform(7, replacement=True).variance(
      posterior, [tf.constant(0.3, tf.float64), tf.constant(-0.1, tf.float64)])
  residual = y - 0.3 * x + 0.1
  np.testing.assert_allclose(
      found, 1203**2 / 7 * np.var([residual * x, residual], axis=1))
