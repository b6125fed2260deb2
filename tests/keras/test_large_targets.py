"""Targets in their own units: likelihoods that have them, and what is said."""

import re
import warnings

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.draws import baselines
from tfp_sgmcmc.keras.model import large_targets
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib
from tfp_sgmcmc.keras.model import losses

tfd = tfp.distributions
CENTER, UNIT = 250_000., 64_000.
PosteriorSamples = sgmcmc.keras.PosteriorSamples


def table(center=0., unit=1.):
  """Inputs, and targets whose mean and standard deviation are these."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=[100, 2]).astype(np.float32)
  y = np.sin(x[:, :1]) + 0.1 * rng.normal(size=[100, 1])
  return x, center + unit * (y - y.mean()) / y.std()


def in_units(center=CENTER, unit=UNIT):
  return sgmcmc.keras.GaussianLikelihood(center=center, unit=unit)


def make(loss=None, num_outputs=2, last=()):
  keras.utils.set_random_seed(0)
  model = keras.Sequential([
      keras.Input([2]), layers.Dense(8, activation='tanh'),
      layers.Dense(num_outputs), *last])
  model.compile(
      'adam', loss if loss is not None else sgmcmc.keras.GaussianLikelihood())
  return model


def fit(model, x, y, epochs=6, sample_weight=None, **arguments):
  """A chain, and what was said of targets."""
  sampling = sgmcmc.keras.PosteriorSampling(
      **{'seed': 0, 'num_chains': 1, 'num_more_rows': 0, **arguments})
  with warnings.catch_warnings(record=True) as record:
    warnings.simplefilter('always')
    model.fit(
        x, y, epochs=epochs, batch_size=50, shuffle=False, verbose=0,
        sample_weight=sample_weight, callbacks=[sampling])
  return sampling, [
      str(w.message) for w in record if 'The targets are' in str(w.message)]


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
  loss = make_loss(center=center.tolist(), unit=unit.tolist())
  values = loss.call(y, outputs)
  np.testing.assert_allclose(
      values, make_loss().call(z, outputs) + np.log(unit).sum(), rtol=1e-4)
  np.testing.assert_allclose(values, -tf.reduce_sum(law(
      center + unit * outputs[:, :2],
      unit * tf.nn.softplus(outputs[:, 2:])).log_prob(y), -1), rtol=1e-5)
  given = make_loss(scale=3., center=center.tolist(), unit=unit.tolist())
  np.testing.assert_allclose(given.call(y, outputs[:, :2]), -tf.reduce_sum(law(
      center + unit * outputs[:, :2], 3.).log_prob(y), -1), rtol=1e-5)
  again = keras.losses.deserialize(keras.losses.serialize(loss))
  np.testing.assert_array_equal(again.call(y, outputs), values)
  np.testing.assert_allclose(loss.standardised(y.numpy()), z, atol=1e-4)
  np.testing.assert_allclose(
      loss.of_constant(y, center, unit),
      -tf.reduce_sum(law(center, unit).log_prob(y), -1), rtol=1e-5)


@pytest.mark.parametrize('arguments, error, message', [
    (dict(unit=0.), ValueError, 'unit is 0'),
    (dict(unit=[1., -2.]), ValueError, 'unit is'),
    (dict(center=np.inf), ValueError, 'center is inf'),
    (dict(center='mean'), TypeError, 'center is'),
    (dict(unit=np.ones([2, 2])), ValueError, 'unit has shape')])
def test_wrong_units(arguments, error, message):
  with pytest.raises(error, match=message):
    sgmcmc.keras.GaussianLikelihood(**arguments)


@pytest.mark.parametrize('loss, law', [
    (sgmcmc.keras.GaussianLikelihood(2., center=[30., 5.], unit=[4., 1.]),
     lambda y: tfd.Normal(np.mean(y, 0), 2.)),
    (sgmcmc.keras.LaplaceLikelihood(center=[30., 5.], unit=[4., 1.]),
     lambda y: tfd.Laplace(np.median(y, 0), np.mean(
         np.abs(y - np.median(y, 0)), 0)))])
def test_constant_predictions_in_units(loss, law):
  x, y = table(30., 4.)
  y = np.float32(np.hstack([y, x[:, :1]]))
  model = make(loss, 2 if loss.scale else 4)
  posterior = PosteriorSamples.from_arrays(
      model, [w[np.newaxis] for w in model.get_weights()])
  np.testing.assert_allclose(
      baselines.constant_log_likelihood(posterior, x, y),
      np.sum(law(y).log_prob(y), -1), rtol=1e-4)


def test_units_of_another_number_of_targets():
  loss = sgmcmc.keras.GaussianLikelihood(center=[1., 2., 3.])
  with pytest.raises(ValueError, match='center has 3 numbers.* 1 target'):
    loss.distribution(tf.zeros([5, 2]))


@pytest.mark.parametrize('num_chains', [1, 2])
def test_the_chain_is_that_of_standardised_targets(num_chains, monkeypatch):
  """From training on; planted: scales that are not in the units."""
  def draws(y, loss):
    sampling, said = fit(
        make(loss), table()[0], y, epochs=20, num_chains=num_chains,
        num_burnin_steps=4, start_epoch=2, num_steps_between_results=1)
    assert not said
    return sampling.posterior

  def difference(one, other):
    return max(
        np.max(np.abs(ours - theirs)) for k in range(len(one))
        for ours, theirs in zip(one[k], other[k]))

  x, y = table(CENTER, UNIT)
  posterior = draws(y, in_units())
  standard = draws((y - CENTER) / UNIT, sgmcmc.keras.GaussianLikelihood())
  # With seven seeds, one chain and two: below 0.01, and 0.029 to 0.18.
  assert len(posterior) == 16 * num_chains
  assert difference(posterior, standard) < 0.01
  np.testing.assert_allclose(
      posterior.predict(x), CENTER + UNIT * standard.predict(x), rtol=0.01)

  def planted(self, y_pred):
    output, raw_scale = tf.split(y_pred, 2, axis=-1)
    return tfd.Normal(self._location(output), tf.nn.softplus(raw_scale))

  monkeypatch.setattr(losses.LocationScale, 'distribution', planted)
  assert difference(draws(y, in_units()), standard) > 0.02


def test_predictions_are_in_the_units_of_the_targets(tmp_path):
  x, y = table(CENTER, UNIT)
  sampling, _ = fit(make(in_units()), x, y, epochs=120, num_more_rows='auto')
  posterior = sampling.posterior
  # A constant has an NLL of 1.42 + log(UNIT) = 12.5.
  assert posterior.evaluate(x, y)['nll'] < 12.
  np.testing.assert_allclose(
      np.mean(baselines.constant_log_likelihood(posterior, x, y)),
      -0.5 * np.log(2. * np.pi * np.e * UNIT**2), rtol=1e-4)
  student = make(in_units())
  with pytest.raises(ValueError, match='has none: give it the same'):
    posterior.distill(student, x, loss=sgmcmc.keras.GaussianLikelihood())
  mean, std = posterior.predict(x, return_std=True)
  assert np.corrcoef(mean[:, 0], y[:, 0])[0, 1] > 0.9
  served = posterior.as_model(outputs=['mean', 'std'])(x)
  np.testing.assert_allclose(served['mean'], mean, rtol=1e-4)
  np.testing.assert_allclose(served['std'], std, rtol=1e-3)
  lower, upper = posterior.interval(x, 0.9)
  assert np.mean((lower < y) & (y < upper)) > 0.8
  posterior.save(tmp_path / 'saved')
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    loaded = PosteriorSamples.load(tmp_path / 'saved', make(in_units()))
  np.testing.assert_array_equal(loaded.predict(x), mean)
  with pytest.warns(UserWarning, match=r'center=250000\.0.*unit=64000\.0'):
    PosteriorSamples.load(tmp_path / 'saved', make())
  sampling.model.save(tmp_path / 'model.keras')
  again = keras.models.load_model(tmp_path / 'model.keras')
  assert (again.loss.center, again.loss.unit) == (CENTER, UNIT)


@pytest.mark.parametrize('loss, num_outputs, call', [
    (None, 2, r'GaussianLikelihood\(center=2\d{5}, unit=6\d{4}\)'),
    (sgmcmc.keras.StudentTLikelihood(1., np.float32([10.])), 1,
     r'StudentTLikelihood\(df=1, scale=10, center=2\d{5}, unit=6\d{4}\)')])
def test_what_to_compile_with(loss, num_outputs, call):
  _, (said,) = fit(make(loss, num_outputs), *table(CENTER, UNIT), epochs=2)
  assert re.search(call, said)
  # To a hundredth of the unit.
  _, (said,) = fit(make(), *table(101_325., 12.), epochs=2)
  center, unit = re.search('center=(.*), unit=(.*?)\\)', said).groups()
  assert abs(float(center) - 101_325.) < 5. and len(unit) <= 4


class Own(sgmcmc.keras.GaussianLikelihood):
  """A likelihood of the user's, which reads outputs otherwise."""

  def distribution(self, y_pred):
    return tfd.Normal(CENTER + UNIT * y_pred[:, :1], UNIT)


