"""Pipelines of `tf.data` whose end is not waited for."""

from collections.abc import Iterator
import contextlib
from unittest import mock

import tensorflow as tf


@contextlib.contextmanager
def end_at_once() -> Iterator[None]:
  """Without the thread that tunes a pipeline: ending it takes up to a minute.

  tf.data wakes that thread before it says that the pipeline is cancelled; a
  thread quick enough to look in between sleeps on, for as long as its next
  tuning is due (10 ms at first, twice that each time, up to a minute), and the
  iterator's destructor waits for it.
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  iterate = tf.data.Dataset.__iter__
  distribute = tf.distribute.Strategy.experimental_distribute_dataset
  with (
      mock.patch.object(
          tf.data.Dataset, '__iter__',
          lambda dataset: iterate(dataset.with_options(options))),
      mock.patch.object(
          tf.distribute.Strategy, 'experimental_distribute_dataset',
          lambda strategy, dataset, *arguments: distribute(
              strategy, dataset.with_options(options), *arguments))):
    yield
