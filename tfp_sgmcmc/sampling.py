"""The driver of long runs: compiled chunks, progress, draws on disk, going on.

Steps are numbered 1, 2, ... from the beginning of the chain, burn-in included.
Step t is made with the seed `random.fold_in(seed, t)`, and the first kernel
results with `random.fold_in(seed, 0)`, so that a chain does not depend on how
it is cut into chunks and calls.
"""

from collections.abc import Callable
import contextlib
import functools
import inspect
import math
import os
import time
import types
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import collectives
from tfp_sgmcmc import draws as draws_lib
from tfp_sgmcmc import errors
from tfp_sgmcmc import kernel as kernel_lib
from tfp_sgmcmc import random
from tfp_sgmcmc import sharding
from tfp_sgmcmc import store as store_lib
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import chunks as chunks_lib
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import fingerprint as fingerprint_lib
from tfp_sgmcmc.internal import forks
from tfp_sgmcmc.internal import forms
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import interrupts as interrupts_lib
from tfp_sgmcmc.internal import kept as kept_lib
from tfp_sgmcmc.internal import leaves as leaves_lib
from tfp_sgmcmc.internal import one_kernel
from tfp_sgmcmc.internal import seeds
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.internal import wrapped
from tfp_sgmcmc.internal.progress import Progress

__all__ = ['SECONDS_PER_CALL', 'Program', 'sample']

_CHUNK_BYTES = 64 * 2**20
_NUM_CHUNKS = 20  # Where chunk_size is left out: so many, or more if large.
_NUM_BURNIN_CHUNKS = 100
# Of a call of the compiled program: how long it should take, by how much it may
# be longer than the one before, and what room for draws it has at most, since
# all of the room is written at each call.
SECONDS_PER_CALL = 0.5
_GROWTH = 8
_ROOM_BYTES = 16 * 2**20
_MOST_PROGRAMS = 8  # Kept with a kernel.
# Of draws that one kernel makes: as many as take its arrays, which are small.
_MAX_BLOCK = 64


