"""Two chains in processes of their own, of which one is killed on its way.

  python tests/keras/killed_chains.py DIRECTORY [dask]

The test runs it as the cells of a notebook are run: then what it defines is in
no file that a process could import.
"""

import concurrent.futures
import functools
import os
import pathlib
import signal
import sys

import keras
import numpy as np
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc


class KillOnce(keras.callbacks.Callback):
  """Kills the first process that comes to the end of the tenth epoch."""

  def __init__(self, folder):
    super().__init__()
    self._folder = folder

  def on_epoch_end(self, epoch, logs=None):
    if epoch == 9:
      try:
        (self._folder / 'killed').touch(exist_ok=False)
      except FileExistsError:
        return
      os.kill(os.getpid(), signal.SIGKILL)


def make_model(folder):
  with (folder / 'processes').open('a') as file:
    file.write(f'{os.getpid()}\n')
  model = keras.Sequential([
      keras.Input([3]), keras.layers.Dense(4, 'tanh'), keras.layers.Dense(1)])
  model.compile('adam', sgmcmc.keras.GaussianLikelihood(scale=1.))
  return model


def fit_arguments(folder):
  rng = np.random.default_rng(0)
  x = rng.normal(size=[40, 3])
  return dict(
      x=x, y=x[:, :1], batch_size=10, epochs=30, shuffle=False,
      callbacks=[KillOnce(folder)])


def chains(folder, directory, executor=None):
  return sgmcmc.keras.fit_chains(
      functools.partial(make_model, folder),
      functools.partial(fit_arguments, folder), dict(
          kernel=functools.partial(sgmcmc.SGHMC, step_size=0.01, friction=20.),
          prior=tfp.distributions.Normal(0., 1.), start_epoch=2,
          num_examples=40),
      num_chains=2, directory=directory, executor=executor, seed=3)


def main(folder, executor=''):
  if executor == 'dask':
    import dask.distributed
    cluster = dask.distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None)
    client = dask.distributed.Client(cluster)
    killed = chains(folder, folder / 'chains', client.get_executor())
    client.shutdown()
  else:
    killed = chains(folder, folder / 'chains')
  assert (folder / 'killed').exists()
  # This process, two chains, and once more the one that was killed.
  processes = (folder / 'processes').read_text().split()
  assert len(processes) == 4 and len(set(processes)) >= 3, processes
  whole = chains(folder, None, concurrent.futures.ThreadPoolExecutor(1))
  assert [len(chain) for chain in killed.chains] == [112, 112]
  for ours, theirs in zip(killed.weights.values(), whole.weights.values()):
    np.testing.assert_array_equal(ours, theirs)


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
