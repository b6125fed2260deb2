"""Finds metric, step size and friction by itself, and guards the chain.

In the first n = `num_adaptation_steps` steps, with d coordinates, V the
variance of the gradient's noise by coordinate, b / N the share of the examples
that an estimate takes, and T' = max(T, 0.05):

* The metric. F = V b / N is the sum over the examples of the squares of their
  gradients, less their mean: the curvature of a likelihood that fits. With F_l
  its mean over a part l of the state,

    G = 1 / (1 + (F + F_l) / 2 + V / (16 T)),  s = sqrt(G)

  frozen after m steps. F_l is a floor: a unit of a network that is silent now
  may be so no longer. The last term, left out below T = 0.05, slows down the
  coordinates that minibatches would heat above T: at h = 1 / 4, about what is
  found, the noise of a kick has variance h^2 G V < T.
* The step size h of the coordinates theta / s, by the error dE in the energy
  that a step makes (`SGNHT.energy_error`), both ends on one minibatch. It is of
  order h^3. With K the mean of p^2, K_0 its mean over the last 50 steps, and
  w_k a target that falls from 0.02 to 0.002,

    x = dE^2 / (d max(K, K_0)^2 w_k),  W = exp(-(log x)^2 / 162),
    A <- 0.98 A + W x / h^6,  B <- 0.98 B + W,  h = (A / B)^(-1/6).

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

The guard, in all steps. A chain with a log density or momentum that is not
finite, or with K above

  25 max(T_0, K_0)                         up to step n,
  max((3 + 30 sqrt(2 / d)) T_0, 25 K_1)    then,

goes back to where it was at the last multiple of 100 steps, with a new
momentum; and h is halved, for all chains. T_0 is the largest T of the last some
hundred steps, for a chain that cools takes time; K_0 is as the adaptation left
it; and K_1 is K_0 where that is above 2 T_0, so that the noise of minibatches
was most of the heat, else 0. (After a hundred returns a chain is let go, and
reported as one that failed.)

After the adaptation all but h stays as it is, and h does too unless the guard
acts. Under the law of the chain K is T times a chi-square over its d degrees of
freedom: it is beyond that limit less than once in 10^10 steps for any d, so
that the law is that of the inner kernel.
"""

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
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.mcmc import sghmc
from tfp_sgmcmc.mcmc import sgnht

__all__ = ['SelfTuning', 'SelfTuningResults']

_FIRST_TARGET, _LAST_TARGET = 0.02, 0.002
_DECAY, _WIDTH = 0.98, 9.
_MOST_STEPS_FOR_METRIC = 100
_FEWEST_FOR_VARIANCE, _MOST_FOR_VARIANCE = 10., 100.
_RELAXATION, _LEAST_FRICTION, _LARGEST_FRICTION = 1.5, 0.1, 3.
_LEAST_TEMPERATURE, _NOISE = 0.05, 1. / 16.
_SPACING_OF_ANCHORS = 100
_HOT, _STEPS_OF_HEAT = 25., 50.
_COOLING = 0.995
_MOST_RETURNS = 100
# One step, or one number, may not move the step size by more than this.
_LARGEST_ERROR = 1e12
_ROUNDING = 4.


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
    heat: Scalar, K_0.
    temperature: Scalar, T_0.
    num_returns: `int32`, shape `chains`, how often the guard took a chain back.
    num_late_returns: Likewise, those after the adaptation.
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
  heat: tf.Tensor
  temperature: tf.Tensor
  num_returns: tf.Tensor
  num_late_returns: tf.Tensor
  weight_sum: tf.Tensor
  num_differences: tf.Tensor

  @property
  def step(self) -> tf.Tensor:
    """`int64` scalar, the number of steps made."""
    return self.inner_results.step

  def failure(self, state: Any) -> errors.Failure | None:
    """Why a chain cannot go on, or None."""
    failure = self.inner_results.failure(state)
    if failure is None or failure.error is not errors.NonFiniteError:
      return failure
    most = int(tf.reduce_max(self.num_returns))
    return failure._replace(advice=(
        f'SelfTuning took the chain back {most} time(s), with half the step '
        'size each time. Start nearer to the mode, or take larger minibatches. '
        f'{errors.OTHER_CAUSES}.'))


  def finding(self, estimator: Any = None) -> gradients_lib.Finding:
    """How often the guard acted where draws are made, for the worst chain."""
    del estimator
    number = int(tf.reduce_max(self.num_late_returns))
    return gradients_lib.Finding(
        'times a chain was taken back after the adaptation', float(number),
        number == 0, 'It has to be 0.' + ('' if number == 0 else (
            ' Draws of the steps just before may be far from the posterior: '
            'make the adaptation (burn-in) longer, or take larger batches.')))


