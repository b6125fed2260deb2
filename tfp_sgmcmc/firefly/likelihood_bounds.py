"""Lower bounds of likelihoods whose product over the data collapses.

Firefly Monte Carlo needs for each example a function 0 < B_i <= L_i of the
state, such that sum_i log B_i costs the same whatever N. Here that sum is
quadratic in the state. With features x_i, eta = x_i' theta and an anchor psi_i
where the bound touches the likelihood, all these bounds are

  log B_i = l_i(psi_i) + l_i'(psi_i) u - w_i/2 u' A u,   u = eta - psi_i,

l_i being the log likelihood as a function of eta. A is 1, but for softmax.

  logistic    w = tanh(psi/2) / (2 psi)        Jaakkola and Jordan (2000)
  softmax     w = 1, A = (I - 1 1'/K) / 2      Boehning (1992)
  Student-t   w = (nu + 1) / (nu s^2 + (y - psi)^2)    the tangent of log L as a
                                               function of (y - eta)^2

as in Maclaurin and Adams (2015), sections 3 and 4. Tuned, psi_i is eta at
a given state, the mode best of all: near it B is close to L. Untuned, the bound
touches where (2 y - 1) eta, or y - eta, is a constant, or at eta = 0.
"""

import abc
from collections.abc import Callable
from collections.abc import Iterator
import math
import operator
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints

__all__ = ['LikelihoodBound', 'Logistic', 'Softmax', 'StudentT']

_CHUNK_SIZE = 2**22  # Numbers in a chunk of the data.


class LikelihoodBound(abc.ABC):
  """A lower bound of the likelihood of each example: the protocol.

  A bound of one's own has these two methods.

  #### Examples

  For a Laplace likelihood, -|y - mu| >= -((y - mu)^2 / xi + xi) / 2:

  >>> class Laplace(sgmcmc.likelihood_bounds.LikelihoodBound):
  ...   def log_bound(self, mu, batch):
  ...     residual = batch - mu[..., tf.newaxis]
  ...     return -(residual**2 / 2. + 2.) / 2. - tf.math.log(2.)
  ...   def collapse(self, data):
  ...     num, total = data.shape[0], tf.reduce_sum(data)
  ...     return lambda mu: -(num * mu**2 - 2. * mu * total) / 4.
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, y: tfd.Laplace(mu[..., tf.newaxis], 1.).log_prob(y),
  ...     data=tf.constant([-3., 0.5, 1., 1.5, 2.]))
  >>> kernel = sgmcmc.FireflyMonteCarlo(
  ...     posterior, Laplace(), step_size=0.2, capacity=5)
  >>> tfp.mcmc.sample_chain(
  ...     3, tf.zeros([50]), kernel=kernel, trace_fn=None, seed=[0, 0]).shape
  TensorShape([3, 50])
  """

  @abc.abstractmethod
  def log_bound(
      self,
      *state_parts: tf.Tensor,
      batch: hints.Nested,
  ) -> tf.Tensor:
    """The logarithm of the bound of each example of a batch.

    Args:
      *state_parts: The parts of the state.
      batch: Examples, as the posterior's log likelihood gets them: leading axis
        n, or `chains + [n]`.

    Returns:
      log_bound: Tensor of shape `chains + [n]`.
    """

  @abc.abstractmethod
  def collapse(self, data: hints.Data) -> Callable[..., tf.Tensor]:
    """Sums the logarithms of the bounds over the data, once.

    Args:
      data: Examples, leading axis N.

    Returns:
      log_bound_sum: Callable of the parts of the state; returns
        `sum_i log B_i`, up to a constant, one value a chain, at a cost that
        does not grow with N.
    """


class _Tangent(NamedTuple):
  """A bound as a function of u: value + slope u - weight/2 u' A u."""
  value: tf.Tensor
  slope: tf.Tensor
  weight: tf.Tensor


