"""Checks of a user's log prior and log likelihood, and what is said of them."""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import inspect
import re
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal import hints

_Joint = tfp.distributions.JointDistribution
# How far the value of an example alone may be from that in a batch, relatively:
# much more than rounding, also where large terms cancel.
_TOLERANCE = 0.01
# The length of a batch to try: long enough for rows to differ.
_FEW = 8


# What TensorFlow adds to its messages about its own insides.
_OF_TENSORFLOW = re.compile(
    r'\{\{function_node [^}]*\}\} ?| ?\[Op:\w+\]( name: *)?$|\.?\s*$')


class FunctionError(ValueError):
  """A function of the user's that raises."""


def check_number(
    functions: dict[str, tuple[Callable[..., Any], int]],
    state_parts: Sequence[tf.Tensor]) -> None:
  """Raises where functions do not take so many parts.

  Args:
    functions: By name, each with how many arguments it takes besides.
    state_parts: List of tensors.
  """
  number = len(state_parts)
  for name, (fn, more) in functions.items():
    if not _takes(fn, number + more):
      raise ValueError(
          f'The state has {number} part(s), {describe(state_parts)}, and '
          f'{name} does not take {number + more} argument(s): each part of '
          f'the state is one{", the batch the last" if more else ""}. Pass '
          'a state with a part for each argument, or a function that takes '
          'them all. (A joint prior of several parts is '
          'tfd.JointDistributionSequential([...]).log_prob.)')


def check_functions(
    log_prior_fn: Callable[..., tf.Tensor],
    log_likelihood_fn: Callable[..., tf.Tensor],
    data: hints.Data,
    state_parts: Sequence[tf.Tensor],
    *,
    prior: tfp.distributions.Distribution | None,
    tried: str | None,
    looks_at_values: bool) -> None:
  """Tries both functions on a state and a few examples.

  Args:
    log_prior_fn: Callable of the parts.
    log_likelihood_fn: Callable of the parts and `batch`, by its name.
    data: Nested tensors.
    state_parts: List of tensors.
    prior: Distribution whose `log_prob` is the log prior; None for a function.
    tried: A state that both functions took before, in words; None for none.
    looks_at_values: Whether the value of an example is tried on its own.

  Raises:
    FunctionError: If a function raises.
    ValueError: If it returns another shape than it has to, or a value of an
      example that depends on the other examples.
  """
  batch = _few_examples(data, state_parts)
  about_prior = _batch_hint(prior)
  hint = about_prior or (
      ' Has the state another shape than the functions are for? Chains are '
      f'leading axes.{tried and f" They took {tried}." or ""}')
  log_prior, log_likelihood = (
      _value(name, call, state_parts, batch, hint)
      for name, call in (
          ('log_prior_fn', log_prior_fn),
          ('log_likelihood_fn',
           functools.partial(log_likelihood_fn, batch=batch))))
  check_shapes(
      data, state_parts, batch, log_prior, log_likelihood, about_prior)
  if looks_at_values:
    _check_alone(log_likelihood_fn, state_parts, batch, log_likelihood)
    if prior is None and tf.executing_eagerly():
      _check_near_zero(log_likelihood_fn, state_parts, batch)


def _value(name, call, state_parts, batch, hint):
  """What a function of the user's returns, or `FunctionError`."""
  try:
    return call(*state_parts)
  except Exception as error:
    raise FunctionError(
        describe_error(error, state_parts, batch, name, hint)) from error


def _check_near_zero(log_likelihood_fn, state_parts, batch):
  """`_check_alone` with other values for parts that are zero.

  There the examples of a regression may all have one value.
  """
  is_zero = [not np.any(part) for part in state_parts]
  if not any(is_zero):
    return
  moved = [
      tf.reshape(tf.cast(
          0.1 * np.cos(np.arange(np.prod(part.shape))), part.dtype), part.shape)
      if moves else part for part, moves in zip(state_parts, is_zero)]
  try:
    log_likelihood = log_likelihood_fn(*moved, batch=batch)
  except Exception:  # pylint: disable=broad-except
    return  # It may not take them.
  _check_alone(
      log_likelihood_fn, moved, batch, log_likelihood, 'near the given state, ')


