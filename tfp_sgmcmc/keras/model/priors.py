"""Priors over the weights of a Keras model.

  log p(theta) = sum over trainable weights w of log p_w(w)
"""

from collections.abc import Callable
from collections.abc import Sequence
import math
import re
from typing import Any
import warnings

import keras
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import states
from tfp_sgmcmc.keras.model import losses
from tfp_sgmcmc.keras.model import raw_inputs
from tfp_sgmcmc.keras.model import scale_mixture

__all__ = [
    'WeightPrior', 'bounded_normal', 'chosen', 'he_normal', 'warn_of_few_rows']

# The largest number of inputs at which N(0, 1) was found to do.
_MOST_INPUTS = 128
# The largest product of the gains of inner kernels at which N(0, 1) did.
_MOST_GAIN = 100**3
# The gain of dense kernels before batch normalisation.
_NORMALISED_GAIN = 8.
# Of LoRA's matrices. The product of two of N(0, 1) would change each weight of
# a pretrained kernel by more than its own size.
_ADAPTER_STDDEV = 0.1

tfd = tfp.distributions


def he_normal(
    scale: float = 1., bias_scale: float = 1.,
) -> Callable[[keras.Variable], tfp.distributions.Distribution]:
  """A Gaussian prior scaled as He et al. scale initial weights.

    w ~ N(0, scale^2 2 / fan_in)   for kernels,
    b ~ N(0, bias_scale^2)         for vectors and scalars,

  with fan_in the number of inputs of a unit, the product of all axes of the
  kernel but the last. With it the prior of a network's function does not
  depend on the widths of its layers.

  Args:
    scale: Positive number, the standard deviation over He's.
    bias_scale: Positive number, the standard deviation of biases.

  Returns:
    prior: Callable of a variable, for `PosteriorSampling(prior=...)`.

  Raises:
    ValueError: If a scale is not positive.

  #### Examples

  >>> layer = keras.layers.Dense(3)
  >>> layer.build([None, 8])
  >>> float(sgmcmc.keras.he_normal()(layer.kernel).stddev())
  0.5
  """
  checks.numeric('scale', scale, 0.)
  checks.numeric('bias_scale', bias_scale, 0.)

  def prior(variable):
    dtype = tf.as_dtype(variable.dtype)
    if len(variable.shape) < 2:
      stddev = bias_scale
    else:
      stddev = scale * math.sqrt(2. / scale_mixture.fan_in(variable.shape))
    return tfd.Normal(tf.zeros([], dtype), tf.constant(stddev, dtype))

  return prior


def bounded_normal(
    variables: Sequence[keras.Variable],
    all_weights: Sequence[keras.Variable] = (),
) -> Callable[[keras.Variable], tfp.distributions.Distribution]:
  """The prior where none is given: N(0, 1), and narrower in wide or deep nets.

    w ~ N(0, min(1, 128 / fan_in))   for kernels, recurrent ones too,
    w ~ N(0, min(1, g / fan_in))     for inner kernels of deep stacks,
    w ~ N(0, min(1, 8 / fan_in))     for dense kernels before batch
                                     normalisation,
    w ~ N(0, 1 / fan_in)             for kernels of attention,
    w ~ N(0, 0.1^2)                  for the two matrices of LoRA,
    w ~ N(0, 1)                      for all others, embeddings among them,

  with fan_in the number of inputs of a unit. Under N(0, 1) the variance of what
  a unit sums up grows with the number of its inputs: at 64 to 128 inputs it
  predicted well, with 500 to 1,600 it fitted too much. In attention queries and
  keys are multiplied: with d inputs each under N(0, 1) a score has a standard
  deviation of d, and nearly all the weight goes to one place. Under
  N(0, 1 / fan_in) what attention adds to its inputs is as large as they are.

  A stack is a run of kernels of dense layers, each of which has as many inputs
  as the one before has units, with no normalisation between, in the order of
  `variables`. So networks side by side may count as one. Its inner kernels are
  all but the first and the last. Each multiplies the variance by its gain,
  min(fan_in, 128). Where the product G of these gains is more than 10^6, that
  of three kernels of 100 inputs, each is taken to the same power, so that the
  product is 10^6; but none below the gain 2 of He et al. (2015), with which
  rectified units keep a variance:

    g = max(2, min(fan_in, 128)^a),   a = log(10^6) / log(max(10^6, G)).

  So nothing changes in up to four hidden layers of 100 units. In deep networks
  under N(0, 1) a small change of the inputs changes the outputs at random. Of
  convolutions, up to ten in a row, a narrower prior was no better.

  Batch normalisation divides by standard deviations that are fixed before the
  first step (`moving_statistics`), when the kernel before has values of a
  variance near 1 / fan_in. Under N(0, 1) its outputs then have a variance near
  fan_in, in place of 1, and draws were far too sure of themselves. After
  convolutions a narrower prior was no better.

  Kernels of attention are those of layers named query, key, value and
  attention_output, as Keras names them. A dense layer named value is none: so
  a head is named that values a state.

  Args:
    variables: The trainable weights, in the model's order.
    all_weights: All its weights, `model.weights`, by which batch normalisation
      is known: its moving variance comes after the kernel, with none between.

  Returns:
    prior: Callable of a weight, of the distribution of each of its values, in
      its dtype.

  #### Examples

  >>> layer = keras.layers.Dense(3)
  >>> layer.build([None, 512])
  >>> from tfp_sgmcmc.keras.model import priors
  >>> prior = priors.bounded_normal(layer.weights)
  >>> [float(prior(w).stddev()) for w in layer.weights]
  [0.5, 1.0]
  """
  gains = {}
  for stack in _stacks(variables):
    inner = stack[1:-1]
    gains.update(zip((kernel.path for kernel in inner), _bounded_gains(inner)))
  gains.update((kernel.path, _NORMALISED_GAIN)
               for kernel in _normalised(all_weights))

  def prior(variable):
    dtype = tf.as_dtype(variable.dtype)
    if variable.name in ('kernel', 'recurrent_kernel'):
      gain = gains.get(variable.path, _MOST_INPUTS)
      stddev = min(1., gain / scale_mixture.fan_in(variable.shape),
                   _of_attention(variable))**0.5
    else:
      stddev = _ADAPTER_STDDEV if variable.name.startswith('lora_') else 1.
    return tfd.Normal(tf.zeros([], dtype), tf.constant(stddev, dtype))

  return prior