def sample(
    kernel: tfp.mcmc.TransitionKernel,
    num_results: int,
    current_state: hints.State,
    num_burnin_steps: int = 0,
    num_steps_between_results: int = 0,
    trace_fn: Callable[[Any, Any], Any] | None = None,
    chunk_size: int | None = None,
    directory: str | os.PathLike | None = None,
    progress_bar: bool = True,
    seed: hints.Seed = None,
    previous_kernel_results: hints.Results | None = None,
    jit_compile: bool = True,
    fingerprint: str | None = None,
) -> draws_lib.Draws:
  """Runs a chain in compiled chunks, with progress, optionally on disk.

  As in `tfp.mcmc.sample_chain`, `num_burnin_steps` steps are made and
  discarded, the first draw is the state one step later, and from draw to draw
  there are `1 + num_steps_between_results` steps. It takes any
  `tfp.mcmc.TransitionKernel`. The step is compiled once, and run in calls of
  about half a second; the length of a call or a chunk does not change the
  draws.

  With a `directory` draws are written to disk chunk by chunk, and memory does
  not grow with `num_results`. After a kill the same call continues from the
  last chunk and ends with the same draws; with a larger `num_results` it adds
  draws of the same chain. Only one run at a time can write to a directory.

  The page "Long runs with sample" (docs/sampling.md) says more: when a call is
  the same, when it compiles again, how to interrupt it, and the bias of a step
  of finite size.

  Args:
    kernel: `tfp.mcmc.TransitionKernel`.
    num_results: Python `int`, the number of draws.
    current_state: Tensor or list of tensors, where to start.
    num_burnin_steps: Python `int`, the number of steps before the draws.
    num_steps_between_results: Python `int`, the number of steps to leave out
      between draws.
    trace_fn: Callable of the state and the kernel results at a draw; returns
      nested tensors to keep. Default: none.
    chunk_size: Python `int`, the number of draws in a chunk. Default: a
      twentieth of all, or as many as take 64 MiB; with a directory those of a
      second, or of 20 times as long as it takes to write them.
    directory: Where to keep the draws; made where it does not exist. Default:
      in memory.
    progress_bar: Python `bool`: show the bar that Keras' `fit` shows, of the
      steps that this call makes.
    seed: Python `int` i, for the stateless seed `[i >> 32, i]`, or that seed,
      `int32[2]`. By default one is drawn from TensorFlow's global generator.
    previous_kernel_results: The `kernel_results` of an earlier run, to continue
      from. With the same seed this is the chain of one long run, for kernels of
      this library; with another kernel take another seed. Default: the kernel's
      `bootstrap_results`.
    jit_compile: Python `bool`: compile with XLA. It has no effect for
      `gradients.Stream`, or if TensorFlow has no XLA compiler for the host.
    fingerprint: Python `str` that identifies arguments which a `directory`
      cannot compare, such as the version of the data. With another string the
      call does not resume the run.

  Returns:
    draws: `Draws`, with `states`, `trace`, `final_state`, `kernel_results`; of
      a kernel whose results have a `log_weight` (`AdaptiveTime`) also
      `log_weights`.

  Raises:
    NonFiniteError: If a state becomes NaN or infinite. It says at which step
      and in which chain and part, and holds the draws before.
    FireflyError: Likewise, where `FireflyMonteCarlo` cannot go on.
    RateBoundError: Likewise, where the reason is a violated bound on the rate
      of an exact continuous-time sampler.
    SamplingInterrupted: After Ctrl-C. It holds the draws before.
    ValueError: If the directory holds the draws of a call with other arguments,
      or more than `num_results`, or is damaged; or an argument is out of its
      range.
    RuntimeError: If another run is writing to the directory; or in a forked
      process, where TensorFlow would wait forever.
    TypeError: If an argument is of the wrong type.

  #### Examples

  >>> x = tf.random.stateless_normal([1000], [0, 1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x), x)
  >>> kernel = sgmcmc.SGLD(
  ...     posterior, step_size=1e-4,
  ...     gradient_estimator=sgmcmc.gradients.Uniform(batch_size=100))
  >>> draws = sgmcmc.sample(
  ...     kernel, 500, tf.zeros([20]), num_burnin_steps=100, seed=1,
  ...     trace_fn=lambda _, results: results.target_log_prob,
  ...     progress_bar=False)
  >>> draws.states.shape, draws.trace.shape
  (TensorShape([500, 20]), TensorShape([500, 20]))
  >>> bool(abs(tf.reduce_mean(draws.states) - tf.reduce_mean(x)) < 0.01)
  True
  """
  forks.check()
  _check(kernel, trace_fn, seed, directory, fingerprint)
  stateless_seed = seeds.to_stateless(seed)
  num_results = checks.positive_integer('num_results', num_results)
  num_burnin_steps = checks.non_negative_integer(
      'num_burnin_steps', num_burnin_steps)
  thinning = 1 + checks.non_negative_integer(
      'num_steps_between_results', num_steps_between_results)
  sharded = sharding.find(kernel)
  strategy = None if sharded is None else sharded.strategy
  writes = sharded is None or sharded.is_of_first_process
  compiles = _compiles(kernel)
  jit_compile = (
      checks.boolean('jit_compile', jit_compile) and compiles
      and strategy is None and bool(compat.jit_compile()))
  progress_bar = checks.boolean('progress_bar', progress_bar) and writes
  store, described = _store(
      directory, sharded, num_results, fingerprint, kernel=kernel,
      current_state=current_state,
      previous_kernel_results=previous_kernel_results, trace_fn=trace_fn,
      seed=stateless_seed, num_burnin_steps=num_burnin_steps,
      num_steps_between_results=thinning - 1, jit_compile=jit_compile)
  with contextlib.ExitStack() as stack:
    if store is not None and writes and len(store.draws) < num_results:
      stack.enter_context(store)
      _check_not_longer(store, num_results)
    start = _start(
        kernel, current_state, previous_kernel_results, stateless_seed,
        strategy)
    trace = None if trace_fn is None else _traced(trace_fn, start)
    structure = forms.specs((start.state, trace, _log_weight(start)))
    # The processes of a strategy have to make the same calls.
    is_timed = strategy is None
    ends_early = chunk_size is None and is_timed
    chunk_size = _chunk_size(chunk_size, num_results, structure)
    plan = _Plan(num_results, num_burnin_steps, thinning, chunk_size)
    program = _program(
        kernel, trace_fn, forms.specs(start), structure,
        _room(chunk_size, structure), jit_compile, strategy, described)
    return _Run(
        plan, program, store, start, structure, stateless_seed,
        # A Stream moves on at each read, so its steps cannot be repeated.
        can_repeat=compiles, writes=writes, is_timed=is_timed,
        ends_early=ends_early,
    ).go(progress_bar)


