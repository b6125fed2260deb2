"""Chains in forked processes are refused, where they would wait forever."""

import concurrent.futures
import multiprocessing

import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

pytestmark = [
    pytest.mark.skipif(
        'fork' not in multiprocessing.get_all_start_methods(),
        reason='This machine has no forks.'),
    pytest.mark.filterwarnings('ignore:.*fork.*:DeprecationWarning')]


def sample(seed):
  kernel = sgmcmc.SGLD(tfp.distributions.Normal(0., 1.).log_prob, 0.1)
  return sgmcmc.sample(
      kernel, 5, tf.zeros([]), seed=seed, progress_bar=False).states.numpy()


def make_model():
  import keras

  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
  return model


def fit():
  model = make_model()
  model.fit(tf.zeros([4, 1]), tf.zeros([4, 1]), verbose=0, epochs=2,
            callbacks=[sgmcmc.keras.PosteriorSampling()])


def in_a_fork():
  return concurrent.futures.ProcessPoolExecutor(
      1, multiprocessing.get_context('fork'))


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('run, again', [
    (lambda: sample(0), (sample, 1)), (fit, (fit,))], ids=['sample', 'fit'])
def test_after_the_same_here(run, again):
  run()
  with in_a_fork() as executor:
    with pytest.raises(RuntimeError, match="fork of one .*'spawn'"):
      executor.submit(*again).result()


def test_the_executor_of_several_chains():
  data = tf.zeros([4, 1]).numpy()
  with in_a_fork() as executor:
    with pytest.raises(RuntimeError, match="2 failed.*fork of one .*'spawn'"):
      sgmcmc.keras.fit_chains(
          make_model, dict(x=data, y=data, epochs=2), num_chains=2,
          executor=executor, seed=1)
