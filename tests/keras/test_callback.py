"""What `fit` with the callback does to models, data and other callbacks."""

import functools

import keras
import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from tests.keras import models
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions


def log_prob_by_hand(model, x, y, sample_weight=None, prior_scale=1.):
  """log prior - N mean loss, in NumPy, at the model's weights."""
  total = sum(
      np.sum(-0.5 * (w / prior_scale)**2 - np.log(prior_scale)
             - 0.5 * np.log(2. * np.pi))
      for w in (v.numpy() for v in model.trainable_variables))
  logits = model.predict(x, verbose=0).astype(np.float64)
  logits -= np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
  values = logits[np.arange(len(y)), y]
  weights = np.ones(len(y)) if sample_weight is None else sample_weight
  return total + models.NUM_EXAMPLES / len(y) * np.sum(weights * values)


def estimate(model, **arguments):
  """The kernel's estimate of the log density on one batch of all data.

  One step of SGLD too small to move: the estimate is at the model's weights.
  """
  kernel = functools.partial(sgmcmc.SGLD, step_size=1e-20)
  sampling = models.make_sampling(
      kernel, **arguments.pop('sampling', {}))
  models.fit(model, sampling, epochs=1, batch_size=100, **arguments)
  return float(sampling.kernel_results.target_log_prob)


class Subclassed(keras.Model):
  """A model whose layers are built at the first call."""

  def __init__(self):
    super().__init__()
    self.hidden = keras.layers.Dense(5, activation='tanh')
    self.logits = keras.layers.Dense(3)

  def call(self, x):
    return self.logits(self.hidden(x))


def functional():
  inputs = keras.Input([4])
  hidden = keras.layers.Dense(5, activation='tanh')(inputs)
  return keras.Model(inputs, keras.layers.Dense(3)(hidden))


def sequential():
  return keras.Sequential([
      keras.layers.Dense(5, activation='tanh'), keras.layers.Dense(3)])


@pytest.mark.parametrize('make_model, jit_compile', [
    pytest.param(functional, False, marks=pytest.mark.slow),
    (Subclassed, True), (sequential, False)])
def test_kinds_of_models(make_model, jit_compile):
  x, y = models.classes()
  model = make_model()
  model.compile(
      'sgd', keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      jit_compile=jit_compile)
  value = estimate(model)
  assert np.isclose(value, log_prob_by_hand(model, x, y), rtol=1e-5)


@pytest.mark.parametrize('how', ['sample', 'class', 'dataset'])
def test_weights_scale_the_likelihood(how):
  x, y = models.classes()
  class_weight = {0: 1., 1: 0.5, 2: 3.}
  weights = np.array([class_weight[k] for k in y], np.float32)
  model = models.classifier(weighted_metrics=['accuracy'])
  if how == 'sample':
    value = estimate(model, x=x, y=y, sample_weight=weights)
  elif how == 'class':
    value = estimate(model, x=x, y=y, class_weight=class_weight)
  else:
    data = tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(50)
    kernel = functools.partial(sgmcmc.SGLD, step_size=1e-20)
    sampling = models.make_sampling(kernel)
    model.fit(data, verbose=0, shuffle=False, callbacks=[sampling])
    value = float(sampling.kernel_results.target_log_prob)
  assert np.isclose(value, log_prob_by_hand(model, x, y, weights), rtol=1e-5)


@pytest.mark.parametrize('reduction', [
    'sum', 'sum_over_batch_size', 'mean_with_sample_weight', None])
def test_any_reduction(reduction):
  x, y = models.classes()
  model = models.classifier(loss=keras.losses.SparseCategoricalCrossentropy(
      from_logits=True, reduction=reduction))
  value = estimate(model)
  assert np.isclose(value, log_prob_by_hand(model, x, y), rtol=1e-5)


