"""Each row of the page's table of algorithms, completed and run for a step."""

import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests import families
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions

PAGE = pathlib.Path(__file__).parent.parent / 'docs' / 'algorithms.md'
ROW = re.compile(r'^\| (.+?) \| (.+) \|$', re.MULTILINE)

X = tf.constant(np.random.default_rng(0).normal(size=[200, 2]), tf.float32)
Y = tf.cast(X[:, 0] > 0., tf.float32)


POSTERIOR = sgmcmc.Posterior(
    tfd.MultivariateNormalDiag(tf.zeros(2)).log_prob,
    families.logistic_log_likelihood, (X, Y))

# What the names in the table stand for.
NAMES = {
    **{name: getattr(sgmcmc, name) for name in sgmcmc.__all__},
    'posterior': POSTERIOR,
    'step_size': 1e-4,
    'friction': 10.,
    'diffusion': 10.,
    'decoherence_length': 1e-2,
    'num_leapfrog_steps': 3,
    'capacity': 200,
    'prior_scale': 1.,
    'w': 0.5,
    'slab': tfd.Normal(0., 1.),
    'x': X,
    'mode': tf.zeros(2),
    'anchor': tf.zeros(2),
    'p': 1. + np.arange(200) % 3,
    'rate_bound': sgmcmc.pdmp.LogisticRegressionBound(X, 1.),
    'schedule': keras.optimizers.schedules.CosineDecayRestarts(
        1e-4, first_decay_steps=10),
}

# Where the table says "...", or only what is other than in the entry before.
COMPLETED = {
    'SGLD(...': 'SGLD(posterior, step_size',
    'SGHMC(...': 'SGHMC(posterior, step_size, friction',
    'SGNHT(...': 'SGNHT(posterior, step_size, diffusion',
    'MicrocanonicalLangevin(...': 'MicrocanonicalLangevin(posterior, step_size',
    'rate_bound=...': 'rate_bound=rate_bound',
    'pdmp.SplitZigZag(...': 'pdmp.SplitZigZag(posterior, step_size',
    'SVRG(...)': 'SVRG(100, steps_per_anchor=1000)',
}
# A keyword on its own, or an estimator, is of this kernel.
KERNELS = {
    'EWSG': 'SGHMC(posterior, step_size, friction, {})',
    'SVRG-LD': 'SGLD(posterior, step_size, gradient_estimator={})',
    'mSGNHT': 'SGNHT(posterior, step_size, diffusion, thermostat={})',
    'SMILE': 'MicrocanonicalLangevin(posterior, step_size, {})',
    'Local BPS': 'BouncyParticleSampler('
                 'posterior, rate_bound=rate_bound, {})',
    'zig-zag': 'ZigZagSampler('
               'posterior, rate_bound=rate_bound, gradient_estimator={})',
    'SBPS': 'StochasticBouncyParticleSampler(posterior, {})',
}
# Words of the table that stand for the code of an entry.
OTHERS = {
    'SGLD': 'SGLD(posterior, step_size, gradient_estimator='
            'gradients.ExponentiallyWeighted(100))',
    'base=gradients.SVRG(...)': 'SGHMC(posterior, step_size, friction, '
                                'gradient_estimator=gradients.'
                                'ExponentiallyWeighted(base=gradients.SVRG('
                                '100, steps_per_anchor=1000)))',
    'gradients.preferential_probabilities':
        'gradients.preferential_probabilities(posterior, mode, x[:10])',
    'Softmax': 'likelihood_bounds.Softmax(num_classes=3)',
    'StudentT': 'likelihood_bounds.StudentT(df=4., scale=1.)',
    'base=gradients.Reshuffled()': 'gradients.ExponentiallyWeighted('
                             'base=gradients.Reshuffled())',
    'prior=sgmcmc.keras.learned_scale()': 'keras.learned_scale()',
    'sgmcmc.keras.draw_scales': 'keras.draw_scales',
    'step_size=': 'SGHMC(posterior, schedule, friction)',
    'temperature=': 'SGHMC(posterior, step_size, friction, temperature=0.1)',
}


def table():
  """`(algorithm, code)` for each piece of code in the table."""
  text = PAGE.read_text()
  start = text.index('| algorithm | here |')
  rows = ROW.findall(text[start:text.index('\n\n', start)])[1:]
  return [
      (name, code) for name, cell in rows
      for code in re.findall('`([^`]+)`', cell) if code != 'fit']


def completed(name, code):
  """What stands in the table as an expression."""
  if code in OTHERS:
    return OTHERS[code]
  is_kernel = code.startswith('pdmp.Split') or (
      code.split('(')[0] in NAMES and code[0].isupper())
  for short, long in COMPLETED.items():
    code = code.replace(short, long)
  if is_kernel:
    return code
  return next(
      form for key, form in KERNELS.items() if name.startswith(key)
  ).format(code)


def test_the_table_is_found():
  entries = table()
  assert len(entries) >= 25
  assert len({name for name, _ in entries}) >= 17


@pytest.mark.weekly_after(25)
@pytest.mark.slow
@pytest.mark.parametrize('name, code', table())
def test_each_row_runs(name, code):
  made = eval(completed(name, code), dict(NAMES))
  if not isinstance(made, tfp.mcmc.TransitionKernel):
    return  # A bound of another likelihood, or an estimator for fit.
  state = tf.zeros([2])
  results = made.bootstrap_results(state, seed=[0, 0])
  state, results = made.one_step(state, results, seed=[0, 1])
  assert np.all(np.isfinite(state))
  assert int(results.step) == 1
