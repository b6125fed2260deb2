"""What an estimator of the gradient of a log density is."""

import abc
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints

__all__ = [
    'EstimatorResults',
    'Finding',
    'GaussianStep',
    'GradientEstimate',
    'GradientEstimator',
    'chains_of',
    'check_estimator',
    'count',
    'no_gradients',
]

Target = posterior_lib.Posterior | Callable[..., tf.Tensor]


class GradientEstimate(NamedTuple):
  """An estimate of a log density and of its gradient at one state.

  Attributes:
    target_log_prob: The log density, shape `chains`.
    grads_target_log_prob: List with the gradient by each part of the state.
  """
  target_log_prob: tf.Tensor
  grads_target_log_prob: list[tf.Tensor]


class EstimatorResults(NamedTuple):
  """The state of an estimator that keeps nothing from step to step.

  Attributes:
    num_gradients: `int64`, shape `chains`: the number of gradients of single
      examples that each chain has used so far. It is the cost in data, by which
      samplers are compared. A plain function counts as one example.
  """
  num_gradients: tf.Tensor


class GaussianStep(NamedTuple):
  """A kernel's step as it depends on the gradient g that it is given.

    r_next = r + drift + step_size g + noise_scale xi,  xi ~ N(0, I)

  Each attribute is a list over the parts of the state, its tensors in shapes
  that broadcast with them. Where there is no momentum (overdamped dynamics),
  r_next is the way that the position moves: theta_next - theta = r_next, and r
  and the drift are zero.

  Attributes:
    momentum: r.
    drift: What moves the momentum besides the gradient and the noise.
    step_size: What the gradient is multiplied by.
    noise_scale: The standard deviation of the noise.
  """
  momentum: Sequence[tf.Tensor]
  drift: Sequence[tf.Tensor]
  step_size: Sequence[tf.Tensor]
  noise_scale: list[tf.Tensor]


class Finding(NamedTuple):
  """A finding of an estimator on a run, for `diagnostics.summary`.

  Results with a finding have a method `finding(estimator)`; its argument is the
  estimator that made them, or None if that is not known.

  Attributes:
    quantity: What is measured, in words.
    value: Python `float`.
    is_fine: Whether the run may be trusted in this respect.
    advice: What the value has to be, and what to do if it is not: whole
      sentences.
  """
  quantity: str
  value: float
  is_fine: bool
  advice: str


