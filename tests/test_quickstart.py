"""Tests of the main job, run small."""

import sys

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import quickstart

_SMALL = [
    '--num_chains=3', '--num_results=20', '--num_burnin_steps=2000',
    '--num_steps_between_results=19', '--prior_scale=2']


@pytest.fixture
def scores(tmp_path, capsys):
  pytest.importorskip('matplotlib')
  assert quickstart.main([*_SMALL, f'--output={tmp_path / "new"}']) == 0
  picture = (tmp_path / 'new' / 'quickstart.png').read_bytes()
  assert picture.startswith(b'\x89PNG') and len(picture) > 20_000
  return capsys.readouterr().out


def test_prints_scores_that_a_working_sampler_reaches(scores):
  assert '3 chains of 20 draws' in scores
  assert 'R-hat' in scores and 'effective sample size' in scores
  for name in ('MAP', 'posterior average'):
    line = next(x for x in scores.splitlines() if x.startswith(name))
    accuracy, nll, brier, error = map(float, line.split()[-4:])
    assert accuracy > 0.93 and nll < 0.3
    assert brier < 0.15 and error < 0.15


def test_map_is_a_maximum_of_the_posterior():
  train, _ = sgmcmc.datasets.load_digits()
  posterior = quickstart.make_posterior(train, prior_scale=1.)
  best = quickstart.find_map(posterior)
  top = float(posterior(*best))
  for seed in range(5):
    away = [
        part + 0.05 * sgmcmc.random.normal(part.shape, [0, seed], stream=k)
        for k, part in enumerate(best)]
    assert float(posterior(*away)) < top
  with tf.GradientTape() as tape:
    tape.watch(best)
    value = posterior(*best)
  for gradient in tape.gradient(value, best):
    assert np.abs(gradient).max() < 0.2


def test_average_is_of_probabilities():
  weights = tf.stack([tf.zeros([64, 10]), tf.ones([64, 1]) * tf.range(10.)])
  features = tf.ones([1, 64]) / 64.
  wanted = (tf.nn.softmax(tf.zeros(10)) + tf.nn.softmax(tf.range(10.))) / 2.
  p = quickstart.predict(weights, tf.zeros([2, 10]), features)
  np.testing.assert_allclose(p[0], wanted, rtol=1e-5)


def test_says_what_to_install(monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, 'tqdm', None)
  assert quickstart.main(_SMALL) == 1
  assert 'pip install "tfp_sgmcmc[quickstart]"' in capsys.readouterr().err
