"""Long HMC of a network's posterior at T = 1, on whatever device JAX finds.

  python jax_hmc.py CASE.npz RESULT.npz --seconds 60 [--chains 4] [--most 1000]

CASE is what `benchmarks.long_hmc` writes. This file imports nothing but JAX and
NumPy, so that it can be carried to a machine with a GPU.

Chains start from networks by Adam. In the first half of the time the step size
of each is adapted to an acceptance of 0.8, by dual averaging; after it steps
are 0.7 of that, and stay. The mass of a weight is made three times, of its
information: 1 / prior variance + N times the variance of a row's gradient. A
trajectory has the length pi / 2 in these units at the median step size of the
chains, in 8 steps at least and `--most` at most (64 in the first stage). All
chains take equally many. Steps vary by 20% from one trajectory to the next.

RESULT has the mean predictions over the draws of each half of the time that
remains, and what tells of the chains: see `report`. Adam and compiling are not
counted; predictions are. Where transitions are slow, it runs on until each
stage has 50 of them, and each half a draw.
"""

import argparse
import functools
import json
import math
import time

import jax
from jax import flatten_util
import jax.numpy as jnp
import numpy as np

NUM_ADAM_STEPS, BATCH_SIZE, NUM_ROWS_FOR_MASS = 5000, 100, 1000
TARGET = 0.8
FEWEST = 50  # Transitions of each stage of the warm-up.


