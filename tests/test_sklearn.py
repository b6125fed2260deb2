"""Estimators of scikit-learn: its own checks, and what they predict."""

import pickle

import numpy as np
import pandas
import pytest
from scipy import stats
from sklearn.utils import estimator_checks

from tests import marks
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import sklearn
from tfp_sgmcmc.keras import callback
from tfp_sgmcmc.sklearn import BayesianClassifier
from tfp_sgmcmc.sklearn import BayesianRegressor

FEW = dict(
    num_steps=400, epochs=10, random_state=0, sampling={'num_chains': 1})
# With fewer a chain may not have come to rest, or be lost.
ENOUGH = dict(num_steps=1500, epochs=10, random_state=0)


def line(n=60, seed=0):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=[n, 2])
  return x, 1000. + 50. * x[:, 0] + 10. * rng.normal(size=n)


@pytest.fixture
def made(monkeypatch):
  """The callbacks that estimators make."""
  found = []

  class Recorded(callback.PosteriorSampling):

    def __init__(self, **arguments):
      super().__init__(**arguments)
      self.given = arguments
      found.append(self)

  monkeypatch.setattr(callback, 'PosteriorSampling', Recorded)
  return found


@pytest.mark.weekly  # Its docstring's example fits as well.
@pytest.mark.slow
def test_regressor(made):
  x, y = line()
  regressor = BayesianRegressor(**ENOUGH, batch_size=8)
  assert regressor.fit(x, y) is regressor
  # Chains and rows as `fit` chooses them: four, and half of the 60 rows beside
  # those of a batch.
  sampling, = made
  assert sampling.settings['num_chains'] == 4
  results = sampling.kernel_results.inner_results.gradient_estimator_results
  np.testing.assert_allclose(
      results.num_gradients, [sampling.num_steps * (8 + 30)] * 4, rtol=0.01)
  mean, std = regressor.predict(x, return_std=True)
  np.testing.assert_array_equal(mean, regressor.predict(x))
  assert mean.shape == std.shape == y.shape and mean.dtype == np.float64
  assert regressor.score(x, y) > 0.7
  # In units of the targets, as the posterior of scaled ones says.
  posterior = regressor.posterior_
  assert isinstance(posterior, sgmcmc.keras.PosteriorSamples)
  scaled = (x - x.mean(axis=0)) / x.std(axis=0)
  own, own_std = posterior.predict(
      scaled.astype(np.float32), return_std=True)
  np.testing.assert_allclose(
      mean, own[:, 0] * y.std() + y.mean(), rtol=1e-5)
  np.testing.assert_allclose(std, own_std[:, 0] * y.std(), rtol=1e-4)
  # A row's prediction does not depend on which others are there.
  np.testing.assert_array_equal(mean[:3], regressor.predict(x[:3]))
  lower, median, upper = regressor.quantiles(x, [0.05, 0.5, 0.95])
  assert np.all((lower < median) & (median < upper))
  np.testing.assert_array_equal(median, regressor.quantiles(x, 0.5))
  again = pickle.loads(pickle.dumps(regressor))
  np.testing.assert_array_equal(mean, again.predict(x))


@pytest.mark.weekly
@pytest.mark.slow
def test_several_targets():
  x, y = line()
  y = np.stack([y, -y], axis=-1)
  regressor = BayesianRegressor(**ENOUGH).fit(x, y)
  mean, std = regressor.predict(x[:4], return_std=True)
  assert mean.shape == std.shape == (4, 2)
  assert regressor.quantiles(x[:4], [0.5]).shape == (1, 4, 2)


@pytest.mark.weekly
@pytest.mark.slow
def test_classifier():
  x, y = line()
  labels = np.where(y > 1000., 'high', 'low')
  classifier = BayesianClassifier(**FEW).fit(x, labels)
  p = classifier.predict_proba(x)
  assert classifier.classes_.tolist() == ['high', 'low']
  np.testing.assert_allclose(p.sum(axis=1), 1.)
  np.testing.assert_array_equal(
      classifier.predict(x), np.where(p[:, 0] > 0.5, 'high', 'low'))
  assert classifier.score(x, labels) > 0.7
  with pytest.raises(ValueError, match='one class alone'):
    BayesianClassifier(**FEW).fit(x, np.ones(60))


def table(n=300, seed=0):
  """A number and two kinds of categories; they move the target by 3 and 2."""
  rng = np.random.default_rng(seed)
  size, colour = rng.normal(size=n), rng.choice(['red', 'blue'], n)
  rooms = rng.choice([1, 2, 3], n)
  y = size + 3. * (colour == 'red') + 2. * (rooms == 2)
  frame = pandas.DataFrame({
      'colour': colour, 'size': size, 'rooms': pandas.Categorical(rooms)})
  return frame, y + 0.3 * rng.normal(size=n)