@pytest.mark.parametrize('which', [
    'large', 'near', 'prior', 'own', 'given', 'bias', 'last layer', 'weak',
    'initial', 'far out', 'infinite', 'regulariser', 'weightless', 'weights'])
def test_what_is_said_of_large_targets(which):
  x, y = table(CENTER, UNIT)
  model, arguments, number = make(), {}, 0
  if which == 'large':  # Where a chain may arrive.
    y, number = table(150., 80.)[1], 1
  elif which == 'near':
    y = table(5., 20.)[1]
  elif which == 'prior':
    arguments = dict(prior=tfd.Normal(0., 1e5))
  elif which == 'own':
    model = make(Own())
  elif which == 'given':
    model = make(in_units(2e5, 1e5))
  elif which == 'bias':  # As by weights that were loaded.
    model.layers[-1].bias.assign([CENTER, UNIT])
  elif which == 'last layer':
    x, y = table(0., 3e5)
    model = make(
        sgmcmc.keras.GaussianLikelihood(3e5), 1, [layers.Rescaling(3e5)])
  elif which == 'weak':  # The model predicts as well as it can.
    model, number = make(sgmcmc.keras.GaussianLikelihood(1e5), 1), 1
    y = table(0., 1e5)[1]
  elif which == 'initial':  # The chains start elsewhere.
    model.layers[-1].bias.assign([CENTER, UNIT])
    arguments = dict(num_chains=sgmcmc.keras.Chains(2, initial_weights=[
        [w + 0.01 * k for w in model.get_weights()] for k in range(2)]))
    model.layers[-1].bias.assign([0., 0.])
  elif which == 'far out':  # A few of them.
    y = np.where(np.arange(100)[:, np.newaxis] % 9, table()[1], 1e5)
  elif which == 'infinite':
    y = np.where(np.arange(100)[:, np.newaxis] == 3, np.inf, y)
  elif which == 'regulariser':
    model = make(last=[layers.Dense(2, kernel_regularizer='l2')])
  elif which == 'weights':  # Which do not change how good the outputs are.
    y = table(100., 5.)[1]
    model.layers[-1].bias.assign([100., 6.])
    arguments = dict(sample_weight=np.full(100, 10.), start_epoch=0)
  else:
    y = np.where(np.arange(100)[:, np.newaxis] == 3, 1e6, table()[1])
    arguments = dict(sample_weight=np.float32(np.arange(100) != 3))
  try:
    _, said = fit(model, x, y, **arguments)
  except (ValueError, RuntimeError):
    assert which == 'infinite'
  else:
    assert len(said) == number


