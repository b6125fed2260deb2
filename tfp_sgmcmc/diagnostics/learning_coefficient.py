"""The local learning coefficient: how many parameters a model uses at a place.

With L(w) = -1/n sum_i log p(x_i | w) over n examples, beta = 1 / log n, and w
drawn from the localised posterior about w*,

  p(w) ~ exp(-n beta L(w) - gamma / 2 |w - w*|^2),
  lambda = n beta (E[L(w)] - L(w*)).

Lau et al. (2023), equations 9 and 13, after Watanabe's WBIC (2013). A model
that is regular at w* has lambda = d / 2; a singular one has less.
"""

import functools
import math
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import draws as draws_lib
from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc.diagnostics import chains as chains_lib
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = [
    'LearningCoefficient', 'from_log_likelihood', 'local_learning_coefficient',
    'localized']

# Of one block of draws on a chunk of rows, how many values at most.
_MOST_VALUES = 2**22


class LearningCoefficient(NamedTuple):
  """What `local_learning_coefficient` returns.

  Attributes:
    value: Python `float`, lambda.
    standard_error: Python `float`, from draws that depend on each other; NaN
      of a single chain of fewer than 100 draws.
    by_chain: Array `[chains]`, lambda by each chain's draws alone.
  """
  value: float
  standard_error: float
  by_chain: np.ndarray


def localized(
    posterior: posterior_lib.Posterior, center: hints.State, strength: float,
) -> posterior_lib.Posterior:
  """The posterior for `local_learning_coefficient`, about one place.

    log p(w) = sum_i log p(x_i | w) - log(n) gamma / 2 |w - w*|^2

  Sample it at the temperature log n, where its law is that of exp(-n beta L -
  gamma / 2 |w - w*|^2) with beta = 1 / log n. It does not contain the prior of
  `posterior`.

  Args:
    posterior: `Posterior`.
    center: w*, a state of one chain: tensor or list of tensors.
    strength: gamma, a positive number: 1 / sqrt(gamma) is how far from w* a
      coordinate may go if the likelihood does not restrict it. A smaller gamma
      changes lambda less at a regular w*; a larger gamma makes the estimate
      more local.

  Returns:
    posterior: `Posterior` on the same data.

  Raises:
    ValueError: If `strength` is not positive.
    TypeError: If the posterior is none.
  """
  _check_posterior(posterior)
  checks.positive_number('strength', strength)
  middle = states.to_parts(center, 'center')
  scale = strength * math.log(posterior.num_examples) / 2.

  def log_prior(*parts):
    return -scale * tf.add_n([
        states.sum_event(
            tf.square(part - tf.cast(c, part.dtype)),
            part.shape.rank - c.shape.rank)
        for part, c in zip(parts, middle)])

  def log_likelihood(*parts_and_batch):
    *parts, batch = parts_and_batch
    return posterior.log_likelihood(*parts, batch=batch)

  return posterior_lib.Posterior(
      log_prior, log_likelihood, posterior.data,
      num_examples=posterior.num_examples)


