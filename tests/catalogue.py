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
    takes_any_target: Whether it samples any log density, of itself.
    num_kept_numbers: How many numbers of a chain its results hold beside some
      times the state.
    scatters: Whether its step is no single kernel, since it scatters.
  """
  make: Callable[..., Any]
  num_parts: int = 2
  model: Callable[..., Any] = oracle.GaussianModel
  is_exact: bool = False
  wide: Callable[..., Any] | None = None
  num_wide: int = 30_000
  in_fit: Callable[..., Any] | None = None
  takes_any_target: bool = True
  num_kept_numbers: int = 0
  scatters: bool = False

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


def normal(x):
  """A log density that is a plain function."""
  return -tf.reduce_sum(x**2, axis=-1)


def logarithm(x):
  """Another, not finite at 0."""
  return tf.reduce_sum(tf.math.log(x), axis=-1)


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


def _adaptive_time(inner):
  def make(posterior, **arguments):
    return sgmcmc.AdaptiveTime(inner(posterior, step_size=0.05, **arguments))

  return Kernel(
      functools.partial(make, gradient_estimator=UNIFORM), in_fit=make,
      takes_any_target=False)


_PRECISION = oracle.GaussianModel().precision
_BOUND = pdmp.GaussianBound(_PRECISION)

def _adapted(posterior, **arguments):
  return sgmcmc.TemperatureStepSizeAdaptation(
      sgmcmc.SGHMC(posterior, 0.01, 1., **arguments), 100)


def _energy_adapted(posterior, **arguments):
  return sgmcmc.EnergyErrorStepSizeAdaptation(
      sgmcmc.MicrocanonicalLangevin(posterior, 0.1, **arguments), 100)


def _self_tuning(posterior, **arguments):
  return sgmcmc.SelfTuning(
      sgmcmc.SGNHT(posterior, 0.01, 0., thermostat='part', **arguments), 100)


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
    'sgnht euler': _minibatches(
        sgmcmc.SGNHT, step_size=0.1, diffusion=1., integrator='euler'),
    'sgnht by part': _minibatches(
        sgmcmc.SGNHT, step_size=0.1, diffusion=1., thermostat='part',
        noise_estimate=2.,
        preconditioner=sgmcmc.preconditioners.Diagonal(0.5)),
    'msgnht': _minibatches(
        sgmcmc.SGNHT, step_size=0.1, diffusion=1., thermostat='diagonal'),
    'matrix': _minibatches(
        sgmcmc.SGNHT, step_size=0.1, diffusion=1., thermostat='matrix',
    )._replace(num_wide=200, num_kept_numbers=3 * 3),
    'sglrw': _minibatches(sgmcmc.SGLRW, step_size=0.05),
    'replica exchange': _minibatches(
        sgmcmc.ReplicaExchangeSGLD, step_size=0.05, swap_every=2,
        temperature_ratios=(1., 3., 8.)),
    'barker': _minibatches(sgmcmc.StochasticBarker, step_size=0.05),
    'barker of known noise': _minibatches(
        sgmcmc.StochasticBarker, step_size=0.05, noise_scale=2.),
    'microcanonical': _minibatches(
        sgmcmc.MicrocanonicalLangevin, step_size=0.1),
    'pmicrocanonical': _minibatches(
        sgmcmc.MicrocanonicalLangevin, step_size=0.1, integrator='leapfrog',
        preconditioner=sgmcmc.preconditioners.GradientVariance()),
    'adapted': Kernel(
        functools.partial(_adapted, gradient_estimator=UNIFORM),
        in_fit=_adapted, takes_any_target=False),
    'energy adapted': Kernel(
        functools.partial(_energy_adapted, gradient_estimator=UNIFORM),
        in_fit=_energy_adapted, takes_any_target=False),
    'adaptive time': _adaptive_time(sgmcmc.SGLD),
    'adaptive baoab': _adaptive_time(functools.partial(
        sgmcmc.SGHMC, friction=1., integrator='baoab')),
    'amagold': _exact(functools.partial(
        sgmcmc.AMAGOLD, step_size=0.1, friction=1., num_leapfrog_steps=3,
        gradient_estimator=UNIFORM)),
    'self tuning': Kernel(
        functools.partial(_self_tuning, gradient_estimator=UNIFORM),
        in_fit=_self_tuning, takes_any_target=False),
    'firefly': _exact(
        _firefly, num_parts=1, model=functools.partial(
            families.Logistic, num=8, dim=2, scale=1.),
        wide=lambda size: _firefly(
            families.Logistic(num=30_000, dim=size).posterior()),
        num_wide=200, takes_any_target=False, num_kept_numbers=2 * 8,
        scatters=True),
    'bps': _exact(
        functools.partial(sgmcmc.BouncyParticleSampler, rate_bound=_BOUND),
        wide=_bounded(sgmcmc.BouncyParticleSampler)),
    'zig-zag': _exact(
        functools.partial(sgmcmc.ZigZagSampler, rate_bound=_BOUND),
        wide=_bounded(sgmcmc.ZigZagSampler)),
    'split zig-zag': _minibatches(pdmp.SplitZigZag, step_size=0.5),
    'sticky zig-zag': _minibatches(
        pdmp.SplitZigZag, step_size=0.5, sticky=2.),
    'split bouncy': _minibatches(
        pdmp.SplitBouncyParticle, step_size=0.5),
    'sticky bouncy': _minibatches(
        pdmp.SplitBouncyParticle, step_size=0.5, sticky=2.),
    'bps of found bounds': Kernel(sgmcmc.BouncyParticleSampler),
    'zig-zag of found bounds': Kernel(sgmcmc.ZigZagSampler),
    'sbps': _minibatches(sgmcmc.StochasticBouncyParticleSampler),
    'psbps': _minibatches(
        sgmcmc.StochasticBouncyParticleSampler,
        preconditioner=sgmcmc.preconditioners.RMSProp(normalize=True)),
    'uniform time': _exact(lambda posterior: pdmp.UniformTime(
        sgmcmc.BouncyParticleSampler(posterior, rate_bound=_BOUND),
        interval=0.3), wide=lambda size: pdmp.UniformTime(
            _bounded(sgmcmc.BouncyParticleSampler)(size), interval=0.3),
                           takes_any_target=False),
}


class Estimator(NamedTuple):
  """An estimator.

  Attributes:
    make: Callable that returns the estimator; of an anchor and of data, where
      `is_of_a_model`.
    is_of_a_model: Whether it cannot be made without an anchor, or without data.
    is_exact_alone: Whether by itself it gives the gradient, though as the base
      of another it does not.
    knows_the_past: Whether its estimate at a state is another one after another
      past.
    is_unbounded: Whether its noise is not bounded, or not known to be.
  """
  make: Callable[..., Any]
  is_of_a_model: bool = False
  is_exact_alone: bool = False
  knows_the_past: bool = False
  is_unbounded: bool = False

  def of_model(self, anchor, data):
    """The estimator, made anew, for a model with 12 examples."""
    return self.make(anchor, data) if self.is_of_a_model else self.make()


def _stream(anchor, data):
  del anchor
  return gradients.Stream(tf.data.Dataset.from_tensor_slices(data).batch(4))


ESTIMATORS = {
    'exact': Estimator(gradients.Exact),
    'uniform': Estimator(lambda: UNIFORM),
    'uniform with replacement': Estimator(
        lambda: gradients.Uniform(4, replacement=True)),
    'shared minibatch': Estimator(
        lambda: gradients.Uniform(4, share_minibatch=True)),
    'stream': Estimator(
        _stream, is_of_a_model=True, knows_the_past=True, is_unbounded=True),
    'stratified': Estimator(
        lambda: gradients.Stratified(4, np.arange(12) % 3)),
    'control variate': Estimator(
        lambda anchor, data: gradients.ControlVariate(4, anchor),
        is_of_a_model=True),
    'second order': Estimator(
        lambda anchor, data: gradients.ControlVariate(4, anchor, order=2),
        is_of_a_model=True, is_unbounded=True),
    'preferential': Estimator(
        lambda anchor, data: gradients.ControlVariate(
            4, anchor, probabilities=1. + np.arange(12) % 3),
        is_of_a_model=True, is_unbounded=True),
    'svrg': Estimator(
        lambda: gradients.SVRG(4, steps_per_anchor=3), knows_the_past=True),
    'saga': Estimator(lambda: gradients.SAGA(4), knows_the_past=True),
    'ewsg': Estimator(
        lambda: gradients.ExponentiallyWeighted(3, num_index_steps=2)),
    'ewsg of svrg': Estimator(lambda: gradients.ExponentiallyWeighted(
        base=gradients.SVRG(4, steps_per_anchor=3))),
    'ewsg of deal': Estimator(lambda: gradients.ExponentiallyWeighted(
        base=gradients.Reshuffled())),
    'noisy': Estimator(
        lambda: gradients.GaussianNoise(0.5, UNIFORM), is_unbounded=True),
    # Alone it deals all rows into one set.
    'deal': Estimator(gradients.Reshuffled, is_exact_alone=True),
}
# Other settings of a kernel or an estimator above, which slow tests leave to
# each week.
VARIANTS = (
    'psgld', 'explicit euler', 'sgnht euler', 'sgnht by part', 'msgnht',
    'matrix', 'barker of known noise', 'pmicrocanonical', 'adaptive baoab',
    'sticky zig-zag', 'sticky bouncy', 'bps of found bounds',
    'zig-zag of found bounds', 'psbps', 'uniform with replacement',
    'shared minibatch', 'second order', 'ewsg of svrg', 'ewsg of deal')
