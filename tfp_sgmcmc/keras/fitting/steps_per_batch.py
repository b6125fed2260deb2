"""How many steps a chain makes on each batch.

A `fit` of few rows has few batches: 277 rows in batches of 32, and 32
epochs that sample, are 288. A chain of a small network needs some thousand
steps to find its scales and step size, to arrive, and to move about. Its step
costs one or two milliseconds.

Where a step has rows beside its batch (`more_rows`), it can do without the
batch: all its rows, as many as before, are drawn anew. So with each batch that
comes a chain may make several steps. "auto" makes, with B batches to come,

  r = min(30, ceil(E / B))

for each, so that there are E or more in all. E is 10,000 where a step is cheap,
less where it takes more products p with weights, and at least 3,000:

  E = min(10000, max(3000, 2^33 / p)).

r is 1 in two cases. Where steps have the batch alone, r of them in a row would
share its noise, which would heat the chain like that of a batch r times as
small. And where burn-in or the spacing of draws is given, or T is a function of
the step, these count steps of which their author expects one a batch.
"""

__all__ = ['chosen']

_MOST_STEPS, _ENOUGH_STEPS, _MOST_A_BATCH = 10_000, 3000, 30
_PRODUCTS_IN_ALL = 2**33


def chosen(num_batches: int, num_products: int) -> int:
  """The number of steps on each batch, where each has rows beside it.

  Args:
    num_batches: Python `int`, B, the number of batches to come.
    num_products: Python `int`, p, how many products with weights there are in a
      pass of all chains over the rows of a step.

  Returns:
    number: Python `int`, r.

  #### Examples

  >>> [chosen(number, 2**19) for number in (30, 700, 1400, 5600, 12000)]
  [30, 15, 8, 2, 1]
  >>> chosen(700, num_products=2**22)
  5
  """
  enough = min(
      _MOST_STEPS, max(_ENOUGH_STEPS, _PRODUCTS_IN_ALL // num_products))
  return min(_MOST_A_BATCH, -(-enough // max(1, num_batches)))
