"""EnergyErrorStepSizeAdaptation: the error that it is told, and a bad start."""

import numpy as np
import pytest
import tensorflow as tf

from tests import oracle
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.mcmc import energy_adaptation

SCALES = np.float32([1.] * 10 + [2.] * 10)


def normal(x):
  return -0.5 * tf.reduce_sum(tf.square(x / SCALES), axis=-1)


def quartic(x):
  return -tf.reduce_sum(tf.square(tf.square(x)), axis=-1)


def sample(target, step_size, number, wanted, num_results=200):
  kernel = sgmcmc.EnergyErrorStepSizeAdaptation(
      sgmcmc.MicrocanonicalLangevin(target, step_size, 5.), number,
      target=(wanted, wanted))
  return sgmcmc.sample(
      kernel, num_results, tf.random.stateless_normal([100, 20], [0, 1]),
      num_burnin_steps=number, seed=1, progress_bar=False,
      trace_fn=lambda _, results: (
          results.step_size, results.inner_results.energy_error))


@pytest.mark.slow
@pytest.mark.parametrize('wanted', [
    1e-3, pytest.param(0.1, marks=pytest.mark.weekly)])
def test_the_error_comes_to_what_was_wanted(wanted):
  """Of 20,000 steps; a step size longer by a sixth would have 2.5 as much.

  The mean is a weighted one, and h still moves by some 5% from step to step.
  """
  step_size, error = sample(normal, 0.01, 600, wanted).trace
  assert np.ptp(step_size) == 0.
  ratio = np.mean(np.square(error)) / len(SCALES) / wanted
  assert 1. / 1.6 < ratio < 1.6, ratio
  longer = sgmcmc.sample(
      sgmcmc.MicrocanonicalLangevin(normal, 7. / 6. * step_size[-1], 5.), 200,
      tf.random.stateless_normal([100, 20], [0, 1]), num_burnin_steps=300,
      trace_fn=lambda _, results: results.energy_error, seed=2,
      progress_bar=False)
  planted = np.mean(np.square(longer.trace)) / len(SCALES) / wanted
  assert planted > 1.6, planted


@pytest.mark.weekly
@pytest.mark.slow
def test_a_start_that_is_far_too_long_is_halved():
  found = [
      sample(quartic, start, 600, 0.01, 5) for start in (0.01, 1e12)]
  (usual, _), (other, _) = (draws.trace for draws in found)
  assert 0.8 < other[-1] / usual[-1] < 1.25, (usual[-1], other[-1])
  assert np.all(np.isfinite(found[1].states))


def adapted(inner, number=1200):
  kernel = sgmcmc.EnergyErrorStepSizeAdaptation(
      inner, number, target=(5e-4, 5e-4))
  return sgmcmc.sample(
      kernel, 1, tf.random.stateless_normal([50, 20], [0, 1]),
      num_burnin_steps=number, seed=1, progress_bar=False).kernel_results


@pytest.mark.slow
@pytest.mark.parametrize('diagonal', [
    pytest.param(None, marks=pytest.mark.weekly), 4.])
def test_the_decoherence_length_is_the_size_of_the_posterior(diagonal):
  """sqrt(10 + 40) = 7.07; half of it in units of a scale of 2.

  Of 50 chains and the 600 steps of the last window, some hundred times L: the
  mean of sd is known to about 1%, and 2% too small by what a window misses.
  """
  preconditioner = None
  if diagonal is not None:
    preconditioner = sgmcmc.preconditioners.Diagonal(diagonal)
  found = adapted(sgmcmc.MicrocanonicalLangevin(
      normal, 0.01, preconditioner=preconditioner))
  wanted = np.sqrt(50. / (diagonal or 1.))
  assert 0.92 < found.decoherence_length / wanted < 1.04


