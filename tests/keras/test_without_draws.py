"""A `fit` that makes no draw says why, and leaves a model that can be used."""

import copy
import functools
import re
import warnings

import keras
import numpy as np
import pytest

from tests.keras import models
from tests.keras import test_going_on
from tests.keras import test_heat_record
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import store
from tfp_sgmcmc.keras.fitting import advice
from tfp_sgmcmc.keras.fitting import settings

tfd = models.tfd
SGHMC, SGLD = sgmcmc.SGHMC, sgmcmc.SGLD


class WeightsBefore(keras.callbacks.Callback):
  """Keeps the weights that the model has when sampling begins."""

  def __init__(self, sampling):
    super().__init__()
    self.sampling, self.weights = sampling, None

  def on_train_batch_begin(self, batch, logs=None):
    if self.sampling.num_steps == 0:
      self.weights = self.model.get_weights()


def messages_of(fn):
  with warnings.catch_warnings(record=True) as record:
    warnings.simplefilter('always')
    fn()
  return [str(r.message) for r in record]


def normalised(**compile_arguments):
  keras.utils.set_random_seed(0)
  model = keras.Sequential([
      keras.Input([4]), keras.layers.Dense(5),
      keras.layers.BatchNormalization(), keras.layers.Dense(3)])
  model.compile('sgd', models.classifier().loss, **compile_arguments)
  return model


def sampling_that_dies(learning_rate=1e12, **arguments):
  return models.make_sampling(**{
      **dict(kernel=SGHMC, learning_rate=learning_rate, momentum=0.9,
             num_burnin_steps=20), **arguments})


