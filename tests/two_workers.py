"""Chains whose data are shared out among devices: the law is that on one.

  python -m tests.two_workers TASK PORT PORT FOLDER

once with task 0 and once with task 1: programs of their own, since TensorFlow
takes devices and workers when it starts. Each prints a line for each comparison
and fails with the first that does not hold. False alarms: 1e-6 a law.
"""

import functools
import json
import os
import pathlib
import sys
import time
from unittest import mock
import warnings

import numpy as np
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from tests import oracle
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import collectives
from tfp_sgmcmc import sharding

MODEL = oracle.LinearRegression(7)  # Four rows on one device, three on another.
STEP_SIZE, NUM_CHAINS, NUM_STEPS = 0.03, 10_000, 100
gradients = sgmcmc.gradients
tfd = tfp.distributions
# A row of each device.
_PAIRS = [(i, j) for i in range(0, 7, 2) for j in range(1, 7, 2)]


def sample(kernel, num_results=1, num_chains=NUM_CHAINS, **arguments):
  return sgmcmc.sample(
      kernel, num_results, tf.zeros([num_chains, 2]), progress_bar=False,
      **{**dict(seed=4, jit_compile=False), **arguments})


def last(kernel):
  """The last states of many chains, which are independent draws."""
  return sample(
      kernel, num_burnin_steps=NUM_STEPS - 1).states.numpy()[0]


def law(weights, difference, batches=_PAIRS):
  """Moments of SGLD with a row of each device, row i standing for so many.

  With `difference` the anchor of a control variate; None without.
  """
  def gradient(theta, batch):
    here = MODEL.gradients(theta)
    total = MODEL.prior_gradient(theta)
    if difference is not None:
      there = MODEL.gradients(MODEL.mean + difference)
      here, total = here - there, total + there.sum(axis=0)
    return total + sum(weights[i % 2] * here[i] for i in batch)

  def step(theta, batch, xi):
    return oracle.sgld_step(
        functools.partial(gradient, batch=batch), theta, STEP_SIZE, xi)

  return oracle.affine_moments([step], batches, 2)


def say(name, is_right, *numbers):
  print(f'{name}:', *(f'{number:.2g}' for number in numbers), flush=True)
  assert is_right, name


def check_laws(strategy, with_all):
  """Of minibatches that take a row of each device."""
  posterior = sgmcmc.shard(MODEL.posterior(), strategy)

  def kernel(estimator, posterior=posterior):
    return sgmcmc.SGLD(posterior, STEP_SIZE, gradient_estimator=estimator)

  uniform = last(kernel(gradients.Uniform(2)))
  p = oracle.moments_p_value(uniform, *law([4., 3.], None))
  say('uniform', p > 1e-6, p)
  if not with_all:
    return
  p = oracle.moments_p_value(uniform, *law([3.5, 3.5], None))
  say('planted: rows of both devices weigh alike', p < 1e-6, p)
  with mock.patch.object(collectives, 'all_reduce', list):
    # Another kernel: the program of the first one is made.
    p = oracle.moments_p_value(
        last(kernel(gradients.Uniform(2))), *law([4., 3.], None))
    say('planted: no all-reduce', p < 1e-6, p)
  anchor = np.float32(MODEL.mean + 0.3)
  p = oracle.moments_p_value(
      last(kernel(gradients.ControlVariate(2, anchor))), *law([4., 3.], 0.3))
  say('control variate', p > 1e-6, p)
  # On one device strata of the same rows have the same minibatches.
  strata = gradients.Stratified(2, np.arange(7) % 2)
  found = [
      moments(last(kernel(gradients.ExponentiallyWeighted(
          base=base), target)))
      for base, target in (
          (gradients.Uniform(2), posterior), (strata, MODEL.posterior()))]
  p = two_sample_p_value(*found)
  say('exponentially weighted', p > 1e-6, p)
  p = two_sample_p_value(found[0], moments(uniform))
  say('planted: without the weights', p < 1e-6, p)


def moments(theta):
  theta = theta - MODEL.mean
  return np.stack(
      [*theta.T, *theta.T**2, theta[:, 0] * theta[:, 1]], axis=1)


def two_sample_p_value(one, other):
  difference = one.mean(axis=0) - other.mean(axis=0)
  covariance = sum(np.cov(a, rowvar=False) / len(a) for a in (one, other))
  return scipy.stats.chi2.sf(
      difference @ np.linalg.solve(covariance, difference), len(difference))


def check_exact(sharded):
  """With all rows at each step the chain is that of one device."""
  found = [
      sample(sgmcmc.SGHMC(posterior, step_size=0.1, friction=1.), 15, 3)
      for posterior in (MODEL.posterior(), sharded)]
  difference = np.max(np.abs(found[0].states - found[1].states))
  say('exact', difference < 1e-4, difference)


