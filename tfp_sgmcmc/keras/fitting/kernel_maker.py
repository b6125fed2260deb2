"""Makes the kernel of each batch, with step sizes in the units of SGD.

SGD with momentum m and learning rate l on the mean loss L = -log posterior / N,

  v     <- m v - l grad L
  theta <- theta + v,

is SGHMC (integrator "euler") at temperature zero with v = h r and

  h = sqrt(l / N),   friction = (1 - m) / h,

and SGLD, which has no momentum, is plain gradient descent with h = l / N.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import inspect
import math
from typing import Any
import warnings

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import gradients
from tfp_sgmcmc import mcmc
from tfp_sgmcmc import pdmp
from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.fitting import checkpoint as checkpoint_lib
from tfp_sgmcmc.keras.heat import found_step as found_step_lib
from tfp_sgmcmc.keras.model import network
from tfp_sgmcmc.mcmc import adaptation

__all__ = ['KernelMaker']

# A schedule may end at zero, where the friction (1 - m) / h would not exist.
_SMALLEST_LEARNING_RATE = 1e-30
# A function that makes a kernel has its arguments by their names.
_FRICTION_ARGUMENTS = (
    mcmc.SGHMC.friction_argument, mcmc.SGNHT.friction_argument)


class KernelMaker:
  """Makes the user's kernel for the posterior of one batch."""

  def __init__(
      self,
      kernel: Callable[..., tfp.mcmc.TransitionKernel],
      num_examples: int | None,
      learning_rate: hints.Schedule | str | None = None,
      momentum: float | None = None,
      temperature: hints.Schedule | None = None,
      found_step: found_step_lib.FoundStep | None = None,
  ):
    """Checks the arguments, by making the kernel once.

    Args:
      kernel: Callable of the target; returns a kernel.
      num_examples: Python `int`, N; None where `set_num_examples` tells it.
      learning_rate: None; or l: a number, a callable of the step counter, or
        "optimizer" for that of the compiled optimizer.
      momentum: None, or m, a number in [0, 1).
      temperature: None for the kernel's own; else T, a number or a callable of
        the step counter.
      found_step: `FoundStep` that wraps the kernel; None for none.

    Raises:
      ValueError: If the arguments contradict each other or are out of range.
      TypeError: If `kernel` makes no kernel, or one that cannot live on given
        batches.
    """
    if not callable(kernel) or isinstance(kernel, keras.Model):
      raise TypeError(
          f'kernel is {kernel!r}: it has to be a class of kernels with its '
          'arguments, functools.partial(sgmcmc.SGHMC, step_size=..., '
          'friction=...), because a kernel is made for each batch.')
    self._kernel = kernel
    self._num_examples = num_examples or 1
    self._learning_rate = learning_rate
    self._momentum = momentum
    self._temperature = temperature
    self._found_step = found_step
    self._optimizers_rate = None
    self._rate_of_last_epoch = None
    self._has_warned = False
    self._check()
    first = 1e-3 if learning_rate == 'optimizer' else None
    made = self._make(
        posterior_lib.Posterior(
            lambda *parts: 0., lambda *parts_and_batch: 0.,
            num_examples=self._num_examples),
        tf.zeros([], tf.int64), first)
    self._check_made(made)
    if found_step is not None:
      found_step.around(made)  # Which refuses what it cannot adapt.
    self._name = type(made).__name__
    inner = _inner(made)
    self._made_with = inner.parameters
    self._stores_kicked_momentum = getattr(
        inner, 'stores_kicked_momentum', False)
    self._is_continuous = isinstance(made, pdmp.PDMPKernel)
    self._has_weights = isinstance(made, mcmc.AdaptiveTime)

  @property
  def name(self) -> str:
    """The name of the kernel's class."""
    return self._name

  @property
  def is_continuous(self) -> bool:
    """Whether the kernel moves in continuous time, an event a step."""
    return self._is_continuous

  @property
  def has_weights(self) -> bool:
    """Whether draws are not to be averaged at equal weights."""
    return self._has_weights

  @property
  def follows_optimizer(self) -> bool:
    """Whether the step size is that of the compiled optimizer."""
    return (isinstance(self._learning_rate, str)
            and self._learning_rate == 'optimizer')

  @property
  def step_argument(self) -> tuple[str, Any]:
    """The name of the argument that sets the step size, and its value."""
    if self._found_step is not None:
      return self._found_step.argument, self._found_step.value
    if self._learning_rate is not None:
      return 'learning_rate', self._learning_rate
    return 'step_size', self._given.get('step_size')

  @property
  def constant_temperature(self) -> float:
    """T where it is a number, else 1."""
    given = self._made_with.get('temperature')
    return float(given) if isinstance(given, (int, float)) else 1.

  @property
  def stores_kicked_momentum(self) -> bool:
    """Whether the momentum in the results is that just after its kick."""
    return self._stores_kicked_momentum

  @property
  def takes_vector(self) -> bool:
    """Whether it takes all weights as one vector, by `part_sizes`."""
    # Not around a user's own function, which may look at the parts.
    return self._found_step is not None and (
        getattr(self._kernel, 'func', self._kernel) is mcmc.SGNHT) and all(
            self._given.get(name) is None
            for name in ('part_sizes', 'experimental_shard_axis_names'))

  def temperature(self, step: tf.Tensor) -> tf.Tensor:
    """T of the kernel at a step.

    Args:
      step: `int64` scalar, the number of steps made.

    Returns:
      temperature: `float32` scalar.
    """
    temperature = self._made_with.get('temperature', 1.)
    if callable(temperature):
      temperature = temperature(step)
    return tf.cast(temperature, tf.float32)

  @property
  def momentum(self) -> float | None:
    """m = 1 - friction h, where both are numbers, else None."""
    if self._learning_rate is not None:
      return (self._momentum or 0.) if self._friction_name else None
    if self._found_step is not None:
      return None
    h = self._given.get('step_size')
    friction = self._given.get(self._friction_name)
    if not all(isinstance(a, (int, float)) for a in (h, friction)):
      return None
    return max(0., 1. - friction * h)

  @property
  def _given(self):
    """What the kernel was given by a `functools.partial`."""
    return getattr(self._kernel, 'keywords', {})

  def set_num_examples(self, num_examples: int) -> None:
    """Takes N, which sets the step size where `learning_rate` is given.

    Args:
      num_examples: Python `int`, N.
    """
    self._num_examples = num_examples

  def check_shards(self) -> None:
    """Raises where the gradient cannot be had from parts of a batch.

    Due where each of several replicas sees a part.

    Raises:
      ValueError: If the estimator needs to see a batch whole.
    """
    estimator = self._made_with.get('gradient_estimator')
    if not (estimator is None or estimator.works_on_shards):
      raise ValueError(
          f'The kernel was given gradient_estimator={estimator!r}, which has '
          'to see a batch whole, and each replica of the strategy sees a part '
          'of it: leave gradient_estimator out, or build the model outside '
          'the strategy.')

  def begin_fit(self, optimizer: keras.optimizers.Optimizer) -> None:
    """Takes the optimizer that the model is compiled with.

    Args:
      optimizer: Keras optimizer.

    Raises:
      ValueError: If its learning rate is to be followed and nobody sets it.
    """
    self._optimizers_rate = network.learning_rate(optimizer)
    self._rate_of_last_epoch = None
    if self.follows_optimizer and self._optimizers_rate is None:
      raise ValueError(
          "learning_rate='optimizer' follows a learning rate that callbacks "
          f'set, and the optimizer {optimizer!r} has a schedule of its own or '
          'none: it makes no steps while the kernel samples, so its schedule '
          'stands still. Pass the schedule itself, learning_rate=schedule.')

  def state(self) -> dict[str, np.ndarray]:
    """What `load_state` takes: the optimizer's rate, where it is followed."""
    return checkpoint_lib.leaves(rate=self._followed())

  def load_state(self, state: Mapping[str, np.ndarray]) -> None:
    """Gives the optimizer, where it is followed, the rate of another process.

    Args:
      state: Arrays by name, those of its `state` among them.
    """
    checkpoint_lib.assign(state, rate=self._followed())

  def _followed(self):
    return [self._optimizers_rate] if self.follows_optimizer else []

  def watch_learning_rate(self) -> None:
    """Warns once where a callback steers an optimizer that stands still.

    Due at the beginning of each epoch that samples.
    """
    if (self.follows_optimizer or self._optimizers_rate is None
        or self._has_warned):
      return
    before, now = self._rate_of_last_epoch, float(self._optimizers_rate.numpy())
    self._rate_of_last_epoch = now
    if before is not None and before != now:
      self._has_warned = True
      warnings.warn(
          f"The optimizer's learning rate was changed from {before:g} to "
          f'{now:g} while the kernel samples. This has no effect: '
          'the kernel takes its steps without the optimizer. For '
          'LearningRateScheduler or ReduceLROnPlateau to steer it, pass '
          "learning_rate='optimizer'; else leave such callbacks out, or pass "
          'a schedule as learning_rate or step_size.', stacklevel=2)

  def __call__(
      self,
      posterior: Any,
      step: tf.Tensor,
      compute_dtypes: Collection[str] = (),
      part_sizes: Sequence[int] | None = None,
  ) -> tfp.mcmc.TransitionKernel:
    """The kernel for a posterior, at a step.

    Args:
      posterior: `Posterior` of the step's batch.
      step: `int64` scalar, the number of steps made.
      compute_dtypes: Names of the dtypes that the network computes in.
      part_sizes: The sizes of the weights in a state that is one vector; None
        where the state is a list of them.

    Returns:
      kernel: The transition kernel.
    """
    learning_rate = None
    if self.follows_optimizer:
      learning_rate = tf.convert_to_tensor(self._optimizers_rate)
    kernel = self._make(posterior, step, learning_rate, part_sizes)
    if self._found_step is not None:
      kernel = self._found_step.around(kernel, compute_dtypes)
    return kernel

  def logs(
      self,
      kernel: tfp.mcmc.TransitionKernel,
      results: hints.Results,
  ) -> dict[str, tf.Tensor]:
    """What of the kernel's results is for the logs of a step.

    Args:
      kernel: The kernel, as a call has made it.
      results: The kernel's results.

    Returns:
      logs: The learning rate or step size where it is found, else nothing.
    """
    if self._found_step is None:
      return {}
    return self._found_step.logs(kernel, results)

  def _make(self, posterior, step, learning_rate, part_sizes=None):
    arguments = {} if part_sizes is None else {'part_sizes': part_sizes}
    if self._temperature is not None:
      arguments['temperature'] = self._temperature
    if self._learning_rate is not None:
      arguments.update(self._from_sgd(step, learning_rate))
    return self._kernel(posterior, **arguments)

  def _from_sgd(self, step, learning_rate):
    """The kernel's own arguments for a learning rate and a momentum."""
    if learning_rate is None:
      learning_rate = self._learning_rate
      if callable(learning_rate):
        learning_rate = learning_rate(step)
    root = math.sqrt
    if tf.is_tensor(learning_rate):
      root, learning_rate = tf.sqrt, tf.maximum(
          tf.cast(learning_rate, tf.float32), _SMALLEST_LEARNING_RATE)
    else:
      learning_rate = max(float(learning_rate), _SMALLEST_LEARNING_RATE)
    friction = self._friction_name
    if friction is None:
      return {'step_size': learning_rate / self._num_examples}
    step_size = root(learning_rate / self._num_examples)
    return {
        'step_size': step_size,
        friction: (1. - (self._momentum or 0.)) / step_size}

  @property
  def _friction_name(self):
    """The argument that a momentum sets; None of a kernel without."""
    kernel = getattr(self._kernel, 'func', self._kernel)
    names = _FRICTION_ARGUMENTS
    if hasattr(kernel, 'friction_argument'):
      names = kernel.friction_argument,
    return next((name for name in names if name in self._parameters), None)

  @property
  def _parameters(self):
    return inspect.signature(self._kernel).parameters

  def _check(self):
    given = self._given
    _check_estimator(given.get('gradient_estimator'))
    wanted = {}
    if self._temperature is not None:
      wanted['temperature'] = 'temperature'
    if self._learning_rate is not None:
      wanted['step_size'] = 'learning_rate'
      if self._friction_name:
        wanted[self._friction_name] = 'momentum'
    elif self._momentum is not None:
      raise ValueError(
          f'momentum is {self._momentum!r} without a learning_rate: the two '
          "go together. With the kernel's own step_size, pass its friction.")
    self._check_nothing_is_missing(set(wanted))
    for own, ours in wanted.items():
      if own in given:
        raise ValueError(
            f'The kernel was given {own}={given[own]!r}, and {ours} says the '
            'same in other units: pass one of them.')
      if own not in self._parameters:
        raise ValueError(
            f'{ours} sets the argument {own} of the kernel, and '
            f'{self._kernel!r} takes none: pass the class, or a '
            f'functools.partial of it. If the kernel has no {own}, as one in '
            f'continuous time has no step_size, leave {ours} out.')
    if self._momentum is not None and self._friction_name is None:
      raise ValueError(
          f'momentum is {self._momentum!r}, and {self._kernel!r} has none: '
          'leave it out, or take SGHMC.')
    if self._momentum is not None:
      checks.fraction('momentum', self._momentum)
      if self._momentum == 1.:
        raise ValueError(
            'momentum is 1: there is no friction left, and the kernel needs '
            'some. Take a momentum below 1.')
    if isinstance(self._learning_rate, str):
      if self._learning_rate != 'optimizer':
        raise ValueError(
            f'learning_rate is {self._learning_rate!r}: it has to be a number, '
            'a schedule, "optimizer" for that of the compiled optimizer, or '
            '"temperature" to find it in burn-in.')
    elif self._learning_rate is not None:
      checks.schedule('learning_rate', self._learning_rate, 0.)

  def _check_nothing_is_missing(self, set_here):
    """Raises where the kernel needs an argument that nobody gives."""
    _, *others = self._parameters.values()
    missing = [
        p.name for p in others
        if p.default is p.empty and p.name not in set_here
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not missing:
      return
    kernel = getattr(self._kernel, 'func', self._kernel)
    name = getattr(kernel, '__name__', repr(kernel))
    way = ' Pass them:'
    if 'step_size' in missing:
      momentum = ', momentum=0.9' if self._friction_name else ''
      way = (
          f' In the units of SGD: PosteriorSampling({name}, '
          f'learning_rate=0.01{momentum}, ...), for the rate of the mean loss. '
          'Or leave the kernel out, to have all chosen. Or in its own:')
    arguments = ', '.join(
        f'{argument}=...' for argument in [
            *getattr(self._kernel, 'keywords', ()), *missing])
    raise TypeError(
        f'The kernel {name} needs {" and ".join(missing)}, which nobody has '
        f'given.{way} PosteriorSampling(functools.partial({name}, '
        f'{arguments}), ...).')

  def _check_made(self, made):
    why_not = getattr(made, 'why_no_learning_rate', None)
    if self._learning_rate is not None and why_not is not None:
      raise ValueError(
          f'learning_rate is {self._learning_rate!r}. {why_not}')
    if not isinstance(made, tfp.mcmc.TransitionKernel):
      raise TypeError(
          f'kernel made {made!r} of type {type(made).__name__}: it has to make '
          'a transition kernel, such as sgmcmc.SGHMC.')
    made = _inner(made)
    parameters = made.parameters
    # A kernel of another library is taken where it may be: an exact one has to
    # see all the data.
    if 'gradient_estimator' not in parameters or not getattr(
        made, 'lives_on_batches', not made.is_calibrated):
      raise TypeError(
          f'{type(made).__name__} needs all the data at each step, and fit '
          'gives it batches. Take one of SGLD, SGHMC, SGNHT and '
          'StochasticBouncyParticleSampler, or sample it with '
          'tfp.mcmc.sample_chain.')
    _check_estimator(parameters['gradient_estimator'])


def _inner(kernel):
  """The kernel inside one that adapts it; others as they are."""
  is_around = isinstance(kernel, adaptation.WrappingKernel)
  return kernel.inner_kernel if is_around else kernel


def _check_estimator(estimator):
  """Raises where an estimator cannot live on given batches."""
  if estimator is None:
    return
  gradients.check_estimator('gradient_estimator', estimator)
  if not estimator.lives_on_batches:
    raise ValueError(
        f'The kernel was given gradient_estimator={estimator!r}, and in fit '
        f'the batches come from Keras. {estimator.why_not_on_batches}')
