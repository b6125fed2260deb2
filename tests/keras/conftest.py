"""What the tests of `fit` share."""

import pytest


@pytest.fixture(autouse=True)
def _few_steps_for_each_batch(request, monkeypatch):
  """In most tests a chain need not arrive, and 3,000 steps take 20 s.

  Fixtures of modules and programs of their own make as many as users do.
  """
  from tfp_sgmcmc.keras.fitting import steps_per_batch

  if 'enough_steps' not in request.keywords:
    monkeypatch.setattr(steps_per_batch, '_ENOUGH_STEPS', 200)
