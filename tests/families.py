"""Models with likelihood bounds, their densities in NumPy too."""

import functools

import numpy as np
import scipy.special
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

bounds = sgmcmc.likelihood_bounds
tfd = tfp.distributions


def logistic_log_likelihood(theta, batch):
  """Of features and targets 0 or 1, for chains in leading axes."""
  x, y = batch
  logits = tf.einsum('...nd,...d->...n', x, theta)
  return y * logits - tf.math.softplus(logits)


class Logistic:
  """Logistic regression; densities in NumPy for the exact law."""
  bound = bounds.Logistic

  def __init__(self, num=4, dim=1, scale=4., seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    self.shape = (dim,)
    self.x = rng.normal(0., scale, [num, dim]).astype(dtype)
    self.y = (rng.uniform(size=num) < 0.5).astype(dtype)
    self.dtype = dtype

  likelihood = staticmethod(logistic_log_likelihood)

  def posterior(self):
    axes = range(-len(self.shape), 0)
    return sgmcmc.Posterior(
        lambda theta: tf.reduce_sum(-theta**2 / 2., axis=list(axes)),
        self.likelihood, (self.x, self.y))

  def exact(self):
    """log L_i at theta of shape [n] + shape, [n, N]."""
    def log_likelihood(theta):
      t = (2. * self.y - 1.) * (theta @ self.x.T.astype(float))
      return -np.logaddexp(0., -t)
    return log_likelihood


class Robust(Logistic):
  """Regression with Student-t residuals, df 3 and scale 0.7."""
  bound = functools.partial(bounds.StudentT, 3., 0.7)

  def __init__(self, **arguments):
    super().__init__(**arguments)
    self.y = (self.x[:, 0] + np.random.default_rng(9).standard_t(
        2., len(self.x))).astype(self.dtype)

  def likelihood(self, theta, batch):
    x, y = batch
    return tfd.StudentT(
        tf.constant(3., theta.dtype), tf.einsum('...nd,...d->...n', x, theta),
        tf.constant(0.7, theta.dtype)).log_prob(y)

  def exact(self):
    return lambda theta: scipy.stats.t.logpdf(
        self.y - theta @ self.x.T.astype(float), 3., scale=0.7)


class Softmax(Logistic):
  """Three classes, one feature."""
  bound = functools.partial(bounds.Softmax, 3)

  def __init__(self, **arguments):
    super().__init__(**arguments)
    self.shape = (*self.shape, 3)
    self.y = np.arange(len(self.x), dtype=np.int32) % 3

  def likelihood(self, theta, batch):
    x, y = batch
    logits = tf.einsum('...nd,...dk->...nk', x, theta)
    return tfd.Categorical(logits=logits).log_prob(y)

  def exact(self):
    def log_likelihood(theta):
      eta = np.einsum('nd,mdk->mnk', self.x.astype(float), theta)
      eta -= scipy.special.logsumexp(eta, axis=-1, keepdims=True)
      return eta[:, np.arange(len(self.y)), self.y]
    return log_likelihood


FAMILIES = {'logistic': Logistic, 'robust': Robust, 'softmax': Softmax}
