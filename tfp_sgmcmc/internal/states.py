"""States of Markov chains: a tensor, or a list of tensors (the parts).

The leading axes of all parts are the chains; how many there are is the rank of
the log density. The rest of a part's axes are its coordinates.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints

# On a CPU, the most numbers of a part that is joined with others to be summed
# up, and not by products; on accelerators, the most of one that is joined.
_LARGE = 2**14
_SMALL = 2**17


def to_parts(state: Any, name: str = 'state') -> list[tf.Tensor]:
  """The state's parts as float tensors.

  Args:
    state: Tensor or list of tensors.
    name: What it is called in messages.

  Returns:
    parts: List of tensors.

  Raises:
    TypeError: If it is no tensor and no list of tensors, or not of floats.
    ValueError: If it is an empty list.
  """
  if isinstance(state, dict):
    raise TypeError(
        f'The {name} is a dict with the keys {list(state)}: pass its tensors '
        'as a list, in the order of the arguments of the log density.')
  is_list = isinstance(state, (list, tuple))
  if is_list and not state:
    raise ValueError(
        f'The {name} is an empty list: it needs at least one part.')
  parts = []
  for k, part in enumerate(state if is_list else [state]):
    what = f'Part {k} of the {name}' if is_list else f'The {name}'
    if isinstance(part, (list, tuple, dict)):
      raise TypeError(
          f'{what} is itself a {type(part).__name__}: pass one tensor, or one '
          'flat list of tensors, in the order of the arguments of the log '
          'density.')
    part = checks.to_tensor(what, part)
    if not part.dtype.is_floating:
      raise TypeError(
          f'Part {k} of the {name} has dtype {part.dtype.name}: these samplers '
          'move continuously and need a float dtype. Pass, for instance, '
          f'tf.cast({name}, tf.float32).')
    parts.append(part)
  return parts


def check_not_empty(state: hints.State) -> None:
  """Raises where a part of a state has no elements.

  Args:
    state: Tensor or nested tensors.
  """
  for k, part in enumerate(tf.nest.flatten(state)):
    if part.shape.num_elements() == 0:
      raise ValueError(
          f'Part {k} of the state has shape {part.shape.as_list()}, which has '
          'no elements: there is nothing to sample. Start from a state with at '
          'least one chain and one coordinate.')


def like(state: hints.State, parts: Sequence[tf.Tensor]) -> Any:
  """Packs `parts` as `state` is packed: a tensor, a list or a tuple."""
  if not isinstance(state, (list, tuple)):
    return parts[0]
  if hasattr(state, '_fields'):
    return type(state)(*parts)
  return type(state)(parts)


def value_and_gradients(
    fn: Callable[..., tf.Tensor],
    parts: Sequence[tf.Tensor],
    num_required: int | None = None,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
  """The value and the gradients of `fn(*parts)`, summed over chains.

  Args:
    fn: Callable of tensors.
    parts: List of float tensors.
    num_required: `fn` has to depend on that many of the first parts; on all by
      default. Where it does not depend on another, that gradient is zero.

  Returns:
    value: What `fn` returned.
    gradients: List of tensors.
  """
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    # New tensors: a bijector that has seen the old ones would hand back, from
    # its cache, a result that this tape knows nothing of.
    parts = [tf.identity(part) for part in parts]
    tape.watch(parts)
    value = fn(*parts)
  gradients = tape.gradient(value, parts)
  for k, gradient in enumerate(gradients[:num_required]):
    if gradient is None:
      raise ValueError(
          f'The log density does not depend on part {k} of the state (shape '
          f'{parts[k].shape}), or not through TensorFlow operations that have '
          'a gradient. Every part has to have an influence, through a prior at '
          'least.')
  return value, [
      tf.zeros_like(part) if gradient is None
      else tf.convert_to_tensor(gradient)
      for part, gradient in zip(parts, gradients)]


def values_and_derivatives(
    fn: Callable[..., list[tf.Tensor]],
    parts: Sequence[tf.Tensor],
    direction: Sequence[tf.Tensor],
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
  """The values f of `fn(*parts)`, and J u, their derivatives along u.

  By two reverse passes: J^T w, the gradient of w . f, is linear in w, and the
  gradient in w of (J^T w) . u is J u. `tf.autodiff.ForwardAccumulator` finds
  the same, and multiplies with zeros besides wherever an operation has an
  operand that does not depend on the parts, such as the data: a step of the
  bouncy sampler took 1.5 times as long.

  Args:
    fn: Callable of tensors.
    parts: List of float tensors.
    direction: List of tensors in their shapes, u.

  Returns:
    values: What `fn` returned.
    derivatives: List of tensors in the shapes of the values.
  """
  with tf.GradientTape(watch_accessed_variables=False) as outer:
    with tf.GradientTape(watch_accessed_variables=False) as inner:
      parts = [tf.identity(part) for part in parts]
      inner.watch(parts)
      values = fn(*parts)
    weights = [tf.zeros_like(value) for value in values]
    outer.watch(weights)
    gradients = inner.gradient(values, parts, output_gradients=weights)
    products = [
        tf.convert_to_tensor(gradient) * u
        for gradient, u in zip(gradients, direction) if gradient is not None]
  return values, outer.gradient(
      products, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)


def slope(
    fn: Callable[..., tf.Tensor],
    parts: Sequence[tf.Tensor],
    direction: Sequence[tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor]:
  """f and f' u: the value of `fn` and its derivative along u, one a chain."""
  value, gradients = value_and_gradients(fn, parts, num_required=0)
  return value, sum(
      sum_event(g * u, value.shape.rank) for g, u in zip(gradients, direction))


