"""What is wrong with data and outputs is named, and as early as can be."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.model import inspection

PosteriorSamples = sgmcmc.keras.PosteriorSamples


def posterior_of(model):
  rng = np.random.default_rng(0)
  return PosteriorSamples.from_arrays(
      model, [rng.normal(size=[3, *v.shape])
              for v in model.trainable_variables])


@pytest.mark.parametrize('start_epoch', [0, 1])
@pytest.mark.parametrize('arguments', [
    {}, dict(run_eagerly=True), dict(steps_per_execution=2),
    dict(num_chains=2)], ids=str)
def test_a_forgotten_from_logits_is_found_before_the_first_step(
    arguments, start_epoch):
  arguments = dict(arguments)
  sampling = models.make_sampling(
      start_epoch=start_epoch, num_chains=arguments.pop('num_chains', 1))
  model = models.classifier(
      loss='sparse_categorical_crossentropy', **arguments)
  before = model.get_weights()
  with pytest.raises(ValueError, match=(
      r'SparseCategoricalCrossentropy\(from_logits=True\)')):
    models.fit(model, sampling)
  assert int(model.optimizer.iterations) == 0
  for a, b in zip(model.get_weights(), before):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('loss', [
    'binary_crossentropy', 'categorical_crossentropy'])
def test_predictions_of_draws_with_a_forgotten_from_logits(loss):
  model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
  model.compile('sgd', loss)
  posterior, (x, y) = posterior_of(model), models.classes()
  y = np.eye(3)[y]
  for call in (
      lambda: posterior.predict(x), lambda: posterior.predict(
          x, return_samples=True),
      lambda: posterior.predictive_entropy(x),
      lambda: posterior.evaluate(x, y),
      lambda: posterior.log_likelihood(x, y)):
    with pytest.raises(ValueError, match=r'from_logits=True'):
      call()


@pytest.mark.slow
def test_probabilities_by_other_means_are_none_of_it():
  """A softmax that a layer of one's own makes; the training is as without."""
  def network(last):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input([4]), keras.layers.Dense(3), keras.layers.Lambda(last)])
    model.compile('sgd', 'sparse_categorical_crossentropy')
    return model

  def by_hand(t):
    return tf.exp(t) / tf.reduce_sum(tf.exp(t), -1, keepdims=True)

  x, y = models.classes()
  trained, sampled = network(by_hand), network(by_hand)
  trained.fit(x, y, batch_size=20, epochs=2, shuffle=False, verbose=0)
  seen = []
  with warnings.catch_warnings():
    warnings.simplefilter('error', UserWarning)
    models.fit(
        sampled, models.make_sampling(start_epoch=2), epochs=3, callbacks=[
            keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: (
                seen.append(sampled.get_weights())))])
  for a, b in zip(seen[1], trained.get_weights()):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
  with pytest.warns(UserWarning, match='sum to .*from_logits=True') as record:
    models.fit(network(tf.nn.softplus), models.make_sampling(start_epoch=1))
  assert sum('from_logits' in str(r.message) for r in record) == 1


@pytest.mark.parametrize('y, loss, message', [
    (lambda y: y + 0.5, 'sparse_categorical_crossentropy', 'whole class'),
    (lambda y: y + 1, 'sparse_categorical_crossentropy', 'run from 1 to 3'),
    (lambda y: 2. * np.eye(3)[y] - 1., 'binary_crossentropy', 'hold -1')])
def test_impossible_targets_are_found_before_the_first_step_of_the_chain(
    y, loss, message):
  model = keras.Sequential([
      keras.Input([4]), keras.layers.Dense(3, activation='sigmoid')])
  model.compile('sgd', loss)
  x, labels = models.classes()
  with pytest.raises(ValueError, match=message):
    models.fit(model, models.make_sampling(), x=x, y=y(labels))


def with_nan():
  x, y = models.classes()
  x[3, 1] = np.nan
  return x, y


