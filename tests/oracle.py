"""The exact law of linear samplers at finite steps, and tests against it.

On a Gaussian target a step is linear in the state z,

  z <- M z + N_e e + N_x xi,  e ~ (0, C) from the minibatch, xi ~ N(0, I),

so a law of mean m and covariance P has M m and M P M' + N_e C N_e' + N_x N_x'
after it, and the stationary covariance is the P that stays: `LinearStep`. The
steps are written out again here, in NumPy, from the papers' equations.

Where the minibatch multiplies the state (linear regression: the Hessians of the
examples differ) M and what is added depend on the minibatch S. The mean and the
covariance after a step are still exact, though the law is no longer normal:

  E[M_S] m + E[c_S],   E[M_S P M_S'] + Cov[M_S m + c_S] + N_x N_x',

over all minibatches: `moments_after`, and for those that stay `affine_moments`.
"""

import functools
import itertools

import numpy as np
import scipy.linalg
import scipy.stats
import tensorflow as tf

import tfp_sgmcmc as sgmcmc

# A test that should pass fails this often by chance.
FALSE_ALARM_RATE = 1e-6


def normal_log_prob(theta, mean, scale):
  """Up to a constant. TFP's multivariate normals take long to trace."""
  mean, scale = (np.asarray(x, theta.dtype.as_numpy_dtype)
                 for x in (mean, scale))
  return -0.5 * tf.reduce_sum(tf.square((theta - mean) / scale), axis=-1)


def join(parts):
  """One part `[d]`, or `[d - 1]` and `[]`, as one vector."""
  if len(parts) == 1:
    return parts[0]
  return tf.concat([parts[0], parts[1][..., tf.newaxis]], axis=-1)


