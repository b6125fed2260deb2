"""The chain that `fit` runs, and the draws made on its way."""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.diagnostics import verdicts
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.keras.draws import model_draws as draws_lib
from tfp_sgmcmc.keras.fitting import advice
from tfp_sgmcmc.keras.fitting import checkpoint as checkpoint_lib
from tfp_sgmcmc.keras.fitting import executions
from tfp_sgmcmc.keras.fitting import failures
from tfp_sgmcmc.keras.fitting import first_look
from tfp_sgmcmc.keras.fitting import lookahead
from tfp_sgmcmc.keras.fitting import program as program_lib
from tfp_sgmcmc.keras.fitting import progress as progress_lib
from tfp_sgmcmc.keras.fitting import rows_and_steps
from tfp_sgmcmc.keras.fitting import settings as settings_lib
from tfp_sgmcmc.keras.fitting import starts
from tfp_sgmcmc.keras.fitting import step as step_lib
from tfp_sgmcmc.keras.fitting import step_of_chains
from tfp_sgmcmc.keras.fitting import weights_before
from tfp_sgmcmc.keras.heat import heat_record
from tfp_sgmcmc.keras.heat import judge
from tfp_sgmcmc.keras.model import compiled_step
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib
from tfp_sgmcmc.keras.model import model_record
from tfp_sgmcmc.keras.model import moving_statistics
from tfp_sgmcmc.keras.model import network
from tfp_sgmcmc.keras.model import priors
from tfp_sgmcmc.keras.model import raw_inputs
from tfp_sgmcmc.keras.model import replicas
from tfp_sgmcmc.keras.model import training_parts

__all__ = ['Chain']

# So many are searched for what makes a loss NaN.
_MOST_BATCHES = 1000


