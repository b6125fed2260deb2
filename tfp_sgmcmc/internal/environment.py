"""Checks at import that TensorFlow, TFP and Keras are here and fit."""

import importlib
import os
import sys

_REQUIRED = (
    ('tensorflow', 'tensorflow>=2.18'),
    ('tf_keras', 'tf-keras'),
    ('tensorflow_probability', 'tensorflow-probability==0.25.*'),
)


def check() -> None:
  """Raises an `ImportError` of one sentence where something is missing."""
  if 'tfp_sgmcmc.quickstart' in sys.orig_argv:
    # TensorFlow reads it when it is first imported, which is here.
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
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
