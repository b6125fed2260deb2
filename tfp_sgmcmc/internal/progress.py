"""Progress of a long run: a bar of tqdm on standard error.

tqdm and not Keras' `Progbar`, which takes the steps of an earlier call for
steps made now, so that the remaining time of a resumed run comes out too short.
"""

import tqdm

__all__ = ['Progress', 'progress']


def progress(total: int, initial: int, shown: bool) -> 'Progress':
  """Makes a bar of `total` steps, `initial` of them made before.

  Args:
    total: Python `int`, number of steps.
    initial: Python `int`, number of steps that an earlier call made.
    shown: Python `bool`: False for a bar that is not shown.

  Returns:
    bar: A context manager with `update(steps, phase)`.
  """
  return Progress(
      total=total, initial=initial, disable=not shown, unit=' steps',
      dynamic_ncols=True)


class Progress(tqdm.tqdm):
  """A bar that says which phase of the run it is in."""

  def update(self, steps: int, phase: str) -> None:
    """Moves on by `steps`, made in a phase such as 'burn-in'."""
    self.set_description(phase, refresh=False)
    super().update(steps)
