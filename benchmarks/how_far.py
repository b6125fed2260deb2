"""Writes the page "How far does it go" from what `accelerators.py` found."""

from collections.abc import Mapping
import textwrap
from typing import Any

# A small fit, run by TensorFlow with and without an XLA compiler for the host.
FIT = '''
import json, keras, numpy as np, tensorflow as tf
import tfp_sgmcmc as sgmcmc
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=[200, 10]).astype("float32")
y = (x[:, 0] > x[:, 1]).astype("int32")
model = keras.Sequential([
    keras.Input([10]), keras.layers.Dense(8, "tanh"), keras.layers.Dense(2)])
model.compile(
    "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    jit_compile=False)
sampling = sgmcmc.keras.PosteriorSampling(
    num_examples=200, seed=0, learning_rate=1e-3, num_burnin_steps=9,
    num_steps_between_results=9, start_epoch=0)
model.fit(x, y, batch_size=20, epochs=2, shuffle=False, verbose=0,
          callbacks=[sampling])
draws = sampling.posterior.weights
print(json.dumps({
    "TensorFlow": tf.__version__,
    "draws": len(next(iter(draws.values()))),
    "last": np.concatenate(
        [value[-1].ravel() for value in draws.values()]).tolist()}))
'''

INTRO = '''# How far does it go

Written by `benchmarks/accelerators.py`; nothing of it ran on a TPU or a GPU.
"Compiled" is what the real compilers say of the programs of training steps:
libtpu for a v5e chip, XLA:GPU for an A100. They accept the shapes, find no call
to the host, and say how much memory a step takes. Cycles are the compiler's own
estimate and no time. "Measured" is on the CPU named there. "On paper" is
arithmetic, with its numbers.
'''


def megabytes(found: Mapping[str, Any]) -> str:
  return f'{(found["arguments"] + found["temporary"]) / 1e6:,.1f}'


def row(*cells: Any) -> str:
  return f'| {" | ".join(map(str, cells))} |'


def table(head: list[str], rows: list[str]) -> str:
  return '\n'.join([row(*head), '|' + '---|' * len(head), *rows])


def ratio(found: Mapping[str, Any], chips: str) -> str:
  """Cycles over those of SGD on the same model, where both are known."""
  base = found.get('SGD', {}).get(chips, {})
  if 'cycles' not in base:
    return ''
  return f'{found[chips]["cycles"] / base["cycles"]:.2f}'


def on_v5e(results):
  """One chip and eight."""
  rows = []
  for name, found in results.items():
    one, eight = found['v5e, 1'], found.get('v5e, 8')
    if 'error' in one:
      rows.append(row(name, f'{found["parameters"]:,}', found['batch'],
                      f'refused: {one["error"]}', *[''] * 9))
      continue
    cells = [
        name, f'{found["parameters"]:,}', f'{found["batch"]:,}',
        f'{found["program"] / 1e3:,.0f}', megabytes(one),
        f'{one["flops"] / 1e9:,.2f}', f'{one["bytes"] / 1e6:,.1f}',
        f'{one["cycles"]:,}', ratio(found, 'v5e, 1')]
    if eight is None:
      cells += [''] * 4
    elif 'error' in eight:
      cells += [f'refused: {eight["error"]}', '', '', '']
    else:
      cells += [
          megabytes(eight), f'{eight.get("crossing_bytes", 0) / 1e6:,.2f}',
          sum(eight['collectives'].values()), ratio(found, 'v5e, 8')]
    rows.append(row(*cells))
  return table(
      ['step', 'parameters', 'batch', 'program, kB', 'memory, MB', 'GFLOP',
       'traffic, MB', 'cycles', "over SGD's", '8 chips: memory of one, MB',
       'crossing, MB', 'messages', "cycles over SGD's"], rows)


def on_a100(results):
  return table(['step', 'memory, MB', 'fusions'], [
      row(name, f'refused: {found["a100, 1"]["error"]}', '')
      if 'error' in found['a100, 1'] else
      row(name, megabytes(found['a100, 1']), found['a100, 1']['fusions'])
      for name, found in results.items() if 'a100, 1' in found])


def compiled(results):
  return f'''## Compiled

A step of `fit` with SGHMC where nothing else is said; logistic regression is
1,000 steps by `sample_chain` (a loop's cycles are counted once). Memory is all
arguments (weights, momenta, gradients, the batch, the data) and temporaries.
Over eight chips the batch is split by XLA, and the weights are on each.
"Crossing" is the data that a step sends between chips, and "messages" the
number of transfers: the gradient and a few sums, in bfloat16 where layers
compute in it. For EWSG, which deals out the rows of the batch, XLA sends these
rows to all chips; `fit` on several replicas sends none.

"The default" is `PosteriorSampling()`: `SelfTuning(SGNHT)`. Its program has
branches: some steps learn, and some take the chain back. A step runs one branch
of each, but the estimates count both. One branch has a second gradient. So most
steps take less than this.

{on_v5e(results)}

"Float32 products": with
`tf.config.experimental.enable_tensor_float_32_execution(False)` all products of
that program are marked to be of float32. By default TPUs round what is
multiplied to bfloat16; see "Which precision the law needs". The estimate of
cycles does not charge for it; the chip will.

For an A100:

{on_a100(results)}
'''


