"""What benchmarks compute, and small runs of them."""

import json
import os
import pathlib
import subprocess

import keras
import numpy as np
import pytest

from benchmarks import __main__ as speed
from benchmarks import accelerators
from benchmarks import data
from benchmarks import distillation
from benchmarks import ensembles
from benchmarks import environments
from benchmarks import gpu
from benchmarks import head_to_head
from benchmarks import how_far
from benchmarks import kinds
from benchmarks import laws
from benchmarks import long_hmc
from benchmarks import memory
from benchmarks import programs
from benchmarks import reference_posteriors
from benchmarks import report
from benchmarks import result_lines
from benchmarks import rows
from benchmarks import stacked
from benchmarks import tables
from benchmarks import uncertainty
from benchmarks import uncertainty_data

USUAL = uncertainty_data.USUAL


def test_auroc_is_the_share_of_pairs_in_order():
  rng = np.random.default_rng(0)
  usual, other = rng.integers(0, 9, 40), rng.integers(3, 12, 30)
  pairs = other[:, np.newaxis] - usual
  np.testing.assert_allclose(
      uncertainty.auroc(usual, other),
      np.mean(pairs > 0) + 0.5 * np.mean(pairs == 0))


def test_targets_are_judged_by_pairs_of_the_same_seed():
  def line(nll, shifted, accuracy):
    return dict(scores={
        USUAL: dict(NLL=nll, accuracy=accuracy),
        'noise': dict(NLL=shifted, accuracy=0.), 'turned': dict(NLL=1.)})

  grid = {'a set': {
      'Adam': {1: line(1., 1., 0.9), 2: line(2., 3., 0.9), 3: line(9., 9., 1.)},
      'ensemble of 4': {1: line(0.9, 1., 0.9), 2: line(1., 3., 0.9)},
      'T chosen': {1: line(0.9, 0.2, 0.9), 2: line(1.8, 2., 0.8)}}}
  said = uncertainty.targets(grid)
  for part in (
      "NLL over Adam's ≤ 0.95 | T chosen | 0.900 ± 0.000, reached",
      "accuracy less Adam's ≥ 0 | T chosen | -0.050 ± 0.050, not reached",
      "shifted data over Adam's ≤ 0.7 | T chosen | 0.675 ± 0.075, reached",
      "NLL over the ensemble's ≤ 1.05 | T chosen | 1.400 ± 0.400, not reached",
      "NLL over Adam's ≤ 0.95 | T = 1 | not run"):
    assert part in said, (part, said)


@pytest.mark.weekly
@pytest.mark.slow
def test_uncertainty_runs_and_resumes(tmp_path, monkeypatch):
  folder = os.environ.get('TFP_SGMCMC_DATA')
  if not folder:
    pytest.skip('TFP_SGMCMC_DATA names no folder of data sets')
  monkeypatch.setattr(uncertainty, 'NUM_MEMBERS', 2)
  arguments = [
      '--tiny', '--seeds=1', f'--data={folder}', f'--output={tmp_path}']
  # Of the other sets the first fit alone.
  first, *others = uncertainty_data.SETS
  with monkeypatch.context() as patch:
    patch.setattr(uncertainty, 'FITS', uncertainty.FITS[:1])
    patch.setattr(uncertainty, 'METHODS', uncertainty.FITS[0][1])
    assert uncertainty.main([*arguments, '--sets', *others]) == 0
  arguments += ['--sets', first]
  assert uncertainty.main(arguments) == 0
  path = tmp_path / 'uncertainty.jsonl'
  lines = result_lines.read(path)
  assert sorted(
      line['method'] for line in lines if line['set'] == first) == sorted(
          uncertainty.METHODS)
  assert {
      line['set'] for line in lines if line['method'] == 'Adam'} == set(
          uncertainty_data.SETS)
  for line in lines:
    scores = line['scores'][USUAL]
    assert np.isfinite(scores['NLL']) and 0. <= line['auroc'] <= 1.
    # More is learned than nothing.
    if line['method'] == 'Adam':
      assert scores['NLL'] < np.log({'covertype': 2, 'kos': 5}.get(
          line['set'], 9))
  report = (tmp_path / 'uncertainty.md').read_text()
  assert all(f'## {name}' in report for name in uncertainty_data.SETS)
  # Of what is there nothing is run again.
  path.write_text(''.join(path.read_text().splitlines(True)[:-1]))
  fitted = []
  monkeypatch.setattr(uncertainty, 'FITS', tuple(
      ((lambda task, seed, methods=methods: fitted.append(methods) or {}),
       methods) for _, methods in uncertainty.FITS))
  uncertainty.main(arguments)
  assert fitted == [uncertainty.FITS[-1][1]]


