"""Exact samplers keep the law of their target, started from draws of it.

Each test starts 20,000 chains at independent draws of a Gaussian posterior and
moves them on in time; the states, with Gaussian velocities too, are held to
their joint normal law, which fails by chance once in a million. A wrong kernel
leaves that law at once, so short times do: the planted errors show it.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests import oracle
from tests.pdmp import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.gradients import base as gradients_base
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.pdmp import base
from tfp_sgmcmc.pdmp import bouncy
from tfp_sgmcmc.pdmp import thinning
from tfp_sgmcmc.pdmp import zigzag

pdmp = sgmcmc.pdmp
NUM_CHAINS = 20_000


class BoundedNoise(gradients_base.GradientEstimator):
  """The exact gradient plus heavy noise, of tails x^-1.1, cut at 40.

  Its standard deviation is 5.3 and its kurtosis 20, where a gradient of this
  posterior is about 1.5 in each coordinate. Theorem 1 asks for a mean of zero
  and independence between times, and thinning for a bound.
  """
  LARGEST = 40.
  has_independent_noise = True
  has_bounded_noise = True

  def check_target(self, target):
    pass

  def one_step(
      self, target, state_parts, previous_results, seed, gaussian_step=None):
    estimate, results = sgmcmc.gradients.Exact().one_step(
        target, state_parts, previous_results, seed)
    noisy = []
    for stream, g in enumerate(estimate.grads_target_log_prob):
      u = 2. * sgmcmc.random.uniform(
          compat.shape(g), seed, g.dtype, stream) - 1.
      size = (1. - tf.abs(u) * (1. - (1. + self.LARGEST)**-1.1))**(-1. / 1.1)
      noisy.append(g + self.shift + tf.sign(u) * (size - 1.))
    return estimate._replace(grads_target_log_prob=noisy), results

  shift = 0.


class ShiftedNoise(BoundedNoise):
  shift = 0.5


def noise_bound(model):
  """The exact rate and the largest noise: for both kernels."""
  gaussian = pdmp.GaussianBound(model.precision)

  def bound(start):
    theta, v = start.state_parts[0], start.velocity[0]
    gradient = tf.linalg.matvec(
        tf.constant(-model.precision, theta.dtype),
        theta - tf.constant(model.mean, theta.dtype))
    rate = gaussian.directional(start._replace(gradients=[gradient]))
    # Also what the shift adds.
    largest = (BoundedNoise.LARGEST + 1.) * tf.reduce_sum(tf.abs(v), axis=-1)
    return rate._replace(intercept=rate.intercept + largest)

  return bound


def law_p_value(
    kernel_class=sgmcmc.BouncyParticleSampler, time=1.5, dtype=np.float32,
    num_parts=1, minibatch=None, noise=None, temperature=1., bound='gaussian',
    **arguments):
  """P-value of states, and of Gaussian velocities, after some time."""
  model, log_prob = models.gaussian(dtype)
  target = log_prob
  if bound == 'gaussian':
    rate_bound = pdmp.GaussianBound(model.precision)
  elif bound == 'hessian':
    rate_bound = pdmp.HessianBound(
        1.5 * np.linalg.eigvalsh(model.precision)[-1])
  if num_parts == 2:
    target = models.in_two_parts(log_prob)
  estimator = noise
  if noise is not None:
    rate_bound = noise_bound(model)
  if minibatch is not None:
    target, estimator = model.posterior(), minibatch
    rate_bound = models.minibatch_bound(model)
  kernel = kernel_class(
      target, rate_bound, gradient_estimator=estimator,
      temperature=temperature, **arguments)
  draws = models.exact_draws(model, NUM_CHAINS, temperature)
  state = tf.constant(draws)
  if num_parts == 2:
    state = [state[:, :2], state[:, 2]]
  uniform = pdmp.UniformTime(kernel, time)
  results = uniform.bootstrap_results(state, seed=[7, 8])
  # In a graph: for so few events, XLA would compile for longer.
  state, results = tf.function(uniform.one_step, autograph=False)(
      state, results, seed=tf.constant([1, 2]))
  samples = oracle.join_parts(state, NUM_CHAINS)
  covariance = np.linalg.inv(model.precision) * temperature
  mean = model.mean
  if arguments.get('velocity') == 'gaussian':
    velocity = [
        (b - a) / base.states.expand(results.inner_results.duration, a)
        for a, b in zip(results.segment_start, results.segment_end)]
    samples = np.concatenate(
        [samples, oracle.join_parts(velocity, NUM_CHAINS)], axis=1)
    mean = np.concatenate([mean, np.zeros(3)])
    covariance = np.block(
        [[covariance, np.zeros([3, 3])], [np.zeros([3, 3]), np.eye(3)]])
  moved = np.abs(oracle.join_parts(state, NUM_CHAINS) - draws).max(axis=1)
  assert np.mean(moved > 0.05) > 0.8, 'The chains have hardly moved.'
  return oracle.law_p_value(samples, mean, covariance)


ZIG_ZAG = sgmcmc.ZigZagSampler
UNIFORM = sgmcmc.gradients.Uniform(4)


@pytest.mark.slow
@pytest.mark.weekly_after(3)
@pytest.mark.parametrize('arguments', [
    dict(velocity='sphere', num_parts=2),
    dict(velocity='gaussian', bound='hessian', refresh_fraction=0.3,
         temperature=2., dtype=np.float64),
    dict(velocity='sphere', refresh_rate=2., refresh_fraction=0.5,
         temperature=0.3),
    dict(kernel_class=ZIG_ZAG, num_parts=2),
    dict(kernel_class=ZIG_ZAG, bound='hessian', temperature=0.5,
         refresh_rate=0.5, refresh_fraction=0.4, dtype=np.float64),
    dict(velocity='gaussian', minibatch=UNIFORM, time=0.5),
    dict(minibatch=sgmcmc.gradients.Uniform(1), time=0.5),
    dict(noise=BoundedNoise(), velocity='gaussian', time=0.25),
], ids=str)
def test_law_is_kept(arguments):
  assert law_p_value(**arguments) > oracle.FALSE_ALARM_RATE


def _reflected_in_a_fresh_estimate(self, velocity, gradients, clock, rank):
  """Bounces not by the minibatch that was accepted: half another chain's."""
  noise = [tf.roll(g, 1, axis=0) - g for g in gradients]
  return base.reflect(
      velocity, [g + 0.5 * e for g, e in zip(gradients, noise)], rank)