@pytest.mark.parametrize('call', [
    lambda p, x, y: p.predict(x),
    lambda p, x, y: p.predict(x, return_samples=True),
    lambda p, x, y: p.predictive_entropy(x),
    lambda p, x, y: p.evaluate(x, y), lambda p, x, y: p.log_likelihood(x, y)],
    ids=['predict', 'draws', 'entropy', 'evaluate', 'log_likelihood'])
def test_inputs_with_nan(call):
  with pytest.raises(ValueError, match='inputs hold NaN .* in 1 of 50 rows'):
    call(posterior_of(models.classifier()), *with_nan())


def test_nan_that_the_model_fills_in_is_none():
  model = keras.Sequential([
      keras.Input([4]), keras.layers.Lambda(
          lambda x: tf.where(tf.math.is_nan(x), 0., x)),
      keras.layers.Dense(3)])
  model.compile('sgd', models.classifier().loss)
  x, _ = with_nan()
  posterior = posterior_of(model)
  np.testing.assert_array_equal(
      posterior.predict(x), posterior.predict(np.nan_to_num(x)))


def test_logits_may_be_minus_infinity():
  """As where a class is ruled out."""
  model = keras.Sequential([
      keras.Input([4]), keras.layers.Dense(3), keras.layers.Lambda(
          lambda t: tf.where([True, True, False], t, -np.inf))])
  model.compile('sgd', models.classifier().loss)
  x, y = models.classes()
  p = posterior_of(model).predict(x)
  assert np.all(p[:, 2] == 0.) and np.all(p[:, :2] > 0.)
  assert np.isfinite(posterior_of(model).evaluate(
      x, np.minimum(y, 1))['brier'])


def test_targets_with_nan():
  model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
  posterior, (x, y) = posterior_of(model), models.classes()
  y = np.where(np.arange(50) < 3, np.nan, y)[:, np.newaxis]
  for call in (posterior.evaluate, posterior.log_likelihood):
    with pytest.raises(ValueError, match='targets hold NaN .* in 3 rows'):
      call(x, y)


@pytest.mark.parametrize('value, error, message', [
    (np.nan, ValueError, r"dense.*/kernel' hold 12 values that are NaN"),
    (1e300, ValueError, 'infinite .in float32'),
    (1j, TypeError, 'dtype complex128'), ('a', TypeError, 'real numbers')])
def test_arrays_that_are_no_weights(value, error, message):
  model = keras.Sequential([
      keras.Input([4]), keras.layers.Dense(3, use_bias=False)])
  with pytest.raises(error, match=message), np.errstate(over='ignore'):
    PosteriorSamples.from_arrays(model, [np.full([1, 4, 3], value)])


def test_inputs_that_the_model_does_not_take():
  """After good ones, too: each shape of inputs has a program of its own."""
  posterior, (x, y) = posterior_of(models.classifier()), models.classes()
  for _ in range(2):
    for wrong, shape in ((x[:, :3], r'\(None, 3\)'),
                         (x[:, np.newaxis], r'\(None, 1, 4\)')):
      with pytest.raises(ValueError, match=f'does not take inputs .*{shape}'):
        posterior.predict(wrong)
    assert posterior.predict(x).shape == (50, 3)
  for call in (
      lambda: posterior.predict(x[:0]), lambda: posterior.predict(iter([])),
      lambda: posterior.evaluate(x[:0], y[:0]),
      lambda: posterior.log_likelihood(x[:0], y[:0])):
    with pytest.raises(ValueError, match='hold no examples'):
      call()


def test_columns_of_a_data_frame_before_and_after_arrays():
  """Also of one whose rows have labels of their own."""
  pandas = pytest.importorskip('pandas')
  inputs = {name: keras.Input([1], name=name) for name in 'ab'}
  model = keras.Model(inputs, keras.layers.Dense(1)(
      keras.layers.Concatenate()(list(inputs.values()))))
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
  posterior, (x, _) = posterior_of(model), models.classes(2, 2)
  wanted = posterior.predict({'a': x[:, :1], 'b': x[:, 1:]})
  for index in (None, np.arange(50)[::-1] / 2.):
    frame = pandas.DataFrame(x, columns=['a', 'b'], index=index)
    np.testing.assert_allclose(
        posterior.predict(dict(frame), batch_size=20), wanted, rtol=1e-5)
  np.testing.assert_allclose(
      posterior_of(model).predict(dict(frame)), wanted, rtol=1e-5)


