"""How the gradient of a log posterior is estimated."""

from tfp_sgmcmc.gradients.anchored import Anchor
from tfp_sgmcmc.gradients.anchored import AnchoredEstimator
from tfp_sgmcmc.gradients.base import EstimatorResults
from tfp_sgmcmc.gradients.base import Finding
from tfp_sgmcmc.gradients.base import GaussianStep
from tfp_sgmcmc.gradients.base import GradientEstimate
from tfp_sgmcmc.gradients.base import GradientEstimator
from tfp_sgmcmc.gradients.base import chains_of as chains_of
from tfp_sgmcmc.gradients.base import check_estimator
from tfp_sgmcmc.gradients.base import count as count
from tfp_sgmcmc.gradients.base import no_gradients as no_gradients
from tfp_sgmcmc.gradients.control_variate import ControlVariate
from tfp_sgmcmc.gradients.control_variate import ControlVariateResults
from tfp_sgmcmc.gradients.exact import Exact
from tfp_sgmcmc.gradients.exponentially_weighted import ExponentiallyWeighted
from tfp_sgmcmc.gradients.exponentially_weighted import (
    ExponentiallyWeightedResults,
)
from tfp_sgmcmc.gradients.gaussian_noise import GaussianNoise
from tfp_sgmcmc.gradients.index_sets import IndexSetEstimator
from tfp_sgmcmc.gradients.index_sets import IndexSets
from tfp_sgmcmc.gradients.minibatch import MinibatchEstimator
from tfp_sgmcmc.gradients.preferential import preferential_probabilities
from tfp_sgmcmc.gradients.reshuffled import Reshuffled
from tfp_sgmcmc.gradients.saga import SAGA
from tfp_sgmcmc.gradients.saga import SAGAResults
from tfp_sgmcmc.gradients.stratified import Stratified
from tfp_sgmcmc.gradients.stratified import kmeans_strata
from tfp_sgmcmc.gradients.stream import Stream
from tfp_sgmcmc.gradients.svrg import SVRG
from tfp_sgmcmc.gradients.svrg import SVRGResults
from tfp_sgmcmc.gradients.uniform import Uniform

__all__ = [
    'Anchor',
    'AnchoredEstimator',
    'ControlVariate',
    'ControlVariateResults',
    'Reshuffled',
    'EstimatorResults',
    'Exact',
    'ExponentiallyWeighted',
    'ExponentiallyWeightedResults',
    'Finding',
    'GaussianStep',
    'GradientEstimate',
    'GradientEstimator',
    'IndexSetEstimator',
    'IndexSets',
    'MinibatchEstimator',
    'GaussianNoise',
    'SAGA',
    'SAGAResults',
    'SVRG',
    'SVRGResults',
    'Stratified',
    'Stream',
    'Uniform',
    'check_estimator',
    'kmeans_strata',
    'preferential_probabilities',
]
