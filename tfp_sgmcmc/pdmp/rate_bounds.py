"""Bounds on the rate of events, from which the times of proposals are drawn.

Along theta + v t, with U = -log p, the rate of the bouncy particle sampler is
[G(t)]_+, G = v . grad U; that of the zig-zag process, for coordinate j,
[v_j d_j U]_+. Where the gradient is an estimate, so is the rate, and the bound
has to hold for every minibatch. A bound here is affine on a horizon,

  rate(t) <= [a + b t]_+,  0 <= t <= horizon,

and the first time of a Poisson process of that rate solves, in closed form,
int_0^t [a + b s]_+ ds = E with E a unit exponential.

A `rate_bound` is one of the bounds of this module, or a function of a
`SegmentStart` that returns an `AffineRate`.
"""

import abc
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = [
    'AffineRate',
    'GaussianBound',
    'HessianBound',
    'LogisticRegressionBound',
    'RateBound',
    'SegmentStart',
    'affine_time',
]


class SegmentStart(NamedTuple):
  """What a bound can use at the start of a segment of the path.

  Attributes:
    state_parts: List with theta.
    velocity: List with v for each part.
    gradients: List with the gradient of log p at theta, where it is exact
      (`gradients.Exact`); None where it is estimated.
    gradient_estimator_results: The state of the gradient estimator.
    chain_rank: Python `int`, how many leading axes are chains.
    anchor: The `Anchor` of the estimator; None if it has no anchor.
  """
  state_parts: Sequence[tf.Tensor]
  velocity: Sequence[tf.Tensor]
  gradients: Sequence[tf.Tensor] | None
  gradient_estimator_results: Any
  chain_rank: int
  anchor: gradients_lib.Anchor | None = None


class AffineRate(NamedTuple):
  """The rate [intercept + slope t]_+ for 0 <= t <= horizon.

  Attributes:
    intercept: For the bouncy particle sampler a tensor of shape `chains`; for
      zig-zag a list with a tensor in the shape of each part. May be negative.
    slope: Likewise. Default: 0, a constant rate.
    horizon: How long the bound holds, shape `chains`: the particle moves at
      most that long, and then needs a new bound. Default: for ever.
  """
  intercept: Any
  slope: Any = 0.
  horizon: Any = float('inf')


class RateBound(abc.ABC):
  """A bound for both kinds of rates; on U itself, at temperature 1."""

  @abc.abstractmethod
  def check_estimator(self, estimator: gradients_lib.GradientEstimator) -> None:
    """Raises `ValueError` where the bound does not hold for the estimates."""

  @abc.abstractmethod
  def directional(self, start: SegmentStart) -> AffineRate:
    """Of the bouncy particle sampler's rate, one a chain."""

  @abc.abstractmethod
  def coordinates(self, start: SegmentStart) -> AffineRate:
    """Of the zig-zag process's rates, one a coordinate."""


def affine_time(
    intercept: tf.Tensor, slope: tf.Tensor, exponential: tf.Tensor,
) -> tf.Tensor:
  """The t with int_0^t [a + b s]_+ ds = E, infinite where there is none.

    t = t_0 + 2 E / (a_+ + sqrt(a_+^2 + 2 b E)),  t_0 = [-a]_+ / b

  Args:
    intercept: a.
    slope: b, which broadcasts with it.
    exponential: E, not negative.

  Returns:
    time: Tensor.

  #### Examples

  >>> affine_time(
  ...     tf.constant([2., -1., 1., -1.]), tf.constant([0., 2., -1., 0.]),
  ...     tf.constant([1., 4., 0.375, 1.])).numpy().tolist()
  [0.5, 2.5, 0.5, inf]
  """
  infinity = tf.constant(float('inf'), exponential.dtype)
  rate = tf.maximum(intercept, 0.)
  squared = tf.square(rate) + 2. * slope * exponential
  rises = slope > 0.
  start = tf.where(
      rises, tf.maximum(-intercept, 0.) / tf.where(rises, slope, 1.), 0.)
  below = rate + tf.sqrt(tf.maximum(squared, 0.))
  time = start + 2. * exponential / tf.where(below > 0., below, 1.)
  happens = (squared >= 0.) & ((below > 0.) | rises)
  return tf.where(tf.math.is_nan(squared), squared,
                  tf.where(happens, time, infinity))


