"""What can go wrong in a chain, and how its kernel tells of it.

Compiled code raises nothing: a chain that cannot go on becomes NaN. The results
of each kernel have a method

  failure(state) -> Failure | None

that says, of a state and results that have concrete values, whether the chain
has failed and why. Whoever drives a kernel asks it through `find_failure`, and
adds at which step that was and what has been kept.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = [
    'Failure',
    'FireflyError',
    'NonFiniteError',
    'RateBoundError',
    'SamplingInterrupted',
    'find_failure',
    'join_some',
    'name_chain',
    'non_finite',
]

_MOST_NAMED = 5

# What makes a log density NaN or infinite besides a step that is too large.
OTHER_CAUSES = (
    'Look for log(0), 0/0 or overflow in the log density, and for NaN or '
    'infinities in the data')


class NonFiniteError(ArithmeticError):
  """A chain has become NaN or infinite.

  Attributes:
    step: Python `int`, the number of the step after which a state was not
      finite. Step 1 is the first, burn-in included.
    result: What was sampled before that step, as the function that raised it
      would have returned it (`Draws` of `sample`, a `Trajectory` of
      `Trajectory.from_chain`); None if nothing was kept. It ends at its last
      draw; without draws, and with `gradients.Stream`, up to a second of steps
      before the failure.
  """

  def __init__(self, message: str, step: int, result: object = None):
    """Makes the error.

    Args:
      message: What happened.
      step: The number of the step.
      result: What was sampled before.
    """
    super().__init__(message)
    self.step = step
    self.result = result


class SamplingInterrupted(KeyboardInterrupt):
  """Ctrl-C, or a signal handled in the same way, has ended `sample`.

  `except KeyboardInterrupt` catches it too.

  Attributes:
    step: Python `int`, the number of steps made, burn-in included.
    result: `Draws`, what was sampled. It ends at its last draw; without draws
      (in burn-in) at step `step`.
  """

  def __init__(self, message: str, step: int, result: object):
    """Makes the error.

    Args:
      message: What happened.
      step: The number of steps made.
      result: What was sampled.
    """
    super().__init__(message)
    self.step = step
    self.result = result


class FireflyError(NonFiniteError):
  """`FireflyMonteCarlo` could not continue exactly.

  More examples are bright than `capacity`, or a bound is above its likelihood.
  From that step on the chain is NaN.
  """


class RateBoundError(NonFiniteError):
  """The rate of a continuous-time sampler was above its bound.

  From that event on the chain is NaN, since it would not be exact.
  """


class Failure(NamedTuple):
  """Why a chain cannot go on.

  Attributes:
    error: The class of the error to raise.
    reason: What happened and in which chains, the rest of a sentence that
      begins with where: "At step 3".
    advice: What to do about it, whole sentences.
  """
  error: type[NonFiniteError]
  reason: str
  advice: str

  def raised(
      self, where: str, step: int, kept: str = '', result: object = None,
  ) -> NonFiniteError:
    """The error to raise.

    Args:
      where: The beginning of the message, such as "At step 3".
      step: The number of the step.
      kept: A sentence that says what was kept.
      result: What was kept.

    Returns:
      error: Of the class `error`.
    """
    sentences = [f'{where} {self.reason}.', kept, self.advice]
    return self.error(' '.join(filter(None, sentences)), step, result)


def find_failure(kernel_results: Any, state: hints.State) -> Failure | None:
  """Asks the results of a kernel, or of one wrapped by it, for a failure.

  Args:
    kernel_results: Results of any `tfp.mcmc.TransitionKernel`. Where neither
      they nor results inside them tell of a failure, a state that is not finite
      is one.
    state: The state, a tensor or nested tensors, with concrete values.

  Returns:
    failure: `Failure`, or None for a chain that can go on.
  """
  tell = compat.find_result(kernel_results, 'failure')
  failure = None if tell is None else tell(state)
  if failure is not None:
    return failure
  return non_finite(
      state, states.chain_shape(kernel_results).rank,
      f'{OTHER_CAUSES}, or take a smaller step size.')


def non_finite(
    state: hints.State,
    chain_rank: int,
    advice: str,
) -> Failure | None:
  """The failure of a state with values that are NaN or infinite, if any.

  Args:
    state: Tensor or nested tensors.
    chain_rank: Python `int`, how many leading axes are chains.
    advice: What to do about it.

  Returns:
    failure: `Failure` that names chains and parts; None where all is finite.
  """
  found = []
  for k, part in enumerate(tf.nest.flatten(state)):
    part = tf.convert_to_tensor(part)
    if not part.dtype.is_floating:
      continue
    bad = ~tf.math.is_finite(part)
    counts = tf.reduce_sum(
        tf.cast(bad, tf.int32), axis=list(range(chain_rank, bad.shape.rank)))
    size = part.shape[chain_rank:].num_elements()
    for index in np.argwhere(counts.numpy() > 0).tolist():
      chain = f'{name_chain(index)}, ' if index else ''
      found.append(
          f'{chain}part {k}, {int(counts[tuple(index)])} of {size} values')
  if not found:
    return None
  return Failure(
      NonFiniteError, f'the state is not finite: {join_some(found)}', advice)


def name_chain(index: Sequence[int]) -> str:
  """A chain by its index, such as "chain 3"; "the chain" of a single one."""
  if not index:
    return 'the chain'
  return f'chain {index[0] if len(index) == 1 else tuple(index)}'


def join_some(found: Sequence[str]) -> str:
  """The first few findings in a row, and how many more there are."""
  more = len(found) - _MOST_NAMED
  return '; '.join(found[:_MOST_NAMED]) + (
      f'; and {more} more' if more > 0 else '')
