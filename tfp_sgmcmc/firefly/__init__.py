"""Firefly Monte Carlo: the kernel, and the bounds of likelihoods it needs."""

from tfp_sgmcmc.firefly import likelihood_bounds
from tfp_sgmcmc.firefly.kernel import FireflyMonteCarlo
from tfp_sgmcmc.firefly.kernel import FireflyResults

__all__ = [
    'FireflyMonteCarlo',
    'FireflyResults',
    'likelihood_bounds',
]
