"""What is wrong with a model or its data, found before the first step."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import collectives
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.model import inspection
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib
from tfp_sgmcmc.keras.model import network
from tfp_sgmcmc.keras.model import priors
from tfp_sgmcmc.keras.model import raw_inputs
from tfp_sgmcmc.keras.model import replicas
from tfp_sgmcmc.keras.model import target_units

__all__ = [
    'FirstBatch', 'FirstLook', 'first_batch', 'more_rows', 'unpacked',
    'whole_batch']


def whole_batch(model: keras.Model, data: hints.Data) -> Any:
  """A batch in one piece, without Keras' empty `Optional`s."""
  return replicas.whole(
      model.distribute_strategy, network.without_optionals(data))


def unpacked(model: keras.Model, data: hints.Data) -> Any:
  """Inputs, targets and sample weights of a batch, in one piece."""
  return keras.utils.unpack_x_y_sample_weight(whole_batch(model, data))


def more_rows(
    model: keras.Model,
    part: Callable[[tuple[Any, Any, Any]], Any],
    data: hints.Data,
    iterator: Iterator[Any],
    num_rows: int,
) -> Any:
  """A part of several batches, from a pass of their own where there can be.

  The batches of the fit itself are for the optimizer's steps.

  Args:
    model: Built `keras.Model`.
    part: Callable of inputs, targets and sample weights; returns what of them
      is wanted.
    data: The first batch.
    iterator: That of the fit, over its dataset.
    num_rows: Python `int`, how many rows there are to be, or more.

  Returns:
    rows: What `part` returns, of all these; of the first batch alone where that
      is enough, or there are several replicas, or others than dense tensors, or
      another pass could disturb that of the fit.
  """
  found = part(unpacked(model, data))
  number = -(-num_rows // int(network.num_rows(found)))
  dataset = compat.dataset_of(iterator)
  if (number == 1 or dataset is None
      or collectives.is_several(model.distribute_strategy)
      or compat.may_not_be_read_again(dataset) or not all(
          leaf is None or isinstance(leaf, tf.Tensor)
          for leaf in keras.tree.flatten(found))):
    return found
  return tf.nest.map_structure(
      lambda *leaves: None if leaves[0] is None else tf.concat(leaves, 0),
      *(part(unpacked(model, each)) for each in dataset.take(number)))


class FirstBatch(NamedTuple):
  """The first batch of a chain, and where the next ones come from.

  Attributes:
    data: The batch as the step gets it, in pieces for several replicas.
    x: Its inputs, in one piece, as the next two.
    y: Its targets.
    sample_weight: Its sample weights.
    num_rows: Python `int`, the number of its rows.
    iterator: The dataset's iterator.
  """
  data: Any
  x: Any
  y: Any
  sample_weight: Any
  num_rows: int
  iterator: Iterator[Any]


def first_batch(
    model: keras.Model, data: hints.Data, iterator: Iterator[Any],
) -> FirstBatch:
  """A batch and an iterator over the next ones, as a `FirstBatch`."""
  x, y, sample_weight = unpacked(model, data)
  return FirstBatch(
      network.without_optionals(data), x, y, sample_weight,
      int(network.num_rows([x, y])), iterator)


class FirstLook:
  """Checks a model on the first batch of a `fit`; changes no weight."""

  def __init__(
      self,
      model: keras.Model,
      prior: Any,
      likelihood: likelihood_lib.Likelihood,
      are_weights_checked: bool,
  ):
    """Makes the object, before any batch.

    Args:
      model: Compiled `keras.Model`.
      prior: As `WeightPrior` takes it.
      likelihood: `Likelihood` of the model.
      are_weights_checked: Python `bool`, whether the weights and their prior
        have been checked.
    """
    self._model, self._prior = model, prior
    self._are_weights_checked = are_weights_checked
    self._likelihood = likelihood
    self._is_checked, self._has_looked = False, False

  def begin_fit(self, likelihood: likelihood_lib.Likelihood) -> None:
    """Takes the likelihood of a model that may have been compiled anew."""
    self._likelihood = likelihood
    self._is_checked = False

  @property
  def likelihood(self) -> likelihood_lib.Likelihood:
    """That of the present `fit`."""
    return self._likelihood

  def needs_a_batch(self, element_spec: hints.Nested) -> bool:
    """Checks what the spec of the batches tells, once in a `fit`.

    The model and the likelihood are traced for batches of the spec, and not run
    (unless all is to run eagerly: then the first step has to find what is
    wrong). A model without weights gets them, as the optimizer's step would
    make them.

    Args:
      element_spec: That of the dataset's iterator.

    Returns:
      needs_a_batch: Whether `look` is due, since a crossentropy may get outputs
        that are no probabilities.

    Raises:
      ValueError: If the targets do not fit the outputs, or weights cannot be
        sampled.
      TypeError: If the prior does not fit the weights.
    """
    if self._is_checked:
      return False
    self._is_checked, self._has_looked = True, False
    model, found = self._model, []
    if model.run_eagerly:  # Which may not be traceable.
      return bool(self._likelihood.losses_of_probabilities) or (
          not network.is_built(model))

    def log_likelihood(data):
      x, y, sample_weight = unpacked(model, data)
      outputs = self._forward(x)
      found.append(inspection.may_need_logits(self._likelihood, outputs))
      return self._likelihood.log_likelihood(y, outputs, sample_weight)

    tf.function(
        log_likelihood, autograph=False,
        input_signature=[element_spec]).get_concrete_function()
    self.check_weights()
    return found[0]

  def look(self, data: hints.Data) -> None:
    """Looks at the model's outputs on a batch.

    Args:
      data: The batch.

    Raises:
      ValueError: If outputs are no probabilities where the loss takes them for
        such.
    """
    x, y, sample_weight = unpacked(self._model, data)
    self.look_at(y, self._forward(x), sample_weight)

  def look_at(
      self,
      y: hints.Data,
      outputs: hints.Nested,
      sample_weight: hints.Nested,
  ) -> None:
    """The same of outputs, where none have been looked at in this `fit`."""
    if not self._has_looked:
      inspection.look(self._likelihood, y, outputs, sample_weight)
      self._has_looked = True

  def find_units(
      self,
      units: target_units.TargetUnits,
      raw: raw_inputs.RawInputs,
      data: hints.Data,
      iterator: Iterator[Any],
      may_find: bool,
  ) -> None:
    """Has the likelihood read targets in units of theirs, where it has to.

    Args:
      units: `TargetUnits` of the model's likelihood.
      raw: `RawInputs`. Before training the outputs are those for standardised
        inputs.
      data: The first batch.
      iterator: That of the fit, over its dataset.
      may_find: Whether it may; else such targets are an error.
    """
    model = self._model
    x, y, sample_weight = unpacked(model, data)
    if not target_units.may_be_large(self._likelihood, y):
      units.by_position = {}
      return
    is_trained = network.num_trained_steps(model.optimizer) > 0
    units.find(
        y, self._forward(x, None if is_trained else raw), sample_weight,
        more=lambda: more_rows(
            model, lambda batch: batch[1:], data, iterator,
            target_units.MOST_ROWS),
        is_trained=is_trained, may_take=may_find)

  def warn_of_targets(
      self,
      y: hints.Data,
      outputs: hints.Nested,
      sample_weight: hints.Nested,
  ) -> None:
    """Warns where targets are too large for the default prior."""
    target_units.warn(self._likelihood, y, outputs, sample_weight)

  def mean_loss(self, batches: Iterator[Any]) -> float:
    """The mean of the negative log likelihood, for the weights as they are.

    Args:
      batches: Iterator over batches.

    Returns:
      loss: Python `float`, in nats an example.
    """
    total, number = 0., 0
    for data in batches:
      x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
      values = self._likelihood.log_likelihood(
          y, self._forward(x), sample_weight).numpy()
      total -= float(values.sum(dtype=np.float64))
      number += len(values)
    return total / number

  def check_weights(self) -> None:
    """Raises where weights cannot be sampled, or have no prior."""
    if not self._are_weights_checked:
      network.check_weights(self._model)
      priors.WeightPrior(self._prior, self._model.trainable_variables)
      self._are_weights_checked = True

  def _forward(self, x, raw=None):
    """The model's outputs as for prediction; a new model gets its weights.

    With `RawInputs` its weights are taken for the coordinates.
    """
    model = self._model
    if not network.is_built(model):
      model(x)
    weights = [tf.convert_to_tensor(v) for v in model.trainable_variables]
    return network.forward(
        model, x, weights if raw is None else raw.weights(weights)).outputs
