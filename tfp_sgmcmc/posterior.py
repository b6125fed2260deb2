"""A posterior density: log prior, log likelihood of each example, and data.

  log p(theta | data) = log p(theta) + sum_{i=1}^N log p(data_i | theta) + const
"""

from collections.abc import Callable
from collections.abc import Sequence
import inspect
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import states

__all__ = ['Posterior', 'as_posterior', 'describe_error']

# How far the value of an example alone may be from that in a batch, relatively:
# much more than rounding, also where large terms cancel.
_TOLERANCE = 0.01


class Posterior:
  """The unnormalised log posterior density of a model of many examples.

  Calling it gives the exact value on all the data,

    log p(theta) + sum_{i=1}^N log p(data_i | theta),

  so that it is a `target_log_prob_fn` for any kernel of TensorFlow Probability.
  The kernels of this library also know its parts, and estimate its gradient
  from minibatches.

  #### Examples

  Logistic regression; `...` in the likelihood lets one function serve a single
  chain, many chains, and a minibatch for each chain:

  >>> x = tf.random.stateless_normal([1000, 3], [0, 1])
  >>> y = tf.cast(tf.reduce_sum(x, -1) > 0., tf.float32)
  >>> prior = tfd.MultivariateNormalDiag(tf.zeros(3))
  >>> def log_likelihood(theta, batch):
  ...   logits = tf.einsum('...nd,...d->...n', batch['x'], theta)
  ...   return tfd.Bernoulli(logits=logits).log_prob(batch['y'])
  >>> posterior = sgmcmc.Posterior(
  ...     prior.log_prob, log_likelihood, {'x': x, 'y': y})
  >>> posterior.num_examples
  1000
  >>> posterior(tf.zeros([5, 3])).shape
  TensorShape([5])
  """

  def __init__(
      self,
      log_prior_fn: Callable[..., tf.Tensor],
      log_likelihood_fn: Callable[..., tf.Tensor],
      data: Any = None,
      num_examples: int | None = None,
      example_state: Any = None,
  ):
    """Makes a posterior.

    Args:
      log_prior_fn: Callable of the parts of the state; returns the log prior
        density, one value a chain (shape `chains`; `[]` for a single one). A
        bound `log_prob` of a distribution will do.
      log_likelihood_fn: Callable `(*state_parts, batch)`; returns one log
        likelihood an example, shape `chains + [n]`. `batch` has the structure
        of `data`, its leaves the leading axis n, or `chains + [n]` where each
        chain has a minibatch of its own.
      data: Nested tensors (or NumPy arrays) with a common leading axis N. None
        where the data come from elsewhere (`gradients.Stream`); then
        `num_examples` is needed and the exact density is not to be had.
      num_examples: Python `int`, N; read off `data` by default. With both, the
        `data` count as a sample of a larger set: their likelihood is scaled by
        `num_examples` over their number.
      example_state: A state to try the functions on, at once, with a few
        examples. Where it is absent and `log_prior_fn` is the `log_prob` of a
        distribution, a draw from that serves; else the kernels try the state
        that they are started with.

    Raises:
      ValueError: If the data are empty, differ in their leading axis or hold
        NaN; or a function returns another shape than it has to, or a value of
        an example that depends on the other examples.
      TypeError: If an argument is of the wrong type.
    """
    for name, fn in (('log_prior_fn', log_prior_fn),
                     ('log_likelihood_fn', log_likelihood_fn)):
      if not callable(fn):
        raise TypeError(
            f'{name} is {fn!r}, of type {type(fn).__name__}: it has to be '
            'callable. Of a distribution, pass its log_prob.')
    self._log_prior_fn = log_prior_fn
    self._log_likelihood_fn = log_likelihood_fn
    self._data = None if data is None else _to_tensors(data)
    if num_examples is not None:
      self._num_examples = checks.positive_integer('num_examples', num_examples)
    elif data is None:
      raise ValueError(
          'There are neither data nor num_examples: without data, say how many '
          'examples there are in all, num_examples=..., which is what scales a '
          "minibatch's likelihood.")
    else:
      self._num_examples = self.num_rows
    if example_state is not None:
      self.check_state(states.to_parts(example_state))
    else:
      self._check_prior_draw()

  @property
  def data(self) -> Any:
    """The data as nested tensors, or None."""
    return self._data

  @property
  def num_examples(self) -> int:
    """N, the number of examples."""
    return self._num_examples

  @property
  def num_rows(self) -> Any:
    """The number of examples in `data`: N, unless they are a sample of more.

    An `int`; a tensor where it is only known when a graph runs, as that of the
    batches of a pipeline.
    """
    leaf = tf.nest.flatten(self.data)[0]
    return tf.shape(leaf)[0] if leaf.shape[0] is None else leaf.shape[0]

  @property
  def is_sharded(self) -> bool:
    """Whether the data are shared out among devices."""
    return False

  @property
  def total_rows(self) -> Any:
    """`num_rows`; of data shared out among devices, that of all together."""
    return self.num_rows

  @property
  def has_examples(self) -> bool:
    """Whether it is a sum over examples; a plain function is none."""
    return True

  def sum_over_rows(self, values: tf.Tensor) -> tf.Tensor:
    """The sum of a value for each row: `chains + [n]` to `chains`."""
    return tf.reduce_sum(values, axis=-1)

  def own_share(self, number: int) -> int:
    """How many rows of a minibatch this device draws: all, or its share."""
    return number

  def own_seed(self, seed: tf.Tensor) -> tf.Tensor:
    """The seed of what this device draws of its own rows."""
    return seed

  def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The sums over devices; the tensors themselves on a single one."""
    return list(tensors)

  def __call__(self, *state_parts: tf.Tensor) -> tf.Tensor:
    """The exact log density, on all the data.

    Args:
      *state_parts: The parts of the state.

    Returns:
      log_prob: One value a chain.

    Raises:
      ValueError: If the posterior has no data, or a function returns another
        shape than it has to.
    """
    if self.data is None:
      raise ValueError(
          'This posterior holds no data (data=None), so its exact density '
          'cannot be computed. Use an estimator that brings its own '
          'minibatches (gradients.Stream), or pass data.')
    return self.log_prob_estimate(*state_parts, batch=self.data)

  def log_prior(self, *state_parts: tf.Tensor) -> tf.Tensor:
    """The log prior density, one value a chain."""
    return tf.convert_to_tensor(self._log_prior_fn(*_new(state_parts)))

  def zeros(self, state_parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """A zero for each chain, in the dtype of the log density.

    Its shape is that of the chains, the leading axes that all parts share. It
    is read off the log prior, of which compiled code keeps the shape alone.

    Args:
      state_parts: List of float tensors.

    Returns:
      zeros: Tensor of shape `chains`.
    """
    return tf.zeros_like(self.log_prior(*state_parts))

  def log_likelihood(self, *state_parts: tf.Tensor, batch: Any) -> tf.Tensor:
    """The log likelihood of each example of a batch, `chains + [n]`."""
    return tf.convert_to_tensor(
        self._log_likelihood_fn(*_new(state_parts), batch))

  def log_likelihood_estimate(
      self,
      *state_parts: tf.Tensor,
      batch: Any,
      weights: tf.Tensor | None = None,
  ) -> tf.Tensor:
    """Estimates the log likelihood of all the data from a batch.

      sum_{i in batch} w_i log p(data_i | theta)

    Args:
      *state_parts: The parts of the state.
      batch: As `log_prob_estimate` takes it.
      weights: Float tensor, w, `[n]` or `chains + [n]`: for how many of the N
        examples each one stands. Default: N / n each.

    Returns:
      log_likelihood: One value a chain.
    """
    return self._weighted_sum(
        self.log_likelihood(*state_parts, batch=batch), weights)

  def log_prob_estimate(
      self,
      *state_parts: tf.Tensor,
      batch: Any,
      weights: tf.Tensor | None = None,
  ) -> tf.Tensor:
    """Estimates the log density from a batch of n examples.

      log p(theta) + sum_{i in batch} w_i log p(data_i | theta)

    Args:
      *state_parts: The parts of the state.
      batch: Examples in the structure of the data, leading axis n or
        `chains + [n]`.
      weights: Float tensor, w, `[n]` or `chains + [n]`: for how many of the N
        examples each one stands. Default: N / n each.

    Returns:
      log_prob: One value a chain.

    Raises:
      ValueError: If a function returns another shape than it has to.
    """
    state_parts = [tf.convert_to_tensor(part) for part in state_parts]
    batch = tf.nest.map_structure(tf.convert_to_tensor, batch)
    log_prior = self.log_prior(*state_parts)
    log_likelihood = self.log_likelihood(*state_parts, batch=batch)
    self._check_shapes(state_parts, batch, log_prior, log_likelihood)
    return log_prior + self._weighted_sum(log_likelihood, weights)

  def _weighted_sum(self, log_likelihood, weights):
    if weights is not None:
      weights = tf.cast(weights, log_likelihood.dtype)
      return tf.reduce_sum(weights * log_likelihood, axis=-1)
    batch_size = tf.cast(
        compat.shape(log_likelihood)[-1], log_likelihood.dtype)
    scale = self._num_examples / batch_size
    return scale * tf.reduce_sum(log_likelihood, axis=-1)

  def gather(self, indices: tf.Tensor) -> Any:
    """The examples at `indices`, in the structure of the data."""
    return tf.nest.map_structure(
        lambda leaf: tf.gather(leaf, indices), self.data)

  def transform(self, bijector: Any) -> 'Posterior':
    """The posterior of unconstrained parameters.

    With theta = b(phi), the density of phi is

      log p(b(phi) | data) + log |det db/dphi|,

    the Jacobian counted once, whatever the minibatch. States of chains on the
    result are unconstrained; `bijector.forward` maps draws back.

    Args:
      bijector: A `tfp.bijectors.Bijector` from unconstrained to constrained
        parameters, or a list of them, one for each part of the state.

    Returns:
      posterior: A `Posterior` on the same data.

    Raises:
      TypeError: If `bijector` is not a bijector or a list of them.

    #### Examples

    The scale of a normal sample, sampled through its logarithm:

    >>> posterior = sgmcmc.Posterior(
    ...     tfd.HalfNormal(5.).log_prob,
    ...     lambda scale, x: tfd.Normal(0., scale[..., tf.newaxis]).log_prob(x),
    ...     data=tf.constant([1., -2., 3.]))
    >>> unconstrained = posterior.transform(tfb.Exp())
    >>> difference = unconstrained(tf.constant(0.5)) - posterior(tf.exp(0.5))
    >>> round(float(difference), 4)
    0.5
    """
    is_list = isinstance(bijector, (list, tuple))
    bijectors = list(bijector) if is_list else [bijector]
    for b in bijectors:
      if not isinstance(b, tfp.bijectors.Bijector):
        raise TypeError(
            f'{b!r} is not a tfp.bijectors.Bijector. Pass one bijector, or a '
            'list with one for each part of the state.')

    functions = _Unconstrained(self.log_prior, self.log_likelihood, bijectors)
    return Posterior(
        functions.log_prior, functions.log_likelihood, self.data,
        self._num_examples)

  def check_state(self, state_parts: Sequence[tf.Tensor]) -> None:
    """Tries both functions on a state and a few examples.

    Where the posterior holds no data, only how many arguments they take.

    Args:
      state_parts: List of float tensors.

    Raises:
      ValueError: If a function raises, or returns another shape than it has to.
    """
    self._check_number(state_parts)
    if self.data is None:
      return
    batch = self._few_examples(state_parts)
    try:
      log_prior = self.log_prior(*state_parts)
      log_likelihood = self.log_likelihood(*state_parts, batch=batch)
    except Exception as error:
      raise ValueError(describe_error(error, state_parts, batch)) from error
    self._check_shapes(state_parts, batch, log_prior, log_likelihood)
    self._check_alone(state_parts, batch, log_likelihood)

  def _check_prior_draw(self):
    """Tries a draw of the prior, where `log_prior_fn` is one's `log_prob`."""
    distribution = getattr(self._log_prior_fn, '__self__', None)
    if self.data is None or not isinstance(
        distribution, tfp.distributions.Distribution):
      return
    try:
      state_parts = tf.nest.flatten(
          distribution.sample(seed=tf.constant([0, 0], tf.int32)))
      batch = self._few_examples(state_parts)
      log_prior = self.log_prior(*state_parts)
      log_likelihood = self.log_likelihood(*state_parts, batch=batch)
    except Exception:  # pylint: disable=broad-except
      return  # The functions may be written for states with chain axes only.
    self._check_shapes(state_parts, batch, log_prior, log_likelihood)
    self._check_alone(state_parts, batch, log_likelihood)

  @property
  def _functions(self):
    """The functions of the state by name, with their further arguments."""
    return {
        'log_prior_fn': (self._log_prior_fn, 0),
        'log_likelihood_fn': (self._log_likelihood_fn, 1)}

  def _check_number(self, state_parts):
    """Raises where the functions do not take so many parts."""
    number = len(state_parts)
    for name, (fn, more) in self._functions.items():
      if not _takes(fn, number + more):
        raise ValueError(
            f'The state has {number} part(s), {_describe(state_parts)}, and '
            f'{name} does not take {number + more} argument(s): each part of '
            f'the state is one{", the batch the last" if more else ""}. Pass '
            'a state with a part for each argument, or a function that takes '
            'them all. (A joint prior of several parts is '
            'tfd.JointDistributionSequential([...]).log_prob.)')

  def _check_alone(self, state_parts, batch, log_likelihood):
    """Raises where the value of an example depends on the other examples.

    Such are a sum or a mean over examples that has been broadcast again, and
    what is divided by the length of the batch: shapes do not show them.
    """
    if not tf.executing_eagerly():
      return
    first = tf.nest.map_structure(lambda leaf: leaf[:1], batch)
    try:
      alone = self.log_likelihood(*state_parts, batch=first).numpy()
    except Exception:  # pylint: disable=broad-except
      return  # The function may be written for longer batches only.
    values = log_likelihood.numpy()
    if alone.shape != (*values.shape[:-1], 1):
      return
    among = values[..., :1]
    with np.errstate(invalid='ignore'):
      far = np.abs(among - alone) > (
          _TOLERANCE * np.maximum(np.abs(among), np.abs(alone))
          + 0.1 * _TOLERANCE * np.max(np.abs(values)))
    if np.any(far):
      k = tuple(np.argwhere(far)[0])
      raise ValueError(
          f'log_likelihood_fn returned {among[k]:.6g} for the first example in '
          f'a batch of {values.shape[-1]}, and {alone[k]:.6g} for the same '
          'example on its own. The value of an example may not depend on the '
          'others, nor be random: do not sum or average over examples, do not '
          'divide by the length of the batch, and normalize the data before '
          'they are passed.')

  def _few_examples(self, state_parts):
    """A batch whose length is no other axis' length, to show a wrong axis."""
    lengths = {length for part in state_parts for length in part.shape}
    for leaf in tf.nest.flatten(self.data):
      lengths.update(leaf.shape[1:])
    batch_size = next(n for n in range(2, len(lengths) + 3) if n not in lengths)
    return tf.nest.map_structure(lambda leaf: leaf[:batch_size], self.data)

  def _check_shapes(self, state_parts, batch, log_prior, log_likelihood):
    """Raises where the shapes are not `chains` and `chains + [n]`."""
    chains = log_prior.shape
    if any(not part.shape[:chains.rank].is_compatible_with(chains)
           or part.shape.rank < chains.rank for part in state_parts):
      raise ValueError(
          f'log_prior_fn returned shape {chains} for a state of '
          f'{_describe(state_parts)}. It has to return one value a chain: the '
          'leading axes that all parts of the state share, [] for a single '
          'chain. A prior over a vector has to sum over it: '
          'tfd.Independent(...), tfd.Sample(...) or tf.reduce_sum.')
    leaf = tf.nest.flatten(batch)[0]
    batch_axis = 0
    if self.data is not None:
      batch_axis = leaf.shape.rank - tf.nest.flatten(self.data)[0].shape.rank
    wanted = chains + leaf.shape[batch_axis:batch_axis + 1]
    # One value where the length of the batch is known when it runs: a sum.
    is_one = wanted[-1] is None and log_likelihood.shape[-1:] == [1]
    if is_one or not log_likelihood.shape.is_compatible_with(wanted):
      raise ValueError(
          f'log_likelihood_fn returned shape {log_likelihood.shape}, and '
          f'{wanted} is needed: chains {chains} (the shape of the log prior) '
          f'and one value for each example. The state was '
          f'{_describe(state_parts)}, the batch {_describe(batch)}. Do not sum '
          'or average over examples; for several outputs an example, sum over '
          'these; for several chains, let the chains be leading axes '
          "(tf.einsum('...nd,...d->...n', x, theta)).")


