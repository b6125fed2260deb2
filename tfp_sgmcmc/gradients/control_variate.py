"""Minibatches with the gradient at a fixed anchor as control variate.

  g = grad log p(theta) + sum_{i=1}^N grad l_i(a)
      + N / n sum_{i in S} (grad l_i(theta) - grad l_i(a))

with l_i the log likelihood of an example, S a uniform minibatch of n, and a the
anchor. Baker et al. (2019), section 3, with their f_i = -l_i, f_0 the negative
log prior and theta-hat the anchor; there the prior's gradient is also taken as
a difference from that at the anchor, which gives the same estimate.

With probabilities p_i the rows are n independent draws, and each stands for
1 / (n p_i) of them in place of N / n: Putcha et al. (2023), section 3, where
that is SGLD-CV-PS.

Of second order, the control variates are Taylor polynomials of the l_i about a,
as in Bardenet et al. (2017) and, with stochastic gradients, Dang et al. (2019):
`anchored.second_order_estimate`.
"""

from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc.gradients import anchored
from tfp_sgmcmc.gradients import base
from tfp_sgmcmc.gradients import full_pass
from tfp_sgmcmc.gradients import minibatch
from tfp_sgmcmc.gradients import preferential
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hessians
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states

__all__ = ['ControlVariate', 'ControlVariateResults']


class ControlVariateResults(NamedTuple):
  """The state of a `ControlVariate`.

  A trace of it repeats the anchor at each step, twice the size of a state:
  select fields by `trace_fn`.

  Attributes:
    num_gradients: `int64`, shape `chains`, the number of gradients of single
      examples that each chain has used so far, the pass at the anchor included.
    anchor: `Anchor`, the same at all steps.
    hessian: `[d, d]`, of the log likelihood of all the data at the anchor, the
      same at all steps (`chains + [d, d]` with an anchor for each chain); `()`
      with order 1.
  """
  num_gradients: tf.Tensor
  anchor: anchored.Anchor
  hessian: Any = ()


