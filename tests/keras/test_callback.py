"""What `fit` with the callback does to models and other callbacks."""

import functools
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import store


def test_frozen_layers_stay():
  model = models.classifier()
  model.get_layer('hidden').trainable = False
  model.compile('sgd', model.loss, run_eagerly=True)
  before = model.get_layer('hidden').get_weights()
  sampling = models.make_sampling()
  models.fit(model, sampling)
  for a, b in zip(model.get_layer('hidden').get_weights(), before):
    np.testing.assert_array_equal(a, b)
  assert len(sampling.posterior[0]) == 1


def test_start_epoch_trains_with_the_optimizer_first():
  trained, sampled = (models.classifier(run_eagerly=True) for _ in range(2))
  x, y = models.classes()
  trained.fit(x, y, batch_size=20, epochs=2, shuffle=False, verbose=0)
  seen = []
  watch = keras.callbacks.LambdaCallback(
      on_epoch_end=lambda epoch, logs: seen.append(
          [w.copy() for w in sampled.get_weights()]))
  sampling = models.make_sampling(start_epoch=2)
  history = models.fit(sampled, sampling, epochs=3, callbacks=[watch])
  for a, b in zip(seen[1], trained.get_weights()):
    np.testing.assert_allclose(a, b, rtol=1e-6)
  assert sampling.num_steps == 3
  assert history.history['draws'] == [3]


class Raise(keras.callbacks.Callback):
  """Raises at the end, or the beginning, of a batch."""

  def __init__(self, error, at='on_train_batch_end'):
    super().__init__()
    setattr(self, at, self.throw)
    self.error = error

  def throw(self, batch, logs=None):
    if batch == 1:
      raise self.error


def own_state(model):
  return (model.train_function, model.train_step, model.optimizer, model.loss,
          model.jit_compile, model.compiled, 'train_step' in vars(model))


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('error', [
    None, RuntimeError('stop'), KeyboardInterrupt()], ids=str)
def test_model_is_restored(error):
  x, y = models.classes()
  model = models.classifier(run_eagerly=error is not None)
  model.fit(x, y, batch_size=20, verbose=0)
  before = own_state(model)
  iterations = int(model.optimizer.iterations)
  sampling = models.make_sampling()
  if error is None:
    models.fit(model, sampling)
  else:
    with pytest.raises(type(error)):
      models.fit(model, sampling, callbacks=[Raise(error)])
    assert len(sampling.posterior) == 2
  assert own_state(model) == before
  assert int(model.optimizer.iterations) == iterations
  np.testing.assert_allclose(
      model.get_weights()[0], sampling.posterior[-1][0])
  model.fit(x, y, batch_size=20, verbose=0)
  assert int(model.optimizer.iterations) == iterations + 3


def test_fit_that_ends_before_its_batch_leaves_no_sampling():
  x, y = models.classes()
  model = models.classifier(run_eagerly=True)
  sampling = models.make_sampling()
  with pytest.raises(RuntimeError):
    models.fit(model, sampling, callbacks=[
        Raise(RuntimeError('stop'), at='on_train_batch_begin')])
  model.fit(x, y, batch_size=20, verbose=0)
  assert int(model.optimizer.iterations) == 3 and sampling.num_steps == 1


def test_fit_again_after_one_that_ended_before_its_batch():
  x, y = models.classes()
  model = models.classifier(run_eagerly=True)
  sampling = models.make_sampling()
  with pytest.raises(RuntimeError):
    models.fit(model, sampling, callbacks=[
        Raise(RuntimeError('stop'), at='on_train_batch_begin')])
  models.fit(model, sampling)
  assert sampling.num_steps == 7
  model.fit(x, y, batch_size=20, verbose=0)
  assert int(model.optimizer.iterations) == 3 and sampling.num_steps == 7


def test_exception_in_the_step_restores():
  model = models.classifier()
  x, y = models.classes()
  model.fit(x, y, batch_size=20, verbose=0)
  before = own_state(model)

  def generator():
    yield x[:20], y[:20]
    yield x[:20], y[:20]
    raise RuntimeError('no more data')

  data = tf.data.Dataset.from_generator(
      generator, output_signature=(
          tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int64)))
  sampling = models.make_sampling()
  with pytest.raises(Exception, match='no more data'):
    model.fit(data, verbose=0, callbacks=[sampling])
  assert own_state(model) == before
  assert len(sampling.posterior) == 2