def test_added_losses_count_once_in_units_of_the_loss():
  x, y = models.classes()
  inputs = keras.Input([4])
  outputs = keras.layers.Dense(
      3, kernel_regularizer=keras.regularizers.L2(0.03),
      activity_regularizer=keras.regularizers.L1(0.01))(inputs)
  model = keras.Model(inputs, outputs)
  model.compile(
      'sgd', keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  with pytest.warns(UserWarning, match='both count'):
    value = estimate(model)
  expected = log_prob_by_hand(model, x, y)
  kernel = model.trainable_variables[0].numpy()
  outputs = model.predict(x, verbose=0)
  expected -= models.NUM_EXAMPLES * 0.03 * np.sum(kernel**2)
  # Keras takes an activity regulariser's mean over the batch.
  expected -= models.NUM_EXAMPLES * 0.01 * np.sum(np.abs(outputs)) / len(x)
  assert np.isclose(value, expected, rtol=1e-5)


def test_several_inputs_and_outputs():
  rng = np.random.default_rng(0)
  n = models.NUM_EXAMPLES
  a, b = (rng.normal(size=[n, k]).astype(np.float32) for k in (2, 3))
  y = {'mean': rng.normal(size=[n, 2]).astype(np.float32),
       'count': rng.poisson(2., [n, 1]).astype(np.float32)}
  inputs = {'a': keras.Input([2], name='a'), 'b': keras.Input([3], name='b')}
  joined = keras.layers.Concatenate()([inputs['a'], inputs['b']])
  outputs = {
      'mean': keras.layers.Dense(2, name='mean')(joined),
      'count': keras.layers.Dense(1, activation='exponential', name='count')(
          joined)}
  model = keras.Model(inputs, outputs)
  model.compile(
      'sgd', loss={'mean': sgmcmc.keras.GaussianLikelihood(scale=0.5),
                   'count': 'poisson'},
      loss_weights={'mean': 1., 'count': 2.}, metrics={'mean': ['mae']})
  value = estimate(model, x={'a': a, 'b': b}, y=y)
  predicted = model.predict({'a': a, 'b': b}, verbose=0)
  expected = sum(
      np.sum(tfd.Normal(0., 1.).log_prob(v.numpy()))
      for v in model.trainable_variables)
  expected += np.sum(tfd.Normal(predicted['mean'], 0.5).log_prob(y['mean']))
  expected += 2. * np.sum(tfd.Poisson(predicted['count']).log_prob(y['count']))
  assert np.isclose(value, expected, rtol=1e-5)


def test_last_partial_batch_is_scaled_by_its_own_size():
  x, y = models.classes()
  model = models.classifier()
  sampling = models.make_sampling(
      functools.partial(sgmcmc.SGLD, step_size=1e-20))
  models.fit(model, sampling, epochs=1, batch_size=20)  # 20, 20, 10
  value = float(sampling.kernel_results.target_log_prob)
  assert np.isclose(
      value, log_prob_by_hand(model, x[40:], y[40:]), rtol=1e-5)


def chain(x=None, **compile_arguments):
  model = models.classifier(**compile_arguments)
  sampling = models.make_sampling(
      num_burnin_steps=1, num_steps_between_results=1)
  if x is None:
    history = models.fit(model, sampling, epochs=3)
  else:
    history = model.fit(
        x, epochs=3, verbose=0, callbacks=[sampling], shuffle=False)
  return sampling.posterior, history.history


def assert_same_draws(ours, theirs, **tolerance):
  assert ours.steps == theirs.steps
  for a, b in zip(ours.weights.values(), theirs.weights.values()):
    np.testing.assert_allclose(
        a, b, **{'rtol': 1e-4, 'atol': 1e-5, **tolerance})


@pytest.fixture(scope='module')
def reference():
  return chain()


def test_jit_compile_gives_the_same_chain(reference):
  posterior, history = chain(jit_compile=True)
  assert_same_draws(posterior, reference[0])
  np.testing.assert_allclose(
      history['loss'], reference[1]['loss'], rtol=1e-4)


@pytest.mark.parametrize('jit_compile', [
    False, pytest.param(True, marks=pytest.mark.slow)])
def test_steps_per_execution_gives_the_same_draws(reference, jit_compile):
  posterior, _ = chain(steps_per_execution=2, jit_compile=jit_compile)
  assert_same_draws(posterior, reference[0])


def test_eager_gives_the_same_chain(reference):
  assert_same_draws(chain(run_eagerly=True)[0], reference[0])


def test_dataset_gives_the_same_chain(reference):
  x, y = models.classes()
  data = tf.data.Dataset.from_tensor_slices((x, y)).batch(20)
  assert_same_draws(chain(data)[0], reference[0])


def test_data_of_unknown_length_give_the_same_chain(reference):
  x, y = models.classes()

  def batches():
    for start in range(0, len(x), 20):
      yield x[start:start + 20], y[start:start + 20]

  data = tf.data.Dataset.from_generator(
      batches, output_signature=(
          tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int64)))
  assert_same_draws(chain(data)[0], reference[0])


@pytest.mark.parametrize('policy, tolerance', [
    ('mixed_bfloat16', 0.1), ('mixed_float16', 0.02)])
def test_mixed_precision(reference, policy, tolerance):
  keras.config.set_dtype_policy(policy)
  try:
    posterior, _ = chain()
  finally:
    keras.config.set_dtype_policy('float32')
  assert_same_draws(posterior, reference[0], atol=tolerance)


