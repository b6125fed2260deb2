"""Checks at import that TensorFlow, TFP and Keras are here and fit."""

import importlib
import os
import sys


def check() -> None:
  """Raises an `ImportError` of one sentence where something is missing."""
  if 'tfp_sgmcmc.quickstart' in sys.orig_argv:
    # TensorFlow reads it when it is first imported, which is here.
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  for module, package in (
      ('tensorflow', 'tensorflow>=2.18'),
      ('tf_keras', 'tf-keras'),
      ('tensorflow_probability', 'tensorflow-probability==0.25.*')):
    try:
      importlib.import_module(module)
    except ImportError as error:
      raise ImportError(
          f'tfp_sgmcmc needs {module}, which cannot be imported ({error}): '
          f'pip install "{package}".') from error
  import keras  # pylint: disable=g-import-not-at-top

  if keras.backend.backend() != 'tensorflow':
    raise ImportError(
        f'tfp_sgmcmc needs Keras to run on TensorFlow, and its backend is '
        f'{keras.backend.backend()!r}: set the environment variable '
        'KERAS_BACKEND=tensorflow before keras is first imported.')
