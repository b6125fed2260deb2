"""Parts of states that are other pieces on each replica: the law of one device.

  python -m tests.own_parts [variants]

A program of its own, since TensorFlow takes its devices when it starts. It
prints a line for each comparison and fails with the first that does not hold.
False alarms: 1e-6 a law.

The model has effects b_j of three groups with an unknown mean, and five rows:

  mu ~ N(0, s^2),  b_j ~ N(mu, t^2),  y_i ~ N(b_g(i), 1)

The first replica has the rows of two groups, and their effects; the second has
the third's.
"""

import contextlib
import functools
import itertools
import os
import sys
from unittest import mock
import warnings

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tests import oracle
from tests import two_workers
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import collectives

gradients = sgmcmc.gradients
distribute = tfp.experimental.distribute
tfd = tfp.distributions

S, T = 1.5, 0.7
GROUPS = np.array([0, 0, 1, 2, 2])
X = np.eye(3, dtype=np.float32)[GROUPS]
Y = np.float32([1.3, -0.4, 0.8, -1.9, 0.3])
# Of each replica: its rows, and its effects.
ROWS = [slice(0, 3), slice(3, 5)]
PIECES = [slice(0, 2), slice(2, 3)]
NAMES = ['rows', None]
ALL_ROWS = [range(5)]
PAIRS = list(itertools.product(range(3), range(3, 5)))  # A row of each replica.
WEIGHTS = np.array([3., 3., 3., 2., 2.])
ANCHOR = np.array([0.4, 0.9, -1.2, 0.2])
START = [np.float32([0.4, 0.4, -0.5]), np.float32(0.1)]  # Near the mean.
H, NUM_STEPS, NUM_CHAINS = 0.15, 25, 10_000
say = two_workers.say
# Kernels of which the numbers are compared; `variants` are the others.
USUAL = (
    'SGHMC', 'SGNHT by part', 'microcanonical', 'split zig-zag',
    'split bouncy', 'adapted SGHMC')


def prior(num_effects, sharded=lambda distribution: distribution):
  return distribute.JointDistributionSequential([
      tfd.Normal(0., S),
      lambda mu: sharded(tfd.Sample(tfd.Normal(mu, T), num_effects))])


def log_likelihood(effects, mu, batch):
  del mu
  x, y = batch
  return tfd.Normal(
      tf.einsum('...nd,...d->...n', x, effects), 1.).log_prob(y)


def number():
  """The number of the replica that asks; None on one device."""
  context = collectives.context()
  return None if context is None else int(context.replica_id_in_sync_group)


sharded = functools.partial(distribute.Sharded, shard_axis_name='rows')


def posterior():
  """With the data and the effects of the replica that asks."""
  k = number()
  if k is None:
    joint = prior(3)
    return sgmcmc.Posterior(
        lambda effects, mu: joint.log_prob([mu, effects]), log_likelihood,
        (X, Y))
  rows, piece = ROWS[k], PIECES[k]
  joint = prior(piece.stop - piece.start, sharded)
  return sgmcmc.ShardedPosterior(
      lambda effects, mu: joint.log_prob([mu, effects]), log_likelihood,
      (X[rows, piece], Y[rows]), num_examples=5,
      experimental_shard_axis_names=NAMES)


def of_tfps_distributions(make_kernel):
  """The kernel on the replica that asks, of TFP's distributions alone."""
  k = number()
  rows, piece = ROWS[k], PIECES[k]
  first, second = prior(piece.stop - piece.start, sharded).model
  joint = distribute.JointDistributionSequential([
      first, second, lambda effects: sharded(tfd.Independent(tfd.Normal(
          tf.linalg.matvec(X[rows, piece], effects), 1.), 1))])
  mean, effects, _ = joint.experimental_shard_axis_names
  return make_kernel(
      lambda effects, mu: joint.log_prob([mu, effects, Y[rows]])
  ).experimental_with_shard_axes([effects, mean])


