"""ControlVariate, SVRG and SAGA: exact moments, laws of chains, cost, refusals.

Laws of minibatches with probabilities of their own are here as well; what else
there is to these is in `test_preferential`.

Laws are compared with 40,000 chains, and fail by chance once in a million
(oracle.FALSE_ALARM_RATE).
"""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests import oracle
from tests import planted
from tests.gradients import moments
from tests.gradients import test_estimators
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import store
from tfp_sgmcmc.gradients import full_pass
from tfp_sgmcmc.gradients import preferential
from tfp_sgmcmc.gradients import saga
from tfp_sgmcmc.internal import states

ControlVariate = sgmcmc.gradients.ControlVariate
SAGA = sgmcmc.gradients.SAGA
SVRG = sgmcmc.gradients.SVRG

poisson_regression = test_estimators.poisson_regression
state = test_estimators.state


TICKETS = [1, 1, 2, 5, 1, 1, 3, 1, 1]  # Of the rows, in a lottery.


def other_state():
  return [tf.constant([-0.4, 0.1]), tf.constant(0.6)]


def standing_for(num_examples):
  """Poisson regression whose 9 rows stand for more examples."""
  small = poisson_regression()
  return sgmcmc.Posterior(
      small.log_prior,
      lambda *args: small.log_likelihood(*args[:-1], batch=args[-1]),
      small.data, num_examples=num_examples)


def moved_results(estimator, posterior):
  """Results of one chain, after an estimate at another state and one here."""
  results = estimator.bootstrap_results(posterior, other_state())
  for k, parts in enumerate((other_state(), state())):
    _, results = estimator.one_step(
        posterior, parts, results, tf.constant([3, k]))
  return results


def are_as_said(estimator, posterior=None):
  posterior = posterior or poisson_regression()
  results = moved_results(estimator, posterior)
  many = None
  if hasattr(results, 'table'):
    copies = lambda t, axis: tf.repeat(
        tf.expand_dims(t, axis), moments.NUM_ESTIMATES, axis=axis)
    many = results._replace(
        table=[copies(alpha, 1) for alpha in results.table],
        total=[copies(total, 0) for total in results.total],
        num_gradients=copies(results.num_gradients, 0))
  return moments.are_as_said(estimator, posterior, state(), results, many)


@pytest.mark.slow
@pytest.mark.weekly_after(3)
@pytest.mark.parametrize('estimator', [
    ControlVariate(4, other_state(), rows_per_chunk=5),
    ControlVariate(12, other_state(), replacement=True),
    ControlVariate(4, other_state(), probabilities=TICKETS),
    ControlVariate(4, other_state(), order=2, rows_per_chunk=5),
    ControlVariate(4, other_state(), order=2, probabilities=TICKETS),
    SVRG(4, 100),
    SVRG(2, 100, replacement=True, rows_per_chunk=2),
    SAGA(1),
    SAGA(4, rows_per_chunk=5),
    SAGA(9),
])
def test_unbiased_with_the_variance_it_says(estimator):
  assert are_as_said(estimator)


@pytest.mark.weekly_after(1)
@pytest.mark.slow
@pytest.mark.parametrize('estimator', [
    ControlVariate(4, other_state(), rows_per_chunk=5),
    ControlVariate(4, other_state(), probabilities=TICKETS),
    ControlVariate(4, other_state(), order=2),
    SAGA(4, rows_per_chunk=5)])
def test_data_that_stand_for_more_examples(estimator):
  assert are_as_said(estimator, standing_for(90))


def _anchor_not_scaled(monkeypatch):
  estimate = sgmcmc.Posterior.log_likelihood_estimate
  def wrong(self, *parts, batch, weights=None):
    return estimate(
        self, *parts, batch=batch, weights=1. if weights is None else weights)
  monkeypatch.setattr(sgmcmc.Posterior, 'log_likelihood_estimate', wrong)


def _last_chunk_counted_twice(monkeypatch):
  fold = full_pass.fold
  monkeypatch.setattr(
      full_pass, 'fold', lambda fn, *args: fold(
          lambda carried, batch, k, is_new: fn(
              carried, batch, k, tf.ones_like(is_new)), *args))


def _rows_stand_for_as_many(monkeypatch):
  monkeypatch.setattr(
      preferential.Table, 'weight', lambda self, rows: tf.ones(tf.shape(rows)))


