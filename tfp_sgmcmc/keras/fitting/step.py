"""One training step that is one step of a transition kernel.

At step t = 1, 2, ... with the batch of fit's own choice, and its n examples,

  posterior_t(theta) = log p(theta)
      + N / n sum_{i in batch} (log p(y_i | x_i, theta) - R(theta)),
  theta, results <- kernel(posterior_t).one_step(theta, results, seed_t)

with R the sum of the model's regularisers and other added losses. The seeds are
`seed_t = random.fold_in(seed, t)`; the results start from
`bootstrap_results` on the first batch with `random.fold_in(seed, 0)`.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import collectives
from tfp_sgmcmc import kernel as kernel_lib
from tfp_sgmcmc import random
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import leaves as leaves_lib
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.keras.fitting import checkpoint as checkpoint_lib
from tfp_sgmcmc.keras.fitting import kernel_maker
from tfp_sgmcmc.keras.fitting import one_vector
from tfp_sgmcmc.keras.model import forward_passes
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib
from tfp_sgmcmc.keras.model import network
from tfp_sgmcmc.keras.model import priors
from tfp_sgmcmc.keras.model import raw_inputs
from tfp_sgmcmc.keras.model import replicas

__all__ = ['STATUS', 'Move', 'SamplingStep', 'first_bad', 'status_of']

# The entry of the step's logs with its number and that of the first bad step:
# two numbers, since to join them would be loops of their own on a TPU.
STATUS = 'sampling_status'


class Move(NamedTuple):
  """What a step makes of a chain.

  Attributes:
    parts: The new weights, one tensor each.
    results: The kernel's new results.
    is_finite: `bool` scalar, whether the weights are.
    logs: What the kernel has for the logs, scalars by name.
    forward_pass: `ForwardPass` on the batch.
    loss: Scalar, the mean loss of the batch as Keras reports it.
    counted: What is to be added to the metrics that the loss itself keeps, by
      their place among the model's.
  """
  parts: list[tf.Tensor]
  results: Any
  is_finite: tf.Tensor
  logs: dict[str, tf.Tensor]
  forward_pass: network.ForwardPass
  loss: tf.Tensor
  counted: dict[int, tf.Tensor]


class SamplingStep:
  """The state of a chain over a model's weights, and its step."""

  def __init__(
      self,
      model: keras.Model,
      make_kernel: kernel_maker.KernelMaker,
      prior: priors.WeightPrior,
      likelihood: likelihood_lib.Likelihood,
      num_examples: int,
      seed: tf.Variable,
      raw: raw_inputs.RawInputs,
  ):
    """Makes the step of a built model.

    Args:
      model: Built and compiled `keras.Model`.
      make_kernel: `KernelMaker`.
      prior: Prior over the trainable weights.
      likelihood: Likelihood of the outputs.
      num_examples: Python `int`, N.
      seed: Variable with the stateless seed, two integers, of the chain that
        steps.
      raw: `RawInputs`, with the coordinates in which the kernel samples.
    """
    self._model = model
    self._make_kernel = make_kernel
    self._prior = prior
    self._likelihood = likelihood
    self._num_examples = num_examples
    self._seed = seed
    self._results: list[tf.Variable] = []
    self._structure, self._dtypes = None, []
    self._segment_start = []
    self._strategy = model.distribute_strategy
    self._first_bad = replicas.variable(
        self._strategy, tf.zeros([], tf.int64), STATUS)
    # float16 holds gradients of a mean loss times 1024, not times N.
    compute_dtypes = network.compute_dtypes(model)
    self._half_scale = (
        num_examples / 1024. if 'float16' in compute_dtypes else None)
    self._compute_dtypes = compute_dtypes | compat.product_dtypes()
    self.variables = list(model.trainable_variables)
    self._layout = one_vector.of(self.variables, make_kernel.takes_vector)
    self._raw = raw

  def set_likelihood(self, likelihood: likelihood_lib.Likelihood) -> None:
    """Takes the likelihood of a model that was compiled anew.

    Args:
      likelihood: Likelihood of the outputs.

    Raises:
      ValueError: If other weights are trainable than when the chain began.
    """
    ours = [id(v) for v in self.variables]
    if [id(v) for v in self._model.trainable_variables] != ours:
      raise ValueError(
          'The trainable weights are others than when the chain began '
          f'({[v.path for v in self.variables]}): a chain goes on over the '
          'same weights alone. Make a new PosteriorSampling.')
    self._likelihood = likelihood

  @property
  def seed(self) -> tf.Variable:
    """That with the seed of the chain."""
    return self._seed

  @property
  def result_variables(self) -> list[tf.Variable]:
    """The variables with the kernel's results."""
    return self._results

  def packed(self, leaves: Sequence[tf.Tensor]) -> Any:
    """Values, one for each result variable, as results of the kernel."""
    return tf.nest.pack_sequence_as(self._structure, [
        tf.cast(leaf, dtype) for leaf, dtype in zip(leaves, self._dtypes)])

  def results(self) -> Any:
    """The kernel's results after the last step."""
    return self.packed([tf.convert_to_tensor(v) for v in self._results])

  def segment(self) -> tuple[list[np.ndarray], float]:
    """Where the last segment of a path began, and its duration.

    Of a kernel in continuous time, whose steps are the path's corners.
    """
    duration = tf.nest.pack_sequence_as(
        self._structure, self._results).duration
    return [v.numpy() for v in self._segment_start], float(duration.numpy())

  def bootstrap(self, data: hints.Data) -> None:
    """Makes the kernel's first results, on the first batch.

    Args:
      data: A batch as `train_step` gets it.
    """
    def on_replica(data):
      start, parts = tf.zeros([], tf.int64), self._parts()
      posterior = self._posterior(
          data, self._passes(data, parts), self._make_kernel.temperature(start))
      return self._kernel(posterior, start).bootstrap_results(
          self._state(parts), seed=_step_seed(self._seed, start))

    def bootstrap():
      return collectives.run(self._strategy, on_replica, data)

    # Else eagerly: to trace what runs once would take many times as long.
    if collectives.is_several(self._strategy) and not self._model.run_eagerly:
      # A call would count as one that traces, of which TensorFlow warns where
      # a program makes several chains.
      bootstrap = tf.function(
          bootstrap, autograph=False).get_concrete_function()
    results = bootstrap()
    if self._results:
      network.assign(self._results, kept_leaves(results))
      return
    self._structure = results
    self._dtypes = [leaf.dtype for leaf in tf.nest.flatten(results)]
    self._results = [
        replicas.variable(self._strategy, leaf, 'sampling_results')
        for leaf in tf.nest.flatten(results)]
    if self._make_kernel.is_continuous:
      self._segment_start = [
          replicas.variable(self._strategy, part, 'segment_start')
          for part in self._parts()]

  def state(self) -> dict[str, np.ndarray]:
    """The state of the chain beside the model: what `load_state` takes."""
    return checkpoint_lib.leaves(
        results=self._results, status=self.status_variables)

  def load_state(self, state: Mapping[str, np.ndarray]) -> None:
    """Takes the place of another object, after `bootstrap`.

    Args:
      state: Arrays by name, those of its `state` among them.

    Raises:
      ValueError: If the kernel's results were others.
    """
    checkpoint_lib.assign(
        state, results=self._results, status=self.status_variables)

  def train_step(self, data: hints.Data) -> dict[str, Any]:
    """A step of the kernel on a batch, in place of the model's own.

    Args:
      data: `(x, y)` or `(x, y, sample_weight)`.

    Returns:
      logs: The model's metrics, `STATUS`, where the kernel has momenta the
        kinetic temperature and the temperature, and where it adapts its step
        size the learning rate.
    """
    start, results = self._parts(), self.results()
    step = results.step + 1
    move = self.advance(start, results, self._seed, data)
    network.assign(self._segment_start, start)
    replicas.assign(self.variables, move.parts)
    # What the next step waits for first.
    with tf.control_dependencies(move.parts):
      network.assign(self._results, kept_leaves(move.results))
    metrics = self.update_metrics(data, move)
    bad = first_bad(
        tf.convert_to_tensor(self._first_bad), move.is_finite, step)
    self._first_bad.assign(bad)
    return {**metrics, **move.logs, STATUS: (step, bad)}

  def advance(
      self,
      start: list[tf.Tensor],
      results: Any,
      seed: tf.Tensor,
      data: hints.Data,
  ) -> Move:
    """A step of the kernel from given weights; changes no variable.

    Args:
      start: One tensor for each of the sampled weights.
      results: The kernel's results after the step before.
      seed: Stateless seed of the chain, `int32[2]`.
      data: As `train_step` gets it.

    Returns:
      move: `Move`.
    """
    passes = self._passes(data, start)
    temperature = self._make_kernel.temperature(results.step)
    kernel = self._kernel(
        self._posterior(data, passes, temperature), results.step)
    with kernel_lib.failures_left_to_caller():
      state, results = kernel.one_step(
          self._state(start), results,
          seed=_step_seed(seed, results.step + 1))
    is_finite, logs = _watch(state, results, temperature)
    logs.update(self._make_kernel.logs(kernel, results))
    forward_pass = passes.of_each_row()
    loss, counted = network.mean_loss(
        self._model, keras.utils.unpack_x_y_sample_weight(data), forward_pass)
    return Move(
        self._weights(state), results, is_finite, logs, forward_pass,
        loss, counted)

  def _state(self, weights):
    """The kernel's state: the coordinates of weights."""
    return self._layout.join(self._raw.coordinates(weights))

  def _weights(self, state):
    """The inverse of `_state`."""
    return self._raw.weights(self._layout.split(state))

  def _kernel(self, posterior, step):
    return self._make_kernel(
        posterior, step, self._compute_dtypes, self._layout.sizes)

  @property
  def status_variables(self) -> list[tf.Variable]:
    """Those with the number of steps, and of the first bad one."""
    results = tf.nest.pack_sequence_as(self._structure, self._results)
    return [results.step, self._first_bad]

  @property
  def state_variables(self) -> list[tf.Variable]:
    """Those with the chain beside the model."""
    return [*self._results, self._first_bad, *self._segment_start]

  def restart(self) -> None:
    """Takes another chain, whose `bootstrap` is next."""
    self._first_bad.assign(tf.zeros_like(self._first_bad))

  def results_named(self, name: str) -> list[tf.Variable]:
    """The variable with the kernel's result of that name, if it has one."""
    found = compat.find_result(
        tf.nest.pack_sequence_as(self._structure, self._results), name)
    return [] if found is None else [found]

  def _parts(self):
    return [tf.convert_to_tensor(variable) for variable in self.variables]

  def _passes(self, data, parts):
    """What keeps the passes of a step on a batch, from these weights."""
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    return forward_passes.ForwardPasses(
        network.num_rows(data), lambda: network.forward(self._model, x, parts))

  def _posterior(self, data, passes, temperature):
    """The posterior of a batch, for a kernel at a temperature.

    The numbers of its rows are a leaf of its data.
    """
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]

    def log_likelihood(*state_and_batch):
      *state, (*batch, rows) = state_and_batch
      parts = self._weights(state)
      batch = iter(batch)
      data_of_batch = network.map_leaves(lambda _: next(batch), data)
      if self._half_scale is not None:
        parts = [_scale_gradient(part, self._half_scale) for part in parts]
      x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data_of_batch)
      forward_pass = network.forward(
          self._model, x, parts, passes.updates(rows))
      passes.add(rows, forward_pass)
      return self._log_likelihood(y, sample_weight, forward_pass)

    # The prior is that of the coordinates: see `raw_inputs`.
    return replicas.posterior(
        self._strategy,
        lambda *state: self._prior.log_prob(
            *self._layout.split(state), temperature=temperature),
        log_likelihood, [*leaves, passes.rows],
        num_examples=self._num_examples)

  def _log_likelihood(self, y, sample_weight, forward_pass):
    """Each example's log likelihood and share of the added losses."""
    outputs, penalties = forward_pass.outputs, forward_pass.penalties
    if self._half_scale is not None:
      outputs, penalties = keras.tree.map_structure(
          lambda tensor: compat.with_mask(
              _scale_gradient(
                  tf.cast(tensor, tf.float32), 1. / self._half_scale),
              compat.mask(tensor)), (outputs, penalties))
    values = self._likelihood.log_likelihood(y, outputs, sample_weight)
    if penalties:
      values -= tf.add_n([tf.cast(p, values.dtype) for p in penalties])
    return tf.cast(values, self._prior.dtype)

  def update_metrics(self, data: hints.Data, move: Move) -> dict[str, Any]:
    """Updates the model's metrics by the predictions for the batch's rows.

    Args:
      data: As `train_step` gets it.
      move: `Move` on it. The updates of its pass are made too.

    Returns:
      metrics: Their values.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    for variable, value in move.forward_pass.updates:
      variable.assign(value)
    for place, number in move.counted.items():
      self._model.metrics_variables[place].assign_add(number)
    network.loss_tracker(self._model).update_state(
        move.loss, sample_weight=network.num_rows(data))
    return self._model.compute_metrics(
        x, y, move.forward_pass.outputs, sample_weight=sample_weight)


def first_bad(
    bad: tf.Tensor, is_finite: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
  """The number of the first bad step, once `step` has been made.

  Args:
    bad: `int64`, what it was before; 0 for none.
    is_finite: `bool` of the same shape, whether the step is none.
    step: `int64`, its number.

  Returns:
    bad: As the argument.
  """
  return tf.where((bad == 0) & ~is_finite, step, bad)


def status_of(state: Mapping[str, np.ndarray]) -> tuple[int, int]:
  """The number of steps in a `state`; that of the first bad one, 0 for none."""
  num_steps, bad = leaves_lib.of_group(state, 'status')
  return int(num_steps), int(bad)


def kept_leaves(results: Any) -> list[tf.Tensor]:
  """What the variables keep of a kernel's results, one value for each."""
  return [replicas.kept(leaf) for leaf in tf.nest.flatten(results)]


def _step_seed(seed, step):
  return random.fold_in(tf.cast(seed, tf.int32), step)


def _scale_gradient(tensor, scale):
  """The tensor itself, its gradient times `scale`."""
  @tf.custom_gradient
  def scaled(tensor):
    return tf.identity(tensor), lambda upstream: upstream * tf.cast(
        scale, upstream.dtype)

  return scaled(tensor)


def _watch(parts, results, temperature):
  """Whether the weights are finite, r' r / d over all coordinates, and T."""
  # One sum detects any non-finite entry, more cheaply than checking each.
  momentum = compat.find_result(results, 'momentum')
  if momentum is None:
    return tf.math.is_finite(tf.add_n(
        [states.sum_event(part, 0) for part in _in_float32(parts)])), {}
  # The weights move by the momentum, so they stay finite while it does.
  total = 2. * tf.add_n(
      [states.half_square(r) for r in _in_float32(momentum)])
  number = sum(r.shape.num_elements() for r in momentum)
  return tf.math.is_finite(total), {
      'kinetic_temperature': total / number, 'temperature': temperature}


def _in_float32(parts):
  """All their numbers, to be summed up."""
  return states.joined([tf.cast(part, tf.float32) for part in parts])
