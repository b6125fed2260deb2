"""Tests of the driver: seeds, chunks, programs, forms of states, arguments."""

import gc
import pickle
import sys
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.sampling_runs import assert_same
from tests.sampling_runs import assert_same_draws
from tests.sampling_runs import make_kernel
from tests.sampling_runs import plain_loop
from tests.sampling_runs import resident_memory
from tests.sampling_runs import run
from tests.sampling_runs import simple_kernel
from tests.sampling_runs import start
from tests.sampling_runs import trace_target
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import program
from tfp_sgmcmc import sampling
from tfp_sgmcmc.internal import kept
from tfp_sgmcmc.internal import plan

tfd = tfp.distributions


@pytest.mark.slow
def test_draws_are_those_of_a_plain_loop_with_the_documented_seeds():
  draws = run(num_results=6, num_burnin_steps=5, num_steps_between_results=2,
              jit_compile=True)
  states, results = plain_loop(make_kernel(), start(), 5 + 1 + 5 * 3, seed=7)
  for k in range(6):
    for part, wanted in zip(draws.states, states[5 + 3 * k]):
      np.testing.assert_allclose(part[k], wanted, rtol=1e-5, atol=1e-6)
  assert int(draws.kernel_results.step) == int(results.step) == 21
  for part, wanted in zip(draws.final_state, states[-1]):
    np.testing.assert_allclose(part, wanted, rtol=1e-5, atol=1e-6)


def test_burn_in_and_thinning_are_those_of_sample_chain():
  class Counter(tfp.mcmc.TransitionKernel):
    is_calibrated = True

    def one_step(self, current_state, previous_kernel_results, seed=None):
      return current_state + 1., previous_kernel_results

    def bootstrap_results(self, init_state):
      return ()

  arguments = dict(num_burnin_steps=4, num_steps_between_results=2)
  wanted = tfp.mcmc.sample_chain(
      5, tf.zeros([]), kernel=Counter(), trace_fn=None, seed=[0, 0],
      **arguments)
  draws = run(Counter(), 5, tf.zeros([]), chunk_size=2, **arguments)
  assert_same(draws.states, wanted)


@pytest.mark.parametrize('chunk_sizes, jit_compile', [
    ((1, 1000), False),
    pytest.param((7,), True, marks=pytest.mark.slow)])
def test_chunk_size_does_not_change_the_draws(chunk_sizes, jit_compile):
  arguments = dict(
      num_burnin_steps=9, num_steps_between_results=1, trace_fn=trace_target,
      jit_compile=jit_compile)
  whole = run(**arguments)
  for chunk_size in chunk_sizes:
    assert_same_draws(whole, run(chunk_size=chunk_size, **arguments))


def traced_kernel(monkeypatch, **override):
  """A kernel, and a list that grows when its step is traced."""
  traces = []
  kernel = make_kernel(**override)
  one_step = kernel.one_step
  monkeypatch.setattr(
      kernel, 'one_step',
      lambda *args, **kwargs: traces.append(0) or one_step(*args, **kwargs))
  return kernel, traces


def test_is_compiled_once(monkeypatch):
  numbers = []
  for arguments in (
      dict(num_results=7, num_burnin_steps=5),
      dict(num_results=50, num_burnin_steps=50)):
    kernel, traces = traced_kernel(monkeypatch)
    run(kernel, chunk_size=3, **arguments)
    numbers.append(len(traces))
  assert numbers[0] == numbers[1]


@pytest.mark.slow
def test_the_program_is_kept_with_the_kernel(monkeypatch, tmp_path):
  kernel, traces = traced_kernel(monkeypatch)
  scale = 2.

  def sample(num_results, **arguments):
    # A new function at each call, of the same line.
    return run(kernel, num_results, **{
        'trace_fn': lambda _, results: scale * results.target_log_prob,
        **arguments})

  sample(30)
  traces.clear()
  for arguments in (
      dict(num_results=30, seed=8), dict(num_results=3, num_burnin_steps=4),
      dict(num_results=20, num_steps_between_results=2, state=[
          tf.ones([3]), tf.ones([3, 2])])):
    draws = sample(**arguments)
    assert not traces
    wanted = run(
        make_kernel(), **arguments,
        trace_fn=lambda _, results: 2. * results.target_log_prob)
    assert_same_draws(draws, wanted)
  for arguments in (
      dict(state=start(2)), dict(trace_fn=trace_target),
      dict(trace_fn=lambda *_: ()), dict(num_results=1000)):
    sample(**{'num_results': 30, **arguments})
    assert traces
    traces.clear()
  sample(30)
  assert not traces
  first = sample(4, directory=tmp_path / 'two')
  scale = 3.
  second = sample(4, directory=tmp_path / 'three')
  np.testing.assert_allclose(second.trace, 1.5 * first.trace, rtol=1e-6)