@pytest.mark.weekly
@pytest.mark.slow
def test_columns_of_categories():
  x, y = table()
  regressor = BayesianRegressor(**ENOUGH).fit(x[:250], y[:250])
  assert regressor.score(x[250:], y[250:]) > 0.95
  assert regressor.n_features_in_ == 3 and len(regressor.x_mean_) == 6
  mean = regressor.predict(x[250:])
  again = pickle.loads(pickle.dumps(regressor))
  np.testing.assert_array_equal(mean, again.predict(x[250:]))
  # A category that was not seen is none of the others.
  new = x[250:251].assign(colour='green')
  encoded = regressor.encoder_.transform(new)
  np.testing.assert_array_equal(encoded[0, :2], [0., 0.])
  assert np.isfinite(regressor.predict(new)).all()
  for wrong, message in (
      (x[['size', 'colour', 'rooms']], 'feature names'),
      (x.assign(size=np.nan), 'NaN')):
    with pytest.raises(ValueError, match=message):
      regressor.predict(wrong)
  # A frame of numbers, also where they are held as objects.
  numbers = x[['size']].assign(same=x['size'].astype(object))
  regressor.set_params(num_steps=100).fit(numbers, y)
  assert regressor.encoder_ is None and regressor.n_features_in_ == 2


@pytest.mark.weekly
@pytest.mark.slow
def test_the_same_seed_gives_the_same_predictions():
  x, y = line()
  np.testing.assert_array_equal(*(
      BayesianRegressor(num_steps=60, epochs=6, random_state=1).fit(
          x, y).predict(x) for _ in range(2)))


@pytest.mark.weekly
@pytest.mark.slow
def test_many_rows_have_more_steps():
  """40 passes over 6,600 rows: 4,160 steps of 64 rows, in 40 epochs of 104."""
  x, y = line(6600)
  regressor = BayesianRegressor(
      hidden_units=[5], batch_size=64, random_state=0,
      sampling=dict(kernel=sgmcmc.SGLD, learning_rate=1e-5, momentum=None))
  assert regressor.fit(x, y).posterior_.steps[-1] == 4160


@pytest.mark.weekly
@pytest.mark.slow
def test_all_rows_in_each_step(made):
  x, y = line()
  few = dict(num_steps=60, epochs=6, random_state=0, batch_size=None)
  BayesianRegressor(**few).fit(x, y)
  sampling, = made
  assert sampling.settings['kernel'] == 'EnergyErrorStepSizeAdaptation'
  # An epoch of Adam, and half of the rest is burn-in.
  assert sampling.settings['start_epoch'] == 1
  assert sampling.settings['num_burnin_steps'] == 25
  assert sampling.num_steps == 50 and len(sampling.posterior) == 25
  # Two gradients of all rows a step, and one before: none of a minibatch.
  results = sampling.kernel_results.inner_results.gradient_estimator_results
  assert int(results.num_gradients) == 60 * (2 * 50 + 1)
  # As many of each of two chains.
  BayesianRegressor(
      **few, sampling=dict(num_chains=2, num_burnin_steps=10)).fit(x, y)
  results = made[-1].kernel_results.inner_results.gradient_estimator_results
  np.testing.assert_array_equal(results.num_gradients, [60 * (2 * 50 + 1)] * 2)
  assert len(made[-1].posterior) == 80
  # A kernel of one's own is on all rows too.
  BayesianClassifier(
      **few, sampling=dict(
          kernel=sgmcmc.SGLD, learning_rate=1e-5,
          prior=sgmcmc.keras.he_normal())).fit(x, y > 1000.)
  assert made[-1].settings['kernel'] == 'SGLD'
  assert int(made[-1].kernel_results.gradient_estimator_results
             .num_gradients) == 60 * (60 + 1)


@pytest.mark.slow
@pytest.mark.parametrize('is_planted', [
    False, pytest.param(True, marks=pytest.mark.weekly)])
def test_few_rows_for_many_columns(is_planted, monkeypatch):
  """R^2 of new rows, with five seeds .56 to .87; by another prior -1 to .02."""
  if is_planted:
    monkeypatch.setattr(sklearn, '_ROWS_A_COLUMN', 0)
  rng = np.random.default_rng(0)
  x = rng.normal(size=[400, 60])
  y = x[:, :3].sum(axis=1) + 0.2 * rng.normal(size=400)
  regressor = BayesianRegressor(
      num_steps=2000, sampling={'num_chains': 1}, random_state=0)
  regressor.fit(x[:100], y[:100])
  assert (regressor.score(x[100:], y[100:]) > 0.3) != is_planted


