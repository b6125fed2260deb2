"""Law tests and speeds on the accelerator of this machine.

  python benchmarks/gpu.py [--output FILE] [--repeats 5] [--tiny]
      [--tests tests/mcmc tests/keras/test_law.py] [--rows perceptron fit]
      [--peers jax] [--processes 8]

Names what TensorFlow finds (a GPU, else the CPU: a TPU would have to be
initialised first, and no test here does so); compares the random numbers with
those of the CPU; runs the tests of laws, which TensorFlow places on the
accelerator; and makes the rows of `python -m benchmarks` on chains and on
`fit`, beside the peers that are named. The report is Markdown, and says of what
hardware it is; the exit code is 1 if a test or a row failed.
"""

import argparse
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
# Processes share the memory of the device.
os.environ['TF_FORCE_GPU_ALLOW_GROWTH'] = 'true'
os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import tfp_sgmcmc as sgmcmc  # noqa: E402

LAWS = (
    'tests/test_random.py', 'tests/mcmc/test_linear_law.py',
    'tests/mcmc/test_sgnht.py', 'tests/pdmp/test_law.py',
    'tests/gradients/test_exponentially_weighted.py', 'tests/keras/test_law.py')
ROWS = (
    'one_chain', 'many_chains', 'perceptron', 'fit_wall', 'networks',
    'first_fit', 'predict', 'bouncy')


def accelerator():
  """The name of the device for TensorFlow, and of the hardware."""
  devices = tf.config.list_physical_devices('GPU')
  if devices:
    details = tf.config.experimental.get_device_details(devices[0])
    return 'GPU:0', details.get('device_name', 'GPU')
  return 'CPU:0', f'{platform.processor() or platform.machine()} (no other)'


def random_numbers(device):
  """How the numbers of a device differ from those of the CPU."""
  def draws(name, jit_compile):
    with tf.device(name):
      made = tf.function(lambda seed: (
          sgmcmc.random.bits([100_000], seed),
          sgmcmc.random.normal([1000, 100], seed),
          sgmcmc.random.indices(1_000_000, [1000], seed)),
          jit_compile=jit_compile, autograph=False)(tf.constant([1, 2]))
    return [value.numpy() for value in made]

  lines = []
  bits, normals, indices = draws('CPU:0', True)
  for jit_compile in (False, True):
    other_bits, other_normals, other_indices = draws(device, jit_compile)
    lines.append(
        f'- {"with" if jit_compile else "without"} XLA: words '
        f'{"equal" if np.array_equal(bits, other_bits) else "DIFFERENT"}, '
        'indices '
        f'{"equal" if np.array_equal(indices, other_indices) else "DIFFERENT"}'
        f', normals within {np.abs(normals - other_normals).max():.1e}')
  return lines


def run(*command):
  """A command's exit code, and its output's lines without TensorFlow's own."""
  done = subprocess.run(
      [sys.executable, *command], cwd=ROOT, text=True, stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT, env={**os.environ, 'PYTHONPATH': str(ROOT)})
  return done.returncode, done.stdout.splitlines()


def main(argv=None):
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--output', type=pathlib.Path)
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--tests', nargs='*', default=LAWS)
  parser.add_argument('--rows', nargs='*', default=ROWS)
  parser.add_argument(
      '--peers', nargs='*', default=[], help='see python -m benchmarks --help')
  parser.add_argument(
      '--processes', type=int, default=1, help='that run tests side by side')
  parser.add_argument(
      '--tiny', action='store_true', help='shows that it runs, and no speed')
  arguments = parser.parse_args(argv)
  device, hardware = accelerator()
  report = [
      f'# On {hardware}', '', f'TensorFlow {tf.__version__}, device {device}.',
      '', '## Random numbers, against the CPU of this machine', '',
      *random_numbers(device), '', '## Laws', '']
  failed = False
  if arguments.tests:
    failed, lines = run(
        '-m', 'pytest', '-q', '--dist', 'worksteal',
        f'--numprocesses={arguments.processes}', *arguments.tests)
    report += [f'    {line}' for line in lines
               if line.startswith(('FAILED', 'ERROR'))] + [f'    {lines[-1]}']
  with tempfile.TemporaryDirectory() as folder:
    code, lines = run(
        '-m', 'benchmarks', f'--rounds={arguments.repeats}', '--accelerator',
        '--peers', *arguments.peers, '--rows', *arguments.rows,
        f'--output={folder}', *['--tiny'] * arguments.tiny)
    failed = failed or code
    table = pathlib.Path(folder) / 'speed.md'
    report += ['', '## Speed', '', table.read_text() if table.exists() else
               '\n'.join(lines[-5:])]
  text = '\n'.join(report) + '\n'
  print(text)
  if arguments.output:
    arguments.output.write_text(text)
  return int(bool(failed))


if __name__ == '__main__':
  sys.exit(main())
