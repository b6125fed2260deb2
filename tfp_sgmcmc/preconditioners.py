"""Diagonal preconditioners, adapted from the gradients as the chain runs."""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import states

__all__ = ['RMSProp', 'RMSPropResults']


class RMSPropResults(NamedTuple):
  """State of `RMSProp`.

  Attributes:
    second_moment: List with V for each part of the state, in its shape.
  """
  second_moment: list[tf.Tensor]


class RMSProp:
  """The preconditioner of pSGLD: inverse root mean square of the gradients.

    V = decay V + (1 - decay) gbar^2,  gbar = g / N
    G = 1 / (regularizer + sqrt(V))

  with g the estimate of the gradient of the log density and N the number of
  examples (1 for a density without data), so that gbar is on the scale of one
  example. Li et al. (2016), equations 4 and 5; `decay` is their alpha and
  `regularizer` their lambda. V starts from the first gradient: from zero, the
  first step would have a standard deviation of sqrt(2 h / regularizer). So it
  has in coordinates where the first gradient is exactly zero, such as the
  weights of a pixel that is always black at a zero of their prior's gradient:
  start elsewhere, at a draw of the prior for instance, or raise `regularizer`.

  G depends on the past of the chain, so the chain is only nearly one of the
  posterior. With `decay=1.` V stays as it is: adapt first, then go on from the
  last kernel results with a frozen preconditioner and an exact drift term,

  ```python
  frozen = kernel.copy(preconditioner=sgmcmc.preconditioners.RMSProp(decay=1.))
  ```

  With `normalize=True` the diagonal is over its mean over all coordinates of a
  chain, so that it changes the shape of the steps and not their scale: Pakman
  et al. (2017), equations 17 and 18, for pSBPS.

  #### References

  [1]: Chunyuan Li, Changyou Chen, David Carlson, Lawrence Carin. Preconditioned
       Stochastic Gradient Langevin Dynamics for Deep Neural Networks. _AAAI_,
       2016.
  [2]: Ari Pakman, Dar Gilboa, David Carlson, Liam Paninski. Stochastic Bouncy
       Particle Sampler. _ICML_, 2017.
  """

  def __init__(
      self,
      decay: Any = 0.99,
      regularizer: Any = 1e-5,
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
    self._normalize = bool(normalize)

  def bootstrap_results(
      self, mean_gradients: Sequence[tf.Tensor]) -> RMSPropResults:
    """The state after the first gradient.

    Args:
      mean_gradients: List of gradients over the number of examples.

    Returns:
      results: `RMSPropResults`.
    """
    return RMSPropResults([tf.square(g) for g in mean_gradients])

  def one_step(
      self,
      mean_gradients: Sequence[tf.Tensor],
      previous_results: RMSPropResults,
      chain_rank: int = 0,
  ) -> tuple[list[tf.Tensor], RMSPropResults]:
    """Takes in a gradient.

    Args:
      mean_gradients: List of gradients over the number of examples.
      previous_results: `RMSPropResults`.
      chain_rank: Python `int`, how many leading axes are those of chains.

    Returns:
      preconditioner: List with the diagonal of G for each part.
      results: `RMSPropResults`.

    #### Examples

    >>> rmsprop = sgmcmc.preconditioners.RMSProp(decay=0.5, regularizer=1e-6)
    >>> results = rmsprop.bootstrap_results([tf.constant(2.)])
    >>> (diagonal,), _ = rmsprop.one_step([tf.constant(2.)], results)
    >>> round(float(diagonal), 4)
    0.5
    """
    second_moment = []
    for g, v in zip(mean_gradients, previous_results.second_moment):
      decay = tf.cast(self._decay, g.dtype)
      second_moment.append(decay * v + (1. - decay) * tf.square(g))
    results = RMSPropResults(second_moment)
    return self.diagonal(results, chain_rank), results

  def diagonal(
      self, results: RMSPropResults, chain_rank: int = 0) -> list[tf.Tensor]:
    """The diagonal of G for each part, as it stands.

    Args:
      results: `RMSPropResults`.
      chain_rank: Python `int`, how many leading axes are those of chains.

    Returns:
      preconditioner: List of tensors.

    #### Examples

    >>> rmsprop = sgmcmc.preconditioners.RMSProp(normalize=True)
    >>> results = rmsprop.bootstrap_results([tf.constant([1., 3.])])
    >>> [round(float(a), 3) for a in rmsprop.diagonal(results)[0]]
    [1.5, 0.5]
    """
    diagonal = [
        1. / (tf.cast(self._regularizer, v.dtype) + tf.sqrt(v))
        for v in results.second_moment]
    if not self._normalize:
      return diagonal
    total = sum(
        tf.reduce_sum(a, axis=list(range(chain_rank, a.shape.rank)))
        for a in diagonal)
    mean = total / tf.cast(
        states.num_coordinates(diagonal, chain_rank), total.dtype)
    return [a / states.expand(mean, a) for a in diagonal]