@pytest.mark.slow
def test_few_programs_are_kept_and_they_end_with_the_kernel():
  kernel = simple_kernel()
  for k in range(12):
    run(kernel, 2, tf.zeros([k + 1]))
  assert 1 < len(kept.of(kernel)['programs']) < 10
  again = pickle.loads(pickle.dumps(kernel))
  assert not kept.of(again)
  ended = weakref.ref(kernel)
  del kernel
  gc.collect()
  assert ended() is None


def test_memory_does_not_grow_with_the_number_of_calls():
  """A program that XLA compiles takes 9 MiB, for ever."""
  kernel = simple_kernel()
  resident = []
  for k in range(20):
    run(kernel, 5, tf.zeros([2]), seed=k, jit_compile=True,
        trace_fn=lambda state, _: state)
    resident.append(resident_memory())
  assert resident[-1] - resident[3] < 20


def test_going_on_with_the_same_seed_is_the_same_chain():
  whole = run(num_results=10)
  first = run(num_results=4)
  rest = run(num_results=6, state=first.final_state,
             previous_kernel_results=first.kernel_results)
  for a, b, c in zip(whole.states, first.states, rest.states):
    np.testing.assert_array_equal(a, tf.concat([b, c], axis=0))


def test_seeds():
  def states(seed):
    return run(simple_kernel(), 3, tf.zeros([2]), seed=seed).states

  by_int = states(7)
  assert_same(states([0, 7]), by_int)
  assert_same(states(np.int64(7)), by_int)
  assert np.all(states(8) != by_int)
  assert np.all(states(7 + 2**32) != by_int)
  assert np.all(states(None) != states(None))
  with pytest.raises(ValueError, match='at least 0'):
    run(seed=-1)


def test_seeds_of_steps_are_the_same_from_numbers_and_tensors():
  fold_in = sgmcmc.random.fold_in
  compiled = tf.function(fold_in, jit_compile=True)
  seen = set()
  for number in (0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**62):
    wanted = fold_in([3, -4], number).numpy()
    tensor = tf.constant(number, tf.int64)
    np.testing.assert_array_equal(fold_in([3, -4], tensor), wanted)
    np.testing.assert_array_equal(
        compiled(tf.constant([3, -4]), tensor), wanted)
    seen.add(tuple(wanted))
  assert len(seen) == 7
  np.testing.assert_array_equal(
      fold_in([3, -4], tf.constant(1)), fold_in([3, -4], 1))


def test_first_momentum_depends_on_the_seed():
  """`sample_chain` starts the momentum of all seeds at one value."""
  ends = [
      run(simple_kernel(), 1, tf.zeros([3]), seed=seed)
      .kernel_results.momentum[0] for seed in range(2)]
  assert np.all(ends[0] != ends[1])
  assert np.abs(ends[0] - ends[1]).max() > 0.1


def test_kernels_of_tfp_and_nested_ones():
  kernel = tfp.mcmc.TransformedTransitionKernel(
      tfp.mcmc.HamiltonianMonteCarlo(
          tfd.Gamma(3., 2.).log_prob, step_size=0.5, num_leapfrog_steps=3),
      tfp.bijectors.Exp())
  draws = run(kernel, 400, tf.ones([20]), num_burnin_steps=50,
              trace_fn=lambda _, r: r.inner_results.is_accepted)
  assert draws.trace.dtype == tf.bool
  assert abs(float(tf.reduce_mean(draws.states)) - 1.5) < 0.1


def test_streams_run_without_xla():
  x = tf.random.stateless_normal([200], [0, 1])
  posterior = sgmcmc.Posterior(
      tfd.Normal(0., 10.).log_prob,
      lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x),
      num_examples=200)
  stream = sgmcmc.gradients.Stream(
      tf.data.Dataset.from_tensor_slices(x).batch(50))
  for estimator in (stream, sgmcmc.gradients.GaussianNoise(1., base=stream)):
    draws = run(
        sgmcmc.SGLD(posterior, 1e-3, gradient_estimator=estimator), 30,
        tf.zeros([2]), chunk_size=20)
    assert draws.states.shape == [30, 2]


def test_forms_of_states_and_dtypes():
  kernel = sgmcmc.SGLD(
      tfd.Normal(tf.constant(0., tf.float64), 1.).log_prob, 0.1)
  draws = run(kernel, 5, tf.zeros([3], tf.float64))
  assert draws.states.dtype == tf.float64 and draws.trace is None
  assert isinstance(run().states, list)
  assert len(draws) == 5 and 'Draws: 5' in repr(draws)


class Clock:
  """Time as programs take it: so long for each step, and for each call."""

  def __init__(self, monkeypatch, step=0., call=0.):
    self.now, self.calls = 0., []
    real = program.Program.__call__

    def timed(program, *arguments):
      outcome = real(program, *arguments)
      self.now += call + step * outcome.num_steps
      self.calls.append(outcome.num_steps)
      return outcome

    monkeypatch.setattr(program.Program, '__call__', timed)
    monkeypatch.setattr(sampling.time, 'monotonic', lambda: self.now)