def test_optimizer_with_moving_average_leaves_the_last_draw():
  model = models.classifier(
      optimizer=keras.optimizers.SGD(0.1, use_ema=True), run_eagerly=True)
  sampling = models.make_sampling(start_epoch=1)
  models.fit(model, sampling, epochs=2)
  for a, b in zip(model.get_weights(), sampling.posterior[-1]):
    np.testing.assert_array_equal(a, b)


def test_optimizer_with_moving_average_that_never_trains():
  model = models.classifier(
      optimizer=keras.optimizers.Adam(use_ema=True), run_eagerly=True)
  sampling = models.make_sampling()
  models.fit(model, sampling)
  for a, b in zip(model.get_weights(), sampling.posterior[-1]):
    np.testing.assert_array_equal(a, b)


@pytest.mark.weekly_after(1)
@pytest.mark.slow
@pytest.mark.parametrize('arguments, epochs', [
    ({}, 3), (dict(directory=True), 3),
    (dict(kernel=sgmcmc.SGHMC, learning_rate=0.01, momentum=0.9,
          temperature='validation'), 7)],
                         ids=['memory', 'directory', 'search'])
def test_swapped_weights_are_not_the_chains(arguments, epochs, tmp_path):
  """With `SwapEMAWeights` before ours the chain is the same bit for bit.

  Though it swaps by additions, which round; at each batch or each epoch.
  """
  x, y = models.classes()
  found = []
  for k, swaps in enumerate([[], [False], [True]]):
    model = models.classifier(
        optimizer=keras.optimizers.SGD(0.1, use_ema=True), run_eagerly=True)
    model.fit(x, y, verbose=0)  # Makes an average.
    sampling = models.make_sampling(**{
        **arguments, **({'directory': tmp_path / str(k)}
                        if 'directory' in arguments else {})})
    model.fit(
        x, y, epochs=epochs, batch_size=20, shuffle=False, verbose=0,
        validation_data=(x, y), callbacks=[
            *map(keras.callbacks.SwapEMAWeights, swaps), sampling])
    found.append(sampling.posterior.weights)
    for a, b in zip(model.get_weights(), sampling.posterior[-1]):
      np.testing.assert_array_equal(a, b)
    if 'directory' in arguments:
      kept = store.Store(tmp_path / str(k), 'fit').checkpoint()
      np.testing.assert_array_equal(kept['weights/0'], model.get_weights()[0])
  for same in zip(*(weights.values() for weights in found)):
    for draws in same[1:]:
      np.testing.assert_array_equal(same[0], draws)


def test_other_callbacks(tmp_path):
  x, y = models.classes()
  model = models.classifier(run_eagerly=True)
  sampling = models.make_sampling()
  checkpoint = keras.callbacks.ModelCheckpoint(str(tmp_path / 'model.keras'))
  stopping = keras.callbacks.EarlyStopping(
      monitor='kinetic_temperature', patience=0, min_delta=1e9,
      mode='min')
  history = models.fit(
      model, sampling, epochs=5, validation_data=(x, y),
      callbacks=[checkpoint, stopping]).history
  assert len(history['loss']) == 2  # EarlyStopping saw the temperature.
  assert set(history) == {
      'loss', 'accuracy', 'val_loss', 'val_accuracy', 'draws',
      'kinetic_temperature', 'temperature'}
  assert history['draws'] == [3, 6]
  saved = keras.models.load_model(tmp_path / 'model.keras')
  np.testing.assert_array_equal(
      saved.get_weights()[0], sampling.posterior[-1][0])


def test_tensorboard_sees_temperature_and_draws(tmp_path):
  pytest.importorskip('tensorboard')
  board = keras.callbacks.TensorBoard(str(tmp_path))
  models.fit(models.classifier(), models.make_sampling(), callbacks=[board])
  tags = set()
  for file in (tmp_path / 'train').glob('*tfevents*'):
    for event in tf.compat.v1.train.summary_iterator(str(file)):
      tags.update(value.tag for value in event.summary.value)
  assert {'epoch_draws', 'epoch_kinetic_temperature'} <= tags


