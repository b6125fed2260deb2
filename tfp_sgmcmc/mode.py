"""The mode of a posterior, and the curvature of its density there.

In the coordinates in which chains move, for one state without axes of chains.
"""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hessians
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import maximum
from tfp_sgmcmc.internal import states

__all__ = ['factor', 'find', 'variances']

# Of the largest curvature, where all are 1 by coordinate; less is rounding.
_LEAST_CURVATURE = {'float32': 1e-6, 'float64': 1e-12}


def find(
    posterior: Any, start: hints.State | None, num_rows: int | None,
    seed: tf.Tensor,
) -> Any:
  """What `Posterior.mode` returns, by a stateless seed."""
  if start is None:
    start = posterior.sample_prior(seed=random.fold_in(seed, 0))
  parts, terms = _about(posterior, start, num_rows, seed)
  return states.like(start, maximum.maximum(terms, parts))


def variances(
    posterior: Any, mode: hints.State, num_rows: int | None, seed: tf.Tensor,
) -> Any:
  """What `Posterior.variances` returns, by a stateless seed."""
  parts, terms = _about(posterior, mode, num_rows, seed)

  def slopes(*parts):
    return tfp.math.value_and_gradient(
        lambda *parts: -tf.reduce_sum(terms(*parts)), parts)[1]

  @tf.function(autograph=False)
  def curvatures():
    return tfp.math.diag_jacobian(xs=parts, fn=slopes)[1]

  found = curvatures()
  for k, curvature in enumerate(found):
    if not np.all(curvature.numpy() > 0.):
      name = (posterior.part_names or range(len(found)))[k]
      raise ValueError(
          f'The density does not fall along each coordinate of part {name} '
          f'of the state: curvatures from {np.min(curvature):.3g}. Pass the '
          'mode, `posterior.mode()`.')
  return states.like(mode, [1. / curvature for curvature in found])


def factor(
    posterior: Any, mode: hints.State, num_rows: int | None, seed: tf.Tensor,
) -> tuple[list[tf.Tensor], np.ndarray]:
  """A square root of the inverse of -H, H the Hessian of the log density.

  Args:
    posterior: `Posterior`.
    mode: A state without axes of chains.
    num_rows: As `Posterior.whiten` takes it.
    seed: Stateless seed.

  Returns:
    parts: The parts of the mode.
    factor: L, `float64[d, d]`, of the coordinates of all parts side by side,
      with L L^T = (-H)^(-1).
  """
  parts, terms = _about(posterior, mode, num_rows, seed)
  hessians.check_size(parts, 0, 'Posterior.whiten')

  def density(*parts):
    return -tf.reduce_sum(terms(*parts))

  @tf.function(autograph=False)
  def curvature():
    return hessians.of_columns(
        lambda direction: hessians.slope_and_gradients(
            density, parts, direction)[1], parts, 0)

  found = np.asarray(curvature(), np.float64)
  diagonal = np.diag(found)
  # In units of each coordinate: scales that differ are no fault.
  units = 1. / np.sqrt(np.where(diagonal > 0., diagonal, 1.))
  found = (found + found.T) / 2. * np.outer(units, units)
  least, largest = np.linalg.eigvalsh(found)[[0, -1]]
  if not least > _LEAST_CURVATURE.get(parts[0].dtype.name, 1e-6) * largest:
    raise ValueError(
        'The density does not fall in each direction from the state that was '
        f'given: curvatures from {least:.3g} to {largest:.3g}, in units of '
        'those along the coordinates. Pass the mode, `posterior.mode()`; and '
        'where data and prior leave a direction open, give it a prior.')
  return parts, units[:, np.newaxis] * np.linalg.inv(
      np.linalg.cholesky(found)).T


def _about(posterior, state, num_rows, seed):
  """A state's parts, and the log density as a function of them, in terms.

  The first term is the log prior, the others those of the rows, which all
  together represent all N examples.
  """
  if posterior.is_sharded:
    raise ValueError(
        'The data of this posterior are shared out among devices: take the '
        'mode of the posterior before shard().')
  parts = states.to_parts(state, 'start')
  shape = posterior.log_prior(*parts).shape
  if shape.rank:
    raise ValueError(
        f'The log prior of the start has shape {shape}: pass one state, '
        'without axes of chains.')
  posterior.check_state(parts)
  if not posterior.has_examples:
    return parts, lambda *parts: posterior.log_prior(*parts)[tf.newaxis]
  batch = posterior.data
  if batch is None:
    raise ValueError(
        'This posterior holds no data (data=None), so its mode is not to be '
        'had: pass data, a sample of all of them with num_examples=N.')
  if num_rows is not None:
    batch = posterior.gather(random.indices(
        posterior.num_rows, [checks.positive_integer('num_rows', num_rows)],
        random.fold_in(seed, 1)))
  rows = tf.nest.flatten(batch)[0].shape[0]

  def terms(*parts):
    log_likelihood = posterior.log_likelihood(*parts, batch=batch)
    scale = tf.cast(posterior.num_examples / rows, log_likelihood.dtype)
    return tf.concat([
        posterior.log_prior(*parts)[tf.newaxis], scale * log_likelihood],
        axis=0)

  return parts, terms