def _sgld(case, num_steps, noise=1., scale=1.):
  """Draws of 400 chains of SGLD by NumPy, after as many steps as are kept."""
  rng = np.random.default_rng(5)
  x, y = data.examples(case)
  n, h = case['batch_size'], case['step_size']
  theta = np.tile(case['mode'], [400, 1])
  draws = []
  for step in range(2 * num_steps):
    batch = rng.integers(0, len(x), [400, n])
    logits = np.einsum('cnd,cd->cn', x[batch], theta)
    gradient = scale * len(x) / n * np.einsum(
        'cn,cnd->cd', y[batch] - 1. / (1. + np.exp(-logits)), x[batch]) - theta
    theta = theta + h * gradient + noise * np.sqrt(2. * h) * rng.normal(
        size=theta.shape)
    if step >= num_steps:
      draws.append(theta)
  return np.concatenate(draws)


@pytest.mark.parametrize('wrong, is_seen', [
    ({}, False), (dict(noise=np.sqrt(0.5)), True), (dict(scale=2.), True)])
def test_law_that_sides_are_held_to(wrong, is_seen):
  # The errors that are planted: the noise of half the step; twice N / n.
  case = dict(model='logistic', num_examples=2_000, num_features=3,
              batch_size=20, replacement=True, step_size=4e-5)
  x, y = (part.astype(np.float64) for part in data.examples(case))
  case['mode'] = laws.newton(x, y).tolist()
  draws = _sgld(case, 300, **wrong)
  law = laws.logistic(case, 400 * 300)
  complaint = law.complaint(dict(
      mean=draws.mean(axis=0), sd=draws.std(axis=0)))
  assert (complaint is not None) == is_seen, complaint


def test_ratios_are_of_turns_of_the_same_round():
  sides = {name: rows.Side(name, '', {}, work) for name, work in (
      ('ours', 10.), ('theirs', 5.))}
  turns = dict(
      ours=[dict(wall=1., cpu=2., peak=3.), dict(wall=4., cpu=2., peak=3.),
            dict(wall=1., cpu=2., peak=4.)],
      theirs=[dict(wall=1., cpu=2., peak=2.), dict(wall=6., cpu=4., peak=2.),
              dict(wall=4., cpu=2., peak=2.)])

  def compare(*ratio):
    return speed._compare(rows.Ratio('ours', 'theirs', *ratio), sides, turns)

  found = compare(2.9)
  assert found['reached']
  np.testing.assert_allclose(
      [found['least'], found['median'], found['largest']], [2., 3., 8.])
  assert found['by_cpu']['median'] == 2.
  found = compare(0.6, 'cpu')
  assert found['median'] == 0.5 and found['reached']
  assert compare(1.4, 'peak')['median'] == 1.5
  assert not compare(1.4, 'peak')['reached']


@pytest.mark.weekly
@pytest.mark.slow
def test_speed_runs_without_peers(tmp_path):
  arguments = ['--tiny', '--peers', '--rounds=1', f'--output={tmp_path}']
  assert speed.main([*arguments, '--rows', 'bouncy']) == 0
  results = json.loads((tmp_path / 'speed.json').read_text())
  row = results['bouncy']
  assert row['ratios'] and all(
      turn['wall'] > 0. for side in row['sides'].values()
      for turn in side['turns'])
  assert (tmp_path / 'speed.md').read_text() == report.markdown(results)
  # A side that breaks is told of, and is no figure.
  assert speed.main([*arguments, '--rows', 'effective_covertype']) == 1
  results = json.loads((tmp_path / 'speed.json').read_text())
  assert '--data' in results['effective_covertype']['failed']
  assert 'sides' in results['bouncy']


def test_readme_and_pages_show_the_results():
  results = json.loads((speed.RESULTS / 'speed.json').read_text())
  readme = (speed.RESULTS.parent.parent / 'README.md').read_text()
  first, last = report.README_MARKS
  shown = readme.split(first)[1].split(last)[0].strip()
  assert shown == report.short(results)
  assert (speed.RESULTS / 'speed.md').read_text() == report.markdown(results)


def test_how_far_it_goes_is_what_was_found():
  found = json.loads(accelerators.RESULTS.read_text())
  assert accelerators.PAGE.read_text() == how_far.page(found)


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.parametrize('name', ['perceptron, the default', 'perceptron'])
def test_programs_for_accelerators_are_written(name):
  case = programs.BY_NAME[name]._replace(
      make_model=lambda: programs.perceptron(5), batch=4)
  for each in (case, case.sgd()):
    program, arguments, _ = programs.make(each)
    assert len(programs.serialized(program, arguments, False)) > 1000


