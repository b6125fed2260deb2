"""A small step is one kernel of the compiled program, and moves as many do.

`tests/test_contract.py` compares the steps of all kernels.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests import oracle
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import program
from tfp_sgmcmc.internal import one_kernel

VARIABLE = tf.Variable(2.)
UNIFORM = sgmcmc.gradients.Uniform(4, replacement=True)


def compiled(fn, *args):
  """The function as one kernel, in a program; None where it is not small."""
  small = one_kernel.make(one_kernel.trace(fn, *args))
  return small and tf.function(small, jit_compile=True, autograph=False)


def sgld(estimator=UNIFORM):
  return sgmcmc.SGLD(
      oracle.GaussianModel().posterior(), 0.05, gradient_estimator=estimator)


def draws(kernel, num_results=20, chains=()):
  return sgmcmc.sample(
      kernel, num_results, tf.zeros([*chains, 3]), num_steps_between_results=2,
      seed=1, progress_bar=False).states.numpy()


def twice_sine(x):
  return tf.while_loop(lambda k, x: k < 2, lambda k, x: (k + 1, tf.sin(x)), (
      0, x))[1]


@pytest.mark.parametrize('fn', [
    lambda x, y: [x + y],
    # XLA ends the process where a kernel's parameter is not used.
    lambda x, y: [x + 1.],
    lambda x, y: [tf.constant([1., 2., 3.])],
    lambda x, y: [tf.zeros_like(x), y],
    lambda x, y: [y, x],
    lambda x, y: [x, x, x * y, x * y],
    lambda x, y: [tf.where(x > 0., x, y), tf.cast(y > 0., tf.int32)],
    lambda x, y: [tf.while_loop(
        lambda k, x: k < 3, lambda k, x: (k + 1, tf.sin(x) * y), (0, x))[1]],
    lambda x, y: [tf.cond(
        x[0] > 0., lambda: twice_sine(tf.zeros([3])),
        lambda: twice_sine(tf.ones([3])))],
    lambda x, y: [tf.cond(
        x[0] > 1., lambda: x,
        lambda: tf.cond(y[0] > 0., lambda: twice_sine(y), lambda: x))],
    lambda x, y: [tf.gather(tf.tanh(x), [2, 0, 0]), tf.cumsum(y)],
    lambda x, y: [tf.einsum('i,j->ij', x, y)],
])
def test_any_function_of_what_it_is_given(fn):
  x, y = tf.constant([0.1, 0.2, 0.3]), tf.constant([0.5, -0.2, 0.3])
  one = compiled(fn, x, y)
  for ours, plain in zip(one(x, y), fn(x, y), strict=True):
    assert ours.dtype == plain.dtype
    np.testing.assert_allclose(ours, plain, rtol=1e-6)
  hlo = one.experimental_get_compiler_ir(x, y)(stage='optimized_hlo')
  assert 'xla_cpu_small_call="true"' in hlo


@pytest.mark.parametrize('equation, shapes, is_small', [
    ('mk,kn->mn', ([16, 32], [32, 32]), True),
    ('mk,kn->mn', ([17, 31], [31, 29]), True),
    ('bmk,bkn->bmn', ([2, 16, 16], [2, 16, 7]), True),
    ('mk,k->m', ([128, 100], [100]), True),
    ('mk,kn->mn', ([64, 64], [64, 64]), False),
    ('mk,k->m', ([200, 100], [100]), False)])
def test_matrix_products(equation, shapes, is_small):
  """Larger ones are a library's, with many threads."""
  rng = np.random.default_rng(0)
  a, b = (tf.constant(rng.normal(size=shape)) for shape in shapes)
  fn = lambda a, b: [tf.tanh(tf.einsum(equation, a, b))]
  one = compiled(fn, a, b)
  assert (one is not None) == is_small
  if is_small:
    np.testing.assert_allclose(one(a, b)[0], fn(a, b)[0], rtol=1e-12)


@pytest.mark.parametrize('fn', [
    lambda x: [tf.sort(x)],
    lambda x: [tf.math.unsorted_segment_sum(x, [0, 1, 1], 2)],
    lambda x: [tf.linalg.cholesky(tf.linalg.diag(x))],
    lambda x: [tf.nn.conv1d(
        x[tf.newaxis, :, tf.newaxis], tf.ones([2, 1, 1]), 1, 'SAME')],
    lambda x: [tf.reduce_sum(tf.ones([200, 1]) * tf.ones([1, 100]) * x[0])],
    lambda x: [tf.zeros([0])],
    lambda x: [x * VARIABLE],
    lambda x: [tf.py_function(lambda x: x, [x], tf.float32)],
], ids=['sort', 'scatter', 'cholesky', 'convolution', 'large', 'empty',
        'variable', 'not for XLA'])