class HessianBound(RateBound):
  """For potentials whose second derivative is bounded: -M <= Hess U <= M.

    G(t) <= G(0) + t v' M v
    v_j d_j U(t) <= v_j d_j U(0) + t |v_j| sqrt(M_jj v' M v)

  With a number L for M it is the bound from a Lipschitz constant of the
  gradient. It needs the exact gradient. For logistic regression with features X
  and prior precision Q, M = X' X / 4 + Q (`LogisticRegressionBound`).

  #### Examples

  >>> kernel = sgmcmc.BouncyParticleSampler(
  ...     tfd.Sample(tfd.StudentT(5., 0., 1.), 3).log_prob,
  ...     rate_bound=sgmcmc.pdmp.HessianBound(1.2))  # (5 + 1) / 5, at 0.
  >>> states = tfp.mcmc.sample_chain(
  ...     5, tf.zeros([2, 3]), kernel=kernel, trace_fn=None, seed=[0, 0])
  """

  def __init__(self, matrix: hints.TensorLike):
    """Makes the bound.

    Args:
      matrix: M: a positive number, a vector (the diagonal) or a symmetric
        matrix over the coordinates of all parts of the state in their order.

    Raises:
      ValueError: If the matrix is not positive semidefinite.
    """
    self._matrix = _positive_matrix('matrix', matrix)

  def check_estimator(self, estimator):
    if not estimator.is_exact:
      raise ValueError(
          f'{type(self).__name__} starts from the exact gradient, and '
          f'gradient_estimator is {estimator!r}, whose noise it does not '
          'bound. Use gradients.Exact() (the default), or a bound that holds '
          'for every minibatch, such as LogisticRegressionBound.')

  def directional(self, start):
    v, g = _flat(start.velocity, start), _flat(start.gradients, start)
    return AffineRate(-_sum(v * g), self._form(v))

  def coordinates(self, start):
    v, g = _flat(start.velocity, start), _flat(start.gradients, start)
    return _parts(start, -v * g, self._coordinate_slope(v))

  def _form(self, v):
    return _sum(v * _product(self._matrix, v))

  def _coordinate_slope(self, v):
    diagonal = self._matrix
    if diagonal.ndim == 2:
      diagonal = np.diag(diagonal)
    return tf.abs(v) * tf.sqrt(
        tf.cast(diagonal, v.dtype) * self._form(v)[..., tf.newaxis])


class GaussianBound(HessianBound):
  """For Gaussian targets: not a bound, but the rate itself.

    G(t) = G(0) + t v' P v
    v_j d_j U(t) = v_j d_j U(0) + t v_j (P v)_j

  with P the precision, so that no proposal is rejected. It needs the exact
  gradient.

  #### Examples

  >>> precision = [[2., 1.], [1., 3.]]
  >>> target = tfd.MultivariateNormalFullCovariance(
  ...     tf.constant([1., -1.]), tf.linalg.inv(precision))
  >>> kernel = sgmcmc.ZigZagSampler(
  ...     target.log_prob, rate_bound=sgmcmc.pdmp.GaussianBound(precision))
  >>> states = tfp.mcmc.sample_chain(
  ...     5, tf.zeros([4, 2]), kernel=kernel, trace_fn=None, seed=[0, 0])
  """

  def __init__(self, precision: hints.TensorLike):
    """Makes the bound.

    Args:
      precision: P, in the forms of `HessianBound`'s matrix.

    Raises:
      ValueError: If it is not positive semidefinite.
    """
    self._matrix = _positive_matrix('precision', precision)

  def _coordinate_slope(self, v):
    return v * _product(self._matrix, v)


