"""Events a second of SBPS, and effective samples a gradient.

  python -m benchmarks.events_per_second

The logistic regression of Pakman et al. (2017): d = 20, minibatches of n = 100.

Speed: N = 1,000, one chain and 100 chains, against `benchmarks/numpy_sbps.py`,
a plain NumPy version of the same sampler (its 100 chains would run one after
the other, at the speed of one); and N = 1,000,000. Each line is the best of
some runs, the cases in turn, so that ratios hold on a machine whose speed
drifts.

Efficiency: the smallest effective sample size over the coordinates, a million
gradients of single examples (a directional derivative of one counts as a
gradient), for N = 1,000. SGLD and mSGNHT come with several step sizes and the
largest error of a standard deviation against HMC: more speed is to be had from
them for more bias.
"""

import argparse
import os
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tensorflow_probability as tfp  # noqa: E402

from benchmarks import numpy_sbps  # noqa: E402
from tests.pdmp import logistic  # noqa: E402
import tfp_sgmcmc as sgmcmc  # noqa: E402
from tfp_sgmcmc import pdmp  # noqa: E402

UNIFORM = sgmcmc.gradients.Uniform(100)


def library_runner(posterior, state, num_events):
  """Returns a function that gives the events a second of one run."""
  kernel = sgmcmc.StochasticBouncyParticleSampler(
      posterior, gradient_estimator=UNIFORM)
  chains = int(np.prod(state.shape[:-1]))

  @tf.function(jit_compile=True)
  def run(seed):
    return tfp.mcmc.sample_chain(
        1, state, kernel=kernel, num_burnin_steps=num_events - 1,
        trace_fn=None, seed=seed)

  def call(seed):
    start = time.perf_counter()
    run(tf.constant([0, seed])).numpy()
    return chains * num_events / (time.perf_counter() - start)

  call(0)
  return call


def numpy_runner(posterior, num_events):
  x, y = (leaf.numpy() for leaf in posterior.data)

  def call(seed):
    start = time.perf_counter()
    numpy_sbps.run(x, y, 100, num_events, seed)
    return num_events / (time.perf_counter() - start)

  return call


def speed(repeats):
  small, large = (logistic.posterior(num_examples=n) for n in (1000, 1_000_000))
  cases = {
      'NumPy, N=1,000': numpy_runner(small, 2000),
      'N=1,000': library_runner(small, tf.zeros([20]), 20_000),
      'N=1,000,000': library_runner(large, tf.zeros([20]), 20_000),
      'N=1,000, 100 chains': library_runner(small, tf.zeros([100, 20]), 500),
      'N=1,000,000, 100 chains': library_runner(
          large, tf.zeros([100, 20]), 500),
  }
  rates = {name: [] for name in cases}
  for repeat in range(repeats):
    for name, call in cases.items():
      rates[name].append(call(repeat + 1))
  baseline = max(rates['NumPy, N=1,000'])
  for name, values in rates.items():
    print(f'{name:<28}{max(values):>12,.0f} events/s '
          f'(median {np.median(values):,.0f}){max(values) / baseline:>8.1f} x '
          'NumPy', flush=True)


def sampled(kernel, state, num_results, thin=0, trace_fn=None):
  @tf.function(jit_compile=True)
  def run():
    return tfp.mcmc.sample_chain(
        num_results, state, kernel=kernel, num_steps_between_results=thin,
        num_burnin_steps=num_results // 10, trace_fn=trace_fn, seed=[1, 2])
  return run()


def report(name, draws, num_gradients, law):
  """`draws` [K, chains, d]; `num_gradients` used for them by all chains."""
  draws = np.asarray(draws, np.float64)
  size = np.asarray(tfp.mcmc.effective_sample_size(
      draws, filter_beyond_positive_pairs=True)).sum(axis=0).min()
  error = np.abs(draws.std(axis=(0, 1)) / law.sd - 1.).max()
  print(f'{name:<36}{size:>9.0f}{num_gradients / 1e6:>10.1f}'
        f'{size / num_gradients * 1e6:>12.2f}{error:>12.1%}', flush=True)


def efficiency(scale):
  posterior, law = logistic.posterior(), logistic.law(0)
  chains = 20
  state = logistic.start(law, chains, 0, np.float32)
  print(f'\n{"":<36}{"ESS":>9}{"gradients":>10}{"ESS a":>12}{"error":>12}\n'
        f'{"":<36}{"":>9}{"/ 1e6":>10}{"million":>12}{"of an sd":>12}')
  for confidence in (3., 5.):
    for name, preconditioner in (
        ('SBPS', None),
        ('pSBPS', sgmcmc.preconditioners.RMSProp(normalize=True))):
      events = int(20_000 * scale)
      path = pdmp.Trajectory.from_chain(*sampled(
          sgmcmc.StochasticBouncyParticleSampler(
              posterior, gradient_estimator=UNIFORM, confidence=confidence,
              preconditioner=preconditioner),
          state, events, trace_fn=pdmp.trace_path))
      counts = path.counts
      # A preconditioner learns from the gradient of each event.
      with_gradient = (
          counts.bounces if preconditioner is None else counts.events)
      report(f'{name}, n=100, k={confidence:g}', path.sample(events // 10),
             100 * (counts.events + with_gradient), law)
  bound = pdmp.LogisticRegressionBound(posterior.data[0], prior_scale=1.)
  for name, make, interval in (
      ('lipSBPS, n=1', sgmcmc.BouncyParticleSampler, 0.2),
      ('ZZ-SS, n=1', sgmcmc.ZigZagSampler, 0.05)):
    kernel = pdmp.UniformTime(
        make(posterior, rate_bound=bound,
             gradient_estimator=sgmcmc.gradients.Uniform(1)), interval)
    draws, events = sampled(
        kernel, state, int(250 * scale),
        trace_fn=lambda _, results: results.num_events)
    report(name, draws, np.sum(events), law)
  for name, make, sizes in (
      ('SGLD', lambda h: sgmcmc.SGLD(
          posterior, h, gradient_estimator=UNIFORM), (3e-5, 1e-4, 3e-4)),
      ('mSGNHT', lambda h: sgmcmc.SGNHT(
          posterior, h, diffusion=10., thermostat='diagonal',
          gradient_estimator=UNIFORM), (1e-3, 3e-3, 1e-2))):
    for h in sizes:
      num, thin = int(2000 * scale), 9
      draws = sampled(make(h), state, num, thin)
      report(f'{name}, n=100, h={h:g}', draws,
             100 * num * (thin + 1) * chains, law)


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--repeats', type=int, default=3)
  parser.add_argument('--scale', type=float, default=1.)
  parser.add_argument('--only', choices=('speed', 'efficiency'))
  arguments = parser.parse_args()
  if arguments.only != 'efficiency':
    speed(arguments.repeats)
  if arguments.only != 'speed':
    efficiency(arguments.scale)


if __name__ == '__main__':
  main()