def test_a_product_that_rounds_more_is_seen():
  """Where the sd is a two-thousandth of the weight: bfloat16 alone."""
  found, = accelerators.precision(None, num_chains=400, num_steps=400)
  worst = {
      bits: max(abs(line['error']) for line in found if line['bits'] == bits)
      for bits in (8, 11)}
  assert worst[11] < 0.3 < 1. < worst[8]


@pytest.mark.weekly
@pytest.mark.slow
def test_what_is_measured_of_chains_on_this_machine():
  found, = accelerators.chains(None, numbers=(1, 2), num_steps=2, repeats=1)
  assert list(found['seconds']) == ['1', '2']
  found, = accelerators.together(
      None, networks=['2-3-1'], num_chains=2, num_steps=2, repeats=1,
      with_xla=[False])
  assert [line['network'] for line in found['rows']] == ['2-3-1']


@pytest.mark.weekly
@pytest.mark.slow
def test_the_report_on_an_accelerator(tmp_path):
  """On whatever is here: random numbers, a test, a row."""
  path = tmp_path / 'report.md'
  assert gpu.main([
      '--tiny', '--repeats=2', '--tests', 'tests/test_rows.py', '--rows',
      'perceptron', f'--output={path}']) == 0
  text = path.read_text()
  assert 'DIFFERENT' not in text and ' passed' in text and 'perceptron' in text


@pytest.mark.weekly
@pytest.mark.slow
def test_tables_run_and_resume(tmp_path, capsys):
  arguments = [
      '--data', str(tmp_path), '--sets', 'digits', '--splits', '1', '--tiny',
      '--epochs', '8', '--likelihood', 'gaussian', 'mixture', '--output',
      str(tmp_path)]
  assert tables.main(arguments) == 0
  assert tables.main(arguments) == 0
  line, = result_lines.read(tmp_path / 'tables.jsonl')  # Classes have one.
  assert np.isfinite([line['adam'], line['posterior']]).all()
  # Ten classes of 64 rows: less than the 2.3 nats of equal shares by little.
  assert 2. < line['constant'] < 3.
  report = (tmp_path / 'tables.md').read_text()
  assert '| digits |  | 8 | 32 | auto | auto | 50 | 1 | 1 |' in report
  assert capsys.readouterr().out.count(
      'digits 0, gaussian, 32, 50: ') == 1


def test_the_data_of_other_kinds_fit_their_models():
  for name, make in kinds.KINDS.items():
    kind = make()
    inputs = kind.x if isinstance(kind.x, tuple) else (kind.x,)
    assert {len(x) for x in inputs} == {len(kind.y)}, name
    model = kind.make_model()
    outputs = model([x[:3] for x in inputs] if len(inputs) > 1
                    else inputs[0][:3])
    assert np.isfinite(kind.make_loss()(kind.y[:3], outputs)), name


@pytest.mark.weekly
@pytest.mark.slow
def test_other_kinds_run_and_resume(tmp_path, capsys):
  arguments = [
      '--kinds', 'words', 'normalised', '--seeds', '1', '--tiny', '--output',
      str(tmp_path)]
  assert kinds.main(arguments) == 0
  assert kinds.main(arguments) == 0
  lines = result_lines.read(tmp_path / 'kinds.jsonl')
  assert [line['kind'] for line in lines] == ['words', 'normalised']
  assert np.isfinite([line['posterior'] for line in lines]).all()
  report = (tmp_path / 'kinds.md').read_text()
  assert '| words |' in report and '| normalised |' in report
  assert capsys.readouterr().out.count('words 0: ') == 1


def test_scores_of_normals():
  """Two draws for one row, by hand; one draw is its own mixture."""
  means, scales = np.array([[0.], [1.]]), np.array([[1.], [2.]])
  found = ensembles.scores(means, scales, np.array([0.5]))
  density = np.mean(
      np.exp(-0.5 * np.array([0.25, 0.0625]))
      / np.sqrt(2. * np.pi) / np.array([1., 2.]))
  variance = (1. + 4.) / 2. + 0.25
  np.testing.assert_allclose(found['mixture'], -np.log(density))
  np.testing.assert_allclose(
      found['normal'], 0.5 * np.log(2. * np.pi * variance))
  assert found['rmse'] == 0.
  alone = ensembles.scores(means[:1], scales[:1], np.array([0.5]))
  np.testing.assert_allclose(alone['mixture'], alone['normal'])


