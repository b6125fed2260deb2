"""The verdicts: fine on a right chain, and not on each planted error.

SGHMC on the Gaussian of `oracle`, 8 chains of 1,000 draws. Each row has a false
alarm rate of 1e-3, R-hat and effective draws less; of 160 right runs with other
seeds none had a row that was not fine.
"""

import functools
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests import oracle
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.diagnostics import chains as chains_lib
from tfp_sgmcmc.diagnostics import summaries
from tfp_sgmcmc.diagnostics import temperatures
from tfp_sgmcmc.diagnostics import verdicts
from tfp_sgmcmc.internal import chunks as chunks_lib
from tfp_sgmcmc.internal import leaves

tfd = tfp.distributions
summary = sgmcmc.diagnostics.summary
MODEL = oracle.GaussianModel()
UNIFORM = sgmcmc.gradients.Uniform(6)
RIGHT = dict(h=0.05, temperature=1., weight=1., start=0., num_burnin_steps=600)
NUM_CHAINS, NUM_DRAWS, THINNING = 8, 1000, 20


def kernel_with(h=RIGHT['h'], temperature=1., weight=1., friction=2.):
  """With a likelihood that counts `weight` times."""
  posterior = MODEL.posterior()
  return sgmcmc.SGHMC(
      sgmcmc.Posterior(
          posterior.log_prior,
          lambda theta, batch: weight * posterior.log_likelihood(
              theta, batch=batch), posterior.data),
      h, friction, gradient_estimator=UNIFORM, temperature=temperature)


@functools.cache
def program():
  """Draws of a kernel with errors, whose numbers are its arguments."""
  @tf.function(jit_compile=True, autograph=False)
  def run(h, temperature, weight, start, num_burnin_steps, seed):
    kernel = kernel_with(h, temperature, weight)

    def one_step(state, results):
      return kernel.one_step(state, results, seed=sgmcmc.random.fold_in(
          seed, results.step))

    def steps(num, state, results):
      return tf.while_loop(
          lambda k, *_: k < num,
          lambda k, *position: (k + 1, *one_step(*position)),
          (0, state, results))[1:]

    state = start + tf.zeros([NUM_CHAINS, 3])
    position = state, kernel.bootstrap_results(state)
    arrays = [tf.TensorArray(tf.float32, NUM_DRAWS + 1) for _ in range(3)]

    def body(k, position, arrays):
      # Burn-in is what leads to draw 0: with a loop of its own the step would
      # be compiled twice.
      position = steps(tf.where(k == 0, num_burnin_steps, THINNING), *position)
      kept = [position[0], *temperatures.trace_energies(*position)]
      return k + 1, position, [
          array.write(k, leaf) for array, leaf in zip(arrays, kept)]

    _, position, arrays = tf.while_loop(
        lambda k, *_: k <= NUM_DRAWS, body, (0, position, arrays))
    return [array.stack()[1:] for array in arrays], position

  return run


@functools.cache
def run(seed=(1, 2), **errors):
  numbers = {**RIGHT, **errors}
  (states, log_prob, square), position = program()(
      **{name: tf.constant(x) for name, x in numbers.items()},
      seed=tf.constant(seed))
  trace = temperatures.EnergyTrace(log_prob, square)
  structure = tf.nest.map_structure(
      lambda x: tf.TensorSpec(x.shape[1:], x.dtype), (states, trace))
  chunks = chunks_lib.Chunks()
  chunks.append(leaves.named(state=states, trace=trace))
  final_state, kernel_results = position
  return sgmcmc.Draws(
      chunks, structure, final_state=final_state, kernel_results=kernel_results,
      num_chain_axes=1)


@functools.cache
def summary_of_run(**errors):
  """Of a run with errors, and a kernel with its step size alone."""
  return summary(run(**errors), kernel_with(errors.get('h', RIGHT['h'])))


