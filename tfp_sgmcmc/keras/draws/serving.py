"""One model that holds many draws, for servers without this library.

All draws' weights are stacked, `[S, ...]`. Where TensorFlow can, one vectorised
pass has the outputs of all of them: S products of matrices become one, and what
comes before the first sampled layer is computed once. Elsewhere (convolutions
and recurrent layers that were sampled) there are S passes, and a layer whose
inputs and weights are the same in all of them runs in the first alone.

What is computed after that is made of operations that ONNX and LiteRT have, for
the losses of Keras and for Gaussian and Laplace likelihoods.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.draws import chosen_draws
from tfp_sgmcmc.keras.draws import predictive as predictive_lib
from tfp_sgmcmc.keras.model import network
from tfp_sgmcmc.keras.model import vectorisation

__all__ = ['OUTPUTS', 'serving_model']

tfd = tfp.distributions

# What can be asked of each output, in this order.
OUTPUTS = ('mean', 'std', 'quantiles', 'entropy', 'mutual_information')

# Halvings of the bracket of a quantile: what float32 resolves of it.
_NUM_HALVINGS = 28
_TINY = 1e-30

# The error function of float32, a ratio of polynomials in x^2 for |x| <= 4
# (Eigen's). LiteRT has no operation of this name.
_ERF_UP = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06,
    -5.69250639462346e-05, -7.34990630326855e-04, -2.95459980854025e-03,
    -1.60960333262415e-02)
_ERF_DOWN = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03,
    -7.37332916720468e-03, -1.42647390514189e-02)


def serving_model(
    chosen: chosen_draws.ChosenDraws,
    outputs: Sequence[str] | None,
    q: Sequence[float],
    dtype: str | None,
    input_signature: Any,
) -> keras.Model:
  """See `PosteriorSamples.as_model`.

  Args:
    chosen: `ChosenDraws`.
    outputs: Some of `OUTPUTS`; None for all that there are.
    q: The probabilities of the quantiles.
    dtype: In which to keep the weights; None for that of the model.
    input_signature: Specs of the inputs, None for the model's own.

  Returns:
    serving_model: `keras.Model`.
  """
  likelihood = chosen.likelihood()
  chosen.check_weights()
  for name in () if outputs is None else outputs:
    checks.one_of('outputs', name, OUTPUTS)
  p = checks.probabilities('quantiles', q)
  inputs = _inputs(chosen.model, input_signature)
  layer = _AllDraws(chosen.model, chosen.read(), chosen.read_extras(), dtype)
  layer.vectorise_if_possible(inputs)
  summaries = _Summaries(likelihood, chosen.shares, outputs, p)
  served = keras.Model(
      inputs, _Summarised(layer, summaries)(inputs),
      name=f'{chosen.model.name}_posterior')
  served(inputs)  # Keras exports to ONNX only what has been called.
  return served


class _AllDraws:
  """A model's outputs for all draws, `[draws, n, ...]`."""

  def __init__(self, model, weights, extras, dtype):
    self._model = model
    varying = {id(variable) for variable, _ in extras}
    self.num_draws = len(weights[0])
    self.variables = list(model.trainable_variables)
    self.arrays = [_cast(v, a, dtype) for v, a in zip(self.variables, weights)]
    self.variables += [variable for variable, _ in extras]
    self.arrays += [array for _, array in extras]
    self.num_stacked = len(self.variables)
    # Frozen weights as they are now: they are the same for all draws.
    frozen = [v for v in model.non_trainable_weights if id(v) not in varying]
    self.variables += frozen
    self.arrays += network.values(frozen)
    self._is_vectorised = False

  def vectorise_if_possible(self, inputs: hints.Data) -> None:
    """Finds out whether one vectorised pass can have the outputs of all."""
    if not vectorisation.may_be(self._model) or any(
        isinstance(layer, keras.layers.RNN)
        for layer in compat.all_layers(self._model)):
      return
    specs = keras.tree.map_structure(
        lambda t: tf.TensorSpec(t.shape, t.dtype), inputs)
    values = [tf.TensorSpec(a.shape, a.dtype) for a in self.arrays]
    try:
      program = tf.function(self._together, autograph=False)
      program.get_concrete_function(specs, values)
    except Exception:  # What else is wrong the separate passes will say.
      return
    self._is_vectorised = True

  def tables(self) -> list[Any]:
    """The tables of lookup layers, which a SavedModel has to own."""
    return [
        value for layer in [self._model, *compat.all_layers(self._model)]
        for value in vars(layer).values()
        if isinstance(value, tf.saved_model.experimental.TrackableResource)]

  def __call__(self, x: hints.Data, values: Sequence[tf.Tensor]) -> Any:
    """Outputs `[draws, n, ...]` in the model's structure.

    Args:
      x: A batch of inputs.
      values: One tensor for each of `variables`, stacked but for frozen ones.

    Returns:
      outputs: Nested tensors.
    """
    if self._is_vectorised:
      return self._together(x, values)
    return self._one_by_one(x, values)

  def _together(self, x, values):
    frozen = values[self.num_stacked:]
    return compat.vectorized_map(
        lambda own: self._one(x, [*own, *frozen]),
        list(values[:self.num_stacked]))

  def _one_by_one(self, x, values):
    stacked, frozen = values[:self.num_stacked], values[self.num_stacked:]
    with _each_once(self._model, self.variables[:self.num_stacked]):
      passes = [
          self._one(x, [*(v[k] for v in stacked), *frozen])
          for k in range(self.num_draws)]
    return keras.tree.map_structure(lambda *leaves: tf.stack(leaves), *passes)

  def _one(self, x, values):
    pairs = [
        (v, tf.cast(value, v.dtype)) for v, value in zip(
            self.variables, values)]
    number = len(self._model.trainable_variables)
    return network.forward(
        self._model, x, [value for _, value in pairs[:number]],
        pairs[number:]).outputs


