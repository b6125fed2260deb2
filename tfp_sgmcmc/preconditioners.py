"""Diagonal preconditioners: given, or adapted from the gradients."""

import abc
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = [
    'Diagonal',
    'GradientVariance',
    'GradientVarianceResults',
    'Identity',
    'Preconditioner',
    'RMSProp',
    'RMSPropResults',
    'check_preconditioner',
]


class Preconditioner(abc.ABC):
  """A diagonal matrix G by which a kernel stretches its steps.

  Its state is made of tensors. It receives gradients divided by the number of
  examples.
  """

  @property
  def keeps_scale(self) -> bool:
    """Whether the mean of the diagonal, over a chain's coordinates, is 1."""
    return False

  @property
  def learns(self) -> bool:
    """Whether a gradient changes its state; if not, it needs no gradients."""
    return True

  @property
  def has_state(self) -> bool:
    """Whether G depends on its state; if not, G is known beforehand."""
    return True

  @property
  def is_by_coordinate(self) -> bool:
    """Whether an entry of G depends only on its own coordinate's gradients.

    Then a device that holds some coordinates of the state has their part of G.
    """
    return False

  @abc.abstractmethod
  def bootstrap_results(self, mean_gradients: Sequence[tf.Tensor]) -> Any:
    """The state after the first gradient.

    Args:
      mean_gradients: List of gradients over the number of examples.

    Returns:
      results: Nested tensors.
    """

  @abc.abstractmethod
  def one_step(
      self, mean_gradients: Sequence[tf.Tensor], previous_results: Any) -> Any:
    """Updates the state by a gradient.

    Args:
      mean_gradients: List of gradients over the number of examples.
      previous_results: The preconditioner's state.

    Returns:
      results: Its new state.
    """

  @abc.abstractmethod
  def times(
      self, tensors: Sequence[tf.Tensor], results: Any, chain_rank: int = 0,
  ) -> list[tf.Tensor]:
    """G times a vector.

    Args:
      tensors: List with a tensor for each part of the state, that broadcasts
        with it.
      results: The preconditioner's state.
      chain_rank: Python `int`, how many leading axes are those of chains.

    Returns:
      products: List of tensors.
    """


class _Given(Preconditioner):
  """Base of those with a G that is known before the chain runs."""

  @property
  def learns(self):
    return False

  @property
  def has_state(self):
    return False

  @property
  def is_by_coordinate(self):
    return True

  def bootstrap_results(self, mean_gradients):
    del mean_gradients
    return ()

  def one_step(self, mean_gradients, previous_results):
    del mean_gradients
    return previous_results


class Identity(_Given):
  """No preconditioner: G is the identity, and there is nothing to learn."""

  @property
  def keeps_scale(self):
    return True

  def __repr__(self):
    return 'Identity()'

  def times(self, tensors, results, chain_rank=0):
    del results, chain_rank
    return list(tensors)


class Diagonal(_Given):
  """A given diagonal G that stays fixed: an inverse mass matrix.

    SGLD:   theta <- theta + h G g + sqrt(2 h T G) xi
    SGNHT:  d theta = s p dt,  dp = s g dt - ...,  s = sqrt(G)

  The second line is the dynamics of theta / s with unit masses. Since G does
  not depend on the state, it changes neither law. A G near the variances of the
  posterior is best: all coordinates then have one scale, and the largest stable
  step of SGNHT is 2.

  #### Examples

  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x),
  ...     data=tf.range(10.))
  >>> kernel = sgmcmc.SGNHT(
  ...     posterior, step_size=0.3, diffusion=1.,
  ...     preconditioner=sgmcmc.preconditioners.Diagonal(1. / 10.))
  >>> tfp.mcmc.sample_chain(
  ...     5, tf.zeros([4]), kernel=kernel, trace_fn=None, seed=[0, 0]).shape
  TensorShape([5, 4])
  """

  def __init__(self, diagonal: tf.Tensor | Sequence[tf.Tensor]):
    """Makes the preconditioner.

    Args:
      diagonal: The diagonal of G, in the square of the state's units: a
        positive number, a tensor that broadcasts with each part of the state
        (with or without the axes of chains), or a list with one of these for
        each part.

    Raises:
      ValueError: If a number is not positive.
      TypeError: If it is not of numbers.
    """
    self._diagonal = diagonal
    for value in diagonal if self._is_list else [diagonal]:
      checks.numeric('diagonal', value, 0.)

  @property
  def _is_list(self):
    return isinstance(self._diagonal, (list, tuple))

  def __repr__(self):
    return f'Diagonal({checks.shorten(self._diagonal)})'

  def times(self, tensors, results, chain_rank=0):
    del results, chain_rank
    diagonal = self._diagonal
    if not self._is_list:
      diagonal = [diagonal] * len(tensors)
    if len(diagonal) != len(tensors):
      raise ValueError(
          f'The diagonal of preconditioners.Diagonal is a list of '
          f'{len(diagonal)}, and the state has {len(tensors)} part(s): it '
          'needs an entry for each.')
    return [states.cast(g, x.dtype) * x for g, x in zip(diagonal, tensors)]


