"""Chains that step together are those that take turns, up to rounding."""

import functools
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.keras.fitting import step as step_lib
from tfp_sgmcmc.keras.fitting import together

NUM_CHAINS = 3
PSGLD = functools.partial(
    sgmcmc.SGLD, step_size=1e-4,
    preconditioner=sgmcmc.preconditioners.RMSProp())
SGNHT = functools.partial(sgmcmc.SGNHT, step_size=0.01, diffusion=3.)
IS_VECTORISED = {}  # By the callback: whether its chains stepped together.


def run(how, monkeypatch, kernel=PSGLD, make_model=models.classifier, x=None,
        y=None, epochs=5, jit_compile=False, callbacks=(), **arguments):
  """15 steps of all chains, by default; `how` is "together" or "turns"."""
  monkeypatch.setattr(
      together, 'is_worthwhile', lambda num_weights: how == 'together')
  keras.utils.set_random_seed(0)
  model = make_model(jit_compile=jit_compile)
  sampling = models.make_sampling(kernel, **{
      **dict(num_chains=NUM_CHAINS), **arguments})
  with models.made_by(together, 'Together') as made:
    history = models.fit(
        model, sampling, epochs=epochs, x=x, y=y, callbacks=callbacks).history
  IS_VECTORISED[sampling] = made[-1].is_possible
  return sampling, history


class Made(NamedTuple):
  """A copy of what a fit has made, which may go on.

  Attributes:
    posterior: Its draws.
    kernel_results: The kernel's results after it.
  """
  posterior: Any
  kernel_results: Any


@functools.cache
def whole_run(how):
  """A fit of SGHMC: its callback, a copy of what it made, and its logs."""
  with pytest.MonkeyPatch.context() as monkeypatch:
    sampling, history = run(how, monkeypatch, models.SGHMC)
  made = Made(sampling.posterior[:], sampling.kernel_results)
  return sampling, made, history


def made_by(how):
  _, made, history = whole_run(how)
  return made, history