class _Summaries:
  """The outputs of a server, from all draws' outputs."""

  def __init__(self, likelihood, shares, outputs, q):
    self._likelihood = likelihood
    self._shares = np.asarray(shares, np.float64)
    self._wanted = OUTPUTS if outputs is None else tuple(outputs)
    self._is_strict = outputs is not None
    self._q = q

  def __call__(self, outputs: hints.Nested) -> dict[str, tf.Tensor]:
    """A flat dictionary, names after the output's and `_` where several.

    Args:
      outputs: `[draws, n, ...]` in the model's structure.

    Returns:
      summaries: By name, `[n, ...]`; quantiles `[n, ..., quantiles]`.
    """
    likelihood = self._likelihood
    flat = likelihood.flat_outputs(outputs)
    terms = {term.index: term for term in likelihood.terms(outputs)}
    names = likelihood.output_names(outputs)
    found, reasons = {}, {}
    for index, output in enumerate(flat):
      prefix = f'{names[index]}_' if len(flat) > 1 else ''
      one = _Output(terms.get(index), output, self._shares)
      for name in self._wanted:
        try:
          found[prefix + name] = one.quantiles(
              self._q) if name == 'quantiles' else getattr(one, name)()
        except _NotThere as reason:
          reasons.setdefault(name, []).append(str(reason))
    if self._is_strict:
      for name in self._wanted:
        if len(reasons.get(name, [])) == len(flat):
          raise ValueError(
              f'{name!r} cannot be had of this model: {reasons[name][0]}')
    return found


class _NotThere(Exception):
  """An output has no such summary; says why."""


