"""What a posterior costs in a server, beside one network.

  python -m benchmarks.serving [--draws 30] [--output FOLDER]

The draws have random weights: what they cost does not depend on them. Each
file is loaded by its own runtime, on one thread, and asked for one row and for
1,000.
"""

from collections.abc import Callable
import pathlib
import statistics
import tempfile
import time
from typing import Any

from ai_edge_litert import interpreter as litert
import keras
import numpy as np
import onnxruntime
import tensorflow as tf

from benchmarks import result_lines
import tfp_sgmcmc as sgmcmc

CLASSES = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
ROWS = (1, 1000)


def perceptron() -> keras.Model:
  model = keras.Sequential([
      keras.Input([8]), keras.layers.Dense(50, 'relu'), keras.layers.Dense(2)])
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood())
  return model


def convolutional(is_frozen: bool) -> keras.Model:
  """LeNet's size; with a frozen body the last layer alone is sampled."""
  model = keras.Sequential([
      keras.Input([28, 28, 1]),
      keras.layers.Conv2D(16, 5, activation='relu', trainable=not is_frozen),
      keras.layers.MaxPooling2D(),
      keras.layers.Conv2D(32, 5, activation='relu', trainable=not is_frozen),
      keras.layers.MaxPooling2D(), keras.layers.Flatten(),
      keras.layers.Dense(128, 'relu', trainable=not is_frozen),
      keras.layers.Dense(10)])
  model.compile('sgd', CLASSES)
  return model


def served(model: keras.Model, num_draws: int, **arguments) -> keras.Model:
  rng = np.random.default_rng(0)
  return sgmcmc.keras.PosteriorSamples.from_arrays(model, [
      v.numpy() + 0.05 * rng.normal(size=[num_draws, *v.shape])
      for v in model.trainable_variables]).as_model(**arguments)


def by_tensorflow(path: str) -> Callable[[np.ndarray], Any]:
  loaded = tf.saved_model.load(path)
  return lambda x: loaded.serve(tf.constant(x))


def by_onnx(path: str) -> Callable[[np.ndarray], Any]:
  options = onnxruntime.SessionOptions()
  options.intra_op_num_threads = options.inter_op_num_threads = 1
  session = onnxruntime.InferenceSession(path, options)
  name = session.get_inputs()[0].name
  return lambda x: session.run(None, {name: x})


def by_litert(path: str) -> Callable[[np.ndarray], Any]:
  runner = litert.Interpreter(path, num_threads=1).get_signature_runner()
  name = next(iter(runner.get_input_details()))
  return lambda x: runner(**{name: x})


FORMATS = {
    'SavedModel': ('tf_saved_model', '', by_tensorflow),
    'ONNX': ('onnx', '.onnx', by_onnx),
    'LiteRT': ('litert', '.tflite', by_litert),
}


def size(path: pathlib.Path) -> float:
  """Megabytes of a file, or of a folder."""
  files = [path] if path.is_file() else path.rglob('*')
  return sum(f.stat().st_size for f in files if f.is_file()) / 1e6


def latency(run: Callable[[np.ndarray], Any], x: np.ndarray) -> float:
  """Milliseconds, the median of calls over a second."""
  for _ in range(3):
    run(x)
  found, end = [], time.perf_counter() + 1.
  while len(found) < 5 or time.perf_counter() < end:
    start = time.perf_counter()
    run(x)
    found.append(1e3 * (time.perf_counter() - start))
  return statistics.median(found)


def cells(model: keras.Model, shape: tuple[int, ...]) -> list[str]:
  """The sizes and latencies of a model in each format."""
  found = []
  with tempfile.TemporaryDirectory() as folder:
    for name, (file_format, suffix, load) in FORMATS.items():
      path = pathlib.Path(folder) / f'{name}{suffix}'
      model.export(str(path), format=file_format, verbose=False)
      run = load(str(path))
      times = [latency(run, np.ones([n, *shape], np.float32)) for n in ROWS]
      found.append(
          f'{size(path):.2g}; {times[0]:.2g}, {times[1]:.3g}')
  return found


def main() -> None:
  parser = result_lines.parser('serving', __doc__, has_tiny=False)
  parser.add_argument('--draws', type=int, default=30)
  options = parser.parse_args()
  tf.config.threading.set_intra_op_parallelism_threads(1)
  tf.config.threading.set_inter_op_parallelism_threads(1)
  number, rows = options.draws, []
  for name, model, shape in (
      ('perceptron, 8-50-2', perceptron(), (8,)),
      ('convolutional, all layers', convolutional(False), (28, 28, 1)),
      ('convolutional, last layer', convolutional(True), (28, 28, 1))):
    rows.append([name, 'one network', *cells(model, shape)])
    some = {} if model.loss is CLASSES else {'outputs': ['mean', 'std']}
    rows.append([
        name, f'{number} draws', *cells(served(model, number, **some), shape)])
    if some:
      rows.append([name, f'{number} draws, with quantiles', *cells(
          served(model, number), shape)])
  head = ['network', 'what', *FORMATS]
  text = f'{result_lines.table([head, ["---"] * len(head), *rows])}\n'
  (options.output / 'serving.md').write_text(
      'Size in MB; milliseconds for one row, for 1,000 rows '
      f'(`python -m benchmarks.serving`, one thread):\n\n{text}')
  print(text)


if __name__ == '__main__':
  main()
