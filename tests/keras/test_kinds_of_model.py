"""The kinds of model of Keras' own code examples, each in a real `fit`.

What an example imports from elsewhere, and its data, are made up here, small;
what it does with Keras is as it does it: the layers, the way in which data
come, the callbacks and arguments of `fit`.
"""

from typing import Any
from typing import NamedTuple
import warnings

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests import marks
import tfp_sgmcmc as sgmcmc

pytestmark = pytest.mark.slow  # Nearly all of it is tracing.

tfd = tfp.distributions

N, BATCH = 48, 16
EPOCHS, START = 6, 4


class Kind(NamedTuple):
  """A compiled model and its data.

  Attributes:
    model: Compiled model.
    data: What `fit` takes: `(x, y)`, or a dataset or `PyDataset` alone.
    inputs: Some inputs as arrays; None for those of `data`.
    fit: Further arguments of `fit`.
    mean: From the model's outputs to the mean of the targets.
    sampling: Further arguments of `PosteriorSampling`.
    warning: What a warning is to say, None where none is due.
    tolerance: Of predictions.
  """
  model: keras.Model
  data: Any
  inputs: Any = None
  fit: Any = {}
  mean: Any = lambda outputs: outputs
  sampling: Any = {}
  warning: str | None = None
  tolerance: float = 1e-5


def compiled(model, loss='sparse_categorical_crossentropy', **arguments):
  arguments.setdefault('optimizer', keras.optimizers.Adam(0.02))
  model.compile(loss=loss, **arguments)
  return model


def features(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=[N, *shape]).astype(np.float32)


def tokens(length=6, size=8, seed=0):
  return np.random.default_rng(seed).integers(1, size, [N, length])


def images(num_classes=3):
  """Images whose class is the column that is bright."""
  x = 0.3 * features(6, 6, 1)
  y = np.arange(N) % num_classes
  x[np.arange(N), :, 2 * y] += 1.
  return x, y


def convolutional():
  """vision/mnist_convnet."""
  x, y = images()
  model = keras.Sequential([
      keras.Input([6, 6, 1]),
      layers.Conv2D(4, 3, activation='relu'), layers.MaxPooling2D(2),
      layers.Flatten(), layers.Dropout(0.5),
      layers.Dense(3, activation='softmax')])
  return Kind(
      compiled(model, 'categorical_crossentropy', metrics=['accuracy']),
      (x, keras.utils.to_categorical(y)))


def recurrent():
  """nlp/bidirectional_lstm_imdb, in one direction."""
  x = tokens()
  x[:24, 4:] = 0  # Padded, and masked.
  y = (x[:, 0] > 4).astype(np.int64)
  inputs = keras.Input([None], dtype='int32')
  hidden = layers.Embedding(8, 4, mask_zero=True)(inputs)
  hidden = layers.LSTM(3)(hidden)
  outputs = layers.Dense(1, activation='sigmoid')(hidden)
  return Kind(
      compiled(keras.Model(inputs, outputs), 'binary_crossentropy',
               metrics=['accuracy']), (x, y))


class TransformerBlock(layers.Layer):
  """Of nlp/text_classification_with_transformer."""

  def __init__(self, size, rate=0.1):
    super().__init__()
    self.attention = layers.MultiHeadAttention(2, size)
    self.network = keras.Sequential(
        [layers.Dense(4, activation='relu'), layers.Dense(size)])
    self.norm = layers.LayerNormalization(epsilon=1e-6)
    self.dropout = layers.Dropout(rate)

  def call(self, x):
    x = self.norm(x + self.dropout(self.attention(x, x)))
    return x + self.network(x)


class TokenAndPosition(layers.Layer):
  """Of nlp/text_classification_with_transformer."""

  def __init__(self, length, size):
    super().__init__()
    self.tokens = layers.Embedding(8, size)
    self.positions = layers.Embedding(length, size)

  def call(self, x):
    positions = keras.ops.arange(0, keras.ops.shape(x)[-1])
    return self.tokens(x) + self.positions(positions)


def transformer():
  """nlp/text_classification_with_transformer."""
  x = tokens()
  inputs = keras.Input([6])
  hidden = TransformerBlock(4)(TokenAndPosition(6, 4)(inputs))
  hidden = layers.Dropout(0.1)(layers.GlobalAveragePooling1D()(hidden))
  outputs = layers.Dense(2, activation='softmax')(hidden)
  return Kind(
      compiled(keras.Model(inputs, outputs), metrics=['accuracy']),
      (x, (x.mean(axis=1) > 4).astype(np.int64)))


