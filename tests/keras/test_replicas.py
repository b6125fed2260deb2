"""Chains under `tf.distribute`: the same as on one device, or refused."""

import functools
import pathlib
import subprocess
import sys
from unittest import mock

import keras
import pytest
import tensorflow as tf

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.model import replicas


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.parametrize('part', ['usual', 'variants'])
def test_two_replicas_make_the_chain_of_one_device(part):
  result = subprocess.run(
      [sys.executable, '-m', 'tests.keras.two_replicas', part],
      cwd=pathlib.Path(__file__).parent.parent.parent, capture_output=True,
      check=False, text=True)
  assert result.returncode == 0, result.stdout + result.stderr
  assert 'planted' in result.stdout
  assert result.stdout.endswith('Done.\n')


def two_replicas(strategy=tf.distribute.MirroredStrategy):
  """A strategy of two devices that need not be there."""
  strategy = mock.create_autospec(strategy, instance=True)
  strategy.num_replicas_in_sync = 2
  return strategy


@pytest.mark.parametrize('strategy, arguments, message', [
    (tf.distribute.ParameterServerStrategy, {}, 'do not step together'),
    (tf.distribute.MultiWorkerMirroredStrategy, {}, 'fit_chains'),
    (tf.distribute.MirroredStrategy, dict(jit_compile=True), 'by XLA'),
    (tf.distribute.MirroredStrategy, dict(steps_per_execution=2),
     'fails in Keras itself'),
])
def test_strategies_that_do_not_work(strategy, arguments, message):
  model = models.classifier(**arguments)
  model._distribute_strategy = two_replicas(strategy)
  with pytest.raises(ValueError, match=message):
    replicas.check(model)


def test_estimators_that_have_to_see_a_batch_whole():
  kernel = functools.partial(
      models.SGHMC, gradient_estimator=sgmcmc.gradients.GaussianNoise(0.1))
  sampling = models.make_sampling(kernel)
  model = models.classifier()
  sampling.set_model(model)
  model._distribute_strategy = two_replicas()
  with pytest.raises(ValueError, match='has to see a batch whole'):
    sampling.on_train_begin()


def test_one_device_has_nothing_to_add_up():
  """A posterior of parts is the plain one where there is one part."""
  x, y = models.classes()
  arguments = (
      lambda w: -tf.reduce_sum(w**2),
      lambda w, batch: -tf.nn.sparse_softmax_cross_entropy_with_logits(
          batch[1], tf.einsum('nd,dk->nk', batch[0], w)), (x, y))
  weights = keras.random.normal([4, 3], seed=0)
  found = []
  for kind in (sgmcmc.Posterior, sgmcmc.ShardedPosterior):
    posterior = kind(*arguments, num_examples=70)
    assert int(posterior.total_rows) == len(x)
    with tf.GradientTape() as tape:
      tape.watch(weights)
      value = posterior(weights)
    found.append((value, tape.gradient(value, weights)))
  for ours, theirs in zip(*found):
    tf.debugging.assert_near(ours, theirs, rtol=1e-5)
