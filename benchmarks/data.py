"""What all sides of a comparison are given, and what is looked at of draws.

NumPy alone: the environments of the peers have nothing else in common. A case
is a dict of what a side is to do; the keys that these functions read are
`model`, `num_examples`, and `num_features` or `width`.
"""

import numpy as np

PERCEPTRON = (784, 100, 10)


def examples(case):
  """The table of a case: x and y, both of float32."""
  return _TABLES[case['model']](case)


def start(case):
  """The first state of a chain: an array, or a list of one a layer's part."""
  if case['model'] == 'perceptron':
    rng = np.random.default_rng(3)
    inner, width, outer = _sizes(case)
    return [
        rng.normal(0., 0.05, size).astype(np.float32)
        for size in ([inner, width], [width], [width, outer], [outer])]
  return np.asarray(case['mode'], np.float32)


def features(case, draws):
  """What laws are compared by: `[number, d]`, or `[number, chains, d]`.

  Of a regression the coefficients themselves. Of a perceptron, whose weights
  have no law in closed form, the log of the root mean square of each part and
  the mean loss over the first 2,000 rows.
  """
  if case['model'] != 'perceptron':
    return np.asarray(draws, np.float64)
  x, y = (part[:2000] for part in examples(case))
  labels = y.astype(int)

  def of_one(parts):
    w1, b1, w2, b2 = parts
    logits = np.maximum(x @ w1 + b1, 0.) @ w2 + b2
    logits = logits - logits.max(axis=1, keepdims=True)
    losses = (np.log(np.exp(logits).sum(axis=1))
              - logits[np.arange(len(y)), labels])
    sizes = [np.log(np.sqrt(np.mean(np.square(part)))) for part in parts]
    return [*sizes, losses.mean()]

  return np.array([of_one(parts) for parts in zip(*draws)], np.float64)


def along(states, durations):
  """Positions at equal distances in time along a path, a tenth as many.

  The path is given by its corners `[events, d]` and the durations of the
  segments that end there, `[events]`. The first fifth is left out.
  """
  times = np.cumsum(durations, dtype=np.float64)
  at = np.linspace(times[len(times) // 5], times[-1], len(times) // 10)
  return np.stack(
      [np.interp(at, times, states[:, k]) for k in range(states.shape[1])],
      axis=1)


def _logistic(case):
  rng = np.random.default_rng(0)
  num, d = case['num_examples'], case['num_features']
  x = rng.standard_normal([num, d], np.float32)
  weights = rng.normal(0., 0.5 / np.sqrt(d), d)
  y = rng.uniform(size=num) < 1. / (1. + np.exp(-x @ weights))
  return x, y.astype(np.float32)


def _perceptron(case):
  rng = np.random.default_rng(1)
  inner, _, outer = _sizes(case)
  x = rng.uniform(size=[case['num_examples'], inner]).astype(np.float32)
  teacher = rng.normal(size=[inner, outer])
  y = np.argmax((x - 0.5) @ teacher, axis=1)
  return x, y.astype(np.float32)


def _sizes(case):
  return PERCEPTRON[0], case.get('width', PERCEPTRON[1]), PERCEPTRON[2]


def _bouncy(case):
  """The regression of Pakman et al. (2017), section 7.1."""
  rng = np.random.default_rng(0)
  num, d = case['num_examples'], case['num_features']
  weights = rng.uniform(-5., 5., d)
  x = rng.normal(size=[num, d])
  x[:, 0] *= np.sqrt(6.)
  y = rng.uniform(size=num) < 1. / (1. + np.exp(-x @ weights))
  return x.astype(np.float32), y.astype(np.float32)


_TABLES = {
    'logistic': _logistic, 'perceptron': _perceptron, 'bouncy': _bouncy}
