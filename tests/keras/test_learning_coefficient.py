"""The local learning coefficient of a network, from the draws of `fit`."""

import contextlib
import math

import numpy as np
import pytest

from tests.keras import models
import tfp_sgmcmc as sgmcmc


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('num_chains', [1, 2])
def test_by_hand(num_chains):
  (x, y), model = models.classes(), models.classifier()
  temperature = math.log(models.NUM_EXAMPLES)
  weights = model.get_weights()
  more = {} if num_chains == 1 else models.starting_from([weights, weights])
  sampling = models.make_sampling(
      lambda posterior: sgmcmc.SGLD(posterior, 1e-4, temperature=temperature),
      prior=sgmcmc.keras.prior_around(model, 0.5), start_epoch=0, **more)
  with pytest.warns() if num_chains > 1 else contextlib.nullcontext():
    models.fit(model, sampling, epochs=4)
  posterior = sampling.posterior
  found = sgmcmc.diagnostics.local_learning_coefficient(posterior, x, y)
  model.set_weights(weights)
  at_start = -models.NUM_EXAMPLES * model.evaluate(x, y, verbose=0)[0]
  by_hand = [
      np.mean(at_start - chain.log_likelihood(x, y).sum(axis=1)) / temperature
      for chain in posterior.chains]
  np.testing.assert_allclose(found.by_chain, by_hand, rtol=1e-3)
  np.testing.assert_allclose(found.value, np.mean(by_hand), rtol=1e-3)


def test_the_prior_stays_where_the_model_was():
  model = models.classifier()
  prior = sgmcmc.keras.prior_around(model, 0.3)
  first = model.get_weights()
  model.set_weights([w + 1. for w in first])
  for variable, value in zip(model.trainable_variables, first):
    distribution = prior(variable)
    np.testing.assert_array_equal(distribution.loc, value)
    np.testing.assert_allclose(distribution.scale, 0.3)


def test_refusals():
  model = models.classifier()
  with pytest.raises(ValueError, match='scale is 0'):
    sgmcmc.keras.prior_around(model, 0.)
  posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
      model, [np.zeros([4, *w.shape]) for w in model.get_weights()])
  with pytest.raises(ValueError, match='weights before sampling'):
    sgmcmc.diagnostics.local_learning_coefficient(
        posterior, *models.classes())
