"""Forked processes, in which TensorFlow would wait forever."""

import os

__all__ = ['check']

_process = None


def check() -> None:
  """Notes that this process runs programs; to be called before it does.

  Raises:
    RuntimeError: If it is a fork of one that does.
  """
  global _process
  if _process is None:
    _process = os.getpid()
  elif _process != os.getpid():
    raise RuntimeError(
        'This process is a fork of one in which TensorFlow has run, and would '
        'wait forever for threads that it has not got. Start processes without '
        "a fork: multiprocessing.get_context('spawn').Pool(...), or "
        'ProcessPoolExecutor(..., mp_context=multiprocessing.get_context('
        "'spawn')).")
