"""Preconditioners against their formulas in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc


@pytest.mark.parametrize('decay', [0.9, 1.])
def test_gradient_variance_is_that_of_the_formulas(decay):
  """Of two chains with two parts; with a decay of 1 the start stays."""
  rng = np.random.default_rng(0)
  scales = np.array([1e-4, 0.1, 1., 3.])
  gradients = rng.normal(1., scales, size=[30, 2, 4])
  preconditioner = sgmcmc.preconditioners.GradientVariance(decay)

  def parts(g):
    return [tf.constant(g[:, :3]), tf.constant(g[:, 3:])]

  results = preconditioner.bootstrap_results(parts(gradients[0]))
  m, v = gradients[0], np.zeros([2, 4])
  for g in gradients[1:]:
    results = preconditioner.one_step(parts(g), results)
    v = decay * v + (1. - decay) * (g - m)**2
    m = decay * m + (1. - decay) * g
  w = decay**29
  square = np.ones([2, 4]) if decay == 1. else w + (1. - w) * v / np.mean(
      v, axis=1, keepdims=True)
  np.testing.assert_allclose(
      np.concatenate(preconditioner.diagonal(results, 1), axis=1),
      1. / np.maximum(square, 1e-4), rtol=1e-10)


def test_the_floor_of_gradient_variance():
  """A coordinate without noise gets steps of floor^-2, and no longer ones."""
  preconditioner = sgmcmc.preconditioners.GradientVariance(0., floor=0.1)
  results = preconditioner.bootstrap_results([tf.zeros([2])])
  assert preconditioner.diagonal(results)[0].numpy().tolist() == [1., 1.]
  results = preconditioner.one_step([tf.constant([0., 2.])], results)
  np.testing.assert_allclose(preconditioner.diagonal(results)[0], [100., 0.5])


@pytest.mark.parametrize('arguments, message', [
    (dict(decay=1.5), 'decay is 1.5'), (dict(floor=0.), 'floor is 0'),
    (dict(floor=2.), 'floor is 2')])
def test_refusals_of_gradient_variance(arguments, message):
  with pytest.raises(ValueError, match=message):
    sgmcmc.preconditioners.GradientVariance(**arguments)
