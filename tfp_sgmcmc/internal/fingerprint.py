"""Descriptions of arguments that can be compared in another process.

Pickles and reprs of functions and objects change from one process to the next.
"""

from collections.abc import Mapping
import dis
import enum
import functools
import hashlib
import inspect
import os
import pathlib
import platform
import sys
import sysconfig
import types
from typing import Any
from typing import NamedTuple
import warnings

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import hints

__all__ = [
    'Fingerprint', 'check', 'difference', 'fingerprint', 'is_users',
    'of_constants', 'of_run', 'without_names']

_MAX_DEPTH = 40
_MAX_LENGTH = 200
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, range, slice, enum.Enum,
    pathlib.PurePath, np.dtype, tf.DType, tf.TensorShape, type(Ellipsis))
_LIBRARIES = tuple(
    str(pathlib.Path(folder)) + os.sep
    for name, folder in sysconfig.get_paths().items()
    if name in ('stdlib', 'platstdlib', 'purelib', 'platlib'))
_PACKAGES = ('site-packages', 'dist-packages')
# Functions of C, which have but a name.
_NAMED = (
    types.BuiltinFunctionType, types.MethodDescriptorType,
    types.MethodWrapperType, types.WrapperDescriptorType, np.ufunc)


class Fingerprint(NamedTuple):
  """A description of arguments.

  Attributes:
    arguments: Dictionary of strings by flat names, such as `kernel.step_size`.
    unseen: The names of what could not be looked into, with their types.
  """
  arguments: dict[str, str]
  unseen: tuple[str, ...]


def fingerprint(**arguments: object) -> Fingerprint:
  """Describes arguments by flat names.

  Numbers and strings are described by themselves, tensors by their dtype, shape
  and a hash of their values. Distributions, kernels and Keras' objects are
  described by their class and their configuration, other objects by their class
  and attributes. The user's functions and classes are described by a hash of
  their code, which depends on the version of Python, by their default
  arguments, and by the closure and the global variables that they use,
  functions among these included. Functions and classes of installed libraries
  are described by their names.

  What it cannot see: what is in the user's modules (`config.scale`; a global
  `scale` is seen), what a function imports when it is called, files, and other
  programs. What it is given and cannot look into is listed as `unseen`: a
  `tf.data.Dataset`, an iterator, a generator of random numbers.

  Of the `args` of a program it sees all, whether a function uses it or not.

  Args:
    **arguments: Anything.

  Returns:
    fingerprint: `Fingerprint`.

  #### Examples

  >>> fingerprint(seed=3, state=[0.5, None]).arguments
  {'seed': '3', 'state.0': '0.5', 'state.1': 'None'}
  """
  describer = _Describer()
  for name, value in arguments.items():
    describer.describe(name, value)
  return Fingerprint(describer.flat, tuple(describer.unseen))


def of_constants(**arguments: object) -> dict[str, str] | None:
  """Describes arguments that are the same whenever they are asked.

  Args:
    **arguments: Anything.

  Returns:
    arguments: Dictionary of strings by flat names; None where a variable, a
      function or class of the user's, or what cannot be looked into is among
      them: with the same description they may do something else.

  #### Examples

  >>> from tfp_sgmcmc.internal import fingerprint
  >>> fingerprint.of_constants(temperature=0.5)
  {'temperature': '0.5'}
  >>> fingerprint.of_constants(temperature=tf.Variable(0.5)) is None
  True
  """
  describer = _DescriberOfConstants()
  for name, value in arguments.items():
    describer.describe(name, value)
  return None if describer.unseen else describer.flat


def check(value: object) -> None:
  """Raises where the argument `fingerprint` is neither None nor a string."""
  if value is not None and not isinstance(value, str):
    raise TypeError(
        f'fingerprint is {value!r}: it has to be a string of yours, such as '
        'the version of the data.')


def of_run(
    what: str, directory: str | os.PathLike, users: str | None,
    arguments: Mapping[str, Any],
) -> dict[str, str]:
  """Describes the arguments of a run on a directory; warns of what is unseen.

  Args:
    what: The beginning of the warning, such as "Another call on".
    directory: Path.
    users: The argument `fingerprint`: the user's string for what cannot be
      compared, such as the version of the data.
    arguments: The other arguments, by name.

  Returns:
    arguments: Dictionary of strings by flat names.
  """
  described, unseen = fingerprint(fingerprint=users, **arguments)
  if unseen and users is None:
    more = f' and {len(unseen) - 3} more' if len(unseen) > 3 else ''
    warnings.warn(
        f'{what} {os.fspath(directory)!r} would be taken for this one if it '
        f'differed only in {", ".join(unseen[:3])}{more}, which cannot be '
        'looked into. Pass fingerprint="...", a string that stands for it, and '
        'change the string when it changes.', stacklevel=4)
  return described


