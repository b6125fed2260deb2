"""Posterior sampling in `model.fit`."""

from collections.abc import Callable
import itertools
from typing import Any
import warnings

import keras
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import seeds
from tfp_sgmcmc.keras import draws as draws_lib
from tfp_sgmcmc.keras import kernels
from tfp_sgmcmc.keras import likelihood as likelihood_lib
from tfp_sgmcmc.keras import priors
from tfp_sgmcmc.keras import samples
from tfp_sgmcmc.keras import step as step_lib

__all__ = ['PosteriorSampling']


class PosteriorSampling(keras.callbacks.Callback):
  """Makes `model.fit` sample the posterior of the model's weights.

    log p(theta | data) = log p(theta) - N (L(theta) + R(theta)) + const

  with L the mean over examples of the compiled loss, a negative log
  likelihood, N the number of examples, p(theta) the prior, and R the sum of the
  model's regularisers and other added losses, in the units of the loss: an l2
  regulariser of strength c is the prior N(0, 1 / (2 c N)), and counts beside
  `prior` where both are given.

  From `start_epoch` on each training step is a step of the transition kernel,
  on the posterior as that step's batch estimates it,

    log p(theta) + N / n sum_{i in batch} log p(y_i | x_i, theta) - N R(theta),

  in place of a step of the compiled optimizer; how the loss reduces over
  examples makes no difference. Sample and class weights multiply an example's
  log likelihood, loss weights an output's. All trainable weights are sampled,
  and nothing else; the model runs as for prediction (`training=False`), so
  that dropout is off and each example has a likelihood of its own.

  The model keeps its `train_step`, optimizer and compile state: its train
  function is swapped only while a batch runs. Its weights after `fit` are the
  chain's last state. `fit` with the same callback once more goes on with the
  chain, from the model's weights.

  Step t = 1, 2, ... of the chain has the seed `random.fold_in(seed, t)`, and
  `bootstrap_results`, on the first batch, `random.fold_in(seed, 0)`: so a loop
  over a kernel's `one_step` with these seeds on the same batches is the same
  chain.

  The batches have to be shuffled anew in each epoch where the last one is
  partial: as N / n times its sum, its examples weigh more than others, and in
  a fixed order it is always the same ones that do. (After
  `keras.utils.set_random_seed` Keras shuffles arrays the same in each epoch:
  use a `tf.data` pipeline with `shuffle`, or a batch size that divides N.)

  With a kernel in continuous time, `StochasticBouncyParticleSampler`, a step is
  an event, the end of a segment of a path; draws are made at equal times along
  the path, `draw_interval` apart, wherever within a segment they fall. (The
  weights at the events themselves have unequal weights in any average.) The
  model's weights after `fit` are those at the last event.

  The logs hold `draws`, the number of draws, and for kernels with momentum
  `kinetic_temperature`, r' r / d, whose mean is the temperature. Callbacks that
  change the optimizer's learning rate (`LearningRateScheduler`,
  `ReduceLROnPlateau`) steer the kernel if `learning_rate='optimizer'`, and are
  an error else.

  #### Examples

  >>> x = tf.random.stateless_normal([200, 3], [0, 1])
  >>> y = tf.reduce_sum(x, -1, keepdims=True)
  >>> model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
  >>> model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=0.5))
  >>> sampling = sgmcmc.keras.PosteriorSampling(
  ...     sgmcmc.SGHMC, num_examples=200, prior=tfd.Normal(0., 1.),
  ...     learning_rate=0.01, momentum=0.9, num_burnin_steps=10,
  ...     num_steps_between_results=1, seed=0)
  >>> history = model.fit(
  ...     x, y, batch_size=50, epochs=10, verbose=0, callbacks=[sampling])
  >>> len(sampling.posterior)
  15
  >>> sampling.posterior.predict(x).shape
  (200, 1)
  """

  def __init__(
      self,
      kernel: Callable[..., tfp.mcmc.TransitionKernel],
      num_examples: int,
      prior: Any = None,
      num_burnin_steps: int = 0,
      num_steps_between_results: int = 0,
      start_epoch: int = 0,
      temperature: Any = None,
      directory: Any = None,
      max_results: int | None = None,
      seed: Any = None,
      learning_rate: Any = None,
      momentum: float | None = None,
      keep_draw: Callable[[int], bool] | None = None,
      draw_interval: float | None = None,
  ):
    """Makes the callback.

    Args:
      kernel: Callable of the target; returns a kernel: `functools.partial` of
        `SGLD`, `SGHMC`, `SGNHT` or `StochasticBouncyParticleSampler` with its
        arguments, or one of the first three where `learning_rate` gives them.
        The batches come from `fit`: leave `gradient_estimator` out.
      num_examples: Python `int`, N, the number of training examples.
      prior: A `tfp.distributions.Distribution` for all weights; a dict from
        layer names, or regular expressions for whole variable paths, to such;
        a callable of the variable that returns one (`he_normal()`); or None:
        the model's regularisers are the prior.
      num_burnin_steps: Python `int`, the number of first steps without draws.
      num_steps_between_results: Python `int`, the number of steps between two
        draws; the first draw is made at step `num_burnin_steps + 1`, as in
        `tfp.mcmc.sample_chain`.
      start_epoch: Python `int`, the first epoch (from 0) that samples; before
        it the compiled optimizer trains.
      temperature: T, a number or a callable of the step counter; None leaves
        it to the kernel, whose default is 1.
      directory: None to keep draws in memory, one stacked array a weight; or
        the path of a directory without draws, to which they are written as they
        come, within seconds. `PosteriorSamples.load` reads them.
      max_results: None, or the number of draws after which no more are kept.
      seed: Python `int` k, for the stateless seed `[k >> 32, k]`; a stateless
        seed (`int32[2]`); or None, for one from TensorFlow's global generator.
      learning_rate: The step size in the units of Keras' SGD on the mean loss,
        in place of the kernel's `step_size`: a number; a callable of the step
        counter, such as a Keras schedule; or "optimizer" for the learning rate
        that the compiled optimizer has at each step. h = sqrt(learning_rate /
        N) for SGHMC and SGNHT, h = learning_rate / N for SGLD.
      momentum: Number in [0, 1), in the units of Keras' SGD: friction (SGNHT:
        diffusion) = (1 - momentum) / h.
      keep_draw: None, or a callable of a step's number (a Python `int`); draws
        are kept only where it is true. See `late_in_cycle`.
      draw_interval: Positive number, the time between two draws, of a kernel in
        continuous time, which needs it; the first is made that long after the
        event `num_burnin_steps`. For others leave it out.

    Raises:
      ValueError: If an argument is out of its range or contradicts another.
      TypeError: If an argument is of the wrong type, or the kernel cannot live
        on given batches.
    """
    super().__init__()
    self._num_examples = checks.positive_integer('num_examples', num_examples)
    for name, value in (
        ('num_burnin_steps', num_burnin_steps),
        ('num_steps_between_results', num_steps_between_results),
        ('start_epoch', start_epoch)):
      checks.non_negative_integer(name, value)
    if max_results is not None:
      checks.positive_integer('max_results', max_results)
    if keep_draw is not None and not callable(keep_draw):
      raise TypeError(
          f'keep_draw is {keep_draw!r}: it has to be a function of the step.')
    self._make_kernel = kernels.KernelMaker(
        kernel, self._num_examples, learning_rate, momentum, temperature)
    self._check_interval(draw_interval, num_steps_between_results)
    self._draw_interval = draw_interval
    self._until_draw = draw_interval
    self._prior = prior
    self._num_burnin_steps = num_burnin_steps
    self._spacing = num_steps_between_results + 1
    self._start_epoch = start_epoch
    self._directory = directory
    self._max_results = max_results
    self._keep_draw = keep_draw
    self._seed = seeds.to_stateless(seed)
    self._step = None
    self._draws = None
    self._posterior = None
    self._is_sampling = False
    self._is_checked = False
    self._num_steps = 0
    self._own_function = None
    self._sampling_function = None
    self._iterator_function = None
    self._learning_rate_seen = None
    self._history = None
    self._last_weights = None

  @property
  def posterior(self) -> samples.PosteriorSamples:
    """The draws so far, as a `PosteriorSamples`.

    Raises:
      ValueError: If there are none yet.
    """
    if not self._draws:
      raise ValueError(
          'There are no draws yet: pass the callback to model.fit.')
    if self._posterior is None:
      self._posterior = samples.PosteriorSamples(self.model, self._draws)
    return self._posterior

  @property
  def num_steps(self) -> int:
    """The number of steps that the chain has made."""
    return self._num_steps

  @property
  def kernel_results(self) -> Any:
    """The kernel's results after the last step, None before the first."""
    return None if self._step is None else self._step.results()

  def step_seed(self, step: int) -> tf.Tensor:
    """The seed of a step, 1, 2, ...; that of `bootstrap_results` for 0."""
    return random.fold_in(self._seed, step)

  def set_model(self, model):
    if self._step is not None and model is not self.model:
      raise ValueError(
          f'This callback holds a chain of the model {self.model.name!r}, and '
          f'was passed to fit of {model.name!r}: make a new PosteriorSampling.')
    super().set_model(model)

  def on_train_begin(self, logs=None):
    del logs
    model = self.model
    _check_model(model)
    self._likelihood = likelihood_lib.Likelihood(model)
    if self._step is not None:
      self._step.set_likelihood(self._likelihood)
    self._make_kernel.set_optimizer(model.optimizer)
    if self._draws is None:
      self._draws = draws_lib.ModelDraws(
          model, store=None if self._directory is None
          else draws_lib.new_store(self._directory))
    self._draws.open()
    self._history = model.history
    self._learning_rate_seen = None
    self._is_checked = False
    if model.train_function is not self._own_function:
      self._own_function = model.train_function
      self._sampling_function = self._make_function()
      self._iterator_function = self._sampling_function
      if model.steps_per_execution == 1 and not model.run_eagerly:
        self._iterator_function = _on_next(self._sampling_function)

  def on_epoch_begin(self, epoch, logs=None):
    del logs
    if not self._is_checked:
      self._check_reachable(epoch)
      self._is_checked = True
    self._is_sampling = self._step is not None or epoch >= self._start_epoch
    self._check_learning_rate()

  def on_train_batch_begin(self, batch, logs=None):
    del batch, logs
    if self._is_sampling:
      self._set_function(self._run)

  def on_epoch_end(self, epoch, logs=None):
    del epoch, logs
    self._put_back()
    self._draws.commit(self._num_steps)
    if self._is_sampling and _has_moving_average(self.model.optimizer):
      self._last_weights = [
          v.numpy() for v in self.model.trainable_variables]

  def on_train_end(self, logs=None):
    del logs
    self._put_back()
    self._draws.close()
    if self._last_weights is not None:
      # fit has just replaced the weights by the optimizer's moving average.
      _assign(self.model.trainable_variables, self._last_weights)
      self._last_weights = None
    if self._is_sampling and not len(self._draws):
      warnings.warn(
          f'fit ended after {self._num_steps} step(s) of the chain without a '
          f'draw: the first is due {self._first_due()}. Run fit with this '
          'callback again to go on.', stacklevel=2)

  def _first_due(self):
    if self._draw_interval is None:
      return f'at step {self._num_burnin_steps + 1}'
    return (f'{self._until_draw:.4g} units of time after the last step made, '
            f'or after step {self._num_burnin_steps}')

  def _put_back(self):
    if self.model.train_function == self._run:
      self._set_function(self._own_function)

  def _set_function(self, function):
    """Sets the train function; `setattr` would look for layers to track."""
    vars(self.model)['train_function'] = function

  def _run(self, iterator):
    """The train function of one execution; it takes itself out first."""
    model = self.model
    self._set_function(self._own_function)
    if model.history is not self._history:
      # Left behind by a fit that ended between a batch's beginning and its run.
      return self._own_function(iterator)
    steps = model.steps_per_execution
    inside = any(
        self._is_due(self._num_steps + k) for k in range(1, steps))
    if self._draw_interval is not None and steps > 1:
      # Each segment's time counts, with or without a draw on it.
      inside = self._num_steps + steps > self._num_burnin_steps + 1
    if inside or self._step is None:
      first = next(iterator)
      if self._step is None:
        self._start(first)
      # A plain iterator is run batch by batch, so draws can be made between.
      logs = self._sampling_function(
          self._one_by_one(itertools.chain([first], iterator)))
    else:
      logs = self._iterator_function(iterator)
    logs = dict(logs)
    self._after_step(logs.pop(step_lib.STATUS))
    return {**logs, 'draws': len(self._draws)}

  def _one_by_one(self, iterator):
    for k, data in enumerate(iterator):
      if k:
        self._after_step(self._step.status)
      yield data

  def _after_step(self, status):
    self._num_steps, bad = status.numpy().tolist()
    if bad:
      self._stop(bad)
    elif self._draw_interval is not None:
      self._draw_along_segment()
    elif self._is_due(self._num_steps):
      self._keep()

  def _keep(self):
    self._draws.append(self._num_steps)
    self._draws.commit_if_due(self._num_steps)

  def _draw_along_segment(self):
    """Draws at the times that fall into the last segment of the path."""
    if self._num_steps <= self._num_burnin_steps:
      return
    start, duration = self._step.segment()
    self._until_draw -= duration
    if self._until_draw > 0.:
      return
    variables = self.model.trainable_variables
    end = [v.numpy() for v in variables]
    while self._until_draw <= 0.:
      if self._is_due(self._num_steps):
        back = -self._until_draw / duration
        _assign(variables, [b - back * (b - a) for a, b in zip(start, end)])
        self._keep()
      self._until_draw += self._draw_interval
    _assign(variables, end)

  def _is_due(self, step):
    """Whether a draw is made at the step, or in continuous time may be."""
    excess = step - self._num_burnin_steps - 1
    if excess < 0 or excess % self._spacing:
      return False
    if self._max_results is not None and (
        len(self._draws) >= self._max_results):
      return False
    return self._keep_draw is None or bool(self._keep_draw(step))

  def _stop(self, bad):
    """Ends training after NaN or Inf."""
    if self.model.stop_training:
      return
    self.model.stop_training = True
    message = (
        f'The weights became NaN or Inf at step {bad} of the chain: training '
        f'stops, and the {len(self._draws)} draw(s) made before are kept. ')
    if len(self._draws):
      last = self._draws.read([len(self._draws) - 1])
      _assign(
          self.model.trainable_variables, [array[0] for array in last])
      message += 'The weights are those of the last draw. '
    warnings.warn(
        message + 'Take a smaller step_size or learning_rate, start from a '
        'trained model (start_epoch), or look for examples with infinite '
        'loss.', RuntimeWarning, stacklevel=2)

  def _start(self, data):
    """Builds what needs the model's weights, and the first results."""
    model = self.model
    data = keras.tree.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional)
        else leaf, data)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    y_pred = model(x)
    model.compute_loss(x, y, y_pred, sample_weight)
    model.compute_metrics(x, y, y_pred, sample_weight)
    model.reset_metrics()
    variables = model.trainable_variables
    _check_variables(model)
    has_losses = bool(model.losses)
    if self._prior is None and not has_losses:
      warnings.warn(
          'There is no prior and the model has no regularisers: the prior is '
          'constant, and the posterior may not be one that can be sampled. '
          'Pass prior=tfd.Normal(0., 1.), say.', stacklevel=2)
    if self._prior is not None and has_losses:
      warnings.warn(
          'The model has regularisers or other added losses, and a prior is '
          'given: both count. Remove one of them if they mean the same.',
          stacklevel=2)
    step = step_lib.SamplingStep(
        model, self._make_kernel, priors.WeightPrior(self._prior, variables),
        self._likelihood, self._num_examples, self._seed)
    step.bootstrap(data)
    self._step = step

  def _make_function(self):
    """Keras' own train function around the sampling step."""
    model = self.model
    own = vars(model).get('train_step')
    model.train_step = lambda data: self._step.train_step(data)
    try:
      model.make_train_function(force=True)
      return model.train_function
    finally:
      del model.train_step
      if own is not None:
        model.train_step = own
      model.train_function = self._own_function

  def _check_interval(self, draw_interval, num_steps_between_results):
    """Raises where draws are to be spaced in other units than the kernel's."""
    if not self._make_kernel.is_continuous:
      if draw_interval is not None:
        raise ValueError(
            f'draw_interval is {draw_interval!r}, and the kernel does not move '
            'in continuous time: space its draws by num_steps_between_results.')
      return
    if draw_interval is None:
      raise ValueError(
          'The kernel moves in continuous time, and its events are no draws at '
          'equal weights: pass draw_interval, the time between two draws.')
    checks.numeric('draw_interval', draw_interval, 0.)
    checks.scalar('draw_interval', draw_interval)
    if num_steps_between_results:
      raise ValueError(
          f'num_steps_between_results is {num_steps_between_results}, and the '
          'kernel moves in continuous time: its draws are spaced by '
          'draw_interval alone.')

  def _check_reachable(self, epoch):
    """Raises where this `fit` cannot make a draw."""
    steps = self.params.get('steps')
    if not steps or len(self._draws):
      return
    epochs = self.params['epochs']
    if self._step is None:
      epoch = max(epoch, self._start_epoch)
    first, last = self._num_steps + 1, (
        self._num_steps + max(0, epochs - epoch) * steps)
    if any(self._is_due(step) for step in range(first, last + 1)):
      return
    raise ValueError(
        f'fit would end without a draw. It makes {max(0, last - first + 1)} '
        f'step(s) of the chain: {epochs} epoch(s), sampling from epoch '
        f'{epoch} (counted from 0), {steps} step(s) an epoch. The first draw '
        f'is due at step {self._num_burnin_steps + 1} of the chain'
        f'{"" if self._keep_draw is None else ", where keep_draw allows it"}, '
        f'and {self._num_steps} were made before. Raise epochs, or lower '
        'num_burnin_steps or start_epoch.')

  def _check_learning_rate(self):
    """Raises where another callback steers an optimizer that stands still."""
    rate = getattr(self.model.optimizer, 'learning_rate', None)
    if (not self._is_sampling or self._make_kernel.follows_optimizer
        or not isinstance(rate, keras.Variable)):
      return
    seen, self._learning_rate_seen = (
        self._learning_rate_seen, float(rate.numpy()))
    if seen is not None and seen != self._learning_rate_seen:
      raise ValueError(
          f"The optimizer's learning rate was changed from {seen:g} to "
          f'{self._learning_rate_seen:g} while the kernel samples, which takes '
          'its steps without the optimizer: LearningRateScheduler and '
          'ReduceLROnPlateau have no effect on it. Pass '
          "learning_rate='optimizer' to follow them, or a schedule as "
          'learning_rate or step_size and no such callback.')


