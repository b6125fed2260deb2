"""What the sides of `benchmarks.ensembles` share, whatever library they use.

The networks, their training by Adam and what is written of their predictions.
"""

from collections.abc import Callable
import math

import numpy as np

NUM_NETWORKS, HIDDEN, NUM_DRAWS = 10, [16, 16, 16, 16], 100
LEARNING_RATE, PATIENCE, MOST_EPOCHS, BATCH_SIZE = 1e-3, 20, 1200, 32
MOST_BATCHES = 100  # Of an epoch of Adam.

Rows = tuple[np.ndarray, np.ndarray]


def initial_weights(num_features: int, seed: int) -> list[np.ndarray]:
  """Glorot's kernels `[network, inputs, outputs]`, and biases of zero."""
  rng = np.random.default_rng(seed)
  sizes, weights = [num_features, *HIDDEN, 2], []
  for shape in zip(sizes, sizes[1:]):
    limit = math.sqrt(6. / sum(shape))
    weights += [
        np.float32(rng.uniform(-limit, limit, [NUM_NETWORKS, *shape])),
        np.zeros([NUM_NETWORKS, shape[1]], np.float32)]
  return weights


def split(x: np.ndarray, y: np.ndarray) -> tuple[Rows, Rows]:
  """The rows by which training is stopped, and those that are trained on."""
  num = max(1, int(0.15 * len(x)))
  return (x[:num], y[:num]), (x[num:], y[num:])


def stopped_early(
    epoch: Callable[[np.ndarray], np.ndarray],
    weights: Callable[[], list[np.ndarray]], num_rows: int, seed: int,
) -> list[np.ndarray]:
  """The weights of each network after its best epoch.

  Args:
    epoch: Trains by batches of rows `[batch, row]`, in this order; returns the
      losses `[network]` of the rows held out.
    weights: Returns a copy of the weights `[network, ...]` as they are now.
    num_rows: How many rows are trained on.
    seed: Of the order.

  Returns:
    What `weights` returns, of each network's best epoch.
  """
  rng = np.random.default_rng(seed)
  size = min(max(BATCH_SIZE, num_rows // MOST_BATCHES), num_rows)
  kept = weights()
  best, since = (np.full(len(kept[0]), value) for value in (np.inf, 0.))
  for _ in range(MOST_EPOCHS):
    order = rng.permutation(num_rows)[:num_rows // size * size]
    found = epoch(order.reshape([-1, size]))
    for w, value in zip(kept, weights()):
      w[found < best] = value[found < best]
    since = np.where(found < best, 0, since + 1)
    best = np.minimum(found, best)
    if np.all(since > PATIENCE):
      break
  return kept
