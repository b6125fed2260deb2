"""The law of SBPS against the exact one, on the paper's logistic regression.

  python -m benchmarks.sbps_law

N = 1,000, d = 20, five data seeds, float32 and float64, with (n, k) = (100, 3),
(100, 5) and (300, 3). Each line has the largest error of a mean in standard
deviations, the standard deviations over the exact ones, the largest standard
errors of both, and the share of proposals with a rate above the bound. Groups
of 200 chains share their minibatches (the gather is what costs); the standard
errors are by a jackknife over the groups.
"""

import argparse
import os
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402

from tests.pdmp import logistic  # noqa: E402
import tfp_sgmcmc as sgmcmc  # noqa: E402


def row(seed, batch_size, confidence, dtype, num_groups, num_events):
  law = logistic.law(seed)
  kernel = sgmcmc.StochasticBouncyParticleSampler(
      logistic.posterior(seed, np.dtype(dtype)), confidence=confidence,
      gradient_estimator=sgmcmc.gradients.Uniform(
          batch_size, share_minibatch=True))
  run = logistic.path_runner(lambda: kernel)
  start = time.perf_counter()
  runs = [
      run(logistic.start(law, 200, group, dtype), law.mean, num_events,
          (seed, group))
      for group in range(num_groups)]
  seconds = time.perf_counter() - start
  c = logistic.compare(runs, law, law.mean)
  print(
      f'{seed:>4} {batch_size:>4} {confidence:>3g} {np.dtype(dtype).name:<8}'
      f'{np.abs(c.mean_error).max():>8.3f} ({c.mean_standard_error.max():.3f})'
      f'{c.sd_ratio.min():>8.3f} to {c.sd_ratio.max():.3f}'
      f' ({c.sd_standard_error.max():.3f})'
      f'{c.violation_share:>9.2%}{c.events_per_bounce:>8.1f}'
      f'{seconds:>7.0f} s', flush=True)
  return c


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--seeds', type=int, default=5)
  parser.add_argument('--groups', type=int, default=6)
  parser.add_argument('--events', type=int, default=2000)
  parser.add_argument('--dtypes', nargs='+', default=['float32', 'float64'])
  arguments = parser.parse_args()
  print('seed    n   k dtype    mean error (s.e.)    sd over exact (s.e.)'
        '  violated  events/bounce')
  worst_mean, worst_sd = 0., 0.
  for dtype in arguments.dtypes:
    for batch_size, confidence in ((100, 3.), (100, 5.), (300, 3.)):
      for seed in range(arguments.seeds):
        c = row(seed, batch_size, confidence, dtype, arguments.groups,
                arguments.events)
        worst_mean = max(worst_mean, np.abs(c.mean_error).max())
        worst_sd = max(worst_sd, np.abs(c.sd_ratio - 1.).max())
  print(f'largest: mean {worst_mean:.3f} sd, sd {worst_sd:.1%}')


if __name__ == '__main__':
  main()
