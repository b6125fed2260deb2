"""Minibatches of one, exactly: ZZ-SS, its control variates and Local BPS.

Logistic regression with 40 examples and 3 coefficients, against 400,000
weighted draws: the means of theta, theta^2 and products, with standard errors
from independent chains. The p-value of their differences is below 1e-6 once in
a million.
"""

import functools

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from tests import families
from tests import oracle
from tests import references
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.pdmp import thinning

pdmp = sgmcmc.pdmp
PRIOR_SCALE = np.array([1., 2., 3.], np.float32)
NUM_CHAINS = 200


def data():
  rng = np.random.default_rng(3)
  x = rng.normal(size=[40, 3]) * [1., 1.5, 0.7]
  y = rng.uniform(size=40) < 1. / (1. + np.exp(-x @ [1., -0.5, 1.5]))
  return x.astype(np.float32), y.astype(np.float32)


def posterior(dtype=np.float32):
  return sgmcmc.Posterior(
      lambda theta: oracle.normal_log_prob(theta, 1., PRIOR_SCALE),
      families.logistic_log_likelihood,
      tuple(leaf.astype(dtype) for leaf in data()))


def second_order(theta):
  """theta and the products of its coordinates."""
  products = theta[..., :, tf.newaxis] * theta[..., tf.newaxis, :]
  rows, columns = np.triu_indices(3)
  return tf.concat(
      [theta, tf.stack([products[..., i, j] for i, j in zip(rows, columns)],
                       axis=-1)], axis=-1)


@functools.cache
def laplace():
  """The mode, and the covariance there."""
  return references.laplace(posterior(np.float64), 3)


@functools.cache
def law():
  """E of theta and its products, by 400,000 weighted draws; and 4,000 draws.

  Of a t law with 5 degrees of freedom about Laplace's approximation.
  """
  x, y = (leaf.astype(np.float64) for leaf in data())

  def log_prob(theta):
    logits = theta @ x.T
    return (logits @ y - np.logaddexp(0., logits).sum(axis=1)
            - np.sum(((theta - 1.) / PRIOR_SCALE)**2, axis=1) / 2.)

  draws, weights = references.weighted_draws(
      log_prob, *laplace(), 400_000, 5., 0)
  return weights @ second_order(draws).numpy(), tf.constant(
      np.random.default_rng(0).choice(draws, 4000, p=weights), tf.float32)


def anchor():
  return tf.constant(laplace()[0], tf.float32)


@functools.cache
def program(kernel_class, estimator, num_events):
  """Paths of chains in the law, as a function of where rates are cut off."""
  x, _ = data()
  kernel = kernel_class(
      posterior(), gradient_estimator=estimator,
      rate_bound=pdmp.LogisticRegressionBound(x, PRIOR_SCALE, prior_mean=1.))
  start = law()[1][:NUM_CHAINS]
  rate_ratios = thinning.rate_ratios

  @functools.partial(tf.function, jit_compile=True, autograph=False)
  def run(highest):
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(thinning, 'rate_ratios', lambda *arguments: tf.minimum(
          rate_ratios(*arguments), highest))
      return tfp.mcmc.sample_chain(
          num_events, start, kernel=kernel, trace_fn=pdmp.trace_path,
          seed=tf.constant([1, 2]))

  return run


def p_value(kernel_class, estimator, num_events, highest=np.inf):
  """From draws of the law on, so without burn-in."""
  truth, _ = law()
  trajectory = pdmp.Trajectory.from_chain(
      *program(kernel_class, estimator, num_events)(tf.constant(
          highest, tf.float32)))
  averages = trajectory.mean(second_order, num_nodes=2, by_chain=True)
  difference = averages.mean(axis=0) - truth
  covariance = np.cov(averages, rowvar=False) / len(averages)
  # Hotelling's; the error of the truth is a small part of it.
  d, n = len(difference), NUM_CHAINS
  statistic = difference @ np.linalg.solve(covariance, difference)
  errors = np.sqrt(np.diag(covariance))
  return scipy.stats.f.sf(
      statistic * (n - d) / (d * (n - 1)), d, n - d), errors