class _Unconstrained:
  """The two functions of a posterior, of unconstrained parameters."""

  def __init__(self, log_prior, log_likelihood, bijectors):
    self._log_prior, self._log_likelihood = log_prior, log_likelihood
    self._bijectors = bijectors

  def log_prior(self, *phi):
    log_density = self._log_prior(*self._forward(phi))
    for b, part in zip(self._bijectors, phi):
      log_density += b.forward_log_det_jacobian(
          part, event_ndims=part.shape.rank - log_density.shape.rank)
    return log_density

  def log_likelihood(self, *phi_and_batch):
    *phi, batch = phi_and_batch
    return self._log_likelihood(*self._forward(phi), batch=batch)

  def _forward(self, phi):
    if len(self._bijectors) != len(phi):
      raise ValueError(
          f'There are {len(self._bijectors)} bijectors for a state of '
          f'{len(phi)} part(s): one is needed for each part.')
    return [b.forward(part) for b, part in zip(self._bijectors, phi)]


class _Density(Posterior):
  """The log density of a plain function: one term, and no examples.

  It has a `Posterior`'s interface, so that kernels and estimators need not ask
  which of the two they have got.
  """

  def __init__(self, log_prob_fn):
    self._log_prior_fn = log_prob_fn
    self._data = None
    self._num_examples = 1

  @property
  def _functions(self):
    return {'target_log_prob_fn': (self._log_prior_fn, 0)}

  @property
  def num_rows(self):
    return 1

  @property
  def has_examples(self):
    return False

  def __call__(self, *state_parts):
    return self.log_prior(*state_parts)