def fully_convolutional(tmp_path):
  """timeseries/timeseries_classification_from_scratch."""
  x = features(12, 1)
  y = np.arange(N) % 2
  x[:, :, 0] += np.where(y, np.linspace(-2, 2, 12)[:, np.newaxis], 0.).T
  inputs = keras.Input([12, 1])
  hidden = layers.Conv1D(4, 3, padding='same')(inputs)
  hidden = layers.ReLU()(layers.BatchNormalization()(hidden))
  outputs = layers.Dense(2, activation='softmax')(
      layers.GlobalAveragePooling1D()(hidden))
  callbacks = [
      keras.callbacks.ModelCheckpoint(
          str(tmp_path / 'best.keras'), save_best_only=True,
          monitor='val_loss'),
      keras.callbacks.ReduceLROnPlateau(
          monitor='val_loss', factor=0.5, patience=20, min_lr=0.0001),
      keras.callbacks.EarlyStopping(monitor='val_loss', patience=50)]
  return Kind(
      compiled(keras.Model(inputs, outputs),
               metrics=['sparse_categorical_accuracy']),
      (x, y), fit=dict(validation_split=1 / 3, callbacks=callbacks))


def feature_space():
  """structured_data/structured_data_classification_with_feature_space."""
  rng = np.random.default_rng(0)
  table = {
      'age': rng.normal(50., 10., N).astype(np.float32),
      'sex': rng.integers(0, 2, N),
      'thal': rng.choice(['fixed', 'normal', 'reversible'], N)}
  y = (table['age'] + 10. * table['sex'] > 55.).astype(np.int64)
  dataset = tf.data.Dataset.from_tensor_slices((table, y)).batch(BATCH)
  space = keras.utils.FeatureSpace(
      {'age': keras.utils.FeatureSpace.float_normalized(),
       'sex': keras.utils.FeatureSpace.integer_categorical(num_oov_indices=0),
       'thal': 'string_categorical'},
      crosses=[('sex', 'thal')], crossing_dim=4)
  space.adapt(dataset.map(lambda x, _: x))
  encoded = dataset.map(lambda x, y: (space(x), y)).prefetch(1)
  inputs = space.get_encoded_features()
  hidden = layers.Dropout(0.5)(layers.Dense(4, activation='relu')(inputs))
  outputs = layers.Dense(1, activation='sigmoid')(hidden)
  return Kind(
      compiled(keras.Model(inputs, outputs), 'binary_crossentropy',
               metrics=['accuracy']),
      encoded, inputs=np.concatenate([x for x, _ in encoded]))


def several_inputs_and_outputs():
  """The functional API's guide: customer tickets."""
  title, tags = tokens(), features(3, seed=1)
  priority = (tags[:, :1] > 0.).astype(np.float32)
  department = np.argmax(tags, axis=-1)
  first = keras.Input([None], name='title', dtype='int32')
  second = keras.Input([3], name='tags')
  hidden = layers.concatenate([
      layers.GlobalMaxPooling1D()(layers.Embedding(8, 4)(first)), second])
  model = keras.Model([first, second], {
      'priority': layers.Dense(1, name='priority')(hidden),
      'department': layers.Dense(3, name='department')(hidden)})
  compiled(
      model, {
          'priority': keras.losses.BinaryCrossentropy(from_logits=True),
          'department': keras.losses.SparseCategoricalCrossentropy(
              from_logits=True)},
      loss_weights={'priority': 1., 'department': 0.2})
  return Kind(
      model, ({'title': title, 'tags': tags},
              {'priority': priority, 'department': department}),
      mean=lambda outputs: {
          'priority': keras.ops.sigmoid(outputs['priority']),
          'department': keras.ops.softmax(outputs['department'])})


def frozen_base():
  """guides/transfer_learning: a frozen base, called with training=False."""
  x, y = images(2)
  base = keras.Sequential([
      keras.Input([6, 6, 1]), layers.Conv2D(4, 3, strides=2),
      layers.BatchNormalization(), layers.ReLU()], name='base')
  base.trainable = False
  inputs = keras.Input([6, 6, 1])
  hidden = layers.Rescaling(0.5)(layers.RandomFlip('vertical')(inputs))
  hidden = layers.Flatten()(base(hidden, training=False))
  outputs = layers.Dense(1)(layers.Dropout(0.2)(hidden))
  return Kind(
      compiled(keras.Model(inputs, outputs),
               keras.losses.BinaryCrossentropy(from_logits=True),
               metrics=[keras.metrics.BinaryAccuracy()]),
      tf.data.Dataset.from_tensor_slices((x, y[:, np.newaxis])).shuffle(
          N).batch(BATCH).prefetch(1),
      inputs=x, mean=keras.ops.sigmoid,
      warning='do not affect the posterior: the augmentation layer')