def _check_alone(
    log_likelihood_fn, state_parts, batch, log_likelihood, where=''):
  """Raises where the value of an example depends on the other examples.

  Such are a sum or a mean over examples that has been broadcast again, and
  what is divided by the length of the batch: shapes do not show them.
  """
  if not tf.executing_eagerly():
    return
  last = tf.nest.map_structure(lambda leaf: leaf[-1:], batch)
  try:
    alone = log_likelihood_fn(*state_parts, batch=last).numpy()
  except Exception:  # pylint: disable=broad-except
    return  # The function may be written for longer batches only.
  values = log_likelihood.numpy()
  if alone.shape != (*values.shape[:-1], 1):
    return
  among = values[..., -1:]
  with np.errstate(invalid='ignore'):
    largest = np.max(np.abs(values), where=np.isfinite(values), initial=0.)
    far = np.isfinite(among) & ~(np.abs(among - alone) <= (
        _TOLERANCE * np.maximum(np.abs(among), np.abs(alone))
        + 0.1 * _TOLERANCE * largest))
  if np.any(far):
    k = tuple(np.argwhere(far)[0])
    raise ValueError(
        f'{where}log_likelihood_fn returned {among[k]:.6g} for the last '
        f'example in a batch of {values.shape[-1]}, and {alone[k]:.6g} for the '
        'same example on its own. The value of an example may not depend on '
        'the others, nor be random: do not sum or average over examples, do '
        'not divide by the length of the batch, and normalize the data before '
        'they are passed.')


def _few_examples(data, state_parts):
  """A batch whose length is no other axis' length, to show a wrong axis."""
  lengths = {length for part in state_parts for length in part.shape}
  for leaf in tf.nest.flatten(data):
    lengths.update(leaf.shape[1:])
  batch_size = next(
      n for n in range(_FEW, _FEW + len(lengths) + 1) if n not in lengths)
  return tf.nest.map_structure(lambda leaf: leaf[:batch_size], data)


def check_event(
    prior: tfp.distributions.Distribution,
    state_parts: Sequence[tf.Tensor],
) -> None:
  """Raises where a state is not of the shapes that a prior is a density of.

  A distribution would broadcast a state that is too small.

  Args:
    prior: Distribution whose `log_prob` is the log prior; None for a function.
    state_parts: List of tensors.
  """
  if prior is None:
    return
  wanted = prior.event_shape
  if isinstance(wanted, dict):  # Its order is not that of the arguments.
    return
  wanted = list(wanted) if isinstance(prior, _Joint) else [wanted]
  if not all(isinstance(shape, tf.TensorShape) for shape in wanted):
    return
  given = [part.shape for part in state_parts]
  if len(given) == len(wanted) and all(
      event.rank is None or shape.rank >= event.rank
      and shape[shape.rank - event.rank:].is_compatible_with(event)
      for shape, event in zip(given, wanted)):
    return
  raise ValueError(
      f'The state is {describe(state_parts)}, and log_prior_fn is the '
      f'log_prob of a {type(prior).__name__} over '
      f'{", ".join(str(shape.as_list()) for shape in wanted)}: start from a '
      f'state of {len(wanted)} part(s) of that shape, with the axes of the '
      'chains in front.')


def _batch_hint(prior):
  """What to say of a prior that has a value for each coordinate, if so."""
  if prior is None or isinstance(prior, _Joint) or not prior.batch_shape.rank:
    return ''
  rank = prior.batch_shape.rank
  return (
      f' log_prior_fn is the log_prob of a {type(prior).__name__} with batch '
      f'shape {prior.batch_shape}, which returns a value for each of these: if '
      'they are the coordinates of one state, pass '
      f'tfd.Independent(prior, {rank}).log_prob.')