def measured(results):
  rows = []
  for name, found in results.items():
    if isinstance(found, dict):
      (first, later), (own_first, own_later) = found['sampling'], found['SGD']
      rows.append(row(
          name, f'{own_later:.3f}', f'{later / own_later:.2f}',
          f'{own_first:.1f}', f'{first / own_first:.2f}'))
  return f'''## Measured

CPU seconds of `fit` without XLA ({results['machine']}), batches of
{results['batch']}: of a step, in fits of five with what `fit` does around
them; and of the first one, which is traced.

{table(["step", "SGD, s", "sampling over it", "first step of SGD, s",
        "sampling over it"], rows)}

Steps of `sample` by the number of rows, the batch, the parameters and the
chains are plotted in [how fast is it](how_fast_is_it.md). Several devices were
not timed: two logical ones of a CPU share its cores.
'''


def chains(results):
  one_first, one = results['seconds']['1']
  rows = [
      row(k, f'{later * 1e3:.1f}', f'{later / one:.2f}',
          f'{first:.1f}', f'{first / one_first:.2f}')
      for k, (first, later) in results['seconds'].items()]
  return f'''## Several chains of a network

CPU time of a step of `fit` with `num_chains`, {results['batch']} rows for each
chain, {results['model']}, without XLA ({results['machine']}), and of the first
step:

{table(["chains", "step, ms", "over one chain", "first step, s",
        "over one chain"], rows)}

So large a network's chains take turns without XLA, within a step that is traced
once for all of them, and optimised by TensorFlow for each.
'''


def together(results):
  rows = []
  for found in results['rows']:
    (turns_first, turns), (first, later) = found['turns'], found['together']
    rows.append(row(
        found['network'], 'yes' if found['xla'] else 'no',
        f'{turns * 1e3:.1f}', f'{later * 1e3:.1f}', f'{later / turns:.2f}',
        f'{turns_first:.1f}', f'{first:.1f}'))
  return f'''## Chains that step together

Where XLA compiles the step (Keras' default where there is an accelerator, and
`jit_compile=True` elsewhere) the chains step together, in one vectorised
program; without XLA those of networks of at most {results['most_weights']:,}
weights. CPU time of a step of `fit` of {results['chains']} chains,
{results['batch']} rows for each, and of the first step ({results['machine']},
busy with other work):

{table(["network", "XLA", "in turns, ms", "together, ms", "together over turns",
        "first step in turns, s", "first step together, s"], rows)}

Without XLA for the step, XLA compiles the random numbers alone: those of each
chain in turns, and together those of all, where a chain has more than 3,000
weights. This was not measured on a GPU or TPU.
'''


def precision(results):
  rows = [
      row({8: 'bfloat16', 11: 'TensorFloat-32'}[found['bits']],
          f'{found["mean"]:g}', f'{found["sd"]:g}',
          f'{found["sd"] / found["mean"]:.4f}', f'{found["error"]:+.2f}',
          f'{found["ratio"]:.3f}') for found in results]
  return f'''## Which precision the law needs

By default TPUs round what is multiplied to bfloat16 (8 significant bits), and
GPUs since the A100 to TensorFloat-32 (11). Weights closer than this are rounded
to the same value: within 2^-8 to 2^-7 of their size, or 2^-11 to 2^-10. It
matters where the posterior's standard deviation is not larger than that. SGLD
(4,000 chains, h = 0.1) on a normal mean whose gradient gets the rounded weight;
the posterior's mean and sd of each weight that were found:

{table(["products", "mean", "sd", "sd over mean", "error of the mean, in sd",
        "sd found over the exact one"], rows)}

So products in bfloat16 are enough where the sd of a weight is at least a
two-hundredth of its size, in TensorFloat-32 a thousandth; where data determine
weights better than that, as millions of examples do, float32 products are due:
`tf.config.experimental.enable_tensor_float_32_execution(False)`. The weights,
momenta and noise themselves are of float32 in either case, also with
`mixed_bfloat16`; `tests/keras/test_law.py` holds that a linear model's law is
kept by it.
'''


def in_tensorflow_tpu(results):
  versions = results['versions']
  return f'''## TensorFlow built for TPUs

`fit` in `tensorflow-tpu` {versions['tensorflow-tpu']}, on its CPU and without
an XLA
compiler for it: the last of {results["draws"]} draws is within
{results["error"]:.1e} of
that of TensorFlow {versions['tensorflow']}. There `model.compile` needs
`jit_compile=False`, or
Keras itself fails. On TPU machines `tfp.mcmc.sample_chain` makes other seeds
than
elsewhere (TFP splits them by the device's generator), so it draws another
chain, as
good; `sgmcmc.random`, `sample` and `fit` are made of integer operations that
are the same
everywhere, and so draw the same one up to rounding (not tried on a TPU).
'''


