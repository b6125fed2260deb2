"""Posteriors of TFP's joint distributions, against TFP's own densities."""

import gc

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

tfb, tfd = tfp.bijectors, tfp.distributions

N = 12
RANDOM = np.random.default_rng(0)
Y = RANDOM.normal(size=N).astype(np.float32)
X = RANDOM.normal(size=[N, 2]).astype(np.float32)
GROUP = np.arange(N, dtype=np.int32) % 3
from_joint = sgmcmc.Posterior.from_joint_distribution


def named(kind):
  """The joint distribution of iid examples, and of those with covariates."""
  def prior():
    return dict(
        mu=tfd.Normal(0., 2.), tau=tfd.HalfNormal(1.),
        upper=lambda mu: tfd.Uniform(mu, mu + 3.),
        means=lambda mu, tau: tfd.Sample(tfd.Normal(mu, tau), 3))

  def iid():
    return kind({**prior(), 'y': lambda means, tau, upper: tfd.Sample(
        tfd.Normal(means[..., 0] + upper, tau), N)})

  def given(batch):
    x, group = batch['x'], batch['group']
    return kind({**prior(), 'y': lambda means, tau, upper: tfd.Independent(
        tfd.Normal(tf.gather(means, group) + x[:, 0] * upper, tau), 1)})

  return iid, given


def coroutine(kind):
  def prior():
    mu = yield tfd.JointDistributionCoroutine.Root(
        tfd.Normal(0., 2., name='mu'))
    tau = yield tfd.JointDistributionCoroutine.Root(
        tfd.LogNormal(0., 1., name='tau'))
    return mu, tau

  def iid():
    def model():
      mu, tau = yield from prior()
      yield tfd.Sample(tfd.Normal(mu, tau), N, name='y')
    return kind(model)

  def given(batch):
    def model():
      mu, tau = yield from prior()
      yield tfd.Independent(
          tfd.Normal(mu + batch['x'][:, 1], tau), 1, name='y')
    return kind(model)

  return iid, given


def sequential(kind):
  def prior():
    return [tfd.Normal(0., 2.), tfd.HalfNormal(2.)]

  def iid():
    return kind([*prior(), lambda tau, mu: tfd.Sample(tfd.Normal(mu, tau), N)])

  def given(batch):
    return kind([*prior(), lambda tau, mu: tfd.Independent(
        tfd.Normal(mu * batch['x'][:, 0], tau), 1)])

  return iid, given


KINDS = [
    (named, tfd.JointDistributionNamed, 'y'),
    (named, tfd.JointDistributionNamedAutoBatched, 'y'),
    (coroutine, tfd.JointDistributionCoroutine, 'y'),
    (coroutine, tfd.JointDistributionCoroutineAutoBatched, 'y'),
    (sequential, tfd.JointDistributionSequential, 'x'),
    (sequential, tfd.JointDistributionSequentialAutoBatched, 'x')]


# One of each kind of structure, with covariates and without.
NOT_WEEKLY = {(0, False), (2, True), (3, False), (4, True), (5, False)}


def _case(k, has_covariates):
  """A case; second ones of a structure are left to each week."""
  return pytest.param(
      *KINDS[k], has_covariates,
      marks=() if (k, has_covariates) in NOT_WEEKLY else pytest.mark.weekly,
      id=f'{KINDS[k][1].__name__}-{has_covariates}')


@pytest.mark.weekly_after(1)
@pytest.mark.slow
@pytest.mark.parametrize('make, kind, name, has_covariates', [
    _case(k, has_covariates)
    for k in range(len(KINDS)) for has_covariates in (False, True)])
