"""Loss functions of one's own that are said to be -log p."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
import tfp_sgmcmc as sgmcmc


@keras.saving.register_keras_serializable('tests')
def crossentropy(y, outputs):
  """That of Keras, of each example: the outputs are logits."""
  return tf.nn.sparse_softmax_cross_entropy_with_logits(
      tf.cast(tf.reshape(y, [-1]), tf.int32), outputs)


def sampled(loss):
  sampling = models.make_sampling()
  models.fit(models.classifier(loss=loss, run_eagerly=True), sampling)
  return sampling.posterior[0]


def test_it_gives_the_chain_of_the_same_loss_by_name():
  ours = sampled(sgmcmc.keras.NegativeLogLikelihood(crossentropy))
  theirs = sampled(keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  for a, b in zip(ours, theirs):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_elements_of_an_example_are_summed():
  loss = sgmcmc.keras.NegativeLogLikelihood(lambda y, z: tf.square(y - z))
  values = loss.call(tf.zeros([4, 3]), tf.ones([4, 3]))
  np.testing.assert_array_equal(values, [3.] * 4)


def test_it_survives_saving():
  loss = sgmcmc.keras.NegativeLogLikelihood(crossentropy)
  again = keras.losses.deserialize(keras.losses.serialize(loss))
  y, z = tf.constant([0, 2]), tf.constant([[1., 2., 3.], [3., 2., 1.]])
  assert float(again(y, z)) == float(loss(y, z))


@pytest.mark.parametrize('reduce', [
    tf.reduce_mean, tf.reduce_sum,
    lambda values: tf.reduce_mean(values, keepdims=True)])
def test_sums_and_means_over_examples_are_refused(reduce):
  loss = sgmcmc.keras.NegativeLogLikelihood(
      lambda y, z: reduce(crossentropy(y, z)))
  with pytest.raises(ValueError, match='do not sum or average'):
    loss.call(tf.zeros([4]), tf.ones([4, 3]))

  @tf.function(input_signature=[tf.TensorSpec([None, 3])])
  def traced(z):
    return loss.call(tf.zeros(tf.shape(z)[:1]), z)

  with pytest.raises(ValueError, match='do not sum or average'):
    traced(tf.ones([4, 3]))


def test_the_error_for_other_functions_names_it():
  with pytest.raises(ValueError, match=r'NegativeLogLikelihood\(function\)'):
    sampled(crossentropy)


def test_what_is_no_function():
  with pytest.raises(TypeError, match='fn is 3'):
    sgmcmc.keras.NegativeLogLikelihood(3)
