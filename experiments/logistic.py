"""The logistic regressions of Pakman et al. (2017), and their laws by HMC."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tests import references
import tfp_sgmcmc as sgmcmc

__all__ = ['BATCH_SIZE', 'Law', 'Problem', 'hmc', 'make_problem', 'sbps']

BATCH_SIZE, CONFIDENCE, REFRESH_RATE = 100, 3., 0.05


class Problem(NamedTuple):
  """A logistic regression: its posterior, and Laplace's approximation."""
  posterior: sgmcmc.Posterior
  posterior64: sgmcmc.Posterior
  mode: np.ndarray
  covariance: np.ndarray

  @property
  def features(self):
    return self.posterior64.data[0].numpy()

  def negative_log_density(self, w):
    """-log p(w | data) less that of the mode, in float64; `w` is [num, ...]."""
    # A loop over draws: all logits at once do not fit into memory.
    density = tf.function(
        lambda w: tf.map_fn(self.posterior64, w), autograph=False)
    return (self.posterior64(self.mode) - density(
        tf.cast(w, tf.float64))).numpy()

  def draw(self, num, widening, seed):
    """Draws of N(mode, widening * covariance), as float32."""
    z = np.asarray(sgmcmc.random.normal([num, len(self.mode)], seed))
    scale = np.linalg.cholesky(widening * self.covariance)
    return tf.constant(self.mode + z @ scale.T, tf.float32)


def make_problem(seed, variance, num_features=20, num_examples=1000):
  """Features N(0, 1) but for the first, of another variance; a flat prior."""
  random = np.random.default_rng(seed)
  weights = random.uniform(-5., 5., num_features)
  x = random.normal(size=[num_examples, num_features])
  x[:, 0] *= np.sqrt(variance)
  x = x.astype('f4')
  y = random.uniform(size=num_examples) < 1. / (1. + np.exp(-x @ weights))

  def log_likelihood(w, batch):
    x, sign = batch
    return -tf.nn.softplus(sign * tf.einsum('...nd,...d->...n', x, w))

  def posterior(dtype):
    return sgmcmc.Posterior(
        lambda w: tf.zeros_like(w[..., 0]), log_likelihood,
        (tf.cast(x, dtype), tf.cast(1. - 2. * y, dtype)))

  double = posterior(tf.float64)
  return Problem(
      posterior(tf.float32), double, *references.laplace(double, num_features))


def paper_problem(seed):
  """N = 1,000, d = 20, one component of the features of variance 6."""
  return make_problem(seed, 6.)


def sbps(problem, refresh_rate=REFRESH_RATE, preconditioner=None):
  """The paper's SBPS: n = 100, k = 3."""
  return sgmcmc.StochasticBouncyParticleSampler(
      problem.posterior, confidence=CONFIDENCE, refresh_rate=refresh_rate,
      gradient_estimator=sgmcmc.gradients.Uniform(BATCH_SIZE),
      preconditioner=preconditioner)


class Law(NamedTuple):
  """The posterior by HMC, with moments along Laplace's eigenvectors.

  These are in the order of their eigenvalues, the smallest first.
  """
  draws: np.ndarray
  axes: np.ndarray
  mean: np.ndarray
  sd: np.ndarray
  excess: float

  def project(self, w):
    """Standardised coordinates along the eigenvectors."""
    return (np.asarray(w, np.float64) @ self.axes - self.mean) / self.sd


def hmc(problem, num_results, num_chains, seed):
  """The law by HMC, in the coordinates of Laplace's approximation."""
  draws, _ = references.hmc(
      problem.posterior64, problem.mode, np.linalg.cholesky(problem.covariance),
      num_results, num_chains, seed, step_size=0.2, num_leapfrog_steps=8)
  axes = np.linalg.eigh(problem.covariance)[1]
  along = draws.reshape([-1, len(axes)]) @ axes
  return Law(draws, axes, along.mean(axis=0), along.std(axis=0),
             float(problem.negative_log_density(draws).mean()))
