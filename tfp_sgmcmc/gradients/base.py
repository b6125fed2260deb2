"""What an estimator of the gradient of a log density is."""

import abc
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import posterior as posterior_lib

__all__ = [
    'EstimatorResults',
    'GaussianStep',
    'GradientEstimate',
    'GradientEstimator',
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
    num_gradients: `int64` scalar, the number of gradients of single examples
      that each chain has used so far: the cost in data, by which samplers are
      compared. A plain function counts as one example.
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
  momentum: list[tf.Tensor]
  drift: list[tf.Tensor]
  step_size: list[tf.Tensor]
  noise_scale: list[tf.Tensor]


class GradientEstimator(abc.ABC):
  """Estimates the gradient of a log density: one protocol for all ways.

  It is that of a `tfp.mcmc.TransitionKernel`: `bootstrap_results` makes the
  estimator's first state, `one_step` gives an estimate and the next state. All
  of it is in tensors, so that the estimators live in compiled chains. An
  estimator knows no kernel.
  """

  @property
  def compiles(self) -> bool:
    """Whether XLA can compile `one_step`."""
    return True

  @property
  def needs_gaussian_step(self) -> bool:
    """Whether `one_step` takes the step that the gradient is for."""
    return False

  @property
  def gives_derivatives(self) -> bool:
    """Whether there is `directional`: derivatives along a direction."""
    return False

  def check_target(self, target: Target) -> None:
    """Raises where the gradient of `target` cannot be estimated this way.

    Args:
      target: `Posterior`, or a callable that returns the log density.

    Raises:
      TypeError: If the estimator needs a `Posterior` and this is none.
      ValueError: If the posterior does not fit the estimator.
    """
    if not isinstance(target, posterior_lib.Posterior):
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
    del target, state_parts
    return EstimatorResults(tf.zeros([], tf.int64))

  @abc.abstractmethod
  def one_step(
      self,
      target: Target,
      state_parts: Sequence[tf.Tensor],
      previous_results: Any,
      seed: tf.Tensor,
      gaussian_step: GaussianStep | None = None,
  ) -> tuple[GradientEstimate, Any]:
    """Estimates the log density and its gradient.

    Args:
      target: `Posterior`, or a callable that returns the log density.
      state_parts: List of float tensors.
      previous_results: What `bootstrap_results` or `one_step` returned.
      seed: Stateless seed, `int32[2]`.
      gaussian_step: `GaussianStep` that the gradient is for. Only estimators
        that say `needs_gaussian_step` are given one; and they too make do
        without for the first gradient of a chain, which moves nothing.

    Returns:
      estimate: `GradientEstimate`.
      results: The estimator's next state.
    """

  def directional(
      self,
      target: Target,
      state_parts: Sequence[tf.Tensor],
      previous_results: Any,
      seed: tf.Tensor,
  ) -> tuple[Any, Any]:
    """A minibatch on which to take derivatives of the log density.

    Args:
      target: `Posterior`, or a callable that returns the log density.
      state_parts: List of float tensors; what counts is the chains' shape.
      previous_results: What `bootstrap_results`, `one_step` or `directional`
        returned.
      seed: Stateless seed, `int32[2]`.

    Returns:
      minibatch: `gradients.directional.Minibatch`.
      results: The estimator's next state, with one derivative of each example
        of the minibatch counted.
    """
    raise NotImplementedError(f'{self!r} gives no derivatives.')

  def __repr__(self):
    arguments = ', '.join(
        f'{name.lstrip("_")}={value!r}' for name, value in vars(self).items())
    return f'{type(self).__name__}({arguments})'


def count(results: Any, num_gradients: Any) -> Any:
  """`results` with `num_gradients` more gradients of single examples."""
  return results._replace(
      num_gradients=results.num_gradients + tf.cast(num_gradients, tf.int64))
