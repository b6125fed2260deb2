"""All kernels and all estimators: a row each, for the tests all have to pass.

A new kernel or estimator is one more row here; `tests/test_contract.py` does
the rest. What is its own, its law above all, is tested in a file of its own.
"""

from collections.abc import Callable
import functools
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tests import families
from tests import oracle
import tfp_sgmcmc as sgmcmc

gradients, pdmp = sgmcmc.gradients, sgmcmc.pdmp
UNIFORM = gradients.Uniform(4)


class Kernel(NamedTuple):
  """A kernel.

  Attributes:
    make: Callable of a posterior; returns the kernel.
    num_parts: How many parts a state may have that is a list.
    model: What has `posterior()`: by default the Gaussian with 3 coordinates.
    is_exact: Whether its law has no bias.
    wide: Callable that returns the posterior and the kernel of a state of
      `num_wide` coordinates; by default `make` of a Gaussian.
    num_wide: So many that a literal of one number each would be seen.
    in_fit: As `make`, with the batches that come from Keras; None where `fit`
      does not take it.
  """
  make: Callable[..., Any]
  num_parts: int = 2
  model: Callable[..., Any] = oracle.GaussianModel
  is_exact: bool = False
  wide: Callable[..., Any] | None = None
  num_wide: int = 30_000
  in_fit: Callable[..., Any] | None = None

  def posterior(self, dtype=np.float32):
    return self.model(dtype=dtype).posterior()

  def wide_kernel(self):
    """The kernel of a state of `num_wide` coordinates."""
    if self.wide is not None:
      return self.wide(self.num_wide)
    return self.make(wide_posterior(self.num_wide))

  def state(self, chains=(), num_parts=1, dtype=np.float32):
    """A state not far from the mode, other numbers in each chain."""
    size = 3 if self.model is oracle.GaussianModel else 2
    count = int(np.prod([*chains, size]))
    values = np.linspace(-0.4, 0.6, count).reshape([*chains, size])
    if num_parts == 1:
      return tf.constant(values, dtype)
    if self.num_parts == 1:
      return [tf.constant(values, dtype)]
    return [tf.constant(values[..., :2], dtype),
            tf.constant(values[..., 2], dtype)]


def wide_posterior(size):
  """A Gaussian of independent coordinates, with 12 examples."""
  def log_prob(theta, mean):
    return -0.5 * tf.reduce_sum(tf.square(theta - mean), axis=-1)

  return sgmcmc.Posterior(
      lambda theta: log_prob(theta, 0.),
      lambda theta, x: log_prob(theta[..., tf.newaxis, :], x),
      np.zeros([12, size], np.float32))


def _minibatches(kernel_class, **arguments):
  in_fit = functools.partial(kernel_class, **arguments)
  return Kernel(
      functools.partial(in_fit, gradient_estimator=UNIFORM), in_fit=in_fit)


def _exact(make, **arguments):
  return Kernel(make, is_exact=True, **arguments)


def _firefly(posterior):
  return sgmcmc.FireflyMonteCarlo(
      posterior, sgmcmc.likelihood_bounds.Logistic(), step_size=0.05,
      capacity=8)


def _bounded(kernel_class):
  """The kernel of a wide posterior, with a bound that has no matrix."""
  return lambda size: kernel_class(
      wide_posterior(size), rate_bound=lambda start: pdmp.AffineRate(1e4))


_PRECISION = oracle.GaussianModel().precision
_BOUND = pdmp.GaussianBound(_PRECISION)

KERNELS = {
    'sgld': _minibatches(sgmcmc.SGLD, step_size=0.05),
    'psgld': _minibatches(
        sgmcmc.SGLD, step_size=0.05,
        preconditioner=sgmcmc.preconditioners.RMSProp()),
    'sghmc': _minibatches(sgmcmc.SGHMC, step_size=0.1, friction=1.),
    'baoab': _minibatches(
        sgmcmc.SGHMC, step_size=0.1, friction=1., integrator='baoab'),
    'explicit euler': _minibatches(
        sgmcmc.SGHMC, step_size=0.1, friction=2., integrator='explicit_euler'),
    'sgnht': _minibatches(sgmcmc.SGNHT, step_size=0.1, diffusion=1.),
    'msgnht': _minibatches(
        sgmcmc.SGNHT, step_size=0.1, diffusion=1., thermostat='diagonal'),
    'matrix': _minibatches(
        sgmcmc.SGNHT, step_size=0.1, diffusion=1., thermostat='matrix',
    )._replace(num_wide=200),
    'adapted': Kernel(lambda posterior: sgmcmc.TemperatureStepSizeAdaptation(
        sgmcmc.SGHMC(posterior, 0.01, 1., gradient_estimator=UNIFORM), 100)),
    'firefly': _exact(
        _firefly, num_parts=1, model=functools.partial(
            families.Logistic, num=8, dim=2, scale=1.),
        wide=lambda size: _firefly(
            families.Logistic(num=30_000, dim=size).posterior()),
        num_wide=200),
    'bps': _exact(
        functools.partial(sgmcmc.BouncyParticleSampler, rate_bound=_BOUND),
        wide=_bounded(sgmcmc.BouncyParticleSampler)),
    'zig-zag': _exact(
        functools.partial(sgmcmc.ZigZagSampler, rate_bound=_BOUND),
        wide=_bounded(sgmcmc.ZigZagSampler)),
    'sbps': _minibatches(sgmcmc.StochasticBouncyParticleSampler),
    'psbps': _minibatches(
        sgmcmc.StochasticBouncyParticleSampler,
        preconditioner=sgmcmc.preconditioners.RMSProp(normalize=True)),
    'uniform time': _exact(lambda posterior: pdmp.UniformTime(
        sgmcmc.BouncyParticleSampler(posterior, rate_bound=_BOUND),
        interval=0.3), wide=lambda size: pdmp.UniformTime(
            _bounded(sgmcmc.BouncyParticleSampler)(size), interval=0.3)),
}


def _anchor(dtype=np.float32):
  return tf.constant([0.1, 0.2, -0.1], dtype)


def _stream():
  return gradients.Stream(tf.data.Dataset.from_tensor_slices(
      oracle.GaussianModel().data).batch(4))


# Callables, since a stream has a position.
ESTIMATORS = {
    'exact': gradients.Exact,
    'uniform': lambda: UNIFORM,
    'uniform with replacement': lambda: gradients.Uniform(4, replacement=True),
    'shared minibatch': lambda: gradients.Uniform(4, share_minibatch=True),
    'stream': _stream,
    'stratified': lambda: gradients.Stratified(4, np.arange(12) % 3),
    'control variate': lambda: gradients.ControlVariate(4, _anchor()),
    'svrg': lambda: gradients.SVRG(4, refresh_every=3),
    'saga': lambda: gradients.SAGA(4),
    'ewsg': lambda: gradients.ExponentiallyWeighted(3, num_index_steps=2),
    'ewsg of svrg': lambda: gradients.ExponentiallyWeighted(
        base=gradients.SVRG(4, refresh_every=3)),
    'ewsg of deal': lambda: gradients.ExponentiallyWeighted(
        base=gradients.Deal()),
    'noisy': lambda: gradients.Noisy(0.5, UNIFORM),
    'deal': gradients.Deal,
}
