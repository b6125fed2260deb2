"""Replica exchange: chains of SGLD at several temperatures that swap places.

Replica k = 0, ..., R - 1 makes steps of SGLD at the temperature T_k = T q_k,
1 = q_0 < q_1 < ...; the states of replica 0 are the draws. Every so many steps,
in place of a step, neighbours i and j = i + 1 change places with probability
min(1, e^a),

  a = b D - u(b^2 s^2),      b = 1 / T_i - 1 / T_j,
  D = log p(theta_j) - log p(theta_i)
      + N / n sum_{x in S} (l_j(x) - l_i(x)),  one minibatch S for both,
  s^2 = N^2 / n (1 - n / M) v,  the variance of D, with v the sample variance
      (divisor n - 1) of l_j(x) - l_i(x) over the n rows of S, of M rows in all
      (M = N, unless the data are a sample that stands for N),
  u(c) = (c / 2 + c^2 / (4 (n + 1)) + c^3 / (3 (n + 1) (n + 3))) / F,

with p the prior and l_k(x) the log likelihood of a row x at theta_k. Deng et
al. (2020), equation 7, with their sigma^2 = s^2 / 2: they take the variance of
each of two independent estimates, averaged over the past. Here it is that of
their difference on one minibatch, which is smaller, and it is estimated on that
minibatch. u is the penalty of Ceperley and Dewing (1999). With normal noise of
known variance u = c / 2 makes the swap exact; the further terms correct for the
variance being estimated from n numbers.

Even and odd pairs take turns. Where all rows are in S there is no noise, and
the swap is that of parallel tempering.
"""

from collections.abc import Sequence
import itertools
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc import kernel
from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.mcmc import base
from tfp_sgmcmc.mcmc import sgld

__all__ = ['ReplicaExchangeSGLD', 'ReplicaExchangeSGLDResults']


@kernel.refuses_corrections
class ReplicaExchangeSGLDResults(NamedTuple):
  """Results of `ReplicaExchangeSGLD`.

  Attributes:
    step: `int64` scalar, the number of steps made, attempts to swap included.
    target_log_prob: The estimate of the log density at the state of replica 0
      before the step, shape `chains`.
    grads_target_log_prob: List with its gradient by each part.
    gradient_estimator_results: The state of the gradient estimator, one for all
      replicas; its `num_gradients` counts those of all.
    replicas: List over the replicas but the first, each a list of parts.
    num_attempts: `int64`, shape `[R - 1]`: how often each pair of neighbours
      attempted a swap.
    num_swaps: `int64`, shape `chains + [R - 1]`: how often it swapped.

  And the method `failure(state)`; see `errors`.
  """
  step: tf.Tensor
  target_log_prob: tf.Tensor
  grads_target_log_prob: list[tf.Tensor]
  gradient_estimator_results: Any
  replicas: list[list[tf.Tensor]]
  num_attempts: tf.Tensor
  num_swaps: tf.Tensor

  failure = base.failure  # type: ignore[misc]


class _Seeds(NamedTuple):
  """The seeds of a step, one for each use."""
  noise: tf.Tensor
  gradient: tf.Tensor
  rows: tf.Tensor
  accept: tf.Tensor


