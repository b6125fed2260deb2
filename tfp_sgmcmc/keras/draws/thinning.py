"""Some of the draws, whose predictions are those of all.

Of S draws with weights w_s and features f_s (what each predicts for given
inputs) a set K is to have

  | sum_{s in K} w_s f_s / sum_{s in K} w_s  -  sum_s w_s f_s |^2

small. It is built up by one draw after the other, each the best at its time.
"""

from collections.abc import Sequence

import numpy as np

__all__ = ['evenly_spaced', 'greedy']


def evenly_spaced(length: int, number: int) -> list[int]:
  """The middles of `number` equal parts of 0, ..., `length - 1`."""
  return [
      int(k) for k in np.floor((np.arange(number) + 0.5) * length / number)]


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
