"""SBPS on logistic regression in plain NumPy: the baseline of a benchmark.

The same sampler as `sgmcmc.StochasticBouncyParticleSampler` (one chain,
velocities on the sphere, standard normal prior), written as one would without a
framework: derivatives by hand, a Python loop over events, a bounce's gradient
only at a bounce.
"""

import concurrent.futures
import functools
import multiprocessing
import time

import numpy as np

from benchmarks import data
from benchmarks import worker

_LEARNING_RATE, _NOISE_RATE, _NOISE_FLOOR = 0.02, 0.25, 0.03


def run(
    x, y, batch_size, num_events, seed=0, start=None, confidence=3.,
    refresh_rate=1.):
  """Returns the corners of the path and the durations of its segments."""
  rng = np.random.default_rng(seed)
  num_examples, d = x.shape
  theta = np.zeros(d) if start is None else start
  v = _sphere(rng, d)
  gradient, value, c2 = _evaluate(rng, x, y, batch_size, theta, v)
  slope_mean = gradient @ gradient * batch_size / num_examples / d
  slope_variance = slope_mean**2
  lack, time = 0., 0.
  floor = _NOISE_FLOOR**2 * np.hypot(slope_mean, np.sqrt(slope_variance))
  statistics = _restart(value, c2 + floor)
  states, durations = np.empty([num_events, d]), np.empty(num_events)
  fractions = np.linspace(0., 1., 7)
  for event in range(num_events):
    weight, tbar, mean, square, product = statistics
    # The line's posterior, and the rate from here on.
    variance = slope_variance / (1. + slope_variance * square)
    slope = slope_mean + variance * (product - slope_mean * square)
    typical = np.hypot(slope_mean, np.sqrt(slope_variance))
    noise = c2 + lack + _NOISE_FLOOR**2 * typical
    longest = 5. / np.sqrt(np.hypot(slope, np.sqrt(variance)))
    late = time - tbar
    steepest = slope + confidence * np.sqrt(variance)
    rho = np.sqrt(1. / weight + late**2 * variance + noise)
    reach = min(
        longest,
        _arrival(mean + slope * late + confidence * rho,
                 slope + confidence * late * variance / rho, 3.),
        _arrival(mean + steepest * late, steepest, 3.))
    knots = reach * fractions
    behind = late + knots
    gamma = mean + slope * behind + confidence * np.sqrt(
        1. / weight + behind**2 * variance + noise)
    knots = np.append(knots, longest)
    gamma = np.append(gamma, gamma[-1] + steepest * (longest - reach))
    passed, bound = _first_arrival(knots, gamma, rng.exponential())
    refresh = rng.exponential() / refresh_rate
    is_refreshed = refresh < passed
    duration = min(passed, refresh)
    # Move, and look at a minibatch.
    theta = theta + duration * v
    time += duration
    if is_refreshed:
      v = _sphere(rng, d)
    batch = rng.choice(num_examples, batch_size, replace=False, shuffle=False)
    xb, yb = x[batch], y[batch]
    residual = 1. / (1. + np.exp(-xb @ theta)) - yb
    slopes = (xb @ v) * residual
    scale = num_examples / batch_size
    value = v @ theta + scale * slopes.sum()
    new_c2 = num_examples * scale * (
        1. - batch_size / num_examples) * slopes.var(ddof=1)
    is_bounce = (
        not is_refreshed and bound > 0. and rng.uniform() * bound < value)
    # What the regression learns.
    if is_refreshed:
      c2 = new_c2
    else:
      late = time - tbar
      lack = max(0., lack + _LEARNING_RATE * (
          (value - mean - slope * late)**2
          - 1. / weight - late**2 * variance - noise))
      c2 += _NOISE_RATE * (new_c2 - c2)
    noise = c2 + lack + _NOISE_FLOOR**2 * typical
    observed = _observe(statistics, time, value, noise)
    if is_bounce or is_refreshed:
      square, product = (statistics if is_refreshed else observed)[3:]
      variance = slope_variance / (1. + slope_variance * square)
      high = variance * (product - slope_mean * square)
      slope_mean += _LEARNING_RATE * high
      slope_variance += _LEARNING_RATE * (
          (1. - _LEARNING_RATE) * high**2 + variance - slope_variance)
      statistics = _restart(-value if is_bounce else value, noise)
      time = 0.
    else:
      statistics = observed
    if is_bounce:
      gradient = theta + scale * residual @ xb
      v = v - 2. * (v @ gradient) / (gradient @ gradient) * gradient
    states[event], durations[event] = theta, duration
  return states, durations