def _no_aliases(monkeypatch):
  monkeypatch.setattr(preferential, '_alias', lambda p: (
      np.ones(len(p)), np.arange(len(p))))


def _stale_total(monkeypatch):
  step = saga.saga_step
  def wrong(target, parts, results, indices):
    estimate, new = step(target, parts, results, indices)
    return estimate, new._replace(total=results.total)
  monkeypatch.setattr(saga, 'saga_step', wrong)


def _stale_table(monkeypatch):
  step = saga.saga_step
  def wrong(target, parts, results, indices):
    estimate, new = step(target, parts, results, indices)
    return estimate, new._replace(table=results.table)
  monkeypatch.setattr(saga, 'saga_step', wrong)


def _hessian_of_half_the_rows(monkeypatch):
  hessian = full_pass.hessian
  monkeypatch.setattr(
      full_pass, 'hessian', lambda *args: 0.5 * hessian(*args))


def _no_half_in_taylor(monkeypatch):
  """The value of the polynomial alone is wrong."""
  monkeypatch.setattr(
      states, 'quadratic', lambda fn, parts, u: states.value_and_gradients(
          lambda *parts: sum(states.slope(fn, parts, u)), parts,
          num_required=0))


def _second_order():
  return ControlVariate(4, other_state(), order=2)


def _preferential():
  return ControlVariate(4, other_state(), probabilities=TICKETS)


@pytest.mark.weekly_after(3)
@pytest.mark.slow
@pytest.mark.parametrize('plant, make', [
    (planted.no_population_factor, lambda: ControlVariate(4, other_state())),
    (_anchor_not_scaled, lambda: ControlVariate(4, other_state())),
    (_last_chunk_counted_twice,
     lambda: ControlVariate(4, other_state(), rows_per_chunk=5)),
    (_rows_stand_for_as_many, _preferential),
    (_no_aliases, _preferential),
    (_hessian_of_half_the_rows, _second_order),
    (_no_half_in_taylor, _second_order),
    (_last_chunk_counted_twice,
     lambda: ControlVariate(4, other_state(), order=2, rows_per_chunk=5)),
    (_stale_total, lambda: SAGA(4)),
    (_stale_table, lambda: SAGA(4)),
])
def test_planted_errors_are_seen(plant, make, monkeypatch):
  plant(monkeypatch)
  assert not are_as_said(make())


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('order', [1, 2])
def test_variance_falls_towards_the_anchor(order):
  """By the distance to the power 2, or 4; at the anchor there is none."""
  posterior = poisson_regression()
  variance = lambda distance: moments.as_array(
      ControlVariate(
          3, [part + distance for part in state()], order=order).variance(
              posterior, state()), 1)
  np.testing.assert_allclose(variance(0.), 0., atol=1e-9)
  np.testing.assert_allclose(
      variance(0.1) / variance(0.05), 4.**order, rtol=0.3)


# Laws of chains, on a regression whose noise depends on the position.

NUM_CHAINS = 40_000
NUM_STEPS = 20  # Too few for compilation by XLA to pay.
BATCH_SIZE = 2
ANCHOR = np.array([0.3, -0.6])
MODEL = oracle.LinearRegression()
OWNERS = np.repeat(np.arange(6), [3, 1, 1, 2, 1, 2])  # Of the tickets.


def scaled(gradients, batch):
  return MODEL.num_examples / len(batch) * gradients[batch].sum(axis=0)


def control_variate(theta, memory, batch, k):
  """Baker et al. (2019); the anchor is fixed."""
  del k
  anchor = MODEL.gradients(ANCHOR)
  return MODEL.prior_gradient(theta) + anchor.sum(axis=0) + scaled(
      MODEL.gradients(theta) - anchor, batch), memory


def svrg(theta, memory, batch, k):
  """Dubey et al. (2016), algorithm 2; the memory is the anchor."""
  memory = theta if k == 0 else memory
  anchor = MODEL.gradients(memory)
  return MODEL.prior_gradient(theta) + anchor.sum(axis=0) + scaled(
      MODEL.gradients(theta) - anchor, batch), memory