def quadratic(
    fn: Callable[..., tf.Tensor],
    parts: Sequence[tf.Tensor],
    distance: Sequence[tf.Tensor],
) -> tuple[tf.Tensor, list[tf.Tensor]]:
  """Taylor's polynomial of second order of `fn` about `parts`, at a distance.

    f + f' u + u f'' u / 2, and its gradient, f' + f'' u.

  Args:
    fn: Callable of tensors; returns one value a chain.
    parts: List of float tensors.
    distance: List of tensors in their shapes, u.

  Returns:
    value: One value a chain.
    gradients: List of tensors.
  """
  def line(*parts):  # Its gradient is f' + f'' u.
    return sum(slope(fn, parts, distance))

  at_once, gradients = value_and_gradients(line, parts, num_required=0)
  _, first = slope(fn, parts, distance)
  both = sum(
      sum_event(g * u, first.shape.rank) for g, u in zip(gradients, distance))
  return at_once + 0.5 * (both - first), gradients


def cast(value: object, dtype: tf.DType) -> tf.Tensor:
  """`tf.cast`, where a Python number is not rounded to float32 first."""
  if not tf.is_tensor(value) and not isinstance(value, tf.Variable):
    value = np.asarray(value)
  return tf.cast(value, dtype)


def event_axes(part: tf.Tensor, chain_rank: int) -> list[int]:
  """The axes of a part that are its coordinates: those after the chains'."""
  return list(range(chain_rank, part.shape.rank))


def sum_event(part: tf.Tensor, chain_rank: int) -> tf.Tensor:
  """The sum over the coordinates of a part, one value a chain."""
  axes = event_axes(part, chain_rank)
  if not _is_summed_by_products(part, chain_rank):
    return tf.reduce_sum(part, axis=axes)

  @tf.custom_gradient  # That of a product would be a product of columns.
  def total(part):
    rows = tf.tensordot(part, tf.ones(part.shape[-1:], part.dtype), 1)
    return tf.reduce_sum(rows, axis=axes[:-1]), lambda upstream: (
        tf.broadcast_to(expand(upstream, part), tf.shape(part)))

  return total(part)


def half_square(part: tf.Tensor) -> tf.Tensor:
  """|x|^2 / 2 over all numbers, as `tf.nn.l2_loss`."""
  if not _is_summed_by_products(part, 0):
    return tf.nn.l2_loss(part)

  @tf.custom_gradient
  def half(part):
    return sum_event(tf.square(part), 0) / 2., lambda upstream: upstream * part

  return half(part)


def _is_summed_by_products(part, chain_rank):
  """Whether rows are added up by a product with a vector of ones.

  XLA on CPU adds up the numbers of a large array one after the other, 1 ns
  each, and a product takes a ninth to a third of that. Accelerators add up in
  parallel, and may round what products take.
  """
  return (
      part.shape.rank > chain_rank + 1
      and part.shape.is_fully_defined()
      and part.shape.num_elements() > _LARGE
      and part.dtype in (tf.float32, tf.float64)
      and compat.in_xla_context() and not _sees_accelerators())


def _sees_accelerators():
  return compat.sees_accelerators() or compat.sees_tpus()


