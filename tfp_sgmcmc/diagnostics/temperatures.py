"""How hot a chain is, measured by its momentum, positions and gradient.

In the law of density^(1/T), with r the momentum and d coordinates,

  kinetic:          E|r|^2 / d = T
  configurational:  -E[(theta - m) . grad log density] / d = T, any fixed m

the second by parts (the virial theorem), and so for each coordinate,

  -E[(theta_i - m_i) d log density / d theta_i] = T.

All are exact in the law, for any density, so a deviation is the chain's error.
See Wenzel et al. (2020), appendix I, and Leimkuhler and Matthews (2015),
section 6.1.5.

Averaging over d coordinates can hide a wrong one, so the worst is judged
separately. It is the largest of d numbers of about a chi-square's law, each
with an error of its own, and the false alarm rate is shared among all d. Of 390
tables of right chains, of 20 Gaussian coordinates (30 of 1,000, 60 of heavy
tails), none had a coordinate that was not fine. A Gaussian coordinate of 20
whose standard deviation is 40% too large has the value 1.96: it is flagged in
120 of 120 tables with 300 to 900 effective draws, in 34 of 60 with 60, in 3 of
60 with 20. If a direction across several coordinates is too wide, each of them
shows only a part of the error.

The mean of n kinetic temperatures in neighbouring steps, as `fit` records them,
is at T = 1 chi-square with nu = d n / tau degrees of freedom, over nu, with
tau = (1 + m^2) / (1 - m^2), since momenta of neighbouring steps have
correlation m. The standard error is such that z of them are a quantile of this
law.

#### References

[1]: Florian Wenzel et al. How Good is the Bayes Posterior in Deep Neural
     Networks Really? _ICML_, 2020.
[2]: Benedict Leimkuhler and Charles Matthews. _Molecular Dynamics_, 2015.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import collectives
from tfp_sgmcmc import random
from tfp_sgmcmc import sharding
from tfp_sgmcmc.diagnostics import chains as chains_lib
from tfp_sgmcmc.diagnostics import verdicts
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = ['EnergyTrace', 'trace_energies']

_NUM_REPEATS = 32
_NUM_FOR_CORRELATION, _NUM_BLOCKS, _MOST_FOR_CORRELATION = 1280, 8, 1000
_TOLERANCES_OF_CORRELATION = (0.2, 0.5)
_MOST_COORDINATES = 20
_TOLERANCES = (0.1, 0.5)
# Of neighbouring steps; and the momentum where it is not known.
_FEWEST_STEPS, _SLOW = 10, 0.99
# Above this T in so many steps, and a whole epoch, a chain is lost.
_HOT, HOT_STEPS = 100., 100
_TOO_HOT = (
    'Take a smaller step size (for SGLD and SGHMC '
    'TemperatureStepSizeAdaptation finds one), larger minibatches or more '
    'friction; look for noise or a temperature counted twice, and for the '
    'factor N / n of the likelihood.')


class EnergyTrace(NamedTuple):
  """The energies of each draw that `summary` needs besides the state.

  Attributes:
    target_log_prob: The estimate of the log density, shape `chains`.
    mean_squared_momentum: |r|^2 / d, shape `chains`; NaN without a momentum.
  """
  target_log_prob: tf.Tensor
  mean_squared_momentum: tf.Tensor


def trace_energies(
    state: hints.State,
    kernel_results: hints.Results,
) -> EnergyTrace:
  """A `trace_fn` that keeps the energies of a draw, for `summary`.

  Args:
    state: Not used.
    kernel_results: The results of a kernel of this library.

  Returns:
    trace: `EnergyTrace`, two numbers a chain.

  #### Examples

  >>> kernel = sgmcmc.SGHMC(
  ...     tfd.Normal(0., 1.).log_prob, step_size=0.1, friction=1.)
  >>> draws = sgmcmc.sample(
  ...     kernel, 100, tf.zeros([4]), progress_bar=False, seed=1,
  ...     trace_fn=sgmcmc.diagnostics.trace_energies)
  >>> draws.trace.mean_squared_momentum.shape
  TensorShape([100, 4])
  """
  del state
  log_prob = compat.find_result(kernel_results, 'target_log_prob')
  momentum = compat.find_result(kernel_results, 'momentum')
  if momentum is None:
    return EnergyTrace(log_prob, tf.fill(
        tf.shape(log_prob), tf.constant(np.nan, log_prob.dtype)))
  rank = log_prob.shape.rank
  total = sum(
      tf.cast(states.sum_event(tf.square(r), rank), log_prob.dtype)
      for r in momentum)
  return EnergyTrace(log_prob, total / tf.cast(
      states.num_coordinates(momentum, rank), log_prob.dtype))


class Dynamics(NamedTuple):
  """What a kernel says of its noise, in numbers; None where it is not known.

  Attributes:
    temperature: T.
    step_size: h, or None where there is none.
    friction: gamma, or the diffusion; None where there is no momentum.
    keeps_kicked_momentum: Whether the momentum that is kept is the one just
      after its kick.
  """
  temperature: float
  step_size: Any
  friction: Any
  keeps_kicked_momentum: bool


def dynamics(kernel: tfp.mcmc.TransitionKernel) -> Dynamics | None:
  """The `Dynamics` of a kernel; None where its T is no positive number.

  None of sticky coordinates too: while they are 0 their gradients have no part
  in the law, and the identity of the temperature does not hold.
  """
  parameters = kernel.parameters
  if parameters.get('sticky') is not None:
    return None
  temperature = parameters.get('temperature', 1.)
  value = None if callable(temperature) else checks.static_value(temperature)
  if value is None or value.ndim or value <= 0.:
    return None
  step_size = parameters.get('step_size')
  return Dynamics(
      float(value), None if callable(step_size) else step_size,
      parameters.get(getattr(kernel, 'friction_argument', None)),
      getattr(kernel, 'stores_kicked_momentum', False))


def kinetic(
    mean_squares: Sequence[np.ndarray | None],
    known: Sequence[Dynamics | None],
) -> verdicts.Row | None:
  """The row of |r|^2 / d, `[chain, draw]` of each run; None if not known."""
  scales = [_scale_of_kinetic(dynamics) for dynamics in known]
  if any(x is None for x in [*mean_squares, *scales]):
    return None
  values = np.concatenate(
      [scale * x for scale, x in zip(scales, mean_squares)])[..., np.newaxis]
  return _kinetic_row(
      values.mean(), chains_lib.standard_error(values)[0], _TOO_HOT)


def _kinetic_row(ratio, standard_error, advice, is_judged=True):
  """The row of a kinetic temperature over T; doubtful at most if not judged."""
  doubtful, wrong = _TOLERANCES
  return verdicts.judge(
      'kinetic temperature / T', ratio, standard_error, 1.,
      (doubtful, wrong if is_judged else np.inf), 'It has to be 1.', advice)


def kinetic_of_steps(
    ratios: np.ndarray,
    num_coordinates: int,
    momentum: float | None,
    advice: Callable[[int], str],
    is_judged: bool = True,
) -> verdicts.Row | None:
  """The row of a chain's kinetic temperatures over T, in neighbouring steps.

  Args:
    ratios: Array `[n]`.
    num_coordinates: Python `int`, d.
    momentum: m, the share of the momentum that a step keeps; None where it is
      not known.
    advice: As `verdicts.judge` takes it.
    is_judged: Whether it may be wrong; doubtful at most if not.

  Returns:
    row: `Row`; None of fewer than ten steps, and at T = 0.
  """
  if len(ratios) < _FEWEST_STEPS or not np.any(ratios):
    return None
  m = min(_SLOW if momentum is None else momentum, 0.9999)
  tau = (1. + m**2) / (1. - m**2)
  nu = max(num_coordinates * len(ratios) / tau, num_coordinates)
  # Wilson and Hilferty: the cube root of chi-squared is nearly normal.
  z, variance = verdicts.quantile(), 2. / (9. * nu)
  error = ((1. - variance + z * variance**0.5)**3 - 1.) / z
  return _kinetic_row(np.mean(ratios), error, advice, is_judged)


def heat_without_bound(ratios: np.ndarray) -> verdicts.Row | None:
  """The row of a chain that is far too hot in 100 steps, and does not cool.

  None where it is not so; `ratios` are those of `kinetic_of_steps`.
  """
  if len(ratios) < HOT_STEPS or not np.all(ratios > _HOT):
    return None
  quarter = len(ratios) // 4
  if np.median(ratios[-quarter:]) < np.median(ratios[:quarter]):
    return None
  return verdicts.Row(
      'kinetic temperature / T', float(ratios[-1]), None, 'wrong',
      'It does not fall.')


def growth_of_loss(loss: float, first: float, spread: float) -> verdicts.Row:
  """The row of a mean loss while the chain samples, and of the first one.

  Doubtful ten spreads (d T / (2 N), by which a chain that comes from the mode
  loses) and twice the first loss above that loss, wrong a hundred of each.
  """
  verdict = 'fine'
  for spreads, starts, worse in ((10., 2., 'doubtful'), (100., 100., 'wrong')):
    if loss > first + spreads * spread + starts * max(1., abs(first)):
      verdict = worse
  return verdicts.Row(
      'mean loss', loss, None, verdict,
      f'the mean loss has grown from {first:.4g} to {loss:.4g}, and '
      f'{spread:.3g} above its minimum, d T / (2 N), is what the posterior '
      'explains.')


def _scale_of_kinetic(known):
  """What makes |r|^2 / d the kinetic temperature over T.

  Less the offset h friction / 2 of a momentum that is stored after its kick,
  which does nothing to the law of theta.
  """
  if not known.keeps_kicked_momentum:
    return 1. / known.temperature
  if known.step_size is None:
    return None
  offset = 0.5 * np.asarray(known.step_size) * np.asarray(known.friction)
  return None if offset.ndim else (1. - float(offset)) / known.temperature


def configurational(
    target: hints.LogDensity, runs: Sequence[list[tf.Tensor]], chain_rank: int,
    temperature: float, num_gradients: int, num_effective: float,
    place: Callable[[int], str],
) -> list[verdicts.Row]:
  """The rows of -(theta - m) . grad log density / (d T), by the exact gradient.

  The mean over the coordinates and, where there are several, the worst of them.

  `runs` are the parts of the states, with leading axes of draws and of chains.
  m is the mean of the other chains; of a single one, of its other half. The
  standard error is at least that of `num_effective` independent draws of a
  Gaussian, sqrt(2 / (d num_effective)), with d = 1 for a coordinate: a chain
  that has hardly moved has values that hardly differ.
  """
  num_draws, num_chains = len(runs[0][0]), int(
      np.prod(runs[0][0].shape[1:1 + chain_rank]))
  num = min(num_draws, max(2, num_gradients // (num_chains * len(runs))))
  index = np.linspace(0, num_draws - 1, num).astype(int)
  runs = [[tf.gather(part, index) for part in parts] for parts in runs]

  def gradients_at(parts):
    return tf.map_fn(
        lambda at: states.value_and_gradients(target, at)[1], parts,
        fn_output_signature=[part.dtype for part in parts])

  # Traced here: TensorFlow warns of functions that are made anew many times.
  gradients = tf.function(gradients_at, autograph=False).get_concrete_function(
      runs[0])
  theta, g = (
      np.concatenate([
          np.concatenate([
              np.reshape(x, [num, num_chains, -1]).astype(np.float64)
              for x in xs], axis=-1) for xs in of_runs], axis=1)
      for of_runs in (runs, [gradients(*parts) for parts in runs]))
  virial = np.swapaxes(
      -(theta - _others_mean(theta)) * g, 0, 1) / temperature
  return rows_of_virial(virial, num_effective, place)


def rows_of_virial(
    virial: np.ndarray, num_effective: float, place: Callable[[int], str],
) -> list[verdicts.Row]:
  """The rows of -(theta - m) * grad log density / T, `[chain, draw, d]`.

  Args:
    virial: Array.
    num_effective: Of how many independent draws the errors are at least.
    place: Says of the index of a coordinate where it is.

  Returns:
    rows: As `configurational`.
  """
  d = virial.shape[-1]
  name, least = 'configurational temperature / T', np.sqrt(2. / num_effective)
  whole = virial.mean(axis=-1, keepdims=True)
  rows = [verdicts.judge(
      name, whole.mean(), np.maximum(
          least / np.sqrt(d), chains_lib.standard_error(whole)[0]), 1.,
      _TOLERANCES, 'It has to be 1.', _TOO_HOT)]
  if d > 1:
    values = virial.mean(axis=(0, 1))
    far = np.argsort(-np.abs(values - 1.))[:_MOST_COORDINATES]
    rows.append(verdicts.judge(
        f'{name}, worst coordinate', values[far], np.maximum(
            least, chains_lib.standard_error(virial[..., far])), 1.,
        _TOLERANCES, 'It has to be 1.',
        lambda worst: f'It is {place(far[worst])}: above 1 its draws spread '
        f'too far, below 1 too little. {_TOO_HOT}',
        needs_precision=False, number=d))
  return rows


def _others_mean(theta):
  """For each value the mean of other draws, of `[draw, chain, d]`.

  That of the other chains; with one chain, of its other half.
  """
  num, num_chains, _ = theta.shape
  if num_chains > 1:
    mean = theta.mean(axis=0)
    return (mean.sum(axis=0) - mean) / (num_chains - 1)
  is_first = np.arange(num)[:, np.newaxis, np.newaxis] < num // 2
  return np.where(
      is_first, theta[num // 2:].mean(axis=0), theta[:num // 2].mean(axis=0))


def noise_share(
    kernel: tfp.mcmc.TransitionKernel,
    parts: list[tf.Tensor],
    results: hints.Results,
    known: Dynamics,
    seed: hints.Seed,
) -> verdicts.Row | None:
  """The row of h C / (2 friction T), the gradient's noise beside the kernel's.

  C is the variance of estimates at the last state, from pairs of them.
  """
  estimator = getattr(kernel, 'gradient_estimator', None)
  if (known.step_size is None or estimator is None or estimator.is_exact
      or not hasattr(kernel, 'friction_of_noise')):
    return None
  rank = results.target_log_prob.shape.rank
  friction = kernel.friction_of_noise(int(states.num_coordinates(parts, rank)))
  if friction is None:
    return None
  scales = _scales(kernel, parts, results, known)
  shares = [
      np.mean(np.concatenate([
          np.ravel(tf.square(difference) / 4. * scale / friction)
          for difference, scale in zip(differences, scales)])
      ) / known.temperature
      for differences in _differences(
          kernel, parts, results, seed, _NUM_REPEATS)]
  error = np.std(shares, ddof=1) / np.sqrt(_NUM_REPEATS)
  is_balanced = estimator.needs_gaussian_step or getattr(
      kernel, 'balances_noise', False)
  return verdicts.judge(
      'noise of the gradient / noise added', np.mean(shares), error, 0.,
      (np.inf, np.inf) if is_balanced else _TOLERANCES,
      'It is made up for.' if is_balanced else 'It has to be small beside 1.',
      'It heats the chain by that share: take a smaller step size, larger '
      'minibatches, control variates, or SGNHT.', needs_precision=False)


def correlated_noise(
    kernel: tfp.mcmc.TransitionKernel,
    parts: list[tf.Tensor],
    results: hints.Results,
    known: Dynamics,
    seed: hints.Seed,
) -> verdicts.Row | None:
  """The row of the gradient's noise that a kernel by coordinate leaves.

  `SGNHT` with a `noise_estimate` for each coordinate, as `SelfTuning` has it,
  makes up for the variances of the noise, and not for its covariances. With G
  the preconditioner, C the covariance of the noise of sqrt(G) times the
  gradient, and gamma the friction,

    E_ij = h C_ij / (2 T sqrt(gamma_i gamma_j)),   i != j,   E_ii = 0,

  is the share by which the temperature of a direction u is off, u E u with
  |u| = 1. The row is its root mean square over the eigenvectors of E, the norm
  of E over sqrt(d). E is measured by pairs of estimates at the last states, in
  blocks that are independent: the square of the norm is the mean of the product
  of two of them, without a bias by their own noise.
  """
  estimator = getattr(kernel, 'gradient_estimator', None)
  given = getattr(kernel, 'parameters', {})
  if (known.step_size is None or estimator is None or estimator.is_exact
      or not all(isinstance(given.get(name), list) for name in (
          'noise_estimate', 'friction'))
      or given.get('preconditioner') is None or callable(known.friction)
      or sharding.find(kernel)):
    return None
  rank = results.target_log_prob.shape.rank
  d = int(states.num_coordinates(parts, rank))
  if not 1 < d <= _MOST_FOR_CORRELATION:
    return None
  scales = [
      tf.sqrt(scale / (4. * known.temperature * (gamma + known.friction)))
      for scale, gamma in zip(
          _scales(kernel, parts, results, known), given['friction'])]
  num_chains = int(np.prod(results.target_log_prob.shape))
  number = max(1, _NUM_FOR_CORRELATION // (_NUM_BLOCKS * num_chains))
  measured = np.zeros([_NUM_BLOCKS, d, d])
  for k, differences in enumerate(_differences(
      kernel, parts, results, seed, _NUM_BLOCKS * number)):
    noise = np.reshape(states.flatten([
        scale * x for scale, x in zip(scales, differences)], rank), [-1, d])
    noise = noise.astype(np.float64)
    measured[k // number] += noise.T @ noise / (number * len(noise))
  measured[:, range(d), range(d)] = 0.
  flat = np.reshape(measured, [_NUM_BLOCKS, -1])
  products = flat @ flat.T / d
  np.fill_diagonal(products, 0.)
  # The mean over pairs of blocks, and over those without each of them.
  square = np.sum(products) / (_NUM_BLOCKS * (_NUM_BLOCKS - 1))
  without = (np.sum(products) - 2. * np.sum(products, axis=1)) / (
      (_NUM_BLOCKS - 1) * (_NUM_BLOCKS - 2))
  value = np.sqrt(max(square, 0.))
  # Pairs share blocks, so that their spread would be too small: a jackknife.
  error = np.sqrt((_NUM_BLOCKS - 1) * np.var(without))
  return verdicts.judge(
      'correlated noise of the gradient', value,
      min(error / (2. * max(value, 1e-9)), np.sqrt(error)), 0.,
      _TOLERANCES_OF_CORRELATION, 'It has to be small beside 1.',
      'Minibatches heat some directions by about that share, and cool others: '
      'the kernel makes up for noise by coordinate. Sample '
      'posterior.whiten(posterior.mode(seed=0)).', needs_precision=False)


def _scales(kernel, parts, results, known):
  """h G for each part."""
  scales = [states.cast(known.step_size, part.dtype) for part in parts]
  preconditioner = kernel.parameters.get('preconditioner')
  if preconditioner is None:
    return scales
  return preconditioner.times(
      scales, getattr(results, 'preconditioner_results', ()),
      results.target_log_prob.shape.rank)


def _differences(kernel, parts, results, seed, number):
  """The differences of pairs of estimates at a state, list by list of parts."""
  sharded = sharding.find(kernel)

  def on_device(seed):
    return kernel.gradient_estimator.one_step(
        kernel.target_log_prob_fn, parts, results.gradient_estimator_results,
        seed)[0].grads_target_log_prob

  @tf.function(autograph=False)
  def estimate(seed):
    return collectives.run(sharded and sharded.strategy, on_device, seed)

  for k in range(number):
    a, b = (estimate(random.fold_in(seed, 2 * k + j)) for j in range(2))
    yield [x - y for x, y in zip(a, b)]