def mixed_precision():
  """guides: mixed precision; the last layer in float32."""
  x, y = images()
  policy = 'mixed_float16'
  model = keras.Sequential([
      keras.Input([6, 6, 1]), layers.Conv2D(4, 3, dtype=policy),
      layers.ReLU(dtype=policy), layers.Flatten(dtype=policy),
      layers.Dense(3, dtype=policy),
      layers.Activation('softmax', dtype='float32')])
  return Kind(
      compiled(model, optimizer=keras.optimizers.LossScaleOptimizer(
          keras.optimizers.Adam(0.02))), (x, y), tolerance=3e-3)


def low_rank():
  """keras_recipes/parameter_efficient_finetuning...: LoRA."""
  x = tokens()
  model = keras.Sequential([
      keras.Input([6]), layers.Embedding(8, 4, name='embedding'),
      layers.Flatten(), layers.Dense(6, activation='relu', name='hidden'),
      layers.Dense(2, activation='softmax', name='classes')])
  for name in ('embedding', 'hidden'):
    model.get_layer(name).enable_lora(2)
  return Kind(compiled(model), (x, (x[:, 0] > 4).astype(np.int64)))


class OwnTestStep(keras.Model):
  """Of guides/custom_train_step_in_tensorflow: its own evaluation step."""

  def __init__(self):
    super().__init__()
    self.hidden = layers.Dense(4, activation='tanh')
    self.head = layers.Dense(1)

  def call(self, x):
    return self.head(self.hidden(x))

  def test_step(self, data):
    x, y = data
    y_pred = self(x, training=False)
    self._loss_tracker.update_state(self.compute_loss(x, y, y_pred))
    return {'loss': self._loss_tracker.result()}


def own_test_step():
  """guides/custom_train_step_in_tensorflow: `test_step`; built by `fit`."""
  x = features(3)
  return Kind(
      compiled(OwnTestStep(), sgmcmc.keras.GaussianLikelihood(scale=0.5),
               steps_per_execution=3),
      (x, x.sum(axis=1, keepdims=True)),
      fit=dict(validation_data=(x, x.sum(axis=1, keepdims=True))))


class Images(keras.utils.PyDataset):
  """Of vision/oxford_pets_image_segmentation, shuffled in each epoch."""

  def __init__(self, x, y, **arguments):
    super().__init__(**arguments)
    self.x, self.y = x, y
    self.order = np.arange(N)

  def __len__(self):
    return N // BATCH

  def __getitem__(self, k):
    some = self.order[k * BATCH:(k + 1) * BATCH]
    return self.x[some], self.y[some]

  def on_epoch_end(self):
    np.random.default_rng(1).shuffle(self.order)


def segmentation():
  """vision/oxford_pets_image_segmentation: a U-Net and a `PyDataset`."""
  x, _ = images()
  y = (x > 0.5).astype(np.uint8)
  hidden = inputs = keras.Input([6, 6, 1])
  hidden = layers.Conv2D(4, 3, strides=2, padding='same')(hidden)
  hidden = first = layers.Activation('relu')(
      layers.BatchNormalization()(hidden))
  hidden = layers.SeparableConv2D(4, 3, padding='same')(hidden)
  hidden = layers.add([hidden, first])
  hidden = layers.UpSampling2D(2)(hidden)
  outputs = layers.Conv2D(2, 3, activation='softmax', padding='same')(hidden)
  return Kind(
      compiled(keras.Model(inputs, outputs)), Images(x, y), inputs=x,
      sampling=dict(num_examples=N))


class Recommender(keras.Model):
  """Of structured_data/collaborative_filtering_movielens."""

  def __init__(self):
    super().__init__()
    self.users, self.movies = (
        layers.Embedding(8, 3, embeddings_regularizer=keras.regularizers.l2(
            1e-4)) for _ in range(2))
    self.user_bias, self.movie_bias = (
        layers.Embedding(8, 1) for _ in range(2))

  def call(self, inputs):
    users, movies = inputs[:, 0], inputs[:, 1]
    products = keras.ops.sum(
        self.users(users) * self.movies(movies), axis=1, keepdims=True)
    return keras.ops.sigmoid(
        products + self.user_bias(users) + self.movie_bias(movies))


