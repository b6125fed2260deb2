"""Posterior sampling in `model.fit`."""

from collections.abc import Callable
import contextlib
import os
from typing import Any
import warnings
import weakref

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import collectives
from tfp_sgmcmc import diagnostics
from tfp_sgmcmc import random
from tfp_sgmcmc.diagnostics import verdicts
from tfp_sgmcmc.internal import forks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.draws import draw_schedule
from tfp_sgmcmc.keras.draws import model_draws as draws_lib
from tfp_sgmcmc.keras.draws import samples
from tfp_sgmcmc.keras.draws import summary as summary_lib
from tfp_sgmcmc.keras.fitting import chain as chain_lib
from tfp_sgmcmc.keras.fitting import checkpoint
from tfp_sgmcmc.keras.fitting import resumption
from tfp_sgmcmc.keras.fitting import settings as settings_lib
from tfp_sgmcmc.keras.fitting import side_by_side
from tfp_sgmcmc.keras.fitting import starts
from tfp_sgmcmc.keras.heat import temperature_search
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib
from tfp_sgmcmc.keras.model import network
from tfp_sgmcmc.keras.model import priors
from tfp_sgmcmc.keras.model import replicas
from tfp_sgmcmc.keras.model import train_function

__all__ = ['PosteriorSampling']

# The callback that the last fit of each model was given.
_LAST_OF_MODEL = weakref.WeakKeyDictionary()


