"""Targets in their own units: what likelihoods make of them, and remember."""

import concurrent.futures
import warnings

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import store
from tfp_sgmcmc.keras.draws import baselines
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib
from tfp_sgmcmc.keras.model import losses
from tfp_sgmcmc.keras.model import target_units

tfd = tfp.distributions
CENTER, UNIT = 250_000., 64_000.
PosteriorSamples = sgmcmc.keras.PosteriorSamples


def table(center=0., unit=1., num_rows=100):
  """Inputs, and targets whose mean and standard deviation are these."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=[num_rows, 2]).astype(np.float32)
  y = np.sin(x[:, :1]) + 0.1 * rng.normal(size=[num_rows, 1])
  return x, center + unit * (y - y.mean()) / y.std()


def make(loss=None, num_outputs=2, seed=0):
  keras.utils.set_random_seed(seed)
  model = keras.Sequential([
      keras.Input([2]), layers.Dense(8, activation='tanh'),
      layers.Dense(num_outputs)])
  model.compile(
      'adam', loss if loss is not None else sgmcmc.keras.GaussianLikelihood())
  return model


def fit(model, x, y, epochs=6, **arguments):
  """A chain, and what was said of targets."""
  fit_arguments = {
      name: arguments.pop(name) for name in ('sample_weight', 'validation_data')
      if name in arguments}
  sampling = sgmcmc.keras.PosteriorSampling(
      **{'seed': 0, 'num_chains': 1, 'num_more_rows': 0, **arguments})
  with warnings.catch_warnings(record=True) as record:
    warnings.simplefilter('always')
    model.fit(
        x, y, epochs=epochs, batch_size=50, shuffle=False, verbose=0,
        callbacks=[sampling], **fit_arguments)
  return sampling, [
      str(w.message) for w in record if 'The targets are' in str(w.message)]


def units(model):
  return target_units.of(likelihood_lib.Likelihood(model))


@pytest.mark.parametrize('make_loss, law', [
    (sgmcmc.keras.GaussianLikelihood, tfd.Normal),
    (sgmcmc.keras.LaplaceLikelihood, tfd.Laplace),
    (lambda **units: sgmcmc.keras.StudentTLikelihood(4., **units),
     lambda *parameters: tfd.StudentT(4., *parameters))])
def test_densities_are_those_of_standardised_targets(make_loss, law):
  """By their definition; and those of (y - c) / u, less log u."""
  center, unit = np.float32([100., -3.]), np.float32([20., 0.5])
  outputs = tf.random.stateless_normal([7, 4], [0, 1])
  z = tf.random.stateless_normal([7, 2], [0, 2])
  y = center + unit * z
  in_units = make_loss(center=center.tolist(), unit=unit.tolist())
  values = in_units.call(y, outputs)
  np.testing.assert_allclose(
      values, make_loss().call(z, outputs) + np.log(unit).sum(), rtol=1e-4)
  np.testing.assert_allclose(values, -tf.reduce_sum(law(
      center + unit * outputs[:, :2],
      unit * tf.nn.softplus(outputs[:, 2:])).log_prob(y), -1), rtol=1e-5)
  given = make_loss(scale=3., center=center.tolist(), unit=unit.tolist())
  np.testing.assert_allclose(given.call(y, outputs[:, :2]), -tf.reduce_sum(law(
      center + unit * outputs[:, :2], 3.).log_prob(y), -1), rtol=1e-5)
  again = keras.losses.deserialize(keras.losses.serialize(in_units))
  np.testing.assert_array_equal(again.call(y, outputs), values)
  np.testing.assert_allclose(in_units.standardised(y.numpy()), z, atol=1e-4)


@pytest.mark.parametrize('arguments, error, message', [
    (dict(unit=0.), ValueError, 'unit is 0'),
    (dict(unit=[1., -2.]), ValueError, 'unit is'),
    (dict(center=np.inf), ValueError, 'center is inf'),
    (dict(center='mean'), TypeError, 'center is'),
    (dict(unit=np.ones([2, 2])), ValueError, 'unit has shape')])
def test_wrong_units(arguments, error, message):
  with pytest.raises(error, match=message):
    sgmcmc.keras.GaussianLikelihood(**arguments)


def test_units_of_another_number_of_targets():
  loss = sgmcmc.keras.GaussianLikelihood(center=[1., 2., 3.])
  with pytest.raises(ValueError, match='center has 3 numbers.* 1 target'):
    loss.distribution(tf.zeros([5, 2]))


@pytest.mark.parametrize('num_chains', [1, 2])
def test_the_chain_is_that_of_standardised_targets(num_chains, monkeypatch):
  """From training on; planted: scales that are not in the units."""
  def draws(y):
    sampling, _ = fit(
        make(), table()[0], y, epochs=20, num_chains=num_chains,
        num_burnin_steps=4, start_epoch=2, num_steps_between_results=1)
    return sampling.posterior

  def difference(one, other):
    return max(
        np.max(np.abs(ours - theirs)) for k in range(len(one))
        for ours, theirs in zip(one[k], other[k]))

  x, y = table(CENTER, UNIT)
  posterior = draws(y)
  (found,) = units(posterior.model).values()
  assert found.unit == UNIT and abs(found.center - CENTER) <= 0.05 * UNIT
  standard = draws((y - found.center) / UNIT)
  # With two seeds, one chain and two: at most 0.0022, and 0.051 to 0.18.
  assert len(posterior) == 16 * num_chains
  assert difference(posterior, standard) < 0.01
  np.testing.assert_allclose(
      posterior.predict(x), found.center + UNIT * standard.predict(x),
      rtol=0.01)

  def planted(self, y_pred):
    output, raw_scale = tf.split(y_pred, 2, axis=-1)
    return tfd.Normal(self._location(output), tf.nn.softplus(raw_scale))

  monkeypatch.setattr(losses.LocationScale, 'distribution', planted)
  assert difference(draws(y), standard) > 0.03


def test_predictions_are_in_the_units_of_the_targets():
  x, y = table(CENTER, UNIT)
  model = make()
  assert model.evaluate(x, y, verbose=0) > 1e6
  sampling, said = fit(
      model, x, y, epochs=120, validation_data=(x, y), num_more_rows='auto')
  assert len(said) == 1 and 'GaussianLikelihood(center=' in said[0]
  posterior = sampling.posterior
  # A constant has an NLL of 1.42 + log(UNIT) = 12.5.
  assert posterior.evaluate(x, y)['nll'] < 12.
  assert model.history.history['val_loss'][-1] < 12.5
  np.testing.assert_allclose(
      np.mean(baselines.constant_log_likelihood(posterior, x, y)),
      -0.5 * np.log(2. * np.pi * np.e * UNIT**2), rtol=1e-4)
  mean, std = posterior.predict(x, return_std=True)
  assert np.corrcoef(mean[:, 0], y[:, 0])[0, 1] > 0.9
  served = posterior.as_model(outputs=['mean', 'std'])(x)
  np.testing.assert_allclose(served['mean'], mean, rtol=1e-4)
  np.testing.assert_allclose(served['std'], std, rtol=1e-3)
  lower, upper = posterior.interval(x, 0.9)
  assert np.mean((lower < y) & (y < upper)) > 0.8


def fixed(scale, num_outputs=1):
  return dict(
      loss=sgmcmc.keras.GaussianLikelihood(scale), num_outputs=num_outputs)


class Own(sgmcmc.keras.GaussianLikelihood):
  """A likelihood of the user's, which reads outputs otherwise."""

  def distribution(self, y_pred):
    return tfd.Normal(1e5 * y_pred[:, :1], 1e5)


