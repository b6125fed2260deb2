"""What all kernels, and all estimators of the gradient, have to do alike.

The rows are in `tests/catalogue.py`. Laws are tested elsewhere, each in the
file of its kernel or estimator.
"""

import functools
import inspect

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests import catalogue
from tests import marks
from tests import oracle
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import collectives
from tfp_sgmcmc import kernel as kernel_lib
from tfp_sgmcmc import sharding
from tfp_sgmcmc.internal import one_kernel

gradients = sgmcmc.gradients
KERNELS, ESTIMATORS = catalogue.KERNELS, catalogue.ESTIMATORS
all_kernels = pytest.mark.parametrize('name', KERNELS)
all_estimators = pytest.mark.parametrize('name', ESTIMATORS)
normal, logarithm = catalogue.normal, catalogue.logarithm
pytestmark = pytest.mark.filterwarnings('ignore:.*not calibrated')


def make(name, dtype=np.float32):
  return KERNELS[name].make(KERNELS[name].posterior(dtype))


def exported(base):
  """The classes of a kind that are exported and can be made."""
  modules = (sgmcmc, sgmcmc.mcmc, sgmcmc.pdmp, gradients)
  return {
      value for module in modules for value in vars(module).values()
      if inspect.isclass(value) and issubclass(value, base)
      and not inspect.isabstract(value)}


def test_nothing_is_without_a_row():
  kernels = {type(make(name)) for name in KERNELS}
  assert exported(kernel_lib.Kernel) == kernels
  model = oracle.GaussianModel()
  anchor = KERNELS['sgld'].state()
  found = {
      type(row.of_model(anchor, model.posterior().data))
      for row in ESTIMATORS.values()}
  bases = {gradients.AnchoredEstimator, gradients.MinibatchEstimator}
  assert exported(gradients.GradientEstimator) == found | bases


def steps(kernel, state, seed, num_steps=2, one_step=None):
  """The last state and results of a loop of `one_step`, in Python."""
  results = kernel.bootstrap_results(state)
  for k in range(num_steps):
    state, results = (one_step or kernel.one_step)(
        state, results, seed=sgmcmc.random.fold_in(tf.constant(seed), k))
  return state, results


@functools.cache
def eager_run(name):
  """Of a list of float64 parts, 2 by 3 chains."""
  kernel = make(name, np.float64)
  state = KERNELS[name].state((2, 3), 2, np.float64)
  return kernel, state, steps(kernel, state, [3, 4])


def assert_close(one, other, tolerance):
  for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other)):
    a, b = (tf.cast(x, tf.float64) if x.dtype.is_floating else x
            for x in map(tf.convert_to_tensor, (a, b)))
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def one_step_as_one_kernel(kernel, start):
  """`one_step`, compiled as `sample` does it; None where it is not small."""
  position = (start, kernel.bootstrap_results(start))

  def on_leaves(*leaves_and_seed):
    *leaves, seed = leaves_and_seed
    return tf.nest.flatten(kernel.one_step(
        *tf.nest.pack_sequence_as(position, leaves), seed=seed))

  small = one_kernel.make(one_kernel.trace(
      on_leaves, *tf.nest.flatten(position), tf.constant([3, 4])))
  if small is None:
    return None
  return tf.function(
      lambda *where, seed: tf.nest.pack_sequence_as(
          position, small(*tf.nest.flatten(where), seed)),
      jit_compile=True, autograph=False)


@pytest.mark.weekly_after(5)
@pytest.mark.slow
@pytest.mark.parametrize(
    'name', marks.and_weekly(KERNELS, catalogue.VARIANTS))
