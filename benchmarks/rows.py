"""The rows of the table: what is timed, of whom, and what we want of it."""

from collections.abc import Callable
import functools
import itertools
from typing import NamedTuple

import numpy as np

from benchmarks import data
from benchmarks import environments
from benchmarks import laws


class Side(NamedTuple):
  """A program that takes turns.

  Attributes:
    title: What the table calls it.
    module: Its file in `sides/`.
    case: What it is given; see there.
    work: How many units of the row's work a turn makes, unless it tells.
    environment: Where it runs.
    threads: How many it may use; None for what it takes by itself.
    busy: Whether another process counts beside it.
    whole_loops: Whether XLA is told to compile each loop as one function.
    draws: Whether it draws of the row's law.
  """
  title: str
  module: str
  case: dict
  work: float = 1.
  environment: str = environments.OURS
  threads: int | None = None
  busy: bool = False
  whole_loops: bool = False
  draws: bool = True

  @property
  def of_cpu(self) -> bool:
    """Whether it is about the threads, the cores or the loops of a CPU."""
    return self.threads is not None or self.busy or self.whole_loops


class Ratio(NamedTuple):
  """A comparison of two sides.

  Attributes:
    over: Name of the side that is ours.
    under: Name of the other.
    target: What the ratio is to reach; None where nothing is asked.
    quantity: 'speed' (work a second, the larger the better), or a cost: 'wall'
      or 'cpu' seconds, or 'peak' memory.
  """
  over: str
  under: str
  target: float | None = None
  quantity: str = 'speed'

  def reached(self, value: float) -> bool | None:
    if self.target is None:
      return None
    return (value >= self.target if self.quantity == 'speed'
            else value <= self.target)


class Row(NamedTuple):
  """Sides that are timed in turns, and their ratios.

  Attributes:
    title: The work, in words.
    unit: What is counted; None where seconds are.
    sides: Side by name.
    ratios: What is compared.
    law: Callable of a side's case: what its draws have to show.
    law_turns: Turns of each side that are compared with it.
    skipped_turns: Turns before these, on the way to the law.
    fresh: Whether each turn is the first of a new process.
    one_by_one: Whether a side is done before the next one starts; for sides
      that are not compared.
    rounds: How many turns at most; None for those of the command.
  """
  title: str
  unit: str | None
  sides: dict[str, Side]
  ratios: tuple[Ratio, ...]
  law: Callable[[dict], laws.Law] | None = None
  law_turns: int = 0
  skipped_turns: int = 0
  fresh: bool = False
  one_by_one: bool = False
  rounds: int | None = None


def _ours(title, case, work=1., module='tfp_sgmcmc_chain', **more):
  return Side(title, module, case, work, **more)


def _mode(case):
  return laws.newton(*(
      part.astype(np.float64) for part in data.examples(case))).tolist()


@functools.cache
def _logistic_case(num_examples, num_features, batch_size):
  case = dict(model='logistic', num_examples=num_examples,
              num_features=num_features, batch_size=batch_size)
  # Half of what moves the chain is the noise of its minibatches.
  return {**case, 'mode': _mode(case),
          'step_size': 8. * batch_size / num_examples**2}


def _by_sample(tiny):
  """Of the case of who runs `sample`; tiny runs are not for timing."""
  return dict(driver='sample', most_times=8 if tiny else 128)


