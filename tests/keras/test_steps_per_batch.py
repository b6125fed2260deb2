"""Several steps of the chain on each batch of `fit`."""

import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
from tests.keras import test_going_on
from tests.keras import test_law
from tests.keras import test_more_rows
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import store
from tfp_sgmcmc.keras.draws import draw_times
from tfp_sgmcmc.keras.fitting import more_rows
from tfp_sgmcmc.keras.fitting import steps_per_batch
from tfp_sgmcmc.keras.model import compiled_step

pytestmark = pytest.mark.enough_steps


def fit(data=None, epochs=3, **arguments):
  """A chain on batches of ten of fifty rows."""
  model = models.classifier(
      optimizer='adam', run_eagerly=arguments.pop('run_eagerly', False),
      steps_per_execution=arguments.pop('steps_per_execution', 1))
  sampling = sgmcmc.keras.PosteriorSampling(seed=0, **arguments)
  data = models.classes() if data is None else (data,)
  model.fit(
      *data, epochs=epochs, verbose=0, shuffle=False, callbacks=[sampling],
      batch_size=10 if len(data) == 2 else None)
  return sampling


def given(**arguments):
  return dict(
      kernel=sgmcmc.SGHMC, learning_rate=0.01, momentum=0.9, num_examples=50,
      num_burnin_steps=4, num_steps_between_results=2, **arguments)


def temperatures(sampling):
  """The steps that were judged, and their temperatures."""
  record = sampling._chain._judge._heat
  return record.steps(0), record._since(0)


def assert_same_draws(ours, theirs):
  assert ours.num_steps == theirs.num_steps
  assert ours.posterior.steps == theirs.posterior.steps
  for a, b in zip(
      ours.posterior.weights.values(), theirs.posterior.weights.values()):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('steps_per_execution, run_eagerly', [
    (1, False), pytest.param(1, True, marks=pytest.mark.slow),
    pytest.param(2, False, marks=[pytest.mark.slow, pytest.mark.weekly])])
def test_as_if_each_batch_came_several_times(steps_per_execution, run_eagerly):
  x, y = models.classes()
  repeated = tf.data.Dataset.from_tensor_slices((x, y)).batch(10).flat_map(
      lambda *batch: tf.data.Dataset.from_tensors(batch).repeat(3))
  plain = fit(repeated, run_eagerly=run_eagerly, **given())
  ours = fit(
      steps_per_execution=steps_per_execution, run_eagerly=run_eagerly,
      **given(num_steps_per_batch=3))
  assert ours.num_steps == 3 * 3 * 5
  assert ours.settings['num_steps_per_batch'] == 3
  assert_same_draws(ours, plain)
  # Each step is judged by itself, those too that are made in one program.
  steps, kinetic = temperatures(ours)
  assert steps == list(range(1, 46))
  for a, b in zip((steps, kinetic), temperatures(plain)):
    np.testing.assert_array_equal(a, b)
  with pytest.raises(AssertionError):
    assert_same_draws(ours, fit(**given(num_steps_per_batch=2)))


def test_as_many_at_once_as_end_with_a_draw(monkeypatch):
  numbers, real = [], compiled_step.CompiledStep.on_batch_times
  monkeypatch.setattr(
      compiled_step.CompiledStep, 'on_batch_times',
      lambda self, data, number: numbers.append(number) or real(
          self, data, number))
  sampling = fit(epochs=1, **{**given(num_steps_per_batch=20), **dict(
      num_burnin_steps=39, num_steps_between_results=4)})
  assert sampling.posterior.steps == list(range(40, 101, 5))
  # Never more than 32, and each batch has a program of its own.
  assert numbers == [20, 20, *[5] * 12]


def test_the_next_fit_may_have_other_batches():
  """Of another shape, or with weights of the rows."""
  (x, y), weights = models.classes(), np.ones([50])
  model = models.classifier(optimizer='adam')
  sampling = sgmcmc.keras.PosteriorSampling(
      seed=0, **given(num_steps_per_batch=3))
  for data, arguments in (
      ((x, y), dict(batch_size=10)),
      ((x, y), dict(batch_size=10, sample_weight=weights)),
      ((tf.data.Dataset.from_tensor_slices((x, y)).batch(25, True),), {})):
    model.fit(
        *data, epochs=2, verbose=0, callbacks=[sampling], **arguments)
  # One of the first two epochs is the optimizer's, where there is no kernel.
  assert sampling.num_steps == 3 * (2 * 5 + 2 * 5 + 2 * 2)


