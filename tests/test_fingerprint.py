"""The description of a call: what makes another posterior is seen."""

import argparse
import contextlib
import dataclasses
import enum
import functools
import importlib
import operator
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.internal.fingerprint import difference
from tfp_sgmcmc.internal.fingerprint import fingerprint
from tfp_sgmcmc.internal.fingerprint import is_users

tfd = tfp.distributions
tfb = tfp.bijectors


def of(value):
  return fingerprint(value=value)


def function(source, **module):
  """The function `f` of some source, in a module of its own."""
  namespace = types.ModuleType('users_module').__dict__
  namespace.update(tf=tf, tfd=tfd, **module)
  exec(source, namespace)
  return namespace['f']


class Likelihood:
  """A user's object."""

  factor = 2.

  def __init__(self, scale):
    self.scale = scale

  def __call__(self, x):
    return self.factor * x / self.scale


class Slotted:
  __slots__ = ('scale',)

  def __init__(self, scale):
    self.scale = scale


@dataclasses.dataclass
class Data:
  scale: float


class Kind(enum.Enum):
  ONE = 1
  TWO = 2


class Schedule(keras.optimizers.schedules.LearningRateSchedule):

  def __init__(self, rate):
    self.rate = rate

  def __call__(self, step):
    return self.rate


class Loss(keras.losses.Loss):

  def __init__(self, scale):
    super().__init__()
    self.scale = scale

  def call(self, y_true, y_pred):
    return self.scale * (y_true - y_pred)**2


class Kernel(tfp.mcmc.TransitionKernel):
  is_calibrated = True

  def __init__(self, step):
    self._step = step

  def one_step(self, current_state, previous_kernel_results, seed=None):
    return current_state + self._step, previous_kernel_results

  def bootstrap_results(self, init_state):
    return ()


class Gamma(tfd.Normal):
  """A user's distribution."""


def joint(scale, pin):
  @tfd.JointDistributionCoroutineAutoBatched
  def model():
    x = yield tfd.Normal(0., scale, name='x')
    yield tfd.Normal(x, 1., name='y')

  return model.experimental_pin(y=pin)


def closure(scale):
  return lambda x: x * scale


def layers(weight):
  layer = keras.layers.Dense(2)
  layer.build([None, 3])
  layer.kernel.assign(tf.fill([3, 2], weight))
  return layer


def parallel(which):
  inputs = keras.Input([3])
  ways = [keras.layers.Dense(2, activation, kernel_initializer='ones')(inputs)
          for activation in ('relu', 'tanh')]
  return keras.Model(inputs, keras.layers.Dense(
      1, kernel_initializer='ones')(ways[which]) + keras.layers.Dense(
          1, kernel_initializer='zeros')(ways[1 - which]))


class Shifted(tfd.Normal):
  """A user's distribution with an attribute of its own."""

  def __init__(self, shift):
    super().__init__(0., 1.)
    self.shift = shift

  def _log_prob(self, x):
    return super()._log_prob(x - self.shift)


def dispatched(scale):
  @functools.singledispatch
  def f(x):
    return x

  @f.register
  def _(x: float):
    return x * scale

  return f


class Remembers:
  """Holds what it has computed once it was asked."""

  def __init__(self, scale):
    self.scale = scale

  @functools.cached_property
  def square(self):
    return self.scale**2


def asked(scale):
  value = Remembers(scale)
  CALLS.append(scale)
  return value if len(CALLS) % 2 or value.square else None


CALLS = []