def check_shapes(
    data: hints.Data,
    state_parts: Sequence[tf.Tensor],
    batch: hints.Nested,
    log_prior: tf.Tensor,
    log_likelihood: tf.Tensor,
    hint: str = '') -> None:
  """Raises where the shapes are not `chains` and `chains + [n]`."""
  chains = log_prior.shape
  if any(not part.shape[:chains.rank].is_compatible_with(chains)
         or part.shape.rank < chains.rank for part in state_parts):
    raise ValueError(
        f'log_prior_fn returned shape {chains} for a state of '
        f'{describe(state_parts)}. It has to return one value a chain: the '
        'leading axes that all parts of the state share, [] for a single '
        'chain. A prior over a vector has to sum over it: '
        'tfd.Independent(...), tfd.Sample(...) or tf.reduce_sum.')
  leaf = tf.nest.flatten(batch)[0]
  batch_axis = 0
  if data is not None:
    batch_axis = leaf.shape.rank - tf.nest.flatten(data)[0].shape.rank
  wanted = chains + leaf.shape[batch_axis:batch_axis + 1]
  # One value where the length of the batch is known when it runs: a sum.
  is_one = wanted[-1] is None and log_likelihood.shape[-1:] == [1]
  if is_one or not log_likelihood.shape.is_compatible_with(wanted):
    raise ValueError(
        f'log_likelihood_fn returned shape {log_likelihood.shape}, and '
        f'{wanted} is needed: chains {chains} (the shape of the log prior) '
        f'and one value for each example.{hint} The state was '
        f'{describe(state_parts)}, the batch {describe(batch)}. Do not sum '
        'or average over examples; for several outputs an example, sum over '
        'these; for several chains, let the chains be leading axes '
        "(tf.einsum('...nd,...d->...n', x, theta)).")


def describe_error(
    error: Exception, state_parts: Sequence[tf.Tensor], batch: hints.Nested,
    name: str = 'log_prior_fn or log_likelihood_fn', hint: str = '') -> str:
  """What to say of an error that a function of the user's has raised.

  Args:
    error: The error.
    state_parts: List of tensors that the functions got.
    batch: The examples that they got.
    name: Which function it was.
    hint: What else to say, where the dtypes are not the reason.

  Returns:
    message: `str`.
  """
  floats = {
      leaf.dtype for leaf in tf.nest.flatten(batch) if leaf.dtype.is_floating}
  others = floats - {part.dtype for part in state_parts}
  if others:
    wanted = state_parts[0].dtype.name
    hint = (
        f' The state is {wanted}, and the data are {others.pop().name}: '
        f'convert them once, tf.cast(..., tf.{wanted}) (in a pipeline, '
        'dataset.map(...)), or start from a state of their dtype.')
  return (
      f'{name} raised {type(error).__name__} for a state of '
      f'{describe(state_parts)} and a batch of {describe(batch)}: '
      f'{_OF_TENSORFLOW.sub("", str(error)).strip()}.{hint}')


def _takes(fn, number):
  """Whether a function takes so many arguments, as far as it can be known."""
  distribution = getattr(fn, '__self__', None)
  if isinstance(distribution, tfp.distributions.Distribution) and (
      fn.__name__ == 'log_prob'
      and not isinstance(distribution, _Joint)):
    return number == 1  # Its other arguments are no parts.
  try:
    signature = inspect.signature(fn)
  except (TypeError, ValueError):
    return True
  try:
    signature.bind(*range(number))
  except TypeError:
    return False
  return True


def describe(tensors: hints.Nested) -> str:
  """Shapes and dtypes of nested tensors, for a message."""
  described = tf.nest.map_structure(
      lambda t: f'{t.dtype.name}{t.shape.as_list()}', tensors)
  return str(described).replace("'", '')
