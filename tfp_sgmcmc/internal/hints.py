"""Names for the types of arguments that many functions share.

TensorFlow, TFP and Keras have no types that a checker could read, so that these
names are for readers first.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import os
from typing import Any
from typing import Protocol
from typing import TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

__all__ = [
    'AdaptedResults', 'Data', 'EstimatorResults', 'LogDensity', 'Nested',
    'Path', 'Prior', 'Results', 'Schedule', 'Seed', 'Shape', 'ShardAxes',
    'State', 'TensorLike']

# What tf.convert_to_tensor takes.
TensorLike: TypeAlias = (
    tf.Tensor | tf.Variable | np.ndarray | np.generic | float
    | Sequence['TensorLike'])
Nested: TypeAlias = (
    TensorLike | Sequence['Nested'] | Mapping[str, 'Nested'] | None)
# A state of chains: a tensor, or its parts.
State: TypeAlias = TensorLike | Sequence[TensorLike]
# What Keras' fit and predict take as inputs or targets.
Data: TypeAlias = Nested | tf.data.Dataset | Iterable[Nested]
# A log density of the parts of a state; a `Posterior` is one.
LogDensity: TypeAlias = Callable[..., tf.Tensor]
# A value, or a callable of the step counter.
Schedule: TypeAlias = TensorLike | Callable[[tf.Tensor], TensorLike]
# A stateless seed, `int32[2]`, or an integer; None for one from the system.
Seed: TypeAlias = tf.Tensor | np.ndarray | Sequence[int] | int | None
Shape: TypeAlias = tf.TensorShape | tf.Tensor | np.ndarray | Sequence[int]
Path: TypeAlias = str | os.PathLike[str]
# Of Keras' weights: of all, by names, or by a function of the variable.
Prior: TypeAlias = (
    tfp.distributions.Distribution | Mapping[str, 'Prior']
    | Callable[[Any], 'Prior'] | None)
# Of each part of a state, the names of the axes along which it is sharded.
ShardAxes: TypeAlias = Sequence[str | Sequence[str]] | None


class EstimatorResults(Protocol):
  """Results of a gradient estimator: a `NamedTuple` with this among its fields.

  Attributes:
    num_gradients: `int64`, the gradients of examples taken, in the chains'
      shape.
  """
  num_gradients: tf.Tensor

  def _replace(self, **fields: Any) -> 'EstimatorResults':
    """The results with other values of some fields."""


class AdaptedResults(Protocol):
  """Results of a kernel that adapts another one.

  Attributes:
    inner_results: `Results` of the other.
  """

  @property
  def inner_results(self) -> Any:
    """Of the inner kernel."""


class Results(Protocol):
  """Results of a kernel: a `NamedTuple` with these among its fields.

  Attributes:
    step: `int64[]`, the number of steps made.
    target_log_prob: The log density or its estimate, in the chains' shape.
    grads_target_log_prob: Its gradient, a list with an entry for each part of
      the state.
    gradient_estimator_results: `EstimatorResults`.
  """
  step: tf.Tensor
  target_log_prob: tf.Tensor
  grads_target_log_prob: list[tf.Tensor]
  gradient_estimator_results: EstimatorResults
