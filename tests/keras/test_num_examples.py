"""N counted, and held against the data."""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
import tfp_sgmcmc as sgmcmc

N = models.NUM_EXAMPLES


def dataset(batch_size=20):
  return tf.data.Dataset.from_tensor_slices(models.classes()).batch(batch_size)


def of_unknown_length():
  return dataset().filter(lambda x, y: True)


class Batches(keras.utils.PyDataset):
  """The batches of 20 of `models.classes`, from Python."""

  def __len__(self):
    return 3

  def __getitem__(self, index):
    x, y = models.classes()
    rows = slice(20 * index, 20 * (index + 1))
    return x[rows], y[rows]


def log_density(num_examples, data=None, **arguments):
  """The log density's estimate at the last step of a chain that stays."""
  model = models.classifier(run_eagerly=True)
  sampling = sgmcmc.keras.PosteriorSampling(
      sgmcmc.SGLD, num_examples=num_examples, seed=0, learning_rate=1e-20,
      prior=models.tfd.Normal(0., 1.),
      start_epoch=arguments.pop('start_epoch', 0))
  if data is None:
    data, arguments = models.classes()[0], {
        'y': models.classes()[1], 'batch_size': 20, **arguments}
  model.optimizer.learning_rate = 0.
  model.fit(data, verbose=0, shuffle=False, callbacks=[sampling], **{
      'epochs': 2, **arguments})
  return float(sampling.kernel_results.target_log_prob)


@functools.cache
def with_all_examples():
  """What N given gives, however the data come: no weight has moved."""
  return log_density(N)


@pytest.mark.parametrize('start_epoch', [0, 1])
@pytest.mark.parametrize(
    'make', [lambda: None, dataset], ids=['arrays', 'dataset'])
def test_left_out_it_is_counted(make, start_epoch):
  with warnings.catch_warnings():
    warnings.simplefilter('error', UserWarning)
    warnings.filterwarnings('ignore', message='Your input ran out of data')
    counted = log_density(None, make(), start_epoch=start_epoch)
    assert np.isclose(counted, with_all_examples())


def test_validation_takes_nothing_from_the_count():
  x, y = models.classes()
  counted = log_density(
      None, dataset(), start_epoch=1, validation_data=(x[:7], y[:7]))
  assert np.isclose(counted, with_all_examples())


def from_python():
  x, y = models.classes()
  while True:
    yield x[:20], y[:20]


@pytest.mark.parametrize('make', [
    from_python, of_unknown_length, Batches, lambda: dataset().repeat(),
    lambda: tf.data.Dataset.from_generator(
        from_python, output_signature=dataset().element_spec)],
    ids=['generator', 'unknown', 'PyDataset', 'endless', 'from_generator'])
def test_data_that_do_not_say_how_many_are_refused_before_training(make):
  model = models.classifier(run_eagerly=True)
  before = model.get_weights()
  with pytest.raises(ValueError, match='Pass num_examples'):
    model.fit(
        make(), steps_per_epoch=2, epochs=5, verbose=0,
        callbacks=[models.make_sampling(num_examples=None, start_epoch=3)])
  for a, b in zip(model.get_weights(), before):
    np.testing.assert_array_equal(a, b)


def test_a_part_of_the_data_is_no_epoch():
  # Two epochs of one batch each, of three: the rows are those of all three.
  counted = log_density(None, dataset(), steps_per_epoch=1, start_epoch=1)
  assert np.isclose(counted, log_density(
      N, dataset(), steps_per_epoch=1, start_epoch=1))


@pytest.mark.parametrize('num_examples, arguments', [
    (10 * N, {}), (N, dict(validation_split=0.5))],
    ids=['arrays', 'validation_split'])
def test_another_number_than_arrays_have_is_warned_of(num_examples, arguments):
  with pytest.warns(UserWarning, match=f'num_examples is {num_examples}, and '):
    log_density(num_examples, **arguments)


@pytest.mark.parametrize('make, steps', [
    (lambda: dataset().repeat(), 6), (lambda: dataset(30).take(1), None),
    (dataset, 1)], ids=['repeated', 'dropped', 'a part'])
def test_what_may_be_right_is_not_warned_of(make, steps):
  with warnings.catch_warnings():
    warnings.simplefilter('error', UserWarning)
    log_density(N, make(), steps_per_epoch=steps, epochs=2 if steps else 1)


def test_a_batch_of_more_than_all_examples_is_an_error():
  with pytest.raises(ValueError, match='num_examples is 19.*20 rows'):
    log_density(19, dataset().repeat(), steps_per_epoch=2)


def test_a_chain_that_goes_on_says_that_its_data_are_others(tmp_path):
  x, y = models.classes()
  for rows in (N, N // 2):
    sampling = models.make_sampling(num_examples=None, directory=tmp_path)
    with warnings.catch_warnings(record=True) as record:
      warnings.simplefilter('always')
      models.fit(models.classifier(run_eagerly=True), sampling,
                 epochs=2 * N // rows, x=x[:rows], y=y[:rows])
    said = ' '.join(str(r.message) for r in record)
    assert ('began with data of 50 rows, and those of this fit have 25'
            in said) == (rows != N)
