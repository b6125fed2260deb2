"""The stochastic bouncy particle sampler: bounces at estimated gradients.

With U = -log p / T the potential, u = A v the direction and Gtilde(t) = u .
grad U at theta + u t, estimated on a minibatch, the particle

  moves on a line,      theta(t) = theta + u t,
  proposes a bounce     at the first arrival of rate [gamma(t)]_+,
  accepts it            with probability min(1, [Gtilde]_+ / [gamma]_+), then
  bounces               v <- v - 2 (v . A g) A g / |A g|^2,  g ~ grad U,
  or is refreshed       at a constant rate: v is drawn anew.

gamma is the upper edge of the band in which a regression of the earlier Gtilde
on t expects the next one (`tfp_sgmcmc/pdmp/regression.py`). Pakman et al.
(2017), algorithm 1, equations 9 to 13 and, with a preconditioner A, 16 to 18;
their k is `confidence` and their lambda_r `refresh_rate`.

The noise of Gtilde has the variance (their equation 10)

  c^2 = N^2 / n (1 - n / N) Var_i(u . grad log p(x_i | theta)) / T^2,

Var_i the sample variance over the minibatch. A forward-mode pass gives all of
the derivatives u . grad log p(x_i | theta) at once; the gradient itself is only
taken at bounces.
"""

from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc import preconditioners
from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.pdmp import base
from tfp_sgmcmc.pdmp import regression

__all__ = [
    'StochasticBouncyParticleSampler', 'StochasticBouncyResults',
]

# Weight of one more fit in the prior on the slope, and of one more prediction
# in the lack of fit; of one more minibatch in the variance of the noise.
_LEARNING_RATE = 0.02
_NOISE_RATE = 0.25
# The shortest standard deviation of the noise, over that of G in a Gaussian.
_NOISE_FLOOR = 0.03
# The automatic `step_size`, in standard deviations of a Gaussian posterior.
_STEPS = 5.


class StochasticBouncyResults(NamedTuple):
  """Results of `StochasticBouncyParticleSampler`.

  Attributes:
    step: `int64` scalar, the number of events.
    target_log_prob: The estimate of the log density at the event; shape
      `chains`.
    gradient_estimator_results: The state of the gradient estimator;
      `num_gradients` has the shape `chains` here. A directional derivative of
      an example counts as a gradient, and a bounce takes the minibatch's
      gradients besides.
    velocity: List with v for each part, after the event.
    duration: Time from the event before to this one, shape `chains`.
    event: What happened, a `pdmp.Event` as `int32`, shape `chains`.
    rate_ratio: [Gtilde]_+ over the proposals' rate, where a bounce was
      proposed, else 0; above 1 the event came too rarely. The share of such
      proposals, `Trajectory.violation_share`, tells of the sampler's bias.
    time: t of the regression: time since the velocity last changed.
    statistics: `regression.Statistics` since then.
    slope_prior: `regression.SlopePrior`, learned from the fits so far.
    noise_variance: c^2 as expected at the next event.
    lack_of_fit: What the variance of predictions had besides c^2.
    preconditioner_results: The state of the preconditioner, `()` for none.
  """
  step: tf.Tensor
  target_log_prob: tf.Tensor
  gradient_estimator_results: Any
  velocity: list[tf.Tensor]
  duration: tf.Tensor
  event: tf.Tensor
  rate_ratio: tf.Tensor
  time: tf.Tensor
  statistics: regression.Statistics
  slope_prior: regression.SlopePrior
  noise_variance: tf.Tensor
  lack_of_fit: tf.Tensor
  preconditioner_results: Any

  failure = base.failure