def _check(kernel, trace_fn, seed, directory, fingerprint):
  """Raises where an argument is of the wrong type, or a seed is missing."""
  if not isinstance(kernel, tfp.mcmc.TransitionKernel):
    raise TypeError(
        f'kernel is {kernel!r}, of type {type(kernel).__name__}: it has to be '
        'a tfp.mcmc.TransitionKernel, such as SGLD or SGHMC.')
  if directory is not None:
    checks.directory(directory)
  if seed is None and directory is not None:
    raise ValueError(
        'With a directory a seed is needed, so that the same call can go on '
        'with the same random numbers: pass, for instance, seed=1.')
  if trace_fn is not None and not callable(trace_fn):
    raise TypeError(
        f'trace_fn is {trace_fn!r}: it has to be a function of the state and '
        'the kernel results, or None for no trace.')
  fingerprint_lib.check(fingerprint)


def _store(directory, sharded, num_results, users_fingerprint, **arguments):
  """Reads the directory of a call with these arguments, and describes them.

  Without a directory both are None.
  """
  if directory is None:
    return None, None
  if sharded is not None:
    sharded.wait()  # For what the first process has still to write.
    if not sharded.is_of_first_process:
      return store_lib.Store(directory, 'sample'), None
  described = fingerprint_lib.of_run(
      'Another call on', directory, users_fingerprint, arguments)
  store = store_lib.Store(directory, 'sample', described)
  _check_not_longer(store, num_results)
  return store, described


def _check_not_longer(store, num_results):
  if len(store.draws) > num_results:
    raise ValueError(
        f'num_results is {num_results:,}, and {store.path} holds '
        f'{len(store.draws):,} draws of this chain: ask for at least as many, '
        'and take the first of them.')


class _Position(NamedTuple):
  """Where a chain stands."""
  state: Any
  kernel_results: Any