def test_an_interrupt_within_a_program_loses_no_count(monkeypatch):
  model = models.classifier(optimizer='adam')
  sampling = sgmcmc.keras.PosteriorSampling(
      seed=0, **given(num_steps_per_batch=3))
  real = compiled_step.CompiledStep.on_batch_times

  def interrupted(self, data, number):
    logs = real(self, data, number)
    if int(logs[-1]['sampling_status'][0]) >= 9:
      raise KeyboardInterrupt
    return logs

  with monkeypatch.context() as patch:
    patch.setattr(compiled_step.CompiledStep, 'on_batch_times', interrupted)
    with pytest.raises(KeyboardInterrupt):
      model.fit(*models.classes(), batch_size=10, verbose=0,
                callbacks=[sampling])
  made = int(sampling.kernel_results.step)
  assert sampling.num_steps < made
  model.fit(*models.classes(), batch_size=10, verbose=0, callbacks=[sampling])
  assert sampling.num_steps == int(sampling.kernel_results.step) == made + 15
  assert not np.any(np.diff(sampling.posterior.steps) < 3)


class OfNumPy(keras.layers.Layer):
  """Twice the inputs, by a function of NumPy, which XLA cannot compile."""

  def call(self, x):
    twice = tf.numpy_function(lambda x: 2 * x, [x], x.dtype)
    return tf.ensure_shape(twice, x.shape)


