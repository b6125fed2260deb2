"""Rows of the data drawn with probabilities of their own.

Where the gradients of a few examples are far larger than the others', as of
those that alone have some rare feature, a uniform minibatch misses them nearly
always and is far off where it does not. With probabilities p_i in proportion to
the size of what example i adds, n independent draws and the weights
1 / (n p_i), the estimate is unbiased as before, and of the least variance that
independent draws can have. Putcha, Nemeth and Fearnhead (2023), section 3.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc import random
from tfp_sgmcmc.gradients import minibatch
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = ['Table', 'preferential_probabilities']


# Of 1 / M. The draws tell probabilities of 2^-24 / M apart.
_LEAST = 1e-4


class Table:
  """Draws row i with probability p_i, in O(1): Walker's alias method.

  A cell is drawn uniformly among the M rows; it is row i with probability
  `threshold_i`, else row `alias_i`.
  """

  def __init__(self, probabilities: hints.TensorLike):
    """Makes the table.

    Args:
      probabilities: Positive numbers `[M]`, in proportion to p.

    Raises:
      ValueError: If they are not a vector of positive finite numbers, or one is
        nearly zero.
      TypeError: If they are no numbers.
    """
    given = checks.static_value(probabilities)
    if given is None:
      raise TypeError(
          'probabilities are a tensor of a function being traced: pass '
          'numbers.')
    if given.dtype.kind not in 'fiu':
      raise TypeError(
          f'probabilities have dtype {given.dtype.name}: numbers are needed, '
          'one for each row of the data.')
    if given.ndim != 1 or not given.size:
      raise ValueError(
          f'probabilities have shape {given.shape}: one for each row of the '
          'data is needed, [M].')
    given = given.astype(np.float64)
    is_right = np.isfinite(given) & (given > 0.)
    if not is_right.all():
      row = int(np.argmin(is_right))
      raise ValueError(
          f'probabilities[{row}] is {given[row]:g}: each row of the data needs '
          'a positive one, for what is never drawn is missing in the estimate. '
          'gradients.preferential_probabilities returns such.')
    given = given / given.max()
    self.shares = given / given.sum()
    least = int(np.argmin(self.shares))
    if self.shares[least] * len(given) < _LEAST:
      raise ValueError(
          f'probabilities[{least}] is {self.shares[least]:.2g} of their sum, '
          f'and with {len(given):,} rows at least {_LEAST / len(given):.2g} is '
          'needed: a row that is drawn so rarely would stand for more than '
          f'{1. / _LEAST:,.0f} times as many as on average. Raise the small '
          'ones; preferential_probabilities does so by its floor.')
    threshold, alias = _alias(self.shares)
    with tf.init_scope():  # No constants of the function being traced.
      self._threshold = tf.constant(threshold, tf.float32)
      self._alias = tf.constant(alias, tf.int32)
      self._weights = tf.constant(
          1. / (len(given) * self.shares), tf.float32)

  def __repr__(self):
    return f'<for {self.num_rows:,} rows>'

  @property
  def num_rows(self) -> int:
    """M."""
    return len(self.shares)

  def draw(self, shape: hints.Shape, seed: tf.Tensor) -> tf.Tensor:
    """Rows, independently.

    Args:
      shape: Of the result.
      seed: Stateless seed, `int32[2]`.

    Returns:
      indices: `int32` tensor.
    """
    cell = random.indices(
        self.num_rows, shape, random.fold_in(seed, 0), replacement=True)
    is_own = random.uniform(
        shape, random.fold_in(seed, 1)) < tf.gather(self._threshold, cell)
    return tf.where(is_own, cell, tf.gather(self._alias, cell))

  def weight(self, indices: tf.Tensor) -> tf.Tensor:
    """1 / (M p_i) of rows: what each counts, over what it does on average."""
    return tf.gather(self._weights, indices)


def _alias(p):
  """Thresholds and aliases, by Vose's linear algorithm."""
  threshold, alias = p * len(p), np.arange(len(p))
  small = np.flatnonzero(threshold < 1.).tolist()
  large = np.flatnonzero(threshold >= 1.).tolist()
  while small and large:
    i, j = small.pop(), large[-1]
    alias[i] = j
    threshold[j] -= 1. - threshold[i]
    if threshold[j] < 1.:
      small.append(large.pop())
  threshold[small + large] = 1.  # Rounding has left these near it.
  return threshold, alias


