"""Rates of Poisson processes from a local regression of the derivative.

Along a straight piece of path the directional derivative G(t) of the potential
is observed with noise, G_i = beta_1 t_i + beta_0 + eps_i, eps_i ~ N(0, c_i^2),
at times t_i since the last change of velocity; Pakman et al. (2017), section 4,
equations 9 to 13. With weights w_i = 1 / c_i^2 and a prior N(mu, s^2) on the
slope beta_1, all that the regression needs of the past are

  W = sum w_i,  tbar = sum w_i t_i / W,  Gbar = sum w_i G_i / W,
  S = sum w_i (t_i - tbar)^2,  C = sum w_i (t_i - tbar) (G_i - Gbar),

kept centred, since the sums of the normal equations cancel in float32. The
posterior of the line is that of two independent numbers,

  value at tbar ~ N(Gbar, 1 / W),
  slope beta_1  ~ N((C + mu / s^2) / P, 1 / P),  P = S + 1 / s^2,

and an observation at t is predicted to be normal with the variance

  rho^2(t) = 1 / W + (t - tbar)^2 / P + c^2.

The rate is [gamma(t)]_+, with gamma the linear interpolation of the band
Gbar + beta_1 (t - tbar) + k rho(t) between knots. The band is convex, so gamma
is nowhere below it; beyond the last interpolated knot gamma goes on with the
band's asymptotic slope, beta_1 + k / sqrt(P), which no slope of the band
exceeds.

Besides the line, the sampler learns as it goes: the prior on the slope, from
the lines fitted between changes of velocity; c^2, from the minibatches; and the
lack of fit, by which predictions err more than c^2 and rho say, since the
potential is no parabola. `State` holds all of it, `predict` reads it, `learn`
takes in an event.

All functions are of tensors in the chains' shape, with knots on a last axis.

#### References

[1]: Ari Pakman, Dar Gilboa, David Carlson, Liam Paninski. Stochastic Bouncy
     Particle Sampler. _ICML_, 2017.
"""

from typing import NamedTuple

import tensorflow as tf

__all__ = [
    'Line',
    'Observation',
    'PiecewiseLinear',
    'Prediction',
    'SlopePrior',
    'State',
    'Statistics',
    'band',
    'band_rate',
    'first_arrival',
    'fit',
    'learn',
    'learn_slope',
    'observe',
    'predict',
    'restart',
    'start',
    'surprise',
    'typical_slope',
]

# Knots of the interpolation, besides its start; the integral of the rate up to
# the last of them is at least the level. Beyond, the asymptotic slope serves.
_NUM_KNOTS = 6
_LEVEL = 3.
# The weight of one more fit in the prior on the slope, and of one more
# prediction in the lack of fit; of one more minibatch in c^2.
_LEARNING_RATE = 0.02
_NOISE_RATE = 0.25
# The largest squared error, over rho^2, that counts as lack of fit. A larger
# error means the line is wrong; counting it as noise would stop its correction.
_LARGEST_SURPRISE = 16.
# The least standard deviation of the noise, over that of G in a Gaussian.
_NOISE_FLOOR = 0.03


class Statistics(NamedTuple):
  """What the regression keeps of the observations.

  Attributes:
    weight: W, the sum of the weights.
    time: tbar, the weighted mean time.
    value: Gbar, the weighted mean of the derivative.
    time_square: S, the weighted sum of squares of the times about tbar.
    product: C, the weighted sum of products about the means.
  """
  weight: tf.Tensor
  time: tf.Tensor
  value: tf.Tensor
  time_square: tf.Tensor
  product: tf.Tensor


class SlopePrior(NamedTuple):
  """The prior N(mean, variance) on the slope."""
  mean: tf.Tensor
  variance: tf.Tensor


class Line(NamedTuple):
  """A fitted line: two independent normal numbers.

  Attributes:
    time: tbar.
    value: Mean of the line's value at tbar.
    value_variance: Its variance.
    slope: Mean of the slope.
    slope_variance: Its variance.
  """
  time: tf.Tensor
  value: tf.Tensor
  value_variance: tf.Tensor
  slope: tf.Tensor
  slope_variance: tf.Tensor


