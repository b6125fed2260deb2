"""Pictures say what they need; what they show is in their examples."""

import sys

import matplotlib.figure
import numpy as np
import pytest

from tfp_sgmcmc import diagnostics

PREDICTED = [[0.75, 0.25], [0.4, 0.6]], [0, 1]


def draw(name, *arguments, **keywords):
  plots = diagnostics.plots
  return getattr(plots, name)(
      matplotlib.figure.Figure().subplots(), *arguments, **keywords)


def test_plots_are_imported_where_they_are_used(monkeypatch):
  """And without matplotlib, an extra, the error says what to install."""
  def forget():
    monkeypatch.delitem(
        sys.modules, 'tfp_sgmcmc.diagnostics.plots', raising=False)
    monkeypatch.delattr(diagnostics, 'plots', raising=False)

  forget()
  assert callable(diagnostics.plots.reliability)
  forget()
  monkeypatch.setitem(sys.modules, 'matplotlib.axes', None)
  with pytest.raises(ImportError, match=r'tfp_sgmcmc\[plots\]'):
    _ = diagnostics.plots
  with pytest.raises(AttributeError, match="no attribute 'plot'"):
    _ = diagnostics.plot


@pytest.mark.parametrize('name, arguments, error, message', [
    ('reliability', [diagnostics.reliability_curve(*PREDICTED)], TypeError,
     'a dictionary of curves by name.*reliability_curve'),
    ('reliability', [{'a': diagnostics.risk_coverage_curve(*PREDICTED)}],
     TypeError, r"curves\['a'\] is of type RiskCoverageCurve"),
    ('reliability', [{}], ValueError, 'no curves'),
    ('risk_coverage', [{'a': PREDICTED}], TypeError, 'RiskCoverageCurve is'),
    ('kinetic_temperature', [[]], ValueError, 'one step at least'),
    ('kinetic_temperature', [1.], ValueError, 'one step at least'),
    ('kinetic_temperature', ['a'], TypeError, 'real numbers'),
    ('kinetic_temperature', [[1., 2.], [1., 2., 3.]], ValueError,
     r'temperature has shape \(3,\), and there are 2 steps'),
    ('kinetic_temperature', [[1., 2.], 1., [1]], ValueError,
     r'steps has shape \(1,\)'),
    ('kinetic_temperature', [[1., 2.], 1., None, 0], ValueError, 'window is 0'),
    ('r_hat', [np.zeros([2, 20, 0])], ValueError, r'\[chain, draw, ...\]'),
    ('coverage', [[0.5]], TypeError, 'a dictionary by name'),
    ('pit', [[0.5]], TypeError, 'a dictionary by name'),
    ('pit', [{}], ValueError, 'one at least'),
    ('pit', [{'a': [1.5]}], ValueError, r"levels\['a'\] has to hold"),
    ('pit', [{'a': [0.5]}, 0], ValueError, 'num_bins is 0'),
    ('shifts', [{'a': [0.1]}], TypeError, 'dictionary of dictionaries'),
    ('shifts', [{}], ValueError, 'one at least'),
    ('shifts', [{'a': {'x': [0.1]}, 'b': {'y': [0.1]}}], ValueError,
     'All need the same shifts'),
    ('shifts', [{'a': {'x': []}}], ValueError, r"\['x'\] has shape \(0,\)"),
    ('shifts', [{'a': {'x': [0.1]}}, 0], ValueError, 'num_classes is 0'),
])
def test_wrong_arguments(name, arguments, error, message):
  with pytest.raises(error, match=message):
    draw(name, *arguments)


@pytest.mark.parametrize('name', [
    'coverage', 'reliability', 'risk_coverage', 'kinetic_temperature', 'pit',
    'r_hat', 'shifts'])
def test_axes_are_one(name):
  axes = matplotlib.figure.Figure().subplots(1, 2)
  with pytest.raises(TypeError, match='axes is of type ndarray'):
    getattr(diagnostics.plots, name)(axes, {})
