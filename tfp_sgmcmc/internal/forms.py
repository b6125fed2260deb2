"""Forms of nested tensors: their structure, and the specs of the leaves."""

from typing import Any

import tensorflow as tf

from tfp_sgmcmc.internal import hints

__all__ = ['are_same', 'difference', 'specs']


def specs(structure: hints.Nested) -> Any:
  """The `TensorSpec`s of nested tensors; None where a leaf is None."""
  return tf.nest.map_structure(
      lambda leaf: None if leaf is None else tf.TensorSpec(
          leaf.shape, leaf.dtype), structure)


def are_same(one: hints.Nested, other: hints.Nested) -> bool:
  """Whether nested specs have one structure and equal leaves."""
  try:
    tf.nest.assert_same_structure(one, other)
  except (TypeError, ValueError):
    return False
  return tf.nest.flatten(one) == tf.nest.flatten(other)


def difference(
    wanted: hints.Nested,
    given: hints.Nested,
    name: str,
) -> str | None:
  """The first difference of nested specs, as a sentence; None without one.

  Args:
    wanted: Nested specs.
    given: Likewise.
    name: What the given ones are called.

  Returns:
    difference: `str`, without a full stop.

  #### Examples

  >>> scalar, vector = tf.TensorSpec([]), tf.TensorSpec([3])
  >>> difference({'a': [scalar, scalar]}, {'a': [scalar, vector]}, 'results')
  "results['a'][1] is float32[3], and float32[] is needed"
  """
  wanted_parts, parts = _parts(wanted), _parts(given)
  if wanted_parts is not None and parts is not None and (
      wanted_parts.keys() == parts.keys()):
    differences = (
        difference(wanted_parts[key], parts[key], name + key) for key in parts)
    return next(filter(None, differences), None)
  if wanted_parts is None and parts is None and (
      _named(wanted) == _named(given)):
    return None
  return f'{name} is {_named(given)}, and {_named(wanted)} is needed'


def _parts(structure):
  """What is in a structure, by how Python asks for it; None of a leaf."""
  fields = getattr(structure, '_fields', None)
  if fields is not None:
    return {f'.{field}': getattr(structure, field) for field in fields}
  if isinstance(structure, (list, tuple)):
    return {f'[{k}]': part for k, part in enumerate(structure)}
  if isinstance(structure, dict):
    return {f'[{key!r}]': part for key, part in structure.items()}
  return None


def _named(spec):
  """A leaf's dtype and shape; of a structure its class."""
  if hasattr(spec, 'dtype'):
    return f'{spec.dtype.name}{spec.shape.as_list()}'
  return f'of type {type(spec).__name__}'
