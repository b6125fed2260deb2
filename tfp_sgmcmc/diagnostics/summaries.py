"""One table that says how good a run is."""

import functools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import draws as draws_lib
from tfp_sgmcmc import posterior as posterior_lib
from tfp_sgmcmc.diagnostics import chains as chains_lib
from tfp_sgmcmc.diagnostics import runs as runs_lib
from tfp_sgmcmc.diagnostics import temperatures
from tfp_sgmcmc.diagnostics import verdicts
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import seeds
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.internal import wrapped
from tfp_sgmcmc.mcmc import base as mcmc_base
from tfp_sgmcmc.pdmp import trajectory as trajectory_lib

__all__ = ['summary']

_MOST_CHAINS = 64
_MOST_DRAWS = 2000
_FEWEST_DRAWS = 12


@functools.singledispatch
def summary(
    result: Any,
    kernel: tfp.mcmc.TransitionKernel | None = None,
    num_gradients: int = 1000,
    max_coordinates: int = 20,
    seed: hints.Seed = 0,
) -> verdicts.Summary:
  """How good a run is, in one table of plain words.

  Each row is a number with its standard error and a verdict: fine, doubtful or
  wrong, and what to try. The rows, where they are available:

    rank R-hat           below 1.05 fine, above 1.2 wrong; of few draws, below
                         what chance explains fine
    effective draws      400 or more fine, fewer doubtful
    drift                last third of the run less the first, in standard
                         deviations: 0, doubtful from 0.1, wrong from 0.5
    kinetic temperature  |r|^2 / (d T) of the momentum r: 1, doubtful from 10%
                         off, wrong from 50%; less the offset h friction / 2
                         of SGHMC's "euler", which is none of the positions
    configurational      -(theta - m) . grad log density / (d T) by the exact
      temperature        gradient, m any fixed point: likewise, the mean over
                         coordinates and the worst of them
    noise of the         h C / (2 friction T), C the variance of the estimate
      gradient           at the last state: by how much it heats the chain; 0,
                         likewise, unless the sampler compensates
    correlated noise     of `SelfTuning`, which makes up for the variances of
      of the gradient    noise and not for its covariances: by how much these
                         heat and cool directions, a root mean square; doubtful
                         from 0.2, wrong from 0.5
    impossible rows      those of the data whose log likelihood is NaN or
                         infinite at three draws: wrong from 1
    acceptance           of EWSG's index chain, 1 with even weights: doubtful
                         within a tenth of the way from where the heaviest
                         minibatch always wins (1/2 with one index step)
    times taken back     by the guard of `SelfTuning`, after the adaptation:
                         doubtful from 1
    violated bounds      share of proposals: doubtful from 1%, wrong from 5%
    NLL of predictions   of a Keras model on given data, in nats: wrong where a
                         constant prediction is better, doubtful where the
                         posterior is not better than that, or where the
                         weights before sampling are better by 0.01

  A deviation counts only beyond what its standard error explains, at a false
  alarm rate of 1e-3 a row (for normal errors). Where the error is too large for
  a verdict the row is doubtful. Of 160 right runs on a Gaussian with 4,000
  effective draws none had a row that was not fine; of 120 with about 500 four
  were doubtful, for fewer than 400. For the worst coordinate the false alarm
  rate is shared among all coordinates: `diagnostics.temperatures` says which
  errors it finds. R-hat, effective draws and drift are of the parameters, and
  of the log density if it was traced. The rows of the parameters name the worst
  parameter; for a joint distribution by its name in the model. A run that is
  fine may still have missed a mode, or be too wide in a direction across
  several coordinates.

  Weighted draws (`AdaptiveTime`) are judged at equal weights, after
  `resampled()`; the kernel's step size is then taken as given.

  Args:
    result: `Draws`, what `sample` returned, or a `pdmp.Trajectory`; or a list
      of `Draws`, of separate runs of one posterior: then all their chains are
      compared, over the last draws of each, as many as the shortest run has.
      (For the draws of a Keras model, or of `PosteriorSampling` after `fit`,
      the summary judges their predictions on given inputs:
      `summary(result, x)`. For several chains, pooled or as a list of separate
      fits, `summary(results, x, y)` compares the chains. With targets y it has
      the row of the NLL. This row compares with the weights before sampling, if
      they were kept, as `fit` does. It also compares with the best constant
      prediction, for crossentropies, "poisson", `GaussianLikelihood` and
      `LaplaceLikelihood`; for other densities no formula gives it.) With
      `trace_fn=diagnostics.trace_energies` (or a trace with a field
      `target_log_prob`, and `momentum` or `mean_squared_momentum`) there are
      rows of the log density and of the kinetic temperature.
    kernel: The kernel that made the result. Without it the rows of temperatures
      are left out; also if T is a schedule, zero or not a single number.
    num_gradients: Python `int`: the number of states, over all chains, at which
      the gradient on all the data is computed for the configurational
      temperature; zero leaves that row out.
    max_coordinates: Python `int`: R-hat, effective draws and drift use at most
      this many coordinates, evenly spread.
    seed: Python `int` or stateless seed, of the gradient's noise.

  Returns:
    summary: `Summary`; `print(summary)` shows it, `summary.verdict` is the
      worst of its rows'.

  Raises:
    TypeError: If the result is of another type.
    ValueError: If there are fewer than 12 draws, or runs are of different
      posteriors.
    ImportError: If ArviZ is not installed.

  #### Examples

  >>> kernel = sgmcmc.SGHMC(
  ...     tfd.MultivariateNormalDiag(tf.zeros(3)).log_prob, step_size=0.2,
  ...     friction=1.)
  >>> draws = sgmcmc.sample(
  ...     kernel, 1000, tf.zeros([4, 3]), num_burnin_steps=200,
  ...     num_steps_between_results=9, progress_bar=False, seed=1,
  ...     trace_fn=sgmcmc.diagnostics.trace_energies)
  >>> summary = sgmcmc.diagnostics.summary(draws, kernel)
  >>> summary.verdict
  'fine'
  >>> for row in summary.rows[-3:]:
  ...   print(row.quantity)
  configurational temperature / T
  configurational temperature / T, worst coordinate
  kinetic temperature / T

  #### References

  In `diagnostics.chains` and `diagnostics.temperatures`.
  """
  del kernel, num_gradients, max_coordinates, seed
  raise TypeError(
      f'result is of type {type(result).__name__}: what sgmcmc.sample returned '
      '(Draws) or a pdmp.Trajectory is needed. In place of tfp.mcmc.'
      'sample_chain call sgmcmc.sample, which takes the same kernels.')