class GradientEstimator(abc.ABC):
  """Estimates the gradient of a log density: the protocol of all estimators.

  The protocol is that of a `tfp.mcmc.TransitionKernel`: `bootstrap_results`
  makes the estimator's first state, `one_step` returns an estimate and the next
  state. All states are tensors, so estimators work in compiled chains. An
  estimator does not depend on a kernel.

  An estimator declares in properties what kernels need to know of it. The
  defaults promise nothing. Kernels that require no property (`SGLD`, `SGHMC`,
  `SGNHT`) accept an estimator with these defaults; other kernels refuse it and
  name the property that they need.

  #### Examples

  Your own estimator, which takes the gradient on the first or on the second
  half of the data:

  >>> class Halves(sgmcmc.gradients.GradientEstimator):
  ...   has_independent_noise = True  # Of each step's own seed alone.
  ...   has_bounded_noise = True
  ...   def one_step(self, target, state_parts, previous_results, seed,
  ...                gaussian_step=None):
  ...     size = target.num_examples // 2
  ...     first = sgmcmc.random.indices(2, [1], seed)[0] * size
  ...     batch = target.gather(first + tf.range(size))
  ...     with tf.GradientTape() as tape:
  ...       tape.watch(state_parts)
  ...       value = target.log_prob_estimate(*state_parts, batch=batch)
  ...     return (
  ...         sgmcmc.gradients.GradientEstimate(
  ...             value, tape.gradient(value, state_parts)),
  ...         sgmcmc.gradients.count(previous_results, size))
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x),
  ...     data=tf.range(10.))
  >>> kernel = sgmcmc.SGLD(posterior, 0.01, gradient_estimator=Halves())
  >>> tfp.mcmc.sample_chain(
  ...     5, tf.zeros([4]), kernel=kernel, trace_fn=None, seed=[0, 0]).shape
  TensorShape([5, 4])
  """

  @property
  def compiles(self) -> bool:
    """Whether XLA can compile `one_step`."""
    return True

  @property
  def needs_gaussian_step(self) -> bool:
    """Whether `one_step` needs the step that the gradient is for."""
    return False

  @property
  def follows_seed(self) -> bool:
    """Whether the seed alone chooses the minibatch.

    If so, a second `one_step` with the same seed and the same results uses the
    same examples, even if the state has changed in between.
    """
    return False

  @property
  def is_exact(self) -> bool:
    """Whether the estimate is the gradient itself, without noise."""
    return False

  @property
  def has_independent_noise(self) -> bool:
    """Whether the noise of each step is independent of all other steps.

    Samplers that are exact with minibatches need it. It is false if an
    estimator learns from the chain, or reads the data in epochs.
    """
    return False

  @property
  def has_bounded_noise(self) -> bool:
    """Whether the noise at a state is bounded for all random numbers.

    If the bound comes from an anchor, as in control variates, define `anchor`.
    """
    return False

  @property
  def lives_on_batches(self) -> bool:
    """Whether it works on data that change in each step, as in `fit`.

    Each step then has another `Posterior`. Its data are a batch that was chosen
    outside the estimator, without the numbers of the examples.
    """
    return False

  @property
  def why_not_on_batches(self) -> str:
    """What to do where `lives_on_batches` is false, whole sentences."""
    return (
        'Leave it out; or, if it works on whatever data the posterior of a '
        'step holds, let it declare lives_on_batches = True.')

  @property
  def works_on_shards(self) -> bool:
    """Whether it works where each device holds a part of the data.

    If so, it uses only the posterior's sums over all rows (`log_prob_estimate`,
    `sum_over_rows`, `total_rows`), and never the number of a row.
    """
    return False

  @property
  def gives_derivatives(self) -> bool:
    """Whether there is a method `directional`, as `Uniform` has it.

    It gives the minibatch of a step with the derivatives along a direction,
    one for each example; see `gradients.directional`.
    """
    return False

  @property
  def chooses_among_sets(self) -> bool:
    """Whether it can estimate on sets of examples that the caller chooses.

    Then it has the methods of `IndexSetEstimator`, and can be the base of
    `ExponentiallyWeighted`.
    """
    return False

  def anchor(self, results: hints.EstimatorResults) -> Any:
    """The `Anchor` whose gradients are its control variates, None without.

    Args:
      results: The estimator's state.

    Returns:
      anchor: `Anchor`, or None.
    """
    del results
    return None

  def check_target(self, target: Target) -> None:
    """Raises if the estimator cannot estimate the gradient of `target`.

    Args:
      target: `Posterior`, or a callable that returns the log density.

    Raises:
      TypeError: If the estimator needs examples and the target has none.
      ValueError: If the posterior does not fit the estimator.
    """
    if not posterior_lib.as_posterior(target).has_examples:
      raise TypeError(
          f'{type(self).__name__} works on minibatches, so it needs a '
          'Posterior(log_prior_fn, log_likelihood_fn, data), and got the plain '
          f'function {target!r}. If the kernel was wrapped in '
          'tfp.mcmc.TransformedTransitionKernel, which turns the posterior '
          'into a plain function: sample posterior.transform(bijector) in its '
          'place. For a density without data, leave gradient_estimator out.')

  def bootstrap_results(
      self, target: Target, state_parts: Sequence[tf.Tensor]) -> Any:
    """The estimator's first state; a count alone unless overridden.

    Args:
      target: `Posterior`, or a callable that returns the log density.
      state_parts: List of float tensors.

    Returns:
      results: `NamedTuple` of tensors, one of them `num_gradients`.
    """
    return EstimatorResults(no_gradients(target, state_parts))

  @abc.abstractmethod
  def one_step(
      self,
      target: Target,
      state_parts: Sequence[tf.Tensor],
      previous_results: hints.EstimatorResults,
      seed: tf.Tensor,
      gaussian_step: GaussianStep | None = None,
  ) -> tuple[GradientEstimate, Any]:
    """Estimates the log density and its gradient.

    Args:
      target: `Posterior`, or a callable that returns the log density.
      state_parts: List of float tensors.
      previous_results: What `bootstrap_results` or `one_step` returned.
      seed: Stateless seed, `int32[2]`.
      gaussian_step: `GaussianStep` that the gradient is for, or None if the
        kernel has none. It is None for the first gradient of a chain, which
        moves nothing.

    Returns:
      estimate: `GradientEstimate`.
      results: The estimator's next state.
    """

  def __repr__(self):
    arguments = ', '.join(
        f'{name.lstrip("_")}={value!r}' for name, value in vars(self).items())
    return f'{type(self).__name__}({arguments})'


def check_estimator(name: str, value: object) -> None:
  """Raises where an argument, by its name, is no estimator."""
  if not isinstance(value, GradientEstimator):
    raise TypeError(
        f'{name} is {value!r}: it has to be one of tfp_sgmcmc.gradients, such '
        'as gradients.Uniform(batch_size=100), or None for the default.')


def no_gradients(
    target: Target, state_parts: Sequence[tf.Tensor]) -> tf.Tensor:
  """`num_gradients` at the start: zeros, `int64`, in the chains' shape."""
  return tf.zeros_like(
      posterior_lib.as_posterior(target).zeros(state_parts), tf.int64)


def count(
    results: hints.EstimatorResults,
    num_gradients: hints.TensorLike,
) -> Any:
  """`results` with `num_gradients` more gradients of single examples."""
  return results._replace(
      num_gradients=results.num_gradients + tf.cast(num_gradients, tf.int64))


def chains_of(results: hints.EstimatorResults) -> Any:
  """The chains' shape, read off an estimator's results."""
  return compat.shape(results.num_gradients)