def _stacks(variables):
  """Runs of dense kernels, each of the units of the one before.

  Whatever else has weights ends a run: normalisation, convolutions, attention.
  """
  stacks = [[]]
  for variable in variables:
    if variable.name == 'bias':
      continue
    is_dense = (variable.name == 'kernel' and len(variable.shape) == 2
                and _of_attention(variable) == math.inf)
    if not is_dense or (
        stacks[-1] and stacks[-1][-1].shape[-1] != variable.shape[0]):
      stacks.append([])
    if is_dense:
      stacks[-1].append(variable)
  return stacks


def _normalised(weights):
  """Dense kernels that batch normalisation comes after, in this order."""
  before = None
  for weight in weights:
    if weight.name == 'kernel':
      before = weight if len(weight.shape) == 2 else None
    elif weight.name == 'moving_variance':
      if before is not None and before.shape[-1:] == weight.shape:
        yield before
      before = None
    elif weight.name not in ('bias', 'gamma', 'beta', 'moving_mean'):
      before = None  # A recurrent kernel, for one.


def _bounded_gains(kernels):
  """The gains of the inner kernels of a stack; in deep ones smaller powers."""
  gains = [min(scale_mixture.fan_in(kernel.shape), _MOST_INPUTS)
           for kernel in kernels]
  power = math.log(_MOST_GAIN) / math.log(max(_MOST_GAIN, math.prod(gains)))
  return [max(2., gain**power) for gain in gains]


def _of_attention(variable):
  """1 / fan_in of a kernel of attention; infinity for others."""
  layer = variable.path.rpartition('/')[0].rpartition('/')[2]
  shape = variable.shape
  if layer == 'attention_output':
    return 1 / math.prod(shape[:min(2, len(shape) - 1)])
  # The axes are inputs, heads and their size; those of a dense layer two.
  is_projection = len(shape) == 3 or len(shape) == 2 and layer != 'value'
  if layer in ('query', 'key', 'value') and is_projection:
    return 1 / shape[0]
  return math.inf