@summary.register(list)
@summary.register(tuple)
def _(result, *arguments, **keywords):
  if not result:
    raise ValueError('There are no runs in the list: one at least is needed.')
  kinds = sorted({type(run).__name__ for run in result})
  if len(kinds) > 1:
    raise TypeError(
        f'The runs are of the types {", ".join(kinds)}: a list of runs of one '
        'posterior, all of one type, is needed.')
  return runs_lib.summary_of_runs(result[0], result, *arguments, **keywords)


@summary.register
def _(result: draws_lib.Draws, kernel=None, num_gradients=1000,
      max_coordinates=20, seed=0):
  return runs_lib.summary_of_runs(
      result, [result], kernel, num_gradients, max_coordinates, seed)


@runs_lib.summary_of_runs.register
def _(first: draws_lib.Draws, runs, kernel=None, num_gradients=1000,
      max_coordinates=20, seed=0):
  runs = [run.resampled() for run in runs]
  rank = first.num_chain_axes
  parts, traces = _of_one_length(
      [_parts(run.states) for run in runs],
      [_fields(run.trace) for run in runs], rank)
  kernels, results = zip(*(
      _innermost(kernel, run.kernel_results) for run in runs))
  place = _places(kernels[0], parts[0], rank)
  rows = _chain_rows(
      kernels[0], parts, traces, rank, max_coordinates, place)
  rows += _temperature_rows(
      kernels[0], parts, rank, num_gradients, rows[1].value, place)
  known = [k and temperatures.dynamics(k) for k in kernels]
  if known[0]:
    rows.append(temperatures.kinetic(
        [_mean_square(trace, rank) for trace in traces], known))
    rows.append(temperatures.noise_share(
        kernels[0], states.to_parts(first.final_state), results[0], known[0],
        seeds.to_stateless(seed)))
    rows.append(temperatures.correlated_noise(
        kernels[0], states.to_parts(first.final_state), results[0], known[0],
        seeds.to_stateless(seed)))
  rows += verdicts.findings(
      first.kernel_results, getattr(kernels[0], 'gradient_estimator', None))
  return verdicts.Summary(tuple(row for row in rows if row is not None))


