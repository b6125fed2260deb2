"""The rows of a `tf.data.Dataset`, where they are the same in each pass.

A pipeline reads files, and changes rows on their way (`map`). So its rows are
in no array. Where each pass gives the same rows, they are known after one. Two
passes tell: the rows of both have to have the same digests, in any order. Rows
that are augmented at random, or left out at random, have others.

What shuffles, repeats and batches the rows at last is left out, so that all
rows come, each once. They are sorted by their digests. So they have one order
in all processes, in which a chain may go on.

What a pipeline reads from a variable, or from outside, is fixed at what it was
in these passes.
"""

import hashlib

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import compat

__all__ = ['read']

_AT_ONCE = 1024


def read(dataset: tf.data.Dataset, most_rows: int) -> list[tf.Tensor] | None:
  """The rows of a dataset of batches.

  Args:
    dataset: `tf.data.Dataset`, whose leaves are dense tensors.
    most_rows: Python `int`, the number of rows after which to give up.

  Returns:
    arrays: One tensor of all rows for each leaf; None where two passes give
      other rows, or there are more, or the number of batches is not known, or
      another pass could disturb the one that goes on.

  #### Examples

  >>> import tensorflow as tf
  >>> from tfp_sgmcmc.keras.fitting import all_rows
  >>> data = tf.data.Dataset.range(3).map(lambda k: 2 * k).shuffle(3).batch(2)
  >>> [rows.numpy().tolist() for rows in all_rows.read(data, 5)]
  [[4, 0, 2]]
  """
  rows, num_batchings = compat.before_batches(dataset)
  if num_batchings == 1:
    rows = rows.batch(_AT_ONCE)
  num_batches = int(rows.cardinality())
  if (num_batches <= 0 or num_batchings > 1
      or compat.may_not_be_read_again(dataset)):
    return None
  found, digests = [], ([], [])
  # One iterator: two of them would draw the same random numbers, where these
  # have a seed, and one that goes on over several epochs other ones.
  for k, batch in enumerate(rows.repeat(2).as_numpy_iterator()):
    leaves = keras.tree.flatten(batch)
    is_again = k >= num_batches
    digests[is_again].extend(_digests(leaves))
    if not is_again:
      found.append(leaves)
      if len(digests[0]) > most_rows:
        return None
  once, again = digests
  if sorted(once) != sorted(again):
    return None
  order = np.argsort(once, kind='stable')
  return [tf.constant(np.concatenate(leaf)[order]) for leaf in zip(*found)]


def _digests(batch):
  """A digest of each row."""
  return [hashlib.blake2b(
      b''.join(_bytes(leaf) for leaf in row), digest_size=16).digest()
          for row in zip(*batch)]


def _bytes(leaf):
  """Of a number, an array of numbers, a text, or an array of texts."""
  leaf = np.asarray(leaf)
  if leaf.dtype.kind not in 'OS':
    return leaf.tobytes()
  # With their lengths: 'ab', 'c' is not 'a', 'bc'.
  return repr(leaf.tolist()).encode()
