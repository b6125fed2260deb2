"""What the step size does to the answers: the same run with half of it."""

from collections.abc import Callable
import functools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc import sampling
from tfp_sgmcmc.diagnostics import chains as chains_lib
from tfp_sgmcmc.diagnostics import verdicts
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import seeds
from tfp_sgmcmc.internal import states

__all__ = ['compare_step_sizes']

_ADVICE = (
    'The step size still shows: go on with half of it, or less, and compare '
    'again.')


def compare_step_sizes(
    kernel: tfp.mcmc.TransitionKernel,
    num_results: int,
    current_state: hints.State,
    num_burnin_steps: int = 0,
    num_steps_between_results: int = 0,
    fn: Callable[..., Any] | None = None,
    seed: hints.Seed = None,
    progress_bar: bool = False,
) -> verdicts.Summary:
  """How far the answers move when the step size is halved, at equal time.

  It makes two runs of `sample`: as given, and with h / 2, twice the burn-in and
  twice the steps between draws, so that the draws are as far apart in time.
  Each row of the table shows how far an answer moves from h to h / 2, with its
  standard error.

  The move shows the bias of the step and of gradient noise. If the bias is of
  order h, as that of the noise is, the bias left at h / 2 is about as large as
  the move; if it is of order h^2, a third of the move.

  Args:
    kernel: A kernel with a step size: a number, a tensor or a schedule (each of
      its steps is halved and made twice).
    num_results: Python `int`, the number of draws of each run.
    current_state: Tensor or list of tensors, where to start.
    num_burnin_steps: Python `int`, the steps before the draws, with h.
    num_steps_between_results: Python `int`, as in `sample`, with h.
    fn: Callable of the state's parts, which has leading axes of draws and
      chains, `[draws] + chains`; returns a tensor, or nested ones, with the
      same. The answers are then its means. Default: the state's means and
      variances, the coordinate that moves most.
    seed: Python `int` or stateless seed; the two runs derive different seeds
      from it.
    progress_bar: Python `bool`.

  Returns:
    comparison: `Summary`. Moves are in standard deviations of the answer over
      the draws with h / 2; those of variances are shares of the variance.
      Doubtful from 0.1, wrong from 0.3.

  Raises:
    TypeError: If the kernel has no step size.
    ImportError: If ArviZ is not installed.
    NonFiniteError: If a run diverges.

  #### Examples

  >>> kernel = sgmcmc.SGLD(tfd.Normal(0., 1.).log_prob, step_size=1.)
  >>> comparison = sgmcmc.diagnostics.compare_step_sizes(
  ...     kernel, 1000, tf.zeros([100]), num_burnin_steps=10, seed=1)
  >>> [(row.quantity, row.verdict) for row in comparison.rows]
  [('move of a mean, in sd', 'fine'), ('move of a variance, share', 'wrong')]
  >>> round(comparison.rows[1].value, 1)  # 1 / (1 - h / 2): from 2 to 4 / 3.
  0.5
  """
  parameters = getattr(kernel, 'parameters', {})
  step_size = parameters.get('step_size')
  if step_size is None:
    raise TypeError(
        f'kernel is {kernel!r}, which has no step_size to halve. Of '
        'TemperatureStepSizeAdaptation take what it has found: '
        'kernel.adapted_kernel(draws.kernel_results).')
  between = checks.non_negative_integer(
      'num_steps_between_results', num_steps_between_results)
  burnin = checks.non_negative_integer('num_burnin_steps', num_burnin_steps)
  half = functools.partial(_half, step_size) if callable(step_size) else (
      step_size / 2.)
  seed = seeds.to_stateless(seed)
  answers = []
  for k, (used, factor) in enumerate(
      ((kernel, 1), (kernel.copy(step_size=half), 2))):
    draws = sampling.sample(
        used, num_results, current_state, num_burnin_steps=factor * burnin,
        num_steps_between_results=factor * (between + 1) - 1,
        progress_bar=progress_bar, seed=random.fold_in(seed, k))
    answers.append(_answers(draws, fn))
  return verdicts.Summary(tuple(
      _row(name, *(found[name] for found in answers)) for name in answers[0]))


def _half(schedule, step):
  return schedule(step // 2) / 2.


def _answers(draws, fn):
  """By name, `[chain, draw, d]` whose means are the answers."""
  draws, rank = draws.resampled(), draws.num_chain_axes
  if fn is None:
    values = np.concatenate([
        _chains_first(part, rank) for part in states.to_parts(draws.states)],
        axis=-1)
    squares = np.square(values - values.mean(axis=(0, 1)))
    return {'move of a mean, in sd': values,
            'move of a variance, share': squares}
  leaves = tf.nest.flatten(fn(*states.to_parts(draws.states)))
  return {
      f'move of fn, in sd{"" if len(leaves) == 1 else f" (output {k})"}':
      _chains_first(leaf, rank) for k, leaf in enumerate(leaves)}


def _chains_first(values, rank):
  values = np.asarray(values, np.float64)
  chains = int(np.prod(values.shape[1:1 + rank]))
  return np.swapaxes(values.reshape([len(values), chains, -1]), 0, 1)


def _row(name, full, half):
  """Of `[chain, draw, d]` with h and with h / 2."""
  axes = (0, 1)
  scale = (half.mean(axis=axes) if 'variance' in name
           else half.std(axis=axes))
  scale = np.where(scale > 0., scale, 1.)
  error = np.hypot(*map(chains_lib.standard_error, (full, half))) / scale
  return verdicts.judge(
      name, (full.mean(axis=axes) - half.mean(axis=axes)) / scale, error, 0.,
      (0.1, 0.3), 'It has to be 0.', _ADVICE)