class _Output:
  """Summaries of one output's predictive distribution."""

  def __init__(self, term, output, shares):
    self._term, self._output = term, output
    self._shares = shares
    self._shape = tf.shape(output)[:2]

  def mean(self) -> tf.Tensor:
    return self._average(self._means())

  def std(self) -> tf.Tensor:
    draws, means = self._densities(), self._means()
    if isinstance(draws, _LocationScale):
      within = draws.variance
    else:
      try:
        within = self._stacked(draws.variance())
      except NotImplementedError as error:
        raise _NotThere(
            f'{type(draws).__name__} has no variance in TFP.') from error
    between = tf.square(means - self._average(means))
    return tf.sqrt(self._average(within + between))

  def entropy(self) -> tf.Tensor:
    return _entropy(self._average(self._probabilities()))

  def mutual_information(self) -> tf.Tensor:
    p = self._probabilities()
    return tf.maximum(
        _entropy(self._average(p)) - self._average(_entropy(p)), 0.)

  def quantiles(self, q: np.ndarray) -> tf.Tensor:
    """Quantiles of the mixture by bisection, on a new last axis."""
    # `[quantiles, draws, targets]`, all targets along one axis.
    each, cdf, shape = self._quantiles_and_cdf(q)
    p = tf.constant(q[:, np.newaxis], each.dtype)
    # The mixture's quantile lies between those of the draws.
    low, high = tf.reduce_min(each, axis=1), tf.reduce_max(each, axis=1)

    def halve(k, low, high):
      middle = 0.5 * (low + high)
      is_below = self._average(cdf(middle), axis=1) < p
      return k + 1, tf.where(is_below, middle, low), tf.where(
          is_below, high, middle)

    _, low, high = tf.while_loop(
        lambda k, *_: k < _NUM_HALVINGS, halve, (0, low, high))
    return tf.reshape(
        tf.transpose(0.5 * (low + high)),
        tf.concat([shape, [len(q)]], axis=0))

  def _quantiles_and_cdf(self, q):
    """The draws' quantiles, their cdf of `[quantiles, targets]`, the shape."""
    draws, number = self._densities(), self._output.shape[0]
    if isinstance(draws, _LocationScale):
      shape = tf.shape(draws.loc)[1:]
      flat = draws.flat(number)
      z = draws.standard_quantiles(q)[:, np.newaxis, np.newaxis]
      return flat.loc + flat.scale * tf.constant(z, flat.loc.dtype), (
          lambda y: flat.cdf(y[:, tf.newaxis])), shape
    while isinstance(draws, tfd.Independent):
      draws = draws.distribution
    name = type(draws).__name__
    if draws.event_shape.rank:
      raise _NotThere(f'{name} is a distribution of vectors.')
    if isinstance(draws, predictive_lib.COUNTS) or (
        not draws.dtype.is_floating):
      raise _NotThere(f'{name} is a distribution of counts.')
    rows = draws.batch_shape_tensor()
    flat_shape = [len(q), number, -1]

    def cdf(y):
      y = tf.tile(y[:, tf.newaxis], [1, number, 1])
      return tf.reshape(draws.cdf(tf.reshape(
          y, tf.concat([[len(q)], rows], axis=0))), flat_shape)

    p = tf.constant(
        q.reshape([-1] + [1] * draws.batch_shape.rank), draws.dtype)
    try:
      each = tf.reshape(draws.quantile(p), flat_shape)
      cdf(each[:, 0])
    except NotImplementedError as error:
      raise _NotThere(
          f'{name} has no cdf, or no quantiles, in TFP.') from error
    return each, cdf, tf.concat([self._shape[1:], rows[1:]], axis=0)

  def _means(self):
    if self._term is None:
      return self._output
    if self._term.is_classification:
      return self._term.probabilities(self._output)
    if predictive_lib.is_distribution(self._term):
      draws = self._densities()
      if isinstance(draws, _LocationScale):
        return draws.loc
    return self._stacked(self._term.predictive_mean(self._rows()))

  def _probabilities(self):
    if self._term is None or not self._term.is_classification:
      raise _NotThere('its targets are no classes.')
    return self._term.probabilities(self._output)

  def _densities(self):
    """`_LocationScale`, or the distribution of `_rows`."""
    if self._term is None:
      raise _NotThere('the output has no loss.')
    if self._term.is_classification:
      raise _NotThere(
          "its targets are classes: ask for 'mean', their probabilities, and "
          "'entropy'.")
    if not predictive_lib.is_distribution(self._term):
      raise _NotThere(
          f'the loss {self._term.loss.name!r} does not say what the '
          'distribution of the targets is.')
    distribution = predictive_lib.distribution_of_draw(self._term, self._rows())
    inner = distribution
    while isinstance(inner, tfd.Independent):
      inner = inner.distribution
    if type(inner) not in _LocationScale.VARIANCES:
      return distribution
    # One number for all stays one; else all targets have their own.
    loc = inner.loc + tf.zeros_like(inner.scale)
    scale = inner.scale if not inner.scale.shape.rank else (
        inner.scale + tf.zeros_like(inner.loc))
    return _LocationScale(type(inner), *(
        value if not value.shape.rank else self._stacked(value)
        for value in (loc, scale)))

  def _rows(self):
    """The examples of all draws as rows of one batch."""
    rows = tf.reshape(self._output, tf.concat(
        [[-1], tf.shape(self._output)[2:]], axis=0))
    rows.set_shape([None, *self._output.shape[2:]])
    return rows

  def _stacked(self, rows):
    """Rows of all draws, `[draws, n, ...]`."""
    stacked = tf.reshape(
        rows, tf.concat([self._shape, tf.shape(rows)[1:]], axis=0))
    stacked.set_shape([*self._output.shape[:2], *rows.shape[1:]])
    return stacked

  def _average(self, stacked, axis=0):
    """The mean over draws, by their weights."""
    w = tf.constant(self._shares, stacked.dtype)
    return tf.reduce_sum(stacked * tf.reshape(
        w, [-1] + [1] * (stacked.shape.rank - 1 - axis)), axis=axis)


