"""Compiles training steps for a TPU and a GPU that are not here.

  python benchmarks/accelerators.py --environments FOLDER
      [--only compile measure chains together precision tensorflow-tpu]
      [--cases perceptron]

TensorFlow writes the program of a step (`programs.py`); the real compilers of
the chips take it, in environments of their own (`compile_ahead.py`), which are
made in FOLDER at the first run (3 GB). What it says: the compiler accepts the
program, with its shapes and without calls to the host, within so much memory,
and estimates so many cycles. What it does not say: that the numbers are right
there, and how fast the chip is.

Beside that it measures, here: seconds of a step and of the first one over those
of SGD with momentum, and by the number of chains; what rounded products do
to the law of a chain; and that `fit` runs in the package `tensorflow-tpu`, on
its CPU.

What each part has found so far is kept in
`benchmarks/results/accelerators.json`, and from all that is there
`docs/how_far_does_it_go.md` is written, by `how_far.py`.
"""

import argparse
import itertools
import json
import os
import pathlib
import platform
import subprocess
import sys
import sysconfig
import time
import venv

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from benchmarks import how_far  # noqa: E402
from benchmarks import programs  # noqa: E402

RESULTS = ROOT / 'benchmarks' / 'results' / 'accelerators.json'
PAGE = ROOT / 'docs' / 'how_far_does_it_go.md'
JAX = 'jax==0.10.2'
PACKAGES = {
    'v5e': ['jax[tpu]==0.10.2'],
    'a100': [JAX, 'jax-cuda12-plugin==0.10.2', 'jax-cuda12-pjrt==0.10.2',
             'nvidia-cuda-nvcc-cu12'],
    # Newer versions of libtpu abort when this TensorFlow is imported.
    'tensorflow-tpu': [
        '--no-deps', 'tensorflow-tpu==2.20.0', 'libtpu==0.0.21'],
}


def environment(folder, name):
  """The Python of an environment, made where there is none."""
  path = folder / name
  python = path / 'bin' / 'python'
  if not python.exists():
    print(f'Installing {" ".join(PACKAGES[name])} in {path}', flush=True)
    venv.create(path, with_pip=True)
    subprocess.run(
        [python, '-m', 'pip', 'install', '--quiet', *PACKAGES[name]],
        check=True)
  if name == 'tensorflow-tpu':
    # All that it needs beside itself, from the environment of this script.
    where, = path.glob('lib/python3*/site-packages')
    (where / 'beside.pth').write_text(sysconfig.get_path('purelib'))
  return python


def compile_case(case, folder, num_chips=(1,), targets=('v5e', 'a100')):
  """What the compilers say of a case: a dictionary by target and chips."""
  program, arguments, num_parameters = programs.make(case)
  found = {'parameters': num_parameters}
  for target in targets:
    path = folder / f'{case.file}.{target}.mlir'
    path.write_bytes(
        programs.serialized(program, arguments, target == 'v5e'))
    found.setdefault('program', path.stat().st_size)
    for number in num_chips if target == 'v5e' else (1,):
      done = subprocess.run(
          [environment(folder, target), ROOT / 'benchmarks/compile_ahead.py',
           target, path, f'--chips={number}', f'--batch={case.batch}'],
          capture_output=True, text=True)
      name = f'{target}, {number}'
      if done.returncode:
        found[name] = {'error': done.stderr.strip().splitlines()[-1][:300]}
      else:
        found[name] = json.loads(done.stdout.splitlines()[-1])
      print(f'{case.name}, {name}: {found[name]}', flush=True)
  return found


def compiled(arguments):
  """Case by case all that are asked for, each beside SGD on the same model."""
  found, of_sgd = dict(arguments.known.get('compile', {})), {}
  for case in programs.CASES:
    if arguments.cases and case.file not in arguments.cases:
      continue
    is_fit = case.make_model is not None
    chips = arguments.chips if is_fit else [1]
    found[case.name] = compile_case(
        case, arguments.environments, chips, arguments.targets)
    found[case.name]['batch'] = case.batch
    if is_fit:
      model = (case.make_model, case.batch, case.policy, case.exact_products)
      if model not in of_sgd:
        of_sgd[model] = compile_case(
            case.sgd(), arguments.environments, chips, ['v5e'])
      found[case.name]['SGD'] = of_sgd[model]
    yield found


