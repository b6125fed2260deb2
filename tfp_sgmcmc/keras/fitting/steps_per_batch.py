"""How many steps a chain makes on each batch.

A `fit` of few rows has few batches: 277 rows in batches of 32, and 32
epochs that sample, are 288. A chain of a small network needs some thousand
steps to find its scales and step size, to arrive, and to move about. Its step
costs one or two milliseconds.

Where rows can be drawn from the data (`more_rows`), a step can do without the
batch: all its rows, as many as before, are drawn anew. So with each batch that
comes a chain may make several steps. "auto" makes, with B batches to come,

  r = min(30, ceil(E / B))

for each, so that there are E or more in all. By the number p of products that a
step of all chains takes (`products`), with as many rows as a batch has, and
those beside it,

  E = min(10000, max(3000, 2^33 / p))  where it has rows beside its batch,
  E = min(3000, 2^35 / p)              elsewhere.

So large networks, and long fits, make one step for each batch.

r is 1 in three more cases. Where rows cannot be drawn, r steps in a row would
share the noise of their batch, which would heat the chain like that of a batch
r times as small. Where burn-in or the spacing of draws is given, or T is a
function of the step, these count steps of which their author expects one a
batch. And where all runs eagerly, somebody looks for an error, and a step takes
a tenth of a second.
"""

__all__ = ['chosen', 'is_worth_compiling']

_MOST_STEPS, _ENOUGH_STEPS, _MOST_A_BATCH = 10_000, 3000, 30
_PRODUCTS_OF_MOST, _PRODUCTS_OF_ENOUGH = 2**33, 2**35
_WORTH_COMPILING = 2000


def chosen(num_batches: int, num_products: int, has_more_rows: bool) -> int:
  """The number of steps on each batch, where rows can be drawn for each.

  Args:
    num_batches: Python `int`, B, the number of batches to come.
    num_products: Python `int`, p, how many products with weights there are in a
      pass of all chains over the rows of a step.
    has_more_rows: Python `bool`, whether a step has rows beside its batch.

  Returns:
    number: Python `int`, r.

  #### Examples

  >>> [chosen(number, 2**19, True) for number in (30, 700, 1400, 5600, 12000)]
  [30, 15, 8, 2, 1]
  >>> [chosen(700, num_products, False) for num_products in (2**19, 2**25)]
  [5, 2]
  """
  enough = min(_MOST_STEPS, (
      max(_ENOUGH_STEPS, _PRODUCTS_OF_MOST // num_products) if has_more_rows
      else min(_ENOUGH_STEPS, _PRODUCTS_OF_ENOUGH // num_products)))
  return max(1, min(_MOST_A_BATCH, -(-enough // max(1, num_batches))))


def is_worth_compiling(num_steps: int) -> bool:
  """Whether so many steps gain more by XLA than it takes to compile them.

  They gain about 1 ms each on a CPU, and compiling takes 2 s.

  Args:
    num_steps: Python `int`, the number of steps to come.

  Returns:
    is_worth_compiling: Python `bool`.
  """
  return num_steps >= _WORTH_COMPILING
