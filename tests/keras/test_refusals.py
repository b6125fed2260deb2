"""What the callback refuses, and when."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.keras import models
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions


@pytest.mark.parametrize('prior, constraint, message', [
    ({'hiden': tfd.Normal(0., 1.), '.*': tfd.Normal(0., 1.)}, None,
     "fit no weight: .'hiden'"),
    (tfd.Normal(tf.zeros([7]), 1.), None, 'has to broadcast'),
    (tfd.MultivariateNormalDiag(tf.zeros([1])), None,
     r'event shape \(1,\) .* weight has shape \(4, 5\).*'
     r'tfd.Independent\(tfd.Normal\(tf.zeros\(\[4, 5\]\), 1.\), 2\)'),
    (tfd.Sample(tfd.Normal(0., 1.), [4]), None, r'event shape \(4,\)'),
    (tfd.JointDistributionSequential([tfd.Normal(0., 1.)]), None,
     'the law of several tensors'),
    (tfd.Normal, None, 'is Normal itself: call it'),
    (sgmcmc.keras.he_normal, None, 'is he_normal itself: call it'),
    ({'(': tfd.Normal(0., 1.)}, None, r"key '\(', which is no layer name"),
    ({0: tfd.Normal(0., 1.)}, None, 'key 0, which is no layer name'),
    (tfd.Normal(0., tf.ones([], tf.float64)), None, 'has dtype float64'),
    (tfd.Normal(0., 1.), 'non_neg', 'has the constraint')])
def test_wrong_priors_and_constraints_are_found_before_training(
    prior, constraint, message):
  model = models.classifier()
  model.get_layer('logits').kernel.constraint = keras.constraints.get(
      constraint)
  before = model.get_weights()
  with pytest.raises((TypeError, ValueError), match=message):
    models.fit(model, models.make_sampling(prior=prior, start_epoch=1))
  for a, b in zip(model.get_weights(), before):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('prior, constraint, message', [
    ({'absent': tfd.Normal(0., 1.)}, None, 'no entry for the weight'),
    (tfd.Normal(0., 1.), 'non_neg', 'has the constraint')])
def test_a_model_that_fit_builds_is_checked_before_training(
    prior, constraint, message):
  model = keras.Sequential(
      [keras.layers.Dense(3, kernel_constraint=constraint)])
  model.compile('adam', models.classifier().loss)
  with pytest.raises(ValueError, match=message):
    models.fit(model, models.make_sampling(prior=prior, start_epoch=1))
  assert int(model.optimizer.iterations) == 0


@pytest.mark.parametrize('loss, targets, weights, message', [
    ('poisson', (50, 1), None,
     r'targets have shape \(None, 1\), the outputs \(None, 3\).* one value'),
    ('binary_crossentropy', (50,), None, r'targets have shape \(None,\)'),
    ('categorical_crossentropy', (50, 2), None, 'targets have shape'),
    ('sparse_categorical_crossentropy', (50, 3), None,
     r'needs targets of shape \(None,\), class numbers'),
    (sgmcmc.keras.GaussianLikelihood(scale=1.), (50, 2), None,
     'the targets have shape'),
    ('sparse_categorical_crossentropy', (50, 1), (50, 3), 'sample weights'),
    ('sparse_categorical_crossentropy', None, None, 'There are no targets')])
def test_targets_that_do_not_fit_are_found_before_training(
    loss, targets, weights, message):
  model = models.classifier(loss=loss, metrics=[], optimizer='adam')
  x, _ = models.classes()
  with pytest.raises(ValueError, match=message):
    model.fit(
        x, None if targets is None else np.ones(targets), verbose=0, epochs=3,
        sample_weight=None if weights is None else np.ones(weights),
        callbacks=[models.make_sampling(start_epoch=2)])
  assert int(model.optimizer.iterations) == 0


@pytest.mark.parametrize('arguments', [
    dict(num_burnin_steps=6), dict(start_epoch=2),
    dict(num_steps_between_results=sgmcmc.keras.DrawSchedule(
        keep_draw=lambda step: False))])
def test_draws_out_of_reach_are_an_error_before_the_first_step(arguments):
  model = models.classifier()
  before = [w.copy() for w in model.get_weights()]
  with pytest.raises(ValueError, match='without a draw'):
    models.fit(model, models.make_sampling(**arguments), epochs=2)
  for a, b in zip(model.get_weights(), before):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('arguments, message', [
    (dict(kernel=3), 'kernel is 3'),
    (dict(kernel=keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])),
     'kernel is <Sequential'),
    (dict(directory=''), "directory is ''"),
    (dict(directory=b'draws'), "directory is b'draws', of type bytes"),
    (dict(directory='n' * 300), '300 characters'),
    (dict(kernel=functools.partial(
        tfp.mcmc.HamiltonianMonteCarlo, step_size=1., num_leapfrog_steps=1)),
     'all the data at each step'),
    (dict(kernel=functools.partial(
        models.SGHMC, gradient_estimator=sgmcmc.gradients.Uniform(3))),
     'Leave it out, and set batch_size in fit'),
    (dict(kernel=functools.partial(
        models.SGHMC, gradient_estimator=sgmcmc.gradients.SVRG(3, 10))),
     r'SVRG\(.* no pass over all the data at an anchor.*sgmcmc.sample'),
    (dict(learning_rate=0.1), 'learning_rate says the same'),
    (dict(momentum=0.9), 'without a learning_rate'),
    (dict(kernel=sgmcmc.SGLD, learning_rate=0.1, momentum=0.9), 'has none'),
    (dict(num_examples=0), 'num_examples is 0'),
    (dict(num_burnin_steps=-1), 'num_burnin_steps is -1'),
    (dict(kernel=functools.partial(sgmcmc.SGLD, step_size=-1.)), 'step_size'),
])
def test_wrong_arguments(arguments, message):
  with pytest.raises((TypeError, ValueError), match=message):
    models.make_sampling(**arguments)


def test_models_that_cannot_be_sampled():
  class OwnStep(keras.Sequential):
    def train_step(self, data):
      return super().train_step(data)

  model = OwnStep([keras.Input([4]), keras.layers.Dense(3)])
  model.compile('sgd', models.classifier().loss)
  with pytest.raises(ValueError, match='own train_step'):
    models.fit(model, models.make_sampling())
  model = keras.Sequential([keras.Input([4]), keras.layers.Dense(
      3, kernel_constraint='non_neg')])
  model.compile('sgd', models.classifier().loss)
  with pytest.raises(ValueError, match='constraint'):
    models.fit(model, models.make_sampling())
  model = keras.Sequential([
      keras.Input([4], batch_size=10), keras.layers.Reshape([4, 1]),
      keras.layers.Bidirectional(keras.layers.LSTM(2, stateful=True)),
      keras.layers.Dense(3)])
  model.compile('sgd', models.classifier().loss)
  with pytest.raises(ValueError, match='is stateful'):
    models.fit(model, models.make_sampling(), batch_size=10)
  model = models.classifier(loss=keras.losses.SparseCategoricalCrossentropy)
  with pytest.raises(ValueError, match='class SparseCategoricalCross'):
    models.fit(model, models.make_sampling())
