"""What is kept with an object lives with it, and is no part of it."""

import copy
import gc
import pickle
import weakref

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import fingerprint
from tfp_sgmcmc.internal import kept


class Model:
  """An object of the user's, with a number that it is compared by."""

  def __init__(self, number):
    self.number = number
    self.num_traces = 0

  def scaled(self, x):
    def scale(x):
      self.num_traces += 1
      return self.number * x

    return kept.function(self, 'scaled', scale)(x)


def test_it_is_traced_once_for_each_form():
  model = Model(3.)
  for _ in range(3):
    np.testing.assert_array_equal(model.scaled(tf.ones([2])), [3., 3.])
  assert model.num_traces == 1
  model.scaled(tf.ones([4]))
  assert model.num_traces == 2
  tf.function(model.scaled)(tf.ones([2]))
  assert model.num_traces == 3


def test_it_belongs_to_one_object():
  model = Model(3.)
  model.scaled(tf.ones([2]))
  by_pickle = lambda model: pickle.loads(pickle.dumps(model))
  for make in (copy.copy, copy.deepcopy, by_pickle):
    copied = make(model)
    copied.number = 5.
    assert not kept.of(copied)
    assert copied.scaled(1.) == 5.
  assert model.scaled(1.) == 3.


def test_it_is_no_part_of_a_fingerprint():
  model, other = Model(3.), Model(3.)
  model.scaled(tf.ones([2]))
  other.num_traces = 1
  assert fingerprint.fingerprint(model=model) == fingerprint.fingerprint(
      model=other)


def test_it_ends_with_its_object():
  model = Model(3.)
  model.scaled(tf.ones([2]))
  ended = weakref.ref(model)
  del model
  gc.collect()
  assert ended() is None


def test_an_object_without_attributes_keeps_nothing():
  kept.of((1, 2))['key'] = 3
  assert not kept.of((1, 2))