def _another_sign(self, velocity, gradients, clock, rank):
  return ring_of_zig_zag(self, velocity, gradients, (clock + 1) % 3, rank)


ring_of_zig_zag = zigzag.ZigZagSampler._ring


def _drawn_anew(self, velocity, gradients, clock, rank):
  return [tf.roll(v, 1, axis=0) for v in velocity]


@pytest.mark.slow
@pytest.mark.weekly_after(2)
@pytest.mark.parametrize('arguments, where, name, wrong', [
    (dict(velocity='gaussian'), bouncy.BouncyParticleSampler, '_ring',
     _drawn_anew),
    (dict(velocity='gaussian', minibatch=UNIFORM, time=0.5),
     bouncy.BouncyParticleSampler, '_ring', _reflected_in_a_fresh_estimate),
    (dict(kernel_class=ZIG_ZAG), zigzag.ZigZagSampler, '_ring',
     _another_sign),
    (dict(velocity='gaussian', bound='hessian', refresh_fraction=0.3), base,
     'refresh_velocity', lambda law, v, share, rank, seed: [
         0.7 * a + 0.3 * xi for a, xi in zip(
             v, sgmcmc.random.normal_like(v, seed))]),
    (dict(velocity='sphere', temperature=2.), thinning, 'rate_ratios',
     lambda rates, upper, slack: tf.clip_by_value(
         0.8 * rates / tf.maximum(upper, 1e-9), 0., 1.)),
], ids=['bounce', 'other minibatch', 'another sign', 'refreshment', 'rate'])
def test_planted_errors_are_seen(arguments, where, name, wrong, monkeypatch):
  monkeypatch.setattr(where, name, wrong)
  assert law_p_value(**arguments) < oracle.FALSE_ALARM_RATE


@pytest.mark.slow
def test_noise_with_a_mean_is_seen():
  assert law_p_value(
      noise=ShiftedNoise(), velocity='gaussian',
      time=0.25) < oracle.FALSE_ALARM_RATE