def chosen(
    prior: hints.Prior,
    is_default: bool,
    model: keras.Model,
    raw: raw_inputs.RawInputs,
    say: Callable[[str], None],
) -> Any:
  """The prior to take; warns where nothing, or two things, say it.

  Args:
    prior: The user's, as `WeightPrior` takes it; None for none.
    is_default: Python `bool`, whether it was left to us.
    model: Built `keras.Model`. Its regularisers and other added losses are a
      prior.
    raw: `RawInputs`. The default prior is that of their coordinates.
    say: Callable of a sentence, to show it.

  Returns:
    prior: As `WeightPrior` takes it.
  """
  has_losses = bool(model.losses)
  if is_default:
    say('the prior is ' + (
        "the model's regularisers and other added losses." if has_losses
        else 'N(0, 1) for each weight, narrower where a kernel has more than '
        '128 inputs: N(0, 128 / inputs); N(0, 1 / inputs) for attention; '
        'N(0, 0.01) for LoRA; narrower too in deep networks, and before '
        'batch normalisation.'))
    if raw and not has_losses:
      warnings.warn(
          'Inputs of the model, or of its trained layers, are not '
          'standardised. The weights that read them are sampled, and have '
          'their prior, as if they were. But the optimizer trains with the '
          'inputs as they are, and may end far off. Better standardise them '
          'before: by keras.layers.Normalization, or Rescaling(1 / 255) for '
          'pixels.', stacklevel=2)
    return prior if has_losses else bounded_normal(
        model.trainable_variables, model.weights)
  if prior is None and not has_losses:
    warnings.warn(
        'There is no prior and the model has no regularisers: the prior is '
        'constant, and the posterior may not be one that can be sampled. Pass '
        'prior=tfd.Normal(0., 1.), say.', stacklevel=2)
  if prior is not None and has_losses:
    warnings.warn(
        'The model has regularisers or other added losses, and a prior is '
        'given: both count. Remove one of them if they mean the same.',
        stacklevel=2)
  return prior


def warn_of_few_rows(model: keras.Model, num_examples: int) -> None:
  """Warns where the default prior is far wider than a regression needs.

  That is, where the first weights that are trained are the kernel of a dense
  layer, with more inputs than there are rows, and a loss is a
  `GaussianLikelihood` or its kind.

  Args:
    model: Built and compiled `keras.Model` with the default prior.
    num_examples: Python `int`, N.
  """
  first = model.trainable_variables[0]
  is_of_dense = first.name == 'kernel' and any(
      variable is first for layer in compat.all_layers(model)
      if isinstance(layer, keras.layers.Dense)
      for variable in layer.trainable_variables)
  if not is_of_dense or not any(
      isinstance(loss, losses.LocationScale)
      for loss in keras.tree.flatten(model.loss)):
    return
  if first.shape[0] > num_examples:
    warnings.warn(
        f'{first.path!r} has {first.shape[0]} inputs, and there are '
        f'{num_examples} rows. The default prior lets a network vary far more '
        'between so few rows than targets do. If the inputs are columns of a '
        'standard scale, pass prior=sgmcmc.keras.he_normal(); else compare '
        'both by posterior.evaluate on rows held out.', stacklevel=2)


class WeightPrior:
  """The log prior density of a list of weights."""

  def __init__(self, prior: hints.Prior, variables: Sequence[keras.Variable]):
    """Finds a distribution for each weight.

    Args:
      prior: A distribution for all weights; a dict from layer names or regular
        expressions to distributions or callables; a callable of the variable
        that returns a distribution or a `ScaleMixture`; or None, for a constant
        density.
      variables: The trainable variables.

    Raises:
      ValueError: If a weight has no distribution, a key fits no weight, or a
        distribution does not fit the shape of its weight.
      TypeError: If something else than a distribution is given.
    """
    self._distributions = []
    self.dtype = tf.float64 if any(
        v.dtype == 'float64' for v in variables) else tf.float32
    used = set()
    for variable in variables:
      entry, key = prior, None
      if isinstance(prior, dict):
        key = _key(prior, variable)
        used.add(key)
        entry = prior[key]
      self._distributions.append(_distribution(entry, variable))
    unused = set(prior) - used if isinstance(prior, dict) else ()
    if unused:
      raise ValueError(
          f'The prior has entries that fit no weight: {sorted(unused)}. The '
          f'weights are {[v.path for v in variables]}: a key is a part of such '
          'a path (a layer name), or a regular expression for the whole path.')

  @property
  def scale_mixtures(self) -> list[scale_mixture.ScaleMixture | None]:
    """The prior of each weight whose scale is learned, None for the others."""
    return [
        distribution if isinstance(distribution, scale_mixture.ScaleMixture)
        else None for distribution in self._distributions]

  def log_prob(
      self,
      *parts: tf.Tensor,
      temperature: hints.Schedule = 1.,
  ) -> tf.Tensor:
    """The log prior density that a kernel at a temperature is given.

    Args:
      *parts: The weights.
      temperature: T, a scalar; it has a say where scales are learned.

    Returns:
      log_prob: Scalar.
    """
    terms, squares, constant = [], {}, 0.
    for distribution, part in zip(self._distributions, parts):
      scale = _scale_of_centred(distribution)
      if scale is None:
        terms.append(_log_prob(distribution, part, temperature))
      else:
        squares.setdefault((part.dtype, scale), []).append(
            states.half_square(part))
        constant -= part.shape.num_elements() * (
            math.log(scale) + 0.5 * math.log(2. * math.pi))
    terms += [tf.add_n(group) * -scale**-2.
              for (_, scale), group in squares.items()]
    return tf.add_n([
        tf.constant(constant, self.dtype),
        *(tf.cast(term, self.dtype) for term in terms)])


