"""Data shared out among devices: the law is that on one, or it is refused."""

import itertools
import pathlib
import socket
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests import oracle
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import sharding

MODEL = oracle.LinearRegression(7)


def free_ports(number):
  sockets = [socket.create_server(('localhost', 0)) for _ in range(number)]
  ports = [str(s.getsockname()[1]) for s in sockets]
  for s in sockets:
    s.close()
  return ports


@pytest.mark.slow
def test_two_workers_have_the_law_of_one_device(tmp_path):
  ports = free_ports(2)
  processes = [
      subprocess.Popen(
          [sys.executable, '-m', 'tests.two_workers', str(task), *ports,
           str(tmp_path / 'draws')],
          cwd=pathlib.Path(__file__).parent.parent, text=True,
          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
      for task in range(2)]
  said = [process.communicate()[0] for process in processes]
  assert [p.returncode for p in processes] == [0, 0], '\n'.join(said)
  assert ['writes: True' in text for text in said] == [True, False]


def two_replicas():
  """A strategy of two replicas on the one device that is there."""
  strategy = mock.create_autospec(tf.distribute.MirroredStrategy, instance=True)
  strategy.num_replicas_in_sync = 2
  strategy.experimental_distribute_values_from_function = (
      lambda fn: [fn(Replica(k)) for k in range(2)])
  strategy.experimental_local_results = tuple
  return strategy


def test_rows_are_dealt_in_turn():
  posterior = MODEL.posterior()
  sharded = sgmcmc.shard(posterior, two_replicas())
  x = posterior.data[0].numpy()
  assert [part[0].numpy().tolist() for part in sharded._parts] == [
      x[::2].tolist(), x[1::2].tolist()]
  assert sharded.num_examples == sharded.total_rows == 7
  one = tf.distribute.get_strategy()
  assert sgmcmc.shard(posterior, one) is posterior


class Replica:
  """The context of one of two replicas, which knows nothing of the other."""

  num_replicas_in_sync = 2

  def __init__(self, number):
    self.replica_id_in_sync_group = number

  def all_reduce(self, operation, tensors):
    del operation
    return tensors


@pytest.mark.parametrize('estimator', [
    sgmcmc.gradients.Uniform(2),
    sgmcmc.gradients.Deal(),
    sgmcmc.gradients.ControlVariate(2, np.float32([0.3, -1.])),
], ids=lambda estimator: type(estimator).__name__)
def test_both_sets_of_a_step_are_unbiased(estimator):
  """As EWSG draws them, on rows that are shared out unevenly."""
  sharded = sgmcmc.shard(MODEL.posterior(), two_replicas())
  num_chains, totals = 4000, 0.
  theta = np.array([0.5, 0.2], np.float32)
  state = [tf.tile(theta[np.newaxis], [num_chains, 1])]
  for number in range(2):
    with mock.patch.object(sharding, 'context', lambda k=number: Replica(k)):
      results = estimator.bootstrap_results(sharded, state)
      sets = estimator.index_sets(sharded, [num_chains], 2, [1, 2])
      totals = totals + np.stack([
          estimator.estimate(
              sharded, state, results, sets.draw(m)).grads_target_log_prob[0]
          for m in range(2)]) - MODEL.prior_gradient(theta)
  wanted = MODEL.gradients(theta).sum(axis=0)
  z = (totals.mean(axis=1) - wanted) / (
      totals.std(axis=1) / num_chains**0.5)
  assert np.max(np.abs(z)) < 5.4  # Of 12: once in a million.


@pytest.mark.parametrize('sizes', [(2, 2), (3, 3), (4, 3)])
def test_sums_over_rows_stand_for_all_rows(sizes):
  """Of 4 and 3 rows: the mean over all minibatches is n / M of the whole."""
  sharded = sgmcmc.shard(MODEL.posterior(), two_replicas())
  values = np.float32([[1., 2., 4., 8.], [16., 32., 64., 0.]])
  found = []
  for rows in itertools.product(*(
      itertools.combinations(range(m), n) for m, n in zip((4, 3), sizes))):
    sent = []

    def sums(rows=rows):
      for k in range(2):
        with mock.patch.object(sharding, 'context', lambda k=k: Replica(k)):
          own = tf.constant(values[k][list(rows[k])])
          total, twice = sharded.sum_over_rows(own, 2. * own)
      return total, twice

    with mock.patch.object(
        sharding, 'all_reduce', lambda tensors, sent=sent: sent.append(
            tensors) or tensors):
      sums()
    with mock.patch.object(
        sharding, 'all_reduce',
        lambda tensors, sent=sent: [sum(pair) for pair in zip(*sent)]):
      found.append(sums())
  np.testing.assert_allclose(
      np.mean(found, axis=0), 127. * sum(sizes) / 7. * np.array([1., 2.]),
      rtol=1e-6)


@pytest.mark.parametrize('arguments, error, message', [
    (dict(posterior=3), TypeError, 'a Posterior with data'),
    (dict(strategy='mirrored'), TypeError, 'a tf.distribute.Strategy'),
    (dict(posterior=sgmcmc.Posterior(tf.identity, tf.add, num_examples=9)),
     ValueError, 'no data of its own'),
    (dict(posterior=oracle.LinearRegression(1).posterior()), ValueError,
     'holds 1 rows, and there are 2 replicas'),
])
def test_what_cannot_be_shared_out(arguments, error, message):
  with pytest.raises(error, match=message):
    sgmcmc.shard(**{
        **dict(posterior=MODEL.posterior(), strategy=two_replicas()),
        **arguments})


def test_refused_where_all_data_have_to_be_seen():
  sharded = sgmcmc.shard(MODEL.posterior(), two_replicas())
  for kernel in (
      sgmcmc.SGLD(sharded, 0.1, gradient_estimator=sgmcmc.gradients.SAGA(2)),
      tfp.mcmc.HamiltonianMonteCarlo(sharded, 0.1, 3)):
    with pytest.raises(ValueError, match='has to see all of them'):
      sgmcmc.sample(kernel, 3, tf.zeros([2]), progress_bar=False)
  with pytest.raises(ValueError, match='posterior that was given to shard'):
    sharded(tf.zeros([2]))
  with pytest.raises(ValueError, match='transform the posterior before'):
    sharded.transform(tfp.bijectors.Exp())