class State(NamedTuple):
  """All that is kept of the derivatives seen so far.

  Attributes:
    time: t, the time since the velocity last changed.
    statistics: `Statistics` of the derivatives seen since then.
    slope_prior: `SlopePrior`, learned from the lines fitted so far.
    noise_variance: c^2 as it is expected of the next derivative.
    lack_of_fit: By how much the squared errors of predictions have been larger
      than rho^2, on average; 0 where the derivative is linear along the path.
  """
  time: tf.Tensor
  statistics: Statistics
  slope_prior: SlopePrior
  noise_variance: tf.Tensor
  lack_of_fit: tf.Tensor


class Prediction(NamedTuple):
  """What is expected of the next derivative.

  Attributes:
    line: `Line`, its mean as a function of t.
    noise_variance: Its variance about the line: c^2, the lack of fit and a
      least value.
  """
  line: Line
  noise_variance: tf.Tensor


class Observation(NamedTuple):
  """What an event has shown.

  Attributes:
    duration: The time since the event before.
    value: G along the direction in which the particle came; after a
      refreshment, in which it goes on.
    next_value: G, on the same minibatch, along the direction in which it goes
      on: -G after a bounce.
    variance: c^2, estimated on the minibatch.
    is_bounce: Boolean.
    is_refreshed: Boolean.
  """
  duration: tf.Tensor
  value: tf.Tensor
  next_value: tf.Tensor
  variance: tf.Tensor
  is_bounce: tf.Tensor
  is_refreshed: tf.Tensor


class PiecewiseLinear(NamedTuple):
  """A continuous function, linear between knots.

  Attributes:
    times: Knots from 0 on, increasing along the last axis.
    values: The function's values there.
  """
  times: tf.Tensor
  values: tf.Tensor


def restart(value: tf.Tensor, variance: tf.Tensor) -> Statistics:
  """The statistics of a single observation, at time 0."""
  zero = tf.zeros_like(value)
  return Statistics(1. / variance, zero, value, zero, zero)


def observe(
    statistics: Statistics,
    time: tf.Tensor,
    value: tf.Tensor,
    variance: tf.Tensor,
    decay: float = 1.,
) -> Statistics:
  """Takes in an observation; the older ones' weights are times `decay`.

  Args:
    statistics: `Statistics` of the observations before.
    time: t, since the last change of velocity.
    value: G, observed at t.
    variance: c^2, of its noise.
    decay: Number in (0, 1]; below 1 the regression is a local one.

  Returns:
    statistics: `Statistics`.
  """
  old = decay * statistics.weight
  weight = old + 1. / variance
  share = 1. / (variance * weight)
  late, high = time - statistics.time, value - statistics.value
  reduced = old * share
  return Statistics(
      weight,
      statistics.time + share * late,
      statistics.value + share * high,
      decay * statistics.time_square + reduced * late * late,
      decay * statistics.product + reduced * late * high)


def fit(statistics: Statistics, prior: SlopePrior) -> Line:
  """The posterior of the line: equations 9 and 11."""
  slope_variance = prior.variance / (
      1. + prior.variance * statistics.time_square)
  slope = prior.mean + slope_variance * (
      statistics.product - prior.mean * statistics.time_square)
  return Line(
      statistics.time, statistics.value, 1. / statistics.weight, slope,
      slope_variance)


def start(
    value: tf.Tensor, variance: tf.Tensor, slope_prior: SlopePrior) -> State:
  """The state after the first derivative of a chain.

  Args:
    value: G.
    variance: c^2.
    slope_prior: `SlopePrior`, a guess.

  Returns:
    state: `State`.
  """
  zero = tf.zeros_like(value)
  return State(
      zero, restart(value, variance + _floor(slope_prior)), slope_prior,
      variance, zero)


def predict(state: State) -> Prediction:
  """What is expected of the next derivative: equation 11.

  Args:
    state: `State`.

  Returns:
    prediction: `Prediction`.
  """
  return Prediction(
      fit(state.statistics, state.slope_prior),
      state.noise_variance + state.lack_of_fit + _floor(state.slope_prior))


