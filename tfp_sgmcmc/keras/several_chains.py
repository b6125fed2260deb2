"""Several chains of a model, each by a `fit` of its own, in other processes."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import concurrent.futures
from concurrent.futures import process
import contextlib
import hashlib
import multiprocessing
import os
import threading
from typing import Any
from typing import NamedTuple
import warnings

import cloudpickle
import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc import store as store_lib
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import forks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import seeds
from tfp_sgmcmc.keras import callback
from tfp_sgmcmc.keras.draws import model_draws as draws_lib
from tfp_sgmcmc.keras.draws import samples
from tfp_sgmcmc.keras.fitting import checkpoint
from tfp_sgmcmc.keras.fitting import starts
from tfp_sgmcmc.keras.model import network

__all__ = ['fit_chains']

Arguments = Mapping[str, Any] | Callable[[], Mapping[str, Any]]


def fit_chains(
    make_model: Callable[[], keras.Model],
    fit: Arguments,
    sampling: Arguments | None = None,
    *,
    num_chains: int = 4,
    directory: str | os.PathLike | checkpoint.Directory | None = None,
    executor: concurrent.futures.Executor | None = None,
    seed: hints.Seed = None,
) -> samples.PosteriorSamples:
  """Samples several chains, each with its own `fit` in its own process.

  Chain k = 0, 1, ... is what

    model = make_model()
    model.fit(**fit, callbacks=[PosteriorSampling(
        num_chains=1, **sampling, seed=random.fold_in(seed, k),
        directory=...)])

  gives: a model with initial weights, trained (`start_epoch`) and sampled
  separately. Agreement of chains that started apart is the best sign of
  convergence: `diagnostics.summary(posterior, x, y)` compares them.

  The processes may be those of any `concurrent.futures.Executor`. For other
  machines use Dask: `dask.distributed.Client(...).get_executor()`, with workers
  of one thread (the extra `dask`). By default new processes are started on this
  machine, as many at a time as it has processors. They are started without a
  fork, which TensorFlow's threads would not survive (a forked process is
  refused). In a script, put the call under `if __name__ == '__main__':`, since
  each new process imports the script. A notebook does not need this.

  With a `directory` a kill loses nothing. Chain k has its folder `chain_<k>`,
  like that of `PosteriorSampling(directory=...)`, and the same call continues
  only the chains that are not finished. If one of the default processes is
  killed, its chain continues in a new process, while the others keep running,
  as long as each process gets further than the one before; Dask does the same.
  More `num_chains`, or more epochs, add draws to the same run. Processes on
  other machines have to see the directory by the same path. A call with another
  model or with other arrays is refused; data that `fit` reads from a pipeline
  are not compared.

  Args:
    make_model: Callable without arguments; returns a new model, built (with an
      `Input`, say) and compiled. It may be defined in a script, in a notebook
      or in a module that the processes can import, and may close over objects
      that can be pickled. Initial weights have to come from the initialisers,
      which get another seed in each chain. Do not set a seed in `make_model`:
      all chains would start at one place. Weights that are not trained have to
      be the same in each chain.
    fit: Dict of the arguments of `model.fit`:
      `dict(x=x, y=y, batch_size=100, epochs=20)`; or a callable without
      arguments that returns it, called in each process. Use the callable for
      data that are better read there than sent, and for `tf.data` pipelines,
      which cannot be sent.
    sampling: Dict of the arguments of `PosteriorSampling`, without `seed` and
      `directory`, or a callable that returns it. By default all are chosen.
    num_chains: Python `int`, how many chains.
    directory: None to keep draws in memory; or the path of a directory, or a
      `Directory`.
    executor: `concurrent.futures.Executor`. Default: see above.
    seed: Python `int` or stateless seed; with a `directory` needed. By default
      one is drawn from TensorFlow's global generator.

  Returns:
    posterior: `PosteriorSamples` of all chains; `posterior.chains` are these.

  Raises:
    RuntimeError: If chains failed. The message names them; it is raised from
      the error of the first of them.
    ValueError: If an argument is out of its range, or the models differ in
      weights that are not trained.
    TypeError: If an argument is of the wrong type, or cannot be sent to another
      process.

  #### Examples

  With an executor of one thread, which makes one chain after the other in this
  process. Without it each chain has its own process:

  >>> import concurrent.futures
  >>> import numpy as np
  >>> def make_model():
  ...   model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
  ...   model.compile('adam', sgmcmc.keras.GaussianLikelihood(scale=0.5))
  ...   return model
  >>> x = np.random.default_rng(0).normal(size=[200, 3])
  >>> y = np.sum(x, axis=-1, keepdims=True)
  >>> posterior = sgmcmc.keras.fit_chains(
  ...     make_model, dict(x=x, y=y, batch_size=50, epochs=10), num_chains=2,
  ...     executor=concurrent.futures.ThreadPoolExecutor(1), seed=1)
  >>> posterior.num_chains, posterior.predict(x).shape
  (2, (200, 1))
  """
  forks.check()
  num_chains = checks.positive_integer('num_chains', num_chains)
  directory = checkpoint.to_directory(directory)
  if seed is None and directory is not None:
    raise ValueError(
        'With a directory a seed is needed, so that the same call can go on '
        'with the same chains: pass, for instance, seed=1.')
  seed = seeds.to_stateless(seed)
  sampling = {} if sampling is None else sampling
  _check_arguments('fit', fit, ())
  _check_arguments('sampling', sampling, ('seed', 'directory'))
  if not callable(make_model) or isinstance(make_model, keras.Model):
    raise TypeError(
        f'make_model is {make_model!r}: a function that returns a new model is '
        'needed, for each chain has its own.')
  model = make_model()
  network.check_model(model)
  if not network.is_built(model):
    raise ValueError(
        'make_model returned a model without weights: give it an Input, or '
        'call model.build(...) in make_model.')
  pickled = _pickled(make_model, fit, sampling)
  jobs = [
      _Job(
          pickled, random.fold_in(seed, k).numpy().tolist(),
          None if directory is None else directory.folder(f'chain_{k}'),
          _digest(model.non_trainable_weights),
          (keras.config.dtype_policy().name, keras.config.floatx()))
      for k in range(num_chains)]
  return samples.PosteriorSamples.concatenate([
      samples.PosteriorSamples.load(job.directory.path, model)
      if job.directory is not None else samples.PosteriorSamples(
          model, draws_lib.in_memory(model, arrays))
      for job, arrays in zip(jobs, _run_all(jobs, executor))])


class _Job(NamedTuple):
  """What a process needs to know of its chain."""
  pickled: bytes
  seed: list[int]
  directory: checkpoint.Directory | None
  digest: str  # Of the weights that are not trained.
  types: tuple[str, str]  # Keras' policy, and its type of numbers.


class _Outcome(NamedTuple):
  """What a process tells: draws where they are in memory; warnings."""
  arrays: dict[str, np.ndarray] | None
  warnings: list[tuple[str, type[Warning]]]
  start: str  # A hash of the initial weights.


def _run_all(jobs, executor):
  """The arrays of all chains; None of those whose draws are on disk."""
  if executor is not None:
    return _collect([executor.submit(_run, job) for job in jobs])
  with concurrent.futures.ThreadPoolExecutor(_num_processors()) as threads:
    return _collect(
        [threads.submit(_run_in_new_processes, job) for job in jobs])


def _collect(futures):
  """Waits for all; tells of warnings, and raises where chains failed."""
  errors, found, starting = {}, [], {}
  for k, future in enumerate(futures):
    try:
      outcome = future.result()
    except Exception as error:  # pylint: disable=broad-except
      errors[k] = error
      continue
    for message, category in outcome.warnings:
      warnings.warn(f'Chain {k}: {message}', category, stacklevel=4)
    twin = starting.setdefault(outcome.start, k)
    if twin != k:
      warnings.warn(
          f'Chains {twin} and {k} start from the same weights, so that their '
          'agreement would say little: leave seeds out of make_model, and '
          'weights that it loads.', stacklevel=4)
    found.append(outcome.arrays)
  if errors:
    first = min(errors)
    raise RuntimeError(
        f'Of {len(futures)} chains {len(errors)} failed, '
        f'{", ".join(map(str, errors))}; chain {first}: {errors[first]!r}. '
        'With a directory the same call goes on with these alone.' + (
            ' (A process that ended without an error of its own was killed, '
            'for want of memory perhaps; or the call does not stand under '
            "if __name__ == '__main__': in a script.)" if isinstance(
                errors[first], process.BrokenProcessPool) else '')
    ) from errors[first]
  return found


def _run_in_new_processes(job):
  """Runs a chain in a process; in another where that is killed on its way."""
  while True:
    before = _step(job)
    try:
      with concurrent.futures.ProcessPoolExecutor(
          1, multiprocessing.get_context('spawn')) as pool:
        return pool.submit(_run, job).result()
    except process.BrokenProcessPool:
      if _step(job) <= before:
        raise


def _step(job):
  """How far a chain is in its directory."""
  return 0 if job.directory is None else store_lib.Store(
      job.directory.path, 'fit').step


def _run(job: _Job) -> _Outcome:
  """Makes a chain, in the process that calls it."""
  forks.check()
  make_model, *arguments = cloudpickle.loads(job.pickled)
  policy, floatx = job.types  # Those of the caller, not of a new process.
  keras.config.set_floatx(floatx)
  keras.config.set_dtype_policy(policy)
  fit, sampling = (dict(a() if callable(a) else a) for a in arguments)
  callbacks = keras.tree.flatten(fit.get('callbacks') or [])
  if any(isinstance(c, keras.callbacks.BackupAndRestore) for c in callbacks):
    raise ValueError(
        'fit has the callback BackupAndRestore, with one place for all chains: '
        'a chain would go on from the weights of another. Leave it out; with '
        'fit_chains(directory=...) each chain goes on by itself.')
  with starts.initialisers_seed(job.seed):
    model = make_model()
  if _digest(model.non_trainable_weights) != job.digest:
    raise ValueError(
        'make_model returns models that differ in weights that are not '
        'trained, and predictions use those of one for all chains: let it set '
        'them (by a seed in their initialisers, or load_weights).')
  chain = callback.PosteriorSampling(
      **{'num_chains': 1, **sampling}, seed=job.seed, directory=job.directory)
  if job.directory is not None:
    callback.describe_also(chain, fit={
        key: fit[key] for key in _OF_THE_POSTERIOR
        if key in fit and not isinstance(fit[key], _PIPELINES)})
  start = _digest(model.trainable_weights)
  with _WARNINGS.of_this_thread() as caught:
    model.fit(**{'verbose': 0, **fit, 'callbacks': [*callbacks, chain]})
  told: list[tuple[str, type[Warning]]] = [
      (message, category) for message, category in dict.fromkeys(caught)
      if issubclass(category, (UserWarning, RuntimeWarning))]
  try:
    posterior = chain.posterior
  except ValueError as error:
    raise RuntimeError(' '.join([str(error), *(
        message for message, _ in told if message not in str(error))])
                      ) from error
  return _Outcome(
      posterior.arrays() if job.directory is None else None, told, start)


# The arguments of `fit` with which the posterior, or the chain, is another.
_OF_THE_POSTERIOR = (
    'x', 'y', 'sample_weight', 'class_weight', 'batch_size', 'shuffle',
    'validation_split', 'steps_per_epoch')
_OF_EXAMPLES = ('x', 'y', 'sample_weight')
# Cannot be looked into.
_PIPELINES = (tf.data.Dataset, keras.utils.PyDataset, Iterator)


class _Warnings:
  """What is warned of, by thread: Python's own recorder takes that of all."""

  def __init__(self):
    self._lock = threading.Lock()
    self._by_thread = {}
    self._recording = contextlib.ExitStack()

  @contextlib.contextmanager
  def of_this_thread(self) -> Iterator[list[tuple[str, type[Warning]]]]:
    """A list of what the thread warns of from here on."""
    thread, told = threading.get_ident(), []
    with self._lock:
      if not self._by_thread:
        self._record()
      self._by_thread[thread] = told
    try:
      yield told
    finally:
      with self._lock:
        del self._by_thread[thread]
        if not self._by_thread:
          self._recording.close()

  def _record(self):
    self._recording.enter_context(warnings.catch_warnings())
    warnings.simplefilter('always')
    show = warnings.showwarning

    def note(message, category, *args, **kwargs):
      told = self._by_thread.get(threading.get_ident())
      if told is None:
        show(message, category, *args, **kwargs)
      else:
        told.append((str(message), category))

    warnings.showwarning = note


