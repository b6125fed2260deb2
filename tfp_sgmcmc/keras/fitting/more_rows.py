"""Rows that a step of `fit` has beside those of its batch.

The noise of minibatches is what slows a chain down. With b rows of N a
coordinate along which the likelihood has the curvature F gets gradients with a
noise of variance F N / b, which heats it above T unless a step moves it by no
more than about 2 b / (N F) of its gradient. So it takes half an epoch to forget
where it was, and a coordinate that is a hundred times as flat takes fifty. But
a step of a small network on a table costs mostly TensorFlow's and Keras' own
time, which is nearly the same for 32 rows and for 1,000.

So the step may have more rows than the batch. They are drawn anew for each step
and each chain from all N rows, distinct among themselves, and their gradients
count like those of the batch. "auto" chooses their number m, for batches of b
rows and a network that takes w products with its weights for a row
(`products`),

  m = min(63 b, N / 2, 2^22 / w - b).

There are none in five cases. Where b is above N / 4, noise is no concern. Where
w is above 2^22 / (4 b), rows cost more. A model may take batches of one size
alone. Data of more than 2^28 numbers might not fit beside a network on a GPU.
And the rows may be others in each pass: a pipeline that is no slices of arrays
is read twice to see that, where steps would draw rows (`all_rows`; up to 2^26
numbers).

By default a step that has more rows takes none of the batch: as many are drawn
in place of the batch's own. So one program makes the steps of several batches
(`chain`). Keras takes a millisecond or two for each batch.

Where a chain makes several steps for each batch (`steps_per_batch`), rows are
drawn in place of the batch's own also where there are no others. There "auto"
draws

  max(b, min(8 b, N / 2, 2^24 / w))

in their place. Such a fit is short, so that larger networks can have more rows
too: for them more rows are worth more than more steps of the same time.

Of several chains each has a part of the batch, and so many rows more that it
has as many as one chain would have: also where b is above N / 4.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import functools
from typing import Any
from typing import NamedTuple

import keras
import tensorflow as tf

from tfp_sgmcmc import collectives
from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.keras.fitting import all_rows
from tfp_sgmcmc.keras.fitting import calls
from tfp_sgmcmc.keras.model import network
from tfp_sgmcmc.keras.model import products as products_lib

__all__ = [
    'FitData', 'MoreRows', 'Number', 'number_in_place', 'number_of', 'of_auto',
    'of_fit']

_TIMES, _PART, _LEAST_BATCHES = 63, 2, 4
_MOST_PRODUCTS, _MOST_NUMBERS = 2**22, 2**28
_MOST_NUMBERS_READ = 2**26
_TIMES_IN_PLACE, _MOST_PRODUCTS_IN_PLACE = 8, 2**24
_NUMBERS_AT_ONCE = 2**22
# Products of a batch up to which a model is traced. Where a step takes more, a
# fit of more than some hundred batches has neither rows beside a batch nor
# several steps for it (`steps_per_batch`).
_MOST_TRACED = 2**26


class Number(NamedTuple):
  """How many rows a step has beside its batch, and what each of them costs.

  Attributes:
    rows: Python `int`, m.
    products_a_row: Python `int`, how many products a row takes, or hardly
      exceeds; None where rows cannot be drawn, or m was given.
  """
  rows: int
  products_a_row: int | None = None


class FitData:
  """What is known of the data of a `fit`, at its first batch.

  Attributes:
    arrays: The data, one tensor of N rows for each leaf of a batch; None where
      they are no arrays, or have not been read.
    num_examples: Python `int`, N.
    batch_size: Python `int`, b.
  """

  def __init__(
      self,
      model: keras.Model,
      dataset: tf.data.Dataset | None,
      num_examples: int,
      batch_size: int,
  ):
    """Takes the arrays of which a dataset was made.

    Args:
      model: Built `keras.Model`.
      dataset: That of the fit; None where it is not known.
      num_examples: Python `int`, N.
      batch_size: Python `int`, b.
    """
    self._model, self._dataset = model, dataset
    self.num_examples, self.batch_size = num_examples, batch_size
    self.arrays = None if dataset is None else compat.arrays_of(dataset)

  @functools.cached_property
  def specs(self) -> list[tf.TensorSpec] | None:
    """Those of all rows, one for each leaf; None where they are not known."""
    leaves = [] if self._dataset is None else keras.tree.flatten(
        self._dataset.element_spec)
    if not leaves or not all(
        isinstance(leaf, tf.TensorSpec) and leaf.shape.rank
        and leaf.shape[1:].is_fully_defined() for leaf in leaves):
      return None
    return [tf.TensorSpec([self.num_examples, *leaf.shape[1:]], leaf.dtype)
            for leaf in leaves]

  @property
  def may_be_read(self) -> bool:
    """Whether `read` may find rows for a step."""
    return (
        self.arrays is None and self.specs is not None
        and _num_numbers(self.specs) <= _MOST_NUMBERS_READ
        and not self._is_of_replicas)

  def read(self) -> None:
    """Takes the rows of a dataset that was made of something else.

    Where they are the same in each pass, and the model takes others than its
    batches.
    """
    if self._takes_other_sizes:
      self.arrays = all_rows.read(
          self._dataset, self.num_examples + self.batch_size - 1)

  @property
  def why_fixed(self) -> str | None:
    """Why a step cannot have other rows than its batch; None where it can."""
    if self._is_of_replicas:
      return 'each of several replicas sees a part of a batch'
    if self.arrays is None:
      return (
          'the data of fit are no arrays, and no small tf.data.Dataset of '
          'known length with the same rows in each pass, in which other rows '
          'could be looked up')
    # A pipeline may leave a partial batch out.
    if not 0 <= len(self.arrays[0]) - self.num_examples < self.batch_size:
      return (
          f'the data have {len(self.arrays[0])} rows where num_examples is '
          f'{self.num_examples}')
    if not self._takes_other_sizes:
      return f'the model takes batches of {self.batch_size} rows alone'
    return None

  @property
  def _is_of_replicas(self):
    return collectives.is_several(self._model.distribute_strategy)

  @functools.cached_property
  def _takes_other_sizes(self):
    inputs, _, _ = keras.utils.unpack_x_y_sample_weight(
        self._dataset.element_spec)
    return calls.takes_other_sizes(self._model, inputs)

  @functools.cached_property
  def products_a_row(self) -> int:
    """How many products a row takes, or hardly exceeds.

    A model is traced for it, unless it is large.
    """
    assert self.specs is not None
    products = None
    if products_lib.at_least(self._model) * self.batch_size <= _MOST_TRACED:
      products = products_lib.a_row(self._model, self.specs)
    if products is None:
      products = products_lib.at_most(self._model, self.specs)
    return products


def of_fit(
    data: FitData,
    before: 'MoreRows | None',
    num_more_rows: int | str,
    num_chains: int,
) -> 'MoreRows | None':
  """The rows that steps of a `fit` have beside those of their batches.

  Args:
    data: `FitData` of the fit.
    before: Those of the chain's fit before; None where there is none.
    num_more_rows: As `PosteriorSampling` takes it.
    num_chains: Python `int`, k.

  Returns:
    more_rows: `before`, with the data of this fit, where these have the same
      shapes; or new ones; or None where none can be drawn.

  Raises:
    ValueError: If a number was asked for and cannot be had.
  """
  number = number_of(num_more_rows, data, num_chains)
  if number == Number(0):
    return None
  assert data.arrays is not None
  if before is not None and before.is_for(data.arrays, number):
    before.load(data.arrays)
    return before
  return MoreRows(data.arrays, number)


def number_of(
    num_more_rows: int | str, data: FitData, num_chains: int = 1) -> Number:
  """How many rows a step has beside its batch.

  Args:
    num_more_rows: The number, or "auto".
    data: `FitData`.
    num_chains: Python `int`, k.

  Returns:
    number: `Number`.

  Raises:
    ValueError: If a number was asked for and cannot be had.
  """
  if data.why_fixed is not None:
    if num_more_rows != checks.AUTO:
      raise ValueError(
          f'num_more_rows is {num_more_rows}, and {data.why_fixed}. Leave it '
          'out, or make the batches larger.')
    return Number(0)
  if isinstance(num_more_rows, int):
    if num_more_rows > data.num_examples:
      raise ValueError(
          f'num_more_rows is {num_more_rows}, and there are '
          f'{data.num_examples} examples: it can be no more than that.')
    return Number(num_more_rows)
  return of_auto(data, num_chains)


def of_auto(data: FitData, num_chains: int) -> Number:
  """The number of rows that "auto" is, where rows of the data can be drawn.

  Args:
    data: `FitData` with specs.
    num_chains: Python `int`, k.

  Returns:
    number: `Number`.
  """
  num_examples, batch_size = data.num_examples, data.batch_size
  assert data.specs is not None
  if _num_numbers(data.specs) > _MOST_NUMBERS:
    return Number(0)
  fewest, products = _LEAST_BATCHES * batch_size, data.products_a_row
  if products * fewest > _MOST_PRODUCTS:
    return Number(0, products)
  of_one = min(
      _TIMES * batch_size, num_examples // _PART,
      _MOST_PRODUCTS // products - batch_size)
  if fewest > num_examples:
    of_one = 0
  return Number(of_one + batch_size - -(-batch_size // num_chains), products)


def _num_numbers(specs):
  """How many numbers all rows have."""
  return sum(spec.shape.num_elements() for spec in specs)


def number_in_place(
    num_more_rows: int | str,
    number: Number,
    num_rows: int,
    num_examples: int,
) -> int:
  """How many rows a step has in place of those of its batch.

  As many. Of "auto", where there are none beside it, more; and it leaves a
  quarter of all rows out of a step. With all of them there is no noise, by
  which `SelfTuning` finds the scales of the weights.

  Args:
    num_more_rows: As `number_of` takes it.
    number: `Number` of the rows that a step has beside its batch.
    num_rows: Python `int`, the number of a chain's rows of a batch.
    num_examples: Python `int`, N.

  Returns:
    number: Python `int`, at least 1.
  """
  if num_more_rows != checks.AUTO:
    return max(1, min(num_rows, num_examples - number.rows))
  if number.rows == 0 and number.products_a_row is not None:
    num_rows = max(num_rows, min(
        _TIMES_IN_PLACE * num_rows, num_examples // _PART,
        _MOST_PRODUCTS_IN_PLACE // number.products_a_row))
  return max(1, min(num_rows, 3 * num_examples // 4 - number.rows))


class MoreRows:
  """All rows of the data, and those of them that a step has.

  Attributes:
    number: Python `int`, how many rows a step has of these.
    products_a_row: Python `int`, how many products a row takes; None where the
      number of rows was given.
    num_in_place: Python `int`, how many more it has, in place of those of its
      batch; 0 where it has the batch itself (`draw_in_place`).
  """

  def __init__(self, arrays: Sequence[tf.Tensor], number: Number):
    """Keeps the data.

    Args:
      arrays: One tensor of N rows for each leaf of a batch.
      number: `Number`.
    """
    self.number, self.products_a_row = number
    self.num_in_place = 0
    self._arrays = list(arrays)
    self._dtypes = [array.dtype for array in arrays]
    self._variables: list[tf.Variable] = []
    if self.number:
      self._keep()

  def _keep(self):
    """Makes the variables, which take as much memory as the data."""
    if not self._variables:
      self._variables = [
          tf.Variable(_kept(array), trainable=False, name='all_rows')
          for array in self._arrays]
      self._arrays = self._variables

  def draw_in_place(self, number: int) -> None:
    """Has rows drawn in place of those of the batch.

    Args:
      number: Python `int`, how many; 0 for the batch itself.
    """
    self.num_in_place = number
    self._keep()

  @property
  def num_drawn(self) -> int:
    """How many rows are drawn for a step."""
    return min(self.number + self.num_in_place, self._arrays[0].shape[0])

  def load(self, arrays: Sequence[tf.Tensor]) -> None:
    """Takes other data in the same shapes.

    Args:
      arrays: As those that it was made with.
    """
    if not self._variables:
      self._arrays = list(arrays)
    for variable, array in zip(self._variables, arrays):
      variable.assign(_kept(array))

  def is_for(self, arrays: Sequence[tf.Tensor], number: Number) -> bool:
    """Whether `load` takes them, for as many rows a step."""
    return number.rows == self.number and [
        (array.dtype, array.shape) for array in arrays] == [
            (dtype, kept.shape) for dtype, kept in zip(
                self._dtypes, self._arrays)]

  def batches(self, data: Any) -> Iterator[Any]:
    """All rows, in their order.

    Args:
      data: A batch of the fit, for its structure.

    Yields:
      batches: Of as many rows as there are numbers for, in that structure.
    """
    num_rows, width = self._variables[0].shape[0], sum(
        v.shape.num_elements() // v.shape[0] for v in self._variables)
    size = max(1, _NUMBERS_AT_ONCE // width)
    for begin in range(0, num_rows, size):
      yield self._joined(
          data, lambda v, k=begin: v[k:k + size], lambda _, rows: rows)

  def _joined(self, batch, rows_of, join):
    """A batch, each leaf of it joined with some rows of its variable."""
    rows = iter(
        tf.cast(rows_of(v), dtype)
        for v, dtype in zip(self._variables, self._dtypes))
    return network.map_leaves(lambda leaf: join(leaf, next(rows)), batch)

  def added(
      self,
      rows: Callable[[tf.Tensor], Any],
      num_chains: int,
      seed: tf.Tensor,
  ) -> Callable[[tf.Tensor], Any]:
    """The chains' batches with more rows each, or such rows alone.

    Args:
      rows: Callable of a chain's number; returns its batch. Of a column of
        several, `[m, 1]`: theirs, stacked.
      num_chains: Python `int`, k.
      seed: Stateless seed of the step.

    Returns:
      rows: Such a callable.
    """
    num_examples = self._variables[0].shape[0]
    drawn = random.indices(num_examples, [num_chains, self.num_drawn], seed)

    def joined(chain):
      is_column = tf.convert_to_tensor(chain).shape.rank == 2
      index = tf.gather(drawn, chain[:, 0] if is_column else chain)
      return self._joined(
          rows(chain), lambda v: tf.gather(v, index),
          lambda leaf, more: more if self.num_in_place else tf.concat(
              [leaf, more], int(is_column)))

    return joined


def _kept(array):
  """The values in a dtype that programs of a GPU reach as a variable's."""
  return tf.cast(array, tf.int64) if array.dtype == tf.int32 else array
