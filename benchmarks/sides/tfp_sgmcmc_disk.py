"""SGLD on more rows than memory should hold: from a file, or in memory.

The file has the rows in random order, as records of a batch each. It is made
once, and kept where the environments of peers are.
"""

import os
import pathlib

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks import environments
from benchmarks import targets
from benchmarks import worker
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions

_ROWS_A_CHUNK = 100_000


def table(case: dict) -> pathlib.Path:
  """The file of a logistic regression's rows: features, then 0 or 1."""
  n, d = case['num_examples'], case['num_features']
  path = environments.folder() / f'rows_{n}_{d}.f32'
  if path.exists() and path.stat().st_size == 4 * n * (d + 1):
    return path
  path.parent.mkdir(parents=True, exist_ok=True)
  rng = np.random.default_rng(0)
  part = path.with_suffix(f'.{os.getpid()}')
  with part.open('wb') as file:
    for first in range(0, n, _ROWS_A_CHUNK):
      x = rng.normal(size=[min(_ROWS_A_CHUNK, n - first), d])
      y = x.sum(axis=1) > rng.logistic(size=len(x))
      file.write(np.float32(np.column_stack([x, y])).tobytes())
  part.replace(path)
  return path


def prepare(case):
  n, d, size = (
      case[name] for name in ('num_examples', 'num_features', 'batch_size'))
  path = table(case)

  def log_likelihood(theta, rows):
    return targets.logistic_log_likelihood(
        theta, (rows[:, :d], rows[:, d]))

  log_prior = tfd.MultivariateNormalDiag(tf.zeros(d)).log_prob
  if case['from_disk']:
    posterior = sgmcmc.Posterior(log_prior, log_likelihood, num_examples=n)
    records = tf.data.FixedLengthRecordDataset(
        [str(path)], 4 * size * (d + 1)).shuffle(case['num_shuffled'])
    estimator = sgmcmc.gradients.Stream(records.map(
        lambda record: tf.reshape(
            tf.io.decode_raw(record, tf.float32), [size, d + 1])).prefetch(4))
  else:
    posterior = sgmcmc.Posterior(
        log_prior, log_likelihood,
        tf.constant(np.fromfile(path, np.float32).reshape([n, d + 1])))
    estimator = sgmcmc.gradients.Uniform(size)
  kernel = sgmcmc.SGLD(
      posterior, step_size=8. * size / n**2, gradient_estimator=estimator)

  def turn(seed):
    sgmcmc.sample(
        kernel, 1, tf.ones([d]), num_burnin_steps=case['num_steps'] - 1,
        trace_fn=None, seed=seed, progress_bar=False)

  return turn


if __name__ == '__main__':
  worker.serve(prepare)