def as_posterior(target: Posterior | Callable[..., tf.Tensor]) -> Posterior:
  """A `Posterior` as it is; a plain function as one without examples.

  Args:
    target: `Posterior`, or a callable of the state's parts that returns the log
      density, one value a chain.

  Returns:
    posterior: `Posterior`.

  Raises:
    TypeError: If the target is neither.
  """
  if isinstance(target, Posterior):
    return target
  if not callable(target):
    raise TypeError(
        f'target_log_prob_fn is {target!r}: it has to be a Posterior or a '
        'callable that returns the log density of a state.')
  return _Density(target)


def describe_error(
    error: Exception, state_parts: Sequence[tf.Tensor], batch: Any) -> str:
  """What to say of an error that a function of the user's has raised.

  Args:
    error: The error.
    state_parts: List of tensors that the functions got.
    batch: The examples that they got.

  Returns:
    message: `str`.
  """
  floats = {
      leaf.dtype for leaf in tf.nest.flatten(batch) if leaf.dtype.is_floating}
  others = floats - {part.dtype for part in state_parts}
  hint = ''
  if others:
    wanted = state_parts[0].dtype.name
    hint = (
        f' The state is {wanted}, and the data are {others.pop().name}: '
        f'convert them once, tf.cast(..., tf.{wanted}) (in a pipeline, '
        'dataset.map(...)), or start from a state of their dtype.')
  return (
      'log_prior_fn or log_likelihood_fn raised '
      f'{type(error).__name__} for a state of {_describe(state_parts)} and '
      f'a batch of {_describe(batch)}: {error}{hint}')


