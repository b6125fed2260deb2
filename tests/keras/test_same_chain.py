"""However `fit` is run, the chain is the same."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.keras import models
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions


def every_other_draw():
  return models.make_sampling(num_burnin_steps=1, num_steps_between_results=1)


def chain(x=None, **compile_arguments):
  model, sampling = models.classifier(**compile_arguments), every_other_draw()
  if x is None:
    history = models.fit(model, sampling, epochs=3)
  else:
    history = model.fit(
        x, epochs=3, verbose=0, callbacks=[sampling], shuffle=False)
  return sampling.posterior, history.history


def assert_same_draws(ours, theirs, **tolerance):
  assert ours.steps == theirs.steps
  for a, b in zip(ours.weights.values(), theirs.weights.values()):
    np.testing.assert_allclose(
        a, b, **{'rtol': 1e-4, 'atol': 1e-5, **tolerance})


@pytest.fixture(scope='module')
def reference():
  return chain()


@pytest.mark.slow
def test_jit_compile_gives_the_same_chain(reference):
  posterior, history = chain(jit_compile=True)
  assert_same_draws(posterior, reference[0])
  np.testing.assert_allclose(
      history['loss'], reference[1]['loss'], rtol=1e-4)


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.parametrize('prior', [
    tfd.Normal(0., 1.), tfd.StudentT(4., 0., 1.), sgmcmc.keras.learned_scale()])
def test_jit_compile_of_a_wide_network_gives_the_same_chain(prior):
  """Where sums over the weights are made of products (`states.sum_event`)."""
  found = []
  for jit_compile in (False, True):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input([4]), keras.layers.Dense(64, activation='relu'),
        keras.layers.Dense(300, activation='relu'), keras.layers.Dense(3)])
    model.compile(
        'sgd', keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile)
    sampling = models.make_sampling(prior=prior)
    history = models.fit(model, sampling, epochs=2).history
    found.append((sampling.posterior, history))
  (ours, our_history), (theirs, history) = found
  assert_same_draws(ours, theirs)
  for name in ('loss', 'kinetic_temperature'):
    np.testing.assert_allclose(our_history[name], history[name], rtol=1e-5)


@pytest.mark.parametrize('jit_compile', [
    False, pytest.param(True, marks=pytest.mark.slow)])
def test_steps_per_execution_gives_the_same_draws(reference, jit_compile):
  posterior, _ = chain(steps_per_execution=2, jit_compile=jit_compile)
  assert_same_draws(posterior, reference[0])


def test_eager_gives_the_same_chain(reference):
  assert_same_draws(chain(run_eagerly=True)[0], reference[0])


def test_dataset_gives_the_same_chain(reference):
  x, y = models.classes()
  data = tf.data.Dataset.from_tensor_slices((x, y)).batch(20)
  assert_same_draws(chain(data)[0], reference[0])


def test_data_of_unknown_length_give_the_same_chain(reference):
  x, y = models.classes()

  def batches():
    for start in range(0, len(x), 20):
      yield x[start:start + 20], y[start:start + 20]

  data = tf.data.Dataset.from_generator(
      batches, output_signature=(
          tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int64)))
  assert_same_draws(chain(data)[0], reference[0])


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('policy, tolerance', [
    ('mixed_bfloat16', 0.1), ('mixed_float16', 0.02)])
def test_mixed_precision(reference, policy, tolerance):
  keras.config.set_dtype_policy(policy)
  try:
    posterior, _ = chain()
  finally:
    keras.config.set_dtype_policy('float32')
  assert_same_draws(posterior, reference[0], atol=tolerance)


@pytest.mark.slow
def test_fit_again_goes_on_with_the_chain(reference):
  model, sampling = models.classifier(), every_other_draw()
  models.fit(model, sampling, epochs=2)
  models.fit(model, sampling, epochs=1)
  assert sampling.num_steps == 9
  assert_same_draws(sampling.posterior, reference[0])


@pytest.mark.slow
def test_learning_rate_scheduler_is_followed_or_without_effect(reference):
  scheduler = keras.callbacks.LearningRateScheduler(
      lambda epoch: 0.1 / (epoch + 1))
  sampling = every_other_draw()
  with pytest.warns(UserWarning, match="learning_rate='optimizer'") as caught:
    models.fit(models.classifier(run_eagerly=True), sampling, epochs=3,
               callbacks=[scheduler])
  assert sum('no effect' in str(w.message) for w in caught) == 1
  assert_same_draws(sampling.posterior, reference[0])
  followed, expected = (
      models.classifier(run_eagerly=True) for _ in range(2))
  arguments = dict(kernel=sgmcmc.SGHMC, momentum=0.9)
  ours = models.make_sampling(learning_rate='optimizer', **arguments)
  models.fit(followed, ours, epochs=2, callbacks=[scheduler])
  theirs = models.make_sampling(
      learning_rate=lambda step: 0.1 / (
          tf.cast(step // 3, tf.float32) + 1.), **arguments)
  models.fit(expected, theirs, epochs=2)
  assert_same_draws(ours.posterior, theirs.posterior)


@pytest.mark.slow
def test_sgnht_takes_the_units_of_sgd():
  ours = models.make_sampling(
      kernel=sgmcmc.SGNHT, learning_rate=0.02, momentum=0.9)
  h = (0.02 / models.NUM_EXAMPLES)**0.5
  theirs = models.make_sampling(kernel=functools.partial(
      sgmcmc.SGNHT, step_size=h, diffusion=0.1 / h))
  for sampling in (ours, theirs):
    models.fit(models.classifier(run_eagerly=True), sampling)
  assert_same_draws(ours.posterior, theirs.posterior)
