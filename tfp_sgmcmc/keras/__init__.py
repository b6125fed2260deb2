"""Posterior sampling in Keras: one callback for `model.fit`."""

from tfp_sgmcmc.keras.callback import PosteriorSampling
from tfp_sgmcmc.keras.draws.averages import PredictiveEntropy
from tfp_sgmcmc.keras.draws.averages import PredictiveVariance
from tfp_sgmcmc.keras.draws.calibrated import CalibratedPosterior
from tfp_sgmcmc.keras.draws.draw_schedule import DrawSchedule
from tfp_sgmcmc.keras.draws.draw_schedule import late_in_cycle
from tfp_sgmcmc.keras.draws.learning_coefficient import prior_around
from tfp_sgmcmc.keras.draws.samples import PosteriorSamples
from tfp_sgmcmc.keras.draws.scales import Scales
from tfp_sgmcmc.keras.draws.scales import draw_scales
from tfp_sgmcmc.keras.fitting.checkpoint import Directory
from tfp_sgmcmc.keras.fitting.starts import Chains
from tfp_sgmcmc.keras.heat.found_step import RateByTemperature
from tfp_sgmcmc.keras.model.losses import DistributionLoss
from tfp_sgmcmc.keras.model.losses import GaussianLikelihood
from tfp_sgmcmc.keras.model.losses import LaplaceLikelihood
from tfp_sgmcmc.keras.model.losses import LikelihoodLoss
from tfp_sgmcmc.keras.model.losses import NegativeLogLikelihood
from tfp_sgmcmc.keras.model.losses import StudentTLikelihood
from tfp_sgmcmc.keras.model.priors import he_normal
from tfp_sgmcmc.keras.model.scale_mixture import learned_scale
from tfp_sgmcmc.keras.several_chains import fit_chains

__all__ = [
    'CalibratedPosterior',
    'Chains',
    'Directory',
    'DistributionLoss',
    'DrawSchedule',
    'GaussianLikelihood',
    'LaplaceLikelihood',
    'LikelihoodLoss',
    'NegativeLogLikelihood',
    'PosteriorSamples',
    'PosteriorSampling',
    'PredictiveEntropy',
    'PredictiveVariance',
    'RateByTemperature',
    'Scales',
    'StudentTLikelihood',
    'draw_scales',
    'he_normal',
    'late_in_cycle',
    'learned_scale',
    'prior_around',
    'fit_chains',
]