class _Plan(NamedTuple):
  """Which steps to make, and which to keep.

  Attributes:
    num_results: The number of draws.
    num_burnin_steps: The number of steps before.
    thinning: The number of steps from draw to draw.
    chunk_size: The largest number of draws in a chunk.
  """
  num_results: int
  num_burnin_steps: int
  thinning: int
  chunk_size: int

  @property
  def num_steps(self):
    return self._step_of(self.num_results - 1)

  def _step_of(self, draw):
    """The number of the step that makes a draw, counted from 0."""
    return self.num_burnin_steps + 1 + draw * self.thinning

  def end_of_chunk(self, step, num_draws):
    """The last step of the chunk that begins after a step."""
    if step < self.num_burnin_steps:
      longest = max(
          self.chunk_size * self.thinning,
          -(-self.num_burnin_steps // _NUM_BURNIN_CHUNKS))
      return min(step + longest, self.num_burnin_steps)
    return self._step_of(
        min(num_draws + self.chunk_size, self.num_results) - 1)

  def next_call(self, step, num_draws, num_steps, room):
    """What to do in the next call of the program.

    Args:
      step: The number of steps made.
      num_draws: The number of draws made.
      num_steps: How many steps to make.
      room: For how many draws there is room.

    Returns:
      first: How many steps to make to the first draw.
      number: How many draws to make.
      are_kept: Whether these are draws: False where so many steps end before
        the next one.
    """
    first = self._step_of(num_draws) - step
    if first > num_steps:
      return num_steps, 1, False
    return first, min(room, 1 + (num_steps - first) // self.thinning), True


class _Pace:
  """How many steps to make in a call, by how long the last one took."""

  def __init__(self, is_timed):
    self.num_steps = 1 if is_timed else math.inf

  def update(self, num_steps, seconds):
    within = num_steps * SECONDS_PER_CALL / max(seconds, 1e-6)
    self.num_steps = max(1, int(min(within, _GROWTH * self.num_steps))) if (
        math.isfinite(self.num_steps)) else self.num_steps


class _Outcome(NamedTuple):
  """What a call of the program did."""
  num_steps: int
  num_draws: int
  is_finite: bool
  draws: list[tf.Tensor]
  position: _Position


def _program(
    kernel, trace_fn, form, structure, room, jit_compile, strategy, described):
  """The program that is kept with the kernel, or a new one."""
  programs = kept_lib.of(kernel).setdefault('programs', [])
  if described is not None:  # What the functions close over is known.
    described = {
        name: text for name, text in described.items()
        if name.split('.')[0] in ('kernel', 'trace_fn')}
  made_for = (
      trace_fn, form, structure, jit_compile, strategy,
      tf.config.functions_run_eagerly(), described)
  for program in programs:
    if program.room >= room and _is_same_use(program.made_for, made_for):
      return program
  program = Program(kernel, made_for, room)
  programs[:] = [program, *programs[:_MOST_PROGRAMS - 1]]
  return program


def _is_same_use(before, now):
  """Whether a program made for the first serves for the second."""
  return (
      before[3:] == now[3:] and _is_same_function(before[0], now[0])
      and forms.are_same(before[1:3], now[1:3]))


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


class Program:
  """The steps of a call, compiled once.

  Attributes:
    made_for: What it was made for, as `_program` has it.
    room: For how many draws a call has room.
    specs: The `TensorSpec` of each array of a draw, by name.
  """

  def __init__(self, kernel, made_for, room):
    self.made_for, self.room = made_for, room
    (self._trace_fn, self._form, structure, self._jit_compile,
     self._strategy, *_) = made_for
    self.specs = draws_lib.leaves_of(*structure)
    self._kernel = kernel
    self._advance = None  # Until there is a step to make.

  def prepare(self, position, seed):
    """Compiles the steps, where that has not been done yet, and makes none."""
    if self._advance is None:
      leaves = tf.nest.flatten(position)
      self._compile(leaves, seed)
      self(position, seed, 0, 1, 1, 0)

  def _compile(self, leaves, seed):
    """Compiles the steps, as one kernel where they are small."""
    steps = self._steps
    self._traced = self._one_kernel = None
    if self._jit_compile and not tf.config.functions_run_eagerly():
      number = tf.zeros([], tf.int64)
      self._traced = steps = one_kernel.trace(
          steps, *leaves, seed, number, number)
      if one_kernel.is_worthwhile(self._form.kernel_results):
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
              *leaves, seed, *4 * [number]), self._form.state)
      if block is not None:
        return functools.partial(self._in_blocks, block, size)
    steps = one_kernel.make(self._traced, self._form.state)
    return steps and functools.partial(self._draws, steps, self.room)

  def compiled(self, draws: Callable[..., Any]) -> Callable[..., Any]:
    """A function of draws, compiled as the call asks for."""
    return tf.function(draws, autograph=False, jit_compile=self._jit_compile)

  def __call__(
      self, position, seed, step, first, thinning, num_draws) -> _Outcome:
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
    return _Outcome(
        int(num_steps), num_complete, bool(is_finite), draws,
        tf.nest.pack_sequence_as(self._form, leaves))

  def _steps(self, *leaves_seed_step_number):
    """Makes so many steps, fewer where a state is not finite."""
    *leaves, seed, step, number = leaves_seed_step_number

    def on_device(leaves, seed):
      position = tf.nest.pack_sequence_as(self._form, leaves)
      with kernel_lib.failures_left_to_caller():
        return tf.nest.flatten(self._kernel.one_step(*position, seed=seed))

    def one_step(left, step, is_finite, leaves):
      del is_finite
      leaves = collectives.run(
          self._strategy, on_device, leaves, random.fold_in(seed, step + 1))
      position = tf.nest.pack_sequence_as(self._form, leaves)
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
      position = tf.nest.pack_sequence_as(self._form, leaves)
      kept = [position.state]
      if self._trace_fn is not None:
        kept.append(_traced(self._trace_fn, position))
      log_weight = _log_weight(position)
      if log_weight is not None:
        kept.append(log_weight)
      return (draw + tf.cast(is_finite, tf.int64), step, is_finite, leaves,
              _written(arrays, draw, tf.nest.flatten(kept)))

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


class _At(NamedTuple):
  """Where a run stands.

  Attributes:
    step: The number of steps made.
    position: Where the chain stands.
    last: Where it stood at the last draw; before the first one as `position`.
    pieces: The draws of this chunk so far, one list of tensors for each call.
  """
  step: int
  position: _Position
  last: _Position
  pieces: tuple[list[tf.Tensor], ...] = ()


class _Run:
  """A run: where it stands, and what it has."""

  def __init__(
      self, plan, program, store, start, structure, seed, can_repeat, writes,
      is_timed, ends_early):
    self._plan = plan
    self._can_repeat, self._ends_early = can_repeat, ends_early
    self._program = program
    self._seed = seed
    self._first_step = _steps_made(start.kernel_results)
    self._store = store
    self._structure = structure
    self._pace = _Pace(is_timed)
    self._interrupts = interrupts_lib.Interrupts()
    self._at = _At(0, start, start)
    self._chunks = chunks_lib.Chunks() if store is None else store.draws
    if store is not None and not store.is_new:
      self._go_on_from(store)
    if not writes:
      self._store, self._chunks = None, self._chunks.copy()

  def _go_on_from(self, store):
    difference = chunks_lib.spec_difference(
        store.draws.specs, self._program.specs)
    if len(store.draws) and difference is not None:
      raise ValueError(
          f'{store.path} holds draws of another form than this call makes: '
          f'{difference}. Make the same call to go on with it, or give another '
          'directory.')
    specs = leaves_lib.named(**forms.specs(self._at.position)._asdict())
    checkpoint = store.checkpoint(specs)
    with tf.device('CPU:0'):
      position = tf.nest.pack_sequence_as(
          self._at.position,
          [tf.convert_to_tensor(checkpoint[name]) for name in specs])
    self._at = _At(store.step, position, position)

  @property
  def _num_draws(self):
    return len(self._chunks) + sum(
        len(piece[0]) for piece in self._at.pieces)

  def go(self, progress_bar) -> draws_lib.Draws:
    if self._num_draws < self._plan.num_results:
      with self._interrupts:
        try:
          self._program.prepare(self._at.position, self._seed)
          # Its clock starts here: it tells no time of compilation.
          bar = Progress(self._plan.num_steps, self._at.step, progress_bar)
          while self._num_draws < self._plan.num_results:
            self._make_chunk(bar)
        except KeyboardInterrupt:
          raise self._interrupted() from None
    return self._result(self._at.position)

  def _make_chunk(self, bar):
    end = self._plan.end_of_chunk(self._at.step, self._num_draws)
    while self._at.step < end:
      with self._interrupts.held():
        num_steps = self._call(end)
      bar.update(num_steps)
      if self._ends_early and self._store is not None and (
          self._store.commit_is_due):
        break
    with self._interrupts.held():
      self._save(
          not self._ends_early or self._store is not None and (
              self._store.commit_is_due
              or self._num_draws == self._plan.num_results))

  def _call(self, end):
    """Makes the next steps, and returns how many."""
    at, plan, program = self._at, self._plan, self._program
    first, number, are_kept = plan.next_call(
        at.step, self._num_draws, min(self._pace.num_steps, end - at.step),
        program.room)
    step = self._first_step + at.step
    start = time.monotonic()
    outcome = program(
        at.position, self._seed, step, first, plan.thinning, number)
    self._pace.update(outcome.num_steps, time.monotonic() - start)
    if not outcome.is_finite:
      if not (are_kept and outcome.num_draws):
        self._fail(outcome, (), at.last)
      last = at.last
      if self._can_repeat:  # Makes the steps up to the last draw again.
        last = program(
            at.position, self._seed, step, first, plan.thinning,
            outcome.num_draws).position
      self._fail(outcome, (outcome.draws,), last)
    step = at.step + outcome.num_steps
    if are_kept:
      self._at = _At(
          step, outcome.position, outcome.position,
          (*at.pieces, outcome.draws))
    else:
      last = at.last if self._num_draws else outcome.position
      self._at = at._replace(step=step, position=outcome.position, last=last)
    return outcome.num_steps

  def _save(self, is_due):
    """Makes a chunk of the pieces; on disk where that is due."""
    at = self._at
    if at.pieces:
      keeper = self._chunks if self._store is None else self._store
      keeper.append(self._joined(at.pieces))
      self._at = at._replace(pieces=())
    if self._store is not None and is_due and at.step > self._store.step:
      self._store.commit(at.step, leaves_lib.named(**at.position._asdict()))

  def _joined(self, pieces):
    """The draws of several calls as one, by name."""
    return {
        name: leaves[0] if len(leaves) == 1 else np.concatenate(leaves)
        for name, *leaves in zip(self._program.specs, *pieces)}

  def _result(self, position, unfinished=()):
    chunks = self._chunks.copy()
    pieces = (*self._at.pieces, *unfinished)
    if pieces:
      chunks.append(self._joined(pieces))
    *structure, log_weight = self._structure
    return draws_lib.Draws(
        chunks, structure, final_state=position.state,
        kernel_results=position.kernel_results,
        num_chain_axes=states.chain_shape(position.kernel_results).rank,
        log_weight=log_weight)

  def _interrupted(self):
    """The error for Ctrl-C, once all is saved."""
    with self._interrupts.held():
      self._save(is_due=True)
      draws = self._result(self._at.last)
    where = '' if self._store is None else (
        f' and in {self._store.path}, from where the same call goes on')
    return errors.SamplingInterrupted(
        f'Interrupted after step {self._at.step:,} of {self._plan.num_steps:,}.'
        f' The {len(draws):,} draws so far are in the .result of this error'
        f'{where}.', self._at.step, draws)

  def _fail(self, outcome, unfinished, last):
    """Raises `NonFiniteError`, with the draws before."""
    step = self._at.step + outcome.num_steps
    draws = self._result(last, unfinished)
    phase = (
        f'burn-in, which has {self._plan.num_burnin_steps:,}'
        if step <= self._plan.num_burnin_steps
        else f'{self._plan.num_steps:,}')
    failure = errors.find_failure(
        outcome.position.kernel_results, outcome.position.state)
    raise failure.raised(
        f'At step {step:,} (of {phase})', step,
        f'The {len(draws):,} draws before are in the .result of this error.',
        draws)


def _start(kernel, current_state, kernel_results, seed, strategy):
  state = _to_tensors('current_state', current_state)
  states.check_not_empty(state)
  takes_seed = 'seed' in inspect.signature(kernel.bootstrap_results).parameters
  bootstrap = functools.partial(
      kernel.bootstrap_results, state,
      **({'seed': random.fold_in(seed, 0)} if takes_seed else {}))
  if kernel_results is not None:
    if isinstance(kernel_results, draws_lib.Draws):
      raise TypeError(
          'previous_kernel_results are Draws: pass their kernel_results, and '
          'their final_state as current_state.')
    kernel_results = _to_tensors('previous_kernel_results', kernel_results)
    if strategy is None:
      _check_results(kernel, bootstrap, _Position(state, kernel_results))
  else:
    if strategy is not None:  # Eagerly, replicas take turns.
      bootstrap = tf.function(
          functools.partial(collectives.run, strategy, bootstrap),
          autograph=False)
    kernel_results = _to_tensors('What bootstrap_results made', bootstrap())
  return _Position(state, kernel_results)


def _check_results(kernel, bootstrap, position):
  """Raises where results are not such as those that the kernel starts with."""
  form = forms.specs(position)
  if any(forms.are_same(program.made_for[1], form)
         for program in kept_lib.of(kernel).get('programs', [])):
    return
  try:
    wanted = tf.function(
        bootstrap, autograph=False).get_concrete_function().structured_outputs
  except Exception:  # pylint: disable=broad-except
    return  # It says what is wrong where the chain is made.
  difference = forms.difference(
      wanted, form.kernel_results, 'previous_kernel_results')
  if difference is not None:
    raise ValueError(
        f'{difference} for this {type(kernel).__name__} and this '
        'current_state: pass the kernel_results and the final_state of an '
        'earlier run of such a kernel, or leave previous_kernel_results out to '
        'begin a chain.')


def _traced(trace_fn, position):
  """What there is to keep of a position, as tensors."""
  trace = trace_fn(*position)
  if any(leaf is None for leaf in tf.nest.flatten(trace)):
    raise TypeError(
        f'trace_fn returned {trace!r}: it has to return what to keep of a '
        'draw, tensors and no None. For no trace leave trace_fn out.')
  return _to_tensors('What trace_fn returned', trace)


def _log_weight(position):
  """The logarithm of the weight of a state; None where all count the same."""
  return compat.find_result(position.kernel_results, 'log_weight')


def _to_tensors(name, structure):
  return tf.nest.map_structure(
      lambda leaf: checks.to_tensor(name, leaf), structure)


def _chunk_size(chunk_size, num_results, structure):
  if chunk_size is not None:
    return min(checks.positive_integer('chunk_size', chunk_size), num_results)
  return min(
      -(-num_results // _NUM_CHUNKS), _within(_CHUNK_BYTES, structure))


def _room(chunk_size, structure):
  """For how many draws a program has room: one of few numbers, for reuse."""
  return min(
      2**math.ceil(math.log2(chunk_size)), _within(_ROOM_BYTES, structure))


def _within(num_bytes, structure):
  """How many draws take at most so many bytes; one at least."""
  bytes_per_draw = sum(
      spec.shape.num_elements() * spec.dtype.size
      for spec in tf.nest.flatten(structure) if spec is not None)
  return max(1, num_bytes // max(1, bytes_per_draw))


def _compiles(kernel):
  """Whether XLA can compile the kernel and those inside it."""
  return all(
      getattr(getattr(one, 'gradient_estimator', None), 'compiles', True)
      for one in wrapped.kernels(kernel))


def _steps_made(kernel_results):
  step = compat.find_result(kernel_results, 'step')
  if step is None or not step.dtype.is_integer or step.shape.rank:
    return 0
  return int(step)


def _is_finite(state):
  return tf.reduce_all([
      tf.reduce_all(tf.math.is_finite(part)) for part in tf.nest.flatten(state)
      if part.dtype.is_floating])
