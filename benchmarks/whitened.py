"""Logistic regressions in the coordinates of Laplace's approximation.

The coefficients are mode + root z, with root root' Laplace's covariance, so
that z is near N(0, I): one step size suits all directions, for all samplers.
"""

import json
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from benchmarks import environments
from benchmarks import laws
from benchmarks.data import examples
from experiments import datasets
from tests import references
import tfp_sgmcmc as sgmcmc


class Problem(NamedTuple):
  """A regression in z.

  Attributes:
    x: `[N, d]`, what multiplies z.
    offset: `[N]`, the logits at the mode.
    y: `[N]`.
    mode: `[d]`, of the coefficients.
    root: `[d, d]`.
    prior_variance: Of each coefficient.
  """
  x: np.ndarray
  offset: np.ndarray
  y: np.ndarray
  mode: np.ndarray
  root: np.ndarray
  prior_variance: float

  def log_prior(self, z):
    coefficients = self.mode + tf.linalg.matvec(self.root, z)
    return -tf.reduce_sum(
        tf.square(coefficients), axis=-1) / (2. * self.prior_variance)

  def log_prob(self, z):
    """Of chains `[chains, d]`, by one product with the whole table.

    It is that over the mode's, term by term: a sum of a million terms of the
    density itself rounds by more, in float32, than HMC can bear.
    """
    more = tf.matmul(z, self.x, transpose_b=True)
    return self.log_prior(z) + tf.reduce_sum(
        self.y * more - tf.nn.softplus(more + self.offset)
        + tf.nn.softplus(self.offset), axis=-1)

  @property
  def posterior(self):
    """The same as a `Posterior`."""
    def log_likelihood(z, batch):
      x, offset, y = batch
      logits = tf.einsum('...nd,...d->...n', x, z) + offset
      return y * logits - tf.nn.softplus(logits)

    return sgmcmc.Posterior(
        self.log_prior, log_likelihood, (self.x, self.offset, self.y))


def problem(case: dict) -> Problem:
  """Covertype, class 2 against the rest, where `data` is named; else a case."""
  if case['model'] == 'covertype':
    (x, y), _ = datasets.load_covertype(case['data'])
    x = np.array(x, np.float64)
    x[:, :10] = (x[:, :10] - x[:, :10].mean(axis=0)) / x[:, :10].std(axis=0)
    variance = 10.
  else:
    (x, y), variance = examples(case), 1.
  if 'num_rows' in case:
    x, y = x[:case['num_rows']], y[:case['num_rows']]
  x, y = x.astype(np.float64), np.asarray(y, np.float64)
  mode = laws.newton(x, y, variance)
  p = 1. / (1. + np.exp(-x @ mode))
  root = np.linalg.cholesky(np.linalg.inv(
      (x.T * (p * (1. - p))) @ x + np.eye(len(mode)) / variance))
  return Problem(*(
      part.astype(np.float32) for part in (x @ root, x @ mode, y, mode, root)),
      variance)


def reference(case: dict) -> dict:
  """The mean and the sd of z, by long HMC; kept once found.

  With as many rows as a million Laplace's approximation is exact, as far as
  anything here can tell: the mean of z is 0, its sd 1.
  """
  if case['model'] == 'logistic':
    d = case['num_features']
    return dict(mean=[0.] * d, sd=[1.] * d)
  path = environments.folder() / 'references.json'
  known = json.loads(path.read_text()) if path.exists() else {}
  key = json.dumps(case, sort_keys=True)
  if key not in known:
    target = problem(case)
    d = len(target.mode)
    draws, accepted = references.hmc(
        target.log_prob, np.zeros(d, np.float32), np.eye(d), num_results=100,
        num_chains=100, seed=[1, 2], step_size=0.4, num_leapfrog_steps=5,
        num_burnin_steps=20)
    if accepted < 0.6:
      raise ValueError(f'Long HMC accepted {accepted:.0%} of its steps alone.')
    known[key] = dict(
        mean=draws.mean(axis=(0, 1), dtype=np.float64).tolist(),
        sd=draws.std(axis=(0, 1), dtype=np.float64).tolist())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(known))
  return known[key]