def measured(_):
  """Seconds of `fit` here, sampling over SGD: of the first step, of others.

  Of a network whose step takes longer than what `fit` does around five of
  them; for small ones there is `python -m benchmarks --rows fit`.
  """
  batch, num_steps, repeats = 32, 5, 3
  found = {'machine': f'{platform.machine()}, {os.cpu_count()} cores',
           'batch': batch}
  case = programs.BY_NAME['ResNet-20, mixed bfloat16']._replace(batch=batch)
  seconds = found[case.name] = {}
  for name, one in (('SGD', case.sgd()), ('sampling', case)):
    start = time.process_time()
    fit = programs.fit_runner(one)
    fit(1)
    first = time.process_time() - start
    later = []
    for _ in range(repeats):
      start = time.process_time()
      fit(num_steps)
      later.append((time.process_time() - start) / num_steps)
    seconds[name] = first, float(np.median(later))
    print(f'{one.name}: first {first:.1f} s, later {later}', flush=True)
  yield found


def chains(_, numbers=(1, 1, 2, 4, 8), num_steps=100, repeats=5):
  """CPU seconds of a step of `fit` by the number of chains side by side.

  Of the first number twice, for what a process does but once.
  """
  import keras
  import tensorflow_probability as tfp

  from benchmarks import networks
  import tfp_sgmcmc as sgmcmc

  batch = 100
  found = {'machine': f'{platform.machine()}, {os.cpu_count()} cores',
           'model': 'perceptron 784-100-10', 'batch': batch, 'seconds': {}}
  rng = np.random.default_rng(0)
  for k in numbers:
    x = rng.uniform(size=[k * batch * num_steps, 784]).astype(np.float32)
    y = rng.integers(0, 10, len(x))
    model = networks.perceptron()
    model.compile('sgd', keras.losses.SparseCategoricalCrossentropy(
        from_logits=True))
    sampling = sgmcmc.keras.PosteriorSampling(
        sgmcmc.SGHMC, num_examples=len(x), learning_rate=1e-3, momentum=0.9,
        prior=tfp.distributions.Normal(0., 1.), num_chains=k,
        num_steps_between_results=sgmcmc.keras.DrawSchedule(max_results=1),
        seed=0)

    def fit(rows, model=model, x=x, y=y, k=k, sampling=sampling):
      start = time.process_time()
      model.fit(x[:rows], y[:rows], batch_size=k * batch, epochs=1, verbose=0,
                callbacks=[sampling])
      return time.process_time() - start

    first = fit(k * batch)
    later = [fit(len(x)) / num_steps for _ in range(repeats)]
    found['seconds'][str(k)] = first, float(np.median(later))
    print(f'{k} chains: first {first:.1f} s, later {later}', flush=True)
  yield found


def together(
    _, networks=('8-50-1', '8-300-1', '20-128-128-1', '784-100-10'),
    num_chains=4, num_steps=100, repeats=5, with_xla=(False, True)):
  """CPU seconds of a step of chains at once, and in turns, by turns here."""
  from tfp_sgmcmc.keras.fitting import together as together_lib

  rows = []
  for network, xla in itertools.product(networks, with_xla):
    fits = {how: _fit_of_chains(how, network, xla, num_chains, num_steps)
            for how in ('turns', 'together')}
    seconds = {how: (fit(1), []) for how, fit in fits.items()}
    for _ in range(repeats):
      for how, fit in fits.items():
        seconds[how][1].append(fit(num_steps) / num_steps)
    rows.append({'network': network, 'xla': xla, **{
        how: (first, float(np.median(later)))
        for how, (first, later) in seconds.items()}})
    print(rows[-1], flush=True)
  yield {'machine': f'{platform.machine()}, {os.cpu_count()} cores',
         'most_weights': together_lib.MOST_WEIGHTS, 'chains': num_chains,
         'batch': 20, 'rows': rows}