class PosteriorSampling(keras.callbacks.Callback):
  """Makes `model.fit` sample the posterior of the model's weights.

    log p(theta | data) = log p(theta) - N (L(theta) + R(theta)) + const

  L is the mean over examples of the compiled loss, a negative log likelihood; N
  the number of examples; p(theta) the prior; R the sum of the model's
  regularisers. From `start_epoch` on each training step is a step of a
  transition kernel, or several, in place of a step of the compiled optimizer.
  Rows of the data, those of the batch among them or not, estimate the
  posterior. After `fit` the weights are the chain's last state, and `posterior`
  holds the draws.

  `PosteriorSampling()` chooses what you do not pass, and prints it: a fifth of
  the epochs is for the compiled optimizer and a third of the rest for burn-in,
  in which `SelfTuning` finds the step size of `SGNHT`; 30 draws follow. Of a
  small network on a table there are four chains, with 30 draws each. A short
  `fit` makes several steps for each batch, but for large networks. If you pass
  a kernel, only the temperature can still be chosen for you.

  The page "Sampling in fit" (docs/keras.md) says more: what is sampled, what is
  chosen, the temperature and the warnings, batch normalisation, resuming after
  a kill (`directory`), several chains (`num_chains`), replicas, continuous
  time, seeds.

  #### Examples

  A regression, with all chosen:

  >>> x = tf.random.stateless_normal([200, 3], [0, 1])
  >>> y = tf.reduce_sum(x, -1, keepdims=True)
  >>> model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
  >>> model.compile('adam', sgmcmc.keras.GaussianLikelihood())
  >>> sampling = sgmcmc.keras.PosteriorSampling(seed=0)
  >>> history = model.fit(
  ...     x, y, batch_size=50, epochs=10, verbose=0, callbacks=[sampling])
  >>> sampling.settings['kernel'], sampling.settings['num_chains']
  ('SGNHT', 4)
  >>> len(sampling.posterior)
  124
  >>> sampling.posterior.predict(x).shape
  (200, 1)

  A classification, with all given:

  >>> labels = tf.cast(y > 0., tf.int32)
  >>> model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
  >>> model.compile(
  ...     'sgd', keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  >>> sampling = sgmcmc.keras.PosteriorSampling(
  ...     sgmcmc.SGHMC, num_examples=200, prior=tfd.Normal(0., 1.),
  ...     learning_rate=0.01, momentum=0.9, num_burnin_steps=10,
  ...     num_steps_between_results=1, seed=0)
  >>> history = model.fit(
  ...     x, labels, batch_size=50, epochs=10, verbose=0, callbacks=[sampling])
  >>> len(sampling.posterior)
  15
  """

  def __init__(
      self,
      kernel: Callable[..., tfp.mcmc.TransitionKernel] | None = None,
      *,
      num_examples: int | None = None,
      prior: hints.Prior | None = None,
      temperature: hints.Schedule | None = None,
      learning_rate: hints.Schedule | str | None = None,
      momentum: float | None = None,
      start_epoch: int | None = None,
      num_burnin_steps: int | None = None,
      num_steps_between_results: int | draw_schedule.DrawSchedule | None = None,
      num_chains: int | str | starts.Chains = 'auto',
      num_more_rows: int | str = 'auto',
      num_steps_per_batch: int | str = 'auto',
      directory: str | os.PathLike | checkpoint.Directory | None = None,
      seed: hints.Seed = None,
  ):
    """Makes the callback.

    Args:
      kernel: Callable of the target that returns a kernel: `SGLD`, `SGHMC`,
        `SGNHT` or `StochasticBouncyParticleSampler`, or a `functools.partial`
        of it with its arguments but `gradient_estimator`. None to choose it.
      num_examples: Python `int`, N, how much the data weigh against the prior:
        the number of different examples, without repeated rows and augmented
        copies. None for the number of rows of arrays, or of a
        `tf.data.Dataset` of known cardinality, which is read once to count
        them. Needed for other data: a generator, a `PyDataset`, a dataset of
        unknown or infinite cardinality.
      prior: A `tfp.distributions.Distribution` for all weights; a dict from
        layer names, or regular expressions for whole variable paths, to
        distributions; a callable of the variable that returns a distribution
        (`he_normal()`, `learned_scale()`); or None: the model's regularisers
        are the prior. If the model has none, and you pass no kernel, the prior
        is chosen for you. For a constant prior, whose posterior may not exist,
        pass `{'.*': None}`.
      temperature: T, a number or a callable of the step counter; "validation"
        to choose it on `fit`'s validation data; None for the kernel's default.
      learning_rate: The step size in the units of Keras' SGD on the mean loss,
        in place of the kernel's `step_size`: a number; a callable of the step
        counter, such as a Keras schedule; "optimizer" for the current rate of
        the compiled optimizer; or `RateByTemperature()`, for short
        "temperature", to find it in burn-in. h = sqrt(learning_rate / N) for
        SGHMC and SGNHT, h = learning_rate / N for SGLD.
      momentum: Number in [0, 1), in the units of Keras' SGD: friction (SGNHT:
        diffusion) = (1 - momentum) / h.
      start_epoch: Python `int`, the first epoch (from 0) that samples; before
        it the compiled optimizer trains. None for 0; without a kernel, None
        chooses it. The same holds for the next two.
      num_burnin_steps: Python `int`, the number of first steps without draws.
        If T is chosen, they follow its search.
      num_steps_between_results: Python `int`, the number of steps between two
        draws; the first draw is made at step `num_burnin_steps + 1`, as in
        `tfp.mcmc.sample_chain`. Or a `DrawSchedule`, to keep fewer draws; a
        kernel in continuous time needs it.
      num_chains: Python `int`, k, the number of chains side by side; `Chains`,
        which also sets their starts; or "auto": four for a new and small
        network on a table, which take two to three times the time of one; one
        for others, or with a kernel, a learning rate or rows of yours.
      num_more_rows: Python `int`, how many rows each step has beside those of
        its batch, drawn anew from all rows of the arrays that `fit` has, or of
        a `tf.data.Dataset` whose rows are the same in each pass. Then gradients
        have less noise, and most chains arrive in fewer epochs. Or "auto", for
        as many as cost little: up to 63 times the batch for a small network,
        with as many more in place of the batch; for a larger one none, or,
        where there are several steps for each batch, up to eight times the
        batch in its place; none with a kernel or a learning rate of yours.
      num_steps_per_batch: Python `int`, how many steps the chain makes for each
        batch; above 1 its rows are drawn anew from all of these, and none is of
        the batch. Or "auto": as many as make 10,000 steps in all where each
        step has more rows (3,000 of a larger network), and 3,000 or fewer
        elsewhere; at most 30 a batch. It is 1 where there are no such rows,
        with `run_eagerly`, and with a kernel, a learning rate, rows, burn-in,
        spacing of draws or T by the step of yours.
      directory: None to keep draws in memory; or the path of a directory, or a
        `Directory`, to which they are written as they are made. If it already
        holds this chain, `fit` continues the chain. `PosteriorSamples.load`
        reads the draws.
      seed: Python `int` i, for the stateless seed `[i >> 32, i]`; a stateless
        seed (`int32[2]`); or None, for one from TensorFlow's global generator.

    Raises:
      ValueError: If an argument is out of its range or contradicts another.
      TypeError: If an argument is of the wrong type, or the kernel cannot use
        the batches of `fit`.
    """
    super().__init__()
    self._settings = settings_lib.resolve(
        kernel=kernel, num_examples=num_examples, prior=prior,
        temperature=temperature, learning_rate=learning_rate,
        momentum=momentum, start_epoch=start_epoch,
        num_burnin_steps=num_burnin_steps,
        num_steps_between_results=num_steps_between_results,
        num_chains=num_chains, num_more_rows=num_more_rows,
        num_steps_per_batch=num_steps_per_batch, directory=directory, seed=seed)
    self._resumption = resumption.Resumption()
    self._chain: chain_lib.Chain | None = None
    self._posterior: samples.PosteriorSamples | None = None
    self._train_function = None
    self._is_checked = False
    self._is_sampling = False
    # Where the optimizer keeps a moving average of the weights, those of the
    # chain: Keras and its SwapEMAWeights put the average in their place.
    self._last_weights = None
    self._is_swapped = False
    self._loss_of_training = None
    self._is_copied = False
    self._last_epoch, self._has_ended = None, False
    self._num_batches = 0
    self._steps_in_epoch = None

  def __getstate__(self):
    if self._chain is not None:
      raise TypeError(
          'A PosteriorSampling that has been passed to fit cannot be pickled '
          'or copied, for it holds compiled functions. Its posterior can be.')
    self._is_copied = True
    return {**self.__dict__, '_is_copied': False}

  @property
  def posterior(self) -> samples.PosteriorSamples:
    """The draws so far, as a `PosteriorSamples`.

    Raises:
      ValueError: If there are no draws; the message says why.
    """
    if self._chain is None or not len(self._chain.draws):
      raise ValueError(self._why_no_draws)
    if self._posterior is None:
      self._posterior = samples.PosteriorSamples(
          self.model, self._chain.draws)
    return self._posterior

  @property
  def num_steps(self) -> int:
    """The number of steps that the chain has made."""
    return 0 if self._chain is None else self._chain.num_steps

  @property
  def kernel_results(self) -> Any:
    """The kernel's results after the last step, None before the first.

    By default the weights of a small or deep network are one vector of the
    kernel's state, one after another in the order of
    `model.trainable_variables`; so are momenta and gradients.
    """
    return None if self._chain is None else self._chain.kernel_results

  @property
  def settings(self) -> dict[str, Any]:
    """The chain's settings, given or chosen.

    A setting is None if it is not known yet, or if the kernel's own default
    holds. After resuming, a chosen `start_epoch` stays None.
    """
    return {
        **self._settings.described(), 'num_chains': self._num_chains,
        'num_steps_per_batch': (
            self._chain.steps_per_batch
            if self._chain is not None and self._chain.has_begun
            else self._settings.num_steps_per_batch)}

  @property
  def validation_scores(self) -> dict[float, float]:
    """The NLL on validation data of each temperature that was tried."""
    search = self._settings.search
    return search.scores if search else {}

  def summary(self, x: Any, y: Any = None) -> verdicts.Summary:
    """How good the draws are, by their predictions and the temperature.

    The same as `diagnostics.summary(sampling, x, y)`; `fit` shows it in three
    lines at its end, for inputs of the training data, if it has 12 draws.
    Without `y` it says whether draws agree and are at the temperature, but not
    how good predictions are.

    Args:
      x: Inputs, as `posterior.predict` takes them; with `y`, arrays.
      y: Their targets, for the rows on their log likelihood. Take data that
        were not trained on.

    Returns:
      summary: `diagnostics.Summary` of R-hat and effective draws of the
        predictions, from the halves of the run, or of several chains as
        `diagnostics.summary` compares them; with `y` of the NLL beside that of
        the weights before sampling and of a constant prediction; for kernels
        with momentum, of the kinetic temperature after burn-in (that of the
        hottest chain); and how often the guard of `SelfTuning` acted after
        burn-in.

    Raises:
      ValueError: If there are fewer than 12 draws.
    """
    rows = diagnostics.summary(self.posterior, x, y).rows
    heat = None if self._chain is None else self._chain.heat
    if heat is not None:
      rows += heat,
    return verdicts.Summary(
        (*rows, *verdicts.findings(self.kernel_results)))

  def step_seed(self, step: int, chain: int = 0) -> tf.Tensor:
    """The seed of a chain's step, 1, 2, ...; for 0 of `bootstrap_results`."""
    seed = self._settings.seed if self._chain is None else self._chain.seed
    if self._num_chains != 1:
      seed = random.fold_in(seed, chain)
    return random.fold_in(seed, step)

  def set_model(self, model=None):
    if not isinstance(self, PosteriorSampling):  # Of the class it is `model`.
      raise TypeError(
          'callbacks holds the class PosteriorSampling itself: pass an object '
          'of it, callbacks=[PosteriorSampling()].')
    network.check_kind(model)
    if self._has_begun and model is not self.model:
      raise ValueError(
          f'This callback holds a chain of the model {self.model.name!r}, and '
          f'was passed to fit of {model.name!r}: make a new PosteriorSampling.')
    super().set_model(model)

  def on_train_begin(self, logs=None):
    del logs
    forks.check()
    model = self.model
    self._check_alone()
    self._last_epoch, self._has_ended = None, False
    self._last_weights, self._is_swapped = None, False
    network.check_model(model)
    replicas.check(model)
    if collectives.is_several(model.distribute_strategy):
      self._settings.make_kernel.check_shards()
      side_by_side.check_replicas(self._num_chains or 1)
    likelihood = likelihood_lib.Likelihood(model)
    self._settings.make_kernel.begin_fit(model.optimizer)
    if not self._has_begun:
      self._begin_chain(likelihood)
    self._chain.draws.open()
    self._chain.set_likelihood(likelihood)
    if network.has_moving_average(model.optimizer) and network.is_built(model):
      network.build_moving_average(model)
      if self._has_begun:
        self._last_weights = network.values(model.trainable_variables)
    self._resumption.begin_fit(model, self._chain, self.params['epochs'])
    if self._train_function is None or self._train_function.is_stale():
      self._train_function = train_function.TrainFunction(
          model, self._execute)
    self._train_function.begin_fit()
    self._settings.examples.begin_fit()
    self._is_checked, self._loss_of_training = False, None

  def on_epoch_begin(self, epoch, logs=None):
    del logs
    self._last_epoch = epoch
    if self._loss_of_training is not None:
      # Not at the epoch's end: another callback may put weights back there.
      self._chain.check_training(self._loss_of_training)
      self._loss_of_training = None
    if self._num_batches:
      self._steps_in_epoch = self._num_batches
    going_on = self._resumption
    self._chain.begin_epoch(going_on.num_fits, epoch, going_on.goes_on, (
        self.params['epochs'] - epoch,
        self.params.get('steps') or self._steps_in_epoch))
    going_on.forget(self.model)
    if not self._is_checked:
      if not self._has_begun:
        self._settings, said = self._settings.begin_first_fit(
            epoch, self.params['epochs'] - epoch)
        self._say(said)
      self._check_reachable(epoch)
      self._is_checked = True
    if not self._has_begun:
      self._check_burnin(epoch)
    self._is_sampling = (
        self._has_begun or epoch >= self._settings.start_epoch)
    self._num_batches = 0
    if self._is_sampling:
      self._settings.make_kernel.watch_learning_rate()

  def on_train_batch_begin(self, batch, logs=None):
    del batch, logs
    if (self._is_sampling or self._num_chains != 1
        or self._settings.examples.wants_to_look):
      self._train_function.swap_in()

  def on_train_batch_end(self, batch, logs=None):
    del logs
    self._num_batches = batch + 1

  def on_epoch_end(self, epoch, logs=None):
    del epoch
    self._train_function.put_back()
    loss = (logs or {}).get('loss')
    if self._is_sampling:
      self._chain.judge_epoch(loss)
    else:
      self._loss_of_training = loss
    with self._chains_weights():
      if self._chain.is_searching:
        temperature_search.validation_data(self.model)  # Early, without any.
        if self._is_sampling:
          self._chain.end_trial()
      self._chain.end_epoch(self.params.get('steps'))
    if logs is not None and self._is_sampling:
      logs.update(self._draws_log())

  @contextlib.contextmanager
  def _chains_weights(self):
    """Has the chain's weights in the model, where a callback has put others.

    Such as `SwapEMAWeights`, which takes its own out again when the next epoch
    begins.
    """
    if self._last_weights is None:
      yield
      return
    variables = self.model.trainable_variables
    others = network.values(variables)
    self._is_swapped = not all(
        map(np.array_equal, others, self._last_weights))
    if self._is_swapped:
      network.assign(variables, self._last_weights)
    yield
    self._last_weights = network.values(variables)
    if self._is_swapped:
      network.assign(variables, others)

  def on_train_end(self, logs=None):
    del logs
    self._has_ended = True
    self._train_function.put_back()
    self._chain.end_fit()
    self._chain.draws.close()
    self._resumption.end_fit(self.model)
    if self._last_weights is not None:
      # fit has just replaced the weights by the optimizer's moving average.
      network.assign(self.model.trainable_variables, self._last_weights)
      self._last_weights = None
    self._say_verdict()
    if not (len(self._chain.draws) or self._chain.why_stopped):
      warnings.warn(self._why_no_draws, stacklevel=2)

  @property
  def _why_no_draws(self):
    """Why there are no draws, and how to have some, whole sentences."""
    if self._chain is None:
      if self._is_copied:
        return (
            'There are no draws: this callback was copied, and no fit was '
            'given the original. KerasTuner, for one, gives each trial a copy '
            'of its callbacks. Pass a new PosteriorSampling to the fit of the '
            'model that is found.')
      return 'There are no draws yet: pass the callback to model.fit.'
    if self._chain.why_stopped is not None:
      return f'There are no draws. {self._chain.why_stopped}'
    start_epoch = self._settings.start_epoch
    due = f'the first is due {self._settings.schedule.first_due()}'
    if not self._has_begun and start_epoch is not None:
      due = (
          f'sampling begins with epoch {start_epoch} (start_epoch; epochs '
          'count from 0)')
    if not self._has_ended:
      return (
          f'There are no draws yet: {due}, and fit is running, or was broken '
          'off by an error or an interrupt. Run fit with this callback again '
          'to go on.')
    if self._last_epoch is None:
      return (
          'There are no draws: fit had no epoch to run, since initial_epoch is '
          'not below epochs. Raise epochs.')
    stopped = ''
    if self.model.stop_training:
      stopped = (
          f' A callback, such as EarlyStopping, ended it in epoch '
          f'{self._last_epoch}: leave it out, or let it begin later.')
    return (
        f'fit ended after {self.num_steps} step(s) of the chain without a '
        f'draw: {due}.{stopped} Run fit with this callback again to go on.')

  @property
  def _num_chains(self):
    """The number of chains; None while it is still to be chosen."""
    return (self._chain or self._settings).num_chains

  @property
  def _has_begun(self):
    return self._chain is not None and self._chain.has_begun

  def _say(self, text):
    """Shows a sentence, None for nothing, unless `fit` is to be silent."""
    if text is not None and self.params.get('verbose'):
      print(f'\nPosteriorSampling: {text}')

  def _say_verdict(self):
    """Says how good the draws are, in two lines."""
    if (not self.params.get('verbose') or self._chain.inputs is None
        or not len(self._chain.draws)):
      return
    try:
      said = summary_lib.in_words(
          self.summary, self.posterior, self._chain.inputs)
    except ImportError as error:
      said = f'how good the draws are is not judged: {error}'
    self._say(said)

  def _execute(self, iterator):
    """An execution: the first of a fit, or one of the chain's."""
    if self._settings.examples.wants_to_look:
      self._settings.examples.look(iterator)
    if not self._is_sampling:
      return self._chain.train(iterator)
    variables = self.model.trainable_variables
    if self._is_swapped:
      network.assign(variables, self._last_weights)
      self._is_swapped = False
    logs = self._chain.execute(iterator)
    if network.has_moving_average(self.model.optimizer):
      # Of tensors, which later assignments leave as they are.
      self._last_weights = [tf.convert_to_tensor(v) for v in variables]
    done = self._num_batches + self.model.steps_per_execution
    if done >= (self.params.get('steps') or np.inf):
      # Once an epoch: a bar shows the mean of what it is given.
      logs.update(self._draws_log())
    return logs

  def _draws_log(self):
    number = len(self._chain.draws)
    return {'draws': number} if number else {}

  def _begin_chain(self, likelihood):
    """Makes the chain: a new one, or that of the directory."""
    model, settings = self.model, self._settings
    is_built = network.is_built(model)
    if is_built:
      network.check_weights(model)
      priors.WeightPrior(settings.prior, model.trainable_variables)
    store = None
    if settings.directory is not None:
      store = checkpoint.open_store(
          settings.directory,
          {**settings.given, 'likelihood': likelihood.parameters})
    self._chain = chain_lib.Chain(
        model, settings, draws_lib.ModelDraws(model, store=store), likelihood,
        are_weights_checked=is_built, say=self._say)
    self._posterior = None

  def _check_reachable(self, epoch):
    """Raises where this `fit` cannot make a draw."""
    start_epoch, epochs = self._settings.start_epoch, self.params['epochs']
    if not self._has_begun and start_epoch >= epochs:
      raise ValueError(
          f'fit would end without a draw: it has {epochs} epoch(s), and '
          f'sampling begins with epoch {start_epoch} (start_epoch; epochs '
          'count from 0). Raise epochs, or lower start_epoch.')
    steps = self.params.get('steps')
    schedule = self._settings.schedule
    if steps and not len(self._chain.draws) and schedule.is_planned:
      if not self._has_begun:
        epoch = max(epoch, self._settings.start_epoch)
      schedule.check_reachable(
          self.num_steps, epoch, self.params['epochs'],
          steps * self._chain.steps_per_batch)

  def _check_burnin(self, epoch):
    """Raises, before sampling begins, where burn-in is too short.

    As soon as the number of steps in an epoch is known.
    """
    settings = self._settings
    steps = self.params.get('steps') or self._steps_in_epoch
    number = settings.num_steps_per_batch
    if (steps and settings.found_step is not None and settings.search is None
        and number is not None):
      epochs = self.params['epochs'] - max(epoch, settings.start_epoch)
      settings.found_step.plan(
          settings.schedule.burnin_of(epochs * steps * number))

  def _check_alone(self):
    """Raises where the same `fit` has another callback of this class."""
    other = _LAST_OF_MODEL.get(self.model, lambda: None)()
    # Keras gives all callbacks of a fit one dict.
    if other not in (None, self) and other.params is self.params:
      raise ValueError(
          'fit was given two PosteriorSampling, and the model has the weights '
          'of one chain at a time: pass one. For several chains take '
          'num_chains; for two kernels, two models, each with a fit of its '
          'own.')
    _LAST_OF_MODEL[self.model] = weakref.ref(self)


def describe_also(sampling: PosteriorSampling, **described: object) -> None:
  """Adds to what a directory knows a chain by, before its `fit`.

  Args:
    sampling: `PosteriorSampling`.
    **described: What it stands for, by name.
  """
  sampling._settings.given.update(described)  # pylint: disable=protected-access


@diagnostics.summary.register
def _(result: PosteriorSampling, x, y=None):
  return result.summary(x, y)
