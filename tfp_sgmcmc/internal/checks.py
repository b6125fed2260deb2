"""Checks of what users pass, with messages in their words."""

import os
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import hints

# What leaves a choice to the library.
AUTO = 'auto'
# The longest name of a file that the library puts into a directory.
_LONGEST_NAME = 'draws_00000000-00000000.npz.partial'


def static_value(value: object) -> np.ndarray | None:
  """The value as NumPy, or None where it is only known when a graph runs."""
  if isinstance(value, tf.Variable):
    return value.numpy() if tf.executing_eagerly() else None
  if tf.is_tensor(value):
    known = tf.get_static_value(value)
    return None if known is None else np.asarray(known)
  return np.asarray(value)


def to_tensor(name: str, value: object) -> tf.Tensor:
  """`value` as a dense tensor, or an error in the words of who passed it.

  Args:
    name: What it is, as the user knows it, such as "data['x']".
    value: A tensor, an array, a number or nested lists of numbers.

  Returns:
    tensor: Tensor.

  Raises:
    TypeError: If it is none of these.
  """
  if isinstance(value, tf.RaggedTensor):
    raise TypeError(
        f'{name} is a RaggedTensor, whose rows differ in length, and a dense '
        'tensor is needed: pass value.to_tensor(), with a mask beside it where '
        'the filling counts for nothing.')
  if isinstance(value, tf.SparseTensor):
    raise TypeError(
        f'{name} is a SparseTensor, and a dense tensor is needed: pass '
        'tf.sparse.to_dense(value).')
  try:
    return tf.convert_to_tensor(value)
  except (TypeError, ValueError) as error:
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
      kind = f'an array of dtype {value.dtype.name}'
    raise TypeError(
        f'{name} is {shorten(value)} ({kind}), which is no tensor: pass a '
        'tensor, an array of numbers, or nested lists of numbers that are as '
        'long as each other.') from error


def to_tensors(name: str, structure: object) -> Any:
  """Nested values as tensors, or an error that names them."""
  return tf.nest.map_structure(lambda leaf: to_tensor(name, leaf), structure)


def real_array(name: str, value: object) -> np.ndarray:
  """`value` as a float64 array, or an error that names it."""
  try:
    return np.asarray(value, np.float64)
  except (TypeError, ValueError) as error:
    raise TypeError(
        f'{name} is {shorten(value)} ({type(value).__name__}): an array of '
        'real numbers is needed.') from error


def boolean(name: str, value: object) -> bool:
  """`value` where it is True or False, else an error."""
  if not isinstance(value, (bool, np.bool_)):
    raise TypeError(f'{name} is {value!r}: it has to be True or False.')
  return bool(value)


def numeric(
    name: str,
    value: tf.Tensor,
    minimum: float,
    strict: bool = True,
) -> None:
  """Raises where `value` is no number or tensor above `minimum`.

  Args:
    name: The argument's name, as the user knows it.
    value: A number or tensor; checked as far as it is known while tracing.
    minimum: What `value` has to be above.
    strict: Whether `value` may not equal `minimum`.
  """
  number = None if isinstance(value, (list, tuple)) else static_value(value)
  if number is None and (
      tf.is_tensor(value) or isinstance(value, tf.Variable)):
    if not value.dtype.is_complex:
      return
  if number is None or not np.issubdtype(number.dtype, np.number) or (
      np.issubdtype(number.dtype, np.complexfloating)):
    raise TypeError(
        f'{name} is {value!r}, of type {type(value).__name__}: pass a real '
        'number, or a float tensor that broadcasts with each part of the '
        'state.')
  if not np.all(np.isfinite(number)):
    raise ValueError(f'{name} is {_show(number)}: it has to be finite.')
  if np.any(number <= minimum if strict else number < minimum):
    relation = 'greater than' if strict else 'at least'
    raise ValueError(
        f'{name} is {_show(number)}: it has to be {relation} {minimum:g}.')


def fraction(name: str, value: object) -> None:
  """Raises where `value` is not in [0, 1]."""
  numeric(name, value, 0., strict=False)
  number = static_value(value)
  if number is not None and np.any(number > 1.):
    raise ValueError(f'{name} is {_show(number)}: it has to be at most 1.')


def level(value: float) -> None:
  """Raises where the probability of an interval is not in (0, 1)."""
  numeric('level', value, 0.)
  if value >= 1.:
    raise ValueError(
        f'level is {value}: pass a probability below 1, such as 0.9.')


def probabilities(name: str, value: hints.TensorLike) -> np.ndarray:
  """Returns one probability in (0, 1), or a list of them, or raises."""
  p = np.asarray(value, np.float64)
  if p.ndim > 1 or not p.size or not np.all((p > 0.) & (p < 1.)):
    raise ValueError(
        f'{name} is {value!r}: pass a probability above 0 and below 1, or a '
        'list of them.')
  return p