def test_same_chain_eager_graph_and_xla(name):
  """State and results, of two steps; by XLA as one kernel, where it can be."""
  kernel, start, eager = eager_run(name)
  by_xla = one_step_as_one_kernel(kernel, start)
  assert (by_xla is None) == KERNELS[name].scatters
  if by_xla is None:
    by_xla = tf.function(kernel.one_step, jit_compile=True, autograph=False)
  for one_step in (tf.function(kernel.one_step, autograph=False), by_xla):
    other = steps(kernel, start, [3, 4], one_step=one_step)
    assert_close(eager, other, 1e-7)
  for moved, part in zip(eager[0], start):
    assert moved.dtype == tf.float64 and moved.shape == part.shape
    assert np.all(np.isfinite(moved)) and np.any(moved != part)


@pytest.mark.slow
@pytest.mark.weekly_after(17)
@all_kernels
def test_the_same_seed_gives_the_same_chain_and_another_another(name):
  kernel, start, (state, _) = eager_run(name)
  again, _ = steps(kernel, start, [3, 4])
  other, _ = steps(kernel, start, [3, 5])
  for part, same, another in zip(state, again, other):
    np.testing.assert_array_equal(part, same)
    assert np.any(part != another)


@pytest.mark.weekly_after(17)
@pytest.mark.slow
@all_kernels
def test_one_chain_is_the_same_in_float32_and_float64(name):
  row = KERNELS[name]
  single, double = (
      steps(make(name, dtype), row.state(dtype=dtype), [3, 4])[0]
      for dtype in (np.float32, np.float64))
  assert single.dtype == tf.float32
  np.testing.assert_allclose(single, double, rtol=2e-2, atol=2e-2)


@all_kernels
def test_gradients_are_counted_for_each_chain(name):
  _, _, (_, results) = eager_run(name)
  results = getattr(results, 'inner_results', results)
  used = results.gradient_estimator_results.num_gradients
  assert used.dtype == tf.int64 and used.shape == [2, 3]
  assert np.all(used > 0)


@pytest.mark.weekly_after(12)
@all_kernels
def test_warm_restart(name):
  """Stopping changes nothing, though all is written down and read again."""
  kernel, start, (whole, _) = eager_run(name)
  parts, results = steps(kernel, start, [3, 4], num_steps=1)
  parts, results = tf.nest.map_structure(
      lambda t: tf.constant(t.numpy()), (parts, results))
  parts, _ = kernel.one_step(
      parts, results, seed=sgmcmc.random.fold_in(tf.constant([3, 4]), 1))
  tf.nest.map_structure(np.testing.assert_array_equal, whole, parts)


@all_kernels
def test_sample_chain_goes_on_from_its_results(name):
  kernel, start, (state, results) = eager_run(name)
  draws, trace = tfp.mcmc.sample_chain(
      1, state, kernel=kernel, seed=tf.constant([0, 1]),
      trace_fn=lambda _, results: results.step,
      previous_kernel_results=results)
  np.testing.assert_array_equal(trace, [3])
  for part, drawn in zip(start, draws):
    assert drawn.shape == [1, *part.shape]


@all_kernels
def test_copy_and_parameters(name):
  kernel = make(name)
  copy = kernel.copy(name='another')
  assert type(copy) is type(kernel) and copy.parameters['name'] == 'another'
  assert {**copy.parameters, 'name': None} == {
      **kernel.parameters, 'name': None}
  assert kernel.is_calibrated == KERNELS[name].is_exact


@all_kernels
def test_lives_on_batches_is_what_fit_takes(name):
  kernel, row = make(name), KERNELS[name]
  assert kernel.lives_on_batches == (row.in_fit is not None)
  if not kernel.lives_on_batches:
    with pytest.raises(TypeError, match='needs all the data'):
      sgmcmc.keras.PosteriorSampling(lambda target: kernel, num_examples=12)


@all_kernels
def test_a_kernel_with_friction_has_a_momentum(name):
  kernel = make(name)
  results = kernel.bootstrap_results(KERNELS[name].state())
  argument = getattr(kernel, 'friction_argument', None)
  assert hasattr(results, 'momentum') == (argument is not None)
  assert argument is None or argument in kernel.parameters


