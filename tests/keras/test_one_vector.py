"""A network's weights as one vector, the state of the kernel of `fit`."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.fitting import one_vector


def fit(**arguments):
  """A short chain; the classifier has 20 and 15 weights in two kernels."""
  model = models.classifier(optimizer='adam')
  sampling = sgmcmc.keras.PosteriorSampling(**{**dict(
      seed=0, start_epoch=0, num_burnin_steps=20, num_more_rows=0,
      num_steps_between_results=2), **arguments})
  model.fit(
      *models.classes(), epochs=6, batch_size=10, verbose=0, shuffle=False,
      callbacks=[sampling])
  return sampling


def layout(sampling):
  return sampling._chain._step._step._layout


def by_coordinate(kernel, parts, seed):
  """The same noise for a list of weights as for the vector of them."""
  del kernel
  sizes = [part.shape.num_elements() for part in parts]
  noise = tf.split(
      sgmcmc.random.normal([sum(sizes)], seed, parts[0].dtype), sizes)
  return [tf.reshape(z, part.shape) for z, part in zip(noise, parts)]


@pytest.fixture
def in_double_precision():
  keras.config.set_dtype_policy('float64')
  yield
  keras.config.set_dtype_policy('float32')


@pytest.mark.usefixtures('in_double_precision')
@pytest.mark.parametrize('num_chains', [
    pytest.param(1, marks=pytest.mark.slow),
    pytest.param(3, marks=[pytest.mark.slow, pytest.mark.weekly])])
def test_the_chain_is_that_of_the_list(num_chains, monkeypatch):
  monkeypatch.setattr(sgmcmc.SGNHT, '_noise', by_coordinate)
  vector = fit(num_chains=num_chains)
  with monkeypatch.context() as patch:
    patch.setattr(one_vector, '_MOST_NUMBERS', 0)
    parts = fit(num_chains=num_chains)
  assert layout(vector).sizes == [20, 15] and layout(parts).sizes is None

  def draws(sampling):
    return np.concatenate([
        np.reshape(w, [len(w), -1])
        for w in sampling.posterior.weights.values()], axis=1)

  assert len(draws(vector)) >= 4 * num_chains
  assert vector.settings == parts.settings
  np.testing.assert_allclose(draws(vector), draws(parts), atol=1e-4)
  # The planted error: the scales of other parts.
  with monkeypatch.context() as patch:
    patch.setattr(
        one_vector.Layout, '__init__', lambda self, variables, sizes: vars(
            self).update(_variables=variables, sizes=[20, 15]))
    patch.setattr(
        sgmcmc.SelfTuning, '_part_sizes', property(lambda self: None))
    other = fit(num_chains=num_chains)
  assert np.max(np.abs(draws(other) - draws(vector))) > 0.02


def test_what_is_one_vector():
  def sizes(shapes, dtypes='float32', takes_vector=True):
    dtypes = np.broadcast_to(dtypes, len(shapes))
    return one_vector.of([
        keras.Variable(np.zeros(shape), dtype=str(dtype))
        for shape, dtype in zip(shapes, dtypes)], takes_vector).sizes

  assert sizes([[3, 4], [4], []]) == [12, 4, 1]
  assert sizes([[3, 4]]) is None  # One already.
  assert sizes([[3, 4], [4]], takes_vector=False) is None
  assert sizes([[3, 4], [4]], ['float32', 'float64']) is None
  assert sizes([[256, 256], []]) is None  # One number too many.
  assert sizes([[255, 257], []]) == [65535, 1]
  assert sizes([[2]] * 2, 'float16') is None
  assert sizes([[2**15]] * 32) and sizes([[2**15]] * 33) is None  # A million.


@pytest.mark.parametrize('arguments, is_vector', [
    ({}, True),
    (dict(kernel=sgmcmc.SGHMC, learning_rate=0.01, momentum=0.9), False),
    (dict(kernel=sgmcmc.SGHMC, learning_rate='temperature', momentum=0.9,
          num_burnin_steps=100, num_steps_per_batch=5), False),
    (dict(kernel=functools.partial(
        sgmcmc.SGNHT, step_size=0.003, diffusion=0., thermostat='diagonal')),
     False),
    # A user's own function may look at the parts.
    (dict(kernel=lambda target: sgmcmc.SGNHT(target, 0.003, 0.)), False)])
def test_whose_kernels(arguments, is_vector):
  assert (layout(fit(**arguments)).sizes is not None) == is_vector


def test_join_and_split():
  weights = [tf.reshape(tf.range(6.), [2, 3]), tf.constant(7.), tf.zeros([0])]
  whole = one_vector.Layout(weights, [int(tf.size(w)) for w in weights])
  joined, = whole.join(weights)
  assert joined.numpy().tolist() == [0., 1., 2., 3., 4., 5., 7.]
  for back, weight in zip(whole.split([joined]), weights):
    np.testing.assert_array_equal(back, weight)
  parts = one_vector.Layout(weights, None)
  assert parts.join(weights)[0] is weights[0]