# Pairs of a way to make a value and two arguments that tell values apart.
CASES = {
    'numbers': (lambda x: x, 1., 2.),
    'dtypes': (lambda x: np.zeros([3], x), np.float32, np.float64),
    'shapes': (lambda x: tf.zeros(x), [2, 3], [3, 2]),
    'tensors': (lambda x: {'a': [tf.constant([x, 1.])]}, 1., 2.),
    'bfloat16': (lambda x: tf.constant([x], tf.bfloat16), 1., 2.),
    'variables': (tf.Variable, 1., 2.),
    'objects in arrays': (lambda x: np.array([{'a': x}]), 1., 2.),
    'ragged': (lambda x: tf.ragged.constant([[x], [1., 2.]]), 1., 2.),
    'sets': (lambda x: {1, 2, x}, 3, 4),
    'long strings': (lambda x: 1000 * 'a' + x, 'a', 'b'),
    'enums': (Kind, 1, 2),
    'closures': (closure, 1., 2.),
    'defaults': (lambda x: function(
        'def f(y, scale=s): return y * scale', s=x), 1., 2.),
    'keyword defaults': (lambda x: function(
        'def f(y, *, scale=s): return y * scale', s=x), 1., 2.),
    'globals': (lambda x: function('def f(y): return y * S', S=x), 1., 2.),
    'globals of functions within': (lambda x: function(
        'def f(y): return [(lambda z: z * S)(v) for v in y]', S=x), 1., 2.),
    'globals of functions called': (lambda x: function(
        'def g(y): return y * S\ndef f(y): return g(y)', S=x), 1., 2.),
    'arguments of a program': (lambda x: function(
        'def f(y): return y * args.S', args=argparse.Namespace(S=x)), 1., 2.),
    'under a decorator of a library': (lambda x: contextlib.contextmanager(
        closure(x)), 1., 2.),
    'singledispatch': (dispatched, 1., 2.),
    'what was asked of objects': (asked, 1., 2.),
    'keys': (lambda x: {(1, x): 1}, 1., 2.),
    'masks': (lambda x: np.ma.array([1., 2.], mask=[x, True]), True, False),
    'constants': (lambda x: function(f'def f(y): return y * {x}'), 1., 2.),
    'code': (lambda x: function(f'def f(y): return y {x} 2.'), '+', '*'),
    'names of attributes': (
        lambda x: function(f'def f(y): return tf.math.{x}(y)'), 'sin', 'cos'),
    'code of functions called': (lambda x: function(
        f'def g(y): return y {x} 2.\ndef f(y): return g(y)'), '+', '*'),
    'attributes of functions': (lambda x: with_attribute(x), 1., 2.),
    'partial': (lambda x: functools.partial(pow, x), 1., 2.),
    'tf.function': (lambda x: tf.function(closure(x)), 1., 2.),
    'lru_cache': (lambda x: functools.lru_cache(closure(x)), 1., 2.),
    'objects': (Likelihood, 1., 2.),
    'slots': (Slotted, 1., 2.),
    'dataclasses': (Data, 1., 2.),
    'methods': (lambda x: Likelihood(x).__call__, 1., 2.),
    'code of methods': (lambda x: function(
        f'class A:\n  def __call__(self, y): return y {x} 2.\nf = A()'),
                        '+', '*'),
    'attributes of classes': (lambda x: function(
        f'class A:\n  scale = {x}\nclass B(A): pass\nf = B()'), 1., 2.),
    'methods of tuples': (lambda x: function(
        'from typing import NamedTuple\nclass A(NamedTuple):\n  s: float\n'
        f'  def __call__(self, y): return y {x} self.s\nf = A(1.)'),
                          '+', '*'),
    'properties': (lambda x: function(
        f'class A:\n  @property\n  def scale(self): return {x}\nf = A()'),
                   1., 2.),
    'modules of TensorFlow': (lambda x: tf_module(x), 1., 2.),
    'schedules of the user': (Schedule, 1., 2.),
    'schedules of Keras': (
        lambda x: keras.optimizers.schedules.CosineDecay(x, 10), 1., 2.),
    'layers': (layers, 1., 2.),
    'models': (lambda x: keras.Sequential([
        keras.Input([3]), keras.layers.Dense(2, kernel_initializer='ones'),
        keras.layers.LeakyReLU(x)]), 0.1, 0.2),
    'connections of models': (parallel, 0, 1),
    'types of layers': (
        lambda x: keras.layers.Rescaling(2., dtype=x), 'float32', 'float16'),
    'losses': (lambda x: keras.losses.Huber(delta=x), 1., 2.),
    'losses of the user': (Loss, 1., 2.),
    'losses with functions of the user': (
        lambda x: sgmcmc.keras.DistributionLoss(function(
            'def f(y): return tfd.Normal(y, S)', S=x)), 1., 2.),
    'kernels of the user': (Kernel, 1., 2.),
    'kernels': (lambda x: sgmcmc.SGLD(Likelihood(x), 0.1), 1., 2.),
    'schedules in kernels': (
        lambda x: sgmcmc.SGLD(tfd.Normal(0., 1.).log_prob, Schedule(x)),
        1., 2.),
    'estimators': (sgmcmc.gradients.Uniform, 1, 2),
    'posteriors': (lambda x: sgmcmc.Posterior(
        tfd.Normal(0., x).log_prob, closure(0.), tf.zeros([3])), 1., 2.),
    'distributions': (lambda x: tfd.Normal(0., x).log_prob, 1., 2.),
    'distributions of the user': (lambda x: Gamma(0., x), 1., 2.),
    'attributes of distributions of the user': (Shifted, 1., 2.),
    'bijectors': (lambda x: tfb.Chain([tfb.Scale(x), tfb.Exp()]), 1., 2.),
    'pinned data': (lambda x: joint(1., x).unnormalized_log_prob, 1., 2.),
    'parameters beside pinned data': (
        lambda x: joint(x, 1.).unnormalized_log_prob, 1., 2.),
    'joint distributions': (lambda x: tfd.JointDistributionNamed({
        'a': tfd.Normal(0., 1.),
        'b': lambda a: tfd.Normal(a, x)}), 1., 2.),
    'kernels of TFP': (lambda x: tfp.mcmc.TransformedTransitionKernel(
        tfp.mcmc.HamiltonianMonteCarlo(closure(x), 0.1, 3), tfb.Exp()), 1., 2.),
    'priors of Keras models': (
        lambda x: sgmcmc.keras.he_normal(x), 1., 2.),
    'priors with a learned scale': (
        lambda x: sgmcmc.keras.learned_scale(scale=x), 1., 2.),
}


