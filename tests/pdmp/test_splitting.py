"""The splitting schemes against their exact laws; sticky ones by enumeration.

In one dimension a zig-zag chain is a Markov chain on a lattice, with all
minibatches enumerated in the probability to turn: its law after n steps is
exact. Sticky laws are those of the models of a linear regression, one for each
set of coefficients that are not zero. A test fails by chance once in a million.
"""

import functools
import itertools

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests import oracle
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import collectives
from tfp_sgmcmc.pdmp import splitting

pdmp = sgmcmc.pdmp
NUM_CHAINS = 40_000
NUM_STEPS = 30
START = 0.3
# y_i ~ N(mu + mu^3, 1), mu ~ N(0, 1).
DATA = np.array([0.2, -0.5, 1.1, 0.4, -0.9, 6.])


def potential(mu):
  """U of all data, `[k]`."""
  mu = np.asarray(mu)
  return mu**2 / 2. + np.square(
      DATA - (mu + mu**3)[..., np.newaxis]).sum(axis=-1) / 2.


def gradients_of_minibatches(mu, batch_size):
  """Of U, for each minibatch: `[batches, k]`."""
  scale = len(DATA) / batch_size
  return np.array([
      mu - scale * sum(y - mu - mu**3 for y in batch) * (1. + 3. * mu**2)
      for batch in itertools.combinations(DATA, batch_size)])


def probability_to_turn(mu, v, h, temperature, batch_size):
  """Bertazzi et al. (2025), zig-zag, at the middle of a step."""
  rates = np.maximum(v * gradients_of_minibatches(mu, batch_size), 0.)
  return np.mean(1. - np.exp(-h * rates / temperature), axis=0)


def lattice_law(h, temperature, batch_size):
  """The places START + h k after the steps, and their probabilities."""
  k = np.arange(-NUM_STEPS, NUM_STEPS + 1)
  turn = {v: probability_to_turn(
      START + h * (k + v / 2.), v, h, temperature, batch_size)
          for v in (-1, 1)}
  law = {v: 0.5 * (k == 0) for v in (-1, 1)}
  for _ in range(NUM_STEPS):
    law = {v: np.roll(law[v] * (1. - turn[v]), v) + law[-v] * turn[-v]
           for v in (-1, 1)}
  return k, law[-1] + law[1]


def posterior():
  return sgmcmc.Posterior(
      lambda mu: -tf.square(mu) / 2.,
      lambda mu, y: -tf.square(y - (mu + mu**3)[..., tf.newaxis]) / 2., DATA)


@functools.cache
def chains(batch_size):
  """Chains from one state; the last two numbers are errors."""
  flipped = splitting.flipped
  with pytest.MonkeyPatch.context() as patch:
    def make_kernel(h, temperature, gain, at_start):
      def with_errors(velocity, force, time, uniform):
        return flipped(
            velocity, tf.cast(gain, force.dtype) * force, time, uniform)

      patch.setattr(splitting, 'flipped', with_errors)
      kernel = pdmp.SplitZigZag(
          posterior(), h, temperature=temperature,
          gradient_estimator=sgmcmc.gradients.Uniform(batch_size))
      estimate = kernel._estimate

      def elsewhere(parts, previous, seeds):
        back = 0.5 * h * tf.cast(at_start, tf.float64)
        return estimate(
            [x - back * v for x, v in zip(parts, previous.velocity)], previous,
            seeds)

      kernel._estimate = elsewhere
      return kernel

    run = oracle.compile_chains(make_kernel, jit_compile=False)
    # The first velocities come of a seed: chains need different ones.
    state = tf.fill([NUM_CHAINS], tf.constant(START, tf.float64))
    run(state, 0, h=0.1, temperature=1., gain=1., at_start=0.)
  return functools.partial(run, state)


def lattice_p_value(batch_size, h, temperature, gain=1., at_start=0.):
  """Of a chi-square test; places with few chains are put together."""
  k, law = lattice_law(h, temperature, batch_size)
  state, _ = chains(batch_size)(
      NUM_STEPS, h=h, temperature=temperature, gain=gain, at_start=at_start)
  places = np.clip(
      np.rint((state.numpy() - START) / h), -NUM_STEPS, NUM_STEPS).astype(int)
  np.testing.assert_allclose(START + h * places, state, atol=1e-6)
  return chi_square(
      np.bincount(places + NUM_STEPS, minlength=len(k)), law)


def chi_square(counts, law):
  expected, observed = [0.], [0.]
  for e, o in zip(np.sum(counts) * law, counts):
    expected[-1] += e
    observed[-1] += o
    if expected[-1] > 20.:
      expected.append(0.)
      observed.append(0.)
  expected = [*expected[:-2], expected[-2] + expected[-1]]
  observed = [*observed[:-2], observed[-2] + observed[-1]]
  return scipy.stats.chisquare(observed, expected).pvalue


@pytest.mark.parametrize('batch_size, h, temperature', [
    (6, 0.1, 1.), (2, 0.05, 1.), (1, 0.02, 0.5)])
def test_law_on_the_lattice(batch_size, h, temperature):
  """With one of six examples a single outlier makes half of the force."""
  assert lattice_p_value(batch_size, h, temperature) > oracle.FALSE_ALARM_RATE


@pytest.mark.parametrize('error', [
    dict(gain=1.1), dict(gain=0.5),
    dict(at_start=1.),  # The gradient at the start of the step: D D B.
], ids=str)
def test_planted_errors_on_the_lattice_are_seen(error):
  assert lattice_p_value(2, 0.05, 1., **error) < oracle.FALSE_ALARM_RATE


def variance_of_the_lattice(h, gradients):
  """Of the stationary law of steps h; `gradients` of U by a point."""
  k = np.arange(-int(6. / h), int(6. / h) + 1)
  middle = h * (k[:-1] + 0.5)
  up, down = (
      np.mean(np.exp(-h * np.maximum(v * gradients(middle), 0.)), axis=0)
      for v in (1., -1.))
  # As many go from k to k + 1 as come back, and half of each go either way.
  law = np.exp(np.concatenate([[0.], np.cumsum(np.log(up) - np.log(down))]))
  law /= law.sum()
  x = h * k
  return law @ x**2 - (law @ x)**2


def test_the_bias_is_of_second_order_without_noise():
  """Of the law above, on an anharmonic density."""
  x = np.linspace(-5., 5., 20_001)
  weight = np.exp(-potential(x) + potential(x).min())
  weight /= weight.sum()
  exact = weight @ x**2 - (weight @ x)**2
  bias = [variance_of_the_lattice(
      h, functools.partial(gradients_of_minibatches, batch_size=6)) - exact
          for h in (0.04, 0.02, 0.01)]
  np.testing.assert_allclose(np.divide(bias[:2], bias[1:]), 4., rtol=0.1)


@pytest.mark.parametrize('scale', [10., 30.])
def test_the_bias_of_noise_is_the_docstrings(scale):
  """On N(0, 1); none without noise."""
  nodes = scipy.stats.norm.ppf((np.arange(2000) + 0.5) / 2000.)
  for share in (0.1, 0.4):
    h = share / scale
    variance = variance_of_the_lattice(
        h, lambda x: x + scale * nodes[:, np.newaxis])
    np.testing.assert_allclose(
        variance - 1., share / np.sqrt(2. * np.pi), rtol=0.1)
  assert abs(variance_of_the_lattice(
      0.5, lambda x: x[np.newaxis]) - 1.) < 1e-9
