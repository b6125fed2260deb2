"""One model of many draws: beside `PosteriorSamples`, and in other runtimes."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.draws import model_draws as draws_lib

tfd = tfp.distributions

CLASSES = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
Q = [0.05, 0.5, 0.95]


def posterior_of(model, loss, num_draws=4, scale=0.3, seed=0):
  """Draws about a model's weights, and about its moving statistics."""
  rng = np.random.default_rng(seed)
  model.compile('sgd', loss)
  extras = [
      v for v in model.non_trainable_weights if 'moving' in v.path]
  weights, moving = (
      {f'{group}/{v.path}': v.numpy() + spread(
          scale * rng.normal(size=[num_draws, *v.shape]).astype(np.float32))
       for v in variables}
      for group, variables, spread in (
          ('state', model.trainable_variables, lambda a: a),
          ('extra', extras, np.abs)))
  return sgmcmc.keras.PosteriorSamples(model, draws_lib.in_memory(
      model, draws_lib.to_arrays(weights, moving, range(num_draws))))


def dense(outputs=2):
  return keras.Sequential([
      keras.Input([4]), keras.layers.Dense(8, activation='tanh'),
      keras.layers.Dense(outputs)])


def convolutional(is_frozen=False):
  return keras.Sequential([
      keras.Input([8, 8, 1]),
      keras.layers.Conv2D(4, 3, trainable=not is_frozen),
      keras.layers.BatchNormalization(),
      keras.layers.Activation('relu'),
      keras.layers.Flatten(),
      keras.layers.Dense(3)])


def recurrent():
  return keras.Sequential([
      keras.Input([5, 2]), keras.layers.LSTM(3), keras.layers.Dense(2)])


def attention():
  inputs = keras.Input([5, 4])
  hidden = inputs + keras.layers.MultiHeadAttention(2, 3)(inputs, inputs)
  hidden = keras.layers.LayerNormalization()(hidden)
  return keras.Model(inputs, keras.layers.Dense(3)(
      keras.layers.GlobalAveragePooling1D()(hidden)))


def low_rank():
  """A frozen network with trained adapters of rank two, and a head."""
  model = keras.Sequential([
      keras.Input([4]), keras.layers.Dense(8, activation='tanh'),
      keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(3)])
  for layer in model.layers[:2]:
    layer.enable_lora(2)
    layer.bias.trainable = False
  return model


GAUSSIAN = sgmcmc.keras.GaussianLikelihood()
KINDS = {
    'Dense': (dense, sgmcmc.keras.LaplaceLikelihood(), [4]),
    'convolution': (convolutional, CLASSES, [8, 8, 1]),
    'recurrent': (recurrent, GAUSSIAN, [5, 2]),
    'attention': (attention, CLASSES, [5, 4]),
    'low rank': (low_rank, CLASSES, [4]),
}


def inputs_of(shape, number=6):
  return np.random.default_rng(1).normal(
      size=[number, *shape]).astype(np.float32)


def wanted(posterior, x):
  """What the posterior itself says, by the names of the outputs."""
  found = {'mean': posterior.predict(x)}
  if posterior.model.loss is CLASSES:
    entropy = posterior.uncertainty(x)
    return {**found, 'entropy': entropy.total,
            'mutual_information': entropy.epistemic}
  return {**found, 'std': posterior.predict(x, return_std=True)[1],
          'quantiles': np.moveaxis(posterior.quantiles(x, Q), 0, -1)}