@pytest.mark.parametrize('num_rows, num_columns, is_narrow', [
    (99, 10, True), (100, 10, False), (60, 6, False)])
def test_how_many_rows_for_a_column(num_rows, num_columns, is_narrow):
  rng = np.random.default_rng(0)
  x = rng.normal(size=[num_rows, num_columns])
  mean, scale = sklearn._moments(x)
  x = ((x - mean) / scale).astype(np.float32)
  assert is_narrow == ('prior' in BayesianRegressor()._prior(x))
  assert not BayesianClassifier()._prior(x)


def test_a_column_of_categories_is_one():
  x = np.eye(30, dtype=np.float32)
  assert not BayesianRegressor()._prior(x)


def test_a_prior_or_a_kernel_of_one_s_own(made):
  x = np.random.default_rng(0).normal(size=[20, 5])
  for given, is_default in (
      ({}, False), ({'prior': None}, False), ({
          'kernel': sgmcmc.SGLD, 'learning_rate': 1e-5}, True)):
    BayesianRegressor(**{
        **FEW, 'num_steps': 40, 'sampling': {'num_chains': 1, **given}}).fit(
            x, x[:, 0])
    assert is_default == (made[-1].given.get('prior') is None)


def excess(seed=0):
  """NLL of new rows, above that by the density that made them."""
  rng = np.random.default_rng(seed)
  x = rng.uniform(-1., 1., [1200, 1])
  mean, scale = np.sin(3. * x[:, 0]), 0.1 + 0.2 * np.abs(x[:, 0])
  y = mean + scale * rng.normal(size=len(x))
  train, test = slice(200), slice(200, None)
  regressor = BayesianRegressor(
      **{**ENOUGH, 'random_state': seed}, batch_size=None).fit(
          x[train], y[train])
  predicted, std = regressor.predict(x[test], return_std=True)
  return np.mean(
      stats.norm.logpdf(y[test], mean[test], scale[test])
      - stats.norm.logpdf(y[test], predicted, std))


@pytest.mark.weekly
@pytest.mark.slow
def test_prediction_by_all_rows(monkeypatch):
  """Near the density that made the rows; not so with a step too short.

  The excess is .16 with a standard deviation of .05 over seventeen seeds, so
  that the mean of three is above the bound about once in a thousand times; and
  .70 with the short step.
  """
  well = np.mean([excess(seed) for seed in range(3)])
  monkeypatch.setattr(sklearn, '_kernel', lambda target, **arguments: (
      sgmcmc.MicrocanonicalLangevin(target, 1e-4, 10.)))
  assert well < 0.25 < excess()


def test_a_column_of_one_value_has_scale_1():
  """Where the standard deviation is not 0, but the rounding of the mean."""
  x = np.full([1001, 1], 0.1)
  assert np.std(x) > 0.
  assert sklearn._moments(x)[1] == 1.


def test_wrong_arguments():
  x, y = line()
  for arguments, message in (
      (dict(num_steps=0), 'num_steps'),
      (dict(hidden_units=[0]), 'hidden_units'),
      (dict(hidden_units=50), r'\(50,\) for one layer'),
      (dict(batch_size=1.5), 'batch_size')):
    with pytest.raises((ValueError, TypeError), match=message):
      BayesianRegressor(**arguments).fit(x, y)
  dates = pandas.DataFrame(
      {'sold': pandas.date_range('2026-01-01', periods=len(x)), 'x': x[:, 0]})
  with pytest.raises(TypeError, match="column 'sold' holds dates"):
    BayesianRegressor(**FEW).fit(dates, y)


# All of check_estimator passes, in some hundred fits that take six minutes for
# each of the two. These checks need one fit at most.
CHECKS = [
    'check_estimators_unfitted', 'check_no_attributes_set_in_init',
    'check_do_not_raise_errors_in_init_or_set_params',
    'check_estimators_nan_inf', 'check_n_features_in_after_fitting',
    'check_complex_data', 'check_supervised_y_no_nan',
    'check_estimators_empty_data_messages']


@pytest.mark.slow
@pytest.mark.parametrize('make', [
    BayesianRegressor,
    pytest.param(BayesianClassifier, marks=pytest.mark.weekly)])
@pytest.mark.parametrize(
    'name', marks.and_weekly(CHECKS, {'check_estimators_nan_inf'}))
def test_some_of_scikit_learn_s_own_checks(make, name):
  estimator = make(**FEW)
  getattr(estimator_checks, name)(make.__name__, estimator)