def check_preconditioner(value: object) -> None:
  """Raises if the argument is not a preconditioner."""
  if not isinstance(value, Preconditioner):
    raise TypeError(
        f'preconditioner is {value!r}: it has to be preconditioners.RMSProp() '
        'or another Preconditioner, such as Diagonal, or None for none.')


class _Following(Preconditioner):
  """Base of those whose diagonal follows the gradients, by a decay."""

  _decay: Any

  @property
  def learns(self):
    decay = checks.static_value(self._decay)
    return decay is None or not np.all(decay == 1.)

  def times(self, tensors, results, chain_rank=0):
    return [
        a * x for a, x in zip(self.diagonal(results, chain_rank), tensors)]

  @abc.abstractmethod
  def diagonal(self, results: Any, chain_rank: int = 0) -> list[tf.Tensor]:
    """The diagonal of G for each part of the state, as it stands."""

  def _average(self, past, new):
    """decay past + (1 - decay) new."""
    decay = states.cast(self._decay, new.dtype)
    return decay * past + (1. - decay) * new


class RMSPropResults(NamedTuple):
  """State of `RMSProp`.

  Attributes:
    second_moment: List with V for each part of the state, in its shape.
  """
  second_moment: list[tf.Tensor]


class RMSProp(_Following):
  """The preconditioner of pSGLD: inverse root mean square of the gradients.

    V = decay V + (1 - decay) gbar^2,  gbar = g / N
    G = 1 / (regularizer + sqrt(V))

  with g the estimate of the gradient of the log density and N the number of
  examples (1 for a density without data), so that gbar is on the scale of one
  example. Li et al. (2016), equations 4 and 5; `decay` is their alpha and
  `regularizer` their lambda. V starts from the first gradient. If V were 0, the
  first step would have a standard deviation of sqrt(2 h / regularizer). This
  happens in coordinates where the first gradient is exactly zero: for instance
  the weights of a pixel that is always black, where the gradient of their prior
  is zero too. Start elsewhere, such as at a draw of the prior, or raise
  `regularizer`.

  G depends on the past of the chain, so the chain samples the posterior only
  approximately, at any step size. With `decay=0.99` an error of about 2% in
  standard deviations remains, with 0.999 about 0.5%, but G then follows the
  chain ten times more slowly. With `decay=1.` V stays fixed: adapt first, then
  continue from the last kernel results with a frozen preconditioner and an
  exact drift term,

  ```python
  frozen = kernel.copy(preconditioner=sgmcmc.preconditioners.RMSProp(decay=1.))
  ```

  With `normalize=True` the diagonal is divided by its mean over all coordinates
  of a chain, so that it changes the shape of the steps and not their scale:
  Pakman et al. (2017), equations 17 and 18, for pSBPS.

  #### References

  [1]: Chunyuan Li, Changyou Chen, David Carlson, Lawrence Carin. Preconditioned
       Stochastic Gradient Langevin Dynamics for Deep Neural Networks. _AAAI_,
       2016.
  [2]: Ari Pakman, Dar Gilboa, David Carlson, Liam Paninski. Stochastic Bouncy
       Particle Sampler. _ICML_, 2017.
  """

  def __init__(
      self,
      decay: hints.TensorLike = 0.99,
      *,
      regularizer: hints.TensorLike = 1e-5,
      normalize: bool = False,
  ):
    """Makes the preconditioner.

    Args:
      decay: Number in [0, 1], alpha: the weight of the past.
      regularizer: Positive number, lambda: the preconditioner is at most its
        inverse.
      normalize: Python `bool`: divide the diagonal by its mean.

    Raises:
      ValueError: If an argument is out of its range.
    """
    checks.fraction('decay', decay)
    checks.numeric('regularizer', regularizer, 0.)
    self._decay = decay
    self._regularizer = regularizer
    self._normalize = checks.boolean('normalize', normalize)

  @property
  def keeps_scale(self):
    return self._normalize

  @property
  def is_by_coordinate(self):
    return not self._normalize

  def __repr__(self):
    return (f'RMSProp(decay={self._decay!r}, '
            f'regularizer={self._regularizer!r}, '
            f'normalize={self._normalize!r})')

  def bootstrap_results(
      self, mean_gradients: Sequence[tf.Tensor]) -> RMSPropResults:
    """The state after the first gradient, V = gbar^2."""
    return RMSPropResults([tf.square(g) for g in mean_gradients])

  def one_step(
      self,
      mean_gradients: Sequence[tf.Tensor],
      previous_results: RMSPropResults,
  ) -> RMSPropResults:
    """Updates the state: V = decay V + (1 - decay) gbar^2."""
    return RMSPropResults([
        self._average(v, tf.square(g))
        for g, v in zip(mean_gradients, previous_results.second_moment)])

  def diagonal(
      self, results: RMSPropResults, chain_rank: int = 0) -> list[tf.Tensor]:
    """The diagonal of G for each part of the state, as it stands.

    Args:
      results: `RMSPropResults`.
      chain_rank: Python `int`, how many leading axes are those of chains.

    Returns:
      diagonal: List of tensors in the shapes of the parts.

    #### Examples

    >>> rmsprop = sgmcmc.preconditioners.RMSProp(decay=0.5, regularizer=1e-6)
    >>> results = rmsprop.bootstrap_results([tf.constant(2.)])
    >>> results = rmsprop.one_step([tf.constant(2.)], results)
    >>> round(float(rmsprop.diagonal(results)[0]), 4)
    0.5

    >>> rmsprop = sgmcmc.preconditioners.RMSProp(normalize=True)
    >>> results = rmsprop.bootstrap_results([tf.constant([1., 3.])])
    >>> [round(float(a), 3) for a in rmsprop.diagonal(results)[0]]
    [1.5, 0.5]
    """
    diagonal = [
        1. / (states.cast(self._regularizer, v.dtype) + tf.sqrt(v))
        for v in results.second_moment]
    if not self._normalize:
      return diagonal
    mean = _mean(diagonal, chain_rank)
    return [a / states.expand(mean, a) for a in diagonal]


