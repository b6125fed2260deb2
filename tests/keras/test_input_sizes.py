"""The default prior of kernels that read data as they are."""

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.model import input_sizes
from tfp_sgmcmc.keras.model import priors


def columns(*spreads):
  """Two hundred rows of uniform numbers, by the columns' standard deviation."""
  rng = np.random.default_rng(0)
  return tf.constant(
      rng.uniform(-3.**0.5, 3.**0.5, [200, len(spreads)]) * spreads, tf.float32)


def sizes(model, x):
  return [size.tolist() for size in input_sizes.find(model, x).values()]


def test_columns_of_a_table():
  model = keras.Sequential([
      keras.Input([4]), layers.Dense(3, activation='relu'), layers.Dense(2)])
  assert sizes(model, columns(1., 9., 0.1, 3.)) == []
  # A constant column has that of all others.
  assert sizes(model, columns(1., 50., 1000., 0.)) == [[1., 64., 1024., 512.]]
  assert sizes(model, columns(1., 9., 0.1, 3.) + 2000.) == []
  assert sizes(model, columns(1., 50., np.nan, 3.)) == [[1., 64., 1., 1.]]
  assert sizes(model, columns(1., 50., 3., 3.)[:1]) == []  # A single row.


def test_only_kernels_that_read_data():
  """Whatever is between, as long as it has no weights that are trained."""
  x = keras.Input([8, 8, 2])
  joined = layers.Concatenate()([
      *(layers.Flatten()(layers.Conv2D(3, 3)(
          layers.BatchNormalization(scale=scale, center=scale)(x)))
        for scale in (True, False)),
      layers.Flatten()(layers.Conv2D(3, 3)(layers.Rescaling(1. / 255.)(x))),
      layers.Flatten()(layers.Conv2D(3, 3, name='raw')(
          layers.MaxPooling2D()(x)))])
  model = keras.Model(x, layers.Dense(2)(joined))
  pixels = tf.reshape(columns(*[100.] * 128), [200, 8, 8, 2])
  found = input_sizes.find(model, pixels)
  kernel, = (model.trainable_variables[k] for k in found)
  assert kernel is model.get_layer('raw').kernel
  assert next(iter(found.values())).tolist() == [64., 64.]  # Of the largest.


def test_normalised_or_looked_up():
  table = columns(1., 1000.)
  normalization = layers.Normalization()
  normalization.adapt(table)
  model = keras.Sequential([keras.Input([2]), normalization, layers.Dense(2)])
  assert sizes(model, table) == []
  words = tf.cast(tf.abs(columns(100., 100.)), tf.int32)
  x = keras.Input([2], dtype='int32')
  count = layers.Dense(2)(layers.Lambda(lambda x: tf.cast(x, tf.float32))(x))
  assert sizes(keras.Model(x, count), words) == [[64., 64.]]
  looked_up = layers.Flatten()(layers.Embedding(1000, 3)(x))
  both = layers.Concatenate()([count, looked_up])
  assert sizes(keras.Model(x, both), words) == []


class Own(keras.Model):
  """A layer that is not called, one by name, and one in a loop; no Input."""

  def __init__(self):
    super().__init__()
    self.unused, self.named, self.looped = (layers.Dense(3) for _ in range(3))
    self.towers = [keras.Sequential([
        keras.Input([2]), layers.Dense(units, name='hidden')], name='tower')
                   for units in (3, 4)]

  def call(self, x):
    both = self.named(inputs=x) + tf.map_fn(
        lambda row: self.looped(row[tf.newaxis])[0], x, fn_output_signature=(
            x.dtype))
    return tf.concat([both, *(tower(x[:, :2]) for tower in self.towers)], 1)


def test_models_of_ones_own():
  model, x = Own(), columns(50., 1., 1000.)
  model(x)
  found = input_sizes.find(model, x)
  towers = [tower.layers[0].kernel for tower in model.towers]
  assert towers[0].path == towers[1].path
  by_id = {id(model.trainable_variables[k]): size.tolist()
           for k, size in found.items()}
  assert by_id == {
      id(model.named.kernel): [64., 1., 1024.],
      **{id(kernel): [64., 1.] for kernel in towers}}
  prior = priors.bounded_normal(model.trainable_variables, input_sizes=found)
  assert prior(towers[1]).stddev().shape == [2, 4]


def test_what_cannot_be_looked_at_has_the_usual_prior():
  class Graphs(keras.Model):

    def call(self, x):
      assert not tf.executing_eagerly()
      return x

  assert input_sizes.find(Graphs(), columns(100.)) == {}


def test_the_prior_is_that_of_inputs_that_were_divided():
  model = keras.Sequential([keras.Input([3]), layers.Dense(2)])
  kernel, bias = model.trainable_variables
  prior = priors.bounded_normal(
      model.trainable_variables,
      input_sizes={0: np.float32([1., 64., 512.])})
  np.testing.assert_allclose(
      prior(kernel).stddev(), [[1.] * 2, [1. / 64.] * 2, [1. / 512.] * 2])
  assert float(prior(bias).stddev()) == 1.


def fit(x, directory=None, epochs=4, model=None, **arguments):
  if model is None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input([2]), layers.Dense(4, activation='tanh'), layers.Dense(2)])
    model.compile('sgd', sgmcmc.keras.GaussianLikelihood())
  sampling = sgmcmc.keras.PosteriorSampling(
      seed=0, num_chains=1, start_epoch=0, directory=directory, **arguments)
  model.fit(x, np.sin(x[:, :1] / np.std(x[:, :1])), epochs=epochs, verbose=0,
            batch_size=50, shuffle=False, callbacks=[sampling])
  return model, sampling


@pytest.mark.filterwarnings('ignore::UserWarning')
def test_a_chain_goes_on_with_the_prior_that_it_began_with(tmp_path):
  """Other data do not change it; a new chain has one by its own data."""
  raw, small = (columns(s, 1.).numpy() for s in (128., 1.))
  with pytest.warns(UserWarning, match='spread by up to 128'):
    model, sampling = fit(raw, tmp_path)
  found = sizes_of(sampling)
  assert found.by_position[0].tolist() == [128., 1.]
  _, more = fit(small, tmp_path, epochs=6)
  assert more.num_steps > sampling.num_steps
  assert sizes_of(more).key() == found.key()
  # Of one model: its programs are taken over only where the prior is the same.
  programs = [fit(x, model=model)[1]._chain._program  # pylint: disable=protected-access
              for x in (raw, small, small)]
  assert programs[0] is not programs[1] and programs[1] is programs[2]


def sizes_of(sampling):
  return sampling._chain._input_sizes  # pylint: disable=protected-access
