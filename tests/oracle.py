"""The exact law of linear samplers at finite steps, and tests against it.

On a Gaussian target a step is linear in the state z,

  z <- M z + N_e e + N_x xi,  e ~ (0, C) from the minibatch, xi ~ N(0, I),

so its stationary covariance solves P = M P M' + N_e C N_e' + N_x N_x'. The
steps are written out again here, in NumPy, from the papers' equations.
"""

import numpy as np
import scipy.linalg
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

# A test that should pass fails this often by chance.
FALSE_ALARM_RATE = 1e-6


class GaussianModel:
  """x_i ~ N(theta, S), S known, prior N(m, V): noise independent of theta."""

  def __init__(self, num_examples=12, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    self.dtype = dtype
    self.num_examples = num_examples
    self.data = rng.uniform(-2., 2., size=(num_examples, 3)).astype(dtype)
    self.scale = np.array([[2., 0., 0.], [1., 3., 0.], [0., -1., 2.]])
    self.prior_mean = np.array([1., -1., 0.5])
    self.prior_scale = np.array([0.5, 1., 2.])
    self.likelihood_precision = np.linalg.inv(self.scale @ self.scale.T)
    prior_precision = np.diag(self.prior_scale**-2)
    self.precision = prior_precision + num_examples * self.likelihood_precision
    self.mean = np.linalg.solve(
        self.precision,
        prior_precision @ self.prior_mean
        + self.likelihood_precision @ self.data.sum(axis=0))

  def gradient_covariance(self, estimator):
    """C of the estimate, from its definition, over the data."""
    if not isinstance(estimator, sgmcmc.gradients.Uniform):
      return np.zeros([3, 3])
    big, small = self.num_examples, estimator.batch_size
    correction = (
        1. - 1. / big if estimator._replacement else 1. - small / big)
    covariance = np.cov(self.data, rowvar=False) * big**2 / small * correction
    return self.likelihood_precision @ covariance @ self.likelihood_precision

  def posterior(self, num_parts=1):
    """The model on a state of one part `[3]`, or parts `[2]` and `[]`."""
    prior = tfp.distributions.MultivariateNormalDiag(
        self.prior_mean.astype(self.dtype), self.prior_scale.astype(self.dtype))
    scale = self.scale.astype(self.dtype)

    def join(parts):
      if num_parts == 1:
        return parts[0]
      return tf.concat([parts[0], parts[1][..., tf.newaxis]], axis=-1)

    def log_likelihood(*parts_and_batch):
      *parts, batch = parts_and_batch
      return tfp.distributions.MultivariateNormalTriL(
          join(parts)[..., tf.newaxis, :], scale).log_prob(batch)

    return sgmcmc.Posterior(
        lambda *parts: prior.log_prob(join(parts)), log_likelihood, self.data)


def stationary_covariance(step, size, gradient_covariance):
  """P of the linear `step(z, e, xi)` for states of length `size`."""
  d = len(gradient_covariance)
  zero_z, zero = np.zeros(size), np.zeros(d)
  columns = lambda fn, n: np.stack([fn(row) for row in np.eye(n)], axis=1)
  transition = columns(lambda z: step(z, zero, zero), size)
  from_gradient = columns(lambda e: step(zero_z, e, zero), d)
  from_noise = columns(lambda xi: step(zero_z, zero, xi), d)
  noise = (from_gradient @ gradient_covariance @ from_gradient.T
           + from_noise @ from_noise.T)
  assert np.abs(np.linalg.eigvals(transition)).max() < 1.
  return scipy.linalg.solve_discrete_lyapunov(transition, noise)


def sgld_covariance(precision, noise, h, temperature=1., diagonal=1.):
  """Welling and Teh (2011), equation 4; Li et al. (2016), algorithm 1."""
  def step(theta, e, xi):
    g = -precision @ theta + e
    return theta + h * diagonal * g + np.sqrt(
        2. * h * temperature * diagonal) * xi
  return stationary_covariance(step, len(precision), noise)


def euler_covariance(precision, noise, h, friction, temperature=1., b=0.):
  """Covariance of (theta, r): momentum first, then the drift with the new."""
  d = len(precision)
  def step(z, e, xi):
    theta, r = z[:d], z[d:]
    r = (r + h * (-precision @ theta + e) - h * friction * r
         + np.sqrt(2. * (friction - b) * temperature * h) * xi)
    return np.concatenate([theta + h * r, r])
  return stationary_covariance(step, 2 * d, noise)


def baoab_covariance(precision, noise, h, friction, temperature=1., b=0.):
  """Covariance of (theta, r); the gradient's noise is used by two steps."""
  d = len(precision)
  def step(z, e, xi):
    theta, r, old = np.split(z, 3)
    r = r + h / 2. * (-precision @ theta + old)
    theta = theta + h / 2. * r
    r = np.exp(-friction * h) * r + np.sqrt(
        (1. - np.exp(-2. * friction * h)) * temperature
        * (1. - b / friction)) * xi
    theta = theta + h / 2. * r
    r = r + h / 2. * (-precision @ theta + e)
    return np.concatenate([theta, r, e])
  return stationary_covariance(step, 3 * d, noise)[:2 * d, :2 * d]


def law_p_value(samples, mean, covariance):
  """P-value of independent samples under N(mean, covariance), by moments.

  After whitening, sqrt(K) times the mean and (up to sqrt 2 on the diagonal) the
  covariance minus I are independent standard normals: their squares add up to
  a chi-squared variable.
  """
  samples = np.asarray(samples, np.float64)
  if not np.all(np.isfinite(samples)):
    return 0.
  num, d = samples.shape
  white = scipy.linalg.solve_triangular(
      np.linalg.cholesky(covariance), (samples - mean).T, lower=True)
  second = white @ white.T / num - np.eye(d)
  upper = second[np.triu_indices(d, 1)]
  statistic = num * (
      np.sum(white.mean(axis=1)**2) + np.sum(upper**2)
      + np.sum(np.diag(second)**2) / 2.)
  return scipy.stats.chi2.sf(statistic, d + d * (d + 1) // 2)


def run_chains(kernel, state, num_steps, results=None, seed=(1, 2)):
  """The last state and results of chains run by compiled sample_chain."""
  if results is None:
    results = kernel.bootstrap_results(state)

  @tf.function(jit_compile=True)
  def run(state, results):
    def body(step, state, results, seed):
      seed = sgmcmc.random.fold_in(seed, 0)
      state, results = kernel.one_step(state, results, seed=seed)
      return step + 1, state, results, seed
    return tf.while_loop(
        lambda step, *_: step < num_steps, body,
        (0, state, results, tf.constant(seed)))[1:3]

  return run(state, results)


def join_parts(parts, num_chains):
  """Parts as one array of shape [chains, d]."""
  parts = parts if isinstance(parts, (list, tuple)) else [parts]
  return np.concatenate(
      [np.reshape(part, [num_chains, -1]) for part in parts], axis=1)
