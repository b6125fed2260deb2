"""The swap of a model's train function, and its restoration."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
from tfp_sgmcmc.keras.fitting import step as step_lib
from tfp_sgmcmc.keras.model import compiled_step
from tfp_sgmcmc.keras.model import train_function


def swapped(execute):
  """A model in the midst of a `fit`, and a train function swapped in."""
  model = models.classifier(run_eagerly=True)
  model.make_train_function()
  own = model.train_function
  function = train_function.TrainFunction(model, execute)
  model.history = object()  # Each fit has one of its own.
  function.begin_fit()
  function.swap_in()
  assert model.train_function is not own
  return model, own, function


def test_an_execution_runs_the_step_and_takes_itself_out():
  x, y = models.classes()

  def execute(iterator):
    step = compiled_step.CompiledStep(
        model, lambda data: {'rows': tf.shape(data[0])[0]})
    assert model.train_function is own and 'train_step' not in vars(model)
    return step.on_batch(next(iterator))

  model, own, _ = swapped(execute)
  logs = model.train_function(iter([(x[:7], y[:7])]))
  assert int(dict(logs)['rows']) == 7
  assert model.train_function is own and int(model.optimizer.iterations) == 0


@pytest.mark.parametrize('error', [
    RuntimeError('stop'), KeyboardInterrupt(), StopIteration()], ids=repr)
def test_an_exception_leaves_the_model_its_own(error):

  def execute(iterator):
    assert model.train_function is own
    raise error

  model, own, _ = swapped(execute)
  with pytest.raises(type(error)):
    model.train_function(iter([]))
  assert model.train_function is own


def test_put_back_where_no_execution_came():
  model, own, function = swapped(None)
  function.put_back()
  assert model.train_function is own
  function.put_back()
  assert model.train_function is own


def test_one_left_behind_runs_the_models_own():
  x, y = models.classes()
  model, own, _ = swapped(None)
  model.history = object()
  model.train_function(iter([(x, y)]))
  assert model.train_function is own and int(model.optimizer.iterations) == 1


def test_stale_after_compile():
  model, _, function = swapped(None)
  assert not function.is_stale()  # And puts back what was left behind.
  step = compiled_step.CompiledStep(model, lambda data: {})
  assert not step.is_stale()
  model.compile('sgd', model.loss)
  model.make_train_function()
  assert function.is_stale() and step.is_stale()


@pytest.mark.slow
def test_a_step_that_takes_its_batch_itself_is_the_same(monkeypatch):
  """Bit for bit: which steps do depends on where a process was begun."""
  def draws():
    sampling = models.make_sampling()
    models.fit(models.classifier(), sampling, epochs=2)
    return list(sampling.posterior.weights.values())

  given = draws()
  monkeypatch.setattr(compiled_step, 'STEPS_A_WEIGHT', 1)
  for ours, theirs in zip(given, draws()):
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('jit_compile', [False, True])
def test_xla_compiles_a_step_once(monkeypatch, jit_compile):
  """It would compile the program that takes its batch itself once more."""
  monkeypatch.setattr(compiled_step, 'STEPS_A_WEIGHT', 1)
  with models.made_by(compiled_step, 'CompiledStep') as made:
    models.fit(models.classifier(jit_compile=jit_compile),
               models.make_sampling(), epochs=2)
  traced = made[-1]._on_next.experimental_get_tracing_count()
  assert traced == (0 if jit_compile else 1)


def test_many_chains_in_one_program_are_not_warned_of(caplog):
  """TensorFlow warns of tracing after five calls that trace."""
  with models.made_by(step_lib, 'SamplingStep') as made:
    models.fit(models.classifier(), models.make_sampling(), epochs=1)
  x, y = models.classes()
  for _ in range(6):
    made[-1].bootstrap((tf.constant(x), tf.constant(y)))
  assert 'bootstrap' not in caplog.text


def test_several_steps_on_one_batch():
  model = models.classifier()
  model.make_train_function()
  count, traces = tf.Variable(0), []

  def train_step(data):
    traces.append(data)
    number = tf.identity(count.assign_add(1))
    return {'rows': tf.shape(data[0])[0], 'status': (
        number, tf.cast(number, tf.float32) * tf.ones([2]))}

  step = compiled_step.CompiledStep(model, train_step)
  x, y = map(tf.constant, models.classes())
  step.trace(tuple(map(tf.TensorSpec.from_tensor, (x, y))))
  logs = step.on_batch_times((x, y), 3) + step.on_batch_times((x, y), 1)
  assert [int(log['status'][0]) for log in logs] == [1, 2, 3, 4]
  np.testing.assert_array_equal(logs[2]['status'][1], [3., 3.])
  assert [int(log['rows']) for log in logs] == [50] * 4
  # One trace for the shape, whatever the number of steps.
  assert len(traces) == 1
