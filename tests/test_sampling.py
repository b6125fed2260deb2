"""Tests of the driver: seeds, chunks, going on, disk, failures."""

import gc
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
from typing import NamedTuple
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests import killed_runs
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import program
from tfp_sgmcmc import sampling
from tfp_sgmcmc import store as store_lib
from tfp_sgmcmc.internal import array_files
from tfp_sgmcmc.internal import kept
from tfp_sgmcmc.internal import one_kernel
from tfp_sgmcmc.internal import plan

tfd = tfp.distributions


def standard_normal(x):
  """Up to a constant. TFP's densities take longer to trace."""
  return -0.5 * x**2


def make_posterior():
  def log_prior(mu, w):
    return standard_normal(mu / 10.) + tf.reduce_sum(
        standard_normal(w), axis=-1)

  def log_likelihood(mu, w, batch):
    mean = mu[..., tf.newaxis] + tf.reduce_sum(w, axis=-1, keepdims=True)
    return standard_normal(batch - mean)

  return sgmcmc.Posterior(
      log_prior, log_likelihood, tf.random.stateless_normal([200], [0, 1]))


def make_kernel(**override):
  return sgmcmc.SGHMC(**{
      'target_log_prob_fn': make_posterior(), 'step_size': 0.01,
      'friction': 5., 'gradient_estimator': sgmcmc.gradients.Uniform(20),
      **override})


def simple_kernel():
  return sgmcmc.SGHMC(standard_normal, 0.1, friction=1.)


def start(chains=3):
  return [tf.zeros([chains]), tf.ones([chains, 2])]


def trace_target(state, results):
  del state
  return results.target_log_prob


def run(kernel=None, num_results=20, state=None, seed=7, jit_compile=False,
        **arguments):
  """Without XLA unless asked for: it takes seconds to compile a kernel."""
  return sgmcmc.sample(
      kernel or make_kernel(), num_results, start() if state is None else state,
      seed=seed, progress_bar=False, jit_compile=jit_compile, **arguments)


def assert_same(first, second):
  tf.nest.map_structure(
      lambda a, b: np.testing.assert_array_equal(a, b), first, second)


def assert_same_draws(first, second):
  for name in ('states', 'trace', 'final_state', 'kernel_results'):
    assert_same(getattr(first, name), getattr(second, name))


def plain_loop(kernel, state, num_steps, seed):
  """Every state of a chain, by the seeds that the module promises."""
  seed = tf.constant([0, seed])
  results = kernel.bootstrap_results(
      state, seed=sgmcmc.random.fold_in(seed, 0))
  step = tf.function(kernel.one_step, jit_compile=True, autograph=False)
  states = []
  for t in range(1, num_steps + 1):
    state, results = step(
        state, results, seed=sgmcmc.random.fold_in(seed, t))
    states.append(state)
  return states, results


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


@pytest.mark.parametrize('dtype', [tf.float64, tf.bfloat16])
def test_disk_is_as_memory(tmp_path, dtype):
  kernel = sgmcmc.SGHMC(
      tfd.Normal(tf.zeros([], dtype), 1.).log_prob, 0.1, friction=1.)
  arguments = dict(
      num_results=10, state=tf.zeros([3], dtype), chunk_size=4,
      num_burnin_steps=3, trace_fn=trace_target)
  memory = run(kernel, **arguments)
  disk = run(kernel, directory=tmp_path / 'run', **arguments)
  again = run(kernel, directory=tmp_path / 'run', **arguments)
  for draws in (disk, again):
    assert draws.states.dtype == dtype
    assert_same_draws(memory, draws)
    assert [len(state) for state, _ in draws.chunks()] == [4, 4, 2]
    assert len(draws) == 10
  files = sorted(path.name for path in (tmp_path / 'run').iterdir())
  assert files == [
      'checkpoint_00000004.npz', 'draws_00000000-00000003.npz',
      'draws_00000004-00000007.npz', 'draws_00000008-00000009.npz', 'lock',
      'manifest.json']


def stopped_run(**arguments):
  return run(
      simple_kernel(), 8, tf.zeros([2]), num_burnin_steps=4, chunk_size=3,
      trace_fn=trace_target, **arguments)