class LogisticRegressionBound(RateBound):
  """For logistic regression with a Gaussian prior, for any estimator.

  For U = sum_j (theta_j - m_j)^2 / (2 s_j^2) - sum_i log p(y_i | x_i . theta),
  y_i in {0, 1}. The prior's part of each rate is affine, exactly: with
  q = 1 / s^2, v_j q_j (theta_j - m_j) + t q_j v_j^2. The part added for the
  likelihood depends on the estimator. With `gradients.Exact` it is the growth
  that X' X / 4 allows from the exact gradient (`HessianBound`); with
  minibatches of any size, since |y - p| <= 1,

    N min(|v| max_i |x_i|, sum_j |v_j| max_i |x_ij|)        bouncy particle
    N max_i |x_ij|                                          zig-zag

  (Bierkens et al. 2019, equation 31, and the bound of lipSBPS in Pakman et al.
  2017, supplement F, in spirit); with `gradients.ControlVariate`, the gradient
  of the likelihood at the anchor a and, as the logistic function has slope 1/4
  at most,

    N / 4 max_i |x_i|^2 |v| (|theta - a| + t |v|)           bouncy particle
    N / 4 max_i |x_ij| |x_i| (|theta - a| + t |v|)          zig-zag

  #### Examples

  >>> x = tf.random.stateless_normal([1000, 2], [0, 1])
  >>> y = tf.cast(x[:, 0] > 0., tf.float32)
  >>> def log_likelihood(theta, batch):
  ...   logits = tf.einsum('...nd,...d->...n', batch[0], theta)
  ...   return tfd.Bernoulli(logits=logits).log_prob(batch[1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.MultivariateNormalDiag(tf.zeros(2), 3. * tf.ones(2)).log_prob,
  ...     log_likelihood, (x, y))
  >>> zig_zag_with_subsampling = sgmcmc.ZigZagSampler(
  ...     posterior, rate_bound=sgmcmc.pdmp.LogisticRegressionBound(
  ...         x, prior_scale=3.),
  ...     gradient_estimator=sgmcmc.gradients.Uniform(1))

  #### References

  [1]: Joris Bierkens, Paul Fearnhead, Gareth Roberts. The Zig-Zag Process and
       Super-Efficient Sampling for Bayesian Analysis of Big Data. _Annals of
       Statistics_, 2019.
  [2]: Ari Pakman, Dar Gilboa, David Carlson, Liam Paninski. Stochastic Bouncy
       Particle Sampler. _ICML_, 2017.
  """

  def __init__(
      self,
      features: hints.TensorLike,
      prior_scale: hints.TensorLike,
      *,
      prior_mean: hints.TensorLike = 0.,
      num_examples: int | None = None,
  ):
    """Makes the bound.

    Args:
      features: X, `[N, d]`, a column for each coordinate of the state (of all
        parts in their order): with an intercept, a column of ones.
      prior_scale: s, the prior's standard deviation: a positive number or a
        vector `[d]`.
      prior_mean: m, a number or a vector `[d]`.
      num_examples: Python `int`, N, if the rows stand for more examples.
        Default: the number of rows.

    Raises:
      ValueError: If the features are no matrix, or a scale is not positive.
    """
    checks.numeric('prior_scale', prior_scale, 0.)
    x = checks.real_array('features', features)
    if x.ndim != 2 or not x.size:
      raise ValueError(
          f'features has shape {x.shape}: a matrix [N, d] is needed, with a '
          'row for each example and a column for each coordinate of the state, '
          'at least one of each.')
    if not np.all(np.isfinite(x)):
      row = np.argmin(np.isfinite(x).all(axis=1))
      raise ValueError(
          f'features are NaN or infinite in row {row}: no rate has a bound '
          'there. Leave such examples out, or put numbers in their place.')
    n = len(x) if num_examples is None else checks.positive_integer(
        'num_examples', num_examples)
    size = x.shape[1]
    self._mean = np.broadcast_to(
        checks.real_array('prior_mean', prior_mean), [size])
    self._precision = np.broadcast_to(
        np.asarray(prior_scale, np.float64)**-2., [size])
    norms = np.linalg.norm(x, axis=1)
    self._largest = n * np.max(np.abs(x), axis=0)
    self._largest_norm = n * np.max(norms)
    self._curvature = n / 4. * np.max(
        np.abs(x) * norms[:, np.newaxis], axis=0)
    self._largest_curvature = n / 4. * np.max(norms)**2
    self._hessian = HessianBound(
        n / len(x) / 4. * x.T @ x + np.diag(self._precision))

  def check_estimator(self, estimator):
    if not estimator.has_bounded_noise:
      raise ValueError(
          f'gradient_estimator is {estimator!r}: its noise has no bound that '
          'is known (has_bounded_noise), and so the rate has none.')

  def directional(self, start):
    if start.gradients is not None:
      return self._hessian.directional(start)
    v, (intercept, slope) = self._prior(start)
    norm = tf.norm(v, axis=-1)
    anchor = _anchor(start)
    if anchor is None:
      likelihood = tf.minimum(
          tf.cast(self._largest_norm, v.dtype) * norm,
          _sum(tf.cast(self._largest, v.dtype) * tf.abs(v)))
      return AffineRate(_sum(intercept) + likelihood, _sum(slope))
    distance, gradient = anchor
    curvature = tf.cast(self._largest_curvature, v.dtype) * norm
    return AffineRate(
        _sum(intercept) - _sum(v * gradient) + curvature * distance,
        _sum(slope) + curvature * norm)

  def coordinates(self, start):
    if start.gradients is not None:
      return self._hessian.coordinates(start)
    v, (intercept, slope) = self._prior(start)
    anchor = _anchor(start)
    if anchor is None:
      likelihood = tf.cast(self._largest, v.dtype) * tf.abs(v)
      return _parts(start, intercept + likelihood, slope)
    distance, gradient = anchor
    curvature = tf.cast(self._curvature, v.dtype) * tf.abs(v)
    return _parts(
        start,
        intercept - v * gradient + curvature * distance[..., tf.newaxis],
        slope + curvature * tf.norm(v, axis=-1, keepdims=True))

  def _prior(self, start):
    """The velocity, and the prior's affine part of each coordinate's rate."""
    theta, v = _flat(start.state_parts, start), _flat(start.velocity, start)
    if theta.shape[-1] != len(self._mean):
      raise ValueError(
          f'The state has {theta.shape[-1]} coordinates and features '
          f'{len(self._mean)} columns: one is needed for each coordinate.')
    precision = tf.cast(self._precision, v.dtype)
    return v, (
        v * precision * (theta - tf.cast(self._mean, v.dtype)),
        tf.square(v) * precision)


