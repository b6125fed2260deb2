"""All rows of the data, dealt at random into minibatches.

Of M rows in random order, set k of K gets those from k M / K to (k + 1) M / K,
rounded down: disjoint sets of about the same size, that together are the data.
"""

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.gradients import base
from tfp_sgmcmc.gradients import index_sets
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat

__all__ = ['Reshuffled']


class Reshuffled(index_sets.IndexSetEstimator):
  """Divides the rows of the data at random among a step's minibatches.

    g = grad log p(theta) + N / n sum_{i in S} grad log p(data_i | theta)

  with S one of K disjoint sets, which together are all rows. Use it as the base
  of `ExponentiallyWeighted` if the data are themselves a batch, as in `fit`: a
  step of K minibatches then costs one batch. By itself it has K = 1, and the
  estimate is that of all rows.

  #### Examples

  In `fit` each batch is divided into two minibatches; the weights choose
  between them:

  >>> import functools
  >>> kernel = functools.partial(
  ...     sgmcmc.SGHMC, step_size=0.01, friction=30.,
  ...     gradient_estimator=sgmcmc.gradients.ExponentiallyWeighted(
  ...         base=sgmcmc.gradients.Reshuffled()))
  >>> sampling = sgmcmc.keras.PosteriorSampling(
  ...     kernel, num_examples=1000, prior=tfd.Normal(0., 1.))
  """

  @property
  def follows_seed(self):
    return True

  @property
  def has_bounded_noise(self):
    return True

  @property
  def lives_on_batches(self):
    return True

  @property
  def works_on_shards(self):
    return True

  def check_sets(self, target, num_sets):
    if target.data is None:
      raise ValueError(
          f'{self!r} deals out the rows of the posterior\'s data, and this '
          'posterior holds none (data=None). Pass the data; in fit they are '
          'the batch.')
    num_rows = checks.static_value(target.num_rows)
    if num_rows is not None and num_rows < num_sets:
      raise ValueError(
          f'The rows of the data are dealt into {num_sets} minibatches '
          f'(num_index_steps is {num_sets - 1}), and there are only '
          f'{num_rows}: take larger batches, or a smaller num_index_steps.')

  def one_step(
      self, target, state_parts, previous_results, seed, gaussian_step=None):
    del gaussian_step
    sets = self.index_sets(target, base.chains_of(previous_results), 1, seed)
    estimate = self.estimate(
        target, state_parts, previous_results, sets.draw(0))
    return estimate, base.count(previous_results, sets.cost)

  def index_sets(self, target, chains, num_sets, seed):
    num_rows, seed, own_of = target.to_deal(seed)
    order = tf.argsort(random.uniform(
        tf.concat([chains, [num_rows]], axis=0), seed))

    def draw(m):
      first, last = m * num_rows // num_sets, (m + 1) * num_rows // num_sets
      # Of fewer rows than sets (a last batch of fit), some are in several.
      return own_of(order[..., first:compat.maximum(first + 1, last)])

    return index_sets.IndexSets(
        draw, compat.maximum(target.total_rows, num_sets),
        have_one_size=False)
