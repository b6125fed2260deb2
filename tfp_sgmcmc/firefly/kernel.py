"""Firefly Monte Carlo: exact, though most of the data are not looked at.

With L_i(theta) the likelihood of example i and 0 < B_i(theta) <= L_i(theta) a
bound, each example gets a brightness z_i in {0, 1}, with the joint density

  p(theta, z) = p(theta) prod_i B_i  prod_{i: z_i = 1} (L_i - B_i) / B_i

(Maclaurin and Adams 2015, section 2). Summed over z it is the posterior. The
first product costs the same whatever N, the second runs over the bright.

With r_i = (L_i - B_i) / B_i at theta, a step is

  z:      of each dark example, with probability q:  bright with min(1, r_i / q)
          of each bright example:                    dark   with min(1, q / r_i)
  theta:  theta' = theta + h g + sqrt(2 h) xi,  g = grad log p(theta, z)
          ("langevin", MALA) or g = 0 ("random_walk");
          taken with min(1, p(theta', z) q(theta | theta')
                            / (p(theta, z) q(theta' | theta)))

The first is the implicit resampling of the paper's section 3 with q_{d->b} = q
(`resample_fraction`) and q_{b->d} = 1. Both rates are at least those of its
explicit resampling (Gibbs) of a fraction q of the examples, q r/(1 + r) and
q/(1 + r), at the same cost.

The dark examples to look at are found without a look at the rest: their number
among all N is drawn, Binomial(N, q), then that many distinct indices, and the
bright ones among these are passed over.
"""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import errors
from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc import kernel as kernel_lib
from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc import random
from tfp_sgmcmc.firefly import bright_sets
from tfp_sgmcmc.firefly import likelihood_bounds
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = ['FireflyMonteCarlo', 'FireflyResults']

# A bound so many roundings above its likelihood counts as equal to it.
_NUM_ROUNDINGS = 1000.


@kernel_lib.refuses_corrections
class FireflyResults(NamedTuple):
  """Results of `FireflyMonteCarlo`.

  N + 4 `capacity` bytes a chain: trace fields of it, never all.

  Attributes:
    step: `int64` scalar, the number of steps made.
    target_log_prob: log p(theta, z) of the state and z, up to a constant, shape
      `chains`.
    is_accepted: Whether theta moved, shape `chains`.
    log_accept_ratio: Logarithm of the acceptance ratio, shape `chains`.
    gradient_estimator_results: `num_gradients`, shape `chains`: the number of
      likelihoods, with gradients where there are any, of single examples that
      each chain has asked for. It begins at 2 N, a pass for the sum of the
      bounds and one for the first z. (A compiled step computes what its static
      shapes hold, `capacity` where fewer are bright.)
    z: The brightness of each example, 0 or 1, `int8`, `chains + [N]`.
    bright_indices: `int32`, `chains + [capacity]`: which are bright, in the
      first `num_bright` places.
    num_bright: `int32`, shape `chains`.
    violation: `int32`, shape `chains`: an example whose bound was found above
      its likelihood, -1 if there is none.
    failed: Whether the chain has ended, because more than `capacity` examples
      are bright, or because a bound is violated. Its state is NaN.
  """
  step: tf.Tensor
  target_log_prob: tf.Tensor
  is_accepted: tf.Tensor
  log_accept_ratio: tf.Tensor
  gradient_estimator_results: gradients_lib.EstimatorResults
  z: tf.Tensor
  bright_indices: tf.Tensor
  num_bright: tf.Tensor
  violation: tf.Tensor
  failed: tf.Tensor

  def failure(self, state: hints.State) -> errors.Failure | None:
    """Which chains failed and why.

    Args:
      state: Not used.

    Returns:
      failure: `errors.Failure`, or None where no chain has failed.
    """
    del state
    if not tf.reduce_any(self.failed):
      return None
    reasons = []
    for index in map(tuple, np.argwhere(self.failed.numpy()).tolist()):
      where = f' in {errors.name_chain(index)}' if index else ''
      example = int(self.violation[index])
      if example >= 0:
        reasons.append(
            f'the bound of example {example} (counted from 0) is above its '
            f'likelihood{where}')
      else:
        reasons.append(
            f'{int(self.num_bright[index])} examples are to be bright{where}, '
            f'more than capacity={self.bright_indices.shape[-1]}')
    advice = []
    if tf.reduce_any(self.failed & (self.violation >= 0)):
      advice.append(
          'Look whether features, targets, scale and link function of the '
          'likelihood_bound are those of log_likelihood_fn.')
    if tf.reduce_any(self.failed & (self.violation < 0)):
      advice.append(
          'Take a larger capacity, or bounds with an anchor closer to the mode '
          'of the posterior, and start near it: then fewer are bright.')
    return errors.Failure(
        errors.FireflyError, errors.join_some(reasons), ' '.join(advice))


