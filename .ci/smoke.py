"""Tries an installed package: its version, a chain, and a short fit."""

import importlib.metadata
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc

assert sgmcmc.__version__ == importlib.metadata.version('tfp_sgmcmc')

posterior = sgmcmc.Posterior(
    lambda mu: -0.5 * mu**2, lambda mu, batch: -0.5 * (batch - mu)**2,
    np.full(100, 2., np.float32))
kernel = sgmcmc.SGLD(
    posterior, 1e-2, gradient_estimator=sgmcmc.gradients.Uniform(10))
draws = sgmcmc.sample(kernel, 100, tf.zeros([]), seed=0, progress_bar=False)
assert len(draws) == 100 and np.isfinite(draws.mean())

x = np.linspace(-1., 1., 64)[:, np.newaxis]
model = keras.Sequential([keras.Input([1]), keras.layers.Dense(2)])
model.compile('sgd', sgmcmc.keras.GaussianLikelihood())
with tempfile.TemporaryDirectory() as folder:
  sampling = sgmcmc.keras.PosteriorSampling(directory=folder, seed=0)
  model.fit(x, 2. * x, epochs=40, verbose=0, callbacks=[sampling])
  assert sampling.posterior.predict(x).shape == (64, 1)

print(
    f'tfp_sgmcmc {sgmcmc.__version__} works on Python '
    f'{sys.version.split()[0]}, TensorFlow {tf.__version__}, '
    f'Keras {keras.__version__}')
