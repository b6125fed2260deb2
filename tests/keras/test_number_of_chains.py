"""How many chains a `fit` has where it is left to choose."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.keras import test_going_on
from tests.keras import test_more_rows
from tests.keras import test_side_by_side
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import store
from tfp_sgmcmc.keras.fitting import more_rows
from tfp_sgmcmc.keras.fitting import number_of_chains
from tfp_sgmcmc.keras.fitting import starts


def network(*layers, inputs=(5,), optimizer='adam', **arguments):
  keras.utils.set_random_seed(0)
  model = keras.Sequential([
      keras.Input(inputs), *(layers or [keras.layers.Dense(10, 'relu')]),
      keras.layers.Dense(2)])
  model.compile(optimizer, sgmcmc.keras.GaussianLikelihood(), **arguments)
  return model


def chosen(model, num_rows=200, batch_size=32, data=None):
  if data is None:
    data = tf.data.Dataset.from_tensor_slices(
        test_more_rows.table(num_rows)).batch(batch_size)
  iterator = iter(data)
  return number_of_chains.chosen(
      model, iterator.element_spec,
      more_rows.FitData(model, data, num_rows, batch_size),
      tf.constant([0, 1]))


@pytest.mark.parametrize('batch_size', [10, 32, 200])
def test_four_of_a_new_and_small_network_on_a_table(batch_size):
  assert chosen(network(), batch_size=batch_size) == 4
  model = network(keras.layers.Normalization(), keras.layers.Dense(9, 'relu'))
  assert chosen(model, batch_size=batch_size) == 4


def test_as_long_as_they_are_cheap():
  wide, wider = (
      network(keras.layers.Dense(units, 'relu')) for units in (500, 5000))
  assert chosen(wide, num_rows=5000) == 4
  assert chosen(wider, batch_size=10) == 1
  assert chosen(network(keras.layers.Dense(5000), jit_compile=True),
                batch_size=10) == 4


def test_of_a_loss_that_keras_cannot_make_again():
  model = network()
  model.compile('adam', sgmcmc.keras.DistributionLoss(
      lambda outputs: tfp.distributions.Normal(
          outputs[..., :1], 0.1 + tf.nn.softplus(outputs[..., 1:]))))
  assert chosen(model) == 4
  assert model.compiled


def trained():
  model = network()
  model.fit(*test_more_rows.table(40), verbose=0)
  return model


def loaded():
  model = network()
  model.set_weights(trained().get_weights())
  return model


class Plain(test_side_by_side.Subclassed):
  """A model that cannot be made once more."""

  def get_config(self):
    raise NotImplementedError


class OfNothing(keras.Model):
  """A model whose constructor takes no arguments."""

  def __init__(self):
    super().__init__()
    self.first, self.last = keras.layers.Dense(7), keras.layers.Dense(2)

  def call(self, x):
    return self.last(self.first(x))


class OfScale(OfNothing):
  """One whose configuration, by Keras, has the default in any case."""

  def __init__(self, stddev=1.):
    super().__init__()
    self.first.kernel_initializer = keras.initializers.RandomNormal(0., stddev)


class OfLayer(OfNothing):

  def __init__(self, layer):
    keras.Model.__init__(self)
    self.first, self.last = layer, keras.layers.Dense(2)


def of_class(model):
  model.compile('adam', sgmcmc.keras.GaussianLikelihood())
  model(tf.zeros([1, 5]))
  return model


def test_four_of_a_class_that_can_be_made_once_more():
  assert chosen(of_class(OfNothing())) == 4
  assert chosen(of_class(OfScale(0.01))) == 1


def plain():
  return of_class(Plain(2))


def seeded():
  return network(keras.layers.Dense(
      3, kernel_initializer=keras.initializers.GlorotUniform(seed=1)))


@pytest.mark.parametrize('make', [
    trained, loaded, plain, lambda: of_class(OfLayer(keras.layers.Dense(7))),
    lambda: network(optimizer=keras.optimizers.Adam(use_ema=True)),
    lambda: network(run_eagerly=True),
    lambda: network(keras.layers.BatchNormalization())],
    ids=['trained', 'loaded', 'plain', 'of a layer', 'average', 'eager',
         'statistics'])
def test_one_of_others(make):
  assert chosen(make()) == 1


def test_initial_weights_that_are_the_same_each_time():
  """Four are no four where all weights are; one kernel of two is enough."""
  model = keras.Sequential([keras.Input([5]), keras.layers.Dense(
      2, kernel_initializer=keras.initializers.GlorotUniform(seed=1))])
  model.compile('adam', sgmcmc.keras.GaussianLikelihood())
  assert chosen(model) == 1
  assert chosen(seeded()) == 4


def test_one_where_rows_cannot_be_added():
  data = tf.data.Dataset.from_tensor_slices(test_more_rows.table(200))
  assert chosen(network(), data=data.map(lambda x, y: (x, y)).batch(10)) == 1


def fit(epochs=5, data=None, **arguments):
  sampling = sgmcmc.keras.PosteriorSampling(seed=0, **arguments)
  model = network()
  model.fit(*(data or test_more_rows.table(100)), epochs=epochs, batch_size=10,
            verbose=0, callbacks=[sampling])
  return model, sampling


@pytest.mark.weekly
@pytest.mark.slow
def test_in_fit():
  """Each has a start of its own and its draws; a second fit goes on."""
  model, sampling = fit()
  assert sampling.settings['num_chains'] == 4
  posterior = sampling.posterior
  assert posterior.num_chains == 4
  number = len(posterior)
  assert number >= 4 * 12
  firsts = [chain[0][0] for chain in posterior.chains]
  for k in range(4):
    for j in range(k):
      assert not np.allclose(firsts[j], firsts[k], atol=1e-2)
  model.fit(*test_more_rows.table(100), epochs=2, batch_size=10, verbose=0,
            callbacks=[sampling])
  assert sampling.posterior.num_chains == 4
  assert len(sampling.posterior) > number


@pytest.mark.filterwarnings('ignore:The step size and the scales')
@pytest.mark.parametrize('start_epoch', [0, pytest.param(1, marks=[
    pytest.mark.slow, pytest.mark.weekly_after(1)])])
def test_in_a_fit_that_gives_the_model_its_weights(start_epoch):
  """Keras notes the batches' number of rows, where all batches have it."""
  model = keras.Sequential([keras.layers.Dense(5), keras.layers.Dense(2)])
  model.compile('adam', sgmcmc.keras.GaussianLikelihood())
  sampling = sgmcmc.keras.PosteriorSampling(seed=0, start_epoch=start_epoch)
  model.fit(*test_more_rows.table(100), epochs=1 + start_epoch, batch_size=20,
            verbose=0, callbacks=[sampling])
  assert model.layers[0].output.shape == (20, 5)
  assert sampling.settings['num_chains'] == 4


