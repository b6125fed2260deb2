"""What a model's call takes, and which of the model's variables it changes."""

from collections.abc import Iterable

import keras
import tensorflow as tf

from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.model import network

__all__ = ['has_statistics', 'look']


def has_statistics(
    model: keras.Model, of_chains: Iterable[keras.Variable],
) -> bool:
  """Whether chains differ in weights that are not trained.

  Args:
    model: Built `keras.Model`.
    of_chains: The variables of which each chain has its own values.

  Returns:
    has_statistics: Python `bool`.
  """
  ids = {id(variable) for variable in of_chains}
  return any(id(weight) in ids for weight in model.non_trainable_weights)


def look(
    model: keras.Model, element_spec: hints.Nested,
) -> tuple[hints.Nested, list[keras.Variable]]:
  """What a model's call takes, and what it changes.

  Args:
    model: Built `keras.Model`.
    element_spec: That of the dataset's iterator.

  Returns:
    inputs: The specs of the inputs, None where all runs eagerly.
    changing: The variables beside trainable weights that a call changes.
  """
  candidates = model.non_trainable_variables
  if model.run_eagerly:  # Which may not be traceable.
    return None, candidates
  inputs, changed = [], set()

  def look(data):
    x, _, _ = keras.utils.unpack_x_y_sample_weight(
        network.without_optionals(data))
    inputs.append(tf.nest.map_structure(tf.type_spec_from_value, x))
    for training in (True, False):
      changed.update(network.changed_by_call(
          model, x, candidates, network.call_arguments(model, training)))

  tf.function(look, autograph=False, input_signature=[
      element_spec]).get_concrete_function()
  return inputs[0], [v for v in candidates if id(v) in changed]