def assert_alike(found, right):
  assert set(found) == set(right)
  for name, values in right.items():
    np.testing.assert_allclose(
        found[name], values, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.weekly_after(2)
@pytest.mark.parametrize('kind', KINDS)
def test_it_says_what_the_posterior_says(kind):
  make, loss, shape = KINDS[kind]
  posterior, x = posterior_of(make(), loss, 3), inputs_of(shape)
  served = posterior.as_model(quantiles=Q)
  assert not served.trainable_variables
  assert_alike(served.predict(x, verbose=0), wanted(posterior, x))


def test_weights_of_draws_and_what_is_asked_for():
  posterior, x = posterior_of(dense(), GAUSSIAN), inputs_of([4])
  arrays = {**posterior.arrays(), 'log_weight': np.log([.1, .5, 2., .3])}
  posterior = sgmcmc.keras.PosteriorSamples(
      posterior.model, draws_lib.in_memory(posterior.model, arrays))
  right = wanted(posterior, x)
  served = posterior.as_model(outputs=['quantiles', 'mean'], quantiles=Q)
  assert_alike(served(x), {k: right[k] for k in ('mean', 'quantiles')})


def test_it_does_not_follow_the_model():
  """Frozen weights too are those of the time when it was made."""
  model = dense()
  model.layers[0].trainable = False
  posterior, x = posterior_of(model, GAUSSIAN), inputs_of([4])
  right, served = posterior.predict(x), posterior.as_model(outputs=['mean'])
  model.set_weights([0. * w for w in model.get_weights()])
  np.testing.assert_allclose(served(x)['mean'], right, rtol=1e-5, atol=1e-6)


def two_outputs():
  inputs = keras.Input([4])
  model = keras.Model(inputs, {
      name: keras.layers.Dense(units, name=name)(inputs)
      for name, units in (('size', 2), ('kind', 3), ('bare', 1))})
  return posterior_of(model, {'size': GAUSSIAN, 'kind': CLASSES, 'bare': None})


def test_several_outputs():
  posterior, x = two_outputs(), inputs_of([4])
  found = posterior.as_model()(x)
  assert set(found) == {
      'size_mean', 'size_std', 'size_quantiles', 'kind_mean', 'kind_entropy',
      'kind_mutual_information', 'bare_mean'}
  mean, std = posterior.predict(x, return_std=True)
  for name in mean:
    np.testing.assert_allclose(
        found[f'{name}_mean'], mean[name], rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(found['size_std'], std['size'], rtol=1e-5)
  np.testing.assert_allclose(
      found['kind_mutual_information'],
      posterior.uncertainty(x)['kind'].epistemic, atol=1e-6)


@pytest.mark.slow
def test_any_distribution():
  """TFP's own cdf where it is none of Normal and Laplace."""
  loss = sgmcmc.keras.DistributionLoss(lambda outputs: tfd.Independent(
      tfd.LogNormal(outputs[..., :1], tf.nn.softplus(outputs[..., 1:]))))
  posterior, x = posterior_of(dense(), loss), inputs_of([4])
  served = posterior.as_model(quantiles=Q)
  assert_alike(served(x), wanted(posterior, x))


def test_scales_that_broadcast():
  loss = sgmcmc.keras.DistributionLoss(
      lambda outputs: tfd.Normal(outputs, [0.5, 2.]))
  posterior, x = posterior_of(dense(), loss), inputs_of([4])
  assert_alike(posterior.as_model(quantiles=Q)(x), wanted(posterior, x))


def test_quantiles_are_right_far_from_each_other():
  """Two draws a thousand scales apart, against SciPy's."""
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1e-3))
  posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
      model, [np.zeros([2, 1, 1]), np.array([[-1.], [1.]])])
  found = posterior.as_model(quantiles=[0.1, 0.9])(np.zeros([1, 1]))
  np.testing.assert_allclose(
      found['quantiles'][0, 0],
      [-1. + scipy.stats.norm.ppf(0.2) / 1e3,
       1. + scipy.stats.norm.ppf(0.8) / 1e3], rtol=1e-6)


class Counting(keras.layers.Layer):
  """Counts how often it is traced."""

  def __init__(self, **arguments):
    super().__init__(**arguments)
    self.calls = []

  def call(self, x):
    self.calls.append(x)
    return 2. * x


def test_tables_of_lookup_layers_are_exported(tmp_path):
  texts = tf.constant(['a b', 'b c', 'c a', 'a a'])
  words = keras.layers.TextVectorization(output_mode='multi_hot')
  words.adapt(texts)
  model = keras.Sequential([
      keras.Input([], dtype='string'), words, keras.layers.Dense(2)])
  posterior = posterior_of(model, CLASSES)
  posterior.as_model().export(
      tmp_path / 'model', format='tf_saved_model', verbose=False)
  served = tf.saved_model.load(str(tmp_path / 'model'))
  np.testing.assert_allclose(
      served.serve(texts)['mean'], posterior.predict(texts), atol=1e-6)


@pytest.mark.slow
def test_a_frozen_body_is_passed_once():
  body = Counting()
  inputs = keras.Input([5, 2])
  # A recurrent head, which is not vectorised; a sum that is no layer.
  model = keras.Model(inputs, keras.layers.Dense(3)(
      keras.layers.SimpleRNN(3)(
          body(keras.layers.Dense(2, trainable=False)(inputs) + 1.))))
  posterior, x = posterior_of(model, CLASSES), inputs_of([5, 2])
  body.calls.clear()
  served = posterior.as_model()
  assert len(body.calls) == 1
  assert_alike(served(x), wanted(posterior, x))
  assert 'call' not in vars(body)


def test_a_frozen_convolution_is_in_the_graph_once():
  model = convolutional(is_frozen=True)
  served = posterior_of(model, CLASSES).as_model()
  graph = tf.function(served).get_concrete_function(
      tf.TensorSpec([None, 8, 8, 1])).graph.as_graph_def()
  nodes = [*graph.node, *(
      node for f in graph.library.function for node in f.node_def)]
  assert sum(node.op == 'Conv2D' for node in nodes) == 1