def part_of(draws, num_draws, num_chains=NUM_CHAINS):
  """The first draws of the first chains."""
  trim = lambda tree, *slices: tf.nest.map_structure(
      lambda x: x[slices] if x.shape.rank else x, tree)
  chains = slice(num_chains)
  chunks = chunks_lib.Chunks()
  chunks.append(leaves.named(
      state=draws.states[:num_draws, chains],
      trace=trim(draws.trace, slice(num_draws), chains)))
  return sgmcmc.Draws(
      chunks, draws.structure, final_state=trim(draws.final_state, chains),
      kernel_results=trim(draws.kernel_results, chains), num_chain_axes=1)


def row_of(rows, quantity):
  return next(row for row in rows if row.quantity == quantity)


def verdict(rows, quantity):
  return row_of(rows, quantity).verdict


@pytest.mark.slow
def test_a_right_chain_is_fine():
  found = summary_of_run()
  assert found.verdict == 'fine', str(found)
  assert len(found.rows) == 10
  lines = str(found).splitlines()
  assert lines[0].split() == ['quantity', 'value', '+-', 'verdict']
  assert len(lines) == 14 and lines[-3] == 'In all: fine.'
  assert 'whether draws and chains agree' in lines[-2]
  assert lines[-1] == 'not about how good the predictions are.'


@pytest.mark.slow
def test_several_runs_and_one_elsewhere():
  """Of different lengths; one chain in two that is three sd from the others."""
  runs = [part_of(run(seed), NUM_DRAWS - 100 * k, 2)
          for k, seed in enumerate([(1, 2), (3, 4), (5, 6)])]
  found = summary(runs, kernel_with())
  assert found.verdict == 'fine', str(found)
  assert [row.quantity for row in found.rows] == [
      row.quantity for row in summary_of_run().rows]
  for quantity in (CONFIGURATIONAL, KINETIC):  # Of all chains.
    assert row_of(found.rows, quantity).standard_error < 0.03
  apart = runs[0].states + 3. * tf.math.reduce_std(runs[0].states, axis=[0, 1])
  chunks = chunks_lib.Chunks()
  chunks.append(leaves.named(state=apart, trace=runs[0].trace))
  runs[0] = sgmcmc.Draws(
      chunks, runs[0].structure, final_state=runs[0].final_state,
      kernel_results=runs[0].kernel_results, num_chain_axes=1)
  found = summary(runs)
  assert verdict(found.rows, 'rank R-hat of the parameters') == 'wrong'
  with pytest.raises(ValueError, match='as many chains each'):
    summary([runs[1], part_of(run(), NUM_DRAWS, 3)])


CONFIGURATIONAL = 'configurational temperature / T'
WORST = f'{CONFIGURATIONAL}, worst coordinate'
KINETIC = 'kinetic temperature / T'


@pytest.mark.slow
@pytest.mark.weekly_after(2)
@pytest.mark.parametrize('error, quantity, wanted', [
    # Noise off by sqrt 2.
    (dict(temperature=2.), KINETIC, 'wrong'),
    (dict(temperature=2.), CONFIGURATIONAL, 'wrong'),
    # N / n missing.
    (dict(weight=0.5), CONFIGURATIONAL, 'doubtful'),
    (dict(weight=0.2), CONFIGURATIONAL, 'wrong'),
    # Not burned in.
    (dict(start=100., num_burnin_steps=0, h=0.0005), 'drift of the parameters, '
     'in sd', 'wrong'),
    (dict(start=100., num_burnin_steps=0, h=0.0005),
     'rank R-hat of the parameters', 'wrong'),
], ids=str)
def test_planted_errors_are_seen(error, quantity, wanted):
  found = summary_of_run(**error)
  assert verdict(found.rows, quantity) == wanted, str(found)
  assert found.verdict == 'wrong' or wanted == 'doubtful'


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('has_names, wanted', [
    (True, 'The worst is means[1].'),
    (False, 'The worst is [1] of part 0 of the state.')])
