"""What a model's call takes, and which of the model's variables it changes."""

from collections.abc import Iterable

import keras
import tensorflow as tf

from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.model import network
from tfp_sgmcmc.keras.model import products

__all__ = ['has_statistics', 'look', 'takes_other_sizes']


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


def takes_other_sizes(model: keras.Model, inputs: hints.Nested) -> bool:
  """Whether a model takes batches of whatever number of rows.

  Keras notes the number of rows of the first batch in a model that was made
  without `keras.Input`, and takes other numbers all the same; some layers do
  not, such as stateful ones. So a model in which a number is noted is traced
  for one row, and for two.

  Args:
    model: Built `keras.Model`.
    inputs: The specs of a batch's inputs.

  Returns:
    takes_other_sizes: Python `bool`.
  """
  if all(shape[:1] == (None,) for shape in products.output_shapes(model)):
    return True
  program = tf.function(lambda x: network.forward(
      model, x, [tf.convert_to_tensor(v) for v in model.trainable_variables]
  ).outputs, autograph=False)
  try:
    return all(
        output.shape[:1] == [number]
        for number in (1, 2)
        for output in tf.nest.flatten(program.get_concrete_function(
            tf.nest.map_structure(
                lambda spec, n=number: tf.TensorSpec(
                    [n, *spec.shape[1:]], spec.dtype),
                inputs)).structured_outputs))
  except Exception:  # Whatever a layer says to rows that it does not take.
    return False
