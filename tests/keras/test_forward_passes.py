"""Predictions for each row once, whatever passes a kernel makes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.keras.model import forward_passes
from tfp_sgmcmc.keras.model import network

NUM_ROWS = 5
OWN = 100.


def forward_pass(rows, offset=0., mask=False):
  """A pass whose outputs are the numbers of its rows, plus an offset."""
  outputs = tf.cast(rows, tf.float32)[:, tf.newaxis] + offset
  if mask:
    compat.with_mask(outputs, rows[:, tf.newaxis] % 2 == 0)
  return network.ForwardPass(
      weights=[], outputs={'a': outputs, 'b': [2. * outputs]}, penalties=[],
      layer_losses=[tf.reduce_mean(outputs)], updates=[])


def run(make_passes, how, mask=False):
  """The outputs for each row and the loss, after some passes."""

  def step():
    passes = forward_passes.ForwardPasses(
        NUM_ROWS, lambda: forward_pass(tf.range(NUM_ROWS), OWN, mask))
    make_passes(passes)
    joined = passes.of_each_row()
    masks = [compat.mask(leaf) for leaf in keras.tree.flatten(joined.outputs)]
    return joined.outputs, joined.layer_losses, [
        mask for mask in masks if mask is not None]

  if how != 'eager':
    step = tf.function(step, autograph=False, jit_compile=how == 'xla')
  outputs, (loss,), masks = step()
  np.testing.assert_array_equal(outputs['b'][0], 2. * outputs['a'])
  return outputs['a'].numpy()[:, 0].tolist(), float(loss), masks


def add(passes, rows, offset=0., mask=False):
  passes.add(rows, forward_pass(rows, offset, mask))


def dealt(*sets):
  return lambda passes: [
      add(passes, tf.gather(passes.rows, indices), 10. * k)
      for k, indices in enumerate(sets)]


def twice(passes):
  add(passes, passes.rows)
  add(passes, passes.rows, 10.)


def part_then_whole(passes):
  add(passes, passes.rows[1:], 10.)
  add(passes, passes.rows)


@pytest.mark.parametrize('how', ['eager', 'graph', 'xla'])
@pytest.mark.parametrize('make_passes, expected', [
    (lambda passes: add(passes, passes.rows), [0., 1., 2., 3., 4.]),
    (twice, [0., 1., 2., 3., 4.]),
    (part_then_whole, [0., 1., 2., 3., 4.]),
    (dealt([3, 0, 4], [1, 2]), [0., 11., 12., 3., 4.]),
    (dealt([3, 0, 4], [1, 3, 2, 0]), [0., 11., 12., 3., 4.]),
    (dealt([3, 0], [1, 2]), [100., 101., 102., 103., 104.]),
    (lambda passes: None, [100., 101., 102., 103., 104.]),
], ids=['whole', 'twice', 'part then whole', 'dealt', 'overlapping',
        'one left out', 'none'])
def test_each_row_once(make_passes, expected, how):
  outputs, loss, _ = run(make_passes, how)
  assert outputs == expected
  if 103. in expected or expected == [0., 1., 2., 3., 4.]:
    assert np.isclose(loss, np.mean(expected))


def test_losses_of_parts_weigh_as_their_rows():
  _, loss, _ = run(dealt([3, 0, 4], [1, 2]), 'graph')
  assert np.isclose(loss, (3 * 7. / 3. + 2 * 11.5) / 5.)


@pytest.mark.parametrize('how', ['graph', 'xla'])
@pytest.mark.parametrize('before', [False, True])
def test_passes_within_control_flow_are_left_out(before, how):

  def make_passes(passes):
    if before:
      add(passes, passes.rows)

    def inside():
      add(passes, passes.rows, 10.)
      return 0.

    tf.cond(tf.random.stateless_uniform([], [0, 0]) < 2., inside, lambda: 1.)
    tf.while_loop(lambda k: k < 2., lambda k: k + 1. + inside(), [0.])

  outputs, _, _ = run(make_passes, how)
  assert outputs[0] == (0. if before else OWN)


@pytest.mark.parametrize('how', ['eager', 'graph'])
@pytest.mark.parametrize('sets', [
    [[3, 0, 4], [1, 2]], [[3, 0], [1, 2]], []], ids=str)
def test_masks_go_with_the_outputs(sets, how):

  def make_passes(passes):
    for indices in sets:
      add(passes, tf.gather(passes.rows, indices), mask=True)

  _, _, (mask,) = run(make_passes, how, mask=True)
  np.testing.assert_array_equal(
      np.squeeze(mask), [True, False, True, False, True])


def test_state_goes_on_from_part_to_part():
  counter = keras.Variable(0.)
  passes = forward_passes.ForwardPasses(2, lambda: None)
  assert passes.updates(passes.rows) == []
  for value, rows in enumerate((passes.rows[:1], passes.rows[1:])):
    made = forward_pass(rows)._replace(updates=[(counter, 1. + value)])
    passes.add(rows, made)
    assert passes.updates(passes.rows[:1]) == [(counter, 1. + value)]
  assert passes.updates(passes.rows) == []
  ((variable, value),) = passes.of_each_row().updates
  assert variable is counter and value == 2.
