"""The scales to draws of weights that had `learned_scale` as their prior."""

from typing import NamedTuple

import numpy as np

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import seeds
from tfp_sgmcmc.keras.draws import samples
from tfp_sgmcmc.keras.model import network
from tfp_sgmcmc.keras.model import priors

__all__ = ['Scales', 'draw_scales']


class Scales(NamedTuple):
  """The prior scale of one weight tensor, in the weight's units.

  Attributes:
    draws: Array `[draws]`, a draw of s for each draw of the weights.
    mean_variance: Array `[draws]`, the mean of s^2 given that draw of the
      weights; infinite where the law has none.
  """
  draws: np.ndarray
  mean_variance: np.ndarray


def draw_scales(
    posterior: samples.PosteriorSamples,
    prior: hints.Prior,
    temperature: float = 1.,
    seed: hints.Seed = None,
) -> dict[str, Scales]:
  """Draws the scale of each weight tensor that has `learned_scale` as prior.

    s^2 | w ~ InverseGamma(a + d/2, b + |w|^2 / (2 T))

  Together with the weights the scales are draws of the joint posterior, as if
  both had been sampled.

  Args:
    posterior: `PosteriorSamples`.
    prior: The prior that you passed to `PosteriorSampling`.
    temperature: T of the draws, a positive number: `settings['temperature']` of
      `PosteriorSampling` where it was chosen.
    seed: Python `int`, a stateless seed (`int32[2]`), or None for one from
      TensorFlow's global generator.

  Returns:
    scales: Dict of `Scales` by the weights' paths.

  Raises:
    ValueError: If no weight has such a prior, or T is not positive.

  #### Examples

  >>> model = keras.Sequential([keras.Input([100]), keras.layers.Dense(10)])
  >>> posterior = sgmcmc.keras.PosteriorSamples.from_arrays(model, [
  ...     tf.random.stateless_normal([5, 100, 10], [0, 1], stddev=0.3),
  ...     tf.zeros([5, 10])])
  >>> prior = {'.*kernel': sgmcmc.keras.learned_scale(), '.*': None}
  >>> (scales,) = sgmcmc.keras.draw_scales(posterior, prior, seed=0).values()
  >>> np.round(scales.mean_variance**0.5, 1)
  array([0.3, 0.3, 0.3, 0.3, 0.3], dtype=float32)
  """
  checks.positive_number('temperature', temperature)
  variables = posterior.model.trainable_variables
  mixtures = priors.WeightPrior(prior, variables).scale_mixtures
  if not any(mixtures):
    raise ValueError(
        f'The prior is {prior!r}, and gives no weight a learned scale: pass '
        'the prior of PosteriorSampling, learned_scale() or a dict with it.')
  half_squares = zip(*(
      [mixture and mixture.half_square(w).numpy()
       for mixture, w in zip(mixtures, weights)] for weights in posterior))
  seed = seeds.to_stateless(seed)
  found = {}
  for k, (path, mixture, half_square) in enumerate(zip(
      network.paths(variables), mixtures, half_squares)):
    if mixture is None:
      continue
    law = mixture.variance_given(np.stack(half_square), temperature)
    mean = np.where(law.concentration > 1., law.scale, np.inf) / np.maximum(
        law.concentration - 1., 1e-9)
    found[path] = Scales(
        law.sample(seed=random.fold_in(seed, k)).numpy()**0.5,
        mean.astype(half_square[0].dtype))
  return found