def _on_next(function):
  """Keras' train function of a single batch, on a dataset's next one.

  Keras' own returns an Optional, for the end of the data within an execution of
  several steps. Unwrapping it takes a fifth of the time of a small network's
  step, and is not needed where there is one.
  """
  return tf.function(
      lambda iterator: function([iterator.get_next()]), autograph=False,
      reduce_retracing=True)


def _assign(variables, values):
  for variable, value in zip(variables, values):
    variable.assign(value)


def _has_moving_average(optimizer):
  optimizer = getattr(optimizer, 'inner_optimizer', optimizer)
  return bool(getattr(optimizer, 'use_ema', False))


def _check_model(model):
  """Raises where the model makes its own steps or losses."""
  if model.distribute_strategy.num_replicas_in_sync > 1:
    raise ValueError(
        f'The model is distributed over '
        f'{model.distribute_strategy.num_replicas_in_sync} replicas, and '
        'PosteriorSampling runs on one: build the model outside the strategy.')
  for name in ('train_step', 'compute_loss'):
    own = getattr(type(model), name, None)
    if own is not getattr(keras.Model, name):
      raise ValueError(
          f'{type(model).__name__} defines its own {name}, and '
          'PosteriorSampling makes the step itself, from the compiled losses: '
          'what it does would be lost. Write the likelihood as a loss '
          '(sgmcmc.keras.DistributionLoss) and other terms with add_loss.')


def _check_variables(model):
  """Raises or warns where weights cannot be sampled as they are used."""
  variables = model.trainable_variables
  if not variables:
    raise ValueError(
        f'The model {model.name!r} has no trainable weights: there is nothing '
        'to sample. Unfreeze a layer and compile again.')
  for variable in variables:
    if getattr(variable, 'constraint', None) is not None:
      raise ValueError(
          f'The weight {variable.path!r} has the constraint '
          f'{variable.constraint!r}, which the optimizer would enforce and a '
          'kernel does not: remove it, and put what it says into the prior.')
  for layer in _layers(model):
    if isinstance(layer, keras.layers.BatchNormalization):
      warnings.warn(
          f'The layer {layer.name!r} normalises by its moving statistics, '
          'which stay as they are while the kernel samples: train first '
          '(start_epoch), or take LayerNormalization.', stacklevel=2)
      return


def _layers(model):
  """All layers, those of models within the model too."""
  for layer in model.layers:
    yield layer
    if hasattr(layer, 'layers'):
      yield from _layers(layer)
