"""Runs the notebooks' code at small sizes, all in one process.

  python -m tests.run_tutorials [NAME ...]

A notebook's sizes are in its cell with the tag `parameters`; those of `SMALL`
take their place. `CHECKS` say what a notebook's names have to be at its end:
what holds at these sizes too, whatever the seed.
"""

import concurrent.futures
import contextlib
import importlib.util
import json
import linecache
import os
import pathlib
import sys
import time

import matplotlib.pyplot
import numpy as np

from tests import programs

FOLDER = pathlib.Path(__file__).parent.parent / 'tutorials'


def cells(name):
  """Source and tags of a notebook's code cells."""
  notebook = json.loads((FOLDER / f'{name}.ipynb').read_text())
  for cell in notebook['cells']:
    if cell['cell_type'] == 'code':
      yield ''.join(cell['source']), cell['metadata'].get('tags', [])


def run(name, small):
  """Runs a notebook's code with other parameters; returns what it defined."""
  names = {'__name__': '__main__'}
  for k, (source, tags) in enumerate(cells(name)):
    file = f'<{name}, cell {k}>'
    linecache.cache[file] = (  # TensorFlow reads functions' source.
        len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, 'exec'), names)
    if 'parameters' in tags:
      unknown = set(small) - set(names)
      assert not unknown, f'{name} has no parameters {unknown}'
      names.update(small)
  matplotlib.pyplot.close('all')
  return names


def check_regression(names):
  assert (names['lower'] <= names['upper']).all()
  assert abs(names['held'] - names['share']) < 0.25
  epistemic, grid = names['variance'].epistemic, names['grid']
  assert epistemic[np.abs(grid) > 1.4].mean() > epistemic[
      np.abs(np.abs(grid) - 0.6) < 0.2].mean()


def check_keras(names):
  assert names['same'] and names['difference'] == 0.
  for by_kind in names['predictions'].values():
    for p in by_kind.values():
      np.testing.assert_allclose(np.sum(p, axis=-1), 1., atol=1e-4)


def check_tall_data(names):
  np.testing.assert_allclose(
      np.mean(names['temperature']['control variate']), 1., atol=0.15)
  assert np.mean(names['temperature']['plain minibatches']) > 2.
  np.testing.assert_allclose(
      np.std(names['draws']['control variate'], axis=(0, 1)) / names['width'],
      1., atol=0.35)


def check_which_sampler(names):
  ratios = names['heavy']
  assert ratios['SGHMC'][-1] > 2. and abs(ratios['SGNHT'][-1] - 1.) < 0.5
  np.testing.assert_allclose(
      ratios['SGHMC'] / np.sqrt(1. + names['heats']), 1., atol=0.3)


def check_variance_reduction(names):
  cost, sd = names['cost'], names['sd']
  for name in names['estimators']:
    for share in names['shares']:
      if not name.startswith('Exact'):
        np.testing.assert_allclose(cost[name, share], 100., rtol=0.2)
  share = names['shares'][-1]
  assert np.mean(sd['Uniform', share]) > np.mean(sd['ControlVariate', share])


def check_bouncy_particles(names):
  for name, kernel_states in names['states'].items():
    path = names['sgmcmc'].pdmp.Trajectory.from_chain(
        kernel_states, names['traces'][name])
    np.testing.assert_allclose(
        path.covariance(), names['covariance'], atol=0.25)
  assert names['paths']['SBPS'].violation_share < 0.02


def check_hierarchical_model(names):
  temperature = np.mean(names['draws'].trace.mean_squared_momentum)
  np.testing.assert_allclose(temperature, 1., atol=0.3)
  assert (names['by_sgmcmc'].posterior['sigma'].values > 0.).all()


def check_long_runs(names):
  np.testing.assert_array_equal(
      names['resumed'].states, names['whole'].states)
  assert names['posterior'].num_chains == names['num_chains']


