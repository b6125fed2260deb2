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
  """The last states and results, from far; XLA would compile for longer."""
  start = tf.zeros([num_chains, *model.shape], model.dtype)
  return run_from(kernel, start, kernel.bootstrap_results(start), num_steps)


def run_from(kernel, state, results, num_steps):
  def body(step, state, results, seed):
    state, results = kernel.one_step(state, results, seed=seed)
    return step + 1, state, results, sgmcmc.random.fold_in(seed, 0)

  return tf.function(lambda *start: tf.while_loop(
      lambda step, *_: step < num_steps, body, start)[1:3])(
          0, state, results, tf.constant([1, 2]))


def p_value(model, bound, **arguments):
  kernel = sgmcmc.FireflyMonteCarlo(model.posterior(), bound, **{
      **dict(step_size=0.2, capacity=4, resample_fraction=0.5), **arguments})
  states, results = run(kernel, model)
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


@pytest.mark.parametrize('law', LAWS)
def test_the_joint_law_of_theta_and_z(law):
  model, bound, arguments = LAWS[law]()
  assert p_value(model, bound, **arguments) > oracle.FALSE_ALARM_RATE


def without_q(log_r, was_bright, is_proposed, log_q, log_u):
  return firefly_resample(log_r, was_bright, is_proposed, 0. * log_q, log_u)


def without_bound(log_likelihood, log_bound):
  value, is_above = firefly_log_ratio(log_likelihood, log_bound)
  return tf.where(
      value > -np.inf, log_likelihood - log_bound, value), is_above


firefly_resample, firefly_log_ratio = firefly.resample, firefly.log_ratio
MUTANTS = {
    'q left out': dict(resample=without_q),
    'z kept': dict(resample=lambda log_r, was_bright, *_: was_bright),
    'L in place of L - B': dict(log_ratio=without_bound),
    'no Metropolis correction': dict(
        correction=lambda theta, *_: tf.zeros_like(theta)),
}


@pytest.mark.parametrize('name', [*MUTANTS, 'half the sum of the bounds'])
def test_planted_errors_in_the_kernel_are_seen(name, monkeypatch):
  model, bound, arguments = LAWS['logistic']()
  if name in MUTANTS:
    for function, mutant in MUTANTS[name].items():
      monkeypatch.setattr(firefly, function, mutant)
  else:
    monkeypatch.setattr(
        firefly.FireflyMonteCarlo, '_check_collapse', lambda *_: None)
    collapse = type(bound).collapse
    monkeypatch.setattr(
        type(bound), 'collapse', lambda self, data: (
            lambda theta: collapse(self, data)(theta) / 2.))
  assert p_value(model, bound, **arguments) < 1e-20


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
  state = start
  results = kernel.bootstrap_results(start, seed=fold_in(seed, 0))
  compiled_state, compiled_results = state, results
  compiled = tf.function(kernel.one_step)
  with pytest.raises(sgmcmc.FireflyError, match=reason) as eager:
    for k in range(1, step + 1):
      compiled_state, compiled_results = compiled(
          compiled_state, compiled_results, seed=fold_in(seed, k))
      state, results = kernel.one_step(
          state, results, seed=fold_in(seed, k))
  assert eager.value.step == step and k == step
  compiled_state, compiled_results = compiled(
      compiled_state, compiled_results, seed=fold_in(seed, k + 1))
  failed = compiled_results.failed.numpy()
  assert failed.sum() == 1
  np.testing.assert_array_equal(np.isnan(compiled_state[:, 0]), failed)
  failure = compiled_results.failure(compiled_state)
  message = f'{failure.reason}. {failure.advice}'
  assert f'in chain {np.argmax(failed)}' in message
  return compiled_results, message


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
  kernel = sgmcmc.FireflyMonteCarlo(model.posterior(), bound, 0.1, 40)
  with pytest.raises(ValueError, match='above its likelihood'):
    kernel.bootstrap_results(tf.ones([1]))


class WrongSum(bounds.Logistic):

  def collapse(self, data):
    total = super().collapse(data)
    return lambda theta: total(theta) * 0.9


def test_a_wrong_sum_is_seen_at_the_first_state():
  model = families.Logistic(num=40)
  kernel = sgmcmc.FireflyMonteCarlo(model.posterior(), WrongSum(), 0.1, 40)
  with pytest.raises(ValueError, match='not the sum'):
    kernel.bootstrap_results(tf.ones([1]))


def make_kernel(family='logistic', dtype=np.float32, **arguments):
  model = families.FAMILIES[family](num=30, dim=2, scale=1., dtype=dtype)
  return sgmcmc.FireflyMonteCarlo(model.posterior(), model.bound(), **{
      **dict(step_size=0.05, capacity=30, resample_fraction=0.2),
      **arguments}), model


@pytest.mark.parametrize('family, dtype, chains, arguments', [
    ('logistic', np.float32, (2, 3), {}),
    ('softmax', np.float64, (), dict(
        proposal='random_walk', step_size=1e-4)),
])
def test_same_chain_eager_graph_and_xla(family, dtype, chains, arguments):
  kernel, model = make_kernel(family, dtype, **arguments)
  state = tf.zeros([*chains, *model.shape], dtype)
  results = kernel.bootstrap_results(state)
  rtol = 1e-10 if dtype == np.float64 else 1e-4

  def steps(one_step):
    position = state, results
    for k in range(4):
      position = one_step(*position, seed=tf.constant([1, k]))
    return position

  eager = steps(kernel.one_step)
  for jit_compile in (False, True):
    tf.nest.map_structure(functools.partial(
        np.testing.assert_allclose, rtol=rtol, atol=rtol), eager,
        steps(tf.function(kernel.one_step, jit_compile=jit_compile)))
  assert eager[0].dtype == dtype and np.all(eager[0] != 0.)


def test_results():
  """The list of bright examples is z's; each likelihood is counted."""
  kernel, model = make_kernel(resample_fraction=1.)
  state = tf.zeros([50, 2])
  results = kernel.bootstrap_results(state)
  np.testing.assert_array_equal(
      results.gradient_estimator_results.num_gradients, 60)
  for k in range(8):
    before = results
    state, results = kernel.one_step(state, results, seed=tf.constant([k, 1]))
    # All that are dark, all that were bright, and those that are.
    np.testing.assert_array_equal(
        results.gradient_estimator_results.num_gradients
        - before.gradient_estimator_results.num_gradients,
        30 + results.num_bright)
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


def test_sample_chain_and_sample(recwarn):
  kernel, _ = make_kernel()
  state = tf.zeros([5, 2])
  draws = tfp.mcmc.sample_chain(
      4, state, kernel=kernel, trace_fn=None, seed=tf.constant([1, 2]))
  assert draws.shape == [4, 5, 2] and np.all(np.isfinite(draws))
  assert not [w for w in recwarn if 'calibrated' in str(w.message)]
  sample = functools.partial(
      sgmcmc.sample, kernel, seed=1, progress_bar=False, jit_compile=False,
      trace_fn=lambda _, results: results.is_accepted)
  whole, part = sample(10, state), sample(4, state)
  rest = sample(
      6, part.final_state, previous_kernel_results=part.kernel_results)
  np.testing.assert_array_equal(
      whole.states, np.concatenate([part.states, rest.states]))
  changed = np.any(whole.states[1:] != whole.states[:-1], axis=-1)
  np.testing.assert_array_equal(changed, whole.trace[1:])


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
  values = firefly._binomial_distribution_function(n, q)
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
        lambda theta: -theta**2, lambda theta, x: x, np.ones(3), 9)),
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
