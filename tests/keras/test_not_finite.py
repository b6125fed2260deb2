"""Data that a loss cannot take: found early, and named."""

import warnings

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib
from tfp_sgmcmc.keras.model import not_finite

tfd = tfp.distributions
GAUSSIAN = sgmcmc.keras.GaussianLikelihood
INPUTS = r'inputs hold NaN .* in 1 of \d+ rows of a batch \(column 2, from 0\)'
TARGETS = 'targets hold NaN .* in 1 of'
IMPOSSIBLE = 'for 1 of .* whatever outputs were tried: for the target -2'


def poisson():
  return sgmcmc.keras.DistributionLoss(
      lambda outputs: tfd.Poisson(log_rate=outputs[..., 0]))


def table(**changes):
  """Inputs and counts, with values put in, by their row."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=[96, 3]).astype(np.float32)
  y = rng.poisson(np.exp(0.3 * x[:, 0])).astype(np.float32)
  for row, value in changes.get('x', {}).items():
    x[row, 2] = value
  for row, value in changes.get('y', {}).items():
    y[row] = value
  return x, y


def make(loss, num_outputs=2, activation='relu', first=(), last=None):
  keras.utils.set_random_seed(0)
  model = keras.Sequential([
      keras.Input([3]), *first, layers.Dense(5, activation=activation),
      layers.Dense(num_outputs, activation=last)])
  model.compile('adam', loss)
  return model


def fit(model, data, **arguments):
  sampling = sgmcmc.keras.PosteriorSampling(
      **{'seed': 0, 'num_chains': 1, 'num_more_rows': 0, **arguments})
  data = data if isinstance(data, tuple) else (data,)
  model.fit(
      *data, epochs=4, batch_size=32, shuffle=False, verbose=0,
      callbacks=[sampling])
  return sampling


@pytest.mark.parametrize('row', [3, 80])
@pytest.mark.parametrize('loss, num_outputs, name, value, message', [
    (GAUSSIAN, 2, 'x', np.nan, INPUTS), (GAUSSIAN, 2, 'x', np.inf, INPUTS),
    (GAUSSIAN, 2, 'y', np.nan, TARGETS), (poisson, 1, 'y', -2., IMPOSSIBLE),
], ids=['nan_x', 'inf_x', 'nan_y', 'negative'])
def test_a_row_is_named(row, loss, num_outputs, name, value, message):
  """In the first batch before any step, in a later one after the epoch."""
  model = make(loss(), num_outputs)
  with pytest.raises(ValueError, match=message):
    fit(model, table(**{name: {row: value}}))
  assert int(model.optimizer.iterations) == (0 if row == 3 else 3)


def test_where_sampling_begins_at_once():
  """With rows of all the data beside those of the first batch."""
  with pytest.raises(ValueError, match=INPUTS):
    fit(make(GAUSSIAN()), table(x={80: np.nan}), start_epoch=0,
        num_more_rows=96)


def test_a_chain_that_meets_such_a_row():
  """The draws before are kept, and what stops it is the row."""
  arguments = dict(
      kernel=sgmcmc.SGLD, learning_rate=1e-3, start_epoch=0,
      prior=tfd.Normal(0., 1.), num_steps_between_results=0,
      num_burnin_steps=0)
  with pytest.warns(RuntimeWarning, match=f'at step 3 .*{INPUTS}'):
    sampling = fit(make(GAUSSIAN()), table(x={80: np.nan}), **arguments)
  assert len(sampling.posterior) == 2


def test_rows_that_can_be_read_once():
  x, y = table(x={80: np.nan})
  rows = tf.data.Dataset.from_generator(
      lambda: zip(x, y), output_signature=(
          tf.TensorSpec([3]), tf.TensorSpec([])))
  with pytest.raises(ValueError, match='Do the data hold NaN'):
    sampling = sgmcmc.keras.PosteriorSampling(num_examples=96, num_chains=1)
    make(GAUSSIAN()).fit(
        rows.batch(32), epochs=4, verbose=0, callbacks=[sampling])


class Filled(layers.Layer):
  def call(self, x):
    return tf.where(tf.math.is_finite(x), x, 0.)


def test_a_model_that_takes_them():
  sampling = fit(
      make(GAUSSIAN(), first=[Filled()]), table(x={3: np.nan, 80: np.nan}))
  assert np.isfinite(sampling.posterior.predict(table()[0])).all()


def test_outputs_that_a_loss_does_not_take():
  with pytest.raises(ValueError, match="'poisson' is NaN .* for the output -"):
    fit(make('poisson', 1), table())
  fit(make('poisson', 1, last='softplus'), table())


def test_class_numbers_that_are_out_of_range():
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  with pytest.raises(ValueError, match='from 1 to 4, and the outputs have 4'):
    fit(make(loss, 4), (table()[0], 1 + np.arange(96) % 4))


def test_several_labels_at_once():
  loss = keras.losses.CategoricalCrossentropy(from_logits=True)
  x, classes = table()[0], np.arange(96) % 4
  with pytest.warns(UserWarning, match='sum to up to 2 in a row.*sigmoid'):
    fit(make(loss, 4), (x, np.eye(4)[classes] + np.eye(4)[3 - classes]))
  with warnings.catch_warnings(record=True) as record:
    warnings.simplefilter('always')
    fit(make(loss, 4), (x, np.eye(4)[classes]))
  assert not [w for w in record if 'in a row' in str(w.message)]


@pytest.mark.slow
def test_a_law_by_a_bijector_in_chains_that_take_turns():
  """TFP caches the bijector's inverse of the targets, in another graph."""
  model, (x, y) = make(None), table()
  model.compile('adam', sgmcmc.keras.DistributionLoss(
      lambda outputs: tfd.LogNormal(
          outputs[..., :1], tf.nn.softplus(outputs[..., 1:]))),
      metrics=['mae'])
  sampling = fit(
      model, (x, 1. + y[:, np.newaxis]), num_chains=2, num_more_rows='auto')
  assert len(sampling.posterior) > 1