@pytest.fixture(name='whole', scope='module')
def _whole():
  return stopped_run()


@pytest.mark.parametrize('write', [1, 2, 3, 4, 9, 11])
def test_goes_on_after_stopping_at_any_write(
    tmp_path, monkeypatch, write, whole):
  """The process ends in the midst of the n-th file."""
  num_writes = 0
  replace = os.replace

  def stop(source, target):
    nonlocal num_writes
    num_writes += 1
    if num_writes >= write:
      pathlib.Path(source).write_bytes(b'half of')
      raise KeyboardInterrupt
    replace(source, target)

  monkeypatch.setattr(array_files.os, 'replace', stop)
  with pytest.raises(KeyboardInterrupt):
    stopped_run(directory=tmp_path)
  monkeypatch.undo()
  draws = stopped_run(directory=tmp_path)
  assert_same_draws(whole, draws)


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='It forks.')
@pytest.mark.slow
def test_goes_on_after_kills_and_refuses_a_second_run(tmp_path):
  result = subprocess.run(
      [sys.executable, '-m', 'tests.killed_runs', str(tmp_path), '2'],
      cwd=pathlib.Path(__file__).parent.parent, capture_output=True,
      check=False, text=True)
  assert result.returncode == 0, result.stderr
  assert result.stdout.count(' commits') == 2
  draws, whole = killed_runs.run(tmp_path), killed_runs.run()
  assert_same_draws(whole, draws)


def test_a_finished_run_is_extended_by_draws_of_the_same_chain(tmp_path):
  arguments = dict(
      kernel=simple_kernel(), state=tf.zeros([2]), num_burnin_steps=4,
      num_steps_between_results=1, trace_fn=trace_target)
  run(num_results=5, directory=tmp_path, **arguments)
  draws = run(num_results=12, directory=tmp_path, chunk_size=4, **arguments)
  whole = run(num_results=12, **arguments)
  assert_same_draws(whole, draws)
  with pytest.raises(ValueError, match='num_results is 11, .* holds 12 draws'):
    run(num_results=11, directory=tmp_path, **arguments)


def test_a_finished_run_is_only_read(one_run, monkeypatch):
  """So it may be on a disk that cannot be written to, or used by others."""
  def refuse(*arguments):
    raise AssertionError('It was opened for writing.')

  before = {path: path.stat().st_mtime_ns for path in one_run.iterdir()}
  monkeypatch.setattr(store_lib.Store, 'open', refuse)
  monkeypatch.setattr(sgmcmc.SGLD, 'one_step', refuse)
  assert len(run(directory=one_run)) == 20
  assert before == {path: path.stat().st_mtime_ns for path in one_run.iterdir()}


def test_an_error_lets_go_of_the_directory(tmp_path):
  for _ in range(2):
    with pytest.raises(sgmcmc.NonFiniteError):
      run(BreaksAt(3), 20, [tf.zeros([2]), tf.zeros([2, 3])],
          directory=tmp_path)


@pytest.fixture(scope='module')
def one_run(tmp_path_factory):
  directory = tmp_path_factory.mktemp('one_run')
  run(directory=directory)
  return directory


@pytest.mark.parametrize('change, named', [
    (dict(seed=8), 'seed'),
    (dict(num_burnin_steps=1), 'num_burnin_steps'),
    (dict(state=start(chains=2)), 'current_state.0'),
    (dict(trace_fn=trace_target), 'trace_fn'),
    (dict(kernel=make_kernel(step_size=0.02)),
     'kernel.step_size was 0.01 and is 0.02'),
    (dict(kernel=make_kernel(gradient_estimator=sgmcmc.gradients.Uniform(9))),
     'kernel.gradient_estimator._batch_size was 20 and is 9'),
    (dict(kernel=sgmcmc.SGLD(make_posterior(), 0.01)), 'kernel.class'),
    (dict(jit_compile=True), 'jit_compile was False and is True'),
    (dict(fingerprint='data of May'), "fingerprint was None and is 'data of"),
])
def test_another_call_on_the_same_directory(one_run, change, named):
  with pytest.raises(ValueError, match='other arguments') as error:
    run(directory=one_run, **change)
  assert named in str(error.value)


