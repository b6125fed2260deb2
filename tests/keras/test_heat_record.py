"""Hot and diverging chains say so."""

import functools
import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.heat import heat_record


def fit(learning_rate, num_steps, **arguments):
  rng = np.random.default_rng(0)
  x = rng.normal(size=[200, 8]).astype(np.float32)
  y = x.sum(-1, keepdims=True) + rng.normal(size=[200, 1])
  # One iterator for all epochs: a new one takes as long as ten steps.
  data = tf.data.Dataset.from_tensor_slices(
      (x, y.astype(np.float32))).cache().shuffle(200, seed=0).batch(20)
  keras.utils.set_random_seed(0)
  model = keras.Sequential([keras.Input([8]), keras.layers.Dense(1)])
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
  sampling = models.make_sampling(**{
      **dict(kernel=sgmcmc.SGHMC, num_examples=200, momentum=0.9,
             learning_rate=learning_rate), **arguments})
  history = model.fit(
      data.repeat(), steps_per_epoch=10, epochs=num_steps // 10, verbose=0,
      shuffle=False, callbacks=[sampling]).history
  return sampling, history


def messages_of(learning_rate, num_steps, **arguments):
  """What a chain is warned of, and its kinetic temperatures by epochs."""
  with warnings.catch_warnings(record=True) as record:
    warnings.simplefilter('always')
    _, history = fit(learning_rate, num_steps, **arguments)
  return [str(r.message) for r in record
          if issubclass(r.category, UserWarning)], history


@pytest.mark.slow
def test_the_target_is_in_the_logs_and_a_good_chain_is_silent():
  messages, history = messages_of(0.002, 500, num_burnin_steps=250)
  assert not messages
  assert history['temperature'] == [1.] * 50


@pytest.mark.slow
def test_a_chain_without_momentum_is_not_hot():
  """Its momentum, just after the kick, is at 2 T, of which the mean is less.

  Of 250 independent steps with 9 coordinates: a standard error of 0.03.
  """
  with warnings.catch_warnings():
    warnings.simplefilter('error', UserWarning)
    sampling, _ = fit(0.01, 500, momentum=0., num_burnin_steps=250)
  row = sampling.summary(np.zeros([3, 8])).rows[-1]
  assert row.quantity == 'kinetic temperature / T' and row.verdict != 'wrong'
  assert abs(row.value - 1.) < 0.2


@pytest.mark.slow
def test_a_hot_chain_is_warned_of_and_the_advice_cools_it():
  # Long enough that the chain's own ups and downs are not taken for a fall.
  messages, _ = messages_of(0.1, 1600, num_burnin_steps=800)
  first, last = messages
  assert 'steps 401 to 800, of the second half of burn-in' in first
  assert 'steps 801 to 1600, after burn-in' in last and 'hotter' in last
  advised = float(re.search(r'take learning_rate=([0-9.e-]+)', last).group(1))
  messages, history = messages_of(advised, 600, num_burnin_steps=300)
  assert not messages
  # At an excess of a tenth the mean of some 30 x 9 independent squares has a
  # standard error of .1: within five of them.
  assert 0.6 < np.mean(history['kinetic_temperature'][30:]) < 1.6


def test_a_chain_on_its_way_is_told_apart_from_a_hot_one():
  # It takes 100 steps to come a factor e nearer, and the weights begin far
  # from the posterior: most of the kinetic energy is of this fall.
  messages, _ = messages_of(0.001, 200, num_burnin_steps=100)
  assert 'raise num_burnin_steps' in messages[0]
  assert 'take learning_rate' not in messages[0]


def test_a_chain_that_explodes_stops_with_what_it_has():
  with pytest.warns(RuntimeWarning, match='Training stops'):
    sampling, history = fit(0.45, 4000)
  assert len(history['loss']) < 400
  assert len(sampling.posterior) == sampling.num_steps


def test_langevin_is_told_by_its_loss():
  with pytest.warns(Warning, match='mean loss has grown'):
    fit(2.2, 200, kernel=sgmcmc.SGLD, momentum=None)


