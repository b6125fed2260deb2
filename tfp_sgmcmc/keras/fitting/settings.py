"""What `PosteriorSampling` was given, checked, and what it chooses."""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

import tensorflow as tf

from tfp_sgmcmc import mcmc
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import seeds
from tfp_sgmcmc.keras.draws import draw_schedule
from tfp_sgmcmc.keras.draws import draw_times
from tfp_sgmcmc.keras.fitting import checkpoint
from tfp_sgmcmc.keras.fitting import defaults
from tfp_sgmcmc.keras.fitting import kernel_maker
from tfp_sgmcmc.keras.fitting import row_count as examples_lib
from tfp_sgmcmc.keras.fitting import side_by_side
from tfp_sgmcmc.keras.fitting import starts
from tfp_sgmcmc.keras.heat import found_step as found_step_lib
from tfp_sgmcmc.keras.heat import temperature_search

__all__ = ['Settings', 'resolve']


@dataclasses.dataclass(frozen=True)
class Settings:
  """The settings of a chain in `fit`.

  Its parts `examples`, `schedule`, `search` and `found_step` learn in `fit`
  what could not be known before.

  Attributes:
    given: The arguments by which a run is known to be the same, by name.
    chooses: Whether no kernel was given, so that what is left out is chosen.
    examples: `ExampleCount`, which knows N at the first batch.
    make_kernel: `KernelMaker`.
    schedule: `DrawTimes`.
    search: `TemperatureSearch`, None where T is not chosen.
    found_step: `FoundStep`, which finds the step size or the learning rate in
      burn-in; None where it was given.
    start_epoch: The first epoch that samples; None where it is to be chosen.
    prior: As `WeightPrior` takes it.
    chains: `Chains`; None where their number is to be chosen.
    num_more_rows: Python `int` or "auto", how many rows a step has beside those
      of its batch.
    num_steps_per_batch: Python `int`, how many steps there are for each batch;
      None where it is to be chosen.
    directory: `Directory`, None to keep draws in memory.
    seed: Stateless seed.
  """
  given: dict[str, Any]
  chooses: bool
  examples: examples_lib.ExampleCount
  make_kernel: kernel_maker.KernelMaker
  schedule: draw_times.DrawTimes
  search: temperature_search.TemperatureSearch | None
  found_step: found_step_lib.FoundStep | None
  start_epoch: int | None
  prior: Any
  chains: starts.Chains | None
  num_more_rows: int | str
  num_steps_per_batch: int | None
  directory: checkpoint.Directory | None
  seed: tf.Tensor

  @property
  def num_chains(self) -> int | None:
    """The number of chains; None where it is to be chosen."""
    return None if self.chains is None else self.chains.num_chains

  @property
  def finds_step(self) -> bool:
    """Whether the step size is found in burn-in, without a learning rate."""
    return (self.found_step is not None
            and self.found_step.argument == 'step_size')

  @property
  def step_argument(self) -> tuple[str, Any] | None:
    """The argument for the step size; None where `fit` finds the step."""
    return None if self.finds_step else self.make_kernel.step_argument

  @property
  def has_default_prior(self) -> bool:
    """Whether `bounded_normal` is the prior of a model without regularisers."""
    return self.chooses and self.prior is None

  @property
  def open_search(self) -> temperature_search.TemperatureSearch | None:
    """The search for the temperature, as long as it goes on."""
    search = self.search
    return None if search is None or search.is_over else search

  @property
  def temperature(self) -> Any:
    """T as it was given; as it was chosen once it is."""
    if self.search is not None and self.search.is_over:
      return self.search.temperature
    return self.given['temperature']

  def described(self) -> dict[str, Any]:
    """What the chain goes by, in plain values: `PosteriorSampling.settings`."""
    name, value = self.make_kernel.step_argument
    schedule = self.schedule
    return {
        'kernel': self.make_kernel.name,
        name: value,
        'momentum': self.make_kernel.momentum,
        'temperature': self.temperature,
        'start_epoch': self.start_epoch,
        'num_burnin_steps': schedule.num_burnin_steps,
        'num_steps_between_results': (
            schedule.num_steps_between_results if schedule.is_planned
            else None),
    }

  def plan_draws(
      self, num_steps: int, epochs: int, steps: int) -> str | None:
    """Plans the draws, as soon as it is known when they are due.

    Args:
      num_steps: Python `int`, the number of steps made.
      epochs: Python `int`, the number of epochs to come.
      steps: Python `int`, the number of steps in each.

    Returns:
      said: A sentence on what has been planned; None where it was before, or
        cannot be yet.
    """
    if self.schedule.is_planned:
      return None
    if self.open_search is not None:
      self.open_search.begin_epoch(num_steps, steps)
      return None
    self.schedule.plan(
        0 if self.search is None else num_steps, epochs * steps)
    burnin = self.schedule.burnin_of(epochs * steps)
    if self.found_step is not None and self.search is not None:
      self.found_step.plan(burnin)
    every = self.schedule.num_steps_between_results + 1
    last = num_steps + epochs * steps
    number = max(0, last - burnin - 1) // every + 1
    rest = max(0, burnin - num_steps)
    return (
        f'{rest} step(s) of burn-in, then a draw every {every} step(s): '
        f'{number} by step {last} of the chain.')

  def begin_first_fit(
      self, epoch: int, epochs: int) -> tuple['Settings', str | None]:
    """Chooses what depends on the number of epochs.

    Args:
      epoch: Python `int`, the epoch that begins, from 0.
      epochs: Python `int`, how many there are to come, this one included.

    Returns:
      settings: These, with the first epoch that samples.
      what: What there is to say, None where nothing was chosen.

    Raises:
      ValueError: If there are too few epochs to choose T in.
    """
    start_epoch = self.start_epoch
    if start_epoch is None:
      # A search needs more epochs, and says so.
      start_epoch = epoch + defaults.epochs_of_the_optimizer(
          max(2, epochs) if self.search else epochs)
    first = max(0, start_epoch - epoch)
    if self.search:
      self.search.begin(epochs, first)
    settings = dataclasses.replace(self, start_epoch=start_epoch)
    if not (self.chooses or self.search):
      return settings, None
    name, value = self.make_kernel.step_argument
    temperature = self.given['temperature']
    how = f'{name}={value}, momentum={self.make_kernel.momentum}'
    if self.finds_step:
      how = 'a step size that is found in burn-in'
    return settings, (
        f'{first} epoch(s) of the compiled optimizer, then '
        f'{self.make_kernel.name} with {how}, '
        f'temperature={1. if temperature is None else temperature!r}.')