def test_other_data_or_closures_on_the_same_directory(tmp_path):
  def kernel(scale, x):
    return sgmcmc.SGLD(sgmcmc.Posterior(
        tfd.Normal(0., 10.).log_prob,
        lambda mu, x: tfd.Normal(mu[..., tf.newaxis], scale).log_prob(x), x),
        1e-3)

  def call(*arguments):
    return run(kernel(*arguments), 2, tf.zeros([]), directory=tmp_path)

  call(1., tf.ones([5]))
  call(1., tf.ones([5]))
  with pytest.raises(ValueError, match='scale was 1.0 and is 2.0'):
    call(2., tf.ones([5]))
  with pytest.raises(ValueError, match='data was'):
    call(1., tf.zeros([5]))


def test_warns_of_what_it_cannot_see(tmp_path, recwarn):
  numbers = iter([1.])
  kernel = sgmcmc.SGLD(
      lambda x: -x**2 if numbers else x, 0.1)
  arguments = dict(kernel=kernel, num_results=2, state=tf.zeros([]))
  run(directory=tmp_path / 'named', fingerprint='May', **arguments)
  run(**arguments)
  assert not [w for w in recwarn if 'fingerprint' in str(w.message)]
  with pytest.warns(
      UserWarning, match=r'target_log_prob_fn.numbers \(of type list_iterator'):
    run(directory=tmp_path / 'unnamed', **arguments)


def test_a_damaged_directory_is_one_sentence(tmp_path):
  def call():
    return run(directory=tmp_path, chunk_size=5).states

  call()
  chunk = tmp_path / 'draws_00000005-00000009.npz'
  content = chunk.read_bytes()
  chunk.write_bytes(content[:100])
  with pytest.raises(ValueError, match='00000009.npz is damaged'):
    call()
  chunk.unlink()
  with pytest.raises(ValueError, match='no file with the draws 5 to 9'):
    call()
  chunk.write_bytes(content)
  call()
  (tmp_path / 'checkpoint_00000004.npz').write_bytes(b'')
  with pytest.raises(ValueError, match='checkpoint_00000004.npz is damaged'):
    call()


def test_draws_are_not_taken_for_numbers_of_another_kind(tmp_path, monkeypatch):
  """Even where the fingerprint had not seen that the trace is another."""
  monkeypatch.setattr(
      sampling.fingerprint_lib, 'fingerprint', lambda **_: ({}, ()))
  arguments = dict(
      kernel=simple_kernel(), num_results=4, state=tf.zeros([2]),
      directory=tmp_path)
  run(trace_fn=lambda state, _: state, **arguments)
  with pytest.raises(ValueError, match=(
      r'trace/0 was float32\[2\] and is int32\[2\]')):
    run(trace_fn=lambda state, _: tf.cast(state, tf.int32), **arguments)
  with pytest.raises(ValueError, match='trace/0 was float32.* is absent'):
    run(**arguments)


def resident_memory():
  """In MiB."""
  if not pathlib.Path('/proc/self/statm').exists():
    pytest.skip('The size of this process cannot be read here.')
  pages = pathlib.Path('/proc/self/statm').read_text().split()[1]
  return int(pages) * os.sysconf('SC_PAGE_SIZE') / 2**20


def test_memory_does_not_grow(tmp_path, monkeypatch):
  """100 chunks of 2 MB: without a directory this would be 200 MB."""
  resident = []
  commit = store_lib.Store.commit

  def measure(self, *arguments):
    commit(self, *arguments)
    resident.append(resident_memory())
    for path in self.path.glob('draws_*'):
      path.unlink()

  monkeypatch.setattr(store_lib.Store, 'commit', measure)
  kernel = sgmcmc.SGLD(
      tfd.Independent(tfd.Normal(tf.zeros(50_000), 1.), 1).log_prob, 0.1)
  run(kernel, 1000, tf.zeros([50_000]), chunk_size=10, directory=tmp_path)
  assert len(resident) == 100
  assert max(resident[50:]) - min(resident[10:20]) < 30


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


