"""A run of `sample` that is killed again and again.

  python -m tests.killed_runs DIRECTORY NUMBER_OF_KILLS

One process imports TensorFlow and forks for each run: an import takes longer
than a run. It may not use TensorFlow itself before.
"""

import json
import os
import pathlib
import random
import signal
import sys
import time

import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

NUM_RESULTS = 300
REFUSED = 7


class RandomWalk(tfp.mcmc.TransitionKernel):
  """As simple as a chain can be, so that a run soon writes."""

  is_calibrated = True

  def one_step(self, current_state, previous_kernel_results, seed=None):
    noise = tf.random.stateless_normal(current_state.shape, seed)
    return current_state + noise, previous_kernel_results + 1

  def bootstrap_results(self, init_state):
    return tf.zeros([], tf.int64)


def run(directory=None):
  """A run with many commits."""
  return sgmcmc.sample(
      RandomWalk(), NUM_RESULTS, tf.zeros([2]), num_burnin_steps=20,
      chunk_size=4, seed=3, trace_fn=lambda state, results: results,
      directory=directory, progress_bar=False, jit_compile=False)


def _fork(directory):
  child = os.fork()
  if child:
    return child
  try:
    run(directory)
  except RuntimeError as error:
    os._exit(REFUSED if 'Another run is writing' in str(error) else 1)
  except BaseException as error:
    print(repr(error), file=sys.stderr, flush=True)
    os._exit(1)
  os._exit(0)


def _num_commits(directory):
  try:
    commits = json.loads((directory / 'manifest.json').read_text())['commits']
  except FileNotFoundError:
    return 0
  return commits[-1]['number'] if commits else 0


def main(directory, num_kills):
  """Kills as many runs, each at a random moment after its first commit."""
  for k in range(num_kills):
    before = _num_commits(directory)
    child = _fork(directory)
    while _num_commits(directory) == before:
      time.sleep(0.002)
    if k == 0:  # A second run on the directory while the first one writes.
      os.kill(child, signal.SIGSTOP)
      _, status = os.waitpid(_fork(directory), 0)
      assert os.waitstatus_to_exitcode(status) == REFUSED
      os.kill(child, signal.SIGCONT)
    time.sleep(random.uniform(0., 0.05))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    exit_code = os.waitstatus_to_exitcode(status)
    assert exit_code in (-signal.SIGKILL, 0), exit_code
    print(f'{exit_code}, {_num_commits(directory)} commits', flush=True)


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
