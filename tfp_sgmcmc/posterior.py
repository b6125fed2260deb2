"""A posterior density: log prior, log likelihood of each example, and data.

  log p(theta | data) = log p(theta) + sum_{i=1}^N log p(data_i | theta) + const
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
import warnings

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import draws as draws_lib
from tfp_sgmcmc import joint_model
from tfp_sgmcmc import mode as mode_lib
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import examples
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import model_checks
from tfp_sgmcmc.internal import parameters
from tfp_sgmcmc.internal import rows
from tfp_sgmcmc.internal import seeds
from tfp_sgmcmc.internal import states

__all__ = ['Posterior', 'as_posterior']


class Posterior:
  """The unnormalised log posterior density of a model of many examples.

  Calling it returns the exact value on all the data,

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

  # Whether, where code runs eagerly, data are searched for NaN and the value of
  # an example is tried on its own: not where a posterior is made at each step.
  _looks_at_values = True
  # A state on which both functions were tried when this was made, in words.
  _tried = None

  def __init__(
      self,
      log_prior_fn: Callable[..., tf.Tensor],
      log_likelihood_fn: Callable[..., tf.Tensor],
      data: hints.Data = None,
      *,
      num_examples: int | None = None,
      example_state: hints.State | None = None,
  ):
    """Makes a posterior.

    Args:
      log_prior_fn: Callable of the parts of the state; returns the log prior
        density, one value a chain (shape `chains`; `[]` for a single chain). A
        distribution's bound method `log_prob` will do.
      log_likelihood_fn: Callable `(*state_parts, batch)`; returns one log
        likelihood an example, shape `chains + [n]`. `batch` has the structure
        of `data`, its leaves the leading axis n, or `chains + [n]` where each
        chain has a minibatch of its own.
      data: Nested tensors (or NumPy arrays) with a common leading axis N. None
        if the data come from elsewhere (`gradients.Stream`); then
        `num_examples` is needed and the exact density is not available.
      num_examples: Python `int`, N; read off `data` by default. With both, the
        `data` are a sample of a larger set: their likelihood is multiplied by
        `num_examples` over the number of rows.
      example_state: A state to try the functions on, at once, with a few
        examples. By default a draw of the distribution whose `log_prob` is
        `log_prior_fn`; if `log_prior_fn` is another function, the kernels try
        the state that they are started with.

    Raises:
      ValueError: If the data are empty, differ in their leading axis or hold
        NaN; or a function returns a wrong shape, or a value of an example that
        depends on the other examples.
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
    self._parameters: Any = parameters.of_state(log_prior_fn)
    self._data = None if data is None else examples.to_tensors(
        data, self._looks_at_values)
    if num_examples is not None:
      self._num_examples = checks.positive_integer('num_examples', num_examples)
      if (data is not None and self._looks_at_values
          and isinstance(self.num_rows, int)
          and num_examples < self.num_rows):
        warnings.warn(
            f'num_examples is {num_examples}, and the data have '
            f'{self.num_rows} rows: each row counts as '
            f'{num_examples / self.num_rows:.3g} examples, and the posterior '
            'is wider for it. Leave num_examples out, unless rows are repeated '
            'or augmented: then it is the number of different examples.',
            stacklevel=2)
    elif data is None:
      raise ValueError(
          'There are neither data nor num_examples: without data, say how many '
          'examples there are in all, num_examples=..., which is what scales a '
          "minibatch's likelihood.")
    else:
      self._num_examples = self.num_rows
    if example_state is not None:
      parts = states.to_parts(example_state)
      self.check_state(parts)
      self._tried = f'{model_checks.describe(parts)}, the example_state'
    else:
      self._check_prior_draw()

  @classmethod
  def from_joint_distribution(
      cls,
      joint: tfp.distributions.JointDistribution,
      data: dict[str, Any],
      covariates: hints.Nested = None,
      num_examples: int | None = None,
  ) -> 'Posterior':
    """The posterior of a `tfd.JointDistribution`, given its observed parts.

    The parts that are not observed, theta, are sampled through unconstrained
    ones: theta = b(phi), b the default bijector of the model's event space.

      log p(phi | y) = log p(b(phi)) + log |det db/dphi|
                       + sum_{i=1}^N log p(y_i | b(phi)) + const.

    A state is the list of the parts of phi, in the model's order (of a dict:
    that of its sorted keys). `sample_prior` draws states to start from, and
    `constrain` maps draws back. Write the model for one theta, without axes of
    chains: `tf.vectorized_map` goes over these.

    Args:
      joint: `tfd.JointDistribution` of any kind. If examples have covariates, a
        callable of the covariates that returns a joint distribution for these
        examples, their axis first. The pins of a pinned distribution
        (`experimental_pin`) are constants.
      data: Dict, the observed parts by name, each with a leading axis of N
        examples.
      covariates: Nested tensors with the same leading axis. None if examples
        differ only in their values; then the observed parts are
        `tfd.Sample(one_example, N)`, or the distribution of one example.
      num_examples: As for `Posterior`.

    Returns:
      posterior: `Posterior`.

    Raises:
      ValueError: If the likelihood cannot be told apart by example, there is a
        parameter for each example, the prior depends on the examples, a part to
        be sampled is discrete, or a name is not in the model.
      TypeError: If an argument is of the wrong type.

    #### Examples

    Ten groups whose means have a common mean and scale, both unknown:

    >>> group = tf.random.stateless_uniform([500], [0, 1], 0, 10, tf.int32)
    >>> noise = tf.random.stateless_normal([500], [0, 2])
    >>> y = tf.cast(group, tf.float32) + noise
    >>> def model(group):
    ...   return tfd.JointDistributionNamed(dict(
    ...       mu=tfd.Normal(0., 10.),
    ...       tau=tfd.HalfNormal(10.),
    ...       means=lambda mu, tau: tfd.Sample(tfd.Normal(mu, tau), 10),
    ...       y=lambda means: tfd.Independent(
    ...           tfd.Normal(tf.gather(means, group), 1.), 1)))
    >>> posterior = sgmcmc.Posterior.from_joint_distribution(
    ...     model, {'y': y}, covariates=group)
    >>> start = posterior.sample_prior([4], seed=1)
    >>> [part.shape.as_list() for part in start]
    [[4, 10], [4], [4]]
    >>> {k: v.shape.as_list() for k, v in posterior.constrain(start).items()}
    {'tau': [4], 'mu': [4], 'means': [4, 10]}
    """
    model = joint_model.JointModel(joint, data, covariates)
    posterior = cls(
        model.log_prior, model.log_likelihood, model.data,
        num_examples=num_examples)
    posterior._parameters = model
    posterior.check_state(posterior.sample_prior(seed=0))
    return posterior

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

  def log_likelihood(
      self,
      *state_parts: tf.Tensor,
      batch: hints.Nested,
  ) -> tf.Tensor:
    """The log likelihood of each example of a batch, `chains + [n]`."""
    return tf.convert_to_tensor(
        self._log_likelihood_fn(*_new(state_parts), batch))

  def log_likelihood_estimate(
      self,
      *state_parts: tf.Tensor,
      batch: hints.Nested,
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
      batch: hints.Nested,
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
    state_parts = tuple(map(tf.convert_to_tensor, state_parts))
    batch = tf.nest.map_structure(tf.convert_to_tensor, batch)
    log_prior = self.log_prior(*state_parts)
    log_likelihood = self.log_likelihood(*state_parts, batch=batch)
    model_checks.check_shapes(
        self.data, state_parts, batch, log_prior, log_likelihood)
    return log_prior + self._weighted_sum(log_likelihood, weights)

  def _weighted_sum(self, log_likelihood, weights):
    if weights is not None:
      weights = tf.cast(weights, log_likelihood.dtype)
      return tf.reduce_sum(weights * log_likelihood, axis=-1)
    batch_size = tf.cast(
        compat.shape(log_likelihood)[-1], log_likelihood.dtype)
    scale = self._num_examples / batch_size
    return scale * tf.reduce_sum(log_likelihood, axis=-1)

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

  def transform(self, bijector: tfp.bijectors.Bijector) -> 'Posterior':
    """The posterior of unconstrained parameters.

    With theta = b(phi), the density of phi is

      log p(b(phi) | data) + log |det db/dphi|,

    with the Jacobian included once, for any minibatch. States of chains on the
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

    return self._of(parameters.of_bijectors(self, bijectors, is_list))

  def whiten(
      self,
      mode: Any,
      *,
      num_rows: int | None = None,
      seed: hints.Seed = None,
  ) -> 'Posterior':
    """The posterior in coordinates in which it is nearly a standard normal.

      theta = mode + L phi,   L L^T = (-H)^(-1),

    H the Hessian of the log density at the mode, of all coordinates of all
    parts. Correlated parameters, and parameters of unequal scales, become
    alike. So does the noise of minibatches, where the likelihood fits: its
    covariance is near that of -H. A state is one vector phi, `[..., d]`, and
    chains can start at zero; `constrain` makes parameters of draws.

    It takes as many passes over the data as there are coordinates.

    Args:
      mode: A state without axes of chains, as `mode` returns it.
      num_rows: Python `int`, if all the data are too many for these passes:
        this many rows, drawn once, represent all of them.
      seed: Python `int` or stateless seed, of the rows.

    Returns:
      posterior: A `Posterior` on the same data.

    Raises:
      ValueError: If the density does not fall in each direction from there, the
        parts have several dtypes, there are above 5,000 coordinates; and as
        `mode` does.

    #### Examples

    A straight line far from the origin, whose two coefficients have a
    correlation of -0.995. Near the mode the density of phi is that of a
    standard normal:

    >>> x = 10. + tf.random.stateless_normal([1000], [0, 1])
    >>> y = 1. + 2. * x + tf.random.stateless_normal([1000], [0, 2])
    >>> def log_likelihood(theta, batch):
    ...   location = theta[..., :1] + theta[..., 1:] * batch['x']
    ...   return tfd.Normal(location, 1.).log_prob(batch['y'])
    >>> posterior = sgmcmc.Posterior(
    ...     tfd.MultivariateNormalDiag(tf.zeros(2), [10., 10.]).log_prob,
    ...     log_likelihood, {'x': x, 'y': y})
    >>> white = posterior.whiten(posterior.mode(seed=0))
    >>> phi = tf.constant([[0., 0.], [2., 0.], [0., 2.]])
    >>> [round(float(value), 1) for value in white(phi) - white(phi[0])]
    [0.0, -2.0, -2.0]
    >>> intercept, slope = white.constrain(phi)[0]
    >>> 0. < float(intercept) < 2., 1.9 < float(slope) < 2.1
    (True, True)
    """
    parts, factor = mode_lib.factor(
        self, mode, num_rows, seeds.to_stateless(seed))
    return self._of(parameters.of_white(
        self, parts, factor, isinstance(mode, (list, tuple))))

  def _of(self, functions):
    """The posterior on the same data of other parameters."""
    posterior = Posterior(
        functions.log_prior, functions.log_likelihood, self.data,
        num_examples=self._num_examples)
    posterior._parameters = functions
    return posterior

  @property
  def part_names(self) -> list[str] | None:
    """A name for each part of the state: those of a joint distribution."""
    return self._parameters.part_names

  def constrain(self, state: hints.State) -> Any:
    """The parameters that the prior is a density of, from a state or draws.

    For `from_joint_distribution` these are the parts of the model, in its
    structure; for `transform` the bijector's `forward` of the state; for
    `whiten` mode + L phi; otherwise the state itself.

    Args:
      state: Tensor or list of tensors, with any leading axes (draws, chains).

    Returns:
      parameters: In the structure of the model.
    """
    return self._parameters.constrain(state)

  def sample_prior(
      self, sample_shape: Sequence[int] = (), seed: hints.Seed = None) -> Any:
    """Draws states from the prior, to start chains from.

    Args:
      sample_shape: List of `int`, the axes of chains; an `int` for one axis.
      seed: Python `int` or a stateless seed. Default: another at each call.

    Returns:
      state: In the form of the state, `sample_shape` in front.

    Raises:
      ValueError: If the prior is a plain function, from which nothing can be
        drawn; or a length is negative.
      TypeError: If a length is not an integer.
    """
    shape = [
        checks.non_negative_integer(f'sample_shape[{k}]', length)
        for k, length in enumerate(
            sample_shape if np.ndim(sample_shape) else [sample_shape])]
    return self._parameters.sample_prior(shape, seeds.to_stateless(seed))

  def sample_predictive(
      self,
      draws: hints.Nested,
      covariates: hints.Nested = None,
      *,
      seed: hints.Seed = None,
  ) -> dict[str, Any]:
    """Draws observed parts of a joint distribution, one for each draw.

      y* ~ p(y* | b(phi_s))

    With draws phi_s of the posterior these are draws of the posterior
    predictive distribution: of new examples or, with the covariates of the
    data, of replicated data, to compare with the data. Draws of the prior
    (`sample_prior`) give the prior predictive.

    Args:
      draws: `Draws`, which are taken at equal weights, or states, with any
        leading axes (draws, chains).
      covariates: Nested tensors with those of n examples, in the structure of
        the data's. None for those of the data, or where there are none.
      seed: Python `int` or a stateless seed. Default: another at each call.

    Returns:
      samples: Dict of the observed parts by name, `[draws, ..., n, ...]`; of a
        model without covariates as many examples as it has.

    Raises:
      ValueError: If the posterior is of no joint distribution, or the
        covariates are not in the structure of the data's.

    #### Examples

    A straight line through the origin:

    >>> x = tf.random.stateless_normal([100], [0, 1])
    >>> y = 2. * x + tf.random.stateless_normal([100], [0, 2])
    >>> posterior = sgmcmc.Posterior.from_joint_distribution(
    ...     lambda x: tfd.JointDistributionNamed(dict(
    ...         slope=tfd.Normal(0., 10.),
    ...         y=lambda slope: tfd.Independent(tfd.Normal(slope * x, 1.), 1))),
    ...     {'y': y}, covariates=x)
    >>> draws = sgmcmc.sample(
    ...     sgmcmc.SGLD(posterior, step_size=0.001), 500,
    ...     posterior.sample_prior([4], seed=0), num_burnin_steps=100,
    ...     progress_bar=False, seed=1)
    >>> new = posterior.sample_predictive(draws, tf.constant([3.]), seed=2)
    >>> new['y'].shape, 5. < float(tf.reduce_mean(new['y'])) < 7.
    (TensorShape([500, 4, 1]), True)
    """
    if isinstance(draws, draws_lib.Draws):
      draws = draws.resampled().states
    return self._parameters.sample_predictive(
        states.to_parts(draws), covariates, seeds.to_stateless(seed))

  def mode(
      self,
      start: hints.State | None = None,
      *,
      num_rows: int | None = None,
      seed: hints.Seed = None,
  ) -> Any:
    """The state of the largest density, by L-BFGS on all parts together.

    It is the mode of the density that chains sample: for `transform` and
    `from_joint_distribution` in unconstrained parameters, the Jacobian
    included. If a density has several modes, it finds one near the start.

    Args:
      start: A state without axes of chains: a tensor or a list of tensors.
        Default: a draw from the prior.
      num_rows: Python `int`, if all the data are too many for one pass: this
        many rows, drawn once, represent all of them. The error of the mode is
        then as large as the width of the posterior of these rows.
      seed: Python `int` or stateless seed, of the draw and of the rows.

    Returns:
      mode: In the form of `start`.

    Raises:
      ValueError: If the density is not finite at the start, the start has axes
        of chains, there are fewer than `num_rows` rows, or data are divided
        among devices.

    #### Examples

    A straight line with unknown noise, its scale through its logarithm:

    >>> x = tf.linspace(-1., 1., 100)
    >>> y = 2. * x + 0.1 * tf.random.stateless_normal([100], [0, 1])
    >>> def log_likelihood(slope, log_scale, batch):
    ...   return tfd.Normal(
    ...       slope[..., tf.newaxis] * batch['x'],
    ...       tf.exp(log_scale)[..., tf.newaxis]).log_prob(batch['y'])
    >>> posterior = sgmcmc.Posterior(
    ...     lambda slope, log_scale: tfd.Normal(0., 10.).log_prob(slope)
    ...     + tfd.Normal(0., 10.).log_prob(log_scale),
    ...     log_likelihood, {'x': x, 'y': y})
    >>> slope, log_scale = posterior.mode([0., 0.])
    >>> abs(float(slope) - 2.) < 0.1, 0.08 < float(tf.exp(log_scale)) < 0.12
    (True, True)
    """
    return mode_lib.find(self, start, num_rows, seeds.to_stateless(seed))

  def variances(
      self,
      mode: Any,
      *,
      num_rows: int | None = None,
      seed: hints.Seed = None,
  ) -> Any:
    """The variance of each coordinate by the curvature at the mode.

      1 / (-d^2 log p / dtheta_k^2), the other coordinates fixed.

    They are scales for `preconditioners.Diagonal`, which makes one step size
    fit parameters of unequal scales. It takes as many passes over the data as
    there are coordinates.

    Args:
      mode: A state without axes of chains, as `mode` returns it.
      num_rows: Python `int`, if all the data are too many for these passes:
        this many rows, drawn once, represent all of them.
      seed: Python `int` or stateless seed, of the rows.

    Returns:
      variances: In the form of `mode`.

    Raises:
      ValueError: If the density does not fall along some coordinate; and as
        `mode` does.

    #### Examples

    A mean with a hundred rows, and a mean with only its prior:

    >>> posterior = sgmcmc.Posterior(
    ...     lambda a, b: tfd.Normal(0., 10.).log_prob(a)
    ...     + tfd.Normal(0., 1.).log_prob(b),
    ...     lambda a, b, y: tfd.Normal(a[..., tf.newaxis], 1.).log_prob(y),
    ...     tf.zeros(100))
    >>> variances = posterior.variances(posterior.mode([1., 1.]))
    >>> [round(float(variance), 4) for variance in variances]
    [0.01, 1.0]
    """
    return mode_lib.variances(self, mode, num_rows, seeds.to_stateless(seed))

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
  def has_examples(self) -> bool:
    """Whether it is a sum over examples; a plain function is none."""
    return True

  def gather(self, indices: tf.Tensor) -> Any:
    """The examples at `indices`, in the structure of the data."""
    return tf.nest.map_structure(
        lambda leaf: rows.take(leaf, indices), self.data)

  # What is other where devices share the data out: see `ShardedPosterior`.

  @property
  def is_sharded(self) -> bool:
    """Whether the data are shared out among devices."""
    return False

  @property
  def total_rows(self) -> Any:
    """`num_rows`; of data shared out among devices, that of all together."""
    return self.num_rows

  @property
  def population(self) -> Any:
    """The number of examples that a minibatch is a sample of: `total_rows`.

    Of a batch in `fit`, which is a sample itself, `num_examples`.
    """
    return self.total_rows

  def sum_over_rows(self, *values: tf.Tensor) -> list[tf.Tensor]:
    """Of values for each row the sums: of `chains + [n]` to `chains` each."""
    return [tf.reduce_sum(each, axis=-1) for each in values]

  def own_share(self, number: int) -> int:
    """How many rows of a minibatch this device draws: all, or its share."""
    return number

  def own_seed(self, seed: tf.Tensor) -> tf.Tensor:
    """The seed of what this device draws of its own rows."""
    return seed

  def to_deal(
      self, seed: tf.Tensor,
  ) -> tuple[Any, tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """How many rows are dealt out together, by which seed, and whose they are.

    Args:
      seed: Stateless seed, the same on all devices.

    Returns:
      number, seed, own_of: The rows of this device, and a seed of its own;
        `own_of` takes the numbers of rows dealt out together, and returns those
        of this device's rows.
    """
    return self.num_rows, self.own_seed(seed), tf.identity

  @property
  def experimental_shard_axis_names(self) -> list[str | None] | None:
    """A name for each part of the state that is another piece on each device.

    As TFP's kernels have it: a list over the parts, None in it for a part that
    all devices share; None for none.
    """
    return None

  def add_up(
      self, value: tf.Tensor, gradients: Sequence[tf.Tensor],
  ) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Sums over devices, of a sum over rows and its gradient by each part."""
    return value, list(gradients)

  def check_state(self, state_parts: Sequence[tf.Tensor]) -> None:
    """Tries both functions on a state and a few examples.

    Where the posterior holds no data, only how many arguments they take.

    Args:
      state_parts: List of float tensors.

    Raises:
      ValueError: If a function raises, or returns another shape than it has to.
    """
    model_checks.check_number(self._functions, state_parts)
    model_checks.check_event(self._prior, state_parts)
    if self.data is not None:
      self._try(state_parts)

  def _check_prior_draw(self):
    """Tries a draw of the prior, where `log_prior_fn` is one's `log_prob`."""
    distribution = self._prior
    if self.data is None or distribution is None:
      return
    try:
      state_parts = tf.nest.flatten(
          distribution.sample(seed=tf.constant([0, 0], tf.int32)))
    except Exception:  # pylint: disable=broad-except
      return
    try:
      self._try(state_parts)
    except model_checks.FunctionError:
      return  # The functions may be written for states with chain axes only.
    self._tried = f'{model_checks.describe(state_parts)}, a draw of the prior'

  def _try(self, state_parts):
    """Both functions on a few examples; raises where a value is not right."""
    model_checks.check_functions(
        self.log_prior, self.log_likelihood, self.data, state_parts,
        prior=self._prior, tried=self._tried,
        looks_at_values=self._looks_at_values)

  @property
  def _prior(self):
    """The distribution whose `log_prob` is the log prior, or None."""
    return parameters.prior_of(self._log_prior_fn)

  @property
  def _functions(self):
    """The functions of the state by name, with their further arguments."""
    return {
        'log_prior_fn': (self._log_prior_fn, 0),
        'log_likelihood_fn': (self._log_likelihood_fn, 1)}


class _Density(Posterior):
  """The log density of a plain function: one term, and no examples.

  It has a `Posterior`'s interface, so that kernels and estimators need not ask
  which of the two they have got.
  """

  def __init__(self, log_prob_fn):
    self._log_prior_fn = log_prob_fn
    self._parameters = parameters.of_state(log_prob_fn)
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


def _new(state_parts):
  """Copies: for the originals a bijector may have cached another graph's."""
  return [tf.identity(part) for part in state_parts]
