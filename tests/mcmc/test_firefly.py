"""Firefly Monte Carlo against exact laws, the joint one of (theta, z) too."""

import functools
import itertools

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from tests import families
from tests import oracle
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.firefly import bright_sets
from tfp_sgmcmc.firefly import kernel as firefly

bounds = sgmcmc.likelihood_bounds
tfd = tfp.distributions


def grid(shape, num):
  axis = (np.arange(num) + 0.5) / num * 10. - 5.  # The prior is N(0, 1).
  d = int(np.prod(shape))
  return np.stack(np.meshgrid(*[axis] * d), axis=-1).reshape([-1, *shape])


def joint_law_p_value(model, bound, states, z, num_bins=6):
  """P-value of independent (theta, z): first coordinate by bins, and z."""
  num = {1: 20_000, 3: 50}[int(np.prod(model.shape))]
  theta = grid(model.shape, num)
  log_likelihood = model.exact()(theta)
  log_bound = bound.log_bound(
      tf.constant(theta), batch=(model.x.astype(float), model.y)).numpy()
  log_prior = -np.sum(theta.reshape([len(theta), -1])**2, axis=-1) / 2.
  first = theta.reshape([len(theta), -1])[:, 0]
  weight = np.exp(log_prior + log_likelihood.sum(-1))
  values, inverse = np.unique(first, return_inverse=True)
  cumulative = np.cumsum(np.bincount(inverse, weight)) / weight.sum()
  # Edges half way between grid points, where both laws are cut alike.
  cuts = np.searchsorted(cumulative, np.arange(1, num_bins) / num_bins)
  edges = (values[cuts] + values[cuts + 1]) / 2.
  dark = np.exp(log_bound - log_likelihood)
  expected, observed = [], []
  rows = np.asarray(states, float).reshape([len(states), -1])[:, 0]
  for bright in itertools.product([0, 1], repeat=z.shape[-1]):
    bright = np.array(bright)
    mass = weight * np.prod(np.where(bright, 1. - dark, dark), axis=-1)
    expected.append(np.bincount(
        np.searchsorted(edges, first), mass, minlength=num_bins))
    here = np.all(np.asarray(z) == bright, axis=-1)
    observed.append(np.bincount(
        np.searchsorted(edges, rows[here]), minlength=num_bins))
  expected = np.concatenate(expected) / weight.sum() * len(rows)
  observed = np.concatenate(observed)
  if np.any(~np.isfinite(rows)):
    return 0.
  rare = expected < 5.
  expected = np.append(expected[~rare], expected[rare].sum() + 1e-9)
  observed = np.append(observed[~rare], observed[rare].sum())
  statistic = np.sum((observed - expected)**2 / np.maximum(expected, 1e-9))
  return scipy.stats.chi2.sf(statistic, len(expected) - 1)


def run(kernel, model, num_chains=8_000, num_steps=40):
  """The last states and results, from far; XLA would compile for longer.

  A step is a graph; the first results are made eagerly, once.
  """
  state = tf.zeros([num_chains, *model.shape], model.dtype)
  results = kernel.bootstrap_results(state)
  one_step = tf.function(kernel.one_step, autograph=False)
  seed = tf.constant([1, 2])
  for _ in range(num_steps):
    seed = sgmcmc.random.fold_in(seed, 0)
    state, results = one_step(state, results, seed=seed)
  return state, results


def make(model, bound, **arguments):
  return sgmcmc.FireflyMonteCarlo(model.posterior(), bound, **{
      **dict(step_size=0.2, capacity=4, resample_fraction=0.5), **arguments})


def p_value(model, bound, states, results):
  assert not np.any(results.failed)
  return joint_law_p_value(model, bound, states, results.z)


LAWS = {
    'logistic': lambda: (families.Logistic(), bounds.Logistic(xi=3.), {}),
    'logistic at a state': lambda: (
        families.Logistic(dtype=np.float64), bounds.Logistic(anchor=[0.7]),
        dict(proposal='random_walk', resample_fraction=1.)),
    'softmax': lambda: (
        families.Softmax(scale=1.), bounds.Softmax(3, anchor=[[1., -1., 0.]]),
        dict(step_size=0.5)),
    'robust': lambda: (
        families.Robust(), bounds.StudentT(3., 0.7, anchor=[0.9]),
        dict(step_size=0.05)),
}


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('law', [
    'logistic at a state', pytest.param('softmax', marks=pytest.mark.slow),
    pytest.param('robust', marks=pytest.mark.slow)])
