"""How the particle moves in discrete time: one kernel a file."""

from tfp_sgmcmc.mcmc.adaptive_time import AdaptiveTime
from tfp_sgmcmc.mcmc.adaptive_time import AdaptiveTimeResults
from tfp_sgmcmc.mcmc.amagold import AMAGOLD
from tfp_sgmcmc.mcmc.amagold import AMAGOLDResults
from tfp_sgmcmc.mcmc.barker import StochasticBarker
from tfp_sgmcmc.mcmc.barker import StochasticBarkerResults
from tfp_sgmcmc.mcmc.base import Excess
from tfp_sgmcmc.mcmc.base import LangevinKernel
from tfp_sgmcmc.mcmc.energy_adaptation import EnergyErrorStepSizeAdaptation
from tfp_sgmcmc.mcmc.energy_adaptation import (
    EnergyErrorStepSizeAdaptationResults,
)
from tfp_sgmcmc.mcmc.microcanonical import MicrocanonicalLangevin
from tfp_sgmcmc.mcmc.microcanonical import MicrocanonicalLangevinResults
from tfp_sgmcmc.mcmc.replica_exchange import ReplicaExchangeSGLD
from tfp_sgmcmc.mcmc.replica_exchange import ReplicaExchangeSGLDResults
from tfp_sgmcmc.mcmc.self_tuning import SelfTuning
from tfp_sgmcmc.mcmc.self_tuning import SelfTuningResults
from tfp_sgmcmc.mcmc.sghmc import SGHMC
from tfp_sgmcmc.mcmc.sghmc import SGHMCResults
from tfp_sgmcmc.mcmc.sgld import SGLD
from tfp_sgmcmc.mcmc.sgld import SGLDResults
from tfp_sgmcmc.mcmc.sglrw import SGLRW
from tfp_sgmcmc.mcmc.sglrw import SGLRWResults
from tfp_sgmcmc.mcmc.sgnht import SGNHT
from tfp_sgmcmc.mcmc.sgnht import SGNHTResults
from tfp_sgmcmc.mcmc.temperature_adaptation import TemperatureStepSizeAdaptation
from tfp_sgmcmc.mcmc.temperature_adaptation import (
    TemperatureStepSizeAdaptationResults,
)

__all__ = [
    'AMAGOLD',
    'AMAGOLDResults',
    'AdaptiveTime',
    'AdaptiveTimeResults',
    'EnergyErrorStepSizeAdaptation',
    'EnergyErrorStepSizeAdaptationResults',
    'Excess',
    'LangevinKernel',
    'MicrocanonicalLangevin',
    'MicrocanonicalLangevinResults',
    'ReplicaExchangeSGLD',
    'ReplicaExchangeSGLDResults',
    'SGHMC',
    'SGHMCResults',
    'SGLD',
    'SGLDResults',
    'SGLRW',
    'SGLRWResults',
    'SGNHT',
    'SGNHTResults',
    'SelfTuning',
    'SelfTuningResults',
    'StochasticBarker',
    'StochasticBarkerResults',
    'TemperatureStepSizeAdaptation',
    'TemperatureStepSizeAdaptationResults',
]
