"""Compiled functions that are kept with the object that they belong to.

TensorFlow traces and compiles a `tf.function` once, and a new one at each call
costs seconds and, under XLA, megabytes that the process never gives back. What
is kept here lives as long as its object, and is no part of it: neither copied,
nor pickled, nor compared.
"""

from collections.abc import Callable
from typing import Any
import weakref

import tensorflow as tf

from tfp_sgmcmc.internal import compat

__all__ = ['function', 'of']

# Attributes with such a name are no part of a fingerprint.
_NAME = '_self_kept'


class _Kept(dict):
  """What is kept with one object."""

  def __init__(self, owner=None):
    super().__init__()
    self.owner = (lambda: None) if owner is None else weakref.ref(owner)

  def __reduce__(self):
    return (_Kept, ())  # Whoever has the copy is another object.


def of(owner: object) -> dict[Any, Any]:
  """The dictionary of what is kept with an object.

  Args:
    owner: Any object; what is kept with one that has no attributes is lost.

  Returns:
    kept: Dictionary, to be changed in place.
  """
  attributes = getattr(owner, '__dict__', None)
  if attributes is None:
    return {}
  kept = attributes.get(_NAME)
  if kept is None or kept.owner() is not owner:  # Of an object copied from.
    kept = _Kept(owner)
    attributes[_NAME] = kept
  return kept


def function(
    owner: object, key: object, fn: Callable[..., Any]) -> Callable[..., Any]:
  """`fn`, traced once for each form of its arguments, where code runs eagerly.

  Args:
    owner: The object that it is kept with.
    key: By what it is found again. With the same object and key, `fn` has to
      do the same: the first one is taken.
    fn: Callable of nested tensors.

  Returns:
    function: Callable as `fn`; in a graph `fn` itself, and where replicas run
      eagerly, each of which may see other data, one that is not kept.
  """
  if not tf.executing_eagerly() or tf.config.functions_run_eagerly():
    return fn
  replica = tf.distribute.get_replica_context()
  if replica is None or replica.num_replicas_in_sync > 1:
    return compat.in_graph(fn)
  kept = of(owner)
  if key not in kept:
    kept[key] = compat.in_graph(fn)
  return kept[key]
