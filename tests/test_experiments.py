"""Each experiment runs at its tiny size and writes what it says."""

import functools
import importlib
import itertools
import json
import os
import pathlib

import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf

pytest.importorskip('matplotlib')

from experiments import __main__ as experiments  # noqa: E402
from experiments import common  # noqa: E402
from experiments import continuous_expectation  # noqa: E402
from experiments import datasets  # noqa: E402
from experiments import mnist_bnn_ewsg  # noqa: E402
from experiments import page  # noqa: E402
from experiments import parts  # noqa: E402
from experiments import thermostats  # noqa: E402
from experiments import topic_model  # noqa: E402
from tests import marks  # noqa: E402
from tests import programs  # noqa: E402
import tfp_sgmcmc as sgmcmc  # noqa: E402
from tfp_sgmcmc.datasets import mnist  # noqa: E402

pytestmark = pytest.mark.slow

# Those that take longest, fifteen seconds and more.
_WEEKLY = {
    'bouncy_network', 'cold_posterior', 'covertype', 'cyclical_posterior',
    'ewsg_error', 'ewsg_gaussian', 'logistic_bouncy', 'matrix_factorization',
    'mnist_bnn_ewsg', 'mnist_bnn_thermostat', 'mnist_cnn_ewsg',
    'splitting_logistic', 'topic_model', 'uci_regression'}
# Those that read real data need the folder that this variable names.
_NEED_DATA = {
    'mnist_bnn_thermostat', 'topic_model', 'covertype', 'mnist_bnn_ewsg',
    'mnist_cnn_ewsg', 'bouncy_network', 'cyclical_posterior',
    'uci_regression', 'cold_posterior'}


@pytest.fixture
def _without_xla():
  """At these sizes to compile takes most of the time, and shows nothing."""
  with programs.without_xla():
    yield


@functools.cache
def _load_mnist(data_dir):
  """To decode the images takes longer than most experiments."""
  return mnist.load_mnist(data_dir)


@pytest.mark.weekly_after(3)
@pytest.mark.filterwarnings('error:Mean of empty slice')
@pytest.mark.parametrize(
    'name', marks.and_weekly(experiments.NAMES, _WEEKLY))
@pytest.mark.usefixtures('_without_xla')
def test_runs(name, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(sgmcmc.datasets, 'load_mnist', _load_mnist)
  monkeypatch.setattr(
      datasets, 'load_small_mnist',
      lambda data_dir: datasets.shrink_mnist(*_load_mnist(data_dir)))
  arguments = ['--tiny', '--quiet', f'--output={tmp_path}']
  if name in _NEED_DATA:
    folder = os.environ.get('TFP_SGMCMC_DATA')
    if not folder:
      pytest.skip('TFP_SGMCMC_DATA names no folder of data sets')
    arguments.append(f'--data={folder}')
  importlib.import_module(f'experiments.{name}').main(arguments)
  record = json.loads((tmp_path / f'{name}.json').read_text())
  assert record['size'] == 'tiny' and record['rows']
  assert all(len(row) == len(record['columns']) for row in record['rows'])
  assert (tmp_path / f'{name}.png').read_bytes().startswith(b'\x89PNG')
  output = capsys.readouterr().out
  verdicts = [
      line for line in output.splitlines()
      if line.startswith(('HOLDS', 'DOES NOT HOLD', 'NO VERDICT'))]
  assert len(verdicts) == len(record['claims'])
  page.write(tmp_path, experiments.NAMES)
  assert f'## {name}' in (tmp_path / 'README.md').read_text()


def test_a_full_run_says_how_long_and_goes_on(tmp_path, capsys):
  arguments = common.parse(
      'some', '', ['--full', '--quiet', f'--output={tmp_path}'])
  made = []

  def square(item):
    if len(made) == 2:
      raise KeyboardInterrupt  # As a kill does.
    made.append(item)
    return item**2

  with pytest.raises(KeyboardInterrupt):
    parts.each(square, range(4), arguments, 'squares')
  assert 'part 1 of 4 done' in capsys.readouterr().out
  assert arguments.used_before == [0., 0.]
  made.clear()
  assert parts.each(
      lambda item: made.append(item) or item**2, range(4), arguments,
      'squares') == [0, 1, 4, 9]
  assert made == [2, 3]  # The first two were on disk,
  assert arguments.used_before[0] > 0.  # and what they took counts.
  assert 'the others take about' in capsys.readouterr().out
  arguments.seed += 1
  parts.each(lambda item: made.append(item), range(1), arguments, 'squares')
  assert made == [2, 3, 0]  # Those of another seed are not taken.
  parts.forget(arguments)
  assert not list(tmp_path.rglob('*.pickle'))


def test_a_long_part_tells_from_its_first_steps(tmp_path, capsys, monkeypatch):
  arguments = common.parse(
      'some', '', ['--full', '--quiet', f'--output={tmp_path}'])
  now = [0.]
  monkeypatch.setattr(parts.time, 'monotonic', lambda: now[0])

  def wait(minutes):
    now[0] += 20.  # To compile it.
    for step in range(10):
      now[0] += 6. * minutes
      parts.tell((step + 1) / 10, arguments)

  parts.each(wait, [5., 20.], arguments, 'waits', work=[1., 4.], share=0.5)
  words = capsys.readouterr().out
  # Once a part: five minutes, and four times as long for the other; of other
  # kinds, as long as both.
  assert words.count('the whole run 50, by its first 20.0%') == 2
  assert 'takes about 5 minutes, with those after it 25, the whole' in words
  assert ('part 1 of 2 done, 320 s; the others take about 21 minutes, the '
          'whole run 53') in words
  arguments.size = 'default'
  parts.each(wait, [5.], arguments, 'waits')
  assert not capsys.readouterr().out


def test_page_keeps_quotations_apart(tmp_path):
  claims = [
      dict(text='a | b', holds=True, detail='1', quotation=dict(
          paper='Doe (2000)', place='Fig. 1', words='it works')),
      dict(text='ours', holds=None, detail='2', quotation=None)]
  record = dict(
      name='double_well', title='Title.', size='full', seconds=1.,
      cpu_seconds=2., machine='2 cores', columns=['x'], rows=[[1.]],
      claims=claims, notes='', versions=dict(commit='0123abc'))
  (tmp_path / 'double_well.full.json').write_text(json.dumps(record))
  text = page.write(tmp_path, experiments.NAMES).read_text()
  quoted, rest = text.split('## What we claim')
  assert 'Of what the papers claim, 1 of 1 held' in quoted
  assert '| Doe (2000), Fig. 1 | "it works" | holds |' in quoted
  assert 'a \\| b' in quoted and '| ours | **no verdict** | 2 |' in rest
  assert '(double_well.full.png)' in rest and '0123abc' in rest


@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('error, is_right', [
    (dict(), True),
    # Shares that stay even: topics that know nothing of each other.
    (dict(NUM_BURNIN_SWEEPS=0), False),
    (dict(ALPHA=0.4), False)], ids=str)
def test_topics_are_drawn_from_their_law(monkeypatch, error, is_right):
  """Of a document of three words, against all 2^3 assignments.

  By Pearson's statistic of 20,000 documents; false alarms: one in a million.
  """
  pi = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]], np.float32)
  words, num_chains, alpha = np.array([0, 0, 2]), 20_000, 0.1
  monkeypatch.setattr(topic_model, 'NUM_BURNIN_SWEEPS', 40)
  for name, value in error.items():
    monkeypatch.setattr(topic_model, name, value)
  tokens = topic_model.Tokens(*(
      tf.constant(np.tile(row, [num_chains, 1]))
      for row in (words.astype('i4'), np.zeros(3, 'i4'))))
  topics = tf.function(topic_model.sample_topics, jit_compile=True)(
      tf.constant(np.tile(pi, [num_chains, 1, 1])), tokens, 1, 1,
      tf.constant([0, 1]))[0].numpy()
  found = np.bincount(topics @ [4, 2, 1], minlength=8)
  z = np.array(list(itertools.product((0, 1), repeat=3)))
  counts = np.stack([(z == k).sum(axis=1) for k in (0, 1)], axis=1)
  law = np.prod(pi[z, words], axis=1) * np.exp(
      scipy.special.gammaln(alpha + counts).sum(axis=1))
  assert (scipy.stats.chisquare(
      found, num_chains * law / law.sum()).pvalue > 1e-6) == is_right