def test_what_is_not_one_kernel(fn):
  assert compiled(fn, tf.constant([0.1, 0.2, 0.3])) is None


@pytest.fixture
def calls(monkeypatch):
  """A list with an entry, the number of outputs, for each kernel made."""
  calls = []
  real = one_kernel.compat.call_as_one_kernel
  monkeypatch.setattr(
      one_kernel.compat, 'call_as_one_kernel', lambda function, *args:
      calls.append(len(function.outputs)) or real(function, *args))
  return calls


@pytest.mark.slow
def test_sample_takes_one_kernel_and_makes_the_same_draws(monkeypatch, calls):
  ours = draws(sgld())
  assert calls
  calls.clear()
  draws(sgld(), chains=[2, 2])
  draws(sgld(), chains=[33])
  assert not calls  # Over several axes, or many chains, it would be slower.
  monkeypatch.setattr(one_kernel, 'IS_ON', False)
  calls.clear()
  np.testing.assert_allclose(ours, draws(sgld()), rtol=1e-5, atol=1e-6)
  assert not calls


def by_tfp(kernel):
  """The program of TFP's driver: draws, and the numbers of their steps."""
  return tf.function(
      lambda state: tfp.mcmc.sample_chain(
          20, state, kernel=kernel, seed=[0, 1],
          trace_fn=lambda _, results: results.step),
      jit_compile=True, autograph=False)


@pytest.mark.filterwarnings('ignore:.*not calibrated')
@pytest.mark.parametrize('make', [
    sgld, pytest.param(lambda: sgmcmc.SelfTuning(
        sgmcmc.SGNHT(
            oracle.GaussianModel().posterior(), 0.01, 0., thermostat='part',
            gradient_estimator=UNIFORM), 100),
                       marks=[pytest.mark.slow, pytest.mark.weekly])],
                         ids=['SGLD', 'a wrapper'])
def test_a_step_in_sample_chain_is_one_kernel(make, calls, monkeypatch):
  ours = by_tfp(make())(tf.zeros([3]))
  assert len(calls) == 1
  for shape in ([33, 3], [2, 2, 3]):
    by_tfp(sgld()).get_concrete_function(tf.zeros(shape))
  monkeypatch.setattr(one_kernel, 'IS_ON', False)
  # Rounding adds up over the steps.
  for own, plain in zip(ours, by_tfp(make())(tf.zeros([3]))):
    np.testing.assert_allclose(own, plain, rtol=1e-4, atol=5e-5)
  assert len(calls) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:.*not calibrated')
def test_a_step_on_data_that_the_program_is_given(calls):
  """Its program cannot be looked at before there are data: it is many."""
  @tf.function(jit_compile=True, autograph=False)
  def run(x):
    kernel = sgmcmc.SGLD(sgmcmc.Posterior(
        lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1),
        lambda theta, x: -0.5 * tf.reduce_sum((x - theta)**2, axis=-1), x),
        1e-4, gradient_estimator=UNIFORM)
    return tfp.mcmc.sample_chain(
        500, tf.zeros([3]), kernel=kernel, trace_fn=None, seed=[0, 1])

  x = tf.random.stateless_normal([2000, 3], [0, 1])
  for shift in (0., 5.):
    np.testing.assert_allclose(
        np.mean(run(x + shift)[250:], axis=0), 3 * [shift], atol=0.5)
  assert not calls


def traced(chunk_size, trace_fn=lambda _, results: results.step):
  return sgmcmc.sample(
      sgld(), 150, tf.zeros([4, 3]), num_burnin_steps=5, trace_fn=trace_fn,
      num_steps_between_results=2, chunk_size=chunk_size, seed=1,
      progress_bar=False)