@pytest.mark.filterwarnings('ignore:The step size and the scales')
def test_eager_in_a_fit_that_gives_the_model_its_weights():
  model = keras.Sequential([keras.layers.Dense(5), keras.layers.Dense(2)])
  model.compile('adam', sgmcmc.keras.GaussianLikelihood(), run_eagerly=True)
  sampling = sgmcmc.keras.PosteriorSampling(
      seed=0, start_epoch=0, num_chains=2)
  model.fit(*test_more_rows.table(100), epochs=1, batch_size=20, verbose=0,
            callbacks=[sampling])
  assert sampling.posterior.num_chains == 2
  assert sampling.num_steps == 5


def test_one_with_rows_a_kernel_or_a_rate_of_the_user():
  for arguments in (dict(num_more_rows=0), dict(num_more_rows=7),
                    dict(learning_rate=0.001),
                    dict(learning_rate=0.001, momentum=0.9),
                    dict(kernel=sgmcmc.SGHMC, learning_rate=0.001,
                         momentum=0.9)):
    sampling = sgmcmc.keras.PosteriorSampling(**arguments)
    assert sampling.settings['num_chains'] == 1
  assert sgmcmc.keras.PosteriorSampling().settings['num_chains'] is None


@pytest.mark.weekly
@pytest.mark.slow
def test_each_is_trained_as_it_would_be_alone():
  """Chain 0, which is the model in `fit`, by Adam with whole batches."""
  alone = network()
  found = []
  for model, more in (
      (alone, []),
      (network(), [sgmcmc.keras.PosteriorSampling(seed=0, start_epoch=3)])):
    keras.utils.set_random_seed(1)
    weights = []
    model.fit(*test_more_rows.table(100), epochs=5, batch_size=10, verbose=0,
              callbacks=[*more, keras.callbacks.LambdaCallback(
                  on_epoch_end=lambda *_, model=model, weights=weights: (
                      weights.append(model.get_weights())))])
    found.append(weights)
  for ours, own in zip(found[1][2], found[0][2]):
    np.testing.assert_allclose(ours, own, rtol=1e-4, atol=1e-5)
  assert not np.allclose(found[1][4][0], found[0][4][0], atol=1e-2)