def test_the_joint_law_of_theta_and_z(law):
  model, bound, arguments = LAWS[law]()
  states, results = run(make(model, bound, **arguments), model)
  assert p_value(model, bound, states, results) > oracle.FALSE_ALARM_RATE


# Errors in the kernel, each planted as a number that a right one has as well,
# so that they are arguments of one program.
RIGHT = dict(
    power_of_q=1.,
    is_z_kept=0.,
    share_of_l=0.,  # Of L in place of L - B.
    power_of_correction=1.,
    bound_sums=1.)


def plant(patch, numbers):
  """Puts the numbers, by name in a dict, where the kernel computes."""
  resample, log_ratio = firefly.resample, firefly.log_ratio
  correction, collapse = firefly.correction, bounds.Logistic.collapse

  def with_resample(log_r, was_bright, is_proposed, log_q, log_u):
    is_bright = resample(
        log_r, was_bright, is_proposed, numbers['power_of_q'] * log_q, log_u)
    return tf.where(numbers['is_z_kept'] > 0., was_bright, is_bright)

  def with_log_ratio(log_likelihood, log_bound):
    value, is_above = log_ratio(log_likelihood, log_bound)
    is_positive = value > -np.inf
    change = log_likelihood - log_bound - tf.where(is_positive, value, 0.)
    return tf.where(
        is_positive, value + numbers['share_of_l'] * change, value), is_above

  patch.setattr(firefly, 'resample', with_resample)
  patch.setattr(firefly, 'log_ratio', with_log_ratio)
  patch.setattr(firefly, 'correction', lambda *arguments: (
      numbers['power_of_correction'] * correction(*arguments)))
  patch.setattr(
      firefly.FireflyMonteCarlo, '_check_collapse', lambda *_: None)
  patch.setattr(bounds.Logistic, 'collapse', lambda self, data: (
      lambda theta: numbers['bound_sums'] * collapse(self, data)(theta)))


@functools.cache
def chains_with_errors(jit_compile=False):
  """Chains of the first law, traced once for all errors."""
  model, bound, _ = LAWS['logistic']()
  traced = {}
  with pytest.MonkeyPatch.context() as patch:
    plant(patch, traced)
    kernel = make(model, bound)

    def make_kernel(**numbers):
      traced.update({
          name: tf.cast(number, model.dtype)
          for name, number in numbers.items()})
      return kernel

    chains = functools.partial(
        oracle.compile_chains(make_kernel, jit_compile=jit_compile),
        tf.zeros([8_000, *model.shape]))
    chains(0, **RIGHT)
  return lambda **errors: p_value(
      model, bound, *chains(40, **{**RIGHT, **errors}))


@pytest.mark.weekly_after(1)
@pytest.mark.slow
@pytest.mark.parametrize('jit_compile', [False, True])
def test_the_joint_law_with_no_error_planted(jit_compile):
  """The first law, in the program of the planted errors."""
  assert chains_with_errors(jit_compile)() > oracle.FALSE_ALARM_RATE


@pytest.mark.slow
@pytest.mark.weekly_after(2)
@pytest.mark.parametrize('error', [
    dict(power_of_q=0.), dict(is_z_kept=1.), dict(share_of_l=1.),
    dict(power_of_correction=0.), dict(bound_sums=0.5)], ids=str)
def test_planted_errors_in_the_kernel_are_seen(error):
  assert chains_with_errors()(**error) < 1e-20