def assert_weights(model, wanted):
  for a, b in zip(model.get_weights(), wanted, strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.weekly_after(2)
@pytest.mark.parametrize('make_model, arguments, batch_size', [
    (models.classifier, {}, 20),
    (models.classifier, dict(start_epoch=2), 20),
    # The chain dies within an execution, which has more steps to make.
    (functools.partial(models.classifier, steps_per_execution=5),
     dict(num_burnin_steps=24, num_steps_between_results=0), 10),
    (normalised, dict(start_epoch=1), 20),
    (functools.partial(normalised, run_eagerly=True),
     dict(num_chains=2, start_epoch=1), 20),
    (models.classifier, dict(num_chains=3), 20),
], ids=['alone', 'trained', 'executions', 'statistics', 'chains and statistics',
        'chains'])
def test_a_chain_that_dies_before_a_draw_leaves_the_weights_before_it(
    make_model, arguments, batch_size):
  model, sampling = make_model(), sampling_that_dies(**arguments)
  before = WeightsBefore(sampling)
  said, = [message for message in messages_of(
      lambda: models.fit(model, sampling, epochs=9, callbacks=[before],
                         batch_size=batch_size))
           if 'Training stops' in message]
  assert 'No draw was made before: the model has the weights from' in said
  assert 'learning_rate=1e+11 (it is 1e+12), or ' in said
  assert_weights(model, before.weights)
  with pytest.raises(ValueError, match='There are no draws. Training stops'):
    sampling.posterior.predict(models.classes()[0])


def test_a_chain_that_is_too_hot_leaves_the_weights_before_it():
  seen = []

  def fit():
    sampling, _ = test_heat_record.fit(0.45, 4000, num_burnin_steps=3999)
    seen.append(sampling)

  said, = [m for m in messages_of(fit) if 'Training stops' in m]
  assert 'learning_rate=0.045 (it is 0.45)' in said
  assert 'No draw was made before' in said
  keras.utils.set_random_seed(0)
  start = keras.Sequential([keras.Input([8]), keras.layers.Dense(1)])
  assert_weights(seen[0].model, start.get_weights())


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('num_chains', [1, 2])
def test_a_chain_of_a_directory_that_dies_after_a_kill(
    tmp_path, monkeypatch, num_chains):
  monkeypatch.setattr(store, 'COMMIT_SECONDS', 0.)
  monkeypatch.setattr(store, '_DURATIONS', 0.)
  schedule = keras.optimizers.schedules.PiecewiseConstantDecay(
      [3], [1e-4, 1e12])

  make_model = functools.partial(normalised, run_eagerly=True)

  def make():
    return sampling_that_dies(
        schedule, directory=tmp_path, start_epoch=1, num_chains=num_chains)

  sampling = make()
  before = WeightsBefore(sampling)
  with pytest.raises(test_going_on.Killed):
    models.fit(make_model(), sampling, epochs=9, callbacks=[
        before, test_going_on.Kill(sampling, 2)])
  model = make_model()
  model.set_weights([w + 1. for w in model.get_weights()])
  with pytest.warns(RuntimeWarning, match='Take a schedule with smaller'):
    models.fit(model, make(), epochs=9)
  assert_weights(model, before.weights)
  with pytest.raises(ValueError, match='before its first draw, and cannot'):
    models.fit(make_model(), make(), epochs=9)


def test_the_draws_last_weights_stay_within_an_execution():
  x, y = models.classes()
  x = x.copy()
  x[25] = np.inf  # In the third batch of five.
  model = models.classifier(steps_per_execution=5)
  sampling = models.make_sampling()
  with pytest.warns(RuntimeWarning, match='at step 3'):
    models.fit(model, sampling, x=x, y=y, batch_size=10)
  assert sampling.posterior.steps == [1, 2]
  assert_weights(model, sampling.posterior[-1])


@pytest.mark.parametrize('arguments, wanted', [
    (dict(kernel=None), 'The step size was found in burn-in'),
    (dict(kernel=None, temperature='validation'),
     'Train longer with the optimizer first (start_epoch)'),
    (dict(learning_rate=30., momentum=0.9),
     "learning_rate=3 (it is 30), or learning_rate='temperature'"),
    (dict(kernel=SGLD, learning_rate=30.),
     "learning_rate=3 (it is 30), or learning_rate='temperature'"),
    (dict(kernel=sgmcmc.SGNHT, learning_rate=30., momentum=0.9),
     'learning_rate=3 (it is 30).'),
    (dict(learning_rate=30., momentum=0.9, temperature='validation'),
     'learning_rate=3 (it is 30).'),
    (dict(kernel=functools.partial(SGLD, step_size=0.3)),
     'step_size=0.03 (it is 0.3).'),
    (dict(kernel=functools.partial(SGLD, step_size=lambda step: 0.3)),
     'Take a schedule with smaller values as step_size.'),
    (dict(kernel=lambda posterior: SGLD(posterior, 0.3)),
     'Take a smaller step size in the kernel.'),
    (dict(learning_rate='optimizer', momentum=0.9),
     "which learning_rate='optimizer' follows, or learning_rate="),
    (dict(learning_rate='temperature', momentum=0.9, num_burnin_steps=300),
     'train longer with the optimizer first (start_epoch)'),
])
def test_the_advice_has_no_number_that_the_user_did_not_give(
    arguments, wanted):
  with models.made_by(settings, 'resolve') as made:
    models.make_sampling(**{'kernel': SGHMC, **arguments})
  said = advice.smaller_steps(*made)
  assert wanted in said
  given = arguments.get('learning_rate', 0.3)
  for number in re.findall(r'\d[\d.e+-]*', said):
    assert float(number.rstrip('.')) in (given, given / 10.)


def test_without_fit_or_with_a_copy():
  sampling = models.make_sampling()
  with pytest.raises(ValueError, match='no draws yet: pass the callback to'):
    sampling.posterior.predict(0)
  copied = copy.deepcopy(sampling)  # As KerasTuner does.
  models.fit(models.classifier(run_eagerly=True), copied)
  assert len(copied.posterior) == 6
  with pytest.raises(ValueError, match='copied, .*KerasTuner'):
    sampling.posterior.predict(0)


@pytest.mark.parametrize('kernel', [None, models.SGHMC])
def test_epochs_before_the_start_epoch(kernel):
  """Also where the draws are chosen, and where the data are endless."""
  x, y = models.classes()
  model = models.classifier(run_eagerly=True)
  with pytest.raises(ValueError, match='sampling begins with epoch 2'):
    models.fit(model, models.make_sampling(kernel, start_epoch=2), epochs=2)
  with pytest.raises(ValueError, match='sampling begins with epoch 2'):
    model.fit(
        ((x, y) for _ in range(3)), epochs=2, verbose=0,
        callbacks=[models.make_sampling(kernel, start_epoch=2)])
  assert int(model.optimizer.iterations) == 0


class Stop(keras.callbacks.Callback):
  """Stops training at an epoch's end, as EarlyStopping does."""

  def on_epoch_end(self, epoch, logs=None):
    self.model.stop_training = True


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('arguments, wanted', [
    (dict(start_epoch=3), 'sampling begins with epoch 3'),
    (dict(num_burnin_steps=5), 'after 3 step.*the first is due at step 6'),
    (dict(kernel=None, temperature='validation', start_epoch=0),
     'after the temperature has been chosen')])
def test_stopped_before_the_first_draw(arguments, wanted):
  sampling = models.make_sampling(**arguments)
  said = messages_of(lambda: models.fit(
      models.classifier(run_eagerly=True), sampling, epochs=9,
      validation_data=models.classes(), callbacks=[Stop()]))
  assert [m for m in said if re.search(wanted, m)]
  with pytest.raises(
      ValueError, match=f'{wanted}.*such as EarlyStopping, ended it in epoch '
      '0'):
    sampling.posterior.predict(0)


def test_broken_off_and_without_an_epoch():
  sampling = models.make_sampling(num_burnin_steps=5)
  with pytest.raises(test_going_on.Killed):
    models.fit(models.classifier(run_eagerly=True), sampling, callbacks=[
        test_going_on.Kill(sampling, 2)])
  with pytest.raises(ValueError, match='due at step 6.*was broken off'):
    sampling.posterior.predict(0)
  sampling = models.make_sampling()
  with pytest.warns(UserWarning, match='had no epoch to run'):
    models.fit(
        models.classifier(run_eagerly=True), sampling, initial_epoch=2)


def test_two_in_one_fit():
  model = models.classifier(run_eagerly=True)
  first, second = (models.make_sampling() for _ in range(2))
  with pytest.raises(ValueError, match='given two PosteriorSampling.*num_chai'):
    models.fit(model, first, callbacks=[second])
  models.fit(model, first)
  models.fit(model, second)  # One after the other they may be.
  assert len(first.posterior) == len(second.posterior) == 6
