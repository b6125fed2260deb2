"""The predictive distribution of a target, a mixture over the draws.

  p(y | x, data) = sum_s w_s p(y | x, theta_s)

The components are the distributions of the compiled losses. Quantiles of the
mixture are found by bisection on its cumulative distribution function.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib
from tfp_sgmcmc.keras.model import losses as losses_lib

__all__ = [
    'COUNTS', 'between', 'class_distribution', 'entropy', 'is_distribution',
    'join', 'levels_of_targets', 'mixture', 'mixture_or_none', 'only_term',
    'pooled', 'pooled_or_output', 'quantiles', 'sample', 'shortest_interval',
    'spread', 'standard_deviation']

tfd = tfp.distributions

# Their cumulative distribution functions in TFP are continuous between whole
# numbers.
COUNTS = (
    tfd.Bernoulli, tfd.Binomial, tfd.Geometric, tfd.NegativeBinomial,
    tfd.Poisson)
_ROUNDING = 1e-12
_MAX_DOUBLINGS, _MAX_HALVINGS = 1030, 200
# The lower end of a shortest interval, as a share of what it may leave out.
_GRID = np.concatenate([[1e-6], np.linspace(0., 1., 17)[1:-1], [1. - 1e-6]])
_NUM_REFINEMENTS = 3
# Halvings while the shortest interval is looked for: of what all draws span,
# and of what is between two points of the grid.
_FEW_HALVINGS, _FEWER_HALVINGS = 20, 12


class Variances(NamedTuple):
  """Means over draws of which the law of total variance is made.

  Attributes:
    square: Of the square of a draw's mean, in float64.
    within: Of a draw's variance.
  """
  square: Any
  within: Any


def distribution_of_draw(
    term: likelihood_lib.Term, y_pred: tf.Tensor,
) -> tfp.distributions.Distribution:
  """The distribution of the targets by outputs of one draw.

  Args:
    term: The loss of the output.
    y_pred: Outputs `[n, ...]`.

  Returns:
    distribution: Its batch and event shape together are the targets'.

  Raises:
    ValueError: If the loss has none.
  """
  if term.is_classification:
    return class_distribution(term, term.probabilities(y_pred))
  y_pred = tf.cast(y_pred, term.loss.dtype)
  if isinstance(term.loss, keras.losses.Poisson):
    return tfd.Poisson(rate=y_pred)
  if isinstance(term.loss, losses_lib.LikelihoodLoss):
    return term.loss.distribution(y_pred)
  where = '' if term.name is None else f' of the output {term.name!r}'
  raise ValueError(
      f'The loss {term.loss.name!r}{where} is a function of targets and '
      'outputs that does not say what the distribution of the targets is. '
      'Compile with GaussianLikelihood, LaplaceLikelihood, StudentTLikelihood '
      'or DistributionLoss(lambda outputs: tfd.<Distribution>(...)), or use '
      'predict(x, return_samples=True), the outputs of each draw.')


def only_term(model: keras.Model, outputs: hints.Nested) -> likelihood_lib.Term:
  """The loss of a model's only output.

  Args:
    model: Compiled `keras.Model`.
    outputs: Its outputs, or predictions in their structure.

  Returns:
    term: `Term`.

  Raises:
    ValueError: If there are several outputs, or the loss is no distribution.
  """
  if isinstance(outputs, (dict, list, tuple)):
    raise ValueError(
        f'The model has {len(outputs)} outputs, and this is for models with '
        'one.')
  term, = likelihood_lib.Likelihood(model).terms(outputs)
  if not is_distribution(term):
    raise ValueError(
        f'The loss {term.loss.name!r} does not say what the distribution of '
        'the targets is: compile with a crossentropy, GaussianLikelihood or '
        'DistributionLoss.')
  return term


def is_distribution(term: likelihood_lib.Term) -> bool:
  """Whether a loss says what the distribution of the targets is."""
  return term.is_classification or isinstance(
      term.loss, (losses_lib.LikelihoodLoss, keras.losses.Poisson))


def class_distribution(
    term: likelihood_lib.Term, p: hints.TensorLike,
) -> tfp.distributions.Distribution:
  """The distribution of class numbers: Bernoulli or categorical."""
  p = tf.cast(p, term.loss.dtype)
  return tfd.Bernoulli(probs=p) if term.is_binary else tfd.Categorical(probs=p)


def mixture(
    term: likelihood_lib.Term,
    y_pred: tf.Tensor,
    log_weights: hints.TensorLike,
    of_elements: bool = False,
) -> tfp.distributions.MixtureSameFamily:
  """The mixture of the draws' distributions.

  Args:
    term: The loss of the output, not one of classes.
    y_pred: Outputs `[draws, n, ...]`.
    log_weights: Array `[draws]`, or None for equal weights.
    of_elements: Python `bool`: each element of an event by itself, where they
      are independent, in float64.

  Returns:
    mixture: Its batch and event shape are those of one draw's distribution.

  Raises:
    ValueError: If the distribution cannot be stacked.
  """
  mixed = mixture_or_none(term, y_pred, log_weights, of_elements)
  if mixed is None:
    raise ValueError(
        f'{term.loss.name}: the draws\' distributions cannot be stacked to a '
        'mixture. What can be is a distribution whose batch shape begins with '
        'the axis of examples and whose parameters are tensors or such '
        'distributions. Use sample(x, n), or predict(x, return_std=True).')
  return mixed


def mixture_or_none(
    term: likelihood_lib.Term,
    y_pred: tf.Tensor,
    log_weights: hints.TensorLike,
    of_elements: bool = False,
) -> tfp.distributions.MixtureSameFamily | None:
  """As `mixture`; None where the distribution cannot be stacked."""
  y_pred = tf.convert_to_tensor(y_pred)
  number, rows = y_pred.shape[:2]
  components = distribution_of_draw(term, _rows(y_pred))
  while of_elements and isinstance(components, tfd.Independent):
    components = components.distribution
  is_of_rows = components.batch_shape[:1] == [number * rows]
  stacked = compat.move_draws_last(
      components, number, rows,
      tf.float64 if of_elements else None) if is_of_rows else None
  if stacked is None:
    return None
  dtype = stacked.dtype if stacked.dtype.is_floating else tf.float32
  if log_weights is None:
    log_weights = np.zeros(number)
  return tfd.MixtureSameFamily(
      tfd.Categorical(logits=tf.cast(log_weights, dtype)), stacked)


def sample(
    term: likelihood_lib.Term, y_pred: hints.Nested, index: np.ndarray,
    seed: np.ndarray,
) -> np.ndarray:
  """Targets `[num, n, ...]`, the k-th of the draw `index[k]`."""
  y_pred = tf.gather(y_pred, index)
  y = distribution_of_draw(term, _rows(y_pred)).sample(seed=tf.constant(seed))
  return tf.reshape(
      y, tf.concat([tf.shape(y_pred)[:2], tf.shape(y)[1:]], axis=0)).numpy()


def pooled(
    term: likelihood_lib.Term | None, output: hints.TensorLike) -> Any:
  """What is averaged over draws: the mean of the target, of one draw."""
  if term is None:
    return output
  if term.is_classification:
    return term.probabilities(output)
  return term.predictive_mean(output)


def pooled_or_output(
    term: likelihood_lib.Term | None, output: hints.TensorLike) -> Any:
  """As `pooled`; the output itself where TFP has no mean of the target."""
  try:
    return pooled(term, output)
  except likelihood_lib.NoMeanError:
    return output


def spread(term: likelihood_lib.Term, y_pred: tf.Tensor) -> Any:
  """What one draw says of the targets' spread, to be averaged over draws.

  Args:
    term: The loss of the output.
    y_pred: Outputs `[n, ...]`.

  Returns:
    spread: For classes the entropy, else `Variances`.
  """
  if term.is_classification:
    return entropy(term.probabilities(y_pred))
  distribution = distribution_of_draw(term, y_pred)
  # The square of a mean in float32 has as many digits again in float64.
  return Variances(
      tf.square(tf.cast(distribution.mean(), tf.float64)),
      distribution.variance())


def entropy(p: hints.TensorLike) -> tf.Tensor:
  """Entropy over the last axis; of one probability, of it and its rest."""
  p = tf.convert_to_tensor(p)
  if p.shape[-1] == 1:
    p = tf.concat([p, 1. - p], axis=-1)
  return -tf.reduce_sum(tf.math.xlogy(p, p), axis=-1)


def levels_of_targets(
    term: likelihood_lib.Term, y_true: hints.Nested, y_pred: tf.Tensor,
) -> tf.Tensor | None:
  """The cumulative distribution function of one draw at the targets.

  Args:
    term: The loss of the output.
    y_true: Targets.
    y_pred: Outputs `[n, ...]`.

  Returns:
    levels: Shape of the targets; None where there is no such function of
      continuous numbers.
  """
  if term.is_classification or not is_distribution(term):
    return None
  distribution = distribution_of_draw(term, y_pred)
  while isinstance(distribution, tfd.Independent):
    distribution = distribution.distribution
  if distribution.event_shape.rank or not distribution.dtype.is_floating or (
      isinstance(distribution, (*COUNTS, tfd.FiniteDiscrete))):
    return None
  y = tf.reshape(
      tf.cast(y_true, distribution.dtype), distribution.batch_shape_tensor())
  try:
    return distribution.cdf(y)
  except NotImplementedError:
    return None


def standard_deviation(
    term: likelihood_lib.Term | None, mean: Any, spread_of_draws: Any,
) -> np.ndarray | None:
  """Of the mixture, from means over the draws.

  Args:
    term: The loss of the output, None where it has none.
    mean: The mixture's mean.
    spread_of_draws: The mean of `spread`.

  Returns:
    standard_deviation: Array in the shape of the mean; None without a loss.
  """
  if term is None:
    return None
  if term.is_classification:
    return np.sqrt(np.maximum(mean * (1. - mean), 0.))
  return np.sqrt(
      spread_of_draws.within + between(mean, spread_of_draws))


def between(mean: np.ndarray, parts: Variances) -> np.ndarray:
  """The variance of the draws' means."""
  return np.maximum(parts.square - np.square(mean), 0.)