def one_chain(tiny: bool, folder: str | None = None) -> Row:
  case = {**_logistic_case(*(
      (1000, 3, 20) if tiny else (100_000, 20, 100))),
          'num_draws': 100, 'thin': 20 if tiny else 1000}
  work = case['num_draws'] * case['thin']
  plain, distinct = (
      {**case, 'replacement': replacement} for replacement in (True, False))
  blackjax, scan = (
      functools.partial(Side, name, module, plain, work, 'jax')
      for name, module in (('blackjax', 'blackjax_chain'),
                           ('JAX scan', 'jax_scan')))
  chain = functools.partial(_ours, 'sample_chain', distinct, work)
  ours = functools.partial(
      _ours, 'sample', {**distinct, **_by_sample(tiny)}, work)
  return Row(
      'SGLD, logistic regression (N = 100,000, d = 20, n = 100), one chain',
      'steps',
      {'ours': ours(),
       'ours, with replacement': _ours(
           'sample', {**plain, **_by_sample(tiny)}, work),
       'ours, sample_chain': chain(),
       'ours, sample_chain, loops whole': chain(whole_loops=True),
       'blackjax': blackjax(), 'JAX scan': scan(),
       'SGMCMCJax': Side(
           'SGMCMCJax', 'sgmcmcjax_chain', plain, work, 'old_jax'),
       'ours, one thread': ours(threads=1),
       'blackjax, one thread': blackjax(threads=1),
       'JAX scan, one thread': scan(threads=1),
       'ours, one busy core': ours(busy=True),
       'blackjax, one busy core': blackjax(busy=True),
       'JAX scan, one busy core': scan(busy=True),
       'ours, one thread, one busy core': ours(threads=1, busy=True)},
      (Ratio('ours', 'blackjax', 3.), Ratio('ours', 'JAX scan'),
       Ratio('ours', 'SGMCMCJax', 0.8),
       Ratio('ours, with replacement', 'blackjax'),
       Ratio('ours, sample_chain', 'blackjax'),
       Ratio('ours, sample_chain, loops whole', 'blackjax'),
       Ratio('ours, one thread', 'blackjax, one thread'),
       Ratio('ours, one thread', 'JAX scan, one thread'),
       Ratio('ours, one busy core', 'blackjax, one busy core'),
       Ratio('ours, one busy core', 'JAX scan, one busy core'),
       Ratio('ours, one busy core', 'ours, one thread, one busy core', 0.85)),
      functools.partial(
          laws.logistic, num_steps=(3 if tiny else 5) * work),
      3 if tiny else 5)


def many_chains(tiny: bool, folder: str | None = None) -> Row:
  case = {**_logistic_case(*(
      (1000, 3, 20) if tiny else (100_000, 20, 100))),
          'num_chains': 20 if tiny else 1000, 'num_draws': 2, 'thin': 100}
  steps = case['num_draws'] * case['thin']
  work = case['num_chains'] * steps
  plain, distinct = (
      {**case, 'replacement': replacement} for replacement in (True, False))
  return Row(
      'the same, 1,000 chains with minibatches of their own',
      'steps of a chain',
      {'ours': _ours('sample_chain', distinct, work),
       'ours, with replacement': _ours('sample_chain', plain, work),
       'JAX vmap': Side('JAX vmap', 'jax_scan', plain, work, 'jax'),
       'ours, one thread': _ours('sample_chain', distinct, work, threads=1),
       'ours, with replacement, one thread': _ours(
           'sample_chain', plain, work, threads=1),
       'JAX vmap, one thread': Side(
           'JAX vmap', 'jax_scan', plain, work, 'jax', threads=1)},
      (Ratio('ours, with replacement', 'JAX vmap', 1.5),
       Ratio('ours', 'JAX vmap', 1.2),
       Ratio('ours, with replacement, one thread', 'JAX vmap, one thread'),
       Ratio('ours, one thread', 'JAX vmap, one thread')),
      functools.partial(
          laws.logistic, num_steps=10 * case['num_chains'] * steps),
      law_turns=10, skipped_turns=10)


def perceptron(tiny: bool, folder: str | None = None) -> Row:
  case = dict(
      model='perceptron', num_examples=1000 if tiny else 10_000, batch_size=100,
      width=8 if tiny else 100, step_size=1e-6, num_draws=10,
      thin=5 if tiny else 100, replacement=False)
  work = case['num_draws'] * case['thin']
  return Row(
      'SGLD, perceptron 784-100-10 (N = 10,000, n = 100)', 'steps',
      {'ours': _ours('sample_chain', case, work),
       'JAX scan': Side('JAX scan', 'jax_scan', case, work, 'jax'),
       'posteriors': Side(
           'posteriors', 'posteriors_chain', case, work, 'torch'),
       'bare gradient': Side(
           'bare gradient', 'tensorflow_gradient', case, work, draws=False)},
      (Ratio('ours', 'JAX scan', 1.7), Ratio('ours', 'posteriors', 6.5),
       Ratio('ours', 'bare gradient', 0.7)),
      laws.perceptron, 1)


