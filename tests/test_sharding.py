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
from tfp_sgmcmc import collectives

MODEL = oracle.LinearRegression(7)


def free_ports(number):
  sockets = [socket.create_server(('localhost', 0)) for _ in range(number)]
  ports = [str(s.getsockname()[1]) for s in sockets]
  for s in sockets:
    s.close()
  return ports


@pytest.mark.weekly
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


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.parametrize('part, num_planted', [('usual', 5), ('variants', 3)])
def test_parts_of_each_replica_have_the_law_of_one_device(part, num_planted):
  result = subprocess.run(
      [sys.executable, '-m', 'tests.own_parts', part],
      cwd=pathlib.Path(__file__).parent.parent, capture_output=True,
      check=False, text=True)
  assert result.returncode == 0, result.stdout + result.stderr
  assert result.stdout.count('planted') == num_planted


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
    sgmcmc.gradients.Reshuffled(),
    sgmcmc.gradients.ControlVariate(2, np.float32([0.3, -1.])),
], ids=lambda estimator: type(estimator).__name__)
def test_both_sets_of_a_step_are_unbiased(estimator):
  """As EWSG draws them, on rows that are shared out unevenly."""
  sharded = sgmcmc.shard(MODEL.posterior(), two_replicas())
  num_chains, totals = 4000, 0.
  theta = np.array([0.5, 0.2], np.float32)
  state = [tf.tile(theta[np.newaxis], [num_chains, 1])]
  for number in range(2):
    with mock.patch.object(collectives, 'context', lambda k=number: Replica(k)):
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
        with mock.patch.object(collectives, 'context', lambda k=k: Replica(k)):
          own = tf.constant(values[k][list(rows[k])])
          total, twice = sharded.sum_over_rows(own, 2. * own)
      return total, twice

    with mock.patch.object(
        collectives, 'all_reduce', lambda tensors, sent=sent: sent.append(
            tensors) or tensors):
      sums()
    with mock.patch.object(
        collectives, 'all_reduce',
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
  with pytest.raises(ValueError, match='has to see all of them'):
    sgmcmc.sample(
        tfp.mcmc.HamiltonianMonteCarlo(sharded, 0.1, 3), 3, tf.zeros([2]),
        progress_bar=False)
  for estimator in (
      sgmcmc.gradients.SAGA(2), sgmcmc.gradients.Stratified(2, [0, 1] * 3),
      sgmcmc.gradients.ControlVariate(
          2, tf.zeros([2]), probabilities=np.arange(1, 7))):
    with pytest.raises(ValueError, match='has to see all of them'):
      sgmcmc.SGLD(sharded, 0.1, gradient_estimator=estimator)
  with mock.patch.object(collectives, 'context', return_value=Replica(0)):
    with pytest.raises(ValueError, match='num_examples is None, and a replica'):
      sgmcmc.ShardedPosterior(log_prob, log_likelihood, tf.zeros([3]))
  with pytest.raises(ValueError, match='posterior that was given to shard'):
    sharded(tf.zeros([2]))
  with pytest.raises(ValueError, match='transform the posterior before'):
    sharded.transform(tfp.bijectors.Exp())


NAMES = ['rows', None]


def log_prob(effects, mu):
  return -tf.reduce_sum(effects**2, axis=-1) - mu**2


def log_likelihood(effects, mu, batch):
  del mu
  return -(batch - effects)**2


def with_own_parts(names=NAMES):
  return sgmcmc.ShardedPosterior(
      log_prob, log_likelihood, np.float32([1., 2., 3.]), num_examples=6,
      experimental_shard_axis_names=names)


@pytest.mark.parametrize('given, names', [
    (NAMES, NAMES),
    (('rows', None), NAMES),
    ([['rows'], []], NAMES),  # As TFP's joint distributions have them.
    ('rows', ['rows']),
    (None, None), ([], None), ([None, []], None),
])
def test_names_of_parts(given, names):
  kernel = sgmcmc.SGLD(log_prob, 0.1, experimental_shard_axis_names=given)
  assert kernel.experimental_shard_axis_names == names
  kernel = sgmcmc.SGLD(log_prob, 0.1).experimental_with_shard_axes(given)
  assert kernel.experimental_shard_axis_names == names
  assert kernel.copy(step_size=0.2).experimental_shard_axis_names == names
  kernel = kernel.experimental_with_shard_axes(None)
  assert kernel.experimental_shard_axis_names is None
  assert with_own_parts(given).experimental_shard_axis_names == names


def test_names_are_handed_on():
  kernel = sgmcmc.SGHMC(with_own_parts(), 0.1, 1.)
  assert kernel.experimental_shard_axis_names == NAMES
  kernel = sgmcmc.SGHMC(log_prob, 0.1, 1.)
  for wrapper in (
      sgmcmc.TemperatureStepSizeAdaptation(kernel, 10),
      tfp.mcmc.TransformedTransitionKernel(
          kernel, [tfp.bijectors.Identity()] * 2)):
    wrapper = wrapper.experimental_with_shard_axes(NAMES)
    assert wrapper.experimental_shard_axis_names == NAMES
    assert wrapper.inner_kernel.experimental_shard_axis_names == NAMES
  kernel = sgmcmc.BouncyParticleSampler(
      log_prob, rate_bound=sgmcmc.pdmp.GaussianBound(2.))
  assert kernel.experimental_with_shard_axes([None, None]) is kernel


def shared_out(kernel_class=sgmcmc.SGLD, target=log_prob, **arguments):
  kernel = kernel_class(target, **{**dict(step_size=0.1), **arguments})
  return kernel.experimental_with_shard_axes(NAMES)


@pytest.mark.parametrize('build, message', [
    (lambda: sgmcmc.SGLD(log_prob, 0.1, experimental_shard_axis_names=3),
     'it has to be a list with an entry'),
    (lambda: with_own_parts(['rows', 'columns']), 'one axis of replicas'),
    (lambda: with_own_parts([['rows', 'columns'], None]), 'is another piece'),
    (lambda: shared_out(target=MODEL.posterior()), 'make a ShardedPosterior'),
    (lambda: shared_out(target=sgmcmc.shard(MODEL.posterior(), two_replicas())),
     'what shard returns'),
    (lambda: shared_out(target=with_own_parts(['rows', 'rows'])),
     r"\['rows', 'rows'\] for its posterior"),
    (lambda: sgmcmc.SGLD(
        with_own_parts(), 0.1, experimental_shard_axis_names=[None, None]),
     r'is \[None, None\] for the kernel'),
    (lambda: shared_out(gradient_estimator=sgmcmc.gradients.GaussianNoise(1.)),
     'no replica sees together'),
    (lambda: shared_out(
        target=with_own_parts(),
        gradient_estimator=sgmcmc.gradients.ExponentiallyWeighted(2)),
     'no replica sees together'),
    (lambda: shared_out(
        preconditioner=sgmcmc.preconditioners.RMSProp(normalize=True)),
     'looks at each coordinate alone'),
    (lambda: shared_out(sgmcmc.SGNHT, diffusion=1., thermostat='matrix'),
     'take "scalar", "part" or "diagonal"'),
    (lambda: sgmcmc.StochasticBouncyParticleSampler(with_own_parts()),
     'take SGLD, SGHMC or SGNHT'),
    (lambda: sgmcmc.pdmp.UniformTime(sgmcmc.BouncyParticleSampler(
        log_prob, rate_bound=sgmcmc.pdmp.GaussianBound(2.)), 1.,
     ).experimental_with_shard_axes(NAMES), 'take SGLD, SGHMC or SGNHT'),
    (lambda: shared_out().bootstrap_results([tf.zeros([3])]),
     r'the state has 1 part\(s\)'),
])
def test_refused_with_parts_of_each_replica(build, message):
  with pytest.raises(ValueError, match=message):
    build()


def test_noise_of_parts_of_each_replica():
  parts = [tf.zeros([10_000]), tf.zeros([4]), tf.zeros([10_000])]
  found = []
  for k in range(2):
    with mock.patch.object(collectives, 'context', lambda k=k: Replica(k)):
      found.append(collectives.normal_like(parts, [True, False, True], [1, 2]))
  np.testing.assert_array_equal(found[0][1], found[1][1])
  own = np.array([z for pair in found for z in (pair[0], pair[2])])
  correlation = np.corrcoef(own)[np.triu_indices(4, 1)]
  assert np.max(np.abs(correlation)) < 0.053  # Of 6: once in a million.


def test_uniform_numbers_of_parts_of_each_replica():
  parts, found = [tf.zeros([10_000]), tf.zeros([4]), tf.zeros([10_000])], []
  for k in range(2):
    with mock.patch.object(collectives, 'context', lambda k=k: Replica(k)):
      found.append(collectives.uniform_like(parts, [True, False, True], [1, 2]))
  np.testing.assert_array_equal(found[0][1], found[1][1])
  own = np.array([u for three in found for u in (three[0], three[2])])
  correlation = np.corrcoef(own)[np.triu_indices(4, 1)]
  assert np.max(np.abs(correlation)) < 0.053  # Of 6: once in a million.


@pytest.mark.slow
def test_on_one_device_names_change_nothing():
  state = [tf.ones([4, 3]), tf.ones([4])]
  draws = [
      sgmcmc.sample(
          sgmcmc.SGNHT(
              log_prob, 0.1, 1., experimental_shard_axis_names=names),
          3, state, seed=1, progress_bar=False).states
      for names in (None, NAMES)]
  for one, other in zip(*draws):
    np.testing.assert_array_equal(one, other)