def test_distance_of_predictions():
  classes = stacked.Perceptron([3, 4], True)
  p, q = np.array([[0.5, 0.5, 0.]]), np.array([[0.25, 0.25, 0.5]])
  np.testing.assert_allclose(
      reference_posteriors.distance(p, q, classes), 0.5)
  # Two normals of unit scale, apart by 2: 2 Phi(1) - 1.
  normals = stacked.Perceptron([3, 2])
  weights = [np.zeros([1, 3, 2]), np.float32([[0., np.log(np.e - 1.)]])]
  first, second = (
      reference_posteriors.predictive(normals, [
          [np.float32(weights[0])], [np.float32(weights[1] + [[shift, 0.]])],
      ], np.zeros([1, 3], np.float32))[0] for shift in (-1., 1.))
  np.testing.assert_allclose(
      reference_posteriors.distance(first, second, normals), 0.6827, atol=1e-3)
  np.testing.assert_allclose(
      reference_posteriors.nll(normals, first, np.array([-1.])),
      0.5 * np.log(2. * np.pi), atol=1e-4)


@pytest.mark.weekly
@pytest.mark.slow
def test_reference_posteriors_run_and_resume(tmp_path):
  arguments = [
      f'--data={tmp_path}', '--sets', 'digits', '--tiny', '--seeds=1',
      f'--output={tmp_path}']
  assert reference_posteriors.main(['make', *arguments]) == 0
  for _ in range(2):
    assert reference_posteriors.main(
        ['compare', *arguments, '--passes', '16', '--methods', 'ensemble',
         'sample', 'MCLMC']) == 0
  lines = result_lines.read(tmp_path / 'reference_posteriors.jsonl')
  assert [line['method'] for line in lines] == ['ensemble', 'sample', 'MCLMC']
  assert all(0. < line['distance'] < 1. for line in lines)
  report = (tmp_path / 'reference_posteriors.md').read_text()
  assert '| digits | MCLMC | 16 | 1 |' in report


def test_the_page_of_long_hmc_is_what_was_found():
  folder = speed.RESULTS
  lines = {line['case']: line
           for line in result_lines.read(folder / 'long_hmc.jsonl')}
  page = (folder / 'long_hmc.md').read_text()
  assert page == long_hmc.report(lines, folder)


@pytest.mark.weekly
@pytest.mark.slow
def test_long_hmc_has_the_law_of_a_linear_regression(tmp_path):
  """In an environment with JAX, where there is one."""
  if not (environments.folder() / 'jax').exists():
    pytest.skip(f'{environments.folder()} has no environment jax')
  rng = np.random.default_rng(0)
  x, x_test = rng.normal(size=[2, 60, 3])
  true = rng.normal(size=4)
  y, y_test = (
      rows @ true[:3] + true[3] + rng.normal(scale=0.5, size=60)
      for rows in (x, x_test))
  path, result = tmp_path / 'linear.npz', tmp_path / 'linear.result.npz'
  long_hmc.write(dict(
      about=long_hmc.about([keras.layers.Dense(1)], [3], 'one_scale'),
      rows=(x, y), tests={USUAL: (x_test, y_test)}), path)
  side = pathlib.Path(long_hmc.__file__).parent / 'sides' / 'jax_hmc.py'
  subprocess.run([environments.python('jax'), side, path, result,
                  '--seconds=20', '--chains=8'], check=True)
  # The posterior is normal, and so is what it predicts.
  design, design_test = (
      np.column_stack([rows, np.ones(60)]) for rows in (x, x_test))
  covariance = np.linalg.inv(np.eye(4) + design.T @ design / 0.25)
  mean = covariance @ design.T @ y / 0.25
  variance = 0.25 + np.sum(design_test @ covariance * design_test, axis=1)
  density = np.exp(-(y_test - design_test @ mean)**2 / 2. / variance
                   ) / np.sqrt(2. * np.pi * variance)
  with np.load(result) as file:
    about = json.loads(str(file['about']))
    np.testing.assert_allclose(
        np.mean(file['mean_0'], axis=0), density, rtol=0.05, atol=0.01)
  assert min(about['acceptance']) > 0.6 and min(about['draws']) > 100
  np.testing.assert_allclose(
      about['nll'][USUAL], -np.mean(np.log(density)), atol=0.003)


def test_the_table_of_distillation_is_what_was_found():
  found = result_lines.read(result_lines.RESULTS / 'distillation.jsonl')
  table = (result_lines.RESULTS / 'distillation.md').read_text()
  assert table == distillation.report(found)


