"""What all kernels share: parameters, names, seeds, states, the first gradient.

A kernel's own file holds its mathematics, on lists of the state's parts. The
bases here do what stands around it.
"""

import abc
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import contextvars
from typing import Any
from typing import NamedTuple
from typing import TypeVar

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import collectives
from tfp_sgmcmc import errors
from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc import random
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import one_kernel
from tfp_sgmcmc.internal import seeds as seeds_lib
from tfp_sgmcmc.internal import states

__all__ = [
    'GradientKernel',
    'Kernel',
    'at_step',
    'check_alike',
    'check_chains',
    'check_finite',
    'failures_left_to_caller',
    'refuses_corrections',
]

_Results = TypeVar('_Results')

_FAILURES_ARE_LEFT = contextvars.ContextVar('failures are left', default=False)


@contextlib.contextmanager
def failures_left_to_caller() -> Iterator[None]:
  """Within it kernels raise no failure, eagerly as in a graph.

  A driver enters it, in the thread that makes the step: it asks the results of
  each step for a failure, and keeps what was drawn before.
  """
  token = _FAILURES_ARE_LEFT.set(True)
  try:
    yield
  finally:
    _FAILURES_ARE_LEFT.reset(token)


class Kernel(tfp.mcmc.TransitionKernel):
  """Base of all kernels.

  A subclass passes its arguments as `parameters`, names the uses that it has
  for seeds in the named tuple `_Seeds`, and defines `_bootstrap` and
  `_one_step` on lists of state parts. Its results have a method
  `failure(state)`; see `errors`.
  """

  _Seeds: type[NamedTuple]
  # What a step is called in messages.
  _step_name = 'step'
  # Whether a chain that has failed is an error at once where code runs eagerly.
  # It costs a look at each state, so only kernels that make their states NaN
  # themselves ask for it.
  _raises_eagerly = False

  def __init__(self, parameters: dict[str, Any]):
    """Keeps the arguments.

    Args:
      parameters: The arguments of the subclass's constructor, by name.
    """
    super().__init__()
    self._parameters = dict(parameters)

  @property
  def parameters(self) -> dict[str, Any]:
    """The constructor's arguments by name."""
    return self._parameters

  @tf.autograph.experimental.do_not_convert
  def bootstrap_results(
      self,
      init_state: hints.State,
      seed: hints.Seed = None,
  ) -> Any:
    """The results with which a chain starts.

    Args:
      init_state: Tensor or list of tensors, the first state.
      seed: Stateless seed of what is random at the start: the first minibatch,
        momentum, velocity or brightness. By default a fixed one, since
        `tfp.mcmc.sample_chain` passes none.

    Returns:
      kernel_results: The kernel's results.

    Raises:
      TypeError: If the state is not of floats.
      ValueError: If a part has no elements, the log density has a wrong shape,
        or the first log density or gradient is not finite.
    """
    with tf.name_scope(f'{self._name}.bootstrap_results'):
      parts = states.to_parts(init_state)
      states.check_not_empty(parts)
      return self._bootstrap(
          parts, self._seeds([0, 0] if seed is None else seed))

  @tf.autograph.experimental.do_not_convert
  def one_step(
      self,
      current_state: hints.State,
      previous_kernel_results: hints.Results,
      seed: hints.Seed = None,
  ) -> tuple[Any, Any]:
    """Moves the chain by one step.

    Args:
      current_state: Tensor or list of tensors; the leading axes are chains.
      previous_kernel_results: What `bootstrap_results` or `one_step` returned.
      seed: Stateless seed (`int32[2]`); None draws one from TensorFlow's global
        generator.

    Returns:
      next_state: In the form of `current_state`. In continuous time it is the
        position at the next event, not a draw at equal weight: average over
        time, with `pdmp.Trajectory.from_chain`, or sample
        `pdmp.UniformTime(kernel, interval)`.
      kernel_results: The kernel's results.

    Raises:
      NonFiniteError: Eagerly, if an exact kernel or one in continuous time
        cannot go on (`RateBoundError`: its bound is violated; `FireflyError`).
        In a graph the state is NaN from there on.
    """
    with tf.name_scope(f'{self._name}.one_step'):
      arguments = (
          current_state, previous_kernel_results, seeds_lib.sanitize(seed))
      if _FAILURES_ARE_LEFT.get() or not one_kernel.is_worthwhile(
          previous_kernel_results):
        next_state, results = self._moved(*arguments)
      else:  # Of a driver that makes no kernel of its own, such as TFP's.
        next_state, results = one_kernel.call(self._moved, *arguments)
    if (self._raises_eagerly and tf.executing_eagerly()
        and not _FAILURES_ARE_LEFT.get()):
      failure = results.failure(states.to_parts(next_state))
      if failure is not None:
        step = int(results.step)
        raise failure.raised(f'At {self._step_name} {step:,}', step)
    return next_state, results

  def _moved(self, current_state, previous_kernel_results, seed):
    """One step, as part of whatever program it is called in."""
    next_parts, results = self._one_step(
        states.to_parts(current_state), previous_kernel_results,
        self._seeds(seed))
    return states.like(current_state, next_parts), results

  @property
  def lives_on_batches(self) -> bool:
    """Whether it works where the data are those of each step, as in `fit`.

    The estimator has to as well.
    """
    return False

  @property
  def why_no_shards(self) -> str | None:
    """Why no part of the state may be another piece on each replica.

    Whole sentences; None where parts may, and the constructor has the argument
    `experimental_shard_axis_names`.
    """
    return (
        f'{type(self).__name__} samples states that are the same on all '
        'replicas. For parts that are other pieces on each '
        '(experimental_shard_axis_names) take SGLD, SGHMC or SGNHT.')

  def experimental_with_shard_axes(
      self, shard_axis_names: hints.ShardAxes) -> 'Kernel':
    """A copy for a state with parts that are other pieces on each replica.

    Args:
      shard_axis_names: List with an entry for each part of the state: a name,
        such as "rows", for a part that is another piece on each replica; None
        for one that all share. None for none.

    Returns:
      kernel: Another kernel.

    Raises:
      ValueError: If the kernel does not sample such states (`why_no_shards`),
        or its posterior has other names.
    """
    if self.why_no_shards is None:
      return self.copy(experimental_shard_axis_names=shard_axis_names)
    if collectives.axis_names(shard_axis_names) is None:
      return self
    raise ValueError(self.why_no_shards)

  @abc.abstractmethod
  def _bootstrap(self, parts, seeds):
    """The kernel's first results."""

  @abc.abstractmethod
  def _one_step(self, parts, previous, seeds):
    """The next parts and results."""

  @property
  def _name(self):
    return self._parameters['name'] or type(self).__name__

  def _seeds(self, seed):
    seed = seeds_lib.sanitize(seed)
    return self._Seeds(*(
        random.fold_in(seed, k) for k in range(len(self._Seeds._fields))))


