"""The programs that `benchmarks/accelerators.py` compiles, as TensorFlow makes.

A case is a model, a kernel and a batch; its program is that of one training
step of `fit`, or of `sample_chain`. That of plain SGD with momentum is made of
the same model, to compare with.
"""

from collections.abc import Callable
import functools
from typing import Any
from typing import NamedTuple
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks import networks
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.internal import compat

tfd = tfp.distributions

NUM_EXAMPLES = 60_000
PSGLD = functools.partial(
    sgmcmc.SGLD, preconditioner=sgmcmc.preconditioners.RMSProp())


class Case(NamedTuple):
  """A program.

  Attributes:
    name: What the page calls it.
    make_model: Callable without arguments; None for `sample_chain`.
    batch: The number of rows a step.
    kernel: Kernel for `fit`; None for what it takes by itself, 'SGD' for SGD
      with momentum.
    arguments: Of `PosteriorSampling`.
    policy: Keras' dtype policy.
    exact_products: Whether float32 products are to be of float32.
    num_chains: Of `sample_chain`.
    image: Shape of an example.
  """
  name: str
  make_model: Callable[[], keras.Model] | None
  batch: int
  kernel: Any = sgmcmc.SGHMC
  arguments: dict = dict(learning_rate=1e-3, momentum=0.9)  # noqa: RUF012
  policy: str = 'float32'
  exact_products: bool = False
  num_chains: int = 1
  image: tuple = (784,)

  @property
  def file(self):
    return ''.join(c if c.isalnum() else '_' for c in self.name)

  def sgd(self):
    """The case of the same model's step of SGD with momentum."""
    return self._replace(name=f'{self.name}, SGD', kernel='SGD')


def _fit(case):
  """A model, a batch, and the callback of `fit`, None for SGD."""
  keras.config.set_dtype_policy(case.policy)
  try:
    model = case.make_model()
  finally:
    keras.config.set_dtype_policy('float32')
  model.compile(
      keras.optimizers.SGD(1e-3, momentum=0.9),
      keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      jit_compile=False)
  rng = np.random.default_rng(0)
  x = tf.constant(rng.uniform(size=[case.batch, *case.image]), tf.float32)
  y = tf.constant(rng.integers(0, 10, case.batch), tf.int32)
  if case.kernel == 'SGD':
    return model, x, y, None
  return model, x, y, sgmcmc.keras.PosteriorSampling(
      case.kernel, num_examples=NUM_EXAMPLES, prior=tfd.Normal(0., 1.),
      seed=0, **case.arguments)


def fit_runner(case):
  """A function that makes so many steps of `fit`."""
  model, x, y, sampling = _fit(case)
  data = tf.data.Dataset.from_tensors((x, y)).repeat()

  def run(num_steps):
    model.fit(
        data, steps_per_epoch=num_steps, verbose=0,
        callbacks=[] if sampling is None else [sampling])

  return run


def fit_program(case):
  """The compiled step of `fit`, its arguments, and the number of parameters."""
  model, x, y, sampling = _fit(case)
  model.fit(x[:2], y[:2], batch_size=2, verbose=0,
            callbacks=[] if sampling is None else [sampling])
  step = (
      model.train_step if sampling is None
      else sampling._chain._step.train_step)
  program = tf.function(
      lambda x, y: step((x, y)), jit_compile=True, autograph=False)
  return program, (x, y), model.count_params()


def chain_program(case, num_features=20, num_steps=1000):
  """README's logistic regression, `num_steps` steps of many chains."""
  x = tf.random.stateless_normal([100_000, num_features], [0, 1])
  y = tf.cast(tf.reduce_sum(x, axis=-1) > 0., tf.float32)

  def log_likelihood(theta, batch):
    logits = tf.einsum('...nd,...d->...n', batch['x'], theta)
    return tfd.Bernoulli(logits=logits).log_prob(batch['y'])

  def run(x, y):
    posterior = sgmcmc.Posterior(
        tfd.MultivariateNormalDiag(tf.zeros(num_features)).log_prob,
        log_likelihood, data={'x': x, 'y': y})
    kernel = sgmcmc.SGHMC(
        posterior, step_size=0.002, friction=100.,
        gradient_estimator=sgmcmc.gradients.Uniform(case.batch))
    return tfp.mcmc.sample_chain(
        1, tf.zeros([case.num_chains, num_features]), kernel=kernel,
        num_burnin_steps=num_steps - 1, trace_fn=None, seed=[0, 1])

  program = tf.function(run, jit_compile=True, autograph=False)
  return program, (x, y), num_features


def make(case):
  """The compiled function, its arguments, and the number of parameters."""
  tf.config.experimental.enable_tensor_float_32_execution(
      not case.exact_products)
  return (chain_program if case.make_model is None else fit_program)(case)


def serialized(program, arguments, is_for_tpu):
  """The program as the compiler of an accelerator takes it, as bytes."""
  with mock.patch.multiple(
      compat, sees_tpus=lambda: is_for_tpu, sees_accelerators=lambda: True):
    return program.experimental_get_compiler_ir(*arguments)(
        stage='stablehlo_serialized')


perceptron, convolutional = networks.perceptron, networks.convolutional
RESNET = dict(make_model=networks.resnet20, image=(32, 32, 3))

# By what they differ from the case before.
CASES = (
    Case('perceptron', perceptron, 104),
    Case('perceptron, batch 1,024', perceptron, 1024),
    Case('perceptron, batch 8,192', perceptron, 8192),
    Case('perceptron, float32 products', perceptron, 104, exact_products=True),
    Case('perceptron, the default', perceptron, 104, None,
         dict(start_epoch=0)),
    Case('perceptron, SGNHT', perceptron, 104, functools.partial(
        sgmcmc.SGNHT, integrator='euler')),
    Case('perceptron, pSGLD', perceptron, 104, PSGLD, dict(learning_rate=1e-3)),
    Case('perceptron, SBPS', perceptron, 104,
         sgmcmc.StochasticBouncyParticleSampler, dict(
             num_steps_between_results=sgmcmc.keras.DrawSchedule(
                 interval=0.01))),
    Case('perceptron, EWSG', perceptron, 104, functools.partial(
        sgmcmc.SGHMC, gradient_estimator=sgmcmc.gradients.ExponentiallyWeighted(
            base=sgmcmc.gradients.Reshuffled()))),
    Case('convolutional network', convolutional, 104),
    Case('convolutional network, the default', convolutional, 104, None,
         dict(start_epoch=0)),
    Case('perceptron of width 2,048',
         functools.partial(perceptron, 2048, 2048), 1024),
    Case('perceptron of width 8,192',
         functools.partial(perceptron, 8192, 8192), 1024),
    Case('ResNet-20', batch=512, **RESNET),
    Case('ResNet-20, mixed bfloat16', batch=512, policy='mixed_bfloat16',
         **RESNET),
    *(Case(f'logistic regression, {n:,} chains', None, 100, num_chains=n)
      for n in (1, 50, 1000)),
)

BY_NAME = {case.name: case for case in CASES}