@pytest.mark.weekly
@pytest.mark.slow
def test_few_bright_examples_give_the_posterior():
  """Two coefficients, 300 examples, against quadrature."""
  model = families.Logistic(num=300, dim=2, scale=1.)

  def log_density(theta):
    return model.exact()(theta).sum(-1) - np.sum(theta**2, axis=-1) / 2.

  mode = scipy.optimize.minimize(
      lambda theta: -log_density(theta[np.newaxis])[0], np.zeros(2)).x
  kernel = sgmcmc.FireflyMonteCarlo(
      model.posterior(), bounds.Logistic(anchor=mode), step_size=0.01,
      capacity=30, resample_fraction=0.02)
  states, results = run(kernel, model, num_chains=3000, num_steps=40)
  assert np.max(results.num_bright) < 30
  assert 0.3 < np.mean(results.is_accepted) < 0.999
  theta = mode + grid((2,), 200) / 5.
  weight = np.exp(log_density(theta) - log_density(mode[np.newaxis]))
  num_bins = 6
  edges = []
  for k in range(2):
    values, inverse = np.unique(theta[:, k], return_inverse=True)
    cumulative = np.cumsum(np.bincount(inverse, weight)) / weight.sum()
    cuts = np.searchsorted(cumulative, np.arange(1, num_bins) / num_bins)
    edges.append((values[cuts] + values[cuts + 1]) / 2.)

  def cells(points):
    rows = [np.searchsorted(edges[k], points[:, k]) for k in range(2)]
    return rows[0] * num_bins + rows[1]

  expected = np.bincount(cells(theta), weight, minlength=num_bins**2)
  expected *= len(states) / expected.sum()
  observed = np.bincount(cells(states.numpy()), minlength=num_bins**2)
  statistic = np.sum((observed - expected)**2 / expected)
  assert scipy.stats.chi2.sf(
      statistic, num_bins**2 - 1) > oracle.FALSE_ALARM_RATE


class Late(sgmcmc.likelihood_bounds.LikelihoodBound):
  """Logistic bounds; that of example 7 too high where theta > `where`."""

  def __init__(self, where, **arguments):
    self._bound, self._where = bounds.Logistic(**arguments), where

  def log_bound(self, theta, batch):
    x, y, number = batch
    log_bound = self._bound.log_bound(theta, batch=(x, y))
    wrong = (theta[..., :1] > self._where) & (number == 7)
    return tf.where(wrong, 0.01, log_bound)

  def collapse(self, data):
    return self._bound.collapse(data[:2])


def late_kernel(where, **arguments):
  model = families.Logistic(num=40)
  posterior = sgmcmc.Posterior(
      lambda theta: tf.reduce_sum(-theta**2 / 2., axis=-1),
      lambda theta, batch: model.likelihood(theta, batch[:2]),
      (model.x, model.y, np.arange(40)))
  return sgmcmc.FireflyMonteCarlo(
      posterior, Late(where, xi=3.),
      **dict(dict(step_size=0.05, capacity=40), **arguments))


def one_failure(kernel, start, num_draws, reason):
  """All drivers tell of the same failure, at the same step."""
  with pytest.raises(sgmcmc.FireflyError, match=reason) as error:
    sgmcmc.sample(
        kernel, num_draws, start, seed=3, progress_bar=False,
        jit_compile=False,
        trace_fn=lambda _, results: (results.num_bright, results.failed))
  step, result = error.value.step, error.value.result
  assert f'At step {step:,} (of {num_draws:,}) ' in str(error.value)
  assert 1 < step < num_draws and len(result) == step - 1
  assert np.all(np.isfinite(result.states))
  num_bright, failed = result.trace
  assert not np.any(failed)
  assert np.all(num_bright <= kernel.parameters['capacity'])

  seed = tf.constant([0, 3])
  fold_in = sgmcmc.random.fold_in
  state, results = result.final_state, result.kernel_results
  assert results.step == step - 1
  with pytest.raises(sgmcmc.FireflyError, match=reason) as eager:
    kernel.one_step(state, results, seed=fold_in(seed, step))
  assert eager.value.step == step
  one_step = tf.function(kernel.one_step)
  state, results = one_step(state, results, seed=fold_in(seed, step))
  failed = results.failed.numpy()
  assert failed.sum() == 1
  np.testing.assert_array_equal(np.isnan(state[:, 0]), failed)
  # It stays so; others may fail too.
  after, _ = one_step(state, results, seed=fold_in(seed, step + 1))
  assert np.all(np.isnan(after[:, 0])[failed])
  failure = results.failure(state)
  message = f'{failure.reason}. {failure.advice}'
  assert f'in chain {np.argmax(failed)}' in message
  return results, message