@pytest.mark.parametrize('policy', ['float32', 'mixed_float16'])
def test_masked_outputs_have_no_likelihood(policy):
  rng = np.random.default_rng(0)
  x = rng.integers(0, 3, [models.NUM_EXAMPLES, 6])
  y = rng.integers(0, 3, x.shape)
  keras.utils.set_random_seed(0)
  keras.config.set_dtype_policy(policy)
  try:
    model = keras.Sequential([
        keras.Input([6]), keras.layers.Embedding(3, 2, mask_zero=True),
        keras.layers.Dense(3)])
  finally:
    keras.config.set_dtype_policy('float32')
  model.compile('sgd', models.classifier().loss)
  value = estimate(model, x=x, y=y)
  embedding, kernel, bias = (w.astype(np.float64) for w in model.get_weights())
  log_p = scipy.special.log_softmax(embedding[x] @ kernel + bias, axis=-1)
  log_p = np.take_along_axis(log_p, y[..., np.newaxis], axis=-1)[..., 0]
  expected = np.sum(log_p[x > 0]) + sum(
      np.sum(scipy.stats.norm.logpdf(w)) for w in model.get_weights())
  tolerance = 1e-5 if policy == 'float32' else 1e-3
  assert np.isclose(value, expected, rtol=tolerance)


def test_frozen_layers_stay():
  model = models.classifier()
  model.get_layer('hidden').trainable = False
  model.compile('sgd', model.loss)
  before = model.get_layer('hidden').get_weights()
  sampling = models.make_sampling()
  models.fit(model, sampling)
  for a, b in zip(model.get_layer('hidden').get_weights(), before):
    np.testing.assert_array_equal(a, b)
  assert len(sampling.posterior[0]) == 1


def test_fit_again_goes_on_with_the_chain(reference):
  del reference
  once, twice = models.classifier(), models.classifier()
  long, short = models.make_sampling(), models.make_sampling()
  models.fit(once, long, epochs=4)
  models.fit(twice, short, epochs=2)
  models.fit(twice, short, epochs=2)
  assert short.num_steps == 12
  assert_same_draws(short.posterior, long.posterior)


def test_start_epoch_trains_with_the_optimizer_first():
  trained, sampled = models.classifier(), models.classifier()
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


@pytest.mark.parametrize('error', [
    None, RuntimeError('stop'), KeyboardInterrupt()], ids=str)
def test_model_is_restored(error):
  x, y = models.classes()
  model = models.classifier()
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
  model = models.classifier()
  sampling = models.make_sampling()
  with pytest.raises(RuntimeError):
    models.fit(model, sampling, callbacks=[
        Raise(RuntimeError('stop'), at='on_train_batch_begin')])
  model.fit(x, y, batch_size=20, verbose=0)
  assert int(model.optimizer.iterations) == 3 and sampling.num_steps == 1


def test_fit_again_after_one_that_ended_before_its_batch():
  x, y = models.classes()
  model = models.classifier()
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
      optimizer=keras.optimizers.SGD(0.1, use_ema=True))
  sampling = models.make_sampling(start_epoch=1)
  models.fit(model, sampling, epochs=2)
  for a, b in zip(model.get_weights(), sampling.posterior[-1]):
    np.testing.assert_array_equal(a, b)