class _LocationScale:
  """Normal or Laplace distributions, of few operations.

  Attributes:
    loc: The locations, `[draws, n, ...]`.
    scale: The scales, that broadcast with them.
  """

  VARIANCES = {tfd.Normal: 1., tfd.Laplace: 2.}

  def __init__(self, kind, loc, scale):
    self._kind = kind
    self.loc, self.scale = loc, scale

  def flat(self, number: int) -> '_LocationScale':
    """The same, `[draws, targets]`."""
    return _LocationScale(self._kind, *(
        value if not value.shape.rank else tf.reshape(value, [number, -1])
        for value in (self.loc, self.scale)))

  @property
  def variance(self) -> tf.Tensor:
    """Broadcasts with the locations."""
    return self.VARIANCES[self._kind] * tf.square(self.scale)

  def standard_quantiles(self, q: np.ndarray) -> np.ndarray:
    with tf.init_scope():  # Numbers, whatever is being traced.
      return self._kind(np.float64(0.), np.float64(1.)).quantile(q).numpy()

  def cdf(self, y: tf.Tensor) -> tf.Tensor:
    z = (y - self.loc) / self.scale
    if self._kind is tfd.Normal:
      return 0.5 + 0.5 * _erf(z * np.sqrt(0.5))
    tail = 0.5 * tf.exp(-tf.abs(z))
    return tf.where(z < 0., tail, 1. - tail)


class _Summarised(keras.Layer):
  """Holds the stacked weights, as variables, and computes the summaries."""

  def __init__(self, all_draws, summaries):
    super().__init__(name='posterior', trainable=False, autocast=False)
    self._values = []
    for k, (variable, array) in enumerate(
        zip(all_draws.variables, all_draws.arrays)):
      own = self.add_weight(
          shape=array.shape, dtype=tf.as_dtype(array.dtype).name,
          initializer='zeros', trainable=False, autocast=False,
          name=f'{k}_{variable.path.replace("/", "_")}')
      own.assign(array)
      self._values.append(own)

    def compute(x):
      return summaries(all_draws(
          x, [tf.convert_to_tensor(value) for value in self._values]))

    # Traced once where it is called eagerly. In a tuple, of which Keras keeps
    # no track: the draws' model is not part of what is exported, except for
    # the tables of its lookup layers.
    self._compute = (compute, tf.function(compute, autograph=False))
    self._tables = all_draws.tables()

  def call(self, x):
    compute, compiled = self._compute
    return compiled(x) if tf.executing_eagerly() else compute(x)

  def get_config(self):
    raise NotImplementedError(
        'A model of as_model() is for export, and cannot be saved as a .keras '
        'file: call its export(path), or keep the draws by posterior.save.')


