"""What takes no part in sampling is named."""

import copy
import pickle
import warnings

import keras
import numpy as np
import pytest

from tests.keras import models
import tfp_sgmcmc as sgmcmc


def fit(layer, optimizer='sgd', training=None):
  inputs = keras.Input([4, 4, 1])
  hidden = layer(inputs) if training is None else layer(
      inputs, training=training)
  hidden = keras.layers.Flatten()(hidden)
  model = keras.Model(inputs, keras.layers.Dense(3)(hidden))
  model.compile(optimizer, models.classifier().loss, run_eagerly=True)
  x = np.random.default_rng(0).normal(size=[50, 4, 4, 1]).astype(np.float32)
  models.fit(model, models.make_sampling(), epochs=1, x=x,
             y=models.classes()[1])


@keras.saving.register_keras_serializable('tests')
class Noise(keras.layers.Layer):
  """Noise without a seed generator of its own."""

  def call(self, x):
    return x + keras.random.normal(keras.ops.shape(x))


@keras.saving.register_keras_serializable('tests')
class MonteCarloDropout(keras.layers.Layer):
  """Dropout that is always on."""

  def __init__(self, **arguments):
    super().__init__(**arguments)
    self.dropout = keras.layers.Dropout(0.5)

  def call(self, x):
    return self.dropout(x, training=True)


@pytest.mark.parametrize('layer, training, message', [
    (MonteCarloDropout(name='mine'), None,
     "random also in prediction.*'dropout.*training=True out"),
    (Noise(name='mine'), None, 'random also in prediction'),
    (keras.layers.Dropout(0.5, name='mine'), True,
     "random when it is called .*layer 'mine'.*none in its draws")],
    ids=['within', 'noise', 'functional'])
def test_randomness_is_warned_of(layer, training, message):
  with pytest.warns(UserWarning, match=message):
    fit(layer, training=training)


def test_one_warning_names_all_that_stops():
  with pytest.warns(UserWarning, match='do not affect') as record:
    fit(keras.layers.RandomFlip(name='flip'),
        keras.optimizers.AdamW(weight_decay=0.01))
  (message,) = [
      str(r.message) for r in record if 'do not affect' in str(r.message)]
  assert 'weight_decay=0.01' in message and "'flip'" in message


def test_plain_dropout_is_silent():
  with warnings.catch_warnings():
    warnings.simplefilter('error', UserWarning)
    fit(keras.layers.Dropout(0.5))


def test_posterior_is_pickled_with_its_model(tmp_path):
  x, _ = models.classes()
  model = models.classifier(run_eagerly=True)
  sampling = models.make_sampling(directory=tmp_path)
  assert copy.deepcopy(sampling).num_steps == 0
  models.fit(model, sampling, epochs=1)
  posterior = sampling.posterior
  again = pickle.loads(pickle.dumps(posterior))
  np.testing.assert_allclose(again.predict(x), posterior.predict(x), rtol=1e-5)
  assert again.steps == posterior.steps
  assert len(pickle.loads(pickle.dumps(posterior[1:3]))) == 2
  with pytest.raises(TypeError, match='posterior can be'):
    pickle.dumps(sampling)


def test_the_number_of_draws_is_shown_as_it_is(capsys):
  model = models.classifier(run_eagerly=True)
  sampling = models.make_sampling(num_burnin_steps=3)
  models.fit(model, sampling, epochs=3, verbose=2)
  shown = capsys.readouterr().out
  assert 'draws: 0.0000e+00' not in shown
  assert 'draws: 3.0000' in shown and 'draws: 6.0000' in shown
  assert isinstance(sampling.posterior, sgmcmc.keras.PosteriorSamples)


@pytest.mark.parametrize('name', [
    'PosteriorSamples', 'PredictiveEntropy', 'PredictiveVariance', '_unpickle'])
def test_what_was_pickled_before_finds_its_names(name):
  """Those that stand in files which earlier versions pickled."""
  found = pickle.loads(f'ctfp_sgmcmc.keras.draws.samples\n{name}\n.'.encode())
  assert found is getattr(sgmcmc.keras, name, found)