def saga_ld(theta, memory, batch, k):
  """Dubey et al. (2016), algorithm 1; the memory is the table."""
  del k
  table, new = memory.reshape([-1, 2]), MODEL.gradients(theta)
  estimate = MODEL.prior_gradient(theta) + table.sum(axis=0) + scaled(
      new - table, batch)
  is_drawn = np.isin(np.arange(len(table)), batch)[:, np.newaxis]
  return estimate, np.where(is_drawn, new, table).ravel()


def start_of(size, memory_size):
  """Theta is 0; the momentum is drawn; the memory is of there."""
  table = MODEL.gradients(np.zeros(2)).ravel()
  memory = {0: [], 2: np.zeros(2), len(table): table}[memory_size]
  mean = np.append(np.zeros(size), memory)
  return mean, np.diag(np.repeat([0., 1., 0.], [2, size - 2, memory_size]))


@functools.cache
def exact_moments(move, estimate, size, memory_size, num_phases):
  """Of (theta, ...) after the steps, the first estimate being number 1."""
  def step(k):
    def one(z, batch, xi):
      memory = z[size:]
      def gradient(theta):
        nonlocal memory
        g, memory = estimate(theta, memory, batch, k)
        return g
      moved = move(gradient, z[:size], xi=xi[:2])
      return np.concatenate([moved, memory])
    return one

  phases = [*range(1, num_phases), 0]
  batches = MODEL.batches(BATCH_SIZE)
  if estimate is preferred:
    batches = list(itertools.product(range(len(OWNERS)), repeat=BATCH_SIZE))
  mean, covariance = oracle.moments_after(
      NUM_STEPS, [step(k) for k in phases], batches,
      *start_of(size, memory_size))
  return mean[:size], covariance[:size, :size]


def preferred(theta, memory, batch, k):
  """Putcha et al. (2023); the batch is a pair of tickets."""
  del k
  rows = OWNERS[list(batch)]
  anchor = MODEL.gradients(ANCHOR)
  difference = MODEL.gradients(theta) - anchor
  shares = (len(OWNERS) / np.bincount(OWNERS))[rows]
  return MODEL.prior_gradient(theta) + anchor.sum(axis=0) + np.mean(
      shares[:, np.newaxis] * difference[rows], axis=0), memory


def exact_gradient(theta, memory, batch, k):
  """Of second order too, since log likelihoods are quadratic here."""
  del batch, k
  return (MODEL.prior_gradient(theta) + MODEL.gradients(theta).sum(axis=0),
          memory)


SGLD = functools.partial(sgmcmc.SGLD, step_size=0.05)
SGHMC = functools.partial(sgmcmc.SGHMC, step_size=0.12, friction=3.)
MOVES = {
    SGLD: (2, functools.partial(oracle.sgld_step, h=0.05)),
    SGHMC: (4, functools.partial(oracle.euler_step, h=0.12, friction=3.)),
}
# Kernel, estimator, the same in NumPy, size of its memory, phases.
LAWS = {
    'SGHMC, ControlVariate': (
        SGHMC, ControlVariate(BATCH_SIZE, ANCHOR), control_variate, 0, 1),
    'SGLD, ControlVariate with probabilities': (
        SGLD, ControlVariate(
            BATCH_SIZE, ANCHOR, probabilities=np.bincount(OWNERS)), preferred,
        0, 1),
    'SGHMC, ControlVariate of order 2': (
        SGHMC, ControlVariate(BATCH_SIZE, ANCHOR, order=2), exact_gradient, 0,
        1),
    'SGLD, SVRG': (SGLD, SVRG(BATCH_SIZE, 4), svrg, 2, 4),
    'SGLD, SAGA': (
        SGLD, SAGA(BATCH_SIZE), saga_ld, 2 * MODEL.num_examples, 1),
}


@functools.cache
def last_states(name):
  """States (and momenta) of chains that began at 0."""
  make, estimator, *_ = LAWS[name]
  kernel = make(MODEL.posterior(), gradient_estimator=estimator)
  state, results = oracle.run_chains(
      kernel, tf.zeros([NUM_CHAINS, 2]), NUM_STEPS, jit_compile=False)
  momentum = results.momentum if make is SGHMC else []
  return np.concatenate([state, *momentum], axis=1)


def law_p_value(name, error=1., **changes):
  make, _, estimate, memory_size, num_phases = LAWS[name]
  size, move = MOVES[make]
  arguments = dict(
      move=move, estimate=estimate, size=size, memory_size=memory_size,
      num_phases=num_phases)
  mean, covariance = exact_moments(**{**arguments, **changes})
  return oracle.moments_p_value(last_states(name), mean, error * covariance)


