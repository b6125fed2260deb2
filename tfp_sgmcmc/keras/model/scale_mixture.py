"""A Gaussian prior of a weight tensor, its scale integrated out.

  w_i | s^2 ~ N(0, s^2)  for all d coordinates of one tensor,
  s^2       ~ InverseGamma(a, b),

  p(w) = Gamma(a + d/2) / Gamma(a) (2 pi b)^(-d/2) (1 + |w|^2 / 2b)^-(a + d/2),

a multivariate Student's t law. At a temperature T the law of w given s is
tempered, and that of s is not:

  pi(w, s^2) ~ p(y | w)^(1/T) N(w; 0, T s^2) InverseGamma(s^2; a, b).

Given s this is the cold posterior of Wenzel et al. (2020), since the power 1/T
of N(w; 0, s^2) is N(w; 0, T s^2) times (s^2)^(-d (1/T - 1) / 2). That factor
must not be there: for T < 1 it would draw s, and all the weights with it, to
zero. So would the power 1/T of p(w), for the radius r = |w| then has the law

  r^(d-1) (1 + r^2 / 2b)^-(a + d/2)/T,

its mass near r^2 = 2 b T / (1 - T), which is the sum of the squares of all d
weights: a layer of some thousands is gone. Under pi, without data, r^2 / (T d)
has the same law at each T. With s integrated out of pi, the log density that a
kernel at temperature T has to be given, which it divides by T, is

  T log p_T(w),  p_T(w) = p(w) with b T for b.

It vanishes as T does: at T = 0 there is no prior.
"""

from collections.abc import Callable
import math

import keras
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = ['ScaleMixture', 'fan_in', 'learned_scale']

tfd = tfp.distributions

# Below it the temperature counts as zero; b T is still a float32.
_COLDEST = 1e-30


class ScaleMixture:
  """The prior of one weight tensor whose scale is not known.

    w_i | s^2 ~ N(0, s^2),  s^2 ~ InverseGamma(a, b)

  It is made by `learned_scale`.

  #### Examples

  >>> layer = keras.layers.Dense(3)
  >>> layer.build([None, 8])
  >>> prior = sgmcmc.keras.learned_scale()(layer.kernel)
  >>> prior.concentration, prior.scale
  (1.0, 0.125)
  >>> w = tf.ones([8, 3])
  >>> float(prior.variance_given(prior.half_square(w)).mean())  # 12.125 / 12
  1.0104166269302368
  """

  def __init__(
      self,
      concentration: float,
      scale: float,
      shape: hints.Shape,
      dtype: tf.DType,
  ):
    """Makes the prior of a weight.

    Args:
      concentration: Python `float`, a.
      scale: Python `float`, b, in the units of the weight squared.
      shape: The weight's shape.
      dtype: The weight's dtype.
    """
    self.concentration, self.scale = concentration, scale
    self.shape, self.dtype = tf.TensorShape(shape), tf.as_dtype(dtype)
    self._number = self.shape.num_elements()
    # Of the sum of squares: a half-precision weight has too few digits for it.
    self._wide = tf.float64 if self.dtype == tf.float64 else tf.float32

  def half_square(self, weight: hints.TensorLike) -> tf.Tensor:
    """|w|^2 / 2, in single precision at least.

    Args:
      weight: Tensor of the weight's shape, or with leading axes before it.

    Returns:
      half_square: Tensor of the leading axes.
    """
    weight = tf.cast(weight, self._wide)
    return states.sum_event(
        tf.square(weight), weight.shape.rank - self.shape.rank) / 2.

  def log_prob(
      self,
      weight: hints.TensorLike,
      temperature: hints.Schedule = 1.,
  ) -> tf.Tensor:
    """T log p_T(w), the log prior density that a kernel at T is given.

    Args:
      weight: Tensor of the weight's shape, or with leading axes before it.
      temperature: T, a non-negative scalar; at zero the density is constant.

    Returns:
      log_prob: Tensor of the leading axes.

    Raises:
      ValueError: If T is no scalar.
    """
    checks.scalar('temperature', temperature)
    a, d = self.concentration, self._number
    t = tf.maximum(tf.cast(temperature, self._wide), _COLDEST)
    b = self.scale * t
    # Not log1p of the ratio, which may be too large for a float.
    log_ratio = tf.math.log(b + self.half_square(weight)) - tf.math.log(b)
    constant = math.lgamma(a + d / 2.) - math.lgamma(a) - d / 2. * tf.math.log(
        2. * math.pi * b)
    return t * (constant - (a + d / 2.) * log_ratio)

  def variance_given(
      self,
      half_square: hints.TensorLike,
      temperature: hints.Schedule = 1.,
  ) -> tfp.distributions.InverseGamma:
    """The law of s^2 given the weight, InverseGamma(a + d/2, b + |w|^2 / 2T).

    Args:
      half_square: Tensor, |w|^2 / 2.
      temperature: T, a positive scalar.

    Returns:
      law: `tfd.InverseGamma`, one for each number in `half_square`.
    """
    t = tf.cast(temperature, self._wide)
    return tfd.InverseGamma(
        tf.constant(self.concentration + self._number / 2., self._wide),
        self.scale + tf.cast(half_square, self._wide) / t)