def recommender():
  """structured_data/collaborative_filtering_movielens: regularisers alone."""
  x = tokens(2)
  y = (x[:, :1] > 4).astype(np.float32)
  return Kind(
      compiled(Recommender(), keras.losses.BinaryCrossentropy()), (x, y),
      sampling=dict(prior=None))


def weighted_classes():
  """structured_data/imbalanced_classification: `class_weight`."""
  x = features(3)
  model = keras.Sequential([
      keras.Input([3]), layers.Dense(4, activation='relu'),
      layers.Dropout(0.3), layers.Dense(1, activation='sigmoid')])
  return Kind(
      compiled(model, 'binary_crossentropy', metrics=[
          keras.metrics.FalseNegatives(name='fn'),
          keras.metrics.Precision(name='precision')]),
      (x, (x[:, :1] > 1.).astype(np.uint8)),
      fit=dict(class_weight={0: 0.5, 1: 2.}))


def text():
  """nlp/text_classification_from_scratch: strings, outside the model."""
  words = np.array(['good', 'bad', 'film', 'plot', 'the', 'a'])
  x = words[tokens(5, 6)]
  y = (x == 'bad').any(axis=1).astype(np.float32)
  vectorize = layers.TextVectorization(
      max_tokens=9, output_mode='int', output_sequence_length=5)
  vectorize.adapt([' '.join(row) for row in x])
  strings = tf.data.Dataset.from_tensor_slices(
      ([' '.join(row) for row in x], y)).batch(BATCH)
  dataset = strings.map(lambda x, y: (vectorize(x), y)).cache().prefetch(2)
  inputs = keras.Input([None], dtype='int64')
  hidden = layers.Dropout(0.5)(layers.Embedding(9, 4)(inputs))
  hidden = layers.Conv1D(4, 3, padding='valid', activation='relu')(hidden)
  hidden = layers.GlobalMaxPooling1D()(hidden)
  outputs = layers.Dense(1, activation='sigmoid')(hidden)
  return Kind(
      compiled(keras.Model(inputs, outputs), 'binary_crossentropy',
               metrics=['accuracy']),
      dataset, inputs=np.concatenate([x for x, _ in dataset]))


def forecast():
  """timeseries/timeseries_weather_forecasting, with a scale that is learned."""
  series = np.sin(np.arange(N + 7) / 3.).astype(np.float32)[:, np.newaxis]
  dataset = keras.utils.timeseries_dataset_from_array(
      series[:-1], series[7:], sequence_length=7, batch_size=BATCH)
  model = keras.Sequential([
      keras.Input([7, 1]), layers.Conv1D(4, 3, padding='causal'),
      layers.Flatten(), layers.Dense(2)])
  return Kind(
      compiled(model, sgmcmc.keras.GaussianLikelihood()), dataset,
      inputs=np.concatenate([x for x, _ in dataset]),
      mean=lambda outputs: outputs[..., :1])


def autoencoder():
  """vision/autoencoder: the images are the targets."""
  x = np.clip(images()[0], 0., 1.)
  inputs = keras.Input([6, 6, 1])
  hidden = layers.Conv2D(
      4, 3, strides=2, activation='relu', padding='same')(inputs)
  hidden = layers.Conv2DTranspose(
      4, 3, strides=2, activation='relu', padding='same')(hidden)
  outputs = layers.Conv2D(1, 3, activation='sigmoid', padding='same')(hidden)
  return Kind(
      compiled(keras.Model(inputs, outputs), 'binary_crossentropy'), (x, x))


class Patches(layers.Layer):
  """Of vision/mlp_image_classification."""

  def call(self, x):
    patches = keras.ops.image.extract_patches(x, size=2)
    return keras.ops.reshape(patches, [-1, 9, 4])


def mixer():
  """vision/mlp_image_classification, with AdamW."""
  x, y = images()
  inputs = keras.Input([6, 6, 1])
  hidden = layers.Dense(4)(Patches()(inputs))
  normed = layers.LayerNormalization(epsilon=1e-6)(hidden)
  mixed = layers.Permute([2, 1])(normed)
  mixed = layers.Dense(9, activation='gelu')(mixed)
  hidden = layers.Add()([hidden, layers.Permute([2, 1])(mixed)])
  hidden = layers.GlobalAveragePooling1D()(hidden)
  outputs = layers.Dense(3)(layers.Dropout(0.2)(hidden))
  return Kind(
      compiled(
          keras.Model(inputs, outputs),
          keras.losses.SparseCategoricalCrossentropy(from_logits=True),
          optimizer=keras.optimizers.AdamW(0.02, weight_decay=1e-4),
          metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2)]),
      (x, y), mean=keras.ops.softmax,
      warning='do not affect the posterior: weight_decay')


