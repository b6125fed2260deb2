"""The continuous-time kernels in company: modes, chains, drivers, refusals."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.pdmp import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.pdmp import base

pdmp = sgmcmc.pdmp
BPS, ZIG_ZAG = sgmcmc.BouncyParticleSampler, sgmcmc.ZigZagSampler


def make(kernel_class, dtype=np.float64, num_parts=1, **arguments):
  model, log_prob = models.gaussian(dtype)
  if num_parts == 2:
    log_prob = models.in_two_parts(log_prob)
  return kernel_class(
      log_prob, pdmp.HessianBound(9.), **arguments)


def local_bps(model):
  return BPS(model.posterior(), models.minibatch_bound(model),
             gradient_estimator=sgmcmc.gradients.Uniform(2))


def steps(kernel, state, seed, num_steps, in_graph=False):
  """Eagerly, or with each step in a graph, for more than a few."""
  one_step = (
      tf.function(kernel.one_step, autograph=False) if in_graph
      else kernel.one_step)
  results = kernel.bootstrap_results(state)
  for k in range(num_steps):
    state, results = one_step(
        state, results, seed=sgmcmc.random.fold_in(seed, k))
  return state, results


@pytest.mark.slow
def test_ten_chains_are_ten_runs_of_one(monkeypatch):
  """By number, when both are given the same random numbers.

  Random numbers go by position in the array of all chains, so that chains of a
  call are other, as good, chains than those of ten calls. Here each chain draws
  from a seed of its own, in both.
  """
  model, _ = models.gaussian()
  kernel = local_bps(model)
  start = tf.constant(models.exact_draws(model, 10))
  uniform, indices, normal_like = (
      sgmcmc.random.uniform, sgmcmc.random.indices, sgmcmc.random.normal_like)
  fold_in = sgmcmc.random.fold_in
  chains = []

  def each(draw, shape, seed):
    """A draw for each of the chains, from its own seed."""
    if len(chains) == 1:
      return draw(shape, fold_in(seed, chains[0]))
    return tf.stack([draw(shape[1:], fold_in(seed, c)) for c in chains])

  monkeypatch.setattr(
      sgmcmc.random, 'uniform',
      lambda shape, seed, dtype=tf.float32, stream=0: each(
          lambda s, key: uniform(s, key, dtype, stream), shape, seed))
  monkeypatch.setattr(
      sgmcmc.random, 'indices', lambda n, shape, seed, replacement=False: each(
          lambda s, key: indices(n, s, key, replacement), shape, seed))
  monkeypatch.setattr(
      sgmcmc.random, 'normal_like', lambda parts, seed: [each(
          lambda s, key: normal_like([tf.zeros(s, tf.float64)], key)[0],
          parts[0].shape, seed)])
  seeds = [fold_in(tf.constant([5, 6]), k) for k in range(6)]
  chains[:] = range(10)
  state, results = start, kernel.bootstrap_results(start)
  for seed in seeds:
    state, results = kernel.one_step(state, results, seed=seed)
  assert len(np.unique(results.event)) >= 2

  @tf.function(autograph=False)
  def step_alone(state, results, seed, chain):
    chains[:] = [chain]
    return kernel.one_step(state, results, seed=seed)

  for c in range(10):
    chains[:] = [c]
    alone, its_results = start[c], kernel.bootstrap_results(start[c])
    for seed in seeds:
      alone, its_results = step_alone(
          alone, its_results, seed, tf.constant(c))
    np.testing.assert_allclose(state[c], alone, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(
        results.velocity[0][c], its_results.velocity[0], rtol=1e-8, atol=1e-8)
    assert results.event[c] == its_results.event


def stochastic_bps(model):
  return sgmcmc.StochasticBouncyParticleSampler(
      model.posterior(),
      gradient_estimator=sgmcmc.gradients.Uniform(2, replacement=True))


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('make_kernel', [local_bps, stochastic_bps])
def test_uniform_time_reads_the_kernels_path(make_kernel):
  """Its states lie on the path that the same seeds give event by event."""
  model, _ = models.gaussian()
  kernel = make_kernel(model)
  uniform = pdmp.UniformTime(kernel, 0.4)
  start = tf.constant(models.exact_draws(model, 1)[0])
  state, results = start, uniform.bootstrap_results(start)
  first_results = results.inner_results
  draws, num_events, seeds = [], [], []
  one_step, one_event = (
      tf.function(k.one_step, autograph=False) for k in (uniform, kernel))
  for k in range(6):
    seed = tf.constant([k, 9])
    state, results = one_step(state, results, seed=seed)
    draws.append(state)
    num_events.append(int(results.num_events))
    seeds.extend(
        sgmcmc.random.fold_in(sgmcmc.random.fold_in(seed, 0), j)
        for j in range(num_events[-1]))
  assert 0 in num_events or max(num_events) > 1
  corners, times = [start], [0.]
  state, results = start, first_results
  for seed in seeds:
    state, results = one_event(state, results, seed=seed)
    corners.append(state)
    times.append(times[-1] + float(results.duration))
  at = 0.4 * np.arange(1, 7)
  expected = np.stack([
      np.interp(at, times, np.array(corners)[:, j]) for j in range(3)], axis=1)
  np.testing.assert_allclose(draws, expected, rtol=1e-9, atol=1e-9)


def test_uniform_time_goes_on_where_it_stopped():
  kernel = pdmp.UniformTime(make(BPS), 0.5)
  start = tf.zeros([4, 3], tf.float64)
  run = functools.partial(
      sgmcmc.sample, kernel, seed=2, progress_bar=False, jit_compile=False)
  whole = run(6, start)
  first = run(3, start)
  second = run(3, first.final_state,
               previous_kernel_results=first.kernel_results)
  np.testing.assert_array_equal(
      whole.states, tf.concat([first.states, second.states], axis=0))
  assert whole.kernel_results.step == 6


def test_an_interval_of_too_many_events():
  kernel = pdmp.UniformTime(make(BPS), 5., max_num_events=3)
  state = tf.zeros([2, 3], tf.float64)
  results = kernel.bootstrap_results(state)
  with pytest.raises(sgmcmc.NonFiniteError, match='raise max_num_events'):
    kernel.one_step(state, results, seed=[0, 1])
  state, results = tf.function(kernel.one_step)(state, results, seed=[0, 1])
  assert np.all(np.isnan(state))
  assert 'raise max_num_events' in results.failure(state).advice


def test_gradients_are_counted():
  model, _ = models.gaussian()
  kernel = local_bps(model)
  _, results = steps(
      kernel, tf.constant(models.exact_draws(model, 3)), [0, 1], 4)
  # One minibatch of 2 an event, and one at the start.
  np.testing.assert_array_equal(
      results.gradient_estimator_results.num_gradients, [2 * 5] * 3)
  assert results.step == 4


@pytest.mark.parametrize('law', ['sphere', 'gaussian', 'signs'])
def test_velocities(law):
  parts = [tf.zeros([20_000, 2]), tf.zeros([20_000])]
  velocity = base.draw_velocity(law, parts, 1, tf.constant([1, 2]))
  mixed = base.refresh_velocity(law, velocity, 0.4, 1, tf.constant([1, 3]))
  variance = 1. / 3. if law == 'sphere' else 1.
  for v in (velocity, mixed):
    flat = base.states.flatten(v, 1).numpy()
    # 5 standard errors, of a normal square at most.
    np.testing.assert_allclose(
        flat.T @ flat / 20_000, variance * np.eye(3), atol=0.05)
    if law != 'gaussian':
      np.testing.assert_allclose(
          np.sum(flat**2, axis=1), 3. * variance, rtol=1e-5)
  kept = np.mean(mixed[1] * velocity[1]) / variance
  assert kept > 0.5
  new = base.refresh_velocity(law, velocity, 1., 1, tf.constant([1, 3]))
  assert abs(np.mean(new[1] * velocity[1]) / variance) < 0.05


def test_reflection():
  v, g = (tf.random.stateless_normal([7, 3], [0, k]) for k in (1, 2))
  (after,) = base.reflect([v], [g], 1)
  np.testing.assert_allclose(
      tf.reduce_sum(after * g, -1), -tf.reduce_sum(v * g, -1), rtol=1e-4)
  np.testing.assert_allclose(tf.norm(after, axis=-1), tf.norm(v, axis=-1), 1e-5)
  (still,) = base.reflect([v], [0. * g], 1)
  np.testing.assert_array_equal(still, v)


def test_parameters_and_calibration():
  for kernel in (make(BPS), make(ZIG_ZAG)):
    assert kernel.is_calibrated
    assert kernel.copy(refresh_rate=3.).parameters['refresh_rate'] == 3.
    uniform = pdmp.UniformTime(kernel, 2.)
    assert uniform.is_calibrated and uniform.copy(
        interval=1.).parameters['interval'] == 1.


def test_rounding_is_no_violation():
  """In float32, 10,000 standard deviations from zero, under an exact bound."""
  mean = 1000.
  for kernel_class in (BPS, ZIG_ZAG):
    kernel = kernel_class(
        lambda x: -50. * tf.reduce_sum((x - mean)**2, axis=-1),
        pdmp.GaussianBound(100.))
    state, results = steps(
        kernel, tf.fill([500, 2], mean), [0, 1], 40, in_graph=True)
    assert np.all(np.isfinite(state)) and np.all(results.rate_ratio <= 1.)


def too_low(factor=0.7):
  """A bound that is too low by a factor."""
  model, log_prob = models.gaussian()

  def bound(start):
    rate = pdmp.GaussianBound(model.precision).directional(start)
    return pdmp.AffineRate(factor * rate.intercept, factor * rate.slope)

  return BPS(log_prob, bound), tf.constant(models.exact_draws(model, 4))


def test_violated_bound_eagerly():
  kernel, state = too_low()
  with pytest.raises(
      sgmcmc.RateBoundError,
      match=r'At event \d the rate of events in chain \d is 1.429'):
    steps(kernel, state, [0, 1], 20)
  with pytest.raises(sgmcmc.RateBoundError, match=r'At step \d+ the rate'):
    steps(pdmp.UniformTime(kernel, 0.2), state, [0, 1], 20)


def test_violated_bound_in_a_graph():
  kernel, state = too_low()
  states, trace = models.run_path(kernel, state, 30)
  with pytest.raises(sgmcmc.RateBoundError, match='is 1.429 times') as raised:
    pdmp.Trajectory.from_chain(states, trace)
  first = int(np.argmax(np.any(np.isnan(states), axis=(1, 2))))
  assert raised.value.step == trace.step[first]
  # A chain that has failed stays so, and goes on saying why.
  bad = np.isnan(states[-1, :, 0])
  np.testing.assert_allclose(trace.rate_ratio[-1].numpy()[bad], 1 / 0.7)
  with pytest.raises(sgmcmc.RateBoundError, match='1.429 times its') as raised:
    sgmcmc.sample(
        pdmp.UniformTime(kernel, 0.2), 100, state, seed=1, progress_bar=False,
        jit_compile=False)
  draws = raised.value.result
  assert len(draws) == raised.value.step - 1
  assert np.all(np.isfinite(draws.states))


def wall(x, place=1.5):
  """Not a number beyond a place."""
  return -x**2 / 2. + 0. * tf.sqrt(place - x)


@pytest.mark.parametrize('run_eagerly', [
    False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_that_fails_keeps_the_draws_before(run_eagerly):
  """One event in fifteen meets the wall."""
  kernel = BPS(lambda x: wall(x, 2.), pdmp.HessianBound(1.))
  tf.config.run_functions_eagerly(run_eagerly)
  try:
    with pytest.raises(sgmcmc.NonFiniteError, match='not finite') as raised:
      sgmcmc.sample(
          pdmp.UniformTime(kernel, 1.), 10_000, tf.zeros([]), seed=1,
          progress_bar=False, jit_compile=False)
  finally:
    tf.config.run_functions_eagerly(False)
  draws = raised.value.result
  assert len(draws) == raised.value.step - 1 > 0
  assert np.all(np.isfinite(draws.states))


def test_gradient_that_is_not_finite():
  kernel = BPS(wall, pdmp.HessianBound(1.))
  state = tf.zeros([50])
  with pytest.raises(sgmcmc.NonFiniteError,
                     match=r'At event \d+ the state is not finite: chain \d+'):
    steps(kernel, state, [0, 1], 40)
  states, trace = models.run_path(kernel, state, 40)
  with pytest.raises(sgmcmc.NonFiniteError, match='At event') as raised:
    pdmp.Trajectory.from_chain(states, trace)
  result = raised.value.result
  assert result is None or np.all(np.isfinite(result.mean()))
  with pytest.raises(sgmcmc.NonFiniteError, match='raise refresh_rate'):
    sgmcmc.sample(kernel, 60, state, seed=1, progress_bar=False,
                  jit_compile=False)


def test_no_further_event():
  kernel = BPS(lambda x: 0. * x, pdmp.HessianBound(1.), refresh_rate=0.)
  # The gradient is 0, so is the rate; the bound grows, and all is rejected.
  state, results = steps(kernel, tf.zeros([3]), [0, 1], 3)
  assert np.all(results.event == pdmp.Event.REJECTION)
  never = kernel.copy(rate_bound=lambda start: pdmp.AffineRate(0.))
  with pytest.raises(sgmcmc.NonFiniteError, match='raise refresh_rate'):
    steps(never, tf.zeros([3]), [0, 1], 3)


def normal(x):
  return -tf.reduce_sum(x**2, axis=-1) / 2.


def posterior():
  return models.gaussian()[0].posterior()


UNIFORM = sgmcmc.gradients.Uniform(1)


@pytest.mark.parametrize('build, error, message', [
    (lambda: BPS(posterior(), gradient_estimator=UNIFORM), ValueError,
     'exact gradient alone.*rate_bound'),
    (lambda: BPS(normal, 3.), TypeError, 'rate_bound is 3.0'),
    (lambda: BPS(
        posterior(), pdmp.HessianBound(1.), gradient_estimator=UNIFORM),
     ValueError, 'holds for every minibatch'),
    (lambda: BPS(
        posterior(), pdmp.LogisticRegressionBound(np.ones([3, 3]), 1.),
        gradient_estimator=sgmcmc.gradients.GaussianNoise(1.)),
     ValueError, 'no bound'),
    (lambda: BPS(
        posterior(), pdmp.LogisticRegressionBound(np.ones([3, 3]), 1.),
        gradient_estimator=sgmcmc.gradients.SVRG(1, 5)),
     ValueError, 'past of the chain'),
    (lambda: BPS(normal, pdmp.HessianBound(1.), velocity='cube'), ValueError,
     "'sphere', 'gaussian'"),
    (lambda: BPS(normal, pdmp.HessianBound(1.), refresh_rate=-1.), ValueError,
     'refresh_rate is -1'),
    (lambda: BPS(normal, pdmp.HessianBound(1.), refresh_rate=np.ones(2)),
     ValueError, r'refresh_rate has shape \(2,\)'),
    (lambda: BPS(normal, pdmp.HessianBound(1.), refresh_fraction=0.),
     ValueError, 'refresh_fraction is 0'),
    (lambda: BPS(normal, pdmp.HessianBound(1.), refresh_fraction=1.2),
     ValueError, 'at most 1'),
    (lambda: BPS(normal, pdmp.HessianBound(1.), temperature=0.), ValueError,
     'temperature is 0'),
    (lambda: pdmp.HessianBound(-1.), ValueError, 'positive semidefinite'),
    (lambda: pdmp.GaussianBound([[1., 2.], [2., 1.]]), ValueError,
     'precision is not positive'),
    (lambda: pdmp.HessianBound(np.ones([2, 3])), ValueError, r'\(2, 3\)'),
    (lambda: pdmp.LogisticRegressionBound(np.ones(3), 1.), ValueError,
     r'\[N, d\] is needed'),
    (lambda: pdmp.LogisticRegressionBound(np.ones([3, 2]), 0.), ValueError,
     'prior_scale is 0'),
    (lambda: pdmp.UniformTime(sgmcmc.SGLD(normal, 0.1), 1.), TypeError,
     'continuous-time'),
    (lambda: pdmp.UniformTime(make(BPS), 0.), ValueError, 'interval is 0'),
])
def test_refused_at_construction(build, error, message):
  with pytest.raises(error, match=message):
    build()


def test_refused_at_the_first_step():
  state = tf.zeros([2, 3])
  kernel = BPS(normal, lambda start: 1.)
  with pytest.raises(TypeError, match='pdmp.AffineRate'):
    kernel.one_step(state, kernel.bootstrap_results(state), seed=[0, 1])
  kernel = BPS(
      posterior(), pdmp.LogisticRegressionBound(np.ones([12, 2]), 1.),
      gradient_estimator=UNIFORM)
  state = tf.zeros([2, 3], tf.float64)
  with pytest.raises(ValueError, match='3 coordinates and features 2 columns'):
    kernel.one_step(state, kernel.bootstrap_results(state), seed=[0, 1])
  with pytest.raises(ValueError, match='not finite'):
    BPS(wall, pdmp.HessianBound(1.)).bootstrap_results(tf.constant(2.))


def test_sample_chain_warns_of_nothing(recwarn):
  tfp.mcmc.sample_chain(
      2, tf.zeros([2], tf.float64), kernel=pdmp.UniformTime(BPS(
          lambda x: -x**2 / 2., pdmp.GaussianBound(1.)), 1.),
      trace_fn=None, seed=[0, 1])
  assert not [w for w in recwarn if 'calibrated' in str(w.message)]