def weights_by_xla(monkeypatch, by_xla, layers=(), **arguments):
  """After six steps, three a batch; and the programs that ran."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=[55, 3])
  monkeypatch.setattr(steps_per_batch, 'chosen', lambda *_: 3)
  monkeypatch.setattr(
      steps_per_batch, 'is_worth_compiling', lambda *_: by_xla)
  keras.utils.set_random_seed(0)
  model = keras.Sequential([
      keras.Input([3]), *layers, keras.layers.Dense(4), keras.layers.Dense(2)])
  model.compile(keras.optimizers.SGD(0.01), sgmcmc.keras.GaussianLikelihood())
  sampling = sgmcmc.keras.PosteriorSampling(
      **dict(seed=0, start_epoch=0, **arguments))
  with pytest.warns(UserWarning, match='in burn-in, which has'):
    model.fit(x, x[:, :1], epochs=1, batch_size=28, verbose=0,
              callbacks=[sampling])
  assert sampling.num_steps == 6
  return np.concatenate([w.ravel() for w in model.get_weights()]), (
      sampling._chain._program.compiled)


def test_xla_compiles_the_steps_of_several_chains(monkeypatch):
  """The chains are the same, up to rounding.

  By 13 seeds they differ by 1.8e-7 at most; by 2e-4 or more with other rows,
  the planted error (five seeds).
  """
  plain, by_xla = (
      weights_by_xla(monkeypatch, by_xla) for by_xla in (False, True))
  assert plain[1]._repeated_by_xla is None
  assert by_xla[1]._repeated_by_xla is not None
  np.testing.assert_allclose(by_xla[0], plain[0], rtol=0., atol=1e-5)
  other, _ = weights_by_xla(monkeypatch, True)
  np.testing.assert_array_equal(other, by_xla[0])
  # A step of other rows is another step.
  monkeypatch.setattr(more_rows, '_LEAST_BATCHES', 1)
  with pytest.raises(AssertionError):
    np.testing.assert_allclose(
        weights_by_xla(monkeypatch, True)[0], plain[0], rtol=0., atol=1e-5)
  alone = weights_by_xla(monkeypatch, True, num_chains=1)
  assert alone[1]._repeated_by_xla is None


def test_what_xla_cannot_compile_runs_without(monkeypatch):
  plain, by_xla = (
      weights_by_xla(monkeypatch, by_xla, [OfNumPy()], num_chains=2)
      for by_xla in (False, True))
  assert by_xla[1]._repeated_by_xla is None
  np.testing.assert_array_equal(by_xla[0], plain[0])


def test_batches_of_all_sizes_have_one_program(monkeypatch):
  """XLA compiles one for each size, and the last batch has another."""
  shapes, real = [], compiled_step.CompiledStep.on_batch_times
  monkeypatch.setattr(
      compiled_step.CompiledStep, 'on_batch_times',
      lambda self, data, number: shapes.append(
          [leaf.shape[0] for leaf in data]) or real(self, data, number))
  weights_by_xla(monkeypatch, False)
  assert shapes and all(shape == [1, 1] for shape in shapes)


def test_it_stops_at_the_step_that_is_lost():
  """Though steps of one program come after it."""
  def learning_rate(step):
    return tf.where(step < 5, 0.01, 1e38)

  def lost(**arguments):
    with pytest.warns(RuntimeWarning) as warned:
      sampling = fit(**{**given(), 'learning_rate': learning_rate}, **arguments)
    said = [
        found for w in warned
        if (found := re.search('at step [0-9]+ of the chain', str(w.message)))]
    return sampling.num_steps, [match.group() for match in said]

  x, y = models.classes()
  repeated = tf.data.Dataset.from_tensor_slices((x, y)).batch(10).flat_map(
      lambda *batch: tf.data.Dataset.from_tensors(batch).repeat(20))
  number, said = lost(num_steps_per_batch=20)
  assert 1 < number < 16 and said == [f'at step {number} of the chain']
  assert (number, said) == lost(data=repeated)


class Batches(keras.callbacks.Callback):
  """Counts the batches that `fit` says have ended."""
  number = 0

  def on_train_batch_end(self, batch, logs=None):
    assert np.isfinite(logs['loss'])
    self.number += 1


def drawing(
    monkeypatch, at_once, number, callbacks=(), spe=1, epochs=2, **arguments):
  """A chain whose steps draw their rows, and how many its programs make.

  It has 12 batches an epoch, the last one of five rows.
  """
  numbers, real = [], compiled_step.CompiledStep.on_batch_times
  model = models.classifier(optimizer='adam', steps_per_execution=spe)
  sampling = sgmcmc.keras.PosteriorSampling(
      start_epoch=0, **{**dict(seed=0, num_chains=1), **arguments})
  with monkeypatch.context() as patch:
    patch.setattr(compiled_step, 'MOST_AT_ONCE', at_once)
    patch.setattr(steps_per_batch, 'chosen', lambda *_: number)
    patch.setattr(
        compiled_step.CompiledStep, 'on_batch_times',
        lambda self, data, number: numbers.append(number) or real(
            self, data, number))
    model.fit(*many_rows(), epochs=epochs, batch_size=10, verbose=0,
              callbacks=[sampling, *callbacks])
  return sampling, numbers


def many_rows():
  return tuple(np.tile(part, [4, *[1] * (part.ndim - 1)])[:115]
               for part in models.classes())


@pytest.mark.parametrize('number, spe, expected', [
    (1, 1, [5, 5, 2] * 2), (2, 1, [4] * 12), (7, 1, [5, 2] * 24),
    (1, 2, [4] * 6), (1, 3, [3] * 8), (1, 7, [5, 2, 5] * 2),
    (2, 4, [5, 3] * 6)])
def test_one_program_makes_the_steps_of_several_batches(
    monkeypatch, number, spe, expected):
  """Where no step takes rows of them; up to the epoch's end. None is lost."""
  monkeypatch.setattr(draw_times.DrawTimes, 'is_due', lambda *_: False)
  monkeypatch.setattr(
      draw_times.DrawTimes, 'at_once', lambda _, step, most, *__: most)
  batches = Batches()
  with pytest.warns(UserWarning, match='without a draw'):
    sampling, numbers = drawing(monkeypatch, 5, number, [batches], spe)
  assert numbers == expected
  assert sampling.num_steps == 2 * 12 * number
  assert batches.number >= 2 * (12 // spe)


@pytest.mark.slow
@pytest.mark.parametrize('number', [1, 3])
def test_the_chain_is_the_same_in_programs_of_any_length(monkeypatch, number):
  alone, alone_numbers = drawing(monkeypatch, 1, number)
  several, numbers = drawing(monkeypatch, 32, number)
  assert max(alone_numbers) == 1 < max(numbers)
  assert_same_draws(several, alone)
  for a, b in zip(temperatures(several), temperatures(alone)):
    np.testing.assert_array_equal(a, b)
  # Other rows are another chain.
  monkeypatch.setattr(more_rows, '_PART', 3)
  other, _ = drawing(monkeypatch, 32, number)
  with pytest.raises(AssertionError):
    assert_same_draws(other, alone)


@pytest.mark.slow
@pytest.mark.parametrize('num_chains', [1, 2])
def test_killed_between_the_batches_whose_steps_are_made(
    monkeypatch, tmp_path, num_chains):
  """The directory has their steps: they are not made once more."""
  monkeypatch.setattr(store, 'COMMIT_SECONDS', 0.)
  monkeypatch.setattr(store, '_DURATIONS', 0.)
  arguments = dict(number=1, at_once=5, num_chains=num_chains)
  whole, _ = drawing(monkeypatch, **arguments)

  arguments['directory'] = tmp_path
  with pytest.raises(test_going_on.Killed):
    drawing(monkeypatch, callbacks=[KilledAt(6)], **arguments)
  # That rows are drawn is the chain's, whatever is given now.
  pieces, _ = drawing(monkeypatch, num_steps_per_batch=1, **arguments)
  assert_same_draws(pieces, whole)


class KilledAt(keras.callbacks.Callback):
  """Ends `fit` after a batch."""

  def __init__(self, batch):
    super().__init__()
    self.batch = batch

  def on_train_batch_end(self, batch, logs=None):
    if batch == self.batch:
      raise test_going_on.Killed


@pytest.mark.slow
def test_an_epoch_whose_steps_were_made_before_a_kill_has_logs(
    monkeypatch, tmp_path):
  monkeypatch.setattr(store, 'COMMIT_SECONDS', 0.)
  monkeypatch.setattr(store, '_DURATIONS', 0.)
  whole, _ = drawing(monkeypatch, 32, 1)
  with pytest.raises(test_going_on.Killed):
    drawing(monkeypatch, 32, 1, [KilledAt(6)], directory=tmp_path)
  pieces, _ = drawing(monkeypatch, 32, 1, directory=tmp_path)
  wanted, found = (each.model.history.history for each in (whole, pieces))
  assert found == wanted and len(wanted['loss']) == 2


def test_a_fit_after_an_interrupt_makes_all_its_steps(monkeypatch):
  """No batch of it counts as one whose steps were made in the fit before."""
  sampling, _ = drawing(monkeypatch, 32, 1, epochs=1)
  fit_more = functools.partial(sampling.model.fit, *many_rows(), verbose=0)
  with pytest.raises(test_going_on.Killed):
    fit_more(batch_size=5, callbacks=[sampling, KilledAt(2)])
  assert sampling.num_steps == 12 + 23
  fit_more(batch_size=25, epochs=3, callbacks=[sampling])
  assert sampling.num_steps == 12 + 23 + 3 * 5


def test_each_batch_has_the_rate_that_a_callback_sets(monkeypatch):
  class Rate(keras.callbacks.Callback):
    moves, before = [], None

    def on_train_batch_begin(self, batch, logs=None):
      self.before = self.model.get_weights()[0]
      self.model.optimizer.learning_rate = 1e-3 if batch < 6 else 0.

    def on_train_batch_end(self, batch, logs=None):
      self.moves.append(
          np.max(np.abs(self.model.get_weights()[0] - self.before)))

  rate = Rate()
  drawing(monkeypatch, 32, 2, [rate], epochs=1, kernel=sgmcmc.SGLD,
          learning_rate='optimizer', num_steps_per_batch=2, num_more_rows=20,
          num_burnin_steps=1)
  assert min(rate.moves[:6]) > 0. == max(rate.moves[6:])


@pytest.mark.parametrize('number, worth', [(1, 24), (1, 25), (2, 48), (2, 49)])
def test_xla_compiles_where_enough_steps_are_to_come(
    monkeypatch, number, worth):
  """Of all batches; also with one step for each."""
  monkeypatch.setattr(steps_per_batch, '_WORTH_COMPILING', worth)
  sampling, _ = drawing(monkeypatch, 32, number, num_chains=2)
  program = sampling._chain._program.compiled
  assert (program._repeated_by_xla is not None) == (worth == 24 * number)


@pytest.mark.slow
def test_a_short_fit_of_a_table_makes_enough():
  sampling = fit(num_chains=1)
  # Of three epochs one is the optimizer's: 10 batches sample.
  assert sampling.settings['num_steps_per_batch'] == 30
  assert sampling.num_steps == 30 * 10
  assert sampling.settings['num_burnin_steps'] == 100
  assert len(sampling.posterior) == 34
  assert sampling.kernel_results.num_late_returns == 0


def test_few_steps_are_not_worth_compiling():
  assert not steps_per_batch.is_worth_compiling(1500)
  assert steps_per_batch.is_worth_compiling(2500)


def test_rows_in_place_leave_noise():
  numbers = functools.partial(more_rows.number_in_place, 'auto')
  assert numbers(more_rows.Number(2016), 32, 10_000) == 32
  assert numbers(more_rows.Number(100), 50, 200) == 50
  assert numbers(more_rows.Number(138), 8, 160) == 1
  assert more_rows.number_in_place(138, more_rows.Number(138), 30, 160) == 22


@pytest.mark.parametrize('products, num_rows, num_examples, expected', [
    (2**17, 32, 10_000, 128), (2**15, 32, 10_000, 256), (2**15, 32, 300, 150),
    (2**20, 32, 10_000, 32), (2**30, 32, 10_000, 32), (None, 32, 10_000, 32)])
def test_more_rows_come_in_place_where_there_are_none_beside(
    products, num_rows, num_examples, expected):
  number = more_rows.Number(0, products)
  assert more_rows.number_in_place(
      'auto', number, num_rows, num_examples) == expected
  # Who asks for none has none.
  assert more_rows.number_in_place(0, number, num_rows, num_examples) == 32


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('arguments', [
    dict(num_burnin_steps=2), dict(num_steps_between_results=1),
    dict(temperature=lambda step: 1.), dict(num_more_rows=20),
    dict(num_more_rows=0),
    dict(num_steps_between_results=sgmcmc.keras.DrawSchedule(
        keep_draw=lambda step: True))])
@pytest.mark.filterwarnings('ignore:The step size and the scales')
def test_one_step_where_steps_are_counted_or_batches_alone(arguments):
  sampling = fit(epochs=6, num_chains=1, **arguments)
  assert sampling.settings['num_steps_per_batch'] == 1
  assert sampling.num_steps == 25


def noisy(x, y):
  """Other rows in each pass."""
  return x + 0.01 * tf.random.normal(tf.shape(x), dtype=x.dtype), y


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:The step size and the scales')
def test_data_without_rows_have_one():
  rows = tf.data.Dataset.from_tensor_slices(models.classes())
  sampling = fit(rows.map(noisy).batch(10), epochs=6)
  assert sampling.settings['num_steps_per_batch'] == 1


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:The step size and the scales')
def test_eager_steps_are_one_a_batch():
  sampling = fit(epochs=6, run_eagerly=True)
  assert sampling.settings['num_steps_per_batch'] == 1
  assert sampling.num_steps == 25


@pytest.mark.weekly
@pytest.mark.slow
def test_a_short_fit_of_small_images_makes_several():
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=[60, 4, 4, 1]), rng.normal(size=[60, 1])
  model = keras.Sequential([
      keras.Input([4, 4, 1]), keras.layers.Conv2D(3, 3),
      keras.layers.BatchNormalization(), keras.layers.ReLU(),
      keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)])
  model.compile('adam', sgmcmc.keras.GaussianLikelihood())
  sampling = sgmcmc.keras.PosteriorSampling(seed=0)
  model.fit(x, y, epochs=3, batch_size=10, verbose=0, callbacks=[sampling])
  assert sampling.settings['num_chains'] == 1
  assert sampling.settings['num_steps_per_batch'] == 30
  assert sampling.num_steps == 30 * 12
  # Half of all, and as many as in a batch.
  np.testing.assert_allclose(test_more_rows.num_gradients(sampling), 40.)


