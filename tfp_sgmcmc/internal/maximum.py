"""The maximum of a log density of several parts, by L-BFGS."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
import warnings

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

__all__ = ['maximum']

_NUM_ROUNDS, _ITERATIONS, _MOST_PAIRS = 30, 100, 100
# In standard deviations of the density: near enough, and worth a warning.
_NEAR, _FAR = 0.01, 0.1


def maximum(
    terms_fn: Callable[..., tf.Tensor], parts: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
  """Where a log density is largest, from a start.

  L-BFGS in rounds, each from where the last one stopped. A round looks at the
  sum of the changes of the terms since it began: in float32 the sum of the
  terms themselves is too coarse to compare places near the maximum by. The
  rounds end where (g' H g)^(1/2), with g the gradient and H the
  estimate that L-BFGS has of the density's covariance, is below 0.01: for a
  Gaussian that is the distance from the maximum in standard deviations.

  Args:
    terms_fn: Callable of the parts; returns the terms whose sum is the log
      density, `[n]`.
    parts: List of float tensors, the start.

  Returns:
    parts: List of tensors.

  Raises:
    ValueError: If the log density or its gradient is not finite at the start.
  """
  dtype = parts[0].dtype
  shapes = [part.shape for part in parts]
  sizes = [shape.num_elements() for shape in shapes]

  def split(flat):
    return [
        tf.cast(tf.reshape(piece, shape), part.dtype)
        for piece, shape, part in zip(tf.split(flat, sizes), shapes, parts)]

  # A function of its own, traced once: the optimizer calls it in many places.
  @tf.function(autograph=False)
  def loss_and_gradient(flat, reference):
    return tfp.math.value_and_gradient(
        lambda flat: -tf.cast(tf.reduce_mean(
            terms_fn(*split(flat)) - reference), dtype), flat)

  @tf.function(autograph=False)
  def minimize(flat, reference):
    return tfp.optimizer.lbfgs_minimize(
        lambda flat: loss_and_gradient(flat, reference), flat, tolerance=0.,
        max_iterations=_ITERATIONS,
        num_correction_pairs=min(sum(sizes) + 5, _MOST_PAIRS))

  terms = tf.function(lambda flat: terms_fn(*split(flat)), autograph=False)
  flat = tf.concat(
      [tf.cast(tf.reshape(part, [-1]), dtype) for part in parts], axis=0)
  reference = terms(flat)
  num_terms = int(reference.shape[0])
  _, gradient = loss_and_gradient(flat, reference)
  if not (np.all(np.isfinite(reference)) and np.all(np.isfinite(gradient))):
    raise ValueError(
        f'The log density at the start is {np.sum(reference)}, and it or its '
        'gradient is not finite: start in a place of positive probability.')
  nearest, best = np.inf, flat
  for _ in range(_NUM_ROUNDS):
    found = minimize(flat, terms(flat))
    if not np.all(np.isfinite(found.position)):
      break
    gain = -float(found.objective_value) * num_terms
    distance, flat = _distance(found, num_terms), found.position
    if distance < nearest or gain > 1.:
      nearest, best = distance, flat
    elif gain <= 0.:
      break  # Rounding is all that is left.
    if nearest < _NEAR and gain < _NEAR:
      break
  if nearest > _FAR:
    warnings.warn(
        f'The mode has not been found: it is about {nearest:.2g} standard '
        'deviations of the posterior away. Start again from this state, or '
        'nearer to the mode; in float64 the search gets further.',
        stacklevel=4)
  return split(best)


def _distance(results: Any, num_terms: int) -> float:
  """(g' H g)^(1/2) by the two loops of L-BFGS; infinite without curvature."""
  g = results.objective_gradient.numpy().astype(np.float64)
  pairs = [
      (s, y) for s, y in zip(
          results.position_deltas.numpy().astype(np.float64),
          results.gradient_deltas.numpy().astype(np.float64)) if s @ y > 0.]
  if not np.any(g):
    return 0.
  if not pairs:
    return np.inf
  q, weights = g, []
  for s, y in reversed(pairs):
    weights.append(s @ q / (s @ y))
    q = q - weights[-1] * y
  s, y = pairs[-1]
  q = q * (s @ y) / (y @ y)
  for (s, y), weight in zip(pairs, reversed(weights)):
    q = q + s * (weight - y @ q / (s @ y))
  return float(np.sqrt(max(num_terms * (g @ q), 0.)))