def interrupt(monkeypatch, call, number=signal.SIGINT):
  """Raises a signal in the midst of a call of the program."""
  if threading.current_thread() is not threading.main_thread():
    pytest.skip('Signals come to the main thread.')
  real = program.Program.__call__
  num_calls = 0

  def interrupted(program, *arguments):
    nonlocal num_calls
    outcome = real(program, *arguments)
    if num_calls == call:  # The call 0 compiles, and makes no steps.
      signal.raise_signal(number)
    num_calls += 1
    return outcome

  monkeypatch.setattr(program.Program, '__call__', interrupted)


@pytest.mark.parametrize('call', [0, 1, 2, 3, 4, 6])
@pytest.mark.parametrize('on_disk', [False, True])
def test_ctrl_c_keeps_the_draws(monkeypatch, tmp_path, call, on_disk):
  arguments = dict(
      state=tf.zeros([2]), num_burnin_steps=4, num_steps_between_results=4,
      trace_fn=trace_target, num_results=200, chunk_size=200,
      **(dict(directory=tmp_path) if on_disk else {}))
  whole = run(simple_kernel(), **{**arguments, 'directory': None})
  with monkeypatch.context() as patch:
    patch.setattr(plan, '_GROWTH', 4)
    patch.setattr(plan, 'SECONDS_PER_CALL', 1e6)
    interrupt(patch, call)
    with pytest.raises(KeyboardInterrupt, match='Interrupted after') as error:
      run(simple_kernel(), **arguments)
  assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
  assert isinstance(error.value, sgmcmc.SamplingInterrupted)
  draws, number = error.value.result, len(error.value.result)
  assert error.value.step == (0, 1, 4, 20, 80, 335, 1000)[call]
  assert number == len(range(5, error.value.step + 1, 5))
  assert_same(draws.states, whole.states[:number])
  assert_same(draws.trace, whole.trace[:number])
  if number:
    assert_same(draws.final_state, whole.states[number - 1])
  if on_disk:
    assert str(tmp_path) in str(error.value)
    assert len(store_lib.Store(tmp_path, 'sample').draws) == number
    assert_same_draws(run(simple_kernel(), **arguments), whole)
  elif 0 < number < 200:  # The step after the last draw, and so on.
    more = run(
        simple_kernel(), 10, draws.final_state,
        previous_kernel_results=draws.kernel_results)
    assert_same(more.states[4::5], whole.states[number:number + 2])


def test_sigterm_is_heard_where_it_is_asked_for(monkeypatch):
  before = signal.signal(signal.SIGTERM, signal.default_int_handler)
  try:
    with monkeypatch.context() as patch:
      interrupt(patch, 3, signal.SIGTERM)
      patch.setattr(plan, 'SECONDS_PER_CALL', 1e6)
      with pytest.raises(sgmcmc.SamplingInterrupted) as error:
        run(simple_kernel(), 1000, tf.zeros([2]))
    assert len(error.value.result) == 1 + 8 + 41
    assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
  finally:
    signal.signal(signal.SIGTERM, before)


def test_the_handlers_of_others_are_left_alone(monkeypatch):
  heard = []
  before = signal.signal(signal.SIGINT, lambda *_: heard.append(1))
  try:
    with monkeypatch.context() as patch:
      interrupt(patch, 2)
      assert len(run(simple_kernel(), 100, tf.zeros([2]))) == 100
    assert heard == [1]
  finally:
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_ctrl_c_is_heard_within_a_second():
  """In a run of days, of draws that are 100,000 steps apart."""
  script = '''
import sys, threading, time, _thread
import tensorflow as tf
import tfp_sgmcmc as sgmcmc
kernel = sgmcmc.SGLD(lambda x: -0.5 * x**2, 0.1)
def interrupt():
  time.sleep(15)
  print('sent', time.monotonic(), flush=True)
  _thread.interrupt_main()
threading.Thread(target=interrupt, daemon=True).start()
try:
  sgmcmc.sample(
      kernel, 10**9, tf.zeros([]), num_steps_between_results=10**5, seed=1,
      progress_bar=False)
except KeyboardInterrupt as error:
  print('heard', time.monotonic(), len(error.result), flush=True)
'''
  result = subprocess.run(
      [sys.executable, '-c', script], check=False, text=True, timeout=120,
      cwd=pathlib.Path(__file__).parent.parent, capture_output=True)
  assert result.returncode == 0, result.stderr
  _, sent, _, heard, number = result.stdout.split()
  assert float(heard) - float(sent) < 5.
  assert int(number) > 0