def test_rows_name_the_worst_parameter(has_names, wanted):
  """Chains that began apart in one coordinate, and have hardly moved."""
  tfd = tfp.distributions
  if has_names:
    target = sgmcmc.Posterior.from_joint_distribution(
        tfd.JointDistributionNamed(dict(
            mu=tfd.Normal(0., 1.),
            means=lambda mu: tfd.Sample(tfd.Normal(mu, 1.), 3),
            y=tfd.Sample(tfd.Normal(0., 1.), 5))), {'y': tf.zeros(5)})
  else:
    target = lambda means, mu: -0.5 * (
        tf.reduce_sum(means**2, axis=-1) + mu**2)
  kernel = sgmcmc.SGLD(target, step_size=0.1)
  start = [np.zeros([4, 3], np.float32), np.zeros(4, np.float32)]
  draws = sgmcmc.sample(
      kernel, 100, start, num_steps_between_results=4, seed=1,
      progress_bar=False)
  means, mu = (np.array(part) for part in draws.states)
  means[..., 1] = 0.01 * means[..., 1] + np.arange(4.)
  chunks = chunks_lib.Chunks()
  chunks.append(leaves.named(state=[means, mu]))
  apart = sgmcmc.Draws(
      chunks, draws.structure, final_state=draws.final_state,
      kernel_results=draws.kernel_results,
      num_chain_axes=1)
  rows = summary(apart, kernel).rows
  for quantity in ('rank R-hat', 'effective draws'):
    assert wanted in row_of(rows, f'{quantity} of the parameters').advice
  # Without the kernel nothing is known but the parts.
  assert 'The worst is [1] of part 0' in summary(apart).rows[0].advice


def test_one_coordinate_that_is_too_wide_is_seen():
  """One of 20, its sd by 40%: the mean over all coordinates does not tell."""
  kernel = sgmcmc.SGHMC(
      lambda a, b: -0.5 * (
          tf.reduce_sum(a**2, axis=-1) + tf.reduce_sum(b**2, axis=[-2, -1])),
      step_size=0.2, friction=1.)
  draws = sgmcmc.sample(
      kernel, NUM_DRAWS, [tf.zeros([8, 5]), tf.zeros([8, 3, 5])],
      num_burnin_steps=100, num_steps_between_results=9, seed=1,
      progress_bar=False)
  a, b = draws.states
  wide = np.ones([3, 5], np.float32)
  wide[0, 2] = 1.4
  chunks = chunks_lib.Chunks()
  chunks.append(leaves.named(state=[a, b * wide]))
  planted = sgmcmc.Draws(
      chunks, draws.structure, final_state=draws.final_state,
      kernel_results=draws.kernel_results,
      num_chain_axes=1)
  right, wrong = (summary(found, kernel).rows for found in (draws, planted))
  assert verdict(right, WORST) == 'fine'
  assert verdict(wrong, CONFIGURATIONAL) == 'fine'
  assert row_of(wrong, WORST).verdict != 'fine'
  assert 'It is [0, 2] of part 1 of the state' in row_of(wrong, WORST).advice


@pytest.mark.slow
def test_worst_coordinates_of_many_tables():
  """Right ones are fine, and one 40% too wide of 20 is told.

  Of 8 chains of 1,000 draws of 20 normals, with an autocorrelation of 0.9, of
  which 125 of each chain are looked at: about 420 effective draws. The false
  alarm rate is 1e-3 a table, so that of 220 there are 3 once in a thousand.
  """
  random = np.random.default_rng(1)
  verdicts_by_width = {1.: [], 1.4: []}
  for table in range(240):
    width = 1. if table < 220 else 1.4
    noise = random.normal(size=[NUM_DRAWS, 8, 20])
    theta = noise[0]
    path = [theta := 0.9 * theta + np.sqrt(0.19) * e for e in noise]
    theta = np.stack(path)[::8]
    theta[..., 7] *= width
    rows = temperatures.rows_of_virial(
        np.swapaxes(theta * theta, 0, 1), 420., str)
    verdicts_by_width[width].append(rows[1].verdict)
    if width > 1.:
      assert 'It is 7' in rows[1].advice
  assert sum(found != 'fine' for found in verdicts_by_width[1.]) <= 2
  assert 'fine' not in verdicts_by_width[1.4]


@pytest.mark.slow
def test_too_large_a_step_is_seen():
  """By the temperatures, of 2.5 and more, and by the noise's share, of 0.16."""
  found = summary_of_run(h=0.45)
  assert found.verdict != 'fine'
  assert verdict(found.rows, CONFIGURATIONAL) != 'fine', str(found)
  assert verdict(found.rows, 'noise of the gradient / noise added') != 'fine'