@all_kernels
def test_results_are_lean(name):
  """A trace of all results holds a few states a step, and no data."""
  kernel, start = make(name), KERNELS[name].state((7,))
  results = kernel.bootstrap_results(start)
  size = sum(tf.size(t).numpy() for t in tf.nest.flatten(results))
  size_of_state = tf.size(start).numpy()
  per_chain = 16 + KERNELS[name].num_kept_numbers
  assert size <= 6 * size_of_state + 7 * per_chain + 2


@all_kernels
def test_failure(name):
  """None of a healthy chain; of one with a NaN, which chain and which part."""
  _, _, (state, results) = eager_run(name)
  assert sgmcmc.errors.find_failure(results, state) is None
  assert results.failure(state) is None
  bad = [part.numpy() for part in state]
  bad[-1][1, 2] = np.nan
  failure = sgmcmc.errors.find_failure(results, list(map(tf.constant, bad)))
  assert failure.error is sgmcmc.NonFiniteError
  assert f'chain (1, 2), part {len(bad) - 1}' in failure.reason
  assert failure.advice.endswith('.')


@all_kernels
@pytest.mark.parametrize('state, error, message', [
    (np.zeros(3, int), TypeError, 'dtype int64'),
    ([], ValueError, 'empty list'),
    ({'x': np.zeros(3, np.float32)}, TypeError, 'dict'),
])
def test_states_that_are_none(name, state, error, message):
  with pytest.raises(error, match=message):
    make(name).bootstrap_results(state)


plain_kernels = pytest.mark.parametrize(
    'name', [name for name, row in KERNELS.items() if row.takes_any_target])


@plain_kernels
@pytest.mark.parametrize('target, state, error, message', [
    (logarithm, np.zeros(3, np.float32), ValueError, 'not finite'),
    (logarithm, np.full(3, np.nan, np.float32), ValueError, 'not finite'),
    (lambda x: tf.reduce_sum(x) * tf.ones(5), np.zeros(3, np.float32),
     ValueError, r'returned shape \(5,\)'),
    (lambda x, y: tf.reduce_sum(x), [np.zeros(3, np.float32)] * 2, ValueError,
     'does not depend on part 1'),
])
def test_refused_at_the_start(name, target, state, error, message):
  kernel = make(name).copy(target_log_prob_fn=target, gradient_estimator=None)
  with pytest.raises(error, match=message):
    kernel.bootstrap_results(state)


@plain_kernels
def test_refused_at_construction(name):
  kernel = make(name)
  for arguments, message in (
      (dict(target_log_prob_fn=3.), 'has to be a Posterior'),
      (dict(gradient_estimator=100), 'gradients.Uniform'),
      (dict(target_log_prob_fn=normal, gradient_estimator=catalogue.UNIFORM),
       'posterior.transform')):
    with pytest.raises(TypeError, match=message):
      kernel.copy(**arguments)


DATA = np.random.default_rng(0).normal(size=[12, 3])
LABELS = (DATA[:, 0] > DATA[:, 1]).astype(float)


def log_likelihood(slope, intercept, batch):
  """Logistic regression: the gradients of examples depend on the state."""
  x, y = batch
  logits = tf.einsum(
      '...nd,...d->...n', x, oracle.join([slope, intercept]))
  return y * logits - tf.math.softplus(logits)


def logistic_regression(
    rows=range(12), num_examples=12, kind=sgmcmc.Posterior):
  return kind(
      lambda slope, intercept: normal(slope) - intercept**2, log_likelihood,
      (DATA[rows], LABELS[rows]), num_examples=num_examples)


def gaussian_step(parts):
  ones = [tf.ones([], part.dtype) for part in parts]
  return gradients.GaussianStep(
      [0.3 * tf.ones_like(part) for part in parts],
      [-0.1 * tf.ones_like(part) for part in parts],
      [0.1 * one for one in ones], ones)


PARTS = [tf.constant([[0.1, 0.2], [0.3, -0.4]], tf.float64),
         tf.constant([0.5, -0.2], tf.float64)]


