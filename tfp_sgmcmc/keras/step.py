"""One training step that is one step of a transition kernel.

At step t = 1, 2, ... with the batch of fit's own choice, and its n examples,

  posterior_t(theta) = log p(theta)
      + N / n sum_{i in batch} (log p(y_i | x_i, theta) - R(theta)),
  theta, results <- kernel(posterior_t).one_step(theta, results, seed_t)

with R the sum of the model's regularisers and other added losses. The seeds are
`seed_t = random.fold_in(seed, t)`; the results start from
`bootstrap_results` on the first batch with `random.fold_in(seed, 0)`.
"""

from collections.abc import Callable
import inspect
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc import random
from tfp_sgmcmc.keras import likelihood as likelihood_lib
from tfp_sgmcmc.keras import priors

__all__ = ['STATUS', 'SamplingStep']

# The entry of the step's logs with its number and that of the first bad step.
STATUS = 'sampling_status'


class _Forward(NamedTuple):
  """What a pass through the model leaves for the metrics."""
  data: tuple[Any, Any, Any]
  y_pred: Any
  loss: tf.Tensor
  updates: list[tuple[keras.Variable, tf.Tensor]]


class SamplingStep:
  """The state of a chain over a model's weights, and its step."""

  def __init__(
      self,
      model: keras.Model,
      make_kernel: Callable[..., Any],
      prior: priors.WeightPrior,
      likelihood: likelihood_lib.Likelihood,
      num_examples: int,
      seed: tf.Tensor,
  ):
    """Makes the step of a built model.

    Args:
      model: Built and compiled `keras.Model`.
      make_kernel: Callable `(posterior, step)`; returns the kernel.
      prior: Prior over the trainable weights.
      likelihood: Likelihood of the outputs.
      num_examples: Python `int`, N.
      seed: Stateless seed, `int32[2]`.
    """
    self._model = model
    self._make_kernel = make_kernel
    self._prior = prior
    self._likelihood = likelihood
    self._num_examples = num_examples
    self._seed = seed
    self._results = None
    self._structure = None
    self._segment_start = None
    self._status = tf.Variable(
        tf.zeros([2], tf.int64), trainable=False, name=STATUS)
    arguments = inspect.signature(model.call).parameters
    self._call_arguments = {}
    if 'training' in arguments or any(
        p.kind is p.VAR_KEYWORD for p in arguments.values()):
      self._call_arguments['training'] = False
    # float16 holds gradients of a mean loss times 1024, not times N.
    self._half_scale = (
        num_examples / 1024. if model.dtype_policy.compute_dtype == 'float16'
        else None)
    self.variables = list(model.trainable_variables)

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
  def status(self) -> tf.Tensor:
    """The number of steps, and of the first with NaN or Inf, 0 for none."""
    return self._status.read_value()

  def results(self) -> Any:
    """The kernel's results after the last step."""
    return tf.nest.pack_sequence_as(
        self._structure, [tf.convert_to_tensor(v) for v in self._results])

  def segment(self) -> tuple[list[np.ndarray], float]:
    """Where the last segment of a path began, and its duration.

    Of a kernel in continuous time, whose steps are the path's corners.
    """
    duration = tf.nest.pack_sequence_as(
        self._structure, self._results).duration
    return [v.numpy() for v in self._segment_start], float(duration.numpy())

  def bootstrap(self, data: Any) -> None:
    """Makes the kernel's first results, on the first batch.

    Args:
      data: A batch as `train_step` gets it.
    """
    def bootstrap(data):
      start = tf.zeros([], tf.int64)
      posterior, _ = self._posterior(data)
      return self._make_kernel(posterior, start).bootstrap_results(
          self._parts(), seed=random.fold_in(self._seed, start))

    if not self._model.run_eagerly:
      bootstrap = tf.function(bootstrap, autograph=False)
    results = bootstrap(data)
    self._structure = results
    self._results = [
        tf.Variable(leaf, trainable=False, name='sampling_results')
        for leaf in tf.nest.flatten(results)]
    if hasattr(results, 'duration'):
      self._segment_start = [
          tf.Variable(part, trainable=False, name='segment_start')
          for part in self._parts()]

  def train_step(self, data: Any) -> dict[str, Any]:
    """A step of the kernel on a batch, in place of the model's own.

    Args:
      data: `(x, y)` or `(x, y, sample_weight)`.

    Returns:
      logs: The model's metrics, `STATUS`, and the kinetic temperature where the
        kernel has momenta.
    """
    start = self._parts()
    results = self.results()
    step = results.step + 1
    posterior, passes = self._posterior(data)
    parts, results = self._make_kernel(posterior, results.step).one_step(
        start, results, seed=random.fold_in(self._seed, step))
    finite, logs = _watch(parts, results)
    for variable, part in zip(self._segment_start or [], start):
      variable.assign(part)
    for variable, part in zip(self.variables, parts):
      variable.assign(part)
    with tf.control_dependencies(parts):  # What the next step waits for first.
      for variable, leaf in zip(self._results, tf.nest.flatten(results)):
        variable.assign(leaf)
    # In continuous time passes after the first may lie within a tf.cond.
    (x, y, sample_weight), y_pred, loss, updates = _join(
        passes[:1] if self._segment_start else passes)
    for variable, value in updates:
      variable.assign(value)
    bad = self._status[1]
    bad = tf.where((bad == 0) & ~finite, step, bad)
    status = tf.stack([step, bad])
    self._status.assign(status)
    tracker = next(m for m in self._model.metrics if m.name == 'loss')
    tracker.update_state(
        loss, sample_weight=tf.shape(keras.tree.flatten(x)[0])[0])
    metrics = self._model.compute_metrics(
        x, y, y_pred, sample_weight=sample_weight)
    return {**metrics, **logs, STATUS: status}

  def _parts(self):
    return [tf.convert_to_tensor(variable) for variable in self.variables]

  def _posterior(self, data):
    """The posterior of a batch, and the passes made through the model."""
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
    passes = []

    def log_likelihood(*parts_and_batch):
      *parts, batch = parts_and_batch
      batch = iter(batch)
      x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(
          keras.tree.map_structure(
              lambda leaf: None if leaf is None else next(batch), data))
      values, forward = self._forward(
          parts, x, y, sample_weight, passes[-1].updates if passes else [])
      passes.append(forward)
      return values

    return posterior_lib.Posterior(
        self._prior.log_prob, log_likelihood, leaves,
        self._num_examples), passes

  def _forward(self, parts, x, y, sample_weight, updates):
    """Each example's log likelihood and share of the added losses."""
    model, scale = self._model, self._half_scale
    if scale is not None:
      parts = [_scale_gradient(part, scale) for part in parts]
    with keras.StatelessScope(
        state_mapping=[*zip(self.variables, parts), *updates],
        collect_losses=True) as scope:
      y_pred = model(x, **self._call_arguments)
      added = [tf.reduce_sum(loss) for loss in model.losses]
      loss = model.compute_loss(x, y, y_pred, sample_weight)
    updates = []
    for variable in [*model.non_trainable_variables, *model.metrics_variables]:
      value = scope.get_current_value(variable)
      if value is not None:
        updates.append((variable, value))
    outputs = y_pred
    if scale is not None:
      outputs = keras.tree.map_structure(
          lambda output: _scale_gradient(
              tf.cast(output, tf.float32), 1. / scale), outputs)
      added = [
          _scale_gradient(tf.cast(loss, tf.float32), 1. / scale)
          for loss in added]
    values = self._likelihood.log_likelihood(y, outputs, sample_weight)
    if added:
      values -= tf.add_n([tf.cast(loss, values.dtype) for loss in added])
    return tf.cast(values, self._prior.dtype), _Forward(
        (x, y, sample_weight), y_pred, loss, updates)