class Chain:
  """A chain over a model's weights, its steps driven by `fit`.

  It begins at the first batch: only then every model has weights.
  """

  def __init__(
      self,
      model: keras.Model,
      settings: settings_lib.Settings,
      draws: draws_lib.ModelDraws,
      likelihood: likelihood_lib.Likelihood,
      are_weights_checked: bool,
      say: Callable[[str], None] = lambda text: None,
  ):
    """Makes the chain, before its first step.

    Args:
      model: Compiled `keras.Model`.
      settings: `Settings`.
      draws: `ModelDraws` that takes the draws; where it has those of an earlier
        process, the chain goes on with that process' chain.
      likelihood: `Likelihood` of the model.
      are_weights_checked: Python `bool`, whether the weights and their prior
        have been checked.
      say: Callable of a sentence, to show it.

    Raises:
      ValueError: If the chain to go on with is of another model, or failed.
    """
    self._model = model
    self._settings = settings
    self._draws = draws
    self._say = say
    number = settings.num_steps_per_batch
    self._progress = progress_lib.Progress(settings.seed, number or 1)
    self._first_look = first_look.FirstLook(
        model, settings.prior, likelihood, are_weights_checked)
    self._ahead = lookahead.Lookahead()
    self._judge = judge.Judge(
        model, settings.schedule, settings.search, settings.found_step, say,
        lambda: advice.smaller_steps(settings))
    self._before = weights_before.WeightsBefore(model)
    self._raw = raw_inputs.RawInputs()
    self._program: program_lib.Program | None = None
    self._step: step_of_chains.StepOfChains | None = None
    self._inputs = None
    self._iterator = None  # Over the data of the present fit.
    self._has_searched = False
    self._rows = rows_and_steps.RowsAndSteps(model, settings, self._progress)
    self._executions = executions.Executions(
        model, settings, self._progress, self._rows)
    self._num_returns = 0
    # The state of an earlier process, until the first batch.
    self._resumed: Mapping[str, np.ndarray] | None = None
    if draws.store is not None and not draws.store.is_new:
      kept = draws.store.checkpoint()
      self.load_state(kept)
      settings.make_kernel.load_state(kept)
      if number not in (None, self._progress.steps_per_batch):
        raise ValueError(
            f'num_steps_per_batch is {number}, and the chain in '
            f'{str(draws.store.path)!r} has {self._progress.steps_per_batch}: '
            'a chain goes on with the number that it began with. Leave '
            'num_steps_per_batch out, or take a new directory.')
      if settings.chains is None:
        self._set_num_chains(len(draws.start['step']))

  @property
  def _parts(self) -> list[checkpoint_lib.Part]:
    """What has a state of its own beside the model, its rate and the step."""
    settings = self._settings
    parts: list[checkpoint_lib.Part | None] = [
        self._before, self._draws, self._progress, settings.examples,
        settings.schedule, settings.search, settings.found_step,
        self._raw]
    return [part for part in parts if part is not None]

  @property
  def draws(self) -> draws_lib.ModelDraws:
    """The draws."""
    return self._draws

  @property
  def _chains(self):
    """`SideBySide` of the chains, one or several; from the first batch on."""
    return self._program.chains

  @property
  def num_steps(self) -> int:
    """The number of steps made."""
    return self._progress.num_steps

  @property
  def steps_per_batch(self) -> int:
    """The number of steps for each batch; 1 until it is chosen."""
    if self._step is None:
      return self._progress.steps_per_batch
    return self._rows.steps_per_batch(self._chains)

  @property
  def has_begun(self) -> bool:
    """Whether it has made steps, in this process or in an earlier one."""
    return self._step is not None or self.is_resumed

  @property
  def is_resumed(self) -> bool:
    """Whether its first batch of this process goes on with earlier steps."""
    return self._resumed is not None

  @property
  def position(self) -> progress_lib.Position:
    """Where in the calls of `fit` it stands."""
    return self._progress.position

  @property
  def seed(self) -> tf.Tensor:
    """The seed; that with which the chain began, where it goes on."""
    return self._progress.seed

  @property
  def kernel_results(self) -> Any:
    """The kernel's results after the last step, None before the first."""
    if self._step is None:
      return None
    self._enter()
    return self._step.results()

  @property
  def num_chains(self) -> int | None:
    """The number of chains; None where it is still to be chosen."""
    return self._settings.num_chains

  def _set_num_chains(self, number):
    self._settings = dataclasses.replace(
        self._settings, chains=starts.Chains(number))

  def _prepare(self, iterator):
    """Checks the data of a fit, and chooses the chains and their rows.

    By the next batch, which is not used up. A model without weights gets them.
    """
    spec = iterator.element_spec
    self._iterator = iterator
    if self._step is None and self._first_look.is_due:
      self._first_look.check(spec, self._ahead.first(iterator))
    if self._raw.by_position is None:
      self._raw.by_position = self._find_raw_inputs(iterator)
    if self.num_chains == 1 or not self._rows.needs_look:
      self._enter(spec)
      return
    self._look(iterator)
    if self.num_chains is None:
      self._set_num_chains(self._rows.num_chains(spec, self.seed))
    self._enter(spec)
    if self.num_chains > 1 and self._rows.needs_rows:
      self._take_rows()

  @property
  def _takes_default_prior(self):
    """Whether no prior was given, nor losses of the model that are one."""
    return self._settings.has_default_prior and not self._model.losses

  def _find_raw_inputs(self, iterator):
    """Those that the default prior is not made for; looks at targets, too."""
    if not self._takes_default_prior:
      return {}
    data = self._ahead.first(iterator)
    chains = self._settings.chains
    if network.num_trained_steps(self._model.optimizer) == 0 and (
        chains is None or chains.initial_weights is None):
      self._first_look.check_new_targets(data)
    x = first_look.inputs(self._model, data)
    if not raw_inputs.may_be_large(x):
      return {}
    return raw_inputs.find(self._model, first_look.more_inputs(
        self._model, x, iterator, raw_inputs.MOST_ROWS))

  def _look(self, iterator):
    """Takes the data of a fit, by the next batch, which is not used up."""
    batch = first_look.whole_batch(self._model, self._ahead.first(iterator))
    self._rows.look(iterator, int(network.num_rows(batch)))

  def _take_rows(self):
    """Takes the rows that steps of this fit have beside their batches."""
    if self._rows.take_rows(self._chains, self._step is not None):
      self._program.compiled = None

  def _enter(self, element_spec=None):
    """Has the program's variables hold this chain; makes the program first."""
    if self._program is None:
      self._program = program_lib.of(
          self._model, self._settings, element_spec, self.seed, self,
          self._raw.key())
    self._program.enter(self)

  def set_likelihood(self, likelihood: likelihood_lib.Likelihood) -> None:
    """Takes the likelihood of a model that may have been compiled anew.

    Args:
      likelihood: `Likelihood`.

    Raises:
      ValueError: If other weights are trainable than when the chain began.
    """
    self._first_look.begin_fit(likelihood)
    self._has_searched = False
    self._ahead.clear()
    self._rows.begin_fit()
    self._judge.begin_fit()
    if self._step is not None:
      self._enter()
      self._step.set_likelihood(likelihood)

  def train(self, iterator: tf.data.Iterator) -> dict[str, Any]:
    """An execution of the compiled optimizer, before the chain begins.

    The first one of a `fit` is checked for what would stop the chain.

    Args:
      iterator: The dataset's iterator that `fit` passes.

    Returns:
      logs: The model's metrics.

    Raises:
      ValueError: If the targets do not fit the outputs, outputs are no
        probabilities where the loss takes them for such, or weights cannot be
        sampled.
      TypeError: If the prior does not fit the weights.
    """
    self._prepare(iterator)
    batches = self._ahead.then(iterator) if self._ahead else iterator
    return self._chains.train(batches, iterator.element_spec)

  def begin_epoch(
      self,
      fit: int,
      epoch: int,
      goes_on: bool = False,
      horizon: tuple[int, int | None] = (1, None),
  ) -> None:
    """Takes note of the epoch that begins.

    Args:
      fit: Python `int`, the number of calls of `fit` that have ended.
      epoch: Python `int`, the epoch, from 0.
      goes_on: Python `bool`, whether it is the one that an earlier process was
        in, or one before that to which another callback went back.
      horizon: The number of epochs of `fit` to come, this one included, and
        that of the steps in each, None where it is not known yet.
    """
    num_to_skip = 0
    store = self._draws.store
    if goes_on and store is not None:
      if epoch < self.position.epoch and epoch in store.marks:
        store.rewind(epoch)
        self.load_state(store.checkpoint())
      if epoch == self.position.epoch:
        num_to_skip = self.position.batch
    self._progress.begin_epoch(
        progress_lib.Position(fit, epoch), horizon, num_to_skip)
    self._judge.begin_epoch(self.num_steps)
    if self._step is not None:
      self._plan()

  @property
  def is_searching(self) -> bool:
    """Whether the temperature has still to be chosen."""
    return self._settings.open_search is not None

  @property
  def why_stopped(self) -> str | None:
    """Why the chain could not go on; None where it can."""
    return self._judge.why_stopped

  @property
  def inputs(self) -> Any:
    """The inputs of the first batch in this process."""
    return self._inputs

  @property
  def heat(self) -> verdicts.Row | None:
    """The row of the kinetic temperature after burn-in, None if unknown."""
    return self._judge.heat

  def end_trial(self) -> None:
    """Scores the temperature of a trial, at an epoch's end."""
    search = self._settings.open_search
    if search is None or self._model.stop_training:
      return
    self._enter()
    said = search.end_epoch(self._model, self._chains.assign)
    if said is not None:
      self._say(said)
    if search.is_over:
      self._judge.forget()  # The heat of the trials is no verdict.

  def _plan(self):
    """Says when draws are due, as soon as it is known."""
    said = self._settings.plan_draws(self.num_steps, *self._progress.horizon)
    if said is not None:
      self._say(said)

  def end_epoch(self, num_batches: int | None) -> None:
    """Takes note of an epoch's end, and writes down where the chain stands.

    Args:
      num_batches: None, or a Python `int`, how many batches the epoch has.
    """
    mark = None
    if not (self._model.stop_training and num_batches
            and self.position.batch < num_batches):
      self._progress.end_epoch()
      mark = self.position.epoch
    if self._step is not None:
      self._commit(mark)
    if self.why_stopped is not None:
      self._before.put_back()

  def execute(self, iterator: tf.data.Iterator) -> dict[str, Any]:
    """What one execution of `fit` does: one or several steps, and draws.

    Args:
      iterator: The dataset's iterator.

    Returns:
      logs: Those of the last step, and the number of draws.
    """
    progress, most = self._progress, self._model.steps_per_execution
    if progress.num_ahead:  # These batches' steps are made.
      progress.num_ahead = max(0, progress.num_ahead - most)
      return dict(progress.logs)
    self._prepare(iterator)
    if self._step is not None and self._rows.needs_rows:
      self._look(iterator)
      self._take_rows()
    if progress.skips:
      return self._skip(iterator)
    if self._step is not None and self._executions.repeat(self._chains):
      # An interrupt may have come between a program's end and its logs.
      progress.num_steps = self._step.num_steps
    before = self.num_steps
    if (self._executions.at_once(most, self._num_draws) < most or self._ahead
        or self._step is None or self._executions.repeat(self._chains)):
      batches = self._ahead.then(iterator)
      first = next(batches)
      if self._step is None:
        self._begin(first, iterator)
      step = self._compiled_step()
      step.trace(
          self._rows.taken(self._chains, iterator.element_spec),
          progress.loops_by_xla)
      for logs_of_step in self._executions.steps(
          first, batches, self._chains, step, lambda: self._num_draws):
        progress.logs = self._after_step(logs_of_step)
        if self._model.stop_training:
          break  # A step more would spoil the weights that were put back.
    else:
      progress.logs = self._after_step(
          self._compiled_step().on_iterator(iterator))
    num_batches = -(-(self.num_steps - before) // self.steps_per_batch)
    progress.count(num_batches)
    progress.num_ahead = max(0, num_batches - most)
    if self._draws.store is not None and self._draws.store.commit_is_due:
      self._commit()
    return dict(progress.logs)

  def _compiled_step(self):
    """The step as Keras compiles it; made anew for a model compiled anew."""
    program = self._program
    if program.compiled is None or program.compiled.is_stale():
      program.compiled = compiled_step.CompiledStep(
          self._model, self._step.train_step)
    return program.compiled

  def check_training(self, loss: float) -> None:
    """Raises where the optimizer's epoch has lost the network.

    Args:
      loss: The epoch's mean loss.

    Raises:
      ValueError: If it is not finite by the data, or weights are not.
    """
    is_finite = network.is_finite(self._model)
    if is_finite and (np.isfinite(loss) or self._has_searched):
      return
    self._has_searched = True
    said = self._why_not_finite()
    if said is not None:
      raise ValueError(said)
    network.check_finite(self._model)

  def _why_not_finite(self):
    """What of the data makes the loss NaN; by a pass of its own."""
    dataset = compat.dataset_of(self._iterator)
    if dataset is None or compat.may_not_be_read_again(dataset):
      return None
    return self._first_look.why_not_finite(iter(dataset.take(_MOST_BATCHES)))

  def judge_epoch(self, loss: float | None) -> None:
    """Says what the epoch's temperature and mean loss mean.

    Where a guard has taken a chain back in this epoch, the mean loss is that of
    the step that was undone, and says nothing.
    """
    before, self._num_returns = self._num_returns, self._count_returns()
    self._judge.end_epoch(
        self.num_steps, len(self._draws),
        loss if self._num_returns == before else None)

  def _count_returns(self):
    """How often a guard has taken chains back, in all."""
    return 0 if self._step is None else sum(
        int(np.sum(number)) for number in self._chains.stacked(
            self._step.results_named('num_returns')))

  def end_fit(self) -> None:
    """Warns where the draws come from a chain that was too hot."""
    self._iterator = None
    self._judge.end_fit()

  def _skip(self, iterator):
    """Leaves out batches with which an earlier process made steps."""
    number = self._model.steps_per_execution
    batches = self._ahead.then(iterator)
    first = next(batches)
    if self._step is None:  # The weights and metrics, should none be left.
      self._begin(first, iterator)
    for _ in zip(range(number - 1), batches):
      pass
    self._progress.skip(number)
    return {**self._progress.logs, 'draws': len(self._draws)}

  def _commit(self, mark=None):
    """Writes the draws, and the chain as it is, where there is a directory."""
    if self._draws.store is not None:
      self._draws.store.commit(self.num_steps, self.state(), mark)

  def state(self) -> dict[str, np.ndarray]:
    """What `load_state` takes: of the model, of the step, of all parts."""
    if self._step is not None:
      self._enter()
    state = {
        **checkpoint_lib.of_model(self._model),
        **({} if self._step is None else self._step.state()),
        **self._settings.make_kernel.state()}
    for part in self._parts:
      state.update(part.state())
    return state

  def load_state(self, state: Mapping[str, np.ndarray]) -> None:
    """Takes the place of a chain; its step is taken over at the first batch.

    Args:
      state: Arrays by name, as the directory holds them.

    Raises:
      ValueError: If that chain is of another model, or failed.
    """
    self._resumed = state
    self._progress.num_steps, bad = step_lib.status_of(state)
    if bad:
      raise ValueError(failures.refusal(self._draws.store, bad))
    for part in self._parts:
      part.load_state(state)
    if network.is_built(self._model):
      self._load_model(state)

  def _load_model(self, state):
    """Gives the model the weights of a state, where they are its weights."""
    checkpoint_lib.assign_model(self._model, state, self._draws.store)

  def _after_step(self, logs):
    """Draws, where it is due, and looks at the temperature.

    Args:
      logs: Those of the step, or of the last of several.

    Returns:
      logs: What of it is for Keras.
    """
    logs = {**logs, **replicas.metrics(self._model)}
    self._progress.num_steps, bad = map(int, logs.pop(step_lib.STATUS))
    if bad:
      self._stop(bad)
    elif self._settings.schedule.is_continuous:
      self._draw_along_segment()
    elif self._settings.schedule.is_due(self.num_steps, self._num_draws):
      self._keep()
    elif self.is_searching and self._settings.search.is_due(self.num_steps):
      self._settings.search.keep(
          self._chains.stacked(self._model.trainable_variables))
    self._judge.watch(
        self.num_steps, {**logs, **logs.pop(step_of_chains.BY_CHAIN, {})})
    return logs

  def _keep(self):
    log_weight = self._step.results_named('log_weight')
    self._draws.append(
        self.num_steps, self._chains,
        *self._chains.stacked(log_weight) if log_weight else [])
    self._before.forget()

  @property
  def _num_draws(self):
    """The number of draws of each chain."""
    return len(self._draws) // self._chains.num_chains

  def _draw_along_segment(self):
    """Draws at the times that fall into the last segment of the path."""
    start, duration = self._step.segment()
    shares = self._settings.schedule.along_segment(
        self.num_steps, duration, len(self._draws))
    if not shares:
      return
    variables = self._model.trainable_variables
    with network.put_back(variables) as end:
      for share in shares:
        network.assign(
            variables, [b - share * (b - a) for a, b in zip(start, end)])
        self._keep()

  def _stop(self, bad):
    """Ends training after NaN or Inf."""
    if self._model.stop_training:
      return
    said = failures.why_it_stops(
        self._step, bad, len(self._draws), self._settings,
        self._chains.advice(self._rows.batch_size), self._why_not_finite())
    if len(self._draws):
      last = self._draws.read([len(self._draws) - self._chains.num_chains])
      network.assign(
          self._model.trainable_variables, [array[0] for array in last])
    self._before.put_back()
    self._judge.stop(said)

  def _begin(self, data, iterator):
    """Does what needs a batch, in this order; warnings come in between.

    1. The model gets metrics, and weights where `_prepare` gave it none. All
       else needs them.
    2. The weights from before sampling are kept, or those of an earlier process
       put back: before the chains go to their starts.
    3. The chains go to their starts.
    4. N and the rows of a batch decide which rows a step has; these the number
       of steps, and that burn-in, draws and the step size.
    5. Moving statistics are estimated, at each chain's start.
    6. The starts are kept with the draws: with these statistics.
    7. The step makes the kernel's first results, for which it needs N, and the
       statistics; or takes those of an earlier process.
    8. The judge begins: it needs N.
    """
    first = first_look.first_batch(self._model, data, iterator)
    self._inputs = first.x
    self._build(first)
    prior = priors.chosen(
        self._settings.prior, self._settings.has_default_prior,
        self._model, self._raw, self._say)
    self._take_weights()
    self._start_chains(first, prior)
    self._take_numbers(first)
    self._take_steps()
    self._warn(first)
    self._fix_statistics(first)
    self._settings.examples.check_weights(
        first.sample_weight,
        lambda: [weights for _, _, weights in self._next_batches(first)])
    if not self.is_resumed:
      self._draws.keep_start(self._chains)
    self._step = self._first_step(first, prior)
    self._num_returns = self._count_returns()  # Those of an earlier process.
    self._judge.begin(self._heat_record)
    self._resumed = None

  def _build(self, first):
    """Gives the model its weights and metrics, and checks them."""
    model, y_pred = self._model, self._model(first.x)
    self._first_look.look_at(first.y, y_pred, first.sample_weight)
    model.compute_loss(first.x, first.y, y_pred, first.sample_weight)
    model.compute_metrics(first.x, first.y, y_pred, first.sample_weight)
    model.reset_metrics()
    self._first_look.check_weights()
    # An earlier process has warned.
    if self._takes_default_prior and not self.is_resumed:
      self._first_look.warn_of_large_targets(
          first.y, y_pred, first.sample_weight)
    network.build_moving_average(model)

  def _take_weights(self):
    """Takes the weights from before sampling; those of the earlier process."""
    if not self.is_resumed:
      self._before.keep()
      return
    store = self._draws.store
    self._load_model(self._resumed)
    model_record.check_code(store.about, self._model, str(store.path))

  def _start_chains(self, first, prior):
    """Puts the chains where they start."""
    self._chains.begin(first.iterator.element_spec, self.is_resumed)
    if not self.is_resumed:
      if self._raw:
        self._say(self._chains.start_anew(
            self._raw, self._losses_on(first, prior),
            tf.nest.map_structure(tf.type_spec_from_value, first.x)))
      self._say(self._chains.mend_starts(
          self._first_look.mean_loss, first.data))
    for _ in self._chains.one_by_one():
      network.check_finite(self._model)

  def _losses_on(self, first, prior):
    """Callable of weights: their mean loss, and that with the prior's share.

    On the first batches.
    """
    variables = self._model.trainable_variables
    density = priors.WeightPrior(prior, variables)
    batches = [first_look.whole_batch(self._model, data) for data in (
        first.data, *self._ahead.fill(first.iterator))]

    def losses(weights):
      with network.put_back(variables):
        network.assign(variables, weights)
        loss = self._first_look.mean_loss(iter(batches))
      log_prior = density.log_prob(*self._raw.coordinates(
          [tf.convert_to_tensor(w) for w in weights]))
      return loss, loss - float(log_prior) / self._settings.examples.number

    return losses

  def _take_numbers(self, first):
    """Takes N and the number of rows of a batch."""
    examples = self._settings.examples
    examples.check_batch(self._chains.rows_of(first.num_rows))
    self._settings.make_kernel.set_num_examples(examples.number)
    if self._rows.needs_look:
      self._rows.look(first.iterator, first.num_rows)

  def _take_steps(self):
    """Takes a step's rows, and the number of steps for each batch.

    By that number burn-in, draws and the step size are planned.
    """
    settings, rows = self._settings, self._rows
    if rows.needs_rows:  # Several chains have taken theirs before.
      self._take_rows()
    if rows.take_steps(self._chains, self.is_resumed):
      self._program.compiled = None
    self._plan()
    if settings.found_step is not None and not self.is_resumed:
      settings.found_step.plan(
          settings.schedule.num_burnin_steps if settings.search is None
          else settings.search.most_steps)
    for said in rows.said(self._chains):
      self._say(said)

  def _warn(self, first):
    """Warns of what a step does otherwise than training."""
    training_parts.warn_of_what_stops(self._model)
    training_parts.warn_of_randomness(self._model, first.x)
    if self._takes_default_prior and not self.is_resumed:
      priors.warn_of_few_rows(self._model, self._settings.examples.number)

  def _first_step(self, first, prior):
    """The step, with the kernel's first results or those of before."""
    settings, program = self._settings, self._program
    seed = self._chains.begin_sampling()
    if program.step is None:
      program.step = step_of_chains.StepOfChains(step_lib.SamplingStep(
          self._model, settings.make_kernel,
          priors.WeightPrior(prior, self._model.trainable_variables),
          self._first_look.likelihood, settings.examples.number, seed,
          self._raw), self._chains)
    else:
      program.step.restart()
    step = program.step
    try:
      step.bootstrap(first.data)
    except ValueError as error:
      said = self._why_not_finite()
      if said is None:
        raise
      raise ValueError(said) from error
    if self.is_resumed:
      step.load_state(self._resumed)
      if self._progress.skips:  # Callbacks have begun this epoch once more.
        settings.make_kernel.load_state(self._resumed)
    return step

  def _heat_record(self):
    settings = self._settings
    make_kernel, search = settings.make_kernel, settings.search
    return heat_record.HeatRecord(
        self._chains.num_chains,
        network.num_weights(self._model.trainable_variables),
        settings.examples.number, settings.step_argument,
        make_kernel.constant_temperature if search is None
        else search.temperature, make_kernel.momentum,
        make_kernel.stores_kicked_momentum)

  def _fix_statistics(self, first):
    """Estimates moving statistics at the weights with which sampling starts."""
    variables = moving_statistics.moving_variables(self._model, first.x)
    self._draws.begin(variables)
    if variables and self.is_searching:
      self._chains.check_search()
    if not variables or self.is_resumed:
      return
    inputs = [first.x, *(x for x, _, _ in self._next_batches(first))]
    for _ in self._chains.one_by_one():
      moving_statistics.estimate(self._model, inputs, variables)

  def _next_batches(self, first):
    """Inputs, targets and sample weights of the batches after the first."""
    return [
        keras.utils.unpack_x_y_sample_weight(
            first_look.whole_batch(self._model, data))
        for data in self._ahead.fill(first.iterator)]