@pytest.mark.slow
def test_more_bright_examples_than_capacity():
  model = families.Logistic(num=40)
  kernel = sgmcmc.FireflyMonteCarlo(
      model.posterior(), bounds.Logistic(anchor=[-0.9]), step_size=0.01,
      capacity=6)
  results, message = one_failure(
      kernel, tf.fill([3, 1], -0.9), 5000, 'more than capacity=6')
  assert results.num_bright[tf.argmax(results.failed)] > 6
  assert 'larger capacity' in message and 'likelihood_fn' not in message
  with pytest.raises(ValueError, match='At the first state .*capacity=6'):
    kernel.bootstrap_results(tf.fill([3, 1], 5.))


@pytest.mark.slow
def test_a_bound_above_the_likelihood_names_the_example():
  kernel = late_kernel(where=-0.2)
  results, message = one_failure(
      kernel, tf.fill([3, 1], -0.9), 5000, 'bound of example 7 ')
  assert sorted(results.violation.numpy()) == [-1, -1, 7]
  assert 'log_likelihood_fn' in message and 'larger capacity' not in message
  with pytest.raises(ValueError, match='At the first state .* example 7 '):
    kernel.bootstrap_results(tf.fill([3, 1], 0.5))
  with pytest.raises(ValueError, match='example 7 .* likelihood. Look'):
    kernel.bootstrap_results(tf.fill([1], 0.5))


def test_wrong_features_are_seen_at_the_first_state():
  model = families.Logistic(num=40)
  bound = bounds.Logistic(
      features_fn=lambda batch: (batch[0], 1. - batch[1]), anchor=[1.])
  kernel = sgmcmc.FireflyMonteCarlo(model.posterior(), bound, 0.1, capacity=40)
  with pytest.raises(ValueError, match='above its likelihood'):
    kernel.bootstrap_results(tf.ones([1]))


class WrongSum(bounds.Logistic):

  def collapse(self, data):
    total = super().collapse(data)
    return lambda theta: total(theta) * 0.9


def test_a_wrong_sum_is_seen_at_the_first_state():
  model = families.Logistic(num=40)
  kernel = sgmcmc.FireflyMonteCarlo(
      model.posterior(), WrongSum(), 0.1, capacity=40)
  with pytest.raises(ValueError, match='not the sum'):
    kernel.bootstrap_results(tf.ones([1]))


def make_kernel(family='logistic', dtype=np.float32, **arguments):
  model = families.FAMILIES[family](num=30, dim=2, scale=1., dtype=dtype)
  return sgmcmc.FireflyMonteCarlo(model.posterior(), model.bound(), **{
      **dict(step_size=0.05, capacity=30, resample_fraction=0.2),
      **arguments}), model


def test_results():
  """The list of bright examples is z's; each likelihood is counted."""
  kernel, model = make_kernel(resample_fraction=1.)
  state = tf.zeros([50, 2])
  results = kernel.bootstrap_results(state)
  np.testing.assert_array_equal(
      results.gradient_estimator_results.num_gradients, 60)
  for k in range(8):
    before, old = results, state
    state, results = kernel.one_step(state, results, seed=tf.constant([k, 1]))
    # All that are dark, all that were bright, and those that are.
    np.testing.assert_array_equal(
        results.gradient_estimator_results.num_gradients
        - before.gradient_estimator_results.num_gradients,
        30 + results.num_bright)
    np.testing.assert_array_equal(
        np.any(state != old, axis=-1), results.is_accepted)
  for chain in range(50):
    num = results.num_bright[chain]
    np.testing.assert_array_equal(
        np.sort(results.bright_indices[chain, :num]),
        np.flatnonzero(results.z[chain]))
  log_likelihood = model.exact()(state.numpy().astype(float))
  log_bound = model.bound().log_bound(
      state, batch=(model.x, model.y)).numpy()
  excess = log_likelihood - log_bound
  joint = (np.sum(np.where(results.z, np.log(np.expm1(excess)), 0.), axis=-1)
           + log_bound.sum(-1) - np.sum(state**2, axis=-1) / 2.)
  difference = results.target_log_prob - joint
  np.testing.assert_allclose(difference, difference[0], atol=1e-4)
  assert int(results.step) == 8 and kernel.is_calibrated


