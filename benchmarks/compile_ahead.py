"""Compiles a program that TensorFlow wrote, for a chip that is not here.

  python benchmarks/compile_ahead.py v5e program.mlir [--chips 8 --batch 104]

Run by `benchmarks/accelerators.py`, with the Python of an environment which has
JAX and libtpu (`v5e`) or JAX and its CUDA plugin (`a100`), and no TensorFlow.
Neither a driver nor a device is needed. With several chips the first two
arguments of the program, if their first axis is the batch, are split among them
and all the others are on each.

It prints one line of JSON: what the compiler says of memory, operations and
bytes, for one chip; on v5e its estimate of cycles; and what crosses between
chips. jaxlib's interface to ahead-of-time compilation is private, and so pinned
to the version that `accelerators.py` installs.
"""

import argparse
import collections
import glob
import json
import os
import pathlib
import re
import sys
import time

os.environ.update(
    JAX_PLATFORMS='cpu', TPU_SKIP_MDS_QUERY='1', TPU_STDERR_LOG_LEVEL='3',
    TPU_MIN_LOG_LEVEL='3', TPU_ACCELERATOR_TYPE='v5litepod-4',
    TPU_WORKER_HOSTNAMES='localhost')
for compiler in glob.glob(
    f'{sys.prefix}/lib/python3*/site-packages/nvidia/cuda_nvcc'):
  os.environ['PATH'] = f'{compiler}/bin:{os.environ["PATH"]}'
  os.environ['XLA_FLAGS'] = f'--xla_gpu_cuda_data_dir={compiler}'

from jax._src.interpreters import mlir  # noqa: E402
from jax._src.lib import xla_client  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jaxlib.mlir import ir  # noqa: E402
from jaxlib.mlir.dialects import stablehlo  # noqa: E402
import numpy as np  # noqa: E402

COLLECTIVES = (
    'all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all',
    'collective-permute')


def chips(target, number):
  """Descriptions of the chips to compile for."""
  if target == 'v5e':
    name = 'v5e:2x4' if number > 4 else 'v5e:2x2'
    return topologies.get_topology_desc(
        platform='tpu', topology_name=name).devices[:number]
  config = (pathlib.Path(__file__).parent / f'{target}.txtpb').read_text()
  return topologies.get_topology_desc(
      platform='cuda', topology_name='', target_config=config,
      topology='1x1x1').devices


def without_copies(module):
  """Takes out TensorFlow's mark of an assigned variable, an identity."""
  found = []

  def visit(op):
    if op.name == 'mhlo.copy':
      found.append(op.operation)
    return ir.WalkResult.ADVANCE

  module.operation.walk(visit)
  for op in found:
    op.results[0].replace_all_uses_with(op.operands[0])
    op.erase()


def shard(module, number, batch):
  """Splits the batch among chips; returns how many arguments were."""
  main = next(
      op for op in module.body.operations if 'sym_name' in op.attributes
      and ir.StringAttr(op.attributes['sym_name']).value == 'main')
  types = ir.FunctionType(
      ir.TypeAttr(main.attributes['function_type']).value).inputs
  old = (ir.ArrayAttr(main.attributes['arg_attrs'])
         if 'arg_attrs' in main.attributes else [None] * len(types))
  attributes, num_sharded = [], 0
  for k, (type_, attribute) in enumerate(zip(types, old)):
    sizes = list(ir.RankedTensorType(type_).shape)
    entries = {} if attribute is None else {
        entry.name: entry.attr for entry in ir.DictAttr(attribute)}
    is_sharded = k < 2 and sizes[:1] == [batch]
    num_sharded += is_sharded
    tiles = ','.join(map(str, [number] + [1] * (len(sizes) - 1)))
    entries['mhlo.sharding'] = ir.StringAttr.get(
        f'{{devices=[{tiles}]<=[{number}]}}' if is_sharded else '{replicated}')
    attributes.append(ir.DictAttr.get(entries))
  main.attributes['arg_attrs'] = ir.ArrayAttr.get(attributes)
  module.operation.attributes['mhlo.num_partitions'] = ir.IntegerAttr.get(
      ir.IntegerType.get_signless(32), number)
  return num_sharded


def options(devices):
  made = xla_client.CompileOptions()
  made.num_replicas, made.num_partitions = 1, len(devices)
  made.device_assignment = xla_client.DeviceAssignment.create(
      np.array([[device.id for device in devices]]))
  if len(devices) > 1:
    build = made.executable_build_options
    build.use_spmd_partitioning = True
    build.num_replicas, build.num_partitions = 1, len(devices)
    build.device_assignment = made.device_assignment
  return made


def num_bytes(shapes):
  """The bytes of all arrays in a text such as `(f32[10,3], s32[])`."""
  return sum(
      int(np.prod([int(size) for size in sizes.split(',') if size]))
      * (1 if dtype == 'pred' else max(1, int(re.sub(r'\D', '', dtype)) // 8))
      for dtype, sizes in re.findall(r'\b(pred|[a-z]+\d+)\[([\d,]*)\]', shapes))


def report(executable):
  """What the compiler says of its program."""
  memory = executable.get_compiled_memory_stats()
  text = executable.hlo_modules()[0].to_string()
  found = {
      'arguments': memory.argument_size_in_bytes,
      'temporary': memory.temp_size_in_bytes,
      'code': memory.generated_code_size_in_bytes,
      'fusions': len(re.findall(r' fusion\(', text))}
  try:
    costs = executable.cost_analysis()
    costs = costs[0] if isinstance(costs, list) else costs
    found.update(flops=costs.get('flops'), bytes=costs.get('bytes accessed'))
  except Exception as error:  # The CUDA plugin has none.
    if 'UNIMPLEMENTED' not in str(error):
      raise
  cycles = re.findall(r'estimated_cycles":"(\d+)"', text)
  if cycles:
    found['cycles'] = sum(map(int, cycles))
  crossing = collections.Counter()
  for shapes, name in re.findall(
      rf'= (\S.*?) ({"|".join(COLLECTIVES)})(?:-start)?\(', text):
    crossing[name] += 1
    found['crossing_bytes'] = found.get('crossing_bytes', 0) + num_bytes(shapes)
  found['collectives'] = dict(crossing)
  return found, text


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('target', choices=['v5e', 'a100'])
  parser.add_argument('program', type=pathlib.Path)
  parser.add_argument('--chips', type=int, default=1)
  parser.add_argument('--batch', type=int)
  arguments = parser.parse_args()
  devices = chips(arguments.target, arguments.chips)
  start = time.time()
  with mlir.make_ir_context() as context:
    module = stablehlo.deserialize_portable_artifact(
        context, arguments.program.read_bytes())
    without_copies(module)
    if arguments.chips > 1:
      if not shard(module, arguments.chips, arguments.batch):
        raise ValueError(f'No argument has {arguments.batch} rows to split.')
    executable = devices[0].client.compile(
        module, xla_client.DeviceList(tuple(devices)), options(devices))
  found, text = report(executable)
  found['seconds'] = time.time() - start
  name = f'{arguments.program.stem}.{arguments.target}.{arguments.chips}.txt'
  arguments.program.with_name(name).write_text(text)
  print(json.dumps(found))


if __name__ == '__main__':
  main()