def record(
    ratios, num_weights=10, momentum=0.9, losses=(), temperature=1.):
  """A record of steps 1, 2, ..., which have these temperatures, `[n, k]`."""
  made = heat_record.HeatRecord(
      np.size(ratios[0]), num_weights, 10, ('learning_rate', 0.1),
      momentum=momentum)
  every = len(ratios) // max(len(losses), 1)
  losses = list(losses)
  made.add_loss(1.)
  for step, ratio in enumerate(ratios, 1):
    made.add(step, temperature * ratio, temperature)
    if losses and step % every == 0:
      made.add_loss(losses.pop(0))
  return made


def test_what_is_hot_for_an_epoch_and_100_steps_stops_unless_it_cools():
  hot = np.full(150, 1e5)
  for since in (1, 140):
    row, = record(hot).rows_without_bound(since).values()
    assert row.verdict == 'wrong' and row.value == 1e5
  for ratios in (
      hot[:99], hot * 0.98**np.arange(150), np.append(1., hot)):
    assert not record(ratios).rows_without_bound(1)
  of_two = record(np.stack([np.ones(150), hot], axis=-1))
  assert list(of_two.rows_without_bound(1)) == [1]


def test_the_noise_of_minibatches_stops_no_cold_chain():
  hot = np.full(150, 249.)
  assert record(hot).rows_without_bound(1)
  assert not record(hot, temperature=0.001).rows_without_bound(1)
  row, = record(hot, temperature=0.03).rows_without_bound(1).values()
  assert row.value == pytest.approx(249.)  # Over T, as the message says.
  assert not record(hot, temperature=0.).rows_without_bound(1)


def test_a_falling_loss_explains_heat():
  ratios = np.full(100, 3.)
  # 2 (1 - m) d T / N a step.
  falling = 100. - 0.2 * 25. * np.arange(4)
  for part, arguments in (
      ('loss that still fell', dict(losses=falling)),
      ('hotter than', dict(losses=falling / 10.)),
      ('hotter than', dict(
          losses=falling, momentum=None, num_weights=1000))):
    row, = record(ratios, **arguments).rows()
    assert row.verdict == 'wrong' and part in row.advice


def momenta(num_chains, num_weights, num_steps, momentum, scale=1.):
  """The kinetic temperatures of chains at temperature `scale`."""
  rng = np.random.default_rng()
  r = rng.normal(size=[num_chains, num_weights])
  found = []
  for _ in range(num_steps):
    r = momentum * r + (1. - momentum**2)**0.5 * rng.normal(size=r.shape)
    found.append(scale * np.mean(r**2, axis=-1))
  return np.stack(found, axis=-1)


@pytest.mark.parametrize('num_weights, num_steps', [(1, 50), (8, 50), (50, 10)])
def test_chance_is_rarely_warned_of_and_heat_often(num_weights, num_steps):
  # Said is a rate of 4 in 10,000 at most: 1,000 chains then have more than 5
  # with probability 4e-6.
  def number(**arguments):
    chains = momenta(1000, num_weights, num_steps, 0.9, **arguments)
    rows = record(chains.T, num_weights).rows()
    return sum(row.verdict == 'wrong' and row.value > 1. for row in rows)

  assert number() <= 5
  assert number(scale=4.) > (50 if num_weights == 1 else 900)


def test_kernels_own_schedule_of_temperatures():
  sampling, history = fit(
      None, 20, kernel=functools.partial(
          sgmcmc.SGHMC, step_size=1e-4, friction=10.), momentum=None,
      temperature=lambda step: 0.5)
  assert history['temperature'] == [0.5, 0.5]
  assert sampling.num_steps == 20


def test_without_the_losses_of_two_epochs_both_causes_are_named():
  row, = record(np.full(50, 3.)).rows()
  assert 'hotter' in row.advice
  assert 'raise num_burnin_steps first' in row.advice
