"""Steps of `fit`: SGD with momentum, or PosteriorSampling.

Its kernel is SGHMC, or with `is_default` what it takes by itself. With
`num_draws` so many draws are kept on disk, in the second half of a turn; else
one, at its end.
"""

import tempfile

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks import networks
from benchmarks import worker
import tfp_sgmcmc as sgmcmc


def prepare(case):
  model = networks.named(case['network'])
  num_steps, size = case['num_steps'], case['batch_size']
  rng = np.random.default_rng(0)
  x = rng.uniform(size=[num_steps * size, *model.input_shape[1:]])
  data = tf.data.Dataset.from_tensor_slices((
      x.astype(np.float32), rng.integers(0, 10, len(x)))).batch(
          size, drop_remainder=True)
  callbacks = []
  folder = tempfile.TemporaryDirectory() if 'num_draws' in case else None
  if case['sampling']:
    num_draws, num_burnin = 1, num_steps
    if folder is not None:
      num_draws, num_burnin = case['num_draws'], num_steps // 2
    kernel = {'start_epoch': 0} if case.get('is_default') else {
        'kernel': sgmcmc.SGHMC, 'learning_rate': 1e-3, 'momentum': 0.9}
    callbacks = [sgmcmc.keras.PosteriorSampling(
        **kernel, num_examples=len(x),
        prior=tfp.distributions.Normal(0., 1.),
        num_steps_between_results=num_burnin // num_draws - 1, seed=0,
        num_burnin_steps=num_burnin - 1,
        directory=None if folder is None else folder.name)]
  model.compile(
      keras.optimizers.SGD(1e-3, momentum=0.9),
      keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      metrics=['accuracy'], jit_compile=case.get('jit_compile', False),
      steps_per_execution=case.get('steps_per_execution', 1))

  def turn(seed, folder=folder):  # It is kept as long as the turn.
    del seed, folder
    model.fit(data, epochs=1, verbose=0, callbacks=callbacks)

  return turn


if __name__ == '__main__':
  worker.serve(prepare)