def check_sample_chain(strategy):
  """TFP's driver, on each replica: of one chain, and of chains of its own.

  The data are the replica's rows, in a `ShardedPosterior` or in TFP's own
  sharded distributions.
  """
  whole = MODEL.posterior()
  parts = [
      strategy.experimental_distribute_values_from_function(
          lambda context, leaf=leaf: leaf[context.replica_id_in_sync_group::2])
      for leaf in whole.data]

  def chain(target):
    kernel = sgmcmc.SGLD(target, STEP_SIZE)
    return tfp.mcmc.sample_chain(
        3, tf.zeros([2]), kernel=kernel, trace_fn=None, seed=[0, 1])

  def with_posterior(*part):
    return chain(sgmcmc.ShardedPosterior(
        whole._log_prior_fn, whole._log_likelihood_fn, part, num_examples=7))

  def with_distributions(x, y):
    def likelihood(theta):
      return tfp.experimental.distribute.Sharded(
          tfd.Independent(tfd.Normal(tf.linalg.matvec(x, theta), 1.), 1),
          shard_axis_name='rows')

    joint = tfp.experimental.distribute.JointDistributionSequential([
        tfd.MultivariateNormalDiag(
            scale_diag=np.float32(MODEL.prior_precision**-0.5)), likelihood])
    return chain(lambda theta: joint.log_prob([theta, y]))

  wanted = chain(whole)
  for fn in (with_posterior, with_distributions):
    found = strategy.experimental_local_results(strategy.run(fn, args=parts))
    difference = max(np.max(np.abs(draws - wanted)) for draws in found)
    say(f'sample_chain {fn.__name__}', difference < 1e-5, difference)

  @tf.function(autograph=False)
  def own_chains():
    kernel = tfp.experimental.mcmc.Sharded(sgmcmc.SGLD(
        whole, STEP_SIZE, gradient_estimator=gradients.Uniform(2)), 'chains')
    return strategy.run(lambda: tfp.mcmc.sample_chain(
        1, tf.zeros([NUM_CHAINS // 2, 2]), kernel=kernel, trace_fn=None,
        num_burnin_steps=NUM_STEPS, seed=[0, 1])[0])

  found = np.concatenate(strategy.experimental_local_results(own_chains()))
  p = oracle.moments_p_value(
      found, *law([3.5, 3.5], None, MODEL.batches(2)))
  correlation = np.corrcoef(*np.split(found[:, 0], 2))[0, 1]
  say('chains of each replica', p > 1e-6 and (
      abs(correlation) < 4.9 / (NUM_CHAINS / 2)**0.5), p, correlation)


def check_directory(kernel, folder):
  """A second call goes on where the first has ended, in each process."""
  whole = sample(kernel, 12, 3)
  for number in (5, 12):
    found = sample(
        kernel, number, 3, directory=folder, chunk_size=2, fingerprint='')
  difference = np.max(np.abs(whole.states - found.states))
  say('from a directory', difference == 0., difference)
  print(f'writes: {sharding.find(kernel).is_of_first_process}', flush=True)


def wait_for_the_other(task, folder):
  """Neither process ends while the other may still wait for an answer of it."""
  (folder.parent / f'end {task}').touch()
  other = folder.parent / f'end {1 - task}'
  for _ in range(600):
    if other.exists():
      return
    time.sleep(0.1)


def main(task, ports, folder):
  os.environ['TF_CONFIG'] = json.dumps({
      'cluster': {'worker': [f'localhost:{port}' for port in ports]},
      'task': {'type': 'worker', 'index': task}})
  cpu, = tf.config.list_physical_devices('CPU')
  tf.config.set_logical_device_configuration(
      cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  # The programs run for less time than their optimisation takes.
  tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': True})
  warnings.simplefilter('ignore')
  several = tf.distribute.MultiWorkerMirroredStrategy()
  if task == 0:
    mirrored = tf.distribute.MirroredStrategy(
        ['/cpu:0', '/cpu:1'],
        # Its default takes the numbers of the groups of the other strategy.
        cross_device_ops=tf.distribute.ReductionToOneDevice())
    check_laws(mirrored, with_all=True)
    check_sample_chain(mirrored)
  check_laws(several, with_all=False)
  rows = slice(task, None, 2)
  whole = MODEL.posterior()
  part = sgmcmc.Posterior(
      whole._log_prior_fn, whole._log_likelihood_fn,
      tf.nest.map_structure(lambda leaf: leaf[rows], whole.data))
  check_exact(sgmcmc.shard(part, several, is_part=True))
  check_directory(
      sgmcmc.SGLD(sgmcmc.shard(whole, several), STEP_SIZE,
                  gradient_estimator=gradients.Uniform(2)), folder)
  wait_for_the_other(task, folder)


if __name__ == '__main__':
  main(int(sys.argv[1]), sys.argv[2:4], pathlib.Path(sys.argv[4]))
  sys.stdout.flush()
  os._exit(0)  # The threads of a strategy may take minutes to end.