class GaussianModel:
  """x_i ~ N(theta, S), S known, prior N(m, V): noise independent of theta."""

  def __init__(self, num_examples=12, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    self.dtype = dtype
    self.num_examples = num_examples
    self.data = rng.uniform(-2., 2., size=(num_examples, 3)).astype(dtype)
    self.scale = np.array([[2., 0., 0.], [1., 3., 0.], [0., -1., 2.]])
    self.prior_mean = np.array([1., -1., 0.5])
    self.prior_scale = np.array([0.5, 1., 2.])
    self.likelihood_precision = np.linalg.inv(self.scale @ self.scale.T)
    prior_precision = np.diag(self.prior_scale**-2)
    self.precision = prior_precision + num_examples * self.likelihood_precision
    self.mean = np.linalg.solve(
        self.precision,
        prior_precision @ self.prior_mean
        + self.likelihood_precision @ self.data.sum(axis=0))

  def gradient_covariance(self, estimator):
    """C of the estimate, from its definition, over the data."""
    if estimator.is_exact:
      return np.zeros([3, 3])
    big, small = self.num_examples, estimator.batch_size
    correction = (
        1. - 1. / big if estimator.replacement else 1. - small / big)
    covariance = np.cov(self.data, rowvar=False) * big**2 / small * correction
    return self.likelihood_precision @ covariance @ self.likelihood_precision

  def posterior(self):
    """The model on a state of one part `[3]`, or parts `[2]` and `[]`."""
    inverse_scale = np.linalg.inv(self.scale).astype(self.dtype)

    def log_likelihood(*parts_and_batch):
      *parts, batch = parts_and_batch
      z = tf.matmul(
          batch - join(parts)[..., tf.newaxis, :], inverse_scale,
          transpose_b=True)
      return -0.5 * tf.reduce_sum(tf.square(z), axis=-1)

    return sgmcmc.Posterior(
        lambda *parts: normal_log_prob(
            join(parts), self.prior_mean, self.prior_scale),
        log_likelihood, self.data)


class LinearRegression:
  """y_i ~ N(x_i . theta, 1), prior N(0, V): noise that depends on theta.

  The gradient of an example is b_i - H_i theta, with H_i = x_i x_i'.
  """

  def __init__(self, num_examples=6, seed=0):
    rng = np.random.default_rng(seed)
    self.num_examples = num_examples
    self.x = rng.uniform(-1.5, 1.5, size=(num_examples, 2))
    self.y = self.x @ [1., -2.] + rng.normal(size=num_examples)
    self.prior_precision = np.array([0.5, 1.])
    precision = np.diag(self.prior_precision) + self.x.T @ self.x
    self.mean = np.linalg.solve(precision, self.x.T @ self.y)

  def prior_gradient(self, theta):
    return -self.prior_precision * theta

  def gradients(self, theta):
    """Of each example, `[N, 2]`."""
    return (self.y - self.x @ theta)[:, np.newaxis] * self.x

  def batches(self, batch_size):
    """All minibatches without replacement, which are equally likely."""
    return [
        list(batch) for batch in itertools.combinations(
            range(self.num_examples), batch_size)]

  def posterior(self):
    def log_likelihood(theta, batch):
      x, y = batch
      mean = tf.einsum('...nd,...d->...n', x, theta)
      return -0.5 * tf.square(y - mean)  # Up to a constant.

    return sgmcmc.Posterior(
        lambda theta: normal_log_prob(theta, 0., self.prior_precision**-0.5),
        log_likelihood,
        (self.x.astype(np.float32), self.y.astype(np.float32)))


class LinearStep:
  """A step that is linear: z <- M z + N_e e + N_x xi."""

  def __init__(self, step, size, gradient_covariance):
    """From a function `step(z, e, xi)` for states z of length `size`."""
    d = len(gradient_covariance)
    zero_z, zero = np.zeros(size), np.zeros(d)
    columns = lambda fn, n: np.stack([fn(row) for row in np.eye(n)], axis=1)
    from_gradient = columns(lambda e: step(zero_z, e, zero), d)
    from_noise = columns(lambda xi: step(zero_z, zero, xi), d)
    self.transition = columns(lambda z: step(z, zero, zero), size)
    self.noise = (from_gradient @ gradient_covariance @ from_gradient.T
                  + from_noise @ from_noise.T)
    self.largest = np.abs(np.linalg.eigvals(self.transition)).max()
    assert self.largest < 1.

  def stationary(self):
    """P, the covariance that a step leaves as it is."""
    return scipy.linalg.solve_discrete_lyapunov(self.transition, self.noise)

  def steps_until(self, share):
    """The steps after which this share of a mean is left, at most."""
    return int(np.ceil(np.log(share) / np.log(self.largest)))

  def after(self, num_steps, mean, covariance):
    """Mean and covariance that many steps after a law with these."""
    for _ in range(num_steps):
      mean = self.transition @ mean
      covariance = (
          self.transition @ covariance @ self.transition.T + self.noise)
    return mean, covariance

  def from_zero(self, num_steps, mean, covariance):
    """The same of chains that began at 0, on a Gaussian of this mean.

    The covariance is that of all of z, of which theta is the first part; the
    mean of the rest is 0.
    """
    centre = np.pad(mean, [0, len(covariance) - len(mean)])
    difference, covariance = self.after(num_steps, -centre, covariance)
    return centre + difference, covariance


def sgld(precision, noise, h, temperature=1., diagonal=1.):
  """Welling and Teh (2011), equation 4; Li et al. (2016), algorithm 1."""
  def step(theta, e, xi):
    g = -precision @ theta + e
    return theta + h * diagonal * g + np.sqrt(
        2. * h * temperature * diagonal) * xi
  return LinearStep(step, len(precision), noise)


def euler(precision, noise, h, friction, temperature=1., b=0.):
  """On (theta, r): momentum first, then the drift with the new."""
  d = len(precision)
  def step(z, e, xi):
    theta, r = z[:d], z[d:]
    r = (r + h * (-precision @ theta + e) - h * friction * r
         + np.sqrt(2. * (friction - b) * temperature * h) * xi)
    return np.concatenate([theta + h * r, r])
  return LinearStep(step, 2 * d, noise)


def explicit_euler(precision, noise, h, friction, temperature=1., b=0.):
  """On (theta, r): both move from the old momentum."""
  d = len(precision)
  def step(z, e, xi):
    theta, r = z[:d], z[d:]
    return np.concatenate([
        theta + h * r,
        r - h * (precision @ theta - e + friction * r)
        + np.sqrt(2. * (friction - b) * temperature * h) * xi])
  return LinearStep(step, 2 * d, noise)


def baoab(precision, noise, h, friction, temperature=1., b=0.):
  """On (theta, r, e); the gradient's noise is used by two steps."""
  d = len(precision)
  def step(z, e, xi):
    theta, r, old = np.split(z, 3)
    r = r + h / 2. * (-precision @ theta + old)
    theta = theta + h / 2. * r
    r = np.exp(-friction * h) * r + np.sqrt(
        (1. - np.exp(-2. * friction * h)) * temperature
        * (1. - b / friction)) * xi
    theta = theta + h / 2. * r
    r = r + h / 2. * (-precision @ theta + e)
    return np.concatenate([theta, r, e])
  return LinearStep(step, 3 * d, noise)


def sgld_covariance(*arguments, **numbers):
  """Stationary, of theta."""
  return sgld(*arguments, **numbers).stationary()


def euler_covariance(*arguments, **numbers):
  """Stationary, of (theta, r)."""
  return euler(*arguments, **numbers).stationary()


def affine_maps(steps, batches, size):
  """M_S and c_S of each minibatch, and N_x, of each step: see below."""
  columns = lambda fn, origin: np.stack(
      [fn(row) - origin for row in np.eye(size)], axis=1)
  zero, maps = np.zeros(size), []
  for step in steps:
    added = [step(zero, batch, zero) for batch in batches]
    maps.append((
        [columns(lambda z, b=batch, s=step: s(z, b, zero), c)
         for batch, c in zip(batches, added)],
        added,
        columns(lambda xi, s=step: s(zero, batches[0], xi), added[0])))
  return maps


def moments_after(num_steps, steps, batches, mean, covariance):
  """Mean and covariance so many steps after a law with these.

  Args:
    num_steps: A multiple of the number of steps that are made in turn.
    steps: As below.
    batches: As below.
    mean: `[size]`.
    covariance: `[size, size]`.

  Returns:
    mean: `[size]`.
    covariance: `[size, size]`.
  """
  maps = affine_maps(steps, batches, len(mean))
  for _ in range(num_steps // len(steps)):
    for transitions, added, from_noise in maps:
      moved = np.array([m @ mean + c for m, c in zip(transitions, added)])
      mean = moved.mean(axis=0)
      covariance = (
          np.mean([m @ covariance @ m.T for m in transitions], axis=0)
          + np.cov(moved, rowvar=False, bias=True) + from_noise @ from_noise.T)
  return mean, covariance


def affine_moments(steps, batches, size):
  """Stationary mean and covariance of steps that are affine given a minibatch.

  Args:
    steps: List of functions `(z, batch, xi)`, affine in z and xi, made in turn,
      over and over. The moments are those after the last of them.
    batches: The minibatches, equally likely at each step.
    size: The length of z.

  Returns:
    mean: `[size]`.
    covariance: `[size, size]`.
  """
  maps = affine_maps(steps, batches, size)

  def fixed_point(matrices, vectors):
    """Of z <- A z + b for each A and b in turn."""
    whole, rest = np.eye(len(vectors[0])), np.zeros(len(vectors[0]))
    for matrix, vector in zip(matrices, vectors):
      whole, rest = matrix @ whole, matrix @ rest + vector
    assert np.abs(np.linalg.eigvals(whole)).max() < 1.
    return np.linalg.solve(np.eye(len(rest)) - whole, rest)

  mean = fixed_point(
      [np.mean(transitions, axis=0) for transitions, _, _ in maps],
      [np.mean(added, axis=0) for _, added, _ in maps])
  products, spreads, before = [], [], mean
  for transitions, added, from_noise in maps:
    moved = np.array([m @ before + c for m, c in zip(transitions, added)])
    before = moved.mean(axis=0)
    products.append(np.mean([np.kron(m, m) for m in transitions], axis=0))
    spreads.append(np.ravel(
        np.cov(moved, rowvar=False, bias=True) + from_noise @ from_noise.T))
  return mean, fixed_point(products, spreads).reshape([size, size])


def sgld_step(gradient, theta, h, xi):
  """Welling and Teh (2011), equation 4, on z = theta."""
  return theta + h * gradient(theta) + np.sqrt(2. * h) * xi


def euler_step(gradient, z, h, friction, xi):
  """Momentum first, then the drift with the new; z = (theta, r)."""
  theta, r = np.split(z, 2)
  r = (r + h * gradient(theta) - h * friction * r
       + np.sqrt(2. * friction * h) * xi)
  return np.concatenate([theta + h * r, r])


def moments_p_value(samples, mean, covariance):
  """P-value of independent samples' mean and covariance, whatever their law.

  Hotelling's statistic of the samples and of their products.
  """
  centred = np.asarray(samples, np.float64) - mean
  if not np.all(np.isfinite(centred)):
    return 0.
  num, d = centred.shape
  rows, columns = np.triu_indices(d)
  features = np.concatenate([
      centred, centred[:, rows] * centred[:, columns]
      - covariance[rows, columns]], axis=1)
  average = features.mean(axis=0)
  statistic = num * average @ np.linalg.solve(
      np.cov(features, rowvar=False), average)
  return scipy.stats.chi2.sf(statistic, len(average))


def law_p_value(samples, mean, covariance):
  """P-value of independent samples under N(mean, covariance), by moments.

  After whitening, sqrt(K) times the mean and (up to sqrt 2 on the diagonal) the
  covariance minus I are independent standard normals: their squares add up to
  a chi-squared variable.
  """
  samples = np.asarray(samples, np.float64)
  if not np.all(np.isfinite(samples)):
    return 0.
  num, d = samples.shape
  white = scipy.linalg.solve_triangular(
      np.linalg.cholesky(covariance), (samples - mean).T, lower=True)
  second = white @ white.T / num - np.eye(d)
  upper = second[np.triu_indices(d, 1)]
  statistic = num * (
      np.sum(white.mean(axis=1)**2) + np.sum(upper**2)
      + np.sum(np.diag(second)**2) / 2.)
  return scipy.stats.chi2.sf(statistic, d + d * (d + 1) // 2)


def compile_chains(make_kernel, make_first=None, jit_compile=True):
  """A compiled run of chains, with the kernel's numbers as its arguments.

  To trace and compile takes seconds and to run a fraction of one, so that one
  program serves all the step sizes, temperatures, ... that a kernel is tested
  with.

  Args:
    make_kernel: Callable that returns the kernel; it is given the numbers, by
      name, as tensors. Called once.
    make_first: Callable of the same numbers: the kernel that makes the first
      results. Default: `make_kernel`.
    jit_compile: Whether by XLA. Without it, it takes less time to compile and
      more to run.

  Returns:
    run: Callable `(state, num_steps, seed, **numbers)` that returns the last
      state and results.
  """
  @functools.partial(tf.function, jit_compile=jit_compile, autograph=False)
  def compiled(state, num_steps, seed, numbers):
    kernel = make_kernel(**numbers)
    first = kernel if make_first is None else make_first(**numbers)

    def body(step, state, results, seed):
      seed = sgmcmc.random.fold_in(seed, 0)
      state, results = kernel.one_step(state, results, seed=seed)
      return step + 1, state, results, seed

    return tf.while_loop(
        lambda step, *_: step < num_steps, body,
        (0, state, first.bootstrap_results(state), seed))[1:3]

  def run(state, num_steps, seed=(1, 2), **numbers):
    return compiled(
        state, tf.constant(num_steps), tf.constant(seed), {
            name: tf.constant(number) if isinstance(number, int)
            else tf.constant(number, tf.float64)
            for name, number in numbers.items()})

  return run


def run_chains(kernel, state, num_steps, jit_compile=True):
  """The last state and results of chains of one kernel, compiled."""
  return compile_chains(lambda: kernel, jit_compile=jit_compile)(
      state, num_steps)


def join_parts(parts, num_chains):
  """Parts as one array of shape [chains, d]."""
  parts = parts if isinstance(parts, (list, tuple)) else [parts]
  return np.concatenate(
      [np.reshape(part, [num_chains, -1]) for part in parts], axis=1)
