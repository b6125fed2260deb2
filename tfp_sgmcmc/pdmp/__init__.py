"""How the particle moves in continuous time: kernels, bounds, paths."""

from tfp_sgmcmc.pdmp.base import Event
from tfp_sgmcmc.pdmp.base import PDMPKernel
from tfp_sgmcmc.pdmp.trajectory import EventCounts
from tfp_sgmcmc.pdmp.trajectory import PathTrace
from tfp_sgmcmc.pdmp.trajectory import Trajectory
from tfp_sgmcmc.pdmp.trajectory import trace_path

__all__ = [
    'Event',
    'EventCounts',
    'PDMPKernel',
    'PathTrace',
    'Trajectory',
    'trace_path',
]