def cause(model, x, y):
  return not_finite.cause(
      model, likelihood_lib.Likelihood(model), x, tf.constant(y))


def test_an_overflow_is_no_fault_of_the_data():
  """exp(500) is infinite, and with other weights it is not."""
  model, (x, y) = make(poisson(), 1), table()
  assert cause(model, x, y) is None
  model.layers[-1].bias.assign([500.])
  assert cause(model, x, y) is None
  assert 'target -1' in cause(model, x, np.where(y == 1., -1., y))
  # Nor do weights that have become NaN say anything of the targets.
  model.layers[-1].bias.assign([np.nan])
  assert cause(model, x, y) is None


def test_a_model_that_fills_inputs_and_targets_that_are_wrong():
  """The targets are named, not the inputs."""
  for value, message in ((np.nan, TARGETS), (-2., IMPOSSIBLE)):
    with pytest.raises(ValueError, match=message):
      fit(make(poisson(), 1, first=[Filled()]),
          table(x={5: np.nan}, y={3: value}))
  with pytest.raises(ValueError, match='inputs hold .* The targets hold'):
    fit(make(GAUSSIAN()), table(x={5: np.nan}, y={3: np.nan}))


def test_rates_that_are_not_positive_are_the_outputs_fault():
  loss = sgmcmc.keras.DistributionLoss(lambda rate: tfd.Poisson(rate[..., 0]))
  with pytest.raises(ValueError, match='NaN for .* for the output -.*softplus'):
    fit(make(loss, 1), table())


def test_a_callback_that_puts_weights_back():
  """After an epoch whose loss was not finite, and wherever it is listed."""
  class PutBack(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
      self.kept = self.model.get_weights()
      if epoch == 0:
        self.model.layers[-1].bias.assign([500.])

    def on_epoch_end(self, epoch, logs=None):
      if not np.isfinite(logs['loss']):
        self.model.set_weights(self.kept)

  sampling = sgmcmc.keras.PosteriorSampling(
      seed=0, num_chains=1, num_more_rows=0, start_epoch=2)
  make(poisson(), 1).fit(
      *table(), epochs=8, batch_size=32, verbose=0,
      callbacks=[sampling, PutBack()])
  assert len(sampling.posterior)


def test_the_output_is_named():
  keras.utils.set_random_seed(0)
  inputs = keras.Input([3])
  model = keras.Model(inputs, {
      'count': layers.Dense(1)(inputs), 'size': layers.Dense(2)(inputs)})
  model.compile('adam', {'count': poisson(), 'size': GAUSSIAN()})
  x, y = table(y={3: -2.})
  with pytest.raises(ValueError, match="of the output 'count' .* target -2"):
    fit(model, (x, {'count': y, 'size': y}))
