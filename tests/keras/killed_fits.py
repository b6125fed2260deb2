"""A `fit` that is killed again and again; run by hand.

  python -m tests.keras.killed_fits NUMBER_OF_KILLS [backup]

One process imports TensorFlow and forks for each run: an import takes longer
than a run. It may not use TensorFlow itself before. With `backup` each run has
Keras' `BackupAndRestore`, on alternating sides of the sampler.
"""

import functools
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
import traceback

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import store

tfd = tfp.distributions
BATCHES = 20


def run(epochs, directory, backup=None, order=1):
  """A run of batches that are the same in each epoch."""
  store.COMMIT_SECONDS = 0.05
  rng = np.random.default_rng(0)
  x = rng.normal(size=[8 * BATCHES - 3, 4]).astype(np.float32)
  y = np.argmax(x, axis=-1)
  data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(
      400, seed=1, reshuffle_each_iteration=False).batch(8)
  keras.utils.set_random_seed(0)
  model = keras.Sequential([
      keras.Input([4]), keras.layers.Dense(8, 'tanh'), keras.layers.Dense(4)])
  model.compile(
      'adam', keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      run_eagerly=True)  # Else most of each run would be compilation.
  sampling = sgmcmc.keras.PosteriorSampling(
      functools.partial(sgmcmc.SGNHT, step_size=0.005, diffusion=20.),
      num_examples=len(x), prior=tfd.Normal(0., 1.), num_burnin_steps=50,
      num_steps_between_results=4, start_epoch=2, seed=3, directory=directory)
  callbacks = [sampling]
  if backup is not None:
    callbacks.append(keras.callbacks.BackupAndRestore(str(backup)))
  model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks[::order])


def _fork(*arguments):
  child = os.fork()
  if child:
    return child
  try:
    run(*arguments)
  except BaseException:
    traceback.print_exc()
    os._exit(1)
  os._exit(0)


def _wait(child):
  return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _manifest(directory):
  try:
    return (directory / 'manifest.json').read_bytes()
  except FileNotFoundError:
    return b''


def main(num_kills, with_backup):
  """Compares a run killed at random moments with one that was not."""
  folder = pathlib.Path(tempfile.mkdtemp())
  epochs = 12 + 2 * num_kills  # A run is not to end before its kill.
  assert _wait(_fork(epochs, folder / 'whole')) == 0
  draws, backup = folder / 'killed', folder / 'backup' if with_backup else None
  for k in range(num_kills):
    before = _manifest(draws)
    child = _fork(epochs, draws, backup, (-1)**k)
    while _manifest(draws) == before and os.waitpid(
        child, os.WNOHANG) == (0, 0):
      time.sleep(0.002)
    time.sleep(random.uniform(0., 1.))
    os.kill(child, signal.SIGKILL)
    assert _wait(child) == -signal.SIGKILL
    killed = store.Store(draws, 'fit')
    print(f'kill {k + 1}: step {killed.step}, {killed.num_draws} draws, '
          f'marks {killed.marks}', flush=True)
  assert _wait(_fork(epochs, draws, backup)) == 0
  found = [store.Store(folder / name, 'fit') for name in ('whole', 'killed')]
  whole, killed = ({
      **{f'draws {name}': array for name, array in each.draws.read(
          range(len(each.draws))).items()},
      **each.checkpoint()} for each in found)
  assert whole.keys() == killed.keys()
  for name, array in whole.items():
    np.testing.assert_array_equal(array, killed[name], name)
  print(f'{num_kills} kills, {len(found[0].draws)} draws, step '
        f'{found[0].step}: the same bit for bit')


if __name__ == '__main__':
  main(int(sys.argv[1]), 'backup' in sys.argv[2:])
