"""What `PosteriorSampling` chooses where it is not told.

Settings that are left out together with the kernel are chosen so that `fit`,
started from new or from trained weights, ends with a posterior that is worth
having:

  kernel         SGNHT ("badodab", a thermostat for each weight tensor), whose
                 scales, step size and friction `SelfTuning` finds in burn-in
  prior          N(0, 1) for each weight, N(0, 128 / inputs) for kernels of
                 more than 128 inputs, where the model has no regularisers
  first epochs   a fifth of them is for the compiled optimizer, the first of two
  burn-in        a third of the steps that are left, or the search (below) and
                 a tenth of those left after it
  draws          30, evenly spaced over the rest

Where T is chosen by validation data, the step size follows T until burn-in
ends.
"""

from collections.abc import Callable
import functools
from typing import NamedTuple

from tfp_sgmcmc import mcmc

__all__ = [
    'MOMENTUM', 'NUM_DRAWS', 'Plan', 'epochs_of_the_optimizer', 'kernel',
    'plan']

MOMENTUM = 0.9  # With a learning rate that is given.
NUM_DRAWS = 30

_BURNIN, _BURNIN_AFTER_SEARCH = 1. / 3., 0.1
_FIRST_STEP_SIZE = 0.003


def kernel() -> Callable[..., mcmc.SGNHT]:
  """The kernel whose step size is found: a callable of the target."""
  return functools.partial(
      mcmc.SGNHT, step_size=_FIRST_STEP_SIZE, diffusion=0., thermostat='part')


class Plan(NamedTuple):
  """When draws are made.

  Attributes:
    num_burnin_steps: The number of first steps of the chain without draws.
    num_steps_between_results: The number of steps between two draws.
  """
  num_burnin_steps: int
  num_steps_between_results: int


def epochs_of_the_optimizer(epochs: int) -> int:
  """How many of the epochs are the compiled optimizer's.

  Args:
    epochs: Python `int`, all epochs of `fit`.

  Returns:
    epochs: A fifth, at least one; none where there is but one.

  #### Examples

  >>> [epochs_of_the_optimizer(epochs) for epochs in (1, 2, 9, 25)]
  [0, 1, 1, 5]
  """
  return max(1, epochs // 5) if epochs > 1 else 0


def plan(
    num_steps: int,
    first: int = 0,
    num_burnin_steps: int | None = None,
    num_steps_between_results: int | None = None,
) -> Plan:
  """When to draw, if so many steps are to be made.

  Args:
    num_steps: Python `int`, the number of steps to come.
    first: Python `int`, the number of steps that a search for the temperature
      has made before.
    num_burnin_steps: Python `int`, how many of the steps to come are burn-in;
      None to choose.
    num_steps_between_results: Python `int`; None to choose.

  Returns:
    plan: `Plan`, which counts the steps of the search as burn-in.

  #### Examples

  >>> plan(900)
  Plan(num_burnin_steps=300, num_steps_between_results=19)
  >>> plan(1000, first=500)
  Plan(num_burnin_steps=600, num_steps_between_results=29)
  >>> plan(2)
  Plan(num_burnin_steps=0, num_steps_between_results=0)
  """
  if num_burnin_steps is None:
    num_burnin_steps = int(
        (_BURNIN_AFTER_SEARCH if first else _BURNIN) * num_steps)
  if num_steps_between_results is None:
    rest = num_steps - num_burnin_steps
    num_steps_between_results = max(1, rest // NUM_DRAWS) - 1
  return Plan(first + num_burnin_steps, num_steps_between_results)
