"""A residual network of 20 layers: cyclical SGHMC in mixed bfloat16."""

import functools
import gc
import tracemalloc

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks import networks
import tfp_sgmcmc as sgmcmc

NUM_EXAMPLES, BATCH_SIZE = 32, 16


def images(seed=0):
  """Noise of 32 by 32; the class is the brightest of four quarters."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=[NUM_EXAMPLES, 32, 32, 3]).astype(np.float32)
  y = rng.integers(0, 4, NUM_EXAMPLES)
  for row, k in zip(x, y):
    row[16 * (k // 2):][:16, 16 * (k % 2):][:, :16] += 2.
  return x, y


@functools.cache
def holds_bytes(kind):
  """Whether a class is of tensors or variables that have values."""
  return issubclass(kind, (tf.Tensor, tf.Variable)) and hasattr(kind, 'numpy')


def num_bytes(leaf):
  return (leaf.shape.num_elements() or 0) * leaf.dtype.size


class Memory(keras.callbacks.Callback):
  """Bytes of Python, NumPy and TensorFlow at each epoch's end but the first."""

  def __init__(self):
    super().__init__()
    self.sizes = []

  def on_epoch_end(self, epoch, logs=None):
    gc.collect()
    if not epoch:
      tracemalloc.start()
    self.sizes.append(
        tracemalloc.get_traced_memory()[0] + sum(map(num_bytes, {
            id(leaf): leaf for leaf in gc.get_objects()
            if holds_bytes(type(leaf))}.values())))

  def on_train_end(self, logs=None):
    tracemalloc.stop()


@pytest.mark.slow
def test_what_tensorflow_holds_is_seen():
  memory, held = Memory(), []
  for epoch in range(3):
    held.append(tf.zeros([epoch * 1_000_000]))
    memory.on_epoch_end(epoch)
  memory.on_train_end()
  assert memory.sizes[2] - memory.sizes[1] > 7_900_000


@pytest.mark.weekly
@pytest.mark.slow
def test_draws_of_a_residual_network_stream_to_disk(tmp_path):
  """One at the end of each cycle; what is in memory is none of them."""
  keras.utils.set_random_seed(0)
  keras.config.set_dtype_policy('mixed_bfloat16')
  try:
    model = networks.resnet20()
  finally:
    keras.config.set_dtype_policy('float32')
  model.compile('sgd', keras.losses.SparseCategoricalCrossentropy(
      from_logits=True))
  steps_a_cycle = NUM_EXAMPLES // BATCH_SIZE
  sampling = sgmcmc.keras.PosteriorSampling(
      functools.partial(
          sgmcmc.SGHMC, friction=3.,
          step_size=keras.optimizers.schedules.CosineDecayRestarts(
              0.03, steps_a_cycle, t_mul=1.)),
      num_examples=NUM_EXAMPLES, prior=tfp.distributions.Normal(0., 1.),
      temperature=0.01, num_burnin_steps=steps_a_cycle - 1,
      num_steps_between_results=steps_a_cycle - 1, seed=0,
      directory=tmp_path)
  x, y = images()
  memory = Memory()
  history = model.fit(x, y, batch_size=BATCH_SIZE, epochs=5, verbose=0,
                      callbacks=[sampling, memory])
  posterior = sampling.posterior
  weights = posterior.weights
  assert len(posterior) == 5
  for name, draws in weights.items():
    assert draws.dtype == np.float32 and np.all(np.isfinite(draws)), name
    changed = np.reshape(draws[1:] != draws[:-1], [len(draws) - 1, -1])
    assert np.all(np.any(changed, axis=1)), name
  size = sum(draws[0].nbytes for draws in weights.values())
  written = sum(f.stat().st_size for f in tmp_path.rglob('*') if f.is_file())
  assert size > 1_000_000 and written > 5 * size
  assert memory.sizes[-1] - memory.sizes[1] < size  # Of three draws.
  losses = history.history['loss']
  assert losses[-1] < losses[0] and np.isfinite(losses[-1])
