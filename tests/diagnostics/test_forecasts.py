"""Scores of predicted distributions, against their definitions."""

import matplotlib.figure
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import tensorflow_probability as tfp

from tfp_sgmcmc import diagnostics
from tfp_sgmcmc.diagnostics import plots

tfd = tfp.distributions

LOC = np.array([[-1., 0.3], [0.5, 0.2], [4., 1.]])  # Draws, rows.
SCALE = np.array([[0.5, 1.], [2., 0.3], [0.1, 1.]])
SHARES = np.array([0.2, 0.7, 0.1])
Y = np.array([0.4, -2.])


def mixture():
  return tfd.MixtureSameFamily(
      tfd.Categorical(probs=SHARES), tfd.Normal(LOC.T, SCALE.T))


def cdf(row, y):
  return scipy.stats.norm.cdf(
      np.reshape(y, [-1, 1]), LOC[:, row], SCALE[:, row]) @ SHARES


def test_crps_of_mixtures_is_the_integral_that_it_stands_for():
  """CRPS = int (F(z) - [z >= y])^2 dz."""
  wanted = []
  for row, y in enumerate(Y):
    below, above = (
        scipy.integrate.quad(
            lambda z, row=row, is_above=is_above: (
                cdf(row, z)[0] - is_above)**2, *ends, limit=400, epsabs=1e-10,
            points=[-1., 0.3, 0.5, 4.])[0]
        for is_above, ends in ((0., (-30., y)), (1., (y, 30.))))
    wanted.append(below + above)
  np.testing.assert_allclose(
      diagnostics.crps(mixture(), Y), np.mean(wanted), rtol=1e-7)
  # A normal distribution alone, by its formula.
  z = (Y - LOC[0]) / SCALE[0]
  np.testing.assert_allclose(
      diagnostics.crps(tfd.Normal(LOC[0], SCALE[0]), Y),
      np.mean(SCALE[0] * (
          z * (2. * scipy.stats.norm.cdf(z) - 1.)
          + 2. * scipy.stats.norm.pdf(z) - 1. / np.sqrt(np.pi))), rtol=1e-10)


def test_crps_of_samples():
  """The sum over pairs, and on average the score of the law."""
  samples = np.random.default_rng(0).normal(size=[7, 5])
  y = np.linspace(-1., 1., 5)
  pairs = np.abs(samples[:, np.newaxis] - samples).sum(axis=(0, 1)) / (7 * 6)
  np.testing.assert_allclose(
      diagnostics.crps(samples, y),
      np.mean(np.abs(samples - y).mean(axis=0) - 0.5 * pairs), rtol=1e-12)
  # Of two samples each, 40,000 times: without bias.
  samples = np.random.default_rng(1).normal(size=[2, 40_000])
  y = np.zeros(40_000)
  each = np.abs(samples).mean(axis=0) - 0.5 * np.abs(np.diff(samples, axis=0))
  wanted = diagnostics.crps(tfd.Normal(0., 1.), 0.)
  z = (diagnostics.crps(samples, y) - wanted) / (each.std() / 200.)
  assert abs(z) < 5.


def test_levels_of_targets():
  found = diagnostics.pit(mixture(), Y)
  np.testing.assert_allclose(
      found, [cdf(row, y)[0] for row, y in enumerate(Y)], rtol=1e-10)
  np.testing.assert_array_equal(
      diagnostics.pit([[0., 1.], [1., 1.], [2., 1.]], [1., 2.]), [0.5, 1.])


def test_levels_are_uniform_where_the_forecast_is_right():
  rng = np.random.default_rng(0)
  loc = rng.normal(size=4000)
  y = loc + rng.normal(size=4000)
  right, narrow = (
      diagnostics.pit(tfd.Normal(loc, scale), y) for scale in (1., 0.5))
  assert scipy.stats.kstest(right, 'uniform').pvalue > 1e-6
  assert scipy.stats.kstest(narrow, 'uniform').pvalue < 1e-6
  axes = plots.pit(
      matplotlib.figure.Figure().subplots(), {'right': right, 'narrow': narrow})
  heights = [patch.get_data().values for patch in axes.patches[:2]]
  np.testing.assert_allclose(
      heights[1], np.histogram(narrow, 10, (0., 1.))[0] / 4000)


def test_coverage_of_all_levels():
  """The curve is the coverage of the intervals of each level."""
  rng = np.random.default_rng(0)
  y = rng.normal(size=500)
  law = tfd.Normal(0.5 * np.ones(500), 0.7)
  axes = plots.coverage(matplotlib.figure.Figure().subplots(), {
      'narrow': diagnostics.pit(law, y)})
  levels, shares = axes.lines[0].get_data()
  for level, share in list(zip(levels, shares))[5::10]:
    interval = np.stack([
        law.quantile((1. - level) / 2.), law.quantile((1. + level) / 2.)])
    assert share == diagnostics.coverage(interval, y)
  assert share < level - 0.1


def test_coverage_and_interval_score():
  rng = np.random.default_rng(0)
  y = rng.normal(size=[50, 2])
  interval = np.stack([-1. + 0. * y, 0.5 + 0. * y])
  inside = [(-1. <= value <= 0.5) for value in y.ravel()]
  assert diagnostics.coverage(interval, y) == np.mean(inside)
  wanted = [
      1.5 + 2. / 0.2 * (max(-1. - value, 0.) + max(value - 0.5, 0.))
      for value in y.ravel()]
  np.testing.assert_allclose(
      diagnostics.interval_score(interval, y, 0.8), np.mean(wanted))


def test_the_quantiles_have_the_best_interval_score():
  y = np.random.default_rng(0).normal(size=20_000)
  score = lambda z: diagnostics.interval_score(
      np.stack([-z + 0. * y, z + 0. * y]), y, 0.9)
  best = scipy.stats.norm.ppf(0.95)
  assert score(best) < min(score(0.8 * best), score(1.25 * best))


@pytest.mark.parametrize('call, message', [
    (lambda d: d.coverage([[0.], [1.]], [0., 1.]), r'shape \(2, 1\) and y'),
    (lambda d: d.coverage([[1.], [0.]], [0.]), 'lower ends above'),
    (lambda d: d.coverage([[0.], [1.]], [np.nan]), 'y holds 1 NaN'),
    (lambda d: d.coverage(np.zeros([2, 0]), []), 'is empty'),
    (lambda d: d.interval_score([[0.], [1.]], [0.], 90.), 'level is 90'),
    (lambda d: d.pit(tfd.Normal(0., 1.), [0.]), r'of shape \(\) and'),
    (lambda d: d.pit(tfd.Categorical([[0.]]), [0.]), 'continuous numbers'),
    (lambda d: d.pit([0., 1.], [0.]), 'some samples of each target'),
    (lambda d: d.crps(tfd.Laplace([0.], 1.), [0.]), 'pass samples of it'),
    (lambda d: d.crps([[0.]], [0.]), 'two are needed'),
])
def test_wrong_arguments(call, message):
  with pytest.raises(ValueError, match=message):
    call(diagnostics)