def test_bytes_of_results():
  """N + 4 capacity bytes a chain, and little else."""
  kernel, _ = make_kernel(capacity=20)
  results = kernel.bootstrap_results(tf.zeros([7, 2]))
  size = sum(t.numpy().nbytes for t in tf.nest.flatten(results))
  assert size <= 7 * (30 + 4 * 20 + 32) + 8


def test_step_sizes():
  """A schedule, and a size for each chain and coordinate."""
  kernel, _ = make_kernel(
      proposal='random_walk', resample_fraction=0.1,
      step_size=lambda step: tf.where(
          step < 1, 1e-12, [[[1e-4, 1e-3]], [[1e-2, 1e-4]]]))
  state = tf.zeros([2, 500, 2])
  first, results = kernel.one_step(
      state, kernel.bootstrap_results(state), seed=tf.constant([1, 2]))
  assert 0. < np.abs(first).max() < 1e-4
  second, results = kernel.one_step(first, results, seed=tf.constant([1, 3]))
  moves = (second - first)[results.is_accepted]
  assert np.mean(results.is_accepted) > 0.5
  for k, sizes in enumerate([[1e-4, 1e-3], [1e-2, 1e-4]]):
    moves = (second - first)[k][results.is_accepted[k]]
    np.testing.assert_allclose(
        np.mean(moves**2, axis=0), np.multiply(2., sizes), rtol=0.4)


@pytest.mark.parametrize('n, q', [(1, 0.5), (30, 0.2), (10**6, 1e-3)])
def test_the_number_of_proposals_is_binomial(n, q):
  values = bright_sets.binomial_distribution_function(n, q)
  np.testing.assert_allclose(
      values, scipy.stats.binom.cdf(np.arange(len(values)), n, q), atol=1e-12)
  assert scipy.stats.binom.sf(len(values), n, q) < 1e-15


@pytest.mark.parametrize('change, error, message', [
    (dict(step_size=0.), ValueError, 'step_size is 0'),
    (dict(capacity=0), ValueError, 'capacity is 0'),
    (dict(capacity=2.5), TypeError, 'capacity is 2.5'),
    (dict(resample_fraction=0.), ValueError, 'resample_fraction is 0'),
    (dict(resample_fraction=1.5), ValueError, 'at most 1'),
    (dict(proposal='hmc'), ValueError, "'langevin', 'random_walk'"),
    (dict(likelihood_bound=None), TypeError, 'LikelihoodBound'),
    (dict(likelihood_bound=bounds.Logistic(anchor=[1.])), ValueError,
     r'anchor has shape \[1\]'),
    (dict(likelihood_bound=bounds.Softmax(3)), ValueError,
     r'has to end in \[2, 3\]'),
    (dict(target_log_prob_fn=lambda theta: -theta**2), TypeError,
     'needs a Posterior'),
    (dict(target_log_prob_fn=sgmcmc.Posterior(
        lambda theta: -theta**2, lambda theta, x: x, num_examples=9)),
     ValueError, 'model.fit'),
    (dict(target_log_prob_fn=sgmcmc.Posterior(
        lambda theta: -theta**2, lambda theta, x: x, np.ones(3),
        num_examples=9)),
     ValueError, 'num_examples=9'),
])
def test_refused(change, error, message):
  with pytest.raises(error, match=message):
    kernel, _ = make_kernel()
    kernel.copy(**change).bootstrap_results(tf.zeros([4, 2]))


def test_refused_in_fit():
  import keras
  model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
  model.compile('sgd', keras.losses.BinaryCrossentropy(from_logits=True))
  with pytest.raises(Exception, match='model.fit'):
    model.fit(np.ones([4, 2]), np.ones([4, 1]), verbose=0, callbacks=[
        sgmcmc.keras.PosteriorSampling(
            functools.partial(
                sgmcmc.FireflyMonteCarlo, likelihood_bound=bounds.Logistic(),
                step_size=0.1, capacity=4),
            num_examples=4, prior=tfd.Normal(0., 1.), num_burnin_steps=0,
            num_steps_between_results=0)])
