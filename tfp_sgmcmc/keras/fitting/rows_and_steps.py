"""How many chains a `fit` has, which rows a step has, how many steps a batch.

Each is given, or chosen in this order: the chains (`number_of_chains`), the
rows beside a batch or in its place (`more_rows`), and the steps for each batch
(`steps_per_batch`), which depend on what a step of all chains costs.

A later `fit` has other data: the rows are taken anew. The number of chains
stays. So does that of the steps, but it is 1 where rows cannot be drawn.
"""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.fitting import more_rows
from tfp_sgmcmc.keras.fitting import number_of_chains
from tfp_sgmcmc.keras.fitting import progress as progress_lib
from tfp_sgmcmc.keras.fitting import settings as settings_lib
from tfp_sgmcmc.keras.fitting import side_by_side
from tfp_sgmcmc.keras.fitting import steps_per_batch
from tfp_sgmcmc.keras.fitting import together
from tfp_sgmcmc.keras.model import network

__all__ = ['RowsAndSteps']


class RowsAndSteps:
  """The rows of a step and the steps of a batch.

  Methods that may change what a step is return whether they have: its program
  has to be made anew then.

  Attributes:
    needs_look: Python `bool`, whether no batch of this fit has been looked at.
    needs_rows: Python `bool`, whether `take_rows` is due, before the next step.
    batch_size: Python `int`, the number of rows of the batch that was looked at
      last.
  """

  def __init__(
      self,
      model: keras.Model,
      settings: settings_lib.Settings,
      progress: progress_lib.Progress,
  ):
    """Makes the object, before any data are known.

    Args:
      model: Compiled `keras.Model`.
      settings: `Settings`.
      progress: `Progress` of the chain, which holds the number of steps a
        batch.
    """
    self._model, self._settings, self._progress = model, settings, progress
    self.batch_size = 0
    # What the program of a step was made for.
    self._made_for: tuple[more_rows.MoreRows | None, int] = (None, 0)
    self.begin_fit()

  def begin_fit(self) -> None:
    """Takes note that the next batch is of other data."""
    self.needs_look = True
    self.needs_rows = self._settings.num_more_rows != 0
    self._data: more_rows.FitData | None = None  # From `look` to `take_rows`.

  @property
  def _num_examples(self):
    number = self._settings.examples.number
    assert number is not None  # It is known before the first batch.
    return number

  def look(self, iterator: Iterator[Any], batch_size: int) -> None:
    """Takes the data of a fit.

    Args:
      iterator: That of the fit, over its dataset.
      batch_size: Python `int`, the number of rows of its first batch.
    """
    self.needs_look, self.batch_size = False, batch_size
    self._progress.set_batches_in_epoch(-(-self._num_examples // batch_size))
    if self.needs_rows:
      self._data = more_rows.FitData(
          self._model, compat.dataset_of(iterator), self._num_examples,
          batch_size)
      if self._data.may_be_read and self._would_draw(self._data):
        self._data.read()

  def _would_draw(self, data):
    """Whether steps would have other rows than their batches."""
    settings = self._settings
    if settings.num_more_rows != checks.AUTO:
      return True
    number = more_rows.of_auto(
        data, settings.num_chains or number_of_chains.SEVERAL)
    if number.rows > 0:
      return True
    if settings.num_steps_per_batch is not None:
      return settings.num_steps_per_batch > 1
    return number.products_a_row is not None and steps_per_batch.chosen(
        self._progress.batches_to_come,
        data.batch_size * number.products_a_row, has_more_rows=False) > 1

  def num_chains(self, element_spec: hints.Nested, seed: tf.Tensor) -> int:
    """The number of chains, where it is left to choose; `look` comes before.

    Args:
      element_spec: That of the fit's iterator.
      seed: Stateless seed of the chains.

    Returns:
      number: Python `int`.
    """
    assert self._data is not None
    return number_of_chains.chosen(
        self._model, element_spec, self._data, seed)

  def steps_per_batch(self, chains: side_by_side.SideBySide) -> int:
    """The number of steps for each batch; 1 until it is chosen.

    Where rows cannot be drawn for each step, a chosen number does not count.
    """
    if self._settings.num_steps_per_batch is None and chains.more_rows is None:
      return 1
    return self._progress.steps_per_batch

  def take_rows(
      self, chains: side_by_side.SideBySide, has_steps: bool) -> bool:
    """Gives a step its rows beside the batch; `look` comes before.

    Args:
      chains: `SideBySide`, which gets them.
      has_steps: Python `bool`, whether the number of steps is known; else
        `take_steps` is to come.

    Returns:
      is_new: Python `bool`, as said above.
    """
    assert self._data is not None
    self._made_for = _rows_of(chains)
    chains.more_rows = more_rows.of_fit(
        self._data, chains.more_rows, self._settings.num_more_rows,
        chains.num_chains)
    self.needs_rows, self._data = False, None
    return has_steps and self._draw_in_place(chains)

  def take_steps(
      self, chains: side_by_side.SideBySide, is_resumed: bool) -> bool:
    """Chooses the number of steps for each batch, where it is left to choose.

    Args:
      chains: `SideBySide`, with the rows of a step.
      is_resumed: Python `bool`, whether an earlier process has chosen it.

    Returns:
      is_new: Python `bool`, as said above.
    """
    progress, more = self._progress, chains.more_rows
    num_batches = progress.batches_to_come or 1
    if (self._settings.num_steps_per_batch is None and not is_resumed
        and more is not None and more.products_a_row is not None
        and not self._model.run_eagerly):
      num_rows = more.number + chains.rows_of(self.batch_size)
      progress.steps_per_batch = steps_per_batch.chosen(
          num_batches, chains.num_chains * num_rows * more.products_a_row,
          chains.has_more_rows)
    if not is_resumed:
      progress.draws_rows = (
          self._settings.num_steps_per_batch is None
          and self._settings.num_more_rows == checks.AUTO)
      progress.loops_by_xla = (
          progress.draws_rows or progress.steps_per_batch > 1
      ) and steps_per_batch.is_worth_compiling(
          num_batches * progress.steps_per_batch) and self._is_for_xla(chains)
    return self._draw_in_place(chains)

  def _draw_in_place(self, chains):
    """Has all rows of a step drawn, and none taken of its batch.

    Where there are several steps for a batch; or others beside it, and all was
    left to choose.
    """
    more = chains.more_rows
    if more is not None and (
        self.steps_per_batch(chains) > 1
        or more.number and self._progress.draws_rows):
      more.draw_in_place(more_rows.number_in_place(
          self._settings.num_more_rows,
          more_rows.Number(more.number, more.products_a_row),
          chains.rows_of(self.batch_size), self._num_examples))
    elif more is not None and more.number:
      more.draw_in_place(0)
    else:
      chains.more_rows = None  # The batch is all that a step has.
    return _rows_of(chains) != self._made_for

  def _is_for_xla(self, chains):
    """Whether XLA makes programs of several steps faster.

    That of one chain has few small operations, and gains no more than it takes
    to compile. Whether several step together turns out when a step is traced,
    which is later; a program of turns takes longer to compile, and gains more.
    """
    return (
        chains.may_step_together and not compat.sees_accelerators()
        and bool(compat.jit_compile()) and together.is_worthwhile(
            network.num_weights(self._model.trainable_variables)))

  def taken(
      self, chains: side_by_side.SideBySide, data: hints.Nested,
  ) -> hints.Nested:
    """What a step takes of a batch: one row, where it draws all its rows.

    So its program is one for batches of all sizes.

    Args:
      chains: `SideBySide`, with the rows of a step.
      data: The batch, or its spec.

    Returns:
      data: As the argument.
    """
    if not chains.draws_all_rows:
      return data
    return network.map_leaves(_first_row, data)

  def said(self, chains: side_by_side.SideBySide) -> list[str | None]:
    """Which rows a step has, where these are not those of the batch.

    Args:
      chains: `SideBySide`.

    Returns:
      said: Sentences, and None.
    """
    said = [chains.advice(self.batch_size)]
    if chains.more_rows is not None:
      said.append(chains.said_of_rows(
          self.batch_size, self._num_examples))
    number = self.steps_per_batch(chains)
    if number > 1:
      said.append(f'There are {number} steps for each batch.')
    return said


def _rows_of(chains):
  """All rows that there are for steps, and how many are drawn in place."""
  more = chains.more_rows
  return more, 0 if more is None else more.num_in_place


def _first_row(leaf):
  if isinstance(leaf, tf.TensorSpec):
    return tf.TensorSpec([1, *leaf.shape[1:]], leaf.dtype)
  return leaf[:1]