def _log_prob(distribution, part, temperature):
  """The log density of one weight, a scalar."""
  if distribution is None:
    # A constant density has a gradient too, of zeros.
    return tf.reduce_sum(0. * part)
  if isinstance(distribution, scale_mixture.ScaleMixture):
    return distribution.log_prob(part, temperature)
  log_prob = tf.convert_to_tensor(distribution.log_prob(part))
  if log_prob.shape.rank is None:  # Of a function of NumPy, say.
    return tf.reduce_sum(log_prob)
  return states.sum_event(log_prob, 0)


def _scale_of_centred(distribution):
  """The scale of a normal distribution about zero, None of any other.

  The density of many weights under these is had in one pass over each, and with
  few operations: it is due at every step.
  """
  if type(distribution) is not tfd.Normal or distribution.batch_shape.rank != 0:
    return None
  loc, scale = (
      tf.get_static_value(tf.convert_to_tensor(x))
      for x in (distribution.loc, distribution.scale))
  return None if loc != 0. or scale is None else float(scale)


def _key(prior, variable):
  """The entry for a variable: a layer's name first, then an expression."""
  names = variable.path.split('/')
  for key in prior:
    if key in names:
      return key
  for key in prior:
    if _matches(key, variable.path):
      return key
  raise ValueError(
      f'The prior has no entry for the weight {variable.path!r}; its entries '
      f'are {list(prior)}. A key is a part of the path (a layer name), or a '
      "regular expression for the whole path: '.*' as the last key takes all "
      'the rest.')


def _matches(key, path):
  """Whether a key is a regular expression for a whole path."""
  try:
    return bool(re.fullmatch(key, path))
  except (re.error, TypeError) as error:
    raise ValueError(
        f'The prior has the key {key!r}, which is no layer name and no regular '
        f'expression ({error}): a key is a text, a part of the path of a '
        f'weight such as {path!r}, or a regular expression for the whole '
        'path.') from error


def _distribution(entry, variable):
  if entry is None:
    return None
  what = f'The prior of the weight {variable.path!r}'
  if isinstance(entry, type) or any(
      entry is maker for maker in (he_normal, scale_mixture.learned_scale)):
    raise TypeError(
        f'{what} is {entry.__name__} itself: call it with its arguments, as '
        'in tfd.Normal(0., 1.) or sgmcmc.keras.he_normal().')
  if not isinstance(entry, tfd.Distribution) and callable(entry):
    entry = entry(variable)
  if isinstance(entry, scale_mixture.ScaleMixture):
    return entry
  if not isinstance(entry, tfd.Distribution):
    raise TypeError(
        f'{what} is {checks.shorten(entry)}: it has to be a '
        'tfp.distributions.Distribution, such as tfd.Normal(0., 1.), or a '
        'function of the variable that returns one.')
  if isinstance(entry, tfd.JointDistribution):
    raise TypeError(
        f'{what} is {type(entry).__name__}, the law of several tensors, and '
        'one weight is one: pass a dict with a distribution for each layer, '
        'or one distribution for all.')
  _check_shape(entry, tf.TensorShape(variable.shape), what)
  if entry.dtype != variable.dtype:
    raise TypeError(
        f'The prior of the weight {variable.path!r} has dtype '
        f'{entry.dtype.name}, and the weight {variable.dtype}: make the '
        "distribution with tensors of the weight's dtype.")
  return entry


def _check_shape(distribution, wanted, what):
  """Raises where a distribution is not one of a weight of this shape."""
  batch, event = distribution.batch_shape, distribution.event_shape
  rank = event.rank or 0
  before, last = wanted[:len(wanted) - rank], wanted[len(wanted) - rank:]
  try:
    fits = last == event and tf.broadcast_static_shape(batch, before) == before
  except ValueError:
    fits = False
  if fits:
    return
  if not rank:
    raise ValueError(
        f'{what} has shape {batch}, and the weight {wanted}: it has to '
        'broadcast to the weight. A scalar distribution fits every weight, '
        'its coordinates independent.')
  raise ValueError(
      f'{what} is {type(distribution).__name__} with event shape {event} and '
      f'batch shape {batch}, and the weight has shape {wanted}: the event is '
      "to be the weight's last axes, and the batch to broadcast to the axes "
      'before. A scalar distribution, tfd.Normal(0., 1.), fits every weight, '
      'its coordinates independent; for a density of all of this weight at '
      f'once tfd.Independent(tfd.Normal(tf.zeros({wanted.as_list()}), 1.), '
      f'{len(wanted)}).')
