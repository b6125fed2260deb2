"""The package as a stranger meets it: import errors."""

import ast
import importlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


def run_python(code, **environment):
  return subprocess.run(
      [sys.executable, '-c', code], capture_output=True, text=True, cwd=ROOT,
      env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3', **environment})


@pytest.mark.slow
def test_wrong_keras_backend_is_one_clear_sentence():
  result = run_python('import tfp_sgmcmc', KERAS_BACKEND='numpy')
  last = result.stderr.strip().splitlines()[-1]
  assert last.startswith('ImportError: tfp_sgmcmc needs Keras to run on')
  assert 'KERAS_BACKEND=tensorflow' in last


@pytest.mark.slow
def test_missing_modules_are_one_clear_sentence_each():
  result = run_python("""
import sys
import tensorflow, tf_keras, tensorflow_probability

for module in ('tensorflow', 'tf_keras', 'tensorflow_probability'):
  there, sys.modules[module] = sys.modules[module], None
  try:
    import tfp_sgmcmc
  except ImportError as error:
    print(error)
  sys.modules[module] = there
  for name in [n for n in sys.modules if n.startswith('tfp_sgmcmc')]:
    del sys.modules[name]
""")
  sentences = result.stdout.strip().splitlines()
  for module, sentence in zip(
      ('tensorflow', 'tf_keras', 'tensorflow_probability'), sentences,
      strict=True):
    assert sentence.startswith(f'tfp_sgmcmc needs {module}')
    assert 'pip install' in sentence


def test_private_modules_are_touched_in_one_file():
  private = re.compile(r'tensorflow_probability\.python|tensorflow\.python')
  users = {
      str(path.relative_to(ROOT)) for path in ROOT.glob('tfp_sgmcmc/**/*.py')
      if private.search(path.read_text())}
  assert users == {os.path.join('tfp_sgmcmc', 'internal', 'compat.py')}


def own_imports(path):
  """What a program imports of this repository, in its functions too."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.ImportFrom) and node.module.split('.')[0] in (
        'benchmarks', 'experiments', 'tests', 'tfp_sgmcmc', 'tutorials'):
      yield from ((node.module, alias.name) for alias in node.names)


def test_what_programs_import_is_there():
  """In functions too, which no import of the program runs."""
  missing = []
  for folder in ('benchmarks', 'experiments', 'tests', 'tutorials'):
    for path in ROOT.glob(f'{folder}/**/*.py'):
      for module, name in own_imports(path):
        if not hasattr(importlib.import_module(module), name):
          if importlib.util.find_spec(f'{module}.{name}') is None:
            missing.append(f'{path.relative_to(ROOT)}: {module}.{name}')
  assert not missing


@pytest.mark.slow
def test_importing_it_imports_nothing_but_what_it_stands_on():
  """Its own part of the import time stays small: no plots, no progress bars."""
  result = run_python(
      'import sys, keras, tf_keras, tensorflow_probability as tfp\n'
      'tfp.mcmc, tfp.distributions, tfp.bijectors\n'
      'before = set(sys.modules)\n'
      'import tfp_sgmcmc\n'
      'new = {name.split(".")[0] for name in set(sys.modules) - before}\n'
      'print(sorted(new))')
  assert result.stdout.strip() == "['tfp_sgmcmc']", result.stdout