def said_of_weights(record):
  return [str(r.message) for r in record if 'sample weights' in str(r.message)]


def fit(data=None, num_examples=models.NUM_EXAMPLES, **arguments):
  """The warnings of a `fit` that have to do with weights."""
  sampling = models.make_sampling(
      num_examples=num_examples, start_epoch=arguments.pop('start_epoch', 0))
  with warnings.catch_warnings(record=True) as record:
    warnings.simplefilter('always')
    model = models.classifier(run_eagerly=True)
    if data is None:
      models.fit(model, sampling, epochs=2, **arguments)
    else:
      model.fit(data, epochs=2, verbose=0, callbacks=[sampling], **arguments)
  return said_of_weights(record)


by_class = {0: 1. / 16., 1: 1. / 16., 2: 1. / 18.}
exactly = np.mean([by_class[int(k)] for k in models.classes()[1]])


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('arguments', [
    dict(class_weight=by_class), dict(class_weight=by_class, start_epoch=1),
    dict(sample_weight=np.full(50, exactly)),
    dict(class_weight=by_class, data=lambda: (
        tf.data.Dataset.from_tensor_slices(models.classes()).batch(20).filter(
            lambda *batch: True)))], ids=[
                'class_weight', 'after training', 'sample_weight',
                'of no length'])
def test_weights_of_another_mean_are_warned_of(arguments):
  arguments = dict(arguments)
  if 'data' in arguments:
    arguments['data'] = arguments['data']()
  said, = fit(**arguments)
  assert f'mean {exactly:.3g}.' in said
  assert f'count as {50. * exactly:.3g} against' in said
  assert 'np.mean(sample_weight)' in said and 'wider' in said


@pytest.mark.slow
@pytest.mark.parametrize('weights', [
    np.ones(50), np.arange(50) % 2.,  # Half of the rows are left out.
    np.where(np.arange(50) == 49, 50. - 0.4 * 49., 0.4)],
    ids=['ones', 'zeros', 'rare'])
def test_weights_of_mean_one_are_not(weights):
  assert not fit(sample_weight=weights)


def test_weights_of_another_mean_than_in_the_first_batch_are():
  """1.9 there, in which 2.32 may be; so it does not depend on the order."""
  weights = np.where(np.arange(50) < 20, 1. + 1.8 * (np.arange(50) % 2), 2.6)
  said, = fit(sample_weight=weights)
  assert 'mean 2.32' in said


def test_looking_further_loses_no_batch(monkeypatch):
  """The chain is that of the same weights without a look."""
  found = []
  for looks in (True, False):
    if not looks:
      monkeypatch.setattr(inspection, 'is_far', lambda *arguments: False)
    model, sampling = models.classifier(), models.make_sampling()
    with warnings.catch_warnings(record=True) as record:
      warnings.simplefilter('always')
      models.fit(model, sampling, sample_weight=np.full(50, 0.1))
    assert len(said_of_weights(record)) == looks
    assert sampling.num_steps == 6
    found.append(model.get_weights())
  for a, b in zip(*found):
    np.testing.assert_allclose(a, b, rtol=1e-6)


def test_targets_of_a_prior_of_yours_may_be_large():
  x = np.random.default_rng(0).normal(size=[40, 3])
  model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
  model.compile('adam', sgmcmc.keras.GaussianLikelihood(scale=1e5))
  with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter('always')
    model.fit(x, 1e5 * x[:, :1], verbose=0, epochs=2, callbacks=[
        sgmcmc.keras.PosteriorSampling(
            seed=0, num_chains=1, prior=tfp.distributions.Normal(0., 1e5))])
  assert not any('Standardise' in str(w.message) for w in warned)
