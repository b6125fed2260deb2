"""What the memory of a chain is made of.

  python -m benchmarks.memory [--output benchmarks/results]

Starts a process that imports TensorFlow, TensorFlow Probability and this
package, and samples a logistic regression (N = 100,000, d = 20) with
minibatches of 100. After each of these it reads how much memory the process
has: of its own ("anonymous"), and pages of files such as TensorFlow's
libraries, which all processes of a machine share. OUTPUT/memory.md has the
table.
"""

from collections.abc import Sequence
import json
import subprocess
import sys

from benchmarks import result_lines

PROGRAM = '''
import json

def say(what):
  with open('/proc/self/status') as file:
    found = dict(line.split(':', 1) for line in file)
  print(json.dumps([what] + [
      int(found[name].split()[0]) / 1024
      for name in ('VmRSS', 'RssAnon', 'RssFile')]), flush=True)

import numpy
say('Python and NumPy')
import tensorflow as tf
say('+ TensorFlow')
import tensorflow_probability as tfp
tfd = tfp.distributions
tfp.mcmc
say('+ TensorFlow Probability')
import tfp_sgmcmc as sgmcmc
say('+ tfp_sgmcmc')

@tf.function(jit_compile=True)
def any_loop(x):
  return tf.while_loop(
      lambda i, x: i < 10, lambda i, x: (i + 1, tf.tanh(x)), (0, x))

any_loop(tf.zeros([20]))
say('+ a first loop by XLA')
x = sgmcmc.random.normal([100_000, 20], [0, 1])
y = tf.cast(tf.reduce_sum(x, axis=-1) > 0., tf.float32)
say('+ the data (8.4 MB)')
posterior = sgmcmc.Posterior(
    tfd.MultivariateNormalDiag(tf.zeros(20)).log_prob,
    lambda theta, batch: tfd.Bernoulli(logits=tf.einsum(
        '...nd,...d->...n', batch['x'], theta)).log_prob(batch['y']),
    data={'x': x, 'y': y})

def sample(num_results, kernel):
  return sgmcmc.sample(
      kernel, num_results, tf.zeros([20]), progress_bar=False, seed=0)

def make_kernel():
  return sgmcmc.SGLD(
      posterior, 1e-5, gradient_estimator=sgmcmc.gradients.Uniform(100))

kernel = make_kernel()
sample(1000, kernel)
say('+ sample, 1,000 draws')
draws = sample(100_000, kernel)
say('+ 100,000 draws (8 MB)')
for _ in range(100):
  sample(1000, kernel)
say('+ 100 more calls of this kernel')
for _ in range(5):
  sample(1000, make_kernel())
say('+ 5 more kernels')
'''


def measure() -> list[list]:
  """Rows of what has happened and MB: of all, of its own, of files."""
  run = subprocess.run(
      [sys.executable, '-c', PROGRAM], capture_output=True, text=True,
      check=True)
  return [json.loads(line) for line in run.stdout.splitlines()
          if line.startswith('[')]


def report(found: Sequence[Sequence]) -> str:
  """The table, in Markdown."""
  rows = [['', 'MB', 'more', 'of its own', 'of files']]
  rows.append(['---'] * len(rows[0]))
  before = 0.
  for what, whole, own, files in found:
    rows.append([what, *(
        f'{number:.0f}' for number in (whole, whole - before, own, files))])
    before = whole
  return f'{result_lines.table(rows)}\n'


def main(argv: Sequence[str] | None = None) -> int:
  arguments = result_lines.parser(
      'memory', __doc__, has_tiny=False).parse_args(argv)
  arguments.output.mkdir(parents=True, exist_ok=True)
  text = report(measure())
  (arguments.output / 'memory.md').write_text(text)
  print(text)
  return 0


if __name__ == '__main__':
  raise SystemExit(main())