def _anchor(start):
  """The distance to an estimator's anchor, and the gradient there; or None."""
  anchor = start.anchor
  if anchor is None:
    return None
  like = [
      (tf.broadcast_to(a, tf.shape(part)), tf.broadcast_to(g, tf.shape(part)))
      for a, g, part in zip(
          anchor.state_parts, anchor.gradients, start.state_parts)]
  at, gradients = (_flat(tensors, start) for tensors in zip(*like))
  return tf.norm(_flat(start.state_parts, start) - at, axis=-1), gradients


def _positive_matrix(name, matrix):
  matrix = checks.real_array(name, matrix)
  if matrix.ndim > 2 or not matrix.size or matrix.ndim == 2 and (
      len(matrix) != matrix.shape[1] or not np.allclose(matrix, matrix.T)):
    raise ValueError(
        f'{name} has shape {matrix.shape}: a number, a vector (the diagonal) '
        'or a symmetric matrix is needed.')
  values = np.linalg.eigvalsh(matrix) if matrix.ndim == 2 else matrix
  if not np.all(np.isfinite(values)) or np.any(
      values < -1e-6 * np.max(np.abs(values))) or np.max(values) <= 0.:
    raise ValueError(
        f'{name} is not positive semidefinite (or zero, or not finite): as a '
        'bound on a second derivative it has to be.')
  return matrix


def _product(matrix, v):
  """M v, over the last axis."""
  if matrix.ndim and len(matrix) != v.shape[-1]:
    raise ValueError(
        f'The state has {v.shape[-1]} coordinates and the bound '
        f'{len(matrix)}: one row (or column of features) is needed for each '
        'coordinate.')
  m = tf.cast(matrix, v.dtype)
  if matrix.ndim == 2:
    return tf.linalg.matvec(m, v)
  return m * v


def _flat(parts, start):
  return states.flatten(parts, start.chain_rank)


def _sum(x):
  return tf.reduce_sum(x, axis=-1)


def _parts(start, intercept, slope):
  """The rates of coordinates in the shapes of the state's parts."""
  return AffineRate(*(
      states.unflatten(x, start.state_parts, start.chain_rank)
      for x in (intercept, slope)))