@pytest.mark.parametrize('which', [
    'near', 'prior', 'own', 'given', 'predicted', 'initial', 'not finite',
    'weightless'])
def test_no_units_are_found(which):
  x, y = table(CENTER, UNIT)
  model, arguments, is_warned = make(), {}, False
  if which == 'near':
    y = table(5., 20.)[1]
  elif which == 'prior':
    arguments = dict(prior=tfd.Normal(0., 1e5))
  elif which == 'own':
    model, is_warned = make(Own()), True
  elif which == 'given':
    model = make(sgmcmc.keras.GaussianLikelihood(center=2e5, unit=1e5))
  elif which == 'predicted':  # As by weights that were loaded.
    model.layers[-1].bias.assign([CENTER, UNIT])
  elif which == 'initial':
    is_warned = True
    arguments = dict(num_chains=sgmcmc.keras.Chains(2, initial_weights=[
        make(seed=k).get_weights() for k in range(2)]))
  elif which == 'not finite':
    y = np.where(np.arange(100)[:, np.newaxis] == 3, np.nan, y)
  else:
    y = np.where(np.arange(100)[:, np.newaxis] == 3, 1e6, table()[1])
    arguments = dict(sample_weight=np.float32(np.arange(100) != 3))
  before = units(model)
  try:
    _, said = fit(model, x, y, **arguments)
  except (ValueError, RuntimeError):
    assert which == 'not finite'
    return
  assert units(model) == before and len(said) == is_warned


