"""Batches that are looked at before the steps that take them."""

from collections import deque
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

__all__ = ['Lookahead']

_MOST_BATCHES = 100
_MOST_BYTES = 2**28


class Lookahead:
  """The next batches of an iterator, kept for the steps that take them.

  So no batch is lost or seen twice, also where the data can be gone through
  only once.

  #### Examples

  >>> from tfp_sgmcmc.keras.fitting import lookahead
  >>> numbers = iter([tf.zeros([2]), tf.ones([2]), tf.ones([2])])
  >>> ahead = lookahead.Lookahead()
  >>> len(ahead.fill(numbers)), len(list(ahead.then(numbers))), len(ahead)
  (3, 3, 0)
  """

  def __init__(self):
    """Makes an empty one."""
    self._batches = deque()

  def __len__(self) -> int:
    """The number of batches kept."""
    return len(self._batches)

  def fill(self, iterator: Iterator[Any]) -> list[Any]:
    """Takes batches: to the end of the data, up to 100, up to 256 MiB.

    Args:
      iterator: Iterator over batches.

    Returns:
      batches: List of the batches that are kept now.
    """
    size = 0
    while len(self._batches) < _MOST_BATCHES and size < _MOST_BYTES:
      try:
        batch = next(iterator)
      except (StopIteration, tf.errors.OutOfRangeError):
        break
      self._batches.append(batch)
      size += sum(
          leaf.dtype.size * int(tf.size(leaf))
          for leaf in tf.nest.flatten(batch, expand_composites=True)
          if tf.is_tensor(leaf))
    return list(self._batches)

  def first(self, iterator: Iterator[Any]) -> Any:
    """The next batch, which is kept."""
    if not self._batches:
      self._batches.append(next(iterator))
    return self._batches[0]

  def then(self, iterator: Iterable[Any]) -> Iterator[Any]:
    """Gives the batches that are kept, each once, and then the iterator's."""
    iterator = iter(iterator)
    while True:  # More may be kept in between.
      try:
        yield self._batches.popleft() if self._batches else next(iterator)
      except StopIteration:
        return

  def clear(self) -> None:
    """Drops what is kept, as other data come."""
    self._batches.clear()