def _new(state_parts):
  """New tensors: of the old, a bijector's cache may hold another graph's."""
  return [tf.identity(part) for part in state_parts]


def _to_tensors(data):
  """`data` as tensors with a common leading axis, or an error."""
  if isinstance(data, tf.data.Dataset):
    raise TypeError(
        'The data are a tf.data.Dataset, and tensors are needed. For a '
        'pipeline give num_examples=... in place of data, and '
        'gradient_estimator=gradients.Stream(dataset) to the kernel.')
  if inspect.isgenerator(data):
    raise TypeError(
        'The data are a generator, and tensors are needed: pass '
        'tf.stack(list(data)), or read a tf.data.Dataset with '
        'gradients.Stream.')
  leaves = tf.nest.flatten(data)
  if not leaves:
    raise ValueError('The data are an empty structure: there are no tensors.')
  names = _names(data)
  # Outside any function being traced: an array would become a constant of it.
  with tf.init_scope():
    tensors = [checks.to_tensor(*pair) for pair in zip(names, leaves)]
  shapes = [tensor.shape for tensor in tensors]
  if any(shape.rank == 0 for shape in shapes):
    raise ValueError(
        f'The data have leaves of shapes {[str(s) for s in shapes]}: each leaf '
        'needs a leading axis of examples.')
  lengths = [shape[0] for shape in shapes]
  if len(set(lengths)) > 1:
    raise ValueError(
        f'The leaves of the data have different leading axes, {lengths}: they '
        'have to hold the same number of examples, N, along the first axis. '
        f'The shapes are {[str(s) for s in shapes]}.')
  if lengths[0] == 0:
    raise ValueError(
        f'The data are empty: leaves of shapes {[str(s) for s in shapes]}. At '
        'least one example is needed.')
  if tf.executing_eagerly():  # In a traced function it would cost each step.
    for name, tensor in zip(names, tensors):
      _check_nan(name, tensor)
  return tf.nest.pack_sequence_as(data, tensors)