@pytest.mark.slow
@pytest.mark.weekly_after(2)
@pytest.mark.parametrize('name', LAWS)
def test_law(name):
  assert law_p_value(name) > oracle.FALSE_ALARM_RATE


@pytest.mark.parametrize('name', LAWS)
def test_five_percent_of_variance_is_seen(name):
  assert law_p_value(name, error=1.05) < oracle.FALSE_ALARM_RATE


def plain_minibatch(theta, memory, batch, k):
  del k
  return (MODEL.prior_gradient(theta) + scaled(MODEL.gradients(theta), batch),
          memory)


@pytest.mark.parametrize('name, changes', [
    *((name, dict(estimate=wrong, memory_size=0, num_phases=1))
      for name, law in LAWS.items()
      for wrong in (exact_gradient, control_variate, plain_minibatch)
      if law[2] is not wrong),
    ('SGLD, SVRG', dict(num_phases=20)),
])
def test_other_laws_are_told_apart(name, changes):
  assert law_p_value(name, **changes) < oracle.FALSE_ALARM_RATE


# Chains.

KERNELS = [
    functools.partial(sgmcmc.SGLD, step_size=0.02),
    functools.partial(
        sgmcmc.SGHMC, step_size=0.05, friction=1., integrator='baoab'),
    functools.partial(sgmcmc.SGNHT, step_size=0.05, diffusion=1.),
]
ESTIMATORS = [
    ControlVariate(2, other_state(), rows_per_chunk=5),
    SVRG(2, 3, rows_per_chunk=5),
    SAGA(2, rows_per_chunk=5)]
name_of = lambda e: getattr(e, 'func', type(e)).__name__


def chain(kernel, parts, num_steps=3):
  results = kernel.bootstrap_results(parts)
  for k in range(num_steps):
    parts, results = kernel.one_step(parts, results, seed=tf.constant([4, k]))
  return parts, results


@pytest.mark.slow
@pytest.mark.parametrize('make', KERNELS, ids=name_of)
def test_with_each_kernel(make):
  """SVRG at each step, and any of them on all examples, is exact."""
  wanted, _ = chain(make(poisson_regression()), state([3]))
  for estimator in (
      SVRG(2, steps_per_anchor=1, rows_per_chunk=5),
      ControlVariate(9, other_state()),
      SAGA(9, rows_per_chunk=5)):
    parts, results = chain(
        make(poisson_regression(), gradient_estimator=estimator), state([3]))
    for part, exact in zip(parts, wanted):
      np.testing.assert_allclose(part, exact, rtol=1e-4, atol=1e-5)
    count = {ControlVariate: 9 + 4 * 18, SVRG: 4 * (9 + 4), SAGA: 9 + 4 * 9}
    np.testing.assert_array_equal(
        results.gradient_estimator_results.num_gradients,
        [count[type(estimator)]] * 3)


def test_passes_over_the_data_are_counted():
  for estimator, counts in zip(ESTIMATORS, (
      [9 + 4, 9 + 8, 9 + 12, 9 + 16], [13, 17, 21, 34], [11, 13, 15, 17])):
    posterior, parts = poisson_regression(), state([2])
    results = estimator.bootstrap_results(posterior, parts)
    for k, count in enumerate(counts):
      _, results = estimator.one_step(
          posterior, parts, results, tf.constant([1, k]))
      np.testing.assert_array_equal(results.num_gradients, [count] * 2)


def test_minibatches_may_be_shared():
  for estimator in (
      ControlVariate(2, other_state(), share_minibatch=True),
      SAGA(2, share_minibatch=True)):
    posterior = poisson_regression()
    estimate, _ = estimator.one_step(
        posterior, state([5]),
        estimator.bootstrap_results(posterior, [part + 0.5 for part in state(
            [5])]), tf.constant([1, 2]))
    assert np.ptp(estimate.target_log_prob) < 1e-5
    for gradient in estimate.grads_target_log_prob:
      np.testing.assert_allclose(gradient - gradient[0], 0., atol=1e-4)


