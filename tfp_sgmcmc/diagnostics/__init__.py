"""How good the predictions are that are made with the draws.

Pictures of it are in `diagnostics.plots`, which needs matplotlib (the extra
`plots`) and is imported by name: `from tfp_sgmcmc.diagnostics import plots`.
"""

from tfp_sgmcmc.diagnostics.calibration import ReliabilityCurve
from tfp_sgmcmc.diagnostics.calibration import accuracy
from tfp_sgmcmc.diagnostics.calibration import brier_score
from tfp_sgmcmc.diagnostics.calibration import expected_calibration_error
from tfp_sgmcmc.diagnostics.calibration import negative_log_likelihood
from tfp_sgmcmc.diagnostics.calibration import reliability_curve

__all__ = [
    'ReliabilityCurve',
    'accuracy',
    'brier_score',
    'expected_calibration_error',
    'negative_log_likelihood',
    'reliability_curve',
]
