"""Posterior sampling in Keras: one callback for `model.fit`."""

from tfp_sgmcmc.keras.calibrated import CalibratedPosterior
from tfp_sgmcmc.keras.callback import PosteriorSampling
from tfp_sgmcmc.keras.checkpoint import Directory
from tfp_sgmcmc.keras.draw_schedule import DrawSchedule
from tfp_sgmcmc.keras.draw_schedule import late_in_cycle
from tfp_sgmcmc.keras.found_step import RateByTemperature
from tfp_sgmcmc.keras.learning_coefficient import prior_around
from tfp_sgmcmc.keras.losses import DistributionLoss
from tfp_sgmcmc.keras.losses import GaussianLikelihood
from tfp_sgmcmc.keras.losses import LaplaceLikelihood
from tfp_sgmcmc.keras.losses import LikelihoodLoss
from tfp_sgmcmc.keras.losses import NegativeLogLikelihood
from tfp_sgmcmc.keras.losses import StudentTLikelihood
from tfp_sgmcmc.keras.priors import he_normal
from tfp_sgmcmc.keras.samples import PosteriorSamples
from tfp_sgmcmc.keras.samples import PredictiveEntropy
from tfp_sgmcmc.keras.samples import PredictiveVariance
from tfp_sgmcmc.keras.scale_mixture import learned_scale
from tfp_sgmcmc.keras.scales import Scales
from tfp_sgmcmc.keras.scales import draw_scales
from tfp_sgmcmc.keras.several_chains import sample_chains
from tfp_sgmcmc.keras.starts import Chains

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
    'sample_chains',
]
