"""Runs with a directory: they go on after a kill, and are compared."""

import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests import killed_runs
from tests.sampling_runs import BreaksAt
from tests.sampling_runs import assert_same_draws
from tests.sampling_runs import make_kernel
from tests.sampling_runs import make_posterior
from tests.sampling_runs import resident_memory
from tests.sampling_runs import run
from tests.sampling_runs import simple_kernel
from tests.sampling_runs import start
from tests.sampling_runs import trace_target
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import sampling
from tfp_sgmcmc import store as store_lib
from tfp_sgmcmc.internal import array_files

tfd = tfp.distributions


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


@pytest.fixture(name='whole')
def _whole():
  return stopped_run()


@pytest.mark.weekly_after(2)
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


@pytest.mark.slow
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


def test_a_directory_needs_a_seed(tmp_path):
  with pytest.raises(ValueError, match='a seed is needed'):
    run(seed=None, directory=tmp_path)