def test_a_trained_model_is_warned_of():
  x, y = table(CENTER, UNIT)
  model = make()
  model.fit(x, y, verbose=0)
  _, (said,) = fit(model, x, y)
  assert 'where sampling begins the model is far' in said


def test_several_targets_and_outputs():
  x, y = table()
  keras.utils.set_random_seed(0)
  inputs = keras.Input([2])
  model = keras.Model(inputs, {
      'a': layers.Dense(4)(inputs), 'b': layers.Dense(1)(inputs),
      'c': layers.Dense(1, 'sigmoid')(inputs)})
  model.compile('adam', {
      'a': sgmcmc.keras.GaussianLikelihood(),
      'b': sgmcmc.keras.StudentTLikelihood(4., 0.1),
      'c': 'binary_crossentropy'}, loss_weights={'a': 1., 'b': 1., 'c': 0.})
  targets = {'a': np.hstack([y, 200. + 50. * y]), 'b': y[:, 0], 'c': y > 0.}
  _, (said,) = fit(model, x, targets, epochs=3)
  assert 'center=[' in said and ', unit=[' in said


@pytest.mark.parametrize('num_counted', [0, 15, 40])
def test_large_targets_of_weight_zero_are_none(num_counted):
  """The last 25 rows have targets of 10^6: whether they count decides."""
  x = np.random.default_rng(0).normal(size=[40, 3]).astype(np.float32)
  y = tf.constant(np.append(x[:15, :1], np.full([25, 1], 1e6), axis=0))
  model = keras.Sequential([keras.Input([3]), layers.Dense(1)])
  model.compile('adam', sgmcmc.keras.GaussianLikelihood(scale=1.))
  likelihood = likelihood_lib.Likelihood(model)
  weights = tf.cast(tf.range(40) < num_counted, tf.float32)
  for sample_weight in (weights, weights[:, tf.newaxis]):
    with warnings.catch_warnings(record=True) as warned:
      warnings.simplefilter('always')
      large_targets.warn(likelihood, y, model(x), sample_weight)
    assert len(warned) == (num_counted == 40)
