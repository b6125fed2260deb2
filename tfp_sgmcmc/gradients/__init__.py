"""How the gradient of a log posterior is estimated."""

from tfp_sgmcmc.gradients.base import GradientEstimate
from tfp_sgmcmc.gradients.base import GradientEstimator
from tfp_sgmcmc.gradients.control_variate import ControlVariate
from tfp_sgmcmc.gradients.exact import Exact
from tfp_sgmcmc.gradients.noisy import Noisy
from tfp_sgmcmc.gradients.stream import Stream
from tfp_sgmcmc.gradients.svrg import SVRG
from tfp_sgmcmc.gradients.uniform import Uniform

__all__ = [
    'ControlVariate',
    'Exact',
    'GradientEstimate',
    'GradientEstimator',
    'Noisy',
    'SVRG',
    'Stream',
    'Uniform',
]