def estimates(estimator, num_steps=2, one_step=None, seed=(1, 2)):
  """Estimates at moving states of 2 chains, and the last results."""
  posterior, parts, found = logistic_regression(), PARTS, []
  results = estimator.bootstrap_results(posterior, parts)
  one_step = one_step or functools.partial(estimator.one_step, posterior)
  for k in range(num_steps):
    estimate, results = one_step(
        parts, results, sgmcmc.random.fold_in(tf.constant(seed), k),
        gaussian_step(parts))
    found.append(estimate)
    parts = [0.9 * part for part in parts]
  return found, results


ANCHOR = [tf.constant([0.1, 0.2], tf.float64), tf.constant(0., tf.float64)]


def make_estimator(name):
  """The estimator, for this model."""
  return ESTIMATORS[name].of_model(ANCHOR, (DATA, LABELS))


@pytest.mark.weekly_after(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    'name', marks.and_weekly(ESTIMATORS, catalogue.VARIANTS))
def test_an_estimate_is_the_same_eager_graph_and_xla(name):
  estimator, posterior = make_estimator(name), logistic_regression()

  def in_program(jit_compile):
    return estimates(estimator, one_step=tf.function(
        functools.partial(estimator.one_step, posterior),
        jit_compile=jit_compile, autograph=False))

  if not estimator.compiles:
    with pytest.raises(ValueError, match='XLA cannot compile'):
      in_program(True)
    return
  eager = estimates(estimator)
  for jit_compile in (False, True):
    assert_close(eager, in_program(jit_compile), 1e-9)


@pytest.mark.weekly_after(5)
@all_estimators
def test_an_estimate_has_the_shapes_of_the_state(name):
  estimator = make_estimator(name)
  found, results = estimates(estimator)
  for estimate in found:
    assert estimate.target_log_prob.shape == [2]
    first, second = estimate.grads_target_log_prob
    assert first.shape == [2, 2] and second.shape == [2]
    assert first.dtype == second.dtype == tf.float64
  used = results.num_gradients
  assert used.shape == [2] and used.dtype == tf.int64 and np.all(used > 0)
  repr(estimator)


@all_estimators
def test_follows_seed_is_what_it_says(name):
  """Of what declares it, two estimates in a row are the same."""
  estimator, posterior = make_estimator(name), logistic_regression()
  results = estimator.bootstrap_results(posterior, PARTS)
  found = [
      estimator.one_step(
          posterior, PARTS, results, tf.constant([1, 2]), gaussian_step(PARTS)
      )[0] for _ in range(2)]
  if estimator.follows_seed:
    assert_close(*found, 0.)
  else:
    # A pipeline goes on; the weights of EWSG ask the state as well.
    assert name in ('stream', 'ewsg', 'ewsg of svrg', 'ewsg of deal')


@all_estimators
def test_is_exact_is_what_it_says(name):
  """Some estimate of three others differs from the gradient."""
  estimator = make_estimator(name)
  exact, _ = estimates(gradients.Exact(), 3)
  found, _ = estimates(estimator, 3)
  same = all(
      np.allclose(a, b, rtol=1e-9) for one, other in zip(exact, found)
      for a, b in zip(one.grads_target_log_prob, other.grads_target_log_prob))
  assert same == (estimator.is_exact or ESTIMATORS[name].is_exact_alone)
  if estimator.is_exact:
    assert estimator.has_independent_noise and estimator.has_bounded_noise


