"""EWSG through `fit`: each batch is dealt into M + 1 minibatches."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
import tfp_sgmcmc as sgmcmc


def kernel(num_index_steps):
  return functools.partial(
      models.SGHMC, gradient_estimator=sgmcmc.gradients.ExponentiallyWeighted(
          num_index_steps=num_index_steps, base=sgmcmc.gradients.Reshuffled()))


def log_likelihood(hidden, logits, batch):
  x, y = batch
  return -tf.nn.sparse_softmax_cross_entropy_with_logits(
      y, tf.tanh(x @ hidden) @ logits)


@functools.cache
def chain_by_hand(num_epochs, batch_size, num_index_steps):
  """A loop over `one_step`, on the batches and with the seeds of fit."""
  x, y = models.classes()
  state = [
      tf.constant(w) for w in models.classifier().get_weights()]
  firsts = [*range(0, models.NUM_EXAMPLES, batch_size)] * num_epochs
  results = None
  for step, first in enumerate(firsts, start=1):
    posterior = sgmcmc.Posterior(
        lambda *parts: -0.5 * sum(tf.reduce_sum(p**2) for p in parts),
        log_likelihood,
        (x[first:first + batch_size], y[first:first + batch_size]),
        num_examples=models.NUM_EXAMPLES)
    made = kernel(num_index_steps)(posterior)
    seed = tf.constant([0, 0])
    if results is None:
      results = made.bootstrap_results(
          state, seed=sgmcmc.random.fold_in(seed, 0))
    state, results = made.one_step(
        state, results, seed=sgmcmc.random.fold_in(seed, step))
  used = results.gradient_estimator_results.num_gradients
  assert used == num_epochs * models.NUM_EXAMPLES + (
      batch_size // (num_index_steps + 1))
  return state, results


@pytest.mark.parametrize('num_index_steps, arguments', [
    (2, {}), (2, dict(run_eagerly=True)),
    pytest.param(1, dict(jit_compile=True), marks=[
        pytest.mark.slow, pytest.mark.weekly])], ids=str)
def test_same_chain_as_a_loop_over_its_batches(num_index_steps, arguments):
  """The last batch is of 10 rows, the others of 20, in each epoch."""
  model = models.classifier(**arguments)
  sampling = models.make_sampling(kernel(num_index_steps))
  models.fit(model, sampling, epochs=2)
  state, results = chain_by_hand(2, 20, num_index_steps)
  for ours, theirs in zip(model.get_weights(), state):
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
  ours = sampling.kernel_results.gradient_estimator_results
  theirs = results.gradient_estimator_results
  assert ours.num_gradients == theirs.num_gradients
  np.testing.assert_allclose(ours.acceptance, theirs.acceptance, rtol=1e-5)
  assert ours.step == 6 and 0. < ours.acceptance
  if arguments:
    return
  plain = models.classifier(run_eagerly=True)
  models.fit(plain, models.make_sampling(), epochs=2)
  assert np.max(np.abs(plain.get_weights()[0] - state[0])) > 1e-3


def test_metrics_are_of_the_whole_batch():
  x, y = models.classes()
  weights = np.linspace(0.5, 2., len(y)).astype(np.float32)
  model = models.classifier(
      weighted_metrics=['accuracy'], run_eagerly=True)
  sampling = models.make_sampling(functools.partial(
      sgmcmc.SGLD, step_size=1e-20,
      gradient_estimator=sgmcmc.gradients.ExponentiallyWeighted(
          num_index_steps=2, base=sgmcmc.gradients.Reshuffled())))
  history = models.fit(
      model, sampling, epochs=1, x=x, y=y, sample_weight=weights).history
  scores = model.evaluate(
      x, y, verbose=0, return_dict=True, sample_weight=weights)
  for name, value in scores.items():
    assert np.isclose(history[name][0], value, rtol=1e-5), name


@pytest.mark.parametrize('run_eagerly', [False, True])
def test_last_batch_of_fewer_rows_than_minibatches(run_eagerly):
  model = models.classifier(run_eagerly=run_eagerly)
  sampling = models.make_sampling(kernel(2))
  models.fit(model, sampling, epochs=1, batch_size=48)  # 48, 2
  assert np.all(np.isfinite(model.get_weights()[0]))
  assert sampling.kernel_results.gradient_estimator_results.num_gradients == (
      16 + 48 + 3)


def test_refusals():
  for arguments in (dict(batch_size=3), dict(
      batch_size=None, base=sgmcmc.gradients.Uniform(3))):
    estimator = sgmcmc.gradients.ExponentiallyWeighted(**arguments)
    with pytest.raises(ValueError, match=r'base=gradients.Reshuffled\(\)'):
      models.make_sampling(functools.partial(
          models.SGHMC, gradient_estimator=estimator))
  with pytest.raises(ValueError, match='dealt into 3 minibatches'):
    models.fit(
        models.classifier(), models.make_sampling(kernel(2)), batch_size=2)
