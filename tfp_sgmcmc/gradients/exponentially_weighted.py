"""Exponentially weighted stochastic gradients (EWSG).

A kernel whose step is Gaussian given the gradient g of the log density,

  r_next = r + drift + h g + s xi,  xi ~ N(0, I),

needs, with the estimate g_I from the minibatch I, the noise xi = x + a_I, where

  x = (r_next - r - drift) / s,  a_I = -h g_I / s.

The minibatch is drawn with weights that make up for its noise (theorem 2,
equation 4 of the paper),

  p_I ~ exp(|x + a_I|^2 / 2),

over all coordinates of all parts of a chain, by a Metropolis chain on the index
set (algorithm 1): I is drawn uniformly, then M times

  J uniform;  I <- J with probability
      min(1, exp(|x + a_J|^2 / 2 - |x + a_I|^2 / 2))             equation 5.

Each g_I holds the whole prior, which is the prior spread evenly over the terms.
r_next is not known when I is drawn, and x stands for a guess of it. In the
symbols of the paper, s = sigma sqrt(h), g_I = -n grad V_I and a_I = n a_i. For
overdamped dynamics r = drift = 0 and r_next = theta_next - theta.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.gradients.base import Finding
from tfp_sgmcmc.gradients.base import GaussianStep
from tfp_sgmcmc.gradients.base import GradientEstimator
from tfp_sgmcmc.gradients.base import chains_of
from tfp_sgmcmc.gradients.base import check_estimator
from tfp_sgmcmc.gradients.base import count
from tfp_sgmcmc.gradients.index_sets import IndexSetEstimator
from tfp_sgmcmc.gradients.uniform import Uniform
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = ['ExponentiallyWeighted', 'ExponentiallyWeightedResults']

_SHIFTS = {
    'stationary': lambda step: [
        -drift / s for drift, s in zip(step.drift, step.noise_scale)],
    'zero': lambda step: [tf.zeros_like(s) for s in step.noise_scale],
    'zero_next_momentum': lambda step: [
        -(r + drift) / s
        for r, drift, s in zip(step.momentum, step.drift, step.noise_scale)],
}


class ExponentiallyWeightedResults(NamedTuple):
  """Results of `ExponentiallyWeighted`.

  Attributes:
    step: `int64` scalar, the number of steps made.
    acceptance: The share of the index chain's proposals that were accepted, the
      mean over all steps so far; shape `chains`. Near 1, the minibatches weigh
      about the same: their noise is small beside the kernel's own. Near 0, the
      index chain hardly moves, and more of its steps, larger minibatches or a
      smaller step size would help.
    base_results: The state of the estimator of the terms.
  """
  step: tf.Tensor
  acceptance: tf.Tensor
  base_results: Any

  @property
  def num_gradients(self) -> tf.Tensor:
    """`int64`, shape `chains`: gradients of single examples used so far."""
    return self.base_results.num_gradients

  def finding(self, estimator: GradientEstimator | None = None) -> Finding:
    """Whether the index chain is saturated: see `least_acceptance`."""
    least = getattr(estimator, 'least_acceptance', 0.)
    needed = least + 0.1 * (1. - least)
    share = float(tf.reduce_mean(self.acceptance))
    is_fine = share >= needed
    return Finding(
        "acceptance of EWSG's index chain", share, is_fine,
        f'It has to be above {needed:.2g}; at {least:.2g} the heaviest '
        'minibatch always wins.' + ('' if is_fine else (
            ' Take a smaller step size or larger minibatches.')))


class ExponentiallyWeighted(GradientEstimator):
  """Minibatches whose weights compensate for their noise (EWSG).

    p_I ~ exp(|x + a_I|^2 / 2),  x = (r_next - r - drift) / s,  a_I = -h g_I / s

  for a kernel's step r_next = r + drift + h g + s xi. Of M + 1 minibatches
  drawn uniformly, a Metropolis chain of M steps chooses one: a step costs M + 1
  minibatch gradients.

  To first order in the noise C of g, its effect with "stationary" is friction,
  even with M = 1. For `SGHMC`, E[g_I | r] = g - h / (2 T) C (r - g / gamma);
  the part with r balances the heat of the noise. SGLD has no momentum: x = 0,
  and the weights favour large gradients. Expect little from it there.

  Its bias: if the gradients of examples are skewed, the weights shift the mean
  gradient, in proportion to Cov(g, |g|^2). The mean of the chain can then be
  further off than with plain minibatches. On a regression with a transformed
  scale (103 examples, n = 20, friction 20) the mean of log sigma was off by
  .275, .176, .106, .066 and .033 standard deviations at h = .006 and four
  successive halvings of it; `SGHMC` with `Uniform` was off by .107 and .047 at
  the first two. The bias falls more slowly than h while the index chain is
  saturated, that is while its `acceptance` is near `least_acceptance` (1/2 with
  M = 1). Check the acceptance, and compare with half the step size.

  It needs a kernel whose step is Gaussian given one gradient: SGLD, SGHMC (not
  "baoab") or SGNHT, with noise. With an adapting preconditioner the weights are
  those of the last step's. In a step without noise (the end of a schedule of
  temperatures) the minibatch is drawn uniformly.

  #### Examples

  >>> x = tf.random.stateless_normal([1000], [0, 1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x), x)
  >>> kernel = sgmcmc.SGHMC(
  ...     posterior, step_size=0.01, friction=30.,
  ...     gradient_estimator=sgmcmc.gradients.ExponentiallyWeighted(50))
  >>> _, _, results = tfp.mcmc.sample_chain(
  ...     10, tf.zeros([4]), kernel=kernel, seed=[0, 0],
  ...     trace_fn=lambda *_: (), return_final_kernel_results=True)
  >>> results.gradient_estimator_results.acceptance.shape
  TensorShape([4])
  >>> results.gradient_estimator_results.num_gradients.numpy().tolist()
  [1050, 1050, 1050, 1050]

  (Ten steps of two minibatches, and one for the first results.) In `fit`, take
  `base=Reshuffled()`, which deals each batch into M + 1 minibatches, at the
  cost of the batch.

  #### References

  [1]: Ruilin Li, Xin Wang, Hongyuan Zha, Molei Tao. Improving Sampling Accuracy
       of Stochastic Gradient MCMC Methods via Non-uniform Subsampling of
       Gradients. _Discrete and Continuous Dynamical Systems S_, 2021.
       Theorem 2, equation 5, algorithm 1.
  """

  def __init__(
      self,
      batch_size: int | None = None,
      *,
      num_index_steps: int = 1,
      base: IndexSetEstimator | None = None,
      shift: hints.TensorLike = 'stationary',
  ):
    """Makes the estimator.

    Args:
      batch_size: Python `int`, n, the number of examples in each of the M + 1
        minibatches, drawn uniformly. Leave it out where there is a `base`.
      num_index_steps: Python `int`, M, the number of steps of the index chain.
      base: The estimator of the terms, such as `SVRG(batch_size, ...)`; it
        draws the minibatches, and its preparation runs once a step. Default:
        `Uniform(batch_size)`. With `Reshuffled()` all rows of the data are
        divided at random among the minibatches. Take it if the data are
        themselves a batch (in `fit`). These minibatches are disjoint, so that
        for M > 1 the index chain is that of algorithm 1 up to terms of order n
        / N.
      shift: x, a guess of the next step. "stationary": r_next = r, so that
        x = -drift / s (for `SGHMC` h gamma r / s). "zero": x = 0, r_next = r +
        drift. "zero_next_momentum": r_next = 0, x = -(r + drift) / s. A number,
        or a tensor that broadcasts with each part of the state: that x. Or a
        function of the `GaussianStep` that returns x, a list over the parts.
        For overdamped dynamics the three words mean the same: x = 0, theta_next
        = theta.

    Raises:
      ValueError: If a number is out of its range, `shift` is an unknown word,
        there is neither `batch_size` nor `base`, or the two differ.
      TypeError: If an argument is of the wrong type.
    """
    self._num_index_steps = checks.positive_integer(
        'num_index_steps', num_index_steps)
    self._base = _terms(batch_size, base)
    self._shift = shift
    if isinstance(shift, str):
      checks.one_of('shift', shift, tuple(_SHIFTS))
    elif not callable(shift):
      checks.numeric('shift', shift, -float('inf'))

  @property
  def least_acceptance(self) -> float:
    """The acceptance of a saturated index chain: the heaviest always wins.

    Of M + 1 minibatches in random order the (m + 1)-st is the heaviest so far
    with probability 1 / (m + 1), so that the mean over M steps is

      (1 / 2 + 1 / 3 + ... + 1 / (M + 1)) / M,

    1 / 2 with M = 1. Even weights have 1.
    """
    return sum(
        1. / (m + 1) for m in range(1, self._num_sets)) / self._num_index_steps

  @property
  def compiles(self):
    return self._base.compiles

  @property
  def needs_gaussian_step(self):
    return True

  @property
  def has_bounded_noise(self):
    return self._base.has_bounded_noise

  @property
  def lives_on_batches(self):
    return self._base.lives_on_batches

  @property
  def works_on_shards(self):
    return self._base.works_on_shards

  @property
  def why_not_on_batches(self):
    return (
        'Take ExponentiallyWeighted(base=gradients.Reshuffled()), which '
        'deals each batch into num_index_steps + 1 minibatches, and set '
        'batch_size in fit.')

  @property
  def _num_sets(self):
    return self._num_index_steps + 1

  def check_target(self, target):
    self._base.check_target(target)
    # In fit the data are a batch, and the last one may be short.
    if (target.data is not None
        and checks.static_value(target.num_rows) == target.num_examples):
      self._base.check_sets(target, self._num_sets)

  def bootstrap_results(self, target, state_parts):
    self._base.check_sets(target, self._num_sets)
    return ExponentiallyWeightedResults(
        tf.zeros([], tf.int64),
        target.zeros(state_parts),
        self._base.bootstrap_results(target, state_parts))

  def one_step(
      self, target, state_parts, previous_results, seed, gaussian_step=None):
    step, acceptance, base_results = previous_results
    chains = chains_of(previous_results)
    base_results = self._base.prepare(target, state_parts, base_results)
    sets = self._base.index_sets(
        target, chains, self._num_sets, random.fold_in(seed, 0))

    def estimate_at(m):
      return self._base.estimate(
          target, state_parts, base_results, sets.draw(m))

    if gaussian_step is None:
      return estimate_at(0), previous_results._replace(
          base_results=count(base_results, sets.cost // self._num_sets))
    shift = self._shift_of(gaussian_step)

    def index_step(m, estimate, num_accepted):
      """Moves to set m with the probability of equation 5."""
      proposed = estimate_at(m)
      log_ratio = log_weight_ratio(
          proposed.grads_target_log_prob, estimate.grads_target_log_prob,
          shift, gaussian_step, acceptance.shape.rank)
      uniform = random.uniform(
          chains, random.fold_in(seed, m + 1), acceptance.dtype)
      # False where the ratio is NaN, as it is where there is no noise.
      accepted = uniform < tf.exp(tf.cast(log_ratio, acceptance.dtype))
      estimate = states.select(accepted, proposed, estimate)
      return m + 1, estimate, num_accepted + tf.cast(accepted, acceptance.dtype)

    carry = (1, estimate_at(0), tf.zeros_like(acceptance))
    if sets.have_one_size and not target.is_sharded:
      carry = tf.while_loop(
          lambda m, *_: m < self._num_sets, index_step, carry)
    else:
      for _ in range(self._num_index_steps):
        carry = index_step(*carry)
    _, estimate, num_accepted = carry
    share = num_accepted / self._num_index_steps
    acceptance += (share - acceptance) / tf.cast(step + 1, acceptance.dtype)
    return estimate, ExponentiallyWeightedResults(
        step + 1, acceptance, count(base_results, sets.cost))

  def _shift_of(self, gaussian_step):
    """x, a list over the parts."""
    parts = gaussian_step.noise_scale
    if isinstance(self._shift, str):
      return _SHIFTS[self._shift](gaussian_step)
    if not callable(self._shift):
      return [states.cast(self._shift, s.dtype) for s in parts]
    shift = self._shift(gaussian_step)
    if not isinstance(shift, (list, tuple)) or len(shift) != len(parts):
      raise ValueError(
          f'shift is a function that returned {shift!r}: it has to return a '
          f'list of {len(parts)} tensor(s), one for each part of the state.')
    return [tf.cast(x, s.dtype) for x, s in zip(shift, parts)]


def _terms(batch_size, base):
  """The estimator that gives the gradient at an index set."""
  if batch_size is not None:
    batch_size = checks.positive_integer('batch_size', batch_size)
  if base is None:
    if batch_size is None:
      raise ValueError(
          'There are neither batch_size nor base: pass batch_size=n for '
          'minibatches drawn uniformly, or base, the estimator that draws '
          'them, such as SVRG(n, ...) or, in fit, Reshuffled().')
    return Uniform(batch_size)
  check_estimator('base', base)
  if not base.chooses_among_sets:
    raise TypeError(
        f'base is {base!r}, and a step tries several minibatches here: it has '
        'to be an estimator that estimates on given ones, and learns from none '
        '(chooses_among_sets). Take Uniform, SVRG, ControlVariate (without '
        'probabilities), Stratified or Reshuffled.')
  of_base = getattr(base, 'batch_size', None)
  if batch_size not in (None, of_base):
    raise ValueError(
        f'batch_size is {batch_size}, and that of base {base!r} is {of_base}: '
        'leave batch_size out, the minibatches are those of base.')
  return base


def log_weight_ratio(
    proposed: Sequence[tf.Tensor],
    current: Sequence[tf.Tensor],
    shift: Sequence[tf.Tensor],
    gaussian_step: GaussianStep,
    chain_rank: int,
) -> tf.Tensor:
  """|x + a_J|^2 / 2 - |x + a_I|^2 / 2 = (a_J - a_I) . (x + (a_J + a_I) / 2).

  Args:
    proposed: List with g_J for each part.
    current: List with g_I for each part.
    shift: List with x for each part.
    gaussian_step: `GaussianStep`.
    chain_rank: The number of leading axes that are chains.

  Returns:
    log_ratio: Shape `chains`.
  """
  total = 0.
  for g_new, g_old, x, h, s in zip(
      proposed, current, shift, gaussian_step.step_size,
      gaussian_step.noise_scale):
    a_new, a_old = -h / s * g_new, -h / s * g_old
    product = (a_new - a_old) * (2. * x + a_new + a_old)
    rank = product.shape.rank
    # Two sums, kept apart by the half: the first of them XLA makes of vector
    # instructions; a sum over all axes at once costs as much as a gradient.
    rows = tf.reduce_sum(
        product, axis=range(chain_rank, max(chain_rank, rank - 1)))
    total += states.sum_event(rows / 2., chain_rank)
  return total