def _fit_of_chains(how, network, xla, num_chains, num_steps, batch=20):
  """A callable of a number of steps, which takes CPU seconds of `fit`."""
  from unittest import mock

  import keras

  import tfp_sgmcmc as sgmcmc
  from tfp_sgmcmc.keras.fitting import together as together_lib

  first, *hidden, last = map(int, network.split('-'))
  rng = np.random.default_rng(0)
  x = rng.normal(size=[num_steps * num_chains * batch, first])
  y = rng.normal(size=[len(x), last])
  model = keras.Sequential([
      keras.Input([first]),
      *(keras.layers.Dense(units, activation='relu') for units in hidden),
      keras.layers.Dense(last)])
  model.compile(
      'sgd', sgmcmc.keras.GaussianLikelihood(scale=1.), jit_compile=xla)
  sampling = sgmcmc.keras.PosteriorSampling(
      sgmcmc.SGHMC, num_examples=len(x), learning_rate=1e-3, momentum=0.9,
      num_steps_between_results=sgmcmc.keras.DrawSchedule(max_results=1),
      num_chains=num_chains, seed=0)

  def fit(number):
    rows = number * num_chains * batch
    start = time.process_time()
    with mock.patch.object(
        together_lib, 'is_worthwhile', return_value=how == 'together'):
      model.fit(x[:rows], y[:rows], batch_size=num_chains * batch, epochs=1,
                verbose=0, callbacks=[sampling])
    return time.process_time() - start

  return fit


def rounded(values, bits):
  """Values with so many significant bits, the first among them."""
  fractions, exponents = np.frexp(values)
  return np.ldexp(np.round(fractions * 2**bits) / 2**bits, exponents)


def precision(_, num_chains=4000, num_steps=1500):
  """How far rounded products move the law of a normal mean.

  SGLD whose gradient gets theta rounded, to bfloat16 as TPUs do or to
  TensorFloat-32 as GPUs do: what is left of the posterior's mean and sd, by the
  sd over theta.
  """
  h, rng, found = 0.1, np.random.default_rng(0), []
  for bits, mean, sd in itertools.product(
      (8, 11), (1., 1.37), (0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005)):
    theta = mean + sd * rng.normal(size=num_chains).astype(np.float32)
    total = np.zeros([2, num_chains])
    for step in range(num_steps):
      drift = (mean - rounded(theta, bits)) * h / 2.
      noise = rng.normal(size=num_chains) * np.sqrt(h) * sd
      theta = (theta + drift + noise).astype(np.float32)
      if step >= num_steps // 2:
        total += theta, (theta - mean)**2
    first, second = total.mean(axis=1) / (num_steps - num_steps // 2)
    found.append(dict(
        bits=bits, mean=mean, sd=sd, error=(first - mean) / sd,
        ratio=np.sqrt(second - (first - mean)**2) / sd
        * np.sqrt(1. - h / 4.)))
  yield found


def in_tensorflow_tpu(arguments):
  """`fit` by TensorFlow built for TPUs, on its CPU, beside the usual one.

  That TensorFlow has no XLA compiler for the host.
  """
  environ = {**os.environ, 'TPU_SKIP_MDS_QUERY': '1',
             'PYTHONPATH': str(ROOT)}
  lines = {}
  for name, python in (
      ('tensorflow', sys.executable),
      ('tensorflow-tpu', environment(arguments.environments, 'tensorflow-tpu'))
  ):
    done = subprocess.run(
        [python, '-c', how_far.FIT], env=environ, text=True, check=True,
        capture_output=True)
    lines[name] = json.loads(done.stdout.splitlines()[-1])
  one, other = lines.values()
  yield {
      'versions': {name: line['TensorFlow'] for name, line in lines.items()},
      'draws': other['draws'],
      'error': float(np.abs(np.subtract(one['last'], other['last'])).max())}


PARTS = {
    'compile': compiled,
    'measure': measured,
    'chains': chains,
    'together': together,
    'precision': precision,
    'tensorflow-tpu': in_tensorflow_tpu,
}


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--environments', type=pathlib.Path, required=True)
  parser.add_argument('--only', nargs='*', choices=PARTS, default=list(PARTS))
  parser.add_argument(
      '--cases', nargs='*', help='files of the programs; default: all')
  parser.add_argument('--chips', nargs='*', type=int, default=[1, 8])
  parser.add_argument('--targets', nargs='*', default=['v5e', 'a100'])
  arguments = parser.parse_args()
  arguments.environments.mkdir(parents=True, exist_ok=True)
  results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
  arguments.known = results
  for name in arguments.only:
    for found in PARTS[name](arguments):
      results[name] = found
      RESULTS.write_text(json.dumps(results, indent=1) + '\n')
  PAGE.parent.mkdir(exist_ok=True)
  PAGE.write_text(how_far.page(results))


if __name__ == '__main__':
  main()