def test_which_starts_are_lost():
  for losses, lost in (
      ([0.4, 1.4e9, 0.5, 8.], [False, True, False, False]),
      ([np.nan, -3., np.inf, -2.], [True, False, True, False]),
      ([500., 2000., 7000., 400.], [False, False, True, False]),
      ([np.nan, np.nan], [False, False])):
    np.testing.assert_array_equal(starts.are_lost(np.array(losses)), lost)


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.parametrize('is_planted', [False, True])
@pytest.mark.filterwarnings('ignore:Training stops')
def test_a_lost_chain_starts_where_the_best_does(
    is_planted, monkeypatch, capsys):
  """Planted: it starts where it is, and takes the others with it."""
  def fresh(*args, right=starts.fresh):
    found = right(*args)
    found[1] = [1e5 * array for array in found[1]]
    return found

  monkeypatch.setattr(starts, 'fresh', fresh)
  monkeypatch.setattr(number_of_chains, 'chosen', lambda *args: 4)
  if is_planted:
    monkeypatch.setattr(starts, 'are_lost', np.isnan)
  sampling = sgmcmc.keras.PosteriorSampling(
      seed=0, start_epoch=0, num_steps_per_batch=1)
  x, y = test_more_rows.table(200)
  history = network().fit(
      x, y, epochs=10, batch_size=10, verbose=2, callbacks=[sampling])
  out = capsys.readouterr().out
  assert ('Training has left chain 2 far off' in out) != is_planted
  assert (history.history['loss'][0] < 1e4) != is_planted
  assert ('A step of each of the 4 chains has 3 of the 10 rows of a batch, and '
          '107 others, drawn from all 200.') in out
  assert 'batch_size=40' not in out
  if not is_planted:
    assert sampling.posterior.evaluate(x, y)['nll'] < 0.


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:The step size and the scales')
def test_goes_on_after_a_kill(tmp_path, monkeypatch):
  """The weights that it goes on with are no initial ones: it stays at four."""
  monkeypatch.setattr(store, 'COMMIT_SECONDS', 0.)
  monkeypatch.setattr(store, '_DURATIONS', 0.)
  arguments = dict(kernel=None, num_burnin_steps=4, num_steps_between_results=1,
                   num_examples=None, start_epoch=1)
  runs = [test_going_on.run(
      4, make_model=lambda: network(inputs=[4]), **arguments, **more)
          for more in (dict(kills=[7], directory=tmp_path), {})]
  assert runs[0][1].settings['num_chains'] == 4
  test_going_on.assert_same(*runs)


@pytest.mark.parametrize('value', ['four', 0, None])
def test_numbers_that_are_refused(value):
  with pytest.raises((ValueError, TypeError), match='num_chains'):
    sgmcmc.keras.PosteriorSampling(num_chains=value)
