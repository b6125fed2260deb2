"""Real data that ship with the package."""

from tfp_sgmcmc.datasets.digits import Digits
from tfp_sgmcmc.datasets.digits import load_digits

__all__ = [
    'Digits',
    'load_digits',
]