@pytest.mark.weekly_after(5)
@all_estimators
def test_independent_noise_does_not_know_the_past(name):
  """The estimate at a state, with a seed, after two different pasts."""
  posterior = logistic_regression()
  parts, found = [part[:1] for part in PARTS], []
  for past in (0., 1.):
    estimator = make_estimator(name)
    at = [part + past for part in parts]
    results = estimator.bootstrap_results(posterior, at)
    for k in range(1 + int(past)):
      _, results = estimator.one_step(
          posterior, at, results, tf.constant([k, int(past)]),
          gaussian_step(at))
    estimate, _ = estimator.one_step(
        posterior, parts, results, tf.constant([5, 5]), gaussian_step(parts))
    found.append(estimate.grads_target_log_prob)
  same = all(np.allclose(a, b, rtol=1e-9) for a, b in zip(*found))
  if make_estimator(name).has_independent_noise:
    assert same
  elif ESTIMATORS[name].knows_the_past:
    assert not same


@pytest.mark.weekly_after(5)
@all_estimators
def test_bounded_noise_is_bounded(name):
  """By N times the largest distance between two gradients of examples."""
  estimator = make_estimator(name)
  assert estimator.has_bounded_noise != ESTIMATORS[name].is_unbounded
  if not estimator.has_bounded_noise:
    return
  posterior, num = logistic_regression(), 2000
  parts = [tf.zeros([num, 2], tf.float64), tf.zeros([num], tf.float64)]
  results = estimator.bootstrap_results(posterior, parts)
  estimate, _ = estimator.one_step(
      posterior, parts, results, tf.constant([1, 2]), gaussian_step(parts))
  exact, _ = gradients.Exact().one_step(
      posterior, parts, gradients.Exact().bootstrap_results(posterior, parts),
      None)
  largest = 2. * 12. * np.abs(DATA).max(axis=0)  # The residuals are below 1.
  first, second = (
      np.abs(a - b) for a, b in zip(
          estimate.grads_target_log_prob, exact.grads_target_log_prob))
  assert np.all(first <= largest[:2]) and np.all(second <= largest[2])


@all_estimators
def test_lives_on_batches_is_what_it_says(name):
  """Batches of 6 and of 5 of 12 rows, as fit gives them, one after another."""
  estimator = make_estimator(name)
  kernel = functools.partial(
      sgmcmc.SGHMC, step_size=0.1, friction=1., gradient_estimator=estimator)
  if not estimator.lives_on_batches:
    assert estimator.why_not_on_batches
    with pytest.raises(ValueError, match='the batches come from Keras'):
      sgmcmc.keras.PosteriorSampling(kernel, num_examples=12)
    return
  sgmcmc.keras.PosteriorSampling(kernel, num_examples=12)
  parts = [tf.zeros([2], tf.float64), tf.zeros([], tf.float64)]
  results = estimator.bootstrap_results(
      logistic_regression(range(6)), parts)
  for rows in (range(6), range(6, 11)):
    estimate, results = estimator.one_step(
        logistic_regression(rows), parts, results, tf.constant([1, 2]),
        gaussian_step(parts))
    assert all(np.all(np.isfinite(g)) for g in estimate.grads_target_log_prob)


@all_estimators
def test_works_on_shards_is_what_it_says(name, monkeypatch):
  """Two devices with the same rows have what one has with the rows twice."""
  estimator = make_estimator(name)
  if not (estimator.works_on_shards and estimator.is_exact):
    return  # Those that draw of their rows have tests in test_sharding.py.
  monkeypatch.setattr(
      collectives, 'all_reduce', lambda tensors: [2 * t for t in tensors])
  shard = logistic_regression(range(6), 24, sharding.ShardedPosterior)
  whole = logistic_regression([*range(6)] * 2, 24)
  found = []
  for posterior in (shard, whole):
    results = estimator.bootstrap_results(posterior, PARTS)
    found.append(estimator.one_step(posterior, PARTS, results, None))
    if estimator.gives_derivatives:
      minibatch, results = estimator.directional(
          posterior, PARTS, results, None)
      found[-1] += (
          minibatch.derivative(PARTS, [0.5 * part for part in PARTS]),
          minibatch.gradients(PARTS), minibatch.size, results)
  assert_close(*found, 1e-9)


