"""What the discrete-time kernels share beyond all kernels: steps of time.

A kernel's own file holds its mathematics: one pure function of tensors.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import collectives
from tfp_sgmcmc import errors
from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc import kernel
from tfp_sgmcmc import preconditioners
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = [
    'Excess', 'LangevinKernel', 'Seeds', 'check_fixed', 'each', 'failure',
    'times', 'why_no_shards']


class Excess(NamedTuple):
  """The excess temperature of a chain in one step, as a share of T.

  Use the mean of either over many steps and coordinates. Each attribute is a
  list over the parts of the state.

  Attributes:
    measured: Its mean is the excess of the chain's temperature, exactly so in
      the stationary law.
    predicted: A less noisy estimate, also valid before stationarity; it may be
      too large.
    memory: In how many steps the momentum is forgotten; 0 without momentum.
  """
  measured: list[tf.Tensor]
  predicted: list[tf.Tensor]
  memory: list[tf.Tensor]


class Seeds(NamedTuple):
  """The seeds of one step, one for each use."""
  noise: tf.Tensor
  gradient: tf.Tensor


class LangevinKernel(kernel.GradientKernel):
  """Base of the kernels that follow an estimated gradient in steps of time.

  A subclass passes its arguments as `parameters` and defines `_start` and
  `_one_step` on lists of state parts. It declares its properties for other
  modules in `friction_argument`, `stores_kicked_momentum`, `balances_noise`,
  `excess`, `why_no_excess`, `why_no_adaptive_time` and `why_no_shards`: where
  that is None, noise comes of `_noise` and `_uniform`, and sums over
  coordinates of `collectives.totals`.

  Attributes:
    friction_argument: The name of the argument that gives the friction of the
      momentum, which the results hold as `momentum`, a list over the parts;
      None for a kernel without momentum.
  """

  friction_argument: str | None = None
  _Seeds: type[Any] = Seeds
  _time_factor: tf.Tensor | None = None

  def __init__(self, parameters: dict[str, Any]):
    """Checks and keeps the arguments that all these kernels have.

    Args:
      parameters: The arguments of the subclass's constructor, by name.
    """
    checks.schedule('step_size', parameters['step_size'], 0.)
    checks.schedule(
        'temperature', parameters['temperature'], 0., strict=False)
    super().__init__(parameters)

  @property
  def is_calibrated(self) -> bool:
    """False: steps of finite size, without a Metropolis test, have a bias."""
    return False

  @property
  def lives_on_batches(self) -> bool:
    """True: what a step needs of the data is an estimate of the gradient."""
    return True

  @property
  def stores_kicked_momentum(self) -> bool:
    """Whether the momentum in the results is that just after its kick.

    Its mean square is then too large by the share h friction / 2. This does not
    affect the law of the positions.
    """
    return False

  @property
  def balances_noise(self) -> bool:
    """Whether it compensates for gradient noise of unknown size."""
    return False

  def friction_of_noise(self, num_coordinates: int) -> Any:
    """gamma, with which h C / (2 gamma T) is the gradient's noise over its own.

    With C the variance of the gradient's noise. It is the friction of the
    momentum, and 1 where there is none.

    Args:
      num_coordinates: d, of all parts of one chain.

    Returns:
      friction: A number or a tensor; None where it changes with the steps.
    """
    del num_coordinates
    name = self.friction_argument
    return 1. if name is None else self._parameters[name]

  @property
  def why_no_learning_rate(self) -> str | None:
    """Why a learning rate of SGD cannot set `step_size`, whole sentences.

    None where it can: `step_size` then multiplies the gradient, or its root
    does where there is a momentum.
    """
    return None

  @property
  def why_no_excess(self) -> str | None:
    """Why there is no `excess`, whole sentences; None where there is."""
    return (
        f'{type(self).__name__} does not tell how hot a step makes the chain. '
        'Take SGLD or SGHMC (integrator "euler"), or define excess and let '
        'why_no_excess be None.')

  def excess(self, previous: hints.Results, results: hints.Results) -> Excess:
    """How much hotter than T the chain is, in the step between two results.

    Hotter in the configuration: in the stationary law of the chain, whatever
    the density and whatever the noise of g,

      T_conf = -E[(theta - m) . g] / d    for any fixed m,

    is T where the law is that of density^(1/T), and this is T_conf / T - 1. It
    is what `TemperatureStepSizeAdaptation` holds.

    Args:
      previous: The kernel's results before the step.
      results: Those after it.

    Returns:
      excess: `Excess`.

    Raises:
      ValueError: If it is not known; see `why_no_excess`.
    """
    del previous, results
    raise ValueError(self.why_no_excess)

  @property
  def why_no_adaptive_time(self) -> str | None:
    """Why `AdaptiveTime` cannot take it, whole sentences; None where it can.

    It can where a step is an Euler step of an equation in time, or a splitting
    that has its order, and `gradients_before` is right.
    """
    return (
        f'{type(self).__name__} does not say how its law depends on step sizes '
        'that change with the state. Take SGLD or SGHMC.')

  def gradients_before(
      self,
      previous: hints.Results,
      results: hints.Results,
  ) -> list[tf.Tensor]:
    """The estimate of the gradient at the state from which a step started.

    Args:
      previous: The kernel's results before the step.
      results: Those after it.

    Returns:
      gradients: List over the parts.
    """
    del previous
    return results.grads_target_log_prob

  def rescaled(self, factor: tf.Tensor) -> 'LangevinKernel':
    """A copy whose step sizes are multiplied by a number for each chain.

    Args:
      factor: Tensor of the chains' shape.

    Returns:
      kernel: The copy; a copy of it has the step sizes as they were given.
    """
    copy = self.copy()
    copy._time_factor = factor
    return copy

  def estimate_at(
      self,
      state_parts: Sequence[tf.Tensor],
      previous: hints.Results,
      seed: tf.Tensor,
  ) -> gradients_lib.GradientEstimate:
    """The estimate at a position by the minibatch of a step.

    Args:
      state_parts: List of tensors, the position.
      previous: The kernel's results before the step.
      seed: The seed of the step.

    Returns:
      estimate: `GradientEstimate`.
    """
    return self._estimate(state_parts, previous, self._seeds(seed))[0]

  def standard_normal(
      self, state_parts: Sequence[tf.Tensor], seed: tf.Tensor,
  ) -> list[tf.Tensor]:
    """Standard normal numbers in the shapes of the parts."""
    return self._noise(state_parts, seed)

  @property
  def target_num_examples(self) -> int:
    """N of the posterior; 1 of a plain function."""
    return self._target.num_examples

  def _check_noise(self, **amounts):
    """Raises where an amount of noise, by its argument's name, is zero."""
    for name, amount in amounts.items():
      value = None if callable(amount) else checks.static_value(amount)
      if value is not None and np.any(value == 0.):
        raise ValueError(
            f'gradient_estimator is {self._estimator!r}, which weighs '
            'minibatches by the noise that a step would need with them, and '
            f'with {name} = 0 the step has no noise. Take a larger one, or '
            'another estimator.')

  def _noise(self, parts, seed):
    """Standard normal numbers in the shapes of the parts."""
    return collectives.normal_like(parts, self._which_are_own(parts), seed)

  def _uniform(self, parts, seed):
    """Uniform numbers in [0, 1) in the shapes of the parts."""
    return collectives.uniform_like(parts, self._which_are_own(parts), seed)

  def _scale(self, parts):
    """s = sqrt(G) of a fixed preconditioner, a part each; None where G is 1."""
    preconditioner = self._parameters['preconditioner']
    if preconditioner is None:
      return None
    ones = {dtype: tf.ones([], dtype) for dtype in {p.dtype for p in parts}}
    return [tf.sqrt(g) for g in preconditioner.times(
        [ones[part.dtype] for part in parts], ())]

  def _check_broadcast(self, name, values, parts):
    """Raises where a value of a part (None for all) is of another shape."""
    for k, (value, part) in enumerate(zip(values or (), parts)):
      try:
        shape = tf.broadcast_static_shape(value.shape, part.shape)
      except ValueError:
        shape = None
      if shape is None or not shape.is_compatible_with(part.shape):
        raise ValueError(
            f'{name} has shape {value.shape} for part {k} of the state, of '
            f'shape {part.shape}, with which it has to broadcast.')

  def _at_step(self, name, step, parts):
    """A number, tensor or schedule, at a step, in the dtype of each part."""
    values = kernel.at_step(self._parameters[name], step, parts)
    if self._time_factor is None or name != 'step_size':
      return values
    made = {}  # One tensor for parts of one dtype and rank, as for `each`.
    for value, part in zip(values, parts):
      key = id(value), part.shape.rank
      if key not in made:
        made[key] = value * states.expand(
            tf.cast(self._time_factor, value.dtype), part)
    return [
        made[id(value), part.shape.rank] for value, part in zip(values, parts)]