def test_anchor_of_each_chain():
  """Chains with anchors of their own are as chains with each alone."""
  posterior, seed = poisson_regression(), tf.constant([1, 2])
  anchors = [
      tf.constant([[0.1, 0.2], [0.5, -1.]]), tf.constant([0.3, -0.2])]
  both, _ = _one_estimate(
      ControlVariate(2, anchors, share_minibatch=True), posterior, seed)
  for k in range(2):
    alone, _ = _one_estimate(
        ControlVariate(2, [a[k] for a in anchors], share_minibatch=True),
        posterior, seed)
    for mixed, single in zip(
        both.grads_target_log_prob, alone.grads_target_log_prob):
      np.testing.assert_allclose(mixed[k], single[k], rtol=1e-4)


def _one_estimate(estimator, posterior, seed):
  parts = state([2])
  return estimator.one_step(
      posterior, parts, estimator.bootstrap_results(posterior, parts), seed)


@pytest.mark.parametrize('num_rows, rows_per_chunk', [
    (10, 3), (10, 5), (10, 9), (10, 10), (10, 50), (1, 1)])
def test_a_pass_sees_each_row_once_in_chunks(num_rows, rows_per_chunk):
  lengths = []

  def add(carried, batch, k, is_new):
    del k
    lengths.append(len(batch))
    return carried + tf.tensor_scatter_nd_add(
        tf.zeros([num_rows], tf.int32), batch[:, tf.newaxis],
        tf.cast(is_new, tf.int32))

  seen = full_pass.fold(
      add, tf.zeros([num_rows], tf.int32), tf.range(num_rows), rows_per_chunk)
  np.testing.assert_array_equal(seen, np.ones(num_rows))
  assert max(lengths) <= rows_per_chunk


def test_parts_that_the_likelihood_does_not_know():
  """A part of the prior alone, as the scale of a hierarchy may be."""
  x = tf.constant([0.3, -1., 2., 0.5])
  posterior = sgmcmc.Posterior(
      lambda mu, scale: -0.5 * (mu**2 / tf.exp(scale) + scale**2),
      lambda mu, scale, x: -0.5 * (x - mu[..., tf.newaxis])**2, x)
  parts = [tf.constant([0.2, 0.4]), tf.constant([0.1, -0.3])]
  exact = sgmcmc.gradients.Exact()
  wanted = exact.one_step(
      posterior, parts, exact.bootstrap_results(posterior, parts),
      None)[0].grads_target_log_prob
  for estimator in (
      ControlVariate(2, [tf.constant(1.), tf.constant(2.)]), SVRG(2, 1),
      SAGA(2)):
    gradients = estimator.one_step(
        posterior, parts, estimator.bootstrap_results(posterior, parts),
        tf.constant([1, 2]))[0].grads_target_log_prob
    for gradient, exact_one in zip(gradients, wanted):
      np.testing.assert_allclose(gradient, exact_one, rtol=1e-5)


@pytest.mark.slow
def test_a_run_on_disk_goes_on(tmp_path, monkeypatch):
  def run(**arguments):
    return sgmcmc.sample(
        KERNELS[0](poisson_regression(), gradient_estimator=SVRG(2, 3)), 8,
        state([2]), chunk_size=2, seed=3, progress_bar=False,
        jit_compile=False, trace_fn=lambda _, results: (
            results.gradient_estimator_results.num_gradients), **arguments)

  commit = store.Store.commit
  def commit_and_stop(self, step, checkpoint):
    commit(self, step, checkpoint)
    if self.num_draws == 4:
      raise KeyboardInterrupt
  monkeypatch.setattr(store.Store, 'commit', commit_and_stop)
  with pytest.raises(KeyboardInterrupt):
    run(directory=tmp_path)
  monkeypatch.undo()
  whole, resumed = run(), run(directory=tmp_path)
  for name in ('states', 'trace', 'kernel_results'):
    tf.nest.map_structure(
        np.testing.assert_array_equal, getattr(whole, name),
        getattr(resumed, name))


def start(estimator, parts=None, posterior=None):
  kernel = sgmcmc.SGLD(
      posterior or poisson_regression(), 0.01, gradient_estimator=estimator)
  return kernel.bootstrap_results(state([7]) if parts is None else parts)


def for_one_chain():
  """A regression whose likelihood takes no chain axes."""
  x = tf.constant(np.arange(12.).reshape([6, 2]), tf.float32)
  return sgmcmc.Posterior(
      lambda theta: -tf.reduce_sum(theta**2),
      lambda theta, x: -tf.linalg.matvec(x, tf.reshape(theta, [2]))**2, x)