def with_attribute(value):
  def f(x):
    return x * f.scale

  f.scale = value
  return f


def tf_module(value):
  class Network(tf.Module):

    def __init__(self):
      super().__init__()
      self.w = tf.Variable(value)
      self.parts = [tf.Variable(1.)]

  return Network()


@pytest.mark.parametrize('case', CASES)
def test_sees_what_makes_a_difference_and_nothing_else(case):
  make, one, other = CASES[case]
  first, again, second = of(make(one)), of(make(one)), of(make(other))
  assert not first.unseen
  assert difference(first.arguments, again.arguments) is None
  assert difference(first.arguments, second.arguments) is not None


def test_is_short_and_named():
  f = function('"Words."\ndef f(y, scale=3.):\n  "Words."\n  return y * S',
               S=2.)
  described = fingerprint(kernel=sgmcmc.SGLD(f, 0.1)).arguments
  assert described['kernel.class'] == 'SGLD'
  assert described['kernel.step_size'] == '0.1'
  name = 'kernel.target_log_prob_fn'
  assert described[f'{name}.globals.S'] == '2.0'
  assert described[f'{name}.default_0'] == '3.0'
  assert described[f'{name}.code'].endswith(
      f'in Python {sys.version_info.major}.{sys.version_info.minor}')
  assert len(described) < 30


def test_words_and_lines_do_not_count():
  one = function('def f(y):\n  """One."""\n  return y + 1')
  other = function('# Two\n\ndef f(y):\n  """Two."""\n\n  return y + 1  # Two')
  assert of(one) == of(other)


def test_what_a_function_does_not_use_does_not_count():
  one, other = (
      function('def f(y): return y * S', S=1., unused=k) for k in range(2))
  assert of(one) == of(other)


def test_calls_do_not_change_it():
  """Python rewrites the code of functions that run often."""
  f = function('def g(y): return y + S\ndef f(y): return g(y) * y', S=2)
  before = of(f)
  for k in range(10_000):
    f(k)
  assert of(f) == before


@pytest.mark.parametrize('value', [
    iter([1]), np.random.default_rng(0), tf.data.Dataset.range(3),
    sgmcmc.gradients.Stream(tf.data.Dataset.range(3).batch(2)),
    Likelihood(iter([1])), closure(iter([1]))],
    ids=lambda value: type(value).__name__)
def test_says_what_it_cannot_see(value):
  unseen = of(value).unseen[0]
  assert unseen.startswith('value') and '(of type ' in unseen


@pytest.mark.parametrize('value', [
    tf.nn.relu, tf.reduce_sum, np.exp, operator.itemgetter(1), len, tfd.Normal,
    object(), sys, types.SimpleNamespace(a=1), tf.float32, Likelihood])
def test_libraries_are_names(value):
  described = of(value)
  assert not described.unseen and len(described.arguments) < 10


def test_cycles_end():
  first, second = Likelihood(1.), Likelihood(2.)
  first.other, second.other = second, first
  f = function('def g(y): return f(y - 1)\ndef f(y): return y and g(y)')
  assert of([first, f]) == of([first, f])


def test_many_paths_to_a_function_are_one_description():
  source = 'def f0(y): return y\n' + '\n'.join(
      f'def f{k + 1}(y): return f{k}(y) + f{k}(y + g{k}(y))\n'
      f'def g{k}(y): return f{k}(y)' for k in range(20))
  described = of(function(source + '\nf = f20'))
  assert not described.unseen and len(described.arguments) < 300


def test_libraries_that_pip_put_into_a_folder(tmp_path, monkeypatch):
  """As `pip install --target FOLDER` does; the user's may lie beside them."""
  (tmp_path / 'a_library-1.0.dist-info').mkdir()
  (tmp_path / 'a_library-1.0.dist-info' / 'RECORD').write_text(
      'a_library/__init__.py,sha256=0,0\na_library/part.py,sha256=0,0\n')
  monkeypatch.syspath_prepend(tmp_path)
  for package, are_users in (('a_library', False), ('a_program', True)):
    (tmp_path / package).mkdir()
    (tmp_path / package / '__init__.py').write_text('')
    (tmp_path / package / 'part.py').write_text(
        'def f(): pass\nclass A: pass\n')
    part = importlib.import_module(f'{package}.part')
    for value in (part, part.f, part.A):
      assert is_users(value) == are_users
