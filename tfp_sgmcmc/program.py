"""The program that `sample` calls: it makes draws and the steps between them.

It is compiled once, and kept with the kernel for calls that need the same.
"""

from collections.abc import Callable
import functools
import types
from typing import Any
from typing import NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import collectives
from tfp_sgmcmc import draws as draws_lib
from tfp_sgmcmc import kernel as kernel_lib
from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import forms
from tfp_sgmcmc.internal import kept as kept_lib
from tfp_sgmcmc.internal import one_kernel

__all__ = [
    'Outcome', 'Position', 'Program', 'Use', 'is_known', 'of', 'what_is_kept']

_MOST_PROGRAMS = 8  # Kept with a kernel.
# Of draws that one kernel makes: as many as take its arrays, which are small.
_MAX_BLOCK = 64


class Position(NamedTuple):
  """Where a chain stands."""
  state: Any
  kernel_results: Any


def what_is_kept(
    trace_fn: Callable[[Any, Any], Any] | None, position: Position,
) -> tuple[Any, Any, tf.Tensor | None]:
  """What is kept of a position where there is a draw.

  Args:
    trace_fn: Callable of the state and the kernel results, or None.
    position: `Position`.

  Returns:
    state: As the position has it.
    trace: Nested tensors; None without `trace_fn`.
    log_weight: The logarithm of the state's weight; None where all count the
      same.

  Raises:
    TypeError: If `trace_fn` returns something else than tensors.
  """
  trace = None
  if trace_fn is not None:
    trace = trace_fn(*position)
    if any(leaf is None for leaf in tf.nest.flatten(trace)):
      raise TypeError(
          f'trace_fn returned {trace!r}: it has to return what to keep of a '
          'draw, tensors and no None. For no trace leave trace_fn out.')
    trace = checks.to_tensors('What trace_fn returned', trace)
  log_weight = compat.find_result(position.kernel_results, 'log_weight')
  return position.state, trace, log_weight


class Use(NamedTuple):
  """What a program is made for.

  Attributes:
    trace_fn: Callable of the state and the kernel results, or None.
    form: The `Position` of a chain, as nested specs.
    structure: What is kept of a draw, as nested specs.
    jit_compile: Whether XLA compiles it.
    strategy: `tf.distribute.Strategy`, or None.
    described: Descriptions of the kernel and of `trace_fn`, with what these
      close over, by flat names; None where there are none.
    runs_eagerly: Whether TensorFlow is told to run functions eagerly.
  """
  trace_fn: Callable[[Any, Any], Any] | None
  form: Any
  structure: Any
  jit_compile: bool
  strategy: tf.distribute.Strategy | None
  described: dict[str, str] | None
  runs_eagerly: bool

  def serves(self, now: 'Use') -> bool:
    """Whether a program made for this one does what another one needs."""
    return (
        (self.jit_compile, self.strategy, self.described, self.runs_eagerly)
        == (now.jit_compile, now.strategy, now.described, now.runs_eagerly)
        and _is_same_function(self.trace_fn, now.trace_fn)
        and forms.are_same(
            (self.form, self.structure), (now.form, now.structure)))


def _is_same_function(one, other):
  """Whether two functions do the same: those too that one line has made."""
  if one is other:
    return True
  if not all(isinstance(fn, types.FunctionType) for fn in (one, other)):
    return isinstance(one, types.MethodType) and one == other
  if one.__code__ is not other.__code__ or one.__kwdefaults__ or (
      other.__kwdefaults__):
    return False
  try:
    values, others = (
        [*(fn.__defaults__ or ()),
         *(cell.cell_contents for cell in fn.__closure__ or ())]
        for fn in (one, other))
  except ValueError:  # A variable that has no value yet.
    return False
  return len(values) == len(others) and all(
      a is b for a, b in zip(values, others))


def of(kernel: tfp.mcmc.TransitionKernel, use: Use, room: int) -> 'Program':
  """The program that is kept with the kernel, or a new one.

  Args:
    kernel: `tfp.mcmc.TransitionKernel`.
    use: `Use`; of what is described, more than a program depends on will do.
    room: For how many draws there has to be room.

  Returns:
    program: `Program`.
  """
  if use.described is not None:  # What the functions close over is known.
    use = use._replace(described={
        name: text for name, text in use.described.items()
        if name.split('.')[0] in ('kernel', 'trace_fn')})
  programs = kept_lib.of(kernel).setdefault('programs', [])
  for program in programs:
    if program.room >= room and program.use.serves(use):
      return program
  program = Program(kernel, use, room)
  programs[:] = [program, *programs[:_MOST_PROGRAMS - 1]]
  return program


