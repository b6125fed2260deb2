"""No variable of a chain is of `int32`.

TensorFlow keeps those in the CPU's memory, and a step that XLA compiles for a
GPU, as Keras does there by itself, stops at the first one. Seen on an H100.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.parametrize('arguments', [
    {}, {'num_chains': 2}, {'kernel': sgmcmc.SGNHT, 'learning_rate': 1e-3},
    {'temperature': 'validation'}],
    ids=['default', 'chains', 'SGNHT', 'validation'])
def test_no_variable_is_of_int32(arguments):
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=[40, 3]).astype(np.float32), rng.normal(size=[40, 1])
  inputs = keras.Input([3])
  model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
  model.compile('adam', sgmcmc.keras.GaussianLikelihood())
  dtypes = []

  def note(next_creator, **kwargs):
    variable = next_creator(**kwargs)
    dtypes.append(variable.dtype)
    return variable

  with tf.variable_creator_scope(note):
    tf.Variable(np.zeros(2, np.int32))  # The control: it is seen.
    model.fit(
        x, y, batch_size=10, epochs=8, verbose=0, validation_split=0.2,
        callbacks=[sgmcmc.keras.PosteriorSampling(seed=0, **arguments)])
  assert dtypes[0] == tf.int32 and len(dtypes) > 5
  assert tf.int32 not in dtypes[1:]