KINDS = [
    convolutional, recurrent, transformer, fully_convolutional, feature_space,
    several_inputs_and_outputs, frozen_base, mixed_precision, low_rank,
    own_test_step, segmentation, recommender, weighted_classes, text, forecast,
    autoencoder, mixer]
_WEEKLY = (
    feature_space, low_rank, segmentation, recommender, text, forecast,
    autoencoder, mixer)


def first(data, number=7):
  return keras.tree.map_structure(lambda array: array[:number], data)


def assert_close(ours, theirs, tolerance):
  keras.tree.assert_same_structure(ours, theirs)
  for a, b in zip(keras.tree.flatten(ours), keras.tree.flatten(theirs)):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def draw_of(each, k):
  return keras.tree.map_structure(lambda array: array[k], each)


@pytest.mark.weekly_after(3)
@pytest.mark.parametrize(
    'make', marks.and_weekly(KINDS, _WEEKLY), ids=lambda make: make.__name__)
def test_kind(make, tmp_path, caplog):
  keras.utils.set_random_seed(0)
  kind = make(tmp_path) if 'tmp_path' in make.__code__.co_varnames else make()
  model, data = kind.model, kind.data
  inputs = first(data[0] if kind.inputs is None else kind.inputs)
  sampling = sgmcmc.keras.PosteriorSampling(sgmcmc.SGHMC, **{
      **dict(prior=tfd.Normal(0., 1.), learning_rate=1e-3, momentum=0.9,
             start_epoch=START, num_burnin_steps=1, seed=0,
             num_steps_between_results=1), **kind.sampling})
  arguments = dict(kind.fit)
  callbacks = [*arguments.pop('callbacks', ()), sampling]
  if isinstance(data, tuple):
    arguments['batch_size'] = BATCH
  else:
    data = (data,)
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    history = model.fit(
        *data, epochs=EPOCHS, verbose=0, callbacks=callbacks,
        **arguments).history
  ours = [
      str(w.message) for w in caught if w.category is not DeprecationWarning]
  ours = [message for message in ours if 'shuffle=True' not in message]
  assert len(ours) == (kind.warning is not None), ours
  assert kind.warning is None or kind.warning in ours[0]
  # TensorFlow counts Keras' train functions together, those of other models in
  # this process too.
  assert not [
      record for record in caplog.records if 'retracing' in record.getMessage()
      and 'TensorFlowTrainer._make_function' not in record.getMessage()]

  steps = sampling.num_steps
  assert steps == (EPOCHS - START) * (
      2 if 'validation_split' in arguments else N // BATCH)
  posterior = sampling.posterior
  assert posterior.steps == list(range(2, steps + 1, 2))
  assert history['loss'][-1] < history['loss'][0]

  # The model after fit is the last draw; any draw put into it predicts as the
  # posterior of that draw does, and all of them as the mean.
  def mean(draw=None):
    for variable, value in zip(model.trainable_variables, draw or ()):
      variable.assign(value)
    return keras.tree.map_structure(
        np.asarray, kind.mean(model(inputs, training=False)))

  last = mean()
  posterior.save(tmp_path / 'draws')
  by_hand = [mean(draw) for draw in posterior]
  loaded = sgmcmc.keras.PosteriorSamples.load(tmp_path / 'draws', model)
  for variable in model.trainable_variables:
    variable.assign(keras.ops.zeros_like(variable))
  each = loaded.predict(inputs, return_samples=True)
  assert_close(draw_of(each, -1), last, kind.tolerance)
  for k, wanted in enumerate(by_hand):
    assert_close(draw_of(each, k), wanted, kind.tolerance)
  assert any(np.ptp(a, axis=0).max() > 0. for a in keras.tree.flatten(each))
  assert_close(
      loaded.predict(inputs), keras.tree.map_structure(
          lambda a: a.mean(axis=0), each), kind.tolerance)
  assert_close(loaded[:1].predict(inputs), draw_of(each, 0), kind.tolerance)
  assert np.isfinite(list(loaded.evaluate(*data).values())).all()