_WARNINGS = _Warnings()


def _pickled(*objects):
  try:
    return cloudpickle.dumps(objects)
  except Exception as error:
    raise TypeError(
        'make_model, fit or sampling holds what cannot be sent to another '
        f'process ({error}): let it be a function that makes this there, such '
        'as fit=lambda: dict(x=make_dataset(), epochs=20).') from error


def _check_arguments(name, value, ours):
  if callable(value):
    return
  if not isinstance(value, Mapping):
    raise TypeError(
        f'{name} is {value!r}: a dict of arguments is needed, or a function '
        'without arguments that returns one.')
  for key in ours:
    if key in value:
      raise ValueError(
          f'{name} holds {key!r}, which each chain has of its own: pass it to '
          'fit_chains.')
  for key in _OF_EXAMPLES if name == 'fit' else ():
    leaves = keras.tree.flatten(value.get(key))
    if any(isinstance(leaf, (bool, int, float, str)) for leaf in leaves):
      raise TypeError(
          f'fit[{key!r}] is a list of Python values, which Keras takes for a '
          f'list of inputs: pass an array, np.array({key}).')


def _num_processors():
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def _digest(variables: Iterable[Any]) -> str:
  """A hash of the values of variables."""
  digest = hashlib.sha256()
  for variable in variables:
    digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
  return digest.hexdigest()