@pytest.mark.slow
def test_where_rows_cost_more_they_come_in_the_place_of_the_batchs(monkeypatch):
  monkeypatch.setattr(more_rows, '_MOST_PRODUCTS', 100)
  for most, num_rows in ((2**24, 25.), (100, 10.)):
    monkeypatch.setattr(more_rows, '_MOST_PRODUCTS_IN_PLACE', most)
    sampling = fit()
    assert sampling.settings['num_chains'] == 1
    assert sampling.settings['num_steps_per_batch'] == 30
    np.testing.assert_allclose(
        test_more_rows.num_gradients(sampling), num_rows)
  # And not where that would be too long a fit.
  monkeypatch.setattr(steps_per_batch, '_PRODUCTS_OF_ENOUGH', 100)
  with pytest.warns(UserWarning, match='in burn-in, which has'):
    sampling = fit()
  assert sampling.settings['num_steps_per_batch'] == 1
  assert sampling._chain._chains.more_rows is None


@pytest.mark.parametrize('value, error', [
    (0, ValueError), ('many', ValueError), (2.5, TypeError), (None, TypeError)])
def test_numbers_that_are_refused(value, error):
  with pytest.raises(error, match='num_steps_per_batch'):
    sgmcmc.keras.PosteriorSampling(num_steps_per_batch=value)


