"""Kernel Stein discrepancy: its sum written out, its mean, its power."""

import numpy as np
import pytest

from tfp_sgmcmc import diagnostics

ksd = diagnostics.kernel_stein_discrepancy


def direct(x, s, c):
  """Gorham and Mackey (2017), equation 5, by derivatives of k."""
  total, (num, d) = 0., x.shape
  for i in range(num):
    for j in range(num):
      r = x[i] - x[j]
      q = c**2 + r @ r
      k, grad_x = q**-0.5, -r * q**-1.5
      mixed = d * q**-1.5 - 3. * (r @ r) * q**-2.5
      total += mixed - s[i] @ grad_x + s[j] @ grad_x + s[i] @ s[j] * k
  return np.sqrt(total) / num


@pytest.mark.parametrize('chunk_size', [3, 7, 100])
def test_it_is_the_sum_over_all_pairs(chunk_size):
  rng = np.random.default_rng(0)
  x, s = rng.normal(3., 2., [17, 3]), rng.normal(size=[17, 3])
  found = ksd(x, s, scale=1.3, chunk_size=chunk_size)
  np.testing.assert_allclose(found.value, direct(x, s, 1.3), rtol=1e-10)


def squares(draw, score, num_runs=300):
  """(KSD / expected)^2 of runs of 50 draws."""
  found = [ksd(x, score(x), chunk_size=50) for x in (
      draw(np.random.default_rng(k)) for k in range(num_runs))]
  return np.array([(f.value / f.expected)**2 for f in found])


@pytest.mark.parametrize('noise', [0., 1.])
def test_its_mean_under_the_law(noise):
  """n KSD^2 has the mean E k_p(x, x); with noise in the scores as well.

  Within 5 standard errors, of about 3%; of draws that are 10% too wide, not.
  """
  def score(x):
    rng = np.random.default_rng(int(1e6 * abs(x[0, 0])))
    return -x + noise * rng.normal(size=x.shape)

  found = squares(lambda rng: rng.normal(size=[50, 2]), score)
  error = found.std() / np.sqrt(len(found))
  assert abs(found.mean() - 1.) < 5. * error < 0.3
  wide = squares(lambda rng: rng.normal(0., 1.3, [50, 2]), score)
  assert wide.mean() - 1. > 5. * wide.std() / np.sqrt(len(wide))


def test_power():
  """A wrong law has more, and more draws tell more of it."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=[2000, 2])
  ratio = lambda y: np.divide(*ksd(y, -y))
  right = ratio(x)
  assert right < 3.
  for wrong in (x + 0.2, 1.15 * x, np.sign(x) * np.abs(x)**1.3):
    found = ratio(wrong)
    assert found > 1.5 * right and found > 1.5 * ratio(wrong[:200])


@pytest.mark.parametrize('draws, scores, arguments, message', [
    (np.zeros([3, 2]), np.zeros([3, 1]), {}, r'have to be \[n, d\]'),
    (np.zeros(3), np.zeros(3), {}, r'have to be \[n, d\]'),
    (np.zeros([3, 2]), np.full([3, 2], np.nan), {}, 'NaN'),
    (np.zeros([3, 2]), np.zeros([3, 2]), dict(scale=0.), 'scale'),
    (np.zeros([3, 2]), np.zeros([3, 2]), dict(chunk_size=0), 'chunk_size'),
    (1e200 * np.eye(3), np.eye(3), {}, 'draws up to 6.7e.199 .* out of the ra'),
    (1.7e308 * np.ones([3, 2]), np.ones([3, 2]), {}, 'out of the range'),
    (np.eye(3), 1e200 * np.eye(3), {}, 'scores up to 1e.200'),
    (np.eye(3), np.eye(3), dict(scale=1e-150), 'scale 1e-150'),
    (np.eye(3), np.eye(3), dict(scale=1e200), 'scale 1e.200'),
])
@pytest.mark.filterwarnings('error')
def test_refused(draws, scores, arguments, message):
  with pytest.raises(ValueError, match=message):
    ksd(draws, scores, **arguments)