class GradientVarianceResults(NamedTuple):
  """State of `GradientVariance`.

  Attributes:
    mean: List with m for each part of the state, in its shape.
    variance: List with V, likewise.
    weight_of_start: List with decay^n for each part, a scalar, after n
      gradients but the first.
  """
  mean: list[tf.Tensor]
  variance: list[tf.Tensor]
  weight_of_start: list[tf.Tensor]


class GradientVariance(_Following):
  """The preconditioner of pSMILE: inverse variance of the gradients.

    V = decay V + (1 - decay) (gbar - m)^2
    m = decay m + (1 - decay) gbar
    G = 1 / s^2,  s^2 = max(w + (1 - w) V / mean(V), floor^2)

  with gbar the gradient of the log density over the number of examples, m =
  gbar and V = 0 at the start, mean(V) the mean over all coordinates of a chain,
  and w = decay^n after n more gradients. G starts as the identity, and tends to
  mean(V) / V as the start is forgotten. The mean of s^2 is 1, so G changes the
  shape of the steps and hardly their scale.

  It is for `MicrocanonicalLangevin`, which has a bias if minibatch noise
  differs between directions. With s the standard deviation of the noise up to a
  factor, the noise of g / s is the same in all directions. V also holds the
  changes of the gradient along the path, so this is accurate where minibatch
  noise is the larger part of V. With exact gradients V is the variance of the
  gradient under the posterior: the information of each coordinate.

  G depends on the past of the chain, so the chain samples the posterior only
  approximately. With `decay=1.` m and V stay fixed: adapt first, then continue
  from the last kernel results with `kernel.copy(preconditioner=
  sgmcmc.preconditioners.GradientVariance(decay=1.))`.

  The authors limit sqrt(V) to [0.01, 10000] before the division by its root
  mean square; here the limit is a share of this root mean square, so that it
  does not depend on the units of the gradient.

  #### Examples

  >>> kernel = sgmcmc.MicrocanonicalLangevin(
  ...     sgmcmc.Posterior(
  ...         lambda mu: -tf.reduce_sum(mu**2, axis=-1) / 2.,
  ...         lambda mu, x: -tf.reduce_sum(
  ...             ((x - mu[..., tf.newaxis, :]) / [1., 3.])**2, axis=-1) / 2.,
  ...         data=tf.random.stateless_normal([1000, 2], [0, 1]) * [1., 3.]),
  ...     step_size=0.01,
  ...     gradient_estimator=sgmcmc.gradients.Uniform(batch_size=10),
  ...     preconditioner=sgmcmc.preconditioners.GradientVariance())
  >>> tfp.mcmc.sample_chain(
  ...     5, tf.zeros([4, 2]), kernel=kernel, trace_fn=None, seed=[0, 0]).shape
  TensorShape([5, 4, 2])

  #### References

  [1]: Emanuel Sommer, Kangning Diao, Jakob Robnik, Uros Seljak, David
       Ruegamer. Can Microcanonical Langevin Dynamics Leverage Mini-Batch
       Gradient Noise? arXiv:2602.06500, 2026.
  """

  def __init__(
      self,
      decay: hints.TensorLike = 0.99,
      *,
      floor: hints.TensorLike = 0.01,
  ):
    """Makes the preconditioner.

    Args:
      decay: Number in [0, 1]: the weight of the past.
      floor: Positive number, at most 1: the least s, so that G is at most
        `floor`^-2.

    Raises:
      ValueError: If an argument is out of its range.
    """
    checks.fraction('decay', decay)
    checks.fraction('floor', floor)
    checks.numeric('floor', floor, 0.)
    self._decay = decay
    self._floor = floor

  def __repr__(self):
    return f'GradientVariance(decay={self._decay!r}, floor={self._floor!r})'

  def bootstrap_results(
      self, mean_gradients: Sequence[tf.Tensor]) -> GradientVarianceResults:
    """The state after the first gradient, m = gbar and V = 0."""
    return GradientVarianceResults(
        list(mean_gradients), [tf.zeros_like(g) for g in mean_gradients],
        [tf.ones([], g.dtype) for g in mean_gradients])

  def one_step(
      self,
      mean_gradients: Sequence[tf.Tensor],
      previous_results: GradientVarianceResults,
  ) -> GradientVarianceResults:
    """Takes in a gradient."""
    mean, variance, weight = previous_results
    return GradientVarianceResults(
        [self._average(m, g) for m, g in zip(mean, mean_gradients)],
        [self._average(v, tf.square(g - m))
         for v, g, m in zip(variance, mean_gradients, mean)],
        [states.cast(self._decay, w.dtype) * w for w in weight])

  def diagonal(
      self, results: GradientVarianceResults, chain_rank: int = 0,
  ) -> list[tf.Tensor]:
    """The diagonal of G for each part of the state, as it stands.

    Args:
      results: `GradientVarianceResults`.
      chain_rank: Python `int`, how many leading axes are those of chains.

    Returns:
      diagonal: List of tensors in the shapes of the parts.
    """
    mean = _mean(results.variance, chain_rank)
    diagonal = []
    for v, w in zip(results.variance, results.weight_of_start):
      of_one = tf.math.divide_no_nan(v, states.expand(mean, v))
      # All alike where no gradient has changed yet.
      share = tf.where(states.expand(mean, v) > 0., 1. - w, 0.)
      square = share * of_one + 1. - share
      floor = states.cast(self._floor, v.dtype)
      diagonal.append(1. / tf.maximum(square, floor**2))
    return diagonal


def _mean(parts: Sequence[tf.Tensor], chain_rank: int) -> tf.Tensor:
  """The mean over all coordinates of each chain."""
  total = sum(states.sum_event(a, chain_rank) for a in parts)
  return total / tf.cast(
      states.num_coordinates(parts, chain_rank), total.dtype)
