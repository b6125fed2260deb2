"""The package as a stranger meets it: import errors."""

import ast
import importlib
import importlib.util
import inspect
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
def test_the_core_needs_none_of_the_extras():
  """A fit, its draws on disk and predictions, without the extras' packages."""
  result = run_python("""
import sys
for module in ('arviz', 'distributed', 'matplotlib', 'scipy', 'sklearn',
               'tensorflow_datasets', 'tqdm', 'xarray'):
  sys.modules[module] = None

import tempfile
import keras
import numpy as np
import tfp_sgmcmc as sgmcmc

x = np.linspace(-1., 1., 64)[:, np.newaxis]
model = keras.Sequential([keras.Input([1]), keras.layers.Dense(2)])
model.compile('sgd', sgmcmc.keras.GaussianLikelihood())
with tempfile.TemporaryDirectory() as folder:
  sampling = sgmcmc.keras.PosteriorSampling(
      directory=folder, seed=0, num_chains=1)
  model.fit(x, 2. * x, epochs=5, verbose=0, callbacks=[sampling])
  print('mean', sampling.posterior.predict(x).shape)
  print('nll', sampling.posterior.evaluate(x, 2. * x)['nll'])
""")
  assert result.returncode == 0, result.stderr
  assert 'mean (64, 1)' in result.stdout and 'nll' in result.stdout


@pytest.mark.weekly
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


def package_files():
  """Each file of the package, and its syntax tree."""
  for path in ROOT.glob('tfp_sgmcmc/**/*.py'):
    yield path, ast.parse(path.read_text())


def imports(tree):
  """Pairs of a module and a name in it, or None, in functions too."""
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom):
      yield from ((node.module, alias.name) for alias in node.names)
    elif isinstance(node, ast.Import):
      yield from ((alias.name, None) for alias in node.names)


def test_private_modules_are_touched_in_one_file():
  private = re.compile(
      r'tensorflow_probability\.python|tensorflow\.(python|compiler|core)'
      r'|keras\.src')
  users = {
      str(path.relative_to(ROOT)) for path, tree in package_files()
      if private.search(path.read_text())
      or any(private.search(f'{module}.{name}')
             for module, name in imports(tree))}
  assert users == {os.path.join('tfp_sgmcmc', 'internal', 'compat.py')}


def private_names(tree):
  """Names with one underscore: those defined, and those asked of objects."""
  defined, asked = set(), set()
  for node in ast.walk(tree):
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
      defined.add(node.name)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
      defined.add(node.id)
    elif isinstance(node, ast.Attribute):
      is_own = isinstance(node.ctx, ast.Store) and isinstance(
          node.value, ast.Name) and node.value.id == 'self'
      (defined if is_own else asked).add(node.attr)
    elif isinstance(node, ast.Call) and len(node.args) > 1 and isinstance(
        node.func, ast.Name) and node.func.id in ('getattr', 'hasattr'):
      name = node.args[1]
      if isinstance(name, ast.Constant):
        asked.add(name.value)
  return tuple(
      {name for name in names if re.match('_[^_]', name)}
      for names in (defined, asked))


def test_private_names_of_others_are_asked_for_in_one_file():
  """Names that the package does not define are TensorFlow's, TFP's, Keras'."""
  names = {
      str(path.relative_to(ROOT)): private_names(tree)
      for path, tree in package_files()}
  ours = set().union(*(defined for defined, _ in names.values()))
  ours |= {'_asdict', '_fields', '_replace'}  # Public, of a NamedTuple.
  users = {path: asked - ours for path, (_, asked) in names.items()}
  assert {path for path, asked in users.items() if asked} == {
      os.path.join('tfp_sgmcmc', 'internal', 'compat.py')}, users


def floors(lowest='internal'):
  """For each part of the package what it may import, by CONTRIBUTING.md."""
  text = (ROOT / 'CONTRIBUTING.md').read_text()
  order = re.search(rf'\n\n    {lowest}((?:\n    |.)*)\n\n', text).group(0)
  groups = [group.replace(' ', '').strip().split(',')
            for group in order.split('<-')]
  below, allowed = set(), {}
  for group in groups:
    allowed.update({part: below | {part} for part in group})
    below = below.union(group)
  return allowed


