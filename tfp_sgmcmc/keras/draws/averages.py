"""What is averaged over draws: predictions, and how uncertain they are.

The uncertainty has two parts, the noise of the targets and what the draws
disagree about. Of classes these are entropies, of numbers variances.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import keras
import numpy as np

from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.draws import one_pass as pass_lib
from tfp_sgmcmc.keras.draws import predictive as predictive_lib
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib

__all__ = [
    'PredictiveEntropy', 'PredictiveVariance', 'entropy', 'mean',
    'mean_and_deviation', 'means_and_spreads', 'uncertainty']


class PredictiveEntropy(NamedTuple):
  """Entropy of the predictive distribution, in nats, one value an example.

  Attributes:
    total: H of the mean of the draws' probabilities.
    aleatoric: The mean of the draws' H: the noise of the targets.
    epistemic: Their difference, the mutual information of target and weights:
      what more data would take away.
  """
  total: np.ndarray
  aleatoric: np.ndarray
  epistemic: np.ndarray


class PredictiveVariance(NamedTuple):
  """Variance of the predictive distribution, in squared units of the target.

  Attributes:
    total: The variance of the mixture over draws.
    aleatoric: The mean of the draws' variances: the noise of the targets.
    epistemic: The variance of the draws' means: what more data would take
      away.
  """
  total: np.ndarray
  aleatoric: np.ndarray
  epistemic: np.ndarray


def mean(one_pass: pass_lib.OnePass, return_samples: bool) -> Any:
  """The mean of the predictive distribution, or each draw's prediction.

  Args:
    one_pass: `OnePass` over inputs.
    return_samples: Python `bool`: each draw's, `[draws, n, ...]`.

  Returns:
    mean: Arrays in the structure of the model's outputs.
  """
  likelihood = one_pass.likelihood
  name, of_output, reductions = (
      ('predictions', predictive_lib.pooled_or_output, None)
      if return_samples else ('means', predictive_lib.pooled, [np.add]))

  def of_draw(outputs, batch):
    del batch
    return [likelihood.map_outputs(of_output, outputs)]

  found = [predicted for _, (predicted,) in one_pass.results(
      name, of_draw, reductions)]
  return keras.tree.map_structure(
      lambda *arrays: np.concatenate(
          arrays, axis=int(return_samples)).astype(keras.config.floatx()),
      *found)


def mean_and_deviation(one_pass: pass_lib.OnePass) -> tuple[Any, Any]:
  """The mean and the standard deviation of the predictive distribution.

  Args:
    one_pass: `OnePass` over inputs.

  Returns:
    mean: Arrays in the structure of the model's outputs.
    deviation: Likewise; None for an output without a loss.
  """
  means, spread = _spread(one_pass, 'spread')
  deviation = one_pass.likelihood.map_outputs(lambda term, m: (
      predictive_lib.standard_deviation(
          term, m, None if term is None else spread[term.index])), means)
  return predictive_lib.join([means]), predictive_lib.join([deviation])


def entropy(one_pass: pass_lib.OnePass) -> PredictiveEntropy:
  """See `PosteriorSamples.predictive_entropy`.

  Args:
    one_pass: `OnePass` over inputs.

  Returns:
    entropy: `PredictiveEntropy` of the model's only output.
  """
  likelihood = one_pass.likelihood
  means, spread = _spread(
      one_pass, 'entropy', lambda outputs: _check_classes(likelihood, outputs))
  return _parts(likelihood.terms(means)[0], means, spread)


def uncertainty(one_pass: pass_lib.OnePass) -> Any:
  """See `PosteriorSamples.uncertainty`.

  Args:
    one_pass: `OnePass` over inputs.

  Returns:
    uncertainty: `PredictiveVariance` or `PredictiveEntropy`, in the structure
      of the model's outputs; None for an output without a loss.
  """
  means, spread = _spread(one_pass, 'spread')
  return one_pass.likelihood.map_outputs(
      lambda term, m: None if term is None else _parts(term, m, spread), means)


def means_and_spreads(
    likelihood: likelihood_lib.Likelihood,
    outputs: hints.Nested,
    terms: Sequence[likelihood_lib.Term],
) -> list[Any]:
  """The means of the targets by one draw, and their spreads.

  Args:
    likelihood: `Likelihood` of the model.
    outputs: The outputs of one draw.
    terms: The losses whose spread is asked for.

  Returns:
    means_and_spreads: A list of the means in the structure of the outputs, and
      of a dictionary of `predictive.spread` by the numbers of the outputs.
  """
  flat = likelihood.flat_outputs(outputs)
  return [
      likelihood.map_outputs(predictive_lib.pooled, outputs),
      {term.index: predictive_lib.spread(term, flat[term.index])
       for term in terms}]


def _spread(
    one_pass: pass_lib.OnePass, name: str,
    check: Callable[[Any], None] = lambda outputs: None,
) -> Any:
  """`means_and_spreads` of all outputs, averaged over draws."""
  likelihood = one_pass.likelihood

  def of_draw(outputs, batch):
    del batch
    check(outputs)
    return means_and_spreads(likelihood, outputs, likelihood.terms(outputs))

  found = [results for _, results in one_pass.results(
      name, of_draw, [np.add, np.add])]
  return [
      keras.tree.map_structure(lambda *a: np.concatenate(a), *parts)
      for parts in zip(*found)]


def _parts(term, means, spread):
  """`PredictiveEntropy` or `PredictiveVariance` of one output."""
  own = spread[term.index]
  if term.is_classification:
    total = predictive_lib.entropy(means).numpy()
    return PredictiveEntropy(total, own, total - own)
  between = predictive_lib.between(means, own)
  return PredictiveVariance(own.within + between, own.within, between)


def _check_classes(likelihood, outputs):
  terms = likelihood.terms(outputs)
  if len(terms) != 1 or not terms[0].is_classification or isinstance(
      outputs, (dict, list, tuple)):
    raise ValueError(
        'predictive_entropy needs a model with one output, compiled with a '
        'crossentropy. For others use predict(x, return_samples=True).')