def test_metrics_are_those_of_the_model():
  x, y = models.classes()
  model = models.classifier(run_eagerly=True)
  sampling = models.make_sampling(
      functools.partial(sgmcmc.SGLD, step_size=1e-20))
  history = models.fit(model, sampling, epochs=1).history
  scores = model.evaluate(x, y, verbose=0, return_dict=True)
  assert np.isclose(history['loss'][0], scores['loss'], rtol=1e-5)
  assert np.isclose(history['accuracy'][0], scores['accuracy'])


def test_cyclical_sampling_draws_late_in_each_cycle():
  schedule = keras.optimizers.schedules.CosineDecayRestarts(0.01, 4)
  sampling = models.make_sampling(
      kernel=sgmcmc.SGHMC, learning_rate=schedule, momentum=0.9,
      num_steps_between_results=sgmcmc.keras.DrawSchedule(
          keep_draw=sgmcmc.keras.late_in_cycle(schedule, fraction=0.5)))
  models.fit(models.classifier(), sampling, epochs=4)
  assert sampling.posterior.steps == [3, 4, 9, 10, 11, 12]  # t_mul = 2


def test_max_results():
  sampling = models.make_sampling(
      num_steps_between_results=sgmcmc.keras.DrawSchedule(max_results=2))
  models.fit(models.classifier(run_eagerly=True), sampling, epochs=2)
  assert sampling.posterior.steps == [1, 2] and sampling.num_steps == 6


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('kernel, reason, compile_arguments', [
    (models.SGHMC, 'the state is not finite: part 0, 20 of 20', {}),
    (models.SGHMC, 'the state is not finite', dict(jit_compile=True)),
    # Its momentum takes half a step after the position has moved.
    (functools.partial(models.SGHMC, integrator='baoab'),
     'the momentum is not finite', {}),
], ids=['euler', 'euler compiled', 'baoab'])
def test_nan_stops_with_the_step_and_keeps_the_draws(
    kernel, reason, compile_arguments):
  x, y = models.classes()
  x = x.copy()
  x[25] = np.inf  # In the third batch of an epoch.
  model = models.classifier(**compile_arguments)
  sampling = models.make_sampling(kernel)
  with pytest.warns(RuntimeWarning, match=f'at step 3 of the chain {reason}'):
    history = models.fit(
        model, sampling, epochs=4, x=x, y=y, batch_size=10)
  assert len(history.history['loss']) == 1
  assert sampling.posterior.steps == [1, 2]
  np.testing.assert_array_equal(
      model.get_weights()[0], sampling.posterior[-1][0])


def test_the_class_and_a_model_of_keras_2():
  tf_keras = pytest.importorskip('tf_keras')
  x, y = models.classes()
  with pytest.raises(TypeError, match='class PosteriorSampling itself'):
    models.classifier().fit(
        x, y, verbose=0, callbacks=[sgmcmc.keras.PosteriorSampling])
  old = tf_keras.Sequential([tf_keras.layers.Dense(3)])
  old.compile('sgd', 'sparse_categorical_crossentropy')
  with pytest.raises(TypeError, match='model of tf_keras, which is Keras 2'):
    old.fit(x, y, verbose=0, callbacks=[models.make_sampling()])


def test_without_arviz_several_chains_end_as_one_does(monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, 'arviz', None)
  sampling = models.make_sampling(num_chains=2)
  history = models.fit(
      models.classifier(run_eagerly=True), sampling, epochs=4, verbose=2)
  assert history.history['draws'] == [6, 12, 18, 24]
  assert len(sampling.posterior) == 24
  assert 'is not judged: R-hat, effective draws' in capsys.readouterr().out


def test_a_model_that_cannot_be_traced_runs_eagerly():
  class Model(keras.Model):
    def __init__(self):
      super().__init__()
      self.dense = keras.layers.Dense(3)

    def call(self, x):
      return self.dense(x) * float(np.sign(x.numpy().size))

  model = Model()
  model.compile('adam', models.classifier().loss, run_eagerly=True)
  sampling = models.make_sampling(start_epoch=1)
  models.fit(model, sampling)
  assert len(sampling.posterior) == 3