def test_optimizer_with_moving_average_that_never_trains():
  model = models.classifier(optimizer=keras.optimizers.Adam(use_ema=True))
  sampling = models.make_sampling()
  models.fit(model, sampling)
  for a, b in zip(model.get_weights(), sampling.posterior[-1]):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('prior, constraint, message', [
    ({'hiden': tfd.Normal(0., 1.), '.*': tfd.Normal(0., 1.)}, None,
     "fit no weight: .'hiden'"),
    (tfd.Normal(tf.zeros([7]), 1.), None, 'has to broadcast'),
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


def test_other_callbacks(tmp_path):
  x, y = models.classes()
  model = models.classifier()
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
  model = models.classifier()
  sampling = models.make_sampling(
      functools.partial(sgmcmc.SGLD, step_size=1e-20))
  history = models.fit(model, sampling, epochs=1).history
  scores = model.evaluate(x, y, verbose=0, return_dict=True)
  assert np.isclose(history['loss'][0], scores['loss'], rtol=1e-5)
  assert np.isclose(history['accuracy'][0], scores['accuracy'])


def test_learning_rate_scheduler_is_followed_or_without_effect(reference):
  scheduler = keras.callbacks.LearningRateScheduler(
      lambda epoch: 0.1 / (epoch + 1))
  sampling = models.make_sampling(
      num_burnin_steps=1, num_steps_between_results=1)
  with pytest.warns(UserWarning, match="learning_rate='optimizer'") as caught:
    models.fit(models.classifier(), sampling, epochs=3, callbacks=[scheduler])
  assert sum('no effect' in str(w.message) for w in caught) == 1
  assert_same_draws(sampling.posterior, reference[0])
  followed, expected = models.classifier(), models.classifier()
  arguments = dict(kernel=sgmcmc.SGHMC, momentum=0.9)
  ours = models.make_sampling(learning_rate='optimizer', **arguments)
  models.fit(followed, ours, epochs=3, callbacks=[scheduler])
  theirs = models.make_sampling(
      learning_rate=lambda step: 0.1 / (
          tf.cast(step // 3, tf.float32) + 1.), **arguments)
  models.fit(expected, theirs, epochs=3)
  assert_same_draws(ours.posterior, theirs.posterior)


def test_cyclical_sampling_draws_late_in_each_cycle():
  schedule = keras.optimizers.schedules.CosineDecayRestarts(0.01, 4)
  sampling = models.make_sampling(
      kernel=sgmcmc.SGHMC, learning_rate=schedule, momentum=0.9,
      keep_draw=sgmcmc.keras.late_in_cycle(schedule, fraction=0.5))
  models.fit(models.classifier(), sampling, epochs=4)
  assert sampling.posterior.steps == [3, 4, 9, 10, 11, 12]  # t_mul = 2


@pytest.mark.parametrize('arguments', [
    dict(num_burnin_steps=6), dict(start_epoch=2),
    dict(keep_draw=lambda step: False)])
def test_draws_out_of_reach_are_an_error_before_the_first_step(arguments):
  model = models.classifier()
  before = [w.copy() for w in model.get_weights()]
  with pytest.raises(ValueError, match='without a draw'):
    models.fit(model, models.make_sampling(**arguments), epochs=2)
  for a, b in zip(model.get_weights(), before):
    np.testing.assert_array_equal(a, b)


def test_max_results():
  sampling = models.make_sampling(max_results=2)
  models.fit(models.classifier(), sampling, epochs=2)
  assert sampling.posterior.steps == [1, 2] and sampling.num_steps == 6


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
  x[45] = np.inf  # In the third batch of an epoch.
  model = models.classifier(**compile_arguments)
  sampling = models.make_sampling(kernel)
  with pytest.warns(RuntimeWarning, match=f'at step 3 of the chain {reason}'):
    history = models.fit(model, sampling, epochs=4, x=x, y=y)
  assert len(history.history['loss']) == 1
  assert sampling.posterior.steps == [1, 2]
  np.testing.assert_array_equal(
      model.get_weights()[0], sampling.posterior[-1][0])


def test_nan_on_a_path_stops_with_the_reason_of_its_kernel():
  x, y = models.classes()
  x = x.copy()
  x[45] = np.inf
  sampling = models.make_sampling(
      functools.partial(
          sgmcmc.StochasticBouncyParticleSampler, refresh_rate=0.3),
      draw_interval=0.01)
  with pytest.warns(RuntimeWarning, match='at step 3 .*raise refresh_rate'):
    models.fit(models.classifier(), sampling, epochs=4, x=x, y=y)
  assert sampling.num_steps == 3


@pytest.mark.parametrize('arguments, message', [
    (dict(kernel=3), 'kernel is 3'),
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


def test_nan_on_the_first_batch_is_an_error():
  x, y = models.classes()
  x = np.where(np.arange(len(x))[:, np.newaxis] == 3, np.nan, x)
  model = models.classifier()
  with pytest.raises(ValueError, match='At the first state'):
    models.fit(model, models.make_sampling(), x=x.astype(np.float32), y=y)


def test_weights_that_training_has_spoilt(recwarn):
  x, y = models.classes()
  x = np.where(np.arange(len(x))[:, np.newaxis] == 3, np.nan, x)
  model = models.classifier()
  sampling = models.make_sampling(start_epoch=1)
  with pytest.raises(ValueError, match="hidden/kernel' has 20 values .* NaN"):
    models.fit(model, sampling, x=x.astype(np.float32), y=y)
  assert not [w for w in recwarn if 'atol' in str(w.message)]


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


def test_sgnht_takes_the_units_of_sgd():
  ours = models.make_sampling(
      kernel=sgmcmc.SGNHT, learning_rate=0.02, momentum=0.9)
  h = (0.02 / models.NUM_EXAMPLES)**0.5
  theirs = models.make_sampling(kernel=functools.partial(
      sgmcmc.SGNHT, step_size=h, diffusion=0.1 / h))
  for sampling in (ours, theirs):
    models.fit(models.classifier(), sampling)
  assert_same_draws(ours.posterior, theirs.posterior)



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


def test_dropout_is_off_and_batch_normalization_fixed():
  model = keras.Sequential([
      keras.Input([4]), keras.layers.BatchNormalization(),
      keras.layers.Dropout(0.9), keras.layers.Dense(3)])
  model.compile('sgd', models.classifier().loss)
  value = estimate(model)
  x, y = models.classes()
  assert np.isclose(value, log_prob_by_hand(model, x, y), rtol=1e-5)
