"""Pictures of calibration and of chains, with matplotlib (the extra `plots`).

Each function draws on the axes it is given and returns them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfp_sgmcmc.diagnostics import calibration

try:
  import matplotlib.axes
except ImportError as error:
  raise ImportError(
      'tfp_sgmcmc.diagnostics.plots needs matplotlib: '
      'pip install "tfp_sgmcmc[plots]".') from error

__all__ = ['reliability', 'traces']


def reliability(
    axes: matplotlib.axes.Axes,
    curves: Mapping[str, calibration.ReliabilityCurve],
) -> matplotlib.axes.Axes:
  """Draws accuracy against confidence, the diagonal being perfect.

  Bars are one standard error of the accuracy in a bin, as of independent
  examples that are as accurate as the bin's confidence says: a point whose bar
  reaches the diagonal is compatible with perfect calibration. The area of a
  point goes with the number of its examples.

  Args:
    axes: Matplotlib axes.
    curves: `ReliabilityCurve`s by the name that the legend gives them.

  Returns:
    axes: The same.

  #### Examples

  >>> import matplotlib.figure
  >>> from tfp_sgmcmc.diagnostics import plots
  >>> curve = sgmcmc.diagnostics.reliability_curve(
  ...     [[0.75, 0.25], [0.4, 0.6]], [0, 1])
  >>> axes = plots.reliability(
  ...     matplotlib.figure.Figure().subplots(), {'model': curve})
  >>> axes.get_ylabel()
  'accuracy'
  """
  axes.plot([0, 1], [0, 1], color='0.6', linewidth=1, linestyle='--', zorder=1)
  for k, (name, curve) in enumerate(curves.items()):
    confidence, accuracy, count = (np.asarray(value) for value in curve)
    kept = count > 0
    confidence, accuracy, count = (
        value[kept] for value in (confidence, accuracy, count))
    error = np.sqrt(np.clip(confidence * (1. - confidence), 0., None) / count)
    color = f'C{k}'
    axes.errorbar(
        confidence, accuracy, yerr=error, color=color, linewidth=1.2,
        elinewidth=0.8, label=name, zorder=2 + k)
    axes.scatter(
        confidence, accuracy, s=12. + 160. * count / count.sum(), color=color,
        alpha=0.8, linewidth=0., zorder=2 + k)
  axes.set(
      xlim=(0., 1.02), ylim=(0., 1.05), aspect='equal', xlabel='confidence',
      ylabel='accuracy')
  axes.legend(loc='upper left', edgecolor='none')
  return axes


def traces(
    axes: matplotlib.axes.Axes, values: Any, label: str,
) -> matplotlib.axes.Axes:
  """Draws a quantity along chains, a line each.

  Args:
    axes: Matplotlib axes.
    values: `[draws]` or `[draws, chains]`.
    label: What the quantity is.

  Returns:
    axes: The same.

  #### Examples

  >>> import matplotlib.figure
  >>> from tfp_sgmcmc.diagnostics import plots
  >>> axes = plots.traces(
  ...     matplotlib.figure.Figure().subplots(), tf.zeros([10, 4]), 'theta')
  >>> len(axes.lines)
  4
  """
  values = np.asarray(values)
  values = values.reshape(len(values), -1)
  for k in range(values.shape[1]):
    axes.plot(values[:, k], linewidth=0.8, alpha=0.85, label=f'chain {k}')
  axes.set(xlabel='draw', ylabel=label, xlim=(0, max(1, len(values) - 1)))
  return axes
