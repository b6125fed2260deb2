"""A state of one vector of parts is the same chain as a list of these parts."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions

SIZES = 32, 16, 48
SCALES = np.repeat([0.1, 1., 3.], SIZES)


def rows():
  return SCALES * np.random.default_rng(0).normal(size=[200, 96])


def log_likelihood(theta, batch):
  return tf.reduce_sum(tfd.Normal(
      theta[..., tf.newaxis, :], SCALES).log_prob(batch), axis=-1)


def log_prior(theta):
  return -tf.reduce_sum(tf.square(theta), axis=-1) / 2.


def of_vector():
  return sgmcmc.Posterior(log_prior, log_likelihood, rows())


def of_list():
  return sgmcmc.Posterior(
      lambda *parts: log_prior(tf.concat(parts, axis=-1)),
      lambda *parts_and_batch: log_likelihood(
          tf.concat(parts_and_batch[:-1], axis=-1), parts_and_batch[-1]),
      rows())


def start():
  return tf.constant(np.random.default_rng(1).normal(size=[3, 96]))


def chain(make, posterior, state, num_steps=150):
  """The states of a chain, and its last results."""
  kernel = make(posterior)

  @tf.function(autograph=False)
  def run(state):
    return tfp.mcmc.sample_chain(
        num_steps, state, kernel=kernel, seed=[1, 2],
        trace_fn=None, return_final_kernel_results=True)

  found = run(state)
  return found.all_states, found.final_kernel_results


def badodab(posterior, thermostat='part', **arguments):
  return sgmcmc.SGNHT(
      posterior, 0.003, 1., thermostat=thermostat,
      gradient_estimator=sgmcmc.gradients.Uniform(batch_size=20), **arguments)


def tuned(posterior, **arguments):
  return sgmcmc.SelfTuning(
      badodab(posterior, **arguments).copy(diffusion=0.),
      num_adaptation_steps=100)


KERNELS = {
    'badodab': badodab, 'euler': functools.partial(badodab, integrator='euler'),
    'diagonal': functools.partial(badodab, thermostat='diagonal'),
    'self-tuning': tuned}


def noise_of_vector(kernel, parts, seed):
  """The same numbers for the coordinates of a list as for those of a vector."""
  del kernel
  noise = sgmcmc.random.normal([3, 96], seed, tf.float64)
  return [noise] if len(parts) == 1 else tf.split(noise, SIZES, axis=-1)


@pytest.mark.parametrize('name', [
    name if name == 'badodab' else pytest.param(name, marks=[
        pytest.mark.slow, *[pytest.mark.weekly] * (name != 'self-tuning')])
    for name in KERNELS])
def test_one_vector_is_the_same_chain_as_its_parts(name, monkeypatch):
  make = KERNELS[name]
  monkeypatch.setattr(sgmcmc.SGNHT, '_noise', noise_of_vector)
  parts, _ = chain(make, of_list(), tf.split(start(), SIZES, axis=-1))
  vector, results = chain(
      functools.partial(make, part_sizes=SIZES), of_vector(), start())
  # But for rounding, in double precision.
  np.testing.assert_allclose(
      vector, tf.concat(parts, axis=-1), atol=1e-8 * np.std(vector))
  if name == 'badodab':
    assert results.thermostat[0].shape == [3, 3]
  # The planted error: parts of other sizes are another chain.
  if name != 'diagonal':
    other, _ = chain(
        functools.partial(make, part_sizes=SIZES[::-1]), of_vector(), start())
    assert np.max(np.abs(other - vector)) > 0.03 * np.std(vector)


def test_guard_sees_a_change_of_any_part():
  """Also of the last one, whose coordinates are far from the first."""
  kernel = tuned(of_vector(), part_sizes=SIZES)
  state = start()
  results = kernel.bootstrap_results(state, seed=[0, 0])
  for k in range(3):
    state, results = kernel.one_step(state, results, seed=[1, k])
  moved = np.array(state)
  moved[:, -SIZES[-1]:] += 1.
  assert results.footprint.shape == [3, 24]
  _, after = kernel.one_step(tf.constant(moved), results, seed=[1, 3])
  np.testing.assert_array_equal(after.anchor[0], moved)
  # And no change where there is none.
  _, after = kernel.one_step(state, results, seed=[1, 3])
  assert np.all(after.anchor[0] != state)


@pytest.mark.parametrize('sizes, state, match', [
    ([96, 1], start(), '97 coordinates'),
    ([32, 16, 48], [start(), start()], 'join its parts'),
    ([16, 16], tf.zeros([2, 4, 32]), 'one vector of 32'),
])
def test_other_states_are_refused(sizes, state, match):
  kernel = sgmcmc.SGNHT(
      lambda *parts: -sum(
          tf.reduce_sum(tf.square(p), list(range(1, p.shape.rank)))
          for p in parts), 0.1, 1., part_sizes=sizes)
  with pytest.raises(ValueError, match=match):
    kernel.bootstrap_results(state, seed=[0, 0])


@pytest.mark.parametrize('arguments, match', [
    (dict(part_sizes=[0, 3]), 'each of part_sizes'),
    (dict(part_sizes=[]), 'has to be a list'),
    (dict(part_sizes=96), 'has to be a list'),
    (dict(part_sizes=[3], experimental_shard_axis_names=['rows']),
     'leave one of them out')])
def test_bad_arguments(arguments, match):
  with pytest.raises(ValueError, match=match):
    sgmcmc.SGNHT(log_prior, 0.1, 1., **arguments)