@functools.singledispatch
def local_learning_coefficient(
    result: Any, *arguments: Any, **keywords: Any) -> LearningCoefficient:
  """The local learning coefficient (LLC) at a place, from draws about it.

    lambda = n beta (E[L(w)] - L(w*)),  beta = 1 / log n,

  with L the mean negative log likelihood of all n examples, and draws w of the
  localised posterior exp(-n beta L(w) - gamma / 2 |w - w*|^2). It says how fast
  the volume of parameters as good as w* shrinks: d / 2 for a regular model of d
  parameters, less for a model with directions in which nothing changes. If L
  has a minimum at w* of Hessian eigenvalues h_i, it is

    1/2 sum_i n beta h_i / (n beta h_i + gamma)

  up to terms that fall with n beta: it counts the directions in which the
  likelihood restricts w more than gamma does. For a singular model of
  multiplicity m the estimate is below lambda by about (m - 1) / log(n beta).

  The draws have to follow that law. Heat raises E[L]: if the step size or
  minibatch noise makes the chain too hot by a share s, lambda is too large by
  about the same share. If lambda is negative, w* was not a minimum.

  Args:
    result: `Draws` of `sample`, made with a kernel at the temperature log n on
      `localized(posterior, w*, gamma)`; then

      - posterior: the `Posterior`, with its data;
      - center: w*, a state of one chain.

      Or the `PosteriorSamples` of `fit`, made from w* with `start_epoch=0`, the
      temperature log n and `prior=sgmcmc.keras.prior_around(model, scale)`,
      scale = 1 / sqrt(gamma log n); then

      - x, y: all inputs and targets of the training data.
    *arguments: `posterior` and `center` for `Draws`, `x` and `y` for
      `PosteriorSamples`.
    **keywords: The same arguments by name.

  Returns:
    coefficient: `LearningCoefficient`.

  Raises:
    TypeError: If the result is of another type, or the posterior is none.
    ValueError: If there is no data, or the start of a `fit` is not known.
    ImportError: If ArviZ is not installed.

  #### Examples

  For a product, y ~ N(a b x, 1) with a b = 1, one of the two directions counts.

  >>> x = tf.random.stateless_normal([1000], [0, 1])
  >>> y = x + tf.random.stateless_normal([1000], [0, 2])
  >>> def log_likelihood(w, batch):
  ...   x, y = batch
  ...   a, b = tf.unstack(w[..., tf.newaxis], axis=-2)
  ...   return tfd.Normal(a * b * x, 1.).log_prob(y)
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.MultivariateNormalDiag(tf.zeros(2)).log_prob, log_likelihood,
  ...     (x, y))
  >>> slope = tf.reduce_sum(x * y) / tf.reduce_sum(x * x)
  >>> center = tf.stack([slope, 1.])  # The best fit.
  >>> kernel = sgmcmc.SGHMC(
  ...     sgmcmc.diagnostics.localized(posterior, center, strength=5.),
  ...     step_size=0.02, friction=20., temperature=tf.math.log(1000.),
  ...     integrator='baoab')
  >>> draws = sgmcmc.sample(
  ...     kernel, 500, tf.tile(center[tf.newaxis], [50, 1]), seed=1,
  ...     num_burnin_steps=500, num_steps_between_results=9,
  ...     progress_bar=False)
  >>> found = sgmcmc.diagnostics.local_learning_coefficient(
  ...     draws, posterior, center)
  >>> 0.45 < found.value < 0.55 and found.standard_error < 0.02
  True

  #### References

  [1]: Edmund Lau, Zach Furman, George Wang, Daniel Murfet, Susan Wei. The Local
       Learning Coefficient: A Singularity-Aware Complexity Measure.
       arXiv:2308.12108, 2023.
  [2]: Sumio Watanabe. A Widely Applicable Bayesian Information Criterion.
       _JMLR_, 2013.
  """
  del arguments, keywords
  raise TypeError(
      f'result is of type {type(result).__name__}: what sgmcmc.sample returned '
      '(Draws), or the PosteriorSamples of a fit, is needed.')


@local_learning_coefficient.register
def _(result: draws_lib.Draws, posterior, center):
  _check_posterior(posterior)
  if posterior.data is None:
    raise ValueError(
        'The posterior holds no data (data=None), and the coefficient needs '
        'the likelihood of all examples: pass data.')
  result = result.resampled()
  parts = states.to_parts(result.states)
  number, rank = len(result), result.num_chain_axes
  flat = [
      tf.reshape(part, [-1, *part.shape[1 + rank:]]) for part in parts]
  middle = [
      tf.cast(part, like.dtype)[tf.newaxis]
      for part, like in zip(states.to_parts(center, 'center'), flat)]
  for k, (part, own) in enumerate(zip(middle, flat)):
    if part.shape[1:] != own.shape[1:]:
      raise ValueError(
          f'Part {k} of center has shape {part.shape[1:]}, and of the draws '
          f'{own.shape[1:]}: w* is the state of one chain.')
  values = _log_likelihood(posterior, flat).reshape([number, -1])
  return from_log_likelihood(
      values.T, _log_likelihood(posterior, middle)[0], posterior.num_examples)


def from_log_likelihood(
    values: np.ndarray, at_center: float, num_examples: int,
) -> LearningCoefficient:
  """The coefficient from log likelihoods of all examples.

  Args:
    values: Array `[chains, draws]`.
    at_center: That at w*.
    num_examples: Python `int`, n.

  Returns:
    coefficient: `LearningCoefficient`.
  """
  if num_examples < 3:
    raise ValueError(
        f'There are {num_examples} examples: beta = 1 / log n needs more.')
  by_draw = (at_center - np.asarray(values, np.float64)) / math.log(
      num_examples)
  return LearningCoefficient(
      float(by_draw.mean()),
      float(chains_lib.standard_error(by_draw[..., np.newaxis])[0]),
      by_draw.mean(axis=1))


def _check_posterior(posterior):
  if not isinstance(posterior, posterior_lib.Posterior):
    raise TypeError(
        f'posterior is {posterior!r}: a Posterior is needed, whose likelihood '
        'is a sum over examples.')


def _log_likelihood(posterior, parts):
  """Over all rows, in float64, of each of `[draws, ...]`."""
  rows = int(posterior.num_rows)
  chunk = min(rows, 1000)
  block = max(1, _MOST_VALUES // chunk)

  @tf.function(autograph=False, reduce_retracing=True)
  def of_block(parts, first, last):
    batch = posterior.gather(tf.range(first, last))
    return tf.reduce_sum(tf.cast(
        posterior.log_likelihood(*parts, batch=batch), tf.float64), axis=-1)

  found = []
  for k in range(0, len(parts[0]), block):
    some = [part[k:k + block] for part in parts]
    found.append(sum(
        of_block(some, tf.constant(j), tf.constant(min(j + chunk, rows)))
        for j in range(0, rows, chunk)))
  return np.concatenate(found) * (posterior.num_examples / rows)