def chain(make_kernel, num_steps, num_chains):
  """The last state and results of chains on the replica that asks."""
  k = number()
  effects, mu = START
  return tfp.mcmc.sample_chain(
      1, [tf.stack([effects[slice(None) if k is None else PIECES[k]]]
                   * num_chains), tf.fill([num_chains], mu)],
      num_burnin_steps=num_steps - 1, kernel=make_kernel(), seed=[3, 4],
      trace_fn=lambda _, results: results)


def on_replicas(
    strategy, make_kernel, num_steps=NUM_STEPS, num_chains=NUM_CHAINS):
  """The last states `[chain, 4]`, and the results, by each replica's mean."""
  found = strategy.run(lambda: chain(make_kernel, num_steps, num_chains))
  local = strategy.experimental_local_results
  effects, mu = (local(part) for part in found.all_states)
  return [
      (join(tf.concat(effects, axis=-1), mu[k]), tf.nest.map_structure(
          lambda leaf, k=k: local(leaf)[k], found.trace)) for k in range(2)]


def on_one(make_kernel, num_steps=NUM_STEPS, num_chains=NUM_CHAINS):
  """The same on one device."""
  found = chain(make_kernel, num_steps, num_chains)
  return join(*found.all_states), found.trace


def join(effects, mu):
  return np.concatenate([effects[0], mu[0][:, np.newaxis]], axis=1)


def draws_of(strategy, make_kernel):
  """Independent draws, which are the same on both replicas."""
  (draws, _), (others, _) = on_replicas(strategy, make_kernel)
  np.testing.assert_array_equal(draws, others)
  return draws


def gradient(theta, batch, weights, anchor=None):
  """Written again in NumPy; `theta` is (b, mu)."""
  def of_rows(theta):
    return X * (Y - X @ theta[:3])[:, np.newaxis]

  b, mu = theta[:3], theta[3]
  of_prior = np.append(-(b - mu) / T**2, -mu / S**2 + np.sum(b - mu) / T**2)
  each, all_there = of_rows(theta), 0.
  if anchor is not None:
    each, all_there = each - of_rows(anchor), of_rows(anchor).sum(axis=0)
  of_data = all_there + sum(weights[i] * each[i] for i in batch)
  return of_prior + np.append(of_data, 0.)


def law(step, size, batches=PAIRS, weights=WEIGHTS, anchor=None):
  """Stationary mean and covariance of theta, of `step(gradient, z, xi)`."""
  mean, covariance = oracle.affine_moments(
      [lambda z, batch, xi: step(functools.partial(
          gradient, batch=batch, weights=weights, anchor=anchor), z, xi)],
      batches, size)
  return mean[:4], covariance[:4, :4]


def sgld(target=posterior, **arguments):
  return sgmcmc.SGLD(target(), H, **arguments)


def sghmc(target=posterior, **arguments):
  return sgmcmc.SGHMC(target(), 0.3, 2., **arguments)


def sgnht(target=posterior, **arguments):
  return sgmcmc.SGNHT(target(), 0.2, 1., **arguments)


def sgld_law(*arguments, **others):
  return law(
      lambda g, z, xi: oracle.sgld_step(g, z, H, xi), 4, *arguments, **others)


def sghmc_law():
  return law(lambda g, z, xi: oracle.euler_step(
      g, z, 0.3, 2., np.append(np.zeros(4), xi[4:])[4:]), 8)


def check_laws(strategy):
  uniform = gradients.Uniform(2)
  minibatches = functools.partial(sgld, gradient_estimator=uniform)
  exact = functools.partial(
      of_tfps_distributions, lambda target: sgmcmc.SGLD(target, H))
  exact_law = sgld_law(ALL_ROWS, np.ones(5))
  for name, make_kernel, wanted in (
      ("SGLD of TFP's distributions", exact, exact_law),
      ('SGLD', minibatches, sgld_law()),
      ('SGLD with control variates', functools.partial(
          control_variates, sgld), sgld_law(anchor=ANCHOR)),
      ('SGHMC', functools.partial(sghmc, gradient_estimator=uniform),
       sghmc_law())):
    p = oracle.moments_p_value(draws_of(strategy, make_kernel), *wanted)
    say(name, p > oracle.FALSE_ALARM_RATE, p)
  with mock.patch.object(collectives, 'own_seed', lambda seed: seed):
    p = oracle.moments_p_value(draws_of(strategy, exact), *exact_law)
  say('planted: the noise of one replica on both',
      p < oracle.FALSE_ALARM_RATE, p)