def resolve(
    *,
    kernel: Callable[..., Any] | None,
    num_examples: int | None,
    prior: hints.Prior,
    temperature: hints.Schedule,
    learning_rate: hints.Schedule | str,
    momentum: float | None,
    start_epoch: int | None,
    num_burnin_steps: int | None,
    num_steps_between_results: Any,
    num_chains: Any,
    num_more_rows: int | str,
    num_steps_per_batch: int | str,
    directory: Any,
    seed: hints.Seed,
) -> Settings:
  """Checks the arguments of `PosteriorSampling`, and chooses where it may.

  The arguments are those of `PosteriorSampling`.

  Returns:
    settings: `Settings`.

  Raises:
    ValueError: If an argument is out of its range or contradicts another.
    TypeError: If an argument is of the wrong type, or the kernel cannot live on
      given batches.
  """
  directory = checkpoint.to_directory(directory)
  examples = examples_lib.ExampleCount(num_examples)
  chooses = kernel is None
  finds_step = chooses and learning_rate is None and momentum is None
  schedule = draw_schedule.to_schedule(num_steps_between_results)
  by_temperature = _rate_by_temperature(learning_rate)
  found_step = None if by_temperature is None else (
      found_step_lib.by_temperature(by_temperature.target_excess))
  if finds_step:
    kernel, found_step = defaults.kernel(), found_step_lib.by_energy_error()
  elif chooses:
    kernel = mcmc.SGHMC
    momentum = defaults.MOMENTUM if momentum is None else momentum
  else:
    num_burnin_steps, start_epoch = (
        0 if value is None else value
        for value in (num_burnin_steps, start_epoch))
    if schedule.num_steps_between_results is None:
      schedule = dataclasses.replace(schedule, num_steps_between_results=0)
  search = _search(temperature)
  if start_epoch is not None:
    checks.non_negative_integer('start_epoch', start_epoch)
  make_kernel = _kernel_maker(
      kernel, examples.number, learning_rate, momentum, temperature, search,
      found_step)
  times = draw_times.DrawTimes(
      num_burnin_steps, schedule, is_continuous=make_kernel.is_continuous,
      is_after_search=search is not None)
  if found_step is not None and search is None and (
      num_burnin_steps is not None):
    found_step.plan(num_burnin_steps)
  num_more_rows = checks.integer_or_auto('num_more_rows', num_more_rows, 0)
  if num_more_rows == checks.AUTO and not finds_step:
    num_more_rows = 0
  asked = checks.integer_or_auto('num_steps_per_batch', num_steps_per_batch, 1)
  steps_per_batch = None if isinstance(asked, str) else asked
  if steps_per_batch is None and (
      num_more_rows != checks.AUTO or num_burnin_steps is not None
      or schedule.num_steps_between_results is not None
      or schedule.keep_draw is not None or callable(temperature)):
    steps_per_batch = 1
  chains = starts.to_chains(num_chains)
  if chains is None and num_more_rows != checks.AUTO:
    chains = starts.Chains(1)
  if chains is not None and chains.num_chains > 1:
    side_by_side.check(make_kernel)
  stateless_seed = seeds.to_stateless(seed)
  given = dict(
      kernel=kernel, num_examples=num_examples, prior=prior,
      num_burnin_steps=num_burnin_steps,
      num_steps_between_results=schedule.num_steps_between_results,
      keep_draw=schedule.keep_draw, interval=schedule.interval,
      start_epoch=start_epoch, temperature=temperature, seed=seed,
      momentum=momentum,
      learning_rate=(
          learning_rate if by_temperature is None else 'temperature'),
      target_excess=(
          None if by_temperature is None else by_temperature.target_excess),
      # The first expression that matches is taken.
      **(dict(prior_order=list(prior)) if isinstance(prior, Mapping) else {}),
      **(dict(num_more_rows=num_more_rows) if num_more_rows else {}),
      **({} if steps_per_batch in (1, None) else dict(
          num_steps_per_batch=steps_per_batch)),
      **_of_chains(chains))
  return Settings(
      given=given, chooses=chooses, examples=examples, make_kernel=make_kernel,
      schedule=times, search=search, found_step=found_step,
      start_epoch=start_epoch, prior=prior, chains=chains,
      num_more_rows=num_more_rows, num_steps_per_batch=steps_per_batch,
      directory=directory, seed=stateless_seed)


