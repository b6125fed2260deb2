"""What all tests and the docstrings' examples share.

TensorFlow is imported in the fixtures: the process that hands out the tests to
others needs none.
"""

import collections
import gc
import os
import signal

import pytest

# A shell without job control starts what it runs in the background with SIGINT
# ignored. The tests of Ctrl-C need it, and so do the processes that they start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure():
  """Of several workers each takes one thread.

  They share the processors out already, and programs that share out small
  operations among threads wait for each other.
  """
  if 'PYTEST_XDIST_WORKER' in os.environ:
    os.environ.setdefault('TF_NUM_INTRAOP_THREADS', '1')
    os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
  """Marks what can only be told of an item.

  The docstrings' examples are slow, as those of the pages are. So are, and
  weekly, the cases of a test after its first n, where it is marked
  `weekly_after(n)`.
  """
  numbers = collections.Counter()
  for item in items:
    if isinstance(item, pytest.DoctestItem):
      item.add_marker(pytest.mark.slow)
    after = item.get_closest_marker('weekly_after')
    if after is None or item.get_closest_marker('weekly'):
      continue
    numbers[item.path, item.originalname] += 1
    if numbers[item.path, item.originalname] > after.args[0]:
      item.add_marker(pytest.mark.slow)
      item.add_marker(pytest.mark.weekly)


def pytest_collection_finish():
  """What has been imported stays: it is not looked through for garbage.

  Nor, but seldom, what tests share: models and programs, of many objects.
  """
  gc.collect()
  gc.freeze()
  gc.set_threshold(2000, 10, 50)


@pytest.fixture(autouse=True)
def _optimise_graphs_in_slow_tests_alone(request):
  """Most programs run for less time than Grappler takes to optimise them.

  What XLA compiles it optimises by itself, and the slow tests run with both.
  """
  import tensorflow as tf

  tf.config.optimizer.set_experimental_options({
      'disable_meta_optimizer': 'slow' not in request.keywords})


@pytest.fixture(autouse=True)
def _few_steps_for_each_batch(request, monkeypatch):
  """In most tests a chain need not arrive, and 10,000 steps take 20 s.

  Fixtures of modules, programs of their own and the docstrings' examples make
  as many as users do.
  """
  from tfp_sgmcmc.keras.fitting import steps_per_batch

  if ('enough_steps' not in request.keywords
      and not isinstance(request.node, pytest.DoctestItem)):
    monkeypatch.setattr(steps_per_batch, '_MOST_STEPS', 200)


@pytest.fixture(autouse=True, scope='session')
def _pipelines_that_end_at_once():
  from tests import pipelines

  with pipelines.end_at_once():
    yield


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
  import keras
  import tensorflow as tf
  import tensorflow_probability as tfp

  import tfp_sgmcmc as sgmcmc

  doctest_namespace.update(
      keras=keras, tf=tf, tfp=tfp, tfd=tfp.distributions,
      tfb=tfp.bijectors, sgmcmc=sgmcmc)
