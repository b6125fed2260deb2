"""A side of a comparison in a process of its own, which takes turns.

The standard library and NumPy alone, for it runs in each peer's environment.
The process is given its case as a line of JSON, makes what it needs, and tells
how long that took; then, for each line that asks for a turn, it takes one and
answers with its seconds. So sides that cannot live in one process alternate.
"""

from collections.abc import Callable
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# For XLA: loops that look at fewer bytes a turn become one function each.
_WHOLE_LOOPS = (
    '--xla_backend_extra_options='
    'xla_cpu_small_while_loop_byte_threshold=1000000000')
# All that these frameworks read the number of their threads from.
_THREADS = (
    'NPROC', 'TF_NUM_INTRAOP_THREADS', 'TF_NUM_INTEROP_THREADS',
    'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS')


def serve(prepare: Callable[[dict], Callable[[int], Any]]) -> None:
  """Answers the harness until its end of the pipe is closed.

  Args:
    prepare: Callable of the case. It returns `turn`, a callable of a seed that
      does the work which is timed, and returns the draws; or a dict with
      `draws` and other numbers to tell of, seconds of its own among them.
  """
  answers = os.fdopen(os.dup(1), 'w')
  os.dup2(2, 1)  # What a framework prints is no answer.

  def answer(**what):
    print(json.dumps(what), file=answers, flush=True)

  case = json.loads(sys.stdin.readline())
  imported = dict(
      import_cpu=time.process_time(), import_peak=_peak(),
      import_wall=time.time() - float(os.environ['BENCHMARK_STARTED']))
  clock = Clock()
  turn = prepare(case)
  prepared = dict(prepare_wall=clock.wall, prepare_cpu=clock.cpu)
  clock = Clock()
  turn(0)  # Compiles.
  answer(**imported, **prepared, first_wall=clock.wall, first_cpu=clock.cpu,
         peak=_peak())
  for line in sys.stdin:
    command, *arguments = json.loads(line)
    if command == 'turn':
      clock = Clock()
      made = turn(*arguments)
      told = dict(wall=clock.wall, cpu=clock.cpu, peak=_peak())
      if isinstance(made, dict):
        told.update(made)
        told.pop('draws', None)
      answer(**told)
    else:  # 'law'
      answer(**_law(case, turn, *arguments))


def _law(case, turn, num_turns, num_skipped):
  """Means and sds of what the turns drew; all draws of all chains count."""
  for seed in range(num_skipped):
    turn(10_000 + seed)
  from benchmarks import data
  values = []
  for seed in range(num_turns):
    made = turn(seed + 1)
    draws = made['draws'] if isinstance(made, dict) else made
    found = data.features(case, draws)
    values.append(found.reshape([-1, found.shape[-1]]))
  values = np.concatenate(values)
  return dict(
      mean=values.mean(axis=0).tolist(), sd=values.std(axis=0).tolist())


class Clock:
  """Seconds since it was made, of the wall and of this process."""

  def __init__(self):
    self._wall, self._cpu = time.perf_counter(), time.process_time()

  @property
  def wall(self):
    return time.perf_counter() - self._wall

  @property
  def cpu(self):
    return time.process_time() - self._cpu


def _peak():
  """The largest memory of this process so far, in MB."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


class Worker:
  """The harness's end: a side that has been started.

  Args:
    python: Path of the interpreter of the side's environment.
    module: Name of the side's program.
    case: What it is to do.
    threads: How many it may use; None for what it takes by itself.
    whole_loops: Whether XLA compiles each loop as one function.
  """

  def __init__(self, python, module, case, threads=None, whole_loops=False):
    environment = {
        **os.environ, 'PYTHONPATH': ROOT, 'TF_CPP_MIN_LOG_LEVEL': '3',
        'BENCHMARK_STARTED': repr(time.time())}
    if threads is not None:
      environment.update(dict.fromkeys(_THREADS, str(threads)))
    if whole_loops:
      environment['XLA_FLAGS'] = _WHOLE_LOOPS
    self._module = module
    self._said = tempfile.TemporaryFile('w+')
    self._process = subprocess.Popen(
        [python, '-m', module], cwd=ROOT, env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said)
    self.started = self._ask(case)

  def turn(self, seed: int, busy: bool = False) -> dict:
    """Takes a turn; its seconds, and the peak of memory in MB so far.

    Args:
      seed: Python `int`.
      busy: Whether a process that does nothing but turn round runs beside it.
    """
    if not busy:
      return self._ask(['turn', seed])
    neighbour = subprocess.Popen([sys.executable, '-c', 'while True: pass'])
    try:
      return self._ask(['turn', seed])
    finally:
      neighbour.kill()
      neighbour.wait()

  def law(self, num_turns: int, num_skipped: int = 0) -> dict:
    """Means and sds of what some turns draw, after others."""
    return self._ask(['law', num_turns, num_skipped])

  def close(self) -> None:
    self._process.stdin.close()
    self._process.wait()
    self._process.stdout.close()
    self._said.close()

  def _ask(self, what):
    self._process.stdin.write(json.dumps(what) + '\n')
    self._process.stdin.flush()
    line = self._process.stdout.readline()
    if not line:
      self._said.seek(0)
      said = self._said.read().strip()
      raise RuntimeError(
          f'{self._module} has ended: {said.splitlines()[-1:]}\n{said}')
    return json.loads(line)