@pytest.mark.parametrize('make, error, message', [
    (lambda: ControlVariate(0, other_state()), ValueError, 'at least 1'),
    (lambda: ControlVariate(3, np.arange(3)), TypeError, 'dtype int64'),
    (lambda: ControlVariate(3, {'a': 1.}), TypeError, 'is a dict'),
    (lambda: start(ControlVariate(3, tf.zeros(3))), ValueError,
     r'anchor has parts of shapes \(3,\), and the state of \(7, 2\), \(7,\).*'
     r'single chain of the state, \(2,\), \(\), or of all its \(7,\) chains'),
    (lambda: start(ControlVariate(3, [tf.zeros([2, 2]), tf.zeros([2])])),
     ValueError, 'anchor has parts of shapes'),
    (lambda: ControlVariate(3, other_state(), order=3), ValueError,
     'order is 3: it has to be one of 1, 2'),
    (lambda: ControlVariate(3, tf.zeros(6000), order=2).bootstrap_results(
        sgmcmc.Posterior(
            lambda theta: -tf.reduce_sum(theta**2),
            lambda theta, x: x * tf.reduce_sum(theta), tf.ones(9)),
        [tf.zeros(6000)]),
     ValueError, '6,000 coordinates, and with order=2'),
    (lambda: start(ControlVariate(10, other_state())), ValueError,
     'only 9 examples'),
    (lambda: SVRG(3, 0), ValueError, 'steps_per_anchor is 0'),
    (lambda: SVRG(3, 1.5), TypeError, 'steps_per_anchor is 1.5'),
    (lambda: SVRG(3, 5, rows_per_chunk=0), ValueError, 'rows_per_chunk is 0'),
    (lambda: SVRG(3, 5).variance(poisson_regression(), state([3])),
     ValueError, 'single chain'),
    (lambda: SAGA(3, memory_limit=0), ValueError, 'memory_limit is 0'),
    (lambda: start(SAGA(3, memory_limit=755)), ValueError,
     'each of the 9 examples.*: 756 bytes, and memory_limit is 755. Take SVRG'),
    (lambda: start(SAGA(2), tf.zeros([2]), for_one_chain()), ValueError,
     'each example as a chain .* did not return the shape'),
    (lambda: sgmcmc.SGLD(
        lambda x: -x**2, 0.1, gradient_estimator=SVRG(3, 5)), TypeError,
     'SVRG works on minibatches'),
])
def test_refusals(make, error, message):
  with pytest.raises(error, match=message):
    make()


@pytest.mark.slow
@pytest.mark.parametrize('estimator', [
    sgmcmc.gradients.ControlVariate(3, [tf.constant(0.1), tf.constant(0.2)]),
    pytest.param(sgmcmc.gradients.SAGA(3), marks=pytest.mark.weekly),
    pytest.param(
        sgmcmc.gradients.SVRG(3, steps_per_anchor=2), marks=pytest.mark.weekly),
    pytest.param(
        sgmcmc.gradients.ExponentiallyWeighted(
            None, base=sgmcmc.gradients.SVRG(3, steps_per_anchor=2)),
        marks=pytest.mark.weekly),
], ids=lambda estimator: type(estimator).__name__)
def test_transformed_posterior_in_several_graphs(estimator):
  """One state and estimator in two graphs: bijectors cache what they saw."""
  posterior = sgmcmc.Posterior(
      lambda mean, scale: -0.5 * (mean**2 + scale**2),
      lambda mean, scale, x: -0.5 * (
          (x - mean[..., tf.newaxis]) / scale[..., tf.newaxis]
      )**2 - tf.math.log(scale[..., tf.newaxis]),
      tf.constant([-1., 0.3, 0.5, 2., 1.1])).transform(
          [tfp.bijectors.Identity(), tfp.bijectors.Exp()])
  state = [tf.constant(0.3), tf.constant(0.1)]
  kernel = sgmcmc.SGLD(posterior, 0.01, gradient_estimator=estimator)

  def run():
    return kernel.one_step(
        state, kernel.bootstrap_results(state), seed=[0, 1])[0]

  wanted = run()
  for _ in range(2):
    for a, b in zip(tf.function(run, autograph=False)(), wanted):
      np.testing.assert_allclose(a, b, rtol=1e-4)
