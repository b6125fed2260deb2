"""The predictive distribution of a model's targets, and what is asked of it.

It is a mixture over the draws. Here are the distributions of all outputs, over
all batches of inputs; `predictive` has that of one output.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tfp_sgmcmc.keras.draws import one_pass as pass_lib
from tfp_sgmcmc.keras.draws import predictive as predictive_lib

__all__ = [
    'independent_samples', 'predictive', 'quantiles', 'sample',
    'shortest_interval']


def predictive(one_pass: pass_lib.OnePass) -> Any:
  """See `PosteriorSamples.predictive`.

  Args:
    one_pass: `OnePass` over inputs.

  Returns:
    predictive: `tfd.Distribution` in the structure of the model's outputs.
  """
  outputs = keras.tree.map_structure(
      lambda *arrays: np.concatenate(arrays, axis=1), *one_pass.outputs())
  w = one_pass.chosen.shares

  def distribution(term, output):
    if term is None:
      return None
    if term.is_classification:
      p = np.asarray(term.probabilities(output), np.float64)
      return predictive_lib.class_distribution(
          term, np.average(p, axis=0, weights=w))
    return predictive_lib.mixture(term, output, one_pass.chosen.log_weights)

  return one_pass.likelihood.map_outputs(distribution, outputs)


def sample(one_pass: pass_lib.OnePass, number: int, seed: int) -> Any:
  """See `PosteriorSamples.sample`.

  Args:
    one_pass: `OnePass` over inputs.
    number: Python `int`, the number of samples.
    seed: Python `int`.

  Returns:
    samples: Arrays `[number, n, ...]` in the structure of the model's outputs.
  """
  shares = one_pass.chosen.shares
  index = np.random.default_rng(seed).choice(
      len(shares), size=number, p=shares)
  found = []
  for k, outputs in enumerate(one_pass.outputs()):
    def of_output(term, output, k=k):
      if term is None:
        return None
      state = np.random.SeedSequence([seed, k, term.index]).generate_state(2)
      return predictive_lib.sample(term, output, index, state.astype(np.int32))

    found.append(one_pass.likelihood.map_outputs(of_output, outputs))
  return predictive_lib.join(found, axis=1)


def independent_samples(one_pass: pass_lib.OnePass, number: int) -> np.ndarray:
  """Targets of a model's only output, each of its own draw.

  Args:
    one_pass: `OnePass` over inputs.
    number: Python `int`, the number of samples.

  Returns:
    samples: Array `[number, n, ...]`.
  """
  shares = one_pass.chosen.shares
  generator, found = np.random.default_rng(0), []
  for outputs in one_pass.outputs():
    term, = one_pass.likelihood.terms(outputs)
    index = generator.choice(
        len(shares), size=[number, outputs.shape[1]], p=shares)
    found.append(predictive_lib.sample(
        term, outputs[index, np.arange(outputs.shape[1])], np.arange(number),
        generator.integers(2**31 - 1, size=2, dtype=np.int32)))
  return predictive_lib.join(found, axis=1)


def quantiles(one_pass: pass_lib.OnePass, p: np.ndarray) -> Any:
  """See `PosteriorSamples.quantiles`.

  Args:
    one_pass: `OnePass` over inputs.
    p: The probabilities, an array of one axis or none.

  Returns:
    quantiles: Arrays `[n, ...]` or `[len(p), n, ...]` in the structure of the
      model's outputs.
  """
  def of_mixture(term, mixed):
    y = predictive_lib.quantiles(term, mixed, p.reshape(
        [-1] + [1] * len(mixed.batch_shape)))
    return y if p.ndim else y[0]

  return _of_mixtures(one_pass, of_mixture, axis=p.ndim)


def shortest_interval(one_pass: pass_lib.OnePass, level: float) -> Any:
  """See `PosteriorSamples.interval`.

  Args:
    one_pass: `OnePass` over inputs.
    level: Python `float`, the probability.

  Returns:
    interval: Arrays `[2, n, ...]` in the structure of the model's outputs.
  """
  return _of_mixtures(
      one_pass, lambda term, mixed: predictive_lib.shortest_interval(
          term, mixed, level), axis=1)


def _of_mixtures(
    one_pass: pass_lib.OnePass, fn: Callable[[Any, Any], np.ndarray], axis: int,
) -> Any:
  """`fn(term, mixture)` of each output that has quantiles, joined."""
  likelihood, log_weights = one_pass.likelihood, one_pass.chosen.log_weights
  found = []
  for outputs in one_pass.outputs():
    if all(term.is_classification for term in likelihood.terms(outputs)):
      raise ValueError(
          'The model predicts classes, which have no quantiles: use '
          'predict(x) or predictive(x), their probabilities.')
    found.append(likelihood.map_outputs(
        lambda term, output: None if (
            term is None or term.is_classification) else fn(
                term, predictive_lib.mixture(
                    term, output, log_weights, of_elements=True)),
        outputs))
  return predictive_lib.join(found, axis)