def control_variates(make_kernel):
  k = number()
  return make_kernel(gradient_estimator=gradients.ControlVariate(
      2, [np.float32(ANCHOR[PIECES[k]]), np.float32(ANCHOR[3])]))


def check_thermostat(strategy):
  """After so many steps, which need not be stationary, as on one device."""
  wanted = features(*on_one(functools.partial(
      sgnht, gradient_estimator=gradients.Stratified(2, GROUPS // 2))))
  found, others = (features(*pair) for pair in on_replicas(
      strategy, functools.partial(
          sgnht, gradient_estimator=gradients.Uniform(2))))
  np.testing.assert_array_equal(found, others)
  p = two_workers.two_sample_p_value(found, wanted)
  say('SGNHT', p > oracle.FALSE_ALARM_RATE, p)


def features(draws, results):
  z = np.concatenate([draws, np.transpose(results.thermostat)], axis=1)
  rows, columns = np.triu_indices(z.shape[1])
  return np.concatenate([z, z[:, rows] * z[:, columns]], axis=1)


def pieces_of_the_whole(parts, is_own, seed):
  """In place of `collectives.normal_like`: of one device's noise the pieces."""
  del is_own
  num_chains, = parts[1].shape
  effects, mu = sgmcmc.random.normal_like(
      [tf.zeros([num_chains, 3]), tf.zeros([num_chains])], seed)
  k = number()
  return [effects if k is None else effects[:, PIECES[k]], mu]


def pieces_of_the_whole_uniform(parts, is_own, seed):
  """The same of `collectives.uniform_like`."""
  del is_own
  num_chains, = parts[1].shape
  effects, mu = (
      sgmcmc.random.uniform(shape, seed, stream=k)
      for k, shape in enumerate(([num_chains, 3], [num_chains])))
  k = number()
  return [effects if k is None else effects[:, PIECES[k]], mu]


def check_numbers(strategy, is_of_variants=False):
  """With the noise of one device the chain is that of one device."""
  adapted = lambda target: sgmcmc.TemperatureStepSizeAdaptation(
      sghmc(lambda: target), 6)
  makers = {
      'SGLD': lambda target: sgld(lambda: target),
      'pSGLD': lambda target: sgmcmc.SGLD(
          target, 0.02, preconditioner=sgmcmc.preconditioners.RMSProp(
              regularizer=0.1)),
      'SGHMC': lambda target: sghmc(lambda: target),
      'BAOAB': lambda target: sghmc(lambda: target, integrator='baoab'),
      'SGNHT': lambda target: sgnht(lambda: target),
      'SGNHT, a schedule': lambda target: sgmcmc.SGNHT(
          target, lambda step: tf.fill([1], 0.2), 1.),
      'SGNHT by part': lambda target: sgnht(
          lambda: target, thermostat='part', thermostat_mass=0.2,
          noise_estimate=0.5,
          preconditioner=sgmcmc.preconditioners.Diagonal([0.8, 0.7])),
      'SGNHT, "euler"': lambda target: sgnht(
          lambda: target, integrator='euler'),
      'mSGNHT': lambda target: sgnht(lambda: target, thermostat='diagonal'),
      'SGLRW': lambda target: sgmcmc.SGLRW(
          target, 0.1, gradient_estimator=gradients.Exact()),
      'Barker': lambda target: sgmcmc.StochasticBarker(target, 0.1),
      'microcanonical': lambda target: sgmcmc.MicrocanonicalLangevin(
          target, 0.3, gradient_estimator=gradients.Exact()),
      'split zig-zag': lambda target: sgmcmc.pdmp.SplitZigZag(target, 0.3),
      'sticky zig-zag': lambda target: sgmcmc.pdmp.SplitZigZag(
          target, 0.3, sticky=[1., None]),
      'split bouncy': lambda target: sgmcmc.pdmp.SplitBouncyParticle(
          target, 0.5, refresh_rate=0.),
      'adapted SGHMC': adapted,
      'adaptive time': lambda target: sgmcmc.AdaptiveTime(sghmc(
          lambda: target)),
  }
  for name, make in makers.items():
    if (name in USUAL) == is_of_variants:
      continue
    of_posterior = lambda make=make: make(posterior())
    ways = [of_posterior]
    if name in ('SGLD', 'SGNHT', 'adapted SGHMC'):
      ways.append(functools.partial(of_tfps_distributions, make))
    with (mock.patch.object(collectives, 'normal_like', pieces_of_the_whole),
          mock.patch.object(
              collectives, 'uniform_like', pieces_of_the_whole_uniform)):
      wanted = on_one(of_posterior, 4, 5)
      for way in ways:
        found = on_replicas(strategy, way, 4, 5)
        difference = distance(found, wanted)
        say(f'numbers of {name}', difference < 1e-4, difference)
      if name in ('SGNHT', 'SGNHT by part', 'SGNHT, a schedule',
                  'microcanonical', 'split bouncy', 'adapted SGHMC',
                  'adaptive time'):
        with without_sums_over_replicas():
          found = on_replicas(strategy, of_posterior, 4, 5)
        difference = distance(found, wanted)
        say(f'planted: {name} by the pieces', difference > 1e-3, difference)


def distance(found, wanted):
  """Between states, and what of the results is one for all coordinates."""
  def numbers(draws, results):
    names = ('thermostat', 'energy_error', 'log_factor', 'excess',
             'log_weight', 'target_log_prob')
    rest = [getattr(results, name, 0.) for name in names]
    return [draws, *(x for x in rest if not isinstance(x, list))]

  return max(
      np.max(np.abs(np.subtract(a, b)))
      for pair in found for a, b in zip(numbers(*pair), numbers(*wanted)))


@contextlib.contextmanager
def without_sums_over_replicas():
  totals = collectives.totals
  with mock.patch.object(
      collectives, 'totals', lambda dtype, is_own, *values: totals(
          dtype, [False] * len(is_own), *values)):
    yield


def check_refusals(strategy):
  """What differs between replicas and must not is an error at the start."""
  def plain(effects, mu):
    return tf.reduce_sum(
        tfd.Normal(mu[..., tf.newaxis], T).log_prob(effects), axis=-1)

  def with_plain_prior():
    k = number()
    return sgmcmc.SGLD(sgmcmc.ShardedPosterior(
        plain, log_likelihood, (X[ROWS[k], PIECES[k]], Y[ROWS[k]]),
        num_examples=5, experimental_shard_axis_names=NAMES), 0.1)

  def start(mu, effect):
    k = number()
    kernel = sgld()
    kernel.bootstrap_results([
        tf.fill([1, PIECES[k].stop - PIECES[k].start], effect(k)),
        tf.fill([1], mu(k))])

  one = lambda k: 1.
  for name, fn, message in (
      ('a plain prior', lambda: chain(with_plain_prior, 1, 1), 'Sharded'),
      ('another mean on each', lambda: start(float, one), 'replicas differ'),
      ('NaN on one', lambda: start(one, lambda k: 0. if k else np.nan),
       'not finite')):
    try:
      strategy.run(fn)
    except ValueError as error:
      say(f'refused: {name}', message in str(error))
    else:
      say(f'refused: {name}', False)


def main():
  cpu, = tf.config.list_physical_devices('CPU')
  tf.config.set_logical_device_configuration(
      cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  # The programs run for less time than their optimisation takes.
  tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': True})
  warnings.simplefilter('ignore')
  strategy = tf.distribute.MirroredStrategy(
      ['/cpu:0', '/cpu:1'],
      cross_device_ops=tf.distribute.ReductionToOneDevice())
  if 'variants' in sys.argv[1:]:
    check_numbers(strategy, is_of_variants=True)
    return
  for check in (check_refusals, check_numbers, check_laws, check_thermostat):
    check(strategy)


if __name__ == '__main__':
  main()
  sys.stdout.flush()
  os._exit(0)  # The threads of a strategy may take minutes to end.