class _Seeds(NamedTuple):
  """The seeds of a step, one for each use."""
  inner: tf.Tensor
  momentum: tf.Tensor


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


class SelfTuning(kernel_lib.Kernel):
  """Finds the metric, step size and friction of `SGNHT`, and guards the chain.

  In the first `num_adaptation_steps` steps it learns the scale of each
  coordinate, how much noise minibatches bring, and the largest step that the
  posterior takes: the error in the energy of a step tells. From then on the
  chain is that of the inner kernel with what was found, and only a guard
  remains: a chain that blows up returns to where it was up to 100 steps before,
  with half the step size (see the module's docstring, for all formulas). So a
  run needs no step size, and is not lost by one that was right at first and is
  too large later.

  Let the adaptation lie within the burn-in (`num_burnin_steps` at least
  `num_adaptation_steps`). All chains share what is found. It takes one more
  gradient in each of the first 100 steps of the adaptation, and in a tenth to a
  fifth of its others (on several replicas in each step, of all the run). With
  the exact gradient there is no noise to learn scales from, and G = 1: give the
  posterior's parameters one scale, by `Posterior.transform`.

  The inner kernel's step size is only the start; its `diffusion` is best 0, so
  that the thermostat makes up for unknown noise alone.

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
      num_adaptation_steps: Any,
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      inner_kernel: `SGNHT` with integrator "badodab", whose step size is the
        one to start from: a positive number. Without `preconditioner`,
        `noise_estimate` and `friction`, which are found.
      num_adaptation_steps: n: Python `int`, or a scalar tensor or variable of
        integers. Zero leaves the step size as it is given, and the guard on.
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If the step size is a schedule, the inner kernel was given
        what is to be found or another integrator, or a number is out of its
        range.
      TypeError: If the inner kernel is no `SGNHT`.
    """
    if not isinstance(inner_kernel, sgnht.SGNHT):
      raise TypeError(
          f'inner_kernel is {inner_kernel!r}: it has to be an SGNHT. For SGLD '
          'and SGHMC, TemperatureStepSizeAdaptation finds the step size.')
    given = inner_kernel.parameters
    if inner_kernel.integrator != 'badodab':
      raise ValueError(
          f'inner_kernel has integrator="{inner_kernel.integrator}", whose '
          'steps do not tell their error in the energy: take "badodab".')
    if callable(given['step_size']):
      raise ValueError(
          'The step size of inner_kernel is a schedule, and it is found here: '
          'give the number to start from, 0.003 say.')
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
    if not (tf.is_tensor(num_adaptation_steps)
            or isinstance(num_adaptation_steps, tf.Variable)):
      checks.non_negative_integer('num_adaptation_steps', num_adaptation_steps)
    super().__init__(dict(
        inner_kernel=inner_kernel,
        num_adaptation_steps=num_adaptation_steps,
        name=name))

  _Seeds = _Seeds

  @property
  def inner_kernel(self) -> sgnht.SGNHT:
    """The kernel that is tuned, as it was given."""
    return self._parameters['inner_kernel']

  @property
  def is_calibrated(self) -> bool:
    """False, as that of the inner kernel."""
    return self.inner_kernel.is_calibrated

  @property
  def lives_on_batches(self) -> bool:
    """That of the inner kernel."""
    return self.inner_kernel.lives_on_batches

  @property
  def balances_noise(self) -> bool:
    """That of the inner kernel."""
    return self.inner_kernel.balances_noise

  def adapted_kernel(self, results: SelfTuningResults) -> sgnht.SGNHT:
    """The inner kernel with what was found.

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

  def _temperature(self, step, dtype):
    value = self.inner_kernel.parameters['temperature']
    return tf.reduce_mean(
        states.cast(value(step) if callable(value) else value, dtype))

  def _bootstrap(self, parts, seeds):
    inner = self.inner_kernel.bootstrap_results(parts, seed=seeds.inner)
    dtype = _dtype(inner)
    rank = inner.target_log_prob.shape.rank
    zero = tf.zeros([], dtype)
    none = tf.zeros(tf.shape(inner.target_log_prob), tf.int32)
    temperature = self._temperature(inner.step, dtype)
    h = states.cast(self.inner_kernel.parameters['step_size'], dtype)
    power = _means(
        [tf.square(tf.cast(g, dtype)) for g in inner.grads_target_log_prob],
        rank)
    return SelfTuningResults(
        inner_results=inner,
        step_size=h,
        friction=self._friction(h),
        preconditioner=self._metric(power, self._share(inner)),
        noise_variance=[tf.zeros_like(v) for v in power],
        anchor=[tf.identity(part) for part in parts],
        heat=temperature,
        temperature=temperature,
        num_returns=none,
        num_late_returns=none,
        weight_sum=zero,
        num_differences=zero)

  def _one_step(self, parts, previous, seeds):
    old = previous.inner_results
    kernel = self.adapted_kernel(previous)
    new_parts, inner = kernel.one_step(parts, old, seed=seeds.inner)
    dtype = previous.step_size.dtype
    rank = inner.target_log_prob.shape.rank
    is_cold = self._temperature(old.step, dtype) < _LEAST_TEMPERATURE
    inner = inner._replace(thermostat=tf.nest.map_structure(
        lambda xi: tf.where(is_cold, tf.zeros_like(xi), xi), inner.thermostat))
    number = self._number
    step = inner.step
    is_adapting = step <= number
    heat = _kinetic_temperature(inner.momentum, rank, dtype)
    measured = _where_due(
        self._is_measuring(step),
        lambda: _measure(
            kernel, parts, old, inner, seeds.inner,
            tf.maximum(heat, previous.heat), self._target(step, dtype)),
        lambda: _nothing(previous))
    results = previous._replace(inner_results=inner)
    results = self._with_step_size(results, measured, is_adapting)
    results = self._with_metric(results, measured, step)
    results = results._replace(
        friction=tf.where(
            is_adapting, self._friction(results.step_size), results.friction))
    return self._guard(
        new_parts, results, previous, heat, step, is_adapting, seeds.momentum)

  @property
  def _number(self):
    """n, as a step counter."""
    return states.cast(self._parameters['num_adaptation_steps'], tf.int64)

  def _is_measuring(self, step):
    """Whether a step takes a second gradient, at its start."""
    number = self._number
    spacing = tf.where(2 * step < number, tf.constant(10, tf.int64), 5)
    return (step <= number) & (
        (step <= _num_for_metric(number)) | (step % spacing == 0))

  def _target(self, step, dtype):
    number = tf.cast(tf.maximum(self._number, 1), dtype)
    share = tf.minimum(tf.cast(step, dtype) / number, 1.)
    return _FIRST_TARGET * (_LAST_TARGET / _FIRST_TARGET) ** share

  def _friction(self, step_size):
    number = tf.cast(self._number, step_size.dtype)
    return tf.where(
        number > 0., tf.clip_by_value(
            _RELAXATION / (tf.maximum(number, 1.) * step_size),
            _LEAST_FRICTION, _LARGEST_FRICTION), 1.)

  def _with_step_size(self, results, measured, is_adapting):
    """h = (A / B)^(-1/6), of errors over the sixth power of their step size."""
    ones = tf.ones_like(measured.weight)
    before = results.weight_sum * tf.where(
        measured.is_measured > 0., _DECAY * ones, ones)
    weight_sum = before + measured.weight
    # Of errors at h^6 = 1 in units of the last step size's, so that no power
    # of h leaves the range of the numbers.
    mean = (before + measured.error) / tf.where(
        weight_sum > 0., weight_sum, ones)
    is_known = is_adapting & (measured.is_measured > 0.) & (mean > 0.)
    return results._replace(
        step_size=tf.where(
            is_known,
            results.step_size * tf.where(
                is_known, mean, ones) ** (-1. / 6.),
            results.step_size),
        weight_sum=weight_sum)

  def _with_metric(self, results, measured, step):
    """V, of the differences up to now, and G, while it is being found."""
    count = tf.minimum(
        results.num_differences + measured.is_measured, _MOST_FOR_VARIANCE)
    share = measured.is_measured / tf.maximum(count, 1.)
    variance = [
        v + tf.cast(share, v.dtype) * (new - v)
        for v, new in zip(results.noise_variance, measured.difference)]
    is_finding = (step <= _num_for_metric(self._number)) & (
        count >= _FEWEST_FOR_VARIANCE)
    metric = [
        tf.where(is_finding, new, g) for g, new in zip(
            results.preconditioner,
            self._metric(
                variance, self._share(results.inner_results),
                self._noise_share(step)))]
    return results._replace(
        preconditioner=metric, noise_variance=variance, num_differences=count)

  def _metric(self, variance, share, noise_share=0.):
    """G for each part; of V, F / V and what of V is added to the curvature."""
    metric = []
    for v in variance:
      f = tf.cast(share, v.dtype) * v
      metric.append(1. / (
          1. + (f + tf.reduce_mean(f)) / 2.
          + tf.cast(noise_share, v.dtype) * v))
    return metric

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

  def _guard(
      self, parts, results, previous, heat, step, is_adapting, seed):
    """Takes chains back that have blown up, and halves the step size."""
    inner = results.inner_results
    dtype = heat.dtype
    temperature = self._temperature(step, dtype)
    number = self._number
    rank = inner.target_log_prob.shape.rank
    size = tf.cast(states.num_coordinates(parts, rank), dtype)
    largest = tf.maximum(temperature, _COOLING * previous.temperature)
    known = tf.maximum(largest, previous.heat)
    tight = tf.maximum(
        (3. + 30. * tf.sqrt(2. / size)) * largest,
        tf.where(previous.heat > 2. * largest, _HOT * previous.heat, 0.))
    limit = tf.where(is_adapting, _HOT * known, tight)
    # A cold chain starts at rest, and any K is far above that.
    limit = tf.where(
        (temperature >= _LEAST_TEMPERATURE) | (step > _num_for_metric(number)),
        limit, dtype.max)
    has_failed = ~(
        (heat <= limit)
        & tf.math.is_finite(tf.cast(inner.target_log_prob, dtype)))
    # A chain that does so again and again is reported as any other is.
    has_failed &= previous.num_returns < _MOST_RETURNS
    any_failed = tf.reduce_any(has_failed)
    anchor = previous.anchor
    momentum = sghmc.initial_momentum(
        [tf.cast(temperature, p.dtype) for p in parts],
        self.inner_kernel.standard_normal(parts, seed))
    parts = states.select(has_failed, anchor, parts)
    inner = inner._replace(
        momentum=states.select(has_failed, momentum, inner.momentum),
        grads_target_log_prob=states.select(
            has_failed, [tf.zeros_like(g) for g in parts],
            inner.grads_target_log_prob),
        target_log_prob=tf.where(
            has_failed, previous.inner_results.target_log_prob,
            inner.target_log_prob),
        gradient_estimator_results=_select_where_by_chain(
            has_failed, previous.inner_results.gradient_estimator_results,
            inner.gradient_estimator_results),
        thermostat=_select_where_by_chain(
            has_failed, tf.nest.map_structure(
                tf.zeros_like, inner.thermostat), inner.thermostat))
    # Over the chains that are not lost.
    is_finite = tf.math.is_finite(heat)
    mean_heat = _mean_where(is_finite, heat)
    window = tf.clip_by_value(
        tf.cast(step, dtype) / 2., 1., _STEPS_OF_HEAT)
    zero = tf.zeros([], dtype)
    is_anchor = ~has_failed & tf.equal(step % _SPACING_OF_ANCHORS, 0)
    return parts, results._replace(
        inner_results=inner,
        step_size=tf.where(
            any_failed, previous.step_size / 2., results.step_size),
        # What was measured of a step that blows up says nothing of others.
        weight_sum=tf.where(any_failed, zero, results.weight_sum),
        noise_variance=[
            tf.where(any_failed, old, new) for old, new in zip(
                previous.noise_variance, results.noise_variance)],
        preconditioner=[
            tf.where(any_failed, old, new) for old, new in zip(
                previous.preconditioner, results.preconditioner)],
        anchor=states.select(is_anchor, parts, anchor),
        heat=tf.where(
            is_adapting & ~any_failed & tf.reduce_any(is_finite),
            previous.heat + (mean_heat - previous.heat) / window,
            previous.heat),
        temperature=largest,
        num_returns=previous.num_returns + tf.cast(has_failed, tf.int32),
        num_late_returns=previous.num_late_returns + tf.cast(
            has_failed & ~is_adapting, tf.int32))


def _measure(kernel, parts, old, inner, seed, heat, target):
  """`_Measured`, by the gradient at the old position on the new minibatch."""
  before = kernel.estimate_at(parts, old, seed)
  rank = inner.target_log_prob.shape.rank
  dtype = heat.dtype
  error = tf.cast(kernel.energy_error(old, inner, before), dtype)
  # Two log densities of this size do not tell a smaller error.
  log_prob = inner.target_log_prob
  rounding = _ROUNDING * np.finfo(log_prob.dtype.as_numpy_dtype).eps * tf.cast(
      tf.abs(log_prob), dtype)
  error = tf.nn.relu(tf.abs(error) - rounding)
  size = tf.cast(states.num_coordinates(parts, rank), dtype)
  x = tf.square(error) / (size * tf.square(heat) * target) + 1e-8
  has_two = _has_gradient(before, rank) & _has_gradient(old, rank)
  is_usable = has_two & tf.math.is_finite(x) & (x < _LARGEST_ERROR)
  x = tf.where(is_usable, x, 1.)
  weight = tf.where(
      is_usable, tf.exp(-tf.square(tf.math.log(x) / _WIDTH) / 2.), 0.)
  difference = [
      _mean_where(has_two, tf.square(tf.cast(a - b, dtype)) / 2.)
      for a, b in zip(
          before.grads_target_log_prob, old.grads_target_log_prob)]
  return _Measured(
      tf.reduce_mean(weight * x), tf.reduce_mean(weight), difference,
      tf.cast(tf.reduce_any(has_two), dtype))


def _has_gradient(estimate, chain_rank):
  """Whether a chain's is finite, and not the 0 that the guard leaves."""
  size = sum(
      states.sum_event(tf.abs(g), chain_rank)
      for g in states.joined(estimate.grads_target_log_prob, chain_rank))
  return (size > 0.) & tf.math.is_finite(size)