def scalar(name: str, value: tf.Tensor) -> None:
  """Raises where `value` is a tensor with axes."""
  if tf.is_tensor(value) or isinstance(value, tf.Variable):
    shape = value.shape
  else:
    shape = np.shape(value)
  if len(shape):
    raise ValueError(
        f'{name} has shape {tuple(shape)}: one number is needed, the same for '
        'all chains and coordinates.')


def positive_number(name: str, value: object) -> None:
  """Raises where `value` is not one number above 0."""
  numeric(name, value, 0.)
  scalar(name, value)


def positive_share(name: str, value: object) -> None:
  """Raises where `value` is not one number in (0, 1]."""
  fraction(name, value)
  positive_number(name, value)


def schedule(
    name: str, value: object, minimum: float, strict: bool = True) -> None:
  """As `numeric`, where `value` may also be a callable of the step counter."""
  if not callable(value):
    numeric(name, value, minimum, strict)
    return
  try:
    first = value(tf.zeros([], tf.int64))
  except Exception as error:
    raise ValueError(
        f'{name} is the callable {value!r}, and calling it with the step '
        f'counter, an int64 scalar, raised {error!r}. A schedule maps the '
        'number of the step to a number.') from error
  # A schedule may warm up from, or decay to, the minimum itself.
  numeric(f'{name} at step 0', first, minimum, strict=False)


def positive_integer(name: str, value: object) -> int:
  """Returns `value` as an `int` of at least 1, or raises."""
  return _integer(name, value, 1)


def non_negative_integer(name: str, value: object) -> int:
  """Returns `value` as an `int` of at least 0, or raises."""
  return _integer(name, value, 0)


def integer_or_auto(name: str, value: object, minimum: int) -> int | str:
  """Returns `value` as an `int` of `minimum` or more, or "auto"; or raises."""
  if isinstance(value, str):
    if value != AUTO:
      raise ValueError(
          f'{name} is {value!r}: it has to be an int of {minimum} or more, or '
          '"auto".')
    return value
  return _integer(name, value, minimum)


def _integer(name, value, minimum):
  number = static_value(value)
  if (number is None or number.ndim
      or not np.issubdtype(number.dtype, np.integer)):
    raise TypeError(f'{name} is {value!r}: it has to be a Python integer.')
  if number < minimum:
    raise ValueError(
        f'{name} is {int(number)}: it has to be at least {minimum}.')
  return int(number)


def one_of(name: str, value: object, choices: tuple[Any, ...]) -> None:
  """Raises where `value` is none of `choices`."""
  if value not in choices:
    raise ValueError(
        f'{name} is {value!r}: it has to be one of '
        f'{", ".join(map(repr, choices))}.')


def directory(value: hints.Path, name: str = 'directory') -> pathlib.Path:
  """The path of a directory, which need not exist yet.

  Args:
    value: Python `str` or path, which may begin with `~`.
    name: The argument's name, as the user knows it.

  Returns:
    path: `pathlib.Path`.

  Raises:
    TypeError: If it is no text and no path.
    ValueError: If no directory can have that path: it is empty, too long for
      the system, or holds a null character.
    NotADirectoryError: If it, or what it is in, is a file.
  """
  is_path = isinstance(value, (str, os.PathLike))
  text = os.fspath(value) if is_path else value
  if not isinstance(text, str):
    raise TypeError(
        f'{name} is {shorten(value)}, of type {type(value).__name__}: pass a '
        'text or a pathlib.Path.')
  if not text.strip():
    raise ValueError(
        f'{name} is {value!r}: pass the path of a directory ("." is the '
        'working directory).')
  if '\0' in text:
    raise ValueError(
        f'{name} is {shorten(value)}: a path cannot hold a null character.')
  try:
    path = pathlib.Path(text).expanduser()
  except RuntimeError as error:
    raise ValueError(
        f'{name} is {shorten(value)}, and no home directory is known for it: '
        f'{error} Write the path out.') from error
  try:
    os.lstat(path / _LONGEST_NAME)
  except NotADirectoryError as error:
    raise NotADirectoryError(
        f'{path}, or a directory that it is in, is a file: give the path of a '
        f'directory as {name}.') from error
  except (FileNotFoundError, PermissionError):
    pass  # It is made, and an error that names it raised, when it is opened.
  except (OSError, ValueError) as error:
    reason = getattr(error, 'strerror', None) or error
    raise ValueError(
        f'{name} is {shorten(value)}, of {len(text):,} characters, and no '
        f'directory can have that name here ({reason}): give another one.'
    ) from error
  return path


def _show(number):
  return f'{number:g}' if number.ndim == 0 else str(number)


def shorten(value: object) -> str:
  """A value for a message, cut where it is long."""
  text = repr(value)
  return text if len(text) <= 60 else f'{text[:57]}...'