def _fit_side(network, num_steps, sampling, **more):
  return Side(
      'PosteriorSampling' if sampling else 'SGD', 'keras_fit',
      {**dict(network=network, num_steps=num_steps, batch_size=100,
              sampling=sampling), **{
                  key: value for key, value in more.items()
                  if key != 'threads'}},
      num_steps, threads=more.get('threads'))


def _fit_of_its_own(title, network, **case):
  """CPU time and memory of a process that fits once."""
  ours, sgd = (
      _fit_side(network, sampling=sampling, **case)
      for sampling in (True, False))
  return Row(
      title, None, {'ours': ours, 'SGD': sgd},
      (Ratio('ours', 'SGD', 1.5, 'cpu'), Ratio('ours', 'SGD', 1.5, 'peak')),
      fresh=True, rounds=2)


def fit(tiny: bool, folder: str | None = None) -> Row:
  """CPU time and wall of `fit`, over SGD's."""
  small, large = ('8', '8-8') if tiny else ('100', '256-256')
  cases = {
      '784-100-10': (small, 500, {}),
      '784-100-10, 10 steps an execution': (
          small, 500, dict(steps_per_execution=10)),
      '784-100-10, compiled by XLA': (small, 500, dict(jit_compile=True)),
      '784-256-256-10': (large, 500, {}),
      '784-256-256-10, 10 steps an execution': (
          large, 500, dict(steps_per_execution=10)),
      '784-256-256-10, compiled by XLA': (large, 500, dict(jit_compile=True)),
      '784-256-256-10, one thread': (large, 500, dict(threads=1)),
      'convolutional network': ('convolutional', 50, {})}
  if tiny:
    cases = dict(list(cases.items())[:2])
  sides, ratios = {}, []
  for name, (network, num_steps, more) in cases.items():
    num_steps = 20 if tiny else num_steps
    ours, theirs = f'ours, {name}', f'SGD, {name}'
    default = f'the default, {name}'
    sides[ours] = _fit_side(network, num_steps, True, **more)
    sides[default] = _fit_side(
        network, num_steps, True, is_default=True, **more)
    sides[theirs] = _fit_side(network, num_steps, False, **more)
    ratios += [
        Ratio(ours, theirs, 1.15, 'cpu'), Ratio(default, theirs, 1.25, 'cpu')]
  return Row(
      'a step of fit, SGHMC, or the default, over SGD with momentum, n = 100',
      None, sides, tuple(ratios))


def fit_wall(tiny: bool, folder: str | None = None) -> Row:
  """Time of a step of `fit`, compiled as Keras does, over SGD's and JAX's."""
  cases = {
      '784-256-256-10': ('256-256', 500, {}),
      '784-256-256-10, 10 steps an execution': (
          '256-256', 500, dict(steps_per_execution=10)),
      'convolutional network': ('convolutional', 200, {})}
  if tiny:
    cases = {'784-8-8-10': ('8-8', 20, {})}
  sides, ratios = {}, []
  for name, (network, num_steps, more) in cases.items():
    for title, sampling, is_default in (
        ('ours', True, False), ('the default', True, True),
        ('SGD', False, False)):
      sides[f'{title}, {name}'] = _fit_side(
          network, num_steps, sampling, is_default=is_default,
          jit_compile='auto', **more)
    if not more:
      for title, sampling in (('JAX', True), ('JAX SGD', False)):
        sides[f'{title}, {name}'] = Side(
            f'{"SGHMC" if sampling else "SGD"} by hand', 'jax_fit', dict(
                network=network, num_steps=num_steps, batch_size=100,
                sampling=sampling), num_steps, 'jax')
    plain = name.removesuffix(', 10 steps an execution')
    ratios += [
        Ratio(f'the default, {name}', f'SGD, {name}', 1.25, 'wall'),
        Ratio(f'ours, {name}', f'SGD, {name}', 1.15, 'wall'),
        Ratio(f'ours, {name}', f'JAX, {plain}', None, 'wall'),
        Ratio(f'the default, {name}', f'JAX, {plain}', None, 'wall'),
        Ratio(f'SGD, {name}', f'JAX SGD, {plain}', None, 'wall')]
  return Row(
      'a step of fit, SGHMC, or the default, compiled as Keras does by itself, '
      'over SGD with momentum, and over those in JAX by hand, n = 100',
      None, sides, tuple(ratios))


