"""Minibatches with the gradient at an anchor that is renewed from the chain.

  g = grad log p(theta) + sum_{i=1}^N grad l_i(a)
      + N / n sum_{i in S} (grad l_i(theta) - grad l_i(a)),

  a <- theta  at the first estimate, and at every m-th after it,

with l_i the log likelihood of an example and S a uniform minibatch of n. Dubey
et al. (2016), algorithm 2 (SVRG-LD), with their theta-tilde = a; there the
minibatch is drawn with replacement, which is `replacement=True`.
"""

from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc.gradients import anchored
from tfp_sgmcmc.gradients import base
from tfp_sgmcmc.internal import checks

__all__ = ['SVRG', 'SVRGResults']


class SVRGResults(NamedTuple):
  """The state of an `SVRG`.

  A trace of it holds the anchor at each step, twice the size of a state: let
  `trace_fn` choose.

  Attributes:
    num_gradients: `int64`, shape `chains`, the number of gradients of single
      examples that each chain has used so far, the passes over all data
      included.
    num_estimates: `int64` scalar, the number of estimates so far.
    anchor: `Anchor`, of each chain.
  """
  num_gradients: tf.Tensor
  num_estimates: tf.Tensor
  anchor: anchored.Anchor


class SVRG(anchored.AnchoredEstimator):
  """Minibatches with the gradient at an anchor that is renewed from the chain.

    g = grad log p(theta) + sum_{i=1}^N grad l_i(a)
        + N / n sum_{i in S} (grad l_i(theta) - grad l_i(a))

  The anchor a of each chain becomes its state at the first estimate and at each
  m-th after it, m being `steps_per_anchor`: then the estimate is the exact
  gradient, and it costs a pass over the data. A step takes 2 n + N / m
  gradients of examples on average: 3 n at m = N / n. The estimate is unbiased
  at each step; its variance grows with the distance that the chain has moved
  since it was at the anchor.

  #### Examples

  >>> x = tf.random.stateless_normal([1000, 2], [0, 1])
  >>> y = tf.cast(x[:, 0] > 0., tf.float32)
  >>> def log_likelihood(theta, batch):
  ...   x, y = batch
  ...   logits = tf.einsum('...nd,...d->...n', x, theta)
  ...   return tfd.Bernoulli(logits=logits).log_prob(y)
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.MultivariateNormalDiag(tf.zeros(2)).log_prob, log_likelihood,
  ...     (x, y))
  >>> kernel = sgmcmc.SGLD(
  ...     posterior, step_size=1e-3,
  ...     gradient_estimator=sgmcmc.gradients.SVRG(10, steps_per_anchor=100))
  >>> _, num_gradients = tfp.mcmc.sample_chain(
  ...     4, tf.zeros([5, 2]), kernel=kernel, seed=[0, 0],
  ...     trace_fn=lambda _, r: r.gradient_estimator_results.num_gradients)
  >>> num_gradients[:, 0].numpy().tolist()  # The first is at the chain's start.
  [1040, 1060, 1080, 1100]

  #### References

  [1]: Avinava Dubey, Sashank J. Reddi, Barnabas Poczos, Alexander J. Smola,
       Eric P. Xing, Sinead A. Williamson. Variance Reduction in Stochastic
       Gradient Langevin Dynamics. _NeurIPS_, 2016.
  """

  def __init__(
      self,
      batch_size: int,
      steps_per_anchor: int,
      *,
      replacement: bool = False,
      share_minibatch: bool = False,
      rows_per_chunk: int = 1000,
  ):
    """Makes the estimator.

    Args:
      batch_size: Python `int`, n.
      steps_per_anchor: Python `int`, m: the anchor is renewed at every m-th
        estimate. 1 is the exact gradient.
      replacement: Python `bool`: draw examples independently, so that one may
        be drawn twice.
      share_minibatch: Python `bool`: all chains see one minibatch. Each has its
        own anchor in any case.
      rows_per_chunk: Python `int`: how many examples a pass over all the
        data takes at a time. It bounds memory, and changes nothing else.

    Raises:
      ValueError: If `batch_size`, `steps_per_anchor` or `rows_per_chunk` is not
        positive.
      TypeError: If one of these is not an integer.
    """
    super().__init__(
        batch_size, replacement=replacement, share_minibatch=share_minibatch,
        rows_per_chunk=rows_per_chunk)
    self._steps_per_anchor = checks.positive_integer(
        'steps_per_anchor', steps_per_anchor)

  def bootstrap_results(self, target, state_parts):
    # The first estimate sets the anchor.
    return SVRGResults(
        base.no_gradients(target, state_parts), tf.zeros([], tf.int64),
        anchored.Anchor(
            list(state_parts), target.zeros(state_parts),
            [tf.zeros_like(part) for part in state_parts]))

  def prepare(self, target, state_parts, results):
    def renewed():
      return base.count(results, target.num_rows)._replace(
          anchor=self._anchor(target, state_parts))

    results = tf.cond(
        results.num_estimates % self._steps_per_anchor == 0,
        renewed, lambda: results)
    return results._replace(num_estimates=results.num_estimates + 1)
