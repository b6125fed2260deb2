"""Runs that end early: Ctrl-C, and chains that are no longer finite."""

import pathlib
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.sampling_runs import BreaksAt
from tests.sampling_runs import assert_same
from tests.sampling_runs import assert_same_draws
from tests.sampling_runs import make_kernel
from tests.sampling_runs import plain_loop
from tests.sampling_runs import run
from tests.sampling_runs import simple_kernel
from tests.sampling_runs import start
from tests.sampling_runs import trace_target
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import program
from tfp_sgmcmc import store as store_lib
from tfp_sgmcmc.internal import one_kernel
from tfp_sgmcmc.internal import plan


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


@pytest.mark.weekly_after(7)
@pytest.mark.parametrize('call', [
    0, 2, 4, *(pytest.param(call, marks=pytest.mark.slow) for call in (1, 3, 6))
])
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
import threading, time, _thread
import tensorflow as tf
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import program
kernel = sgmcmc.SGLD(lambda x: -0.5 * x**2, 0.1)
is_compiled, call = threading.Event(), program.Program.__call__
def call_and_tell(*arguments):
  outcome = call(*arguments)
  is_compiled.set()
  return outcome
program.Program.__call__ = call_and_tell
def interrupt():
  is_compiled.wait()
  time.sleep(3)
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


def broken_run(step, **arguments):
  with pytest.raises(sgmcmc.NonFiniteError) as error:
    run(BreaksAt(step), 20, [tf.zeros([2]), tf.zeros([2, 3])], chunk_size=4,
        num_burnin_steps=5, num_steps_between_results=2, **arguments)
  return error.value


@pytest.mark.weekly_after(13)
@pytest.mark.parametrize('arguments', [
    {}, {'jit_compile': True}, 'many kernels', 'on disk'])
@pytest.mark.parametrize('step, num_draws', [
    (1, 0), (7, 1), (63, 19), *(
        pytest.param(*row, marks=pytest.mark.slow) for row in [(6, 0), (9, 1)])
])
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


@pytest.mark.weekly_after(1)
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


@pytest.mark.slow
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