@pytest.mark.parametrize('num_steps, verdict', [(9, None), (10, False)])
def test_a_short_run_has_no_verdict_on_the_paper(num_steps, verdict):
  runs = [
      thermostats.Run(method, a, eta, np.array([num_steps]), np.ones([1, 2]),
                      np.ones([1, 2]), 1)
      for method in ('SGHMC', 'SGNHT') for a in (0.1, 1.) for eta in (1., 2.)]
  claims = thermostats.claims(runs, 'error', 0, 2., 'the axis', '.1f', 100)
  quoted = [claim for claim in claims if claim.quotation]
  assert [claim.holds for claim in quoted] == [verdict] * 4
  assert 'above 2.0, the axis' in quoted[1].text
  assert all(f'after {num_steps} of 100' in claim.detail for claim in claims)


@pytest.mark.parametrize('gains, verdict', [
    ([1.], None), ([1., 1.1, 0.9], True), ([1., -1., 0.5], False)], ids=str)
def test_a_gain_is_held_against_its_error_over_seeds(gains, verdict):
  def curve(gain):
    return mnist_bnn_ewsg.Curve(
        np.arange(20.), np.full(20, 90. + gain), 90., -0.1, 0.5)

  # What differs from seed to seed, and is common to the samplers, is no error.
  found = {
      key: [curve(10. * seed + gain * (key[0] == 'EWSG'))
            for seed, gain in enumerate(gains)] for key in mnist_bnn_ewsg.RUNS}
  result = mnist_bnn_ewsg.report(found, dict(num_seeds=len(gains)))
  assert {claim.holds for claim in result.claims} == {verdict}


@pytest.mark.parametrize('ratios, is_right', [
    ([0.3, 0.5, 1.], True), ([0.5, 0.4, 1.], False), ([1., 1., 1.], False)],
    ids=str)
def test_a_ratio_falls(ratios, is_right):
  assert continuous_expectation.falls(
      [(ratio, 0.01) for ratio in ratios]) == is_right


def test_each_script_is_listed(capsys):
  folder = pathlib.Path(experiments.__file__).parent
  scripts = {path.stem for path in folder.glob('*.py')}
  shared = {
      '__init__', '__main__', 'common', 'logistic', 'page', 'parts',
      'thermostats'}
  assert scripts - shared == set(experiments.NAMES)
  assert experiments.main([]) == 0
  listed = capsys.readouterr().out
  assert all(name in listed for name in experiments.NAMES)
  assert experiments.main(['no_such']) == 2