def learn(
    state: State, prediction: Prediction, observation: Observation,
    decay: float = 1.,
) -> State:
  """Takes in an event.

  A rejected proposal is one more point of the line. At a bounce or a
  refreshment the line is finished, the prior on the slope learns from it, and
  the next line starts with the derivative of the same minibatch along the new
  direction.

  Args:
    state: `State` before the event.
    prediction: `Prediction` that was made of it.
    observation: `Observation`.
    decay: Number in (0, 1]; below 1 the regression is a local one.

  Returns:
    state: `State`.
  """
  is_refreshed = observation.is_refreshed
  is_new = observation.is_bounce | is_refreshed
  time = state.time + observation.duration
  # After a refreshment the line in the old direction has no new point.
  lack_of_fit = tf.where(
      is_refreshed, state.lack_of_fit,
      tf.nn.relu(state.lack_of_fit + _LEARNING_RATE * surprise(
          prediction.line, time, observation.value,
          prediction.noise_variance)))
  noise_variance = tf.where(
      is_refreshed, observation.variance,
      state.noise_variance + _NOISE_RATE * (
          observation.variance - state.noise_variance))
  variance = noise_variance + lack_of_fit + _floor(state.slope_prior)
  observed = observe(
      state.statistics, time,
      tf.where(
          observation.is_bounce, observation.value, observation.next_value),
      variance, decay)
  finished = fit(
      _where(is_refreshed, state.statistics, observed), state.slope_prior)
  return State(
      tf.where(is_new, tf.zeros_like(time), time),
      _where(is_new, restart(observation.next_value, variance), observed),
      _where(
          is_new, learn_slope(state.slope_prior, finished, _LEARNING_RATE),
          state.slope_prior),
      noise_variance, lack_of_fit)


