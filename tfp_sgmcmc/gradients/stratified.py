"""Minibatches that hold a fixed number of examples of each stratum.

  g = grad log p(theta)
      + sum_k N_k / n_k sum_{i in S_k} grad log p(data_i | theta)

with S_k a set of n_k of the N_k examples of stratum k, each set equally likely
(or n_k independent draws, with replacement), new at every step; the n_k add up
to n, the N_k to N. It is unbiased for any n_k, and each coordinate has the
variance

  sum_k N_k^2 / n_k (1 - n_k / N_k) s_k^2   without replacement,
  sum_k N_k^2 / n_k (1 - 1 / N_k) s_k^2     with replacement,

s_k^2 being the sample variance (divisor N_k - 1) within the stratum:
differences between strata make no noise. With clusters of the data as strata,
Fu and Zhang (2017). (Where the data are M examples that stand for N, all is
scaled by N / M, or its square.)
"""


import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.gradients import base
from tfp_sgmcmc.gradients import minibatch
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = ['Stratified', 'kmeans_strata']


class Stratified(minibatch.MinibatchEstimator):
  """The gradient on a minibatch with n_k examples of each stratum k.

    g = grad log p(theta)
        + sum_k N_k / n_k sum_{i in S_k} grad log p(data_i | theta)

  The n_k are proportional to the N_k, up to rounding, and at least one each. It
  is unbiased. The more the gradients of different strata differ, the better it
  is than `Uniform`. A step costs O(n) for any N and any number of strata; with
  strata of fewer than a hundred examples it costs somewhat more.

  #### Examples

  >>> strata = [0, 0, 0, 0, 1, 1]
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x),
  ...     data=tf.constant([-1., -1.1, -0.9, -1., 5., 5.1]))
  >>> estimator = sgmcmc.gradients.Stratified(batch_size=3, strata=strata)
  >>> estimator.allocation.tolist()
  [2, 1]
  >>> uniform = sgmcmc.gradients.Uniform(batch_size=3)
  >>> [round(float(e.variance(posterior, [tf.zeros([])])[0]), 3)
  ...  for e in (estimator, uniform)]
  [0.037, 58.594]

  #### References

  [1]: Tianfan Fu and Zhihua Zhang. CPSG-MCMC: Clustering-Based Preprocessing
       Method for Stochastic Gradient MCMC. _AISTATS_, 2017.
  """

  def __init__(
      self,
      batch_size: int,
      strata: hints.TensorLike,
      *,
      replacement: bool = False,
      share_minibatch: bool = False,
  ):
    """Makes the estimator.

    Args:
      batch_size: Python `int`, n; at least the number of strata.
      strata: Integers `[N]`: the stratum of each example, 0, ..., K - 1, each
        of which occurs. Class labels, or what `kmeans_strata` returns.
      replacement: Python `bool`: draw examples independently within a stratum,
        so that one may be drawn twice.
      share_minibatch: Python `bool`: all chains see one minibatch.

    Raises:
      ValueError: If `batch_size` is not positive or smaller than the number of
        strata, or `strata` are negative, not a vector, or skip a number.
      TypeError: If `batch_size` or `strata` are not integers.
    """
    super().__init__(
        batch_size, replacement=replacement, share_minibatch=share_minibatch)
    self._strata = _check_strata(strata)
    sizes = np.bincount(self._strata)
    if len(sizes) > self._batch_size:
      raise ValueError(
          f'batch_size is {self._batch_size}, and there are {len(sizes)} '
          'strata: each minibatch holds at least one example of each. Take a '
          'larger batch_size, or fewer strata.')
    self._sizes = sizes
    self._allocation = allocate(self._batch_size, sizes)
    with tf.init_scope():  # No constant of the function being traced.
      self._members = tf.constant(
          np.argsort(self._strata, kind='stable'), tf.int32)

  @property
  def has_independent_noise(self):
    return True

  @property
  def allocation(self) -> np.ndarray:
    """n_k for each stratum, `[K]`."""
    return self._allocation

  def __repr__(self):
    return (f'Stratified(batch_size={self._batch_size}, '
            f'strata=<{len(self._sizes)} of {len(self._strata)} examples>, '
            f'replacement={self._replacement}, '
            f'share_minibatch={self._share_minibatch})')

  def check_target(self, target):
    super().check_target(target)
    if len(self._strata) != target.num_rows:
      raise ValueError(
          f'There are strata for {len(self._strata)} examples, and the '
          f'posterior has {target.num_rows}: each example has to be in one '
          'stratum, strata[i] that of row i of the data.')

  def draw(self, target, chains, seed):
    if self._share_minibatch:
      chains = tf.zeros([0], tf.int32)
    # Of the first member among all, which are sorted by stratum.
    first = np.cumsum(self._sizes) - self._sizes
    return tf.gather(
        self._members,
        tf.constant(np.repeat(first, self._allocation), tf.int32)
        + random.indices_of_strata(
            self._sizes, self._allocation, chains, seed, self._replacement))

  def estimate(self, target, state_parts, results, indices):
    del results
    batch = target.gather(indices)
    weights = self._weights(target)
    return base.GradientEstimate(*states.value_and_gradients(
        lambda *parts: target.log_prob_estimate(
            *parts, batch=batch, weights=weights), state_parts))

  def _weights(self, target):
    """N_k / n_k for each example of a minibatch, in the order of `draw`."""
    return target.num_examples / target.num_rows * np.repeat(
        self._sizes / self._allocation, self._allocation)

  def _variance_of_sum(self, target, terms):
    scale = (target.num_examples / target.num_rows)**2
    return scale * sum(
        size**2 / number * minibatch.population_factor(
            size, number, self._replacement)
        * tf.math.reduce_variance(terms[self._strata == k], axis=0)
        for k, (size, number) in enumerate(zip(
            self._sizes.tolist(), self._allocation.tolist())))