class _QuadraticBound(LikelihoodBound):
  """A bound quadratic in the features' products with the state."""

  _num_axes = 1  # Of theta: features, and for softmax classes.

  def __init__(self, features_fn, anchor):
    if features_fn is not None and not callable(features_fn):
      raise TypeError(
          f'features_fn is {features_fn!r}: it has to be a function of a batch '
          'that returns its features and targets, (x, y), or None where the '
          'data are such a pair.')
    self._features_fn = features_fn
    self._anchor = None
    if anchor is not None:
      with tf.init_scope():
        self._anchor = checks.to_tensor('anchor', anchor)
      checks.numeric('anchor', self._anchor, -float('inf'))
      if self._anchor.shape.rank != self._num_axes:
        raise ValueError(
            f'anchor has shape {self._anchor.shape}: it has to be the state of '
            f'a single chain, [{"d, K"[:3 * self._num_axes - 2]}].')

  @abc.abstractmethod
  def _tangent(self, psi: tf.Tensor, y: tf.Tensor) -> _Tangent:
    """The bound that touches the likelihood at psi."""

  @abc.abstractmethod
  def _untuned(self, eta: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """The anchor psi without a state to tune it, in the shape of `eta`."""

  @abc.abstractmethod
  def _is_target(self, y: tf.Tensor) -> tf.Tensor:
    """Whether each of `y` is a possible target."""

  def _metric(self, u: tf.Tensor) -> tf.Tensor:
    """A u."""
    return u

  def _inverse_metric(self, u: tf.Tensor) -> tf.Tensor:
    """The pseudo-inverse of A, times u."""
    return u

  def _dot(self, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """The product of two vectors of outputs."""
    return a * b

  def log_bound(self, *state_parts, batch):
    theta = self._theta(state_parts)
    x, y = self._features(batch)
    expected = [x.shape[-1], *self._outputs]
    if theta.shape[-self._num_axes:] != expected:
      raise ValueError(
          f'The state has shape {theta.shape}, and for a bound with features '
          f'of shape {x.shape} it has to end in {expected}.')
    eta = self._eta(x, theta)
    psi = self._psi(x, y, eta)
    tangent = self._tangent(psi, tf.cast(y, psi.dtype))
    u = eta - psi
    return (tangent.value + self._dot(tangent.slope, u)
            - tangent.weight / 2. * self._dot(u, self._metric(u)))

  def collapse(self, data):
    if 0 in {leaf.shape[0] for leaf in tf.nest.flatten(data)}:
      raise ValueError(
          f'The data that {type(self).__name__} bounds have no rows: at least '
          'one example is needed.')
    with tf.init_scope():
      curvature = linear = 0.
      for first, batch in _chunks(data):
        x, y = self._features(batch)
        self._check_features(x, y, first)
        x, y = tf.cast(x, tf.float64), tf.cast(y, tf.float64)
        psi = self._psi(x, y, tf.zeros([*y.shape, *self._outputs], y.dtype))
        _, slope, weight = self._tangent(psi, y)
        weight = weight[:, tf.newaxis]
        curvature += tf.matmul(x, weight * x, transpose_a=True)
        linear += tf.einsum('nd,n...->d...', x, slope) + tf.einsum(
            'nd,n...->d...', weight * x, self._metric(psi))
      return self._quadratic(curvature, linear)

  def _quadratic(self, curvature, linear):
    """sum_i log B_i from its statistics, in powers of theta - centre.

    Its centre is its maximum, where slope is zero but for rounding: in float32
    its values near there are small, and their differences exact.
    """
    centre = self._inverse_metric(
        self._product(tf.linalg.pinv(curvature), linear))
    slope = linear - self._metric(self._product(curvature, centre))

    def log_bound_sum(*state_parts):
      theta = self._theta(state_parts)
      v = theta - tf.cast(centre, theta.dtype)
      down = self._metric(self._product(tf.cast(curvature, theta.dtype), v))
      axes = list(range(-self._num_axes, 0))
      return tf.reduce_sum(
          v * (tf.cast(slope, theta.dtype) - down / 2.), axis=axes)

    return log_bound_sum

  @property
  def _outputs(self):
    return []

  def _product(self, matrix, theta):
    return tf.linalg.matvec(matrix, theta)

  def _eta(self, x, theta):
    return tf.einsum('...nd,...d->...n', x, theta)

  def _psi(self, x, y, eta):
    if self._anchor is None:
      return self._untuned(eta, tf.cast(y, eta.dtype))
    return self._eta(x, tf.cast(self._anchor, eta.dtype))

  def _theta(self, state_parts):
    if len(state_parts) != 1:
      raise ValueError(
          f'{type(self).__name__} bounds the likelihood of a state of one '
          f'part, the coefficients, and this state has {len(state_parts)} '
          'parts. For an intercept, give the features a column of ones.')
    return tf.convert_to_tensor(state_parts[0])

  def _features(self, batch):
    pair = batch if self._features_fn is None else self._features_fn(batch)
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
      raise TypeError(
          f'{type(self).__name__} needs the features and targets of a batch, '
          'and the data are no pair (x, y): pass, for instance, features_fn='
          "lambda batch: (batch['x'], batch['y']).")
    return tuple(
        checks.to_tensor(*part) for part in zip(('features', 'targets'), pair))

  def _check_features(self, x, y, first):
    """Raises where features or targets are not what this bound is of."""
    if (x.shape.rank != 2 or y.shape.rank != 1 or not x.dtype.is_floating
        or x.shape[0] != y.shape[0] or not x.shape[1]):
      raise ValueError(
          f'The features are {x.dtype.name}{x.shape.as_list()} and the targets '
          f'{y.dtype.name}{y.shape.as_list()}: floats of shape [N, d] and '
          'numbers of shape [N] are needed.')
    expected = [x.shape[1], *self._outputs]
    if self._anchor is not None and self._anchor.shape != expected:
      raise ValueError(
          f'anchor has shape {self._anchor.shape.as_list()}, and with features '
          f'of shape [N, {x.shape[1]}] the state of a chain has {expected}.')
    finite = tf.reduce_all(tf.math.is_finite(x), axis=-1)
    for good, what, value in (
        (finite, 'features', x),
        (self._is_target(tf.cast(y, tf.float64)), 'target', y)):
      if not tf.reduce_all(good):
        k = int(tf.argmax(~good))
        raise ValueError(
            f'Example {first + k} has the {what} {value[k].numpy()}: '
            f'{self._wanted if what == "target" else "finite ones are needed"}.'
        )


def chunk_length(data: hints.Data, num_copies: int = 1) -> int:
  """How many rows of the data, so many times, make a piece of memory."""
  leaves = tf.nest.flatten(data)
  row = sum(leaf.shape[1:].num_elements() for leaf in leaves)
  return max(1, min(leaves[0].shape[0], _CHUNK_SIZE // (row * num_copies)))


def _chunks(data: hints.Data) -> Iterator[tuple[int, Any]]:
  """The data in pieces, each with the number of its first example."""
  num, length = tf.nest.flatten(data)[0].shape[0], chunk_length(data)
  for first in range(0, num, length):
    rows = slice(first, first + length)
    yield first, tf.nest.map_structure(operator.itemgetter(rows), data)


class Logistic(_QuadraticBound):
  """Bounds of logistic regression's likelihood (Jaakkola and Jordan).

    L_i = 1 / (1 + exp(-t)),  t = (2 y_i - 1) x_i' theta,  y_i in {0, 1}
    log B_i = log L(xi) + (t - xi) / 2 - tanh(xi/2) / (4 xi) (t^2 - xi^2)

  They touch at t = xi and t = -xi. The state is one part, theta of `[d]` (a
  column of ones among the features is an intercept).

  #### Examples

  >>> bound = sgmcmc.likelihood_bounds.Logistic(anchor=[1., 2.])
  >>> x, y = tf.constant([[0.5, 1.], [2., -3.]]), tf.constant([0., 1.])
  >>> log_bound = bound.log_bound(tf.constant([1., 2.]), batch=(x, y))
  >>> log_likelihood = tfd.Bernoulli(logits=[2.5, -4.]).log_prob(y)
  >>> bool(tf.reduce_all(tf.abs(log_bound - log_likelihood) < 1e-6))
  True

  #### References

  [1]: Tommi S. Jaakkola and Michael I. Jordan. Bayesian Parameter Estimation
       via Variational Methods. _Statistics and Computing_, 2000.
  """

  _wanted = 'logistic regression needs 0 or 1'

  def __init__(
      self,
      features_fn: Callable[[Any], tuple[tf.Tensor, tf.Tensor]] | None = None,
      anchor: hints.State | None = None,
      xi: float = 1.5,
  ):
    """Makes the bound.

    Args:
      features_fn: Callable of a batch; returns features x, `[..., n, d]`, and
        targets y, `[..., n]`. Default: the data are such a pair.
      anchor: A state of a single chain, `[d]`, where all bounds touch their
        likelihoods; the closer to the mode of the posterior, the fewer examples
        are bright. Default: untuned.
      xi: Where untuned bounds touch, a positive number.

    Raises:
      ValueError: If `anchor` or `xi` is no finite number or out of range.
      TypeError: If `features_fn` is not callable.
    """
    checks.numeric('xi', xi, 0.)
    super().__init__(features_fn, anchor)
    self._xi = float(xi)

  def _tangent(self, psi, y):
    t = (2. * y - 1.) * psi
    return _Tangent(
        -tf.math.softplus(-t), y - tf.sigmoid(psi), _jaakkola_jordan(psi))

  def _untuned(self, eta, y):
    return (2. * y - 1.) * self._xi * tf.ones_like(eta)

  def _is_target(self, y):
    return (y == 0.) | (y == 1.)


def _jaakkola_jordan(xi):
  """tanh(xi/2) / (2 xi), 1/4 at zero."""
  is_small = tf.abs(xi) < 1e-2
  safe = tf.where(is_small, tf.ones_like(xi), xi)
  return tf.where(
      is_small, 0.25 - xi**2 / 48., tf.tanh(safe / 2.) / (2. * safe))


class StudentT(_QuadraticBound):
  """Bounds of robust regression's likelihood, Student-t by a Gaussian.

    log L_i = -(nu + 1)/2 log(1 + e^2 / (nu s^2)) + const,  e = y_i - x_i' theta
    log B_i = log L(xi) - (nu + 1)/2 (e^2 - xi^2) / (nu s^2 + xi^2)

  with nu = `df` and s = `scale`, both known. They touch at e = xi and e = -xi.
  The state is one part, theta of `[d]`.

  #### Examples

  >>> bound = sgmcmc.likelihood_bounds.StudentT(df=4., scale=1.)
  >>> x, y = tf.constant([[1.], [1.]]), tf.constant([0.5, 3.])
  >>> log_likelihood = tfd.StudentT(4., [0.5, 0.5], 1.).log_prob(y)
  >>> log_bound = bound.log_bound(tf.constant([0.5]), batch=(x, y))
  >>> [round(float(g), 3) for g in log_likelihood - log_bound]
  [0.0, 1.554]
  """

  _wanted = 'robust regression needs a finite number'

  def __init__(
      self,
      df: float,
      scale: float,
      features_fn: Callable[[Any], tuple[tf.Tensor, tf.Tensor]] | None = None,
      anchor: hints.State | None = None,
      xi: float = 0.,
  ):
    """Makes the bound.

    Args:
      df: nu, the degrees of freedom, a positive number.
      scale: s, in units of y, a positive number.
      features_fn: As for `Logistic`.
      anchor: As for `Logistic`.
      xi: The residual at which untuned bounds touch, a number of at least 0.

    Raises:
      ValueError: If a number is out of its range.
      TypeError: If `features_fn` is not callable.
    """
    checks.numeric('df', df, 0.)
    checks.numeric('scale', scale, 0.)
    checks.numeric('xi', xi, 0., strict=False)
    super().__init__(features_fn, anchor)
    self._df, self._scale, self._xi = float(df), float(scale), float(xi)

  def _tangent(self, psi, y):
    df, e, width = self._df, y - psi, self._df * self._scale**2
    constant = (
        math.lgamma((df + 1.) / 2.) - math.lgamma(df / 2.)
        - math.log(width * math.pi) / 2.)
    weight = (df + 1.) / (width + e**2)
    return _Tangent(
        constant - (df + 1.) / 2. * tf.math.log1p(e**2 / width), weight * e,
        weight)

  def _untuned(self, eta, y):
    return y - self._xi + tf.zeros_like(eta)

  def _is_target(self, y):
    return tf.math.is_finite(y)


class Softmax(_QuadraticBound):
  """Bounds of softmax regression's likelihood (Boehning).

    log L_i = eta_y - log sum_k exp(eta_k),  eta = theta' x_i,  y_i in 0 .. K-1
    log B_i = log L(psi) + (e_y - softmax(psi))' u - u' (I - 1 1'/K) u / 4

  with u = eta - psi. They touch at eta = psi. The state is one part, theta of
  `[d, K]`.

  #### Examples

  >>> bound = sgmcmc.likelihood_bounds.Softmax(num_classes=3)
  >>> x, y = tf.constant([[1., 2.]]), tf.constant([2])
  >>> float(bound.log_bound(tf.zeros([2, 3]), batch=(x, y))[0])
  -1.09861...

  #### References

  [1]: Dankmar Boehning. Multinomial Logistic Regression Algorithm. _Annals of
       the Institute of Statistical Mathematics_, 1992.
  """

  _num_axes = 2

  def __init__(
      self,
      num_classes: int,
      features_fn: Callable[[Any], tuple[tf.Tensor, tf.Tensor]] | None = None,
      anchor: hints.State | None = None,
  ):
    """Makes the bound.

    Args:
      num_classes: Python `int`, K.
      features_fn: As for `Logistic`; y are integers (of any dtype).
      anchor: A state of a single chain, `[d, K]`, where all bounds touch their
        likelihoods. Default: untuned, psi = 0.

    Raises:
      ValueError: If an argument is out of its range.
      TypeError: If an argument is of the wrong type.
    """
    self._num_classes = checks.positive_integer('num_classes', num_classes)
    super().__init__(features_fn, anchor)

  @property
  def _wanted(self):
    return f'with num_classes={self._num_classes} an integer in ' \
        f'0 .. {self._num_classes - 1} is needed'

  @property
  def _outputs(self):
    return [self._num_classes]

  def _tangent(self, psi, y):
    one_hot = tf.one_hot(
        tf.cast(y, tf.int32), self._num_classes, dtype=psi.dtype)
    log_p = tf.nn.log_softmax(psi)
    return _Tangent(
        self._dot(one_hot, log_p), one_hot - tf.exp(log_p),
        tf.ones_like(psi[..., 0]))

  def _untuned(self, eta, y):
    return tf.zeros_like(eta)

  def _is_target(self, y):
    return (y == tf.floor(y)) & (y >= 0.) & (y < self._num_classes)

  def _metric(self, u):
    return (u - tf.reduce_mean(u, axis=-1, keepdims=True)) / 2.

  def _inverse_metric(self, u):
    return (u - tf.reduce_mean(u, axis=-1, keepdims=True)) * 2.

  def _dot(self, a, b):
    return tf.reduce_sum(a * b, axis=-1)

  def _product(self, matrix, theta):
    return tf.linalg.matmul(matrix, theta)

  def _eta(self, x, theta):
    return tf.einsum('...nd,...dk->...nk', x, theta)