@pytest.mark.weekly
@pytest.mark.slow
def test_distillation_runs_and_resumes(tmp_path, capsys):
  arguments = ['--data', str(tmp_path), '--sets', 'digits', '--seeds', '1',
               '--tiny', '--output', str(tmp_path)]
  assert distillation.main(arguments) == distillation.main(arguments) == 0
  line, = result_lines.read(tmp_path / 'distillation.jsonl')
  methods = ['Adam', 'posterior', 'student', 'student, perturbed']
  assert list(line['scores']) == methods
  assert all(np.isfinite(list(scores.values())).all()
             for scores in line['scores'].values())
  report = (tmp_path / 'distillation.md').read_text()
  assert all(f'| {method} |' in report for method in methods)
  assert capsys.readouterr().out.count('digits 1 ') == 1


@pytest.mark.weekly
@pytest.mark.slow
def test_ensembles_run_and_resume(tmp_path):
  folder = os.environ.get('TFP_SGMCMC_DATA')
  if not folder:
    pytest.skip('TFP_SGMCMC_DATA names no folder of data sets')
  for _ in range(2):
    assert ensembles.main([
        f'--data={folder}', '--sets', 'airfoil', '--methods', 'sample',
        'fit, all rows', '--seeds=1', '--passes=8', '--tiny',
        f'--output={tmp_path}']) == 0
  lines = result_lines.read(tmp_path / 'ensembles.jsonl')
  assert [line['method'] for line in lines] == ['sample', 'fit, all rows']
  assert np.isfinite([line['normal'] for line in lines]).all()
  assert '| airfoil | sample, 8 passes | 1 |' in (
      tmp_path / 'ensembles.md').read_text()


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.parametrize('method', ['blackjax', 'posteriors'])
def test_ensembles_of_peers(method, tmp_path):
  """In an environment of the peer's own, where there is one."""
  folder = os.environ.get('TFP_SGMCMC_DATA')
  if not folder:
    pytest.skip('TFP_SGMCMC_DATA names no folder of data sets')
  environment = ensembles.METHODS[method][0]
  if not (environments.folder() / environment).exists():
    pytest.skip(f'{environments.folder()} has no environment {environment}')
  assert ensembles.main([
      f'--data={folder}', '--sets', 'airfoil', '--methods', method,
      '--seeds=1', '--passes=40', '--tiny', f'--output={tmp_path}']) == 0
  line, = result_lines.read(tmp_path / 'ensembles.jsonl')
  assert np.isfinite([line['normal'], line['mixture'], line['rmse']]).all()
  assert f'| airfoil | {method}, 40 passes | 1 |' in (
      tmp_path / 'ensembles.md').read_text()


@pytest.mark.weekly
@pytest.mark.slow
def test_samplers_at_equal_gradients(tmp_path):
  """Of two seeds; the second has the rule's step size and the best one."""
  arguments = [
      '--problems', 'gaussian', '--samplers', 'SGLD', 'pSMILE',
      'MCLMC, all rows', '--factors', '0.25', '1', '4', '--seeds', '2',
      '--tiny', '--output', str(tmp_path)]
  for _ in range(2):  # The second time there is nothing left to do.
    assert head_to_head.main(arguments) == 0
    lines = result_lines.read(tmp_path / 'head_to_head.jsonl')
    assert sum(line['seed'] == 0 for line in lines) == 7
    assert 2 <= sum(line['seed'] == 1 and line['sampler'] != 'MCLMC, all rows'
                    for line in lines) <= 4


def test_the_table_of_samplers_tells_of_lost_chains():
  lines = [
      dict(problem='a', sampler='SGLD', factor=factor, seed=seed, error=error)
      for factor, errors in ((1., (0.2, float('inf'))), (4., (0.1, 0.3)))
      for seed, error in enumerate(errors)]
  report = head_to_head.report(lines)
  assert '| SGLD | 0.200, 1 of 2 lost | 0.200 ± 0.100 (4) |' in report


@pytest.mark.weekly
@pytest.mark.slow
def test_memory_is_that_of_the_process():
  """And 100 more calls of a kernel take none."""
  found = memory.measure()
  more = dict(zip(
      [row[0] for row in found], np.diff([row[1] for row in found], prepend=0)))
  assert more['+ tfp_sgmcmc'] < 50. < more['+ TensorFlow']
  assert more['+ 100 more calls of this kernel'] < 20.
  for _, whole, own, files in found:
    np.testing.assert_allclose(whole, own + files, rtol=0.05)
  assert memory.report([['a', 5., 2., 3.], ['b', 9., 5., 4.]]).splitlines()[
      2:] == ['| a | 5 | 5 | 2 | 3 |', '| b | 9 | 4 | 5 | 4 |']