def test_temperatures_against_the_exact_law():
  """Within 5 standard errors, which are about 1%."""
  h = 0.2
  covariance = oracle.euler_covariance(
      MODEL.precision, MODEL.gradient_covariance(UNIFORM), h, 2.)
  exact = np.trace(MODEL.precision @ covariance[:3, :3]) / 3.
  found = summary(run(h=h), kernel_with(h), num_gradients=4000)
  for row in found.rows:
    if row.quantity in (CONFIGURATIONAL, KINETIC):
      assert row.standard_error < 0.025
      assert abs(row.value - exact) < 5. * row.standard_error
  noise = np.trace(MODEL.gradient_covariance(UNIFORM)) / 3. * h / 4.
  row = found.rows[-1]
  assert abs(row.value - noise) < 5. * row.standard_error < 0.5 * noise


def test_rows_that_no_minibatch_had():
  """A count of -1 in 1,000 rows, of which 30 steps take one each."""
  y = np.where(np.arange(1000) == 17, -1., 2.).astype(np.float32)
  posterior = sgmcmc.Posterior(
      tfd.Normal(0., 1.).log_prob,
      lambda theta, y: tfd.Poisson(
          log_rate=theta[..., tf.newaxis]).log_prob(y), y)
  kernel = sgmcmc.SGLD(
      posterior, 1e-4, gradient_estimator=sgmcmc.gradients.Uniform(1))
  draws = sgmcmc.sample(
      kernel, 30, tf.zeros([2]), progress_bar=False, seed=0)
  found = summary(draws, kernel)
  row, = [row for row in found.rows if 'log likelihood' in row.quantity]
  assert (row.value, row.verdict) == (1., 'wrong')
  assert 'of 1,000 rows. The first is row 17' in row.advice


def test_an_overflow_at_a_draw_is_no_impossible_row():
  posterior = sgmcmc.Posterior(
      tfd.Normal(0., 1.).log_prob,
      lambda theta, y: tfd.Poisson(
          log_rate=theta[..., tf.newaxis]).log_prob(y), tf.ones(50))
  assert not np.isfinite(posterior(tf.constant(95.)))
  draw = [tf.fill([1], 95.)]
  assert not summaries._of_impossible_rows(posterior, [draw] * 3)


def correlated_noise(correlation, num_chains, seed):
  """The row of three means, of noise with this correlation; and its value.

  Exactly |E| / sqrt(3): of N = 200 rows with covariance S, in batches of n, the
  noise of s g has covariance (N^2 / n) s S s.
  """
  n, h, friction = 10, 0.02, np.array([1., 2., 4.])
  covariance = correlation + (1. - correlation) * np.eye(3)
  x = np.random.default_rng(0).normal(size=[200, 3]) @ np.linalg.cholesky(
      covariance).T
  scale = np.array([0.3, 0.1, 0.2])
  noise = 200.**2 / n * np.cov(x.T, bias=True) * np.outer(scale, scale)
  posterior = sgmcmc.Posterior(
      lambda theta: 0. * theta[..., 0],
      lambda theta, x: -0.5 * tf.reduce_sum(
          tf.square(x - theta[..., tf.newaxis, :]), axis=-1), np.float32(x))
  kernel = sgmcmc.SGNHT(
      posterior, h, 0.,
      gradient_estimator=sgmcmc.gradients.Uniform(n, replacement=True),
      preconditioner=sgmcmc.preconditioners.Diagonal([scale**2]),
      noise_estimate=[np.diag(noise)], friction=[friction])
  state = tf.zeros([num_chains, 3])
  row = temperatures.correlated_noise(
      kernel, [state], kernel.bootstrap_results(state),
      temperatures.dynamics(kernel), sgmcmc.random.fold_in([0, 0], seed))
  left = h / 2. * noise / np.sqrt(np.outer(friction, friction))
  return row, np.sqrt(np.mean(
      np.sum((left - np.diag(np.diag(left)))**2, axis=1)))