class _Seeds(NamedTuple):
  number: tf.Tensor
  indices: tf.Tensor
  brightness: tf.Tensor
  noise: tf.Tensor
  accept: tf.Tensor


class FireflyMonteCarlo(kernel_lib.Kernel):
  """Firefly Monte Carlo: exact, with few examples a step.

    p(theta, z) = p(theta) prod_i B_i prod_{i: z_i = 1} (L_i - B_i) / B_i

  In a step all bright examples may turn dark, and a random fraction q =
  `resample_fraction` of the dark examples may turn bright, with probabilities
  that leave p(z | theta) unchanged. Then theta moves by a Metropolis-Hastings
  step, which needs only the likelihoods of the bright examples (see the
  module's docstring). The law of theta is the posterior itself, at any step
  size.

  How many are bright depends on the bound: on average sum_i (1 - B_i / L_i), so
  `kernel.bootstrap_results(state).num_bright` at a state near the mode shows
  which `capacity` suffices. Shapes are static, so a step costs `capacity`
  likelihoods twice and about `resample_fraction` N once.

  With more bright examples than the capacity a step would not be exact.
  (Refusing such a z would sample the posterior given that at most `capacity`
  examples are bright.) Nor would it be with a bound above its likelihood.
  Bounds are checked over all the data at the first state, and later at every
  example that a step uses. In eager mode a failure raises an error. Compiled
  code cannot raise errors: there the chain turns NaN, and the results say why
  (`failed`, `violation`, `num_bright`, or in words `failure(state)`).
  `sgmcmc.sample` stops at the step and keeps the draws before.

  In float32, B_i / L_i - 1 has an error of about 1e-7 (1 + |log L_i|): take
  float64 if N times that is not small.

  #### Examples

  Logistic regression, with bounds that are tight near the mode:

  >>> x = tf.random.stateless_normal([1000, 2], [0, 1])
  >>> y = tf.cast(x[:, 0] + x[:, 1] > 0.5, tf.float32)
  >>> def log_likelihood(theta, batch):
  ...   x, y = batch
  ...   logits = tf.einsum('...nd,...d->...n', x, theta)
  ...   return tfd.Bernoulli(logits=logits).log_prob(y)
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.MultivariateNormalDiag(tf.zeros(2)).log_prob, log_likelihood,
  ...     (x, y))
  >>> mode = tfp.optimizer.lbfgs_minimize(
  ...     lambda theta: tfp.math.value_and_gradient(
  ...         lambda t: -posterior(t), theta), tf.zeros(2)).position
  >>> kernel = sgmcmc.FireflyMonteCarlo(
  ...     posterior, sgmcmc.likelihood_bounds.Logistic(anchor=mode),
  ...     step_size=0.01, capacity=100)
  >>> draws, num_bright = tfp.mcmc.sample_chain(
  ...     3, tf.tile(mode[tf.newaxis], [50, 1]), kernel=kernel, seed=[0, 0],
  ...     trace_fn=lambda _, results: results.num_bright)
  >>> draws.shape
  TensorShape([3, 50, 2])
  >>> bool(tf.reduce_max(num_bright) < 50)
  True

  #### References

  [1]: Dougal Maclaurin and Ryan P. Adams. Firefly Monte Carlo: Exact MCMC with
       Subsets of Data. _IJCAI_, 2015. https://arxiv.org/abs/1403.5693
  """

  def __init__(
      self,
      target_log_prob_fn: posterior_lib.Posterior,
      likelihood_bound: likelihood_bounds.LikelihoodBound,
      step_size: hints.Schedule,
      *,
      capacity: int,
      resample_fraction: float = 0.1,
      proposal: str = 'langevin',
      name: str | None = None,
  ):
    """Makes the kernel, with a pass over the data.

    Args:
      target_log_prob_fn: `Posterior` that holds the data.
      likelihood_bound: One of `tfp_sgmcmc.likelihood_bounds`, or a
        `LikelihoodBound` of one's own.
      step_size: h: a positive number, a tensor that broadcasts with each part
        of the state, or a callable of the step counter (an `int64` scalar). For
        "random_walk" as well: moves have the variance 2 h.
      capacity: Python `int`, how many examples may be bright at once.
      resample_fraction: q, the probability with which a dark example is
        proposed bright, in (0, 1]. About q N likelihoods a step: choose it so
        that they are as many as the bright ones.
      proposal: "langevin" (MALA) or "random_walk".
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If a number is out of its range, the posterior holds no data,
        or the data do not fit the bound.
      TypeError: If an argument is of the wrong type.
    """
    super().__init__(dict(
        target_log_prob_fn=target_log_prob_fn,
        likelihood_bound=likelihood_bound,
        step_size=step_size,
        capacity=capacity,
        resample_fraction=resample_fraction,
        proposal=proposal,
        name=name))
    checks.schedule('step_size', step_size, 0.)
    checks.one_of('proposal', proposal, ('langevin', 'random_walk'))
    checks.numeric('resample_fraction', resample_fraction, 0.)
    checks.fraction('resample_fraction', resample_fraction)
    if not isinstance(likelihood_bound, likelihood_bounds.LikelihoodBound):
      raise TypeError(
          f'likelihood_bound is {likelihood_bound!r}: it has to be one of '
          'tfp_sgmcmc.likelihood_bounds, such as Logistic(), or an object of a '
          'subclass of LikelihoodBound.')
    _check_posterior(target_log_prob_fn)
    num_rows = target_log_prob_fn.num_rows
    self._capacity = min(
        checks.positive_integer('capacity', capacity), num_rows)
    self._distribution_function = bright_sets.binomial_distribution_function(
        num_rows, float(resample_fraction))
    self._log_bound_sum = likelihood_bound.collapse(target_log_prob_fn.data)
    self._first_pass = tf.function(self._first_brightness, autograph=False)

  _Seeds = _Seeds
  _raises_eagerly = True

  @property
  def target_log_prob_fn(self) -> posterior_lib.Posterior:
    """The `Posterior`."""
    return self._parameters['target_log_prob_fn']

  @property
  def is_calibrated(self) -> bool:
    """True: the posterior is the stationary law at any step size."""
    return True

  def _bootstrap(self, parts, seeds):
    """z drawn given the state: it takes each likelihood for each chain."""
    self.target_log_prob_fn.check_state(parts)
    log_prior = self.target_log_prob_fn.log_prior(*parts)
    kernel_lib.check_chains(log_prior, parts)
    z, violation = self._first_pass(parts, seeds.brightness)
    num_rows = self.target_log_prob_fn.num_rows
    bright_indices, num_bright = bright_sets.compact(
        tf.reshape(compat.positions(num_rows), [num_rows])
        + tf.zeros_like(z, tf.int32), z > 0, self._capacity)
    failed = (num_bright > self._capacity) | (violation >= 0)
    results = FireflyResults(
        step=tf.zeros([], tf.int64),
        target_log_prob=log_prior,
        is_accepted=tf.zeros_like(failed),
        log_accept_ratio=tf.zeros_like(log_prior),
        gradient_estimator_results=gradients_lib.EstimatorResults(
            2 * num_rows + tf.zeros_like(num_bright, tf.int64)),
        z=z, bright_indices=bright_indices, num_bright=num_bright,
        violation=violation, failed=failed)
    failure = results.failure(parts) if tf.executing_eagerly() else None
    if failure is not None:
      raise ValueError(
          f'At the first state {failure.reason}. {failure.advice}')
    self._check_collapse(parts)
    first = self._evaluate(
        parts, bright_indices, lambda _: self._is_filled(num_bright))
    estimate = kernel_lib.check_finite(gradients_lib.GradientEstimate(
        first.log_joint, first.gradients), parts)
    return results._replace(target_log_prob=estimate.target_log_prob)

  def _one_step(self, parts, previous, seeds):
    light = self._brighten(parts, previous, seeds)
    is_filled = self._is_filled(light.num_bright)
    move = self._move(
        parts, light.current, light.bright_indices, is_filled, previous.step,
        seeds)
    is_accepted = move.is_accepted
    violation = tf.reduce_max(
        [previous.violation, light.current.violation, move.proposed.violation],
        axis=0)
    failed = (previous.failed | (violation >= 0)
              | (light.num_bright > self._capacity))
    next_parts = states.nan_where(
        failed, states.select(is_accepted, move.proposal, parts))
    return next_parts, FireflyResults(
        step=previous.step + 1,
        target_log_prob=tf.where(
            is_accepted, move.proposed.log_joint, light.current.log_joint),
        is_accepted=is_accepted & ~failed,
        log_accept_ratio=move.log_accept_ratio,
        gradient_estimator_results=gradients_lib.count(
            previous.gradient_estimator_results,
            light.num_looked_at + _count(is_filled)),
        z=light.z,
        bright_indices=light.bright_indices,
        num_bright=tf.where(
            previous.failed, previous.num_bright, light.num_bright),
        violation=tf.where(previous.failed, previous.violation, violation),
        failed=failed)

  def _brighten(self, parts, previous, seeds):
    """Draws z given theta; the same evaluation gives the gradient."""
    looked_at, is_looked_at = self._draw_indices(
        compat.shape(previous.num_bright), seeds)
    was_dark = tf.gather(
        previous.z, looked_at, batch_dims=previous.num_bright.shape.rank) < 1
    indices = tf.concat([previous.bright_indices, looked_at], axis=-1)
    filled = self._is_filled(previous.num_bright)
    is_proposed = was_dark & is_looked_at
    was_bright = tf.concat([filled, tf.zeros_like(is_proposed)], axis=-1)
    is_proposed = tf.concat([tf.zeros_like(filled), is_proposed], axis=-1)
    log_u = tf.math.log(random.uniform(
        compat.shape(indices), seeds.brightness, parts[0].dtype))
    log_q = math.log(self._parameters['resample_fraction'])
    current = self._evaluate(
        parts, indices,
        lambda log_ratio: resample(
            log_ratio, was_bright, is_proposed, log_q, log_u))
    bright_indices, num_bright = bright_sets.compact(
        indices, current.is_bright, self._capacity)
    change = (tf.cast(current.is_bright, tf.int8)
              - tf.cast(was_bright, tf.int8))
    return _Light(
        current, bright_sets.add_at(previous.z, indices, change),
        bright_indices, num_bright, _count(was_bright) + _count(is_proposed))

  def _move(self, parts, current, bright_indices, is_filled, step, seeds):
    """The Metropolis-Hastings step of theta, given z."""
    chain_rank = current.log_joint.shape.rank
    step_size = kernel_lib.at_step(self._parameters['step_size'], step, parts)
    noise = random.normal_like(parts, seeds.noise)
    proposal = [
        propose(*arguments)
        for arguments in zip(parts, current.gradients, step_size, noise)]
    proposed = self._evaluate(proposal, bright_indices, lambda _: is_filled)
    log_accept_ratio = proposed.log_joint - current.log_joint + sum(
        states.sum_event(correction(*arguments), chain_rank)
        for arguments in zip(parts, proposal, current.gradients,
                             proposed.gradients, step_size))
    u = random.uniform(
        compat.shape(log_accept_ratio), seeds.accept, log_accept_ratio.dtype)
    return _Move(
        proposal, proposed, log_accept_ratio, tf.math.log(u) < log_accept_ratio)

  def _is_filled(self, num_bright):
    """Which places of the list of bright examples are in use."""
    return tf.range(self._capacity) < num_bright[..., tf.newaxis]

  def _draw_indices(self, chains, seeds):
    """Each of the N examples with probability q: indices, and which count."""
    distribution_function = self._distribution_function
    u = random.uniform(
        tf.concat([chains, [1]], axis=0), seeds.number, tf.float64)
    number = tf.reduce_sum(
        tf.cast(u >= distribution_function, tf.int32), axis=-1, keepdims=True)
    most = len(distribution_function)
    indices = random.indices(
        self.target_log_prob_fn.num_rows, tf.concat([chains, [most]], axis=0),
        seeds.indices)
    return indices, tf.reshape(compat.positions(most), [most]) < number

  def _log_ratio(self, parts, indices):
    """log r of the examples at `indices`; and one bound that is too high."""
    posterior = self.target_log_prob_fn
    batch = posterior.gather(indices)
    log_likelihood = posterior.log_likelihood(*parts, batch=batch)
    log_bound = tf.convert_to_tensor(
        self._parameters['likelihood_bound'].log_bound(*parts, batch=batch))
    if not log_bound.shape.is_compatible_with(log_likelihood.shape):
      raise ValueError(
          f'The bound has shape {log_bound.shape} where the log likelihood has '
          f'{log_likelihood.shape}: one value for each chain and example is '
          'needed.')
    value, is_above = log_ratio(log_likelihood, log_bound)
    return value, tf.reduce_max(tf.where(is_above, indices, -1), axis=-1)

  def _collapsed(self, *parts):
    """The density of theta with all examples dark."""
    return (self.target_log_prob_fn.log_prior(*parts)
            + self._log_bound_sum(*parts))

  def _evaluate(self, parts, indices, choose):
    """log p(theta, z), its gradient, and z itself.

    Args:
      parts: The parts of theta.
      indices: Which examples may be bright, `chains + [n]`.
      choose: Callable of their log r; returns which are.

    Returns:
      evaluation: `_Evaluation`.
    """
    is_bright = violation = None

    def log_joint(*parts):
      nonlocal is_bright, violation
      log_r, violation = self._log_ratio(parts, indices)
      is_bright = choose(tf.stop_gradient(log_r))
      return self._collapsed(*parts) + tf.reduce_sum(
          tf.where(is_bright, log_r, tf.zeros_like(log_r)), axis=-1)

    if self._parameters['proposal'] == 'langevin':
      value, gradients = states.value_and_gradients(log_joint, parts)
    else:
      value, gradients = log_joint(*parts), [tf.zeros_like(p) for p in parts]
    return _Evaluation(value, gradients, is_bright, violation)

  def _first_brightness(self, parts, seed):
    """z drawn given theta, and an example of too high a bound: a pass."""
    posterior = self.target_log_prob_fn
    num_rows = posterior.num_rows
    chains = compat.shape(posterior.zeros(parts))
    length = likelihood_bounds.chunk_length(
        posterior.data, max(1, int(np.prod(chains))))
    num_chunks = -(-num_rows // length)

    def one_chunk(k, z, violation):
      rows = k * length + tf.reshape(compat.positions(length), [length])
      indices = tf.minimum(rows, num_rows - 1)
      log_r, too_high = self._log_ratio(parts, indices)
      u = random.uniform(
          compat.shape(log_r), random.fold_in(seed, k), log_r.dtype)
      is_bright = tf.math.log(u) < tf.math.log_sigmoid(log_r)
      return (k + 1, z.write(k, tf.cast(is_bright, tf.int8)),
              tf.maximum(violation, too_high))

    _, z, violation = tf.while_loop(
        lambda k, *_: k < num_chunks, one_chunk,
        (0, tf.TensorArray(tf.int8, num_chunks, element_shape=[
            *chains, length]), tf.fill(chains, -1)),
        parallel_iterations=1)
    z = tf.experimental.numpy.moveaxis(z.stack(), 0, -2)
    z = tf.reshape(z, tf.concat([chains, [num_chunks * length]], axis=0))
    return z[..., :num_rows], violation

  def _check_collapse(self, parts):
    """Raises where `collapse` is not the sum of `log_bound`, on some data."""
    bound = self._parameters['likelihood_bound']
    posterior = self.target_log_prob_fn
    with tf.init_scope():
      data = tf.nest.map_structure(lambda leaf: leaf[:64], posterior.data)
      log_bound_sum = bound.collapse(data)
    differences, scale = [], 1.
    for theta in (parts, [2. * part + 1. for part in parts]):
      log_bound = tf.convert_to_tensor(bound.log_bound(*theta, batch=data))
      collapsed = log_bound_sum(*theta)
      if not tf.convert_to_tensor(collapsed).shape.is_compatible_with(
          log_bound.shape[:-1]):
        raise ValueError(
            f'What bound.collapse(data) returned has shape {collapsed.shape}, '
            f'and {log_bound.shape[:-1]} is needed: one value a chain.')
      differences.append(tf.reduce_sum(log_bound, axis=-1) - collapsed)
      scale += tf.reduce_sum(tf.abs(log_bound), axis=-1) + tf.abs(collapsed)
    error = tf.abs(differences[0] - differences[1])
    if tf.executing_eagerly() and tf.reduce_any(error > 1e-3 * scale):
      raise ValueError(
          'bound.collapse(data) is not the sum of bound.log_bound over the '
          'data: they may differ by a constant alone, and on '
          f'{len(tf.nest.flatten(data)[0])} examples their difference changes '
          f'by {float(tf.reduce_max(error)):g} between two states.')


class _Light(NamedTuple):
  """The new z, and what it was drawn from."""
  current: '_Evaluation'
  z: tf.Tensor
  bright_indices: tf.Tensor
  num_bright: tf.Tensor
  num_looked_at: tf.Tensor


class _Move(NamedTuple):
  """Where theta is to move, and whether it does."""
  proposal: list[tf.Tensor]
  proposed: '_Evaluation'
  log_accept_ratio: tf.Tensor
  is_accepted: tf.Tensor


class _Evaluation(NamedTuple):
  """The density at a theta, and the z that it is given or that is drawn."""
  log_joint: tf.Tensor
  gradients: list[tf.Tensor]
  is_bright: tf.Tensor
  violation: tf.Tensor


def log_ratio(
    log_likelihood: tf.Tensor, log_bound: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
  """log((L - B) / B), and whether B is above L by more than rounding."""
  excess = log_likelihood - log_bound
  rounding = _NUM_ROUNDINGS * np.finfo(
      log_bound.dtype.as_numpy_dtype).eps * (1. + tf.abs(log_bound))
  is_positive = excess > 0.
  safe = tf.where(is_positive, excess, tf.ones_like(excess))
  value = safe + tf.math.log(-tf.math.expm1(-safe))
  nothing = tf.constant(-np.inf, value.dtype)
  return tf.where(is_positive, value, nothing), excess < -rounding


def resample(
    log_r: tf.Tensor,
    was_bright: tf.Tensor,
    is_proposed: tf.Tensor,
    log_q: float,
    log_u: tf.Tensor,
) -> tf.Tensor:
  """The new z of bright examples, and of dark ones proposed to be bright."""
  brightens = is_proposed & (log_u < log_r - log_q)
  darkens = was_bright & (log_u < log_q - log_r)
  return brightens | (was_bright & ~darkens)


def propose(theta, g, h, xi):
  """A Langevin step of one part; with g = 0 a random walk."""
  return theta + h * g + tf.sqrt(2. * h) * xi


def correction(theta, new, g, new_g, h):
  """log q(theta | new) - log q(new | theta) of one part, by coordinate."""
  forward, backward = new - theta - h * g, theta - new - h * new_g
  return (forward**2 - backward**2) / (4. * h)


def _count(mask):
  return tf.reduce_sum(tf.cast(mask, tf.int64), axis=-1)


def _check_posterior(posterior):
  if not posterior_lib.as_posterior(posterior).has_examples:
    raise TypeError(
        'FireflyMonteCarlo looks at single examples, so it needs a '
        'Posterior(log_prior_fn, log_likelihood_fn, data), and got '
        f'{posterior!r}.')
  if posterior.data is None:
    raise ValueError(
        'FireflyMonteCarlo keeps for each example whether it is bright, so it '
        'needs a posterior that holds all the data, and this one holds none '
        '(data=None). On batches that come from elsewhere, as in model.fit, '
        'take SGLD, SGHMC or SGNHT.')
  if posterior.num_examples != posterior.num_rows:
    raise ValueError(
        f'The posterior has num_examples={posterior.num_examples} and holds '
        f'{posterior.num_rows}: for an exact law all have to be there.')

