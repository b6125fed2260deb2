"""Pictures of calibration, with matplotlib (the extra `plots`).

For pictures of chains use ArviZ: `arviz.plot_trace(draws.to_arviz())`.
"""

from collections.abc import Mapping

import numpy as np

from tfp_sgmcmc.diagnostics import calibration

try:
  import matplotlib.axes
except ImportError as error:
  raise ImportError(
      'tfp_sgmcmc.diagnostics.plots needs matplotlib: '
      'pip install "tfp_sgmcmc[plots]".') from error

__all__ = ['reliability']


def reliability(
    axes: matplotlib.axes.Axes,
    curves: Mapping[str, calibration.ReliabilityCurve],
) -> matplotlib.axes.Axes:
  """Draws accuracy against confidence, the diagonal being perfect.

  There is a point for each bin that has examples; its area grows with their
  number. Its bar is the standard error that the accuracy would have if the
  forecast were calibrated, sqrt(c (1 - c) / n) for a bin of n examples with the
  mean confidence c: a calibrated forecast's bar reaches the diagonal in about
  two bins of three.

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