def test_a_trained_model_keeps_its_outputs_and_is_warned_of():
  x, y = table(CENTER, UNIT)
  model = make()
  model.fit(x, y, verbose=0)
  _, (said,) = fit(model, x, y)
  assert not units(model) and 'far from them' in said


def test_a_model_trained_in_units_takes_them():
  """As where an earlier process found them, and was killed after training.

  Its train function, and the program of its last chain, were traced without.
  """
  x, y = table(CENTER, UNIT)
  model = make()
  arguments = dict(epochs=40, start_epoch=20)
  fit(model, x, (y - CENTER) / UNIT, **arguments)
  sampling, (said,) = fit(model, x, y, **arguments)
  assert 'from here on' in said and units(model)[0].unit == UNIT
  # A constant has 12.5; without units it would be 10^9.
  assert max(model.history.history['loss']) < 13.
  assert sampling.posterior.evaluate(x, y)['nll'] < 12.3


def test_several_targets_and_outputs():
  """Each has its own; those near a standard scale have none."""
  x, y = table()
  keras.utils.set_random_seed(0)
  inputs = keras.Input([2])
  hidden = layers.Dense(8, activation='tanh')(inputs)
  model = keras.Model(inputs, {
      'a': layers.Dense(4, name='a')(hidden),
      'b': layers.Dense(1, name='b')(hidden),
      'c': layers.Dense(1, 'sigmoid', name='c')(hidden)})
  model.compile('adam', {
      'a': sgmcmc.keras.GaussianLikelihood(),
      'b': sgmcmc.keras.StudentTLikelihood(4., 0.1),
      'c': 'binary_crossentropy'}, loss_weights={'a': 1., 'b': 1., 'c': 0.})
  targets = {
      'a': np.hstack([y, 2e4 + 5e3 * y]), 'b': y[:, 0], 'c': y[:, 0] > 0.}
  _, said = fit(model, x, targets, epochs=3)
  (position, found), = units(model).items()
  assert found.center[0] == 0. and found.unit == [1., 5000.]
  assert abs(found.center[1] - 2e4) <= 250. and len(said) == 1
  assert keras.tree.flatten(
      likelihood_lib.Likelihood(model).losses)[position] is model.loss['a']
  # One object cannot have the units of two outputs.
  shared = sgmcmc.keras.GaussianLikelihood(0.1)
  model = keras.Model(inputs, [
      layers.Dense(1)(hidden), layers.Dense(1)(hidden)])
  model.compile('adam', [shared, shared])
  _, said = fit(model, x, [y, 1e4 * y], epochs=3)
  assert not units(model) and 'far from them' in said[0]