def _inputs(model, input_signature):
  """Symbolic inputs in the model's structure."""
  if input_signature is None:
    if not isinstance(model, keras.Sequential) and not hasattr(
        model, 'operations'):
      raise ValueError(
          f'{type(model).__name__} does not say what its inputs are: pass '
          'input_signature, such as keras.InputSpec(shape=[None, 4], '
          "dtype='float32'), in the structure of the inputs.")
    input_signature = model.inputs[0] if isinstance(
        model, keras.Sequential) else model.input

  def make(spec, name=None):
    return keras.Input(
        shape=tuple(spec.shape)[1:], name=name or getattr(spec, 'name', None),
        dtype=tf.as_dtype(spec.dtype or keras.config.floatx()).name)

  if isinstance(input_signature, dict):
    return {name: make(spec, name) for name, spec in input_signature.items()}
  return keras.tree.map_structure(make, input_signature)


def _cast(variable, array, dtype):
  """The draws of a weight in the type in which they are kept."""
  if dtype is None:
    return array
  with np.errstate(over='ignore'):
    cast = array.astype(tf.as_dtype(dtype).as_numpy_dtype)
  if not np.all(np.isfinite(np.asarray(cast, np.float32))):
    raise ValueError(
        f'The draws of {variable.path!r} reach {np.max(np.abs(array)):.3g}, '
        f'which {dtype} does not hold: keep them in float32.')
  return cast


@contextlib.contextmanager
def _each_once(
    model: keras.Model, varying: Sequence[keras.Variable]) -> Iterator[None]:
  """Lets layers that do not vary run once for the same inputs."""
  varies = {id(v) for v in varying}
  known, kept = {}, []
  candidates = [
      layer for layer in compat.all_layers(model)
      if not any(id(v) in varies for v in layer.weights)]
  for part in [model, *compat.all_layers(model)]:
    # Additions and the like of tensors, which are no layers.
    candidates += [
        operation for operation in getattr(part, 'operations', [])
        if not isinstance(operation, keras.Layer)]

  def call(part, own, *args, **kwargs):
    leaves = keras.tree.flatten((args, kwargs))
    key = (id(part), *(
        id(leaf) if tf.is_tensor(leaf) else repr(leaf) for leaf in leaves))
    if key not in known:
      known[key] = own(*args, **kwargs)
      kept.append(leaves)  # Else another object might get the same id.
    return known[key]

  patched = list({id(part): part for part in candidates}.values())
  try:
    for part in patched:
      # setattr would look for layers to track.
      vars(part)['call'] = _bound(call, part, part.call)
    yield
  finally:
    for part in patched:
      vars(part).pop('call', None)


def _bound(call, part, own) -> Callable[..., Any]:
  return lambda *args, **kwargs: call(part, own, *args, **kwargs)


def _entropy(p):
  """Entropy over the last axis; of one probability, of it and its rest."""
  if p.shape[-1] == 1:
    p = tf.concat([p, 1. - p], axis=-1)
  return -tf.reduce_sum(p * tf.math.log(tf.maximum(p, _TINY)), axis=-1)


def _erf(x):
  x = tf.clip_by_value(x, -4., 4.)
  square = tf.square(x)

  def polynomial(coefficients):
    value = tf.zeros_like(x)
    for coefficient in coefficients:
      value = value * square + coefficient
    return value

  return x * polynomial(_ERF_UP) / polynomial(_ERF_DOWN)
