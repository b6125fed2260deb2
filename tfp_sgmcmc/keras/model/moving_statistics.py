"""The moving statistics of normalising layers: estimated anew, then fixed.

A chain samples the posterior of one model. So a layer that normalises by the
moments of the batch while it trains has to normalise by fixed ones while the
chain runs: else an example's likelihood would depend on which others are in its
batch. With fixed statistics BatchNormalization is an affine map,

  y = gamma (x - mean) / sqrt(variance + epsilon) + beta,

and the weights that are drawn belong to these statistics: predictions of a draw
use the very ones that it was drawn with. (Statistics computed anew for each
draw's weights would make another function of them than the one whose likelihood
was sampled.)

Keras' own, averages over the steps of training with momentum 0.99, lag behind
the weights, for hundreds of steps behind their initial values 0 and 1. So they
are estimated before the first step, at its weights: with B batches,

  mean = 1/B sum_b mean_b,
  variance = 1/B sum_b (variance_b + mean_b^2) - mean^2,

where each layer gets its inputs from layers that normalise by the batch.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.model import network

__all__ = ['estimate', 'moving_variables']


def moving_variables(model: keras.Model, x: hints.Data) -> list[keras.Variable]:
  """The variables, beside the weights, that training computes.

  Args:
    model: Built `keras.Model`.
    x: A batch of inputs.

  Returns:
    variables: Those that a pass in training mode changes, and one for
      prediction does not, in the order of `model.non_trainable_weights`.
  """
  candidates = model.non_trainable_weights
  if not candidates:
    return []
  training, predicting = (
      network.changed_by_call(
          model, x, candidates, network.call_arguments(model, mode))
      for mode in (True, False))
  return [v for v in candidates if id(v) in training - predicting]


def estimate(
    model: keras.Model,
    inputs: Iterable[Any],
    variables: Sequence[keras.Variable],
) -> None:
  """Estimates the statistics of BatchNormalization at the model's weights.

  The model runs as for prediction, without dropout, but for these layers.

  Args:
    model: Built `keras.Model`. The layers' moving mean and variance are
      assigned.
    inputs: Batches of inputs.
    variables: Those of `moving_variables`; layers with others are left as they
      are.
  """
  moving = {id(v) for v in variables}
  layers = [
      layer for layer in compat.all_layers(model)
      if isinstance(layer, keras.layers.BatchNormalization)
      and id(layer.moving_mean) in moving
      and not getattr(layer, 'renorm', False) and layer.momentum < 1.]
  if not layers:
    return

  def moments(x):
    with _by_the_batch(layers) as calls, keras.StatelessScope(
        state_mapping=[
            (v, tf.zeros_like(v)) for layer in layers
            for v in (layer.moving_mean, layer.moving_variance)]) as scope:
      model(x, **network.call_arguments(model, training=False))
    # From zero, momentum m leaves (1 - m^k) times the average of k calls.
    return [
        [scope.get_current_value(v) / (1. - layer.momentum**calls[id(layer)])
         for v in (layer.moving_mean, layer.moving_variance)]
        for layer in layers]

  program: Any = moments if model.run_eagerly else tf.function(
      moments, autograph=False, reduce_retracing=True)
  number = 0
  sums: list[Any] = []
  for x in inputs:
    if number == 0 and not model.run_eagerly:  # Once, whatever the batch size.
      program.get_concrete_function(
          tf.nest.map_structure(network.of_any_length, x))
    found = [
        [np.asarray(mean, np.float64), np.asarray(variance, np.float64)]
        for mean, variance in program(x)]
    terms = [[mean, variance + mean**2] for mean, variance in found]
    sums = terms if not number else [
        [a + b for a, b in zip(*pair)] for pair in zip(sums, terms)]
    number += 1
  for layer, (mean, square) in zip(layers, sums):
    mean = mean / number
    layer.moving_mean.assign(mean)
    layer.moving_variance.assign(np.maximum(square / number - mean**2, 0.))


@contextlib.contextmanager
def _by_the_batch(layers) -> Iterator[dict[int, int]]:
  """Lets layers normalise by the batch; counts their calls by their ids."""
  calls = {id(layer): 0 for layer in layers}

  def call(layer, own, *args, **kwargs):
    calls[id(layer)] += 1
    return own(*args, **{**kwargs, 'training': True})

  with network.calls_through(call, layers):
    yield calls