class GradientKernel(Kernel):
  """Base of the kernels that follow an estimated gradient.

  One of the fields of `_Seeds` is `gradient`. A subclass defines `_start` in
  place of `_bootstrap`.
  """

  def __init__(self, parameters: dict[str, Any]):
    """Checks and keeps the arguments that all these kernels have.

    Args:
      parameters: The arguments of the subclass's constructor, by name; among
        them `target_log_prob_fn` and `gradient_estimator`.
    """
    super().__init__(parameters)
    target = parameters['target_log_prob_fn']
    self._target = posterior_lib.as_posterior(target)
    estimator = parameters['gradient_estimator']
    if estimator is None:
      estimator = gradients_lib.Exact()
    gradients_lib.check_estimator('gradient_estimator', estimator)
    if self._target.is_sharded and not estimator.works_on_shards:
      raise ValueError(
          'The data of the posterior are shared out, and gradient_estimator is '
          f'{estimator!r}, which has to see all of them: take Uniform, '
          'ControlVariate (without probabilities) or Exact.')
    estimator.check_target(target)
    self._estimator = estimator
    if estimator.needs_gaussian_step:
      self._check_gaussian_step()
    self._shard_axis_names = collectives.agreed_names(
        parameters.get('experimental_shard_axis_names'), self._target)
    if self._shard_axis_names is not None:
      self._check_shards()

  @property
  def target_log_prob_fn(self) -> Any:
    """The `Posterior`, or the function that returns the log density."""
    return self._parameters['target_log_prob_fn']

  @property
  def gradient_estimator(self) -> gradients_lib.GradientEstimator:
    """How the gradient is estimated."""
    return self._estimator

  @property
  def experimental_shard_axis_names(self) -> list[str | None] | None:
    """A name for each part of the state that is another piece on each replica.

    A list over the parts, None in it for a part that all share; None for none.
    Those of the posterior, where the kernel was given none.
    """
    return self._shard_axis_names

  def _bootstrap(self, parts, seeds):
    is_own = self._which_are_own(parts)
    self._target.check_state(parts)
    estimate, estimator_results = self._estimator.one_step(
        self._target, parts,
        self._estimator.bootstrap_results(self._target, parts), seeds.gradient)
    check_chains(estimate.target_log_prob, parts)
    estimate = check_finite(estimate, parts)
    if any(is_own):
      estimate = check_alike(estimate, parts, is_own)
    return self._start(parts, estimate, estimator_results, seeds)

  @abc.abstractmethod
  def _start(self, parts, estimate, estimator_results, seeds):
    """The kernel's first results, from the first gradient estimate."""

  def _check_gaussian_step(self):
    """Raises where `_estimate` is given no `GaussianStep` to hand on."""
    raise ValueError(
        f'gradient_estimator is {self._estimator!r}, which weighs minibatches '
        'by what a step that is Gaussian given one gradient would do with '
        f'them, and {type(self).__name__} has no such step. Take SGLD, SGHMC '
        '(not "baoab") or SGNHT, or another estimator.')

  def _check_shards(self):
    """Raises where no part may be another piece on each replica."""
    if self.why_no_shards is not None:
      raise ValueError(self.why_no_shards)
    estimator = self._estimator
    if estimator.needs_gaussian_step or not estimator.works_on_shards:
      raise ValueError(
          f'gradient_estimator is {estimator!r}, and parts of the state are '
          'other pieces on each replica (experimental_shard_axis_names), whose '
          'gradients no replica sees together: take Exact, Uniform or '
          'ControlVariate (without probabilities).')

  def _which_are_own(self, parts):
    """Whether each part is another piece on each replica."""
    return collectives.which_are_own(self._shard_axis_names, parts)

  def _estimate(self, parts, previous, seeds, gaussian_step=lambda: None):
    """A new gradient estimate at `parts`, and the estimator's results.

    `gaussian_step` makes the step's `GaussianStep`, for an estimator that needs
    it.
    """
    return self._estimator.one_step(
        self._target, parts, previous.gradient_estimator_results,
        seeds.gradient,
        gaussian_step() if self._estimator.needs_gaussian_step else None)

  def _mean_gradients(self, gradients):
    """Gradients over the number of examples, as preconditioners take them."""
    return [g / self._target.num_examples for g in gradients]