def test_a_call_takes_half_a_second(monkeypatch):
  """Of steps of 5 ms, whether they are burn-in, between draws, or draws."""
  clock = Clock(monkeypatch, step=5e-3, call=1e-5)
  run(simple_kernel(), 400, tf.zeros([2]), num_burnin_steps=600)
  run(simple_kernel(), 3, tf.zeros([2]), num_steps_between_results=400)
  assert sum(clock.calls) == 600 + 400 + 1 + 2 * 401
  assert max(clock.calls) <= 100
  assert len(clock.calls) < 80  # 50 chunks, some of several calls.
  clock.calls.clear()
  run(simple_kernel(), 4000, tf.zeros([2]))  # A chunk of 200 is three calls.
  assert len(clock.calls) < 70


def test_how_long_calls_are_does_not_change_the_draws(monkeypatch):
  arguments = dict(
      num_results=40, num_burnin_steps=9, num_steps_between_results=3,
      chunk_size=7, trace_fn=trace_target)
  whole = run(**arguments)
  numbers = np.random.default_rng(0)
  monkeypatch.setattr(
      plan.Pace, 'update', lambda self, *_: setattr(
          self, 'num_steps', int(numbers.integers(1, 15))))
  again = run(**arguments)
  assert_same_draws(whole, again)
  for draws in (whole, again):
    assert [len(trace) for _, trace in draws.chunks()] == [7] * 5 + [5]


@pytest.mark.parametrize('arguments, error, message', [
    (dict(num_results=0), ValueError, 'num_results is 0'),
    (dict(num_results=2.5), TypeError, 'num_results is 2.5'),
    (dict(num_burnin_steps=-1), ValueError, 'num_burnin_steps is -1'),
    (dict(num_burnin_steps='1'), TypeError, 'num_burnin_steps'),
    (dict(num_steps_between_results=-2), ValueError, 'between_results is -2'),
    (dict(chunk_size=0), ValueError, 'chunk_size is 0'),
    (dict(trace_fn=3), TypeError, 'trace_fn is 3'),
    (dict(fingerprint=3), TypeError, 'fingerprint is 3'),
    (dict(kernel=len), TypeError, 'kernel is'),
    (dict(directory=''), ValueError, "directory is ''"),
    (dict(directory=b'draws'), TypeError, "directory is b'draws'"),
    (dict(state=[tf.zeros([3]), tf.constant([1])]), TypeError, 'int32'),
    (dict(state=[tf.constant(np.nan), tf.zeros(2)]), ValueError, 'not finite'),
])
def test_bad_arguments(arguments, error, message):
  with pytest.raises(error, match=message):
    run(**arguments)


def test_does_not_warn_of_uncalibrated_kernels(recwarn):
  run()
  assert not [w for w in recwarn if 'calibrated' in str(w.message)]


def test_progress(capfd):
  sgmcmc.sample(make_kernel(), 20, start(), num_burnin_steps=20, seed=1,
                jit_compile=False)
  assert '40/40' in capfd.readouterr().out
  run()
  assert '/' not in capfd.readouterr().out


@pytest.mark.filterwarnings('ignore::FutureWarning')
def test_to_arviz():
  pytest.importorskip('arviz')
  draws = run(trace_fn=lambda _, results: results)
  exported = draws.to_arviz()
  assert exported.posterior['state_0'].shape == (3, 20)
  assert exported.posterior['state_1'].shape == (3, 20, 2)
  np.testing.assert_array_equal(
      exported.posterior['state_1'][2, 5], draws.states[1][5, 2])
  np.testing.assert_array_equal(
      exported.sample_stats['lp'][1], draws.trace.target_log_prob[:, 1])
  assert 'step' not in exported.sample_stats
  named = draws.to_arviz(var_names=['mu', 'w'])
  assert list(named.posterior.data_vars) == ['mu', 'w']
  with pytest.raises(ValueError, match='1 names'):
    draws.to_arviz(var_names=['mu'])
  single = run(
      sgmcmc.SGLD(tfd.Normal(0., 1.).log_prob, 0.1), 5, tf.zeros([]))
  assert single.to_arviz().posterior['state'].shape == (1, 5)


def test_to_arviz_without_arviz(monkeypatch):
  monkeypatch.setitem(sys.modules, 'arviz', None)
  with pytest.raises(ImportError, match=r'tfp_sgmcmc\[arviz\]'):
    run().to_arviz()


def test_draws_have_the_law_of_the_target():
  kernel = sgmcmc.SGHMC(
      tfd.Normal(2., 0.5).log_prob, 0.2, friction=2., integrator='baoab')
  draws = run(kernel, 500, tf.zeros([200]), num_burnin_steps=100)
  assert abs(float(tf.reduce_mean(draws.states)) - 2.) < 0.02
  assert abs(float(tf.math.reduce_std(draws.states)) - 0.5) < 0.02