def quantiles(
    term: likelihood_lib.Term,
    mixed: tfp.distributions.MixtureSameFamily,
    p: np.ndarray,
    num_halvings: int = _MAX_HALVINGS,
    between: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
  """The smallest y at which the mixture's cdf is at least p.

  Args:
    term: The loss of the output.
    mixed: Mixture of univariate distributions in float64, batch shape
      `[n, ...]`.
    p: Array `[k, ...]` of probabilities, that broadcasts to `[k, n, ...]`.
    num_halvings: Python `int`, at most so many; fewer are less exact.
    between: None, or arrays in the shape of the result, between which the
      quantiles are known to lie.

  Returns:
    quantiles: Array `[k, n, ...]`, float64, to rounding.

  Raises:
    ValueError: If the distributions are not univariate, or have no cdf.
  """
  cdf = _cdf(term, mixed)
  p = np.broadcast_to(p, [len(p), *mixed.batch_shape])
  low, high = between or _bracket(
      term, mixed.components_distribution, cdf, p)
  for _ in range(num_halvings):
    middle = low + (high - low) / 2.
    # No cdf below the support of some distributions: NaN counts as below.
    is_below = ~(cdf(middle) >= p)
    low, high = np.where(is_below, middle, low), np.where(
        is_below, high, middle)
    if np.all(high - low <= 1e-14 * np.abs(high)):
      break
  component = mixed.components_distribution
  if isinstance(component, tfd.FiniteDiscrete):  # Its cdf jumps a bit early.
    outcomes = np.asarray(component.outcomes, np.float64)
    return outcomes[np.argmin(
        np.abs(high[..., np.newaxis] - outcomes), axis=-1)]
  return np.floor(high) if isinstance(component, COUNTS) else high


def shortest_interval(
    term: likelihood_lib.Term,
    mixed: tfp.distributions.MixtureSameFamily,
    level: float,
) -> np.ndarray:
  """The shortest interval that holds a share of the mixture.

  The probability below it is found on a grid that is refined around its best
  point, to 1e-4 of what is left out. The length is flat there: of 400 mixtures
  of 100 normals none was too long by more than 1e-5 of it.

  Args:
    term: The loss of the output.
    mixed: As for `quantiles`.
    level: Python `float`, the share.

  Returns:
    interval: Array `[2, n, ...]`, float64.
  """
  shape = mixed.batch_shape
  outside = 1. - level
  below = np.broadcast_to(
      outside * _GRID.reshape([-1] + [1] * len(shape)), [len(_GRID), *shape])
  between, num_halvings = None, _FEW_HALVINGS
  for _ in range(_NUM_REFINEMENTS + 1):
    ends = quantiles(
        term, mixed, np.concatenate([below, below + level]), num_halvings,
        between)
    low, high = np.split(ends, 2)
    best = np.argmin(high - low, axis=0)[np.newaxis]
    # All of the finer grid lies between the best point's neighbours.
    before, after = (
        np.clip(best + by, 0, len(below) - 1) for by in (-1, 1))
    between = tuple(
        np.concatenate([
            np.repeat(np.take_along_axis(array, place, axis=0), len(array), 0)
            for array in (low, high)]) for place in (before, after))
    found, first, last = (
        np.take_along_axis(below, place, axis=0)
        for place in (best, before, after))
    below = np.linspace(first[0], last[0], len(_GRID))
    num_halvings = _FEWER_HALVINGS
  return quantiles(term, mixed, np.concatenate([found, found + level]))


def join(found: list[Any], axis: int = 0) -> Any:
  """Joins results of batches, cast to Keras' float type if they are floats."""
  def joined(*arrays):
    if arrays[0] is None:
      return None
    array = np.concatenate(arrays, axis=axis)
    return array.astype(
        keras.config.floatx()) if array.dtype.kind == 'f' else array

  return keras.tree.map_structure(joined, *found)


def _rows(y_pred):
  """Examples of all draws as rows of one batch."""
  return tf.reshape(
      y_pred, tf.concat([[-1], tf.shape(y_pred)[2:]], axis=0))


def _cdf(term, mixed) -> Callable[[np.ndarray], np.ndarray]:
  """The mixture's cdf as a function of arrays."""
  component = mixed.components_distribution
  if mixed.event_shape.rank:
    raise ValueError(
        f'{term.loss.name}: {type(component).__name__} is a distribution of '
        'vectors, and quantiles are of single numbers. Use sample(x, n), and '
        'quantiles of what you need of its targets.')
  if not (component.dtype.is_floating or isinstance(component, COUNTS)):
    raise ValueError(
        f'{term.loss.name}: {type(component).__name__} is a distribution of '
        'integers, and quantiles are of real numbers and counts. Use sample(x, '
        'n), and quantiles or shares of its targets.')
  is_count = isinstance(component, COUNTS)
  weights = np.float64(mixed.mixture_distribution.probs_parameter())

  def cdf(y):
    of = np.floor(y) if is_count else y
    # The mixture's own cdf needs one dtype, and a FiniteDiscrete may have
    # numbers of another than its probabilities.
    values = np.sum(weights * np.float64(component.cdf(
        tf.cast(of[..., np.newaxis], component.dtype))), axis=-1)
    # A cdf that equals p, as of a median of counts, may be rounded below it.
    return np.where(y < 0., 0., values + _ROUNDING) if is_count else values

  try:
    cdf(np.zeros(mixed.batch_shape))
  except NotImplementedError as error:
    raise ValueError(
        f'{term.loss.name}: {type(component).__name__} has no cdf in TFP, '
        'which quantiles and intervals need. Use sample(x, n), and quantiles '
        'of its targets.') from error
  return cdf


def _bracket(term, component, cdf, p):
  """Numbers between which the quantiles lie."""
  if not isinstance(component, COUNTS):
    try:
      # Those of the mixture lie between those of the draws.
      each = component.quantile(p[..., np.newaxis]).numpy()
      if np.all(np.isfinite(each)):
        return np.min(each, axis=-1), np.max(each, axis=-1)
    except NotImplementedError:
      pass
  low, high = -np.ones(p.shape), np.ones(p.shape)
  for _ in range(_MAX_DOUBLINGS):
    is_high, is_low = cdf(low) >= p, ~(cdf(high) >= p)
    if not np.any(is_high | is_low):
      return low, high
    low, high = np.where(is_high, 2. * low, low), np.where(
        is_low, 2. * high, high)
  raise ValueError(
      f'{term.loss.name}: the cdf of {type(component).__name__} does not go '
      'from 0 to 1, or is NaN, for some examples: are the parameters that '
      'the outputs make valid ones?')
