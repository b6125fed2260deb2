"""Finds metric, step size and friction by itself, and guards the chain.

In the first n = `num_adaptation_steps` steps, with d coordinates, V the
variance of the gradient's noise by coordinate, b / N the share of the examples
that an estimate takes, and T' = max(T, 0.05):

* The metric. F = V b / N is the sum over the examples of the squares of their
  gradients, less their mean: the curvature of a likelihood that fits. With F_l
  its mean over a part l (of the state, or one that `part_sizes` of the inner
  kernel names),

    G = 1 / (1 + (F + F_l) / 2 + V / (16 T)),  s = sqrt(G)

  frozen after m steps. F_l is a floor: a unit of a network that is silent now
  may be so no longer. The last term, left out below T = 0.05, slows down the
  coordinates that minibatches would heat most, so that G V < 16 T.
* The step size h of the coordinates theta / s, by the error dE in the energy
  that a step makes (`SGNHT.energy_error`), both ends on one minibatch. It is of
  order h^3. With K the mean of p^2, K_0 its mean over the last 50 steps, and
  w_k a target that falls from 0.02 to 0.002,

    x = dE^2 / (d max(K, K_0)^2 w_k + R),  W = exp(-(log x)^2 / 162),
    A <- 0.98 A + W x / h^6,  B <- 0.98 B + W,  h = (A / B)^(-1/6).

  R = e^2 / 3 sum (g theta)^2 is for densities that are computed in a dtype of
  fewer digits (e its epsilon, g the gradient), and 0 for others. Coordinates
  are rounded to it, by an error of variance (e theta)^2 / 12 or less at each
  end: so R is at least twice the variance that this gives dE, and without it a
  cold chain would take the rounding for an error of h, and stand still.

  In the adaptation, at T >= 0.05, h is also bounded, by

    h^2 min(max(G V), 16 T) <= T / 2:

  h^2 G V is the variance of the noise of a kick. No friction takes out a noise
  of 2 T a step, and on a smooth posterior the energy error alone would let h
  grow that far. V may still grow when G is frozen: hence the 16 T, by which h
  may always be 0.17.

* The friction, by the length of the adaptation and by the noise:

    gamma_0 = 1.5 / (n h), within [0.1, 3],
    gamma   = max(gamma_0, h G V / (2 T')),

  so that the chain forgets its start within the adaptation, and so that a
  coordinate's noise heats it by no more than its friction takes out. The noise
  G V is known to the inner kernel, which adds that much less. Below T = 0.05
  that noise is most of the heat, which a thermostat could only take out by
  standing still: there it is off (xi = 0).

V is half the mean square, over about the last 100, of the difference between
the gradients of two minibatches at one position: of a second gradient in each
of the first m = min(100, n / 2) steps, in each tenth up to n / 2 and in each
fifth up to n.

Where a new G would make sqrt(G) of a coordinate more than twice as large, h
becomes as much smaller, and A = B = 0.

In all steps a `guard` takes a chain back that has blown up, and h is halved for
all chains. Within the adaptation the difference of gradients at that step, from
its minibatch and the one before, counts in V, whose mean it raises to 17 times
at most, and G is made of it anew: a few steep rows may be in none of the
minibatches before. By that V the noise of a kick bounds h from then on, also
where most minibatches have none of those rows.

After the adaptation all but h stays as it is, and h does too unless the guard
acts, which it does less than once in 10^10 steps under the law of the chain: so
that is the law of the inner kernel.
"""

from collections.abc import Collection
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import collectives
from tfp_sgmcmc import errors
from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc import kernel as kernel_lib
from tfp_sgmcmc import preconditioners
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.mcmc import adaptation
from tfp_sgmcmc.mcmc import guard
from tfp_sgmcmc.mcmc import sgnht

__all__ = ['SelfTuning', 'SelfTuningResults']

_FIRST_TARGET, _LAST_TARGET = 0.02, 0.002
_MOST_STEPS_FOR_METRIC = 100
_FEWEST_FOR_VARIANCE, _MOST_FOR_VARIANCE = 10., 100.
_RELAXATION, _LEAST_FRICTION, _LARGEST_FRICTION = 1.5, 0.1, 3.
_LEAST_TEMPERATURE, _NOISE, _MOST_NOISE_OF_KICK = 0.05, 1. / 16., 1. / 2.
_LARGEST_GROWTH, _LARGEST_LEAP = 16., 2.
# The distance from 1 to the next number: NumPy knows no bfloat16.
_EPSILON = {
    'bfloat16': 2.**-7, 'float16': 2.**-10, 'float32': 2.**-23,
    'float64': 2.**-52}


