"""The logistic regression of Pakman et al. (2017), section 7.1, and its law.

N = 1,000 examples of d = 20 features, zero-mean Gaussian, one of variance 6 and
the others 1; true weights uniform in [-5, 5]. The paper names no prior: it is
standard normal here.
"""

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tests import oracle
from tests import references
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.pdmp import base

tfd = tfp.distributions

NUM_EXAMPLES, NUM_FEATURES = 1000, 20


class Law(NamedTuple):
  """Mean, standard deviations and covariance."""
  mean: np.ndarray
  sd: np.ndarray
  covariance: np.ndarray


def posterior(
    seed=0, dtype=np.float32, num_examples=NUM_EXAMPLES,
    num_features=NUM_FEATURES):
  rng = np.random.default_rng(seed)
  weights = rng.uniform(-5., 5., num_features)
  x = rng.normal(size=[num_examples, num_features])
  x[:, 0] *= np.sqrt(6.)
  y = rng.uniform(size=num_examples) < 1. / (1. + np.exp(-x @ weights))

  def log_likelihood(theta, batch):
    x, y = batch
    if x.shape.rank == 2:  # One minibatch for all chains.
      logits = tf.linalg.matmul(
          theta[..., tf.newaxis, :] if theta.shape.rank == 1 else theta, x,
          transpose_b=True)
      logits = logits[0] if theta.shape.rank == 1 else logits
    else:
      logits = tf.einsum('...nd,...d->...n', x, theta)
    return tfd.Bernoulli(logits=logits).log_prob(y)

  return sgmcmc.Posterior(
      lambda theta: oracle.normal_log_prob(theta, 0., 1.), log_likelihood,
      (x.astype(dtype), y.astype(dtype)))


@functools.cache
def law(seed):
  """The law, from 80,000 weighted draws of Laplace's approximation.

  Draws of a multivariate t with 50 degrees of freedom, a twentieth wider, with
  weights posterior / t. Six tenths of them are effective: the standard errors
  of the means are 0.005 standard deviations.
  """
  target = posterior(seed, np.float64)
  x, y = (leaf.numpy() for leaf in target.data)
  mode, covariance = references.laplace(target, NUM_FEATURES)

  def log_prob(theta):
    logits = theta @ x.T
    return (logits @ y - np.sum(np.logaddexp(0., logits), axis=1)
            - np.sum(theta**2, axis=1) / 2.)

  draws, weights = references.weighted_draws(
      log_prob, mode, covariance, 80_000, 50., [seed, 1], scale=1.05)
  covariance = np.cov(draws, rowvar=False, aweights=weights)
  return Law(weights @ draws, np.sqrt(np.diag(covariance)), covariance)


class PathMoments(NamedTuple):
  """Integrals along the paths of chains, about an origin.

  Attributes:
    duration: Time, shape `[chains]`.
    first: Integral of theta - origin, `[chains, d]`.
    second: Integral of its square.
    counts: Events of each kind, `[chains, 4]`, in the order of `pdmp.Event`.
    violations: Proposals with a rate above the bound, `[chains]`.
  """
  duration: tf.Tensor
  first: tf.Tensor
  second: tf.Tensor
  counts: tf.Tensor
  violations: tf.Tensor


def path_runner(make_kernel, block=500):
  """A compiled function that runs chains and integrates along their paths.

  It is `run(state, origin, num_events, seed, numbers=())`, for states of one
  part `[chains, d]`, and returns `PathMoments` in float64. The first `block`
  events are left out. The kernel is `make_kernel(*numbers)`, and the numbers
  are tensors of the program: other ones compile nothing anew.
  """
  @tf.function(jit_compile=True, autograph=False)
  def run_block(state, results, origin, seed, start, numbers):
    kernel = make_kernel(*numbers)
    zero = tf.zeros_like(results.duration)
    counts = tf.zeros([*zero.shape, len(base.Event)], state.dtype)
    empty = PathMoments(
        zero, tf.zeros_like(state), tf.zeros_like(state), counts, zero)

    def body(step, state, results, moments):
      new, results = kernel.one_step(
          state, results, seed=sgmcmc.random.fold_in(seed, step))
      a, b = state - origin, new - origin
      time = results.duration[:, tf.newaxis]
      return step + 1, new, results, PathMoments(
          moments.duration + results.duration,
          moments.first + time * (a + b) / 2.,
          moments.second + time * (a * a + a * b + b * b) / 3.,
          moments.counts + tf.one_hot(
              results.event, len(base.Event), dtype=state.dtype),
          moments.violations + tf.cast(results.rate_ratio > 1., state.dtype))

    return tf.while_loop(
        lambda step, *_: step < start + block, body,
        (start, state, results, empty))[1:]

  def run(state, origin, num_events, seed, numbers=()):
    origin, seed = tf.constant(origin, state.dtype), tf.constant(seed)
    numbers = [tf.constant(number, state.dtype) for number in numbers]
    results = make_kernel(*numbers).bootstrap_results(state, seed=seed)
    blocks = []  # Sums in float32 stay short.
    for start in range(0, block + num_events, block):
      state, results, moments = run_block(
          state, results, origin, seed, tf.constant(start), numbers)
      blocks.append([np.asarray(leaf, np.float64) for leaf in moments])
    return PathMoments(*(sum(leaves) for leaves in zip(*blocks[1:])))

  return run


def groups(moments, num_groups):
  """The moments of independent chains as those of groups of them."""
  return [
      PathMoments(*leaves)
      for leaves in zip(*(np.split(leaf, num_groups) for leaf in moments))]


class Comparison(NamedTuple):
  """A sampler's law against another: errors and their standard errors.

  Attributes:
    mean_error: Errors of the means in standard deviations, `[d]`.
    sd_ratio: Standard deviations over the law's, `[d]`.
    mean_standard_error: Of `mean_error`, from the spread between groups.
    sd_standard_error: Of `sd_ratio`.
    violation_share: Violations over proposals.
    events_per_bounce: Events over bounces.
  """
  mean_error: np.ndarray
  sd_ratio: np.ndarray
  mean_standard_error: np.ndarray
  sd_standard_error: np.ndarray
  violation_share: float
  events_per_bounce: float


def compare(runs, law, origin):
  """Compares independent runs, groups of chains, with a law."""
  def moments(runs):
    duration, first, second = (
        sum(np.sum(run[k], axis=0) for run in runs) for k in range(3))
    mean = first / duration
    sd = np.sqrt(second / duration - mean**2)
    return (mean + origin - law.mean) / law.sd, sd / law.sd

  # Leave-one-out estimates: the groups' standard error by the jackknife.
  without = [
      moments(runs[:k] + runs[k + 1:]) for k in range(len(runs))]
  def error(values):
    return np.std(values, axis=0) * np.sqrt(len(runs) - 1)
  mean_error, sd_ratio = moments(runs)
  counts = sum(np.sum(run.counts, axis=0) for run in runs)
  proposals = counts[base.Event.REJECTION] + counts[base.Event.BOUNCE]
  return Comparison(
      mean_error, sd_ratio, error([m for m, _ in without]),
      error([s for _, s in without]),
      float(sum(np.sum(run.violations) for run in runs) / proposals),
      float(np.sum(counts) / counts[base.Event.BOUNCE]))


def start(law, num_chains, seed, dtype):
  """Draws of a normal law."""
  rng = np.random.default_rng(seed)
  return tf.constant((
      law.mean + rng.normal(size=[num_chains, len(law.mean)])
      @ np.linalg.cholesky(law.covariance).T).astype(dtype))