def typical_slope(mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
  """The root mean square of slopes of that mean and variance.

  In a Gaussian the mean square of G is its mean slope, so that this is also a
  typical G^2.
  """
  return tf.sqrt(tf.square(mean) + variance)


def _floor(slope_prior):
  """The least variance about the line."""
  return _NOISE_FLOOR**2 * typical_slope(*slope_prior)


def _where(mask, new, old):
  """`new` in the chains of `mask`, `old` elsewhere, of tuples of tensors."""
  return tf.nest.map_structure(
      lambda a, b: tf.where(mask, a, b), new, old)


def learn_slope(prior: SlopePrior, line: Line, rate: float) -> SlopePrior:
  """A step of stochastic EM on the marginal likelihood of the slope's prior.

  Args:
    prior: `SlopePrior` with which the line was fitted.
    line: `Line`, a finished fit.
    rate: Number in (0, 1], the weight of this fit.

  Returns:
    prior: `SlopePrior`.
  """
  high = line.slope - prior.mean
  return SlopePrior(
      prior.mean + rate * high,
      prior.variance + rate * (
          (1. - rate) * high * high + line.slope_variance - prior.variance))


def surprise(
    line: Line, time: tf.Tensor, value: tf.Tensor, noise_variance: tf.Tensor,
) -> tf.Tensor:
  """The square of a prediction's error minus its variance: mean 0 in a fit.

  Args:
    line: `Line`, without the observation.
    time: t.
    value: G observed at t.
    noise_variance: c^2, as it was predicted.

  Returns:
    surprise: (G - Ghat(t))^2 - rho^2(t), at most 15 rho^2(t).
  """
  late = time - line.time
  variance = (
      line.value_variance + late * late * line.slope_variance + noise_variance)
  error = value - line.value - line.slope * late
  return tf.minimum(tf.square(error), _LARGEST_SURPRISE * variance) - variance


def band(
    line: Line,
    time: tf.Tensor,
    noise_variance: tf.Tensor,
    confidence: float,
) -> tf.Tensor:
  """The upper edge of the predictive band: equations 11 to 13.

  Args:
    line: `Line`.
    time: t, of the shape of the line or with a last axis more.
    noise_variance: c^2 of the observation predicted.
    confidence: k.

  Returns:
    band: Of the shape of `time`.
  """
  if time.shape.rank > line.time.shape.rank:
    line = Line(*(tensor[..., tf.newaxis] for tensor in line))
    noise_variance = noise_variance[..., tf.newaxis]
  late = time - line.time
  rho = tf.sqrt(
      line.value_variance + late * late * line.slope_variance + noise_variance)
  return line.value + line.slope * late + confidence * rho


def band_rate(
    line: Line,
    start: tf.Tensor,
    longest: tf.Tensor,
    noise_variance: tf.Tensor,
    confidence: float,
) -> PiecewiseLinear:
  """gamma, from a time on, as a function of the time passed since.

  Args:
    line: `Line`.
    start: The time that is the function's zero, not before `line.time`.
    longest: Where the function ends.
    noise_variance: c^2 of the observation predicted.
    confidence: k.

  Returns:
    gamma: `PiecewiseLinear` on [0, longest], nowhere below the band.
  """
  late = start - line.time
  steepest = line.slope + confidence * tf.sqrt(line.slope_variance)
  # The band is above its tangent at the start and above its asymptote: it has
  # reached the level where the first of these has.
  rho = tf.sqrt(
      line.value_variance + late * late * line.slope_variance + noise_variance)
  tangent = line.slope + confidence * late * line.slope_variance / rho
  reach = tf.minimum(
      longest,
      tf.minimum(
          _line_arrival(
              line.value + line.slope * late + confidence * rho, tangent,
              _LEVEL),
          _line_arrival(line.value + steepest * late, steepest, _LEVEL)))
  fractions = tf.linspace(
      tf.zeros([], reach.dtype), tf.ones([], reach.dtype), _NUM_KNOTS + 1)
  times = reach[..., tf.newaxis] * fractions
  values = band(
      line, start[..., tf.newaxis] + times, noise_variance, confidence)
  last = values[..., -1] + steepest * (longest - reach)
  return PiecewiseLinear(
      tf.concat([times, longest[..., tf.newaxis]], axis=-1),
      tf.concat([values, last[..., tf.newaxis]], axis=-1))


def _line_arrival(value, slope, level):
  """When the integral of [value + slope t]_+ reaches the level; or infinity."""
  square = value * value + 2. * slope * level
  root = tf.sqrt(tf.maximum(square, 0.))
  infinity = tf.constant(float('inf'), value.dtype)
  above = tf.where(
      square >= 0., 2. * level / tf.where(value > 0., value + root, 1.),
      infinity)
  rising = slope > 0.
  safe = tf.where(rising, slope, 1.)
  below = tf.where(
      rising, -value / safe + tf.sqrt(2. * level / safe), infinity)
  return tf.where(value > 0., above, below)


def first_arrival(
    rate: PiecewiseLinear, exponential: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """The time at which the integral of [gamma]_+ reaches a level.

  With a unit exponential as the level, it is the first arrival of the Poisson
  process of rate [gamma]_+.

  Args:
    rate: `PiecewiseLinear`, gamma.
    exponential: The level.

  Returns:
    time: When the level is reached; the last knot where it is not.
    rate: [gamma]_+ at that time.
    arrived: Boolean, whether the level is reached.
  """
  left, right = rate.values[..., :-1], rate.values[..., 1:]
  width = rate.times[..., 1:] - rate.times[..., :-1]
  positive = tf.nn.relu(left) + tf.nn.relu(right)
  total = tf.abs(left) + tf.abs(right)
  pieces = 0.5 * width * positive * (
      positive / tf.where(total > 0., total, 1.))
  integral = tf.cumsum(pieces, axis=-1)
  level = exponential[..., tf.newaxis]
  # The piece in which the level is reached: the first with more before its end.
  done = integral <= level
  inside = ~done & tf.concat(
      [tf.ones_like(done[..., :1]), done[..., :-1]], axis=-1)

  def pick(values):
    return tf.reduce_sum(tf.where(inside, values, 0.), axis=-1)

  rest = exponential - pick(integral - pieces)
  value, span = pick(left), pick(width)
  slope = (pick(right) - value) / tf.where(span > 0., span, 1.)
  arrived = tf.reduce_any(inside, axis=-1)
  passed = tf.minimum(_line_arrival(value, slope, rest), span)
  time = tf.where(
      arrived, pick(rate.times[..., :-1]) + passed, rate.times[..., -1])
  at = tf.where(arrived, value + slope * passed, rate.values[..., -1])
  return time, tf.nn.relu(at), arrived