def refuses_corrections(results: type[_Results]) -> type[_Results]:
  """A class of kernel results that refuses what TFP's wrappers ask it for.

  Some of them take any kernel for one of proposals with a Metropolis test, and
  would be wrong in silence, or fail with a message about their own insides.

  Args:
    results: Class of the results of a kernel.

  Returns:
    results: The same.
  """
  fields: Any = results
  for name, wrapper, reason in (
      # Its default ratio of densities is 1, and the log density it compares
      # is that of the state before the step.
      ('log_acceptance_correction', 'MetropolisHastings',
       'its steps are no proposals with a known ratio of densities. Sample the '
       'kernel as it is: if it is exact it needs no correction, and else the '
       'bias falls with the step size. Or, for the exact law on all the data, '
       'take tfp.mcmc.MetropolisAdjustedLangevinAlgorithm(posterior, '
       'step_size)'),
      ('proposed_results', 'sample_annealed_importance_chain',
       'it weighs the proposals of a Metropolis test, and this kernel makes '
       'none. Take tfp.mcmc.HamiltonianMonteCarlo there'),
      ('step_size', 'SimpleStepSizeAdaptation (or another adaptation)',
       'it sets a step size in the results, to reach a rate of acceptance, and '
       'these hold none. Take TemperatureStepSizeAdaptation, choose it as the '
       'docstring of SGLD says, or let it be a schedule')):
    if name in fields._fields:
      continue
    setattr(results, name, property(_refusal(results, wrapper, reason)))
  # ReplicaExchangeMC asks for no field: it replaces one.
  refuse = _refusal(
      results, 'ReplicaExchangeMC',
      'it swaps the proposals of Metropolis tests, and this kernel makes none. '
      'Take tfp.mcmc.HamiltonianMonteCarlo there')
  replace = fields._replace

  def replace_or_refuse(self, /, **fields):
    if 'proposed_results' in fields:
      refuse(self)
    return replace(self, **fields)

  fields._replace = replace_or_refuse
  return results