class Logs(NamedTuple):
  """Kernel results with nothing but the shape of the chains."""
  target_log_prob: tf.Tensor


class BreaksAt(tfp.mcmc.TransitionKernel):
  """Counts steps, and makes one value NaN after a given one."""

  is_calibrated = True

  def __init__(self, step):
    self._step = step

  def one_step(self, current_state, previous_kernel_results, seed=None):
    x, y = current_state
    here = tf.constant([[False] * 3, [False, False, True]])
    y = tf.where(here & (x[0] + 1. == self._step), np.inf, y)
    return [x + 1., y], previous_kernel_results

  def bootstrap_results(self, init_state):
    return Logs(tf.zeros([2]))


def broken_run(step, **arguments):
  with pytest.raises(sgmcmc.NonFiniteError) as error:
    run(BreaksAt(step), 20, [tf.zeros([2]), tf.zeros([2, 3])], chunk_size=4,
        num_burnin_steps=5, num_steps_between_results=2, **arguments)
  return error.value


@pytest.mark.parametrize('arguments', [
    {}, {'jit_compile': True}, 'many kernels', 'on disk'])
@pytest.mark.parametrize('step, num_draws', [
    (1, 0), (6, 0), (7, 1), (9, 1), (63, 19)])
def test_finds_the_exact_step_of_a_nan(
    tmp_path, monkeypatch, arguments, step, num_draws):
  if arguments == 'on disk':
    arguments = {'directory': tmp_path}
  if arguments == 'many kernels':
    monkeypatch.setattr(one_kernel, 'IS_ON', False)
    arguments = {'jit_compile': True}
  error = broken_run(step, **arguments)
  assert error.step == step
  assert len(error.result) == num_draws
  np.testing.assert_array_equal(
      error.result.states[0][:, 0], 6. + 3. * np.arange(num_draws))
  assert np.all(np.isfinite(error.result.states[1]))
  assert f'At step {step} ' in str(error)
  assert 'chain 1, part 1, 1 of 3 values' in str(error)
  if num_draws:
    np.testing.assert_array_equal(
        error.result.final_state[0], error.result.states[0][-1])


@pytest.mark.parametrize('step, num_draws', [(192, 62), (198, 64), (201, 65)])
def test_finds_the_step_in_a_later_block_of_draws(step, num_draws):
  """A chunk of 150 draws is made by a kernel that makes 64 of them."""
  with pytest.raises(sgmcmc.NonFiniteError) as error:
    run(BreaksAt(step), 150, [tf.zeros([2]), tf.zeros([2, 3])], chunk_size=150,
        num_burnin_steps=5, num_steps_between_results=2, jit_compile=True)
  assert error.value.step == step
  np.testing.assert_array_equal(
      error.value.result.states[0][:, 0], 6. + 3. * np.arange(num_draws))


def test_a_single_diverging_chain_is_found():
  kernel = sgmcmc.SGLD(lambda x: -tf.reduce_sum(x**4), step_size=1.)
  with pytest.raises(sgmcmc.NonFiniteError, match='part 0, 2 of 2 values'):
    run(kernel, 100, tf.fill([2], 10.))


def test_a_diverging_chain_is_found_and_ends_at_its_last_draw():
  kernel = make_kernel(step_size=2., friction=0.1)
  with pytest.raises(sgmcmc.NonFiniteError, match='step size') as error:
    run(kernel, 100, jit_compile=True)
  states, _ = plain_loop(kernel, start(), error.value.step, seed=7)
  finite = [
      all(np.all(np.isfinite(part)) for part in state) for state in states]
  assert finite == [True] * (error.value.step - 1) + [False]
  result = error.value.result
  assert len(result) == error.value.step - 1
  assert int(result.kernel_results.step) == len(result)
  assert_same(result.final_state, [part[-1] for part in result.states])


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


def test_a_directory_needs_a_seed(tmp_path):
  with pytest.raises(ValueError, match='a seed is needed'):
    run(seed=None, directory=tmp_path)


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