@pytest.mark.slow
def test_the_decoherence_length_is_that_of_all_chains_together():
  """Of chains in two wells, 30 from their middle, which none leaves.

  Each well has 20 coordinates of variance 1; along the chains alone L would be
  sqrt(20) = 4.5.
  """
  def wells(x):
    return -0.5 * (tf.square(tf.abs(x[..., 0]) - 30.) + tf.reduce_sum(
        tf.square(x[..., 1:]), axis=-1))

  kernel = sgmcmc.EnergyErrorStepSizeAdaptation(
      sgmcmc.MicrocanonicalLangevin(wells, 0.1), 400, target=(5e-4, 5e-4))
  start = np.random.default_rng(0).normal(size=[50, 20]).astype(np.float32)
  start[:, 0] += np.where(np.arange(50) % 2, 30., -30.)
  lengths = sgmcmc.sample(
      kernel, 400, start, seed=1, progress_bar=False,
      trace_fn=lambda _, results: results.decoherence_length).trace
  np.testing.assert_allclose(lengths[:99], np.sqrt(20.), rtol=1e-6)
  assert 0.995 < lengths[-1] / np.sqrt(900. + 20.) < 1.005


def test_moments_are_those_of_a_window():
  x = np.random.default_rng(0).normal(3., 1., size=[7, 4])
  path = energy_adaptation.Moments([tf.ones([4], tf.float64)],
                                   [tf.ones([4], tf.float64)])
  for k, row in enumerate(x):
    path = energy_adaptation.with_state(path, [tf.constant(row)], k + 1.)
  np.testing.assert_allclose(path.mean[0], np.mean(x, axis=0))
  np.testing.assert_allclose(path.square[0], 7. * np.var(x, axis=0))


@pytest.mark.parametrize('arguments', [
    dict(decoherence_length=5.),
    dict(gradient_estimator=sgmcmc.gradients.Uniform(4))])
def test_a_length_that_is_given_or_of_minibatches_stays(arguments):
  inner = sgmcmc.MicrocanonicalLangevin(
      oracle.GaussianModel().posterior(), 0.01, **arguments)
  kernel = sgmcmc.EnergyErrorStepSizeAdaptation(inner, 9)
  results = kernel.bootstrap_results(tf.zeros([4, 3]))
  assert results.path == () and results.decoherence_length == ()
  assert kernel.adapted_kernel(results).parameters['decoherence_length'] == (
      arguments.get('decoherence_length'))


def test_after_the_adaptation_it_is_the_inner_kernel():
  kernel = sgmcmc.EnergyErrorStepSizeAdaptation(
      sgmcmc.MicrocanonicalLangevin(normal, 0.01), 3)
  state = tf.ones([4, 20])
  results = kernel.bootstrap_results(state, seed=[0, 0])
  for k in range(3):
    state, results = kernel.one_step(state, results, seed=[0, k])
  assert results.step_size > 0.011
  inner = kernel.adapted_kernel(results)
  first, h = results.inner_results, results.step_size
  for k in range(3, 6):
    state, results = kernel.one_step(state, results, seed=[0, k])
  assert results.step_size == h
  assert inner.parameters['step_size'] == h
  assert inner.parameters['decoherence_length'] == results.decoherence_length
  assert int(results.step) == int(first.step) + 3


@pytest.mark.parametrize('make, error, message', [
    (lambda inner: sgmcmc.EnergyErrorStepSizeAdaptation(
        sgmcmc.SGLD(normal, 0.1), 10), TypeError, 'MicrocanonicalLangevin'),
    (lambda inner: sgmcmc.EnergyErrorStepSizeAdaptation(inner, -1),
     ValueError, 'num_adaptation_steps'),
    (lambda inner: sgmcmc.EnergyErrorStepSizeAdaptation(inner, 9, target=0.1),
     ValueError, 'two numbers'),
    (lambda inner: sgmcmc.EnergyErrorStepSizeAdaptation(
        inner, 9, target=(0.1, 0.)), ValueError, 'target'),
    (lambda inner: sgmcmc.EnergyErrorStepSizeAdaptation(
        inner.copy(step_size=lambda step: 0.1), 9), ValueError, 'schedule'),
])
def test_refusals(make, error, message):
  with pytest.raises(error, match=message):
    make(sgmcmc.MicrocanonicalLangevin(normal, 0.1))
