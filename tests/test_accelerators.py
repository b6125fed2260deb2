"""The compiled programs of all kernels hold nothing that accelerators lack.

TensorFlow alone lowers each program to the HLO that the compilers of GPUs and
TPUs start from. In it there must be no operation of the host and no shape that
is known at run time alone, and its literals must not grow with the number of
parameters or examples. That the compilers take it, and at what cost, is for
`benchmarks/accelerators.py` to say.
"""

import math
import re
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests import catalogue
from tests import marks
from tests.keras import models
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.keras.fitting import step_of_chains

KERNELS = catalogue.KERNELS
# Whose step is in the program of a fit.
IN_FIT = [name for name, row in KERNELS.items() if row.in_fit]

# What no accelerator has: a call to the host, a shape known at run time alone.
FOREIGN = re.compile(
    r' (?:custom-call|infeed|outfeed|send|recv|set-dimension-size|'
    r'get-dimension-size)\(|\[<=')
LITERAL = re.compile(r'= (\w+)\[([\d,]*)\]\S* constant\(')
# A literal of one number for each of the 30,000 parameters is of 120 kB.
MAX_LITERALS = 100_000


def program(fn, *arguments):
  """The HLO of a function where there is an accelerator, as text."""
  with mock.patch.object(compat, 'sees_accelerators', return_value=True):
    return tf.function(
        fn, jit_compile=True, autograph=False).experimental_get_compiler_ir(
            *arguments)(stage='hlo')


def size_of_literals(hlo):
  """In bytes."""
  return sum(
      math.prod(map(int, filter(None, sizes.split(','))))
      * (1 if dtype == 'pred' else int(re.sub(r'\D', '', dtype)) // 8)
      for dtype, sizes in LITERAL.findall(hlo))


def foreign(hlo):
  """What no accelerator has, of the operations of a program."""
  sizes = dict(re.findall(r'(%\S+) = s32\[\]\S* constant\((\d+)\)', hlo))
  return [
      line for line in hlo.splitlines() if FOREIGN.search(line)
      # TensorFlow's mark of a size that is known, as sorting has it.
      and not any(
          sizes.get(name) == size for size, name in re.findall(
              r'\[(\d+)\]\S* set-dimension-size\(.* (%\S+)\)', line))]


def check(hlo):
  assert not foreign(hlo)
  assert size_of_literals(hlo) < MAX_LITERALS


@pytest.mark.weekly_after(2)
@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:.*not calibrated')
@pytest.mark.parametrize('name', marks.and_weekly(KERNELS, IN_FIT))
def test_the_program_of_sample_chain(name):
  """Of two chains, from the first results on, with a seed that is known."""
  row = KERNELS[name]
  kernel = row.wide_kernel()
  check(program(
      lambda state: tfp.mcmc.sample_chain(
          1, state, kernel=kernel, trace_fn=None, seed=[0, 1]),
      tf.zeros([2, row.num_wide])))


def program_of_fit(kernel, num_parameters=30_000, epochs=1, **arguments):
  """That of a training step, with the momenta and draws of a network."""
  model = keras.Sequential([
      keras.Input([10]),
      keras.layers.Dense(num_parameters // 20, use_bias=False),
      keras.layers.Dense(10, use_bias=False)])
  model.compile(
      'sgd', keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  sampling = sgmcmc.keras.PosteriorSampling(kernel, **{
      **dict(num_examples=8, prior=tfp.distributions.Normal(0., 1.), seed=0),
      **arguments})
  x, y = tf.zeros([8, 10]), tf.zeros([8], tf.int32)
  with models.made_by(step_of_chains, 'StepOfChains') as made:
    model.fit(
        x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=[sampling])
  return program(lambda *batch: made[-1].train_step(batch), x, y)


@pytest.mark.weekly_after(6)
@pytest.mark.slow
@pytest.mark.parametrize(
    'name', marks.and_weekly(IN_FIT, catalogue.VARIANTS))
def test_the_program_of_fit(name):
  row = KERNELS[name]
  arguments = models.at_times(0.1) if name.endswith('sbps') else {}
  check(program_of_fit(row.in_fit, row.num_wide, **arguments))


@pytest.mark.weekly_after(1)
@pytest.mark.slow
@pytest.mark.parametrize('arguments', [
    dict(kernel=models.EWSG),
    dict(kernel=None, prior=None),
    dict(kernel=sgmcmc.SGHMC, learning_rate='temperature',
         num_burnin_steps=100, epochs=101),
    dict(kernel=models.SGHMC, num_chains=2),
], ids=['ewsg', 'all that is chosen', 'adapted rate', 'two chains'])
def test_the_program_of_other_fits(arguments):
  check(program_of_fit(**arguments))


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.parametrize('is_tpu', [False, True])
def test_the_program_does_not_grow_with_the_weights(is_tpu, monkeypatch):
  """As text, but for the digits of the sizes in it."""
  monkeypatch.setattr(compat, 'sees_tpus', lambda: is_tpu)
  small, large = (
      program_of_fit(models.SGHMC, n) for n in (30_000, 3_000_000))
  check(large)
  assert len(large) < 1.1 * len(small)


def test_what_is_foreign_is_seen():
  """A call to the host, and a shape that the values decide."""
  with pytest.raises(Exception, match='PyFunc|EagerPyFunc'):
    program(lambda x: tf.numpy_function(np.sort, [x], tf.float32), tf.zeros(8))
  assert foreign(program(lambda x: tf.unique(x)[0], tf.zeros(8)))
  assert not foreign(program(lambda x: tf.argsort(x), tf.zeros(8)))


def test_a_large_literal_is_seen():
  hlo = program(lambda x: x + tf.range(30_000.), tf.zeros([]))
  assert size_of_literals(hlo) == 120_000
