"""The move of the answers, against the exact law at both step sizes."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc

compare = functools.partial(
    sgmcmc.diagnostics.compare_step_sizes, num_results=300,
    current_state=tf.zeros([200]), num_burnin_steps=30, seed=1)


def sgld(step_size):
  return sgmcmc.SGLD(lambda x: -x**2 / 2., step_size)


def test_sgld_moves_as_its_law_does():
  """1 / (1 - h / 2) on N(0, 1); within 5 standard errors, of less than 3%."""
  mean, variance = compare(sgld(0.8)).rows
  assert mean.verdict == 'fine' and abs(mean.value) < 5. * mean.standard_error
  move = (1. - 0.2) / (1. - 0.4) - 1.
  assert abs(variance.value - move) < 5. * variance.standard_error < 0.15
  assert variance.verdict != 'fine' and 'half of it' in variance.advice


def test_a_function_and_a_schedule():
  """E|x| moves by the root; a constant schedule is the number."""
  row, = compare(sgld(lambda step: 0.8 + 0. * tf.cast(step, tf.float32)),
                 fn=tf.abs).rows
  ratio = np.sqrt((1. - 0.2) / (1. - 0.4))
  move = np.sqrt(2. / np.pi) * (ratio - 1.) / np.sqrt(1. - 2. / np.pi)
  assert abs(row.value - move) < 5. * row.standard_error


def test_refused():
  with pytest.raises(TypeError, match='no step_size to halve'):
    compare(sgmcmc.TemperatureStepSizeAdaptation(sgld(0.1), 10))
