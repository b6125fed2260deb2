"""A `fit` that was interrupted goes on with the same chain."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import store

tfd = tfp.distributions


class Killed(Exception):
  """Stands for a kill: what follows has a new model and callback."""


class Kill(keras.callbacks.Callback):
  """Ends `fit` once the chain has made a number of steps."""

  def __init__(self, sampling, step):
    super().__init__()
    self.sampling, self.step = sampling, step

  def on_train_batch_end(self, batch, logs=None):
    if self.sampling.num_steps == self.step:
      raise Killed


@pytest.fixture(autouse=True)
def commit_each_step(monkeypatch):
  monkeypatch.setattr(store, 'COMMIT_SECONDS', 0.)
  monkeypatch.setattr(store, '_DURATIONS', 0.)


eager = functools.partial(models.classifier, run_eagerly=True)


def run(epochs=4, kills=(), make_model=eager, callbacks=list, **arguments):
  """Runs a script as often as it is killed, and once more; the last run."""
  for step in [*kills, None]:
    model, sampling = make_model(), models.make_sampling(**arguments)
    more = callbacks() if step is None else [
        *callbacks(), Kill(sampling, step)]
    try:
      history = models.fit(model, sampling, epochs=epochs, callbacks=more)
    except Killed:
      assert step is not None
    else:
      assert step is None
  return model, sampling, history.history


@functools.cache
def whole_run():
  """Three epochs at once."""
  return run(3)


def assert_same(ours, theirs):
  """The same draws, and the same state, bit for bit."""
  (model, sampling, _), (other_model, other, _) = ours, theirs
  assert sampling.num_steps == other.num_steps
  assert sampling.posterior.steps == other.posterior.steps
  for a, b in zip(
      [*sampling.posterior.weights.values(), *model.get_weights()],
      [*other.posterior.weights.values(), *other_model.get_weights()]):
    np.testing.assert_array_equal(a, b)
  if sampling.kernel_results is not None:
    for a, b in zip(tf.nest.flatten(sampling.kernel_results),
                    tf.nest.flatten(other.kernel_results)):
      np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_killed_in_burnin_in_an_epoch_and_at_its_end(tmp_path):
  arguments = dict(
      kernel=functools.partial(sgmcmc.SGNHT, step_size=0.005, diffusion=20.),
      num_burnin_steps=3, num_steps_between_results=1, start_epoch=1,
      make_model=models.classifier)
  whole = run(5, **arguments)
  arguments['directory'] = tmp_path
  pieces = run(5, kills=[2, 6, 10], **arguments)
  assert_same(pieces, whole)
  assert pieces[-1]['draws'] == [5]  # Of the last epoch's rest.
  again = run(5, **arguments)  # All is done: nothing is made.
  assert again[-1] == {}
  assert_same(again, whole)
  more = {**arguments, 'make_model': eager}
  assert run(6, **more)[-1]['draws'] == [6]
  for changed, message in [
      (dict(num_burnin_steps=4), 'num_burnin_steps was 3 and is 4'),
      (dict(seed=7), 'seed was 0 and is 7'),
      (dict(num_examples=49), 'num_examples was 50 and is 49'),
      (dict(prior=tfd.Normal(0., 2.)), 'prior'),
      (dict(kernel=functools.partial(
          sgmcmc.SGNHT, step_size=0.004, diffusion=20.)), 'step_size'),
      (dict(make_model=lambda: models.classifier(
          loss=keras.losses.SparseCategoricalCrossentropy())), 'likelihood'),
      (dict(make_model=other_model),
       r'trainable weights of shapes .*\[5, 4\]')]:
    with pytest.raises(ValueError, match=message):
      run(5, **{**arguments, **changed})


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('num_examples', [models.NUM_EXAMPLES, None])
def test_the_rest_of_an_epoch_is_not_taken_for_all_the_data(
    num_examples, tmp_path, recwarn):
  data = tf.data.Dataset.from_tensor_slices(models.classes()).batch(20)
  for step in (1, 2, 4, None):
    sampling = models.make_sampling(
        num_examples=num_examples, directory=tmp_path)
    more = [] if step is None else [Kill(sampling, step)]
    try:
      eager().fit(data, epochs=2, verbose=0, callbacks=[sampling, *more])
    except Killed:
      pass
  assert sampling.num_steps == 6
  assert not [w for w in recwarn if 'rows' in str(w.message)]


def other_model():
  model = keras.Sequential([
      keras.Input([4]), keras.layers.Dense(5, use_bias=False),
      keras.layers.Dense(4, use_bias=False)])
  model.compile('sgd', models.classifier().loss)
  return model


@pytest.mark.weekly
@pytest.mark.slow
def test_back_to_the_epoch_with_backup_and_restore(tmp_path):
  for k, order in enumerate([1, -1]):
    folder = tmp_path / str(k)
    begun = []
    seen = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs, begun=begun: begun.append(epoch))
    for step in (4, 8, None):
      model, sampling = eager(), models.make_sampling(
          directory=folder / 'draws')
      backup = keras.callbacks.BackupAndRestore(folder / 'backup')
      try:
        history = model.fit(
            *models.classes(), epochs=3, batch_size=20, shuffle=False,
            verbose=0, callbacks=[
                *[sampling, backup][::order], seen, Kill(sampling, step)])
      except Killed:
        continue
    assert begun == [0, 1, 1, 2, 2]
    assert_same((model, sampling, history), whole_run())


@pytest.mark.slow
def test_a_backup_of_an_earlier_epoch(tmp_path):
  """As after a kill between the chain's commit and the backup."""
  run(2, directory=tmp_path)
  model, sampling = eager(), models.make_sampling(directory=tmp_path)

  class Back(keras.callbacks.Callback):

    def on_train_begin(self, logs=None):
      self.model._initial_epoch = 1

  assert_same((model, sampling, models.fit(
      model, sampling, epochs=3, callbacks=[Back()])), whole_run())


