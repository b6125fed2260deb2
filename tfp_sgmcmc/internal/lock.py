"""A lock on a directory, for one writer at a time.

The system releases it when the process ends, however it ends.
"""

import errno
import os
import pathlib
import threading
import warnings
import weakref

try:
  import fcntl
except ImportError:  # Windows.
  fcntl = None  # type: ignore[assignment]
  import msvcrt

__all__ = ['Lock']

_IS_HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
_guard = threading.Lock()
# The locks of this process: the system's are between processes alone.
_holders = weakref.WeakValueDictionary()


class Lock:
  """A lock that stands for a file's path."""

  def __init__(self, path: str | os.PathLike):
    """Makes a lock, not held yet.

    Args:
      path: Where the file is, or will be; its content is left as it is.
    """
    self._path = pathlib.Path(path)
    self._file = None

  @property
  def is_held(self) -> bool:
    """Whether this object holds the lock."""
    return self._file is not None

  def acquire(self, take_over: bool = False) -> bool:
    """Takes the lock if it is free.

    Args:
      take_over: Python `bool`: whether to take it from another object of this
        process, which then no longer holds it.

    Returns:
      is_held: Python `bool`, whether this object holds it now.

    Raises:
      FileExistsError: If something that is no file has its name.
    """
    key = os.path.realpath(self._path)
    with _guard:
      holder = _holders.get(key)
      if holder is not None and holder.is_held:
        if holder is not self and take_over:
          self._file, holder._file = holder._file, None
          _holders[key] = self
        return self.is_held
      self._file = _open_locked(self._path)
      if self.is_held:
        _holders[key] = self
      return self.is_held

  def release(self) -> None:
    """Releases the lock, if it is held."""
    with _guard:
      if self._file is not None:
        self._file.close()
        self._file = None


def _open_locked(path):
  """An open file with the system's lock on it, None where another has it."""
  if path.exists() and not path.is_file():  # A pipe would never open.
    raise FileExistsError(
        f'{path} is no file, and a file of that name is to say which run '
        'writes to the directory: remove it, or give another directory.')
  file = open(path, 'ab')
  try:
    if fcntl is not None:
      fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
      file.seek(0)
      msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
  except OSError as error:
    if error.errno in _IS_HELD:
      file.close()
      return None
    warnings.warn(
        f'{path.parent} is on a file system without locks ({error}): take care '
        'that no second run writes to it.', stacklevel=2)
  return file
