"""Likelihood bounds: below, touching, and their sum over all examples."""

import numpy as np
import pytest
import tensorflow as tf

from tests import families
import tfp_sgmcmc as sgmcmc

bounds = sgmcmc.likelihood_bounds
all_families = pytest.mark.parametrize('family', families.FAMILIES)


def gaps(model, bound, theta, batch=None):
  """log L - log B, relative to their size, `[states, N]`."""
  batch = (model.x, model.y) if batch is None else batch
  theta = tf.constant(theta, model.dtype)
  log_bound = bound.log_bound(theta, batch=batch).numpy()
  gap = model.likelihood(theta, batch).numpy() - log_bound
  assert gap.shape == (len(theta), len(batch[0]))
  return gap / (1. + np.abs(log_bound)) / np.finfo(model.dtype).eps


def random_states(model, num, seed=5):
  """From near zero to far."""
  rng = np.random.default_rng(seed)
  scale = 10.**rng.uniform(-3., 1., [num] + [1] * len(model.shape))
  return scale * rng.normal(size=[num, *model.shape])


@all_families
@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_bounds_are_below_and_touch(family, dtype):
  """At random states, features, targets and anchors; in roundings."""
  model = families.FAMILIES[family](num=300, dim=3, dtype=dtype)
  states = random_states(model, 40)
  for anchor in (None, *random_states(model, 4, seed=6)):
    bound = model.bound(anchor=anchor)
    away = gaps(model, bound, states)
    assert away.min() > -100. and away.max() > 1e5
    if anchor is not None:
      assert np.abs(gaps(model, bound, anchor[np.newaxis])).max() < 100.
      assert gaps(model, bound, anchor + 1e-2 * states).min() > -100.
      flat = model.bound(anchor=anchor)
      change_weight(flat, 0.6 if family == 'softmax' else 0.98)
      near = anchor + np.linspace(-1., 1., 40).reshape(
          [40] + [1] * len(model.shape)) * states[-1]
      assert gaps(model, flat, [*near, *states]).min() < -1000.


def change_weight(bound, factor):
  """The same bound with another curvature."""
  tangent = bound._tangent
  def changed(psi, y):
    value = tangent(psi, y)
    return value._replace(weight=factor * value.weight)
  bound._tangent = changed


def test_where_untuned_bounds_touch():
  ones = np.ones([2, 1])
  y = np.array([0., 1.])
  model = families.Logistic(dtype=np.float64)
  touching = gaps(model, bounds.Logistic(xi=2.), [[2.], [-2.]], (ones, y))
  assert np.abs(touching).max() < 100.
  model = families.Robust(dtype=np.float64)
  bound = bounds.StudentT(3., 0.7, xi=0.5)
  for k in range(2):
    touching = gaps(model, bound, [[y[k] + 0.5], [y[k] - 0.5]], (ones, y))
    assert np.abs(touching[:, k]).max() < 100.
  model = families.Softmax(dtype=np.float64)
  touching = gaps(model, bounds.Softmax(3), np.zeros([1, 1, 3]), (ones, y))
  assert np.abs(touching).max() < 100.


@all_families
@pytest.mark.parametrize('is_tuned', [False, True])
def test_the_collapsed_sum_is_the_sum(family, is_tuned, monkeypatch):
  """Up to a constant, in one piece and in many; float32 data too."""
  for dtype, rtol in ((np.float64, 1e-11), (np.float32, 1e-5)):
    model = families.FAMILIES[family](num=57, dim=3, dtype=dtype)
    anchor = random_states(model, 1)[0] if is_tuned else None
    bound, data = model.bound(anchor=anchor), (model.x, model.y)
    theta = tf.constant(random_states(model, 20), dtype)
    exact = tf.reduce_sum(bound.log_bound(theta, batch=data), axis=-1).numpy()
    for size in (2**22, 40):
      monkeypatch.setattr(bounds, '_CHUNK_SIZE', size)
      collapsed = bound.collapse(tuple(map(tf.constant, data)))(theta).numpy()
      difference = exact - collapsed
      np.testing.assert_allclose(
          difference, difference[0], atol=rtol * np.abs(exact).max())


def test_the_collapsed_sum_is_precise_in_float32():
  """Near the mode of a million examples differences stay far below 1."""
  rng = np.random.default_rng(1)
  x = rng.normal(size=[2**20, 2]).astype(np.float32)
  y = (rng.uniform(size=2**20) < 1. / (1. + np.exp(-x[:, 0]))).astype(
      np.float32)
  total = bounds.Logistic(anchor=[1., 0.]).collapse(
      (tf.constant(x), tf.constant(y)))
  theta = np.array([1., 0.]) + 2e-3 * rng.normal(size=[10, 2])
  single = total(tf.constant(theta, tf.float32)).numpy()
  double = total(tf.constant(theta.astype(np.float32), tf.float64)).numpy()
  assert np.abs(single - double).max() < 1e-2


@pytest.mark.parametrize('make, data, error, message', [
    (lambda: bounds.Logistic(xi=0.), None, ValueError, 'xi is 0'),
    (lambda: bounds.Logistic(anchor=[np.nan]), None, ValueError, 'anchor'),
    (lambda: bounds.Logistic(anchor=[[1.]]), None, ValueError,
     r'single chain, \[d\]'),
    (lambda: bounds.Logistic(features_fn=3), None, TypeError, 'features_fn'),
    (lambda: bounds.Softmax(0), None, ValueError, 'num_classes is 0'),
    (lambda: bounds.StudentT(0., 1.), None, ValueError, 'df is 0'),
    (lambda: bounds.StudentT(1., -1.), None, ValueError, 'scale is -1'),
    (bounds.Logistic, (np.ones([3, 1]), np.array([0., 1., 2.])), ValueError,
     'Example 2 has the target 2.0: logistic'),
    (lambda: bounds.Softmax(2), (np.ones([3, 1]), np.array([0, 2, 1])),
     ValueError, 'Example 1 has the target 2: with num_classes=2'),
    (lambda: bounds.StudentT(3., 1.),
     (np.ones([2, 1]), np.array([0., np.nan])), ValueError,
     'Example 1 has the target nan'),
    (bounds.Logistic, (np.array([[1.], [np.inf]]), np.zeros(2)), ValueError,
     r'Example 1 has the features \[inf\]'),
    (bounds.Logistic, (np.ones([3]), np.zeros(3)), ValueError, r'\[N, d\]'),
    (bounds.Logistic, np.ones([3]), TypeError, 'features_fn='),
])
def test_bounds_refuse(make, data, error, message):
  with pytest.raises(error, match=message):
    make().collapse(tf.nest.map_structure(tf.constant, data))
