"""The local learning coefficient of a network, from the draws of `fit`."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.diagnostics import learning_coefficient
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.draws import samples as samples_lib
from tfp_sgmcmc.keras.model import network

__all__ = ['prior_around']

tfd = tfp.distributions


def prior_around(
    model: keras.Model, scale: float,
) -> Callable[[keras.Variable], tfp.distributions.Distribution]:
  """A Gaussian prior about the weights that a model has now.

    w ~ N(w*, scale^2)

  For `diagnostics.local_learning_coefficient`; make it just before `fit`.

  Args:
    model: Built `keras.Model`, whose trainable weights are w*.
    scale: Positive number, the standard deviation.

  Returns:
    prior: Callable of a variable, for `PosteriorSampling(prior=...)`.

  Raises:
    ValueError: If the scale is not positive, or the model has no weights yet.

  #### Examples

  A linear model of two weights, which both count: lambda is 1, a little less
  by the prior.

  >>> import math
  >>> import numpy as np
  >>> rng = np.random.default_rng(0)
  >>> x = rng.normal(size=[400, 2]).astype(np.float32)
  >>> y = x @ np.float32([[1.], [2.]]) + rng.normal(size=[400, 1])
  >>> model = keras.Sequential([
  ...     keras.Input([2]), keras.layers.Dense(1, use_bias=False)])
  >>> model.compile(
  ...     'sgd', sgmcmc.keras.GaussianLikelihood(scale=1.),
  ...     steps_per_execution=50)
  >>> model.set_weights([np.linalg.lstsq(x, y)[0]])
  >>> temperature, gamma = math.log(400), 1.
  >>> sampling = sgmcmc.keras.PosteriorSampling(
  ...     lambda posterior: sgmcmc.SGHMC(
  ...         posterior, 0.05, 10., temperature=temperature,
  ...         integrator='baoab'),
  ...     prior=sgmcmc.keras.prior_around(
  ...         model, 1. / math.sqrt(gamma * temperature)),
  ...     num_examples=400, num_burnin_steps=50, num_steps_between_results=1,
  ...     start_epoch=0, seed=1)
  >>> data = tf.data.Dataset.from_tensors((x, y)).repeat()
  >>> _ = model.fit(data, steps_per_epoch=1000, verbose=0, shuffle=False,
  ...               callbacks=[sampling])
  >>> found = sgmcmc.diagnostics.local_learning_coefficient(
  ...     sampling.posterior, x, y)
  >>> 0.7 < found.value < 1.3
  True
  """
  checks.positive_number('scale', scale)
  if not network.is_built(model):
    raise ValueError(
        'The model has no weights yet, about which the prior is to be: give it '
        'an Input, or call model.build(...).')
  variables = model.trainable_variables
  centers = dict(zip(network.paths(variables), network.values(variables)))

  def prior(variable):
    path, = network.paths([variable])
    dtype = tf.as_dtype(variable.dtype)
    return tfd.Normal(
        tf.constant(centers[path], dtype), tf.constant(scale, dtype))

  return prior


@learning_coefficient.local_learning_coefficient.register
def _(result: samples_lib.PosteriorSamples, x, y):
  start = result.start
  if start is None:
    raise ValueError(
        'The weights before sampling, w*, are not kept with these draws: take '
        'the posterior of a PosteriorSampling.')
  result = result.resampled()
  values = [_total(chain, x, y) for chain in result.chains]
  number = min(map(len, values))
  centers = _total(start, x, y)
  # Each chain against its own start, of which that of the first is the mean.
  shifted = np.stack([
      own[-number:] - center + centers[0]
      for own, center in zip(values, centers)])
  return learning_coefficient.from_log_likelihood(
      shifted, centers[0], len(keras.tree.flatten(y)[0]))


def _total(samples, x, y):
  """The log likelihood of all examples, `[draws]`."""
  return np.sum(np.float64(samples.log_likelihood(x, y)), axis=1)
