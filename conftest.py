"""What all tests and the docstrings' examples share.

TensorFlow is imported in the fixtures: the process that hands out the tests to
others needs none.
"""

import pytest


@pytest.fixture(autouse=True)
def _optimise_graphs_in_slow_tests_alone(request):
  """Most programs run for less time than Grappler takes to optimise them.

  What XLA compiles it optimises by itself, and the slow tests run with both.
  """
  import tensorflow as tf

  tf.config.optimizer.set_experimental_options({
      'disable_meta_optimizer': 'slow' not in request.keywords})


@pytest.fixture(autouse=True, scope='session')
def _pipelines_that_end_at_once():
  """No thread that tunes a pipeline: ending it takes up to a minute at times.

  tf.data wakes that thread before it says that the pipeline is cancelled; a
  thread quick enough to look in between sleeps on, for as long as its next
  tuning is due (10 ms at first, twice that each time, up to a minute), and the
  iterator's destructor waits for it.
  """
  import tensorflow as tf

  iterate = tf.data.Dataset.__iter__
  options = tf.data.Options()
  options.autotune.enabled = False
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(tf.data.Dataset, '__iter__',
                  lambda dataset: iterate(dataset.with_options(options)))
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