def preferential_probabilities(
    posterior: posterior_lib.Posterior,
    anchor: Any,
    nearby: tf.Tensor,
    floor: float = 0.1,
    order: int = 1,
) -> np.ndarray:
  """The probabilities with which `ControlVariate` is best near its anchor.

    p_i ~ (mean over nearby states of |C^T t_i|^2)^(1/2),
    t_i = grad l_i(theta) - grad l_i(a), with order=2 less H_i (theta - a),

  mixed with a share of the uniform probabilities; H_i is the Hessian of l_i at
  a, and C C^T the covariance of the nearby states, so each direction is
  weighted by the width of the posterior there. If the states are drawn from the
  posterior, or from its Laplace approximation, no other probabilities of
  independent draws have a smaller variance in this measure.

  It takes the gradient of each example at each of the states, several times M
  times the size of a state in memory.

  Args:
    posterior: `Posterior` with data, M rows.
    anchor: A state of a single chain, a, in the dtype of the chain's: the
      anchor of the `ControlVariate`.
    nearby: States `[K, ...]` in the structure of the anchor, K at least 2, as
      far from each other as draws of the posterior. Take draws of Laplace's
      approximation, or of a run that has covered the posterior. (A short run
      has not moved far along the wide directions, for which the rare rows
      matter.) Some ten are enough if the gradients are nearly linear; with
      order=2, whose differences grow with the square of the distance, some
      thirty. Directions in which these states differ little have little weight.
    floor: Share of the uniform probabilities, above 0 and at most 1: each row
      gets at least `floor / M`, so no weight exceeds 1 / floor times that of a
      uniform minibatch.
    order: Of the `ControlVariate`, 1 or 2.

  Returns:
    probabilities: `float64[M]`, their sum 1.

  Raises:
    ValueError: If the posterior has no data or they are divided among devices,
      the states do not fit or are all the same, the gradients are not finite,
      or the order is neither 1 nor 2.
    TypeError: If an argument is of the wrong type.

  #### Examples

  Five of a thousand examples have a feature that the others lack:

  >>> rare = tf.cast(tf.range(1000) < 5, tf.float32)
  >>> x = tf.stack([tf.ones([1000]), rare], axis=1)
  >>> y = tf.random.stateless_normal([1000], [0, 1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.MultivariateNormalDiag(tf.zeros(2)).log_prob,
  ...     lambda theta, batch: tfd.Normal(tf.einsum(
  ...         '...nd,...d->...n', batch[0], theta), 1.).log_prob(batch[1]),
  ...     (x, y))
  >>> mode = tf.zeros(2)
  >>> nearby = tf.random.stateless_normal([10, 2], [0, 2]) * [0.03, 0.4]
  >>> p = sgmcmc.gradients.preferential_probabilities(posterior, mode, nearby)
  >>> bool(p[:5].min() > 20. * p[5:].max())
  True
  >>> variance = [
  ...     sgmcmc.gradients.ControlVariate(
  ...         20, mode, probabilities=probabilities).variance(
  ...             posterior, [nearby[0]])[0][1]
  ...     for probabilities in (p, None)]
  >>> bool(variance[0] < 0.1 * variance[1])
  True

  #### References

  [1]: Srshti Putcha, Christopher Nemeth, Paul Fearnhead. Preferential
       Subsampling for Stochastic Gradient Langevin Dynamics. _AISTATS_, 2023.
  """
  if not isinstance(posterior, posterior_lib.Posterior):
    raise TypeError(
        f'posterior is {posterior!r}: a Posterior with data is needed.')
  if posterior.data is None or posterior.is_sharded:
    raise ValueError(
        'The posterior holds no data, or they are shared out among devices: '
        'pass one that holds all rows.')
  checks.positive_share('floor', floor)
  checks.one_of('order', order, (1, 2))
  anchor = states.to_parts(anchor, 'anchor')
  nearby = states.to_parts(nearby, 'nearby')
  number = _number(anchor, nearby)
  nearby = [tf.cast(part, a.dtype) for part, a in zip(nearby, anchor)]
  _check_anchor(posterior, anchor)
  root = _root(nearby, number)

  @tf.function(autograph=False)
  def terms(parts, direction=None):  # grad l_i, or H_i u; `[M, d]`
    return tf.concat([
        tf.reshape(tf.cast(g, tf.float64), [posterior.num_rows, -1])
        for g in minibatch.per_example_gradients(posterior, parts, direction)
    ], axis=1)

  at_anchor, squares = terms(anchor).numpy(), 0.
  for k in range(number):
    there = [part[k] for part in nearby]
    difference = terms(there).numpy() - at_anchor
    if order == 2:
      difference -= terms(
          anchor, [part - a for part, a in zip(there, anchor)]).numpy()
    squares = squares + np.sum(np.square(difference @ root), axis=1)
  sizes = np.sqrt(squares)
  if not np.all(np.isfinite(sizes)):
    raise ValueError(
        f'The gradient of row {int(np.argmin(np.isfinite(sizes)))} is NaN or '
        'infinite at one of the nearby states, or at the anchor.')
  uniform = 1. / len(sizes)
  if not np.any(sizes > 0.):  # The gradients do not depend on the state.
    return np.full(len(sizes), uniform)
  return floor * uniform + (1. - floor) * sizes / sizes.sum()


def _number(anchor: Sequence[tf.Tensor], nearby: Sequence[tf.Tensor]) -> int:
  """K, or an error."""
  number = nearby[0].shape[0] if nearby[0].shape.rank else None
  if len(anchor) != len(nearby) or number is None or number < 2 or any(
      part.shape != [number, *a.shape] for a, part in zip(anchor, nearby)):
    raise ValueError(
        'nearby has parts of shapes '
        f'{", ".join(str(part.shape) for part in nearby)}, and the anchor of '
        f'{", ".join(str(part.shape) for part in anchor)}: K states in its '
        'structure are needed, K at least 2, along a first axis. (Of draws '
        'with an axis of chains: tf.reshape(draws.states, [-1, d]).)')
  return number


def _check_anchor(posterior, anchor):
  """Raises where the density cannot be had there."""
  try:
    posterior.check_state(anchor)
  except ValueError as error:
    given = ', '.join(f'{a.dtype.name}{a.shape.as_list()}' for a in anchor)
    raise ValueError(
        f'The log density cannot be evaluated at the anchor ({given}), which '
        'has to be a state of a single chain, in the dtype that the chain has '
        f'(tf.cast(anchor, tf.float32)). {error}') from error


def _root(nearby, number):
  """C, with C C^T the covariance of the states."""
  joined = np.concatenate(
      [np.reshape(part, [number, -1]) for part in nearby], axis=1)
  centred = (joined - joined.mean(axis=0)).astype(np.float64)
  if not np.any(centred):
    raise ValueError(
        'The nearby states are all the same: they have to be as far from each '
        'other as draws of the posterior.')
  return centred.T / np.sqrt(number - 1.)