def learned_scale(
    concentration: float = 1., scale: float = 1., bias_scale: float = 1.,
) -> Callable[[keras.Variable], ScaleMixture]:
  """A Gaussian prior with a scale learned from data, one a weight tensor.

    w_i | s^2 ~ N(0, s^2)  for the coordinates of one kernel, or one bias,
    s^2       ~ InverseGamma(a, a s_0^2),

    s_0 = scale / sqrt(fan_in)   for kernels,
    s_0 = bias_scale             for vectors and scalars,

  with fan_in the product of all axes of the kernel but the last. The kernel
  samples w alone, with s integrated out, so any kernel can be used.
  `draw_scales` adds the scales to draws of w.

  The law of s has the weight of 2 a observed weights of square s_0^2: of two
  with a = 1. In a kernel of some hundred weights s_0 therefore matters little.
  A priori s is between 0.66 s_0 and 3.1 s_0 with probability 0.8. For a bias of
  one coordinate the law is Student's t with 2 a degrees of freedom and scale
  s_0.

  At a temperature T the law given s is tempered, and that of s is not:

    pi(w, s^2) ~ p(y | w)^(1/T) N(w; 0, T s^2) InverseGamma(s^2; a, a s_0^2).

  The power 1/T of the law of w alone would draw all the weights of a layer to
  zero for T < 1. At T = 0 there is no prior. T may be a schedule: each step has
  the law of its own T.

  At T = 1 it shrinks the weights of a perceptron more than N(0, 1) does, which
  is not better in itself. Otherwise with the defaults of `PosteriorSampling`,
  two seeds each, test NLL (and with noise of sd 0.5 on the inputs):

                      digits, 64-100-10        Covertype, 54-128-128-2
    N(0, 1)           .114, .130  (2.3, 1.8)   .377, .372  (.81, .76)
    learned_scale()   .161, .156  (1.0, 1.0)   .427, .425  (.64, .64)

  With T chosen on validation data the two are alike (`temperature_search`).

  Args:
    concentration: Positive number, a.
    scale: Positive number, s_0 of kernels in units of 1 / sqrt(fan_in).
    bias_scale: Positive number, s_0 of vectors and scalars.

  Returns:
    prior: Callable of a variable, for `PosteriorSampling(prior=...)`, or an
      entry of its dict.

  Raises:
    ValueError: If one of them is not positive.
    TypeError: If one of them is no number.

  #### Examples

  >>> model = keras.Sequential([
  ...     keras.Input([3]), keras.layers.Dense(1, name='line')], name='model')
  >>> model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=5.))
  >>> prior = sgmcmc.keras.learned_scale()
  >>> sampling = sgmcmc.keras.PosteriorSampling(
  ...     sgmcmc.SGHMC, num_examples=200, prior=prior, learning_rate=0.01,
  ...     momentum=0.9, num_burnin_steps=50, seed=0)
  >>> x = tf.random.stateless_normal([200, 3], [0, 1])
  >>> history = model.fit(
  ...     x, 2. * x[:, :1], batch_size=10, epochs=3, verbose=0,
  ...     callbacks=[sampling])
  >>> scales = sgmcmc.keras.draw_scales(sampling.posterior, prior, seed=0)
  >>> {name: s.draws.shape for name, s in scales.items()}
  {'model/line/kernel': (10,), 'model/line/bias': (10,)}

  #### References

  [1]: Florian Wenzel et al. How Good is the Bayes Posterior in Deep Neural
       Networks Really? _ICML_, 2020. Section 2.3, on the temperature.
  """
  for name, value in (
      ('concentration', concentration), ('scale', scale),
      ('bias_scale', bias_scale)):
    checks.positive_number(name, value)
  a = float(concentration)

  def prior(variable):
    if not tf.as_dtype(variable.dtype).is_floating:
      raise TypeError(
          f'learned_scale is the prior of real weights, and {variable.path!r} '
          f'has dtype {variable.dtype}: give it another entry of the dict, or '
          'set trainable=False for its layer.')
    variance = bias_scale**2 if len(variable.shape) < 2 else (
        scale**2 / fan_in(variable.shape))
    return ScaleMixture(
        a, a * float(variance), variable.shape, variable.dtype)

  return prior


def fan_in(shape: hints.Shape) -> int:
  """The number of inputs of a unit: all axes of a kernel but the last."""
  return math.prod(shape[:-1])