def test_draws_that_cannot_be_reached_count_them():
  assert len(fit(epochs=1, **given(num_steps_per_batch=2)).posterior) == 2
  with pytest.raises(ValueError, match='makes 5 step'):
    fit(epochs=1, **{**given(), 'num_burnin_steps': 9})


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.parametrize('arguments', [
    dict(num_chains=2), dict(num_steps_per_batch=3)])
def test_goes_on_after_kills(tmp_path, monkeypatch, arguments):
  monkeypatch.setattr(store, 'COMMIT_SECONDS', 0.)
  monkeypatch.setattr(store, '_DURATIONS', 0.)
  by_xla = 'num_chains' in arguments
  monkeypatch.setattr(
      steps_per_batch, 'is_worth_compiling', lambda *_: by_xla)
  if by_xla:
    arguments = dict(kernel=None, **arguments)
  run = functools.partial(
      test_going_on.run, 4, make_model=models.classifier, **arguments)
  whole = run()
  number = whole[1].settings['num_steps_per_batch']
  assert number > 1
  pieces = run(kills=[7 * number], directory=tmp_path)
  assert pieces[1].settings['num_steps_per_batch'] == number
  for _, sampling, _ in (pieces, whole):
    compiled = sampling._chain._program.compiled
    assert (compiled._repeated_by_xla is not None) == by_xla
  test_going_on.assert_same(pieces, whole)