def _of_chains(chains):
  """By what a run is known that has several chains, or may have."""
  if chains is None:
    return dict(num_chains=checks.AUTO, initial_weights=None)
  return {} if chains.num_chains == 1 else dict(
      num_chains=chains.num_chains, initial_weights=chains.initial_weights)


def _search(temperature):
  """The search for a temperature that is to be chosen; None for others."""
  if not isinstance(temperature, str):
    return None
  if temperature != 'validation':
    raise ValueError(
        f'temperature is {temperature!r}: it has to be a number, a callable of '
        'the step counter, or "validation" to choose it by validation data.')
  return temperature_search.TemperatureSearch()


def _rate_by_temperature(learning_rate):
  """`RateByTemperature`; None where the rate is given or chosen."""
  if isinstance(learning_rate, str) and learning_rate == 'temperature':
    return found_step_lib.RateByTemperature()
  is_found = isinstance(learning_rate, found_step_lib.RateByTemperature)
  return learning_rate if is_found else None


def _kernel_maker(
    kernel, num_examples, learning_rate, momentum, temperature, search,
    found_step):
  """Makes the kernel at the temperature of the search, where there is one."""
  finds_learning_rate = (
      found_step is not None and found_step.argument == 'learning_rate')
  make = functools.partial(
      kernel_maker.KernelMaker, kernel, num_examples,
      found_step_lib.START if finds_learning_rate else learning_rate, momentum,
      found_step=found_step)
  if search is None:
    return make(temperature)
  if finds_learning_rate:
    raise ValueError(
        "temperature='validation' changes the temperature in burn-in, and "
        "learning_rate='temperature' finds the rate for one: give one of "
        'the two as a number.')
  if make(None).has_weights:
    raise ValueError(
        "temperature='validation' scores draws at equal weights, and those of "
        'AdaptiveTime have weights: give the temperature as a number.')
  if make(None).is_continuous:
    raise ValueError(
        "temperature='validation' pools draws at equal steps, and the "
        'kernel moves in continuous time: give the temperature as a '
        'number.')
  return make(search)
