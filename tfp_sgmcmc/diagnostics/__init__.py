"""How good a run is, and how good the predictions made with its draws.

Pictures of it are in `diagnostics.plots`, which needs matplotlib (the extra
`plots`) and is imported when it is first used.
"""

import importlib
from typing import Any

from tfp_sgmcmc.diagnostics.calibration import ReliabilityCurve
from tfp_sgmcmc.diagnostics.calibration import RiskCoverageCurve
from tfp_sgmcmc.diagnostics.calibration import accuracy
from tfp_sgmcmc.diagnostics.calibration import brier_score
from tfp_sgmcmc.diagnostics.calibration import expected_calibration_error
from tfp_sgmcmc.diagnostics.calibration import negative_log_likelihood
from tfp_sgmcmc.diagnostics.calibration import reliability_curve
from tfp_sgmcmc.diagnostics.calibration import risk_coverage_curve
from tfp_sgmcmc.diagnostics.forecasts import coverage
from tfp_sgmcmc.diagnostics.forecasts import crps
from tfp_sgmcmc.diagnostics.forecasts import interval_score
from tfp_sgmcmc.diagnostics.forecasts import pit
from tfp_sgmcmc.diagnostics.learning_coefficient import LearningCoefficient
from tfp_sgmcmc.diagnostics.learning_coefficient import (
    local_learning_coefficient,
)
from tfp_sgmcmc.diagnostics.learning_coefficient import localized
from tfp_sgmcmc.diagnostics.stein import SteinDiscrepancy
from tfp_sgmcmc.diagnostics.stein import kernel_stein_discrepancy
from tfp_sgmcmc.diagnostics.step_sizes import compare_step_sizes
from tfp_sgmcmc.diagnostics.summaries import summary
from tfp_sgmcmc.diagnostics.temperatures import EnergyTrace
from tfp_sgmcmc.diagnostics.temperatures import trace_energies
from tfp_sgmcmc.diagnostics.verdicts import Row
from tfp_sgmcmc.diagnostics.verdicts import Summary

__all__ = [
    'EnergyTrace',
    'LearningCoefficient',
    'ReliabilityCurve',
    'RiskCoverageCurve',
    'Row',
    'SteinDiscrepancy',
    'Summary',
    'accuracy',
    'brier_score',
    'compare_step_sizes',
    'coverage',
    'crps',
    'expected_calibration_error',
    'interval_score',
    'kernel_stein_discrepancy',
    'local_learning_coefficient',
    'localized',
    'negative_log_likelihood',
    'pit',
    'reliability_curve',
    'risk_coverage_curve',
    'summary',
    'trace_energies',
]


def __getattr__(name: str) -> Any:
  """Imports `plots`, which needs matplotlib, where it is asked for."""
  if name == 'plots':
    return importlib.import_module(f'{__name__}.plots')
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
