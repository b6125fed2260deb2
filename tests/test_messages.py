"""What a user is told who passes the wrong thing: one sentence, at once."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests import families
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.internal import model_checks

tfd = tfp.distributions
gradients = sgmcmc.gradients

PRIOR = tfd.Normal(0., 10.).log_prob


def log_likelihood(mu, x):
  return tfd.Normal(mu[..., tf.newaxis], 1.).log_prob(x)


X = np.arange(50.).astype(np.float32)


def posterior(data=X):
  return sgmcmc.Posterior(PRIOR, log_likelihood, data)


def kernel(estimator=None):
  return sgmcmc.SGLD(
      posterior(), 1e-3, gradient_estimator=estimator or gradients.Uniform(10))


def sample(state=0., num_results=2, **arguments):
  return sgmcmc.sample(
      arguments.pop('kernel', None) or kernel(), num_results, state,
      progress_bar=False, jit_compile=False,
      **{'seed': 1, **arguments})


def stream(dataset):
  return gradients.Stream(dataset)


def of_stream(values, keep=lambda x: True):
  dataset = tf.data.Dataset.from_tensor_slices(values).filter(keep).batch(5)
  return sgmcmc.SGLD(
      sgmcmc.Posterior(PRIOR, log_likelihood, num_examples=50), 1e-3,
      gradient_estimator=stream(dataset))


RAGGED = tf.ragged.constant([[1.], [2., 3.]])
SPARSE = tf.sparse.from_dense([[1., 0.]])
OBJECTS = np.array([1., None], object)


@pytest.mark.parametrize('data, message', [
    ((k for k in range(3)), 'are a generator'),
    (RAGGED, 'data is a RaggedTensor'),
    ({'x': RAGGED}, r"data\['x'\] is a RaggedTensor"),
    (SPARSE, 'data is a SparseTensor'),
    ((np.ones(2), OBJECTS), r'data\[1\] is array.*dtype object'),
    ({1., 2.}, r'data is \{1.0, 2.0\} \(set\)'),
    ({'x': np.ones(2), 'y': None}, r"data\['y'\] is None"),
])
def test_data_that_are_no_tensors(data, message):
  with pytest.raises(TypeError, match=message):
    posterior(data)


def test_nan_in_the_data_is_found():
  x = np.zeros([10, 3], np.float32)
  x[4, 1] = x[7] = np.nan
  with pytest.raises(ValueError, match=(
      r"data\['x'\] holds NaN: 4 of 30 values, the first in row 4")):
    sgmcmc.Posterior(PRIOR, log_likelihood, {'n': np.ones(10, int), 'x': x})


def test_infinities_in_the_data_are_the_users():
  assert posterior(np.array([1., np.inf], np.float32)).num_examples == 2


def test_an_infinite_value_of_one_example_accuses_no_other():
  """The state is finite: the largest value is no measure of rounding."""
  x = np.ones(50, np.float32)
  x[4] = np.inf
  assert sgmcmc.Posterior(PRIOR, log_likelihood, x).num_examples == 50


def test_looking_for_nan_costs_a_traced_function_nothing():
  @tf.function
  def traced(data):
    return posterior(data).num_rows * tf.ones([])

  graph = traced.get_concrete_function(tf.TensorSpec([50])).graph
  assert not {op.type for op in graph.get_operations()} & {'IsNan', 'Any'}


@pytest.mark.parametrize('spoil', [
    lambda values: tf.reduce_sum(values, -1, keepdims=True) + 0. * values,
    lambda values: tf.reduce_mean(values, -1, keepdims=True) + 0. * values,
    lambda values: values / tf.cast(tf.shape(values)[-1], values.dtype),
])
def test_a_value_that_depends_on_other_examples(spoil):
  with pytest.raises(ValueError, match='for the same example on its own'):
    sgmcmc.Posterior(
        PRIOR, lambda mu, x: spoil(log_likelihood(mu, x)), X)


def centred(check=lambda theta: theta):
  """A likelihood of inputs less their mean in the minibatch."""
  def log_likelihood(theta, log_scale, x):
    z = tf.einsum('nd,...d->...n', x - tf.reduce_mean(x, 0), check(theta))
    return tf.math.log_sigmoid(tf.exp(log_scale)[..., tf.newaxis] * z)

  return sgmcmc.Posterior(
      lambda theta, log_scale: -tf.reduce_sum(theta**2, -1) - log_scale**2,
      log_likelihood,
      np.random.default_rng(0).normal(2., size=[50, 3]).astype(np.float32))


@pytest.mark.parametrize('theta, log_scale', [(0., 0.), (0., 1.), (1., 1.)])
def test_one_that_does_not_show_at_zero(theta, log_scale):
  start = [tf.fill([2, 3], theta), tf.fill([2], log_scale)]
  with pytest.raises(ValueError, match='for the same example on its own'):
    sgmcmc.SGLD(centred(), 0.1).bootstrap_results(start)


def test_a_function_that_takes_zero_alone_is_left_alone():
  def check(theta):
    if np.any(theta):
      raise ValueError
    return theta

  start = [tf.zeros([2, 3]), tf.zeros([2])]
  model_checks._check_near_zero(
      centred(check)._log_likelihood_fn, start, tf.zeros([8, 3]))


def test_one_value_for_a_batch_of_unknown_length():
  target = sgmcmc.Posterior(
      PRIOR, lambda mu, x: tf.reduce_sum(
          log_likelihood(mu, x), -1, keepdims=True), num_examples=50)

  @tf.function(input_signature=[tf.TensorSpec([None])])
  def estimate(batch):
    return target.log_prob_estimate(tf.zeros([]), batch=batch)

  with pytest.raises(ValueError, match='Do not sum'):
    estimate(tf.zeros([5]))


@pytest.mark.parametrize('state, error, message', [
    ((k for k in range(3)), TypeError, 'state is <generator'),
    (RAGGED, TypeError, 'is a RaggedTensor'),
    (SPARSE, TypeError, 'is a SparseTensor'),
    (OBJECTS, TypeError, 'dtype object'),
    ({1.}, TypeError, r'\{1.0\} \(set\)'),
    (None, TypeError, 'None'),
    ([[tf.zeros([]), tf.zeros([])]], TypeError, 'Part 0 .* is itself a list'),
    ([tf.zeros([]), tf.zeros([])], ValueError, 'has 2 part.* log_prior_fn'),
])
@pytest.mark.parametrize('start', [
    sample, lambda state: kernel().bootstrap_results(state)])
def test_states(start, state, error, message):
  with pytest.raises(error, match=message):
    start(state)


def vector_posterior(prior=None, **arguments):
  """Of a state of three coordinates; 20 examples."""
  prior = prior or tfd.MultivariateNormalDiag(tf.zeros(3)).log_prob
  return sgmcmc.Posterior(
      prior, lambda w, x: -tf.square(tf.einsum('...nd,...d->...n', x, w)),
      tf.ones([20, 3]), **arguments)


def own_prior(w):
  return -0.5 * tf.reduce_sum(w**2, axis=-1)


@pytest.mark.parametrize('arguments, state, message', [
    ({}, tf.zeros([4]), r'float32\[4\].*MultivariateNormalDiag over \[3\]: '),
    ({}, 0., r'float32\[\].* over \[3\]'),
    # It would be broadcast in silence.
    ({}, tf.zeros([5, 1]), r'float32\[5, 1\].* over \[3\]'),
    (dict(prior=own_prior), tf.zeros([4]),
     r'^log_likelihood_fn raised \w+ for a state of \[float32\[4\]\] .*: '
     r'Expected dimension .* 4\. Has the state another shape .* axes\.$'),
    (dict(prior=own_prior, example_state=tf.zeros([3])), tf.zeros([4]),
     r'They took \[float32\[3\]\], the example_state\.$'),
    (dict(prior=own_prior), 0., '^log_prior_fn raised'),
])
def test_a_start_of_wrong_shape(arguments, state, message):
  target = vector_posterior(**arguments)
  with pytest.raises(ValueError, match=message):
    sgmcmc.SGLD(target, 1e-3).bootstrap_results(state)


def test_parts_of_wrong_shape():
  prior = tfd.JointDistributionSequential(
      [tfd.Normal(0., 1.), tfd.MultivariateNormalDiag(tf.zeros(3))])
  target = sgmcmc.Posterior(
      prior.log_prob, lambda mu, w, x: x - mu[..., tf.newaxis], tf.ones([20]))
  kernel = sgmcmc.SGLD(target, 1e-3)
  kernel.bootstrap_results([tf.zeros([5]), tf.zeros([5, 3])])
  with pytest.raises(ValueError, match=r'over \[\], \[3\]: .* 2 part'):
    kernel.bootstrap_results([tf.zeros([5]), tf.zeros([5, 4])])


def test_a_prior_with_a_value_for_each_coordinate():
  with pytest.raises(ValueError, match=r'tfd.Independent\(prior, 1\).log_prob'):
    vector_posterior(tfd.Normal(tf.zeros(3), 1.).log_prob)


@pytest.mark.parametrize('make', [
    lambda: sgmcmc.SGLD(vector_posterior(), 1e-3),
    lambda: sgmcmc.SGLD(lambda x: -x**2, 1e-3),
    lambda: tfp.mcmc.HamiltonianMonteCarlo(lambda x: -x**2, 0.1, 2)])
@pytest.mark.parametrize('shape', [[0], [0, 3], [3, 0]])
def test_a_state_of_no_elements(make, shape):
  with pytest.raises(ValueError, match='Part 0 .* which has no elements'):
    sgmcmc.sample(make(), 2, tf.zeros(shape), seed=1)


@pytest.mark.weekly_after(2)
@pytest.mark.parametrize('results, error, message', [
    (lambda make: sgmcmc.SGHMC(vector_posterior(), 0.1, friction=1.)
     .bootstrap_results(tf.zeros([3])), ValueError,
     'results is of type SGHMCResults, and of type SGLDResults is needed'),
    (lambda make: make(gradients.SVRG(5, 10)).bootstrap_results(tf.zeros([3])),
     ValueError, r'results\.gradient_estimator_results is of type SVRGResults'),
    (lambda make: make().bootstrap_results(tf.zeros([2, 3])), ValueError,
     r'results\.target_log_prob is float32\[2\], and float32\[\] is needed'),
    (lambda make: tf.zeros([3]), ValueError,
     r'is float32\[3\], and of type SGLDResults is needed for this SGLD'),
    (lambda make: {}, ValueError, 'results is of type dict'),
    (lambda make: sgmcmc.sample(make(), 2, tf.zeros([3]), seed=1), TypeError,
     'are Draws: pass their kernel_results')])
def test_kernel_results_of_another_kind(results, error, message):
  def make(estimator=None):
    return sgmcmc.SGLD(
        vector_posterior(), 1e-3,
        gradient_estimator=estimator or gradients.Uniform(5))

  with pytest.raises(error, match=message):
    sgmcmc.sample(
        make(), 2, tf.zeros([3]), seed=1, previous_kernel_results=results(make))


@pytest.mark.parametrize('shape, error, message', [
    ([-1], ValueError, r'sample_shape\[0\] is -1'),
    ([2, 2.5], TypeError, r'sample_shape\[1\] is 2.5'),
    ('a', TypeError, r"sample_shape\[0\] is 'a'")])
def test_shapes_of_prior_draws(shape, error, message):
  with pytest.raises(error, match=message):
    vector_posterior().sample_prior(shape)


def test_data_in_lists():
  with pytest.raises(ValueError, match=r'data\[1\]\[0\]\[0\] .* make an array'):
    sgmcmc.Posterior(
        own_prior, lambda w, batch: batch[1], (tf.ones([2, 1]), [[1.], [2.]]))


def test_a_part_more_than_a_plain_function_takes():
  with pytest.raises(ValueError, match='target_log_prob_fn does not take 2'):
    sgmcmc.SGLD(lambda x: -x**2, 1e-3).bootstrap_results([0., 0.])


@pytest.mark.parametrize('seed, error', [
    ('a', TypeError), (1.5, TypeError), ([1., 2.], TypeError),
    ([1, 2, 3], ValueError), (tf.constant([1., 2.]), TypeError)])
@pytest.mark.parametrize('use', [
    lambda seed: sample(seed=seed),
    lambda seed: kernel().bootstrap_results(0., seed=seed),
    lambda seed: sgmcmc.random.normal([3], seed)])
def test_seeds(use, seed, error):
  with pytest.raises(error, match='seed .*two integers'):
    use(seed)


@pytest.mark.parametrize('make, error, message', [
    (lambda: of_stream(np.zeros(50)).bootstrap_results(0.), ValueError,
     'The state is float32, and the data are float64'),
    (lambda: of_stream(np.zeros(50, np.float32), lambda x: x > 1.)
     .bootstrap_results(0.), ValueError, 'dataset is empty'),
    (lambda: tf.function(
        lambda: of_stream(np.zeros(50, np.float32)) and 0., autograph=False)(),
     ValueError, 'inside a tf.function'),
    (lambda: stream(tf.data.Dataset.from_tensor_slices(RAGGED).batch(2)),
     TypeError, 'dense tensors'),
    (lambda: sample(trace_fn=lambda *_: None), TypeError,
     'trace_fn returned None'),
    (lambda: sample(trace_fn=lambda *_: object()), TypeError,
     'What trace_fn returned is <object'),
    (lambda: sgmcmc.sample(kernel(), 2, 0., seed=1, jit_compile='no'),
     TypeError, "jit_compile is 'no'"),
    (lambda: sgmcmc.SGLD(posterior(), 1j), TypeError, 'pass a real number'),
    (lambda: sgmcmc.SGLD(posterior(), tf.constant(1j)), TypeError,
     'pass a real number'),
    (lambda: gradients.Uniform(10, replacement='no'), TypeError,
     "replacement is 'no': it has to be True or False"),
    (lambda: sgmcmc.random.indices(5, [2], [0, 0], replacement='no'),
     TypeError, "replacement is 'no'"),
    (lambda: gradients.kmeans_strata(
        np.array([[1.], [np.nan], [2.]]), 2, seed=0), ValueError,
     'NaN or infinite, the first those of row 1'),
    (lambda: gradients.kmeans_strata(np.array([['a'], ['b']]), 2, seed=0),
     TypeError, 'array of numbers'),
    (lambda: gradients.ControlVariate(10, anchor=None), TypeError,
     'anchor is None'),
    (lambda: sgmcmc.pdmp.LogisticRegressionBound(np.zeros([0, 3]), 1.),
     ValueError, r'shape \(0, 3\)'),
    (lambda: sgmcmc.pdmp.LogisticRegressionBound(np.full([2, 1], np.nan), 1.),
     ValueError, 'NaN or infinite in row 0'),
    (lambda: sgmcmc.pdmp.HessianBound(np.zeros([0, 0])), ValueError,
     r'shape \(0, 0\)'),
    (lambda: sgmcmc.likelihood_bounds.Logistic().collapse(
        (tf.zeros([0, 3]), tf.zeros([0]))), ValueError, 'no rows'),
])
def test_arguments(make, error, message):
  with pytest.raises(error, match=message):
    make()


def diverging():
  return sgmcmc.SGLD(lambda x: x**2, 1e30)


def test_a_chain_that_turns_nan_thinks_of_the_data():
  with pytest.raises(sgmcmc.NonFiniteError, match='NaN or infinities in the'):
    sample(kernel=diverging(), num_results=20, state=1.)


KERNELS = {
    'SGLD': lambda target: sgmcmc.SGLD(target, 1e-3),
    'SGHMC': lambda target: sgmcmc.SGHMC(target, 1e-3, 1.),
    'SGNHT': lambda target: sgmcmc.SGNHT(target, 1e-3, 1.),
    'AMAGOLD': lambda target: sgmcmc.AMAGOLD(
        target, 1e-3, 1., num_leapfrog_steps=2),
    'SGLRW': lambda target: sgmcmc.SGLRW(target, 1e-3),
    'Barker': lambda target: sgmcmc.StochasticBarker(target, 1e-3),
    'replica exchange': lambda target: sgmcmc.ReplicaExchangeSGLD(
        target, 1e-3),
    'microcanonical': lambda target: sgmcmc.MicrocanonicalLangevin(
        target, 1e-3),
    'split zig-zag': lambda target: sgmcmc.pdmp.SplitZigZag(target, 1e-3),
    'split bouncy': lambda target: sgmcmc.pdmp.SplitBouncyParticle(
        target, 1e-3),
    'bouncy': lambda target: sgmcmc.BouncyParticleSampler(
        target, rate_bound=sgmcmc.pdmp.GaussianBound(1.)),
    'zig-zag': lambda target: sgmcmc.ZigZagSampler(
        target, rate_bound=sgmcmc.pdmp.GaussianBound(1.)),
    'SBPS': lambda target: sgmcmc.StochasticBouncyParticleSampler(target),
    'uniform time': lambda target: sgmcmc.pdmp.UniformTime(
        sgmcmc.BouncyParticleSampler(
            target, rate_bound=sgmcmc.pdmp.GaussianBound(1.)), 1.),
}


def normal(x):
  return -tf.reduce_sum(tf.square(x), axis=-1) / 2.


def first_step(wrapped):
  state = tf.ones([1, 2])
  results = wrapped.bootstrap_results(state)
  return wrapped.one_step(state, results, seed=[0, 0])


@pytest.mark.parametrize('name', KERNELS)
def test_wrappers_of_tfp_that_need_a_metropolis_test(name):
  make = KERNELS[name]
  for use, message in (
      (lambda: first_step(tfp.mcmc.MetropolisHastings(make(normal))),
       'MetropolisHastings cannot'),
      (lambda: first_step(
          tfp.mcmc.SimpleStepSizeAdaptation(make(normal), 3)),
       'SimpleStepSizeAdaptation .* cannot'),
      (lambda: first_step(
          tfp.mcmc.ReplicaExchangeMC(normal, [1., 0.5], make)),
       'ReplicaExchangeMC cannot'),
      (lambda: tfp.mcmc.sample_annealed_importance_chain(
          2, normal, normal, tf.ones([1, 2]), make, seed=1),
       'sample_annealed_importance_chain cannot')):
    with pytest.raises(TypeError, match=message):
      use()


def test_firefly_is_no_proposal_either():
  x = tf.constant([[0.5], [1.], [-1.]])
  firefly = sgmcmc.FireflyMonteCarlo(
      sgmcmc.Posterior(
          tfd.MultivariateNormalDiag(tf.zeros(1)).log_prob,
          families.logistic_log_likelihood, (x, tf.constant([1., 0., 0.]))),
      sgmcmc.likelihood_bounds.Logistic(), step_size=0.1, capacity=3)
  wrapped = tfp.mcmc.MetropolisHastings(firefly)
  with pytest.raises(TypeError, match='MetropolisHastings cannot'):
    wrapped.one_step(
        tf.zeros([1]), wrapped.bootstrap_results(tf.zeros([1])), seed=[0, 0])


@pytest.mark.parametrize('make, message', [
    (sgmcmc.SGHMC, r'needs step_size and friction.*learning_rate=0.01, '
                   r'momentum=0.9'),
    (sgmcmc.SGLD, r'PosteriorSampling\(SGLD, learning_rate=0.01'),
    (functools.partial(sgmcmc.SGHMC, step_size=1e-3),
     r'needs friction.*functools.partial\(SGHMC, step_size=..., friction='),
])
def test_a_step_size_that_nobody_has_given(make, message):
  with pytest.raises(TypeError, match=message):
    sgmcmc.keras.PosteriorSampling(make, num_examples=10)


def test_a_model_of_keras_2():
  import tf_keras
  model = tf_keras.Sequential([tf_keras.Input([2]), tf_keras.layers.Dense(1)])
  with pytest.raises(TypeError, match='no model of tf_keras'):
    sgmcmc.keras.PosteriorSamples.from_arrays(
        model, [np.ones([5, 2, 1]), np.zeros([5, 1])])


def test_layers_unfrozen_after_sampling():
  model = keras.Sequential([
      keras.Input([2]), keras.layers.Dense(2, trainable=False),
      keras.layers.Dense(1)])
  model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
  draws = sgmcmc.keras.PosteriorSamples.from_arrays(
      model, [np.ones([5, 2, 1]), np.zeros([5, 1])])
  model.layers[0].trainable = True
  for use in (lambda: draws.predict(np.ones([3, 2])), lambda: draws.weights,
              lambda: draws[1:].predict(np.ones([3, 2])), lambda: draws[0]):
    with pytest.raises(ValueError, match='frozen or unfrozen'):
      use()
