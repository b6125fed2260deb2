"""The notebooks run, cell by cell, and end where they say."""

import json
import pathlib
import subprocess
import sys

import pytest

from tests import run_tutorials

PATHS = sorted(run_tutorials.FOLDER.glob('*.ipynb'))


def test_every_notebook_is_tested_and_listed():
  assert {path.stem for path in PATHS} == set(run_tutorials.TUTORIALS)
  table = (run_tutorials.FOLDER / 'README.md').read_text()
  for path in PATHS:
    assert f']({path.name})' in table


@pytest.mark.parametrize('path', PATHS, ids=lambda path: path.stem)
def test_notebook_has_outputs_and_no_errors(path):
  assert path.stat().st_size < 500_000
  outputs = [
      output for cell in json.loads(path.read_text())['cells']
      for output in cell.get('outputs', [])]
  assert any('image/png' in output.get('data', {}) for output in outputs)
  assert not any(
      output['output_type'] == 'error' or output.get('name') == 'stderr'
      for output in outputs)


@pytest.mark.slow
@pytest.mark.weekly
def test_notebooks_run():
  run([name for name in run_tutorials.TUTORIALS
       if name not in run_tutorials.NEEDS])


@pytest.mark.slow
@pytest.mark.weekly
@pytest.mark.parametrize('name, package', run_tutorials.NEEDS.items())
def test_notebooks_that_need_more_run(name, package):
  pytest.importorskip(package)
  run([name])


def run(names):
  result = subprocess.run(
      [sys.executable, '-m', 'tests.run_tutorials', *names],
      capture_output=True, check=False,
      cwd=pathlib.Path(__file__).parent.parent, text=True)
  assert result.returncode == 0, result.stdout + result.stderr