@kernel_lib.refuses_corrections
class SelfTuningResults(NamedTuple):
  """Results of `SelfTuning`.

  Attributes:
    inner_results: The inner kernel's results.
    step_size: Scalar, h of the next step.
    friction: Scalar, gamma_0.
    preconditioner: List over the parts, G, without axes of chains.
    noise_variance: List over the parts, V, likewise; as the adaptation left it.
    anchor: List over the parts, the state to which the guard goes back.
    next_anchor: Likewise, the one to which it will go back next.
    heat: Scalar, K_0.
    temperature: Scalar, T_0.
    num_returns: `int32`, shape `chains`, how often the guard took a chain back.
    num_late_returns: Likewise, those after the adaptation.
    footprint: Shape `chains + [k]`, a few coordinates of the state, by which
      the guard tells a state that was set from outside.
    weight_sum: Scalar, B; A is B / h^6.
    num_differences: Scalar, how many differences of gradients V is the mean of,
      at most 100.

  And the methods `failure(state)`, see `errors`, and `finding()`.
  """
  inner_results: Any
  step_size: tf.Tensor
  friction: tf.Tensor
  preconditioner: list[tf.Tensor]
  noise_variance: list[tf.Tensor]
  anchor: list[tf.Tensor]
  next_anchor: list[tf.Tensor]
  heat: tf.Tensor
  temperature: tf.Tensor
  num_returns: tf.Tensor
  num_late_returns: tf.Tensor
  footprint: tf.Tensor
  weight_sum: tf.Tensor
  num_differences: tf.Tensor

  step = adaptation.step  # type: ignore[misc]

  def failure(self, state: hints.State) -> errors.Failure | None:
    """Why a chain cannot go on, or None."""
    most = tf.reduce_max(self.num_returns)
    return adaptation.failure(self, state, lambda _: (
        f'SelfTuning took the chain back {int(most)} time(s), with half the '
        'step size each time. Start nearer to the mode, or take larger '
        f'minibatches. {errors.OTHER_CAUSES}.'))

  def finding(self, estimator: object = None) -> gradients_lib.Finding:
    """How often the guard acted where draws are made, for the worst chain."""
    del estimator
    number = int(tf.reduce_max(self.num_late_returns))
    return gradients_lib.Finding(
        'times a chain was taken back after the adaptation', float(number),
        number == 0, 'It has to be 0.' + ('' if number == 0 else (
            ' Draws of the steps just before may be far from the posterior: '
            'make the adaptation (burn-in) longer, or take larger batches.')))


class _Measured(NamedTuple):
  """What a second gradient at the old position tells.

  Attributes:
    error: The mean over chains of W x.
    weight: The mean over chains of W.
    difference: List over the parts, half the squared difference of gradients,
      the mean over chains.
    is_measured: 1, or 0 where there were no two gradients of any chain.
  """
  error: tf.Tensor
  weight: tf.Tensor
  difference: list[tf.Tensor]
  is_measured: tf.Tensor