def difference(before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
  """Says in a sentence what is different, None where nothing is."""
  changes = [
      f'{name} was {before.get(name, "absent")} and is '
      f'{now.get(name, "absent")}'
      for name in {**before, **now} if before.get(name) != now.get(name)]
  if not changes:
    return None
  more = f', and {len(changes) - 3} more' if len(changes) > 3 else ''
  return '; '.join(changes[:3]) + more


class _Describer:
  """Collects descriptions by flat names."""

  def __init__(self):
    self.flat = {}
    self.unseen = []
    self._seen = {}  # What is described once: functions, classes, modules.
    self._ancestors = []

  def describe(self, name, value):
    """Describes a value, and what is in it by names that begin with `name`."""
    if isinstance(value, _PLAIN):
      text = repr(value)
      self.flat[name] = text if len(text) <= _MAX_LENGTH else (
          f'{text[:20]}... with hash {_hash(text.encode())}')
    elif _is_array(value):
      self._describe_array(name, value)
    elif id(value) in self._seen:
      self.flat[name] = f'as {self._seen[id(value)][0]}'
    elif id(value) in self._ancestors:
      self.flat[name] = _name(type(value))
    elif len(self._ancestors) > _MAX_DEPTH:
      self._cannot_see(name, value)
    else:
      self._ancestors.append(id(value))
      try:
        self._describe_parts(name, value)
      finally:
        self._ancestors.pop()

  def _describe_parts(self, name, value):
    if isinstance(value, (Mapping, list, tuple)):
      if is_users(type(value)):
        self.describe(f'{name}.class', type(value))
      self._describe_items(
          name, value if isinstance(value, Mapping) else dict(enumerate(value)))
    elif isinstance(value, (set, frozenset)):
      self._describe_items(name, dict(enumerate(sorted(value, key=repr))))
    elif isinstance(value, (tf.SparseTensor, tf.RaggedTensor)):
      self._describe_items(
          name, dict(enumerate(tf.nest.flatten(value, expand_composites=True))))
    elif isinstance(value, functools.partial):
      self.describe(f'{name}.function', value.func)
      self.describe(f'{name}.args', value.args)
      self.describe(f'{name}.keywords', value.keywords)
    elif inspect.ismethod(value):
      self.flat[f'{name}.method'] = _name(value)
      self.describe(f'{name}.of', value.__self__)
    elif inspect.isfunction(value):
      self._describe_function(name, value)
    elif inspect.isclass(value):
      self._describe_class(name, value)
    elif inspect.ismodule(value):
      self.flat[name] = f'module {value.__name__}'
    elif isinstance(value, _NAMED) or type(value) is object:  # A sentinel.
      self.flat[name] = _name(value)
    elif callable(getattr(value, 'python_function', None)):  # A tf.function.
      self.describe(f'{name}.python_function', value.python_function)
    elif callable(getattr(value, '__wrapped__', None)):  # As of lru_cache.
      self.describe(f'{name}.wrapped', value.__wrapped__)
    else:
      self._describe_object(name, value)

  def _describe_items(self, name, items):
    if not items:
      self.flat[name] = 'empty'
    for k, (key, value) in enumerate(items.items()):
      label = key if isinstance(key, str) else (
          repr(key) if isinstance(key, _PLAIN) else k)
      if label is k:
        self.describe(f'{name}.key_{k}', key)
      self.describe(f'{name}.{label}' if name else str(label), value)

  def _describe_array(self, name, value):
    try:
      array = np.asarray(value.numpy() if hasattr(value, 'numpy') else value)
    except Exception:  # Whatever it raises: it has no value here.
      self._cannot_see(name, value)
      return
    if np.ma.isMaskedArray(value):
      self.describe(f'{name}.mask', np.ma.getmaskarray(value))
    if array.dtype.hasobject:
      self._describe_items(name, {
          'shape': array.shape, **dict(enumerate(array.ravel().tolist()))})
    elif array.ndim == 0:
      self.flat[name] = f'{array.dtype.name}({array})'
    else:
      shape = ','.join(map(str, array.shape))
      content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
      self.flat[name] = (
          f'{array.dtype.name}[{shape}] with hash {_hash(content)}')

  def _describe_function(self, name, function):
    self.flat[f'{name}.function'] = _name(function)
    is_own = is_users(function)
    # A library's function may wrap the user's, or close over what it was given.
    if not (is_own or is_users(inspect.unwrap(function))
            or '<locals>' in function.__qualname__):
      return
    parts = {
        **_closure(function),
        **{f'default_{k}': value
           for k, value in enumerate(function.__defaults__ or ())},
        **{f'default_{key}': value
           for key, value in (function.__kwdefaults__ or {}).items()}}
    if is_own:
      self._seen[id(function)] = (name, function)
      self.flat[f'{name}.code'] = _hash_of_code(function)
      used = _globals(function.__code__) & function.__globals__.keys()
      parts |= vars(function)
      parts |= {
          f'globals.{key}': function.__globals__[key] for key in sorted(used)}
    for key, value in parts.items():
      self.describe(f'{name}.{key}', value)

  def _describe_class(self, name, cls):
    self.flat[name] = _name(cls)
    if is_users(cls):
      self._seen[id(cls)] = (name, cls)
    for base in filter(is_users, cls.__mro__):
      for key, value in vars(base).items():
        value = _function_of(value)
        if inspect.isfunction(value) or not (
            key.startswith('__') or key == '_abc_impl'
            or inspect.isdatadescriptor(value)):
          self.describe(f'{name}.{base.__name__}.{key}', value)

  def _describe_object(self, name, value):
    self.describe(f'{name}.class', type(value))
    parts = _parts(value)
    if parts is None:
      self._cannot_see(name, value)
      return
    for key, part in parts.items():
      self.describe(f'{name}.{key}', part)

  def _cannot_see(self, name, value):
    self.flat[name] = _name(type(value))
    self.unseen.append(f'{name} (of type {_name(type(value))})')


class _DescriberOfConstants(_Describer):
  """Refuses what may change; tells classes of one name by their modules."""

  def _describe_array(self, name, value):
    if hasattr(value, 'assign'):
      self._cannot_see(name, value)
    else:
      super()._describe_array(name, value)

  def _describe_function(self, name, function):
    if is_users(function):
      self._cannot_see(name, function)
    else:
      super()._describe_function(name, function)
      self.flat[f'{name}.module'] = str(function.__module__)

  def _describe_class(self, name, cls):
    if is_users(cls):
      self._cannot_see(name, cls)
    else:
      super()._describe_class(name, cls)
      self.flat[f'{name}.module'] = cls.__module__


def _parts(value):
  """What an object was made with or has, None where that cannot be seen."""
  if _librarys(value, 'parameters') and isinstance(value.parameters, Mapping):
    own = _attributes(value) if is_users(type(value)) else {}
    return {**value.parameters, **{
        key: part for key, part in own.items() if not key.startswith('_')}}
  if type(value).__name__.endswith('Policy') and (
      _librarys(value, 'get_config')):  # Keras' of types has but a name.
    return value.get_config()
  if _librarys(value, 'get_config') or hasattr(value, 'get_config') and (
      hasattr(value, 'weights')):
    return _of_keras(value)
  module = type(value).__module__.split('.')[0]
  if is_users(type(value)) or module in (
      'tfp_sgmcmc', 'tensorflow_probability'):
    return _attributes(value)
  if module in sys.stdlib_module_names and ' at 0x' not in repr(value):
    return {'value': repr(value)}
  return None


def _librarys(value, name):
  """Whether an attribute of an object is defined by a library's class."""
  for cls in type(value).__mro__:
    if name in vars(cls):
      return not is_users(cls)
  return False


def _of_keras(value):
  """What an object of Keras' was made with, and its weights.

  A layer's configuration says all; a loss or a schedule may hold more than its
  own. Names say nothing: where the user gives none Keras counts (`dense`,
  `dense_1`), on and on in one process.
  """
  if hasattr(value, 'weights'):
    try:
      return {'config': without_names(value.get_config()),
              'weights': list(value.weights)}
    except NotImplementedError:
      pass
  return {
      'config': {key: part for key, part in _attributes(value).items()
                 if key not in ('name', '_name', '_path')},
      'weights': list(getattr(value, 'weights', []))}


def is_users(value: object) -> bool:
  """Whether a function, class or module is not of an installed library."""
  if inspect.isfunction(value):
    module: str = value.__module__
    file: str | None = value.__code__.co_filename
  else:
    name = value.__name__ if inspect.ismodule(value) else value.__module__
    module = name
    file = getattr(sys.modules.get(name), '__file__', None)
  if module == '__main__':  # Even where a library's module runs a script.
    return True
  package = (module or '').split('.')[0]
  if package == 'tfp_sgmcmc' or package in sys.stdlib_module_names or (
      package in sys.builtin_module_names):
    return False
  return file is None or not (
      file.startswith(_LIBRARIES)
      or any(part in _PACKAGES for part in pathlib.Path(file).parts)
      or _is_installed_elsewhere(package, file))


def _is_installed_elsewhere(package, file):
  """Whether a package's folder is one that `pip install --target` made."""
  path = pathlib.Path(file)
  return any(
      package in _installed(each.parent) for each in (path, *path.parents)
      if package in (each.name, each.stem))


@functools.cache
def _installed(folder):
  """The names of what `pip` put into a folder; the user's may lie beside."""
  return {
      line.split(',')[0].split('/')[0].removesuffix('.py')
      for record in folder.glob('*.dist-info/RECORD')
      for line in record.read_text().splitlines()}


def without_names(config: hints.Nested) -> Any:
  """A configuration of Keras' with numbers for the names of what is in it.

  Args:
    config: What `get_config` gives.

  Returns:
    config: The same, and nothing in it that Keras counts.
  """
  numbers = {}

  def collect(part):
    if type(part) is dict:
      inner = part.get('config')
      if 'class_name' in part and type(inner) is dict and (
          not part['class_name'].endswith('Policy')):
        numbers.setdefault(inner.get('name'), f'object {len(numbers)}')
      part = part.values()
    elif type(part) not in (list, tuple):
      return
    for each in part:
      collect(each)

  def replace(part):
    if type(part) is dict:
      return {key: replace(value) for key, value in part.items()}
    if type(part) in (list, tuple):
      return type(part)(map(replace, part))
    return numbers.get(part, part) if isinstance(part, str) else part

  collect({'class_name': '', 'config': config})
  return replace(config)


def _attributes(value):
  # What a cached property holds follows from the rest, once it is asked for.
  found = {
      name: part for name, part in getattr(value, '__dict__', {}).items()
      if not isinstance(
          getattr(type(value), name, None), functools.cached_property)}
  for cls in type(value).__mro__:
    slots = vars(cls).get('__slots__', ())
    for name in [slots] if isinstance(slots, str) else slots:
      if name not in ('__dict__', '__weakref__') and hasattr(value, name):
        found[name] = getattr(value, name)
  if isinstance(value, tf.Module):
    for name in vars(tf.Module()):
      found.pop(name, None)
  return {
      name: item for name, item in found.items()
      # Of TensorFlow's tracking, and what is `kept`.
      if not name.startswith('_self_')}


def _closure(function):
  found = {}
  for name, cell in zip(
      function.__code__.co_freevars, function.__closure__ or ()):
    try:
      found[name] = cell.cell_contents
    except ValueError:  # Nothing has been assigned to it yet.
      found[name] = 'unassigned'
  return found


def _function_of(value):
  """The function in a property or method, as it stands in a class."""
  if isinstance(value, property):
    return value.fget
  if isinstance(value, functools.cached_property):
    return value.func
  if isinstance(value, (staticmethod, classmethod)):
    return value.__func__
  return value


def _globals(code):
  """The names of the global variables that code uses, functions in it too."""
  return {
      instruction.argval for instruction in dis.get_instructions(code)
      if instruction.opname == 'LOAD_GLOBAL'}.union(
          *map(_globals, filter(inspect.iscode, code.co_consts)))


def _hash_of_code(function):
  digest = hashlib.sha256()

  def add(code, documentation):
    digest.update(repr((
        code.co_code, code.co_names, code.co_argcount,
        code.co_kwonlyargcount)).encode())
    for k, constant in enumerate(code.co_consts):
      if inspect.iscode(constant):
        add(constant, None)
      elif isinstance(constant, frozenset):
        digest.update(repr(sorted(map(repr, constant))).encode())
      elif k or constant is None or constant != documentation:
        digest.update(repr(constant).encode())

  add(function.__code__, function.__doc__)  # Whose words do not count.
  version = '.'.join(platform.python_version_tuple()[:2])
  return f'hash {digest.hexdigest()[:16]} in Python {version}'


def _is_array(value):
  if isinstance(value, (np.ndarray, np.generic)) or tf.is_tensor(value):
    return not isinstance(value, (tf.SparseTensor, tf.RaggedTensor))
  return not (inspect.isclass(value) or inspect.ismodule(value)) and (
      callable(getattr(value, 'numpy', None)) or hasattr(value, '__array__'))


def _hash(content):
  return hashlib.sha256(content).hexdigest()[:16]


def _name(value):
  return getattr(value, '__qualname__', type(value).__qualname__)