def allocate(batch_size: int, sizes: np.ndarray) -> np.ndarray:
  """Parts of `batch_size` in proportion to `sizes`, at least one each."""
  wanted = batch_size * sizes / sizes.sum()
  number = np.maximum(1, np.floor(wanted)).astype(int)
  while number.sum() < batch_size:
    number[np.argmax(wanted - number)] += 1
  while number.sum() > batch_size:
    number[np.argmax(np.where(number > 1, number - wanted, -np.inf))] -= 1
  return number


def kmeans_strata(
    features: hints.TensorLike,
    num_strata: int,
    seed: int,
) -> np.ndarray:
  """Clusters examples by scikit-learn's k-means, for `Stratified`.

  It needs scikit-learn: `pip install scikit-learn`, or the extra `strata`.

  Args:
    features: Array `[N, ...]`: the inputs of the examples, or features of them.
      Axes after the first are flattened; features with larger values count for
      more.
    num_strata: Python `int`, K.
    seed: Python `int`, for the first centres.

  Returns:
    strata: `int32` array `[N]`, 0, ..., K - 1; fewer where there are fewer
      different examples.

  Raises:
    ImportError: If scikit-learn is not installed.
    ValueError: If there are fewer examples than strata, or `features` are not
      finite.
    TypeError: If `features` are no array of numbers, or another argument is no
      integer.

  #### Examples

  >>> x = tf.constant([[0.], [9.], [0.1], [9.1]])
  >>> strata = sgmcmc.gradients.kmeans_strata(x, 2, seed=0)
  >>> bool(strata[0] == strata[2] != strata[1] == strata[3])
  True
  """
  try:
    import sklearn.cluster  # pylint: disable=g-import-not-at-top
  except ImportError as error:
    raise ImportError(
        'kmeans_strata needs scikit-learn, which cannot be imported '
        f'({error}): pip install scikit-learn.') from error
  num_strata = checks.positive_integer('num_strata', num_strata)
  seed = checks.non_negative_integer('seed', seed)
  features = np.asarray(features)
  if features.dtype.kind not in 'fiub':
    raise TypeError(
        f'features have dtype {features.dtype.name}: an array of numbers is '
        'needed.')
  if features.ndim == 0 or len(features) < num_strata:
    raise ValueError(
        f'The features have shape {features.shape}: at least as many examples '
        f'as strata are needed, {num_strata}, along the first axis.')
  features = features.reshape([len(features), -1])
  is_finite = np.isfinite(features).all(axis=1)
  if not is_finite.all():
    raise ValueError(
        f'The features of {np.count_nonzero(~is_finite):,} examples are NaN or '
        f'infinite, the first those of row {np.argmin(is_finite)}: distances '
        'between examples need finite ones. Leave these examples out, or put '
        'numbers in their place.')
  labels = sklearn.cluster.KMeans(
      num_strata, n_init=1, random_state=seed).fit_predict(features)
  return np.unique(labels, return_inverse=True)[1].astype(np.int32)


def _check_strata(strata):
  """`strata` as a NumPy vector, or an error."""
  strata = checks.static_value(strata)
  if strata is None:
    raise TypeError(
        'strata are a tensor of a function being traced: pass integers.')
  if strata.ndim != 1 or not strata.size:
    raise ValueError(
        f'strata have shape {strata.shape}: one integer for each example is '
        'needed, [N].')
  if not np.issubdtype(strata.dtype, np.integer):
    raise TypeError(
        f'strata are {strata.dtype.name}: they have to be integers, the number '
        'of the stratum of each example.')
  if strata.min() < 0:
    raise ValueError(
        f'strata[{strata.argmin()}] is {strata.min()}: strata are numbered '
        'from 0, and each example has to be in one. Give those that belong '
        'nowhere a stratum of their own.')
  present = np.unique(strata)
  if present[-1] >= len(present):
    empty = np.flatnonzero(present != np.arange(len(present)))[0]
    raise ValueError(
        f'Stratum {empty} is empty, and there are examples of stratum '
        f'{present[-1]}: strata are numbered 0, ..., K - 1 and each has an '
        'example. Pass np.unique(strata, return_inverse=True)[1].')
  return strata
