"""Checks at import that TensorFlow, TFP and Keras are here and fit."""

from collections.abc import Iterator
import contextlib
import importlib
import importlib.metadata
import os
import sys
import warnings

_REQUIRED = (
    ('tensorflow', 'tensorflow>=2.18'),
    ('tf_keras', 'tf-keras'),
    ('tensorflow_probability', 'tensorflow-probability==0.25.*'),
)


def version() -> str:
  """The version of the installed package; "unknown" of a bare checkout."""
  try:
    return importlib.metadata.version('tfp_sgmcmc')
  except importlib.metadata.PackageNotFoundError:
    return 'unknown'


def check() -> None:
  """Raises an `ImportError` of one sentence where something is missing."""
  _avoid_wrong_gradients()
  is_for_people = 'tfp_sgmcmc.quickstart' in sys.orig_argv
  with _quiet() if is_for_people else contextlib.nullcontext():
    _import()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Without what TensorFlow says of itself when it is first imported.

  Some of it is written before any level of its log counts.
  """
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  sys.stderr.flush()
  saved = os.dup(2)
  with open(os.devnull, 'wb') as nowhere:
    os.dup2(nowhere.fileno(), 2)
  try:
    yield
  finally:
    os.dup2(saved, 2)
    os.close(saved)


def _import() -> None:
  for module, requirement in _REQUIRED:
    try:
      importlib.import_module(module)
    except ImportError as error:
      raise ImportError(
          f'tfp_sgmcmc needs {module}, which cannot be imported ({error}): '
          f'pip install "{requirement}".') from error
  try:
    import keras
    backend = keras.backend.backend()
  except ImportError as error:
    backend = f'one that cannot be imported ({error})'
  if backend != 'tensorflow':
    raise ImportError(
        'tfp_sgmcmc needs Keras to run on TensorFlow, and its backend is '
        f'{backend}: set the environment variable KERAS_BACKEND=tensorflow '
        'before keras is first imported.')


def _avoid_wrong_gradients() -> None:
  """Keeps TensorFlow 2.18 and 2.19 from a wrong gradient on CPU.

  With oneDNN their gradient of a broadcasting `tf.einsum`, as in
  `einsum('...nd,...d->...n', x, theta)` with `x` shared by many chains, is
  wrong in all chains but the first ones. It is right from 2.20 on.
  """
  try:
    version = importlib.metadata.version('tensorflow')
  except importlib.metadata.PackageNotFoundError:
    return  # Another distribution of TensorFlow, or none: see below.
  if tuple(map(int, version.split('.')[:2])) >= (2, 20):
    return
  if 'tensorflow' not in sys.modules:
    os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
  if os.environ.get('TF_ENABLE_ONEDNN_OPTS') != '0':
    warnings.warn(
        f'TensorFlow {version} with oneDNN computes wrong gradients of '
        'broadcasting einsums on CPU: upgrade to 2.20, or set the environment '
        'variable TF_ENABLE_ONEDNN_OPTS=0, or import tfp_sgmcmc before '
        'tensorflow.', RuntimeWarning, stacklevel=2)
