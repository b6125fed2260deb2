"""ReplicaExchangeSGLD in `fit`."""

import functools

import numpy as np
import pytest

from tests.keras import models
from tests.keras import test_going_on
from tests.keras import test_law
import tfp_sgmcmc as sgmcmc

commit_each_step = test_going_on.commit_each_step
KERNEL = functools.partial(
    sgmcmc.ReplicaExchangeSGLD, step_size=1e-3, swap_every=3,
    temperature_ratios=(1., 1.5, 2.))


@pytest.mark.parametrize('num_chains', [
    1, pytest.param(2, marks=[pytest.mark.slow, pytest.mark.weekly])])
def test_draws_are_those_of_the_cold_chain(num_chains):
  model = models.classifier()
  sampling = models.make_sampling(KERNEL, **(
      {} if num_chains == 1 else dict(num_chains=num_chains)))
  models.fit(model, sampling, epochs=8)
  results = sampling.kernel_results
  last = sampling.posterior[-num_chains:].weights.values()
  for array, variable in zip(last, model.trainable_variables):
    np.testing.assert_array_equal(array[0], variable)
  assert np.sum(results.num_swaps) > 0
  for hot in results.replicas:
    for part, variable in zip(hot, model.trainable_variables):
      assert np.all(np.isfinite(part)) and np.any(part != variable)


def test_the_units_of_sgd_and_a_temperature():
  sampling = models.make_sampling(
      sgmcmc.ReplicaExchangeSGLD, learning_rate=0.01, temperature=0.1)
  models.fit(models.classifier(), sampling)
  assert len(sampling.posterior) == sampling.num_steps


@pytest.mark.slow
def test_killed_and_gone_on_with(tmp_path):
  whole = test_going_on.run(3, kernel=KERNEL)
  killed = test_going_on.run(
      3, kills=[2, 5], kernel=KERNEL, directory=tmp_path)
  test_going_on.assert_same(killed, whole)


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('batch_size', [100, 50])
def test_law_of_regressions(batch_size):
  """400 regressions in one state, so that temperatures have to be near."""
  _, _, mean, covariance = test_law.regression()
  posterior = test_law.fit_regression(batch_size, kernel=functools.partial(
      sgmcmc.ReplicaExchangeSGLD, step_size=2e-4, swap_every=5,
      temperature_ratios=(1., 1.03, 1.06)))
  draws = test_law.coefficients(posterior)
  assert max(test_law.discrepancies(draws, mean, covariance)) < 1.
