"""Hot and diverging chains say so."""

import functools
import warnings

import keras
import numpy as np
import pytest

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras import temperature


def fit(learning_rate, num_steps, **arguments):
  rng = np.random.default_rng(0)
  x = rng.normal(size=[200, 8]).astype(np.float32)
  y = x.sum(-1, keepdims=True) + rng.normal(size=[200, 1])
  keras.utils.set_random_seed(0)
  model = keras.Sequential([keras.Input([8]), keras.layers.Dense(1)])
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
  sampling = models.make_sampling(**{
      **dict(kernel=sgmcmc.SGHMC, num_examples=200, momentum=0.9,
             learning_rate=learning_rate), **arguments})
  history = model.fit(
      x, y, batch_size=20, epochs=num_steps // 10, verbose=0,
      callbacks=[sampling]).history
  return sampling, history


def test_the_target_is_in_the_logs_and_a_good_chain_is_silent():
  with warnings.catch_warnings():
    warnings.simplefilter('error', UserWarning)
    _, history = fit(0.001, 400, num_burnin_steps=100)
  assert history['temperature'] == [1.] * 40


def test_a_hot_chain_is_warned_of_at_the_end_of_burnin_and_of_fit():
  with pytest.warns(UserWarning) as record:
    fit(0.15, 400, num_burnin_steps=200)
  messages = [str(r.message) for r in record]
  assert any('second half of burn-in' in m for m in messages)
  assert any('200 steps after burn-in' in m and 'take learning_rate=0.0' in m
             for m in messages)


def test_following_the_advice_cools():
  ratios = np.full(50, 3.)
  watch = temperature.HeatWatch(10, 10, ('step_size', 0.2))
  for step, ratio in enumerate(ratios):
    watch.add(step, ratio * 0.5, 0.5)
  assert 'step_size=0.01 (it is 0.2)' in watch.warning('made')


def test_a_chain_that_explodes_stops_with_what_it_has():
  with pytest.warns(RuntimeWarning, match='Training stops'):
    sampling, history = fit(0.45, 4000)
  assert len(history['loss']) < 400
  assert len(sampling.posterior) == sampling.num_steps


def test_langevin_is_told_by_its_loss():
  with pytest.warns(Warning, match='mean loss has grown'):
    fit(2.2, 200, kernel=sgmcmc.SGLD, momentum=None)


def test_burnin_that_cools_is_no_reason_to_stop():
  watch = temperature.HeatWatch(10, 10, ('learning_rate', 0.1))
  for step in range(200):
    watch.add(step, 1e5 * 0.98**step, 1.)
  assert not watch.is_hot(0)


@pytest.mark.parametrize('seed', range(3))
def test_noise_of_few_steps_is_not_warned_of(seed):
  rng = np.random.default_rng(seed)
  watch = temperature.HeatWatch(1, 10, ('learning_rate', 0.1))
  for step in range(20):
    watch.add(step, rng.chisquare(1), 1.)
  assert watch.warning('made') is None


def test_kernels_own_schedule_of_temperatures():
  sampling, history = fit(
      None, 20, kernel=functools.partial(
          sgmcmc.SGHMC, step_size=1e-4, friction=10.), momentum=None,
      temperature=lambda step: 0.5)
  assert history['temperature'] == [0.5, 0.5]
  assert sampling.num_steps == 20