@summary.register
def _(result: trajectory_lib.Trajectory, kernel=None, num_gradients=1000,
      max_coordinates=20, seed=0):
  del seed
  rank = result.num_chain_axes
  parts = [_parts(result.sample(min(_MOST_DRAWS, result.counts.events)))]
  kernel, _ = _innermost(kernel, None)
  place = _places(kernel, parts[0], rank)
  rows = _chain_rows(kernel, parts, [{}], rank, max_coordinates, place)
  rows += _temperature_rows(
      kernel, parts, rank, num_gradients, rows[1].value, place)
  share = result.violation_share
  verdict = 'fine' if share <= 0.01 else (
      'doubtful' if share <= 0.05 else 'wrong')
  rows.append(verdicts.Row(
      'violated bounds, share of proposals', share, None, verdict,
      'It has to be below 0.01.' + ('' if verdict == 'fine' else (
          ' Raise confidence, or take larger minibatches (SBPS); give a '
          'rate_bound (ZigZagSampler, BouncyParticleSampler).'))))
  return verdicts.Summary(tuple(rows))


def _parts(values):
  parts = states.to_parts(values)
  if len(parts[0]) < _FEWEST_DRAWS:
    raise ValueError(
        f'There are {len(parts[0])} draws, and {_FEWEST_DRAWS} at least are '
        'needed to tell anything of a run: raise num_results.')
  return parts


def _fields(trace):
  """The trace's fields by name, `{}` where it has none."""
  if hasattr(trace, '_asdict'):
    return trace._asdict()
  return trace if isinstance(trace, dict) else {}


def _innermost(kernel, results):
  """The kernel that moves the particle, with its step size, and its results."""
  if kernel is not None and not isinstance(kernel, tfp.mcmc.TransitionKernel):
    raise TypeError(
        f'kernel is {kernel!r}: it has to be the kernel that made the result, '
        'or None.')
  around = list(wrapped.kernels(kernel))
  adapting = [k for k in around if hasattr(k, 'adapted_kernel')]
  if adapting and results is not None:
    kernel = adapting[0].adapted_kernel(results)
    results = results.inner_results
  elif around:
    kernel = around[-1]
  while hasattr(results, 'inner_results'):
    # The user passed the inner kernel: give it the adapted step size from the
    # outer results.
    if 'step_size' in results._fields and 'step_size' in (
        getattr(kernel, 'parameters', {})):
      kernel = kernel.copy(step_size=results.step_size)
    results = results.inner_results
  return kernel, results


def _of_one_length(parts, traces, rank):
  """The last draws of each run, as many as the shortest has."""
  shapes = {str([tuple(part.shape[1:]) for part in run]) for run in parts}
  if len(shapes) > 1:
    raise ValueError(
        f'The runs have states of shapes {" and ".join(sorted(shapes))}: runs '
        'of one posterior, with as many chains each, are needed.')
  length = min(len(run[0]) for run in parts)
  return (
      [[part[-length:] for part in run] for run in parts],
      [tf.nest.map_structure(lambda x: x[-length:], trace)
       for trace in traces])


def _places(kernel, parts, rank):
  """What a coordinate of the state is called, by its index: a callable.

  Of a joint distribution by its names, 'means[3]'; else by its part.
  """
  target = getattr(kernel, 'target_log_prob_fn', None)
  names = target and posterior_lib.as_posterior(target).part_names
  events = [part.shape[1 + rank:] for part in parts]
  sizes = [int(np.prod(event)) for event in events]
  ends = np.cumsum(sizes)

  def place(k):
    part = int(np.searchsorted(ends, k, side='right'))
    at = np.unravel_index(k - ends[part] + sizes[part], events[part])
    where = f'[{", ".join(map(str, at))}]' if at else ''
    if names:
      return f'{names[part]}{where}'
    return f'{where} of part {part} of the state'.removeprefix(' of ')

  return place


