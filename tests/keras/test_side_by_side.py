"""Several chains of one network in one `fit`."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
from tests.keras import test_going_on as going_on
import tfp_sgmcmc as sgmcmc

NUM_CHAINS = 3


def starts(num_chains=NUM_CHAINS, make_model=models.classifier):
  rng = np.random.default_rng(0)
  return [[rng.normal(size=w.shape).astype(np.float32)
           for w in make_model().get_weights()] for _ in range(num_chains)]


def rows_of(chain, step, num_rows, seed, num_chains=NUM_CHAINS):
  """The rows of a chain, written again from the docstring."""
  shift = int(sgmcmc.random.indices(
      num_chains, [1], sgmcmc.random.fold_in(
          sgmcmc.random.fold_in(seed, num_chains), step))[0])
  length = -(-num_rows // num_chains)
  return (np.arange(length) * num_chains + (chain + shift) % num_chains
          ) % num_rows


def own_batches(chain, seed, num_steps, batch_size=20):
  """What a chain sees of the data in their order, as a dataset."""
  x, y = models.classes()
  batches = [(x[k:k + batch_size], y[k:k + batch_size])
             for k in range(0, len(x), batch_size)]

  def generate():
    # The first batch is there for `bootstrap_results` too.
    for step in range(1, num_steps + 1):
      a, b = batches[(step - 1) % len(batches)]
      rows = rows_of(chain, step, len(a), seed)
      yield a[rows], b[rows]

  return tf.data.Dataset.from_generator(generate, output_signature=(
      tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int64)))


@pytest.mark.parametrize('kernel', [
    functools.partial(
        sgmcmc.SGLD, step_size=1e-4,
        preconditioner=sgmcmc.preconditioners.RMSProp()),
    functools.partial(sgmcmc.SGHMC, step_size=0.01, friction=5.),
    functools.partial(sgmcmc.SGNHT, step_size=0.01, diffusion=3.),
], ids=['psgld', 'sghmc', 'sgnht'])
def test_each_chain_is_a_fit_of_its_own(kernel):
  """Number for number: its seed, its start, its rows."""
  seed, given = tf.constant([3, 4]), starts()
  sampling = models.make_sampling(
      kernel, num_chains=NUM_CHAINS, initial_weights=given, seed=seed)
  models.fit(models.classifier(run_eagerly=True), sampling, epochs=2)
  results = sampling.kernel_results
  for j, chain in enumerate(sampling.posterior.chains):
    model = models.classifier(run_eagerly=True)
    model.set_weights(given[j])
    alone = models.make_sampling(kernel, seed=sgmcmc.random.fold_in(seed, j))
    model.fit(own_batches(j, seed, 6), steps_per_epoch=3, epochs=2, verbose=0,
              callbacks=[alone])
    assert len(chain) == 6
    for ours, theirs in zip(
        chain.weights.values(), alone.posterior.weights.values()):
      np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(
        tf.nest.flatten(results), tf.nest.flatten(alone.kernel_results)):
      np.testing.assert_allclose(ours[j], theirs, rtol=1e-4, atol=1e-4)