@pytest.mark.parametrize('num_chains', [
    20, pytest.param(1, marks=pytest.mark.slow)])
def test_noise_that_is_correlated(num_chains):
  for correlation, expected in (
      (0.9, 'wrong'), (0.45, 'doubtful'), (0., 'fine')):
    row, exact = correlated_noise(correlation, num_chains, 0)
    assert row.verdict == expected, str(row)
    assert abs(row.value - exact) < 5. * row.standard_error
    if correlation:
      assert row.standard_error < 0.15 * exact
      assert 'posterior.whiten' in row.advice


def test_noise_estimates_of_one_s_own_have_no_such_row():
  """Without a metric, or with a friction that is a number."""
  posterior = MODEL.posterior()
  state = tf.zeros([4, 3])
  for arguments in (
      {}, dict(friction=[tf.ones(3)]), dict(
          friction=1.,
          preconditioner=sgmcmc.preconditioners.Diagonal(tf.ones(3)))):
    kernel = sgmcmc.SGNHT(
        posterior, 0.01, 0.1, gradient_estimator=UNIFORM,
        noise_estimate=[tf.ones(3)], **arguments)
    assert temperatures.correlated_noise(
        kernel, [state], kernel.bootstrap_results(state),
        temperatures.dynamics(kernel), sgmcmc.random.fold_in([0, 0], 0)) is None


@pytest.mark.weekly
@pytest.mark.slow
def test_noise_that_is_not_correlated_is_fine():
  """The alarm rate is 1e-3: two of 40 have a chance below 1e-3."""
  found = [correlated_noise(0., 20, seed)[0].verdict for seed in range(40)]
  assert sum(verdict != 'fine' for verdict in found) < 2


def test_a_run_that_is_too_short_is_doubtful_and_not_wrong():
  """Though chains that have hardly moved have small batch errors."""
  for draws in (part_of(run(), 15, 1), part_of(run(h=1e-4), 15)):
    found = summary(draws, kernel_with())
    assert verdict(found.rows, CONFIGURATIONAL) == 'doubtful', str(found)
    assert verdict(found.rows, 'effective draws of the parameters') != 'fine'
    assert 'posterior.whiten(posterior.mode(seed=0))' in str(found)
  scaled = kernel_with().copy(
      preconditioner=sgmcmc.preconditioners.Diagonal(tf.ones(3)))
  assert 'posterior.whiten' not in str(summary(draws, scaled))
  one = summary(part_of(run(), NUM_DRAWS, 1))
  assert verdict(one.rows, 'rank R-hat of the parameters') == 'fine', str(one)


def test_the_step_size_that_was_found_is_used():
  """With the adapting kernel, and with the one inside."""
  inner = kernel_with(1e-3)
  draws, zero = part_of(run(), NUM_DRAWS), tf.constant(0.)
  draws.kernel_results = sgmcmc.mcmc.TemperatureStepSizeAdaptationResults(
      draws.kernel_results, tf.constant(RIGHT['h']), zero, zero, zero, zero)
  wanted = np.trace(MODEL.gradient_covariance(UNIFORM)) / 3. * RIGHT['h'] / 4.
  for given in (sgmcmc.TemperatureStepSizeAdaptation(inner, 400), inner):
    row = summary(draws, given).rows[-1]
    assert row.quantity == 'noise of the gradient / noise added'
    assert abs(row.value - wanted) < 5. * row.standard_error < 0.5 * wanted


def test_what_cannot_be_had_is_left_out():
  draws = run()
  assert len(summary(draws).rows) == 6
  schedule = kernel_with().copy(temperature=lambda step: 1.)
  assert len(summary(draws, schedule).rows) == 6
  assert len(summary(
      draws, kernel_with().copy(gradient_estimator=None),
      num_gradients=0).rows) == 7


@pytest.mark.slow
def test_a_trajectory():
  target = tf.function(
      lambda x: -tf.reduce_sum(x**2, axis=-1) / 2., autograph=False)
  kernel = sgmcmc.ZigZagSampler(
      target, rate_bound=sgmcmc.pdmp.GaussianBound(1.))
  draws = sgmcmc.sample(
      kernel, 3000, tf.zeros([4, 2]), num_burnin_steps=50, seed=1,
      trace_fn=sgmcmc.pdmp.trace_path, progress_bar=False)
  found = summary(
      sgmcmc.pdmp.Trajectory.from_chain(draws.states, draws.trace), kernel)
  assert found.verdict == 'fine', str(found)
  assert verdict(found.rows, 'violated bounds, share of proposals') == 'fine'


