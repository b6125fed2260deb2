"""What the estimators share that estimate on sets of examples.

A step is `prepare` (what is due before the draw, once a step), `index_sets`
(which draws the sets) and `estimate` (the gradient on one set). An estimator
that tries several sets in a step, as `ExponentiallyWeighted` does, uses the
same three.
"""

import abc
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc.gradients import base
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = ['IndexSetEstimator', 'IndexSets']


class IndexSets(NamedTuple):
  """The sets of examples of one step.

  Attributes:
    draw: Callable of m = 0, 1, ...; returns the indices of the examples in set
      m, `chains + [n]`, or `[n]` where the chains share them.
    cost: The number of gradients of single examples that estimates on all of
      the sets take together.
    have_one_size: Python `bool`: all sets have one static size. Then m may be a
      tensor, else it has to be a Python `int`.
  """
  draw: Callable[[Any], tf.Tensor]
  cost: Any
  have_one_size: bool


class IndexSetEstimator(base.GradientEstimator):
  """Base of the estimators that estimate on sets of the data's rows."""

  @property
  def chooses_among_sets(self):
    return True

  def check_sets(
      self, target: posterior_lib.Posterior, num_sets: int) -> None:
    """Raises where there are not enough rows for so many sets.

    Args:
      target: `Posterior`.
      num_sets: Python `int`, the number of sets in a step.
    """
    del target, num_sets

  def prepare(
      self,
      target: posterior_lib.Posterior,
      state_parts: Sequence[tf.Tensor],
      results: Any,
  ) -> Any:
    """The results with which this step estimates; unchanged by default.

    Args:
      target: `Posterior`.
      state_parts: List of float tensors.
      results: The estimator's results of the last step.

    Returns:
      results: With what it cost counted in `num_gradients`.
    """
    del target, state_parts
    return results

  @abc.abstractmethod
  def index_sets(
      self,
      target: posterior_lib.Posterior,
      chains: hints.Shape,
      num_sets: int,
      seed: tf.Tensor,
  ) -> IndexSets:
    """Draws the sets of a step.

    Args:
      target: `Posterior`.
      chains: The chains' shape.
      num_sets: Python `int`, how many sets there are.
      seed: Stateless seed, `int32[2]`.

    Returns:
      sets: `IndexSets`.
    """

  def estimate(
      self,
      target: posterior_lib.Posterior,
      state_parts: Sequence[tf.Tensor],
      results: Any,
      indices: tf.Tensor,
  ) -> base.GradientEstimate:
    """The estimate from the examples at `indices`, each standing for N / n.

    Args:
      target: `Posterior`.
      state_parts: List of float tensors.
      results: What `prepare` returned.
      indices: Integer tensor, `chains + [n]` or `[n]`.

    Returns:
      estimate: `GradientEstimate`.
    """
    del results
    batch = target.gather(indices)
    return base.GradientEstimate(*states.value_and_gradients(
        lambda *parts: target.log_prob_estimate(*parts, batch=batch),
        state_parts))