def assert_same(ours, theirs, rtol=2e-5, atol=2e-6):
  """The same draws, results of the kernel, and logs."""
  (ours, our_logs), (theirs, their_logs) = ours, theirs
  assert ours.posterior.steps == theirs.posterior.steps
  for a, b in zip(
      ours.posterior.weights.values(), theirs.posterior.weights.values()):
    np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
  for a, b in zip(tf.nest.flatten(ours.kernel_results),
                  tf.nest.flatten(theirs.kernel_results)):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    size = np.max(np.abs(b), initial=1.)  # Of a sum's terms, as it is rounded.
    np.testing.assert_allclose(a, b, rtol=10. * rtol, atol=rtol * size)
  assert our_logs.keys() == their_logs.keys()
  for name, values in their_logs.items():
    np.testing.assert_allclose(our_logs[name], values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('kernel, jit_compile', [
    (models.SGHMC, False),
    *(pytest.param(*row, marks=pytest.mark.slow) for row in [
        (PSGLD, False),
        (functools.partial(SGNHT, thermostat='part'), False)]),
    *(pytest.param(*row, marks=[pytest.mark.slow, pytest.mark.weekly])
      for row in [
          (functools.partial(sgmcmc.SGLD, step_size=1e-4), False),
          (functools.partial(models.SGHMC, integrator='baoab'), False),
          (functools.partial(SGNHT, thermostat='matrix'), False),
          (PSGLD, True)]),
])
def test_the_chains_are_those_of_turns(
    kernel, jit_compile, monkeypatch):
  if kernel is models.SGHMC:
    sampling, *_ = whole_run('together')
    ours, theirs = made_by('together'), made_by('turns')
  else:
    ours, theirs = (
        run(how, monkeypatch, kernel, jit_compile=jit_compile)
        for how in ('together', 'turns'))
    sampling, _ = ours
  assert IS_VECTORISED[sampling]
  assert_same(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize('kernel, learning_rate, num_burnin_steps, epochs', [
    (None, None, 8, 6), pytest.param(
        sgmcmc.SGHMC, 'temperature', 100, 36, marks=pytest.mark.weekly)])
def test_the_chains_of_all_that_is_chosen(
    kernel, learning_rate, num_burnin_steps, epochs, monkeypatch):
  """With the step size that is found in burn-in, for each chain by itself.

  The search makes more of rounding. Weights have a size of about 0.5.
  """
  ours, theirs = (
      run(how, monkeypatch, kernel, learning_rate=learning_rate,
          num_burnin_steps=num_burnin_steps, epochs=epochs, prior=None)
      for how in ('together', 'turns'))
  assert IS_VECTORISED[ours[0]]
  assert_same(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize('planted', [
    'seed', pytest.param('rows', marks=[
        pytest.mark.slow, pytest.mark.weekly])])
def test_what_is_not_of_each_chain_is_found(planted, monkeypatch):
  """All chains with the seed of chain 0, or with its rows."""
  advance, each = step_lib.SamplingStep.advance, together.Together.each

  def with_one_seed(self, start, results, seed, data):
    return advance(self, start, results, tf.convert_to_tensor(self.seed), data)

  if planted == 'seed':
    monkeypatch.setattr(step_lib.SamplingStep, 'advance', with_one_seed)
  else:
    monkeypatch.setattr(
        together.Together, 'each',
        lambda self, rows: each(self, lambda chains: rows(0 * chains)))
  ours = run('together', monkeypatch, models.SGHMC)
  assert IS_VECTORISED[ours[0]]
  with pytest.raises(AssertionError, match='Not equal to tolerance'):
    assert_same(ours, made_by('turns'))


@pytest.mark.weekly
@pytest.mark.slow
def test_goes_on_with_chains_that_took_turns(tmp_path, monkeypatch):
  """And the other way round."""
  whole = run('turns', monkeypatch, epochs=6)[0].posterior
  for epochs, how in [(2, 'turns'), (4, 'together'), (6, 'turns')]:
    sampling, _ = run(how, monkeypatch, epochs=epochs, directory=tmp_path)
  assert len(sampling.posterior) == len(whole) == 18 * NUM_CHAINS
  for a, b in zip(
      sampling.posterior.weights.values(), whole.weights.values()):
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def test_a_chain_that_fails_is_named():
  """That which meets row 45, alone, and no other; after 15 steps."""
  x, y = models.classes()
  x[45] = np.inf
  said = []
  for how in ('together', 'turns'):
    sampling, *_ = whole_run(how)
    with pytest.warns(
        RuntimeWarning, match=r'at step 18 .* chain \d') as caught:
      models.fit(sampling.model, sampling, x=x, y=y)
    said.append([str(w.message) for w in caught
                 if w.category is RuntimeWarning])
    assert [len(chain) for chain in sampling.posterior.chains] == [17, 17, 17]
  assert said[0] == said[1]


def convolutional(**compile_arguments):
  return compiled([
      keras.layers.Reshape([4, 1]), keras.layers.Conv1D(2, 2),
      keras.layers.Flatten(), keras.layers.Dense(3)], **compile_arguments)


class Convolution(keras.Layer):
  """One that nobody has told of."""

  def build(self, shape):
    self.kernel = self.add_weight(shape=[2, 1, 2], name='kernel')

  def call(self, x):
    return keras.ops.conv(x, self.kernel)


def own_convolution(**compile_arguments):
  return compiled([
      keras.layers.Reshape([4, 1]), Convolution(), keras.layers.Flatten(),
      keras.layers.Dense(3)], **compile_arguments)


def normalised(**compile_arguments):
  return compiled([
      keras.layers.Dense(5), keras.layers.BatchNormalization(),
      keras.layers.Dense(3)], **compile_arguments)


def masked(**compile_arguments):
  return compiled([
      keras.layers.Reshape([4, 1]), keras.layers.Masking(0.5),
      keras.layers.Dense(3)],**compile_arguments)


def compiled(layers, reduction='sum_over_batch_size', **compile_arguments):
  model = keras.Sequential([keras.Input([4]), *layers])
  model.compile('sgd', keras.losses.SparseCategoricalCrossentropy(
      from_logits=True, reduction=reduction), **compile_arguments)
  return model


@pytest.mark.parametrize('make_model, kernel', [
    (own_convolution, PSGLD),
    pytest.param(normalised, PSGLD, marks=pytest.mark.slow),
    *(pytest.param(*row, marks=[pytest.mark.slow, pytest.mark.weekly])
      for row in [(models.classifier, models.EWSG), (convolutional, PSGLD),
                  (masked, PSGLD)]),
])
def test_what_takes_turns(make_model, kernel, monkeypatch):
  """Bit for bit: nothing of an attempt is left in the step."""
  x, y = models.classes()
  if make_model is masked:
    y = np.tile(y[:, np.newaxis], [1, 4])
  ours, theirs = (
      run(how, monkeypatch, kernel, make_model=make_model, x=x, y=y, epochs=2,
          num_chains=2)
      for how in ('together', 'turns'))
  assert not IS_VECTORISED[ours[0]]
  assert_same(ours, theirs, rtol=1e-7, atol=0.)


def two_inputs(**compile_arguments):
  words = keras.Input([4], dtype='int32', name='words')
  numbers = keras.Input([3], name='numbers')
  h = keras.layers.Embedding(7, 5)(words)
  h = keras.layers.MultiHeadAttention(num_heads=2, key_dim=3)(h, h)
  h = keras.layers.GlobalAveragePooling1D()(keras.layers.Dropout(0.2)(h))
  h = keras.layers.Concatenate()([
      h, keras.layers.Dense(4, activation='gelu')(numbers)])
  h = keras.layers.LayerNormalization()(h)
  outputs = {
      'kind': keras.layers.Dense(
          3, kernel_regularizer=keras.regularizers.L2(1e-3), name='kind')(h),
      'size': keras.layers.Dense(1, name='size')(h)}
  model = keras.Model({'words': words, 'numbers': numbers}, outputs)
  model.compile(
      'sgd', {
          'kind': keras.losses.SparseCategoricalCrossentropy(from_logits=True),
          'size': sgmcmc.keras.GaussianLikelihood(scale=1.)},
      metrics={'kind': ['accuracy']}, **compile_arguments)
  return model


@pytest.mark.weekly
@pytest.mark.slow
def test_a_model_of_several_inputs_and_outputs_is_vectorised(monkeypatch):
  numbers, y = models.classes(num_features=3)
  x = {'words': np.arange(200).reshape([50, 4]) ** 2 % 7, 'numbers': numbers}
  y = {'kind': y, 'size': numbers[:, :1]}
  ours, theirs = (
      run(how, monkeypatch, models.SGHMC, make_model=two_inputs, x=x, y=y)
      for how in ('together', 'turns'))
  assert IS_VECTORISED[ours[0]]
  assert_same(ours, theirs, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
def test_a_loss_that_is_a_sum_is_that_of_one_chain(monkeypatch):
  """Metrics see the rows of all chains at once, and the loss does not."""
  def summed(**compile_arguments):
    return compiled(
        [keras.layers.Dense(3)], 'sum', weighted_metrics=['accuracy'],
        **compile_arguments)

  ours, theirs = (
      run(how, monkeypatch, models.SGHMC, summed) for how in (
          'together', 'turns'))
  assert IS_VECTORISED[ours[0]]
  assert_same(ours, theirs)
  assert np.min(ours[1]['loss']) > np.log(3.)  # A mean loss is below.


def test_xla_and_the_size_decide():
  seen = []
  for jit_compile in (False, True):
    tf.function(
        lambda: seen.extend(map(together.is_worthwhile, [100, 10**5])),
        autograph=False, jit_compile=jit_compile).get_concrete_function()
  assert seen == [True, False, True, True]


def test_what_xla_compiles_stays_compiled():
  """With stacked and common arguments, several results, called twice."""
  y = tf.constant([1., 2.])

  @tf.function(jit_compile=True, autograph=False)
  def compiled(x, y):
    return x * y, tf.reduce_sum(x)

  def fn(x):
    first, second = compiled(x, y)
    third, _ = compiled(y, x)
    return first, second, third, compiled(y, y)[1]

  x = tf.random.stateless_normal([3, 2], [0, 1])
  num_compiled = []  # That of common arguments stays so in any case.
  for keeps_compiled in (False, True):
    program = tf.function(
        lambda x, keeps=keeps_compiled: compat.vectorized_map(
            fn, x, keeps_compiled=keeps), autograph=False)
    for found, wanted in zip(program(x), zip(*(fn(row) for row in x))):
      np.testing.assert_allclose(found, tf.stack(wanted), rtol=1e-6)
    library = program.get_concrete_function(x).graph.as_graph_def().library
    num_compiled.append(sum(
        function.attr['_XlaMustCompile'].b for function in library.function))
  assert num_compiled[0] < num_compiled[1]


def test_a_map_leaves_functions_as_they_are():
  """Those that XLA does not compile can be called as before."""
  plain = tf.function(lambda x: 2. * x, autograph=False)
  x = tf.ones([3, 2])
  for _ in range(2):
    tf.function(
        lambda x: compat.vectorized_map(plain, x, keeps_compiled=True),
        autograph=False)(x)
    inner = plain.get_concrete_function(x[0])._inference_function
    assert '_XlaMustCompile' not in inner.cached_definition.attr
    np.testing.assert_array_equal(
        tf.function(plain, jit_compile=True)(x[0]), [2., 2.])


def test_rules_are_right():
  """Of what TensorFlow cannot vectorise by itself."""
  x = tf.random.stateless_normal([3, 4, 2], [0, 1])
  for fn in (tf.nn.l2_loss, lambda x: tf.bitcast(x, tf.int32),
             lambda x: tf.bitcast(x, tf.float64),
             lambda x: tf.bitcast(x, tf.uint8)):
    np.testing.assert_allclose(
        compat.vectorized_map(fn, x), tf.stack([fn(row) for row in x]),
        rtol=1e-6)


@pytest.mark.parametrize('jit_compile', [False, True])
def test_what_is_done_only_where_something_holds_for_all(jit_compile):
  """One branch for all chains, by a condition that stays one."""
  def fn(x):
    return states.cond_for_all(x > 0., lambda: x + 1., lambda: x - 1.)

  def mapped(x):
    return compat.vectorized_map(fn, x)

  program = tf.function(mapped, jit_compile=jit_compile, autograph=False)
  np.testing.assert_array_equal(program(tf.constant([1., 2.])), [2., 3.])
  np.testing.assert_array_equal(program(tf.constant([1., -2.])), [0., -3.])
  plain = tf.function(mapped, autograph=False).get_concrete_function(
      tf.zeros([2]))
  assert together._is_for_all_alike(plain)
  np.testing.assert_array_equal([fn(1.), fn(-2.)], [2., -3.])