class SelfTuning(adaptation.AdaptingKernel):
  """Finds the metric, step size and friction of `SGNHT`, and guards the chain.

  In the first `num_adaptation_steps` steps it learns the scale of each
  coordinate, the variance of minibatch noise, and, from the energy error of a
  step, the largest step size that is accurate. Then the chain is that of the
  inner kernel with these settings, and only a guard remains: a chain that blows
  up returns to a state of some passes over the data before, with half the step
  size. So a run needs no step size, and a step size that becomes too large
  later does not end it. The module's docstring has all formulas.

  Let the adaptation lie within the burn-in (`num_burnin_steps` at least
  `num_adaptation_steps`). All chains share the settings found. It takes one
  more gradient in each of the first 100 steps of the adaptation, and in a tenth
  to a fifth of its other steps. (Several replicas add up zeros in the remaining
  steps.) With the exact gradient there is no noise to learn scales from, and
  G = 1: rescale the parameters by `Posterior.transform`. Noise is taken to be
  uncorrelated: sample correlated parameters by `Posterior.whiten`.

  If the state is not that of the last step, for instance because weights were
  set from outside, the chain starts there anew.

  The inner kernel's step size is only the start; its `diffusion` is best 0, so
  that the thermostat compensates only for unknown noise.

  #### Examples

  >>> x = tf.random.stateless_normal([1000], [0, 1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.Normal(0., 10.).log_prob,
  ...     lambda mu, x: tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x), x)
  >>> kernel = sgmcmc.SelfTuning(
  ...     sgmcmc.SGNHT(
  ...         posterior, step_size=0.003, diffusion=0.,
  ...         gradient_estimator=sgmcmc.gradients.Uniform(batch_size=100)),
  ...     num_adaptation_steps=500)
  >>> draws = sgmcmc.sample(
  ...     kernel, 400, tf.zeros([50]), num_burnin_steps=500, seed=1,
  ...     progress_bar=False)
  >>> 0.9 < 1000. * float(tf.math.reduce_variance(draws.states)) < 1.1
  True
  >>> int(tf.reduce_sum(draws.kernel_results.num_returns))
  0

  #### References

  [1]: Jakob Robnik, G. Bruno De Luca, Eva Silverstein, Uros Seljak.
       Microcanonical Hamiltonian Monte Carlo. _JMLR_, 2023. The step size by
       the variance of the energy error, with these weights.
  [2]: Benedict Leimkuhler, Xiaocheng Shang. Adaptive thermostats for noisy
       gradient systems. _SIAM Journal on Scientific Computing_, 2016.
  """

  def __init__(
      self,
      inner_kernel: sgnht.SGNHT,
      num_adaptation_steps: hints.TensorLike,
      *,
      compute_dtypes: Collection[str] = (),
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      inner_kernel: `SGNHT` with integrator "badodab" and the step size to start
        from: a positive number. Do not pass `preconditioner`, `noise_estimate`
        and `friction`: they are found.
      num_adaptation_steps: n: Python `int`, or a scalar tensor or variable of
        integers. Zero keeps the given step size; the guard stays on.
      compute_dtypes: Names of the dtypes that the density is computed in, such
        as `['bfloat16']`, where it does so in fewer digits than those of the
        state.
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If the step size is a schedule, the inner kernel was given a
        setting that is to be found, or another integrator, or a number is out
        of its range.
      TypeError: If the inner kernel is not an `SGNHT`.
    """
    if not isinstance(inner_kernel, sgnht.SGNHT):
      raise TypeError(
          f'inner_kernel is {inner_kernel!r}: it has to be an SGNHT. For SGLD '
          'and SGHMC, TemperatureStepSizeAdaptation finds the step size.')
    super().__init__(dict(
        inner_kernel=inner_kernel,
        num_adaptation_steps=num_adaptation_steps,
        compute_dtypes=tuple(sorted(compute_dtypes)),
        name=name))
    for dtype in compute_dtypes:
      if dtype not in _EPSILON:
        raise ValueError(
            f'compute_dtypes names {dtype!r}: it has to be among '
            f'{sorted(_EPSILON)}.')
    given = inner_kernel.parameters
    if inner_kernel.integrator != 'badodab':
      raise ValueError(
          f'inner_kernel has integrator="{inner_kernel.integrator}", whose '
          'steps do not tell their error in the energy: take "badodab".')
    checks.scalar('step_size', given['step_size'])
    for argument in ('preconditioner', 'noise_estimate', 'friction'):
      value = given[argument]
      if value is not None and not (
          isinstance(value, (int, float)) and value == 0.):
        raise ValueError(
            f'inner_kernel has {argument}={checks.shorten(value)}, which '
            'SelfTuning finds: leave it out.')
    if inner_kernel.experimental_shard_axis_names is not None:
      raise ValueError(self.why_no_shards)
    estimator = inner_kernel.gradient_estimator
    if not estimator.follows_seed:
      raise ValueError(
          f'gradient_estimator is {estimator!r}, whose minibatch cannot be had '
          'twice, and SelfTuning compares two positions on one minibatch. Take '
          'Uniform, or another estimator of data in memory.')

  def adapted_kernel(self, results: SelfTuningResults) -> sgnht.SGNHT:
    """The inner kernel with the settings found.

    Args:
      results: Results of this kernel.

    Returns:
      kernel: Another `inner_kernel`.
    """
    variance = [
        g * v for g, v in zip(results.preconditioner, results.noise_variance)]
    h = results.step_size
    temperature = tf.maximum(
        self._temperature(results.step, h.dtype), _LEAST_TEMPERATURE)
    friction = [
        tf.maximum(results.friction, h / (2. * temperature) * v)
        for v in variance]
    return self.inner_kernel.copy(
        step_size=h,
        preconditioner=preconditioners.Diagonal(list(results.preconditioner)),
        noise_estimate=variance, friction=friction)

  @property
  def _part_sizes(self):
    """Of the parts of a state that is one vector; None where it is not."""
    return self.inner_kernel.parameters['part_sizes']

  def _temperature(self, step, dtype):
    value = self.inner_kernel.parameters['temperature']
    return tf.reduce_mean(
        states.cast(value(step) if callable(value) else value, dtype))

  def _bootstrap(self, parts, seeds):
    inner = self.inner_kernel.bootstrap_results(parts, seed=seeds.inner)
    dtype = self._dtype(inner)
    rank = inner.target_log_prob.shape.rank
    zero = tf.zeros([], dtype)
    h = states.cast(self.inner_kernel.parameters['step_size'], dtype)
    power = _means(
        [tf.square(tf.cast(g, dtype)) for g in inner.grads_target_log_prob],
        rank)
    guarded = guard.start(
        parts, inner, self._temperature(inner.step, dtype), self._part_sizes)
    return SelfTuningResults(
        inner_results=inner,
        step_size=h,
        friction=self._friction(h),
        preconditioner=self._metric(power, self._share(inner)),
        noise_variance=[tf.zeros_like(v) for v in power],
        weight_sum=zero,
        num_differences=zero,
        **guarded._asdict())

  def _one_step(self, parts, previous, seeds):
    old = previous.inner_results
    guarded = guard.Guarded(*(
        getattr(previous, name) for name in guard.Guarded._fields))
    kernel = self.adapted_kernel(previous)
    new_parts, inner = kernel.one_step(parts, old, seed=seeds.inner)
    dtype = previous.step_size.dtype
    is_cold = self._temperature(old.step, dtype) < _LEAST_TEMPERATURE
    inner = inner._replace(thermostat=tf.nest.map_structure(
        lambda xi: tf.where(is_cold, tf.zeros_like(xi), xi), inner.thermostat))
    step = inner.step
    number = self._number(tf.int64)
    is_adapting = step <= number
    temperature = self._temperature(step, dtype)
    made = guard.Step(
        parts, new_parts, old, inner, temperature, is_adapting,
        guard.is_anchor(step, self._share(inner)), self._part_sizes)
    seen = guard.look(
        guarded, made,
        (temperature < _LEAST_TEMPERATURE) & (step <= _num_for_metric(number)))
    first_heat = tf.maximum(temperature, _LEAST_TEMPERATURE)
    is_measuring = self._is_measuring(step, number)

    def learn():
      measured = _where_due(
          is_measuring,
          lambda: _measure(
              kernel, parts, old, inner, seeds.inner,
              tf.maximum(seen.heat, previous.heat),
              self._target(step, number, dtype), self._epsilon(dtype)),
          lambda: _nothing(previous))
      results = self._with_step_size(
          previous._replace(inner_results=inner), measured, is_adapting, seen)
      results = self._with_metric(
          results, measured, _at_failure(old, inner, seen), step, number, seen)
      results = self._bounded(results, is_adapting)
      new, last, kept = guard.take_back(guarded, seen, made, first_heat)
      return new, results._replace(inner_results=last, **kept._asdict())

    def go_on():
      kept = guard.stay(guarded, seen, made, first_heat)
      return new_parts, previous._replace(
          inner_results=inner, **kept._asdict())

    # Most steps teach nothing, and the guard does nothing.
    is_quiet = seen.is_usable & ~is_measuring & ~made.is_anchor
    if collectives.context() is not None:
      return learn()
    return states.cond_for_all(is_quiet, go_on, learn)

  def _is_measuring(self, step, number):
    """Whether a step takes a second gradient, at its start."""
    spacing = tf.where(2 * step < number, tf.constant(10, tf.int64), 5)
    return (step <= number) & (
        (step <= _num_for_metric(number)) | (step % spacing == 0))

  def _epsilon(self, dtype):
    """Of the dtype with the fewest digits; 0 where none has fewer."""
    own = _EPSILON[dtype.name]
    largest = max([own, *(
        _EPSILON[name] for name in self._parameters['compute_dtypes'])])
    return largest if largest > own else 0.

  def _target(self, step, number, dtype):
    number = tf.cast(tf.maximum(number, 1), dtype)
    share = tf.minimum(tf.cast(step, dtype) / number, 1.)
    return _FIRST_TARGET * (_LAST_TARGET / _FIRST_TARGET) ** share

  def _friction(self, step_size):
    number = self._number(step_size.dtype)
    return tf.where(
        number > 0., tf.clip_by_value(
            _RELAXATION / (tf.maximum(number, 1.) * step_size),
            _LEAST_FRICTION, _LARGEST_FRICTION), 1.)

  def _with_step_size(self, results, measured, is_adapting, seen):
    """h = (A / B)^(-1/6), of errors over the sixth power of their step size.

    Half of it where a chain has blown up: what was measured of that step size
    says nothing of others.
    """
    h = results.step_size
    found, weight_sum = adaptation.step_size_of_errors(
        h, results.weight_sum, measured.error, measured.weight,
        measured.is_measured)
    found = tf.where(is_adapting, found, h)
    found = tf.where(
        seen.is_usable, found, tf.where(seen.any_failed, h / 2., h))
    return results._replace(
        step_size=found,
        weight_sum=tf.where(seen.is_usable, weight_sum, tf.where(
            seen.any_failed, tf.zeros_like(weight_sum), results.weight_sum)),
        friction=tf.where(is_adapting, self._friction(found), results.friction))

  def _bounded(self, results, is_adapting):
    """h of a noise h^2 G V of T / 2 at most in the noisiest coordinate."""
    h = results.step_size
    temperature = self._temperature(results.inner_results.step, h.dtype)
    noise = tf.minimum(
        tf.reduce_max([
            tf.reduce_max(g * v) for g, v in zip(
                results.preconditioner, results.noise_variance)]),
        temperature / _NOISE)
    most = tf.sqrt(_MOST_NOISE_OF_KICK * temperature / noise)
    is_bounded = (
        is_adapting & (temperature >= _LEAST_TEMPERATURE) & (noise > 0.))
    return results._replace(
        step_size=tf.where(is_bounded, tf.minimum(h, most), h))

  def _with_metric(self, results, measured, at_failure, step, number, seen):
    """V, of the differences up to now, and G, while it is being found.

    And once more where a chain has blown up: the minibatch that did it counts.
    """
    batch_share = self._share(results.inner_results)
    size = _mean(at_failure)
    is_steep = seen.any_failed & tf.math.is_finite(size) & (
        step <= number) & (batch_share > 0.) & (
            results.num_differences >= _FEWEST_FOR_VARIANCE)
    is_new = is_steep | (seen.is_usable & (measured.is_measured > 0.))
    count = tf.where(
        is_new,
        tf.minimum(results.num_differences + 1., _MOST_FOR_VARIANCE),
        results.num_differences)
    share = 1. / tf.maximum(count, 1.)
    # A chain may have been on its way out before: by one difference of there V
    # would stop it for good.
    excess = tf.maximum(tf.math.divide_no_nan(
        share * size, _LARGEST_GROWTH * _mean(results.noise_variance)), 1.)
    variance = [
        tf.where(is_new, v + share * (
            tf.where(is_steep, failed / excess, new) - v), v)
        for v, new, failed in zip(
            results.noise_variance, measured.difference, at_failure)]
    is_finding = is_new & (is_steep | (
        (step <= _num_for_metric(number)) & (count >= _FEWEST_FOR_VARIANCE)))
    metric = [
        tf.where(is_finding, new, g) for g, new in zip(
            results.preconditioner,
            self._metric(variance, batch_share, self._noise_share(step)))]
    return _without_leap(results, metric)._replace(
        preconditioner=metric, noise_variance=variance, num_differences=count)

  def _metric(self, variance, share, noise_share=0.):
    """G for each part; of V, F / V and what of V is added to the curvature."""
    metric = []
    for v in variance:
      f = tf.cast(share, v.dtype) * v
      metric.append(1. / (
          1. + (f + self._of_part(f)) / 2.
          + tf.cast(noise_share, v.dtype) * v))
    return metric

  def _of_part(self, f):
    """F_l, where the coordinate has F."""
    sizes = self._part_sizes
    if sizes is None:
      return tf.reduce_mean(f)
    return states.over_pieces(states.means_of_pieces(f, sizes), sizes)

  def _noise_share(self, step):
    temperature = self._temperature(step, tf.float32)
    is_cold = temperature < _LEAST_TEMPERATURE
    return tf.where(
        is_cold, 0., _NOISE / tf.maximum(temperature, _LEAST_TEMPERATURE))

  def _share(self, inner):
    """b / N, the mean over all steps up to now; 0 where that is all of them.

    The mean, for the last batch of an epoch may be a small one.
    """
    used = tf.cast(tf.reduce_max(
        inner.gradient_estimator_results.num_gradients), tf.float32)
    share = used / (
        tf.cast(inner.step + 1, tf.float32)
        * tf.cast(self.inner_kernel.target_num_examples, tf.float32))
    return tf.where(share < 1., share, tf.zeros_like(share))


def _measure(kernel, parts, old, inner, seed, heat, target, epsilon):
  """`_Measured`, by the gradient at the old position on the new minibatch."""
  before = kernel.estimate_at(parts, old, seed)
  rank = inner.target_log_prob.shape.rank
  dtype = heat.dtype
  error = tf.cast(kernel.energy_error(old, inner, before), dtype)
  size = tf.cast(states.num_coordinates(parts, rank), dtype)
  has_two = _has_gradient(before, rank) & _has_gradient(old, rank)
  scale = heat * tf.sqrt(size * target)
  if epsilon > 0.:
    scale = tf.sqrt(tf.square(scale) + sum(
        states.sum_event(tf.square(
            epsilon * tf.cast(g, dtype) * tf.cast(part, dtype)), rank)
        for g, part in zip(before.grads_target_log_prob, parts)) / 3.)
  error, weight = adaptation.weighed(
      tf.where(has_two, error, np.nan), scale, inner.target_log_prob)
  difference = [
      guard.mean_where(has_two, tf.square(tf.cast(a - b, dtype)) / 2.)
      for a, b in zip(
          before.grads_target_log_prob, old.grads_target_log_prob)]
  return _Measured(
      tf.reduce_mean(error), tf.reduce_mean(weight), difference,
      tf.cast(tf.reduce_any(has_two), dtype))


def _at_failure(old, new, seen):
  """Half the squared difference of gradients where chains have just blown up.

  The position was still where the step before had left it to go: a single steep
  minibatch shows in its momentum alone.
  """
  return [
      guard.mean_where(
          seen.has_failed, tf.square(tf.cast(a - b, seen.heat.dtype)) / 2.)
      for a, b in zip(new.grads_target_log_prob, old.grads_target_log_prob)]


def _without_leap(results, metric):
  """A smaller h, to be found anew, where G would lengthen steps at once.

  The largest growth of a coordinate's h sqrt(G) counts, from 2 on.
  """
  growth = tf.sqrt(tf.reduce_max([
      tf.reduce_max(new / old)
      for new, old in zip(metric, results.preconditioner)]))
  is_leap = growth > _LARGEST_LEAP
  return results._replace(
      step_size=results.step_size / tf.where(is_leap, growth, 1.),
      weight_sum=tf.where(
          is_leap, tf.zeros_like(growth), results.weight_sum))


def _has_gradient(estimate, chain_rank):
  """Whether a chain's is finite, and not the 0 that the guard leaves."""
  size = sum(
      states.sum_event(tf.abs(g), chain_rank)
      for g in states.joined(estimate.grads_target_log_prob, chain_rank))
  return (size > 0.) & tf.math.is_finite(size)


def _where_due(is_due, measure, nothing):
  """What is measured, or nothing."""
  if collectives.context() is None:
    return tf.cond(is_due, measure, nothing)
  # Replicas cannot add up gradients within a condition: they add up zeros.
  with collectives.sums_of_zeros_unless(is_due):
    measured = measure()
  return tf.nest.map_structure(
      lambda a, b: tf.where(is_due, a, b), measured, nothing())


def _nothing(previous):
  zero = tf.zeros_like(previous.step_size)
  return _Measured(
      zero, zero, [tf.zeros_like(v) for v in previous.noise_variance], zero)


def _num_for_metric(number):
  """m: how many of n steps are for the metric."""
  return tf.minimum(tf.constant(_MOST_STEPS_FOR_METRIC, tf.int64), number // 2)


def _mean(parts):
  """The mean over all coordinates."""
  return sum(tf.reduce_sum(p) for p in parts) / sum(
      tf.cast(tf.size(p), p.dtype) for p in parts)


def _means(parts, chain_rank):
  """The mean over chains of each part."""
  return [tf.reduce_mean(p, axis=list(range(chain_rank))) for p in parts]
