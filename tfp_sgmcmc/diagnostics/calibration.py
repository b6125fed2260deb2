"""How good predicted probabilities of classes are.

All functions take `probabilities`, float `[n, num_classes]` with rows that sum
to one, and `labels`, as tensors or NumPy arrays: integers `[n]`; or floats
`[n, num_classes]` that sum to one, the probabilities t_ic with which example i
has the class c. Then t_ic replaces [c = label_i], and the probability t of the
predicted class replaces the indicator that it is right. A posterior's
probabilities are the mean of each draw's probabilities, not of its logits.

#### References

[1]: Glenn W. Brier. Verification of Forecasts Expressed in Terms of
     Probability. _Monthly Weather Review_, 1950.
[2]: Chuan Guo, Geoff Pleiss, Yu Sun, Kilian Q. Weinberger. On Calibration of
     Modern Neural Networks. _ICML_, 2017.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints

__all__ = [
    'ReliabilityCurve',
    'RiskCoverageCurve',
    'accuracy',
    'brier_score',
    'expected_calibration_error',
    'negative_log_likelihood',
    'reliability_curve',
    'risk_coverage_curve',
]


class ReliabilityCurve(NamedTuple):
  """Confidence against accuracy, in bins of equal width of the confidence.

  Attributes:
    confidence: Mean probability of the predicted class in each bin,
      `[num_bins]`; NaN in an empty bin.
    accuracy: Share of right predictions in each bin, likewise.
    count: Number of examples in each bin, `int32[num_bins]`.
  """
  confidence: tf.Tensor
  accuracy: tf.Tensor
  count: tf.Tensor


class RiskCoverageCurve(NamedTuple):
  """The error rate of a forecast that abstains on uncertain examples.

  Attributes:
    coverage: The share of the examples that are answered, the most confident
      first, `[k]`, rising to 1.
    risk: The share of wrong predictions among them, `[k]`.
  """
  coverage: np.ndarray
  risk: np.ndarray


def accuracy(
    probabilities: hints.TensorLike,
    labels: hints.TensorLike,
) -> tf.Tensor:
  """The share of examples whose most probable class is the right one.

  Args:
    probabilities: `[n, num_classes]`.
    labels: `[n]`, or `[n, num_classes]`.

  Returns:
    accuracy: Scalar in [0, 1].

  Raises:
    ValueError: If a shape, a probability or a label is impossible.

  #### Examples

  >>> float(accuracy([[0.75, 0.25], [0.75, 0.25]], [0, 1]))
  0.5
  """
  probabilities, labels = _check(probabilities, labels)
  return tf.reduce_mean(_is_right(probabilities, labels))


def negative_log_likelihood(
    probabilities: hints.TensorLike,
    labels: hints.TensorLike,
) -> tf.Tensor:
  """The mean of minus the logarithm of the right class's probability.

    - 1/n sum_i sum_c [c = label_i] log p_ic

  Args:
    probabilities: `[n, num_classes]`.
    labels: `[n]`, or `[n, num_classes]`.

  Returns:
    negative_log_likelihood: Scalar, in nats; infinite where the right class has
      probability zero.

  Raises:
    ValueError: If a shape, a probability or a label is impossible.

  #### Examples

  >>> nll = negative_log_likelihood([[0.75, 0.25], [0.75, 0.25]], [0, 1])
  >>> round(float(nll), 4)
  0.837
  """
  # Keras' cross-entropy cuts probabilities off at 1e-7, and is never infinite.
  probabilities, labels = _check(probabilities, labels)
  return -tf.reduce_mean(tf.reduce_sum(
      tf.math.multiply_no_nan(tf.math.log(probabilities), labels), axis=1))


def brier_score(
    probabilities: hints.TensorLike,
    labels: hints.TensorLike,
) -> tf.Tensor:
  """The mean squared distance of the probabilities from the right class.

    1/n sum_i sum_c (p_ic - [c = label_i])^2

  Args:
    probabilities: `[n, num_classes]`.
    labels: `[n]`, or `[n, num_classes]`.

  Returns:
    brier_score: Scalar in [0, 2].

  Raises:
    ValueError: If a shape, a probability or a label is impossible.

  #### Examples

  >>> float(brier_score([[0.75, 0.25], [0.75, 0.25]], [0, 1]))
  0.625
  >>> float(brier_score([[0.75, 0.25]], [[0.5, 0.5]]))
  0.125
  """
  # TFP's score is this one less 1, so that a small score is lost to rounding.
  probabilities, labels = _check(probabilities, labels)
  return tf.reduce_mean(
      tf.reduce_sum(tf.math.squared_difference(probabilities, labels), axis=1))


def reliability_curve(
    probabilities: hints.TensorLike,
    labels: hints.TensorLike,
    num_bins: int = 15,
) -> ReliabilityCurve:
  """Confidence and accuracy in bins of the confidence.

  The confidence is the probability of the predicted class. Bin k, counted from
  zero, is (k / num_bins, (k + 1) / num_bins].

  Args:
    probabilities: `[n, num_classes]`.
    labels: `[n]`, or `[n, num_classes]`.
    num_bins: Python `int`.

  Returns:
    curve: `ReliabilityCurve`.

  Raises:
    ValueError: If a shape, a probability or a label is impossible.

  #### Examples

  >>> probabilities, labels = [[0.75, 0.25], [0.75, 0.25]], [0, 1]
  >>> curve = reliability_curve(probabilities, labels, num_bins=2)
  >>> curve.confidence.numpy().tolist(), curve.accuracy.numpy().tolist()
  ([nan, 0.75], [nan, 0.5])
  """
  probabilities, labels = _check(probabilities, labels)
  num_bins = checks.positive_integer('num_bins', num_bins)
  confidence = tf.reduce_max(probabilities, axis=1)
  index = tf.cast(tf.math.ceil(confidence * num_bins), tf.int32) - 1
  index = tf.clip_by_value(index, 0, num_bins - 1)

  def sums(values):
    return tf.math.unsorted_segment_sum(values, index, num_bins)

  weight = sums(tf.ones_like(confidence))
  return ReliabilityCurve(
      confidence=sums(confidence) / weight,
      accuracy=sums(_is_right(probabilities, labels)) / weight,
      count=tf.cast(weight, tf.int32))


def risk_coverage_curve(
    probabilities: hints.TensorLike,
    labels: hints.TensorLike,
) -> RiskCoverageCurve:
  """The share of errors among the examples with the highest confidence.

  The confidence is the probability of the predicted class. Examples of equal
  confidence are answered together, so that the curve has a point for each
  confidence that occurs; the last point is the error rate on all examples.

  Args:
    probabilities: `[n, num_classes]`.
    labels: `[n]`, or `[n, num_classes]`.

  Returns:
    curve: `RiskCoverageCurve`.

  Raises:
    ValueError: If a shape, a probability or a label is impossible.

  #### Examples

  >>> curve = risk_coverage_curve(
  ...     [[0.9, 0.1], [0.6, 0.4], [0.4, 0.6], [0.8, 0.2]], [0, 1, 1, 0])
  >>> curve.coverage.tolist(), curve.risk.tolist()
  ([0.25, 0.5, 1.0], [0.0, 0.0, 0.25])
  """
  probabilities, labels = _check(probabilities, labels)
  confidence = tf.reduce_max(probabilities, axis=1).numpy()
  is_wrong = 1. - _is_right(probabilities, labels).numpy()
  order = np.argsort(-confidence, kind='stable')
  number = np.arange(1, len(order) + 1)
  risk = np.cumsum(is_wrong[order], dtype=np.float64) / number
  is_last = np.append(np.diff(confidence[order]) != 0., True)
  return RiskCoverageCurve((number / len(order))[is_last], risk[is_last])


def expected_calibration_error(
    probabilities: hints.TensorLike,
    labels: hints.TensorLike,
    num_bins: int = 15,
) -> tf.Tensor:
  """The mean distance of confidence from accuracy, over bins.

    ECE = sum_bins count / n |accuracy - confidence|

  Even for a perfectly calibrated forecast of few examples it is not zero: each
  bin of m examples adds the chance deviation of its accuracy, of order
  1/sqrt(m).

  Args:
    probabilities: `[n, num_classes]`.
    labels: `[n]`, or `[n, num_classes]`.
    num_bins: Python `int`, bins of equal width of the confidence.

  Returns:
    error: Scalar in [0, 1].

  Raises:
    ValueError: If a shape, a probability or a label is impossible.

  #### Examples

  >>> float(expected_calibration_error([[0.75, 0.25], [0.75, 0.25]], [0, 1]))
  0.25
  """
  # TFP's has other bins, [k / num_bins, (k + 1) / num_bins), and float32 only.
  curve = reliability_curve(probabilities, labels, num_bins)
  count = tf.cast(curve.count, curve.confidence.dtype)
  gaps = tf.math.multiply_no_nan(
      tf.abs(curve.accuracy - curve.confidence), count)
  return tf.reduce_sum(gaps) / tf.reduce_sum(count)


def _is_right(probabilities, labels):
  """The probability that the predicted class is the right one, `[n]`."""
  return tf.gather(labels, tf.argmax(probabilities, axis=1), batch_dims=1)


def _check(probabilities, labels):
  """Both as tensors `[n, num_classes]`, or an error that says what is wrong."""
  probabilities = tf.convert_to_tensor(probabilities)
  labels = tf.convert_to_tensor(labels)
  if not probabilities.dtype.is_floating:
    raise TypeError(
        f'probabilities have dtype {probabilities.dtype.name}: they have to be '
        'floats.')
  is_soft = labels.shape.rank == 2
  if not (labels.dtype.is_floating if is_soft else labels.dtype.is_integer):
    raise TypeError(
        f'labels have dtype {labels.dtype.name} and shape {labels.shape}: they '
        'have to be integers [n], the index of the class, or floats '
        '[n, num_classes], the probabilities of the classes.')
  wanted = probabilities.shape[:2 if is_soft else 1]
  if (probabilities.shape.rank != 2 or labels.shape.rank not in (1, 2)
      or not wanted.is_compatible_with(labels.shape)):
    raise ValueError(
        f'probabilities have shape {probabilities.shape} and labels '
        f'{labels.shape}: [n, num_classes] and [n] are needed (or '
        '[n, num_classes] for labels that are probabilities). Of many draws, '
        'average the probabilities over the draws first.')
  if probabilities.shape[0] == 0:
    raise ValueError('There are no examples: at least one is needed.')
  if not is_soft:
    labels = tf.cast(labels, tf.int32)
  if tf.executing_eagerly():
    _check_probabilities('probabilities', probabilities)
    if is_soft:
      _check_probabilities('labels', labels)
    else:
      _check_labels(labels, probabilities.shape[1])
  return probabilities, tf.cast(labels, probabilities.dtype) if is_soft else (
      tf.one_hot(labels, probabilities.shape[1], dtype=probabilities.dtype))


def _check_probabilities(name, probabilities):
  total = tf.reduce_sum(probabilities, axis=1)
  error = tf.reduce_max(tf.abs(total - 1.))
  # NaN fails a comparison, and so is found too.
  if not (tf.reduce_min(probabilities) >= 0. and error < 0.01):
    raise ValueError(
        f'{name} have to be at least 0 and to sum to 1 over the last '
        f'axis: the smallest is {float(tf.reduce_min(probabilities)):g}, a sum '
        f'is off by {float(error):g}. Of logits, take tf.nn.softmax first.')


def _check_labels(labels, num_classes):
  if tf.reduce_any((labels < 0) | (labels >= num_classes)):
    raise ValueError(
        f'labels run from {int(tf.reduce_min(labels))} to '
        f'{int(tf.reduce_max(labels))}, and there are {num_classes} classes: 0 '
        f'to {num_classes - 1} are possible.')