def _chain_rows(kernel, parts, traces, rank, max_coordinates, place):
  checks.positive_integer('max_coordinates', max_coordinates)
  values, factor = _chains_first(parts, rank)
  d = values.shape[-1]
  index = np.unique(np.linspace(0, d - 1, min(d, max_coordinates)).astype(int))
  rows = _rows_of('the parameters', values[..., index], factor, **(
      {} if d == 1 else dict(
          place=lambda k: place(index[k]), advice=_on_scales(kernel))))
  if all(trace.get('target_log_prob') is not None for trace in traces):
    rows += _rows_of('the log density', *_chains_first(
        [[trace['target_log_prob']] for trace in traces], rank))
  return rows


def _on_scales(kernel):
  """What to try where a kernel could take a metric and has none."""
  if not isinstance(kernel, mcmc_base.LangevinKernel) or (
      kernel.parameters.get('preconditioner', '') is not None):
    return ''
  return (
      ' Where parameters have unequal scales or are correlated, sample '
      'posterior.whiten(posterior.mode(seed=0)): one step size fits all '
      'there.')


def _rows_of(name, values, factor, place=None, advice=''):
  return [
      chains_lib.r_hat(name, values, place),
      chains_lib.effective_draws(
          name, values, factor, place=place, advice=advice),
      chains_lib.drift(name, values)]


def _chains_first(runs, rank):
  """`[chain, draw, d]` of not too many, and how many times more chains are.

  Of the parts of each of several runs of one length.
  """
  num_draws = len(runs[0][0])
  flat = np.concatenate([np.concatenate([
      np.reshape(part, [num_draws, int(np.prod(part.shape[1:1 + rank])), -1])
      for part in parts], axis=-1) for parts in runs],
      axis=1).astype(np.float64)
  num_chains = flat.shape[1]
  chain = np.linspace(0, num_chains - 1, min(num_chains, _MOST_CHAINS))
  draw = np.linspace(0, num_draws - 1, min(num_draws, _MOST_DRAWS))
  few = flat[np.ix_(draw.astype(int), chain.astype(int))]
  return np.swapaxes(few, 0, 1), num_chains / len(chain)


def _mean_square(trace, rank):
  """|r|^2 / d, `[chain, draw]`; None where it was not traced."""
  square = trace.get('mean_squared_momentum')
  if square is None:
    if trace.get('momentum') is None:
      return None
    values, _ = _chains_first([tf.nest.flatten(trace['momentum'])], rank)
    return np.mean(values**2, axis=-1)
  values, _ = _chains_first([[square]], rank)
  return None if np.isnan(values).all() else values[..., 0]


def _temperature_rows(
    kernel, parts, rank, num_gradients, num_effective, place):
  """The rows of the configurational temperature, if they can be had."""
  num_gradients = checks.non_negative_integer('num_gradients', num_gradients)
  known = kernel and temperatures.dynamics(kernel)
  target = getattr(kernel, 'target_log_prob_fn', None)
  if not known or target is None or not num_gradients:
    return []
  posterior = posterior_lib.as_posterior(target)
  if posterior.is_sharded or (
      posterior.has_examples and posterior.data is None):
    return []  # The examples are elsewhere, or come from a pipeline.
  num = len(parts[0][0])
  of_one_chain = [
      [part[(k, *[slice(1)] * rank)] for part in parts[0]]
      for k in (num // 4, num // 2, num - 1)]
  return [*_of_impossible_rows(
      posterior, of_one_chain), *temperatures.configurational(
          posterior, parts, rank, known.temperature, num_gradients,
          num_effective, place)]


def _of_impossible_rows(posterior, draws):
  """The row of data without a likelihood at some draws, where there are some.

  A minibatch may never have one of these. Where all rows are such, it is the
  state's fault, of which the other rows of the summary tell.
  """
  if not posterior.has_examples:
    return []
  values = np.stack([
      np.ravel(posterior.log_likelihood(*parts, batch=posterior.data))
      for parts in draws])
  is_bad = ~np.isfinite(values).any(axis=0)
  bad = np.flatnonzero(is_bad)
  if not is_bad.any() or is_bad.all():
    return []
  return [verdicts.Row(
      'rows whose log likelihood is NaN or infinite', float(len(bad)), None,
      'wrong', f'It has to be 0, and is of {len(is_bad):,} rows. The first is '
      f'row {bad[0]}: leave such rows out, or mend the likelihood. Are they '
      'values that it can have?')]