def failure(
    results: hints.Results,
    state: hints.State,
) -> errors.Failure | None:
  """Why a chain cannot go on: the `failure` of these kernels' results.

  Args:
    results: The kernel's results, with concrete values.
    state: Tensor or list of tensors, likewise.

  Returns:
    failure: `errors.Failure`, or None.
  """
  return errors.non_finite(
      state, results.target_log_prob.shape.rank,
      'Most often the step size is too large for the noise and the curvature '
      'there: try a tenth of it. '
      f'{errors.OTHER_CAUSES}.')


def check_fixed(
    preconditioner: preconditioners.Preconditioner | None, kernel_name: str,
) -> None:
  """Raises if the preconditioner adapts to the gradients.

  Args:
    preconditioner: None, or what was passed as `preconditioner`.
    kernel_name: The kernel that takes a fixed one alone.
  """
  if preconditioner is None:
    return
  preconditioners.check_preconditioner(preconditioner)
  if preconditioner.has_state:
    raise ValueError(
        f'preconditioner is {preconditioner!r}, whose diagonal G comes from '
        f'the gradients of the chain. {kernel_name} needs a G that is given, '
        'since its law is only right while G stays as it is: take '
        'preconditioners.Diagonal(G). Where SGLD has learned one, G is '
        'rmsprop.diagonal(results.preconditioner_results).')