def test_a_chain_goes_on_in_its_units(tmp_path, monkeypatch):
  """In a new process, in the same one, and with a model compiled anew."""
  monkeypatch.setattr(store, 'COMMIT_SECONDS', 0.)
  x, y = table(CENTER, UNIT)
  arguments = dict(num_burnin_steps=2, num_steps_between_results=1)
  once, _ = fit(make(), x, y, epochs=8, start_epoch=2, **arguments)
  fit(make(), x, y, epochs=5, start_epoch=2, directory=tmp_path, **arguments)
  model = make()  # As in a new process: its loss has no units.
  goes_on, said = fit(
      model, x, y, epochs=8, start_epoch=2, directory=tmp_path, **arguments)
  assert not said and units(model) == units(once.model)
  for ours, theirs in zip(goes_on.posterior[-1], once.posterior[-1]):
    np.testing.assert_array_equal(ours, theirs)
  number = goes_on.num_steps
  again, _ = fit(
      model, x, y, epochs=9, start_epoch=2, directory=tmp_path, **arguments)
  assert again.num_steps > number  # The given loss is the same.
  model.compile('adam', sgmcmc.keras.GaussianLikelihood())
  model.fit(x, y, epochs=2, verbose=0, callbacks=[again])
  assert units(model) == units(once.model)


def test_draws_bring_their_units(tmp_path):
  x, y = table(CENTER, UNIT)
  sampling, _ = fit(make(), x, y, directory=tmp_path / 'fit')
  posterior = sampling.posterior
  posterior.save(tmp_path / 'saved')
  for name in ('fit', 'saved'):
    model = make(seed=1)
    model.evaluate(x, y, verbose=0)
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      loaded = PosteriorSamples.load(tmp_path / name, model)
    np.testing.assert_array_equal(
        loaded.predict(x, return_std=True), posterior.predict(
            x, return_std=True))
    model.set_weights(sampling.model.get_weights())
    np.testing.assert_allclose(
        model.evaluate(x, y, verbose=0),
        sampling.model.evaluate(x, y, verbose=0), rtol=1e-5)
  other = make(sgmcmc.keras.GaussianLikelihood(center=2e5, unit=1e5))
  with pytest.raises(ValueError, match='center=200000, unit=100000'):
    PosteriorSamples.load(tmp_path / 'fit', other)
  sampling.model.save(tmp_path / 'model.keras')
  again = keras.models.load_model(tmp_path / 'model.keras')
  assert units(again) == units(sampling.model)


def test_chains_of_several_fits_have_the_same_units():
  x, y = table(CENTER, UNIT)
  posteriors = [
      fit(make(), x, values)[0].posterior for values in (y, 2. * y)]
  with pytest.raises(ValueError, match='other units'):
    PosteriorSamples.concatenate(posteriors)
  one_thread = concurrent.futures.ThreadPoolExecutor(1)
  with pytest.raises(RuntimeError, match='compile with GaussianLikelihood'):
    sgmcmc.keras.fit_chains(
        make, dict(x=x, y=y, epochs=6), num_chains=1, executor=one_thread,
        seed=0)


@pytest.mark.parametrize('scale, last, is_said', [
    (3e5, [], True), (1., [], False),
    (3e5, [layers.Rescaling(3e5)], False)])
def test_locations_alone(scale, last, is_said):
  """With a scale that is given; a last layer may have the units itself."""
  x = np.random.default_rng(0).normal(size=[40, 3])
  keras.utils.set_random_seed(0)
  model = keras.Sequential([keras.Input([3]), layers.Dense(1), *last])
  model.compile('adam', sgmcmc.keras.GaussianLikelihood(scale=scale))
  _, said = fit(model, x, scale * x[:, :1], epochs=2)
  assert len(said) == is_said == len(units(model))


@pytest.mark.parametrize('num_counted', [0, 39, 40])
def test_large_targets_of_weight_zero_are_none(num_counted):
  """One row has a target of 10^6: whether its weight is zero decides."""
  x = np.random.default_rng(0).normal(size=[40, 3]).astype(np.float32)
  y = tf.constant(np.append(x[:39, :1], [[1e6]], axis=0))
  model = keras.Sequential([keras.Input([3]), layers.Dense(1)])
  model.compile('adam', sgmcmc.keras.GaussianLikelihood(scale=1.))
  likelihood = likelihood_lib.Likelihood(model)
  weights = tf.cast(tf.range(40) < num_counted, tf.float32)
  for sample_weight in (weights, weights[:, tf.newaxis]):
    with warnings.catch_warnings(record=True) as warned:
      warnings.simplefilter('always')
      target_units.warn(likelihood, y, model(x), sample_weight)
    assert len(warned) == (num_counted == 40)