def parts_imported(tree, package):
  """The parts of the package that one of its files imports."""
  for module, name in imports(tree):
    path = [*module.split('.'), *([name] if name else [])]
    if path[:len(package)] == package and len(path) > len(package):
      yield path[len(package)]


@pytest.mark.parametrize('folder, lowest', [
    ('tfp_sgmcmc', 'internal'), ('tfp_sgmcmc/keras', 'model')])
def test_floors_point_down(folder, lowest):
  """Who imports what is as CONTRIBUTING.md says, in functions too."""
  allowed, upward, parts = floors(lowest), [], set()
  for path, tree in package_files():
    if not path.is_relative_to(ROOT / folder):
      continue
    part = path.relative_to(ROOT / folder).with_suffix('').parts[0]
    if part != '__init__':
      parts.add(part)
      upward += [
          f'{path.relative_to(ROOT)} imports {other}'
          for other in parts_imported(tree, folder.split('/'))
          if other not in allowed[part]]
  assert not upward
  assert parts == set(allowed)


def own_imports(path):
  """What a program imports of this repository, in its functions too."""
  for module, name in imports(ast.parse(path.read_text())):
    if name and module.split('.')[0] in (
        'benchmarks', 'experiments', 'tests', 'tfp_sgmcmc', 'tutorials'):
      yield module, name


@pytest.mark.slow
def test_what_programs_import_is_there():
  """In functions too, which no import of the program runs."""
  missing = []
  for folder in ('benchmarks', 'experiments', 'tests', 'tutorials'):
    for path in ROOT.glob(f'{folder}/**/*.py'):
      for module, name in own_imports(path):
        if not hasattr(importlib.import_module(module), name) and (
            importlib.util.find_spec(f'{module}.{name}') is None):
          missing.append(f'{path.relative_to(ROOT)}: {module}.{name}')
  assert not missing


def public_classes():
  """The classes of the package's public modules, by name."""
  found = {}
  for name in (
      '', '.datasets', '.diagnostics', '.firefly', '.gradients', '.keras',
      '.mcmc', '.pdmp', '.preconditioners'):
    module = importlib.import_module(f'tfp_sgmcmc{name}')
    for public in module.__all__:
      value = getattr(module, public)
      if inspect.isclass(value) and value.__module__.startswith('tfp_sgmcmc'):
        found[public] = value
  return found


def test_constructors_take_three_arguments_by_position_at_most():
  """And of those with a default one; NamedTuples and errors aside."""
  too_many = {}
  for name, value in public_classes().items():
    # Keras makes its losses with its own.
    is_ours = getattr(
        value.__init__, '__module__', '').startswith('tfp_sgmcmc')
    if not is_ours or issubclass(value, (tuple, Exception)):
      continue
    by_position = [
        p for p in list(inspect.signature(value).parameters.values())
        if p.kind == p.POSITIONAL_OR_KEYWORD]
    with_default = [p for p in by_position if p.default is not p.empty]
    if len(by_position) > 3 or len(with_default) > 1:
      too_many[name] = [p.name for p in by_position]
  assert not too_many


@pytest.mark.slow
def test_importing_it_imports_nothing_but_what_it_stands_on():
  """Its own part of the import time stays small: no plots, no progress bars."""
  result = run_python(
      'import sys, keras, tf_keras, tensorflow_probability as tfp\n'
      'tfp.mcmc, tfp.distributions, tfp.bijectors\n'
      'before = set(sys.modules)\n'
      'import tfp_sgmcmc\n'
      'new = {name.split(".")[0] for name in set(sys.modules) - before}\n'
      'print(sorted(new - sys.stdlib_module_names))')
  assert result.stdout.strip() == "['tfp_sgmcmc']", result.stdout