def times(
    scale: Sequence[tf.Tensor] | None, tensors: Sequence[tf.Tensor],
) -> Sequence[tf.Tensor]:
  """s x of each part; `scale` is s, or None for 1."""
  if scale is None:
    return tensors
  return [s * x for s, x in zip(scale, tensors)]


def why_no_shards(
    preconditioner: preconditioners.Preconditioner) -> str | None:
  """`why_no_shards` of a kernel that has nothing against them but this."""
  if preconditioner.is_by_coordinate:
    return None
  return (
      f'preconditioner is {preconditioner!r}, and parts of the state are other '
      'pieces on each replica (experimental_shard_axis_names), of which none '
      'sees all coordinates: take one that looks at each coordinate alone, '
      'such as preconditioners.RMSProp().')


def each(
    fn: Callable[..., tf.Tensor], *coefficients: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
  """`fn` of the coefficients of each part, once where they are the same.

  A network has hundreds of parts, and to trace an operation takes long.

  Args:
    fn: Callable of tensors.
    *coefficients: Lists over the parts of the state, as of `kernel.at_step`.

  Returns:
    values: List over the parts.
  """
  made = {}
  for arguments in zip(*coefficients):
    key = tuple(map(id, arguments))
    if key not in made:
      made[key] = fn(*arguments)
  return [made[tuple(map(id, arguments))] for arguments in zip(*coefficients)]