def initial_weights(key, shape, layers):
  """Glorot's kernels and zero biases.

  Args:
    key: Of the random numbers.
    shape: Of an input row: `(features,)`, or `(height, width, channels)`.
    layers: What `outputs` takes.

  Returns:
    weights: A kernel and a bias of each layer that has weights.
  """
  weights = []
  for layer in layers:
    kind, *numbers = layer
    if kind == 'pool':
      shape = (shape[0] // numbers[0], shape[1] // numbers[0], shape[2])
    elif kind == 'flatten':
      shape = (math.prod(shape),)
    else:
      key, own = jax.random.split(key)
      units, window = numbers[0], 1
      if kind == 'conv':
        window = numbers[1]**2
        shape = (shape[0] - numbers[1] + 1, shape[1] - numbers[1] + 1,
                 shape[2])
      fan_in = window * shape[-1]
      kernel = (fan_in, units) if kind == 'dense' else (
          numbers[1], numbers[1], shape[-1], units)
      limit = math.sqrt(6. / (fan_in + window * units))
      weights += [jax.random.uniform(own, kernel, minval=-limit, maxval=limit),
                  jnp.zeros([units])]
      shape = (*shape[:-1], units)
  return weights


def outputs(weights, x, layers):
  """Of one network; `relu` after each layer of weights but the last.

  Args:
    weights: Kernels and biases in turn.
    x: Rows, `[n] + shape`.
    layers: `['dense', units]`, `['conv', units, window]`, `['pool', window]` or
      `['flatten']` each.

  Returns:
    outputs: `[n, units]`.
  """
  weights = iter(weights)
  for k, (kind, *numbers) in enumerate(layers):
    if kind == 'pool':
      size = numbers[0]
      height, width = (number // size for number in x.shape[1:3])
      x = jnp.max(x[:, :height * size, :width * size].reshape(
          [-1, height, size, width, size, x.shape[3]]), axis=[2, 4])
      continue
    if kind == 'flatten':
      x = x.reshape([len(x), -1])
      continue
    kernel, bias = next(weights), next(weights)
    x = bias + (x @ kernel if kind == 'dense' else jax.lax.conv_general_dilated(
        x, kernel, (1, 1), 'VALID', dimension_numbers=('NHWC', 'HWIO', 'NHWC')))
    if k < len(layers) - 1:
      x = jax.nn.relu(x)
  return x


def log_prob(found, y, likelihood):
  """Of targets, given outputs; as `benchmarks.tables` has these likelihoods."""
  if likelihood == 'classes':
    return jnp.take_along_axis(
        jax.nn.log_softmax(found), y[:, jnp.newaxis], axis=-1)[:, 0]
  normal = jax.scipy.stats.norm.logpdf
  if likelihood == 'one_scale':
    return normal(y, found[:, 0], 0.5)
  if likelihood == 'mixture':
    logits, means, scales = jnp.split(found, 3, axis=-1)
    return jax.nn.logsumexp(
        jax.nn.log_softmax(logits) + normal(
            y[:, jnp.newaxis], means, 1e-3 + jax.nn.softplus(scales)), axis=-1)
  scale = jnp.maximum(jax.nn.softplus(found[:, 1]), 1e-6)
  if likelihood == 'student_t':
    return jax.scipy.stats.t.logpdf(y, 4., found[:, 0], scale)
  return normal(y, found[:, 0], scale)


def transition(log_density, force_density, key, theta, scales, step, num_steps):
  """HMC with the masses scales^-2.

  Args:
    log_density: Callable of the weights.
    force_density: Callable of the weights whose gradient is the force; it may
      be rounded more.
    key: Of the random numbers.
    theta: All weights, `[d]`.
    scales: Of a step of each, `[d]`.
    step: Scalar; it is varied by 20% here.
    num_steps: Of the trajectory.

  Returns:
    theta: The next weights.
    acceptance: The probability with which the end was to be taken.
  """
  for_momentum, for_step, for_decision = jax.random.split(key, 3)
  step = step * jax.random.uniform(for_step, minval=0.8, maxval=1.2)
  momentum = jax.random.normal(for_momentum, theta.shape)

  def force(theta):
    return scales * jax.grad(force_density)(theta)

  def leapfrog(_, state):
    theta, momentum, slope = state
    momentum = momentum + step / 2. * slope
    theta = theta + step * scales * momentum
    slope = force(theta)
    return theta, momentum + step / 2. * slope, slope

  there, momentum_there, _ = jax.lax.fori_loop(
      0, num_steps, leapfrog, (theta, momentum, force(theta)))
  gain = (log_density(there) - jnp.sum(momentum_there**2) / 2.
          - log_density(theta) + jnp.sum(momentum**2) / 2.)
  acceptance = jnp.where(
      jnp.isfinite(gain), jnp.exp(jnp.minimum(gain, 0.)), 0.)
  taken = jax.random.uniform(for_decision) < acceptance
  return jnp.where(taken, there, theta), acceptance


def adapt(state, acceptance):
  """Dual averaging (Hoffman and Gelman, 2014, section 3.2)."""
  start, count, error, _, mean = state
  count = count + 1.
  error = error + (TARGET - acceptance - error) / (count + 10.)
  log_step = start - jnp.sqrt(count) / 0.05 * error
  weight = count**-0.75
  return start, count, error, log_step, weight * log_step + (1. - weight) * mean


def averaging(step):
  """Dual averaging anew, from a step size: what `adapt` takes."""
  zero = jnp.zeros_like(step)
  return jnp.log(10. * step), zero, zero, jnp.log(step), jnp.log(step)


class Sampler:
  """Compiled functions of all chains."""

  def __init__(self, case, num_chains):
    self.case, self.num_chains = case, num_chains
    weights = initial_weights(
        jax.random.key(0), case['shape'], case['layers'])
    _, self.unravel = flatten_util.ravel_pytree(weights)
    self.deviations, _ = flatten_util.ravel_pytree([
        jnp.full_like(w, deviation)
        for w, deviation in zip(weights, case['deviations'], strict=True)])
    has_windows = any(layer[0] == 'conv' for layer in case['layers'])
    # A convolution whose kernel differs by chain is slow, so chains go one
    # after another there. Forces may be rounded more than the density: any
    # force leaves the law as it is.
    self.over_chains = self.mapped if has_windows else jax.vmap
    # Transitions between predictions.
    self.block_size = 1 if has_windows else 5
    self.force_precision = 'default' if has_windows else 'highest'

  @staticmethod
  def mapped(function):
    return lambda *values: jax.lax.map(lambda each: function(*each), values)

  def log_likelihood(self, theta, x, y):
    return log_prob(outputs(self.unravel(theta), x, self.case['layers']), y,
                    self.case['likelihood'])

  def log_prior(self, theta):
    return -0.5 * jnp.sum((theta / self.deviations)**2)

  def log_density(self, theta, rows, precision='highest'):
    with jax.default_matmul_precision(precision):
      return self.log_prior(theta) + jnp.sum(self.log_likelihood(theta, *rows))

  @functools.partial(jax.jit, static_argnums=0)
  def by_adam(self, keys, x, y):
    def one(key):
      for_start, for_rows = jax.random.split(key)
      theta, _ = flatten_util.ravel_pytree(initial_weights(
          for_start, self.case['shape'], self.case['layers']))
      num_rows = len(x)

      def loss(theta, rows):
        return -jnp.mean(self.log_likelihood(
            theta, x[rows], y[rows])) - self.log_prior(theta) / num_rows

      def step(k, state):
        theta, mean, square = state
        rows = jax.random.randint(
            jax.random.fold_in(for_rows, k), [BATCH_SIZE], 0, num_rows)
        slope = jax.grad(loss)(theta, rows)
        mean = 0.9 * mean + 0.1 * slope
        square = 0.999 * square + 0.001 * slope**2
        unbiased = jnp.sqrt(1. - 0.999**(k + 1.)) / (1. - 0.9**(k + 1.))
        return (theta - 1e-3 * unbiased * mean / (jnp.sqrt(square) + 1e-7),
                mean, square)

      zero = jnp.zeros_like(theta)
      return jax.lax.fori_loop(0, NUM_ADAM_STEPS, step, (theta, zero, zero))[0]
    return self.over_chains(one)(keys)

  @functools.partial(jax.jit, static_argnums=0)
  def scales(self, theta, x, y):
    """(1 / prior variance + N times the variance of a gradient)^(-1/2)."""
    def one(theta):
      rows = jax.random.permutation(
          jax.random.key(1), len(x))[:NUM_ROWS_FOR_MASS]
      rows = rows[:len(rows) // 50 * 50].reshape([-1, 50])

      def moments(part):
        slopes = jax.vmap(lambda k: jax.grad(
            lambda t: self.log_likelihood(
                t, x[k][jnp.newaxis], y[k][jnp.newaxis])[0])(theta))(part)
        return jnp.mean(slopes, 0), jnp.mean(slopes**2, 0)

      first, second = (jnp.mean(m, 0) for m in jax.lax.map(moments, rows))
      variance = jnp.maximum(second - first**2, 0.)
      return jax.lax.rsqrt(
          self.deviations**-2 + len(x) * variance)
    return self.over_chains(one)(theta)

  @functools.partial(jax.jit, static_argnums=0)
  def block(self, adapts, key, theta, scales, state, num_steps, rows):
    """Some transitions of all chains.

    Args:
      adapts: Whether steps are adapted.
      key: Of the random numbers.
      theta: `[chain, d]`.
      scales: `[chain, d]`.
      state: Of dual averaging, arrays `[chain]`.
      num_steps: Of a trajectory.
      rows: x and y.

    Returns:
      theta: `[chain, d]`, the last.
      state: The last.
      acceptance: `[chain]`, the mean.
      density: `[chain]`, the last log density.
    """
    density = functools.partial(self.log_density, rows=rows)
    force = functools.partial(density, precision=self.force_precision)

    def one(key, theta, scales, state):
      def body(carry, key):
        theta, state = carry
        log_step = jnp.where(adapts, state[3], state[4])
        theta, acceptance = transition(
            density, force, key, theta, scales, jnp.exp(log_step), num_steps)
        state = jax.tree.map(
            functools.partial(jnp.where, adapts), adapt(state, acceptance),
            state)
        return (theta, state), acceptance

      (theta, state), acceptance = jax.lax.scan(
          body, (theta, state), jax.random.split(key, self.block_size))
      return theta, state, jnp.mean(acceptance), density(theta)
    return self.over_chains(one)(
        jax.random.split(key, self.num_chains), theta, scales, state)

  @functools.partial(jax.jit, static_argnums=0)
  def predictions(self, theta, x, y):
    """Logs of probabilities of all classes, or of the density at the target."""
    def one(theta):
      found = outputs(self.unravel(theta), x, self.case['layers'])
      if self.case['likelihood'] == 'classes':
        return jax.nn.log_softmax(found)
      return log_prob(found, y, self.case['likelihood'])
    return self.over_chains(one)(theta)


def nll(case, name, log_mean):
  """Of mean predictions, whose logs are given."""
  y = np.asarray(case['tests'][name][1])
  if case['likelihood'] == 'classes':
    log_mean = np.take_along_axis(
        log_mean, y[..., np.newaxis], axis=-1)[..., 0]
  return float(-np.mean(log_mean))


def run(case, seconds, num_chains, most):
  """Runs all chains.

  Args:
    case: What `about` of `benchmarks.long_hmc` has, `rows` and `tests`.
    seconds: Of warm-up and draws together.
    num_chains: How many.
    most: The largest number of steps of a trajectory.

  Returns:
    sums: By test, for each half, logs of sums of predictions `[chain, ...]`.
    counts: The number of draws of a chain in each half.
    num_gradients: Of all rows, of one chain.
    trace: A dictionary for each block of transitions.
  """
  sampler = Sampler(case, num_chains)
  key = jax.random.key(0)
  rows = case['rows']
  theta = sampler.by_adam(jax.random.split(key, num_chains), *rows)
  scales = sampler.scales(theta, *rows)
  # Of a given dtype: with a weak one `block` would be compiled again later.
  state = averaging(jnp.full([num_chains], 1e-3, jnp.float32))
  num_steps, in_stage = 32, 0
  # All programs are compiled before the time begins.
  jax.block_until_ready((
      sampler.block(True, key, theta, scales, state, 1, rows),
      [sampler.predictions(theta, *test) for test in case['tests'].values()]))
  sums, counts, trace, adapted, num_gradients = {}, [0, 0], [], 0, 0
  told = begin = time.monotonic()
  while (share := (time.monotonic() - begin) / seconds) < 1. or not counts[1]:
    stage = adapted
    if adapted < 3 and share >= (adapted + 1.) / 6. and in_stage >= FEWEST:
      stage, in_stage = adapted + 1, 0
    warms_up = stage < 3
    if stage != adapted:
      if stage < 3:
        scales = sampler.scales(theta, *rows)
        state = averaging(jnp.exp(state[4]))
      if stage == 3:
        # Chains go on to where it is steeper than where steps were adapted.
        state = (*state[:4], state[4] + math.log(0.7))
      adapted = stage
    if trace:
      step = float(np.exp(np.median(state[4])))
      # In the first stage Adam's networks are far from where chains stay.
      num_steps = max(8, min(
          math.ceil(math.pi / 2. / step), 64 if stage == 0 else most))
    key, own = jax.random.split(key)
    theta, state, acceptance, density = sampler.block(
        warms_up, own, theta, scales, state, num_steps, rows)
    num_gradients += sampler.block_size * (num_steps + 1)
    in_stage += sampler.block_size
    trace.append(dict(
        stage=stage, transitions=sampler.block_size,
        seconds=round(time.monotonic() - begin, 2), steps=num_steps,
        step_sizes=np.exp(state[4]).tolist(),
        acceptance=np.asarray(acceptance).tolist(),
        log_density=np.asarray(density).tolist()))
    if time.monotonic() > told + 15.:
      told = time.monotonic()
      print({k: v if np.ndim(v) == 0 else np.round(v, 4).tolist()
             for k, v in trace[-1].items()}, flush=True)
    if warms_up:
      continue
    half = int(share > 0.75 and counts[0] > 0)
    counts[half] += 1
    for name, (x, y) in case['tests'].items():
      found = sampler.predictions(theta, x, y)
      if name not in sums:
        sums[name] = [jnp.full_like(found, -jnp.inf)] * 2
      sums[name][half] = jnp.logaddexp(sums[name][half], found)
  return sums, counts, num_gradients, trace


def report(case, sums, counts, num_gradients, trace):
  """What is to be kept.

  Args:
    case: As `run` takes it.
    sums: Of `run`, as the others.
    counts: Likewise.
    num_gradients: Likewise.
    trace: Likewise.

  Returns:
    about: A summary, for JSON.
    means: By test, the mean predictions of each half `[half, ...]`.
  """
  kept = [line for line in trace if line['stage'] == 3]
  about = dict(
      draws=counts, gradients=num_gradients,
      transitions=sum(line['transitions'] for line in trace),
      warm_up=sum(
          line['transitions'] for line in trace if line['stage'] < 3),
      leapfrog_steps=kept[-1]['steps'], step_sizes=kept[-1]['step_sizes'],
      acceptance=np.mean([k['acceptance'] for k in kept], 0).tolist(),
      device=jax.devices()[0].device_kind, jax=jax.__version__,
      seconds=trace[-1]['seconds'],
      log_density=[line['log_density'] for line in trace][::max(
          1, len(trace) // 50)],
      nll={}, nll_of_chains={}, nll_of_halves={})
  means = {}
  for name, values in sums.items():
    values = [np.float64(v) for v in values]
    total = np.logaddexp(*values) - math.log(sum(counts))
    halves = [pooled(v) - math.log(n) for v, n in zip(values, counts)]
    about['nll'][name] = nll(case, name, pooled(total))
    about['nll_of_chains'][name] = [nll(case, name, each) for each in total]
    about['nll_of_halves'][name] = [nll(case, name, each) for each in halves]
    means[name] = np.float32(np.exp(halves))
  return about, means


def pooled(of_chains):
  """The log of the mean over chains."""
  return np.logaddexp.reduce(of_chains, axis=0) - math.log(len(of_chains))


def rows_of(file, number):
  return tuple(jnp.asarray(file[f'{name}{number}']) for name in 'xy')


def main():
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('case')
  parser.add_argument('result')
  parser.add_argument('--seconds', type=float, default=60.)
  parser.add_argument('--chains', type=int, default=4)
  parser.add_argument('--most', type=int, default=1000)
  arguments = parser.parse_args()
  with np.load(arguments.case) as file:
    case = json.loads(str(file['about']))
    names = case.pop('tests')
    case.update(rows=rows_of(file, ''), tests={
        name: rows_of(file, f'_{k}') for k, name in enumerate(names)})
  about, means = report(case, *run(
      case, arguments.seconds, arguments.chains, arguments.most))
  about['most'] = arguments.most
  np.savez_compressed(
      arguments.result, about=json.dumps(about), **{
          f'mean_{k}': means[name] for k, name in enumerate(names)})
  print(arguments.result, json.dumps({
      k: v for k, v in about.items() if k != 'log_density'}), flush=True)


if __name__ == '__main__':
  main()
