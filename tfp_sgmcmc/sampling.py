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
import os
import time
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import collectives
from tfp_sgmcmc import draws as draws_lib
from tfp_sgmcmc import errors
from tfp_sgmcmc import program as program_lib
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
from tfp_sgmcmc.internal import leaves as leaves_lib
from tfp_sgmcmc.internal import plan as plan_lib
from tfp_sgmcmc.internal import seeds
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.internal import wrapped
from tfp_sgmcmc.internal.progress import Progress

__all__ = ['sample']


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
      this library; with another kernel take another seed. Where draws are
      thinned, pass `num_burnin_steps=num_steps_between_results`, so that as
      many steps lie before the first draw as before the others. Default: the
      kernel's `bootstrap_results`.
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
    structure = forms.specs(program_lib.what_is_kept(trace_fn, start))
    # The processes of a strategy have to make the same calls.
    is_timed = strategy is None
    ends_early = chunk_size is None and is_timed
    chunk_size = plan_lib.chunk_size(chunk_size, num_results, structure)
    plan = plan_lib.Plan(
        num_results, num_burnin_steps, thinning, chunk_size)
    program = program_lib.of(
        kernel, program_lib.Use(
            trace_fn, forms.specs(start), structure, jit_compile, strategy,
            described, tf.config.functions_run_eagerly()),
        plan_lib.room(chunk_size, structure))
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


class _At(NamedTuple):
  """Where a run stands.

  Attributes:
    step: The number of steps made.
    position: Where the chain stands.
    last: Where it stood at the last draw; before the first one as `position`.
    pieces: The draws of this chunk so far, one list of tensors for each call.
  """
  step: int
  position: program_lib.Position
  last: program_lib.Position
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
    self._pace = plan_lib.Pace(is_timed)
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
  state = checks.to_tensors('current_state', current_state)
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
    start = program_lib.Position(state, checks.to_tensors(
        'previous_kernel_results', kernel_results))
    if strategy is None:
      _check_results(kernel, bootstrap, start)
    return start
  if strategy is not None:  # Eagerly, replicas take turns.
    bootstrap = tf.function(
        functools.partial(collectives.run, strategy, bootstrap),
        autograph=False)
  return program_lib.Position(state, checks.to_tensors(
      'What bootstrap_results made', bootstrap()))


def _check_results(kernel, bootstrap, position):
  """Raises where results are not such as those that the kernel starts with."""
  form = forms.specs(position)
  if program_lib.is_known(kernel, form):
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
