"""Progress of a long run: tqdm's bar, or plain lines where it is absent."""

import sys
import time

__all__ = ['progress']


def progress(total: int, initial: int, shown: bool) -> 'Bar | Lines | Hidden':
  """Makes a display of `total` steps, `initial` of them made before.

  Args:
    total: Python `int`, number of steps.
    initial: Python `int`, number of steps that an earlier call made.
    shown: Python `bool`: False for a display that shows nothing.

  Returns:
    display: A context manager with `update(steps, phase)`.
  """
  if not shown:
    return Hidden()
  try:
    import tqdm  # pylint: disable=g-import-not-at-top
  except ImportError:
    return Lines(total, initial)
  return Bar(tqdm.tqdm(
      total=total, initial=initial, unit=' steps', dynamic_ncols=True))


class Hidden:
  """Shows nothing."""

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    return None

  def update(self, steps: int, phase: str) -> None:
    """Takes note of steps made."""


class Bar(Hidden):
  """A bar of tqdm."""

  def __init__(self, bar):
    self._bar = bar

  def __exit__(self, *exception):
    self._bar.close()

  def update(self, steps: int, phase: str) -> None:
    """Takes note of steps made."""
    self._bar.set_description(phase, refresh=False)
    self._bar.update(steps)


class Lines(Hidden):
  """A line on standard error for each tenth of the run."""

  def __init__(self, total, initial):
    self._total = total
    self._done = initial
    self._start = time.monotonic()

  def update(self, steps: int, phase: str) -> None:
    """Takes note of steps made."""
    before, self._done = self._done, self._done + steps
    if 10 * before // self._total < 10 * self._done // self._total:
      print(
          f'{phase}: {self._done:,} of {self._total:,} steps, '
          f'{time.monotonic() - self._start:.0f} s', file=sys.stderr)