def _refusal(results, wrapper, reason):
  """A function of the results that raises."""
  def refuse(_):
    raise TypeError(
        f'tfp.mcmc.{wrapper} cannot take the kernel that made '
        f'{results.__name__}: {reason}.')

  return refuse


def at_step(
    value: object, step: tf.Tensor, parts: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
  """A number, a tensor or a callable of the step, in the dtype of each part.

  Parts of one dtype have one tensor, with which a kernel computes once.
  """
  if callable(value):
    value = value(step)
  cast = {
      dtype: states.cast(value, dtype)
      for dtype in {part.dtype for part in parts}}
  return [cast[part.dtype] for part in parts]


def check_chains(
    target_log_prob: tf.Tensor, parts: Sequence[tf.Tensor]) -> None:
  """Raises where the log density's shape is not leading axes of all parts."""
  chains = target_log_prob.shape
  for k, part in enumerate(parts):
    if (part.shape.rank < chains.rank
        or not part.shape[:chains.rank].is_compatible_with(chains)):
      raise ValueError(
          f'target_log_prob_fn returned shape {chains} where part {k} of the '
          f'state has shape {part.shape}. The shape of the log density has to '
          'be that of the chains, the leading axes that all parts share, [] '
          'for a single chain. A density of a vector has to sum over it.')


def check_finite(
    estimate: gradients_lib.GradientEstimate, parts: Sequence[tf.Tensor],
) -> gradients_lib.GradientEstimate:
  """Raises where the first log density or gradient is NaN or infinite."""
  message = (
      'At the first state the log density or its gradient is not finite: start '
      f'in a place of positive probability. {errors.OTHER_CAUSES}.')
  tensors = [estimate.target_log_prob, *estimate.grads_target_log_prob]
  finite = tf.reduce_all(
      [tf.reduce_all(tf.math.is_finite(t)) for t in tensors])
  if tf.executing_eagerly():
    if not finite:
      where = [
          f'the gradient by part {k} (shape {part.shape}) has '
          f'{int(tf.math.count_nonzero(~tf.math.is_finite(g)))} such values'
          for k, (part, g) in enumerate(
              zip(parts, estimate.grads_target_log_prob))]
      raise ValueError(
          f'{message} The log density is {estimate.target_log_prob.numpy()}; '
          f'{"; ".join(where)}.')
    return estimate
  return _if_so(finite, message, estimate)


def check_alike(
    estimate: gradients_lib.GradientEstimate,
    parts: Sequence[tf.Tensor],
    is_own: Sequence[bool],
) -> gradients_lib.GradientEstimate:
  """Raises where replicas differ in what all share, at the first state."""
  message = (
      'The replicas differ at the first state in the log density, in a part of '
      'the state that has no name in experimental_shard_axis_names, or in the '
      'gradient by it. Start all from the same values of these parts, and add '
      'up over the replicas what depends on the others: write their densities '
      'as Sharded distributions in a joint distribution of '
      'tfp.experimental.distribute.')
  shared = [
      tensor
      for pair, own in zip(zip(parts, estimate.grads_target_log_prob), is_own)
      for tensor in pair if not own]
  alike = collectives.is_alike([estimate.target_log_prob, *shared])
  if not tf.executing_eagerly():
    return _if_so(alike, message, estimate)
  if not alike:
    raise ValueError(message)
  return estimate


def _if_so(condition, message, tensors):
  """The tensors; in a graph that fails where the condition is not met."""
  with tf.control_dependencies([tf.debugging.Assert(condition, [message])]):
    return tf.nest.map_structure(tf.identity, tensors)
