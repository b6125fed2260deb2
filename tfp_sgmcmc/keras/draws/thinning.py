"""Some of the draws, whose predictions are those of all.

Of S draws with weights w_s and features f_s (what each predicts for given
inputs) a set K is to have

  | sum_{s in K} w_s f_s / sum_{s in K} w_s  -  sum_s w_s f_s |^2

small. It is built up by one draw after the other, each the best at its time.
"""

from collections.abc import Sequence

import keras
import numpy as np

from tfp_sgmcmc.keras.draws import averages
from tfp_sgmcmc.keras.draws import one_pass as pass_lib
from tfp_sgmcmc.keras.draws import predictive as predictive_lib

__all__ = ['by_predictions', 'evenly_spaced', 'greedy']


def evenly_spaced(length: int, number: int) -> list[int]:
  """The middles of `number` equal parts of 0, ..., `length - 1`."""
  return [
      int(k) for k in np.floor((np.arange(number) + 0.5) * length / number)]


def by_predictions(one_pass: pass_lib.OnePass, number: int) -> list[int]:
  """Chooses draws by what they predict for inputs.

  Compared are the means of the targets; of densities also second moments about
  the mean of all draws, and of classes entropies.

  Args:
    one_pass: `OnePass` over the inputs.
    number: Python `int`, how many.

  Returns:
    chosen: The draws' numbers, in their order.
  """
  likelihood, shares = one_pass.likelihood, one_pass.chosen.shares

  def of_draw(outputs, batch):
    del batch
    return averages.means_and_spreads(
        likelihood, outputs, list(filter(
            predictive_lib.is_distribution, likelihood.terms(outputs))))

  found = [results for _, results in one_pass.results('features', of_draw)]
  means, spreads = (
      keras.tree.map_structure(
          lambda *a: np.concatenate(a, axis=1).astype(np.float64), *parts)
      for parts in zip(*found))
  features = []
  for index, mean in enumerate(likelihood.flat_outputs(means)):
    features.append(mean)
    spread = spreads.get(index)
    if isinstance(spread, predictive_lib.Variances):
      about = np.average(mean, axis=0, weights=shares)
      features.append(spread.within + np.square(mean - about))
    elif spread is not None:
      features.append(spread)
  return greedy(
      [np.reshape(a, [len(shares), -1]) for a in features], shares, number)


def greedy(
    features: Sequence[np.ndarray], shares: np.ndarray, number: int,
) -> list[int]:
  """Chooses draws by what they predict.

  Args:
    features: Arrays `[draws, values]`. Each counts in units of its spread over
      draws.
    shares: The weight of each draw, with a sum of 1.
    number: Python `int`, how many.

  Returns:
    chosen: The draws' numbers, in their order.
  """
  centred = []
  for values in features:
    values = values - np.average(values, axis=0, weights=shares)
    spread = np.sum(np.average(np.square(values), axis=0, weights=shares))
    if spread > 0.:
      centred.append(values / np.sqrt(spread))
  if not centred:  # All predict the same.
    return evenly_spaced(len(shares), number)
  # Products of all pairs: what is added then costs no look at the features.
  products = sum(values @ values.T for values in centred)
  squares, chosen = np.diag(products), []
  left = np.ones(len(shares), bool)
  with_sum, square, total = np.zeros(len(shares)), 0., 0.
  for _ in range(number):
    distance = (
        square + 2. * shares * with_sum + np.square(shares) * squares
    ) / np.square(total + shares)
    best = int(np.argmin(np.where(left, distance, np.inf)))
    chosen.append(best)
    left[best] = False
    square += 2. * shares[best] * with_sum[best] + (
        shares[best]**2 * squares[best])
    with_sum += shares[best] * products[best]
    total += shares[best]
  return sorted(chosen)
