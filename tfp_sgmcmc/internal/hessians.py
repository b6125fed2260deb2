"""Hessians of functions of a state, a column at a time."""

from collections.abc import Callable
from collections.abc import Sequence

import tensorflow as tf

from tfp_sgmcmc.internal import states

__all__ = ['check_size', 'of_columns', 'slope_and_gradients']

# With more the passes, one for each, would take hours and gigabytes.
_MOST_COORDINATES = 5000


def check_size(
    parts: Sequence[tf.Tensor], chain_rank: int, who: str,
    way_out: str | None = None,
) -> int:
  """The number of coordinates, where there can be a Hessian of a state.

  Args:
    parts: List of float tensors.
    chain_rank: Python `int`, how many leading axes are chains.
    who: What needs the Hessian, in words.
    way_out: What else to do, such as "take order=1"; None for nothing.

  Returns:
    size: Python `int`, d.

  Raises:
    ValueError: If there are too many coordinates, or of several dtypes.
  """
  d = sum(part.shape[chain_rank:].num_elements() for part in parts)
  if d > _MOST_COORDINATES:
    raise ValueError(
        f'The state has {d:,} coordinates, and {who} takes a pass over the '
        'data for each, and keeps their square of numbers: it is for at most '
        f'{_MOST_COORDINATES:,}'
        f'{way_out and f". {way_out.capitalize()}" or ""}.')
  dtypes = sorted({part.dtype.name for part in parts})
  if len(dtypes) > 1:
    raise ValueError(
        f'The parts of the state have dtypes {", ".join(dtypes)}, and {who} '
        'keeps the Hessian of all of them in one: cast them to one dtype'
        f'{way_out and f", or {way_out}" or ""}.')
  return d


def slope_and_gradients(
    fn: Callable[..., tf.Tensor],
    parts: Sequence[tf.Tensor],
    direction: Sequence[tf.Tensor],
) -> tuple[tf.Tensor, list[tf.Tensor]]:
  """f' u and f'' u: the derivative of `fn` along u, and its gradients."""
  return states.value_and_gradients(
      lambda *parts: states.slope(fn, parts, direction)[1], parts,
      num_required=0)


def of_columns(
    product: Callable[[list[tf.Tensor]], list[tf.Tensor]],
    parts: Sequence[tf.Tensor],
    chain_rank: int,
) -> tf.Tensor:
  """A Hessian by its products with the unit vectors, in a loop.

  Args:
    product: Callable of a direction, in the shapes of the parts; returns the
      product of the Hessian with it, likewise.
    parts: List of float tensors.
    chain_rank: Python `int`, how many leading axes are chains.

  Returns:
    hessian: `chains + [d, d]`, of the coordinates of all parts side by side.
  """
  flat = states.flatten(parts, chain_rank)
  d = flat.shape[-1]

  def column(k):
    direction = states.unflatten(
        tf.broadcast_to(tf.one_hot(k, d, dtype=flat.dtype), tf.shape(flat)),
        parts, chain_rank)
    return states.flatten(product(direction), chain_rank)

  columns = tf.map_fn(column, tf.range(d), fn_output_signature=flat.dtype)
  return tf.transpose(columns, [*range(1, chain_rank + 2), 0])
