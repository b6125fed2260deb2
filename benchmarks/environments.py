"""Environments of the peers: made once, with pinned versions, and kept."""

import os
import pathlib
import subprocess
import sys

OURS = 'ours'
REQUIREMENTS = {
    'jax': ('blackjax==1.7.1', 'jax==0.10.2', 'jaxlib==0.10.2',
            'numpy==2.4.6'),
    # The last JAX that SGMCMCJax runs on.
    'old_jax': ('SGMCMCJax==0.2.13', 'jax==0.4.25', 'jaxlib==0.4.25',
                'numpy==1.26.4', 'scipy==1.12.0'),
    'bde': ('sklearn-contrib-bde==1.0.2', 'blackjax==1.2.2', 'jax==0.10.2',
            'jaxlib==0.10.2', 'numpy==2.4.6'),
    'torch': ('posteriors==0.1.3', 'torch==2.13.0', 'numpy==2.4.6'),
}


def folder() -> pathlib.Path:
  """Where they are kept."""
  cache = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  return pathlib.Path(cache) / 'tfp_sgmcmc_benchmarks'


def python(name: str) -> str:
  """The interpreter of an environment, which is made where there is none."""
  if name == OURS:
    return sys.executable
  path = folder() / name
  interpreter, stamp = path / 'bin' / 'python', path / 'requirements.txt'
  wanted = '\n'.join(REQUIREMENTS[name])
  if not stamp.exists() or stamp.read_text() != wanted:
    print(f'Making the environment {path}', flush=True)
    subprocess.run([sys.executable, '-m', 'venv', '--clear', path], check=True)
    subprocess.run(
        [interpreter, '-m', 'pip', 'install', '--quiet', *REQUIREMENTS[name]],
        check=True)
    stamp.write_text(wanted)
  return str(interpreter)


def versions(name: str) -> dict[str, str]:
  """The versions of what matters in an environment."""
  lines = subprocess.run(
      [python(name), '-m', 'pip', 'list', '--format=freeze'], check=True,
      capture_output=True, text=True).stdout.split()
  found = dict(line.split('==') for line in lines if '==' in line)
  return {package: found[package] for package in (
      'tensorflow', 'tensorflow-probability', 'keras', 'jax', 'jaxlib',
      'blackjax', 'SGMCMCJax', 'torch', 'posteriors', 'numpy')
          if package in found}
