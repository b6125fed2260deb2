"""Effective samples a gradient of samplers in continuous time.

  python -m benchmarks.bouncy_efficiency [--scale 1]

The logistic regression of Pakman et al. (2017): N = 1,000, d = 20, minibatches
of n = 100. The smallest effective sample size over the coordinates, a million
gradients of single examples (a directional derivative of one counts as a
gradient). SGLD and mSGNHT come with several step sizes and the largest error of
a standard deviation against the posterior's: more speed is to be had from them
for more bias.
"""

import argparse
import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tensorflow_probability as tfp  # noqa: E402

from tests.pdmp import logistic  # noqa: E402
import tfp_sgmcmc as sgmcmc  # noqa: E402
from tfp_sgmcmc import pdmp  # noqa: E402

UNIFORM = sgmcmc.gradients.Uniform(100)


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
  print(f'{"":<36}{"ESS":>9}{"gradients":>10}{"ESS a":>12}{"error":>12}\n'
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
  parser.add_argument('--scale', type=float, default=1.)
  efficiency(parser.parse_args().scale)


if __name__ == '__main__':
  main()