class ControlVariate(anchored.AnchoredEstimator):
  """Minibatches with the gradient at a fixed anchor as control variate.

    g = grad log p(theta) + sum_{i=1}^N grad l_i(a)
        + N / n sum_{i in S} (grad l_i(theta) - grad l_i(a))

  It is unbiased for any anchor a. Its variance falls with the distance of theta
  from a. The usual anchor is the mode, found by an optimizer. If the posterior
  is concentrated around it, the size of the minibatches that a chain needs does
  not grow with N. Far from the anchor it can be worse than `Uniform`. It starts
  with one pass over the data; a step takes 2 n gradients of examples.

  Where few examples matter far more than the others (those that alone have a
  rare feature), draw them more often: with `probabilities` p,

    g = grad log p(theta) + sum_{i=1}^N grad l_i(a)
        + sum_{i in S} (grad l_i(theta) - grad l_i(a)) / (n p_i),

  S being n independent draws. `gradients.preferential_probabilities` finds p.

  With `order=2` the control variates use the curvature at the anchor too. With
  H_i the Hessian of l_i at a and H their sum,

    g = grad log p(theta) + sum_{i=1}^N grad l_i(a) + H (theta - a)
        + N / n sum_{i in S} (grad l_i(theta) - grad l_i(a) - H_i (theta - a)),

  whose variance falls with the fourth power of the distance, and is zero where
  log likelihoods are quadratic. Where the posterior is near its Laplace
  approximation, minibatches may be several times smaller, or steps larger. It
  starts with a pass for each of the d coordinates and keeps d^2 numbers, so it
  is for d up to some hundred; a step costs as 4 n gradients.

  #### Examples

  >>> x = tf.random.stateless_normal([1000, 2], [0, 1])
  >>> y = tf.cast(x[:, 0] + tf.random.stateless_normal([1000], [0, 2]) > 0.,
  ...             tf.float32)
  >>> def log_likelihood(theta, batch):
  ...   x, y = batch
  ...   logits = tf.einsum('...nd,...d->...n', x, theta)
  ...   return tfd.Bernoulli(logits=logits).log_prob(y)
  >>> posterior = sgmcmc.Posterior(
  ...     tfd.MultivariateNormalDiag(tf.zeros(2)).log_prob, log_likelihood,
  ...     (x, y))
  >>> mode = tfp.optimizer.lbfgs_minimize(
  ...     lambda theta: tfp.math.value_and_gradient(
  ...         lambda theta: -posterior(theta), theta), tf.zeros(2)).position
  >>> estimator = sgmcmc.gradients.ControlVariate(batch_size=10, anchor=mode)
  >>> kernel = sgmcmc.SGLD(
  ...     posterior, step_size=1e-3, gradient_estimator=estimator)
  >>> tfp.mcmc.sample_chain(
  ...     5, tf.zeros([4, 2]), kernel=kernel, trace_fn=None, seed=[0, 0]).shape
  TensorShape([5, 4, 2])

  Close to the mode the variance is a small part of that without the anchor:

  >>> near = [mode + 0.05]
  >>> uniform = sgmcmc.gradients.Uniform(batch_size=10)
  >>> ratio = (estimator.variance(posterior, near)[0]
  ...          / uniform.variance(posterior, near)[0])
  >>> bool(tf.reduce_all(ratio < 0.02))
  True

  #### References

  [1]: Jack Baker, Paul Fearnhead, Emily B. Fox, Christopher Nemeth. Control
       Variates for Stochastic Gradient MCMC. _Statistics and Computing_, 2019.
  [2]: Srshti Putcha, Christopher Nemeth, Paul Fearnhead. Preferential
       Subsampling for Stochastic Gradient Langevin Dynamics. _AISTATS_, 2023.
  [3]: Remi Bardenet, Arnaud Doucet, Chris Holmes. On Markov Chain Monte Carlo
       Methods for Tall Data. _JMLR_, 2017.
  [4]: Khue-Dung Dang, Matias Quiroz, Robert Kohn, Minh-Ngoc Tran, Mattias
       Villani. Hamiltonian Monte Carlo with Energy Conserving Subsampling.
       _JMLR_, 2019.
  """

  def __init__(
      self,
      batch_size: int,
      anchor: hints.State,
      *,
      replacement: bool = False,
      share_minibatch: bool = False,
      rows_per_chunk: int = 1000,
      probabilities: hints.TensorLike | None = None,
      order: int = 1,
  ):
    """Makes the estimator.

    Args:
      batch_size: Python `int`, n.
      anchor: A state, a: a tensor or a list of parts. Either in the shapes of a
        single chain, as the anchor of all chains; or in those of the whole
        state, with an anchor for each chain.
      replacement: Python `bool`: draw examples independently, so that one may
        be drawn twice.
      share_minibatch: Python `bool`: all chains see one minibatch.
      rows_per_chunk: Python `int`: how many examples the pass over all the data
        takes at a time. It bounds memory, and changes nothing else.
      probabilities: Positive numbers `[M]`, one for each row of the data,
        proportional to p, the probability of drawing it. The draws are then
        independent, whatever `replacement`. Kernels in continuous time,
        `ExponentiallyWeighted` and data that are shared out among devices
        refuse them. A run in a directory resumes only with the same values, so
        keep them. Default: uniform.
      order: 1 for control variates that are linear in the state, 2 for
        quadratic ones. Kernels in continuous time and data that are shared out
        among devices refuse 2.

    Raises:
      ValueError: If `batch_size` or `rows_per_chunk` is not positive, or the
        probabilities are not, or the order is neither 1 nor 2; at the start of
        a chain, if the anchor does not fit the state, or the probabilities the
        data, or if the state is too large for a Hessian.
      TypeError: If one of these is not an integer, the anchor no state, or the
        probabilities no numbers.
    """
    super().__init__(
        batch_size,
        replacement=replacement if probabilities is None else True,
        share_minibatch=share_minibatch, rows_per_chunk=rows_per_chunk)
    if anchor is None:
      raise TypeError(
          'anchor is None: it has to be a state, best a mode of the posterior, '
          'which an optimizer finds (tfp.optimizer.lbfgs_minimize). For '
          'minibatches without an anchor take gradients.Uniform.')
    # Outside any function being traced: an array would become a constant of it.
    with tf.init_scope():
      self._anchor_parts = states.to_parts(anchor, 'anchor')
    self._probabilities = (
        None if probabilities is None else preferential.Table(probabilities))
    checks.one_of('order', order, (1, 2))
    self._order = int(order)

  @property
  def has_independent_noise(self):
    return True

  @property
  def num_gradients_per_estimate(self):
    # A product with a Hessian costs as two gradients.
    return 2 * self._order * self._batch_size

  @property
  def has_bounded_noise(self):
    # Bounds take an example to stand for N / n of them, and add up differences
    # of gradients.
    return self._probabilities is None and self._order == 1

  @property
  def chooses_among_sets(self):
    return self._probabilities is None

  @property
  def works_on_shards(self):
    return self._probabilities is None and self._order == 1

  def check_target(self, target):
    super().check_target(target)
    number = getattr(self._probabilities, 'num_rows', target.num_rows)
    if number != target.num_rows:
      raise ValueError(
          f'There are probabilities for {number} rows, and the data have '
          f'{target.num_rows}: one for each is needed.')

  def estimate(self, target, state_parts, results, indices):
    weights = None
    if self._probabilities is not None:
      weights = target.num_examples / self._batch_size * tf.cast(
          self._probabilities.weight(indices), state_parts[0].dtype)
    batch = target.gather(indices)
    if self._order == 1:
      return anchored.control_variate_estimate(
          target, state_parts, results.anchor, batch, weights)
    return anchored.second_order_estimate(
        target, state_parts, results.anchor, results.hessian, batch, weights)

  def _rows(self, target, shape, seed):
    if self._probabilities is None:
      return super()._rows(target, shape, seed)
    return self._probabilities.draw(shape, seed)

  def _terms(self, target, state_parts, results):
    differences = super()._terms(target, state_parts, results)
    if self._order == 1:
      return differences
    anchor_parts = results.anchor.state_parts
    distance = [part - a for part, a in zip(state_parts, anchor_parts)]
    return [
        difference - product for difference, product in zip(
            differences, minibatch.per_example_gradients(
                target, anchor_parts, distance))]

  def _variance_of_sum(self, target, terms):
    if self._probabilities is None:
      return super()._variance_of_sum(target, terms)
    scale = (target.num_examples / target.num_rows)**2 / self._batch_size
    shares = tf.cast(self._probabilities.shares, terms.dtype)
    shares = tf.reshape(shares, [-1] + [1] * (terms.shape.rank - 1))
    return scale * tf.reduce_sum(shares * tf.square(
        terms / shares - tf.reduce_sum(terms, axis=0)), axis=0)

  def bootstrap_results(self, target, state_parts):
    start = base.no_gradients(target, state_parts)
    parts = self._fit(state_parts, start.shape)
    target.check_state(parts)
    if self._order == 1:
      return base.count(
          ControlVariateResults(start, self._anchor(target, parts)),
          target.total_rows)
    d = hessians.check_size(
        parts, target.zeros(parts).shape.rank,
        'with order=2 a ControlVariate', 'take order=1')
    return base.count(
        ControlVariateResults(
            start, self._anchor(target, parts),
            full_pass.hessian(target, parts, self._chunk_size)),
        (1 + 2 * d) * target.total_rows)

  def _fit(self, state_parts, chains):
    """The anchor in the dtypes of the state, or an error."""
    given = [a.shape for a in self._anchor_parts]
    whole = [part.shape for part in state_parts]
    single = [shape[chains.rank:] for shape in whole]
    if given not in (whole, single):
      several = f', or of all its {chains} chains, {_show(whole)}'
      raise ValueError(
          f'The anchor has parts of shapes {_show(given)}, and the state of '
          f'{_show(whole)}. An anchor has the shapes of a single chain of the '
          f'state, {_show(single)}{several if chains.rank else ""}.')
    return [
        tf.cast(a, part.dtype)
        for a, part in zip(self._anchor_parts, state_parts)]


def _show(shapes):
  return ', '.join(str(shape) for shape in shapes)
