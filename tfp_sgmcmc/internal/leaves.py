"""The leaves of nested structures, by name: how arrays are called on disk."""

from collections.abc import Mapping
import itertools
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.internal import hints


def named(**groups: hints.Nested) -> dict[str, Any]:
  """The leaves of nested structures by name.

  Args:
    **groups: Nested structures; None for a group without leaves.

  Returns:
    leaves: Dictionary from `<group>/<number>`.

  #### Examples

  >>> named(state=[0.5, (1., 2.)], trace=None)
  {'state/0': 0.5, 'state/1': 1.0, 'state/2': 2.0}
  """
  return {
      f'{group}/{k}': leaf
      for group, structure in groups.items() if structure is not None
      for k, leaf in enumerate(tf.nest.flatten(structure))}


def of_group(leaves: Mapping[str, Any], group: str) -> list[Any]:
  """The leaves of one group, in their order: the inverse of `named`.

  Args:
    leaves: Dictionary from `<group>/<number>`, which may hold other names too.
    group: The group's name.

  Returns:
    leaves: List; empty where there is no such group.

  #### Examples

  >>> of_group(named(state=[0.5, (1., 2.)], trace=[3.]), 'state')
  [0.5, 1.0, 2.0]
  """
  names = (f'{group}/{k}' for k in itertools.count())
  return [leaves[name] for name in itertools.takewhile(
      lambda name: name in leaves, names)]
