"""The parameters of a posterior: its state, or functions of it.

All kinds have `constrain`, `sample_prior`, `sample_predictive` and
`part_names`; a kind of its own is `joint_model.JointModel`.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import states

__all__ = ['of_bijectors', 'of_state', 'of_white', 'prior_of']


def prior_of(
    log_prior_fn: Callable[..., tf.Tensor],
) -> tfp.distributions.Distribution | None:
  """The distribution whose `log_prob` a log prior is, None for a function."""
  distribution = getattr(log_prior_fn, '__self__', None)
  is_one = isinstance(distribution, tfp.distributions.Distribution)
  return distribution if is_one else None


def of_state(log_prior_fn: Callable[..., tf.Tensor]) -> Any:
  """Parameters that are the state, with this log prior."""
  return _AsTheyAre(log_prior_fn)


def of_bijectors(
    posterior: Any, bijectors: Sequence[tfp.bijectors.Bijector], is_list: bool,
) -> Any:
  """Parameters of a posterior as functions of unconstrained ones, phi.

  Args:
    posterior: `Posterior` of theta = b(phi).
    bijectors: b, one for each part of the state.
    is_list: Whether a state is a list of parts.

  Returns:
    functions: Besides what all parameters have, `log_prior` and
      `log_likelihood` of phi.
  """
  return _Unconstrained(posterior, bijectors, is_list)


def of_white(
    posterior: Any, mode: Sequence[tf.Tensor], factor: np.ndarray,
    is_list: bool,
) -> Any:
  """Parameters of a posterior as functions of one vector, phi.

    theta = mode + L phi

  Args:
    posterior: `Posterior` of theta.
    mode: The parts of a state.
    factor: L, `[d, d]`, of the coordinates of all parts side by side.
    is_list: Whether a state theta is a list of parts.

  Returns:
    functions: As those of `of_bijectors`.
  """
  return _White(posterior, mode, factor, is_list)


# The names of these classes are in the records of the runs of such posteriors.
class _AsTheyAre:
  """Parameters that are the state."""

  part_names = None

  def __init__(self, log_prior_fn):
    self._log_prior_fn = log_prior_fn

  def constrain(self, state):
    return state

  def sample_predictive(self, parts, covariates, seed):
    del parts, covariates, seed
    raise ValueError(
        'This posterior knows the density of the data, and not how to draw '
        'them: take the one that Posterior.from_joint_distribution returned.')

  def sample_prior(self, sample_shape, seed):
    prior = prior_of(self._log_prior_fn)
    if prior is None:
      raise ValueError(
          'The log prior is a function, which cannot be sampled. Pass '
          "a distribution's log_prob as log_prior_fn, or a start of your own.")
    return prior.sample(sample_shape, seed=seed)


class _Unconstrained:
  """The two functions of a posterior, of unconstrained parameters."""

  def __init__(self, posterior, bijectors, is_list):
    self._posterior, self._bijectors = posterior, bijectors
    self._is_list = is_list
    self.part_names = posterior.part_names

  def constrain(self, state):
    parts = self._forward(list(state) if self._is_list else [state])
    return self._posterior.constrain(parts if self._is_list else parts[0])

  def sample_prior(self, sample_shape, seed):
    theta = self._posterior.sample_prior(sample_shape, seed)
    if not self._is_list:
      return self._bijectors[0].inverse(states.to_parts(theta)[0])
    return [b.inverse(part) for b, part in zip(self._bijectors, theta)]

  def sample_predictive(self, parts, covariates, seed):
    return self._posterior.sample_predictive(
        self._forward(parts), covariates, seed=seed)

  def log_prior(self, *phi):
    """log p(b(phi)) + log |det db/dphi|."""
    log_density = self._posterior.log_prior(*self._forward(phi))
    for b, part in zip(self._bijectors, phi):
      log_density += b.forward_log_det_jacobian(
          part, event_ndims=part.shape.rank - log_density.shape.rank)
    return log_density

  def log_likelihood(self, *phi_and_batch):
    *phi, batch = phi_and_batch
    return self._posterior.log_likelihood(*self._forward(phi), batch=batch)

  def _forward(self, phi):
    if len(self._bijectors) != len(phi):
      raise ValueError(
          f'There are {len(self._bijectors)} bijectors for a state of '
          f'{len(phi)} part(s): one is needed for each part.')
    return [b.forward(part) for b, part in zip(self._bijectors, phi)]


class _White:
  """The two functions of a posterior, of a vector in units of its Hessian."""

  part_names = None

  def __init__(self, posterior, mode, factor, is_list):
    self._posterior, self._is_list = posterior, is_list
    self._shapes = [part.shape for part in mode]
    # Outside any function being traced, as constants for all of them.
    with tf.init_scope():
      self._mode = states.flatten(mode, 0)
      self._factor = tf.constant(factor, self._mode.dtype)
      self._inverse = tf.constant(np.linalg.inv(factor), self._mode.dtype)
      self._log_det = tf.constant(
          np.linalg.slogdet(factor)[1], self._mode.dtype)

  def constrain(self, state):
    vector, = state if isinstance(state, (list, tuple)) else [state]
    parts = self._theta(tf.convert_to_tensor(vector))
    return self._posterior.constrain(parts if self._is_list else parts[0])

  def sample_prior(self, sample_shape, seed):
    theta = self._posterior.sample_prior(sample_shape, seed)
    return tf.linalg.matvec(
        self._inverse,
        states.flatten(states.to_parts(theta), len(sample_shape)) - self._mode)

  def sample_predictive(self, parts, covariates, seed):
    return self._posterior.sample_predictive(
        self._theta(parts[0]), covariates, seed=seed)

  def log_prior(self, phi):
    """log p(mode + L phi) + log |det L|."""
    return self._posterior.log_prior(*self._theta(phi)) + self._log_det

  def log_likelihood(self, phi, batch):
    return self._posterior.log_likelihood(*self._theta(phi), batch=batch)

  def _theta(self, phi):
    d = self._mode.shape[0]
    if phi.shape.rank == 0 or phi.shape[-1] != d:
      raise ValueError(
          f'The state has shape {phi.shape}: of a posterior by whiten() it is '
          f'one vector a chain, [..., {d}], zero at the mode.')
    flat = self._mode + tf.linalg.matvec(self._factor, phi)
    chains = compat.shape(phi)[:-1]
    return [
        tf.reshape(piece, compat.joined_shapes([chains, shape], axis=0))
        for piece, shape in zip(
            tf.split(flat, [shape.num_elements() for shape in self._shapes],
                     axis=-1), self._shapes)]
