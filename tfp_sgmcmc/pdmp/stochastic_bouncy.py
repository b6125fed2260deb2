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

Var_i the sample variance over the minibatch. All of the derivatives u . grad
log p(x_i | theta) are found at once (`tfp_sgmcmc/gradients/directional.py`).
The gradient itself is computed only at bounces, or at each event if a
preconditioner learns from it.
"""

from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import gradients as gradients_lib
from tfp_sgmcmc import kernel
from tfp_sgmcmc import preconditioners
from tfp_sgmcmc import random
from tfp_sgmcmc.gradients import directional
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.pdmp import base
from tfp_sgmcmc.pdmp import regression

__all__ = [
    'StochasticBouncyParticleSampler', 'StochasticBouncyResults',
]

# The automatic `max_duration`, in standard deviations of a Gaussian posterior.
_LONGEST = 5.
# Of more chains one bounces at nearly each step. Outside a branch, XLA finds
# that the gradients share their work with the derivatives.
_FEW_CHAINS = 10


@kernel.refuses_corrections
class StochasticBouncyResults(NamedTuple):
  """Results of `StochasticBouncyParticleSampler`.

  Attributes:
    step: `int64` scalar, the number of events.
    target_log_prob: The estimate of the log density at the event; shape
      `chains`.
    gradient_estimator_results: The state of the gradient estimator. A
      directional derivative of an example counts as a gradient. A bounce also
      takes the minibatch's gradients; with a preconditioner that learns, each
      event does.
    velocity: List with v for each part, after the event.
    duration: Time from the event before to this one, shape `chains`.
    event: What happened, a `pdmp.Event` as `int32`, shape `chains`.
    rate_ratio: [Gtilde]_+ over the proposals' rate, where a bounce was
      proposed, else 0; above 1 such events are proposed too rarely. The share
      of such proposals, `Trajectory.violation_share`, shows the sampler's bias.
    regression: `regression.State`, what has been learned of the derivative.
    preconditioner_results: The state of the preconditioner, `()` for none.

  And the method `failure(state)`; see `errors`.
  """
  step: tf.Tensor
  target_log_prob: tf.Tensor
  gradient_estimator_results: Any
  velocity: list[tf.Tensor]
  duration: tf.Tensor
  event: tf.Tensor
  rate_ratio: tf.Tensor
  regression: regression.State
  preconditioner_results: Any

  failure = base.failure  # type: ignore[misc]


class Proposal(NamedTuple):
  """The next event as the regression proposes it.

  Attributes:
    prediction: `regression.Prediction` of the derivative there.
    duration: The time to it.
    event: `REFRESHMENT`, `HORIZON`, or `REJECTION` for a proposed bounce.
    rate: [gamma]_+ there.
  """
  prediction: regression.Prediction
  duration: tf.Tensor
  event: tf.Tensor
  rate: tf.Tensor


class Outcome(NamedTuple):
  """What was found at an event, on its minibatch.

  Attributes:
    derivative: `gradients.directional.Derivative` of U, not of log p, along the
      direction in which the particle came; after a refreshment, in which it
      goes on.
    event: What happened, a `pdmp.Event`.
    rate_ratio: [Gtilde]_+ over the proposal's rate; 0 where none was proposed.
    velocity: List with v for each part, after the event.
    gradients: List with the gradient of the log density; zeros where no chain
      needs it.
    estimator_results: The estimator's results, the cost counted.
    can_tell_variance: Whether `derivative.variance` means anything.
  """
  derivative: directional.Derivative
  event: tf.Tensor
  rate_ratio: tf.Tensor
  velocity: list[tf.Tensor]
  gradients: list[tf.Tensor]
  estimator_results: Any
  can_tell_variance: Any


class StochasticBouncyParticleSampler(base.PDMPKernel):
  """The bouncy particle sampler without a bound on its rate: SBPS and pSBPS.

    theta(t) = theta + A v t
    v <- v - 2 (v . A g) A g / |A g|^2   at the rate [v . A grad U]_+

  with v drawn anew at the rate `refresh_rate`, g the gradient of U = -log p / T
  on a minibatch, new at each event, and A the identity, or the preconditioner's
  diagonal (pSBPS). Bounces are proposed at the rate that a regression of the
  directional derivatives seen since the last one predicts, `confidence`
  standard deviations above its mean.

  A step is an event: a bounce, a rejected bounce, or a refreshment. So its
  states are the corners of a path, at unequal times: THEIR AVERAGE IS NOT THE
  POSTERIOR'S. Sample `pdmp.UniformTime(kernel, interval)`, whose draws have
  equal weights, or pass states and results to `pdmp.Trajectory.from_chain`.

  Minibatch noise leaves the law of the path unchanged (theorem 1 of the paper).
  A derivative above the proposals' rate causes bias, since events are then too
  rare: `Trajectory.violation_share` reports how often. It should be near the
  tail of a normal variable beyond `confidence`, 0.0013 for 3.
  Derivatives of few examples are skewed and give some times that. At a share of
  0.0025 means were off by 0.02 to 0.03 standard deviations: where that is too
  much, raise `confidence` or the minibatch until the share is below 0.001.

  #### Examples

  The whole path, integrated:

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
  >>> @tf.function(autograph=False)  # For long runs jit_compile=True.
  ... def run():
  ...   return tfp.mcmc.sample_chain(
  ...       200, tf.zeros([4, 2]), trace_fn=sgmcmc.pdmp.trace_path,
  ...       kernel=kernel, seed=[0, 0])
  >>> trajectory = sgmcmc.pdmp.Trajectory.from_chain(*run())
  >>> trajectory.mean().shape
  (2,)
  >>> trajectory.violation_share < 0.05
  True

  For draws of equal weight, one every 0.5 units of time, sample
  `sgmcmc.pdmp.UniformTime(kernel, interval=0.5)` as any kernel.

  #### References

  [1]: Ari Pakman, Dar Gilboa, David Carlson, Liam Paninski. Stochastic Bouncy
       Particle Sampler. _ICML_, 2017.
  """

  def __init__(
      self,
      target_log_prob_fn: hints.LogDensity,
      max_duration: hints.TensorLike | None = None,
      *,
      gradient_estimator: gradients_lib.GradientEstimator | None = None,
      confidence: hints.TensorLike = 3.,
      refresh_rate: hints.TensorLike = 1.,
      refresh_fraction: hints.TensorLike = 1.,
      velocity: str = 'sphere',
      preconditioner: preconditioners.Preconditioner | None = None,
      decay: hints.TensorLike = 1.,
      temperature: hints.Schedule = 1.,
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      target_log_prob_fn: `Posterior`, or a callable of the state's parts that
        returns the log density, one value a chain.
      max_duration: The longest time between events: after it the regression
        takes in a new derivative, whether or not a bounce is due. A positive
        number; None is five standard deviations of a Gaussian with the slope
        that the regression gives. It changes the cost, not the law: lower it
        where the potential is far from a parabola over such a distance.
      gradient_estimator: `gradients.Uniform(batch_size)`; None takes all of the
        posterior's data (as a sample of `num_examples`, where these are more).
      confidence: k, how many standard deviations the proposals' rate is above
        the expected derivative: a positive number. The number of proposals a
        bounce is about in proportion to it.
      refresh_rate: Refreshments in a unit of time, a number, at least 0. With 0
        the path does not reach all of the space on some targets (a standard
        normal one without noise). At many times the rate of bounces the path
        becomes a random walk. |v| = 1 moves one unit of the parameters in a
        unit of time.
      refresh_fraction: Number in (0, 1], the fraction of the velocity's
        variance that is drawn anew (see `pdmp.base.refresh_velocity`); 1 is a
        new draw.
      velocity: "sphere" (|v| = 1) or "gaussian" (N(0, I)), the law of v.
      preconditioner: None, or `preconditioners.RMSProp(normalize=True)` for
        pSBPS. It receives the gradient over N of each event (equation 17),
        which doubles `num_gradients`. Its diagonal is divided by its mean, so
        that the speed stays the same. v is kept when A changes. A follows the
        state a little: in a linear regression sds were up to 4% too large at
        decay 0.99, and within 1% at 0.999.
      decay: Number in (0, 1]: each new derivative multiplies the weights of the
        earlier ones by it. Below 1 the regression is local, for potentials far
        from parabolas.
      temperature: T, a positive number: the law is that of density^(1/T).
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If a number is out of its range, or the estimator does not
        fit the posterior or gives no derivative for each example.
      TypeError: If an argument is of the wrong type.
    """
    if max_duration is not None:
      checks.positive_number('max_duration', max_duration)
    checks.positive_number('confidence', confidence)
    checks.one_of('velocity', velocity, ('sphere', 'gaussian'))
    checks.positive_share('decay', decay)
    super().__init__(dict(
        target_log_prob_fn=target_log_prob_fn,
        max_duration=max_duration,
        gradient_estimator=gradient_estimator,
        confidence=confidence,
        refresh_rate=refresh_rate,
        refresh_fraction=refresh_fraction,
        velocity=velocity,
        preconditioner=preconditioner,
        decay=decay,
        temperature=temperature,
        name=name))
    _check_derivatives(self.gradient_estimator)
    if preconditioner is None:
      preconditioner = preconditioners.Identity()
    _check_preconditioner(preconditioner)
    self._preconditioner = preconditioner

  @property
  def is_calibrated(self) -> bool:
    """False: where the derivative is above the band, there is a bias."""
    return False

  @property
  def lives_on_batches(self) -> bool:
    """True: an event needs derivatives on a minibatch, and no bound."""
    return True

  def _start(self, parts, estimate, estimator_results, seeds):
    chain_rank = estimate.target_log_prob.shape.rank
    zero = tf.zeros_like(estimate.target_log_prob)
    velocity = base.draw_velocity(
        self._velocity_law, parts, chain_rank, seeds.velocity)
    preconditioner_results = self._preconditioner.bootstrap_results(
        self._mean_gradients(estimate.grads_target_log_prob))
    minibatch, estimator_results = self._estimator.directional(
        self._target, parts, estimator_results, seeds.gradient)
    derivative = self._derivative(
        minibatch, parts, self._preconditioner.times(
            velocity, preconditioner_results, chain_rank))
    slope_prior = _first_slope_prior(
        velocity, self._preconditioner.times(
            self._potential(estimate.grads_target_log_prob),
            preconditioner_results, chain_rank),
        minibatch.share, chain_rank)
    return StochasticBouncyResults(
        step=tf.zeros([], tf.int64),
        target_log_prob=estimate.target_log_prob,
        gradient_estimator_results=estimator_results,
        velocity=velocity,
        duration=zero,
        event=tf.fill(compat.shape(zero), int(base.Event.REFRESHMENT)),
        rate_ratio=zero,
        regression=regression.start(
            derivative.value, derivative.variance, slope_prior),
        preconditioner_results=preconditioner_results)

  def _one_step(self, parts, previous, seeds):
    chain_rank = previous.duration.shape.rank
    proposal = self._propose(previous, seeds)
    parts = base.move(
        parts, self._preconditioner.times(
            previous.velocity, previous.preconditioner_results, chain_rank),
        proposal.duration)
    outcome = self._observe(parts, previous, proposal, seeds)
    learned, preconditioner_results = self._learn(previous, proposal, outcome)
    has_failed = ~(
        tf.math.is_finite(outcome.derivative.value)
        & tf.math.is_finite(outcome.derivative.target_log_prob)
        & base.all_finite(outcome.gradients, chain_rank))
    return states.nan_where(has_failed, parts), StochasticBouncyResults(
        step=previous.step + 1,
        target_log_prob=outcome.derivative.target_log_prob,
        gradient_estimator_results=outcome.estimator_results,
        velocity=outcome.velocity,
        duration=proposal.duration,
        event=outcome.event,
        rate_ratio=tf.where(
            has_failed, tf.zeros_like(outcome.rate_ratio), outcome.rate_ratio),
        regression=learned,
        preconditioner_results=preconditioner_results)

  def _propose(self, previous, seeds):
    """`Proposal` of the next event: equations 11 to 13."""
    chains, dtype = compat.shape(previous.duration), previous.duration.dtype
    prediction = regression.predict(previous.regression)
    longest = self._longest(prediction.line)
    rate = regression.band_rate(
        prediction.line, previous.regression.time, longest,
        prediction.noise_variance,
        states.cast(self._parameters['confidence'], dtype))
    time, at_arrival, arrived = regression.first_arrival(
        rate, base.exponential(chains, seeds.time, dtype))
    duration, event = base.next_event(
        tf.where(arrived, time, tf.constant(float('inf'), dtype)),
        self._refreshment_time(chains, dtype, seeds.time), longest)
    return Proposal(prediction, duration, event, at_arrival)

  def _observe(self, parts, previous, proposal, seeds):
    """`Outcome` of the event, on a new minibatch: equations 4 and 16."""
    chain_rank = proposal.duration.shape.rank
    velocity = self._refresh(
        previous.velocity, proposal.event == int(base.Event.REFRESHMENT),
        seeds.velocity)

    def times(tensors):
      return self._preconditioner.times(
          tensors, previous.preconditioner_results, chain_rank)

    minibatch, estimator_results = self._estimator.directional(
        self._target, parts, previous.gradient_estimator_results,
        seeds.gradient)
    derivative = self._derivative(minibatch, parts, times(velocity))
    rate_ratio = tf.where(
        proposal.event == int(base.Event.REJECTION),
        tf.math.divide_no_nan(
            tf.nn.relu(derivative.value), proposal.rate), 0.)
    is_bounce = random.uniform(
        compat.shape(rate_ratio), seeds.accept, rate_ratio.dtype) < rate_ratio
    gradients = self._gradients(minibatch, parts, is_bounce)
    return Outcome(
        derivative,
        tf.where(is_bounce, int(base.Event.BOUNCE), proposal.event),
        rate_ratio,
        states.select(
            is_bounce, base.reflect(
                velocity, times(self._potential(gradients)), chain_rank),
            velocity),
        gradients,
        gradients_lib.count(
            estimator_results,
            minibatch.size * tf.cast(
                is_bounce | self._preconditioner.learns, tf.int64)),
        minibatch.has_variance)

  def _learn(self, previous, proposal, outcome):
    """What the regression and the preconditioner know after the event."""
    chain_rank, dtype = outcome.rate_ratio.shape.rank, outcome.rate_ratio.dtype
    is_bounce = outcome.event == int(base.Event.BOUNCE)
    value, variance, _ = outcome.derivative
    preconditioner_results = previous.preconditioner_results
    next_value = tf.where(is_bounce, -value, value)
    if self._preconditioner.learns:
      preconditioner_results = self._preconditioner.one_step(
          self._mean_gradients(outcome.gradients), preconditioner_results)
      next_value = base.dot(
          self._preconditioner.times(
              outcome.velocity, preconditioner_results, chain_rank),
          self._potential(outcome.gradients), chain_rank)
    observation = regression.Observation(
        proposal.duration, value, next_value,
        tf.where(
            outcome.can_tell_variance, variance,
            previous.regression.noise_variance),
        is_bounce, outcome.event == int(base.Event.REFRESHMENT))
    return regression.learn(
        previous.regression, proposal.prediction, observation,
        states.cast(self._parameters['decay'], dtype)), preconditioner_results

  def _derivative(self, minibatch, parts, direction):
    """The derivative of U: that of log p over -T."""
    value, variance, target_log_prob = minibatch.derivative(parts, direction)
    temperature = states.cast(self._temperature, value.dtype)
    return directional.Derivative(
        -value / temperature, variance / temperature**2, target_log_prob)

  def _gradients(self, minibatch, parts, is_bounce):
    """The gradients of log p; zeros where no chain needs them."""
    if self._preconditioner.learns:
      return minibatch.gradients(parts)
    if self._target.is_sharded:  # All devices have to come to the sums.
      return minibatch.gradients(parts)
    if (is_bounce.shape.num_elements() or 0) > _FEW_CHAINS:
      return minibatch.gradients(parts)
    return tf.cond(
        tf.reduce_any(is_bounce), lambda: minibatch.gradients(parts),
        lambda: [tf.zeros_like(part) for part in parts])

  def _potential(self, gradients):
    """The gradients of U from those of the log density."""
    return [-g / states.cast(self._temperature, g.dtype) for g in gradients]

  def _longest(self, line):
    """The longest time to the next event."""
    if self._parameters['max_duration'] is not None:
      return tf.fill(
          compat.shape(line.slope),
          states.cast(self._parameters['max_duration'], line.slope.dtype))
    return _LONGEST * tf.math.rsqrt(
        regression.typical_slope(line.slope, line.slope_variance))