def is_known(kernel: tfp.mcmc.TransitionKernel, form: Position) -> bool:
  """Whether a program kept with a kernel goes on from a position of a form."""
  return any(
      forms.are_same(program.use.form, form)
      for program in kept_lib.of(kernel).get('programs', []))


class Outcome(NamedTuple):
  """What a call of the program did."""
  num_steps: int
  num_draws: int
  is_finite: bool
  draws: list[tf.Tensor]
  position: Position


class Program:
  """The steps of a call, compiled once.

  Attributes:
    use: The `Use` that it was made for.
    room: For how many draws a call has room.
    specs: The `TensorSpec` of each array of a draw, by name.
  """

  def __init__(
      self, kernel: tfp.mcmc.TransitionKernel, use: Use, room: int):
    self.use, self.room = use, room
    self.specs = draws_lib.leaves_of(*use.structure)
    self._kernel = kernel
    self._advance: Any = None  # Until there is a step to make.

  def prepare(self, position: Position, seed: tf.Tensor) -> None:
    """Compiles the steps, where that has not been done yet, and makes none."""
    if self._advance is None:
      leaves = tf.nest.flatten(position)
      self._compile(leaves, seed)
      self(position, seed, 0, 1, 1, 0)

  def _compile(self, leaves, seed):
    """Compiles the steps, as one kernel where they are small."""
    steps = self._steps
    self._traced = self._one_kernel = None
    if self.use.jit_compile and not tf.config.functions_run_eagerly():
      number = tf.zeros([], tf.int64)
      self._traced = steps = one_kernel.trace(
          steps, *leaves, seed, number, number)
      if one_kernel.is_worthwhile(self.use.form.kernel_results):
        self._one_kernel = self._as_one_kernel(leaves, seed, number)
    self._advance = self.compiled(
        self._one_kernel or functools.partial(self._draws, steps, self.room))

  def _as_one_kernel(self, leaves, seed, number):
    """A function as `_draws` of which one kernel makes many steps, or None.

    The kernel makes a block of draws, since from kernel to kernel XLA takes as
    long as some steps do. Where what is kept of a block is no small array, or
    `trace_fn` is none for a kernel, it makes the steps from draw to draw.
    """
    largest = max(
        spec.shape.num_elements() for spec in self.specs.values())
    size = min(
        self.room, _MAX_BLOCK, one_kernel.MOST_ELEMENTS // max(1, largest))
    if size > 1:
      block = one_kernel.make(
          one_kernel.trace(
              lambda *arguments: tf.nest.flatten(self._draws(
                  self._traced, size, arguments[:-5], *arguments[-5:])),
              *leaves, seed, *4 * [number]), self.use.form.state)
      if block is not None:
        return functools.partial(self._in_blocks, block, size)
    steps = one_kernel.make(self._traced, self.use.form.state)
    return steps and functools.partial(self._draws, steps, self.room)

  def compiled(self, draws: Callable[..., Any]) -> Callable[..., Any]:
    """A function of draws, compiled as the call asks for."""
    return tf.function(draws, autograph=False, jit_compile=self.use.jit_compile)

  def __call__(
      self, position: Position, seed: tf.Tensor, step: int, first: int,
      thinning: int, num_draws: int) -> Outcome:
    """Makes draws, by the arguments that `_draws` has."""
    arguments = (tf.nest.flatten(position), seed, *(
        tf.constant(number, tf.int64)
        for number in (step, first, thinning, num_draws)))
    try:
      outcome = self._advance(*arguments)
    except tf.errors.OpError:
      if self._one_kernel is None:
        raise
      # XLA may fail to make one kernel: make many. Other errors come again.
      self._one_kernel = None
      self._advance = self.compiled(functools.partial(
          self._draws, self._traced, self.room))
      outcome = self._advance(*arguments)
    num_steps, num_complete, is_finite, draws, leaves = outcome
    num_complete = int(num_complete)
    with tf.device('CPU:0'):
      draws = [tf.identity(leaf[:num_complete]) for leaf in draws]
    return Outcome(
        int(num_steps), num_complete, bool(is_finite), draws,
        tf.nest.pack_sequence_as(self.use.form, leaves))

  def _steps(self, *leaves_seed_step_number):
    """Makes so many steps, fewer where a state is not finite."""
    *leaves, seed, step, number = leaves_seed_step_number

    def on_device(leaves, seed):
      position = tf.nest.pack_sequence_as(self.use.form, leaves)
      with kernel_lib.failures_left_to_caller():
        return tf.nest.flatten(self._kernel.one_step(*position, seed=seed))

    def one_step(left, step, is_finite, leaves):
      del is_finite
      leaves = collectives.run(
          self.use.strategy, on_device, leaves, random.fold_in(seed, step + 1))
      position = tf.nest.pack_sequence_as(self.use.form, leaves)
      return left - 1, step + 1, _is_finite(position.state), leaves

    _, step, is_finite, leaves = tf.while_loop(
        lambda left, step, is_finite, leaves: (left > 0) & is_finite,
        one_step, [number, step, True, leaves], parallel_iterations=1)
    return [step, is_finite, *leaves]

  def _draws(
      self, steps, size, leaves, seed, step, first, thinning, num_draws):
    """Makes draws until there are `num_draws` or a state is not finite.

    Args:
      steps: As `_steps`.
      size: Python `int`, for how many draws there is room.
      leaves: Those of the position, where it starts.
      seed: That of the chain.
      step: The number of the last step made.
      first: How many steps to make to the first draw.
      thinning: How many from draw to draw.
      num_draws: How many draws to make.

    Returns:
      num_steps, num_draws: What has been made.
      is_finite: Whether the last state is.
      draws: List of tensors `[size, ...]`, what is kept.
      leaves: Those of the last position.
    """
    start_step = step

    def one_draw(draw, step, is_finite, leaves, arrays):
      del is_finite
      step, is_finite, *leaves = steps(
          *leaves, seed, step, tf.where(draw == 0, first, thinning))
      position = tf.nest.pack_sequence_as(self.use.form, leaves)
      kept = [
          leaf for leaf in tf.nest.flatten(
              what_is_kept(self.use.trace_fn, position)) if leaf is not None]
      return (draw + tf.cast(is_finite, tf.int64), step, is_finite, leaves,
              _written(arrays, draw, kept))

    draw, step, is_finite, leaves, arrays = tf.while_loop(
        lambda draw, step, is_finite, *_: (draw < num_draws) & is_finite,
        one_draw,
        [tf.zeros([], tf.int64), step, True, leaves, self._arrays(size)],
        parallel_iterations=1)
    return (step - start_step, draw, is_finite,
            [array.stack() for array in arrays], leaves)

  def _in_blocks(
      self, block, size, leaves, seed, step, first, thinning, num_draws):
    """As `_draws`, of a kernel that makes `size`; with room in whole blocks."""
    start_step = step
    num_blocks = -(-self.room // size)

    def one_block(draw, step, is_finite, leaves, arrays):
      del is_finite
      num_steps, made, is_finite, *made_leaves = block(
          *leaves, seed, step, tf.where(draw == 0, first, thinning), thinning,
          tf.minimum(num_draws - draw, size))
      kept, leaves = (
          made_leaves[:len(arrays)], made_leaves[len(arrays):])
      return (draw + made, step + num_steps, is_finite, leaves,
              _written(arrays, draw // size, kept))

    draw, step, is_finite, leaves, arrays = tf.while_loop(
        lambda draw, step, is_finite, *_: (draw < num_draws) & is_finite,
        one_block, [
            tf.zeros([], tf.int64), step, True, leaves,
            self._arrays(num_blocks, [size])], parallel_iterations=1)
    return (step - start_step, draw, is_finite,
            [array.concat() for array in arrays], leaves)

  def _arrays(self, size, block=()):
    """For what is kept of so many draws, or blocks of draws."""
    return [
        tf.TensorArray(
            spec.dtype, size, element_shape=[*block, *spec.shape])
        for spec in self.specs.values()]


def _written(arrays, place, kept):
  return [
      array.write(tf.cast(place, tf.int32), leaf)
      for array, leaf in zip(arrays, kept)]


def _is_finite(state):
  return tf.reduce_all([
      tf.reduce_all(tf.math.is_finite(part)) for part in tf.nest.flatten(state)
      if part.dtype.is_floating])
