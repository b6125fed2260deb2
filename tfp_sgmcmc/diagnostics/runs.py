"""The summary of several runs, which each kind of result defines."""

from collections.abc import Sequence
import functools
from typing import Any

from tfp_sgmcmc.diagnostics import verdicts

__all__ = ['summary_of_runs']


@functools.singledispatch
def summary_of_runs(
    first: Any, runs: Sequence[Any], *arguments: Any, **keywords: Any,
) -> verdicts.Summary:
  """The summary of several runs of one posterior, by the type of the first."""
  del runs, arguments, keywords
  raise TypeError(
      f'The runs are of type {type(first).__name__}: of several runs there is '
      'a summary if they are Draws, what sgmcmc.sample returned, or the '
      'PosteriorSamples of several calls of fit.')