@all_estimators
def test_gives_derivatives_is_what_it_says(name):
  """Along a direction u the derivative is u . g, g on the same minibatch."""
  estimator, posterior = make_estimator(name), logistic_regression()
  make_kernel = functools.partial(
      sgmcmc.StochasticBouncyParticleSampler, posterior,
      gradient_estimator=estimator)
  if not estimator.gives_derivatives:
    with pytest.raises(ValueError, match='derivative|no such step'):
      make_kernel()
    return
  make_kernel()
  parts = [tf.constant([[0.2, -0.1]] * 3, tf.float64),
           tf.constant([0.3] * 3, tf.float64)]
  direction = [tf.constant([[1., -2.]] * 3, tf.float64),
               tf.constant([0.5] * 3, tf.float64)]
  minibatch, _ = estimator.directional(
      posterior, parts, estimator.bootstrap_results(posterior, parts),
      tf.constant([1, 2]))
  first, second = minibatch.gradients(parts)
  np.testing.assert_allclose(
      minibatch.derivative(parts, direction).value,
      np.sum(first * direction[0], axis=-1) + second * direction[1])


@all_estimators
def test_chooses_among_sets_is_what_it_says(name):
  estimator = make_estimator(name)
  if not estimator.chooses_among_sets:
    with pytest.raises(TypeError, match='chooses_among_sets'):
      gradients.ExponentiallyWeighted(base=estimator)
    return
  found, _ = estimates(gradients.ExponentiallyWeighted(base=estimator))
  assert all(np.all(np.isfinite(g)) for g in found[-1].grads_target_log_prob)


class Declared(gradients.GradientEstimator):
  """A user's estimator: minibatches of one, drawn by another's code."""

  def __init__(self, **declared):
    self._inner = gradients.Uniform(1)
    self._declared = declared

  @property
  def has_independent_noise(self):
    return self._declared.get('has_independent_noise', False)

  @property
  def has_bounded_noise(self):
    return self._declared.get('has_bounded_noise', False)

  def one_step(
      self, target, state_parts, previous_results, seed, gaussian_step=None):
    return self._inner.one_step(target, state_parts, previous_results, seed)


def test_an_estimator_that_declares_nothing():
  """Refused where something is relied on, by the name of what that is."""
  posterior = logistic_regression()
  x = np.random.default_rng(0).normal(size=[6, 3])
  bound = sgmcmc.pdmp.LogisticRegressionBound(x, 1.)
  bps = functools.partial(
      sgmcmc.BouncyParticleSampler, posterior, rate_bound=bound)
  with pytest.raises(ValueError, match='has_independent_noise'):
    bps(gradient_estimator=Declared())
  with pytest.raises(ValueError, match='has_bounded_noise'):
    bps(gradient_estimator=Declared(has_independent_noise=True))
  with pytest.raises(ValueError, match='lives_on_batches'):
    sgmcmc.keras.PosteriorSampling(
        functools.partial(sgmcmc.SGLD, step_size=0.1,
                          gradient_estimator=Declared()), num_examples=12)
  with pytest.raises(TypeError, match='chooses_among_sets'):
    gradients.ExponentiallyWeighted(base=Declared())
  sgmcmc.SGLD(posterior, 0.1, gradient_estimator=Declared())


def test_an_estimator_that_declares_what_it_is_has_the_same_law():
  """Number for number that of the estimator which it calls."""
  posterior = logistic_regression()
  declared = Declared(has_independent_noise=True, has_bounded_noise=True)
  draws = []
  for estimator in (declared, gradients.Uniform(1)):
    kernel = sgmcmc.BouncyParticleSampler(
        posterior, gradient_estimator=estimator,
        rate_bound=lambda start: sgmcmc.pdmp.AffineRate(1e4))
    state = [tf.zeros([2], tf.float64), tf.zeros([], tf.float64)]
    draws.append(steps(kernel, state, [1, 2])[0])
  for ours, theirs in zip(*draws):
    np.testing.assert_array_equal(ours, theirs)