def test_index_chains_and_momenta():
  """The acceptance of EWSG; the kinetic temperature of traced momenta."""
  draws = run()
  noise = tf.random.stateless_normal([NUM_DRAWS, NUM_CHAINS, 3], [1, 2])
  for acceptance, scale, wanted in (
      (0.52, 1., ('doubtful', 'fine')), (0.8, 1.5, ('fine', 'wrong'))):
    trace = {'momentum': [scale * noise]}
    chunks = chunks_lib.Chunks()
    chunks.append(leaves.named(state=draws.states, trace=trace))
    results = draws.kernel_results._replace(
        gradient_estimator_results=(
            sgmcmc.gradients.ExponentiallyWeightedResults(
                tf.constant(9), tf.fill([NUM_CHAINS], acceptance),
                draws.kernel_results.gradient_estimator_results)))
    found = summary(
        sgmcmc.Draws(
            chunks, (draws.structure[0], trace), final_state=draws.final_state,
            kernel_results=results,
            num_chain_axes=1),
        kernel_with().copy(
            gradient_estimator=sgmcmc.gradients.ExponentiallyWeighted(5)),
        num_gradients=0)
    assert (verdict(found.rows, "acceptance of EWSG's index chain"),
            verdict(found.rows, KINETIC)) == wanted, str(found)


def test_judge():
  """Only what the standard error does not explain counts."""
  row = functools.partial(
      verdicts.judge, 'x', reference=1., tolerances=(0.1, 0.5), meaning='One.',
      advice='Mend it.')
  assert row(1.05, 0.01).verdict == row(1.15, 0.02).verdict == 'fine'
  assert row(1.2, 0.01).verdict == 'doubtful'
  assert row(2., 0.1).verdict == row(0.1, 0.1).verdict == 'wrong'
  assert row(2., 0.1).advice == 'One. Mend it.'
  for unknown in (row(1., 0.4), row(1., np.nan),
                  row([1., 900.], [0.1, 1e4], needs_precision=False)):
    assert unknown.verdict == 'doubtful' and 'run longer' in unknown.advice
  assert unknown.value == 900.
  assert 'NaN or infinite' in row(np.nan, 0.1).advice
  # 3.5 standard errors: one of one, or the worst of a thousand.
  one = verdicts.judge('x', 3.5, 1., 0., (0., 9.), '', '')
  many = verdicts.judge('x', [3.5] + [0.] * 999, 1., 0., (0., 9.), '', '')
  assert (one.verdict, many.verdict) == ('doubtful', 'fine')


def test_standard_error_of_chains():
  """Of the mean of a moving average, and of a few draws of many chains."""
  noise = np.random.default_rng(0).normal(size=[8, 2100, 1])
  values = sum(noise[:, k:k + 2000] for k in range(10))
  np.testing.assert_allclose(
      chains_lib.standard_error(values), 10. / np.sqrt(16_000), rtol=0.25)
  few = np.random.default_rng(0).normal(size=[400, 2, 1])
  np.testing.assert_allclose(
      chains_lib.standard_error(few), 1. / np.sqrt(800), rtol=0.25)
  assert np.isnan(chains_lib.standard_error(few[:1]))


def test_refused(monkeypatch):
  with pytest.raises(TypeError, match='call sgmcmc.sample'):
    summary(tf.zeros([100, 4]))
  draws = run()
  with pytest.raises(TypeError, match='kernel that made the result'):
    summary(draws, sgmcmc.SGHMC)
  with pytest.raises(ValueError, match='raise num_results'):
    summary(part_of(draws, 2))
  monkeypatch.setitem(sys.modules, 'arviz', None)
  with pytest.raises(ImportError, match=r'tfp_sgmcmc\[arviz\]'):
    summary(draws)