def on_paper(results):
  """10^9 examples and 10^8 parameters on 256 chips of v5e."""
  num, size, rows, chips = 1e9, 1e8, 16_384, 256
  cost = ''
  wide = results.get('compile', {}).get('perceptron of width 8,192', {})
  if 'cycles' in wide.get('v5e, 1', {}):
    extra = (wide['v5e, 1']['cycles'] - wide['SGD']['v5e, 1']['cycles']) / (
        wide['parameters'])
    cost = (
        f' (compiled: {extra:.3f} cycles a parameter more than SGD, '
        f'{extra * size / 1.5e9 * 1e3:.0f} ms at 1.5 GHz, which the batch '
        'does not change)')
  heat, one_less_momentum = 0.1, 0.1
  rate = 2. * one_less_momentum * heat * rows / num
  steps = one_less_momentum / rate
  return f'''## On paper: 10^9 examples, 10^8 parameters, 256 chips of v5e

A chip has 16 GB at 819 GB/s and sends 200 GB/s (published). Examples are of 3
kB
(images of 32 by 32); the batch is {rows:,}, 64 rows a chip.

**What lies where.** On each chip the weights, momenta and the last gradient,
{3 * 4 * size / 1e9:.1f} GB, and up to as much again for their new
values; nothing
of it
grows with the number of examples. On each of 32 hosts a share of the data,
{num * 3e3 / 32 / 1e9:.0f} GB, read by `tf.data`; no table by example is kept
(SAGA, Firefly and `Posterior` with its data in memory do not go so far). Draws
go
to disk as they come, {4 * size / 1e6:.0f} MB each.

**What crosses the network in a step.** The gradient, once:
{4 * size / 1e6:.0f} MB,
{2 * 4 * size / 200e9 * 1e3:.0f} ms at full rate. The noise does not: each chip
computes all of it from 8 bytes of seed{cost}. A dense network computes
{6 * size * rows / chips / 1e9:.0f} GFLOP a chip, {
    6 * size * rows / chips / 197e12 *
1e3:.1f} ms at the peak, so the all-reduce
is the longer part below about a thousand rows a chip.

**What stops it first.** Not memory and not the network, but the heat of
minibatches. A minibatch of n of N examples heats a direction by the share
rate N / (2 (1 - momentum) n) of T, in units where an example has information
1. To
keep that at {heat:.0%} with momentum {1 - one_less_momentum:g} takes a rate of
{rate:.1e}, and a direction is forgotten in about {steps:,.0f} steps, {
    steps * rows / num:.0f} passes over the data; one with a hundredth of the
information in {100 * steps * rows / num:.0f}. At T = 1 a hundred independent
draws
are thousands of passes. What is run at this size is colder or hotter than T = 1
(`temperature='validation'` says which is worth it), or has less noise (control
variates, which need an anchor: not in `fit`).

**Next.** bfloat16 products: a weight of size 0.05 with information 1 has an sd
of
{num**-0.5:.0e}, and its cell is of {0.05 * 2**-8:.0e}: float32 products are
needed.
Then float32 weights: a step moves them by about {(rate / num)**0.5:.0e}, a few
times
their spacing of {2**-23 * 2**-5:.0e}; ten times more examples would not fit in
float32. Then counts: `indices` chooses among at most 2^30 examples, and the
noise of a step is of fewer than 2^31 numbers.

**Not shown.** `TPUStrategy` cannot be started without a TPU, so that `fit`
under it
has not been tried; `MirroredStrategy` has been, on two devices of a CPU. There
`jit_compile=True` and `steps_per_execution` above 1 are refused. On TPUs EWSG
would make another chain than on one device, as good. Weights split over chips
are not supported: each has to hold all.
'''


SECTIONS = {
    'compile': compiled,
    'measure': measured,
    'chains': chains,
    'together': together,
    'precision': precision,
    'tensorflow-tpu': in_tensorflow_tpu,
}


def page(results: Mapping[str, Any]) -> str:
  """The page, of the parts that there are.

  Args:
    results: What `accelerators.py` keeps.

  Returns:
    page: Markdown.
  """
  sections = [
      write(results[name]) for name, write in SECTIONS.items()
      if name in results]
  text = '\n'.join([INTRO, *sections, on_paper(results)])
  return '\n\n'.join(
      paragraph.strip() if paragraph.lstrip().startswith(('|', '#'))
      else textwrap.fill(
          ' '.join(paragraph.split()), 88, break_on_hyphens=False)
      for paragraph in text.split('\n\n')) + '\n'