def test_density_is_that_of_tfp(make, kind, name, has_covariates):
  covariates = {'x': tf.constant(X), 'group': tf.constant(GROUP)}
  iid, given = make(kind)
  if has_covariates:
    posterior = from_joint(given, {name: Y}, covariates)
    pinned = given(covariates).experimental_pin(**{name: Y})
  else:
    posterior = from_joint(iid(), {name: Y})
    pinned = iid().experimental_pin(**{name: Y})
  start = posterior.sample_prior([1, 2], seed=1)  # Two axes of chains.
  values = posterior(*start).numpy()
  bijector = pinned.experimental_default_event_space_bijector()
  theta = posterior.constrain(start)
  for k in np.ndindex(1, 2):
    phi = tf.nest.pack_sequence_as(theta, [part[k] for part in start])
    expected = pinned.unnormalized_log_prob(bijector.forward(phi)) + (
        bijector.forward_log_det_jacobian(phi))
    np.testing.assert_allclose(values[k], expected, rtol=2e-5)
    tf.nest.map_structure(
        lambda one, all_, k=k: np.testing.assert_allclose(
            one, all_[k], rtol=1e-5), bijector.forward(phi), theta)
  # Minibatches, one for all chains and one for each, sum to the whole.
  log_likelihood = tf.function(  # An eager call traces it each time.
      lambda rows: posterior.log_likelihood(
          *start, batch=posterior.gather(rows)), autograph=False)
  shared, own = (
      sum(log_likelihood(rows) for rows in (first, 4 + first, 8 + first))
      for first in (tf.range(4), tf.tile(tf.range(4)[None, None], [1, 2, 1])))
  np.testing.assert_allclose(shared, own, rtol=1e-5)
  np.testing.assert_allclose(
      tf.reduce_sum(shared, axis=-1) + posterior.log_prior(*start), values,
      rtol=2e-5)


