"""Each experiment runs at its tiny size and writes what it says."""

import functools
import importlib
import json
import os
import pathlib

import pytest
import tensorflow as tf

pytest.importorskip('matplotlib')

from experiments import __main__ as experiments  # noqa: E402
import tfp_sgmcmc as sgmcmc  # noqa: E402
from tfp_sgmcmc.datasets import mnist  # noqa: E402

pytestmark = pytest.mark.slow

# Those that read real data need the folder that this variable names.
_NEED_DATA = {
    'mnist_bnn_thermostat', 'topic_model', 'covertype', 'mnist_bnn_ewsg',
    'bouncy_network', 'cyclical_posterior', 'uci_regression', 'cold_posterior'}


@pytest.fixture
def _without_xla(monkeypatch):
  """At these sizes to compile takes most of the time, and shows nothing."""
  function = tf.function

  def plain(fn=None, **arguments):
    ours = getattr(fn, 'func', fn)  # Random numbers come by XLA everywhere.
    if getattr(ours, '__module__', None) == 'tfp_sgmcmc.random':
      return function(fn, **arguments)
    return function(fn, **{**arguments, 'jit_compile': None})

  monkeypatch.setattr(tf, 'function', plain)


@functools.cache
def _load_mnist(data_dir):
  """To decode the images takes longer than most experiments."""
  return mnist.load_mnist(data_dir)


@pytest.mark.parametrize('name', experiments.NAMES)
def test_runs(name, tmp_path, capsys, monkeypatch, _without_xla):
  monkeypatch.setattr(sgmcmc.datasets, 'load_mnist', _load_mnist)
  monkeypatch.setattr(
      sgmcmc.datasets, 'load_small_mnist',
      lambda data_dir: mnist.shrink_mnist(*_load_mnist(data_dir)))
  arguments = ['--tiny', '--quiet', f'--output={tmp_path}']
  if name in _NEED_DATA:
    folder = os.environ.get('TFP_SGMCMC_DATA')
    if not folder:
      pytest.skip('TFP_SGMCMC_DATA names no folder of data sets')
    arguments.append(f'--data={folder}')
  importlib.import_module(f'experiments.{name}').main(arguments)
  record = json.loads((tmp_path / f'{name}.json').read_text())
  assert record['size'] == 'tiny' and record['claims'] and record['rows']
  assert all(len(row) == len(record['columns']) for row in record['rows'])
  assert (tmp_path / f'{name}.png').read_bytes().startswith(b'\x89PNG')
  output = capsys.readouterr().out
  assert output.count('HOLD') == len(record['claims'])
  experiments.write_summary(tmp_path)
  assert f'## {name}' in (tmp_path / 'README.md').read_text()


def test_each_script_is_listed(capsys):
  folder = pathlib.Path(experiments.__file__).parent
  scripts = {path.stem for path in folder.glob('*.py')}
  shared = {'__init__', '__main__', 'common', 'thermostats'}
  assert scripts - shared == set(experiments.NAMES)
  assert experiments.main([]) == 0
  listed = capsys.readouterr().out
  assert all(name in listed for name in experiments.NAMES)
  assert experiments.main(['no_such']) == 2