class ReplicaExchangeSGLD(base.LangevinKernel):
  """SGLD chains at several temperatures that swap states: for many modes.

    theta_k <- theta_k + h g_k + sqrt(2 h T_k) xi,      k = 0, ..., R - 1
    theta_i <-> theta_{i+1}  with probability  min(1, exp(b D - u(b^2 s^2)))

  in every `swap_every`-th step, with b = 1 / T_i - 1 / T_{i+1}, D an estimate
  from a minibatch of log density(theta_{i+1}) - log density(theta_i), s^2 its
  variance, estimated on the same minibatch, and u(c) = c / 2 + ... a correction
  for the noise of D; the module's docstring has the whole formula. The hot
  chains move between modes. Swaps pass these modes on to the cold chain, whose
  states are the draws.

  With normal noise a swap does not change the laws of its two chains, so the
  bias is that of SGLD. Noise makes swaps rarer: at c = b^2 s^2 = 4 one in three
  remains, at 16 one in twenty. Temperatures nearer to each other lower c, and
  so does a larger `swap_batch_size`. Without u (`correction_factor=inf`) there
  are more swaps and the draws are too hot.

  A step costs R gradients. `results.num_swaps / results.num_attempts` says how
  often neighbours swap: a fifth to a half is good. A step size that is right
  for SGLD is right for all replicas, since noise heats hot replicas less.

  #### Examples

  Two modes, of 0.7 and 0.3 of the mass. SGLD would stay in the mode in which it
  starts:

  >>> target = tfd.MixtureSameFamily(
  ...     tfd.Categorical(probs=[0.7, 0.3]), tfd.Normal([-4., 4.], 1.))
  >>> kernel = sgmcmc.ReplicaExchangeSGLD(
  ...     target.log_prob, step_size=0.1, temperature_ratios=(1., 2.5, 6.))
  >>> draws = sgmcmc.sample(
  ...     kernel, 1000, tf.fill([100], 4.), num_burnin_steps=2000, seed=1,
  ...     num_steps_between_results=9, progress_bar=False)
  >>> share = tf.reduce_mean(tf.cast(draws.states < 0., tf.float32))
  >>> 0.65 < float(share) < 0.75
  True

  #### References

  [1]: Wei Deng, Qi Feng, Liyao Gao, Faming Liang, Guang Lin. Non-convex
       Learning via Replica Exchange Stochastic Gradient MCMC. _ICML_, 2020.
       arXiv:2008.05367.
  [2]: David M. Ceperley and Mark Dewing. The penalty method for random walks
       with uncertain energies. _The Journal of Chemical Physics_, 1999.
  """

  _Seeds = _Seeds

  def __init__(
      self,
      target_log_prob_fn: hints.LogDensity,
      step_size: hints.Schedule,
      temperature_ratios: Sequence[float] = (1., 2., 4., 8.),
      *,
      swap_every: int = 10,
      gradient_estimator: gradients_lib.GradientEstimator | None = None,
      temperature: hints.Schedule = 1.,
      swap_batch_size: int | None = None,
      correction_factor: float = 1.,
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      target_log_prob_fn: `Posterior` that holds its data, or a callable of the
        state's parts that returns the log density, one value a chain.
      step_size: h, that of `SGLD`, of all replicas: a positive number, a tensor
        that broadcasts with each part of the state, or a callable of the step
        counter (an `int64` scalar), such as a Keras schedule.
      temperature_ratios: q, the temperatures divided by that of the draws: at
        least two numbers that rise from 1. With geometric ratios all pairs swap
        about equally often.
      swap_every: Python `int`, at least 2: every so many steps an attempt to
        swap takes the place of a step.
      gradient_estimator: One of `tfp_sgmcmc.gradients`; None is the exact
        gradient.
      temperature: T of replica 0, above zero: one number for all chains and
        coordinates, or a callable of the step counter.
      swap_batch_size: Python `int`, n, at least 2: the number of rows of the
        minibatch by which swaps are decided. Default: `batch_size` of the
        estimator; without one, all rows that the posterior holds (in `fit`
        those of the batch).
      correction_factor: F, a positive number, which may be infinite. 1 is
        right; a larger number swaps more often, with a bias towards hot draws.
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If a number is out of its range, the posterior holds no data
        or divides them among devices, or the estimator does not fit.
      TypeError: If the estimator needs a `Posterior` and gets a function, or an
        argument is not an integer.
    """
    checks.schedule('temperature', temperature, 0.)
    checks.scalar('temperature', temperature(tf.zeros([], tf.int64))
                  if callable(temperature) else temperature)
    ratios = checks.real_array('temperature_ratios', temperature_ratios)
    if ratios.ndim != 1 or len(ratios) < 2 or ratios[0] != 1. or (
        not np.all(np.diff(ratios) > 0.) or not np.isfinite(ratios[-1])):
      raise ValueError(
          f'temperature_ratios is {temperature_ratios!r}: two numbers or more '
          'are needed that rise from 1, such as (1., 2., 4.).')
    if checks.positive_integer('swap_every', swap_every) < 2:
      raise ValueError(
          'swap_every is 1: each step would be an attempt to swap, and no '
          'chain would move. Take 2 or more.')
    if swap_batch_size is not None and checks.positive_integer(
        'swap_batch_size', swap_batch_size) < 2:
      raise ValueError(
          'swap_batch_size is 1: one row does not show its own noise. Take 2 '
          'or more.')
    if correction_factor != np.inf:
      checks.positive_number('correction_factor', correction_factor)
    super().__init__(dict(
        target_log_prob_fn=target_log_prob_fn,
        step_size=step_size,
        temperature_ratios=temperature_ratios,
        swap_every=swap_every,
        gradient_estimator=gradient_estimator,
        temperature=temperature,
        swap_batch_size=swap_batch_size,
        correction_factor=correction_factor,
        name=name))
    self._ratios = ratios.tolist()
    if self._target.is_sharded:
      raise ValueError(
          'The data of the posterior are shared out, and the swaps of '
          'ReplicaExchangeSGLD are decided inside a condition, where devices '
          'cannot add up. Take SGLD, or a Posterior that holds all data.')
    if self._target.has_examples and self._target.data is None:
      return  # `_start` tells, since fit makes kernels without data.
    self._check_rows()

  def _check_rows(self):
    rows = self._num_rows()
    if rows is not None and self._target.has_examples and rows < 2 and (
        rows < self._target.num_examples):
      raise ValueError(
          f'Swaps are decided by {rows} row: one does not show its own noise. '
          'Pass swap_batch_size, 2 or more.')
    held = checks.static_value(self._target.num_rows)
    if rows is not None and held is not None and rows > held:
      raise ValueError(
          f'swap_batch_size is {rows}, and the posterior holds {int(held)} '
          'rows: take a smaller one.')

  def _num_rows(self):
    """n; None for all rows that the posterior holds."""
    given = self._parameters['swap_batch_size']
    return getattr(
        self._estimator, 'batch_size', None) if given is None else given

  @property
  def why_no_excess(self):
    return (
        'ReplicaExchangeSGLD has chains at several temperatures, and one step '
        'size. Find it with SGLD.')

  def _start(self, parts, estimate, estimator_results, seeds):
    if self._target.has_examples and self._target.data is None:
      raise ValueError(
          'This posterior holds no data (data=None), and swaps are decided by '
          'a minibatch of its rows: pass data.')
    pairs = len(self._ratios) - 1
    log_prob = estimate.target_log_prob
    return ReplicaExchangeSGLDResults(
        tf.zeros([], tf.int64), *estimate, estimator_results,
        [list(parts) for _ in range(pairs)], tf.zeros([pairs], tf.int64),
        tf.zeros(tf.concat([compat.shape(log_prob), [pairs]], 0), tf.int64))

  def _one_step(self, parts, previous, seeds):
    swap_every = self._parameters['swap_every']
    step = previous.step + 1
    is_swap = tf.equal(step % swap_every, 0)
    everyone = [list(parts), *previous.replicas]
    step_size, temperature = (
        self._at_step(name, previous.step, parts)
        for name in ('step_size', 'temperature'))
    estimator_results, moved = previous.gradient_estimator_results, []
    for k, (theta, ratio) in enumerate(zip(everyone, self._ratios)):
      estimate, estimator_results = self._estimator.one_step(
          self._target, theta, estimator_results,
          random.fold_in(seeds.gradient, k))
      if k == 0:
        first = estimate
      moved.append(sgld.langevin_step(
          theta, estimate.grads_target_log_prob, step_size,
          base.each(lambda t, q=ratio: q * t, temperature),
          self._noise(theta, random.fold_in(seeds.noise, k))))
    none = tf.zeros_like(previous.num_swaps, tf.bool)
    parity = (step // swap_every) % min(2, len(self._ratios) - 1)
    everyone, swaps = tf.cond(
        is_swap,
        lambda: self._swapped(everyone, temperature[0], parity, first, seeds),
        lambda: (moved, none))
    is_tried = is_swap & tf.equal(
        tf.range(len(self._ratios) - 1, dtype=tf.int64) % 2, parity)
    parts, *hot = everyone
    # A hot chain that is lost would only be noticed by the absence of swaps.
    rank = first.target_log_prob.shape.rank
    is_lost = ~tf.math.is_finite(sum(
        tf.cast(states.sum_event(part, rank), first.target_log_prob.dtype)
        for replica in hot for part in replica))
    return states.nan_where(is_lost, parts), ReplicaExchangeSGLDResults(
        step, *first, estimator_results, hot,
        previous.num_attempts + tf.cast(is_tried, tf.int64),
        previous.num_swaps + tf.cast(swaps, tf.int64))

  def _swapped(self, everyone, temperature, parity, first, seeds):
    """All replicas after an attempt of every other pair, and which swapped."""
    log_prob = first.target_log_prob
    u = tf.math.log(random.uniform(
        tf.concat([compat.shape(log_prob), [len(everyone) - 1]], 0),
        seeds.accept, log_prob.dtype))
    temperature = states.cast(temperature, log_prob.dtype)
    values = self._densities(everyone, compat.shape(log_prob), seeds.rows)
    everyone, swaps = list(everyone), []
    for i, (q, hotter) in enumerate(itertools.pairwise(self._ratios)):
      difference, variance, number = self._difference(values[i], values[i + 1])
      log_ratio = log_probability(
          (1. / q - 1. / hotter) / temperature, difference, variance, number,
          self._parameters['correction_factor'])
      # A ratio that is no number is not accepted.
      swaps.append((u[..., i] < log_ratio) & tf.equal(parity, i % 2))
      everyone[i], everyone[i + 1] = (
          states.select(swaps[-1], everyone[i + 1], everyone[i]),
          states.select(swaps[-1], everyone[i], everyone[i + 1]))
    return everyone, tf.stack(swaps, axis=-1)

  def _densities(self, everyone, chains, seed):
    """Of each replica the log prior, and the log likelihood of each row."""
    target = self._target
    if not target.has_examples:
      return [(target(*parts), None) for parts in everyone]
    rows = self._num_rows()
    batch = target.data if rows is None else target.gather(random.indices(
        target.num_rows, tf.concat([chains, [rows]], 0), seed))
    return [
        (target.log_prior(*parts), target.log_likelihood(*parts, batch=batch))
        for parts in everyone]

  def _difference(self, values, others):
    """D, s^2 and n of two replicas."""
    (log_prior, own), (log_prior_of_other, other) = values, others
    difference = log_prior_of_other - log_prior
    if own is None:
      return difference, tf.zeros_like(difference), 1.
    by_row = other - own
    n, population = (
        tf.cast(number, difference.dtype)
        for number in (compat.shape(by_row)[-1], self._target.population))
    total = float(self._target.num_examples)
    mean = tf.reduce_mean(by_row, axis=-1)
    v = tf.reduce_sum(
        tf.square(by_row - mean[..., tf.newaxis]), axis=-1
    ) / tf.maximum(n - 1., 1.)
    variance = total**2 / n * tf.maximum(1. - n / population, 0.) * v
    return difference + total * mean, variance, n


def log_probability(
    b: tf.Tensor, difference: tf.Tensor, variance: tf.Tensor, number: tf.Tensor,
    correction_factor: float,
) -> tf.Tensor:
  """a = b D - u(b^2 s^2), the logarithm of the probability of a swap.

  Args:
    b: The difference of the inverse temperatures, positive.
    difference: D.
    variance: s^2.
    number: n.
    correction_factor: F.

  Returns:
    log_probability: In the shape of D; above 0 where the swap is certain.
  """
  c = tf.square(b) * variance
  u = c / 2. + c**2 / (4. * (number + 1.)) + c**3 / (
      3. * (number + 1.) * (number + 3.))
  return b * difference - u / correction_factor