@pytest.mark.slow
def test_two_calls_of_fit(tmp_path):

  def script(step=None, **arguments):
    model, sampling = eager(), models.make_sampling(**arguments)
    for epochs in (2, 1):
      models.fit(
          model, sampling, epochs=epochs, callbacks=[Kill(sampling, step)])
    return model, sampling, None

  whole = script()
  for step in (4, 8):
    with pytest.raises(Killed):
      script(step, directory=tmp_path)
  assert_same(script(directory=tmp_path), whole)


@pytest.mark.slow
def test_time_to_the_next_draw_of_a_kernel_in_continuous_time(tmp_path):
  arguments = dict(
      kernel=functools.partial(
          sgmcmc.StochasticBouncyParticleSampler, max_duration=0.05),
      **models.at_times(0.03), num_burnin_steps=2)
  whole = run(2, **arguments)
  assert len(whole[1].posterior) > 2
  assert_same(run(2, kills=[1, 5], directory=tmp_path, **arguments), whole)


@pytest.mark.slow
def test_a_learning_rate_that_a_callback_set_and_a_seed_of_chance(tmp_path):
  arguments = dict(
      kernel=sgmcmc.SGHMC, learning_rate='optimizer', momentum=0.9,
      callbacks=lambda: [keras.callbacks.LearningRateScheduler(
          lambda epoch, rate: rate * 0.5)])
  whole = run(2, **arguments)
  # In an epoch, and at the end of one, after which the rate is another.
  assert_same(
      run(2, kills=[2, 3], directory=tmp_path / 'a', **arguments), whole)
  arguments['seed'] = None
  run(1, kills=[2], directory=tmp_path / 'b', **arguments)
  a, b = (run(1, directory=tmp_path / 'b', **arguments) for _ in range(2))
  assert_same(a, b)
  np.testing.assert_array_equal(a[1].step_seed(3), b[1].step_seed(3))


@pytest.mark.slow
def test_several_steps_an_execution_and_a_model_built_by_its_data(tmp_path):
  """And data whose number of batches `fit` does not know."""

  def make():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.layers.BatchNormalization(), keras.layers.Dense(3)])
    model.compile(
        keras.optimizers.SGD(0.1), steps_per_execution=2, run_eagerly=True,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model

  x, y = models.classes()
  data = tf.data.Dataset.from_tensor_slices((x, y)).batch(10).filter(
      lambda x, y: True)

  def script(step=None, **arguments):
    model, sampling = make(), models.make_sampling(
        num_steps_between_results=2, start_epoch=1, **arguments)
    history = model.fit(
        data, epochs=3, verbose=0,
        callbacks=[sampling, Kill(sampling, step)])
    return model, sampling, history

  whole = script()
  for step in (2, 9):
    with pytest.raises(Killed):
      script(step, directory=tmp_path)
  assert_same(script(directory=tmp_path), whole)


def test_a_chain_that_failed_is_not_gone_on_with(tmp_path):
  x, y = models.classes()
  x = x.copy()
  x[45] = np.inf
  with pytest.warns(RuntimeWarning, match='at step 3'):
    models.fit(models.classifier(), models.make_sampling(
        directory=tmp_path), x=x, y=y)
  with pytest.raises(ValueError, match='NaN or infinite at step 3'):
    run(directory=tmp_path)
  assert len(sgmcmc.keras.PosteriorSamples.load(
      tmp_path, models.classifier())) == 2
