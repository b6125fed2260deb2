"""What `sample` returns: draws, in memory or on disk."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import chunks as chunks_lib
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import leaves as leaves_lib
from tfp_sgmcmc.internal import resampling

__all__ = ['Draws', 'leaves_of']

_GROUPS = ('state', 'trace', 'log_weight')


class Draws:
  """The draws of a run, and the state to continue it from.

  Made by `sample`. If `sample` was given a directory, the draws stay on disk:
  `chunks()` reads them one chunk at a time, `states` and `trace` all at once.

  The draws of some kernels have weights (`AdaptiveTime`): `log_weights` holds
  their logarithms. Do not average such `states` directly: `mean` uses the
  weights, and `resampled` returns draws at equal weights.

  Attributes:
    final_state: The state after the last draw's step.
    kernel_results: The kernel's results there. Pass both to a further call of
      `sample` to continue, as `current_state` and `previous_kernel_results`.

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
      structure: tuple[hints.Nested, hints.Nested],
      *,
      final_state: hints.State,
      kernel_results: hints.Results,
      num_chain_axes: int,
      log_weight: tf.TensorSpec | None = None,
  ):
    """Holds the parts together.

    Args:
      chunks: The draws, with the names that `named` gives the tensors of
        `structure`.
      structure: Pair (state, trace) of nested `TensorSpec`s of one draw.
      final_state: State to go on from.
      kernel_results: Kernel results to go on from.
      num_chain_axes: Python `int`, how many leading axes of a state are chains.
      log_weight: That of the logarithm of a draw's weight; None for draws that
        all count the same.
    """
    self._chunks = chunks
    self._structure = (*structure, log_weight)
    self._num_chain_axes = num_chain_axes
    self.final_state = final_state
    self.kernel_results = kernel_results

  @property
  def structure(self) -> tuple[hints.Nested, hints.Nested]:
    """Pair (state, trace) of nested `TensorSpec`s of one draw."""
    return self._structure[:2]

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

  @property
  def log_weights(self) -> tf.Tensor | None:
    """The logarithm of each draw's weight, `[draws] + chains`.

    None where all count the same.
    """
    return self._all()[2]

  def chunks(self) -> Iterator[tuple[Any, Any]]:
    """Iterates over the draws, a chunk at a time.

    Yields:
      states: In the form of the state, with a leading axis of draws.
      trace: In the form of what `trace_fn` returned, likewise; None without.
    """
    for arrays in self._chunks:
      yield self._pack(arrays)[:2]

  def mean(self, fn: Callable[[Any], Any] | None = None) -> Any:
    """The mean over all draws and chains, weighted if the draws have weights.

      sum_k w_k f(theta_k) / sum_k w_k

    It reads the draws a chunk at a time.

    Args:
      fn: Callable of states, with leading axes of draws and chains; returns
        nested tensors with the same leading axes. By default the states
        themselves.

    Returns:
      mean: Nested tensors, without these axes.

    Raises:
      ValueError: If there are no draws, or the result of `fn` lacks these axes.
    """
    if not len(self):
      raise ValueError('There are no draws to take the mean of.')
    axes = list(range(1 + self._num_chain_axes))
    total, sums, form = 0., None, None
    for arrays in self._chunks:
      states, _, log_weights = self._pack(arrays)
      first = tf.nest.flatten(states)[0]
      lead = first.shape[:len(axes)]
      weights = tf.ones(lead, tf.float64) if log_weights is None else tf.exp(
          tf.cast(log_weights, tf.float64))
      form = states if fn is None else fn(states)
      values = tf.nest.flatten(form)
      for value in values:
        if tf.convert_to_tensor(value).shape[:len(axes)] != lead:
          raise ValueError(
              f'fn returned shape {tf.convert_to_tensor(value).shape}, and the '
              f'states have leading axes {lead} of draws and chains: they have '
              'to stay, so that each draw has its value.')
      new = [tf.tensordot(weights, tf.cast(value, tf.float64), [axes, axes])
             for value in values]
      sums = new if sums is None else [a + b for a, b in zip(sums, new)]
      total += tf.reduce_sum(weights)
    dtypes = [tf.convert_to_tensor(v).dtype for v in tf.nest.flatten(form)]
    return tf.nest.pack_sequence_as(form, [
        tf.cast(s / total, dtype if dtype.is_floating else tf.float64)
        for s, dtype in zip(sums or [], dtypes)])

  def resampled(self, seed: int = 0) -> 'Draws':
    """Draws at equal weights, in memory, repeated in proportion to weights.

    Each chain is resampled separately, by systematic resampling. Draws keep
    their order, and their effective draws and R-hat are about those of weighted
    means.

    Args:
      seed: Python `int`.

    Returns:
      draws: `Draws`, as many; these same draws if they have no weights. With
        several chains, traces without axes of chains are not resampled.
    """
    structure = self._structure
    if structure[-1] is None or not len(self):
      return self
    log_weights = np.asarray(self.log_weights)
    number, lead = len(self), log_weights.shape
    columns = log_weights.reshape([number, -1]).T
    # Other numbers in each chain, from one seed.
    index = np.stack([
        resampling.systematic(column, [seed, k])
        for k, column in enumerate(columns)], axis=1)

    def chosen(leaf):
      if leaf.shape[:len(lead)] != lead:
        return leaf
      flat = leaf.reshape([number, len(columns), -1])
      return np.take_along_axis(
          flat, index[..., np.newaxis], axis=0).reshape(leaf.shape)

    arrays, chunks = self._joined(), chunks_lib.Chunks()
    chunks.append({
        name: chosen(arrays[name]) for name in leaves_of(*structure[:2], None)})
    return Draws(
        chunks, structure[:2], final_state=self.final_state,
        kernel_results=self.kernel_results,
        num_chain_axes=self._num_chain_axes)

  def _all(self):
    return self._pack(self._joined())

  def _joined(self):
    """All draws as arrays by name."""
    chunks = list(self._chunks)
    if not chunks:
      return {
          name: np.zeros([0, *spec.shape], spec.dtype.as_numpy_dtype)
          for name, spec in leaves_of(*self._structure).items()}
    return {
        name: np.concatenate([arrays[name] for arrays in chunks])
        for name in chunks[0]}

  def _pack(self, arrays):
    with tf.device('CPU:0'):
      return tuple(
          None if structure is None else tf.nest.pack_sequence_as(structure, [
              tf.convert_to_tensor(arrays[name])
              for name in leaves_lib.named(**{group: structure})])
          for group, structure in zip(_GROUPS, self._structure))

  def to_arviz(
      self,
      var_names: Sequence[str] | None = None,
      transform: Callable[[Any], Any] | None = None,
  ) -> Any:
    """Exports the draws, all at once, to ArviZ.

    What was traced for each chain becomes `sample_stats`, `target_log_prob`
    under ArviZ's name `lp`. Weighted draws are exported at equal weights, by
    `resampled()`.

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
    states, trace, _ = self.resampled()._all()
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


def leaves_of(
    state: hints.State,
    trace: hints.Nested,
    log_weight: hints.TensorLike,
) -> dict[str, Any]:
  """The tensors that are kept of a draw, by the names of their arrays."""
  return leaves_lib.named(**dict(zip(_GROUPS, (state, trace, log_weight))))


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
