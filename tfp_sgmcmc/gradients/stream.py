"""Minibatches from a `tf.data` pipeline, for data larger than memory."""

import tensorflow as tf

from tfp_sgmcmc.gradients import base
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import model_checks
from tfp_sgmcmc.internal import states

__all__ = ['Stream']

_EMPTY = (
    'The dataset is empty: at least one batch is needed. Look at what its '
    'filter() leaves, or whether batch(..., drop_remainder=True) asks for more '
    'than there is.')


class Stream(base.GradientEstimator):
  """The gradient on the next batch of a `tf.data.Dataset`.

    g = grad log p(theta) + N / n sum_{i in batch} grad log p(data_i | theta)

  with n the length of the batch. The estimate is unbiased if the pipeline
  shuffles: the user has to make batches that resemble draws from all the data.
  The dataset is repeated without end, one batch a step; all chains see the same
  batch.

  XLA cannot compile a `tf.data` pipeline: run the chain eagerly or in a
  `tf.function` without `jit_compile`. The position in the pipeline is not part
  of the chain's state, so the same seed gives the same chain only from a new
  `Stream` on a pipeline that is itself deterministic.

  #### Examples

  >>> x = tf.random.stateless_normal([1000], [0, 1])
  >>> dataset = tf.data.Dataset.from_tensor_slices(x).shuffle(1000).batch(50)
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x),
  ...     num_examples=1000)
  >>> kernel = sgmcmc.SGLD(
  ...     posterior, step_size=1e-4,
  ...     gradient_estimator=sgmcmc.gradients.Stream(dataset))
  >>> tfp.mcmc.sample_chain(
  ...     5, tf.zeros([]), kernel=kernel, trace_fn=None, seed=[0, 0]).shape
  TensorShape([5])
  """

  def __init__(self, dataset: tf.data.Dataset):
    """Makes the estimator.

    Args:
      dataset: `tf.data.Dataset` of batches: nested tensors with a leading axis
        of examples, as `log_likelihood_fn` takes them.

    Raises:
      TypeError: If `dataset` is not a `tf.data.Dataset` of dense tensors.
      ValueError: If it is empty, its elements are not batches, or a
        `tf.function` is being traced: the pipeline is to outlive it.
    """
    if not isinstance(dataset, tf.data.Dataset):
      raise TypeError(
          f'dataset is {dataset!r}, of type {type(dataset).__name__}: Stream '
          'reads a tf.data.Dataset. For tensors in memory use Uniform.')
    if tf.inside_function():
      raise ValueError(
          'Stream is made inside a tf.function, and the place in its pipeline '
          'has to live on between calls: make it, and the kernel, outside.')
    specs = tf.nest.flatten(dataset.element_spec)
    if not all(isinstance(spec, tf.TensorSpec) for spec in specs):
      raise TypeError(
          f'The elements of the dataset are {dataset.element_spec}, and dense '
          'tensors are needed: map ragged ones to value.to_tensor(), sparse '
          'ones to tf.sparse.to_dense(value).')
    shapes = [spec.shape for spec in specs if spec.shape.rank is not None]
    if any(shape.rank == 0 or 0 in shape[:1] for shape in shapes):
      raise ValueError(
          'The elements of the dataset have shapes '
          f'{[str(spec.shape) for spec in specs]}: each needs a leading axis '
          'of examples. Call dataset.batch(batch_size) first.')
    if dataset.cardinality() == 0:
      raise ValueError(_EMPTY)
    self._dataset = dataset
    self._iterator = iter(dataset.repeat())

  @property
  def compiles(self):
    return False

  @property
  def why_not_on_batches(self):
    return 'Leave it out, and pass the dataset to fit.'

  def one_step(
      self, target, state_parts, previous_results, seed, gaussian_step=None):
    del seed, gaussian_step
    if compat.in_xla_context():
      raise ValueError(
          'Stream reads a tf.data pipeline, which XLA cannot compile. Run the '
          'chain eagerly or in a tf.function without jit_compile=True; or, if '
          'the data fit in memory, use Uniform, which compiles.')
    try:
      batch = next(self._iterator)
    except StopIteration as error:
      raise ValueError(_EMPTY) from error
    try:
      value, gradients = states.value_and_gradients(
          lambda *parts: target.log_prob_estimate(*parts, batch=batch),
          state_parts)
    except (TypeError, tf.errors.InvalidArgumentError) as error:
      raise ValueError(model_checks.describe_error(
          error, state_parts, batch)) from error
    batch_size = compat.shape(tf.nest.flatten(batch)[0])[0]
    return base.GradientEstimate(value, gradients), base.count(
        previous_results, batch_size)
