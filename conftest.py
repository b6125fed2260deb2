"""Names that the docstrings' examples use without importing them."""

import pytest


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
  import keras
  import tensorflow as tf
  import tensorflow_probability as tfp

  import tfp_sgmcmc as sgmcmc

  doctest_namespace.update(
      keras=keras, tf=tf, tfp=tfp, tfd=tfp.distributions,
      tfb=tfp.bijectors, sgmcmc=sgmcmc)
