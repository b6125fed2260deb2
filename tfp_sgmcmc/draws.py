"""What `sample` returns: draws, in memory or on disk."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import chunks as chunks_lib
from tfp_sgmcmc.internal import leaves as leaves_lib

__all__ = ['Draws']


class Draws:
  """The draws of a run, and where it stands.

  Made by `sample`. Where that was given a directory the draws stay on disk:
  `chunks()` reads them one chunk at a time, `states` and `trace` all at once.

  Attributes:
    final_state: The state after the last draw's step.
    kernel_results: The kernel's results there. The two are what a further call
      of `sample` goes on from, as `current_state` and
      `previous_kernel_results`.

  #### Examples

  >>> kernel = sgmcmc.SGLD(tfd.Normal(0., 1.).log_prob, step_size=0.1)
  >>> draws = sgmcmc.sample(
  ...     kernel, 100, tf.zeros([4]), progress_bar=False, seed=1)
  >>> len(draws), draws.states.shape
  (100, TensorShape([100, 4]))
  >>> more = sgmcmc.sample(
  ...     kernel, 100, draws.final_state, progress_bar=False, seed=1,
  ...     previous_kernel_results=draws.kernel_results)
  """

  def __init__(
      self,
      chunks: chunks_lib.Chunks,
      structure: Any,
      final_state: Any,
      kernel_results: Any,
      num_chain_axes: int,
  ):
    """Holds the parts together.

    Args:
      chunks: The draws, with the names that `named` gives the tensors of
        `structure`.
      structure: Pair (state, trace) of nested `TensorSpec`s of one draw.
      final_state: State to go on from.
      kernel_results: Kernel results to go on from.
      num_chain_axes: Python `int`, how many leading axes of a state are chains.
    """
    self._chunks = chunks
    self._structure = structure
    self._num_chain_axes = num_chain_axes
    self.final_state = final_state
    self.kernel_results = kernel_results

  def __len__(self):
    return len(self._chunks)

  def __repr__(self):
    shapes = tf.nest.map_structure(
        lambda spec: spec.shape.as_list(), self._structure[0])
    return f'<Draws: {len(self):,} states of shape {shapes}>'

  @property
  def num_chain_axes(self) -> int:
    """How many leading axes of a state are chains."""
    return self._num_chain_axes

  @property
  def states(self) -> Any:
    """All draws, in the form of the state, with a leading axis of draws."""
    return self._all()[0]

  @property
  def trace(self) -> Any:
    """What `trace_fn` returned, with a leading axis of draws; None without."""
    return self._all()[1]

  def chunks(self) -> Iterator[tuple[Any, Any]]:
    """Goes through the draws, a chunk at a time.

    Yields:
      states: In the form of the state, with a leading axis of draws.
      trace: In the form of what `trace_fn` returned, likewise; None without.
    """
    for arrays in self._chunks:
      yield self._pack(arrays)

  def _all(self):
    chunks = list(self._chunks)
    if not chunks:
      state, trace = self._structure
      return self._pack({
          name: np.zeros([0, *spec.shape], spec.dtype.as_numpy_dtype)
          for name, spec in leaves_lib.named(state=state, trace=trace).items()})
    return self._pack({
        name: np.concatenate([arrays[name] for arrays in chunks])
        for name in chunks[0]})

  def _pack(self, arrays):
    with tf.device('CPU:0'):
      return tuple(
          None if structure is None else tf.nest.pack_sequence_as(structure, [
              tf.convert_to_tensor(arrays[name])
              for name in leaves_lib.named(**{group: structure})])
          for group, structure in zip(('state', 'trace'), self._structure))

  def to_arviz(
      self,
      var_names: Sequence[str] | None = None,
      transform: Callable[[Any], Any] | None = None,
  ) -> Any:
    """Exports the draws, all at once, to ArviZ.

    What was traced for each chain becomes `sample_stats`, `target_log_prob`
    under ArviZ's name `lp`.

    Args:
      var_names: A name for each part of the state. By default the keys of a
        dict or the fields of a named tuple; else `state`, or `state_0`,
        `state_1`, ....
      transform: Callable of all draws, whose result is exported in place of
        them, such as `posterior.constrain`.

    Returns:
      inference_data: `arviz.InferenceData`.

    Raises:
      ImportError: If ArviZ is not installed.
      ValueError: If there are not as many names as parts.
    """
    try:
      import arviz  # pylint: disable=g-import-not-at-top
    except ImportError as error:
      raise ImportError(
          'to_arviz needs ArviZ: pip install "tfp_sgmcmc[arviz]".') from error
    states, trace = self._all()
    if transform is not None:
      states = transform(states)
    parts = tf.nest.flatten(states)
    names = _names(states) if var_names is None else list(var_names)
    if len(names) != len(parts):
      raise ValueError(
          f'var_names has {len(names)} names, {names}, and the state has '
          f'{len(parts)} part(s): give one name for each.')
    statistics = {
        name: leaf for name, leaf in _named_leaves(trace).items()
        if self._has_chains(leaf, parts[0])}
    return arviz.from_dict(
        posterior={n: self._chains_first(p) for n, p in zip(names, parts)},
        sample_stats={
            n: self._chains_first(leaf) for n, leaf in statistics.items()})

  def _has_chains(self, leaf, part):
    axes = 1 + self._num_chain_axes
    return leaf.shape[:axes] == part.shape[:axes]

  def _chains_first(self, leaf):
    """`[draws] + chains + event` as a NumPy array `[chain, draw] + event`."""
    axes = 1 + self._num_chain_axes
    event = leaf.shape[axes:]
    leaf = tf.reshape(leaf, [leaf.shape[0], -1, *event])
    return tf.experimental.numpy.swapaxes(leaf, 0, 1).numpy()


def _names(states):
  """What each part of the states is called."""
  if hasattr(states, '_fields'):
    return list(states._fields)
  if isinstance(states, dict):
    return sorted(states)
  if isinstance(states, (list, tuple)):
    return [f'state_{k}' for k in range(len(states))]
  return ['state']


def _named_leaves(trace):
  """A trace's tensors by name: its fields or keys, else `trace`."""
  if trace is None:
    return {}
  if hasattr(trace, '_asdict'):
    trace = trace._asdict()
  if not isinstance(trace, dict):
    leaves = tf.nest.flatten(trace)
    if len(leaves) == 1:
      return {'trace': leaves[0]}
    return {f'trace_{k}': leaf for k, leaf in enumerate(leaves)}
  named = {}
  for key, value in trace.items():
    leaves = tf.nest.flatten(value)
    name = 'lp' if key == 'target_log_prob' else str(key)
    if len(leaves) == 1:
      named[name] = leaves[0]
    else:
      named.update({f'{name}_{k}': leaf for k, leaf in enumerate(leaves)})
  return named