class Subclass(keras.Model):

  def __init__(self):
    super().__init__()
    self.dense = keras.layers.Dense(3)

  def call(self, inputs):
    return self.dense(inputs['a'])


def check_adapters(model, loss, x):
  """Draws are of what is trained alone, and the base is there once."""
  posterior = posterior_of(model, loss, 3, 0.05)
  trained, base = (
      sum(int(np.prod(v.shape)) for v in variables) for variables in (
          model.trainable_variables, model.non_trainable_variables))
  assert trained < base
  assert sum(v[0].size for v in posterior.weights.values()) == trained
  served = posterior.as_model(outputs=['mean'])
  assert served.count_params() <= base + 3 * trained + 10
  np.testing.assert_allclose(
      served(x)['mean'], posterior.predict(x), rtol=1e-5, atol=1e-5)


def test_adapters_share_one_base():
  model = low_rank()
  wide = keras.layers.Dense(4, activation='tanh', trainable=False)
  check_adapters(
      keras.Sequential([
          keras.Input([40]), wide, keras.layers.LayerNormalization(
              trainable=False), *model.layers]), CLASSES, inputs_of([40]))


@pytest.mark.slow
def test_adapters_of_a_kerashub_backbone():
  keras_hub = pytest.importorskip('keras_hub')
  backbone = keras_hub.models.BertBackbone(
      vocabulary_size=50, num_layers=2, num_heads=2, hidden_dim=16,
      intermediate_dim=32, max_sequence_length=6)
  backbone.enable_lora(2)
  ids = np.random.default_rng(0).integers(1, 50, [5, 6])
  check_adapters(
      keras.Model(backbone.input, keras.layers.Dense(3)(
          backbone(backbone.input)['pooled_output'])), CLASSES, {
              'token_ids': ids, 'segment_ids': np.zeros_like(ids),
              'padding_mask': np.ones_like(ids)})


def test_subclass_of_model():
  model, x = Subclass(), {'a': inputs_of([4])}
  model(x)
  posterior = posterior_of(model, CLASSES)
  with pytest.raises(ValueError, match='does not say what its inputs are'):
    posterior.as_model()
  served = posterior.as_model(
      input_signature={'a': tf.TensorSpec([None, 4], tf.float32)})
  assert_alike(served(x), wanted(posterior, x))


def test_half_precision():
  posterior, x = posterior_of(dense(), GAUSSIAN), inputs_of([4])
  served = posterior.as_model(dtype='float16')
  assert {v.dtype for v in served.variables} == {'float16'}
  mean = served(x)['mean']
  assert mean.dtype == tf.float32
  rounded = sgmcmc.keras.PosteriorSamples.from_arrays(
      posterior.model, [
          w.astype(np.float16) for w in posterior.weights.values()])
  np.testing.assert_allclose(mean, rounded.predict(x), rtol=1e-5, atol=1e-6)
  arrays = [1e5 * w for w in posterior.weights.values()]
  with pytest.raises(ValueError, match='which float16 does not hold'):
    sgmcmc.keras.PosteriorSamples.from_arrays(
        posterior.model, arrays).as_model(dtype='float16')


@pytest.mark.weekly_after(2)
@pytest.mark.parametrize('loss, name, reason', [
    (CLASSES, 'quantiles', 'its targets are classes'),
    (CLASSES, 'std', 'its targets are classes'),
    (GAUSSIAN, 'entropy', 'its targets are no classes'),
    ('poisson', 'quantiles', 'a distribution of counts'),
    (sgmcmc.keras.NegativeLogLikelihood(lambda y, outputs: outputs - y), 'std',
     'does not say what the distribution'),
    (sgmcmc.keras.DistributionLoss(lambda outputs: tfd.MultivariateNormalDiag(
        outputs)), 'quantiles', 'of vectors'),
    (sgmcmc.keras.DistributionLoss(lambda outputs: tfd.VonMises(
        outputs, 1.)), 'quantiles', 'no cdf, or no quantiles'),
])
def test_what_cannot_be_had(loss, name, reason):
  posterior = posterior_of(dense(2), loss)
  with pytest.raises(ValueError, match=reason):
    posterior.as_model(outputs=['mean', name])
  assert name not in posterior.as_model()(inputs_of([4]))


def test_wrong_arguments():
  posterior = posterior_of(dense(), GAUSSIAN)
  with pytest.raises(ValueError, match="outputs.*'mean'"):
    posterior.as_model(outputs=['median'])
  with pytest.raises(ValueError, match='quantiles is .*above 0 and below 1'):
    posterior.as_model(quantiles=[5, 95])
  with pytest.raises(ValueError, match='num_draws is 5, and there are 4'):
    posterior.as_model(5)
  with pytest.raises(ValueError, match='no draws'):
    posterior[:0].as_model()


