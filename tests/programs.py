"""How tests compile programs that run for less time than compiling takes."""

from collections.abc import Iterator
import contextlib
from unittest import mock

import tensorflow as tf

_OF_RANDOM_NUMBERS = (
    'tfp_sgmcmc.random', 'tfp_sgmcmc.internal.random_indices')


@contextlib.contextmanager
def without_xla() -> Iterator[None]:
  """`tf.function` leaves XLA out; random numbers come by XLA everywhere."""
  function = tf.function

  def plain(fn=None, **arguments):
    ours = getattr(fn, 'func', fn)
    if getattr(ours, '__module__', None) in _OF_RANDOM_NUMBERS:
      return function(fn, **arguments)
    return function(fn, **{**arguments, 'jit_compile': None})

  with mock.patch.object(tf, 'function', plain):
    yield