UNIFORM = sgmcmc.gradients.Uniform(1)


@pytest.mark.weekly_after(1)
@pytest.mark.slow
@pytest.mark.parametrize('kernel_class, make, num_events', [
    pytest.param(sgmcmc.ZigZagSampler, lambda: UNIFORM, 3000, id='ZZ-SS'),
    pytest.param(
        sgmcmc.ZigZagSampler,
        lambda: sgmcmc.gradients.ControlVariate(1, anchor()), 3000, id='ZZ-CV',
        marks=pytest.mark.slow),
    pytest.param(
        sgmcmc.BouncyParticleSampler, lambda: UNIFORM, 3000, id='Local BPS',
        marks=pytest.mark.slow),
    pytest.param(
        sgmcmc.BouncyParticleSampler, sgmcmc.gradients.Exact, 1000, id='BPS',
        marks=pytest.mark.slow)])
def test_law(kernel_class, make, num_events):
  p, errors = p_value(kernel_class, make(), num_events)
  assert p > oracle.FALSE_ALARM_RATE
  sd = np.std(law()[1], axis=0)
  assert np.all(errors[:3] < 0.1 * sd), 'The test sees too little.'


def test_rates_cut_off_are_seen():
  """Zig-zag with all rates cut off at 0.3 of the bound."""
  p, _ = p_value(sgmcmc.ZigZagSampler, UNIFORM, 3000, highest=0.3)
  assert p < oracle.FALSE_ALARM_RATE


@pytest.mark.parametrize('estimator', ['exact', 'uniform', 'anchor'])
@pytest.mark.parametrize('form', ['directional', 'coordinates'])
def test_bounds_hold_for_every_minibatch(estimator, form):
  """Against each example's own rate, at many states, velocities and times."""
  x, _ = data()
  target = posterior()
  bound = pdmp.LogisticRegressionBound(x, PRIOR_SCALE, prior_mean=1.)
  rng = np.random.default_rng(0)
  shape = [300, 40, 3]  # States, examples, coordinates.
  theta, v = (
      tf.constant(np.broadcast_to(a, shape), tf.float32)
      for a in rng.normal(size=[2, 300, 1, 3]))
  if form == 'coordinates':
    v = tf.sign(v)
  time = tf.constant(np.broadcast_to(
      rng.exponential(size=[300, 1]), [300, 40]), tf.float32)
  minibatch, gradients = UNIFORM, None
  if estimator == 'anchor':
    minibatch = sgmcmc.gradients.ControlVariate(1, anchor())
  results = minibatch.bootstrap_results(target, [theta])
  moved = [theta + time[..., tf.newaxis] * v]
  if estimator == 'exact':
    exact = sgmcmc.gradients.Exact()
    gradients, at_end = (
        exact.one_step(target, parts, results, [0, 0])[0].grads_target_log_prob
        for parts in ([theta], moved))
  else:
    indices = tf.broadcast_to(tf.range(40)[:, tf.newaxis], [300, 40, 1])
    at_end = minibatch.estimate(
        target, moved, results, indices).grads_target_log_prob
  rates = -v * at_end[0]
  rate = getattr(bound, form)(
      pdmp.SegmentStart(
          [theta], [v], gradients, results, 2, minibatch.anchor(results)))
  intercept, slope = (tf.nest.flatten(leaf)[0] for leaf in rate[:2])
  if form == 'directional':
    rates = tf.reduce_sum(rates, axis=-1)
  else:
    time = time[..., tf.newaxis]
  upper = intercept + slope * time
  # It holds, and it is not idly large: there are rates at a quarter of it.
  assert np.all(rates <= upper + 1e-4 * tf.abs(upper))
  assert np.max(rates / tf.maximum(upper, 1e-6)) > 0.25