def test_a_keras_file_is_refused(tmp_path):
  with pytest.raises(NotImplementedError, match='call its export'):
    posterior_of(dense(), GAUSSIAN).as_model().save(tmp_path / 'model.keras')


def test_evenly_spaced_draws():
  posterior, x = posterior_of(dense(), GAUSSIAN, 9), inputs_of([4])
  assert posterior.thin(3).steps == [1, 4, 7]
  assert posterior.thin(9).steps == posterior.steps
  np.testing.assert_allclose(
      posterior.as_model(3)(x)['mean'], posterior.thin(3).predict(x),
      rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize(
    'loss', [GAUSSIAN, CLASSES], ids=['density', 'classes'])
def test_chosen_draws_predict_better_than_spaced_ones(loss):
  """On rows that they were not chosen by, on average over chains."""
  x = inputs_of([4], 400)
  gains = []
  for seed in range(5):
    posterior = posterior_of(
        dense(2 if loss is GAUSSIAN else 3), loss, 60, 1., seed)
    right = posterior.predict(x[200:])
    chosen, spaced = (
        np.mean(np.square(some.predict(x[200:]) - right))
        for some in (posterior.thin(8, x[:200]), posterior.thin(8)))
    gains.append(np.log(spaced / chosen))
  # Measured 1.6 and 2.4 with a standard deviation of 0.3 from chain to chain.
  assert np.mean(gains) > 0.7


def test_draws_that_predict_alike_are_spaced():
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
  posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
      model, [np.zeros([6, 1, 1]), np.zeros([6, 1])])
  assert posterior.thin(2, np.ones([3, 1])).steps == [2, 5]


# Each reads inputs from a file, and prints the outputs and all modules that
# were imported.
RUNTIMES = {
    'tf_saved_model': ('tensorflow', '', """
import tensorflow as tf
def run(path, x):
  served = tf.saved_model.load(path)
  return {k: v.numpy() for k, v in served.serve(x).items()}
"""),
    'onnx': ('onnxruntime', '.onnx', """
import onnxruntime
def run(path, x):
  session = onnxruntime.InferenceSession(path)
  names = [output.name for output in session.get_outputs()]
  return dict(zip(names, session.run(
      names, {session.get_inputs()[0].name: x})))
"""),
    'litert': ('ai_edge_litert', '.tflite', """
from ai_edge_litert.interpreter import Interpreter
def run(path, x):
  served = Interpreter(path).get_signature_runner()
  return served(**{list(served.get_input_details())[0]: x})
"""),
}
MAIN = """
import json, sys
import numpy as np
found = {}
for path, inputs in json.loads(sys.argv[1]):
  for name, value in run(path, np.load(inputs)).items():
    np.save(f'{inputs}_{name}.npy', value)
print(sorted({name.split('.')[0] for name in sys.modules}))
"""


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.parametrize('file_format', RUNTIMES)
def test_other_runtimes_alone(file_format, tmp_path):
  """A process with that runtime, without this library."""
  runtime, suffix, code = RUNTIMES[file_format]
  needed = [runtime, *(['tf2onnx'] if file_format == 'onnx' else [])]
  for package in needed:
    if importlib.util.find_spec(package) is None:
      pytest.skip(f'{package} is not installed')
  right, jobs = {}, []
  for kind, (make, loss, shape) in KINDS.items():
    posterior = posterior_of(make(), loss, 3)
    if file_format == 'litert':
      for layer in posterior.model.layers:  # Its loops need a fixed batch.
        if isinstance(layer, keras.layers.RNN):
          layer.unroll = True
    path, inputs = (tmp_path / f'{kind}{end}' for end in (suffix, '.npy'))
    posterior.as_model(quantiles=Q).export(
        str(path), format=file_format, verbose=False)
    for number in (1, 6):  # Any number of rows.
      name = tmp_path / f'{kind}_{number}.npy'
      np.save(name, inputs_of(shape, number))
      right[name] = wanted(posterior, inputs_of(shape, number))
      jobs.append((str(path), str(name)))
  result = subprocess.run(
      [sys.executable, '-c', code + MAIN, json.dumps(jobs)],
      capture_output=True, text=True,
      env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'})
  assert result.returncode == 0, result.stderr
  modules = result.stdout.strip().splitlines()[-1]
  assert f"'{runtime}'" in modules
  others = {'tensorflow_probability', 'tfp_sgmcmc', 'tf_keras'}
  if runtime != 'tensorflow':  # It imports Keras by itself.
    others |= {'keras', 'tensorflow'}
  for other in others:
    assert f"'{other}'" not in modules
  for name, values in right.items():
    assert_alike({
        key: np.load(f'{name}_{key}.npy') for key in values}, values)
    assert len(list(pathlib.Path(name).parent.glob(
        f'{name.name}_*.npy'))) == len(values)