def _check_nan(name, leaf):
  """Raises where a leaf of the data holds NaN; infinities are the user's."""
  if not leaf.dtype.is_floating:
    return
  is_nan = tf.math.is_nan(leaf)
  if not tf.reduce_any(is_nan):
    return
  is_nan = is_nan.numpy()
  row = np.argmax(is_nan.reshape([len(is_nan), -1]).any(axis=1))
  raise ValueError(
      f'{name} holds NaN: {np.count_nonzero(is_nan):,} of {is_nan.size:,} '
      f'values, the first in row {row}. Each would make the log density NaN. '
      'Leave these examples out; or, for missing values, put numbers in their '
      'place and a mask beside them.')


def _names(data):
  """What each leaf of the data is called in messages, as in Python."""
  def names(prefix, nest):
    if isinstance(nest, dict):
      return [n for key in sorted(nest)
              for n in names(f'{prefix}[{key!r}]', nest[key])]
    if isinstance(nest, (list, tuple)):
      fields = getattr(nest, '_fields', None)
      return [n for k, value in enumerate(nest) for n in names(
          f'{prefix}.{fields[k]}' if fields else f'{prefix}[{k}]', value)]
    return [prefix]

  found, number = names('data', data), len(tf.nest.flatten(data))
  if len(found) == number:
    return found
  return [f'leaf {k} of the data' for k in range(number)]


def _takes(fn, number):
  """Whether a function takes so many arguments, as far as it can be known."""
  distribution = getattr(fn, '__self__', None)
  if isinstance(distribution, tfp.distributions.Distribution) and (
      fn.__name__ == 'log_prob'
      and not isinstance(distribution, tfp.distributions.JointDistribution)):
    return number == 1  # Its other arguments are no parts.
  try:
    signature = inspect.signature(fn)
  except (TypeError, ValueError):
    return True
  try:
    signature.bind(*range(number))
  except TypeError:
    return False
  return True


def _describe(tensors):
  """Shapes and dtypes of nested tensors, for a message."""
  described = tf.nest.map_structure(
      lambda t: f'{t.dtype.name}{t.shape.as_list()}', tensors)
  return str(described).replace("'", '')
