"""What the replicas of a `tf.distribute.Strategy` do together.

A replica asks here for its context, for sums over all, for the noise of the
parts of a state that are its own (another piece on each replica, see
`sharding`). On a single device all of it is as if there were no replicas.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import contextvars
from typing import Any

import tensorflow as tf

from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc import random
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints

__all__ = [
    'agreed_names',
    'all_reduce',
    'axis_names',
    'context',
    'is_alike',
    'is_several',
    'normal_like',
    'own_seed',
    'run',
    'sums_of_zeros_unless',
    'totals',
    'uniform_like',
    'which_are_own',
    'zeros_unless_due',
]

_LARGEST_DIFFERENCE = 1e-3  # Of the same sums on several replicas, as a share.

_IS_DUE = contextvars.ContextVar('whether sums over rows are due', default=None)


def is_several(strategy: tf.distribute.Strategy) -> bool:
  """Whether a strategy has several replicas."""
  return strategy.num_replicas_in_sync > 1


def context() -> tf.distribute.ReplicaContext | None:
  """The context of one replica of several; else None."""
  found = tf.distribute.get_replica_context()
  return found if found and found.num_replicas_in_sync > 1 else None


def all_reduce(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """The sums over replicas; the tensors themselves where there is but one."""
  found = context()
  if found is None:
    return list(tensors)
  try:
    # A reduction goes by the device of an operation; an argument has none.
    return found.all_reduce(
        tf.distribute.ReduceOp.SUM, [tf.identity(t) for t in tensors])
  except RuntimeError as error:
    if 'merge_call' not in str(error):
      raise
    raise RuntimeError(
        f'{type(found.strategy).__name__} cannot add up over its replicas '
        'inside a loop or a condition of a compiled step, and this step has '
        'one (pdmp.UniformTime and the loop of tfp.mcmc.sample_chain are '
        'such). Run the kernel itself by sgmcmc.sample, or the loop '
        'eagerly.') from error


@contextlib.contextmanager
def sums_of_zeros_unless(is_due: tf.Tensor) -> Iterator[None]:
  """Within it replicas add up zeros where a scalar condition is not met.

  The sum itself cannot be left out, since a strategy reduces in no condition;
  what each replica adds to it can (`zeros_unless_due`).
  """
  token = _IS_DUE.set(is_due)
  try:
    yield
  finally:
    _IS_DUE.reset(token)


def zeros_unless_due(
    own: Callable[[], list[tf.Tensor]],
    like: Callable[[], list[tf.Tensor]],
) -> list[tf.Tensor]:
  """What `own` returns; zeros like `like()` where no sum of it is due."""
  is_due = _IS_DUE.get()
  if is_due is None:
    return own()
  return tf.cond(is_due, own, lambda: [tf.zeros_like(x) for x in like()])


def own_seed(seed: tf.Tensor) -> tf.Tensor:
  """The seed of what a replica draws for itself; as it is on a single one."""
  found = context()
  if found is None:
    return seed
  return random.fold_in(seed, found.replica_id_in_sync_group)


def axis_names(names: hints.ShardAxes) -> list[str | None] | None:
  """TFP's names of the parts of a state that are each replica's own.

  Args:
    names: List with an entry for each part of the state: a name, or a list of
      one, for a part that is another piece on each replica; None or an empty
      list for one that all share. None for none; a name alone is that of a
      single part.

  Returns:
    names: List with a name or None for each part; None where there is no name.

  Raises:
    ValueError: If it is something else, or there are different names.
  """
  def of_part(name):
    while isinstance(name, (list, tuple)) and len(name) < 2:
      name = name[0] if name else None
    return name

  found = [names] if names is None or isinstance(names, str) else names
  if isinstance(found, (list, tuple)):
    found = [of_part(name) for name in found]
    distinct = [name for name in found if name is not None]
    if not distinct:
      return None
    if all(isinstance(n, str) and n == distinct[0] for n in distinct):
      return found
  raise ValueError(
      f'experimental_shard_axis_names is {names!r}: it has to be a list with '
      'an entry for each part of the state, a name (such as "rows") for a part '
      'that is another piece on each replica, None for one that all share. '
      'All have the same name, since TensorFlow has one axis of replicas.')


def agreed_names(
    names: hints.ShardAxes,
    posterior: posterior_lib.Posterior,
) -> list[str | None] | None:
  """The `axis_names` of a kernel and of the posterior that it samples.

  Args:
    names: Those given to the kernel; None for the posterior's.
    posterior: `Posterior`.

  Returns:
    names: As `axis_names` returns them.

  Raises:
    ValueError: If the two differ.
  """
  found = axis_names(names)
  if not posterior.has_examples:
    return found
  theirs = posterior.experimental_shard_axis_names
  if names and found != theirs:
    raise ValueError(
        f'experimental_shard_axis_names is {names!r} for the kernel and '
        f'{theirs!r} for its posterior, which has to know what parts live with '
        'its rows. On each replica make a ShardedPosterior of the rows there, '
        'with the names that the kernel has; what shard returns, and a '
        'Posterior that is no ShardedPosterior, have none.')
  return theirs


def which_are_own(
    names: Sequence[str | None] | None, parts: Sequence[tf.Tensor],
) -> list[bool]:
  """Whether each part is another piece on each replica.

  Args:
    names: As `axis_names` returns them.
    parts: List of the parts of a state.

  Returns:
    is_own: List of Python `bool`.

  Raises:
    ValueError: If there are not as many names as parts.
  """
  if names is None:
    return [False] * len(parts)
  if len(names) != len(parts):
    raise ValueError(
        f'experimental_shard_axis_names is {names!r}, and the state has '
        f'{len(parts)} part(s): it needs an entry for each.')
  return [name is not None for name in names]


def normal_like(
    parts: Sequence[tf.Tensor], is_own: Sequence[bool], seed: tf.Tensor,
) -> list[tf.Tensor]:
  """As `random.normal_like`; of a replica's own parts, its own numbers.

  Args:
    parts: List of float tensors.
    is_own: List of Python `bool`, from `which_are_own`.
    seed: Stateless seed, `int32[2]`, the same on all replicas.

  Returns:
    normals: List of tensors, independent of each other.
  """
  if context() is None or not any(is_own):
    return random.normal_like(parts, seed)
  numbers = {
      own: iter(random.normal_like(
          [part for part, o in zip(parts, is_own) if o == own], its_seed))
      for own, its_seed in ((False, seed), (True, own_seed(seed)))}
  return [next(numbers[own]) for own in is_own]


def uniform_like(
    parts: Sequence[tf.Tensor], is_own: Sequence[bool], seed: tf.Tensor,
) -> list[tf.Tensor]:
  """Uniform numbers in [0, 1) in the shapes and dtypes of the parts.

  Of a replica's own parts, its own numbers.

  Args:
    parts: List of float tensors.
    is_own: List of Python `bool`, from `which_are_own`.
    seed: Stateless seed, `int32[2]`, the same on all replicas.

  Returns:
    uniforms: List of tensors, independent of each other.
  """
  return [
      random.uniform(
          compat.shape(part), own_seed(seed) if own else seed, part.dtype,
          stream=k)
      for k, (part, own) in enumerate(zip(parts, is_own))]


def totals(
    dtype: tf.DType, is_own: Sequence[bool], *values: Sequence[Any],
) -> list[tf.Tensor]:
  """Sums over all parts, and over the replicas of those that are their own.

  Args:
    dtype: The dtype of the sums.
    is_own: List of Python `bool`, from `which_are_own`.
    *values: Lists with a number or a tensor for each part, of a shape that is
      the same on all replicas.

  Returns:
    totals: List with the sum of each of `values`.
  """
  def sums(chosen):
    return [
        tf.cast(sum(x for x, own in zip(each, is_own) if own == chosen), dtype)
        for each in values]

  if not any(is_own):
    return sums(False)
  return [
      own + shared for own, shared in zip(all_reduce(sums(True)), sums(False))]


def is_alike(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  """Whether tensors are the same on all replicas, but for rounding."""
  found = context()
  if found is None:
    return tf.constant(True)

  def size(x):
    return tf.reduce_sum(tf.abs(x))

  return tf.reduce_all([
      size(x - total / found.num_replicas_in_sync)
      <= _LARGEST_DIFFERENCE * size(x)
      for x, total in zip(tensors, all_reduce(tensors))])


def run(
    strategy: tf.distribute.Strategy | None,
    fn: Callable[..., Any],
    *arguments: Any,
) -> Any:
  """What `fn` returns on each replica: the first's.

  Args:
    strategy: The strategy; None to call `fn` as it is.
    fn: Callable, run on each replica.
    *arguments: Its arguments: tensors that all replicas get, or what the
      strategy has dealt out.

  Returns:
    result: Nested tensors.
  """
  if strategy is None or not is_several(strategy):
    return fn(*arguments)
  return tf.nest.map_structure(
      lambda leaf: strategy.experimental_local_results(leaf)[0],
      strategy.run(fn, args=arguments))