@pytest.mark.weekly
@pytest.mark.slow
def test_the_next_chain_takes_over_the_compiled_step():
  model = models.classifier(optimizer='adam')
  weights, made = model.get_weights(), []
  for _ in range(2):
    model.set_weights(weights)
    sampling = sgmcmc.keras.PosteriorSampling(
        seed=0, num_chains=1, start_epoch=0)
    model.fit(
        *models.classes(), epochs=2, batch_size=10, verbose=0, shuffle=False,
        callbacks=[sampling])
    made.append(sampling)
  first, second = (each._chain._program.compiled for each in made)
  assert first is second
  assert made[1].settings['num_steps_per_batch'] == 30
  assert_same_draws(*made)


@pytest.mark.weekly
@pytest.mark.slow
def test_a_directory_of_another_number_is_refused(tmp_path):
  fit(num_chains=1, directory=tmp_path)
  with pytest.raises(ValueError, match='num_steps_per_batch is 1, and .* 30:'):
    fit(num_chains=1, directory=tmp_path, num_steps_per_batch=1)
  assert len(fit(num_chains=1, directory=tmp_path).posterior) == 34


@pytest.mark.slow
def test_data_without_rows_in_between_leave_the_number():
  sampling = fit(num_chains=1)
  x, y = models.classes()
  batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)
  for data, number in ((batches.map(noisy), 1), (batches, 30)):
    before = sampling.num_steps
    sampling.model.fit(data, epochs=1, verbose=0, callbacks=[sampling])
    assert sampling.num_steps - before == 5 * number
    assert sampling.settings['num_steps_per_batch'] == number


def errors_of_regressions():
  """Those of `test_more_rows`, of chains with a quarter of the rows a batch."""
  return test_more_rows.errors(test_more_rows.coefficients(
      batch_size=test_law.NUM_EXAMPLES // 4, epochs=75, num_steps_per_batch=30))


@pytest.mark.slow
def test_regressions_have_the_exact_posterior():
  of_means, of_sds = errors_of_regressions()
  assert of_means < 0.45 and of_sds < 0.15


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:The chain is hotter')
def test_planted_steps_in_a_row_with_one_batch_are_seen(monkeypatch):
  """The batch, a third of a step's rows, stays for thirty steps."""
  monkeypatch.setattr(
      more_rows.MoreRows, 'num_in_place', property(
          lambda self: 0, lambda self, number: None), raising=False)
  _, of_sds = errors_of_regressions()
  assert of_sds > 0.15  # With five seeds 0.19 to 0.29.