def _join(passes):
  """One pass through the rows of all, for kernels that split the batch."""
  if len(passes) == 1:
    return passes[0]
  rows = [tf.shape(keras.tree.flatten(p.data[0])[0])[0] for p in passes]
  total = tf.add_n([p.loss * tf.cast(n, p.loss.dtype)
                    for p, n in zip(passes, rows)])
  data, y_pred = keras.tree.map_structure(
      lambda *leaves: None if leaves[0] is None else tf.concat(leaves, axis=0),
      *((p.data, p.y_pred) for p in passes))
  return _Forward(
      data, y_pred, total / tf.cast(tf.add_n(rows), total.dtype),
      passes[-1].updates)


def _scale_gradient(tensor, scale):
  """The tensor itself, its gradient times `scale`."""
  @tf.custom_gradient
  def scaled(tensor):
    return tf.identity(tensor), lambda upstream: upstream * tf.cast(
        scale, upstream.dtype)

  return scaled(tensor)


def _watch(parts, results):
  """Whether the weights are finite, and r' r / d over all coordinates."""
  # A sum is NaN or infinite if a term is, and cheaper than to ask each.
  if not hasattr(results, 'momentum'):
    return tf.math.is_finite(tf.add_n(
        [tf.reduce_sum(tf.cast(part, tf.float32)) for part in parts])), {}
  # The weights move by the momentum, so they stay finite while it does.
  total = 2. * tf.add_n(
      [tf.nn.l2_loss(tf.cast(r, tf.float32)) for r in results.momentum])
  number = sum(r.shape.num_elements() for r in results.momentum)
  return tf.math.is_finite(total), {'kinetic_temperature': total / number}
