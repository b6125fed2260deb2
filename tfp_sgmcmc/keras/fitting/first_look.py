"""What is wrong with a model or its data, found before the first step."""

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
from tfp_sgmcmc.keras.model import large_targets
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib
from tfp_sgmcmc.keras.model import network
from tfp_sgmcmc.keras.model import not_finite
from tfp_sgmcmc.keras.model import priors
from tfp_sgmcmc.keras.model import replicas

__all__ = [
    'FirstBatch', 'FirstLook', 'first_batch', 'inputs', 'more_inputs',
    'whole_batch']


def whole_batch(model: keras.Model, data: hints.Data) -> Any:
  """A batch in one piece, without Keras' empty `Optional`s."""
  return replicas.whole(
      model.distribute_strategy, network.without_optionals(data))


def inputs(model: keras.Model, data: hints.Data) -> Any:
  """The inputs of a batch, in one piece."""
  x, _, _ = keras.utils.unpack_x_y_sample_weight(whole_batch(model, data))
  return x


def more_inputs(
    model: keras.Model, x: Any, iterator: Iterator[Any], num_rows: int) -> Any:
  """The inputs of several batches, from a pass of their own where there can be.

  The batches of the fit itself are for the optimizer's steps.

  Args:
    model: Built `keras.Model`.
    x: The inputs of the first batch.
    iterator: That of the fit, over its dataset.
    num_rows: Python `int`, how many rows there are to be, or more.

  Returns:
    x: Theirs; those of the first batch alone where these are enough, or there
      are several replicas, or other inputs than dense tensors, or another pass
      could disturb that of the fit.
  """
  number = -(-num_rows // int(network.num_rows(x)))
  dataset = compat.dataset_of(iterator)
  if (number == 1 or dataset is None
      or collectives.is_several(model.distribute_strategy)
      or compat.may_not_be_read_again(dataset) or not all(
          isinstance(leaf, tf.Tensor) for leaf in keras.tree.flatten(x))):
    return x
  return tf.nest.map_structure(
      lambda *leaves: tf.concat(leaves, 0),
      *(inputs(model, data) for data in dataset.take(number)))


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
  batch = whole_batch(model, data)
  x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
  return FirstBatch(
      network.without_optionals(data), x, y, sample_weight,
      int(network.num_rows(batch)), iterator)


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
    self._is_warned = False

  def begin_fit(self, likelihood: likelihood_lib.Likelihood) -> None:
    """Takes the likelihood of a model that may have been compiled anew."""
    self._likelihood = likelihood
    self._is_checked = False

  @property
  def likelihood(self) -> likelihood_lib.Likelihood:
    """That of the present `fit`."""
    return self._likelihood

  @property
  def is_due(self) -> bool:
    """Whether `check` has still to be called in this `fit`."""
    return not self._is_checked

  def check(self, element_spec: hints.Nested, data: hints.Data) -> None:
    """Checks the model, the loss and the first batch, once in a `fit`.

    The model and the likelihood are traced for batches of the spec (unless all
    is to run eagerly: then the first step has to find what is wrong). They are
    run on the batch where the outputs or the data may be at fault. A model
    without weights gets them, as the optimizer's step would make them.

    Args:
      element_spec: That of the dataset's iterator.
      data: The first batch.

    Raises:
      ValueError: If the targets do not fit the outputs, outputs are no
        probabilities where the loss takes them for such, data are NaN, targets
        are none that the loss can have, or weights cannot be sampled.
      TypeError: If the prior does not fit the weights.
    """
    self._is_checked, self._has_looked = True, False
    model = self._model
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(
        whole_batch(model, data))
    if model.run_eagerly:  # Which may not be traceable.
      is_suspect = bool(self._likelihood.losses_of_probabilities) or (
          not network.is_built(model))
    else:
      is_suspect = self._check_spec(element_spec, y)
      self.check_weights()
    if is_suspect:
      self.look_at(y, self._forward(x), sample_weight)
    said = self._cause(x, y)
    if said is not None:
      raise ValueError(said)

  def why_not_finite(self, batches: Iterator[Any]) -> str | None:
    """What makes the loss of some batches NaN or infinite; None if unknown."""
    pairs = (
        keras.utils.unpack_x_y_sample_weight(whole_batch(self._model, data))[:2]
        for data in batches)
    return next(filter(None, (self._cause(x, y) for x, y in pairs)), None)

  def _cause(self, x, y):
    if not not_finite.may_be(self._likelihood, x, y):
      return None
    if not network.is_built(self._model):
      self._forward(x)
    return not_finite.cause(self._model, self._likelihood, x, y)

  def _check_spec(self, element_spec, y):
    """Traces the likelihood; whether outputs may be no probabilities."""
    model, found = self._model, []

    def log_likelihood(data):
      x, y_spec, sample_weight = keras.utils.unpack_x_y_sample_weight(
          whole_batch(model, data))
      outputs = self._forward(x)
      found.append(inspection.may_need_logits(self._likelihood, outputs))
      values = self._likelihood.log_likelihood(y_spec, outputs, sample_weight)
      inspection.check_class_numbers(self._likelihood, y, outputs)
      inspection.warn_of_several_classes(self._likelihood, y, outputs)
      return values

    tf.function(
        log_likelihood, autograph=False,
        input_signature=[element_spec]).get_concrete_function()
    return found[0]

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

  def check_new_targets(self, data: hints.Data) -> None:
    """Warns of large targets of a model that has not been trained.

    Args:
      data: The first batch.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(
        whole_batch(self._model, data))
    if large_targets.may_be(self._likelihood, y):
      self._is_warned = large_targets.warn(
          self._likelihood, y, self._forward(x), sample_weight, is_new=True)

  def warn_of_large_targets(
      self,
      y: hints.Data,
      outputs: hints.Nested,
      sample_weight: hints.Nested,
  ) -> None:
    """Warns where sampling begins far from targets, if nothing has before."""
    if not self._is_warned:
      large_targets.warn(self._likelihood, y, outputs, sample_weight)

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

  def _forward(self, x):
    """The model's outputs as for prediction; a new model gets its weights."""
    model = self._model
    if not network.is_built(model):
      model(x)
    return network.forward(
        model, x, [tf.convert_to_tensor(v) for v in model.trainable_variables]
    ).outputs