def check_several_devices(names):
  assert names['difference'][0] < 1e-3 * names['spread']


def check_your_own_estimator(names):
  forgetful = names['Forgetful'](2, names['probabilities'])
  assert names['test_moments'](names['importance'])
  assert not names['test_moments'](forgetful)
  assert names['test_law'](names['draws'])


def check_serve_a_posterior(names):
  assert names['difference'] < 1e-5 and names['disagreement'].min() >= 0.
  assert set(names['found']) == {'mean', 'entropy', 'mutual_information'}
  assert np.isfinite(list(names['losses'].values())).all()


def check_lora(names):
  weights = names['posterior'].weights
  assert sum(v[0].size for v in weights.values()) == names['num_trained']
  # The base is there once.
  assert names['served'].count_params() < 1.2 * names['model'].count_params()


# The name of a notebook, its sizes, what has to hold at its end. The first has
# to make its devices before TensorFlow is used.
TUTORIALS = {
    '8_several_devices': (
        dict(epochs=4, num_units=5), check_several_devices),
    '0_regression': (
        dict(num_rows=200, epochs=100, num_units=10), check_regression),
    '1_keras': (
        dict(adam_epochs=2, sampling_epochs=9, more_epochs=3, num_units=10),
        check_keras),
    '2_tall_data': (
        dict(num_rows=2000, num_chains=4, num_draws=200, num_hmc_draws=50),
        check_tall_data),
    '3_which_sampler': (
        dict(num_chains=4, num_draws=100, num_burnin_steps=300,
             num_heavy_chains=20, num_heavy_steps=2000),
        check_which_sampler),
    '4_variance_reduction': (
        dict(num_rows=500, num_chains=8, num_draws=200, num_reference=1000),
        check_variance_reduction),
    '5_bouncy_particles': (
        dict(num_events=200, num_rows=500, num_minibatch_events=400),
        check_bouncy_particles),
    '6_hierarchical_model': (
        dict(num_rows=1000, num_groups=4, batch_size=50, num_chains=2,
             num_draws=100, num_burnin_steps=500, num_nuts_draws=10),
        check_hierarchical_model),
    '7_long_runs': (
        dict(num_results=30, num_chains=2, epochs=8, num_units=5,
             executor=concurrent.futures.ThreadPoolExecutor(1)),
        check_long_runs),
    '9_your_own_estimator': (
        dict(num_estimates=20_000, num_chains=5000, num_steps=100),
        check_your_own_estimator),
    '10_serve_a_posterior': (
        dict(epochs=20, num_units=10, num_served=3, student_epochs=2),
        check_serve_a_posterior),
    '11_lora': (
        dict(num_texts_before=300, epochs_before=1, epochs=1,
             epochs_of_chain=20, num_served=2),
        check_lora),
}
# Whose chain goes on bit by bit, which holds for programs as users have them.
WITH_XLA = ('7_long_runs',)
# Packages that a notebook needs and that the extra `test` does not install.
NEEDS = {'11_lora': 'keras_hub'}


def main(chosen):
  matplotlib.use('Agg')
  # At these sizes programs take longer to optimise than to run.
  os.environ.setdefault('XLA_FLAGS', '--xla_backend_optimization_level=0')
  for name, (small, check) in TUTORIALS.items():
    if chosen and name not in chosen:
      continue
    needed = NEEDS.get(name)
    if needed and importlib.util.find_spec(needed) is None:
      print(f'{name}: not run, {needed} is not installed', flush=True)
      continue
    begin = time.process_time()
    with (open(os.devnull, 'w') as nowhere,
          contextlib.redirect_stdout(nowhere),
          contextlib.nullcontext() if name in WITH_XLA
          else programs.without_xla()):
      check(run(name, small))
    print(f'{name}: {time.process_time() - begin:.0f} CPU seconds', flush=True)


if __name__ == '__main__':
  main(sys.argv[1:])
  os._exit(0)  # The threads of a strategy may take minutes to end.
