"""Laplace's approximation; weighted draws and long HMC in its coordinates.

What samplers are held to where a posterior has no closed form: by the tests,
the benchmarks and the experiments.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np
import scipy.special
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

__all__ = ['WeightedDraws', 'hessian', 'hmc', 'laplace', 'weighted_draws']


def laplace(
    log_prob: Callable[[tf.Tensor], tf.Tensor], size: int,
) -> tuple[np.ndarray, np.ndarray]:
  """The mode of a log-concave density, and the covariance that fits it there.

  By Newton's method from zero, with steps halved until the density grows.

  Args:
    log_prob: Callable of a float64 tensor `[size]`, its log density.
    size: The number of coordinates.

  Returns:
    mode: `[size]`.
    covariance: The inverse of the Hessian of -log_prob there, `[size, size]`.
  """
  derivatives = tf.function(
      lambda w: _derivatives(log_prob, w), autograph=False)
  mode = np.zeros(size)
  for _ in range(100):
    value, gradient, curvature = (x.numpy() for x in derivatives(mode))
    step = np.linalg.solve(-curvature, gradient)
    while log_prob(mode + step) < value - 1e-9:
      step /= 2.
    mode = mode + step
    if np.abs(step).max() < 1e-9 * np.abs(mode).max():
      return mode, np.linalg.inv(-derivatives(mode)[2].numpy())
  raise ValueError('Newton\'s method has not converged in 100 steps.')


class WeightedDraws(NamedTuple):
  """Independent draws of another law, with weights that make up for it.

  Attributes:
    draws: `[num, d]`.
    weights: `[num]`, with sum 1; half of the draws or more are effective.
  """
  draws: np.ndarray
  weights: np.ndarray


def weighted_draws(
    log_prob: Callable[[np.ndarray], np.ndarray],
    mode: np.ndarray,
    covariance: np.ndarray,
    num: int,
    freedom: float,
    seed: Any,
    scale: float = 1.,
) -> WeightedDraws:
  """Draws of a multivariate t about the mode, weighted by density / t.

  Args:
    log_prob: Callable of states `[n, d]`, their log densities up to a constant.
    mode: `[d]`.
    covariance: Laplace's, `[d, d]`.
    num: Python `int`, a multiple of 10,000.
    freedom: The degrees of freedom of t.
    seed: Of NumPy's generator.
    scale: How much wider than Laplace's law t is.

  Returns:
    weighted: `WeightedDraws`.
  """
  root, size = scale * np.linalg.cholesky(covariance), len(mode)
  rng = np.random.default_rng(seed)
  draws, log_weights = [], []
  for _ in range(num // 10_000):
    z = rng.normal(size=[10_000, size])
    z /= np.sqrt(rng.chisquare(freedom, size=[10_000, 1]) / freedom)
    theta = mode + z @ root.T
    log_t = -(freedom + size) / 2. * np.log1p(np.sum(z**2, axis=1) / freedom)
    draws.append(theta)
    log_weights.append(log_prob(theta) - log_t)
  weights = scipy.special.softmax(np.concatenate(log_weights))
  assert 1. / np.sum(weights**2) > num / 2.
  return WeightedDraws(np.concatenate(draws), weights)


def hessian(
    log_prob: Callable[[tf.Tensor], tf.Tensor], mode: tf.Tensor) -> np.ndarray:
  """The Hessian of -log_prob, `[d, d]` in float64."""
  return -_derivatives(log_prob, mode)[2].numpy().astype(np.float64)


def _derivatives(log_prob, w):
  """The value, the gradient and the Hessian of `log_prob`."""
  w = tf.convert_to_tensor(w)
  with tf.GradientTape() as tape:
    tape.watch(w)
    value, gradient = tfp.math.value_and_gradient(log_prob, w)
  return value, gradient, tape.jacobian(gradient, w)


def hmc(
    log_prob: Callable[[tf.Tensor], tf.Tensor],
    mode: Any,
    root: np.ndarray,
    num_results: int,
    num_chains: int,
    seed: Any,
    step_size: float,
    num_leapfrog_steps: int,
    num_burnin_steps: int = 50,
    num_adaptation_steps: int = 0,
    start_scale: float = 1.,
    progress_bar: bool = False,
) -> tuple[np.ndarray, float]:
  """Draws of HMC in coordinates z, where the state is mode + root z.

  With a root of Laplace's covariance the law of z is near N(0, I), so that one
  step size suits all directions.

  Args:
    log_prob: Callable of a state `[chains, d]`.
    mode: `[d]`, in the dtype of the chains.
    root: `[d, d]`.
    num_results: Python `int`, the number of draws.
    num_chains: Python `int`.
    seed: Stateless seed.
    step_size: Of the leapfrog steps, the same in all directions of z.
    num_leapfrog_steps: Python `int`.
    num_burnin_steps: Python `int`.
    num_adaptation_steps: Python `int`, the number of first steps that adapt the
      step size.
    start_scale: The chains start at z ~ N(0, start_scale^2 I).
    progress_bar: Python `bool`.

  Returns:
    draws: `[num_results, num_chains, d]`.
    accepted: The share of accepted steps.
  """
  mode = tf.convert_to_tensor(mode)
  root = tf.constant(root, mode.dtype)

  def to_state(z):
    return mode + tf.linalg.matvec(root, z)

  kernel = tfp.mcmc.HamiltonianMonteCarlo(
      lambda z: log_prob(to_state(z)), num_leapfrog_steps=num_leapfrog_steps,
      step_size=mode.dtype.as_numpy_dtype(step_size))
  if num_adaptation_steps:
    kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
        kernel, num_adaptation_steps)

  def is_accepted(_, results):
    return (results.inner_results if num_adaptation_steps
            else results).is_accepted

  draws = sgmcmc.sample(
      kernel, num_results,
      start_scale * sgmcmc.random.normal(
          [num_chains, len(mode)], seed, mode.dtype),
      num_burnin_steps=num_burnin_steps, seed=seed, progress_bar=progress_bar,
      trace_fn=is_accepted)
  return to_state(draws.states).numpy(), float(np.mean(draws.trace))