def _first_slope_prior(velocity, potential, share, chain_rank):
  """A guess of the slope, |grad U|^2 |v|^2 / d, and wider the smaller d is.

  In a Gaussian the mean square of a gradient is its curvature; of the noise of
  a minibatch it is about N / n times that. In few dimensions one gradient may
  be far shorter than most, and with a slope that is thought too small the
  particle runs away.
  """
  squares = (
      base.dot(velocity, velocity, chain_rank)
      * base.dot(potential, potential, chain_rank))
  size = tf.cast(
      states.num_coordinates(velocity, chain_rank), squares.dtype)
  mean = squares * tf.cast(share, squares.dtype) / size
  mean = tf.where(mean > 0., mean, 1.)
  return regression.SlopePrior(mean, tf.square((1. + 10. / size) * mean))


def _check_derivatives(estimator):
  """Raises where the estimator gives no derivative with its variance."""
  if not estimator.gives_derivatives:
    raise ValueError(
        f'gradient_estimator is {estimator!r}: this kernel takes the '
        'derivative of each example of a minibatch, and the noise from how '
        'they differ. It needs gradients.Uniform(batch_size), with a '
        'batch_size of 2 at least and better 100, or None for all of the '
        'data. With minibatches of 1 and a bound on the rate, use '
        'BouncyParticleSampler.')


def _check_preconditioner(preconditioner):
  """Raises where it is none, or would change the speed of the particle."""
  preconditioners.check_preconditioner(preconditioner)
  if not preconditioner.keeps_scale:
    raise ValueError(
        f'preconditioner is {preconditioner!r}: its diagonal has to have the '
        'mean 1, so that it does not change the speed of the particle. Take '
        'preconditioners.RMSProp(normalize=True), or None for none.')
