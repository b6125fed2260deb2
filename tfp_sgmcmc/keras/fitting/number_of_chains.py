"""How many chains a `fit` has, where it is left to choose.

Networks on small tables have posteriors with many modes, which a single chain
does not leave in the length of a `fit`. Its predictions are then too sure of
themselves, long HMC's as much as ours. Four chains from four starts together
are not, and small networks step together in one program, for two to three times
the time of one chain. So "auto" is four chains, and one where

* four cost more than that: a step of each has to be a step of one program
  (`together`);
* a chain would have fewer rows a step than the batch (`more_rows`): where rows
  cannot be added, or cost more than little;
* there are several replicas, or moving statistics, or all runs eagerly;
* their starts would not be four of a kind: the weights have been trained or
  loaded, or the model cannot be made once more with other initial weights;
* the optimizer keeps a moving average of the weights, which is that of one.
"""

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import collectives
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.fitting import calls
from tfp_sgmcmc.keras.fitting import more_rows
from tfp_sgmcmc.keras.fitting import starts
from tfp_sgmcmc.keras.fitting import together
from tfp_sgmcmc.keras.model import network
from tfp_sgmcmc.keras.model import vectorisation

__all__ = ['SEVERAL', 'chosen']

SEVERAL = 4


def chosen(
    model: keras.Model,
    element_spec: hints.Nested,
    data: more_rows.FitData,
    seed: tf.Tensor,
) -> int:
  """The number of chains.

  Args:
    model: Compiled and built `keras.Model`.
    element_spec: That of the fit's iterator.
    data: `FitData`.
    seed: Stateless seed of the chains.

  Returns:
    number: Python `int`, 4 or 1.
  """
  may_be = (
      not collectives.is_several(model.distribute_strategy)
      and not model.run_eagerly
      and not network.has_moving_average(model.optimizer)
      and network.num_trained_steps(model.optimizer) == 0
      and vectorisation.may_be(model)
      and _are_cheap(model)
      # Whether rows can be added to a chain's part of a batch.
      and more_rows.number_of(checks.AUTO, data, SEVERAL).rows > 0)
  if not may_be:
    return 1
  inputs, changing = calls.look(model, element_spec)
  has_statistics = calls.has_statistics(model, changing)
  return SEVERAL if not has_statistics and _have_starts(
      model, inputs, seed) else 1


def _are_cheap(model):
  """Whether four chains take two to three times the time of one."""
  number = network.num_weights(model.trainable_variables)
  return model.jit_compile or number <= together.MOST_WEIGHTS


def _have_starts(model, inputs, seed):
  """Whether the model's weights are initial ones, and others can be had.

  What the initialisers make alike in two copies of the model, such as biases of
  zero, is so in a new model; and it is no longer so in a trained one.
  """
  try:
    copies = starts.fresh(model, inputs, seed, 3)
  except ValueError:
    return False
  alike, have_other_values = [], False
  for now, *others in zip(network.values(model.trainable_variables), *copies):
    if np.array_equal(*others):
      alike.append(np.array_equal(now, others[0]))
    have_other_values |= not np.array_equal(now, others[0])
  return bool(alike) and all(alike) and have_other_values
