"""How the particle moves in continuous time: kernels, bounds, paths."""

from tfp_sgmcmc.pdmp.base import Event
from tfp_sgmcmc.pdmp.base import PDMPKernel
from tfp_sgmcmc.pdmp.bouncy import BouncyParticleSampler
from tfp_sgmcmc.pdmp.rate_bounds import AffineRate
from tfp_sgmcmc.pdmp.rate_bounds import GaussianBound
from tfp_sgmcmc.pdmp.rate_bounds import HessianBound
from tfp_sgmcmc.pdmp.rate_bounds import LogisticRegressionBound
from tfp_sgmcmc.pdmp.rate_bounds import RateBound
from tfp_sgmcmc.pdmp.rate_bounds import SegmentStart
from tfp_sgmcmc.pdmp.splitting import SplitBouncyParticle
from tfp_sgmcmc.pdmp.splitting import SplitResults
from tfp_sgmcmc.pdmp.splitting import SplitZigZag
from tfp_sgmcmc.pdmp.stochastic_bouncy import StochasticBouncyParticleSampler
from tfp_sgmcmc.pdmp.stochastic_bouncy import StochasticBouncyResults
from tfp_sgmcmc.pdmp.thinning import ThinnedKernel
from tfp_sgmcmc.pdmp.thinning import ThinnedResults
from tfp_sgmcmc.pdmp.trajectory import EventCounts
from tfp_sgmcmc.pdmp.trajectory import PathTrace
from tfp_sgmcmc.pdmp.trajectory import Trajectory
from tfp_sgmcmc.pdmp.trajectory import trace_path
from tfp_sgmcmc.pdmp.uniform_time import UniformTime
from tfp_sgmcmc.pdmp.uniform_time import UniformTimeResults
from tfp_sgmcmc.pdmp.zigzag import ZigZagSampler

__all__ = [
    'AffineRate',
    'BouncyParticleSampler',
    'Event',
    'EventCounts',
    'GaussianBound',
    'HessianBound',
    'LogisticRegressionBound',
    'PDMPKernel',
    'PathTrace',
    'RateBound',
    'SegmentStart',
    'SplitBouncyParticle',
    'SplitResults',
    'SplitZigZag',
    'StochasticBouncyParticleSampler',
    'StochasticBouncyResults',
    'ThinnedKernel',
    'ThinnedResults',
    'Trajectory',
    'UniformTime',
    'UniformTimeResults',
    'ZigZagSampler',
    'trace_path',
]
