"""Ctrl-C, heard where a run can stop without losing anything."""

from collections.abc import Iterator
import contextlib
import signal
import threading

__all__ = ['Interrupts']

# A script that wants SIGTERM to be as Ctrl-C gives it Python's handler of that.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
  """While it is entered, `held` delays a `KeyboardInterrupt` to its end.

  This is so for signals whose handler is `signal.default_int_handler`, and in
  the main thread, the only one that gets signals.

  #### Examples

  >>> with Interrupts() as interrupts:
  ...   try:
  ...     with interrupts.held():
  ...       signal.raise_signal(signal.SIGINT)
  ...       print('whole')
  ...   except KeyboardInterrupt:
  ...     print('interrupted')
  whole
  interrupted
  """

  def __init__(self):
    self._taken = []
    self._is_held = self._has_come = False

  def __enter__(self) -> 'Interrupts':
    if threading.current_thread() is threading.main_thread():
      for number in _SIGNALS:
        if signal.getsignal(number) is signal.default_int_handler:
          signal.signal(number, self._hear)
          self._taken.append(number)
    return self

  def __exit__(self, *exception):
    for number in self._taken:
      signal.signal(number, signal.default_int_handler)

  def _hear(self, number, frame):
    if not self._is_held:
      signal.default_int_handler(number, frame)
    self._has_come = True

  @contextlib.contextmanager
  def held(self) -> Iterator[None]:
    """Within it no `KeyboardInterrupt` is raised, but at its end.

    An error that ends it comes first.
    """
    self._is_held = True
    try:
      yield
    finally:
      self._is_held = False
    if self._has_come:
      self._has_come = False
      raise KeyboardInterrupt