class StochasticBouncyParticleSampler(base.PDMPKernel):
  """The bouncy particle sampler without a bound on its rate: SBPS and pSBPS.

    theta(t) = theta + A v t
    v <- v - 2 (v . A g) A g / |A g|^2   at the rate [v . A grad U]_+

  with v drawn anew at the rate `refresh_rate`, g the gradient of U = -log p / T
  on a minibatch, new at each event, and A the identity, or the preconditioner's
  diagonal (pSBPS). Bounces are proposed at the rate that a regression of the
  directional derivatives seen since the last one predicts, `confidence`
  standard deviations above its mean.

  A step is an event: a bounce, a rejected proposal of one, a refreshment. So
  its states are the corners of a path, at unequal times: THEIR AVERAGE IS NOT
  THE POSTERIOR'S. Sample `pdmp.UniformTime(kernel, interval)`, whose draws have
  equal weights, or hand states and results to `pdmp.Trajectory.from_chain`.

  The noise of the minibatches does no harm to the law of the path (theorem 1 of
  the paper). What does is a derivative above the proposals' rate, since the
  event is then too rare: `Trajectory.violation_share` reports how often. It is
  to be near the tail of a normal variable beyond `confidence`, 0.0013 for 3.
  Derivatives of few examples are skewed and give some times that; raise
  `confidence` or the minibatch where it is above 0.01 or so.

  #### Examples

  A draw at equal weight every 0.5 units of time:

  >>> x = tf.random.stateless_normal([1000, 2], [0, 1])
  >>> y = tf.cast(x[:, 0] > 0., tf.float32)
  >>> def log_likelihood(theta, batch):
  ...   logits = tf.einsum('...nd,...d->...n', batch[0], theta)
  ...   return tfd.Bernoulli(logits=logits).log_prob(batch[1])
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.MultivariateNormalDiag(tf.zeros(2)).log_prob, log_likelihood,
  ...     (x, y))
  >>> kernel = sgmcmc.StochasticBouncyParticleSampler(
  ...     posterior, gradient_estimator=sgmcmc.gradients.Uniform(100))
  >>> @tf.function(jit_compile=True)
  ... def run():
  ...   return tfp.mcmc.sample_chain(
  ...       20, tf.zeros([4, 2]), trace_fn=None, seed=[0, 0],
  ...       kernel=sgmcmc.pdmp.UniformTime(kernel, interval=0.5))
  >>> run().shape
  TensorShape([20, 4, 2])

  Or the whole path, integrated:

  >>> @tf.function(jit_compile=True)
  ... def run():
  ...   return tfp.mcmc.sample_chain(
  ...       200, tf.zeros([4, 2]), trace_fn=sgmcmc.pdmp.trace_path,
  ...       kernel=kernel, seed=[0, 0])
  >>> trajectory = sgmcmc.pdmp.Trajectory.from_chain(*run())
  >>> trajectory.mean().shape
  (2,)
  >>> trajectory.violation_share < 0.05
  True

  #### References

  [1]: Ari Pakman, Dar Gilboa, David Carlson, Liam Paninski. Stochastic Bouncy
       Particle Sampler. _ICML_, 2017.
  """

  def __init__(
      self,
      target_log_prob_fn: Any,
      step_size: Any = None,
      gradient_estimator: gradients_lib.GradientEstimator | None = None,
      confidence: Any = 3.,
      refresh_rate: Any = 1.,
      refreshment: Any = 1.,
      velocity: str = 'sphere',
      preconditioner: preconditioners.RMSProp | None = None,
      decay: Any = 1.,
      temperature: Any = 1.,
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      target_log_prob_fn: `Posterior`, or a callable of the state's parts that
        returns the log density, one value a chain.
      step_size: The longest time from event to event: after it the regression
        takes in a new derivative, whether or not a bounce is due. A positive
        number; None is five standard deviations of a Gaussian with the slope
        that the regression gives. It changes the cost, not the law: lower it
        where the potential is far from a parabola over such a distance.
      gradient_estimator: `gradients.Uniform(batch_size)`; None takes all of the
        posterior's data (as a sample of `num_examples`, where these are more).
      confidence: k, how many standard deviations the proposals' rate is above
        the expected derivative: a positive number. The number of proposals a
        bounce is about in proportion to it.
      refresh_rate: Refreshments in a unit of time, a number, at least 0. On
        some targets (a standard normal one without noise) 0 never reaches all
        of the space; many times the rate of bounces makes the path a random
        walk. |v| = 1 moves one unit of the parameters in a unit of time.
      refreshment: Number in (0, 1], the share of the velocity's variance that
        is drawn anew (see `pdmp.base.refresh_velocity`); 1 is a new draw.
      velocity: "sphere" (|v| = 1) or "gaussian" (N(0, I)), the law of v.
      preconditioner: None, or `preconditioners.RMSProp(normalize=True)` for
        pSBPS. It sees the gradient over N, at bounces, and its diagonal is over
        its mean, so that the speed stays.
      decay: Number in (0, 1]: the weights of the derivatives are times it with
        each new one. Below 1 the regression is local, for potentials far from
        parabolas.
      temperature: T, a positive number: the law is that of density^(1/T).
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If a number is out of its range or the estimator does not fit
        the posterior.
      TypeError: If the estimator is none that gives a derivative for each
        example, or an argument is of the wrong type.
    """
    if step_size is not None:
      checks.numeric('step_size', step_size, 0.)
      checks.scalar('step_size', step_size)
    checks.numeric('confidence', confidence, 0.)
    checks.scalar('confidence', confidence)
    checks.one_of('velocity', velocity, ('sphere', 'gaussian'))
    checks.fraction('decay', decay)
    checks.numeric('decay', decay, 0.)
    checks.scalar('decay', decay)
    _check_estimator(gradient_estimator)
    _check_preconditioner(preconditioner)
    super().__init__(dict(
        target_log_prob_fn=target_log_prob_fn,
        step_size=step_size,
        gradient_estimator=gradient_estimator,
        confidence=confidence,
        refresh_rate=refresh_rate,
        refreshment=refreshment,
        velocity=velocity,
        preconditioner=preconditioner,
        decay=decay,
        temperature=temperature,
        name=name))
    self._preconditioner = preconditioner

  @property
  def is_calibrated(self) -> bool:
    """False: where the derivative is above the band, there is a bias."""
    return False

  def _start(self, parts, estimate, estimator_results, seeds):
    target_log_prob, gradients = estimate
    chain_rank = target_log_prob.shape.rank
    zero = tf.zeros_like(target_log_prob)
    velocity = base.draw_velocity(
        self._velocity_law, parts, chain_rank, seeds.velocity)
    preconditioner_results = ()
    if self._preconditioner is not None:
      preconditioner_results = self._preconditioner.bootstrap_results(
          self._mean_gradients(gradients))
    diagonal = self._diagonal(preconditioner_results, chain_rank)
    minibatch = self._minibatch(target_log_prob, seeds)
    derivative = minibatch.derivative(parts, _times(diagonal, velocity))
    slope_prior = _first_slope_prior(
        velocity, _times(diagonal, minibatch.potential(gradients)),
        minibatch.share, chain_rank)
    return StochasticBouncyResults(
        step=tf.zeros([], tf.int64),
        target_log_prob=target_log_prob,
        gradient_estimator_results=self._count(
            estimator_results, minibatch, tf.zeros_like(zero, tf.bool)),
        velocity=velocity,
        duration=zero,
        event=tf.fill(compat.shape(zero), int(base.Event.REFRESHMENT)),
        rate_ratio=zero,
        time=zero,
        statistics=regression.restart(
            derivative.value, derivative.variance + _floor(slope_prior)),
        slope_prior=slope_prior,
        noise_variance=derivative.variance,
        lack_of_fit=zero,
        preconditioner_results=preconditioner_results)

  def _one_step(self, parts, previous, seeds):
    chain_rank, dtype = previous.duration.shape.rank, previous.duration.dtype
    chains = compat.shape(previous.duration)
    diagonal = self._diagonal(previous.preconditioner_results, chain_rank)

    # The time of the next event.
    line = regression.fit(previous.statistics, previous.slope_prior)
    noise_variance = (
        previous.noise_variance + previous.lack_of_fit
        + _floor(previous.slope_prior))
    horizon = self._longest(line)
    rate = regression.band_rate(
        line, previous.time, horizon, noise_variance,
        states.cast(self._parameters['confidence'], dtype))
    time, bound, arrived = regression.first_arrival(
        rate, base.exponential(chains, seeds.time, dtype))
    duration, event = base.next_event(
        tf.where(arrived, time, tf.constant(float('inf'), dtype)),
        self._refreshment_time(chains, dtype, seeds.time), horizon)
    is_proposal = event == int(base.Event.REJECTION)
    is_refreshed = event == int(base.Event.REFRESHMENT)
    parts = base.move(parts, _times(diagonal, previous.velocity), duration)
    velocity = self._refresh(previous.velocity, is_refreshed, seeds.velocity)

    # The derivative there, on a new minibatch, and whether it bounces.
    minibatch = self._minibatch(previous.target_log_prob, seeds)
    derivative = minibatch.derivative(parts, _times(diagonal, velocity))
    rate_ratio = tf.where(
        is_proposal,
        tf.math.divide_no_nan(tf.nn.relu(derivative.value), bound), 0.)
    is_bounce = random.uniform(chains, seeds.accept, dtype) < rate_ratio
    event = tf.where(is_bounce, int(base.Event.BOUNCE), event)
    gradients = tf.cond(
        tf.reduce_any(is_bounce), lambda: minibatch.gradients(parts),
        lambda: [tf.zeros_like(part) for part in parts])
    potential = minibatch.potential(gradients)
    velocity = base.select(
        is_bounce,
        base.reflect(velocity, _times(diagonal, potential), chain_rank),
        velocity)
    preconditioner_results = previous.preconditioner_results
    first_value = tf.where(is_bounce, -derivative.value, derivative.value)
    if self._preconditioner is not None:
      adapted = self._preconditioner.one_step(
          self._mean_gradients(gradients), preconditioner_results)
      preconditioner_results = adapted._replace(second_moment=base.select(
          is_bounce, adapted.second_moment,
          preconditioner_results.second_moment))
      diagonal = self._diagonal(preconditioner_results, chain_rank)
      first_value = tf.where(
          is_bounce,
          base.dot(_times(diagonal, velocity), potential, chain_rank),
          derivative.value)

    # What the regression learns from it.
    time = previous.time + duration
    lack_of_fit = tf.where(
        is_refreshed, previous.lack_of_fit,
        tf.nn.relu(previous.lack_of_fit + _LEARNING_RATE * (
            regression.surprise(line, time, derivative.value, noise_variance))))
    # One example (a last batch of fit) says nothing of how they differ.
    observed_variance = tf.where(
        minibatch.has_variance, derivative.variance, previous.noise_variance)
    noise_variance = tf.where(
        is_refreshed, observed_variance,
        previous.noise_variance + _NOISE_RATE * (
            observed_variance - previous.noise_variance))
    variance = noise_variance + lack_of_fit + _floor(previous.slope_prior)
    observed = regression.observe(
        previous.statistics, time, derivative.value, variance,
        states.cast(self._parameters['decay'], dtype))
    is_new = is_bounce | is_refreshed
    finished = regression.fit(
        _where(is_refreshed, previous.statistics, observed),
        previous.slope_prior)
    slope_prior = _where(
        is_new,
        regression.learn(previous.slope_prior, finished, _LEARNING_RATE),
        previous.slope_prior)
    statistics = _where(
        is_new, regression.restart(first_value, variance), observed)

    has_failed = ~(
        tf.math.is_finite(derivative.value)
        & tf.math.is_finite(derivative.target_log_prob)
        & base.all_finite(gradients, chain_rank))
    return base.fail(parts, has_failed), StochasticBouncyResults(
        step=previous.step + 1,
        target_log_prob=derivative.target_log_prob,
        gradient_estimator_results=self._count(
            previous.gradient_estimator_results, minibatch, is_bounce),
        velocity=velocity,
        duration=duration,
        event=event,
        rate_ratio=tf.where(has_failed, tf.zeros_like(rate_ratio), rate_ratio),
        time=tf.where(is_new, tf.zeros_like(time), time),
        statistics=statistics,
        slope_prior=slope_prior,
        noise_variance=noise_variance,
        lack_of_fit=lack_of_fit,
        preconditioner_results=preconditioner_results)

  def _minibatch(self, target_log_prob, seeds):
    """The event's minibatch."""
    target, estimator = self._target, self._estimator
    batch = None
    if isinstance(estimator, gradients_lib.Uniform):
      batch = target.gather(estimator.draw(
          target, compat.shape(target_log_prob), seeds.gradient))
      return _Minibatch(
          target, batch, estimator.batch_size,
          None if estimator.replacement else target.num_rows,
          self._temperature)
    if target.has_examples:
      if target.num_rows == 1 < target.num_examples:
        raise ValueError(
            f'The posterior holds 1 example, as a sample of '
            f'{target.num_examples}, and the noise of the derivative is '
            'estimated from how it differs between examples: 2 are needed at '
            'least, and 100 are better.')
      return _Minibatch(
          target, target.data, compat.shape(tf.nest.flatten(target.data)[0])[0],
          target.num_examples, self._temperature)
    return _Minibatch(target, None, 1, 1, self._temperature)

  def _longest(self, line):
    """The longest time to the next event."""
    if self._parameters['step_size'] is not None:
      return tf.fill(
          compat.shape(line.slope),
          states.cast(self._parameters['step_size'], line.slope.dtype))
    return _STEPS * tf.math.rsqrt(
        _typical_slope(line.slope, line.slope_variance))

  def _diagonal(self, preconditioner_results, chain_rank):
    """A, or None for the identity."""
    if self._preconditioner is None:
      return None
    return self._preconditioner.diagonal(preconditioner_results, chain_rank)

  def _count(self, estimator_results, minibatch, is_bounce):
    """The estimator's results, with the gradients that the event took."""
    used = minibatch.size * (1 + tf.cast(is_bounce, tf.int64))
    return gradients_lib.count(estimator_results, used)


class _Derivative(NamedTuple):
  """A derivative of the potential, estimated, and its noise's variance."""
  value: tf.Tensor
  variance: tf.Tensor
  target_log_prob: tf.Tensor


class _Minibatch:
  """What an event needs of a minibatch, on which U is estimated.

  Args:
    target: `Posterior`, or a callable that returns the log density.
    batch: The examples, None for a callable.
    size: n, how many there are.
    population: Of how many they are drawn, None if with replacement.
    temperature: T.
  """

  def __init__(self, target, batch, size, population, temperature):
    self._target = target
    self._batch = batch
    self._population = population
    self._temperature = temperature
    self.size = tf.cast(size, tf.int64)

  @property
  def share(self):
    """n / N."""
    if self._batch is None:
      return 1.
    return self.size / self._target.num_examples

  @property
  def has_variance(self):
    """Whether the derivatives of the examples tell the noise of their sum."""
    return (self._batch is None or self._target.num_examples == 1
            or self.size > 1)

  def derivative(self, parts, direction):
    """u . grad U, of the direction u, by one pass in forward mode."""
    parts = [tf.identity(part) for part in parts]
    with tf.autodiff.ForwardAccumulator(parts, direction) as accumulator:
      if self._batch is None:
        value, each = self._target(*parts), None
      else:
        value = self._target.log_prior(*parts)
        each = self._target.log_likelihood(*parts, batch=self._batch)

    def jvp(tensor):
      return accumulator.jvp(tensor, tf.UnconnectedGradients.ZERO)

    temperature = states.cast(self._temperature, value.dtype)
    slope, variance = jvp(value), tf.zeros_like(value)
    if each is not None:
      size = tf.cast(self.size, value.dtype)
      scale = self._target.num_examples / size
      slopes = jvp(each)
      value += scale * tf.reduce_sum(each, axis=-1)
      slope += scale * tf.reduce_sum(slopes, axis=-1)
      variance = self._noise_factor(size) * tf.math.reduce_variance(
          slopes, axis=-1)
    return _Derivative(
        -slope / temperature, variance / temperature**2, value)

  def gradients(self, parts):
    """The gradients of the log density."""
    if self._batch is None:
      return states.value_and_gradients(self._target, parts)[1]
    return states.value_and_gradients(
        lambda *parts: self._target.log_prob_estimate(
            *parts, batch=self._batch), parts)[1]

  def potential(self, gradients):
    """The gradients of U from those of the log density."""
    return [-g / states.cast(self._temperature, g.dtype) for g in gradients]

  def _noise_factor(self, size):
    """N^2 / n (1 - n / N), over the variance with divisor n: equation 10."""
    left = 1. if self._population is None else 1. - size / self._population
    return self._target.num_examples**2 * left / tf.maximum(size - 1., 1.)


def _first_slope_prior(velocity, potential, share, chain_rank):
  """A guess of the slope, |grad U|^2 |v|^2 / d, and as wide.

  In a Gaussian the mean square of a gradient is its curvature; of the noise of
  a minibatch it is about N / n times that.
  """
  squares = (
      base.dot(velocity, velocity, chain_rank)
      * base.dot(potential, potential, chain_rank))
  mean = squares * tf.cast(share, squares.dtype) / tf.cast(
      states.num_coordinates(velocity, chain_rank), squares.dtype)
  mean = tf.where(mean > 0., mean, 1.)
  return regression.SlopePrior(mean, mean * mean)


def _typical_slope(mean, variance):
  """The square of a typical derivative of a Gaussian with such slopes."""
  return tf.sqrt(tf.square(mean) + variance)


def _floor(slope_prior):
  """The least variance of the noise."""
  return _NOISE_FLOOR**2 * _typical_slope(*slope_prior)


def _times(diagonal, parts):
  """A times the parts; A is None for the identity."""
  if diagonal is None:
    return parts
  return [a * part for a, part in zip(diagonal, parts)]


def _where(mask, new, old):
  """`new` in the chains of `mask`, `old` elsewhere, of tuples of tensors."""
  return tf.nest.map_structure(
      lambda a, b: tf.where(mask, a, b), new, old)


def _check_estimator(estimator):
  """Raises where the estimator gives no derivative for each example."""
  if isinstance(estimator, gradients_lib.Uniform):
    if estimator.batch_size == 1:
      raise ValueError(
          'batch_size is 1, and the noise of the derivative is estimated from '
          'how it differs between the examples of a minibatch: take at least '
          '2, and better 100. With minibatches of 1 and a bound on the rate, '
          'use BouncyParticleSampler.')
  elif estimator is not None and not isinstance(
      estimator, gradients_lib.Exact):
    raise TypeError(
        f'gradient_estimator is {estimator!r}: this kernel takes the '
        'derivative of each example of a minibatch, for which it needs '
        'gradients.Uniform(batch_size), or None for all of the data.')


def _check_preconditioner(preconditioner):
  if preconditioner is not None and not (
      isinstance(preconditioner, preconditioners.RMSProp)
      and preconditioner.keeps_scale):
    raise TypeError(
        f'preconditioner is {preconditioner!r}: it has to be '
        'preconditioners.RMSProp(normalize=True), or None for none.')
