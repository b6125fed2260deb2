"""Draws are read into the model that they are of, or the difference is told."""

import json
import re
import shutil
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.internal import manifest


def make_model(activation='tanh', frozen=1., moving=0., from_logits=True):
  """A model with a frozen layer, and with moving statistics."""
  model = keras.Sequential([
      keras.Input([4]),
      keras.layers.Dense(3, activation=activation, trainable=False),
      keras.layers.Dense(4, use_bias=False),
      keras.layers.BatchNormalization(),
      keras.layers.Dense(3)])
  model.layers[0].set_weights([frozen * np.eye(4, 3), np.zeros(3)])
  model.layers[2].moving_mean.assign(np.full(4, moving))
  model.compile(
      'sgd', keras.losses.SparseCategoricalCrossentropy(
          from_logits=from_logits))
  return model


@pytest.fixture(scope='module')
def draws(tmp_path_factory):
  """Draws of the model on disk, of `fit` and of `save`; what they predict."""
  model = make_model()
  model.run_eagerly = True
  x, _ = models.classes()
  directory = tmp_path_factory.mktemp('draws')
  callback = models.make_sampling(
      num_burnin_steps=1, num_steps_between_results=0,
      directory=directory / 'fit')
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    models.fit(model, callback, epochs=1)
  callback.posterior.save(directory / 'save')
  return directory, x, callback.posterior.predict(x)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['fit', 'save'])
def test_load(kind, draws, recwarn):
  directory, x, expected = draws
  directory = directory / kind
  load = sgmcmc.keras.PosteriorSamples.load
  recwarn.clear()
  same = load(directory, make_model(moving=9.))
  np.testing.assert_allclose(same.predict(x), expected, rtol=1e-5)
  assert not recwarn.list
  with pytest.warns(UserWarning, match='its layer 0, a Dense, was made with'):
    other = load(directory, make_model('sigmoid'))
  assert not np.allclose(other.predict(x), expected, rtol=1e-2)
  with pytest.warns(UserWarning, match='from_logits=True.*from_logits=False'):
    other = load(directory, make_model(from_logits=False))
  with pytest.raises(ValueError, match='probabilities, and they are none'):
    other.predict(x)
  with pytest.raises(ValueError, match="another value of '.*dense.*/kernel'"):
    load(directory, make_model(frozen=1.001))


# A program of the user's, and what she changes in it.
PROGRAM = """
import keras

SHIFT = 2.

def leaky(x):
  return keras.ops.leaky_relu(x, 0.1)

class Scaled(keras.layers.Layer):

  def call(self, x):
    return self.scale * x + SHIFT

class Mine(keras.Model):

  def __init__(self):
    super().__init__()
    self.hidden = keras.layers.Dense(3, activation=leaky)
    self.scaled = Scaled()
    self.scaled.scale = 1.5
    self.end = keras.layers.Dense(3)

  def call(self, x):
    return self.end(self.scaled(self.hidden(x)))
"""


def users_model(before='', after=''):
  """Run eagerly, which is no part of the code."""
  assert before in PROGRAM
  names = {'__name__': '__main__'}
  exec(PROGRAM.replace(before, after) if before else PROGRAM, names)
  model = names['Mine']()
  model(np.zeros([1, 4]))
  model.compile('sgd', keras.losses.SparseCategoricalCrossentropy(
      from_logits=True), run_eagerly=True)
  return model


def fit_users_model(model, directory, epochs):
  models.fit(model, models.make_sampling(
      num_burnin_steps=1, directory=directory), epochs=epochs)


def told_of_code(run):
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    run()
  return [str(w.message) for w in caught if 'code' in str(w.message)]


@pytest.fixture(scope='module')
def begun(tmp_path_factory):
  """The directory of a chain of an epoch."""
  directory = tmp_path_factory.mktemp('begun')
  assert not told_of_code(
      lambda: fit_users_model(users_model(), directory, 1))
  return directory


@pytest.mark.parametrize('change, changed', [
    ((), None), (('relu(x, 0.1)', 'relu(x, 0.2)'), 'Dense'),
    (('SHIFT = 2.', 'SHIFT = 3.'), 'Scaled'),
    (('scale = 1.5', 'scale = 1.6'), 'Scaled'),
    (('return self.end(', 'return 2. * self.end('), 'Mine')], ids=str)
def test_code_of_the_users(change, changed, begun, tmp_path):
  """Both where draws are read and where a chain goes on."""
  shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
  other = users_model(*change)
  for messages in (
      told_of_code(
          lambda: sgmcmc.keras.PosteriorSamples.load(tmp_path, other)),
      told_of_code(
          lambda: fit_users_model(users_model(*change), tmp_path, 2))):
    assert len(messages) == (changed is not None)
    if messages:
      assert re.search(f'that of .*{changed}.* has changed', messages[0])


def test_weights_that_are_left_or_added(draws):
  directory, _, _ = draws
  model = make_model()
  more = keras.Sequential(
      [keras.Input([4]), keras.layers.Rescaling(1.),
       keras.layers.Rescaling(1.),
       *model.layers])
  more.compile(loss=model.loss)
  with pytest.warns(UserWarning, match='it had 4 layers, and there are 6'):
    sgmcmc.keras.PosteriorSamples.load(directory / 'save', more)


def test_concatenate():
  def chain(activation):
    model = keras.Sequential([
        keras.Input([2]), keras.layers.Dense(3, activation=activation)])
    return sgmcmc.keras.PosteriorSamples.from_arrays(
        model, [tf.ones([4, 2, 3]), tf.zeros([4, 3])])

  join = sgmcmc.keras.PosteriorSamples.concatenate
  assert len(join([chain('tanh'), chain('tanh')])) == 8
  with pytest.raises(ValueError, match='other layers.*a Dense, was made with'):
    join([chain('tanh'), chain('relu')])


class Bare(keras.Model):
  """A model with a weight of its own, and no layers."""

  def build(self, shape):
    self.w = self.add_weight(name='w', shape=[4, 3])
    self.built = True

  def call(self, x):
    return x @ self.w


def test_a_record_whose_layers_are_none(tmp_path):
  """Of a model without any; and one that has lost them."""
  def bare():
    model = Bare()
    model.build([None, 4])
    model.compile('sgd', models.classifier().loss)
    return model

  PosteriorSamples = sgmcmc.keras.PosteriorSamples
  posterior = PosteriorSamples.from_arrays(bare(), [np.ones([2, 4, 3])])
  posterior.save(tmp_path)
  x, _ = models.classes()
  np.testing.assert_array_equal(
      PosteriorSamples.load(tmp_path, bare()).predict(x), posterior.predict(x))
  with_layer = keras.Sequential([
      keras.Input([4]), keras.layers.Dense(3, use_bias=False)])
  with pytest.warns(UserWarning, match='had 0 layers, and there are 1'):
    PosteriorSamples.load(tmp_path, with_layer)
  path = tmp_path / manifest.NAME
  for about in ({'layers': None}, {'x': '1'}, {'layers': ''}):
    content = json.loads(path.read_text())
    del content['digest']
    content['about'] = about
    path.write_text(json.dumps(
        {**content, 'digest': manifest.digest(content)}))
    with pytest.raises(ValueError, match='where a text is needed.*damaged'):
      PosteriorSamples.load(tmp_path, bare())