def _mean_where(mask, values):
  """The mean over the chains for which the mask holds; 0 if there are none."""
  number = tf.maximum(tf.reduce_sum(tf.cast(mask, values.dtype)), 1.)
  return tf.reduce_sum(
      states.select(mask, [values], [tf.zeros_like(values)])[0],
      axis=list(range(mask.shape.rank))) / number


def _where_due(is_due, measure, nothing):
  """What is measured, or nothing."""
  if collectives.context() is None:
    return tf.cond(is_due, measure, nothing)
  # Replicas cannot add up gradients within a condition.
  return tf.nest.map_structure(
      lambda a, b: tf.where(is_due, a, b), measure(), nothing())


def _nothing(previous):
  zero = tf.zeros_like(previous.step_size)
  return _Measured(
      zero, zero, [tf.zeros_like(v) for v in previous.noise_variance], zero)


def _num_for_metric(number):
  """m: how many of n steps are for the metric."""
  return tf.minimum(tf.constant(_MOST_STEPS_FOR_METRIC, tf.int64), number // 2)


def _dtype(results):
  """At least single precision."""
  given = results.target_log_prob.dtype
  return tf.float64 if given == tf.float64 else tf.float32


def _means(parts, chain_rank):
  """The mean over chains of each part."""
  return [tf.reduce_mean(p, axis=list(range(chain_rank))) for p in parts]


def _kinetic_temperature(momentum, chain_rank, dtype):
  """K, the mean of p^2 over all coordinates, shape `chains`."""
  total = sum(
      tf.cast(states.sum_event(tf.square(p), chain_rank), dtype)
      for p in states.joined(momentum, chain_rank))
  return total / tf.cast(states.num_coordinates(momentum, chain_rank), dtype)


def _select_where_by_chain(mask, new, old):
  """`states.select` of the tensors that have the axes of chains."""
  def select(a, b):
    if not b.shape[:mask.shape.rank].is_compatible_with(mask.shape):
      return b
    return states.select(mask, a, b)

  return tf.nest.map_structure(select, new, old)