def _sphere(rng, d):
  v = rng.normal(size=d)
  return v / np.sqrt(v @ v)


def _evaluate(rng, x, y, batch_size, theta, v):
  batch = rng.choice(len(x), batch_size, replace=False, shuffle=False)
  residual = 1. / (1. + np.exp(-x[batch] @ theta)) - y[batch]
  scale = len(x) / batch_size
  gradient = theta + scale * residual @ x[batch]
  slopes = (x[batch] @ v) * residual
  c2 = len(x) * scale * (1. - batch_size / len(x)) * slopes.var(ddof=1)
  return gradient, v @ gradient, c2


def _restart(value, variance):
  return 1. / variance, 0., value, 0., 0.


def _observe(statistics, time, value, variance):
  old, tbar, mean, square, product = statistics
  weight = old + 1. / variance
  share = 1. / (variance * weight)
  late, high = time - tbar, value - mean
  return (weight, tbar + share * late, mean + share * high,
          square + old * share * late * late,
          product + old * share * late * high)


def _arrival(value, slope, level):
  """When the integral of [value + slope t]_+ reaches the level."""
  if value > 0.:
    square = value * value + 2. * slope * level
    return 2. * level / (value + np.sqrt(square)) if square >= 0. else np.inf
  if slope > 0.:
    return -value / slope + np.sqrt(2. * level / slope)
  return np.inf


def _first_arrival(knots, gamma, level):
  """Time and rate; the last knot, with a rate of 0, where there is none."""
  for k in range(len(knots) - 1):
    width, left, right = knots[k + 1] - knots[k], gamma[k], gamma[k + 1]
    positive, total = max(left, 0.) + max(right, 0.), abs(left) + abs(right)
    piece = 0.5 * width * positive * positive / total if total else 0.
    if piece > level:
      slope = (right - left) / width
      passed = min(width, _arrival(left, slope, level))
      return knots[k] + passed, max(left + slope * passed, 0.)
    level -= piece
  return knots[-1], 0.


def prepare(case):
  if 'num_processes' in case:
    return _in_processes(case)
  x, y = data.examples(case)
  start = np.array(case['mode'])

  def turn(seed):
    nonlocal start
    states, durations = run(
        x, y, case['batch_size'], case['num_events'], seed, start)
    start = states[-1]
    return data.along(states, durations)

  return turn


def _in_processes(case):
  """A chain in each of several processes."""
  x, y = data.examples(case)  # Forked processes have them.
  pool = concurrent.futures.ProcessPoolExecutor(
      case['num_processes'], multiprocessing.get_context('fork'),
      initializer=_TABLE.extend, initargs=([x, y],))

  def turn(seed):
    return dict(cpu=sum(pool.map(
        functools.partial(_one_chain, case),
        range(seed, seed + case['num_processes']))))

  return turn


_TABLE = []  # Of a process: x and y.


def _one_chain(case, seed):
  """Runs a chain; returns its processor seconds."""
  begin = time.process_time()
  run(*_TABLE, case['batch_size'], case['num_events'], seed,
      np.array(case['mode']))
  return time.process_time() - begin


if __name__ == '__main__':
  worker.serve(prepare)
