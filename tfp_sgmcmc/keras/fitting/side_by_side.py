"""The chains of one network in one `fit`, each with a part of each batch.

A single chain has each batch whole, and its state is in the model. Of several,
chain j = 0, ..., k - 1 is the chain that a `fit` of its own would make, with
the seed `random.fold_in(seed, j)`, a start of its own, and as its batch of step
t = 1, 2, ... those rows of `fit`'s batch of n rows whose numbers are

  i k + (j + s_t) mod k   (mod n),   i = 0, ..., ceil(n / k) - 1,

with s_t one of 0, ..., k - 1 at random: also where the data come in the same
order in each epoch every chain meets all of them. So a step takes as many
gradients of examples as one of a single chain on the whole batch, and no row is
in the batches of two chains (where k does not divide n, up to k - 1 are). Where
a step has rows beside its batch (`more_rows`), each chain has as many in all as
one chain would have, and in the optimizer's epochs the batch whole.

If all chains had the same batch, the noise of their gradients would be the same
too: as far as it makes their spread, they would move together, a mean over
chains would have an error larger than it seems, and R-hat would take them for
better mixed than they are. With rows of their own the noises of two chains are
never alike: where batches are drawn independently they are independent, and
where each epoch goes through all N rows they are opposed, with the correlation
-n / (N k - n) in one step, near zero, and -1 / (k - 1) over an epoch, in which
the chains share out all rows. That makes a mean over chains better than it
seems, and R-hat too large rather than too small.

Where it can be, and pays, the chains step together, in one vectorised program
(`together`). Else they take turns in the model: before its part of a step the
weights of a chain, and all else that a step changes, are copied into the
variables that the step works on, and back after it. So the step is traced once
for all chains, by the code of one chain, and whatever works for one works for
several. Chain 0 is the last in each step: between steps it is the one in the
model. The chains are the same either way, up to rounding, and kept in the same
places, so that a chain goes on either way.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
import warnings

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.fitting import calls
from tfp_sgmcmc.keras.fitting import kernel_maker
from tfp_sgmcmc.keras.fitting import more_rows
from tfp_sgmcmc.keras.fitting import starts
from tfp_sgmcmc.keras.fitting import turns
from tfp_sgmcmc.keras.model import compiled_step
from tfp_sgmcmc.keras.model import network
from tfp_sgmcmc.keras.model import raw_inputs
from tfp_sgmcmc.keras.model import replicas
from tfp_sgmcmc.keras.model import vectorisation

__all__ = ['SideBySide', 'check', 'check_replicas']

# Folded into the seed in place of the number of a step or of a chain.
_MORE_ROWS = 2**31 - 1
_NEW_STARTS = 2**31 - 2


class SideBySide:
  """The chains of one `fit`: their starts, their rows, their training."""

  def __init__(
      self,
      model: keras.Model,
      chains: starts.Chains,
      seed: tf.Tensor,
  ):
    """Makes chains that have no weights yet.

    Args:
      model: Compiled `keras.Model`.
      chains: `Chains`, how many there are and where they start.
      seed: Stateless seed, `int32[2]`, of all chains together.
    """
    self._model = model
    self._train: compiled_step.CompiledStep | None = None
    self.num_chains = chains.num_chains
    self.turns = turns.Turns(self.num_chains)
    # The rows that a step has beside its batch, or in its place.
    self.more_rows: more_rows.MoreRows | None = None
    # What is traced reads the seeds of the chains that there are then.
    self._seed_read, self._turns_seed = (
        replicas.variable(model.distribute_strategy, seed, 'seed')
        for _ in range(2))
    self._begin(chains, seed)

  def _begin(self, chains, seed):
    """Sets what is not the same for other chains."""
    self._seed = seed
    self._initial_weights = chains.initial_weights
    self._variables = None
    self._optimizer = []

  def restart(self, chains: starts.Chains, seed: tf.Tensor) -> None:
    """Takes other chains, as many, for which what is traced still holds.

    Args:
      chains: `Chains`.
      seed: Stateless seed, `int32[2]`, of all chains together.
    """
    self.turns.put_back({})
    self._seed_read.assign(replicas.kept(seed))
    self._begin(chains, seed)

  def aside(self) -> Any:
    """What `put_back` takes, to go on with these chains after others."""
    return (self._seed, self._initial_weights, self._variables,
            self._optimizer, self.turns.aside())

  def put_back(self, aside: Any) -> None:
    """Goes on with the chains that were put aside."""
    (self._seed, self._initial_weights, self._variables, self._optimizer,
     slots) = aside
    self.turns.put_back(slots)

  @property
  def state_variables(self) -> list[tf.Variable]:
    """What is the chains' own, beside the model."""
    return [self._seed_read, self._turns_seed, *self.turns.made]

  @property
  def has_more_rows(self) -> bool:
    """Whether a step has rows beside those of its batch."""
    return self.more_rows is not None and self.more_rows.number > 0

  @property
  def draws_all_rows(self) -> bool:
    """Whether a step draws all its rows, and takes none of its batch."""
    return self.more_rows is not None and self.more_rows.num_in_place > 0

  def rows_of(self, num_rows: int) -> int:
    """How many rows of a batch are a chain's: n / k, rounded up."""
    return -(-num_rows // self.num_chains)

  def advice(self, num_rows: int) -> str | None:
    """How chains that share out a batch have more rows; None where none do.

    Args:
      num_rows: Python `int`, n.

    Returns:
      said: A sentence, or None.
    """
    k = self.num_chains
    if self.has_more_rows or k == 1:
      return None
    return (
        f'Each of the {k} chains has {self.rows_of(num_rows)} of the '
        f'{num_rows} rows of a batch: batch_size={k * num_rows} gives each '
        f'{num_rows}, and gradients with less noise.')

  def said_of_rows(self, num_rows: int, num_examples: int) -> str:
    """Which rows a step has, where there are more than those of the batch.

    Args:
      num_rows: Python `int`, n.
      num_examples: Python `int`, N.

    Returns:
      said: A sentence.
    """
    k, more = self.num_chains, self.more_rows
    assert more is not None
    drawn = f'drawn from all {num_examples}'
    if self.draws_all_rows:
      chain = 'the chain' if k == 1 else f'each of the {k} chains'
      return f'A step of {chain} has {more.num_drawn} rows, {drawn}.'
    if k == 1:
      return f'Each step has {more.number} rows beside its batch, {drawn}.'
    return (
        f'A step of each of the {k} chains has {self.rows_of(num_rows)} of the '
        f'{num_rows} rows of a batch, and {more.number} others, {drawn}.')

  def stacked(self, variables: Sequence[Any]) -> list[np.ndarray]:
    """The values of all chains, `[k, ...]` for each of the variables."""
    return self.turns.stacked(variables)

  @property
  def may_step_together(self) -> bool:
    """Whether to try to vectorise a step: see `together`."""
    model = self._model
    if self.num_chains == 1:
      return False
    return vectorisation.may_be(model) and not calls.has_statistics(
        model, self._variables or ())

  def assign(
      self, variables: Sequence[Any], values: Sequence[np.ndarray]) -> None:
    """Gives variables the values of all chains, as `stacked` gave them."""
    self.turns.assign(variables, values)

  def check_search(self) -> None:
    """Raises where a search cannot score draws with moving statistics."""
    if self.num_chains == 1:
      return
    raise ValueError(
        "temperature='validation' predicts with one set of moving statistics "
        f'(BatchNormalization), and each of {self.num_chains} chains has its '
        'own: take sgmcmc.keras.fit_chains, which gives each chain a fit '
        'of its own, or give the temperature as a number.')

  def begin(self, element_spec: hints.Nested, is_resumed: bool = False) -> None:
    """Puts each chain where it starts, once.

    Args:
      element_spec: That of the dataset's iterator.
      is_resumed: Python `bool`, whether a checkpoint knows where the chains
        are, so that they need no starts.

    Raises:
      ValueError: If there are no weights to start from.
      TypeError: If rows of the data cannot be picked.
    """
    if self.num_chains == 1 or self._variables is not None:
      return
    if any(isinstance(spec, tf.SparseTensorSpec)
           for spec in keras.tree.flatten(element_spec)):
      raise TypeError(
          'The data are sparse tensors, whose rows cannot be dealt out to '
          'several chains: make them dense (tf.sparse.to_dense), or take '
          'sgmcmc.keras.fit_chains, which gives each chain a fit of its '
          'own.')
    inputs, changing = calls.look(self._model, element_spec)
    variables = [*self._model.trainable_variables, *changing]
    if is_resumed:
      self.turns.add(variables)
    else:
      self._warn_of_training()
      values = self._starts(variables, inputs)
      self.turns.add(variables, values)
      network.assign(variables, [value[0] for value in values])
    self._variables = variables

  def _warn_of_training(self):
    number = network.num_trained_steps(self._model.optimizer)
    if self._initial_weights is None and number:
      warnings.warn(
          f'The model has been trained before, by {number} steps of its '
          'optimizer: chain 0 goes on from its weights, and the other chains '
          'start from fresh ones. Train them together (start_epoch, in this '
          'fit), or pass num_chains=Chains(k, initial_weights=...).',
          stacklevel=2)

  def _starts(self, variables, inputs):
    """The first values of the chains, `[k, ...]` for each variable."""
    model, k = self._model, self.num_chains
    found = {id(v): np.stack([np.asarray(v)] * k) for v in variables}
    weights = {id(w) for w in model.weights}
    for variable in variables:
      if id(variable) not in weights:  # A random generator's state.
        found[id(variable)] = _apart(found[id(variable)])
    if self._initial_weights is None:
      chosen = model.trainable_variables
      arrays = [network.values(chosen), *starts.fresh(
          model, inputs, self._seed, k)]
    else:
      chosen = model.weights
      arrays = starts.matching(model, self._initial_weights, variables)
    found.update({
        id(v): np.stack(values) for v, values in zip(chosen, zip(*arrays))
        if id(v) in found})
    starts.warn_of_twins(arrays)
    return [found[id(v)] for v in variables]

  def start_anew(
      self,
      raw: raw_inputs.RawInputs,
      losses: Callable[[Sequence[np.ndarray]], tuple[float, float]],
      inputs: hints.Nested,
  ) -> str | None:
    """Gives chains that training has left far off new initial weights.

    With large inputs an optimizer often ends where no sampler comes back from.
    The new weights are initial ones for standardised inputs. A chain takes them
    where its loss is by far larger; or where it is larger, the optimizer has
    trained it, and so is the loss with the prior's share. Starts that were
    given are kept.

    Args:
      raw: `RawInputs`.
      losses: Callable of weights; returns their mean loss, and that with the
        prior's share.
      inputs: The specs of a batch of inputs.

    Returns:
      said: A sentence; None where no chain has new weights.
    """
    if self._initial_weights is not None:
      return None
    model, variables = self._model, self._model.trainable_variables
    is_trained = network.num_trained_steps(model.optimizer) > 0
    try:
      # Of initial weights some are far off too: the best half is taken.
      found = [
          network.values(raw.weights([tf.convert_to_tensor(w) for w in values]))
          for values in starts.fresh(
              model, inputs, random.fold_in(self._seed, _NEW_STARTS),
              2 * self.num_chains + 1)]
    except ValueError:  # The model cannot be made once more.
      return None
    before = np.zeros([self.num_chains, 2])
    for chain in self.one_by_one():
      before[chain] = losses(network.values(variables))
    of_found = np.array([losses(values) for values in found])
    best = np.argsort(of_found[:, 0])[:self.num_chains]  # NaN comes last.
    new = [found[k] for k in best]
    lost = [chain for chain, (ours, theirs) in enumerate(
        zip(before, of_found[best])) if _is_lost(ours, theirs, is_trained)]
    if not lost:
      return None
    starts.warn_of_twins([new[chain] for chain in lost])
    weights = self.stacked(variables)
    for values, *of_chains in zip(weights, *new):
      for chain in lost:
        values[chain] = of_chains[chain]
    self.assign(variables, weights)
    which = 'the chain starts' if self.num_chains == 1 else (
        f'chains {", ".join(map(str, lost))} start' if len(lost) > 1 else
        f'chain {lost[0]} starts')
    return (
        'The weights are far off, with a mean loss of '
        f'{before[lost, 0].max():.3g}, for inputs that are not standardised: '
        f'{which} from new initial weights, for standardised inputs.')

  def mend_starts(
      self,
      mean_loss: Callable[[Iterator[Any]], float],
      data: hints.Data,
  ) -> str | None:
    """Gives chains that training has left far off the start of the best.

    Where there are more rows than the batch's, which are all, and the starts
    were not given.

    Args:
      mean_loss: Callable of an iterator over batches; returns the loss of the
        weights that are in the model.
      data: A batch.

    Returns:
      said: A sentence; None where no chain was far off.
    """
    if (self.num_chains == 1 or not self.has_more_rows
        or self._initial_weights is not None):
      return None
    assert self.more_rows is not None
    variables = self._model.trainable_variables
    losses = np.zeros([self.num_chains])
    for chain in self.one_by_one():
      losses[chain] = mean_loss(self.more_rows.batches(data))
    lost = np.flatnonzero(starts.are_lost(losses))
    if not len(lost):
      return None
    best = int(np.nanargmin(losses))
    weights = self.stacked(variables)
    for values in weights:
      values[lost] = values[best]
    self.assign(variables, weights)
    return (
        f'Training has left chain {", ".join(map(str, lost))} far off, with a '
        f'mean loss of {losses[lost].max():.3g} where chain {best} has '
        f'{losses[best]:.3g}: the weights of chain {best} are the start there '
        'too.')

  def deal(
      self,
      data: hints.Data,
      step: tf.Tensor,
  ) -> Callable[[tf.Tensor], Any]:
    """Deals out the rows of a batch.

    Args:
      data: The batch, nested tensors.
      step: Integer scalar, the number of the step.

    Returns:
      rows: Callable of a chain's number; returns its batch. Of a column of
        several, `[m, 1]`: theirs, stacked.
    """
    k = self.num_chains
    if k == 1:
      return lambda chain: data
    num_rows = network.num_rows(data)
    word = random.bits(
        [], random.fold_in(
            random.fold_in(tf.cast(self._seed_read, tf.int32), k), step))
    shift = tf.cast(tf.cast(word, tf.int64) % k, tf.int32)

    def rows(chain):
      index = (tf.range(-(-num_rows // k)) * k + (chain + shift) % k) % num_rows
      return network.map_leaves(lambda leaf: tf.gather(leaf, index), data)

    return rows

  def deal_more(
      self, data: hints.Data, step: tf.Tensor) -> Callable[[tf.Tensor], Any]:
    """As `deal`, with the rows that a step has beside its batch."""
    rows = self.deal(data, step)
    if self.more_rows is None:
      return rows
    seed = tf.cast(self._seed_read, tf.int32)
    return self.more_rows.added(rows, self.num_chains, random.fold_in(
        random.fold_in(seed, _MORE_ROWS), step))

  def train(
      self, iterator: Iterator[Any], element_spec: hints.Nested,
  ) -> dict[str, Any]:
    """An execution of the compiled optimizer's steps, one for each chain.

    Args:
      iterator: The dataset's iterator that `fit` passes; or one in Python over
        its batches.
      element_spec: The spec of its batches.

    Returns:
      logs: The model's metrics: means over chains.
    """
    model = self._model
    if self.num_chains == 1:
      return model.train_function(iterator)
    self.begin(element_spec)
    train = self._train
    is_new = train is None or train.is_stale()
    if is_new or not self._optimizer:
      self._drop_optimizer()
      if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
      shared = network.learning_rate(model.optimizer)
      self._optimizer = [
          v for v in model.optimizer.variables if v is not shared]
      self.turns.add(self._optimizer)
    if train is None or is_new:
      own = model.train_step
      train = self._train = compiled_step.CompiledStep(
          model, lambda data: self._optimizer_step(own, data))
      if model.steps_per_execution == 1:
        train.trace(element_spec)
    return train.on_iterator(iterator)

  def _optimizer_step(self, train_step, data):
    if self.has_more_rows:  # Each as it would be trained alone.
      return self.turns.each(train_step, lambda chain: data)[0]
    rows = self.deal(
        data, tf.convert_to_tensor(self._model.optimizer.iterations) + 1)
    return self.turns.each(train_step, rows)[0]

  def _drop_optimizer(self):
    self.turns.drop(self._optimizer)
    self._optimizer = []

  def begin_sampling(self) -> tf.Variable:
    """Ends the optimizer's steps.

    Returns:
      seed: The variable with the seed of the chain whose turn it is.
    """
    self._drop_optimizer()
    if self.num_chains == 1:
      return self._seed_read
    seeds = np.stack([
        random.fold_in(self._seed, j) for j in range(self.num_chains)])
    self._turns_seed.assign(seeds[0])
    self.turns.add([self._turns_seed], [seeds], is_own=True)
    return self._turns_seed

  def one_by_one(self) -> Iterator[int]:
    """The chains' numbers, each with its state in the model; 0 is the last."""
    return self.turns.one_by_one()


def _is_lost(ours, theirs, is_trained):
  """Whether weights are far off others, by losses without and with a prior."""
  by_loss, with_prior = (
      starts.are_lost(np.array(pair))[0] for pair in zip(ours, theirs))
  return by_loss or (is_trained and with_prior and ours[0] > theirs[0])


def check(make_kernel: kernel_maker.KernelMaker) -> None:
  """Raises where several chains cannot go side by side.

  Args:
    make_kernel: `KernelMaker`.

  Raises:
    ValueError: If they cannot.
  """
  if make_kernel.is_continuous:
    raise ValueError(
        f'num_chains is above 1, and {make_kernel.name} moves in continuous '
        'time: the draws of each chain fall into other steps. Take '
        'sgmcmc.keras.fit_chains, which gives each chain a fit of its own.')


def check_replicas(num_chains: int) -> None:
  """Raises where several chains were to go on several replicas.

  Args:
    num_chains: Python `int`.

  Raises:
    ValueError: If there are several.
  """
  if num_chains > 1:
    raise ValueError(
        f'num_chains is {num_chains}, and the model was built under a strategy '
        'of several replicas, which share out the batch of one chain: build it '
        'outside the strategy, or take sgmcmc.keras.fit_chains.')


def _apart(states):
  """States of a random generator, `[k, ...]`, another one for each chain."""
  numbers = np.arange(len(states), dtype=states.dtype)
  return states + numbers.reshape([-1] + [1] * (states.ndim - 1))