def predict(tiny: bool, folder: str | None = None) -> Row:
  cases = {
      'convolutional network': (
          '8' if tiny else 'convolutional', 50 if tiny else 4_000, 0.65),
      'perceptron 784-100-10': (
          '8' if tiny else '100', 50 if tiny else 10_000, 0.5)}
  sides, ratios = {}, []
  for name, (network, num_examples, target) in cases.items():
    for sampling, who in ((True, 'ours'), (False, 'model.predict')):
      sides[f'{who}, {name}'] = Side(
          'PosteriorSamples.predict' if sampling else 'model.predict',
          'keras_predict', dict(
              network=network, num_examples=num_examples, num_draws=30,
              batch_size=128, sampling=sampling))
    ratios.append(Ratio(
        f'ours, {name}', f'model.predict, {name}', target, 'wall'))
  return Row(
      'PosteriorSamples.predict of 30 draws, over 30 times model.predict', None,
      sides, tuple(ratios), rounds=3)


def bouncy(tiny: bool, folder: str | None = None) -> Row:
  case = dict(model='bouncy', num_examples=1000, num_features=20,
              batch_size=100)
  case['mode'] = _mode(case)
  events, steps = (200, 20) if tiny else (20_000, 500)
  chains = 5 if tiny else 100

  def chain(title, num_chains, num_events, case=case, **more):
    return _ours(
        title, {**case, 'num_chains': num_chains, 'num_events': num_events},
        num_chains * num_events, 'tfp_sgmcmc_bouncy', **more)

  ours = functools.partial(chain, case={**case, **_by_sample(tiny)})

  return Row(
      'SBPS, logistic regression (N = 1,000, d = 20, n = 100)', 'events',
      {'ours': ours('one chain', 1, events),
       'ours, sample_chain': chain('one chain', 1, events),
       'ours, sample_chain, loops whole': chain(
           'one chain', 1, events, whole_loops=True),
       'ours, 100 chains': ours('100 chains', chains, steps),
       'NumPy': Side(
           'NumPy', 'numpy_sbps', {**case, 'num_events': events // 5},
           events // 5),
       'NumPy, 100 processes': Side(
           '100 chains', 'numpy_sbps',
           {**case, 'num_events': steps, 'num_processes': chains},
           chains * steps, draws=False)},
      (Ratio('ours', 'NumPy', 10.), Ratio('ours, sample_chain', 'NumPy'),
       Ratio('ours, sample_chain, loops whole', 'NumPy'),
       Ratio('ours, 100 chains', 'NumPy, 100 processes')),
      None if tiny else laws.bouncy, 5, 2)


_UNIFORM = {
    'SGLD, n = 100': dict(method='SGLD', batch_size=100, preferential=False),
    'SGLD, n = 1,000': dict(method='SGLD', batch_size=1000, preferential=False),
}
_PREFERENTIAL = {
    'SGHMC, n = 100, preferential': dict(
        method='SGHMC', batch_size=100, preferential=True, num_nearby=10,
        friction=2., step_sizes=[0.2, 0.15, 0.1, 0.07], num_draws=1000),
    'SGHMC, n = 50, preferential, second order': dict(
        method='SGHMC', batch_size=50, preferential=True, num_nearby=30,
        order=2, friction=1.4, step_sizes=[0.25, 0.2, 0.15, 0.1],
        num_draws=1000),
}
_ALL_ROWS = {
    'HMC': dict(
        method='HMC', num_draws=30, num_adaptation_steps=30, step_size=0.4,
        num_leapfrog_steps=3),
    'NUTS': dict(
        method='NUTS', num_draws=15, num_adaptation_steps=30, step_size=0.4)}


def _effective(title, case, tiny, ours, step_sizes, num_exact_chains):
  from benchmarks import whitened  # TensorFlow, for this row alone.
  case = {**case, 'reference': whitened.reference(case)}
  ours = {
      name: dict(num_chains=50, num_draws=200, step_sizes=step_sizes) | more
      for name, more in ours.items()}
  theirs = {
      name: dict(num_chains=20 if tiny else num_exact_chains) | more
      for name, more in _ALL_ROWS.items()}
  return Row(
      title, 'effective draws',
      {name: Side(name, 'effective_draws', case | more)
       for name, more in (ours | theirs).items()},
      tuple(Ratio(*pair, 10.) for pair in itertools.product(ours, theirs)),
      rounds=2)


def effective(tiny: bool, folder: str | None) -> Row:
  case = dict(model='logistic', num_features=20)
  case['num_examples'] = 20_000 if tiny else 1_000_000
  return _effective(
      'effective draws, logistic regression (N = 1,000,000, d = 20), control '
      'variates with n = 100 against all rows', case, tiny, _UNIFORM,
      [0.12, 0.08, 0.05, 0.02], 4)


def effective_covertype(tiny: bool, folder: str | None) -> Row:
  if folder is None:
    raise ValueError('Covertype is not downloaded: name its folder by --data.')
  case = dict(model='covertype', data=str(folder))
  if tiny:
    case['num_rows'] = 5_000
  return _effective(
      'the same, Covertype (N = 74,370, d = 54)', case, tiny,
      _UNIFORM | _PREFERENTIAL, [0.02, 0.01, 0.005], 100)


def first_fit(tiny: bool, folder: str | None = None) -> Row:
  return _fit_of_its_own(
      'the first fit of MobileNetV2 (0.35, 64 x 64, 158 variables), n = 16, in '
      'a process of its own', '8' if tiny else 'mobile_net', num_steps=1,
      batch_size=16)


def networks(tiny: bool, folder: str | None = None) -> Row:
  """Of ten networks, a step of all of them."""
  case = dict(num_networks=2 if tiny else 10, num_examples=1202,
              batch_size=256)

  def side(title, num_steps=20 if tiny else 1000, **more):
    return Side(
        title, 'tfp_sgmcmc_networks', {**case, 'num_steps': num_steps, **more},
        num_steps, draws=False)

  by_sample = functools.partial(
      side, 'sample', 20 if tiny else 4000, method='sample', most_times=8)
  num_epochs = 1 if tiny else 6
  ours = {
      'SGHMC by sample': by_sample(kernel='SGHMC'),
      'the default by sample': by_sample(kernel='default'),
      'the default by fit': side(
          'fit', method='fit', jit_compile=False, steps_per_execution=1),
      'the default by fit, XLA': side(
          'fit', method='fit', jit_compile=True, steps_per_execution=1),
      'the default by fit, XLA, 10 steps an execution': side(
          'fit', method='fit', jit_compile=True, steps_per_execution=10)}
  # So many rows a step has there, as `fit` chooses.
  arrays = {
      'the default by fit of arrays, n = 633': side(
          'fit', 10 * 38 * num_epochs, method='arrays', num_epochs=num_epochs),
      'bare gradient, n = 633': side(
          'bare gradient', method='gradient', batch_size=633)}
  return Row(
      'ten perceptrons 5-16-16-16-16-2 (N = 1,202, n = 256 for each)',
      'steps of all',
      {**ours, 'bare gradient': side('bare gradient', method='gradient'),
       **arrays},
      (*(Ratio(name, 'bare gradient', 0.77) for name in ours),
       Ratio(*arrays, 0.77)), rounds=3)


def disk(tiny: bool, folder: str | None = None) -> Row:
  num_steps = 20 if tiny else 2000
  case = dict(num_examples=20_000 if tiny else 10_000_000, num_features=20,
              batch_size=1000, num_steps=num_steps, num_shuffled=100)

  def side(title, from_disk):
    return Side(
        title, 'tfp_sgmcmc_disk', {**case, 'from_disk': from_disk}, num_steps,
        draws=False)

  return Row(
      'SGLD, logistic regression (N = 10,000,000, d = 20, n = 1,000; 840 MB)',
      'steps', {
          'ours, from disk': side('Stream', True),
          'ours, in memory': side('Uniform', False)},
      (Ratio('ours, from disk', 'ours, in memory'),
       Ratio('ours, from disk', 'ours, in memory', quantity='peak')), rounds=3)


def resnet(tiny: bool, folder: str | None = None) -> Row:
  return _fit_of_its_own(
      'a fit of ResNet-20 (32 x 32 x 3, n = 32, 100 steps), ten draws on disk, '
      'in a process of its own', 'resnet20', num_steps=20 if tiny else 100,
      batch_size=4 if tiny else 32, num_draws=10)


# By what they differ from one chain, N = 100,000, d = 20, n = 100.
_GROWTH = {
    'N': ('num_examples', (1_000, 10_000, 100_000, 1_000_000)),
    'n': ('batch_size', (10, 100, 1_000, 10_000)),
    'd': ('num_features', (2, 20, 200, 1_000)),
    'chains': ('num_chains', (10, 100, 1_000)),
    'width': ('width', (10, 100, 1_000)),
    'indices of N': ('num_examples', (1_000, 100_000, 1_000_000))}


def _growth_side(axis, key, value):
  case = dict(
      model='logistic', num_examples=100_000, num_features=20, batch_size=100,
      replacement=False, num_draws=2, step_size=1e-8)
  module = 'tfp_sgmcmc_chain'
  if axis == 'd':
    case['num_examples'] = 20_000
  if axis == 'width':
    case.update(model='perceptron', num_examples=10_000)
  if axis == 'indices of N':
    module = 'tfp_sgmcmc_indices'
  case[key] = value
  if case['model'] == 'logistic':
    case['mode'] = [0.] * case['num_features']
  chains = case.get('num_chains', 1)
  # What takes a tenth of a second, or a few.
  load = chains * case['batch_size'] * (
      40 * value if axis == 'width' else 20 + case['num_features'])
  case['thin'] = max(5, int(1e8 / load))
  return Side(f'{axis} = {value:,}', module, case,
              chains * case['num_draws'] * case['thin'])


def growth(tiny: bool, folder: str | None = None) -> Row:
  """Steps a second of ours by the sizes of the problem, which are plotted."""
  sides = {}
  for axis, (key, values) in _GROWTH.items():
    for value in values[:1] if tiny else values:
      side = _growth_side(axis, key, value)
      sides[side.title] = side
  return Row(
      'growth: SGLD, one chain, N = 100,000, d = 20, n = 100 (d: N = 20,000; '
      'width: of a perceptron 784-width-10, N = 10,000), but for one of these',
      'steps of a chain', sides, (), one_by_one=True, rounds=3)


ROWS: dict[str, Callable[[bool, str | None], Row]] = dict(
    one_chain=one_chain, many_chains=many_chains, perceptron=perceptron,
    fit=fit, fit_wall=fit_wall, networks=networks, predict=predict,
    bouncy=bouncy, first_fit=first_fit, disk=disk, resnet=resnet,
    effective=effective, effective_covertype=effective_covertype,
    growth=growth)
