"""How many steps a chain makes on each batch.

A `fit` of few rows has few batches: 277 rows in batches of 32, and 32
epochs that sample, are 288. A chain of a small network needs some thousand
steps to find its scales and step size, to arrive, and to move about. Its step
costs a few milliseconds.

Where a step has rows beside its batch (`more_rows`), it can do without the
batch: all its rows, as many as before, are drawn anew. So with each batch that
comes a chain may make several steps. "auto" makes, with B batches to come,

  r = min(30, ceil(3000 / B))

for each, and 1 in two cases. Where steps have the batch alone, r of them in a
row would share its noise, which would heat the chain like that of a batch r
times as small. And where burn-in or the spacing of draws is given, or T is a
function of the step, these count steps of which their author expects one a
batch.
"""

__all__ = ['chosen']

_ENOUGH_STEPS, _MOST = 3000, 30


def chosen(num_batches: int) -> int:
  """The number of steps on each batch, where each has rows beside it.

  Args:
    num_batches: Python `int`, B, the number of batches to come.

  Returns:
    number: Python `int`, r.

  #### Examples

  >>> [chosen(number) for number in (30, 700, 1400, 2800, 5600)]
  [30, 5, 3, 2, 1]
  """
  return min(_MOST, -(-_ENOUGH_STEPS // max(1, num_batches)))
