"""Sums over large arrays under XLA on a CPU, which are made of products."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import states


def log_density(part):
  """Of a normal, and of another whose gradient is no line."""
  return -states.half_square(part) + states.sum_event(
      tf.sin(part), part.shape.rank - 2)


def derivatives(part):
  """The log density, its gradient, and the curvature along the part."""
  with tf.GradientTape() as outer:
    outer.watch(part)
    with tf.GradientTape() as inner:
      inner.watch(part)
      value = log_density(part)
    gradient = inner.gradient(value, part)
  return value, gradient, outer.gradient(gradient, part, part)


def array(*shape):
  rng = np.random.default_rng(0)
  return rng.normal(size=shape).astype(np.float32)


def hlo(fn, part):
  return tf.function(fn, jit_compile=True).experimental_get_compiler_ir(part)(
      stage='hlo')


@pytest.mark.parametrize('shape', [(784, 100), (40, 500), (30, 30), (3, 3)])
def test_sums_and_their_derivatives(shape):
  x = array(*shape)
  value, gradient, curvature = tf.function(derivatives, jit_compile=True)(
      tf.constant(x))
  x = x.astype(np.float64)
  # Rounding adds up to 2^-24 of each sum's terms, times the root of a row.
  np.testing.assert_allclose(
      value, np.sum(np.sin(x)) - np.sum(x**2) / 2., rtol=1e-6,
      atol=1e-6 * np.sum(np.abs(np.sin(x))))
  np.testing.assert_allclose(gradient, np.cos(x) - x, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(
      curvature, -x - np.sin(x) * x, rtol=1e-5, atol=1e-6)


def test_chains_are_summed_up_apart():
  x = array(3, 80, 90)
  total = tf.function(
      lambda part: states.sum_event(part, 1), jit_compile=True)(x)
  np.testing.assert_allclose(
      total, np.sum(x, axis=(1, 2), dtype=np.float64), rtol=1e-5, atol=1e-3)


def test_chains_side_by_side():
  x = array(3, 200, 100)
  together = tf.function(
      lambda parts: compat.vectorized_map(derivatives, parts),
      jit_compile=True)(x)
  for chain, (value, gradient, curvature) in zip(x, zip(*together)):
    one = tf.function(derivatives, jit_compile=True)(tf.constant(chain))
    np.testing.assert_allclose(value, one[0], rtol=1e-5)
    np.testing.assert_allclose(gradient, one[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(curvature, one[2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('sees', ['sees_tpus', 'sees_accelerators'])
def test_no_products_where_they_would_be_rounded(monkeypatch, sees):
  x = array(784, 100)
  assert ' dot(' in hlo(log_density, x)
  assert ' dot(' not in hlo(log_density, array(30, 30))  # A kernel's part.
  monkeypatch.setattr(compat, sees, lambda: True)
  assert ' dot(' not in hlo(lambda part: log_density(part), x)