def test_pinned_parts_are_constants_and_inform_their_parents():
  joint = tfd.JointDistributionNamed(dict(
      tau=tfd.HalfNormal(1.), sigma=lambda tau: tfd.Exponential(tau),
      mu=tfd.Normal(0., 1.),
      y=lambda mu, sigma: tfd.Sample(tfd.Normal(mu, sigma), N)))
  posterior = from_joint(joint.experimental_pin(sigma=0.5), {'y': Y})
  phi = tf.nest.pack_sequence_as(
      {'mu': 0, 'tau': 0}, posterior.sample_prior(seed=2))
  pinned = joint.experimental_pin(sigma=0.5, y=Y)
  bijector = pinned.experimental_default_event_space_bijector()
  np.testing.assert_allclose(
      posterior(*tf.nest.flatten(phi)),
      pinned.unnormalized_log_prob(bijector.forward(phi))
      + bijector.forward_log_det_jacobian(phi), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('family', ['iid events', 'categories', 'two outputs'])
def test_kinds_of_observations(family):
  """Vectors by example, labels of a distribution of one, several outputs."""
  values = {
      'iid events': {'y': X}, 'categories': {'y': GROUP},
      'two outputs': {'y': Y, 'z': X}}[family]
  prior = dict(w=tfd.Sample(tfd.Normal(0., 1.), 3))
  likelihood = {
      'iid events': dict(y=lambda w: tfd.Sample(
          tfd.MultivariateNormalDiag(w[:2], tf.ones(2)), N)),
      'categories': dict(y=lambda w: tfd.Categorical(logits=w)),
      'two outputs': dict(
          y=lambda w: tfd.Normal(w[0], 1.),
          z=lambda w: tfd.Sample(tfd.Normal(w[1], 1.), [N, 2]))}[family]
  posterior = from_joint(
      tfd.JointDistributionNamed({**prior, **likelihood}), values)
  w = tf.constant([0.3, -0.2, 0.8])
  normal = lambda y, loc: -0.5 * (y - loc)**2 - 0.5 * np.log(2. * np.pi)
  expected = {
      'iid events': lambda: np.sum(normal(X, w[:2]), axis=1),
      'categories': lambda: (
          np.asarray(w)[GROUP] - np.log(np.sum(np.exp(w)))),
      'two outputs': lambda: normal(Y, w[0]) + np.sum(normal(X, w[1]), axis=1),
  }[family]()
  np.testing.assert_allclose(
      posterior.log_likelihood(w, batch=posterior.data), expected, rtol=1e-5)


@pytest.mark.slow
def test_it_is_sampled():
  """A linear regression of known noise: its moments in closed form.

  100,000 draws of 100 chains. The bounds are 6 standard errors by the chains'
  own spread, t with 99 degrees of freedom: a false alarm in 10^7. The step's
  own bias of the variance, h times a precision of 50 over 4, stays below 2%.
  """
  noise = 0.5
  y = X @ [1., -1.] + noise * RANDOM.normal(size=N)

  def model(x):
    return tfd.JointDistributionNamed(dict(
        w=tfd.Sample(tfd.Normal(0., 1.), 2),
        y=lambda w: tfd.Independent(
            tfd.Normal(tf.linalg.matvec(x, w), noise), 1)))

  posterior = from_joint(model, {'y': y}, covariates=X)
  draws = sgmcmc.sample(
      sgmcmc.SGLD(posterior, step_size=1e-3,
                  gradient_estimator=sgmcmc.gradients.Exact()),
      1000, posterior.sample_prior([100], seed=3), num_burnin_steps=2000,
      seed=4)
  precision = X.T @ X / noise**2 + np.eye(2)
  mean = np.linalg.solve(precision, X.T @ y / noise**2)
  w = posterior.constrain(draws.states)['w'].numpy()
  exported = draws.to_arviz(transform=posterior.constrain).posterior
  np.testing.assert_allclose(exported['w'], np.swapaxes(w, 0, 1))
  of_chains = w.mean(axis=0)
  error = of_chains.std(axis=0, ddof=1) / 10.
  assert np.all(abs(of_chains.mean(axis=0) - mean) < 6. * error)
  squares = ((w - mean)**2).mean(axis=0)
  error = squares.std(axis=0, ddof=1) / 10.
  variance = np.diag(np.linalg.inv(precision))
  assert np.all(
      abs(squares.mean(axis=0) - variance) < 6. * error + .02 * variance)


def regression(x):
  return tfd.JointDistributionNamed(dict(
      w=tfd.Sample(tfd.Normal(0., 1.), 2),
      y=lambda w: tfd.Independent(
          tfd.Normal(tf.linalg.matvec(x, w), 1.), 1)))


def of(**parts):
  return lambda: from_joint(tfd.JointDistributionNamed(parts), {'y': Y})


CARELESS = {
    'covariates inside the model': (
        lambda: from_joint(regression(X), {'y': Y}),
        'told apart by example.*covariates=x'),
    'a latent for each example': (
        of(z=tfd.Sample(tfd.Normal(0., 1.), N),
           y=lambda z: tfd.Independent(tfd.Normal(z, 1.), 1)),
        'told apart by example'),
    'a latent for each example given': (
        lambda: from_joint(lambda x: tfd.JointDistributionNamed(dict(
            z=tfd.Sample(tfd.Normal(0., 1.), tf.shape(x)[0]),
            y=lambda z: tfd.Independent(tfd.Normal(z, 1.), 1))),
                           {'y': Y}, X),
        "'z' has shape .* a parameter for each example"),
    'examples that depend on each other': (
        of(z=tfd.Normal(0., 1.),
           y=lambda z: tfd.MultivariateNormalDiag(z * tf.ones(N), tf.ones(N))),
        'told apart by example'),
    'broadcast over examples': (
        lambda: from_joint(lambda x: tfd.JointDistributionNamed(dict(
            w=tfd.Normal(0., 1.),
            y=lambda w: tfd.Normal(w * x[:, :1], 1.))), {'y': Y}, X),
        r"'y' cannot be told apart.*shape \(2, 2\)"),
    'another number of examples': (
        of(z=tfd.Normal(0., 1.), y=lambda z: tfd.Sample(tfd.Normal(z, 1.), 5)),
        'model has 5 examples .* the data 12'),
    'a prior made of the examples': (
        lambda: from_joint(lambda x: tfd.JointDistributionNamed(dict(
            w=tfd.Normal(tf.reduce_mean(x), 1.),
            y=lambda w: tfd.Independent(
                tfd.Normal(w + x[:, 0], 1.), 1))), {'y': Y}, X),
        "prior of the part 'w' depends on the examples"),
    'a prior made of the number of examples': (
        lambda: from_joint(lambda x: tfd.JointDistributionNamed(dict(
            w=tfd.Normal(0., 1. / tf.cast(tf.shape(x)[0], tf.float32)),
            y=lambda w: tfd.Independent(
                tfd.Normal(w + x[:, 0], 1.), 1))), {'y': Y}, X),
        "prior of the part 'w' depends on the examples"),
    'a trend over the batch': (
        lambda: from_joint(lambda x: tfd.JointDistributionNamed(dict(
            w=tfd.Normal(0., 1.),
            y=lambda w: tfd.Independent(tfd.Normal(
                w * tf.range(tf.cast(tf.shape(x)[0], tf.float32)), 1.), 1))),
                           {'y': Y}, X),
        'may not depend on the others'),
    'data normalized in the model': (
        lambda: from_joint(lambda x: tfd.JointDistributionNamed(dict(
            w=tfd.Sample(tfd.Normal(0., 1.), 2),
            y=lambda w: tfd.Independent(tfd.Normal(tf.linalg.matvec(
                (x - tf.reduce_mean(x, 0)) / tf.math.reduce_std(x, 0), w),
                                                   1.), 1))), {'y': Y}, X),
        'may not depend on the others'),
    'covariates of float64': (
        lambda: from_joint(regression, {'y': Y}, X.astype(np.float64)),
        r'float64: convert them .* tf.cast\(x, tf.float32\)'),
    'an integer part': (
        of(k=tfd.Categorical(logits=[0., 0.]),
           y=lambda k: tfd.Sample(
               tfd.Normal(tf.cast(k, tf.float32), 1.), N)),
        "'k' of the joint distribution is int32"),
    'a batch of models': (
        of(w=tfd.Normal(tf.zeros(3), 1.),
           y=lambda w: tfd.Sample(tfd.Normal(w[0], 1.), N)),
        r"'w' of the joint distribution has the batch shape \(3,\)"),
    'a wrong name': (
        lambda: from_joint(regression, {'z': Y}, X), "data has 'z'.*w, y"),
    'nothing to sample': (
        lambda: from_joint(tfd.JointDistributionNamed(
            dict(y=tfd.Sample(tfd.Normal(0., 1.), N))), {'y': Y}),
        'nothing to sample'),
    'covariates forgotten': (
        lambda: from_joint(regression, {'y': Y}), 'no covariates to call'),
    'covariates too many': (
        lambda: from_joint(regression(X), {'y': Y}, X), 'no function of them'),
    'no dict': (lambda: from_joint(regression, Y, X), 'a dict of the observed'),
    'no joint distribution': (
        lambda: from_joint(tfd.Normal(0., 1.), {'y': Y}),
        'has to be a tfd.JointDistribution'),
    'rows of other length': (
        lambda: from_joint(regression, {'y': Y[:5]}, X), 'different leading'),
}


@pytest.mark.slow
def test_a_pass_over_many_rows_traces_the_model_once():
  """To trace it takes longer than thousands of rows do."""
  num_rows, num_calls = 20_000, 0
  y = np.random.default_rng(1).normal(size=num_rows).astype(np.float32)

  def model(x):
    nonlocal num_calls
    num_calls += 1
    return tfd.JointDistributionNamed(dict(
        mu=tfd.Normal(0., 2.), tau=tfd.HalfNormal(1.),
        y=lambda mu, tau: tfd.Independent(tfd.Normal(mu + x, tau), 1)))

  posterior = from_joint(model, {'y': y}, covariates=tf.zeros([num_rows]))
  anchor = posterior.sample_prior(seed=1)
  kernel = sgmcmc.SGLD(
      posterior, 1e-6, gradient_estimator=sgmcmc.gradients.ControlVariate(
      10, anchor=anchor, rows_per_chunk=200))
  before = num_calls
  results = kernel.bootstrap_results(anchor)
  assert num_calls - before < 30
  before = num_calls
  again = kernel.bootstrap_results(anchor)
  assert num_calls == before
  for found in (results, again):
    gradient = found.gradient_estimator_results.anchor.gradients[0]
    theta = posterior.constrain(anchor)
    np.testing.assert_allclose(
        gradient, tf.reduce_sum(y - theta['mu']) / theta['tau']**2, rtol=1e-4)


@pytest.mark.slow
def test_each_chain_has_a_minibatch_of_its_own():
  posterior = from_joint(regression, {'y': Y}, X)
  w = tf.constant(RANDOM.normal(size=[2, 3, 2]), tf.float32)
  rows = tf.constant(RANDOM.integers(0, N, size=[2, 3, 4]))
  together = posterior.log_likelihood(w, batch=posterior.gather(rows))
  alone = tf.function(posterior.log_likelihood, autograph=False)
  for k in np.ndindex(2, 3):
    np.testing.assert_allclose(
        together[k], alone(w[k], batch=posterior.gather(rows[k])), rtol=1e-5)


@pytest.mark.weekly_after(1)
@pytest.mark.slow
@pytest.mark.parametrize('k', [0, 2, 4], ids=['named', 'coroutine', 'list'])
def test_predictive_samples_have_the_model_s_law(k):
  """Given draws of mu: mean, variance, and rows of a sample that share mu."""
  make, kind, name = KINDS[k]
  _, given = make(kind)
  covariates = {'x': tf.constant(X), 'group': tf.constant(GROUP)}
  posterior = from_joint(given, {name: Y}, covariates)
  phi = [tf.repeat(part[:, tf.newaxis], 1500, axis=1)
         for part in posterior.sample_prior([2], seed=1)]
  new = {'x': X[:5].astype(np.float64), 'group': GROUP[:5]}
  found = posterior.sample_predictive(phi, new, seed=3)
  assert set(found) == {name} and found[name].shape == [2, 1500, 5]
  y = found[name].numpy()
  for chain in range(2):
    theta = posterior.constrain([part[chain, 0] for part in phi])
    joint = given({'x': tf.constant(X[:5]), 'group': tf.constant(GROUP[:5])})
    latent = theta if isinstance(theta, dict) else (
        theta._asdict() if hasattr(theta, '_asdict') else dict(zip(
            joint._flat_resolve_names(), theta)))
    law = joint.sample_distributions(**latent)[0]
    law = law[name] if isinstance(law, dict) else law[-1]
    z = (y[chain] - law.mean().numpy()) / law.stddev().numpy()
    assert scipy.stats.kstest(z.ravel(), 'norm').pvalue > 1e-7
    assert np.abs(np.corrcoef(z.T) - np.eye(5)).max() < 5.5 / np.sqrt(1500)
  again = posterior.sample_predictive(phi, new, seed=3)
  np.testing.assert_array_equal(y, again[name])


def test_posterior_predictive_of_a_conjugate_model():
  """mu ~ N(0, 2^2), y ~ N(mu, 1): the exact posterior's draws of mu."""
  posterior = from_joint(tfd.JointDistributionNamed(dict(
      mu=tfd.Normal(0., 2.), y=lambda mu: tfd.Sample(tfd.Normal(mu, 1.), N))),
                         {'y': Y})
  v = 1. / (N + 0.25)
  mean = v * Y.sum()
  mu = mean + np.sqrt(v) * np.random.default_rng(2).normal(size=4000)
  y = posterior.sample_predictive(mu.astype(np.float32), seed=1)['y'].numpy()
  assert y.shape == (4000, N)
  law = scipy.stats.norm(mean, np.sqrt(1. + v))
  assert scipy.stats.kstest(y[:, 0], law.cdf).pvalue > 1e-7
  # The rows of a sample share mu.
  total = y.sum(axis=1)
  law = scipy.stats.norm(N * mean, np.sqrt(N + N**2 * v))
  assert scipy.stats.kstest(total, law.cdf).pvalue > 1e-7


@pytest.mark.weekly
@pytest.mark.slow
def test_predictive_samples_of_draws():
  posterior = from_joint(regression, {'y': Y}, X)
  draws = sgmcmc.sample(
      sgmcmc.SGLD(posterior, 1e-3), 10, posterior.sample_prior([3], seed=0),
      progress_bar=False, seed=1)
  y = posterior.sample_predictive(draws, seed=2)['y']
  assert y.shape == [10, 3, N]
  np.testing.assert_array_equal(
      y, posterior.sample_predictive(draws.states, X, seed=2)['y'])
  with pytest.raises(ValueError, match='structure of those of the data'):
    posterior.sample_predictive(draws, {'x': X})
  doubled = posterior.transform([tfb.Scale(2.)] * len(draws.states))
  np.testing.assert_array_equal(y, doubled.sample_predictive(
      [state / 2. for state in draws.states], seed=2)['y'])
  alone = from_joint(tfd.JointDistributionNamed(dict(
      mu=tfd.Normal(0., 2.), y=lambda mu: tfd.Normal(mu, 1.))), {'y': Y})
  with pytest.raises(ValueError, match='no function of them'):
    alone.sample_predictive(tf.zeros([2]), X)
  assert alone.sample_predictive(tf.zeros([2]), seed=0)['y'].shape == [2]


@pytest.mark.slow
def test_a_tensor_is_a_state_of_one_part():
  posterior = from_joint(regression, {'y': Y.astype(int)}, X)
  assert posterior(tf.zeros([4, 2])).shape == [4]
  for shape in ([2], [4, 2], [1, 4, 2]):
    assert posterior.constrain(tf.zeros(shape))['w'].shape == shape
  moved = posterior.transform(tfb.Scale(2.))
  assert moved.sample_prior([4], seed=1).shape == [4, 2]


@pytest.mark.slow
def test_a_state_of_other_parts_is_told():
  posterior = from_joint(regression, {'y': Y}, X)
  with pytest.raises(ValueError, match=r'a list of w \[2\] is needed'):
    posterior(tf.zeros([3]))
  with pytest.raises(ValueError, match='sample_prior'):
    posterior.constrain([tf.zeros([2]), tf.zeros([])])


@pytest.mark.slow
@pytest.mark.weekly_after(4)
@pytest.mark.parametrize('case', CARELESS)
def test_careless_use_is_one_clear_sentence(case):
  make, message = CARELESS[case]
  with pytest.raises((ValueError, TypeError), match=f'(?s){message}'):
    make()


@pytest.mark.filterwarnings('error::pytest.PytestUnraisableExceptionWarning')
def test_caches_of_bijectors_die_quietly(caplog):
  posterior = from_joint(tfd.JointDistributionNamed(dict(
      mu=tfd.Normal(0., 2.), upper=lambda mu: tfd.Uniform(mu, mu + 3.),
      y=lambda upper: tfd.Sample(tfd.Normal(upper, 1.), N))), {'y': Y})
  start = posterior.sample_prior([2], seed=1)
  for _ in range(6):  # TensorFlow warns from the fifth on.
    posterior.constrain(start)
  gc.collect()
  assert 'retracing' not in caplog.text
