"""The step size of microcanonical dynamics, by the error in its energy.

With d coordinates, dE the error in the energy that a step makes (`energy_error`
of the results), and w_k a target that falls from the first to the last of two
numbers over the n steps of the adaptation,

  x = dE^2 / (d w_k),  W = exp(-(log x)^2 / 162),
  A <- 0.98 A + W x / h^6,  B <- 0.98 B + W,  h = (A / B)^(-1/6),

since dE is of order h^3: so the mean of dE^2 / d comes to w_k. W keeps errors
that are far off, in either direction, from counting for much. Where h would
grow by more than a factor of 3 it grows by 3, and A and B begin anew: the error
of such short steps is rounding, and says nothing of longer ones.

The decoherence length L is the size of the posterior: the root of the summed
variances of theta / s, over the paths of all chains together. It is measured in
three windows, which end after n / 4, n / 2 and n steps, and used from the end
of each. Before it is sqrt(d), the size for unit variances: with a short L a
chain diffuses, and takes long to get from its start. In the posterior of a
network a single chain sees but a part of what several chains see together, and
then takes L from that part.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfp_sgmcmc import errors
from tfp_sgmcmc import kernel as kernel_lib
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.mcmc import adaptation
from tfp_sgmcmc.mcmc import guard
from tfp_sgmcmc.mcmc import microcanonical

__all__ = [
    'EnergyErrorStepSizeAdaptation', 'EnergyErrorStepSizeAdaptationResults']

_MOST_GROWTH, _LARGEST_ERROR = 3., 1e3
# Where windows end, as shares of the adaptation.
_WINDOWS = (0.25, 0.5, 1.)


class Moments(NamedTuple):
  """Of the states of a window, for each part, in its shape.

  Attributes:
    mean: List with the mean of theta.
    square: List with the sum of squared deviations.
  """
  mean: list[tf.Tensor]
  square: list[tf.Tensor]


@kernel_lib.refuses_corrections
class EnergyErrorStepSizeAdaptationResults(NamedTuple):
  """Results of `EnergyErrorStepSizeAdaptation`.

  Attributes:
    inner_results: The inner kernel's results.
    step_size: Scalar, h of the next step.
    weight_sum: Scalar, B; A is B / h^6.
    decoherence_length: Scalar, L of the next step; `()` if L was given to the
      inner kernel, or it has minibatches.
    path: `Moments` of the window; `()` likewise.

  And the method `failure(state)`; see `errors`.
  """
  inner_results: Any
  step_size: tf.Tensor
  weight_sum: tf.Tensor
  decoherence_length: Any
  path: Any

  step = adaptation.step  # type: ignore[misc]

  def failure(self, state: hints.State) -> errors.Failure | None:
    """Why a chain cannot go on, or None."""
    return adaptation.failure(self, state, lambda advice: advice)


class EnergyErrorStepSizeAdaptation(adaptation.AdaptingKernel):
  """Finds the step size, and the length, of `MicrocanonicalLangevin`.

  In the first n = `num_adaptation_steps` steps h follows the error dE in the
  energy of a step, so that E[dE^2] / d comes to a target that falls from
  `target[0]` to `target[1]`. From then on the chain is that of the inner kernel
  with the step size `results.step_size`.

    h = (A / B)^(-1/6),  A <- 0.98 A + W x / h^6,  B <- 0.98 B + W,
    x = dE^2 / (d target),  W = exp(-(log x)^2 / 162)

  h grows by no more than a factor of 3 in a step. If a step of the adaptation
  ends at a state that is not finite, or with an error 1,000 times the target,
  the chain returns to where the step began, h is halved, and A and B are reset.

  Let the adaptation lie within the burn-in (`num_burnin_steps` at least
  `num_adaptation_steps`). All chains share h. It costs no gradient: dE is among
  the inner kernel's results. Both log densities in dE are of one minibatch, so
  dE is the error of the integrator alone, without minibatch noise. That noise
  makes some directions hot and others cold, more so with a larger h. This
  adaptation does not see it (`MicrocanonicalLangevin` says how large it is). So
  use it with the exact gradient, or with gradients of little noise.

  It also finds the decoherence length L, if the inner kernel is given none and
  has the exact gradient of all data. L is the root of the sum, over
  coordinates, of the variances of theta / s over the paths of all chains
  together, in windows that end after n / 4, n / 2 and n steps. For unit
  variances that is sqrt(d), with which it starts. [1] starts so too, takes the
  variances along each chain by itself, and then measures autocorrelations; this
  does not. If chains are far apart, as those of networks are, L is larger here.
  With minibatches L is not changed, by default ten steps: a longer L increases
  the bias from noise (`MicrocanonicalLangevin` says by how much).

  The default, from 0.5 to 0.1, is that of [1] for networks, where steps may be
  long. The bias of moments is then not small. For 3% in variances take
  `target=(5e-4, 5e-4)`, the 0.0005 in the docstring of
  `MicrocanonicalLangevin`.

  #### Examples

  >>> scales = tf.constant([1.] * 10 + [2.] * 10)
  >>> kernel = sgmcmc.EnergyErrorStepSizeAdaptation(
  ...     sgmcmc.MicrocanonicalLangevin(
  ...         lambda x: -tf.reduce_sum((x / scales)**2, axis=-1) / 2.,
  ...         step_size=0.01, decoherence_length=5.),
  ...     num_adaptation_steps=500, target=(5e-4, 5e-4))
  >>> draws = sgmcmc.sample(
  ...     kernel, 200, tf.zeros([20, 20]), num_burnin_steps=500, seed=1,
  ...     num_steps_between_results=4, progress_bar=False)
  >>> variances = tf.math.reduce_variance(draws.states, axis=[0, 1]) / scales**2
  >>> bool(tf.reduce_all(abs(variances - 1.) < 0.15))
  True

  In `fit`, with a batch of all rows. There each chain adapts by itself, so that
  a network needs to be told L: the root of the number of its weights.

  >>> x = tf.linspace([-1.], [1.], 100)
  >>> y = tf.sin(3. * x) + tf.random.stateless_normal([100, 1], [0, 1], 0., 0.1)
  >>> model = keras.Sequential([
  ...     keras.Input([1]), keras.layers.Dense(20, activation='relu'),
  ...     keras.layers.Dense(2)])
  >>> model.compile('adam', sgmcmc.keras.GaussianLikelihood())
  >>> def make_kernel(target):
  ...   return sgmcmc.EnergyErrorStepSizeAdaptation(
  ...       sgmcmc.MicrocanonicalLangevin(
  ...           target, step_size=0.001,
  ...           decoherence_length=model.count_params()**0.5),
  ...       num_adaptation_steps=100)
  >>> sampling = sgmcmc.keras.PosteriorSampling(
  ...     make_kernel, prior={'.*': tfd.Normal(0., 1.)}, start_epoch=50,
  ...     num_burnin_steps=100, num_steps_between_results=4)
  >>> _ = model.fit(
  ...     x, y, batch_size=100, epochs=200, verbose=0, callbacks=[sampling])
  >>> len(sampling.posterior)
  10

  #### References

  [1]: Emanuel Sommer, Jakob Robnik, Giorgi Nozadze, Uros Seljak, David
       Ruegamer. Microcanonical Langevin Ensembles: Advancing the Sampling of
       Bayesian Neural Networks. _ICLR_, 2025; arXiv:2502.06335.
  [2]: Jakob Robnik, G. Bruno De Luca, Eva Silverstein, Uros Seljak.
       Microcanonical Hamiltonian Monte Carlo. _JMLR_, 2023; arXiv:2212.08549.
  """

  def __init__(
      self,
      inner_kernel: microcanonical.MicrocanonicalLangevin,
      num_adaptation_steps: hints.TensorLike,
      *,
      target: tuple[float, float] = (0.5, 0.1),
      name: str | None = None,
  ):
    """Makes the kernel.

    Args:
      inner_kernel: `MicrocanonicalLangevin` with the step size to start from: a
        positive number.
      num_adaptation_steps: n: Python `int`, or a scalar tensor or variable of
        integers. Zero leaves the step size alone.
      target: Two positive numbers, the first and the last target of the mean of
        dE^2 / d.
      name: Python `str`, the name of the operations.

    Raises:
      ValueError: If the step size is a schedule, or a number is out of its
        range.
      TypeError: If the inner kernel is not a `MicrocanonicalLangevin`.
    """
    if not isinstance(inner_kernel, microcanonical.MicrocanonicalLangevin):
      raise TypeError(
          f'inner_kernel is {inner_kernel!r}: it has to be a '
          'MicrocanonicalLangevin. For SGNHT take SelfTuning, for SGLD and '
          'SGHMC TemperatureStepSizeAdaptation.')
    if not isinstance(target, (tuple, list)) or len(target) != 2:
      raise ValueError(
          f'target is {target!r}: two numbers are needed, the mean of dE^2 / d '
          'at the start and at the end of the adaptation, (0.5, 0.1) say.')
    for value in target:
      checks.positive_number('target', value)
    super().__init__(dict(
        inner_kernel=inner_kernel,
        num_adaptation_steps=num_adaptation_steps,
        target=tuple(target),
        name=name))

  def adapted_kernel(
      self, results: EnergyErrorStepSizeAdaptationResults,
  ) -> microcanonical.MicrocanonicalLangevin:
    """The inner kernel with the step size and length that were found.

    Args:
      results: Results of this kernel.

    Returns:
      kernel: Another `inner_kernel`.
    """
    found = dict(step_size=results.step_size)
    if self._finds_length:
      found['decoherence_length'] = results.decoherence_length
    return self.inner_kernel.copy(**found)

  @property
  def _finds_length(self):
    inner = self.inner_kernel
    return (
        inner.parameters['decoherence_length'] is None and inner.sees_all_data)

  def _bootstrap(self, parts, seeds):
    inner = self.inner_kernel.bootstrap_results(parts, seed=seeds.inner)
    dtype = self._dtype(inner)
    step_size = states.cast(self.inner_kernel.parameters['step_size'], dtype)
    length, path = (), ()
    if self._finds_length:
      length = microcanonical.STEPS_TO_FORGET * step_size
      path = Moments(list(parts), [tf.zeros_like(part) for part in parts])
    return EnergyErrorStepSizeAdaptationResults(
        inner, step_size, tf.zeros([], dtype), length, path)

  def _one_step(self, parts, previous, seeds):
    old = previous.inner_results
    new_parts, new = self.adapted_kernel(previous).one_step(
        parts, old, seed=seeds.inner)
    dtype = previous.step_size.dtype
    number = self._number(dtype)
    count = tf.cast(new.step, dtype)
    is_adapting = count <= number
    first, last = self._parameters['target']
    target = first + (last - first) * tf.minimum(
        count / tf.maximum(number, 1.), 1.)
    size = tf.cast(self.inner_kernel.num_coordinates(new_parts, new), dtype)
    energy_error = tf.cast(new.energy_error, dtype)
    scale = tf.sqrt(size * target)
    error, weight = adaptation.weighed(
        energy_error, scale, new.target_log_prob)
    found, weight_sum = adaptation.step_size_of_errors(
        previous.step_size, previous.weight_sum, tf.reduce_mean(error),
        tf.reduce_mean(weight), 1.)
    is_far = found > _MOST_GROWTH * previous.step_size
    found = tf.minimum(found, _MOST_GROWTH * previous.step_size)
    weight_sum = tf.where(is_far, tf.zeros_like(weight_sum), weight_sum)
    has_failed = is_adapting & ~(
        tf.math.is_finite(new.target_log_prob)
        & (tf.abs(energy_error) < _LARGEST_ERROR * scale))
    any_failed = tf.reduce_any(has_failed)
    back = old._replace(
        step=new.step, energy_error=tf.zeros_like(old.energy_error))
    next_parts = states.select(has_failed, parts, new_parts)
    next_inner = guard.select_by_chain(has_failed, back, new)
    length, path = previous.decoherence_length, previous.path
    if self._finds_length:
      # Before the first window ends L is the size for unit variances.
      length = tf.where(
          count <= tf.floor(_WINDOWS[0] * number), tf.sqrt(size), length)
      length, path = self._length(
          length, path, previous.step_size, next_parts, next_inner, count,
          number)
    return next_parts, EnergyErrorStepSizeAdaptationResults(
        inner_results=next_inner,
        step_size=tf.where(
            any_failed, previous.step_size / 2.,
            tf.where(is_adapting, found, previous.step_size)),
        weight_sum=tf.where(
            any_failed, tf.zeros_like(weight_sum), tf.where(
                is_adapting, weight_sum, previous.weight_sum)),
        decoherence_length=length,
        path=path)

  def _length(
      self, length, path, step_size, parts, inner_results, count, number):
    """L, at least h, and the moments with another state."""
    ends = [tf.floor(share * number) for share in _WINDOWS]
    begin = sum(
        tf.where(count > end, end - before, 0.)
        for before, end in zip([0., *ends], ends))
    path = with_state(path, parts, count - begin)
    rank = inner_results.target_log_prob.shape.rank
    squared = self.inner_kernel.squared_length(
        [square / tf.cast(count - begin, square.dtype) + between_chains(
            mean, rank) for mean, square in zip(*path)], inner_results)
    found = tf.maximum(
        tf.sqrt(tf.reduce_mean(tf.cast(squared, length.dtype))), step_size)
    return tf.where(
        tf.reduce_any([tf.equal(count, end) for end in ends]), found,
        length), path


def between_chains(mean: tf.Tensor, chain_rank: int) -> tf.Tensor:
  """The squared distance of each chain's mean from that of all chains.

  Args:
    mean: The means of a part, with the axes of chains first.
    chain_rank: Python `int`, how many these are.

  Returns:
    squared: In the shape of `mean`.
  """
  return tf.square(mean - tf.reduce_mean(
      mean, axis=list(range(chain_rank)), keepdims=True))


def with_state(
    path: Moments, parts: Sequence[tf.Tensor], number: tf.Tensor) -> Moments:
  """The moments of a window with one state more (Welford's recursion).

  Args:
    path: `Moments`; of any window, where the state is the first of another.
    parts: List, the state.
    number: Scalar, how many states the window has with it.

  Returns:
    path: `Moments`.
  """
  means, squares = [], []
  for x, mean, square in zip(parts, *path):
    new = mean + (x - mean) / tf.cast(number, x.dtype)
    # Of the first state the deviation from the new mean is zero.
    kept = tf.where(number > 1., square, tf.zeros_like(square))
    means.append(new)
    squares.append(kept + (x - mean) * (x - new))
  return Moments(means, squares)
