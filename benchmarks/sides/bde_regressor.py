"""One fit of sklearn-contrib-bde, with the settings of its own benchmark.

  python -m benchmarks.sides.bde_regressor CASE.npz PREDICTIONS.npz

CASE has the rows, `seed` and `num_warmup_steps`. Written are the means and
scales `[draw, row]` of the test rows, for each network of each member.
"""

import os
import sys

os.environ.setdefault(
    'XLA_FLAGS', f'--xla_force_host_platform_device_count={os.cpu_count()}')

import bde
from bde.loss import loss
import numpy as np


def main(case: str, predictions: str) -> None:
  with np.load(case) as given:
    values = dict(given)
  regressor = bde.BdeRegressor(
      n_members=10, hidden_layers=[16, 16, 16, 16], loss=loss.GaussianNLL(),
      epochs=1200, validation_split=0.15, lr=1e-3, weight_decay=1e-4,
      warmup_steps=int(values['num_warmup_steps']), n_samples=1000,
      n_thinning=10, patience=20, seed=int(values['seed']))
  regressor.fit(x=values['x'], y=values['y'])
  raw = np.asarray(regressor.predict(values['x_test'], raw=True), np.float64)
  rows = raw.reshape([-1, *raw.shape[-2:]])
  np.savez(
      predictions, means=rows[..., 0], scales=np.logaddexp(0., rows[..., 1]))


if __name__ == '__main__':
  main(*sys.argv[1:])