@pytest.mark.weekly
@pytest.mark.slow
def test_blocks_of_draws(monkeypatch, calls):
  """A kernel makes 64 draws: whole blocks, and the rest of a chunk."""
  ours = [traced(chunk_size) for chunk_size in (1, 63, 64, 65, 150)]
  # A kernel of one draw gives the steps alone; of a block the draws too.
  assert all(number > calls[0] for number in calls[1:])
  monkeypatch.setattr(one_kernel, 'IS_ON', False)
  many = traced(150)
  np.testing.assert_array_equal(many.trace, 6 + 3 * np.arange(150))
  for run in ours:
    np.testing.assert_array_equal(run.states, ours[0].states)
    np.testing.assert_array_equal(run.trace, many.trace)
    np.testing.assert_allclose(run.states, many.states, rtol=1e-4, atol=1e-5)
    assert int(run.kernel_results.step) == int(many.kernel_results.step)
    np.testing.assert_array_equal(run.states[-1], run.final_state)


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('trace_fn', [
    lambda state, _: tf.sort(state), lambda state, _: tf.tile(state, [1, 5000])
], ids=['no kernel can hold it', 'large'])
def test_what_is_traced_may_need_kernels_of_its_own(calls, trace_fn):
  ours = traced(8, trace_fn)
  num_of_steps = calls[0]
  calls.clear()
  plain = traced(8)
  # The steps are one kernel all the same; of a block the draws are more.
  assert calls[0] > num_of_steps
  np.testing.assert_allclose(
      ours.states, plain.states, rtol=1e-4, atol=1e-5)
  np.testing.assert_array_equal(
      ours.trace, [trace_fn(state, None) for state in ours.states])


def test_functions_that_run_eagerly():
  tf.config.run_functions_eagerly(True)
  try:
    eagerly = draws(sgld(), num_results=2)
  finally:
    tf.config.run_functions_eagerly(False)
  np.testing.assert_allclose(eagerly, draws(sgld(), num_results=2), rtol=1e-5)


def test_data_are_not_part_of_the_program():
  """They stay where they are: a copy a step would take milliseconds."""
  x = tf.random.stateless_normal([200_000, 3], [0, 1])
  kernel = sgmcmc.SGLD(sgmcmc.Posterior(
      lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1),
      lambda theta, x: -0.5 * tf.reduce_sum((x - theta)**2, axis=-1), x),
      1e-6, gradient_estimator=sgmcmc.gradients.Uniform(10, replacement=True))
  results = kernel.bootstrap_results(tf.zeros([3]))
  start = tf.nest.flatten((tf.zeros([3]), results))

  def steps(*leaves):
    return tf.while_loop(
        lambda k, leaves: k < 5,
        lambda k, leaves: (k + 1, tf.nest.flatten(kernel.one_step(
            *tf.nest.pack_sequence_as((tf.zeros([3]), results), leaves),
            seed=tf.stack([0, k])))),
        (0, list(leaves)))[1]

  small = one_kernel.make(one_kernel.trace(steps, *start))
  program = tf.function(
      lambda *leaves: tf.while_loop(
          lambda k, leaves: k < 5, lambda k, leaves: (k + 1, small(*leaves)),
          (0, list(leaves)))[1], jit_compile=True, autograph=False)
  hlo = program.experimental_get_compiler_ir(*start)(stage='optimized_hlo')
  tables = [line for line in hlo.splitlines() if '= f32[200000,3]' in line]
  assert tables and not any(
      word in line for line in tables for word in (' copy(', ' constant('))


@pytest.mark.weekly
@pytest.mark.slow
def test_what_xla_cannot_make_one_kernel_is_many(monkeypatch):
  """Where our list of what a kernel can hold has a mistake in it."""
  monkeypatch.setattr(
      one_kernel, '_HELD', one_kernel._HELD | {'scatter'})
  compiled_steps = []
  real = program.Program.compiled
  monkeypatch.setattr(
      program.Program, 'compiled',
      lambda self, steps: compiled_steps.append(steps) or real(self, steps))
  tried = draws(sgld(sgmcmc.gradients.SAGA(4)))
  assert len(compiled_steps) == 2  # One kernel, which XLA refuses, and many.
  monkeypatch.undo()
  np.testing.assert_array_equal(tried, draws(sgld(sgmcmc.gradients.SAGA(4))))


def test_the_global_generator_is_left_alone():
  def next_number():
    tf.random.set_seed(1)
    return float(tf.random.normal([]))

  expected = next_number()
  tf.random.set_seed(1)
  draws(sgld(), num_results=1)
  assert float(tf.random.normal([])) == expected
