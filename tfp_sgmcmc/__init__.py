"""Stochastic-gradient MCMC for TensorFlow Probability and Keras 3.

What is sampled (`Posterior`) x how its gradient is estimated (`gradients`) x
how the particle moves (`mcmc`, `pdmp`): a sampler is a choice of one of each,
and runs in `tfp.mcmc.sample_chain`, in `sample` or in Keras' `fit`.
"""

from tfp_sgmcmc.internal import environment as _environment

_environment.check()
__version__ = _environment.version()

from tfp_sgmcmc import datasets
from tfp_sgmcmc import diagnostics
from tfp_sgmcmc import errors
from tfp_sgmcmc import firefly
from tfp_sgmcmc import gradients
from tfp_sgmcmc import keras
from tfp_sgmcmc import mcmc
from tfp_sgmcmc import pdmp
from tfp_sgmcmc import preconditioners
from tfp_sgmcmc import random
from tfp_sgmcmc.draws import Draws
from tfp_sgmcmc.errors import FireflyError
from tfp_sgmcmc.errors import NonFiniteError
from tfp_sgmcmc.errors import RateBoundError
from tfp_sgmcmc.errors import SamplingInterrupted
from tfp_sgmcmc.firefly import FireflyMonteCarlo
from tfp_sgmcmc.firefly import likelihood_bounds
from tfp_sgmcmc.mcmc import AMAGOLD
from tfp_sgmcmc.mcmc import SGHMC
from tfp_sgmcmc.mcmc import SGLD
from tfp_sgmcmc.mcmc import SGLRW
from tfp_sgmcmc.mcmc import SGNHT
from tfp_sgmcmc.mcmc import AdaptiveTime
from tfp_sgmcmc.mcmc import EnergyErrorStepSizeAdaptation
from tfp_sgmcmc.mcmc import MicrocanonicalLangevin
from tfp_sgmcmc.mcmc import ReplicaExchangeSGLD
from tfp_sgmcmc.mcmc import SelfTuning
from tfp_sgmcmc.mcmc import StochasticBarker
from tfp_sgmcmc.mcmc import TemperatureStepSizeAdaptation
from tfp_sgmcmc.pdmp import BouncyParticleSampler
from tfp_sgmcmc.pdmp import StochasticBouncyParticleSampler
from tfp_sgmcmc.pdmp import ZigZagSampler
from tfp_sgmcmc.posterior import Posterior
from tfp_sgmcmc.sampling import sample
from tfp_sgmcmc.sharding import ShardedPosterior
from tfp_sgmcmc.sharding import shard

__all__ = [
    '__version__',
    'AMAGOLD',
    'AdaptiveTime',
    'BouncyParticleSampler',
    'Draws',
    'EnergyErrorStepSizeAdaptation',
    'FireflyError',
    'FireflyMonteCarlo',
    'MicrocanonicalLangevin',
    'NonFiniteError',
    'Posterior',
    'RateBoundError',
    'ReplicaExchangeSGLD',
    'SGHMC',
    'SGLD',
    'SGLRW',
    'SGNHT',
    'SamplingInterrupted',
    'ShardedPosterior',
    'StochasticBarker',
    'StochasticBouncyParticleSampler',
    'SelfTuning',
    'TemperatureStepSizeAdaptation',
    'ZigZagSampler',
    'datasets',
    'diagnostics',
    'errors',
    'firefly',
    'gradients',
    'keras',
    'likelihood_bounds',
    'mcmc',
    'pdmp',
    'preconditioners',
    'random',
    'sample',
    'shard',
]
