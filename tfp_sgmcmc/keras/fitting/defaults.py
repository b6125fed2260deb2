"""What `PosteriorSampling` chooses where it is not told.

Settings that are left out together with the kernel are chosen so that `fit`,
started from new or from trained weights, ends with a posterior that is worth
having:

  kernel         SGNHT ("badodab", a thermostat for each weight tensor), whose
                 scales, step size and friction `SelfTuning` finds in burn-in
  prior          N(0, 1) for each weight, N(0, 128 / inputs) for kernels of
                 more than 128 inputs, N(0, 1 / inputs) for those of attention,
                 N(0, 0.01) for LoRA's matrices, narrower in deep stacks of
                 dense layers, before batch normalisation and for inputs that
                 spread by more than 10, where the model has no regularisers
  first epochs   a fifth of them is for the compiled optimizer, the first of two
  burn-in        a third of the steps that are left, or the search (below) and
                 a tenth of those left after it
  draws          30 of each chain, evenly spaced over the rest
  chains         four of a new and small network on a table: `number_of_chains`
  steps          several for each batch in a short fit of few rows, by a small
                 network: `steps_per_batch`

Where T is chosen by validation data, the step size follows T until burn-in
ends.
"""

from collections.abc import Callable
import functools

from tfp_sgmcmc import mcmc

__all__ = ['MOMENTUM', 'epochs_of_the_optimizer', 'kernel']

MOMENTUM = 0.9  # With a learning rate that is given.
_FIRST_STEP_SIZE = 0.003


def kernel() -> Callable[..., mcmc.SGNHT]:
  """The kernel whose step size is found: a callable of the target."""
  return functools.partial(
      mcmc.SGNHT, step_size=_FIRST_STEP_SIZE, diffusion=0., thermostat='part')


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