def expand(per_chain: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
  """Gives a tensor of the chains' shape the axes to broadcast with a part."""
  ones = [1] * (part.shape.rank - per_chain.shape.rank)
  return tf.reshape(per_chain, tf.concat([tf.shape(per_chain), ones], axis=0))


def select(mask: tf.Tensor, new: hints.Nested, old: hints.Nested) -> Any:
  """`new` in the chains of `mask`, `old` in the others.

  Args:
    mask: `bool`, shape `chains`.
    new: Tensor or nested tensors, with leading axes of chains.
    old: Likewise.

  Returns:
    chosen: In the structure of `new`.
  """
  return tf.nest.map_structure(
      lambda a, b: tf.where(expand(mask, a), a, b), new, old)


def nan_where(
    has_failed: tf.Tensor, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """The state, NaN in the chains that have failed."""
  return [
      tf.where(expand(has_failed, part), tf.constant(np.nan, part.dtype), part)
      for part in parts]


def chain_shape(kernel_results: hints.Results) -> tf.TensorShape:
  """The leading axes that are chains, by kernel results; [] if not known."""
  target_log_prob = compat.find_result(kernel_results, 'target_log_prob')
  return tf.TensorShape([]) if target_log_prob is None else (
      target_log_prob.shape)


def flatten(parts: Sequence[tf.Tensor], chain_rank: int) -> tf.Tensor:
  """All coordinates of all parts as one vector a chain: `chains + [d]`."""
  flat = [
      tf.reshape(part, compat.joined_shapes(
          [compat.shape(part)[:chain_rank], [-1]], axis=0))
      for part in parts]
  return tf.concat(flat, axis=-1)


def unflatten(
    flat: tf.Tensor, parts: Sequence[tf.Tensor], chain_rank: int,
) -> list[tf.Tensor]:
  """The inverse of `flatten`, in the shapes of `parts`."""
  sizes = [
      compat.num_elements(compat.shape(part)[chain_rank:]) for part in parts]
  return [
      tf.reshape(piece, compat.shape(part))
      for piece, part in zip(tf.split(flat, sizes, axis=-1), parts)]


def means_of_pieces(
    vector: tf.Tensor, sizes: Sequence[int]) -> tf.Tensor:
  """The mean over each piece of a vector, `[..., l]`.

  Args:
    vector: Tensor; the pieces lie side by side along its last axis.
    sizes: Python `int`s, how many numbers each of the l pieces has.
  """
  return tf.stack([
      tf.reduce_mean(piece, axis=-1)
      for piece in tf.split(vector, list(sizes), axis=-1)], axis=-1)


def over_pieces(values: tf.Tensor, sizes: Sequence[int]) -> tf.Tensor:
  """A number of each piece, `[..., l]`, at all places of the piece.

  A table of places would be a literal of an accelerator's program, as long as
  the vector. On CPU it is the faster one: XLA does not vectorise a loop with
  the broadcasts, and a step would take twice as long.
  """
  if compat.in_xla_context() and _sees_accelerators():
    pieces = tf.split(values, len(sizes), axis=-1)
    return tf.concat([
        tf.broadcast_to(piece, compat.joined_shapes(
            [compat.shape(piece)[:-1], [size]], axis=0))
        for piece, size in zip(pieces, sizes)], axis=-1)
  return tf.gather(
      values, np.repeat(np.arange(len(sizes)), sizes).astype(np.int32), axis=-1)


def num_coordinates(parts: Sequence[tf.Tensor], chain_rank: int) -> Any:
  """d: the number of coordinates of one chain, over all parts."""
  return sum(
      compat.num_elements(compat.shape(part)[chain_rank:]) for part in parts)


def joined(
    parts: Sequence[tf.Tensor], chain_rank: int = 0) -> list[tf.Tensor]:
  """The same numbers in fewer tensors under XLA, for a sum over all.

  A sum over each part is a loop of its own there, which by the estimate of the
  compiler for TPUs costs 1,825 cycles before the first number, as much as
  90,000 numbers; outside XLA to join them would be a copy.

  Args:
    parts: List of tensors with leading axes of chains.
    chain_rank: Python `int`, how many these are.

  Returns:
    tensors: List of tensors with the same leading axes.
  """
  if not compat.in_xla_context():
    return list(parts)
  most = _SMALL if _sees_accelerators() else _LARGE
  large, small = [], {}
  for part in parts:
    size = part.shape.num_elements()
    if size is None or size > most:
      large.append(part)
    else:
      small.setdefault(part.dtype, []).append(part)
  return large + [flatten(group, chain_rank) for group in small.values()]


def compiled(fn: Callable[[], Any], parts: Sequence[tf.Tensor]) -> Any:
  """What `fn` returns, by a program that XLA compiles on its own.

  In a graph that XLA does not compile anyway, of a state whose shapes are known
  and that is large: there each operation on a part would be a pass through
  memory. To compile takes about a second.

  Args:
    fn: Callable without arguments, which takes no gradients.
    parts: The state's parts.

  Returns:
    result: Nested tensors.
  """
  sizes = [part.shape.num_elements() for part in parts]
  if (tf.executing_eagerly() or compat.in_xla_context()
      or None in sizes or sum(sizes) < _LARGE):
    return fn()
  return tf.function(
      fn, autograph=False, jit_compile=compat.jit_compile())()


def cond_for_all(
    predicate: tf.Tensor, if_true: Callable[[], Any],
    if_false: Callable[[], Any],
) -> Any:
  """`if_true()` where the predicate holds, else `if_false()`.

  Under `compat.vectorized_map` it is `if_true()` where the predicate holds for
  all chains, and else `if_false()`, which has to be right in both cases.
  """
  if compat.is_vectorising():
    predicate = compat.in_all_elements(predicate)
  return tf.cond(predicate, if_true, if_false)
